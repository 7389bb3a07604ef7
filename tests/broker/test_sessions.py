"""What the broker does with each dialect, decision by decision."""

import json

import cbor2
import pytest

from tests.broker.desk import Client, Desk, ops
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.dialects import DIALECTS
from wirelake.journal.contract import Harm, Loss
from wirelake.journal.engine import Engine
from wirelake.message import Flag, Message, Op, Parameters

MQTT = ["mqtt-3.1.1", "mqtt-5"]  # whose requests are publishes: see test_mqtt
ASKABLE = [d for d in DIALECTS if d != "mfp-1" and d not in MQTT]
OPS = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]
TMQ = ["tmq-1.00", "tmq-1.01"]


@pytest.fixture
def desk() -> Desk:
    return Desk()


# Publish and subscribe


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_gets_what_it_subscribed_to_until_it_unsubscribes(
    desk: Desk, dialect: str
) -> None:
    subscriber = desk.client(dialect, "listener", "sub")
    publisher = desk.client("kobold-3")
    subscriber.subscribe("a/+", "b")
    publisher.publish("a/x", b"1")
    publisher.publish("c", b"2")
    publisher.publish("b", b"3")
    assert subscriber.payloads() == [b"1", b"3"]
    subscriber.send(Message(op=Op.UNSUBSCRIBE, address="a/+"))
    publisher.publish("a/x", b"4")
    publisher.publish("b", b"5")
    assert subscriber.payloads() == [b"5"]
    if dialect not in [*TMQ, *MQTT]:
        subscriber.subscribe("a/+")
        subscriber.send(Message(op=Op.UNSUBSCRIBE))
        publisher.publish("b", b"6")
        publisher.publish("a/x", b"7")
        assert subscriber.payloads() == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_message_comes_once_however_many_filters_match(desk: Desk, dialect: str) -> None:
    subscriber = desk.client(dialect, "listener", "sub")
    subscriber.subscribe("a/b", "a/+", "#")
    desk.client("boson-text").publish("a/b", b"once")
    assert subscriber.payloads() == [b"once"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_batch_to_several_audiences_keeps_the_order_of_arrival(desk: Desk, dialect: str) -> None:
    everything = desk.client(dialect, "everything", "sub")
    some = desk.client(dialect, "only some", "sub")
    everything.subscribe("#")
    some.subscribe("b", "c")
    desk.client("boson-binary").send(
        *[Message(address="abc"[k % 3], payload=b"%d" % k) for k in range(9)]
    )
    assert everything.payloads() == [b"%d" % k for k in range(9)]
    assert some.payloads() == [b"%d" % k for k in range(9) if k % 3]


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d not in TMQ])
def test_frames_go_to_their_own_dialect_byte_for_byte(desk: Desk, dialect: str) -> None:
    subscriber = desk.client(dialect, "listener", "sub")
    publisher = desk.client(dialect, "speaker")
    subscriber.subscribe("t")
    frames = {
        "boson-text": b"2|x,0|t|hi4|m|t|abcd0|0",
        "boson-binary": bytes.fromhex("0002000000290005746f70696300000001740007636f6e74656e74")
        + bytes.fromhex("000000000005747261636500000003616263"),
        "mfp-1": bytes.fromhex("02000102030405060708090a0b0c0d0e0f0000000401010001"),
        "kobold-1": b"\0\0\0\x12PUB\r\nk=%31;\r\nt\r\n\r\n",
        "kobold-2": b"\0\0\0\x17\xa2\x65topic\x61t\x6cmessage_type\x01",
        "kobold-3": b"\0\0\0\x0ePUB t\r\n\xbf\xff\r\nx\r\n",
        "mqtt-3.1.1": b"\x30\4\0\1tx",
        "mqtt-5": b"\x30\x0e\0\1t\x09\x26\0\1k\0\1v\1\1x",
    }[dialect]
    if dialect == "mfp-1":
        publisher.send(Message(op=Op.TOPIC, address="t"))
    publisher.say(frames)
    assert bytes(subscriber.received) == frames


