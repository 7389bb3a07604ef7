"""Binary payloads with a described layout: fields at fixed places.

A layout is a list of fields, each with a name, a type, an offset (behind the field before it, where
none is given) and a byte order. Columns are cut out of all payloads at once; a payload whose length
is not the layout's does not fit.

| type | column |
|---|---|
| `i8` `i16` `i32` `i64` | `tinyint`, `smallint`, `int`, `bigint` |
| `u8` `u16` `u32` `u64` | the next larger of these; `u64` is `decimal(20,0)` |
| `f32` `f64` | `float`, `double` |
| `bool` | `boolean`: one byte, true unless it is 0 |
| `bytes`, `text` | `binary`, `string` of `length` bytes; the last field may have all that is left |

A number with a `scale` is a `double`: what is on the wire times the scale. Text is UTF-8, and loses
the zero bytes that fill it up.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wirelake.spark.payloads.values import Values

#: By name: the code of Python's array, and the column.
NUMBERS: dict[str, tuple[str, pa.DataType]] = {
    "i8": ("b", pa.int8()),
    "u8": ("B", pa.int16()),
    "i16": ("h", pa.int16()),
    "u16": ("H", pa.int32()),
    "i32": ("i", pa.int32()),
    "u32": ("I", pa.int64()),
    "i64": ("q", pa.int64()),
    "u64": ("Q", pa.decimal128(20, 0)),
    "f32": ("f", pa.float32()),
    "f64": ("d", pa.float64()),
    "bool": ("B", pa.bool_()),
}
_AS_READ = {
    "b": pa.int8(), "B": pa.uint8(), "h": pa.int16(), "H": pa.uint16(), "i": pa.int32(),
    "I": pa.uint32(), "q": pa.int64(), "Q": pa.uint64(), "f": pa.float32(), "d": pa.float64(),
}  # fmt: skip
_TEXTS = {"bytes": pa.binary(), "text": pa.string()}

#: No field lies behind this (bytes).
LONGEST = 1 << 20

ByteOrder = Literal["big", "little"]


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A field as a schema file describes it."""

    name: str
    type: str
    offset: int | None = None
    length: int | None = None
    byte_order: ByteOrder | None = None
    scale: float | None = None


@dataclass(frozen=True)
class Cut:
    """Where a field lies in each payload; `stop` is None for all that is left."""

    name: str
    type: str
    start: int
    stop: int | None
    byte_order: ByteOrder
    scale: float | None

    @property
    def column(self) -> pa.DataType:
        """The type of its column."""
        if self.type in _TEXTS:
            return _TEXTS[self.type]
        return pa.float64() if self.scale is not None else NUMBERS[self.type][1]


@dataclass(frozen=True)
class Layout:
    """The fields of a payload, and how long it is: at least, and exactly unless `longer`."""

    cuts: tuple[Cut, ...]
    size: int
    longer: bool

    @classmethod
    def of(cls, fields: list[Field], byte_order: ByteOrder, *, longer: bool) -> Layout:
        """The layout that fields describe; raises ValueError where they make none."""
        cuts: list[Cut] = []
        end = size = 0
        for number, field in enumerate(fields, 1):
            what = f"field {number} ({field.name})"
            start = end if field.offset is None else field.offset
            width = _width(field, what, is_last=number == len(fields))
            if not 0 <= start <= LONGEST or (width or 0) > LONGEST:
                raise ValueError(f"{what} lies behind byte {LONGEST}")
            stop = None if width is None else start + width
            longer = longer or stop is None
            cuts.append(
                Cut(
                    field.name,
                    field.type,
                    start,
                    stop,
                    field.byte_order or byte_order,
                    field.scale,
                )
            )
            end = start if stop is None else stop
            size = max(size, end)
        if not cuts:
            raise ValueError("a layout has at least one field")
        return cls(tuple(cuts), size, longer)

    @property
    def columns(self) -> pa.Schema:
        """The columns that come of it."""
        return pa.schema([(cut.name, cut.column) for cut in self.cuts])


def _width(field: Field, what: str, *, is_last: bool) -> int | None:
    if field.type in NUMBERS:
        if field.length is not None:
            raise ValueError(f"{what}: the length of {field.type} follows from its type")
        if field.scale is not None and field.type == "bool":
            raise ValueError(f"{what}: a bool has no scale")
        return array(NUMBERS[field.type][0]).itemsize
    if field.type not in _TEXTS:
        known = ", ".join([*NUMBERS, *_TEXTS])
        raise ValueError(f"{what}: {field.type!r} is no type; types are {known}")
    if field.scale is not None:
        raise ValueError(f"{what}: {field.type} has no scale")
    if field.length is None and not is_last:
        raise ValueError(f"{what}: only the last field can go without a length")
    if field.length is not None and field.length < 1:
        raise ValueError(f"{what}: a length is 1 or more")
    return field.length


class LayoutDecoder:
    """Cuts columns out of payloads."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def decode(self, payloads: pa.Array) -> Values:
        """A struct for each payload, null where it does not fit, and why not."""
        layout = self._layout
        lengths = pc.binary_length(payloads)
        compare = pc.greater_equal if layout.longer else pc.equal
        fits = compare(lengths, layout.size)
        reasons: dict[int, str] = {}
        if not pc.all(fits).as_py():
            wanted = f"{layout.size} bytes{' or more' if layout.longer else ''}"
            for row, (fit, size) in enumerate(
                zip(fits.to_pylist(), lengths.to_pylist(), strict=True)
            ):
                if not fit:
                    reasons[row] = f"{size} bytes, where the layout has {wanted}"
            payloads = pc.if_else(fits, payloads, bytes(layout.size))
        columns = [_column(payloads, cut, reasons) for cut in layout.cuts]
        mask = None
        if reasons:
            mask = pa.array([row in reasons for row in range(len(payloads))])
        return pa.StructArray.from_arrays(columns, fields=list(layout.columns), mask=mask), reasons


def _column(payloads: pa.Array, cut: Cut, reasons: dict[int, str]) -> pa.Array:
    pieces = pc.binary_slice(payloads, cut.start, cut.stop)
    if cut.type == "bytes":
        return pieces
    if cut.type == "text":
        return _text(pieces, cut.name, reasons)
    code, column = NUMBERS[cut.type]
    numbers = array(code)
    numbers.frombytes(_joined(pieces))
    if cut.byte_order != sys.byteorder:
        numbers.byteswap()
    found = pa.Array.from_buffers(_AS_READ[code], len(pieces), [None, pa.py_buffer(numbers)])
    if cut.type == "bool":
        return pc.not_equal(found, 0)
    if cut.scale is not None:
        return pc.multiply(found.cast(pa.float64()), cut.scale)
    return found.cast(column)


def _joined(pieces: pa.Array) -> memoryview:
    """The bytes of all pieces, which lie behind one another."""
    _, offsets, data = pieces.buffers()
    if data is None or not len(pieces):
        return memoryview(b"")
    places: Any = memoryview(offsets).cast("i")
    first, last = places[pieces.offset], places[pieces.offset + len(pieces)]
    return memoryview(data)[first:last]


def _text(pieces: pa.Array, name: str, reasons: dict[int, str]) -> pa.Array:
    try:
        texts = pieces.cast(pa.string())
    except pa.ArrowInvalid:
        kept = []
        for row, piece in enumerate(pieces.to_pylist()):
            try:
                kept.append(piece.decode())
            except UnicodeDecodeError:
                reasons.setdefault(row, f"{name} is not UTF-8")
                kept.append("")
        texts = pa.array(kept, pa.string())
    return pc.utf8_rtrim(texts, characters="\0")
