"""A stream's dialect is told by its first bytes, the same however they arrive.

The rules are written here a second time, for whole heads of 23 bytes only (`by_the_rules`).
"""

import random
from fractions import Fraction

import cbor2
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wirelake.dialects.codec import detect
from wirelake.dialects.dialect import HEAD
from wirelake.errors import ProtocolError

OPS = [
    "PUB", "SUB", "UNSUB", "REQ", "REP", "ADV", "UNADV", "ENQ", "DEQ", "MSG", "ACK", "NACK",
    "CREATE", "READ", "UPDATE", "DELETE", "WATCH", "SET", "DEL", "OPEN", "DATA", "CLOSE", "AUTH",
    "PING", "PONG", "OK", "ERR", "INFO",
]  # fmt: skip
KEYS = ["id", "message_type", "topic", "transaction_id", "content", "timestamp", "metadata"]
UID = bytes.fromhex("f0e1d2c3b4a5968778695a4b3c2d1e0f")
ALICE = b"\x01\x00" + "alice".encode("utf-16-be")


def mfp(uid: bytes = UID, payload: bytes = ALICE, kind: int = 0, length: int = -1) -> bytes:
    size = len(payload) if length < 0 else length
    return bytes([kind]) + uid + size.to_bytes(4, "big") + payload


