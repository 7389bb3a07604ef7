"""Landing: the table is the log, row for row, whatever was killed in the middle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.http.house import House, arrow, rows
from wirelake.config import CaptureSettings
from wirelake.errors import ConfigError, EngineError
from wirelake.message import Message
from wirelake.spark import commits, direct, lakes, table
from wirelake.spark import land as land_module
from wirelake.spark.append_only import AppendOnly
from wirelake.spark.commits import Table
from wirelake.spark.files import TableWriter
from wirelake.spark.land import Options, Step, cut, land
from wirelake.spark.offsets import Range
from wirelake.spark.rows import FOLDERS
from wirelake.spark.storage import Storage
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
    found = table.read(spark, str(place)).drop(*FOLDERS)
    return found.toArrow().sort_by(ORDER)


def same(found: pa.Table, wanted: pa.Table) -> bool:
    return bool(found.cast(wanted.schema).equals(wanted))


def on_disk(place: Path) -> list[Path]:
    return sorted(place.rglob("*.parquet"))


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
    (progress,) = house.get("/v1/progress").json["queries"]
    assert (progress["query"], progress["lag"]) == ("land-messages", 0)
    assert len(on_disk(place)) == 4  # small batches are one file each, and no file is left over
    assert not (tmp_path / "lake" / "messages_errors").exists()


def test_what_was_landed_and_where_to_go_on_stands_in_the_commit(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    publish(house, 30)
    land(spark, Options(house.url, str(place)))
    newest = DeltaTable(str(place)).history(1)[0]
    noted = newest["wirelake"]
    ends = {str(one["partition"]): one["next"] for one in house.get("/v1/log").json["partitions"]}
    assert (noted["query"], noted["batch"]) == ("land-table", 0)
    assert noted["offsets"] == {p: at for p, at in ends.items() if at}
    assert noted["log"] == house.get("/v1/log").json["log"]
    opened = DeltaTable(str(place))
    assert opened.transaction_version("wirelake:land-table") == 0
    (action,) = pa.table(opened.get_add_actions(flatten=True)).to_pylist()
    assert action["num_records"] == 30
    assert (action["min.address"], action["max.address"]) == ("level0/a", "level2/a")
    assert action["min.timestamp"] <= action["max.timestamp"]


def test_some_addresses_can_be_landed_and_the_rest_is_not_read_again(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 300)
    place = tmp_path / "table"
    options = Options(house.url, str(place), subscribe="level1/#")
    assert land(spark, options) == 100
    assert set(landed(spark, place)["address"].to_pylist()) == {"level1/a"}
    publish(house, 2, first=302)  # addresses level2 and level0
    assert land(spark, options) == 0
    ends = {one["partition"]: one["next"] for one in house.get("/v1/log").json["partitions"]}
    opened = DeltaTable(str(place))
    log = house.get("/v1/log").json["log"]
    noted = {p: opened.transaction_version(f"wirelake:land-table:{log}:{p}") or 0 for p in ends}
    assert noted == ends


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_rows_without_a_place_go_to_the_side_table(
    spark: SparkSession, house: House, tmp_path: Path, format: str
) -> None:
    publish(house, 10)
    bad = FrameTable()
    bad.fill([Message(address="level0/b", payload=b"x" * 100)], "http")
    house.call(lambda: house.engine.append(bad, None, 2**60, b""))
    publish(house, 10, first=10)  # its times do not go back, so these have none either
    place = tmp_path / "table"
    assert land(spark, Options(house.url, str(place), format=format)) == 21
    side = table.read_errors(spark, table.side_table(str(place))).collect()
    assert len(landed(spark, place)) + len(side) == 21
    (row,) = [one for one in side if bytes(one.excerpt) == b"x" * 64]
    assert row.reason == "a time that no calendar has"
    assert row.file.startswith("log/")
    assert land(spark, Options(house.url, str(place), format=format)) == 0


def test_rows_that_the_log_has_deleted_stop_it_or_are_noted_once(
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
        for rows_landed in (300, 0):
            options = Options(second.url, str(place), skip_lost=True)
            assert land(spark, options) == rows_landed
        partitions = len(second.get("/v1/log").json["partitions"])
    side = table.read_errors(spark, table.side_table(str(place))).collect()
    assert {row.reason.partition(" was replaced")[1] for row in side} == {" was replaced"}
    assert len(side) == partitions


@pytest.mark.parametrize("folders", [("date",), ("date", "level")])
def test_a_table_can_have_folders(
    spark: SparkSession, house: House, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    place = tmp_path / "table"
    publish(house, 300)
    land(spark, Options(house.url, str(place), partition_by=folders))
    assert same(landed(spark, place), logged(house))
    names = {path.parent.name for path in on_disk(place)}
    if "level" in folders:
        assert names == {"level=level0", "level=level1", "level=level2"}
    else:
        assert all(name.startswith("date=2") for name in names)
    assert DeltaTable(str(place)).metadata().partition_columns == list(folders)
    found = DeltaTable(str(place)).to_pyarrow_dataset().to_table()
    assert set(found["level"].to_pylist()) == {"level0", "level1", "level2"}
    # Whoever lands next need not say it again.
    publish(house, 30)
    land(spark, Options(house.url, str(place)))
    assert same(landed(spark, place), logged(house))


def test_folders_by_other_columns_are_refused(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="payload is neither of date, level"):
        land(spark, Options(house.url, str(tmp_path / "t"), partition_by=("payload",)))
    with pytest.raises(ConfigError, match="'orc' is neither delta nor parquet"):
        land(spark, Options(house.url, str(tmp_path / "t"), format="orc"))


def test_a_folder_that_has_something_else_is_left_alone(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, 3)
    delta, parquet = tmp_path / "delta", tmp_path / "parquet"
    land(spark, Options(house.url, str(delta)))
    land(spark, Options(house.url, str(parquet), format="parquet"))
    with pytest.raises(ConfigError, match="is a Delta table"):
        land(spark, Options(house.url, str(delta), format="parquet"))
    with pytest.raises(ConfigError, match="has Parquet files and is no Delta table"):
        land(spark, Options(house.url, str(parquet)))


def test_two_queries_land_in_one_table(spark: SparkSession, house: House, tmp_path: Path) -> None:
    place = str(tmp_path / "table")
    publish(house, 300)
    first = Options(house.url, place, subscribe="level0/#", query="zero")
    other = Options(house.url, place, subscribe="level1/#", query="one")
    assert (land(spark, first), land(spark, other), land(spark, first)) == (100, 100, 0)
    assert table.read(spark, place).count() == 200


def test_a_batch_is_cut_evenly_into_few_tasks() -> None:
    found = [Range(0, 10, 20), Range(1, 0, 5)]
    assert cut(found, 8) == ((Range(0, 10, 20), Range(1, 0, 5)),)
    large = [Range(0, 0, 900_001), Range(1, 7, 100_007)]
    for most in (1, 3, 4, 100):
        tasks = cut(large, most)
        assert len(tasks) == min(most, 11)
        sizes = [sum(map(len, task)) for task in tasks]
        assert sum(sizes) == 1_000_001
        assert max(sizes) - min(sizes) <= 2
        pieces = [one for task in tasks for one in task]
        for whole in large:
            mine = [one for one in pieces if one.partition == whole.partition]
            ends = [whole.start, *(one.stop for one in mine)]
            assert [one.start for one in mine] == ends[:-1]
            assert ends[-1] == whole.stop


# A table for each filter


ROUTES = (("level0/#", "zero"), ("level1/+", "some"), ("level0/a", "some"))


def routed(house: House, filters: tuple[str, ...]) -> pa.Table:
    rows_of_log = logged(house)
    wanted = [one[:6] in filters for one in rows_of_log["address"].to_pylist()]
    return rows_of_log.filter(pa.array(wanted))


def test_each_filter_has_its_table(spark: SparkSession, house: House, tmp_path: Path) -> None:
    options = Options(house.url, str(tmp_path / "lake"), routes=ROUTES, batch_rows=70)
    for _ in range(2):
        publish(house, 90)
        assert land(spark, options) == 60
        assert same(landed(spark, tmp_path / "lake" / "zero"), routed(house, ("level0",)))
        both = routed(house, ("level0", "level1"))
        assert same(landed(spark, tmp_path / "lake" / "some"), both)
    assert land(spark, options) == 0
    everything = replace(options, routes=(("#", "all"),))
    assert land(spark, everything) == 180
    assert same(landed(spark, tmp_path / "lake" / "all"), logged(house))


def test_a_driver_that_dies_between_the_commits_of_two_tables_fills_both_once(
    spark: SparkSession, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Options(house.url, str(tmp_path / "lake"), routes=ROUTES)
    real = Table.append
    for last in range(1, 4):
        publish(house, 30)
        commits_left = last

        def dying(self: Table, *args: Any) -> None:
            nonlocal commits_left
            commits_left -= 1
            if not commits_left:
                raise Crash
            real(self, *args)

        monkeypatch.setattr(Table, "append", dying)
        if last < 3:
            with pytest.raises(Crash):
                land(spark, options)
        else:
            land(spark, options)
    monkeypatch.setattr(Table, "append", real)
    land(spark, options)
    assert same(landed(spark, tmp_path / "lake" / "zero"), routed(house, ("level0",)))
    assert same(landed(spark, tmp_path / "lake" / "some"), routed(house, ("level0", "level1")))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"routes": (("a/#/b", "t"),)}, "--route: `#` is the last level"),
        ({"routes": (("a", "../t"),)}, "'../t' is no name of a table"),
        ({"routes": (("a", "t"),), "subscribe": "b"}, "with --route only"),
        ({"routes": (("a", "t"), ("b", "u")), "format": "parquet"}, "need --format delta"),
    ],
)
def test_routes_that_cannot_be_are_refused(
    spark: SparkSession, house: House, tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        land(spark, Options(house.url, str(tmp_path / "lake"), **options))


# Parquet


def test_plain_parquet_is_files_that_are_only_added(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    options = Options(house.url, str(place), format="parquet", batch_rows=400)
    publish(house, 1000)
    assert land(spark, options) == 1000
    before = on_disk(place)
    assert len(before) == 3
    publish(house, 10)
    assert land(spark, options) == 10
    assert set(before) < set(on_disk(place))
    assert same(landed(spark, place), logged(house))
    found = ds.dataset(str(place), format="parquet", ignore_prefixes=["_", "."])
    assert found.count_rows() == 1010


def test_two_do_not_land_in_one_parquet_folder(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    options = Options(house.url, str(tmp_path / "table"), format="parquet")
    publish(house, 10)
    other = AppendOnly(Storage.of(options.table), "other")
    with other.alone(), pytest.raises(EngineError, match="another process lands in"):
        land(spark, options)
    assert land(spark, options) == 10


# Two drivers


def in_between(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object], at: int = 0) -> None:
    """Have something done after a batch was written and before it is committed."""
    real, calls = direct.run, 0

    def run(*args: Any, **named: Any) -> Any:
        nonlocal calls
        done = real(*args, **named)
        calls += 1
        if calls == at + 1:
            other()
        return done

    monkeypatch.setattr(direct, "run", run)


@pytest.mark.parametrize("go_on", [False, True])
def test_of_two_drivers_one_commit_wins_and_the_other_says_so(
    spark: SparkSession,
    house: House,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    go_on: bool,
) -> None:
    options = Options(house.url, str(tmp_path / "table"), go_on=go_on)
    publish(house, 100)
    land(spark, options)
    publish(house, 50)

    def faster() -> None:
        assert land(spark, options) == 50
        publish(house, 7)

    in_between(monkeypatch, faster)
    if go_on:
        assert land(spark, replace(options, once=False), stopped=rows_are(tmp_path, 157)) == 7
        assert "another process has landed batch 1" in caplog.text
    else:
        with pytest.raises(EngineError, match="another process has landed batch 1 of land-table"):
            land(spark, options)
        assert land(spark, options) == 7
    assert same(landed(spark, tmp_path / "table"), logged(house))


def rows_are(tmp_path: Path, count: int) -> Callable[[], bool]:
    return lambda: DeltaTable(str(tmp_path / "table")).count() == count


def test_two_drivers_that_make_the_table_are_one_table(
    spark: SparkSession, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "table")
    publish(house, 10)
    first = {"yes": True}
    real = commits.exists

    def not_yet(storage: Storage) -> bool:
        """Nobody sees a table before the other one has made it."""
        if storage.uri == place and first.pop("yes", False):
            land(spark, Options(house.url, place))
            return False
        return real(storage)

    monkeypatch.setattr(commits, "exists", not_yet)
    publish(house, 5)
    assert land(spark, Options(house.url, place)) == 0
    assert table.read(spark, place).count() == 15


# Crashes


class Crash(BaseException):
    """The process is gone; nothing is tidied up."""


def append_bad(house: House, time: int) -> None:
    """Two rows that have no place in a table."""
    bad = FrameTable()
    bad.fill([Message(address="level0/b", payload=b"bad")] * 2, "http")
    house.call(lambda: house.engine.append(bad, None, time, b""))


#: The steps of a batch after which nothing is the same.
STEPS: dict[str, list[tuple[Any, str]]] = {
    "delta": [
        (Table, "_commit"),
        (Table, "ensure"),
        (Table, "refresh"),
        (direct, "run"),
        (lakes.DeltaLake, "commit"),
        (lakes.DeltaLake, "begin"),
    ],
    "parquet": [
        (Storage, "write"),
        (direct, "run"),
        (lakes.ParquetLake, "commit"),
        (lakes.ParquetLake, "begin"),
    ],
}


@pytest.mark.parametrize("format", ["delta", "parquet"])
@pytest.mark.parametrize("after", [False, True])
def test_a_driver_that_dies_at_any_step_of_a_commit_lands_all_rows_once(
    spark: SparkSession,
    house: House,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    format: str,
    after: bool,
) -> None:
    """Let every step be the last one, before or after it is done; with bad rows in all batches."""
    place = tmp_path / "table"
    options = Options(house.url, str(place), format=format, compact=False)
    left = 0

    def dying(real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            nonlocal left
            left -= 1
            is_last = left == 0
            if is_last and not after:
                raise Crash
            done = real(*args, **named)
            if is_last:
                raise Crash
            return done

        return call

    for owner, name in STEPS[format]:
        real = getattr(owner, name)
        made = dying(real)
        monkeypatch.setattr(owner, name, staticmethod(made) if hasattr(real, "__self__") else made)
    crashes = 0
    later = 2**60
    published = 0
    for turn in range(2):
        publish(house, 20, first=published)
        append_bad(house, later + turn)
        published += 22
        for at in range(1, 40):
            left = at
            try:
                land(spark, options)
            except Crash:
                crashes += 1
                publish(house, 1, first=1000 + at)  # so that a batch is never planned as before
                published += 1
                continue
            if left > 0:
                break
    left = 0
    land(spark, options)
    good = [(row.partition, row.offset) for row in table.read(spark, str(place)).collect()]
    side = table.read_errors(spark, table.side_table(str(place))).collect()
    wrong = [(int(row.file.partition("/")[2]), row.offset) for row in side]
    assert crashes > 8
    assert len(good) + len(wrong) == published
    assert len({*good, *wrong}) == published


def test_a_commit_whose_answer_was_lost_is_no_conflict(
    spark: SparkSession, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(house, 10)
    real = Table._commit

    def unheard(self: Table, *args: Any) -> None:
        real(self, *args)
        raise OSError("the connection was reset")

    monkeypatch.setattr(Table, "_commit", unheard)
    assert land(spark, Options(house.url, str(tmp_path / "table"))) == 10
    assert table.read(spark, str(tmp_path / "table")).count() == 10


def test_a_task_that_dies_leaves_files_that_nobody_sees(
    spark: SparkSession, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "table"
    options = Options(house.url, str(place))
    publish(house, 10)

    def crash() -> None:
        raise Crash

    in_between(monkeypatch, crash)
    with pytest.raises(Crash):
        land(spark, options)
    assert len(on_disk(place)) == 1
    assert table.read(spark, str(place)).count() == 0
    assert land(spark, options) == 10
    assert len(on_disk(place)) == 2
    gone = Table(Storage.of(str(place))).vacuum(0)
    assert len(gone) == 1
    assert same(landed(spark, place), logged(house))


@pytest.mark.parametrize("small", [0, 1000])
def test_a_small_batch_is_landed_without_a_task_of_spark(
    spark: SparkSession,
    house: House,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small: int,
) -> None:
    # decision 81
    monkeypatch.setattr(land_module, "SMALL_ROWS", small)
    tasks: list[Any] = []
    source = direct._source

    def seen(*args: Any) -> Any:
        tasks.append(args)
        return source(*args)

    monkeypatch.setattr(direct, "_source", seen)
    publish(house, 100)
    assert land(spark, Options(house.url, str(tmp_path / "lake"), compact=False)) == 100
    assert len(tasks) == (1 if small == 0 else 0)
    assert same(landed(spark, tmp_path / "lake"), logged(house))


def test_a_small_batch_that_cannot_be_written_is_told_in_one_line(
    spark: SparkSession, house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(land_module, "SMALL_ROWS", 1000)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(TableWriter, "write", full)
    publish(house, 10)
    with pytest.raises(EngineError, match="No space left"):
        land(spark, Options(house.url, str(tmp_path / "lake")))
