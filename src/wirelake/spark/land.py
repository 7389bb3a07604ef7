"""`wirelake lake land`: the log into the table, exactly once.

A streaming query whose batches are ranges of offsets. Spark's checkpoint remembers which range a
batch has, so a batch that is run again has the same rows; `commits` lets a batch become part of the
table once. Formats that have commits of their own (Delta, Iceberg, …) take a batch whole or not at
all: there the table itself says whether the first batch after a start is in it already.

Rows that have no place in the table (a time that no calendar has, an address that is not UTF-8) go
to the side table with the reason, in the same commit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

from wirelake.spark import offsets, table
from wirelake.spark import options as source_options
from wirelake.spark.commits import FEW, FILE_FORMATS, Commits, File, Files
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Extent, Place
from wirelake.spark.session import spark_errors
from wirelake.spark.source import register

#: Rows of the log in one batch at most.
BATCH_ROWS = 4_000_000
#: Bytes of a bad row's payload that the side table has.
EXCERPT = 64

_BAD = "_bad"
_FIRST, _END = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
_POLL = 0.2  # seconds between two looks at a query


@dataclass(frozen=True)
class Options:
    """What to land, and where."""

    url: str
    table: str
    subscribe: str = ""
    token: str = ""
    format: str = "parquet"
    checkpoint: str = ""  # "": beside the table
    every: float = 0.0  # seconds between batches; 0: all there is now, and no more
    batch_rows: int = BATCH_ROWS
    compact: bool = True
    few_files: int = FEW  # so many small ones in a folder are made one
    skip_lost: bool = False
    patience: float = offsets.PATIENCE

    @property
    def home(self) -> str:
        """Where the checkpoint is."""
        return self.checkpoint or f"{self.table.rstrip('/')}_checkpoint"

    @property
    def query(self) -> str:
        """What the broker calls this."""
        name = self.table.rstrip("/").rpartition("/")[2]
        return f"land-{re.sub('[^A-Za-z0-9._-]', '_', name)[:64]}"

    def for_source(self) -> dict[str, str]:
        """The same for the source."""
        given = {
            "url": self.url,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "failOnDataLoss": str(not self.skip_lost).lower(),
            "maxRowsPerTrigger": str(self.batch_rows),
            "query": self.query,
            "retrySeconds": str(self.patience),
        }
        if self.token:
            given["token"] = self.token
        if self.subscribe:
            given["subscribe"] = self.subscribe
        return given


@dataclass(frozen=True)
class Step:
    """A batch that has landed."""

    batch: int
    rows: int
    lag: int  # rows that the log had beyond it


def land(
    spark: SparkSession,
    options: Options,
    told: Callable[[Step], object] = lambda step: None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Land until all is there, or until `stopped`; how many rows have landed."""
    source_options.Options.parse(
        options.for_source()
    )  # what is wrong is told before Spark is asked
    register(spark)
    landing = _Landing(spark, options)
    rows = 0
    with landing.alone(), spark_errors():
        query = landing.start()
        try:
            seen = -1
            while True:
                is_over = stopped() or query.awaitTermination(_POLL)  # type: ignore[arg-type]  # takes a float
                for progress in query.recentProgress:
                    if progress["batchId"] > seen and progress["numInputRows"]:
                        seen = progress["batchId"]
                        step = landing.landed(progress)
                        rows += step.rows
                        told(step)
                if is_over:
                    return rows
        finally:
            query.stop()


