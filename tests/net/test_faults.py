"""Bad wires: what becomes of clients of every dialect, of the broker, and of everybody else."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

import wirelake
from tests.dialects.described import METER
from tests.dialects.described import dialect as described
from tests.net.peer import Peer, close_all
from wirelake import testing
from wirelake.client import Client
from wirelake.dialects import DIALECTS
from wirelake.message import Message, Op

#: All of ours, and one that a file describes.
SPOKEN = [*DIALECTS, "meter-1"]
WITH_PING = [dialect for dialect in SPOKEN if dialect != "mfp-1"]
TMQ = ["tmq-1.00", "tmq-1.01"]
PAYLOADS = [b"", b"\x00", b"\r\n|\xff" * 5, b"x" * 40]


@pytest.fixture(autouse=True)
def spoken() -> Iterator[None]:
    with DIALECTS.also(described(METER)):
        yield


@pytest.fixture
def broker() -> Iterator[testing.Broker]:
    with testing.Broker(listen=("auto://127.0.0.1:0",)) as broker:
        yield broker


@asynccontextmanager
async def bystanders(broker: testing.Broker) -> AsyncIterator[None]:
    """A pair that talks all the while and must notice nothing: no word lost, none out of turn."""
    over = False

    async def talk() -> int:
        said = 0
        while not over or said < 10:
            await speaker.publish("bystander", b"%d" % said)
            assert (await heard.receive(60)).payload == b"%d" % said
            said += 1
            await asyncio.sleep(0.001)
        return said

    async with (
        wirelake.connect(broker.url("kobold-1"), reconnect=False) as speaker,
        wirelake.connect(broker.url("tmq-1.01"), reconnect=False) as listener,
        listener.subscribe("bystander") as heard,
    ):
        talking = asyncio.create_task(talk())
        try:
            yield
        finally:
            over = True
            await talking


async def until(condition: Callable[[], bool]) -> None:
    """Wait until something has come about."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.002)


def through(proxy: testing.Proxy, **options: float) -> Client:
    """A client that is quick to come back."""
    quick: dict[str, float] = {"min_delay": 0.005, "max_delay": 0.02, **options}
    return wirelake.connect(proxy.url, **quick)  # type: ignore[arg-type]  # some of the options


async def hear_out(peer: Peer) -> list[Message]:
    """All that comes until the connection ends."""
    heard = []
    with suppress(ConnectionError):
        while True:
            heard.append(await peer.receive())
    return heard


# Slow and broken into pieces


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_byte_by_byte_nothing_changes(broker: testing.Broker, dialect: str) -> None:
    with testing.Proxy(broker.url(dialect)) as proxy:
        proxy.split(1)
        async with (
            bystanders(broker),
            through(proxy) as one,
            through(proxy) as two,
            two.subscribe("house/+") as messages,
        ):
            for payload in PAYLOADS:
                await one.publish("house/door", payload)
            assert [(await messages.receive(60)).payload for _ in PAYLOADS] == PAYLOADS
    assert broker.counters()["protocol_errors"] == 0


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_delays_change_nothing_but_the_time(broker: testing.Broker, dialect: str) -> None:
    with testing.Proxy(broker.url(dialect)) as proxy:
        proxy.delay(0.001, jitter=0.01, seed=7)
        proxy.split(19)
        async with (
            bystanders(broker),
            through(proxy) as one,
            through(proxy) as two,
            two.subscribe("a") as messages,
        ):
            await one.publish_many([("a", b"%d" % k) for k in range(20)])
            assert [int((await messages.receive(60)).payload) for _ in range(20)] == [*range(20)]


