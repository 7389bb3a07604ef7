"""The contract between the owner of partitions and the journal that keeps their state.

A journal has a fixed number of *partitions*. Each is a chain of typed records (`record.py`). They
are written in *commits*: the records of a commit are found again all or not at all. Nothing is
promised across partitions.

Who changes a partition holds its state in memory, and follows this cycle:

1. `recover` takes the partition up. Applying the records that it gives, in order, gives the state.
2. `append` adds commits. An answer to a client waits for the outcome *durable*.
3. Now and then the state itself is appended as ordinary records, a part at a time, and then a
   *checkpoint*, which names the first of them. Recovery begins there from then on. Changes say what
   is, not what to add, so applying one twice does no harm, and other commits may lie between parts.
4. `keep` says which rows and messages the state still refers to. The others may be removed.
5. After *lost* or *unavailable* the state in memory is worth nothing: back to 1.

Three kinds of places are counted, each from its own zero and per partition: *numbers* of records,
*offsets* of rows in the log, and *slots* of messages that are in a queue but not in the log.

**Threads.** `append` is called by one thread at a time for each partition, and never waits unless
`in_place` is set. `recover` may wait for a disk or a network. `read` and `positions` are for any
thread. Nothing calls back except `done`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from wirelake.errors import EngineError
from wirelake.journal.record import Record

if TYPE_CHECKING:
    from wirelake.journal.retention import Rule

#: Partitions of a journal that is new, and of any.
PARTITIONS = 4
MAX_PARTITIONS = 1024


class Outcome(Enum):
    """The result of a commit."""

    #: It survives a power failure, and `recover` and `read` find it from now on.
    DURABLE = "durable"
    #: Somebody else owns the partition. The commit is not in the journal and never will be.
    LOST = "lost"
    #: The journal has given up. `recover` tells whether the commit is there.
    UNAVAILABLE = "unavailable"


#: Takes the outcomes of some or all partitions of an append.
Done = Callable[[Mapping[int, Outcome]], object]


class Space(IntEnum):
    """Where rows are counted."""

    #: Rows of the log, by offset.
    LOG = 0
    #: Rows that retention took out of the log and a queue still needs, by offset.
    KEPT = 1
    #: Messages of queues that are not captured, by slot.
    PRIVATE = 2


class Harm(Enum):
    """The kind of damage to bytes that are not a valid record."""

    #: A write did not end, so nobody was told that it was durable.
    TORN = "torn"
    #: They were durable, and are not what was written.
    DAMAGED = "damaged"
    #: Records that were durable are not there at all.
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Loss:
    """A loss or damage that was found, and what was done about it."""

    harm: Harm
    where: str
    text: str
    #: The file that keeps the bytes, if there are any.
    kept: str = ""

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" + (f"; kept in {self.kept}" if self.kept else "")


@dataclass(frozen=True, slots=True)
class Position:
    """Where a partition begins and ends.

    The log has offsets [first, next); times are those of its rows, in µs. `number` and `slot` are
    the next ones to be given; all that was appended counts for them, durable or not.
    """

    partition: int
    first: int = 0
    next: int = 0
    first_time: int = 0
    last_time: int = 0
    bytes: int = 0
    number: int = 1
    slot: int = 0
    #: Bytes of the records that recovery has to apply.
    since_checkpoint: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a partition with places in [base, base + count), as they are stored.

    Some may be missing in between: the column `offset` tells which are there. `ipc` has the bytes
    between the schema (`arrow_stream.PREAMBLE`) and the end of an Arrow stream.
    """

    partition: int
    base: int
    count: int
    first_time: int
    last_time: int
    ipc: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Needed:
    """The rows that a partition's state refers to: half-open ranges of places, in order.

    Rows at or behind `offset`, and messages at or behind `slot`, are needed too: they came after
    the ranges were collected. The default needs everything.
    """

    log: Sequence[tuple[int, int]] = ()
    private: Sequence[tuple[int, int]] = ()
    offset: int = 0
    slot: int = 0


