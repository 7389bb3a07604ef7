"""CBOR (RFC 8949) in place: a cursor that reads item by item, and heads to write.

Kobold's protocols 2 and 3 need a map's entries where they lie, not objects, so this walks the
bytes; it decodes nothing that nobody asked for. A method returns false where the item is
malformed or not all there: `problem` says what is wrong, `short` tells the second from the first.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets, is_utf8
else:
    from wirelake.wire.octets import Octets, is_utf8

#: Items may be nested this deep (spec: kobold 5).
MAX_DEPTH = 8

_MAX_DEPTH = cython.declare(cython.int, MAX_DEPTH)
_4_BYTES = cython.declare(cython.longlong, 0xFFFFFFFF)  # a literal would be an object


@cython.final
@cython.cclass
class Cursor:
    """A place in a buffer of CBOR; after `head`: the major type and the value read there."""

    def set(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Stand at p[at], in a buffer that ends at `end`."""
        self.p = p
        self.at = at
        self.end = end
        self.short = False
        return 0

    def refuse(self, problem: str) -> cython.bint:
        """Note what is wrong; always false."""
        self.problem = problem
        return False

    def head(self) -> cython.bint:
        """Read the head of an item: its major type and its value, length or count."""
        width: cython.int
        i: cython.int
        value: cython.longlong
        if self.at >= self.end:
            self.short = True
            return self.refuse("a CBOR item runs over the end of the frame")
        self.major = self.p[self.at] >> 5
        self.info = self.p[self.at] & 31
        self.indefinite = False
        self.big = False
        if self.info < 24:
            self.value = self.info
            self.at += 1
            return True
        if self.info == 31 and 2 <= self.major <= 5:
            self.indefinite = True
            self.value = 0
            self.at += 1
            return True
        if self.info > 27:
            return self.refuse("a CBOR head that means nothing")
        width = 1 << (self.info - 24)
        if self.end - self.at < 1 + width:
            self.short = True
            return self.refuse("a CBOR item runs over the end of the frame")
        self.big = width == 8 and self.p[self.at + 1] & 0x80 != 0
        if self.big and 2 <= self.major <= 6:
            return self.refuse("a CBOR length of more than 63 bits")
        # `big` holds the top bit of eight bytes: a shift beyond 63 bits is undefined in C.
        value = self.p[self.at + 1] & (0x7F if width == 8 else 0xFF)
        for i in range(1, width):
            value = (value << 8) | self.p[self.at + 1 + i]
        if self.major == 7 and width == 1 and value < 32:
            return self.refuse("a CBOR simple value in two bytes that fits in one")
        self.value = value
        self.at += 1 + width
        return True

    def at_break(self) -> cython.bint:
        """Step over the break of an indefinite item, if one is here."""
        if self.at < self.end and self.p[self.at] == 0xFF:
            self.at += 1
            return True
        return False

    def skip(self, depth: cython.int) -> cython.bint:
        """Step over one whole item; `depth` counts the items around it."""
        major: cython.int
        left: cython.longlong
        endless: cython.bint
        if not self.head():
            return False
        major = self.major
        if major == 2 or major == 3:
            if self.indefinite:
                return self.join(None)
            if self.value > self.end - self.at:
                self.short = True
                return self.refuse("a CBOR string runs over the end of the frame")
            if major == 3 and not is_utf8(self.p, self.at, self.value):
                return self.refuse("a CBOR text that is not UTF-8")
            self.at += self.value
            return True
        if major < 4 or major == 7:
            return True
        if depth >= _MAX_DEPTH:
            return self.refuse(f"CBOR nested deeper than {MAX_DEPTH}")
        endless = self.indefinite
        left = 1 if major == 6 else self.value
        # Every item has at least one byte. Counted in pairs: twice the value may be too large.
        if left > (self.end - self.at) // (2 if major == 5 else 1):
            self.short = True
            return self.refuse("a CBOR item runs over the end of the frame")
        if major == 5:
            left *= 2
        while endless or left:
            if endless and (major == 4 or left == 0):
                if self.at_break():
                    return True
            left = left - 1 if left else 1 if major == 5 else 0
            if not self.skip(depth + 1):
                return False
        return True

    def join(self, out: Octets | None) -> cython.bint:
        """Step over the chunks of the indefinite string whose head was read, copying to `out`."""
        major: cython.int = self.major
        while not self.at_break():
            if not self.head():
                return False
            if self.major != major or self.indefinite:
                return self.refuse("a CBOR string with a chunk of another type")
            if self.value > self.end - self.at:
                self.short = True
                return self.refuse("a CBOR string runs over the end of the frame")
            if major == 3 and not is_utf8(self.p, self.at, self.value):
                return self.refuse("a CBOR text that is not UTF-8")
            if out is not None:
                out.put(self.p, self.at, self.value)
            self.at += self.value
        self.major = major
        return True


def put_head(out: Octets, major: cython.int, value: cython.longlong) -> cython.int:
    """Append the head of an item, in its shortest form."""
    lead: cython.int = major << 5
    if value < 24:
        out.put_uint8(lead | value)
    elif value < 0x100:
        out.put_uint8(lead | 24)
        out.put_uint8(value)
    elif value < 0x10000:
        out.put_uint8(lead | 25)
        out.put_uint16(value)
    elif value <= _4_BYTES:
        out.put_uint8(lead | 26)
        out.put_uint32(value)
    else:
        out.put_uint8(lead | 27)
        out.put_uint32(value >> 32)
        out.put_uint32(value & _4_BYTES)
    return 0


def put_text(
    out: Octets, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.int:
    """Append a text string."""
    put_head(out, 3, n)
    return out.put(p, at, n)