# Cut at every byte


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_publisher_cut_at_any_byte_delivers_whole_messages_or_none(
    broker: testing.Broker, dialect: str
) -> None:
    listener = await Peer("boson-binary", "listener").open(broker.listeners[0].port)
    await listener.subscribe("a/b")

    async def publish(name: str, payload: bytes) -> Peer:
        peer = await Peer(dialect, name).open(proxy.port)
        await peer.send(Message(address="a/b", payload=payload))
        return peer

    with testing.Proxy(broker.url(dialect)) as proxy:
        async with bystanders(broker):
            first = await publish("sender-0000", b"payload-0000")
            assert (await listener.receive()).payload == b"payload-0000"
            await first.close()
            for cut in range(proxy.to_broker.carried):
                proxy.to_broker.cut(after=cut)
                torn = Peer(dialect, f"sender-{cut:04}")
                with suppress(ConnectionError):  # it may not even come to the end of its opening
                    await torn.open(proxy.port)
                    await torn.send(Message(address="a/b", payload=b"torn----%04d" % cut))
                assert await hear_out(torn) == []
                await torn.close()
                whole = await publish(f"Sender-{cut:04}", b"payload-%04d" % cut)
                assert (await listener.receive()).payload == b"payload-%04d" % cut
                await whole.close()
    assert broker.counters()["protocol_errors"] == 0
    await listener.close()


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_subscriber_cut_at_any_byte_gets_whole_messages_and_comes_back(
    broker: testing.Broker, dialect: str
) -> None:
    with testing.Proxy(broker.url(dialect)) as proxy:
        async with (
            bystanders(broker),
            wirelake.connect(broker.url("kobold-2")) as speaker,
            through(proxy) as client,
            client.subscribe("a/b") as messages,
        ):
            await speaker.publish_many([("a/b", b"1000")])
            assert (await messages.receive(60)).payload == b"1000"
            before = proxy.to_client.carried
            await speaker.publish_many([("a/b", b"1001")])
            assert (await messages.receive(60)).payload == b"1001"
            size = proxy.to_client.carried - before
            said = 1002
            for cut in range(size + 1):
                everybody = here(broker)
                left = broker.counters()["disconnects"]
                proxy.to_client.cut(after=cut)
                await speaker.publish_many([("a/b", b"%d" % (said + k)) for k in range(3)])
                await until(lambda: broker.counters()["disconnects"] > left)  # noqa: B023 - at once
                await until(lambda: here(broker) == everybody)  # noqa: B023 - at once
                await speaker.publish("a/b", b"%d" % (said + 3))
                got = [int((await messages.receive(60)).payload)]
                while got[-1] < said + 3:
                    got.append(int((await messages.receive(60)).payload))
                # What came whole before the cut, nothing of what came after it, then the new.
                assert got == [*range(said, said + (cut == size)), said + 3]
                said += 4
    assert broker.counters()["protocol_errors"] == 0


def here(broker: testing.Broker) -> tuple[int, int]:
    """How many are connected, and to how much they are subscribed."""
    state = broker.state()
    return state["connections"], state["subscriptions"]


@pytest.mark.parametrize("mode", [b"m", b"mm"])
async def test_a_sequence_cut_between_its_parts_is_not_delivered(
    broker: testing.Broker, mode: bytes
) -> None:
    listener = await Peer("kobold-1", "listener").open(broker.listeners[0].port)
    await listener.subscribe("t")
    with testing.Proxy(broker.url("boson-text")) as proxy:
        parts = b"4|%b|t|abcd3|%b||efg" % (mode, mode)
        for cut in (10 + len(mode) - 1, len(parts) - 1, len(parts)):
            proxy.to_broker.cut(after=cut)
            torn = await Peer("boson-text", "").open(proxy.port)
            await torn.send_bytes(parts + b"0|0")
            assert await torn.is_closed()
            await torn.close()
            whole = await Peer("boson-text", "").open(proxy.port)
            await whole.send_bytes(b"5|0|t|whole")
            assert (await listener.receive()).payload == b"whole"
            await whole.close()
    await listener.close()


@pytest.mark.parametrize("dialect", ["boson-binary", "kobold-1", "kobold-2", "kobold-3", *TMQ])
async def test_a_queue_message_cut_on_its_way_is_delivered_to_another(
    broker: testing.Broker, dialect: str
) -> None:
    producer = await Peer("kobold-3", "producer").open(broker.listeners[0].port)
    await producer.send(Message(op=Op.ENQUEUE, address="jobs", payload=b"1", correlation_id="e"))
    assert (await producer.receive()).op == Op.OK
    with testing.Proxy(broker.url(dialect)) as proxy:
        torn = await Peer(dialect, "consumer-1").open(proxy.port)
        proxy.to_client.cut(after=12)  # bytes of the first delivery, or of the answer before it
        await torn.send(Message(op=Op.SUBSCRIBE, address="jobs"))
        with pytest.raises(ConnectionError):
            await torn.receive()
        await torn.close()
        whole = await Peer(dialect, "consumer-2").open(proxy.port)
        await whole.send(Message(op=Op.SUBSCRIBE, address="jobs"))
        message = await whole.receive()
        assert message.payload == b"1"
        assert message.parameters.attempt in (None, 2)
        await whole.send(Message(op=Op.ACK, address="jobs", id=message.id))
    await close_all([whole, producer])


