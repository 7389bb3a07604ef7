"""What every dialect shares: the loop that scans a buffer and the loop that encodes a table.

A dialect is a subclass of each, with one method `frame` that reads or writes one frame.

*Scanning.* The caller owns the bytes: it passes all that it has not yet seen consumed, and keeps
what `scan` did not consume for the next call. Rows that stand before a fault are delivered first;
the call after that raises. The only error that bytes can cause is `ProtocolError`. A frame that is
refused or unfinished leaves no row behind, so a call that consumes no byte delivers no row, and
`again` is set only by a call that consumed some.

*Encoding.* A row that the dialect cannot say is left out and counted in `skipped` by reason; the
caller decides whether anybody is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import cython

from wirelake.dialects import HOPS
from wirelake.errors import ProtocolError
from wirelake.message import Limits, Op

if cython.compiled:
    from cython.cimports.wirelake.wire.octets import Octets, equal
    from cython.cimports.wirelake.wire.table import FrameTable
else:
    from wirelake.wire.octets import Octets, equal
    from wirelake.wire.table import FrameTable

_PUBLISH = cython.declare(cython.int, Op.PUBLISH)
_TOPIC = int(Op.TOPIC).to_bytes(4, "little")
#: Why an encoder leaves a row out; the names are the keys of `Encoder.skipped`.
SKIP_REASONS = ("", "op", "address", "payload", "id", "headers")
SKIP_OP, SKIP_ADDRESS, SKIP_PAYLOAD, SKIP_ID, SKIP_HEADERS = 1, 2, 3, 4, 5

#: The ops whose answers may be long, as bits.
_LONG = cython.declare(
    cython.longlong,
    (1 << Op.READ) | (1 << Op.WATCH) | (1 << Op.INFO) | (1 << Op.DEQUEUE) | (1 << Op.LIST),
)
#: The ops that sessions do for many rows at once, as bits.
_TOGETHER = cython.declare(cython.longlong, (1 << Op.ENQUEUE) | (1 << Op.ACK))


@cython.cclass
class Scanner:
    """Bytes of one direction of one connection, to rows of a frame table."""

    def __init__(self, dialect: str, limits: Limits = Limits()) -> None:  # noqa: B008  (immutable)
        self.dialect = dialect
        self.set_limits(limits)
        self.offset = 0  # of the first byte not consumed, in the whole stream
        self.need = 0  # bytes wanted in all before the next call can do more; 0: not known
        self.again = False  # there is more to be had from bytes already passed
        # A scan ends behind this many rows that are no publishes, or one whose answer may be long;
        # 0: it does not.
        self.most_others = 0
        # Rows that put into a queue or acknowledge, like the row before them, count a sixteenth of
        # another, as their session does them together.
        self.together = False
        self.ended = False
        self.midway = False

    def set_limits(self, limits: Limits) -> None:
        """Set the limits, from the next frame on."""
        self.limits = limits
        self.max_message = limits.message
        self.max_address = limits.address
        self.max_headers = limits.headers

    def scan(self, data: cython.const[cython.uchar][::1], table: FrameTable) -> cython.Py_ssize_t:
        """Fill `table` with the messages in `data`; return how many bytes they took."""
        end: cython.Py_ssize_t = len(data)
        at: cython.Py_ssize_t = 0
        used: cython.Py_ssize_t
        rows: cython.Py_ssize_t
        side: cython.Py_ssize_t
        others: cython.Py_ssize_t = 0
        p: cython.p_const_uchar
        if end > 0x7FFFFFFF:
            raise ValueError("a buffer is at most 2 GiB")
        table.begin(self, self.dialect, data)
        self.need = 0
        self.again = False
        if cython.compiled:
            p = cython.address(data[0])
        else:
            p = data
        self.start(table)
        # What the table holds without the frame that is being read.
        rows = table.count
        side = table.side.size
        try:
            while at < end:
                if rows == table.capacity:
                    self.again = True
                    break
                used = self.frame(p, at, end, table)
                if used == 0:
                    table.count = rows
                    table.side.size = side
                    break
                at += used
                rows = table.count
                side = table.side.size
                if rows and table.op[rows - 1] != _PUBLISH:
                    others += 1 if self.together and _is_like(table, rows - 1) else 16
                    if self.most_others and (
                        others >= 16 * self.most_others or (_LONG >> table.op[rows - 1]) & 1
                    ):
                        self.again = at < end
                        break
        except ProtocolError:
            # A frame may raise after it has counted its row. If that row stayed, the table would
            # not be empty, and the error would be put off to the next call for ever.
            table.count = rows
            table.side.size = side
            if rows == 0:
                raise
            self.again = True
        self.offset += at
        return at

    def finish(self, data: cython.const[cython.uchar][::1], table: FrameTable) -> int:
        """`scan` where no byte will follow: what is left over is an error."""
        self.ended = True
        used = self.scan(data, table)
        if used < len(data) and not self.again and table.count == 0:
            raise self.error(0, f"the stream ends inside a frame, after {len(data) - used} bytes")
        self.again = self.again or used < len(data)
        return int(used)

    def resume(self) -> None:
        """Begin at a frame inside a stream, not at its beginning."""
        self.midway = True

    def variant(self) -> str | None:
        """Return which variant of the dialect the stream uses, None while that is not known."""
        return ""

    def variant_before(self, table: FrameTable, row: int) -> str | None:
        """Return what the rows of a table before this one have told of the variant."""
        return self.variant()

    def set_variant(self, variant: str) -> None:
        """Read frames of this variant, as bytes told that this scanner has not seen."""
        if variant:
            raise ValueError(f"{self.dialect} has no variant {variant!r}")

    def context_before(self, table: FrameTable, row: int, context: bytes) -> bytes:
        """Return what frames before this row set for later ones, for `set_context`.

        `context` held before the table. Here: the topic that a frame of its own sets.
        """
        # Ops are small numbers, so these four bytes cannot be parts of two of them.
        found = memoryview(table.op)[:row].tobytes().rfind(_TOPIC)
        return context if found < 0 else table.address(found // 4)

    def set_context(self, context: bytes) -> None:
        """Read on as behind the frames that set this; b"" stands for none."""

    def start(self, table: FrameTable) -> cython.int:
        """Put into the side buffer what rows of this call may refer to."""
        return 0

    def frame(
        self,
        p: cython.p_const_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        table: FrameTable,
    ) -> cython.Py_ssize_t:
        """Read the frame at p[at] into rows; return its size, or 0 where it is not complete."""
        raise TypeError("a dialect defines this")

    def read_headers(self, table: FrameTable) -> None:
        """Bring the headers of rows marked UNREAD into the one form."""

    def error(self, at: int, reason: str, answer: bytes = b"") -> ProtocolError:
        """The error for a fault at byte `at` of the current buffer."""
        return ProtocolError(self.dialect, self.offset + at, reason, answer)


@cython.cfunc
@cython.exceptval(check=False)
def _is_like(table: FrameTable, row: cython.Py_ssize_t) -> cython.bint:
    """Does a row put into, or acknowledge of, the queue that the row before it names?"""
    p: cython.p_const_uchar = table.address_p
    at: cython.Py_ssize_t = table.address_at[row]
    before: cython.Py_ssize_t
    if row == 0 or not (_TOGETHER >> table.op[row]) & 1 or table.op[row - 1] != table.op[row]:
        return False
    before = table.address_at[row - 1]
    if at < 0 or before < 0 or table.address_len[row] != table.address_len[row - 1]:
        return False
    return equal(p, at, p, before, table.address_len[row])


@cython.cclass
class Encoder:
    """Rows of a frame table, of any dialect, to frames of one."""

    def __init__(self, dialect: str, client: bool = True) -> None:
        self.dialect = dialect
        self.client = client  # as a client sends, or as a broker delivers
        self.skipped: dict[str, int] = {}
        self.origin = b""  # the client that a broker delivers for; tmq says so
        self.variant = ""
        self.own = False  # the rows being encoded were read from this same dialect
        self.hops = False  # their ttl is a hop count, not milliseconds (decision 10)
        self.keep = 1 << 20  # bytes of room that are kept for the next batch, at most
        self.out = Octets(4096)
        self.marked = Octets(16)

    def set_variant(self, variant: str) -> None:
        """Write frames as a peer wants them that uses a variant of the dialect; "" is none."""
        if variant:
            raise ValueError(f"{self.dialect} has no variant {variant!r}")

    def prepare(self, seed: bytes, *, split: bool) -> None:
        """Say how new ids begin, and whether a payload that is too long is split, if that can be.

        `seed` has eight bytes that no other encoder has.
        """

    def encode(self, table: FrameTable, rows: Sequence[int] | None = None) -> memoryview:
        """Return the rows (all, or these) as one buffer of frames, which is the caller's."""
        k: cython.Py_ssize_t
        start: cython.Py_ssize_t = 0
        stop: cython.Py_ssize_t = table.count
        chosen: cython.const[cython.int][::1]
        self.marked.size = 0
        table.read_headers()
        self.own = table.dialect == self.dialect
        self.hops = table.dialect in HOPS
        if rows is None or isinstance(rows, range):
            if rows is not None:
                start, stop = rows.start, rows.stop
            if start < 0 or stop > table.count:
                raise IndexError(f"rows {start} to {stop} of {table.count}")
            for k in range(start, stop):
                self._row(table, k)
        else:
            chosen = table.chosen(rows)
            for k in range(len(chosen)):
                self._row(table, chosen[k])
        return self.out.take(self.keep)

    def _row(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        mark: cython.Py_ssize_t = self.out.size
        marks: cython.Py_ssize_t = self.marked.size
        status: cython.int = self.frame(table, row)
        if status:
            self.out.size = mark
            self.marked.size = marks
            reason = SKIP_REASONS[status]
            self.skipped[reason] = self.skipped.get(reason, 0) + 1
        return 0

    def mark(self, at: cython.Py_ssize_t) -> cython.int:
        """Note that byte `at` of what is being encoded is each receiver's own."""
        return self.marked.put_uint32(at)

    def marks(self) -> bytes:
        """Return where the last batch has bytes that are each receiver's own, for `stamp_…`."""
        return bytes(self.marked.data[: self.marked.size])

    def frame(self, table: FrameTable, row: cython.Py_ssize_t) -> cython.int:
        """Append one row as a frame to `out`; return 0, or the reason it cannot be said."""
        raise TypeError("a dialect defines this")


def stamp_bits(
    frames: bytes | memoryview,
    marks: cython.const[cython.uchar][::1],
    bits: int,
    *,
    shared: bool = True,
) -> memoryview:
    """Set these bits in each marked byte; return a copy of frames, or frames if not `shared`."""
    made = memoryview(bytearray(frames) if shared else frames)
    out: cython.uchar[::1] = made
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(out)
    mask: cython.int = bits
    for k in range(0, len(marks) - 3, 4):
        at = _place(marks, k, end)
        out[at] |= mask
    return made


def stamp_numbers(
    frames: bytes | memoryview,
    marks: cython.const[cython.uchar][::1],
    numbers: Sequence[int],
    *,
    shared: bool = True,
) -> memoryview:
    """Write a number of two bytes, big-endian, at each mark.

    Returns a copy of frames, or frames themselves if they are not `shared`.
    """
    made = memoryview(bytearray(frames) if shared else frames)
    out: cython.uchar[::1] = made
    k: cython.Py_ssize_t
    at: cython.Py_ssize_t
    end: cython.Py_ssize_t = len(out) - 1
    number: cython.int
    if 4 * len(numbers) != len(marks):
        raise ValueError(f"{len(numbers)} numbers for {len(marks) // 4} marks")
    for k in range(len(numbers)):
        at = _place(marks, 4 * k, end)
        number = numbers[k]
        out[at] = (number >> 8) & 255
        out[at + 1] = number & 255
    return made


@cython.cfunc
@cython.exceptval(-1, check=False)
def _place(
    marks: cython.const[cython.uchar][::1], k: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    at: cython.Py_ssize_t = (
        (cython.cast(cython.Py_ssize_t, marks[k]) << 24)
        | (marks[k + 1] << 16)
        | (marks[k + 2] << 8)
        | marks[k + 3]
    )
    if at >= end:
        raise IndexError(f"mark {at} of {end} bytes")
    return at
