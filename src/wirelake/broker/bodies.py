"""What the messages of queues hold, for those that came lately or are next.

A queue itself knows its messages by their places in the journal. Their contents are needed once,
when they are delivered. What came in a moment ago is still in memory here; what waited longer is
read again, a batch ahead. All queues share a limit in bytes; what is durable goes first.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from wirelake.journal.engine import Engine
from wirelake.message import Message
from wirelake.wire import FrameTable

#: Bytes of contents that are held in memory, of all queues together.
WINDOW = 64 << 20
#: What a row of a table takes beside its bytes, and a message of its own.
ROW = 128
MESSAGE = 512
#: Messages, and about how many bytes of them, that are read from the journal at once.
AHEAD = 1024
AHEAD_BYTES = 2 << 20


class Chunk:
    """The contents of messages [first, first + count) of a queue, in a table or one by one."""

    __slots__ = ("count", "first", "message", "owner", "size", "table", "timestamp")

    def __init__(
        self,
        owner: Contents,
        first: int,
        *,
        table: FrameTable | None = None,
        message: Message | None = None,
        timestamp: int | array[int] = 0,
    ) -> None:
        self.owner = owner
        self.first = first
        self.table = table
        self.message = message
        self.count = table.count if table is not None else 1
        self.timestamp = timestamp
        if table is not None:
            self.size = table.side.size + ROW * table.count
        else:
            assert message is not None
            self.size = len(message.payload) + MESSAGE

    def read(self, sequence: int) -> Message:
        """Return one of the messages."""
        if self.table is None:
            assert self.message is not None
            return self.message
        return self.table.message(sequence - self.first, self.time(sequence))

    def time(self, sequence: int) -> int:
        """Return when one of the messages came (µs since 1970)."""
        if isinstance(self.timestamp, int):
            return self.timestamp
        return self.timestamp[sequence - self.first]


class Bodies:
    """The contents of messages of all queues that are in memory."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.window = WINDOW
        self.size = 0
        self._chunks: OrderedDict[Chunk, None] = OrderedDict()  # the oldest first

    def add(self, chunk: Chunk) -> None:
        """Hold a chunk, and let the oldest go where there are too many."""
        self._chunks[chunk] = None
        self.size += chunk.size
        for _ in range(len(self._chunks)):
            if self.size <= self.window:
                return
            oldest = next(iter(self._chunks))
            if oldest is chunk:
                return
            if self.engine.is_durable(oldest.owner.name, oldest.first, oldest.count):
                oldest.owner.forget(oldest)
            else:
                self._chunks.move_to_end(oldest)

    def remove(self, chunk: Chunk) -> None:
        """Let a chunk go."""
        if chunk in self._chunks:
            del self._chunks[chunk]
            self.size -= chunk.size


class Contents:
    """The contents of one queue's messages that are in memory."""

    def __init__(self, bodies: Bodies, name: str) -> None:
        self.name = name
        self._bodies = bodies
        self._chunks: dict[int, Chunk] = {}  # by their first sequences
        self._firsts: list[int] = []  # in order

    def __len__(self) -> int:
        return len(self._chunks)

    def add_rows(self, first: int, table: FrameTable, timestamp: int) -> None:
        """Hold the rows of a table, which is nobody else's."""
        self._add(Chunk(self, first, table=table, timestamp=timestamp))

    def add(self, sequence: int, message: Message) -> None:
        """Hold one message."""
        self._add(Chunk(self, sequence, message=message, timestamp=message.timestamp))

    def _add(self, chunk: Chunk) -> None:
        old = self._chunks.get(chunk.first)
        if old is not None:
            self.forget(old)
        self._chunks[chunk.first] = chunk
        if not self._firsts or chunk.first > self._firsts[-1]:
            self._firsts.append(chunk.first)
        else:
            self._firsts.insert(bisect_right(self._firsts, chunk.first), chunk.first)
        self._bodies.add(chunk)

    def forget(self, chunk: Chunk) -> None:
        """Let a chunk go."""
        if self._chunks.get(chunk.first) is chunk:
            del self._chunks[chunk.first]
            at = bisect_right(self._firsts, chunk.first) - 1
            del self._firsts[at]
        self._bodies.remove(chunk)

    def clear(self) -> None:
        """Let everything go."""
        for chunk in list(self._chunks.values()):
            self._bodies.remove(chunk)
        self._chunks.clear()
        self._firsts.clear()

    def forget_before(self, sequence: int) -> None:
        """Let chunks go that have only messages before this one."""
        while self._firsts:
            chunk = self._chunks[self._firsts[0]]
            if chunk.first + chunk.count > sequence:
                return
            self.forget(chunk)

    def find(self, sequence: int) -> Chunk | None:
        """Return the chunk with a message, if it is in memory."""
        at = bisect_right(self._firsts, sequence) - 1
        if at < 0:
            return None
        chunk = self._chunks[self._firsts[at]]
        return chunk if sequence < chunk.first + chunk.count else None

    def load(self, sequence: int) -> Chunk | None:
        """Read a message, and some of those behind it; None where it cannot be read."""
        for first, table, timestamp in self._bodies.engine.contents(
            self.name, sequence, AHEAD, AHEAD_BYTES
        ):
            if self.find(first) is None:
                self._add(Chunk(self, first, table=table, timestamp=timestamp))
        return self.find(sequence)

    def get(self, sequence: int) -> Message | None:
        """Return a message; None where it cannot be read."""
        chunk = self.find(sequence) or self.load(sequence)
        return chunk.read(sequence) if chunk is not None else None

    def runs(self, sequences: Sequence[int]) -> Iterator[tuple[Chunk | None, list[int]]]:
        """Yield chunks, and which of these messages each has, in order; None for lost ones."""
        chunk: Chunk | None = None
        run: list[int] = []
        for sequence in sequences:
            if chunk is None or not chunk.first <= sequence < chunk.first + chunk.count:
                if run:
                    yield chunk, run
                    run = []
                chunk = self.find(sequence) or self.load(sequence)
            run.append(sequence)
            if chunk is None:
                yield None, run
                run = []
        if run:
            yield chunk, run


def rows_of(chunk: Chunk, sequences: Sequence[int]) -> array[int]:
    """Return the rows of a chunk's table that have these messages."""
    return array("i", [sequence - chunk.first for sequence in sequences])
