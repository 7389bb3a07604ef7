"""Payloads for people: text, CBOR, or bytes."""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

#: What is looked at of CBOR: deeper or longer values are bytes to us.
DEEPEST = 16
MOST_ITEMS = 2_000

_FLOATS = {25: ("!e", 2), 26: ("!f", 4), 27: ("!d", 8)}
_SIMPLE = {20: False, 21: True, 22: None, 23: None}


def shown(payload: bytes, name: str = "payload") -> dict[str, Any]:
    """Bytes under this name where they are UTF-8, else as `base64`, and as `cbor` if they are."""
    try:
        return {name: payload.decode()}
    except UnicodeDecodeError:
        pass
    told: dict[str, Any] = {"base64": base64.b64encode(payload).decode()}
    try:
        told["cbor"] = read_cbor(payload)
    except ValueError:
        return told
    return told


def read_cbor(data: bytes) -> Any:
    """One CBOR value as JSON has it; ValueError where the bytes are no such value, or too much.

    A key of a map becomes text, bytes become `h'…'`, a tag is left out.
    """
    value, end = _Reader(data).value(0, 0)
    if end != len(data):
        raise ValueError("there is more behind it")
    if not isinstance(value, dict | list | str):
        raise ValueError("a number alone is hardly meant as CBOR")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._items = 0

    def value(self, at: int, depth: int) -> tuple[Any, int]:
        """The value at a place, and the place behind it."""
        self._items += 1
        if depth > DEEPEST or self._items > MOST_ITEMS or at >= len(self._data):
            raise ValueError("too deep, too long or cut off")
        kind, low = self._data[at] >> 5, self._data[at] & 31
        if kind == 7:
            return self._simple(low, at + 1)
        length, at = self._length(low, at + 1)
        match kind:
            case 0:
                return length, at
            case 1:
                return -1 - length, at
            case 2 | 3:
                end = at + length
                if end > len(self._data):
                    raise ValueError("cut off")
                raw = self._data[at:end]
                return (f"h'{raw.hex()}'" if kind == 2 else raw.decode()), end
            case 4:
                values = []
                for _ in range(length):
                    value, at = self.value(at, depth + 1)
                    values.append(value)
                return values, at
            case 5:
                found = {}
                for _ in range(length):
                    key, at = self.value(at, depth + 1)
                    found[str(key)], at = self.value(at, depth + 1)
                return found, at
            case _:
                return self.value(at, depth + 1)

    def _simple(self, low: int, at: int) -> tuple[Any, int]:
        if low in _SIMPLE:
            return _SIMPLE[low], at
        if low not in _FLOATS:
            raise ValueError("no simple value that we know")
        form, size = _FLOATS[low]
        if at + size > len(self._data):
            raise ValueError("cut off")
        (number,) = struct.unpack_from(form, self._data, at)
        return (number if math.isfinite(number) else str(number)), at + size

    def _length(self, low: int, at: int) -> tuple[int, int]:
        if low < 24:
            return low, at
        if low > 27:
            raise ValueError("of no known length")
        size = 1 << (low - 24)
        if at + size > len(self._data):
            raise ValueError("cut off")
        return int.from_bytes(self._data[at : at + size]), at + size
