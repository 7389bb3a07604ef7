"""Queues: a message is kept until somebody has acknowledged it.

A delivered message is invisible to others until it is acked, nacked, or its time is up; then it is
delivered again, with the attempt counted, and after too many attempts it moves to the queue
`<address>/$dead` with the reason (spec: queues). A consumer has at most `prefetch` messages at a
time. Where a dialect has no acknowledgement, handing a message to the socket acknowledges it.

Modes (spec: tmq 6): `round-robin`, one consumer at a time; `push`, every consumer gets it, done
when one has acknowledged; `pull`, only on request.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from wirelake.engine.base import QueueSettings, Stored
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.session import Session

PREFETCH = 100
DEAD = "/$dead"
REASON = "dead.reason"


@dataclass(eq=False, slots=True)
class _Consumer:
    """A session that takes messages of one queue."""

    session: Session
    prefetch: int
    held: dict[str, Stored] = field(default_factory=dict)  # by the id it knows them under


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
        self._consumers: list[_Consumer] = []
        self._pulls: list[_Pull] = []
        self._deadlines: list[tuple[float, int]] = []
        self._holders: dict[int, list[_Consumer]] = {}
        self._next = 1
        for stored in node.engine.stored(settings.name):
            self._next = stored.sequence + 1
            self._make_ready(stored)

    def __len__(self) -> int:
        return len(self._ready) + len(self._holders)

    @property
    def consumers(self) -> int:
        """How many sessions consume it."""
        return len(self._consumers)

    # Producers

    def put(self, message: Message, now: float, *, expires: float = 0.0) -> None:
        """Keep a message, and hand it out when somebody is there."""
        sequence = self._next
        self._next += 1
        kept = replace(message, id=message.id or f"q{sequence}", flags=Flag(0))
        stored = Stored(self.settings.name, sequence, kept, 0, expires)
        self._node.engine.put(stored)
        self._make_ready(stored)
        self.dispatch(now)

    def _make_ready(self, stored: Stored) -> None:
        heapq.heappush(self._ready, (-stored.message.priority, stored.sequence, stored))

    # Consumers

    def consume(self, session: Session, prefetch: int, now: float) -> None:
        """Let a session have messages as they come."""
        if self._consumer(session) is None:
            self._consumers.append(_Consumer(session, prefetch or PREFETCH))
        self.dispatch(now)

    def cancel(self, session: Session, now: float) -> None:
        """A session wants no more; what it holds goes to others."""
        for consumer in self._consumers + [pull.consumer for pull in self._pulls]:
            if consumer.session is session:
                for identity in list(consumer.held):
                    self._give_back(consumer, identity)
        self._consumers = [one for one in self._consumers if one.session is not session]
        self._pulls = [one for one in self._pulls if one.consumer.session is not session]
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
        stored = self._held(session, identity)
        for consumer in self._holders.pop(stored.sequence, []):
            consumer.held = {k: v for k, v in consumer.held.items() if v is not stored}
        self._node.engine.drop(self.settings.name, stored.sequence)
        self.dispatch(now)

    def nack(self, session: Session, identity: str, now: float, *, requeue: bool = True) -> None:
        """A message is not done: it goes to another, or to the dead letters."""
        stored = self._held(session, identity)
        if requeue:
            consumer = self._consumer(session)
            assert consumer is not None
            self._give_back(consumer, identity)
        else:
            for consumer in self._holders.pop(stored.sequence, []):
                consumer.held = {k: v for k, v in consumer.held.items() if v is not stored}
            self._bury(stored, "rejected", now)
        self.dispatch(now)

    def _consumer(self, session: Session) -> _Consumer | None:
        return next((one for one in self._consumers if one.session is session), None)

    def _held(self, session: Session, identity: str) -> Stored:
        consumer = self._consumer(session)
        if consumer is None or identity not in consumer.held:
            raise RefusedError("not_found", f"no message {identity} is held by this connection")
        return consumer.held[identity]

    def _give_back(self, consumer: _Consumer, identity: str) -> None:
        """One holder less; with the last one the message is ready again."""
        stored = consumer.held.pop(identity)
        holders = self._holders.get(stored.sequence, [])
        if consumer in holders:
            holders.remove(consumer)
        if not holders:
            self._holders.pop(stored.sequence, None)
            self._make_ready(stored)

    # Handing out

    def dispatch(self, now: float) -> None:
        """Hand out what is ready to whoever has room."""
        while self._ready:
            stored = self._ready[0][2]
            if stored.expires and stored.expires <= now:
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
            self._deliver(replace(stored, attempts=stored.attempts + 1), takers, now)

    def _takers(self) -> list[_Consumer]:
        """Who gets the next message."""
        if self._pulls:
            return [self._pulls[0].consumer]
        if self.settings.mode == "pull":
            return []
        free = [
            one
            for one in self._consumers
            if len(one.held) < one.prefetch and one.session.link.buffered <= self._node.flow.outbox
        ]
        if self.settings.mode == "push" or not free:
            return free
        self._consumers.remove(free[0])
        self._consumers.append(free[0])
        return free[:1]

    def _deliver(self, stored: Stored, takers: list[_Consumer], now: float) -> None:
        self._node.engine.put(stored)
        message = replace(
            stored.message,
            op="deliver",
            address=self.settings.name,
            headers={**stored.message.headers, "$attempt": str(stored.attempts)},
        )
        done = False
        holders = []
        for position, taker in enumerate(takers):
            first = Flag.FIRST if stored.attempts == 1 and position == 0 else Flag(0)
            # Producers may give the same id twice; a consumer must be able to tell them apart.
            identity = f"q{stored.sequence}" if message.id in taker.held else message.id
            if not taker.session.send(replace(message, id=identity, flags=first)):
                self._node.count_dropped("undeliverable")
                continue
            self._node.counters["delivered"] += 1
            if self._pulls and self._pulls[0].consumer is taker:
                self._pulls[0].left -= 1
                self._pulls[0].taken += 1
            if taker.session.acknowledges:
                taker.held[identity] = stored
                holders.append(taker)
            else:
                done = True
        if done:
            for holder in holders:
                holder.held = {k: v for k, v in holder.held.items() if v is not stored}
            self._node.engine.drop(self.settings.name, stored.sequence)
        elif holders:
            self._holders[stored.sequence] = holders
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

    def _bury(self, stored: Stored, reason: str, now: float) -> None:
        """Move a message to the dead letters, or drop it where it is one already."""
        self._node.engine.drop(self.settings.name, stored.sequence)
        self._node.count_dropped(reason.replace(" ", "_"))
        if not self.settings.name.endswith(DEAD):
            dead = self._node.queues.declare(QueueSettings(self.settings.name + DEAD))
            headers = {**stored.message.headers, REASON: reason}
            dead.put(replace(stored.message, headers=headers), now)

    def _expire(self, stored: Stored, now: float) -> None:
        if self.settings.keep_expired:
            self._bury(stored, "expired", now)
        else:
            self._node.engine.drop(self.settings.name, stored.sequence)
            self._node.count_dropped("expired")

    def tick(self, now: float) -> None:
        """Take back what was not acknowledged in time, and end the pulls that have waited."""
        while self._deadlines and self._deadlines[0][0] <= now:
            _, sequence = heapq.heappop(self._deadlines)
            for consumer in list(self._holders.get(sequence, [])):
                for identity, stored in list(consumer.held.items()):
                    if stored.sequence == sequence:
                        self._node.counters["redelivered"] += 1
                        self._give_back(consumer, identity)
        self.dispatch(now)
        self._end_pulls(now)


class Queues:
    """All queues, by address."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._queues = {s.name: Queue(node, s) for s in node.engine.queues()}

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
            self._node.forget_routes()
        return self._queues[settings.name]

    def remove(self, name: str) -> None:
        """Remove a queue with all that is in it."""
        self.get(name)
        del self._queues[name]
        self._node.engine.remove(name)
        self._node.forget_routes()

    def left(self, session: Session, now: float) -> None:
        """A session has ended: what it holds goes to others."""
        for queue in self.all():
            queue.cancel(session, now)

    def tick(self, now: float) -> None:
        """Let time pass in every queue."""
        for queue in self.all():
            queue.tick(now)
