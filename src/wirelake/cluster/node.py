"""A broker as one node of a cluster: its coordinator, its links, and its topics put together."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import secrets
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from wirelake.broker.node import Figure, Histogram, Node
from wirelake.cluster.bus import Bus
from wirelake.cluster.calls import Calls
from wirelake.cluster.coordinator import GRACE, Coordinator, Partitions, end_tasks
from wirelake.cluster.edge import Edge
from wirelake.cluster.members import Event, Heartbeat, Timing, hash_settings
from wirelake.cluster.partitions import SharedPartitions
from wirelake.cluster.peers import WINDOW, Peers
from wirelake.cluster.resident import Resident
from wirelake.config import ClusterSettings, Settings
from wirelake.errors import ConfigError, EngineError
from wirelake.journal.engine import Engine
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.record import VERSION as FORMAT
from wirelake.journal.retention import Rule
from wirelake.journal.streams import Access, Durations

log = logging.getLogger("wirelake.cluster")

_LINK_FIGURES = (
    ("open", "1 while the link to another node can be used.", False),
    ("buffered", "Bytes that wait for a link.", False),
    ("credit", "Bytes that may be sent before the other node has used some.", False),
    ("moved", "Bytes that were sent.", True),
    ("breaks", "Times that a link broke.", True),
)
_JOURNAL = {
    "retries": "Appends that had no answer and were sent again.",
    "fenced": "Appends that were refused, as another node owns the partition.",
    "repairs": "Messages that a server had lost and another copy had.",
    "chain_breaks": "Places where records of a partition are missing or damaged.",
}

#: The latest events that a node tells operators.
CHANGES = 20
#: How long a node that starts waits for JetStream, and between two tries (seconds).
PATIENCE = 30.0
RETRY = 0.5
#: A node looks this often (seconds) whether it follows the right partitions.
STAND_BY = 1.0


class ClusterNode:
    """One node. The caller has connected the bus and opened its bucket."""

    def __init__(
        self,
        bus: Bus,
        node: Node,
        me: Heartbeat,
        partitions: int,
        work: Partitions,
        timing: Timing = Timing(),  # noqa: B008 - immutable
        *,
        window: int = WINDOW,
        limits: ClusterSettings = ClusterSettings(),  # noqa: B008 - immutable
    ) -> None:
        """Of `limits`, those of members and questions are used."""
        self.node = node
        self.coordinator = Coordinator(bus, me, partitions, work, timing, limits.members)
        ownership = self.coordinator.ownership
        self.edge = Edge(node, me.node, partitions, ownership.owner, ownership.is_serving)
        self.peers = Peers(bus, me.node, self.edge, window=window)
        if node.engine.is_shared:
            node.engine.on_durable = self.coordinator.proved
            node.engine.may_read = self.coordinator.may_read
        self.owner_changes = 0
        #: Returns figures of the journal: what is weak, and counters.
        self.tell_journal: Callable[[], dict[str, int | str]] = dict
        #: Returns how long appends took, and how long copies were not level with their streams.
        self.tell_appends: Callable[[], Durations | None] = lambda: None
        self.tell_lag_seconds: Callable[[], dict[int, float]] = dict
        node.figures = self.figures
        self.calls = Calls(bus, me.node, at_once=limits.questions)
        self.calls.answer = lambda: node.answer
        node.cluster = Resident(bus, self.coordinator, self.state, self.calls)
        self._changes: deque[dict[str, object]] = deque(maxlen=CHANGES)
        self._bus = bus
        #: Called after every change of members and owners.
        self.on_change: Callable[[], object] = lambda: None
        self.coordinator.on_change = self._changed
        self.coordinator.on_event = self._tell

    async def start(self) -> None:
        """Join the cluster; raises EngineError where NATS cannot be reached."""
        await self.peers.start(self.coordinator.timing.beat)
        await self._bus.answer(f"state.{self.coordinator.members.me.node}", self._answer)
        await self.calls.start()
        await self.coordinator.start()

    def _changed(self) -> None:
        self.peers.meet(self.coordinator.members.alive())
        self.edge.changed()
        self.on_change()

    async def _answer(self, _: bytes) -> bytes:
        return msgspec.json.encode(self.state())

    def state(self) -> dict[str, object]:
        """Return what operators want to know of this node beside its heartbeat."""
        ownership = self.coordinator.ownership
        return {
            "links": self.peers.state(),
            "takeovers": [round(one, 3) for one in ownership.takeovers],
            "owner_changes": self.owner_changes,
            "delegates": len(self.edge.delegates),
            "epochs": {str(one): ownership.epoch(one) for one in ownership.owned()},
            "changes": list(self._changes),
            **self.node.load(),
            **self.tell_journal(),
        }

    def figures(self) -> Iterator[Figure | Histogram]:
        """Yield what Prometheus is told."""
        ownership, members = self.coordinator.ownership, self.coordinator.members
        yield Figure("cluster_members", "Nodes that are alive.", len(members.alive()))
        yield Figure("cluster_owned", "Partitions that this node serves.", len(ownership.owned()))
        text = "Partitions that this node took over or lost."
        yield Figure("cluster_owner_changes", text, self.owner_changes, total=True)
        if ownership.takeovers:
            text = "Seconds that the last take-over took, from the first sign to serving."
            yield Figure("cluster_takeover_seconds", text, ownership.takeovers[-1])
        text = "Clients of other nodes that this node acts for."
        yield Figure("cluster_delegates", text, len(self.edge.delegates))
        for partition, lag in self.coordinator.lag().items():
            text = "Messages of the stream that this node's copy of a partition lacks."
            yield Figure("cluster_standby_lag", text, lag, {"partition": str(partition)})
        for partition, seconds in self.tell_lag_seconds().items():
            text = "Seconds since this node's copy of a partition was level with its stream."
            labels = {"partition": str(partition)}
            yield Figure("cluster_standby_lag_seconds", text, seconds, labels)
        for link in self.peers.state():
            labels = {"node": str(link["node"]), "role": str(link["role"])}
            for name, text, total in _LINK_FIGURES:
                value = link[name]
                assert isinstance(value, int)
                yield Figure(f"cluster_link_{name}", text, value, labels, total)
        told = self.tell_journal()
        for name, text in _JOURNAL.items():
            if isinstance(counted := told.get(name), int):
                yield Figure(f"cluster_appends_{name}", text, counted, total=True)
        if (appends := self.tell_appends()) is not None:
            text = "How long appends took, from when they were first sent until they were durable."
            yield Histogram(
                "cluster_append_seconds",
                text,
                appends.bounds,
                list(appends.classes),
                appends.seconds,
            )

    def tell(self, kind: str, text: str) -> None:
        """Tell operators of something that happened at this node."""
        self._tell(Event(kind, self.coordinator.members.me.node, text))

    def _tell(self, event: Event) -> None:
        self.owner_changes += event.kind == "owner_changed"
        told = {"event": event.kind, "node": event.node, "text": event.text}
        self._changes.append({"time": int(time.time() * 1e6), **told})
        self.node.vitals.event(event.kind, event.node, event.text)

    async def stop(self, grace: float = GRACE) -> None:
        """Hand all partitions over, and leave."""
        await self.coordinator.stop(grace)
        await self.peers.stop()
        await self.calls.stop()

    async def abort(self) -> None:
        """Leave without a word, as a process that is killed."""
        await self.coordinator.abort()
        await self.peers.stop()
        await self.calls.stop()


def node_name(settings: Settings) -> str:
    """Return the name of this node: that of the settings, or the host's."""
    if settings.cluster.node:
        return settings.cluster.node
    return re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:64] or "node"


