"""Others read the table all the time, while it is landed, compacted, vacuumed, and drivers die.

`WIRELAKE_READS` says how often it is read in all (60); `WIRELAKE_READS=10000` takes a while. What
was read, and what was wrong with it, is printed twice a minute and at the end.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.http.house import House, arrow, rows
from tests.spark.test_cluster import Process
from wirelake.config import CaptureSettings
from wirelake.spark import table
from wirelake.spark.commits import Table
from wirelake.spark.compaction import all_together, compact
from wirelake.spark.storage import Storage

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]

READS = int(os.environ.get("WIRELAKE_READS", "60"))
#: How long files that were compacted, and the table's log, are kept: longer than any read takes.
KEPT = "interval 2 minutes"
#: Seconds between two reads of one reader.
PAUSE = 0.02
#: Seconds between two lines of what was seen so far.
SAY_EVERY = 30.0
#: Of each partition: rows, different offsets, and the largest offset and one.
Seen = list[tuple[int, int, int]]


def by_duckdb(uri: str) -> Seen:
    return (
        duckdb.connect()
        .execute(
            'SELECT count(*), count(DISTINCT "offset"), max("offset") + 1 '
            "FROM read_parquet($1) GROUP BY partition",
            [DeltaTable(uri).file_uris()],
        )
        .fetchall()
    )


def by_polars(uri: str) -> Seen:
    offset = pl.col("offset")
    found = (
        pl.scan_delta(uri)
        .group_by("partition")
        .agg(pl.len(), offset.n_unique().alias("different"), (offset.max() + 1).alias("end"))
        .select("len", "different", "end")
    )
    return found.collect().rows()


def by_spark(spark: SparkSession, uri: str) -> Seen:
    found = table.read(spark, uri).groupBy("partition")
    counts = found.agg(F.count("*"), F.countDistinct("offset"), F.max("offset") + 1)
    return [(row[1], row[2], row[3]) for row in counts.collect()]


def by_pyarrow(uri: str) -> Seen:
    rows = DeltaTable(uri).to_pyarrow_dataset().to_table(["partition", "offset"])
    wanted = [("offset", "count"), ("offset", "count_distinct"), ("offset", "max")]
    found = rows.group_by("partition").aggregate(wanted)
    return [
        (one["offset_count"], one["offset_count_distinct"], one["offset_max"] + 1)
        for one in found.to_pylist()
    ]


@dataclass
class Tally:
    """What readers have seen: how often they read, and what was wrong."""

    reads: Counter[str] = field(default_factory=Counter)
    errors: int = 0
    doubled: int = 0
    missing: int = 0
    states: set[int] = field(default_factory=set)  # of the table, by its rows
    examples: list[str] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.reads.values())

    def failed(self, name: str, error: BaseException) -> None:
        self.errors += 1
        self.examples.append(f"{name}: {error!r}")

    def saw(self, name: str, seen: Seen, most: int) -> None:
        """A reader saw this, and has seen so many rows before."""
        rows = sum(count for count, _, _ in seen)
        doubled = any(count > different for count, different, _ in seen)
        missing = rows < most or any(different < end for _, different, end in seen)
        self.doubled += doubled
        self.missing += missing
        if doubled or missing:
            self.examples.append(f"{name}: {seen} after {most} rows")
        self.states.add(rows)
        self.reads[name] += 1

    def __str__(self) -> str:
        reads = ", ".join(f"{name} {count}" for name, count in sorted(self.reads.items()))
        return (
            f"{self.total} reads ({reads}) of {len(self.states)} states: {self.errors} errors, "
            f"{self.doubled} with rows twice, {self.missing} with rows missing"
        )


def vacuum(opened: Table) -> list[str]:
    """As `Table.vacuum`, which takes hours: here the table's properties say how long."""
    table = opened._table
    gone = table.vacuum(dry_run=False, full=True)
    table.update_incremental()
    table.create_checkpoint()
    table.cleanup_metadata()
    return gone


