"""`wirelake lake land`: the log into tables, exactly once.

The driver plans batches, which are ranges of offsets; Spark's tasks read them from the broker as
Arrow and write Parquet files; the driver commits the files. There is no streaming query and no
checkpoint beside the table: the table itself says where to go on (`lakes`, `commits`).

Rows that have no place in the table (a time that no calendar has, a text that is not UTF-8, a
payload that does not fit its schema) go to the side table with the reason, in the same batch.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from wirelake.address import check_filter
from wirelake.errors import ConfigError, EngineError, RefusedError, WirelakeError
from wirelake.spark import direct, offsets
from wirelake.spark import options as source_options
from wirelake.spark.commits import TakenError
from wirelake.spark.compaction import FEW, Compactor
from wirelake.spark.files import FILE_BYTES, TableWriter
from wirelake.spark.lakes import Batch, DeltaLake, Lake, Output, Ready, Route, lake
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Log, Offsets, Place, Range, query_name
from wirelake.spark.rows import errors, matching, sift, with_folders
from wirelake.spark.storage import Storage
from wirelake.spark.typed import Columns, Typed

#: Rows of the log in one batch at most.
BATCH_ROWS = 4_000_000
#: Rows that are worth a task of their own: a batch has at most two for each core.
TASK_ROWS = 100_000
#: Rows that are not worth a task at all, where tasks would run on this machine.
SMALL_ROWS = 1_000
#: Seconds between batches.
EVERY = 2.0
#: Seconds until a broker that had nothing new is asked again, where batches follow at once.
IDLE = 0.05
#: At most this long until a request to stop is seen (seconds).
STOP_POLL = 0.1

_NAME = re.compile("[A-Za-z0-9][A-Za-z0-9._-]*")

log = logging.getLogger("wirelake.spark")


@dataclass(frozen=True)
class Options:
    """What to land, and where."""

    url: str
    table: str
    subscribe: str = ""
    token: str = ""
    format: str = "delta"
    once: bool = True  # all there is now, and no more
    every: float = EVERY  # seconds between batches; 0: one after the other
    batch_rows: int = BATCH_ROWS
    partition_by: tuple[str, ...] = ()
    skip_lost: bool = False
    go_on: bool = False  # where another process lands the same query
    patience: float = offsets.PATIENCE
    query: str = ""  # "": after the table
    storage: Mapping[str, str] = field(default_factory=dict)
    routes: tuple[tuple[str, str], ...] = ()  # filters, and tables in the folder `table`
    schemas: tuple[Typed, ...] = ()  # of payloads, by filter
    compact: bool = True
    few_files: int = FEW  # files of about one size that are made one
    file_bytes: int = FILE_BYTES

    @property
    def name(self) -> str:
        """The name of this query in the table and at the broker."""
        return query_name(self.query or f"land-{self.table.rstrip('/').rpartition('/')[2]}")

    @property
    def filters(self) -> tuple[str, ...]:
        """What is landed; nothing named is everything."""
        if self.subscribe and self.routes:
            raise ConfigError("--subscribe", "with --route only what a route names is landed")
        given = {"url": self.url} | ({"subscribe": self.subscribe} if self.subscribe else {})
        if not self.routes:
            return source_options.Options.parse(given).filters
        try:
            wanted = tuple(dict.fromkeys(check_filter(filter) for filter, _ in self.routes))
        except RefusedError as error:
            raise ConfigError("--route", error.text) from None
        return () if "#" in wanted else wanted

    def tables(self) -> list[Route]:
        """The tables to land in, each with the filters of its rows."""
        place = Storage.of(self.table, self.storage)
        if not self.routes:
            return [Route(place)]
        filters: dict[str, tuple[str, ...]] = {}
        for filter, name in self.routes:
            if not _NAME.fullmatch(name):
                raise ConfigError("--route", f"{name!r} is no name of a table in {place.uri}")
            filters[name] = (*filters.get(name, ()), filter)
        return [Route(place.beside(f"/{name}"), mine) for name, mine in filters.items()]


@dataclass(frozen=True)
class Step:
    """A batch that has landed."""

    batch: int
    rows: int
    lag: int  # rows that the log had beyond it


@dataclass(frozen=True)
class LandRanges:
    """What a task does: read ranges of the log, write files."""

    client: LogClient
    log: str
    ranges: tuple[Range, ...]
    filters: tuple[str, ...]
    tables: tuple[Output, ...]
    side: Output
    skip_lost: bool
    number: int
    schemas: tuple[Typed, ...] = ()

    def run(self) -> Ready:
        """Write the files of all tables; nobody sees them yet."""
        writers = [self._writer(one) for one in self.tables]
        side = self._writer(self.side)
        columns = Columns(self.schemas)
        rows = 0
        for one in self.ranges:
            read = self.client.read(
                one, self.filters, log=self.log, fail_on_data_loss=not self.skip_lost
            )
            for some in read:
                rows += some.num_rows
                good, bad = sift(some)
                good, misfits = columns.add(good)
                for each in (bad, misfits):
                    if each is not None:
                        side.write(_from(each, self.side.floor.get(one.partition, 0)))
                good = with_folders(good)
                for output, writer in zip(self.tables, writers, strict=True):
                    wanted = _from(good, output.floor.get(one.partition, 0))
                    writer.write(matching(wanted, output.filters))
        return Ready([writer.close() for writer in writers], side.close(), rows)

    def _writer(self, output: Output) -> TableWriter:
        return TableWriter(output.target, f"{output.name}-{self.number}" if output.name else "")


def _from(rows: pa.Table, floor: int) -> pa.Table:
    """The rows from an offset on; all of them, as a rule."""
    if not rows.num_rows or rows.column("offset")[0].as_py() >= floor:
        return rows
    return rows.filter(pc.greater_equal(rows.column("offset"), floor))


def land(
    spark: SparkSession,
    options: Options,
    told: Callable[[Step], object] = lambda step: None,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Land until all is there, or until `stopped`; how many rows have landed.

    Raises ConfigError where an option is wrong, RefusedError where the broker refuses, EngineError
    where rows were lost, the broker stays away, the table cannot be written, or another process
    lands the same query.
    """
    landing = _Landing(spark, options)
    rows = 0
    with landing.lake.alone():
        landing.refresh()
        end = landing.latest() if options.once else None
        try:
            while not stopped():
                began = time.monotonic()
                step = landing.step(end)
                if step is not None:
                    rows += step.rows
                    if step.rows:
                        told(step)
                    if step.lag and (end is None or landing.is_behind(end)):
                        continue
                if end is not None and not landing.is_behind(end):
                    break
                pause = options.every if options.every else (0.0 if step else IDLE)
                _wait(began + pause, stopped)
            landing.lake.close()
        finally:
            landing.close()
    return rows


