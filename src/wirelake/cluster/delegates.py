"""Queues, keys, services, client ids and byte streams of a cluster: done where their owner is.

Whatever an op names (an address, a key, a client id) has a home partition. Where another node owns
that, the client's node, its *edge*, forwards the rows as they are. At the owner a *delegate* does
what they ask for: a session of the client's own dialect, without a socket, with the client's id and
rights. What the delegate writes is frames of the client's dialect, which the edge passes on. So
there is one mechanism for all patterns and dialects, and the parts of the broker do not know of it.

    client ─ edge ─ rows ─▶ delegate ─▶ queues, store, services, clients, streams of the owner
              ◀─ frames ──

1. **One delegate** for each client and owner, made when it is first needed. It has the rights that
   the edge found for the client's token; the token itself does not travel.
2. **Exact filters.** Only the owner knows whether an address is a queue. So it sees `subscribe` and
   `unsubscribe` of addresses first. Where the address is a topic, it returns the row, and the edge
   does it (`edge`).
3. **Numbers** that a broker gives, of requests and streams, end with a mark of its node. So the
   edge finds the delegate that a reply, or the bytes of a stream, belong to.
4. **Ids of clients** are registered at their home partition, too. Direct messages and byte streams
   go there, and on to the delegate of the client that has the id.
5. **Flow.** An edge has at most `WINDOW` bytes of rows under way for one client, and reads no more
   from it meanwhile. What a delegate has written counts as its outbox until the edge says that the
   client has taken it.
6. **Hosts.** Some clients have state that lasts, and has a partition: MQTT's sessions. Their
   whole session is a delegate, at the owner of that partition. The edge forwards all their rows
   there (`host`), until the client is gone or the owner is lost. The owner hands a client back that
   has no such state, and its edge does the rest.
7. **Loss.** Where an owner is lost, clients with lasting state or open requests there (consumers,
   watchers, streams) are disconnected: they find out what was done when they come back. Services
   and client ids are registered again with the new owner, without a word to the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import count
from typing import Any

import msgspec

from wirelake.address import has_wildcard
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.broker.route import like_run
from wirelake.broker.session import Session, begin_session
from wirelake.cluster.peers import PeerLink
from wirelake.errors import ProtocolError, RefusedError
from wirelake.journal.batch import home
from wirelake.journal.engine import Entry
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable
from wirelake.wire.rows import count_rows, pack, unpack

log = logging.getLogger("wirelake.cluster")

#: Bytes of rows of one client that an owner has not done yet; beyond it, the client is not read.
WINDOW = 1 << 20
#: An edge says how much a client has taken when it is this many bytes, or more.
TAKEN = 64 << 10
#: A client that reads slowly is looked at this often (seconds).
LOOK = 0.02
#: Rights of other nodes' clients that are remembered.
MOST_RIGHTS = 10_000
#: Bytes of keys and values of other nodes in one list.
MOST_LISTED = 64 << 20
#: Rows of one parcel, at most.
MAX_ROWS = 1 << 20

# What a parcel is, by its first byte. From an edge:
OPEN = ord("O")
ROWS = ord("R")
TAKE = ord("U")
CALL = ord("V")
GONE = ord("G")
ASK = ord("Q")
# From an owner:
FRAMES = ord("B")
SETTLED = ord("S")
RETURNED = ord("H")
ENDED = ord("K")
LISTED = ord("L")
TOLD = ord("T")
FROM_EDGE = frozenset((OPEN, ROWS, TAKE, CALL, GONE, ASK))
FROM_OWNER = frozenset((FRAMES, SETTLED, RETURNED, ENDED, LISTED, TOLD))

#: Ops that are done where the home of their address is.
_KEYS = frozenset((Op.CREATE, Op.READ, Op.UPDATE, Op.DELETE, Op.WATCH))
_QUEUES = frozenset((Op.ENQUEUE, Op.DEQUEUE, Op.ACK, Op.NACK, Op.DECLARE, Op.REMOVE, Op.SERVER))
_OTHERS = frozenset((Op.SERVE, Op.UNSERVE, Op.REQUEST, Op.SUBSCRIBE, Op.UNSUBSCRIBE, Op.OPEN))
_BY_ADDRESS = _KEYS | _QUEUES | _OTHERS
_BY_TARGET = frozenset((Op.DIRECT, Op.REDIRECT))
_BY_NUMBER = frozenset((Op.REPLY, Op.DATA, Op.CLOSE))
_ROUTED = _BY_ADDRESS | _BY_TARGET | _BY_NUMBER | {Op.PUBLISH}
#: Ops whose address may be a topic: the owner may return them.
_MAYBE_TOPIC = frozenset((Op.SUBSCRIBE, Op.UNSUBSCRIBE))
#: Ops that leave something behind at the owner, which is lost with it.
_LASTING = frozenset((Op.DEQUEUE, Op.WATCH, Op.REQUEST, Op.OPEN))
#: Ops that are forwarded together where several rows have them.
_TOGETHER = frozenset((Op.ENQUEUE, Op.ACK))


def mark_of(node: str) -> str:
    """Return what the numbers of requests and streams of a node end with."""
    return "-" + blake2b(node.encode(), digest_size=4).hexdigest()


class _Opened(msgspec.Struct, frozen=True, array_like=True):
    """Who a delegate stands for."""

    number: int
    dialect: str
    variant: str
    peer: str
    client: str
    owner: str
    rights: dict[str, Any]
    state: dict[str, str]


class _Called(msgspec.Struct, frozen=True, array_like=True):
    """Something that a delegate is to do without an answer."""

    number: int
    what: str
    name: str
    since: int | None = None


class _Listed(msgspec.Struct, frozen=True, array_like=True):
    """Keys that match a filter: key, revision, value, when it expires; or why there are none."""

    number: int
    sequence: int
    entries: list[tuple[str, int, bytes, float]] = []
    is_last: bool = True
    code: str = ""
    text: str = ""


class _Asked(msgspec.Struct, frozen=True, array_like=True):
    """What the memory of a family wants to know of that on another node, and the answer."""

    number: int
    family: str
    content: bytes


class _Ended(msgspec.Struct, frozen=True, array_like=True):
    number: int
    reason: str


def _head(kind: int, number: int, other: int) -> bytes:
    return bytes((kind,)) + number.to_bytes(8) + other.to_bytes(8)


def _numbers(parcel: bytes | memoryview) -> tuple[int, int]:
    if len(parcel) < 17:
        raise ProtocolError("node", 0, "a parcel of a delegate is too short")
    return int.from_bytes(parcel[1:9]), int.from_bytes(parcel[9:17])


# At the edge


@dataclass(eq=False, slots=True)
class _Delegation:
    """A client's delegate at one owner, as its edge sees it."""

    owner: str
    link: PeerLink
    told: tuple[object, ...] = ()
    #: Parcels of rows that are not settled: their sizes, and the rows that may be returned.
    waiting: dict[int, tuple[int, bytes | memoryview | None]] = field(default_factory=dict)
    under_way: int = 0
    sequence: int = 0
    #: Does the owner keep something of this client that is lost with it?
    is_lasting: bool = False
    #: Bytes that were passed on to the client, and that the owner has not been told of.
    taken: int = 0


