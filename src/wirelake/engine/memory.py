"""An engine for tests and for brokers that need not remember: durable as long as it lives."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from wirelake.engine.base import Engine, Entry, LogBatch, Position, QueueSettings, Stored
from wirelake.engine.batch import Rows
from wirelake.errors import EngineError
from wirelake.wire import FrameTable

#: So much is collected before it is made a batch, unless somebody reads.
_GATHERED = 1 << 20


class MemoryEngine(Engine):
    """Keeps everything in memory; of the log at most `log_bytes`, if given, the latest."""

    def __init__(self, *, partitions: int = 0, log_bytes: int = 0) -> None:
        super().__init__()
        self.partitions = partitions
        self.log_id = secrets.token_hex(8) if partitions else ""
        self._touched = False
        self._entries: dict[str, Entry] = {}
        self._queues: dict[str, QueueSettings] = {}
        self._stored: dict[str, dict[int, Stored]] = {}
        self._next: dict[str, int] = {}
        self._ids: dict[str, deque[tuple[str, float]]] = {}
        self._rows = Rows(partitions) if partitions else None
        self._log_bytes = log_bytes
        self._log_size = 0
        self._reading = threading.Lock()
        self._positions = [Position(partition) for partition in range(partitions)]
        self._batches: deque[LogBatch] = deque()

    # The data store

    def entries(self) -> Iterable[Entry]:
        """Every key's latest state."""
        return list(self._entries.values())

    def write_entry(self, entry: Entry) -> None:
        """Keep a key's latest state."""
        self._entries[entry.key] = entry

    def drop_entry(self, key: str) -> None:
        """Forget a key; does nothing where there is none."""
        self._entries.pop(key, None)

    # Queues

    def queues(self) -> Iterable[QueueSettings]:
        """The queues that were declared."""
        return list(self._queues.values())

    def declare(self, settings: QueueSettings) -> None:
        """Keep a queue, or its new settings."""
        self._queues[settings.name] = settings
        self._stored.setdefault(settings.name, {})
        self._next.setdefault(settings.name, 1)
        self._ids.setdefault(settings.name, deque())

    def remove(self, queue: str) -> None:
        """Forget a queue and all that is in it."""
        for kept in (self._queues, self._stored, self._next, self._ids):
            kept.pop(queue, None)

    def stored(self, queue: str) -> Iterable[Stored]:
        """The messages in a queue, in the order of their sequences."""
        return sorted(self._stored.get(queue, {}).values(), key=lambda stored: stored.sequence)

    def put(self, stored: Stored) -> None:
        """Keep a message."""
        if stored.queue not in self._queues:
            raise EngineError(f"no queue {stored.queue}")
        self._stored[stored.queue][stored.sequence] = stored
        self._next[stored.queue] = max(self._next[stored.queue], stored.sequence + 1)

    def count_attempt(self, stored: Stored) -> None:
        """Keep a message's new count of attempts."""
        messages = self._stored.get(stored.queue, {})
        if stored.sequence in messages:
            messages[stored.sequence] = stored

    def drop(self, queue: str, sequence: int) -> None:
        """Forget a message that is done."""
        self._stored.get(queue, {}).pop(sequence, None)

    def next_sequence(self, queue: str) -> int:
        """The least sequence that was never given out in a queue."""
        return self._next.get(queue, 1)

    def remember_id(self, queue: str, identity: str, until: float) -> None:
        """Keep the id of a message that was put, until a time in seconds since 1970."""
        if queue not in self._queues:
            raise EngineError(f"no queue {queue}")
        ids = self._ids[queue]
        ids.append((identity, until))
        now = time.time()
        while ids and ids[0][1] < now:
            ids.popleft()

    def remembered_ids(self, queue: str) -> Iterable[tuple[str, float]]:
        """The ids that were put, and until when to know them, the oldest first."""
        return sorted(self._ids.get(queue, ()), key=lambda remembered: remembered[1])

    # The log

    def append(
        self, table: FrameTable, rows: array[int] | None, timestamp: int | array[int], source: bytes
    ) -> None:
        """Add rows of a table (all, or these), received at `timestamp` (µs) from `source`."""
        if self._rows is not None:
            self._rows.append(table, rows, timestamp, source)
            if self._rows.size > _GATHERED:
                self._gather()

    @property
    def backlog(self) -> int:
        """Nothing has to wait."""
        return 0

    def positions(self) -> list[Position]:
        """Where each partition of the log begins and ends."""
        self._gather()
        return list(self._positions)

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[LogBatch]:
        """The batches that hold rows [start, stop), in order; for any thread."""
        self._gather()
        with self._reading:
            batches = [batch for batch in self._batches if batch.partition == partition]
        return (one for one in batches if one.base < stop and one.base + one.count > start)

    def _gather(self) -> None:
        """Make batches of the rows that came, and forget the oldest where there are too many."""
        if self._rows is None:
            return
        with self._reading:
            for made in self._rows.take().batches():
                batch = LogBatch(
                    made.partition,
                    made.base,
                    made.count,
                    made.first_time,
                    made.last_time,
                    made.ipc,
                )
                self._batches.append(batch)
                self._grow(batch)
            while self._log_bytes and self._log_size > self._log_bytes and len(self._batches) > 1:
                self._shrink(self._batches.popleft())

    def _grow(self, batch: LogBatch) -> None:
        old = self._positions[batch.partition]
        first_time = old.first_time if old.first < old.next else batch.first_time
        self._log_size += len(batch.ipc)
        self._positions[batch.partition] = Position(
            batch.partition,
            old.first,
            batch.base + batch.count,
            first_time,
            batch.last_time,
            old.bytes + len(batch.ipc),
        )

    def _shrink(self, dropped: LogBatch) -> None:
        old = self._positions[dropped.partition]
        left = next((one for one in self._batches if one.partition == dropped.partition), None)
        self._log_size -= len(dropped.ipc)
        self._positions[dropped.partition] = Position(
            dropped.partition,
            dropped.base + dropped.count,
            old.next,
            left.first_time if left else old.last_time,
            old.last_time,
            old.bytes - len(dropped.ipc),
        )

    # Durability

    def touch(self) -> None:
        """More belongs to what is written in this turn: `gather` will write it."""
        if self._touched:
            return
        try:
            asyncio.get_running_loop().call_soon(self._end_turn)
        except RuntimeError:  # no loop, no turns
            self.gather()
        else:
            self._touched = True

    def _end_turn(self) -> None:
        self._touched = False
        self.gather()

    def after(self, action: Callable[[], object]) -> None:
        """Run an action once all that was written so far is durable: now."""
        self.gather()
        action()

    def close(self) -> None:
        """Nothing is held."""
