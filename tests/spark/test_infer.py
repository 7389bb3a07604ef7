"""`lake infer`: what passed, counted, and a schema that `--schema` takes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.command import Group
from tests.http.house import House, arrow, rows
from tests.spark.tables import make
from wirelake.config import CaptureSettings
from wirelake.spark import infer
from wirelake.spark.infer import Found, Kind
from wirelake.spark.payloads import Schema
from wirelake.spark.typed import Typed
from wirelake.wire.arrow import SCHEMA

lake = Group("lake")


def found(*payloads: bytes) -> Found:
    return infer.infer([pa.chunked_array([pa.array(payloads, pa.binary())])])


def proposed(*payloads: bytes) -> str:
    schema = found(*payloads).schema
    assert schema is not None
    return schema.as_ddl()


# What payloads are


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        (b'{"a": 1}', Kind.JSON),
        (b" {}\n", Kind.JSON),
        (b"21.5", Kind.TEXT),
        (b'{"a": ', Kind.TEXT),
        ("grün\r\n".encode(), Kind.TEXT),
        (b"", Kind.TEXT),
        (cbor2.dumps({"a": 1}), Kind.CBOR),
        (cbor2.dumps({1: {2: b"x"}}), Kind.CBOR),
        (cbor2.dumps({"a": 1}) + b"\0", Kind.BINARY),
        (cbor2.dumps([1, 200]), Kind.BINARY),
        (b"\0\1\2", Kind.BINARY),
        (b"\xff" * 10, Kind.BINARY),
        (b"\xa1" * 100_000, Kind.BINARY),
    ],
)
def test_a_payload_is_json_cbor_text_or_binary(payload: bytes, kind: Kind) -> None:
    assert infer.look_at(payload)[0] is kind


def test_fields_have_the_type_that_most_values_have() -> None:
    one = found(
        b'{"a": 1, "b": "x", "c": true, "d": [1, 2.5], "e": {"f": "y"}, "n": null}',
        b'{"a": 1.5, "b": "x", "d": [], "e": {"f": "z", "g": 1}}',
        b'{"a": "?", "b": 7, "d": [3], "big": 99999999999999999999}',
        b"not JSON",
    )
    assert (one.messages, one.kinds[Kind.JSON], one.kinds[Kind.TEXT]) == (4, 3, 1)
    assert one.schema is not None
    assert one.schema.as_ddl() == (
        "a double, b string, c boolean, d array<double>, e struct<f: string, g: bigint>, big double"
    )
    fields = dict(infer.walk(one.fields))
    assert (fields["a"].present, fields["a"].misfits) == (3, {"string": 1})
    assert infer.describe(fields["b"]) == "string; not 1 bigint"
    assert infer.describe(fields["n"]) == "nothing but null, or no name of a column"
    assert (fields["e.f"].present, fields["e.f"].example) == (2, "y")


def test_names_that_cannot_be_columns_are_left_out() -> None:
    assert proposed(b'{"a b": 1, "": 2, "a": 3, "A": 4, "x": {"y z": 1}}') == "a bigint"


def test_the_more_frequent_format_is_proposed() -> None:
    assert proposed(cbor2.dumps({"a": b"x"}), cbor2.dumps({1: 2}), b"{}") == (
        "cbor: a binary, `1` bigint"
    )
    assert found(b"text").schema is None
    assert found(b"{}", b'{"a": null}').schema is None


def test_no_more_messages_are_looked_at_than_asked_for() -> None:
    payloads = [pa.chunked_array([pa.array([b"{}"] * 7)])] * 3
    assert infer.infer(payloads, 10).messages == 10


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.lists(st.integers(-9, 9), max_size=3)
)
VALUES = st.recursive(
    LEAVES, lambda some: st.dictionaries(st.sampled_from(["a", "A", "b c"]), some), max_leaves=8
)


@given(st.dictionaries(st.sampled_from(["a", "b", "id"]), VALUES, min_size=1))
@pytest.mark.parametrize("format", ["json", "cbor"])
def test_a_message_fits_the_schema_that_is_proposed_for_it(
    format: str, value: dict[str, Any]
) -> None:
    payload = cbor2.dumps(value) if format == "cbor" else json.dumps(value).encode()
    schema = found(payload).schema
    if schema is not None:
        read = Schema.parse(schema.as_ddl())
        assert read == schema
        assert not read.decoder().decode(pa.array([payload]))[1]


# The command


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path / "data", capture=CaptureSettings(partitions=2)) as opened:
        messages = [
            (f"house/{k % 3}/temp", b'{"temp": %d.5, "id": "s%d"}' % (k, k)) for k in range(30)
        ]
        sent = rows(*messages, ("house/door", b"open"), ("shop", b"{}"))
        assert opened.post("/v1/publish", arrow(sent)).status == 202
        yield opened


def test_the_log_is_looked_at_and_its_schema_printed_and_written(
    house: House, tmp_path: Path
) -> None:
    file = tmp_path / "temp.toml"
    shown = lake.shown("infer", "house/#", "--url", house.url, "--out", file)
    assert shown[0] == "31 messages: 30 JSON, 0 CBOR, 1 text, 0 binary"
    assert [line.split()[:3] for line in shown[1:-1]] == [
        ["field", "type", "present"],
        ["temp", "double", "30"],
        ["id", "string", "30"],
    ]
    option, schema = shlex.split(shown[-1])
    assert (option, schema) == ("--schema", "house/#=temp double, id string")
    assert Typed.parse(schema).schema == Schema.parse(str(file))


def test_the_result_as_json(house: House) -> None:
    (one,) = lake.objects("infer", "house/+/temp", "--url", house.url, "--most", "10")
    fields = one.pop("fields")
    assert one == {
        "messages": 10,
        "json": 10,
        "cbor": 0,
        "text": 0,
        "binary": 0,
        "format": "json",
        "columns": "temp double, id string",
    }
    assert fields[1].keys() == {"field", "type", "present", "others", "example"}
    assert (fields[0]["field"], fields[0]["type"], fields[0]["present"]) == ("temp", "double", 10)


def test_a_table_is_looked_at_too(tmp_path: Path) -> None:
    plain = {one.name: "" if pa.types.is_string(one.type) else 0 for one in SCHEMA}
    values = [
        plain | {"address": address, "payload": payload, "headers": [], "offset": k}
        for k, (address, payload) in enumerate(
            [("a/b", b'{"n": 1}'), ("a/c", b"\xff"), ("b", b"text")]
        )
    ]
    make(tmp_path / "table", values, files=2)
    shown = lake.shown("infer", "a/#", "--table", tmp_path / "table")
    assert shown[0] == "2 messages: 1 JSON, 0 CBOR, 0 text, 1 binary"
    assert shown[-1] == "--schema 'a/#=n bigint'"


@pytest.mark.parametrize(
    ("arguments", "code", "why"),
    [
        (("a",), 2, "one of --url and --table"),
        (("a/#/b", "--table", "t"), 2, "FILTER: `#` is the last level"),
        (("a", "--url", "nowhere"), 2, "url: 'nowhere' has no scheme"),
        (("a", "--table", "nowhere/t"), 1, "there is no table"),
    ],
)
def test_wrong_arguments_are_told(arguments: tuple[str, ...], code: int, why: str) -> None:
    done = lake.run("infer", *arguments)
    assert done.returncode == code
    assert why in done.stderr.decode()


def test_no_file_is_written_where_there_is_nothing_to_propose(house: House, tmp_path: Path) -> None:
    file = tmp_path / "door.toml"
    done = lake.run("infer", "house/door", "--url", house.url, "--out", file)
    assert done.returncode == 1
    assert b"neither JSON nor CBOR" in done.stderr
    assert not file.exists()
    assert lake.shown("infer", "house/door", "--url", house.url) == [
        "1 messages: 0 JSON, 0 CBOR, 1 text, 0 binary"
    ]