# Reset in the middle of a flood


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_subscriber_that_is_reset_comes_back_and_hears_nothing_twice(
    broker: testing.Broker, dialect: str
) -> None:
    with testing.Proxy(broker.url(dialect)) as proxy:
        async with (
            bystanders(broker),
            wirelake.connect(broker.url("kobold-2")) as speaker,
            through(proxy) as client,
            client.subscribe("a") as messages,
        ):
            got: list[int] = []

            async def listen() -> None:
                while not got or got[-1] < 10_000:
                    got.append(int((await messages.receive(60)).payload))

            listening = asyncio.create_task(listen())
            said = 0
            for after in (1, 999, 7777):
                accepted = proxy.accepted
                proxy.to_client.reset(after=after)
                while proxy.accepted == accepted:  # it is reset, and has called again
                    await speaker.publish_many([("a", b"%d" % (said + k)) for k in range(50)])
                    said += 50
                    await asyncio.sleep(0.001)
            while not listening.done():  # until it has subscribed again
                await speaker.publish("a", b"%d" % (10_000 + said))
                said += 1
                await asyncio.sleep(0.001)
            await listening
            assert got == sorted(set(got))
            assert len(got) > 3


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_publisher_that_is_reset_comes_back_and_says_nothing_twice(
    broker: testing.Broker, dialect: str
) -> None:
    with testing.Proxy(broker.url(dialect)) as proxy:
        async with (
            bystanders(broker),
            wirelake.connect(broker.url("kobold-2")) as listener,
            listener.subscribe("a") as messages,
            through(proxy) as client,
        ):
            got: list[int] = []

            async def listen() -> None:
                while not got or got[-1] >= 0:
                    got.append(int((await messages.receive(60)).payload))

            listening = asyncio.create_task(listen())
            said = 0
            for after in (1, 999, 7777):
                accepted = proxy.accepted
                proxy.to_broker.reset(after=after)
                while proxy.accepted == accepted:
                    await client.publish("a", b"%d" % said)
                    said += 1
                    await asyncio.sleep(0)
            while not listening.done():
                await client.publish("a", b"-1")
                await asyncio.sleep(0.001)
            await listening
            assert got[:-1] == sorted(set(got[:-1]))
            assert len(got) > 3


# Half open: nobody hangs up, and nothing is heard


@pytest.fixture
def hasty() -> Iterator[testing.Broker]:
    """A broker that does not wait for long, but for bystanders on a busy machine."""
    with testing.Broker(listen=("auto://127.0.0.1:0",), handshake_timeout=1.5) as broker:
        yield broker


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_client_that_is_not_heard_at_all_is_hung_up_on(
    hasty: testing.Broker, dialect: str
) -> None:
    with testing.Proxy(hasty.url(dialect)) as proxy:
        proxy.to_broker.half_open()
        async with bystanders(hasty):
            peer = Peer(dialect, "unheard")
            with suppress(ConnectionError):  # most wait for an answer
                await peer.open(proxy.port)
                await peer.send(Message(op=Op.PING))
            assert await peer.is_closed()
            await peer.close()
    assert hasty.counters()["timeouts.handshake"] == 1


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_client_that_falls_silent_inside_a_frame_is_hung_up_on(
    hasty: testing.Broker, dialect: str
) -> None:
    with testing.Proxy(hasty.url(dialect)) as proxy:
        async with bystanders(hasty):
            peer = await Peer(dialect, "sender").open(proxy.port)
            proxy.to_broker.split(7)
            proxy.to_broker.delay(0.1)  # time to fall silent, before a frame has come whole
            before = proxy.to_broker.carried
            sending = asyncio.create_task(peer.send(Message(address="a", payload=b"x" * 500)))
            await until(lambda: proxy.to_broker.carried > before)
            proxy.to_broker.half_open()
            await sending
            assert await peer.is_closed()
            await peer.close()
    assert hasty.counters()["timeouts.frame"] == 1


