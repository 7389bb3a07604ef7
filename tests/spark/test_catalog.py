"""The format without `register`, and tables of it: CREATE TABLE, INSERT INTO, streams."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.http.house import House, arrow, rows
from wirelake.config import CaptureSettings
from wirelake.errors import ConfigError
from wirelake.spark import session
from wirelake.spark.catalog import KEY, complete, with_options
from wirelake.spark.options import OPTIONS
from wirelake.spark.source import Wirelake, schema_of

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", capture=CaptureSettings(partitions=2)) as opened:
        publish(opened, ("house/door", b"open"), ("house/temp", b"21"), ("shop/orders", b"7"))
        yield opened


@pytest.fixture
def fresh(spark: SparkSession) -> Iterator[SparkSession]:
    """A session that knows no more than any other, with a database of its own."""
    fresh = spark.newSession()
    fresh.sql("CREATE DATABASE tables")
    fresh.sql("USE tables")
    yield fresh
    fresh.sql("DROP DATABASE tables CASCADE")


def publish(house: House, *messages: tuple[str, bytes]) -> None:
    answer = house.post("/v1/publish", arrow(rows(*messages)))
    assert answer.status == 202, answer.body


def texts(spark: SparkSession, query: str) -> list[tuple[str, str]]:
    """Addresses and payloads that a query gives."""
    return sorted((row.address, bytes(row.payload).decode()) for row in spark.sql(query).collect())


def test_spark_finds_the_format_by_itself(fresh: SparkSession, house: House) -> None:
    log = fresh.read.format("wirelake").option("url", house.url).load()
    assert log.count() == 3
    assert log.where("address = 'house/door' and offset >= 0").count() == 1


def test_filters_are_pushed_down_where_that_is_switched_on(
    fresh: SparkSession, house: House
) -> None:
    log = fresh.read.format("wirelake").options(url=house.url, pushdown="true")
    door = "address = 'house/door'"
    assert "EqualTo" not in plan(log.load().where(door))
    fresh.conf.set(PUSHDOWN, "true")
    assert "EqualTo(address,house/door)" in plan(log.load().where(door))
    assert log.load().where(door).count() == 1


def test_frames_of_one_load_do_not_share_their_filters(fresh: SparkSession, house: House) -> None:
    fresh.conf.set(PUSHDOWN, "true")
    log = fresh.read.format("wirelake").option("url", house.url).load()
    door, temp = (log.where(f"address = 'house/{name}'") for name in ("door", "temp"))
    assert door.count() == 1
    assert log.count() == 3
    assert sorted(row.address for row in door.union(temp).collect()) == ["house/door", "house/temp"]


def plan(frame: DataFrame) -> str:
    """How Spark executes a frame."""
    shown = StringIO()
    with redirect_stdout(shown):
        frame.explain(mode="formatted")
    return shown.getvalue()


def test_a_package_that_cannot_be_imported_hides_no_other_format(tmp_path: Path) -> None:
    (tmp_path / "pyspark").mkdir()  # an old one, without what we need
    (tmp_path / "pyspark" / "__init__.py").write_text("")
    program = "import warnings; warnings.simplefilter('always'); import pyspark_wirelake as found; "
    program += "print(hasattr(found, 'DefaultSource'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
    assert "needs PySpark 4.2 or newer" in done.stderr


def test_a_table_remembers_its_options(fresh: SparkSession, house: House) -> None:
    fresh.sql(
        f"CREATE TABLE house USING wirelake OPTIONS (url '{house.url}', subscribe 'house/#') "
        "COMMENT 'what happens here' TBLPROPERTIES (mine = '1')"
    )
    assert fresh.table("house").columns == (
        schema_of(Wirelake({"url": "http://h:1"}).schema().names).names
    )
    found = texts(fresh, "SELECT address, payload FROM house")
    assert found == [("house/door", "open"), ("house/temp", "21")]
    query = "SELECT address, payload FROM house WITH (endingTimestamp = 5)"
    assert texts(fresh, query) == []
    publish(house, ("house/door", b"shut"))
    assert fresh.table("house").where("address = 'house/door'").count() == 2


def test_rows_are_published_by_insert_into(fresh: SparkSession, house: House) -> None:
    options = f"url '{house.url}', subscribe 'shop/#', columns 'address,payload'"
    fresh.sql(f"CREATE TABLE shop USING wirelake OPTIONS ({options})")
    fresh.sql("INSERT INTO shop VALUES ('shop/orders', X'38')")
    fresh.sql("INSERT INTO shop SELECT 'shop/copy', payload FROM shop WHERE payload = X'37'")
    everything = [("shop/copy", "7"), ("shop/orders", "7"), ("shop/orders", "8")]
    assert texts(fresh, "SELECT * FROM shop") == everything
    with pytest.raises(Exception, match="use the mode append"):
        fresh.sql("INSERT OVERWRITE shop VALUES ('shop/orders', X'39')")


def test_a_table_may_have_options_for_writing(fresh: SparkSession, house: House) -> None:
    options = f"url '{house.url}', columns 'id,payload', address 'shop/new', onError 'skip'"
    fresh.sql(f"CREATE TABLE new USING wirelake OPTIONS ({options})")
    fresh.sql("INSERT INTO new SELECT 'n1' AS id, X'31' AS payload")
    log = fresh.read.format("wirelake").option("url", house.url).load()
    assert log.where("address = 'shop/new'").count() == 1


def test_rows_go_to_the_broker_of_the_table_that_is_written_to(
    fresh: SparkSession, house: House, tmp_path: Path
) -> None:
    with House(tmp_path / "other") as other:
        for name, url in (("here", house.url), ("there", other.url)):
            options = f"url '{url}', columns 'address,payload'"
            fresh.sql(f"CREATE TABLE {name} USING wirelake OPTIONS ({options})")
        # As they are, they still have the options of the table they are from.
        with pytest.raises(Exception, match=r"WITH \(url = "):
            fresh.sql("INSERT INTO there SELECT * FROM here")
        fresh.sql(f"INSERT INTO there WITH (url = '{other.url}') SELECT * FROM here")
        assert fresh.table("there").count() == 3
        fresh.sql("INSERT INTO there SELECT concat('copy/', address) AS address, payload FROM here")
        fresh.sql("INSERT INTO there (payload, address) SELECT X'31', 'a'")
        assert fresh.table("there").count() == 7
        assert fresh.table("here").count() == 3
        with pytest.raises(Exception, match=r"WITH \(url = "):
            fresh.table("here").write.format("wirelake").mode("append").save()
        copy = fresh.table("here").write.format("wirelake").mode("append")
        copy.option("url", other.url).save()
        assert fresh.table("there").count() == 10
        assert fresh.table("here").count() == 3


def test_a_table_is_a_stream(fresh: SparkSession, house: House, tmp_path: Path) -> None:
    fresh.sql(f"CREATE TABLE house USING wirelake OPTIONS (url '{house.url}', subscribe 'house/#')")
    options = f"url '{house.url}', columns 'address,payload'"
    fresh.sql(f"CREATE TABLE copies USING wirelake OPTIONS ({options})")
    source = fresh.readStream.option("startingOffsets", "earliest").table("house")
    copies = source.selectExpr("concat('copy/', address) AS address", "payload").writeStream
    copies = copies.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = copies.trigger(availableNow=True).option("url", house.url).toTable("copies")
    query.awaitTermination()
    assert texts(fresh, "SELECT * FROM copies WHERE address LIKE 'copy/%'") == [
        ("copy/house/door", "open"),
        ("copy/house/temp", "21"),
    ]


def test_models_of_dbt_read_the_log_and_publish(fresh: SparkSession, house: House) -> None:
    """What dbt-spark 1.11 issues for docs/howto/dbt.md: it cannot be installed beside our tools."""
    place = f"url '{house.url}'"
    for _ in range(2):  # each run begins with the same hooks
        fresh.sql(
            "CREATE TABLE IF NOT EXISTS tables.log USING wirelake "
            f"OPTIONS ({place}, subscribe 'house/#')"
        )
        fresh.sql(
            "CREATE TABLE IF NOT EXISTS tables.alerts USING wirelake "
            f"OPTIONS ({place}, subscribe 'alerts/#', columns 'address,payload')"
        )
    assert [row.tableName for row in fresh.sql("show tables in tables like '*'").collect()] == [
        "alerts",
        "log",
    ]
    fresh.sql("show table extended in tables like '*'").collect()
    fresh.sql("describe extended tables.log").collect()
    fresh.sql(
        "create or replace view tables.doors as "
        "SELECT timestamp, CAST(payload AS STRING) AS state FROM tables.log "
        "WHERE address = 'house/door'"
    )
    fresh.sql(
        "create table tables.per_address using parquet as "
        "SELECT address, count(*) AS messages FROM tables.log GROUP BY address"
    )
    fresh.sql("create table tables.open using parquet as SELECT * FROM tables.doors")
    fresh.sql("insert into table tables.open select `timestamp`, `state` from tables.doors")
    fresh.sql(
        "INSERT INTO tables.alerts SELECT 'alerts/door' AS address, "
        "CAST(state AS BINARY) AS payload FROM tables.open"
    )
    assert fresh.table("per_address").count() == 2
    assert texts(fresh, "SELECT * FROM alerts") == [("alerts/door", "open")] * 2
    fresh.sql("drop view tables.doors")


def test_a_view_needs_no_catalog(fresh: SparkSession, house: House) -> None:
    fresh.sql(f"CREATE TEMPORARY VIEW now USING wirelake OPTIONS (url '{house.url}')")
    assert fresh.table("now").count() == 3


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        ("USING wirelake OPTIONS (url '{url}', token 'secret')", "WIRELAKE_TOKEN"),
        ("USING wirelake OPTIONS (url '{url}', colour 'red')", "no such option"),
        ("USING wirelake OPTIONS (subscribe 'house/#')", "url"),
    ],
)
def test_a_table_that_cannot_be_is_refused_when_it_is_created(
    fresh: SparkSession, house: House, statement: str, text: str
) -> None:
    with pytest.raises(Exception, match="wirelake") as caught:
        fresh.sql(f"CREATE TABLE wrong {statement.format(url=house.url)}")
    assert text in session.reason(caught.value)
    assert "secret" not in str(caught.value)
    assert not fresh.catalog.tableExists("wrong")


def test_a_table_with_a_list_of_columns_says_that_it_has_no_options(
    fresh: SparkSession, house: House
) -> None:
    fresh.sql(f"CREATE TABLE listed (address STRING) USING wirelake OPTIONS (url '{house.url}')")
    with pytest.raises(Exception, match=r"WITH \(url = "):
        fresh.table("listed").count()
    found = fresh.sql(f"SELECT * FROM listed WITH (url = '{house.url}')")
    assert found.count() == 3


def test_options_travel_with_the_columns_of_their_table_only() -> None:
    made = with_options(schema_of(["address", "payload"]), {"url": "http://h:1", "onError": "skip"})
    assert complete({}, made, OPTIONS) == {"url": "http://h:1"}
    assert complete({"startingOffsets": "x"}, made, OPTIONS) == {
        "startingOffsets": "x",
        "url": "http://h:1",
    }
    assert complete({}, made, OPTIONS, is_write=True) == {}  # it is read, or not adapted
    assert complete({"URL": "http://other:1"}, made, OPTIONS) == {"URL": "http://other:1"}
    other = with_options(schema_of(["address", "payload"]), {"url": "http://other:1"})
    mixed = type(made)([made["address"], other["payload"]])
    part = type(made)([made["address"]])
    for schema in (mixed, part, schema_of(["address"])):
        assert complete({}, schema, OPTIONS) == {}
    assert json.loads(made["address"].metadata[KEY])["columns"] == ["address", "payload"]
    with pytest.raises(ConfigError, match="token"):
        with_options(made, {"url": "http://h:1", "token": "t"})
