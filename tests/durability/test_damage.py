"""A broker starts on damaged files, says what is wrong, and keeps what can be read."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import wirelake
from tests.durability.served import Served

TOPICS = ("plant/1", "plant/2", "plant/3")
QUEUE = "jobs"

Row = tuple[int, int, bytes]


@dataclass(frozen=True)
class Contents:
    """What a broker has kept."""

    rows: frozenset[Row]  # of the log: partition, offset, payload
    messages: frozenset[bytes]
    keys: frozenset[tuple[str, bytes, int]]

    def lacks(self, whole: Contents) -> bool:
        """Is something missing that another has?"""
        return bool(
            whole.rows - self.rows or whole.messages - self.messages or whole.keys - self.keys
        )


async def fill(broker: Served) -> None:
    """Let a broker keep something of everything, in many commits."""
    async with wirelake.connect(broker.url("kobold-3", "producer")) as client:
        for number in range(60):
            batch = [(topic, b"%d of %s" % (number, topic.encode())) for topic in TOPICS]
            await client.publish_many(batch, ack=True)
            await client.queue(QUEUE).put(b"job %d %s" % (number, b"." * 200))
            await client.store.create(f"key/{number}", b"value %d %s" % (number, b"." * 100))


async def read(broker: Served) -> Contents:
    """What a broker has, as its users see it."""
    rows: set[Row] = set()
    for partition, table in enumerate(await broker.log()):
        for row in table.select(["offset", "payload", "op"]).to_pylist():
            if row["op"] in ("publish", "enqueue", "set"):
                rows.add((partition, row["offset"], row["payload"]))
    async with wirelake.connect(broker.url("boson-binary")) as client:
        messages = {one.message.payload for one in await client.queue(QUEUE).get(1000)}
        keys = {(one.key, one.value, one.revision) for one in await client.store.keys("key/#")}
    return Contents(frozenset(rows), frozenset(messages), frozenset(keys))


@dataclass(frozen=True)
class Image:
    """The files of a broker that has ended, and what was in them."""

    folder: Path
    contents: Contents


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Image]:
    """Of a broker that was stopped, and of one that was killed."""

    async def make(name: str) -> Image:
        folder = tmp_path_factory.mktemp(name) / "data"
        async with Served(folder) as broker:
            await broker.start()
            await fill(broker)
            await (broker.stop() if name == "stopped" else broker.kill())
            copy = folder.with_name("copy")
            shutil.copytree(folder, copy)
            await broker.start()
            return Image(copy, await read(broker))

    return {name: asyncio.run(make(name)) for name in ("stopped", "killed")}


def flip(place: float) -> Callable[[bytes], bytes]:
    """One bit is not what it was."""

    def damage(data: bytes) -> bytes:
        at = int(len(data) * place)
        return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]

    return damage


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a bit at the start": flip(0.0),
    "a bit in the middle": flip(0.5),
    "the last byte missing": lambda data: data[:-1],
    "half of it missing": lambda data: data[: len(data) // 2],
    "all of it missing": lambda data: b"",
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ["stopped", "killed"])
async def test_damage_is_told_and_the_rest_is_kept(
    tmp_path: Path, images: dict[str, Image], end: str, damage: str
) -> None:
    # decision 52
    whole = images[end].contents
    data = tmp_path / "data"
    shutil.copytree(images[end].folder, data)
    (path,) = (data / "journal").iterdir()
    content = path.read_bytes()
    last = content.rindex(b"WLJA")
    # Behind the last frame's records is the filling of a broker that was killed.
    used = last + 32 + int.from_bytes(content[last + 16 : last + 24], "little")
    path.write_bytes(DAMAGES[damage](content[:used]))
    async with Served(data) as broker:
        await broker.start()
        found = await read(broker)
        assert found.rows <= whole.rows
        assert found.messages <= whole.messages
        assert found.keys <= whole.keys
        cut = damage.endswith("missing")  # perhaps between two writes, which leaves no trace
        if found.lacks(whole) and not cut:
            assert broker.complaints
            assert list(data.rglob("*damaged*"))
        assert not any("Traceback" in line for line in broker.said)
        assert all("has a loss" in line or "lost" in line for line in broker.complaints)
        # What is damaged harms nothing else.
        if damage.startswith("a bit"):
            assert len(whole.rows - found.rows) <= 4
            assert len(whole.messages - found.messages) <= 1
            assert len(whole.keys - found.keys) <= 1
        elif damage.startswith("half"):
            assert found.rows
            assert found.messages
            assert found.keys
        await still_works(broker)
        if (
            broker.complaints and damage != "a bit at the start"
        ):  # that one stays until it is tidied
            await broker.kill()
            await broker.start()
            assert broker.complaints == []


async def still_works(broker: Served) -> None:
    """New things are kept as ever."""
    async with wirelake.connect(broker.url("kobold-2")) as client:
        await client.publish(TOPICS[0], b"again", ack=True)
        await client.queue(QUEUE).put(b"again")
        revision = await client.store.put("key/0", b"again")
        assert revision > 0
        assert (await client.store.read("key/0")).value == b"again"
