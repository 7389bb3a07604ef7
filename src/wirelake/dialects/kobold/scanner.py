"""Kobold (KGPMP): three protocols for one model, from seed 003; `kobold_encoder.py` writes them.

    protocol 1   <len><op>\\r\\n<metadata>\\r\\n<topic>\\r\\n<content>\\r\\n    metadata: k=v; pairs
    protocol 2   <len><CBOR map>
    protocol 3   <len><op> <topic>\\r\\n<metadata: CBOR map>\\r\\n<content>\\r\\n

Rules that are not plain from the code:
- The length excludes itself, or, told from a connection's first frame, includes itself (spec:
  kobold 1). In protocols 1 and 3 a first frame may be complete in the one reading and not yet in
  the other: then the scanner is `undecided` until more bytes, `settle` or `finish` (decision 16).
- Content is what lies between the third delimiter and the last two bytes (spec: kobold 3).
- A CBOR null stands for an absent value, in protocol 2's map and in metadata (spec: kobold 5).
- Metadata keys that are fields of a message become columns at once. All others stay where they
  are until somebody reads headers; those of Kobold's own table then get a `$` (decision 4).
"""

from __future__ import annotations

from array import array

import cython

from wirelake.message import Flag, Limits

if cython.compiled:
    from cython.cimports.wirelake.wire.cbor import Cursor
    from cython.cimports.wirelake.wire.codec import Scanner
    from cython.cimports.wirelake.wire.octets import (
        Octets,
        decimal,
        find_crlf,
        find_name,
        is_utf8,
        same,
        uint32,
    )
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.cbor import Cursor
    from wirelake.wire.codec import Scanner
    from wirelake.wire.octets import Octets, decimal, find_crlf, find_name, is_utf8, same, uint32
    from wirelake.wire.table import FrameTable

from wirelake.wire import parameters
from wirelake.wire import table as frame_table
from wirelake.wire.octets import pack_names

#: Kobold's op table; the index of a name is its code.
OPS = (
    "", "PUB", "SUB", "UNSUB", "REQ", "REP", "ADV", "UNADV", "ENQ", "DEQ", "MSG", "ACK", "NACK",
    "CREATE", "READ", "UPDATE", "DELETE", "WATCH", "SET", "DEL", "OPEN", "DATA", "CLOSE", "AUTH",
    "PING", "PONG", "OK", "ERR", "INFO",
)  # fmt: skip

#: The metadata keys that mean something (spec: kobold 7): fields first, then parameters.
KEYS = (
    "", "id", "tx", "ack", "ttl", "prio", "to", "from",
    "token", "client", "rev", "wait", "count", "code", "attempt", "requeue",
)  # fmt: skip

#: The keys of protocol 2's map (spec: kobold 5).
FIELDS = (
    "", "id", "message_type", "topic", "transaction_id", "content", "timestamp", "metadata",
)  # fmt: skip

_ID_FIELD = cython.declare(cython.int, FIELDS.index("id"))
_TYPE_FIELD = cython.declare(cython.int, FIELDS.index("message_type"))
_TOPIC_FIELD = cython.declare(cython.int, FIELDS.index("topic"))
_TX_FIELD = cython.declare(cython.int, FIELDS.index("transaction_id"))
_CONTENT_FIELD = cython.declare(cython.int, FIELDS.index("content"))
_TIMESTAMP_FIELD = cython.declare(cython.int, FIELDS.index("timestamp"))
_METADATA_FIELD = cython.declare(cython.int, FIELDS.index("metadata"))

_TIMESTAMP = parameters.TIMESTAMP
_NULL = cython.declare(cython.int, 0xF6)  # CBOR's, which stands for absent
_MAX_OP = cython.declare(cython.int, len(OPS) - 1)
_ID = cython.declare(cython.int, KEYS.index("id"))
_TX = cython.declare(cython.int, KEYS.index("tx"))
_ACK_KEY = cython.declare(cython.int, KEYS.index("ack"))
_TTL = cython.declare(cython.int, KEYS.index("ttl"))
_PRIO = cython.declare(cython.int, KEYS.index("prio"))
_TO = cython.declare(cython.int, KEYS.index("to"))
_FROM = cython.declare(cython.int, KEYS.index("from"))
_TOKEN = cython.declare(cython.int, KEYS.index("token"))
_LAST_FIELD = cython.declare(cython.int, KEYS.index("from"))

