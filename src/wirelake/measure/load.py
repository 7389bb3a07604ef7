"""The load generator: the same load for any server, and what it measures.

A publisher writes prepared frames in blocks of 256 KiB. Subscribers, each in its own process, count
bytes. The bytes that a block becomes for a subscriber are counted first, with one block, so that
the generator needs to know nothing about a server but how to talk to it. A rate counts published
messages, until the last subscriber has all of them. Requests go one at a time, from one connection
to a service on another, which is a process too.

Processes are forked, so a caller must not have threads.
"""

from __future__ import annotations

import multiprocessing
import random
import select
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

from wirelake.errors import RefusedError, WirelakeError

BLOCK = 256 << 10
PREFIX = "bench"
SERVICE = f"{PREFIX}/time"

#: Seconds without a byte after which a server has failed, and after which a block is complete.
SILENCE, PAUSE = 20.0, 0.2
WARM_UP = 200
TEXT = b'{"temperature": 21.5, "humidity": 40.25, "unit": "celsius"} '

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_fork = multiprocessing.get_context("fork")


@dataclass(frozen=True)
class Load:
    """What is published: a number of topics, in random order, and the payload size in bytes."""

    topics: int
    size: int

    @property
    def payload(self) -> bytes:
        """Text, because most devices send text."""
        return (TEXT * (self.size // len(TEXT) + 1))[: self.size]

    @property
    def filter(self) -> str:
        """The filter of a subscriber."""
        return f"{PREFIX}/#" if self.topics > 1 else f"{PREFIX}/0000"

    def addresses(self) -> list[str]:
        """The topics of a block of messages, the same for each call."""
        chosen = random.Random(self.topics)
        count = max(1, BLOCK // (self.size + 40))
        return [f"{PREFIX}/{chosen.randrange(self.topics):04}" for _ in range(count)]


class Driver(ABC):
    """How to talk to a server, in bytes."""

    name: str
    #: Whether one connection can publish to many topics.
    has_topics = True
    #: The most bytes of a payload.
    most = 64 << 20

    @abstractmethod
    def publisher(self, load: Load) -> tuple[socket.socket, bytes]:
        """A connection that publishes, and the block it is to send."""

    @abstractmethod
    def subscriber(self, filter: str) -> socket.socket:
        """A connection that has subscribed."""


class Asker(Driver):
    """A driver that can also send requests to a service."""

    @abstractmethod
    def requester(self, payload: bytes) -> tuple[socket.socket, bytes]:
        """A connection that asks the service, and its request."""

    @abstractmethod
    def service(self, payload: bytes) -> tuple[socket.socket, Callable[[bytes], bytes]]:
        """A connection that serves, and what it answers to the bytes of a request."""


def publish_rate(
    source: Driver, target: Driver, load: Load, subscribers: int, seconds: float
) -> float:
    """Messages a second from one publisher to all subscribers, measured for about `seconds`."""
    with ExitStack() as stack:
        least = len(load.addresses()) * load.size
        pipes = [
            stack.enter_context(beside(_count_bytes, target, load.filter, least))
            for _ in range(subscribers)
        ]
        for pipe in pipes:
            told(pipe)
        connection, block = source.publisher(load)
        stack.enter_context(closing(connection))
        connection.settimeout(SILENCE)
        connection.sendall(block)
        for pipe in pipes:
            told(pipe)
        blocks = 32
        while True:
            for pipe in pipes:
                pipe.send(blocks)
            start = time.monotonic()
            for _ in range(blocks):
                connection.sendall(block)
                if select.select(pipes, [], [], 0)[0]:  # one has given up, or all are done
                    break
            took = max(told(pipe) for pipe in pipes) - start
            if took > seconds / 2:
                return len(load.addresses()) * blocks / took
            blocks = int(blocks * max(2.0, seconds / took))


def round_trips(asker: Asker, service: Asker, load: Load, seconds: float) -> list[float]:
    """Microseconds that each request took; one is sent when the one before is answered."""
    with ExitStack() as stack:
        told(stack.enter_context(beside(_answer_requests, service, load.payload)))
        connection, request = asker.requester(load.payload)
        stack.enter_context(closing(connection))
        connection.settimeout(SILENCE)
        connection.sendall(request)
        size = _bytes_until_pause(connection, load.size)

        def ask() -> None:
            connection.sendall(request)
            left = size
            while left > 0:
                left -= len(_received(connection.recv(BLOCK)))

        for _ in range(WARM_UP):
            ask()
        taken = []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            start = time.perf_counter_ns()
            ask()
            taken.append((time.perf_counter_ns() - start) / 1000)
        return taken


def _count_bytes(pipe: Connection, target: Driver, filter: str, least: int) -> None:
    """A subscriber: counts the bytes of one block, then of as many as it is told to expect."""
    with closing(target.subscriber(filter)) as connection:
        connection.settimeout(SILENCE)
        pipe.send(0.0)
        size = _bytes_until_pause(connection, least)
        pipe.send(0.0)
        while True:
            receive(connection, size * pipe.recv())
            pipe.send(time.monotonic())


def receive(connection: socket.socket, size: int) -> None:
    """Receive and drop this many bytes; ConnectionError if the connection ends before."""
    buffer = bytearray(min(size, 1 << 20))
    while size > 0:
        got = connection.recv_into(buffer)
        if not got:
            raise ConnectionError(f"closed with {size} bytes to come")
        size -= got


def _answer_requests(pipe: Connection, driver: Asker, payload: bytes) -> None:
    """A service: answers every request."""
    connection, answer = driver.service(payload)
    with closing(connection):
        pipe.send(0.0)
        while data := connection.recv(BLOCK):
            connection.sendall(answer(data))


def end_by_signals() -> None:
    """Let SIGTERM end this process as Ctrl-C does, so that it stops what it started."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@contextmanager
def beside(work: Callable[..., None], *arguments: object) -> Iterator[Connection]:
    """Run a function in a forked process until the end of the block; yields a pipe to it."""
    here, there = _fork.Pipe()
    process = _fork.Process(target=_guarded, args=(work, here, there, *arguments), daemon=True)
    # An interrupt within a fork would be lost: Python ignores what is raised there.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    process.start()
    there.close()
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield here
    finally:
        process.terminate()
        process.join()
        here.close()


def _guarded(
    work: Callable[..., None], here: Connection, pipe: Connection, *arguments: object
) -> None:
    """Run the function; send its error through the pipe. Ends when the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the parent to say when to end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    here.close()
    try:
        work(pipe, *arguments)
    except (EOFError, BrokenPipeError):
        return
    except (OSError, WirelakeError) as error:
        pipe.send(str(error) or type(error).__name__)


def told(pipe: Connection) -> float:
    """The next value from the other process; raises RefusedError if it failed."""
    if not pipe.poll(2 * SILENCE):
        raise RefusedError("timeout", "a subscriber or service says nothing")
    try:
        said: float | str = pipe.recv()
    except EOFError:
        raise RefusedError("closed", "a subscriber or service has died") from None
    if isinstance(said, str):
        raise RefusedError("closed", said)
    return said


def _bytes_until_pause(connection: socket.socket, least: int) -> int:
    """The bytes that arrive before a pause of PAUSE seconds, `least` at least."""
    got = 0
    while got < least or select.select([connection], [], [], PAUSE)[0]:
        got += len(_received(connection.recv(BLOCK)))
    return got


def _received(data: bytes) -> bytes:
    if not data:
        raise RefusedError("closed", "the server hung up")
    return data
