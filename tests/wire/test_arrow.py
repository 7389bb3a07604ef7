"""Tables to Arrow batches of the log's schema, and back."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.wire.reading import read, write
from tests.wire.strategies import messages, publishes
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.message import Flag, Message, Op, Parameters
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA, from_arrow, to_arrow
from wirelake.wire.parameters import headers_of

every_dialect = pytest.mark.parametrize("dialect", DIALECTS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIELDS = (
    "address", "op", "dialect", "id", "correlation_id", "source", "target", "content_type",
    "priority", "ttl", "headers", "payload",
)  # fmt: skip


def scanned(dialect: str, batch: list[Message]) -> FrameTable:
    """A table with the rows of these messages, as they are read from frames."""
    table = FrameTable(64)
    data = write(batch, dialect, source=dialect)
    assert scanner(dialect).scan(data, table) == len(data)
    return table


def shown(message: Message) -> dict[str, Any]:
    """A message as a row of the log: without its token, which nobody may see."""
    row = {name: getattr(message, name) for name in FIELDS}
    row["op"] = message.op.label
    row["headers"] = {k: v for k, v in headers_of(message).items() if k != "$token"}
    return row


def rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a batch, without their place in the log."""
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    return [
        {**{name: row[name] for name in FIELDS}, "headers": dict(row["headers"])}
        for row in batch.to_pylist()
    ]


def in_log_form(message: Message) -> Message:
    """What is left of a message that was in the log: no flags, ticket or dialect of its own."""
    hops = message.dialect.startswith("tmq")
    ttl = 0 if hops else message.ttl
    return replace(
        message,
        parameters=message.parameters.but(token=""),
        flags=Flag(0),
        dialect="",
        ttl=ttl,
        ticket=0,
    )


def test_the_schema_is_that_of_the_design() -> None:
    described = (
        "partition int32, offset int64, timestamp timestamp[us, tz=UTC], address string, "
        "op string, dialect string, id string, correlation_id string, source string, "
        "target string, content_type int32, priority int8, ttl int32, "
        "headers map<string, string>, payload binary"
    )
    assert ", ".join(f"{field.name} {field.type}" for field in SCHEMA) == described
    assert not any(field.nullable for field in SCHEMA)


@every_dialect
@given(data=st.data())
def test_a_batch_has_the_messages_of_the_table(dialect: str, data: st.DataObject) -> None:
    table = scanned(dialect, data.draw(st.lists(messages(dialect), max_size=6)))
    batch = to_arrow(table)
    assert rows(batch) == [shown(message) for message in table.messages()]


@every_dialect
@given(data=st.data())
def test_chosen_rows_make_a_batch_of_their_own(dialect: str, data: st.DataObject) -> None:
    table = scanned(dialect, data.draw(st.lists(messages(dialect), min_size=1, max_size=5)))
    chosen = data.draw(st.lists(st.integers(0, table.count - 1), max_size=8))
    batch = to_arrow(table, rows=chosen, offset=7)
    assert rows(batch) == [shown(table.message(row)) for row in chosen]
    assert batch.column("offset").to_pylist() == [7 + k for k in range(len(chosen))]


@every_dialect
@given(data=st.data())
def test_a_batch_read_back_has_the_same_messages(dialect: str, data: st.DataObject) -> None:
    table = scanned(dialect, data.draw(st.lists(messages(dialect), max_size=5)))
    sent = list(table.messages())
    back = FrameTable(64)
    assert from_arrow(to_arrow(table), back) == len(sent)
    assert list(back.messages()) == [in_log_form(message) for message in sent]


def test_offsets_partition_and_timestamp_are_given() -> None:
    table = scanned("kobold-3", [Message(address="a"), Message(address="b")])
    batch = to_arrow(table, timestamp=1_713_312_000_000_001, partition=3, offset=2**40)
    rows(batch)
    assert batch.column("partition").to_pylist() == [3, 3]
    assert batch.column("offset").to_pylist() == [2**40, 2**40 + 1]
    received = EPOCH + timedelta(microseconds=1_713_312_000_000_001)
    assert batch.column("timestamp").to_pylist() == [received, received]


def test_an_empty_table_is_an_empty_batch_of_the_schema() -> None:
    batch = to_arrow(FrameTable(4))
    assert rows(batch) == []
    assert from_arrow(batch, FrameTable(4)) == 0


def test_a_large_batch_is_as_good_as_a_small_one() -> None:
    table = FrameTable(40_000)
    table.fill([Message(address=str(n)) for n in range(40_000)], "kobold-3")
    small = to_arrow(table, rows=range(3))
    batch = to_arrow(table)
    assert rows(batch.slice(39_998)) == [shown(table.message(row)) for row in (39_998, 39_999)]
    assert rows(small) == rows(batch.slice(0, 3))


