"""Real clients of MQTT against the broker: paho-mqtt, and the commands of Mosquitto."""

from __future__ import annotations

import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

import wirelake
from tests.conftest import Certificates
from wirelake.config import Settings, TokenSettings, hash_token
from wirelake.errors import ConfigError
from wirelake.message import Message
from wirelake.net.server import Server
from wirelake.testing import Broker

PATIENCE = 60.0
VERSIONS = {"mqtt-3.1.1": paho.MQTTv311, "mqtt-5": paho.MQTTv5}
both_versions = pytest.mark.parametrize("dialect", VERSIONS)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(listen=("mqtt://127.0.0.1:0", "auto://127.0.0.1:0")) as opened:
        yield opened


def port_of(broker: Broker) -> int:
    return broker.listeners[0].port


class Paho:
    """A client of the Paho project, whose callbacks fill queues."""

    def __init__(self, broker: Broker, dialect: str, name: str = "", *, clean: bool = True) -> None:
        self.is_five = dialect == "mqtt-5"
        options = {} if self.is_five else {"clean_session": clean}
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=VERSIONS[dialect],
            **options,  # type: ignore[arg-type]
        )
        self.got: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.joined: queue.Queue[list[int]] = queue.Queue()
        self.connected = threading.Event()
        self.was_known = False
        self.client.on_message = lambda client, data, message: self.got.put(message)
        self.client.on_subscribe = lambda client, data, mid, codes, properties: self.joined.put(
            [code.value for code in codes]
        )
        self.client.on_connect = self._connected
        properties = None
        more: dict[str, object] = {}
        if self.is_five:
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 0 if clean else 1000
            more = {"clean_start": clean, "properties": properties}
        self.client.connect("127.0.0.1", port_of(broker), **more)  # type: ignore[arg-type]
        self.client.loop_start()
        assert self.connected.wait(PATIENCE)

    def _connected(
        self, client: object, data: object, flags: object, code: object, _: object
    ) -> None:
        self.was_known = flags.session_present  # type: ignore[attr-defined]
        self.connected.set()

    def subscribe(self, filter: str, qos: int) -> list[int]:
        """Subscribe, and return what the broker grants."""
        self.client.subscribe(filter, qos)
        return self.joined.get(timeout=PATIENCE)

    def publish(self, topic: str, payload: bytes, qos: int, *, retain: bool = False) -> None:
        """Publish, and wait until that is done."""
        self.client.publish(topic, payload, qos, retain).wait_for_publish(PATIENCE)

    def next(self) -> tuple[str, bytes, int]:
        """Return topic, payload and QoS of the next message."""
        message = self.got.get(timeout=PATIENCE)
        return message.topic, bytes(message.payload), message.qos

    def close(self) -> None:
        """Disconnect."""
        self.client.disconnect()
        self.client.loop_stop()


@both_versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_subscribes(broker: Broker, dialect: str, qos: int) -> None:
    receiver, sender = Paho(broker, dialect), Paho(broker, dialect)
    topic = f"{dialect}/{qos}"
    assert receiver.subscribe(f"{dialect}/+", qos) == [qos]
    for k in range(50):
        sender.publish(topic, b"%d" % k, qos)
    assert [receiver.next() for _ in range(50)] == [(topic, b"%d" % k, qos) for k in range(50)]
    receiver.close()
    sender.close()


@both_versions
def test_paho_comes_back_to_its_session(broker: Broker, dialect: str) -> None:
    name = f"device-{dialect}"
    device = Paho(broker, dialect, name, clean=False)
    assert not device.was_known
    device.subscribe(f"back/{dialect}", 2)
    device.close()
    sender = Paho(broker, dialect)
    for k in range(20):
        sender.publish(f"back/{dialect}", b"%d" % k, 1 + k % 2)
    sender.close()
    device = Paho(broker, dialect, name, clean=False)
    assert device.was_known
    came = [int(device.next()[1]) for _ in range(20)]
    # Paho hands out a message of QoS 2 later, once it was released.
    assert [k for k in came if k % 2 == 0] == list(range(0, 20, 2))
    assert [k for k in came if k % 2] == list(range(1, 20, 2))
    device.close()


