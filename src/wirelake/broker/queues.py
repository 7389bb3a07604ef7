"""Queues: a message is kept until somebody has acknowledged it.

A delivered message is invisible to others until it is acked, nacked, or its time is up; then it is
delivered again, with the attempt counted, and after too many attempts it moves to the queue
`<address>/$dead` with the reason (spec: queues). A consumer has at most `prefetch` messages at a
time. Where a dialect has no acknowledgement, handing a message to the socket acknowledges it.

Modes (spec: tmq 6): `round-robin`, one consumer at a time; `push`, every consumer gets it, done
when one has acknowledged; `pull`, only on request.

A producer that does not know whether its message arrived sends it again under the same id: within
`dedup_window` seconds a queue takes an id of one producer once (decision 41).

Times are the broker's own; what is kept by the engine is in seconds since 1970.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.address import MAX_ADDRESS, check_number, check_topic
from wirelake.broker.deadlines import Deadlines
from wirelake.engine.base import QueueSettings, Stored
from wirelake.errors import RefusedError
from wirelake.message import NO_FLAGS, Flag, Message

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights
    from wirelake.broker.session import Session

PREFETCH = 100
DEAD = "/$dead"
#: Bytes of a queue's name: its dead letters have an address, too.
MAX_NAME = MAX_ADDRESS - len(DEAD)
REASON = "dead.reason"
DELAY = "delay"
#: The longest delay, in milliseconds.
MOST_DELAY = 10**12 - 1
#: A broker whose clock ticks so late (seconds) was stopped, or its machine was.
STANDSTILL = 1.0
#: Less than the time between two ticks of the clock (seconds).
SOON = 0.001

#: What a message, and each of its headers, takes in memory beside their text and payload (bytes).
#: Measured: a message with one short header takes 750 bytes more than its payload.
MESSAGE_OVERHEAD = 640
HEADER_OVERHEAD = 128
#: A queue remembers this many message ids at most; the oldest are forgotten before their time.
MOST_IDS = 1_000_000
#: Queues that one tick of the clock looks after; the others have to wait for the next.
QUEUES_AT_ONCE = 1_000
#: Ids that are forgotten at once, since their time is up.
FORGOTTEN_AT_ONCE = 1_000


def size_of(message: Message) -> int:
    """The bytes that a message counts for in `max_bytes`: payload, headers, ids, and overhead."""
    size = MESSAGE_OVERHEAD + len(message.payload) + len(message.id)
    size += len(message.correlation_id) + len(message.source) + len(message.target)
    for name, value in message.headers.items():
        size += HEADER_OVERHEAD + len(name) + len(value)
    return size


@dataclass(eq=False, slots=True)
class _Consumer:
    """A session that takes messages of one queue."""

    session: Session
    prefetch: int
    held: dict[str, int] = field(default_factory=dict)  # sequences, by the id it knows them under
    pulls: dict[_Pull, None] = field(default_factory=dict)  # of this consumer, that wait


@dataclass(eq=False, slots=True)
class _Held:
    """A message that was delivered and not acknowledged, and who has it under which id."""

    stored: Stored
    holders: dict[_Consumer, str]


@dataclass(eq=False, slots=True)
class _Pull:
    """A request for messages that waits for more of them."""

    consumer: _Consumer
    request: Message
    left: int
    taken: int = 0


class Queue:
    """One queue: what is ready, who holds what, and who waits."""

    def __init__(self, node: Node, settings: QueueSettings) -> None:
        self._settings = settings
        self._node = node
        self._ready: list[tuple[int, int, Stored]] = []  # the urgent first, then by sequence
        self._later: list[tuple[float, int, Stored]] = []  # by when they are due
        self._held: dict[int, _Held] = {}
        self._deadlines: Deadlines[int] = Deadlines()  # of acknowledgements, by sequence
        self._consumers: dict[Session, _Consumer] = {}
        # Consumers that hold less than they may, in turn. Ordered dictionaries, here and below,
        # since the first of a plain one is found ever more slowly as others before it go.
        self._free: OrderedDict[_Consumer, None] = OrderedDict()
        self._pulls: OrderedDict[_Pull, None] = OrderedDict()
        self._pull_ends: Deadlines[_Pull] = Deadlines()
        self._wakes_at = float("inf")  # when `tick` is to be called, at the latest
        # When messages end that do not live for ever: a clock that is set must not end them.
        self._ends: dict[int, float] = {}
        self._recent: OrderedDict[str, float] = OrderedDict()  # ids taken, until when; oldest first
        self._next = 1
        self.bytes = 0
        for stored in node.engine.stored(settings.name):
            self._next = max(self._next, stored.sequence + 1)
            self.bytes += size_of(stored.message)
            heapq.heappush(self._later, (stored.due - node.epoch, stored.sequence, stored))
            if stored.expires:
                self._ends[stored.sequence] = stored.expires - node.epoch
        self._next = max(self._next, node.engine.next_sequence(settings.name))
        for identity, until in node.engine.remembered_ids(settings.name):
            self._recent[identity] = until - node.epoch
        self._schedule()

    @property
    def settings(self) -> QueueSettings:
        """How the queue behaves."""
        return self._settings

    @settings.setter
    def settings(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._wake_soon()  # the new mode may let messages go

    def __len__(self) -> int:
        return len(self._ready) + len(self._later) + len(self._held)

    def state(self, now: float) -> dict[str, object]:
        """What people want to know of it."""
        oldest = self._ready[0][2].message.timestamp if self._ready else 0
        return {
            "name": self.settings.name,
            "mode": self.settings.mode,
            "messages": len(self),
            "ready": len(self._ready),
            "held": len(self._held),
            "delayed": len(self._later),
            "bytes": self.bytes,
            "consumers": len(self._consumers),
            "age": max(0.0, now + self._node.epoch - oldest / 1e6) if oldest else 0.0,
        }

    # Producers

    def put(
        self,
        message: Message,
        now: float,
        *,
        producer: Session | None = None,
        lives: float = 0.0,
        dead: bool = False,
    ) -> None:
        """Keep a message, for so many seconds if not for ever; dead letters always fit."""
        identity = _identity(message, producer) if self.settings.dedup_window else ""
        if not dead:
            if self._was_taken(identity, now):
                self._node.count_dropped("duplicate")
                return
            self._check_room(size_of(message))
        due = 0.0
        if not dead and (delay := message.headers.get(DELAY, "")):
            due = now + check_number(delay, DELAY, most=MOST_DELAY) / 1000
        sequence = self._next
        self._next += 1
        epoch, window = self._node.epoch, self.settings.dedup_window
        if identity:
            self._recent.pop(identity, None)  # an old one may be there still, and comes last now
            self._recent[identity] = now + window
            if len(self._recent) > MOST_IDS:
                self._recent.popitem(last=False)
                self._node.counters["ids_forgotten"] += 1
            if producer is not None and producer.client_id:
                self._node.engine.remember_id(self.settings.name, identity, now + window + epoch)
        stored = Stored(
            self.settings.name,
            sequence,
            replace(
                message,
                address=self.settings.name,  # a dead letter had another one
                id=message.id or f"q{sequence}",
                source=message.source if producer is None else producer.client_id,
                flags=message.flags & Flag.TEXT,  # mfp's type survives (spec: mfp 6)
                timestamp=self._node.timestamp(now),
            ),
            0,
            now + lives + epoch if lives else 0.0,
            due + epoch if due else 0.0,
        )
        self._node.engine.put(stored)
        if lives:
            self._ends[sequence] = now + lives
        self.bytes += size_of(stored.message)
        if self._node.capture.active:
            self._node.capture.add(replace(stored.message, op="enqueue"), now)
        if due:
            heapq.heappush(self._later, (due, sequence, stored))
        else:
            self._make_ready(stored)
        self.dispatch(now)

    def _was_taken(self, identity: str, now: float) -> bool:
        """Has a message of this id been put within the window?"""
        self._forget_ids(now)
        return self._recent.get(identity, now) > now

    def _forget_ids(self, now: float) -> None:
        """Forget ids whose time is up; many of them not all at once."""
        for _ in range(FORGOTTEN_AT_ONCE):
            if not self._recent or next(iter(self._recent.values())) > now:
                return
            self._recent.popitem(last=False)

    def _check_room(self, size: int) -> None:
        name, most = self.settings.name, self.settings.max_messages
        if most and len(self) >= most:
            raise RefusedError("busy", f"the queue {name} is full: it has {most} messages")
        most = self.settings.max_bytes
        if most and self.bytes + size > most:
            raise RefusedError("busy", f"the queue {name} is full: it may have {most} bytes")

    def _make_ready(self, stored: Stored) -> None:
        heapq.heappush(self._ready, (-stored.message.priority, stored.sequence, stored))

    # Consumers

    def consume(self, session: Session, prefetch: int, now: float) -> None:
        """Let a session have messages as they come."""
        consumer = self._consumers.get(session)
        if consumer is None:
            consumer = self._consumers[session] = _Consumer(session, 0)
        consumer.prefetch = prefetch or PREFETCH
        self._note_room(consumer)
        self.dispatch(now)

    def cancel(self, session: Session, now: float) -> None:
        """A session wants no more; what it holds goes to others."""
        consumer = self._consumers.pop(session, None)
        if consumer is None:
            return
        for pull in list(consumer.pulls):
            self._remove_pull(pull)
        consumer.prefetch = 0
        self._note_room(consumer)
        for sequence in list(consumer.held.values()):
            self._give_back(consumer, self._held[sequence])
        self.dispatch(now)

    def pull(self, session: Session, request: Message, count: int, wait: float, now: float) -> None:
        """Hand out up to `count` messages, waiting for them; the end is told."""
        queues = self._node.queues
        if wait:
            self._node.quotas.check("pulls", queues.pulls.of(session), queues.pulls.total)
        consumer = self._consumers.get(session)
        if consumer is None:
            consumer = self._consumers[session] = _Consumer(session, 0)
        pull = _Pull(consumer, request, count)
        self._pulls[pull] = consumer.pulls[pull] = None
        if wait:
            self._pull_ends.set(pull, now + wait)
        queues.pulls.add(session)
        self.dispatch(now)
        if not wait and pull in self._pulls:
            self._end_pull(pull)

    def ack(self, session: Session, identity: str, now: float) -> None:
        """A message is done."""
        held = self._held_by(session, identity)
        self._release(held)
        self._done(held.stored)
        self._tell("ack", held.stored, session, now)
        self.dispatch(now)

    def nack(self, session: Session, identity: str, now: float, *, requeue: bool = True) -> None:
        """A message is not done: it goes to another, or to the dead letters."""
        held = self._held_by(session, identity)
        self._tell("nack", held.stored, session, now)
        if requeue:
            self._give_back(self._consumers[session], held)
        else:
            self._release(held)
            self._bury(held.stored, "rejected", now)
        self.dispatch(now)

    def holds(self, session: Session, identity: str) -> bool:
        """Has this session a message of this id that it has not acknowledged?"""
        consumer = self._consumers.get(session)
        return consumer is not None and identity in consumer.held

    def change(self, settings: QueueSettings) -> None:
        """Give the queue other settings, and keep them."""
        self.settings = settings
        self._node.engine.declare(settings)

    def _held_by(self, session: Session, identity: str) -> _Held:
        consumer = self._consumers.get(session)
        if consumer is None or identity not in consumer.held:
            raise RefusedError("not_found", f"no message {identity} is held by this connection")
        return self._held[consumer.held[identity]]

    def _release(self, held: _Held) -> None:
        """Nobody has it any more."""
        del self._held[held.stored.sequence]
        self._deadlines.discard(held.stored.sequence)
        for consumer, identity in held.holders.items():
            del consumer.held[identity]
            self._note_room(consumer)

    def _give_back(self, consumer: _Consumer, held: _Held) -> None:
        """One holder less; with the last one the message is ready again."""
        del consumer.held[held.holders.pop(consumer)]
        self._note_room(consumer)
        if not held.holders:
            del self._held[held.stored.sequence]
            self._deadlines.discard(held.stored.sequence)
            self._make_ready(held.stored)

    def _tell(self, op: str, stored: Stored, session: Session | None, now: float) -> None:
        """Let the log know what became of a message."""
        if not self._node.capture.active:
            return
        self._node.capture.add(
            Message(
                op=op,
                address=self.settings.name,
                id=stored.message.id,
                source=stored.message.source,
                target=session.client_id if session is not None else "",
                dialect=session.dialect if session is not None else "",
                headers={"$attempt": str(stored.attempts)},
            ),
            now,
        )

    # Handing out

    def dispatch(self, now: float) -> None:
        """Hand out what is ready to whoever has room."""
        self._hand_out(now)
        self._schedule()

    def _schedule(self) -> None:
        """Let `tick` be called when there is something to do."""
        due = self._wakes_at
        for deadlines in (self._deadlines, self._pull_ends):
            if len(deadlines) and (earliest := deadlines.next()) is not None:
                due = min(due, earliest)
        if self._later:
            due = min(due, self._later[0][0])
        if self._recent:
            due = min(due, next(iter(self._recent.values())))
        if self._ready:
            if self._free and self.settings.mode != "pull":
                due = 0.0  # whoever has no room in its outbox now may have it soon
            due = min(due, self._ends.get(self._ready[0][1], due))
        if due < self._wakes_at:
            self._wake_at(due)

    def _wake_soon(self) -> None:
        """Let `tick` be called by the next tick of the broker's clock."""
        self._wake_at(0.0)

    def _wake_at(self, due: float) -> None:
        # Not before the next tick: what is done in this one may leave more to do.
        self._wakes_at = max(due, self._node.now + SOON)
        self._node.queues.wake.set(self, self._wakes_at)

    def _hand_out(self, now: float) -> None:
        while self._later and self._later[0][0] <= now:
            self._make_ready(heapq.heappop(self._later)[2])
        while self._ready:
            stored = self._ready[0][2]
            if self._ends.get(stored.sequence, now + 1) <= now:
                heapq.heappop(self._ready)
                self._expire(stored, now)
                continue
            if stored.attempts >= self.settings.max_deliveries:
                heapq.heappop(self._ready)
                self._bury(stored, "too many deliveries", now)
                continue
            takers = self._takers()
            if not takers:
                return
            heapq.heappop(self._ready)
            self._deliver(stored, takers, now)

    def _takers(self) -> list[_Consumer]:
        """Who gets the next message."""
        if self._pulls:
            # A pull whose client does not read waits; those behind it need not.
            for pull in self._pulls:
                if self._has_outbox(pull.consumer):
                    self._pulls.move_to_end(pull, last=False)
                    return [pull.consumer]
            return []
        if self.settings.mode == "pull":
            return []
        if self.settings.mode == "push":
            some = (one for one in self._consumers.values() if one in self._free)
            return [one for one in some if self._has_outbox(one)]
        for _ in range(len(self._free)):
            consumer = next(iter(self._free))
            self._free.move_to_end(consumer)
            if self._has_outbox(consumer):
                return [consumer]
        return []

    def _has_outbox(self, consumer: _Consumer) -> bool:
        """Has a consumer's outbox room for more?"""
        return consumer.session.outgoing <= self._node.flow.limit

    def _note_room(self, consumer: _Consumer) -> None:
        """A consumer holds more or less than before, or may."""
        if len(consumer.held) >= consumer.prefetch:
            self._free.pop(consumer, None)
        elif consumer not in self._free:
            self._free[consumer] = None

    def _deliver(self, stored: Stored, takers: list[_Consumer], now: float) -> None:
        message = stored.message
        stored = Stored(
            stored.queue,
            stored.sequence,
            message,
            stored.attempts + 1,
            stored.expires,
            stored.due,
        )
        headers = {**message.headers, "$attempt": str(stored.attempts)}
        done = False
        held = _Held(stored, {})
        pull = next(iter(self._pulls), None)
        for position, taker in enumerate(takers):
            first = Flag.FIRST if stored.attempts == 1 and position == 0 else NO_FLAGS
            # Producers may give the same id twice; a consumer must be able to tell them apart.
            identity = f"q{stored.sequence}" if message.id in taker.held else message.id
            flags = first | message.flags if message.flags else first
            delivery = replace(message, op="deliver", id=identity, flags=flags, headers=headers)
            if not taker.session.send(delivery):
                self._node.count_dropped("undeliverable")
                continue
            self._node.counters["delivered"] += 1
            taker.session.delivered += 1
            self._tell("deliver", stored, taker.session, now)
            if pull is not None:
                pull.left -= 1
                pull.taken += 1
            if taker.session.acknowledges:
                taker.held[identity] = stored.sequence
                held.holders[taker] = identity
                self._note_room(taker)
            else:
                done = True
        if held.holders:
            self._held[stored.sequence] = held
        if done:
            if held.holders:
                self._release(held)
            self._done(stored)
        elif held.holders:
            self._node.engine.count_attempt(stored)
            self._deadlines.set(stored.sequence, now + self.settings.ack_timeout)
        else:
            self._bury(stored, "undeliverable", now)
        if pull is not None and pull.left == 0 and pull in self._pulls:
            self._end_pull(pull)

    def _end_pull(self, pull: _Pull) -> None:
        """Tell a session that its pull has all it wanted, or has waited long enough."""
        self._remove_pull(pull)
        pull.consumer.session.end_of_pull(pull.request, pull.taken)

    def _remove_pull(self, pull: _Pull) -> None:
        del self._pulls[pull], pull.consumer.pulls[pull]
        self._pull_ends.discard(pull)
        self._node.queues.pulls.remove(pull.consumer.session)

    # The end of a message

    def _done(self, stored: Stored) -> None:
        self.bytes -= size_of(stored.message)
        self._ends.pop(stored.sequence, None)
        self._node.engine.drop(self.settings.name, stored.sequence)

    def _bury(self, stored: Stored, reason: str, now: float) -> None:
        """Move a message to the dead letters, or drop it where it is one already."""
        self._node.count_dropped(reason.replace(" ", "_"))
        headers = {**stored.message.headers, REASON: reason}
        self._node.capture.add(replace(stored.message, op="dead", headers=headers), now)
        if not self.settings.name.endswith(DEAD):
            dead = self._node.queues.open(self.settings.name + DEAD)
            dead.put(replace(stored.message, headers=headers), now, dead=True)
        self._done(stored)  # last: rather twice than never

    def _expire(self, stored: Stored, now: float) -> None:
        if self.settings.keep_expired:
            self._bury(stored, "expired", now)
        else:
            self._done(stored)
            self._node.count_dropped("expired")

    def tick(self, now: float) -> None:
        """Take back what was not acknowledged in time, and end the pulls that have waited."""
        self._wakes_at = float("inf")
        try:
            for sequence in self._deadlines.due(now):
                self._node.counters["redelivered"] += 1
                held = self._held[sequence]
                for consumer in list(held.holders):
                    self._give_back(consumer, held)
            self._hand_out(now)
            for pull in self._pull_ends.due(now):
                self._end_pull(pull)
            self._forget_ids(now)
        finally:
            self._schedule()

    # For operators

    def peek(self, count: int) -> list[Stored]:
        """The messages that come next, without taking them."""
        return [stored for _, _, stored in heapq.nsmallest(count, self._ready)]

    def purge(self) -> int:
        """Throw away all that nobody holds; how many those were."""
        thrown = [stored for _, _, stored in self._ready + self._later]
        self._ready.clear()
        self._later.clear()
        for stored in thrown:
            self._done(stored)
        self._node.count_dropped("purged", len(thrown))
        return len(thrown)

    def move_to(
        self, other: Queue, count: int, now: float, only: frozenset[int] = frozenset()
    ) -> int:
        """Give the next messages to another queue, as new there; how many those were.

        With `only`, just those of these sequences that are ready.
        """
        if only:
            chosen = [entry for entry in self._ready if entry[2].sequence in only]
            self._ready = [entry for entry in self._ready if entry[2].sequence not in only]
            heapq.heapify(self._ready)
            moved = [stored for _, _, stored in sorted(chosen, key=lambda one: one[:2])]
        else:
            moved = [heapq.heappop(self._ready)[2] for _ in range(min(count, len(self._ready)))]
        for stored in moved:
            headers = {k: v for k, v in stored.message.headers.items() if k != REASON}
            other.put(replace(stored.message, headers=headers), now, dead=True)
            self._done(stored)
        return len(moved)


