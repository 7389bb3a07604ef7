"""A journal that misbehaves as the contract allows: fences, delays, refusals, lost answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from wirelake.errors import EngineError
from wirelake.journal.contract import (
    Batch,
    Done,
    Journal,
    Needed,
    Outcome,
    Position,
    Recovered,
    Space,
)
from wirelake.journal.memory import MemoryJournal
from wirelake.journal.record import Record


class FaultyJournal(Journal):
    """A journal in memory with faults that a test puts in.

    `held`: outcomes wait for `release`. `fence`: somebody else takes the partition up. `refuse`:
    the next commit is not stored, `lose_answer`: it is; both are told as *unavailable*.
    """

    def __init__(self, *, partitions: int = 4, held: bool = False) -> None:
        self._inner = MemoryJournal(partitions=partitions)
        self.partitions = partitions
        self.id = self._inner.id
        self.losses = []
        self.held = held
        self._waiting: list[tuple[dict[int, Sequence[Record]], Done]] = []
        self._gone: dict[int, Outcome] = {}  # partitions that must be taken up again
        self._refused: set[int] = set()
        self._unanswered: set[int] = set()

    def fence(self, partition: int) -> None:
        """Somebody else takes the partition up."""
        self._gone[partition] = Outcome.LOST

    def refuse(self, partition: int) -> None:
        """The next commit of this partition cannot be stored."""
        self._refused.add(partition)

    def lose_answer(self, partition: int) -> None:
        """The next commit of this partition is stored, and nobody hears of it."""
        self._unanswered.add(partition)

    def release(self, most: int = 1 << 30) -> None:
        """Work off appends that were held, the oldest first."""
        while self._waiting and most:
            commits, done = self._waiting.pop(0)
            most -= 1
            self._work_off(commits, done)

    def _work_off(self, commits: Mapping[int, Sequence[Record]], done: Done) -> None:
        for partition, records in commits.items():
            outcome = self._gone.get(partition, Outcome.DURABLE)
            stores = outcome is Outcome.DURABLE and partition not in self._refused
            if stores:
                self._inner.append({partition: records}, lambda _: None)
            if outcome is Outcome.DURABLE and partition in self._refused | self._unanswered:
                self._refused.discard(partition)
                self._unanswered.discard(partition)
                outcome = self._gone[partition] = Outcome.UNAVAILABLE
            done({partition: outcome})

    def recover(self, partition: int) -> Recovered:
        """Take a partition up; one that was fenced is ours again."""
        if any(partition in commits for commits, _ in self._waiting):
            raise EngineError(f"partition {partition} has appends under way", retriable=True)
        recovered = self._inner.recover(partition)
        self._gone.pop(partition, None)
        return recovered

    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        """Add a commit to each of these partitions."""
        # What the caller does wrong is refused at once, whatever else is the matter.
        self._inner.check(commits)
        self._waiting.append((dict(commits), done))
        if not self.held:
            self.release()

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        space: Space = Space.LOG,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """As the journal in memory."""
        return self._inner.read(partition, start, stop, space=space, may_match=may_match)

    def keep(self, partition: int, needed: Needed) -> None:
        """As the journal in memory."""
        self._inner.keep(partition, needed)

    def positions(self) -> list[Position]:
        """As the journal in memory."""
        return self._inner.positions()

    @property
    def backlog(self) -> int:
        """The bytes of appends that are held."""
        return sum(
            len(piece)
            for commits, _ in self._waiting
            for records in commits.values()
            for record in records
            for piece in record.body
        )

    def close(self) -> None:
        """Tell what is held as *unavailable*."""
        for partition in range(self.partitions):
            self._gone.setdefault(partition, Outcome.UNAVAILABLE)
        self.release()
        self._inner.close()
