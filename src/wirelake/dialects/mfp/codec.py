"""mfp v1: `type(1) uid(16) length(4) payload`, from seed 002.

Rules that are not plain from the code:
- The frame carries no address (spec: mfp 7). A message's address is the topic that the last
  TOPICSET of its connection set, so the scanner remembers it, and an encoder that writes for a
  client sets the topic whenever it changes.
- A fault in a handshake is answered with FAIL under the handshake's uid (spec: mfp 2); the error
  carries that answer.
- A body over 1000 bytes, within the frame limit, is a row marked OVERSIZE: read, not published
  (spec: mfp 5). A wrong option is a row with the op `unknown`: FAIL, and the connection lives on
  (spec: mfp 3).
- A message from another dialect gets a new uid (spec: mfp 6). The wire library has no source of
  chance, so the encoder counts up from a seed that its owner gives.
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

from wirelake.dialects.dialect import HEAD, NO
from wirelake.wire import codec, parameters

#: The largest payload of a frame that is read at all, and the largest body that is published.
MAX_FRAME = 64 << 10
MAX_BODY = 1000
MAX_OPTION = 128
#: Bytes of a handshake at most, behind its length.
_MAX_HANDSHAKE = 1002

_MAX_FRAME = cython.declare(cython.int, MAX_FRAME)
_LOW_HALF = cython.declare(cython.longlong, 0xFFFFFFFF)  # a literal would be an object
_MAX_BODY = cython.declare(cython.int, MAX_BODY)
_MAX_OPTION = cython.declare(cython.int, MAX_OPTION)
_ACK = cython.declare(cython.int, Flag.ACK)
_TEXT = cython.declare(cython.int, Flag.TEXT)
_OVERSIZE = cython.declare(cython.int, Flag.OVERSIZE)
_UNKNOWN = cython.declare(cython.int, Op.UNKNOWN)
_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_SUBSCRIBE = cython.declare(cython.int, Op.SUBSCRIBE)
_UNSUBSCRIBE = cython.declare(cython.int, Op.UNSUBSCRIBE)
_REQUEST = cython.declare(cython.int, Op.REQUEST)
_ENQUEUE = cython.declare(cython.int, Op.ENQUEUE)
_DELIVER = cython.declare(cython.int, Op.DELIVER)
_OK = cython.declare(cython.int, Op.OK)
_ERROR = cython.declare(cython.int, Op.ERROR)
_HANDSHAKE = cython.declare(cython.int, Op.HANDSHAKE)
_TOPIC = cython.declare(cython.int, Op.TOPIC)
_SKIP_OP = cython.declare(cython.int, codec.SKIP_OP)
_SKIP_ADDRESS = cython.declare(cython.int, codec.SKIP_ADDRESS)
_SKIP_PAYLOAD = cython.declare(cython.int, codec.SKIP_PAYLOAD)
_SKIP_ID = cython.declare(cython.int, codec.SKIP_ID)


@cython.final
@cython.cclass
class MfpScanner(Scanner):
    """mfp frames to rows."""

    topic: Octets
    topic_at: cython.int

    def __init__(self, dialect: str = "mfp-1", limits: Limits = Limits()) -> None:  # noqa: B008
        Scanner.__init__(self, dialect, limits)
        self.topic = Octets(MAX_OPTION)

    def set_context(self, context: bytes) -> None:
        """Replace the connection's topic, as a broker does that refused the one just set."""
        self.topic.size = 0
        self.topic.put_bytes(context)

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def start(self, table: FrameTable) -> cython.int:
        """The topic of an earlier call lies in the side buffer; one set in this call, in place."""
        table.raw_ids = True
        self.topic_at = table.side_at()
        table.side.put(self.topic.data, 0, self.topic.size)
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
        kind: cython.int = p[at]
        size: cython.longlong
        body: cython.Py_ssize_t = at + 21
        row: cython.Py_ssize_t = table.count
        n: cython.int
        if kind > 3:
            raise self.error(at, f"frame type {kind}; there are only 0 to 3")
        if end - at < 21:
            self.need = 21
            return 0
        size = uint32(p, at + 17)
        if size > _MAX_FRAME:
            if size > 0x7FFFFFFF:
                raise self.error(at + 17, f"a negative length, {size - (1 << 32)}")
            raise self.error(at + 17, f"a length of {size}; at most {MAX_FRAME}")
        if end - body < size:
            self.need = 21 + size
            return 0
        n = cython.cast(cython.int, size)
        table.frame_at[row] = at
        table.frame_len[row] = 21 + n
        table.flags[row] = 0
        table.address_len[row] = 0
        table.payload_len[row] = 0
        table.source_len[row] = 0
        table.headers_len[row] = 0
        table.id_at[row] = at + 1
        table.id_len[row] = 16
        if kind == 2:
            if n < 2:
                raise self.error(body, "a message without its type and acknowledge bytes")
            if p[body] > 1 or p[body + 1] > 1:
                raise self.error(body, f"message type {p[body]}, acknowledge {p[body + 1]}")
            table.op[row] = _PUBLISH
            table.flags[row] = (
                (_TEXT if p[body] == 0 else 0)
                | (_ACK if p[body + 1] == 0 else 0)
                | (_OVERSIZE if n - 2 > _MAX_BODY else 0)
            )
            table.address_at[row] = self.topic_at
            table.address_len[row] = self.topic.size
            table.payload_at[row] = body + 2
            table.payload_len[row] = n - 2
        elif kind == 3:
            if n != 1 or p[body] > 1:
                raise self.error(body, "an acknowledgement is one byte, 0 or 1")
            table.op[row] = _OK if p[body] == 0 else _ERROR
        elif kind == 1:
            self._option(p, body, n, table)
        else:
            self._handshake(p, at, n, table)
        table.count = row + 1
        return 21 + n

    @cython.cfunc
    def _option(
        self, p: cython.p_const_uchar, body: cython.Py_ssize_t, n: cython.int, table: FrameTable
    ) -> cython.int:
        row: cython.Py_ssize_t = table.count
        if n < 1:
            raise self.error(body, "an option without its type")
        if not is_utf8(p, body + 1, n - 1):
            raise self.error(body + 1, "an option value that is not UTF-8")
        table.address_at[row] = body + 1
        table.address_len[row] = n - 1
        if p[body] > 3 or n - 1 > _MAX_OPTION:
            table.op[row] = _UNKNOWN
            if n - 1 > _MAX_OPTION:
                n = 1 + _MAX_OPTION
                while p[body + n] & 0xC0 == 0x80:
                    n -= 1  # never cut inside a character
                table.address_len[row] = n - 1
        elif p[body] == 0:
            table.op[row] = _TOPIC
            self.topic.size = 0
            self.topic.put(p, body + 1, n - 1)
            self.topic_at = body + 1
        elif p[body] == 1:
            table.op[row] = _SUBSCRIBE
        else:
            table.op[row] = _UNSUBSCRIBE
            if p[body] == 3:
                table.address_len[row] = 0
        return 0

    @cython.cfunc
    def _handshake(
        self, p: cython.p_const_uchar, at: cython.Py_ssize_t, n: cython.int, table: FrameTable
    ) -> cython.int:
        row: cython.Py_ssize_t = table.count
        body: cython.Py_ssize_t = at + 21
        fail = b"\x03" + bytes(p[at + 1 : at + 17]) + b"\x00\x00\x00\x01\x01"
        if n < 2 or p[body] != 1:
            raise self.error(body, "a handshake of another version than 1", fail)
        if p[body + 1] > 1:
            raise self.error(body + 1, f"connection type {p[body + 1]}; 0 is PUB, 1 is SUB", fail)
        if n % 2 or not 8 <= n - 2 <= 64:
            raise self.error(body + 2, "a connection-id outside 4 to 32 UTF-16 units", fail)
        try:
            name = bytes(p[body + 2 : body + n]).decode("utf-16-be").encode()
        except UnicodeDecodeError:
            raise self.error(body + 2, "a connection-id that is not UTF-16", fail) from None
        table.op[row] = _HANDSHAKE
        table.source_at[row] = table.side_at()
        table.source_len[row] = len(name)
        table.side.put_bytes(name)
        table.headers_at[row] = table.side_at()
        table.put_header(parameters.CONNECTION, b"sub" if p[body + 1] else b"pub")
        table.headers_len[row] = table.headers_at[row] - table.side_at()
        return 0


