"""MQTT 3.1.1 and 5, reading: `type and flags, remaining length, variable header, payload`.

Rules that are not plain from the code:
- A packet identifier names an exchange of one connection, not a message: it is the row's ticket,
  never its id.
- The quality of service is the header `mqtt.qos` where it is not 0; above 0 the row has ACK, and at
  2 also ONCE. A retained message has the header `mqtt.retain`. The mark of a packet that is sent
  again (DUP) says nothing about the message, and is not kept.
- A property is a header, too, by the table in `codes`. Four have a place of their own: the format
  is TEXT, the expiry the ttl, the correlation data the correlation id where it is UTF-8, and an
  alias is replaced by its topic. An expiry that no ttl can hold stays a header.
- User properties are the user's headers. Those whose names begin with `$` or `mqtt.` are dropped.
- A SUBSCRIBE or UNSUBSCRIBE is a row a filter, all but the last marked MORE.
- CONNECT is `handshake`: its source is the client id, address and payload are those of the will.
  CONNACK is `hello`, DISCONNECT `terminate`; their content type is the reason code.
- The acknowledgements of a publish are `ack`, SUBACK and UNSUBACK are `ok`; their content type is
  the type of the packet, their payload the reason codes.
"""

from __future__ import annotations

import cython

from wirelake.dialects.dialect import NO
from wirelake.dialects.mqtt import codes
from wirelake.errors import ProtocolError
from wirelake.message import Flag, Limits, Op

if cython.compiled:
    from cython.cimports.wirelake.wire.codec import Scanner
    from cython.cimports.wirelake.wire.octets import is_utf8, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.codec import Scanner
    from wirelake.wire.octets import is_utf8, same, uint32
    from wirelake.wire.table import FrameTable

from wirelake.wire.parameters import TOKEN
from wirelake.wire.table import OWN, SECRET, UNREAD

#: Row flags of this dialect's own: QoS 2; retained; not to be passed on as it is, for an alias or a
#: subscription's identifier; with a response topic.
ONCE, RETAIN, ALIASED, ASKS = OWN, OWN << 1, OWN << 2, OWN << 3
#: Topic aliases that a stream may set, unless the owner of the scanner allows fewer.
MOST_ALIASES = 0xFFFF
#: An expiry of more seconds does not fit into a ttl.
MOST_EXPIRY = (2**31 - 1) // 1000

_FIVE = "mqtt-5"
#: What clients of other versions are answered, in the form of 5 and of all before it.
WRONG_VERSION = bytes.fromhex("2003008400")
WRONG_VERSION_OLD = bytes.fromhex("20020001")

_ACK_FLAG = cython.declare(cython.int, Flag.ACK)
_MORE_FLAG = cython.declare(cython.int, Flag.MORE)
_TEXT_FLAG = cython.declare(cython.int, Flag.TEXT)
_ONCE = cython.declare(cython.int, ONCE)
_RETAIN = cython.declare(cython.int, RETAIN)
_ALIASED = cython.declare(cython.int, ALIASED)
_ASKS = cython.declare(cython.int, ASKS)
_SECRET = cython.declare(cython.int, SECRET)
_UNREAD = cython.declare(cython.int, UNREAD)
_MOST_EXPIRY = cython.declare(cython.longlong, MOST_EXPIRY)

_OP_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
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

_CONNECT = cython.declare(cython.int, codes.Packet.CONNECT)
_CONNACK = cython.declare(cython.int, codes.Packet.CONNACK)
_PUBLISH = cython.declare(cython.int, codes.Packet.PUBLISH)
_PUBREL = cython.declare(cython.int, codes.Packet.PUBREL)
_PUBCOMP = cython.declare(cython.int, codes.Packet.PUBCOMP)
_SUBSCRIBE = cython.declare(cython.int, codes.Packet.SUBSCRIBE)
_SUBACK = cython.declare(cython.int, codes.Packet.SUBACK)
_UNSUBSCRIBE = cython.declare(cython.int, codes.Packet.UNSUBSCRIBE)
_UNSUBACK = cython.declare(cython.int, codes.Packet.UNSUBACK)
_PINGREQ = cython.declare(cython.int, codes.Packet.PINGREQ)
_PINGRESP = cython.declare(cython.int, codes.Packet.PINGRESP)
_DISCONNECT = cython.declare(cython.int, codes.Packet.DISCONNECT)
_AUTH = cython.declare(cython.int, codes.Packet.AUTH)
_WILL = cython.declare(cython.int, codes.WILL)

