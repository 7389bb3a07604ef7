"""The tables that one query lands in, and how a batch becomes part of them exactly once.

`DeltaLake` commits; `ParquetLake` appends files. Each says where it is, so a restart asks the
tables and nothing else. Tables of one query can be at different places for a moment, when a driver
died between two commits: each has a *floor*, the next offset it needs, and tasks leave out the rows
that a table has already. The side table has one as well: it is committed first, so it may be ahead.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import pyarrow as pa

from wirelake.errors import ConfigError
from wirelake.spark import commits
from wirelake.spark.append_only import AppendOnly, Noted
from wirelake.spark.commits import Landed, Table
from wirelake.spark.files import FILE_BYTES, TableWriter, Target, Written
from wirelake.spark.offsets import Log, Offsets, Range
from wirelake.spark.rows import ERRORS, FOLDERS
from wirelake.spark.storage import Storage
from wirelake.spark.typed import NEEDS_DELTA, Typed, table_schema

#: How often the position of a query is committed to a table that gets no rows (seconds).
NOTE_EVERY = 60.0


@dataclass(frozen=True)
class Route:
    """A table, and the addresses whose rows go there; all of them where there is no filter."""

    storage: Storage
    filters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Output:
    """A table as a task needs to know it."""

    target: Target
    filters: tuple[str, ...] = ()
    floor: Offsets = field(default_factory=dict)  # rows before are in it
    name: str = ""  # what its files' names begin with, where they are to be the same each time


@dataclass(frozen=True)
class Batch:
    """What is landed together: the ranges of each task, and where the log is read up to then."""

    log: str
    tasks: tuple[tuple[Range, ...], ...]
    end: Offsets
    lost: pa.Table | None = None  # rows of the side table: what the log had no more


@dataclass(frozen=True)
class Ready:
    """The files that a task has written, for each of the tables and for the side table."""

    files: list[list[Written]]
    side: list[Written]
    rows: int


class Lake(Protocol):
    """Where a query lands."""

    def alone(self) -> AbstractContextManager[None]:
        """Keep others out as long as this lasts, where that is needed."""

    def refresh(self, log: Log) -> None:
        """Read from the tables where the query is; raises where they cannot be read."""

    @property
    def floors(self) -> list[Offsets]:
        """The next offset that each table needs, of the partitions that it knows."""

    @property
    def batch(self) -> int:
        """The number of the last batch; -1 before the first."""

    @property
    def is_new(self) -> bool:
        """Has the query never landed anything?"""

    @property
    def side_floor(self) -> Offsets:
        """Return the floor of the side table."""

    def last_log(self) -> str:
        """The log that was landed so far, as far as that is known."""

    def unfinished(self) -> Batch | None:
        """A batch that was begun and must be run again as it is."""

    def begin(self, batch: Batch) -> None:
        """A batch is about to be run."""

    def outputs(self) -> tuple[tuple[Output, ...], Output]:
        """The tables and the side table, for tasks."""

    def commit(self, batch: Batch, ready: Sequence[Ready]) -> None:
        """Commit a batch's files to the tables; TakenError if another driver was faster."""

    def close(self) -> None:
        """Note where the query is, before it ends."""


def lake(
    routes: Sequence[Route],
    side: Storage,
    query: str,
    schemas: Sequence[Typed] = (),
    *,
    format: str,
    partition_by: tuple[str, ...] = (),
    file_bytes: int = FILE_BYTES,
) -> Lake:
    """The lake for a query; raises ConfigError where it cannot be one."""
    for name in partition_by:
        if name not in FOLDERS:
            raise ConfigError("--partition-by", f"{name} is neither of {', '.join(FOLDERS)}")
    targets = [
        Target(
            route.storage,
            table_schema(schemas, route.filters),
            partition_by,
            file_bytes=file_bytes,
        )
        for route in routes
    ]
    filters = [route.filters for route in routes]
    match format:
        case "delta":
            return DeltaLake(targets, filters, side, query)
        case "parquet" if len(routes) > 1:
            raise ConfigError("--route", "several tables need --format delta")
        case "parquet" if schemas:
            raise ConfigError("--schema", NEEDS_DELTA)
        case "parquet":
            return ParquetLake(targets[0], filters[0], side, query)
    text = f"{format!r} is neither delta nor parquet; for others, write a streaming query"
    raise ConfigError("--format", text)


