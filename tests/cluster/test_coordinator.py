"""Nodes on a real NATS server: partitions are shared out, taken over, handed over and moved.

What a partition is made of is the fake journal with shared, fenced streams.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.cluster.servers import Servers
from tests.journal.streamed import Stream, StreamedJournal
from wirelake.cluster.bus import Bus, check_name
from wirelake.cluster.coordinator import Command, Coordinator, ask, end_tasks
from wirelake.cluster.members import Heartbeat, Timing
from wirelake.cluster.ownership import Ownership, Phase
from wirelake.errors import ConfigError, EngineError, RefusedError

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PARTITIONS = 6
#: Waits for what must come are a minute.
PATIENCE = 60.0
#: Quicker than by default, so that tests are.
TIMING = Timing(beat=0.1, dead=0.6, lease=0.2)


class Journalled:
    """Partitions on the fake journal."""

    def __init__(self, streams: list[Stream], name: str) -> None:
        self.journal = StreamedJournal(streams, name)
        self.serves: set[int] = set()
        self.dropped: list[int] = []

    async def take_up(self, partition: int) -> tuple[int, float]:
        """Write the epoch record."""
        sent = time.monotonic()
        return self.journal.recover(partition).epoch, sent

    def serve(self, partition: int) -> None:
        """Note that it is served."""
        self.serves.add(partition)

    async def let_go(self, partition: int) -> None:
        """Nothing is under way."""
        self.serves.discard(partition)

    def drop(self, partition: int) -> None:
        """Forget it."""
        self.serves.discard(partition)
        self.dropped.append(partition)


class Cluster:
    """Nodes that share streams, and a prefix on a server."""

    def __init__(self, servers: Servers, prefix: str) -> None:
        self.servers = servers
        self.prefix = prefix
        self.streams = [Stream() for _ in range(PARTITIONS)]
        self.nodes: dict[str, Coordinator] = {}
        self.work: dict[str, Journalled] = {}
        self.events: list[tuple[str, str]] = []

    async def start(self, name: str, **said: Any) -> Coordinator:
        """Start a node."""
        bus = await Bus.connect(self.servers.urls, self.prefix, name)
        await bus.open_bucket(replicas=1)
        self.work[name] = Journalled(self.streams, name)
        me = Heartbeat(name, f"{name}-{time.monotonic_ns()}", **said)
        node = Coordinator(bus, me, PARTITIONS, self.work[name], TIMING)
        node.on_event = lambda event: self.events.append((event.kind, event.node))
        await node.start()
        self.nodes[name] = node
        return node

    async def kill(self, name: str) -> None:
        """Let a node end without a word."""
        node = self.nodes.pop(name)
        self.work.pop(name)
        await node.abort()
        await node.bus.close()

    async def stop(self, name: str) -> None:
        """Stop a node as planned."""
        node = self.nodes.pop(name)
        await node.stop()
        await node.bus.close()

    def owners(self) -> list[list[str]]:
        """The nodes that serve each partition."""
        return [
            [name for name, work in self.work.items() if partition in work.serves]
            for partition in range(PARTITIONS)
        ]

    def is_balanced(self) -> bool:
        """Whether every partition is served by its target alone, as every node knows."""
        views: list[Ownership] = [node.ownership for node in self.nodes.values()]
        return all(
            owners == [view.target(partition)] == [view.table[partition].node]
            for partition, owners in enumerate(self.owners())
            for view in views
        )


@asynccontextmanager
async def cluster(servers: Servers, prefix: str, *names: str) -> AsyncIterator[Cluster]:
    """A cluster of these nodes, in which every partition is served."""
    made = Cluster(servers, prefix)
    try:
        for name in names:
            await made.start(name)
        await until(
            lambda: all(len(node.members.alive()) == len(names) for node in made.nodes.values())
        )
        await until(made.is_balanced)
        yield made
    finally:
        for name in list(made.nodes):
            await made.kill(name)


async def until(is_so: Callable[[], bool]) -> float:
    """Wait until something is so; return how long that took."""
    begun = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun < PATIENCE
        await asyncio.sleep(0.005)
    return time.monotonic() - begun


async def test_every_partition_is_served_by_one_node(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a", "b", "c") as nodes:
        assert {one for some in nodes.owners() for one in some} <= {"a", "b", "c"}
        said = nodes.nodes["a"].members.alive()
        await until(
            lambda: (
                sorted(k for one in said.values() for k in one.heartbeat.owned)
                == list(range(PARTITIONS))
            )
        )


async def test_partitions_of_a_dead_node_are_taken_over(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a", "b", "c") as nodes:
        before = nodes.nodes["b"].ownership.table
        await nodes.kill("a")
        await until(nodes.is_balanced)
        after = nodes.nodes["b"].ownership.table
        for one, other in zip(before, after, strict=True):
            assert one.node == "a" or one == other  # nobody else's partition moved
        assert ("member_lost", "a") in nodes.events


async def test_a_planned_stop_hands_over_first(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a", "b") as nodes:
        stopping = asyncio.create_task(nodes.stop("a"))
        await until(lambda: nodes.owners() == [["b"]] * PARTITIONS)
        await stopping
        b = nodes.nodes["b"]
        given = [k for k, place in enumerate(b.ownership.table) if place.freed > 0]
        # Nobody waited for a lease, and nobody died.
        assert given
        assert ("member_lost", "a") not in nodes.events
        assert set(b.members.alive()) == {"b"}


async def test_a_node_that_joins_gets_its_share(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a", "b") as nodes:
        await nodes.start("d")
        await until(lambda: len(nodes.nodes["a"].members.alive()) == 3)
        await until(lambda: any(some == ["d"] for some in nodes.owners()) and nodes.is_balanced())


async def test_a_drained_node_gives_everything_away_and_gets_it_back(
    nats: Servers, prefix: str
) -> None:
    async with cluster(nats, prefix, "a", "b") as nodes:
        share = [k for k, some in enumerate(nodes.owners()) if some == ["a"]]
        assert share
        bus = nodes.nodes["b"].bus
        await ask(bus, "a", Command(drain=True))
        await until(lambda: nodes.owners() == [["b"]] * PARTITIONS)
        await ask(bus, "a", Command(drain=False))
        await until(lambda: [k for k, one in enumerate(nodes.owners()) if one == ["a"]] == share)


async def test_a_partition_is_moved_and_moved_back(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a", "b") as nodes:
        mine = next(k for k, some in enumerate(nodes.owners()) if some == ["a"])
        bus = nodes.nodes["a"].bus
        await ask(bus, "b", Command(move=(mine, "b")))
        await until(lambda: nodes.owners()[mine] == ["b"])
        await ask(bus, "a", Command(move=(mine, "")))
        await until(lambda: nodes.owners()[mine] == ["a"])
        with pytest.raises(RefusedError, match="no member nobody"):
            await ask(bus, "a", Command(move=(mine, "nobody")))
        with pytest.raises(RefusedError, match="there is no partition 99: the cluster has 6"):
            await ask(bus, "a", Command(move=(99, "a")))
        with pytest.raises(EngineError, match="no answer"):
            await ask(bus, "nobody", Command(drain=True))


async def test_a_fenced_owner_forgets_its_partition(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a", "b") as nodes:
        mine = next(k for k, some in enumerate(nodes.owners()) if some == ["a"])
        nodes.nodes["a"].lost(mine)
        assert nodes.work["a"].dropped == [mine]
        assert nodes.nodes["a"].ownership.phase(mine) is Phase.AWAY
        await until(nodes.is_balanced)  # as the table still says that it is a's


async def test_differing_settings_and_versions_are_told(nats: Servers, prefix: str) -> None:
    made = Cluster(nats, prefix)
    await made.start("a", settings="x", version="0.2", format=1)
    await made.start("b", settings="y", version="0.3", format=1)
    try:
        wanted = {("settings_differ", "a"), ("settings_differ", "b"), ("versions_differ", "b")}
        await until(lambda: wanted <= set(made.events))
    finally:
        for name in list(made.nodes):
            await made.kill(name)


async def test_the_younger_of_two_nodes_with_one_name_gives_way(nats: Servers, prefix: str) -> None:
    made = Cluster(nats, prefix)
    first = await made.start("a")
    await until(lambda: first.members.me.number > 3)
    second = await made.start("a")
    try:
        await until(second.has_ended.is_set)
        assert not first.members.is_second
        beats = second.members.me.number
        await until(lambda: first.ownership.owned() == tuple(range(PARTITIONS)))
        assert second.members.me.number == beats
    finally:
        for node in (first, second):
            await node.abort()
            await node.bus.close()


async def test_another_number_of_partitions_is_refused(nats: Servers, prefix: str) -> None:
    async with cluster(nats, prefix, "a") as nodes:
        from wirelake.cluster.ownership import decode_table

        data, _ = await nodes.nodes["a"].bus.read_table()
        assert data is not None
        with pytest.raises(EngineError, match="the cluster has 6 partitions, not 16"):
            decode_table(data, 16)


async def test_a_name_that_is_no_part_of_a_subject_is_refused() -> None:
    for name in ("", "a.b", "a b", ">", "x" * 65):
        with pytest.raises(ConfigError, match="is no name"):
            check_name("cluster.node", name)
    with pytest.raises(EngineError, match="no NATS server at"):
        await Bus.connect(
            ["nats://127.0.0.1:1"],
            "p",
            "a",
        )


async def test_a_task_that_swallows_a_cancellation_ends_all_the_same() -> None:
    swallowed = 0

    async def loops() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if swallowed:
                    raise
                swallowed += 1  # as `wait_for` may, up to Python 3.11

    task = asyncio.create_task(loops())
    await asyncio.sleep(0)
    await asyncio.wait_for(end_tasks([task]), 10)
    assert task.cancelled()
    assert swallowed == 1
