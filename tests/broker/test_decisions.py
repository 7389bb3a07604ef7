"""The specification's decisions about what a broker does, one by one, on the desk.

A comment `spec: tmq 7` or `decision 33` in a test says what it shows; `tests/test_decisions.py`
finds the decisions that no test names. Other files here go further.
"""

from __future__ import annotations

import json
import logging

import pytest
from msgspec.structs import replace

from tests.broker.desk import Client, Desk, ops
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.dialects import DIALECTS
from wirelake.errors import CODES
from wirelake.journal.engine import Engine, QueueSettings
from wirelake.message import Flag, Limits, Message, Op, Parameters

OPS = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]
TMQ = ["tmq-1.00", "tmq-1.01"]
UID = bytes(range(16))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def mfp(kind: int, payload: bytes, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return bytes([kind]) + UID + size.to_bytes(4, "big", signed=True) + payload


def codes(client: Client) -> list[str]:
    """The codes of the errors that have come."""
    return [m.parameters.code for m in client.take() if m.op == Op.ERROR]


def ask(client: Client, op: Op, address: str = "", payload: bytes = b"") -> int:
    """Ask a server message of TMQ, with RS; the content type of the answer."""
    client.send(Message(op=op, address=address, payload=payload, id="r", flags=Flag.RESPONSE))
    (reply,) = [m for m in client.take() if m.op == Op.REPLY]
    assert reply.id == "r"
    return reply.content_type


# One model under every dialect


def test_addresses_are_compared_byte_for_byte_and_wildcards_by_level(desk: Desk) -> None:
    # spec: address
    listener, publisher = desk.client("kobold-1"), desk.client("kobold-3")
    matching = {
        "a": (["a"], ["/a", "A", "a/b"]),
        "caf\u00e9": (["caf\u00e9"], ["cafe\u0301"]),
        "a/+": (["a/b", "a/"], ["a", "a/b/c"]),
        "b/#": (["b", "b/c", "b/c/d"], ["bc"]),
    }
    for filter, (same, others) in matching.items():
        listener.subscribe(filter)
        for address in [*same, *others]:
            publisher.publish(address, address.encode())
        assert listener.payloads() == [address.encode() for address in same]
        listener.send(Message(op=Op.UNSUBSCRIBE, address=filter))
    listener.subscribe("#", "+")
    for bad in ("$x", "a/+", "#", "a\x07"):
        publisher.publish(bad, b"", ack=True)
        assert codes(publisher) == ["bad_request"]
    assert listener.payloads() == []


def test_a_topic_keeps_nothing_and_a_queue_everything(desk: Desk) -> None:
    # spec: topics and queues
    client = desk.client("kobold-1", "client")
    client.publish("topic", b"unheard")
    client.send(Message(op=Op.ENQUEUE, address="queue", payload=b"kept"))
    client.publish("queue", b"too")
    late = desk.client("boson-text")
    for address in ("topic", "queue"):
        late.send(Message(op=Op.SUBSCRIBE, address=address))
    assert late.payloads() == [b"kept", b"too"]
    assert len(desk.node.queues.get("queue")) == 0  # handing them over acknowledged them
    client.send(Message(op=Op.ENQUEUE, address="topic", correlation_id="e"))
    assert codes(client) == ["conflict"]
    late.send(Message(op=Op.SUBSCRIBE, address="+"))
    client.publish("queue", b"once")
    assert late.payloads() == [b"once"]  # a wildcard does not match a queue


def test_a_consumer_has_at_most_a_hundred_messages(desk: Desk) -> None:
    # spec: topics and queues
    desk.node.queues.declare(QueueSettings("q"))
    desk.client("kobold-3").send(*[Message("q", b"%d" % k) for k in range(150)])
    worker = desk.client("tmq-1.01", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="q"))
    assert len(worker.take()) == 100


def test_a_message_has_what_its_sender_said_and_nothing_made_up(desk: Desk) -> None:
    # spec: message
    listener = desk.client("kobold-2")
    listener.subscribe("a")
    desk.client("boson-text").publish("a", b"x")
    (message,) = listener.take()
    assert message == replace(Message("a", b"x"), dialect="kobold-2", flags=message.flags)


