"""What a client and the broker know of each other beyond a connection: MQTT calls it a session.

A *conversation* has the client's subscriptions, what was sent and is not acknowledged, and what was
received with QoS 2 and is not released. It ends with its connection, or lasts as long as the client
asked for. One that lasts is kept in the journal:

- its subscriptions, and the identifiers of QoS 2 that the client has to forget, in the key
  `$mqtt/session/<id>`;
- the identifiers of QoS 2 that were received and are not released in keys `$mqtt/once/<id>`, one in
  each partition that has such a message. A commit of a partition is whole, so a power failure keeps
  a message and its identifier, or neither;
- what is sent to it with QoS 1 or 2 in the queue `$mqtt/<id>`, from the moment it is published
  until the client has it. The packet identifier follows from the place in the queue, so a message
  that is sent again, even by a broker that was killed meanwhile, has the same one.

The will of a client is kept in the key `$mqtt/will/<id>` while the client is connected, whether its
conversation lasts or not: a broker that was killed publishes it when it starts again.

A client subscribes with options. All of its filters with the same options share a *receiver*, which
is an endpoint for the router like a client of another dialect. Where filters of several receivers
match a message, a *union* gets it in their place: once, with the highest QoS of them, and with the
identifiers of all these subscriptions. A *share* is the endpoint of
all that subscribed to `$share/<group>/<filter>`: it deals messages out to them in turn.

In a cluster, a conversation that lasts or has a will is at the owner of the partition of its queue;
`session` says how connections of other nodes reach it. Retained messages are at the owners of their
topics: a *search* asks all of them that may have some for a filter.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count as count_from
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

import msgspec

from wirelake.address import check_filter, has_wildcard
from wirelake.broker.endpoint import Endpoint, Policy
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.config import QueueSettings
from wirelake.dialects.mqtt.encoder import (
    MqttEncoder,
    Packets,
    all_flags,
    divide,
    numbered,
    personal,
)
from wirelake.dialects.mqtt.retained_memory import Retained, RetainedMessages
from wirelake.dialects.mqtt.scanner import RETAIN, MqttScanner
from wirelake.errors import RefusedError
from wirelake.journal.engine import Entry
from wirelake.message import Flag, Message
from wirelake.wire import FrameTable

if TYPE_CHECKING:
    from wirelake.dialects.mqtt.session import MqttSession

SESSION = "$mqtt/session/"
ONCE = "$mqtt/once/"
WILL = "$mqtt/will/"
QUEUE = "$mqtt/"
SHARE = "$share/"
FIVE = "mqtt-5"
#: Identifiers of what is published; those above are for messages of queues.
IDENTIFIERS = 60_000
#: What is read of a queue at once.
READ_MESSAGES = 1_000
READ_BYTES = 1 << 20
#: Stands for the partition of a message of QoS 2 that is not known to be durable.
UNDER_WAY = -1
#: Bytes of retained messages that a node tells another one at once.
PAGE = 256 << 10
#: The mark of packets that are sent again.
AGAIN = 8
#: What a message that waits takes beside its bytes, roughly.
OVERHEAD = 64


class Options(NamedTuple):
    """How a client subscribed to a filter."""

    qos: int = 0
    no_local: bool = False
    keeps_retain: bool = False
    subscription: int = 0


class _Kept(msgspec.Struct):
    """A conversation in the journal."""

    owner: str = ""
    lasts: float = 0.0  # seconds; 0: for ever, as JSON has no infinity
    ends: float = 0.0  # seconds since 1970; 0: not while it is connected, or never
    filters: dict[str, tuple[int, bool, bool, int]] = {}
    received: list[int] = []  # of brokers before 0.2; now in keys of their own
    released: list[int] = []


class _Will(msgspec.Struct):
    """The will of a client that is connected, in the journal."""

    owner: str
    packet: bytes


class Kind(msgspec.Struct, frozen=True, array_like=True):
    """What an address is, beside a topic."""

    is_queue: bool
    is_service: bool


class _WhatIs(msgspec.Struct, frozen=True, array_like=True, tag="kind"):
    """What is this address?"""

    address: str


class _Question(msgspec.Struct, frozen=True, array_like=True, tag="retained"):
    """What is retained for a filter in these partitions, of the topics after this one?"""

    filter: str
    partitions: list[int]
    after: str


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    """Retained messages of these partitions, and the topic to go on after, empty: that was all."""

    partitions: list[int]
    found: list[tuple[bytes, float, float]]
    after: str


@dataclass(eq=False, slots=True)
class _Part:
    """Partitions that have one owner now, as far as a search has come there."""

    partitions: frozenset[int]
    after: str = ""
    is_asked: bool = False


@dataclass(eq=False, slots=True)
class _Search:
    """A search for what is retained for a client's filter: the parts that are not done."""

    talk: Conversation
    filter: str
    options: Options
    parts: list[_Part]


class Offline:
    """Stands for the link of a client that is not connected."""

    peer = "offline"
    buffered = moved = 0

    def write(self, data: bytes | memoryview) -> None:
        """Nobody is there."""

    def close(self) -> None:
        """Nobody is there."""

    abort = pause = resume = receive_again = authenticated = close


class Receiver(Endpoint):
    """The endpoint of all filters that a client subscribed to with the same options."""

    takes_direct = False

    def __init__(self, conversation: Conversation, options: Options) -> None:
        home = conversation.home
        connection = conversation.connection
        dialect = FIVE if conversation.is_kept or connection is None else connection.dialect
        super().__init__(OFFLINE, dialect, home.table, home.rights, home.node.vitals.now)
        self.conversation = conversation
        self.options = options
        self.form = f"{dialect}+{options.qos}{'r' if options.keeps_retain else ''}"
        self.acknowledges = options.qos > 0
        self.client_id = conversation.client_id
        self.belongs_to = conversation
        home.receivers += 1
        self.number = connection.number if connection is not None else home.receivers
        if connection is not None:
            self.link = connection.link

    @property
    def owner(self) -> str:
        """The token entry of the client."""
        return self.conversation.owner

    @property
    def outgoing(self) -> int:
        """The bytes that wait for the client."""
        connection = self.conversation.connection
        return connection.outgoing if connection is not None else 0

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send publishes of this receiver's form."""
        talk = self.conversation
        if self.options.no_local and talk.is_own(sender):
            return
        connection = talk.connection
        is_plain = self.options.qos == 0 and not self.options.subscription and not talk.most_packet
        if is_plain and connection is None:
            return
        # What lasts is encoded as MQTT 5, and its client may speak 3.1.1.
        if is_plain and connection is not None and connection.dialect == self.dialect:
            connection.write(data, policy, sender)
        else:
            talk.deliver(data, self.options.subscription, policy, sender)

    def united(self, members: tuple[Endpoint, ...]) -> Endpoint:
        """Return the union of receivers of this client."""
        return self.conversation.union(
            tuple(one.options for one in members if isinstance(one, Receiver))
        )

    def write_retained(self, found: Iterable[Retained]) -> Iterator[None]:
        """Send what is retained, with the mark that says so; yields after each of them."""
        home = self.conversation.home
        variant = f"{self.options.qos}r"
        for one in found:
            frames = home.translated(one.packet, self.dialect, variant, since=one.since)
            if frames:
                self.conversation.deliver(frames, self.options.subscription)
            yield

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message of a queue."""
        connection = self.conversation.connection
        return connection is not None and connection.hand_out(message, self.options)

    def send_all(self, messages: Iterable[Message | None]) -> None:
        """Send messages of a queue."""
        for message in messages:
            if message is not None:
                self.send(message)

    def refuse(self, message: Message, error: RefusedError) -> None:
        """A receiver asks for nothing."""

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """A receiver publishes nothing."""

    def authenticated(self) -> None:
        """The client's connection looks after that."""

    def close(self, reason: str) -> None:
        """End the client's connection."""
        if self.conversation.connection is not None:
            self.conversation.connection.close(reason)

    def lost(self, reason: str) -> None:
        """The client's connection has ended."""
        if self.conversation.connection is not None:
            self.conversation.connection.lost(reason)


