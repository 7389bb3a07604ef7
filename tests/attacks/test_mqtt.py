"""Devices that speak MQTT and are hostile: rights, ids, tokens, and what they can make grow."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually, secret_of, token
from tests.attacks.test_identity import files_with
from wirelake.dialects.mqtt.codes import Packet, Reason
from wirelake.message import Flag, Message, Op, Parameters

VERSIONS = ["mqtt-3.1.1", "mqtt-5"]
both_versions = pytest.mark.parametrize("dialect", VERSIONS)
EVERYTHING: dict[str, Any] = {
    one: ["#"] for one in ("publish", "subscribe", "serve", "store", "declare")
}
CONFIG = (
    token("alice", **EVERYTHING)
    + token("few", publish=["mine/#"], subscribe=["mine/#"])
    + token("root", admin=True, **EVERYTHING)
)
#: What a client says whose session lasts.
LASTING: dict[str, dict[str, Any]] = {
    "mqtt-3.1.1": {"clean": ""},
    "mqtt-5": {"clean": "", "session_expiry": "100000"},
}


class Device(Client):
    """A client of MQTT that may say anything."""

    def connect(
        self, name: str = "", secret: str = "", will: Message | None = None, **said: str
    ) -> Message:
        """CONNECT with a token as the password; return CONNACK."""
        given = {"clean": "1", "keepalive": "0", **said}
        headers = {f"mqtt.{key}": text for key, text in given.items() if text}
        if will is not None:
            headers |= {"mqtt.will": "1", **will.headers}
        self.send(
            Message(
                op=Op.HANDSHAKE,
                source=name,
                address=will.address if will is not None else "",
                payload=will.payload if will is not None else b"",
                headers=headers,
                parameters=Parameters(token=secret),
            )
        )
        return self.receive()

    def join(self, filter: str, qos: int = 1) -> int:
        """SUBSCRIBE; return the code of SUBACK."""
        options = {"mqtt.options": str(qos)} if qos else {}
        self.send(Message(op=Op.SUBSCRIBE, address=filter, ticket=7, headers=options))
        for answer in self.messages():
            if answer.content_type == Packet.SUBACK and answer.op == Op.OK:
                return answer.payload[0]
        raise ConnectionError("closed by the broker")

    def tell(self, address: str, payload: bytes, qos: int = 1, **said: str) -> Message:
        """PUBLISH with QoS 1 or 2; return the acknowledgement."""
        headers = {f"mqtt.{name}": text for name, text in said.items()}
        message = Message(
            address=address,
            payload=payload,
            ticket=9,
            headers={**headers, "mqtt.qos": str(qos)},
            flags=Flag.ACK,
        )
        self.send(message)
        kind = Packet.PUBACK if qos == 1 else Packet.PUBREC
        for answer in self.messages():
            if (answer.op, answer.content_type) == (Op.ACK, kind):
                return answer
        raise ConnectionError("closed by the broker")


def published(client: Client) -> Iterator[Message]:
    """The messages that a client gets as a subscriber."""
    return (one for one in client.messages() if one.op == Op.PUBLISH)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with tokens, where alice has a queue, a service and a retained message."""
    with (
        Broker(tmp_path_factory.mktemp("mqtt"), CONFIG) as broker,
        Client(broker) as alice,
        Device(broker, "mqtt-5") as device,
    ):
        assert alice.login("victim", secret_of("alice")).op == Op.OK
        assert alice.ask(Message(op=Op.ENQUEUE, address="jobs", id="1")).op == Op.OK
        assert alice.ask(Message(op=Op.SERVE, address="svc")).op == Op.OK
        assert device.connect("alice-device", secret_of("alice")).content_type == 0
        device.tell("house/door", b"secret", retain="1")
        yield broker