@dataclass(frozen=True, slots=True)
class Recovered:
    """A partition that was taken up."""

    partition: int
    #: Of the records that are appended from now on; higher than any before it.
    epoch: int
    #: The next offset and the next slot.
    offset: int
    slot: int
    #: Records from the checkpoint's first part on, in order, without rows and messages: those are
    #: read by their place. Empty for a partition that never had any. Each can be read once.
    records: Iterator[Record]
    #: Losses in what `records` gives; complete when it is exhausted.
    losses: list[Loss] = field(default_factory=list)


class Journal(ABC):
    """Keeps the records of partitions."""

    partitions: int
    #: Tells this journal from any other.
    id: str
    #: The partitions of which nothing can be made durable now, and why. The caller refuses what is
    #: new for them; what was appended waits. Replaced as a whole, so any thread may look.
    troubles: Mapping[int, str] = MappingProxyType({})
    #: What was found torn, damaged or missing since the journal was opened.
    losses: list[Loss]
    #: How often writing has failed; what failed is tried again.
    failures: int = 0

    @property
    def trouble(self) -> str:
        """Why nothing can be made durable now, of any partition; empty while all is well."""
        return next(iter(self.troubles.values()), "")

    @abstractmethod
    def recover(self, partition: int) -> Recovered:
        """Take a partition up, and return what its state is made of.

        On success: nobody who took it up before can append any more, and `records` holds every
        commit that was reported durable, less what is told in `losses`; commits that never had an
        outcome, or *unavailable*, may be among them or not, a prefix of them in any case.
        On absence: a partition without records is empty, which is no error.
        On error: raises EngineError (retriable: try again); the partition is as it was before.
        Raises EngineError while appends to the partition have no outcome.
        """

    @abstractmethod
    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        """Add a commit to each of these partitions; `done` gets every partition's outcome once.

        `done` may be called before this returns, and on another thread; for one partition in the
        order of the appends. It may be called several times, with some of the partitions each.

        On *durable*: as `Outcome` says. On *lost* and *unavailable*: so are all later appends to
        the partition, until `recover` takes it up again.
        On trouble (a full disk, no quorum): the commit waits, `troubles` says why, and it is tried
        again until it has an outcome; *unavailable* is for a journal that gives up or is closed.
        On error: raises EngineError, and nothing of it is appended: a partition that was not taken
        up, a record that is too large, rows whose places were given before, a closed journal.

        `in_place`: write and sync on this thread, if nothing else waits to be written. Else the
        commit is made beside, together with others that came meanwhile.
        """

    @abstractmethod
    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        space: Space = Space.LOG,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """The durable batches that hold places [start, stop) of a space, in order.

        The first and the last batch may hold more. Batches that are known to have no row whose
        address `may_match` may be left out.
        On absence: places that are not there, any more or yet, are left out.
        On error: a batch that cannot be read is left out and added to `losses`; raises EngineError
        (retriable) where nothing can be read at all.
        """

    @abstractmethod
    def keep(self, partition: int, needed: Needed) -> None:
        """Say what the partition's state refers to, with all that was appended before this call.

        It holds from when these appends are durable until the next call's are: a message whose
        acknowledgement is not durable is still needed. Before the first call everything is needed.
        Records before the checkpoint are never needed, rows of the log as long as retention says.
        """

    def retain(self, rules: Sequence[Rule]) -> None:  # noqa: B027 - one that keeps no files ignores it
        """Keep rows of the log as long as these rules say, from now on."""

    def can_fetch_again(self, partition: int) -> bool:
        """Whether what cannot be read here may be read after the partition is taken up again.

        It is so where a copy of something that others keep was found damaged.
        """
        return False

    @abstractmethod
    def positions(self) -> list[Position]:
        """Where each partition begins and ends; one that is empty begins where it ends."""

    @property
    @abstractmethod
    def backlog(self) -> int:
        """The bytes that were appended and have no outcome."""

    @abstractmethod
    def close(self) -> None:
        """Try once more to make everything durable, and let go.

        On return every append has its outcome: *unavailable* for what could not be written.
        A second call does nothing. `done` must not call it.
        """


def check_partition(partition: int, partitions: int) -> None:
    """Raise EngineError for a partition that a journal does not have."""
    if not 0 <= partition < partitions:
        raise EngineError(f"there is no partition {partition}: the journal has {partitions}")
