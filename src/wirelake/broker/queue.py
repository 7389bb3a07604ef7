"""One queue: a message is kept until somebody has acknowledged it.

A delivered message is invisible to other consumers until it is acked, nacked, or not acknowledged
in time. In the last two cases it is delivered again, and after `max_deliveries` it moves to the
queue `<address>/$dead` with the reason (spec: queues). A consumer holds at most `prefetch` messages
at a time. Where a dialect has no acknowledgements, writing a message to the socket acknowledges it.

Modes (spec: tmq 6): `round-robin`, one consumer at a time; `push`, every consumer gets it, done
when one has acknowledged; `pull`, only on request.

A producer that does not know whether its message arrived sends it again under the same id: within
`dedup_window` seconds a queue takes an id of one producer once (decision 41).

Times are the broker's own; what is kept by the engine is in seconds since 1970.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from wirelake.address import check_number
from wirelake.broker.capture import Capture
from wirelake.broker.deadlines import Deadlines
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.flow import Flow
from wirelake.broker.quotas import Quotas
from wirelake.broker.vitals import Vitals
from wirelake.dialects import HOPS
from wirelake.engine.base import Engine, QueueSettings, Stored
from wirelake.errors import RefusedError
from wirelake.message import NO_FLAGS, Flag, Message, Op

PREFETCH = 100
DEAD = "/$dead"
REASON = "dead.reason"
DELAY = "delay"
#: The longest delay, in milliseconds.
MOST_DELAY = 10**12 - 1
#: Less than the time between two ticks of the clock (seconds).
SOON = 0.001

#: What a message, and each of its headers, takes in memory beside their text and payload (bytes).
#: Measured: a message with one short header takes 750 bytes more than its payload.
MESSAGE_OVERHEAD = 640
HEADER_OVERHEAD = 128
#: A queue remembers this many message ids at most; the oldest are forgotten before their time.
MOST_IDS = 1_000_000
#: Ids that are forgotten at once, since their time is up.
FORGOTTEN_AT_ONCE = 1_000


def size_of(message: Message) -> int:
    """Return the bytes that a message counts for in `max_bytes`: with headers, ids, overhead."""
    size = MESSAGE_OVERHEAD + len(message.payload) + len(message.id)
    size += len(message.correlation_id) + len(message.source) + len(message.target)
    for name, value in message.headers.items():
        size += HEADER_OVERHEAD + len(name) + len(value)
    return size


@dataclass(eq=False, slots=True)
class _Consumer:
    """A session that takes messages of one queue."""

    session: Endpoint
    prefetch: int
    held: dict[str, int] = field(default_factory=dict)  # sequences, by the id it knows them under
    pulls: dict[_Pull, None] = field(default_factory=dict)  # of this consumer, that wait


@dataclass(eq=False, slots=True)
class _Held:
    """A message that was delivered and not acknowledged, and its holders with their ids for it."""

    stored: Stored
    holders: dict[_Consumer, str]


@dataclass(eq=False, slots=True)
class _Pull:
    """A request for messages that waits for more of them."""

    consumer: _Consumer
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


@dataclass(eq=False, slots=True)
class Shared:
    """What all queues of a broker share."""

    engine: Engine
    vitals: Vitals
    quotas: Quotas
    capture: Capture
    flow: Flow
    open: Callable[[str], Queue]  # the queue of an address, as for dead letters
    pulls: Pulls = field(default_factory=Pulls)
    wake: Deadlines[Queue] = field(default_factory=Deadlines)  # when each has something to do


class _RecentIds:
    """The ids of messages that a queue took within its `dedup_window`."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        return len(self._until)

    def has(self, identity: str, now: float) -> bool:
        """Return whether an id was taken within the window."""
        return self._until.get(identity, now) > now

    def add(self, identity: str, until: float) -> bool:
        """Remember an id; return whether the oldest had to be forgotten for it."""
        self._until.pop(identity, None)  # an old one may be there still, and comes last now
        self._until[identity] = until
        if len(self._until) > MOST_IDS:
            self._until.popitem(last=False)
            return True
        return False

    def forget(self, now: float) -> None:
        """Forget expired ids, at most `FORGOTTEN_AT_ONCE` of them."""
        for _ in range(FORGOTTEN_AT_ONCE):
            if self.next() > now:
                return
            self._until.popitem(last=False)

    def next(self) -> float:
        """Return when the oldest id expires, infinity where there is none."""
        return next(iter(self._until.values()), float("inf"))


