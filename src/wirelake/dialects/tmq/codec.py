"""TMQ 1.00 and 1.01: `flags, type, ttl, lengths, content type, ids, payload`, from seed 004.

Rules that are not plain from the code:
- The two versions differ in the payload length only (spec: tmq 2): seven bits an octet in 1.00, one
  octet or a marker and a wider integer in 1.01. All else of one version survives in the other: an
  encoder asks whether rows have `hops`, that is, are of either version.
- Numbers of 1.01 are big-endian or little-endian (spec: tmq 2): the first Hello of a stream tells,
  or the broker's answer to it (decision 65). Until then, and without either, they are big-endian.
- A delivery message refuses where its payload is FAILED or TIMEOUT, in any case (spec: tmq 7).
- A stream that begins with `TMQ/` begins with the handshake (decision 24). Waiting for its eight
  bytes holds nothing up: no frame is shorter.
- Ping and pong are constants (spec: tmq 3). Their second byte, FF, is neither flags nor a ttl:
  their rows have an op and nothing else (decision 23).
- The target id is the address in channel, delivery and server messages 601 to 620, and the target
  in all others (decision 9).
- The ttl is a hop count, so a message of another dialect starts with 16 of them (decision 10).
- DE of a channel message asks a broker for an acknowledgement on its way in. On its way out it
  says that the queue wants one (spec: tmq 5), which is the op `deliver`.
"""

from __future__ import annotations

import cython

from wirelake.message import Flag, Limits, Op

if cython.compiled:
    from cython.cimports.wirelake.wire.codec import Encoder, Scanner
    from cython.cimports.wirelake.wire.octets import Octets, is_utf8, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.codec import Encoder, Scanner
    from wirelake.wire.octets import Octets, is_utf8, uint32
    from wirelake.wire.table import FrameTable

from wirelake.dialects.dialect import NO
from wirelake.dialects.tmq import codes
from wirelake.errors import ProtocolError
from wirelake.wire import codec

#: The handshake of each dialect, and what a broker answers to any other.
GREETINGS = {"tmq-1.00": b"TMQ/1.00", "tmq-1.01": b"TMQ/1.01"}
HIGHEST = b"TMQ/1.01"

PING = bytes.fromhex("89ff000000000000")
#: The bit that tells the first receiver of a message (FA), in a frame's first byte.
FIRST = 0x80

PONG = bytes.fromhex("8aff000000000000")

#: The ops that tell the byte order: Hello, and the answer to it, as a table's column has them.
_TELLING = tuple(int(op).to_bytes(4, "little") for op in (Op.HELLO, Op.OK))

_HOPS = cython.declare(cython.int, 16)
_MAX_HOPS = cython.declare(cython.int, 63)

# The content types that tell the byte order, when they are read as big-endian.
_HELLO = cython.declare(cython.int, codes.HELLO)
_ACCEPTED = cython.declare(cython.int, codes.ACCEPTED)
_LITTLE_HELLO = cython.declare(cython.int, codes.HELLO << 8)
_LITTLE_ACCEPTED = cython.declare(cython.int, codes.ACCEPTED << 8)

_FIRST_ADDRESS = cython.declare(cython.int, codes.WITH_ADDRESS.start)
_LAST_ADDRESS = cython.declare(cython.int, codes.WITH_ADDRESS.stop - 1)

_PING_TYPE = cython.declare(cython.int, 0x09)
_PONG_TYPE = cython.declare(cython.int, 0x0A)
_SERVER_TYPE = cython.declare(cython.int, 0x10)
_CHANNEL_TYPE = cython.declare(cython.int, 0x11)
_DELIVERY_TYPE = cython.declare(cython.int, 0x13)
_RESPONSE_TYPE = cython.declare(cython.int, 0x14)

_FA = cython.declare(cython.int, FIRST)
_PR = cython.declare(cython.int, 0x40)
_RS = cython.declare(cython.int, 0x80)
_DE = cython.declare(cython.int, 0x40)

_ACK_FLAG = cython.declare(cython.int, Flag.ACK)
_RESPONSE_FLAG = cython.declare(cython.int, Flag.RESPONSE)
_FIRST_FLAG = cython.declare(cython.int, Flag.FIRST)
_UNKNOWN = cython.declare(cython.int, Op.UNKNOWN)
_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_REQUEST = cython.declare(cython.int, Op.REQUEST)
_REPLY = cython.declare(cython.int, Op.REPLY)
_ENQUEUE = cython.declare(cython.int, Op.ENQUEUE)
_DELIVER = cython.declare(cython.int, Op.DELIVER)
_ACK = cython.declare(cython.int, Op.ACK)
_NACK = cython.declare(cython.int, Op.NACK)
_PING = cython.declare(cython.int, Op.PING)
_PONG = cython.declare(cython.int, Op.PONG)
_ERROR = cython.declare(cython.int, Op.ERROR)
_HANDSHAKE = cython.declare(cython.int, Op.HANDSHAKE)
_SERVER = cython.declare(cython.int, Op.SERVER)
_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)
_SKIP_ID = cython.declare(cython.int, codec.SKIP_ID)