@cython.final
@cython.cclass
class MfpEncoder(Encoder):
    """Rows to mfp frames; for a client with the topic set before the messages that need it."""

    topic: Octets
    seed: bytes
    made: cython.longlong
    split: cython.bint

    def __init__(self, dialect: str = "mfp-1", client: bool = True) -> None:
        Encoder.__init__(self, dialect, client)
        self.topic = Octets(MAX_OPTION)
        self.seed = bytes(8)
        self.made = 0
        self.split = False

    def prepare(self, seed: bytes, *, split: bool) -> None:
        """Let new uids begin with a seed; split bodies of over 1000 bytes (`mfp.oversize`)."""
        if len(seed) != 8:
            raise ValueError("the seed of new uids is 8 bytes")
        self.seed = seed
        self.split = split

    @cython.cfunc
    @cython.exceptval(-1, check=False)
    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        op: cython.int = table.op[row]
        out: Octets = self.out
        status: cython.int
        if op in (_PUBLISH, _ENQUEUE, _DELIVER):
            if table.payload_len[row] > _MAX_BODY and not (
                self.split or (self.own and table.flags[row] & _OVERSIZE)
            ):
                return _SKIP_PAYLOAD  # before a topic is set that nobody would see
            if self.client:
                status = self._set_topic(table, row)
                if status:
                    return status
            return self._message(table, row)
        if op in (_OK, _ERROR):
            # An acknowledgement names the frame it answers: without that uid it means nothing.
            if not self._put_own_uid(table, row, 3):
                return _SKIP_ID
            out.put_uint32(1)
            return out.put_uint8(0 if op == _OK else 1)
        if op in (_TOPIC, _SUBSCRIBE, _UNSUBSCRIBE):
            if table.address_len[row] > _MAX_OPTION:
                return _SKIP_ADDRESS
            self._put_uid(table, row, 1)
            out.put_uint32(1 + table.address_len[row])
            if op == _TOPIC:
                out.put_uint8(0)
                self.topic.size = 0
                table.put(
                    self.topic, table.address_p, table.address_at[row], table.address_len[row]
                )
            elif op == _SUBSCRIBE:
                out.put_uint8(1)
            else:
                out.put_uint8(2 if table.address_len[row] else 3)
            return table.put(out, table.address_p, table.address_at[row], table.address_len[row])
        if op == _HANDSHAKE:
            return self._handshake(table, row)
        return _SKIP_OP

    @cython.cfunc
    def _handshake(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        message = table.message(row)
        name = message.source.encode("utf-16-be")
        if not 8 <= len(name) <= 64:
            return _SKIP_ID
        self._put_uid(table, row, 0)
        self.out.put_uint32(2 + len(name))
        self.out.put_uint8(1)
        self.out.put_uint8(1 if message.parameters.connection == "sub" else 0)
        self.out.put_bytes(name)
        return 0

    @cython.cfunc
    def _set_topic(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        n: cython.int = table.address_len[row]
        at: cython.int = table.address_at[row]
        p: cython.p_const_uchar = table.address_p
        i: cython.Py_ssize_t
        if at < 0:
            p = table.side.data
            at = -1 - at
        if n == self.topic.size:
            for i in range(n):
                if p[at + i] != self.topic.data[i]:
                    break
            else:
                return 0
        if n > _MAX_OPTION:
            return _SKIP_ADDRESS
        self.topic.size = 0
        self.topic.put(p, at, n)
        self.out.put_uint8(1)
        self._put_new_uid()
        self.out.put_uint32(1 + n)
        self.out.put_uint8(0)
        return self.out.put(p, at, n)

    @cython.cfunc
    def _message(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        n: cython.int = table.payload_len[row]
        at: cython.int = table.payload_at[row]
        p: cython.p_const_uchar = table.payload_p
        part: cython.int
        text: cython.bint
        ack: cython.bint = self.client and table.flags[row] & _ACK
        if at < 0:
            p = table.side.data
            at = -1 - at
        if self.own:
            text = table.flags[row] & _TEXT
        else:
            text = is_utf8(p, at, n)
        while True:
            part = n
            if n > _MAX_BODY and self.split:
                part = _MAX_BODY
                while text and part > _MAX_BODY - 3 and p[at + part] & 0xC0 == 0x80:
                    part -= 1  # never cut inside a character, of four bytes at most
            self._put_uid(table, row, 2)
            self.out.put_uint32(2 + part)
            self.out.put_uint8(0 if text else 1)
            self.out.put_uint8(0 if ack else 1)
            self.out.put(p, at, part)
            at += part
            n -= part
            if n == 0:
                return 0

    @cython.cfunc
    def _put_uid(self, table: FrameTable, row: cython.Py_ssize_t, kind: cython.int) -> cython.int:
        """The frame's type and uid: its own where it is of mfp, else a new one."""
        if not (self.own and self._put_own_uid(table, row, kind)):
            self.out.put_uint8(kind)
            self._put_new_uid()
        return 0

    @cython.cfunc
    def _put_own_uid(
        self, table: FrameTable, row: cython.Py_ssize_t, kind: cython.int
    ) -> cython.bint:
        """The frame's type and the row's id as uid; false where the id is not one."""
        if table.raw_ids and table.id_len[row] == 16:
            self.out.put_uint8(kind)
            self.out.put(table.id_p, table.id_at[row], 16)
            return True
        if table.id_len[row] != 32:
            return False
        try:
            uid = bytes.fromhex(table.message(row).id)
        except ValueError:
            return False
        if len(uid) != 16:
            return False
        self.out.put_uint8(kind)
        self.out.put_bytes(uid)
        return True

    @cython.cfunc
    def _put_new_uid(self) -> cython.int:
        self.made += 1
        self.out.put_bytes(self.seed)
        self.out.put_uint32(self.made >> 32)
        return self.out.put_uint32(self.made & _LOW_HALF)


def detect(head: bytes) -> str | None:
    """Tell mfp by its handshake."""
    if head[0] != 0:
        return NO
    if len(head) >= 21 and int.from_bytes(head[17:21], "big") > _MAX_HANDSHAKE:
        return NO
    if head[21:22] not in (b"", b"\x01") or head[22:] not in (b"", b"\x00", b"\x01"):
        return NO
    return "mfp-1" if len(head) == HEAD else None


def detect_in_family(head: bytes) -> str | None:
    """There is one dialect: the scanner finds the faults."""
    return "mfp-1"
