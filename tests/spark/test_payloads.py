"""Payloads as columns: what fits a schema, what does not and why, and what is no schema at all."""

from __future__ import annotations

import io
import json
import pickle
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import cbor2
import fastavro
import pyarrow as pa
import pytest
from google.protobuf import (  # type: ignore[import-untyped]  # it has none
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    timestamp_pb2,
)
from hypothesis import given
from hypothesis import strategies as st

from wirelake.errors import ConfigError
from wirelake.spark.payloads import Format, Schema, ddl
from wirelake.spark.payloads.documents import CborDecoder, JsonDecoder
from wirelake.spark.payloads.values import SLICE

DDL = "temp double, unit string, n int, at struct<x: double, tags: array<string>>"


def decode(schema: Schema, *payloads: bytes) -> tuple[list[Any], dict[int, str]]:
    sent: Schema = pickle.loads(pickle.dumps(schema))  # as it goes to a task
    found, reasons = sent.decoder().decode(pa.array(payloads, pa.binary()))
    assert found.type == schema.struct
    found.validate(full=True)
    return found.to_pylist(), reasons


def reason(schema: Schema, payload: bytes) -> str:
    """Why a payload does not fit, between two that do not change."""
    values, reasons = decode(schema, b"\xff\xff\xff", payload)
    assert values[1] is None
    return reasons[1]


# DDL


@pytest.mark.parametrize(
    "text",
    [
        "temp double",
        "a boolean, b tinyint, c smallint, d int, e bigint, f float, g string, h binary",
        "d date, t timestamp, m decimal(10,2)",
        "a array<struct<x: double, y: array<int>>>, m map<string, bigint>",
        "id string NOT NULL, at struct<x: double NOT NULL>",
        "`odd-name` string",
    ],
)
def test_ddl_is_read_and_written(text: str) -> None:
    assert ddl.write(ddl.parse(text)) == text


def test_ddl_has_the_other_names_of_spark() -> None:
    found = ddl.parse("a LONG COMMENT 'it\\'s', b Integer not null, c struct<d int>, e decimal")
    assert ddl.write(found) == "a bigint, b int NOT NULL, c struct<d: int>, e decimal(10,0)"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("temp dubble", "'dubble' is no type"),
        ("temp ", "no such file"),
        ("temp double,", "'the end' where a name was expected"),
        ("temp double unit string", "'unit' behind temp; a comma was expected"),
        ("temp double, TEMP int", "TEMP is named twice"),
        ("a array<int", "'the end' where '>' was expected"),
        ("a map<int, int>", "keys of a map are strings"),
        ("a decimal(40,2)", "at most 38 digits"),
        ("a " + "array<" * 30 + "int" + ">" * 30, "nested at most"),
        ("`a b` int", "cannot be a column's name"),
        ("a int 'x'", "a comma was expected"),
        ("a int \x60", "what is meant by"),
        (", ".join(f"c{k} int" for k in range(1001)), "at most 1000 columns"),
    ],
)
def test_wrong_ddl_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Schema.parse(text)


@given(st.text())
def test_any_text_is_columns_or_a_plain_error(text: str) -> None:
    try:
        found = ddl.parse(text)
    except ValueError:
        return
    assert ddl.parse(ddl.write(found)) == found


# JSON and CBOR


