"""MQTT beside Mosquitto and nats-server: `python -m bench.mqtt`.

All servers are driven by MQTT 3.1.1, since nats-server speaks nothing newer, by the same generator,
in turns, with payloads of 128 bytes; the medians of the rounds count.

- QoS 0: one publisher at full speed, one subscriber; messages a second until it has all of them.
- QoS 1 and 2: 64 publishers, each with a window of 20: it sends the next message when one of the 20
  before is acknowledged, for QoS 2 by PUBCOMP. Messages a second that were acknowledged. Once
  nobody listens, and once a subscriber of the same QoS does and acknowledges everything; then the
  time runs until it has all of them.
- Connections: 10 000 clients, half of them of MQTT 5, each with a subscription with QoS 1, that say
  nothing: what the broker's resident memory grows by for each.

Wirelake answers when a message is on the disk; with `--no-capture` nothing is to be kept, and that
is a row of its own. Mosquitto keeps everything in memory. nats-server keeps what has QoS 1 and 2 in
JetStream's files, and does not wait for the disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import socket
import struct
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.goals import MOSQUITTO, NATS, WITHOUT_CAPTURE
from bench.keepers import MANY, PAYLOAD, Uncaptured
from bench.keepers import Wirelake as Keeper
from bench.peers import Mosquitto, Nats, Peer, mqtt_connect, mqtt_packet, mqtt_text
from bench.pressure import resident
from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.client.url import Place
from wirelake.errors import EngineError
from wirelake.measure.broker import HOST, Wirelake, free_port, own_broker
from wirelake.measure.load import (
    SILENCE,
    Driver,
    Load,
    beside,
    end_by_signals,
    publish_rate,
    told,
)
from wirelake.measure.machine import describe

WINDOW = 20
#: Identifiers that a publisher uses in turn.
IDENTIFIERS = 400
DIALECT = "mqtt-3.1.1"
FILTER = "bench/+"
LOAD = Load(1, len(PAYLOAD))
#: How many messages a publisher sends that nobody counts.
WARM_UP = 5 * WINDOW

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
#: An acknowledgement: the first octet, the length, the identifier.
_ACK = struct.Struct(">BBH")

Figures = dict[str, dict[str, list[float]]]


# Contenders


class Contender(ABC):
    """A server that speaks MQTT."""

    name: str
    driver: Driver
    port: int

    @abstractmethod
    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it until the end of the block."""

    def connect(self) -> socket.socket:
        """A connection of a client whose session ends with it."""
        connection = socket.create_connection((HOST, self.port), SILENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(mqtt_connect(f"bench-{connection.getsockname()[1]}"))
        _expect(connection, b"\x20\x02\x00\x00")
        return connection

    def subscriber(self, qos: int) -> socket.socket:
        """A connection that has subscribed to all that is published."""
        connection = self.connect()
        connection.sendall(b"\x82" + mqtt_packet(b"\x00\x01" + mqtt_text(FILTER) + bytes([qos])))
        _expect(connection, b"\x90\x03\x00\x01" + bytes([qos]))
        return connection


class Ours(Contender):
    """Wirelake, with a log or without."""

    def __init__(self, folder: Path, *, captures: bool) -> None:
        self._keeper = (Keeper if captures else Uncaptured)(folder)
        self.name = self._keeper.name
        self.port = self._keeper.port
        self.driver = Wirelake(Place(DIALECT, HOST, self.port))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it until the end of the block."""
        with self._keeper.running():
            yield


class Other(Contender):
    """Another server."""

    def __init__(self, kind: type[Peer]) -> None:
        self.port = free_port()
        peer = kind(self.port)
        self.driver = self._peer = peer
        self.name = peer.name

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it until the end of the block."""
        with self._peer.running():
            yield


class NatsMqtt(Mosquitto):
    """The MQTT of nats-server, which needs JetStream; its files are on the same disk as ours."""

    program = Nats.program
    hint = Nats.hint
    binary = Nats.binary

    def arguments(self, folder: Path) -> list[str]:
        """How to start it; clients of its own protocol have a port, too."""
        settings = folder / "server.conf"
        settings.write_text(
            f'server_name: bench\nlisten: "{HOST}:{free_port()}"\n'
            f'jetstream {{ store_dir: "{folder}" }}\n'
            f'mqtt {{ listen: "{HOST}:{self._port}" }}\n'
        )
        return ["-c", str(settings)]


def _expect(connection: socket.socket, wanted: bytes) -> None:
    got = b""
    while len(got) < len(wanted):
        more = connection.recv(len(wanted) - len(got))
        if not more:
            break
        got += more
    if got != wanted:
        raise EngineError(f"the server answered {got!r} instead of {wanted!r}")


# Publishers with a window


class Publisher:
    """A connection with at most WINDOW messages that are not acknowledged."""

    def __init__(self, connection: socket.socket, number: int, qos: int) -> None:
        self.connection = connection
        self.acked = self.sent = 0
        self._qos = qos
        frames = [publish(number, qos, identifier) for identifier in range(1, IDENTIFIERS + 1)]
        self._size = len(frames[0])
        self._frames = memoryview(b"".join(frames + frames[:WINDOW]))
        self._next = 0
        self._rest = b""

    def send(self, count: int) -> None:
        """Publish so many messages more, at most WINDOW."""
        begin = self._next * self._size
        self.connection.sendall(self._frames[begin : begin + count * self._size])
        self._next = (self._next + count) % IDENTIFIERS
        self.sent += count

    def hear(self) -> int:
        """Read; return how many messages became acknowledged. PUBREC is answered by PUBREL."""
        data = self.connection.recv(1 << 16)
        if not data:
            raise EngineError("the server hung up")
        if self._rest:
            data = self._rest + data
        whole = len(data) & ~3
        self._rest = data[whole:]
        data = data[:whole]
        kinds = data[::4]
        done = kinds.count(PUBACK if self._qos == 1 else PUBCOMP)
        if done < len(kinds):
            if self._qos == 1 or done + kinds.count(PUBREC) < len(kinds):
                raise EngineError(f"the server answered {data[:64]!r}")
            self.connection.sendall(_released(data, kinds))
        self.acked += done
        return done


def _released(data: bytes, kinds: bytes) -> bytearray:
    """The PUBREL to each PUBREC among acknowledgements."""
    if kinds.count(PUBREC) < len(kinds):
        parts = [data[at : at + 4] for at in range(0, len(data), 4) if data[at] == PUBREC]
        data = b"".join(parts)
    released = bytearray(data)
    released[::4] = bytes([PUBREL]) * (len(data) // 4)
    return released


def publish(number: int, qos: int, identifier: int) -> bytes:
    """A publish of one of the publishers; all of them have the same size."""
    topic = mqtt_text(f"bench/{number:04}")
    return bytes([0x30 | qos << 1]) + mqtt_packet(topic + identifier.to_bytes(2, "big") + PAYLOAD)


def acked_rate(contender: Contender, qos: int, seconds: float, *, heard: bool) -> float:
    """Messages a second of all publishers that were acknowledged, and came to a subscriber."""
    with ExitStack() as stack:
        pipe = None
        if heard:
            pipe = stack.enter_context(beside(_hear, contender, qos))
            told(pipe)
        publishers = {}
        poll = stack.enter_context(closing(select.epoll()))
        for number in range(MANY):
            connection = stack.enter_context(closing(contender.connect()))
            publishers[connection.fileno()] = Publisher(connection, number, qos)
            poll.register(connection, select.EPOLLIN)
        _publish(poll, publishers, lambda count: count < MANY * WARM_UP)
        begun = time.monotonic()
        end = begun + seconds
        count = _publish(poll, publishers, lambda _: time.monotonic() < end)
        if pipe is not None:
            pipe.send(sum(one.sent for one in publishers.values()))
            return count / (told(pipe) - begun)
        return count / (time.monotonic() - begun)


def _publish(
    poll: select.epoll, publishers: dict[int, Publisher], goes_on: Callable[[int], bool]
) -> int:
    """Publish while the condition holds for the messages acknowledged, then wait for the rest."""
    count, waiting = 0, len(publishers) * WINDOW
    for one in publishers.values():
        one.send(WINDOW)
    while waiting:
        ready = poll.poll(SILENCE)
        if not ready:
            raise EngineError("the server does not answer")
        running = goes_on(count)
        for file, _ in ready:
            one = publishers[file]
            done = one.hear()
            count += done
            if not running:
                waiting -= done
            elif done:
                one.send(done)
    return count


def _hear(pipe: Connection, contender: Contender, qos: int) -> None:
    """A subscriber that acknowledges all it gets; tells when it has as many as it is asked for."""
    size = len(publish(0, qos, 1))
    place = 3 + len(mqtt_text("bench/0000"))  # of the identifier: the packet's length takes two
    count, wanted = 0, -1
    first = PUBACK if qos == 1 else PUBREC
    with closing(contender.subscriber(qos)) as connection:
        connection.settimeout(SILENCE)
        pipe.send(0.0)
        rest = b""
        while count != wanted:
            files = [connection.fileno(), pipe.fileno()]
            if wanted < 0 and select.select(files, [], [])[0] == files[1:]:
                wanted = pipe.recv()
                continue
            data = connection.recv(1 << 18)
            if not data:
                raise EngineError("the server hung up")
            rest, answers, came = _acknowledge(rest + data, first, size, place)
            count += came
            if answers:
                connection.sendall(answers)
        pipe.send(time.monotonic())


def _acknowledge(data: bytes, first: int, size: int, place: int) -> tuple[bytes, bytes, int]:
    """What is not whole, the answers to the publishes and PUBRELs, and how many publishes came."""
    at, count, end = 0, 0, len(data)
    answers = []
    while at < end:
        if data[at] & 0xF0 == 0x30:
            if at + size > end:
                break
            answers.append(_ACK.pack(first, 2, data[at + place] << 8 | data[at + place + 1]))
            at += size
            count += 1
        else:
            if at + 4 > end:
                break
            answers.append(_ACK.pack(PUBCOMP, 2, data[at + 2] << 8 | data[at + 3]))
            at += 4
    return data[at:], b"".join(answers), count


# Connections


def idle_memory(count: int) -> float:
    """KiB that the broker grows by for each of so many clients of MQTT that say nothing."""
    with own_broker() as (port, pid), ExitStack() as crowd:
        one = Wirelake(Place(DIALECT, HOST, port))
        publish_rate(one, one, LOAD, 1, 0.1)  # so that what is made once is there
        before = resident(pid)
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        share = min(count, most // 2)
        for begin in range(0, count, share):
            some = range(begin, min(begin + share, count))
            pipe = crowd.enter_context(beside(_sit_idle, port, some))
            while not pipe.poll(1):
                pass
            told(pipe)
        return (resident(pid) - before) / count


def _sit_idle(pipe: Connection, port: int, numbers: range) -> None:
    """Connections that have subscribed with QoS 1, those of odd numbers with MQTT 5."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = [_idle(port, number) for number in numbers]
    pipe.send(float(len(held)))
    pipe.recv()


def _idle(port: int, number: int) -> socket.socket:
    connection = socket.create_connection((HOST, port), SILENCE)
    name, five = f"idle-{number}", number % 2
    level, none = (b"\x05", b"\x00") if five else (b"\x04", b"")  # no properties, or none at all
    body = mqtt_text("MQTT") + level + b"\x02\x00\x00" + none + mqtt_text(name)
    connection.sendall(b"\x10" + mqtt_packet(body))
    first, size = connection.recv(1), connection.recv(1)
    rest = connection.recv(size[0], socket.MSG_WAITALL) if size else b""
    if first != b"\x20" or rest[1:2] != b"\x00":
        raise EngineError(f"the server answered {first + size + rest!r}")
    body = b"\x00\x01" + none + mqtt_text(f"idle/{number}") + b"\x01"
    connection.sendall(b"\x82" + mqtt_packet(body))
    _expect(connection, b"\x90" + mqtt_packet(b"\x00\x01" + none + b"\x01"))
    return connection


# All of it


def measure(
    folder: Path, seconds: float, rounds: int, connections: int, tell: Tell, note: Tell
) -> dict[str, Any]:
    """Everything, in turns."""
    figures: Figures = {}
    with ExitStack() as stack:
        contenders: list[Contender] = [
            Ours(folder / "captured", captures=True),
            Ours(folder / "uncaptured", captures=False),
        ]
        for kind in (Mosquitto, NatsMqtt):
            if kind.binary() is None:
                note(f"{kind.program} is not installed, and left out ({kind.hint})")
            else:
                contenders.append(Other(kind))
        for one in contenders:
            tell(f"starting {one.name}")
            stack.enter_context(one.running())
        for number in range(rounds):
            turn = number % len(contenders)
            order = contenders[turn:] + contenders[:turn]
            for case, rate in CASES.items():
                tell(f"round {number + 1} of {rounds}: {case}")
                for one in order:
                    found = figures.setdefault(case, {})
                    found.setdefault(one.name, []).append(rate(one, seconds))
    tell("idle connections")
    return {
        "machine": describe(folder),
        "load_average": os.getloadavg(),
        "payload": len(PAYLOAD),
        "connections": connections,
        "kib_each": idle_memory(connections),
        "rounds": figures,
    }


def _case(qos: int, *, heard: bool) -> Callable[[Contender, float], float]:
    return lambda one, seconds: acked_rate(one, qos, seconds, heard=heard)


CASES: dict[str, Callable[[Contender, float], float]] = {
    "QoS 0, 1 → 1": lambda one, seconds: publish_rate(one.driver, one.driver, LOAD, 1, seconds),
    f"QoS 1, {MANY} publishers": _case(1, heard=False),
    f"QoS 2, {MANY} publishers": _case(2, heard=False),
    f"QoS 1, {MANY} → 1": _case(1, heard=True),
    f"QoS 2, {MANY} → 1": _case(2, heard=True),
}


def results(found: dict[str, Any]) -> Iterator[Result]:
    """The figures for the one table: with a log, and without."""
    for case, rounds in found["rounds"].items():
        peers = {name: each for name, each in rounds.items() if name in (MOSQUITTO, NATS)}
        for ours, name in ((OURS, case), (WITHOUT_CAPTURE, f"{case}, {WITHOUT_CAPTURE}")):
            yield Result.of_rounds(name, "messages/s", {OURS: rounds[ours], **peers})
    each = {OURS: found["kib_each"]}
    yield Result("connections, memory", "KiB each", each, less_is_better=True)


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    outcome = Outcome()
    seconds, rounds, connections = (0.1, 1, 40) if quick else (1.0, 5, 10_000)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), seconds, rounds, connections, tell, outcome.notes.append)
    outcome.results = list(results(found))
    outcome.details = found
    return outcome


def show(people: Console, found: dict[str, Any]) -> None:
    """One table; a line about the machine."""
    table = Table("messages a second", OURS, MOSQUITTO, "ratio", NATS, "ratio")
    for column in table.columns[1:]:
        column.justify = "right"
    for one in results(found):
        cells = [f"{one.figures[OURS]:,.1f}" if one.less_is_better else f"{one.figures[OURS]:,.0f}"]
        for peer in (MOSQUITTO, NATS):
            ratio = one.ratio(peer)
            cells += ["", ""] if ratio is None else [f"{one.figures[peer]:,.0f}", f"{ratio:.2f}"]
        table.add_row(f"{one.name} ({one.unit})" if one.less_is_better else one.name, *cells)
    people.print(table)
    machine = found["machine"]
    people.print(
        f"{machine['cpu']}, {machine['cores']} cores; {machine['fsyncs_a_second']:.0f} fsyncs a"
        f" second; {found['connections']} connections; load average {found['load_average'][0]:.1f}"
    )


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement (1)")
    parser.add_argument("--rounds", type=int, default=5, help="of which the medians count (5)")
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    end_by_signals()
    people = Console(width=None if sys.stdout.isatty() else 160)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(
            Path(folder), options.seconds, options.rounds, options.connections,
            people.print, people.print,
        )  # fmt: skip
    show(people, found)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
