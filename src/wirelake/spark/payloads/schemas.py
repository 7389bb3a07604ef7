"""Schemas of payloads: DDL or a file, checked before anything starts.

`temp double, unit string` is JSON; `cbor: temp double` is CBOR. A file is Avro's own (`.avsc`) or
TOML:

    format = "json"                       # or "cbor"
    columns = "temp double, unit string"

    format = "avro"
    schema = "reading.avsc"               # beside this file
    skip = 5                              # bytes before the record, as a registry writes them

    format = "protobuf"
    descriptors = "reading.desc"          # as protoc writes them
    message = "house.Reading"

    format = "binary"
    byte_order = "little"                 # "big" where nothing is said
    longer = true                         # payloads may go on behind the last field
    [[fields]]
    name = "celsius"
    type = "i16"
    offset = 2                            # else behind the field before
    scale = 0.01
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from wirelake.errors import ConfigError
from wirelake.spark.payloads import avro, ddl, protobuf
from wirelake.spark.payloads.documents import CborDecoder, JsonDecoder
from wirelake.spark.payloads.layout import ByteOrder, Field, Layout, LayoutDecoder
from wirelake.spark.payloads.values import Values

#: A schema has at most this many columns, those inside of structs included.
MOST_COLUMNS = 1000
#: No schema file is larger (bytes).
LARGEST_FILE = 4 << 20
#: How the names of files end that may have a blank in their path, as DDL has.
_FILES = (".toml", ".json", ".avsc", ".desc")
#: Characters that Delta has in no column's name.
_NOT_IN_NAMES = set(" ,;{}()\n\t=")


class Format(StrEnum):
    """What a payload is."""

    JSON = "json"
    CBOR = "cbor"
    AVRO = "avro"
    PROTOBUF = "protobuf"
    BINARY = "binary"


class Decoder(Protocol):
    """Reads payloads."""

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and by row why it does not."""


@dataclass(frozen=True)
class Schema:
    """How payloads are read, and the columns that come of it; a plain value, for tasks too."""

    format: Format
    columns: pa.Schema
    definition: Any = None  # what the format needs beside the columns
    skip: int = 0  # bytes before the payload proper

    def __post_init__(self) -> None:
        _check_names(self.columns)
        if self.format is Format.AVRO:
            _installed("fastavro", avro.library)

    @classmethod
    def parse(cls, text: str, option: str = "schema") -> Schema:
        """A schema from DDL or from a file; ConfigError where it is neither."""
        try:
            if " " in text.strip() and not text.endswith(_FILES):
                return _of_ddl(text)
            return _of_file(Path(text))
        except (ValueError, OSError, msgspec.MsgspecError) as error:
            raise ConfigError(option, _one_line(text, error)) from None

    @property
    def struct(self) -> pa.StructType:
        """The columns as one value."""
        return pa.struct(list(self.columns))

    def as_ddl(self) -> str:
        """The text that `parse` takes; of JSON and CBOR only."""
        columns = ddl.write(self.columns)
        return columns if self.format is Format.JSON else f"{self.format}: {columns}"

    def as_toml(self) -> str:
        """The text of a schema file; of JSON and CBOR only."""
        # A string of JSON is one of TOML.
        columns = json.dumps(ddl.write(self.columns), ensure_ascii=False)
        return f'format = "{self.format}"\ncolumns = {columns}\n'

    def decoder(self) -> Decoder:
        """What reads payloads of this schema."""
        match self.format:
            case Format.JSON:
                return JsonDecoder(self.columns)
            case Format.CBOR:
                return CborDecoder(self.columns)
            case Format.AVRO:
                return avro.AvroDecoder(self.definition, self.skip)
            case Format.PROTOBUF:
                return protobuf.ProtobufDecoder(self.definition, self.skip)
            case Format.BINARY:
                return LayoutDecoder(self.definition)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """A schema file."""

    format: Format
    columns: str | None = None
    schema: str | None = None
    descriptors: str | None = None
    message: str | None = None
    skip: int | None = None
    byte_order: ByteOrder | None = None
    longer: bool | None = None
    fields: list[Field] | None = None