class _Landing:
    """One run of the query."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        self._spark = spark
        self._options = options
        self._client = LogClient(options.url, options.token, options.patience)
        self._files = Files(spark, options.table)
        self._table = self._files.whole(options.table)
        self._side = table.side_table(self._table)
        self._extents: dict[int, Mapping[int, Extent]] = {}
        self._is_first = True
        self._commits: Commits | None = None
        if options.format in FILE_FORMATS:
            self._commits = Commits(spark, options.table, f"{options.home}/landed")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process land with the same checkpoint, and finish what one has left."""
        if self._commits is None:
            yield
            return
        with self._commits.alone():
            self._commits.recover()
            yield

    def start(self) -> StreamingQuery:
        """Start the query."""
        options = self._options
        source = self._spark.readStream.format("wirelake").options(**options.for_source()).load()
        writer = source.writeStream.foreachBatch(self._land).option(
            "checkpointLocation", options.home
        )
        if options.every:
            writer = writer.trigger(processingTime=f"{round(options.every * 1000)} milliseconds")
        else:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    def landed(self, progress: Any) -> Step:
        """What a batch was, once it is over."""
        (source,) = progress["sources"]
        start, end, latest = (
            Place.parse(_parsed(source[name]))
            for name in ("startOffset", "endOffset", "latestOffset")
        )
        if self._options.skip_lost:
            self._tell_lost(start, end, self._extents.pop(progress["batchId"], {}))
        behind = (at - end.offsets.get(p, 0) for p, at in latest.offsets.items())
        lag = sum(max(0, rows) for rows in behind)
        return Step(progress["batchId"], progress["numInputRows"], lag)

    def _tell_lost(self, start: Place, end: Place, extents: Mapping[int, Extent]) -> None:
        """Put into the side table what the log had no more when a batch began."""
        now = datetime.now(UTC)
        lost = []
        for p, extent in extents.items():
            at = start.offsets.get(p, extent.first)
            if not start.is_in(end.log):
                reason = f"the log {start.log} was replaced by {end.log}; what it had is not known"
            elif at < extent.first:
                reason = f"the rows up to {extent.first} were deleted before they were landed"
            else:
                continue
            lost.append((f"log/{p}", at, reason, "", b"", now))
        table.write_errors(self._spark, lost, self._side, format=self._options.format)

    # In a batch

    def _land(self, rows: DataFrame, batch: int) -> None:
        if self._options.skip_lost:
            self._extents[batch] = self._client.log().extents
        if self._commits is None:
            rows.persist()  # it is looked at several times
            try:
                self._append(rows)
            finally:
                rows.unpersist()
            return
        touched = self._commits.commit(batch, lambda place: self._write(rows, place), self._place)
        if self._options.compact:
            for folder in sorted(touched - {self._side}):
                options = self._options
                self._commits.compact(folder, self._load, options.format, options.few_files)

    def _write(self, rows: DataFrame, place: str) -> None:
        """Write a batch in one pass; bad rows to a folder of their own, then as what they are."""
        day = F.when(_fault() == "", F.col("date").cast("string")).otherwise(_BAD)
        self._save(table.with_folders(rows).withColumn("date", day), f"{place}/rows")
        bad = f"{place}/rows/date={_BAD}"
        if files := [file.path for file in self._files.below(bad)]:
            self._save(_errors(self._load(files)), f"{place}/errors")
            self._files.delete(bad)

    def _save(self, rows: DataFrame, place: str) -> None:
        folders = [name for name in table.FOLDERS if name in rows.columns]
        with spark_errors():
            rows.write.format(self._options.format).partitionBy(*folders).save(place)

    def _load(self, files: list[str]) -> DataFrame:
        with spark_errors():
            reader = self._spark.read.format(self._options.format).schema(table.LOG_SCHEMA)
            return reader.load(files)

    def _place(self, file: File) -> str:
        kind, _, folder = file.folder.partition("/")
        return f"{self._table}/{folder}" if kind == "rows" else self._side

    # Formats with commits of their own

    def _append(self, rows: DataFrame) -> None:
        if self._is_first and self._is_there(rows):
            return
        self._is_first = False
        # A place that may be a name, so it is taken as it was given.
        format, place = self._options.format, self._options.table
        bad = rows.where(_fault() != "")
        with spark_errors():
            if not bad.isEmpty():
                side = table.side_table(place)
                _errors(bad).write.format(format).mode("append").save(side)
        table.write(rows.where(_fault() == ""), place, format=format)

    def _is_there(self, rows: DataFrame) -> bool:
        """Whether a batch is in the table, told by its first row of each partition."""
        with spark_errors():
            first = F.min(F.struct("offset", "timestamp")).alias("row")
            firsts = rows.groupBy("partition").agg(first).collect()
            try:
                landed = self._spark.read.format(self._options.format).load(self._options.table)
            except AnalysisException:  # there is no table yet
                return False
            for found in firsts:
                same = (
                    (F.col("partition") == found["partition"])
                    & (F.col("offset") == found["row"]["offset"])
                    & (F.col("timestamp") == found["row"]["timestamp"])
                )
                if not landed.where(same).isEmpty():
                    return True
        return False


def _fault() -> Column:
    """Why a row has no place in the table; empty where it has."""
    time = F.col("timestamp")
    outside = (time < F.lit(_FIRST)) | (time >= F.lit(_END))
    return (
        F.when(outside, "a time that no calendar has")
        .when(~F.is_valid_utf8("address"), "an address that is not UTF-8")
        .otherwise("")
    )


def _errors(bad: DataFrame) -> DataFrame:
    """Bad rows as the side table has them."""
    return bad.select(
        F.concat(F.lit("log/"), F.col("partition").cast("string")).alias("file"),
        "offset",
        _fault().alias("reason"),
        "dialect",
        F.substring("payload", 1, EXCERPT).alias("excerpt"),
        F.current_timestamp().alias("time"),
    )


def _parsed(offset: Any) -> Any:
    """An offset of a query's progress; there is none before the first batch."""
    return json.loads(offset or "{}") or {} if isinstance(offset, str | None) else offset
