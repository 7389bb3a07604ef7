"""Spans: stretches of a stream of frames that can be decoded apart from each other.

An index pass runs the scanner over a stream once, without looking at what the rows hold. It counts
the messages, notes every few MiB where a message begins, and finds the fault, if there is one. What
a scanner must know to begin there is little: the dialect, whether Kobold's lengths include
themselves, which byte order TMQ's Hello told, the topic that mfp and boson-text set earlier, the
aliases of MQTT 5. Then every span is decoded on its own, and its messages have the numbers that
they have in the whole.

A large stream is indexed by several tasks, each of which begins somewhere in the middle, at what
looks like a frame. What they found is joined where one ends exactly where the next has begun: from
then on a guess is no guess any more. Where it was wrong, the stream is indexed by one task.

A span never begins inside a boson-text sequence. A decoder stops after the messages that were
counted, so it meets no fault: where it does, the file is no longer what was indexed.

The bytes of a stream need not lie side by side: they are pieces of a file, in order, each with the
time at which it was captured. A raw dump is one piece, a TCP stream one for every segment. A
message has the time of the piece in which it ends.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.dialects.codec import scanner
from wirelake.errors import EngineError, ProtocolError
from wirelake.message import Flag, Limits
from wirelake.wire import FrameTable, Scanner
from wirelake.wire.arrow import to_arrow

#: Rows of a batch at most, and bytes of frames in it as a rule.
ROWS = 8192
WINDOW = 16 << 20

#: Behind so many frames without a fault there is a frame, even if the first ones were none: where
#: what is no frame is read as one, the next true one is met before long. They are looked for at so
#: many places, in so many bytes.
PROOF = 128
PLACES = 4096
PROBE = 1 << 20


class Pieces:
    """The bytes of one stream: pieces of a file, one after the other."""

    def __init__(self, data: memoryview, cells: array[int]) -> None:
        self._data = data
        self._places = cells[0::3]
        self._sizes = cells[1::3]
        self._times = cells[2::3]
        self.starts = array("q", accumulate(self._sizes, initial=0))
        self.size = self.starts[-1]

    def window(self, at: int, size: int) -> memoryview:
        """Return up to this many bytes of the stream from `at` on; copy only to join pieces."""
        end = min(at + size, self.size)
        first = self._piece(at)
        if end <= self.starts[first + 1]:
            place = self._places[first] + at - self.starts[first]
            return self._data[place : place + end - at]
        cells = self.cut(at, end)
        return memoryview(
            b"".join(
                self._data[place : place + length]
                for place, length in zip(cells[0::3], cells[1::3], strict=True)
            )
        )

    def cut(self, start: int, end: int) -> array[int]:
        """Where bytes [start, end) of the stream are: place, size and time of each piece."""
        cells = array("q")
        k = self._piece(start)
        while start < end:
            stop = min(end, self.starts[k + 1])
            place = self._places[k] + start - self.starts[k]
            cells.extend((place, stop - start, self._times[k]))
            start = stop
            k += 1
        return cells

    def place(self, at: int) -> int:
        """Where in the file byte `at` of the stream is; at its end, where the last piece ends."""
        k = min(self._piece(at), len(self._places) - 1)
        return self._places[k] + at - self.starts[k]

    def time(self, at: int) -> int:
        """When byte `at` of the stream was captured."""
        return self._times[min(self._piece(at), len(self._times) - 1)]

    def times(self, at: int, table: FrameTable) -> pa.Array:
        """When the rows of a table ended, whose buffer begins at byte `at`."""
        n = table.count
        begins, sizes = (
            pa.Array.from_buffers(pa.int32(), n, [None, pa.py_buffer(memoryview(cells)[:n])])
            for cells in (table.frame_at, table.frame_len)
        )
        ends = pc.add(pc.add(begins, sizes).cast(pa.int64()), at)
        first, last = self._piece(at), self._piece(at + len(table.buffer) - 1)
        which = pc.search_sorted(_longs(self.starts[first + 1 : last + 1]), ends, side="left")
        return _longs(self._times[first : last + 1]).take(which)

    @property
    def is_whole(self) -> bool:
        """Is the stream one piece?"""
        return len(self._places) == 1

    def _piece(self, at: int) -> int:
        return bisect_right(self.starts, at) - 1


def _longs(cells: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(cells), [None, pa.py_buffer(cells)])


def whole(data: memoryview, time: int = 0) -> Pieces:
    """A raw dump as a stream."""
    return Pieces(data, array("q", (0, len(data), time)))


@dataclass(frozen=True)
class State:
    """What a scanner must know to begin at a frame."""

    dialect: str
    begun: bool = False  # frames came before
    variant: str | None = None  # of the dialect, as Kobold's `inclusive`; None: not known yet
    context: bytes = b""  # what earlier frames set for later ones, as the topic of mfp

    def scanner(self) -> Scanner:
        """A scanner in this state."""
        made = scanner(self.dialect)
        if self.begun:
            made.resume()
        if self.variant is not None:
            made.set_variant(self.variant)
        made.set_context(self.context)
        return made


@dataclass(frozen=True)
class Span:
    """What one task decodes: where the bytes are, the scanner's state, the messages' numbers."""

    state: State
    first: int  # the number of its first message in the stream
    messages: int
    cells: array[int]  # of pieces

    @property
    def size(self) -> int:
        """Its bytes."""
        return sum(self.cells[1::3])


@dataclass(frozen=True)
class Index:
    """What is in a stream: spans up to its end or to a fault, and the state there."""

    start: int
    spans: list[Span]
    messages: int
    end: int  # behind the last whole message, or where the first one begins that is not in it
    fault: ProtocolError | None
    state: State


def tables(
    reader: Scanner, pieces: Pieces, at: int = 0, *, torn: bool = False
) -> Iterator[tuple[int, FrameTable]]:
    """Frame tables of a stream from byte `at` on, with the byte each one's buffer begins at.

    Where the stream is torn, what is unfinished at its end is no fault.
    """
    table = FrameTable(ROWS)
    want = WINDOW
    while at < pieces.size:
        data = pieces.window(at, want)
        last = at + len(data) == pieces.size
        scan = reader.finish if last and not torn else reader.scan
        used = 0
        while used < len(data):
            base = used
            used += scan(data[base:], table)
            if table.count:
                yield at + base, table
            if used == base or not reader.again:
                break
        if last:
            return
        want = WINDOW if used else max(2 * want, reader.need)
        at += used


def index(
    pieces: Pieces,
    state: State,
    step: int,
    *,
    start: int = 0,
    until: int | None = None,
    torn: bool = False,
) -> Index:
    """Find the messages of a stream, and where it can be split, about every `step` bytes.

    Those that begin in the bytes [start, until), if these are given; at `start` there is a frame.
    """
    reader = state.scanner()
    cuts: list[tuple[int, int, bytes, str | None]] = [(start, 0, state.context, state.variant)]
    fault: ProtocolError | None = None
    messages, end = 0, start
    context, variant, more = state.context, state.variant, False
    try:
        for at, table in tables(reader, pieces, start, torn=torn):
            n = table.count
            begins = memoryview(table.frame_at)[:n]
            if until is not None and at + begins[n - 1] >= until:
                n = bisect_left(begins, until - at)
                variant = _variant_before(reader, table, n, variant)
                messages += n
                end = at + begins[n]
                break
            due = cuts[-1][0] + step
            while at + begins[n - 1] >= due:
                row = bisect_left(begins, due - at)
                while row < n and (table.flags[row - 1] & Flag.MORE if row else more):
                    row += 1
                if row == n:
                    break
                begin = at + begins[row]
                set_before = reader.context_before(table, row, context)
                told_before = _variant_before(reader, table, row, variant)
                cuts.append((begin, messages + row, set_before, told_before))
                due = begin + step
            context = reader.context_before(table, n, context)
            variant = _variant_before(reader, table, n, variant)
            more = bool(table.flags[n - 1] & Flag.MORE)
            messages += n
            end = at + begins[n - 1] + table.frame_len[n - 1]
    except ProtocolError as error:
        fault = ProtocolError(error.dialect, start + error.offset, error.reason)
    later = replace(state, begun=True, variant=variant)
    spans = []
    # A sequence is handed out once its end is there: where a part is at fault, the rest is needed.
    bound = min(pieces.size, end + Limits().sequence) if more else end
    if messages:
        for (begin, first, set_before, told_before), (stop, following, *_) in zip(
            cuts, [*cuts[1:], (bound, messages, b"", None)], strict=True
        ):
            begins_with = (
                replace(later, context=set_before, variant=told_before) if first else state
            )
            spans.append(Span(begins_with, first, following - first, pieces.cut(begin, stop)))
    return Index(start, spans, messages, end, fault, replace(later, context=context))


def index_stretch(dump: Pieces, state: State, step: int, k: int, n: int) -> Index | None:
    """The index of about the k-th of n parts of a raw dump; None where no frame is found there."""
    after = _after_first(dump, state)
    if after is None:
        return None
    start, until = (
        _a_frame(dump, dump.size * part // n, after) if 0 < part < n else dump.size * part // n
        for part in (k, k + 1)
    )
    if start is None or until is None:
        return None
    return index(dump, after if k else state, step, start=start, until=until)


def _after_first(dump: Pieces, state: State) -> State | None:
    """The state behind the first frames; None where there are none."""
    reader, table = state.scanner(), FrameTable(PROOF)
    try:
        reader.scan(dump.window(0, PROBE), table)
    except ProtocolError:
        return None
    if not table.count:
        return None
    variant = _variant_before(reader, table, table.count, state.variant)
    return replace(state, begun=True, variant=variant)


def _a_frame(dump: Pieces, at: int, state: State) -> int | None:
    """Where a frame seems to begin, behind `at`."""
    table = FrameTable(PROOF)
    for place in range(at, min(at + PLACES, dump.size)):
        try:
            used = state.scanner().scan(dump.window(place, PROBE), table)
        except ProtocolError:
            continue
        if table.count == PROOF:
            return place + int(used)
    return None


def joined(found: Sequence[Index | None]) -> Index | None:
    """One index of several, up to a fault; None where one does not begin where another ends.

    Nor may one have been read as another variant than the one before has told.
    """
    made = found[0]
    for part in found[1:]:
        if made is None or made.fault is not None:
            break
        if part is None or part.start != made.end:
            return None
        if part.spans and part.spans[0].state.variant != made.state.variant:
            return None
        before = made.messages
        spans = [replace(span, first=before + span.first) for span in part.spans]
        made = replace(part, start=0, spans=made.spans + spans, messages=before + part.messages)
    return made


def _variant_before(
    reader: Scanner, table: FrameTable, row: int, variant: str | None
) -> str | None:
    """Return the variant that was told before a row, where `variant` was before the table."""
    return variant if variant is not None else reader.variant_before(table, row)


def batches(span: Span, data: memoryview, partition: int, offset: int) -> Iterator[pa.RecordBatch]:
    """The messages of a span as batches of the log; its stream's messages count from `offset`."""
    pieces = Pieces(data, span.cells)
    first = offset + span.first
    expected = first + span.messages
    place = partition, span.cells[0]
    try:
        for at, table in tables(span.state.scanner(), pieces):
            time = pieces.time(at) if pieces.is_whole else 0
            batch = to_arrow(table, timestamp=time, partition=partition, offset=first)
            if not pieces.is_whole:
                times = pieces.times(at, table).cast(batch.schema.field("timestamp").type)
                batch = batch.set_column(2, batch.schema.field("timestamp"), times)
            first += batch.num_rows
            yield batch
            if first == expected:
                return
    except ProtocolError as error:
        raise _changed(*place) from error
    raise _changed(*place)


def _changed(partition: int, place: int) -> EngineError:
    return EngineError(f"capture {partition} has changed while it was read, after byte {place}")