def test_an_address_that_topic_has_set_is_told_to_subscribers(desk: Desk) -> None:
    # decision 8, decision 13
    subscriber = desk.client("boson-text")
    subscriber.subscribe("#")
    publisher = desk.client("boson-text")
    publisher.say(b"1|0||a4|0|$topic|news1|0||b1|0|t|c")
    publisher.say(b"1|m||d1|0||e0|0|$topic|1|0||f3|0|$topic|a/+1|0||g")
    assert bytes(subscriber.received) == b"1|0||a1|0|news|b1|0|t|c2|0|news|de1|0||f"
    publisher.say(b"1|0||h")
    assert bytes(subscriber.received).endswith(b"1|0||f1|0||h")
    assert ops(publisher.take()) == ["ok", "ok", "error", "error"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_bad_addresses_are_refused_and_the_connection_lives_on(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect, "somebody")
    if dialect == "mfp-1":
        client.send(Message(op=Op.TOPIC, address="a/+"))
        assert ops(client.take()) == ["error"]
        client.say(bytes.fromhex("02000102030405060708090a0b0c0d0e0f000000020000"))
        assert ops(client.take()) == ["error"]  # no topic was set (spec: mfp 4)
    else:
        client.publish("a/+", b"", ack=dialect != "boson-text")
    assert client.is_open
    assert desk.node.vitals.counters["refused.bad_request"] >= 1


@pytest.mark.parametrize("dialect", ["mfp-1", *OPS, *TMQ])
def test_a_publish_that_asks_for_it_is_acknowledged(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect, "somebody")
    client.publish("a/b", b"hello")
    client.take()
    assert client.take() == []
    client.publish("a/b", b"hello", ack=True)
    answers = client.take()
    assert ops(answers) == ["ack" if dialect in TMQ else "ok"]
    if dialect != "mfp-1":
        assert answers[0].id == "m1"


# Errors


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broken_frame_ends_its_connection_and_nobody_elses(desk: Desk, dialect: str) -> None:
    subscriber = desk.client("boson-text")
    subscriber.subscribe("a")
    client = desk.client(dialect, "breaker")
    if dialect == "mfp-1":
        client.send(Message(op=Op.TOPIC, address="a"))
    client.publish("a", b"before")
    client.say(b"\xff" * 40)
    assert not client.is_open
    assert desk.node.vitals.counters["protocol_errors"] == 1
    assert subscriber.payloads() == [b"before"]
    assert subscriber.is_open


@pytest.mark.parametrize("dialect", OPS)
def test_an_unknown_op_is_a_bad_request(desk: Desk, dialect: str) -> None:  # spec: kobold 10
    client = desk.client(dialect)
    client.say(
        {
            "boson-binary": bytes.fromhex("00010000000f00066862662e6f70000000017a"),
            "kobold-1": b"\0\0\0\x0bZZZ\r\n\r\n\r\n\r\n",
            "kobold-2": b"\0\0\0\x10\xa1\x6cmessage_type\x18\x63",
            "kobold-3": b"\0\0\0\x0bZZZ \r\n\xa0\r\n\r\n",
        }[dialect]
    )
    (answer,) = client.take()
    assert (answer.op, answer.parameters.code) == (Op.ERROR, "bad_request")
    assert client.is_open


# Requests


def service(desk: Desk, dialect: str, address: str = "time") -> Client:
    client = desk.client(dialect, f"service-{dialect}")
    client.send(Message(op=Op.SERVE, address=address))
    client.take()
    return client


@pytest.mark.parametrize("server", ["boson-text", *OPS])
@pytest.mark.parametrize("asker", ASKABLE)
def test_a_request_gets_its_reply(desk: Desk, asker: str, server: str) -> None:
    serving = service(desk, server)
    asking = desk.client(asker, "asker")
    asking.send(Message(op=Op.REQUEST, address="time", correlation_id="q1", payload=b"now?"))
    (request,) = serving.take()
    assert (request.op, request.address, request.payload) == (Op.REQUEST, "time", b"now?")
    serving.send(Message(op=Op.REPLY, correlation_id=request.correlation_id, payload=b"noon"))
    (reply,) = asking.take()
    assert (reply.op, reply.correlation_id, reply.payload) == (Op.REPLY, "q1", b"noon")


def failure(message: Message) -> str:
    """The code of an error, in a dialect's own way."""
    if message.content_type:
        return {404: "not_found", 503: "unavailable", 400: "bad_request"}[message.content_type]
    return message.parameters.code


@pytest.mark.parametrize("asker", [d for d in ASKABLE if d not in TMQ])
def test_a_request_without_a_service_fails_at_once(desk: Desk, asker: str) -> None:
    asking = desk.client(asker, "asker")
    asking.send(Message(op=Op.REQUEST, address="time", correlation_id="q1"))
    (answer,) = asking.take()
    assert (answer.op, answer.correlation_id, failure(answer)) == (Op.ERROR, "q1", "no_service")


@pytest.mark.parametrize("asker", ASKABLE)
def test_a_request_without_a_reply_fails_in_time_and_a_late_reply_is_dropped(
    desk: Desk, asker: str
) -> None:
    serving = service(desk, "kobold-1")
    asking = desk.client(asker, "asker")
    asking.send(Message(op=Op.REQUEST, address="time", correlation_id="q1"))
    (request,) = serving.take()
    desk.pass_time(29)
    assert [m for m in asking.take() if m.op != Op.PING] == []
    desk.pass_time(2)
    (answer,) = [m for m in asking.take() if m.op != Op.PING]
    assert answer.correlation_id == "q1"
    assert failure(answer) in ("timeout", "unavailable")
    serving.send(Message(op=Op.REPLY, correlation_id=request.correlation_id))
    assert [m for m in asking.take() if m.op != Op.PING] == []
    assert desk.node.vitals.counters["dropped.late_reply"] == 1


def test_a_requests_ttl_is_its_time_out(desk: Desk) -> None:
    service(desk, "kobold-1")
    asking = desk.client("kobold-2")
    asking.send(Message(op=Op.REQUEST, address="time", correlation_id="q1", ttl=500))
    desk.pass_time(1)
    assert failure(asking.take()[0]) == "timeout"


@pytest.mark.parametrize("asker", ASKABLE)
def test_a_service_that_disconnects_fails_its_requests_at_once(desk: Desk, asker: str) -> None:
    serving = service(desk, "kobold-3")
    asking = desk.client(asker, "asker")
    asking.send(Message(op=Op.REQUEST, address="time", correlation_id="q1"))
    serving.session.lost("gone")
    assert failure(asking.take()[0]) in ("closed", "unavailable")


def test_services_take_turns(desk: Desk) -> None:
    one, two = desk.client("kobold-1"), desk.client("boson-text")
    for client in (one, two):
        client.send(Message(op=Op.SERVE, address="time"))
        client.take()
    asking = desk.client("kobold-3")
    for k in range(4):
        asking.send(Message(op=Op.REQUEST, address="time", correlation_id=f"q{k}"))
    assert (len(one.take()), len(two.take())) == (2, 2)


# Clients


@pytest.mark.parametrize("target", [*OPS, *TMQ])
@pytest.mark.parametrize("source", [*OPS, *TMQ])
def test_a_direct_message_goes_to_its_client(desk: Desk, source: str, target: str) -> None:
    bob = desk.client(target, "bob")
    alice = desk.client(source, "alice")
    op = Op.DIRECT if source in TMQ else Op.PUBLISH
    alice.send(Message(op=op, target="bob", payload=b"hi", address="x" if op == Op.PUBLISH else ""))
    (message,) = bob.take()
    assert (message.payload, message.source) == (b"hi", "alice")
    assert message.op == (Op.DIRECT if target in TMQ else Op.PUBLISH)


@pytest.mark.parametrize("target", ["nobody", "a boson-text client", "an mfp client"])
def test_a_direct_message_to_nobody_is_not_found(desk: Desk, target: str) -> None:  # spec: tmq 8
    desk.client("mfp-1", "an mfp client", "sub")
    alice = desk.client("tmq-1.01", "alice")
    alice.send(Message(op=Op.DIRECT, target=target, id="d1", flags=Flag.RESPONSE))
    (answer,) = alice.take()
    assert (answer.op, answer.id, answer.content_type) == (Op.REPLY, "d1", 404)


@pytest.mark.parametrize("dialect", ["mfp-1", *OPS, *TMQ])
def test_the_id_of_a_live_client_is_refused_until_it_has_been_silent(
    desk: Desk, dialect: str
) -> None:
    first = desk.client(dialect, "same name")
    second = desk.client(dialect, "same name")
    assert "error" in ops(second.opening)
    assert first.is_open
    desk.now += 61
    third = desk.client(dialect, "same name")
    assert "error" not in ops(third.opening)
    assert not first.is_open


def test_an_mfp_pub_and_sub_of_one_id_are_one_client(desk: Desk) -> None:
    pub, sub = desk.client("mfp-1", "alice", "pub"), desk.client("mfp-1", "alice", "sub")
    sub.subscribe("chat")
    pub.send(Message(op=Op.TOPIC, address="chat"))
    pub.publish("chat", b"hello")
    assert sub.payloads() == [b"hello"]


# mfp


def test_mfp_begins_with_a_handshake(desk: Desk) -> None:  # spec: mfp 2
    client = Client(desk, "mfp-1")
    client.send(Message(op=Op.SUBSCRIBE, address="a"))
    assert ops(client.take()) == ["error"]
    assert not client.is_open


def test_mfp_pub_and_sub_accept_only_their_own_frames(desk: Desk) -> None:  # spec: mfp 3
    pub, sub = desk.client("mfp-1", "alice", "pub"), desk.client("mfp-1", "bob1", "sub")
    pub.send(Message(op=Op.SUBSCRIBE, address="a"))
    sub.send(Message(op=Op.TOPIC, address="a"))
    sub.say(bytes.fromhex("02000102030405060708090a0b0c0d0e0f0000000401000001"))
    assert ops(pub.take()) == ["error"]
    assert ops(sub.take()) == ["error", "error"]
    assert pub.is_open
    assert sub.is_open


def test_an_mfp_body_over_1000_bytes_is_not_published(desk: Desk) -> None:  # spec: mfp 5
    listener = desk.client("kobold-1")
    listener.subscribe("#")
    pub = desk.client("mfp-1", "alice", "pub")
    pub.send(Message(op=Op.TOPIC, address="a"))
    pub.take()
    frame = bytes.fromhex("02000102030405060708090a0b0c0d0e0f") + (1003).to_bytes(4, "big")
    pub.say(frame + b"\x00\x00" + b"x" * 1001)
    assert ops(pub.take()) == ["error"]
    pub.say(frame + b"\x00\x01" + b"x" * 1001)
    assert pub.take() == []
    assert listener.payloads() == []


def test_a_payload_over_1000_bytes_is_not_sent_to_mfp_and_counted(desk: Desk) -> None:  # mfp 6
    sub = desk.client("mfp-1", "alice", "sub")
    sub.subscribe("a")
    desk.client("kobold-3").publish("a", b"x" * 1001)
    assert sub.payloads() == []
    assert desk.node.vitals.counters["dropped.untranslatable_payload"] == 1


# TMQ


@pytest.mark.parametrize("dialect", TMQ)
def test_tmq_begins_with_its_greeting_and_hello(desk: Desk, dialect: str) -> None:  # spec: tmq 1
    client = desk.client(dialect, "c1")
    greeting, accepted = client.opening
    assert greeting.op == Op.HANDSHAKE
    assert (accepted.op, accepted.content_type, accepted.target) == (Op.OK, 202, "c1")
    hasty = Client(desk, dialect)
    hasty.say(bytes.fromhex("1010000000006500"))  # Hello, before the greeting
    assert [m.content_type for m in hasty.take()] == [400]
    assert not hasty.is_open


def test_tmq_tells_the_first_receiver_and_the_source_and_takes_a_hop(desk: Desk) -> None:  # 5, 11
    one, two = desk.client("tmq-1.01", "one"), desk.client("tmq-1.01", "two")
    for client in (one, two):
        client.send(Message(op=Op.SUBSCRIBE, address="a", id="s", flags=Flag.RESPONSE))
        assert [(m.op, m.content_type) for m in client.take()] == [(Op.REPLY, 200)]
    sender = desk.client("tmq-1.00", "sender")
    sender.send(Message(address="a", payload=b"x", id="m1", content_type=7, ttl=5, priority=1))
    (first,), (second,) = one.take(), two.take()
    assert [bool(m.flags & Flag.FIRST) for m in (first, second)] == [True, False]
    for message in (first, second):
        assert (message.source, message.ttl, message.id) == ("sender", 4, "m1")
        assert (message.content_type, message.priority) == (7, 1)
    sender.send(Message(address="a", payload=b"x", ttl=0))
    assert [m.ttl for m in one.take()] == [15]


def test_an_idle_tmq_connection_is_pinged_and_closed_after_two_unanswered(desk: Desk) -> None:
    client = desk.client("tmq-1.01", "sleepy")
    desk.pass_time(31, step=1)
    assert ops(client.take()) == ["ping"]
    client.send(Message(op=Op.PONG))
    desk.pass_time(95, step=1)
    assert not client.is_open  # spec: tmq 3


def test_tmq_terminate_closes(desk: Desk) -> None:  # spec: tmq 12
    client = desk.client("tmq-1.01", "c1")
    client.send(Message(op=Op.TERMINATE))
    assert not client.is_open


def test_a_redirect_carries_a_message_to_another_receiver(desk: Desk) -> None:  # spec: tmq 10
    bob = desk.client("tmq-1.01", "bob1")
    alice = desk.client("tmq-1.01", "alice")
    inner = bytes.fromhex("120300000300000563617268656c6c6f")  # to "car", ttl 3
    alice.send(Message(op=Op.REDIRECT, target="bob1", payload=inner))
    (message,) = bob.take()
    assert (message.op, message.payload, message.ttl) == (Op.DIRECT, b"hello", 2)
    alice.send(Message(op=Op.REDIRECT, target="bob1", payload=inner[:1] + b"\x01" + inner[2:]))
    assert bob.take() == []
    assert desk.node.vitals.counters["dropped.hops"] == 1
    alice.send(Message(op=Op.REDIRECT, target="bob1", payload=b"\x00", flags=Flag.RESPONSE, id="r"))
    assert [m.content_type for m in alice.take()] == [400]


# Kobold and Boson


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3"])
def test_an_undecided_first_frame_is_settled_as_inclusive(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect)
    frame = {
        "kobold-1": b"SUB\r\ntx=1;\r\nt\r\n\r\n",
        "kobold-3": b"SUB t\r\n\xa1\x62tx\x611\r\n\r\n",
    }
    body = frame[dialect]
    client.say((len(body) + 4).to_bytes(4, "big") + body)
    assert client.received == b""
    desk.pass_time(1)
    length = int.from_bytes(client.received[:4], "big")
    assert length == len(client.received) > 0  # answered in kind (spec: kobold 1)
    client.received.clear()
    desk.client("kobold-1").publish("t", b"x")
    assert int.from_bytes(client.received[:4], "big") == len(client.received)


@pytest.mark.parametrize("dialect", OPS)
def test_answers_come_when_they_are_asked_for(desk: Desk, dialect: str) -> None:  # spec: kobold 9
    client = desk.client(dialect)
    client.send(Message(op=Op.SUBSCRIBE, address="a"))
    assert client.take() == []
    client.send(Message(op=Op.SUBSCRIBE, address="b", correlation_id="t1"))
    client.send(Message(op=Op.SERVE, address="c", id="i1", flags=Flag.ACK))
    client.send(Message(op=Op.UNSERVE, address="c", correlation_id="t2"))
    client.send(Message(op=Op.UNSERVE, address="c", correlation_id="t3"))
    answers = client.take()
    assert [(m.op, m.correlation_id or m.id) for m in answers] == [
        (Op.OK, "t1"), (Op.OK, "i1"), (Op.OK, "t2"), (Op.ERROR, "t3"),
    ]  # fmt: skip


@pytest.mark.parametrize("dialect", OPS)
def test_a_node_tells_its_state(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect)
    client.send(Message(op=Op.INFO, address="$node", correlation_id="t"))
    (answer,) = client.take()
    state = cbor2.loads(answer.payload) if dialect != "kobold-1" else answer.payload
    assert b"connections" in answer.payload
    assert state
    client.send(Message(op=Op.PING))
    assert ops(client.take()) == ["pong"]


def test_damage_is_told_to_operators() -> None:
    """decision 52"""
    engine = Engine.in_memory()
    engine.journal.losses.append(Loss(Harm.DAMAGED, "a segment", "3 rows were lost"))
    node = Node(engine)
    (event,) = node.vitals.events
    assert (event["event"], event["text"]) == ("damage", engine.damage[0])
    assert node.vitals.counters["events.damage"] == 1


def test_what_has_happened_is_told_to_operators_only(desk: Desk) -> None:  # decision 43
    desk.node.vitals.event("slow_consumer", "alice", "disconnected")
    client = desk.client("kobold-1")
    for admin in (True, False):
        desk.node.clients.rights_of_strangers.admin = admin
        client.send(Message(op=Op.INFO, address="$node", correlation_id="t"))
        (answer,) = client.take()
        assert (b"alice" in answer.payload) is admin


def test_boson_text_answers_its_control_topics(desk: Desk) -> None:  # spec: boson-text 6
    client = desk.client("boson-text")
    client.say(b"3|0|$subscribe|a/b1|0|$topic|c0|0|$ping|1|0|$serve|s3|0|$unsubscribe|a/b")
    assert bytes(client.received) == (
        b"14|0|$ok|$subscribe a/b"
        b"8|0|$ok|$topic c"
        b"0|0|$pong|"
        b"8|0|$ok|$serve s"
        b"16|0|$ok|$unsubscribe a/b"
    )
    client.received.clear()
    client.say(b"0|0|$nonsense|2|0|$subscribe|a#")
    assert [m.parameters.code for m in client.take()] == ["bad_request", "bad_request"]


def test_a_topicless_boson_message_goes_to_the_default_address(desk: Desk) -> None:  # boson 4
    listener = desk.client("kobold-1")
    listener.subscribe("#")
    client = desk.client("boson-text")
    client.say(b"1|0||a1|0|$topic|c1|0||b")
    desk.client("boson-binary").say(bytes.fromhex("0001000000100007636f6e74656e740000000163"))
    assert [(m.address, m.payload) for m in listener.take()] == [
        ("boson", b"a"), ("c", b"b"), ("boson", b"c"),
    ]  # fmt: skip


@pytest.mark.parametrize("dialect", OPS)
def test_a_token_in_a_publish_is_not_passed_on(desk: Desk, dialect: str) -> None:
    listener = desk.client(dialect)
    listener.subscribe("#")
    client = desk.client(dialect)
    client.send(
        Message(
            address="a", payload=b"x", headers={"k": "v"}, parameters=Parameters(token="secret")
        )
    )
    assert b"secret" not in listener.received
    (message,) = listener.take()
    assert message.headers == {"k": "v"}


def test_a_tmq_request_that_nobody_gets_is_answered_at_once(desk: Desk) -> None:
    client = desk.client("tmq-1.01", "asker")
    client.send(Message(address="nobody", id="m1", flags=Flag.RESPONSE))
    (answer,) = client.take()
    assert (answer.op, answer.id, answer.content_type) == (Op.REPLY, "m1", 404)


def test_a_tmq_subscriber_can_respond_to_what_wants_a_response(desk: Desk) -> None:
    """spec: tmq 9"""
    asker, other = desk.client("tmq-1.00", "asker"), desk.client("tmq-1.01", "other")
    other.subscribe("questions")
    asker.send(Message(address="questions", payload=b"why?", id="m1", flags=Flag.RESPONSE))
    (question,) = other.take()
    assert question.flags & Flag.RESPONSE
    other.send(Message(op=Op.REPLY, id=question.id, target=question.source, payload=b"because"))
    (answer,) = asker.take()
    assert (answer.op, answer.id, answer.payload) == (Op.REPLY, "m1", b"because")


@pytest.mark.parametrize("dialect", ["boson-text", "boson-binary", "kobold-1", "kobold-3"])
def test_publishes_that_are_refused_unasked_give_one_error(desk: Desk, dialect: str) -> None:
    """decision 42"""
    client = desk.client(dialect)
    client.send(*[Message(address="a/+", payload=b"x")] * 3, Message(address="a", payload=b"y"))
    (error,) = client.take()
    assert (error.op, error.parameters.code) == (Op.ERROR, "bad_request")
    assert error.payload.endswith(b"(3 published)")
    assert desk.node.vitals.counters["refused.bad_request"] == 3


@pytest.mark.parametrize("dialect", ["mfp-1", "kobold-2", "boson-binary", "tmq-1.00"])
def test_many_publishes_in_one_read_are_all_acknowledged_by_id(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect, "producer")
    ids = [f"{n:032x}" for n in range(500)]
    messages = [Message(address="t", payload=b"x", id=one, flags=Flag.ACK) for one in ids]
    client.send(*messages)
    assert [m.id for m in client.take() if m.op in (Op.OK, Op.ACK)][-500:] == ids


def test_rows_of_many_audiences_in_one_read_reach_each_of_them_in_order(desk: Desk) -> None:
    readers = [desk.client("kobold-2") for _ in range(20)]
    for number, reader in enumerate(readers):
        reader.subscribe(f"t/{number}", f"t/{(number + 1) % 20}")
    both = desk.client("boson-text")
    both.subscribe("t/#")
    payloads = [f"{n % 20} {n}".encode() for n in range(400)]
    desk.client("kobold-3").send(
        *[Message(address=f"t/{n % 20}", payload=payload) for n, payload in enumerate(payloads)]
    )
    assert both.payloads() == payloads
    for number, reader in enumerate(readers):
        mine = {str(number), str((number + 1) % 20)}
        assert reader.payloads() == [p for p in payloads if p.decode().split()[0] in mine]


def test_an_operator_hears_of_events_and_others_may_not(desk: Desk) -> None:
    """decision 43"""
    operator = desk.client("kobold-1")
    operator.subscribe("$events")
    desk.node.vitals.event("slow_consumer", "somebody", "was slow")
    (event,) = operator.take()
    assert json.loads(event.payload)["who"] == "somebody"
    assert desk.node.state()["events"] == [json.loads(event.payload)]
    desk.node.clients.rights_of_strangers = Rights("few", subscribe=("#",))
    stranger = desk.client("kobold-1")
    stranger.send(Message(op=Op.SUBSCRIBE, address="$events", correlation_id="t"))
    assert stranger.take()[0].parameters.code == "unauthorized"


def test_exact_subscriptions_come_and_go_without_disturbing_others(desk: Desk) -> None:
    publisher, steady = desk.client("kobold-2"), desk.client("kobold-2")
    steady.subscribe("a")
    publisher.publish("a", b"1")
    publisher.publish("b", b"-")
    passing = desk.client("kobold-3")
    passing.subscribe("a", "b")
    publisher.publish("a", b"2")
    publisher.publish("b", b"3")
    passing.send(Message(op=Op.UNSUBSCRIBE, address="a"))
    publisher.publish("a", b"4")
    publisher.publish("b", b"5")
    passing.session.close("gone")
    publisher.publish("b", b"6")
    assert passing.payloads() == [b"2", b"3", b"5"]
    assert steady.payloads() == [b"1", b"2", b"4"]
