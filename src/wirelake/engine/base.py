"""The contract between the broker and what keeps its state.

The broker decides and remembers; an engine keeps. Every write is a plain call that returns at once.
`after` runs an action when all that was written before it is durable: that is where an answer to a
client waits. An engine calls back on the thread that the broker runs on, and in order.

A disk that takes no more is no reason to forget: what was written before waits until there is room,
and so do the answers. Meanwhile `trouble` says what is wrong, and the broker refuses what is new.

The log is what passed through the broker, as Arrow batches of one schema (`wire.arrow`). It has a
fixed number of partitions; an address belongs to the partition `crc32(address) mod partitions`, and
offsets count from 0 in each. A row can be read once it is durable.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from wirelake.config import QueueSettings
from wirelake.message import Message
from wirelake.wire import FrameTable

__all__ = ["Engine", "Entry", "LogBatch", "Position", "QueueSettings", "Stored"]

#: Partitions of a log that is new.
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's latest state in the data store; one that was deleted keeps its last revision."""

    key: str
    revision: int
    value: bytes | None
    expires: float = 0.0  # seconds since 1970; 0: never


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a queue; sequences count up within the queue."""

    queue: str
    sequence: int
    message: Message
    attempts: int = 0
    expires: float = 0.0  # seconds since 1970; 0: never
    due: float = 0.0  # not before, in seconds since 1970


@dataclass(frozen=True, slots=True)
class Position:
    """Where a partition of the log begins and ends: offsets [first, next), times in µs."""

    partition: int
    first: int = 0
    next: int = 0
    first_time: int = 0
    last_time: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class LogBatch:
    """Rows of a partition with offsets in [base, base + count), as they are stored.

    Retention may have left holes: the rows' own offsets tell which are there.
    `ipc` is what stands between the schema and the end of an Arrow stream: the dictionaries of the
    batch, then the batch. After `wirelake.engine.batch.PREAMBLE`, batches can be sent one after the
    other.
    """

    partition: int
    base: int
    count: int
    first_time: int
    last_time: int
    ipc: bytes | memoryview


class Engine(ABC):
    """Keeps what the broker must find again."""

    #: Partitions of the log; 0 where there is none.
    partitions: int = 0
    #: Tells this log from any other, so that nobody takes its offsets for another's.
    log_id: str = ""
    #: Why nothing can be written now, or nothing.
    trouble: str = ""

    def __init__(self) -> None:
        #: What was found damaged, and what became of it: as it was opened, or as it was read.
        self.damage: list[str] = []
        #: Called at the end of a turn that `touch` has begun, before it can become durable.
        self.gather: Callable[[], object] = lambda: None

    def set_aside(self, what: str, raw: bytes, error: Exception) -> None:
        """Keep bytes that were stored and cannot be decoded, if this engine can; report them."""
        self.damage.append(f"{what} cannot be read: {error}")

    # The data store

    @abstractmethod
    def entries(self) -> Iterable[Entry]:
        """Every key's latest state."""

    @abstractmethod
    def write_entry(self, entry: Entry) -> None:
        """Keep a key's latest state. Revisions count from 1."""

    @abstractmethod
    def drop_entry(self, key: str) -> None:
        """Forget a key; does nothing where there is none."""

    # Queues

    @abstractmethod
    def queues(self) -> Iterable[QueueSettings]:
        """The queues that were declared."""

    @abstractmethod
    def declare(self, settings: QueueSettings) -> None:
        """Keep a queue."""

    @abstractmethod
    def remove(self, queue: str) -> None:
        """Forget a queue and all that is in it."""

    @abstractmethod
    def stored(self, queue: str) -> Iterable[Stored]:
        """The messages in a queue, in the order of their sequences."""

    @abstractmethod
    def put(self, stored: Stored) -> None:
        """Keep a message."""

    @abstractmethod
    def count_attempt(self, stored: Stored) -> None:
        """Keep a message's new count of attempts."""

    @abstractmethod
    def drop(self, queue: str, sequence: int) -> None:
        """Forget a message that is done."""

    @abstractmethod
    def next_sequence(self, queue: str) -> int:
        """The least sequence that was never given out in a queue."""

    @abstractmethod
    def remember_id(self, queue: str, identity: str, until: float) -> None:
        """Keep the id of a message that was put, until a time in seconds since 1970."""

    @abstractmethod
    def remembered_ids(self, queue: str) -> Iterable[tuple[str, float]]:
        """The ids that were put, and until when to know them, the oldest first."""

    # The log

    @abstractmethod
    def append(
        self, table: FrameTable, rows: array[int] | None, timestamp: int | array[int], source: bytes
    ) -> None:
        """Add rows of a table (all, or these), received at `timestamp` (µs) from `source`.

        They are copied. A row's own source counts where `source` is empty. Rows that came at
        different times have one each.
        """

    @property
    @abstractmethod
    def backlog(self) -> int:
        """The bytes of the log that are not durable yet."""

    @abstractmethod
    def positions(self) -> list[Position]:
        """Where each partition of the log begins and ends."""

    @abstractmethod
    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[LogBatch]:
        """The batches that hold rows [start, stop), in order; for any thread.

        The first and the last may hold more rows than that. Batches that are known to have no row
        whose address `may_match` may be left out.
        """

    # Durability

    @abstractmethod
    def touch(self) -> None:
        """More belongs to what is written in this turn: `gather` will write it."""

    @abstractmethod
    def after(self, action: Callable[[], object]) -> None:
        """Run an action once all that was written so far is durable."""

    @abstractmethod
    def close(self) -> None:
        """Make everything durable, and let go."""
