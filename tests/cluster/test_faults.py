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
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.history import Told, check
from tests.cluster.load import Load, find
from tests.cluster.processes import Nodes
from tests.cluster.servers import Servers
from tests.cluster.test_processes import ready
from wirelake.testing import Proxy

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


@pytest.fixture
def three(prefix: str, tmp_path: Path) -> Iterator[Scene]:
    """Three nodes on three NATS servers of this test alone."""
    (tmp_path / "nats").mkdir()
    with (
        Servers(tmp_path / "nats", 3) as servers,
        Nodes(tmp_path, servers.urls, prefix, replicas=3) as nodes,
    ):
        nodes.start(*NAMES)
        yield Scene(tmp_path, servers, nodes, prefix, 3)


async def test_an_owner_that_stood_still_for_longer_than_its_lease(scene: Scene) -> None:
    async def fault(scene: Scene) -> None:
        victim = scene.nodes.all[scene.owner()]
        victim.freeze()
        await asyncio.sleep(4.0)  # twice the time after which it is dead
        victim.thaw()

    await scene.judge(fault)


@pytest.mark.soak
async def test_an_owner_and_its_standby_are_killed_at_once(scene: Scene) -> None:
    async def fault(scene: Scene) -> None:
        # With three nodes, the standby of some partition of one is the other, whichever they are.
        for name in ("a", "b"):
            scene.nodes.all[name].process.kill()
        for name in ("a", "b"):
            await asyncio.to_thread(scene.nodes.all[name].process.wait)
        await asyncio.sleep(2.0)
        await asyncio.to_thread(scene.nodes.restart, "a")
        await asyncio.to_thread(scene.nodes.restart, "b")

    await scene.judge(fault)


@pytest.mark.soak
@pytest.mark.parametrize("way", ["both ways", "nothing comes", "nothing goes"])
async def test_a_node_that_is_cut_off_from_nats(
    way: str, nats: Servers, prefix: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        place = nats.urls[0].replace("nats://", "kobold-3://")
        proxy = stack.enter_context(Proxy(place))
        nodes = stack.enter_context(Nodes(tmp_path, nats.urls, prefix))
        nodes.ways["b"] = [f"nats://127.0.0.1:{proxy.port}"]
        await asyncio.to_thread(nodes.start, *NAMES)

        async def fault(scene: Scene) -> None:
            if way != "nothing goes":
                proxy.to_client.half_open()
            if way != "nothing comes":
                proxy.to_broker.half_open()
            await asyncio.sleep(5.0)
            proxy.heal()
            proxy.reset()  # what was dropped is missing in the middle of the streams of bytes

        await Scene(tmp_path, nats, nodes, prefix, 1).judge(fault)


@pytest.mark.soak
async def test_answers_of_nats_are_lost_now_and_then(
    nats: Servers, prefix: str, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(nats.urls[0].replace("nats://", "kobold-3://")))
        nodes = stack.enter_context(Nodes(tmp_path, nats.urls, prefix))
        nodes.ways["a"] = [f"nats://127.0.0.1:{proxy.port}"]
        await asyncio.to_thread(nodes.start, *NAMES)

        async def fault(scene: Scene) -> None:
            for _ in range(4):  # what was sent is stored, and nobody hears of it
                proxy.to_client.half_open()
                await asyncio.sleep(0.3)
                proxy.heal()
                proxy.reset()
                await asyncio.sleep(1.0)

        await Scene(tmp_path, nats, nodes, prefix, 1).judge(fault)


@pytest.mark.soak
async def test_an_owner_and_a_nats_server_are_killed_at_once(three: Scene) -> None:
    async def fault(scene: Scene) -> None:
        scene.nodes.all[scene.owner()].process.kill()
        scene.servers.processes[1].kill()
        await asyncio.to_thread(scene.servers.processes[1].wait)
        await asyncio.sleep(12.0)  # an election takes up to 9 s
        await asyncio.to_thread(scene.servers.restart, 1)

    await three.judge(fault)


@pytest.mark.soak
async def test_all_nodes_and_all_nats_servers_are_restarted_one_by_one(three: Scene) -> None:
    async def fault(scene: Scene) -> None:
        for name in NAMES:
            assert await asyncio.to_thread(scene.nodes.all[name].stop) == 0
            await asyncio.to_thread(scene.nodes.restart, name)
            await ready(scene.nodes)
        for k in range(3):
            scene.servers.processes[k].terminate()
            await asyncio.to_thread(scene.servers.processes[k].wait)
            await asyncio.to_thread(scene.servers.restart, k)
            await ready(scene.nodes)

    load = await three.judge(fault)
    assert max(load.silences.values()) < 10.0


@pytest.mark.soak
async def test_a_nats_server_that_stands_still(three: Scene) -> None:
    async def fault(scene: Scene) -> None:
        scene.servers.freeze(2)
        await asyncio.sleep(12.0)
        scene.servers.thaw(2)

    await three.judge(fault)
