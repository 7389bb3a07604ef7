"""An engine for tests and for brokers that need not remember: durable as long as it lives."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

from wirelake.engine.base import Engine, Entry, LogBatch, Position, QueueSettings, Stored
from wirelake.wire import FrameTable


class MemoryEngine(Engine):
    """Keeps everything in memory."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._queues: dict[str, QueueSettings] = {}
        self._stored: dict[str, dict[int, Stored]] = {}

    def entries(self) -> Iterable[Entry]:
        """Every key's latest state."""
        return list(self._entries.values())

    def write_entry(self, entry: Entry) -> None:
        """Keep a key's latest state."""
        self._entries[entry.key] = entry

    def queues(self) -> Iterable[QueueSettings]:
        """The queues that were declared."""
        return list(self._queues.values())

    def declare(self, settings: QueueSettings) -> None:
        """Keep a queue."""
        self._queues[settings.name] = settings
        self._stored.setdefault(settings.name, {})

    def remove(self, queue: str) -> None:
        """Forget a queue and all that is in it."""
        self._queues.pop(queue, None)
        self._stored.pop(queue, None)

    def stored(self, queue: str) -> Iterable[Stored]:
        """The messages in a queue, in the order of their sequences."""
        return sorted(self._stored.get(queue, {}).values(), key=lambda stored: stored.sequence)

    def put(self, stored: Stored) -> None:
        """Keep a message, or its new count of attempts."""
        self._stored[stored.queue][stored.sequence] = stored

    def count_attempt(self, stored: Stored) -> None:
        """Keep a message's new count of attempts."""
        self.put(stored)

    def drop(self, queue: str, sequence: int) -> None:
        """Forget a message that is done."""
        self._stored[queue].pop(sequence, None)

    def next_sequence(self, queue: str) -> int:
        """The least sequence that was never given out in a queue."""
        return 1

    def remember_id(self, queue: str, identity: str, until: float) -> None:
        """Keep the id of a message that was put."""

    def remembered_ids(self, queue: str) -> Iterable[tuple[str, float]]:
        """Nothing is remembered: who opens it again is new to it."""
        return ()

    def append(
        self, table: FrameTable, rows: array[int] | None, timestamp: int, source: bytes
    ) -> None:
        """Keep nothing: there is no log."""

    @property
    def backlog(self) -> int:
        """Nothing is waiting."""
        return 0

    def positions(self) -> list[Position]:
        """There is no log."""
        return []

    def read(self, partition: int, start: int, stop: int) -> Iterator[LogBatch]:
        """There is no log."""
        return iter(())

    def after(self, action: Callable[[], object]) -> None:
        """Run an action once all that was written so far is durable: now."""
        action()

    def close(self) -> None:
        """Nothing is held."""