class Union(Receiver):
    """The endpoint of messages that filters with several sets of options match."""

    def __init__(self, conversation: Conversation, parts: tuple[Options, ...]) -> None:
        qos = max(one.qos for one in parts)
        super().__init__(conversation, Options(qos, False, any(one.keeps_retain for one in parts)))
        self._parts = parts
        self._subscriptions = sorted({one.subscription for one in parts if one.subscription})

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send publishes once, with the identifiers of all subscriptions."""
        talk = self.conversation
        if talk.is_own(sender):
            parts = tuple(one for one in self._parts if not one.no_local)
            if len(parts) < len(self._parts):
                self._write_own(parts, data, policy, sender)
                return
        for subscription in self._subscriptions[1:]:
            data = personal(data, 0, len(data), subscription=subscription)[0]
        if self._subscriptions:
            talk.deliver(data, self._subscriptions[0], policy, sender)
        else:
            super().write(data, policy, sender)

    def _write_own(
        self,
        parts: tuple[Options, ...],
        data: bytes | memoryview,
        policy: Policy,
        sender: Endpoint | None,
    ) -> None:
        """Send what the client published itself, as the filters say that want it."""
        if parts:
            one = self.conversation.union(parts)
            variant = one.form.partition("+")[2]
            one.write(
                self.conversation.home.translated(data, self.dialect, variant), policy, sender
            )


class Share(Receiver):
    """The endpoint of a group that shares what is published to a filter."""

    def __init__(self, conversation: Conversation, filter: str) -> None:
        super().__init__(conversation, Options(2))
        self.belongs_to = None
        self.dialect = FIVE
        self.form = f"{FIVE}+2"
        self.filter = filter
        self.members: dict[Conversation, Receiver] = {}
        self._next = 0

    @property
    def outgoing(self) -> int:
        """The bytes that wait for the member that has the fewest."""
        return min((one.outgoing for one in self._present()), default=0)

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Deal publishes out to the members in turn; those that are connected come first."""
        members = self._present()
        if not members:
            return
        view = memoryview(data)
        places = divide(view)
        first, count = self._next, len(members)
        self._next += len(places) - 1
        home = self.conversation.home
        for k, member in enumerate(members):
            turns = range((k - first) % count, len(places) - 1, count)
            dealt = b"".join(view[places[turn] : places[turn + 1]] for turn in turns)
            if dealt:
                variant = member.form.partition("+")[2]
                frames = home.translated(dealt, member.dialect, variant)
                member.conversation.deliver(frames, member.options.subscription, policy, sender)

    def _present(self) -> list[Receiver]:
        present = [one for talk, one in self.members.items() if talk.connection is not None]
        return present or [one for talk, one in self.members.items() if talk.is_kept]


