"""Few large files instead of many small ones, while others read and land.

Every two seconds of landing make a file. Files are merged by size, as log-structured stores do it:
once a folder has enough files of one size class they become one file of the next, so that a row is
rewritten a few times, not once for every batch. Spark's tasks read and write; one commit takes the
old files out and adds the new ones, so no reader ever sees a row twice or not at all. Old files
stay where they are for those who read an older version, until vacuum removes them.

Rows stay in the order in which they were landed. They can be sorted instead: by some columns, or
along a Z-order curve of address and time, which makes files that queries for either can skip.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from wirelake.errors import ConfigError, WirelakeError
from wirelake.spark import direct
from wirelake.spark.commits import Table
from wirelake.spark.files import FILE_BYTES, TableWriter, Target, Written, complete
from wirelake.spark.storage import Storage

#: Files of one size class that become one.
FEW = 16
#: Files below this are of the first class; each further class is larger by the factor (bytes).
SMALLEST = 1 << 20
FACTOR = 8
#: Columns that rows can be sorted by.
SORTABLE = ("timestamp", "address", "source", "dialect", "op", "partition", "offset")
#: How often landing deletes the files of versions that are older than the table keeps (seconds).
CLEAN_EVERY = 3600.0

_DICTIONARIES = ["address", "op", "dialect", "source", "level"]
_Z_BITS = 16

log = logging.getLogger("wirelake.spark")


@dataclass(frozen=True)
class Order:
    """How the rows of a file are sorted: not at all, by columns, or along a curve of both."""

    columns: tuple[str, ...] = ()
    is_curve: bool = False

    def __post_init__(self) -> None:
        for name in self.columns:
            if name not in SORTABLE:
                raise ConfigError("--sort", f"{name} is none of {', '.join(SORTABLE)}")


Z_ORDER = Order(("address", "timestamp"), is_curve=True)
AS_LANDED = Order()


@dataclass(frozen=True)
class Merge:
    """What a task does: some files of a folder into one."""

    files: tuple[Written, ...]
    target: Target
    order: Order

    def run(self) -> list[Written]:
        """Write the new file; nobody sees it yet."""
        writer = TableWriter(self.target)
        tables = self._tables()
        if self.order.columns:
            tables = iter([sort(pa.concat_tables(list(tables)), self.order)])
        for rows in tables:
            writer.write(rows)
        return writer.close()

    def _tables(self) -> Iterable[pa.Table]:
        system, root = self.target.storage.open()
        for file in self.files:
            with system.open_input_file(f"{root}/{file.path}") as source:
                names = [name for name in _DICTIONARIES if name not in file.values]
                parquet = pq.ParquetFile(source, read_dictionary=names)
                for number in range(parquet.num_row_groups):
                    yield complete(parquet.read_row_group(number), self.target.schema, file)


def sort(rows: pa.Table, order: Order) -> pa.Table:
    """Rows in an order; those that are equal in it stay as they were."""
    if not order.is_curve:
        return rows.take(
            pc.sort_indices(_plain(rows, order.columns), [(n, "ascending") for n in order.columns])
        )
    code = None
    for shift, name in enumerate(order.columns):
        ranks = pc.rank(_plain(rows, (name,)).column(name), tiebreaker="dense").cast(pa.int64())
        most = max(1, pc.max(ranks).as_py())
        scaled = pc.divide(pc.multiply(ranks, (1 << _Z_BITS) - 1), most)
        spread = pc.shift_left(_spread(scaled), shift)
        code = spread if code is None else pc.bit_wise_or(code, spread)
    return rows.take(pc.sort_indices(code))


def _plain(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    columns = [rows.column(name) for name in names]
    return pa.table(
        [
            one.cast(one.type.value_type) if pa.types.is_dictionary(one.type) else one
            for one in columns
        ],
        names=list(names),
    )


def _spread(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each of 16 bits with a gap of one bit behind it."""
    for shift, mask in ((8, 0x00FF00FF), (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)):
        numbers = pc.bit_wise_and(pc.bit_wise_or(numbers, pc.shift_left(numbers, shift)), mask)
    return numbers


