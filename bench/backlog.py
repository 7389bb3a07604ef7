"""Queues that are filled and emptied in streams, short and long: `python -m bench.backlog`.

Messages have 1 KiB. A *put* is answered when it is durable; the client sends on meanwhile, with at
most `WINDOW` puts unanswered. A *get* is a delivery to a consumer that may have 1 000 messages
unacknowledged, and its acknowledgement. JetStream publishes asynchronously to a work queue in files
and is pulled in batches. RabbitMQ confirms publishes to a durable queue; one acknowledgement covers
all messages before it, which favours RabbitMQ: the others get one for each message.

- stream: one client puts, then one client gets, the same number of messages, in turns with peers;
- long queue, for Wirelake alone: the broker's memory for each message, the seconds until the broker
  listens again after a kill, and the rates of the long queue beside those of a short one.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import socket
import struct
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.keepers import DIALECT, JetStream, JetStreamSynced, Keeper, Wirelake
from bench.peers import Nats
from bench.rabbitmq import (
    ACK,
    BODY,
    CONFIRMED,
    HEADER,
    METHOD,
    PERSISTENT,
    PUBLISH,
    RabbitMq,
    declare,
    frame,
    method,
    short,
)
from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.dialects.codec import Feed, encoder
from wirelake.errors import EngineError
from wirelake.measure.broker import encode
from wirelake.measure.load import end_by_signals
from wirelake.measure.machine import describe
from wirelake.message import Message, Op, Parameters

BODY_BYTES = (b'{"order": 4711, "note": "leave it at the back door"} ' * 20)[:1024]
BLOCK = 200  # messages that a client writes at once
WINDOW = 4000
PREFETCH = 1000
#: A queue that is short, in messages, and how often it is measured beside the long one.
SHORT = 100_000
PATIENCE = 60.0
PUTS, GETS = "stream, puts", "stream, gets with acks"
LONG = "long queue"


class Streaming(ABC):
    """A server, and the bytes of a stream of puts and of gets."""

    def __init__(self, server: Keeper) -> None:
        self.server = server
        self.name = server.name

    @abstractmethod
    def prepare(self, queue: str) -> None:
        """Make a queue."""

    @abstractmethod
    def putter(self, queue: str) -> tuple[socket.socket, bytes]:
        """A connection, and a block of puts to send again and again."""

    @abstractmethod
    def answers(self, data: bytes) -> int:
        """How many puts these bytes answer."""

    @abstractmethod
    def getter(self, queue: str) -> socket.socket:
        """A connection to which the queue's messages begin to come."""

    @abstractmethod
    def take(self, data: bytes) -> tuple[int, bytes]:
        """How many messages are whole with these bytes, and what acknowledges them."""

    @abstractmethod
    def finish(self, connection: socket.socket, queue: str) -> None:
        """Return when the acknowledgements that were sent have been read."""

    def put(self, queue: str, count: int) -> float:
        """Puts a second, until all are answered."""
        connection, block = self.putter(queue)
        with closing(connection):
            connection.settimeout(PATIENCE)
            sent = answered = 0
            begun = time.monotonic()
            while answered < count:
                while sent < count and sent - answered <= WINDOW - BLOCK:
                    connection.sendall(block)
                    sent += BLOCK
                answered += self.answers(_received(connection))
            return count / (time.monotonic() - begun)

    def get(self, queue: str, count: int) -> float:
        """Messages a second that are got and acknowledged."""
        begun = time.monotonic()
        with closing(self.getter(queue)) as connection:
            connection.settimeout(PATIENCE)
            got = 0
            while got < count:
                found, acks = self.take(_received(connection))
                got += found
                if acks:
                    connection.sendall(acks)
            self.finish(connection, queue)
            return got / (time.monotonic() - begun)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(1 << 18)
    if not data:
        raise EngineError("the server hung up")
    return data


class Broker(Wirelake):
    """Ours, without keys; so it can be started again."""

    def prepare(self) -> None:
        """A queue is made by its first put."""


