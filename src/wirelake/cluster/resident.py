"""The operator that lives in a node: what its console and its HTTP interface tell and do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from wirelake.cluster.bus import Bus, check_name
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
        self, bus: Bus, coordinator: Coordinator, state: Callable[[], dict[str, object]]
    ) -> None:
        super().__init__(bus)
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
        return {"node": self._coordinator.members.me.node, **told}

    async def _state(self, node: str) -> dict[str, Any]:
        if node == self._coordinator.members.me.node:
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