def kobold(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def boson(properties: dict[str, bytes], version: int = 1) -> bytes:
    body = b"".join(
        len(key.encode()).to_bytes(2, "big") + key.encode() + len(value).to_bytes(4, "big") + value
        for key, value in properties.items()
    )
    return version.to_bytes(2, "big") + (2 + len(body)).to_bytes(4, "big") + body


def outcome(data: bytes, family: str | None = None) -> str | ProtocolError | None:
    try:
        return detect(data, family)
    except ProtocolError as error:
        return error


def key_of(result: str | ProtocolError | None) -> object:
    """What makes two outcomes the same."""
    return (str(result), result.answer) if isinstance(result, ProtocolError) else result


FIRST_FRAMES = [
    ("tmq-1.00", b"TMQ/1.00"),
    ("tmq-1.01", b"TMQ/1.01"),
    ("tmq-1.01", b"TMQ/1.01\x10\x10\x00\x00\x00\x00\x65\x00"),
    ("boson-text", b"5|0|greet|hello"),
    ("boson-text", b"0|0|$ping|"),
    ("boson-text", b"9" * 40),
    ("boson-binary", boson({"topic": b"t"})),
    ("boson-binary", boson({"hbf.op": b"subscribe", "topic": b"t"}, version=2)),
    ("boson-binary", boson({"k": b""})),
    ("boson-binary", boson({"k" * 15: b"the key ends with byte 23"})),
    ("boson-binary", boson({"k" * 16: b"the key ends after byte 23"})),
    ("boson-binary", boson({"k" * 255: b""})),
    ("boson-binary", boson({" ~": b""})),
    ("boson-binary", boson({"k" * 15 + "\n": b"a fault that lies beyond byte 23"})),
    ("boson-binary", b"\x00\x01\x04\x00\x00\x00\x00\x01k"),  # a size of 64 MiB
    ("kobold-1", kobold(b"PUB\r\ntoken=secret;\r\n/hello/world\r\nhello\r\n")),
    ("kobold-1", kobold(b"OK\r\n\r\n\r\n\r\n")),
    ("kobold-1", b"\x04\x00\x00\x00CREATE\r"),
    ("kobold-2", kobold(cbor2.dumps({"message_type": 24}))),
    ("kobold-2", kobold(b"\xbf\x62id\x60\xff")),  # of indefinite length
    ("kobold-2", kobold(b"\xb8\x01\x62id\x60")),  # an entry count of 1, 2, 4 and 8 bytes
    ("kobold-2", kobold(b"\xb9\x00\x01\x62id\x60")),
    ("kobold-2", kobold(b"\xba\x00\x00\x00\x01\x62id\x60")),
    ("kobold-2", kobold(b"\xbb\x00\x00\x00\x00\x00\x00\x00\x01\x62id\x60")),
    ("kobold-2", kobold(b"\xa1\x78\x02id\x60")),  # a key length that is not in its shortest form
    ("kobold-2", kobold(b"\xa1\x7b\x00\x00\x00\x00\x00\x00\x00\x08metadata\xa0")),
    ("kobold-2", kobold(b"\xbb" + b"\x00" * 7 + b"\x01\x6etransaction_id\x60")),
    ("kobold-2", kobold(b"\xbb" + b"\x00" * 7 + b"\x01\x7b" + b"\x00" * 7 + b"\x07content\x40")),
    ("kobold-3", kobold(b"SUB a/+/c\r\n\xa0\r\n\r\n")),
    ("kobold-3", kobold(b"AUTH \r\n\xa0\r\n\r\n")),
    ("mfp-1", mfp()),
    ("mfp-1", mfp(bytes(16))),
    ("mfp-1", mfp(b"\xff" * 16)),
    ("mfp-1", mfp(payload=b"\x01\x01" + "žmogus".encode("utf-16-be"))),
    ("mfp-1", mfp(payload=b"\x01\x00")),
    ("mfp-1", mfp(length=1002)),
    ("mfp-1", mfp(b"\x01" + UID[1:])),  # looks like Boson's version 1, but for the size
    ("mfp-1", mfp(UID[:3] + b"PUBLIC" + UID[9:])),  # begins like an op
]

NO_DIALECT = [
    b"\x05",
    b"\xff",
    b"GET / HTTP/1.1\r\n",
    b"tmq/1.00",
    b"TMX/1.00",
    b"/0",
    b":0",  # just beside the digits
    b"\x05\x00\x00\x00PUB ",
    b"\x04\x00\x00\x00pub ",
    b"\x04\x00\x00\x00PUBLISH ",
    b"\x04\x00\x00\x00PUB\n",
    b"\x04\x00\x00\x00 ",
    b"\x04\x00\x00\x00\xa0\x62id",  # a map without a first key
    b"\x04\x00\x00\x00\xb8\x00\x62id",
    b"\x04\x00\x00\x00\xbc\x62id",  # not a map head
    b"\x04\x00\x00\x00\xbf\xff",
    b"\x04\x00\x00\x00\xa1\x42id",  # bytes, not text
    b"\x04\x00\x00\x00\xa1\x7f\x62id",  # text of indefinite length
    b"\x04\x00\x00\x00\xa1\x62ip",
    b"\x04\x00\x00\x00\xa1\x63idx",
    b"\x04\x00\x00\x00\xa1\x6bmessage_typ",
    mfp(kind=1),
    mfp(kind=2),
    mfp(length=1003),
    mfp(length=0xFFFFFFFF),
    mfp(payload=b"\x02" + ALICE[1:]),
    mfp(payload=b"\x01\x02" + ALICE[2:]),
    b"\x00\x03" + boson({"topic": b"t"})[2:] + bytes(23),  # an unknown version
    b"\x00\x01\x04\x00\x00\x01\x00\x01k" + bytes(23) + b"\xff",  # a size over 64 MiB
    boson({"": b"a key of no bytes"}),
    boson({"k" * 256: b""}),
    boson({"k\n": b"a key that is not printable"}),
    boson({"\x7f": b"a key that is not printable"}),
    b"\x00\x01\x00\x00\x00\x02" + b"\x00\x01\x00\x00\x00\x02" * 4,  # Boson without a property
]


@pytest.mark.parametrize(("dialect", "data"), FIRST_FRAMES)
def test_a_first_frame_is_told_by_its_first_bytes(dialect: str, data: bytes) -> None:
    assert detect(data) == dialect
    assert detect(bytearray(data)) == dialect
    assert detect(memoryview(data)) == dialect


@pytest.mark.parametrize(("dialect", "data"), FIRST_FRAMES)
def test_a_first_frame_is_told_within_its_family(dialect: str, data: bytes) -> None:
    assert detect(data, dialect.split("-")[0]) == dialect


@pytest.mark.parametrize(("dialect", "data"), FIRST_FRAMES)
def test_a_first_frame_is_never_taken_for_another(dialect: str, data: bytes) -> None:
    for family in (None, dialect.split("-")[0]):
        answers = [detect(data[:n], family) for n in range(len(data) + 1)]
        waited = answers.count(None)
        assert answers == [None] * waited + [dialect] * (len(answers) - waited)


@pytest.mark.parametrize("data", NO_DIALECT)
def test_what_no_dialect_begins_with_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        detect(data)
    error = caught.value
    assert (error.dialect, error.offset, error.answer) == ("auto", 0, b"")


@pytest.mark.parametrize("family", [None, "tmq"])
@pytest.mark.parametrize("data", [b"TMQ/2.00", b"TMQ/1.02...", b"TMQ/\n\n\n\n", b"TMQ 1.00"])
def test_an_unknown_version_of_tmq_is_answered_with_the_highest(
    data: bytes, family: str | None
) -> None:
    for n in range(8):
        assert detect(data[:n], family) is None
    with pytest.raises(ProtocolError) as caught:
        detect(data, family)
    error = caught.value
    assert (error.dialect, error.offset, error.answer) == ("tmq", 0, b"TMQ/1.01")
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("family", "data", "dialect"),
    [
        ("boson", b"7", "boson-text"),
        ("boson", b"\x00", "boson-binary"),
        ("boson", b"\x00\x09", "boson-binary"),  # the scanner answers an unknown version
        ("kobold", b"\x00\x00\x00\x0c\xa0", "kobold-2"),
        ("kobold", b"\x00\x00\x00\x0c\xbb", "kobold-2"),
        ("kobold", b"\x04\x00\x00\x0c\xbf", "kobold-2"),
        ("kobold", b"\x00\x00\x00\x0cFROB ", "kobold-3"),  # an unknown op is answered
        ("kobold", b"\x00\x00\x00\x0cFROB\r", "kobold-1"),
        ("kobold", b"\x00\x00\x00\x0cX ", "kobold-3"),
        ("kobold", b"\x00\x00\x00\x20ABCDEFGHIJKLMNOP\r", "kobold-1"),
        ("kobold", b"\x00\x00\x00\x20ABCDEFGHIJKLMNOP", None),
        ("kobold", b"\x00\x00\x00\x20", None),
        ("kobold", b"\x04", None),
        ("mfp", b"\x00", "mfp-1"),
        ("mfp", b"\xff", "mfp-1"),
        ("tmq", b"TMQ/1.0", None),
        ("tmq", b"T", None),
        ("boson", b"", None),
        ("kobold", b"", None),
        ("tmq", b"", None),
        (None, b"", None),
    ],
)
def test_a_family_needs_fewer_bytes(family: str | None, data: bytes, dialect: str | None) -> None:
    assert detect(data, family) == dialect