@dataclass(eq=False, slots=True)
class _Gathering:
    """A list of keys that other nodes are asked for."""

    message: Message
    pending: set[str] = field(default_factory=set)
    found: list[Entry] = field(default_factory=list)
    size: int = 0
    refusal: RefusedError | None = None


@dataclass(eq=False, slots=True)
class _Client:
    """A client of this node that other nodes do something for, or may have to."""

    session: Session
    delegations: dict[str, _Delegation] = field(default_factory=dict)
    #: Addresses that it serves, and the node where that is registered.
    serves: dict[str, str] = field(default_factory=dict)
    #: Keys that it watches, and their owners; filters, which all nodes know.
    watches: dict[str, str] = field(default_factory=dict)
    filters: set[str] = field(default_factory=set)
    gatherings: dict[tuple[str, int], _Gathering] = field(default_factory=dict)
    #: Byte streams that it opened, by its own names for them.
    streams: dict[str, str] = field(default_factory=dict)
    #: The node that hosts its session, and rows that wait until that is sure.
    host: str = ""
    is_placed: bool = False
    held: list[bytes | memoryview] = field(default_factory=list)
    #: The id that is registered, and where.
    id: str = ""
    registered: str = ""


class Delegations:
    """The clients of this node, as far as other nodes act for them: the edge's side."""

    def __init__(
        self,
        node: Node,
        me: str,
        partitions: int,
        owner: Callable[[int], str],
        is_serving: Callable[[int], bool],
        upstream: Callable[[str], PeerLink | None],
    ) -> None:
        """`upstream` returns the link to a node in which this one is the edge."""
        self._node = node
        self._me = self.me = me
        self._partitions = partitions
        self._owner = owner
        self._is_serving = is_serving
        self._upstream = upstream
        self._clients: dict[int, _Client] = {}
        self._marks = {mark_of(me): me}
        self._slow: dict[tuple[int, str], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._single = FrameTable(1)
        self._questions: dict[int, tuple[PeerLink, Callable[[bytes | None], object]]] = {}
        self._asked = count(1)
        self._before: tuple[str, ...] = ()
        #: Owners, what is served here, and links, when `changed` last looked.
        self._state: tuple[tuple[str, ...], tuple[bool, ...], frozenset[str]] | None = None
        node.owners = self
        node.clients.on_named = self.named
        node.clients.label = f"{me}-"
        node.services.mark = node.streams.mark = mark_of(me)

    def _home(self, name: str) -> str:
        """Return the node that owns what has this name, empty where there is none."""
        return self.owner_of(home(name.encode(), self._partitions))

    def owner_of(self, partition: int) -> str:
        """Return the node that serves a partition, empty where there is none now."""
        if self._is_serving(partition):
            return self._me
        owner = self._owner(partition)
        return "" if owner == self._me else owner  # it does not serve it yet

    def _client(self, session: Session) -> _Client:
        client = self._clients.get(session.number)
        if client is None:
            client = self._clients[session.number] = _Client(session)
        return client

    # For memories

    def can_reach(self, partition: int) -> bool:
        """Return whether this node serves a partition, or has a link to the node that does."""
        owner = self.owner_of(partition)
        return owner == self._me or (owner != "" and self._upstream(owner) is not None)

    def ask(
        self, node: str, family: str, question: bytes, told: Callable[[bytes | None], object]
    ) -> None:
        """Ask the memory of a family on another node; `told` gets its answer, None if it is lost.

        Raises RefusedError (`busy`) where there is no link to that node.
        """
        link = self._upstream(node)
        if link is None:
            raise RefusedError("busy", f"no link to {node}")
        number = next(self._asked)
        self._questions[number] = link, told
        asked = _Asked(number, family, question)
        link.write(bytes((ASK,)) + msgspec.msgpack.encode(asked))

    # For sessions

    def forward(self, session: Endpoint, table: FrameTable, row: int, now: float) -> int:
        """Forward rows from this one on to the owner of what they name; return how many.

        Returns 0 where the row is to be done here.
        """
        op = table.op[row]
        if op not in _ROUTED or not isinstance(session, Session) or not session.can_delegate():
            return 0
        if op in _TOGETHER and (end := like_run(table, row)) > row + 1:
            owner = self._home(table.address(row).decode(errors="replace"))
            if owner == self._me:
                return 0
            rows = range(row, end)
            try:
                self._send(session, owner, pack(table, rows))
            except RefusedError as error:
                self._node.vitals.count_refused(error.code, len(rows))
                for one in rows:
                    session.refuse(table.message(one), error)
            return end - row
        message = table.message(row)
        if message.parameters.fault or not self._is_routed(message):
            return 0
        try:
            message = session.identify(message, now)
            if not self._forward(session, message):
                if message.parameters is not table.message(row).parameters:
                    session.control(message, now)
                    return 1
                return 0
        except RefusedError as error:
            self._node.vitals.count_refused(error.code)
            session.refuse(message, error)
        return 1

    def _is_routed(self, message: Message) -> bool:
        """Return whether it matters where a message is done."""
        if message.op == Op.PUBLISH:  # others are topics, which `edge` looks after
            return bool(message.target or message.flags & Flag.RESPONSE)
        return bool(message.address or message.target or message.correlation_id)

    def _forward(self, session: Session, message: Message) -> bool:
        """Forward a message; return False where it is to be done here. Raises RefusedError."""
        op, address = message.op, message.address
        if op in (Op.READ, Op.WATCH, Op.SUBSCRIBE, Op.UNSUBSCRIBE) and has_wildcard(address):
            return self._forward_filter(session, message)
        if address.startswith("$") and op not in _BY_NUMBER:
            return False
        owner = self._place(session, message)
        if op == Op.SERVE:
            self._client(session).serves[address] = owner
        elif op == Op.UNSERVE and session.number in self._clients:
            self._clients[session.number].serves.pop(address, None)
        elif op == Op.WATCH:
            self._client(session).watches[address] = owner
        elif op == Op.OPEN:
            self._client(session).streams[message.correlation_id] = owner
        elif op == Op.CLOSE and session.number in self._clients:
            self._clients[session.number].streams.pop(message.correlation_id, None)
        if owner == self._me:
            return False
        self._single.fill([message], message.dialect or session.dialect)
        rows = pack(self._single, range(1))
        self._send(session, owner, rows, returnable=op in _MAYBE_TOPIC, lasting=op in _LASTING)
        return True

    def _forward_filter(self, session: Session, message: Message) -> bool:
        """Do what concerns keys or addresses of many partitions."""
        if message.op == Op.READ:
            return self._gather(session, message)
        if message.op == Op.WATCH:
            owners = self._all_owners()
            self._client(session).filters.add(message.address)
            for owner in owners:
                called = _Called(0, "watch", message.address, message.parameters.rev)
                self._call(self._delegation(session, owner), session, called)
        return False

    def _gather(self, session: Session, message: Message) -> bool:
        """Ask all other nodes for the keys that a filter matches; return False if there is none.

        Raises RefusedError while some partition has no owner, as keys would be missing.
        """
        owners = self._all_owners()
        if not owners:
            return False
        asked = [self._delegation(session, owner) for owner in owners]
        gathering = _Gathering(message)
        for found in asked:
            found.sequence += 1
            found.waiting[found.sequence] = 0, None
            gathering.pending.add(found.owner)
            called = _Called(0, "list", message.address, found.sequence)
            self._call(found, session, called)
            self._client(session).gatherings[found.owner, found.sequence] = gathering
        return True

    def _listed(self, link: PeerLink, listed: _Listed) -> None:
        """Keys of another node have come; when all have, the list is sent."""
        client = self._clients.get(listed.number)
        found = client.delegations.get(link.peer) if client is not None else None
        if client is None or found is None or found.link is not link:
            return
        gathering = client.gatherings.get((link.peer, listed.sequence))
        if gathering is None:
            return
        gathering.found += [Entry(*one) for one in listed.entries]
        gathering.size += sum(len(one[2]) + len(one[0]) for one in listed.entries)
        if gathering.size > MOST_LISTED:
            text = f"more than {MOST_LISTED} bytes of keys on other nodes"
            gathering.refusal = RefusedError("too_large", text)
            gathering.found.clear()
        if listed.code:
            gathering.refusal = RefusedError(listed.code, listed.text)
        if not listed.is_last:
            return
        del client.gatherings[link.peer, listed.sequence]
        found.waiting.pop(listed.sequence, None)
        gathering.pending.discard(link.peer)
        if gathering.pending:
            return
        if gathering.refusal is not None:
            self._node.vitals.count_refused(gathering.refusal.code)
            client.session.refuse(gathering.message, gathering.refusal)
            return
        self._node.store.elsewhere[client.session] = gathering.found
        try:
            client.session.control(gathering.message, self._node.vitals.now)
        finally:
            self._node.store.elsewhere.pop(client.session, None)

    def _place(self, session: Session, message: Message) -> str:
        """Return the node where a message is to be done; raises RefusedError where none is."""
        op = message.op
        if op in _BY_NUMBER:
            known = self._clients.get(session.number)
            number = message.correlation_id
            if known is not None and op != Op.REPLY and number in known.streams:
                return known.streams[number]
            if "-" in number and (found := self._marks.get("-" + number.rpartition("-")[2])):
                return found
            if not message.target:
                return self._me
        name = message.target if op not in _BY_ADDRESS and message.target else message.address
        owner = self._home(name)
        if not owner:
            raise RefusedError("busy", f"nobody owns {name} now")
        return owner

    def _all_owners(self) -> list[str]:
        """Return the other nodes that own partitions.

        Raises RefusedError while some partition has no owner, or there is no link to it.
        """
        owners = {self._owner(partition) for partition in range(self._partitions)}
        if "" in owners or any(one != self._me and not self._upstream(one) for one in owners):
            raise RefusedError("busy", "some partitions have no owner now")
        return sorted(owners - {self._me})

    def _delegation(self, session: Session, owner: str) -> _Delegation:
        """Return a client's delegation at an owner, which knows who the client is now."""
        link = self._upstream(owner)
        if link is None:
            raise RefusedError("busy", f"no link to {owner}")
        client = self._client(session)
        found = client.delegations.get(owner)
        if found is None or found.link is not link:
            found = client.delegations[owner] = _Delegation(owner, link)
        state = {name: str(getattr(session, name)) for name in session.carried}
        told = (session.client_id, session.rights, session.form, *state.values())
        if found.told != told:
            found.told = told
            rights = {
                name: getattr(session.rights, name) for name in Rights.__slots__ if name != "key"
            }
            opened = _Opened(
                session.number,
                session.dialect,
                session.form.partition("+")[2],
                session.link.peer,
                session.client_id,
                session.owner,
                rights,
                state,
            )
            link.write(bytes((OPEN,)) + msgspec.msgpack.encode(opened))
        return found

    def _send(
        self,
        session: Session,
        owner: str,
        rows: bytes | memoryview,
        *,
        returnable: bool = False,
        lasting: bool = False,
    ) -> None:
        """Send rows to a client's delegate; raises RefusedError where there is no way to it."""
        if not owner:
            raise RefusedError("busy", "nobody owns this address now")
        found = self._delegation(session, owner)
        found.sequence += 1
        found.is_lasting = found.is_lasting or lasting
        found.waiting[found.sequence] = len(rows), rows if returnable else None
        found.under_way += len(rows)
        found.link.write(b"".join((_head(ROWS, session.number, found.sequence), rows)))
        if found.under_way > WINDOW:
            session.waits_for.add(found)
            session.link.pause()

    def host(self, session: Endpoint, partition: int, message: Message) -> bool:
        """Let the owner of a partition do what a client asks for, from this message on.

        The owner may hand the message back: then the session gets it again, and does the rest.
        Returns False where this node is the owner. Raises RefusedError (`busy`) where there is no
        owner now.
        """
        assert isinstance(session, Session)
        owner = self.owner_of(partition)
        if owner == self._me:
            return False
        self._single.fill([message], session.dialect)
        self._send(session, owner, pack(self._single, range(1)), returnable=True)
        client = self._client(session)
        client.host = owner
        session.waits_for.add(client.delegations[owner])
        session.link.pause()
        return True

    def pass_rows(self, session: Endpoint, table: FrameTable, row: int) -> int:
        """Forward all rows from this one on to the node that hosts a session; return how many."""
        assert isinstance(session, Session)
        client = self._client(session)
        rows = pack(table, range(row, table.count))
        if client.is_placed:
            try:
                self._send(session, client.host, rows)
            except RefusedError as error:
                session.close(str(error))
        else:
            client.held.append(rows)
        return table.count - row

    def _placed(self, client: _Client, *, returned: bytes | memoryview | None = None) -> None:
        """A host has taken a client, or has returned what the client said first."""
        session, held = client.session, client.held
        client.is_placed, client.held = returned is None, []
        if returned is not None:
            client.delegations.pop(client.host).link.write(_head(GONE, session.number, 0))
            client.host = ""
            held.insert(0, returned)
        for rows in held:
            if session.closed:
                return
            if returned is None:
                try:
                    self._send(session, client.host, rows)
                except RefusedError as error:
                    session.close(str(error))
            else:
                table = FrameTable(max(1, count_rows(rows)))
                unpack(rows, table)
                session.receive_rows(table, self._node.vitals.now)

    def _call(self, found: _Delegation, session: Session, called: _Called) -> None:
        """Let a delegate do something without an answer."""
        data = msgspec.msgpack.encode(msgspec.structs.replace(called, number=session.number))
        found.is_lasting = found.is_lasting or called.what == "watch"
        found.link.write(bytes((CALL,)) + data)

    def named(self, session: Endpoint) -> None:
        """A client has a new id: register it at its home partition."""
        if not isinstance(session, Session) or not session.registers_id:
            return
        if not session.is_delegate or session.is_hosted:
            self._register(self._client(session))

    def _register(self, client: _Client) -> None:
        """Register the id of a client where its home is now, if that has changed."""
        session = client.session
        if client.host:  # which looks after it
            return
        where = self._home(session.client_id) if session.client_id else ""
        if (client.id, client.registered) == (session.client_id, where):
            return
        before = client.delegations.get(client.registered)
        if before is not None:
            self._call(before, session, _Called(0, "release", client.id))
        client.id, client.registered = session.client_id, ""
        if where and where != self._me:
            with contextlib.suppress(RefusedError):  # tried again when there is a link
                what = "claim" if session.has_claimed else "name"
                called = _Called(0, what, session.client_id)
                self._call(self._delegation(session, where), session, called)
                client.registered = where
        elif where:
            client.registered = where

    def left(self, session: Endpoint) -> None:
        """A client has gone: its delegates go, too."""
        client = self._clients.get(session.number)
        if client is None or client.session is not session:
            return
        del self._clients[session.number]
        for found in client.delegations.values():
            found.link.write(_head(GONE, session.number, 0))

    # For the cluster

    @property
    def under_way(self) -> int:
        """The parcels of rows that owners have not done yet."""
        every = (one for client in self._clients.values() for one in client.delegations.values())
        return sum(len(one.waiting) for one in every)

    def changed(self, members: list[str]) -> None:
        """Members, links or owners have changed: register what moved with its new owner."""
        links = frozenset(members)
        serving = tuple(map(self._is_serving, range(self._partitions)))
        owners = tuple(self._owner(partition) for partition in range(self._partitions))
        if (owners, serving, links) == self._state:
            return
        self._state = owners, serving, links
        self._marks = {mark_of(name): name for name in {*members, self._me}}
        has_moved = any(old and old != new for old, new in zip(self._before, owners, strict=False))
        self._before = owners
        for client in list(self._clients.values()):
            if client.session.closed:
                continue
            if has_moved and client.filters:
                client.session.close("keys that it watches have moved")
                continue
            moved = [key for key, old in client.watches.items() if self._home(key) not in (old, "")]
            if moved:
                client.session.close(f"the key {moved[0]} has moved")
                continue
            self._register(client)
            for address, old in list(client.serves.items()):
                self._serve_again(client, address, old)

    def _serve_again(self, client: _Client, address: str, old: str) -> None:
        """Register a service with the owner that its address has now."""
        session, now = client.session, self._home(address)
        if now == old or not now:
            return
        with contextlib.suppress(RefusedError):
            if now == self._me:
                self._node.services.serve(session, address)
            else:
                found = self._delegation(session, now)
                self._call(found, session, _Called(0, "serve", address))
            client.serves[address] = now
        if client.serves[address] != now:
            return
        with contextlib.suppress(RefusedError):
            if old == self._me:
                self._node.services.unserve(session, address)
            elif old in client.delegations:
                self._call(client.delegations[old], session, _Called(0, "unserve", address))

    def lost(self, link: PeerLink, reason: str) -> None:
        """The link to an owner has broken, and the delegates there are gone."""
        self._state = None
        for number, (asked, told) in list(self._questions.items()):
            if asked is link:
                del self._questions[number]
                told(None)
        for client in list(self._clients.values()):
            found = client.delegations.get(link.peer)
            if found is None or found.link is not link:
                continue
            del client.delegations[link.peer]
            self._let_read(client.session, found)
            if client.registered == link.peer:
                client.registered = ""
            for address, where in client.serves.items():
                if where == link.peer:
                    client.serves[address] = ""
            if found.is_lasting or found.waiting:
                client.session.close(f"the link to {link.peer} broke: {reason}")

    def _let_read(self, session: Session, found: _Delegation) -> None:
        if found in session.waits_for:
            session.waits_for.discard(found)
            if not session.waits_for and not session.closed:
                session.link.resume()

    def received(self, link: PeerLink, parcel: bytes | memoryview) -> None:
        """Do what an owner says; raises ProtocolError where it makes no sense."""
        if parcel[0] == LISTED:
            self._listed(link, msgspec.msgpack.decode(parcel[1:], type=_Listed))
            return
        if parcel[0] == TOLD:
            answer = msgspec.msgpack.decode(parcel[1:], type=_Asked)
            if answer.number in self._questions:
                self._questions.pop(answer.number)[1](answer.content)
            return
        if parcel[0] == ENDED:
            ended = msgspec.msgpack.decode(parcel[1:], type=_Ended)
            client = self._clients.get(ended.number)
            if client is not None and link.peer in client.delegations:
                del client.delegations[link.peer]
                client.session.close(ended.reason)
            return
        number, other = _numbers(parcel)
        client = self._clients.get(number)
        found = client.delegations.get(link.peer) if client is not None else None
        if client is None or found is None or found.link is not link:
            return  # the client has gone
        if parcel[0] == FRAMES:
            self._pass_on(client, found, parcel[17:])
            return
        size, rows = found.waiting.pop(other, (0, None))
        found.under_way -= size
        if found.under_way <= WINDOW // 2:
            self._let_read(client.session, found)
        if client.host == link.peer and not client.is_placed and rows is not None:
            found.is_lasting = parcel[0] == SETTLED
            self._placed(client, returned=rows if parcel[0] == RETURNED else None)
        elif parcel[0] == SETTLED and rows is not None:
            found.is_lasting = True  # it consumes a queue
        elif parcel[0] == RETURNED and rows is not None:
            table = FrameTable(1)
            unpack(rows, table)
            client.session.control(table.message(0), self._node.vitals.now)

    def _pass_on(self, client: _Client, found: _Delegation, frames: bytes | memoryview) -> None:
        client.session.pass_on(frames)
        found.taken += len(frames)
        if found.taken >= TAKEN:
            self._tell_taken(client, found)

    def _tell_taken(self, client: _Client, found: _Delegation) -> None:
        """Tell an owner what a client has taken, now or once it has."""
        key = client.session.number, found.owner
        if client.session.link.buffered <= self._node.flow.limit // 2:
            self._slow.pop(key, None)
            found.link.write(_head(TAKE, client.session.number, found.taken))
            found.taken = 0
            return
        self._slow[key] = None
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK, self._look)

    def _look(self) -> None:
        """Look at clients that read slowly."""
        self._timer = None
        slow, self._slow = self._slow, {}
        for number, owner in slow:
            client = self._clients.get(number)
            if client is not None and owner in client.delegations and not client.session.closed:
                self._tell_taken(client, client.delegations[owner])


