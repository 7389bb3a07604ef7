"""What operators ask of a cluster: its state, a node to be drained, a partition to be moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from wirelake.cluster.bus import Bus
from wirelake.cluster.coordinator import Command, ask
from wirelake.cluster.members import Heartbeat
from wirelake.cluster.ownership import Place
from wirelake.errors import EngineError, RefusedError

#: How long heartbeats are listened for, unless told otherwise (seconds).
LISTEN = 1.5
#: How long a node may take to tell its state (seconds).
ANSWER = 2.0


class _Stored(msgspec.Struct):
    places: list[Place]


class Operator:
    """A connection of somebody who looks after a cluster. The bus is connected."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._heard: dict[str, Heartbeat] = {}

    async def listen(self, seconds: float = LISTEN) -> dict[str, Heartbeat]:
        """Return the heartbeats that were heard in this time, by node."""
        if not self._heard:
            await self._bus.subscribe("beat", self._hear)
        await asyncio.sleep(seconds)
        return self._heard

    def _hear(self, _: str, data: bytes) -> None:
        heartbeat = msgspec.json.decode(data, type=Heartbeat)
        if heartbeat.leaving:
            self._heard.pop(heartbeat.node, None)
        else:
            self._heard[heartbeat.node] = heartbeat

    async def status(self, seconds: float = LISTEN) -> dict[str, Any]:
        """Return the nodes that are alive, and the owner of each partition.

        Raises EngineError where NATS does not answer.
        """
        await self._bus.find_bucket()
        alive = dict(await self.listen(seconds))
        data, _ = await self._bus.read_table()
        places = msgspec.json.decode(data, type=_Stored).places if data else []
        return await self.describe(alive, places)

    async def describe(
        self, alive: dict[str, Heartbeat], places: Sequence[Place]
    ) -> dict[str, Any]:
        """Return the state of these nodes, and of the partitions in this table of owners."""
        states = await asyncio.gather(*(self._state(name) for name in sorted(alive)))
        nodes = []
        for (name, said), state in zip(sorted(alive.items()), states, strict=True):
            told = {
                "node": name,
                "version": said.version,
                "http": said.http,
                "listeners": list(said.listeners),
                "owned": list(said.owned),
                "standby": {str(one): lag for one, lag in said.lag.items()},
                "draining": said.draining,
                "deaf": said.deaf,
                "age": round(said.age),
                "settings": said.settings,
            }
            nodes.append(told | state)
        # A node that is older than this field does not tell its epochs.
        epochs = {int(k): n for one in states for k, n in one.get("epochs", {}).items()}
        partitions = [
            self._partition(k, place, alive) | {"epoch": epochs.get(k, 0)}
            for k, place in enumerate(places)
        ]
        same = len({one.settings for one in alive.values()}) <= 1
        return {
            "cluster": self._bus.prefix,
            "nodes": nodes,
            "partitions": partitions,
            "same_settings": same,
        }

    def _partition(self, k: int, place: Place, alive: dict[str, Heartbeat]) -> dict[str, Any]:
        owner = alive.get(place.node)
        is_alive = owner is not None and owner.life == place.life
        return {
            "partition": k,
            "owner": place.node if is_alive else "",
            "served": is_alive and owner is not None and k in owner.owned,
            "moved_to": place.pin,
            "standbys": sorted(name for name, said in alive.items() if k in said.lag),
        }

    async def _state(self, node: str) -> dict[str, Any]:
        try:
            answer = await self._bus.request(f"state.{node}", b"", ANSWER)
        except EngineError:
            return {"links": [], "silent": True}
        found: dict[str, Any] = msgspec.json.decode(answer)
        return found

    async def drain(self, node: str, *, on: bool, timeout: float) -> None:
        """Let a node give its partitions away and take no new ones, or take some again.

        Returns when it has none left. Raises RefusedError: `not_found` where there is no such node,
        `timeout` where it keeps some.
        """
        await self._command(node, Command(drain=on))
        ends = time.monotonic() + timeout
        while on:
            said = (await self.listen(0.2)).get(node)
            if said is None or (said.draining and not said.owned):
                return
            if time.monotonic() > ends:
                raise RefusedError("timeout", f"{node} still serves {list(said.owned)}")

    async def move(self, partition: int, node: str, timeout: float) -> None:
        """Give a partition to a node from now on, and wait until that serves it.

        Raises RefusedError: `not_found` where there is no such partition or node, `timeout` where
        the node does not serve it in time.
        """
        await self._command(node, Command(move=(partition, node)))
        ends = time.monotonic() + timeout
        while True:
            said = (await self.listen(0.2)).get(node)
            if said is not None and partition in said.owned:
                return
            if time.monotonic() > ends:
                text = f"{node} does not serve partition {partition} yet"
                raise RefusedError("timeout", text)

    async def _command(self, node: str, command: Command) -> None:
        try:
            await ask(self._bus, node, command)
        except EngineError:
            raise RefusedError("not_found", f"no node {node} answers") from None
