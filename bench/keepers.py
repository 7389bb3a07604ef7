"""Servers that keep what they are told, and how to talk to each of them in bytes.

For `bench.durable`: Wirelake, JetStream as it is and with an fsync for every message, and Redis
with one before every answer; RabbitMQ is in `bench.rabbitmq`. Frames are prepared beforehand as far
as they can be. A *talker* is a connection that does the same steps again and again, and waits for
the answer to each.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.goals import WITHOUT_CAPTURE
from bench.peers import Nats, Redis, connected, wait_for_listener
from wirelake.client.url import Place
from wirelake.dialects.codec import encoder
from wirelake.errors import EngineError
from wirelake.measure.broker import HOST, encode, free_port
from wirelake.measure.broker import Wirelake as Driver
from wirelake.message import Flag, Message, Op, Parameters

PAYLOAD = (b'{"temperature": 21.5, "unit": "celsius"} ' * 4)[:128]
DIALECT = "kobold-3"
MANY = 64
PATIENCE = 30.0
BLOCK = 1000  # messages that a publisher writes at once
PING = b"PING\r\n"  # what nats-server may say at any time

#: The next frame, from the number of the turn and the answer to the frame before.
Say = Callable[[int, bytes], bytes]


@dataclass
class Talker:
    """A connection that does the same steps again and again, waiting for an answer to each."""

    connection: socket.socket
    steps: list[Say]
    is_answered: Callable[[bytes], bool]
    step: int = 0
    turns: int = 0
    got: bytes = b""

    def speak(self) -> None:
        """Do the next step."""
        self.connection.sendall(self.steps[self.step](self.turns, self.got))
        self.got = b""

    def hear(self) -> bool:
        """Read; is the answer there, and the step done?"""
        data = self.connection.recv(1 << 16)
        if not data:
            raise EngineError("the server hung up")
        self.got += data
        if not self.is_answered(self.got):
            return False
        self.step = (self.step + 1) % len(self.steps)
        self.turns += self.step == 0
        return True


def turns_a_second(talkers: list[Talker], seconds: float) -> float:
    """Turns that all of them together did in a second."""
    by_file = {talker.connection.fileno(): talker for talker in talkers}
    poll = select.epoll()
    for file, talker in by_file.items():
        poll.register(file, select.EPOLLIN)
        talker.speak()
    begun = time.monotonic()
    end, count = begun + seconds, 0
    waiting = len(talkers)
    while waiting:
        ready = poll.poll(PATIENCE)
        if not ready:
            raise EngineError("the server does not answer")
        running = time.monotonic() < end
        for file, _ in ready:
            talker = by_file[file]
            if talker.hear():
                count += running and talker.step == 0
                if running or talker.step:  # a turn is finished even if time is up
                    talker.speak()
                else:
                    waiting -= 1
    poll.close()
    return count / seconds


class Keeper(ABC):
    """A server, and how to talk to it in bytes."""

    name: str
    #: Seconds that it may take to start.
    patience = PATIENCE

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.port = free_port()
        self.pid = 0  # while it runs

    @abstractmethod
    def command(self) -> list[str]:
        """How to start it."""

    def environment(self) -> dict[str, str]:
        """What it is told beside its arguments."""
        return {}

    @abstractmethod
    def connect(self, number: int) -> socket.socket:
        """A connection that has introduced itself."""

    @abstractmethod
    def is_answered(self, got: bytes) -> bool:
        """Is this an answer, whole?"""

    @abstractmethod
    def publish(self, number: int) -> list[Say]:
        """Publish, and be answered."""

    @abstractmethod
    def queue(self, number: int) -> list[Say]:
        """Put, get, ack."""

    def update(self, number: int) -> list[Say]:
        """Change a key; no steps where there are no keys."""
        return []

    @abstractmethod
    def block(self) -> bytes:
        """Messages that are to be kept, and are not answered."""

    @abstractmethod
    def wait_until_kept(self, publisher: socket.socket, sent: int) -> None:
        """Wait until all is kept that was sent, so many more messages."""

    @abstractmethod
    def prepare(self) -> None:
        """Make streams, queues and keys."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """The server, until the end of the block."""
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(
            self.command(),
            env={**os.environ, **self.environment()},
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,  # an interrupt is for us; we end it, and what it started
        )
        self.pid = process.pid
        try:
            wait_for_listener(self.name, process, self.port, self.patience)
            self.prepare()
            yield
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its files are not needed any more
            process.wait()
            self._wait_until_gone()

    def _wait_until_gone(self) -> None:
        """Wait for what the process has started, too, which is not ours to wait for."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                socket.create_connection((HOST, self.port)).close()
            except ConnectionRefusedError:
                return
            except OSError:
                pass
            time.sleep(0.01)

    def ask(self, connection: socket.socket, frame: bytes) -> bytes:
        """Say one thing, and wait for the answer."""
        connection.sendall(frame)
        got = b""
        while not self.is_answered(got):
            more = connection.recv(1 << 16)
            if not more:
                raise EngineError(f"{self.name} hung up")
            got += more
        return got

    def rate(self, steps: Callable[[int], list[Say]], clients: int, seconds: float) -> float:
        """Turns a second of so many clients."""
        with ExitStack() as stack:
            talkers = []
            for number in range(clients):
                connection = stack.enter_context(closing(self.connect(number)))
                connection.settimeout(PATIENCE)
                talkers.append(Talker(connection, steps(number), self.is_answered))
            return turns_a_second(talkers, seconds)

    def captured(self, seconds: float) -> tuple[int, float]:
        """Messages sent, and the seconds from the first one sent to the last one kept."""
        block = self.block()
        with closing(self.connect(MANY + 1)) as publisher:
            publisher.settimeout(PATIENCE)
            sent, begun = 0, time.monotonic()
            while time.monotonic() - begun < seconds:
                publisher.sendall(block)
                sent += BLOCK
                self.slow_down(publisher, sent)
            self.wait_until_kept(publisher, sent)
            return sent, time.monotonic() - begun

    def slow_down(self, publisher: socket.socket, sent: int) -> None:  # noqa: B027 - most need not
        """Wait, where a server would drop what comes too fast."""


