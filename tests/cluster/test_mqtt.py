"""MQTT across two nodes: retained messages, sessions and wills, whichever node a client is on."""

from __future__ import annotations

import pytest

from tests.broker.desk import Client
from tests.cluster.servers import Servers
from tests.cluster.test_coordinator import until
from tests.cluster.test_edge import PARTITIONS, OneNode, Two, collect, settled, two_nodes
from wirelake.broker.rights import Rights
from wirelake.dialects.mqtt.codes import Packet
from wirelake.dialects.mqtt.memory import Conversations
from wirelake.journal.batch import home
from wirelake.message import NO_PARAMETERS, Flag, Message, Op, Parameters

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def memory(node: OneNode) -> Conversations:
    found = node.node.memories["mqtt"]
    assert isinstance(found, Conversations)
    return found


def retained(address: str, payload: bytes, qos: int = 0, ticket: int = 0) -> Message:
    headers = {"mqtt.retain": "1", **({"mqtt.qos": str(qos)} if qos else {})}
    flags = Flag.ACK if qos else Flag(0)
    return Message(address=address, payload=payload, headers=headers, flags=flags, ticket=ticket)


def subscribe(client: Client, *filters: str, qos: int = 0) -> None:
    for filter in filters:
        headers = {"mqtt.options": str(qos)}
        client.send(Message(op=Op.SUBSCRIBE, address=filter, ticket=1, headers=headers))


def owned_id(two: Two, owner: str, number: int = 0) -> str:
    """A client id whose session belongs to this node."""
    tries = (f"client{k}" for k in range(1000))
    fits = [one for one in tries if two.owners[home(b"$mqtt/" + one.encode(), 4)] == owner]
    return fits[number]


async def connect(
    desk: OneNode,
    client_id: str,
    dialect: str = "mqtt-5",
    *,
    clean: bool = False,
    expiry: int = 0,
    token: str = "",
    will: str = "",
    delay: int = 0,
) -> tuple[Client, Message]:
    """A client of MQTT and the answer to its CONNECT."""
    client = Client(desk, dialect)
    headers = {"mqtt.clean": "1" if clean else "0", "mqtt.keepalive": "0"}
    if expiry:
        headers["mqtt.session_expiry"] = str(expiry)
    if will:
        headers["mqtt.will"] = "1"
        if delay:
            headers["mqtt.will_properties"] = (b"\x18" + delay.to_bytes(4, "big")).hex()
    said = Parameters(token=token) if token else NO_PARAMETERS
    client.send(
        Message(
            op=Op.HANDSHAKE,
            source=client_id,
            address=will,
            payload=b"farewell" if will else b"",
            headers=headers,
            parameters=said,
        )
    )
    client.opening = await come_all(client, Op.HELLO)
    return client, client.opening[0]


async def come(client: Client, op: Op) -> Message:
    """Wait for one message of an op, and nothing else beside it."""
    (got,) = await come_all(client, op)
    return got


async def come_all(client: Client, op: Op) -> list[Message]:
    """Wait for one message of an op, and nothing else before it; return all that came."""
    got: list[Message] = []

    def is_there() -> bool:
        got.extend(client.take())
        return bool(got)

    await until(is_there)
    assert got[0].op == op, got
    return got


def ack(message: Message, kind: Packet = Packet.PUBACK) -> Message:
    return Message(op=Op.ACK, content_type=kind, ticket=message.ticket)


def publish(address: str, payload: bytes, qos: int, ticket: int) -> Message:
    headers = {"mqtt.qos": str(qos)}
    return Message(address=address, payload=payload, headers=headers, flags=Flag.ACK, ticket=ticket)


def talks(node: OneNode) -> list[str]:
    """The client ids whose sessions are at a node."""
    return sorted(name for name, one in memory(node)._talks.items() if not one.is_over)


