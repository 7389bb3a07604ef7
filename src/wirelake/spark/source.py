"""The log of a broker as a Spark source, batch and streaming.

The driver plans ranges of offsets; executors read them straight from the broker, in parallel, as
Arrow batches. Readers know the options and nothing else: where a stream is stands in its offsets.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from wirelake.address import has_wildcard, matches
from wirelake.errors import ConfigError, WirelakeError
from wirelake.spark import offsets
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Log, Offsets, Options, Place, Range
from wirelake.spark.session import spare_garbage_collector
from wirelake.spark.sink import BatchWriter, StreamWriter
from wirelake.spark.table import LOG_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Without this Spark pushes no filters down to Python sources, and refuses those that take them.
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
#: Addresses that are asked for by name at most; a query has room for a hundred parameters.
MOST_ADDRESSES = 64
#: What goes to Spark at once (bytes), about, so that its memory need not grow with a batch.
BATCH_BYTES = 4 << 20
#: Smaller batches are put together: each one costs Spark as much as a hundred rows or two.
SMALL_BYTES = 64 << 10

#: Seconds until a broker that had nothing new is asked again; Spark by itself would not wait.
IDLE = 0.1

_LARGEST = 2**63 - 1

log = logging.getLogger("wirelake.spark")


class Wirelake(DataSource):
    """`wirelake`: the log of a broker, to read from; the broker itself, to publish to.

    Options, to read
    ----------------
    url                 where the broker's HTTP is: http://host:port
    token               who asks, where the broker wants to know
    subscribe           addresses and filters, separated by commas; all, if not given
    subscribePattern    the same, one filter that may have commas
    startingOffsets     earliest (batch), latest (stream), or {"0": 23, "1": -2}: -2 is the
                        earliest, -1 the latest; for new streams only
    startingTimestamp   from what was received then on: ms since 1970, or 2026-01-31T12:00
    endingOffsets       latest, or JSON; for batches
    maxRowsPerTrigger   rows of the log that a batch of a stream has at most
    minPartitions       tasks at least; a long range is cut in any case
    failOnDataLoss      true: rows that were deleted before they were read are an error
    includeHeaders      false: no column `headers`
    columns             what to read, separated by commas
    query               the name under which the broker shows how far a stream is
    retrySeconds        60: how long a broker that is away is waited for

    Options, to write: see `wirelake.spark.sink`.

    Examples
    --------
    >>> wirelake.spark.register(spark)
    >>> log = spark.read.format("wirelake").option("url", "http://127.0.0.1:7780").load()
    >>> log.where("address = 'house/door' and timestamp > '2026-01-01'").count()
    >>> stream = spark.readStream.format("wirelake").options(url=url, subscribe="house/#").load()
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "wirelake"

    def schema(self) -> StructType:
        """The columns that are wanted; wrong options are told here, as it is called first."""
        return schema_of(Options.parse(self.options).columns)

    def reader(self, schema: StructType) -> LogReader:
        """A reader of what the log has now."""
        options = _with_schema(Options.parse(self.options), schema)
        options.check_batch()
        return LogReader(options, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """A reader that goes on."""
        options = _with_schema(Options.parse(self.options), schema)
        options.check_stream()
        return LogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of one batch."""
        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """A writer of a stream's batches."""
        return StreamWriter(self.options, schema)


def register(spark: SparkSession) -> None:
    """Let a session know the format `wirelake`."""
    spark.conf.set(PUSHDOWN, "true")
    spark.dataSource.register(Wirelake)


def schema_of(columns: Iterable[str]) -> StructType:
    """These columns of the log, as Spark has them."""
    return StructType([LOG_SCHEMA[name] for name in columns])


def _with_schema(options: Options, schema: StructType) -> Options:
    """The options with the columns of a schema, which may be the user's own."""
    known = {field.name: field.dataType for field in LOG_SCHEMA.fields}
    for wanted in schema.fields:
        if known.get(wanted.name) != wanted.dataType:
            text = f"the log has no column {wanted.name} {wanted.dataType.simpleString()}"
            raise ConfigError("schema", text)
    return replace(options, columns=tuple(schema.names))


@dataclass
class Piece(InputPartition):
    """What one task reads."""

    range: Range
    log: str
    filters: tuple[str, ...]

    def __post_init__(self) -> None:
        super().__init__(self.range)


class _Reading:
    """What both readers do in a task."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    @property
    def _client(self) -> LogClient:
        return LogClient(self._options.url, self._options.token, self._options.patience)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a piece, as Arrow batches in Spark's types."""
        if not isinstance(partition, Piece):  # Spark makes one up where nothing is to be read
            return
        spare_garbage_collector()
        # A batch is cheapest as it is stored; only payloads are worth being left out.
        columns = () if "payload" in self._options.columns else self._options.columns
        batches = self._client.read(
            partition.range,
            partition.filters,
            columns,
            log=partition.log,
            fail_on_data_loss=self._options.fail_on_data_loss,
        )
        schema = to_arrow_schema(self._schema, timezone="UTC")
        yield from for_spark(batches, schema)


def for_spark(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows of the log as Spark takes them: the columns of a schema, in batches of some size."""
    for table in tables:
        size = table.get_total_buffer_size()
        plain = pa.Table.from_arrays(
            [_plain(table.column(name)) for name in schema.names], schema=schema
        )
        if size < SMALL_BYTES * table.column(0).num_chunks:
            plain = plain.combine_chunks()
        count = -(-size // BATCH_BYTES)
        yield from plain.to_batches(max_chunksize=-(-table.num_rows // count))


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """A column without dictionaries, which Spark does not take."""
    if not pa.types.is_dictionary(column.type):
        return column
    dictionaries = [chunk.dictionary for chunk in column.chunks]
    if all(len(one) == 1 for one in dictionaries) and not column.null_count:
        values = {one.view(pa.binary())[0].as_py() for one in dictionaries}  # maybe no UTF-8
        if len(values) == 1:  # most columns have one value in all rows, and mostly the same
            return _repeated(values.pop(), 1 << len(column).bit_length()).slice(0, len(column))
    return column.cast(column.type.value_type)


@lru_cache(maxsize=16)
def _repeated(value: bytes, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.binary()), rows).view(pa.string())


# Batches


#: What a comparison adds to its number to make it the first that is in, and the first that is not.
_STEPS: dict[type[Filter], tuple[int | None, int | None]] = {
    EqualTo: (0, 1),
    GreaterThan: (1, None),
    GreaterThanOrEqual: (0, None),
    LessThan: (None, 0),
    LessThanOrEqual: (None, 1),
}


@dataclass
class Wanted:
    """What pushed filters leave of the log."""

    addresses: frozenset[str] | None = None
    prefix: str = ""  # a filter that leaves more than is wanted
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)  # [least, most) of a column

    def take(self, given: Filter, subscribed: Sequence[str]) -> bool:
        """Whether a filter is fully taken care of from now on."""
        match given:
            case EqualTo(("address",), str(address)):
                return self._take_addresses({address})
            case In(("address",), values):
                return self._take_addresses({one for one in values if one is not None})
            case StringStartsWith(("address",), str(prefix)):
                levels = prefix.rpartition("/")[0]
                if levels and not subscribed and not levels.startswith("$"):
                    self.prefix = max(self.prefix, f"{levels}/#", key=len)
                return False  # a filter ends at a level
        return self._take_bound(given)

    def _take_addresses(self, addresses: set[str]) -> bool:
        # A name with a wildcard in it would be taken for a filter.
        if len(addresses) > MOST_ADDRESSES or any(has_wildcard(one) for one in addresses):
            return False
        before = self.addresses
        self.addresses = frozenset(addresses if before is None else before & addresses)
        return True

    def _take_bound(self, given: Filter) -> bool:
        steps = _STEPS.get(type(given))
        if steps is None:
            return False
        path, value = given.attribute, given.value  # type: ignore[attr-defined]  # all of these have
        number = _number(path, value)
        if number is None:
            return False
        least, most = self.bounds.get(path[0], (-_LARGEST, _LARGEST))
        above, below = steps
        self.bounds[path[0]] = (
            least if above is None else max(least, number + above),
            most if below is None else min(most, number + below),
        )
        return True

    def filters(self, subscribed: tuple[str, ...]) -> tuple[str, ...] | None:
        """The filters to ask the broker for; None where nothing can match."""
        if self.addresses is not None:
            found = tuple(
                one
                for one in sorted(self.addresses)
                if not subscribed or any(matches(filter, one) for filter in subscribed)
            )
            return found or None
        return subscribed or ((self.prefix,) if self.prefix else ())


def _number(path: tuple[str, ...], value: object) -> int | None:
    """What a column is compared with, where rows are in its order."""
    match path:
        case ("timestamp",) if isinstance(value, datetime):
            return offsets.micros(value)
        case ("partition" | "offset",) if type(value) is int:
            return value
    return None


class LogReader(_Reading, DataSourceReader):
    """A batch: the rows that the log has when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._wanted = Wanted()

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take the filters that the broker can apply; the others are left to Spark."""
        subscribed = self._options.filters
        return [one for one in filters if not self._wanted.take(one, subscribed)]

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        filters = self._wanted.filters(self._options.filters)
        if filters is None:
            return []
        client = self._client
        log = client.log()
        start, end = self._bounds(client, log)
        pieces = offsets.split(
            offsets.ranges(start, {p: max(end[p], start[p]) for p in end}),
            self._options.min_partitions,
        )
        return [Piece(one, log.id, filters) for one in pieces]

    def _bounds(self, client: LogClient, log: Log) -> tuple[Offsets, Offsets]:
        options = self._options
        if options.starting_time is not None:
            start = client.offsets_at(options.starting_time)
        else:
            start = offsets.resolve(options.starting or "earliest", log, "startingOffsets")
        end = offsets.resolve(options.ending or "latest", log, "endingOffsets")
        if "timestamp" in self._wanted.bounds:
            # Times never go back within a partition, so a time is an offset.
            least, most = self._wanted.bounds["timestamp"]
            start = _larger(start, client.offsets_at(max(0, least)))
            if most < _LARGEST:
                end = _smaller(end, client.offsets_at(max(0, most)))
        if "offset" in self._wanted.bounds:
            least, most = self._wanted.bounds["offset"]
            start = _larger(start, dict.fromkeys(start, least))
            end = _smaller(end, dict.fromkeys(end, most))
        least, most = self._wanted.bounds.get("partition", (0, _LARGEST))
        chosen = [p for p in log.extents if least <= p < most]
        return {p: start[p] for p in chosen}, {p: end[p] for p in chosen}


def _larger(some: Offsets, others: Offsets) -> Offsets:
    return {p: max(some[p], others[p]) for p in some}


def _smaller(some: Offsets, others: Offsets) -> Offsets:
    return {p: min(some[p], others[p]) for p in some}


# Streams

#: An offset as Spark has it: a place in the log.
Json = dict[str, int | str]


class LogStreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: from one offset to the next."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        # Spark's contract for AvailableNow: where this run ends, which no checkpoint needs to know.
        self._target: Offsets = {}
        self._told: Offsets = {}  # so that it is not told again and again

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Where a new query begins."""
        client, options = self._client, self._options
        log = client.log()
        if options.starting_time is not None:
            found = client.offsets_at(options.starting_time)
        else:
            found = offsets.resolve(options.starting or "latest", log, "startingOffsets")
        return Place(found, log.id).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How much a batch may have."""
        most = self._options.max_rows
        return ReadMaxRows(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is all there will be."""
        self._target = self._latest().offsets

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """Where the batch that begins at `start` ends."""
        begin = Place.parse(start)
        log = self._client.log()
        kept = offsets.check_kept(begin, log, fail=self._options.fail_on_data_loss)
        end = {p: extent.next for p, extent in log.extents.items()}
        if self._target:
            end = {p: min(end[p], max(self._target.get(p, 0), kept[p])) for p in end}
        if Place(end, log.id) == begin:
            # Nothing is left to do, so what was begun is done; Spark itself tells it late.
            self._tell(end)
            if not self._target:
                time.sleep(IDLE)
        elif isinstance(limit, ReadMaxRows):
            end = offsets.share(kept, end, limit.max_rows)
        return Place(end, log.id).as_json()

    def reportLatestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Where the log ends, for the query's progress: what is left is the lag."""
        return self._latest().as_json()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """The tasks of a batch."""
        stop = Place.parse(end)
        found = offsets.between(Place.parse(start), stop)
        pieces = offsets.split(found, self._options.min_partitions)
        return [Piece(one, stop.log, self._options.filters) for one in pieces]

    def commit(self, end: Json) -> None:
        """Everything up to here is done."""
        self._tell(Place.parse(end).offsets)

    def _tell(self, done: Offsets) -> None:
        """Tell the broker how far this is; a query goes on where that cannot be told."""
        if done == self._told:
            return
        self._told = done
        client = LogClient(self._options.url, self._options.token, patience=0)
        try:
            client.advance(self._options.query, done)
        except WirelakeError as error:
            log.warning("the progress of %s was not told: %s", self._options.query, error)

    def _latest(self) -> Place:
        log = self._client.log()
        return Place({p: extent.next for p, extent in log.extents.items()}, log.id)
