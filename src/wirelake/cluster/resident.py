"""The operator that lives in a node: what its console and its HTTP interface tell and do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from wirelake.cluster.bus import Bus, check_name
from wirelake.cluster.calls import MOST_BYTES, Calls
from wirelake.cluster.coordinator import Coordinator
from wirelake.cluster.members import Heartbeat
from wirelake.cluster.operator import LISTEN, Operator
from wirelake.errors import ConfigError, RefusedError


class Resident(Operator):
    """An operator that hears what its node has heard already, so that it need not listen first.

    It reads the table of owners as its node knows it, and asks on its node's bus. Where NATS does
    not answer, it still tells what this node sees.
    """

    def __init__(
        self,
        bus: Bus,
        coordinator: Coordinator,
        state: Callable[[], dict[str, object]],
        calls: Calls,
    ) -> None:
        super().__init__(bus)
        self._calls = calls
        self._coordinator = coordinator
        self._own_state = state

    async def listen(self, seconds: float = LISTEN) -> dict[str, Heartbeat]:
        """Return the latest heartbeats of the nodes that are alive after this time, by node."""
        await asyncio.sleep(seconds)
        alive = self._coordinator.members.alive()
        return {name: member.heartbeat for name, member in alive.items()}

    async def status(self, seconds: float = 0.0) -> dict[str, Any]:
        """Return the nodes that are alive and the owner of each partition, as this node sees them.

        `node` is the name of this node.
        """
        alive = await self.listen(seconds)
        told = await self.describe(alive, self._coordinator.ownership.table)
        return {"node": self.name, **told}

    @property
    def name(self) -> str:
        """The name of this node."""
        return self._coordinator.members.me.node

    @property
    def most(self) -> int:
        """Bytes that a question to another node has at most."""
        return self._calls.most

    def owner(self, partition: int) -> str:
        """Return the node that owns a partition, empty where there is none."""
        return self._coordinator.ownership.owner(partition)

    def standbys(self, partition: int) -> list[str]:
        """Return the nodes that follow a partition."""
        alive = self._coordinator.members.alive()
        owner = self.owner(partition)
        return sorted(
            name for name, one in alive.items() if partition in one.heartbeat.lag and name != owner
        )

    def nodes(self) -> dict[str, str]:
        """Return where HTTP of each node that is alive is reached, by node; empty: nowhere."""
        alive = self._coordinator.members.alive()
        return {name: one.heartbeat.http for name, one in sorted(alive.items())}

    async def ask(
        self, node: str, question: bytes, *, timeout: float, most: int = MOST_BYTES
    ) -> bytes:
        """Ask the HTTP of another node, see `Calls.ask`."""
        if not _is_name(node):
            raise RefusedError("busy", "the name of a node cannot be used")
        return await self._calls.ask(node, question, timeout=timeout, most=min(most, MOST_BYTES))

    async def _state(self, node: str) -> dict[str, Any]:
        if node == self.name:
            return self._own_state()
        if not _is_name(node):
            return {"links": [], "silent": True}
        return await super()._state(node)

    async def drain(self, node: str, *, on: bool, timeout: float) -> None:
        """Drain a node, or end that, see `Operator.drain`."""
        _check(node)
        await super().drain(node, on=on, timeout=timeout)

    async def move(self, partition: int, node: str, timeout: float) -> None:
        """Move a partition to a node, see `Operator.move`."""
        _check(node)
        await super().move(partition, node, timeout)


def _is_name(node: str) -> bool:
    """Whether this can be a part of a subject of NATS: a heartbeat may have any name."""
    try:
        check_name("cluster.node", node)
    except ConfigError:
        return False
    return True


def _check(node: str) -> None:
    if not _is_name(node):
        raise RefusedError("not_found", "a node's name has 1 to 64 letters, digits, - or _")
