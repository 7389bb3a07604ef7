"""Topics of a cluster: what clients of one node publish reaches the subscribers of all of them.

Every address has a home partition, and every partition an owner. The node that a client is
connected to, its *edge*, checks rights and limits. Then the owner gets the rows, captures them, and
sends them to its own subscribers and to the edges that asked for them. So all subscribers of an
address see one order, the log's.

    publisher ─ edge ─ rows ─▶ owner ─ rows ─▶ edge ─ subscribers
                 ◀─ answers ──   └─ subscribers, log

- **Rows** travel packed (`wire.rows`), as many as one read gave. Nothing is made per message.
- **Filters.** An edge registers an exact filter with the owner of its address, a wildcard with all
  nodes. A subscriber's answer waits until they have confirmed it.
- **Answers.** A publisher that asks is answered when the owner says so: durable, or refused. Where
  the link breaks or the partition moves, it is told `busy`: the message may or may not be there.
- **Flow.** A link between nodes is a subscriber like any other, whose outbox is the link's.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import msgspec

from wirelake.address import has_wildcard
from wirelake.broker.endpoint import Endpoint, Policy
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.broker.route import wanting_ack
from wirelake.broker.router import NODES
from wirelake.broker.topics import DELIVERED, FORWARDED
from wirelake.cluster.delegates import FROM_EDGE, FROM_OWNER, Delegates, Delegations
from wirelake.cluster.peers import PeerLink, Role
from wirelake.dialects import DIALECTS
from wirelake.errors import ProtocolError, RefusedError
from wirelake.journal.batch import home
from wirelake.message import Message
from wirelake.wire import FrameTable
from wirelake.wire.rows import VERSION as ROWS
from wirelake.wire.rows import count_rows, pack, unpack

log = logging.getLogger("wirelake.cluster")

#: Runs of one link that wait for their answers, at most.
MAX_RUNS = 10_000
#: Rows of one parcel, at most.
MAX_ROWS = 1 << 20
#: Filters that are registered in one parcel.
FILTERS = 1000

# What a parcel is, by its first byte; rows for subscribers begin with their own version.
_RUN = ord("P")
#: The second byte of a run of which somebody waits for all rows, whatever they ask for themselves.
_ALL = 2
_ANSWER = ord("A")
_FILTERS = ord("F")
_CONFIRMED = ord("C")


class _Filters(msgspec.Struct, frozen=True):
    number: int
    add: list[str] = []
    remove: list[str] = []


class _Answer(msgspec.Struct, frozen=True):
    """What became of a run: rows that were refused, by their place, and why."""

    number: int
    refused: list[tuple[int, str, str]] = []
    #: Rows that asked for no answer and were refused, and why the first was.
    unasked: int = 0
    code: str = ""
    text: str = ""
    #: Why nobody knows whether the run was kept.
    failed: str = ""


@dataclass(slots=True)
class _Run:
    """Rows that an owner has been sent, and who waits for the answer."""

    session: Endpoint
    rows: bytes | memoryview  # those that ask, without payloads
    places: list[int]
    count: int  # of all rows


@dataclass(slots=True)
class _Outcome:
    """What the broker decided about the rows of a run, at the owner."""

    refused: list[tuple[int, str, str]] = field(default_factory=list)
    unasked: int = 0
    first: RefusedError | None = None
    kept: bool = False


class _NodeEndpoint(Endpoint):
    """Another node, as this broker sees it."""

    takes_direct = False
    acknowledges = False
    is_node = True
    link: PeerLink

    def __init__(self, node: Node, link: PeerLink, rights: Rights) -> None:
        super().__init__(link, "node", FrameTable(1), rights, node.vitals.now)
        self.form = NODES
        self.name = link.peer
        self._node = node
        self.number = node.joined(self)

    @property
    def owner(self) -> str:
        """A node has no token."""
        return ""

    @property
    def outgoing(self) -> int:
        """The bytes that wait for this node."""
        return self.link.buffered

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Send a parcel; whoever fills the link's outbox waits for it."""
        self.link.write(data)
        flow = self._node.flow
        if self.link.buffered > flow.limit:
            flow.overflowed(self, sender or flow.reading, policy, self._node.vitals.now)

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Return False: single messages are for clients."""
        return False

    def send_all(self, messages: Iterable[Message | None]) -> None:
        """Nothing that a node asks for has a long answer."""
        raise TypeError("a node is answered by parcels")

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Rows are done."""

    def refuse(self, message: Message, error: RefusedError) -> None:
        """A row that asked for an answer is refused."""

    def authenticated(self) -> None:
        """A node is no stranger."""

    def close(self, reason: str) -> None:
        """End this link; a new one will open."""
        self.lost(reason)
        self.link.abort()

    def lost(self, reason: str) -> None:
        """The link has ended."""
        if not self.closed:
            self.closed = True
            self._node.left(self)