class Wirelake(Keeper):
    """Ours."""

    name = "Wirelake"
    arguments: tuple[str, ...] = ()

    def command(self) -> list[str]:
        """As a user starts it."""
        serve = [sys.executable, "-m", "wirelake", "serve"]
        place = ["--listen", f"auto://{HOST}:{self.port}", "--data", str(self.folder)]
        return [*serve, *place, "--no-http", *self.arguments]

    def connect(self, number: int) -> socket.socket:
        """A connection of a client with a name."""
        return self.driver.connect("pub", client_id=f"client-{number}")

    @property
    def driver(self) -> Driver:
        """How to talk to it."""
        return Driver(Place(DIALECT, HOST, self.port))

    def log_bytes(self) -> int:
        """What the log has in its files."""
        return sum(path.stat().st_size for path in (self.folder / "journal").glob("*.wlj"))

    def cpu_seconds(self) -> float:
        """The processor time that it has taken so far."""
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii")
        user, system = stat.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def is_answered(self, got: bytes) -> bool:
        """Whole frames, the last of which is OK."""
        at = last = 0
        while at + 4 <= len(got):
            last = at + 4
            at = last + int.from_bytes(got[at:last])
        if at != len(got) or not at:
            return False
        if got.startswith(b"ERR", last):
            raise EngineError(f"{self.name}: {got!r}")
        return got.startswith(b"OK", last)

    def publish(self, number: int) -> list[Say]:
        """PUB with ack."""
        message = Message(f"bench/{number:04}", PAYLOAD, id="1", flags=Flag.ACK)
        return [self._always(message)]

    def queue(self, number: int) -> list[Say]:
        """ENQ, DEQ, ACK; the message's id is made by the broker."""
        queue = f"jobs/{number}"
        put = self._always(Message(queue, PAYLOAD, correlation_id="1", op=Op.ENQUEUE))
        said = Parameters(count=1, wait=30.0)
        get = self._always(Message(queue, correlation_id="2", op=Op.DEQUEUE, parameters=said))
        found = re.compile(rb"bid.(q\d+)", re.DOTALL)
        writer = encoder(DIALECT)

        def ack(turn: int, got: bytes) -> bytes:
            match = found.search(got)
            if match is None:
                raise EngineError(f"{self.name} delivered nothing: {got!r}")
            done = Message(queue, id=match[1].decode(), correlation_id="3", op=Op.ACK)
            return encode(writer, DIALECT, [done])

        return [put, get, ack]

    def update(self, number: int) -> list[Say]:
        """UPDATE."""
        return [self._always(self._entry(Op.UPDATE, number))]

    def _entry(self, op: Op, number: int) -> Message:
        return Message(f"key/{number}", PAYLOAD, correlation_id="1", op=op)

    def block(self) -> bytes:
        """PUB without ack."""
        return encode(encoder(DIALECT), DIALECT, [Message("bench/block", PAYLOAD)] * BLOCK)

    def wait_until_kept(self, publisher: socket.socket, sent: int) -> None:
        """An acknowledged publish waits for all that came before it."""
        self.ask(publisher, self.publish(0)[0](0, b""))

    def prepare(self) -> None:
        """Keys, since an update needs one."""
        with closing(self.connect(MANY)) as connection:
            for number in range(MANY):
                self.ask(connection, self._frame(self._entry(Op.CREATE, number)))

    def _frame(self, message: Message) -> bytes:
        return encode(encoder(DIALECT), DIALECT, [message])

    def _always(self, message: Message) -> Say:
        frame = self._frame(message)
        return lambda turn, got: frame


