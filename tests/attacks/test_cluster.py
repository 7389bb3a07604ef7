"""A peer with access to NATS that sends anything to the subjects of a running node."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats as nats_client
import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually
from tests.cluster.servers import Servers, binary
from wirelake.cluster.members import Heartbeat
from wirelake.cluster.peers import VERSION, Channel
from wirelake.message import Flag, Message, Op

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PREFIX = "ATK"
SEED = 11


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[Servers, Broker]]:
    """A node that serves all partitions of its cluster, and the server of it."""
    if binary() is None:
        pytest.skip("nats-server is not installed")
    folder = tmp_path / "nats"
    folder.mkdir()
    with Servers(folder) as servers:
        config = f"[cluster]\nservers = {json.dumps(servers.urls)}\nnode = 'a'\nreplicas = 1\n"
        config += f"prefix = '{PREFIX}'\npartitions = 2\nmembers = 8\nquestions = 16\n"
        with Broker(tmp_path, config) as broker:
            eventually(lambda: broker.log().count("is served here") == 2, "serving")
            yield servers, broker


def serves(broker: Broker) -> bool:
    """Does it take messages, keep them and tell of them?"""
    with Client(broker) as client:
        said = Message(f"house/{random.random()}", b"x", op=Op.PUBLISH, flags=Flag.ACK)
        return client.ask(said).op == Op.OK and broker.http("/healthz")[0] == 200


def beat(**changes: Any) -> bytes:
    """A heartbeat of a node that is none."""
    return msgspec.json.encode({"node": "evil", "life": "1", "number": 1, **changes})


HUGE = 10**30
HEARTBEATS = [
    beat(node=""), beat(node="a.b"), beat(node="x y"), beat(node="*"), beat(node=">"),
    beat(node="x\r\nPUB ATK.beat 0\r\n\r\n"), beat(node="x\n"), beat(node="é" * 10),
    beat(node="n" * 60_000), beat(life="l" * 60_000), beat(version="v" * 60_000),
    beat(number=HUGE), beat(number=-1), beat(revision=HUGE), beat(revision=(1 << 63) - 1),
    beat(age=1e308), beat(age=-5), beat(format=HUGE), beat(owned=[HUGE]), beat(owned=[-1] * 999),
    beat(owned=[5_000_000]), beat(lag={"9": HUGE}), beat(lag={"x": 1}), beat(http="h" * 60_000),
    beat(listeners=["l" * 3000] * 10), beat(node="a", life="other", age=-1), beat(node=None),
    beat(life=7), beat(leaving=True), beat(leaving="yes"), b"[]", b"null", b"{", b"[" * 60_000,
    b'{"node":"evil","life":"1","age":1e999}', b'{"node":"evil","life":"1","age":NaN}',
]  # fmt: skip


def garbage(random: random.Random) -> list[bytes]:
    """Bytes that are nothing at all."""
    sizes = (0, 1, 2, 7, 36, 37, 100, 5_000, 300_000)
    return [random.randbytes(size) for size in sizes for _ in range(3)]


def questions() -> list[bytes]:
    """Near-valid questions."""

    def forwarded(**changes: Any) -> bytes:
        said: dict[str, Any] = {
            "method": "GET", "path": b"/v1/rows", "query": b"", "headers": [], "body": b"",
            "rights": {}, "has_token": False, "peer": ["", 0], **changes,
        }  # fmt: skip
        return msgspec.msgpack.encode([1 << 40, msgspec.msgpack.encode(said)])

    wide = {"limit": 1 << 60, "budget": 1e9, "start": 0, "stop": 0, "before": {}, "only": None,
            "longest": 0, "selection": {}, "wanted": {}}  # fmt: skip
    asked: list[Any] = [{}, [], None, 7, wide, {**wide, "limit": -1}, {**wide, "before": {"x": 1}},
             {**wide, "selection": {"pattern": "("}}, {"rights": 7}]  # fmt: skip
    named = [
        forwarded(method="QUESTION", path=name, body=msgspec.msgpack.encode(one))
        for name in (b"rows", b"histogram", b"extents", b"queues", b"none", b"\xff")
        for one in asked
    ]
    return [
        *named,
        forwarded(), forwarded(path=b"\xff"), forwarded(method="\r\n"), forwarded(query=b"\xff"),
        forwarded(rights={"admin": True}), forwarded(rights={"admin": "x"}), forwarded(rights=[]),
        forwarded(headers=[[b"content-length", b"999999999999"]]), forwarded(body=b"x" * 500_000),
        forwarded(path=b"/v1/live"), forwarded(path=b"/wire/auto"), forwarded(peer=["x" * 99, -1]),
        forwarded(path=b"/v1/events", query=b"filter=%23"), msgspec.msgpack.encode([-1, b""]),
        msgspec.msgpack.encode(["x", 7]), msgspec.msgpack.encode([HUGE & ((1 << 63) - 1), b"x"]),
    ]  # fmt: skip


COMMANDS = [
    b'{"move": [999, "a"]}', b'{"move": [-1, ""]}', b'{"move": [0, "nobody"]}', b'{"move": 7}',
    b'{"drain": "yes"}', b'{"move": [99999999999999999999999, "a"]}', b"{}", b"[]",
]  # fmt: skip


def test_a_node_goes_on_whatever_comes_on_its_subjects(node: tuple[Servers, Broker]) -> None:
    servers, broker = node
    chance = random.Random(SEED)
    before = broker.rss()

    async def attack() -> None:
        client = await nats_client.connect(servers.urls)
        answered = 0

        async def count(_: Any) -> None:
            nonlocal answered
            answered += 1

        await client.subscribe("inbox.evil", cb=count)
        packets = [
            struct.pack("!BBBxQQQQ", version, kind, flag, *(chance.getrandbits(64),) * 4) + tail
            for version in (0, VERSION, 255)
            for kind in range(5)
            for flag in (0, 1, 255)
            for tail in (b"", b"x" * 100)
        ]
        subjects = {
            "beat": HEARTBEATS,
            "node.a": COMMANDS,
            "state.a": [],
            "call.a": questions(),
            "peer.a.evil.up": packets,
            "peer.a.evil.down": packets,
            "peer.a.nobody.up": packets,
            "peer.a.a.down": packets,
            "peer.a.x.y": packets,
        }
        for subject, messages in subjects.items():
            for data in (*messages, *garbage(chance)):
                await client.publish(f"{PREFIX}.{subject}", data, reply="inbox.evil")
                await client.publish(f"{PREFIX}.{subject}", data)
            await client.flush()
        await asyncio.sleep(2)
        assert answered
        await client.close()

    asyncio.run(attack())
    assert broker.is_alive
    eventually(lambda: serves(broker), "serving")
    assert "missed a step" not in broker.log()
    assert broker.rss() - before < 128 * MIB
    told = {one["who"] for one in broker.events("member_joined")}
    assert told <= {"evil"}  # a name that could not be part of a subject is no member


def test_forged_members_and_floods_have_limits(node: tuple[Servers, Broker]) -> None:
    servers, broker = node
    before = broker.forget_peak()

    async def attack() -> set[bytes]:
        client = await nats_client.connect(servers.urls)
        answers: set[bytes] = set()

        async def note(message: Any) -> None:
            answers.add(bytes(message.data))

        await client.subscribe("inbox.evil", cb=note)
        for k in range(2_000):
            data = msgspec.json.encode(Heartbeat(f"forged-{k}", "1", number=1, version="x" * 60))
            await client.publish(f"{PREFIX}.beat", data)
        rows = questions()[4]
        for _ in range(20_000):
            await client.publish(f"{PREFIX}.call.a", rows, reply="inbox.evil")
        await client.flush()
        await asyncio.sleep(3)
        await client.close()
        return answers

    answers = asyncio.run(attack())
    assert any(b"(cluster.questions)" in one for one in answers)
    assert broker.peak() - before < 160 * MIB
    eventually(lambda: serves(broker), "serving")
    joined = broker.events("member_joined")
    assert len(joined) <= 7
    assert any("(cluster.members)" in one["text"] for one in broker.events("bad_heartbeat"))


def test_parcels_of_a_forged_member_break_its_link_alone(node: tuple[Servers, Broker]) -> None:
    servers, broker = node
    chance = random.Random(SEED)
    numbers = iter(range(1, 1 << 30))

    async def attack() -> int:
        client = await nats_client.connect(servers.urls)
        lanes = {
            lane: Channel(lambda: next(numbers), max_parcel=1 << 30) for lane in ("up", "down")
        }

        async def beat_on() -> None:
            for number in range(1, 10_000):
                said = Heartbeat("evil", "1", number=number)
                await client.publish(f"{PREFIX}.beat", msgspec.json.encode(said))
                await asyncio.sleep(0.2)

        async def flush(lane: str) -> None:
            while packets := lanes[lane].packets():
                for packet in packets:
                    await client.publish(f"{PREFIX}.peer.a.evil.{lane}", packet)

        async def take(message: Any) -> None:
            lane = "up" if message.subject.endswith("down") else "down"
            lanes[lane].receive(message.data)
            await flush(lane)

        await client.subscribe(f"{PREFIX}.peer.evil.a.*", cb=take)
        beats = asyncio.create_task(beat_on())
        opened = 0
        parcels = [
            bytes([kind]) + chance.randbytes(size) for kind in range(256) for size in (0, 40)
        ]
        for kind in b"PFAODLTEC":
            for said in ({}, [], 7, [1, 2, 3], {"number": HUGE}, [1, ["#"] * 50, ["a//"]],
                         {"number": 1, "add": ["a/#/b", "$x", ""], "remove": ["x"]}):  # fmt: skip
                parcels.append(bytes([kind]) + msgspec.json.encode(said))
                if said != {"number": HUGE}:
                    parcels.append(bytes([kind]) + msgspec.msgpack.encode(said))
        parcels.append(bytes([chance.randrange(256)]) * (3 * MIB))
        for parcel in parcels:
            for lane, channel in lanes.items():
                for _ in range(20):
                    if channel.is_open:
                        break
                    channel.pulse()
                    await flush(lane)
                    await asyncio.sleep(0.02)
                opened += channel.is_open
                channel.send(parcel)
                await flush(lane)
            await asyncio.sleep(0)
        await asyncio.sleep(1)
        beats.cancel()
        await client.close()
        return opened

    before = broker.rss()
    assert asyncio.run(attack()) > 100  # the links were really open, again and again
    assert broker.is_alive
    eventually(lambda: serves(broker), "serving")
    assert "missed a step" not in broker.log()
    assert broker.rss() - before < 128 * MIB