_OCTET = cython.declare(cython.int, codes.OCTET)
_UINT16 = cython.declare(cython.int, codes.UINT16)
_UINT32 = cython.declare(cython.int, codes.UINT32)
_VARINT = cython.declare(cython.int, codes.VARINT)
_BINARY = cython.declare(cython.int, codes.BINARY)
_PAIR = cython.declare(cython.int, codes.PAIR)

_FORMAT = cython.declare(cython.int, 0x01)
_EXPIRY = cython.declare(cython.int, 0x02)
_RESPONSE = cython.declare(cython.int, 0x08)
_CORRELATION = cython.declare(cython.int, 0x09)
_SUBSCRIPTION = cython.declare(cython.int, 0x0B)
_ALIAS = cython.declare(cython.int, 0x23)
_USER = cython.declare(cython.int, 0x26)
_RECEIVE_MAXIMUM = cython.declare(cython.int, 0x21)
_MAXIMUM_PACKET = cython.declare(cython.int, 0x27)

#: Reasons of faults that are more than malformed packets.
_MALFORMED = cython.declare(cython.int, codes.Reason.MALFORMED)
_WRONG = cython.declare(cython.int, codes.Reason.PROTOCOL_ERROR)
_BAD_FILTER = cython.declare(cython.int, codes.Reason.BAD_FILTER)
_BAD_TOPIC = cython.declare(cython.int, codes.Reason.BAD_TOPIC)
_BAD_ALIAS = cython.declare(cython.int, codes.Reason.BAD_ALIAS)
_TOO_LARGE = cython.declare(cython.int, codes.Reason.TOO_LARGE)

#: One more than the highest number of a property.
_PROPERTIES = cython.declare(cython.int, max(codes.PROPERTIES) + 1)


def _column(which: int) -> bytes:
    """Return a column of the table of properties as bytes: the form, or where each may be."""
    found = bytearray(max(codes.PROPERTIES) + 1)
    for number, (_, kind, where) in codes.PROPERTIES.items():
        packets = sum(1 << packet for packet in set(where))
        found[number] = (kind, packets & 255, packets >> 8)[which]
    return bytes(found)


_KINDS = cython.declare(bytes, _column(0))
_WHERE_LOW = cython.declare(bytes, _column(1))
_WHERE_HIGH = cython.declare(bytes, _column(2))
_NAMES = {number: b"mqtt." + one[0].encode() for number, one in codes.PROPERTIES.items()}
_QOS = b"mqtt.qos"
_OWN_PREFIX = b"mqtt."
_SHARE = b"$share/"