def _identity(message: Message, producer: Session | None) -> str:
    """Return what tells a producer's message from all others, empty where nothing does.

    A producer is a token entry and a client id, so that nobody makes another's message a duplicate;
    a client without an id is known by its connection.
    """
    if not message.id or producer is None:
        return ""
    name = producer.client_id or str(producer.number)
    return f"{producer.owner}\0{name}\0{message.id}"


class _Pulls:
    """How many pulls wait, of each session and in all."""

    def __init__(self) -> None:
        self.total = 0
        self._by_session: Counter[Session] = Counter()

    def of(self, session: Session) -> int:
        """How many pulls of a session wait."""
        return self._by_session[session]

    def add(self, session: Session) -> None:
        """One more waits."""
        self._by_session[session] += 1
        self.total += 1

    def remove(self, session: Session) -> None:
        """One has ended."""
        self._by_session[session] -= 1
        self.total -= 1
        if not self._by_session[session]:
            del self._by_session[session]


class Queues:
    """All queues, by address."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.pulls = _Pulls()
        self.wake: Deadlines[Queue] = Deadlines()  # when the clock has something to do in each
        node.queues = self  # queues that are made here refer to it
        self._queues = {s.name: Queue(node, s) for s in node.engine.queues()}
        self._ticked = 0.0

    def __contains__(self, name: str) -> bool:
        """Is this the address of a queue, or of the dead letters of one?"""
        return name in self._queues or (
            name.endswith(DEAD) and name.removesuffix(DEAD) in self._queues
        )

    def get(self, name: str) -> Queue:
        """Return a queue that is there; raises RefusedError (`not_found`) otherwise."""
        if name not in self._queues:
            raise RefusedError("not_found", f"no queue {name}")
        return self._queues[name]

    def open(self, name: str) -> Queue:
        """Return the queue of an address that is one, or the dead letters of one.

        The dead letters of a queue belong to it from the start, but take room only when somebody
        asks for them. Raises RefusedError (`not_found`) where the address is neither.
        """
        if name in self and name not in self._queues:
            return self._make(QueueSettings(name))
        return self.get(name)

    def __len__(self) -> int:
        return len(self._queues)

    def all(self) -> Iterable[Queue]:
        """Every queue."""
        return self._queues.values()

    def declare(
        self, settings: QueueSettings, rights: Rights | None = None, *, implied: bool = False
    ) -> Queue:
        """Make an address a queue, unless it is one, and return it.

        `rights` are those of whoever wants it, None for the broker itself. A declaration is
        `implied` where somebody just put into, or took from, an address. Raises RefusedError:
        `unauthorized` without the right `declare`, `conflict` where subscribers of a topic would
        get nothing more.
        """
        name = settings.name
        if name in self:
            return self.open(name)
        check_topic(name)
        self.check_right(name, rights)
        self._node.quotas.check_levels(name)
        self._node.quotas.check_all("queues", len(self._queues))
        if len(name.encode()) > MAX_NAME:
            text = f"a queue's name has at most {MAX_NAME} bytes, to leave room for {DEAD}"
            raise RefusedError("bad_request", text)
        self._check_subscribers(name, rights, implied=implied)
        queue = self._make(settings)
        if self._node.topic_subscribers(name + DEAD):
            self.open(name + DEAD)  # from now on they consume it
        return queue

    def check_right(self, name: str, rights: Rights | None) -> None:
        """Raise RefusedError where rights do not let their holder make this address a queue."""
        if rights is not None and not rights.admin and not rights.allows("declare", name):
            text = f"to make {name} a queue takes the right `declare`"
            raise RefusedError("unauthorized", text)

    def _check_subscribers(self, name: str, rights: Rights | None, *, implied: bool) -> None:
        """Refuse to divert a topic from those who listen to it (spec: a topic or a queue)."""
        subscribers = self._node.topic_subscribers(name)
        if any(name in session.filters for session in subscribers):
            raise RefusedError("conflict", f"{name} is a topic that has subscribers")
        if subscribers and implied and rights is not None and not rights.may_declare:
            text = f"{name} is a topic that a wildcard is subscribed to: declare the queue first"
            raise RefusedError("conflict", text)

    def _make(self, settings: QueueSettings) -> Queue:
        name = settings.name
        self._node.engine.declare(settings)
        self._queues[name] = queue = Queue(self._node, settings)
        self._node.forget_routes(name)
        self._node.turn_into_consumers(name, queue)
        return queue

    def remove(self, name: str) -> None:
        """Remove a queue with all that is in it."""
        self.wake.discard(self.get(name))
        del self._queues[name]
        self._node.engine.remove(name)
        self._node.forget_routes(name)

    def left(self, session: Session, now: float) -> None:
        """A session has ended: what it holds goes to others."""
        for name in session.consumes:
            if name in self._queues:
                self._queues[name].cancel(session, now)

    def tick(self, now: float) -> None:
        """Let time pass in the queues that have something to do."""
        stood_still = now - self._ticked > STANDSTILL
        self._ticked = now
        if stood_still:
            return  # what came meanwhile is heard first: an ack in time counts
        for queue in self.wake.due(now, QUEUES_AT_ONCE):
            queue.tick(now)
