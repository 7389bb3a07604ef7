"""A description as integers: where the fields of a frame are, for scanner and encoder alike.

A `Layout` is made once for a dialect and never changes. Its methods take the bytes of a frame as a
pointer with the place of the first byte (`begin`) and the one behind the last (`end`), between
which all places of the description are counted. What they find goes into `places`, three integers
a field: where it begins, its length, and where it ends with whatever ends it. A place in the side
buffer is negative, as in a frame table.
"""

from __future__ import annotations

import struct
from array import array
from typing import Any

import cython

from wirelake.dialects.framed.checksums import KINDS, crc_tables
from wirelake.dialects.framed.description import (
    Description,
    Field,
    answer_parts,
    answers_are_told,
    is_header,
    octets,
    op_values,
    size_of,
)
from wirelake.message import Op

if cython.compiled:
    from cython.cimports.cpython.conversion import PyOS_double_to_string
    from cython.cimports.cpython.mem import PyMem_Free
    from cython.cimports.libc.stdlib import atof
    from cython.cimports.libc.string import memchr, memcmp, memcpy, strlen
    from cython.cimports.wirelake.wire.octets import Octets, is_utf8
else:
    from wirelake.wire.octets import Octets, is_utf8

# How frames are cut.
BY_LENGTH, BY_DIGITS, BY_DELIMITER, BY_SIZE = 0, 1, 2, 3
_BY_DIGITS = cython.declare(cython.int, BY_DIGITS)
_BY_DELIMITER = cython.declare(cython.int, BY_DELIMITER)

# How a field is found.
FROM_END = 1  # this and 0 have a fixed size
_FIXED = cython.declare(cython.int, 0)
_FROM_END = cython.declare(cython.int, FROM_END)
_UNTIL = cython.declare(cython.int, 2)
_PREFIXED = cython.declare(cython.int, 3)
_COLUMN = cython.declare(cython.int, 4)
_MEMBER = cython.declare(cython.int, 5)

# What a field is.
UNSIGNED, SIGNED, FLOAT, TEXT, HEX = 0, 1, 2, 3, 4
_UNSIGNED = cython.declare(cython.int, UNSIGNED)
_SIGNED = cython.declare(cython.int, SIGNED)
_FLOAT = cython.declare(cython.int, FLOAT)
_TEXT = cython.declare(cython.int, TEXT)
_HEX = cython.declare(cython.int, HEX)

#: `locate` found no field, or one that is not text although it must be.
MISSING, NOT_TEXT, FOUND = 0, 1, 2
_MISSING = cython.declare(cython.int, MISSING)
_NOT_TEXT = cython.declare(cython.int, NOT_TEXT)
_FOUND = cython.declare(cython.int, FOUND)

_SUM = cython.declare(cython.int, 1)
_XOR = cython.declare(cython.int, 2)
_NEGATIVE = cython.declare(cython.int, 3)
_WHOLE = cython.declare(cython.uint, 0xFFFFFFFF)

_QUOTE = cython.declare(cython.int, ord('"'))
_BACKSLASH = cython.declare(cython.int, ord("\\"))

#: The op of each name that a description uses.
OPS = {
    "publish": Op.PUBLISH,
    "subscribe": Op.SUBSCRIBE,
    "unsubscribe": Op.UNSUBSCRIBE,
    "auth": Op.AUTH,
    "ping": Op.PING,
    "pong": Op.PONG,
    "accepted": Op.OK,
    "refused": Op.ERROR,
}


def _kind(field: Field) -> int:
    kinds = {"u": UNSIGNED, "i": SIGNED, "f": FLOAT, "t": TEXT, "h": HEX}
    return kinds[field.type[0]]


def _byte(text: str) -> int:
    """Return a byte string's only byte, -1 where it is empty."""
    found = octets(text, "")
    return found[0] if found else -1