def _wait(until: float, stopped: Callable[[], bool]) -> None:
    while (left := until - time.monotonic()) > 0 and not stopped():
        time.sleep(min(left, STOP_POLL))


class _Landing:
    """One run."""

    def __init__(self, spark: SparkSession, options: Options) -> None:
        self._spark = spark
        self._options = options
        self._filters = options.filters
        self._client = LogClient(options.url, options.token, options.patience)
        self._log = self._client.log()  # a broker that is not there is told of first
        self.lake: Lake = lake(
            options.tables(),
            Storage.of(options.table, options.storage).beside("_errors"),
            options.name,
            options.schemas,
            format=options.format,
            partition_by=options.partition_by,
            file_bytes=options.file_bytes,
        )
        self._compactor = Compactor(spark, options.few_files, options.file_bytes)
        self._place: Offsets = {}  # where the next batch begins
        self._lost: list[tuple[int, int, str]] = []  # partition, offset, why
        self._told: Offsets = {}

    def refresh(self) -> None:
        """Ask the tables where to go on."""
        self._log = self._client.log()
        self.lake.refresh(self._log)
        floors, self._lost = _floors(self._log, self.lake, self._options.skip_lost)
        self._place = floors

    def close(self) -> None:
        """Finish the compaction that is under way."""
        self._compactor.close()

    def latest(self) -> Offsets:
        """Where the log ends now."""
        return {p: extent.next for p, extent in self._client.log().extents.items()}

    def is_behind(self, end: Offsets) -> bool:
        """Is there anything to land before this?"""
        return any(at > self._place.get(p, 0) for p, at in end.items())

    def step(self, until: Offsets | None) -> Step | None:
        """Land one batch, if there is anything new."""
        batch = self.lake.unfinished()
        if batch is None:
            batch = self._planned(until)
            if batch is None:
                self._tell()
                return None
        try:
            return self._land(batch)
        except TakenError as error:
            if not self._options.go_on:
                hint = "with --on-conflict continue it would go on behind that"
                raise EngineError(f"{error.reason}; {hint}") from error
            log.warning("%s; going on behind that", error.reason)
            self.refresh()
            return None

    def _planned(self, until: Offsets | None) -> Batch | None:
        now = self._client.log(least=Place(self._place, self._log.id))
        if now.id != self._log.id or _is_shorter(now, self._place):
            self.refresh()
            now = self._log
        else:
            self._log = now
            for p, extent in now.extents.items():
                at = self._place.setdefault(p, extent.first)
                if at < extent.first:  # deleted while we were landing
                    self.refresh()
                    now = self._log
                    break
        end = {p: extent.next for p, extent in now.extents.items()}
        if until is not None:
            end = {p: min(at, max(until.get(p, 0), self._place[p])) for p, at in end.items()}
        if end == self._place and not self._lost:
            return None
        end = offsets.share(self._place, end, self._options.batch_rows)
        found = [Range(p, self._place[p], end[p]) for p in sorted(end) if end[p] > self._place[p]]
        tasks = cut(found, 2 * direct.parallelism(self._spark))
        return Batch(now.id, tasks, end, self._lost_rows())

    def _land(self, batch: Batch) -> Step:
        options = self._options
        self.lake.begin(batch)
        tables, side = self.lake.outputs()
        works = [
            LandRanges(
                self._client,
                batch.log,
                ranges,
                self._filters,
                tables,
                side,
                options.skip_lost,
                number,
                options.schemas,
            )
            for number, ranges in enumerate(batch.tasks)
        ]
        is_small = sum(len(one) for ranges in batch.tasks for one in ranges) <= SMALL_ROWS
        ready = direct.run(self._spark, works, is_small=is_small)
        self.lake.commit(batch, ready)
        if options.compact and isinstance(self.lake, DeltaLake):
            self._compactor.added(
                self.lake.tables, sum(len(files) for one in ready for files in one.files)
            )
        self._place = {**self._place, **batch.end}
        self._lost = []
        self._tell()
        behind = (extent.next - self._place[p] for p, extent in self._client.log().extents.items())
        rows = sum(one.rows for one in ready)
        lag = sum(max(0, one) for one in behind)
        return Step(self.lake.batch, rows, lag)

    def _lost_rows(self) -> pa.Table | None:
        """What the log had no more, as the side table has it."""
        lost = [one for one in self._lost if self.lake.side_floor.get(one[0], -1) <= one[1]]
        if not lost:
            return None
        return errors((f"log/{p}", at, why, "", b"") for p, at, why in lost)

    def _tell(self) -> None:
        """Tell the broker how far this is; landing goes on where that cannot be told."""
        if self._place == self._told:
            return
        self._told = dict(self._place)
        client = LogClient(self._options.url, self._options.token, patience=0)
        try:
            client.advance(self._options.name, self._told)
        except WirelakeError as error:
            log.warning("the progress of %s was not told: %s", self._options.name, error)


