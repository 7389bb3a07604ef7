"""Whole nodes over three real NATS servers: clients go on when a node or a server ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.broker.desk import Client, Desk, ops
from tests.cluster.servers import Servers, binary
from tests.cluster.test_coordinator import Journalled, until
from tests.cluster.test_edge import answers, read_until
from tests.journal.streamed import Stream
from wirelake.broker.node import Node
from wirelake.cluster.bus import Bus
from wirelake.cluster.members import Heartbeat
from wirelake.cluster.node import ClusterNode
from wirelake.journal.batch import home
from wirelake.journal.engine import Engine
from wirelake.message import Flag, Message

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PARTITIONS = 6


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Servers]:
    """Three servers that are a cluster."""
    if binary() is None:
        pytest.skip("nats-server is not installed")
    with Servers(tmp_path, 3) as servers:
        yield servers


class Member(Desk):
    """A node with clients that are lists."""

    def __init__(self, bus: Bus, name: str, streams: list[Stream]) -> None:
        super().__init__(Node(Engine.in_memory(partitions=PARTITIONS)))
        self.name = name
        self.bus = bus
        me = Heartbeat(name, f"{name}-{time.monotonic_ns()}")
        self.cluster = ClusterNode(bus, self.node, me, PARTITIONS, Journalled(streams, name))


@asynccontextmanager
async def members(servers: Servers, *names: str) -> AsyncIterator[dict[str, Member]]:
    """Nodes, each connected to another server first, that serve all partitions."""
    streams = [Stream() for _ in range(PARTITIONS)]
    made: dict[str, Member] = {}
    try:
        for number, name in enumerate(names):
            urls = servers.urls[number:] + servers.urls[:number]
            bus = await Bus.connect(urls, "wl", name, dont_randomize=True)
            await bus.open_bucket(replicas=3)
            made[name] = Member(bus, name, streams)
            await made[name].cluster.start()
        await until(lambda: are_whole(made))
        yield made
    finally:
        for member in made.values():
            await member.cluster.abort()
            await member.bus.close()


def are_whole(nodes: dict[str, Member]) -> bool:
    """Whether every partition has one owner, whom all know, and all have links to all."""
    views = [one.cluster.coordinator.ownership for one in nodes.values()]
    served = [(k, view.members.me.node) for view in views for k in view.owned()]
    known = [[(k, view.owner(k)) for k in range(PARTITIONS)] for view in views]
    others = len(nodes) - 1
    return all(one == sorted(served) for one in known) and all(
        len(one.cluster.edge.upstreams) == len(one.cluster.edge.downstreams) == others
        for one in nodes.values()
    )


def address_of(member: Member, owner: str) -> str:
    """An address that a node owns, as another one sees it."""
    ownership = member.cluster.coordinator.ownership
    tries = (f"town/{k}" for k in range(10_000))
    return next(one for one in tries if ownership.owner(home(one.encode(), PARTITIONS)) == owner)


async def publish(client: Client, address: str, number: int) -> float:
    """Publish until it is accepted; return how long that took."""
    begun = time.monotonic()
    while True:
        message = Message(address=address, payload=b"%d" % number, id=f"m{number}", flags=Flag.ACK)
        client.send(message)
        told = await answers(client)
        if ops(told)[-1] == "ok":
            return time.monotonic() - begun
        assert told[-1].parameters.code == "busy"
        await asyncio.sleep(0.01)


async def test_clients_of_other_nodes_go_on_when_an_owner_is_killed(three: Servers) -> None:
    async with members(three, "a", "b", "d") as nodes:
        address = address_of(nodes["a"], "b")
        ann = nodes["a"].client("kobold-3")
        reader = nodes["d"].client("mfp-1", role="sub")
        reader.subscribe(address)
        await publish(ann, address, 0)
        killed = nodes.pop("b")
        await killed.cluster.abort()
        await killed.bus.close()
        took = await publish(ann, address, 1)
        await until(lambda: are_whole(nodes))
        await publish(ann, address, 2)
        await read_until(reader, b"2")
        kinds = {str(event["event"]) for event in nodes["a"].node.vitals.events}
        assert {"member_lost", "link_lost"} <= kinds
        print(f"silence after a kill: {took:.2f} s")


async def test_a_planned_stop_is_hardly_noticed(three: Servers) -> None:
    async with members(three, "a", "b") as nodes:
        address = address_of(nodes["a"], "b")
        ann = nodes["a"].client("kobold-3")
        await publish(ann, address, 0)
        stopping = nodes.pop("b")
        begun = time.monotonic()
        await stopping.cluster.coordinator.stop()
        took = time.monotonic() - begun
        await until(lambda: are_whole(nodes))
        await publish(ann, address, 1)
        await stopping.cluster.peers.stop()
        await stopping.bus.close()
        # Nobody waited for silence: that is told apart by the events, not by the clock.
        kinds = [str(event["event"]) for event in nodes["a"].node.vitals.events]
        assert "member_lost" not in kinds
        assert "member_left" in kinds
        print(f"hand-over: {took:.2f} s")


async def test_nodes_go_on_when_a_nats_server_is_killed(three: Servers) -> None:
    async with members(three, "a", "b") as nodes:
        address = address_of(nodes["a"], "b")
        ann = nodes["a"].client("kobold-3")
        await publish(ann, address, 0)
        three.processes[1].kill()  # the one that b is connected to
        took = await publish(ann, address, 1)
        await until(lambda: are_whole(nodes))
        await publish(ann, address_of(nodes["a"], "b"), 2)
        print(f"silence after a server's kill: {took:.2f} s")
