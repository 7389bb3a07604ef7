"""MQTT 3.1.1 and 5, writing: rows to packets, and what differs from receiver to receiver.

A broker encodes a run of messages once for all receivers of a form. A form of MQTT is a version
with the highest quality of service that a subscription asked for, and `r` where it wants the mark
of retained messages as it was published: `mqtt-5+1r`. Packet identifiers are a receiver's own; they
are 0 in frames of a form, and `Personal` writes them. It also adds a subscription's identifier.
"""

from __future__ import annotations

from array import array

import cython

from wirelake.dialects.mqtt import codes
from wirelake.dialects.mqtt.scanner import ONCE
from wirelake.message import Flag, Op
from wirelake.wire import codec
from wirelake.wire.parameters import TOKEN

if cython.compiled:
    from cython.cimports.wirelake.wire.codec import Encoder
    from cython.cimports.wirelake.wire.octets import Octets, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.codec import Encoder
    from wirelake.wire.octets import Octets, same, uint32
    from wirelake.wire.table import FrameTable

_FIVE = "mqtt-5"
_MAX_SIZE = cython.declare(cython.longlong, 268_435_455)
_MOST_TEXT = cython.declare(cython.int, 0xFFFF)

_ACK_FLAG = cython.declare(cython.int, Flag.ACK)
_MORE_FLAG = cython.declare(cython.int, Flag.MORE)
_TEXT_FLAG = cython.declare(cython.int, Flag.TEXT)
_ONCE = cython.declare(cython.int, ONCE)

_OP_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_OP_ENQUEUE = cython.declare(cython.int, Op.ENQUEUE)
_OP_DELIVER = cython.declare(cython.int, Op.DELIVER)
_OP_SUBSCRIBE = cython.declare(cython.int, Op.SUBSCRIBE)
_OP_UNSUBSCRIBE = cython.declare(cython.int, Op.UNSUBSCRIBE)
_OP_ACK = cython.declare(cython.int, Op.ACK)
_OP_OK = cython.declare(cython.int, Op.OK)
_OP_PING = cython.declare(cython.int, Op.PING)
_OP_PONG = cython.declare(cython.int, Op.PONG)
_OP_AUTH = cython.declare(cython.int, Op.AUTH)
_OP_HELLO = cython.declare(cython.int, Op.HELLO)
_OP_HANDSHAKE = cython.declare(cython.int, Op.HANDSHAKE)
_OP_TERMINATE = cython.declare(cython.int, Op.TERMINATE)

_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)
_SKIP_PAYLOAD = cython.declare(cython.int, codec.SKIP_PAYLOAD)
_SKIP_ID = cython.declare(cython.int, codec.SKIP_ID)

_PUBLISH = cython.declare(cython.int, codes.Packet.PUBLISH)
_PUBACK = cython.declare(cython.int, codes.Packet.PUBACK)
_PUBREC = cython.declare(cython.int, codes.Packet.PUBREC)
_PUBREL = cython.declare(cython.int, codes.Packet.PUBREL)
_PUBCOMP = cython.declare(cython.int, codes.Packet.PUBCOMP)
_SUBACK = cython.declare(cython.int, codes.Packet.SUBACK)
_UNSUBACK = cython.declare(cython.int, codes.Packet.UNSUBACK)
_CONNECT = cython.declare(cython.int, codes.Packet.CONNECT)
_CONNACK = cython.declare(cython.int, codes.Packet.CONNACK)
_DISCONNECT = cython.declare(cython.int, codes.Packet.DISCONNECT)
_AUTH = cython.declare(cython.int, codes.Packet.AUTH)
_SUBSCRIBE = cython.declare(cython.int, codes.Packet.SUBSCRIBE)
_UNSUBSCRIBE = cython.declare(cython.int, codes.Packet.UNSUBSCRIBE)

