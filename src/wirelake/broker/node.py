"""The broker itself: clients, topics, and what becomes of a batch of published messages.

Publishing is done to runs of rows. Every address has an *audience*, the set of sessions that get
its messages; it is worked out once and then found by the address's bytes (`route.Routes`). Most
runs have one audience: then the frames are brought into each form its members need once, and the
same bytes are handed to all of them. A run with several audiences is gathered per session, in the
order of arrival.

A subscriber that does not read is the node's business too (`flow`): its outbox is bounded, and
while it is full whoever publishes to it waits.
"""

from __future__ import annotations

import json
import logging
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TypeAlias

from msgspec import structs

from wirelake.address import check_address, check_filter, check_topic, has_wildcard
from wirelake.broker.boson_text import BosonTextSession
from wirelake.broker.capture import Capture
from wirelake.broker.clients import Clients
from wirelake.broker.flow import Flow, Policy
from wirelake.broker.guesses import Guesses
from wirelake.broker.mfp import MfpSession
from wirelake.broker.ops import KoboldSession, OpSession
from wirelake.broker.queues import Queue, Queues
from wirelake.broker.quotas import Quotas
from wirelake.broker.rights import Rights, all_rights
from wirelake.broker.route import (
    MIXED,
    Changed,
    end_of_likes,
    gather,
    is_contiguous,
    span,
    wanting_ack,
    wants_ack,
)
from wirelake.broker.services import Services
from wirelake.broker.session import Link, Session
from wirelake.broker.store import Store
from wirelake.broker.streams import Streams
from wirelake.broker.subscriptions import FilterIndex
from wirelake.broker.tmq import TmqSession
from wirelake.broker.trace import Trace
from wirelake.broker.traffic import Traffic
from wirelake.engine.base import Engine, QueueSettings
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Flag, Limits, Message
from wirelake.wire import Encoder, FrameTable, encoder
from wirelake.wire.mfp import MfpEncoder

log = logging.getLogger("wirelake.broker")

SESSIONS: dict[str, type[Session]] = {
    "boson-text": BosonTextSession,
    "boson-binary": OpSession,
    "mfp-1": MfpSession,
    "kobold-1": KoboldSession,
    "kobold-2": KoboldSession,
    "kobold-3": KoboldSession,
    "tmq-1.00": TmqSession,
    "tmq-1.01": TmqSession,
}

#: Routes are forgotten beyond so many addresses: anybody can make up new ones.
MAX_ROUTES = 200_000
#: Audiences that no route has are looked for when all of them have this many members, or twice as
#: many as were left the last time.
MANY_MEMBERS = 100_000

#: A session that ends has this many filters removed at once, and as many more with every tick.
REMOVED_AT_ONCE = 500
#: A list of queues on the wire has no more of them than this.
LISTED_QUEUES = 1_000

#: Where operators hear what happened (decision 43), and how many of these events are remembered.
EVENTS = "$events"
MAX_EVENTS = 100

#: What an answer that waits for the disk takes beside its bytes, roughly.
ANSWER = 512


_Key: TypeAlias = "tuple[tuple[Session, ...], Policy, str | None, Queue | None, bool]"


@dataclass(eq=False, slots=True)
class Audience:
    """The sessions that get what is published to an address, or why nobody does."""

    number: int
    members: tuple[Session, ...] = ()
    forms: dict[str, list[Session]] = field(default_factory=dict)
    policy: Policy = "disconnect"
    refusal: RefusedError | None = None
    queue: Queue | None = None
    captured: bool = False
    key: _Key | None = None  # what tells it from all other audiences


#: Stands in the place of an audience that was dropped.
_NOBODY = Audience(-1)


