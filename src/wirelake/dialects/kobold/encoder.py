"""Rows to Kobold frames, of protocols 1, 2 and 3; `kobold.py` is the way back, and has the rules.

A row's metadata is walked twice in CBOR, to count its entries and to write them, and once in
protocol 1.
"""

from __future__ import annotations

import cython

from wirelake.message import Flag, Op

if cython.compiled:
    from cython.cimports.wirelake.wire.cbor import put_head, put_text
    from cython.cimports.wirelake.wire.codec import Encoder
    from cython.cimports.wirelake.wire.octets import Octets, find_crlf, find_name, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.cbor import put_head, put_text
    from wirelake.wire.codec import Encoder
    from wirelake.wire.octets import Octets, find_crlf, find_name, uint32
    from wirelake.wire.table import FrameTable

from wirelake.dialects.kobold.scanner import KEYS, OPS
from wirelake.wire import codec
from wirelake.wire.octets import pack_names

_OP_NAMES = tuple(name.encode() for name in OPS)
_MAX_OP = cython.declare(cython.int, len(OPS) - 1)
_LAST_FIELD = cython.declare(cython.int, KEYS.index("from"))
_ACK = cython.declare(cython.int, Flag.ACK)
_TEXT = cython.declare(cython.int, Flag.TEXT)
_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_DIRECT = cython.declare(cython.int, Op.DIRECT)
_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)


