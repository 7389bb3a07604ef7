"""Those who take messages from queues: consumers, their leases and the pulls that wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from wirelake.broker.deadlines import Deadlines
from wirelake.broker.endpoint import Endpoint
from wirelake.message import Message
from wirelake.wire import FrameTable


@dataclass(eq=False, slots=True)
class Consumer:
    """A session that takes messages of one queue."""

    session: Endpoint
    prefetch: int
    held: dict[str, int] = field(default_factory=dict)  # sequences, by the id it knows them under
    pulls: dict[Pull, None] = field(default_factory=dict)  # of this consumer, that wait

    @property
    def room(self) -> int:
        """How many more messages it may hold."""
        return max(0, self.prefetch - len(self.held))


@dataclass(eq=False, slots=True)
class Lease:
    """Messages that were delivered together and are not acknowledged yet.

    They have one deadline. All of them are held by the same consumers, each of which knows them
    under ids of its own.
    """

    sequences: dict[int, int]  # those that are left, and their rows in `told`
    holders: dict[Consumer, dict[int, str]]  # their ids, by sequence
    #: Who sent what, for the log: rows of a table, or one message.
    told: FrameTable | Message


class Leases:
    """The messages of a queue that consumers hold, and until when each must be acknowledged."""

    def __init__(self) -> None:
        self.deadlines: Deadlines[Lease] = Deadlines()
        self._by_sequence: dict[int, Lease] = {}

    def __len__(self) -> int:
        return len(self._by_sequence)

    def __getitem__(self, sequence: int) -> Lease:
        return self._by_sequence[sequence]

    def add(self, lease: Lease, due: float) -> None:
        """Note that messages were delivered; they must be acknowledged until `due`."""
        self._by_sequence.update(dict.fromkeys(lease.sequences, lease))
        self.deadlines.set(lease, due)

    def end(self, sequence: int) -> Iterator[Consumer]:
        """Take a message from all its holders; yield those that have room for one more now."""
        lease = self._by_sequence.pop(sequence)
        del lease.sequences[sequence]
        if not lease.sequences:
            self.deadlines.discard(lease)
        for consumer, ids in lease.holders.items():
            identity = ids.pop(sequence, None)
            if identity is not None:
                consumer.held.pop(identity, None)
                yield consumer

    def end_some(self, lease: Lease, sequences: Sequence[int]) -> list[Consumer]:
        """Take messages of one lease from all its holders; return those that have room for more."""
        for sequence in sequences:
            del self._by_sequence[sequence]
            del lease.sequences[sequence]
        if not lease.sequences:
            self.deadlines.discard(lease)
        freed = []
        for consumer, ids in lease.holders.items():
            before = len(ids)
            for sequence in sequences:
                consumer.held.pop(ids.pop(sequence, ""), None)
            if len(ids) < before:
                freed.append(consumer)
        return freed

    def let_go(self, consumer: Consumer, sequence: int) -> bool:
        """Take a message from one holder; return whether it was the last, and the lease ended."""
        lease = self._by_sequence[sequence]
        consumer.held.pop(lease.holders[consumer].pop(sequence), None)
        if any(sequence in ids for ids in lease.holders.values()):
            return False
        for _ in self.end(sequence):
            pass
        return True


@dataclass(eq=False, slots=True)
class Pull:
    """A request for messages that waits for more of them."""

    consumer: Consumer
    request: Message
    left: int
    taken: int = 0


class Pulls:
    """Counts the pulls that wait, of each session and in all."""

    def __init__(self) -> None:
        self.total = 0
        self._by_session: Counter[Endpoint] = Counter()

    def of(self, session: Endpoint) -> int:
        """Return how many pulls of a session wait."""
        return self._by_session[session]

    def add(self, session: Endpoint) -> None:
        """Count a pull that waits."""
        self._by_session[session] += 1
        self.total += 1

    def remove(self, session: Endpoint) -> None:
        """Count a pull no more."""
        self._by_session[session] -= 1
        self.total -= 1
        if not self._by_session[session]:
            del self._by_session[session]
