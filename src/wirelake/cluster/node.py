"""A broker as one node of a cluster: its coordinator, its links, and its topics put together."""

from __future__ import annotations

from wirelake.broker.node import Node
from wirelake.cluster.bus import Bus
from wirelake.cluster.coordinator import GRACE, Coordinator, Partitions
from wirelake.cluster.edge import Edge
from wirelake.cluster.members import Event, Heartbeat, Timing
from wirelake.cluster.peers import WINDOW, Peers


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
    ) -> None:
        self.node = node
        self.coordinator = Coordinator(bus, me, partitions, work, timing)
        ownership = self.coordinator.ownership
        self.edge = Edge(node, me.node, partitions, ownership.owner, ownership.is_serving)
        self.peers = Peers(bus, me.node, self.edge, window=window)
        self.coordinator.on_change = self._changed
        self.coordinator.on_event = self._tell

    async def start(self) -> None:
        """Join the cluster; raises EngineError where NATS cannot be reached."""
        await self.peers.start(self.coordinator.timing.beat)
        await self.coordinator.start()

    def _changed(self) -> None:
        self.peers.meet(self.coordinator.members.alive())
        self.edge.changed()

    def _tell(self, event: Event) -> None:
        self.node.vitals.event(event.kind, event.node, event.text)

    async def stop(self, grace: float = GRACE) -> None:
        """Hand all partitions over, and leave."""
        await self.coordinator.stop(grace)
        await self.peers.stop()

    async def abort(self) -> None:
        """Leave without a word, as a process that is killed."""
        await self.coordinator.abort()
        await self.peers.stop()
