"""Rows of a frame table as bytes, and back: how nodes pass messages on to each other.

Nothing is lost on the way, whatever the dialect: a row is unpacked as it was packed, its ticket and
its ttl too. Only its frame is not there any more. All numbers are big-endian:

    rows  = version (1), ids are raw (1), lengths of the dialect's name and the sender (2 each),
            count (4), name, sender, row …
    row   = which columns are not 0 (2), those columns (4 each; the sender's time 8), fields …

The columns, from bit 0 on: op, flags, content type, priority, ttl, ticket, then the lengths of
address, payload, id, correlation id, source, target and headers, then the sender's time. The bytes
of the fields follow in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython

from wirelake.errors import ProtocolError
from wirelake.message import Op

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets, is_utf8, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.octets import Octets, is_utf8, uint32
    from wirelake.wire.table import FrameTable

#: What these bytes are called where they cannot be read.
NAME = "rows"
VERSION = 1

_HEAD = cython.declare(cython.Py_ssize_t, 10)
_UNREAD = cython.declare(cython.int, 1 << 12)  # as in `table`
_OPS = cython.declare(cython.Py_ssize_t, len(Op))
_TIME = cython.declare(cython.int, 1 << 13)


def pack(
    table: FrameTable, rows: Sequence[int], sender: bytes = b"", *, whole: cython.bint = True
) -> memoryview:
    """Return rows of a table, all of one sender, as bytes, which are the caller's.

    Where they are not `whole`, payloads and headers are left out.
    """
    chosen: cython.const[cython.int][::1]
    k: cython.Py_ssize_t
    out: Octets = Octets(4096)
    table.read_headers()
    chosen = table.chosen(rows)
    name = table.dialect.encode()
    out.put_uint8(VERSION)
    out.put_uint8(table.raw_ids)
    out.put_uint16(len(name))
    out.put_uint16(len(sender))
    out.put_uint32(len(chosen))
    out.put_bytes(name)
    out.put_bytes(sender)
    for k in range(len(chosen)):
        _pack_row(table, chosen[k], out, whole)
    return out.take()


@cython.cfunc
def _pack_row(
    table: FrameTable, row: cython.Py_ssize_t, out: Octets, whole: cython.bint
) -> cython.int:
    payload: cython.int = table.payload_len[row] if whole else 0
    headers: cython.int = table.headers_len[row] if whole else 0
    mark: cython.Py_ssize_t = out.size
    mask: cython.int = 0
    sent: cython.longlong = table.sent[row]
    out.put_uint16(0)
    mask |= _number(out, 0, table.op[row])
    mask |= _number(out, 1, table.flags[row] & ~_UNREAD)
    mask |= _number(out, 2, table.content_type[row])
    mask |= _number(out, 3, table.priority[row])
    mask |= _number(out, 4, table.ttl[row])
    mask |= _number(out, 5, table.ticket[row])
    mask |= _number(out, 6, table.address_len[row])
    mask |= _number(out, 7, payload)
    mask |= _number(out, 8, table.id_len[row])
    mask |= _number(out, 9, table.correlation_len[row])
    mask |= _number(out, 10, table.source_len[row])
    mask |= _number(out, 11, table.target_len[row])
    mask |= _number(out, 12, headers)
    if sent:
        mask |= _TIME
        out.put_uint32((sent >> 32) & 0xFFFFFFFF)
        out.put_uint32(sent & 0xFFFFFFFF)
    out.data[mark] = mask >> 8
    out.data[mark + 1] = mask & 0xFF
    table.put(out, table.address_p, table.address_at[row], table.address_len[row])
    table.put(out, table.payload_p, table.payload_at[row], payload)
    table.put(out, table.id_p, table.id_at[row], table.id_len[row])
    table.put(out, table.correlation_p, table.correlation_at[row], table.correlation_len[row])
    table.put(out, table.source_p, table.source_at[row], table.source_len[row])
    table.put(out, table.target_p, table.target_at[row], table.target_len[row])
    if headers:
        out.put(table.side.data, -1 - table.headers_at[row], headers)
    return 0


@cython.cfunc
def _number(out: Octets, bit: cython.int, value: cython.int) -> cython.int:
    """Write a column that is not 0; return its bit."""
    number: cython.longlong = value
    if value == 0:
        return 0
    out.put_uint32(number & 0xFFFFFFFF)
    return 1 << bit


def count_rows(data: bytes | memoryview) -> int:
    """Return how many rows bytes begin with, so that a table can be chosen for them."""
    if len(data) < _HEAD or data[0] != VERSION:
        raise ProtocolError(NAME, 0, f"these are no rows of version {VERSION}")
    return int.from_bytes(data[6:10])


def unpack(
    data: cython.const[cython.uchar][::1], table: FrameTable, *, numbered: cython.bint = False
) -> bytes:
    """Replace all rows of a table by these, whose fields stay in `data`; return their sender.

    Where they are to be `numbered`, the ticket of each becomes its number, from 0 on.
    Raises ProtocolError where the bytes are no rows, or more than the table has room for.
    """
    end: cython.Py_ssize_t = len(data)
    at: cython.Py_ssize_t = _HEAD
    row: cython.Py_ssize_t
    count: cython.Py_ssize_t
    size: cython.Py_ssize_t
    other: cython.Py_ssize_t
    p: cython.p_const_uchar
    if end < _HEAD or data[0] != VERSION:
        raise ProtocolError(NAME, 0, f"these are no rows of version {VERSION}")
    if end > 0x7FFFFFFF:
        raise ProtocolError(NAME, 0, "more than 2 GiB")
    if cython.compiled:
        p = cython.address(data[0])
    else:
        p = data
    size = (data[2] << 8) | data[3]
    other = (data[4] << 8) | data[5]
    count = uint32(p, 6)
    if count > table.capacity:
        raise ProtocolError(NAME, 6, f"{count} rows, more than {table.capacity}")
    if at + size + other > end or not is_utf8(p, at, size) or not is_utf8(p, at + size, other):
        raise ProtocolError(NAME, 10, "the dialect and the sender have no names")
    table.begin(None, bytes(p[at : at + size]).decode(), data)
    table.mixed = True
    table.raw_ids = data[1] != 0
    sender = bytes(p[at + size : at + size + other])
    at += size + other
    for row in range(count):
        table.blank(row)
        at = _unpack_row(table, row, p, at, end)
        if numbered:
            table.ticket[row] = row
    if at != end:
        raise ProtocolError(NAME, int(at), f"{end - at} bytes behind the last row")
    table.count = count
    return sender


@cython.cfunc
def _unpack_row(
    table: FrameTable,
    row: cython.Py_ssize_t,
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    mask: cython.int
    bit: cython.int
    start: cython.Py_ssize_t = at
    value: cython.longlong
    if at + 2 > end:
        raise ProtocolError(NAME, int(start), "a row is cut off")
    mask = (p[at] << 8) | p[at + 1]
    at += 2
    if mask >> 14:
        raise ProtocolError(NAME, int(start), "a row has columns that nobody knows")
    table.frame_at[row] = table.frame_len[row] = 0
    table.op[row] = 0
    table.sent[row] = 0
    for bit in range(13):
        if not (mask >> bit) & 1:
            continue
        if at + 4 > end:
            raise ProtocolError(NAME, int(start), "a row is cut off")
        value = uint32(p, at)
        if value > 0x7FFFFFFF:
            value -= 1 << 32
        at += 4
        if bit >= 6 and value < 0:
            raise ProtocolError(NAME, int(start), "a length is negative")
        if bit == 0:
            if not 0 <= value < _OPS:
                raise ProtocolError(NAME, int(start), f"{value} is no op")
            table.op[row] = value
        elif bit == 1:
            table.flags[row] = value & ~_UNREAD
        elif bit == 2:
            table.content_type[row] = value
        elif bit == 3:
            table.priority[row] = value
        elif bit == 4:
            table.ttl[row] = value
        elif bit == 5:
            table.ticket[row] = value
        elif bit == 6:
            table.address_len[row] = value
        elif bit == 7:
            table.payload_len[row] = value
        elif bit == 8:
            table.id_len[row] = value
        elif bit == 9:
            table.correlation_len[row] = value
        elif bit == 10:
            table.source_len[row] = value
        elif bit == 11:
            table.target_len[row] = value
        else:
            table.headers_len[row] = value
    if mask & _TIME:
        if at + 8 > end:
            raise ProtocolError(NAME, int(start), "a row is cut off")
        value = uint32(p, at)
        if value > 0x7FFFFFFF:
            value -= 1 << 32
        table.sent[row] = (value << 32) | uint32(p, at + 4)
        at += 8
    table.address_at[row] = at
    at = _field(p, at, table.address_len[row], end, start, True)
    table.payload_at[row] = at
    at = _field(p, at, table.payload_len[row], end, start, False)
    table.id_at[row] = at
    at = _field(p, at, table.id_len[row], end, start, not table.raw_ids)
    if table.raw_ids and table.id_len[row] not in (0, 16):
        raise ProtocolError(NAME, int(start), "a raw id has 16 bytes")
    table.correlation_at[row] = at
    at = _field(p, at, table.correlation_len[row], end, start, True)
    table.source_at[row] = at
    at = _field(p, at, table.source_len[row], end, start, True)
    table.target_at[row] = at
    at = _field(p, at, table.target_len[row], end, start, True)
    table.headers_at[row] = table.side_at()
    start = at
    at = _field(p, at, table.headers_len[row], end, start, False)
    _check_headers(p, start, at)
    table.side.put(p, start, at - start)
    return at


@cython.cfunc
def _field(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    start: cython.Py_ssize_t,
    text: cython.bint,
) -> cython.Py_ssize_t:
    """Check a field; return where it ends."""
    if size > end - at:
        raise ProtocolError(NAME, int(start), "a row is cut off")
    if text and not is_utf8(p, at, size):
        raise ProtocolError(NAME, int(at), "a name is no UTF-8")
    return at + size


@cython.cfunc
def _check_headers(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.int:
    """Raise ProtocolError where bytes are no headers in the one form."""
    size: cython.longlong
    while at < end:
        if end - at < 8:
            raise ProtocolError(NAME, int(at), "a header is cut off")
        size = uint32(p, at) + uint32(p, at + 4)
        at += 8
        if size > end - at or not is_utf8(p, at, size):
            raise ProtocolError(NAME, int(at), "a header is cut off, or no UTF-8")
        at += size
    return 0
