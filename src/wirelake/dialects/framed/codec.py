"""Frames of described dialects to rows, and rows to frames: one kernel for all descriptions.

Rules that are not plain from the code:
- A length is refused when it can be read, a line when it has grown too long, and a magic that is
  wrong by its first wrong byte. The scanner remembers how far it has looked for a delimiter, so a
  line that comes byte by byte is looked at once.
- Fields that are headers are only noted (UNREAD) and read where somebody needs them. A field that
  is missing in a line, or that is no text, is no fault unless address, id, number, priority, ttl or
  op depend on it: such a header is left out, or is hexadecimal.
- An encoder leaves out what the description cannot say: an address that does not fit its pattern,
  a number that is too large, a payload with the delimiter in it.
"""

from __future__ import annotations

import re
from array import array
from typing import Any

import cython

from wirelake.dialects import DIALECTS
from wirelake.dialects.framed.layout_codec import float_octets
from wirelake.message import Flag, Limits, Op

if cython.compiled:
    from cython.cimports.wirelake.dialects.framed.layout_codec import (
        Layout,
        find_member,
        find_octets,
        hex_digit,
        layout_of,
        matches,
        read_unsigned,
        skip_value,
    )
    from cython.cimports.wirelake.wire.codec import Encoder, Scanner
    from cython.cimports.wirelake.wire.octets import Octets, is_utf8, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.dialects.framed.layout_codec import (
        Layout,
        find_member,
        find_octets,
        hex_digit,
        layout_of,
        matches,
        read_unsigned,
        skip_value,
    )
    from wirelake.wire.codec import Encoder, Scanner
    from wirelake.wire.octets import Octets, is_utf8, uint32
    from wirelake.wire.table import FrameTable

from wirelake.dialects.framed import layout_codec
from wirelake.wire import codec
from wirelake.wire.parameters import CODE, TOKEN
from wirelake.wire.table import SECRET, UNREAD

_BY_LENGTH = cython.declare(cython.int, layout_codec.BY_LENGTH)
_BY_DIGITS = cython.declare(cython.int, layout_codec.BY_DIGITS)
_BY_DELIMITER = cython.declare(cython.int, layout_codec.BY_DELIMITER)
_UNSIGNED = cython.declare(cython.int, layout_codec.UNSIGNED)
_SIGNED = cython.declare(cython.int, layout_codec.SIGNED)
_FLOAT = cython.declare(cython.int, layout_codec.FLOAT)
_TEXT = cython.declare(cython.int, layout_codec.TEXT)
_HEX = cython.declare(cython.int, layout_codec.HEX)
_MISSING = cython.declare(cython.int, layout_codec.MISSING)
_NOT_TEXT = cython.declare(cython.int, layout_codec.NOT_TEXT)
_FOUND = cython.declare(cython.int, layout_codec.FOUND)

_FROM_END = cython.declare(cython.int, layout_codec.FROM_END)

_ACK = cython.declare(cython.int, Flag.ACK)
_UNREAD = cython.declare(cython.int, UNREAD)
_SECRET = cython.declare(cython.int, SECRET)
_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_ENQUEUE = cython.declare(cython.int, Op.ENQUEUE)
_DELIVER = cython.declare(cython.int, Op.DELIVER)
_SUBSCRIBE = cython.declare(cython.int, Op.SUBSCRIBE)
_UNSUBSCRIBE = cython.declare(cython.int, Op.UNSUBSCRIBE)
_AUTH = cython.declare(cython.int, Op.AUTH)
_OK = cython.declare(cython.int, Op.OK)
_ERROR = cython.declare(cython.int, Op.ERROR)
_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)
_SKIP_PAYLOAD = cython.declare(cython.int, codec.SKIP_PAYLOAD)
_SKIP_HEADERS = cython.declare(cython.int, codec.SKIP_HEADERS)
_MOST_ID = cython.declare(cython.Py_ssize_t, 255)
#: Digits of a decimal length, at most.
_MOST_DIGITS = cython.declare(cython.int, 10)
#: Bytes of an answer, at most.
MOST_ANSWER = 1024
_TOKEN = cython.declare(bytes, TOKEN)
_CODE = cython.declare(bytes, CODE)
_LARGEST = cython.declare(cython.longlong, 0x7FFFFFFF)
_ALL_BITS = cython.declare(cython.longlong, 0xFFFFFFFF)
#: A length may be so much more than the frame has bytes (`frame.length.add` is negative then).
_SLACK = cython.declare(cython.longlong, 1 << 20)
_MOST_MAGNITUDE = cython.declare(cython.ulonglong, 0xFFFFFFFFFFFFFFFF)
_MOST_POSITIVE = cython.declare(cython.ulonglong, 0x7FFFFFFFFFFFFFFF)


def _shown(data: bytes) -> str:
    """Return bytes as people read them in an error: hexadecimal, and as text where they are."""
    if data and all(0x20 < byte < 0x7F for byte in data):
        return repr(data.decode())
    return data.hex(" ")


