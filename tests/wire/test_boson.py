"""Boson beyond its vectors: limits, sequences that arrive slowly, what each encoder leaves out."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from tests.wire.reading import read, single_bytes, write
from wirelake.dialects.boson_text.codec import BosonTextScanner
from wirelake.dialects.codec import encoder, scanner
from wirelake.errors import ProtocolError
from wirelake.message import Flag, Limits, Message, Op, Parameters
from wirelake.wire import FrameTable

TEXT = "boson-text"
BINARY = "boson-binary"


def message(*properties: tuple[str, bytes], version: int = 1) -> bytes:
    """A boson-binary message."""
    body = b"".join(
        len(key.encode()).to_bytes(2, "big") + key.encode() + len(value).to_bytes(4, "big") + value
        for key, value in properties
    )
    return version.to_bytes(2, "big") + (2 + len(body)).to_bytes(4, "big") + body


def fault(dialect: str, data: bytes, limits: Limits) -> str:
    """Why a stream is refused, before its end; empty where it is not."""
    reading = read(dialect, [data], limits=limits, finish=False)
    assert reading.fault is None or not reading.messages
    return reading.fault[1] if reading.fault else ""


# Limits, each at and just over.


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (b"10|", ""),
        (b"11|", "a length of 11; at most 10"),
        (b"5|m|t|abcde5|", ""),
        (b"5|m|t|abcde6|0||", "joined parts of more than 10 bytes"),
        (b"5|mm|t|abcde10|0||", ""),
        (b"1|mm|t|a1|mm||b9|0|t|", ""),
        (b"1|mm|t|a1|mm||b10|0||", "a sequence of more than 30 bytes"),
        (b"1|mm|t|a" + b"0|mm||" * 3 + b"0|0", ""),
        (b"1|mm|t|a" + b"0|mm||" * 3 + b"0|x,0||", "a sequence of more than 30 bytes"),
        (b"1|mm|t|a" + b"0|mm||" * 3 + b"0|mm||", "a sequence of more than 30 bytes"),
        (b"4|0|$subscribe|abcd", ""),
        (b"5|0|$subscribe|abcde", "over 4 bytes for a control topic"),
        (b"0|0|abcd|", ""),
        (b"0|0|abcde", "a topic of more than 4 bytes"),
        (b"0|0|$request/1/abcd|", ""),
        (b"0|0|$request/1/abcde|", "an address over 4 bytes"),
        (b"8|0|$auth|abcdefgh", ""),
        (b"9|0|$auth|abcdefghi", "over 8 bytes for a control topic"),
        (b"10|0|$error|abcdefgh x", ""),
        (b"10|0|$error|abcdefghi ", "over 8 bytes for a control topic"),
    ],
)
def test_text_is_refused_where_it_goes_over_a_limit(data: bytes, refused: str) -> None:
    assert fault(TEXT, data, Limits(message=10, address=4, headers=8, sequence=30)) == refused


@pytest.mark.parametrize(
    ("data", "refused"),
    [
        (b"\0\1\0\0\0\x64", ""),
        (b"\0\1\0\0\0\x65", "a size of 101; at most 100"),
        (message(("topic", b"abcd")), ""),
        (message(("topic", b"abcde")), "a topic of 5 bytes; at most 4"),
        (message(("k", bytes(23)), ("content", bytes(40))), ""),
        (message(("k", bytes(24))), "over 30 bytes beside topic and content"),
        (message(("content", bytes(40)), ("k", bytes(23))), ""),
        (message(("hbf.id", bytes(18))), ""),
        (message(("hbf.id", bytes(19))), "over 30 bytes beside topic and content"),
        (message(*((f"{k}", b"") for k in range(4))), ""),
        (message(*((f"{k}", b"") for k in range(5))), "over 30 bytes beside topic and content"),
    ],
)
def test_a_binary_message_is_refused_where_it_goes_over_a_limit(data: bytes, refused: str) -> None:
    assert fault(BINARY, data, Limits(message=100, address=4, headers=30)) == refused


# Sequences that arrive slowly, or do not fit.


def test_what_was_walked_of_a_sequence_is_not_looked_at_again() -> None:
    scan = scanner(TEXT)
    table = FrameTable()
    walked = b"1|m|t|a" + b"100|m||" + bytes(100)
    assert scan.scan(walked + b"9", table) == 0
    assert scan.scan(bytes(len(walked)) + b"9|", table) == 0
    with pytest.raises(ProtocolError):
        scan.scan(bytes(len(walked)) + b"9|!", table)


def test_a_part_says_how_many_bytes_the_sequence_needs_until_its_end() -> None:
    scan = scanner(TEXT)
    table = FrameTable()
    assert scan.scan(b"1|m|t|a500|m||b", table) == 0
    assert scan.need == len(b"1|m|t|a500|m||") + 500


def test_a_long_sequence_byte_by_byte_takes_time_in_proportion() -> None:
    data = b"0|mm|t|" + b"1|mm||x" * 3000 + b"0|0"
    scan = scanner(TEXT)
    table = FrameTable(4096)
    for size in range(1, len(data)):
        assert scan.scan(memoryview(data)[:size], table) == 0
    assert scan.scan(data, table) == len(data)
    assert table.count == 3001


def test_a_split_sequence_larger_than_the_table_goes_on_in_the_next() -> None:
    data = b"1|mm|topic|0" + b"".join(b"1|mm||%d" % k for k in range(1, 8)) + b"0|0"
    scan = scanner(TEXT)
    table = FrameTable(3)
    seen: list[Message] = []
    frames = b""
    while data:
        # Only what is left is passed on: the frame with the topic is gone after the first call.
        used = scan.scan(bytes(data), table)
        seen += table.messages()
        frames += b"".join(bytes(table.frame(row)) for row in range(table.count))
        data = data[used:]
        assert scan.again == bool(data)
    assert [each.payload for each in seen] == [b"%d" % k for k in range(8)]
    assert {each.address for each in seen} == {"topic"}
    assert [Flag.MORE in each.flags for each in seen] == [True] * 7 + [False]
    assert frames.startswith(b"1|mm|topic|0")
    assert frames.endswith(b"1|mm||70|0")


@pytest.mark.parametrize("mode", [b"m", b"mm"])
@pytest.mark.parametrize("tail", [b"", b"||", b"|t|"])
def test_the_terminator_belongs_to_the_frame_of_the_last_row(mode: bytes, tail: bytes) -> None:
    data = b"1|%b|t|a1|%b||b0|0" % (mode, mode) + tail
    table = FrameTable()
    assert scanner(TEXT).scan(data + b"1|0|t|c", table) == len(data) + 7
    starts = [*table.frame_at[: table.count], len(data) + 7]
    sizes = [after - before for before, after in pairwise(starts)]
    assert sizes == list(table.frame_len[: table.count])


def test_a_tail_that_comes_later_adds_nothing() -> None:
    scan = scanner(TEXT)
    table = FrameTable()
    assert scan.scan(b"1|m|t|a0|0", table) == 10
    assert table.payload(0) == b"a"
    assert scan.scan(b"|t", table) == 0
    assert scan.scan(b"|t|1|0|u|b", table) == 10
    assert [each.address for each in table.messages()] == ["u"]
    assert scan.offset == 20


def test_a_broker_can_take_back_a_default_address() -> None:
    scan = BosonTextScanner()
    table = FrameTable()
    scan.scan(b"3|0|$topic|bad1|0||a", table)
    assert table.address(1) == b"bad"
    scan.set_context(b"")
    scan.scan(b"1|0||a", table)
    assert table.address(0) == b"boson"
    scan.set_context(b"good")
    scan.scan(b"1|0||a", table)
    assert table.address(0) == b"good"


# What an error answers.


def test_a_fault_in_text_is_answered_by_an_error() -> None:
    reading = read(TEXT, [b"x"])
    assert reading.fault is not None
    (answer,) = read(TEXT, [reading.fault[2]]).messages
    assert answer.op == Op.ERROR
    assert answer.parameters == Parameters(code="bad_request")
    assert answer.payload.decode() == reading.fault[1]


@pytest.mark.parametrize("data", [b"\0\x09", b"\0\1\xff\xff\xff\xff", message(("hbf.ttl", b""))])
def test_a_fault_in_binary_is_answered_in_version_1(data: bytes) -> None:
    reading = read(BINARY, single_bytes(data))
    assert reading.fault is not None
    (answer,) = read(BINARY, [reading.fault[2]]).messages
    assert answer.op == Op.ERROR
    assert answer.parameters == Parameters(code="bad_request")
    assert answer.payload.decode() == reading.fault[1]
    assert Flag.VERSION_2 not in answer.flags


# What an encoder leaves out.

PLAIN = Message(address="t", payload=b"x")


@pytest.mark.parametrize(
    ("dialect", "change", "reason"),
    [
        (TEXT, {"address": "a|b"}, "address"),
        (TEXT, {"address": "$a"}, "address"),
        (TEXT, {"address": ""}, "address"),
        (TEXT, {"op": Op.DIRECT}, "op"),
        (TEXT, {"op": Op.UNSERVE}, "op"),
        (TEXT, {"op": Op.UNKNOWN}, "op"),
        (TEXT, {"op": Op.REQUEST}, "id"),
        (TEXT, {"op": Op.REQUEST, "correlation_id": "a b"}, "id"),
        (TEXT, {"op": Op.REQUEST, "correlation_id": "i" * 65}, "id"),
        (TEXT, {"op": Op.REQUEST, "correlation_id": "1", "address": "a|b"}, "address"),
        (TEXT, {"op": Op.REPLY, "correlation_id": "ä"}, "id"),
        (TEXT, {"op": Op.ERROR, "correlation_id": "/"}, "id"),
        (BINARY, {"address": ""}, "address"),
        (BINARY, {"op": Op.UNKNOWN}, "op"),
        (BINARY, {"op": Op.HANDSHAKE}, "op"),
    ],
)
def test_what_cannot_be_said_is_left_out(dialect: str, change: dict[str, str], reason: str) -> None:
    table = FrameTable(3)
    table.fill([PLAIN, replace(PLAIN, **change), PLAIN])
    encode = encoder(dialect)
    assert bytes(encode.encode(table)) == 2 * write([PLAIN], dialect)
    assert encode.skipped == {reason: 1}


@pytest.mark.parametrize(
    ("options", "payload", "written"),
    [
        ("x,y", b"a", b"1|x,y|t|a"),
        ("05", b"a", b"1|05|t|a"),
        ("05", b"", b"0|0,05|t|"),
        ("0" * 255, b"a", b"1|" + b"0" * 255 + b"|t|a"),
        ("0" * 255, b"", b"0|0|t|"),
        ("x" * 256, b"a", b"1|0|t|a"),
        ("m", b"a", b"1|0|t|a"),
        ("x,mm", b"a", b"1|0|t|a"),
        ("0", b"a", b"1|0|t|a"),
        ("x,", b"a", b"1|0|t|a"),
        ("x|9", b"a", b"1|0|t|a"),
        ("", b"a", b"1|0|t|a"),
    ],
)
def test_options_are_written_where_they_are_such(
    options: str, payload: bytes, written: bytes
) -> None:
    headers = {"trace": "1", "boson.options": options}
    assert write([Message(address="t", payload=payload, headers=headers)], TEXT) == written


def test_names_that_mean_something_else_are_not_written_as_properties() -> None:
    headers = {
        "topic": "u", "content": "y", "hbf.op": "ack", "hbf.token": "t", "$client": "c",
        "$new": "1", "": "empty", "k" * 0x8000: "long", "hbf.own": "2", "k": "v",
    }  # fmt: skip
    said = Parameters(connection="pub", rev=3)
    assert write([replace(PLAIN, headers=headers, parameters=said)], BINARY) == message(
        ("hbf.own", b"2"), ("hbf.revision", b"3"), ("topic", b"t"), ("content", b"x"), ("k", b"v")
    )


def test_a_broker_does_not_pass_on_that_a_publisher_wants_an_acknowledgement() -> None:
    wanted = replace(PLAIN, flags=Flag.ACK)
    plain = message(("topic", b"t"), ("content", b"x"))
    assert write([wanted], BINARY, client=False) == plain
    assert write([wanted], BINARY) == message(("hbf.ack", b"1"), ("topic", b"t"), ("content", b"x"))
    subscribe = Message(op=Op.SUBSCRIBE, address="t", flags=Flag.ACK)
    assert write([subscribe], BINARY, client=False) == write([subscribe], BINARY)


def test_hops_are_no_milliseconds() -> None:
    assert b"hbf.ttl" not in write([replace(PLAIN, ttl=16)], BINARY, source="tmq-1.00")
    assert b"hbf.ttl" in write([replace(PLAIN, ttl=16)], BINARY, source="kobold-1")


def test_version_2_and_implied_addresses_stay_within_their_dialect() -> None:
    implied = Message(address="boson", payload=b"x", flags=Flag.IMPLIED | Flag.VERSION_2)
    assert write([implied], BINARY, source=BINARY) == message(("content", b"x"), version=2)
    assert write([implied], BINARY, source=TEXT) == message(("topic", b"boson"), ("content", b"x"))
    assert write([implied], TEXT, source=TEXT) == b"1|0||x"
    assert write([implied], TEXT, source=BINARY) == b"1|0|boson|x"