@both_versions
@pytest.mark.parametrize(
    "filter",
    ["x", "#", "+/+", "house/door", "$events", "$share/g/x", "$share/g/#", "$serve/svc",
     "$serve/x", "jobs", "$share/g/jobs", "$client/victim", "$mqtt/retained/#"],
)  # fmt: skip
def test_a_filter_without_the_right_to_it_is_refused(
    broker: Broker, dialect: str, filter: str
) -> None:
    with Device(broker, dialect) as device:
        assert device.connect("", secret_of("few")).content_type == 0
        code = device.join(filter)
        assert code >= 0x80, filter
        device.send(Message(op=Op.PING))
        assert device.receive().op == Op.PONG  # and nothing that is retained


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("address", ["x", "house/door", "jobs", "svc", "$events", "$client/victim"])
def test_a_publish_without_the_right_to_it_reaches_nobody(
    broker: Broker, dialect: str, qos: int, address: str
) -> None:
    with (
        Client(broker) as alice,
        Device(broker, dialect) as device,
        Device(broker, dialect) as later,
    ):
        alice.login("", secret_of("alice"))
        alice.ask(Message(op=Op.SUBSCRIBE, address="#"))
        assert device.connect("", secret_of("few")).content_type == 0
        answer = device.tell(address, b"forged", qos, retain="1")
        if dialect == "mqtt-5":
            assert answer.payload[0] >= 0x80
        if dialect == "mqtt-5" and address == "svc":  # the same as a request
            device.send(
                Message(address="svc", payload=b"forged", headers={"mqtt.response": "mine/r"})
            )
        assert device.tell("mine/end", b"end").op == Op.ACK
        received = alice.receive()
        assert (received.address, received.payload) == ("mine/end", b"end")
        assert later.connect("", secret_of("alice")).content_type == 0
        assert later.join("#") < 0x80
        later.send(Message(op=Op.PING))
        kept = [later.receive()]
        while kept[-1].op != Op.PONG:
            kept.append(later.receive())
        assert all(one.payload != b"forged" for one in kept)
        assert broker.json("/v1/queues/jobs", secret=secret_of("alice"))["messages"] == 1


@both_versions
def test_a_stranger_gets_in_with_nothing(broker: Broker, dialect: str) -> None:
    for secret in ("", "guess"):
        with Device(broker, dialect) as device:
            refused = device.connect("somebody", secret)
            assert refused.content_type != 0
            assert device.is_closed()
    with Device(broker, dialect) as device:  # nor by going on without CONNECT
        device.send(Message(op=Op.SUBSCRIBE, address="#", ticket=1))
        assert device.is_closed()


@both_versions
def test_nobody_takes_over_the_id_of_another(broker: Broker, dialect: str) -> None:
    with Device(broker, dialect) as owner:
        assert owner.connect("dev-1", secret_of("alice")).content_type == 0
        assert owner.join("dev-1/in") < 0x80
        for secret in ("", secret_of("few")):
            with Device(broker, dialect) as thief:
                assert thief.connect("dev-1", secret).content_type != 0
        with Client(broker, "kobold-3") as thief:
            refused = thief.login("dev-1", secret_of("few"))
            assert (refused.op, refused.parameters.code) == (Op.ERROR, "conflict")
        owner.send(Message(op=Op.PING))
        assert owner.receive().op == Op.PONG
        with Device(broker, dialect) as again:  # its own token takes it over at once
            assert again.connect("dev-1", secret_of("alice")).content_type == 0
            assert owner.is_closed()


@both_versions
def test_a_will_stays_within_the_rights(broker: Broker, dialect: str) -> None:
    for address in ("house/door", "jobs", "$events"):
        with Device(broker, dialect) as device:
            will = Message(address=address, payload=b"forged", headers={"mqtt.will_retain": "1"})
            assert device.connect("", secret_of("few"), will).content_type != 0
    with Client(broker) as alice, Device(broker, dialect) as device:
        alice.login("", secret_of("alice"))
        alice.ask(Message(op=Op.SUBSCRIBE, address="#"))
        will = Message(address="mine/will", payload=b"gone")
        assert device.connect("", secret_of("few"), will).content_type == 0
        device.close()
        received = alice.receive()
        assert (received.address, received.payload) == ("mine/will", b"gone")


