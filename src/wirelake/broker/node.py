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
from itertools import chain
from typing import TypeAlias

from wirelake.address import check_address, check_filter, check_topic, has_wildcard
from wirelake.broker.boson_text import BosonTextSession
from wirelake.broker.capture import Capture
from wirelake.broker.flow import Flow, Policy
from wirelake.broker.mfp import MfpSession
from wirelake.broker.ops import KoboldSession, OpSession
from wirelake.broker.queues import Queue, Queues
from wirelake.broker.rights import Rights, all_rights
from wirelake.broker.route import MIXED, gather, is_contiguous, span, wanting_ack, wants_ack
from wirelake.broker.services import Services
from wirelake.broker.session import Link, Session
from wirelake.broker.store import Store
from wirelake.broker.streams import Streams
from wirelake.broker.subscriptions import FilterIndex
from wirelake.broker.tmq import TmqSession
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
#: The same for audiences; those that nobody has any more are not looked for one by one.
MAX_AUDIENCES = 100_000

#: Where operators hear what happened (decision 43), and how many of these events are remembered.
EVENTS = "$events"
MAX_EVENTS = 100

#: What an answer that waits for the disk takes beside its bytes, roughly.
ANSWER = 512

#: A client id is free for another connection once its owner has been silent so long (seconds).
SILENCE = 60.0


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
        self.limits_of_strangers = limits  # until they have authenticated
        self.counters: Counter[str] = Counter()
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
        self.clients: dict[str, list[Session]] = {}
        self.rights_of_strangers: Rights = all_rights()
        self.tokens: Callable[[str], Rights | None] = lambda token: self.rights_of_strangers
        self.all_rights: list[Rights] = [self.rights_of_strangers]
        self.unsettled: dict[KoboldSession, float] = {}
        self.now = 0.0  # the latest time that anybody told
        self.reading: Session | None = None  # the session whose read is being done
        self.epoch = epoch  # what is to be added to the broker's time for seconds since 1970
        self.events: deque[dict[str, object]] = deque(maxlen=MAX_EVENTS)
        self._latest = max((one.last_time for one in engine.positions()), default=0)
        for text in engine.damage:  # it was logged when it was found
            self._remember("damage", "the disk", text)
        self._swept = 0.0
        self._topics: FilterIndex[Session] = FilterIndex()
        self._audiences: list[Audience] = []
        self._numbers: dict[_Key, int] = {}
        self._encoders: dict[str, Encoder] = {}
        self.capture = Capture(self)
        self.services = Services(self)
        self.queues = Queues(self)
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

    def new_id(self) -> str:
        """A client id that nobody has."""
        while (name := f"client-{self.counters['connections']}") in self.clients:
            self.counters["connections"] += 1
        return name

    def authenticate(self, session: Session, token: str) -> None:
        """Give a session the rights of a token."""
        rights = self.tokens(token)
        if rights is None:
            raise RefusedError("unauthorized", "the token is not known")
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

    def identify(self, session: Session, client_id: str, now: float) -> None:
        """Give a session the id that its client claims, if it is free (spec: identity)."""
        for other in self.clients.get(client_id, []):
            if other is session or other.pairs_with(session):
                continue
            same_token = session.token != "" and session.token == other.token
            if not same_token and now - other.last_heard < SILENCE:
                raise RefusedError("conflict", f"the client id {client_id} is in use")
            other.close("another connection took over its client id")
        self._forget_client(session)
        session.client_id = client_id
        self.clients.setdefault(client_id, []).append(session)

    def _forget_client(self, session: Session) -> None:
        if mine := self.clients.get(session.client_id):
            mine[:] = [other for other in mine if other is not session]
            if not mine:
                del self.clients[session.client_id]

    def left(self, session: Session, reason: str) -> None:
        """A connection has ended: nothing is left of it but what must survive."""
        self.sessions.pop(session, None)
        self._forget_client(session)
        for filter in list(session.filters):
            self._topics.remove(filter, session)
            self.forget_routes(filter)
        session.filters.clear()
        self.services.left(session, self.now)
        self.store.left(session)
        self.streams.left(session, self.now)
        self.queues.left(session, self.now)
        self.flow.left(session, self.now)
        self.capture.left(session)
        self.counters["disconnects"] += 1

    def protocol_error(self, session: Session, error: ProtocolError) -> None:
        """A peer broke its grammar."""
        self.counters["protocol_errors"] += 1
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
            session.consumes[filter] = None
            self.queues.get(filter).consume(session, prefetch, now)
            return
        if self._topics.add(filter, session):
            session.filters[filter] = None
            self.forget_routes(filter)

    def unsubscribe(self, session: Session, filter: str, now: float) -> None:
        """Take a subscription back; an empty filter takes all of them."""
        for name in list(session.consumes):
            if filter in ("", name) and name in self.queues:
                del session.consumes[name]
                self.queues.get(name).cancel(session, now)
                if filter:
                    return
        for one in [filter] if filter else list(session.filters):
            if session.filters.pop(one, 0) == 0:
                raise RefusedError("not_found", f"no subscription to {one}")
            self._topics.remove(one, session)
            self.forget_routes(one)

    def check_publish(self, session: Session, address: str) -> None:
        """May a session publish to an address?"""
        audience = self._audience_of(address, session.rights)
        if audience.refusal is not None:
            raise audience.refusal

    def check_queue(self, name: str) -> None:
        """May this address become a queue?"""
        check_topic(name)
        if any(name in session.filters for session in self._topics.match(name)):
            raise RefusedError("conflict", f"{name} is a topic that has subscribers")

    def reaches(self, session: Session, address: str) -> bool:
        """Does anybody get what a session publishes to an address?"""
        audience = self._audience_of(address, session.rights)
        return bool(audience.members) or audience.queue is not None

    def forget_routes(self, filter: str = "#") -> None:
        """Work audiences out again: somebody subscribed, or a queue came or went."""
        if not has_wildcard(filter) and len(self._audiences) < MAX_AUDIENCES:
            for rights in self.all_rights:
                rights.routes.forget(filter.encode())
            return
        self._audiences.clear()
        self._numbers.clear()
        for rights in self.all_rights:
            rights.routes.clear()

    def _audience_of(self, address: str, rights: Rights) -> Audience:
        try:
            check_topic(address)
            if not rights.allows("publish", address):
                raise RefusedError("unauthorized", "no right to publish to this address")
        except RefusedError as refusal:
            return self._intern((), "disconnect", refusal)
        if address in self.queues:
            return self._intern((), "disconnect", None, self.queues.get(address))
        members = tuple(self._topics.match(address))
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
        if key in self._numbers:
            return self._audiences[self._numbers[key]]
        audience = Audience(len(self._audiences), members, {}, policy, refusal, queue, captured)
        for member in members:
            audience.forms.setdefault(member.form, []).append(member)
        self._numbers[key] = audience.number
        self._audiences.append(audience)
        return audience

    def publish(
        self, session: Session, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Deliver the rows [start, end), all of them publishes of this session."""
        routes = session.rights.routes
        if len(routes) > MAX_ROUTES:
            self.forget_routes()
        at = start
        while (at := routes.assign(table, at, end)) < end:
            address = table.address(at)
            routes.add(address, self._audience_of(address.decode(), session.rights).number)
        self.counters["received"] += end - start
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
        """A queue that a session may take messages from; declared if need be."""
        if not session.rights.allows("subscribe", check_address(name)):
            raise RefusedError("unauthorized", f"no right to consume {name}")
        session.consumes[name] = None
        return self.queues.declare(QueueSettings(name))

    def queue_states(self, session: Session, now: float) -> list[dict[str, object]]:
        """What people want to know of every queue that a session may consume."""
        return [
            queue.state(now)
            for queue in self.queues.all()
            if session.rights.allows("subscribe", queue.settings.name)
        ]

    def check_admin(self, session: Session, name: str) -> None:
        """May a session remove what others use?"""
        if not session.rights.admin:
            raise RefusedError("unauthorized", f"no right to remove {name}")

    def enqueue(self, session: Session, message: Message, now: float) -> None:
        """Put one message into a queue, which is declared if need be."""
        if not session.rights.allows("publish", check_address(message.address)):
            raise RefusedError("unauthorized", f"no right to publish to {message.address}")
        self._enqueue(session, self.queues.declare(QueueSettings(message.address)), message, now)

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
        for form, members in forms.items():
            # TMQ tells the first receiver from the others (spec: tmq 5).
            told_apart = form.startswith("tmq") and len(members) > 1
            frames = self.frames(session, form, table, start, end, rows, first=True)
            for member in members:
                if frames and self.flow.admits(member, count, policy):
                    member.write(frames, policy, session)
                    self.counters["delivered"] += count
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
        """The node's encoder for a form: a dialect, perhaps with inclusive lengths."""
        if form not in self._encoders:
            dialect, _, inclusive = form.partition("+")
            self._encoders[form] = encoder(dialect, client=False)
            if inclusive:
                self._encoders[form].inclusive = True
        return self._encoders[form]

    def prepare_mfp(self, uid_seed: bytes, *, split: bool) -> None:
        """Say how new mfp uids begin, and whether long messages are split (spec: mfp 6)."""
        self._encoders["mfp-1"] = MfpEncoder(client=False, uid_seed=uid_seed, split=split)

    # One message at a time

    def publish_message(self, session: Session, message: Message, now: float) -> None:
        """Publish one message that is not in the node's table."""
        self._single.fill([message], message.dialect)
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
        for other in self.clients.get(name, ()):
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
        self.services.tick(now)
        self.store.tick(now)
        self.queues.tick(now)
        self.flow.tick(now)
        for session, due in list(self.unsettled.items()):
            if due <= now:
                del self.unsettled[session]
                session.settle()
        if now - self._swept >= 1.0:
            self._swept = now
            for each in list(self.sessions):
                each.tick(now)

    def close(self, sessions: Iterable[Session] | None = None) -> None:
        """Say goodbye to everybody."""
        for session in list(self.sessions if sessions is None else sessions):
            session.say_goodbye()
            session.close("the broker stops")
