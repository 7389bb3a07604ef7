"""One queue: a message is kept until somebody has acknowledged it.

A queue is a list of references into the journal (`journal.state`). Messages that came together are
put, delivered and acknowledged together: a message becomes an object only where it has a priority,
a delay, a ttl, or was delivered before, and where somebody looks at it. What messages hold is in
`bodies`, as long as it is needed soon.

A delivered message is invisible to other consumers until it is acked, nacked, or not acknowledged
in time. In the last two cases it is delivered again, and after `max_deliveries` it moves to the
queue `<address>/$dead` with the reason (spec: queues). A consumer holds at most `prefetch` messages
at a time. Where a dialect has no acknowledgements, writing a message to the socket acknowledges it.

Modes (spec: tmq 6): `round-robin`, one consumer at a time; `push`, every consumer gets it, done
when one has acknowledged; `pull`, only on request.

In a cluster, messages are delivered while the lease of the node on the queue's partition runs. When
it has run out they wait until an append has proved that no other node owns it (decision 91).

A producer that does not know whether its message arrived sends it again under the same id: within
`dedup_window` seconds a queue takes an id of one producer once (decision 41).

Times are the broker's own; what is kept by the engine is in seconds since 1970.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat

from msgspec.structs import replace

from wirelake.address import check_number
from wirelake.broker.bodies import Bodies, Chunk, Contents, rows_of
from wirelake.broker.capture import Capture
from wirelake.broker.consumers import Consumer, Lease, Leases, Pull, Pulls
from wirelake.broker.deadlines import Deadlines
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.flow import Flow
from wirelake.broker.proof import Proof, Waiting
from wirelake.broker.quotas import Quotas
from wirelake.broker.ready import Ready, runs
from wirelake.broker.recent_ids import RecentIds
from wirelake.broker.route import message_sizes, plain_messages
from wirelake.broker.vitals import Vitals
from wirelake.dialects import HOPS
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine, QueueSettings, Reference, Stored
from wirelake.message import NO_FLAGS, NO_PARAMETERS, Flag, Message, Op, Parameters
from wirelake.wire import FrameTable
from wirelake.wire.parameters import headers_of, packed

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
#: The flags of a delivery, by whether it is the first, and whether the sender marked text: to
#: combine flags takes longer.
_DELIVERY_FLAGS = ((NO_FLAGS, Flag.TEXT), (Flag.FIRST, Flag.FIRST | Flag.TEXT))
#: Messages that are handed out before what is due is looked at again.
HANDED_OUT = 1_000


def size_of(message: Message) -> int:
    """Return the bytes that a message counts for in `max_bytes`: with headers, ids, overhead."""
    size = MESSAGE_OVERHEAD + len(message.payload) + len(message.id)
    size += len(message.correlation_id) + len(message.source) + len(message.target)
    for name, value in headers_of(message).items():
        size += HEADER_OVERHEAD + len(name) + len(value)
    return size


@dataclass(eq=False, slots=True)
class Shared:
    """What all queues of a broker share."""

    engine: Engine
    vitals: Vitals
    quotas: Quotas
    capture: Capture
    flow: Flow
    bodies: Bodies
    open: Callable[[str], Queue]  # the queue of an address, as for dead letters
    pulls: Pulls = field(default_factory=Pulls)
    wake: Deadlines[Queue] = field(default_factory=Deadlines)  # when each has something to do


class Queue:
    """One queue: the messages that are ready, delayed or held, and the consumers."""

    def __init__(self, shared: Shared, settings: QueueSettings) -> None:
        self._settings = settings
        self._shared = shared
        self._engine = engine = shared.engine
        self._vitals = shared.vitals
        self._capture = shared.capture
        self._messages = engine.references(settings.name)
        self._contents = Contents(shared.bodies, settings.name)
        self._ready = Ready()
        self._leases = Leases()
        self._consumers: dict[Endpoint, Consumer] = {}
        # Consumers that hold less than they may, in turn. Ordered dictionaries, here and below,
        # since the first of a plain one is found ever more slowly as others before it go.
        self._free: OrderedDict[Consumer, None] = OrderedDict()
        self._pulls: OrderedDict[Pull, None] = OrderedDict()
        self._pull_ends: Deadlines[Pull] = Deadlines()
        self._wakes_at = float("inf")  # when `tick` is to be called, at the latest
        # When messages end that do not live for ever: a clock that is set must not end them.
        self._ends: dict[int, float] = {}
        self._recent = RecentIds()
        self._proof = Proof(engine, settings.name, self._proved) if engine.is_shared else None
        self._next = engine.next_sequence(settings.name)
        self.bytes = self._messages.bytes
        self._load()
        self._schedule()

    def _load(self) -> None:
        """Take up what was there when the broker started."""
        epoch = self._vitals.epoch
        for found in self._messages.plain_runs():
            if not isinstance(found, Reference):
                self._ready.add_run(*found)
                continue
            if found.expires:
                self._ends[found.sequence] = found.expires / 1e6 - epoch
            due = found.due / 1e6 - epoch if found.due else 0.0
            self._ready.add_later(due, found.sequence)
        for identity, until in self._engine.remembered_ids(self.settings.name):
            self._recent.add(identity, until - epoch)

    @property
    def settings(self) -> QueueSettings:
        """The settings in force."""
        return self._settings

    @settings.setter
    def settings(self, settings: QueueSettings) -> None:
        self._settings = settings
        self._wake_soon()  # the new mode may let messages go

    def __len__(self) -> int:
        return len(self._ready) + self._ready.delayed + len(self._leases)

    def state(self, now: float) -> dict[str, object]:
        """Return what operators want to know of the queue."""
        oldest = self._oldest()
        return {
            "name": self.settings.name,
            "mode": self.settings.mode,
            "messages": len(self),
            "ready": len(self._ready),
            "held": len(self._leases),
            "delayed": self._ready.delayed,
            "bytes": self.bytes,
            "consumers": len(self._consumers),
            "age": max(0.0, now + self._vitals.epoch - oldest / 1e6) if oldest else 0.0,
        }

    def _oldest(self) -> int:
        """Return when the next message came (µs since 1970), 0 where there is none."""
        sequence = self._ready.first
        if sequence is None:
            return 0
        chunk = self._contents.find(sequence) or self._contents.load(sequence)
        return chunk.time(sequence) if chunk is not None else 0

    # Producers

    def take(self, session: Endpoint, message: Message, now: float) -> None:
        """Keep a message that a session sent.

        Raises RefusedError: `busy` where the queue is full or nothing can be kept now.
        """
        self._capture.check_disk(self.settings.name)
        lives = message.ttl / 1000 if message.ttl and session.dialect not in HOPS else 0.0
        self.put(message, now, producer=session, lives=lives)

    def take_rows(
        self, session: Endpoint, table: FrameTable, rows: Sequence[int], now: float
    ) -> Iterator[tuple[int, RefusedError]]:
        """Keep rows that a session sent, all to this queue; yield those that are refused, and why.

        Raises RefusedError (`busy`) where nothing can be kept now.
        """
        self._capture.check_disk(self.settings.name)
        hops = table.dialect in HOPS
        table.read_headers()
        chosen = rows if isinstance(rows, array) else array("i", rows)
        if plain_messages(table, chosen, hops):
            yield from self._put_rows(session, table, chosen, now)
            self.dispatch(now)
            return
        run = array("i")
        for row in chosen:
            if plain_messages(table, array("i", [row]), hops):
                run.append(row)
                continue
            if run:
                yield from self._put_rows(session, table, run, now)
                run = array("i")
            try:
                self.take(session, table.message(row), now)
            except RefusedError as refusal:
                yield row, refusal
        if run:
            yield from self._put_rows(session, table, run, now)
        self.dispatch(now)

    def _put_rows(
        self, session: Endpoint, table: FrameTable, rows: array[int], now: float
    ) -> Iterator[tuple[int, RefusedError]]:
        """Add rows without priority, delay and ttl; yield those that are refused, and why."""
        window = self.settings.dedup_window
        ids = table.ids(rows) if window else []
        overhead = MESSAGE_OVERHEAD + len(session.client_id)
        sizes = message_sizes(table, rows, overhead, HEADER_OVERHEAD, self._next)
        more = sum(sizes)
        if not any(ids) and self._has_room(len(rows), more):
            self._add_rows(session, table, rows, sizes, more, now)
            return
        owner = f"{session.owner}\0{session.client_id or session.number}\0"
        chosen, taken, more = array("i"), array("q"), 0
        for row, size, identity in zip(rows, sizes, ids or repeat(""), strict=False):
            if identity:
                identity = owner + identity
                if self._recent.has(identity, now):
                    self._vitals.count_dropped("duplicate")
                    continue
            try:
                self._check_room(size, len(chosen), more)
            except RefusedError as refusal:
                yield row, refusal
                continue
            if identity:
                self._remember(identity, now, keep=bool(session.client_id))
            more += size
            chosen.append(row)
            taken.append(size)
        if chosen:
            self._add_rows(session, table, chosen, taken, more, now)

    def _add_rows(
        self,
        session: Endpoint,
        table: FrameTable,
        rows: array[int],
        sizes: array[int],
        size: int,
        now: float,
    ) -> None:
        sequence, count = self._next, len(rows)
        self._next += count
        timestamp = self._vitals.timestamp(now)
        kept = FrameTable(count)
        kept.derive(
            table,
            rows,
            Op.ENQUEUE,
            address=self.settings.name.encode(),
            dialect=table.dialect,
            sender=session.client_id.encode(),
            kept_flags=Flag.TEXT,  # mfp's type survives (spec: mfp 6)
            first_id=sequence,
        )
        self._capture.put_rows(self.settings.name, kept, sequence, timestamp, sizes)
        self._contents.add_rows(sequence, kept, timestamp)
        self.bytes += size
        self._ready.add_run(sequence, sequence + count)

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
        size = size_of(message)
        if not dead:
            if identity and self._recent.has(identity, now):
                self._vitals.count_dropped("duplicate")
                return
            self._check_room(size)
        due = 0.0
        if not dead and (delay := message.headers.get(DELAY, "")):
            due = now + check_number(delay, DELAY, most=MOST_DELAY) / 1000
        sequence = self._next
        self._next += 1
        epoch = self._vitals.epoch
        if identity:
            self._remember(identity, now, keep=bool(producer is not None and producer.client_id))
        kept = replace(
            message,
            op=Op.ENQUEUE,
            address=self.settings.name,  # a dead letter had another one
            id=message.id or f"q{sequence}",
            source=message.source if producer is None else producer.client_id,
            flags=message.flags & Flag.TEXT,  # mfp's type survives (spec: mfp 6)
            timestamp=self._vitals.timestamp(now),
        )
        stored = Stored(
            self.settings.name,
            sequence,
            kept,
            0,
            now + lives + epoch if lives else 0.0,
            due + epoch if due else 0.0,
            size + len(kept.id) - len(message.id) + len(kept.source) - len(message.source),
        )
        self._capture.put(stored)
        self._contents.add(sequence, kept)
        if lives:
            self._ends[sequence] = now + lives
        self.bytes += stored.size
        if due:
            self._ready.add_later(due, sequence)
            self._wake_by(due)
        elif kept.priority:
            self._ready.add(sequence, kept.priority)
        else:
            self._ready.add_run(sequence, sequence + 1)
        self.dispatch(now)

    def _remember(self, identity: str, now: float, *, keep: bool) -> None:
        """Take the id of a producer's message once."""
        until = now + self.settings.dedup_window
        self._recent.forget(now)
        if self._recent.add(identity, until):
            self._vitals.counters["ids_forgotten"] += 1
        self._wake_by(until)
        if keep:
            self._engine.remember_id(self.settings.name, identity, until + self._vitals.epoch)

    def _has_room(self, messages: int, size: int) -> bool:
        """Return whether messages of this size together fit."""
        most, most_bytes = self.settings.max_messages, self.settings.max_bytes
        if most and len(self) + messages > most:
            return False
        return not most_bytes or self.bytes + size <= most_bytes

    def _check_room(self, size: int, messages: int = 0, more: int = 0) -> None:
        """Raise RefusedError if the queue has no room beside this many messages and bytes."""
        name, most = self.settings.name, self.settings.max_messages
        if most and len(self) + messages >= most:
            raise RefusedError("busy", f"the queue {name} is full: it has {most} messages")
        most = self.settings.max_bytes
        if most and self.bytes + more + size > most:
            raise RefusedError("busy", f"the queue {name} is full: it may have {most} bytes")

    # Consumers

    def consume(self, session: Endpoint, prefetch: int, now: float) -> None:
        """Deliver messages to a session as they come, `prefetch` at a time."""
        consumer = self._consumers.get(session)
        if consumer is None:
            consumer = self._consumers[session] = Consumer(session, 0)
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
        if consumer.held:
            for sequence in list(consumer.held.values()):
                self._give_back(consumer, sequence)
            self.dispatch(now)

    def pull(
        self, session: Endpoint, request: Message, count: int, wait: float, now: float
    ) -> None:
        """Deliver up to `count` messages within `wait` seconds, then tell the session the end."""
        pulls = self._shared.pulls
        if wait:
            self._shared.quotas.check("pulls", pulls.of(session), pulls.total)
        elif self.holds_back(
            session, lambda: self.pull(session, request, count, wait, self._vitals.now)
        ):
            return
        consumer = self._consumers.get(session)
        if consumer is None:
            consumer = self._consumers[session] = Consumer(session, 0)
        pull = Pull(consumer, request, count)
        self._pulls[pull] = consumer.pulls[pull] = None
        pulls.add(session)
        self.dispatch(now)
        if pull not in self._pulls:
            return
        if wait:
            self._pull_ends.set(pull, now + wait)
            self._wake_by(now + wait)
        else:
            self._end_pull(pull)

    def ack(self, session: Endpoint, identity: str, now: float) -> None:
        """Remove a message that a session holds; raises RefusedError where it does not."""
        sequence = self._held_by(session, identity)
        self._tell(Op.ACK, self._leases[sequence], [sequence], session, now)
        self._release(sequence)
        self._done([sequence])
        self.dispatch(now)

    def ack_rows(
        self, session: Endpoint, ids: Sequence[str], now: float
    ) -> list[RefusedError | None]:
        """Remove messages that a session holds; return what is refused, in the order of the ids."""
        consumer = self._consumers.get(session)
        held = consumer.held if consumer is not None else {}
        refused: list[RefusedError | None] = []
        done: list[int] = []
        by_lease: dict[Lease, list[int]] = {}
        for identity in ids:
            sequence = held.pop(identity, None)
            if sequence is None:
                refused.append(_not_held(identity))
                continue
            refused.append(None)
            by_lease.setdefault(self._leases[sequence], []).append(sequence)
            done.append(sequence)
        for lease, sequences in by_lease.items():
            self._tell(Op.ACK, lease, sequences, session, now)
            for holder in self._leases.end_some(lease, sequences):
                self._note_room(holder)
        self._done(done)
        self.dispatch(now)
        return refused

    def nack(self, session: Endpoint, identity: str, now: float, *, requeue: bool = True) -> None:
        """Give back a message that a session holds, to other consumers or to the dead letters."""
        sequence = self._held_by(session, identity)
        self._tell(Op.NACK, self._leases[sequence], [sequence], session, now)
        if requeue:
            self._give_back(self._consumers[session], sequence)
        else:
            self._release(sequence)
            self._bury(sequence, "rejected", now)
        self.dispatch(now)

    def holds(self, session: Endpoint, identity: str) -> bool:
        """Return whether a session holds a message under this id."""
        consumer = self._consumers.get(session)
        return consumer is not None and identity in consumer.held

    def change(self, settings: QueueSettings) -> None:
        """Change the settings, durably."""
        self.settings = settings
        self._engine.declare(settings)

    def _held_by(self, session: Endpoint, identity: str) -> int:
        consumer = self._consumers.get(session)
        if consumer is None or identity not in consumer.held:
            raise _not_held(identity)
        return consumer.held[identity]

    def _release(self, sequence: int) -> None:
        """Take a message from all its holders."""
        for consumer in self._leases.end(sequence):
            self._note_room(consumer)

    def _give_back(self, consumer: Consumer, sequence: int) -> None:
        """Take a message from one holder; without any other it is ready again."""
        is_last = self._leases.let_go(consumer, sequence)
        self._note_room(consumer)
        if is_last:
            self._make_ready(sequence)

    def _make_ready(self, sequence: int) -> None:
        """A message that was delayed or delivered before may be delivered."""
        found = self._messages.get(sequence)
        self._ready.add(sequence, found.priority if found is not None else 0)

    def _tell(
        self, op: Op, lease: Lease, sequences: list[int], session: Endpoint, now: float
    ) -> None:
        """Capture what became of messages."""
        if not self._capture.takes(self.settings.name):
            return
        told = lease.told
        attempts = self._messages.attempts(sequences[0])
        if isinstance(told, Message):
            self._capture.add(
                replace(
                    told,
                    op=op,
                    target=session.client_id,
                    dialect=session.dialect,
                    parameters=_delivery(attempts),
                ),
                now,
            )
            return
        rows = FrameTable(len(sequences))
        rows.derive(
            told,
            array("i", [lease.sequences[sequence] for sequence in sequences]),
            op,
            address=self.settings.name.encode(),
            dialect=session.dialect,
            target=session.client_id.encode(),
            headers=_attempt(attempts),
            whole=False,
        )
        self._capture.table(rows, now)

    # Whose queue it is

    def holds_back(self, session: Endpoint, action: Callable[[], object]) -> bool:
        """Return whether a session has to wait for messages that are ready; then do this.

        The session is disconnected where another node owns the queue. Raises RefusedError where too
        many wait.
        """
        if self._proof is None or self._ready.first is None or self._proof.holds():
            return False
        pulls = self._shared.pulls
        self._shared.quotas.check("pulls", pulls.of(session), pulls.total)
        pulls.add(session)
        self._proof.wait(session, action)
        return True

    def _proved(self, waiting: list[Waiting]) -> None:
        """Deliver what had to wait."""
        for session, action in waiting:
            self._shared.pulls.remove(session)
            if not session.closed:
                action()
        self.dispatch(self._vitals.now)

    # Handing out

    def dispatch(self, now: float) -> None:
        """Deliver ready messages to consumers that have room."""
        self._hand_out(now)
        if self._ready.first is not None:  # deadlines are scheduled when they are set
            self._schedule()

    def _schedule(self) -> None:
        """Have `tick` called when there is something to do."""
        due = self._wakes_at
        for deadlines in (self._leases.deadlines, self._pull_ends):
            if len(deadlines) and (earliest := deadlines.next()) is not None:
                due = min(due, earliest)
        due = min(due, self._ready.next_due, self._recent.next())
        first = self._ready.first
        if first is not None:
            if self._free and self.settings.mode != "pull":
                due = 0.0  # whoever has no room in its outbox now may have it soon
            due = min(due, self._ends.get(first, due))
        if due < self._wakes_at:
            self._wake_at(due)

    def _wake_by(self, due: float) -> None:
        """Have `tick` called at this time, or before."""
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
        while True:
            while (due := self._ready.pop_due(now)) is not None:
                self._make_ready(due)
            if self._ready.first is None:
                if len(self._contents) and not len(self):
                    self._contents.clear()
                return
            if self._drop_first(now):
                continue
            if self._pulls:
                handed_out = self._hand_to_pull(now)
            elif not self._free or self.settings.mode == "pull":
                return
            elif self.settings.mode == "push":
                handed_out = self._push(now)
            else:
                handed_out = self._hand_round(now)
            if not handed_out:
                return

    def _next_ready(self, most: int, room: int, now: float) -> list[int]:
        """Take up to `most` messages that may be delivered, and about `room` bytes of them."""
        taken: list[int] = []
        ready, messages = self._ready, self._messages
        while len(taken) < most and (room > 0 or not taken):
            if self._drop_first(now):
                continue
            if ready.first is None:
                break
            if most == 1 or self._ends or ready.has_single:
                taken.append(ready.pop())
                if most > 1:
                    room -= messages.size(taken[-1])
            else:
                run, room = ready.pop_run(most - len(taken), room, messages.sizes)
                taken.extend(run)
        return taken

    def _drop_first(self, now: float) -> bool:
        """Take the next message away if it has expired or was delivered too often."""
        sequence = self._ready.first
        if sequence is None:
            return False
        if self._ends and self._ends.get(sequence, now + 1) <= now:
            self._ready.pop()
            self._expire(sequence, now)
            return True
        most = self.settings.max_deliveries
        if self._ready.has_single and self._messages.attempts(sequence) >= most:
            self._ready.pop()
            self._bury(sequence, "too many deliveries", now)
            return True
        return False

    def _hand_to_pull(self, now: float) -> bool:
        """Deliver to the first pull whose client reads; those behind one that does not go on."""
        for pull in self._pulls:
            room = self._outbox(pull.consumer)
            if room < 0:
                continue
            if self._proof is not None and not self._proof.holds():
                return False
            self._pulls.move_to_end(pull, last=False)
            taken = self._next_ready(min(pull.left, HANDED_OUT), room, now)
            if not taken:
                return False
            delivered = self._deliver(taken, pull.consumer, now)
            pull.left -= delivered
            pull.taken += delivered
            if pull.left == 0 and pull in self._pulls:
                self._end_pull(pull)
            return True
        return False

    def _push(self, now: float) -> bool:
        """Deliver the next message to everybody who has room."""
        free = [one for one in self._consumers.values() if one in self._free]
        takers = [one for one in free if self._outbox(one) >= 0]
        if not takers or (self._proof is not None and not self._proof.holds()):
            return False
        self._deliver_one(self._ready.pop(), takers, now)
        return True

    def _hand_round(self, now: float) -> bool:
        """Deliver to the consumers that have room, in turn."""
        rooms = {one: self._outbox(one) for one in self._free}
        turns = deque(one for one, room in rooms.items() if room >= 0)
        if not turns or (self._proof is not None and not self._proof.holds()):
            return False
        most = sum(one.room for one in turns)
        room = sum(max(1, rooms[one]) for one in turns)
        taken = self._next_ready(min(most, HANDED_OUT), room, now)
        if not taken:
            return False
        if len(turns) == 1:
            consumer = turns[0]
            self._free.move_to_end(consumer)
            self._deliver(taken, consumer, now)
            return True
        shares: dict[Consumer, list[int]] = {one: [] for one in turns}
        for sequence in taken:
            consumer = turns.popleft()
            share = shares[consumer]
            share.append(sequence)
            self._free.move_to_end(consumer)
            if len(share) < consumer.room:
                turns.append(consumer)
        for consumer, share in shares.items():
            if share:
                self._deliver(share, consumer, now)
        return True

    def _outbox(self, consumer: Consumer) -> int:
        """Return the room in a consumer's outbox, less than 0 where there is none."""
        return self._shared.flow.limit - consumer.session.outgoing

    def _note_room(self, consumer: Consumer) -> None:
        """Note whether a consumer may hold more messages, after that may have changed."""
        if len(consumer.held) >= consumer.prefetch:
            self._free.pop(consumer, None)
        elif consumer not in self._free:
            self._free[consumer] = None

    def _deliver(self, sequences: list[int], consumer: Consumer, now: float) -> int:
        """Deliver messages to one consumer; return how many it got."""
        if len(sequences) == 1:
            return int(self._deliver_one(sequences[0], [consumer], now))
        delivered = 0
        for chunk, run in self._contents.runs(sequences):
            table = chunk.table if chunk is not None else None
            if chunk is None:
                self._lost(run)
            elif table is not None and len(run) > 1 and self._send_rows(chunk, run, consumer, now):
                delivered += len(run)
            else:
                delivered += sum(self._deliver_one(one, [consumer], now) for one in run)
        return delivered

    def _send_rows(self, chunk: Chunk, run: list[int], consumer: Consumer, now: float) -> bool:
        """Deliver rows of a table that were never delivered before; False if that cannot be.

        Producers may give the same id twice; a consumer must be able to tell them apart.
        """
        session, table = consumer.session, chunk.table
        assert table is not None
        if any(self._messages.was_delivered(begin, end) for begin, end in runs(run)):
            return False
        rows = rows_of(chunk, run)
        ids = dict(zip(run, table.ids(rows), strict=True))
        if len(set(ids.values())) < len(run) or not consumer.held.keys().isdisjoint(ids.values()):
            return False
        sent = FrameTable(len(run))
        sent.derive(
            table,
            rows,
            Op.DELIVER,
            address=self.settings.name.encode(),
            dialect=table.dialect,
            kept_flags=Flag.TEXT,
            flags=Flag.FIRST,
            headers=_attempt(1),
        )
        if not session.send_rows(sent):
            return False
        self._vitals.counters["delivered"] += len(run)
        session.delivered += len(run)
        told = FrameTable(len(run))
        told.derive(
            table,
            rows,
            Op.DELIVER,
            address=self.settings.name.encode(),
            dialect=session.dialect,
            target=session.client_id.encode(),
            headers=_attempt(1),
            whole=False,
        )
        if self._capture.takes(self.settings.name):
            self._capture.table(told, now)
        if not session.acknowledges:
            self._done(run)
            return True
        self._lend(Lease({one: k for k, one in enumerate(run)}, {consumer: ids}, told), now)
        consumer.held.update((identity, one) for one, identity in ids.items())
        self._note_room(consumer)
        for begin, end in runs(run):
            self._engine.count_attempts(self.settings.name, begin, end - begin, 1)
        return True

    def _deliver_one(self, sequence: int, takers: list[Consumer], now: float) -> bool:
        """Deliver one message to one consumer or several; return whether one has got it."""
        message = self._contents.get(sequence)
        if message is None:
            self._lost([sequence])
            return False
        attempts = self._messages.attempts(sequence) + 1
        said = message.parameters
        said = _delivery(attempts) if said is NO_PARAMETERS else said.but(attempt=attempts)
        name = self.settings.name
        told = Message(address=name, id=message.id, source=message.source)
        lease = Lease({sequence: 0}, {}, told)
        self._engine.count_attempts(name, sequence, 1, attempts)
        done = False
        for position, taker in enumerate(takers):
            is_first = attempts == 1 and position == 0
            identity = f"q{sequence}" if message.id in taker.held else message.id
            flags = _DELIVERY_FLAGS[is_first][bool(message.flags & Flag.TEXT)]
            delivery = replace(message, op=Op.DELIVER, id=identity, flags=flags, parameters=said)
            if not taker.session.send(delivery):
                self._vitals.count_dropped("undeliverable")
                continue
            self._vitals.counters["delivered"] += 1
            taker.session.delivered += 1
            self._tell(Op.DELIVER, lease, [sequence], taker.session, now)
            if taker.session.acknowledges:
                taker.held[identity] = sequence
                lease.holders[taker] = {sequence: identity}
                self._note_room(taker)
            else:
                done = True
        if lease.holders:
            self._lend(lease, now)
        if done:
            if lease.holders:
                self._release(sequence)
            self._done([sequence])
        elif not lease.holders:
            self._bury(sequence, "undeliverable", now)
            return False
        return True

    def _lend(self, lease: Lease, now: float) -> None:
        """Let consumers hold messages, until they must be acknowledged."""
        until = now + self.settings.ack_timeout
        self._leases.add(lease, until)
        self._wake_by(until)

    def _end_pull(self, pull: Pull) -> None:
        """Remove a pull that is complete or has timed out, and tell its session."""
        self._remove_pull(pull)
        pull.consumer.session.end_of_pull(pull.request, pull.taken)

    def _remove_pull(self, pull: Pull) -> None:
        del self._pulls[pull], pull.consumer.pulls[pull]
        self._pull_ends.discard(pull)
        self._shared.pulls.remove(pull.consumer.session)

    # The end of a message

    def _done(self, sequences: Sequence[int]) -> None:
        """Forget messages."""
        if len(sequences) == 1:
            self.bytes -= self._messages.size(sequences[0])
            self._ends.pop(sequences[0], None)
            self._engine.drop(self.settings.name, sequences[0])
            return
        for begin, end in runs(sequences):
            self.bytes -= sum(self._messages.sizes(begin, end))
            if self._ends:
                for sequence in range(begin, end):
                    self._ends.pop(sequence, None)
            self._engine.drop(self.settings.name, begin, end - begin)

    def _lost(self, sequences: list[int]) -> None:
        """Forget messages that are damaged on the disk, and report them.

        A node of a cluster fetches them again, and delivers them after that.
        """
        name = self.settings.name
        if self._engine.fetch_again(self._engine.home(name)):
            return
        self._engine.report_lost(f"messages {sequences[0]} to {sequences[-1]} of the queue {name}")
        self._done(sequences)

    def _bury(self, sequence: int, reason: str, now: float) -> None:
        """Move a message to the dead letters, or drop it where it is one already."""
        message = self._contents.get(sequence)
        if message is None:
            self._lost([sequence])
            return
        self._vitals.count_dropped(reason.replace(" ", "_"))
        headers = {**message.headers, REASON: reason}
        self._capture.add(replace(message, op=Op.DEAD, headers=headers), now)
        if not self.settings.name.endswith(DEAD):
            dead = self._shared.open(self.settings.name + DEAD)
            dead.put(replace(message, headers=headers), now, dead=True)
        self._done([sequence])  # last: rather twice than never

    def _expire(self, sequence: int, now: float) -> None:
        if self.settings.keep_expired:
            self._bury(sequence, "expired", now)
        else:
            self._done([sequence])
            self._vitals.count_dropped("expired")

    def tick(self, now: float) -> None:
        """Take back messages that were not acknowledged in time, and end pulls that timed out."""
        self._wakes_at = float("inf")
        try:
            for lease in self._leases.deadlines.due(now):
                self._vitals.counters["redelivered"] += len(lease.sequences)
                for sequence in list(lease.sequences):
                    self._release(sequence)
                    self._make_ready(sequence)
            self._hand_out(now)
            for pull in self._pull_ends.due(now):
                self._end_pull(pull)
            self._recent.forget(now)
        finally:
            self._schedule()

    # For operators

    def peek(self, count: int) -> list[Stored]:
        """Return the next messages, without taking them."""
        found: list[Stored] = []
        for sequence in self._ready:
            if len(found) == count:
                break
            message = self._contents.get(sequence)
            if message is not None:
                attempts = self._messages.attempts(sequence)
                found.append(Stored(self.settings.name, sequence, message, attempts))
        return found

    def close(self) -> None:
        """Let go of what is in memory; the queue was removed."""
        self._contents.clear()
        for session, _ in self._proof.end() if self._proof is not None else ():
            self._shared.pulls.remove(session)
            session.close(f"the queue {self.settings.name} is not here any more")

    def lose(self) -> None:
        """Let go of everything: the partition of the queue is not here any more.

        Those who take messages from it are disconnected, and find it again where it is then.
        """
        self.close()
        for pull in list(self._pulls):
            self._remove_pull(pull)
        consumers, self._consumers = self._consumers, {}
        for session in consumers:
            session.close(f"the queue {self.settings.name} has moved")

    def purge(self) -> int:
        """Delete all messages that nobody holds; return how many."""
        thrown = self._ready.clear()
        self._done(sorted(thrown))
        self._vitals.count_dropped("purged", len(thrown))
        return len(thrown)

    def move_to(
        self, other: Queue, count: int, now: float, only: frozenset[int] = frozenset()
    ) -> int:
        """Move the next messages to another queue; return how many.

        With `only`, move just those of these sequences that are ready.
        """
        if only:
            moved = self._ready.remove(only)
        else:
            moved = [self._ready.pop() for _ in range(min(count, len(self._ready)))]
        for sequence in moved:
            message = self._contents.get(sequence)
            if message is None:
                self._lost([sequence])
                continue
            headers = {k: v for k, v in message.headers.items() if k != REASON}
            other.put(replace(message, headers=headers), now, dead=True)
            self._done([sequence])
        return len(moved)


@lru_cache
def _delivery(attempts: int) -> Parameters:
    """Return the parameters of a message that is delivered this many times, this one included."""
    return Parameters(attempt=attempts)


@lru_cache
def _attempt(attempts: int) -> bytes:
    """Return the header that says how often a message was delivered, in a table's one form."""
    return packed(_delivery(attempts))


def _not_held(identity: str) -> RefusedError:
    return RefusedError("not_found", f"no message {identity} is held by this connection")


def _identity(message: Message, producer: Endpoint | None) -> str:
    """Return a name for a producer's message that no other has, empty where it has no id.

    A producer is a token entry and a client id, so that nobody makes another's message a duplicate;
    a client without an id is known by its connection.
    """
    if not message.id or producer is None:
        return ""
    name = producer.client_id or str(producer.number)
    return f"{producer.owner}\0{name}\0{message.id}"
