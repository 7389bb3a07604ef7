"""Nodes that share partitions in JetStream: take-overs, planned stops, standbys, fences."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from tests.broker.desk import Client, Desk
from tests.cluster.servers import Servers
from tests.cluster.test_coordinator import TIMING, until
from wirelake.broker.node import Node
from wirelake.cluster.bus import Bus
from wirelake.cluster.coordinator import Coordinator
from wirelake.cluster.members import Heartbeat, Timing
from wirelake.cluster.node import ClusterNode
from wirelake.cluster.partitions import SharedPartitions
from wirelake.errors import EngineError
from wirelake.journal.arrow_stream import decode
from wirelake.journal.engine import Engine, Entry, QueueSettings
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.streams import Access
from wirelake.message import Flag, Message, Op, Parameters

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PARTITIONS = 6


class Member:
    """A node: its journal, its engine and its coordinator."""

    def __init__(self, bus: Bus, journal: JetStreamJournal, name: str) -> None:
        self.bus = bus
        self.journal = journal
        self.engine = Engine(journal, loop=asyncio.get_running_loop(), adopted=())
        self.work = SharedPartitions(self.engine, journal)
        me = Heartbeat(name, f"{name}-{time.monotonic_ns()}")
        self.coordinator = Coordinator(bus, me, PARTITIONS, self.work, TIMING)
        self.coordinator.lag = self.work.lag
        self.work.on_lost = self.coordinator.lost
        self.follower: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join, and stand by for others."""
        await self.coordinator.start()
        self.follower = asyncio.create_task(self._stand_by())

    async def _stand_by(self) -> None:
        while True:
            await self.work.stand_by(self.coordinator.ownership)
            await asyncio.sleep(0.1)

    @property
    def serves(self) -> list[int]:
        """The partitions that are here."""
        return [one for one in range(PARTITIONS) if self.engine.is_here(one)]

    async def write(self, partition: int, value: bytes) -> bool:
        """Set a partition's key; whether that became durable."""
        names = (f"k{k}" for k in count())
        name = next(name for name in names if self.engine.home(name) == partition)
        try:
            self.engine.write_entry(Entry(name, 1, value))
        except EngineError:
            return False
        told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.engine.after(
            lambda: told.set_result(True),
            failed=lambda: told.set_result(False),
            partition=partition,
        )
        return await asyncio.wait_for(told, 60)

    def values(self) -> dict[int, bytes | None]:
        """The value of each partition's key, of those that are here."""
        return {partition: entry.value for partition, entry in self.engine.entries()}

    async def end(self, *, planned: bool) -> None:
        """Stop as planned, or at once."""
        if self.follower is not None:
            self.follower.cancel()
        await (self.coordinator.stop() if planned else self.coordinator.abort())
        await self.bus.close()
        with contextlib.suppress(EngineError):
            await asyncio.to_thread(self.engine.close)


class Cluster:
    """The nodes that run."""

    def __init__(self, servers: Servers, prefix: str, folder: Path) -> None:
        self.servers = servers
        self.prefix = prefix
        self.folder = folder
        self.members: dict[str, Member] = {}

    async def add(self, name: str) -> Member:
        """Start a node."""
        bus = await Bus.connect(self.servers.urls, self.prefix, name)
        await bus.open_bucket(replicas=1)
        settings = StreamSettings(
            prefix=self.prefix, partitions=PARTITIONS, replicas=1, tidy_every=0
        )
        access = Access(servers=tuple(self.servers.urls))
        journal = await asyncio.to_thread(
            lambda: JetStreamJournal(self.folder / name, access, settings, node=name)
        )
        member = self.members[name] = Member(bus, journal, name)
        await member.start()
        return member

    def owner(self, partition: int) -> Member:
        """The one node that has a partition."""
        (owner,) = [one for one in self.members.values() if partition in one.serves]
        return owner

    def is_whole(self) -> bool:
        """Whether each partition is served once, where it belongs."""
        views = [one.coordinator.ownership for one in self.members.values()]
        served = sorted(one for member in self.members.values() for one in member.serves)
        return served == list(range(PARTITIONS)) and all(
            partition in self.members[view.target(partition)].serves
            for view in views
            for partition in range(PARTITIONS)
            if view.target(partition) in self.members
        )

    async def write_all(self, value: bytes) -> None:
        """Set each partition's key at its owner, as a client would that tries again."""
        ends = time.monotonic() + 60
        for partition in range(PARTITIONS):
            while True:
                assert time.monotonic() < ends
                owners = [one for one in self.members.values() if partition in one.serves]
                if owners and await owners[0].write(partition, value):
                    break
                await asyncio.sleep(0.02)

    def values(self) -> dict[int, bytes | None]:
        """The value of each partition's key."""
        return {k: v for member in self.members.values() for k, v in member.values().items()}


