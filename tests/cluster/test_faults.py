"""Faults of nodes and of NATS servers while clients work, judged by the history checker.

After each fault everything is read back from the streams: what was acknowledged is found, offsets
have no holes, each producer's messages are in order, keys are linearizable, and queue messages are
delivered until they are acknowledged, and not after.

Faults of the journal alone are in `tests/journal/test_jetstream.py`: killed and stopped stream
leaders, lost answers, racing owners, a damaged replica that leads, holes that nobody can fill.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import wirelake
from tests.cluster.history import Told, check
from tests.cluster.load import Load, find
from tests.cluster.processes import Nodes, until
from tests.cluster.servers import Servers
from tests.cluster.test_processes import insist, ready
from wirelake.client import Client
from wirelake.errors import WirelakeError
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


#: The clocks of nodes, in seconds ahead of this machine's.
CLOCKS = {"a": 0.0, "b": 3600.0, "c": -3600.0}


@pytest.mark.soak
async def test_clocks_that_are_an_hour_apart(nats: Servers, prefix: str, tmp_path: Path) -> None:
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        for name, ahead in CLOCKS.items():
            nodes.prepare(name).ahead = ahead
        await asyncio.to_thread(nodes.start, *NAMES)

        async def fault(scene: Scene) -> None:
            for name in ("c", "b"):  # what one has, others with other clocks take over
                await asyncio.to_thread(scene.nodes.all[name].kill)
                await asyncio.sleep(4.0)
                await asyncio.to_thread(scene.nodes.restart, name)
                await ready(scene.nodes)

        await Scene(tmp_path, nats, nodes, prefix, 1).judge(fault)


@pytest.mark.parametrize("owner", ["b", "c"])
async def test_an_id_is_taken_once_whatever_the_clock_of_its_owner_says(
    owner: str, nats: Servers, prefix: str, tmp_path: Path
) -> None:
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        for name in ("a", owner):
            nodes.prepare(name).ahead = CLOCKS[name]
        await asyncio.to_thread(nodes.start, "a", owner)
        await ready(nodes)
        queues = [f"work/{k}" for k in range(12)]  # each node owns some
        hosts = [nodes.all[one].url("").removeprefix("://") for one in ("a", owner)]
        url = f"kobold-3://{','.join(hosts)}"
        async with wirelake.connect(url, client_id="ann", timeout=60.0) as client:
            for _ in range(2):
                for queue in queues:
                    put = client.queue(queue).put
                    await insist(lambda put=put: put(b"x", id="once"))  # type: ignore[misc]
                await asyncio.to_thread(nodes.all[owner].kill)
            counts = {queue: len(await client.queue(queue).get(10)) for queue in queues}
        assert counts == dict.fromkeys(queues, 1)


@pytest.mark.soak
async def test_a_nats_server_that_is_cut_off_from_the_others(prefix: str, tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    with ExitStack() as stack:
        servers = Servers(tmp_path / "nats", 3)
        proxy = stack.enter_context(Proxy(f"kobold-3://127.0.0.1:{servers.route(2)}"))
        servers.ways[2] = proxy.port
        stack.enter_context(servers)
        nodes = stack.enter_context(Nodes(tmp_path, servers.urls, prefix, replicas=3))
        nodes.ways["c"] = [servers.urls[2]]  # on the side of the minority
        nodes.ways["a"] = nodes.ways["b"] = servers.urls[:2]
        await asyncio.to_thread(nodes.start, *NAMES)

        async def fault(scene: Scene) -> None:
            carried = proxy.to_client.carried
            proxy.to_client.half_open()
            proxy.to_broker.half_open()
            await asyncio.sleep(15.0)  # longer than an election
            assert carried, "the servers talked through it"
            proxy.heal()
            proxy.reset()

        await Scene(tmp_path, servers, nodes, prefix, 3).judge(fault)


@pytest.mark.soak
async def test_a_nats_server_without_room_refuses_and_loses_nothing(
    prefix: str, tmp_path: Path
) -> None:
    (tmp_path / "nats").mkdir()
    with (
        Servers(tmp_path / "nats", jetstream=", max_file_store: 8MB") as servers,
        Nodes(tmp_path, servers.urls, prefix) as nodes,
    ):
        await asyncio.to_thread(nodes.start, "a")
        await ready(nodes)
        done, refused = [], 0
        async with wirelake.connect(nodes.all["a"].url("kobold-3"), client_id="ann") as client:
            for k in range(60):
                try:
                    put = client.queue("big").put(b"%d " % k + os.urandom(400_000), id=str(k))
                    await asyncio.wait_for(put, 60.0)
                    done.append(k)
                except (WirelakeError, TimeoutError):
                    refused += 1
                    if refused == 2:
                        break
        assert done
        assert refused, "there was room for all"
        node, server = nodes.all["a"], servers.processes[0]
        await asyncio.to_thread(node.kill)
        server.terminate()
        await asyncio.to_thread(server.wait)
        servers.jetstream = ""
        await asyncio.to_thread(servers.restart, 0)
        await asyncio.to_thread(nodes.restart, "a")
        await ready(nodes)
        async with wirelake.connect(node.url("kobold-3"), client_id="ann", timeout=60.0) as client:
            await insist(lambda: client.queue("big").put(b"again", id=str(done[0])))
            found = []
            while some := await client.queue("big").get(10):
                found += some
        numbers = [int(one.message.payload.split()[0]) for one in found]
        assert len(numbers) == len(set(numbers)), "an id was put twice"
        assert set(done) <= set(numbers)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system needs the right to mount one")
    try:
        yield folder
    finally:
        until(
            lambda: not subprocess.run(["umount", str(folder)], check=False).returncode,
            "nobody uses it any more",
        )


@pytest.mark.soak
async def test_a_node_whose_disk_is_full(
    nats: Servers, prefix: str, tmp_path: Path, small: Path
) -> None:
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        nodes.prepare("b").data = small / "data"
        await asyncio.to_thread(nodes.start, *NAMES)
        filler = small / "filler"

        async def fault(scene: Scene) -> None:
            with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(bytes(4096))
            ends = time.monotonic() + 8.0
            while time.monotonic() < ends:  # nothing that is freed meanwhile is left free
                with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
                    file.write(bytes(4096))
                await asyncio.sleep(0.1)
            filler.unlink()

        await Scene(tmp_path, nats, nodes, prefix, 1).judge(fault)


@pytest.mark.parametrize("kind", ["queue", "keys"])
async def test_a_damaged_copy_of_a_standby_is_fetched_again(
    kind: str, nats: Servers, prefix: str, tmp_path: Path
) -> None:
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        await asyncio.to_thread(nodes.start, "a", "b")
        await ready(nodes)
        scene = Scene(tmp_path, nats, nodes, prefix, 1)
        hosts = [nodes.all[one].url("").removeprefix("://") for one in ("a", "b")]
        names = [f"much/{k}" for k in range(24)]  # each node owns some
        payloads = {name: name.encode() * 5_000 for name in names}
        url = f"kobold-3://{','.join(hosts)}"
        async with wirelake.connect(url, client_id="ann", timeout=60.0) as client:
            for name, payload in payloads.items():
                put = client.queue(name).put if kind == "queue" else client.store.put
                given = (payload,) if kind == "queue" else (name, payload)
                await insist(lambda put=put, given=given: put(*given))  # type: ignore[misc]
            owned = scene.served("a")
            copies = [nodes.all["b"].data / "copies" / f"{one:04}" for one in owned]

            def is_level() -> bool:
                """Whether the standby has all that the owner has."""
                return all(_size(one) == _size(_beside(one, "b", "a")) for one in copies)

            await asyncio.to_thread(until, is_level, "the standby has everything")
            assert sum(_damage(one) for one in copies), "there was something to damage"
            await asyncio.to_thread(nodes.all["a"].kill)
            await ready(nodes)
            found = {}
            for name in names:
                found[name] = await insist(lambda name=name: _take(client, kind, name))  # type: ignore[misc]
        assert found == payloads
        assert "is damaged, and is fetched again" in nodes.all["b"].log()


async def _take(client: Client, kind: str, name: str) -> bytes:
    """What a queue or a key has; waits for it."""
    if kind == "keys":
        return (await client.store.read(name)).value
    (found,) = await client.queue(name).get(1, wait=30.0)
    return found.message.payload


def _beside(copy: Path, node: str, other: str) -> Path:
    """The same partition's copy of another node."""
    return Path(str(copy).replace(f"/{node}/data/", f"/{other}/data/"))


def _size(copy: Path) -> int:
    return sum(one.stat().st_size for one in copy.rglob("*.wlj"))


def _damage(copy: Path) -> int:
    """Turn a bit of every payload in a copy; return how many."""
    count = 0
    for path in copy.rglob("*.wlj"):
        data = path.read_bytes()
        with path.open("r+b") as file:
            for found in re.finditer(rb"(?:much/\d+){4000,}", data):
                file.seek(found.start() + 100)
                file.write(bytes([data[found.start() + 100] ^ 1]))
                count += 1
    return count
