"""The log of a broker as a Spark source, batch and streaming.

The driver plans ranges of offsets; executors read them straight from the broker, in parallel, as
Arrow batches. Readers know the options and nothing else: where a stream is stands in its offsets.

What Spark lets a Python source do, and what not (4.3): filters are pushed down, columns are
not; a stream has admission control and AvailableNow, but no real-time mode and no metrics.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from wirelake.errors import ConfigError, WirelakeError
from wirelake.spark import catalog, offsets, sink
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Log, Offsets, Place, Range
from wirelake.spark.options import OPTIONS, Options, is_of_table, named, of_table
from wirelake.spark.pushdown import LARGEST, Pushdown, Wanted
from wirelake.spark.session import spare_garbage_collector
from wirelake.spark.sink import BatchWriter, StreamWriter
from wirelake.spark.table import LOG_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Where a token comes from that is not given as an option.
TOKEN = "WIRELAKE_TOKEN"
#: What goes to Spark at once (bytes), about, so that its memory need not grow with a batch.
BATCH_BYTES = 4 << 20
#: Smaller batches are put together: each one costs Spark as much as a hundred rows or two.
SMALL_BYTES = 64 << 10
#: A value that all rows have is kept repeated, for the next batch, if it is no longer (bytes).
LONGEST_REPEATED = 32
#: From this many rows on, a query that reads all columns logs a hint on `columns`.
MANY_ROWS = 1_000_000

#: Seconds until a broker that had nothing new is asked again; Spark by itself would not wait.
IDLE = 0.1

#: The filters that hold in a partition of the log.
FiltersOf = Callable[[int], tuple[str, ...]]

logger = logging.getLogger("wirelake.spark")


class Wirelake(DataSource):
    """`wirelake`: the log of a broker, to read from; the broker itself, to publish to.

    Options are those of Spark's Kafka source where they mean the same: docs/spark.md has the table.
    The most important ones:

    url                 where the broker's HTTP is: http://host:port
    token               who asks, where the broker wants to know; else WIRELAKE_TOKEN
    subscribe           addresses and filters, separated by commas; all, if not given
    subscribePattern    a regular expression (RE2) for whole addresses
    startingOffsets     earliest (batch), latest (stream), or {"0": 23, "1": -2}: -2 is the
                        earliest, -1 the latest; for new streams only
    startingTimestamp   from what was received then on: ms since 1970, or 2026-01-31T12:00
    columns             what to read, separated by commas
    maxRowsPerTrigger   rows of the log that a batch of a stream has at most
    query               the name under which the broker shows how far a stream is

    To write, see `wirelake.spark.sink`.

    Examples
    --------
    >>> log = spark.read.format("wirelake").option("url", "http://127.0.0.1:7780").load()
    >>> log.where("address = 'house/door' and timestamp > '2026-01-01'").count()
    >>> stream = spark.readStream.format("wirelake").options(url=url, subscribe="house/#").load()
    """

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "wirelake"

    def schema(self) -> StructType:
        """Return the columns to read; raises for wrong options, since Spark calls this first."""
        if not is_of_table(self.options):
            return schema_of(Options.parse(self.options).columns)
        options = named(of_table(self.options), dict.fromkeys((*OPTIONS, *sink.OPTIONS)))
        parsed = Options.parse({name: options[name] for name in OPTIONS if name in options})
        return catalog.with_options(schema_of(parsed.columns), options)

    def reader(self, schema: StructType) -> LogReader:
        """A reader of what the log has now."""
        options = self._options(schema)
        options.check_batch()
        return LogReader(options, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        """A reader that goes on."""
        options = self._options(schema)
        options.check_stream()
        return LogStreamReader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """A writer of one batch."""
        given = catalog.complete(self.options, schema, sink.OPTIONS, is_write=True)
        return BatchWriter(_with_token(given), schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        """A writer of a stream's batches.

        Spark gives it the columns of the query, not of the table that `toTable` names. So their
        metadata may be another table's, and does not count.
        """
        return StreamWriter(_with_token(self.options), schema)

    def _options(self, schema: StructType) -> Options:
        """The options of a reader, with the columns of a schema, which may be the user's own."""
        options = Options.parse(_with_token(catalog.complete(self.options, schema, OPTIONS)))
        known = {field.name: field.dataType for field in LOG_SCHEMA.fields}
        for wanted in schema.fields:
            if known.get(wanted.name) != wanted.dataType:
                text = f"the log has no column {wanted.name} {wanted.dataType.simpleString()}"
                raise ConfigError("schema", text)
        is_default = options.has_default_columns and len(schema.names) >= len(options.columns)
        return replace(options, columns=tuple(schema.names), has_default_columns=is_default)


def _with_token(given: Mapping[str, str]) -> Mapping[str, str]:
    """Options with the token of the environment, where they have none."""
    if any(name.lower() == "token" for name in given) or not os.environ.get(TOKEN):
        return given
    return {**given, "token": os.environ[TOKEN]}