@cython.final
@cython.cclass
class Layout:
    """A description, ready for the kernels."""

    def __init__(self, description: Description) -> None:
        frame = description.frame
        length = frame.length
        self.description = description
        self.magics = description.magics
        self.magic = self.magics[0] if self.magics else b""
        self.magic_len = len(self.magic)
        self.delimiter = octets(frame.delimiter, "frame.delimiter")
        self.strip = _byte(frame.strip)
        self.ending = octets(frame.ending or frame.delimiter, "frame.ending")
        self.trailer = octets(frame.trailer, "frame.trailer")
        self.most = frame.most
        self.size = frame.size or 0
        self.length_at = self.length_width = self.base = 0
        self.length_little = False
        self.digits_end = -1
        self._take_fields(description)
        self._take_checksum(description)
        self._take_payload(description)
        if frame.by == "delimiter":
            self.by = BY_DELIMITER
        elif frame.by == "fixed":
            self.by = BY_SIZE
        else:
            assert length is not None
            self.by = BY_DIGITS if length.form == "decimal" else BY_LENGTH
            self.digits_end = _byte(length.ends) if length.form == "decimal" else -1
            self.length_at, self.length_width = length.at, length.width
            self.length_little = length.order == "little"
            self.base = length.add
            if length.form == "binary" and length.counts == "rest":
                self.base += length.at + length.width
            elif length.counts == "payload":
                self.base += self.payload_at + self.end_size
        self._take_address(description)
        self._take_ops(description)
        self._take_answers(description)

    def _take_fields(self, description: Description) -> None:
        fields = description.fields
        self.count = len(fields)
        self.names = [field.name.encode() for field in fields]
        self.members = [field.json.encode() for field in fields]
        self.defaults = [field.default.encode() for field in fields]
        self.kind = array("i", [_kind(field) for field in fields] or [0])
        self.width = array("i", [size_of(field) or field.prefix or 0 for field in fields] or [0])
        self.at = array("i", [field.at for field in fields] or [0])
        self.after = array(
            "i",
            [description.number_of(f.after, "after") if f.after else -1 for f in fields] or [0],
        )
        fallback = description.frame.length.order if description.frame.length else "big"
        self.little = array("i", [int((f.order or fallback) == "little") for f in fields] or [0])
        self.pad = array("i", [_byte(field.pad) for field in fields] or [0])
        self.column = array("i", [field.column or 0 for field in fields] or [0])
        self.is_header = array("i", [int(is_header(description, f)) for f in fields] or [0])
        modes, ends = [], []
        for field in fields:
            ends.append(_byte(field.separator if field.column is not None else field.until))
            if field.json:
                modes.append(_MEMBER)
            elif field.column is not None:
                modes.append(_COLUMN)
            elif field.until:
                modes.append(_UNTIL)
            elif field.prefix:
                modes.append(_PREFIXED)
            else:
                modes.append(_FROM_END if field.at < 0 else _FIXED)
        self.mode = array("i", modes or [0])
        self.ends = array("i", ends or [0])
        roles = description.roles
        numbers = {
            role: description.number_of(roles[role], role) if role in roles else -1
            for role in ("id", "ticket", "priority", "ttl", "ops.field")
        }
        self.id_field = numbers["id"]
        self.ticket_field = numbers["ticket"]
        self.priority_field = numbers["priority"]
        self.ttl_field = numbers["ttl"]
        self.op_field = numbers["ops.field"]
        self.header_fields = array("i", [k for k in range(self.count) if self.is_header[k]])
        self.headers = len(self.header_fields)
        self.variable_headers = any(
            self.mode[k] not in (_FIXED, _FROM_END) for k in self.header_fields
        )
        sizes = [f.at + size_of(f) for f in fields if size_of(f) and f.at >= 0 and not f.after]
        sizes.append(self.magic_len)
        self.start_size = max(sizes)

    def _take_checksum(self, description: Description) -> None:
        check = description.frame.checksum
        self.check_way = self.check_len = self.check_begin = self.check_start = 0
        self.check_end = self.check_bits = 0
        self.check_hex = self.check_little = self.check_reflected = self.check_optional = False
        self.check_name, self.mark = "", b""
        self.tables = array("I", [0])
        if check is None:
            return
        kind = KINDS[check.kind]
        self.check_name = check.kind
        self.mark = octets(check.mark, "frame.checksum.mark")
        self.check_bits = kind.bits
        self.check_hex = check.form == "hex"
        self.check_len = kind.bits // (4 if self.check_hex else 8)
        self.check_little = check.order == "little"
        self.check_optional = check.optional
        self.check_start = check.start
        self.check_way = kind.way or -1
        self.check_reflected = kind.reflected
        self.check_begin = kind.begin if kind.reflected else kind.begin << (32 - kind.bits)
        self.check_end = kind.end
        if not kind.way:
            self.tables = crc_tables(kind)
        if cython.compiled:
            self.table = cython.address(self.tables[0])
        else:
            self.table = self.tables

    def _take_payload(self, description: Description) -> None:
        fields, payload = description.fields, description.payload
        length = description.frame.length
        check = self.check_len + len(self.mark) if self.check_len else 0
        self.check_size = check
        sizes = [-field.at for field in fields if field.at < 0]
        sizes.append(len(self.trailer) + check)
        self.end_size = max(sizes)
        if payload.before_end is not None:
            self.end_size = max(self.end_size, payload.before_end)
        self.payload_after = -1
        self.payload_at = payload.at or 0
        self.payload_pad = _byte(payload.pad)
        if payload.after:
            self.payload_after = description.number_of(payload.after, "payload.after")
        elif payload.at is None:
            lead = 0
            if length is not None and length.form == "binary":
                lead = length.at + length.width
            self.payload_at = max(lead, self.start_size)
        self.least = max(self.start_size, 0 if payload.after else self.payload_at)
        self.least = max(self.least, self.check_start) + self.end_size
        # How frames are written: a head of a fixed size, then fields one behind the other.
        chain: list[int] = []
        k = self.payload_after
        while k >= 0:
            chain.insert(0, k)
            k = self.after[k]
        self.chain = array("i", chain)
        self.head_size = max(0, self.at[chain[0]]) if chain else self.payload_at
        self.place = array("i", [0] * max(1, self.count))  # 1 head, 2 chain, 3 end, 0 overlay
        self.obstacle = ""
        for k, field in enumerate(fields):
            if k in chain:
                self.place[k] = 2
            elif field.at < 0:
                self.place[k] = 3
            elif size_of(field) and not field.after and field.at + size_of(field) <= self.head_size:
                self.place[k] = 1
            elif not (field.json or field.column is not None) and (
                (field.after not in [fields[c].name for c in chain])
                and (bool(chain) or field.at < self.payload_at)
            ):
                self.obstacle = (
                    f"the field {field.name} is neither in front of the payload nor in it"
                )
            elif self.payload_at and not chain and field.column is not None:
                self.obstacle = f"the column {field.name} is not in the payload"
        if chain and any(
            self.mode[k] not in (_FIXED, _UNTIL, _PREFIXED) or (j and self.at[k])
            for j, k in enumerate(chain)
        ):
            self.obstacle = "fields in front of the payload must follow each other"
        if chain and self.payload_at:
            self.obstacle = "the payload must follow its field"
        template = bytearray(self.head_size)
        template[: self.magic_len] = self.magic[: self.head_size]
        self.template = bytes(template)

    def _take_address(self, description: Description) -> None:
        parts = description.parts
        self.literals = [text.encode() for text, _ in parts]
        named = [name for _, name in parts]
        self.parts = len(parts)
        self.part_fields = array(
            "i", [description.number_of(name, "address") if name else -1 for name in named]
        )
        used = [k for k in self.part_fields if k >= 0]
        self.address_fields = len(used)
        self.is_numeric = bool(used) and all(self.kind[k] in (UNSIGNED, SIGNED) for k in used)
        self.is_in_place = (
            self.literals == [b"", b""] and len(used) == 1 and self.kind[used[0]] == TEXT
        )
        self.json_field = next((k for k in used if self.mode[k] == _MEMBER), -1)
        self.verifies = any(self.place[k] == 0 for k in used)
        roles = (self.id_field, self.ticket_field, self.priority_field, self.ttl_field)
        needed = {*used, *self.chain, *(k for k in (*roles, self.op_field) if k >= 0)}
        for k in sorted(needed, reverse=True):  # with all that they stand behind
            while (k := self.after[k]) >= 0:
                needed.add(k)
        self.needed = array("i", sorted(needed))
        self.needs = len(self.needed)

    def _take_ops(self, description: Description) -> None:
        ops = description.ops
        self.op_values = array("q", [0] * len(Op))
        self.has_op = array("i", [0] * len(Op))
        self.has_op[Op.PUBLISH] = 1
        values: list[tuple[int, int]] = []
        self.op_texts = [b""] * len(Op)
        for name, value in op_values(ops).items() if ops is not None else ():
            op = OPS[name]
            number = int.from_bytes(value.encode(), "big") if isinstance(value, str) else value
            self.op_values[op], self.has_op[op] = number, 1
            self.op_texts[op] = str(value).encode()
            if op != Op.PUBLISH:
                values.append((number, op))
        self.known_values = array("q", [value for value, _ in values] or [0])
        self.known_ops = array("i", [op for _, op in values] or [0])
        self.known = len(values)

    def _take_answers(self, description: Description) -> None:
        answer, ops = description.answer, description.ops
        self.accepted = list(answer_parts(answer.accepted, "")) if answer.accepted else []
        self.refused = list(answer_parts(answer.refused, "")) if answer.refused else []
        self.told = answers_are_told(description)
        self.asks = bool(answer.accepted) or (ops is not None and ops.accepted is not None)

    def check_writable(self) -> str:
        """Return why frames cannot be written, "" where they can."""
        return self.obstacle

    # Bytes

    def number(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, k: cython.int
    ) -> cython.longlong:
        """The integer that field k is, at p[at]."""
        value: cython.longlong = read_unsigned(p, at, self.width[k], self.little[k])
        bits: cython.int = 8 * self.width[k]
        if self.kind[k] == _SIGNED and bits < 64 and (value >> (bits - 1)) & 1:
            value -= cython.cast(cython.longlong, 1) << bits
        if not cython.compiled and bits == 64 and value >= 1 << 63:
            value -= 1 << 64
        return value

    def checksum(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.longlong:
        """The checksum of p[at:end]."""
        register: cython.uint = self.check_begin
        low: cython.uint
        total: cython.longlong = 0
        i: cython.Py_ssize_t = at
        t: cython.p_uint = self.table
        if self.check_way > 0:
            if self.check_way == _XOR:
                while i < end:
                    total ^= p[i]
                    i += 1
            else:
                while i < end:
                    total += p[i]
                    i += 1
                if self.check_way == _NEGATIVE:
                    total = -total
            return total & ((cython.cast(cython.longlong, 1) << self.check_bits) - 1)
        if self.check_reflected:
            while end - i >= 8:
                register ^= (
                    p[i]
                    | (p[i + 1] << 8)
                    | (p[i + 2] << 16)
                    | (cython.cast(cython.uint, p[i + 3]) << 24)
                )
                low = t[768 + p[i + 4]] ^ t[512 + p[i + 5]] ^ t[256 + p[i + 6]] ^ t[p[i + 7]]
                register = (
                    low
                    ^ t[1792 + (register & 255)]
                    ^ t[1536 + ((register >> 8) & 255)]
                    ^ t[1280 + ((register >> 16) & 255)]
                    ^ t[1024 + (register >> 24)]
                )
                i += 8
            if end - i >= 4:
                register ^= (
                    p[i]
                    | (p[i + 1] << 8)
                    | (p[i + 2] << 16)
                    | (cython.cast(cython.uint, p[i + 3]) << 24)
                )
                register = (
                    t[768 + (register & 255)]
                    ^ t[512 + ((register >> 8) & 255)]
                    ^ t[256 + ((register >> 16) & 255)]
                    ^ t[register >> 24]
                )
                i += 4
            while i < end:
                register = (register >> 8) ^ t[(register ^ p[i]) & 255]
                i += 1
            return (register ^ self.check_end) & _mask(self.check_bits)
        while end - i >= 8:
            register ^= (
                (cython.cast(cython.uint, p[i]) << 24)
                | (p[i + 1] << 16)
                | (p[i + 2] << 8)
                | p[i + 3]
            )
            low = t[768 + p[i + 4]] ^ t[512 + p[i + 5]] ^ t[256 + p[i + 6]] ^ t[p[i + 7]]
            register = (
                low
                ^ t[1792 + (register >> 24)]
                ^ t[1536 + ((register >> 16) & 255)]
                ^ t[1280 + ((register >> 8) & 255)]
                ^ t[1024 + (register & 255)]
            )
            i += 8
        if end - i >= 4:
            register ^= (
                (cython.cast(cython.uint, p[i]) << 24)
                | (p[i + 1] << 16)
                | (p[i + 2] << 8)
                | p[i + 3]
            )
            register = (
                t[768 + (register >> 24)]
                ^ t[512 + ((register >> 16) & 255)]
                ^ t[256 + ((register >> 8) & 255)]
                ^ t[register & 255]
            )
            i += 4
        while i < end:
            register = ((register << 8) & _WHOLE) ^ t[(register >> 24) ^ p[i]]
            i += 1
        return ((register >> (32 - self.check_bits)) ^ self.check_end) & _mask(self.check_bits)

    def has_checksum(
        self, p: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.bint:
        """Has a frame, whose checksum may be left out, its mark where it should be?"""
        at: cython.Py_ssize_t = end - len(self.trailer) - self.check_size
        return at >= begin + self.check_start and matches(p, at, end, self.mark)

    def locate(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        k: cython.int,
        places: cython.p_longlong,
        side: Octets,
    ) -> cython.int:
        """Find field k; what it stands behind was found before. FOUND, MISSING or NOT_TEXT."""
        at: cython.Py_ssize_t = begin + self.at[k]
        stop: cython.Py_ssize_t
        size: cython.longlong
        column: cython.int
        mode: cython.int = self.mode[k]
        if self.after[k] >= 0:
            at = cython.cast(cython.Py_ssize_t, places[3 * self.after[k] + 2]) + self.at[k]
        if mode == _FROM_END:
            at = end + self.at[k]
            mode = _FIXED
        if mode == _FIXED:
            stop = at + self.width[k]
            if at < begin or stop > end:
                return _MISSING
            places[3 * k + 2] = stop
            if self.kind[k] == _TEXT:
                while stop > at and p[stop - 1] == self.pad[k]:
                    stop -= 1
        elif mode == _UNTIL:
            if at > end:
                return _MISSING
            stop = find_byte(p, at, end, self.ends[k])
            if stop < 0:
                return _MISSING
            places[3 * k + 2] = stop + 1
        elif mode == _PREFIXED:
            if end - at < self.width[k]:
                return _MISSING
            size = read_unsigned(p, at, self.width[k], self.little[k])
            at += self.width[k]
            if size > end - at:
                return _MISSING
            stop = at + cython.cast(cython.Py_ssize_t, size)
            places[3 * k + 2] = stop
        elif mode == _COLUMN:
            at = begin
            column = self.column[k]
            while column:
                at = find_byte(p, at, end, self.ends[k])
                if at < 0:
                    return _MISSING
                at += 1
                column -= 1
            stop = find_byte(p, at, end, self.ends[k])
            if stop < 0:
                stop = end
            places[3 * k + 2] = stop
        else:
            return self._locate_member(p, begin, end, k, places, side)
        places[3 * k] = at
        places[3 * k + 1] = stop - at
        if self.kind[k] == _TEXT and not is_utf8(p, at, stop - at):
            return _NOT_TEXT
        return _FOUND

    def _locate_member(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        k: cython.int,
        places: cython.p_longlong,
        side: Octets,
    ) -> cython.int:
        name: bytes = self.members[k]
        at: cython.Py_ssize_t = find_member(p, begin, end, name, len(name))
        stop: cython.Py_ssize_t
        start: cython.Py_ssize_t
        if at < 0:
            return _MISSING
        stop = skip_value(p, at, end)
        if stop < 0:
            return _MISSING
        places[3 * k + 2] = stop
        if p[at] == _QUOTE:
            at += 1
            stop -= 1
            places[3 * k] = at
            places[3 * k + 1] = stop - at
            if find_byte(p, at, stop, _BACKSLASH) >= 0:
                start = side.size
                if not unescape(p, at, stop, side):
                    return _NOT_TEXT
                places[3 * k] = -1 - start
                places[3 * k + 1] = side.size - start
                return _FOUND if is_utf8(side.data, start, side.size - start) else _NOT_TEXT
        places[3 * k] = at
        places[3 * k + 1] = stop - at
        return _FOUND if is_utf8(p, at, stop - at) else _NOT_TEXT

    def put_text(
        self,
        p: cython.p_const_uchar,
        k: cython.int,
        places: cython.p_longlong,
        side: Octets,
        out: Octets,
    ) -> cython.int:
        """Append a field that was found to `out` as text; `out` may be the side buffer."""
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, places[3 * k])
        n: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, places[3 * k + 1])
        kind: cython.int = self.kind[k]
        value: cython.longlong
        if kind == _TEXT:
            if at >= 0:
                out.put(p, at, n)
            else:
                out.grow(n)
                out.put(side.data, -1 - at, n)
        elif kind == _HEX:
            out.put_hex(p, at, n)
        elif kind == _FLOAT:
            put_float(p, at, self.width[k], self.little[k], out)
        else:
            value = self.number(p, at, k)
            if value < 0 and kind == _UNSIGNED:
                out.put_bytes(b"%d" % ((1 << 64) + value))
            else:
                out.put_decimal(value)
        return 0


