"""Rows of frame tables to batches of the log."""

import threading
import zlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.wire.reading import write
from tests.wire.strategies import messages
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import scanner
from wirelake.journal import batch as kernel
from wirelake.journal.arrow_stream import (
    BATCH_ROWS,
    END,
    PREAMBLE,
    STORED,
    Compression,
    decode,
    ipc,
)
from wirelake.journal.batch import BATCH_BYTES, Batch, Rows, pack_names
from wirelake.message import Message, Op, Parameters
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA
from wirelake.wire.parameters import headers_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COMPRESSIONS: tuple[Compression, ...] = ("none", "lz4", "zstd")
TIMES = st.integers(0, 2**50)

every_compression = pytest.mark.parametrize("compression", COMPRESSIONS)


def filled(*some: Message, dialect: str = "kobold-3") -> FrameTable:
    """A table with these messages."""
    table = FrameTable(max(1, len(some)))
    table.fill(some, dialect)
    return table


@st.composite
def tables(draw: st.DrawFn) -> FrameTable:
    """What a connection of any dialect may have sent."""
    dialect = draw(st.sampled_from(list(DIALECTS)))
    table = FrameTable(16)
    data = write(draw(st.lists(messages(dialect), max_size=5)), dialect, source=dialect)
    assert scanner(dialect).scan(data, table) == len(data)
    return table


