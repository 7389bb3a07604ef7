"""Engines of two nodes over real streams: partitions move between them with all that is in them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.journal.servers import PATIENCE, Servers
from wirelake.errors import EngineError
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.streams import Access
from wirelake.message import Message

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """Three servers that are a cluster."""
    with Servers(tmp_path_factory.mktemp("three"), 3) as servers:
        yield servers


class Node:
    """An engine over its own journal, on the loop that runs."""

    def __init__(self, journal: JetStreamJournal) -> None:
        self.journal = journal
        self.engine = Engine(journal, loop=asyncio.get_running_loop(), adopted=())

    async def adopt(self, partition: int) -> None:
        """Take a partition up, as long as it takes."""
        ends = asyncio.get_running_loop().time() + PATIENCE
        while True:
            try:
                found = await asyncio.to_thread(self.journal.recover, partition)
            except EngineError as error:
                if not error.retriable or asyncio.get_running_loop().time() > ends:
                    raise
                await asyncio.sleep(0.1)
            else:
                self.engine.adopt(partition, found)
                return

    def name(self, partition: int, prefix: str) -> str:
        """A name that belongs to a partition."""
        names = (f"{prefix}/{k}" for k in count())
        return next(name for name in names if self.engine.home(name) == partition)

    async def set_key(self, partition: int, value: bytes) -> bool:
        """Write a key; whether it became durable."""
        self.engine.write_entry(Entry(self.name(partition, "key"), 1, value))
        return await self.durable()

    async def put(self, partition: int, sequence: int, payload: bytes) -> bool:
        """Put a message into a queue; whether it became durable."""
        queue = self.name(partition, "queue")
        message = Message(address=queue, payload=payload)
        self.engine.put(Stored(queue, sequence, message), captured=sequence % 2 == 0)
        return await self.durable()

    async def durable(self) -> bool:
        """Whether all that was written in this turn became durable."""
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.engine.after(lambda: told.set_result(True), failed=lambda: told.set_result(False))
        return await asyncio.wait_for(told, PATIENCE)

    def values(self, partition: int) -> list[bytes | None]:
        """The values of a partition's keys."""
        return [entry.value for _, entry in self.engine.entries(partition)]


@contextlib.asynccontextmanager
async def nodes(servers: Servers, folder: Path, *names: str) -> AsyncIterator[list[Node]]:
    """Nodes of a new cluster with four partitions."""
    settings = StreamSettings(prefix=f"E{secrets.token_hex(4)}", partitions=4, tidy_every=0)

    def make(name: str) -> JetStreamJournal:
        return JetStreamJournal(folder / name, Access(servers=servers.urls), settings, node=name)

    made = [Node(await asyncio.to_thread(make, name)) for name in names]
    try:
        yield made
    finally:
        for node in made:
            with contextlib.suppress(EngineError):
                await asyncio.to_thread(node.engine.close)


async def test_a_partition_moves_with_its_queues_keys_and_ids(
    three: Servers, tmp_path: Path
) -> None:
    async with nodes(three, tmp_path, "a", "b") as (a, b):
        for partition in range(4):
            await a.adopt(partition)
        queue = a.name(1, "queue")
        a.engine.declare(QueueSettings(queue))
        for k in range(1, 6):
            assert await a.put(1, k, b"m%d" % k)
        a.engine.remember_id(queue, "seen", 1e12)
        a.engine.drop(queue, 2)
        assert await a.set_key(1, b"one")
        assert await a.set_key(2, b"two")
        a.engine.lose(1)
        await b.adopt(1)
        assert b.values(1) == [b"one"]
        stored = b.engine.stored(queue)
        assert [one.message.payload for one in stored] == [b"m1", b"m3", b"m4", b"m5"]
        assert [name for name, _ in b.engine.remembered_ids(queue)] == ["seen"]
        following = b.engine.next_sequence(queue)
        assert await b.put(1, following, b"by b")
        assert await a.set_key(2, b"a goes on")
        assert [b.engine.is_here(partition) for partition in range(4)] == [
            False,
            True,
            False,
            False,
        ]


async def test_an_owner_that_does_not_know_it_is_none_any_more_loses_what_it_writes(
    three: Servers, tmp_path: Path
) -> None:
    async with nodes(three, tmp_path, "a", "b") as (a, b):
        for partition in (0, 1):
            await a.adopt(partition)
            assert await a.set_key(partition, b"old")
        await b.adopt(0)
        assert await b.set_key(0, b"by b")
        assert not await a.set_key(0, b"by a")
        assert not a.engine.is_here(0)
        assert await a.set_key(1, b"a goes on")
        a.engine.lose(0)
        await a.adopt(0)
        assert a.values(0) == [b"by b"]
        assert not await b.set_key(0, b"b is late")


def opened(folder: Path, access: Access, settings: StreamSettings, partition: int) -> Engine:
    """Open a partition on a node of its own, as soon as the streams have a leader."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            journal = JetStreamJournal(folder, access, settings, node="cold")
            return Engine(journal, adopted=[partition])
        except EngineError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)


async def test_nothing_acknowledged_is_lost_while_servers_die_and_partitions_move(
    three: Servers, tmp_path: Path
) -> None:
    acked: dict[int, list[bytes]] = {0: [], 1: []}
    async with nodes(three, tmp_path, "a", "b") as both:
        owner = dict.fromkeys(acked, both[0])
        for partition in acked:
            await both[0].adopt(partition)
            both[0].engine.declare(QueueSettings(both[0].name(partition, "queue")))

        async def work(partition: int, turns: Callable[[], bool]) -> None:
            number = 0
            while turns():
                node = owner[partition]
                number += 1
                with contextlib.suppress(EngineError):
                    if not node.engine.is_here(partition):
                        await node.adopt(partition)  # refused while the stream has no leader
                    following = node.engine.next_sequence(node.name(partition, "queue"))
                    if await node.put(partition, following, b"%d" % number):
                        acked[partition].append(b"%d" % number)

        async def trouble() -> None:
            for k in range(2):
                await asyncio.sleep(1)
                leader = await asyncio.to_thread(three.leader, both[0].journal._all[k].stream.name)
                await asyncio.to_thread(three.kill, leader)
                await asyncio.sleep(1)
                owner[k].engine.lose(k)
                owner[k] = both[1]
                await asyncio.sleep(1)
                await asyncio.to_thread(three.start, [leader])

        faults = asyncio.create_task(trouble())
        await asyncio.gather(*(work(partition, lambda: not faults.done()) for partition in acked))
        await faults
    for partition, told in acked.items():
        assert len(told) > 5
        node = both[1]
        queue = node.name(partition, "queue")
        access = Access(servers=three.urls)
        cold = opened(tmp_path / "cold", access, both[0].journal._settings, partition)
        found = [one.message.payload for one in cold.stored(queue)]
        cold.close()
        assert set(told) <= set(found)
        assert len(found) == len(set(found)), "once"
        assert [one for one in found if one in set(told)] == told, "in order"
