"""What the broker does for clients of MQTT, on a desk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from tests.broker.desk import Client, Desk
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.dialects.codec import encoder, scanner
from wirelake.dialects.mqtt.codes import Packet, Reason
from wirelake.errors import ProtocolError
from wirelake.journal.engine import Engine
from wirelake.message import Flag, Message, Op, Parameters
from wirelake.wire import FrameTable

VERSIONS = ["mqtt-3.1.1", "mqtt-5"]
both_versions = pytest.mark.parametrize("dialect", VERSIONS)
#: What a client says whose session lasts.
LASTING = {"mqtt-3.1.1": {"clean": ""}, "mqtt-5": {"clean": "", "session_expiry": "1000"}}


@pytest.fixture
def desk() -> Desk:
    return Desk()


class Device(Client):
    """A client of MQTT, packet by packet."""

    def __init__(self, desk: Desk, dialect: str = "mqtt-5", name: str = "", **said: str) -> None:
        super().__init__(desk, dialect)
        self.name = name
        self.connect(**said)

    def connect(self, **said: str) -> None:
        """CONNECT; the session ends with the connection unless something else is said."""
        given = {"clean": "1", "keepalive": "0", **said}
        headers = {f"mqtt.{name}": text for name, text in given.items() if text}
        self.send(Message(op=Op.HANDSHAKE, source=self.name, headers=headers))
        self.opening = self.take()

    @property
    def is_welcome(self) -> bool:
        """Was the connection accepted?"""
        return [(m.op, m.content_type) for m in self.opening[:1]] == [(Op.HELLO, 0)]

    @property
    def was_known(self) -> bool:
        """Did the broker know the session?"""
        return bool(self.opening[0].flags & Flag.MORE)

    def join(self, filter: str, options: int = 0, subscription: int = 0) -> list[Message]:
        """SUBSCRIBE; return the answer and what follows it."""
        headers = {"mqtt.options": str(options)} if options else {}
        if subscription:
            headers["mqtt.subscription"] = str(subscription)
        self.send(Message(op=Op.SUBSCRIBE, address=filter, ticket=7, headers=headers))
        return self.take()

    def tell(
        self, address: str, payload: bytes, qos: int = 0, ticket: int = 1, **said: str
    ) -> None:
        """PUBLISH."""
        headers = {f"mqtt.{name}": text for name, text in said.items()}
        if qos:
            headers["mqtt.qos"] = str(qos)
        flags = Flag.ACK if qos else Flag(0)
        self.send(
            Message(
                address=address,
                payload=payload,
                ticket=ticket if qos else 0,
                headers=headers,
                flags=flags,
            )
        )

    def answer(self, kind: Packet, *tickets: int) -> None:
        """Acknowledge packets."""
        for ticket in tickets:
            self.send(Message(op=Op.ACK, content_type=kind, ticket=ticket))


def publishes(messages: list[Message]) -> list[tuple[str, bytes, str]]:
    """Address, payload and QoS of the publishes among messages."""
    return [
        (m.address, m.payload, m.headers.get("mqtt.qos", "0"))
        for m in messages
        if m.op == Op.PUBLISH
    ]


def answers(messages: list[Message]) -> list[tuple[int, int, bytes]]:
    """Type, identifier and reason of the acknowledgements among messages."""
    return [(m.content_type, m.ticket, m.payload) for m in messages if m.op == Op.ACK]


@both_versions
def test_a_client_connects_and_is_told_so(desk: Desk, dialect: str) -> None:
    device = Device(desk, dialect, "dev")
    assert device.is_welcome
    assert not device.was_known
    assert device.session.client_id == "dev"


@both_versions
def test_whatever_comes_before_connect_ends_the_connection(desk: Desk, dialect: str) -> None:
    client = Client(desk, dialect)
    client.send(Message(address="a", payload=b"x"))
    assert not client.is_open


def test_a_client_without_an_id_is_told_the_one_that_it_got(desk: Desk) -> None:
    device = Device(desk)
    assert device.opening[0].headers["mqtt.assigned_id"] == device.session.client_id


@both_versions
@pytest.mark.parametrize("sent", [0, 1, 2])
@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_a_message_comes_with_the_lower_of_two_qualities_of_service(
    desk: Desk, dialect: str, sent: int, wanted: int
) -> None:
    receiver, sender = Device(desk, dialect), Device(desk, dialect)
    assert receiver.join("a/#", wanted)[0].payload == bytes([wanted])
    sender.tell("a/b", b"x", sent)
    kinds = {0: [], 1: [(Packet.PUBACK, 1, b"")], 2: [(Packet.PUBREC, 1, b"")]}
    assert answers(sender.take()) == kinds[sent]
    assert publishes(receiver.take()) == [("a/b", b"x", str(min(sent, wanted)))]


@both_versions
def test_a_message_of_qos_2_that_is_sent_again_is_published_once(desk: Desk, dialect: str) -> None:
    receiver, sender = Device(desk, dialect), Device(desk, dialect)
    receiver.join("a")
    for _ in range(3):
        sender.tell("a", b"once", 2, ticket=9)
    assert answers(sender.take()) == [(Packet.PUBREC, 9, b"")] * 3
    sender.answer(Packet.PUBREL, 9)
    assert answers(sender.take()) == [(Packet.PUBCOMP, 9, b"")]
    sender.tell("a", b"other", 2, ticket=9)  # the same identifier is another message now
    assert [payload for _, payload, _ in publishes(receiver.take())] == [b"once", b"other"]


@both_versions
def test_distinct_messages_with_the_same_identifier_are_all_kept(desk: Desk, dialect: str) -> None:
    # decision 82
    desk.client("kobold-3").send(Message(op=Op.ENQUEUE, address="jobs", payload=b"first"))
    sender = Device(desk, dialect, "sender")
    for k in range(3):
        sender.tell("jobs", b"%d" % k, 1, ticket=1)
    assert len(answers(sender.take())) == 3
    assert len(desk.node.queues.get("jobs")) == 4


@both_versions
def test_the_receiver_of_qos_2_is_told_when_it_may_forget(desk: Desk, dialect: str) -> None:
    receiver, sender = Device(desk, dialect), Device(desk, dialect)
    receiver.join("a", 2)
    sender.tell("a", b"x", 2)
    (message,) = [m for m in receiver.take() if m.op == Op.PUBLISH]
    receiver.answer(Packet.PUBREC, message.ticket)
    assert answers(receiver.take()) == [(Packet.PUBREL, message.ticket, b"")]
    receiver.answer(Packet.PUBCOMP, message.ticket)
    assert receiver.take() == []


@both_versions
def test_what_is_retained_comes_to_those_who_subscribe_later(desk: Desk, dialect: str) -> None:
    other = desk.client("kobold-3")
    other.subscribe("#")
    sender = Device(desk, dialect)
    sender.tell("a/b", b"old", 1, retain="1")
    sender.tell("a/b", b"kept", 1, retain="1")
    sender.tell("a/c", b"too", retain="1")
    assert other.payloads() == [b"old", b"kept", b"too"]  # a publish like any other
    late = Device(desk, dialect)
    came = late.join("a/+", 1)
    assert came[0].op == Op.OK
    assert sorted(publishes(came)) == [("a/b", b"kept", "1"), ("a/c", b"too", "0")]
    assert all(m.headers["mqtt.retain"] == "1" for m in came[1:])
    later = desk.client("kobold-3")
    later.send(Message(op=Op.SUBSCRIBE, address="a/+"))
    assert later.payloads() == []
    sender.tell("a/b", b"", retain="1")
    assert publishes(Device(desk, dialect).join("a/#")) == [("a/c", b"too", "0")]


def test_a_subscription_says_whether_it_wants_what_is_retained(desk: Desk) -> None:
    Device(desk).tell("a", b"kept", retain="1")
    device = Device(desk)
    assert publishes(device.join("a", 0x20)) == []  # never
    assert publishes(device.join("a", 0x10)) == []  # if it is new, and it is not
    assert publishes(device.join("a", 0)) == [("a", b"kept", "0")]
    assert publishes(Device(desk).join("a", 0x10)) == [("a", b"kept", "0")]


def test_a_mark_of_retained_messages_is_kept_only_where_it_is_wanted(desk: Desk) -> None:
    plain, keeping = Device(desk), Device(desk)
    plain.join("a", 1)
    keeping.join("a", 1 | 8)
    Device(desk).tell("a", b"x", 1, retain="1")
    assert [m.headers.get("mqtt.retain") for m in plain.take()] == [None]
    assert [m.headers.get("mqtt.retain") for m in keeping.take()] == ["1"]


def test_a_client_that_wants_none_of_its_own_gets_none(desk: Desk) -> None:
    device, other = Device(desk), Device(desk)
    device.join("a", 4)
    device.tell("a", b"mine")
    other.tell("a", b"other's")
    assert publishes(device.take()) == [("a", b"other's", "0")]


def test_a_message_names_the_subscription_that_it_comes_for(desk: Desk) -> None:
    device = Device(desk)
    device.join("a/#", 1, subscription=300)
    sender = Device(desk)
    for qos in (0, 1):
        sender.tell("a/b", b"x" * 120, qos, content_type="text/plain")
    came = device.take()
    assert [m.headers["mqtt.subscription"] for m in came] == ["300", "300"]
    assert [m.headers["mqtt.content_type"] for m in came] == ["text/plain"] * 2
    assert [m.payload for m in came] == [b"x" * 120] * 2


@both_versions
@pytest.mark.parametrize("other", VERSIONS)
def test_a_session_that_lasts_is_sent_its_own_version(desk: Desk, dialect: str, other: str) -> None:
    device = Device(desk, dialect, "dev", **LASTING[dialect])
    for qos in range(3):
        device.join(f"{qos}", qos)
    for qos in range(3):
        Device(desk, other).tell(f"{qos}", b"x", 2, retain="1")
    assert [one[1] for one in publishes(device.take())] == [b"x"] * 3


@both_versions
@pytest.mark.parametrize("lasting", [False, True])
def test_a_message_that_several_filters_match_comes_once(
    desk: Desk, dialect: str, lasting: bool
) -> None:  # decision 83
    said = LASTING[dialect] if lasting else {}
    device, sender = Device(desk, dialect, "dev", **said), Device(desk, dialect)
    device.join("a/#", 0)
    device.join("a/b", 2)
    device.join("+/b", 1)
    sender.tell("a/b", b"all", 2)
    sender.tell("a/c", b"one", 2, ticket=2)
    assert publishes(device.take()) == [("a/b", b"all", "2"), ("a/c", b"one", "0")]
    device.send(Message(op=Op.UNSUBSCRIBE, address="a/b", ticket=9))
    sender.tell("a/b", b"two", 2, ticket=3)
    assert publishes(device.take()) == [("a/b", b"two", "1")]
    device.session.lost("reset")
    sender.tell("a/b", b"gone", 1, ticket=4)
    again = Device(desk, dialect, "dev", **said)
    assert again.was_known == lasting
    came = publishes(again.opening)
    assert [one for one in came if one[1] == b"gone"] == [("a/b", b"gone", "1")] * lasting


def test_a_message_that_several_filters_match_tells_all_identifiers(desk: Desk) -> None:
    device, sender = Device(desk, name="dev"), Device(desk)
    device.join("a/#", 1, subscription=2)
    device.join("a/b", 0, subscription=300)
    device.join("+/+", 2)
    device.received.clear()
    sender.tell("a/b", b"x", 2)
    properties = b"\x05\x0b\x02\x0b\xac\x02"
    assert bytes(device.received) == b"4\x0e\x00\x03a/b\x00\x01" + properties + b"x"


def test_what_a_client_published_itself_comes_by_filters_that_want_it(desk: Desk) -> None:
    device, sender = Device(desk, name="dev"), Device(desk)
    device.join("a/#", 2 | 4)  # no local
    device.join("a/+", 1)
    for one in (device, sender):
        one.tell("a/b", b"x", 2)
    assert publishes(device.take()) == [("a/b", b"x", "1"), ("a/b", b"x", "2")]
    device.send(Message(op=Op.UNSUBSCRIBE, address="a/+", ticket=9))
    device.tell("a/b", b"x", 2, ticket=2)
    assert publishes(device.take()) == []


@both_versions
def test_a_will_is_published_when_the_connection_is_lost(desk: Desk, dialect: str) -> None:
    watcher = Device(desk, dialect)
    watcher.join("gone/+", 1)
    device = Client(desk, dialect)
    headers = {"mqtt.clean": "1", "mqtt.keepalive": "0", "mqtt.will": "1", "mqtt.will_retain": "1"}
    connect = Message(
        op=Op.HANDSHAKE, source="d", headers=headers, address="gone/d", payload=b"bye"
    )
    device.send(connect)
    device.session.lost("reset")
    assert publishes(watcher.take()) == [("gone/d", b"bye", "1")]
    assert publishes(Device(desk, dialect).join("gone/#", 1)) == [("gone/d", b"bye", "1")]
    device = Client(desk, dialect)
    device.send(connect, Message(op=Op.TERMINATE))
    assert publishes(watcher.take()) == []  # it said goodbye


def test_a_will_waits_as_long_as_it_says_and_not_for_a_client_that_comes_back(desk: Desk) -> None:
    watcher = Device(desk)
    watcher.join("w", 0)

    def connect() -> Client:
        device = Client(desk, "mqtt-5")
        headers = {
            "mqtt.keepalive": "0",
            "mqtt.session_expiry": "100",
            "mqtt.will": "0",
            "mqtt.will_properties": "1800000005",
        }
        device.send(
            Message(op=Op.HANDSHAKE, source="d", headers=headers, address="w", payload=b"x")
        )
        return device

    connect().session.lost("reset")
    desk.pass_time(3)
    again = connect()
    desk.pass_time(10)
    assert publishes(watcher.take()) == []
    again.session.lost("reset")
    desk.pass_time(4)
    assert publishes(watcher.take()) == []
    desk.pass_time(2)
    assert publishes(watcher.take()) == [("w", b"x", "0")]


@both_versions
def test_a_session_that_lasts_gets_what_came_meanwhile(desk: Desk, dialect: str) -> None:
    device = Device(desk, dialect, "dev", **LASTING[dialect])
    assert not device.was_known
    device.join("a/#", 1)
    device.session.lost("reset")
    sender = Device(desk, dialect)
    for k in range(3):
        sender.tell(f"a/{k}", b"%d" % k, 1)
    sender.tell("a/0", b"lost", 0)
    again = Device(desk, dialect, "dev", **LASTING[dialect])
    assert again.was_known
    assert publishes(again.opening) == [(f"a/{k}", b"%d" % k, "1") for k in range(3)]
    again.answer(Packet.PUBACK, *[m.ticket for m in again.opening if m.op == Op.PUBLISH])
    sender.tell("a/9", b"live", 1)
    assert publishes(again.take()) == [("a/9", b"live", "1")]


@both_versions
def test_what_was_not_acknowledged_is_sent_again_under_its_identifier(
    desk: Desk, dialect: str
) -> None:
    device = Device(desk, dialect, "dev", **LASTING[dialect])
    device.join("a", 2)
    sender = Device(desk, dialect)
    for k in range(3):
        sender.tell("a", b"%d" % k, 2, ticket=k + 1)
    first = [m for m in device.take() if m.op == Op.PUBLISH]
    device.answer(Packet.PUBREC, first[0].ticket)
    device.answer(Packet.PUBCOMP, first[0].ticket)
    device.session.lost("reset")
    again = Device(desk, dialect, "dev", **LASTING[dialect])
    second = [m for m in again.opening if m.op == Op.PUBLISH]
    assert [(m.payload, m.ticket) for m in second] == [(m.payload, m.ticket) for m in first[1:]]


@both_versions
def test_a_session_that_begins_anew_knows_nothing(desk: Desk, dialect: str) -> None:
    Device(desk, dialect, "dev", **LASTING[dialect]).join("a", 1)
    again = Device(desk, dialect, "dev")
    assert not again.was_known
    Device(desk, dialect).tell("a", b"x", 1)
    assert publishes(again.take()) == []


def test_a_session_ends_when_its_time_is_up(desk: Desk) -> None:
    device = Device(desk, "mqtt-5", "dev", clean="", session_expiry="5")
    device.join("a", 1)
    device.session.lost("reset")
    assert [queue.name for queue in desk.node.engine.queues()] == ["$mqtt/dev"]
    desk.pass_time(6)
    assert desk.node.engine.queues() == []
    assert not Device(desk, "mqtt-5", "dev", clean="", session_expiry="5").was_known


def test_a_message_that_waited_too_long_is_not_sent(desk: Desk) -> None:
    device = Device(desk, "mqtt-5", "dev", clean="", session_expiry="1000")
    device.join("a", 1)
    device.session.lost("reset")
    sender = Device(desk)
    sender.send(
        Message(address="a", payload=b"short", ttl=2000, ticket=1, flags=Flag.ACK, headers={}),
        Message(address="a", payload=b"long", ttl=60_000, ticket=2, flags=Flag.ACK, headers={}),
    )
    desk.pass_time(5)
    came = Device(desk, "mqtt-5", "dev", clean="", session_expiry="1000").opening
    assert [(m.payload, m.ttl) for m in came if m.op == Op.PUBLISH] == [(b"long", 55_000)]


@both_versions
def test_a_client_takes_over_from_its_earlier_connection(desk: Desk, dialect: str) -> None:
    first = Device(desk, dialect, "dev")
    second = Device(desk, dialect, "dev")
    assert second.is_welcome
    assert not first.is_open
    told = [m.content_type for m in first.take()]
    assert told == ([Reason.TAKEN_OVER] if dialect == "mqtt-5" else [])


@both_versions
def test_a_client_that_is_silent_for_too_long_is_disconnected(desk: Desk, dialect: str) -> None:
    device = Device(desk, dialect, "dev", keepalive="10")
    desk.pass_time(14)
    device.send(Message(op=Op.PING))
    assert [m.op for m in device.take()] == [Op.PONG]
    desk.pass_time(14)
    assert device.is_open
    desk.pass_time(3)
    assert not device.is_open


@both_versions
def test_a_group_shares_what_is_published(desk: Desk, dialect: str) -> None:  # decision 83
    members = [Device(desk, dialect) for _ in range(2)]
    for member in members:
        member.join("$share/g/a/#", 1)
    everything = Device(desk, dialect)
    everything.join("a/#")
    sender = Device(desk, dialect)
    for k in range(6):
        sender.tell("a/b", b"%d" % k, 1)
    shares = [[payload for _, payload, _ in publishes(one.take())] for one in members]
    assert [len(share) for share in shares] == [3, 3]
    assert sorted(shares[0] + shares[1]) == [b"%d" % k for k in range(6)]
    assert len(publishes(everything.take())) == 6


@both_versions
def test_a_client_consumes_a_queue_and_acknowledges_its_messages(desk: Desk, dialect: str) -> None:
    producer = desk.client("kobold-3")
    for payload in (b"1", b"2"):
        producer.send(Message(op=Op.ENQUEUE, address="jobs", payload=payload))
    worker = Device(desk, dialect)
    assert publishes(worker.join("$share/g/jobs", 1)) == [("jobs", b"1", "1"), ("jobs", b"2", "1")]
    assert len(desk.node.queues.get("jobs")) == 2
    worker.send(Message(op=Op.PING))
    first = 60_001
    worker.answer(Packet.PUBACK, first)
    assert len(desk.node.queues.get("jobs")) == 1
    worker.session.lost("reset")
    other = Device(desk, dialect)
    assert publishes(other.join("jobs", 1)) == [("jobs", b"2", "1")]


def test_no_more_messages_are_in_flight_than_the_client_can_take(desk: Desk) -> None:
    device = Device(desk, "mqtt-5", "dev", receive_maximum="2")
    device.join("a", 1)
    sender = Device(desk)
    for k in range(5):
        sender.tell("a", b"%d" % k, 1)
    came = [m for m in device.take() if m.op == Op.PUBLISH]
    assert [m.payload for m in came] == [b"0", b"1"]
    device.answer(Packet.PUBACK, came[0].ticket)
    assert [m.payload for m in device.take()] == [b"2"]
    device.answer(Packet.PUBACK, came[1].ticket)
    assert [m.payload for m in device.take()] == [b"3"]


def test_a_packet_that_is_too_large_for_a_client_is_left_out(desk: Desk) -> None:
    device = Device(desk, "mqtt-5", "dev", maximum_packet="50")
    device.join("a", 0)
    sender = Device(desk)
    sender.tell("a", b"x" * 100)
    sender.tell("a", b"small")
    assert publishes(device.take()) == [("a", b"small", "0")]
    assert desk.node.vitals.counters["dropped.too_large"] == 1


def test_an_alias_stands_for_its_topic_on_this_connection_alone(desk: Desk) -> None:
    receiver, sender = Device(desk), Device(desk)
    receiver.join("a/#")
    sender.say(bytes.fromhex("3009 0003 612f62 03 230001 ".replace(" ", "")))
    sender.say(bytes.fromhex("3007 0000 03 230001 78".replace(" ", "")))
    assert publishes(receiver.take()) == [("a/b", b"", "0"), ("a/b", b"x", "0")]
    sender.say(bytes.fromhex("3007 0000 03 230041 78".replace(" ", "")))  # 65 of 64
    assert not sender.is_open


def test_a_request_of_mqtt_reaches_a_service_and_its_reply_comes_back(desk: Desk) -> None:
    service = desk.client("kobold-3")
    service.send(Message(op=Op.SERVE, address="svc"))
    service.take()
    device = Device(desk)
    device.send(
        Message(
            address="svc",
            payload=b"?",
            correlation_id="c-1",
            headers={"mqtt.response": "re/ply", "k": "v"},
        )
    )
    (request,) = service.take()
    assert (request.op, request.payload, dict(request.headers)) == (Op.REQUEST, b"?", {"k": "v"})
    service.send(Message(op=Op.REPLY, correlation_id=request.correlation_id, payload=b"!"))
    (reply,) = device.take()
    assert (reply.address, reply.payload, reply.correlation_id) == ("re/ply", b"!", "c-1")


def test_a_service_of_mqtt_answers_requests_of_other_dialects(desk: Desk) -> None:  # decision 86
    service = Device(desk)
    service.join("$serve/svc")
    client = desk.client("kobold-3")
    client.send(Message(op=Op.REQUEST, address="svc", correlation_id="1", payload=b"?"))
    (request,) = service.take()
    assert (request.address, request.payload) == ("svc", b"?")
    service.tell(request.headers["mqtt.response"], b"!")
    (reply,) = client.take()
    assert (reply.op, reply.correlation_id, reply.payload) == (Op.REPLY, "1", b"!")


def test_a_refused_publish_has_a_reason(desk: Desk) -> None:
    device = Device(desk)
    device.tell("$reserved", b"x", 1)
    device.tell("a/+", b"x", 2, ticket=2)
    assert answers(device.take()) == [
        (Packet.PUBACK, 1, bytes([Reason.BAD_TOPIC])),
        (Packet.PUBREC, 2, bytes([Reason.BAD_TOPIC])),
    ]


@both_versions
def test_rights_are_those_of_the_token_that_is_the_password(desk: Desk, dialect: str) -> None:
    # decision 85
    mine = Rights("mine", publish=("out/#",), subscribe=("in/#",))
    clients = desk.node.clients
    clients.rights_of_strangers = Rights("stranger")
    clients.rights_of_token = {"secret": mine}.get
    stranger = Device(desk, dialect, "dev")
    assert not stranger.is_welcome
    wrong = Client(desk, dialect)
    wrong.open("dev", "", "wrong")
    assert wrong.opening[0].content_type == (0x86 if dialect == "mqtt-5" else 4)
    known = Client(desk, dialect)
    known.open("dev", "", "secret")
    assert known.opening[0].content_type == 0
    for filter in ("in/a", "out/a"):
        known.send(Message(op=Op.SUBSCRIBE, address=filter, ticket=3))
    codes = [m.payload[0] for m in known.take()]
    assert codes == [0, Reason.NOT_AUTHORIZED if dialect == "mqtt-5" else 0x80]
    known.send(Message(address="in/a", payload=b"x", flags=Flag.ACK, ticket=5))
    refused = answers(known.take())
    expected = bytes([Reason.NOT_AUTHORIZED]) if dialect == "mqtt-5" else b""
    assert refused == [(Packet.PUBACK, 5, expected)]
    assert desk.node.vitals.counters["refused.unauthorized"] >= 2


def test_enhanced_authentication_is_refused_clearly(desk: Desk) -> None:
    device = Client(desk, "mqtt-5")
    headers = {"mqtt.clean": "1", "mqtt.keepalive": "0", "mqtt.auth_method": "SCRAM"}
    device.send(Message(op=Op.HANDSHAKE, source="d", headers=headers))
    (answer,) = device.take()
    assert answer.content_type == Reason.BAD_AUTH_METHOD
    assert "not offered" in answer.headers["mqtt.reason"]


def test_quotas_hold_for_sessions_retained_messages_and_what_waits(desk: Desk) -> None:
    desk.node.quotas.change(sessions=1, session_messages=2, retained=1)
    device = Device(desk, "mqtt-5", "dev", clean="", session_expiry="100")
    device.join("a", 1)
    second = Device(desk, "mqtt-5", "other", clean="", session_expiry="100")
    assert "quotas.sessions" in second.opening[0].headers["mqtt.reason"]
    device.session.lost("reset")
    sender = Device(desk)
    for k in range(3):
        sender.tell("a", b"%d" % k, 1)
    sender.take()
    assert desk.node.vitals.counters["dropped.session_messages"] == 1
    sender.tell("r/1", b"x", 1, retain="1")
    sender.tell("r/2", b"x", 1, retain="1")
    assert [code for _, _, code in answers(sender.take())] == [b"", bytes([Reason.QUOTA])]


def test_what_waits_for_a_session_has_a_limit_of_bytes(desk: Desk) -> None:
    desk.node.quotas.change(session_bytes=10_000)
    device = Device(desk, "mqtt-5", "dev", clean="", session_expiry="100")
    device.join("a", 1)
    device.session.lost("reset")
    sender = Device(desk)
    for _ in range(20):
        sender.tell("a", b"x" * 1000, 1)
    assert desk.node.vitals.counters["dropped.session_bytes"] == 11
    device = Device(desk, "mqtt-5", "dev", clean="", session_expiry="100")
    assert len(publishes(device.opening)) == 9
    device.answer(Packet.PUBACK, *(m.ticket for m in device.opening if m.op == Op.PUBLISH))
    sender.tell("a", b"there is room again", 1)
    assert desk.node.vitals.counters["dropped.session_bytes"] == 11


def test_wills_have_a_limit_of_bytes_in_all(desk: Desk) -> None:
    desk.node.quotas.change(will_bytes=1024)

    def connect(name: str) -> Client:
        client = Client(desk, "mqtt-5")
        headers = {"mqtt.clean": "1", "mqtt.keepalive": "0", "mqtt.will": "0"}
        client.send(
            Message(op=Op.HANDSHAKE, source=name, address="w", payload=b"x" * 900, headers=headers)
        )
        client.opening = client.take()
        return client

    first, second = connect("one"), connect("two")
    assert first.opening[0].content_type == 0
    assert second.opening[0].content_type == Reason.BUSY
    assert "(quotas.will_bytes)" in second.opening[0].headers["mqtt.reason"]
    first.session.lost("reset")
    assert connect("two").opening[0].content_type == 0


@both_versions
def test_a_session_that_lasts_belongs_to_its_token_for_as_long(desk: Desk, dialect: str) -> None:
    clients = desk.node.clients
    alice, bob = (Rights(name, publish=("#",), subscribe=("#",)) for name in ("alice", "bob"))
    clients.rights_of_strangers = Rights("stranger")
    clients.rights_of_token = {"a": alice, "b": bob}.get
    clients.all_rights = [clients.rights_of_strangers, alice, bob]

    def connect(token: str, **said: str) -> Client:
        client = Client(desk, dialect)
        headers = {f"mqtt.{name}": text for name, text in {"keepalive": "0", **said}.items()}
        parameters = Parameters(token=token)
        client.send(
            Message(
                op=Op.HANDSHAKE,
                source="dev",
                headers={name: text for name, text in headers.items() if text},
                parameters=parameters,
            )
        )
        client.opening = client.take()
        return client

    first = connect("a", **LASTING[dialect])
    first.send(Message(op=Op.SUBSCRIBE, address="x", ticket=1, headers={"mqtt.options": "1"}))
    first.session.lost("reset")
    sender = Client(desk, "kobold-3")
    sender.open("sender", "", "b")
    sender.send(Message(address="x", payload=b"for dev", flags=Flag.ACK))
    desk.pass_time(clients.reserve + 1, step=60.0)
    thief = connect("b", clean="1")
    assert thief.opening[0].content_type != 0
    other = Client(desk, "kobold-3")
    other.open("dev", "", "b")
    assert "error" in [one.op.label for one in other.opening]
    again = connect("a", **LASTING[dialect])
    assert publishes(again.opening + again.take()) == [("x", b"for dev", "1")]
    # Nobody has that token any more: the id is free.
    again.session.lost("reset")
    clients.all_rights = [clients.rights_of_strangers, bob]
    desk.pass_time(clients.reserve + 1, step=60.0)
    assert connect("b", clean="1").opening[0].content_type == 0


def test_a_publisher_cannot_have_more_of_qos_2_under_way_than_it_was_told(desk: Desk) -> None:
    sender = Device(desk)
    most = int(sender.opening[0].headers["mqtt.receive_maximum"])
    for ticket in range(1, most + 2):
        sender.tell("a", b"x", 2, ticket=ticket)
    assert not sender.is_open
    assert sender.take()[-1].content_type == Reason.TOO_MANY


@pytest.fixture
def restart(tmp_path: Path) -> Iterator[Callable[[], Desk]]:
    """Opens a broker on a folder, again and again."""
    engines: list[Engine] = []

    def opened() -> Desk:
        for engine in engines:
            engine.close()
        engines.clear()
        engines.append(Engine.on_disk(tmp_path))
        return Desk(Node(engines[0], epoch=1_700_000_000.0))

    yield opened
    for engine in engines:
        engine.close()


@both_versions
def test_sessions_and_retained_messages_survive_the_broker(
    restart: Callable[[], Desk], dialect: str
) -> None:  # decision 84
    desk = restart()
    device = Device(desk, dialect, "dev", **LASTING[dialect])
    device.join("a/#", 2)
    sender = Device(desk, dialect, "sender", **LASTING[dialect])
    sender.tell("a/1", b"kept", 1, retain="1")
    sender.tell("a/2", b"twice", 2, ticket=5)
    before = {m.payload: m.ticket for m in device.take() if m.op == Op.PUBLISH}
    desk = restart()
    Device(desk, dialect).tell("a/3", b"later", 1)
    device = Device(desk, dialect, "dev", **LASTING[dialect])
    assert device.was_known
    came = {m.payload: m.ticket for m in device.opening if m.op == Op.PUBLISH}
    assert list(came) == [b"kept", b"twice", b"later"]
    assert before.items() <= came.items()  # the same identifiers
    assert publishes(Device(desk, dialect).join("a/1", 1)) == [("a/1", b"kept", "1")]
    sender = Device(desk, dialect, "sender", **LASTING[dialect])
    sender.tell("a/2", b"twice", 2, ticket=5)  # it had no PUBREC, as far as it knows
    assert answers(sender.take()) == [(Packet.PUBREC, 5, b"")]
    assert publishes(device.take()) == []


@both_versions
def test_a_message_of_qos_2_and_its_identifier_are_in_one_partition(
    restart: Callable[[], Desk], dialect: str
) -> None:  # decision 89
    desk = restart()
    engine = desk.node.engine
    sender = Device(desk, dialect, "sender", **LASTING[dialect])
    topics = [f"a/{k}" for k in range(12)]
    for ticket, topic in enumerate(topics, 1):
        sender.tell(topic, b"x", 2, ticket=ticket)

    def identifiers() -> dict[int, list[int]]:
        """The identifiers that the journal has, by partition."""
        return {
            partition: msgspec.json.decode(entry.value or b"[]")
            for partition, entry in desk.node.engine.entries()
            if entry.key == "$mqtt/once/sender"
        }

    wanted: dict[int, list[int]] = {}
    for ticket, topic in enumerate(topics, 1):
        wanted.setdefault(engine.home(topic), []).append(ticket)
    assert len(wanted) > 1
    assert identifiers() == wanted
    desk = restart()
    sender = Device(desk, dialect, "sender", **LASTING[dialect])
    assert sender.was_known
    sender.answer(Packet.PUBREL, *range(1, 12))
    assert answers(sender.take()) == [(Packet.PUBCOMP, ticket, b"") for ticket in range(1, 12)]
    assert identifiers() == {engine.home("a/11"): [12]}
    sender.tell("a/11", b"x", 2, ticket=12)
    assert desk.node.vitals.counters["received"] == 0
    Device(desk, dialect, "sender")  # a clean session
    assert identifiers() == {}


@both_versions
@pytest.mark.parametrize("lasting", [False, True])
def test_a_will_survives_a_broker_that_is_killed(
    tmp_path: Path, dialect: str, lasting: bool
) -> None:  # decision 88
    folder, copy = tmp_path / "data", tmp_path / "copy"
    engine = Engine.on_disk(folder)
    desk = Desk(Node(engine, epoch=1_700_000_000.0))
    given = {"clean": "1", "keepalive": "0", "will": "1", "will_retain": "1"}
    given |= LASTING[dialect] if lasting else {}
    headers = {f"mqtt.{name}": text for name, text in given.items() if text}
    for name in ("dead", "polite"):
        client = Client(desk, dialect)
        client.send(
            Message(
                op=Op.HANDSHAKE, source=name, headers=headers, address=f"gone/{name}", payload=b"x"
            )
        )
        assert client.take()[0].op == Op.HELLO
    client.send(Message(op=Op.TERMINATE))
    engine.end_turn()
    shutil.copytree(folder, copy)  # as a kill would leave it
    engine.close()
    for _ in range(2):
        engine = Engine.on_disk(copy)
        desk = Desk(Node(engine, epoch=1_700_000_000.0))
        watcher = Device(desk, dialect)
        watcher.join("gone/#", 1)
        desk.pass_time(1)
        retained = publishes(Device(desk, dialect).join("gone/#", 1))
        assert retained == [("gone/dead", b"x", "1")]
        assert not [e for _, e in engine.entries() if e.key.startswith("$mqtt/will/")]
        engine.close()


def test_other_dialects_with_parameters_are_told_the_quality_of_service(desk: Desk) -> None:
    other = desk.client("kobold-3")
    other.subscribe("a")
    Device(desk).tell("a", b"x", 2, content_type="text/plain")
    (message,) = other.take()
    assert dict(message.headers) == {"mqtt.qos": "2", "mqtt.content_type": "text/plain"}
    assert message.parameters == Parameters()


@pytest.mark.parametrize(
    ("filter", "taken"),
    [
        (b"a" * 255, True),
        (b"a" * 256, False),
        (b"$share/g/" + b"a" * 255, True),
        (b"$share/" + b"g" * 247 + b"/" + b"a" * 255, True),
        (b"$share/" + b"g" * 248 + b"/" + b"a" * 255, False),
    ],
)
def test_only_the_name_of_a_group_makes_a_filter_longer_than_an_address(
    filter: bytes, taken: bool
) -> None:
    body = b"\0\1" + len(filter).to_bytes(2) + filter + b"\0"
    size = bytes([len(body) & 127 | 128, len(body) >> 7])
    table, read = FrameTable(), scanner("mqtt-3.1.1")
    packet = b"\x82" + size + body
    if taken:
        assert read.scan(packet, table) == len(packet)
        assert table.address(0) == filter
    else:
        with pytest.raises(ProtocolError, match=f"a filter of {len(filter)} bytes; at most 255"):
            read.scan(packet, table)


@pytest.mark.parametrize("dialect", ["mqtt-3.1.1", "mqtt-5"])
def test_a_client_id_with_a_zero_has_no_form(dialect: str) -> None:
    """Another dialect can say it; MQTT has no U+0000 in strings."""
    table, writer = FrameTable(), encoder(dialect)
    table.fill([Message(op=Op.HANDSHAKE, source="a\0b"), Message(op=Op.HANDSHAKE, source="ab")])
    frames = writer.encode(table)
    assert writer.skipped == {"id": 1}
    read = FrameTable()
    assert scanner(dialect).scan(frames, read) == len(frames)
    assert [message.source for message in read.messages()] == ["ab"]