@pytest.mark.parametrize(
    ("family", "data"),
    [
        ("boson", b"|"),
        ("boson", b"\x01"),
        ("boson", b"TMQ/1.00"),
        ("kobold", b"\x05"),
        ("kobold", b"\x00\x00\x00\x0cpub "),
        ("kobold", b"\x00\x00\x00\x0cPUB\n"),
        ("kobold", b"\x00\x00\x00\x0cPUb "),
        ("kobold", b"\x00\x00\x00\x0c "),
        ("kobold", b"\x00\x00\x00\x0c\xbc"),
        ("kobold", b"\x00\x00\x00\x0c\x9f"),
        ("kobold", b"\x00\x00\x00\x20ABCDEFGHIJKLMNOPQ"),
        ("tmq", b"5|0|greet|hello"),
        ("tmq", b"TMX"),
    ],
)
def test_what_its_family_does_not_begin_with_is_refused(family: str, data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        detect(data, family)
    error = caught.value
    assert (error.dialect, error.offset, error.answer) == (family, 0, b"")


def test_a_family_that_does_not_exist_is_an_error_of_the_caller() -> None:
    with pytest.raises(ValueError, match="no family 'amqp'; there are boson, mfp, kobold, tmq"):
        detect(b"5", "amqp")


# First frames as clients send them, with all that may vary in them.

text = st.text(max_size=40).map(str.encode)
uids = st.binary(min_size=16, max_size=16)
printable = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=40)
frames = {
    "boson-text": st.builds(
        lambda topic, content: b"%d|0|%s|%s" % (len(content), topic.replace(b"|", b""), content),
        text,
        st.binary(max_size=40),
    ),
    "boson-binary": st.builds(
        boson,
        st.dictionaries(printable, st.binary(max_size=40), min_size=1, max_size=3),
        st.sampled_from([1, 2]),
    ),
    "kobold-1": st.builds(
        lambda op, topic, content: kobold(b"\r\n".join([op.encode(), b"", topic, content, b""])),
        st.sampled_from(OPS),
        text,
        st.binary(max_size=40),
    ),
    "kobold-2": st.builds(
        lambda keys: kobold(cbor2.dumps(dict.fromkeys(keys, 0))),
        st.permutations(KEYS),
    ),
    "kobold-3": st.builds(
        lambda op, topic, content: kobold(b"%s %s\r\n\xa0\r\n%s\r\n" % (op, topic, content)),
        st.sampled_from(OPS).map(str.encode),
        text,
        st.binary(max_size=40),
    ),
    "mfp-1": st.builds(
        lambda uid, kind, name: mfp(uid, bytes([1, kind]) + name.encode("utf-16-be")),
        uids,
        st.sampled_from([0, 1]),
        st.text(min_size=4, max_size=16),
    ),
    "tmq-1.00": st.binary(max_size=40).map(b"TMQ/1.00".__add__),
    "tmq-1.01": st.binary(max_size=40).map(b"TMQ/1.01".__add__),
}