@cython.final
@cython.cclass
class FramedScanner(Scanner):
    """Frames of a described dialect to rows."""

    layout: Layout
    room: cython.longlong[::1]
    places: cython.p_longlong
    last: cython.longlong[::1]
    searched: cython.Py_ssize_t
    constant_at: cython.int
    address_at: cython.int
    address_len: cython.int
    flags: cython.int
    answers: Any

    def __init__(
        self,
        dialect: str,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        description: Any = None,
    ) -> None:
        """`description` is tried in place of the dialect's own."""
        Scanner.__init__(self, dialect, limits)
        if description is None:
            self.layout = layout_of(DIALECTS[dialect].description)
        else:
            self.layout = Layout(description)
        self.room = array("q", bytes(24 * max(1, self.layout.count)))
        if cython.compiled:
            self.places = cython.address(self.room[0])
        else:
            self.places = self.room
        self.last = array("q", bytes(8 * max(1, self.layout.parts)))
        self.searched = 0  # bytes of an unfinished line that have no delimiter
        self.flags = _ACK if self.layout.asks else 0
        if self.layout.headers:
            self.flags |= _UNREAD
        self.answers = _answer_patterns(self.layout) if self.layout.told else ()

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def start(self, table: FrameTable) -> cython.int:
        """A constant address lies in the side buffer, once."""
        self.constant_at = table.side_at()
        self.address_len = 0
        if self.layout.address_fields == 0:
            table.side.put_bytes(self.layout.literals[0])
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        g: Layout = self.layout
        begin: cython.Py_ssize_t = at
        stop: cython.Py_ssize_t
        size: cython.longlong
        value: cython.longlong
        most: cython.longlong = min(g.most, self.max_message)
        head: cython.Py_ssize_t
        if g.magic_len and not matches(p, at, end, g.magic):
            head = self._other_magic(p, at, end)
            if head < 0:
                return self._answer(p, at, end, table)
            if head == 0:
                return 0
        if g.by == _BY_DELIMITER:
            begin = at + self.searched
            if begin > end:
                begin = at
            stop = find_octets(p, begin, end, g.delimiter)
            begin = at
            if stop < 0 or stop - at > most:
                if end - at > most:
                    raise self.error(at, f"a line of over {most} bytes; at most {most}")
                self.searched = max(0, end - at - len(g.delimiter) + 1)
                return 0
            self.searched = 0
            size = stop - at + len(g.delimiter)
            if g.strip >= 0 and stop > at and p[stop - 1] == g.strip:
                stop -= 1
        else:
            if g.by == _BY_LENGTH:
                head = g.length_at + g.length_width
                if end - at < head:
                    self.need = head
                    return 0
                value = read_unsigned(p, at + g.length_at, g.length_width, g.length_little)
                if value < 0 or value > most + _SLACK or value + g.base > most:
                    text = f"a length of {_whole(value)}; a frame has at most {most} bytes"
                    raise self.error(at + g.length_at, text)
                size = value + g.base
                if size < g.length_at + g.length_width:
                    text = f"a length of {value}: the frame would have {size} bytes"
                    raise self.error(at + g.length_at, text)
            elif g.by == _BY_DIGITS:
                begin = self._digits(p, at, end)
                if begin == 0:
                    return 0
                value = _decimal(p, at, begin - 1)
                size = value + g.base + (begin - at)
                if size > most:
                    raise self.error(at, f"a length of {value}; a frame has at most {most} bytes")
                if size < begin - at:
                    raise self.error(at, f"a length of {value}: the frame would end in its head")
            else:
                size = g.size
                if size > most:
                    raise self.error(at, f"a frame has {size} bytes; at most {most}")
            if end - at < size:
                self.need = cython.cast(cython.Py_ssize_t, size)
                return 0
            stop = at + cython.cast(cython.Py_ssize_t, size)
        table.frame_at[table.count] = at
        table.frame_len[table.count] = cython.cast(cython.int, size)
        self._content(p, begin, stop, table)
        table.count += 1
        return cython.cast(cython.Py_ssize_t, size)

    @cython.cfunc
    @cython.exceptval(-2, check=False)
    def _other_magic(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """The length of a magic that is there, 0 where one may be coming, -1 where none is."""
        seen: bytes = bytes(p[at : min(end, at + self.layout.magic_len)])
        for magic in self.layout.magics:
            if magic == seen:
                return len(magic)
        for magic in self.layout.magics:
            if magic.startswith(seen):
                self.need = self.layout.magic_len
                return 0
        return -1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _digits(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Where the content begins behind a decimal length, 0 where that is not there yet."""
        i: cython.Py_ssize_t = at
        while i < end and 48 <= p[i] <= 57 and i - at <= _MOST_DIGITS:
            i += 1
        if i - at > _MOST_DIGITS:
            raise self.error(at, f"a length of over {_MOST_DIGITS} digits")
        if i == end:
            return 0
        if i == at or p[i] != self.layout.digits_end:
            raise self.error(i, f"{_shown(bytes(p[i : i + 1]))} in a length of decimal digits")
        return i + 1

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _content(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        """Check a frame whose content is p[begin:end], and set the columns of its row."""
        g: Layout = self.layout
        row: cython.Py_ssize_t = table.count
        j: cython.int
        k: cython.int
        found: cython.int
        at: cython.Py_ssize_t
        lacks: cython.Py_ssize_t = 0
        if g.check_optional and not g.has_checksum(p, begin, end):
            lacks = g.check_size
        if end - begin < g.least - lacks:
            text = f"{end - begin} bytes; a frame has at least {g.least - lacks}"
            raise self.error(begin, text)
        if len(g.trailer) and not matches(p, end - len(g.trailer), end, g.trailer):
            at = end - len(g.trailer)
            text = f"{_shown(bytes(p[at:end]))} at the end; frames end with {_shown(g.trailer)}"
            raise self.error(at, text)
        if g.check_len and not lacks:
            self._check(p, begin, end)
        for j in range(g.needs):
            k = g.needed[j]
            found = g.locate(p, begin, end, k, self.places, table.side)
            if found != _FOUND:
                self._lacks(p, begin, k, found)
        table.flags[row] = self.flags
        table.headers_len[row] = 0
        table.op[row] = _PUBLISH
        if g.payload_after >= 0:
            at = cython.cast(cython.Py_ssize_t, self.places[3 * g.payload_after + 2])
        else:
            at = begin
        at += g.payload_at
        end -= g.end_size - lacks
        if at > end:
            raise self.error(begin, f"the payload would end {at - end} bytes before it begins")
        table.payload_at[row] = at
        table.payload_len[row] = end - at
        if g.op_field >= 0:
            self._op(p, row, table)
        if table.op[row] == _PUBLISH:
            self._address(p, table, row)
        if g.id_field >= 0:
            self._id(p, table, row)
        if g.ticket_field >= 0:
            table.ticket[row] = self._number(p, g.ticket_field)
        if g.priority_field >= 0:
            table.priority[row] = 1 if self._number(p, g.priority_field) else 0
        if g.ttl_field >= 0:
            table.ttl[row] = self._number(p, g.ttl_field)
        if g.variable_headers and end - begin > self.max_headers:
            self._limit_headers(p, begin, end + g.end_size - lacks, table.side)
        return 0

    @cython.cfunc
    def _check(
        self, p: cython.p_const_uchar, begin: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Compare the checksum."""
        g: Layout = self.layout
        at: cython.Py_ssize_t = end - len(g.trailer) - g.check_len
        said: cython.longlong = 0
        digit: cython.int
        i: cython.Py_ssize_t
        made: cython.longlong
        if g.check_size > g.check_len and not matches(p, at - len(g.mark), end, g.mark):
            raise self.error(at - len(g.mark), f"no {_shown(g.mark)} in front of the checksum")
        if g.check_hex:
            for i in range(at, at + g.check_len):
                digit = hex_digit(p[i])
                if digit < 0:
                    raise self.error(i, "a checksum has hexadecimal digits")
                said = (said << 4) | digit
        else:
            said = read_unsigned(p, at, g.check_len, g.check_little)
        made = g.checksum(p, begin + g.check_start, at - (g.check_size - g.check_len))
        if said != made:
            digits = g.check_bits // 4
            text = f"the checksum is {said:0{digits}x}, and {g.check_name} of the frame is"
            raise self.error(at, f"{text} {made:0{digits}x}")
        return 0

    @cython.cfunc
    def _lacks(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        k: cython.int,
        found: cython.int,
    ) -> cython.int:
        name = self.layout.names[k].decode()
        if found == _NOT_TEXT:
            at = self.places[3 * k]
            raise self.error(max(at, begin), f"the field {name} is not UTF-8")
        raise self.error(begin, f"the field {name} is missing, or longer than its frame")

    @cython.cfunc
    @cython.exceptval(check=False)
    def _number(self, p: cython.p_const_uchar, k: cython.int) -> cython.int:
        """The value of a field of up to four bytes, as a column holds it."""
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.places[3 * k])
        value: cython.longlong = self.layout.number(p, at, k)
        if k == self.layout.ticket_field:
            # All 32 bits count; the encoder writes them back as they are.
            return cython.cast(
                cython.int, value if value <= _LARGEST else value - (2 * _LARGEST + 2)
            )
        return cython.cast(cython.int, max(0, min(value, _LARGEST)))

    @cython.cfunc
    def _op(self, p: cython.p_const_uchar, row: cython.Py_ssize_t, table: FrameTable) -> cython.int:
        """Set the op by the value of its field; filters and tokens move out of the payload."""
        g: Layout = self.layout
        k: cython.int = g.op_field
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.places[3 * k])
        n: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.places[3 * k + 1])
        value: cython.longlong = 0
        i: cython.Py_ssize_t
        op: cython.int = _PUBLISH
        if g.kind[k] != _TEXT:
            value = g.number(p, at, k)
        elif n <= 7 and at >= 0:
            for i in range(at, at + n):
                value = (value << 8) | p[i]
        for i in range(g.known):
            if g.known_values[i] == value:
                op = g.known_ops[i]
                break
        if op == _PUBLISH:
            return 0
        table.op[row] = op
        table.flags[row] = 0
        table.address_len[row] = 0
        at = table.payload_at[row]
        n = table.payload_len[row]
        if op == _SUBSCRIBE or op == _UNSUBSCRIBE:
            if n > self.max_address:
                raise self.error(at, f"a filter of {n} bytes; at most {self.max_address}")
            if not is_utf8(p, at, n):
                raise self.error(at, "a filter that is not UTF-8")
            table.address_at[row] = cython.cast(cython.int, at)
            table.address_len[row] = cython.cast(cython.int, n)
            table.payload_len[row] = 0
        elif op == _AUTH:
            if n > self.max_headers:
                raise self.error(at, f"a token of {n} bytes; at most {self.max_headers}")
            if not is_utf8(p, at, n):
                raise self.error(at, "a token that is not UTF-8")
            table.headers_at[row] = table.side_at()
            table.put_header(_TOKEN, bytes(p[at : at + n]))
            table.headers_len[row] = table.headers_at[row] - table.side_at()
            table.flags[row] = _SECRET
            table.payload_len[row] = 0
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _address(
        self, p: cython.p_const_uchar, table: FrameTable, row: cython.Py_ssize_t
    ) -> cython.int:
        """Set the address: constant, in place, or put together in the side buffer."""
        g: Layout = self.layout
        j: cython.int
        k: cython.int
        n: cython.longlong
        value: cython.longlong
        same: cython.bint
        literal: bytes
        if g.address_fields == 0:
            literal = g.literals[0]
            table.address_at[row] = self.constant_at
            table.address_len[row] = cython.cast(cython.int, len(literal))
            return 0
        if g.is_in_place:
            k = g.part_fields[0]
            n = self.places[3 * k + 1]
            table.address_at[row] = cython.cast(cython.int, self.places[3 * k])
            table.address_len[row] = cython.cast(cython.int, min(n, _LARGEST))
        else:
            if g.is_numeric:
                same = self.address_len > 0
                for j in range(g.parts - 1):
                    k = g.part_fields[j]
                    value = g.number(p, cython.cast(cython.Py_ssize_t, self.places[3 * k]), k)
                    same = same and value == self.last[j]
                    self.last[j] = value
                if same:  # as the frame before: most devices send for one address
                    table.address_at[row] = self.address_at
                    table.address_len[row] = self.address_len
                    return 0
            self.address_at = table.side_at()
            for j in range(g.parts):
                literal = g.literals[j]
                k = g.part_fields[j]
                if len(literal):
                    table.side.put(literal, 0, len(literal))
                if k >= 0:
                    if self.places[3 * k + 1] > _MOST_ID:
                        n = self.places[3 * k + 1]
                        table.address_at[row] = 0
                        raise self._long(p, k, n)
                    g.put_text(p, k, self.places, table.side, table.side)
            self.address_len = self.address_at - table.side_at()
            table.address_at[row] = self.address_at
            table.address_len[row] = self.address_len
            n = self.address_len
        if n > self.max_address:
            raise self._long(p, g.part_fields[0], n)
        return 0

    @cython.cfunc
    def _long(self, p: cython.p_const_uchar, k: cython.int, n: cython.longlong) -> Any:
        self.address_len = 0
        at = max(0, self.places[3 * k])
        return self.error(at, f"an address of {n} bytes; at most {self.max_address}")

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _id(self, p: cython.p_const_uchar, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        g: Layout = self.layout
        k: cython.int = g.id_field
        n: cython.longlong = self.places[3 * k + 1]
        if n > _MOST_ID:
            at = max(0, self.places[3 * k])
            raise self.error(at, f"an id of {n} bytes; at most {_MOST_ID}")
        if g.kind[k] == _TEXT:
            table.id_at[row] = cython.cast(cython.int, self.places[3 * k])
            table.id_len[row] = cython.cast(cython.int, n)
        else:
            table.id_at[row] = table.side_at()
            g.put_text(p, k, self.places, table.side, table.side)
            table.id_len[row] = table.id_at[row] - table.side_at()
        return 0

    @cython.cfunc
    def _limit_headers(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        side: Octets,
    ) -> cython.int:
        """Refuse a large frame whose headers are too long."""
        g: Layout = self.layout
        j: cython.int
        k: cython.int
        kept: cython.Py_ssize_t = side.size
        total: cython.longlong = 0
        for j in range(g.headers):
            k = g.header_fields[j]
            if self._find(p, begin, end, k, side) != _MISSING:
                total += self.places[3 * k + 1]
        side.size = kept
        if total > self.max_headers:
            raise self.error(begin, f"over {self.max_headers} bytes of headers")
        return 0

    @cython.cfunc
    def _find(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        k: cython.int,
        side: Octets,
    ) -> cython.int:
        """Find a field that need not be there, and all that it stands behind."""
        before: cython.int = self.layout.after[k]
        if before >= 0 and self._find(p, begin, end, before, side) == _MISSING:
            return _MISSING
        return self.layout.locate(p, begin, end, k, self.places, side)

    @cython.ccall
    def read_headers(self, table: FrameTable) -> None:
        """Bring the headers of rows marked UNREAD into the one form."""
        row: cython.Py_ssize_t
        for row in range(table.count):
            if table.flags[row] & _UNREAD:
                self._read_headers(table, row)

    @cython.cfunc
    def _read_headers(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        g: Layout = self.layout
        p: cython.p_const_uchar = table.payload_p
        side: Octets = table.side
        begin: cython.Py_ssize_t = table.frame_at[row]
        end: cython.Py_ssize_t = begin + table.frame_len[row]
        j: cython.int
        k: cython.int
        start: cython.Py_ssize_t
        found: cython.int
        name: bytes
        size: cython.Py_ssize_t
        if g.by == _BY_DELIMITER:
            end -= len(g.delimiter)
            if g.strip >= 0 and end > begin and p[end - 1] == g.strip:
                end -= 1
        elif g.by == _BY_DIGITS:
            while p[begin] != g.digits_end:
                begin += 1
            begin += 1
        if g.variable_headers:
            # Decoded text goes to the side buffer, in front of all headers.
            for j in range(g.headers):
                self._find(p, begin, end, g.header_fields[j], side)
        table.headers_at[row] = table.side_at()
        for j in range(g.headers):
            k = g.header_fields[j]
            start = side.size
            if not g.variable_headers or len(g.members[k]) == 0:
                found = self._find(p, begin, end, k, side)
            else:
                found = self._find_again(p, begin, end, k, side)
            if found == _MISSING:
                side.size = start
                continue
            name = g.names[k]
            start = side.size
            side.put_uint32(len(name))
            side.put_uint32(0)
            side.put(name, 0, len(name))
            size = side.size
            if found == _NOT_TEXT:
                self._put_hex(p, k, side)
            else:
                g.put_text(p, k, self.places, side, side)
            side.set_uint32(start + 4, side.size - size)
        table.headers_len[row] = table.headers_at[row] - table.side_at()
        table.flags[row] &= ~_UNREAD
        return 0

    @cython.cfunc
    def _find_again(
        self,
        p: cython.p_const_uchar,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        k: cython.int,
        side: Octets,
    ) -> cython.int:
        """Find a member of JSON; what was decoded before is where it was."""
        decoded: cython.longlong = self.places[3 * k]
        kept: cython.Py_ssize_t = side.size
        found: cython.int = self._find(p, begin, end, k, side)
        if found == _FOUND and self.places[3 * k] < 0:
            self.places[3 * k] = decoded
        side.size = kept
        return found

    @cython.cfunc
    def _put_hex(self, p: cython.p_const_uchar, k: cython.int, side: Octets) -> cython.int:
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.places[3 * k])
        n: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.places[3 * k + 1])
        if at >= 0:
            side.put_hex(p, at, n)
        return 0

    @cython.cfunc
    def _answer(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Read what is no frame: an answer, where the description has some."""
        data: bytes = bytes(p[at : min(end, at + MOST_ANSWER)])
        row: cython.Py_ssize_t = table.count
        begun = False
        for op, first, pattern in self.answers:
            found = pattern.match(data)
            if found is not None:
                table.frame_at[row] = at
                table.frame_len[row] = found.end()
                self._answered(table, row, op, found.groupdict())
                table.count = row + 1
                return found.end()
            begun = begun or first.startswith(data) or data.startswith(first)
        if begun and len(data) < MOST_ANSWER:
            return 0
        wanted = " or ".join(map(_shown, self.layout.magics))
        same = max(_common(magic, data) for magic in self.layout.magics)
        seen = _shown(data[same : same + 1])
        raise self.error(at + same, f"{seen} where a frame begins; frames begin with {wanted}")

    @cython.cfunc
    def _answered(
        self, table: FrameTable, row: cython.Py_ssize_t, op: cython.int, said: dict[str, bytes]
    ) -> cython.int:
        table.blank(row)
        table.op[row] = op
        for name, value in said.items():
            if name.startswith("ticket"):
                table.ticket[row] = _ticket(name, value)
                continue
            place = table.side_at()
            table.side.put_bytes(value if is_utf8(value, 0, len(value)) else b"")
            size = place - table.side_at()
            if name == "id":
                table.id_at[row], table.id_len[row] = place, size
            elif name == "text":
                table.payload_at[row], table.payload_len[row] = place, size
            else:
                table.headers_at[row] = table.side_at()
                table.put_header(_CODE, value)
                table.headers_len[row] = table.headers_at[row] - table.side_at()
        return 0

    def resume(self) -> None:
        """Begin at a frame inside a stream: every frame stands for itself."""
        Scanner.resume(self)


def _common(one: bytes, other: bytes) -> int:
    """Return how many bytes two byte strings have in common from their beginning on."""
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same


def _ticket(name: str, value: bytes) -> int:
    """Return a ticket as a column holds it, from digits or bytes."""
    form = name.partition("_")[2]
    if not form:
        number = int(value) if value.isdigit() and len(value) < 11 else 0
    else:
        number = int.from_bytes(value, "little" if form.endswith("le") else "big")
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number


def _answer_patterns(layout: Layout) -> list[tuple[int, bytes, re.Pattern[bytes]]]:
    """Return the answers as an op, what each begins with, and a pattern of it."""
    made = []
    for op, parts in ((Op.OK, layout.accepted), (Op.ERROR, layout.refused)):
        pattern = b""
        for literal, name in parts:
            pattern += re.escape(literal)
            what, _, form = name.partition(":")
            if form:
                width = int(form.removesuffix("le")[1:]) // 8
                pattern += b"(?P<ticket_%b>.{%d})" % (form.encode(), width)
            elif name:
                pattern += b"(?P<%b>.*?)" % what.encode()
        if parts:
            made.append((int(op), parts[0][0], re.compile(pattern, re.DOTALL)))
    return made


@cython.cfunc
@cython.exceptval(check=False)
def _decimal(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    value: cython.longlong = 0
    i: cython.Py_ssize_t
    for i in range(at, end):
        value = value * 10 + (p[i] - 48)
    return value


def _whole(value: int) -> int:
    """Return a number of eight bytes that came out negative as what it was."""
    return value if value >= 0 else value + (1 << 64)


@cython.final
@cython.cclass
class FramedEncoder(Encoder):
    """Rows to frames of a described dialect."""

    layout: Layout
    name: Octets
    text: Octets
    body: Octets
    spans: cython.longlong[::1]
    room: cython.longlong[::1]
    places: cython.p_longlong
    parsed: cython.longlong

    def __init__(self, dialect: str, client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)
        self.layout = layout_of(DIALECTS[dialect].description)
        self.name = Octets(64)  # the address that is being written
        self.text = Octets(64)  # the value of a field
        self.body = Octets(64)  # a payload that is made here
        self.spans = array("q", bytes(16 * max(1, self.layout.count)))
        self.room = array("q", bytes(24 * max(1, self.layout.count)))
        if cython.compiled:
            self.places = cython.address(self.room[0])
        else:
            self.places = self.room

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        g: Layout = self.layout
        out: Octets = self.out
        op: cython.int = table.op[row]
        start: cython.Py_ssize_t = out.size
        begin: cython.Py_ssize_t
        status: cython.int
        at: cython.int = table.payload_at[row]
        n: cython.int = table.payload_len[row]
        made: cython.bint = False
        j: cython.int
        k: cython.int
        size: cython.longlong
        if op == _OK and len(g.accepted):
            return self._answer(table, row, g.accepted)
        if op == _ERROR and len(g.refused):
            return self._answer(table, row, g.refused)
        if op == _DELIVER or op == _ENQUEUE:
            op = _PUBLISH
        if not g.has_op[op] or len(g.obstacle):
            return _SKIP_OP
        if op == _PUBLISH:
            if g.address_fields and not self._match(table, row):
                return _SKIP_ADDRESS
            if g.json_field >= 0:
                made = True
                if not self._object(table, row):
                    return _SKIP_PAYLOAD
        elif op == _SUBSCRIBE or op == _UNSUBSCRIBE:
            made = True
            self.body.size = 0
            table.put(self.body, table.address_p, table.address_at[row], table.address_len[row])
        elif op == _AUTH:
            made = True
            self.body.size = 0
            self._header(table, row, _TOKEN, self.body)
        if g.by == _BY_DIGITS:
            out.put_bytes(bytes(_MOST_DIGITS + 1))  # room for the digits
        begin = out.size
        out.put(g.template, 0, g.head_size)
        for k in range(g.count):
            if g.place[k] == 1:
                status = self._field(table, row, op, k, begin + g.at[k])
                if status:
                    return status
        for j in range(len(g.chain)):
            status = self._field(table, row, op, g.chain[j], -1)
            if status:
                return status
        if made:
            out.put(self.body.data, 0, self.body.size)
            n = cython.cast(cython.int, self.body.size)
        else:
            table.put(out, table.payload_p, at, n)
        if g.size:
            size = out.size - begin + g.end_size
            if size > g.size or (size < g.size and g.payload_pad < 0):
                return _SKIP_PAYLOAD
            while size < g.size:
                out.put_uint8(g.payload_pad)
                size += 1
        return self._end(table, row, op, start, begin, n)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _end(
        self,
        table: FrameTable,
        row: cython.Py_ssize_t,
        op: cython.int,
        start: cython.Py_ssize_t,
        begin: cython.Py_ssize_t,
        n: cython.Py_ssize_t,
    ) -> cython.int:
        """Write the bytes behind the payload, then the length and the delimiter."""
        g: Layout = self.layout
        out: Octets = self.out
        status: cython.int
        k: cython.int
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t
        value: cython.longlong
        digit: cython.int
        at = out.size
        out.grow(g.end_size)
        for i in range(g.end_size):
            out.data[at + i] = 0
        out.size += g.end_size
        end = out.size
        if end - begin < g.least or end - start > g.most:
            return _SKIP_PAYLOAD
        for k in range(g.count):
            if g.place[k] == 3:
                status = self._field(table, row, op, k, end + g.at[k])
                if status:
                    return status
        at = end - len(g.trailer)
        for i in range(len(g.trailer)):
            out.data[at + i] = g.trailer[i]
        if (g.magic_len > g.head_size or len(g.magics) > 1) and not self._has_magic(begin, end):
            return _SKIP_PAYLOAD
        if g.by == _BY_LENGTH:
            value = end - start - g.base
            if value < 0 or (
                g.length_width < 8 and value >> (8 * cython.cast(cython.longlong, g.length_width))
            ):
                return _SKIP_PAYLOAD
            _set_number(out, begin + g.length_at, g.length_width, g.length_little, value)
        if g.check_len:
            at -= g.check_len
            for i in range(len(g.mark)):
                out.data[at - len(g.mark) + i] = g.mark[i]
            value = g.checksum(out.data, begin + g.check_start, at - len(g.mark))
            if g.check_hex:
                for i in range(g.check_len):
                    digit = cython.cast(cython.int, (value >> (4 * (g.check_len - 1 - i))) & 15)
                    out.data[at + i] = digit + (48 if digit < 10 else 55)
            else:
                _set_number(out, at, g.check_len, g.check_little, value)
        if op == _PUBLISH and g.verifies and not self._says_address(begin, end):
            return _SKIP_ADDRESS
        if g.by == _BY_DELIMITER:
            if g.strip >= 0 and end > begin and out.data[end - 1] == g.strip:
                return _SKIP_PAYLOAD
            out.put_bytes(g.ending)
            # No frame has the delimiter in it, nor ends as the delimiter begins.
            if find_octets(out.data, start, out.size, g.delimiter) != out.size - len(g.delimiter):
                return _SKIP_PAYLOAD
        elif g.by == _BY_DIGITS:
            if end - begin < g.base:
                return _SKIP_PAYLOAD
            self._put_digits(start, begin, end)
        return 0

    @cython.cfunc
    def _put_digits(
        self, start: cython.Py_ssize_t, begin: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Write a decimal length in front of a content, which moves to where the length ends."""
        out: Octets = self.out
        head: bytes = b"%d%c" % (end - begin - self.layout.base, self.layout.digits_end)
        i: cython.Py_ssize_t
        size: cython.Py_ssize_t = len(head)
        for i in range(size):
            out.data[start + i] = head[i]
        for i in range(end - begin):
            out.data[start + size + i] = out.data[begin + i]
        out.size = start + size + end - begin
        return 0

    @cython.cfunc
    def _has_magic(self, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        for magic in self.layout.magics:
            if matches(self.out.data, begin, end, magic):
                return True
        return False

    @cython.cfunc
    def _says_address(self, begin: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
        """Whether the fields inside the payload say the address that is to be written."""
        g: Layout = self.layout
        j: cython.int
        k: cython.int
        literal: bytes
        self.text.size = 0
        side: Octets = self.body
        for j in range(g.needs):
            k = g.needed[j]
            if g.locate(self.out.data, begin, end, k, self.places, side) != _FOUND:
                return False
        for j in range(g.parts):
            literal = g.literals[j]
            self.text.put_bytes(literal)
            k = g.part_fields[j]
            if k >= 0:
                g.put_text(self.out.data, k, self.places, side, self.text)
        return bytes(self.text) == bytes(self.name)

    @cython.cfunc
    def _match(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
        """Cut a row's address by the pattern; the spans of its fields are in `spans`."""
        g: Layout = self.layout
        at: cython.Py_ssize_t = 0
        j: cython.int
        k: cython.int
        stop: cython.Py_ssize_t
        literal: bytes
        self.name.size = 0
        table.put(self.name, table.address_p, table.address_at[row], table.address_len[row])
        p: cython.p_const_uchar = self.name.data
        end: cython.Py_ssize_t = self.name.size
        for j in range(g.parts):
            literal = g.literals[j]
            if not matches(p, at, end, literal):
                return False
            at += len(literal)
            k = g.part_fields[j]
            if k < 0:
                return at == end
            literal = g.literals[j + 1]
            if j + 1 == g.parts - 1:
                stop = end - len(literal)
                if stop < at:
                    return False
            else:
                stop = find_octets(p, at, end, literal)
                if stop < 0:
                    return False
            self.spans[2 * k] = at
            self.spans[2 * k + 1] = stop - at
            at = stop
        return at == end

    @cython.cfunc
    def _object(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
        """Put the payload into `body`, with the address in its member: replaced or added."""
        g: Layout = self.layout
        k: cython.int = g.json_field
        name: bytes = g.members[k]
        body: Octets = self.text
        p: cython.p_const_uchar
        at: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        first: cython.Py_ssize_t = 0
        body.size = 0
        table.put(body, table.payload_p, table.payload_at[row], table.payload_len[row])
        p = body.data
        while first < body.size and p[first] <= 32:
            first += 1
        if first == body.size or p[first] != 123 or skip_value(p, first, body.size) < 0:
            return False
        at = find_member(p, first, body.size, name, len(name))
        self.body.size = 0
        if at < 0:
            self.body.put(p, first, 1)
            self.body.put_bytes(b'"' + name + b'":')
            self._put_quoted(k)
            stop = first + 1
            while stop < body.size and p[stop] <= 32:
                stop += 1
            if stop < body.size and p[stop] != 125:
                self.body.put_bytes(b",")
            self.body.put(p, first + 1, body.size - first - 1)
            return True
        stop = skip_value(p, at, body.size)
        if stop < 0:
            return False
        if (
            p[at] == 34
            and stop - at - 2 == self.spans[2 * k + 1]
            and self._is_plain(k)
            and bytes(p[at + 1 : stop - 1])
            == bytes(self.name.data[self.spans[2 * k] : self.spans[2 * k] + self.spans[2 * k + 1]])
        ):
            self.body.put(p, 0, body.size)
            return True
        self.body.put(p, 0, at)
        self._put_quoted(k)
        self.body.put(p, stop, body.size - stop)
        return True

    @cython.cfunc
    def _is_plain(self, k: cython.int) -> cython.bint:
        """Whether a field's value is written in JSON as it is."""
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.spans[2 * k])
        n: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.spans[2 * k + 1])
        for i in range(at, at + n):
            if self.name.data[i] < 32 or self.name.data[i] == 34 or self.name.data[i] == 92:
                return False
        return True

    @cython.cfunc
    def _put_quoted(self, k: cython.int) -> cython.int:
        """Append a field's value as a string of JSON to `body`."""
        i: cython.Py_ssize_t
        at: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.spans[2 * k])
        n: cython.Py_ssize_t = cython.cast(cython.Py_ssize_t, self.spans[2 * k + 1])
        byte: cython.int
        self.body.put_uint8(34)
        for i in range(at, at + n):
            byte = self.name.data[i]
            if byte < 32:
                self.body.put_bytes(b"\\u%04x" % byte)
                continue
            if byte == 34 or byte == 92:
                self.body.put_uint8(92)
            self.body.put_uint8(byte)
        self.body.put_uint8(34)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _field(
        self,
        table: FrameTable,
        row: cython.Py_ssize_t,
        op: cython.int,
        k: cython.int,
        at: cython.Py_ssize_t,
    ) -> cython.int:
        """Write field k at out[at], or behind all where `at` is -1; 0, or why it cannot be said."""
        g: Layout = self.layout
        text: Octets = self.text
        status: cython.int = _SKIP_HEADERS
        kind: cython.int = g.kind[k]
        default: bytes
        plain: cython.bint = kind == _UNSIGNED or kind == _SIGNED
        if k == g.op_field:
            if plain:
                return self._put_number(k, at, g.op_values[op], 0)
            text.size = 0
            text.put_bytes(g.op_texts[op])
        elif k == g.ticket_field:
            return self._put_number(k, at, table.ticket[row], 0)
        elif k == g.priority_field:
            return self._put_number(k, at, table.priority[row], 0)
        elif k == g.ttl_field:
            return self._put_number(k, at, 0 if self.hops else table.ttl[row], 0)
        else:
            text.size = 0
            if op == _PUBLISH and self._is_in_address(k):
                status = _SKIP_ADDRESS
                text.put(
                    self.name.data,
                    cython.cast(cython.Py_ssize_t, self.spans[2 * k]),
                    cython.cast(cython.Py_ssize_t, self.spans[2 * k + 1]),
                )
                if plain and not self._is_canonical():
                    return _SKIP_ADDRESS  # 007 would come back as 7
            elif k == g.id_field:
                status = 0
                table.put_id(text, row)
            elif g.is_header[k]:
                default = g.names[k]
                self._header(table, row, default, text)
            if text.size == 0:
                default = g.defaults[k]
                text.put_bytes(default)
        if not plain:
            return self._put_other(k, at, status)
        if not self._parse(k):
            if status:
                return status
            self.parsed = 0
        return self._put_number(k, at, self.parsed, status)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _parse(self, k: cython.int) -> cython.bint:
        """Read `text` as an integer of field k's sign, into `parsed`; nothing is 0."""
        text: Octets = self.text
        i: cython.Py_ssize_t = 0
        magnitude: cython.ulonglong = 0
        digit: cython.int
        negative: cython.bint = text.size > 1 and text.data[0] == 45
        if negative:
            if self.layout.kind[k] == _UNSIGNED:
                return False
            i = 1
        while i < text.size:
            digit = text.data[i] - 48
            if digit < 0 or digit > 9 or magnitude > (_MOST_MAGNITUDE - digit) // 10:
                return False
            magnitude = 10 * magnitude + digit
            i += 1
        if magnitude > _MOST_POSITIVE and self.layout.kind[k] == _SIGNED:
            if not negative or magnitude - 1 > _MOST_POSITIVE:
                return False
        self.parsed = cython.cast(cython.longlong, magnitude)
        if negative:
            self.parsed = -self.parsed
        return True

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_in_address(self, k: cython.int) -> cython.bint:
        j: cython.int
        for j in range(self.layout.parts):
            if self.layout.part_fields[j] == k:
                return True
        return False

    @cython.cfunc
    @cython.exceptval(check=False)
    def _is_canonical(self) -> cython.bint:
        """Is a number in `text` written as it would be read: without a plus or needless zeros?"""
        text: Octets = self.text
        first: cython.Py_ssize_t = 1 if text.size and text.data[0] == 45 else 0
        if text.size == first:
            return False
        return text.data[first] != 48 or (text.size == 1)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _put_number(
        self, k: cython.int, at: cython.Py_ssize_t, value: cython.longlong, status: cython.int
    ) -> cython.int:
        """Write an integer; one that does not fit is 0 where `status` is 0, else it is refused.

        A ticket has all the bits of its 32.
        """
        g: Layout = self.layout
        out: Octets = self.out
        bits: cython.longlong = 8 * g.width[k]
        if k == g.ticket_field:
            value &= _ALL_BITS
            if bits < 32:
                value &= (cython.cast(cython.longlong, 1) << bits) - 1
        elif bits < 64:
            if g.kind[k] == _SIGNED:
                if (
                    not -(cython.cast(cython.longlong, 1) << (bits - 1))
                    <= value
                    < (cython.cast(cython.longlong, 1) << (bits - 1))
                ):
                    if status:
                        return status
                    value = 0
            elif value < 0 or value >> bits:
                if status:
                    return status
                if k == g.ttl_field:
                    value = (cython.cast(cython.longlong, 1) << bits) - 1
                else:
                    value = 0
        if at < 0:
            at = out.size
            out.grow(g.width[k])
            out.size += g.width[k]
        _set_number(out, at, g.width[k], g.little[k], value)
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _put_other(self, k: cython.int, at: cython.Py_ssize_t, status: cython.int) -> cython.int:
        """Write text, hexadecimal text or a float; 0, or `status` where it does not fit."""
        g: Layout = self.layout
        out: Octets = self.out
        text: Octets = self.text
        i: cython.Py_ssize_t
        n: cython.Py_ssize_t
        width: cython.Py_ssize_t = g.width[k]
        raw: bytes
        if g.kind[k] == _FLOAT:
            try:
                raw = float_octets(bytes(text) or b"0", width, g.little[k])
            except (ValueError, OverflowError):
                return _SKIP_HEADERS
        elif g.kind[k] == _HEX:
            try:
                raw = bytes.fromhex(bytes(text).decode())
            except ValueError:
                if status:
                    return status
                raw = b""
            if g.mode[k] <= _FROM_END and len(raw) == 0:
                raw = bytes(width)
        else:
            raw = b""
        n = text.size if g.kind[k] == _TEXT else len(raw)
        if g.mode[k] <= _FROM_END:
            # A fixed size: text is padded, what ends with the padding would lose it.
            if n > width or (g.kind[k] != _TEXT and n != width):
                return status or _SKIP_HEADERS
            if g.kind[k] == _TEXT and n and text.data[n - 1] == g.pad[k]:
                return status or _SKIP_HEADERS
            if at < 0:
                at = out.size
                out.grow(width)
                out.size += width
            for i in range(width):
                if i >= n:
                    out.data[at + i] = g.pad[k]
                elif g.kind[k] == _TEXT:
                    out.data[at + i] = text.data[i]
                else:
                    out.data[at + i] = raw[i]
            return 0
        if g.ends[k] >= 0:
            for i in range(n):
                if text.data[i] == g.ends[k]:
                    return status or _SKIP_HEADERS
            out.put(text.data, 0, n)
            out.put_uint8(g.ends[k])
            return 0
        if width < 4 and n >> (8 * width):
            return status or _SKIP_HEADERS
        at = out.size
        out.grow(width)
        out.size += width
        _set_number(out, at, g.width[k], g.little[k], n)
        if g.kind[k] == _TEXT:
            out.put(text.data, 0, n)
        else:
            out.put_bytes(raw)
        return 0

    @cython.cfunc
    def _header(
        self, table: FrameTable, row: cython.Py_ssize_t, name: bytes, out: Octets
    ) -> cython.int:
        """Append the value of a header, if the row has it."""
        p: cython.p_const_uchar = table.side.data
        at: cython.Py_ssize_t = -1 - table.headers_at[row]
        end: cython.Py_ssize_t = at + table.headers_len[row]
        k: cython.Py_ssize_t
        n: cython.Py_ssize_t
        if table.headers_len[row] == 0:
            return 0
        while at < end:
            k = cython.cast(cython.Py_ssize_t, uint32(p, at))
            n = cython.cast(cython.Py_ssize_t, uint32(p, at + 4))
            if k == len(name) and matches(p, at + 8, end, name):
                out.put(p, at + 8 + k, n)
                return 0
            at += 8 + k + n
        return 0

    @cython.cfunc
    def _answer(
        self, table: FrameTable, row: cython.Py_ssize_t, parts: list[tuple[bytes, str]]
    ) -> cython.int:
        """Write an answer that is no frame."""
        out: Octets = self.out
        for literal, name in parts:
            out.put_bytes(literal)
            if name == "id":
                table.put_id(out, row)
            elif name == "ticket":
                out.put_bytes(b"%d" % (table.ticket[row] & 0xFFFFFFFF))
            elif name == "code":
                self._header(table, row, _CODE, out)
            elif name == "text":
                table.put(out, table.payload_p, table.payload_at[row], table.payload_len[row])
            elif name:
                form = name.partition(":")[2]
                order = "little" if form.endswith("le") else "big"
                width = int(form.removesuffix("le")[1:]) // 8
                ticket = table.ticket[row] & ((1 << (8 * width)) - 1)
                out.put_bytes(ticket.to_bytes(width, "little" if order == "little" else "big"))
        return 0


@cython.cfunc
@cython.exceptval(check=False)
def _set_number(
    out: Octets,
    at: cython.Py_ssize_t,
    width: cython.int,
    little: cython.bint,
    value: cython.longlong,
) -> cython.int:
    i: cython.int
    for i in range(width):
        if little:
            out.data[at + i] = (value >> (8 * i)) & 255
        else:
            out.data[at + i] = (value >> (8 * (width - 1 - i))) & 255
    return 0
