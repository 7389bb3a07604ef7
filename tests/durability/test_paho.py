"""A broker that is killed under clients that others wrote: paho-mqtt at both ends."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.durability.served import HOST, Served

PATIENCE = 60.0
KILLS = 3
EACH = 100  # messages for each kill


def client(name: str, version: MQTTProtocolVersion) -> paho.Client:
    """A client whose session lasts, and that comes back by itself."""
    options = {} if version == MQTTProtocolVersion.MQTTv5 else {"clean_session": False}
    made = paho.Client(
        CallbackAPIVersion.VERSION2,
        client_id=name,
        protocol=version,
        **options,  # type: ignore[arg-type]
    )
    made.reconnect_delay_set(1, 1)
    return made


def connect(made: paho.Client, port: int, version: MQTTProtocolVersion) -> None:
    """Connect for the first time, in a thread of its own from then on."""
    more: dict[str, object] = {}
    if version == MQTTProtocolVersion.MQTTv5:
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = 1000
        more = {"clean_start": False, "properties": properties}
    made.connect(HOST, port, **more)  # type: ignore[arg-type]
    made.loop_start()


@pytest.mark.parametrize(
    "version",
    [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5],
    ids=["mqtt-3.1.1", "mqtt-5"],
)
async def test_paho_loses_nothing_when_the_broker_is_killed(
    tmp_path: Path, version: MQTTProtocolVersion
) -> None:
    # Paho publishes a message of QoS 2 anew after two reconnects that failed, so that one may come
    # twice here; that ours come once is shown in test_mqtt.py.
    got: Counter[bytes] = Counter()
    joined, done, acknowledged = threading.Event(), threading.Event(), threading.Event()
    answers = 0
    wanted = KILLS * EACH

    def on_message(_: object, __: object, message: paho.MQTTMessage) -> None:
        got[bytes(message.payload)] += 1
        if len(got) == wanted:
            done.set()

    def on_publish(*_: object) -> None:
        nonlocal answers
        answers += 1
        if answers == wanted:
            acknowledged.set()

    async with Served(tmp_path / "data") as served:
        await served.start()
        receiver, sender = client("receiver", version), client("sender", version)
        receiver.on_message = on_message
        sender.on_publish = on_publish
        receiver.on_subscribe = lambda *_: joined.set()
        connect(receiver, served.port, version)
        receiver.subscribe("a/#", 2)
        assert await asyncio.to_thread(joined.wait, PATIENCE)
        connect(sender, served.port, version)
        sender.publish("a/kept", b"0", 1, retain=True)
        for k in range(1, wanted):
            sender.publish(f"a/{k % 7}", b"%d" % k, 1 + k % 2)  # kept while there is no connection
            if k % 10 == 0:
                await asyncio.sleep(0.01)
            if k % EACH == EACH // 2:
                await served.kill()
                await served.start()
        assert await asyncio.to_thread(acknowledged.wait, PATIENCE)
        assert await asyncio.to_thread(done.wait, PATIENCE), sorted(
            set(range(wanted)) - {int(payload) for payload in got}
        )
        late: list[bytes] = []
        kept = threading.Event()
        other = client("other", version)

        def on_kept(_: object, __: object, message: paho.MQTTMessage) -> None:
            late.append(bytes(message.payload))
            kept.set()

        other.on_message = on_kept
        connect(other, served.port, version)
        other.subscribe("a/kept", 1)
        assert await asyncio.to_thread(kept.wait, PATIENCE)
        for each in (receiver, sender, other):
            each.disconnect()
            each.loop_stop()
    assert late == [b"0"]