def by_the_rules(head: bytes) -> str | None:
    """The specification's rules for all 23 bytes; None is "anything else"."""
    if head.startswith(b"TMQ"):
        return {b"/1.00": "tmq-1.00", b"/1.01": "tmq-1.01"}.get(head[3:8])
    if head[0] in b"0123456789":
        return "boson-text"
    if head[0] <= 4:
        for op in map(str.encode, OPS):
            if head[4:].startswith(op + b"\r"):
                return "kobold-1"
            if head[4:].startswith(op + b" "):
                return "kobold-3"
        if begins_with_a_key_of_kobold(head):
            return "kobold-2"
    if head[:2] in (b"\0\1", b"\0\2") and b"\0\0\0\2" <= head[2:6] <= b"\4\0\0\0":
        key = head[8 : 8 + head[7]]
        if head[6] == 0 and head[7] and key.isascii() and key.decode().isprintable():
            return "boson-binary"
    if head[0] == 0 and head[17:21] <= b"\0\0\3\xea" and head[21:] in (b"\1\0", b"\1\1"):
        return "mfp-1"
    return None


def begins_with_a_key_of_kobold(head: bytes) -> bool:
    """Whether one of all ways to write one of the keys stands behind a map head."""
    wide = {0xB8: 1, 0xB9: 2, 0xBA: 4, 0xBB: 8}.get(head[4], 0)
    if not (0xA1 <= head[4] <= 0xB7 or head[4] == 0xBF or any(head[5 : 5 + wide])):
        return False
    ways = [
        first + key.encode()
        for key in KEYS
        for first in (
            bytes([0x60 + len(key)]),
            *(bytes([0x78 + n]) + len(key).to_bytes(1 << n, "big") for n in range(4)),
        )
    ]
    shown = head[5 + wide :]
    return any(shown.startswith(way[: len(shown)]) for way in ways)