class Node:
    """One broker: `publish` and the other verbs are called by sessions, `tick` by a clock."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        flow: Flow | None = None,
        *,
        epoch: float = 0.0,
    ) -> None:
        self.limits = limits
        self.quotas = Quotas()
        self.limits_of_strangers = limits  # until they have authenticated
        self.counters: Counter[str] = Counter()
        self.traffic = Traffic()
        self.trace: Trace | None = None  # what an operator looks at, for a while
        #: What was done so far, in units of about 10 µs: so sessions know when to give way.
        self.work = 0
        # A table is cleared whole when it is filled by messages, or by another dialect than before:
        # so there is one for each dialect that is scanned, and small ones for what is small.
        self._tables: dict[str, FrameTable] = {}
        self._single = FrameTable(1)
        self._one = FrameTable(1)
        self._few = FrameTable(64)
        self._many = FrameTable()
        self.flow = flow or Flow()
        self.flow.node = self
        self.engine = engine
        self.sessions: dict[Session, None] = {}
        self.clients = Clients(self)
        self.rights_of_strangers: Rights = all_rights()
        self.tokens: Callable[[str], Rights | None] = lambda token: self.rights_of_strangers
        self.all_rights: list[Rights] = [self.rights_of_strangers]
        self.succeeding_rights: Callable[[Rights], Rights | None] = lambda rights: rights
        self.guesses = Guesses()
        self.unsettled: dict[KoboldSession, float] = {}
        self.now = 0.0  # the latest time that anybody told
        self.reading: Session | None = None  # the session whose read is being done
        self.epoch = epoch  # what is to be added to the broker's time for seconds since 1970
        self.events: deque[dict[str, object]] = deque(maxlen=MAX_EVENTS)
        self._latest = max((one.last_time for one in engine.positions()), default=0)
        for text in engine.damage:  # it was logged when it was found
            self._remember("damage", "the disk", text)
        self._damage_told = len(engine.damage)
        self._trouble_told = ""
        self._swept = 0.0
        self._topics: FilterIndex[Session] = FilterIndex()
        self._changed = Changed()
        self._leaving: deque[tuple[Session, list[str]]] = deque()
        self._audiences: list[Audience] = []
        self._numbers: dict[_Key, int] = {}
        self._free_numbers: list[int] = []
        self._members = 0  # of all audiences
        self._many_members = MANY_MEMBERS
        self._encoders: dict[str, Encoder] = {}
        self.capture = Capture(self)
        self.services = Services(self)
        self.queues: Queues = Queues(self)
        self.store = Store(self)
        self.streams = Streams(self)

    def table(self, dialect: str) -> FrameTable:
        """What the sessions of a dialect scan into, one read at a time."""
        if dialect not in self._tables:
            self._tables[dialect] = FrameTable()
        return self._tables[dialect]

    def room(self, count: int) -> FrameTable:
        """A table for so many messages, for a moment."""
        if count == 1:
            return self._one
        return self._few if count <= self._few.capacity else self._many

    # Clients

    def session(self, link: Link, dialect: str, now: float) -> Session:
        """The session of a connection that turned out to speak a dialect."""
        return SESSIONS[dialect](self, link, dialect, now)

    def authenticate(self, session: Session, token: str) -> None:
        """Give a session the rights of a token; an id that it claimed with another one is free."""
        self.guesses.check(session, token, self.now)
        rights = self.tokens(token)
        if rights is None:
            self.guesses.failed(session, self.now)
            raise RefusedError("unauthorized", "the token is not known")
        if session.has_claimed and self.clients.owner_of(rights) != session.owner:
            self.clients.leave(session, self.now)
            session.client_id = ""
        self.guesses.succeeded(session, token)
        session.token = token
        session.rights = rights
        if rights is not self.rights_of_strangers:
            session.authenticated()

    def state(self) -> dict[str, object]:
        """What the broker tells of itself."""
        return {
            "connections": len(self.sessions),
            "subscriptions": len(self._topics),
            "backlog": self.engine.backlog,
            "trouble": self.engine.trouble,
            "counters": dict(self.counters),
            "events": list(self.events),
        }

    def timestamp(self, now: float) -> int:
        """A time in µs since 1970; never earlier than one before it, whatever the clock does."""
        self._latest = max(self._latest, int((now + self.epoch) * 1_000_000))
        return self._latest

    def after(self, action: Callable[[], object]) -> None:
        """Run an action once all that was written and captured so far is durable."""
        self.engine.after(action)

    def answer(self, action: Callable[[], object], *, kept: bool, size: int = 0) -> None:
        """Run an action that answers a client when all before it is durable, and so in its turn.

        An answer for which nothing had to be kept does not wait for a disk that takes nothing. One
        that waits counts as written already, with its `size`, to the session that is being read.
        """
        asking = self.reading
        if self.engine.trouble and not kept:
            action()
        elif asking is None:
            self.after(action)
        else:
            size += ANSWER
            asking.promised += size
            self.flow.budget.add(size)

            def answer() -> None:
                asking.promised -= size
                self.flow.budget.add(-size)
                action()

            self.after(answer)

    def event(self, kind: str, who: str, text: str) -> None:
        """Something that operators should know of: in the log, the state, and at `$events`."""
        log.warning("%s: %s: %s", kind.replace("_", " "), who, text)
        event = self._remember(kind, who, text)
        told = Message(address=EVENTS, payload=json.dumps(event).encode())
        for session in self._topics.match(EVENTS):
            self.flow.push(session, told, None, self.now)

    def _remember(self, kind: str, who: str, text: str) -> dict[str, object]:
        self.counters[f"events.{kind}"] += 1
        event: dict[str, object] = {"time": self._latest, "event": kind, "who": who, "text": text}
        self.events.append(event)
        return event

    def slow_consumer(self, session: Session, buffered: int, reason: str = "") -> None:
        """Disconnect a client that others have waited for too long."""
        session.lost("slow consumer")
        session.link.abort()
        self.counters["slow_consumers"] += 1
        text = f"disconnected with {buffered} bytes unread"
        self.event("slow_consumer", repr(session), f"{text}: {reason}" if reason else text)

    def joined(self, session: Session) -> int:
        """A connection has begun; the number it gets."""
        self.sessions[session] = None
        self.counters["connections"] += 1
        return self.counters["connections"]

    def left(self, session: Session, reason: str) -> None:
        """A connection has ended: nothing is left of it but what must survive."""
        self.sessions.pop(session, None)
        self.clients.leave(session, self.now)
        self._leaving.append((session, list(session.filters)))
        session.filters.clear()
        self._remove_filters()
        self.services.left(session, self.now)
        self.store.left(session)
        self.streams.left(session, self.now)
        self.queues.left(session, self.now)
        self.flow.left(session, self.now)
        self.capture.left(session)
        self.counters["disconnects"] += 1
        self.traffic.retire(session)

    def _remove_filters(self) -> None:
        """Remove some filters of the sessions that have ended; their messages go nowhere already.

        Doing it for thousands of filters at once would keep everybody else waiting.
        """
        left = REMOVED_AT_ONCE
        while self._leaving and left:
            session, filters = self._leaving[0]
            if not filters:
                self._leaving.popleft()
                for audience in list(session.audiences):
                    self._drop_audience(audience)
                continue
            left -= 1
            filter = filters.pop()
            self._topics.remove(filter, session)
            self.forget_routes(filter)

    def protocol_error(self, session: Session, error: ProtocolError, data: memoryview) -> None:
        """A peer broke its grammar in `data`, which begins where its scanner is."""
        self.counters["protocol_errors"] += 1
        at = error.offset - session.scanner.offset
        has_shown_token = session.rights is not self.rights_of_strangers
        self.traffic.fault(session.link.peer, error, data, at, self, secret=not has_shown_token)
        log.warning("%s: %s", session.link.peer, error)

    def count_refused(self, code: str, count: int = 1) -> None:
        """Messages were not done, for a reason."""
        self.counters[f"refused.{code}"] += count

    def count_dropped(self, reason: str, count: int = 1) -> None:
        """Messages were not delivered to somebody, for a reason."""
        self.counters[f"dropped.{reason}"] += count

    # Topics

    def subscribe(self, session: Session, filter: str, now: float, prefetch: int = 0) -> None:
        """Let a session have what is published to a filter's addresses from now on."""
        check_filter(filter)
        if not session.rights.allows("subscribe", filter):
            raise RefusedError("unauthorized", f"no right to subscribe to {filter}")
        if filter == EVENTS and not session.rights.admin:
            raise RefusedError("unauthorized", f"{EVENTS} is for operators")
        if filter in self.queues:
            self._check_subscriptions(session, filter)
            session.consumes[filter] = None
            self.queues.open(filter).consume(session, prefetch, now)
            return
        if filter not in session.filters:
            self._check_subscriptions(session, filter)
            if has_wildcard(filter):
                self.quotas.check_one("wildcards", session.wildcards)
                session.wildcards += 1
            self._topics.add(filter, session)
            session.filters[filter] = None
            self.forget_routes(filter)

    def _check_subscriptions(self, session: Session, filter: str) -> None:
        """May a session have one more subscription, or consume one more queue?"""
        self.quotas.check_levels(filter)
        if filter not in session.consumes:
            mine = len(session.filters) + len(session.consumes)
            self.quotas.check("subscriptions", mine, len(self._topics))

    def unsubscribe(self, session: Session, filter: str, now: float) -> None:
        """Take a subscription back; an empty filter takes all of them."""
        for name in [filter] if filter else list(session.consumes):
            if name in session.consumes and name in self.queues:
                del session.consumes[name]
                self.queues.open(name).cancel(session, now)
                if filter:
                    return
        for one in [filter] if filter else list(session.filters):
            if session.filters.pop(one, 0) == 0:
                raise RefusedError("not_found", f"no subscription to {one}")
            session.wildcards -= has_wildcard(one)
            self._topics.remove(one, session)
            self.forget_routes(one)

    def check_publish(self, session: Session, address: str) -> None:
        """May a session publish to an address?"""
        audience = self._audience_of(address, session.rights)
        if audience.refusal is not None:
            raise audience.refusal

    def topic_subscribers(self, address: str) -> list[Session]:
        """Return those who get what is published to a topic, observers left out."""
        found = self._topics.match(address)
        return [session for session in found if not session.observes and not session.closed]

    def turn_into_consumers(self, name: str, queue: Queue) -> None:
        """Let those who subscribed to an address consume it, now that it is a queue."""
        for session in self.topic_subscribers(name):
            if name in session.filters:
                del session.filters[name]
                self._topics.remove(name, session)
                session.consumes[name] = None
                queue.consume(session, 0, self.now)

    def reaches(self, session: Session, address: str) -> bool:
        """Does anybody get what a session publishes to an address?"""
        audience = self._audience_of(address, session.rights)
        return bool(audience.members) or audience.queue is not None

    def forget_routes(self, filter: str = "") -> None:
        """Work audiences out again: somebody subscribed, or a queue came or went.

        Without a filter, all of them, as when settings change.
        """
        if not filter:
            for member in chain.from_iterable(one.members for one in self._audiences):
                member.audiences.clear()
            self._audiences.clear()
            self._numbers.clear()
            self._free_numbers.clear()
            self._members = 0
            for rights in self.all_rights:
                rights.routes.clear()
        elif has_wildcard(filter):
            self._changed.note(filter.encode())
        else:
            address = filter.encode()
            for rights in self.all_rights:
                if len(rights.routes):
                    rights.routes.forget(address)

    def _audience_of(self, address: str, rights: Rights) -> Audience:
        self.counters["routes_worked_out"] += 1
        self.work += 1
        try:
            check_topic(address)
            self.quotas.check_levels(address)
            if not rights.allows("publish", address):
                raise RefusedError("unauthorized", "no right to publish to this address")
        except RefusedError as refusal:
            return self._intern((), "disconnect", refusal)
        if address in self.queues:
            return self._intern((), "disconnect", None, self.queues.open(address))
        visited = self._topics.visited
        members = tuple(one for one in self._topics.match(address) if not one.closed)
        self.work += (self._topics.visited - visited + len(members)) // 32
        captured = self.capture.takes(address)
        return self._intern(members, self.flow.policy_of(address), None, None, captured)

    def _intern(
        self,
        members: tuple[Session, ...],
        policy: Policy,
        refusal: RefusedError | None,
        queue: Queue | None = None,
        captured: bool = False,
    ) -> Audience:
        key = (members, policy, str(refusal) if refusal else None, queue, captured)
        number = self._numbers.get(key)
        if number is not None:
            return self._audiences[number]
        audience = Audience(-1, members, {}, policy, refusal, queue, captured, key)
        for member in members:
            audience.forms.setdefault(member.form, []).append(member)
            member.audiences.add(audience)
        self._members += len(members) + 1
        if self._free_numbers:
            audience.number = self._free_numbers.pop()
            self._audiences[audience.number] = audience
        else:
            audience.number = len(self._audiences)
            self._audiences.append(audience)
        self._numbers[key] = audience.number
        return audience

    def _drop_audience(self, audience: Audience) -> None:
        """Forget an audience that no route has, or one whose routes will be worked out again."""
        for member in audience.members:
            member.audiences.discard(audience)
        self._members -= len(audience.members) + 1
        assert audience.key is not None
        del self._numbers[audience.key]
        self._audiences[audience.number] = _NOBODY
        self._free_numbers.append(audience.number)

    def _drop_unused_audiences(self) -> None:
        """Forget the audiences that no route has, and the routes that nobody has used lately."""
        used = bytearray(len(self._audiences))
        for rights in self.all_rights:
            rights.routes.keep_used(self._changed, used)
        for number, audience in enumerate(self._audiences):
            if not used[number] and audience is not _NOBODY:
                self._drop_audience(audience)
        self._many_members = max(MANY_MEMBERS, 2 * self._members)

    def publish(
        self, session: Session, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Deliver the rows [start, end), all of them publishes of this session."""
        while self.engine.trouble and (middle := end_of_likes(table, start, end)) < end:
            # Those that ask for an acknowledgement are refused, the others are not (decision 47).
            self._publish(session, table, start, middle, now)
            start = middle
        self._publish(session, table, start, end, now)

    def _publish(
        self, session: Session, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        routes = session.rights.routes
        if len(routes) > MAX_ROUTES:
            routes.clear()
        if self._members > self._many_members:
            self._drop_unused_audiences()
        at = start
        while (at := routes.assign(table, at, end, self._changed)) < end:
            address = table.address(at)
            audience = self._audience_of(address.decode(), session.rights)
            routes.add(address, audience.number, self._changed)
        self.counters["received"] += end - start
        session.received += end - start
        if self.trace is not None:
            self.trace.published(session, table, start, end, now)
        sole = routes.sole(start, end)
        if sole == MIXED:
            self._publish_mixed(session, table, start, end, now)
            return
        audience = self._audiences[sole]
        if audience.captured and self.engine.trouble and wants_ack(table, start, end):
            audience = replace(audience, members=(), captured=False, refusal=self._busy())
        if audience.members:
            self._deliver(session, audience.forms, audience.policy, table, start, end, None, now)
        if audience.captured:
            self.capture.rows(session, table, start, end, None, now)
        is_topic = audience.refusal is None and audience.queue is None
        if not is_topic or wants_ack(table, start, end):
            self._settle(session, audience, table, span(start, end), now)

    def _busy(self) -> RefusedError:
        return RefusedError("busy", f"nothing can be kept now: {self.engine.trouble}")

    def _settle(
        self,
        session: Session,
        audience: Audience,
        table: FrameTable,
        rows: array[int],
        now: float,
    ) -> None:
        """What is left to do with rows of one audience: queue them, refuse them, answer."""
        asking = wanting_ack(table, rows)
        if audience.queue is not None:
            self._enqueue_rows(session, audience.queue, table, rows, now)
        elif audience.refusal is None:
            session.accept_rows(table, asking, kept=audience.captured)
        else:
            self.count_refused(audience.refusal.code, len(rows))
            for row in asking:
                session.refuse(table.message(row), audience.refusal)
            if len(asking) < len(rows):
                session.refuse_unasked(audience.refusal, len(rows) - len(asking))

    def _enqueue_rows(
        self, session: Session, queue: Queue, table: FrameTable, rows: array[int], now: float
    ) -> None:
        taken = array("i")
        self.work += 2 * len(rows)
        for row in rows:
            message = table.message(row)
            try:
                self._enqueue(session, queue, message, now)
            except RefusedError as refusal:
                self.count_refused(refusal.code)
                if message.flags & Flag.ACK:
                    session.refuse(message, refusal)
                else:
                    session.refuse_unasked(refusal, 1)
            else:
                taken.append(row)
        session.accept_rows(table, wanting_ack(table, taken), kept=True)

    def _enqueue(self, session: Session, queue: Queue, message: Message, now: float) -> None:
        self.capture.check_disk()
        lives = message.ttl / 1000 if message.ttl and not session.counts_hops else 0.0
        queue.put(message, now, producer=session, lives=lives)

    def queue_to_consume(self, session: Session, name: str) -> Queue:
        """Return a queue that a session may take messages from; it is declared if need be."""
        if not session.rights.allows("subscribe", check_address(name)):
            raise RefusedError("unauthorized", f"no right to consume {name}")
        self._check_subscriptions(session, name)
        queue = self._queue(session, name)
        session.consumes[name] = None
        return queue

    def _queue(self, session: Session, name: str) -> Queue:
        if name in self.queues:
            return self.queues.open(name)
        return self.queues.declare(QueueSettings(name), session.rights, implied=True)

    def consumed_queue(self, session: Session, name: str) -> Queue:
        """The queue whose message a session acknowledges; who may not consume learns nothing."""
        if not session.rights.allows("subscribe", check_address(name)):
            raise RefusedError("unauthorized", f"no right to consume {name}")
        return self.queues.get(name)

    def check_not_stranger(self, session: Session) -> None:
        """Refuse to tell a session anything of the broker that has no rights at all."""
        if session.rights.is_empty:
            raise RefusedError("unauthorized", "no right to know this")

    def queue_states(self, session: Session, now: float) -> list[dict[str, object]]:
        """What people want to know of the queues that a session may consume: the first thousand."""
        self.check_not_stranger(session)
        states = (
            queue.state(now)
            for queue in self.queues.all()
            if session.rights.allows("subscribe", queue.settings.name)
        )
        listed = list(islice(states, LISTED_QUEUES))
        self.work += len(listed) // 2
        return listed

    def check_admin(self, session: Session, name: str) -> None:
        """May a session remove what others use?"""
        if not session.rights.admin:
            raise RefusedError("unauthorized", f"no right to remove {name}")

    def enqueue(self, session: Session, message: Message, now: float) -> None:
        """Put one message into a queue, which is declared if need be."""
        if not session.rights.allows("publish", check_address(message.address)):
            raise RefusedError("unauthorized", f"no right to publish to {message.address}")
        self._enqueue(session, self._queue(session, message.address), message, now)

    def _publish_mixed(
        self, session: Session, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Rows with several audiences: gather per session, in the order of arrival."""
        parts = {}
        for number, rows in session.rights.routes.groups(start, end).items():
            audience = self._audiences[number]
            if audience.captured and self.engine.trouble and wants_ack(table, start, end):
                audience = replace(audience, members=(), captured=False, refusal=self._busy())
            parts[number] = (audience, rows)
        shares: dict[tuple[Session, Policy], list[int]] = {}
        for number, (audience, _) in parts.items():
            for member in audience.members:
                shares.setdefault((member, audience.policy), []).append(number)
        # Those who get the same rows get them together.
        alike: dict[tuple[Policy, tuple[int, ...]], list[Session]] = {}
        for (member, policy), share in shares.items():
            alike.setdefault((policy, tuple(share)), []).append(member)
        for (policy, numbers), members in alike.items():
            rows = parts[numbers[0]][1]
            if len(numbers) > 1:
                rows = array("i", sorted(chain.from_iterable(parts[one][1] for one in numbers)))
            forms: dict[str, list[Session]] = {}
            for member in sorted(members, key=lambda one: one.number):
                forms.setdefault(member.form, []).append(member)
            self._deliver(session, forms, policy, table, 0, 0, rows, now)
        if captured := [rows for audience, rows in parts.values() if audience.captured]:
            whole = sum(map(len, captured)) == end - start
            some = None if whole else array("i", sorted(chain.from_iterable(captured)))
            self.capture.rows(session, table, start, end, some, now)
        for audience, rows in parts.values():
            self._settle(session, audience, table, rows, now)

    def _deliver(
        self,
        session: Session,
        forms: dict[str, list[Session]],
        policy: Policy,
        table: FrameTable,
        start: int,
        end: int,
        rows: array[int] | None,
        now: float,
    ) -> None:
        """Write rows [start, end), or these, to the members, once per form."""
        count = end - start if rows is None else len(rows)
        first = True  # TMQ tells the first receiver from the others (spec: tmq 5)
        for form, members in forms.items():
            told_apart = first and form.startswith("tmq") and len(members) > 1
            frames = self.frames(session, form, table, start, end, rows, first=first)
            first = first and not form.startswith("tmq")
            for member in members:
                if frames and self.flow.admits(member, count, policy):
                    member.write(frames, policy, session)
                    self.counters["delivered"] += count
                    member.delivered += count
                if told_apart:
                    told_apart = False
                    frames = self.frames(session, form, table, start, end, rows, first=False)

    def frames(
        self,
        session: Session,
        form: str,
        table: FrameTable,
        start: int,
        end: int,
        rows: array[int] | None,
        *,
        first: bool,
    ) -> bytes | memoryview:
        """The rows as a member of this form gets them: as they came, or translated."""
        as_it_came = table is session.table and form == session.form
        if as_it_came and session.forwards_as_is(table, start, end, rows):
            if rows is not None:
                return gather(table, rows)
            if is_contiguous(table, start, end):
                begin = table.frame_at[start]
                stop = table.frame_at[end - 1] + table.frame_len[end - 1]
                return bytes(memoryview(table.buffer)[begin:stop])
        if rows is None:
            rows = span(start, end)
        encode = self.encoder(form)
        encode.origin = session.client_id.encode()
        encode.first = first
        frames = encode.encode(table, rows)
        for reason, count in encode.skipped.items():
            self.count_dropped(f"untranslatable_{reason}", count)
        encode.skipped.clear()
        return frames

    def encoder(self, form: str) -> Encoder:
        """The node's encoder for a form: a dialect, perhaps `+inclusive` (Kobold's lengths include
        themselves) or `+little` (TMQ's numbers are little-endian).
        """
        if form not in self._encoders:
            dialect, _, variant = form.partition("+")
            made = self._encoders[form] = encoder(dialect, client=False)
            made.inclusive = variant == "inclusive"
            made.little = variant == "little"
        return self._encoders[form]

    def prepare_mfp(self, uid_seed: bytes, *, split: bool) -> None:
        """Say how new mfp uids begin, and whether long messages are split (spec: mfp 6)."""
        self._encoders["mfp-1"] = MfpEncoder(client=False, uid_seed=uid_seed, split=split)

    # One message at a time

    def publish_message(self, session: Session, message: Message, now: float) -> None:
        """Publish one message that is not in the node's table, with its sender as the source."""
        self._single.fill([structs.replace(message, source=session.client_id)], message.dialect)
        self.publish(session, self._single, 0, 1, now)

    def send_to_client(self, session: Session, message: Message, now: float) -> None:
        """Pass a direct message on to the client that it names."""
        if not self.client_to_send_to(session, message.target).send(message):
            raise RefusedError("not_found", f"{message.target} cannot be told this")
        self.capture.add(message, now)
        self.counters["delivered"] += 1

    def client_to_send_to(self, session: Session, name: str) -> Session:
        """The session of a client that takes messages for itself."""
        if not session.rights.allows("publish", f"$client/{name}"):
            raise RefusedError("unauthorized", f"no right to send to {name}")
        for other in self.clients.sessions(name):
            if other.takes_direct:
                return other
        raise RefusedError("not_found", f"no client {name} that takes messages")

    def tick(self, now: float, epoch: float | None = None) -> None:
        """Let time pass: requests time out, slow consumers are told from stopped ones.

        `epoch` is what makes seconds since 1970 of the broker's time, as the clock has it now.
        """
        self.now = now
        if epoch is not None:
            self.epoch = epoch
        self._remove_filters()
        self.services.tick(now)
        self.store.tick(now)
        self.queues.tick(now)
        self.flow.tick(now)
        self.traffic.tick(self, now)
        self._tell_what_happened()
        for session, due in list(self.unsettled.items()):
            if due <= now:
                del self.unsettled[session]
                session.settle()
        if now - self._swept >= 1.0:
            self._swept = now
            for each in list(self.sessions):
                each.tick(now)

    def _tell_what_happened(self) -> None:
        """Make events of damage that was found, wrong tokens, and trouble that begins or ends."""
        damage = self.engine.damage
        while self._damage_told < len(damage):
            self._damage_told += 1
            self.event("damage", "the disk", damage[self._damage_told - 1])
        while self.guesses.events:
            address, text = self.guesses.events.popleft()
            self.event("wrong_tokens", address, text)
        trouble = self.engine.trouble
        if bool(trouble) != bool(self._trouble_told):
            kind, text = ("trouble", trouble) if trouble else ("recovered", "writing works again")
            self.event(kind, "the disk", text)
            self._trouble_told = trouble

    def close(self, sessions: Iterable[Session] | None = None) -> None:
        """Say goodbye to everybody."""
        for session in list(self.sessions if sessions is None else sessions):
            session.say_goodbye()
            session.close("the broker stops")
