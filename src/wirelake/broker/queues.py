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
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.engine.base import QueueSettings, Stored
from wirelake.errors import RefusedError
from wirelake.message import NO_FLAGS, Flag, Message

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.session import Session

PREFETCH = 100
DEAD = "/$dead"
REASON = "dead.reason"
DELAY = "delay"
#: A broker whose clock ticks so late (seconds) was stopped, or its machine was.
STANDSTILL = 1.0


@dataclass(eq=False, slots=True)
class _Consumer:
    """A session that takes messages of one queue."""

    session: Session
    prefetch: int
    held: dict[str, int] = field(default_factory=dict)  # sequences, by the id it knows them under


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
    taken: int
    deadline: float


class Queue:
    """One queue: what is ready, who holds what, and who waits."""

    def __init__(self, node: Node, settings: QueueSettings) -> None:
        self.settings = settings
        self._node = node
        self._ready: list[tuple[int, int, Stored]] = []  # the urgent first, then by sequence
        self._later: list[tuple[float, int, Stored]] = []  # by when they are due
        self._held: dict[int, _Held] = {}
        self._deadlines: list[tuple[float, int]] = []
        self._consumers: deque[_Consumer] = deque()
        self._pulls: list[_Pull] = []
        # When messages end that do not live for ever: a clock that is set must not end them.
        self._ends: dict[int, float] = {}
        self._recent: dict[str, float] = {}  # ids that were taken, and until when, oldest first
        self._next = 1
        self.bytes = 0
        for stored in node.engine.stored(settings.name):
            self._next = max(self._next, stored.sequence + 1)
            self.bytes += len(stored.message.payload)
            heapq.heappush(self._later, (stored.due - node.epoch, stored.sequence, stored))
            if stored.expires:
                self._ends[stored.sequence] = stored.expires - node.epoch
        self._next = max(self._next, node.engine.next_sequence(settings.name))
        for identity, until in node.engine.remembered_ids(settings.name):
            self._recent[identity] = until - node.epoch

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
            self._check_room(len(message.payload))
        due = 0.0
        if not dead and (delay := message.headers.get(DELAY, "")):
            if not delay.isdecimal() or len(delay) > 12:
                raise RefusedError("bad_request", f"a delay is in milliseconds, not {delay}")
            due = now + int(delay) / 1000
        sequence = self._next
        self._next += 1
        epoch, window = self._node.epoch, self.settings.dedup_window
        if identity:
            self._recent[identity] = now + window
            if producer is not None and producer.client_id:
                self._node.engine.remember_id(self.settings.name, identity, now + window + epoch)
        stored = Stored(
            self.settings.name,
            sequence,
            replace(
                message,
                address=self.settings.name,  # a dead letter had another one
                id=message.id or f"q{sequence}",
                source=(producer.client_id if producer else "") or message.source,
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
        self.bytes += len(message.payload)
        if self._node.capture.active:
            self._node.capture.add(replace(stored.message, op="enqueue"), now)
        if due:
            heapq.heappush(self._later, (due, sequence, stored))
        else:
            self._make_ready(stored)
        self.dispatch(now)

    def _was_taken(self, identity: str, now: float) -> bool:
        """Has a message of this id been put within the window?"""
        while self._recent:
            oldest = next(iter(self._recent))
            if self._recent[oldest] > now:
                break
            del self._recent[oldest]
        return identity in self._recent

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
        consumer = self._consumer(session)
        if consumer is None:
            self._consumers.append(_Consumer(session, prefetch or PREFETCH))
        else:
            consumer.prefetch = prefetch or PREFETCH
        self.dispatch(now)

    def cancel(self, session: Session, now: float) -> None:
        """A session wants no more; what it holds goes to others."""
        consumer = self._consumer(session)
        if consumer is None:
            return
        self._pulls = [one for one in self._pulls if one.consumer is not consumer]
        self._consumers.remove(consumer)
        for sequence in list(consumer.held.values()):
            self._give_back(consumer, self._held[sequence])
        self.dispatch(now)

    def pull(self, session: Session, request: Message, count: int, wait: float, now: float) -> None:
        """Hand out up to `count` messages, waiting for them; the end is told."""
        consumer = self._consumer(session)
        if consumer is None:
            consumer = _Consumer(session, 0)
            self._consumers.append(consumer)
        self._pulls.append(_Pull(consumer, request, count, 0, now + wait))
        self.dispatch(now)
        self._end_pulls(now)

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
            consumer = self._consumer(session)
            assert consumer is not None
            self._give_back(consumer, held)
        else:
            self._release(held)
            self._bury(held.stored, "rejected", now)
        self.dispatch(now)

    def _consumer(self, session: Session) -> _Consumer | None:
        return next((one for one in self._consumers if one.session is session), None)

    def _held_by(self, session: Session, identity: str) -> _Held:
        consumer = self._consumer(session)
        if consumer is None or identity not in consumer.held:
            raise RefusedError("not_found", f"no message {identity} is held by this connection")
        return self._held[consumer.held[identity]]

    def _release(self, held: _Held) -> None:
        """Nobody has it any more."""
        del self._held[held.stored.sequence]
        for consumer, identity in held.holders.items():
            del consumer.held[identity]

    def _give_back(self, consumer: _Consumer, held: _Held) -> None:
        """One holder less; with the last one the message is ready again."""
        del consumer.held[held.holders.pop(consumer)]
        if not held.holders:
            del self._held[held.stored.sequence]
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
            for place, pull in enumerate(self._pulls):
                if self._has_outbox(pull.consumer):
                    self._pulls.insert(0, self._pulls.pop(place))
                    return [pull.consumer]
            return []
        if self.settings.mode == "pull":
            return []
        if self.settings.mode == "push":
            return [one for one in self._consumers if self._has_room(one)]
        for _ in range(len(self._consumers)):
            self._consumers.rotate(-1)
            if self._has_room(self._consumers[-1]):
                return [self._consumers[-1]]
        return []

    def _has_room(self, consumer: _Consumer) -> bool:
        return len(consumer.held) < consumer.prefetch and self._has_outbox(consumer)

    def _has_outbox(self, consumer: _Consumer) -> bool:
        return consumer.session.outgoing <= self._node.flow.limit

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
            self._tell("deliver", stored, taker.session, now)
            if self._pulls and self._pulls[0].consumer is taker:
                self._pulls[0].left -= 1
                self._pulls[0].taken += 1
            if taker.session.acknowledges:
                taker.held[identity] = stored.sequence
                held.holders[taker] = identity
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
            heapq.heappush(self._deadlines, (now + self.settings.ack_timeout, stored.sequence))
        else:
            self._bury(stored, "undeliverable", now)
        self._end_pulls(None)

    def _end_pulls(self, now: float | None) -> None:
        """Tell the pulls that have all they wanted, and those that have waited until `now`."""
        for pull in [
            one for one in self._pulls if one.left == 0 or (now is not None and one.deadline <= now)
        ]:
            self._pulls.remove(pull)
            pull.consumer.session.end_of_pull(pull.request, pull.taken)

    # The end of a message

    def _done(self, stored: Stored) -> None:
        self.bytes -= len(stored.message.payload)
        self._ends.pop(stored.sequence, None)
        self._node.engine.drop(self.settings.name, stored.sequence)

    def _bury(self, stored: Stored, reason: str, now: float) -> None:
        """Move a message to the dead letters, or drop it where it is one already."""
        self._node.count_dropped(reason.replace(" ", "_"))
        headers = {**stored.message.headers, REASON: reason}
        self._node.capture.add(replace(stored.message, op="dead", headers=headers), now)
        if not self.settings.name.endswith(DEAD):
            dead = self._node.queues.declare(QueueSettings(self.settings.name + DEAD))
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
        while self._deadlines and self._deadlines[0][0] <= now:
            _, sequence = heapq.heappop(self._deadlines)
            held = self._held.get(sequence)
            if held is not None:
                self._node.counters["redelivered"] += 1
                for consumer in list(held.holders):
                    self._give_back(consumer, held)
        if self._ready or self._later:
            self.dispatch(now)
        if self._pulls:
            self._end_pulls(now)

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

    def move_to(self, other: Queue, count: int, now: float) -> int:
        """Give the next messages to another queue, as new there; how many those were."""
        moved = [heapq.heappop(self._ready)[2] for _ in range(min(count, len(self._ready)))]
        for stored in moved:
            headers = {k: v for k, v in stored.message.headers.items() if k != REASON}
            other.put(replace(stored.message, headers=headers), now, dead=True)
            self._done(stored)
        return len(moved)


def _identity(message: Message, producer: Session | None) -> str:
    """What tells a message from all others; a client without an id is known by its connection."""
    if not message.id or producer is None:
        return ""
    return f"{producer.client_id or producer.number}\0{message.id}"


class Queues:
    """All queues, by address."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queues = {s.name: Queue(node, s) for s in node.engine.queues()}
        self._ticked = 0.0

    def __contains__(self, name: str) -> bool:
        return name in self._queues

    def get(self, name: str) -> Queue:
        """A queue that is there."""
        if name not in self._queues:
            raise RefusedError("not_found", f"no queue {name}")
        return self._queues[name]

    def all(self) -> list[Queue]:
        """Every queue."""
        return list(self._queues.values())

    def declare(self, settings: QueueSettings) -> Queue:
        """Make an address a queue, unless it is one."""
        if settings.name not in self._queues:
            self._node.check_queue(settings.name)
            self._node.engine.declare(settings)
            self._queues[settings.name] = Queue(self._node, settings)
            self._node.forget_routes(settings.name)
        return self._queues[settings.name]

    def remove(self, name: str) -> None:
        """Remove a queue with all that is in it."""
        self.get(name)
        del self._queues[name]
        self._node.engine.remove(name)
        self._node.forget_routes(name)

    def left(self, session: Session, now: float) -> None:
        """A session has ended: what it holds goes to others."""
        for name in session.consumes:
            if name in self._queues:
                self._queues[name].cancel(session, now)

    def tick(self, now: float) -> None:
        """Let time pass in every queue."""
        stood_still = now - self._ticked > STANDSTILL
        self._ticked = now
        if stood_still:
            return  # what came meanwhile is heard first: an ack in time counts
        for queue in self.all():
            queue.tick(now)
