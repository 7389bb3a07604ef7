"""Byte streams from client to client, in the dialects that have them, through a real broker."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

import wirelake
from tests.client.brokers import Broker, Proxy
from tests.client.test_client import those_with, those_without
from tests.client.test_reconnect import through
from wirelake.client import Client, Stream
from wirelake.client.stream import PIECE
from wirelake.errors import RefusedError

HAVING = those_with("byte stream")


@asynccontextmanager
async def pair(broker: Broker, dialect: str, other: str) -> AsyncIterator[tuple[Client, Client]]:
    """Two clients, `alice` and `bob`."""
    async with (
        wirelake.connect(broker.url(dialect), client_id="alice") as alice,
        wirelake.connect(broker.url(other), client_id="bob") as bob,
    ):
        yield alice, bob


@pytest.mark.parametrize("other", HAVING)
@pytest.mark.parametrize("dialect", HAVING)
async def test_bytes_arrive_in_order_and_the_end_is_told(
    broker: Broker, dialect: str, other: str
) -> None:
    data = random.Random(7).randbytes(3 * PIECE + 17)
    async with pair(broker, dialect, other) as (alice, bob), bob.streams() as streams:
        async with await alice.stream_to("bob", info=b"a file") as out:
            into = await streams.receive(60)
            assert (into.source, into.info) == ("alice", b"a file")
            await out.write(data)
            await out.write(b"")
            await out.write(memoryview(b"the end"))
        chunks = [chunk async for chunk in into]
        assert b"".join(chunks) == data + b"the end"
        assert max(map(len, chunks)) <= PIECE
        assert out.sent == into.received == into.count == len(data) + 7
        assert await into.read() == b""


@pytest.mark.parametrize("dialect", HAVING)
async def test_what_comes_behind_the_greeting_is_for_whoever_listens_first_of_all(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    async def listen() -> tuple[bytes, bytes]:
        async with (
            through(proxy, dialect, client_id="bob") as bob,
            bob.streams() as streams,
            bob.direct() as letters,
        ):
            return await (await streams.receive(60)).read(), (await letters.receive(60)).payload

    async with wirelake.connect(broker.url("kobold-3"), client_id="alice") as alice:
        proxy.hold()
        listening = asyncio.create_task(listen())
        while True:
            with suppress(RefusedError):
                await alice.send_to("bob", b"a letter", ack=True)
                break
            await asyncio.sleep(0.01)
        async with await alice.stream_to("bob") as out:
            await out.write(b"a stream")
        await alice.ping()
        proxy.let_go()
        assert await listening == (b"a stream", b"a letter")


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_stream_goes_both_ways(broker: Broker, dialect: str) -> None:
    async with pair(broker, dialect, "kobold-3") as (alice, bob), bob.streams() as streams:
        near = await alice.stream_to("bob")
        far = await streams.receive(60)
        for k in range(20):
            await near.write(b"%d" % k)
            assert await far.read() == b"%d" % k
            await far.write(b"got %d" % k)
            assert await near.read() == b"got %d" % k
        await far.close()
        assert await near.read() == b""
        assert near.count == near.received == far.sent
        with pytest.raises(RefusedError) as error:
            await near.write(b"too late")
        assert error.value.code == "closed"
        await near.close()


@pytest.mark.parametrize("dialect", HAVING)
async def test_many_streams_do_not_mix(broker: Broker, dialect: str) -> None:
    async def send(alice: Client, k: int) -> None:
        async with await alice.stream_to("bob", info=b"%d" % k) as stream:
            for _ in range(k + 1):
                await stream.write(bytes([k]) * 1000)

    async def collect(stream: Stream) -> None:
        k = int(stream.info)
        assert b"".join([chunk async for chunk in stream]) == bytes([k]) * 1000 * (k + 1)

    async with pair(broker, dialect, dialect) as (alice, bob), bob.streams() as streams:
        sending = asyncio.gather(*(send(alice, k) for k in range(20)))
        await asyncio.gather(*[collect(await streams.receive(60)) for _ in range(20)])
        await sending


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_stream_that_nobody_listens_for_is_refused(broker: Broker, dialect: str) -> None:
    async with pair(broker, "kobold-3", dialect) as (alice, bob):
        stream = await alice.stream_to("bob")
        with pytest.raises(RefusedError) as error:
            await stream.read()
        assert error.value.code == "not_found"
        with pytest.raises(RefusedError) as error:
            await stream.write(b"x")
        assert error.value.code == "not_found"
        async with bob.streams() as streams:
            await alice.stream_to("bob")
            left = await alice.stream_to("bob")
            await streams.receive(60)
        with pytest.raises(RefusedError) as error:  # nobody took it
            await left.read()
        assert error.value.code == "not_found"


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_stream_to_nobody_is_refused(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        wirelake.connect(broker.url("tmq"), client_id="tmq-client"),
    ):
        for target, code in (
            ("nobody", "not_found"),
            ("tmq-client", "not_found"),
            ("", "bad_request"),
        ):
            with pytest.raises(RefusedError) as error:
                await client.stream_to(target)
            assert error.value.code == code
        with pytest.raises(RefusedError, match="client_id"):
            async with client.streams():
                pass


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_sender_that_fails_tells_that_the_stream_is_not_complete(
    broker: Broker, dialect: str
) -> None:
    async with pair(broker, dialect, "kobold-2") as (alice, bob), bob.streams() as streams:
        with suppress(ZeroDivisionError):
            async with await alice.stream_to("bob") as out:
                await out.write(b"half")
                raise ZeroDivisionError
        into = await streams.receive(60)
        assert await into.read() == b"half"
        with pytest.raises(RefusedError, match="after 4 of 4 bytes") as error:
            await into.read()
        assert error.value.code == "closed"
        out = await alice.stream_to("bob")
        await out.close("too_large")
        with pytest.raises(RefusedError) as error:
            await (await streams.receive(60)).read()
        assert error.value.code == "too_large"


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_slow_reader_holds_the_writer_back(broker: Broker, dialect: str) -> None:
    broker.node.flow.outbox = 1 << 20
    size = 64 << 20
    piece = random.Random(1).randbytes(1 << 20)

    async def send(alice: Client) -> None:
        async with await alice.stream_to("bob") as out:
            sending.append(out)
            for _ in range(size >> 20):
                await out.write(piece)

    sending: list[Stream] = []
    async with (
        wirelake.connect(broker.url(dialect), client_id="alice") as alice,
        wirelake.connect(broker.url(dialect), client_id="bob", inbox_bytes=1 << 20) as bob,
        bob.streams() as streams,
    ):
        task = asyncio.create_task(send(alice))
        into = await streams.receive(60)
        held, taken, digest = 0, 0, hashlib.sha256()
        while chunk := await into.read():
            digest.update(chunk)
            taken += len(chunk)
            if taken % (8 << 20) < len(chunk):
                await stalled(sending[0])
                held = max(held, sending[0].sent - taken)
                assert into.inbox._bytes <= (1 << 20) + PIECE
        await task
    assert into.received == size
    assert digest.hexdigest() == hashlib.sha256(piece * (size >> 20)).hexdigest()
    assert 0 < held < 32 << 20  # outboxes, and what the system's sockets hold


async def stalled(stream: Stream) -> None:
    """Wait until a writer gets no further."""
    while True:
        before = stream.sent
        for _ in range(20):
            await asyncio.sleep(0.001)
        if stream.sent == before:
            return


async def test_a_stream_that_is_not_read_does_not_keep_answers_from_whoever_waits(
    broker: Broker,
) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3"), client_id="alice") as alice,
        wirelake.connect(broker.url("kobold-3"), client_id="bob", inbox_bytes=PIECE) as bob,
        bob.streams() as streams,
    ):
        out = await alice.stream_to("bob")
        into = await streams.receive(60)
        await out.write(bytes(3 * PIECE))
        await bob.ping(timeout=60)
        await out.close()
        assert sum([len(chunk) async for chunk in into]) == 3 * PIECE


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_stream_cut_in_the_middle_tells_both(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    async with (
        wirelake.connect(broker.url("kobold-2"), client_id="bob") as bob,
        through(proxy, dialect, client_id="alice") as alice,
        bob.streams() as streams,
    ):
        out = await alice.stream_to("bob")
        into = await streams.receive(60)
        await out.write(b"before")
        assert await into.read() == b"before"
        proxy.cut()
        for end in (into, out):
            with pytest.raises(RefusedError) as error:
                await end.read()
            assert error.value.code == "closed"
        with pytest.raises(RefusedError) as error:
            await out.write(b"after")
        assert error.value.code == "closed"
        await out.close()
        async with await alice.stream_to("bob") as another:  # the clients live on
            await another.write(b"again")
            assert await (await streams.receive(60)).read() == b"again"


async def test_a_writer_that_waits_learns_that_the_connection_is_lost(
    broker: Broker, proxy: Proxy
) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3"), client_id="bob", inbox_bytes=PIECE) as bob,
        through(proxy, "kobold-3", client_id="alice") as alice,
        bob.streams() as streams,
    ):
        broker.node.flow.outbox = PIECE
        out = await alice.stream_to("bob")
        await streams.receive(60)
        writing = asyncio.create_task(out.write(bytes(64 << 20)))
        await stalled(out)
        proxy.cut(down=True)
        with pytest.raises(RefusedError) as error:
            await writing
        assert error.value.code == "closed"
        proxy.mend()


async def test_a_writer_that_waits_learns_that_the_reader_left(broker: Broker) -> None:
    async with (
        wirelake.connect(broker.url("kobold-3"), client_id="bob", inbox_bytes=PIECE) as bob,
        wirelake.connect(broker.url("kobold-3"), client_id="alice") as alice,
        bob.streams() as streams,
    ):
        broker.node.flow.outbox = PIECE
        out = await alice.stream_to("bob")
        into = await streams.receive(60)
        writing = asyncio.create_task(out.write(bytes(64 << 20)))
        await stalled(out)
        await into.close("busy")
        with pytest.raises(RefusedError) as error:
            await writing
        assert error.value.code == "busy"
        await alice.ping()
        await bob.ping()


@pytest.mark.parametrize("dialect", HAVING)
async def test_closing_a_client_ends_its_streams(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url("kobold-1"), client_id="bob") as bob,
        bob.streams() as streams,
    ):
        alice = await wirelake.connect(broker.url(dialect), client_id="alice")
        out = await alice.stream_to("bob")
        into = await streams.receive(60)
        await out.write(b"x")
        await alice.close()
        assert await into.read() == b"x"
        for use in (into.read(), out.read(), out.write(b"y")):
            with pytest.raises(RefusedError) as error:
                await use
            assert error.value.code == "closed"


@pytest.mark.parametrize("dialect", those_without("byte stream"))
async def test_a_dialect_without_streams_says_which_have_them(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        with pytest.raises(RefusedError, match=f"{dialect} has no byte stream; .* have"):
            await client.stream_to("bob")
        with pytest.raises(RefusedError, match=f"{dialect} has no byte stream; .* have"):
            client.streams()
