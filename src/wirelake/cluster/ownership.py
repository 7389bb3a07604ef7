"""Who owns which partition: the decisions of one node, without I/O.

The *table of owners* is one value in a KV bucket, changed by compare-and-set alone. It says for
each partition which process may take it up. Taking it up is the journal's work: an epoch record
fences everybody who had it before, so no two nodes can both append. That is what makes it safe;
everything here only makes it quick and steady.

**Targets.** A partition's target is the node it is pinned to, if that is alive and willing, else
the highest rendezvous hash among the willing members. A member that comes or goes changes the
targets of its own share alone.

**Take-over.**

1. The owner in the table is dead, or there is none, and the target is this node: write this node
   into the table.
2. Written: take the partition up (epoch record, replay).
3. Wait until the lease of the owner before must have run out.
4. Serve.

**Lease.** An owner answers reads from memory while its lease runs: `Timing.lease` seconds from the
moment that it *sent* an append which became durable, by its own monotonic clock. Whoever takes over
writes its epoch record after that append, and waits for `Timing.wait` seconds after it. So nobody
else acknowledges a write while an owner still answers reads. An owner past its lease appends a
record first, and answers when that is durable.

**Hand-over.** An owner that is not the target serves no more, waits for its appends, lets the
partition go, and writes the target into the table, with the epoch that it had. Where the new
owner's epoch follows that one directly, nobody had a lease in between, and it serves at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import blake2b
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from wirelake.cluster.members import Event, Member, Members
from wirelake.errors import EngineError, RefusedError

#: The table is read again after this time although nobody told of a change (seconds).
REFRESH = 5.0


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Who may take a partition up."""

    #: Empty: nobody.
    node: str = ""
    life: str = ""
    #: The epoch in which the owner before let it go; -1 if it did not.
    freed: int = -1
    #: The node that an operator moved it to.
    pin: str = ""


Table: TypeAlias = tuple[Place, ...]


class _Stored(msgspec.Struct, frozen=True):
    version: int
    places: Table


def encode_table(table: Table) -> bytes:
    """Return the table as it is kept."""
    return msgspec.json.encode(_Stored(1, table))


def decode_table(data: bytes, partitions: int) -> Table:
    """Read a table; raises EngineError where it is none, or has another number of partitions."""
    try:
        stored = msgspec.json.decode(data, type=_Stored)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise EngineError(f"the table of owners cannot be read: {error}") from None
    if stored.version != 1:
        raise EngineError(f"the table of owners has version {stored.version}, this node reads 1")
    if len(stored.places) != partitions:
        text = f"the cluster has {len(stored.places)} partitions, not {partitions}"
        raise EngineError(text)
    return stored.places


class Phase(Enum):
    """What a partition is to this node."""

    AWAY = "away"
    #: The journal takes it up.
    TAKING = "taking"
    #: It was taken up; the lease of the owner before may still run.
    WAITING = "waiting"
    SERVING = "serving"
    #: It serves no more; its appends are finished.
    LEAVING = "leaving"
    #: It was let go; the table does not say so yet.
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class Read:
    """Read the table; then call `Ownership.read`."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write the table if it has this revision, 0 if there is none; then call `Ownership.wrote`."""

    table: Table
    revision: int


@dataclass(frozen=True, slots=True)
class TakeUp:
    """Take a partition up; then call `Ownership.taken_up` or `Ownership.lost`."""

    partition: int


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve a partition from now on."""

    partition: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """Serve no more, finish what was appended, forget the state; then call `Ownership.let_go`."""

    partition: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Somebody else has the partition: forget its state at once."""

    partition: int


Action: TypeAlias = Read | Write | TakeUp | Serve | LetGo | Drop


