"""RabbitMQ as a keeper: a node of our own, and AMQP 0-9-1 in prepared bytes.

Queues are classic and durable, messages persistent. In confirm mode an answer to a publish comes
after the queue has written the message to its journal and synced it: that is of equal durability.

An acknowledgement has no answer in AMQP. It is written to the same journal as the messages of its
queue, in order, so the confirm of the next publish to that queue is the first answer after which
it is on the disk too. So put, get and ack are two answers here: an ack travels ahead of the next
put, in one write, and the confirm stands for both. The others are asked three times; who is
favoured is RabbitMQ.

Nobody else's node is touched: this one has its own name, ports, folder, cookie and port mapper
(epmd), and all of it ends with the block.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.keepers import BLOCK, MANY, PAYLOAD, Keeper, Say
from bench.peers import connected
from wirelake.errors import EngineError
from wirelake.measure.broker import HOST, free_port

METHOD, HEADER, BODY = 1, 2, 3
CHANNEL = 1
PERSISTENT = 2

#: Methods, as class and number.
START, START_OK, TUNE_OK, OPEN, CLOSE = (10, 10), (10, 11), (10, 31), (10, 40), (10, 50)
CHANNEL_OPEN, CHANNEL_CLOSE = (20, 10), (20, 40)
DECLARE, PURGE = (50, 10), (50, 30)
PUBLISH, GET, GET_OK, GET_EMPTY, ACK, NACK = (60, 40), (60, 70), (60, 71), (60, 72), (60, 80), (60, 120)  # fmt: skip  # noqa: E501
SELECT = (85, 10)
REFUSALS = {CLOSE, CHANNEL_CLOSE, GET_EMPTY, NACK}

_FRAME = struct.Struct(">BHI")
_NAMES = struct.Struct(">HH")


def frame(kind: int, payload: bytes, channel: int = CHANNEL) -> bytes:
    """One frame."""
    return _FRAME.pack(kind, channel, len(payload)) + payload + b"\xce"


def method(name: tuple[int, int], arguments: bytes = b"", channel: int = CHANNEL) -> bytes:
    """A method with its arguments."""
    return frame(METHOD, _NAMES.pack(*name) + arguments, channel)


def short(text: str) -> bytes:
    """A short string."""
    return bytes([len(text)]) + text.encode()


def publish(queue: str) -> bytes:
    """A persistent message to a queue, by the default exchange."""
    properties = struct.pack(">HHQHB", 60, 0, len(PAYLOAD), 1 << 12, PERSISTENT)
    command = method(PUBLISH, b"\0\0" + short("") + short(queue) + b"\0")
    return command + frame(HEADER, properties) + frame(BODY, PAYLOAD)


def declare(queue: str) -> bytes:
    """Make a durable queue, if there is none."""
    return method(DECLARE, b"\0\0" + short(queue) + b"\2\0\0\0\0")


#: Confirms from here on, without an answer to this.
CONFIRMED = method(SELECT, b"\1")


class RabbitMq(Keeper):
    """RabbitMQ, with durable queues."""

    name = "RabbitMQ"
    hint = "the package rabbitmq-server"
    patience = 90.0  # Erlang takes its time

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._mapper = free_port()
        self._distribution = free_port()

    @classmethod
    def binary(cls) -> str | None:
        """The node's own script: Debian's program on the PATH would become another user."""
        places = os.pathsep.join(("/usr/lib/rabbitmq/bin", os.environ.get("PATH", "")))
        return shutil.which("rabbitmq-server", path=places) if shutil.which("epmd") else None

    @classmethod
    def version(cls) -> str:
        """As the folder says that it is installed in."""
        found = re.search(r"rabbitmq_server-([\d.]+)", str(Path(str(cls.binary())).resolve()))
        return found[1] if found else "of unknown version"

    def command(self) -> list[str]:
        """Everything else is in the environment."""
        return [str(self.binary())]

    def environment(self) -> dict[str, str]:
        """A private node: nothing of /etc, /var or somebody's home is read or written."""
        folder = str(self.folder)
        return {
            "HOME": folder,  # for the cookie
            "ERL_CRASH_DUMP": f"{folder}/crash",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_PID_FILE": f"{folder}/pid",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": HOST,
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._distribution),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            **self._mapping(),
        }

    def _mapping(self) -> dict[str, str]:
        return {"ERL_EPMD_PORT": str(self._mapper), "ERL_EPMD_ADDRESS": HOST}

    @contextmanager
    def running(self) -> Iterator[None]:
        """The server, with a port mapper that was not started by it and so can be ended."""
        quiet = subprocess.DEVNULL
        mapper = subprocess.Popen(
            ["epmd"],
            env={**os.environ, **self._mapping()},
            stdin=quiet,
            stdout=quiet,
            stderr=quiet,
            start_new_session=True,
        )
        try:
            end = time.monotonic() + self.patience
            while mapper.poll() is None and time.monotonic() < end:
                try:
                    socket.create_connection((HOST, self._mapper)).close()
                    break
                except OSError:
                    time.sleep(0.05)
            with super().running():
                yield
        finally:
            mapper.kill()
            mapper.wait()

    def connect(self, number: int) -> socket.socket:
        """A connection with a channel."""
        connection = connected(self.port)
        login = b"\0guest\0guest"
        answer = b"\0\0\0\0" + short("PLAIN") + struct.pack(">I", len(login)) + login
        self.ask(connection, b"AMQP\0\0\x09\x01")
        self.ask(connection, method(START_OK, answer + short("en_US"), 0))
        tuned = method(TUNE_OK, struct.pack(">HIH", CHANNEL, 1 << 17, 0), 0)  # and no heartbeats
        self.ask(connection, tuned + method(OPEN, short("/") + b"\0\0", 0))
        self.ask(connection, method(CHANNEL_OPEN, b"\0"))
        return connection

    def is_answered(self, got: bytes) -> bool:
        """Whole frames, the last of which is a method, or the body of what was got."""
        at, kind, name = 0, 0, (0, 0)
        while at + _FRAME.size <= len(got):
            kind, _, size = _FRAME.unpack_from(got, at)
            at += _FRAME.size + size + 1
            if kind == METHOD and at <= len(got):
                name = _NAMES.unpack_from(got, at - size - 1)
                if name in REFUSALS:
                    raise EngineError(f"{self.name}: {got!r}")
        return at == len(got) > 0 and (kind == BODY or (kind == METHOD and name != GET_OK))

    def publish(self, number: int) -> list[Say]:
        """A confirmed publish; all to one queue, so that they can share an fsync."""
        message = publish("bench")
        return [lambda turn, got: message if turn else CONFIRMED + message]

    def queue(self, number: int) -> list[Say]:
        """A confirmed publish with the ack of the turn before, and a get."""
        queue = f"jobs.{number}"
        message = publish(queue)
        # What a run before has left there is dropped, without an answer.
        first = CONFIRMED + method(PURGE, b"\0\0" + short(queue) + b"\1") + message
        get = method(GET, b"\0\0" + short(queue) + b"\0")

        def put(turn: int, got: bytes) -> bytes:
            if turn == 0:
                return first
            tag = got[_FRAME.size + _NAMES.size :][:8]
            return method(ACK, tag + b"\0") + message

        return [put, lambda turn, got: get]

    def block(self) -> bytes:
        """Publishes without confirms."""
        return publish("block") * BLOCK

    def wait_until_kept(self, publisher: socket.socket, sent: int) -> None:
        """A confirmed publish to the same queue waits for all that came before it."""
        self.ask(publisher, CONFIRMED + publish("block"))

    def prepare(self) -> None:
        """Durable queues."""
        with closing(self.connect(MANY)) as connection:
            for queue in ("bench", "block", *(f"jobs.{number}" for number in range(MANY))):
                self.ask(connection, declare(queue))
