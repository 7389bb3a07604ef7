"""Bytes from an enemy: messages or a ProtocolError, in work that grows with the bytes."""

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.reading import chunks, cut, read, single_bytes, write
from tests.wire.strategies import cuts, messages
from tests.wire.vectors import load
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.message import Limits, Op
from wirelake.wire import COMPILED, FrameTable

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
SMALL = Limits(message=3000, address=40, headers=300, sequence=3000)
VECTORS = [vector for folder in ("spec", "own") for vector in load(folder)]
SAMPLES = {
    dialect: [v.data for v in VECTORS if v.dialect == dialect and len(v.data) < 400]
    for dialect in DIALECTS
}


@every_dialect
@given(data=st.binary(max_size=60), places=cuts)
def test_noise_is_read_the_same_however_it_is_cut(
    dialect: str, data: bytes, places: list[int]
) -> None:
    whole = read(dialect, [data]).outcome
    assert read(dialect, cut(data, [place % 60 for place in places])).outcome == whole
    assert read(dialect, single_bytes(data), capacity=1).outcome == whole


@st.composite
def damaged(draw: st.DrawFn, dialect: str) -> bytes:
    """A few frames, some bytes of which were changed, lost, repeated or put in."""
    samples = st.one_of(
        st.sampled_from(SAMPLES[dialect]),
        messages(dialect).map(lambda message: write([message], dialect, source=dialect)),
    )
    data = bytearray(b"".join(draw(st.lists(samples, min_size=1, max_size=3))))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        put = draw(
            st.one_of(st.binary(max_size=3), st.sampled_from([b"\r\n", b"|", b"\xff", b"0"]))
        )
        lost = draw(st.integers(0, 3))
        data[at : at + lost] = put
    return bytes(data)


@every_dialect
@given(data=st.data(), places=cuts)
def test_damaged_frames_are_read_the_same_however_they_are_cut(
    dialect: str, data: st.DataObject, places: list[int]
) -> None:
    stream = data.draw(damaged(dialect))
    limits = data.draw(st.sampled_from([Limits(), SMALL]))
    whole = read(dialect, [stream], limits=limits).outcome
    assert read(dialect, cut(stream, places), limits=limits, capacity=2).outcome == whole
    assert read(dialect, single_bytes(stream), limits=limits, capacity=1).outcome == whole
    assert read(dialect, single_bytes(stream), limits=limits, patient=True).outcome == whole


@every_dialect
@given(data=st.data())
def test_what_was_read_from_damaged_frames_can_be_written_in_every_dialect(
    dialect: str, data: st.DataObject
) -> None:
    stream = data.draw(damaged(dialect))
    for target in DIALECTS:
        encode = encoder(target)
        reading = read(dialect, [stream], encode=encode)
        again = read(target, [reading.encoded])
        assert again.fault is None
        left_out = sum(encode.skipped.values())
        written = [message for message in again.messages if message.op != Op.TOPIC]
        wanted = [message for message in reading.messages if message.op != Op.TOPIC]
        assert len(wanted) - left_out <= len(written) <= len(wanted)


# Work. The plain kernels are the same code as the compiled ones, and their steps can be counted.


def steps(dialect: str, pieces: Iterable[bytes], limits: Limits) -> int:
    """How many lines of the kernels run while a stream is read, eagerly, piece by piece."""
    count = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal count
        if "wirelake" not in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
        return trace

    scan = scanner(dialect, limits)
    table = FrameTable(4096)
    rest = bytearray()
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for piece in pieces:
            rest += piece
            while True:
                used = scan.scan(bytes(rest), table)
                table.read_headers()
                del rest[:used]
                if not scan.again:
                    break
    finally:
        sys.settrace(before)
    assert not rest, "the stream was to be read to its end"
    return count


def property_of(key: bytes, value: bytes) -> bytes:
    return len(key).to_bytes(2, "big") + key + len(value).to_bytes(4, "big") + value


def boson_binary(properties: bytes) -> bytes:
    return b"\x00\x01" + (2 + len(properties)).to_bytes(4, "big") + properties


