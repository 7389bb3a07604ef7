"""The broker as a whole: it builds the parts, and tells them when sessions and time come and go.

A session finds the parts here: `topics` and `router` for what is published, `clients`, `services`,
`queues`, `store` and `streams` for everything else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from wirelake.broker.capture import Capture
from wirelake.broker.clients import Clients
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.flow import Flow
from wirelake.broker.queues import LISTED, Queues
from wirelake.broker.quotas import Quotas
from wirelake.broker.rights import Rights
from wirelake.broker.router import Router
from wirelake.broker.services import Services
from wirelake.broker.store import Store
from wirelake.broker.streams import Streams
from wirelake.broker.tables import Tables
from wirelake.broker.topics import Topics
from wirelake.broker.traffic import Traffic
from wirelake.broker.vitals import Vitals
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine
from wirelake.message import Limits, Message
from wirelake.wire import FrameTable

#: Sessions are ticked this far apart (seconds).
SWEEP = 1.0


class Kept(Protocol):
    """A part of the broker that keeps something in partitions."""

    def adopt(self, partition: int) -> None:
        """Take up what is kept in a partition that is here now."""

    def lose(self, partition: int) -> None:
        """Let go of what is kept in a partition that is not here any more."""


class Memory(Kept, Protocol):
    """What a dialect keeps of its clients beyond their connections."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def publish_rows(self, sender: Endpoint, table: FrameTable, now: float) -> bool:
        """Publish rows that another node has forwarded, if some are more than plain publishes.

        Returns False where none is: then nothing was done.
        """

    def answer(self, question: bytes) -> bytes:
        """Answer what the memory of the same family on another node asks."""

    def rights_changed(self, now: float) -> None:
        """The rights of tokens have changed, also of those whose clients are not connected."""


class Figure(NamedTuple):
    """A figure for operators that a part outside the broker adds; `total` ones only count up."""

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = {}
    total: bool = False


class Histogram(NamedTuple):
    """How often something took how long: `classes` has one more, for what is above all bounds."""

    name: str
    text: str
    bounds: Sequence[float]
    classes: Sequence[int]
    seconds: float


class Owners(Protocol):
    """The other nodes of a cluster, as far as clients of this one need them."""

    def forward(self, session: Endpoint, table: FrameTable, row: int, now: float) -> int:
        """Forward rows from this one on to the owner of what they name; return how many.

        Returns 0 where the row is to be done here.
        """

    @property
    def me(self) -> str:
        """The name of this node."""

    def owner_of(self, partition: int) -> str:
        """Return the node that serves a partition, empty where there is none now."""

    def can_reach(self, partition: int) -> bool:
        """Return whether this node serves a partition, or has a link to the node that does."""

    def ask(
        self, node: str, family: str, question: bytes, told: Callable[[bytes | None], object]
    ) -> None:
        """Ask the memory of a family on another node; `told` gets its answer, None if it is lost.

        Raises RefusedError (`busy`) where there is no link to that node.
        """

    def host(self, session: Endpoint, partition: int, message: Message) -> bool:
        """Let the owner of a partition do what a client asks for, from this message on.

        The owner may hand the message back: then the session gets it again, and does the rest.
        Returns False where this node is the owner. Raises RefusedError (`busy`) where there is no
        owner now.
        """

    def pass_rows(self, session: Endpoint, table: FrameTable, row: int) -> int:
        """Forward all rows from this one on to the node that hosts a session; return how many."""

    def named(self, session: Endpoint) -> None:
        """A client has a new id, or none any more."""

    def left(self, session: Endpoint) -> None:
        """A client has gone."""


