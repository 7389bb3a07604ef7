"""Publishing and subscribing across two nodes in one process, linked over a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import count

import pytest

from tests.broker.desk import Client, Desk, ops
from tests.cluster.servers import Servers
from tests.cluster.test_coordinator import until
from tests.journal.faulty import FaultyJournal
from wirelake.broker.inventory import connections
from wirelake.broker.local import LocalLink, LocalSession
from wirelake.broker.node import Node
from wirelake.cluster.bus import Bus
from wirelake.cluster.edge import Edge
from wirelake.cluster.peers import Peers, Role
from wirelake.config import QueueSettings
from wirelake.journal.batch import home
from wirelake.journal.engine import Engine
from wirelake.message import Flag, Message, Op

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PARTITIONS = 4
NUMBERS = count(1)
DIALECTS = ["mfp-1", "boson-text", "boson-binary", "kobold-1", "kobold-3", "tmq-1.01"]


class OneNode(Desk):
    """A broker whose clients are lists, with links to others."""

    def __init__(
        self, name: str, bus: Bus, owners: dict[int, str], engine: Engine | None = None
    ) -> None:
        super().__init__(Node(engine or Engine.in_memory(partitions=PARTITIONS)))
        self.name = name
        self.bus = bus
        self.edge = Edge(
            self.node, name, PARTITIONS, lambda k: owners[k], lambda k: owners[k] == name
        )
        self.peers = Peers(bus, name, self.edge, window=1 << 20)

    def rows(self) -> int:
        """The rows of this node's log."""
        return sum(one.next for one in self.node.engine.positions())


class Two:
    """Two nodes, and who owns what."""

    def __init__(self) -> None:
        self.owners = {k: "ab"[k % 2] for k in range(PARTITIONS)}
        self.a: OneNode
        self.b: OneNode

    def address(self, owner: str, number: int = 0) -> str:
        """An address whose partition this node owns."""
        tries = (f"town/{k}" for k in range(1000))
        fits = [one for one in tries if self.owners[home(one.encode(), PARTITIONS)] == owner]
        return fits[number]

    def give(self, partition: int, name: str) -> None:
        """Change an owner."""
        self.owners[partition] = name
        self.a.edge.changed()
        self.b.edge.changed()


@asynccontextmanager
async def two_nodes(
    servers: Servers, prefix: str, engine: Engine | None = None
) -> AsyncIterator[Two]:
    """Two nodes; the second may have an engine of the test's own."""
    two = Two()
    for name in "ab":
        bus = await Bus.connect(servers.urls, prefix, name)
        setattr(two, name, OneNode(name, bus, two.owners, engine if name == "b" else None))
    nodes = [two.a, two.b]
    try:
        for node in nodes:
            await node.peers.start(0.2)
            node.peers.meet(["a", "b"])
        await until(lambda: all(len(node.edge.upstreams) == 1 for node in nodes))
        await until(lambda: all(len(node.edge.downstreams) == 1 for node in nodes))
        yield two
    finally:
        for node in nodes:
            await node.peers.stop()
            await node.bus.close()


async def settled(*nodes: OneNode) -> None:
    """Wait until all filters are registered."""
    await until(lambda: not any(node.edge.delegations.under_way for node in nodes))
    await until(
        lambda: not any(one.unconfirmed for node in nodes for one in node.edge.upstreams.values())
    )


async def collect(client: Client, count: int) -> list[Message]:
    """So many messages that were published."""
    got: list[Message] = []

    def is_enough() -> bool:
        got.extend(one for one in client.take() if one.op == Op.PUBLISH)
        return len(got) >= count

    await until(is_enough)
    return got


async def answers(client: Client, count: int = 1) -> list[Message]:
    """All that comes, until it is this many messages."""
    got: list[Message] = []

    def is_enough() -> bool:
        got.extend(client.take())
        return len(got) >= count

    await until(is_enough)
    return got


async def read_until(client: Client, last: bytes) -> list[bytes]:
    """The payloads that were published, up to this one."""
    got: list[bytes] = []

    def is_there() -> bool:
        got.extend(client.payloads())
        return got[-1:] == [last]

    await until(is_there)
    return got


def subscriber(desk: OneNode, dialect: str, *filters: str) -> Client:
    # An mfp client always has an id, which no client of another node may have.
    name = f"of {desk.name} {next(NUMBERS)}" if dialect == "mfp-1" else ""
    client = desk.client(dialect, name, role="sub")
    client.subscribe(*filters)
    return client