class Upstream(_NodeEndpoint):
    """An owner, at an edge: it is sent what clients publish, and delivers what they subscribe to.

    Its deliveries are taken however much waits for it: see `peers`.
    """

    waits_for_itself = False

    def __init__(self, node: Node, link: PeerLink) -> None:
        super().__init__(node, link, DELIVERED)
        self.runs: dict[int, _Run] = {}
        self.unconfirmed: set[int] = set()  # registrations of filters


class Downstream(_NodeEndpoint):
    """An edge, at an owner: it publishes for its clients, and subscribes for them."""

    def __init__(self, node: Node, link: PeerLink) -> None:
        super().__init__(node, link, FORWARDED)
        self.outcome = _Outcome()

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Rows of the run are done, once they are durable if they are kept."""
        self.outcome.kept = self.outcome.kept or kept

    def refuse(self, message: Message, error: RefusedError) -> None:
        """A row of the run that asked is refused; its ticket is its place in the run."""
        self.outcome.refused.append((message.ticket, error.code, error.text))

    def refuse_unasked(self, error: RefusedError, count: int) -> None:
        """Rows of the run that asked for nothing are refused."""
        self.outcome.unasked += count
        self.outcome.first = self.outcome.first or error


class _Way:
    """The way to an owner on another node, or to nobody."""

    def __init__(self, edge: Edge, name: str) -> None:
        self._edge = edge
        self._name = name

    def forward(
        self, session: Endpoint, table: FrameTable, rows: range | array[int], now: float
    ) -> None:
        """Send rows that a session published to the owner, or refuse them."""
        asking = wanting_ack(table, rows)
        endpoint = self._edge.upstreams.get(self._name)
        try:
            if endpoint is None:
                text = f"no link to {self._name}" if self._name else "nobody owns this address now"
                raise RefusedError("busy", text)
            if len(endpoint.runs) >= MAX_RUNS:
                raise RefusedError("busy", f"{MAX_RUNS} runs of messages wait for {self._name}")
            self._edge.send_run(endpoint, session, table, rows, asking)
        except RefusedError as error:
            self._edge.node.vitals.count_refused(error.code, len(rows))
            for row in asking:
                session.refuse(table.message(row), error)
            if len(asking) < len(rows):
                session.refuse_unasked(error, len(rows) - len(asking))


class Edge:
    """One node's topics as a part of the cluster's."""

    def __init__(
        self,
        node: Node,
        me: str,
        partitions: int,
        owner: Callable[[int], str],
        is_serving: Callable[[int], bool],
    ) -> None:
        """`owner` names the node of a partition, `is_serving` says whether this node serves it."""
        self.node = node
        self.me = me
        self.partitions = partitions
        self._owner = owner
        self._is_serving = is_serving
        #: The owners that this node is an edge of, and the edges that it is an owner for.
        self.upstreams: dict[str, Upstream] = {}
        self.downstreams: dict[str, Downstream] = {}
        self._ways: dict[str, _Way] = {}
        self._filters: dict[str, int] = {}  # of clients, and how many have each
        self._registered: dict[str, str] = {}  # exact filters, and with whom
        self._numbers = count(1)
        self._table = FrameTable()
        self._waiting: list[tuple[int, Callable[[], object]]] = []
        self.delegations = Delegations(node, me, partitions, owner, is_serving, self._link_to)
        self.delegates = Delegates(node, self._subscribe_edge)
        node.topics.elsewhere = self

    def _link_to(self, name: str) -> PeerLink | None:
        """Return the link to an owner, None where there is none."""
        endpoint = self.upstreams.get(name)
        return endpoint.link if endpoint is not None else None

    def _subscribe_edge(self, link: PeerLink, address: str) -> None:
        """Let an edge have what is published to a topic, before the edge itself asks for it."""
        endpoint = self.downstreams.get(link.peer)
        if endpoint is not None:
            self.node.topics.subscribe_node(endpoint, address)

    # For the broker

    def way(self, address: str) -> _Way | None:
        """Return the way to the owner of an address, None where that is this node."""
        if address.startswith("$"):
            return None
        partition = home(address.encode(), self.partitions)
        if self._is_serving(partition):
            return None
        name = self._owner(partition)
        name = "" if name == self.me else name  # it does not serve it yet
        if name not in self._ways:
            self._ways[name] = _Way(self, name)
        return self._ways[name]

    def added(self, filter: str) -> int:
        """A client subscribes; return the registration that its answer waits for, or 0."""
        self._filters[filter] = self._filters.get(filter, 0) + 1
        if self._filters[filter] > 1 or filter.startswith("$"):
            return self._latest() if self._filters[filter] > 1 else 0
        return self._register([filter])

    def removed(self, filter: str) -> None:
        """A client does not subscribe any more."""
        self._filters[filter] -= 1
        if not self._filters[filter]:
            del self._filters[filter]
            if filter.startswith("$"):
                return
            if has_wildcard(filter):
                for each in self.upstreams.values():
                    self._tell(each, remove=[filter])
            elif owner := self.upstreams.get(self._registered.pop(filter, "")):
                self._tell(owner, remove=[filter])

    def after(self, registration: int, action: Callable[[], object]) -> bool:
        """Run an action when a registration is confirmed; return False where it is already."""
        if not any(
            registration >= one for each in self.upstreams.values() for one in each.unconfirmed
        ):
            return False
        self._waiting.append((registration, action))
        return True

    def _latest(self) -> int:
        """Return the last registration that is not confirmed, or 0."""
        return max((one for each in self.upstreams.values() for one in each.unconfirmed), default=0)

    # Filters

    def _register(self, filters: Sequence[str]) -> int:
        """Register filters with those who have to know them; return the last registration."""
        shares: dict[str, list[str]] = {}
        for filter in filters:
            if has_wildcard(filter):
                for name in self.upstreams:
                    shares.setdefault(name, []).append(filter)
            else:
                owner = self._owner(home(filter.encode(), self.partitions))
                if self._registered.get(filter) != owner:
                    self._registered[filter] = owner
                    if owner in self.upstreams:
                        shares.setdefault(owner, []).append(filter)
        for name, some in shares.items():
            self._add_all(self.upstreams[name], some)
        return self._latest()

    def _add_all(self, owner: Upstream, filters: Sequence[str]) -> None:
        for begin in range(0, len(filters), FILTERS):
            self._tell(owner, add=filters[begin : begin + FILTERS])

    def _tell(
        self, endpoint: Upstream, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> None:
        number = next(self._numbers)
        if add:
            endpoint.unconfirmed.add(number)
        said = _Filters(number, list(add), list(remove))
        endpoint.link.write(bytes([_FILTERS]) + msgspec.json.encode(said))

    def changed(self) -> None:
        """Partitions have other owners: work routes out again, register exact filters with them."""
        moved = []
        for filter, before in list(self._registered.items()):
            if self._owner(home(filter.encode(), self.partitions)) != before:
                if endpoint := self.upstreams.get(before):
                    self._tell(endpoint, remove=[filter])
                moved.append(filter)
        self._register(moved)
        self.node.topics.forget_all()
        self.delegations.changed(list(self.upstreams))

    # Links

    def opened(self, link: PeerLink) -> None:
        """A link to a node can be used: an owner is told all filters that it has to know."""
        if link.role is Role.OWNER:
            self.downstreams[link.peer] = Downstream(self.node, link)
            return
        self.upstreams[link.peer] = Upstream(self.node, link)
        for filter, owner in list(self._registered.items()):
            if owner == link.peer:
                del self._registered[filter]
        mine = [one for one in self._filters if not one.startswith("$")]
        self._register([one for one in mine if not has_wildcard(one)])
        self._add_all(self.upstreams[link.peer], [one for one in mine if has_wildcard(one)])
        self.node.topics.forget_all()
        self.delegations.changed(list(self.upstreams))

    def lost(self, link: PeerLink, reason: str) -> None:
        """A link has broken: those who wait for its answers are told so."""
        endpoint = self._endpoint(link)
        if endpoint is None:
            return
        self.node.vitals.event("link_lost", link.peer, f"{link.role.name.lower()}: {reason}")
        endpoint.lost(reason)
        if isinstance(endpoint, Downstream):
            del self.downstreams[link.peer]
            self.delegates.lost(link)
            return
        del self.upstreams[link.peer]
        runs, endpoint.runs = endpoint.runs, {}
        error = RefusedError("busy", f"the link to {link.peer} broke: {reason}")
        for run in runs.values():
            self._refuse(run, error)
        endpoint.unconfirmed.clear()
        self._let_go()
        self.delegations.lost(link, reason)

    def _endpoint(self, link: PeerLink) -> Upstream | Downstream | None:
        found = (self.upstreams if link.role is Role.EDGE else self.downstreams).get(link.peer)
        return found if found is not None and found.link is link else None

    def drained(self, link: PeerLink) -> None:
        """Some of what was written to a node has gone out."""
        endpoint = self._endpoint(link)
        if endpoint is not None and link.buffered <= self.node.flow.limit // 2:
            self.node.flow.drained(endpoint, self.node.vitals.now)

    def received(self, link: PeerLink, parcel: bytes | memoryview) -> None:
        """Do what a parcel from another node says; one that makes no sense breaks the link."""
        endpoint = self._endpoint(link)
        try:
            if isinstance(endpoint, Upstream):
                self._from_owner(endpoint, parcel)
            elif endpoint is not None:
                self._from_edge(endpoint, parcel)
        except (ProtocolError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("%s: %s", link.peer, error)
            link.abort()

    def _from_owner(self, owner: Upstream, parcel: bytes | memoryview) -> None:
        if parcel[0] == ROWS:
            self._deliver(owner, parcel)
        elif parcel[0] == _ANSWER:
            self._answered(owner, msgspec.json.decode(parcel[1:], type=_Answer))
        elif parcel[0] == _CONFIRMED:
            owner.unconfirmed.discard(int.from_bytes(parcel[1:]))
            self._let_go()
        elif parcel[0] in FROM_OWNER:
            self.delegations.received(owner.link, parcel)
        else:
            raise ProtocolError("node", 0, f"{parcel[0]} is no parcel of an owner")

    def _from_edge(self, edge: Downstream, parcel: bytes | memoryview) -> None:
        if parcel[0] == _RUN:
            self._publish(edge, parcel)
        elif parcel[0] == _FILTERS:
            self._subscribe(edge, msgspec.json.decode(parcel[1:], type=_Filters))
        elif parcel[0] in FROM_EDGE:
            self.delegates.received(edge.link, parcel)
        else:
            raise ProtocolError("node", 0, f"{parcel[0]} is no parcel of an edge")

    def _let_go(self) -> None:
        """Run the actions whose registrations are confirmed."""
        waiting, self._waiting = self._waiting, []
        for registration, action in waiting:
            if not self.after(registration, action):
                action()

    # At the edge

    def send_run(
        self,
        owner: Upstream,
        session: Endpoint,
        table: FrameTable,
        rows: Sequence[int],
        asking: array[int],
    ) -> None:
        """Send rows to an owner, and remember who waits for the answer."""
        number = next(self._numbers)
        sender = session.client_id.encode()
        is_waited_for = len(asking) > 0 or session.waits_for_owners
        if is_waited_for:
            places = {row: place for place, row in enumerate(rows)} if len(asking) else {}
            brief = pack(table, asking, sender, whole=False)
            owner.runs[number] = _Run(session, brief, [places[row] for row in asking], len(rows))
            session.unanswered += 1
        asks = _ALL if session.waits_for_owners else is_waited_for
        head = bytes([_RUN, asks]) + number.to_bytes(8)
        owner.write(b"".join((head, pack(table, rows, sender))), "pause", session)

    def _answered(self, owner: Upstream, answer: _Answer) -> None:
        run = owner.runs.pop(answer.number, None)
        if run is None:
            return
        if answer.failed:
            self._refuse(run, RefusedError("busy", answer.failed))
            return
        run.session.unanswered -= 1
        table = FrameTable(max(1, len(run.places)))
        unpack(run.rows, table)
        refused = {place: RefusedError(code, text) for place, code, text in answer.refused}
        done = array("i", [k for k, place in enumerate(run.places) if place not in refused])
        if run.session.closed:
            run.session.answered_late(table, done)
            return
        run.session.accept_rows(table, done, kept=False)
        for row, place in enumerate(run.places):
            if place in refused:
                self.node.vitals.count_refused(refused[place].code)
                run.session.refuse(table.message(row), refused[place])
        if answer.unasked:
            run.session.refuse_unasked(RefusedError(answer.code, answer.text), answer.unasked)
        run.session.answered()

    def _refuse(self, run: _Run, error: RefusedError) -> None:
        run.session.unanswered -= 1
        table = FrameTable(max(1, len(run.places)))
        unpack(run.rows, table)
        if run.session.closed:
            run.session.answered_late(table, array("i"))
        else:
            for message in table.messages():
                run.session.refuse(message, error)
            if run.session.waits_for_owners and len(run.places) < run.count:
                run.session.refuse_unasked(error, run.count - len(run.places))
            run.session.answered()

    def _deliver(self, owner: Upstream, parcel: bytes | memoryview) -> None:
        """Give rows that an owner sends to the clients of this node."""
        table = self._room(parcel)
        owner.client_id = unpack(parcel, table).decode()
        self._do(owner, table)

    # At the owner

    def _subscribe(self, edge: Downstream, said: _Filters) -> None:
        for filter in said.remove:
            self.node.topics.unsubscribe_node(edge, filter)
        for filter in said.add:
            self.node.topics.subscribe_node(edge, filter)
        if said.add:
            edge.link.write(bytes([_CONFIRMED]) + said.number.to_bytes(8))

    def _publish(self, edge: Downstream, parcel: bytes | memoryview) -> None:
        """Publish rows for clients of another node, and answer when they are durable."""
        asks, number, rows = parcel[1], int.from_bytes(parcel[2:10]), parcel[10:]
        table = self._room(rows)
        edge.client_id = unpack(rows, table, numbered=True).decode()
        outcome = edge.outcome = _Outcome()
        self._do(edge, table, forwarded=True)
        if not asks:
            return
        first = outcome.first or RefusedError("", "")
        answer = _Answer(number, outcome.refused, outcome.unasked, first.code, first.text)
        data = bytes([_ANSWER]) + msgspec.json.encode(answer)
        engine = self.node.engine
        # Trouble may be another partition's: what was kept is durable only when the engine says so.
        if outcome.kept or asks == _ALL:
            lost = _Answer(number, failed="this may have been kept or not: try again")
            unknown = bytes([_ANSWER]) + msgspec.json.encode(lost)
            engine.after(lambda: edge.link.write(data), failed=lambda: edge.link.write(unknown))
        else:
            edge.link.write(data)

    def _room(self, rows: bytes | memoryview) -> FrameTable:
        """Return a table that is large enough."""
        count = count_rows(rows)
        if self._table.capacity < count <= MAX_ROWS:
            self._table = FrameTable(count)
        return self._table

    def _do(self, endpoint: Endpoint, table: FrameTable, *, forwarded: bool = False) -> None:
        flow, now = self.node.flow, self.node.vitals.now
        before, flow.reading = flow.reading, endpoint
        try:
            family = DIALECTS[table.dialect].family if table.dialect in DIALECTS else ""
            memory = self.node.memories.get(family) if forwarded else None
            if memory is None or not memory.publish_rows(endpoint, table, now):
                self.node.router.publish(endpoint, table, 0, table.count, now)
        finally:
            flow.reading = before
            table.release()