class JetStream(Keeper):
    """nats-server with its streams in files."""

    name = "JetStream"
    sync = ""
    _answers = 0
    _rest = b""

    def command(self) -> list[str]:
        """With JetStream, by a file of settings."""
        settings = self.folder / "server.conf"
        settings.write_text(
            f'listen: "{HOST}:{self.port}"\n'
            f'jetstream {{ store_dir: "{self.folder}"\n{self.sync} }}\n'
        )
        return [str(Nats.binary()), "-c", str(settings)]

    def connect(self, number: int) -> socket.socket:
        """A connection with an inbox."""
        connection = connected(self.port)
        connection.sendall(b'CONNECT {"verbose":false}\r\nSUB inbox.%d 1\r\nPING\r\n' % number)
        got = b""
        while b"PONG\r\n" not in got:
            got += connection.recv(1 << 16)
        return connection

    def is_answered(self, got: bytes) -> bool:
        """One message to the inbox, whole."""
        head, found, rest = got.removeprefix(PING).partition(b"\r\n")
        if not found:
            return False
        if not head.startswith(b"MSG "):
            raise EngineError(f"{self.name}: {got!r}")
        if len(rest) < int(head.rpartition(b" ")[2]) + 2:
            return False
        if b'"error"' in rest:
            raise EngineError(f"{self.name}: {got!r}")
        return True

    def publish(self, number: int) -> list[Say]:
        """A publish that is answered by its stream."""
        frame = self.frame(f"bench.{number:04}", number, PAYLOAD)
        return [lambda turn, got: frame]

    def queue(self, number: int) -> list[Say]:
        """A publish to a work queue, the next message of its consumer, a confirmed ack."""
        put = self.frame(f"jobs.{number}", number, PAYLOAD)
        get = self.frame(f"$JS.API.CONSUMER.MSG.NEXT.JOBS.c{number}", number, b'{"batch":1}')

        def ack(turn: int, got: bytes) -> bytes:
            return self.frame(got.removeprefix(PING).split(b" ", 4)[3].decode(), number, b"+ACK")

        return [lambda turn, got: put, lambda turn, got: get, ack]

    def update(self, number: int) -> list[Say]:
        """A publish to a bucket that keeps one value a key."""
        frame = self.frame(f"$KV.bench.{number}", number, PAYLOAD)
        return [lambda turn, got: frame]

    def block(self) -> bytes:
        """Publishes with an inbox: what comes too fast is dropped, so answers must be counted."""
        return self.frame("bench.block", MANY + 1, PAYLOAD) * BLOCK

    def slow_down(self, publisher: socket.socket, sent: int) -> None:
        """Let no more than a few blocks be without an answer."""
        self._count(publisher, sent - 4 * BLOCK)

    def wait_until_kept(self, publisher: socket.socket, sent: int) -> None:
        """Wait for all answers."""
        self._count(publisher, sent)
        self._answers = 0

    def _count(self, publisher: socket.socket, wanted: int) -> None:
        """Read until there were so many answers; one ends with a brace and a new line."""
        while self._answers < wanted:
            got = publisher.recv(1 << 20)
            self._answers += (self._rest + got).count(b"}\r\n")
            self._rest = got[-2:]

    def prepare(self) -> None:
        """Streams, and a consumer for each queue."""
        streams: dict[str, dict[str, object]] = {
            "BENCH": {"subjects": ["bench.>"]},
            "JOBS": {"subjects": ["jobs.>"], "retention": "workqueue"},
            "KV_bench": {"subjects": ["$KV.bench.>"], "max_msgs_per_subject": 1},
        }
        with closing(self.connect(MANY)) as connection:
            for name, fields in streams.items():
                wanted = {"name": name, "storage": "file", **fields}
                self._create(connection, f"STREAM.CREATE.{name}", wanted)
            for number in range(MANY):
                consumer = {
                    "durable_name": f"c{number}",
                    "ack_policy": "explicit",
                    "filter_subject": f"jobs.{number}",
                }
                wanted = {"stream_name": "JOBS", "config": consumer}
                self._create(connection, f"CONSUMER.DURABLE.CREATE.JOBS.c{number}", wanted)

    def _create(self, connection: socket.socket, what: str, wanted: dict[str, object]) -> None:
        self.ask(connection, self.frame(f"$JS.API.{what}", MANY, json.dumps(wanted).encode()))

    def frame(self, subject: str, number: int, payload: bytes) -> bytes:
        """A publish that is answered to the inbox of this number."""
        head = f"PUB {subject} inbox.{number} {len(payload)}\r\n"
        return head.encode() + payload + b"\r\n"