def _is_shorter(now: Log, place: Offsets) -> bool:
    return any(p not in now.extents or at > now.extents[p].next for p, at in place.items())


def _floors(found: Log, lake: Lake, skip_lost: bool) -> tuple[Offsets, list[tuple[int, int, str]]]:
    """Where to go on in a log, and what it has no more; raises EngineError unless that is fine.

    The place is that of the table which is furthest behind.
    """
    lost: list[tuple[int, int, str]] = []
    hint = "with --skip-lost landing goes on with what there is"
    if not lake.is_new and not any(lake.floors):
        known = lake.last_log() or "another log"
        if not skip_lost:
            raise EngineError(
                f"the log {known} was landed so far, but the broker has the log {found.id}: was "
                "its data replaced? With --skip-lost that one is landed from its beginning"
            )
        why = f"the log {known} was replaced by {found.id}; what it had is not known"
        first = {p: extent.first for p, extent in found.extents.items()}
        return first, [(p, at, why) for p, at in first.items()]
    place: Offsets = {}
    for p, extent in found.extents.items():
        at = min(floor.get(p, extent.first) for floor in lake.floors)
        if at > extent.next:
            text = f"partition {p} of the log ends at {extent.next}, but was landed up to {at}"
            if not skip_lost:
                raise EngineError(f"{text}: was the broker's data replaced? {hint}")
            lost.append((p, at, f"{text}; what it had is not known"))
            at = extent.first
        elif at < extent.first:
            if not skip_lost:
                raise EngineError(
                    f"the rows {at} to {extent.first - 1} of partition {p} of the log were deleted "
                    f"before they were landed; {hint}"
                )
            lost.append(
                (p, at, f"the rows up to {extent.first} were deleted before they were landed")
            )
            at = extent.first
        place[p] = at
    return place, lost


def cut(found: list[Range], most: int) -> tuple[tuple[Range, ...], ...]:
    """Ranges shared out to tasks of the same size: as few as sensible, `most` at most.

    A task may have ranges of several partitions: a small batch is to be one file.
    """
    total = sum(map(len, found))
    count = max(1, min(most, -(-total // TASK_ROWS)))
    tasks: list[list[Range]] = [[] for _ in range(count)]
    done = 0
    for one in found:
        start = one.start
        while start < one.stop:
            number = done * count // total
            stop = min(one.stop, start + -(-total * (number + 1) // count) - done)
            tasks[number].append(Range(one.partition, start, stop))
            done += stop - start
            start = stop
    return tuple(tuple(task) for task in tasks if task)