#: What a file of each format has, beside `format`: what it must have first.
_KEYS = {
    Format.JSON: (("columns",), ()),
    Format.CBOR: (("columns",), ()),
    Format.AVRO: (("schema",), ("skip",)),
    Format.PROTOBUF: (("descriptors", "message"), ("skip",)),
    Format.BINARY: (("fields",), ("byte_order", "longer")),
}


def _of_ddl(text: str) -> Schema:
    first, colon, rest = text.partition(":")
    name = first.strip().lower()
    if colon and name in (Format.JSON, Format.CBOR):
        return Schema(Format(name), ddl.parse(rest))
    return Schema(Format.JSON, ddl.parse(text))


def _of_file(path: Path) -> Schema:
    if not path.is_file():
        raise ValueError("there is no such file, and a DDL is like `temp double, unit string`")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"a schema file has at most {LARGEST_FILE} bytes")
    if path.suffix in (".desc", ".pb", ".proto"):
        raise ValueError(
            'descriptors need a TOML file beside them: format = "protobuf", '
            "descriptors = …, message = …"
        )
    if path.suffix == ".avsc":
        return _avro(path, 0)
    text = path.read_text(encoding="utf-8")
    raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    return _of_settings(msgspec.convert(raw, _File), path.parent)


def _of_settings(file: _File, folder: Path) -> Schema:
    needed, others = _KEYS[file.format]
    given = [name for name in _File.__struct_fields__[1:] if getattr(file, name) is not None]
    for name in needed:
        if name not in given:
            raise ValueError(f"`{name}` is missing; {file.format} needs it")
    for name in given:
        if name not in (*needed, *others):
            raise ValueError(f"`{name}` is no setting of {file.format}")
    skip = file.skip or 0
    if not 0 <= skip <= 1 << 16:
        raise ValueError("`skip` is a number of bytes, at most 65536")
    match file.format:
        case Format.AVRO:
            return _avro(folder / (file.schema or ""), skip)
        case Format.PROTOBUF:
            data = _bytes(folder / (file.descriptors or ""))
            message = file.message or ""
            columns = _installed("protobuf", lambda: protobuf.columns(data, message))
            return Schema(file.format, columns, (data, message), skip)
        case Format.BINARY:
            layout = Layout.of(
                file.fields or [], file.byte_order or "big", longer=bool(file.longer)
            )
            return Schema(file.format, layout.columns, layout)
    return Schema(file.format, ddl.parse(file.columns or ""))


def _avro(path: Path, skip: int) -> Schema:
    definition = json.loads(_bytes(path))
    try:
        columns = avro.columns(definition)
    except (KeyError, TypeError, AttributeError, pa.ArrowException) as error:
        raise ValueError(f"{path.name} is no schema of Avro: {error!r}") from None
    return Schema(Format.AVRO, columns, definition, skip)


def _bytes(path: Path) -> bytes:
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.stat().st_size > LARGEST_FILE:
        raise ValueError(f"{path} has more than {LARGEST_FILE} bytes")
    return path.read_bytes()


def _installed(package: str, use: Any) -> Any:
    try:
        return use()
    except ModuleNotFoundError:
        raise ValueError(f"this needs {package}: pip install 'wirelake[formats]'") from None


def _check_names(columns: Iterable[pa.Field], count: int = 0) -> int:
    """How many columns there are; ValueError where a name cannot be one of a table."""
    seen: set[str] = set()
    for field in columns:
        name = field.name
        if not name or _NOT_IN_NAMES & set(name):
            raise ValueError(f"{name!r} cannot be a column's name: no blanks, nor any of ,;{{}}()=")
        if name.lower() in seen:
            raise ValueError(f"{name} is there twice; capitals make no difference")
        seen.add(name.lower())
        count += 1
        if count > MOST_COLUMNS:
            raise ValueError(f"a schema has at most {MOST_COLUMNS} columns")
        kind = field.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if pa.types.is_struct(kind):
            count = _check_names(kind, count)
    return count


def _one_line(text: str, error: Exception) -> str:
    shown = text if len(text) <= 60 or text.endswith(_FILES) else text[:60] + "…"
    why = error.strerror if isinstance(error, OSError) else str(error)
    return f"{shown}: {why}"
