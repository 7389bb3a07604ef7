"""What a dialect can say comes back as it was said, however the bytes are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.reading import chunks, cut, read, single_bytes, write
from tests.wire.strategies import cuts, few_examples, messages, mfp_publishes
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.dialects.tmq.codec import TmqScanner
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


def comes_back(batch: list[Message], dialect: str, places: list[int]) -> None:
    """Assert that messages survive being written in their own dialect and read again."""
    frames = write(batch, dialect, source=dialect)
    reading = read(dialect, cut(frames, places))
    assert reading.fault is None
    # Where an mfp client sends to another address it says so first, in a frame of its own.
    assert [message for message in reading.messages if message.op != Op.TOPIC] == batch


@every_dialect
@given(data=st.data(), places=cuts)
def test_a_message_comes_back(dialect: str, data: st.DataObject, places: list[int]) -> None:
    comes_back([data.draw(messages(dialect))], dialect, places)


@every_dialect
@given(data=st.data(), places=cuts)
def test_a_batch_comes_back(dialect: str, data: st.DataObject, places: list[int]) -> None:
    comes_back(data.draw(st.lists(messages(dialect), max_size=8)), dialect, places)


@every_dialect
@few_examples
@given(data=st.data(), size=st.integers(50, 3000))
def test_a_long_stream_comes_back(dialect: str, data: st.DataObject, size: int) -> None:
    batch = data.draw(st.lists(messages(dialect), min_size=1, max_size=3)) * 100
    frames = write(batch, dialect, source=dialect)
    reading = read(dialect, chunks(frames, size), capacity=37)
    assert reading.fault is None
    assert [message for message in reading.messages if message.op != Op.TOPIC] == batch


@every_dialect
@given(data=st.data())
def test_a_scanned_table_is_encoded_to_the_bytes_it_was_scanned_from(
    dialect: str, data: st.DataObject
) -> None:
    frames = write(data.draw(st.lists(messages(dialect), max_size=5)), dialect, source=dialect)
    back = encoder(dialect)
    assert read(dialect, [frames], encode=back).encoded == frames
    assert back.skipped == {}
    assert read(dialect, single_bytes(frames), encode=encoder(dialect)).encoded == frames


@every_dialect
@given(data=st.data())
def test_chosen_rows_are_encoded_in_the_chosen_order(dialect: str, data: st.DataObject) -> None:
    batch = data.draw(st.lists(messages(dialect), min_size=1, max_size=5))
    rows = data.draw(st.lists(st.integers(0, len(batch) - 1), max_size=8))
    table = FrameTable(8)
    table.fill(batch, dialect)
    frames = bytes(encoder(dialect).encode(table, rows))
    assert frames == write([batch[row] for row in rows], dialect, source=dialect)


@every_dialect
@given(data=st.data())
def test_a_table_forgets_what_it_held_before(dialect: str, data: st.DataObject) -> None:
    batch = data.draw(st.lists(messages(dialect), min_size=1, max_size=3))
    other = data.draw(st.sampled_from(list(DIALECTS)))
    before = data.draw(st.lists(messages(other), min_size=3, max_size=3))
    fresh, used = FrameTable(3), FrameTable(3)
    used.fill(before, data.draw(st.sampled_from([other, dialect])))
    fresh.fill(batch, dialect)
    used.fill(batch, dialect)
    assert list(used.messages()) == list(fresh.messages())
    assert bytes(encoder(dialect).encode(used)) == bytes(encoder(dialect).encode(fresh))


@given(st.lists(mfp_publishes(st.sampled_from(["", "a", "b/c"])), max_size=8), cuts)
def test_an_mfp_client_sets_the_topic_only_when_it_changes(
    batch: list[Message], places: list[int]
) -> None:
    expected: list[str] = []
    topic = ""
    for message in batch:
        if message.address != topic:
            topic = message.address
            expected.append(f"topic {topic}")
        expected.append(f"publish {topic}")
    reading = read("mfp-1", cut(write(batch, "mfp-1", source="mfp-1"), places))
    assert [f"{message.op.label} {message.address}" for message in reading.messages] == expected


def test_an_mfp_broker_sets_no_topic_and_asks_for_no_acknowledgement() -> None:
    uid = "0123456789abcdef" * 2
    batch = [Message(address="a", id=uid, payload=b"x", flags=Flag.ACK | Flag.TEXT)]
    (message,) = read("mfp-1", [write(batch, "mfp-1", source="mfp-1", client=False)]).messages
    assert message == Message(id=uid, payload=b"x", flags=Flag.TEXT, dialect="mfp-1")


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-2", "kobold-3", "boson-binary"])
def test_a_broker_does_not_pass_on_that_a_publisher_wanted_an_answer(dialect: str) -> None:
    batch = [Message(address="a", flags=Flag.ACK), Message(op=Op.DELIVER, flags=Flag.ACK)]
    reading = read(dialect, [write(batch, dialect, source=dialect, client=False)])
    assert [Flag.ACK in message.flags for message in reading.messages] == [False, True]


@pytest.mark.parametrize("dialect", ["tmq-1.00", "tmq-1.01"])
def test_a_tmq_broker_sets_the_flags_itself_and_takes_a_hop(dialect: str) -> None:
    batch = [
        Message(address="a", flags=Flag.ACK | Flag.FIRST, ttl=5),
        Message(op=Op.DELIVER, address="a", id="m-1", ttl=5),
    ]
    reading = read(dialect, [write(batch, dialect, source=dialect, client=False)])
    assert [(m.op, m.flags, m.ttl) for m in reading.messages] == [
        (Op.PUBLISH, Flag(0), 4),
        (Op.PUBLISH, Flag.ACK, 4),
    ]


@given(cuts)
def test_a_boson_topic_holds_for_the_messages_after_it(places: list[int]) -> None:
    stream = b"1|0||a3|0|$topic|b/c1|0||d1|0|e|f2|m||gh1|m||i0|00|0|$topic|1|0||j"
    reading = read("boson-text", cut(stream, places))
    assert reading.fault is None
    assert [(m.op, m.address, m.payload) for m in reading.messages] == [
        (Op.PUBLISH, "boson", b"a"),
        (Op.TOPIC, "b/c", b""),
        (Op.PUBLISH, "b/c", b"d"),
        (Op.PUBLISH, "e", b"f"),
        (Op.PUBLISH, "b/c", b"ghi"),
        (Op.TOPIC, "", b""),
        (Op.PUBLISH, "boson", b"j"),
    ]


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-2", "kobold-3"])
@given(data=st.data(), places=cuts)
def test_a_kobold_connection_is_answered_in_kind(
    dialect: str, data: st.DataObject, places: list[int]
) -> None:
    batch = data.draw(st.lists(messages(dialect), min_size=1, max_size=3))
    table = FrameTable(3)
    table.fill(batch, dialect)
    inclusive = encoder(dialect)
    inclusive.set_variant("inclusive")
    frames = bytes(inclusive.encode(table))
    assert int.from_bytes(frames[:4], "big") == len(write(batch[:1], dialect, source=dialect))
    reading = read(dialect, cut(frames, places), encode=inclusive)
    assert reading.scanner.inclusive  # type: ignore[attr-defined]
    assert reading.messages == batch
    assert reading.encoded == frames


HELLO = Message(op=Op.HELLO, content_type=101, payload=b"Client-Id: c\r\n", dialect="tmq-1.01")


@given(data=st.data(), places=cuts, capacity=st.integers(1, 4))
def test_a_little_endian_tmq_connection_is_read_and_answered_in_kind(
    data: st.DataObject, places: list[int], capacity: int
) -> None:
    """spec: tmq 2: Hello tells the order, wherever the bytes are cut."""
    batch = [HELLO, *data.draw(st.lists(messages("tmq-1.01"), max_size=5))]
    table = FrameTable(8)
    table.fill(batch, "tmq-1.01")
    little = encoder("tmq-1.01")
    little.set_variant("little")
    frames = bytes(little.encode(table))
    assert frames[5:7] == b"\x65\0"
    assert len(frames) == len(write(batch, "tmq-1.01", source="tmq-1.01"))
    reading = read("tmq-1.01", cut(frames, places), capacity=capacity, encode=little)
    assert reading.fault is None
    assert reading.scanner.little  # type: ignore[attr-defined]
    assert reading.messages == batch
    assert reading.encoded == frames


#: How many octets the length of a payload takes, without the marker before it.
WIDTHS = {252: 1, 253: 2, 0xFFFF: 2, 0x10000: 4, 0x12345: 4}


@pytest.mark.parametrize("size", WIDTHS)
def test_long_payloads_come_back_in_little_endian(size: int) -> None:  # spec: tmq 2
    batch = [HELLO, Message(address="q", payload=b"x" * size, dialect="tmq-1.01")]
    frames = write(batch, "tmq-1.01", source="tmq-1.01", little=True)
    reading = read("tmq-1.01", chunks(frames, 1000))
    assert reading.messages == batch
    length = frames[len(frames) - size - 1 - WIDTHS[size] : len(frames) - size - 1]
    assert length == size.to_bytes(WIDTHS[size], "little")


def test_the_answer_to_hello_tells_the_order_too() -> None:  # decision 65
    accepted = Message(op=Op.OK, target="c", content_type=202, dialect="tmq-1.01")
    answered = [accepted, Message(op=Op.DIRECT, target="c", content_type=7, dialect="tmq-1.01")]
    for little in (False, True):
        frames = write(answered, "tmq-1.01", source="tmq-1.01", client=False, little=little)
        assert read("tmq-1.01", single_bytes(frames)).messages == answered


def test_a_scanner_can_be_told_the_order_and_1_00_has_only_one() -> None:  # spec: tmq 2
    frame = bytes.fromhex("1110000001010200") + b"q"
    table = FrameTable(1)
    for little, content_type in [(False, 0x0102), (True, 0x0201)]:
        reader = TmqScanner("tmq-1.01")
        reader.set_variant("little" if little else "")
        assert reader.scan(frame, table) == len(frame)
        assert table.message(0).content_type == content_type
    with pytest.raises(ValueError, match="no variant"):
        TmqScanner("tmq-1.00").set_variant("little")
    old = encoder("tmq-1.00")
    old.set_variant("little")
    assert bytes(old.encode(table)) == bytes.fromhex("1110000001020100") + b"q"


@pytest.mark.parametrize("dialect", ["tmq-1.00", "tmq-1.01"])
@pytest.mark.parametrize("word", [b"FAILED", b"timeout"])
def test_a_payload_of_another_dialect_never_turns_an_ack_into_a_refusal(
    dialect: str, word: bytes
) -> None:
    """spec: tmq 7: the payload alone tells them apart, so the encoder minds it."""
    ops = [Message(op=Op.ACK, address="q", id="1", payload=word), Message(op=Op.NACK, address="q")]
    reading = read(dialect, [write(ops, dialect)])
    assert [(message.op, message.payload) for message in reading.messages] == [
        (Op.ACK, b""),
        (Op.NACK, b"FAILED"),
    ]
