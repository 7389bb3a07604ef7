"""boson-text: `length|options|topic|content`, and sequences of such frames, from seed 000.

Rules that are not plain from the code:
- A sequence stays in the caller's buffer until its end has arrived. The scanner remembers how far
  it has walked, so that a byte is looked at a bounded number of times however it arrives. An `m`
  sequence then is one row, its parts joined in the side buffer; an `mm` sequence is handed out one
  part a call, so that a full table is nothing special.
- `0|0` ends a sequence at once. What may follow of its long form, `|topic|`, is read as a tail of
  its own, and counted to the last row's frame where that is still at hand (spec: boson-text 3).
- Topics that begin with `$` are control, whole or in a sequence (spec: boson-text 6).
- There is an op for errors, so every fault carries its answer.
"""

from __future__ import annotations

import re

import cython

from wirelake.errors import ProtocolError
from wirelake.message import Flag, Limits, Op

if cython.compiled:
    from cython.cimports.wirelake.wire.codec import Encoder, Scanner
    from cython.cimports.wirelake.wire.octets import Octets, is_utf8, same, uint32
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.codec import Encoder, Scanner
    from wirelake.wire.octets import Octets, is_utf8, same, uint32
    from wirelake.wire.table import FrameTable

from wirelake.dialects.dialect import NO
from wirelake.wire import codec, parameters

#: Where a message without a topic goes, unless `$topic` said otherwise (decision 8).
DEFAULT_ADDRESS = b"boson"
#: The longest list of options (decision 11).
MAX_OPTIONS = 255

_MAX_OPTIONS = cython.declare(cython.int, MAX_OPTIONS)
_IMPLIED = cython.declare(cython.int, Flag.IMPLIED)
_MORE = cython.declare(cython.int, Flag.MORE)
_UNKNOWN = cython.declare(cython.int, Op.UNKNOWN)
_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_REQUEST = cython.declare(cython.int, Op.REQUEST)
_REPLY = cython.declare(cython.int, Op.REPLY)
_ENQUEUE = cython.declare(cython.int, Op.ENQUEUE)
_DELIVER = cython.declare(cython.int, Op.DELIVER)
_AUTH = cython.declare(cython.int, Op.AUTH)
_ERROR = cython.declare(cython.int, Op.ERROR)
_TOPIC = cython.declare(cython.int, Op.TOPIC)
_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)
_SKIP_ID = cython.declare(cython.int, codec.SKIP_ID)

_PIPE = cython.declare(cython.int, ord("|"))
_COMMA = cython.declare(cython.int, ord(","))
_DOLLAR = cython.declare(cython.int, ord("$"))
_ZERO = cython.declare(cython.int, ord("0"))
_NINE = cython.declare(cython.int, ord("9"))
_M = cython.declare(cython.int, ord("m"))
_WHOLE = cython.declare(bytes, b"|0|")
_OPTIONS = cython.declare(bytes, b"boson.options")

# What its options say of a frame: nothing, that it is the last or only one, or that more follow.
_NONE = cython.declare(cython.int, 0)
_LAST = cython.declare(cython.int, 1)
_JOIN = cython.declare(cython.int, 2)
_SPLIT = cython.declare(cython.int, 3)
_MODES = frozenset((b"0", b"m", b"mm"))

# Where the scanner stands: outside of a sequence; inside an unfinished one; handing out the parts
# of a finished one; behind a `0|0` that may have been the head of `0|0|topic|`.
_OUTSIDE = cython.declare(cython.int, 0)
_INSIDE = cython.declare(cython.int, 1)
_READY = cython.declare(cython.int, 2)
_TAIL = cython.declare(cython.int, 3)

