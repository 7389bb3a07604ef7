"""boson-binary: `version(2) size(4)` and properties, from seed 001.

A property is `key size(2) key value size(4) value`. Flags (`hbf.…`) that are fields of a message
become columns; those that are parameters of an op become headers with a `$` (decision 4). There is
an op for errors, so every fault carries its answer.
"""

from __future__ import annotations

import cython

from wirelake.errors import ProtocolError
from wirelake.message import OP_LABELS, Flag, Limits, Op

if cython.compiled:
    from cython.cimports.wirelake.wire.codec import Encoder, Scanner
    from cython.cimports.wirelake.wire.octets import Octets, int16, is_utf8, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.codec import Encoder, Scanner
    from wirelake.wire.octets import Octets, int16, is_utf8, same, uint32
    from wirelake.wire.table import FrameTable

from wirelake.dialects.boson_text import codec as boson_text
from wirelake.dialects.boson_text.codec import DEFAULT_ADDRESS
from wirelake.dialects.dialect import HEAD, NO
from wirelake.wire import codec
from wirelake.wire.table import SECRET, UNREAD

_ACK = cython.declare(cython.int, Flag.ACK)
_IMPLIED = cython.declare(cython.int, Flag.IMPLIED)
_VERSION_2 = cython.declare(cython.int, Flag.VERSION_2)
_UNREAD = cython.declare(cython.int, UNREAD)
_SECRET = cython.declare(cython.int, SECRET)
_UNKNOWN = cython.declare(cython.int, Op.UNKNOWN)
_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_LAST_OP = cython.declare(cython.int, Op.INFO)
_DIRECT = cython.declare(cython.int, Op.DIRECT)
_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)
_SKIP_PAYLOAD = cython.declare(cython.int, codec.SKIP_PAYLOAD)
_DOLLAR = cython.declare(cython.int, ord("$"))
_ZERO = cython.declare(cython.int, ord("0"))
_NINE = cython.declare(cython.int, ord("9"))


def _names(*names: str) -> bytes:
    """Names to look for in place: each in 12 bytes, the first of which is its length."""
    return b"".join(bytes([len(name)]) + name.encode().ljust(11) for name in names)


_TOPIC_KEY = cython.declare(bytes, b"topic")
_CONTENT_KEY = cython.declare(bytes, b"content")
_FLAG_KEY = cython.declare(bytes, b"hbf.")
_OP_NAMES = cython.declare(bytes, _names(*OP_LABELS[: Op.INFO + 1]))

#: What stands behind `hbf.`: first the flags that are columns, then the parameters of ops.
_FLAG_NAMES = cython.declare(
    bytes,
    _names(
        "op", "id", "correlation", "target", "source", "ack", "ttl", "priority",
        "client", "token", "revision", "code", "wait", "count", "attempt", "requeue",
    ),
)  # fmt: skip
#: The parameters as headers have them, behind the `$`.
_PARAMETER_NAMES = cython.declare(
    bytes, _names("client", "token", "rev", "code", "wait", "count", "attempt", "requeue")
)
_HBF_OP = cython.declare(cython.int, 0)
_HBF_ID = cython.declare(cython.int, 1)
_HBF_CORRELATION = cython.declare(cython.int, 2)
_HBF_TARGET = cython.declare(cython.int, 3)
_HBF_SOURCE = cython.declare(cython.int, 4)
_HBF_ACK = cython.declare(cython.int, 5)
_HBF_TTL = cython.declare(cython.int, 6)
_HBF_PRIORITY = cython.declare(cython.int, 7)
_PARAMETERS = cython.declare(cython.int, 8)
_HBF_TOKEN = cython.declare(cython.int, 9)
_FLAGS = cython.declare(cython.int, 16)
_MAX_TTL = cython.declare(cython.longlong, 0x7FFFFFFF)
#: The keys that may be compared with each other before a set of them is cheaper.
_FEW = cython.declare(cython.int, 8)
#: The ops that are written with a content even where it is empty, as bits.
_WITH_CONTENT = cython.declare(
    cython.int,
    sum(
        1 << op
        for op in (
            Op.PUBLISH, Op.REQUEST, Op.REPLY, Op.ENQUEUE, Op.DELIVER, Op.CREATE, Op.UPDATE,
            Op.SET, Op.DATA,
        )
    ),
)  # fmt: skip