class Conversation:
    """What a client and the broker know of each other."""

    def __init__(self, home: Conversations, client_id: str, owner: str) -> None:
        self.home = home
        self.client_id = client_id
        self.owner = owner
        self.connection: MqttSession | None = None
        self.is_kept = False
        self.is_over = False
        self.lasts = 0.0  # seconds beyond the connection
        self.ends = 0.0  # when, in the broker's time; 0: not yet
        self.filters: dict[str, tuple[Options, Receiver]] = {}
        self.receivers: dict[Options, Receiver] = {}
        # As long as somebody routes to them; few clients have any.
        self._unions: WeakValueDictionary[tuple[Options, ...], Union] | None = None
        #: QoS 2, and not released: the partition of the message, by identifier.
        self.received: dict[int, int] = {}  # UNDER_WAY: another node may not have it yet
        self._once = 0  # the last revision of the keys that tell of these
        self.most_packet = 0
        self.most_in_flight = IDENTIFIERS
        # Sent and not acknowledged: the sequence in the queue, or 0, by identifier.
        self.in_flight: dict[int, int] = {}
        self.released: dict[int, None] = {}  # the client has these messages of QoS 2, in order
        self.will: bytes | None = None
        self.will_at = 0.0  # when a will that waits is published
        self.will_rights: Rights | None = None
        self._identifier = 1
        # Of a conversation that is not kept: frames, and since when they wait.
        self._waiting: deque[tuple[bytes | memoryview, float]] = deque()
        self.waiting_bytes = 0
        self.moved = 0  # bytes of these that were sent
        self._retained: deque[Iterator[None]] = deque()  # what is being sent
        self._sequence = 1  # of the queue: the next one that is given out, …
        self._following = 1  # … and the next one that is sent
        self._promised = 1  # the next one that nobody has promised to send
        self._untold = 1  # the next one that was not sent to any connection before this one
        self._most_bytes = 1 << 62  # of the queue: it has no more than this many
        self._asked = False  # to go on when what was put is durable

    # Subscriptions

    def subscribe(self, filter: str, options: Options, now: float) -> bool:
        """Subscribe to a filter, or change the options; return whether it is a new one.

        Raises RefusedError where rights or quotas do not allow it.
        """
        assert self.connection is not None
        known = self.filters.get(filter)
        _, wanted = parse_share(filter)
        topics = self.home.node.topics
        topics.check_subscription(self.connection, wanted)
        if known is None:
            topics.check_quota(self.connection, filter)
            self.home.node.quotas.check_levels(wanted)
        if known is not None and known[0] != options:
            self._leave(filter, known[1], now)
        receiver = self._receiver(options)
        if known is None or known[0] != options:
            self._join(filter, receiver, now)
            self.filters[filter] = (options, receiver)
            self.connection.filters[filter] = None
            self.save()
        return known is None

    def send_retained(self, filter: str, options: Options) -> None:
        """Send what is retained for a filter that was subscribed to just now."""
        known = self.filters.get(filter)
        if known is None or known[0] != options or filter.startswith(SHARE):
            return
        if self.home.node.owners is None:
            self.send_found(known[1].write_retained(self.home.retained.matching(filter)))
        else:
            self.home.search(self, filter, options)

    def send_found(self, retained: Iterator[None]) -> None:
        """Send what is retained: each step of the iterator sends one message."""
        self._retained.append(retained)
        self.pump()

    @property
    def has_found(self) -> bool:
        """Whether something that is retained waits for room in the outbox."""
        return bool(self._retained)

    def pump(self) -> None:
        """Send what is retained and what waits in the queue, as far as the outbox has room."""
        self.home.held.discard(self)
        while self._retained and self.has_room():
            if next(self._retained[0], self) is self:
                self._retained.popleft()
        if self.is_kept and self.has_room():
            self._go_on()

    def has_room(self) -> bool:
        """Has the outbox room? If not, the clock goes on with what is to be sent."""
        connection = self.connection
        if connection is None or connection.closed:
            return False
        if connection.outgoing <= self.home.node.flow.limit:
            return True
        self.home.held.add(self)
        return False

    def _receiver(self, options: Options) -> Receiver:
        receiver = self.receivers.get(options)
        if receiver is None:
            receiver = self.receivers[options] = Receiver(self, options)
        if self.connection is not None:
            receiver.rights = self.connection.rights
        return receiver

    def union(self, parts: tuple[Options, ...]) -> Receiver:
        """Return the receiver of messages that filters with these options match."""
        if len(parts) == 1:
            return self.receivers[parts[0]]
        if self._unions is None:
            self._unions = WeakValueDictionary()
        parts = tuple(sorted(parts))
        found = self._unions.get(parts)
        if found is None:
            found = self._unions[parts] = Union(self, parts)
        return found

    def _every_receiver(self) -> list[Receiver]:
        unions = self._unions.values() if self._unions is not None else ()
        return [*self.receivers.values(), *unions]

    def _join(self, filter: str, receiver: Receiver, now: float) -> None:
        group, wanted = parse_share(filter)
        topics = self.home.node.topics
        if wanted in topics.inboxes:
            if self.connection is not None:
                topics.subscribe(receiver, wanted, now, min(100, self.most_in_flight))
        elif group:
            share = self.home.shares.get(filter)
            if share is None:
                share = self.home.shares[filter] = Share(self, wanted)
                topics.add(share, wanted)
            share.members[self] = receiver
        else:
            topics.add(receiver, wanted)

    def _leave(self, filter: str, receiver: Receiver, now: float) -> None:
        group, wanted = parse_share(filter)
        topics = self.home.node.topics
        share = self.home.shares.get(filter) if group else None
        if share is not None and share.members.pop(self, None) is not None:
            if not share.members:
                share.closed = True
                del self.home.shares[filter]
                topics.left(share)
        elif wanted in receiver.consumes or wanted in receiver.filters:
            topics.unsubscribe(receiver, wanted, now)

    def unsubscribe(self, filter: str, now: float) -> None:
        """Remove a subscription; raises RefusedError (`not_found`) where there is none."""
        known = self.filters.pop(filter, None)
        if known is None:
            raise RefusedError("not_found", f"no subscription to {filter}")
        if self.connection is not None:
            self.connection.filters.pop(filter, None)
        self._leave(filter, known[1], now)
        self.save()

    # A connection comes and goes

    def attach(self, connection: MqttSession, now: float) -> None:
        """A connection takes the conversation up; what it may not subscribe to any more is gone."""
        self.connection = connection
        if self.will is not None and self.will_at <= now:
            self.home.publish_will(self, now)
        self.drop_will()
        self.ends = 0.0
        for receiver in self._every_receiver():
            receiver.link = connection.link
            receiver.rights = connection.rights
            receiver.number = connection.number
        topics = self.home.node.topics
        for filter, (_, receiver) in list(self.filters.items()):
            _, wanted = parse_share(filter)
            try:
                topics.check_subscription(connection, wanted)
            except RefusedError:
                self.unsubscribe(filter, now)
                continue
            connection.filters[filter] = None
            if wanted in topics.inboxes:
                self._join(filter, receiver, now)
        connection.wildcards = sum(has_wildcard(filter) for filter in self.filters)

    def resume(self) -> None:
        """Send again what was not acknowledged, then what waits."""
        connection = self.connection
        assert connection is not None
        for identifier in self.released:
            connection.write(b"\x62\x02" + identifier.to_bytes(2, "big"))
        if self.is_kept:
            self.in_flight.clear()
            self._untold = max(self._untold, self._following)
            first = next(iter(self.home.node.engine.references(self.queue)), None)
            self._following = first.sequence if first is not None else self._sequence
            self._promised = self._sequence
            self._go_on()

    def detach(self, now: float) -> None:
        """The connection has ended."""
        self.connection = None
        if not self.lasts:
            self.end(now)
            return
        for receiver in self._every_receiver():
            receiver.link = OFFLINE
            for name in list(receiver.consumes):
                self.home.node.topics.unsubscribe(receiver, name, now)
        self._forget_waiting()
        self.ends = now + self.lasts if self.lasts != float("inf") else 0.0
        self.save()

    def _forget_waiting(self) -> None:
        self._waiting.clear()
        self._hold(-self.waiting_bytes)
        self._retained.clear()
        self.home.held.discard(self)

    def end(self, now: float) -> None:
        """Forget everything."""
        if self.is_over:
            return
        self.is_over = True
        self._forget_waiting()
        self._leave_all(now)
        self.home.forget(self)

    def _leave_all(self, now: float) -> None:
        for filter, (_, receiver) in list(self.filters.items()):
            if filter.startswith(SHARE) or receiver.consumes:
                self._leave(filter, receiver, now)
        for receiver in self._every_receiver():
            receiver.closed = True
            self.home.node.topics.left(receiver)

    def lose(self, now: float) -> None:
        """Let go of a conversation that another node has from now on, with its will."""
        self.is_over = True
        connection, self.connection, self.will = self.connection, None, None
        self._leave_all(now)
        if connection is not None:
            connection.close("its session is on another node now")

    # What must survive

    @property
    def queue(self) -> str:
        """The queue of what is not acknowledged."""
        return QUEUE + self.client_id

    def keep(self) -> None:
        """Let this conversation survive connections and the broker."""
        if not self.is_kept:
            self.is_kept = True
            self.home.lasting.add(self)
            engine = self.home.node.engine
            engine.declare(QueueSettings(self.queue, dedup_window=0))
            self._sequence = self._following = self._promised = engine.next_sequence(self.queue)
        self.save()

    def save(self) -> None:
        """Write what is known, if it must survive."""
        if self.is_kept and not self.is_over:
            filters: dict[str, tuple[int, bool, bool, int]] = {
                filter: options for filter, (options, _) in self.filters.items()
            }
            ends = self.ends + self.home.node.vitals.epoch if self.ends else 0.0
            lasts = self.lasts if self.lasts != float("inf") else 0.0
            released = list(self.released)
            self.home.node.vitals.work += len(filters) // 32
            kept = _Kept(self.owner, lasts, ends, filters, released=released)
            self.home.write(self.client_id, msgspec.json.encode(kept))

    def load(self, kept: _Kept) -> None:
        """Take up what was written before the broker started."""
        node = self.home.node
        now = node.vitals.now
        self.is_kept = True
        self.home.lasting.add(self)
        self.lasts = kept.lasts
        self.released = dict.fromkeys(kept.released)
        if kept.lasts != float("inf"):
            self.ends = kept.ends - node.vitals.epoch if kept.ends else now + kept.lasts
        node.engine.declare(QueueSettings(self.queue, dedup_window=0))
        self._sequence = self._untold = node.engine.next_sequence(self.queue)
        first = next(iter(node.engine.references(self.queue)), None)
        self._following = first.sequence if first is not None else self._sequence
        for filter, options in kept.filters.items():
            receiver = self._receiver(Options(*options))
            self.filters[filter] = (receiver.options, receiver)
            self._join(filter, receiver, now)

    # The will

    def leave_will(self, packet: bytes, rights: Rights) -> None:
        """Keep the will of the client that connects; four bytes in front of it are its delay."""
        self._change_will(packet)
        self.will_rights = rights
        engine, key = self.home.node.engine, WILL + self.client_id
        if engine.is_here(engine.home(key)):
            kept = msgspec.json.encode(_Will(self.owner, packet))
            engine.write_entry(Entry(key, 1, kept))

    def drop_will(self) -> bytes | None:
        """Forget the will, and return it."""
        will, self.will_at = self.will, 0.0
        self._change_will(None)
        now = self.home.find(self.client_id)
        if will is not None and (now is None or now is self or now.will is None):
            self.home.node.engine.drop_entry(WILL + self.client_id)
        return will

    def take_will(self, packet: bytes, now: float) -> None:
        """Take up a will that was kept; its delay begins now, unless the conversation is over."""
        self._change_will(packet)
        self.will_at = max(now + (delay_of(packet) if self.lasts else 0), 1e-9)  # 0: not at all

    def _change_will(self, will: bytes | None) -> None:
        self.home.will_bytes += len(will or b"") - len(self.will or b"")
        self.will = will

    # What is received once

    def receive(self, identifiers: list[int], addresses: Sequence[bytes | str]) -> None:
        """Remember messages of QoS 2 until they are released, by identifier and address.

        Call it before they are published, since publishing may end the turn: so a message and its
        identifier are in one commit. In a cluster a message may belong to another node. There the
        identifiers are kept with the conversation, once the messages are durable: see `accept`.
        """
        if not self.is_kept or self.home.node.owners is not None:
            self.received.update(dict.fromkeys(identifiers, UNDER_WAY if self.is_kept else 0))
            return
        engine = self.home.node.engine
        homes: dict[bytes | str, int] = {}
        for identifier, address in zip(identifiers, addresses, strict=True):
            partition = homes.get(address)
            if partition is None:
                name = address if isinstance(address, str) else address.decode(errors="replace")
                partition = homes[address] = engine.home(name)
            self.received[identifier] = partition
        self._save_received(set(homes.values()))

    def accept(self, identifiers: Iterable[int]) -> None:
        """Keep the identifiers of messages that are durable on whatever nodes they belong to."""
        if not self.is_over:
            partition = self.home.node.engine.home(self.queue)
            self.received.update(dict.fromkeys(identifiers, partition))
            self._save_received([partition])

    def settle(self, done: list[int], failed: list[int]) -> None:
        """The outcome is known of messages whose connection has ended meanwhile.

        The client may have sent them again on its new connection, which is answered then.
        """
        if self.is_over:
            return
        if self.home.node.engine.trouble:
            done, failed = [], done + failed
        connection = self.connection
        done = [one for one in done if self.received.get(one) == UNDER_WAY]
        if done:
            self.accept(done)
        if connection is not None and done:
            frames = b"".join(b"\x50\x02" + one.to_bytes(2, "big") for one in done)
            action = lambda: None if connection.closed else connection.write(frames)  # noqa: E731
            connection.answer(action, kept=True)
        if any(self.received.get(one) == UNDER_WAY for one in failed):
            for one in failed:
                self.received.pop(one, None)
            if connection is not None:  # so that it sends them once more
                connection.close("what it sent may not have been kept")

    def forget_received(self, identifiers: Iterable[int]) -> None:
        """The client has released these messages of QoS 2, or they were refused."""
        changed = {self.received.pop(one) for one in identifiers if one in self.received}
        if self.is_kept:
            self._save_received(changed)

    def _save_received(self, partitions: Iterable[int]) -> None:
        engine, key = self.home.node.engine, ONCE + self.client_id
        for partition in partitions:
            numbers = sorted(n for n, where in self.received.items() if where == partition)
            if not engine.is_here(partition):
                continue
            if numbers:
                self._once += 1
                entry = Entry(key, self._once, msgspec.json.encode(numbers))
                engine.write_entry(entry, partition=partition)
            else:
                engine.drop_entry(key, partition)

    def load_received(self, partition: int, revision: int, identifiers: list[int]) -> None:
        """Take up the identifiers that were written to a partition before the broker started."""
        self._once = max(self._once, revision)
        self.received.update(dict.fromkeys(identifiers, partition))

    # Sending

    @property
    def room(self) -> int:
        """How many more messages may be sent before some are acknowledged."""
        used = len(self.in_flight) + len(self.released)
        if self.connection is not None:
            used += len(self.connection.handed_out)
        return max(0, min(self.most_in_flight, IDENTIFIERS - 1) - used)

    def deliver(
        self,
        frames: bytes | memoryview,
        subscription: int = 0,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send publishes of a form; those with QoS 1 and 2 now, or when there is room."""
        if self.is_kept:
            self._deliver_kept(frames, subscription, policy, sender)
            return
        if self.connection is None:
            return
        used = 0
        if not self._waiting:
            used = self._send(frames, subscription, policy, sender)
        if used < len(frames):
            self._wait(memoryview(frames)[used:], subscription)
            flow = self.home.node.flow
            if self.connection.outgoing > flow.limit:
                now = self.home.node.vitals.now
                flow.overflowed(self.connection, sender or flow.reading, policy, now)

    def _wait(self, frames: bytes | memoryview, subscription: int) -> None:
        """Keep publishes in memory until there is room."""
        if subscription:
            frames = personal(frames, 0, len(frames), subscription=subscription)[0]
        self._waiting.append((bytes(frames), self.home.node.vitals.now))
        self._hold(len(frames) + OVERHEAD)

    def _hold(self, size: int) -> None:
        """Count bytes that wait for acknowledgements among those of all outboxes."""
        budget = self.home.node.flow.budget
        self.waiting_bytes += size
        budget.add(size)
        if self.waiting_bytes:
            budget.holders[self] = None
        else:
            budget.holders.pop(self, None)

    # As a holder of the budget of all outboxes

    @property
    def buffered(self) -> int:
        """The bytes that wait for acknowledgements."""
        return self.waiting_bytes

    def abort(self) -> None:
        """Disconnect the client, since all outboxes together hold too much."""
        if (connection := self.connection) is not None:
            reason = "all outboxes together hold too much (flow.total)"
            self.home.node.flow.disconnect(connection, self.waiting_bytes, reason)

    def _send(
        self,
        frames: bytes | memoryview,
        subscription: int = 0,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> int:
        """Send publishes of a conversation that is not kept; return how many bytes were used."""
        assert self.connection is not None
        first, room = self._free(min(self.room, numbered(frames)))
        made, used, given, left_out = personal(
            frames, first, room, subscription=subscription, most=self.most_packet
        )
        if left_out:
            self.home.node.vitals.count_dropped("too_large", left_out)
        for at in range(first, first + given):
            self.in_flight[at] = 0
        self._identifier = first + given if first + given < IDENTIFIERS else 1
        if made:
            self.connection.write(made, policy, sender)
        return used

    def _free(self, count: int) -> tuple[int, int]:
        """Return the first of up to `count` identifiers in a row that are free, and how many."""
        first = self._identifier
        if first + count > IDENTIFIERS:
            count = IDENTIFIERS - first
        wanted = range(first, first + count)
        if self.in_flight.keys().isdisjoint(wanted) and self.released.keys().isdisjoint(wanted):
            return first, count
        for k in wanted:
            if k in self.in_flight or k in self.released:
                return first, k - first
        return first, count

    def _deliver_kept(
        self,
        frames: bytes | memoryview,
        subscription: int,
        policy: Policy,
        sender: Endpoint | None,
    ) -> None:
        """Put what has QoS 1 and 2 into the queue, and send it if nothing waits before it."""
        if subscription:
            frames = personal(frames, 0, len(frames), subscription=subscription)[0]
        packets = Packets(frames)
        if packets.others and self.connection is not None:
            self._pass_on(packets.others, policy, sender)
        count = packets.count
        if not count:
            return
        node = self.home.node
        if node.engine.trouble:
            node.vitals.count_dropped("unkept", count)
            return
        most = node.quotas.session_messages
        waiting = len(node.engine.references(self.queue))
        if waiting + count > most:
            node.vitals.count_dropped("session_messages", count)
            return
        sizes = packets.sizes(OVERHEAD)
        if not self._has_room(sum(sizes), node.quotas.session_bytes):
            node.vitals.count_dropped("session_bytes", count)
            return
        begin = self._sequence
        self._sequence += count
        table = FrameTable(count)
        packets.fill(table, self.queue.encode())
        timestamp = node.vitals.timestamp(node.vitals.now)
        node.engine.put_rows(self.queue, table, begin, timestamp, sizes, captured=False)
        if self.connection is not None and self._promised == begin:
            # Sent when it is durable: else a broker that is killed could send it under another
            # identifier later, and QoS 2 would come twice.
            self._promised += count
            connection = self.connection
            node.engine.after(lambda: self._send_durable(packets, begin, connection))

    def _has_room(self, size: int, most: int) -> bool:
        """Do so many bytes more fit into the queue? They are added up only if they may not."""
        self._most_bytes += size
        if self._most_bytes > most:
            self._most_bytes = self.home.node.engine.references(self.queue).bytes + size
        if self._most_bytes > most:
            self._most_bytes -= size
            return False
        return True

    def _send_durable(self, packets: Packets, begin: int, connection: MqttSession) -> None:
        """Send what was put into the queue, if the client is still there and all before it went."""
        if self.connection is not connection or connection.closed or self._following != begin:
            self._go_on()
            return
        if self.most_packet and max(packets.sizes(0)) > self.most_packet:
            self._go_on()  # leaves out what is too large
            return
        count = min(packets.count, self.room)
        if count and self.has_room():
            self._send_kept(packets.first(count), begin, count)

    def _pass_on(self, frames: bytes, policy: Policy, sender: Endpoint | None) -> None:
        assert self.connection is not None
        dialect = self.connection.dialect
        made: bytes | memoryview = frames
        if dialect != FIVE:
            made = self.home.translated(frames, dialect, "0r")
        elif self.most_packet:
            made, _, _, left_out = personal(frames, 0, 0, most=self.most_packet)
            self.home.node.vitals.count_dropped("too_large", left_out)
        self.connection.write(made, policy, sender)

    def _send_kept(
        self,
        frames: bytes | memoryview,
        begin: int,
        count: int,
        *,
        mark: int = 0,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send messages of the queue, whose sequences begin here."""
        assert self.connection is not None
        dialect = self.connection.dialect
        if dialect != FIVE:
            frames = self.home.translated(frames, dialect, "2r")
        at = 0
        while count:
            first = identifier_of(begin)
            run = min(count, IDENTIFIERS - first)
            made, used, given, _ = personal(memoryview(frames)[at:], first, run, mark=mark)
            self.in_flight.update(zip(range(first, first + given), count_from(begin), strict=False))
            at += used
            begin += given
            count = count - given if given else 0
            self.connection.write(made, policy, sender)
        self._following = begin

    def is_own(self, sender: Endpoint | None) -> bool:
        """Return whether this client published something itself, or left it as its will."""
        return sender is not None and sender.client_id == self.client_id

    def _go_on(self) -> None:
        """Send what waits, as far as there is room."""
        if self.connection is None:
            return
        if not self.is_kept:
            before = self.waiting_bytes
            self._send_waiting()
            flow = self.home.node.flow
            if self.waiting_bytes < before and self.connection.outgoing <= flow.limit // 2:
                flow.drained(self.connection, self.home.node.vitals.now)
            return
        engine = self.home.node.engine
        while self.room and self._following < self._sequence and self.has_room():
            first = engine.references(self.queue).next_from(self._following)
            if first is None:
                self._following = self._sequence
                return
            if not engine.is_durable(self.queue, first.sequence, 1):
                if not self._asked:
                    self._asked = True
                    engine.after(self._continue)
                return
            self._following = first.sequence
            if not self._send_stored():
                return

    def _send_waiting(self) -> None:
        """Send what waits in memory, as far as there is room."""
        while self._waiting and self.room:
            frames, since = self._waiting.popleft()
            self._hold(-len(frames) - OVERHEAD)
            frames, since = self._unexpired(frames, since)
            used = self._send(frames)
            self.moved += used
            if used < len(frames):
                rest = memoryview(frames)[used:]
                self._waiting.appendleft((rest, since))
                self._hold(len(rest) + OVERHEAD)
                if used == 0:
                    return

    def _continue(self) -> None:
        self._asked = False
        self._go_on()

    def _unexpired(
        self, frames: bytes | memoryview, since: float
    ) -> tuple[bytes | memoryview, float]:
        """Return frames that have waited without those that expired, and from when they count."""
        now = self.home.node.vitals.now
        if now - since < 1 or self.connection is None or self.connection.dialect != FIVE:
            return frames, since
        view = memoryview(frames)
        places = divide(view)
        kept = [
            self.home.aged(bytes(view[begin:end]), now - since) for begin, end in pairwise(places)
        ]
        if expired := kept.count(b""):
            self.home.node.vitals.count_dropped("expired", expired)
        return b"".join(kept), now

    def _send_stored(self) -> bool:
        """Read messages of the queue and send them; return whether there were any."""
        node = self.home.node
        now = node.vitals.now + node.vitals.epoch
        most = min(self.room, READ_MESSAGES)
        found = list(node.engine.contents(self.queue, self._following, most, READ_BYTES))
        before = self._following
        for begin, table, times in sorted(found, key=lambda one: one[0]):
            for row in range(table.count):
                sequence = begin + row
                packet = self.home.aged(bytes(table.payload(row)), now - times[row] / 1e6)
                if packet and (not self.most_packet or len(packet) <= self.most_packet):
                    mark = AGAIN if sequence < self._untold else 0
                    self._send_kept(packet, sequence, 1, mark=mark)
                else:
                    node.vitals.count_dropped("expired" if not packet else "too_large")
                    node.engine.drop(self.queue, sequence)
                    self._following = sequence + 1
        return self._following > before

    # What the client acknowledges

    def acknowledged(self, identifiers: list[int]) -> None:
        """The client has messages of QoS 1, or refused some of QoS 2: they are done."""
        for identifier in identifiers:
            sequence = self.in_flight.pop(identifier, 0)
            if sequence:
                self.home.node.engine.drop(self.queue, sequence)
        self._go_on()

    def has_sent(self, identifiers: list[int]) -> bool:
        """Return whether messages with all of these identifiers were sent and are not done."""
        unknown = set(identifiers) - self.in_flight.keys()
        return not unknown or unknown <= self.released.keys()

    def release(self, identifiers: list[int]) -> None:
        """The client has messages of QoS 2; once that is durable it may forget their identifiers.

        Were it told before, a broker that is killed could send them again as new ones.
        """
        for identifier in identifiers:
            sequence = self.in_flight.pop(identifier, 0)
            if sequence:
                self.home.node.engine.drop(self.queue, sequence)
            self.released[identifier] = None
        self.save()

    def completed(self, identifiers: list[int]) -> None:
        """The client has forgotten the identifiers of messages of QoS 2."""
        for identifier in identifiers:
            self.released.pop(identifier, None)
        self._go_on()


class Conversations:
    """All conversations of a broker, its retained messages and shares."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.rights = node.clients.rights_of_strangers
        self.table = FrameTable(1)
        self.receivers = 0  # made so far
        self.retained = RetainedMessages(node)
        self.shares: dict[str, Share] = {}
        self._talks: dict[str, Conversation] = {}
        self._revisions: dict[str, int] = {}
        self.lasting: set[Conversation] = set()
        self.will_bytes = 0
        #: Conversations that have something to send as soon as their outboxes have room.
        self.held: set[Conversation] = set()
        self._room = FrameTable(4096)
        self._encoders: dict[tuple[str, str], MqttEncoder] = {}
        self._ticked = 0.0
        #: Wills of clients whose conversation is over, and that are to be published now.
        self._left_wills: list[Conversation] = []
        node.clients.keepers.append(self.owner_of)
        #: Of retained messages on other nodes, for a filter of a client.
        self._searches: dict[tuple[Conversation, str], _Search] = {}
        self._take_up(node.engine.entries())

    def _take_up(self, found: Iterable[tuple[int, Entry]]) -> None:
        """Take up what was kept, of all entries of some partitions."""
        engine = self.node.engine
        entries = [
            (partition, entry)
            for partition, entry in found
            if entry.key.startswith(QUEUE) and entry.value is not None
        ]
        if not engine.is_shared:
            entries = self._put_in_place(entries)
        self.retained.load(entry for _, entry in entries)
        loads = {SESSION: self._load, ONCE: self._load_received, WILL: self._load_will}
        for prefix, load in loads.items():  # conversations first
            for partition, entry in entries:
                if entry.key.startswith(prefix):
                    try:
                        load(entry, partition)
                    except msgspec.MsgspecError as error:
                        engine.set_aside(f"the entry {entry.key}", entry.value or b"", error)
                        engine.drop_entry(entry.key, partition)

    def _put_in_place(self, entries: list[tuple[int, Entry]]) -> list[tuple[int, Entry]]:
        """Move entries that an older version wrote elsewhere; return all as they are then."""
        engine, placed = self.node.engine, []
        in_place = {entry.key for where, entry in entries if where == engine.home(entry.key)}
        for partition, entry in entries:
            home = engine.home(entry.key)
            if entry.key.startswith(ONCE) or partition == home:
                placed.append((partition, entry))
                continue
            engine.drop_entry(entry.key, partition)
            if entry.key not in in_place:
                engine.write_entry(entry)
                placed.append((home, entry))
        return placed

    def adopt(self, partition: int) -> None:
        """Take up the conversations, wills and retained messages of a partition."""
        self._take_up(self.node.engine.entries(partition))

    def lose(self, partition: int) -> None:
        """Let go of what another node has from now on; its clients are disconnected."""
        self.retained.lose(partition)
        home = self.node.engine.home
        self._left_wills = [one for one in self._left_wills if home(one.queue) != partition]
        for talk in list(self._talks.values()):
            if (talk.is_kept or talk.will is not None) and home(talk.queue) == partition:
                del self._talks[talk.client_id]
                self._revisions.pop(talk.client_id, None)
                talk.lose(self.node.vitals.now)

    def _load(self, entry: Entry, partition: int) -> None:
        client_id = entry.key.removeprefix(SESSION)
        kept = msgspec.json.decode(entry.value or b"", type=_Kept)
        self._revisions[client_id] = entry.revision
        if kept.lasts == 0:
            kept.lasts = float("inf")
        talk = self._talks[client_id] = Conversation(self, client_id, kept.owner)
        talk.load(kept)
        # Where they were kept before they had keys of their own.
        talk.load_received(partition, 0, kept.received)

    def _load_received(self, entry: Entry, partition: int) -> None:
        talk = self._talks.get(entry.key.removeprefix(ONCE))
        if talk is None:  # it ended, and a power failure has kept this
            self.node.engine.drop_entry(entry.key, partition)
            return
        identifiers = msgspec.json.decode(entry.value or b"", type=list[int])
        talk.load_received(partition, entry.revision, identifiers)

    def _load_will(self, entry: Entry, partition: int) -> None:
        """Take up the will of a client whose connection ended with the broker that was killed."""
        client_id = entry.key.removeprefix(WILL)
        kept = msgspec.json.decode(entry.value or b"", type=_Will)
        talk = self._talks.get(client_id)
        if talk is None:
            talk = Conversation(self, client_id, kept.owner)
            self._left_wills.append(talk)
        talk.take_will(kept.packet, self.node.vitals.now)

    def __len__(self) -> int:
        """The conversations that last."""
        return len(self.lasting)

    def find(self, client_id: str) -> Conversation | None:
        """Return the conversation with a client, None where there is none."""
        return self._talks.get(client_id)

    def begin(self, client_id: str, owner: str) -> Conversation:
        """Begin a conversation with a client that has none."""
        talk = self._talks[client_id] = Conversation(self, client_id, owner)
        return talk

    def check_kept(self) -> None:
        """Raise RefusedError where no more conversations may last."""
        self.node.quotas.check_all("sessions", len(self))
        if self.node.engine.trouble:
            raise self.node.capture.refusal()

    def check_will(self, will: bytes) -> None:
        """Raise RefusedError where there is no room for one more will."""
        self.node.quotas.check_room("will_bytes", self.will_bytes, len(will), "wills have")

    def owner_of(self, client_id: str) -> str:
        """Return the owner of the conversation that lasts with a client, "" where there is none."""
        talk = self._talks.get(client_id)
        return talk.owner if talk is not None and talk.is_kept else ""

    def rights_changed(self, now: float) -> None:
        """Unsubscribe clients that are away from what their tokens may not read any more."""
        for talk in [one for one in self.lasting if one.connection is None]:
            rights = self._rights_of(talk.owner)
            for filter in list(talk.filters):
                _, wanted = parse_share(filter)
                if rights is None or not rights.allows("subscribe", wanted):
                    talk.unsubscribe(filter, now)

    def forget(self, talk: Conversation) -> None:
        """A conversation is over."""
        if self._talks.get(talk.client_id) is talk:
            del self._talks[talk.client_id]
        if talk.is_kept:
            self.lasting.discard(talk)
            self._revisions.pop(talk.client_id, None)
            self.node.engine.drop_entry(SESSION + talk.client_id)
            talk.forget_received(list(talk.received))
            self.node.engine.remove(talk.queue)

    def write(self, client_id: str, value: bytes) -> None:
        """Keep what is known of a conversation."""
        revision = self._revisions[client_id] = self._revisions.get(client_id, 0) + 1
        self.node.engine.write_entry(Entry(SESSION + client_id, revision, value))

    def tick(self, now: float) -> None:
        """End what has lasted long enough, and publish the wills that waited."""
        if now - self._ticked < 0.2:
            return
        self._ticked = now
        for one in list(self._searches.values()):
            self._go_on(one)
        for talk in list(self.held):
            talk.pump()
        left, self._left_wills = self._left_wills, []
        for talk in left:
            self.publish_will(talk, now)
        for talk in [one for one in self._talks.values() if one.will_at or one.ends]:
            if talk.will_at and (now >= talk.will_at or (talk.ends and now >= talk.ends)):
                self.publish_will(talk, now)
            if talk.ends and now >= talk.ends:
                talk.end(now)

    def publish_will(self, talk: Conversation, now: float, session: Endpoint | None = None) -> None:
        """Publish the will of a client that is gone, if its token still may.

        It waits until somebody owns its topic.
        """
        if talk.will is not None and not self._can_reach(topic_of(talk.will)):
            left = talk
            if self.find(talk.client_id) is talk:  # which goes on without it, or ends
                left = Conversation(self, talk.client_id, talk.owner)
                left.will, left.will_rights = talk.will, talk.will_rights
                talk.will, talk.will_at = None, 0.0
            self._left_wills.append(left)
            return
        will = talk.drop_will()
        if will is None:
            return
        had = session.rights if session is not None else talk.will_rights
        rights = self.node.clients.current_rights(had) if had else self._rights_of(talk.owner)
        if rights is None:  # its token is gone
            self.node.vitals.count_refused("unauthorized")
            return
        if session is None or session.rights is not rights:
            session = Receiver(talk, Options())
            session.rights = rights
        table = FrameTable(1)
        MqttScanner(FIVE, self.node.limits).scan(will[4:], table)  # behind its delay
        self.publish(session, table, 0, now, asks=False)

    def _can_reach(self, topic: str) -> bool:
        """Return whether what is published to a topic now reaches its owner."""
        owners = self.node.owners
        return owners is None or owners.can_reach(self.node.engine.home(topic))

    def _rights_of(self, owner: str) -> Rights | None:
        """Return the rights of a token entry, None where it is gone."""
        clients = self.node.clients
        every = (clients.rights_of_strangers, *clients.all_rights)
        return next((one for one in every if clients.owner_of(one) == owner), None)

    def publish(
        self, session: Endpoint, table: FrameTable, row: int, now: float, *, asks: bool = True
    ) -> None:
        """Publish one row that may be retained; raises RefusedError where that is not possible."""
        headers = table.headers(row)
        if not asks:
            table.flags[row] &= ~1
        topic = table.address(row).decode()
        if headers.get("mqtt.retain") == "1" and not self.node.topics.is_elsewhere(topic):
            try:
                self.node.topics.check_publish(session, topic)
                if table.payload_len[row]:
                    packet = bytes(self._encoder(FIVE, "2r").encode(table, range(row, row + 1)))
                    self.retained.check(topic, len(packet))
                    self.retained.keep(topic, packet, table.ttl[row] / 1000)
                else:
                    self.retained.forget(topic)
            except RefusedError as error:
                self.node.vitals.count_refused(error.code)
                if asks:
                    session.refuse(table.message(row), error)
                return
        self.node.router.publish(session, table, row, row + 1, now)

    # In a cluster

    def publish_rows(self, sender: Endpoint, table: FrameTable, now: float) -> bool:
        """Publish rows that another node has forwarded, and retain those that ask for it.

        Returns False where none does: then nothing was done.
        """
        if not all_flags(table, 0, table.count) & RETAIN:
            return False
        start = 0
        for row in range(table.count):
            if table.flags[row] & RETAIN:
                if start < row:
                    self.node.router.publish(sender, table, start, row, now)
                self.publish(sender, table, row, now, asks=bool(table.flags[row] & Flag.ACK))
                start = row + 1
        if start < table.count:
            self.node.router.publish(sender, table, start, table.count, now)
        return True

    def is_foreign(self, address: str) -> bool:
        """Return whether another node has to say what an address is."""
        owners = self.node.owners
        if owners is None or has_wildcard(address) or address.startswith("$"):
            return False
        return owners.owner_of(self.node.engine.home(address)) != owners.me

    def ask_kind(self, address: str, told: Callable[[Kind | None], object]) -> None:
        """Ask the owner of an address what it is; `told` gets None where there is no answer."""
        owners = self.node.owners
        assert owners is not None
        owner = owners.owner_of(self.node.engine.home(address))

        def answer(data: bytes | None) -> None:
            told(msgspec.msgpack.decode(data, type=Kind) if data is not None else None)

        try:
            owners.ask(owner, "mqtt", msgspec.msgpack.encode(_WhatIs(address)), answer)
        except RefusedError:
            told(None)

    def search(self, talk: Conversation, filter: str, options: Options) -> None:
        """Send a client what is retained for a filter, on whatever nodes that is."""
        engine = self.node.engine
        partitions = range(engine.all_partitions)
        homes = frozenset(partitions if has_wildcard(filter) else (engine.home(filter),))
        one = _Search(talk, filter, options, [_Part(homes)])
        self._searches[talk, filter] = one
        self._go_on(one)

    def _go_on(self, search: _Search) -> None:
        """Ask the owners that were not asked, or that did not answer, as far as there is room."""
        owners, talk = self.node.owners, search.talk
        known = talk.filters.get(search.filter)
        is_wanted = known is not None and known[0] == search.options and not talk.is_over
        if owners is None or not is_wanted or not (talk.connection or talk.is_kept):
            search.parts.clear()
        has_found = True
        while has_found:
            has_found = False
            for part in [one for one in search.parts if not one.is_asked]:
                shares: dict[str, set[int]] = {}
                for partition in part.partitions:
                    assert owners is not None
                    shares.setdefault(owners.owner_of(partition), set()).add(partition)
                search.parts.remove(part)
                for owner, share in shares.items():
                    has_found |= self._ask(search, _Part(frozenset(share), part.after), owner)
        if not search.parts and self._searches.get((talk, search.filter)) is search:
            del self._searches[talk, search.filter]

    def _ask(self, search: _Search, part: _Part, owner: str) -> bool:
        """Let one owner answer a part of a search; return whether it has, as this node does."""
        owners, connection = self.node.owners, search.talk.connection
        assert owners is not None
        search.parts.append(part)
        has_room = connection is None or connection.outgoing <= self.node.flow.limit // 2
        has_room = has_room and not search.talk.has_found
        if not owner or not has_room:
            return False  # tried again with the next tick
        question = _Question(search.filter, sorted(part.partitions), part.after)
        asked = msgspec.msgpack.encode(question)
        if owner == owners.me:
            self._found(search, part, self.answer(asked))
            return True
        part.is_asked = True
        try:
            owners.ask(owner, "mqtt", asked, lambda told: self._told(search, part, told))
        except RefusedError:
            part.is_asked = False
        return False

    def _told(self, search: _Search, part: _Part, told: bytes | None) -> None:
        """An owner has answered, or is lost; then its successor is asked."""
        part.is_asked = False
        if told is not None and self._searches.get((search.talk, search.filter)) is search:
            self._found(search, part, told)
            self._go_on(search)

    def _found(self, search: _Search, part: _Part, told: bytes) -> None:
        """Send what an owner has found, and note what is still to be asked for."""
        answer = msgspec.msgpack.decode(told, type=_Answer)
        search.parts.remove(part)
        missing = part.partitions.difference(answer.partitions)
        if missing:  # they have another owner now
            search.parts.append(_Part(missing, part.after))
        if answer.after:
            search.parts.append(_Part(frozenset(answer.partitions), answer.after))
        known = search.talk.filters.get(search.filter)
        if known is not None and known[0] == search.options:
            found = [Retained(*one) for one in answer.found]
            search.talk.send_found(known[1].write_retained(found))

    def answer(self, question: bytes) -> bytes:
        """Tell another node what is retained here for a filter, or what an address is."""
        asked = msgspec.msgpack.decode(question, type=_Question | _WhatIs)
        owners = self.node.owners
        if isinstance(asked, _WhatIs):
            is_queue = asked.address in self.node.queues
            return msgspec.msgpack.encode(Kind(is_queue, asked.address in self.node.services))
        here = [one for one in asked.partitions if owners and owners.owner_of(one) == owners.me]
        found, after = self.retained.page(asked.filter, here, asked.after, PAGE)
        told = [(one.packet, one.since, one.expires) for one in found]
        return msgspec.msgpack.encode(_Answer(here, told, after))

    # Packets

    def translated(
        self, frames: bytes | memoryview, dialect: str, variant: str, since: float = 0.0
    ) -> bytes:
        """Return packets of MQTT 5 in another form; `since` is when they came, 0: now."""
        scanner = self._scanner()
        encode = self._encoder(dialect, variant)
        now = self.node.vitals.now + self.node.vitals.epoch
        made = []
        at, view = 0, memoryview(frames)
        while at < len(view):
            used = scanner.scan(view[at:], self._room)
            if since:
                self._age(self._room, now - since)
            made.append(bytes(encode.encode(self._room)))
            at += used
        self._room.release()
        return b"".join(made)

    def aged(self, packet: bytes, waited: float) -> bytes:
        """Return a packet with what is left of its time to live, empty where nothing is."""
        self._scanner().scan(packet, self._room)
        if not self._room.ttl[0]:
            self._room.release()
            return packet
        if waited * 1000 >= self._room.ttl[0]:
            self._room.release()
            return b""
        self._age(self._room, waited)
        made = bytes(self._encoder(FIVE, "2r").encode(self._room))
        self._room.release()
        return made

    def _age(self, table: FrameTable, waited: float) -> None:
        for row in range(table.count):
            if table.ttl[row]:
                table.ttl[row] = max(1, table.ttl[row] - int(waited * 1000))

    def _scanner(self) -> MqttScanner:
        scanner = MqttScanner(FIVE, self.node.limits)
        scanner.allows_zero = True
        return scanner

    def _encoder(self, dialect: str, variant: str) -> MqttEncoder:
        encode = self._encoders.get((dialect, variant))
        if encode is None:
            encode = self._encoders[dialect, variant] = MqttEncoder(dialect, False)
            encode.set_variant(variant)
            encode.tells_subscriptions = True
        return encode


OFFLINE = Offline()


def identifier_of(sequence: int) -> int:
    """Return the packet identifier of a message of a queue."""
    return sequence % (IDENTIFIERS - 1) + 1


def topic_of(will: bytes) -> str:
    """Return the topic that a will is published to."""
    at = 5  # behind the delay and the first byte
    while will[at] & 128:
        at += 1
    size = int.from_bytes(will[at + 1 : at + 3], "big")
    return will[at + 3 : at + 3 + size].decode()


def delay_of(will: bytes) -> int:
    """Return the delay of a will in seconds."""
    return int.from_bytes(will[:4], "big")


def parse_share(filter: str) -> tuple[str, str]:
    """Return the group of a shared subscription, empty for others, and the filter itself.

    Raises RefusedError (`bad_request`) where it is neither.
    """
    if not filter.startswith(SHARE):
        return "", filter
    group, _, wanted = filter.removeprefix(SHARE).partition("/")
    if not group or not wanted or "+" in group or "#" in group:
        raise RefusedError("bad_request", f"a shared subscription is {SHARE}group/filter: {filter}")
    return group, check_filter(wanted)