def reachable(url: str) -> str:
    """Return a URL of a listener as other machines know it, with the host's name for all addresses.

    Empty where there is no listener.
    """
    parts = urlsplit(url)
    try:
        is_everywhere = ipaddress.ip_address(parts.hostname or "").is_unspecified
    except ValueError:
        return url
    return f"{parts.scheme}://{socket.gethostname()}:{parts.port}" if is_everywhere else url


def access_of(settings: Settings) -> Access:
    """Return how to reach NATS and log in there."""
    given = settings.cluster
    return Access(
        servers=given.servers,
        user=given.user,
        password=given.password,
        token=given.token,
        credentials=given.credentials,
        ca=given.ca,
        cert=given.cert,
        key=given.key,
    )


def stream_settings(settings: Settings) -> StreamSettings:
    """Return how the cluster of the settings keeps its partitions."""
    given = settings.cluster
    return StreamSettings(
        prefix=given.prefix,
        partitions=given.partitions or None,
        replicas=given.replicas,
        give_up=given.give_up,
        monitors=given.monitors,
    )


async def connect(settings: Settings, name: str) -> Bus:
    """Connect to NATS as the settings say; raises EngineError where no server can be reached."""
    access = access_of(settings)
    return await Bus.connect(access.servers, settings.cluster.prefix, name, **access.login())


