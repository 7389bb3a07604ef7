"""What the standards ask of a broker for MQTT, in bytes: reasons, limits of clients, wills."""

from __future__ import annotations

import pytest

from tests.broker.desk import Client, Desk
from tests.broker.test_mqtt import LASTING, Device, answers, both_versions, publishes
from wirelake.dialects.mqtt.codes import Packet, Reason
from wirelake.message import Flag, Message, Op


@pytest.fixture
def desk() -> Desk:
    return Desk()


def reasons(client: Client) -> list[int]:
    """The reasons of the DISCONNECT packets that came."""
    return [m.content_type for m in client.take() if m.op == Op.TERMINATE]


def waits(client: Client) -> bool:
    """Whether nothing more is read from a client now."""
    return client.paused


def packet(kind: int, body: bytes) -> bytes:
    """A packet of at most 127 bytes behind its length."""
    return bytes([kind, len(body)]) + body


# What a client does wrong

WRONG = {
    "a property twice": (packet(0x30, b"\0\x01a\x04\x01\x01\x01\x01x"), Reason.PROTOCOL_ERROR),
    "a property of another packet": (packet(0x30, b"\0\x01a\x03\x21\0\x05x"), Reason.MALFORMED),
    "a format of 2": (packet(0x30, b"\0\x01a\x02\x01\x02x"), Reason.PROTOCOL_ERROR),
    "an empty topic": (packet(0x30, b"\0\0\0x"), Reason.PROTOCOL_ERROR),
    "an alias of nothing": (packet(0x30, b"\0\0\x03\x23\0\x05x"), Reason.PROTOCOL_ERROR),
    "an alias of 0": (packet(0x30, b"\0\x01a\x03\x23\0\0x"), Reason.BAD_ALIAS),
    "an alias that is too high": (packet(0x30, b"\0\x01a\x03\x23\0\x41x"), Reason.BAD_ALIAS),
    "an identifier of a subscription": (
        packet(0x30, b"\0\x01a\x02\x0b\x05x"),
        Reason.PROTOCOL_ERROR,
    ),
    "a response to many topics": (
        packet(0x30, b"\0\x01a\x06\x08\0\x03b/#x"),
        Reason.PROTOCOL_ERROR,
    ),
    "a QoS of 3": (packet(0x36, b"\0\x01a\0\x01\0x"), Reason.MALFORMED),
    "a topic that is no text": (packet(0x30, b"\0\x01\xff\0x"), Reason.MALFORMED),
    "a subscription to nothing": (packet(0x82, b"\0\x01\0"), Reason.PROTOCOL_ERROR),
    "an unsubscription from nothing": (packet(0xA2, b"\0\x01\0"), Reason.PROTOCOL_ERROR),
    "a subscription with QoS 3": (packet(0x82, b"\0\x01\0\0\x01a\x03"), Reason.PROTOCOL_ERROR),
    "a wish for retained messages of 3": (
        packet(0x82, b"\0\x01\0\0\x01a\x30"),
        Reason.PROTOCOL_ERROR,
    ),
    "reserved options": (packet(0x82, b"\0\x01\0\0\x01a\x40"), Reason.MALFORMED),
    "a subscription identifier of 0": (
        packet(0x82, b"\0\x01\x02\x0b\0\0\x01a\0"),
        Reason.PROTOCOL_ERROR,
    ),
    "a group without its own": (
        packet(0x82, b"\0\x01\0\0\x0a$share/g/a\x04"),
        Reason.PROTOCOL_ERROR,
    ),
    "a second CONNECT": (
        packet(0x10, b"\0\x04MQTT\x05\x02\0<\0\0\x03dev"),
        Reason.PROTOCOL_ERROR,
    ),
    "what only a broker says": (packet(0x20, b"\0\0\0"), Reason.PROTOCOL_ERROR),
    "a session that is to last after all": (
        packet(0xE0, b"\0\x05\x11\0\0\0\x05"),
        Reason.PROTOCOL_ERROR,
    ),
}