_OPS = codes.OPS
_SERVER_OPS = codes.SERVER_OPS
_TYPES = codes.TYPES
_CONTENT_TYPES = codes.CONTENT_TYPES


@cython.cfunc
@cython.exceptval(check=False)
def _has_address(kind: cython.int, content_type: cython.int) -> cython.bint:
    """Is the target of such a frame an address?"""
    if kind == _SERVER_TYPE:
        return _FIRST_ADDRESS <= content_type <= _LAST_ADDRESS
    return kind in (_CHANNEL_TYPE, _DELIVERY_TYPE)


@cython.cfunc
@cython.exceptval(check=False)
def _refuses(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Is the payload of a delivery message FAILED or TIMEOUT?"""
    if n == 6:
        return _is_word(p, at, b"failed", 6)
    return n == 7 and _is_word(p, at, b"timeout", 7)


@cython.cfunc
@cython.exceptval(check=False)
def _is_word(
    p: cython.p_const_uchar,
    at: cython.Py_ssize_t,
    word: cython.p_const_uchar,
    n: cython.Py_ssize_t,
) -> cython.bint:
    """Are the n bytes at p[at] these small letters, in any case?"""
    i: cython.Py_ssize_t = 0
    while i < n and (p[at + i] | 32) == word[i]:
        i += 1
    return i == n


@cython.cfunc
@cython.exceptval(check=False)
def _uint32_little(p: cython.p_const_uchar, at: cython.Py_ssize_t) -> cython.longlong:
    """Four bytes, little-endian, unsigned."""
    high: cython.longlong = (p[at + 3] << 8) | p[at + 2]
    return (high << 16) | (p[at + 1] << 8) | p[at]


@cython.final
@cython.cclass
class TmqScanner(Scanner):
    """TMQ frames to rows; it knows how far the opening of a stream has come.

    `greeted` is true once the greeting was read, which is the first row of a stream or none;
    `little` where numbers are little-endian, once that was `told`, by Hello or the answer to it.
    """

    grouped: cython.bint
    size: cython.longlong
    greeted = cython.declare(cython.bint, visibility="readonly")
    little = cython.declare(cython.bint, visibility="readonly")
    told = cython.declare(cython.bint, visibility="readonly")

    def __init__(self, dialect: str = "tmq-1.01", limits: Limits = Limits()) -> None:  # noqa: B008
        Scanner.__init__(self, dialect, limits)
        self.grouped = dialect == "tmq-1.00"  # a payload length in groups of seven bits
        self.size = 0  # the payload length that was read last
        self.greeted = False
        self.little = False
        self.told = self.grouped  # 1.00 has one order

    def variant(self) -> str | None:
        """`little` where numbers are little-endian; Hello tells, or the answer to it."""
        if not self.told:
            return None
        return "little" if self.little else ""

    def variant_before(self, table: FrameTable, row: int) -> str | None:
        """Return the byte order that was told before a row."""
        if self.grouped or not self.told:
            return self.variant()
        ops = memoryview(table.op)[:row].tobytes()
        # Ops are small numbers, so these four bytes cannot be parts of two of them.
        return self.variant() if any(op in ops for op in _TELLING) else None

    def set_variant(self, variant: str) -> None:
        """Read numbers in this byte order, as a Hello told that this scanner has not seen."""
        if variant not in ("", "little") or (variant and self.grouped):
            raise ValueError(f"{self.dialect} has no variant {variant!r}")
        self.little = variant == "little"
        self.told = True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        kind: cython.int
        content_type: cython.int
        width: cython.int
        flags: cython.int
        ahead: cython.int
        has_address: cython.bint
        row: cython.Py_ssize_t = table.count
        if at == 0 and self.offset == 0 and not self.midway and self._greets(p, end):
            return self._handshake(p, end, table)
        if end - at < 8:
            self.need = 8
            return 0
        kind = p[at] & 63
        content_type = (p[at + 5] << 8) | p[at + 6]
        if kind == _SERVER_TYPE and not self.told:
            self._look_for_order(content_type)
        if self.little:
            content_type = (p[at + 6] << 8) | p[at + 5]
        has_address = _has_address(kind, content_type)
        identity: cython.int = p[at + 2]
        source: cython.int = p[at + 3]
        target: cython.int = p[at + 4]
        if has_address and target > self.max_address:
            raise self.error(at + 4, f"an address of {target} bytes; at most {self.max_address}")
        width = self._read_groups(p, at, end) if self.grouped else self._read_size(p, at, end)
        if width == 0:
            return 0
        if self.size > self.max_message:
            raise self._too_long(at, self.size)
        ahead = 7 + width + identity + source + target
        if end - at - ahead < self.size:
            self.need = ahead + self.size
            return 0
        n: cython.int = cython.cast(cython.int, self.size)
        id_at: cython.int = at + 7 + width
        source_at: cython.int = id_at + identity
        target_at: cython.int = source_at + source
        if identity and not is_utf8(p, id_at, identity):
            raise self.error(id_at, "a message id that is not UTF-8")
        if source and not is_utf8(p, source_at, source):
            raise self.error(source_at, "a source id that is not UTF-8")
        if target and not is_utf8(p, target_at, target):
            raise self.error(target_at, "a target id that is not UTF-8")
        flags = (
            (_FIRST_FLAG if p[at] & _FA else 0)
            | (_RESPONSE_FLAG if p[at + 1] & _RS else 0)
            | (_ACK_FLAG if p[at + 1] & _DE else 0)
        )
        table.frame_at[row] = at
        table.frame_len[row] = ahead + n
        if kind == _CHANNEL_TYPE:
            table.op[row] = _PUBLISH
        elif kind == _DELIVERY_TYPE:
            table.op[row] = _NACK if _refuses(p, at + ahead, n) else _ACK
        else:
            table.op[row] = self._op(kind, content_type)
        table.flags[row] = flags
        table.priority[row] = 1 if p[at] & _PR else 0
        table.ttl[row] = p[at + 1] & _MAX_HOPS
        table.content_type[row] = content_type
        table.headers_len[row] = 0
        table.id_at[row] = table.correlation_at[row] = id_at
        table.id_len[row] = identity
        if kind == _RESPONSE_TYPE or (kind == _CHANNEL_TYPE and flags & _RESPONSE_FLAG):
            table.correlation_len[row] = identity
        else:
            table.correlation_len[row] = 0
        table.source_at[row] = source_at
        table.source_len[row] = source
        table.address_at[row] = table.target_at[row] = target_at
        table.address_len[row] = target if has_address else 0
        table.target_len[row] = 0 if has_address else target
        table.payload_at[row] = at + ahead
        table.payload_len[row] = n
        if kind in (_PING_TYPE, _PONG_TYPE):
            table.blank(row)
        table.count = row + 1
        return ahead + n

    @cython.cfunc
    def _op(self, kind: cython.int, content_type: cython.int) -> cython.int:
        if kind == _SERVER_TYPE:
            return _SERVER_OPS.get(content_type, _SERVER)
        return _OPS.get(kind, _UNKNOWN)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _look_for_order(self, content_type: cython.int) -> cython.void:
        """Take the byte order from a server message, if it is Hello or the answer to Hello."""
        if content_type in (_LITTLE_HELLO, _LITTLE_ACCEPTED):
            self.little = self.told = True
        elif content_type in (_HELLO, _ACCEPTED):
            self.told = True

    @cython.cfunc
    def _read_groups(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Set `size`, version 1.00; return how many octets it took, 0 where some are missing."""
        width: cython.int = 0
        octet: cython.longlong
        size: cython.longlong = 0
        while True:
            if at + 7 + width == end:
                self.need = 8 + width
                return 0
            octet = p[at + 7 + width]
            size |= (octet & 127) << (7 * width)
            width += 1
            if octet < 128:
                break
            if width == 9:
                raise self.error(at + 7, "a payload length of more than 9 octets")
        if octet == 0 and width > 1:
            raise self.error(at + 7, "a payload length that is not in its shortest form")
        self.size = size
        return width

    @cython.cfunc
    def _read_size(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.int:
        """Set `size`, version 1.01; return how many octets it took, 0 where some are missing."""
        more: cython.int
        if p[at + 7] < 253:
            self.size = p[at + 7]
            return 1
        more = 2 << (p[at + 7] - 253)
        if end - at < 8 + more:
            self.need = 8 + more
            return 0
        if more == 2:
            self.size = (p[at + 8] << 8) | p[at + 9]
            if self.little:
                self.size = (p[at + 9] << 8) | p[at + 8]
        elif more == 4:
            self.size = _uint32_little(p, at + 8) if self.little else uint32(p, at + 8)
        elif p[at + 15 if self.little else at + 8] > 127:  # beyond the 63 bits of `size`
            octets = bytes(p[at + 8 : at + 16])
            raise self._too_long(at, int.from_bytes(octets, "little" if self.little else "big"))
        elif self.little:
            self.size = (_uint32_little(p, at + 12) << 32) | _uint32_little(p, at + 8)
        else:
            self.size = (uint32(p, at + 8) << 32) | uint32(p, at + 12)
        return 1 + more

    def _too_long(self, at: int, size: int) -> Exception:
        return self.error(at + 7, f"a payload length of {size}; at most {self.max_message}")

    @cython.cfunc
    def _greets(self, p: cython.p_const_uchar, end: cython.Py_ssize_t) -> cython.bint:
        """Can what the stream begins with be the handshake?"""
        return b"TMQ/".startswith(bytes(p[0 : min(end, 4)]))

    @cython.cfunc
    def _handshake(
        self, p: cython.p_const_uchar, end: cython.Py_ssize_t, table: FrameTable
    ) -> cython.Py_ssize_t:
        if end < 8:
            self.need = 8
            return 0
        greeting = bytes(p[0:8])
        if greeting != GREETINGS[self.dialect]:
            version = greeting[4:].decode("latin-1")
            if greeting not in GREETINGS.values():
                raise self.error(4, f"TMQ version {version!a} is not known", HIGHEST)
            raise self.error(4, f"this is TMQ {version}, not {self.dialect.removeprefix('tmq-')}")
        table.blank(0)
        table.frame_at[0] = 0
        table.frame_len[0] = 8
        table.op[0] = _HANDSHAKE
        table.count = 1
        self.greeted = True
        return 8


@cython.final
@cython.cclass
class TmqEncoder(Encoder):
    """Rows to TMQ frames."""

    grouped: cython.bint
    begun: cython.bint
    little: cython.bint
    first = cython.declare(cython.bint, visibility="public")

    def __init__(self, dialect: str = "tmq-1.01", client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)
        self.grouped = dialect == "tmq-1.00"
        self.begun = False  # something was written, so a handshake has no place any more
        self.little = False
        self.first = False  # what is delivered goes to its first receiver

    def set_variant(self, variant: str) -> None:
        """Write numbers big-endian, or little-endian (`little`, spec: tmq 2)."""
        if variant not in ("", "little"):
            raise ValueError(f"{self.dialect} has no variant {variant!r}")
        self.variant = variant
        self.little = variant == "little"

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        op: cython.int = table.op[row]
        out: Octets = self.out
        kind: cython.int = _CHANNEL_TYPE
        content_type: cython.int = table.content_type[row]
        ttl: cython.int = table.ttl[row] if self.hops else _HOPS
        response: cython.bint = table.flags[row] & _RESPONSE_FLAG
        delivery: cython.bint = table.flags[row] & _ACK_FLAG
        instead: cython.int = -1  # so many bytes of FAILED in place of the payload, if not -1
        if op in (_PUBLISH, _ENQUEUE, _REQUEST):
            response = response or op == _REQUEST
            delivery = delivery and self.client
        elif op == _DELIVER:
            delivery = True
        elif op in (_PING, _PONG, _HANDSHAKE):
            if op == _HANDSHAKE and self.begun:
                return _SKIP_OP  # later in a stream nobody would take it for one
            out.put_bytes(PING if op == _PING else PONG if op == _PONG else GREETINGS[self.dialect])
            self.begun = True
            return 0
        else:
            kind = _TYPES.get(op, -1)
            if kind < 0:
                return _SKIP_OP
            if kind == _SERVER_TYPE:
                content_type = self._content_type(table, row)
                if not self.hops:  # an answer is wanted, and a server message has it by RS
                    response = delivery
                    delivery = False
            elif kind == _DELIVERY_TYPE and (op == _NACK) != self._refuses(table, row):
                # The payload of such a message tells a refusal from an acknowledgement.
                instead = 6 if op == _NACK else 0

        if kind == _CHANNEL_TYPE and self.hops and not self.client:
            ttl = (ttl if ttl else _HOPS) - 1  # a broker that forwards takes one off

        id_p: cython.p_const_uchar = table.id_p
        id_at: cython.int = table.id_at[row]
        id_len: cython.int = table.id_len[row]
        raw_id: cython.bint = table.raw_ids and id_len > 0
        if op in (_REQUEST, _REPLY) and table.correlation_len[row]:
            id_p = table.correlation_p
            id_at = table.correlation_at[row]
            id_len = table.correlation_len[row]
            raw_id = False
        elif raw_id:
            id_len = 32
        target_p: cython.p_const_uchar = table.target_p
        target_at: cython.int = table.target_at[row]
        target_len: cython.int = table.target_len[row]
        if _has_address(kind, content_type):
            target_p = table.address_p
            target_at = table.address_at[row]
            target_len = table.address_len[row]
            if target_len > 255:
                return _SKIP_ADDRESS
        source_len: cython.int = table.source_len[row]
        relayed: cython.bint = kind == _CHANNEL_TYPE and not self.client and len(self.origin) > 0
        if relayed:
            source_len = len(self.origin)
        if id_len > 255 or source_len > 255 or target_len > 255:
            return _SKIP_ID
        self.begun = True

        if kind == _CHANNEL_TYPE and not self.client:
            self.mark(out.size)  # for FA, which only the first receiver gets
        out.put_uint8(
            kind
            | (_FA if self._is_first(table, row, kind) else 0)
            | (_PR if table.priority[row] else 0)
        )
        out.put_uint8(
            max(0, min(ttl, _MAX_HOPS)) | (_RS if response else 0) | (_DE if delivery else 0)
        )
        out.put_uint8(id_len)
        out.put_uint8(source_len)
        out.put_uint8(target_len)
        if self.little:
            self._put_uint16(content_type)
        else:
            out.put_uint16(content_type)
        self._put_size(table.payload_len[row] if instead < 0 else instead)
        if raw_id:
            table.put_id(out, row)
        elif id_len:
            table.put(out, id_p, id_at, id_len)
        if relayed:
            out.put_bytes(self.origin)
        elif source_len:
            table.put(out, table.source_p, table.source_at[row], source_len)
        if target_len:
            table.put(out, target_p, target_at, target_len)
        if instead >= 0:
            return out.put(b"FAILED", 0, instead)
        return table.put(out, table.payload_p, table.payload_at[row], table.payload_len[row])

    @cython.cfunc
    def _refuses(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
        """Would a delivery message with the payload of this row be read as a refusal?"""
        at: cython.int = table.payload_at[row]
        if at < 0:
            return _refuses(table.side.data, -1 - at, table.payload_len[row])
        return _refuses(table.payload_p, at, table.payload_len[row])

    @cython.cfunc
    def _is_first(self, table: FrameTable, row: cython.Py_ssize_t, kind: cython.int) -> cython.bint:
        """FA: what the sender wrote, but in what a broker delivers, the broker's word."""
        if kind == _CHANNEL_TYPE and not self.client:
            return self.first
        return table.flags[row] & _FIRST_FLAG != 0

    @cython.cfunc
    def _content_type(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """What a server message asks or says."""
        op: cython.int = table.op[row]
        content_type: cython.int = table.content_type[row]
        if op != _ERROR:
            return _CONTENT_TYPES.get(op, content_type)
        if _SERVER_OPS.get(content_type) == _ERROR:
            return content_type
        return codes.refusal(table.parameters(row).code)

    @cython.cfunc
    def _put_size(self, size: cython.int) -> cython.int:
        """The payload length, in its shortest form."""
        out: Octets = self.out
        if self.grouped:
            while size > 127:
                out.put_uint8(128 | (size & 127))
                size >>= 7
            return out.put_uint8(size)
        if size < 253:
            return out.put_uint8(size)
        if size < 0x10000:
            out.put_uint8(253)
            return self._put_uint16(size)
        out.put_uint8(254)
        if self.little:
            self._put_uint16(size & 0xFFFF)
            return self._put_uint16(size >> 16)
        return out.put_uint32(size)

    @cython.cfunc
    def _put_uint16(self, value: cython.int) -> cython.int:
        """Two bytes in the order of this connection."""
        if self.little and not self.grouped:
            value = ((value & 255) << 8) | (value >> 8)
        return self.out.put_uint16(value)


def detect(head: bytes) -> str | None:
    """Tell TMQ, and which version, by its greeting; an unknown version is refused by name."""
    if not head.startswith(b"TMQ"[: len(head)]):
        return NO
    if len(head) < 8:
        return None
    for dialect, greeting in GREETINGS.items():
        if head.startswith(greeting):
            return dialect
    unknown = head[:8].decode("latin-1")
    raise ProtocolError("tmq", 0, f"the version of {unknown!a} is not known", HIGHEST)