class OurStream(Streaming):
    """Wirelake, in Kobold's third protocol."""

    def __init__(self, server: Wirelake) -> None:
        super().__init__(server)
        self.ours = server
        self._feed = Feed(DIALECT)
        self._writer = encoder(DIALECT)
        self._rest = b""
        self._acks: dict[int, tuple[bytes, bytes]] = {}
        self._queue = ""

    def _frame(self, message: Message) -> bytes:
        return encode(self._writer, DIALECT, [message])

    def prepare(self, queue: str) -> None:
        """The first put makes it."""

    def putter(self, queue: str) -> tuple[socket.socket, bytes]:
        """ENQ."""
        self._feed = Feed(DIALECT)
        put = Message(queue, BODY_BYTES, correlation_id="1", op=Op.ENQUEUE)
        return self.ours.connect(1), self._frame(put) * BLOCK

    def answers(self, data: bytes) -> int:
        """OK; whoever gets an ERR has no right to a figure."""
        if b"ERR" in data:
            raise EngineError(f"{self.name}: {data[:200]!r}")
        return sum(len(table) for table in self._feed.receive(data))

    def getter(self, queue: str) -> socket.socket:
        """SUB to the queue; deliveries may come behind its answer in one read."""
        connection = self.ours.connect(2)
        asked = Message(queue, correlation_id="1", op=Op.SUBSCRIBE,
                        parameters=Parameters(count=PREFETCH))  # fmt: skip
        connection.sendall(self._frame(asked))
        self._rest, self._acks, self._queue = b"", {}, queue
        return connection

    _id = re.compile(rb"bid.(q\d+)", re.DOTALL)

    def take(self, data: bytes) -> tuple[int, bytes]:
        """ACK for every MSG; its id stands in its head, so the payload need not be there yet."""
        data = self._rest + data
        cut = max(0, len(data) - 64)
        match = None
        ids = []
        for match in self._id.finditer(data):
            if match.end() > cut:
                break
            ids.append(match[1])
        self._rest = data[min(cut, match.start()) if match and match.end() > cut else cut :]
        return len(ids), b"".join(map(self._ack, ids))

    def _ack(self, identity: bytes) -> bytes:
        size = len(identity)
        if size not in self._acks:
            stand_in = "#" * size
            made = self._frame(Message(self._queue, id=stand_in, op=Op.ACK))
            before, _, behind = made.partition(stand_in.encode())
            self._acks[size] = before, behind
        before, behind = self._acks[size]
        return before + identity + behind

    def finish(self, connection: socket.socket, queue: str) -> None:
        """PING is answered when all before it was read; acks are durable before the next answer."""
        connection.sendall(self._frame(Message(correlation_id="end", op=Op.PING)))
        got = b""
        while b"PONG" not in got:
            got = got[-8:] + _received(connection)


class JetStreamStream(Streaming):
    """JetStream: asynchronous publishes, and pulls of batches."""

    server: JetStream
    _rest = b""
    _asked = 0
    _consumer = ""

    def prepare(self, queue: str) -> None:
        """The queues of the keeper."""

    def putter(self, queue: str) -> tuple[socket.socket, bytes]:
        """Publishes with an inbox."""
        self._rest = b""
        return self.server.connect(1), self.server.frame(queue, 1, BODY_BYTES) * BLOCK

    def answers(self, data: bytes) -> int:
        """An answer ends with a brace and a new line."""
        if b'"error"' in data:
            raise EngineError(f"{self.name}: {data[:300]!r}")
        data = self._rest + data
        self._rest = data[-2:]
        return data.count(b"}\r\n")

    def getter(self, queue: str) -> socket.socket:
        """A pull."""
        connection = self.server.connect(2)
        self._consumer = queue.replace("jobs.", "c")
        self._rest, self._asked = b"", PREFETCH
        connection.sendall(self._next(PREFETCH))
        return connection

    def _next(self, count: int) -> bytes:
        wanted = b'{"batch":%d}' % count
        return self.server.frame(f"$JS.API.CONSUMER.MSG.NEXT.JOBS.{self._consumer}", 2, wanted)

    _reply = re.compile(rb"(\$JS\.ACK\.\S+) \d+\r\n")

    def take(self, data: bytes) -> tuple[int, bytes]:
        """+ACK to every reply subject, and the next pull when half of this one is there."""
        data = self._rest + data
        last = 0
        acks = []
        for match in self._reply.finditer(data):
            acks.append(b"PUB %b 4\r\n+ACK\r\n" % match[1])
            last = match.end()
        self._rest = data[max(last, len(data) - 200) :]
        self._asked -= len(acks)
        if self._asked <= PREFETCH // 2:
            acks.append(self._next(PREFETCH - self._asked))
            self._asked = PREFETCH
            return len(acks) - 1, b"".join(acks)
        return len(acks), b"".join(acks)

    def finish(self, connection: socket.socket, queue: str) -> None:
        """PING is answered when all before it was read."""
        connection.sendall(b"PING\r\n")
        got = b""
        while b"PONG\r\n" not in got:
            got = got[-8:] + _received(connection)