@cython.cfunc
@cython.exceptval(check=False)
def _mask(bits: cython.int) -> cython.longlong:
    return (cython.cast(cython.longlong, 1) << bits) - 1


def read_unsigned(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, width: cython.int, little: cython.bint
) -> cython.longlong:
    """Return an integer of 1 to 8 bytes; one of 8 may come out negative, except where plain."""
    value: cython.ulonglong = 0  # a signed one must not be shifted into its sign
    i: cython.int
    if little:
        for i in range(width - 1, -1, -1):
            value = (value << 8) | p[at + i]
    else:
        for i in range(width):
            value = (value << 8) | p[at + i]
    return cython.cast(cython.longlong, value)


def find_byte(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, byte: cython.int
) -> cython.Py_ssize_t:
    """Return where a byte is in p[at:end], or -1."""
    if at >= end:
        return -1
    if cython.compiled:
        found: cython.p_const_uchar = cython.cast(
            cython.p_const_uchar, memchr(p + at, byte, end - at)
        )
        return found - p if found != cython.NULL else -1
    return bytes(p[at:end]).find(byte) + at if byte in bytes(p[at:end]) else -1


def find_octets(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, wanted: bytes
) -> cython.Py_ssize_t:
    """Return where a byte string is in p[at:end], or -1."""
    q: cython.p_const_uchar = wanted
    n: cython.Py_ssize_t = len(wanted)
    while True:
        at = find_byte(p, at, end, q[0])
        if at < 0 or end - at < n:
            return -1
        if n == 1 or matches(p, at, end, wanted):
            return at
        at += 1


