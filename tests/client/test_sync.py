"""The client without `await`; the broker has the test's event loop, the client its own."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

import wirelake
from tests.client.brokers import Broker
from tests.client.test_client import those_with
from wirelake.errors import RefusedError
from wirelake.message import Message
from wirelake.wire import DIALECTS


async def elsewhere(work: Callable[[], None]) -> None:
    """Run in a thread, so that the broker can answer."""
    await asyncio.to_thread(work)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_it_publishes_and_subscribes(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with (
            wirelake.connect_sync(broker.url(dialect)) as client,
            client.subscribe("a") as messages,
        ):
            client.publish("a", b"0")
            client.publish_many([("a", b"%d" % k) for k in range(1, 10)])
            assert messages.receive(5).payload == b"0"
            assert [next(messages).payload for _ in range(9)] == [b"%d" % k for k in range(1, 10)]
            with pytest.raises(RefusedError, match="timeout"):
                messages.receive(0.01)

    await elsewhere(work)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_loop_unsubscribes_when_it_is_left(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with wirelake.connect_sync(broker.url(dialect)) as client:
            publishing = threading.Thread(target=publish_when_subscribed, args=(client,))
            publishing.start()
            for message in client.subscribe("a/#"):
                assert message.payload == b"x"
                break
            publishing.join()
            assert broker.node.state()["subscriptions"] == 0

    def publish_when_subscribed(client: wirelake.client.SyncClient) -> None:
        while not broker.node.state()["subscriptions"]:
            threading.Event().wait(0.01)
        client.publish("a/b", b"x")

    await elsewhere(work)


@pytest.mark.parametrize("dialect", those_with("service"))
async def test_it_serves_and_asks(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with wirelake.connect_sync(broker.url(dialect)) as client:

            def relay(request: Message) -> bytes:
                return client.request("inner", request.payload).payload + b"!"

            with client.serve("inner", lambda m: m.payload * 2), client.serve("outer", relay):
                assert client.request("outer", b"hi").payload == b"hihi!"

    await elsewhere(work)


async def test_it_sends_to_clients_pings_and_refuses(broker: Broker) -> None:
    def work() -> None:
        with (
            wirelake.connect_sync(broker.url("tmq"), client_id="bob") as bob,
            wirelake.connect_sync(broker.url("kobold"), client_id="alice") as alice,
            bob.direct() as messages,
        ):
            alice.send_to("bob", b"hello", ack=True)
            assert messages.receive(5).source == alice.client_id == "alice"
            assert alice.ping() > 0
            with pytest.raises(RefusedError, match=r"tmq-1\.01 has no service"):
                bob.serve("a", lambda m: b"")

    await elsewhere(work)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_many_threads_share_a_client(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with (
            wirelake.connect_sync(broker.url(dialect)) as client,
            client.subscribe("a") as messages,
            ThreadPoolExecutor(8) as threads,
        ):
            for k in range(200):
                threads.submit(client.publish, "a", b"%d" % k)
            got = {int(messages.receive(5).payload) for _ in range(200)}
            assert got == set(range(200))

    await elsewhere(work)


async def test_closing_ends_a_loop_in_another_thread(broker: Broker) -> None:
    def work() -> None:
        client = wirelake.connect_sync(broker.url("kobold-3"))
        started = threading.Event()

        def read() -> list[Message]:
            with client.subscribe("a") as messages:
                started.set()
                return list(messages)

        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(read)
            started.wait(5)
            client.close()
            assert reading.result(5) == []

    await elsewhere(work)


async def test_a_process_may_end_without_closing_its_client(broker: Broker) -> None:
    code = (
        "import wirelake\n"
        f"c = wirelake.connect_sync('{broker.url('kobold')}')\n"
        "c.subscribe('a').__enter__()\n"
        "c.publish('a', b'x', ack=True)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "dev", "-W", "error", "-c", code, stderr=asyncio.subprocess.PIPE
    )
    _, complaints = await process.communicate()
    assert (process.returncode, complaints.decode()) == (0, "")