@dataclass(slots=True)
class _Partition:
    phase: Phase = Phase.AWAY
    epoch: int = 0
    #: Until when the lease of the owner before may run.
    serves_at: float = 0.0
    #: Until when reads may be answered.
    lease: float = 0.0
    #: Since when nobody served it, as far as this node knows.
    since: float = 0.0
    #: When it may be taken up again, and after which revision of the table at once.
    again: float = 0.0
    after: int = -1


def rank(node: str, partition: int) -> bytes:
    """Return the weight of a node for a partition; the highest one is the target."""
    return blake2b(f"{partition}/{node}".encode(), digest_size=8).digest()


class Ownership:
    """The partitions as one node sees them. Time is told to it."""

    def __init__(self, members: Members, partitions: int) -> None:
        self.members = members
        self.table: Table = ()
        self.revision = 0
        #: This node stops: it gives all that it has to others.
        self.is_leaving = False
        #: Take-overs that are done: seconds from the first sign to serving.
        self.takeovers: deque[float] = deque(maxlen=100)
        self._partitions = [_Partition() for _ in range(partitions)]
        self._ranks: dict[tuple[int, tuple[str, ...]], str] = {}
        self._pins: dict[int, str] = {}  # moves that are not in the table yet
        self._is_busy = False  # a read or a write is under way
        self._must_read = True
        self._read_at = 0.0
        self._writing: Table = ()

    # What is so

    def phase(self, partition: int) -> Phase:
        """Return what a partition is to this node."""
        return self._partitions[partition].phase

    def epoch(self, partition: int) -> int:
        """Return the epoch in which this node has a partition, or had it last."""
        return self._partitions[partition].epoch

    def owned(self) -> tuple[int, ...]:
        """Return the partitions that this node serves."""
        return tuple(
            number for number, one in enumerate(self._partitions) if one.phase is Phase.SERVING
        )

    def owner(self, partition: int) -> str:
        """Return the node that clients of a partition are sent to, empty where there is none.

        It is alive as far as this node knows, and may not serve yet.
        """
        if not self.table:
            return ""
        place = self.table[partition]
        return place.node if self._is_alive(place) else ""

    def is_serving(self, partition: int) -> bool:
        """Whether this node may accept writes to a partition: the fence does the rest."""
        return self._partitions[partition].phase is Phase.SERVING

    def may_read(self, partition: int, now: float) -> bool:
        """Whether this node may answer reads of a partition from memory, without an append."""
        one = self._partitions[partition]
        return one.phase is Phase.SERVING and now < one.lease

    @property
    def has_let_go(self) -> bool:
        """Whether this node has nothing left to give to others."""
        return all(one.phase is Phase.AWAY for one in self._partitions)

    def target(self, partition: int) -> str:
        """Return the node that should own a partition, empty where there is none."""
        alive = self.members.alive()
        willing = [name for name, one in alive.items() if one.is_willing]
        if self.is_leaving and self.members.me.node in willing:
            willing.remove(self.members.me.node)
        if not willing and not self.is_leaving:  # all are draining: better than nobody
            willing = [name for name, one in alive.items() if not one.heartbeat.leaving]
        pin = self.table[partition].pin if self.table else ""
        if pin in willing:
            return pin
        return self._highest(partition, tuple(sorted(willing)))

    def _highest(self, partition: int, names: tuple[str, ...]) -> str:
        if len(self._ranks) > 4 * len(self._partitions):
            self._ranks.clear()
        key = partition, names
        if key not in self._ranks:
            self._ranks[key] = max(names, key=lambda name: rank(name, partition), default="")
        return self._ranks[key]

    def _is_alive(self, place: Place) -> bool:
        """Whether the owner in the table can do its work: one that is deaf cannot."""
        member = self.members.alive().get(place.node)
        if member is None or member.heartbeat.life != place.life:
            return False
        return not member.heartbeat.deaf or self._is_mine(place)

    def _is_mine(self, place: Place) -> bool:
        return (place.node, place.life) == (self.members.me.node, self.members.me.life)

    # What happened

    def read(self, table: Table | None, revision: int) -> None:
        """The table was read: None where there is none yet."""
        self._is_busy = False
        self._take(table if table is not None else (Place(),) * len(self._partitions), revision)

    def read_failed(self) -> None:
        """The table could not be read; it is tried again."""
        self._is_busy = False
        self._must_read = True

    def wrote(self, revision: int) -> None:
        """The table was written, and has this revision now."""
        self._is_busy = False
        self._take(self._writing, revision)

    def write_failed(self) -> None:
        """The table was not written, or nobody knows: read it again."""
        self._is_busy = False
        self._must_read = True

    def _take(self, table: Table, revision: int) -> None:
        if revision >= self.revision:  # an older one comes from a replica that is behind
            self.table, self.revision = table, revision
            for partition, pin in list(self._pins.items()):
                if table[partition].pin == pin:
                    del self._pins[partition]

    def taken_up(self, partition: int, epoch: int, sent: float, now: float) -> list[Action]:
        """The journal has taken a partition up; its epoch record was sent at `sent`."""
        one, place = self._partitions[partition], self.table[partition]
        one.epoch = epoch
        if not self._is_mine(place):
            one.phase = Phase.AWAY
            return [Drop(partition)]
        one.phase = Phase.WAITING
        one.lease = sent + self.members.timing.lease
        is_first = epoch == 1 or place.freed == epoch - 1  # nobody had a lease since
        one.serves_at = now if is_first else now + self.members.timing.wait
        return self._serve(partition, now)

    def _serve(self, partition: int, now: float) -> list[Action]:
        one = self._partitions[partition]
        if one.phase is not Phase.WAITING or now < one.serves_at:
            return []
        one.phase = Phase.SERVING
        took = now - one.since
        self.takeovers.append(took)
        self._tell("owner_changed", f"partition {partition} is served here after {took:.2f} s")
        return [Serve(partition)]

    def not_taken_up(self, partition: int, now: float) -> None:
        """The journal could not take a partition up; it is tried again."""
        one = self._partitions[partition]
        one.phase = Phase.AWAY
        one.again, one.after = now + self.members.timing.beat, self.revision

    def proved(self, partition: int, sent: float) -> None:
        """An append that was sent at `sent` became durable: nobody else owned it then."""
        one = self._partitions[partition]
        one.lease = max(one.lease, sent + self.members.timing.lease)

    def lost(self, partition: int, now: float) -> list[Action]:
        """An append was fenced: somebody else has the partition."""
        one = self._partitions[partition]
        self._must_read = True
        if one.phase in (Phase.AWAY, Phase.LEFT):
            return []
        one.phase, one.lease = Phase.AWAY, 0.0
        # Whoever has it wrote the table before: this node must not take it back by an old one.
        one.again, one.after = now + self.members.timing.dead, self.revision
        self._tell("owner_changed", f"partition {partition} was taken over by another node")
        return [Drop(partition)]

    def let_go(self, partition: int) -> None:
        """What was appended to a partition has ended, and its state is forgotten."""
        one = self._partitions[partition]
        if one.phase is Phase.LEAVING:
            one.phase = Phase.LEFT

    def move(self, partition: int, node: str) -> None:
        """Give a partition to a node from now on; empty: to the one that the hash says.

        Raises RefusedError where there is no such partition, or no such member.
        """
        if not 0 <= partition < len(self._partitions):
            text = f"there is no partition {partition}: the cluster has {len(self._partitions)}"
            raise RefusedError("not_found", text)
        if node and node not in self.members.alive():
            raise RefusedError("not_found", f"no member {node}")
        if not self.table or self.table[partition].pin != node:
            self._pins[partition] = node

    def is_moved(self, partition: int, node: str) -> bool:
        """Whether the table says that a partition is moved to a node."""
        return bool(self.table) and self.table[partition].pin == node

    # What is to be done

    def step(self, now: float) -> list[Action]:
        """Return what is to be done now. Call it whenever something happened, and every beat."""
        actions: list[Action] = []
        if self.members.newest_revision() > self.revision or now - self._read_at > REFRESH:
            self._must_read = True
        if self.table:
            for partition in range(len(self._partitions)):
                actions += self._step_one(partition, now)
        if self._is_busy:
            return actions
        if self._must_read:
            self._is_busy, self._must_read, self._read_at = True, False, now
            return [*actions, Read()]
        wanted = self._wanted(now) if self.table else self.table
        if wanted != self.table:
            self._is_busy, self._writing = True, wanted
            actions.append(Write(wanted, self.revision))
        return actions

    def _step_one(self, partition: int, now: float) -> list[Action]:
        one, place = self._partitions[partition], self.table[partition]
        if self._is_alive(place) and not self._is_mine(place):
            one.since = now
        if one.phase is Phase.WAITING and self._is_mine(place):
            return self._serve(partition, now)
        if not self._is_mine(place):
            if one.phase in (Phase.WAITING, Phase.SERVING):
                return self.lost(partition, now)
            if one.phase is Phase.LEFT:  # the table says who has it now
                one.phase = Phase.AWAY
            return []
        if one.phase is Phase.SERVING and self._gives_away(partition, now):
            one.phase, one.lease = Phase.LEAVING, 0.0
            return [LetGo(partition)]
        if one.phase is Phase.LEFT and place.freed == one.epoch:  # nobody else was there to have it
            one.phase = Phase.AWAY
        may = now >= one.again or self.revision > one.after >= 0
        if one.phase is Phase.AWAY and may and not self.is_leaving:
            one.phase = Phase.TAKING
            one.since = one.since or now
            return [TakeUp(partition)]
        return []

    def _gives_away(self, partition: int, now: float) -> bool:
        """Whether another member should have a partition that this node serves."""
        name = self.target(partition)
        if name == self.members.me.node or (not name and not self.is_leaving):
            return False
        if self.is_leaving or not self.members.alive()[self.members.me.node].is_willing:
            return True
        return self._is_established(name, now)

    def _is_established(self, name: str, now: float) -> bool:
        """Whether a member has been there for a while: partitions should not go to and fro."""
        return now - self.members.alive()[name].since > self.members.timing.dead

    def _wanted(self, now: float) -> Table:
        """Return the table as this node would have it."""
        wanted = list(self.table)
        for partition, place in enumerate(self.table):
            one = self._partitions[partition]
            pin = self._pins.get(partition, place.pin)
            if one.phase is Phase.LEFT and self._is_mine(place):
                place = Place(*self._process(self.target(partition)), freed=one.epoch)
            elif self._claims(partition, place, now):
                place = Place(*self._process(self.members.me.node), freed=place.freed)
            wanted[partition] = replace(place, pin=pin)
        return tuple(wanted)

    def _process(self, name: str) -> tuple[str, str]:
        member = self.members.alive().get(name)
        return (name, member.heartbeat.life) if member is not None else ("", "")

    def _claims(self, partition: int, place: Place, now: float) -> bool:
        """Whether this node should write itself into the table."""
        if self._is_mine(place) or self._is_alive(place) or self.is_leaving:
            return False
        if self.members.is_deaf(now) or self.target(partition) != self.members.me.node:
            return False
        return place.node == self.members.me.node or self.members.is_settled(now)

    def _tell(self, kind: str, text: str) -> None:
        self.members.events.append(Event(kind, self.members.me.node, text))


def describe(table: Table, members: Mapping[str, Member]) -> Sequence[tuple[int, str, bool, str]]:
    """Return partition, owner, whether the owner is alive, and pin, of each partition."""
    found = []
    for partition, place in enumerate(table):
        member = members.get(place.node)
        is_alive = member is not None and member.heartbeat.life == place.life
        found.append((partition, place.node, is_alive, place.pin))
    return found