def test_json_objects_become_columns() -> None:
    schema = Schema.parse(DDL)
    values, reasons = decode(
        schema,
        b'{"temp": 21.5, "unit": "C", "n": 3, "at": {"x": 1, "tags": ["a", null]}}',
        b'{\n "temp": 21,\n "more": {"ignored": [1, 2]}}',
        b'{"temp": null}',
        b"{}",
    )
    nothing = {"temp": None, "unit": None, "n": None, "at": None}
    assert values == [
        {"temp": 21.5, "unit": "C", "n": 3, "at": {"x": 1.0, "tags": ["a", None]}},
        nothing | {"temp": 21.0},
        nothing,
        nothing,
    ]
    assert not reasons


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b'{"temp": "21"}', r"Expected `float \| null`, got `str` - at `\$.temp`"),
        (b'{"n": 1.5}', r"got `float` - at `\$.n`"),
        (b'{"n": 3000000000}', r"Expected `int` <= 2147483647 - at `\$.n`"),
        (b'{"at": {"x": []}}', r"got `array` - at `\$.at.x`"),
        (b'{"temp": 1e999}', "out of range"),
        (b'{"temp": 1', "truncated"),
        (b'{"temp": 1}{"temp": 2}', "trailing characters"),
        (b'{"unit": "\xff"}', "utf-8"),
        (b'{"temp": NaN}', "malformed"),
        (b"21.5", "Expected `object`, got `float`"),
        (b"null", "got `null`"),
        (b"", "truncated"),
        (b'{"q": ' + b"[" * 100_000, "recursion"),
    ],
)
def test_json_that_does_not_fit_has_a_reason(payload: bytes, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(reason(Schema.parse(DDL), payload))


def test_a_field_can_be_asked_for() -> None:
    schema = Schema.parse("temp double NOT NULL, at struct<x: double NOT NULL>")
    values, reasons = decode(
        schema, b'{"temp": 1}', b"{}", b'{"temp": null}', b'{"temp": 1, "at": {}}'
    )
    assert [value is None for value in values] == [False, True, True, True]
    assert reasons[1] == "Object missing required field `temp`"
    assert reasons[3] == "Object missing required field `x` - at `$.at`"


def test_json_has_times_numbers_and_bytes_as_text() -> None:
    schema = Schema.parse("t timestamp, d date, m decimal(6,2), b binary, o map<string, int>")
    values, reasons = decode(
        schema,
        b'{"t": "2026-01-31T12:00:00+01:00", "d": "2026-01-31", "m": 1.25, "b": "aGk=",'
        b' "o": {"a": 1}}',
        b'{"m": 1.255}',
        b'{"t": "yesterday"}',
        b'{"t": "2026-01-31T12:00:00", "m": "7"}',
    )
    assert values[0] == {
        "t": datetime(2026, 1, 31, 11, tzinfo=UTC),
        "d": date(2026, 1, 31),
        "m": Decimal("1.25"),
        "b": b"hi",
        "o": [("a", 1)],
    }
    assert values[3]["t"] == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert reasons.keys() == {1, 2}
    assert "data loss" in reasons[1]


def test_cbor_maps_become_columns_by_the_same_rule() -> None:
    schema = Schema.parse("cbor: temp double, b binary, at timestamp, `1` int, in struct<`2`: int>")
    assert schema.format is Format.CBOR
    when = datetime(2026, 1, 31, tzinfo=UTC)
    values, reasons = decode(
        schema,
        cbor2.dumps({"temp": 21, "b": b"\xff", "at": when, "more": cbor2.CBORTag(6000, 1)}),
        cbor2.dumps({1: 5, "in": {2: 6}}),
        cbor2.dumps({"temp": "21"}),
        cbor2.dumps({"temp": 1}) + b"\0",
        b"\x81" * 10_000,
        cbor2.dumps([1]),
        b"",
        b"\xd8\x1c\xa1\x62in\xd8\x1d\x00",  # a map that contains itself
    )
    nothing = {"temp": None, "b": None, "at": None, "1": None, "in": None}
    assert values[0] == nothing | {"temp": 21.0, "b": b"\xff", "at": when}
    assert values[1] == nothing | {"1": 5, "in": {"2": 6}}
    assert values[2:7] == [None] * 5
    assert reasons.keys() >= {2, 3, 4, 5, 6}
    assert "got `str` - at `$.temp`" in reasons[2]
    assert "behind the end" in reasons[3]


@pytest.mark.parametrize("size", [1, 1000, 100_000])
def test_cbor_of_every_size_is_read(size: int) -> None:
    payloads = [cbor2.dumps({"n": k, "s": "x" * size, "more": b"y" * k}) for k in range(300)]
    values, reasons = decode(Schema.parse("cbor: n int, s string"), *payloads)
    assert values == [{"n": k, "s": "x" * size} for k in range(300)]
    assert not reasons


def test_a_payload_of_cbor_cannot_refer_to_another_one() -> None:
    shared, reference = bytes.fromhex("d81ca1616e05"), bytes.fromhex("a1616dd81d00")
    values, reasons = decode(Schema.parse("cbor: n int, m struct<n: int>"), shared, reference)
    assert values == [{"n": 5, "m": None}, None]
    assert list(reasons) == [1]


def test_bad_payloads_are_found_in_the_middle_of_many() -> None:
    payloads = [b'{"n": %d}' % k for k in range(2 * SLICE + 10)]
    payloads[SLICE + 5] = b"{"
    values, reasons = decode(Schema.parse("n int, m int"), *payloads)
    assert list(reasons) == [SLICE + 5]
    assert [value and value["n"] for value in values] == [
        None if k == SLICE + 5 else k for k in range(len(payloads))
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from("abc"), some),
    max_leaves=6,
)