async def test_a_retained_message_is_kept_by_the_owner_of_its_topic(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        ann = two.a.client("mqtt-5", "ann")
        mine, theirs = two.address("a"), two.address("b")
        ann.send(retained(mine, b"1", 1, 1), retained(theirs, b"2", 1, 2))
        await until(lambda: len(memory(two.a).retained) == len(memory(two.b).retained) == 1)
        for desk in (two.a, two.b):
            for filter in (mine, theirs):
                eve = desk.client("mqtt-5")
                subscribe(eve, filter)
                (got,) = await collect(eve, 1)
                assert (got.address, got.headers["mqtt.retain"]) == (filter, "1")
            bob = desk.client("mqtt-3.1.1")
            subscribe(bob, "town/#", qos=1)
            both = await collect(bob, 2)
            assert sorted(one.payload for one in both) == [b"1", b"2"]
            assert all(one.headers["mqtt.retain"] == "1" for one in both)
        ann.send(retained(theirs, b""))
        await until(lambda: len(memory(two.b).retained) == 0)
        late = two.a.client("mqtt-5")
        subscribe(late, "town/#")
        assert [one.payload for one in await collect(late, 1)] == [b"1"]
        await until(lambda: not memory(two.a)._searches)


async def test_many_retained_messages_come_in_pages_as_fast_as_the_client_reads(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        ann = two.a.client("mqtt-5", "ann")
        topics = [f"town/{k}" for k in range(150)]
        for topic in topics:
            ann.send(retained(topic, b"x" * 5000))
        await until(lambda: sum(len(memory(one).retained) for one in (two.a, two.b)) == 150)
        two.b.node.flow.outbox = 100_000
        bob = two.b.client("mqtt-5")
        bob.reads = False
        subscribe(bob, "town/+")
        (search,) = memory(two.b)._searches.values()
        await until(lambda: not any(one.is_asked for one in search.parts))
        two.b.pass_time(0.25)
        assert search.parts, "it waits for the client"
        got: list[Message] = []

        def is_all_there() -> bool:
            bob.drain()
            two.b.pass_time(0.25)
            got.extend(one for one in bob.take() if one.op == Op.PUBLISH)
            return len(got) == 150

        await until(is_all_there)
        assert sorted(one.address for one in got) == sorted(topics)


async def test_a_search_goes_on_with_the_next_owner(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        ann = two.b.client("mqtt-5", "ann")
        topic = two.address("b")
        partition = home(topic.encode(), PARTITIONS)
        ann.send(retained(topic, b"kept"))
        await until(lambda: len(memory(two.b).retained) == 1)
        two.owners[partition] = ""
        bob = two.a.client("mqtt-5")
        subscribe(bob, "town/+")
        await settled(two.a, two.b)
        two.a.pass_time(0.25)
        assert not [one for one in bob.take() if one.op == Op.PUBLISH]
        two.give(partition, "b")
        two.a.pass_time(0.25)
        assert [one.payload for one in await collect(bob, 1)] == [b"kept"]


@pytest.mark.parametrize("quota", ["retained", "retained_bytes"])
async def test_the_owner_refuses_more_retained_messages_than_its_quota(
    nats: Servers, prefix: str, quota: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        setattr(two.b.node.quotas, quota, 1)
        ann = two.a.client("mqtt-5", "ann")
        for number in range(2):
            ann.send(retained(two.address("b", number), b"x" * 2000, 1, number + 1))
        got: list[Message] = []

        def is_answered() -> bool:
            got.extend(one for one in ann.take() if one.op == Op.ACK)
            return len(got) == 2

        await until(is_answered)
        assert got[1].payload[0] == 0x97
        assert f"quotas.{quota}" in got[1].headers["mqtt.reason"]


@pytest.mark.parametrize("dialect", ["mqtt-5", "mqtt-3.1.1"])
async def test_a_session_that_lasts_is_at_its_owner_whichever_node_its_client_is_on(
    nats: Servers, prefix: str, dialect: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        bob, expiry = owned_id(two, "b"), 60 if dialect == "mqtt-5" else 0
        topic = two.address("a")
        first, answer = await connect(two.a, bob, dialect, expiry=expiry)
        assert (answer.content_type, answer.flags & Flag.MORE) == (0, 0)
        assert (talks(two.a), talks(two.b)) == ([], [bob])
        first.send(subscribed(topic, 2))
        assert (await come(first, Op.OK)).payload == b"\x02"
        ann = two.a.client(dialect, owned_id(two, "a"))
        ann.send(publish(topic, b"one", 1, 7))
        got = await come(first, Op.PUBLISH)
        assert (got.payload, got.headers["mqtt.qos"]) == (b"one", "1")
        first.session.lost("gone")
        await until(lambda: memory(two.b).find(bob).connection is None)  # type: ignore[union-attr]
        ann.send(publish(topic, b"two", 2, 8))
        await until(lambda: len(two.b.node.engine.references(f"$mqtt/{bob}")) == 2)
        again, answer = await connect(two.b, bob, dialect, expiry=expiry)  # the owner itself
        assert answer.flags & Flag.MORE
        got, two_of = again.opening[1:] or await collect(again, 2)
        assert got.payload == b"one"
        assert (two_of.payload, two_of.headers["mqtt.qos"]) == (b"two", "2")
        again.send(ack(got), ack(two_of, Packet.PUBREC))
        released = await come(again, Op.ACK)
        assert (released.content_type, released.ticket) == (Packet.PUBREL, two_of.ticket)
        again.send(ack(two_of, Packet.PUBCOMP))
        assert len(two.b.node.engine.references(f"$mqtt/{bob}")) == 0
        third, answer = await connect(two.a, bob, dialect, expiry=expiry)
        assert answer.flags & Flag.MORE
        assert not again.is_open, "the new connection took over"
        third.send(Message(op=Op.PING))
        await come(third, Op.PONG)


async def test_a_clean_session_ends_the_old_one_at_its_owner_and_stays_at_its_own_node(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        bob = owned_id(two, "b")
        old, _ = await connect(two.a, bob, expiry=60)
        clean = Client(two.a, "mqtt-5")
        headers = {"mqtt.clean": "1", "mqtt.keepalive": "0"}
        # It does not wait for the answer, which the other node has to agree to.
        clean.send(
            Message(op=Op.HANDSHAKE, source=bob, headers=headers),
            subscribed("town/#", 0),
            Message(address=two.address("b"), payload=b"mine"),
        )
        await until(lambda: not old.is_open)
        got: list[Message] = []

        def is_there() -> bool:
            got.extend(clean.take())
            return len(got) == 3

        await until(is_there)
        assert [one.op for one in got] == [Op.HELLO, Op.OK, Op.PUBLISH]
        assert (talks(two.a), talks(two.b)) == ([bob], [])
        assert f"$mqtt/{bob}" not in [one.name for one in two.b.node.engine.queues()]
        other, answer = await connect(two.b, bob, expiry=60)
        assert not answer.flags & Flag.MORE
        await until(lambda: not clean.is_open)
        assert other.is_open


async def test_a_message_of_qos_2_comes_once_although_it_is_sent_again(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        bob = owned_id(two, "b")
        eve = two.b.client("mqtt-5")
        subscribe(eve, "town/#")
        await settled(two.a, two.b)
        for number, topic in enumerate((two.address("a"), two.address("b"))):
            first, _ = await connect(two.a, bob, expiry=60)
            first.send(publish(topic, b"once", 2, 7 + number))
            assert (await come(first, Op.ACK)).content_type == Packet.PUBREC
            first.session.lost("gone")
            again, _ = await connect(two.b, bob, expiry=60)
            again.send(publish(topic, b"once", 2, 7 + number))
            assert (await come(again, Op.ACK)).content_type == Packet.PUBREC
            [where] = [e for _, e in two.b.node.engine.entries() if e.key == f"$mqtt/once/{bob}"]
            assert where.value == b"[%d]" % (7 + number)
            released = Message(op=Op.ACK, content_type=Packet.PUBREL, ticket=7 + number)
            again.send(released)
            assert (await come(again, Op.ACK)).content_type == Packet.PUBCOMP
            again.session.lost("gone")
        two.b.client("mqtt-5").send(publish(two.address("b"), b"end", 1, 1))
        got = await collect(eve, 3)
        assert [one.payload for one in got] == [b"once", b"once", b"end"]


async def test_a_session_expires_at_its_owner(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        bob = owned_id(two, "b")
        two.b.pass_time(1)
        first, _ = await connect(two.a, bob, expiry=60)
        first.send(Message(op=Op.TERMINATE))
        await until(lambda: not first.is_open)
        two.b.pass_time(59, 1.0)
        assert talks(two.b) == [bob]
        two.b.pass_time(2, 1.0)
        assert talks(two.b) == []


async def test_a_will_is_kept_and_published_by_the_owner_of_the_client_id(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        eve = two.a.client("mqtt-5")
        subscribe(eve, "town/#")
        await settled(two.a, two.b)
        eve.take()
        bob, key = owned_id(two, "b"), f"$mqtt/will/{owned_id(two, 'b')}"

        def is_kept() -> bool:
            return key in [one.key for _, one in two.b.node.engine.entries()]

        for leaves in (True, False):
            client, _ = await connect(two.a, bob, clean=True, will=two.address("a"))
            assert is_kept()
            assert talks(two.b) == [bob]
            if leaves:
                client.send(Message(op=Op.TERMINATE))
                await until(lambda: not is_kept())
                assert not eve.take()
            else:
                client.session.lost("cut")
                assert (await come(eve, Op.PUBLISH)).payload == b"farewell"
            assert not is_kept()
        client, _ = await connect(two.a, bob, expiry=60, will=two.address("b"), delay=5)
        client.session.lost("cut")
        await until(lambda: memory(two.b).find(bob).connection is None)  # type: ignore[union-attr]
        two.b.pass_time(4, 1.0)
        assert not eve.take()
        two.b.pass_time(2, 1.0)
        assert (await come(eve, Op.PUBLISH)).payload == b"farewell"


async def test_a_will_waits_until_somebody_owns_its_topic(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        eve = two.a.client("mqtt-5")
        subscribe(eve, "town/#")
        await settled(two.a, two.b)
        eve.take()
        bob, topic = owned_id(two, "b"), two.address("a")
        client, _ = await connect(two.a, bob, clean=True, will=topic)
        partition = home(topic.encode(), PARTITIONS)
        two.give(partition, "")
        client.session.lost("cut")
        await until(lambda: talks(two.b) == [])
        two.b.pass_time(0.5)
        kept = f"$mqtt/will/{bob}"
        assert kept in [one.key for _, one in two.b.node.engine.entries()]
        two.give(partition, "a")
        two.b.pass_time(0.5)
        assert (await come(eve, Op.PUBLISH)).payload == b"farewell"
        assert kept not in [one.key for _, one in two.b.node.engine.entries()]


async def test_disconnect_counts_although_the_client_closes_at_once(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        eve = two.a.client("mqtt-5")
        subscribe(eve, "town/#")
        await settled(two.a, two.b)
        eve.take()
        client, _ = await connect(two.a, owned_id(two, "b"), clean=True, will=two.address("a"))
        client.send(Message(op=Op.TERMINATE))
        client.session.lost("closed")
        await until(lambda: talks(two.b) == [])
        two.a.client("mqtt-5").send(publish(two.address("a"), b"end", 1, 1))
        assert (await come(eve, Op.PUBLISH)).payload == b"end"


async def test_the_clients_node_checks_tokens_and_the_owner_rights(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        rights = Rights("device", ("town/#",), ("town/#",), key="k")
        nobody = Rights("nobody")
        for desk in (two.a, two.b):
            clients = desk.node.clients
            clients.rights_of_strangers = nobody
            clients.all_rights = [rights]
        # The owner does not know the token: it is not asked.
        two.a.node.clients.rights_of_token = {"secret": rights}.get
        two.b.node.clients.rights_of_token = lambda token: None
        bob = owned_id(two, "b")
        _, answer = await connect(two.a, bob, expiry=60, token="wrong")
        assert answer.content_type == 0x86
        assert talks(two.b) == []
        client, answer = await connect(two.a, bob, expiry=60, token="secret")
        assert answer.content_type == 0
        client.send(subscribed("secrets/#", 1))
        assert (await come(client, Op.OK)).payload == b"\x87"
        client.send(subscribed("town/#", 1))
        assert (await come(client, Op.OK)).payload == b"\x01"
        _, answer = await connect(two.a, bob, expiry=60, will="secrets/1", token="secret")
        assert answer.content_type != 0


async def test_a_session_without_an_owner_is_refused_as_busy(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        bob = owned_id(two, "b")
        two.owners[home(b"$mqtt/" + bob.encode(), PARTITIONS)] = ""
        client, answer = await connect(two.a, bob, expiry=60)
        assert answer.content_type == 0x89
        assert not client.is_open


async def test_a_client_without_an_id_gets_one_and_a_session_that_lasts(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        made = set()
        for _ in range(8):
            client, answer = await connect(two.a, "", clean=True, expiry=60)
            made.add(answer.headers["mqtt.assigned_id"])
            client.session.lost("gone")
        assert len(made) == 8
        await until(lambda: set(talks(two.a)) | set(talks(two.b)) == made)
        for name in made:
            _, answer = await connect(two.b, name, expiry=60)
            assert answer.flags & Flag.MORE


def subscribed(filter: str, qos: int) -> Message:
    headers = {"mqtt.options": str(qos)}
    return Message(op=Op.SUBSCRIBE, address=filter, ticket=1, headers=headers)


def put(queue: str, payload: bytes) -> Message:
    return Message(op=Op.ENQUEUE, address=queue, payload=payload, correlation_id="p")


@pytest.mark.parametrize("share", ["", "$share/workers/"])
@pytest.mark.parametrize("owner", ["a", "b"])
async def test_a_queue_of_any_node_is_consumed_and_acknowledged(
    nats: Servers, prefix: str, owner: str, share: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address(owner)
        node = getattr(two, owner).node
        producer = two.b.client("kobold-3")
        producer.send(put(queue, b"1"))
        await until(lambda: queue in node.queues)
        for name in (owned_id(two, "a"), owned_id(two, "b")):  # here, and hosted by the other one
            ann, _ = await connect(two.a, name, clean=True, expiry=60)
            ann.send(subscribed(share + queue, 1))
            got = [one for one in await arrived(ann, 2) if one.op == Op.PUBLISH]
            assert (got[0].payload, got[0].headers["mqtt.qos"]) == (b"1", "1")
            refused = Message(
                op=Op.ACK, content_type=Packet.PUBACK, ticket=got[0].ticket, payload=b"\x80"
            )
            ann.send(refused)  # and it comes again
            (again,) = await collect(ann, 1)
            ann.send(ack(again))
            await until(lambda: len(node.queues.get(queue)) == 0)
            leaving = Message(op=Op.UNSUBSCRIBE, address=share + queue, ticket=2)
            ann.send(leaving)
            assert (await come(ann, Op.OK)).payload == b"\0"
            await until(lambda: not node.queues.get(queue).state(0.0)["consumers"])
            producer.send(put(queue, b"1"))
            await until(lambda: len(node.queues.get(queue)) == 1)
            assert not ann.take()


async def test_a_session_that_lasts_consumes_its_queues_again(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        queue, bob = two.address("b"), owned_id(two, "a")
        two.b.client("kobold-3").send(put(queue, b"1"))
        await until(lambda: queue in two.b.node.queues)
        first, _ = await connect(two.a, bob, expiry=60)
        first.send(subscribed(queue, 1))
        await arrived(first, 2)
        first.session.lost("gone")  # and what it held goes back
        again, answer = await connect(two.a, bob, expiry=60)
        assert answer.flags & Flag.MORE
        (got,) = again.opening[1:] or await collect(again, 1)
        again.send(ack(got))
        await until(lambda: len(two.b.node.queues.get(queue)) == 0)


async def test_an_address_is_not_asked_about_before_it_has_an_owner(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        topic = two.address("b")
        two.give(home(topic.encode(), PARTITIONS), "")
        ann, _ = await connect(two.a, owned_id(two, "a"), clean=True)
        ann.send(subscribed(topic, 1))
        assert (await come(ann, Op.OK)).payload == b"\x97"


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_services_and_requests_reach_each_other_across_nodes(
    nats: Servers, prefix: str, owner: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        address = two.address(owner)
        clock, _ = await connect(two.b, owned_id(two, "b"), clean=True)
        clock.send(subscribed(f"$serve/{address}", 0))
        await come(clock, Op.OK)
        await until(lambda: address in getattr(two, owner).node.services)
        ann, _ = await connect(two.a, owned_id(two, "a"), clean=True)
        # What follows a request waits with it, until it is known to be one.
        asked = Message(
            address=address,
            payload=b"?",
            correlation_id="7",
            headers={"mqtt.response": "to/ann", "unit": "s"},
        )
        ann.send(asked, Message(op=Op.PING))
        question = await come(clock, Op.PUBLISH)
        assert (question.payload, question.headers["unit"]) == (b"?", "s")
        clock.send(Message(address=question.headers["mqtt.response"], payload=b"noon"))
        got = await arrived(ann, 2)
        reply = next(one for one in got if one.op == Op.PUBLISH)
        assert (reply.address, reply.correlation_id, reply.payload) == ("to/ann", "7", b"noon")
        eve = two.a.client("kobold-3")
        eve.send(Message(op=Op.REQUEST, address=address, payload=b"??", correlation_id="r"))
        question = await come(clock, Op.PUBLISH)
        clock.send(Message(address=question.headers["mqtt.response"], payload=b"night"))
        assert (await come(eve, Op.REPLY)).payload == b"night"
        clock.session.lost("gone")
        await until(lambda: address not in getattr(two, owner).node.services)
        ann.send(asked)  # now it is a publish like any other
        eve.send(Message(op=Op.SUBSCRIBE, address="x", correlation_id="s"))
        await until(lambda: not ann.session.waits_for)


async def arrived(client: Client, number: int) -> list[Message]:
    """Wait for some messages, of whatever op."""
    got: list[Message] = []

    def is_there() -> bool:
        got.extend(client.take())
        return len(got) >= number

    await until(is_there)
    return got