# At the owner


class _DelegateLink:
    """A delegate's way back to its client: a `Link` whose writes go to the edge."""

    def __init__(
        self,
        edge: PeerLink,
        number: int,
        peer: str,
        node: Node,
        subscribe: Callable[[str], object],
        forget: Callable[[], object],
    ) -> None:
        """`subscribe` lets the edge have what is published to an address from now on.

        `forget` is called when the delegate ends by itself.
        """
        self._edge_subscribes = subscribe
        self._forget = forget
        self.peer = f"{peer} at {edge.peer}"
        self.is_open = True
        self.moved = 0
        self.session: Session
        self._edge = edge
        self._number = number
        self._node = node
        self._written = 0
        self._inbox: deque[tuple[int, bytes | memoryview]] = deque()
        self._runs = False
        self._is_gone = False

    def write(self, data: bytes | memoryview) -> None:
        """Send frames to the client."""
        if self.is_open:
            self._written += len(data)
            self._edge.write(b"".join((_head(FRAMES, self._number, 0), data)))

    def close(self) -> None:
        """Disconnect the client."""
        if self.is_open:
            self.is_open = False
            ended = _Ended(self._number, "the node that owns what it uses has disconnected it")
            self._edge.write(bytes((ENDED,)) + msgspec.msgpack.encode(ended))
            self._forget()

    def abort(self) -> None:
        """Disconnect the client."""
        self.close()

    def pause(self) -> None:
        """Do nothing: `run` looks at what the session waits for."""

    def resume(self) -> None:
        """Go on soon with what waits."""
        asyncio.get_running_loop().call_soon(self.run)

    def receive_again(self) -> None:
        """Go on soon with what waits."""
        self.resume()

    def authenticated(self) -> None:
        """A delegate is no stranger."""

    @property
    def buffered(self) -> int:
        """The bytes that the client has not taken yet."""
        return max(0, self._written - self.moved)

    def taken(self, size: int) -> None:
        """The client has taken this many bytes more."""
        self.moved += size
        if self.session.outgoing <= self._node.flow.limit // 2:
            self._node.flow.drained(self.session, self._node.vitals.now)
            self.run()

    def tell_keys(self, filter: str, sequence: int) -> None:
        """Send the edge the keys of this node that a filter matches."""
        after, is_last = "", False
        while not is_last:
            try:
                entries, after = self._node.store.page(self.session, filter, after)
            except RefusedError as error:
                self._list(_Listed(self._number, sequence, code=error.code, text=error.text))
                return
            is_last = not after
            told = [
                (one.key, one.revision, one.value, one.expires)
                for one in entries
                if one.value is not None
            ]
            self._list(_Listed(self._number, sequence, told, is_last))

    def _list(self, listed: _Listed) -> None:
        self._edge.write(bytes((LISTED,)) + msgspec.msgpack.encode(listed))

    def receive(self, sequence: int, rows: bytes | memoryview) -> None:
        """Do what rows ask for, after all that came before."""
        self._inbox.append((sequence, rows))
        self.run()

    def gone(self) -> None:
        """The client has gone; what it sent before is done first."""
        self.is_open = False
        self._is_gone = True
        self.taken(self.buffered)
        self.run()

    def run(self) -> None:
        """Do what waits, as far as the session may go on now."""
        session = self.session
        if self._runs:
            return
        self._runs = True
        try:
            if session.is_held and not session.waits_for and not session.closed:
                session.receive_rows(None, self._node.vitals.now)
            while self._inbox and not session.is_held and not session.closed:
                self._do(*self._inbox.popleft())
        finally:
            self._runs = False
        if self._is_gone and not self._inbox and not session.closed:
            session.lost("its client has gone")

    def _do(self, sequence: int, rows: bytes | memoryview) -> None:
        rows_in_all = count_rows(rows)
        if rows_in_all > MAX_ROWS:
            raise ProtocolError("node", 0, f"{rows_in_all} rows in one parcel")
        table = FrameTable(max(1, rows_in_all))
        unpack(rows, table)
        if not self.session.is_hosted and self._is_topic(table):
            address = table.address(0).decode(errors="replace")
            if table.op[0] == Op.SUBSCRIBE:
                self._edge_subscribes(address)
            self._edge.write(_head(RETURNED, self._number, sequence))
            return
        self.session.receive_rows(table, self._node.vitals.now)
        if self.session.hands_back:
            self.session.hands_back = False
            back = partial(self._settle, sequence, RETURNED)
            lost = partial(self.session.close, "what its node asked for may not have been kept")
            self._node.engine.after(back, failed=lost)
        elif self._node.engine.trouble:
            self._settle(sequence)
        else:
            settle = partial(self._settle, sequence)
            self._node.engine.after(settle, failed=settle)

    def _settle(self, sequence: int, outcome: int = SETTLED) -> None:
        """Tell the edge that rows are done, and durable, or that it is to do them."""
        self._edge.write(_head(outcome, self._number, sequence))

    def _is_topic(self, table: FrameTable) -> bool:
        """Return whether a row concerns a topic, which its edge looks after."""
        if table.count != 1 or table.op[0] not in _MAYBE_TOPIC:
            return False
        address = table.address(0).decode(errors="replace")
        return address not in self._node.queues and address not in self.session.consumes