class Cluster(Protocol):
    """The cluster that this node is part of, as operators and HTTP see and steer it.

    All of it is called on the broker's thread.
    """

    @property
    def name(self) -> str:
        """The name of this node."""

    @property
    def most(self) -> int:
        """Bytes that a question to another node has at most."""

    def owner(self, partition: int) -> str:
        """Return the node that owns a partition, empty where there is none."""

    def standbys(self, partition: int) -> list[str]:
        """Return the nodes that follow a partition."""

    def nodes(self) -> dict[str, str]:
        """Return where HTTP of each node that is alive is reached, by node; empty: nowhere."""

    async def ask(self, node: str, question: bytes, *, timeout: float, most: int) -> bytes:
        """Let `Node.answer` of another node answer a question, with at most `most` bytes.

        Raises RefusedError: what the node refuses, `timeout` where no answer comes in time. Raises
        EngineError where there is no such node.
        """

    async def status(self) -> dict[str, Any]:
        """Return the nodes that are alive, and the owner of each partition."""

    async def drain(self, node: str, *, on: bool, timeout: float) -> None:
        """Let a node give its partitions away and take no new ones, or take some again.

        Returns when it has none left. Raises RefusedError: `not_found` where there is no such node,
        `timeout` where it keeps some.
        """

    async def move(self, partition: int, node: str, timeout: float) -> None:
        """Give a partition to a node from now on, and wait until that serves it.

        Raises RefusedError: `not_found` where there is no such partition or node, `timeout` where
        the node does not serve it in time.
        """


