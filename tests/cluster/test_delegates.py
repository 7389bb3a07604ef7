"""Every pattern across two nodes: what one node owns, clients of the other one use."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.desk import Client, ops
from tests.cluster.servers import Servers
from tests.cluster.test_coordinator import until
from tests.cluster.test_edge import PARTITIONS, OneNode, Two, answers, two_nodes
from wirelake.broker.rights import Rights
from wirelake.journal.batch import home
from wirelake.message import Flag, Message, Op, Parameters

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

OPS = ["kobold-1", "kobold-3", "boson-binary"]


async def ask(client: Client, message: Message) -> list[Message]:
    """Send a message, and return what comes up to its answer."""
    client.send(message)
    got: list[Message] = []

    def is_answered() -> bool:
        got.extend(client.take())
        return any(one.op in (Op.OK, Op.ERROR) for one in got)

    await until(is_answered)
    return got


async def come(client: Client, op: Op, count: int = 1) -> list[Message]:
    """Wait for messages of an op."""
    got: list[Message] = []

    def is_there() -> bool:
        got.extend(one for one in client.take() if one.op == op)
        return len(got) >= count

    await until(is_there)
    return got


def put(address: str, payload: bytes, number: str) -> Message:
    return Message(op=Op.ENQUEUE, address=address, payload=payload, id=number, correlation_id="c")


@pytest.mark.parametrize("dialect", OPS)
async def test_messages_of_a_queue_are_put_pulled_and_acknowledged_from_the_other_node(
    nats: Servers, prefix: str, dialect: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address("b")
        ann, bob = two.a.client(dialect), two.b.client(dialect)
        for k in range(3):
            assert ops(await ask(ann, put(queue, b"%d" % k, f"m{k}"))) == ["ok"]
        assert queue in two.b.node.queues
        assert queue not in two.a.node.queues
        pull = Message(
            op=Op.DEQUEUE, address=queue, correlation_id="p", parameters=Parameters(count=2)
        )
        got = await ask(ann, pull)
        assert [one.payload for one in got[:-1]] == [b"0", b"1"]
        assert got[-1].parameters.count == 2
        for message in got[:-1]:
            done = Message(op=Op.ACK, address=queue, id=message.id, correlation_id="d")
            assert ops(await ask(ann, done)) == ["ok"]
        again = await ask(ann, Message(op=Op.ACK, address=queue, id="m0", correlation_id="d"))
        assert again[0].parameters.code == "not_found"
        got = await ask(bob, pull)
        assert [one.payload for one in got[:-1]] == [b"2"]


async def test_puts_and_acks_that_come_together_are_forwarded_together(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address("b")
        ann = two.a.client("kobold-3")
        ann.send(*(put(queue, b"%d" % k, f"m{k}") for k in range(200)))
        assert ops(await answers(ann, 200)) == ["ok"] * 200
        eve = two.a.client("kobold-3")
        eve.send(Message(op=Op.SUBSCRIBE, address=queue, parameters=Parameters(count=500)))
        got = await come(eve, Op.DELIVER, 200)
        assert [one.payload for one in got] == [b"%d" % k for k in range(200)]
        acks = [Message(op=Op.ACK, address=queue, id=one.id, correlation_id="c") for one in got]
        eve.send(*acks)
        assert ops(await answers(eve, 200)) == ["ok"] * 200
        assert len(two.b.node.queues.get(queue)) == 0


async def test_a_consumer_of_another_node_gets_what_is_published_and_others_what_it_held(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address("b")
        bob = two.b.client("kobold-3")
        assert ops(await ask(bob, put(queue, b"first", "m0"))) == ["ok"]
        eve = two.a.client("boson-binary")
        subscribed = await ask(eve, Message(op=Op.SUBSCRIBE, address=queue, correlation_id="s"))
        assert sorted(ops(subscribed)) == ["deliver", "ok"]
        two.a.client("boson-text").publish(queue, b"second")
        (second,) = await come(eve, Op.DELIVER)
        assert second.payload == b"second"
        eve.session.lost("gone")  # and what it held goes back
        await until(lambda: two.b.node.queues.get(queue).state(0.0)["ready"] == 2)


async def test_an_address_that_is_a_topic_is_returned_to_the_edge(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        topic = two.address("b")
        ann = two.a.client("kobold-3")
        # Its own message comes, although it did not wait for the answer.
        ann.send(
            Message(op=Op.SUBSCRIBE, address=topic, correlation_id="s"),
            Message(address=topic, payload=b"mine"),
        )
        (got,) = await come(ann, Op.PUBLISH)
        assert got.payload == b"mine"
        assert topic in ann.session.filters
        gone = await ask(ann, Message(op=Op.UNSUBSCRIBE, address=topic, correlation_id="u"))
        assert ops(gone)[-1] == "ok"
        again = await ask(ann, Message(op=Op.UNSUBSCRIBE, address=topic, correlation_id="u"))
        assert again[-1].parameters.code == "not_found"


@pytest.mark.parametrize("dialect", OPS)
async def test_keys_have_one_revision_whichever_node_is_asked(
    nats: Servers, prefix: str, dialect: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        key = two.address("b")
        ann, bob = two.a.client(dialect), two.b.client(dialect)
        made = await ask(ann, Message(op=Op.CREATE, address=key, payload=b"1", correlation_id="c"))
        assert made[0].parameters.rev == 1
        read = await ask(bob, Message(op=Op.READ, address=key, correlation_id="r"))
        assert read[0].payload == b"1"
        changed = Message(op=Op.UPDATE, address=key, payload=b"2", correlation_id="u")
        for who, rev in ((bob, 1), (ann, 2)):
            got = await ask(
                who,
                Message(
                    op=Op.UPDATE,
                    address=key,
                    payload=b"%d" % rev,
                    correlation_id="u",
                    parameters=Parameters(rev=rev),
                ),
            )
            assert got[0].parameters.rev == rev + 1
        stale = Message(
            op=Op.UPDATE,
            address=key,
            payload=b"x",
            correlation_id="u",
            parameters=Parameters(rev=1),
        )
        assert (await ask(ann, stale))[0].parameters.code == "conflict"
        assert ops(await ask(ann, changed)) == ["ok"]
        gone = await ask(ann, Message(op=Op.DELETE, address=key, correlation_id="d"))
        assert ops(gone) == ["ok"]
        none = await ask(ann, Message(op=Op.READ, address=key, correlation_id="r"))
        assert none[0].parameters.code == "not_found"


async def test_a_list_of_keys_has_those_of_all_nodes(nats: Servers, prefix: str) -> None:
    """decision 94"""
    async with two_nodes(nats, prefix) as two:
        ann = two.a.client("kobold-3")
        for k in range(300):
            made = Message(op=Op.CREATE, address=f"list/{k}", payload=b"%d" % k, correlation_id="c")
            ann.send(made)
        await answers(ann, 300)
        got = await ask(ann, Message(op=Op.READ, address="list/+", correlation_id="l"))
        assert got[-1].parameters.count == 300
        assert {one.address: one.payload for one in got[:-1]} == {
            f"list/{k}": b"%d" % k for k in range(300)
        }
        two.give(0, "")
        (refused,) = await ask(ann, Message(op=Op.READ, address="list/+", correlation_id="l"))
        assert refused.parameters.code == "busy"


@pytest.mark.parametrize("filter", ["", "town/#"])
async def test_watchers_of_another_node_are_told_of_changes(
    nats: Servers, prefix: str, filter: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        keys = [two.address("a"), two.address("b")]
        ann, bob = two.a.client("kobold-3"), two.b.client("kobold-3")
        for key in [filter] if filter else keys:
            watched = await ask(ann, Message(op=Op.WATCH, address=key, correlation_id="w"))
            assert ops(watched) == ["ok"]
        await until(lambda: len(two.b.node.store._watchers) == 1)
        for key in keys:
            made = Message(op=Op.CREATE, address=key, payload=b"1", correlation_id="c")
            assert ops(await ask(bob, made)) == ["ok"]
        told = await come(ann, Op.SET, 2)
        assert {one.address for one in told} == set(keys)


@pytest.mark.parametrize("serving", ["kobold-3", "boson-binary", "boson-text"])
async def test_a_request_finds_a_service_on_any_node(
    nats: Servers, prefix: str, serving: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        for owner in "ab":
            address = two.address(owner, 1)
            for where, other in ((two.a, two.b), (two.b, two.a)):
                service = where.client(serving)
                service.send(Message(op=Op.SERVE, address=address, correlation_id="s"))
                await until(lambda a=address, o=owner: a in getattr(two, o).node.services)  # type: ignore[misc]
                client = other.client("kobold-3")
                client.send(
                    Message(op=Op.REQUEST, address=address, payload=b"6*7", correlation_id="q")
                )
                (request,) = await come(service, Op.REQUEST)
                assert request.payload == b"6*7"
                reply = Message(op=Op.REPLY, correlation_id=request.correlation_id, payload=b"42")
                service.send(reply)
                (got,) = await come(client, Op.REPLY)
                assert (got.payload, got.correlation_id) == (b"42", "q")
                service.session.lost("gone")
                await until(lambda a=address, o=owner: a not in getattr(two, o).node.services)  # type: ignore[misc]
                client.send(
                    Message(op=Op.REQUEST, address=address, payload=b"6*7", correlation_id="q")
                )
                (none,) = await come(client, Op.ERROR)
                assert none.parameters.code == "no_service"


def homed(two: Two, owner: str, beginning: str = "client") -> str:
    """A client id whose home partition this node owns."""
    names = (f"{beginning}{k}" for k in range(1000))
    return next(n for n in names if two.owners[home(n.encode(), PARTITIONS)] == owner)


async def known(two: Two, name: str) -> None:
    """Wait until the home of a client id knows it."""
    owner: OneNode = getattr(two, two.owners[home(name.encode(), PARTITIONS)])
    await until(lambda: name in owner.node.clients)


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_direct_messages_reach_a_client_on_any_node(
    nats: Servers, prefix: str, owner: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        name = homed(two, owner)
        ann = two.a.client("kobold-3", name)
        await known(two, name)
        for desk in (two.a, two.b):
            sender = desk.client("tmq-1.01", f"sender {desk.name}")
            sender.send(Message(op=Op.DIRECT, target=name, payload=b"psst", id="1"))
            (got,) = await come(ann, Op.PUBLISH)
            assert (got.payload, got.source) == (b"psst", f"sender {desk.name}")


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_an_id_is_one_client_in_the_whole_cluster(
    nats: Servers, prefix: str, owner: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        name = homed(two, owner)
        ann = two.a.client("kobold-3", name)
        await known(two, name)
        second = two.b.client("kobold-3", name)
        refused = [one.parameters.code for one in second.opening if one.op == Op.ERROR]
        if refused:  # at the home of the id it is known at once
            assert refused == ["conflict"]
        else:
            await until(lambda: second.session.closed)
        assert not ann.session.closed


async def test_a_client_takes_its_id_over_from_another_node_with_the_same_token(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        rights = Rights("ann's token", ("#",), ("#",), ("#",), ("#",))
        for desk in (two.a, two.b):
            clients = desk.node.clients
            clients.rights_of_strangers = Rights("strangers")
            clients.rights_of_token = lambda token: rights if token == "secret" else None
        name = homed(two, "b")
        first = two.a.client("kobold-3", name, token="secret")
        await known(two, name)
        second = two.b.client("kobold-3", name, token="secret")
        await until(lambda: first.session.closed)
        assert not second.session.closed


@pytest.mark.parametrize("owner", ["a", "b"])
async def test_bytes_of_a_stream_go_both_ways_between_nodes(
    nats: Servers, prefix: str, owner: str
) -> None:
    """decision 90"""
    async with two_nodes(nats, prefix) as two:
        name = homed(two, owner)
        target = two.b.client("kobold-3", name)
        await known(two, name)
        ann = two.a.client("kobold-3")
        opened = await ask(ann, Message(op=Op.OPEN, address=name, correlation_id="mine"))
        assert ops(opened) == ["ok"]
        (offer,) = await come(target, Op.OPEN)
        for k in range(50):
            ann.send(Message(op=Op.DATA, correlation_id="mine", payload=b"%04d" % k * 1000))
        got = await come(target, Op.DATA, 50)
        assert b"".join(one.payload for one in got) == b"".join(
            b"%04d" % k * 1000 for k in range(50)
        )
        target.send(Message(op=Op.DATA, correlation_id=offer.correlation_id, payload=b"back"))
        (back,) = await come(ann, Op.DATA)
        assert (back.payload, back.correlation_id) == (b"back", "mine")
        ann.send(Message(op=Op.CLOSE, correlation_id="mine"))
        (closed,) = await come(target, Op.CLOSE)
        assert closed.parameters.count == 200_000


async def test_a_writer_waits_for_a_reader_on_another_node(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        for desk in (two.a, two.b):
            desk.node.flow.outbox = 1 << 20
        name = homed(two, "b")
        target = two.b.client("kobold-3", name)
        await known(two, name)
        ann = two.a.client("kobold-3")
        assert ops(await ask(ann, Message(op=Op.OPEN, address=name, correlation_id="x"))) == ["ok"]
        target.reads = False
        sent = 0
        for _ in range(400):
            if ann.paused:
                break
            ann.send(Message(op=Op.DATA, correlation_id="x", payload=bytes(64 << 10)))
            sent += 64 << 10
            await asyncio.sleep(0.001)
        assert ann.paused
        assert sent < 8 << 20
        target.reads = True
        target.drain()
        two.b.node.flow.drained(target.session, 0.0)
        ann.send(Message(op=Op.CLOSE, correlation_id="x"))
        got: list[Message] = []

        def is_closed() -> bool:
            got.extend(target.take())
            two.b.node.flow.drained(target.session, 0.0)
            return got[-1:] != [] and got[-1].op == Op.CLOSE

        await until(is_closed)
        assert got[-1].parameters.count == sent


async def test_rights_are_those_that_the_edge_found(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address, other = two.address("b"), two.address("b", 1)
        clients = two.a.node.clients
        clients.rights_of_strangers = Rights("strangers", publish=(address,), declare=("#",))
        ann = two.a.client("kobold-3")
        assert ops(await ask(ann, put(address, b"x", "1"))) == ["ok"]
        (refused,) = await ask(ann, put(other, b"x", "2"))
        assert refused.parameters.code == "unauthorized"
        (refused,) = await ask(ann, Message(op=Op.READ, address=address, correlation_id="r"))
        assert refused.parameters.code == "unauthorized"


async def test_a_producer_that_repeats_itself_on_another_node_is_heard_once(
    nats: Servers, prefix: str
) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address("b")
        for desk in (two.a, two.b, two.a):
            ann = desk.client("kobold-3", "ann")
            await known(two, "ann")
            assert ops(await ask(ann, put(queue, b"once", "m1"))) == ["ok"]
            ann.session.lost("gone")
            await until(lambda: not any("ann" in d.node.clients for d in (two.a, two.b)))
        assert len(two.b.node.queues.get(queue)) == 1


async def test_what_nobody_owns_is_refused_as_busy(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address("b")
        two.give(home(queue.encode(), PARTITIONS), "")
        ann = two.a.client("kobold-3")
        for op in (Op.ENQUEUE, Op.DEQUEUE, Op.READ, Op.CREATE, Op.SERVE, Op.REQUEST):
            (refused,) = await ask(ann, Message(op=op, address=queue, correlation_id="c"))
            assert refused.parameters.code == "busy", op
        ann.send(*(put(queue, b"x", f"{k}") for k in range(3)))
        assert {one.parameters.code for one in await answers(ann, 3)} == {"busy"}


async def test_services_and_ids_move_with_their_partitions(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        address, name = two.address("b", 1), homed(two, "b")
        ann = two.a.client("kobold-3", name)
        assert ops(await ask(ann, Message(op=Op.SERVE, address=address, correlation_id="s")))
        await known(two, name)
        for partition in range(PARTITIONS):
            two.give(partition, "a")
        assert address in two.a.node.services
        await until(lambda: address not in two.b.node.services)
        await until(lambda: name not in two.b.node.clients)
        for partition in range(PARTITIONS):
            two.give(partition, "b")
        await until(lambda: address in two.b.node.services)
        await known(two, name)
        assert address not in two.a.node.services
        client = two.b.client("kobold-3")
        client.send(Message(op=Op.REQUEST, address=address, correlation_id="q"))
        (request,) = await come(ann, Op.REQUEST)
        ann.send(Message(op=Op.REPLY, correlation_id=request.correlation_id, payload=b"here"))
        (got,) = await come(client, Op.REPLY)
        assert got.payload == b"here"


async def test_consumers_are_disconnected_and_services_stay_when_a_link_breaks(
    nats: Servers, prefix: str
) -> None:
    """decision 92"""
    async with two_nodes(nats, prefix) as two:
        queue, address = two.address("b"), two.address("b", 1)
        ann, bob = two.a.client("kobold-3"), two.a.client("kobold-3")
        assert ops(await ask(ann, put(queue, b"x", "1"))) == ["ok"]
        await ask(ann, Message(op=Op.SUBSCRIBE, address=queue, correlation_id="s"))
        await ask(bob, Message(op=Op.SERVE, address=address, correlation_id="s"))
        await until(lambda: not two.a.edge.delegations.under_way)
        two.a.edge.upstreams["b"].link.abort()
        await until(lambda: ann.session.closed)
        assert not bob.session.closed
        await until(lambda: len(two.a.edge.upstreams) == 1)
        await until(lambda: address in two.b.node.services)
        await until(lambda: two.b.node.queues.get(queue).state(0.0)["ready"] == 1)


async def test_tmq_declares_pulls_and_acknowledges_across_nodes(nats: Servers, prefix: str) -> None:
    async with two_nodes(nats, prefix) as two:
        queue = two.address("b")
        ann = two.a.client("tmq-1.01", "ann")
        ann.send(
            Message(
                op=Op.DECLARE,
                address=queue,
                id="1",
                flags=Flag.RESPONSE,
                payload=b"\0\0Mode: pull\r\n",
            )
        )
        await until(lambda: queue in two.b.node.queues)
        assert two.b.node.queues.get(queue).settings.mode == "pull"
        ann.publish(queue, b"job", ack=True)
        await until(lambda: len(two.b.node.queues.get(queue)) == 1)
        ann.take()
        ann.send(Message(op=Op.DEQUEUE, address=queue, id="7", payload=b"1"))
        (job,) = await come(ann, Op.PUBLISH)
        assert job.payload == b"job"
        ann.send(Message(op=Op.ACK, address=queue, id=job.id))
        await until(lambda: len(two.b.node.queues.get(queue)) == 0)
