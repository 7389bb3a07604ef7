"""What every dialect stands on: text, CBOR, tables, and the contract of a scanner."""

from collections.abc import Callable
from itertools import product
from typing import Any

import cbor2
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.wire.reading import chunks, read, write
from tests.wire.strategies import messages
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.dialects.mfp.codec import MfpEncoder
from wirelake.errors import ProtocolError
from wirelake.message import Flag, Limits, Message
from wirelake.wire import FrameTable, Scanner
from wirelake.wire.parameters import headers_of

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
HELLO = Message(address="a", payload=b"hello")


def hello(dialect: str) -> bytes:
    """A frame that publishes `hello`; in mfp, to no topic."""
    return write([HELLO], dialect, client=dialect != "mfp-1")


def framed(body: bytes) -> bytes:
    """A Kobold frame."""
    return len(body).to_bytes(4, "big") + body


def is_accepted(dialect: str, data: bytes) -> bool:
    return read(dialect, [data]).fault is None


# Text


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def as_topic(data: bytes) -> bytes:
    return framed(b"PUB\r\n\r\n" + data + b"\r\n\r\n")


@given(
    st.one_of(st.binary(max_size=8), st.text(max_size=3).map(str.encode)).filter(
        lambda data: b"\r\n" not in data + b"\r\n"[:-1]
    )
)
def test_text_is_what_python_takes_for_utf8(data: bytes) -> None:
    assert is_accepted("kobold-1", as_topic(data)) == is_text(data)


def test_text_is_told_at_every_border_of_utf8() -> None:
    leads = bytes.fromhex("417f80bfc0c1c2dfe0e1ecedeeeff0f1f3f4f5f7ff")
    seconds = bytes.fromhex("007f808f909fa0bfc0ff")
    for lead, second, tail in product(leads, seconds, (b"", b"\x80", b"\xbf\x80", b"\x80\xbf\x80")):
        data = bytes([lead, second]) + tail
        assert is_accepted("kobold-1", as_topic(data)) == is_text(data), data.hex()


# CBOR


def framed_value(value: bytes) -> bytes:
    """A kobold-2 publish with an unknown key of this value."""
    return framed(b"\xa2" + cbor2.dumps("message_type") + b"\x01" + cbor2.dumps("x") + value)


def depth(value: Any) -> int:
    """How many arrays, maps and tags are around the innermost item."""
    if isinstance(value, cbor2.CBORTag):
        return 1 + depth(value.value)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    if isinstance(value, dict):
        return 1 + max((max(depth(k), depth(v)) for k, v in value.items()), default=0)
    return 0


_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**64), 2**64 - 1),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from([cbor2.undefined, cbor2.CBORSimpleValue(7), cbor2.CBORSimpleValue(255)]),
)
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 99)), inner, max_size=3),
        st.builds(cbor2.CBORTag, st.integers(40000, 50000), inner),
    ),
    max_leaves=12,
)


def wrapped(value: Any, times: int) -> Any:
    return value if times == 0 else [wrapped(value, times - 1)]


@given(_values, st.integers(0, 9))
def test_cbor_of_any_kind_is_skipped_up_to_eight_deep(value: Any, times: int) -> None:
    value = wrapped(value, times)
    encoded = cbor2.dumps(value)
    # The frame's own map is the first of the eight.
    assert is_accepted("kobold-2", framed_value(encoded)) == (depth(value) <= 7)


class Malformed(Exception):  # noqa: N818 - the word of RFC 8949
    pass


def well_formed(data: bytes, at: int, level: int, *, breakable: bool = False) -> int:
    """Where the item at data[at] ends: RFC 8949, appendix C, with our limit and UTF-8 text."""
    if at >= len(data):
        raise Malformed
    major, info = data[at] >> 5, data[at] & 31
    at += 1
    value = info
    if info in (24, 25, 26, 27):
        width = 1 << (info - 24)
        if len(data) - at < width:
            raise Malformed
        value = int.from_bytes(data[at : at + width], "big")
        at += width
    elif info in (28, 29, 30):
        raise Malformed
    elif info == 31:
        return _indefinite(data, at, level, major, breakable)
    if major in (2, 3):
        if len(data) - at < value or (major == 3 and not is_text(data[at : at + value])):
            raise Malformed
        return at + value
    if major in (4, 5, 6):
        if level >= 8:
            raise Malformed
        for _ in range({4: value, 5: 2 * value, 6: 1}[major]):
            at = well_formed(data, at, level + 1)
    if major == 7 and info == 24 and value < 32:
        raise Malformed
    return at