def test_a_batch_outlives_the_table_and_the_buffer() -> None:
    table = FrameTable(4)
    data = bytearray(write([Message(address="a", payload=b"first", id="7")], "kobold-3"))
    scanner("kobold-3").scan(data, table)
    batch = to_arrow(table)
    before = batch.to_pylist()
    other = write([Message(address="z", payload=b"other", id="8")], "kobold-3")
    scanner("kobold-3").scan(other, table)
    data[:] = bytes(len(data))
    assert batch.to_pylist() == before


@pytest.mark.parametrize(
    "dialect", ["boson-text", "boson-binary", "kobold-1", "kobold-2", "kobold-3"]
)
def test_no_token_is_ever_in_a_batch(dialect: str) -> None:
    secret = Message(op=Op.AUTH, parameters=Parameters(token="s3cret"))
    table = scanned(dialect, [secret])
    assert table.message(0).parameters == Parameters(token="s3cret")
    batch = to_arrow(table)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    assert b"s3cret" not in sink.getvalue().to_pybytes()


def test_only_the_token_is_left_out_of_the_headers() -> None:
    headers = {"token ": "x", "k": ""}
    said = Parameters(token="s3cret", client="c")
    table = scanned(
        "kobold-3",
        [Message(headers=headers, parameters=said), Message(parameters=Parameters(token="t"))],
    )
    assert [dict(row["headers"]) for row in to_arrow(table).to_pylist()] == [
        {"$client": "c", "token ": "x", "k": ""},
        {},
    ]


def test_a_row_that_is_not_there_cannot_be_chosen() -> None:
    table = scanned("kobold-3", [Message(address="a")])
    for row in (1, -1):
        with pytest.raises(IndexError, match=f"row {row} of 1"):
            to_arrow(table, rows=[row])


# From Arrow


def log_batch(count: int) -> tuple[list[Message], pa.RecordBatch]:
    """Messages with every field, and the batch of the log that holds them."""
    batch = [
        Message(
            address=f"a/{n % 7}",
            payload=bytes([n % 256]) * (n % 50),
            id=f"id{n}",
            correlation_id=f"c{n}" if n % 2 else "",
            source="s" * (n % 4),
            target="t" if n % 3 else "",
            content_type=n,
            priority=n % 2,
            ttl=1000 + n,
            headers={f"k{k}": f"v{n}" for k in range(n % 3)},
            op=KOBOLD[n % len(KOBOLD)],
        )
        for n in range(count)
    ]
    table = FrameTable(max(1, count))
    table.fill(batch)
    return batch, to_arrow(table)


KOBOLD = list(Op)[1:29]


def test_every_op_survives_the_log() -> None:
    table = FrameTable(64)
    batch = [Message(op=op, address="a") for op in Op]
    table.fill(batch)
    back = FrameTable(64)
    from_arrow(to_arrow(table), back)
    assert [message.op for message in back.messages()] == list(Op)


def test_a_batch_larger_than_the_table_is_read_in_several_calls() -> None:
    sent, batch = log_batch(1000)
    table = FrameTable(64)
    got: list[Message] = []
    at = 0
    while count := from_arrow(batch, table, at):
        assert count == min(64, 1000 - at)
        got += table.messages()
        at += count
    assert got == sent


@pytest.mark.parametrize(("start", "length"), [(0, 1), (1, 3), (13, 20), (99, 1), (100, 0)])
def test_a_slice_of_a_batch_is_read_as_such(start: int, length: int) -> None:
    sent, batch = log_batch(100)
    table = FrameTable(128)
    assert from_arrow(batch.slice(start, length), table) == length
    assert list(table.messages()) == sent[start : start + length]
    rest = from_arrow(batch.slice(start, length), table, min(1, length))
    assert list(table.messages()) == sent[start + min(1, length) : start + length]
    assert rest == max(0, length - 1)


@pytest.mark.parametrize("absent", FIELDS)
def test_a_column_that_is_missing_is_absent_in_every_message(absent: str) -> None:
    sent, batch = log_batch(10)
    table = FrameTable(16)
    from_arrow(batch.drop_columns([absent]), table)
    empty = getattr(Message(), absent)
    assert list(table.messages()) == [replace(message, **{absent: empty}) for message in sent]


def test_address_and_payload_are_enough() -> None:
    batch = pa.record_batch({"address": ["a", "b"], "payload": [b"1", b"2"]})
    table = FrameTable(4)
    assert from_arrow(batch, table) == 2
    assert list(table.messages()) == [
        Message(address="a", payload=b"1"),
        Message(address="b", payload=b"2"),
    ]