@cython.cfunc
@cython.exceptval(check=False)
def _is_text(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.bint:
    """Are the n bytes at p[at] UTF-8 without U+0000?"""
    i: cython.Py_ssize_t
    high: cython.int = 0
    for i in range(at, at + n):
        if p[i] == 0:
            return False
        high |= p[i]
    return high < 128 or is_utf8(p, at, n)


@cython.final
@cython.cclass
class MqttScanner(Scanner):
    """MQTT packets to rows."""

    five: cython.bint
    most_aliases = cython.declare(cython.int, visibility="public")
    #: Identifiers may be 0, as in packets of a form that no receiver has numbered yet.
    allows_zero = cython.declare(cython.bint, visibility="public")
    #: What is read comes from clients alone, so it has no identifiers of subscriptions.
    hears_clients = cython.declare(cython.bint, visibility="public")
    aliases: dict[int, bytes]
    left: cython.Py_ssize_t  # bytes of filters that follow in a packet whose beginning was read
    kind: cython.int  # of that packet
    identifier: cython.int
    subscription: cython.longlong

    def __init__(self, dialect: str = _FIVE, limits: Limits = Limits()) -> None:  # noqa: B008
        Scanner.__init__(self, dialect, limits)
        self.five = dialect == _FIVE
        self.most_aliases = MOST_ALIASES
        self.allows_zero = False
        self.hears_clients = False
        self.aliases = {}
        self.left = 0
        self.kind = 0
        self.identifier = 0
        self.subscription = 0

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
        low: cython.int
        size: cython.longlong = 0
        width: cython.int = 0
        octet: cython.longlong
        row: cython.Py_ssize_t = table.count
        body: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        n: cython.int
        flags: cython.int
        if self.left:
            if end - at < self.left:
                self.need = self.left
                return 0
            return self._filter(p, at, at, at + self.left, table)
        kind = p[at] >> 4
        low = p[at] & 15
        if kind == 0 or (kind == _AUTH and not self.five):
            raise self.error(at, f"packet type {kind}, which {self.dialect} does not have")
        if kind != _PUBLISH and low != (2 if kind in (_PUBREL, _SUBSCRIBE, _UNSUBSCRIBE) else 0):
            raise self.error(at, f"flags {low} in a packet of type {kind}")
        while True:
            if at + 1 + width == end:
                self.need = 2 + width
                return 0
            octet = p[at + 1 + width]
            size |= (octet & 127) << (7 * width)
            width += 1
            if octet < 128:
                break
            if width == 4:
                raise self.error(at + 1, "a remaining length of more than 4 octets")
        if octet == 0 and width > 1:
            raise self.error(at + 1, "a remaining length that is not in its shortest form")
        body = at + 1 + width
        if size > self.max_message:
            stop = self._check_size(p, at, body, end, size)
            if stop:
                self.need = stop
                return 0
        if end - body < size:
            self.need = 1 + width + size
            return 0
        stop = body + size
        table.frame_at[row] = at
        table.frame_len[row] = stop - at
        if kind != _PUBLISH:
            table.blank(row)
            return self._other(p, at, body, stop, kind, table)
        if low & 6 == 6:
            raise self.error(at, "a quality of service of 3")
        if low & 14 == 8:
            raise self.error(at, "a packet of QoS 0 that is marked as sent again")
        flags = (
            (_ACK_FLAG if low & 6 else 0)
            | (_ONCE if low & 4 else 0)
            | (_RETAIN if low & 1 else 0)
            | (_UNREAD if low & 7 else 0)
        )
        table.op[row] = _OP_PUBLISH
        table.content_type[row] = 0
        table.source_len[row] = 0
        table.correlation_len[row] = 0
        table.headers_len[row] = 0
        table.ttl[row] = 0
        table.ticket[row] = 0
        n = self._text(p, body, stop)
        if n > self.max_address:
            reason = f"an address of {n} bytes; at most {self.max_address}"
            raise self.fault(body, reason, _BAD_TOPIC)
        if n == 0 and not self.five:
            raise self.error(body, "an empty topic")
        table.address_at[row] = body + 2
        table.address_len[row] = n
        body += 2 + n
        if low & 6:
            table.ticket[row] = self._identifier(p, body, stop)
            body += 2
        table.flags[row] = flags
        if self.five:
            if body < stop and p[body] == 0 and n:
                body += 1
            else:
                body = self._publish_properties(p, body, stop, table)
        table.payload_at[row] = body
        table.payload_len[row] = stop - body
        table.count = row + 1
        return stop - at

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _check_size(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        body: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        size: cython.longlong,
    ) -> cython.Py_ssize_t:
        """Refuse a packet whose payload is over the limit, as soon as that can be told.

        What stands before a payload does not count; it has limits of its own. Returns how many
        bytes of the packet must be there to tell, 0 where they are.
        """
        ahead: cython.longlong = 0
        place: cython.Py_ssize_t = body + 2
        n: cython.longlong
        shift: cython.int = 0
        if p[at] >> 4 == _PUBLISH:
            if end < place:
                return place - at
            n = (p[body] << 8) | p[body + 1]
            if n > self.max_address:
                reason = f"an address of {n} bytes; at most {self.max_address}"
                raise self.fault(body, reason, _BAD_TOPIC)
            place += n + (2 if p[at] & 6 else 0)
            if self.five:
                n = 0
                while True:
                    if place >= end:
                        return place - at + 1
                    n |= cython.cast(cython.longlong, p[place] & 127) << shift
                    shift += 7
                    place += 1
                    if p[place - 1] < 128 or shift == 28:
                        break
                place += n
            ahead = place - body
        if size - ahead > self.max_message:
            reason = f"a length of {size - ahead}; at most {self.max_message}"
            raise self.fault(at + 1, reason, _TOO_LARGE)
        return 0

    def fault(self, at: int, reason: str, code: int) -> ProtocolError:
        """The error for a fault at byte `at`; MQTT 5 answers it with this reason code."""
        return self.error(at, reason, bytes([_DISCONNECT << 4, 1, code]) if self.five else b"")

    # Pieces of packets

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _text(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.int:
        """The length of the UTF-8 string at p[at], which ends before `stop`."""
        n: cython.int = self._octets(p, at, stop)
        if not _is_text(p, at + 2, n):
            raise self.error(at + 2, "a string that is not UTF-8, or has a U+0000")
        return n

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _octets(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.int:
        """The length of the binary data at p[at], which ends before `stop`."""
        n: cython.int
        if stop - at < 2:
            raise self.error(at, "a field without its length")
        n = (p[at] << 8) | p[at + 1]
        if stop - at - 2 < n:
            raise self.error(at, f"a field of {n} bytes that goes beyond its packet")
        return n

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _identifier(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.int:
        value: cython.int
        if stop - at < 2:
            raise self.error(at, "a packet without its identifier")
        value = (p[at] << 8) | p[at + 1]
        if value == 0 and not self.allows_zero:
            raise self.error(at, "a packet identifier of 0")
        return value

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _varint(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.longlong:
        """The number at p[at] in the low 32 bits, and above them how many octets it takes."""
        size: cython.longlong = 0
        octet: cython.longlong
        width: cython.longlong = 0
        while True:
            if at + width >= stop or width == 4:
                raise self.error(at, "a number that goes beyond its packet or 4 octets")
            octet = p[at + width]
            size |= (octet & 127) << (7 * width)
            width += 1
            if octet < 128:
                break
        if octet == 0 and width > 1:
            raise self.error(at, "a number that is not in its shortest form")
        return (width << 32) | size

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _properties_end(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, stop: cython.Py_ssize_t
    ) -> cython.longlong:
        """Where the properties at p[at] end, and above 32 bits the octets of their length."""
        found: cython.longlong = self._varint(p, at, stop)
        width: cython.longlong = found >> 32
        size: cython.longlong = found & 0x7FFFFFFF
        if stop - at - width < size:
            raise self.error(at, f"{size} bytes of properties that go beyond their packet")
        if size > self.max_headers:
            reason = f"{size} bytes of properties; at most {self.max_headers}"
            raise self.fault(at, reason, _TOO_LARGE)
        return (width << 32) | (at + width + size)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _property(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        packet: cython.int,
    ) -> cython.Py_ssize_t:
        """Check the property at p[at]; return where it ends."""
        number: cython.int = p[at]
        kinds: cython.p_const_uchar = _KINDS
        low: cython.p_const_uchar = _WHERE_LOW
        high: cython.p_const_uchar = _WHERE_HIGH
        kind: cython.int = kinds[number] if number < _PROPERTIES else 0
        is_there: cython.int = 0
        if kind:
            is_there = (
                (low[number] >> packet) & 1 if packet < 8 else (high[number] >> (packet - 8)) & 1
            )
        if not is_there:
            raise self.error(at, f"a property {number:#x} in a packet that cannot have it")
        at += 1
        if kind == _OCTET:
            if stop - at < 1 or p[at] > 1:
                raise self.fault(at, f"a property {number:#x} that is neither 0 nor 1", _WRONG)
            return at + 1
        if kind in (_UINT16, _UINT32):
            if stop - at < (2 if kind == _UINT16 else 4):
                raise self.error(at, f"a property {number:#x} that is cut off")
            if kind == _UINT16:
                if number in (_RECEIVE_MAXIMUM, _ALIAS) and p[at] == 0 and p[at + 1] == 0:
                    code: cython.int = _BAD_ALIAS if number == _ALIAS else _WRONG
                    raise self.fault(at, f"a property {number:#x} of 0", code)
                return at + 2
            if number == _MAXIMUM_PACKET and uint32(p, at) == 0:
                raise self.fault(at, f"a property {number:#x} of 0", _WRONG)
            return at + 4
        if kind == _VARINT:
            found: cython.longlong = self._varint(p, at, stop)
            if found & 0x7FFFFFFF == 0:
                raise self.fault(at, "a subscription identifier of 0", _WRONG)
            return at + (found >> 32)
        if kind == _BINARY:
            return at + 2 + self._octets(p, at, stop)
        at += 2 + self._text(p, at, stop)
        if kind == _PAIR:
            at += 2 + self._text(p, at, stop)
        return at

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _publish_properties(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Check the properties of a publish and take what has a place of its own."""
        row: cython.Py_ssize_t = table.count
        found: cython.longlong = self._properties_end(p, at, stop)
        end: cython.Py_ssize_t = found & 0x7FFFFFFF
        seen: cython.longlong = 0
        number: cython.int
        alias: cython.int = 0
        seconds: cython.longlong
        following: cython.Py_ssize_t
        at += found >> 32
        if end > at:
            table.flags[row] |= _UNREAD
            table.headers_at[row] = at
            table.headers_len[row] = end - at
        while at < end:
            number = p[at]
            following = self._property(p, at, end, _PUBLISH)
            if number not in (_USER, _SUBSCRIPTION):
                if (seen >> number) & 1:
                    raise self.fault(at, f"a property {number:#x} that is there twice", _WRONG)
                seen |= cython.cast(cython.longlong, 1) << number
            if number == _FORMAT:
                table.flags[row] |= _TEXT_FLAG if p[at + 1] else 0
            elif number == _EXPIRY:
                seconds = uint32(p, at + 1)
                table.ttl[row] = 1000 * seconds if seconds <= _MOST_EXPIRY else 0
            elif number == _CORRELATION and is_utf8(p, at + 3, following - at - 3):
                table.correlation_at[row] = at + 3
                table.correlation_len[row] = following - at - 3
            elif number == _RESPONSE:
                table.flags[row] |= _ASKS
            elif number == _SUBSCRIPTION:
                if self.hears_clients:
                    raise self.fault(at, "a subscription identifier in a client's PUBLISH", _WRONG)
                table.flags[row] |= _ALIASED  # a broker says it to a receiver: not to be passed on
            elif number == _ALIAS:
                alias = (p[at + 1] << 8) | p[at + 2]
            at = following
        if alias:
            self._alias(p, at, alias, table)
        elif table.address_len[row] == 0:
            raise self.fault(at, "an empty topic without an alias", _WRONG)
        return end

    @cython.cfunc
    def _alias(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        alias: cython.int,
        table: FrameTable,
    ) -> cython.int:
        """Let an alias stand for a topic, or replace it by its topic."""
        row: cython.Py_ssize_t = table.count
        n: cython.int = table.address_len[row]
        if alias > self.most_aliases:
            reason = f"a topic alias of {alias}; at most {self.most_aliases}"
            raise self.fault(at, reason, _BAD_ALIAS)
        table.flags[row] |= _ALIASED
        if n:
            self.aliases[alias] = bytes(p[table.address_at[row] : table.address_at[row] + n])
            return 0
        topic = self.aliases.get(alias)
        if topic is None:
            raise self.fault(at, f"a topic alias {alias} that stands for nothing", _WRONG)
        table.address_at[row] = table.side_at()
        table.address_len[row] = len(topic)
        table.side.put_bytes(topic)
        return 0

    def context_before(self, table: FrameTable, row: int, context: bytes) -> bytes:
        """Return the aliases that stood before a row: alias, length and topic of each."""
        k: cython.Py_ssize_t
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t
        p: cython.p_const_uchar = table.payload_p
        aliases = _aliases(context)
        for k in range(row):
            # An address outside of the frame was found by its alias.
            if not table.flags[k] & _ALIASED or table.address_at[k] < 0:
                continue
            if not table.flags[k] & _UNREAD:
                raise ValueError("headers were read, so aliases cannot be found any more")
            at = table.headers_at[k]
            end = at + table.headers_len[k]
            while at < end:
                if p[at] == _ALIAS:
                    aliases[(p[at + 1] << 8) | p[at + 2]] = table.address(k)
                at = self._property(p, at, end, _PUBLISH)
        return b"".join(
            alias.to_bytes(2, "big") + len(topic).to_bytes(2, "big") + topic
            for alias, topic in aliases.items()
        )

    def set_context(self, context: bytes) -> None:
        """Let these aliases stand, as `context_before` returned them."""
        self.aliases = _aliases(context)

    # Packets that are rare beside PUBLISH

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _other(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        body: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        kind: cython.int,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        row: cython.Py_ssize_t = table.count
        table.headers_at[row] = table.side_at()
        if kind == _CONNECT:
            self._connect(p, body, stop, table)
        elif kind in (_SUBSCRIBE, _UNSUBSCRIBE):
            self.kind = kind
            self.identifier = self._identifier(p, body, stop)
            self.subscription = 0
            body += 2
            if self.five:
                body = self._headers(p, body, stop, kind, table)
            return self._filter(p, at, body, stop, table)
        elif kind in (_PINGREQ, _PINGRESP):
            if body != stop:
                raise self.error(body, f"a packet of type {kind} has no body")
            table.op[row] = _OP_PING if kind == _PINGREQ else _OP_PONG
        elif kind in (_CONNACK, _DISCONNECT, _AUTH):
            self._told(p, body, stop, kind, table)
        else:
            table.ticket[row] = self._identifier(p, body, stop)
            table.op[row] = _OP_OK if kind in (_SUBACK, _UNSUBACK) else _OP_ACK
            table.content_type[row] = kind
            body += 2
            self._answer(p, body, stop, kind, table)
        table.headers_len[row] = table.headers_at[row] - table.side_at()
        table.count = row + 1
        return stop - at

    @cython.cfunc
    def _answer(
        self,
        p: cython.p_const_uchar,
        body: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        kind: cython.int,
        table: FrameTable,
    ) -> cython.int:
        """The reason codes of an acknowledgement."""
        row: cython.Py_ssize_t = table.count
        if kind in (_SUBACK, _UNSUBACK):
            if self.five:
                body = self._headers(p, body, stop, kind, table)
            elif kind == _UNSUBACK and body != stop:
                raise self.error(body, "an UNSUBACK has two octets")
            table.payload_at[row] = body
            table.payload_len[row] = stop - body
            return 0
        if body == stop:
            return 0
        if not self.five:
            raise self.error(body, "an acknowledgement has two octets")
        table.payload_at[row] = body
        table.payload_len[row] = 1 if p[body] else 0
        if stop - body > 1 and self._headers(p, body + 1, stop, kind, table) != stop:
            raise self.error(body, "an acknowledgement that is longer than its fields")
        return 0

    @cython.cfunc
    def _told(
        self,
        p: cython.p_const_uchar,
        body: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        kind: cython.int,
        table: FrameTable,
    ) -> cython.int:
        """CONNACK, DISCONNECT and AUTH: a reason code, and what else is said."""
        row: cython.Py_ssize_t = table.count
        if kind == _CONNACK:
            table.op[row] = _OP_HELLO
            if stop - body < 2 or p[body] > 1 or (not self.five and stop - body != 2):
                raise self.error(body, "a CONNACK that is not as it has to be")
            table.flags[row] = _MORE_FLAG if p[body] else 0  # the session goes on
            body += 1
        else:
            table.op[row] = _OP_TERMINATE if kind == _DISCONNECT else _OP_AUTH
            if not self.five and body != stop:
                raise self.error(body, "a DISCONNECT has no body")
        if body < stop:
            table.content_type[row] = p[body]
            body += 1
        if body < stop or (kind == _CONNACK and self.five):
            body = self._headers(p, body, stop, kind, table)
        if body != stop:
            raise self.error(body, "a packet that is longer than its fields")
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _filter(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        body: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """One filter of a SUBSCRIBE or an UNSUBSCRIBE; a group's name does not count."""
        row: cython.Py_ssize_t = table.count
        share: bytes = _SHARE
        n: cython.int
        options: cython.int
        begin: cython.int
        if at == body:  # not the first: what came before the first one is known
            table.blank(row)
        begin = table.side_at()
        if body == stop:
            raise self.fault(body, "a packet without a filter", _WRONG)
        n = self._text(p, body, stop)
        if n == 0 and self.kind == _SUBSCRIBE:
            raise self.error(body, "an empty filter")
        if n > self.max_address and (
            n > self.max_address + 255 or n < 7 or not same(p, body + 2, share, 7)
        ):
            reason = f"a filter of {n} bytes; at most {self.max_address}"
            raise self.fault(body, reason, _BAD_FILTER)
        table.address_at[row] = body + 2
        table.address_len[row] = n
        table.ticket[row] = self.identifier
        body += 2 + n
        table.op[row] = _OP_UNSUBSCRIBE
        if self.kind == _SUBSCRIBE:
            table.op[row] = _OP_SUBSCRIBE
            if body == stop:
                raise self.error(body, "a filter without its options")
            options = p[body]
            body += 1
            if options & 3 == 3 or options > (0x2F if self.five else 2) or options & 0x30 == 0x30:
                is_known: cython.bint = options < 0x40  # the bits above are reserved
                code: cython.int = _WRONG if is_known else _MALFORMED
                raise self.fault(body - 1, f"options {options:#x} of a subscription", code)
            if options:
                table.put_header(b"mqtt.options", b"%d" % options)
            if self.subscription:
                table.put_header(b"mqtt.subscription", b"%d" % self.subscription)
        table.headers_at[row] = begin
        table.headers_len[row] = begin - table.side_at()
        table.flags[row] = _MORE_FLAG if body < stop else 0
        table.frame_at[row] = at
        table.frame_len[row] = body - at
        table.count = row + 1
        self.left = stop - body
        return body - at

    @cython.cfunc
    def _connect(
        self,
        p: cython.p_const_uchar,
        body: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        row: cython.Py_ssize_t = table.count
        n: cython.int = self._text(p, body, stop)
        flags: cython.int
        level: cython.int = p[body + 2 + n] if stop - body > 2 + n else 0
        if level != (5 if self.five else 4) or bytes(p[body + 2 : body + 2 + n]) != b"MQTT":
            answer = WRONG_VERSION if level > 4 else WRONG_VERSION_OLD
            raise self.error(body, f"a CONNECT of another version than {self.dialect}", answer)
        if stop - body < 10:
            raise self.error(body, "a CONNECT that is cut off")
        flags = p[body + 7]
        if flags & 1 or flags & 0x18 == 0x18 or (not flags & 4 and flags & 0x38):
            raise self.error(body + 7, f"connect flags {flags:#x}")
        if flags & 0xC0 == 0x40 and not self.five:
            raise self.error(body + 7, "a password without a user name")
        table.op[row] = _OP_HANDSHAKE
        if flags & 2:
            table.put_header(b"mqtt.clean", b"1")
        table.put_header(b"mqtt.keepalive", b"%d" % ((p[body + 8] << 8) | p[body + 9]))
        body += 10
        if self.five:
            body = self._headers(p, body, stop, _CONNECT, table)
        n = self._text(p, body, stop)
        table.source_at[row] = body + 2
        table.source_len[row] = n
        body += 2 + n
        if flags & 4:
            body = self._will(p, body, stop, flags, table)
        if flags & 0x80:
            n = self._text(p, body, stop)
            table.put_header(b"mqtt.user", bytes(p[body + 2 : body + 2 + n]))
            body += 2 + n
        if flags & 0x40:
            n = self._octets(p, body, stop)
            password = bytes(p[body + 2 : body + 2 + n])
            if _is_text(p, body + 2, n):
                table.put_header(TOKEN, password)
            else:
                table.put_header(b"mqtt.password", password.hex().encode())
            body += 2 + n
            table.flags[row] |= _SECRET
        if body != stop:
            raise self.error(body, "a CONNECT that is longer than its fields")
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _will(
        self,
        p: cython.p_const_uchar,
        body: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        flags: cython.int,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """The will: its topic and message as address and payload, its properties as they came."""
        row: cython.Py_ssize_t = table.count
        n: cython.int
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t
        found: cython.longlong
        seen: cython.longlong = 0
        table.put_header(b"mqtt.will", b"%d" % ((flags >> 3) & 3))
        if flags & 0x20:
            table.put_header(b"mqtt.will_retain", b"1")
        if self.five:
            found = self._properties_end(p, body, stop)
            end = found & 0x7FFFFFFF
            at = body + (found >> 32)
            if at < end:
                table.put_header(b"mqtt.will_properties", bytes(p[at:end]).hex().encode())
            while at < end:
                body = self._property(p, at, end, _WILL)
                if p[at] != _USER:
                    if (seen >> p[at]) & 1:
                        raise self.fault(at, f"a property {p[at]:#x} that is there twice", _WRONG)
                    seen |= cython.cast(cython.longlong, 1) << p[at]
                at = body
            body = end
        n = self._text(p, body, stop)
        if n == 0 or n > self.max_address:
            raise self.error(body, f"a will's address of {n} bytes; 1 to {self.max_address}")
        table.address_at[row] = body + 2
        table.address_len[row] = n
        body += 2 + n
        n = self._octets(p, body, stop)
        table.payload_at[row] = body + 2
        table.payload_len[row] = n
        return body + 2 + n

    # Headers

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _headers(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        packet: cython.int,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Check the properties of a packet and make them headers; return where they end."""
        found: cython.longlong = self._properties_end(p, at, stop)
        end: cython.Py_ssize_t = found & 0x7FFFFFFF
        seen: cython.longlong = 0
        number: cython.int
        following: cython.Py_ssize_t
        at += found >> 32
        while at < end:
            number = p[at]
            following = self._property(p, at, end, packet)
            if number != _USER:
                if (seen >> number) & 1:
                    raise self.fault(at, f"a property {number:#x} that is there twice", _WRONG)
                seen |= cython.cast(cython.longlong, 1) << number
            if packet == _SUBSCRIBE and number == _SUBSCRIPTION:
                self.subscription = self._varint(p, at + 1, end) & 0x7FFFFFFF
            elif packet not in (_SUBSCRIBE, _UNSUBSCRIBE):  # those of filters are rows of their own
                self._header(p, at, following, table)
            at = following
        return end

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _header(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        following: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        """Write one property, which was checked, as a header."""
        number: cython.int = p[at]
        kinds: cython.p_const_uchar = _KINDS
        kind: cython.int = kinds[number]
        name: bytes
        n: cython.int
        own: bytes = _OWN_PREFIX
        at += 1
        if kind == _PAIR:
            n = (p[at] << 8) | p[at + 1]
            if n and (p[at + 2] == 0x24 or (n >= 5 and same(p, at + 2, own, 5))):
                return 0
            table.side.put_uint32(n)
            table.side.put_uint32(following - at - 4 - n)
            table.side.put(p, at + 2, n)
            return table.side.put(p, at + 4 + n, following - at - 4 - n)
        name = _NAMES[number]
        if kind == _OCTET:
            table.put_header(name, b"%d" % p[at])
        elif kind == _UINT16:
            table.put_header(name, b"%d" % ((p[at] << 8) | p[at + 1]))
        elif kind == _UINT32:
            table.put_header(name, b"%d" % uint32(p, at))
        elif kind == _VARINT:
            table.put_header(name, b"%d" % (self._varint(p, at, following) & 0x7FFFFFFF))
        elif kind == _BINARY:
            table.put_header(name, bytes(p[at + 2 : following]).hex().encode())
        else:
            table.put_header(name, bytes(p[at + 2 : following]))
        return 0

    @cython.ccall
    def read_headers(self, table: FrameTable) -> None:
        """Bring the headers of publishes into the one form."""
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        end: cython.Py_ssize_t
        following: cython.Py_ssize_t
        begin: cython.int
        octet: cython.int
        qos: bytes = _QOS
        p: cython.p_const_uchar = table.payload_p
        for row in range(table.count):
            if not table.flags[row] & _UNREAD:
                continue
            table.flags[row] &= ~_UNREAD
            octet = p[table.frame_at[row]]
            begin = table.side_at()
            if octet & 6:
                table.side.put_uint32(8)
                table.side.put_uint32(1)
                table.side.put(qos, 0, 8)
                table.side.put_uint8(48 + ((octet >> 1) & 3))
            if octet & 1:
                table.put_header(b"mqtt.retain", b"1")
            at = table.headers_at[row]
            end = at + table.headers_len[row]
            while at < end:
                following = self._property(p, at, end, _PUBLISH)
                if p[at] in (_FORMAT, _ALIAS) or (
                    p[at] == _EXPIRY and uint32(p, at + 1) <= _MOST_EXPIRY
                ):
                    pass
                elif p[at] != _CORRELATION or not is_utf8(p, at + 3, following - at - 3):
                    self._header(p, at, following, table)
                at = following
            table.headers_at[row] = begin
            table.headers_len[row] = begin - table.side_at()


def _aliases(context: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    while context:
        end = 4 + int.from_bytes(context[2:4], "big")
        found[int.from_bytes(context[:2], "big")] = context[4:end]
        context = context[end:]
    return found


def detect(head: bytes) -> str | None:
    """Tell MQTT by its CONNECT; a version that is not spoken is refused by name."""
    if head[0] != 0x10:
        return NO
    at = 1
    while at < len(head) and at < 4 and head[at] >= 128:
        at += 1
    body = head[at + 1 :]
    for name in (b"\x00\x04MQTT", b"\x00\x06MQIsdp"):
        if not body.startswith(name[: len(body)]):
            continue
        if len(body) <= len(name):
            return None
        level = body[len(name)]
        if name.endswith(b"MQTT") and level in (4, 5):
            return "mqtt-3.1.1" if level == 4 else _FIVE
        answer = WRONG_VERSION if level > 4 else WRONG_VERSION_OLD
        raise ProtocolError("mqtt", 0, f"version {level} of MQTT is not spoken here", answer)
    return NO


def detect_in_family(head: bytes) -> str | None:
    """Tell the versions apart, also by the size of the CONNACK that a broker says first."""
    if head[0] != 0x20:
        return detect(head)
    return None if len(head) < 2 else "mqtt-3.1.1" if head[1] == 2 else _FIVE
