"""Tables apart from brokers: files, commits, compaction, vacuum, versions, and who reads them."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from wirelake.cli import app
from wirelake.errors import ConfigError, EngineError
from wirelake.spark import commits, compaction, files, table
from wirelake.spark.append_only import AppendOnly
from wirelake.spark.commits import Landed, Table, TakenError
from wirelake.spark.compaction import (
    AS_LANDED,
    Z_ORDER,
    Merge,
    Order,
    all_together,
    compact,
    size_class,
    sort,
    worth_merging,
)
from wirelake.spark.files import TableWriter, Target, Written
from wirelake.spark.offsets import Extent, Log
from wirelake.spark.rows import ROWS, matching, sift, with_folders
from wirelake.spark.storage import Storage
from wirelake.wire.arrow import SCHEMA

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def log_rows(count: int, first: int = 0, **columns: list[Any]) -> pa.Table:
    """Rows of the log."""
    made: dict[str, list[Any]] = {
        "partition": [0] * count,
        "offset": list(range(first, first + count)),
        "timestamp": [NOON + timedelta(seconds=first + k) for k in range(count)],
        "address": [f"house/{(first + k) % 7}" for k in range(count)],
        "content_type": [0] * count,
        "priority": [0] * count,
        "ttl": [0] * count,
        "headers": [[("n", str(first + k))] for k in range(count)],
        "payload": [b"%d" % (first + k) for k in range(count)],
    }
    texts = {name: [""] * count for name in ("id", "correlation_id", "source", "target")}
    texts |= {"op": ["publish"] * count, "dialect": ["http"] * count}
    given = made | texts | columns
    return pa.table({name: pa.array(given[name], SCHEMA.field(name).type) for name in SCHEMA.names})


def write(storage: Storage, rows: pa.Table, **target: Any) -> list[Written]:
    writer = TableWriter(Target(storage, ROWS, **target))
    writer.write(with_folders(rows))
    return writer.close()


def grown(place: Path, batches: int, count: int = 10) -> Table:
    """A table with a file for each batch."""
    made = Table.ensure(Storage.of(str(place)), ROWS)
    for batch in range(batches):
        made.append(write(made.storage, log_rows(count, batch * count)))
    return made


def offsets(made: Table | Path) -> list[int]:
    uri = made.storage.uri if isinstance(made, Table) else str(made)
    found = DeltaTable(uri).to_pyarrow_dataset().to_table(columns=["offset"])
    return sorted(found["offset"].to_pylist())


# Rows


@pytest.mark.parametrize("dictionary", [False, True])
@pytest.mark.parametrize("name", ["address", "source", "id", "headers"])
def test_a_row_with_a_text_that_is_not_utf8_is_told_apart(name: str, dictionary: bool) -> None:
    rows = log_rows(6)
    bad = pa.array([b"a", b"b", b"\xff", b"c", b"d\xe4", b""], pa.binary()).view(pa.string())
    column: pa.Array = bad
    if name == "headers":
        keys = pa.array(["k"] * 6)
        column = pa.MapArray.from_arrays(pa.array(range(7), pa.int32()), keys, bad)
    elif dictionary:
        column = pa.DictionaryArray.from_arrays(pa.array(range(6), pa.int32()), bad)
    at = rows.schema.get_field_index(name)
    rows = rows.set_column(at, name, pa.chunked_array([column.slice(0, 3), column.slice(3)]))
    good, side = sift(rows)
    assert good["offset"].to_pylist() == [0, 1, 3, 5]
    assert side is not None
    assert side["offset"].to_pylist() == [2, 4]
    article = "an" if name in ("address", "id") else "a"
    noun = "header" if name == "headers" else name
    assert set(side["reason"].to_pylist()) == {f"{article} {noun} that is not UTF-8"}
    assert side["file"].to_pylist() == ["log/0"] * 2
    good.validate(full=True)


def test_good_rows_are_passed_on_as_they_are() -> None:
    rows = log_rows(5)
    assert sift(rows) == (rows, None)
    early, late = [datetime(1969, 12, 31, tzinfo=UTC)], [datetime(9999, 12, 31, tzinfo=UTC)]
    for wrong in (early, late):
        good, side = sift(log_rows(1, timestamp=wrong))
        assert (good.num_rows, side is not None) == (0, True)


def test_rows_are_chosen_by_address() -> None:
    rows = log_rows(14)
    rows = rows.set_column(3, "address", rows["address"].dictionary_encode())
    found = matching(rows, ("house/1", "house/2/#"))
    assert set(found["address"].to_pylist()) == {"house/1", "house/2"}
    assert len(found["address"].chunk(0).dictionary) == 2
    assert matching(rows, ()) is rows


# Files


def test_a_file_says_what_it_has_so_that_readers_can_skip_it(tmp_path: Path) -> None:
    storage = Storage.of(str(tmp_path))
    long = "a" * 200
    (file,) = write(storage, log_rows(3, address=["b", long, "c" * 70]))
    told = json.loads(file.statistics)
    assert told["numRecords"] == file.rows == 3
    assert told["minValues"]["address"] == "a" * 64
    assert told["maxValues"]["address"] == "c" * 64 + "\U0010ffff"
    assert (told["minValues"]["offset"], told["maxValues"]["offset"]) == (0, 2)
    assert told["maxValues"]["timestamp"] == "2026-01-31T12:00:02.000000Z"
    assert told["minValues"]["date"] == "2026-01-31"
    assert file.size == (tmp_path / file.path).stat().st_size
    assert not list(tmp_path.glob(".*"))


def test_large_files_are_followed_by_others_and_row_groups_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "GROUP_BYTES", 100_000)
    chance = random.Random(1)
    writer = TableWriter(Target(Storage.of(str(tmp_path)), ROWS, file_bytes=300_000))
    for batch in range(20):
        payload = [chance.randbytes(1000) for _ in range(50)]
        writer.write(with_folders(log_rows(50, 50 * batch, payload=payload)))
    made = writer.close()
    assert 3 <= len(made) <= 4
    assert sum(one.rows for one in made) == 1000
    groups = [pq.read_metadata(tmp_path / one.path).num_row_groups for one in made]
    assert all(count < 5 for count in groups)
    found = pa.concat_tables(pq.read_table(tmp_path / one.path) for one in made)
    assert found["offset"].to_pylist() == list(range(1000))
    assert found.schema.field("address").type == pa.string()


def test_columns_that_are_dictionaries_or_not_go_to_one_file(tmp_path: Path) -> None:
    writer = TableWriter(Target(Storage.of(str(tmp_path)), ROWS))
    plain = log_rows(5)
    coded = plain.set_column(3, "address", plain["address"].dictionary_encode())
    for rows in (coded, plain, coded):
        writer.write(with_folders(rows))
    (file,) = writer.close()
    found = pq.read_table(tmp_path / file.path)
    assert found["address"].to_pylist() == 3 * plain["address"].to_pylist()


# Commits


def landed(batch: int, **offsets: int) -> Landed:
    return Landed("q", batch, "log", {int(p[1:]): at for p, at in offsets.items()})


LOG = Log("log", {0: Extent(0, 100), 1: Extent(0, 100)})


def test_where_a_query_is_outlives_the_log_files_that_said_it(tmp_path: Path) -> None:
    made = grown(tmp_path / "t", 1)
    assert (made.batch("q"), made.offsets("q", LOG)) == (-1, {})
    made.append([], landed(0, p0=0, p1=7))
    assert (made.batch("q"), made.offsets("q", LOG)) == (0, {0: 0, 1: 7})
    assert made.offsets("q", Log("other", LOG.extents)) == {}
    assert made.last_log("q") == "log"
    made.append([], landed(1, p0=5))
    for batch in range(150):
        made.append([], Landed("other", batch, "log", {0: batch}))
    log_files = tmp_path / "t" / "_delta_log"
    assert list(log_files.glob("*.checkpoint.parquet"))
    # As if they had been cleaned long ago.
    newest = max(int(one.name[:20]) for one in log_files.glob("*.checkpoint.parquet"))
    for one in log_files.glob("*.json"):
        if int(one.name[:20]) < newest:
            one.unlink()
    again = Table(made.storage)
    assert (again.batch("q"), again.offsets("q", LOG)) == (1, {0: 5, 1: 7})
    assert offsets(again) == list(range(10))


def test_old_files_of_the_log_are_cleaned(tmp_path: Path) -> None:
    made = grown(tmp_path / "t", 1)
    made._table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    made.refresh()
    for batch in range(210):
        made.append([], landed(batch, p0=batch))
    left = list((tmp_path / "t" / "_delta_log").glob("*.json"))
    assert len(left) < 150
    assert Table(made.storage).batch("q") == 209


def test_of_two_commits_of_one_batch_the_second_is_refused(tmp_path: Path) -> None:
    first = grown(tmp_path / "t", 1)
    second = Table(first.storage)
    first.append(write(first.storage, log_rows(10, 10)), landed(0, p0=20))
    with pytest.raises(TakenError, match="batch 0 of q"):
        second.append(write(first.storage, log_rows(10, 10)), landed(0, p0=20))
    assert offsets(first) == list(range(20))
    # Another query is no conflict.
    third = Table(first.storage)
    first.append([], landed(1, p0=21))
    third.append([], Landed("other", 0, "log", {}))


def test_columns_can_be_added_and_nothing_else(tmp_path: Path, spark: SparkSession) -> None:
    made = grown(tmp_path / "t", 2)
    wider = ROWS.append(pa.field("celsius", pa.float64()))
    made = Table.ensure(made.storage, wider)
    rows = with_folders(log_rows(10, 20)).append_column("celsius", pa.array([21.5] * 10))
    writer = TableWriter(Target(made.storage, wider))
    writer.write(rows)
    made.append(writer.close())
    Table.ensure(made.storage, ROWS)  # one who does not know of it goes on
    found = table.read(spark, str(tmp_path / "t"))
    assert [row[0] for row in found.orderBy("offset").select("celsius").collect()] == (
        [None] * 20 + [21.5] * 10
    )
    compact(spark, made, all_together(made.files()))
    assert found.where("celsius IS NULL").count() == 20
    with pytest.raises(ConfigError, match="has offset as int64, not string"):
        Table.ensure(made.storage, ROWS.set(1, pa.field("offset", pa.string())))


# Compaction and vacuum


def sized(*sizes: int, folder: str = "") -> list[Written]:
    values = {"level": folder} if folder else {}
    return [Written(f"{folder}{k}", 1, size, values) for k, size in enumerate(sizes)]


def test_files_of_one_size_are_merged_once_there_are_enough() -> None:
    mib = 1 << 20
    assert [size_class(size) for size in (1, mib, 8 * mib - 1, 8 * mib)] == [0, 1, 1, 2]
    assert worth_merging(sized(*[100] * 15), few=16) == []
    (group,) = worth_merging(sized(*[100] * 16, *[2 * mib] * 15, 200 * mib), few=16)
    assert {one.size for one in group} == {100}
    two = sized(*[100] * 3, folder="a") + sized(*[100] * 3, folder="b")
    assert [len(group) for group in worth_merging(two, few=3)] == [3, 3]
    groups = worth_merging(sized(*[60 * mib] * 10), few=4, most=128 * mib)
    assert all(sum(one.size for one in group) <= 180 * mib for group in groups)
    assert [len(group) for group in all_together(sized(1, 1, 200 * mib))] == [2]
    assert len(all_together(sized(*[100 * mib] * 4))) == 2
    assert all_together(sized(5)) == []
    assert len(all_together(sized(5), whole=True)) == 1


@pytest.mark.parametrize("order", [AS_LANDED, Order(("address",)), Z_ORDER])
def test_compaction_changes_files_and_no_rows(
    spark: SparkSession, tmp_path: Path, order: Order
) -> None:
    made = grown(tmp_path / "t", 9)
    before = table.read(spark, str(tmp_path / "t")).orderBy("offset").collect()
    groups = all_together(made.files(), whole=True)
    assert compact(spark, made, groups, order) == (9, 1)
    assert len(made.files()) == 1
    assert table.read(spark, str(tmp_path / "t")).orderBy("offset").collect() == before
    rows = pq.read_table(DeltaTable(str(tmp_path / "t")).file_uris()[0])
    if order == AS_LANDED:
        assert rows["offset"].to_pylist() == list(range(90))
    if order.columns == ("address",):
        assert rows["address"].to_pylist() == sorted(rows["address"].to_pylist())
    # Who reads an older version sees the same rows still.
    assert table.read(spark, str(tmp_path / "t"), version=made.version - 1).count() == 90


def test_a_z_order_keeps_both_columns_together() -> None:
    count = 4096
    chance = random.Random(3)
    rows = log_rows(count, address=[f"a/{chance.randrange(64):02}" for _ in range(count)])
    found = sort(rows, Z_ORDER)
    for name, whole in (("address", 64), ("timestamp", count)):
        spans = []
        for start in range(0, count, 256):
            part = found.slice(start, 256).column(name)
            spans.append(len(pc.unique(part)) if name == "address" else _span(part))
        assert sum(spans) / len(spans) < 0.6 * whole, name


def _span(times: pa.ChunkedArray) -> float:
    bounds = pc.min_max(times).as_py()
    return float((bounds["max"] - bounds["min"]).total_seconds())


def test_two_compactions_of_the_same_files_double_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = grown(tmp_path / "t", 4)
    other = Table(made.storage)
    groups = all_together(made.files())
    assert compact(spark, made, groups) == (4, 1)
    assert compact(spark, other, groups) == (0, 0)
    # The same where the second one has looked before the first was committed.
    late = Table(made.storage)
    target = Target(late.storage, late.schema, compression="zstd")
    made.append(write(made.storage, log_rows(10, 40)))
    late.refresh()
    both = late.files()
    new = Merge(tuple(both), target, AS_LANDED).run()
    assert compact(spark, made, [both]) == (2, 1)
    assert not late.replace(both, new, change=False)
    assert offsets(made) == list(range(50))


@pytest.mark.parametrize("error", [OSError, CommitFailedError, DeltaError])
def test_a_compaction_whose_answer_was_lost_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    made = grown(tmp_path / "t", 4)
    gone = made.files()
    new = Merge(tuple(gone), Target(made.storage, made.schema), AS_LANDED).run()
    real = Table._commit

    def unheard(self: Table, *args: Any) -> None:
        real(self, *args)
        raise error("the connection was reset")

    monkeypatch.setattr(Table, "_commit", unheard)
    assert made.replace(gone, new, change=False)
    assert len(made.files()) == 1
    assert offsets(made) == list(range(40))
    assert Table(made.storage).version == 5


def test_a_compaction_that_cannot_be_written_changes_nothing_and_landing_goes_on(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = grown(tmp_path / "t", 4)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "_commit", full)
        compactor = compaction.Compactor(spark, few=4)
        compactor.added([made], 4)
        compactor.close()
    assert "was not compacted" in caplog.text
    assert "No space left" in caplog.text
    assert offsets(Table(made.storage)) == list(range(40))
    made.append(write(made.storage, log_rows(10, 40)))
    assert offsets(made) == list(range(50))


def test_a_table_that_cannot_be_opened_to_be_compacted_does_not_end_landing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = grown(tmp_path / "t", 1)
    shutil.rmtree(tmp_path / "t")
    compactor = compaction.Compactor(cast(SparkSession, None), few=1)  # it does not come to Spark
    compactor.added([made], 1)
    compactor.close()
    assert "was not compacted" in caplog.text
    assert "there is no table" in caplog.text


def test_what_is_appended_while_files_are_merged_stays(spark: SparkSession, tmp_path: Path) -> None:
    made = grown(tmp_path / "t", 4)
    compacting = Table(made.storage)
    gone = compacting.files()
    new = Merge(tuple(gone), Target(made.storage, made.schema), AS_LANDED).run()
    made.append(write(made.storage, log_rows(10, 40)))
    assert compacting.replace(gone, new, change=False)
    assert offsets(made) == list(range(50))
    assert len(compacting.files()) == 2


def test_vacuum_deletes_what_nobody_needs_and_keeps_what_somebody_may(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = grown(tmp_path / "t", 4)
    orphan = write(made.storage, log_rows(10))
    compact(spark, made, all_together(made.files()))
    assert made.vacuum(1) == []
    assert len(made.vacuum(0, dry_run=True)) == 5
    assert len(list((tmp_path / "t").glob("*.parquet"))) == 6
    assert len(made.vacuum(0)) == 5
    assert not (tmp_path / "t" / orphan[0].path).exists()
    assert offsets(made) == list(range(40))
    assert Table(made.storage).version == made.version


@pytest.mark.parametrize("folder", ["", "date=2026-01-31"])
def test_vacuum_deletes_what_a_task_that_was_killed_has_not_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    made = grown(tmp_path / "t", 1)
    monkeypatch.setattr(Path, "replace", lambda *_: None)  # as if it was killed right before
    (old,) = write(made.storage, log_rows(10), partition_by=("date",) if folder else ())
    (left,) = (tmp_path / "t" / folder).glob(".*")
    assert not (tmp_path / "t" / old.path).exists()
    name = str(left.relative_to(tmp_path / "t"))
    assert made.vacuum(1) == []
    long_ago = time.time() - 4000
    os.utime(left, (long_ago, long_ago))
    assert made.vacuum(1, dry_run=True) == [name]
    assert left.exists()
    assert made.vacuum(1) == [name]
    assert not left.exists()
    assert offsets(made) == list(range(10))


def test_plain_files_that_a_killed_task_has_not_finished_are_deleted(tmp_path: Path) -> None:
    storage = Storage.of(str(tmp_path))
    write(storage, log_rows(10))
    old, young = tmp_path / ".a.parquet.0123abcd", tmp_path / ".b.parquet.0123abcd"
    other = tmp_path / ".part-0.parquet.crc"
    for one in (old, young, other):
        one.write_bytes(b"PAR1")
    long_ago = time.time() - 4000
    for one in (old, other):
        os.utime(one, (long_ago, long_ago))
    with AppendOnly(storage, "q").alone():
        assert not old.exists()
    assert young.exists()
    assert other.exists()
    assert len(storage.files()) == 1


def test_vacuum_on_the_command_line_keeps_what_it_is_told_to_keep(tmp_path: Path) -> None:
    made = grown(tmp_path / "t", 1)
    (orphan,) = write(made.storage, log_rows(10))
    old = time.time() - 140 * 60
    os.utime(tmp_path / "t" / orphan.path, (old, old))

    def vacuum(*arguments: str) -> list[str]:
        done = CliRunner().invoke(
            app, ["lake", "vacuum", "--table", str(tmp_path / "t"), *arguments]
        )
        assert done.exit_code == 0, done.output
        return done.output.splitlines()

    assert vacuum() == ["0 files were deleted"]
    assert vacuum("--keep", "1d") == ["0 files were deleted"]
    assert vacuum("--keep", "150m") == ["0 files were deleted"]
    assert vacuum("--keep", "2h", "--dry-run") == [orphan.path, "1 files would be deleted"]
    assert (tmp_path / "t" / orphan.path).exists()
    assert json.loads(vacuum("--keep", "2h", "--json")[0]) == {"files": [orphan.path], "deleted": 1}
    assert not (tmp_path / "t" / orphan.path).exists()
    assert offsets(made) == list(range(10))


@pytest.mark.parametrize("is_due", [True, False])
def test_landing_deletes_old_files_once_in_a_while(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_due: bool
) -> None:
    made = grown(tmp_path / "t", 4)
    made._table.alter.set_table_properties(
        {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    )
    made.refresh()
    monkeypatch.setattr(compaction, "CLEAN_EVERY", 0.0 if is_due else 3600.0)
    compactor = compaction.Compactor(spark, few=4)
    compactor.added([made], 4)
    compactor.close()
    assert len(Table(made.storage).files()) == 1
    left = list((tmp_path / "t").glob("*.parquet"))
    assert len(left) == (1 if is_due else 5)
    assert offsets(Table(made.storage)) == list(range(40))


# Reading


def test_a_table_can_be_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    place = str(tmp_path / "t")
    grown(tmp_path / "t", 3)
    assert [table.read(spark, place, version=v).count() for v in range(4)] == [0, 10, 20, 30]
    # A version is as old as its file in Delta's log: here they are a minute apart.
    start = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    for version in range(4):
        made = start.timestamp() + 60 * version
        os.utime(tmp_path / "t" / "_delta_log" / f"{version:020}.json", (made, made))
    for version in range(4):
        then = start + timedelta(minutes=version, seconds=30)
        assert table.read(spark, place, as_of=then).count() == 10 * version
    with pytest.raises(EngineError, match="has no version 7"):
        table.read(spark, place, version=7)
    pq.write_table(with_folders(log_rows(3)), tmp_path / "plain.parquet")
    with pytest.raises(EngineError, match="there is no table"):
        table.read(spark, str(tmp_path / "nothing"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.parquet").rename(tmp_path / "folder" / "plain.parquet")
    with pytest.raises(ConfigError, match="is no Delta table, so it has no versions"):
        table.read(spark, str(tmp_path / "folder"), version=1)


@pytest.mark.parametrize("folders", [(), ("date", "level")])
def test_polars_duckdb_pyarrow_and_spark_read_the_table(
    spark: SparkSession, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    storage = Storage.of(str(tmp_path / "t"))
    made = Table.ensure(storage, ROWS, folders)
    for batch in range(3):
        rows = log_rows(10, 10 * batch, address=[f"level{k % 2}/x" for k in range(10)])
        made.append(write(storage, rows, partition_by=folders))
    compact(spark, made, all_together(made.files()))
    made.append(write(storage, log_rows(10, 30), partition_by=folders))
    uri = storage.uri
    delta = DeltaTable(uri)
    arrow = delta.to_pyarrow_dataset()
    counts: dict[str, Callable[[], tuple[int, int]]] = {
        "polars": lambda: (
            pl.scan_delta(uri).select(pl.len()).collect().item(),
            pl.scan_delta(uri).filter(pl.col("level") == "level1").collect().height,
        ),
        "pyarrow": lambda: (
            arrow.count_rows(),
            arrow.filter(pc.field("level") == "level1").count_rows(),
        ),
        "duckdb": lambda: (
            duckdb.connect()
            .execute(
                "SELECT count(*), count(*) FILTER (level = 'level1') "
                "FROM read_parquet($1, hive_partitioning = $2)",
                [delta.file_uris(), bool(folders)],
            )
            .fetchall()[0]
        ),
        "spark": lambda: (
            table.read(spark, uri).count(),
            table.read(spark, uri).where("level = 'level1'").count(),
        ),
    }
    assert {name: count() for name, count in counts.items()} == dict.fromkeys(counts, (40, 15))
    headers = table.read(spark, uri).orderBy("offset").select("headers").collect()
    assert [row[0] for row in headers] == [{"n": str(k)} for k in range(40)]
    in_polars = pl.scan_delta(uri).sort("offset").select("payload").collect()
    assert in_polars["payload"].to_list() == [b"%d" % k for k in range(40)]


@pytest.mark.parametrize("reader", ["polars", "duckdb", "pyarrow"])
def test_readers_never_see_a_row_twice_or_not_at_all(
    spark: SparkSession, tmp_path: Path, reader: str
) -> None:
    """In a loop, while rows are appended, files are compacted and orphans vacuumed."""
    made = grown(tmp_path / "t", 1)
    uri = made.storage.uri
    reads: dict[str, Callable[[], tuple[int, int]]] = {
        "polars": lambda: _counted(
            pl.scan_delta(uri).select("offset").collect()["offset"].to_list()
        ),
        "duckdb": lambda: (
            duckdb.connect()
            .execute(
                'SELECT count(*), count(DISTINCT "offset") FROM read_parquet($1)',
                [DeltaTable(uri).file_uris()],
            )
            .fetchall()[0]
        ),
        "pyarrow": lambda: _counted(offsets(tmp_path / "t")),
    }
    seen: list[tuple[int, int]] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                seen.append(reads[reader]())
            except BaseException as error:  # noqa: BLE001 - every error counts
                failures.append(error)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for batch in range(1, 25):
            made.append(write(made.storage, log_rows(10, 10 * batch)))
            write(made.storage, log_rows(10, 10 * batch))  # of a task that died
            if batch % 6 == 0:
                compact(spark, made, all_together(made.files()))
            if batch % 12 == 0:
                made.vacuum(1)
    finally:
        over.set()
        thread.join()
    assert not failures
    assert len(seen) > 5
    assert all(count == different and count % 10 == 0 for count, different in seen)
    assert [count for count, _ in seen] == sorted(count for count, _ in seen)


def _counted(values: list[int]) -> tuple[int, int]:
    return len(values), len({*values})


# Places


def test_a_place_is_a_folder_or_in_a_store(tmp_path: Path) -> None:
    assert Storage.of(f"file://{tmp_path}/a%20b").uri == f"{tmp_path}/a b"
    assert Storage.of("lake").uri == str(Path("lake").absolute())
    assert Storage.of("s3://bucket/lake/").beside("_errors").uri == "s3://bucket/lake_errors"
    with pytest.raises(ConfigError, match="a table is a folder, or in s3://, gs://, abfss://"):
        Storage.of("hdfs://host/lake")
    with pytest.raises(ConfigError, match="REGION is no option of a store"):
        Storage.of("s3://b/l", {"region": "x"})
    assert commits.exists(Storage.of(str(tmp_path / "none"))) is False