def _indefinite(data: bytes, at: int, level: int, major: int, breakable: bool) -> int:
    if major in (2, 3):
        while data[at : at + 1] != b"\xff":
            if at >= len(data) or data[at] >> 5 != major or data[at] & 31 == 31:
                raise Malformed
            at = well_formed(data, at, level)
        return at + 1
    if major not in (4, 5) or level >= 8:
        raise Malformed
    while data[at : at + 1] != b"\xff":
        at = well_formed(data, at, level + 1)
        if major == 5:
            at = well_formed(data, at, level + 1)
    return at + 1


def is_one_item(data: bytes) -> bool:
    try:
        return well_formed(data, 0, 1) == len(data)
    except Malformed:
        return False


_indefinites = st.lists(
    st.sampled_from([b"\x9f", b"\xbf", b"\x5f", b"\x7f", b"\xff", b"\x01", b"\x61a", b"\x41a"]),
    max_size=8,
).map(b"".join)


@given(st.one_of(st.binary(min_size=1, max_size=10), _indefinites))
@example(b"\x5f\x5f\xff\xff")
@example(b"\xbf\x01\xff")
@example(b"\x9f\xff")
@example(b"\xf8\x1f")
@example(b"\x1b" + b"\xff" * 8)
@example(b"\x9b" + b"\xff" * 8)
@example(b"\xc6\xff")
def test_cbor_is_well_formed_as_the_rfc_says(data: bytes) -> None:
    accepted = is_accepted("kobold-2", framed_value(data))
    assert accepted == is_one_item(data)


@given(_values.map(cbor2.dumps), st.data())
def test_damaged_cbor_is_told_from_well_formed(encoded: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(encoded) - 1))
    damaged = encoded[:at] + data.draw(st.binary(max_size=2)) + encoded[at + 1 :]
    assert is_accepted("kobold-2", framed_value(damaged)) == is_one_item(damaged)


_metadata = st.dictionaries(
    st.text(max_size=5).filter(lambda key: not key.startswith("$")),
    st.one_of(
        st.text(max_size=5),
        st.integers(-(2**64), 2**64 - 1),
        st.booleans(),
        st.binary(max_size=5),
    ),
    max_size=30,
)
_FIELD_KEYS = {"id", "tx", "ack", "ttl", "prio", "to", "from"}
_PARAMETER_KEYS = {"token", "client", "rev", "wait", "count", "code", "attempt", "requeue"}


