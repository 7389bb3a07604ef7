"""What becomes of a client whose connection breaks."""

from __future__ import annotations

import asyncio

import pytest

import wirelake
from tests.client.brokers import Broker, Proxy
from tests.client.test_client import those_with
from wirelake.client.client import Client
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError, WirelakeError


def through(proxy: Proxy, dialect: str, **options: object) -> Client:
    """A client that is quick to come back."""
    url = f"{dialect}://127.0.0.1:{proxy.port}"
    quick: dict[str, object] = {"min_delay": 0.01, "max_delay": 0.05, **options}
    return wirelake.connect(url, **quick)  # type: ignore[arg-type]  # any of the options


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_it_comes_back_and_subscribes_again(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    async with through(proxy, dialect) as client, client.subscribe("a") as messages:
        await client.publish("a", b"before")
        assert (await messages.receive(60)).payload == b"before"
        for k in range(3):
            proxy.cut()
            while broker.node.state()["subscriptions"]:
                await asyncio.sleep(0.005)
            while not broker.node.state()["subscriptions"]:
                await asyncio.sleep(0.005)
            await client.publish("a", b"after %d" % k)
            assert (await messages.receive(60)).payload == b"after %d" % k


@pytest.mark.parametrize("dialect", those_with("service"))
async def test_it_serves_again(broker: Broker, proxy: Proxy, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3")) as asker,
        through(proxy, dialect) as client,
        client.serve("echo", lambda request: request.payload),
    ):
        assert (await asker.request("echo", b"1")).payload == b"1"
        proxy.cut()
        while "echo" in broker.node.services:
            await asyncio.sleep(0.005)
        while "echo" not in broker.node.services:
            await asyncio.sleep(0.005)
        assert (await asker.request("echo", b"2")).payload == b"2"


async def test_a_request_in_flight_fails_when_the_connection_breaks(
    broker: Broker, proxy: Proxy
) -> None:
    asked = asyncio.Event()

    async def never(request: wirelake.Message) -> bytes:
        asked.set()
        await asyncio.Event().wait()
        return b""

    async with (
        wirelake.connect(broker.url("boson-text")) as service,
        through(proxy, "kobold-1") as client,
        service.serve("never", never),
    ):
        request = asyncio.create_task(client.request("never", b""))
        await asked.wait()
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await request
        assert error.value.code == "closed"


async def test_a_batch_in_flight_fails_when_the_connection_breaks(
    broker: Broker, proxy: Proxy
) -> None:
    async with through(proxy, "kobold-3") as client:
        proxy.hold()
        publishing = asyncio.create_task(client.publish_many([("a", b"x")] * 100, ack=True))
        while broker.node.vitals.counters["received"] < 100:
            await asyncio.sleep(0.005)
        assert not publishing.done()
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await publishing
        assert error.value.code == "closed"


async def test_what_is_asked_the_moment_a_connection_breaks_does_not_wait_for_ever(
    broker: Broker, proxy: Proxy
) -> None:
    async def keep_asking(client: Client) -> int:
        answered = 0
        while answered < 100:
            try:
                await client.publish("a", b"x", ack=True, timeout=20)
            except RefusedError as error:
                assert error.code == "closed"  # noqa: PT017 - and asked again at once
            else:
                answered += 1
                if answered % 10 == 5:
                    proxy.cut()
        return answered

    async with through(proxy, "boson-binary") as client, through(proxy, "tmq") as other:
        one, two = await asyncio.gather(keep_asking(client), keep_asking(other))
        assert one == two == 100


async def test_a_reply_does_not_go_to_another_connection_than_its_request(
    broker: Broker, proxy: Proxy
) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slow(request: wirelake.Message) -> bytes:
        asked.set()
        await go_on.wait()
        return b"late"

    async with (
        wirelake.connect(broker.url("kobold-3")) as asker,
        through(proxy, "kobold-3") as client,
        client.serve("slow", slow),
    ):
        request = asyncio.create_task(asker.request("slow", b""))
        await asked.wait()
        proxy.cut()
        with pytest.raises(RefusedError, match="closed"):
            await request
        await client.ping()
        go_on.set()
        await client.ping()
        assert broker.node.vitals.counters["dropped.late_reply"] == 0


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_publish_waits_for_the_connection_to_come_back(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    async with (
        wirelake.connect(broker.url("tmq-1.01")) as other,
        through(proxy, dialect) as client,
        other.subscribe("a") as messages,
    ):
        proxy.cut(down=True)
        calls = proxy.calls
        while proxy.calls < calls + 2:
            await asyncio.sleep(0.005)
        publishing = asyncio.create_task(client.publish("a", b"patient"))
        with pytest.raises(RefusedError) as error:
            await client.publish("a", b"hasty", timeout=0.05)
        assert error.value.code == "timeout"
        proxy.mend()
        await publishing
        assert (await messages.receive(60)).payload == b"patient"


async def test_subscribing_waits_for_the_connection_too(broker: Broker, proxy: Proxy) -> None:
    async with through(proxy, "tmq-1.00") as client:
        proxy.cut(down=True)
        messages = client.subscribe("a")
        joining = asyncio.create_task(messages.__aenter__())
        calls = proxy.calls
        while proxy.calls < calls + 2:
            await asyncio.sleep(0.005)
        proxy.mend()
        await joining
        await client.publish("a", b"x")
        assert (await messages.receive(60)).payload == b"x"
        proxy.cut(down=True)
        await messages.__aexit__(None, None, None)  # does not wait for a connection
        proxy.mend()
        await client.ping()
        assert broker.node.state()["subscriptions"] == 0


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_without_reconnecting_everything_ends_with_an_error(
    proxy: Proxy, dialect: str
) -> None:
    async with (
        through(proxy, dialect, reconnect=False) as client,
        client.subscribe("a") as messages,
    ):
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await messages.receive(60)
        assert error.value.code == "closed"
        with pytest.raises(RefusedError, match="closed"):
            await client.publish("a", b"x")


async def test_it_gives_up_after_so_many_attempts(proxy: Proxy) -> None:
    async with (
        through(proxy, "boson-binary", max_attempts=3) as client,
        client.subscribe("a") as messages,
    ):
        proxy.cut(down=True)
        with pytest.raises(RefusedError, match="closed"):
            await messages.receive(60)
        assert proxy.calls == 1 + 3


async def test_it_gives_up_when_its_token_is_not_good_any_more(
    broker: Broker, proxy: Proxy
) -> None:
    async with (
        through(proxy, "kobold-2", token="secret") as client,
        client.subscribe("a") as messages,
    ):
        broker.node.clients.rights_of_token = lambda token: None
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await messages.receive(60)
        assert error.value.code == "unauthorized"


async def test_a_subscription_that_is_not_allowed_any_more_ends(
    broker: Broker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        through(proxy, "kobold-2") as client,
        client.subscribe("a") as lost,
        client.subscribe("b") as kept,
    ):
        broker.node.clients.rights_of_strangers.subscribe = ("b",)
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await lost.receive(60)
        assert error.value.code == "unauthorized"
        await client.publish("b", b"x")
        assert (await kept.receive(60)).payload == b"x"


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_first_connection_is_not_tried_again(proxy: Proxy, dialect: str) -> None:
    proxy.cut(down=True)
    with pytest.raises(RefusedError) as error:
        await through(proxy, dialect)
    assert error.value.code == "closed"
    assert proxy.calls == 1


async def test_nobody_listening_is_an_error_of_ours(proxy: Proxy) -> None:
    await proxy.stop()
    with pytest.raises(RefusedError, match=r"closed: kobold-3://127\.0\.0\.1"):
        await through(proxy, "kobold-3")


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_somebody_else_listening_is_an_error_of_ours(dialect: str) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"220 mail.example.org ESMTP\r\n" * 10)
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(WirelakeError):
            await wirelake.connect(f"{dialect}://127.0.0.1:{port}", timeout=2)


@pytest.mark.parametrize("dialect", those_with("ping"))
async def test_a_broker_that_falls_silent_is_left(dialect: str) -> None:
    calls: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.put_nowait(writer)
        while await reader.read(100):
            pass
        writer.close()

    async with await asyncio.start_server(listen, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"{dialect}://127.0.0.1:{port}"
        with pytest.raises(RefusedError, match="pings had no answer"):
            await wirelake.connect(url, keepalive=0.05, timeout=5)
        await calls.get()