def register(spark: SparkSession) -> None:
    """Let a session know the format `wirelake`.

    Spark finds the format by itself where the package `pyspark_wirelake` is installed; this is for
    where it does not. Nothing is done in the definitions of a declarative pipeline: they may not
    change their session, and Spark 4.3 cannot run a pipeline with a source that they register.
    """
    if not _is_in_pipeline():
        spark.dataSource.register(Wirelake)


def _is_in_pipeline() -> bool:
    """Whether the definitions of a declarative pipeline are being read."""
    registry = sys.modules.get("pyspark.pipelines.graph_element_registry")
    if registry is None:
        return False
    try:
        registry.get_active_graph_element_registry()
    except PySparkException:
        return False
    return True


def schema_of(columns: Iterable[str]) -> StructType:
    """These columns of the log, as Spark has them."""
    return StructType([LOG_SCHEMA[name] for name in columns])


@dataclass
class Piece(InputPartition):
    """What one task reads: ranges, each with its filters."""

    ranges: tuple[tuple[Range, tuple[str, ...]], ...]
    log: str
    #: Where HTTP has the partitions, in a cluster.
    places: dict[int, tuple[str, ...]]

    def __post_init__(self) -> None:
        super().__init__(self.ranges)


class _Reading:
    """What both readers do."""

    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._is_warned = False  # of columns that nobody may need
        self._places: Mapping[int, tuple[str, ...]] = {}  # as the log was told last

    @property
    def _client(self) -> LogClient:
        return LogClient(self._options.url, self._options.token, self._options.patience)

    def _log(self, least: Place | None = None) -> Log:
        """What the log has now, of the partitions that are read; refused without the right to.

        It was read up to `least`.
        """
        options = self._options
        asked = options.asked or (() if options.pattern else ("#",))
        found = self._client.log(asked, options.pattern, least=least)
        self._places = found.places
        return found.only(options.assigned)

    def _at(self, moment: int | Offsets, log: Log, option: str, otherwise: Offsets) -> Offsets:
        """The offsets of a time, or of one by partition; without one, those of `otherwise`."""
        client = self._client
        if isinstance(moment, int):
            found = client.offsets_at(moment)
            return {partition: found[partition] for partition in log.extents}
        offsets.check_partitions(moment, log, option)
        at = {one: client.offsets_at(one) for one in set(moment.values())}
        return otherwise | {partition: at[one][partition] for partition, one in moment.items()}

    def _start(self, log: Log, default: Literal["earliest", "latest"]) -> Offsets:
        """Where a query begins that has not begun."""
        options = self._options
        if options.starting_time is None:
            return offsets.resolve(options.starting or default, log, "startingOffsets", default)
        name = "startingOffsetsByTimestamp"
        words = offsets.first_of(log) if default == "earliest" else offsets.latest_of(log)
        found = self._at(options.starting_time, log, name, words)
        timed = options.starting_time if isinstance(options.starting_time, dict) else found
        late = [p for p in sorted(timed) if found[p] == log.extents[p].next]
        if late and options.strategy == "error":
            text = f"partition {late[0]} has no row from that time on"
            hint = f"{name}Strategy=latest begins at its end"
            raise ConfigError(name, f"{text}; {hint}")
        return found

    def _pieces(self, wanted: list[Range], log: str, filters_of: FiltersOf) -> list[Piece]:
        """The tasks for some ranges."""
        options = self._options
        is_wasteful = options.has_default_columns and sum(map(len, wanted)) >= MANY_ROWS
        if is_wasteful and not self._is_warned:
            self._is_warned = True
            logger.warning(
                "all columns of many rows are read: Spark does not tell a Python source which ones "
                "a query uses; name them with the option columns"
            )
        return [
            Piece(
                tuple((one, filters_of(one.partition)) for one in task),
                log,
                {one.partition: self._places.get(one.partition, ()) for one in task},
            )
            for task in offsets.tasks(wanted, options.min_partitions, options.task_rows)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a piece, as Arrow batches in Spark's types."""
        if not isinstance(partition, Piece):  # Spark makes one up where nothing is to be read
            return
        spare_garbage_collector()
        # A batch is cheapest as it is stored; only payloads are worth being left out.
        columns = () if "payload" in self._options.columns else self._options.columns
        client = self._client
        client.learn({number: some for number, some in partition.places.items() if some})
        batches = (
            batch
            for wanted, filters in partition.ranges
            for batch in client.read(
                wanted,
                filters,
                columns,
                pattern=self._options.pattern,
                log=partition.log,
                fail_on_data_loss=self._options.fail_on_data_loss,
            )
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
        # Most columns have one value in all rows, and mostly the same.
        if len(values) == 1 and len(value := values.pop()) <= LONGEST_REPEATED:
            return _repeated(value, 1 << len(column).bit_length()).slice(0, len(column))
    return column.cast(column.type.value_type)


@lru_cache(maxsize=16)
def _repeated(value: bytes, rows: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.binary()), rows).view(pa.string())


# Batches


class LogReader(_Reading, DataSourceReader):
    """A batch: the rows that the log has when the query is planned."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._wanted = Wanted()
        if not options.pushdown:
            return
        self.pushFilters = Pushdown(self._wanted, options.asked)  # type: ignore[method-assign]  # see there

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        log = self._log()
        if self._wanted.filters(()) is None:
            return []
        start, end = self._bounds(log)
        wanted = offsets.ranges(start, {p: max(end[p], start[p]) for p in end})
        filters = {p: self._wanted.filters(self._options.filters_of(p)) for p in log.extents}
        wanted = [one for one in wanted if filters[one.partition] is not None]
        return [*self._pieces(wanted, log.id, lambda partition: filters[partition] or ())]

    def _bounds(self, log: Log) -> tuple[Offsets, Offsets]:
        options, client = self._options, self._client
        start = self._start(log, "earliest")
        if options.ending_time is not None:
            name, latest = "endingOffsetsByTimestamp", offsets.latest_of(log)
            end = self._at(options.ending_time, log, name, latest)
        else:
            end = offsets.resolve(options.ending or "latest", log, "endingOffsets", "latest")
        if "timestamp" in self._wanted.bounds:
            # Times never go back within a partition, so a time is an offset.
            least, most = self._wanted.bounds["timestamp"]
            start = _larger(start, client.offsets_at(max(0, least)))
            if most < LARGEST:
                end = _smaller(end, client.offsets_at(max(0, most)))
        if "offset" in self._wanted.bounds:
            least, most = self._wanted.bounds["offset"]
            start = _larger(start, dict.fromkeys(start, least))
            end = _smaller(end, dict.fromkeys(end, most))
        least, most = self._wanted.bounds.get("partition", (0, LARGEST))
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
        self._last_batch = float("-inf")  # when one was last begun, by the monotonic clock

    def initialOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Where a new query begins, with the name that it has from then on."""
        log = self._log()
        name = "" if self._options.query else f"{self._options.prefix}-{uuid.uuid4().hex[:12]}"
        return Place(self._start(log, "latest"), log.id, name).as_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """How much a batch may have; Spark gives it back, or ReadAllAvailable for a last batch."""
        options = self._options
        if options.max_rows:
            return ReadMaxRows(options.max_rows)
        if options.max_bytes:
            return ReadMaxBytes(options.max_bytes)
        return ReadMinRows(options.min_rows) if options.min_rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """What is there now is all there will be."""
        self._target = offsets.latest_of(self._log())

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:  # noqa: N802 - Spark's name
        """Where the batch that begins at `start` ends."""
        begin = Place.parse(start)
        log = self._log(begin)
        kept = offsets.check_kept(begin, log, fail=self._options.fail_on_data_loss)
        end = offsets.latest_of(log)
        if self._target:
            end = {p: min(end[p], max(self._target.get(p, 0), kept[p])) for p in end}
        here = Place(end, log.id, begin.query)
        if here == begin:
            # Nothing is left to do, so what was begun is done; Spark itself tells it late.
            self._tell(here)
            if not self._target:
                time.sleep(IDLE)
            return here.as_json()
        if not isinstance(limit, ReadAllAvailable):
            if self._waits_for_more(sum(end[p] - kept[p] for p in end)) and begin.is_in(log.id):
                time.sleep(IDLE)
                return start
            end = offsets.share(kept, end, self._most_rows(log))
        self._last_batch = time.monotonic()
        return Place(end, log.id, begin.query).as_json()

    def _waits_for_more(self, rows: int) -> bool:
        """Whether so few rows are no batch yet."""
        if self._target or rows >= self._options.min_rows:
            return False
        return time.monotonic() - self._last_batch < self._options.max_delay

    def _most_rows(self, log: Log) -> int:
        """The rows that a batch may have."""
        options = self._options
        limits = [options.max_rows or LARGEST]
        if options.max_bytes:
            limits.append(offsets.rows_within(options.max_bytes, log))
        return min(limits)

    def reportLatestOffset(self) -> Json:  # noqa: N802 - Spark's name
        """Where the log ends, for the query's progress: what is left is the lag."""
        log = self._log()
        return Place(offsets.latest_of(log), log.id).as_json()

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        """The tasks of a batch."""
        stop = Place.parse(end)
        found = offsets.between(Place.parse(start), stop)
        return [*self._pieces(found, stop.log, self._options.filters_of)]

    def commit(self, end: Json) -> None:
        """Everything up to here is done."""
        self._tell(Place.parse(end))

    def _tell(self, done: Place) -> None:
        """Tell the broker how far this is; a query goes on where that cannot be told."""
        name = self._options.query or done.query
        if not name or done.offsets == self._told:
            return
        self._told = done.offsets
        client = LogClient(self._options.url, self._options.token, patience=0)
        try:
            client.advance(name, done.offsets)
        except WirelakeError as error:
            logger.warning("the progress of %s was not told: %s", name, error)
