"""A feed keeps what is not complete yet, and tells the dialect where it is not given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.reading import cut, read, single_bytes, write
from tests.wire.strategies import cuts, messages
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed, scanner
from wirelake.errors import ProtocolError
from wirelake.message import Message, Op
from wirelake.wire import FrameTable

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)


@every_dialect
@given(data=st.data(), places=cuts, capacity=st.integers(1, 4))
def test_a_feed_gives_what_a_scanner_reads(
    dialect: str, data: st.DataObject, places: list[int], capacity: int
) -> None:
    batch = data.draw(st.lists(messages(dialect), max_size=4))
    frames = write(batch, dialect, source=dialect)
    feed = Feed(dialect, capacity=capacity)
    got: list[Message] = []
    for piece in cut(frames, places):
        for table in feed.receive(piece):
            got += table.messages()
    for table in feed.finish():
        got += table.messages()
    assert got == read(dialect, [frames]).messages


STREAMS = {
    "boson-text": b"5|0|greet|hello",
    "boson-binary": write([Message(address="greet", payload=b"hello")], "boson-binary"),
    "mfp-1": write([Message(op=Op.HANDSHAKE, source="alice")], "mfp-1"),
    "kobold-1": write([Message(address="greet", payload=b"hello")], "kobold-1"),
    "kobold-2": write([Message(address="greet", payload=b"hello")], "kobold-2"),
    "kobold-3": write([Message(address="greet", payload=b"hello")], "kobold-3"),
    "tmq-1.00": b"TMQ/1.00",
    "tmq-1.01": b"TMQ/1.01",
    "mqtt-3.1.1": write([Message(op=Op.HANDSHAKE, source="alice")], "mqtt-3.1.1"),
    "mqtt-5": write([Message(op=Op.HANDSHAKE, source="alice")], "mqtt-5"),
}


@every_dialect
def test_a_feed_tells_the_dialect_from_the_first_bytes(dialect: str) -> None:
    feed = Feed()
    count = 0
    for piece in single_bytes(STREAMS[dialect]):
        count += sum(len(table) for table in feed.receive(piece))
    count += sum(len(table) for table in feed.finish())
    assert (feed.dialect, count) == (dialect, 1)


def test_a_feed_knows_where_in_the_stream_a_table_begins() -> None:
    frame = STREAMS["boson-text"]
    feed = Feed("boson-text", capacity=2)
    places = []
    for piece in (frame * 3 + frame[:4], frame[4:]):
        for table in feed.receive(piece):
            places += [feed.base + table.frame_at[row] for row in range(len(table))]
    assert places == [len(frame) * n for n in range(4)]


def test_too_little_to_tell_is_an_error_at_the_end() -> None:
    feed = Feed()
    assert list(feed.receive(b"\x00")) == []
    assert feed.dialect is None
    with pytest.raises(ProtocolError, match="too short to tell"):
        list(feed.finish())
    assert list(Feed().finish()) == []


@pytest.mark.parametrize(("together", "rows"), [(False, 4), (True, 1 + 3 * 16)])
@pytest.mark.parametrize("op", [Op.ENQUEUE, Op.ACK])
def test_rows_that_are_done_together_are_read_in_larger_steps(
    op: Op, together: bool, rows: int
) -> None:
    data = write([Message("q", b"", id="1", op=op)] * 100, "kobold-3")
    scan = scanner("kobold-3")
    scan.most_others, scan.together = 4, together
    table = FrameTable()
    scan.scan(data, table)
    assert (table.count, scan.again) == (rows, True)


@pytest.mark.parametrize(
    "messages",
    [
        [Message("q", op=Op.PING)],
        [Message(f"q{k}", id="1", op=Op.ENQUEUE) for k in range(10)],
        [Message("q", id="1", op=Op.ENQUEUE), Message("q", id="1", op=Op.ACK)],
    ],
    ids=["pings", "other queues", "other ops"],
)
def test_other_rows_are_read_in_small_steps_all_the_same(messages: list[Message]) -> None:
    data = write(messages * 100, "kobold-3")
    scan = scanner("kobold-3")
    scan.most_others, scan.together = 4, True
    table = FrameTable()
    scan.scan(data, table)
    assert table.count == 4