@cython.cfunc
@cython.exceptval(check=False)
def _find(
    names: cython.p_const_uchar,
    count: cython.int,
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    n: cython.Py_ssize_t,
) -> cython.int:
    """Which of the first `count` names are the n bytes at p[at]? -1: none."""
    k: cython.int
    i: cython.Py_ssize_t
    for k in range(count):
        if names[12 * k] != n:
            continue
        for i in range(n):
            if names[12 * k + 1 + i] != p[at + i]:
                break
        else:
            return k
    return -1


@cython.cfunc
@cython.exceptval(check=False)
def _find_flag(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """Which flag of ours is the key of n bytes at p[at]? -1: none."""
    if n < 6 or not same(p, at, _FLAG_KEY, 4):
        return -1
    return _find(_FLAG_NAMES, _FLAGS, p, at + 4, n - 4)


@cython.cfunc
@cython.exceptval(check=False)
def _is_field(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Is the key of n bytes at p[at] one of the two user properties that are no headers?"""
    return (n == 5 and same(p, at, _TOPIC_KEY, 5)) or (n == 7 and same(p, at, _CONTENT_KEY, 7))


def _property(key: bytes, value: bytes) -> bytes:
    return len(key).to_bytes(2, "big") + key + len(value).to_bytes(4, "big") + value


@cython.final
@cython.cclass
class BosonBinaryScanner(Scanner):
    """boson-binary messages to rows."""

    topic_at: cython.int

    def __init__(self, dialect: str = "boson-binary", limits: Limits = Limits()) -> None:  # noqa: B008
        Scanner.__init__(self, dialect, limits)

    def error(self, at: int, reason: str, answer: bytes = b"") -> ProtocolError:
        """The error for a fault at byte `at` of the current buffer, answered in version 1."""
        body = _property(b"hbf.op", b"error") + _property(b"hbf.code", b"bad_request")
        body += _property(b"content", reason.encode())
        size = (2 + len(body)).to_bytes(4, "big")
        return Scanner.error(self, at, reason, b"\0\1" + size + body)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def start(self, table: FrameTable) -> cython.int:
        """The address of messages without one lies in the side buffer."""
        self.topic_at = table.side_at()
        table.side.put_bytes(DEFAULT_ADDRESS)
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
        row: cython.Py_ssize_t = table.count
        size: cython.longlong
        if end - at < 2:
            self.need = 2
            return 0
        if p[at] != 0 or p[at + 1] < 1 or p[at + 1] > 2:
            raise self.error(at, f"version {int16(p, at)}; there are only 1 and 2")
        if end - at < 6:
            self.need = 6
            return 0
        size = uint32(p, at + 2)
        if size > 0x7FFFFFFF:
            raise self.error(at + 2, f"a negative size, {size - (1 << 32)}")
        if size > self.max_message:
            raise self.error(at + 2, f"a size of {size}; at most {self.max_message}")
        if size < 2:
            raise self.error(at + 2, f"a size of {size}; the version alone has 2")
        if end - at < size + 4:
            self.need = size + 4
            return 0
        size += 4  # which does not count itself
        table.blank(row)
        table.frame_at[row] = at
        table.frame_len[row] = size
        table.op[row] = _PUBLISH
        if p[at + 1] == 2:
            table.flags[row] = _VERSION_2
        self._properties(p, at + 6, at + cython.cast(cython.Py_ssize_t, size), table)
        if table.op[row] == _PUBLISH and table.address_len[row] == 0:
            table.flags[row] |= _IMPLIED
            table.address_at[row] = self.topic_at
            table.address_len[row] = len(DEFAULT_ADDRESS)
        table.count = row + 1
        return cython.cast(cython.Py_ssize_t, size)

    @cython.cfunc
    def _properties(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        """Check the properties in p[at:end] and set the columns that they are."""
        row: cython.Py_ssize_t = table.count
        i: cython.Py_ssize_t = at
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        k: cython.int
        n: cython.longlong
        flag: cython.int
        bit: cython.int
        known: cython.int = 0
        others: cython.int = 0
        spent: cython.longlong = 0
        while i < end:
            if end - i < 6:
                raise self.error(i, f"{end - i} bytes left over behind the last property")
            k = int16(p, i)
            key = i + 2
            value = key + k + 4
            if k < 1:
                raise self.error(i, f"a key size of {k}; at least 1")
            if value > end:
                raise self.error(i, f"a key size of {k}; {end - i} bytes are left")
            n = uint32(p, value - 4)
            if n > end - value:
                if n > 0x7FFFFFFF:
                    raise self.error(value - 4, f"a negative value size, {n - (1 << 32)}")
                raise self.error(value - 4, f"a value size of {n}; {end - value} bytes are left")
            if k == 5 and same(p, key, _TOPIC_KEY, 5):
                bit = 1
                if n > self.max_address:
                    raise self.error(value, f"a topic of {n} bytes; at most {self.max_address}")
                if not is_utf8(p, value, n):
                    raise self.error(value, "a topic that is not UTF-8")
                table.address_at[row] = value
                table.address_len[row] = n
            elif k == 7 and same(p, key, _CONTENT_KEY, 7):
                bit = 2
                table.payload_at[row] = value
                table.payload_len[row] = n
            else:
                spent += 6 + k + n
                if spent > self.max_headers:
                    raise self.error(i, f"over {self.max_headers} bytes beside topic and content")
                flag = _find_flag(p, key, k)
                if flag < 0:
                    bit = 0
                    others += 1
                    if not is_utf8(p, key, k):
                        raise self.error(key, "a key that is not UTF-8")
                else:
                    bit = 4 << flag
                    self._flag(p, value, n, flag, table)
            if known & bit:
                raise self.error(key, "a duplicate key")
            known |= bit
            i = value + n
        if others > 1:
            self._refuse_duplicates(p, at, end, others)
        if others or known >> (2 + _PARAMETERS):
            table.flags[row] |= _UNREAD
        return 0

    @cython.cfunc
    def _flag(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        n: cython.int,
        flag: cython.int,
        table: FrameTable,
    ) -> cython.int:
        """Set the column that a flag is; all flags are text, some are numbers."""
        row: cython.Py_ssize_t = table.count
        i: cython.Py_ssize_t
        ttl: cython.longlong = 0
        if not is_utf8(p, at, n):
            raise self.error(at, "a flag that is not UTF-8")
        if flag == _HBF_OP:
            table.op[row] = max(_find(_OP_NAMES, _LAST_OP + 1, p, at, n), _UNKNOWN)
        elif flag == _HBF_ID:
            table.id_at[row] = at
            table.id_len[row] = n
        elif flag == _HBF_CORRELATION:
            table.correlation_at[row] = at
            table.correlation_len[row] = n
        elif flag == _HBF_TARGET:
            table.target_at[row] = at
            table.target_len[row] = n
        elif flag == _HBF_SOURCE:
            table.source_at[row] = at
            table.source_len[row] = n
        elif flag == _HBF_ACK:
            if n == 1 and p[at] == 49:
                table.flags[row] |= _ACK
        elif flag == _HBF_TTL:
            if n == 0:
                raise self.error(at, "a ttl is decimal digits")
            for i in range(at, at + n):
                if p[i] < _ZERO or p[i] > _NINE:
                    raise self.error(at, "a ttl is decimal digits")
                ttl = min(ttl * 10 + (p[i] - _ZERO), _MAX_TTL)
            table.ttl[row] = ttl
        elif flag == _HBF_TOKEN:
            table.flags[row] |= _SECRET
        elif flag == _HBF_PRIORITY:
            if n != 1 or p[at] | 1 != 49:
                raise self.error(at, "a priority is 0 or 1")
            table.priority[row] = p[at] - _ZERO
        return 0

    @cython.cfunc
    def _refuse_duplicates(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        others: cython.int,
    ) -> cython.int:
        """Refuse equal keys among those that are not ours."""
        i: cython.Py_ssize_t = at
        j: cython.Py_ssize_t
        k: cython.Py_ssize_t
        keys = set()
        while i < end:
            if others > _FEW:
                key = bytes(p[i + 2 : i + 2 + int16(p, i)])
                if key in keys:
                    raise self.error(i + 2, "a duplicate key")
                keys.add(key)
            else:
                j = at
                while j < i:
                    for k in range(2 + int16(p, j)):  # the key's size is compared first
                        if p[i + k] != p[j + k]:
                            break
                    else:
                        raise self.error(i + 2, "a duplicate key")
                    j = self._next(p, j)
            i = self._next(p, i)
        return 0

    @cython.cfunc
    @cython.exceptval(check=False)
    def _next(self, p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Where the property behind that at p[at] begins."""
        at += 2 + int16(p, at)
        return at + 4 + uint32(p, at)

    @cython.ccall
    def read_headers(self, table: FrameTable) -> None:
        """Bring the headers of rows marked UNREAD into the one form."""
        row: cython.Py_ssize_t
        for row in range(table.count):
            if table.flags[row] & _UNREAD:
                self._read_headers(table, row)

    @cython.cfunc
    def _read_headers(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        p: cython.p_const_uchar = table.payload_p
        side: Octets = table.side
        i: cython.Py_ssize_t = table.frame_at[row] + 6
        end: cython.Py_ssize_t = table.frame_at[row] + table.frame_len[row]
        value: cython.Py_ssize_t
        k: cython.int
        n: cython.Py_ssize_t
        flag: cython.int
        text: cython.bint
        names: cython.p_const_uchar = _PARAMETER_NAMES
        table.headers_at[row] = table.side_at()
        while i < end:
            k = int16(p, i)
            value = i + 6 + k
            n = uint32(p, value - 4)
            flag = _find_flag(p, i + 2, k)
            if flag >= _PARAMETERS:
                flag = 12 * (flag - _PARAMETERS)
                side.put_uint32(1 + names[flag])
                side.put_uint32(n)
                side.put_uint8(_DOLLAR)
                side.put(names, flag + 1, names[flag])
                side.put(p, value, n)
            elif flag < 0 and p[i + 2] != _DOLLAR and not _is_field(p, i + 2, k):
                text = is_utf8(p, value, n)
                side.put_uint32(k)
                side.put_uint32(n if text else 2 * n)
                side.put(p, i + 2, k)
                if text:
                    side.put(p, value, n)
                else:
                    side.put_hex(p, value, n)
            i = value + n
        table.headers_len[row] = table.headers_at[row] - table.side_at()
        table.flags[row] &= ~_UNREAD
        return 0


@cython.final
@cython.cclass
class BosonBinaryEncoder(Encoder):
    """Rows to boson-binary messages: the flags first, then topic, content and headers."""

    def __init__(self, dialect: str = "boson-binary", client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        op: cython.int = table.op[row]
        flags: cython.int = table.flags[row]
        implied: cython.bint = self.own and flags & _IMPLIED
        out: Octets = self.out
        start: cython.Py_ssize_t = out.size
        if op == _DIRECT:
            op = _PUBLISH  # with `hbf.target`: this dialect's form of a direct message
        elif op == _PUBLISH and table.address_len[row] == 0:
            return _SKIP_ADDRESS  # it would go to `boson`
        if op < _PUBLISH or op > _LAST_OP:
            return _SKIP_OP
        out.put_uint16(2 if self.own and flags & _VERSION_2 else 1)
        out.put_uint32(0)
        self._put_flags(table, row, op)
        if table.headers_len[row]:
            self._put_headers(table, row, True)
        if table.address_len[row] and not implied:
            out.put_uint16(5)
            out.put(_TOPIC_KEY, 0, 5)
            out.put_uint32(table.address_len[row])
            table.put(out, table.address_p, table.address_at[row], table.address_len[row])
        if table.payload_len[row] or (_WITH_CONTENT >> op & 1 and not implied):
            out.put_uint16(7)
            out.put(_CONTENT_KEY, 0, 7)
            out.put_uint32(table.payload_len[row])
            table.put(out, table.payload_p, table.payload_at[row], table.payload_len[row])
        if table.headers_len[row]:
            self._put_headers(table, row, False)
        if out.size - start - 4 > 0x7FFFFFFF:
            return _SKIP_PAYLOAD
        return out.set_uint32(start + 2, out.size - start - 4)

    @cython.cfunc
    def _put_flags(self, table: FrameTable, row: cython.Py_ssize_t, op: cython.int) -> cython.int:
        """The flags that are columns."""
        out: Octets = self.out
        names: cython.p_const_uchar = _OP_NAMES
        at: cython.Py_ssize_t
        if op != _PUBLISH:
            self._put_key(_HBF_OP, names[12 * op])
            out.put(names, 12 * op + 1, names[12 * op])
        if table.id_len[row]:
            self._put_key(_HBF_ID, 32 if table.raw_ids else table.id_len[row])
            table.put_id(out, row)
        if table.correlation_len[row]:
            self._put_key(_HBF_CORRELATION, table.correlation_len[row])
            at = table.correlation_at[row]
            table.put(out, table.correlation_p, at, table.correlation_len[row])
        if table.target_len[row]:
            self._put_key(_HBF_TARGET, table.target_len[row])
            table.put(out, table.target_p, table.target_at[row], table.target_len[row])
        if table.source_len[row]:
            self._put_key(_HBF_SOURCE, table.source_len[row])
            table.put(out, table.source_p, table.source_at[row], table.source_len[row])
        # A broker that delivers a message has answered its sender itself.
        if table.flags[row] & _ACK and (self.client or op != _PUBLISH):
            self._put_key(_HBF_ACK, 1)
            out.put_uint8(_ZERO + 1)
        if table.ttl[row] and not self.hops:
            self._put_key(_HBF_TTL, 0)
            at = out.size
            out.put_decimal(table.ttl[row])
            out.set_uint32(at - 4, out.size - at)
        if table.priority[row]:
            self._put_key(_HBF_PRIORITY, 1)
            out.put_uint8(_ZERO + 1)
        return 0

    @cython.cfunc
    def _put_key(self, flag: cython.int, n: cython.longlong) -> cython.int:
        """The key of a flag, and the size of its value."""
        names: cython.p_const_uchar = _FLAG_NAMES
        self.out.put_uint16(4 + names[12 * flag])
        self.out.put(_FLAG_KEY, 0, 4)
        self.out.put(names, 12 * flag + 1, names[12 * flag])
        return self.out.put_uint32(n)

    @cython.cfunc
    def _put_headers(
        self, table: FrameTable, row: cython.Py_ssize_t, flags: cython.bint
    ) -> cython.int:
        """The headers that are flags, or those that are the user's (decision 27)."""
        out: Octets = self.out
        p: cython.p_const_uchar = table.side.data
        at: cython.Py_ssize_t = -1 - table.headers_at[row]
        end: cython.Py_ssize_t = at + table.headers_len[row]
        key: cython.Py_ssize_t
        k: cython.longlong
        n: cython.longlong
        parameter: cython.int
        flag: cython.bint
        while at < end:
            k = uint32(p, at)
            n = uint32(p, at + 4)
            key = at + 8
            at = key + k + n
            if k == 0 or k > 0x7FFF:
                continue
            if p[key] == _DOLLAR:
                parameter = _find(_PARAMETER_NAMES, _FLAGS - _PARAMETERS, p, key + 1, k - 1)
                if flags and parameter >= 0:
                    self._put_key(_PARAMETERS + parameter, n)
                    out.put(p, key + k, n)
                continue
            flag = k > 2 and same(p, key, _FLAG_KEY, 3)
            if flag == flags and _find_flag(p, key, k) < 0 and not _is_field(p, key, k):
                out.put_uint16(k)
                out.put(p, key, k)
                out.put_uint32(n)
                out.put(p, key + k, n)
        return 0


def detect(head: bytes) -> str | None:
    """Tell boson-binary by its version, its size and the name of its first property."""
    if head[0] != 0 or head[1:2] not in (b"", b"\x01", b"\x02"):
        return NO
    if len(head) < 6:
        return None
    if not 2 <= int.from_bytes(head[2:6], "big") <= Limits().message:
        return NO
    if len(head) < 8:
        return None
    size = int.from_bytes(head[6:8], "big")
    seen = head[8 : 8 + size]
    if not 1 <= size <= 255 or not all(0x20 <= octet < 0x7F for octet in seen):
        return NO
    return "boson-binary" if len(seen) == size or len(head) == HEAD else None


def detect_in_family(head: bytes) -> str | None:
    """Tell the two Boson dialects apart."""
    return "boson-binary" if head[0] == 0 else boson_text.detect(head)