@given(st.lists(JSON | st.fixed_dictionaries({}, optional={"a": JSON, "b": JSON}), max_size=5))
def test_whether_a_payload_fits_does_not_depend_on_its_neighbours(values: list[Any]) -> None:
    texts = Schema.parse("a bigint, b struct<a: string, b: array<double>>")
    payloads = [json.dumps(value).encode() for value in values]
    together, reasons = decode(texts, *payloads)
    alone = [decode(texts, payload) for payload in payloads]
    assert together == [values[0] for values, _ in alone]
    assert reasons == {row: why[0] for row, (_, why) in enumerate(alone) if why}


@given(st.binary())
@pytest.mark.parametrize("format", ["json", "cbor"])
def test_any_bytes_fit_or_have_a_reason(format: str, payload: bytes) -> None:
    values, reasons = decode(Schema.parse(f"{format}: a bigint, b string"), payload)
    assert (values[0] is None) == bool(reasons)


# Binary layouts

LAYOUT = """
format = "binary"
byte_order = "little"

[[fields]]
name = "celsius"
type = "i16"
scale = 0.01

[[fields]]
name = "counter"
type = "u32"
byte_order = "big"

[[fields]]
name = "total"
type = "u64"

[[fields]]
name = "open"
type = "bool"

[[fields]]
name = "unit"
type = "text"
offset = 16
length = 4
"""


def layout(tmp_path: Path, text: str = LAYOUT) -> Schema:
    file = tmp_path / "layout.toml"
    file.write_text(text)
    return Schema.parse(str(file))


def test_a_described_layout_is_cut_into_columns(tmp_path: Path) -> None:
    schema = layout(tmp_path)
    assert ddl.write(schema.columns) == (
        "celsius double, counter bigint, total decimal(20,0), open boolean, unit string"
    )
    good = struct.pack("<h", -150) + struct.pack(">I", 2**32 - 1) + struct.pack("<Q", 2**64 - 1)
    good += b"\x02\xee" + b"C\0\0\0"
    values, reasons = decode(schema, good, good[:-1], good[:-4] + b"\xff\0\0\0", good)
    assert (
        values[0]
        == values[3]
        == {
            "celsius": -1.5,
            "counter": 2**32 - 1,
            "total": Decimal(2**64 - 1),
            "open": True,
            "unit": "C",
        }
    )
    assert values[1] is values[2] is None
    assert reasons == {1: "19 bytes, where the layout has 20 bytes", 2: "unit is not UTF-8"}


def test_the_last_field_of_a_layout_may_be_all_that_is_left(tmp_path: Path) -> None:
    text = (
        'format = "binary"\nfields = [{name = "n", type = "f32"}, {name = "rest", type = "bytes"}]'
    )
    values, reasons = decode(
        layout(tmp_path, text), struct.pack(">f", 1.5) + b"abc", struct.pack(">f", 2), b"abc"
    )
    assert values[:2] == [{"n": 1.5, "rest": b"abc"}, {"n": 2.0, "rest": b""}]
    assert reasons == {2: "3 bytes, where the layout has 4 bytes or more"}


@pytest.mark.parametrize("code", ["b", "h", "i", "q", "f", "d"])
@pytest.mark.parametrize("order", ["big", "little"])
def test_numbers_of_every_size_and_byte_order(tmp_path: Path, code: str, order: str) -> None:
    kind = {"b": "i8", "h": "i16", "i": "i32", "q": "i64", "f": "f32", "d": "f64"}[code]
    text = f'format = "binary"\nbyte_order = "{order}"\nfields = [{{name = "n", type = "{kind}"}}]'
    mark = ">" if order == "big" else "<"
    numbers = [-100, 0, 1, 100]
    values, _ = decode(layout(tmp_path, text), *(struct.pack(mark + code, n) for n in numbers))
    assert [value["n"] for value in values] == numbers
    assert decode(layout(tmp_path, text)) == ([], {})


