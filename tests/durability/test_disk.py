"""A disk that takes no more: what cannot be kept is refused, the rest goes on, nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import wirelake
from tests.durability.served import COMMAND, Served
from tests.net.peer import Peer
from wirelake.client import Client
from wirelake.errors import RefusedError
from wirelake.message import Message, Op

QUEUE = "jobs"
LARGE = bytes(2 << 20)  # so that it fits into no space that a file has already
SETTINGS = f'[[queues]]\nname = "{QUEUE}"\n'
NO_CAPTURE = "[capture]\nenabled = false\n"

#: Dialects that acknowledge, and how a client hears `busy` in them; mfp has no reasons.
REFUSALS = {
    "kobold-1": "busy",
    "kobold-2": "busy",
    "kobold-3": "busy",
    "boson-binary": "busy",
    "tmq-1.00": "busy",
    "tmq-1.01": "busy",
    "mfp-1": "bad_request",
}


class SmallDisk:
    """A file system in memory, filled by a file."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self._filling = folder / "filling"

    def fill(self, broker: Served) -> None:
        """Leave no room."""
        with self._filling.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def clear(self, broker: Served) -> None:
        """Make room."""
        self._filling.unlink()


class SmallFiles:
    """A limit to the size of the broker's files: another kind of error, which needs no rights."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"

    def fill(self, broker: Served) -> None:
        """Let no file have more than a byte."""
        _, most = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (1, most))

    def clear(self, broker: Served) -> None:
        """Let them grow again."""
        _, most = resource.prlimit(broker.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(broker.pid, resource.RLIMIT_FSIZE, (most, most))


@pytest.fixture(params=[SmallDisk, SmallFiles])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SmallDisk | SmallFiles]:
    """A disk that can be full; a small one where mounting is allowed."""
    if request.param is SmallFiles:
        yield SmallFiles(tmp_path)
        return
    mounted = tmp_path / "disk"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(mounted)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting is not allowed")
    try:
        yield SmallDisk(mounted)
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@contextlib.asynccontextmanager
async def clients(broker: Served) -> AsyncIterator[dict[str, Client]]:
    """A client in every dialect that acknowledges."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            dialect: await stack.enter_async_context(wirelake.connect(broker.url(dialect, dialect)))
            for dialect in REFUSALS
        }


async def refusal(asked: Awaitable[object]) -> str:
    """The code that something is refused with."""
    with pytest.raises(RefusedError) as refused:
        await asked
    return refused.value.code


