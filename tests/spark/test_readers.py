"""Others read the table all the time, while it is landed, compacted, vacuumed, and drivers die.

`WIRELAKE_READS` says how often it is read in all (60); `WIRELAKE_READS=10000` takes a while.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
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


def test_readers_see_every_row_once_whatever_happens_to_the_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    uri = str(tmp_path / "lake")
    over = threading.Event()
    reads: Counter[str] = Counter()
    wrong: list[str] = []

    def reading(name: str, read: Callable[[], Seen]) -> None:
        most = 0
        while not over.is_set():
            try:
                seen = read()
            except BaseException as error:  # noqa: BLE001 - every error counts
                wrong.append(f"{name}: {error!r}")
                continue
            total = sum(count for count, _, _ in seen)
            if total < most or any(len({*one}) > 1 for one in seen):
                wrong.append(f"{name}: {seen} after {most} rows")
            most = max(most, total)
            reads[name] += 1

    def publishing(house: House) -> None:
        number = 0
        while not over.is_set():
            some = ((f"level{k % 3}/{k}", b"%d" % number) for k in range(20))
            assert house.post("/v1/publish", arrow(rows(*some))).status == 202
            number += 1
            time.sleep(0.05)

    chance = random.Random(7)
    with House(tmp_path / "data", capture=CaptureSettings(partitions=3)) as house:
        command = str(Path(sys.executable).with_name("wirelake"))
        arguments = ("lake", "land", "--url", house.url, "--table", uri, "--json")
        job = Process(command, *arguments, "--every", "0", "--master", "local[1]")
        publisher = threading.Thread(target=publishing, args=(house,))
        publisher.start()
        readers = [
            threading.Thread(target=reading, args=one)
            for one in (
                ("duckdb", lambda: by_duckdb(uri)),
                ("polars", lambda: by_polars(uri)),
                ("spark", lambda: by_spark(spark, uri)),
            )
        ]
        kills = vacuums = 0
        try:
            job.wait_for('"batch"')
            for reader in readers:
                reader.start()
            while sum(reads.values()) < READS or not kills or len(reads) < 3:
                assert not wrong, wrong[:3]
                job.wait_for('"batch"', sum('"batch"' in line for line in job.lines) + 1)
                time.sleep(chance.uniform(0, 2))
                if sum(reads.values()) > READS * kills / 10:  # ten times in all
                    job.kill()
                    kills += 1
                    job = Process(command, *arguments, "--every", "0", "--master", "local[1]")
                opened = Table(Storage.of(uri))
                compact(spark, opened, all_together(opened.files()))
                opened.vacuum(1)
                vacuums += 1
        finally:
            over.set()
            job.kill()
            publisher.join()
            for reader in readers:
                if reader.ident is not None:
                    reader.join()
        assert not wrong, wrong[:3]
        last = Process(command, *arguments, "--once", "--master", "local[1]")
        assert last.wait() == 0, last.text
        ends = {one["next"] for one in house.get("/v1/log").json["partitions"] if one["next"]}
    assert {count for count, _, _ in by_duckdb(uri)} == ends
    compactions = [
        one for one in Table(Storage.of(uri)).history(10_000) if "replaced" in noted(one)
    ]
    assert compactions
    print(f"{dict(reads)}, {kills} kills, {vacuums} vacuums, {len(compactions)} compactions")


def noted(commit: dict[str, object]) -> dict[str, object]:
    found = commit.get("wirelake")
    return found if isinstance(found, dict) else {}