def matches(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, wanted: bytes
) -> cython.bint:
    """Does p[at:end] begin with a byte string?"""
    n: cython.Py_ssize_t = len(wanted)
    if at < 0 or end - at < n:
        return False
    if cython.compiled:
        q: cython.p_const_uchar = wanted
        return memcmp(p + at, q, n) == 0
    return bytes(p[at : at + n]) == wanted


# JSON, as far as members of an object must be found


@cython.cfunc
@cython.exceptval(check=False)
def _skip_space(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    while at < end and (p[at] == 32 or p[at] == 9 or p[at] == 10 or p[at] == 13):
        at += 1
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _skip_string(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return where the string that begins at p[at] ends, behind its quote, or -1."""
    at += 1
    while at < end:
        if p[at] == _QUOTE:
            return at + 1
        at += 2 if p[at] == _BACKSLASH else 1
    return -1


def skip_value(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Return where the value that begins at p[at] ends, or -1."""
    depth: cython.Py_ssize_t = 0
    start: cython.Py_ssize_t = at
    while at < end:
        if p[at] == _QUOTE:
            at = _skip_string(p, at, end)
            if at < 0 or depth == 0:
                return at
            continue
        if p[at] == 123 or p[at] == 91:  # { [
            depth += 1
        elif p[at] == 125 or p[at] == 93:  # } ]
            if depth == 0:
                return at if at > start else -1
            depth -= 1
            if depth == 0:
                return at + 1
        elif depth == 0 and (p[at] == 44 or p[at] <= 32):  # ,
            return at if at > start else -1
        at += 1
    return -1


def find_member(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    name: cython.p_const_uchar,
    n: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Return where the value of a member of the object at p[at] begins, or -1."""
    key: cython.Py_ssize_t
    at = _skip_space(p, at, end)
    if at >= end or p[at] != 123:
        return -1
    at += 1
    while True:
        at = _skip_space(p, at, end)
        if at >= end or p[at] != _QUOTE:
            return -1
        key = at + 1
        at = _skip_string(p, at, end)
        if at < 0:
            return -1
        is_it: cython.bint = at - 1 - key == n and _same(p, key, name, n)
        at = _skip_space(p, at, end)
        if at >= end or p[at] != 58:  # :
            return -1
        at = _skip_space(p, at + 1, end)
        if is_it:
            return at if at < end else -1
        at = skip_value(p, at, end)
        if at < 0:
            return -1
        at = _skip_space(p, at, end)
        if at >= end or p[at] != 44:
            return -1
        at += 1


@cython.cfunc
@cython.exceptval(check=False)
def _same(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, q: cython.p_const_uchar, n: cython.Py_ssize_t
) -> cython.bint:
    i: cython.Py_ssize_t
    for i in range(n):
        if p[at + i] != q[i]:
            return False
    return True


@cython.cfunc
def unescape(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, side: Octets
) -> cython.bint:
    """Append the text of a JSON string to the side buffer; False where an escape is none."""
    code: cython.int
    low: cython.int
    byte: cython.int
    while at < end:
        byte = p[at]
        at += 1
        if byte != _BACKSLASH:
            side.put_uint8(byte)
            continue
        if at >= end:
            return False
        byte = p[at]
        at += 1
        if byte == 117:  # u
            code = _four_digits(p, at, end)
            at += 4
            if 0xD800 <= code < 0xDC00:
                if end - at < 6 or p[at] != _BACKSLASH or p[at + 1] != 117:
                    return False
                low = _four_digits(p, at + 2, end)
                at += 6
                if low < 0xDC00 or low > 0xDFFF:
                    return False
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
            elif code < 0 or 0xDC00 <= code <= 0xDFFF:
                return False
            _put_utf8(side, code)
        elif byte == 110:
            side.put_uint8(10)
        elif byte == 116:
            side.put_uint8(9)
        elif byte == 114:
            side.put_uint8(13)
        elif byte == 98:
            side.put_uint8(8)
        elif byte == 102:
            side.put_uint8(12)
        elif byte == _QUOTE or byte == _BACKSLASH or byte == 47:
            side.put_uint8(byte)
        else:
            return False
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _four_digits(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.int:
    value: cython.int = 0
    digit: cython.int
    i: cython.Py_ssize_t
    if end - at < 4:
        return -1
    for i in range(at, at + 4):
        digit = hex_digit(p[i])
        if digit < 0:
            return -1
        value = (value << 4) | digit
    return value


def hex_digit(byte: cython.int) -> cython.int:
    """Return the value of a hexadecimal digit, or -1."""
    if 48 <= byte <= 57:
        return byte - 48
    byte |= 32
    if 97 <= byte <= 102:
        return byte - 87
    return -1


@cython.cfunc
def _put_utf8(side: Octets, code: cython.int) -> cython.int:
    if code < 0x80:
        side.put_uint8(code)
    elif code < 0x800:
        side.put_uint8(0xC0 | (code >> 6))
        side.put_uint8(0x80 | (code & 63))
    elif code < 0x10000:
        side.put_uint8(0xE0 | (code >> 12))
        side.put_uint8(0x80 | ((code >> 6) & 63))
        side.put_uint8(0x80 | (code & 63))
    else:
        side.put_uint8(0xF0 | (code >> 18))
        side.put_uint8(0x80 | ((code >> 12) & 63))
        side.put_uint8(0x80 | ((code >> 6) & 63))
        side.put_uint8(0x80 | (code & 63))
    return 0


# Floats


def _format(width: int, little: bool) -> str:
    return ("<" if little else ">") + ("f" if width == 4 else "d")


@cython.cfunc
def put_float(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    width: cython.int,
    little: cython.bint,
    out: Octets,
) -> cython.int:
    """Append a float as the shortest text that reads back as the same float."""
    if cython.compiled:
        raw: cython.ulonglong = cython.cast(cython.ulonglong, read_unsigned(p, at, width, little))
        half: cython.uint = 0
        single: cython.float = 0
        value: cython.double = 0
        digits: cython.int
        text: cython.p_char
        if width == 8:
            memcpy(cython.address(value), cython.address(raw), 8)
            text = PyOS_double_to_string(value, b"r"[0], 0, 0, cython.NULL)
            _put_string(out, text)
            return 0
        half = cython.cast(cython.uint, raw)
        memcpy(cython.address(single), cython.address(half), 4)
        value = single
        for digits in range(6, 10):
            text = PyOS_double_to_string(value, b"g"[0], digits, 0, cython.NULL)
            if digits == 9 or cython.cast(cython.float, atof(text)) == single:
                _put_string(out, text)
                return 0
            PyMem_Free(text)
        return 0
    (number,) = struct.unpack(_format(width, little), bytes(p[at : at + width]))
    if width == 8:
        out.put_bytes(repr(number).removesuffix(".0").encode())
        return 0
    for digits in range(6, 10):
        said = f"{number:.{digits}g}"
        if digits == 9 or struct.pack(">f", float(said)) == struct.pack(">f", number):
            out.put_bytes(said.encode())
            return 0
    return 0


@cython.cfunc
def _put_string(out: Octets, text: cython.p_char) -> cython.int:
    """Append a string of C that is ours, and free it."""
    if cython.compiled:
        out.put(cython.cast(cython.p_const_uchar, text), 0, strlen(text))
        PyMem_Free(text)
    return 0


def float_octets(text: bytes, width: int, little: bool) -> bytes:
    """Return a float as its bytes; raises ValueError or OverflowError where the text is none."""
    return struct.pack(_format(width, little), float(text))


_LAYOUTS: dict[str, Layout] = {}


def layout_of(description: Any) -> Layout:
    """Return the layout of a description, made once."""
    found = _LAYOUTS.get(description.name)
    if found is None or found.description is not description:
        found = _LAYOUTS[description.name] = Layout(description)
    return found
