"""A broker that is killed under MQTT: nothing acknowledged is lost, and QoS 2 comes once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.durability.served import Served
from tests.net.peer import Peer, close_all
from wirelake.dialects.mqtt.codes import Packet
from wirelake.message import Flag, Message, Op

KILLS = 2
EACH = 40  # messages for each kill
LASTING = {
    "mqtt-3.1.1": {"mqtt.keepalive": "0"},
    "mqtt-5": {"mqtt.keepalive": "0", "mqtt.session_expiry": "1000"},
}


class Device(Peer):
    """A client whose session lasts."""

    async def come(self, port: int) -> bool:
        """Connect; return whether the broker knows the session."""
        await self.connect(port)
        connect = Message(op=Op.HANDSHAKE, source=self.name, headers=LASTING[self.dialect])
        await self.send(connect, read_from=self.dialect)
        answer = await self.receive()
        assert (answer.op, answer.content_type) == (Op.HELLO, 0)
        return bool(answer.flags & Flag.MORE)

    async def tell(self, topic: str, payload: bytes, qos: int, ticket: int) -> Message:
        """Publish, and return the acknowledgement."""
        headers = {"mqtt.qos": str(qos)} | ({"mqtt.retain": "1"} if topic == "a/kept" else {})
        message = Message(topic, payload, ticket=ticket, headers=headers, flags=Flag.ACK)
        await self.send(message, read_from=self.dialect)
        return await self.receive()

    async def answer(self, kind: Packet, ticket: int) -> None:
        """Acknowledge a packet."""
        said = Message(op=Op.ACK, content_type=kind, ticket=ticket)
        await self.send(said, read_from=self.dialect)


@pytest.mark.parametrize("dialect", LASTING)
async def test_nothing_is_lost_and_qos_2_comes_once_when_the_broker_is_killed(
    tmp_path: Path, dialect: str
) -> None:
    seen: dict[int, bytes] = {}  # what the receiver has, by identifier, and has not acknowledged
    count = 0
    async with Served(tmp_path / "data") as served:
        await served.start()
        receiver, sender = Device(dialect, "receiver"), Device(dialect, "sender")
        assert not await receiver.come(served.port)
        await receiver.send(
            Message(op=Op.SUBSCRIBE, address="a/#", ticket=1, headers={"mqtt.options": "2"}),
            read_from=dialect,
        )
        assert (await receiver.receive()).payload == b"\x02"
        assert not await sender.come(served.port)
        for kill in range(KILLS):
            for k in range(EACH):
                topic = "a/kept" if k == 0 else f"a/{k % 7}"
                told = await sender.tell(topic, b"%d %d" % (kill, k), 1 + k % 2, k + 1)
                assert told.content_type == (Packet.PUBREC if k % 2 else Packet.PUBACK)
            for _ in range(kill * EACH // 2):  # some arrive before the broker dies, at first none
                message = await receiver.receive()
                seen[message.ticket] = message.payload
            await served.kill()
            await served.start()
            await close_all([receiver, sender])
            receiver, sender = Device(dialect, "receiver"), Device(dialect, "sender")
            assert await receiver.come(served.port)
            assert await sender.come(served.port)
            for k in range(1, EACH, 2):  # as if no PUBREC had come
                told = await sender.tell(f"a/{k % 7}", b"%d %d" % (kill, k), 2, k + 1)
                assert (told.content_type, told.ticket) == (Packet.PUBREC, k + 1)
                await sender.answer(Packet.PUBREL, k + 1)
                assert (await sender.receive()).content_type == Packet.PUBCOMP
            got: dict[int, bytes] = {}
            while len(got) < EACH:
                message = await receiver.receive()
                if message.op == Op.ACK:  # a PUBREL of the life before, again
                    await receiver.answer(Packet.PUBCOMP, message.ticket)
                    continue
                assert message.ticket not in got
                got[message.ticket] = message.payload
                if message.headers["mqtt.qos"] == "1":
                    await receiver.answer(Packet.PUBACK, message.ticket)
                    continue
                await receiver.answer(Packet.PUBREC, message.ticket)
                assert await released(receiver) == message.ticket
                await receiver.answer(Packet.PUBCOMP, message.ticket)
            assert sorted(got.values()) == sorted(b"%d %d" % (kill, k) for k in range(EACH))
            assert seen.items() <= got.items()  # under the same identifiers
            seen.clear()
            count += len(got)
        other = Device(dialect, "other")
        await other.come(served.port)
        await other.subscribe("a/kept")
        assert (await other.receive()).payload == b"%d 0" % (KILLS - 1)
        await close_all([receiver, sender, other])
    assert count == KILLS * EACH


@pytest.mark.parametrize("dialect", LASTING)
@pytest.mark.parametrize("how", ["kill", "stop"])
async def test_a_will_is_published_however_the_broker_ends(
    tmp_path: Path, dialect: str, how: str
) -> None:  # decision 88
    async with Served(tmp_path / "data") as served:
        await served.start()
        watcher, device = Device(dialect, "watcher"), Peer(dialect, "device")
        await watcher.come(served.port)
        options = {"mqtt.options": "1"}
        wish = Message(op=Op.SUBSCRIBE, address="gone/#", ticket=1, headers=options)
        await watcher.send(wish, read_from=dialect)
        assert (await watcher.receive()).payload == b"\x01"
        await device.connect(served.port)
        headers = {"mqtt.clean": "1", "mqtt.keepalive": "0", "mqtt.will": "1"}
        connect = Message(
            op=Op.HANDSHAKE, source="device", headers=headers, address="gone/device", payload=b"x"
        )
        await device.send(connect, read_from=dialect)
        assert (await device.receive()).op == Op.HELLO
        await (served.kill() if how == "kill" else served.stop())
        await served.start()
        await close_all([watcher, device])
        watcher = Device(dialect, "watcher")
        assert await watcher.come(served.port)
        will = await watcher.receive()
        assert (will.address, will.payload) == ("gone/device", b"x")
        await close_all([watcher])


async def released(receiver: Device) -> int:
    """Return the identifier of the next PUBREL; publishes that come before it wait."""
    waiting: list[Message] = []
    while (message := await receiver.receive()).op != Op.ACK:
        waiting.append(message)
    receiver._inbox[:0] = waiting
    return message.ticket
