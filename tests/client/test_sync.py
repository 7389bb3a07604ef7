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
from wirelake.client import Client, Queue, Store, SyncClient, sync
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.message import Message


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
            assert messages.receive(60).payload == b"0"
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
            assert messages.receive(60).source == alice.client_id == "alice"
            assert alice.ping() > 0
            with pytest.raises(RefusedError, match=r"tmq-1\.01 has no service"):
                bob.serve("a", lambda m: b"")

    await elsewhere(work)


@pytest.mark.parametrize("dialect", those_with("nack"))
async def test_it_puts_gets_and_consumes(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with wirelake.connect_sync(broker.url(dialect)) as client:
            jobs = client.queue("jobs")
            assert jobs.name == "jobs"
            for k in range(5):
                jobs.put(b"%d" % k)
            (first,) = jobs.get()
            assert (first.message.payload, first.attempt) == (b"0", 1)
            first.ack()
            with jobs.consume() as deliveries:
                deliveries.receive(60).ack()
                next(deliveries).nack()
            got = []
            for delivery in jobs.consume():
                got.append(delivery.message.payload)
                delivery.ack()
                if len(got) == 3:
                    break
            assert got == [b"2", b"3", b"4"]
            assert [queue["messages"] for queue in client.queues()] == [0]

    await elsewhere(work)


@pytest.mark.parametrize("dialect", those_with("nack"))
async def test_a_loop_over_a_queue_acknowledges_only_what_it_got(
    broker: Broker, dialect: str
) -> None:
    def work() -> None:
        with wirelake.connect_sync(broker.url(dialect)) as client:
            jobs = client.queue("jobs")
            for k in range(5):
                jobs.put(b"%d" % k)
            for message in client.subscribe("jobs"):
                if message.payload == b"1":
                    break
            assert [one.message.payload for one in jobs.get(5)] == [b"2", b"3", b"4"]

    await elsewhere(work)


@pytest.mark.parametrize("dialect", those_with("data store"))
async def test_it_uses_the_data_store(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with wirelake.connect_sync(broker.url(dialect)) as client:
            store = client.store
            with store.watch("#", revision=1) as changes:
                assert store.create("a", b"1") == 1
                assert store.update("a", b"2", revision=1) == 2
                assert store.put("b", b"x") == 1
                assert store.read("a").value == b"2"
                assert [entry.key for entry in store.keys("#")] == ["a", "b"]
                assert store.delete("b") == 2
                told = [next(changes) for _ in range(4)]
            assert [(one.key, one.value) for one in told] == [
                ("a", b"1"),
                ("a", b"2"),
                ("b", b"x"),
                ("b", None),
            ]
            assert client.info()["connections"] >= 1
            with pytest.raises(RefusedError, match="not_found"):
                store.read("b")

    await elsewhere(work)


@pytest.mark.parametrize("dialect", those_with("byte stream"))
async def test_it_streams_both_ways(broker: Broker, dialect: str) -> None:
    def work() -> None:
        with (
            wirelake.connect_sync(broker.url(dialect), client_id="alice") as alice,
            wirelake.connect_sync(broker.url(dialect), client_id="bob") as bob,
            bob.streams() as streams,
        ):
            with alice.stream_to("bob", info=b"a file") as out:
                into = streams.receive(60)
                assert (into.source, into.info) == ("alice", b"a file")
                out.write(bytes(200_000))
                into.write(b"thanks")
                assert out.read() == b"thanks"
            assert sum(len(chunk) for chunk in into) == 200_000
            assert out.sent == into.received == into.count == 200_000
            into.close()

    await elsewhere(work)


async def test_its_methods_say_what_those_of_the_other_client_say() -> None:
    assert SyncClient.publish.__doc__ == Client.publish.__doc__
    assert SyncClient.publish.__name__ == "publish"


@pytest.mark.parametrize(
    ("face", "inner"),
    [
        (SyncClient, Client),
        (sync.SyncQueue, Queue),
        (sync.SyncStore, Store),
    ],
)
def test_it_has_the_same_methods(face: type, inner: type) -> None:
    names = [{name for name in vars(one) if not name.startswith("_")} for one in (face, inner)]
    assert names[0] - {"name"} == names[1]


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
            got = {int(messages.receive(60).payload) for _ in range(200)}
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
