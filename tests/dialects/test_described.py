"""Described dialects read and write exactly what their descriptions say, however bytes arrive."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.dialects.described import METER, SENSOR, add
from tests.wire import conftest  # noqa: F401 - the profile of the wire's tests
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed, encoder, scanner
from wirelake.dialects.framed.checksums import KINDS
from wirelake.dialects.framed.description import PRESETS, dialect_of, parse_description
from wirelake.errors import ConfigError, ProtocolError
from wirelake.message import Flag, Limits, Message, Op, Parameters
from wirelake.wire import FrameTable


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """The dialects that there were before the test, afterwards."""
    with DIALECTS.also():
        yield


def describe(text: str, name: str = "test-1", address: str = "a/{x}") -> str:
    """Add a dialect of this frame and these fields."""
    return add(f'name = "{name}"\naddress = "{address}"\n{text}')


def preset(name: str) -> str:
    """Add a preset."""
    return add(PRESETS[name].read_text(encoding="utf-8"))


def written(dialect: str, *messages: Message) -> bytes:
    """These messages as frames; all of them can be said."""
    table = FrameTable(max(1, len(messages)))
    table.fill(messages, dialect)
    made = encoder(dialect)
    frames = bytes(made.encode(table))
    assert made.skipped == {}
    return frames


def skipped(dialect: str, message: Message) -> dict[str, int]:
    """Why a message cannot be said."""
    table = FrameTable(1)
    table.fill([message], "")
    made = encoder(dialect)
    assert bytes(made.encode(table)) == b""
    return made.skipped


def read(dialect: str, data: bytes, size: int = 0) -> list[Message]:
    """The messages in data that comes in pieces of a size, 0: at once."""
    feed = Feed(dialect)
    found: list[Message] = []
    for at in range(0, len(data), size or len(data) or 1):
        for table in feed.receive(data[at : at + size] if size else data):
            found += table.messages()
    for table in feed.finish():
        found += table.messages()
    return found


def fault(dialect: str, data: bytes, limits: Limits = Limits()) -> ProtocolError:  # noqa: B008
    """The error that these bytes cause."""
    table, reader = FrameTable(16), scanner(dialect, limits)
    at = 0
    try:
        while used := reader.scan(memoryview(data)[at:], table):
            at += used
        reader.finish(memoryview(data)[at:], table)
    except ProtocolError as error:
        return error
    pytest.fail("these bytes are no fault")


# Frames

meter_messages = st.builds(
    Message,
    address=st.text("abcž/0", min_size=1, max_size=20),
    payload=st.binary(max_size=40),
    id=st.text("0aB-ž", max_size=20),
    ticket=st.integers(0, 0xFFFF),
    priority=st.integers(0, 1),
    ttl=st.integers(0, 2**31 - 1),
    headers=st.fixed_dictionaries(
        {
            "temperature": st.floats(width=32, allow_nan=False, allow_infinity=False).map(
                lambda value: f"{struct.unpack('f', struct.pack('f', value))[0]:.9g}"
            ),
            "offset": st.integers(-(2**15), 2**15 - 1).map(str),
        }
    ),
)


@given(st.lists(meter_messages, max_size=5))
def test_what_is_written_reads_back_the_same(messages: list[Message]) -> None:
    name = add(METER)
    back = read(name, written(name, *messages))
    assert len(back) == len(messages)
    for message, found in zip(messages, back, strict=True):
        assert float(found.headers["temperature"]) == pytest.approx(
            float(message.headers["temperature"]), rel=1e-6
        )
        assert found.headers["offset"] == message.headers["offset"]
        same = replace(message, headers=found.headers, dialect=name, flags=Flag.ACK)
        assert found == same


@given(st.lists(meter_messages, min_size=1, max_size=4))
def test_every_split_of_a_stream_gives_the_same_messages(messages: list[Message]) -> None:
    name = add(METER)
    frames = written(name, *messages)
    whole = read(name, frames)
    for size in {1, 2, 3, 7, len(frames) // 2 or 1}:
        assert read(name, frames, size) == whole


@pytest.mark.parametrize("name", ["meter-1", "sensor-2", "nmea-0183", "syslog-octets"])
def test_any_bytes_give_messages_or_an_error_and_nothing_else(name: str) -> None:
    add(METER), add(SENSOR), preset("nmea-0183"), preset("syslog-octets")
    seed = written(name, Message("plant/1/2" if name != "nmea-0183" else "nmea/X", b"payload"))

    @given(st.binary(max_size=60), st.integers(0, len(seed)))
    def any_bytes(noise: bytes, cut: int) -> None:
        for data in (noise, seed[:cut] + noise, seed + noise):
            with contextlib.suppress(ProtocolError):
                read(name, data)

    any_bytes()


def test_controls_carry_filters_and_tokens_in_their_payload() -> None:
    name = add(METER)
    token = Parameters(token="secret")
    asked = [
        Message("house/#", op=Op.SUBSCRIBE, ticket=1),
        Message("house/#", op=Op.UNSUBSCRIBE, ticket=2),
        Message(op=Op.AUTH, ticket=3, parameters=token),
        Message(op=Op.PING, payload=b"?", ticket=4),
        Message(op=Op.OK, ticket=5),
        Message(op=Op.ERROR, payload=b"no", ticket=6),
    ]
    back = read(name, written(name, *asked))
    assert [(one.op, one.address, one.payload, one.ticket) for one in back] == [
        (one.op, one.address, one.payload, one.ticket) for one in asked
    ]
    assert back[2].parameters.token == "secret"


def test_answers_that_are_no_frames_are_told_from_frames() -> None:
    name = add(SENSOR)
    frames = written(name, Message(op=Op.OK, ticket=258), Message("plant/1/2", b"x", ticket=9))
    assert frames[:3] == b"\x06\x01\x02"
    assert [(one.op, one.ticket) for one in read(name, frames, 1)] == [
        (Op.OK, 258),
        (Op.PUBLISH, 9),
    ]
    refused = written(name, Message(op=Op.ERROR, ticket=7, payload=b"why"))
    assert refused == b"\x15\x00\x07"


def test_a_message_that_a_frame_cannot_say_is_left_out_and_counted() -> None:
    name = add(SENSOR)
    assert skipped(name, Message("plant/1/70000")) == {"address": 1}
    assert skipped(name, Message("plant/01/2")) == {"address": 1}
    assert skipped(name, Message("elsewhere/1/2")) == {"address": 1}
    assert skipped(name, Message("plant/1/2", b"x" * 70000)) == {"payload": 1}
    assert skipped(name, Message("plant/1/2", op=Op.SUBSCRIBE)) == {"op": 1}
    lines = preset("lines")
    assert skipped(lines, Message("lines", b"two\nlines")) == {"payload": 1}
    assert skipped(lines, Message("lines", b"ends with\r")) == {"payload": 1}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda frame: b"\xaa\x56" + frame[2:], "where a frame begins; frames begin with aa 55"),
        (lambda frame: b"\x55" + frame[1:], "where a frame begins"),
        (lambda frame: frame[:-1] + bytes([frame[-1] ^ 1]), "crc-16/modbus of the frame is"),
        (lambda frame: frame[:2] + b"\0\0\0\x05" + frame[6:], "the frame would have 5 bytes"),
        (lambda frame: frame[:2] + b"\0\0\0\x07" + frame[6:], "a frame has at least"),
        (lambda frame: frame[:2] + b"\xff\xff\xff\xff", "a frame has at most 1048576 bytes"),
        (lambda frame: frame[:-3], "the stream ends inside a frame"),
    ],
)
def test_a_fault_is_told_at_its_byte(change, reason) -> None:  # type: ignore[no-untyped-def]
    name = add(METER)
    good = written(name, Message("a", b"payload"))
    error = fault(name, good + change(good))
    assert reason in str(error)
    assert len(good) <= error.offset < 2 * len(good)


def test_the_limits_of_the_broker_hold_below_those_of_the_description() -> None:
    name = add(METER)
    frame = written(name, Message("a" * 200, b"x" * 2000))
    assert "at most 1024" in str(fault(name, frame, Limits(message=1024)))
    assert "an address of 200 bytes; at most 100" in str(fault(name, frame, Limits(address=100)))
    lines = preset("lines")
    assert "at most 1024" in str(fault(lines, b"x" * 2000, Limits(message=1024)))
    long = preset("syslog-lines")
    line = b"<" + b"1" * 4000 + b">x\n"
    assert "over 1000 bytes of headers" in str(fault(long, line, Limits(headers=1000)))


def test_a_line_that_never_ends_is_refused_and_looked_at_once() -> None:
    lines = preset("lines")
    reader, table = scanner(lines), FrameTable(4)
    data = bytearray()
    for _ in range(65):
        data += b"x" * 1000
        assert reader.scan(memoryview(bytes(data)), table) == 0
    with pytest.raises(ProtocolError, match="at most 65536"):
        reader.scan(memoryview(bytes(data) + b"x" * 1000), table)


@pytest.mark.parametrize("kind", KINDS)
def test_every_checksum_has_the_check_value_of_the_catalogue(kind: str) -> None:
    known = {
        "crc-8": 0xF4, "crc-8/maxim": 0xA1, "crc-8/sae-j1850": 0x4B,
        "crc-16/arc": 0xBB3D, "crc-16/modbus": 0x4B37, "crc-16/usb": 0xB4C8,
        "crc-16/ccitt-false": 0x29B1, "crc-16/xmodem": 0x31C3, "crc-16/genibus": 0xD64E,
        "crc-16/kermit": 0x2189, "crc-16/x-25": 0x906E, "crc-16/dnp": 0xEA82,
        "crc-32": 0xCBF43926, "crc-32/bzip2": 0xFC891918, "crc-32/mpeg-2": 0x0376E6E7,
        "crc-32/jamcrc": 0x340BC6D9, "crc-32c": 0xE3069283,
        "sum-8": 0xDD, "sum-16": 0x1DD, "sum-32": 0x1DD, "xor-8": 0x31, "lrc": 0x23,
    }  # fmt: skip
    name = describe(
        f'frame = {{by="delimiter", delimiter="\\n", checksum={{kind="{kind}", form="hex"}}}}',
        name=f"c-{list(KINDS).index(kind)}",
        address="x",
    )
    line = written(name, Message("x", b"123456789"))
    assert int(line[9:-1], 16) == known[kind]
    assert read(name, line)[0].payload == b"123456789"


@given(st.binary(max_size=40))
def test_a_crc_over_any_number_of_bytes_is_zlibs(data: bytes) -> None:
    frame = 'frame = {by="length", length={width=2}, checksum={kind="crc-32", start=2}}'
    name = describe(frame, name="crc-any", address="x")
    assert written(name, Message("x", data))[-4:] == zlib.crc32(data).to_bytes(4, "big")


# Presets

GGA = b"$GPGGA,123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,*47\r\n"
AIS = b"!AIVDM,1,1,,A,14eG;o@034o8sd<L9i:a;WF>062D,0*7D\r\n"
#: The examples of RFC 5424 (6.5) and RFC 3164 (5.4).
SYSLOG = (
    b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - 'su root' failed",
    b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
)


def test_nmea_sentences_keep_their_beginning_and_checksum() -> None:
    name = preset("nmea-0183")
    found = read(name, GGA + AIS + b"$GPZDA,1,2\r\n", 5)
    assert [one.address for one in found] == ["nmea/GPGGA", "nmea/AIVDM", "nmea/GPZDA"]
    assert found[0].payload == b"123519,4807.038,N,01131.000,E,1,08,0.9,545.4,M,46.9,M,,"
    assert written(name, *found[:2]) == GGA + AIS
    assert "xor-8 of the frame is 47" in str(fault(name, GGA.replace(b"*47", b"*48")))


@pytest.mark.parametrize("name", ["syslog-lines", "syslog-octets"])
def test_syslog_in_both_framings_of_rfc_6587(name: str) -> None:
    preset(name)
    framed = {
        "syslog-lines": b"".join(one + b"\n" for one in SYSLOG),
        "syslog-octets": b"".join(b"%d %b" % (len(one), one) for one in SYSLOG),
    }[name]
    for size in (0, 1, 7):
        found = read(name, framed, size)
        assert [one.payload for one in found] == list(SYSLOG)
        assert [one.headers for one in found] == [{"pri": "34"}] * 2
    assert written(name, *found) == framed


def test_octet_counting_refuses_what_is_no_length() -> None:
    name = preset("syslog-octets")
    assert "'x' in a length" in str(fault(name, b"1x <34>"))
    assert "at most 65536 bytes" in str(fault(name, b"999999 <34>"))
    assert "over 10 digits" in str(fault(name, b"1" * 12))


def test_json_lines_have_their_address_in_a_member() -> None:
    name = preset("json-lines")
    line = b'{"n": [1, {"topic": "no"}], "topic": "house/\\u017e\\n", "v": 21.5}\n'
    (found,) = read(name, line)
    assert found.address == "house/ž\n"
    assert found.payload == line[:-1]
    assert written(name, Message("a/b", b'{"v": 1}')) == b'{"topic":"a/b","v": 1}\n'
    assert written(name, Message("a/b", b'{"topic": 3}')) == b'{"topic": "a/b"}\n'
    assert skipped(name, Message("a/b", b"21.5")) == {"payload": 1}
    for bad in (b"[1]\n", b'{"t": 1}\n', b'{"topic": "x\n', b'{"topic": "\\ud800"}\n', b"\n"):
        assert fault(name, bad).offset <= len(bad)


@given(st.text(max_size=20), st.binary(max_size=50))
def test_length_prefixed_frames_say_any_address(address: str, payload: bytes) -> None:
    name = preset("length-prefixed")
    frame = written(name, Message(address, payload))
    topic = address.encode()
    rest = bytes([len(topic)]) + topic + payload
    assert frame == len(rest).to_bytes(4, "big") + rest
    assert read(name, frame)[0].address == address


# Descriptions


@pytest.mark.parametrize(
    ("text", "setting", "reason"),
    [
        ("name = 3", "name", "expected `str`"),
        ("nam = 'x'", "nam", "there is no such setting"),
        ("interface = 2\n" + SENSOR, "interface", "2 is not known"),
        (SENSOR.replace('by = "length"', 'by = "fixed"'), "frame.length", "not for frames by"),
        (SENSOR.replace("width = 2", "width = 9"), "frame.length.width", "<= 8"),
        (SENSOR.replace("at = 2", "at = 1"), "frame.length.at", "the magic is there"),
        (SENSOR.replace("crc-16/ccitt-false", "crc-17"), "frame.checksum.kind", "is none of crc-8"),
        (SENSOR.replace("0x0D0A", "0x0D0"), "frame.trailer", "pairs of hexadecimal digits"),
        (SENSOR.replace("{unit}", "{units}"), "address", "there is no field 'units'"),
        (SENSOR.replace("/{unit}", "{unit}"), "address", "tells them apart"),
        (SENSOR.replace("{unit}", "+"), "address", "cannot have '+'"),
        (SENSOR.replace('"seq"\n\n', '"none"\n\n'), "ticket", "there is no field 'none'"),
        (SENSOR.replace("{ticket:u16}", "{reason}"), "answer.accepted", "{reason} is none of"),
        (SENSOR + '[[fields]]\nname = "a"\nuntil = ";;"', "fields[3].until", "1 to 1 bytes, not 2"),
        (SENSOR + '[[fields]]\nname = "a"', "fields[3]", "text needs one of size, until"),
        (SENSOR + '[[fields]]\nname = "line"\nsize = 2', "fields[3].name", "is there twice"),
        (SENSOR + '[[fields]]\nname="a"\nsize=2\nafter="b"', "fields[3].after", "no field 'b'"),
        (SENSOR + "".join(f'[[fields]]\nname="f{k}"\ntype="u8"\n' for k in range(30)), "fields",
         "at most 32, not 33"),
        (METER.replace("subscribe = 2", "subscribe = 256"), "ops.subscribe", "256 is no u8"),
        (METER.replace("unub", "").replace("ping = 5", "ping = 4"), "ops.ping", "as ops.auth is"),
    ],
)  # fmt: skip
def test_a_wrong_description_is_an_error_that_names_the_setting(
    text: str, setting: str, reason: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_description(text, "x.toml")
    assert caught.value.setting == setting
    assert reason in caught.value.reason
    assert caught.value.reason.endswith("(x.toml)")


def test_the_presets_are_all_there_and_can_all_be_written() -> None:
    assert set(PRESETS) == {
        "lines", "json-lines", "length-prefixed", "syslog-octets", "syslog-lines", "nmea-0183",
    }  # fmt: skip
    for file in PRESETS.values():
        assert dialect_of(parse_description(file.read_text(encoding="utf-8"))).description.about
