"""Tables in an object store: the same code, with an S3 on this machine."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from tests.http.house import House
from tests.spark.test_land import logged, publish, same
from tests.spark.test_tables import landed, log_rows, write
from wirelake.errors import ConfigError, EngineError
from wirelake.measure.broker import free_port
from wirelake.message import Message
from wirelake.spark import table
from wirelake.spark.commits import Table, TakenError
from wirelake.spark.compaction import all_together, compact
from wirelake.spark.land import Options, land
from wirelake.spark.rows import FOLDERS, ROWS
from wirelake.spark.storage import Storage
from wirelake.wire import FrameTable

PATIENCE = 120.0


@pytest.fixture(scope="module")
def store() -> Iterator[dict[str, str]]:
    """The options of an S3 with an empty bucket `lake`; it honours conditional writes."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                request = urllib.request.Request(f"{url}/lake", method="PUT")
                urllib.request.urlopen(request, timeout=10).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < until
                time.sleep(0.2)
        yield {
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": url,
        }
    finally:
        server.kill()
        server.wait()


@pytest.mark.parametrize("folders", [(), ("date", "level")])
def test_a_table_in_a_store_is_landed_compacted_and_read_by_the_same_code(
    spark: SparkSession, store: dict[str, str], tmp_path: Path, folders: tuple[str, ...]
) -> None:
    place = f"s3://lake/messages-{len(folders)}"
    storage = Storage.of(place, store)
    with House(tmp_path / "data") as house:
        options = Options(house.url, place, storage=store, partition_by=folders, batch_rows=100)
        publish(house, 250)
        assert land(spark, options) == 250
        assert land(spark, options) == 0
        bad = FrameTable()
        bad.fill([Message(address="level0/b", payload=b"bad")], "http")
        house.call(lambda: house.engine.append(bad, None, 2**60, b""))
        assert land(spark, options) == 1
        wanted = logged(house)
        wanted = wanted.filter(pc.not_equal(wanted["payload"], b"bad"))
    found = table.read(spark, storage).drop(*FOLDERS).toArrow()
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert same(found.sort_by(order), wanted)
    (side,) = table.read_errors(spark, storage.beside("_errors")).collect()
    assert side.reason == "a time that no calendar has"
    made = Table(storage)
    compact(spark, made, all_together(made.files()))
    in_polars = pl.scan_delta(place, storage_options=storage.for_delta)
    assert in_polars.select(pl.len()).collect().item() == 250
    assert len(made.vacuum(0)) >= 3
    assert table.read(spark, storage).where("level = 'level1'").count() == len(
        [one for one in wanted["address"].to_pylist() if one.startswith("level1/")]
    )


def test_of_two_drivers_at_a_table_in_a_store_one_wins(store: dict[str, str]) -> None:
    storage = Storage.of("s3://lake/race", store)
    first = Table.ensure(storage, ROWS)
    second = Table(storage)
    first.append(write(storage, log_rows(10)), landed(0, p0=10))
    with pytest.raises(TakenError, match="batch 0 of q"):
        second.append(write(storage, log_rows(10)), landed(0, p0=10))
    assert sum(file.rows for file in Table(storage).files()) == 10


def test_plain_parquet_is_landed_in_a_store_as_well(
    spark: SparkSession, store: dict[str, str], tmp_path: Path
) -> None:
    place = "s3://lake/plain"
    with House(tmp_path / "data") as house:
        options = Options(house.url, place, storage=store, format="parquet")
        for _ in range(2):
            publish(house, 20)
            assert land(spark, options) == 20
    assert table.read(spark, Storage.of(place, store)).count() == 40
    assert len(Storage.of(place, store).files()) == 2
    with pytest.raises(ConfigError, match="is no Delta table"):
        Table.ensure(Storage.of(place, store), ROWS)


def test_a_store_that_refuses_is_told_in_one_line(store: dict[str, str]) -> None:
    nowhere = Storage.of("s3://no-such-bucket/t", store)
    with pytest.raises(EngineError, match="s3://no-such-bucket/t: "):
        Table.ensure(nowhere, ROWS)
