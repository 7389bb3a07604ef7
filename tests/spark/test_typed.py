"""Typed columns in tables: landed and decoded, beside the raw payload and beside each other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import cbor2
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from tests.http.house import House, arrow, rows
from wirelake.config import CaptureSettings
from wirelake.dialects.codec import encoder
from wirelake.errors import ConfigError
from wirelake.message import Message
from wirelake.spark import compaction, decode, table
from wirelake.spark.commits import Table
from wirelake.spark.land import Options, land
from wirelake.spark.rows import ROWS
from wirelake.spark.storage import Storage
from wirelake.spark.typed import Columns, Typed, table_schema
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA

JSON = "house/+/temp=temp double, unit string, id int, at struct<x: double, y: array<int>>"
CBOR = "cellar/#=cbor: temp double, raw binary"


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", capture=CaptureSettings(partitions=2)) as opened:
        yield opened


def publish(house: House, *messages: tuple[str, bytes]) -> None:
    answer = house.post("/v1/publish", arrow(rows(*messages)))
    assert answer.status == 202, answer.body


def schemas(*texts: str) -> tuple[Typed, ...]:
    return tuple(map(Typed.parse, texts))


def log_rows(*messages: tuple[str, bytes]) -> pa.Table:
    values = [
        {"offset": k, "address": address, "payload": payload, "timestamp": k, "headers": []}
        for k, (address, payload) in enumerate(messages)
    ]
    filled = [
        {f.name: "" if pa.types.is_string(f.type) else 0 for f in SCHEMA} | value
        for value in values
    ]
    return pa.Table.from_pylist(filled, SCHEMA)


# Rows of the log with columns


def test_each_row_is_read_by_the_first_schema_whose_filter_matches() -> None:
    typed = schemas("a/b=n int", "a/#=cbor: n int, m string")
    good, bad = Columns(typed).add(
        log_rows(
            ("x", b"{}"),
            ("a/b", b'{"n": 1}'),
            ("a/c", cbor2.dumps({"n": 2, "m": "two"})),
            ("a/b", b'{"n": 3}'),
            ("a", cbor2.dumps({"n": 4})),
        )
    )
    assert bad is None
    assert good.column("n").to_pylist() == [None, 1, 2, 3, 4]
    assert good.column("m").to_pylist() == [None, None, "two", None, None]
    assert good.schema.names == [*SCHEMA.names, "n", "m"]


def test_rows_that_do_not_fit_are_set_aside_with_payload_and_reason() -> None:
    good, bad = Columns(schemas("a/#=n int")).add(
        log_rows(("a/b", b'{"n": 1}'), ("a/c", b'{"n": "x"}'), ("b", b"?"), ("a/d", b"x" * 100))
    )
    assert good.column("offset").to_pylist() == [0, 2]
    assert bad is not None
    assert bad.column("offset").to_pylist() == [1, 3]
    assert bad.column("address").to_pylist() == ["a/c", "a/d"]
    assert bad.column("payload").to_pylist() == [b'{"n": "x"}', b"x" * 100]
    assert bad.column("excerpt").to_pylist() == [b'{"n": "x"}', b"x" * 64]
    first, second = bad.column("reason").to_pylist()
    assert first == "does not fit the schema of a/#: Expected `int | null`, got `str` - at `$.n`"
    assert second.startswith("does not fit the schema of a/#: JSON is malformed")


def test_no_rows_and_no_schemas_are_fine() -> None:
    good, bad = Columns(schemas("a=n int")).add(log_rows())
    assert (good.num_rows, good.schema.names[-1], bad) == (0, "n", None)
    unchanged = log_rows(("a", b"x"))
    assert Columns(()).add(unchanged) == (unchanged, None)


def test_fields_that_the_log_has_too_are_named_apart() -> None:
    found = table_schema(schemas("a=id int, Timestamp string, temp double, level int"))
    assert found.names[len(ROWS) :] == ["payload_id", "payload_Timestamp", "temp", "payload_level"]


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (("a",), "not of the form FILTER=FILE or FILTER=DDL"),
        (("a/#/b=n int",), "`#` is the last level"),
        (("a=n int", "b=n string"), "b has n as string, another as int32"),
        (("a=n int", "b=N int"), "N and n cannot both be columns"),
        (("a=n whole",), "'whole' is no type"),
    ],
)
def test_wrong_schemas_are_refused(texts: tuple[str, ...], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        table_schema(schemas(*texts))


def test_a_table_has_the_columns_of_the_addresses_that_go_there() -> None:
    typed = schemas("house/+/temp=temp double", "shop/#=price double", "#=any int")
    for filters, wanted in (
        (("house/#",), ["temp", "any"]),
        (("shop/+/orders",), ["price", "any"]),
        (("house/kitchen/door",), ["any"]),
        (("+/a/temp", "+"), ["temp", "price", "any"]),
        ((), ["temp", "price", "any"]),
    ):
        assert table_schema(typed, filters).names[len(ROWS) :] == wanted


# Landing


def test_payloads_are_landed_as_columns_and_misfits_in_the_side_table(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    options = Options(house.url, str(place), schemas=schemas(JSON, CBOR))
    publish(
        house,
        ("house/hall/temp", b'{"temp": 21.5, "unit": "C", "id": 7, "at": {"x": 1, "y": [1, 2]}}'),
        ("house/hall/temp", b'{"temp": "hot"}'),
        ("cellar/a", cbor2.dumps({"temp": 8, "raw": b"\xff"})),
        ("door", b"open"),
    )
    assert land(spark, options) == 4
    found = table.read(spark, str(place)).orderBy("address")
    values = [
        (row.address, row.temp, row.unit, row.payload_id, row.at, row.raw)
        for row in found.collect()
    ]
    assert values == [
        ("cellar/a", 8.0, None, None, None, b"\xff"),
        ("door", None, None, None, None, None),
        ("house/hall/temp", 21.5, "C", 7, (1.0, [1, 2]), None),
    ]
    (bad,) = table.read_errors(spark, table.side_table(str(place))).collect()
    assert (bad.address, bytes(bad.payload)) == ("house/hall/temp", b'{"temp": "hot"}')
    assert bad.reason.endswith("Expected `float | null`, got `str` - at `$.temp`")
    assert bad.timestamp is not None
    assert found.where("at.x = 1").count() == 1
    assert land(spark, options) == 0


def test_columns_can_be_added_to_a_table_but_not_changed(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    place = tmp_path / "table"
    publish(house, ("a", b'{"n": 1}'))
    land(spark, Options(house.url, str(place)))
    steps = [("a=n int", b'{"n": 2}'), ("a=n int, m string", b'{"n": 3, "m": "x"}'), ("", b"raw")]
    for text, payload in steps:
        publish(house, ("a", payload))
        land(spark, Options(house.url, str(place), schemas=schemas(*filter(None, [text]))))
    found = table.read(spark, str(place)).orderBy("timestamp", "offset")
    assert [(row.n, row.m) for row in found.collect()] == [
        (None, None),
        (2, None),
        (3, "x"),
        (None, None),
    ]
    for text, why in (
        ("a=n string", "has n as int32, not string; columns can be added to a table, but not"),
        ("a=N int", "has n, not N"),
    ):
        with pytest.raises(ConfigError, match=why):
            land(spark, Options(house.url, str(place), schemas=schemas(text)))
    assert DeltaTable(str(place)).to_pyarrow_dataset().to_table()["n"].to_pylist().count(None) == 2


def test_typed_tables_can_be_compacted(spark: SparkSession, house: House, tmp_path: Path) -> None:
    place = tmp_path / "table"
    typed = schemas("a=n int, at struct<x: double, y: array<int>>, m map<string, int>")
    for k in range(3):
        value = {"n": k, "at": {"x": k, "y": [k]}, "m": {"a": k}}
        publish(house, ("a", json.dumps(value).encode()), ("b", b"?"))
        land(spark, Options(house.url, str(place), schemas=typed if k else (), compact=False))
    before = table.read(spark, str(place)).orderBy("offset", "address").collect()
    opened = Table(Storage.of(str(place)))
    gone, come = compaction.compact(spark, opened, compaction.all_together(opened.files()))
    assert (gone, come) == (3, 1)
    assert table.read(spark, str(place)).orderBy("offset", "address").collect() == before
    assert [row.m for row in before if row.m] == [{"a": 1}, {"a": 2}]


def test_each_route_has_the_columns_of_its_addresses(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    publish(house, ("house/a/temp", b'{"temp": 1}'), ("shop/x", b'{"price": 2}'))
    routes = (("house/#", "house"), ("shop/#", "shop"))
    typed = schemas("house/+/temp=temp double", "shop/#=price double")
    land(spark, Options(house.url, str(tmp_path), routes=routes, schemas=typed, query="q"))
    (first,) = table.read(spark, str(tmp_path / "house")).collect()
    (second,) = table.read(spark, str(tmp_path / "shop")).collect()
    assert (first.temp, second.price) == (1.0, 2.0)
    assert "price" not in first
    assert "temp" not in second


def test_plain_files_have_no_typed_columns(
    spark: SparkSession, house: House, tmp_path: Path
) -> None:
    options = Options(house.url, str(tmp_path / "t"), format="parquet", schemas=schemas("a=n int"))
    with pytest.raises(ConfigError, match="typed columns need --format delta"):
        land(spark, options)
    with pytest.raises(ConfigError, match="typed columns need --format delta"):
        decode.Place(str(tmp_path / "t"), "parquet", schemas=schemas("a=n int"))


# Captures


def test_payloads_of_captures_become_columns_too(spark: SparkSession, tmp_path: Path) -> None:
    frames = FrameTable()
    messages = [Message(address="a", payload=b'{"n": %d}' % k) for k in range(10)]
    frames.fill([*messages, Message(address="a", payload=b"?")], "http")
    file = tmp_path / "capture.bin"
    file.write_bytes(encoder("boson-text").encode(frames))
    place = decode.Place(str(tmp_path / "table"), schemas=schemas("a=n int"))
    result = decode.decode(spark, [str(file)], place)
    assert (result.messages, result.errors) == (11, 1)
    found = table.read(spark, place.table).orderBy("offset")
    assert [row.n for row in found.collect()] == list(range(10))
    (bad,) = table.read_errors(spark, place.side).collect()
    assert bad.file == str(file)
    assert bad.reason.startswith("message 10: does not fit the schema of a: JSON is malformed")
    assert bytes(bad.payload) == b"?"
