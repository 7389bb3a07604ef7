"""Payloads decoded in people's own queries."""

from __future__ import annotations

from pathlib import Path

import cbor2
import pytest
from pyspark.sql import SparkSession

from wirelake.errors import ConfigError
from wirelake.spark.functions import from_payload, misfit

SCHEMA = "temp double NOT NULL, at struct<x: int, tags: array<string>>, m map<string, int>"


def test_payloads_become_structs_and_misfits_have_reasons(spark: SparkSession) -> None:
    payloads = [
        (1, b'{"temp": 21.5, "at": {"x": 1, "tags": ["a"]}, "m": {"k": 2}}'),
        (2, b'{"temp": "hot"}'),
        (3, None),
        (4, b"{}"),
    ]
    rows = spark.createDataFrame(payloads, "n int, payload binary").repartition(2)
    found = rows.select(
        "n", from_payload("payload", SCHEMA).alias("p"), misfit(rows.payload, SCHEMA).alias("why")
    )
    assert found.schema["p"].dataType.simpleString() == (
        "struct<temp:double,at:struct<x:int,tags:array<string>>,m:map<string,int>>"
    )
    first, *others = found.orderBy("n").collect()
    assert first.p.temp == 21.5
    assert (first.p["at"], first.p.m, first.why) == ((1, ["a"]), {"k": 2}, None)
    assert [one.p for one in others] == [None, None, None]
    assert [one.why for one in others] == [
        "Expected `float`, got `str` - at `$.temp`",
        None,
        "Object missing required field `temp`",
    ]


def test_other_formats_and_texts_as_payloads(spark: SparkSession, tmp_path: Path) -> None:
    layout = tmp_path / "layout.toml"
    layout.write_text('format = "binary"\nfields = [{name = "n", type = "u16"}]\n')
    rows = spark.createDataFrame(
        [(cbor2.dumps({"a": 1}), b"\1\2", '{"a": 3}')], "c binary, b binary, t string"
    )
    (one,) = rows.select(
        from_payload("c", "cbor: a int").alias("c"),
        from_payload("b", str(layout)).alias("b"),
        from_payload("t", "a int").alias("t"),
    ).collect()
    assert (one.c.a, one.b.n, one.t.a) == (1, 258, 3)


def test_a_wrong_schema_is_refused_where_the_query_is_written() -> None:
    with pytest.raises(ConfigError, match="'whole' is no type"):
        from_payload("payload", "a whole")
    with pytest.raises(ConfigError, match="no such file"):
        misfit("payload", "nowhere.toml")