@st.composite
def damaged_frames(draw: st.DrawFn) -> bytes:
    """A first frame of any dialect, of which a few bytes were replaced."""
    data = bytearray(draw(st.one_of(*frames.values())).ljust(HEAD, b"\0"))
    places = st.integers(0, HEAD - 1)
    values = st.integers(0, 255) | st.sampled_from(b"\0\1\2\4 \rPT\x62\xa1\xb8\xbb\xbf")
    for place, value in draw(st.dictionaries(places, values, max_size=3)).items():
        data[place] = value
    return bytes(data)


@pytest.mark.parametrize("dialect", frames)
@given(data=st.data())
def test_any_first_frame_is_itself_at_every_length(dialect: str, data: st.DataObject) -> None:
    frame = data.draw(frames[dialect])
    # A uid is chance: it may spell what another rule asks for (see the last tests).
    assume(dialect != "mfp-1" or by_the_rules(frame[:HEAD]) == "mfp-1")
    for family in (None, dialect.split("-")[0]):
        assert detect(frame, family) == dialect
        assert {detect(frame[:n], family) for n in range(len(frame))} <= {None, dialect}


@given(damaged_frames())
def test_twenty_three_bytes_decide_as_the_rules_say(data: bytes) -> None:
    result = outcome(data)
    assert result is not None
    assert by_the_rules(data[:HEAD]) == (None if isinstance(result, ProtocolError) else result)


@given(damaged_frames(), st.sampled_from([None, "boson", "kobold", "mfp", "tmq"]))
def test_an_answer_once_given_holds_whatever_follows(data: bytes, family: str | None) -> None:
    answers = [key_of(outcome(data[:n], family)) for n in range(len(data) + 1)]
    waited = answers.count(None)
    assert answers == [None] * waited + [answers[-1]] * (len(answers) - waited)


@given(damaged_frames(), st.binary(max_size=20))
def test_bytes_after_the_twenty_third_are_not_looked_at(data: bytes, more: bytes) -> None:
    assert key_of(outcome(data[:HEAD] + more)) == key_of(outcome(data[:HEAD]))


def test_twenty_thousand_random_uids_are_all_of_mfp() -> None:
    chance = random.Random("mfp")
    for _ in range(20_000):
        assert detect(mfp(chance.randbytes(16))) == "mfp-1"


def test_the_rules_take_less_than_one_mfp_client_in_seven_million_for_another() -> None:
    octet = Fraction(1, 256)
    op_and_delimiter = sum(2 * octet ** (len(op) + 1) for op in OPS)
    key_and_its_head = sum(octet ** (len(key) + 1) for key in KEYS) * (1 + 4 * octet)
    map_head = 28 * octet
    version, size, key_size = 2 * octet, Fraction(1, 64), octet**2
    key = sum(Fraction(95, 256) ** n for n in range(1, 10))  # byte 17 is a 0, never printable
    mistaken = op_and_delimiter + map_head * key_and_its_head + version * size * key_size * key
    assert mistaken < Fraction(1, 7_000_000)


@pytest.mark.parametrize(
    ("place", "spelt", "dialect"),
    [
        (3, b"OK\r", "kobold-1"),
        (3, b"PUB ", "kobold-3"),
        (3, b"\xa3\x62id", "kobold-2"),
        (0, b"\x01\x00\x00\x01\x00\x00\x01k", "boson-binary"),
    ],
)
def test_a_uid_that_spells_another_dialect_is_taken_for_it(
    place: int, spelt: bytes, dialect: str
) -> None:
    uid = UID[:place] + spelt + UID[place + len(spelt) :]
    assert detect(mfp(uid)) == dialect
    assert detect(mfp(uid), "mfp") == "mfp-1"
