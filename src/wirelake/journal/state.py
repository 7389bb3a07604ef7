"""The state of a partition: its queues and keys, as the records of the journal make it.

A change is applied here when its commit is packed, and again when it is recovered, by the same
code. So this is at any time what a recovery would find, and `parts` writes it as records for a
checkpoint.

A message in a queue is a *reference*: the place of its row, and a few numbers. Messages that came
together are columns of integers, in chunks of 1,024 sequences: about 16 bytes a message.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import NamedTuple

from wirelake.errors import EngineError
from wirelake.journal.contract import Needed
from wirelake.journal.record import (
    Change,
    Entry,
    Note,
    Put,
    QueueChanges,
    Record,
    Type,
    decode_entries,
    encode_entries,
)

#: Sequences of one chunk.
CHUNK = 1024
#: A part of a checkpoint has about this many messages, entries, or bytes of entries.
PART = 1 << 14
PART_BYTES = 1 << 20
#: What the settings of a queue count for in it (messages).
DECLARED = 32

_LIVE, _PRIVATE, _TEXT = 1, 2, 4


class Reference(NamedTuple):
    """A message in a queue. Times are µs since 1970, 0 for none."""

    sequence: int
    place: int
    private: bool
    text: bool
    attempts: int
    size: int
    priority: int
    due: int
    expires: int


class _Chunk:
    """The messages of up to `CHUNK` sequences; columns that are zero everywhere are None."""

    __slots__ = ("attempts", "base", "due", "expires", "how", "live", "place", "priority", "size")

    def __init__(self, base: int) -> None:
        self.base = base
        self.live = 0
        self.how = bytearray()
        self.place: array[int] = array("q")
        self.size: array[int] = array("Q")
        self.attempts: array[int] | None = None
        self.priority: array[int] | None = None
        self.due: array[int] | None = None
        self.expires: array[int] | None = None

    def put(self, first: int, put: Put, begin: int, end: int) -> None:
        """Set sequences from index `first` on, to messages [begin, end) of a run."""
        count = end - begin
        stop = first + count
        if count == 1 and first == len(self.how):
            self._put_next(put, begin)
            return
        if missing := max(0, stop - len(self.how)):
            self.how.extend(bytes(missing))
            self.place.frombytes(bytes(8 * missing))
            self.size.frombytes(bytes(8 * missing))
            for column in (self.attempts, self.priority, self.due, self.expires):
                if column is not None:
                    column.frombytes(bytes(column.itemsize * missing))
        how = _LIVE | (_PRIVATE if put.private else 0) | (_TEXT if put.text else 0)
        self.live += self.how.count(0, first, stop)
        self.how[first:stop] = bytes([how]) * count
        self.place[first:stop] = array("q", range(put.place + begin, put.place + end))
        if isinstance(put.size, int):
            self.size[first:stop] = array("Q", [put.size]) * count
        else:
            self.size[first:stop] = array("Q", put.size[begin:end])
        if self.attempts is not None:  # put again, under the same sequence
            self.attempts[first:stop] = array("I", bytes(4 * count))
        self.priority = self._set(self.priority, "b", put.priority, first, begin, end)
        self.due = self._set(self.due, "q", put.due, first, begin, end)
        self.expires = self._set(self.expires, "q", put.expires, first, begin, end)

    def _put_next(self, put: Put, at: int) -> None:
        """Add one message behind all that are here."""
        self.live += 1
        self.how.append(_LIVE | (_PRIVATE if put.private else 0) | (_TEXT if put.text else 0))
        self.place.append(put.place + at)
        self.size.append(put.size if isinstance(put.size, int) else put.size[at])
        if self.attempts is not None:
            self.attempts.append(0)
        self.priority = self._append(self.priority, "b", put.priority, at)
        self.due = self._append(self.due, "q", put.due, at)
        self.expires = self._append(self.expires, "q", put.expires, at)

    def _append(
        self, column: array[int] | None, code: str, value: int | array[int], at: int
    ) -> array[int] | None:
        one = value if isinstance(value, int) else value[at]
        if column is None:
            if one == 0:
                return None
            column = array(code, [0]) * (len(self.how) - 1)
        column.append(one)
        return column

    def _set(
        self,
        column: array[int] | None,
        code: str,
        value: int | array[int],
        first: int,
        begin: int,
        end: int,
    ) -> array[int] | None:
        if column is None:
            if value == 0:
                return None
            column = array(code, [0]) * len(self.how)
        if isinstance(value, int):
            column[first : first + end - begin] = array(code, [value]) * (end - begin)
        else:
            column[first : first + end - begin] = array(code, value[begin:end])
        return column

    def attempt(self, first: int, stop: int, attempts: int) -> None:
        """Set how often messages were delivered."""
        if self.attempts is None:
            self.attempts = array("I", [0]) * len(self.how)
        stop = min(stop, len(self.how))
        if stop - first == 1:
            self.attempts[first] = attempts
        elif first < stop:
            self.attempts[first:stop] = array("I", [attempts]) * (stop - first)

    def drop(self, first: int, stop: int) -> int:
        """Forget messages; return how many there were."""
        stop = min(stop, len(self.how))
        if first >= stop:
            return 0
        dropped = stop - first - self.how.count(0, first, stop)
        self.how[first:stop] = bytes(stop - first)
        self.live -= dropped
        return dropped

    def reference(self, k: int) -> Reference | None:
        """Return the message at an index, None where there is none."""
        if k >= len(self.how) or not (how := self.how[k]) & _LIVE:
            return None
        return Reference(
            self.base + k,
            self.place[k],
            bool(how & _PRIVATE),
            bool(how & _TEXT),
            self.attempts[k] if self.attempts is not None else 0,
            self.size[k],
            self.priority[k] if self.priority is not None else 0,
            self.due[k] if self.due is not None else 0,
            self.expires[k] if self.expires is not None else 0,
        )

    @property
    def bytes(self) -> int:
        """The sizes of the messages together."""
        if self.live == len(self.how):
            return sum(self.size)
        return sum(size for size, how in zip(self.size, self.how, strict=True) if how & _LIVE)

    def live_runs(self) -> Iterator[tuple[int, int]]:
        """Yield begin and end of indexes whose messages are live."""
        how, n = self.how, len(self.how)
        if self.live == n:
            yield 0, n
            return
        k = 0
        while k < n:
            begin = k
            while k < n and how[k] & _LIVE:
                k += 1
            if k > begin:
                yield begin, k
            k += 1

    def runs(self, k: int = 0) -> Iterator[tuple[int, int]]:
        """Yield begin and end of indexes whose messages are live, alike, and in adjacent places.

        From index `k` on.
        """
        how, place, n = self.how, self.place, len(self.how)
        if k < n and place[-1] - place[k] == n - 1 - k and how.count(how[k], k) == n - k:
            if how[k]:
                yield k, n  # as most are, in a long queue: one read put them there
            return
        while k < n:
            kind = how[k]
            if not kind & _LIVE:
                k += 1
                continue
            begin = k
            k += 1
            while k < n and how[k] == kind and place[k] == place[k - 1] + 1:
                k += 1
            yield begin, k


def _if_live(how: int, size: int) -> int:
    return size if how & _LIVE else 0


class References:
    """The messages of one queue, by sequence."""

    def __init__(self) -> None:
        self._chunks: dict[int, _Chunk] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bytes(self) -> int:
        """The sizes of all messages together."""
        return sum(chunk.bytes for chunk in self._chunks.values())

    def size(self, sequence: int) -> int:
        """Return the size of a message, 0 where there is none."""
        chunk = self._chunks.get(sequence - sequence % CHUNK)
        if chunk is None or not chunk.how[sequence - chunk.base] & _LIVE:
            return 0
        return chunk.size[sequence - chunk.base]

    def sizes(self, begin: int, end: int) -> Iterator[int]:
        """Yield the sizes of messages [begin, end), 0 for those that are not there."""
        while begin < end:
            base = begin - begin % CHUNK
            stop = min(end, base + CHUNK)
            missing = stop - begin
            if (chunk := self._chunks.get(base)) is not None:
                how = chunk.how[begin - base : stop - base]
                sizes = chunk.size[begin - base : stop - base]
                yield from sizes if 0 not in how else map(_if_live, how, sizes)
                missing -= len(how)
            yield from repeat(0, missing)
            begin = stop

    def was_delivered(self, begin: int, end: int) -> bool:
        """Return whether one of the messages [begin, end) was delivered before."""
        return any(
            chunk.attempts is not None and any(chunk.attempts[first:stop])
            for chunk, first, stop in self._touched(begin, end - begin)
        )

    def attempts(self, sequence: int) -> int:
        """Return how often a message was delivered."""
        chunk = self._chunks.get(sequence - sequence % CHUNK)
        if chunk is None or chunk.attempts is None:
            return 0
        return chunk.attempts[sequence - chunk.base]

    def put(self, put: Put) -> None:
        """Add a run of messages."""
        at = 0
        while at < put.count:
            sequence = put.sequence + at
            base = sequence - sequence % CHUNK
            chunk = self._chunks.get(base)
            if chunk is None:
                chunk = self._chunks[base] = _Chunk(base)
            end = min(put.count, at + CHUNK - (sequence - base))
            before = chunk.live
            chunk.put(sequence - base, put, at, end)
            self._count += chunk.live - before
            at = end

    def attempt(self, sequence: int, count: int, attempts: int) -> None:
        """Set how often a run of messages was delivered."""
        if count == 1:
            if (one := self._chunks.get(sequence - sequence % CHUNK)) is not None:
                one.attempt(sequence - one.base, sequence - one.base + 1, attempts)
            return
        for chunk, first, stop in self._touched(sequence, count):
            chunk.attempt(first, stop, attempts)

    def drop(self, sequence: int, count: int) -> None:
        """Forget a run of messages, those of them that are there."""
        for chunk, first, stop in self._touched(sequence, count):
            self._count -= chunk.drop(first, stop)
            if not chunk.live:
                del self._chunks[chunk.base]

    def _touched(self, sequence: int, count: int) -> Iterator[tuple[_Chunk, int, int]]:
        """Yield the chunks that hold these sequences, and which of their indexes."""
        end = sequence + count
        while sequence < end:
            base = sequence - sequence % CHUNK
            stop = min(end, base + CHUNK)
            if (chunk := self._chunks.get(base)) is not None:
                yield chunk, sequence - base, stop - base
            sequence = stop

    def get(self, sequence: int) -> Reference | None:
        """Return a message, None where there is none."""
        base = sequence - sequence % CHUNK
        chunk = self._chunks.get(base)
        return chunk.reference(sequence - base) if chunk is not None else None

    def __iter__(self) -> Iterator[Reference]:
        """Yield the messages in the order of their sequences."""
        for base in sorted(self._chunks):
            chunk = self._chunks[base]
            for k in range(len(chunk.how)):
                if (found := chunk.reference(k)) is not None:
                    yield found

    def after(self, sequence: int) -> Iterator[Reference]:
        """Yield the messages from a sequence on, in order, up to the first chunk without any."""
        base = sequence - sequence % CHUNK
        while (chunk := self._chunks.get(base)) is not None:
            for k in range(max(0, sequence - base), len(chunk.how)):
                if (found := chunk.reference(k)) is not None:
                    yield found
            base += CHUNK

    def runs_after(self, sequence: int, most: int, most_bytes: int) -> Iterator[Put]:
        """Yield messages from a sequence on, up to `most`, and about this many bytes of them.

        Each run has adjacent sequences and places. They end at the first chunk without any. Their
        `queue` is 0; priorities and times are left out.
        """
        base = sequence - sequence % CHUNK
        while (chunk := self._chunks.get(base)) is not None:
            for begin, end in chunk.runs(max(0, sequence - base)):
                end = min(end, begin + most)
                sizes = chunk.size[begin:end]
                if sum(sizes) >= most_bytes:
                    fitting = bisect_left(list(accumulate(sizes)), most_bytes) + 1
                    end, sizes = begin + fitting, sizes[:fitting]
                how = chunk.how[begin]
                yield Put(
                    0,
                    base + begin,
                    end - begin,
                    chunk.place[begin],
                    bool(how & _PRIVATE),
                    sizes,
                    text=bool(how & _TEXT),
                )
                most -= end - begin
                most_bytes -= sum(sizes)
                if most <= 0 or most_bytes <= 0:
                    return
            base += CHUNK

    def next_from(self, sequence: int) -> Reference | None:
        """Return the first message from a sequence on, None where there is none.

        Sequences have gaps: after a restart a queue goes on behind all that could have been used.
        """
        if (found := next(self.after(sequence), None)) is not None:
            return found
        for base in sorted(base for base in self._chunks if base > sequence):
            if (found := next(self.after(base), None)) is not None:
                return found
        return None

    def plain_runs(self) -> Iterator[tuple[int, int] | Reference]:
        """Yield the messages in order: ranges of those that are nothing but messages.

        Others, that have a priority, a time or were delivered before, come one by one.
        """
        for base in sorted(self._chunks):
            chunk = self._chunks[base]
            special = [chunk.attempts, chunk.priority, chunk.due, chunk.expires]
            columns = [column for column in special if column is not None and any(column)]
            for begin, end in chunk.live_runs():
                if not columns:
                    yield base + begin, base + end
                    continue
                for k in range(begin, end):
                    if any(column[k] for column in columns):
                        found = chunk.reference(k)
                        assert found is not None
                        yield found
                    else:
                        yield base + k, base + k + 1

    def chunks(self) -> list[int]:
        """Return the numbers of the chunks that there are, for `write`."""
        return sorted(self._chunks)

    def write(self, number: int, queue: int, changes: QueueChanges) -> int:
        """Add the messages of a chunk to the changes of a queue; return how many there are."""
        chunk = self._chunks.get(number)
        if chunk is None:
            return 0
        _write_chunk(chunk, queue, changes)
        return chunk.live

    def places(self, *, private: bool) -> Iterator[tuple[int, int]]:
        """Yield the ranges of places that messages are at; not in order."""
        for chunk in self._chunks.values():
            for begin, end in chunk.runs():
                if bool(chunk.how[begin] & _PRIVATE) == private:
                    yield chunk.place[begin], chunk.place[begin] + end - begin


def _write_chunk(chunk: _Chunk, queue: int, changes: QueueChanges) -> None:
    for begin, end in chunk.runs():
        how = chunk.how[begin]
        put = Put(
            queue,
            chunk.base + begin,
            end - begin,
            chunk.place[begin],
            bool(how & _PRIVATE),
            _values(chunk.size, begin, end),
            _values(chunk.priority, begin, end),
            _values(chunk.due, begin, end),
            _values(chunk.expires, begin, end),
            text=bool(how & _TEXT),
        )
        changes.put(put)
        if chunk.attempts is not None:
            for k in range(begin, end):
                if chunk.attempts[k]:
                    changes.attempt(queue, chunk.base + k, 1, chunk.attempts[k])


def _values(column: array[int] | None, begin: int, end: int) -> int | array[int]:
    """Return the values of a column: one number where all are the same."""
    return 0 if column is None else alike(array("q", column[begin:end]))


def alike(values: array[int]) -> int | array[int]:
    """Return one number where all values are the same, else the values."""
    return values[0] if values.count(values[0]) == len(values) else values


class QueueState:
    """The durable state of a queue: settings, the next sequence, messages, ids it took."""

    __slots__ = ("following", "ids", "messages", "number", "settings")

    def __init__(self, number: int) -> None:
        self.number = number
        self.settings = b""  # as text; empty where the record that told them was lost
        self.following = 1  # no sequence from here on was ever given out
        self.messages = References()
        self.ids: OrderedDict[bytes, int] = OrderedDict()  # until when (µs), the oldest first


@dataclass(frozen=True, slots=True)
class Value:
    """A key's latest state: a value, or None where it was deleted."""

    revision: int
    value: bytes | None
    until: int = 0  # µs since 1970; 0: for ever
    place: int = -1  # the row that the value has still to be read from, or -1


