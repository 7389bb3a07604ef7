"""Three nodes as processes on real NATS servers: all patterns in several dialects, and faults."""

from __future__ import annotations

import asyncio
import time
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

import wirelake
from tests.cluster.processes import Nodes
from tests.cluster.servers import Servers, binary
from wirelake.client import Client
from wirelake.client.inbox import Messages
from wirelake.errors import RefusedError, WirelakeError

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

T = TypeVar("T")

NAMES = ("a", "b", "c")
#: What must come is waited for at most this long (seconds).
SOON = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes that serve all partitions, for all tests that stop none of them."""
    if binary() is None:
        pytest.skip("nats-server is not installed")
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "nats").mkdir()
    with Servers(folder / "nats") as servers, Nodes(folder, servers.urls, "procs") as nodes:
        nodes.start(*NAMES)
        asyncio.run(ready(nodes))
        yield nodes


@pytest.fixture
def own(nats: Servers, prefix: str, tmp_path: Path) -> Iterator[Nodes]:
    """Three nodes of this test alone."""
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        nodes.start(*NAMES)
        asyncio.run(ready(nodes))
        yield nodes


async def ready(nodes: Nodes) -> None:
    """Wait until every node can write to every partition."""
    for node in nodes.all.values():
        if node.process.poll() is None:
            async with wirelake.connect(node.url("kobold-3")) as client:
                for k in range(24):
                    await insist(partial(client.publish, f"ready/{k}", b"", ack=True))


async def insist(work: Callable[[], Awaitable[T]]) -> T:
    """Do something until it is not refused as `busy` and its connection does not end."""
    ends = time.monotonic() + SOON
    while True:
        try:
            return await work()
        except RefusedError as error:
            if error.code not in ("busy", "closed", "timeout") or time.monotonic() > ends:
                raise
        except (WirelakeError, OSError):
            if time.monotonic() > ends:
                raise
        await asyncio.sleep(0.02)


async def published(publisher: Client, address: str, payload: bytes, messages: Messages) -> None:
    """Publish until it arrives: a busy machine may lose an owner for a moment."""
    ends = time.monotonic() + SOON
    while True:
        await publisher.publish(address, payload)
        try:
            while (await messages.receive(3.0)).payload != payload:
                pass  # of a try before
            return
        except RefusedError as error:
            if error.code != "timeout" or time.monotonic() > ends:
                raise


@pytest.mark.parametrize("dialect", ["mfp-1", "boson-text", "tmq-1.01", "kobold-1", "mqtt-5"])
async def test_topics_reach_subscribers_of_all_nodes(cluster: Nodes, dialect: str) -> None:
    a, b, c = (cluster.all[name].url(dialect) for name in NAMES)
    async with (
        wirelake.connect(a) as publisher,
        wirelake.connect(b) as exact,
        wirelake.connect(c) as wild,
    ):
        for k in range(6):
            address = f"{dialect}/{k}"
            async with exact.subscribe(address) as one, wild.subscribe(f"{dialect}/#") as many:
                for messages in (one, many):
                    await published(publisher, address, b"%d" % k, messages)


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3", "boson-binary"])
async def test_queues_are_filled_on_one_node_and_emptied_on_others(
    cluster: Nodes, dialect: str
) -> None:
    a, b, c = (cluster.all[name].url(dialect) for name in NAMES)
    async with (
        wirelake.connect(a) as producer,
        wirelake.connect(b) as puller,
        wirelake.connect(c) as consumer,
    ):
        for k in range(6):
            name = f"jobs/{dialect}/{k}"
            for n in range(10):
                await producer.queue(name).put(b"%d" % n)
            pulled = await puller.queue(name).get(5, wait=5)
            assert [one.message.payload for one in pulled] == [b"%d" % n for n in range(5)]
            for delivery in pulled[:4]:
                await delivery.ack()
            await pulled[4].nack()
            got = []
            async with consumer.queue(name).consume() as deliveries:
                for _ in range(6):
                    delivery = await deliveries.receive(SOON)
                    got.append(delivery.message.payload)
                    await delivery.ack()
            assert sorted(got) == [b"4", b"5", b"6", b"7", b"8", b"9"]
            assert await puller.queue(name).get(1) == []


async def test_keys_are_the_same_on_all_nodes(cluster: Nodes) -> None:
    urls = [cluster.all[name].url("kobold-3") for name in NAMES]
    clients = [await wirelake.connect(url) for url in urls]
    try:
        for k in range(6):
            key = f"settings/{k}"
            async with clients[2].store.watch(key) as changes:
                assert await clients[0].store.create(key, b"1") == 1
                assert (await clients[1].store.read(key)).value == b"1"
                assert await clients[2].store.update(key, b"2", revision=1) == 2
                with pytest.raises(RefusedError, match="conflict"):
                    await clients[0].store.update(key, b"3", revision=1)
                await clients[1].store.delete(key)
                told = [await changes.receive(SOON) for _ in range(3)]
                assert [one.value for one in told] == [b"1", b"2", None]
    finally:
        for client in clients:
            await client.close()


async def test_requests_direct_messages_and_streams_cross_nodes(cluster: Nodes) -> None:
    a, b = (cluster.all[name].url("kobold-3") for name in "ab")

    async def double(request: wirelake.Message) -> bytes:
        return request.payload * 2

    for k in range(4):
        async with (
            wirelake.connect(a, client_id=f"ann {k}") as ann,
            wirelake.connect(b, client_id=f"bob {k}") as bob,
            bob.serve(f"double/{k}", double),
            bob.direct() as mail,
            bob.streams() as streams,
        ):
            reply = await ann.request(f"double/{k}", b"x", timeout=SOON)
            assert reply.payload == b"xx"
            await insist(partial(ann.send_to, f"bob {k}", b"hello"))
            assert (await mail.receive(SOON)).payload == b"hello"
            async with await ann.stream_to(f"bob {k}") as out:
                into = await streams.receive(SOON)
                await out.write(bytes(300_000))
            assert len(b"".join([chunk async for chunk in into])) == 300_000


async def test_http_publishes_on_any_node_and_answers_when_the_owner_has_it(
    cluster: Nodes,
) -> None:
    a, b = (cluster.all[name] for name in "ab")
    async with wirelake.connect(b.url("kobold-3")) as client, client.subscribe("web/#") as messages:
        for k in range(12):
            url = f"{a.http}/v1/publish/web/{k}"
            request = urllib.request.Request(url, b"%d" % k, method="POST")
            with await asyncio.to_thread(urllib.request.urlopen, request, timeout=SOON) as answer:
                assert answer.status < 300
            assert (await messages.receive(SOON)).payload == b"%d" % k


async def put_for(node: str, nodes: Nodes, seconds: float, done: list[str]) -> float:
    """Put messages into queues of all partitions; return the longest time without an answer."""
    url = nodes.all[node].url("kobold-3")
    ends = time.monotonic() + seconds
    longest, last, k = 0.0, time.monotonic(), 0
    async with wirelake.connect(url, client_id=f"producer {node}", min_delay=0.02) as client:
        while time.monotonic() < ends:
            payload = f"{node} {k}"
            await insist(partial(client.queue(f"work/{k % 12}").put, payload.encode(), id=payload))
            done.append(payload)
            longest = max(longest, time.monotonic() - last)
            last, k = time.monotonic(), k + 1
    return longest


async def drain(url: str) -> list[str]:
    """Take all messages of the queues, and acknowledge them."""
    got = []
    async with wirelake.connect(url) as client:
        for k in range(12):
            queue = client.queue(f"work/{k}")
            while deliveries := await insist(partial(queue.get, 1000)):
                for delivery in deliveries:
                    got.append(delivery.message.payload.decode())
                    await delivery.ack()
    return got


async def test_nothing_acknowledged_is_lost_when_an_owner_is_killed(own: Nodes) -> None:
    done: list[str] = []
    work = [asyncio.create_task(put_for(name, own, 6.0, done)) for name in "ac"]
    await asyncio.sleep(1.5)
    await asyncio.to_thread(own.all["b"].kill)
    silences = await asyncio.gather(*work)
    got = await drain(own.all["a"].url("kobold-3"))
    assert set(done) <= set(got)
    assert len(got) == len(set(got)), "an id of one producer was taken twice"
    assert len(done) > 50
    assert max(silences) < 5.0


async def test_a_client_of_several_hosts_goes_on_at_another_node(own: Nodes) -> None:
    first, *others = (own.all[name].url("kobold-3").removeprefix("kobold-3://") for name in NAMES)
    url = f"kobold-3://{first},{','.join(others)}"
    async with wirelake.connect(url, min_delay=0.02) as client, client.subscribe("news") as news:
        await published(client, "news", b"1", news)
        await asyncio.to_thread(own.all["a"].kill)
        await insist(partial(client.publish, "news", b"2", ack=True))
        await published(client, "news", b"3", news)


async def test_a_planned_stop_refuses_hardly_anything_and_loses_nothing(own: Nodes) -> None:
    done: list[str] = []
    work = [asyncio.create_task(put_for(name, own, 4.0, done)) for name in "ac"]
    await asyncio.sleep(1.5)
    assert await asyncio.to_thread(own.all["b"].stop) == 0
    silences = await asyncio.gather(*work)
    got = await drain(own.all["c"].url("kobold-3"))
    assert set(done) <= set(got)
    assert len(got) == len(set(got))
    assert max(silences) < 2.0


@pytest.mark.soak
async def test_an_owner_that_stood_still_does_no_harm_when_it_goes_on(own: Nodes) -> None:
    done: list[str] = []
    work = [asyncio.create_task(put_for(name, own, 12.0, done)) for name in "ac"]
    await asyncio.sleep(1.5)
    own.all["b"].freeze()
    await asyncio.sleep(5)
    own.all["b"].thaw()
    silences = await asyncio.gather(*work)
    got = await drain(own.all["b"].url("kobold-3"))
    assert set(done) <= set(got)
    assert len(got) == len(set(got))
    assert max(silences) < 6.0


@pytest.mark.soak
async def test_nothing_acknowledged_is_lost_when_a_nats_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "nats").mkdir()
    with (
        Servers(tmp_path / "nats", 3) as servers,
        Nodes(tmp_path, servers.urls, "three", replicas=3) as nodes,
    ):
        await asyncio.to_thread(nodes.start, *NAMES)
        await ready(nodes)
        done: list[str] = []
        work = [asyncio.create_task(put_for(name, nodes, 20.0, done)) for name in NAMES]
        await asyncio.sleep(3)
        servers.processes[0].kill()
        silences = await asyncio.gather(*work)
        got = await drain(nodes.all["a"].url("kobold-3"))
        assert set(done) <= set(got)
        assert len(got) == len(set(got))
        assert max(silences) < 10.0