# Avro

RECORD = {
    "type": "record",
    "name": "Reading",
    "namespace": "house",
    "fields": [
        {"name": "temp", "type": "double"},
        {"name": "unit", "type": {"type": "enum", "name": "Unit", "symbols": ["C", "F"]}},
        {"name": "was", "type": ["null", "Unit"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "places", "type": {"type": "map", "values": {"type": "array", "items": "int"}}},
    ],
}


def test_avro_records_become_columns(tmp_path: Path) -> None:
    (tmp_path / "reading.avsc").write_text(json.dumps(RECORD))
    (tmp_path / "reading.toml").write_text('format = "avro"\nschema = "reading.avsc"\nskip = 5\n')
    schema = Schema.parse(str(tmp_path / "reading.avsc"))
    assert ddl.write(schema.columns) == (
        "temp double, unit string, was string, at timestamp, key string, "
        "places map<string, array<int>>"
    )
    when = datetime(2026, 1, 31, 12, tzinfo=UTC)
    stream = io.BytesIO()
    value = {"temp": 21.5, "unit": "C", "was": "F", "at": when, "key": "k", "places": {"a": [1]}}
    plain = json.loads(json.dumps(RECORD).replace('"logicalType": "uuid"', '"doc": ""'))
    fastavro.schemaless_writer(stream, plain, value)
    good = stream.getvalue()
    values, reasons = decode(schema, good, good[:-3], good + b"\0")
    assert values[0] == value | {"places": [("a", [1])]}
    assert values[1:] == [None, None]
    assert reasons.keys() == {1, 2}
    assert "behind the end" in reasons[2]
    registered = Schema.parse(str(tmp_path / "reading.toml"))
    assert decode(registered, b"\0\0\0\0\7" + good)[0] == values[:1]


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("{", "line 1"),
        ('"string"', "is a record"),
        ({"type": "record", "name": "R", "fields": []}, "has no fields"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]},
            "contains itself",
        ),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": "what"}]}, "no type"),
        ({"type": "record", "name": "R", "fields": [{"type": "int"}]}, "no schema of Avro"),
        (
            {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]},
            "more than null and one type",
        ),
        (
            {
                "type": "record",
                "name": "R",
                "fields": [{"name": "a", "type": {"type": "array", "items": "null"}}],
            },
            "of nulls",
        ),
    ],
)
def test_a_wrong_avro_schema_is_refused(tmp_path: Path, definition: Any, why: str) -> None:
    file = tmp_path / "a.avsc"
    file.write_text(definition if isinstance(definition, str) else json.dumps(definition))
    with pytest.raises(ConfigError, match=why):
        Schema.parse(str(file))


# Protobuf