def size_class(size: int) -> int:
    """Return the size class of a file of this many bytes."""
    found = 0
    while size >= SMALLEST * FACTOR**found:
        found += 1
    return found


def worth_merging(
    files: Iterable[Written], few: int = FEW, most: int = FILE_BYTES
) -> list[list[Written]]:
    """Groups of files of one folder and one size class that are to be merged."""
    classes: dict[tuple[tuple[str, ...], int], list[Written]] = defaultdict(list)
    for file in files:
        if file.size < most // 2:
            classes[tuple(file.values.values()), size_class(file.size)].append(file)
    groups = []
    for same in classes.values():
        while len(same) >= max(2, few):
            group: list[Written] = []
            size = 0
            while len(group) < len(same) and size < most:
                size += same[len(group)].size
                group.append(same[len(group)])
            del same[: len(group)]
            groups.append(group)
    return groups


def all_together(
    files: Iterable[Written], most: int = FILE_BYTES, *, whole: bool = False
) -> list[list[Written]]:
    """Groups of the files of a folder that are not large yet, or of all, up to a size each."""
    folders: dict[tuple[str, ...], list[Written]] = defaultdict(list)
    for file in files:
        if whole or file.size < most // 2:
            folders[tuple(file.values.values())].append(file)
    groups = []
    for same in folders.values():
        group: list[Written] = []
        for file in same:
            if group and sum(one.size for one in group) + file.size > most:
                groups.append(group)
                group = []
            group.append(file)
        groups.append(group)
    return [group for group in groups if whole or len(group) > 1]


def compact(
    spark: SparkSession,
    table: Table,
    groups: Sequence[Sequence[Written]],
    order: Order = AS_LANDED,
    most: int = FILE_BYTES,
) -> tuple[int, int]:
    """Merge groups of files; how many files went, and how many came.

    Groups of which a file has gone meanwhile, by somebody else's compaction, are left alone.
    """
    target = Target(table.storage, table.schema, table.partition_by, "zstd", 2 * most)
    works = [Merge(tuple(group), target, order) for group in groups]
    done = direct.run(spark, works)
    table.refresh()
    there = {file.path for file in table.files()}
    gone: list[Written] = []
    come: list[Written] = []
    for group, made in zip(groups, done, strict=True):
        if {file.path for file in group} <= there:
            gone += group
            come += made
    if not gone or not table.replace(gone, come, change=False):
        return 0, 0
    return len(gone), len(come)


class Compactor:
    """Compaction beside landing: in a thread, so that no batch waits for it."""

    def __init__(self, spark: SparkSession, few: int = FEW, most: int = FILE_BYTES) -> None:
        self._spark = spark
        self._few = few
        self._most = most
        self._added = 0
        self._cleaned = time.monotonic()
        self._thread: threading.Thread | None = None

    def added(self, tables: Sequence[Table], files: int) -> None:
        """Files were added to tables; compact them if it is time, and nothing is under way."""
        self._added += files
        if self._added < self._few or (self._thread is not None and self._thread.is_alive()):
            return
        self._added = 0
        places = [table.storage for table in tables]
        self._thread = threading.Thread(target=self._run, args=(places,), name="compaction")
        self._thread.start()

    def close(self) -> None:
        """Wait for what is under way."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, places: list[Storage]) -> None:
        is_time = time.monotonic() - self._cleaned > CLEAN_EVERY
        for place in places:
            try:
                table = Table(place)  # landing has its own, as it was when a batch was planned
                groups = worth_merging(table.files(), self._few, self._most)
                if groups:
                    compact(self._spark, table, groups, most=self._most)
                if is_time:
                    table.clean()
            except WirelakeError as error:
                log.warning("%s was not compacted: %s", place.uri, error)
        if is_time:
            self._cleaned = time.monotonic()