@pytest.fixture
async def cluster(nats: Servers, prefix: str, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(nats, prefix, tmp_path)
    yield made
    for member in made.members.values():
        await member.end(planned=False)


def everywhere(value: bytes) -> dict[int, bytes]:
    return dict.fromkeys(range(PARTITIONS), value)


async def test_another_node_goes_on_where_one_is_killed(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.add(name)
    await until(cluster.is_whole)
    assert all(one.serves for one in cluster.members.values())
    await cluster.write_all(b"one")
    assert cluster.values() == everywhere(b"one")
    killed = cluster.members.pop("a")
    await killed.end(planned=False)
    await until(cluster.is_whole)
    assert cluster.values() == everywhere(b"one")
    await cluster.write_all(b"two")
    await cluster.add("a")
    await until(cluster.is_whole)
    assert all(one.serves for one in cluster.members.values())
    assert cluster.values() == everywhere(b"two")


async def test_a_planned_stop_hands_over_what_was_written(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.add(name)
    await until(cluster.is_whole)
    await cluster.write_all(b"one")
    leaving = cluster.members["a"]
    mine = leaving.serves
    last = [asyncio.create_task(leaving.write(partition, b"last")) for partition in mine]
    await asyncio.sleep(0)
    stopping = asyncio.create_task(leaving.end(planned=True))
    outcomes = dict(zip(mine, await asyncio.gather(*last), strict=True))
    await stopping
    del cluster.members["a"]
    await until(cluster.is_whole)
    expected = everywhere(b"one") | {one: b"last" for one, kept in outcomes.items() if kept}
    assert all(outcomes.values()), "what was accepted before it let go became durable"
    assert cluster.values() == expected


async def test_a_standby_has_what_its_owner_wrote(cluster: Cluster) -> None:
    for name in ("a", "b"):
        await cluster.add(name)
    await until(cluster.is_whole)
    await cluster.write_all(b"one")
    other = {"a": "b", "b": "a"}
    for name, member in cluster.members.items():
        standby = cluster.members[other[name]]
        await until(lambda m=member, s=standby: s.work.lag().keys() == set(m.serves))  # type: ignore[misc]
        await until(lambda s=standby: set(s.work.lag().values()) <= {0})  # type: ignore[misc]
        for partition in member.serves:
            await until(
                lambda m=member, s=standby, p=partition: (  # type: ignore[misc]
                    m.journal._all[p].copy.end == s.journal._all[p].copy.end
                )
            )


class Broker(Desk):
    """A whole node whose partitions are in JetStream, with clients that are lists."""

    def __init__(
        self, bus: Bus, journal: JetStreamJournal, name: str, timing: Timing = TIMING
    ) -> None:
        self.engine = Engine(journal, loop=asyncio.get_running_loop(), adopted=())
        super().__init__(Node(self.engine))
        self.bus = bus
        work = SharedPartitions(self.engine, journal)
        me = Heartbeat(name, f"{name}-{time.monotonic_ns()}")
        self.cluster = ClusterNode(bus, self.node, me, PARTITIONS, work, timing)
        work.on_lost = self.cluster.coordinator.lost
        self.has_left = False

    async def end(self) -> None:
        """Leave without a word, if it is still there."""
        if self.has_left:
            return
        self.has_left = True
        await self.cluster.abort()
        await self.bus.close()
        with contextlib.suppress(EngineError):
            await asyncio.to_thread(self.engine.close)


async def publish(client: Client, address: str, number: int) -> None:
    """Publish until it is accepted."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        client.send(Message(address=address, payload=b"%d" % number, id="m", flags=Flag.ACK))
        answers: list[Message] = []
        while not answers and time.monotonic() < ends:
            await asyncio.sleep(0.005)
            answers = [one for one in client.take() if one.op in (Op.OK, Op.ERROR)]
        if answers[-1].op == Op.OK:
            return
        assert answers[-1].parameters.code == "busy"
    raise AssertionError("it is never accepted")


@asynccontextmanager
async def two_brokers(
    nats: Servers, prefix: str, tmp_path: Path, timing: Timing = TIMING
) -> AsyncIterator[tuple[Broker, Broker]]:
    """Two whole nodes that own partitions each."""
    settings = StreamSettings(prefix=prefix, partitions=PARTITIONS, replicas=1, tidy_every=0)
    access = Access(servers=tuple(nats.urls))
    brokers: dict[str, Broker] = {}
    try:
        for name in ("a", "b"):
            bus = await Bus.connect(nats.urls, prefix, name)
            await bus.open_bucket(replicas=1)
            journal = await asyncio.to_thread(
                lambda n=name: JetStreamJournal(tmp_path / n, access, settings, node=n)  # type: ignore[misc]
            )
            brokers[name] = Broker(bus, journal, name, timing)
            await brokers[name].cluster.start()
        a, b = brokers["a"], brokers["b"]

        def whole() -> bool:
            here = [one for one in range(PARTITIONS) if a.engine.is_here(one)]
            there = [one for one in range(PARTITIONS) if b.engine.is_here(one)]
            owned = [one.cluster.coordinator.ownership.owned() for one in (a, b)]
            linked = all(one.cluster.edge.upstreams for one in (a, b))
            return (
                bool(here and there and linked)
                and sorted(here + there) == list(range(PARTITIONS))
                and owned == [tuple(here), tuple(there)]
            )

        await until(whole)
        yield a, b
    finally:
        for broker in brokers.values():
            await broker.end()


async def test_what_clients_of_any_node_publish_is_in_the_log_of_the_owner(
    nats: Servers, prefix: str, tmp_path: Path
) -> None:
    async with two_brokers(nats, prefix, tmp_path) as (a, b):
        ann = a.client("kobold-3")
        homes = (f"town/{k}" for k in count())
        address = next(one for one in homes if b.engine.is_here(b.engine.home(one)))
        partition = b.engine.home(address)
        for k in range(20):
            await publish(ann, address, k)
        assert b.engine.positions()[partition].next == 20
        await b.end()
        await until(lambda: a.engine.is_here(partition))
        for k in range(20, 30):
            await publish(ann, address, k)
        rows = [decode(batch.ipc) for batch in a.engine.read(partition, 0, 100)]
        found = [value.as_py() for batch in rows for value in batch.column("payload")]
        assert found == [b"%d" % k for k in range(30)]


async def test_an_owner_that_is_fenced_says_so_to_ownership(cluster: Cluster) -> None:
    first = await cluster.add("a")
    await until(cluster.is_whole)
    await cluster.write_all(b"one")
    thief = JetStreamJournal(
        cluster.folder / "thief",
        Access(servers=tuple(cluster.servers.urls)),
        StreamSettings(prefix=cluster.prefix, replicas=1, tidy_every=0),
    )
    await asyncio.to_thread(thief.recover, 2)
    assert not await first.write(2, b"two")
    assert not first.engine.is_here(2)
    assert not first.coordinator.ownership.is_serving(2)
    assert not first.engine.trouble, "the other partitions are as well as before"
    await asyncio.to_thread(thief.close)
    await until(cluster.is_whole)
    assert cluster.values() == everywhere(b"one")
    assert await first.write(2, b"three")


async def ask(client: Client, message: Message) -> Message | None:
    """The answer to a message, None where the connection ends instead."""
    client.send(message)
    got: list[Message] = []

    def is_over() -> bool:
        got.extend(client.take())
        return bool(got) or client.session.closed

    await until(is_over)
    return got[-1] if got else None


@asynccontextmanager
async def one_broker(nats: Servers, prefix: str, folder: Path) -> AsyncIterator[Broker]:
    """A whole node that owns all partitions."""
    bus = await Bus.connect(nats.urls, prefix, "a")
    await bus.open_bucket(replicas=1)
    journal = await asyncio.to_thread(shared_journal, nats, prefix, folder)
    broker = Broker(bus, journal, "a")
    try:
        await broker.cluster.start()
        await until(lambda: all(broker.engine.is_here(one) for one in range(PARTITIONS)))
        yield broker
    finally:
        await broker.end()


def shared_journal(nats: Servers, prefix: str, folder: Path) -> JetStreamJournal:
    settings = StreamSettings(prefix=prefix, partitions=PARTITIONS, replicas=1, tidy_every=0)
    return JetStreamJournal(folder, Access(servers=tuple(nats.urls)), settings, node=folder.name)


async def test_an_owner_past_its_lease_proves_that_it_is_one_before_it_answers_reads(
    nats: Servers, prefix: str, tmp_path: Path
) -> None:
    """decision 91"""
    async with one_broker(nats, prefix, tmp_path / "a") as broker:
        ann, done = broker.client("kobold-3"), broker.engine.statistics
        made = Message(op=Op.CREATE, address="key", payload=b"1", correlation_id="c")
        assert (answer := await ask(ann, made)) is not None
        assert answer.op == Op.OK
        read = Message(op=Op.READ, address="key", correlation_id="r")
        await asyncio.sleep(TIMING.lease * 1.2)
        for expected in (1, 0):  # the second one is within the lease that the first one gave
            before = done.commits
            assert (answer := await ask(ann, read)) is not None
            assert answer.payload == b"1"
            assert done.commits - before == expected
        await asyncio.sleep(TIMING.lease * 1.2)
        thief = await asyncio.to_thread(shared_journal, nats, prefix, tmp_path / "thief")
        await asyncio.to_thread(thief.recover, broker.engine.home("key"))
        assert await ask(ann, read) is None, "it may be old"
        await asyncio.to_thread(thief.close)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (Message(op=Op.READ, address="none"), "not_found"),
        (Message(op=Op.UPDATE, address="none"), "not_found"),
        (Message(op=Op.CREATE, address="key"), "exists"),
        (Message(op=Op.UPDATE, address="key", parameters=Parameters(rev=7)), "conflict"),
        (Message(op=Op.DELETE, address="key", parameters=Parameters(rev=7)), "conflict"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.op.label,
)
async def test_an_owner_past_its_lease_proves_that_it_is_one_before_it_refuses(
    asked: Message, code: str, nats: Servers, prefix: str, tmp_path: Path
) -> None:
    """A refusal tells what a key is like, as a read does (decision 91)."""
    async with one_broker(nats, prefix, tmp_path / "a") as broker:
        ann, done = broker.client("kobold-3"), broker.engine.statistics
        made = Message(op=Op.CREATE, address="key", payload=b"1", correlation_id="c")
        assert await ask(ann, made) is not None
        asked = replace(asked, correlation_id="r")
        await asyncio.sleep(TIMING.lease * 1.2)
        before = done.commits
        assert (answer := await ask(ann, asked)) is not None
        assert answer.parameters.code == code
        assert done.commits - before == 1
        await asyncio.sleep(TIMING.lease * 1.2)
        thief = await asyncio.to_thread(shared_journal, nats, prefix, tmp_path / "thief")
        await asyncio.to_thread(thief.recover, broker.engine.home(asked.address))
        assert await ask(ann, asked) is None, "it may be otherwise by now"
        await asyncio.to_thread(thief.close)


async def lapse(broker: Broker, name: str) -> None:
    """Wait until the lease of the partition of a name has run out."""
    partition = broker.engine.home(name)
    await until(lambda: not broker.engine.may_read(partition))


#: How a client takes a message of a queue: its dialect, what it asks, the messages that come then.
TAKERS = {
    "pull": ("kobold-3", Message(op=Op.DEQUEUE, address="work", correlation_id="d"), 2),
    "pull that waits": (
        "kobold-3",
        Message(
            op=Op.DEQUEUE, address="work", correlation_id="d", parameters=Parameters(wait=60.0)
        ),
        2,
    ),
    "consumer": ("kobold-3", Message(op=Op.SUBSCRIBE, address="work", correlation_id="s"), 2),
    "published client": ("tmq-1.01", Message(address="work", id="7", flags=Flag.RESPONSE), 1),
}


@pytest.mark.parametrize(
    ("way", "mode"),
    [
        ("pull", "pull"),
        ("pull that waits", "pull"),
        ("published client", "pull"),
        ("consumer", "round-robin"),
        ("consumer", "push"),
    ],
)
async def test_an_owner_past_its_lease_proves_that_it_is_one_before_it_delivers(
    way: str,
    mode: Literal["round-robin", "push", "pull"],
    nats: Servers,
    prefix: str,
    tmp_path: Path,
) -> None:
    """decision 91"""
    dialect, asked, expected = TAKERS[way]
    async with one_broker(nats, prefix, tmp_path / "a") as broker:
        broker.node.queues.declare(QueueSettings("work", mode=mode))
        ann, done = broker.client("kobold-3"), broker.engine.statistics
        for payload in (b"one", b"two"):
            put = Message(op=Op.ENQUEUE, address="work", payload=payload, correlation_id="c")
            assert await ask(ann, put) is not None
        await lapse(broker, "work")
        before = done.commits
        bob = broker.client(dialect)
        bob.send(asked)
        assert not [one for one in bob.take() if one.payload == b"one"], "not yet proved"
        got = await arrive(bob, expected)
        assert b"one" in [one.payload for one in got]
        assert done.commits > before
        bob.session.lost("gone")  # what it holds is ready again
        await lapse(broker, "work")
        eve = broker.client(dialect)
        thief = await asyncio.to_thread(shared_journal, nats, prefix, tmp_path / "thief")
        await asyncio.to_thread(thief.recover, broker.engine.home("work"))
        eve.send(asked)
        got = []

        def is_over() -> bool:
            got.extend(eve.take())
            return not eve.is_open

        await until(is_over)
        assert not [one for one in got if one.payload in (b"one", b"two")], "they may be done"
        await asyncio.to_thread(thief.close)


async def arrive(client: Client, number: int = 1) -> list[Message]:
    """Let time pass until a client has got some messages; return them."""
    got: list[Message] = []

    def is_there() -> bool:
        client.desk.pass_time(0.05)
        got.extend(client.take())
        return len(got) >= number

    await until(is_there)
    return got


async def handshake(broker: Broker, client_id: str, will: str = "") -> tuple[Client, bool]:
    """A client of MQTT whose session lasts, and whether the broker knew its session.

    What came behind the answer is in `opening`.
    """
    headers = {"mqtt.clean": "0", "mqtt.keepalive": "0", "mqtt.session_expiry": "4294967295"}
    if will:
        headers["mqtt.will"] = "1"
    ends = time.monotonic() + 60
    while True:
        client = Client(broker, "mqtt-5")
        said = Message(
            op=Op.HANDSHAKE, source=client_id, address=will, payload=b"farewell", headers=headers
        )
        client.send(said)
        got: list[Message] = []
        client.opening = got

        def is_over(client: Client = client, got: list[Message] = got) -> bool:
            got.extend(client.take())
            return bool(got) or client.session.closed

        await until(is_over)
        if got and got[0].content_type == 0:
            answer = got.pop(0)
            return client, bool(answer.flags & Flag.MORE)
        assert time.monotonic() < ends, got
        await asyncio.sleep(0.02)  # a partition may have no owner for a moment


async def test_mqtt_sessions_wills_and_retained_messages_move_with_their_partitions(
    nats: Servers, prefix: str, tmp_path: Path
) -> None:
    """decision 93"""
    patient = Timing(beat=0.2, dead=5.0, lease=0.5)  # a partition must not move before it is to
    async with two_brokers(nats, prefix, tmp_path, patient) as (a, b):
        homes = (f"town/{k}" for k in count())
        topic = next(one for one in homes if b.engine.is_here(b.engine.home(one)))
        names = (f"bob{k}" for k in count())
        name = next(one for one in names if b.engine.is_here(b.engine.home(f"$mqtt/{one}")))
        wills = (f"wills/{k}" for k in count())
        will = next(one for one in wills if a.engine.is_here(a.engine.home(one)))
        eve = a.client("mqtt-5")
        subscribe = Message(op=Op.SUBSCRIBE, address=will, ticket=1)
        assert await ask(eve, subscribe) is not None
        bob, _ = await handshake(a, name, will)
        headers = {"mqtt.options": "1"}
        subscribe = Message(op=Op.SUBSCRIBE, address="town/#", ticket=1, headers=headers)
        assert await ask(bob, subscribe) is not None
        headers = {"mqtt.qos": "1", "mqtt.retain": "1"}
        kept = Message(address=topic, payload=b"x", ticket=9, flags=Flag.ACK, headers=headers)
        ann = a.client("mqtt-5")
        assert await ask(ann, kept) is not None
        first = await arrive(bob)
        assert (first[0].payload, first[0].headers["mqtt.qos"]) == (b"x", "1")
        await b.end()  # without a word
        await until(lambda: not bob.is_open)
        await until(lambda: all(a.engine.is_here(one) for one in range(PARTITIONS)))
        told = await arrive(eve)
        assert [one.payload for one in told] == [b"farewell"]
        again, was_there = await handshake(a, name)
        assert was_there
        got = again.opening or await arrive(again)
        assert [(one.payload, one.ticket) for one in got] == [(b"x", first[0].ticket)]
        late = a.client("mqtt-5")
        late.send(Message(op=Op.SUBSCRIBE, address=topic, ticket=1))
        found = await arrive(late, 2)
        assert found[1].headers["mqtt.retain"] == "1"