def row_of(message: Message, partition: int, offset: int, time: int, source: str) -> dict[str, Any]:
    """A message as a row of the log."""
    row = {field.name: getattr(message, field.name, None) for field in SCHEMA}
    row["op"] = message.op.label
    row["headers"] = [(k, v) for k, v in headers_of(message).items() if k != "$token"]
    row["timestamp"] = EPOCH + timedelta(microseconds=time)
    return {**row, "partition": partition, "offset": offset, "source": source or message.source}


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """The rows of a batch, which is as it should be in every other way."""
    arrow = decode(batch.ipc)
    arrow.validate(full=True)
    assert arrow.schema == STORED
    rows: list[dict[str, Any]] = arrow.to_pylist()
    assert len(rows) == batch.count > 0
    assert [row["offset"] for row in rows] == [*range(batch.base, batch.base + batch.count)]
    times = [(row["timestamp"] - EPOCH) // timedelta(microseconds=1) for row in rows]
    assert (batch.first_time, batch.last_time) == (min(times), max(times))
    names = list(dict.fromkeys(row["address"].encode() for row in rows))
    assert batch.names == pack_names(names)
    for name in ("address", "op", "dialect", "source"):
        values = arrow.column(name).dictionary.to_pylist()
        assert sorted(values) == sorted({row[name] for row in rows})
    return rows


def test_the_stored_schema_is_that_of_the_log_with_dictionaries() -> None:
    assert STORED.names == SCHEMA.names
    for stored, plain in zip(STORED, SCHEMA, strict=True):
        assert not stored.nullable
        if stored.name in ("address", "op", "dialect", "source"):
            assert stored.type == pa.dictionary(pa.int32(), plain.type)
        else:
            assert stored.type == plain.type
    assert pa.ipc.read_schema(pa.py_buffer(PREAMBLE)) == STORED


@given(data=st.data(), partitions=st.integers(1, 5), compression=st.sampled_from(COMPRESSIONS))
def test_rows_come_out_as_they_went_in(
    data: st.DataObject, partitions: int, compression: Compression
) -> None:
    log = Rows(partitions)
    expected: list[list[dict[str, Any]]] = [[] for _ in range(partitions)]
    taken: list[Batch] = []
    for _ in range(data.draw(st.integers(0, 4))):
        table = data.draw(tables())
        chosen = None
        if table.count and data.draw(st.booleans()):
            chosen = data.draw(st.lists(st.integers(0, table.count - 1), max_size=8))
        time, source = data.draw(TIMES), data.draw(st.sampled_from(["", "device", "ž"]))
        log.append(table, chosen, time, source.encode())
        for row in range(table.count) if chosen is None else chosen:
            message = table.message(row)
            partition = zlib.crc32(message.address.encode()) % partitions
            offset = len(expected[partition])
            expected[partition].append(row_of(message, partition, offset, time, source))
        if data.draw(st.booleans()):
            taken += log.take().batches(compression)
    taken += log.take().batches(compression)
    for partition in range(partitions):
        rows = [row for batch in taken if batch.partition == partition for row in rows_of(batch)]
        assert list(map(in_any_order, rows)) == list(map(in_any_order, expected[partition]))


def in_any_order(row: dict[str, Any]) -> dict[str, Any]:
    """A row whose headers are sorted: a message does not tell the order of its parameters."""
    return {**row, "headers": sorted(row["headers"])}


@every_compression
def test_batches_one_after_the_other_are_an_arrow_stream(compression: Compression) -> None:
    log = Rows(2)
    batches = []
    for k in range(6):
        log.append(filled(*(Message(address=f"{k}/{n}") for n in range(k + 1))), None, k, b"")
        batches += log.take().batches(compression)
    stream = PREAMBLE + b"".join(batch.ipc for batch in batches) + END
    with pa.ipc.open_stream(stream) as reader:
        assert reader.schema == STORED
        read = [batch.to_pylist() for batch in reader]
    assert read == [rows_of(batch) for batch in batches]


@every_compression
def test_a_batch_of_arrow_is_stored_in_the_same_form(compression: Compression) -> None:
    log = Rows(1)
    log.append(filled(Message(address="a", headers={"k": "v"}), Message(address="b")), None, 5, b"")
    [batch] = log.take().batches()
    assert decode(ipc(decode(batch.ipc), compression)).to_pylist() == rows_of(batch)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_makes_what_repeats_smaller_and_nothing_much_larger(
    compression: Compression,
) -> None:
    log = Rows(1)
    log.append(filled(*[Message(address="a", payload=b"again " * 40)] * 500), None, 1, b"")
    taken = log.take()
    assert len(taken.batches(compression)[0].ipc) < len(taken.batches()[0].ipc) / 20
    log.append(filled(Message(address="a", payload=bytes(range(256)))), None, 1, b"")
    taken = log.take()
    assert len(taken.batches(compression)[0].ipc) < len(taken.batches()[0].ipc) + 512


def test_what_was_taken_is_not_touched_by_what_comes_next() -> None:
    log = Rows(1)
    table = FrameTable(4)
    data = bytearray(write([Message(address="a", payload=b"first", id="7")], "kobold-3"))
    scanner("kobold-3").scan(data, table)
    log.append(table, None, 1, b"")
    taken = log.take()
    scanner("kobold-3").scan(write([Message(address="z", id="8")], "kobold-3"), table)
    data[:] = bytes(len(data))
    log.append(table, None, 2, b"")
    [first], [second] = taken.batches(), log.take().batches()
    assert [(row["address"], row["payload"], row["id"]) for row in rows_of(first)] == [
        ("a", b"first", "7")
    ]
    assert [(row["offset"], row["address"]) for row in rows_of(second)] == [(1, "z")]


def test_offsets_go_on_from_where_they_were() -> None:
    log = Rows(2, [10, 2**40])
    table = filled(*(Message(address=str(k)) for k in range(20)))
    log.append(table, None, 1, b"")
    log.append(table, None, 1, b"")
    bases = {batch.partition: (batch.base, batch.count) for batch in log.take().batches()}
    log.append(table, None, 1, b"")
    for batch in log.take().batches():
        base, count = bases[batch.partition]
        assert batch.base == base + count
        assert base == [10, 2**40][batch.partition]


def test_a_batch_ends_when_it_is_large() -> None:
    log = Rows(1)
    big = filled(Message(address="a", payload=b"x" * (BATCH_BYTES * 3 // 4)))
    for _ in range(5):
        log.append(big, None, 1, b"")
    batches = log.take().batches()
    assert [(batch.base, batch.count) for batch in batches] == [(0, 2), (2, 2), (4, 1)]
    small = filled(*[Message(address="a")] * 4096)
    for _ in range(BATCH_ROWS // 4096 + 1):
        log.append(small, None, 1, b"")
    counts = [batch.count for batch in log.take().batches()]
    assert len(counts) == 2
    assert max(counts) <= BATCH_ROWS


def test_a_sparse_column_is_as_long_as_the_others() -> None:
    log = Rows(1)
    full = Message(
        address="a", id="1", correlation_id="2", target="3", content_type=4, priority=1, ttl=5,
        headers={"6": "7"}, payload=b"8",
    )  # fmt: skip
    some = [Message(address="a")] * 40 + [full] + [Message(address="a")] * 70 + [full]
    log.append(filled(*some), None, 9, b"")
    [batch] = log.take().batches()
    shown = [replace(message, dialect="kobold-3") for message in some]
    assert rows_of(batch) == [row_of(one, 0, k, 9, "") for k, one in enumerate(shown)]


def test_an_address_stands_in_a_dictionary_once_even_when_too_many_are_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel, "KNOWN_ADDRESSES", 10)
    log = Rows(3)
    table = filled(*(Message(address=f"a/{k % 17}") for k in range(200)))
    log.append(table, None, 1, b"")
    rows = [row for batch in log.take().batches() for row in rows_of(batch)]
    for address in {row["address"] for row in rows}:
        offsets = [row["offset"] for row in rows if row["address"] == address]
        assert offsets == sorted(offsets)
    assert len(rows) == 200


def test_many_addresses_keep_apart() -> None:
    log = Rows(4, seed=12345)
    names = [f"house/{k:x}/room" for k in range(5000)]
    for _ in range(2):
        log.append(filled(*(Message(address=name) for name in names)), None, 1, b"")
    rows = [row for batch in log.take().batches() for row in rows_of(batch)]
    assert sorted(row["address"] for row in rows) == sorted(2 * names)
    assert all(row["partition"] == zlib.crc32(row["address"].encode()) % 4 for row in rows)


def test_no_token_is_ever_in_a_batch() -> None:
    log = Rows(1)
    secret = Message(
        op=Op.AUTH, headers={"token": "mine"}, parameters=Parameters(token="s3cret", client="c")
    )
    log.append(filled(secret), None, 1, b"")
    [batch] = log.take().batches()
    assert b"s3cret" not in batch.ipc
    assert rows_of(batch)[0]["headers"] == [("token", "mine"), ("$client", "c")]


def test_a_row_that_is_not_there_is_refused_and_nothing_is_added() -> None:
    log = Rows(1)
    for row in (-1, 1):
        with pytest.raises(IndexError):
            log.append(filled(Message(address="a")), [0, row], 1, b"")
    assert log.size == 0
    assert log.take().batches() == []


def test_the_size_is_that_of_what_is_there() -> None:
    log = Rows(2)
    assert log.size == 0
    log.append(filled(Message(address="a", payload=b"x" * 1000)), None, 1, b"")
    assert 1000 < log.size == log.appended < 1200
    taken = log.take()
    assert taken.size == log.appended
    assert log.size == 0


def test_rows_are_appended_while_others_are_taken() -> None:
    log = Rows(3)
    table = filled(*(Message(address=str(k % 50), payload=b"x" * k) for k in range(100)))
    rounds = 200
    done = threading.Event()
    taken: list[Batch] = []

    def take() -> None:
        while not done.is_set():
            taken.extend(log.take().batches())

    taker = threading.Thread(target=take)
    taker.start()
    for _ in range(rounds):
        log.append(table, None, 1, b"")
    done.set()
    taker.join()
    taken += log.take().batches()
    for partition in range(3):
        batches = [batch for batch in taken if batch.partition == partition]
        assert [batch.base for batch in batches[1:]] == [b.base + b.count for b in batches[:-1]]
    assert sum(batch.count for batch in taken) == 100 * rounds