@pytest.mark.parametrize("dialect", TMQ)
async def test_a_silent_tmq_client_is_pinged_and_hung_up_on(
    broker: testing.Broker, dialect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirelake.dialects.tmq.session.PING_AFTER", 0.5)
    with testing.Proxy(broker.url(dialect)) as proxy:
        async with bystanders(broker):  # the one who listens speaks TMQ, and answers
            peer = await Peer(dialect, "sleepy").open(proxy.port)
            proxy.to_broker.half_open()
            assert [message.op for message in await hear_out(peer)] == [Op.PING, Op.PING]
            await peer.close()


@pytest.mark.parametrize("dialect", WITH_PING)
async def test_a_client_that_hears_nothing_more_comes_back(
    broker: testing.Broker, dialect: str
) -> None:
    with testing.Proxy(broker.url(dialect)) as proxy:
        async with (
            bystanders(broker),
            wirelake.connect(broker.url("kobold-2")) as speaker,
            through(proxy, keepalive=0.1, timeout=1) as client,
            client.subscribe("a") as messages,
        ):
            proxy.to_client.half_open()
            await speaker.publish("a", b"swallowed")
            await until(lambda: proxy.accepted > 1)
            proxy.heal()
            receiving = asyncio.create_task(messages.receive(60))
            while not receiving.done():  # until it has subscribed again
                await speaker.publish("a", b"heard")
                await asyncio.sleep(0.01)
            assert (await receiving).payload == b"heard"


# Subscribers that stop reading


@asynccontextmanager
async def stalled(dialect: str, policy: str) -> AsyncIterator[Stalled]:
    """A flood for a subscriber that stopped reading, and for one that reads."""
    flow = {"outbox": 1 << 19, "patience": 0.3, "policies": {"flood": policy}}
    async with testing.Broker(listen=("auto://127.0.0.1:0",), flow=flow) as broker:
        with testing.Proxy(broker.url(dialect)) as proxy:
            port = broker.listeners[0].port
            subscriber = await Peer(dialect, "subscriber", "sub").open(proxy.port)
            await subscriber.subscribe("flood")
            reader = await Peer("kobold-1", "reader").open(port)
            await reader.subscribe("flood")
            publisher = await Peer("kobold-3", "publisher").open(port)
            proxy.to_client.stall()
            async with bystanders(broker):
                found = Stalled(broker, proxy, subscriber, reader, publisher)
                yield found
                await found.stop()


class Stalled:
    """Who takes part in a flood."""

    def __init__(
        self,
        broker: testing.Broker,
        proxy: testing.Proxy,
        subscriber: Peer,
        reader: Peer,
        publisher: Peer,
    ) -> None:
        self.broker = broker
        self.proxy = proxy
        self.subscriber = subscriber
        self.said = 0
        self.read: list[int] = []
        self._reader = reader
        self._publisher = publisher
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        while True:
            self.read.append(number(await self._reader.receive(60)))

    async def publish(self, count: int = 300) -> None:
        """Publish so many more messages; half an outbox, which the one who reads has room for."""
        messages = [
            Message(address="flood", payload=b"%08d" % (self.said + k) * 100) for k in range(count)
        ]
        self.said += count
        await self._publisher.send(*messages)

    async def publish_until(self, condition: Callable[[Counter[str]], bool]) -> None:
        """Publish, at the pace of the one who reads, until the broker's counters tell so."""
        while not condition(self.broker.counters()):
            await self.publish()
            await until(lambda: len(self.read) == self.said)

    async def publish_until_it_is_made_to_wait(self) -> None:
        """Publish until even the one who reads hears nothing new for a while."""
        heard = -1
        while heard < len(self.read):
            heard = len(self.read)
            await self.publish()
            with suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    await until(lambda: len(self.read) == self.said)

    async def stop(self) -> None:
        """The one who reads has got everything, in order."""
        await until(lambda: len(self.read) == self.said)
        assert self.read == list(range(self.said))
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)
        await close_all([self.subscriber, self._reader, self._publisher])


def number(message: Message) -> int:
    """Which message of a flood this is."""
    assert message.payload == message.payload[:8] * 100
    return int(message.payload[:8])


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_subscriber_that_stalls_is_disconnected_as_a_slow_consumer(dialect: str) -> None:
    async with stalled(dialect, "disconnect") as flood:
        await flood.publish_until(lambda counters: counters["slow_consumers"] == 1)
        flood.proxy.to_client.resume()
        got = [number(message) for message in await hear_out(flood.subscriber)]
        assert got == list(range(len(got)))
        await flood.publish()


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_subscriber_that_stalls_misses_the_newest_where_they_are_dropped(
    dialect: str,
) -> None:
    async with stalled(dialect, "drop") as flood:
        await flood.publish_until(lambda counters: counters["dropped.slow_consumer"] > 0)
        missed = flood.broker.counters()["dropped.slow_consumer"]
        flood.proxy.to_client.resume()
        got = [number(await flood.subscriber.receive()) for _ in range(flood.said - missed)]
        assert got == list(range(len(got)))
        await flood.publish(1)
        assert number(await flood.subscriber.receive()) == flood.said - 1
        assert flood.broker.counters()["slow_consumers"] == 0


@pytest.mark.parametrize("dialect", SPOKEN)
async def test_a_subscriber_that_stalls_makes_publishers_wait_where_they_are_paused(
    dialect: str,
) -> None:
    async with stalled(dialect, "pause") as flood:
        await flood.publish_until_it_is_made_to_wait()
        assert flood.broker.counters()["slow_consumers"] == 0
        flood.proxy.to_client.resume()
        got = [number(await flood.subscriber.receive()) for _ in range(flood.said)]
        assert got == list(range(flood.said))