@pytest.mark.parametrize(("said", "reason"), WRONG.values(), ids=list(WRONG))
def test_a_client_is_told_what_it_did_wrong_and_its_will_is_published(
    desk: Desk, said: bytes, reason: Reason
) -> None:
    watcher = Device(desk)
    watcher.join("#")
    device = Client(desk, "mqtt-5")
    device.say(packet(0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\x01d\0\0\x04gone\0\x03bye"))
    assert [m.op for m in device.take()] == [Op.HELLO]
    device.say(said)
    assert reasons(device) == [reason]
    assert not device.is_open
    assert publishes(watcher.take()) == [("gone", b"bye", "0")]


def test_a_packet_over_the_limit_ends_the_connection_with_its_reason(desk: Desk) -> None:
    device = Device(desk)
    device.say(b"\x30\xff\xff\xff\x7f\0\x01a\0")
    assert reasons(device) == [Reason.TOO_LARGE]


def test_names_that_are_too_long_are_told_from_packets_that_are(desk: Desk) -> None:
    long = b"\x01\x00" + b"a" * 256
    for first, reason in ((0x30, Reason.BAD_TOPIC), (0x82, Reason.BAD_FILTER)):
        device = Device(desk)
        body = long + b"\0" if first == 0x30 else b"\0\x01\0" + long + b"\0"
        device.say(bytes([first, 0x80 | len(body) & 127, len(body) >> 7]) + body)
        assert reasons(device) == [reason]


@pytest.mark.parametrize(
    ("filter", "reason"),
    [
        ("$share/", Reason.BAD_FILTER),
        ("$share/g", Reason.BAD_FILTER),
        ("$share//a", Reason.BAD_FILTER),
        ("$share/g/", Reason.BAD_FILTER),
        ("$share/g+/a", Reason.BAD_FILTER),
        ("$share/#/a", Reason.BAD_FILTER),
        ("$share/g/a/#/b", Reason.BAD_FILTER),
        ("a/#/b", Reason.BAD_FILTER),
        ("a+", Reason.BAD_FILTER),
        ("a#", Reason.BAD_FILTER),
        ("$share/g/a/#", Reason.SUCCESS),
    ],
)
@both_versions
def test_filters_are_answered_one_by_one(
    desk: Desk, dialect: str, filter: str, reason: Reason
) -> None:
    device = Device(desk, dialect)
    device.send(
        Message(op=Op.SUBSCRIBE, address="fine", ticket=1, flags=Flag.MORE),
        Message(op=Op.SUBSCRIBE, address=filter, ticket=1, flags=Flag.MORE),
        Message(op=Op.SUBSCRIBE, address="too", ticket=1, headers={"mqtt.options": "2"}),
    )
    refused = reason if dialect == "mqtt-5" or not reason else 0x80
    (answer,) = device.take()
    assert answer.payload == bytes([0, refused, 2])
    device.send(
        Message(op=Op.UNSUBSCRIBE, address="fine", ticket=2, flags=Flag.MORE),
        Message(op=Op.UNSUBSCRIBE, address="never", ticket=2),
    )
    (answer,) = device.take()
    told = bytes([Reason.SUCCESS, Reason.NO_SUBSCRIPTION])
    assert answer.payload == (told if dialect == "mqtt-5" else b"")


@pytest.mark.parametrize(
    ("topic", "reason"), [("$mine", Reason.BAD_TOPIC), ("a/+", Reason.BAD_TOPIC)]
)
def test_a_will_that_cannot_be_published_is_refused_as_such(
    desk: Desk, topic: str, reason: Reason
) -> None:
    device = Client(desk, "mqtt-5")
    name = topic.encode()
    will = b"\0" + len(name).to_bytes(2, "big") + name + b"\0\0"
    device.say(packet(0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\x01d" + will))
    (answer,) = device.take()
    assert (answer.op, answer.content_type) == (Op.HELLO, Reason.BAD_TOPIC)
    assert not device.is_open


# DISCONNECT


@pytest.mark.parametrize(
    ("goodbye", "is_published"),
    [
        (b"\xe0\x00", False),
        (b"\xe0\x01\x00", False),
        (b"\xe0\x01\x04", True),
        (b"\xe0\x01\x82", True),
    ],
)
def test_only_a_normal_goodbye_takes_the_will_back(
    desk: Desk, goodbye: bytes, is_published: bool
) -> None:
    watcher = Device(desk)
    watcher.join("gone")
    device = Client(desk, "mqtt-5")
    device.say(packet(0x10, b"\0\x04MQTT\x05\x06\0\0\0\0\x01d\0\0\x04gone\0\x03bye"))
    device.say(goodbye)
    assert publishes(watcher.take()) == [("gone", b"bye", "0")] * is_published


def test_a_goodbye_may_change_how_long_the_session_lasts(desk: Desk) -> None:
    def known(goodbye: bytes, later: float) -> bool:
        device = Device(desk, name="dev", clean="", session_expiry="10")
        device.join("a", 1)
        device.say(goodbye)
        desk.pass_time(later)
        return Device(desk, name="dev", clean="", session_expiry="10").was_known

    assert known(b"\xe0\x00", 5)
    assert not known(b"\xe0\x07\0\x05\x11\0\0\0\0", 0.5)  # it ends at once
    assert known(b"\xe0\x07\0\x05\x11\0\0\0\x3c", 30)  # a minute


# What a client can take


def test_a_reason_is_not_told_in_words_where_the_packet_would_be_too_large(desk: Desk) -> None:
    device = Device(desk, maximum_packet="30")
    device.tell("$mine", b"x", 1)
    assert bytes(device.received) == b"\x40\x03\0\x01\x90"
    device.received.clear()
    device.say(packet(0x30, b"\0\0\0x"))
    assert bytes(device.received) == b"\xe0\x01\x82"


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("subscription", [0, 5])
def test_no_packet_is_larger_than_the_client_can_take(
    desk: Desk, lasting: bool, qos: int, subscription: int
) -> None:
    said = LASTING["mqtt-5"] if lasting else {}
    device = Device(desk, name="dev", maximum_packet="50", **said)
    device.join("a", qos, subscription)
    device.join("b/+", qos)
    device.join("b/#", 0)  # a union
    sender = Device(desk)
    for address in ("a", "b/c"):
        for k, payload in enumerate((b"x" * 60, b"small", b"y" * 60, b"last")):
            sender.tell(address, payload, qos, ticket=k + 1)
        sender.answer(Packet.PUBREL, 1, 2, 3, 4)
    came = device.take()
    assert [m.payload for m in came if m.op == Op.PUBLISH] == [b"small", b"last"] * 2
    if qos:
        device.answer(Packet.PUBACK, *[m.ticket for m in came])
    device.session.lost("reset")
    again = Device(desk, name="dev", **said)
    assert publishes(again.opening) == []  # what was left out does not come later


def test_requests_replies_and_queues_keep_to_the_size_that_a_client_can_take(desk: Desk) -> None:
    service = Device(desk, name="service", maximum_packet="60")
    service.join("$serve/echo")
    client = Device(desk, name="client", maximum_packet="60")
    client.tell("echo", b"x" * 70, response="to/me")
    assert publishes(service.take()) == []
    assert publishes(client.take()) == [("to/me", b"nobody serves echo", "0")]
    other = desk.client("kobold-3", "other")
    other.send(Message(op=Op.ENQUEUE, address="jobs", payload=b"x" * 70))
    other.send(Message(op=Op.ENQUEUE, address="jobs", payload=b"small"))
    assert publishes(client.join("jobs", 1)) == [("jobs", b"small", "1")]


def test_messages_of_queues_keep_to_the_receive_maximum(desk: Desk) -> None:
    producer = desk.client("kobold-3")
    for queue in ("one", "two"):
        for k in range(3):
            producer.send(Message(op=Op.ENQUEUE, address=queue, payload=b"%d" % k))
    worker = Device(desk, receive_maximum="2")
    came = [m for name in ("one", "two") for m in worker.join(name, 1) if m.op == Op.PUBLISH]
    done = []
    while came:
        assert len(came) <= 2
        done += [(m.address, m.payload) for m in came]
        worker.answer(Packet.PUBACK, *[m.ticket for m in came])
        came = [m for m in worker.take() if m.op == Op.PUBLISH]
    assert sorted(done) == [(queue, b"%d" % k) for queue in ("one", "two") for k in range(3)]


def test_publishers_wait_for_a_client_that_does_not_acknowledge(desk: Desk) -> None:
    desk.node.flow.outbox = 1000
    device = Device(desk, receive_maximum="1")
    device.join("a", 1)
    sender = Device(desk)
    sent = 0
    while not waits(sender):
        sender.tell("a", b"x" * 100, 1, ticket=sent + 1)
        sent += 1
        assert sent < 20  # what waits counts as an outbox does
    came = [m for m in device.take() if m.op == Op.PUBLISH]
    got = 0
    while came:  # its acknowledgements are read although its outbox is full
        got += len(came)
        device.answer(Packet.PUBACK, *[m.ticket for m in came])
        came = device.take()
    assert got == sent
    assert not waits(sender)
    for k in range(sent):
        sender.tell("a", b"x" * 100, 1, ticket=k + 1)
    desk.pass_time(5)
    assert not device.is_open  # others have waited for too long
    assert desk.node.vitals.counters["slow_consumers"] == 1


def test_a_client_that_floods_itself_and_acknowledges_nothing_is_disconnected(desk: Desk) -> None:
    desk.node.flow.outbox = 1000
    device = Device(desk, receive_maximum="1")
    device.join("a", 1)
    for k in range(40):
        if device.is_open:
            device.tell("a", b"x" * 100, 1, ticket=k + 1)
    assert reasons(device) == [Reason.QUOTA]


@pytest.mark.parametrize("lasting", [False, True])
def test_a_will_for_a_queue_that_its_client_consumes_waits_there(desk: Desk, lasting: bool) -> None:
    desk.client("kobold-3").send(Message(op=Op.ENQUEUE, address="jobs", payload=b"job"))
    expiry = b"\x05\x11\0\0\0\x3c" if lasting else b"\0"
    device = Client(desk, "mqtt-5")
    will = b"\0\0\x04jobs\0\x03bye"
    device.say(packet(0x10, b"\0\x04MQTT\x05\x06\0\0" + expiry + b"\0\x01d" + will))
    device.send(Message(op=Op.SUBSCRIBE, address="jobs", ticket=1, headers={"mqtt.options": "1"}))
    assert device.payloads() == [b"job"]
    device.session.lost("reset")
    other = Device(desk)
    assert sorted(payload for _, payload, _ in publishes(other.join("jobs", 1))) == [b"bye", b"job"]


@pytest.mark.parametrize("delay", [0, 2])
def test_no_local_holds_for_the_will_of_the_client(desk: Desk, delay: int) -> None:
    device = Client(desk, "mqtt-5")
    wait = b"\x05\x18" + delay.to_bytes(4, "big")
    will = wait + b"\0\x01a\0\x03bye"
    lasting = b"\x05\x11\0\0\0\x3c"
    device.say(packet(0x10, b"\0\x04MQTT\x05\x0e\0\0" + lasting + b"\0\x01d" + will))
    device.send(Message(op=Op.SUBSCRIBE, address="a", ticket=1, headers={"mqtt.options": "5"}))
    other = Device(desk)
    other.join("a", 1)
    device.session.lost("reset")
    desk.pass_time(4)
    assert publishes(other.take()) == [("a", b"bye", "1")]
    again = Device(desk, name="d", clean="", session_expiry="60")
    assert again.was_known
    assert publishes(again.opening) == []


def test_what_waits_for_room_expires(desk: Desk) -> None:
    device = Device(desk, receive_maximum="1")
    device.join("a", 1)
    sender = Device(desk)
    for k, ttl in enumerate((0, 2000, 60_000, 0)):
        ask = Message(address="a", payload=b"%d" % k, ttl=ttl, ticket=1, flags=Flag.ACK)
        sender.send(ask)
    came = device.take()
    desk.pass_time(5)
    for payload, ttl in ((b"2", 55_000), (b"3", 0)):
        device.answer(Packet.PUBACK, came[-1].ticket)
        came = device.take()
        assert [(m.payload, m.ttl) for m in came] == [(payload, ttl)]


def test_a_request_of_qos_2_that_is_sent_again_is_asked_once(desk: Desk) -> None:
    service, client = Device(desk, name="service"), Device(desk, name="client")
    service.join("$serve/echo")
    for _ in range(2):
        client.tell("echo", b"?", 2, ticket=5, response="to/me")
    assert answers(client.take()) == [(Packet.PUBREC, 5, b"")] * 2
    (asked,) = service.take()
    for _ in range(2):
        service.tell(asked.headers["mqtt.response"], b"!", 2, ticket=6)
    assert answers(service.take()) == [(Packet.PUBREC, 6, b"")] * 2
    assert publishes(client.take()) == [("to/me", b"!", "0")]


@pytest.mark.parametrize("said", [{"retain": "1"}, {"response": "to/me"}])
def test_the_receive_maximum_holds_for_every_kind_of_publish(
    desk: Desk, said: dict[str, str]
) -> None:
    device = Device(desk)
    for ticket in range(1, 1001):
        device.tell("a", b"x", 2, ticket=ticket, **said)
    assert device.is_open
    device.take()
    device.tell("a", b"x", 2, ticket=1001, **said)
    assert reasons(device) == [Reason.TOO_MANY]


# Sessions


@both_versions
def test_only_what_was_sent_before_is_marked_as_sent_again(desk: Desk, dialect: str) -> None:
    said = LASTING[dialect]
    device = Device(desk, dialect, "dev", **said)
    device.join("a", 1)
    sender = Device(desk, dialect)
    sender.tell("a", b"sent", 1)
    device.take()
    device.session.lost("reset")
    sender.tell("a", b"new", 1)
    again = Client(desk, dialect)
    again.send(
        Message(
            op=Op.HANDSHAKE,
            source="dev",
            headers={f"mqtt.{k}": v for k, v in {"keepalive": "0", **said}.items() if v},
        )
    )
    publish = bytes(again.received).index(b"\0\x01a") - 2
    first = bytes(again.received)[publish:]
    second = first[2 + first[1] :]
    assert (first[0], second[0]) == (0x3A, 0x32)


def test_quotas_count_the_filters_that_a_session_had_before(desk: Desk) -> None:
    desk.node.quotas.wildcards = 2
    device = Device(desk, name="dev", **LASTING["mqtt-5"])
    device.join("a/#")
    device.join("b/#")
    device.session.lost("reset")
    again = Device(desk, name="dev", **LASTING["mqtt-5"])
    assert again.join("c/#")[0].payload == bytes([Reason.QUOTA])
    again.send(Message(op=Op.UNSUBSCRIBE, address="a/#", ticket=3))
    again.take()
    assert again.join("c/#")[0].payload == b"\0"


@both_versions
def test_what_was_never_sent_cannot_be_released(desk: Desk, dialect: str) -> None:
    device = Device(desk, dialect, "dev", **LASTING[dialect])
    device.answer(Packet.PUBREC, 77)
    told = bytes([Reason.NO_SUCH_PACKET]) if dialect == "mqtt-5" else b""
    assert answers(device.take()) == [(Packet.PUBREL, 77, told)]
    device.session.lost("reset")
    again = Device(desk, dialect, "dev", **LASTING[dialect])
    assert answers(again.opening) == []