class JetStreamSynced(JetStream):
    """The same with an fsync for every message."""

    name = "JetStream, synced"
    sync = "sync_interval: always"


class RedisStreams(Keeper):
    """Redis, with an fsync before it answers."""

    name = "Redis, synced"
    _kept = 0

    def command(self) -> list[str]:
        """With an append-only file."""
        place = ["--bind", HOST, "--port", str(self.port), "--dir", str(self.folder)]
        return [str(Redis.binary()), *place, "--save", "", "--appendonly", "yes",
                "--appendfsync", "always"]  # fmt: skip

    def connect(self, number: int) -> socket.socket:
        """A connection."""
        return connected(self.port)

    def is_answered(self, got: bytes) -> bool:
        """A whole reply: all its lines, as far as they tell of more."""
        if got.startswith(b"-"):
            raise EngineError(f"{self.name}: {got!r}")
        lines = wanted = 0
        at = 0
        while lines <= wanted and (end := got.find(b"\r\n", at)) >= 0:
            if got[at] == ord("*"):
                wanted += max(0, int(got[at + 1 : end]))
            elif got[at] == ord("$"):
                end += 2 + int(got[at + 1 : end])
            at = end + 2
            lines += 1
        return lines > wanted and at <= len(got)

    def publish(self, number: int) -> list[Say]:
        """XADD to one stream."""
        frame = _redis(b"XADD", b"bench", b"*", b"a", b"%d" % number, b"p", PAYLOAD)
        return [lambda turn, got: frame]

    def queue(self, number: int) -> list[Say]:
        """XADD, XREADGROUP, XACK."""
        name = b"jobs:%d" % number
        put = _redis(b"XADD", name, b"*", b"p", PAYLOAD)
        words = (b"GROUP", b"g", b"c", b"COUNT", b"1", b"BLOCK", b"30000", b"STREAMS", name, b">")
        get = _redis(b"XREADGROUP", *words)
        found = re.compile(rb"\r\n(\d+-\d+)\r\n")

        def ack(turn: int, got: bytes) -> bytes:
            match = found.search(got)
            if match is None:
                raise EngineError(f"{self.name} delivered nothing: {got!r}")
            return _redis(b"XACK", name, b"g", match[1])

        return [lambda turn, got: put, lambda turn, got: get, ack]

    def update(self, number: int) -> list[Say]:
        """SET."""
        frame = _redis(b"SET", b"key:%d" % number, PAYLOAD)
        return [lambda turn, got: frame]

    def block(self) -> bytes:
        """XADD; the first one says that none is to be answered."""
        frame = _redis(b"XADD", b"block", b"*", b"p", PAYLOAD)
        return _redis(b"CLIENT", b"REPLY", b"OFF") + frame * BLOCK

    def wait_until_kept(self, publisher: socket.socket, sent: int) -> None:
        """Ask the stream how many it has."""
        self._kept += sent
        with closing(self.connect(MANY + 2)) as asker:
            while int(self.ask(asker, _redis(b"XLEN", b"block"))[1:]) < self._kept:
                time.sleep(0.005)

    def prepare(self) -> None:
        """A group of consumers for each queue."""
        with closing(self.connect(MANY)) as connection:
            for number in range(MANY):
                name = b"jobs:%d" % number
                self.ask(connection, _redis(b"XGROUP", b"CREATE", name, b"g", b"$", b"MKSTREAM"))


def _redis(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Uncaptured(Wirelake):
    """Ours, without a log."""

    name = WITHOUT_CAPTURE
    arguments = ("--no-capture",)