class PartitionState:
    """The state of one partition."""

    def __init__(self) -> None:
        self.queues: dict[int, QueueState] = {}
        self.keys: dict[bytes, Value] = {}
        self.next_queue = 1

    def apply(self, record: Record) -> None:
        """Apply a record that was recovered; raises EngineError where it makes no sense."""
        try:
            if record.type is Type.QUEUES:
                self.change_queues(QueueChanges.parse(record.data))
            elif record.type in (Type.KEYS, Type.NOTES):
                self.change_entries(decode_entries(record.data))
        except (ValueError, IndexError, OverflowError, struct.error) as error:
            raise EngineError(f"a record of {record.type.name.lower()}: {error}") from error

    def change_queues(self, changes: QueueChanges) -> None:
        """Apply the changes of a commit."""
        for number, following, settings in changes.declared:
            queue = self._queue(number)
            queue.settings = bytes(settings)
            queue.following = following
        for put in changes.puts():
            queue = self._queue(put.queue)
            queue.messages.put(put)
            queue.following = max(queue.following, put.sequence + put.count)
        for number, sequence, count, attempts in changes.attempts():
            self._queue(number).messages.attempt(sequence, count, attempts)
        for number, sequence, count in changes.drops():
            self._queue(number).messages.drop(sequence, count)
        for number in changes.removed:
            self.queues.pop(number, None)

    def _queue(self, number: int) -> QueueState:
        queue = self.queues.get(number)
        if queue is None:
            queue = self.queues[number] = QueueState(number)
            self.next_queue = max(self.next_queue, number + 1)
        return queue

    def change_entries(self, entries: Iterator[Entry]) -> None:
        """Apply changes of keys, and ids that queues have seen."""
        for one in entries:
            if one.note is Note.SEEN:
                if one.number in self.queues:
                    ids = self.queues[one.number].ids
                    ids.pop(one.name, None)
                    ids[one.name] = one.until
            elif one.change is Change.FORGET:
                self.keys.pop(one.name, None)
            elif one.change is Change.DELETE:
                self.keys[one.name] = Value(one.number, None, one.until)
            elif one.change is Change.SET_ROW:
                self.keys[one.name] = Value(one.number, b"", one.until, one.place)
            else:
                self.keys[one.name] = Value(one.number, bytes(one.value), one.until)

    def needed(self, offset: int, slot: int) -> Needed:
        """Return which rows the queues refer to; all from this offset and slot on may be."""
        log: list[tuple[int, int]] = []
        private: list[tuple[int, int]] = []
        for queue in self.queues.values():
            if not len(queue.messages):
                continue
            log += queue.messages.places(private=False)
            private += queue.messages.places(private=True)
        return Needed(_merged(log), _merged(private), offset, slot)

    def parts(self, now: int) -> Iterator[Record]:
        """Yield the state as records, a part at a time; it may change meanwhile.

        Ids whose time (µs) is over are left out.
        """
        changes, weight = QueueChanges(), 0
        queues = list(self.queues.values())
        for queue in queues:
            if queue.number not in self.queues:
                continue
            changes.declare(queue.number, queue.following, queue.settings)
            weight += DECLARED
            for chunk in queue.messages.chunks():
                if weight >= PART:
                    yield changes.record()
                    changes, weight = QueueChanges(), 0
                    if queue.number not in self.queues:
                        break  # it was removed meanwhile
                weight += queue.messages.write(chunk, queue.number, changes)
            if weight >= PART:
                yield changes.record()
                changes, weight = QueueChanges(), 0
        if weight:
            yield changes.record()
        seen = (one for queue in queues if queue.number in self.queues for one in _seen(queue, now))
        yield from _entries(Type.NOTES, seen)
        names = list(self.keys)
        yield from _entries(Type.KEYS, (_entry(name, self.keys.get(name)) for name in names))


def _seen(queue: QueueState, now: int) -> Iterator[Entry]:
    """Yield the ids that a queue took and whose time is not over."""
    for name in list(queue.ids):
        if (until := queue.ids.get(name, 0)) > now:
            yield Entry(Change.SET, name, number=queue.number, until=until, note=Note.SEEN)


def _entry(name: bytes, value: Value | None) -> Entry | None:
    if value is None:
        return None
    change = Change.DELETE if value.value is None else Change.SET
    return Entry(change, name, value.value or b"", value.revision, value.until)


def _entries(type: Type, entries: Iterator[Entry | None]) -> Iterator[Record]:
    """Yield entries as records of limited size."""
    some: list[Entry] = []
    size = 0
    for one in entries:
        if one is None:
            continue
        some.append(one)
        size += len(one.name) + len(one.value)
        if len(some) >= PART or size >= PART_BYTES:
            yield encode_entries(type, some)
            some, size = [], 0
    if some:
        yield encode_entries(type, some)


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order; those that touch are one."""
    merged: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged
