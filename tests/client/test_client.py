"""What a client does, in every dialect, against a real broker."""

from __future__ import annotations

import asyncio
import logging
import sys

import pyarrow as pa
import pytest

import wirelake
from tests.client.brokers import Broker
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.message import Message, Op


def those_with(ability: str) -> list[str]:
    """The dialects that have something."""
    return [name for name, one in DIALECTS.items() if ability in one.abilities]


def those_without(ability: str) -> list[str]:
    """The dialects that do not."""
    return [name for name, one in DIALECTS.items() if ability not in one.abilities]


PAYLOADS = [b"", b"hello", bytes(range(256)), "grüße".encode(), b"x" * 1000]


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_is_published_comes_to_a_subscriber(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.subscribe("room/one") as messages,
    ):
        for payload in PAYLOADS:
            await client.publish("room/one", payload)
        got = [await messages.receive(60) for _ in PAYLOADS]
    assert [m.payload for m in got] == PAYLOADS
    assert {m.address for m in got} == {"room/one"}


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_loop_over_messages_unsubscribes_when_it_is_left(
    broker: Broker, dialect: str
) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        wirelake.connect(broker.url("kobold-3")) as other,
    ):
        reading = asyncio.create_task(first_of(client.subscribe("a/#")))
        while not broker.node.state()["subscriptions"]:
            await asyncio.sleep(0.01)
        await other.publish("a/b", b"1", ack=True)
        assert (await reading).payload == b"1"
        while broker.node.state()["subscriptions"]:
            await asyncio.sleep(0.01)


async def first_of(messages: wirelake.client.Messages) -> Message:
    """The first message of a loop that is then left."""
    async for message in messages:
        return message
    raise AssertionError("no message")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_subscription_that_was_left_gets_nothing_more(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        async with client.subscribe("b") as kept, client.subscribe("a"):
            assert broker.node.state()["subscriptions"] == 2
        assert broker.node.state()["subscriptions"] == 0
        async with client.subscribe("b") as kept:
            async with client.subscribe("a"):
                pass
            await client.publish_many([("a", b"gone"), ("b", b"kept")])
            assert (await kept.receive(60)).payload == b"kept"


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d != "mfp-1"])
async def test_each_subscription_gets_what_its_filter_matches(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.subscribe("a/+") as plus,
        client.subscribe("a/#") as rest,
        client.subscribe("a/b") as exact,
        client.subscribe("a/b") as again,
    ):
        await client.publish_many([("a/b", b"1"), ("a/b/c", b"2"), ("a/c", b"3"), ("a/b", b"4")])
        assert [(await rest.receive(60)).payload for _ in range(4)] == [b"1", b"2", b"3", b"4"]
        assert [(await plus.receive(60)).payload for _ in range(3)] == [b"1", b"3", b"4"]
        assert [(await exact.receive(60)).payload for _ in range(2)] == [b"1", b"4"]
        assert [(await again.receive(60)).payload for _ in range(2)] == [b"1", b"4"]


async def test_several_mfp_subscriptions_get_everything_without_an_address(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("mfp-1")) as client,
        client.subscribe("a") as one,
        client.subscribe("b") as two,
    ):
        await client.publish_many([("a", b"1"), ("b", b"2")])
        for messages in (one, two):
            got = [await messages.receive(60) for _ in range(2)]
            assert [(m.address, m.payload) for m in got] == [("", b"1"), ("", b"2")]


@pytest.mark.parametrize("dialect", those_with("acknowledgement of a publish"))
async def test_an_acknowledged_publish_returns_when_it_is_done(
    broker: Broker, dialect: str
) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        await asyncio.gather(*(client.publish("a", b"x", ack=True) for _ in range(20)))
        assert broker.node.vitals.counters["received"] == 20


#: Those that can say that a publish was refused: MQTT 3.1.1 cannot.
REFUSING = [d for d in those_with("acknowledgement of a publish") if d != "mqtt-3.1.1"]


@pytest.mark.parametrize("dialect", REFUSING)
async def test_a_refused_publish_raises(broker: Broker, dialect: str) -> None:
    broker.node.clients.rights_of_strangers.publish = ("allowed/#",)
    async with wirelake.connect(broker.url(dialect)) as client:
        with pytest.raises(RefusedError) as error:
            await client.publish("forbidden", b"x", ack=True)
        assert error.value.code == ("bad_request" if dialect == "mfp-1" else "unauthorized")
        await client.publish("allowed/here", b"x", ack=True)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_refused_subscription_raises_and_the_client_lives_on(
    broker: Broker, dialect: str
) -> None:
    broker.node.clients.rights_of_strangers.subscribe = ("allowed/#",)
    async with wirelake.connect(broker.url(dialect)) as client:
        with pytest.raises(RefusedError):
            async with client.subscribe("forbidden"):
                pass
        async with client.subscribe("allowed/here") as messages:
            await client.publish("allowed/here", b"x")
            assert (await messages.receive(60)).payload == b"x"


@pytest.mark.parametrize("dialect", those_with("message id"))
async def test_id_and_priority_arrive(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.subscribe("a") as messages,
    ):
        await client.publish("a", b"x", id="m1", priority=1, ack=True)
        got = await messages.receive(60)
        assert (got.id, got.priority) == ("m1", 1)


@pytest.mark.parametrize("dialect", those_with("header"))
async def test_headers_and_ttl_arrive(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.subscribe("a") as messages,
    ):
        await client.publish("a", b"x", headers={"colour": "red"}, ttl=5000)
        got = await messages.receive(60)
        assert (dict(got.headers), got.ttl) == ({"colour": "red"}, 5000)


@pytest.mark.parametrize("server", those_with("service"))
@pytest.mark.parametrize("dialect", those_with("request/reply"))
async def test_a_request_is_answered(broker: Broker, dialect: str, server: str) -> None:
    async def double(request: Message) -> bytes:
        await asyncio.sleep(0)
        return request.payload * 2

    async with (
        wirelake.connect(broker.url(server)) as service,
        wirelake.connect(broker.url(dialect)) as client,
        service.serve("double", double),
    ):
        replies = await asyncio.gather(*(client.request("double", b"%d" % k) for k in range(10)))
        assert [reply.payload for reply in replies] == [b"%d%d" % (k, k) for k in range(10)]


@pytest.mark.parametrize("dialect", those_with("service"))
async def test_a_plain_handler_may_answer_with_a_message(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.serve("echo", lambda request: Message(payload=request.payload + b"!")),
    ):
        assert (await client.request("echo", b"hi")).payload == b"hi!"


@pytest.mark.parametrize("dialect", those_with("service"))
async def test_a_service_that_was_left_is_not_asked_any_more(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        async with client.serve("echo", lambda request: request.payload):
            with pytest.raises(RefusedError, match="already"):
                async with client.serve("echo", lambda request: b""):
                    pass
        with pytest.raises(RefusedError) as error:
            await client.request("echo", b"hi", timeout=60)
        assert error.value.code == "no_service"
        async with client.serve("echo", lambda request: request.payload):
            assert (await client.request("echo", b"hi")).payload == b"hi"


@pytest.mark.parametrize("dialect", those_with("request/reply"))
async def test_a_request_without_a_reply_times_out(
    broker: Broker, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Message) -> bytes:
        raise ValueError("broken")

    async with (
        wirelake.connect(broker.url("kobold-2")) as service,
        wirelake.connect(broker.url(dialect)) as client,
        service.serve("broken", broken),
    ):
        with pytest.raises(RefusedError) as error, caplog.at_level(logging.CRITICAL):
            await client.request("broken", b"", timeout=0.2)
        assert error.value.code == "timeout"
        assert client._lines.main is not None
        assert len(client._lines.main._answers) == 0


@pytest.mark.parametrize("receiver", those_with("direct message"))
@pytest.mark.parametrize("dialect", those_with("direct message"))
async def test_a_direct_message_comes_to_one_client(
    broker: Broker, dialect: str, receiver: str
) -> None:
    async with (
        wirelake.connect(broker.url(receiver), client_id="bob") as bob,
        wirelake.connect(broker.url(dialect), client_id="alice") as alice,
        bob.direct() as messages,
    ):
        await alice.send_to("bob", b"hello")
        got = await messages.receive(60)
        assert (got.payload, got.source, got.target) == (b"hello", "alice", "bob")


@pytest.mark.parametrize("dialect", those_with("acknowledgement of a direct message"))
async def test_a_direct_message_to_nobody_is_refused(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect), client_id="alice") as alice:
        with pytest.raises(RefusedError) as error:
            await alice.send_to("nobody", b"hello", ack=True)
        assert error.value.code == "not_found"


@pytest.mark.parametrize("dialect", those_with("ping"))
async def test_a_ping_tells_how_long_it_took(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        assert 0 < await client.ping() < 5


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_publish_many_takes_pairs_messages_and_arrow(broker: Broker, dialect: str) -> None:
    payloads = [b"%d" % k for k in range(5000)]
    batch = pa.record_batch({"address": ["a"] * 5000, "payload": pa.array(payloads, pa.binary())})
    messages = [
        Message("a", p, id="i", target="t", headers={"k": "v"}, op=Op.DELIVER) for p in payloads
    ]
    async with (
        wirelake.connect(broker.url(dialect), inbox=20_000) as client,
        client.subscribe("a") as got,
    ):
        for many in ([("a", p) for p in payloads], messages, batch):
            await client.publish_many(many)
        taken = [(await got.receive(60)).payload for _ in range(15_000)]
    assert taken == payloads * 3


async def test_publish_many_sends_all_or_nothing(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("mfp-1")) as client,
        client.subscribe("b") as messages,
    ):
        with pytest.raises(RefusedError) as error:
            await client.publish_many([("b", b"small"), ("b", bytes(1001))])
        assert error.value.code == "too_large"
        with pytest.raises(RefusedError):
            await client.publish("a", bytes(1001))
        with pytest.raises(RefusedError):
            await client.publish_many(pa.record_batch({"nothing": [1]}))
        await client.publish("b", b"next", ack=True)
        assert (await messages.receive(60)).payload == b"next"


@pytest.mark.parametrize("dialect", those_with("acknowledgement of a publish"))
async def test_publish_many_returns_when_all_are_acknowledged(broker: Broker, dialect: str) -> None:
    payloads = [b"%d" % k for k in range(5000)]
    batch = pa.record_batch({"address": ["a"] * 5000, "payload": pa.array(payloads, pa.binary())})
    twice = [Message("a", b"x", id="same"), Message("a", b"y", id="same")]
    async with wirelake.connect(broker.url(dialect)) as client:
        await client.publish_many([], ack=True)
        for many, count in (([("a", p) for p in payloads], 5000), (batch, 10_000), (twice, 10_002)):
            await client.publish_many(many, ack=True)
            assert broker.node.vitals.counters["received"] == count
        assert client._lines.main is not None
        assert len(client._lines.main._answers) == 0


@pytest.mark.parametrize("dialect", REFUSING)
async def test_publish_many_says_how_many_were_refused(broker: Broker, dialect: str) -> None:
    broker.node.clients.rights_of_strangers.publish = ("allowed",)
    async with wirelake.connect(broker.url(dialect)) as client:
        some = [("allowed", b"x")] * 10
        if dialect == "mfp-1":  # where setting a topic is refused, with all that follows
            some = []
        with pytest.raises(RefusedError, match=r"3 of [0-9]+ messages were refused") as error:
            await client.publish_many([*some, *[("forbidden", b"x")] * 3, *some], ack=True)
        assert error.value.code == ("bad_request" if dialect == "mfp-1" else "unauthorized")
        await client.publish_many([("allowed", b"x")] * 3, ack=True)


async def test_two_batches_with_one_id_are_not_mixed_up(broker: Broker) -> None:
    async with wirelake.connect(broker.url("kobold-3")) as client:
        batches = [[Message("a", b"x", id="same")] * 2] * 2
        results = await asyncio.gather(
            *(client.publish_many(batch, ack=True) for batch in batches), return_exceptions=True
        )
        assert results[0] is None
        assert isinstance(results[1], RefusedError)
        assert results[1].code == "conflict"


@pytest.mark.parametrize(
    ("ability", "use"),
    [
        ("acknowledgement of a publish", lambda c: c.publish("a", b"", ack=True)),
        ("acknowledgement of a publish", lambda c: c.publish_many([("a", b"")], ack=True)),
        ("list of queues", lambda c: c.queues()),
        ("state of the broker", lambda c: c.info()),
        ("message id", lambda c: c.publish("a", b"", id="1")),
        ("header", lambda c: c.publish("a", b"", headers={"k": "v"})),
        ("priority", lambda c: c.publish("a", b"", priority=1)),
        ("ttl", lambda c: c.publish("a", b"", ttl=1)),
        ("request/reply", lambda c: c.request("a", b"")),
        ("service", lambda c: c.serve("a", lambda m: b"").__aenter__()),
        ("direct message", lambda c: c.send_to("bob", b"")),
        ("direct message", lambda c: c.direct().__aenter__()),
        ("acknowledgement of a direct message", lambda c: c.send_to("bob", b"", ack=True)),
        ("ping", lambda c: c.ping()),
    ],
)  # fmt: skip
async def test_what_a_dialect_cannot_do_raises_and_says_which_can(
    broker: Broker, ability: str, use: object
) -> None:
    assert callable(use)
    for dialect in those_without(ability):
        async with wirelake.connect(broker.url(dialect)) as client:
            with pytest.raises(RefusedError, match=rf"^bad_request: {dialect} has no .* have$"):
                await use(client)


@pytest.mark.parametrize("address", ["", "a/+", "#", "$sys", "x" * 256])
async def test_an_address_that_cannot_be_one_is_refused(broker: Broker, address: str) -> None:
    async with wirelake.connect(broker.url("kobold-1")) as client:
        with pytest.raises(RefusedError) as error:
            await client.publish(address, b"")
        assert error.value.code == "bad_request"


