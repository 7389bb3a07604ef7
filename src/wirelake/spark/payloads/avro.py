"""Avro payloads: one record each, in Avro's binary encoding, without a file's header.

What a registry puts before a record is no part of it: `skip = 5` in the schema file goes over
Confluent's header, `skip = 10` over that of Avro's single objects.
"""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa

from wirelake.spark.payloads.ddl import MAX_DEPTH, UTC_TIME
from wirelake.spark.payloads.values import Values, decode_each

_SIMPLE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
    "fixed": pa.binary(),
}
_LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": UTC_TIME,
    "timestamp-micros": UTC_TIME,
}


def columns(definition: Any) -> pa.Schema:
    """The columns of a record; raises ValueError where a schema cannot be columns."""
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise ValueError("the schema of a payload is a record")
    return pa.schema(list(_Reader().type(definition, 0)[0]))


class AvroDecoder:
    """Reads Avro records."""

    def __init__(self, definition: Any, skip: int) -> None:
        self._schema = _without_plain_types(definition)
        self._kind = pa.struct(list(columns(definition)))
        self._skip = skip

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and why not."""
        fastavro = library()
        reader = fastavro.schemaless_reader
        schema = fastavro.parse_schema(self._schema)
        skip = self._skip

        def read(payload: bytes) -> Any:
            stream = io.BytesIO(payload)
            stream.seek(skip)
            value = reader(stream, schema, None)
            if stream.tell() != len(payload):
                raise ValueError(f"bytes behind the end of the record, from byte {stream.tell()}")
            return value

        return decode_each(payloads, read, self._kind)


def library() -> Any:
    """The package that reads Avro; ModuleNotFoundError where it is not installed."""
    import fastavro

    return fastavro


class _Reader:
    """Arrow's types of Avro's; knows the types that a schema has named so far."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._inside: list[Any] = []  # the records that are read at the moment
        self._space = ""

    def type(self, one: Any, depth: int) -> tuple[pa.DataType, bool]:
        """The type, and whether it may be null."""
        if depth > MAX_DEPTH:
            raise ValueError(f"types are nested at most {MAX_DEPTH} deep")
        if isinstance(one, list):
            return self._union(one, depth)
        if isinstance(one, str):
            if one in _SIMPLE:
                return _SIMPLE[one], False
            named = self._named.get(one) or self._named.get(f"{self._space}.{one}")
            if named is None:
                raise ValueError(f"{one!r} is no type")
            return self.type(named, depth + 1)
        if not isinstance(one, dict) or "type" not in one:
            raise ValueError(f"{one!r} is no type")
        if "logicalType" in one and (kind := _logical(one)) is not None:
            return kind, False
        kind = one["type"]
        if isinstance(kind, str) and kind in ("record", "enum", "fixed"):
            self._name(one)
        match kind:
            case "record":
                if any(one is other for other in self._inside):
                    raise ValueError(f"the record {one.get('name')!r} contains itself")
                self._inside.append(one)
                fields = self._fields(one, depth)
                self._inside.pop()
                return pa.struct(fields), False
            case "array":
                return pa.list_(self._item(one.get("items"), depth)), False
            case "map":
                return pa.map_(pa.string(), self._item(one.get("values"), depth)), False
        return self.type(kind, depth + 1)

    def _fields(self, record: dict[str, Any], depth: int) -> list[pa.Field]:
        found = [
            pa.field(one["name"], self.type(one["type"], depth + 1)[0])
            for one in record.get("fields") or ()
        ]
        if not found:
            raise ValueError(f"the record {record.get('name')!r} has no fields")
        return found

    def _item(self, one: Any, depth: int) -> pa.DataType:
        # Items of no bytes would let a few bytes of a payload claim any number of them.
        if one == "null" or one == ["null"]:
            raise ValueError("an array or a map of nulls cannot be a column")
        return self.type(one, depth + 1)[0]

    def _union(self, kinds: list[Any], depth: int) -> tuple[pa.DataType, bool]:
        others = [kind for kind in kinds if kind != "null"]
        if len(others) != 1:
            raise ValueError(f"the union {kinds!r} is more than null and one type")
        return self.type(others[0], depth + 1)[0], True

    def _name(self, one: dict[str, Any]) -> None:
        name = str(one.get("name", ""))
        space = str(one.get("namespace") or self._space)
        if "." not in name and space:
            self._space = space
            self._named[f"{space}.{name}"] = one
        self._named[name] = one


def _logical(one: dict[str, Any]) -> pa.DataType | None:
    if one["logicalType"] == "decimal":
        return pa.decimal128(int(one.get("precision", 0)), int(one.get("scale", 0)))
    return _LOGICAL.get(one["logicalType"])


def _without_plain_types(one: Any) -> Any:
    """A schema without the logical types that fastavro would make objects of, and we do not."""
    if isinstance(one, list):
        return [_without_plain_types(part) for part in one]
    if not isinstance(one, dict):
        return one
    return {
        name: _without_plain_types(value)
        for name, value in one.items()
        if not (name == "logicalType" and value not in (*_LOGICAL, "decimal"))
    }