#: The reserved topics (spec: boson-text 6); the content of the first four is an address.
_CONTROLS = {
    b"$subscribe": Op.SUBSCRIBE,
    b"$unsubscribe": Op.UNSUBSCRIBE,
    b"$topic": Op.TOPIC,
    b"$serve": Op.SERVE,
    b"$auth": Op.AUTH,
    b"$ping": Op.PING,
    b"$pong": Op.PONG,
    b"$ok": Op.OK,
    b"$error": Op.ERROR,
}
_CONTROL_TOPICS = {op: topic for topic, op in _CONTROLS.items()}
_ADDRESSED = (Op.SUBSCRIBE, Op.UNSUBSCRIBE, Op.TOPIC, Op.SERVE)
_NAMED_CONTROLS = {b"$request": Op.REQUEST, b"$reply": Op.REPLY, b"$fail": Op.ERROR}
_NAMED = re.compile(rb"(\$[a-z]+)/([A-Za-z0-9_.-]{1,64})(?:/(.+))?", re.DOTALL)
_ID = re.compile(rb"[A-Za-z0-9_.-]{1,64}")
_LIST = re.compile(rb"[A-Za-z0-9]+(,[A-Za-z0-9]+)*")
#: How much longer than an address the topic `$request/<id>/<address>` may be.
_PREFIX = cython.declare(cython.int, len("$request//") + 64)


@cython.cfunc
@cython.exceptval(check=False)
def _mode(p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.Py_ssize_t) -> cython.int:
    """What the option of n bytes at p[at] says of its frame."""
    if n == 1 and p[at] == _ZERO:
        return _LAST
    if n == 1 and p[at] == _M:
        return _JOIN
    if n == 2 and p[at] == _M and p[at + 1] == _M:
        return _SPLIT
    return _NONE


@cython.cfunc
@cython.exceptval(check=False)
def _further(at: cython.int, n: cython.int) -> cython.int:
    """The place n bytes further on; places in the side buffer count down."""
    return at + n if at >= 0 else at - n