async def test_a_message_over_the_limit_is_not_sent(broker: Broker) -> None:
    limits = wirelake.Limits(message=1000)
    async with wirelake.connect(broker.url("tmq"), limits=limits) as client:
        with pytest.raises(RefusedError, match="too_large"):
            await client.publish("a", bytes(1001))


async def test_a_tmq_client_without_an_id_is_given_one(broker: Broker) -> None:
    async with wirelake.connect(broker.url("tmq")) as client, client.direct() as messages:
        assert client.client_id
        await client.send_to(client.client_id, b"me")
        assert (await messages.receive(60)).payload == b"me"


# In MQTT the later connection takes over.
@pytest.mark.parametrize("dialect", [d for d in those_with("client id") if "mqtt" not in d])
async def test_a_client_id_in_use_is_refused(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect), client_id="alice"):
        with pytest.raises(RefusedError):
            await wirelake.connect(broker.url(dialect), client_id="alice")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_token_the_broker_does_not_know_is_refused(broker: Broker, dialect: str) -> None:
    everyone = broker.node.clients.rights_of_strangers
    broker.node.clients.rights_of_token = lambda token: everyone if token == "good" else None
    async with (
        wirelake.connect(broker.url(dialect), token="good") as client,
        client.subscribe("a") as messages,
    ):
        await client.publish("a", b"x")
        assert (await messages.receive(60)).payload == b"x"
    with pytest.raises(RefusedError):
        await wirelake.connect(broker.url(dialect), token="bad")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_what_was_published_goes_out_before_hanging_up(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3"), inbox=10_000) as other,
        other.subscribe("a") as messages,
    ):
        async with wirelake.connect(broker.url(dialect)) as client:
            await client.publish_many([("a", bytes(500))] * 2000)
        for _ in range(2000):
            await messages.receive(60)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_closing_a_client_ends_its_subscriptions(broker: Broker, dialect: str) -> None:
    client = await wirelake.connect(broker.url(dialect))
    messages = client.subscribe("a")
    async with messages:
        await client.publish("a", b"last")
        assert (await messages.receive(60)).payload == b"last"
        await client.close()
        assert [m async for m in messages] == []
        with pytest.raises(RefusedError, match="closed"):
            await client.publish("a", b"x")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_slow_reader_stops_reading_the_socket(broker: Broker, dialect: str) -> None:
    broker.node.flow.outbox = 1 << 20
    broker.node.flow.patience = 60.0
    async with (
        wirelake.connect(broker.url(dialect), inbox=10) as slow,
        wirelake.connect(broker.url("kobold-3"), timeout=1.5) as fast,
        slow.subscribe("a") as messages,
    ):
        sent = await publish_until_it_waits(fast)
        assert sent > 1000  # what the sockets and the broker hold
        assert len(messages._inbox) <= 10
        got = [int((await messages.receive(60)).payload) for _ in range(sent)]
        assert got == list(range(sent))


async def publish_until_it_waits(client: wirelake.client.Client) -> int:
    """Publish numbers until there is no room for more; how many went out."""
    sent = 0
    while True:
        try:
            await client.publish_many([("a", b"%0900d" % k) for k in range(sent, sent + 100)])
        except RefusedError:
            return sent
        sent += 100


async def test_a_full_inbox_does_not_keep_answers_from_whoever_reads_it(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3"), inbox=10) as client,
        client.subscribe("a") as messages,
    ):
        await client.publish_many([("a", b"x")] * 50)
        for _ in range(50):
            await messages.receive(60)
            await client.publish("b", b"y", ack=True, timeout=60)


async def test_nothing_is_imported_from_arrow_before_it_is_needed() -> None:
    code = "import sys, wirelake; assert 'pyarrow' not in sys.modules"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


async def test_a_subscription_is_used_once(broker: Broker) -> None:
    async with wirelake.connect(broker.url("kobold-3")) as client:
        messages = client.subscribe("a")
        async with messages:
            pass
        with pytest.raises(RefusedError, match="subscribe again"):
            async with messages:
                pass


@pytest.mark.parametrize("dialect", those_with("service"))
async def test_a_service_knows_when_its_client_is_closed(broker: Broker, dialect: str) -> None:
    client = await wirelake.connect(broker.url(dialect))
    async with client.serve("a", lambda request: b"") as service:
        waiting = asyncio.create_task(service.finished())
        await client.ping()
        await client.close()
        await waiting


@pytest.mark.parametrize("dialect", those_with("ping"))
async def test_a_silent_client_lets_itself_be_heard(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect), keepalive=0.05, inbox=1) as client,
        client.subscribe("a"),
    ):
        (session,) = broker.node.sessions
        for flood in (0, 10):  # the second time with an inbox that stays full
            await client.publish_many([("a", b"x")] * flood)
            heard = session.last_heard
            while session.last_heard < heard + 0.2:
                await asyncio.sleep(0.01)
