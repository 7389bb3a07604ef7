"""Rows of Spark to a broker: published by executors, in Arrow batches, each of them once.

A task sends its rows in chunks. A chunk is named by who writes (the query, or a job), the task's
partition, the batch and its own number, and the broker publishes a name once. So a task that Spark
runs again, or runs twice at a time, publishes nothing twice.

The last chunk of a task is not sent by the task: where what feeds it fails, it just sees an end,
and cannot tell it from the real one. Spark can: it goes to the driver with the commit message, and
is published there once all tasks have come to their end. So a batch that is small is published
whole or not at all; of a large one that fails for good some chunks stay published.

All this holds where a task's rows come in the same order each time it is run, or (after a shuffle,
where they may not) are one chunk.

Columns: `address` (or the option `address`) and `payload` (bytes or text), and where they are there
`id`, `correlation_id`, `content_type`, `priority`, `ttl`, `headers`, `timestamp`. The broker stamps
what it receives, so a row's own time travels as the header `timestamp`. The log's other columns are
left out, so its rows can be published as they are; columns that nobody knows are left out and
named in Spark's log.

Options: `url`, `token`, `retrySeconds` as for the source; `address`: where rows go that have no
address; `onError`: `fail` (the default), or
`skip` for rows that cannot be published: they are counted and told in Spark's log; `producer`: who
writes, in a batch together with `sequence`, which batch this is, so that it can be written again.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from wirelake.address import check_address, check_topic
from wirelake.errors import ConfigError, EngineError, RefusedError
from wirelake.message import LARGEST, MAX_ID
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import PATIENCE
from wirelake.spark.options import address_of, named, seconds
from wirelake.wire.arrow import SCHEMA

OPTIONS = ("url", "token", "retrySeconds", "address", "onError", "producer", "sequence")
#: Options that Spark itself has for writers.
SPARKS_OWN = ("checkpointLocation", "queryName", "path")

#: Bytes of a chunk, about: of the first ones, as a driver gets one of each task, and of others.
CHUNK, LARGE_CHUNK = 4 << 20, 16 << 20
SMALL_CHUNKS = 64
#: The maximum number of a task's chunks: the broker remembers this many of a producer.
MOST_CHUNKS = 256
#: Last chunks that are sent at a time.
AT_A_TIME = 8

_WHOLE = (ByteType, ShortType, IntegerType, LongType)
_TYPES: dict[str, tuple[type[DataType], ...]] = {
    "address": (StringType,),
    "payload": (BinaryType, StringType),
    "id": (StringType,),
    "correlation_id": (StringType,),
    "content_type": _WHOLE,
    "priority": _WHOLE,
    "ttl": _WHOLE,
    "headers": (MapType,),
    "timestamp": (TimestampType,),
}
#: Columns of the log that say how a message came, not what it is.
_LEFT_OUT = tuple(name for name in SCHEMA.names if name not in _TYPES)
#: The header that has a row's own time, and how it is written (UTC).
TIME_HEADER = "timestamp"
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"

_ENTRIES = pa.list_(pa.struct({"key": pa.string(), "value": pa.string()}))

log = logging.getLogger("wirelake.spark")


@dataclass
class Published(WriterCommitMessage):
    """What a task has done, and what is left to do once all have."""

    producer: str
    sequence: str = ""  # of the last chunk
    tail: bytes = b""
    rows: int = 0
    skipped: int = 0
    again: int = 0  # of the rows, those that were published before


class _Writing:
    """What both writers are: checked options, and how a task publishes."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options = named(given, (*OPTIONS, *SPARKS_OWN))
        if "path" in options:
            raise ConfigError("path", "a broker has none; each row has its address")
        self._url = address_of(options)
        self._token = options.get("token", "")
        self._patience = seconds(options, "retrySeconds", PATIENCE)
        self._skip = options.get("onError", "fail") == "skip"
        if options.get("onError", "fail") not in ("fail", "skip"):
            raise ConfigError("onError", f"{options['onError']!r} is neither fail nor skip")
        self._producer = options.get("producer", "")
        self._sequence = options.get("sequence", "")
        for name, most in (("producer", 128), ("sequence", 64)):
            _check_name(name, options.get(name), most)
        self._address = options.get("address", "")
        if "address" in options:
            try:
                check_topic(self._address)
            except RefusedError as error:
                raise ConfigError("address", error.text) from None
        self._columns = _columns(schema, has_address=bool(self._address))

    def publish(self, batches: Iterator[pa.RecordBatch], producer: str, sequence: str) -> Published:
        """Publish a task's rows but for its last chunk, which comes back."""
        done = Published(producer)
        client = self._client
        held: list[pa.RecordBatch] = []
        size = number = 0
        for batch in batches:
            for part in _pieces(self._checked(batch, done)):
                most = CHUNK if number < SMALL_CHUNKS else LARGE_CHUNK
                if held and size + part.nbytes > most:
                    body, rows = _body(held)
                    if not client.publish(body, producer, f"{sequence}.{number}"):
                        done.again += rows
                    held, size, number = [], 0, number + 1
                    if number == MOST_CHUNKS:
                        raise EngineError("a task has too many rows to publish; repartition them")
                held.append(part)
                size += part.nbytes
                done.rows += part.num_rows
        if held:
            done.sequence, done.tail = f"{sequence}.{number}", bytes(_body(held)[0])
        return done

    def finish(self, messages: Iterable[WriterCommitMessage | None]) -> None:
        """Publish the last chunks of all tasks, since all have come to their end."""
        client = self._client
        done = [one for one in messages if isinstance(one, Published)]
        with ThreadPoolExecutor(AT_A_TIME) as threads:
            sent = [
                threads.submit(client.publish, one.tail, one.producer, one.sequence)
                for one in done
                if one.tail
            ]
        for each in sent:
            each.result()
        if skipped := sum(one.skipped for one in done):
            log.warning("%d rows could not be published and were skipped", skipped)

    @property
    def _client(self) -> LogClient:
        return LogClient(self._url, self._token, self._patience)

    def _checked(self, batch: pa.RecordBatch, done: Published) -> pa.RecordBatch:
        """The columns to send, of the rows that can be published."""
        batch = _with_address(batch.select(self._columns), self._address)
        bad, why = _faults(batch)
        if bad is None:
            return batch
        count = pc.sum(bad).as_py()
        if not self._skip:
            raise RefusedError("bad_request", f"{count} rows cannot be published: {why}")
        done.skipped += count
        log.warning("%d rows are skipped: %s", count, why)
        return batch.filter(pc.invert(bad))


