"""The data store through a client, in the dialects that have it, against a real broker."""

from __future__ import annotations

import asyncio

import pytest

import wirelake
from tests.client.brokers import Broker, Proxy
from tests.client.test_client import those_with, those_without
from tests.client.test_reconnect import through
from wirelake.client import Change, Entry
from wirelake.errors import RefusedError

HAVING = those_with("data store")


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_key_is_created_read_updated_and_deleted(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        store = client.store
        assert await store.create("a/b", b"one") == 1
        assert await store.read("a/b") == Entry("a/b", b"one", 1)
        assert await store.update("a/b", bytes(range(256))) == 2
        assert await store.update("a/b", b"", revision=2) == 3
        assert await store.read("a/b") == Entry("a/b", b"", 3)
        assert await store.delete("a/b", revision=3) == 4
        assert await store.create("a/b", b"again") == 5


@pytest.mark.parametrize("dialect", HAVING)
async def test_what_cannot_be_done_is_refused_with_its_code(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        store = client.store
        await store.create("there", b"1")
        for code, use in (
            ("exists", store.create("there", b"2")),
            ("not_found", store.read("gone")),
            ("not_found", store.update("gone", b"2")),
            ("not_found", store.delete("gone")),
            ("conflict", store.update("there", b"2", revision=7)),
            ("conflict", store.delete("there", revision=7)),
            ("bad_request", store.read("a/+")),
            ("bad_request", store.create("$a", b"")),
            ("bad_request", store.create("a", b"", ttl=-1)),
        ):
            with pytest.raises(RefusedError) as error:
                await use
            assert error.value.code == code
        assert await store.read("there") == Entry("there", b"1", 1)


@pytest.mark.parametrize("dialect", HAVING)
async def test_put_does_not_mind_whether_the_key_is_there(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        assert await client.store.put("a", b"1") == 1
        assert await client.store.put("a", b"2") == 2
        await client.store.delete("a")
        assert await client.store.put("a", b"3") == 4
        assert (await client.store.read("a")).value == b"3"


async def test_those_who_put_and_delete_one_key_do_not_disturb_each_other(broker: Broker) -> None:
    async def delete(client: wirelake.client.Client) -> None:
        try:
            await client.store.delete("a")
        except RefusedError as error:
            assert error.code == "not_found"  # noqa: PT017 - the others are quicker

    async with (
        wirelake.connect(broker.url("kobold-3")) as one,
        wirelake.connect(broker.url("boson-binary")) as two,
    ):
        work = []
        for k in range(50):
            work += [one.store.put("a", b"%d" % k), two.store.put("a", b"x"), delete(two)]
        revisions = [r for r in await asyncio.gather(*work) if r is not None]
        assert len(set(revisions)) == len(revisions) == 100


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_key_with_a_ttl_goes_away(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as client,
        client.store.watch("a") as changes,
    ):
        await client.store.create("a", b"1", ttl=50)
        assert await changes.receive(60) == Change("a", b"1", 1)
        assert await changes.receive(60) == Change("a", None, 2)


@pytest.mark.parametrize("dialect", HAVING)
async def test_keys_lists_what_a_filter_matches(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        store = client.store
        assert await store.keys() == []
        for key in ("b", "a/2", "a/1", "a/1/x", "gone"):
            await store.create(key, key.encode())
        await store.update("a/2", b"new")
        await store.delete("gone")
        assert [entry.key for entry in await store.keys()] == ["a/1", "a/1/x", "a/2", "b"]
        assert await store.keys("a/+") == [Entry("a/1", b"a/1", 1), Entry("a/2", b"new", 2)]
        assert await store.keys("b") == [Entry("b", b"b", 1)]
        assert await store.keys("gone") == []


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_watch_tells_every_change_in_order(broker: Broker, dialect: str) -> None:
    async with (
        wirelake.connect(broker.url(dialect), client_id="alice") as client,
        client.store.watch("a/#") as changes,
    ):
        await client.store.create("a/1", b"1")
        await client.store.create("b", b"no")
        await client.store.update("a/1", b"2")
        await client.store.delete("a/1")
        await client.store.put("a/2", b"")
        assert [await changes.receive(60) for _ in range(4)] == [
            Change("a/1", b"1", 1),
            Change("a/1", b"2", 2),
            Change("a/1", None, 3),
            Change("a/2", b"", 1),
        ]


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_watch_from_a_revision_begins_with_what_is_there(
    broker: Broker, dialect: str
) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        for key in ("a", "b", "c"):
            await client.store.create(key, b"1")
        await client.store.update("b", b"2")
        await client.store.delete("c")
        async with client.store.watch("#") as live, client.store.watch("#", revision=2) as changes:
            await client.store.update("a", b"3")
            got = [await changes.receive(60) for _ in range(3)]
            assert got == [Change("b", b"2", 2), Change("c", None, 2), Change("a", b"3", 2)]
            assert await live.receive(60) == Change("a", b"3", 2)


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_watch_that_is_left_takes_its_connection_with_it(
    broker: Broker, dialect: str
) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:

        async def first() -> Change:
            async for change in client.store.watch("a"):
                return change
            raise AssertionError("no change")

        watching = asyncio.create_task(first())
        while len(broker.node.sessions) < 2:
            await asyncio.sleep(0.005)
        while not watching.done():
            await client.store.put("a", b"1")
        assert (await watching).key == "a"
        while len(broker.node.sessions) > 1:
            await asyncio.sleep(0.005)


async def test_closing_the_client_ends_its_watches(broker: Broker) -> None:
    client = await wirelake.connect(broker.url("kobold-2"))
    async with client.store.watch("a") as changes:
        await client.store.create("a", b"1")
        assert (await changes.receive(60)).value == b"1"
        await client.close()
        assert [change async for change in changes] == []


async def test_who_may_not_watch_is_told_and_nothing_is_left_open(broker: Broker) -> None:
    broker.node.clients.rights_of_strangers.store = ("allowed/#",)
    async with wirelake.connect(broker.url("kobold-2")) as client:
        for use in (client.store.read("a"), client.store.keys()):
            with pytest.raises(RefusedError) as error:
                await use
            assert error.value.code == "unauthorized"
        with pytest.raises(RefusedError) as error:
            async with client.store.watch("a"):
                pass
        assert error.value.code == "unauthorized"
        while len(broker.node.sessions) > 1:
            await asyncio.sleep(0.005)
        await client.store.create("allowed/a", b"")


@pytest.mark.parametrize("dialect", those_without("data store"))
async def test_a_dialect_without_a_store_says_which_have_one(broker: Broker, dialect: str) -> None:
    async with wirelake.connect(broker.url(dialect)) as client:
        with pytest.raises(RefusedError, match=rf"{dialect} has no data store; .*kobold-3 have"):
            _ = client.store


@pytest.mark.parametrize("dialect", HAVING)
async def test_a_watch_from_a_revision_misses_no_latest_state(
    broker: Broker, proxy: Proxy, dialect: str
) -> None:
    async with (
        wirelake.connect(broker.url(dialect)) as other,
        through(proxy, dialect) as client,
        client.store.watch("#", revision=1) as changes,
    ):
        await other.store.create("kept", b"1")
        await other.store.create("changed", b"1")
        assert [(await changes.receive(60)).key for _ in range(2)] == ["kept", "changed"]
        proxy.cut(down=True)
        await other.store.update("changed", b"2")
        await other.store.update("changed", b"3")
        await other.store.create("made", b"1")
        proxy.mend()
        got = {(await changes.receive(60)) for _ in range(2)}
        assert got == {Change("changed", b"3", 3), Change("made", b"1", 1)}
        await other.store.update("kept", b"2")
        assert await changes.receive(60) == Change("kept", b"2", 2)


async def test_a_watch_that_is_not_allowed_any_more_ends(
    broker: Broker, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    async with through(proxy, "kobold-1") as client, client.store.watch("a") as changes:
        broker.node.clients.rights_of_strangers.store = ()
        proxy.cut()
        with pytest.raises(RefusedError) as error:
            await changes.receive(60)
        assert error.value.code == "unauthorized"