class RabbitStream(Streaming):
    """RabbitMQ: confirms, and a consumer with a prefetch."""

    server: RabbitMq
    _rest = b""
    _tag = 0

    def prepare(self, queue: str) -> None:
        """A durable queue."""
        with closing(self.server.connect(0)) as connection:
            self.server.ask(connection, declare(queue))

    def putter(self, queue: str) -> tuple[socket.socket, bytes]:
        """Persistent messages to be confirmed."""
        connection = self.server.connect(1)
        connection.sendall(CONFIRMED)
        self._rest, self._tag = b"", 0
        properties = struct.pack(">HHQHB", 60, 0, len(BODY_BYTES), 1 << 12, PERSISTENT)
        command = method(PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
        return connection, (command + frame(HEADER, properties) + frame(BODY, BODY_BYTES)) * BLOCK

    def answers(self, data: bytes) -> int:
        """A confirm has the number of the last message that it is for, and may be for many."""
        data = self._rest + data
        whole = len(data) // 21 * 21  # a confirm has 21 bytes
        before = self._tag
        for at in range(0, whole, 21):
            kind, _, size, of, number, tag, multiple = struct.unpack_from(">BHIHHQB", data, at)
            if (kind, size, of, number) != (METHOD, 13, *ACK):
                raise EngineError(f"{self.name}: {data[at : at + 60]!r}")
            self._tag = max(self._tag, tag) if multiple else self._tag + 1
        self._rest = data[whole:]
        return self._tag - before

    def getter(self, queue: str) -> socket.socket:
        """basic.qos and basic.consume."""
        connection = self.server.connect(2)
        self._rest, self._tag = b"", 0
        qos = method((60, 10), struct.pack(">IHB", 0, PREFETCH, 0))
        self.server.ask(connection, qos)
        connection.sendall(
            method((60, 20), b"\0\0" + short(queue) + short("bench") + b"\0" + b"\0\0\0\0")
        )
        return connection

    def take(self, data: bytes) -> tuple[int, bytes]:
        """One ack for all messages before it."""
        data = self._rest + data
        at = found = 0
        while at + 7 <= len(data):
            kind, _, size = struct.unpack_from(">BHI", data, at)
            if at + size + 8 > len(data):
                break
            found += kind == BODY
            at += size + 8
        self._rest = data[at:]
        self._tag += found
        return found, method(ACK, struct.pack(">QB", self._tag, 1)) if found else b""

    def finish(self, connection: socket.socket, queue: str) -> None:
        """A passive declare is answered when all before it was read."""
        connection.sendall(method((50, 10), b"\0\0" + short(queue) + b"\1\0\0\0\0"))
        got = b""
        while struct.pack(">HH", 50, 11) not in got:
            got = got[-8:] + _received(connection)


def contenders(folder: Path, tell: Tell) -> list[Streaming]:
    """Ours, and the peers that are installed."""
    found: list[Streaming] = [OurStream(Broker(folder / "wirelake"))]
    for kind in (JetStream, JetStreamSynced):
        if Nats.binary():
            found.append(JetStreamStream(kind(folder / kind.__name__)))
    if RabbitMq.binary():
        found.append(RabbitStream(RabbitMq(folder / "rabbitmq")))
    else:
        tell(f"RabbitMQ is not installed, and left out ({RabbitMq.hint})")
    return found


def streams(folder: Path, count: int, rounds: int, tell: Tell) -> dict[str, dict[str, list[float]]]:
    """Puts and gets of every server, in turns; a server runs for its turn alone."""
    figures: dict[str, dict[str, list[float]]] = {PUTS: {}, GETS: {}}
    for number in range(rounds):
        with tempfile.TemporaryDirectory(dir=folder) as place:
            for one in contenders(Path(place), tell if number == 0 else lambda _: None):
                # A message of JetStream synced takes 0.3 ms and more, however many there are.
                much = max(BLOCK, count // 20) if isinstance(one.server, JetStreamSynced) else count
                tell(f"round {number + 1} of {rounds}: {one.name}")
                with one.server.running():
                    one.prepare("jobs.1")
                    figures[PUTS].setdefault(one.name, []).append(one.put("jobs.1", much))
                    figures[GETS].setdefault(one.name, []).append(one.get("jobs.1", much))
    return figures


def long_queue(folder: Path, count: int, tell: Tell) -> dict[str, float]:
    """Everything about a queue of many messages."""
    figures: dict[str, float] = {}
    unlimited = folder / "long.toml"
    unlimited.write_text('[[queues]]\nname = "jobs"\nmax_messages = 0\nmax_bytes = 0\n')
    broker = Broker(folder / "long")
    broker.arguments = ("--config", str(unlimited))
    ours = OurStream(broker)
    short_count = min(SHORT, count // 4)
    with ours.server.running():
        tell("a short queue")
        figures["short, puts"] = ours.put("short", short_count)
        figures["short, gets"] = ours.get("short", short_count)
        before = resident(ours.server.pid)
        tell(f"filling a queue with {count:,} messages")
        figures["filling, puts"] = ours.put("jobs", count)
        time.sleep(2.0)
        figures["bytes a message"] = (resident(ours.server.pid) - before) / count
        tell("puts and gets of the long queue")
        figures["long, puts"] = ours.put("jobs", short_count)
        figures["long, gets"] = ours.get("jobs", short_count)
        figures["short beside it, puts"] = ours.put("short", short_count)
        figures["short beside it, gets"] = ours.get("short", short_count)
        figures["bytes on disk a message"] = ours.ours.log_bytes() / count
        tell("a kill")
        os.kill(ours.server.pid, signal.SIGKILL)
    begun = time.monotonic()
    with ours.server.running():
        figures["seconds to open"] = time.monotonic() - begun
        figures["bytes a message, opened"] = (resident(ours.server.pid) - before) / count
        tell("gets after the kill")
        figures["opened, gets"] = ours.get("jobs", short_count)
    return figures


def resident(pid: int) -> int:
    """The memory of a process that is in the machine's memory, in bytes."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(match[1]) * 1024 if match else 0


def measure(
    folder: Path, count: int, rounds: int, long: int, tell: Tell
) -> tuple[list[Result], dict[str, Any]]:
    """Everything, and the results for the one table."""
    figures = streams(folder, count, rounds, tell)
    results = [Result.of_rounds(case, "a second", each) for case, each in figures.items()]
    details: dict[str, Any] = {
        "machine": describe(folder),
        "load_average": os.getloadavg(),
        "messages": count,
        "streams": figures,
    }
    if long:
        found = long_queue(folder, long, tell)
        details["long"] = {"messages": long, **found}
        unit = {"seconds to open": "s"}
        for name, figure in found.items():
            kind = unit.get(name, "bytes" if name.startswith("bytes") else "a second")
            results.append(
                Result(f"{LONG}, {name}", kind, {OURS: figure}, less_is_better=kind != "a second")
            )
        results += [
            Result(f"{LONG}, {what} beside a short one", "share",
                   {OURS: found[f"long, {what}"] / found[f"short beside it, {what}"]})
            for what in ("puts", "gets")
        ]  # fmt: skip
    return results, details


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    outcome = Outcome()
    count, rounds, long = (2_000, 1, 20_000) if quick else (200_000, 3, 10_000_000)
    with tempfile.TemporaryDirectory() as folder:
        outcome.results, outcome.details = measure(Path(folder), count, rounds, long, tell)
    return outcome


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=given) as made:
        yield Path(made)


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--messages", type=int, default=200_000, help="of a stream (200 000)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the medians count (3)")
    parser.add_argument("--long", type=int, default=10_000_000, help="of the long queue; 0: none")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    end_by_signals()
    people = Console(width=None if sys.stdout.isatty() else 160)
    with _folder(options.folder) as folder:
        results, details = measure(
            folder, options.messages, options.rounds, options.long, people.print
        )
    table = Table("", *dict.fromkeys(name for each in results for name in each.figures), "unit")
    names = [str(column.header) for column in table.columns[1:-1]]
    for each in results:
        cells = (f"{each.figures[name]:,.2f}" if name in each.figures else "" for name in names)
        table.add_row(each.name, *cells, each.unit)
    people.print(table)
    write_json(options.json, details)


if __name__ == "__main__":
    main()