_ACK = cython.declare(cython.int, Flag.ACK)
_TEXT = cython.declare(cython.int, Flag.TEXT)
_UNREAD = cython.declare(cython.int, frame_table.UNREAD)
_SECRET = cython.declare(cython.int, frame_table.SECRET)

#: So many user keys of one frame are compared pair by pair; more go through a set.
_FEW_KEYS = cython.declare(cython.int, 16)


@cython.cfunc
@cython.exceptval(check=False)
def _field_named(
    p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t
) -> cython.int:
    """The index in FIELDS of the name at p[at], or 0; no two are of the same length."""
    if n == 2:
        return _ID_FIELD if same(p, at, b"id", 2) else 0
    if n == 5:
        return _TOPIC_FIELD if same(p, at, b"topic", 5) else 0
    if n == 7:
        return _CONTENT_FIELD if same(p, at, b"content", 7) else 0
    if n == 8:
        return _METADATA_FIELD if same(p, at, b"metadata", 8) else 0
    if n == 9:
        return _TIMESTAMP_FIELD if same(p, at, b"timestamp", 9) else 0
    if n == 12:
        return _TYPE_FIELD if same(p, at, b"message_type", 12) else 0
    if n == 14:
        return _TX_FIELD if same(p, at, b"transaction_id", 14) else 0
    return 0


@cython.cfunc
@cython.exceptval(check=False)
def _hex_digit(c: cython.int) -> cython.int:
    if 48 <= c <= 57:
        return c - 48
    if 65 <= c <= 70:
        return c - 55
    if 97 <= c <= 102:
        return c - 87
    return -1