@pytest.mark.parametrize("name", FIELDS)
def test_a_null_is_absent(name: str) -> None:
    sent, batch = log_batch(6)
    column = batch.column(name).to_pylist()
    column[1] = column[4] = None
    index = batch.schema.get_field_index(name)
    kind = SCHEMA.field(name).type
    with_nulls = batch.set_column(index, pa.field(name, kind), pa.array(column, kind))
    empty = getattr(Message(), name)
    expected = [
        replace(message, **{name: empty}) if row in (1, 4) and name != "dialect" else message
        for row, message in enumerate(sent)
    ]
    table = FrameTable(16)
    from_arrow(with_nulls, table)
    assert list(table.messages()) == expected
    from_arrow(with_nulls.slice(1), table)
    assert list(table.messages()) == expected[1:]


@pytest.mark.parametrize("kind", ["string", "binary", "int32"])
def test_a_column_of_nothing_but_nulls_is_absent(kind: str) -> None:
    names = {"string": ["address", "op", "id"], "binary": ["payload"], "int32": ["ttl"]}[kind]
    batch = pa.record_batch(
        {name: pa.nulls(3, SCHEMA.field(name).type) for name in names}
    )  # fmt: skip
    table = FrameTable(4)
    assert from_arrow(batch, table) == 3
    assert list(table.messages()) == [Message()] * 3


def test_headers_with_null_values_and_null_maps_are_read() -> None:
    kind = SCHEMA.field("headers").type
    column = pa.array([[("a", None), ("b", "x")], None, [], [("c", "y")]], kind)
    table = FrameTable(4)
    from_arrow(pa.record_batch({"headers": column}), table)
    assert [message.headers for message in table.messages()] == [
        {"a": "", "b": "x"}, {}, {}, {"c": "y"},
    ]  # fmt: skip
    from_arrow(pa.record_batch({"headers": column}).slice(2), table)
    assert [message.headers for message in table.messages()] == [{}, {"c": "y"}]


def test_other_types_of_columns_are_cast() -> None:
    sent, batch = log_batch(20)
    changed = {
        "address": batch.column("address").dictionary_encode(),
        "op": batch.column("op").dictionary_encode(),
        "id": batch.column("id").cast(pa.large_string()),
        "payload": batch.column("payload").cast(pa.large_binary()),
        "source": batch.column("source").cast(pa.string_view()),
        "priority": batch.column("priority").cast(pa.int64()),
        "ttl": batch.column("ttl").cast(pa.int64()),
        "content_type": batch.column("content_type").cast(pa.uint16()),
        "headers": batch.column("headers"),
        "correlation_id": batch.column("correlation_id"),
        "target": batch.column("target"),
    }
    table = FrameTable(32)
    from_arrow(pa.record_batch(changed), table)
    assert list(table.messages()) == sent
    from_arrow(pa.record_batch(changed).slice(3, 9), table)
    assert list(table.messages()) == sent[3:12]


def test_a_name_that_is_no_op_is_unknown() -> None:
    table = FrameTable(4)
    from_arrow(pa.record_batch({"op": ["publish", "Publish", "", "dead"]}), table)
    labels = ["publish", "unknown", "publish", "dead"]
    assert [message.op.label for message in table.messages()] == labels


@every_dialect
@given(st.lists(publishes, max_size=6))
def test_a_batch_is_encoded_like_the_messages_in_it(dialect: str, batch: list[Message]) -> None:
    table = FrameTable(8)
    table.fill(batch)
    back = FrameTable(8)
    from_arrow(to_arrow(table), back)
    plain = [replace(message, flags=Flag(0)) for message in batch]
    assert bytes(encoder(dialect).encode(back)) == write(plain, dialect)


@every_dialect
@given(data=st.data())
def test_a_message_goes_through_the_log_into_its_own_dialect(
    dialect: str, data: st.DataObject
) -> None:
    table = scanned(dialect, data.draw(st.lists(messages(dialect), max_size=4)))
    sent = [message for message in table.messages() if message.op == Op.PUBLISH]
    back = FrameTable(64)
    from_arrow(to_arrow(table), back)
    got = read(dialect, [bytes(encoder(dialect).encode(back))]).messages
    published = [message for message in got if message.op == Op.PUBLISH]
    if dialect == "mfp-1":
        sent = [message for message in sent if Flag.OVERSIZE not in message.flags]
    assert [(m.address, m.payload) for m in published] == [(m.address, m.payload) for m in sent]