@pytest.mark.parametrize("dialect", ["mfp-1", *OPS, *TMQ])
def test_a_client_id_belongs_to_one_who_is_heard_of(dialect: str) -> None:  # spec: identity
    desk = Desk()
    first = desk.client(dialect, "same name")
    desk.now += 59
    assert "error" in ops(desk.client(dialect, "same name").opening)
    desk.now += 2
    assert "error" not in ops(desk.client(dialect, "same name").opening)
    assert not first.is_open
    assert [event["event"] for event in desk.node.vitals.events] == ["takeover"]


@pytest.mark.parametrize("dialect", TMQ)
def test_who_gives_no_client_id_is_given_one(desk: Desk, dialect: str) -> None:  # spec: identity
    names = {desk.client(dialect).opening[1].target for _ in range(3)}
    assert len(names) == 3
    assert "" not in names


@pytest.mark.parametrize("target", DIALECTS)
@pytest.mark.parametrize("source", DIALECTS)
def test_messages_keep_their_order_on_every_path(desk: Desk, source: str, target: str) -> None:
    # spec: order
    listener, publisher = desk.client(target, "listener", "sub"), desk.client(source, "publisher")
    listener.subscribe("a/x", "a/+")
    desk.client("kobold-1").subscribe("a/y")  # so that audiences differ within a batch
    wants = Flag(0) if source == "boson-text" else Flag.ACK
    publisher.send(
        *[
            Message(f"a/{'xyx'[k % 3]}", b"%d" % k, flags=wants if k % 4 == 1 else Flag(0))
            for k in range(40)
        ]
    )
    assert listener.payloads() == [b"%d" % k for k in range(40)]


def test_frames_of_a_subscribers_own_dialect_go_out_as_they_came(desk: Desk) -> None:
    # spec: translation
    same, other = desk.client("kobold-3"), desk.client("tmq-1.01", "other")
    for client in (same, other):
        client.subscribe("t")
    frame = b"\0\0\0\x16PUB t\r\n\xbf\x61k\x61v\x61n\x01\xff\r\n\xff\0\r\n"
    frame = (len(frame) - 4).to_bytes(4, "big") + frame[4:]
    desk.client("kobold-3").say(frame)
    assert bytes(same.received) == frame
    (translated,) = other.take()
    assert (translated.address, translated.payload, translated.headers) == ("t", b"\xff\0", {})


# Requests, queues, store, streams


def test_a_request_is_answered_or_fails(desk: Desk) -> None:  # spec: requests
    asker, one, two = (desk.client("kobold-1", f"c{k}") for k in range(3))
    request = Message(op=Op.REQUEST, address="s", correlation_id="mine")
    asker.send(request)
    assert codes(asker) == ["no_service"]
    for service in (one, two):
        service.send(Message(op=Op.SERVE, address="s"))
    for service in (one, two, one):  # in turn
        asker.send(request)
        (passed,) = service.take()
        assert passed.correlation_id != "mine"
        service.send(Message(op=Op.REPLY, correlation_id=passed.correlation_id, payload=b"r"))
        assert [(m.correlation_id, m.payload) for m in asker.take()] == [("mine", b"r")]
    asker.send(request, replace(request, ttl=1000))
    desk.pass_time(2)
    assert codes(asker) == ["timeout"]  # the one with a ttl
    two.session.lost("gone")
    one.session.lost("gone")
    assert codes(asker) == ["closed"]
    assert desk.node.vitals.counters["refused.timeout"] == 1


@pytest.mark.parametrize("keep", [False, True])
def test_a_message_past_its_ttl_is_dropped_or_dead(desk: Desk, keep: bool) -> None:
    # spec: queues
    desk.node.queues.declare(QueueSettings("q", keep_expired=keep))
    desk.client("kobold-1").send(Message("q", b"old", ttl=500))
    desk.pass_time(1)
    assert len(desk.node.queues.get("q")) == 0
    assert desk.node.vitals.counters["dropped.expired"] == 1
    names = [queue.settings.name for queue in desk.node.queues.all()]
    assert names == ["q", "q/$dead"] if keep else names == ["q"]
    if keep:
        worker = desk.client("kobold-1")
        worker.send(Message(op=Op.DEQUEUE, address="q/$dead"))
        assert worker.take()[0].headers["dead.reason"] == "expired"


