"""Bytes at the level of C: reading integers and text in place, and a buffer that grows.

The functions take a pointer when compiled and any indexable bytes when plain; the caller has
checked the bounds. Nothing here knows a dialect.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import cython

if cython.compiled:
    from cython.cimports.libc.string import memcmp, memcpy

# Literals of more than 31 bits would be Python objects when compiled.
_BASIS = cython.declare(cython.longlong, 2166136261)
_PRIME = cython.declare(cython.longlong, 16777619)
_32_BITS = cython.declare(cython.longlong, 0xFFFFFFFF)


def int16(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.int:
    """Two bytes, big-endian, signed."""
    value: cython.int = (p[at] << 8) | p[at + 1]
    return value - 0x10000 if value & 0x8000 else value


def uint32(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    """Four bytes, big-endian, unsigned."""
    high: cython.longlong = (p[at] << 8) | p[at + 1]
    return (high << 16) | (p[at + 2] << 8) | p[at + 3]


def find_crlf(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Where the first CR LF in [at, end) begins, or -1."""
    while at + 1 < end:
        if p[at] == 13 and p[at + 1] == 10:
            return at
        at += 1
    return -1


def same(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    q: cython.p_const_uchar,
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Are the n bytes at p[at] those at q?"""
    return equal(p, at, q, 0, n)


def equal(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    q: cython.p_const_uchar,
    other: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Are the n bytes at p[at] those at q[other]?"""
    if cython.compiled:
        return memcmp(p + at, q + other, n) == 0
    return bytes(p[at : at + n]) == bytes(q[other : other + n])


def hash_of(
    seed: cython.longlong, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.longlong:
    """A hash of the n bytes at p[at]: FNV-1a, 32 bits, begun by a seed that others cannot know."""
    code: cython.longlong = _BASIS ^ seed
    i: cython.Py_ssize_t
    for i in range(at, at + n):
        code = ((code ^ p[i]) * _PRIME) & _32_BITS
    return code


def is_utf8(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Are the n bytes at p[at] well-formed UTF-8? (no surrogates, no overlong forms)"""
    end: cython.Py_ssize_t = at + n
    i: cython.Py_ssize_t = at
    seen: cython.int = 0
    lead: cython.int
    follow: cython.int
    low: cython.int
    high: cython.int
    for i in range(at, end):  # nearly all text here is ASCII: one pass that vectorises
        seen |= p[i]
    if seen < 0x80:
        return True
    i = at
    while i < end:
        lead = p[i]
        i += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            follow = 1
        elif 0xE0 <= lead <= 0xEF:
            follow = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            follow = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - i < follow or p[i] < low or p[i] > high:
            return False
        i += 1
        follow -= 1
        while follow:
            if p[i] & 0xC0 != 0x80:
                return False
            i += 1
            follow -= 1
    return True


def decimal(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.longlong:
    """The value of n decimal digits, held at some 10^18, or -1 where they are not digits."""
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    if n < 1:
        return -1
    for i in range(at, at + n):
        if p[i] < 48 or p[i] > 57:
            return -1
        if value < 100_000_000_000_000_000:
            value = value * 10 + (p[i] - 48)
    return value


def pack_names(names: Sequence[str]) -> array[int]:
    """A table for `find_name`: names of up to seven letters, as integers."""
    return array("q", [int.from_bytes(name.encode(), "big") for name in names])


def find_name(
    packed: cython.longlong[::1],
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.int:
    """The index of the n bytes at p[at] in a packed table, or 0, which is for no name."""
    name: cython.longlong = 0
    i: cython.Py_ssize_t
    if n > 7:
        return 0
    for i in range(at, at + n):
        name = (name << 8) | p[i]
    for i in range(1, len(packed)):
        if packed[i] == name:
            return i
    return 0


#: A buffer of this many bytes does not double any more.
LARGE = cython.declare(cython.Py_ssize_t, 1 << 20)


@cython.final
@cython.cclass
class Octets:
    """Bytes that grow at the end; every `put_…` makes its own room."""

    def __init__(self, room: cython.Py_ssize_t = 256) -> None:
        self._own(room)
        self.size = 0

    def __len__(self) -> int:
        return self.size

    def __bytes__(self) -> bytes:
        return bytes(memoryview(self.owner)[: self.size])

    def _own(self, room: cython.Py_ssize_t) -> cython.int:
        owner = bytearray(room)
        self.owner = owner
        self.room = room
        self.data = owner
        return 0

    def take(self, keep: cython.Py_ssize_t = 1 << 20) -> memoryview:
        """Return the content; the buffer starts again, empty, with room for `keep` bytes."""
        taken = memoryview(self.owner)[: self.size]
        # The next batch is likely to be as large as this one.
        self._own(min(self.size, keep) + 256)
        self.size = 0
        return taken

    def clear(self) -> cython.int:
        """Start again, empty, and let go of a large buffer."""
        self.size = 0
        if self.room > LARGE:
            self._own(4096)
        return 0

    def reserve(self, more: cython.Py_ssize_t) -> None:
        """Make room for this many bytes at once."""
        self.grow(more)

    def grow(self, more: cython.Py_ssize_t) -> cython.int:
        """Make room for `more` bytes: twice as much as there was, of a large buffer an eighth more.

        What follows a large field is usually small, and must not double what it takes.
        """
        if self.size + more > self.room:
            kept = self.owner
            size: cython.Py_ssize_t = self.size
            extra: cython.Py_ssize_t = self.room if self.room < LARGE else self.room // 8
            self._own(max(self.room + extra, size + more + 256))
            memoryview(self.owner)[:size] = memoryview(kept)[:size]
        return 0

    def put_bytes(self, value: bytes) -> None:
        """Append a bytes object."""
        self.put(value, 0, len(value))

    def put(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.int:
        """Append the n bytes at p[at]."""
        if self.size + n > self.room:
            self.grow(n)
        if cython.compiled:
            memcpy(self.data + self.size, p + at, n)
        else:
            self.data[self.size : self.size + n] = p[at : at + n]
        self.size += n
        return 0

    def put_hex(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.int:
        """Append the n bytes at p[at] as lower-case hexadecimal digits."""
        i: cython.Py_ssize_t
        digit: cython.int
        self.grow(2 * n)
        for i in range(at, at + n):
            digit = p[i] >> 4
            self.data[self.size] = digit + (48 if digit < 10 else 87)
            digit = p[i] & 15
            self.data[self.size + 1] = digit + (48 if digit < 10 else 87)
            self.size += 2
        return 0

    def put_decimal(self, value: cython.longlong) -> cython.int:
        """Append a number as decimal text."""
        rest: cython.longlong = value
        at: cython.Py_ssize_t
        if value < 0:
            # No dialect has a hot path with negative numbers.
            self.put_bytes(b"%d" % value)
            return 0
        self.grow(20)
        at = self.size + 1
        while rest >= 10:
            rest //= 10
            at += 1
        self.size = at
        while value >= 10:
            at -= 1
            self.data[at] = 48 + value % 10
            value //= 10
        self.data[at - 1] = 48 + value
        return 0

    def put_uint8(self, value: cython.int) -> cython.int:
        """Append one byte."""
        if self.size + 1 > self.room:
            self.grow(1)
        self.data[self.size] = value
        self.size += 1
        return 0

    def put_uint16(self, value: cython.int) -> cython.int:
        """Append two bytes, big-endian."""
        if self.size + 2 > self.room:
            self.grow(2)
        self.data[self.size] = (value >> 8) & 255
        self.data[self.size + 1] = value & 255
        self.size += 2
        return 0

    def put_uint32(self, value: cython.longlong) -> cython.int:
        """Append four bytes, big-endian."""
        if self.size + 4 > self.room:
            self.grow(4)
        self.size += 4
        return self.set_uint32(self.size - 4, value)

    def set_uint32(self, at: cython.Py_ssize_t, value: cython.longlong) -> cython.int:
        """Write four bytes, big-endian, over bytes that are there: a length known only later."""
        self.data[at] = (value >> 24) & 255
        self.data[at + 1] = (value >> 16) & 255
        self.data[at + 2] = (value >> 8) & 255
        self.data[at + 3] = value & 255
        return 0