@cython.final
@cython.cclass
class BosonTextScanner(Scanner):
    """boson-text frames to rows; those of a sequence when its end has arrived."""

    max_sequence: cython.longlong
    state: cython.int
    # The default address, and where it stands in the current table.
    topic: Octets
    topic_at: cython.int
    topic_len: cython.int
    # The header that was read last: its mode, the size of its content, its topic, other options.
    mode: cython.int
    size: cython.longlong
    name_at: cython.Py_ssize_t
    name_len: cython.int
    others: bytes
    # The sequence: its topic, with its place in the current table or 0, and its mode. Of its bytes,
    # how many were walked, are still to be handed out, are content, are an empty terminator.
    group: Octets
    group_at: cython.int
    group_mode: cython.int
    walked: cython.Py_ssize_t
    left: cython.Py_ssize_t
    content: cython.longlong
    closing: cython.Py_ssize_t

    def __init__(self, dialect: str = "boson-text", limits: Limits = Limits()) -> None:  # noqa: B008
        Scanner.__init__(self, dialect, limits)
        self.topic = Octets(256)
        self.group = Octets(256)
        self.state = _OUTSIDE
        self.others = b""
        self.walked = self.left = self.closing = 0
        self.content = 0

    def set_limits(self, limits: Limits) -> None:
        """Set the limits, from the next frame on."""
        Scanner.set_limits(self, limits)
        self.max_sequence = limits.sequence

    def set_context(self, context: bytes) -> None:
        """Replace the default address, as a broker does that refused the one just set."""
        self.topic.size = 0
        self.topic.put_bytes(context)

    def error(self, at: int, reason: str, answer: bytes = b"") -> ProtocolError:
        """The error for a fault at byte `at` of the current buffer, answered by `$error`."""
        text = b"bad_request " + reason.encode()
        return Scanner.error(self, at, reason, b"%d|0|$error|%b" % (len(text), text))

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def start(self, table: FrameTable) -> cython.int:
        """The default address lies in the side buffer."""
        self.topic_at = table.side_at()
        if self.topic.size:
            table.side.put(self.topic.data, 0, self.topic.size)
        else:
            table.side.put_bytes(DEFAULT_ADDRESS)
        self.topic_len = self.topic_at - table.side_at()
        self.group_at = 0
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
        body: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        if self.state != _OUTSIDE:
            if self.state == _INSIDE:
                return self._walk(p, at, end, table)
            if self.state == _READY:
                return self._part(p, at, table)
            if p[at] == _PIPE:
                return self._tail(p, at, end, table)
            self.state = _OUTSIDE
        body = self._header(p, at, end)
        if body == 0:
            return 0
        if self.mode >= _JOIN:
            self.state = _INSIDE
            self.group_at = 0
            self.group_mode = self.mode
            self.group.size = 0
            self.group.put(p, self.name_at, self.name_len)
            return self._walk(p, at, end, table)
        if end - body < self.size:
            self.need = body - at + self.size
            return 0
        stop = body + cython.cast(cython.Py_ssize_t, self.size)
        self._add(p, at, stop, body, table)
        return stop - at

    @cython.cfunc
    def _header(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read the header at p[at]; return where its content begins, 0 where it is not complete.

        It is judged byte by byte: no fault may depend on what lies behind it, and may not be there.
        """
        i: cython.Py_ssize_t = at
        stop: cython.Py_ssize_t = end if end - at < 10 else at + 10
        size: cython.longlong = 0
        limit: cython.int = self.max_address
        seen: cython.int = 0
        while i < stop and _ZERO <= p[i] <= _NINE:
            size = size * 10 + (p[i] - _ZERO)
            i += 1
        if i - at > 1 and p[at] == _ZERO:
            raise self.error(at, "a length with a leading zero")
        if i == end:
            return 0
        if i == at or p[i] != _PIPE:
            raise self.error(i, "a length is 1 to 10 digits and a pipe")
        if size > self.max_message:
            raise self.error(at, f"a length of {size}; at most {self.max_message}")
        self.size = size
        i += 1
        if size == 0 and i < end and p[i] == _ZERO:
            if self.state != _OUTSIDE:
                self.mode = _LAST  # the bare terminator, whatever follows
                self.name_len = 0
                return i + 1
            if end - i > 1 and p[i + 1] != _PIPE and p[i + 1] != _COMMA:
                raise self.error(at, "a bare terminator outside of a sequence")
        if end - i > 1 and p[i] == _ZERO and p[i + 1] == _PIPE:
            self.mode = _LAST
            i += 2
        else:
            i = self._options(p, i, end)
            if i == 0:
                return 0
        if self.state != _OUTSIDE and self.mode != _LAST:
            if self.mode == _NONE or self.mode > self.group_mode:
                raise self.error(at, "inside a sequence a frame has m, or mm as the first, or 0")
        self.name_at = i
        if i < end and p[i] == _DOLLAR:
            limit += _PREFIX
        stop = end if end - i <= limit else i + limit + 1
        while i < stop and p[i] != _PIPE:
            seen |= p[i]
            i += 1
        self.name_len = i - self.name_at
        if self.name_len > limit:
            raise self.error(self.name_at, f"a topic of more than {limit} bytes")
        if i == end:
            return 0
        if seen >= 0x80 and not is_utf8(p, self.name_at, self.name_len):
            raise self.error(self.name_at, "a topic that is not UTF-8")
        if (
            self.state != _OUTSIDE
            and self.name_len
            and not (
                self.name_len == self.group.size
                and same(p, self.name_at, self.group.data, self.name_len)
            )
        ):
            raise self.error(self.name_at, "another topic inside a sequence")
        return i + 1

    @cython.cfunc
    def _options(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
    ) -> cython.Py_ssize_t:
        """Read the options at p[at]; return where the topic begins, 0 where they go on."""
        i: cython.Py_ssize_t = at
        start: cython.Py_ssize_t = at
        mode: cython.int
        others: cython.bint = False
        self.mode = _NONE
        while True:
            if i == end:
                return 0
            if p[i] == _PIPE or p[i] == _COMMA:
                mode = _mode(p, start, i - start)
                if i == start:
                    raise self.error(i, "an empty option")
                if mode == _NONE:
                    others = True
                elif self.mode == _NONE:
                    self.mode = mode
                else:
                    raise self.error(start, "more than one of the options 0, m and mm")
                if p[i] == _PIPE:
                    break
                start = i + 1
            elif not (_ZERO <= p[i] <= _NINE or 97 <= p[i] | 32 <= 122):
                raise self.error(i, "an option is letters and digits")
            if i - at == _MAX_OPTIONS:
                raise self.error(at, f"more than {MAX_OPTIONS} bytes of options")
            i += 1
        if others and self.state != _INSIDE:
            options = bytes(p[at:i]).split(b",")
            self.others = b",".join([option for option in options if option not in _MODES])
        return i + 1

    @cython.cfunc
    def _walk(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Go on through the sequence at p[at]; hand it out once its end is there."""
        i: cython.Py_ssize_t
        body: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        while True:
            i = at + self.walked
            body = self._header(p, i, end)
            if body == 0:
                return 0
            if self.group_mode == _JOIN and self.content + self.size > self.max_message:
                raise self.error(i, f"joined parts of more than {self.max_message} bytes")
            if body - at + self.size > self.max_sequence:
                raise self.error(i, f"a sequence of more than {self.max_sequence} bytes")
            if end - body < self.size:
                self.need = body - at + self.size
                return 0
            stop = body + cython.cast(cython.Py_ssize_t, self.size)
            if self.mode == _LAST:
                break
            self.walked = stop - at
            self.content += self.size
        self.closing = stop - i if self.size == 0 else 0
        if self.group_mode == _JOIN:
            return self._join(p, at, stop, table)
        self.state = _READY
        self.left = stop - at
        return self._part(p, at, table)

    @cython.cfunc
    def _join(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Add the sequence of `m` in p[at] to p[stop - 1] as one row."""
        place: cython.int = table.side_at()
        i: cython.Py_ssize_t = at
        body: cython.Py_ssize_t
        n: cython.Py_ssize_t
        while i < stop:
            body = self._header(p, i, stop)
            n = cython.cast(cython.Py_ssize_t, self.size)
            table.side.put(p, body, n)
            i = body + n
        self.size = place - table.side_at()
        self._add(p, at, stop, place, table)
        self._close()
        return stop - at

    @cython.cfunc
    def _part(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, table: FrameTable
    ) -> cython.Py_ssize_t:
        """Add the part at p[at] of a finished sequence of `mm`, the last with the terminator."""
        end: cython.Py_ssize_t = at + self.left
        body: cython.Py_ssize_t = self._header(p, at, end)
        stop: cython.Py_ssize_t = body + cython.cast(cython.Py_ssize_t, self.size)
        if stop + self.closing == end:
            self._add(p, at, end, body, table)
            self._close()
            return end - at
        self._add(p, at, stop, body, table)
        table.flags[table.count - 1] |= _MORE
        self.left = end - stop
        return stop - at

    @cython.cfunc
    def _close(self) -> cython.int:
        """Leave the sequence; behind a bare terminator the rest of a long one may come."""
        self.state = _TAIL if self.closing == 3 else _OUTSIDE
        self.walked = self.left = 0
        self.content = 0
        return 0

    @cython.cfunc
    def _tail(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Consume `|topic|` or `||`, the rest of a long terminator."""
        i: cython.Py_ssize_t
        n: cython.Py_ssize_t = self.group.size
        size: cython.Py_ssize_t = 2 if end - at > 1 and p[at + 1] == _PIPE else n + 2
        for i in range(at + 1, min(end, at + size)):
            if p[i] != (_PIPE if i == at + size - 1 else self.group.data[i - at - 1]):
                raise self.error(i, "a terminator with another topic than its sequence")
        if end - at < size:
            return 0
        self.state = _OUTSIDE
        if table.count:
            table.frame_len[table.count - 1] += size
        return size

    @cython.cfunc
    def _add(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        payload: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.int:
        """Add the row of a message of `size` bytes at `payload`, whose frames are p[at:stop]."""
        row: cython.Py_ssize_t = table.count
        head: cython.int
        table.frame_at[row] = at
        table.frame_len[row] = stop - at
        table.op[row] = _PUBLISH
        table.flags[row] = 0
        table.payload_at[row] = payload
        table.payload_len[row] = self.size
        table.correlation_len[row] = 0
        table.headers_len[row] = 0
        if self.state == _OUTSIDE:
            table.address_at[row] = self.name_at
            table.address_len[row] = self.name_len
            head = p[self.name_at]  # at worst the pipe behind an empty topic
        else:
            if self.group_at == 0:
                # The frame that had it may have been handed out in an earlier call, and be gone.
                self.group_at = table.side_at()
                table.side.put(self.group.data, 0, self.group.size)
            table.address_at[row] = self.group_at
            table.address_len[row] = self.group.size
            head = self.group.data[0]
        if table.address_len[row] == 0:
            table.flags[row] = _IMPLIED
            table.address_at[row] = self.topic_at
            table.address_len[row] = self.topic_len
        elif head == _DOLLAR:
            self._control(table, row)
        if self.others:
            self._put_header(table, row, _OPTIONS, self.others)
            self.others = b""
        table.count = row + 1
        return 0

    @cython.cfunc
    def _control(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """Turn a row on a reserved topic into the op that it means; malformed is `unknown`."""
        at: cython.int
        topic = table._bytes(table.address_p, table.address_at[row], table.address_len[row])
        op: cython.int = _CONTROLS.get(topic, _UNKNOWN)
        named = _NAMED.fullmatch(topic)
        if named and named[1] in _NAMED_CONTROLS and bool(named[3]) == (named[1] == b"$request"):
            op = _NAMED_CONTROLS[named[1]]
            at = table.address_at[row]
            table.correlation_at[row] = _further(at, named.start(2))
            table.correlation_len[row] = len(named[2])
            table.address_at[row] = _further(at, named.end(2) + 1)
            table.address_len[row] = len(named[3] or b"")
        elif op in _ADDRESSED:
            self._text(table, row, self.max_address)
            table.address_at[row] = table.payload_at[row]
            table.address_len[row] = table.payload_len[row]
            table.payload_len[row] = 0
        elif op != _UNKNOWN:
            table.address_len[row] = 0
        if table.address_len[row] > self.max_address:
            raise self.error(table.frame_at[row], f"an address over {self.max_address} bytes")
        if op == _TOPIC:
            self.topic.size = 0
            table.put(self.topic, table.address_p, table.address_at[row], table.address_len[row])
            self.start(table)
        elif op == _AUTH:
            self._put_header(table, row, parameters.TOKEN, self._text(table, row, self.max_headers))
            table.payload_len[row] = 0
        elif op == _ERROR:
            self._split_code(table, row)
        table.op[row] = op
        return 0

    @cython.cfunc
    def _split_code(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """Take the code of an error and its text apart (decision 13)."""
        code = self._text(table, row, self.max_headers, b" ")
        n: cython.int = min(len(code) + 1, table.payload_len[row])
        table.payload_at[row] = _further(table.payload_at[row], n)
        table.payload_len[row] -= n
        return self._put_header(table, row, parameters.CODE, code)

    @cython.cfunc
    def _text(
        self, table: FrameTable, row: cython.Py_ssize_t, limit: cython.longlong, until: bytes = b""
    ) -> bytes:
        """The content of a control frame (up to a byte): UTF-8, and no more than `limit` of it."""
        n: cython.longlong = table.payload_len[row]
        text = table._bytes(table.payload_p, table.payload_at[row], min(n, limit + 1))
        if until:
            text = text.partition(until)[0]
        if len(text) > limit:
            raise self.error(table.frame_at[row], f"over {limit} bytes for a control topic")
        if not is_utf8(text, 0, len(text)):
            raise self.error(table.frame_at[row], "a control topic whose content is not UTF-8")
        return text

    @cython.cfunc
    def _put_header(
        self, table: FrameTable, row: cython.Py_ssize_t, name: bytes, value: bytes
    ) -> cython.int:
        """Add a header to a row, unless it is empty; the row's headers stand side by side."""
        if value:
            if table.headers_len[row] == 0:
                table.headers_at[row] = table.side_at()
            table.put_header(name, value)
            table.headers_len[row] = table.headers_at[row] - table.side_at()
        return 0


def _listed(options: bytes, empty: bool) -> bytes:
    """The header `boson.options` as options; just `0` where it is not such a list."""
    if not _LIST.fullmatch(options) or not _MODES.isdisjoint(options.split(b",")):
        return b"0"
    if empty and options.startswith(b"0"):
        options = b"0," + options  # `0|0` and more would be a bare terminator
    return options if len(options) <= MAX_OPTIONS else b"0"


@cython.final
@cython.cclass
class BosonTextEncoder(Encoder):
    """Rows to boson-text frames, one whole message each."""

    def __init__(self, dialect: str = "boson-text", client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        op: cython.int = table.op[row]
        out: Octets = self.out
        n: cython.int = table.address_len[row]
        if op != _PUBLISH and op != _ENQUEUE and op != _DELIVER:
            return self._control(table, row)
        if self.own and table.flags[row] & _IMPLIED:
            n = 0
        elif not self._is_topic(table, row):
            return _SKIP_ADDRESS
        self._put_head(table, row, table.payload_len[row])
        table.put(out, table.address_p, table.address_at[row], n)
        out.put_uint8(_PIPE)
        return table.put(out, table.payload_p, table.payload_at[row], table.payload_len[row])

    @cython.cfunc
    def _is_topic(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
        """Can the address stand between pipes?"""
        p: cython.p_const_uchar = table.address_p
        at: cython.Py_ssize_t = table.address_at[row]
        i: cython.Py_ssize_t
        if at < 0:
            p = table.side.data
            at = -1 - at
        for i in range(at, at + table.address_len[row]):
            if p[i] == _PIPE or (p[i] == _DOLLAR and i == at and table.op[row] != _REQUEST):
                return False  # in front a `$` is control
        return table.address_len[row] > 0

    @cython.cfunc
    def _put_head(
        self, table: FrameTable, row: cython.Py_ssize_t, n: cython.longlong
    ) -> cython.int:
        """The length and the options."""
        p: cython.p_const_uchar = table.side.data
        at: cython.Py_ssize_t = -1 - table.headers_at[row]
        end: cython.Py_ssize_t = at + table.headers_len[row]
        key: cython.Py_ssize_t
        value: cython.Py_ssize_t
        self.out.put_decimal(n)
        while at < end:
            key = uint32(p, at)
            value = uint32(p, at + 4)
            at += 8
            if key == 13 and value <= _MAX_OPTIONS and same(p, at, _OPTIONS, 13):
                listed = _listed(bytes(p[at + 13 : at + 13 + value]), n == 0)
                self.out.put_bytes(b"|" + listed + b"|")
                return 0
            at += key + value
        return self.out.put(_WHOLE, 0, 3)

    @cython.cfunc
    def _control(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """A row whose op only a reserved topic can say."""
        op: cython.int = table.op[row]
        n: cython.int = table.payload_len[row]
        topic = _CONTROL_TOPICS.get(op)
        head = b""
        if op in (_REQUEST, _REPLY) or (op == _ERROR and table.correlation_len[row]):
            identity = table._bytes(
                table.correlation_p, table.correlation_at[row], table.correlation_len[row]
            )
            if not _ID.fullmatch(identity):
                return _SKIP_ID
            if op != _REQUEST:
                topic = (b"$reply/" if op == _REPLY else b"$fail/") + identity
            elif self._is_topic(table, row):
                topic = b"$request/%b/%b" % (identity, table.address(row))
            else:
                return _SKIP_ADDRESS
        if topic is None:
            return _SKIP_OP
        if op == _ERROR:
            head = table.parameters(row).code.encode() + b" "
        elif op == _AUTH:
            head = table.parameters(row).token.encode()
            n = 0
        elif op in _ADDRESSED:
            head = table.address(row)
            n = 0
        self._put_head(table, row, len(head) + n)
        self.out.put_bytes(topic + b"|" + head)
        return table.put(self.out, table.payload_p, table.payload_at[row], n)


def detect(head: bytes) -> str | None:
    """Tell boson-text by a digit: a size."""
    return "boson-text" if head[:1].isdigit() else NO