@cython.final
@cython.cclass
class KoboldScanner(Scanner):
    """Frames of one Kobold protocol to rows; `inclusive` once the first frame has told."""

    protocol: cython.int
    decided: cython.bint
    settled: cython.bint
    inclusive = cython.declare(cython.bint, visibility="readonly")
    undecided = cython.declare(cython.bint, visibility="readonly")
    ops: cython.longlong[::1]
    keys: cython.longlong[::1]
    cursor: Cursor
    # The metadata entry being read: where its key and its value are (places, as in the table).
    key_at: cython.int
    key_len: cython.int
    value_at: cython.int
    value_len: cython.int
    seen: cython.int  # fields and parameters that this frame has given, as bits
    user_keys: cython.int
    few: cython.int[::1]
    many: set  # type: ignore[type-arg]  # Cython takes no parameters here

    def __init__(self, dialect: str = "kobold-3", limits: Limits = Limits()) -> None:  # noqa: B008
        Scanner.__init__(self, dialect, limits)
        self.protocol = int(dialect.removeprefix("kobold-"))
        self.decided = False
        self.settled = False
        self.inclusive = False
        self.undecided = False
        self.ops = pack_names(OPS)
        self.keys = pack_names(KEYS)
        self.cursor = Cursor()
        self.few = array("i", [0]) * (2 * 16)
        self.many = set()

    def variant(self) -> str | None:
        """`inclusive` where lengths include themselves; the first frame tells."""
        if not self.decided:
            return None
        return "inclusive" if self.inclusive else ""

    def set_variant(self, variant: str) -> None:
        """Read lengths that include themselves, or do not."""
        if variant not in ("", "inclusive"):
            raise ValueError(f"{self.dialect} has no variant {variant!r}")
        self.inclusive = variant == "inclusive"
        self.decided = True

    def settle(self) -> None:
        """Nothing more has come: take an undecided first frame as it stands."""
        self.settled = True

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        length: cython.longlong
        stop: cython.Py_ssize_t
        row: cython.Py_ssize_t = table.count
        if end - at < 4:
            self.need = 4
            return 0
        length = uint32(p, at)
        if length > self.max_message:
            raise self.error(at, f"a length of {length}; at most {self.max_message}")
        if not self.decided and not self._decide(p, at, end, length):
            return 0
        if self.inclusive:
            if length < 4:
                raise self.error(at, f"a length of {length} that includes its own four bytes")
            length -= 4
        stop = at + 4 + length
        if stop > end:
            self.need = stop - at
            return 0
        table.blank(row)
        table.frame_at[row] = at
        table.frame_len[row] = stop - at
        table.sent[row] = 0
        if self.protocol == 2:
            self._map(p, at + 4, stop, table)
        else:
            self._text_frame(p, at + 4, stop, table)
        if not table.flags[row] & _UNREAD:
            table.headers_len[row] = 0
        table.count = row + 1
        return stop - at

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _decide(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        length: cython.longlong,
    ) -> cython.bint:
        """Does the length include itself? False where more bytes are needed to tell."""
        exclusive: cython.Py_ssize_t = at + 4 + length
        inclusive: cython.Py_ssize_t = at + length
        item_end: cython.Py_ssize_t
        fits: cython.bint = False
        short: cython.bint
        self.undecided = False
        if length == 0:
            return True
        if end < inclusive:
            self.need = length
            return False
        if self.protocol == 2:
            # CBOR knows its own end, so there is nothing to be undecided about.
            self.cursor.set(p, at + 4, min(end, exclusive))
            fits = self.cursor.skip(0)
            item_end = self.cursor.at
            short = self.cursor.short
            self.cursor.set(b"", 0, 0)  # whoever owns the bytes may add to them now
            if short and end < exclusive:
                self.need = end - at + 1
                return False
            self.inclusive = fits and item_end == inclusive
        else:
            if length >= 6:
                fits = p[inclusive - 2] == 13 and p[inclusive - 1] == 10
            if end < exclusive:
                self.undecided = fits
                if not (fits and (self.settled or self.ended)):
                    self.need = length + 4
                    return False
                self.undecided = False
                self.inclusive = True
            elif p[exclusive - 2] != 13 or p[exclusive - 1] != 10:
                self.inclusive = fits
        self.decided = True
        return True

    # Protocols 1 and 3

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _text_frame(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        row: cython.Py_ssize_t = table.count
        start: cython.Py_ssize_t = at
        close: cython.Py_ssize_t
        while at < stop and at - start < 17 and 65 <= p[at] <= 90:
            at += 1
        if at in (start, stop) or at - start > 16:
            raise self.error(start, "an op is 1 to 16 capital letters")
        table.op[row] = find_name(self.ops, p, start, at - start)
        self._begin_metadata()
        if self.protocol == 1:
            if p[at] != 13 or at + 1 == stop or p[at + 1] != 10:
                raise self.error(at, "an op that is not followed by CR LF")
            at += 2
            close = self._line(p, at, stop, self.max_headers, "metadata")
            self._pairs(p, at, close, table, row, False)
            table.headers_at[row] = at
            table.headers_len[row] = close - at
            at = self._topic(p, close + 2, stop, table)
        else:
            if p[at] != 32:
                raise self.error(at, "an op that is not followed by a space")
            at = self._topic(p, at + 1, stop, table)
            self.cursor.set(p, at, stop)
            self._metadata(table, row, False)
            table.headers_at[row] = at
            table.headers_len[row] = self.cursor.at - at
            at = self.cursor.at
            if stop - at < 2 or p[at] != 13 or p[at + 1] != 10:
                raise self.error(at, "metadata that is not followed by CR LF")
            at += 2
        if stop - at < 2 or p[stop - 2] != 13 or p[stop - 1] != 10:
            raise self.error(stop, "a frame that does not end in CR LF after its content")
        table.payload_at[row] = at
        table.payload_len[row] = stop - 2 - at
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _line(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        most: cython.longlong,
        what: str,
    ) -> cython.Py_ssize_t:
        """Where the CR LF after a line of at most `most` bytes is."""
        close: cython.Py_ssize_t = find_crlf(p, at, min(stop, at + most + 2))
        if close < 0:
            if stop - at > most:
                raise self.error(at, f"a {what} of more than {most} bytes")
            raise self.error(at, f"a {what} that is not followed by CR LF")
        return close

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _topic(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Read the topic line; return what comes after it."""
        row: cython.Py_ssize_t = table.count
        close: cython.Py_ssize_t = self._line(p, at, stop, self.max_address, "topic")
        if not is_utf8(p, at, close - at):
            raise self.error(at, "a topic that is not UTF-8")
        table.address_at[row] = at
        table.address_len[row] = close - at
        return close + 2

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _pairs(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
        row: cython.Py_ssize_t,
        emit: cython.bint,
    ) -> cython.int:
        """Protocol 1's `key=value;` metadata: into columns, or the rest of it into headers."""
        mark: cython.Py_ssize_t
        while at < end:
            mark = table.side.size
            at = self._unescape(p, at, end, table)
            if self.value_len == 0:
                raise self.error(at, "metadata with an empty key")
            if at == end or p[at] != 61:
                raise self.error(at, "a metadata key without its `=`")
            self.key_at = self.value_at
            self.key_len = self.value_len
            at = self._unescape(p, at + 1, end, table)
            if at < end and p[at] != 59:
                raise self.error(at, "a metadata value with a bare `=`")
            if emit:
                self._emit(p, table, mark)
            else:
                self._entry(p, at, table, row)
            at += 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _unescape(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Read up to `=`, `;` or the end, undoing percent-encoding; the place is `value_at`."""
        start: cython.Py_ssize_t = at
        kept: cython.Py_ssize_t
        side: Octets = table.side
        while at < end and p[at] != 61 and p[at] != 59 and p[at] != 37:
            at += 1
        self.value_at = start
        self.value_len = at - start
        if at == end or p[at] != 37:
            if not is_utf8(p, start, at - start):
                raise self.error(start, "metadata that is not UTF-8")
            return at
        self.value_at = table.side_at()
        kept = side.size
        side.put(p, start, at - start)
        while at < end and p[at] != 61 and p[at] != 59:
            if p[at] == 37:
                if end - at < 3 or _hex_digit(p[at + 1]) < 0 or _hex_digit(p[at + 2]) < 0:
                    raise self.error(at, "a `%` without two hexadecimal digits in metadata")
                side.put_uint8(_hex_digit(p[at + 1]) * 16 + _hex_digit(p[at + 2]))
                at += 3
            else:
                side.put_uint8(p[at])
                at += 1
        self.value_len = side.size - kept
        if not is_utf8(side.data, kept, self.value_len):
            raise self.error(start, "metadata that is not UTF-8")
        return at

    # Protocol 2, and the metadata of 3

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _map(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        row: cython.Py_ssize_t = table.count
        cursor: Cursor = self.cursor
        left: cython.longlong
        endless: cython.bint
        field: cython.int
        fields: cython.int = 0
        has_type: cython.bint = False
        start: cython.Py_ssize_t
        cursor.set(p, at, stop)
        self._begin_metadata()
        if not cursor.head():
            raise self.error(cursor.at, cursor.problem)
        if cursor.major != 5:
            raise self.error(at, "a frame that is not a CBOR map")
        endless = cursor.indefinite
        left = cursor.value
        while endless or left:
            if endless and cursor.at_break():
                break
            left -= 1
            start = cursor.at
            field = self._field(table)
            if field and fields & (1 << field):
                raise self.error(start, "the same key twice in the map")
            fields |= 1 << field
            start = cursor.at
            if field == 0:
                if not cursor.skip(1):
                    raise self.error(start, cursor.problem)
            elif start < stop and p[start] == _NULL:
                cursor.at = start + 1
            elif field == _METADATA_FIELD:
                self._metadata(table, row, False)
                table.headers_at[row] = start
                table.headers_len[row] = cursor.at - start
            else:
                has_type = has_type or field == _TYPE_FIELD
                self._field_value(table, row, field)
        if cursor.at != stop:
            raise self.error(cursor.at, f"{stop - cursor.at} bytes after the CBOR map")
        if not has_type:
            raise self.error(at, "a map without message_type")
        if table.sent[row]:
            table.flags[row] |= _UNREAD
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _field(self, table: FrameTable) -> cython.int:
        """Read a key of the map; 0 is one to be ignored."""
        cursor: Cursor = self.cursor
        start: cython.Py_ssize_t = cursor.at
        p: cython.p_const_uchar = cursor.p
        n: cython.int
        field: cython.int
        if start < cursor.end:
            # Nearly always: a short text in place. If it is one of ours, it is UTF-8 too.
            n = p[start] - 0x60
            if 0 < n < 24 and n < cursor.end - start:
                field = _field_named(p, start + 1, n)
                if field:
                    cursor.at = start + 1 + n
                    return field
        if not cursor.head():
            raise self.error(start, cursor.problem)
        if cursor.major != 3:
            cursor.at = start
            if not cursor.skip(1):
                raise self.error(start, cursor.problem)
            return 0
        self._string(table)
        if self.value_at >= 0:
            return _field_named(p, self.value_at, self.value_len)
        return _field_named(table.side.data, -1 - self.value_at, self.value_len)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _field_value(
        self, table: FrameTable, row: cython.Py_ssize_t, field: cython.int
    ) -> cython.int:
        cursor: Cursor = self.cursor
        start: cython.Py_ssize_t = cursor.at
        if not cursor.head():
            raise self.error(start, cursor.problem)
        if field == _TYPE_FIELD:
            if cursor.major != 0:
                raise self.error(start, "a message_type that is not an unsigned integer")
            table.op[row] = 0
            if not cursor.big and cursor.value <= _MAX_OP:
                table.op[row] = cython.cast(cython.int, cursor.value)
        elif field == _TIMESTAMP_FIELD:
            if cursor.major > 1 or cursor.big:
                raise self.error(start, "a timestamp that is not an integer of seconds")
            table.sent[row] = -1 - cursor.value if cursor.major else cursor.value
        elif field == _CONTENT_FIELD:
            if cursor.major == 3:
                table.flags[row] |= _TEXT
            elif cursor.major != 2:
                raise self.error(start, "content that is neither bytes nor text")
            self._string(table)
            table.payload_at[row] = self.value_at
            table.payload_len[row] = self.value_len
        elif field == _TOPIC_FIELD:
            if cursor.major != 3:
                raise self.error(start, "a topic that is not text")
            self._string(table)
            if self.value_len > self.max_address:
                raise self.error(start, f"a topic of more than {self.max_address} bytes")
            table.address_at[row] = self.value_at
            table.address_len[row] = self.value_len
        else:
            if cursor.major > 1 and cursor.major != 3:
                raise self.error(start, "an id that is neither text nor an integer")
            self._value(table, start)
            if field == _ID_FIELD:
                table.id_at[row] = self.value_at
                table.id_len[row] = self.value_len
            else:
                table.correlation_at[row] = self.value_at
                table.correlation_len[row] = self.value_len
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _string(self, table: FrameTable) -> cython.int:
        """The string whose head was read: where it is, and the cursor behind it."""
        cursor: Cursor = self.cursor
        start: cython.Py_ssize_t = cursor.at
        size: cython.Py_ssize_t
        if cursor.indefinite:
            size = table.side.size
            self.value_at = table.side_at()
            if not cursor.join(table.side):
                raise self.error(start, cursor.problem)
            self.value_len = table.side.size - size
            return 0
        if cursor.value > cursor.end - start:
            raise self.error(start, "a CBOR string runs over the end of the frame")
        if cursor.major == 3 and not is_utf8(cursor.p, start, cursor.value):
            raise self.error(start, "a CBOR text that is not UTF-8")
        self.value_at = start
        self.value_len = cython.cast(cython.int, cursor.value)
        cursor.at = start + cursor.value
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _value(self, table: FrameTable, start: cython.Py_ssize_t) -> cython.int:
        """The value whose head was read, as text (decision 5): where it is."""
        cursor: Cursor = self.cursor
        side: Octets = table.side
        size: cython.Py_ssize_t
        at: cython.Py_ssize_t
        if cursor.major == 3:
            return self._string(table)
        if cursor.major == 2:
            self._string(table)
            at = self.value_at
            if at >= 0:
                if is_utf8(cursor.p, at, self.value_len):
                    return 0
            elif is_utf8(side.data, -1 - at, self.value_len):
                return 0
            raw = bytes(cursor.p[at : at + self.value_len]) if at >= 0 else None
            if raw is None:
                raw = bytes(side.data[-1 - at : self.value_len - 1 - at])
                side.size = -1 - at
            self.value_at = table.side_at()
            self.value_len = 2 * len(raw)
            side.put_hex(raw, 0, len(raw))
            return 0
        size = side.size
        self.value_at = table.side_at()
        if cursor.major <= 1 and cursor.big:
            number = int.from_bytes(bytes(cursor.p[cursor.at - 8 : cursor.at]), "big")
            side.put_bytes(b"%d" % (-1 - number if cursor.major else number))
        elif cursor.major <= 1:
            side.put_decimal(-1 - cursor.value if cursor.major else cursor.value)
        elif cursor.major == 7 and (cursor.info == 20 or cursor.info == 21):
            side.put_bytes(b"true" if cursor.info == 21 else b"false")
        else:
            raise self.error(start, "a metadata value is text, an integer, a boolean or bytes")
        self.value_len = side.size - size
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _metadata(self, table: FrameTable, row: cython.Py_ssize_t, emit: cython.bint) -> cython.int:
        """A CBOR map of metadata: into columns, or the rest of it into headers."""
        cursor: Cursor = self.cursor
        start: cython.Py_ssize_t = cursor.at
        at: cython.Py_ssize_t
        mark: cython.Py_ssize_t
        left: cython.longlong
        endless: cython.bint
        if not cursor.head():
            raise self.error(start, cursor.problem)
        if cursor.major != 5:
            raise self.error(start, "metadata that is not a CBOR map")
        endless = cursor.indefinite
        left = cursor.value
        while endless or left:
            if endless and cursor.at_break():
                break
            left -= 1
            at = cursor.at
            mark = table.side.size
            if not cursor.head():
                raise self.error(at, cursor.problem)
            if cursor.major != 3:
                raise self.error(at, "a metadata key that is not text")
            self._string(table)
            self.key_at = self.value_at
            self.key_len = self.value_len
            at = cursor.at
            if not cursor.head():
                raise self.error(at, cursor.problem)
            if cursor.p[at] != _NULL:
                self._value(table, at)
                if emit:
                    self._emit(cursor.p, table, mark)
                else:
                    self._entry(cursor.p, at, table, row)
            elif emit:
                table.side.size = mark
            else:
                self._absent_entry(cursor.p, at, table)
            if cursor.at - start > self.max_headers:
                raise self.error(start, f"metadata of more than {self.max_headers} bytes")
        return 0

    # One metadata entry, of any protocol

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _begin_metadata(self) -> cython.int:
        self.seen = 0
        self.user_keys = 0
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _entry(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        table: FrameTable,
        row: cython.Py_ssize_t,
    ) -> cython.int:
        """Take an entry into its column, or mark the row as having headers; no key twice."""
        key: cython.int = self._key(p, table)
        value: cython.p_const_uchar = p if self.value_at >= 0 else table.side.data
        value_at: cython.Py_ssize_t = self.value_at if self.value_at >= 0 else -1 - self.value_at
        n: cython.int = self.value_len
        number: cython.longlong
        if key == 0:
            table.flags[row] |= _UNREAD
            return self._new_user_key(p, at, table)
        if self.seen & (1 << key):
            raise self.error(at, f"the metadata key {KEYS[key]} twice")
        self.seen |= 1 << key
        if key > _LAST_FIELD:
            table.flags[row] |= _UNREAD | _SECRET if key == _TOKEN else _UNREAD
        elif key == _ACK_KEY:
            if (n == 1 and value[value_at] == 49) or (n == 4 and same(value, value_at, b"true", 4)):
                table.flags[row] |= _ACK
        elif key == _TTL:
            number = decimal(value, value_at, n)
            if number < 0:
                raise self.error(at, "a ttl that is not a number of milliseconds")
            table.ttl[row] = cython.cast(cython.int, min(number, 0x7FFFFFFF))
        elif key == _PRIO:
            if n != 1 or (value[value_at] != 48 and value[value_at] != 49):
                raise self.error(at, "a prio that is neither 0 nor 1")
            table.priority[row] = value[value_at] - 48
        elif key == _ID:
            if table.id_len[row] == 0:
                table.id_at[row] = self.value_at
                table.id_len[row] = n
        elif key == _TX:
            if table.correlation_len[row] == 0:
                table.correlation_at[row] = self.value_at
                table.correlation_len[row] = n
        elif key == _TO:
            table.target_at[row] = self.value_at
            table.target_len[row] = n
        elif key == _FROM:
            table.source_at[row] = self.value_at
            table.source_len[row] = n
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _absent_entry(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, table: FrameTable
    ) -> cython.int:
        """Look at the key of an entry whose value is null: nothing is taken, but no key twice."""
        key: cython.int = self._key(p, table)
        if key == 0:
            return self._new_user_key(p, at, table)
        if self.seen & (1 << key):
            raise self.error(at, f"the metadata key {KEYS[key]} twice")
        self.seen |= 1 << key
        return 0

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _key(self, p: cython.p_const_uchar, table: FrameTable) -> cython.int:
        if self.key_at >= 0:
            return find_name(self.keys, p, self.key_at, self.key_len)
        return find_name(self.keys, table.side.data, -1 - self.key_at, self.key_len)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _is_reserved(self, p: cython.p_const_uchar, table: FrameTable) -> cython.bint:
        """Does a user's key begin with `$`, and so pose as a parameter? (decision 4)"""
        if self.key_len == 0:
            return False
        if self.key_at >= 0:
            return p[self.key_at] == 36
        return table.side.data[-1 - self.key_at] == 36

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _new_user_key(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, table: FrameTable
    ) -> cython.int:
        """Refuse a user's key that this frame has had before."""
        k: cython.int
        i: cython.int
        key: cython.p_const_uchar = p if self.key_at >= 0 else table.side.data
        key_at: cython.Py_ssize_t = self.key_at if self.key_at >= 0 else -1 - self.key_at
        old: cython.p_const_uchar
        old_at: cython.Py_ssize_t
        if self.user_keys < _FEW_KEYS:
            for k in range(self.user_keys):
                if self.few[2 * k + 1] != self.key_len:
                    continue
                old_at = self.few[2 * k]
                old = p if old_at >= 0 else table.side.data
                old_at = old_at if old_at >= 0 else -1 - old_at
                for i in range(self.key_len):
                    if old[old_at + i] != key[key_at + i]:
                        break
                else:
                    raise self.error(at, "the same metadata key twice")
            self.few[2 * self.user_keys] = self.key_at
            self.few[2 * self.user_keys + 1] = self.key_len
        else:
            if self.user_keys == _FEW_KEYS:
                self.many.clear()
                for k in range(_FEW_KEYS):
                    old_at = self.few[2 * k]
                    old = p if old_at >= 0 else table.side.data
                    old_at = old_at if old_at >= 0 else -1 - old_at
                    self.many.add(bytes(old[old_at : old_at + self.few[2 * k + 1]]))
            name = bytes(key[key_at : key_at + self.key_len])
            if name in self.many:
                raise self.error(at, "the same metadata key twice")
            self.many.add(name)
        self.user_keys += 1
        return 0

    # Headers, in the one form

    @cython.ccall
    def read_headers(self, table: FrameTable) -> None:
        """Bring the headers of rows marked UNREAD into the one form."""
        row: cython.Py_ssize_t
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        start: cython.int
        mark: cython.Py_ssize_t
        side: Octets = table.side
        p: cython.p_const_uchar = table.address_p
        for row in range(table.count):
            if not table.flags[row] & _UNREAD:
                continue
            table.flags[row] &= ~_UNREAD
            at = table.headers_at[row]
            size = table.headers_len[row]
            start = table.side_at()
            if self.protocol == 1:
                self._pairs(p, at, at + size, table, row, True)
            elif size:
                self.cursor.set(p, at, at + size)
                self._metadata(table, row, True)
            if table.sent[row]:
                mark = side.size
                side.put_uint32(len(_TIMESTAMP))
                side.put_uint32(0)
                side.put_bytes(_TIMESTAMP)
                side.put_decimal(table.sent[row])
                side.set_uint32(mark + 4, side.size - mark - 8 - len(_TIMESTAMP))
            table.headers_at[row] = start
            table.headers_len[row] = start - table.side_at()

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def _emit(
        self, p: cython.p_const_uchar, table: FrameTable, mark: cython.Py_ssize_t
    ) -> cython.int:
        """Write the entry as a header, unless it is a field; the side buffer ended at `mark`."""
        key: cython.int = self._key(p, table)
        side: Octets = table.side
        if 0 < key <= _LAST_FIELD or (key == 0 and self._is_reserved(p, table)):
            side.size = mark
        elif self.key_at >= 0 and self.value_at >= 0:
            side.put_uint32(self.key_len + (1 if key else 0))
            side.put_uint32(self.value_len)
            if key:
                side.put_uint8(36)
            side.put(p, self.key_at, self.key_len)
            side.put(p, self.value_at, self.value_len)
        else:
            # What was decoded lies where the header must go.
            name = self._bytes(p, table, self.key_at, self.key_len)
            value = self._bytes(p, table, self.value_at, self.value_len)
            side.size = mark
            table.put_header(b"$" + name if key else name, value)
        return 0

    @cython.cfunc
    def _bytes(
        self, p: cython.p_const_uchar, table: FrameTable, at: cython.int, n: cython.int
    ) -> bytes:
        if at >= 0:
            return bytes(p[at : at + n])
        return bytes(table.side.data[-1 - at : n - 1 - at])