class Queue:
    """One queue: the messages that are ready, delayed or held, and the consumers."""

    def __init__(self, shared: Shared, settings: QueueSettings) -> None:
        self._settings = settings
        self._shared = shared
        self._engine = engine = shared.engine
        self._vitals = shared.vitals
        self._capture = shared.capture
        epoch = shared.vitals.epoch
        self._ready: list[tuple[int, int, Stored]] = []  # the urgent first, then by sequence
        self._later: list[tuple[float, int, Stored]] = []  # by when they are due
        self._held: dict[int, _Held] = {}
        self._deadlines: Deadlines[int] = Deadlines()  # of acknowledgements, by sequence
        self._consumers: dict[Endpoint, _Consumer] = {}
        # Consumers that hold less than they may, in turn. Ordered dictionaries, here and below,
        # since the first of a plain one is found ever more slowly as others before it go.
        self._free: OrderedDict[_Consumer, None] = OrderedDict()
        self._pulls: OrderedDict[_Pull, None] = OrderedDict()
        self._pull_ends: Deadlines[_Pull] = Deadlines()
        self._wakes_at = float("inf")  # when `tick` is to be called, at the latest
        # When messages end that do not live for ever: a clock that is set must not end them.
        self._ends: dict[int, float] = {}
        self._recent = _RecentIds()
        self._next = 1
        self.bytes = 0
        for stored in engine.stored(settings.name):
            self._next = max(self._next, stored.sequence + 1)
            self.bytes += size_of(stored.message)
            heapq.heappush(self._later, (stored.due - epoch, stored.sequence, stored))
            if stored.expires:
                self._ends[stored.sequence] = stored.expires - epoch
        self._next = max(self._next, engine.next_sequence(settings.name))
        for identity, until in engine.remembered_ids(settings.name):
            self._recent.add(identity, until - epoch)
        self._schedule()

    @property
    def settings(self) -> QueueSettings:
        """The settings in force."""
        return self._settings

    @settings.setter
    def settings(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._wake_soon()  # the new mode may let messages go

    def __len__(self) -> int:
        return len(self._ready) + len(self._later) + len(self._held)

    def state(self, now: float) -> dict[str, object]:
        """Return what operators want to know of the queue."""
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
            "age": max(0.0, now + self._vitals.epoch - oldest / 1e6) if oldest else 0.0,
        }

    # Producers

    def take(self, session: Endpoint, message: Message, now: float) -> None:
        """Keep a message that a session sent.

        Raises RefusedError: `busy` where the queue is full or nothing can be kept now.
        """
        self._capture.check_disk()
        lives = message.ttl / 1000 if message.ttl and session.dialect not in HOPS else 0.0
        self.put(message, now, producer=session, lives=lives)

    def put(
        self,
        message: Message,
        now: float,
        *,
        producer: Endpoint | None = None,
        lives: float = 0.0,
        dead: bool = False,
    ) -> None:
        """Add a message, which expires after `lives` seconds unless that is 0.

        Dead letters are taken even where the queue is full. A duplicate is dropped. Raises
        RefusedError: `busy` where the queue is full, `bad_request` where the delay is no number.
        """
        identity = _identity(message, producer) if self.settings.dedup_window else ""
        if not dead:
            self._recent.forget(now)
            if self._recent.has(identity, now):
                self._vitals.count_dropped("duplicate")
                return
            self._check_room(size_of(message))
        due = 0.0
        if not dead and (delay := message.headers.get(DELAY, "")):
            due = now + check_number(delay, DELAY, most=MOST_DELAY) / 1000
        sequence = self._next
        self._next += 1
        epoch, window = self._vitals.epoch, self.settings.dedup_window
        if identity:
            if self._recent.add(identity, now + window):
                self._vitals.counters["ids_forgotten"] += 1
            if producer is not None and producer.client_id:
                self._engine.remember_id(self.settings.name, identity, now + window + epoch)
        stored = Stored(
            self.settings.name,
            sequence,
            replace(
                message,
                address=self.settings.name,  # a dead letter had another one
                id=message.id or f"q{sequence}",
                source=message.source if producer is None else producer.client_id,
                flags=message.flags & Flag.TEXT,  # mfp's type survives (spec: mfp 6)
                timestamp=self._vitals.timestamp(now),
            ),
            0,
            now + lives + epoch if lives else 0.0,
            due + epoch if due else 0.0,
        )
        self._engine.put(stored)
        if lives:
            self._ends[sequence] = now + lives
        self.bytes += size_of(stored.message)
        if self._capture.active:
            self._capture.add(replace(stored.message, op=Op.ENQUEUE), now)
        if due:
            heapq.heappush(self._later, (due, sequence, stored))
        else:
            self._make_ready(stored)
        self.dispatch(now)

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

    def consume(self, session: Endpoint, prefetch: int, now: float) -> None:
        """Deliver messages to a session as they come, `prefetch` at a time."""
        consumer = self._consumers.get(session)
        if consumer is None:
            consumer = self._consumers[session] = _Consumer(session, 0)
        consumer.prefetch = prefetch or PREFETCH
        self._note_room(consumer)
        self.dispatch(now)

    def cancel(self, session: Endpoint, now: float) -> None:
        """Deliver no more to a session; the messages that it holds go to others."""
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

    def pull(
        self, session: Endpoint, request: Message, count: int, wait: float, now: float
    ) -> None:
        """Deliver up to `count` messages within `wait` seconds, then tell the session the end."""
        pulls = self._shared.pulls
        if wait:
            self._shared.quotas.check("pulls", pulls.of(session), pulls.total)
        consumer = self._consumers.get(session)
        if consumer is None:
            consumer = self._consumers[session] = _Consumer(session, 0)
        pull = _Pull(consumer, request, count)
        self._pulls[pull] = consumer.pulls[pull] = None
        if wait:
            self._pull_ends.set(pull, now + wait)
        pulls.add(session)
        self.dispatch(now)
        if not wait and pull in self._pulls:
            self._end_pull(pull)

    def ack(self, session: Endpoint, identity: str, now: float) -> None:
        """Remove a message that a session holds; raises RefusedError where it does not."""
        held = self._held_by(session, identity)
        self._release(held)
        self._done(held.stored)
        self._tell(Op.ACK, held.stored, session, now)
        self.dispatch(now)

    def nack(self, session: Endpoint, identity: str, now: float, *, requeue: bool = True) -> None:
        """Give back a message that a session holds, to other consumers or to the dead letters."""
        held = self._held_by(session, identity)
        self._tell(Op.NACK, held.stored, session, now)
        if requeue:
            self._give_back(self._consumers[session], held)
        else:
            self._release(held)
            self._bury(held.stored, "rejected", now)
        self.dispatch(now)

    def holds(self, session: Endpoint, identity: str) -> bool:
        """Return whether a session holds a message under this id."""
        consumer = self._consumers.get(session)
        return consumer is not None and identity in consumer.held

    def change(self, settings: QueueSettings) -> None:
        """Change the settings, durably."""
        self.settings = settings
        self._engine.declare(settings)

    def _held_by(self, session: Endpoint, identity: str) -> _Held:
        consumer = self._consumers.get(session)
        if consumer is None or identity not in consumer.held:
            raise RefusedError("not_found", f"no message {identity} is held by this connection")
        return self._held[consumer.held[identity]]

    def _release(self, held: _Held) -> None:
        """Take a message from all its holders."""
        del self._held[held.stored.sequence]
        self._deadlines.discard(held.stored.sequence)
        for consumer, identity in held.holders.items():
            del consumer.held[identity]
            self._note_room(consumer)

    def _give_back(self, consumer: _Consumer, held: _Held) -> None:
        """Take a message from one holder; without any other it is ready again."""
        del consumer.held[held.holders.pop(consumer)]
        self._note_room(consumer)
        if not held.holders:
            del self._held[held.stored.sequence]
            self._deadlines.discard(held.stored.sequence)
            self._make_ready(held.stored)

    def _tell(self, op: Op, stored: Stored, session: Endpoint | None, now: float) -> None:
        """Capture what became of a message."""
        if not self._capture.active:
            return
        self._capture.add(
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
        """Deliver ready messages to consumers that have room."""
        self._hand_out(now)
        self._schedule()

    def _schedule(self) -> None:
        """Have `tick` called when there is something to do."""
        due = self._wakes_at
        for deadlines in (self._deadlines, self._pull_ends):
            if len(deadlines) and (earliest := deadlines.next()) is not None:
                due = min(due, earliest)
        if self._later:
            due = min(due, self._later[0][0])
        due = min(due, self._recent.next())
        if self._ready:
            if self._free and self.settings.mode != "pull":
                due = 0.0  # whoever has no room in its outbox now may have it soon
            due = min(due, self._ends.get(self._ready[0][1], due))
        if due < self._wakes_at:
            self._wake_at(due)

    def _wake_soon(self) -> None:
        """Have `tick` called by the next tick of the broker's clock."""
        self._wake_at(0.0)

    def _wake_at(self, due: float) -> None:
        # Not before the next tick: what is done in this one may leave more to do.
        self._wakes_at = max(due, self._vitals.now + SOON)
        self._shared.wake.set(self, self._wakes_at)

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
        """Return the consumers that get the next message."""
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
        """Return whether a consumer's outbox has room."""
        return consumer.session.outgoing <= self._shared.flow.limit

    def _note_room(self, consumer: _Consumer) -> None:
        """Note whether a consumer may hold more messages, after that may have changed."""
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
            delivery = replace(message, op=Op.DELIVER, id=identity, flags=flags, headers=headers)
            if not taker.session.send(delivery):
                self._vitals.count_dropped("undeliverable")
                continue
            self._vitals.counters["delivered"] += 1
            taker.session.delivered += 1
            self._tell(Op.DELIVER, stored, taker.session, now)
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
            self._engine.count_attempt(stored)
            self._deadlines.set(stored.sequence, now + self.settings.ack_timeout)
        else:
            self._bury(stored, "undeliverable", now)
        if pull is not None and pull.left == 0 and pull in self._pulls:
            self._end_pull(pull)

    def _end_pull(self, pull: _Pull) -> None:
        """Remove a pull that is complete or has timed out, and tell its session."""
        self._remove_pull(pull)
        pull.consumer.session.end_of_pull(pull.request, pull.taken)

    def _remove_pull(self, pull: _Pull) -> None:
        del self._pulls[pull], pull.consumer.pulls[pull]
        self._pull_ends.discard(pull)
        self._shared.pulls.remove(pull.consumer.session)

    # The end of a message

    def _done(self, stored: Stored) -> None:
        self.bytes -= size_of(stored.message)
        self._ends.pop(stored.sequence, None)
        self._engine.drop(self.settings.name, stored.sequence)

    def _bury(self, stored: Stored, reason: str, now: float) -> None:
        """Move a message to the dead letters, or drop it where it is one already."""
        self._vitals.count_dropped(reason.replace(" ", "_"))
        headers = {**stored.message.headers, REASON: reason}
        self._capture.add(replace(stored.message, op=Op.DEAD, headers=headers), now)
        if not self.settings.name.endswith(DEAD):
            dead = self._shared.open(self.settings.name + DEAD)
            dead.put(replace(stored.message, headers=headers), now, dead=True)
        self._done(stored)  # last: rather twice than never

    def _expire(self, stored: Stored, now: float) -> None:
        if self.settings.keep_expired:
            self._bury(stored, "expired", now)
        else:
            self._done(stored)
            self._vitals.count_dropped("expired")

    def tick(self, now: float) -> None:
        """Take back messages that were not acknowledged in time, and end pulls that timed out."""
        self._wakes_at = float("inf")
        try:
            for sequence in self._deadlines.due(now):
                self._vitals.counters["redelivered"] += 1
                held = self._held[sequence]
                for consumer in list(held.holders):
                    self._give_back(consumer, held)
            self._hand_out(now)
            for pull in self._pull_ends.due(now):
                self._end_pull(pull)
            self._recent.forget(now)
        finally:
            self._schedule()

    # For operators

    def peek(self, count: int) -> list[Stored]:
        """Return the next messages, without taking them."""
        return [stored for _, _, stored in heapq.nsmallest(count, self._ready)]

    def purge(self) -> int:
        """Delete all messages that nobody holds; return how many."""
        thrown = [stored for _, _, stored in self._ready + self._later]
        self._ready.clear()
        self._later.clear()
        for stored in thrown:
            self._done(stored)
        self._vitals.count_dropped("purged", len(thrown))
        return len(thrown)

    def move_to(
        self, other: Queue, count: int, now: float, only: frozenset[int] = frozenset()
    ) -> int:
        """Move the next messages to another queue; return how many.

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


def _identity(message: Message, producer: Endpoint | None) -> str:
    """Return a name for a producer's message that no other has, empty where it has no id.

    A producer is a token entry and a client id, so that nobody makes another's message a duplicate;
    a client without an id is known by its connection.
    """
    if not message.id or producer is None:
        return ""
    name = producer.client_id or str(producer.number)
    return f"{producer.owner}\0{name}\0{message.id}"