@both_versions
def test_a_right_that_is_taken_away_ends_wills_and_sessions_of_those_who_are_away(
    tmp_path: Path, dialect: str
) -> None:
    # decision 100
    said = LASTING[dialect]
    with Broker(tmp_path, CONFIG) as broker, Client(broker) as alice:
        alice.login("", secret_of("alice"))
        alice.ask(Message(op=Op.SUBSCRIBE, address="mine/#"))
        with Device(broker, dialect) as away:
            assert away.connect("away", secret_of("few"), **said).content_type == 0
            assert away.join("mine/secret") < 0x80
            assert away.join("mine/news") < 0x80
        with Device(broker, dialect) as device:
            will = Message(address="mine/will", payload=b"forged")
            assert device.connect("there", secret_of("few"), will).content_type == 0
            broker.configure(
                token("alice", **EVERYTHING)
                + token("few", publish=["mine/other"], subscribe=["mine/news"])
                + token("root", admin=True)
            )
            assert device.is_closed()
        alice.send(
            Message(address="mine/secret", payload=b"secret", flags=Flag.ACK, id="1"),
            Message(address="mine/news", payload=b"news", flags=Flag.ACK, id="2"),
        )
        seen = [next(published(alice)).address for _ in range(2)]
        assert seen == ["mine/secret", "mine/news"]  # and no will
        with Device(broker, dialect) as away:
            assert away.connect("away", secret_of("few"), **said).content_type == 0
            assert away.receive().payload == b"news"
        broker.configure(token("alice", **EVERYTHING))  # and without the token nothing at all
        eventually(lambda: broker.log().count("the settings were read again") == 2)
        alice.send(Message(address="mine/news", payload=b"later", flags=Flag.ACK, id="3"))
        assert next(published(alice)).payload == b"later"
        broker.configure(CONFIG)
        eventually(lambda: broker.log().count("the settings were read again") == 3)
        with Device(broker, dialect) as away:
            assert away.connect("away", secret_of("few"), **said).content_type == 0
            waited = []
            away.send(Message(op=Op.PING))
            for message in away.messages():
                if message.op == Op.PONG:
                    break
                waited.append(message.payload)
            assert b"later" not in waited


@both_versions
def test_a_token_ends_at_the_session_that_checked_it(tmp_path: Path, dialect: str) -> None:
    secret = secret_of("alice")
    with Broker(tmp_path, CONFIG) as broker, Client(broker) as alice:
        alice.login("", secret)
        alice.ask(Message(op=Op.SUBSCRIBE, address="#"))
        with Device(broker, dialect) as device:
            will = Message(address="w", payload=b"will", headers={"mqtt.will_retain": "1"})
            said = {**LASTING[dialect], "user": "somebody"}
            assert device.connect("dev", secret, will, **said).content_type == 0
            device.tell("a", b"published", retain="1")
        with Device(broker, dialect) as device:  # as the user's name alone
            assert device.connect("dev-2", "", user=secret).content_type == 0
            device.tell("a", b"published", 2)
        with Device(broker, dialect) as broken:  # and bytes that are no packet behind it
            broken.connect("dev-3", secret)
            broken.send_bytes(b"\xff" + secret.encode())
            assert broken.is_closed()
        with Device(broker, dialect) as broken:
            version = b"\4" if dialect == "mqtt-3.1.1" else b"\5"
            text = secret.encode()
            broken.send_bytes(b"\x10\x7f\0\4MQTT" + version + b"\xff\0\0" + text * 5)
            assert broken.is_closed()
        received = [alice.receive() for _ in range(3)]
        assert sorted(one.payload for one in received) == [b"published", b"published", b"will"]
        for message in received:
            assert secret not in str(message)
        for path in ("/v1/log", "/v1/log/rows", "/v1/connections", "/v1/access"):
            _, told = broker.http(path, secret=secret_of("root"))
            assert secret.encode() not in told, path
        state = str(broker.state(secret_of("root")))
        assert secret not in state
        assert secret not in broker.log()
        broker.stop()
        assert files_with(broker.data, secret.encode()) == []


