"""`wirelake lake infer`: what payloads look like, and a schema that most of them fit.

Payloads of some addresses are taken from the end of the log, or from the newest files of a table,
up to a number. Each is JSON (an object), CBOR (a map), text, or else binary. The fields of the more
frequent of JSON and CBOR are counted with their types. Where a field has several types the most
frequent is proposed, and the others are named with their counts, since those messages would go to
the side table. It needs no Spark.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any

import cbor2
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from wirelake.errors import EngineError
from wirelake.spark.commits import Table
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Range
from wirelake.spark.payloads import Format, Schema, ddl
from wirelake.spark.rows import matching
from wirelake.spark.storage import Storage

#: Messages that are looked at, at most.
MOST = 10_000
#: Fields of one object that are counted, and how deep.
MOST_FIELDS = 500
MAX_DEPTH = 8
#: Characters of an example.
EXAMPLE = 40

#: Rows of the log that are asked for at a time, from its end backwards.
_STEP = 100_000
_LEAST, _GREATEST = -(2**63), 2**63 - 1


class Kind(StrEnum):
    """What a payload is."""

    JSON = "json"
    CBOR = "cbor"
    TEXT = "text"
    BINARY = "binary"

    @property
    def label(self) -> str:
        """As people write it."""
        return self.upper() if self in (Kind.JSON, Kind.CBOR) else str(self)


@dataclass
class Field:
    """A field of objects, over all messages that were looked at."""

    present: int = 0  # the number of objects that have it, also as null
    types: Counter[str] = field(default_factory=Counter)  # without null
    example: str = ""
    fields: dict[str, Field] = field(default_factory=dict)  # where it is an object
    items: Field | None = None  # where it is an array

    def add(self, value: Any, depth: int) -> None:
        """Take one value into account."""
        self.present += 1
        kind = _kind(value)
        if kind is None:
            return
        self.types[kind] += 1
        if kind == "struct" and depth < MAX_DEPTH:
            _add_fields(self.fields, value, depth + 1)
        elif kind == "array" and depth < MAX_DEPTH:
            if self.items is None:
                self.items = Field()
            for one in value:
                self.items.add(one, depth + 1)
        elif not self.example:
            text = value.hex() if isinstance(value, bytes) else str(value)
            self.example = text if len(text) <= EXAMPLE else text[:EXAMPLE] + "…"

    @property
    def type(self) -> pa.DataType | None:
        """The type that most values have; None where all are null, or nothing can be a column."""
        numbers = self.types["bigint"] + self.types["double"]
        counts = self.types.copy()
        del counts["bigint"], counts["double"]
        if numbers:  # integers fit a double
            counts["double" if self.types["double"] else "bigint"] = numbers
        if not counts:
            return None
        (most, _), *_ = counts.most_common(1)
        if most == "struct":
            return struct_of(self.fields)
        if most == "array":
            inner = self.items.type if self.items is not None else None
            return pa.list_(inner or pa.string())
        return ddl.SIMPLE[most]

    @property
    def misfits(self) -> dict[str, int]:
        """The other types that it has, with their counts."""
        chosen = self.type
        if chosen is None:
            return {}
        name = _name(chosen)
        fitting = {name} | ({"bigint"} if name == "double" else set())
        return {kind: count for kind, count in self.types.items() if kind not in fitting}


@dataclass
class Found:
    """What the payloads of some addresses look like."""

    messages: int = 0
    kinds: Counter[Kind] = field(default_factory=Counter)
    objects: dict[Kind, dict[str, Field]] = field(
        default_factory=lambda: {Kind.JSON: {}, Kind.CBOR: {}}
    )

    def add(self, payload: bytes) -> None:
        """Take one payload into account."""
        self.messages += 1
        kind, value = look_at(payload)
        self.kinds[kind] += 1
        if kind in self.objects:
            _add_fields(self.objects[kind], value, 0)

    @property
    def format(self) -> Format | None:
        """JSON or CBOR, whichever is more frequent; None where there is neither."""
        kind = max(self.objects, key=lambda one: self.kinds[one])
        return Format(kind) if self.kinds[kind] else None

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of that format."""
        return {} if self.format is None else self.objects[Kind(self.format)]

    @property
    def schema(self) -> Schema | None:
        """Return the proposed schema; None if there is none."""
        if self.format is None:
            return None
        kind = struct_of(self.fields)
        return None if kind is None else Schema(self.format, pa.schema(list(kind)))

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        schema = self.schema
        return {
            "messages": self.messages,
            **{kind.value: self.kinds[kind] for kind in Kind},
            "format": self.format,
            "columns": None if schema is None else ddl.write(schema.columns),
            "fields": [
                {
                    "field": path,
                    "type": None if one.type is None else _shown(one.type),
                    "present": one.present,
                    "others": one.misfits,
                    "example": one.example,
                }
                for path, one in walk(self.fields)
            ],
        }