class DeltaLake:
    """Delta tables, each its own checkpoint."""

    def __init__(
        self,
        targets: Sequence[Target],
        filters: Sequence[tuple[str, ...]],
        side: Storage,
        query: str,
    ) -> None:
        self._query = query
        self.tables = [Table.ensure(one.storage, one.schema, one.partition_by) for one in targets]
        # A table that is there keeps its folders.
        self._targets = [
            replace(target, partition_by=table.partition_by)
            for target, table in zip(targets, self.tables, strict=True)
        ]
        self._filters = filters
        self._side = Target(side, ERRORS)
        self._side_table = Table(side) if commits.exists(side) else None
        self._log = Log("", {})
        self.floors: list[Offsets] = []
        self.side_floor: Offsets = {}
        self._noted: list[Offsets] = []
        self._noted_at = time.monotonic()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Delta tells of others when it matters."""
        yield

    def refresh(self, log: Log) -> None:
        """See what was committed, by whomever."""
        self._log = log
        for table in self.tables:
            table.refresh()
        self.floors = [table.offsets(self._query, log) for table in self.tables]
        self._noted = list(self.floors)
        if self._side_table is None and commits.exists(self._side.storage):
            self._side_table = Table(self._side.storage)
        if self._side_table is not None:
            self._side_table.refresh()
            self.side_floor = self._side_table.offsets(self._query, log)

    @property
    def batch(self) -> int:
        """Of the first table."""
        return self.tables[0].batch(self._query)

    @property
    def is_new(self) -> bool:
        """Is this the query's first batch?"""
        return all(table.batch(self._query) < 0 for table in self.tables)

    def last_log(self) -> str:
        """Of the first table."""
        return self.tables[0].last_log(self._query)

    def unfinished(self) -> Batch | None:
        """Always None: what was not committed is planned again."""
        return None

    def begin(self, batch: Batch) -> None:
        """Do nothing: a batch is recorded when it is committed."""

    def outputs(self) -> tuple[tuple[Output, ...], Output]:
        """With the floors as they are."""
        tables = tuple(
            Output(target, filters, floor)
            for target, filters, floor in zip(
                self._targets, self._filters, self.floors, strict=True
            )
        )
        return tables, Output(self._side, floor=self.side_floor)

    def commit(self, batch: Batch, ready: Sequence[Ready]) -> None:
        """The side table first: it knows rows of a batch that was not finished as its own."""
        errors = [file for one in ready for file in one.side]
        if batch.lost is not None:
            writer = TableWriter(self._side)
            writer.write(batch.lost)
            errors += writer.close()
        if errors:
            if self._side_table is None:
                self._side_table = Table.ensure(self._side.storage, ERRORS, among_files=True)
            self._append(self._side_table, errors, batch.log, batch.end)
            self.side_floor = batch.end
        is_due = time.monotonic() - self._noted_at >= NOTE_EVERY
        for number, table in enumerate(self.tables):
            files = [file for one in ready for file in one.files[number]]
            if files or is_due:
                self._append(table, files, batch.log, batch.end)
                self._noted[number] = batch.end
            self.floors[number] = batch.end
        if is_due:
            self._noted_at = time.monotonic()

    def close(self) -> None:
        """Commit the query's position to tables that got no rows lately."""
        for number, table in enumerate(self.tables):
            if self.floors and self.floors[number] != self._noted[number]:
                self._append(table, [], self._log.id, self.floors[number])
                self._noted[number] = self.floors[number]

    def _append(self, table: Table, files: list[Written], log: str, end: Offsets) -> None:
        before = table.offsets(self._query, self._log)
        moved = {p: at for p, at in end.items() if before.get(p) != at}
        table.append(files, Landed(self._query, table.batch(self._query) + 1, log, moved))


class ParquetLake:
    """One folder of Parquet files, and one of the side table's."""

    def __init__(self, target: Target, filters: tuple[str, ...], side: Storage, query: str) -> None:
        self._query = query
        self._target = target
        self._filters = filters
        self._side = Target(side, ERRORS)
        self._notes = AppendOnly(target.storage, query)
        self._now = Noted()
        self.floors: list[Offsets] = []
        self.side_floor: Offsets = {}

    def alone(self) -> AbstractContextManager[None]:
        """Two would write the same rows under different names."""
        return self._notes.alone()

    def refresh(self, log: Log) -> None:
        """See what was noted."""
        self._now = self._notes.read()
        is_same = self._now.log in ("", log.id)
        self.floors = [dict(self._now.offsets or {}) if is_same else {}]

    @property
    def batch(self) -> int:
        """As noted."""
        return self._now.batch

    @property
    def is_new(self) -> bool:
        """Is this the query's first batch?"""
        return self._now.batch < 0

    def last_log(self) -> str:
        """As noted."""
        return self._now.log

    def unfinished(self) -> Batch | None:
        """The batch that was noted and not done."""
        now = self._now
        return Batch(now.log, now.ranges, now.offsets or {}) if now.ranges else None

    def begin(self, batch: Batch) -> None:
        """Note it, unless it was."""
        if not self._now.ranges:
            self._now = Noted(self._now.batch + 1, batch.log, batch.end, batch.tasks)
            self._notes.note(self._now)

    def outputs(self) -> tuple[tuple[Output, ...], Output]:
        """Files have the batch's number in their names."""
        name = f"{self._query}-{self._now.batch:08}"
        # A batch that is run again has the floors of its ranges.
        return (Output(self._target, self._filters, name=name),), Output(self._side, name=name)

    def commit(self, batch: Batch, ready: Sequence[Ready]) -> None:
        """The files are there; note that all of them are."""
        if batch.lost is not None:
            writer = TableWriter(self._side, f"{self._query}-{self._now.batch:08}-lost")
            writer.write(batch.lost)
            writer.close()
        self._now = replace(self._now, ranges=())
        self._notes.note(self._now)
        self.floors = [dict(batch.end)]

    def close(self) -> None:
        """All is noted."""
