"""Queues through a client, in every dialect, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

import wirelake
from tests.client.brokers import Broker, Proxy
from tests.client.test_client import those_with, those_without
from tests.client.test_reconnect import through
from wirelake.client import Client
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError

ACKNOWLEDGING = those_with("nack")


async def until(is_true: Callable[[], object]) -> None:
    """Wait for the broker to have come to something."""
    while not is_true():
        await asyncio.sleep(0.005)


def left(broker: Broker, queue: str = "jobs") -> int:
    """How many messages the broker has in a queue."""
    return len(broker.node.queues.get(queue)) if queue in broker.node.queues else 0


async def make_queue(broker: Broker, *payloads: bytes, queue: str = "jobs") -> None:
    """A queue with these messages in it."""
    async with wirelake.connect(broker.url("kobold-3")) as client:
        assert await client.queue(queue).get() == []
        for payload in payloads:
            await client.queue(queue).put(payload)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_is_put_is_consumed_and_acknowledged(broker: Broker, dialect: str) -> None:
    await make_queue(broker)
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        for payload in (b"", b"1", bytes(range(256)), b"x" * 1000):
            await jobs.put(payload)
        got = []
        async for delivery in jobs.consume():
            got.append(delivery.message.payload)
            assert delivery.message.address == "jobs"
            await delivery.ack()
            if len(got) == 4:
                break
    assert got == [b"", b"1", bytes(range(256)), b"x" * 1000]
    await until(lambda: left(broker) == 0)


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_a_worker_may_be_there_before_its_queue(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as worker,
        wirelake.connect(broker.url(dialect)) as producer,
        worker.queue("jobs").consume() as deliveries,
    ):
        for k in range(3):
            await producer.queue("jobs").put(b"%d" % k)
            delivery = await deliveries.receive(60)
            assert delivery.message.payload == b"%d" % k
            await delivery.ack()
        assert left(broker) == 0


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_putting_makes_the_queue(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        await client.queue("jobs").put(b"1")
        await client.queue("jobs").put(b"2", ack=False)
        await client.ping()
        assert left(broker) == 2
        assert [d.message.payload for d in await client.queue("jobs").get(5)] == [b"1", b"2"]


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_fields_of_a_message_arrive(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect), client_id="alice") as client:
        jobs = client.queue("jobs")
        await jobs.put(b"later")
        await jobs.put(b"first", id="m1", priority=1)
        urgent, other = await jobs.get(2)
        assert urgent.message.payload == b"first"
        assert (urgent.message.id, urgent.message.priority) == ("m1", 1)
        assert urgent.message.source == "alice"
        assert urgent.attempt == 1
        assert other.message.id not in ("", "m1")


@pytest.mark.parametrize("dialect", [d for d in those_with("header") if d in those_with("pull")])
async def test_headers_arrive_and_no_parameters(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        await client.queue("jobs").put(b"", headers={"colour": "red"}, ttl=60_000)
        (delivery,) = await client.queue("jobs").get()
        assert (delivery.message.headers, delivery.message.ttl) == ({"colour": "red"}, 60_000)


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_a_refused_message_comes_again(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        await jobs.put(b"1")
        async with jobs.consume() as deliveries:
            first = await deliveries.receive(60)
            await first.nack()
            again = await deliveries.receive(60)
            assert again.message.payload == b"1"
            assert (first.attempt, again.attempt) == (1, 0 if dialect.startswith("tmq") else 2)
            await again.ack()
        assert left(broker) == 0


@pytest.mark.parametrize("dialect", those_with("nack without requeue"))
async def test_a_message_refused_for_good_is_a_dead_letter(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        await client.queue("jobs").put(b"1")
        (delivery,) = await client.queue("jobs").get()
        await delivery.nack(requeue=False)
        (dead,) = await client.queue("jobs/$dead").get()
        assert dead.message.payload == b"1"
        assert dead.message.headers["dead.reason"] == "rejected"


@pytest.mark.parametrize("dialect", those_with("nack without requeue"))
async def test_a_delivery_is_settled_once(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        await client.queue("jobs").put(b"1")
        (delivery,) = await client.queue("jobs").get()
        await delivery.ack()
        for settle in (delivery.ack, delivery.nack):
            with pytest.raises(RefusedError) as error:
                await settle()
            assert error.value.code == "not_found"


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_a_consumer_that_leaves_gives_its_messages_back(broker: Broker, dialect: str) -> None:
    await make_queue(broker, b"1", b"2", b"3")
    async with (
        wirelake.connect(broker.url(dialect)) as leaving,
        wirelake.connect(broker.url("kobold-2")) as staying,
    ):
        async with leaving.queue("jobs").consume() as deliveries:
            assert (await deliveries.receive(60)).message.payload == b"1"
            taken = await deliveries.receive(60)
            await taken.ack()
        rest = await staying.queue("jobs").get(10)
        assert [delivery.message.payload for delivery in rest] == [b"1", b"3"]


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_a_subscription_to_a_queue_acknowledges_what_is_taken(
    broker: Broker, dialect: str
) -> None:
    await make_queue(broker, b"1", b"2", b"3")
    async with wirelake.connect(broker.url(dialect)) as client:
        async with client.subscribe("jobs") as messages:
            assert (await messages.receive(60)).payload == b"1"
        async for message in client.subscribe("jobs"):
            assert message.payload == b"2"
            assert message.parameters.attempt is None
            break
        await until(lambda: left(broker) == 1)
        (last,) = await client.queue("jobs").get()
        assert last.message.payload == b"3"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_subscription_keeps_up_with_a_long_queue(broker: Broker, dialect: str) -> None:
    await make_queue(broker)
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.subscribe("jobs") as messages,
    ):
        await client.publish_many([("jobs", b"%d" % k) for k in range(1000)])
        got = [int((await messages.receive(60)).payload) for _ in range(1000)]
    assert got == list(range(1000))
    await until(lambda: left(broker) == 0)


@pytest.mark.parametrize("dialect", those_with("prefetch"))
async def test_a_consumer_has_no_more_than_its_prefetch(broker: Broker, dialect: str) -> None:
    await make_queue(broker, *(b"%d" % k for k in range(10)))
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.queue("jobs").consume(prefetch=3) as deliveries,
    ):
        held = [await deliveries.receive(60) for _ in range(3)]
        await client.ping()
        assert len(deliveries._inbox) == 0
        await held[1].ack()
        assert (await deliveries.receive(60)).message.payload == b"3"


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_two_consumers_of_one_client_share_a_queue(broker: Broker, dialect: str) -> None:
    await make_queue(broker)
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        async with jobs.consume() as one:
            async with jobs.consume() as two:
                for k in range(4):
                    await jobs.put(b"%d" % k)
                got = [await one.receive(60), await two.receive(60), await one.receive(60)]
                assert {d.message.payload for d in got} < {b"0", b"1", b"2", b"3"}
                for delivery in got:
                    await delivery.ack()
            # What the second one leaves behind comes to the first.
            await (await one.receive(60)).ack()
        assert left(broker) == 0


@pytest.mark.parametrize("dialect", those_with("pull"))
async def test_getting_from_an_empty_queue_gives_nothing(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        assert await client.queue("jobs").get(3) == []
        await client.queue("jobs").put(b"1")
        (delivery,) = await client.queue("jobs").get(3)
        await delivery.ack()
        assert left(broker) == 0


@pytest.mark.parametrize("dialect", those_with("pull that waits"))
async def test_getting_waits_for_a_message(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        getting = asyncio.create_task(jobs.get(2, wait=30))
        await client.ping()
        await jobs.put(b"1")
        assert not getting.done()
        await jobs.put(b"2")
        assert [d.message.payload for d in await getting] == [b"1", b"2"]


@pytest.mark.parametrize("dialect", those_with("pull that waits"))
async def test_a_get_that_is_given_up_gives_back_what_comes(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as hasty,
        wirelake.connect(broker.url("kobold-3")) as other,
    ):
        getting = asyncio.create_task(hasty.queue("jobs").get(2, wait=30))
        await hasty.ping()
        await other.queue("jobs").put(b"1")
        getting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await getting
        await hasty.ping()
        await other.queue("jobs").put(b"2")
        # The broker still serves the old pull, until it has had its two.
        got = await other.queue("jobs").get(2, wait=5)
        assert sorted(d.message.payload for d in got) == [b"1", b"2"]


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_getting_and_consuming_go_together(broker: Broker, dialect: str) -> None:
    await make_queue(broker, *(b"%d" % k for k in range(300)))
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        got: list[int] = []
        async with jobs.consume() as deliveries:
            while len(got) < 300:
                batch = await jobs.get(5)
                batch += [await deliveries.receive(60) for _ in range(len(deliveries._inbox))]
                for delivery in batch:
                    await delivery.ack()
                    got.append(int(delivery.message.payload))
        assert sorted(got) == list(range(300))
        assert left(broker) == 0


@pytest.mark.parametrize("dialect", those_with("delay"))
async def test_a_delayed_message_comes_later(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        await jobs.put(b"late", delay=200)
        await jobs.put(b"soon")
        assert [d.message.payload for d in await jobs.get(2)] == [b"soon"]
        (late,) = await jobs.get(1, wait=5)
        assert late.message.payload == b"late"


@pytest.mark.parametrize("dialect", those_with("declaration of queues"))
async def test_a_queue_is_declared_and_removed(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        jobs = client.queue("jobs")
        await jobs.declare(mode="pull", ack_timeout=7.5, max_deliveries=3)
        settings = broker.node.queues.get("jobs").settings
        assert (settings.mode, settings.ack_timeout, settings.max_deliveries) == ("pull", 7.5, 3)
        with pytest.raises(RefusedError) as error:
            await jobs.declare()
        assert error.value.code == "exists"
        await jobs.put(b"1")
        assert broker.node.queues.get("jobs").settings.mode == "pull"
        await jobs.remove()
        assert "jobs" not in broker.node.queues
        with pytest.raises(RefusedError) as error:
            await jobs.remove()
        assert error.value.code == "not_found"
        await jobs.put(b"2")
        assert left(broker) == 1


@pytest.mark.parametrize("dialect", those_with("list of queues"))
async def test_the_state_of_all_queues(broker: Broker, dialect: str) -> None:
    await make_queue(broker, b"1", b"2")
    async with wirelake.connect(broker.url(dialect)) as client:
        await client.queue("jobs").get()
        (state,) = await client.queues()
        wanted = {"name": "jobs", "mode": "round-robin", "messages": 2, "ready": 1, "held": 1}
        assert wanted.items() <= state.items()


@pytest.mark.parametrize("dialect", those_with("state of the broker"))
async def test_the_state_of_the_broker(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        state = await client.info()
        assert state["connections"] == 1


@pytest.mark.parametrize("dialect", those_without("nack"))
async def test_without_acknowledgements_handing_over_is_one(broker: Broker, dialect: str) -> None:
    await make_queue(broker, b"1")
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.queue("jobs").consume() as deliveries,
    ):
        delivery = await deliveries.receive(60)
        assert left(broker) == 0
        await delivery.ack()
        with pytest.raises(RefusedError, match=r"has no nack; .* have"):
            await delivery.nack()


async def test_a_topic_can_be_consumed_but_not_refused(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3")) as client,
        client.subscribe("news"),
        wirelake.connect(broker.url("kobold-3")) as other,
        other.queue("news").consume() as deliveries,
    ):
        await client.publish("news", b"x")
        delivery = await deliveries.receive(60)
        await delivery.ack()
        with pytest.raises(RefusedError, match="is a topic"):
            await delivery.nack()
        with pytest.raises(RefusedError) as error:
            await client.queue("news").put(b"x")
        assert error.value.code == "conflict"


@pytest.mark.parametrize(
    ("ability", "use"),
    [
        ("acknowledgement of a publish", lambda q: q.put(b"", ack=True)),
        ("delay", lambda q: q.put(b"", delay=1)),
        ("header", lambda q: q.put(b"", headers={"k": "v"})),
        ("message id", lambda q: q.put(b"", id="1")),
        ("pull", lambda q: q.get()),
        ("pull that waits", lambda q: q.get(wait=1)),
        ("prefetch", lambda q: q.consume(prefetch=1).__aenter__()),
        ("declaration of queues", lambda q: q.declare()),
        ("declaration of queues", lambda q: q.remove()),
    ],
)
async def test_what_a_dialect_cannot_do_with_a_queue_raises(
    broker: Broker, ability: str, use: object
) -> None:
    assert callable(use)
    for dialect in those_without(ability):
        async with wirelake.connect(broker.url(dialect)) as client:
            with pytest.raises(RefusedError, match=rf"^bad_request: {dialect} has no .* have$"):
                await use(client.queue("jobs"))


async def test_what_makes_no_sense_is_refused_before_it_is_sent(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("tmq")) as tmq,
        wirelake.connect(broker.url("kobold")) as client,
    ):
        for wrong in (
            client.queue("jobs").put(b"", delay=-1),
            client.queue("jobs").get(0),
            client.queue("jobs").get(wait=-1),
            tmq.queue("jobs").declare(mode="lifo"),
        ):
            with pytest.raises(RefusedError, match="bad_request"):
                await wrong
        with pytest.raises(RefusedError, match="bad_request"):
            client.queue("jobs").consume(prefetch=0)
        with pytest.raises(RefusedError, match="bad_request"):
            client.queue("$jobs")
        assert list(broker.node.queues.all()) == []


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_a_refused_put_raises(broker: Broker, dialect: str) -> None:
    broker.node.clients.rights_of_strangers.publish = ("allowed",)
    async with wirelake.connect(broker.url(dialect)) as client:
        with pytest.raises(RefusedError) as error:
            await client.queue("jobs").put(b"1")
        assert error.value.code == "unauthorized"
        await client.queue("allowed").put(b"1")


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_who_may_not_consume_is_told(broker: Broker, dialect: str) -> None:
    broker.node.clients.rights_of_strangers.subscribe = ("allowed",)
    async with wirelake.connect(broker.url(dialect)) as client:
        with pytest.raises(RefusedError) as error:
            await client.queue("jobs").get()
        assert error.value.code == "unauthorized"
        with pytest.raises(RefusedError) as error:
            async with client.queue("jobs").consume():
                pass
        assert error.value.code == "unauthorized"


# When the connection is lost


async def back(client: Client) -> None:
    """Wait until a client that was cut off is there again."""
    while True:
        with suppress(RefusedError):
            await client.ping()
            return


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_only_what_was_not_acknowledged_comes_again(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    await make_queue(broker, *(b"%d" % k for k in range(10)))
    async with (
        through(proxy, dialect) as client,
        client.queue("jobs").consume() as deliveries,
    ):
        before = [await deliveries.receive(60) for _ in range(5)]
        for delivery in before[:3]:
            await delivery.ack()
        proxy.cut()
        await back(client)
        for delivery in before[3:]:
            with pytest.raises(RefusedError) as error:
                await delivery.ack()
            assert error.value.code == "closed"
        after = [await deliveries.receive(60) for _ in range(7)]
        assert [int(d.message.payload) for d in after] == [3, 4, 5, 6, 7, 8, 9]
        for delivery in after:
            await delivery.ack()
        assert left(broker) == 0


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_a_subscription_drops_what_the_broker_brings_again(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    await make_queue(broker, *(b"%d" % k for k in range(5)))
    async with through(proxy, dialect) as client, client.subscribe("jobs") as messages:
        assert (await messages.receive(60)).payload == b"0"
        await until(lambda: left(broker) == 4)
        proxy.cut()
        await back(client)
        assert [int((await messages.receive(60)).payload) for _ in range(4)] == [1, 2, 3, 4]
        await until(lambda: left(broker) == 0)


async def test_a_get_fails_when_the_connection_breaks_and_loses_nothing(
    broker: Broker, proxy: Proxy
) -> None:
    async with through(proxy, "kobold-2") as client:
        getting = asyncio.create_task(client.queue("jobs").get(2, wait=30))
        await client.ping()
        await make_queue(broker, b"1")
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await getting
        assert error.value.code == "closed"
        (delivery,) = await client.queue("jobs").get(1, wait=5)
        assert delivery.message.payload == b"1"


async def test_a_consumer_that_is_not_allowed_any_more_ends(
    broker: Broker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        through(proxy, "boson-binary") as client,
        client.queue("jobs").consume() as deliveries,
    ):
        broker.node.clients.rights_of_strangers.subscribe = ()
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await deliveries.receive(60)
        assert error.value.code == "unauthorized"


async def producer_of(client: Client, count: int) -> None:
    """Put numbers, each until it is acknowledged."""
    for k in range(count):
        while True:
            try:
                await client.queue("jobs").put(b"%d" % k, id=f"job-{k}")
                break
            except RefusedError as error:
                assert error.code == "closed"  # noqa: PT017 - the others are retried


@pytest.mark.parametrize("dialect", ACKNOWLEDGING)
async def test_work_goes_on_while_the_connection_breaks_again_and_again(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    done: set[int] = set()
    acknowledged: set[int] = set()
    async with (
        through(proxy, dialect, client_id="producer") as producer,
        through(proxy, dialect) as worker,
        worker.queue("jobs").consume() as deliveries,
    ):
        producing = asyncio.create_task(producer_of(producer, 200))
        while len(acknowledged) < 200:
            delivery = await deliveries.receive(60)
            number = int(delivery.message.payload)
            assert number not in acknowledged
            done.add(number)
            try:
                await delivery.ack()
            except RefusedError as error:
                assert error.code in ("closed", "not_found")  # noqa: PT017 - it comes again
                continue
            acknowledged.add(number)
            if len(acknowledged) % 50 == 25:
                proxy.cut()
        await producing
    assert done == set(range(200))