def test_what_a_reader_must_not_see_is_counted() -> None:
    tally = Tally()
    tally.saw("one", [(3, 3, 3), (2, 2, 2)], 5)
    assert not tally.examples
    tally.saw("one", [(4, 3, 3)], 0)
    assert (tally.doubled, tally.missing) == (1, 0)
    tally.saw("one", [(3, 3, 4)], 0)
    assert (tally.doubled, tally.missing) == (1, 1)
    tally.saw("one", [(3, 3, 3)], 4)
    assert (tally.doubled, tally.missing) == (1, 2)
    tally.failed("two", OSError("no such file"))
    assert tally.errors == 1
    assert len(tally.examples) == 4


def test_readers_see_every_row_once_whatever_happens_to_the_table(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = str(tmp_path / "lake")
    over = threading.Event()
    tally = Tally()
    kills = vacuums = deleted = commits = compactions = 0
    said = 0.0

    def say() -> None:
        with capsys.disabled():
            print(
                f"{tally}; {kills} kills, {commits} commits, {compactions} compactions by another "
                f"process, {vacuums} vacuums that deleted {deleted} files",
                flush=True,
            )

    def reading(name: str, read: Callable[[], Seen]) -> None:
        most = 0
        while not over.is_set():
            try:
                seen = read()
            except BaseException as error:  # noqa: BLE001 - every error counts
                tally.failed(name, error)
                continue
            tally.saw(name, seen, most)
            most = max(most, sum(count for count, _, _ in seen))
            time.sleep(PAUSE)

    def publishing(house: House) -> None:
        number = 0
        while not over.is_set():
            some = ((f"level{k % 3}/{k}", b"%d" % number) for k in range(20))
            assert house.post("/v1/publish", arrow(rows(*some))).status == 202
            number += 1
            time.sleep(0.1)

    chance = random.Random(7)
    with House(tmp_path / "data", capture=CaptureSettings(partitions=3)) as house:
        command = str(Path(sys.executable).with_name("wirelake"))
        arguments = ("lake", "land", "--url", house.url, "--table", uri, "--json")
        assert house.post("/v1/publish", arrow(rows(("level0/0", b"0")))).status == 202
        job = Process(command, *arguments, "--once", "--master", "local[1]")
        assert job.wait() == 0, job.text
        # So that files are really deleted while the test runs.
        DeltaTable(uri).alter.set_table_properties(
            {"delta.deletedFileRetentionDuration": KEPT, "delta.logRetentionDuration": KEPT}
        )
        job = Process(command, *arguments, "--every", "0", "--master", "local[1]")
        publisher = threading.Thread(target=publishing, args=(house,))
        publisher.start()
        readers = [
            threading.Thread(target=reading, args=one)
            for one in (
                ("duckdb", lambda: by_duckdb(uri)),
                ("polars", lambda: by_polars(uri)),
                ("pyarrow", lambda: by_pyarrow(uri)),
                ("spark", lambda: by_spark(spark, uri)),
            )
        ]
        try:
            job.wait_for('"batch"')
            for reader in readers:
                reader.start()
            while tally.total < READS or not kills or len(tally.reads) < len(readers):
                assert len(tally.examples) < 10, tally.examples
                job.wait_for('"batch"', sum('"batch"' in line for line in job.lines) + 1)
                time.sleep(chance.uniform(0, 2))
                if tally.total > READS * kills / 10:  # ten times in all
                    job.kill()
                    kills += 1
                    job = Process(command, *arguments, "--every", "0", "--master", "local[1]")
                opened = Table(Storage.of(uri))
                compactions += bool(compact(spark, opened, all_together(opened.files()))[0])
                deleted += len(vacuum(opened))
                vacuums += 1
                commits = opened.version
                if time.monotonic() - said > SAY_EVERY:
                    say()
                    said = time.monotonic()
        finally:
            over.set()
            job.kill()
            publisher.join()
            for reader in readers:
                if reader.ident is not None:
                    reader.join()
            say()
        assert not tally.examples, tally.examples
        last = Process(command, *arguments, "--once", "--master", "local[1]")
        assert last.wait() == 0, last.text
        ends = {one["next"] for one in house.get("/v1/log").json["partitions"] if one["next"]}
    for read in (by_duckdb, by_polars, by_pyarrow):
        assert {count for count, _, _ in read(uri)} == ends
    assert compactions
