"""A stream that is split is the same stream; without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.wire.reading import write
from tests.wire.strategies import messages
from tests.wire.vectors import load
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed, detect, encoder
from wirelake.errors import EngineError, ProtocolError
from wirelake.message import Message, Op
from wirelake.spark.spans import (
    PROOF,
    Index,
    State,
    batches,
    index,
    index_stretch,
    joined,
    whole,
)
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA, to_arrow

CAPTURES = sorted((Path(__file__).parents[2] / "examples" / "captures").iterdir())
VECTORS = [vector for which in ("spec", "own") for vector in load(which)]

thorough = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)


def decoded(data: bytes, found: Index) -> pa.Table:
    """What the spans of a stream hold, decoded in any order."""
    parts = [
        batch for span in reversed(found.spans) for batch in batches(span, memoryview(data), 0, 0)
    ]
    return pa.Table.from_batches(parts, SCHEMA).sort_by("offset")


def inspected(data: bytes, dialect: str) -> tuple[pa.Table, tuple[int, str] | None]:
    """What `wirelake inspect` reads, as rows of the log, and how it breaks."""
    feed = Feed(dialect)
    parts: list[pa.RecordBatch] = []
    fault = None
    try:
        for step in (feed.receive(data), feed.finish()):
            for table in step:
                parts.append(to_arrow(table, offset=sum(part.num_rows for part in parts)))
    except ProtocolError as error:
        fault = error.offset, error.reason
    return pa.Table.from_batches(parts, SCHEMA), fault


def check(data: bytes, dialect: str, step: int) -> Index:
    """Assert that a stream split every so many bytes is what it is in one."""
    found = index(whole(memoryview(data)), State(dialect), step)
    rows, fault = inspected(data, dialect)
    assert decoded(data, found).equals(rows)
    assert (found.fault and (found.fault.offset, found.fault.reason)) == fault
    assert found.messages == rows.num_rows
    assert [span.first for span in found.spans] == sorted({span.first for span in found.spans})
    return found


@pytest.mark.parametrize("dialect", DIALECTS)
@given(data=st.data())
@thorough
def test_split_or_not_the_rows_are_those_that_inspect_shows(
    dialect: str, data: st.DataObject
) -> None:
    batch = data.draw(st.lists(messages(dialect), max_size=12))
    frames = write(batch, dialect)
    tail = data.draw(st.sampled_from([b"", b"\xff\xff\xff\xff\xff", frames[: len(frames) // 2]]))
    check(frames + tail, dialect, data.draw(st.integers(1, 300)))


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_every_example_is_split_at_every_message(path: Path) -> None:
    data = path.read_bytes()
    dialect = detect(data)
    assert dialect is not None
    found = check(data, dialect, 1)
    assert len(found.spans) > 1


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.dialect}: {vector.name}")
def test_every_vector_is_read_as_inspect_reads_it(vector: object) -> None:
    check(vector.data, vector.dialect, 1)  # type: ignore[attr-defined]  # it is a Vector


SEQUENCES = (
    b"5|0|$topic|first3|0||one4|m|t|abcd3|m||efg0|0||2|mm|u|hi3|mm||you0|0"
    b"6|m||$topic1|0||x6|0|$topic|second3|0||two2|mm||ab1|mm||c1|0||d3|0|w|end"
)


@given(step=st.integers(1, len(SEQUENCES)), end=st.integers(0, len(SEQUENCES)))
@thorough
def test_a_boson_text_sequence_is_never_split(step: int, end: int) -> None:
    check(SEQUENCES[:end], "boson-text", step)


def test_a_sequence_longer_than_a_table_is_never_split() -> None:
    parts = b"1|mm|t|a" + b"1|mm||b" * 9000 + b"0|0"
    found = check(b"1|0|u|x" + parts + b"1|0|u|y" * 3, "boson-text", 100)
    assert [span.messages for span in found.spans] == [9002, 3]


def test_messages_behind_a_split_keep_the_topic_that_was_set_before() -> None:
    topics = ["a/b"] * 3 + ["c"] * 3
    data = write([Message(address=topic, payload=b"x") for topic in topics], "mfp-1")
    found = check(data, "mfp-1", 1)
    rows = decoded(data, found).to_pylist()
    assert [row["address"] for row in rows if row["op"] == "publish"] == topics


def test_messages_behind_a_split_keep_the_aliases_that_were_set_before() -> None:
    """mqtt-5: topic a/b as alias 1, c as 2; each used; then 1 stands for another topic."""
    sets = "300a0003612f620323000131", "30080001630323000231", "30080001640323000132"
    uses = "300700000323000132", "300700000323000233"
    data = bytes.fromhex(sets[0] + sets[1] + uses[0] + uses[1] + sets[2] + uses[0])
    found = check(data, "mqtt-5", 1)
    assert len(found.spans) == 6
    addresses = [row["address"] for row in decoded(data, found).to_pylist()]
    assert addresses == ["a/b", "c", "a/b", "c", "d", "d"]


def test_aliases_cannot_be_found_behind_headers_that_were_read() -> None:
    table, reader = FrameTable(), State("mqtt-5").scanner()
    reader.scan(bytes.fromhex("300a0003612f620323000131"), table)
    table.read_headers()
    with pytest.raises(ValueError, match="headers were read"):
        reader.context_before(table, 1, b"")


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-2", "kobold-3"])
@pytest.mark.parametrize("inclusive", [True, False])
def test_a_kobold_length_means_the_same_in_every_span(dialect: str, inclusive: bool) -> None:
    table = FrameTable()
    table.fill([Message(address="a", payload=b"x\r\n" * k) for k in range(5)])
    writer = encoder(dialect)
    writer.set_variant("inclusive" if inclusive else "")
    found = check(bytes(writer.encode(table)), dialect, 1)
    assert len(found.spans) == 5
    assert found.state.variant == ("inclusive" if inclusive else "")


def test_a_tmq_frame_that_looks_like_a_handshake_is_none_behind_a_split() -> None:
    frame = b"TMQ/\x00\x00\x00\x00" + b"s" * (0x51 + 0x2F)  # a response: ids of 0x51 and 0x2F bytes
    found = check(b"TMQ/1.01" + frame * 3, "tmq-1.01", 1)
    assert [span.messages for span in found.spans] == [1, 1, 1, 1]


HELLO = Message(op=Op.HELLO, payload=b"Client-Id: c\r\n")


@pytest.mark.parametrize("step", [1, 40, 500])
def test_the_byte_order_that_hello_told_holds_in_every_span(step: int) -> None:
    """spec: tmq 2: long payloads and content types, in spans that never saw the Hello."""
    published = [Message("a", b"x" * (60 * k), content_type=0x0100 + k) for k in range(12)]
    data = write([Message(op=Op.HANDSHAKE), HELLO, *published], "tmq-1.01", little=True)
    found = check(data, "tmq-1.01", step)
    assert len(found.spans) > 1
    assert found.state.variant == "little"
    rows = decoded(data, found).to_pylist()
    assert [row["content_type"] for row in rows][2:] == [0x0100 + k for k in range(12)]


def test_a_span_before_the_first_hello_is_big_endian() -> None:  # spec: tmq 2
    before = write([Message("a", b"x" * 300, content_type=7)] * 4, "tmq-1.01")
    after = write([HELLO, *[Message("a", b"y" * 300, content_type=7)] * 4], "tmq-1.01", little=True)
    found = check(before + after, "tmq-1.01", 1)
    assert [span.state.variant for span in found.spans] == [None] * 5 + ["little"] * 4
    rows = decoded(before + after, found).to_pylist()
    assert {row["content_type"] for row in rows if row["op"] == "publish"} == {7}


def test_a_stream_larger_than_a_window_is_read_in_pieces() -> None:
    large = [Message(address="a", payload=bytes(9 << 20)) for _ in range(4)]
    data = write([*large, Message(address="b", payload=b"x")], "tmq-1.01")
    found = check(data, "tmq-1.01", 10 << 20)
    assert len(found.spans) == 3


def test_a_file_that_changes_between_the_passes_is_an_error_and_no_wrong_row() -> None:
    data = bytearray(write([Message(address="a", payload=b"x")] * 4, "kobold-1"))
    found = index(whole(memoryview(data)), State("kobold-1"), 1 << 20)
    data[0] = 0xFF
    with pytest.raises(EngineError, match="has changed"):
        decoded(bytes(data), found)


# Indexed by several tasks

APART = [name for name, one in DIALECTS.items() if not one.has_topic_frames]


def stretched(data: bytes, dialect: str, count: int) -> Index | None:
    """What several tasks find in a stream; where it fits together, what one task finds."""
    dump, state = whole(memoryview(data)), State(dialect)
    found = joined([index_stretch(dump, state, 100, k, count) for k in range(count)])
    if found is not None:
        alone = index(dump, state, 100)
        assert (found.messages, found.end, found.state) == (alone.messages, alone.end, alone.state)
        assert str(found.fault) == str(alone.fault)
        assert decoded(data, found).equals(decoded(data, alone))
    return found


@pytest.mark.parametrize("dialect", APART)
@given(data=st.data())
@thorough
def test_what_several_tasks_find_fits_together_or_is_not_taken(
    dialect: str, data: st.DataObject
) -> None:
    frames = write(data.draw(st.lists(messages(dialect), min_size=1, max_size=6)) * 100, dialect)
    tail = data.draw(st.sampled_from([b"", b"\xff\xff\xff\xff\xff", frames[: len(frames) // 2]]))
    stretched(frames + tail, dialect, data.draw(st.integers(2, 5)))


@pytest.mark.parametrize("dialect", APART)
def test_several_tasks_index_a_plain_dump(dialect: str) -> None:
    plain = [Message(address=f"plant/{k}", payload=b"x" * (k % 90)) for k in range(4000)]
    data = write(plain, dialect)
    found = stretched(data, dialect, 4)
    assert found is not None
    assert found.messages == index(whole(memoryview(data)), State(dialect), 1 << 20).messages


@pytest.mark.parametrize("place", [0, 1000])
def test_several_tasks_agree_on_the_byte_order_or_one_reads_all(place: int) -> None:
    """spec: tmq 2: a Hello that comes late is unknown to those who begin in the middle."""
    plain = [Message(f"plant/{k}", b"x" * (k % 90), content_type=7) for k in range(4000)]
    data = write(plain[:place], "tmq-1.01")
    data += write([HELLO, *plain[place:]], "tmq-1.01", little=True)
    found = stretched(data, "tmq-1.01", 4)
    assert (found is None) == (place > 0)


@pytest.mark.parametrize("dialect", APART)
@pytest.mark.parametrize("at", [0.1, 0.4, 0.9])
def test_a_fault_is_found_whoever_comes_upon_it(dialect: str, at: float) -> None:
    data = bytearray(write([Message(address="a/b", payload=b"x" * 50)] * 4000, dialect))
    place = int(at * len(data))
    data[place : place + 200] = b"\xff" * 200
    parts = [index_stretch(whole(memoryview(data)), State(dialect), 100, k, 3) for k in range(3)]
    assert any(part is None or part.fault is not None for part in parts)
    found = stretched(bytes(data), dialect, 3)
    assert found is None or found.fault is not None


@pytest.mark.parametrize("dialect", APART)
def test_frames_inside_of_payloads_deceive_nobody(dialect: str) -> None:
    inner = write([Message(address="inner", payload=b"y")] * (3 * PROOF), dialect)
    data = write([Message(address="outer", payload=inner)] * 3, dialect)
    assert index_stretch(whole(memoryview(data)), State(dialect), 100, 1, 2) is not None
    assert stretched(data, dialect, 2) is None