_MOST_SECONDS = cython.declare(cython.longlong, (2**31 - 1) // 1000)

#: The properties that encoders write from headers: number, form and packets, by their header.
_BY_HEADER = {
    b"mqtt." + name.encode(): (number, kind, where)
    for number, (name, kind, where) in codes.PROPERTIES.items()
    if name not in ("format", "alias", "user", "subscription")
}
_QOS = b"mqtt.qos"
_OWN_PREFIX = b"mqtt."


@cython.cfunc
@cython.exceptval(check=False)
def _has_nul(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    i: cython.Py_ssize_t = at
    while i < at + n and p[i]:
        i += 1
    return i < at + n


@cython.cfunc
def _put_varint(out: Octets, value: cython.longlong) -> cython.int:
    while value > 127:
        out.put_uint8((value & 127) | 128)
        value >>= 7
    return out.put_uint8(value)


@cython.cfunc
def _put_binary(out: Octets, value: bytes) -> cython.int:
    out.put_uint16(len(value))
    out.put_bytes(value)
    return 0


@cython.final
@cython.cclass
class MqttEncoder(Encoder):
    """Rows to MQTT packets."""

    five: cython.bint
    most_qos: cython.int
    keeps_retain: cython.bint
    #: Write the header `mqtt.subscription`, which only a broker may say, and to one receiver.
    tells_subscriptions = cython.declare(cython.bint, visibility="public")
    scratch: Octets
    qos: cython.int  # of the publish that is being written
    retain: cython.int

    def __init__(self, dialect: str = _FIVE, client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)
        self.five = dialect == _FIVE
        self.most_qos = 2
        self.keeps_retain = client
        self.tells_subscriptions = False
        self.scratch = Octets(64)
        self.qos = 0
        self.retain = 0

    def set_variant(self, variant: str) -> None:
        """Write for a subscription: `0`, `1` or `2`, and `r` where it keeps the retain mark."""
        if variant not in ("", "0", "1", "2", "0r", "1r", "2r"):
            raise ValueError(f"{self.dialect} has no variant {variant!r}")
        self.variant = variant
        self.most_qos = int(variant[0]) if variant else 2
        self.keeps_retain = self.client or variant.endswith("r")

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        op: cython.int = table.op[row]
        out: Octets = self.out
        if op in (_OP_PUBLISH, _OP_ENQUEUE, _OP_DELIVER):
            return self._publish(table, row)
        if op in (_OP_PING, _OP_PONG):
            out.put_uint8(0xC0 if op == _OP_PING else 0xD0)
            return out.put_uint8(0)
        if op == _OP_ACK:
            return self._acknowledge(table, row)
        if op in (_OP_SUBSCRIBE, _OP_UNSUBSCRIBE):
            return self._filters(table, row)
        if op == _OP_OK:
            return self._answer(table, row)
        if op in (_OP_HELLO, _OP_TERMINATE, _OP_AUTH):
            return self._told(table, row)
        if op == _OP_HANDSHAKE:
            return self._connect(table, row)
        return _SKIP_OP

    # Publishes

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _publish(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        out: Octets = self.out
        n: cython.int = table.address_len[row]
        at: cython.int = table.address_at[row]
        payload: cython.longlong = table.payload_len[row]
        size: cython.longlong
        properties: cython.longlong = 0
        if n == 0 or n > _MOST_TEXT:
            return _SKIP_ADDRESS
        if at < 0:
            if _has_nul(table.side.data, -1 - at, n):
                return _SKIP_ADDRESS
        elif not self.own and _has_nul(table.address_p, at, n):
            return _SKIP_ADDRESS
        if table.correlation_len[row] > _MOST_TEXT:
            return _SKIP_ID
        self.qos = 1 if table.flags[row] & _ACK_FLAG or table.op[row] == _OP_DELIVER else 0
        self.retain = 0
        self.scratch.size = 0
        if table.headers_len[row] or self.five:
            self._publish_properties(table, row)
        properties = self.scratch.size
        if self.qos > self.most_qos:
            self.qos = self.most_qos
        if self.client and not table.ticket[row]:
            # Without an identifier of its own a message of QoS 2 would pass for one sent again.
            self.qos = 1 if table.flags[row] & _ACK_FLAG else 0
        size = 2 + n + payload
        if self.qos:
            size += 2
        if self.five:
            size += 1 + properties
            if properties > 127:
                size += 1 if properties < 16_384 else 2 if properties < 2_097_152 else 3
        if size > _MAX_SIZE:
            return _SKIP_PAYLOAD
        out.put_uint8(0x30 | (self.qos << 1) | (self.retain if self.keeps_retain else 0))
        _put_varint(out, size)
        out.put_uint16(n)
        table.put(out, table.address_p, at, n)
        if self.qos:
            out.put_uint16(table.ticket[row] or (1 if self.client else 0))
        if self.five:
            _put_varint(out, properties)
            if properties:
                out.put(self.scratch.data, 0, properties)
        return table.put(
            out, table.payload_p, table.payload_at[row], cython.cast(cython.int, payload)
        )

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _publish_properties(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """Write the properties of a publish into `scratch`; find its quality of service."""
        out: Octets = self.scratch
        seconds: cython.longlong
        at: cython.Py_ssize_t = -1 - table.headers_at[row]
        end: cython.Py_ssize_t = at + table.headers_len[row]
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        qos: bytes = _QOS
        p: cython.p_const_uchar = table.side.data
        if self.five:
            if table.flags[row] & _TEXT_FLAG:
                out.put_uint16(0x0101)
            if table.ttl[row] > 0 and not self.hops:
                seconds = (cython.cast(cython.longlong, table.ttl[row]) + 999) // 1000
                out.put_uint8(0x02)
                out.put_uint32(seconds if seconds < _MOST_SECONDS else _MOST_SECONDS)
            if table.correlation_len[row]:
                out.put_uint8(0x09)
                out.put_uint16(table.correlation_len[row])
                table.put(
                    out, table.correlation_p, table.correlation_at[row], table.correlation_len[row]
                )
        while at < end:
            key = uint32(p, at)
            value = uint32(p, at + 4)
            at += 8
            if key == 8 and value == 1 and same(p, at, qos, 8):
                if 48 <= p[at + 8] <= 50:
                    self.qos = p[at + 8] - 48
            else:
                self._header(table, at, key, value, _PUBLISH)
            at += key + value
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _header(
        self,
        table: FrameTable,
        at: cython.Py_ssize_t,
        key: cython.Py_ssize_t,
        value: cython.Py_ssize_t,
        packet: cython.int,
    ) -> cython.int:
        """Write a header as a property into `scratch`, if it can be one in this packet."""
        out: Octets = self.scratch
        p: cython.p_const_uchar = table.side.data
        own: bytes = _OWN_PREFIX
        if key and p[at] == 0x24:
            return 0
        if key < 5 or not same(p, at, own, 5):
            if not self.five or key > _MOST_TEXT or value > _MOST_TEXT:
                return 0
            if _has_nul(p, at, key + value):
                return 0
            out.put_uint8(0x26)
            out.put_uint16(key)
            out.put(p, at, key)
            out.put_uint16(value)
            return out.put(p, at + key, value)
        name = bytes(p[at : at + key])
        text = bytes(p[at + key : at + key + value])
        if name == b"mqtt.retain":
            self.retain = 1 if text == b"1" else 0
        elif self.tells_subscriptions and self.five and name == b"mqtt.subscription":
            out.put_uint8(0x0B)
            _put_varint(out, int(text))
        elif self.five and name in _BY_HEADER:
            self._own_header(name, text, packet)
        return 0

    @cython.cfunc
    def _own_header(self, name: bytes, text: bytes, packet: cython.int) -> cython.int:
        """Write a header that is a property; one with a text that is no value of it is left out."""
        out: Octets = self.scratch
        number, kind, where = _BY_HEADER[name]
        if packet not in where:
            return 0
        if kind in (codes.TEXT, codes.BINARY):
            if kind == codes.BINARY:
                try:
                    text = bytes.fromhex(text.decode())
                except ValueError:
                    return 0
            elif b"\0" in text:
                return 0
            if len(text) <= 0xFFFF:
                out.put_uint8(number)
                _put_binary(out, text)
            return 0
        width = 1 if kind == codes.OCTET else 2 if kind == codes.UINT16 else 4
        most = 1 if kind == codes.OCTET else (1 << (8 * width)) - 1
        if text.isdigit() and len(text) <= 10 and int(text) <= most:
            out.put_uint8(number)
            out.put_bytes(int(text).to_bytes(width, "big"))
        return 0

    # Everything else

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _properties(
        self, table: FrameTable, row: cython.Py_ssize_t, packet: cython.int
    ) -> cython.int:
        """Write the headers of a row as properties into `scratch`."""
        at: cython.Py_ssize_t = -1 - table.headers_at[row]
        end: cython.Py_ssize_t = at + table.headers_len[row]
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        self.scratch.size = 0
        if table.headers_len[row] == 0 or not self.five:
            return 0
        while at < end:
            key = uint32(table.side.data, at)
            value = uint32(table.side.data, at + 4)
            self._header(table, at + 8, key, value, packet)
            at += 8 + key + value
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _put_properties(self, out: Octets) -> cython.int:
        if self.five:
            _put_varint(out, self.scratch.size)
            out.put(self.scratch.data, 0, self.scratch.size)
        return 0

    @cython.cfunc
    def _close(self, octet: cython.int, body: Octets) -> cython.int:
        """Append a packet of this first octet and this body."""
        if body.size > _MAX_SIZE:
            return _SKIP_PAYLOAD
        self.out.put_uint8(octet)
        _put_varint(self.out, body.size)
        return self.out.put(body.data, 0, body.size)

    @cython.cfunc
    def _acknowledge(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        kind: cython.int = table.content_type[row]
        body: Octets
        if not _PUBACK <= kind <= _PUBCOMP:
            return _SKIP_OP
        if not table.ticket[row]:
            return _SKIP_ID
        body = Octets(16)
        body.put_uint16(table.ticket[row])
        self._properties(table, row, kind)
        if self.five and (table.payload_len[row] or self.scratch.size):
            code = table.payload(row)[:1] or b"\0"
            body.put_bytes(code)
            if self.scratch.size:
                self._put_properties(body)
        return self._close((kind << 4) | (2 if kind == _PUBREL else 0), body)

    @cython.cfunc
    def _answer(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """SUBACK or UNSUBACK."""
        kind: cython.int = _UNSUBACK if table.content_type[row] == _UNSUBACK else _SUBACK
        body: Octets = Octets(32)
        body.put_uint16(table.ticket[row] or 1)
        self._properties(table, row, kind)
        self._put_properties(body)
        if kind == _SUBACK or self.five:
            table.put(body, table.payload_p, table.payload_at[row], table.payload_len[row])
        return self._close(kind << 4, body)

    @cython.cfunc
    def _told(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """CONNACK, DISCONNECT or AUTH."""
        op: cython.int = table.op[row]
        kind: cython.int = (
            _CONNACK if op == _OP_HELLO else _DISCONNECT if op == _OP_TERMINATE else _AUTH
        )
        code: cython.int = table.content_type[row] & 255
        body: Octets = Octets(32)
        if kind == _AUTH and not (self.five and self.own):
            return _SKIP_OP
        self._properties(table, row, kind)
        if kind == _CONNACK:
            body.put_uint8(1 if table.flags[row] & _MORE_FLAG else 0)
        if kind == _CONNACK or (self.five and (code or self.scratch.size)):
            body.put_uint8(code)
        if kind == _CONNACK or (self.five and self.scratch.size):
            self._put_properties(body)
        return self._close(kind << 4, body)

    @cython.cfunc
    def _filters(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """One SUBSCRIBE or UNSUBSCRIBE for this row and those that follow in its packet."""
        op: cython.int = table.op[row]
        subscribes: cython.bint = op == _OP_SUBSCRIBE
        body: Octets
        if row and self._is_continued(table, row - 1):
            return 0  # it was written with the first one
        if table.address_len[row] > _MOST_TEXT or (subscribes and not table.address_len[row]):
            return _SKIP_ADDRESS
        body = Octets(64)
        body.put_uint16(table.ticket[row] or 1)
        said = table.headers(row)
        if self.five:
            number = said.get("mqtt.subscription", "")
            self.scratch.size = 0
            if subscribes and number.isdigit() and 0 < int(number) <= 268_435_455:
                self.scratch.put_uint8(0x0B)
                _put_varint(self.scratch, int(number))
            self._put_properties(body)
        while True:
            address = table.address(row)
            if b"\0" in address:
                return _SKIP_ADDRESS
            _put_binary(body, address)
            if subscribes:
                options = table.headers(row).get("mqtt.options", "0")
                body.put_uint8(
                    int(options) & (0x3F if self.five else 3) if options.isdigit() else 0
                )
            if not self._is_continued(table, row):
                break
            row += 1
        return self._close(0x82 if subscribes else 0xA2, body)

    @cython.cfunc
    def _is_continued(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
        """Does the next row belong to the same packet as this one?"""
        return bool(
            table.flags[row] & _MORE_FLAG
            and row + 1 < table.count
            and table.op[row] in (_OP_SUBSCRIBE, _OP_UNSUBSCRIBE)
            and table.op[row + 1] == table.op[row]
            and table.ticket[row + 1] == table.ticket[row]
            and 0 < table.address_len[row + 1] <= _MOST_TEXT
        )

    @cython.cfunc
    def _connect(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        said = table.headers(row)
        client_id = table.message(row).source.encode()
        will, topic, payload = said.get("mqtt.will"), table.address(row), table.payload(row)
        user, token = said.get("mqtt.user"), said.get(TOKEN.decode())
        password = None if token is None else token.encode()
        body: Octets = Octets(128)
        flags: cython.int = 2 if said.get("mqtt.clean") == "1" else 0
        if will is not None and will in ("0", "1", "2") and topic:
            flags |= 4 | (int(will) << 3) | (0x20 if said.get("mqtt.will_retain") == "1" else 0)
        if "mqtt.password" in said:
            password = _from_hex(said["mqtt.password"])
        if password is not None and user is None and not self.five:
            user = ""
        flags |= (0x80 if user is not None else 0) | (0x40 if password is not None else 0)
        texts = (client_id, topic, payload, (user or "").encode(), password or b"")
        if max(map(len, texts)) > 0xFFFF or 0 in client_id or "\0" in (user or ""):
            return _SKIP_ID
        body.put_bytes(b"\0\x04MQTT\x05" if self.five else b"\0\x04MQTT\x04")
        body.put_uint8(flags)
        keepalive = said.get("mqtt.keepalive", "0")
        body.put_uint16(min(0xFFFF, int(keepalive)) if keepalive.isdigit() else 0)
        self._properties(table, row, _CONNECT)
        self._put_properties(body)
        _put_binary(body, client_id)
        if flags & 4:
            if self.five:
                properties = _from_hex(said.get("mqtt.will_properties", ""))
                _put_varint(body, len(properties))
                body.put_bytes(properties)
            _put_binary(body, topic)
            _put_binary(body, payload)
        if user is not None:
            _put_binary(body, user.encode())
        if password is not None:
            _put_binary(body, password)
        return self._close(0x10, body)


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


# Batches, for sessions


def acknowledgements(table: FrameTable, rows: cython.const[cython.int][::1]) -> bytes:
    """Return the PUBACK of each row, or PUBREC where it has QoS 2."""
    out = Octets(4 * len(rows) + 4)
    k: cython.Py_ssize_t
    row: cython.Py_ssize_t
    for k in range(len(rows)):
        row = rows[k]
        out.put_uint16(0x5002 if table.flags[row] & _ONCE else 0x4002)
        out.put_uint16(table.ticket[row])
    return bytes(out.data[: out.size])


def answers(
    table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t, kind: cython.int
) -> bytes:
    """Return a packet of this type, PUBREL or PUBCOMP, for each row in [start, end)."""
    out = Octets(4 * (end - start) + 4)
    row: cython.Py_ssize_t
    for row in range(start, end):
        out.put_uint16((kind << 12) | (0x0202 if kind == _PUBREL else 2))
        out.put_uint16(table.ticket[row])
    return bytes(out.data[: out.size])


def ack_run(table: FrameTable, start: cython.Py_ssize_t) -> int:
    """Return where the run of acknowledgements ends that are of one type and tell of success."""
    row: cython.Py_ssize_t = start
    while (
        row < table.count
        and table.op[row] == _OP_ACK
        and table.content_type[row] == table.content_type[start]
        and table.payload_len[row] == 0
    ):
        row += 1
    return int(row)


def tickets(table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> list[int]:
    """Return the packet identifiers of rows."""
    return [table.ticket[row] for row in range(start, end)]


def all_flags(table: FrameTable, start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> int:
    """Return the flags that any row in [start, end) has."""
    row: cython.Py_ssize_t
    flags: cython.int = 0
    for row in range(start, end):
        flags |= table.flags[row]
    return int(flags)


def chosen_flags(table: FrameTable, rows: cython.const[cython.int][::1]) -> int:
    """Return the flags that any of these rows has."""
    k: cython.Py_ssize_t
    flags: cython.int = 0
    for k in range(len(rows)):
        flags |= table.flags[rows[k]]
    return int(flags)


def divide(frames: cython.const[cython.uchar][::1]) -> list[int]:
    """Return where each packet of a buffer begins, and where the last one ends."""
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(frames)
    size: cython.Py_ssize_t
    shift: cython.int
    found = [0]
    while at < end:
        at += 1
        size = 0
        shift = 0
        while at < end:
            size |= cython.cast(cython.Py_ssize_t, frames[at] & 127) << shift
            shift += 7
            at += 1
            if frames[at - 1] < 128:
                break
        at += size
        found.append(at)
    return found


def numbered(frames: cython.const[cython.uchar][::1]) -> int:
    """Return how many packets of a buffer have an identifier."""
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(frames)
    size: cython.Py_ssize_t
    shift: cython.int
    count: cython.int = 0
    while at < end:
        if frames[at] & 6:
            count += 1
        at += 1
        size = 0
        shift = 0
        while at < end:
            size |= cython.cast(cython.Py_ssize_t, frames[at] & 127) << shift
            shift += 7
            at += 1
            if frames[at - 1] < 128:
                break
        at += size
    return int(count)


class Packets:
    """Publishes of a form, apart: those that have an identifier, and the others."""

    def __init__(self, frames: bytes | memoryview) -> None:
        view = memoryview(frames)
        places = divide(view)
        numbered: list[memoryview] = []
        others: list[memoryview] = []
        for k in range(len(places) - 1):
            packet = view[places[k] : places[k + 1]]
            (numbered if packet[0] & 6 else others).append(packet)
        self.others = b"".join(others)
        self.count = len(numbered)
        self._numbered = numbered

    def first(self, count: int) -> bytes:
        """Return the first packets that have an identifier."""
        return b"".join(self._numbered[:count])

    def sizes(self, overhead: int) -> array[int]:
        """Return what each packet that has an identifier takes, with this overhead."""
        return array("q", [len(packet) + overhead for packet in self._numbered])

    def fill(self, table: FrameTable, name: bytes) -> None:
        """Replace all rows of a table by messages to this address that hold these packets."""
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t = 0
        data = b"".join(self._numbered)
        table.begin(None, _FIVE, b"")
        table.mixed = True
        table.point("payload", data)
        begin: cython.int = table.side_at()
        table.side.put_bytes(name)
        for row in range(len(self._numbered)):
            table.blank(row)
            table.frame_at[row] = table.frame_len[row] = 0
            table.sent[row] = 0
            table.op[row] = _OP_ENQUEUE
            table.address_at[row] = begin
            table.address_len[row] = len(name)
            table.payload_at[row] = at
            table.payload_len[row] = len(self._numbered[row])
            at += table.payload_len[row]
        table.count = len(self._numbered)


def personal(
    frames: cython.const[cython.uchar][::1],
    first: int,
    room: int,
    *,
    mark: int = 0,
    subscription: int = 0,
    most: int = 0,
) -> tuple[memoryview, int, int, int]:
    """Return publishes of a form as one receiver gets them.

    Identifiers count from `first`, and from 1 again behind 65535; at most `room` packets get one,
    and the first that would be one more ends the work. `mark` is set in each first octet, as for
    packets sent again. A `subscription` is added to the properties. Packets of more than `most`
    bytes are left out, unless that is 0. Returns the packets, how many bytes of `frames` were used,
    how many identifiers, and how many packets were left out.
    """
    out = Octets(len(frames) + 16)
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t = len(frames)
    begin: cython.Py_ssize_t
    body: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    size: cython.Py_ssize_t
    place: cython.Py_ssize_t
    properties: cython.Py_ssize_t = 0
    shift: cython.int
    identifier: cython.int = first
    given: cython.int = 0
    allowed: cython.int = room
    left_out: cython.int = 0
    octet: cython.int
    bits: cython.int = mark
    wide: cython.Py_ssize_t = 0  # octets of the subscription's identifier, and its number
    limit: cython.Py_ssize_t = most
    p: cython.p_const_uchar
    if end == 0:
        return memoryview(b""), 0, 0, 0
    if cython.compiled:
        p = cython.address(frames[0])
    else:
        p = frames
    if subscription:
        wide = 2 if subscription < 128 else 3 if subscription < 16_384 else 4
        wide = 5 if subscription >= 2_097_152 else wide
    while at < end:
        begin = at
        octet = p[at]
        at += 1
        size = 0
        shift = 0
        while at < end:
            size |= cython.cast(cython.Py_ssize_t, p[at] & 127) << shift
            shift += 7
            at += 1
            if p[at - 1] < 128:
                break
        body = at
        stop = body + size
        if octet & 6 and given == allowed:
            at = begin
            break
        at = stop
        # Lengths may need one octet more each with a subscription's identifier.
        if limit and stop - begin + (wide + 2 if wide else 0) > limit:
            left_out += 1
            continue
        place = body + 2 + ((p[body] << 8) | p[body + 1])
        out.put_uint8(octet | bits)
        if wide == 0:
            out.put(p, begin + 1, place - begin - 1)
        else:
            # The length of the properties may need one octet more, and so may the packet's.
            properties = place + (2 if octet & 6 else 0)
            shift = 0
            size = 0
            while True:
                size |= cython.cast(cython.Py_ssize_t, p[properties] & 127) << shift
                shift += 7
                properties += 1
                if p[properties - 1] < 128:
                    break
            _put_varint(
                out,
                stop - body + wide + (_width(size + wide) - _width(size)),
            )
            out.put(p, body, place - body)
        if octet & 6:
            out.put_uint16(identifier)
            identifier = identifier + 1 if identifier < 0xFFFF else 1
            given += 1
            place += 2
        if wide:
            _put_varint(out, size + wide)
            out.put_uint8(0x0B)
            _put_varint(out, subscription)
            place = properties
        out.put(p, place, stop - place)
    return out.take(0), int(at), int(given), int(left_out)


@cython.cfunc
@cython.exceptval(check=False)
def _width(value: cython.Py_ssize_t) -> cython.int:
    """How many octets a number takes in groups of seven bits."""
    return 1 if value < 128 else 2 if value < 16_384 else 3 if value < 2_097_152 else 4