async def status(url: str, body: bytes | None = None) -> int:
    """How HTTP answers."""

    def ask() -> int:
        try:
            with urllib.request.urlopen(url, body) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    return await asyncio.to_thread(ask)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that is not told."""
    while not await condition():
        await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_full_disk_is_told_and_survived(disk: SmallDisk | SmallFiles) -> None:
    async with Served(disk.data, SETTINGS) as broker:
        await broker.start()
        async with clients(broker) as by_dialect:
            kobold = by_dialect["kobold-3"]
            await kobold.store.create("key", b"before")
            for name, client in by_dialect.items():
                await client.publish("topic", f"before {name}".encode(), ack=True)
                await client.queue(QUEUE).put(f"before {name}".encode())
            disk.fill(broker)
            # Somebody has to find out. The answer comes when there is room, and not before.
            first = asyncio.create_task(kobold.publish("topic", LARGE, ack=True))
            await broker.says("nothing can be written")
            for path, body in (("/healthz", None), ("/v1/publish/topic", b"x")):
                assert await status(broker.http + path, body) == 503
            for name, client in by_dialect.items():
                assert await refusal(client.publish("topic", b"x", ack=True)) == REFUSALS[name]
                assert await refusal(client.queue(QUEUE).put(b"x", ack=True)) == REFUSALS[name]
            assert await refusal(kobold.store.update("key", b"x")) == "busy"
            assert (await kobold.store.read("key")).value == b"before"
            await text_is_refused(broker)
            await live_traffic_goes_on(by_dialect)
            assert not first.done()
            disk.clear(broker)
            await first
            await until(lambda: is_well(broker))
            for name, client in by_dialect.items():
                await client.publish("topic", f"after {name}".encode(), ack=True)
                await client.queue(QUEUE).put(f"after {name}".encode())
            await kobold.store.update("key", b"after")
        await broker.kill()
        await broker.start()
        assert broker.complaints == []
        expected = {f"{when} {name}".encode() for when in ("before", "after") for name in REFUSALS}
        rows = [row for table in await broker.log() for row in table.to_pylist()]
        logged = [row["payload"] for row in rows if row["address"] == "topic"]
        assert expected | {LARGE} <= set(logged)
        assert b"x" not in logged
        async with wirelake.connect(broker.url("boson-binary")) as client:
            found = [one.message.payload for one in await client.queue(QUEUE).get(100)]
            assert sorted(found) == sorted(expected)
            assert (await client.store.read("key")).value == b"after"


async def is_well(broker: Served) -> bool:
    """Does the broker say that it can keep all that it accepts?"""
    return await status(f"{broker.http}/healthz") == 200


async def text_is_refused(broker: Served) -> None:
    """boson-text has no acknowledgements, but is told what was refused."""
    peer = await Peer("boson-text", "").open(broker.port)
    await peer.send(Message(address=QUEUE, payload=b"x"))
    answer = await peer.receive()
    assert (answer.op, answer.parameters.code) == (Op.ERROR, "busy")
    await peer.close()


async def live_traffic_goes_on(by_dialect: dict[str, Client]) -> None:
    """Whoever asks for no acknowledgement is heard as ever."""
    async with by_dialect["tmq-1.01"].subscribe("live") as messages:
        for name, client in by_dialect.items():
            await client.publish("live", name.encode())
        heard = [(await anext(messages)).payload.decode() for _ in by_dialect]
        assert sorted(heard) == sorted(by_dialect)


@pytest.mark.slow
async def test_queues_survive_a_full_disk_without_a_log(tmp_path: Path) -> None:
    disk = SmallFiles(tmp_path)
    async with Served(disk.data, NO_CAPTURE + SETTINGS) as broker:
        await broker.start()
        async with wirelake.connect(broker.url("kobold-2")) as client:
            queue = client.queue(QUEUE)
            await queue.put(b"before")
            disk.fill(broker)
            first = asyncio.create_task(queue.put(b"during"))
            await broker.says("nothing can be written")
            assert await refusal(queue.put(b"x")) == "busy"
            await client.publish("topic", b"a topic needs no disk", ack=True)
            disk.clear(broker)
            await first
            await until(lambda: is_well(broker))
            assert [one.message.payload for one in await queue.get(9)] == [b"before", b"during"]


@pytest.mark.slow
async def test_a_broker_that_is_killed_while_the_disk_is_full_has_lost_nothing(
    disk: SmallDisk | SmallFiles,
) -> None:
    async with Served(disk.data, SETTINGS) as broker:
        await broker.start()
        async with wirelake.connect(broker.url("kobold-2"), reconnect=False) as client:
            await client.queue(QUEUE).put(b"before")
            await client.publish("topic", b"before", ack=True)
            disk.fill(broker)
            first = asyncio.create_task(client.publish("topic", LARGE, ack=True))
            await broker.says("nothing can be written")
            await broker.kill()
            assert await refusal(first) == "closed"
        if isinstance(disk, SmallDisk):
            disk.clear(broker)
        await broker.start()
        rows = [row for table in await broker.log() for row in table.to_pylist()]
        assert b"before" in [row["payload"] for row in rows if row["address"] == "topic"]
        async with wirelake.connect(broker.url("kobold-2")) as client:
            assert [one.message.payload for one in await client.queue(QUEUE).get(9)] == [b"before"]


async def test_a_second_broker_is_refused_the_folder_of_a_first(tmp_path: Path) -> None:
    data = tmp_path / "data"
    command = [*COMMAND, "--data", str(data), "--listen", "auto://127.0.0.1:0", "--no-http"]
    async with Served(data) as broker:
        await broker.start()
        for stopped in (False, True):
            if stopped:  # one that does not answer is there all the same
                broker.signal(signal.SIGSTOP)
            second = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, timeout=60
            )
            assert second.returncode == 1
            (line,) = second.stderr.splitlines()
            assert "in use by process " in line
        broker.signal(signal.SIGCONT)
        async with wirelake.connect(broker.url("kobold-2")) as client:
            await client.publish("topic", b"still here", ack=True)