def as_text(value: Any) -> str:
    """A value of metadata as a header (decision 5)."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.decode() if is_text(value) else value.hex()
    return str(value)


@given(_metadata.filter(lambda some: not _FIELD_KEYS & set(some)), st.booleans())
def test_metadata_is_what_cbor2_wrote(metadata: dict[str, Any], indefinite: bool) -> None:
    encoded = cbor2.dumps(metadata)
    if indefinite:
        pairs = (cbor2.dumps(k) + cbor2.dumps(v) for k, v in metadata.items())
        encoded = b"\xbf" + b"".join(pairs) + b"\xff"
    (message,) = read("kobold-3", [framed(b"PUB a\r\n" + encoded + b"\r\nx\r\n")]).messages
    assert headers_of(message) == {
        "$" * (key in _PARAMETER_KEYS) + key: as_text(value) for key, value in metadata.items()
    }


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), max_size=6))
def test_percent_encoding_is_undone(metadata: dict[str, str]) -> None:
    def everything(text: str) -> str:
        return "".join(f"%{octet:02x}" for octet in text.encode())

    others = _FIELD_KEYS | _PARAMETER_KEYS
    mine = {k: v for k, v in metadata.items() if not k.startswith("$") and k not in others}
    line = ";".join(f"{everything(key)}={everything(value)}" for key, value in mine.items())
    (message,) = read("kobold-1", [framed(f"PUB\r\n{line}\r\na\r\nx\r\n".encode())]).messages
    assert message.headers == mine


# Tables


@pytest.mark.parametrize("capacity", [0, -1, (1 << 20) + 1])
def test_a_table_has_room_for_one_row_to_a_million(capacity: int) -> None:
    with pytest.raises(ValueError, match="1 to 1048576"):
        FrameTable(capacity)
    assert FrameTable(1).capacity == 1


_ACCESSES: list[Callable[[FrameTable, int], object]] = [
    FrameTable.frame,
    FrameTable.address,
    FrameTable.payload,
    FrameTable.headers,
    FrameTable.message,
]


@pytest.mark.parametrize("access", _ACCESSES, ids=lambda access: access.__name__)
def test_a_row_that_is_not_there_is_an_index_error(
    access: Callable[[FrameTable, int], object],
) -> None:
    table = FrameTable(4)
    for row in (0, -1, 4, 1 << 40):
        with pytest.raises(IndexError, match=f"row {row} of 0"):
            access(table, row)
    table.fill([HELLO, HELLO])
    access(table, 1)
    with pytest.raises(IndexError, match="row 2 of 2"):
        access(table, 2)


def test_rows_that_are_not_there_cannot_be_encoded() -> None:
    table = FrameTable(4)
    table.fill([HELLO])
    for row in (1, -1):
        with pytest.raises(IndexError, match=f"row {row} of 1"):
            encoder("kobold-3").encode(table, [row])


def test_a_table_takes_no_more_messages_than_it_has_rows() -> None:
    table = FrameTable(2)
    with pytest.raises(ValueError, match="3 messages in a table of 2 rows"):
        table.fill([HELLO] * 3)
    table.fill([HELLO] * 2)
    assert len(table) == 2


@every_dialect
@given(data=st.data())
def test_a_filled_table_gives_back_its_messages(dialect: str, data: st.DataObject) -> None:
    batch = data.draw(st.lists(messages(dialect), max_size=4))
    table = FrameTable(4)
    table.fill(batch, dialect)
    assert list(table.messages()) == batch


def test_a_message_has_the_time_it_is_given() -> None:
    table = FrameTable(1)
    table.fill([HELLO])
    assert [message.timestamp for message in table.messages(5)] == [5]
    assert table.message(0, 7).timestamp == 7


@every_dialect
def test_a_row_shows_the_bytes_of_its_frame(dialect: str) -> None:
    frame = hello(dialect)
    table = FrameTable(4)
    scan = scanner(dialect)
    scan.scan(frame * 3, table)
    assert [bytes(table.frame(row)) for row in range(len(table))] == [frame] * 3


def test_a_released_table_lets_its_buffer_grow() -> None:
    table = FrameTable(4)
    data = bytearray(hello("kobold-3"))
    scanner("kobold-3").scan(data, table)
    table.release()
    data += b"x"  # where a view of it is still held, this is a BufferError
    assert len(table) == 0


@every_dialect
def test_a_table_does_not_grow_beside_its_buffer(dialect: str) -> None:
    rich = Message(
        address="a/b",
        payload=b"x" * 20,
        id="7",
        headers={"k=%": "a;b", "boson.options": "x"},
        flags=Flag.ACK,
    )
    data = write([rich] * 100, dialect)
    table = FrameTable(4096)
    scan = scanner(dialect)
    sizes = set()
    for _ in range(100):  # 10 000 frames
        assert scan.scan(data, table) == len(data)
        list(table.messages())
        sizes.add(table.side.size)
    assert len(sizes) <= 2  # the first time there is no topic yet
    assert max(sizes) <= 2 * len(data) + 1000


# Scanners


@every_dialect
def test_a_scanner_of_another_dialect_can_use_the_table_next(dialect: str) -> None:
    table = FrameTable(8)
    expected = read(dialect, [hello(dialect)]).messages
    for other in DIALECTS:
        scanner(other).scan(write([Message(address="z", id="1", priority=1, ttl=9)], other), table)
        list(table.messages())
        scanner(dialect).scan(hello(dialect), table)
        assert list(table.messages()) == expected


@every_dialect
def test_a_full_table_says_that_there_is_more(dialect: str) -> None:
    data = hello(dialect) * 5
    size = len(data) // 5
    scan = scanner(dialect)
    table = FrameTable(2)
    seen = []
    at = 0
    for _ in range(3):
        used = scan.scan(data[at:], table)
        seen.append((used // size, len(table), scan.again))
        at += used
    assert seen == [(2, 2, True), (2, 2, True), (1, 1, False)]
    assert scan.offset == at == len(data)


@every_dialect
def test_a_table_that_is_just_full_has_no_more(dialect: str) -> None:
    scan = scanner(dialect)
    table = FrameTable(2)
    assert scan.scan(hello(dialect) * 2, table) == 2 * len(hello(dialect))
    assert (len(table), scan.again) == (2, False)


@every_dialect
def test_nothing_is_not_an_error(dialect: str) -> None:
    scan = scanner(dialect)
    table = FrameTable(2)
    assert scan.scan(b"", table) == 0
    assert scan.finish(b"", table) == 0
    assert (len(table), scan.again, scan.need, scan.offset) == (0, False, 0, 0)


@every_dialect
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_of_bytes_can_be_scanned(
    dialect: str, kind: Callable[[bytes], bytes | bytearray | memoryview]
) -> None:
    table = FrameTable(2)
    assert scanner(dialect).scan(kind(hello(dialect)), table) == len(hello(dialect))
    assert table.payload(0) == b"hello"


BROKEN = {
    "boson-text": b"x",
    "boson-binary": b"\x00\x09",
    "mfp-1": b"\x04",
    "kobold-1": b"\x7f\x00\x00\x00",
    "kobold-2": b"\x7f\x00\x00\x00",
    "kobold-3": b"\x7f\x00\x00\x00",
    "tmq-1.00": b"\x11\x10\x00\x00\x01\x00\x00\x80\x00",
    "tmq-1.01": b"\x11\x10\x00\x00\x01\x00\x00\xfe\x7f\x00\x00\x00",
    "mqtt-3.1.1": b"\x00",
    "mqtt-5": b"\x30\xff\xff\xff\xff\x01",
}


@every_dialect
def test_rows_before_a_fault_come_first_and_the_fault_has_its_place_in_the_stream(
    dialect: str,
) -> None:
    frame = hello(dialect)
    scan = scanner(dialect)
    table = FrameTable(8)
    assert scan.scan(frame * 2, table) == 2 * len(frame)
    rest = frame * 3 + BROKEN[dialect]
    assert scan.scan(rest, table) == 3 * len(frame)
    assert (len(table), scan.again) == (3, True)
    with pytest.raises(ProtocolError) as caught:
        scan.scan(rest[3 * len(frame) :], table)
    where = caught.value.offset - 5 * len(frame)
    assert 0 <= where <= len(BROKEN[dialect])
    assert caught.value.dialect == dialect
    assert str(caught.value) == f"{dialect}: byte {caught.value.offset}: {caught.value.reason}"
    assert len(table) == 0


@every_dialect
def test_a_stream_that_ends_inside_a_frame_is_an_error_where_that_frame_begins(
    dialect: str,
) -> None:
    frame = hello(dialect)
    for cut in range(1, len(frame)):
        reading = read(dialect, [frame * 2 + frame[:cut]])
        assert reading.fault is not None, cut
        assert len(reading.messages) == 2
        offset, reason, _ = reading.fault
        assert offset == 2 * len(frame)
        assert reason == f"the stream ends inside a frame, after {cut} bytes"


@every_dialect
def test_a_stream_that_does_not_end_just_waits(dialect: str) -> None:
    frame = hello(dialect)
    for cut in range(len(frame)):
        reading = read(dialect, [frame + frame[:cut]], finish=False)
        assert (len(reading.messages), reading.fault) == (1, None)
        assert reading.scanner.offset == len(frame)


def test_a_dialect_that_does_not_exist_is_named() -> None:
    for make in (scanner, encoder):
        with pytest.raises(ValueError, match=r"no dialect 'mfp-2'; there are boson-text"):
            make("mfp-2")


@pytest.mark.parametrize(
    ("dialect", "setting", "message"),
    [
        (
            "mfp-1",
            b"\x01" + bytes(16) + b"\0\0\0\x04\0new",
            b"\x02" + bytes(16) + b"\0\0\0\x02\0\1",
        ),
        ("boson-text", b"3|0|$topic|new", b"0|0||"),
    ],
    ids=["mfp-1", "boson-text"],
)
def test_a_broker_can_take_back_a_topic_that_was_set(
    dialect: str, setting: bytes, message: bytes
) -> None:
    scan: Any = scanner(dialect)
    table = FrameTable(4)
    scan.scan(setting + message, table)
    assert [each.address for each in table.messages()] == ["new", "new"]
    scan.set_context(b"old one")
    scan.scan(message * 2, table)
    assert [each.address for each in table.messages()] == ["old one", "old one"]


# Limits

BODY = b"y" * 50


def sized(dialect: str, payload: bytes) -> tuple[bytes, int]:
    """A frame with this payload, and what the limit on messages counts of it."""
    frame = write([Message(address="a", payload=payload)], dialect)
    counted = {"boson-text": len(payload), "boson-binary": len(frame) - 4}
    if dialect.startswith("kobold"):
        counted[dialect] = len(frame) - 4
    return frame, counted.get(dialect, len(payload))


LIMITED = [dialect for dialect in DIALECTS if dialect != "mfp-1"]


@pytest.mark.parametrize("dialect", LIMITED)
def test_a_message_may_be_as_large_as_the_limit_and_no_larger(dialect: str) -> None:
    frame, size = sized(dialect, BODY)
    assert read(dialect, [frame], limits=Limits(message=size)).fault is None
    assert read(dialect, [frame], limits=Limits(message=size - 1)).fault is not None


@every_dialect
def test_a_length_over_the_limit_is_refused_before_the_body_comes(dialect: str) -> None:
    payload = b"y" * (64 << 10)
    table = FrameTable(1)
    table.fill([Message(address="", payload=payload, flags=Flag.OVERSIZE)], dialect)
    if dialect == "mfp-1":
        frame = bytes(encoder(dialect).encode(table))
        limits = Limits()
    else:
        frame, size = sized(dialect, payload)
        limits = Limits(message=size - 1)
    head = next(
        length for length in range(1, 40)
        if read(dialect, [frame[:length]], limits=limits, finish=False).fault
    )  # fmt: skip
    reading = read(dialect, chunks(frame[:head], 1), limits=limits, finish=False)
    assert reading.fault is not None
    assert "at most" in reading.fault[1]
    if dialect.startswith("kobold"):
        assert head == 4


def test_an_mfp_frame_has_limits_of_its_own() -> None:
    frame = b"\x02" + bytes(16) + (64 << 10).to_bytes(4, "big") + b"\0\1"
    largest = read("mfp-1", [frame + bytes((64 << 10) - 2)])
    assert [message.flags for message in largest.messages] == [Flag.TEXT | Flag.OVERSIZE]
    over = b"\x02" + bytes(16) + ((64 << 10) + 1).to_bytes(4, "big")
    assert read("mfp-1", [over], finish=False).fault is not None


@pytest.mark.parametrize("dialect", LIMITED)
def test_an_address_may_be_as_long_as_the_limit_and_no_longer(dialect: str) -> None:
    limits = Limits(address=10)
    for size, fine in ((10, True), (11, False)):
        frame = write([Message(address="a" * size)], dialect)
        assert (read(dialect, [frame], limits=limits).fault is None) == fine


@pytest.mark.parametrize("dialect", ["boson-binary", "kobold-1", "kobold-2", "kobold-3"])
def test_headers_may_be_as_large_as_the_limit_and_no_larger(dialect: str) -> None:
    def fits(size: int, limits: Limits) -> bool:
        message = Message(address="a", headers={"k": "v" * size})
        return read(dialect, [write([message], dialect)], limits=limits).fault is None

    edge = [fits(size, Limits(headers=100)) for size in range(101)]
    largest = edge.index(False)
    assert edge == [True] * largest + [False] * (101 - largest)
    assert 60 <= largest <= 100  # names, lengths and delimiters count as well
    whole = 64 << 10
    assert fits(whole - 100 + largest - 4, Limits())
    assert not fits(whole, Limits())


def test_a_sequence_may_be_as_long_as_the_limit_and_no_longer() -> None:
    for mode in (b"m", b"mm"):
        stream = b"4|%b|t|abcd" % mode * 10 + b"0|0"
        exact = Limits(sequence=len(stream))
        assert read("boson-text", [stream], limits=exact).fault is None
        short = Limits(sequence=len(stream) - 1)
        assert read("boson-text", [stream], limits=short).fault is not None


def test_a_sequence_of_empty_parts_has_an_end() -> None:
    reading = read("boson-text", [b"0|m||" * 1000], limits=Limits(sequence=1000))
    assert reading.fault is not None
    assert reading.fault[0] <= 1000


@every_dialect
def test_a_scanner_says_how_many_bytes_it_needs(dialect: str) -> None:
    frame = write([Message(address="", payload=b"y" * 400)], dialect, client=False)
    if not frame:
        frame = write([Message(address="a", payload=b"y" * 400)], dialect)
    scan = scanner(dialect)
    table = FrameTable(1)
    scan.scan(hello(dialect), table)  # Kobold's first frame tells its own story
    for cut in range(1, len(frame)):
        assert scan.scan(frame[:cut], table) == 0
        assert scan.need == 0 or cut < scan.need <= len(frame)
        if cut > 300:
            assert scan.need == len(frame)
    assert scan.scan(frame, table) == len(frame)
    assert scan.need == 0


# Kobold's first frame (decision 16)


def first_frame(dialect: str) -> tuple[Scanner, bytes, FrameTable]:
    """A scanner that was given a whole inclusive frame and nothing else."""
    table = FrameTable(4)
    table.fill([HELLO], dialect)
    encode = encoder(dialect)
    encode.set_variant("inclusive")
    return scanner(dialect), bytes(encode.encode(table)), table


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3"])
def test_a_first_frame_that_may_go_on_is_undecided_until_it_is_settled(dialect: str) -> None:
    scan: Any
    scan, frame, table = first_frame(dialect)
    for cut in range(len(frame)):
        assert scan.scan(frame[:cut], table) == 0
        assert not scan.undecided
        assert scan.need <= len(frame)  # a patient caller must get to see the whole frame
    assert scan.scan(frame, table) == 0
    assert scan.undecided
    assert scan.need == len(frame) + 4
    scan.settle()
    assert scan.scan(frame, table) == len(frame)
    assert (scan.inclusive, scan.undecided) == (True, False)
    assert list(table.messages()) == [Message(address="a", payload=b"hello", dialect=dialect)]


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3"])
def test_a_second_frame_settles_the_first(dialect: str) -> None:
    scan: Any
    scan, frame, table = first_frame(dialect)
    assert scan.scan(frame + frame[:3], table) == 0
    assert scan.undecided
    assert scan.scan(frame + frame[:4], table) == len(frame)
    assert (scan.inclusive, scan.undecided) == (True, False)


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3"])
def test_an_exclusive_frame_is_never_taken_for_an_inclusive_one(dialect: str) -> None:
    # Four bytes before its end the content looks like the end of an inclusive frame.
    data = write([Message(address="a", payload=b"x\r\nyz")], dialect)
    scan: Any = scanner(dialect)
    table = FrameTable(4)
    assert scan.scan(data[:-4], table) == 0
    assert scan.undecided
    assert scan.scan(data, table) == len(data)
    assert (scan.inclusive, scan.undecided) == (False, False)


def test_kobold_2_is_never_undecided() -> None:
    scan: Any
    scan, frame, table = first_frame("kobold-2")
    assert scan.scan(frame, table) == len(frame)
    assert (scan.inclusive, scan.undecided) == (True, False)


@settings(max_examples=20)
@given(st.binary(min_size=8, max_size=8))
def test_new_mfp_uids_count_up_from_a_seed(seed: bytes) -> None:
    table = FrameTable(4)
    table.fill([HELLO, HELLO], "kobold-3")
    encode = MfpEncoder("mfp-1", False)
    encode.prepare(seed, split=False)
    ids = [message.id for message in read("mfp-1", [bytes(encode.encode(table))]).messages]
    assert ids == [seed.hex() + f"{n:016x}" for n in (1, 2)]
    with pytest.raises(ValueError, match="8 bytes"):
        MfpEncoder("mfp-1", False).prepare(seed[1:], split=False)
