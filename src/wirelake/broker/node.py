"""The broker as a whole: it builds the parts, and tells them when sessions and time come and go.

A session finds the parts here: `topics` and `router` for what is published, `clients`, `services`,
`queues`, `store` and `streams` for everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from wirelake.broker.capture import Capture
from wirelake.broker.clients import Clients
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.flow import Flow
from wirelake.broker.queues import Queues
from wirelake.broker.quotas import Quotas
from wirelake.broker.router import Router
from wirelake.broker.services import Services
from wirelake.broker.store import Store
from wirelake.broker.streams import Streams
from wirelake.broker.tables import Tables
from wirelake.broker.topics import Topics
from wirelake.broker.traffic import Traffic
from wirelake.broker.vitals import Vitals
from wirelake.dialects import DIALECTS
from wirelake.journal.engine import Engine
from wirelake.message import Limits
from wirelake.wire import FrameTable

#: Sessions are ticked this far apart (seconds).
SWEEP = 1.0


class Memory(Protocol):
    """What a dialect keeps of its clients beyond their connections."""

    def tick(self, now: float) -> None:
        """Time has passed."""

    def rights_changed(self, now: float) -> None:
        """The rights of tokens have changed, also of those whose clients are not connected."""


class Figure(NamedTuple):
    """A figure for operators that a part outside the broker adds; `total` ones only count up."""

    name: str
    text: str
    value: float
    labels: Mapping[str, str] = {}
    total: bool = False


class Owners(Protocol):
    """The other nodes of a cluster, as far as clients of this one need them."""

    def forward(self, session: Endpoint, table: FrameTable, row: int, now: float) -> int:
        """Forward rows from this one on to the owner of what they name; return how many.

        Returns 0 where the row is to be done here.
        """

    def named(self, session: Endpoint) -> None:
        """A client has a new id, or none any more."""

    def left(self, session: Endpoint) -> None:
        """A client has gone."""


class Cluster(Protocol):
    """The cluster that this node is part of, as operators see and steer it."""

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
        #: Returns what others want to tell operators beside the broker's own figures.
        self.figures: Callable[[], Iterable[Figure]] = tuple
        self._swept = 0.0
        engine.listeners.append(self._partition_changed)
        #: What dialects keep beyond connections, by family.
        self.memories: dict[str, Memory] = {}
        for dialect in DIALECTS.values():
            if dialect.memory is not None and dialect.family not in self.memories:
                self.memories[dialect.family] = dialect.load("memory")(self)

    def _partition_changed(self, partition: int, is_here: bool) -> None:
        """A partition was taken up, or lost: its queues and keys come and go with it."""
        for part in (self.queues, self.store):
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