def walk(fields: dict[str, Field], above: str = "") -> Iterator[tuple[str, Field]]:
    """All fields by their paths, those of objects behind the object."""
    for name, one in fields.items():
        path = f"{above}{name}"
        yield path, one
        yield from walk(one.fields, f"{path}.")
        if one.items is not None:
            yield from walk(one.items.fields, f"{path}[].")


def describe(one: Field) -> str:
    """The type of a field in words, with the types that do not fit it."""
    kind = "nothing but null, or no name of a column" if one.type is None else _shown(one.type)
    others = ", ".join(f"{count} {name}" for name, count in sorted(one.misfits.items()))
    return f"{kind}; not {others}" if others else kind


def _shown(kind: pa.DataType) -> str:
    """A type without what is in it, which has lines of its own."""
    if pa.types.is_struct(kind):
        return "struct"
    if pa.types.is_list(kind) and pa.types.is_struct(kind.value_type):
        return "array<struct>"
    return ddl.write(pa.schema([("x", kind)])).removeprefix("x ")


def _name(kind: pa.DataType) -> str:
    return "array" if pa.types.is_list(kind) else _shown(kind)


def struct_of(fields: dict[str, Field]) -> pa.StructType | None:
    """The columns of fields that can be columns; None where there are none."""
    found = []
    seen: set[str] = set()
    for name, one in fields.items():
        kind = one.type
        if kind is None or name.lower() in seen or not _can_be_column(name):
            continue
        seen.add(name.lower())
        found.append((name, kind))
    return pa.struct(found) if found else None


def _can_be_column(name: str) -> bool:
    try:
        Schema(Format.JSON, pa.schema([(name, pa.string())]))
    except ValueError:
        return False
    return True


def _add_fields(fields: dict[str, Field], value: dict[Any, Any], depth: int) -> None:
    for key, one in value.items():
        if not isinstance(key, str | int):
            continue
        name = str(key)
        if name not in fields:
            if len(fields) >= MOST_FIELDS:
                continue
            fields[name] = Field()
        fields[name].add(one, depth)


def _kind(value: Any) -> str | None:
    match value:
        case None:
            return None
        case bool():
            return "boolean"
        case int() if _LEAST <= value <= _GREATEST:
            return "bigint"
        case int() | float() | Decimal():
            return "double"
        case str():
            return "string"
        case bytes():
            return "binary"
        case dict():
            return "struct"
        case list() | tuple():
            return "array"
        case datetime():
            return "timestamp"
        case date():
            return "date"
    return None


def look_at(payload: bytes) -> tuple[Kind, Any]:
    """What a payload is, and its value where it is an object."""
    try:
        value = msgspec.json.decode(payload)
        if isinstance(value, dict):
            return Kind.JSON, value
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    try:
        text = payload.decode()
        if all(character.isprintable() or character in "\t\r\n" for character in text):
            return Kind.TEXT, None
    except UnicodeDecodeError:
        pass
    try:
        stream = io.BytesIO(payload)
        value = cbor2.load(stream)
        if isinstance(value, dict) and stream.tell() == len(payload):
            return Kind.CBOR, value
    except Exception:  # noqa: BLE001 - a tag's decoder may raise anything
        pass
    return Kind.BINARY, None


def infer(payloads: Iterable[pa.ChunkedArray], most: int = MOST) -> Found:
    """Look at payloads, `most` at most."""
    found = Found()
    for some in payloads:
        for payload in some[: most - found.messages].to_pylist():
            found.add(payload)
        if found.messages >= most:
            break
    return found


def from_log(client: LogClient, filter: str) -> Iterator[pa.ChunkedArray]:
    """Payloads of the log, from its end backwards."""
    log = client.log([filter])
    ends = {p: extent.next for p, extent in log.extents.items()}
    while ends:
        for p, end in sorted(ends.items()):
            start = max(log.extents[p].first, end - _STEP)
            read = client.read(Range(p, start, end), [filter], ["payload"], fail_on_data_loss=False)
            for rows in read:
                yield rows.column("payload")
            ends[p] = start
        ends = {p: end for p, end in ends.items() if end > log.extents[p].first}


def from_table(storage: Storage, filter: str) -> Iterator[pa.ChunkedArray]:
    """Payloads of a Delta table, of its newest files first."""
    system, root = storage.open()
    for file in reversed(Table(storage).files()):
        try:
            with system.open_input_file(f"{root}/{file.path}") as source:
                for batch in pq.ParquetFile(source).iter_batches(columns=["address", "payload"]):
                    rows = pa.Table.from_batches([batch])
                    yield matching(rows, (filter,)).column("payload")
        except OSError as error:
            raise EngineError(f"{storage.uri}: {error}") from error