def descriptors() -> bytes:
    """What protoc makes of a small file, with a message of each kind of field."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="reading.proto",
        package="house",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
    )
    file.enum_type.add(name="Unit").value.add(name="CELSIUS", number=0)
    place = file.message_type.add(name="Place")
    place.field.add(name="x", number=1, type=field.TYPE_INT32, label=1)
    message = file.message_type.add(name="Reading")
    entry = message.nested_type.add(name="NamesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=1)
    entry.field.add(name="value", number=2, type=field.TYPE_INT64, label=1)
    message.oneof_decl.add(name="_maybe")
    fields: list[tuple[str, int, dict[str, Any]]] = [
        ("temp", field.TYPE_DOUBLE, {}),
        ("unit", field.TYPE_ENUM, {"type_name": ".house.Unit"}),
        ("total", field.TYPE_UINT64, {}),
        ("maybe", field.TYPE_STRING, {"proto3_optional": True, "oneof_index": 0}),
        ("places", field.TYPE_MESSAGE, {"type_name": ".house.Place", "label": 3}),
        ("names", field.TYPE_MESSAGE, {"type_name": ".house.Reading.NamesEntry", "label": 3}),
        ("at", field.TYPE_MESSAGE, {"type_name": ".google.protobuf.Timestamp"}),
    ]
    for number, (name, kind, more) in enumerate(fields, 1):
        message.field.add(**{"name": name, "number": number, "type": kind, "label": 1, **more})
    loop = file.message_type.add(name="Loop")
    loop.field.add(name="l", number=1, type=field.TYPE_MESSAGE, type_name=".house.Loop", label=1)
    known = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(known)
    found: bytes = descriptor_pb2.FileDescriptorSet(file=[known, file]).SerializeToString()
    return found


def protobuf_file(tmp_path: Path, message: str = "house.Reading") -> str:
    (tmp_path / "reading.desc").write_bytes(descriptors())
    file = tmp_path / "reading.toml"
    file.write_text(f'format = "protobuf"\ndescriptors = "reading.desc"\nmessage = "{message}"\n')
    return str(file)


def test_protobuf_messages_become_columns(tmp_path: Path) -> None:
    schema = Schema.parse(protobuf_file(tmp_path))
    assert ddl.write(schema.columns) == (
        "temp double, unit string, total decimal(20,0), maybe string, "
        "places array<struct<x: int>>, names map<string, bigint>, at timestamp"
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors()).file:
        pool.Add(file)
    reading = message_factory.GetMessageClass(pool.FindMessageTypeByName("house.Reading"))
    one = reading(temp=21.5, total=2**64 - 1, names={"a": 1}, unit=0)
    one.places.add(x=7)
    one.at.FromJsonString("2026-01-31T12:00:00.5Z")
    values, reasons = decode(schema, one.SerializeToString(), b"", b"\xff\xff")
    assert values == [
        {
            "temp": 21.5,
            "unit": "CELSIUS",
            "total": Decimal(2**64 - 1),
            "maybe": None,
            "places": [{"x": 7}],
            "names": [("a", 1)],
            "at": datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC),
        },
        {
            "temp": 0.0,
            "unit": "CELSIUS",
            "total": Decimal(0),
            "maybe": None,
            "places": [],
            "names": [],
            "at": None,
        },
        None,
    ]
    assert list(reasons) == [2]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("house.Nothing", "there is google.protobuf.Timestamp, house.Place"),
        ("house.Loop", "contains itself"),
    ],
)
def test_a_message_that_cannot_be_columns_is_refused(
    tmp_path: Path, message: str, why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        Schema.parse(protobuf_file(tmp_path, message))


# Files


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("format = ", "Invalid value"),
        ('columns = "a int"', "missing required field `format`"),
        ('format = "xml"', "Invalid enum value 'xml'"),
        ('format = "json"', "`columns` is missing; json needs it"),
        ('format = "json"\ncolumns = "a int"\nskip = 1', "`skip` is no setting of json"),
        ('format = "json"\ncolumns = "a what"', "'what' is no type"),
        ('format = "json"\ncolumns = "a int"\nmore = 1', "unknown field `more`"),
        ('format = "avro"\nschema = "none.avsc"', "there is no file"),
        ('format = "avro"\nschema = "none.avsc"\nskip = -1', "a number of bytes"),
        ('format = "protobuf"\ndescriptors = "x"', "`message` is missing"),
        ('format = "binary"\nfields = []', "at least one field"),
        ('format = "binary"\nfields = [{name = "a", type = "u7"}]', "'u7' is no type"),
        ('format = "binary"\nfields = [{name = "a", type = "u8", length = 2}]', "follows from"),
        (
            'format = "binary"\nfields = [{name = "a", type = "text"}, {name = "b", type = "u8"}]',
            "only the last field",
        ),
        ('format = "binary"\nfields = [{name = "a", type = "u8", offset = -1}]', "lies behind"),
        ('format = "binary"\nbyte_order = "odd"\nfields = []', "Invalid enum value 'odd'"),
        (
            'format = "binary"\nfields = [{name = "a", type = "u8"}, {name = "A", type = "u8"}]',
            "capitals make no difference",
        ),
    ],
)
def test_a_wrong_schema_file_is_refused_with_what_is_wrong(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "schema.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        Schema.parse(str(file))


def test_a_schema_file_may_be_json_and_descriptors_need_one(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text(json.dumps({"format": "cbor", "columns": "a int"}))
    assert Schema.parse(str(file)) == Schema.parse("cbor: a int")
    (tmp_path / "x.desc").write_bytes(descriptors())
    with pytest.raises(ConfigError, match="need a TOML file beside them"):
        Schema.parse(str(tmp_path / "x.desc"))
    with pytest.raises(ConfigError, match="no such file"):
        Schema.parse(str(tmp_path / "none.toml"))


def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reading.avsc").write_text(json.dumps(RECORD))
    monkeypatch.setitem(__import__("sys").modules, "fastavro", None)
    with pytest.raises(ConfigError, match=r"needs fastavro: pip install 'wirelake\[formats\]'"):
        Schema.parse(str(tmp_path / "reading.avsc"))
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    with pytest.raises(ConfigError, match=r"needs protobuf: pip install 'wirelake\[formats\]'"):
        Schema.parse(protobuf_file(tmp_path))


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-10, 10)
    | st.floats()
    | st.text(max_size=4)
)
FIELDS = st.sampled_from(["whole", "long", "float", "yes", "text", "bytes", "other"])


def documents(scalars: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]) -> Any:
    nested = st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=2), scalars)
    return st.dictionaries(keys, scalars | nested | st.lists(nested, max_size=2))


def as_json(value: Any, is_ascii: bool, indent: int | None) -> bytes:
    return json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode(errors="surrogatepass")


JSON_OBJECTS = st.builds(
    as_json, documents(SCALARS, FIELDS), st.booleans(), st.sampled_from([None, None, 1])
) | st.sampled_from(
    [
        b'{"float": -0}', b'{"float": -0.0, "whole": -0}', b'{"float": 1e400}',
        b'{"float": 1e-400}', b'{"float": 01}', b'{"float": 1.}', b'{"float": .5}',
        b'{"float": 1E+2}', b'{"float": +1}', b'{"float": 0.0}', b'{"float": 0.30000000000000004}',
        b'{"float": 9007199254740993}', b'{"whole": 1e2}', b'{"long": 9223372036854775807}',
        b'{"long": 123456789012345678}', b'{"yes": tru}', b'{"yes": falsetrue}', b'{"yes": nul}',
        b'{"text": "\x1f"}', b'{"text": "\xff"}', b'{"\xff": 1}', b'{"other": "\xff"}',
        b'{"other": 1.}', b'{"other": [1, {"a": }]}', b'{"other": [1,]}', b'{"other": {"a":1,}}',
        b'{"whole": 1}{"whole": 2}', b'{"whole": 1,}', b'{"whole" 1}', b'{,}', b' {} ',
        b'{"whole":1',
        b'{"whole": 1, "whole": 2}', b'\xef\xbb\xbf{}', b'{"float": 0.1e1, "other": 1e999}',
        b'{"other": -}', b'{"other": 00}', b'{"whole": 2147483648}', b'{"text": "a\\u0062"}',
    ]
)  # fmt: skip
CBOR_MAPS = documents(SCALARS | st.binary(max_size=4), FIELDS | st.integers(0, 9)).map(cbor2.dumps)


@pytest.mark.parametrize(("format", "good"), [("json", JSON_OBJECTS), ("cbor", CBOR_MAPS)])
@given(data=st.data())
def test_the_kernel_reads_what_is_read_one_by_one(
    format: str, good: st.SearchStrategy[bytes], data: st.DataObject
) -> None:
    cut = st.tuples(good, st.integers(0, 60)).map(lambda one: one[0][: one[1]])
    payloads = data.draw(st.lists(good | cut | st.binary(max_size=8)))
    columns = "whole int not null, long bigint, float double, yes boolean, text string"
    other = columns.replace(" not null", "").replace("double", "float")
    for wanted in (columns, other if format == "json" else f"{other}, bytes binary"):
        decoder = Schema.parse(f"{format}: {wanted}").decoder()
        assert isinstance(decoder, JsonDecoder | CborDecoder)
        given = pa.array([b"before", *payloads], pa.binary())[1:]
        found, misfits = decoder.decode(given)
        alone, reasons = decoder.one_by_one(given)
        assert misfits == reasons
        assert str(found.to_pylist()) == str(alone.to_pylist())  # text, as NaN is not NaN