@cython.final
@cython.cclass
class KoboldEncoder(Encoder):
    """Rows to frames of one Kobold protocol."""

    protocol: cython.int
    keys: cython.longlong[::1]
    inclusive: cython.bint

    def __init__(self, dialect: str = "kobold-3", client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)
        self.protocol = int(dialect.removeprefix("kobold-"))
        self.keys = pack_names(KEYS)
        self.inclusive = False

    def set_variant(self, variant: str) -> None:
        """Write lengths that include themselves (`inclusive`), or do not (spec: kobold 1)."""
        if variant not in ("", "inclusive"):
            raise ValueError(f"{self.dialect} has no variant {variant!r}")
        self.variant = variant
        self.inclusive = variant == "inclusive"

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        out: Octets = self.out
        mark: cython.Py_ssize_t = out.size
        op: cython.int = table.op[row]
        if op == _DIRECT:
            op = _PUBLISH  # with `to`: Kobold's form of a direct message
        if op < 1 or op > _MAX_OP:
            return _SKIP_OP
        out.put_uint32(0)
        if self.protocol == 2:
            self._map(table, row, op)
        else:
            out.put_bytes(_OP_NAMES[op])
            if self.protocol == 1:
                out.put_uint16(0x0D0A)
                self._entries(table, row, op, True)
                out.put_uint16(0x0D0A)
                if not self._topic(table, row):
                    return _SKIP_ADDRESS
            else:
                out.put_uint8(32)
                if not self._topic(table, row):
                    return _SKIP_ADDRESS
                put_head(out, 5, self._entries(table, row, op, False))
                self._entries(table, row, op, True)
                out.put_uint16(0x0D0A)
            table.put(out, table.payload_p, table.payload_at[row], table.payload_len[row])
            out.put_uint16(0x0D0A)
        return out.set_uint32(mark, out.size - mark - (0 if self.inclusive else 4))

    @cython.cfunc
    def _topic(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
        """The topic and its CR LF; false where the address cannot stand in a line."""
        out: Octets = self.out
        mark: cython.Py_ssize_t = out.size
        table.put(out, table.address_p, table.address_at[row], table.address_len[row])
        out.put_uint16(0x0D0A)
        return find_crlf(out.data, mark, out.size) == out.size - 2

    @cython.cfunc
    def _map(self, table: FrameTable, row: cython.Py_ssize_t, op: cython.int) -> cython.int:
        out: Octets = self.out
        entries: cython.int = self._entries(table, row, op, False)
        sent: cython.longlong = self._sent(table, row)
        bare: cython.bint = (
            entries == 0
            and sent == 0
            and table.id_len[row] == 0
            and table.address_len[row] == 0
            and table.correlation_len[row] == 0
            and table.payload_len[row] == 0
            and not (self.own and table.flags[row] & _TEXT)
        )
        if bare:
            put_head(out, 5, 1)
        else:
            put_head(out, 5, 7 if entries else 6)
            put_text(out, b"id", 0, 2)
            put_head(out, 3, 32 if table.raw_ids and table.id_len[row] else table.id_len[row])
            table.put_id(out, row)
        put_text(out, b"message_type", 0, 12)
        put_head(out, 0, op)
        if bare:
            return 0
        put_text(out, b"topic", 0, 5)
        put_head(out, 3, table.address_len[row])
        table.put(out, table.address_p, table.address_at[row], table.address_len[row])
        put_text(out, b"transaction_id", 0, 14)
        put_head(out, 3, table.correlation_len[row])
        table.put(out, table.correlation_p, table.correlation_at[row], table.correlation_len[row])
        put_text(out, b"content", 0, 7)
        put_head(out, 3 if self.own and table.flags[row] & _TEXT else 2, table.payload_len[row])
        table.put(out, table.payload_p, table.payload_at[row], table.payload_len[row])
        put_text(out, b"timestamp", 0, 9)
        if sent < 0:
            put_head(out, 1, -1 - sent)
        else:
            put_head(out, 0, sent)
        if entries:
            put_text(out, b"metadata", 0, 8)
            put_head(out, 5, entries)
            self._entries(table, row, op, True)
        return 0

    @cython.cfunc
    def _sent(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.longlong:
        """The sender's time: as it was read, or as a header says."""
        if table.sent[row] or table.headers_len[row] == 0:
            return table.sent[row]
        return table.parameters(row).timestamp or 0

    @cython.cfunc
    def _entries(
        self, table: FrameTable, row: cython.Py_ssize_t, op: cython.int, write: cython.bint
    ) -> cython.int:
        """The metadata entries of a row: how many there are, and `write` them."""
        out: Octets = self.out
        side: Octets = table.side
        count: cython.int = 0
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t
        known: cython.int
        if self.protocol != 2:
            if table.id_len[row]:
                count += 1
                if write:
                    self._name(b"id", 0, 2)
                    if table.raw_ids:
                        self._open(32)
                        table.put_id(out, row)
                        self._close()
                    else:
                        self._text(table, table.id_p, table.id_at[row], table.id_len[row])
            if table.correlation_len[row]:
                count += 1
                if write:
                    self._name(b"tx", 0, 2)
                    self._text(
                        table,
                        table.correlation_p,
                        table.correlation_at[row],
                        table.correlation_len[row],
                    )
        # A broker that delivers a message does not pass on that its sender wanted an answer.
        if table.flags[row] & _ACK and (self.client or op != _PUBLISH):
            count += 1
            if write:
                self._name(b"ack", 0, 3)
                self._open(1)
                out.put_uint8(49)
                self._close()
        if table.ttl[row] and not self.hops:
            count += 1
            if write:
                self._name(b"ttl", 0, 3)
                self._number(table.ttl[row])
        if table.priority[row]:
            count += 1
            if write:
                self._name(b"prio", 0, 4)
                self._number(table.priority[row])
        if table.target_len[row]:
            count += 1
            if write:
                self._name(b"to", 0, 2)
                self._text(table, table.target_p, table.target_at[row], table.target_len[row])
        if table.source_len[row]:
            count += 1
            if write:
                self._name(b"from", 0, 4)
                self._text(table, table.source_p, table.source_at[row], table.source_len[row])
        at = -1 - table.headers_at[row]
        end = at + table.headers_len[row]
        while at < end:
            key = uint32(side.data, at)
            value = uint32(side.data, at + 4)
            at += 8
            if key and side.data[at] == 36:
                known = find_name(self.keys, side.data, at + 1, key - 1)
                if known > _LAST_FIELD:
                    count += 1
                    if write:
                        self._name(side.data, at + 1, key - 1)
                        self._text(table, side.data, at + key, value)
            elif (key or self.protocol != 1) and find_name(self.keys, side.data, at, key) == 0:
                count += 1
                if write:
                    self._name(side.data, at, key)
                    self._text(table, side.data, at + key, value)
            at += key + value
        return count

    # How an entry is written, in protocol 1 and in CBOR

    @cython.cfunc
    def _name(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.int:
        if self.protocol != 1:
            return put_text(self.out, p, at, n)
        self._escaped(p, at, n)
        return self.out.put_uint8(61)

    @cython.cfunc
    def _text(
        self, table: FrameTable, p: cython.p_const_uchar, at: cython.int, n: cython.int
    ) -> cython.int:
        self._open(n)
        if self.protocol != 1:
            table.put(self.out, p, at, n)
        elif at >= 0:
            self._escaped(p, at, n)
        else:
            self._escaped(table.side.data, -1 - at, n)
        return self._close()

    @cython.cfunc
    def _number(self, value: cython.longlong) -> cython.int:
        if self.protocol != 1:
            return put_head(self.out, 0, value)
        self.out.put_decimal(value)
        return self._close()

    @cython.cfunc
    def _open(self, n: cython.int) -> cython.int:
        """Write what precedes a text value of n bytes."""
        return 0 if self.protocol == 1 else put_head(self.out, 3, n)

    @cython.cfunc
    def _close(self) -> cython.int:
        """Write what follows a value."""
        return self.out.put_uint8(59) if self.protocol == 1 else 0

    @cython.cfunc
    def _escaped(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
    ) -> cython.int:
        """Protocol 1's percent-encoding of `%`, `;`, `=`, CR and LF."""
        i: cython.Py_ssize_t
        c: cython.int
        for i in range(at, at + n):
            c = p[i]
            if c == 37 or c == 59 or c == 61 or c == 13 or c == 10:
                self.out.put_bytes(b"%%%02X" % c)
            else:
                self.out.put_uint8(c)
        return 0