def test_the_urgent_go_first_and_the_unacknowledged_come_again(desk: Desk) -> None:
    # spec: queues
    desk.node.queues.declare(QueueSettings("q", ack_timeout=10, max_deliveries=2))
    desk.client("kobold-1").send(Message("q", b"1"), Message("q", b"2", priority=1))
    worker, other = desk.client("kobold-2"), desk.client("kobold-3")
    worker.send(Message(op=Op.SUBSCRIBE, address="q"))
    assert [(m.payload, m.parameters.attempt) for m in worker.take()] == [(b"2", 1), (b"1", 1)]
    other.send(Message(op=Op.DEQUEUE, address="q"))
    assert [m.op for m in other.take()] == [Op.OK]  # invisible to others
    desk.pass_time(11)
    assert [(m.payload, m.parameters.attempt) for m in worker.take()] == [(b"2", 2), (b"1", 2)]
    desk.pass_time(11)
    assert len(desk.node.queues.get("q/$dead")) == 2


def test_a_revision_is_never_used_twice(desk: Desk) -> None:  # spec: data store
    client, watcher = desk.client("kobold-1"), desk.client("kobold-3")
    watcher.send(Message(op=Op.WATCH, address="k"))
    for op in (Op.CREATE, Op.CREATE, Op.UPDATE, Op.DELETE, Op.READ, Op.CREATE):
        client.send(Message(op=op, address="k", payload=b"v"))
    answers = client.take()
    assert [m.parameters.rev or m.parameters.code for m in answers] == [
        1, "exists", 2, 3, "not_found", 4,
    ]  # fmt: skip
    assert [(m.op, m.parameters.rev) for m in watcher.take()] == [
        (Op.SET, 1), (Op.SET, 2), (Op.DEL, 3), (Op.SET, 4),
    ]  # fmt: skip


def test_a_stream_ends_with_its_count_and_how(desk: Desk) -> None:
    # spec: byte streams, decision 34
    alice, bob = desk.client("kobold-1", "alice"), desk.client("boson-binary", "bob")
    for code in ("", "busy"):
        alice.send(Message(op=Op.OPEN, address="bob", correlation_id="mine"))
        (opened,) = bob.take()
        assert opened.correlation_id != "mine"  # each side has a name of its own
        alice.send(Message(op=Op.DATA, correlation_id="mine", payload=b"12345"))
        said = Parameters(code=code)
        alice.send(Message(op=Op.CLOSE, correlation_id="mine", parameters=said))
        data, closed = bob.take()
        assert data.payload == b"12345"
        assert closed.parameters == said.but(count=5)
    desk.client("tmq-1.01", "car")
    alice.take()
    alice.send(Message(op=Op.OPEN, address="car", correlation_id="s"))
    assert codes(alice) == ["not_found"]


