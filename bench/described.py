"""Frames a second of described dialects, on one core: `python -m bench.described`.

A block is 256 KiB of frames as devices send them: short, most with a number in the address. The
meter has a magic, a length, a CRC-16 and an address of two numbers; `other units` has another
address in every frame. Beside each stands one memcpy of its block. The plug-in in Python reads
lines; it is also measured in a broker without sockets and without a log, from the bytes of a
publisher to those of a subscriber, both of which speak it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial

from bench.results import OURS, Result
from wirelake.broker.node import Node
from wirelake.broker.session import begin_session
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.dialects.framed.description import PRESETS, dialect_of, parse_description
from wirelake.journal.engine import Engine
from wirelake.message import Message
from wirelake.plugin import Plugin
from wirelake.wire import FrameTable

BLOCK = 256 << 10
TURN = 0.004
PLUGIN = "a plug-in in Python"

METER = """
name = "bench-meter"
address = "meter/{unit}/{kind}"
ticket = "seq"
frame = {by = "length", magic = "0xAA55", length = {at = 2, width = 2, counts = "frame"}, \
checksum = {kind = "crc-16/modbus", order = "little"}}
[[fields]]
name = "unit"
type = "u16"
at = 4
[[fields]]
name = "kind"
type = "u8"
at = 6
[[fields]]
name = "seq"
type = "u16"
at = 7
[[fields]]
name = "temperature"
type = "f32"
at = 9
"""


class Lines(Plugin):
    """Lines of `address payload`, read by Python."""

    interface = 1
    name = "bench-lines"

    def parse(self, data: bytes) -> Iterator[tuple[Message | None, int]]:
        """Cut lines."""
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            address, _, payload = data[at:end].partition(b" ")
            yield Message(address.decode(), payload), end + 1 - at
            at = end + 1

    @classmethod
    def encode(cls, message: Message, client: bool) -> bytes:
        """Write a line."""
        return b"%b %b\n" % (message.address.encode(), message.payload)


GGA = b"$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47\r\n"
SYSLOG = b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - 'su root' failed"


def spoken() -> AbstractContextManager[None]:
    """Have the dialects that are measured."""
    texts = [METER, *(file.read_text(encoding="utf-8") for file in PRESETS.values())]
    described = [dialect_of(parse_description(text)) for text in texts]
    described.append(Lines.as_dialect())
    return DIALECTS.also(*(one for one in described if one.name not in DIALECTS))


def blocks() -> Iterator[tuple[str, str, bytes]]:
    """Name, dialect and block of each case."""
    headers = {"temperature": "21.5"}
    meter = [Message("meter/1234/7", b"0123456789", headers=headers, ticket=k) for k in range(64)]
    units = [Message(f"meter/{k * 37}/7", b"0123456789", headers=headers) for k in range(64)]
    json = b'{"topic": "sensors/12", "temperature": 21.5, "humidity": 40.25}\n'
    yield "meter with a CRC", "bench-meter", _written("bench-meter", meter)
    yield "meter with a CRC, other units", "bench-meter", _written("bench-meter", units)
    yield "lines", "lines", b"temperature 21.5 celsius in the hall\n"
    yield "JSON lines", "json-lines", json
    yield (
        "length-prefixed",
        "length-prefixed",
        _written("length-prefixed", [Message(f"sensors/{k}", b"x" * 64) for k in range(10, 74)]),
    )
    yield "syslog, octets", "syslog-octets", b"%d %b" % (len(SYSLOG), SYSLOG)
    yield "syslog, lines", "syslog-lines", SYSLOG + b"\n"
    yield "NMEA 0183", "nmea-0183", GGA
    yield PLUGIN, Lines.name, b"sensors/12 21.5 celsius in the hall\n"


def _written(dialect: str, messages: list[Message]) -> bytes:
    table = FrameTable(len(messages))
    table.fill(messages, "")
    return bytes(encoder(dialect).encode(table))


def measure(seconds: float) -> Iterator[Result]:
    """Time every case in turns; the best turn of each counts."""
    with spoken():
        turns: list[tuple[str, str, int, Callable[[], object]]] = []
        plugin_block = b""
        for name, dialect, frames in blocks():
            block = frames * (BLOCK // len(frames))
            target, table = bytearray(len(block)), FrameTable()
            count = _count(dialect, block)
            turns.append((name, "scan", count, partial(_scan, dialect, block, table)))
            copy = partial(target.__setitem__, slice(None), block)
            turns.append((name, "memcpy", count, copy))
            if name == PLUGIN:
                plugin_block = block
        best: dict[tuple[str, str], float] = {}
        for _ in range(max(3, round(seconds / TURN))):
            for name, what, count, call in turns:
                start = time.perf_counter()
                call()
                rate = count / (time.perf_counter() - start)
                best[name, what] = max(rate, best.get((name, what), 0.0))
            taken = _deliver(plugin_block)
            best[PLUGIN, "broker"] = max(taken, best.get((PLUGIN, "broker"), 0.0))
    yield Result(f"broker, {PLUGIN}", "messages/s", {OURS: best.pop((PLUGIN, "broker"))})
    for name in dict.fromkeys(name for name, _ in best):
        rates = {OURS: best[name, "scan"], "memcpy": best[name, "memcpy"]}
        label = name if name == PLUGIN else f"described: {name}"
        yield Result(f"scan, {label}", "frames/s", rates)


def _scan(dialect: str, block: bytes, table: FrameTable) -> int:
    reader, at, count = scanner(dialect), 0, 0
    view = memoryview(block)
    while used := reader.scan(view[at:], table):
        at += used
        count += table.count
    if at != len(block):
        raise RuntimeError(f"{dialect}: the block was not scanned whole")
    return count


class Wire:
    """A connection of the broker whose other end takes everything at once."""

    peer = "bench"
    buffered = 0

    def __init__(self) -> None:
        self.moved = 0

    def write(self, data: bytes | memoryview) -> None:
        """Take bytes."""
        self.moved += len(data)

    def close(self) -> None:
        """Nothing waits."""

    abort = pause = resume = receive_again = authenticated = close


def _deliver(block: bytes) -> float:
    """Messages a second that a broker takes from a plug-in's client and writes to another one."""
    node = Node(Engine.in_memory())
    wires = Wire(), Wire()
    publisher, subscriber = (begin_session(node, wire, Lines.name, 0.0) for wire in wires)
    node.topics.subscribe(subscriber, "sensors/#", 0.0)
    at, view = 0, memoryview(block)
    start = time.perf_counter()
    while at < len(block):
        at += publisher.receive(view[at:], 0.0)
    rate = block.count(b"\n") / (time.perf_counter() - start)
    if wires[1].moved != len(block):
        raise RuntimeError(f"{wires[1].moved} of {len(block)} bytes came to the subscriber")
    return rate


def _count(dialect: str, block: bytes) -> int:
    return _scan(dialect, block, FrameTable())


if __name__ == "__main__":
    for result in measure(0.3):
        rate = result.figures[OURS]
        print(f"{result.name:50} {rate / 1e6:7.2f} M {result.unit}")
