"""Who subscribes to what, and who gets what is published to an address.

An *audience* is all that happens to messages of an address: the endpoints that get them, whether
they are captured, or the queue that keeps them, or why they are refused. It is worked out once per
address and rights; `route.Routes` then finds its number by the address's bytes. Addresses with
equal audiences share one. A subscription that comes or goes makes the routes invalid that it
matches, and they are worked out again when they are next used.
"""

from __future__ import annotations

import secrets
from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from wirelake.address import check_filter, check_topic, has_wildcard
from wirelake.broker.capture import Capture
from wirelake.broker.endpoint import Endpoint, Policy
from wirelake.broker.flow import Flow
from wirelake.broker.quotas import Quotas
from wirelake.broker.rights import Rights, all_rights
from wirelake.broker.route import Changed, Routes
from wirelake.broker.subscriptions import FilterIndex
from wirelake.broker.vitals import EVENTS, Vitals
from wirelake.errors import RefusedError
from wirelake.message import Message
from wirelake.wire import FrameTable

#: The routes of one token are forgotten beyond this number: anybody can make up new addresses.
MAX_ROUTES = 200_000
#: Audiences that no route has are looked for when all of them have this many members, or twice as
#: many as were left the last time.
MANY_MEMBERS = 100_000
#: A session that ends has this many filters removed at once, and as many more with every tick.
REMOVED_AT_ONCE = 500


class Inbox(Protocol):
    """A queue, as far as publishing and subscribing need it."""

    def take(self, session: Endpoint, message: Message, now: float) -> None:
        """Keep a message that a session sent; raises RefusedError."""

    def take_rows(
        self, session: Endpoint, table: FrameTable, rows: Sequence[int], now: float
    ) -> Iterator[tuple[int, RefusedError]]:
        """Keep rows that a session sent; yield those that are refused, and why."""

    def consume(self, session: Endpoint, prefetch: int, now: float) -> None:
        """Let a session have messages as they come."""

    def cancel(self, session: Endpoint, now: float) -> None:
        """Give a session no more messages."""


class Inboxes(Protocol):
    """The addresses that are queues."""

    def __contains__(self, address: str) -> bool: ...

    def open(self, address: str) -> Inbox:
        """Return the queue of an address that is one."""


class Way(Protocol):
    """The way to the owner of an address that is another node."""

    def forward(
        self, session: Endpoint, table: FrameTable, rows: range | array[int], now: float
    ) -> None:
        """Send rows that a session published to the owner, and answer the session."""


class Elsewhere(Protocol):
    """The other nodes of a cluster, as far as topics need them."""

    def way(self, address: str) -> Way | None:
        """Return the way to the owner of an address, None where that is this node."""

    def added(self, filter: str) -> int:
        """A client subscribes; return the registration that its answer waits for, or 0."""

    def removed(self, filter: str) -> None:
        """A client does not subscribe any more."""

    def after(self, registration: int, action: Callable[[], object]) -> bool:
        """Run an action when a registration is confirmed; return False where it is already."""


#: The rights of a node that publishes for its clients; the node has checked theirs.
FORWARDED = all_rights("a node, for its clients")
#: The rights of an owner that delivers: what it sends is for the clients of this node alone.
DELIVERED = all_rights("the owner of a partition")

_Key: TypeAlias = "tuple[tuple[Endpoint, ...], Policy, str | None, Inbox | None, bool, Way | None]"


@dataclass(eq=False, slots=True)
class Audience:
    """What becomes of messages to an address."""

    number: int
    members: tuple[Endpoint, ...] = ()
    forms: dict[str, list[Endpoint]] = field(default_factory=dict)  # the members by their form
    policy: Policy = "disconnect"
    refusal: RefusedError | None = None
    inbox: Inbox | None = None
    captured: bool = False
    way: Way | None = None  # to the owner, where that is another node
    key: _Key | None = None  # what tells it from all other audiences


#: Stands in the place of an audience that was dropped.
_NOBODY = Audience(-1)