class BatchWriter(_Writing, DataSourceArrowWriter):
    """Publishes a batch."""

    def __init__(self, given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        super().__init__(given, schema)
        if overwrite:
            raise ConfigError("mode", "what is published stays; use the mode append")
        if bool(self._producer) != bool(self._sequence):
            raise ConfigError("sequence", "a producer has a sequence, and a sequence one")
        # Made once, where the job is planned: all attempts at its tasks have the same.
        self._producer = self._producer or f"job-{uuid.uuid4().hex}"
        self._sequence = self._sequence or "0"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a task's rows."""
        return self.publish(iterator, f"{self._producer}-{_task().partitionId()}", self._sequence)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All tasks have come to their end."""
        self.finish(messages)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """Publishes the batches of a stream."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        super().__init__(given, schema)
        if self._sequence:
            raise ConfigError("sequence", "a stream numbers its batches itself")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a task's rows."""
        task = _task()
        query = task.getLocalProperty("sql.streaming.queryId")
        batch = task.getLocalProperty("streaming.sql.batchId")
        if not query or not batch:
            raise EngineError("Spark does not say which query and batch this is")
        producer = f"{self._producer or 'stream'}-{query}-{task.partitionId()}"
        return self.publish(iterator, producer, batch)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """All tasks have come to their end."""
        self.finish(messages)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise EngineError("rows are published by a task of Spark")
    return task


def _check_name(option: str, name: str | None, most: int) -> None:
    if name is None:
        return
    try:
        check_address(name)
    except RefusedError as error:
        raise ConfigError(option, error.text) from None
    if len(name.encode()) > most:
        raise ConfigError(option, f"it has at most {most} bytes")


def _columns(schema: StructType, *, has_address: bool) -> list[str]:
    """Return the columns to send; report missing, unknown and wrongly typed ones."""
    unknown = [name for name in schema.names if name not in (*_TYPES, *_LEFT_OUT)]
    for name in ("address", "payload"):
        if name not in schema.names and not (name == "address" and has_address):
            text = f"there is no column {name}"
            if unknown:
                text += f", and nobody knows {', '.join(unknown)}"
            if name == "address":
                text += "; the option address is for rows that all go to one"
            raise ConfigError("schema", text)
    columns = [name for name in _TYPES if name in schema.names]
    for name in columns:
        kind = schema[name].dataType
        is_map = isinstance(kind, MapType)
        if not isinstance(kind, _TYPES[name]) or (
            is_map and kind.simpleString() != "map<string,string>"
        ):
            raise ConfigError("schema", f"the column {name} is {kind.simpleString()}")
    if unknown:
        log.warning(
            "columns that a message does not have are left out: %s; it has %s",
            ", ".join(unknown),
            ", ".join(_TYPES),
        )
    return columns


def _with_address(batch: pa.RecordBatch, address: str) -> pa.RecordBatch:
    """A batch in which every row has an address: its own, or the default."""
    if not address:
        return batch
    if "address" not in batch.schema.names:
        return batch.append_column("address", pa.repeat(pa.scalar(address), batch.num_rows))
    place = batch.schema.get_field_index("address")
    filled = pc.fill_null(batch.column(place), address)
    return batch.set_column(place, pa.field("address", filled.type), filled)


def _faults(batch: pa.RecordBatch) -> tuple[pa.Array | None, str]:
    """Which rows cannot be published, if any, and why the first kind of them."""
    addresses = batch.column("address")
    bad: dict[str, str] = {}
    for address in pc.unique(addresses).to_pylist():
        try:
            check_topic(address or "")
        except RefusedError as error:
            bad[address] = error.text
    faults: list[tuple[pa.Array, str]] = []
    if bad:
        address, text = next(iter(bad.items()))
        marked = pc.is_in(addresses, pa.array(bad.keys(), addresses.type))
        faults.append((marked, f"address {address!r}: {text}"))
    for name, most in LARGEST.items():
        if name in batch.schema.names:
            column = batch.column(name)
            outside = pc.or_(pc.less(column, 0), pc.greater(column, most))
            faults.append((outside, f"{name} goes from 0 to {most}"))
    for name in ("id", "correlation_id"):
        if name in batch.schema.names:
            long = pc.greater(pc.binary_length(batch.column(name)), MAX_ID)
            faults.append((long, f"{name} has at most {MAX_ID} bytes"))
    found = [(pc.fill_null(mask, False), why) for mask, why in faults]
    found = [(mask, why) for mask, why in found if pc.any(mask).as_py()]
    if not found:
        return None, ""
    together = found[0][0]
    for mask, _ in found[1:]:
        together = pc.or_(together, mask)
    return together, found[0][1]


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A batch in parts that fit into a chunk, down to single rows."""
    if batch.nbytes > CHUNK and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from _pieces(batch.slice(0, half))
        yield from _pieces(batch.slice(half))
    elif batch.num_rows:
        yield batch


def _body(batches: list[pa.RecordBatch]) -> tuple[memoryview, int]:
    """Rows as an Arrow stream in the log's types, and how many there are."""
    table = pa.Table.from_batches(batches).combine_chunks()
    columns = {
        name: table[name].cast(SCHEMA.field(name).type)
        for name in table.column_names
        if name not in ("headers", "timestamp")
    }
    if "headers" in table.column_names or "timestamp" in table.column_names:
        columns["headers"] = _headers(table)
    rows = pa.table(columns).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return memoryview(sink.getvalue()), rows.num_rows


def _headers(table: pa.Table) -> pa.Array:
    """The headers of rows, with their times; where there are none, they are empty."""
    rows = pc.indices_nonzero(pa.repeat(True, table.num_rows)).cast(pa.int64())
    owners, keys, items = rows.slice(0, 0), pa.array([], pa.string()), pa.array([], pa.string())
    sizes = pa.repeat(pa.scalar(0, pa.int32()), table.num_rows)
    if "headers" in table.column_names:
        # As a list: Arrow has no functions that tell which entry of a map is whose.
        given = _one(table["headers"]).cast(_ENTRIES)
        owners, entries = pc.list_parent_indices(given), pc.list_flatten(given)
        keys, items = pc.struct_field(entries, "key"), pc.struct_field(entries, "value")
        sizes = pc.fill_null(pc.list_value_length(given), 0)
    if "timestamp" in table.column_names:
        times = _one(table["timestamp"]).cast(pa.timestamp("us", "UTC"))
        own = owners.filter(pc.equal(keys, TIME_HEADER))  # rows that have such a header keep it
        is_timed = pc.and_(pc.is_valid(times), pc.invert(pc.is_in(rows, own)))
        texts = pc.strftime(times.filter(is_timed), TIME_FORMAT)
        owners = pa.concat_arrays([owners, rows.filter(is_timed)])
        keys = pa.concat_arrays([keys, pa.repeat(pa.scalar(TIME_HEADER), len(texts))])
        items = pa.concat_arrays([items, texts])
        order = pc.sort_indices(owners)  # it is stable
        keys, items = keys.take(order), items.take(order)
        sizes = pc.add(sizes, is_timed.cast(pa.int32()))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(sizes)])
    return pa.MapArray.from_arrays(starts, keys, items)


def _one(column: pa.ChunkedArray) -> pa.Array:
    """A column that was combined, as one array."""
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)
