"""From every dialect to every other: what survives is what docs/translation.md says."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.wire.reading import read, write
from tests.wire.strategies import PARAMETERS, few_examples, payloads, publishes, text
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.dialects.mfp.codec import MfpEncoder
from wirelake.message import OP_LABELS, Flag, Message, Op, Parameters
from wirelake.wire import FrameTable
from wirelake.wire.parameters import headers_of, split

PAGE = Path(__file__).parent.parent.parent / "docs" / "translation.md"
PAIRS = [(source, target) for source in DIALECTS for target in DIALECTS]
HOPS = 16  # what a message of another family starts with in TMQ

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
every_pair = pytest.mark.parametrize(
    ("source", "target"), PAIRS, ids=[f"{source} to {target}" for source, target in PAIRS]
)


def table_of(heading: str) -> dict[str, dict[str, str]]:
    """The first table under a heading of the page: what it says, by row and dialect."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line] for line in lines]
    assert head[1:] == list(DIALECTS)
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}


FIELDS = table_of("Fields of a published message")
OPS = table_of("Ops")


def lives(ttl: int, given: str, told: str) -> int:
    """A time to live that was given in one unit and told in another."""
    if told == "s" and given in ("s", "ms"):
        return min(-(-ttl // 1000), 2_147_483) * 1000
    if told == "ms" and given == "s":
        return ttl
    return ttl if given == told else HOPS if told == "hops" else 0


def arrived(message: Message, source: str, target: str) -> Message:
    """What the page says of a publish that went from one dialect (if any) to another."""
    says = {field: cells[target] for field, cells in FIELDS.items()}
    units = FIELDS["ttl"].get(source, "ms"), says["ttl"]
    return Message(
        address=message.address,
        payload=message.payload,
        id=message.id if says["id"] == "yes" or source == target == "mfp-1" else "",
        correlation_id=message.correlation_id if says["correlation_id"] == "yes" else "",
        source=message.source if says["source"] == "yes" else "",
        target=message.target if says["target"] == "yes" else "",
        content_type=message.content_type if says["content_type"] == "yes" else 0,
        priority=message.priority if says["priority"] == "yes" else 0,
        ttl=lives(message.ttl, *units),
        headers=message.headers if says["headers"] == "yes" else {},
        flags=Flag(message.flags & Flag.ACK) if says["ack"] == "yes" else Flag(0),
        dialect=target,
        op=Op.PUBLISH,
    )


def comparable(message: Message, keeps_uid: bool) -> Message:
    """A message without what a dialect makes up: mfp's uids and mark of text, MQTT's QoS."""
    is_new = message.dialect == "mfp-1" and not keeps_uid
    return replace(
        message,
        id="" if is_new else message.id,
        flags=Flag(message.flags & Flag.ACK),
        headers={name: text for name, text in message.headers.items() if name != "mqtt.qos"},
        ticket=0,
    )


def published(messages: list[Message]) -> list[Message]:
    """Without the frames in which an mfp client sets its topic."""
    return [message for message in messages if message.op != Op.TOPIC]


def unsayable_topics(messages: list[Message], target: str) -> dict[str, int]:
    """What an encoder counts of those frames."""
    topics = len(messages) - len(published(messages)) if OPS["topic"][target] == "no" else 0
    return {"op": topics} if topics else {}


def test_the_page_names_every_field_and_every_op() -> None:
    assert set(OPS) == set(OP_LABELS)
    others = {"flags", "timestamp", "dialect", "op", "ticket", "parameters"}
    fields = set(Message.__struct_fields__) - others
    assert set(FIELDS) == fields | {"ack"}


@every_dialect
@given(st.lists(publishes, max_size=4))
def test_a_dialect_carries_the_fields_that_the_page_says(
    dialect: str, batch: list[Message]
) -> None:
    reading = read(dialect, [write(batch, dialect)])
    assert reading.fault is None
    shown = [comparable(message, False) for message in published(reading.messages)]
    assert shown == [arrived(message, "", dialect) for message in batch]


@every_pair
@few_examples
@given(batch=st.lists(publishes, max_size=3))
def test_a_publish_arrives_as_the_page_says(source: str, target: str, batch: list[Message]) -> None:
    translate = encoder(target)
    first = read(source, [write(batch, source)], encode=translate)
    second = read(target, [first.encoded])
    assert first.fault is None
    assert second.fault is None
    assert translate.skipped == unsayable_topics(first.messages, target)
    sent, got = published(first.messages), published(second.messages)
    assert [message.address for message in got] == [message.address for message in batch]
    assert [message.payload for message in got] == [message.payload for message in batch]
    expected = [comparable(arrived(message, source, target), True) for message in sent]
    assert [comparable(message, source == "mfp-1") for message in got] == expected


@every_dialect
@pytest.mark.parametrize("op", Op)
def test_an_op_is_said_as_the_page_says(op: Op, dialect: str) -> None:
    uid = "0123456789abcdef" * 2
    message = Message(
        op=op, address="a/b", payload=b"x", id=uid, correlation_id=uid, source="alice", target="bob"
    )
    table = FrameTable(1)
    table.fill([message])
    encode = encoder(dialect)
    reading = read(dialect, [bytes(encode.encode(table))])
    assert reading.fault is None
    cell = OPS[op.label][dialect]
    if cell == "no":
        assert reading.messages == []
        assert encode.skipped == {"op": 1}
    else:
        shown = [each for each in reading.messages if each.op != Op.TOPIC or op == Op.TOPIC]
        assert [each.op.label for each in shown] == [op.label if cell == "yes" else cell]
        assert encode.skipped == {}


def pairs_that_have(op: str) -> list[tuple[str, str]]:
    """Pairs of dialects where one has the op, and the other has it or a form of it."""
    return [(one, two) for one, two in PAIRS if OPS[op][one] == "yes" and OPS[op][two] != "no"]


def there(message: Message, source: str, target: str) -> tuple[Message, Message]:
    """A message as read in one dialect, and then in another."""
    translate = encoder(target)
    first = read(source, [write([message], source)], encode=translate)
    second = read(target, [first.encoded])
    assert (first.fault, second.fault, translate.skipped) == (None, None, {})
    (sent,) = first.messages
    (got,) = second.messages
    return sent, got


@pytest.mark.parametrize(("source", "target"), pairs_that_have("request"))
@few_examples
@given(payload=payloads)
def test_a_request_keeps_its_correlation_id(source: str, target: str, payload: bytes) -> None:
    request = Message(op=Op.REQUEST, address="svc/ž", correlation_id="a.B-3_", payload=payload)
    sent, got = there(request, source, target)
    for message in sent, got:
        assert message.address == "svc/ž"
        assert message.payload == payload
        assert message.correlation_id == "a.B-3_"
    assert sent.op == Op.REQUEST
    if target.startswith("tmq"):  # it says only that a response is wanted
        assert (got.op, got.id, got.flags) == (Op.PUBLISH, "a.B-3_", Flag.RESPONSE)
    else:
        assert got.op == Op.REQUEST


@pytest.mark.parametrize(("source", "target"), pairs_that_have("reply"))
@few_examples
@given(payload=payloads)
def test_a_reply_keeps_its_correlation_id(source: str, target: str, payload: bytes) -> None:
    reply = Message(op=Op.REPLY, correlation_id="a.B-3_", payload=payload, target="asker")
    for message in there(reply, source, target):
        assert (message.op, message.payload, message.correlation_id) == (
            Op.REPLY,
            payload,
            "a.B-3_",
        )


@pytest.mark.parametrize("op", [Op.SUBSCRIBE, Op.UNSUBSCRIBE])
@every_pair
def test_a_filter_keeps_its_address(source: str, target: str, op: Op) -> None:
    for address in ("a/+/ž/#", "") if op == Op.UNSUBSCRIBE else ("a/+/ž/#", "$node"):
        for message in there(Message(op=op, address=address), source, target):
            assert (message.op, message.address, message.payload) == (op, address, b"")


@pytest.mark.parametrize(
    ("op", "source", "target"),
    [(op, *pair) for op in (Op.OK, Op.ERROR) for pair in pairs_that_have(op.label)],
)
def test_an_answer_stays_an_answer(source: str, target: str, op: Op) -> None:
    uid = "00112233445566778899aabbccddeeff"
    answer = Message(op=op, id=uid, payload=b"why", parameters=Parameters(code="not_found"))
    if target == "mfp-1" and FIELDS["id"][source] == "no":
        return  # it has no place for the uid that mfp needs
    sent, got = there(answer, source, target)
    assert (sent.op, got.op) == (op, op)
    if "mfp-1" not in (source, target):
        assert got.payload == b"why"
    if op == Op.ERROR:
        coded = {"boson-text", "boson-binary", "kobold-1", "kobold-2", "kobold-3"}
        if {source, target} <= coded:
            assert got.parameters == Parameters(code="not_found")
        elif target.startswith("tmq"):
            known = source in coded or source.startswith("tmq")
            assert got.content_type == (404 if known else 503)


@pytest.mark.parametrize("op", [Op.ACK, Op.NACK])
@pytest.mark.parametrize(("source", "target"), pairs_that_have("ack"))
def test_an_acknowledgement_keeps_queue_and_id(source: str, target: str, op: Op) -> None:
    for message in there(Message(op=op, address="jobs/ž", id="m-1"), source, target):
        assert (message.op, message.address, message.id) == (op, "jobs/ž", "m-1")


@every_pair
def test_a_queue_message_is_delivered_in_the_form_that_the_target_has(
    source: str, target: str
) -> None:
    message = Message(op=Op.DELIVER, address="jobs", payload=b"x", id="m-1")
    translate = encoder(target)
    first = read(source, [write([message], source)], encode=translate)
    second = read(target, [first.encoded])
    got = published(second.messages)
    assert [(each.address, each.payload) for each in got] == [("jobs", b"x")]
    assert translate.skipped == unsayable_topics(first.messages, target)


KEYED = [dialect for dialect in DIALECTS if FIELDS["headers"][dialect] == "yes"]
#: Those that have a place for the parameters of ops: MQTT's user properties are the user's.
WITH_PARAMETERS = [dialect for dialect in KEYED if OPS["update"][dialect] == "yes"]


@pytest.mark.parametrize("target", WITH_PARAMETERS)
@pytest.mark.parametrize("source", WITH_PARAMETERS)
def test_parameters_keep_their_meaning(source: str, target: str) -> None:
    parameters = {f"${name}": f"value of {name}" for name in PARAMETERS}
    own, said = split({**parameters, "k": "v"}, Op.OK)
    for message in there(Message(op=Op.OK, headers=own, parameters=said), source, target):
        assert headers_of(message) == {**parameters, "k": "v"}


KOBOLDS = [dialect for dialect in DIALECTS if dialect.startswith("kobold")]


@pytest.mark.parametrize("kobold", KOBOLDS)
def test_a_header_with_a_name_that_is_reserved_in_kobold_is_dropped(kobold: str) -> None:
    mine = {"id": "1", "tx": "2", "ttl": "x", "prio": "9", "token": "t", "rev": "3", "idx": "kept"}
    sent, got = there(Message(address="a", headers=mine), "boson-binary", kobold)
    assert sent.headers == mine
    assert got.headers == {"idx": "kept"}
    assert (got.id, got.correlation_id, got.ttl, got.priority) == ("", "", 0, 0)


@pytest.mark.parametrize("kobold", KOBOLDS)
def test_a_header_with_a_name_that_is_reserved_in_boson_is_dropped(kobold: str) -> None:
    mine = {"topic": "1", "content": "2", "hbf.op": "x", "hbf.id": "9", "hbf.mine": "kept"}
    sent, got = there(Message(address="a", headers=mine), kobold, "boson-binary")
    assert sent.headers == mine
    assert got.headers == {"hbf.mine": "kept"}
    assert (got.address, got.payload, got.op, got.id) == ("a", b"", Op.PUBLISH, "")


@pytest.mark.parametrize("dialect", KEYED)
def test_a_user_cannot_pose_a_header_as_a_parameter(dialect: str) -> None:
    frames = write([Message(address="a", headers={"Xtoken": "stolen", "k": "v"})], dialect)
    (message,) = read(dialect, [frames.replace(b"Xtoken", b"$token")]).messages
    assert message.headers == {"k": "v"}


@pytest.mark.parametrize("target", ["kobold-2", "kobold-3", "mqtt-5"])
def test_a_header_without_a_name_stays_where_it_can(target: str) -> None:
    sent, got = there(Message(address="a", headers={"": "v", "k": "w"}), "kobold-2", target)
    assert sent.headers == got.headers == {"": "v", "k": "w"}


@pytest.mark.parametrize("target", ["kobold-1", "boson-binary"])
def test_a_header_without_a_name_is_dropped_elsewhere(target: str) -> None:
    _, got = there(Message(address="a", headers={"": "v", "k": "w"}), "kobold-2", target)
    assert got.headers == {"k": "w"}


UNSAYABLE = [
    ("boson-text", "address", Message(address="a|b")),
    ("boson-text", "address", Message(address="$ok")),
    ("boson-text", "address", Message(address="")),
    ("boson-text", "address", Message(op=Op.REQUEST, address="a|b", correlation_id="1")),
    ("boson-text", "id", Message(op=Op.REQUEST, address="a", correlation_id="a/b")),
    ("boson-text", "id", Message(op=Op.REQUEST, address="a", correlation_id="x" * 65)),
    ("boson-text", "id", Message(op=Op.REPLY, correlation_id="")),
    ("boson-binary", "address", Message(address="")),
    ("mfp-1", "address", Message(address="ž" * 64 + "x")),
    ("mfp-1", "address", Message(op=Op.SUBSCRIBE, address="x" * 129)),
    ("mfp-1", "payload", Message(address="a", payload=b"x" * 1001)),
    ("mfp-1", "id", Message(op=Op.OK, id="7")),
    ("mfp-1", "id", Message(op=Op.ERROR, id="x" * 32)),
    ("mfp-1", "id", Message(op=Op.ERROR, id="ab " * 10 + "ab")),
    ("mfp-1", "id", Message(op=Op.HANDSHAKE, source="abc")),
    ("kobold-1", "address", Message(address="a\r\nb")),
    ("kobold-3", "address", Message(address="a\r\nb")),
    ("tmq-1.00", "address", Message(address="x" * 256)),
    ("tmq-1.01", "address", Message(address="x" * 256)),
    ("tmq-1.01", "id", Message(address="a", id="x" * 256)),
    ("tmq-1.01", "id", Message(address="a", source="x" * 256)),
    ("tmq-1.00", "id", Message(op=Op.DIRECT, target="x" * 256)),
    ("mqtt-3.1.1", "address", Message(address="")),
    ("mqtt-3.1.1", "address", Message(address="a\0b")),
    ("mqtt-5", "address", Message(address="")),
    ("mqtt-5", "address", Message(address="x" * 65_536)),
    ("mqtt-5", "address", Message(op=Op.SUBSCRIBE, address="a\0b")),
    ("mqtt-3.1.1", "id", Message(address="a", correlation_id="x" * 65_536)),
    ("mqtt-5", "id", Message(address="a", correlation_id="x" * 65_536)),
]


@pytest.mark.parametrize(
    ("target", "reason", "message"),
    UNSAYABLE,
    ids=[f"{target}-{reason}-{n}" for n, (target, reason, _) in enumerate(UNSAYABLE)],
)
def test_what_cannot_be_said_is_left_out_and_counted(
    target: str, reason: str, message: Message
) -> None:
    table = FrameTable(3)
    table.fill([Message(address="a", payload=b"1"), message, Message(address="a", payload=b"2")])
    encode = encoder(target)
    frames = bytes(encode.encode(table))
    assert encode.skipped == {reason: 1}
    got = published(read(target, [frames]).messages)
    assert [(each.address, each.payload) for each in got] == [("a", b"1"), ("a", b"2")]
    encode.encode(table)
    assert encode.skipped == {reason: 2}


def reason_to_leave_out(message: Message, target: str) -> str | None:
    """What the page says of a publish that cannot be said."""
    address, octets = message.address, len(message.address.encode())
    if target == "boson-text" and ("|" in address or address.startswith("$") or not address):
        return "address"
    if target == "boson-binary" and not address:
        return "address"
    if target == "mfp-1":
        return "payload" if len(message.payload) > 1000 else "address" if octets > 128 else None
    if target in ("kobold-1", "kobold-3") and "\r\n" in address:
        return "address"
    if target.startswith("tmq") and len(message.id.encode()) > 255:
        return "id"
    if target.startswith("mqtt") and (not address or "\0" in address):
        return "address"
    return None


_awkward = st.builds(
    Message,
    address=st.one_of(
        st.sampled_from(["", "a", "a|b", "$a", "a$", "a\r\nb", "a\rb\n", "ž" * 64, "ž" * 64 + "x"]),
        text(255),
    ),
    payload=st.sampled_from([b"", b"x", b"x" * 1000, b"x" * 1001, b"\r\n|"]),
    id=st.sampled_from(["", "7", "x" * 255, "x" * 256]),
)


@every_dialect
@given(batch=st.lists(_awkward, max_size=8))
def test_the_rest_of_a_batch_arrives_where_some_cannot(dialect: str, batch: list[Message]) -> None:
    translate = encoder(dialect)
    sent = read("kobold-2", [write(batch, "kobold-2")], encode=translate)
    assert (sent.fault, len(sent.messages)) == (None, len(batch))
    got = published(read(dialect, [sent.encoded]).messages)
    reasons = [reason_to_leave_out(message, dialect) for message in batch]
    kept = [message for message, reason in zip(batch, reasons, strict=True) if reason is None]
    assert [(m.address, m.payload) for m in got] == [(m.address, m.payload) for m in kept]
    assert translate.skipped == Counter(filter(None, reasons))


def test_every_row_of_what_cannot_be_said_is_tested() -> None:
    section = PAGE.read_text(encoding="utf-8").split("\n## What cannot be said\n")[1]
    listed = {
        (target, cells[3].strip().strip("`"))
        for cells in (line.split("|") for line in section.strip().split("\n\n")[0].splitlines()[2:])
        for target in cells[1].strip().split(", ")
        if target != "every one"
    }
    assert listed == {(target, reason) for target, reason, _ in UNSAYABLE}


def test_no_hop_count_becomes_a_time_and_no_time_a_hop_count() -> None:
    tmq = Message(address="a", ttl=5)
    for source in ("tmq-1.00", "tmq-1.01"):
        for target, ttl in (("kobold-3", 0), ("boson-binary", 0), ("tmq-1.00", 5), ("tmq-1.01", 5)):
            frames = write([tmq], source, source=source)
            translate = encoder(target)
            (message,) = read(target, [read(source, [frames], encode=translate).encoded]).messages
            assert message.ttl == ttl


def test_a_direct_message_goes_to_its_target_in_kobold() -> None:
    message = Message(op=Op.DIRECT, target="bob", source="alice", payload=b"hi")
    for kobold in KOBOLDS:
        translate = encoder(kobold)
        frames = write([message], "tmq-1.01")
        got = read(kobold, [read("tmq-1.01", [frames], encode=translate).encoded]).messages
        assert [(m.op, m.target, m.source, m.payload) for m in got] == [
            (Op.PUBLISH, "bob", "alice", b"hi")
        ]


@pytest.mark.parametrize(
    ("payload", "sizes"),
    [
        (b"x" * 1000, [1000]),
        (b"x" * 1001, [1000, 1]),
        (("x" + "ž" * 1000).encode(), [999, 1000, 2]),
        ("€".encode() * 700, [999, 999, 102]),
        (("xx" + "😀" * 500).encode(), [998, 1000, 4]),
        (b"\x80" * 2001, [1000, 1000, 1]),
        (b"", [0]),
    ],
)
def test_an_oversize_payload_can_be_split_for_mfp(payload: bytes, sizes: list[int]) -> None:
    table = FrameTable(1)
    table.fill([Message(address="a", payload=payload)], "kobold-3")
    encode = MfpEncoder("mfp-1", True)
    encode.prepare(bytes(8), split=True)
    parts = published(read("mfp-1", [bytes(encode.encode(table))]).messages)
    assert b"".join(part.payload for part in parts) == payload
    assert [len(part.payload) for part in parts] == sizes
    assert len({part.id for part in parts}) == len(parts)
    is_text = b"\x80" * 3 not in payload
    for part in parts:
        assert (Flag.TEXT in part.flags) == is_text
        if is_text:
            part.payload.decode()  # never cut inside a character


def test_what_is_marked_as_text_but_is_not_is_split_too() -> None:
    body = b"\x80" * 2500
    table = FrameTable(1)
    flags = Flag.TEXT | Flag.OVERSIZE
    table.fill([Message(id="ab" * 16, payload=body, flags=flags)], "mfp-1")
    encode = MfpEncoder("mfp-1", False)
    encode.prepare(bytes(8), split=True)
    parts = read("mfp-1", [bytes(encode.encode(table))]).messages
    assert b"".join(part.payload for part in parts) == body
    assert all(997 <= len(part.payload) <= 1000 for part in parts[:-1])


def test_a_tmq_handshake_is_said_at_the_beginning_only() -> None:
    table = FrameTable(2)
    table.fill([Message(op=Op.HANDSHAKE), Message(op=Op.HANDSHAKE)])
    encode = encoder("tmq-1.01")
    assert bytes(encode.encode(table)) == b"TMQ/1.01"
    assert encode.skipped == {"op": 1}