class Joined:
    """A node's part in the cluster that its settings name: the journal, the links, the standbys.

    `open` connects and makes the engine, `join` takes the broker in, `leave` hands its partitions
    over, and `close` ends the connections.
    """

    def __init__(self, settings: Settings, bus: Bus, journal: JetStreamJournal, name: str) -> None:
        self.name = name
        self.journal = journal
        capture = settings.capture
        self.engine = Engine(
            journal,
            loop=asyncio.get_running_loop(),
            capture=capture.enabled,
            compression=capture.compression,
            aside=Path(settings.data),
            adopted=(),
        )
        self._settings = settings
        self._bus = bus
        self._work = SharedPartitions(self.engine, journal)
        self._changed = asyncio.Event()
        self._follower: asyncio.Task[None] | None = None
        self.member: ClusterNode

    @classmethod
    async def open(cls, settings: Settings) -> Joined:
        """Connect to NATS, and make or check the streams.

        Raises EngineError where NATS cannot be reached, ConfigError where the streams do not fit
        the settings.
        """
        name, given = node_name(settings), settings.cluster
        bus = await connect(settings, name)
        wanted = stream_settings(settings)
        rules = [Rule(one.filter, one.age, one.bytes) for one in settings.capture.retention]

        def open_journal() -> JetStreamJournal:
            return JetStreamJournal(
                Path(settings.data),
                access_of(settings),
                wanted,
                node=name,
                rules=rules,
                compression=settings.capture.compression,
            )

        try:
            ends = time.monotonic() + PATIENCE
            while True:
                try:
                    await bus.open_bucket(given.replicas)
                    journal = await asyncio.to_thread(open_journal)
                    break
                except EngineError as error:  # as while JetStream elects a leader
                    if not error.retriable or time.monotonic() > ends:
                        raise
                    log.warning("%s; trying again", error)
                    await asyncio.sleep(RETRY)
        except BaseException:
            await bus.close()
            raise
        return cls(settings, bus, journal, name)

    async def join(self, node: Node, version: str, http: str, listeners: Sequence[str]) -> None:
        """Take the broker into the cluster; raises EngineError where NATS cannot be reached."""
        given = self._settings.cluster
        me = Heartbeat(
            self.name,
            secrets.token_hex(8),
            version=version,
            format=FORMAT,
            settings=_hash(self._settings),
            http=given.http or reachable(http),
            listeners=tuple(listeners),
        )
        timing = Timing(beat=given.beat, dead=given.dead, lease=given.lease)
        partitions = self.journal.partitions
        self.member = ClusterNode(self._bus, node, me, partitions, self._work, timing, limits=given)
        coordinator = self.member.coordinator
        coordinator.lag = self._work.lag
        self._work.on_lost = coordinator.lost
        self.member.tell_journal = self._tell_journal
        self.member.tell_appends = lambda: self.journal.appends
        self.member.tell_lag_seconds = self._work.lag_seconds
        self.member.on_change = self._changed.set
        await self.member.start()
        self._follower = asyncio.create_task(self._stand_by())
        log.info("node %s of the cluster %s, %d partitions", self.name, given.prefix, partitions)

    def _tell_journal(self) -> dict[str, int | str]:
        journal = self.journal
        return {
            "weak": journal.weak,
            "retries": journal.retries,
            "fenced": journal.fenced,
            "repairs": journal.repairs,
            "chain_breaks": len(journal.losses),
        }

    async def _stand_by(self) -> None:
        """Follow the partitions that this node would take over next."""
        while True:
            self._changed.clear()
            try:
                await self._work.stand_by(self.member.coordinator.ownership)
            except Exception:
                log.exception("standbys could not be changed")  # and must not end for that
            while self.journal.told:
                self.member.tell(*self.journal.told.popleft())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), STAND_BY)

    async def ended(self) -> None:
        """Wait until this node must stop, and raise ConfigError: another one has its name."""
        await self.member.coordinator.has_ended.wait()
        raise ConfigError("cluster.node", f"another node of the cluster is called {self.name}")

    async def leave(self) -> None:
        """Hand all partitions over to other nodes."""
        await self.member.coordinator.stop()

    async def close(self) -> None:
        """End all connections, and write what can still be written."""
        await end_tasks([self._follower] if self._follower is not None else [])
        if hasattr(self, "member"):
            await self.member.abort()
        with contextlib.suppress(EngineError):  # what was not durable was not acknowledged
            await asyncio.to_thread(self.engine.close)
        await self._bus.close()


def _hash(settings: Settings) -> str:
    """Return a hash of the settings that should be the same on all nodes."""
    shared = (settings.tokens, settings.limits, settings.quotas, settings.queues)
    return hash_settings(msgspec.json.encode(part) for part in shared)
