"""Faults of nodes and of NATS servers while clients work, judged by the history checker.

After each fault everything is read back from the streams: what was acknowledged is found, offsets
have no holes, each producer's messages are in order, keys are linearizable, and queue messages are
delivered until they are acknowledged, and not after.

Faults of the journal alone are in `tests/journal/test_jetstream.py`: killed and stopped stream
leaders, lost answers, racing owners, a damaged replica that leads, holes that nobody can fill.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.history import Told, check
from tests.cluster.load import Load, find
from tests.cluster.processes import Nodes
from tests.cluster.servers import Servers
from tests.cluster.test_processes import ready

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.slow,
]

NAMES = ("a", "b", "c")
Fault = Callable[["Scene"], Awaitable[object]]


class Scene:
    """A cluster, and what can be done to it."""

    def __init__(self, folder: Path, servers: Servers, nodes: Nodes, prefix: str, replicas: int):
        self.folder, self.servers, self.nodes = folder, servers, nodes
        self.prefix, self.replicas = prefix, replicas

    async def judge(self, fault: Fault, *, names: tuple[str, ...] = NAMES) -> Load:
        """Let clients work while something happens; assert that the history is right."""
        await ready(self.nodes)
        load = Load(self.nodes, names)
        await load.run(fault(self))
        await ready(self.nodes)  # all that is alive serves again
        await asyncio.to_thread(self.nodes.stop)
        urls, replicas = self.servers.urls, self.replicas
        found = await asyncio.to_thread(find, self.folder, urls, self.prefix, replicas)
        assert check(load.history, found) == []
        kinds = {one.kind for one in load.history if one.told is Told.DONE}
        assert kinds >= {"publish", "write", "put"}, "too little was done to judge"
        print(f"longest silence: {max(load.silences.values()):.2f} s")
        return load

    def owner(self) -> str:
        """A node that serves something, and not the last one."""
        return max(self.nodes.all, key=lambda name: len(self.served(name)))

    def served(self, name: str) -> list[int]:
        """The partitions that a node serves."""
        told = self.nodes.all[name].get("/v1/cluster")
        (mine,) = [one for one in told["nodes"] if one["node"] == name]
        found: list[int] = mine["owned"]
        return found


@pytest.fixture
def scene(nats: Servers, prefix: str, tmp_path: Path) -> Iterator[Scene]:
    """Three nodes on one NATS server."""
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        nodes.start(*NAMES)
        yield Scene(tmp_path, nats, nodes, prefix, 1)


async def test_an_owner_that_stood_still_for_longer_than_its_lease(scene: Scene) -> None:
    async def fault(scene: Scene) -> None:
        victim = scene.nodes.all[scene.owner()]
        victim.freeze()
        await asyncio.sleep(4.0)  # twice the time after which it is dead
        victim.thaw()

    await scene.judge(fault)
