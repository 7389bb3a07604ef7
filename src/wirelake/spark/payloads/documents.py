"""JSON and CBOR payloads as columns.

A payload is one object (in CBOR a map); its fields become columns by their names. Plain payloads
are read by a kernel (`wire.document_columns`), all others by msgspec, which says what fits, for
both formats by the same rule. So a message fits or not whatever its neighbours are:

- a field that is absent or null is null, unless the schema says NOT NULL;
- a field that the schema does not name is ignored;
- an integer fits a `double`, but nothing else is converted: neither `"21"` nor 1.0 fits an `int`;
- in JSON a `timestamp` and a `date` are texts as in RFC 3339 (UTC where there is no zone), `binary`
  is base64, `decimal` a number or a text; in CBOR they are tagged values, `binary` a byte string;
- keys of CBOR maps that are integers are named by their digits.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, NotRequired, Required, TypedDict

import cbor2
import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wirelake.spark.payloads.values import Values, decode_each
from wirelake.wire.document_columns import (
    BOOLEAN,
    BYTES,
    FLOAT,
    INTEGER,
    TEXT,
    THERE,
    CborColumns,
    Columns,
    Field,
    JsonColumns,
)

_FLOATS = (pa.float32(), pa.float64())
#: What the kernel reads, and how it has texts and bytes.
_KINDS = {
    pa.float32(): FLOAT,
    pa.float64(): FLOAT,
    pa.bool_(): BOOLEAN,
    pa.string(): TEXT,
    pa.binary(): BYTES,
}
_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


class _DocumentDecoder:
    """Reads plain documents by a kernel, straight into columns, and others one by one."""

    def __init__(
        self,
        columns: pa.Schema,
        read: Callable[[bytes], Any],
        kernel: type[Columns],
        kinds: Mapping[pa.DataType, int],
    ) -> None:
        self._kind = pa.struct(list(columns))
        self._read = read
        fields = [_plain_field(one, kinds) for one in columns]
        known = [one for one in fields if one is not None]
        self._columns = kernel(known) if known and len(known) == len(fields) else None

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and why not."""
        if self._columns is None or payloads.null_count or payloads.type != pa.binary():
            return self.one_by_one(payloads)
        _, offsets, data = payloads.buffers()
        cells = memoryview(offsets or bytes(4)).cast("B").cast("i")
        octets = memoryview(data or b"").cast("B")
        count = self._columns.read(octets, cells, payloads.offset, len(payloads))
        columns = [self._column(number, len(payloads)) for number in range(len(self._kind))]
        plain = pa.StructArray.from_arrays(columns, fields=list(self._kind))
        return self._with_odd(payloads, plain) if count else (plain, {})

    def one_by_one(self, payloads: pa.Array) -> Values:
        """Decode with msgspec, without the kernel."""
        return decode_each(payloads, self._read, self._kind)

    def _column(self, number: int, rows: int) -> pa.Array:
        """A column of what the kernel has read."""
        assert self._columns is not None
        kind = self._kind[number].type
        marks = pa.py_buffer(self._columns.marks).slice(number * rows, rows)
        is_there = pc.equal(pa.Array.from_buffers(pa.uint8(), rows, [None, marks]), THERE)
        cells = pa.py_buffer(self._columns.cells).slice(8 * number * (rows + 1), 8 * (rows + 1))
        buffers = [is_there.buffers()[1], cells]
        if kind in _LARGE:
            buffers.append(pa.py_buffer(self._columns.octets[number].take()))
            return pa.Array.from_buffers(_LARGE[kind], rows, buffers).cast(kind)
        stored = pa.float64() if kind in _FLOATS else pa.int64()
        return pa.Array.from_buffers(stored, rows, buffers).cast(kind)

    def _with_odd(self, payloads: pa.Array, plain: pa.StructArray) -> Values:
        """What the kernel has read, with the payloads that it has left out."""
        assert self._columns is not None
        rows = len(payloads)
        marks = pa.py_buffer(self._columns.odd).slice(0, rows)
        is_odd = pc.equal(pa.Array.from_buffers(pa.uint8(), rows, [None, marks]), 1)
        odd = pc.indices_nonzero(is_odd)
        values, reasons = self.one_by_one(payloads.take(odd))
        order = pa.array(range(rows), pa.int64())
        behind = pa.array(range(rows, rows + len(odd)), pa.int64())
        order = pc.replace_with_mask(order, is_odd, behind)
        merged = pa.concat_arrays([plain, values]).take(order)
        return merged, {odd[row].as_py(): why for row, why in reasons.items()}


class JsonDecoder(_DocumentDecoder):
    """Reads JSON objects."""

    def __init__(self, columns: pa.Schema) -> None:
        read = msgspec.json.Decoder(python_type(pa.struct(list(columns)))).decode
        kinds = {kind: found for kind, found in _KINDS.items() if found != BYTES}  # base64
        super().__init__(columns, read, JsonColumns, kinds)


class CborDecoder(_DocumentDecoder):
    """Reads CBOR maps."""

    def __init__(self, columns: pa.Schema) -> None:
        wanted = python_type(pa.struct(list(columns)))

        def read(payload: bytes) -> Any:
            value = _item(payload)
            try:
                return msgspec.convert(value, wanted)
            except msgspec.ValidationError:
                if not _has_numbers_as_keys(value):
                    raise
                return msgspec.convert(_with_text_as_keys(value), wanted)

        super().__init__(columns, read, CborColumns, _KINDS)


def _plain_field(field: pa.Field, kinds: Mapping[pa.DataType, int]) -> Field | None:
    """A field as the kernel has it; None where it does not know the type."""
    kind, least, most = field.type, 0, 0
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1) - 1
        least = -1 - most
    found = INTEGER if most else kinds.get(kind)
    if found is None:
        return None
    return field.name.encode(), found, least, most, not field.nullable


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