LIMITS = """
[quotas]
retained = 5
retained_bytes = 100_000
sessions = 3
session_messages = 10
will_bytes = 5000
subscriptions = 20
levels = 8
unreleased = 50
aliases = 8
"""


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker without tokens and with small quotas."""
    with Broker(tmp_path_factory.mktemp("limited"), LIMITS) as broker:
        yield broker


def test_retained_messages_have_a_limit_that_is_named(limited: Broker) -> None:
    with Device(limited, "mqtt-5") as device:
        device.connect()
        told = [device.tell(f"r/{k}", b"x", retain="1") for k in range(8)]
        refused = [one for one in told if one.payload[:1] == bytes([Reason.QUOTA])]
        assert len(refused) == 3
        assert all("(quotas.retained)" in one.headers["mqtt.reason"] for one in refused)
        large = device.tell("r/0", b"x" * 200_000, retain="1")
        assert "(quotas.retained_bytes)" in large.headers["mqtt.reason"]
        for k in range(5):
            device.tell(f"r/{k}", b"", retain="1")  # given back
        assert device.tell("r/9", b"x", retain="1").payload == b""
        device.tell("r/9", b"", retain="1")


def test_sessions_and_what_waits_for_them_have_limits_that_are_named(limited: Broker) -> None:
    said = LASTING["mqtt-5"]
    for k in range(5):
        with Device(limited, "mqtt-5") as device:
            answer = device.connect(f"dev-{k}", **said)
            assert (answer.content_type == 0) == (k < 3)
            if k >= 3:
                assert "(quotas.sessions)" in answer.headers["mqtt.reason"]
            elif k == 0:
                assert device.join("waits") < 0x80
    with Device(limited, "mqtt-5") as device:
        device.connect()
        for _ in range(30):
            device.tell("waits", b"x")
    assert limited.counters()["dropped.session_messages"] == 20
    with Device(limited, "mqtt-5") as device:  # whoever has one comes back to it
        assert device.connect("dev-0", **said).content_type == 0


def test_wills_have_a_limit_that_is_named(limited: Broker) -> None:
    devices = [Device(limited, "mqtt-5") for _ in range(5)]
    will = Message(address="w", payload=b"x" * 2000)
    told = [device.connect("", "", will) for device in devices]
    assert [one.content_type for one in told] == [0, 0, Reason.BUSY, Reason.BUSY, Reason.BUSY]
    assert "(quotas.will_bytes)" in told[-1].headers["mqtt.reason"]
    for device in devices:
        device.close()


@both_versions
def test_subscriptions_and_levels_have_limits(limited: Broker, dialect: str) -> None:
    with Device(limited, dialect) as device:
        device.connect()
        codes = [device.join(f"s/{k}", 0) for k in range(30)]
        assert [code < 0x80 for code in codes] == [True] * 20 + [False] * 10
        assert device.join("/".join("a" * 9)) >= 0x80


def test_aliases_and_messages_of_qos_2_have_the_limits_that_connack_told(limited: Broker) -> None:
    for alias in (0, 9, 65535):
        with Device(limited, "mqtt-5") as device:
            told = device.connect()
            assert told.headers["mqtt.alias_maximum"] == "8"
            packet = b"\0\1a\3\x23" + alias.to_bytes(2, "big") + b"x"
            device.send_bytes(b"\x30" + bytes([len(packet)]) + packet)
            assert device.is_closed()
    with Device(limited, "mqtt-5") as device:
        most = int(device.connect().headers["mqtt.receive_maximum"])
        assert most == 50
        once = {"mqtt.qos": "2"}
        device.send(
            *(
                Message(address="a", ticket=k, headers=once, flags=Flag.ACK)
                for k in range(1, most + 2)
            )
        )
        assert device.is_closed()


@both_versions
def test_a_stranger_holds_little_before_the_token(broker: Broker, dialect: str) -> None:
    before = broker.forget_peak()
    with ExitStack() as stack:
        devices = [stack.enter_context(Device(broker, dialect)) for _ in range(20)]
        for device in devices:
            device.flood(b"\x10\xff\xff\xff\x7f" + b"\0" * MIB, 30, stalled=1.0)
        assert all(device.is_closed() for device in devices)
    assert broker.peak() - before < 32 * MIB
    assert broker.http("/healthz")[0] == 200


@both_versions
def test_a_session_with_many_filters_delays_nobody_else(tmp_path: Path, dialect: str) -> None:
    # Each subscription of a lasting session writes it anew: this is counted as its own work.
    with (
        Broker(tmp_path) as broker,
        Device(broker, dialect) as greedy,
        Client(broker) as other,
    ):
        assert greedy.connect("greedy", **LASTING[dialect]).content_type == 0
        for at in range(0, 3000, 500):
            greedy.send(
                *(Message(op=Op.SUBSCRIBE, address=f"f/{at + k}", ticket=k + 1) for k in range(500))
            )
            begun = time.monotonic()
            assert other.ask(Message(op=Op.PING)).op == Op.PONG
            assert time.monotonic() - begun < 30  # seconds on a busy machine; it would be minutes
        answered = 0
        for message in greedy.messages():
            answered += message.op == Op.OK
            if answered == 3000:
                break
        assert answered == 3000
