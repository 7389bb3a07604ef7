"""JSON and CBOR payloads as columns.

A payload is one object (in CBOR a map); its fields become columns by their names. msgspec says what
fits, for both formats by the same rule, so a message fits or not whatever its neighbours are:

- a field that is absent or null is null, unless the schema says NOT NULL;
- a field that the schema does not name is ignored;
- an integer fits a `double`, but nothing else is converted: neither `"21"` nor 1.0 fits an `int`;
- in JSON a `timestamp` and a `date` are texts as in RFC 3339 (UTC where there is no zone), `binary`
  is base64, `decimal` a number or a text; in CBOR they are tagged values, `binary` a byte string;
- keys of CBOR maps that are integers are named by their digits.
"""

from __future__ import annotations

import io
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, NotRequired, Required, TypedDict

import cbor2
import msgspec
import pyarrow as pa

from wirelake.spark.payloads.values import Values, decode_each

#: Bytes that the decoder of CBOR takes at a time; small payloads are the rule.
READ_SIZE = 256

_FLOATS = (pa.float32(), pa.float64())


class JsonDecoder:
    """Reads JSON objects."""

    def __init__(self, columns: pa.Schema) -> None:
        self._kind = pa.struct(list(columns))
        self._read = msgspec.json.Decoder(python_type(self._kind)).decode

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and why not."""
        return decode_each(payloads, self._read, self._kind)


class CborDecoder:
    """Reads CBOR maps."""

    def __init__(self, columns: pa.Schema) -> None:
        self._kind = pa.struct(list(columns))
        self._python = python_type(self._kind)

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and why not."""
        return decode_each(payloads, self._read, self._kind, self._read_all)

    def _read(self, payload: bytes) -> Any:
        value = _item(payload)
        try:
            return msgspec.convert(value, self._python)
        except msgspec.ValidationError:
            if not _has_numbers_as_keys(value):
                raise
            return msgspec.convert(_with_text_as_keys(value), self._python)

    def _read_all(self, payloads: list[bytes]) -> list[Any]:
        """Items that lie behind one another, by one decoder, and all of them checked at once."""
        stream = io.BytesIO(b"".join(payloads))
        decode, tell = cbor2.CBORDecoder(stream, read_size=READ_SIZE).decode, stream.tell
        values = []
        end = 0
        for payload in payloads:
            values.append(decode())
            end += len(payload)
            if tell() != end:
                raise ValueError("an item ends before or behind the end of its payload")
        found: list[Any] = msgspec.convert(values, list[self._python])  # type: ignore[name-defined]
        return found


def _item(payload: bytes) -> Any:
    """The one item that a payload is."""
    stream = io.BytesIO(payload)
    value = cbor2.load(stream)
    if stream.tell() != len(payload):
        raise ValueError(f"bytes behind the end of the item, from byte {stream.tell()} on")
    return value


def _has_numbers_as_keys(value: Any) -> bool:
    return isinstance(value, dict) and any(
        isinstance(key, int) or _has_numbers_as_keys(one) for key, one in value.items()
    )


def _with_text_as_keys(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {
        str(key) if isinstance(key, int) else key: _with_text_as_keys(one)
        for key, one in value.items()
    }


def python_type(kind: pa.DataType) -> Any:
    """The type that msgspec holds values of an Arrow type to."""
    if pa.types.is_struct(kind):
        fields = {
            one.name: NotRequired[python_type(one.type) | None]
            if one.nullable
            else Required[python_type(one.type)]
            for one in kind
        }
        # mypy wants names that it can read.
        return TypedDict("object", fields)  # type: ignore[operator]
    if pa.types.is_list(kind):
        return list[python_type(kind.value_type) | None]  # type: ignore[misc]
    if pa.types.is_map(kind):
        return dict[str, python_type(kind.item_type) | None]  # type: ignore[misc]
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return Annotated[int, msgspec.Meta(ge=-most, le=most - 1)]
    if kind in _FLOATS:
        return float
    if pa.types.is_decimal(kind):
        return Decimal
    if pa.types.is_timestamp(kind):
        return datetime
    others = {
        pa.bool_(): bool,
        pa.string(): str,
        pa.binary(): bytes,
        pa.date32(): date,
    }
    return others[kind]
