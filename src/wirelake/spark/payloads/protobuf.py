"""Protobuf payloads: one message each, described by a set of descriptors.

`protoc --include_imports --descriptor_set_out=reading.desc reading.proto` writes such a set. A
field without presence has its default where a message does not have it; others are null. An enum
is the name of its value. An unsigned number is the next larger column, `uint64` a `decimal(20,0)`.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from wirelake.spark.payloads.ddl import MAX_DEPTH, UTC_TIME
from wirelake.spark.payloads.values import Values, decode_each

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = "google.protobuf.Timestamp"
_UNSIGNED = pa.decimal128(20, 0)

#: By the number that descriptors have for a type.
_SIMPLE = {
    1: pa.float64(),
    2: pa.float32(),
    3: pa.int64(),
    4: _UNSIGNED,  # uint64
    5: pa.int32(),
    6: _UNSIGNED,  # fixed64
    7: pa.int64(),  # fixed32
    8: pa.bool_(),
    9: pa.string(),
    12: pa.binary(),
    13: pa.int64(),  # uint32
    15: pa.int32(),  # sfixed32
    16: pa.int64(),  # sfixed64
    17: pa.int32(),  # sint32
    18: pa.int64(),  # sint64
}
_ENUM, _MESSAGE = 14, 11


def columns(descriptors: bytes, message: str) -> pa.Schema:
    """The columns of a message; raises ValueError where it cannot be columns.

    Raises ModuleNotFoundError where protobuf is not installed.
    """
    return pa.schema(list(_kind_of(_message(descriptors, message))))


class ProtobufDecoder:
    """Reads messages of one type."""

    def __init__(self, definition: tuple[bytes, str], skip: int) -> None:
        from google.protobuf import message_factory  # type: ignore[import-untyped]  # it has none

        found = _message(*definition)
        self._kind = _kind_of(found)
        self._parse = message_factory.GetMessageClass(found).FromString
        self._values = _reader(found)
        self._skip = skip

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and why not."""
        parse, values, skip = self._parse, self._values, self._skip
        return decode_each(payloads, lambda one: values(parse(one[skip:])), self._kind)


def _message(descriptors: bytes, message: str) -> Any:
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
        pool = descriptor_pool.DescriptorPool()
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except (DecodeError, TypeError) as error:
        raise ValueError(f"this is no set of descriptors: {error}") from None
    names = [
        f"{file.package}.{one.name}".lstrip(".") for file in files for one in file.message_type
    ]
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = ", ".join(names) or "none"
        raise ValueError(f"there is no message {message!r}; there is {known}") from None


def _kind_of(message: Any, inside: tuple[str, ...] = ()) -> pa.DataType:
    """The type of a message that lies inside of others."""
    if message.full_name in inside or len(inside) > MAX_DEPTH:
        raise ValueError(f"the message {message.full_name} contains itself, or is nested too deep")
    if message.full_name == _TIME:
        return UTC_TIME
    if not message.fields:
        raise ValueError(f"the message {message.full_name} has no fields")
    within = (*inside, message.full_name)
    return pa.struct([(one.name, _column(one, within)) for one in message.fields])


def _column(field: Any, inside: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        if entry["key"].type != 9:
            raise ValueError(f"the keys of {field.full_name} are not strings")
        return pa.map_(pa.string(), _column(entry["value"], inside))
    if field.type == _MESSAGE:
        kind = _kind_of(field.message_type, inside)
    elif field.type == _ENUM:
        kind = pa.string()
    elif field.type in _SIMPLE:
        kind = _SIMPLE[field.type]
    else:
        raise ValueError(f"{field.full_name} is a group, which cannot be a column")
    return pa.list_(kind) if field.is_repeated else kind


def _is_map(field: Any) -> bool:
    return field.type == _MESSAGE and bool(field.message_type.GetOptions().map_entry)


def _reader(message: Any) -> Callable[[Any], Any]:
    """A function from a message to what Arrow makes a struct of."""
    if message.full_name == _TIME:
        return _time
    plain: list[str] = []
    others: list[tuple[str, bool, Callable[[Any], Any]]] = []
    for field in message.fields:
        if (
            not _is_map(field)
            and not field.is_repeated
            and not field.has_presence
            and (field.type != _ENUM)
        ):
            plain.append(field.name)
        else:
            others.append((field.name, field.has_presence, _value(field)))

    def read(one: Any) -> dict[str, Any]:
        found = {name: getattr(one, name) for name in plain}
        for name, has_presence, value in others:
            if not has_presence or one.HasField(name):
                found[name] = value(getattr(one, name))
        return found

    return read


def _value(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        inner = _value(field.message_type.fields_by_name["value"])
        return lambda entries: [(key, inner(entries[key])) for key in entries]
    if field.type == _MESSAGE:
        one = _reader(field.message_type)
    elif field.type == _ENUM:
        names = {value.number: value.name for value in field.enum_type.values}
        one = lambda number: names.get(number, str(number))  # noqa: E731 - one of three
    else:
        one = lambda value: value  # noqa: E731
    if field.is_repeated:
        return lambda values: [one(value) for value in values]
    return one


def _time(one: Any) -> datetime:
    return _EPOCH + timedelta(seconds=one.seconds, microseconds=one.nanos // 1000)