# Limits and bad input


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_broken_frame_is_answered_counted_logged_and_ends_its_connection(
    desk: Desk, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    # decision 57
    # spec: limits
    bystander = desk.client("kobold-1")
    bystander.subscribe("a")
    client = desk.client(dialect, "breaker")
    with caplog.at_level(logging.WARNING):
        client.say(b"\xff" * 60)
    assert not client.is_open
    assert desk.node.vitals.counters["protocol_errors"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"desk/{dialect}: {dialect}: byte ")
    if dialect.startswith(("boson", "kobold")):
        assert codes(client) == ["bad_request"]
    desk.client("kobold-3").publish("a", b"as ever")
    assert bystander.payloads() == [b"as ever"]


@pytest.mark.parametrize("dialect", ["boson-text", *OPS, *TMQ])
def test_a_length_over_the_limit_is_refused_when_it_is_read(dialect: str) -> None:
    # spec: limits
    client = Desk(Node(Engine.in_memory(), Limits(message=2048))).client(dialect, "boaster")
    head = {
        "boson-text": b"99999|",
        "boson-binary": b"\0\1\0\1\0\0",
        "tmq-1.00": b"\x11\x10\0\0\1\0\0\x80\x80\x04",
        "tmq-1.01": b"\x11\x10\0\0\1\0\0\xfe\0\1\0\0",
    }.get(dialect, b"\0\1\0\0")
    client.say(head)
    assert not client.is_open


@pytest.mark.parametrize("dialect", OPS)
def test_what_cannot_be_done_is_answered_and_the_connection_lives_on(
    desk: Desk, dialect: str
) -> None:
    # spec: limits, kobold 8
    client = desk.client(dialect, "client")
    client.send(Message(op=Op.CREATE, address="k"))
    client.take()
    for message, code in [
        (Message(op=Op.ACK, address="no queue", id="1"), "not_found"),
        (Message(op=Op.CREATE, address="k"), "exists"),
        (Message(op=Op.UPDATE, address="k", parameters=Parameters(rev=9)), "conflict"),
        (Message(op=Op.REQUEST, address="s", correlation_id="q"), "no_service"),
        (Message(op=Op.SUBSCRIBE, address="a#"), "bad_request"),
    ]:
        client.send(message)
        assert codes(client) == [code]
        assert code in CODES
    assert client.is_open


# Kobold


@pytest.mark.parametrize("dialect", OPS)
def test_a_publish_is_answered_only_when_it_asks(desk: Desk, dialect: str) -> None:
    # spec: kobold 9, decision 31
    client = desk.client(dialect)
    client.send(Message("a", correlation_id="t"), Message("a", id="i"))
    assert client.take() == []
    client.send(Message("a", id="i", flags=Flag.ACK))
    assert [(m.op, m.id) for m in client.take()] == [(Op.OK, "i")]
    quiet = Message(op=Op.ENQUEUE, address="q")
    client.send(quiet, replace(quiet, correlation_id="t"), replace(quiet, id="i", flags=Flag.ACK))
    assert [(m.op, m.correlation_id, m.id) for m in client.take()] == [
        (Op.OK, "t", ""), (Op.OK, "", "i"),
    ]  # fmt: skip
    client.send(Message(op=Op.READ, address="k"), Message(op=Op.INFO, address="$node"))
    assert ops(client.take()) == ["error", "ok"]  # always
    client.send(Message(op=Op.DEQUEUE, address="empty"))
    assert ops(client.take()) == ["ok"]


# mfp


@pytest.mark.parametrize(
    "payload",
    [
        b"\x02\x00" + "alice".encode("utf-16-be"),
        b"\x01\x02" + "alice".encode("utf-16-be"),
        b"\x01\x00" + "abc".encode("utf-16-be"),
        b"\x01\x00" + ("a" * 33).encode("utf-16-be"),
    ],
)
def test_a_bad_mfp_handshake_fails_and_ends(desk: Desk, payload: bytes) -> None:  # spec: mfp 2
    client = Client(desk, "mfp-1")
    client.say(mfp(0, payload))
    assert [(m.op, m.id) for m in client.take()] == [(Op.ERROR, UID.hex())]
    assert not client.is_open
    good = Client(desk, "mfp-1")
    good.say(mfp(0, b"\x01\x00" + "alice".encode("utf-16-be")))
    assert [(m.op, m.id) for m in good.take()] == [(Op.OK, UID.hex())]


def test_an_mfp_topic_replaces_the_one_before(desk: Desk) -> None:  # spec: mfp 3
    listener, pub = desk.client("kobold-1"), desk.client("mfp-1", "alice")
    listener.subscribe("#")
    for topic in (b"a", b"b"):
        pub.say(mfp(1, b"\0" + topic) + mfp(2, b"\0\1x"))
    assert [m.address for m in listener.take()] == ["a", "b"]


def test_an_mfp_message_is_acknowledged_if_it_asks(desk: Desk) -> None:  # spec: mfp 4
    pub = desk.client("mfp-1", "alice")
    pub.say(mfp(2, b"\0\0no topic") + mfp(2, b"\0\1no topic"))
    assert ops(pub.take()) == ["error"]
    pub.say(mfp(1, b"\0a") + mfp(2, b"\0\0x") + mfp(2, b"\0\1x") + mfp(2, b"\0\0" + b"x" * 1001))
    assert ops(pub.take()) == ["ok", "ok", "error"]
    desk.node.clients.rights_of_strangers.publish = ("b",)
    desk.node.topics.forget_all()
    pub.say(mfp(2, b"\0\0x"))
    assert ops(pub.take()) == ["error"]
    assert pub.is_open


@pytest.mark.parametrize("length", [(64 << 10) + 1, -1])
def test_an_mfp_length_over_64_kib_or_below_0_ends(desk: Desk, length: int) -> None:
    # spec: mfp 5
    pub = desk.client("mfp-1", "alice")
    pub.say(mfp(2, b"", length))
    assert not pub.is_open


def test_an_mfp_subscriber_gets_uid_and_type_of_mfp_and_new_ones_of_others(desk: Desk) -> None:
    # spec: mfp 6
    sub, pub = desk.client("mfp-1", "sub1", "sub"), desk.client("mfp-1", "pub1")
    sub.subscribe("a")
    pub.say(mfp(1, b"\0a") + mfp(2, b"\1\0raw") + mfp(2, b"\0\1text"))
    assert bytes(sub.received) == mfp(2, b"\1\1raw") + mfp(2, b"\0\1text")
    sub.received.clear()
    desk.client("kobold-1").send(Message("a", "ž".encode()), Message("a", b"\xff"))
    text, raw = sub.take()
    assert (bool(text.flags & Flag.TEXT), bool(raw.flags & Flag.TEXT)) == (True, False)
    assert len({text.id, raw.id, UID.hex()}) == 3


def test_an_mfp_subscriber_gets_all_its_topics_in_order_of_arrival(desk: Desk) -> None:
    # spec: mfp 7
    sub = desk.client("mfp-1", "sub1", "sub")
    sub.subscribe("a", "b", "c/#")
    desk.client("boson-binary").send(
        *[Message(("a", "b", "c/d")[k % 3], b"%d" % k) for k in range(9)]
    )
    assert sub.payloads() == [b"%d" % k for k in range(9)]


def test_an_mfp_token_is_behind_the_name(desk: Desk) -> None:  # spec: mfp 8
    desk.node.clients.rights_of_token = {"secret": desk.node.clients.rights_of_strangers}.get
    assert ops(desk.client("mfp-1", "alice", token="secret").opening) == ["ok"]
    assert "alice" in desk.node.clients
    wrong = desk.client("mfp-1", "bob1", token="wrong")
    assert ops(wrong.opening) == ["error"]
    assert not wrong.is_open


# TMQ


def test_a_tmq_hello_with_a_wrong_token_is_401(desk: Desk) -> None:  # spec: tmq 1
    desk.node.clients.rights_of_token = lambda token: None
    client = desk.client("tmq-1.01", "c1", token="wrong")
    assert [m.content_type for m in client.opening] == [0, 401]
    assert not client.is_open
    other = Client(desk, "tmq-1.01")
    other.send(Message(op=Op.HANDSHAKE))
    other.send(Message(op=Op.HELLO, payload=b""))
    assert other.take()[1].content_type == 202


@pytest.mark.parametrize("dialect", TMQ)
def test_tmq_server_messages_are_answered_with_rs(desk: Desk, dialect: str) -> None:
    # spec: tmq 4, decision 38
    client = desk.client(dialect, "c1")
    assert ask(client, Op.SUBSCRIBE, "a") == 200
    assert ask(client, Op.UNSUBSCRIBE, "a") == 200
    assert ask(client, Op.UNSUBSCRIBE, "a") == 404
    assert ask(client, Op.SUBSCRIBE, "a#") == 400
    assert ask(client, Op.DECLARE, "q", b"\0\7Mode: pull\r\nAck-Timeout: 5\r\n") == 200
    assert desk.node.queues.get("q").settings == QueueSettings(
        "q", mode="pull", ack_timeout=5, content_type=7
    )
    assert ask(client, Op.DECLARE, "q") == 481
    client.send(Message(op=Op.LIST, id="l", flags=Flag.RESPONSE))
    (listed,) = client.take()
    assert [each["name"] for each in json.loads(listed.payload)] == ["q"]
    desk.node.clients.rights_of_strangers.admin = False
    assert ask(client, Op.REMOVE, "q") == 401
    desk.node.clients.rights_of_strangers.admin = True
    assert ask(client, Op.REMOVE, "q") == 200
    assert ask(client, Op.REMOVE, "q") == 404
    client.send(Message(op=Op.SUBSCRIBE, address="b"))
    assert client.take() == []


def test_tmq_tells_the_first_receiver_and_puts_the_urgent_at_the_head(desk: Desk) -> None:
    # spec: tmq 5
    desk.node.queues.declare(QueueSettings("q"))
    producer, worker = desk.client("tmq-1.01", "producer"), desk.client("tmq-1.00", "worker")
    producer.send(Message("q", b"1", content_type=7), Message("q", b"2", priority=1, id="m2"))
    worker.send(Message(op=Op.SUBSCRIBE, address="q"))
    urgent, plain = worker.take()
    assert [m.payload for m in (urgent, plain)] == [b"2", b"1"]
    assert (urgent.id, urgent.priority, plain.content_type) == ("m2", 1, 7)
    assert plain.id  # one was made
    for message in (urgent, plain):
        assert message.source == "producer"
        assert message.flags & Flag.ACK  # DE: the queue wants it
        assert message.flags & Flag.FIRST
    worker.send(Message(op=Op.NACK, address="q", id="m2"))
    (again,) = worker.take()
    assert not again.flags & Flag.FIRST
    one, two = desk.client("tmq-1.01", "one"), desk.client("tmq-1.01", "two")
    for client in (one, two):
        client.subscribe("t")
    producer.send(Message("t", b"x", flags=Flag.ACK))
    got = one.take() + two.take()
    assert [bool(m.flags & Flag.FIRST) for m in got] == [True, False]
    assert not any(m.flags & Flag.ACK for m in got)  # the sender asked, the topic does not


def test_tmq_queues_have_four_modes(desk: Desk) -> None:  # spec: tmq 6, decision 38
    admin = desk.client("tmq-1.01", "admin")
    workers = [desk.client("tmq-1.01", f"w{k}") for k in range(2)]
    got = {}
    for mode in ("round-robin", "push", "broadcast", "pull"):
        assert ask(admin, Op.DECLARE, mode, b"\0\0Mode: %b\r\n" % mode.encode()) == 200
        for worker in workers:
            worker.send(Message(op=Op.SUBSCRIBE, address=mode))
        admin.publish(mode, b"x")
        got[mode] = [len(worker.take()) for worker in workers]
    assert got == {"round-robin": [1, 0], "push": [1, 1], "broadcast": [1, 1], "pull": [0, 0]}
    assert "broadcast" not in desk.node.queues
    workers[1].send(Message(op=Op.DEQUEUE, address="pull", payload=b"5"))
    assert [m.payload for m in workers[1].take()] == [b"x"]
    assert ask(admin, Op.DEQUEUE, "pull", b"many") == 400


@pytest.mark.parametrize("dialect", TMQ)
def test_a_tmq_delivery_acknowledges_or_refuses(desk: Desk, dialect: str) -> None:  # spec: tmq 7
    desk.node.queues.declare(QueueSettings("q"))
    client = desk.client(dialect, "client")
    client.send(Message("q", b"x", id="m1", flags=Flag.ACK, content_type=7))
    stored = [(m.op, m.id, m.content_type) for m in client.take()]
    assert stored == [(Op.ACK, "m1", 7)]  # the content type is an echo
    client.send(Message(op=Op.SUBSCRIBE, address="q"))
    client.take()
    for word in (b"FAILED", b"Timeout"):  # refused
        client.say(bytes.fromhex("13100200010007") + bytes([len(word)]) + b"m1q" + word)
        assert [m.id for m in client.take()] == ["m1"]
    client.say(bytes.fromhex("1310020001000100") + b"m1q")  # content type 1 means nothing
    assert len(desk.node.queues.get("q")) == 0


@pytest.mark.parametrize("dialect", TMQ)
def test_a_tmq_client_message_keeps_its_flags(desk: Desk, dialect: str) -> None:  # spec: tmq 8
    alice, bob = desk.client(dialect, "alice"), desk.client(dialect, "bob1")
    alice.say(b"\xd2\xd0\x02\x03\x04\0\7\1" + b"m1" + b"eve" + b"bob1" + b"x")
    (message,) = bob.take()
    assert (message.source, message.id, message.content_type) == ("alice", "m1", 7)
    assert message.flags & Flag.FIRST
    assert message.flags & Flag.ACK
    assert message.flags & Flag.RESPONSE
    assert message.priority == 1
    alice.send(Message(op=Op.DIRECT, target="nobody"))
    assert alice.take() == []  # not even an error, without RS


@pytest.mark.parametrize("dialect", TMQ)
def test_a_tmq_response_goes_to_its_client_or_requester(desk: Desk, dialect: str) -> None:
    # spec: tmq 9
    alice, bob = desk.client(dialect, "alice"), desk.client("tmq-1.01", "bob1")
    bob.send(Message(op=Op.REPLY, target="alice", id="m1", payload=b"r"))
    (response,) = alice.take()
    assert (response.op, response.id, response.source) == (Op.REPLY, "m1", "bob1")
    service = desk.client("kobold-1", "service")
    service.send(Message(op=Op.SERVE, address="s"))
    alice.send(Message("s", b"?", id="q1", flags=Flag.RESPONSE))
    (request,) = service.take()
    service.send(Message(op=Op.REPLY, correlation_id=request.correlation_id, payload=b"!"))
    (reply,) = alice.take()
    assert (reply.op, reply.id, reply.payload) == (Op.REPLY, "q1", b"!")


def test_a_tmq_ttl_is_a_hop_count(desk: Desk) -> None:  # spec: tmq 11
    listener, sender = desk.client("tmq-1.01", "listener"), desk.client("tmq-1.01", "sender")
    listener.subscribe("a")
    sender.send(*[Message("a", ttl=ttl) for ttl in (63, 2, 0)])
    assert [m.ttl for m in listener.take()] == [62, 1, 15]


def test_a_tmq_terminate_gives_back_what_is_not_acknowledged(desk: Desk) -> None:
    # spec: tmq 12
    desk.node.queues.declare(QueueSettings("q"))
    worker, other = desk.client("tmq-1.01", "worker"), desk.client("kobold-1", "other")
    worker.send(Message(op=Op.SUBSCRIBE, address="q"))
    worker.reads = False
    other.publish("q", b"x")
    worker.send(Message(op=Op.TERMINATE))
    assert not worker.is_open
    worker.drain()
    assert [m.payload for m in worker.take()] == [b"x"]  # it was on its way
    other.send(Message(op=Op.SUBSCRIBE, address="q"))
    assert [(m.payload, m.parameters.attempt) for m in other.take()] == [(b"x", 2)]


# Ours


def test_boson_text_answers_controls_and_mfp_options(desk: Desk) -> None:  # decision 31
    text, sub = desk.client("boson-text"), desk.client("mfp-1", "sub1", "sub")
    text.say(b"1|0|$subscribe|a0|0|$ping|1|0|t|x0|0|$reply/q|")
    assert ops(text.take()) == ["ok", "pong"]
    sub.say(mfp(1, b"\1a") + mfp(1, b"\2a") + mfp(1, b"\3") + mfp(1, b"\2a"))
    assert ops(sub.take()) == ["ok", "ok", "ok", "error"]


@pytest.mark.parametrize("dialect", OPS)
def test_a_token_in_a_publish_is_seen_by_nobody(desk: Desk, dialect: str) -> None:  # decision 32
    listener, client = desk.client(dialect), desk.client(dialect)
    listener.subscribe("a")
    client.send(Message("a", b"x", headers={"k": "v"}, parameters=Parameters(token="secret")))
    assert b"secret" not in listener.received
    assert [m.headers for m in listener.take()] == [{"k": "v"}]


@pytest.mark.parametrize("dialect", OPS)
def test_a_publish_with_a_target_is_a_direct_message(desk: Desk, dialect: str) -> None:
    # decision 33
    listener, bob = desk.client("kobold-1"), desk.client("kobold-3", "bob")
    listener.subscribe("#")
    desk.client("boson-text").subscribe("#")
    alice = desk.client(dialect, "alice")
    alice.send(Message("a", b"hi", target="bob"))
    assert [(m.payload, m.source) for m in bob.take()] == [(b"hi", "alice")]
    assert listener.take() == []
    desk.client("mfp-1", "an mfp client", "sub")
    alice.send(Message("a", b"hi", target="an mfp client", correlation_id="t"))
    assert codes(alice) == ["not_found"]


def test_what_dies_among_the_dead_is_dropped(desk: Desk) -> None:  # decision 35
    desk.node.queues.declare(QueueSettings("q"))
    worker = desk.client("kobold-1")
    worker.publish("q", b"x")
    for queue in ("q", "q/$dead"):
        worker.send(Message(op=Op.DEQUEUE, address=queue))
        (message,) = [m for m in worker.take() if m.op == Op.DELIVER]
        assert message.headers.get("dead.reason", "") == ("rejected" if "/" in queue else "")
        said = Parameters(requeue=False)
        worker.send(Message(op=Op.NACK, address=queue, id=message.id, parameters=said))
    assert [len(queue) for queue in desk.node.queues.all()] == [0, 0]


def test_two_messages_of_one_id_are_told_apart(desk: Desk) -> None:  # decision 36
    desk.node.queues.declare(QueueSettings("q"))
    worker = desk.client("tmq-1.01", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="q"))
    for name in ("alice", "bob"):
        desk.client("kobold-1", name).send(Message("q", b"x", id="same"))
    one, two = worker.take()
    assert (one.id, two.id != "same") == ("same", True)


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [(("#",), True), (("$client/+",), True), (("$client/bob",), True), (("a",), False)],
)
def test_sending_to_a_client_takes_a_right(
    desk: Desk, rights: tuple[str, ...], allowed: bool
) -> None:
    # decision 37
    bob = desk.client("kobold-1", "bob")
    mine = Rights("mine", publish=rights)
    desk.node.clients.rights_of_token = {"secret": mine}.get
    alice = desk.client("kobold-3", "alice", token="secret")
    alice.send(Message(payload=b"hi", target="bob", correlation_id="t"))
    assert codes(alice) == ([] if allowed else ["unauthorized"])
    assert len(bob.take()) == allowed
    alice.publish("b", b"", ack=True)
    assert codes(alice) == ([] if rights == ("#",) else ["unauthorized"])


@pytest.mark.parametrize("dialect", TMQ)
def test_a_tmq_question_to_a_topic_reaches_its_subscribers_or_is_404(
    desk: Desk, dialect: str
) -> None:
    # decision 44, spec: tmq 9
    asker, listener = desk.client(dialect, "asker"), desk.client("tmq-1.01", "listener")
    question = Message("a", b"?", id="q1", flags=Flag.RESPONSE)
    asker.send(question)
    assert [(m.op, m.id, m.content_type) for m in asker.take()] == [(Op.REPLY, "q1", 404)]
    listener.subscribe("a")
    asker.send(question)
    (heard,) = listener.take()
    assert heard.flags & Flag.RESPONSE
    listener.send(Message(op=Op.REPLY, target=heard.source, id=heard.id, payload=b"!"))
    assert [(m.op, m.id, m.payload) for m in asker.take()] == [(Op.REPLY, "q1", b"!")]