@both_versions
@pytest.mark.parametrize("other", ["kobold-3", "boson-text", "tmq-1.01"])
async def test_paho_and_our_client_of_another_dialect_understand_each_other(
    broker: Broker, dialect: str, other: str
) -> None:
    device = Paho(broker, dialect)
    device.subscribe("to/device", 1)
    port = broker.listeners[1].port
    async with wirelake.connect(f"{other}://127.0.0.1:{port}") as client:
        async with client.subscribe("from/device") as arriving:
            device.publish("from/device", b"hello", 1)
            message: Message = await anext(arriving)
            assert message.payload == b"hello"
        await client.publish("to/device", b"hi")
        assert device.next()[:2] == ("to/device", b"hi")
    device.close()


@both_versions
def test_the_commands_of_mosquitto_publish_and_subscribe(broker: Broker, dialect: str) -> None:
    if shutil.which("mosquitto_sub") is None:
        pytest.skip("mosquitto-clients is not installed (scripts/setup)")
    version = "mqttv5" if dialect == "mqtt-5" else "mqttv311"
    common = ["-h", "127.0.0.1", "-p", str(port_of(broker)), "-V", version]
    topic = f"mosquitto/{dialect}"
    send = ["mosquitto_pub", *common, "-t", topic]
    subprocess.run([*send, "-q", "1", "-r", "-m", "kept"], check=True, timeout=PATIENCE)
    receiver = subprocess.Popen(
        ["mosquitto_sub", *common, "-t", topic, "-q", "2", "-C", "4", "-W", "60"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert receiver.stdout is not None
    assert receiver.stdout.readline() == "kept\n"  # so it has subscribed
    for qos in "012":
        subprocess.run([*send, "-q", qos, "-m", f"qos {qos}"], check=True, timeout=PATIENCE)
    said, _ = receiver.communicate(timeout=PATIENCE)
    assert said.splitlines() == ["qos 0", "qos 1", "qos 2"]


@both_versions
def test_the_commands_of_mosquitto_come_over_tls_with_their_token(
    certificates: Certificates, dialect: str
) -> None:
    if shutil.which("mosquitto_sub") is None:
        pytest.skip("mosquitto-clients is not installed (scripts/setup)")
    version = "mqttv5" if dialect == "mqtt-5" else "mqttv311"
    token = hash_token("secret")
    may = TokenSettings(name="plant", hash=token, publish=("#",), subscribe=("#",))
    listen = ("mqtt+tls://127.0.0.1:0",)
    with Broker(listen=listen, tls=certificates.tls, tokens=(may,)) as broker:
        place = ["-h", "localhost", "-p", str(port_of(broker)), "-V", version]
        common = [*place, "--cafile", str(certificates.folder / "ca.pem"), "-t", "a", "-q", "1"]

        def publish(*who: str) -> subprocess.CompletedProcess[str]:
            command = ["mosquitto_pub", *common, *who, "-r", "-m", "kept"]
            return subprocess.run(
                command, capture_output=True, text=True, timeout=PATIENCE, check=False
            )

        assert publish("-u", "any", "-P", "secret").returncode == 0
        assert publish("-u", "secret").returncode == 0
        for who in ([], ["-u", "any", "-P", "wrong"]):
            refused = publish(*who)
            assert refused.returncode != 0
            assert "uthor" in refused.stderr or "ad user name" in refused.stderr.lower()
        listen_once = ["mosquitto_sub", *common, "-u", "secret", "-C", "1", "-W", "60"]
        heard = subprocess.run(
            listen_once, capture_output=True, text=True, timeout=PATIENCE, check=True
        )
        assert heard.stdout == "kept\n"


async def test_a_default_port_that_is_taken_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = Server.configured(Settings(listen=("mqtt://127.0.0.1:0",)))
    (listener,) = await taken.start()
    urls = ("auto://127.0.0.1:0", str(listener))
    monkeypatch.setattr("wirelake.config.default_listeners", lambda: urls)
    server = Server.configured(Settings(listen=urls))
    assert [one.family for one in await server.start()] == ["auto"]
    (event,) = server.node.vitals.events
    assert event["event"] == "port_taken"
    assert str(listener.port) in str(event["text"])
    await server.stop()
    only = Server.configured(Settings(listen=(str(listener),)))
    with pytest.raises(ConfigError, match="in use"):
        await only.start()
    asked = Server.configured(Settings(listen=("auto://127.0.0.1:0", str(listener), urls[0])))
    with pytest.raises(ConfigError, match="in use"):
        await asked.start()
    await asked.stop()
    await taken.stop()