def _by_name(states: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(states, key=lambda one: str(one["name"]))


class Node:
    """One broker. It reads no clock: whoever runs it calls `tick` with the time."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        *,
        epoch: float = 0.0,
        now: float = 0.0,
    ) -> None:
        """`now` is the time at the start; with `epoch` added it gives seconds since 1970."""
        latest = max((one.last_time for one in engine.positions()), default=0)
        self.engine = engine
        self.limits = limits
        self.limits_of_strangers = limits  # until they have authenticated
        self.quotas = quotas = Quotas()
        self.vitals = vitals = Vitals(epoch, latest, now)
        self.tables = Tables()
        self.traffic = Traffic(vitals)
        #: URLs of the broker's listeners and of its HTTP, once HTTP is there to tell them.
        self.listeners: tuple[str, ...] = ()
        self.sessions: dict[Endpoint, None] = {}
        self.wake_at: dict[Endpoint, float] = {}  # sessions that asked to be woken, and when
        self.flow = flow = Flow(vitals, self.sessions)
        self.capture = capture = Capture(engine, vitals)
        self.clients = Clients(engine, vitals, capture)
        self.topics = Topics(vitals, quotas, flow, capture)
        self.router = Router(engine, vitals, flow, capture, self.topics)
        self.queues = Queues(engine, vitals, quotas, capture, flow, self.topics)
        self.services = Services(vitals, quotas, capture, self.traffic)
        self.store = Store(engine, vitals, quotas, capture, flow)
        self.streams = Streams(quotas, self.clients, capture)
        #: Set where this node is one of a cluster.
        self.owners: Owners | None = None
        self.cluster: Cluster | None = None
        #: Finds the states of the queues of other nodes that these rights may consume, and calls
        #: the one or the other with what it found; None: there are no others, or none can be asked.
        self.queues_elsewhere: (
            Callable[
                [Rights, Callable[[list[Any]], object], Callable[[RefusedError], object]], None
            ]
            | None
        ) = None
        #: Answers what HTTP of other nodes asks; set by HTTP.
        self.answer: Callable[[bytes], Awaitable[bytes]] | None = None
        #: Returns what others want to tell operators beside the broker's own figures.
        self.figures: Callable[[], Iterable[Figure | Histogram]] = tuple
        self._swept = 0.0
        #: What dialects keep beyond connections, by family.
        self.memories: dict[str, Memory] = {}
        for dialect in DIALECTS.values():
            if dialect.memory is not None and dialect.family not in self.memories:
                self.memories[dialect.family] = dialect.load("memory")(self)
        engine.listeners.append(self._partition_changed)

    def list_queues(
        self,
        session: Endpoint,
        now: float,
        found: Callable[[list[dict[str, object]]], object],
        failed: Callable[[RefusedError], object],
    ) -> None:
        """Call `found` with the states of the queues that a session may consume, of all nodes.

        In a cluster it is called later, or `failed` is; not if the session has ended by then.
        """
        mine = self.queues.states(session.rights, now)
        if self.cluster is None or self.queues_elsewhere is None:
            found(mine)
            return
        self.queues_elsewhere(
            session.rights,
            lambda others: session.closed or found(_by_name([*mine, *others])[:LISTED]),
            lambda error: session.closed or failed(error),
        )

    def _partition_changed(self, partition: int, is_here: bool) -> None:
        """A partition was taken up, or lost: its queues and keys come and go with it."""
        parts: tuple[Kept, ...] = (self.queues, self.store, *self.memories.values())
        for part in parts:
            (part.adopt if is_here else part.lose)(partition)
        self.topics.forget_all()  # what is published there is refused, or taken again
        text = f"partition {partition} is here" if is_here else self.engine.lost_because(partition)
        self.vitals.event("adopted" if is_here else "lost", "the journal", text)

    def load(self) -> dict[str, int]:
        """Return how many clients there are, and the messages of a second from and to them.

        Other nodes of a cluster are no clients, and neither are the delegates of their clients.
        """
        rates = [one for name, one in self.traffic.current.items() if name in DIALECTS]
        return {
            "clients": sum(
                1 for one in self.sessions if one.dialect in DIALECTS and not one.is_delegate
            ),
            "received": sum(one[0] for one in rates),
            "delivered": sum(one[1] for one in rates),
        }

    def joined(self, session: Endpoint) -> int:
        """Count a connection that has begun, and return its number."""
        self.sessions[session] = None
        self.vitals.counters["connections"] += 1
        return self.vitals.counters["connections"]

    def left(self, session: Endpoint) -> None:
        """A connection has ended: only what must survive it is left."""
        now = self.vitals.now
        self.sessions.pop(session, None)
        self.clients.leave(session, now)
        self.topics.left(session)
        self.services.left(session, now)
        self.store.left(session)
        self.streams.left(session, now)
        self.queues.left(session, now)
        self.flow.left(session, now)
        self.capture.left(session)
        self.vitals.counters["disconnects"] += 1
        self.traffic.retire(session)
        if self.owners is not None:
            self.owners.left(session)

    def tick(self, now: float, epoch: float | None = None) -> None:
        """Let time pass: requests time out, slow consumers are told from stopped ones.

        `epoch` is the one that the system's clock gives now, None if it has not changed.
        """
        self.vitals.now = now
        if epoch is not None:
            self.vitals.epoch = epoch
        self.topics.tick()
        self.services.tick(now)
        self.store.tick(now)
        self.queues.tick(now)
        self.flow.tick(now)
        self.traffic.tick(self.sessions, self.queues.all(), now)
        self.capture.tick()
        self.clients.tick()
        for memory in self.memories.values():
            memory.tick(now)
        for session, due in list(self.wake_at.items()):
            if due <= now:
                del self.wake_at[session]
                session.wake(now)
        if now - self._swept >= SWEEP:
            self._swept = now
            for each in list(self.sessions):
                each.tick(now)

    def state(self) -> dict[str, object]:
        """Return what the broker tells of itself."""
        return {
            "connections": len(self.sessions),
            "subscriptions": len(self.topics),
            "backlog": self.engine.backlog,
            "trouble": self.engine.trouble,
            "listeners": list(self.listeners),
            "counters": dict(self.vitals.counters),
            "events": list(self.vitals.events),
        }

    def close(self) -> None:
        """Close all connections, and tell their clients why."""
        for session in list(self.sessions):
            if not session.is_delegate:  # its client is another node's
                session.say_goodbye()
                session.close("the broker stops")