@pytest.mark.parametrize("of", DIALECTS)
async def test_a_message_reaches_subscribers_of_any_dialect_on_both_nodes(
    nats: Servers, prefix: str, of: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        publisher = two.a.client(of)
        for owner in "ab":
            address = two.address(owner)
            here = [subscriber(two.a, to, address) for to in DIALECTS]
            there = [subscriber(two.b, to, "town/#") for to in DIALECTS]
            await settled(two.a, two.b)
            publisher.publish(address, b"hello")
            for client in (*here, *there):
                [message] = await collect(client, 1)
                assert message.payload == b"hello"
                assert message.address in (address, "")  # some dialects tell it no subscriber
            assert not any(client.take() for client in (*here, *there))
            for client in (*here, *there):
                client.session.lost("gone")


async def test_all_subscribers_see_the_order_of_the_owner(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        clients = [subscriber(desk, "kobold-3", address) for desk in (two.a, two.b)]
        await settled(two.a, two.b)
        publishers = [desk.client("kobold-3") for desk in (two.a, two.b, two.a)]
        for number in range(300):
            for who, publisher in enumerate(publishers):
                publisher.publish(address, b"%d %d" % (who, number))
            if number % 50 == 0:
                await asyncio.sleep(0)
        orders = [[one.payload for one in await collect(client, 900)] for client in clients]
        assert orders[0] == orders[1]
        for who in range(3):
            mine = [one for one in orders[0] if one.startswith(b"%d " % who)]
            assert mine == [b"%d %d" % (who, number) for number in range(300)]


async def test_the_owner_alone_captures_and_its_answer_is_passed_on(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        ann = two.a.client("kobold-3", "ann")
        ann.publish(two.address("b"), b"kept", ack=True)
        got = await answers(ann)
        assert ops(got) == ["ok"]
        assert got[0].id == "m1" or got[0].correlation_id == "m1"
        assert (two.a.rows(), two.b.rows()) == (0, 1)
        two.b.node.engine.end_turn()
        partition = home(two.address("b").encode(), PARTITIONS)
        [batch] = two.b.node.engine.read(partition, 0, 1)
        assert batch.count == 1


async def test_trouble_of_one_partition_is_no_reason_to_answer_before_another_is_durable(
    nats: Servers, prefix: str
) -> None:
    journal = FaultyJournal(partitions=PARTITIONS)
    engine = Engine(journal, loop=asyncio.get_running_loop())
    async with two_nodes(nats, prefix, engine) as two:
        address, other = two.address("b"), two.address("b", 1)
        number = 1
        while home(other.encode(), PARTITIONS) == home(address.encode(), PARTITIONS):
            number += 1
            other = two.address("b", number)
        journal.held = True
        journal.troubles = {home(other.encode(), PARTITIONS): "a full disk"}
        ann = two.a.client("kobold-3", "ann")
        ann.publish(address, b"x", ack=True)
        await until(lambda: len(journal._waiting) > 0)
        await asyncio.sleep(0.2)
        assert ann.take() == []
        journal.held = False
        await asyncio.to_thread(journal.release)
        assert ops(await answers(ann)) == ["ok"]


async def test_who_subscribes_is_answered_when_the_owners_know_it(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        ann = two.a.client("kobold-3")
        ann.send(Message(op=Op.SUBSCRIBE, address=two.address("b"), correlation_id="s"))
        assert ann.take() == []
        got = await answers(ann)
        assert ops(got) == ["ok"]
        assert two.address("b") in two.b.edge.downstreams["a"].filters
        ann.send(Message(op=Op.SUBSCRIBE, address=two.address("a"), correlation_id="t"))
        assert ops(ann.take()) == ["ok"]  # nobody else has to know


async def test_nothing_comes_after_the_last_unsubscribe(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        ann, bob = (subscriber(two.a, "boson-text", address) for _ in range(2))
        await settled(two.a)
        ann.send(Message(op=Op.UNSUBSCRIBE, address=address))
        two.b.client("boson-text").publish(address, b"1")
        assert [one.payload for one in await collect(bob, 1)] == [b"1"]
        bob.session.lost("gone")
        await until(lambda: not two.b.edge.downstreams["a"].filters)


async def test_an_address_without_an_owner_or_a_link_is_refused(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        ann = two.a.client("kobold-3")
        two.give(home(address.encode(), PARTITIONS), "")
        ann.publish(address, b"x", ack=True)
        [refusal] = ann.take()
        assert refusal.parameters.code == "busy"
        assert b"nobody owns this address now" in refusal.payload
        two.give(home(address.encode(), PARTITIONS), "nowhere")
        ann.publish(address, b"x", ack=True)
        [refusal] = ann.take()
        assert b"no link to nowhere" in refusal.payload


async def test_a_run_for_a_partition_that_has_moved_is_refused_and_goes_nowhere(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        ann = two.a.client("kobold-3")
        ann.publish(address, b"before", ack=True)
        got = await answers(ann)
        two.owners[home(address.encode(), PARTITIONS)] = "a"
        two.b.edge.changed()  # and node a has not heard of it yet
        ann.publish(address, b"after", ack=True)
        got += await answers(ann)
        assert got[1].parameters.code == "busy"
        assert b"has another owner now" in got[1].payload
        two.a.edge.changed()
        ann.publish(address, b"again", ack=True)
        assert ops(ann.take()) == ["ok"]
        assert (two.a.rows(), two.b.rows()) == (1, 1)


async def test_filters_follow_a_partition_to_its_new_owner(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("a")
        ann = subscriber(two.a, "mfp-1", address)
        two.give(home(address.encode(), PARTITIONS), "b")
        await until(lambda: address in two.b.edge.downstreams["a"].filters)
        two.b.client("mfp-1").publish(address, b"x")
        assert [one.payload for one in await collect(ann, 1)] == [b"x"]


async def test_a_link_that_breaks_is_made_anew_with_all_filters(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        exact, wild = subscriber(two.a, "kobold-3", address), subscriber(two.a, "mfp-1", "#")
        await settled(two.a)
        publisher = two.a.client("kobold-3")
        publisher.publish(address, b"under way", ack=True)
        before = two.b.edge.downstreams["a"]
        link = two.a.peers.link("b", Role.EDGE)
        assert link is not None
        link.abort()
        [refusal] = publisher.take()
        assert refusal.parameters.code == "busy"
        assert b"the link to b broke" in refusal.payload
        await until(lambda: two.b.edge.downstreams.get("a") not in (None, before))
        await until(lambda: {address, "#"} <= set(_filters(two.b, "a")))
        two.b.client("kobold-3").publish(address, b"again")
        assert (await collect(exact, 1))[-1].payload == b"again"
        assert (await collect(wild, 1))[-1].payload == b"again"
        events = [event["event"] for event in two.a.node.vitals.events]
        assert "link_lost" in events


def _filters(desk: OneNode, edge: str) -> list[str]:
    found = desk.edge.downstreams.get(edge)
    return list(found.filters) if found is not None else []


async def test_a_publisher_waits_for_a_link_that_is_full(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        got = subscriber(two.b, "kobold-3", address)
        two.a.node.flow.outbox = two.b.node.flow.outbox = 1 << 18
        publisher = two.a.client("kobold-3")
        payload = bytes(50_000)
        for _ in range(60):
            publisher.publish(address, payload)
        assert publisher.paused
        assert two.a.edge.upstreams["b"].outgoing < (1 << 18) + 200_000

        def is_through() -> bool:
            two.a.read_on()
            received.extend(got.payloads())
            return len(received) >= 60

        received: list[bytes] = []
        await until(is_through)
        assert received == [payload] * 60
        assert not publisher.paused


async def test_other_nodes_are_listed_and_ticked_as_connections(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        two.a.pass_time(3.0)
        assert [one["dialect"] for one in connections(two.a.node, two.a.now)] == ["node", "node"]
        assert two.a.node.traffic.current.keys() == {"node"}


async def test_a_link_that_is_not_read_is_cut_as_a_slow_consumer_and_comes_back(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        reader = subscriber(two.a, "kobold-3", address)
        await settled(two.a)
        two.b.node.flow.outbox = 1 << 18
        two.a.edge.upstreams["b"].link.pause()  # node a takes nothing more
        publisher = two.b.client("kobold-3")
        for _ in range(60):
            publisher.publish(address, bytes(50_000))
        await until(lambda: publisher.paused)
        before = two.b.edge.downstreams["a"]
        two.b.pass_time(3.0)
        assert before.closed
        assert not publisher.paused
        await until(lambda: two.b.edge.downstreams.get("a") not in (None, before))
        await until(lambda: address in two.b.edge.downstreams["a"].filters)
        reader.take()
        publisher.publish(address, b"at last")
        await read_until(reader, b"at last")


async def test_what_is_no_parcel_breaks_the_link_and_nothing_else(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        for data in (b"?", b"P\0", b"F{", b"\1\2\3", b"C", b"A[]"):
            link = two.a.edge.upstreams["b"].link
            link.write(data)
            await until(_is_new(two.a, link))
        address = two.address("b")
        ann = subscriber(two.b, "kobold-3", address)
        two.a.client("kobold-3").publish(address, b"x")
        assert [one.payload for one in await collect(ann, 1)] == [b"x"]


def _is_new(desk: OneNode, link: object) -> Callable[[], bool]:
    def is_new() -> bool:
        found = desk.edge.upstreams.get("b")
        return found is not None and found.link is not link

    return is_new


async def test_a_message_for_a_queue_of_another_node_is_kept_there(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address("b")
        two.b.node.queues.declare(QueueSettings(address))
        ann = two.a.client("tmq-1.01", "ann")
        ann.send(Message(address=address, payload=b"job", id="m1", flags=Flag.ACK))
        await until(lambda: len(two.b.node.queues.get(address)) == 1)


async def test_who_publishes_over_http_is_told_what_other_nodes_did(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        node = two.a.node
        rights = node.clients.rights_of_strangers
        wakes: list[bool] = []
        session = LocalSession(node, LocalLink("test", lambda: wakes.append(True)), rights, 0.0)
        node.router.publish_message(session, Message(address=two.address("b"), payload=b"1"), 0.0)
        assert session.unanswered == 1
        await until(lambda: session.unanswered == 0)
        assert (session.refusal, wakes != []) == (None, True)
        assert two.b.rows() == 1
        node.router.publish_message(session, Message(address=two.address("b"), payload=b"2"), 0.0)
        two.a.edge.upstreams["b"].link.abort()
        assert session.unanswered == 0
        assert session.refusal is not None
        assert session.refusal.code == "busy"