class Delegates:
    """The delegates of other nodes' clients: the owner's side."""

    def __init__(self, node: Node, subscribe: Callable[[PeerLink, str], object]) -> None:
        """`subscribe` lets the edge of a link have what is published to an address."""
        self._node = node
        self._subscribe = subscribe
        self._links: dict[PeerLink, dict[int, _DelegateLink]] = {}
        self._rights: dict[bytes, Rights] = {}

    def __len__(self) -> int:
        return sum(map(len, self._links.values()))

    def received(self, link: PeerLink, parcel: bytes | memoryview) -> None:
        """Do what an edge says; raises ProtocolError where it makes no sense."""
        kind = parcel[0]
        if kind == OPEN:
            self._open(link, msgspec.msgpack.decode(parcel[1:], type=_Opened))
            return
        if kind == ASK:
            asked = msgspec.msgpack.decode(parcel[1:], type=_Asked)
            if asked.family not in self._node.memories:
                raise ProtocolError("node", 0, f"nothing is kept for {asked.family}")
            content = self._node.memories[asked.family].answer(asked.content)
            told = msgspec.structs.replace(asked, content=content)
            link.write(bytes((TOLD,)) + msgspec.msgpack.encode(told))
            return
        if kind == CALL:
            called = msgspec.msgpack.decode(parcel[1:], type=_Called)
            found = self._links.get(link, {}).get(called.number)
            if found is not None and not found.session.closed:
                self._call(found, called)
            return
        number, other = _numbers(parcel)
        found = self._links.get(link, {}).get(number)
        if found is None:
            return
        if kind == GONE:
            del self._links[link][number]
            found.gone()
        elif found.session.closed:
            return
        elif kind == TAKE:
            found.taken(other)
        else:
            found.receive(other, parcel[17:])

    def _open(self, link: PeerLink, opened: _Opened) -> None:
        """Make a delegate, or bring it up to date."""
        known = self._links.setdefault(link, {})
        found = known.get(opened.number)
        if found is None or found.session.closed:
            found = known[opened.number] = _DelegateLink(
                link,
                opened.number,
                opened.peer,
                self._node,
                lambda address: self._subscribe(link, address),
                lambda: known.pop(opened.number, None),
            )
            now = self._node.vitals.now
            found.session = begin_session(self._node, found, opened.dialect, now)
            found.session.is_delegate = True
            found.session.last_heard = float("inf")  # its edge knows whether it is silent
            found.session.authenticated()
        session = found.session
        if not self._node.clients.sessions(session.client_id).count(session):
            session.client_id = opened.client  # else it is registered under that one here
        session.represented = opened.owner
        session.rights = self._rights_of(opened.rights)
        session.use_variant(opened.variant)
        for name, value in opened.state.items():
            if name in session.carried:
                setattr(session, name, value)

    def _rights_of(self, given: dict[str, Any]) -> Rights:
        """Return the rights of a client; those that are alike are one object."""
        key = msgspec.msgpack.encode(given, order="sorted")
        if key not in self._rights:
            if len(self._rights) >= MOST_RIGHTS:
                self._rights.clear()
            self._rights[key] = msgspec.convert(given, Rights)
        return self._rights[key]

    def _call(self, found: _DelegateLink, called: _Called) -> None:
        """Do something for a client without an answer to it."""
        node, session, name = self._node, found.session, called.name
        now = node.vitals.now
        if called.what == "list":
            found.tell_keys(name, called.since or 0)
            return
        try:
            match called.what:
                case "claim" | "name":
                    node.clients.register(session, name, now, claimed=called.what == "claim")
                case "release":
                    node.clients.leave(session, now)
                case "serve":
                    node.services.serve(session, name)
                case "unserve":
                    node.services.unserve(session, name)
                case "watch":
                    node.store.watch(session, name, called.since)
        except RefusedError as error:
            if called.what in ("claim", "watch"):
                session.close(str(error))

    def lost(self, link: PeerLink) -> None:
        """The link to an edge has broken: its clients are gone."""
        for found in self._links.pop(link, {}).values():
            found.is_open = False
            found.session.lost("the link to its node broke")
