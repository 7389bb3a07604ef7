"""MQTT clients that others wrote, paho-mqtt, on three nodes as processes that are killed."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.cluster.processes import NodeProcess, Nodes, until
from tests.cluster.servers import Servers
from tests.cluster.test_processes import NAMES, ready
from wirelake.journal.batch import home

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

PATIENCE = 60.0
PARTITIONS = 6


@pytest.fixture
def own(nats: Servers, prefix: str, tmp_path: Path) -> Iterator[Nodes]:
    """Three nodes of this test alone."""
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        nodes.start(*NAMES)
        asyncio.run(ready(nodes))
        yield nodes


class Device:
    """A client of MQTT 5, which does not come back by itself."""

    def __init__(self, name: str, *, expiry: int = 0, will: str = "") -> None:
        self.name = name
        self.got: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.answers: queue.Queue[str] = queue.Queue()
        self._was_there = False
        self.reason = -1
        self.is_gone = threading.Event()
        self._expiry = expiry
        self._client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=MQTTProtocolVersion.MQTTv5,
            manual_ack=True,
            reconnect_on_failure=False,
        )
        if will:
            self._client.will_set(will, b"farewell", 1)
        self._client.on_connect = self._connected
        self._client.on_message = lambda _, __, message: self.got.put(message)
        self._client.on_publish = lambda *_: self.answers.put("publish")
        self._client.on_subscribe = lambda *_: self.answers.put("subscribe")
        self._client.on_disconnect = lambda *_: self.is_gone.set()

    def _connected(
        self, _: object, __: object, flags: paho.ConnectFlags, reason: ReasonCode, ___: object
    ) -> None:
        self._was_there, self.reason = flags.session_present, reason.value
        self.answers.put("connect")

    def was_there(self) -> bool:
        """Whether the broker knew its session when it connected."""
        return self._was_there

    def try_to_connect(self, node: NodeProcess) -> bool:
        """Connect to a node; return False where it refuses, as while a partition has no owner."""
        host, _, port = node.url("x").removeprefix("x://").rpartition(":")
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._expiry
        self.is_gone.clear()
        self._client.connect(host, int(port), clean_start=False, properties=properties)
        self._client.loop_start()
        try:
            assert self.answers.get(timeout=5) == "connect"
        except queue.Empty:
            self.reason = -1
        if self.reason != 0:
            self._client.loop_stop()
        return self.reason == 0

    def connect(self, node: NodeProcess) -> None:
        """Connect to a node, as soon as that is possible."""
        until(lambda: self.try_to_connect(node), f"{self.name} is refused: {self.reason:#x}")

    def subscribe(self, filter: str, qos: int) -> None:
        """Subscribe, and wait for the answer."""
        self._client.subscribe(filter, qos)
        assert self.answers.get(timeout=PATIENCE) == "subscribe"

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish, and wait for the answer."""
        self._client.publish(topic, payload, qos, retain)
        assert self.answers.get(timeout=PATIENCE) == "publish"

    def take(self, *, ack: bool = True) -> paho.MQTTMessage:
        """Wait for a message, and acknowledge it."""
        message = self.got.get(timeout=PATIENCE)
        if ack:
            self._client.ack(message.mid, message.qos)
        return message

    def end(self) -> None:
        """Disconnect, if it is connected."""
        self._client.disconnect()
        self._client.loop_stop()


def owner_of(nodes: Nodes, name: str) -> str:
    """The node that serves what has this name."""
    alive = next(one for one in nodes.all.values() if one.process.poll() is None)
    partition = home(name.encode(), PARTITIONS)
    found: list[str] = []

    def is_known() -> bool:
        place = alive.get("/v1/cluster")["partitions"][partition]
        found.append(place["owner"] if place["served"] else "")
        return bool(found[-1])

    until(is_known, f"nobody serves {name}")
    return found[-1]


def others(nodes: Nodes, name: str) -> list[NodeProcess]:
    return [one for key, one in nodes.all.items() if key != name]


