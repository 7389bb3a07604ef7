"""Landing: the table is the log, row for row, whatever was killed in the middle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.http.house import House, arrow, rows
from wirelake.config import CaptureSettings
from wirelake.errors import ConfigError, EngineError
from wirelake.message import Message
from wirelake.spark import commits, table
from wirelake.spark.commits import Commits
from wirelake.spark.land import Options, Step, land
from wirelake.wire import FrameTable

ORDER = [("partition", "ascending"), ("offset", "ascending")]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", capture=CaptureSettings(partitions=2)) as opened:
        yield opened


def publish(house: House, count: int, first: int = 0) -> None:
    messages = [(f"level{k % 3}/a", b"%d" % k) for k in range(first, first + count)]
    headers = pa.array(
        [[("number", str(k))] for k in range(count)], pa.map_(pa.string(), pa.string())
    )
    answer = house.post("/v1/publish", arrow(rows(*messages, headers=headers)))
    assert answer.status == 202, answer.body


def logged(house: House) -> pa.Table:
    """The log, row by row."""
    ends = house.get("/v1/log").json["partitions"]
    parts = [house.get(f"/v1/log/{one['partition']}").table for one in ends]
    plain = [part.cast(pa.schema([(n, _plain(t)) for n, t in _fields(part)])) for part in parts]
    return pa.concat_tables(plain).sort_by(ORDER)


def _fields(part: pa.Table) -> list[tuple[str, pa.DataType]]:
    return [(field.name, field.type) for field in part.schema]


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if isinstance(kind, pa.DictionaryType) else kind


def landed(spark: SparkSession, place: Path) -> pa.Table:
    found = table.read(spark, str(place)).drop(*table.FOLDERS)
    return found.toArrow().sort_by(ORDER)


def same(found: pa.Table, wanted: pa.Table) -> bool:
    return bool(found.cast(wanted.schema).equals(wanted))


def files(place: Path, ending: str = "parquet") -> list[Path]:
    return [one for one in place.rglob(f"*.{ending}") if commits.STAGING not in one.parts]


# Landing


def test_the_table_is_the_log_and_each_run_adds_what_is_new(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    place = tmp_path / "lake" / "messages"
    options = Options(house.url, str(place), batch_rows=400)
    steps: list[Step] = []
    publish(house, 1000)
    assert land(spark, options, steps.append) == 1000
    assert [(step.rows, step.lag) for step in steps] == [(400, 600), (400, 200), (200, 0)]
    assert same(landed(spark, place), logged(house))
    assert land(spark, options) == 0
    publish(house, 10, first=1000)
    assert land(spark, options) == 10
    assert same(landed(spark, place), logged(house))
    levels = {one.parent.name for one in files(place)}
    assert levels == {"level=level0", "level=level1", "level=level2"}
    (progress,) = house.get("/v1/progress").json["queries"]
    assert (progress["query"], progress["lag"]) == ("land-messages", 0)
    assert not list((place / commits.STAGING).iterdir())


def test_other_formats_and_some_addresses_can_be_landed(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 300)
    place = tmp_path / "table"
    options = Options(house.url, str(place), subscribe="level1/#", format="orc")
    assert land(spark, options) == 100
    found = spark.read.format("orc").load(str(place))
    assert {row.address for row in found.collect()} == {"level1/a"}


def test_rows_without_a_place_go_to_the_side_table(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 10)
    bad = FrameTable()
    bad.fill([Message(address="level0/b", payload=b"x" * 100)], "http")
    house.call(lambda: house.engine.append(bad, None, 2**60, b""))
    publish(house, 10, first=10)  # its times do not go back, so these have none either
    place = tmp_path / "table"
    assert land(spark, Options(house.url, str(place))) == 21
    side = spark.read.schema(table.ERRORS_SCHEMA).parquet(table.side_table(str(place))).collect()
    assert len(landed(spark, place)) + len(side) == 21
    (row,) = [one for one in side if bytes(one.excerpt) == b"x" * 64]
    assert row.reason == "a time that no calendar has"
    assert row.file.startswith("log/")


def test_small_files_become_few(spark: SparkSession, house: House, tmp_path: Path) -> None:
    place = tmp_path / "table"
    options = Options(house.url, str(place), batch_rows=100, few_files=4)
    publish(house, 1000)
    land(spark, options)
    assert len(files(place)) <= 3 * 4
    assert same(landed(spark, place), logged(house))
    assert not list((tmp_path / "table_checkpoint" / "landed").glob("compaction*"))


def test_files_stay_while_one_of_our_jobs_reads_them(spark: SparkSession, tmp_path: Path) -> None:
    place = tmp_path / "table"
    for batch in range(3):
        commit(spark, place, batch, 2 * batch, compacts=False)
    rows = spark.read.schema("partition int, offset long").parquet(str(place))  # lists the files
    with commits.reading(spark, str(place)):
        commit(spark, place, 3, 6)
        assert len(files(place)) == 4
        assert rows.count() == 3
    assert not list((place / "_landing" / "readers").iterdir())
    # One that has died is not waited for.
    (place / "_landing" / "readers" / "1700000000-gone").touch()
    commit(spark, place, 4, 8)
    assert len(files(place)) == 1
    assert numbers(spark, place) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("made", [False, True])
def test_reading_leaves_no_trace_where_nobody_lands(
    spark: SparkSession, tmp_path: Path, made: bool
) -> None:
    place = tmp_path / "table"
    if made:
        place.mkdir()
    with commits.reading(spark, str(place)):
        assert list(tmp_path.rglob("*")) == [place] * made


def test_two_do_not_land_with_one_checkpoint(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    options = Options(house.url, str(tmp_path / "table"))
    other = Commits(spark, options.table, f"{options.home}/landed")
    publish(house, 10)
    with other.alone(), pytest.raises(EngineError, match="another process lands"):
        land(spark, options)
    assert land(spark, options) == 10


def test_rows_that_the_log_has_deleted_stop_it_or_are_noted(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    with House(tmp_path / "one") as first:
        publish(first, 100)
        port = first.port
        land(spark, Options(first.url, str(place)))
    with House(tmp_path / "two", http=f"127.0.0.1:{port}") as second:
        publish(second, 300)  # more than was read, so that offsets alone would not tell
        with pytest.raises(EngineError, match="was its data replaced"):
            land(spark, Options(second.url, str(place)))
        assert land(spark, Options(second.url, str(place), skip_lost=True)) == 300
    side = spark.read.schema(table.ERRORS_SCHEMA).parquet(table.side_table(str(place))).collect()
    assert {row.reason.partition(" was replaced")[1] for row in side} == {" was replaced"}


def test_a_table_format_with_its_own_commits_takes_a_batch_once(
    spark: SparkSession, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirelake.spark.land.FILE_FORMATS", ())
    place = tmp_path / "table"
    options = Options(house.url, str(place), batch_rows=150)
    publish(house, 300)
    assert land(spark, options) == 300
    # The last batch is in the table, but Spark does not know of it.
    newest = max((tmp_path / "table_checkpoint" / "commits").glob("[0-9]"))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink()
    land(spark, options)
    assert same(landed(spark, place), logged(house))


# Crashes


class Crash(BaseException):
    """The process is gone; nothing is tidied up."""


def numbers(spark: SparkSession, place: Path) -> list[int]:
    if not files(place):
        return []
    found = spark.read.schema("partition int, offset long").parquet(str(place))
    return sorted(row.offset for row in found.collect())


def some(spark: SparkSession, *offsets: int) -> DataFrame:
    values = [(0, offset, f"level{offset % 2}") for offset in offsets]
    return spark.createDataFrame(values, "partition int, offset long, level string")


def commit(
    spark: SparkSession, place: Path, batch: int, *offsets: int, compacts: bool = True
) -> None:
    """Commit a batch as land does: rows in folders."""
    rows = some(spark, *offsets)
    made = Commits(spark, str(place), f"{place}_home")
    made.recover()
    made.commit(
        batch,
        lambda staging: rows.coalesce(1).write.partitionBy("level").parquet(staging),
        lambda file: f"{place}/{file.folder}",
    )
    made.compact(
        f"{place}/level=level0",
        lambda paths: spark.read.schema("partition int, offset long").parquet(*paths),
        "parquet",
        few=3 if compacts else 1000,
    )


def test_a_commit_that_dies_anywhere_is_whole_when_it_is_run_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let every call that changes a file be the last one, one after the other."""
    left = 0

    def dying(name: str) -> Any:
        real = getattr(commits.Files, name)

        def call(self: commits.Files, *args: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Crash
            real(self, *args)

        return call

    for name in ("move", "delete", "write"):
        monkeypatch.setattr(commits.Files, name, dying(name))
    place = tmp_path / "table"
    crashes = 0
    done: list[int] = []
    for batch in range(4):
        mine = [2 * batch, 2 * batch + 1]
        for at in range(1, 100):
            left = at
            try:
                commit(spark, place, batch, *mine)
            except Crash:
                crashes += 1
                continue
            break
        done += mine
        assert numbers(spark, place) == done
    assert crashes > 15
    assert len(files(place)) < 8
    assert not list((place / commits.STAGING).iterdir())


def test_a_checkpoint_that_belongs_to_another_table_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    commit(spark, tmp_path / "table", 0, 1)
    other = Commits(spark, str(tmp_path / "other"), f"{tmp_path / 'table'}_home")
    with pytest.raises(ConfigError, match=f"belongs to the table .*{tmp_path / 'table'}"):
        other.recover()


def test_a_manifest_is_forgotten_once_the_next_batch_has_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    for batch in range(2):
        commit(spark, place, batch, batch)
    names = [one.name for one in Path(f"{place}_home").glob("*.json")]
    assert names == ["batch-1.json"]
    assert json.loads((Path(f"{place}_home") / names[0]).read_text())["moves"]