def kobold(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def keys(count: int) -> list[str]:
    return [f"k{n:06}" for n in range(count)]


def kobold_2(n: int, value: bytes) -> bytes:
    entries = b"".join(cbor2.dumps(key) + value for key in keys(n))
    head = b"\xb9" + (n + 1).to_bytes(2, "big")
    return kobold(head + cbor2.dumps("message_type") + b"\x01" + entries)


STREAMS: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "a boson-text sequence to be joined": ("boson-text", lambda n: b"1|m|t|a" * n + b"0|0"),
    "a boson-text sequence of messages": ("boson-text", lambda n: b"1|mm|t|a" * n + b"0|0"),
    "a boson-text sequence of empty parts": ("boson-text", lambda n: b"0|m||" * n + b"0|0||"),
    "boson-text messages": ("boson-text", lambda n: b"1|0|t|a" * n),
    "boson-text topics that change": ("boson-text", lambda n: b"1|0|$topic|a1|0||b" * n),
    "a large boson-text message": ("boson-text", lambda n: b"%d|0|t|" % (9 * n) + b"x" * 9 * n),
    "a boson-binary message of many properties": (
        "boson-binary",
        lambda n: boson_binary(b"".join(property_of(k.encode(), b"v") for k in keys(n))),
    ),
    "boson-binary messages": ("boson-binary", lambda n: boson_binary(b"") * n),
    "kobold-1 metadata of many keys": (
        "kobold-1",
        lambda n: kobold(f"PUB\r\n{''.join(f'{k}=v;' for k in keys(n))}\r\nt\r\n\r\n".encode()),
    ),
    "kobold-1 metadata of escapes": (
        "kobold-1",
        lambda n: kobold(b"PUB\r\nk=" + b"%41" * 3 * n + b"\r\nt\r\n\r\n"),
    ),
    "kobold-1 content of delimiters": (
        "kobold-1",
        lambda n: kobold(b"PUB\r\n\r\nt\r\n" + b"\r\n" * 4 * n + b"\r\n"),
    ),
    "a kobold-2 map of many keys": ("kobold-2", lambda n: kobold_2(n, b"\x01")),
    "a kobold-2 map of many arrays": ("kobold-2", lambda n: kobold_2(n, b"\x82\x9f\x01\xff\x80")),
    "a kobold-2 string of many chunks": (
        "kobold-2",
        lambda n: kobold(
            b"\xa2" + cbor2.dumps("message_type") + b"\x01" + cbor2.dumps("content")
            + b"\x5f" + b"\x41x" * 4 * n + b"\xff"
        ),
    ),
    "kobold-3 metadata of many keys": (
        "kobold-3",
        lambda n: kobold(b"PUB t\r\n" + cbor2.dumps(dict.fromkeys(keys(n), -1)) + b"\r\n\r\n"),
    ),
    "mfp messages and topics": (
        "mfp-1",
        lambda n: (b"\x01" + bytes(16) + b"\0\0\0\x02\0t" + b"\x02" + bytes(16) + b"\0\0\0\x02\0\0")
        * (n // 4),
    ),
    "tmq messages": ("tmq-1.01", lambda n: b"\x11\x10\0\0\1\0\0\1tx" * n),
    "a large tmq message": (
        "tmq-1.00",
        lambda n: b"\x11\x10\0\0\1\0\0" + bytes([n % 128 | 128, n // 128]) + b"t" + b"x" * n,
    ),
}  # fmt: skip


@pytest.mark.skipif(COMPILED, reason="only the steps of plain kernels can be counted")
@pytest.mark.parametrize("pace", ["byte by byte", "at once"])
@pytest.mark.parametrize("name", STREAMS)
def test_twice_the_bytes_are_twice_the_work(name: str, pace: str) -> None:
    dialect, stream = STREAMS[name]
    limits = Limits(headers=1 << 20)

    def work(n: int) -> int:
        data = stream(n)
        return steps(dialect, single_bytes(data) if pace == "byte by byte" else [data], limits)

    once, twice = work(150), work(300)
    assert twice < 2.3 * once + 200


@pytest.mark.parametrize("name", STREAMS)
def test_a_drip_is_read_like_the_whole(name: str) -> None:
    dialect, stream = STREAMS[name]
    data = stream(200)
    limits = Limits(headers=1 << 20)
    whole = read(dialect, [data], limits=limits)
    assert whole.fault is None
    assert read(dialect, chunks(data, 7), limits=limits).outcome == whole.outcome