def test_a_session_survives_its_owner_and_is_taken_up_on_any_node(own: Nodes) -> None:
    # decision 93
    owner = owner_of(own, "$mqtt/bob")
    one, two = others(own, owner)
    bob = Device("bob", expiry=1000)
    bob.connect(one)
    assert not bob.was_there()
    bob.subscribe("news/#", 2)
    ann = Device("ann")
    ann.connect(two)
    for k in range(20):
        ann.publish(f"news/{k}", b"%d" % k, 1 + k % 2)
    early = [bob.take(ack=k < 5) for k in range(20)]
    assert sorted(int(each.payload) for each in early) == list(range(20))
    # Paho tells of a message of QoS 2 when the broker has released it, so that it is done.
    lacking = {bytes(each.payload) for each in early[5:] if each.qos == 1}
    bob.publish("other", b"x", 1)  # its acknowledgements were read before this
    own.all[owner].kill()
    assert bob.is_gone.wait(PATIENCE), "its session is gone"
    bob.end()
    bob.connect(two)
    assert bob.was_there()
    again = [bob.take() for _ in lacking]
    assert {bytes(each.payload) for each in again} == lacking
    ann.end()
    late = Device("late")
    late.connect(two)
    late.publish("news/end", b"end", 2)
    assert bob.take().payload == b"end", "nothing comes twice"
    bob.end()
    late.end()


def test_retained_messages_are_found_from_every_node_and_after_a_kill(own: Nodes) -> None:
    topics = [f"state/{k}" for k in range(12)]
    ann = Device("ann")
    ann.connect(own.all["a"])
    for topic in topics:
        ann.publish(topic, topic.encode(), 1, retain=True)
    ann.end()
    for name in NAMES:
        assert found(own.all[name], "state/+", 12) == sorted(topics)
    assert found(own.all["b"], topics[3], 1) == [topics[3]]
    own.all["b"].kill()
    for name in "ac":
        assert found(own.all[name], "state/#", 12) == sorted(topics)


def found(node: NodeProcess, filter: str, count: int) -> list[str]:
    """The topics of the retained messages that a new subscriber gets."""
    eve = Device("")
    eve.connect(node)
    eve.subscribe(filter, 1)
    got = [eve.take() for _ in range(count)]
    eve.end()
    assert all(one.retain for one in got)
    return sorted(one.topic for one in got)


def test_a_will_is_published_when_the_node_of_the_client_or_of_its_session_is_killed(
    own: Nodes,
) -> None:
    owner = owner_of(own, "$mqtt/bob")
    edge, third = others(own, owner)
    eve = Device("")
    eve.connect(third)
    eve.subscribe("wills/#", 1)
    bob = Device("bob", will="wills/1")
    bob.connect(edge)
    edge.kill()
    assert eve.take().payload == b"farewell"
    bob.end()
    # The owner may have changed with the members; it must not be the node that eve is on.
    name = next(f"dan{k}" for k in range(100) if owner_of(own, f"$mqtt/dan{k}") == owner)
    dan = Device(name, will="wills/2")
    dan.connect(third)
    own.all[owner].kill()
    assert eve.take().topic == "wills/2"
    dan.end()
    eve.end()


def one_is_gone(*devices: Device) -> None:
    """Wait until one of these clients is disconnected."""
    until(lambda: any(one.is_gone.is_set() for one in devices), "all are still there")


def test_the_same_client_id_on_another_node_takes_over(own: Nodes) -> None:
    for expiry in (0, 1000):
        first, second = Device("bob", expiry=expiry), Device("bob", expiry=expiry)
        first.connect(own.all["a"])
        for name in ("b", "c", "a"):
            second.connect(own.all[name])
            one_is_gone(first, second)
            if not first.is_gone.is_set():  # registered at the same time, as the page says
                second.end()
                second.connect(own.all[name])
            assert first.is_gone.wait(PATIENCE)
            assert second.was_there() == bool(expiry)
            first.end()
            first, second = second, first
        first.end()


def test_a_session_moves_with_its_partition_when_its_owner_is_stopped(own: Nodes) -> None:
    owner = owner_of(own, "$mqtt/bob")
    one, two = others(own, owner)
    bob = Device("bob", expiry=1000)
    bob.connect(one)
    bob.subscribe("news/#", 1)
    ann = Device("ann")
    ann.connect(two)
    ann.publish("news/1", b"before", 1)
    assert bob.take(ack=False).payload == b"before"
    assert own.all[owner].stop() == 0
    assert bob.is_gone.wait(PATIENCE)
    bob.end()
    bob.connect(one)
    assert bob.was_there()
    assert bob.take().payload == b"before"
    ann.end()
    bob.end()