class Topics:
    """The subscriptions, and the audience of each address."""

    #: Set by whoever keeps queues, before anything is published.
    inboxes: Inboxes
    #: Set where this node is one of a cluster.
    elsewhere: Elsewhere | None = None

    def __init__(self, vitals: Vitals, quotas: Quotas, flow: Flow, capture: Capture) -> None:
        self._vitals = vitals
        self._quotas = quotas
        self._flow = flow
        self._capture = capture
        self._subscriptions: FilterIndex[Endpoint] = FilterIndex()
        self._routes: dict[Rights, Routes] = {}
        self._changed = Changed()
        self.audiences: list[Audience] = []  # by number
        self._numbers: dict[_Key, int] = {}
        self._free_numbers: list[int] = []
        self._audiences_of: defaultdict[Endpoint, set[Audience]] = defaultdict(set)
        self._members = 0  # of all audiences
        self._many_members = MANY_MEMBERS
        self._leaving: deque[tuple[Endpoint, list[str]]] = deque()
        vitals.publish_event = self._push

    def __len__(self) -> int:
        """The subscriptions of all sessions."""
        return len(self._subscriptions)

    # Subscriptions

    def subscribe(self, session: Endpoint, filter: str, now: float, prefetch: int = 0) -> None:
        """Let a session have what is published to a filter's addresses from now on.

        Where the filter is the address of a queue, the session consumes it, `prefetch` messages at
        a time. Raises RefusedError where rights or quotas do not allow it.
        """
        self.check_subscription(session, filter)
        if filter in self.inboxes:
            self.check_quota(session, filter)
            session.consumes[filter] = None
            self.inboxes.open(filter).consume(session, prefetch, now)
            return
        if filter not in session.filters:
            self.check_quota(session, filter)
            if has_wildcard(filter):
                self._quotas.check_one("wildcards", session.wildcards)
                session.wildcards += 1
            session.filters[filter] = None
            self._add(filter, session)

    def check_subscription(self, session: Endpoint, filter: str) -> None:
        """Raise RefusedError where a filter is none, or a session may not subscribe to it."""
        check_filter(filter)
        if not session.rights.allows("subscribe", filter):
            raise RefusedError("unauthorized", f"no right to subscribe to {filter}")
        if filter == EVENTS and not session.rights.admin:
            raise RefusedError("unauthorized", f"{EVENTS} is for operators")

    def add(self, receiver: Endpoint, filter: str) -> None:
        """Let an endpoint have what is published to a filter that its client may subscribe to.

        The caller has checked rights and quotas of the client, which may have many endpoints.
        """
        if filter not in receiver.filters:
            receiver.wildcards += has_wildcard(filter)
            receiver.filters[filter] = None
            self._add(filter, receiver)

    def check_quota(self, session: Endpoint, filter: str) -> None:
        """Raise RefusedError where a session may not subscribe to one more filter or queue."""
        self._quotas.check_levels(filter)
        if filter not in session.consumes:
            mine = len(session.filters) + len(session.consumes)
            self._quotas.check("subscriptions", mine, len(self._subscriptions))

    def unsubscribe(self, session: Endpoint, filter: str, now: float) -> None:
        """Remove a subscription, or all of them where the filter is empty.

        Raises RefusedError (`not_found`) where there is no such subscription.
        """
        for name in [filter] if filter else list(session.consumes):
            if name in session.consumes and name in self.inboxes:
                del session.consumes[name]
                self.inboxes.open(name).cancel(session, now)
                if filter:
                    return
        for one in [filter] if filter else list(session.filters):
            if session.filters.pop(one, 0) == 0:
                raise RefusedError("not_found", f"no subscription to {one}")
            session.wildcards -= has_wildcard(one)
            self._remove(one, session)

    def subscribe_node(self, node: Endpoint, filter: str) -> None:
        """Let another node have what is published to a filter's addresses.

        That node has checked the rights and quotas of its clients.
        """
        if filter not in node.filters:
            node.filters[filter] = None
            self._add(filter, node)

    def unsubscribe_node(self, node: Endpoint, filter: str) -> None:
        """Remove a subscription of another node, if there is one."""
        if node.filters.pop(filter, 0) is None:
            self._remove(filter, node)

    def _add(self, filter: str, session: Endpoint) -> None:
        self._subscriptions.add(filter, session)
        self.forget(filter)
        if self.elsewhere is not None and not session.is_node:
            session.registration = self.elsewhere.added(filter)

    def _remove(self, filter: str, session: Endpoint) -> None:
        self._subscriptions.remove(filter, session)
        self.forget(filter)
        if self.elsewhere is not None and not session.is_node:
            self.elsewhere.removed(filter)

    def subscribers(self, address: str) -> list[Endpoint]:
        """Return those who get what is published to a topic, without those who only observe."""
        found = self._subscriptions.match(address)
        return [session for session in found if not session.observes and not session.closed]

    def turn_into_queue(self, address: str, queue: Inbox) -> None:
        """Let those who subscribed to an address consume it, now that it is a queue."""
        self.forget(address)
        for session in self.subscribers(address):
            if address in session.filters and not session.is_node:  # a node consumes nothing
                del session.filters[address]
                self._remove(address, session)
                session.consumes[address] = None
                queue.consume(session, 0, self._vitals.now)

    def left(self, session: Endpoint) -> None:
        """A session has ended: it subscribes to nothing any more."""
        self._leaving.append((session, list(session.filters)))
        session.filters.clear()
        self._remove_filters()

    def tick(self) -> None:
        """Go on removing the filters of sessions that have ended."""
        self._remove_filters()

    def _remove_filters(self) -> None:
        """Remove some filters of the sessions that have ended; these get nothing already.

        Removing thousands of filters at once would keep everybody else waiting.
        """
        left = REMOVED_AT_ONCE
        while self._leaving and left:
            session, filters = self._leaving[0]
            if not filters:
                self._leaving.popleft()
                for audience in list(self._audiences_of.get(session, ())):
                    self._drop(audience)
                continue
            left -= 1
            self._remove(filters.pop(), session)

    def _push(self, event: Message) -> None:
        """Send an event to those who subscribe to its address; nobody waits for them."""
        for session in self._subscriptions.match(event.address):
            self._flow.push(session, event, None, self._vitals.now)

    # Audiences

    def check_publish(self, session: Endpoint, address: str) -> None:
        """Raise RefusedError where a session may not publish to an address."""
        audience = self._audience_of(address, session.rights)
        if audience.refusal is not None:
            raise audience.refusal

    def reaches(self, session: Endpoint, address: str) -> bool:
        """Return whether anybody gets what a session publishes to an address."""
        audience = self._audience_of(address, session.rights)
        return bool(audience.members) or audience.inbox is not None or audience.way is not None

    def is_elsewhere(self, address: str) -> bool:
        """Return whether another node owns an address."""
        return self.elsewhere is not None and self.elsewhere.way(address) is not None

    def assign(self, rights: Rights, table: FrameTable, start: int, end: int) -> Routes:
        """Find the audiences of the rows [start, end) for a publisher of these rights.

        Returns the routes that know them, until they are asked for other rows: each is a number,
        the place of the audience in `audiences`.
        """
        routes = self._routes.get(rights)
        if routes is None:
            routes = self._routes[rights] = Routes(secrets.randbits(32))
        if len(routes) > MAX_ROUTES:
            routes.clear()
        if self._members > self._many_members:
            self._drop_unused()
        at = start
        while (at := routes.assign(table, at, end, self._changed)) < end:
            address = table.address(at)
            audience = self._audience_of(address.decode(), rights)
            routes.add(address, audience.number, self._changed)
        return routes

    def forget(self, filter: str) -> None:
        """Work the audiences of a filter's addresses out again, as a subscription changed."""
        if has_wildcard(filter):
            self._changed.note(filter.encode())
        else:
            address = filter.encode()
            for routes in self._routes.values():
                if len(routes):
                    routes.forget(address)

    def forget_all(self) -> None:
        """Work all audiences out again, as when rights or other settings change."""
        self._audiences_of.clear()
        self.audiences.clear()
        self._numbers.clear()
        self._free_numbers.clear()
        self._members = 0
        self._routes.clear()

    def _audience_of(self, address: str, rights: Rights) -> Audience:
        self._vitals.counters["routes_worked_out"] += 1
        self._vitals.work += 1
        try:
            check_topic(address)
            self._quotas.check_levels(address)
            if not rights.allows("publish", address):
                raise RefusedError("unauthorized", "no right to publish to this address")
        except RefusedError as refusal:
            return self._intern((), "disconnect", refusal)
        is_here = rights is DELIVERED
        if self.elsewhere is not None and not is_here and (way := self.elsewhere.way(address)):
            if rights is FORWARDED:  # it must not go round and round
                text = "the partition of this address has another owner now"
                return self._intern((), "disconnect", RefusedError("busy", text))
            return self._intern((), "disconnect", None, way=way)
        try:
            if not is_here:
                self._capture.check_here(address)
        except RefusedError as refusal:
            return self._intern((), "disconnect", refusal)
        if address in self.inboxes and not is_here:
            return self._intern((), "disconnect", None, self.inboxes.open(address))
        visited = self._subscriptions.visited
        members = tuple(
            one
            for one in self._subscriptions.match(address)
            if not one.closed and not (is_here and one.is_node)
        )
        self._vitals.work += (self._subscriptions.visited - visited + len(members)) // 32
        members = _once_each(members)
        captured = not is_here and self._capture.takes(address)
        return self._intern(members, self._flow.policy_of(address), None, None, captured)

    def _intern(
        self,
        members: tuple[Endpoint, ...],
        policy: Policy,
        refusal: RefusedError | None,
        inbox: Inbox | None = None,
        captured: bool = False,
        way: Way | None = None,
    ) -> Audience:
        """Return the audience that is like this; there is only one."""
        key = (members, policy, str(refusal) if refusal else None, inbox, captured, way)
        number = self._numbers.get(key)
        if number is not None:
            return self.audiences[number]
        audience = Audience(-1, members, {}, policy, refusal, inbox, captured, way, key)
        for member in members:
            audience.forms.setdefault(member.form, []).append(member)
            self._audiences_of[member].add(audience)
        self._members += len(members) + 1
        if self._free_numbers:
            audience.number = self._free_numbers.pop()
            self.audiences[audience.number] = audience
        else:
            audience.number = len(self.audiences)
            self.audiences.append(audience)
        self._numbers[key] = audience.number
        return audience

    def _drop(self, audience: Audience) -> None:
        """Forget an audience that no route has, or one whose routes will be worked out again."""
        for member in audience.members:
            theirs = self._audiences_of[member]
            theirs.discard(audience)
            if not theirs:
                del self._audiences_of[member]
        self._members -= len(audience.members) + 1
        assert audience.key is not None
        del self._numbers[audience.key]
        self.audiences[audience.number] = _NOBODY
        self._free_numbers.append(audience.number)

    def _drop_unused(self) -> None:
        """Forget the audiences that no route has, and the routes that nobody has used lately."""
        used = bytearray(len(self.audiences))
        for routes in self._routes.values():
            routes.keep_used(self._changed, used)
        for number, audience in enumerate(self.audiences):
            if not used[number] and audience is not _NOBODY:
                self._drop(audience)
        self._many_members = max(MANY_MEMBERS, 2 * self._members)


def _once_each(members: tuple[Endpoint, ...]) -> tuple[Endpoint, ...]:
    """Return the members with one endpoint for each client that has several."""
    clients: dict[object, list[Endpoint]] = {}
    for one in members:
        if one.belongs_to is not None:
            clients.setdefault(one.belongs_to, []).append(one)
    united = {each[0]: each[0].united(tuple(each)) for each in clients.values() if len(each) > 1}
    if not united:
        return members
    others = {one for each in clients.values() for one in each[1:]}
    return tuple(united.get(one, one) for one in members if one not in others)
