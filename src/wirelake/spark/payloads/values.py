"""Payloads that are read one by one into Python values, and the values into one Arrow array.

The loops are C's: `map` over a compiled decoder, and Arrow's own way from values to columns. Only
where something does not fit are payloads looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

#: Payloads that are values at the same time, at most.
SLICE = 16_384
#: Characters of a reason.
LONGEST_REASON = 200

#: Structs, one for each payload, null where it does not fit; and by row why it does not.
Values = tuple[pa.StructArray, dict[int, str]]

_NO_VALUE = (pa.ArrowException, OverflowError, ValueError, TypeError)


def decode_each(
    payloads: pa.Array,
    read: Callable[[bytes], Any],
    kind: pa.StructType,
) -> Values:
    """Read payloads by a function; whatever it raises is why a payload does not fit."""
    reasons: dict[int, str] = {}
    arrays = []
    for start in range(0, len(payloads), SLICE):
        some = payloads[start : start + SLICE].to_pylist()
        try:
            values = list(map(read, some))
        except Exception:  # noqa: BLE001 - a decoder's author has not promised anything
            values = [_value(read, one, start + k, reasons) for k, one in enumerate(some)]
        arrays.append(_array(values, kind, start, reasons))
    return pa.concat_arrays(arrays or [pa.nulls(0, kind)]), reasons


def _value(read: Callable[[bytes], Any], payload: bytes, row: int, reasons: dict[int, str]) -> Any:
    try:
        return read(payload)
    except Exception as error:  # noqa: BLE001
        reasons[row] = reason(error)
        return None


def _array(values: list[Any], kind: pa.DataType, first: int, reasons: dict[int, str]) -> pa.Array:
    """Values as an array; those that Arrow refuses (a decimal with too many digits) are null."""
    try:
        return pa.array(values, kind)
    except _NO_VALUE as error:
        if len(values) == 1:
            reasons[first] = reason(error)
            return pa.nulls(1, kind)
    half = len(values) // 2
    return pa.concat_arrays(
        [
            _array(values[:half], kind, first, reasons),
            _array(values[half:], kind, first + half, reasons),
        ]
    )


def reason(error: Exception) -> str:
    """Why a payload does not fit, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else text[:LONGEST_REASON] + "…"
