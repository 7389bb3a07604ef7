"""TMQ as published clients speak it: byte orders, pulls, acknowledgements, what they ask for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.broker.desk import Client, Desk
from wirelake.broker.rights import Rights, all_rights
from wirelake.dialects.tmq import session as tmq_session
from wirelake.journal.engine import QueueSettings
from wirelake.message import Flag, Message, Op

TMQ = ("tmq-1.00", "tmq-1.01")
HELLO = bytes.fromhex("1010000000") + b"\x65\x00\x10Client-Id: low\r\n"


@pytest.fixture
def desk() -> Desk:
    """A broker with neither sockets nor a clock."""
    return Desk()


class LowClient(Client):
    """A client whose numbers are little-endian; its own reading and writing is set to that."""

    def open(self, name: str, role: str, token: str) -> None:
        """The greeting, then Hello."""
        self._encoder.set_variant("little")
        super().open(name, role, token)


def low_client(desk: Desk, name: str) -> LowClient:
    """A little-endian client that has said Hello."""
    client = LowClient(desk, "tmq-1.01")
    client.open(name, "", "")
    return client


def ask(client: Client, content_type: int, name: str = "", payload: bytes = b"") -> tuple[int, Any]:
    """Ask by a server message; the content type of the answer, and its JSON or text."""
    message = Message(
        op=Op.SERVER,
        address=name if content_type <= 620 else "",
        content_type=content_type,
        payload=payload,
        id="r",
        flags=Flag.RESPONSE,
    )
    client.send(message)
    (answer,) = client.take()
    assert (answer.op, answer.id) == (Op.REPLY, "r")
    text = answer.payload.decode()
    return answer.content_type, json.loads(text) if text[:1] in ("[", "{") else text


# Byte orders


def test_a_little_endian_hello_is_answered_in_kind(desk: Desk) -> None:  # spec: tmq 2
    client = Client(desk, "tmq-1.01")
    client.say(b"TMQ/1.01" + HELLO)
    accepted = bytes.fromhex("1010000003ca0012") + b"lowServer: wirelake\r\n"
    assert bytes(client.received) == b"TMQ/1.01" + accepted
    client.received.clear()
    client.say(bytes.fromhex("1090010001590200") + b"jq")  # 601, join
    assert bytes(client.received) == bytes.fromhex("1410010003c80000") + b"jlow"


def test_clients_of_both_orders_share_a_topic(desk: Desk) -> None:  # spec: tmq 2
    """Nothing is forwarded as it came from one order to the other."""
    high, low = desk.client("tmq-1.01", "high"), low_client(desk, "low")
    old, kobold = desk.client("tmq-1.00", "old"), desk.client("kobold-3", "kobold")
    for client in (high, low, old, kobold):
        client.subscribe("t")
    for sender in (high, low):
        for size in (3, 300, 70_000):
            sender.send(Message("t", b"x" * size, content_type=0x0102, id="m"))
            for client in (high, low, old):
                (got,) = client.take()
                assert (got.payload, got.content_type) == (b"x" * size, 0x0102)
                assert got.source == sender.session.client_id
            assert kobold.payloads() == [b"x" * size]
    low.send(Message("t", b"y" * 300, content_type=0x0102))
    assert bytes(low.received)[5:10] == bytes.fromhex("0201fd2c01")
    assert bytes(high.received)[5:10] == bytes.fromhex("0102fd012c")


def test_one_receiver_is_the_first_whatever_its_form(desk: Desk) -> None:  # spec: tmq 5
    clients = [desk.client("tmq-1.01", "a"), low_client(desk, "b"), desk.client("tmq-1.00", "c")]
    clients += [low_client(desk, "d"), desk.client("tmq-1.01", "e")]
    for client in clients:
        client.subscribe("t")
    desk.client("kobold-1").publish("t", b"x")
    firsts = [bool(client.take()[0].flags & Flag.FIRST) for client in clients]
    assert firsts.count(True) == 1


def test_queues_and_declarations_are_read_in_the_order_of_the_connection(desk: Desk) -> None:
    """spec: tmq 2, 4: the content type inside 610."""
    low, high = low_client(desk, "low"), desk.client("tmq-1.01", "high")
    low.send(Message(op=Op.DECLARE, address="a", payload=b"\1\2Mode: push\r\n"))
    high.send(Message(op=Op.DECLARE, address="b", payload=b"\1\2Mode: push\r\n"))
    assert desk.node.queues.get("a").settings.content_type == 0x0201
    assert desk.node.queues.get("b").settings.content_type == 0x0102
    high.publish("a", b"z" * 253, ack=True)
    assert [m.op for m in high.take()] == [Op.ACK]
    low.send(Message(op=Op.SUBSCRIBE, address="a"))
    (got,) = low.take()
    assert got.payload == b"z" * 253
    low.send(Message(op=Op.ACK, address="a", id=got.id, content_type=got.content_type))
    assert len(desk.node.queues.get("a")) == 0


def test_a_redirect_holds_a_message_in_the_order_of_its_connection(desk: Desk) -> None:
    """spec: tmq 2, 10."""
    low, high = low_client(desk, "low"), desk.client("tmq-1.01", "high")
    inner = bytes.fromhex("1205000003020103") + b"xyzhey"
    low.send(Message(op=Op.REDIRECT, target="high", payload=inner))
    (got,) = high.take()
    assert (got.op, got.content_type, got.payload, got.ttl) == (Op.DIRECT, 0x0102, b"hey", 4)


def test_a_hello_that_comes_late_changes_the_order_of_what_was_subscribed(desk: Desk) -> None:
    """spec: tmq 2: from then on."""
    client = Client(desk, "tmq-1.01")
    client.say(b"TMQ/1.01" + bytes.fromhex("1010000001025900") + b"t")
    sender = desk.client("kobold-1")
    sender.publish("t", b"before")
    client.say(HELLO)
    client.received.clear()
    sender.publish("t", b"x" * 253)
    assert bytes(client.received)[5:10] == bytes.fromhex("0000fdfd00")


# Without Hello


@pytest.mark.parametrize("dialect", TMQ)
def test_a_client_without_hello_is_a_stranger(desk: Desk, dialect: str) -> None:  # spec: tmq 1
    client, listener = Client(desk, dialect), desk.client("kobold-1")
    listener.subscribe("a")
    client.send(Message(op=Op.HANDSHAKE))
    client.send(Message("a", b"first", flags=Flag.ACK, id="m"), Message("a", b"second"))
    greeting, accepted = client.take()
    assert (greeting.op, accepted.op, accepted.id) == (Op.HANDSHAKE, Op.ACK, "m")
    assert listener.payloads() == [b"first", b"second"]
    assert client.session.client_id.startswith("client-")
    client.send(Message(op=Op.SUBSCRIBE, address="b", id="j", flags=Flag.RESPONSE))
    assert [m.content_type for m in client.take()] == [200]


@pytest.mark.parametrize("dialect", TMQ)
def test_where_strangers_have_no_rights_a_client_says_hello_or_is_closed(
    desk: Desk, dialect: str
) -> None:
    """spec: tmq 1."""
    desk.node.clients.rights_of_strangers = Rights("strangers")
    desk.node.clients.rights_of_token = {"secret": all_rights("friends")}.get
    client = Client(desk, dialect)
    client.send(Message(op=Op.HANDSHAKE))
    client.send(Message(op=Op.SUBSCRIBE, address="a", id="j", flags=Flag.RESPONSE))
    assert [(m.op, m.content_type) for m in client.take()] == [(Op.HANDSHAKE, 0), (Op.ERROR, 401)]
    assert not client.is_open
    assert desk.node.vitals.counters["refused.unauthorized"] == 1
    friend = desk.client(dialect, "friend", token="secret")
    assert friend.opening[1].content_type == 202


# Pull, as published clients do it


def pull(client: Client, name: str, request: str) -> Message:
    """A channel message with RS and no payload; the answer."""
    client.send(Message(name, id=request, flags=Flag.RESPONSE, content_type=5))
    (answer,) = client.take()
    assert (answer.op, answer.id, answer.target) == (Op.REPLY, request, client.session.client_id)
    return answer


@pytest.mark.parametrize("dialect", TMQ)
def test_a_pull_takes_one_message_as_a_response(desk: Desk, dialect: str) -> None:  # spec: tmq 6
    # decision 67
    desk.node.queues.declare(QueueSettings("q", mode="pull"))
    producer, worker = desk.client("kobold-3", "producer"), desk.client(dialect, "worker")
    queue = desk.node.queues.get("q")
    nothing = pull(worker, "q", "r0")
    assert (nothing.payload, nothing.content_type) == (b"", 404)
    desk.client("tmq-1.01", "other").send(
        Message("q", b"one", content_type=7, id="m1"), Message("q", b"two", id="m2")
    )
    producer.publish("q", b"three")
    first = pull(worker, "q", "r1")
    assert (first.payload, first.content_type, first.source) == (b"one", 7, "other")
    assert first.flags & Flag.ACK  # it wants to be acknowledged
    second, third = pull(worker, "q", "r2"), pull(worker, "q", "r3")
    assert (second.payload, third.payload) == (b"two", b"three")
    assert pull(worker, "q", "r4").payload == b""
    # Published clients take the source for the target of such an acknowledgement.
    worker.send(Message(op=Op.ACK, address="other", id="r1", content_type=7))
    worker.send(Message(op=Op.ACK, address="q", id="r2"))
    worker.send(Message(op=Op.NACK, address="producer", id="r3"))
    assert worker.take() == []
    assert queue.state(desk.now)["held"] == 0
    assert pull(worker, "q", "r5").payload == b"three"
    assert len(queue) == 1


def test_a_pulled_message_that_is_not_acknowledged_comes_again(desk: Desk) -> None:
    """spec: tmq 6, decision 67."""
    desk.node.queues.declare(QueueSettings("q", mode="pull", ack_timeout=5))
    desk.client("kobold-3").publish("q", b"x")
    worker = desk.client("tmq-1.01", "worker")
    assert pull(worker, "q", "r1").payload == b"x"
    desk.pass_time(6)
    worker.send(Message(op=Op.ACK, address="q", id="r1", flags=Flag.RESPONSE))  # too late
    assert [m.content_type for m in worker.take()] == [404]
    assert pull(worker, "q", "r2").payload == b"x"
    worker.send(Message(op=Op.ACK, address="q", id="r2"))
    assert len(desk.node.queues.get("q")) == 0


def test_a_pull_needs_the_right_to_consume(desk: Desk) -> None:  # spec: tmq 6
    desk.node.queues.declare(QueueSettings("q", mode="pull"))
    desk.node.clients.rights_of_strangers = Rights("strangers", publish=("#",))
    client = desk.client("tmq-1.01")
    assert pull(client, "q", "r").content_type == 401


def test_only_an_empty_request_to_a_queue_of_mode_pull_pulls(desk: Desk) -> None:  # spec: tmq 6
    desk.node.queues.declare(QueueSettings("pull", mode="pull"))
    desk.node.queues.declare(QueueSettings("push", mode="push"))
    client = desk.client("tmq-1.01", "c")
    client.send(Message("pull", b"full", id="a", flags=Flag.RESPONSE))
    client.send(Message("push", b"", id="b", flags=Flag.RESPONSE))
    client.send(Message("pull", b"", id="c"))
    assert client.take() == []
    assert [len(desk.node.queues.get(name)) for name in ("pull", "push")] == [2, 1]


def test_notes_on_pulled_messages_do_not_pile_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tmq_session, "MANY_PULLED", 4)
    desk.node.queues.declare(QueueSettings("q", mode="pull", ack_timeout=1, max_deliveries=1000))
    desk.client("kobold-3").publish("q", b"x")
    worker = desk.client("tmq-1.01", "worker")
    for k in range(50):
        assert pull(worker, "q", f"r{k}").payload == b"x"
        desk.pass_time(1.5)
    assert len(worker.session._pulled) <= 8  # type: ignore[attr-defined]


# Acknowledgements of direct messages


@pytest.mark.parametrize("dialect", TMQ)
@pytest.mark.parametrize("word", [b"", b"FAILED"])
def test_a_delivery_whose_target_is_a_client_goes_there(
    desk: Desk, dialect: str, word: bytes
) -> None:
    """spec: tmq 7: it acknowledges a direct message."""
    alice, bob = desk.client(dialect, "alice"), low_client(desk, "bob")
    alice.send(Message(op=Op.DIRECT, target="bob", id="d1", content_type=9, flags=Flag.ACK))
    (got,) = bob.take()
    assert (got.op, got.source, bool(got.flags & Flag.ACK)) == (Op.DIRECT, "alice", True)
    op = Op.NACK if word else Op.ACK
    bob.send(Message(op=op, address="alice", id="d1", content_type=9, payload=word))
    (ack,) = alice.take()
    assert (ack.op, ack.id, ack.source, ack.content_type) == (op, "d1", "bob", 9)
    assert (ack.address, ack.payload) == ("alice", word)


def test_an_acknowledgement_that_nobody_can_get_is_not_found(desk: Desk) -> None:  # spec: tmq 7
    desk.client("kobold-3", "kobold")
    client = desk.client("tmq-1.01", "c")
    for target in ("nobody", "kobold"):
        client.send(Message(op=Op.ACK, address=target, id="d1", flags=Flag.RESPONSE))
        assert [m.content_type for m in client.take()] == [404]
    client.send(Message(op=Op.ACK, address="nobody", id="d1"))
    assert client.take() == []


# Further content types


@pytest.mark.parametrize("dialect", TMQ)
def test_channels_queues_and_clients_are_told(desk: Desk, dialect: str) -> None:
    """spec: tmq 4, decision 68"""
    client, other = desk.client(dialect, "c"), desk.client("kobold-2", "other")
    other.subscribe("house/#", "news")
    assert ask(client, 603, "garden") == (200, "")
    assert ask(client, 603, "a/+")[0] == 400
    client.send(Message(op=Op.DECLARE, address="jobs", payload=b"\0\7Mode: pull\r\n"))
    assert ask(client, 603, "jobs")[0] == 481
    assert ask(client, 605, "news") == (200, {"name": "news", "kind": "topic", "subscribers": 1})
    code, told = ask(client, 605, "jobs")
    assert (code, told["kind"], told["queue"]["mode"]) == (200, "queue", "pull")
    assert ask(client, 605, "garden")[0] == 404
    topics = {"house/#": 1, "news": 1}
    assert ask(client, 606) == (
        200,
        [
            *({"name": n, "kind": "topic", "subscribers": k} for n, k in topics.items()),
            {"name": "jobs", "kind": "queue"},
        ],
    )
    code, told = ask(client, 607, "house/door")
    assert (code, [each["id"] for each in told]) == (200, ["other"])
    pull(client, "jobs", "r1")
    code, told = ask(client, 607, "jobs")
    assert [each["id"] for each in told] == ["c"]
    code, told = ask(client, 615, "jobs")
    assert (code, told["messages"], told["content_type"]) == (200, 0, 7)
    assert ask(client, 615, "news")[0] == 404
    code, told = ask(client, 631)
    assert sorted(each["id"] for each in told) == ["c", "other"]
    assert ask(client, 604, "news")[0] == 503  # it has subscribers
    assert ask(client, 604, "garden") == (200, "")
    assert ask(client, 604, "jobs") == (200, "")
    assert "jobs" not in desk.node.queues
    assert ask(client, 613, "jobs")[0] == 400


def test_a_queue_is_changed(desk: Desk) -> None:  # spec: tmq 4
    client = desk.client("tmq-1.01", "c")
    assert ask(client, 612, "q", b"\0\7Mode: pull\r\n")[0] == 404
    desk.node.queues.declare(QueueSettings("q", max_messages=5))
    assert ask(client, 612, "q", b"\0\7Mode: pull\r\nAck-Timeout: 9\r\n") == (200, "")
    wanted = QueueSettings("q", mode="pull", ack_timeout=9, content_type=7, max_messages=5)
    assert desk.node.queues.get("q").settings == wanted
    assert list(desk.node.engine.queues()) == [wanted]
    assert ask(client, 612, "q", b"\0\7Mode: broadcast\r\n")[0] == 400
    assert ask(client, 612, "q", b"\0\7Mode: odd\r\n")[0] == 400
    assert ask(client, 612, "q", b"\0\7Max-Deliveries: many\r\n")[0] == 400
    assert desk.node.queues.get("q").settings == wanted


def test_settings_as_published_clients_write_them(desk: Desk) -> None:  # decision 66
    client = desk.client("tmq-1.01", "c")
    lines = (
        b"Content-Type: 258\r\nRequest-Acknowledge: 1\r\nAcknowledge-Timeout: 1500\r\n"
        b"Use-Message-Id: 1\r\nQueue-Status: "
    )
    for status, mode in {"roundrobin": "round-robin", "push": "push", "pull": "pull"}.items():
        client.send(Message(op=Op.DECLARE, address=status, payload=lines + status.encode()))
        wanted = QueueSettings(status, mode=mode, ack_timeout=1.5, content_type=258)  # type: ignore[arg-type]
        assert desk.node.queues.get(status).settings == wanted
    client.send(Message(op=Op.DECLARE, address="route", payload=lines + b"route\r\n"))
    assert "route" not in desk.node.queues
    assert client.take() == []


NOBODY = Rights("nobody")
READER = Rights("reader", subscribe=("house/#",))
PRODUCER = Rights("producer", publish=("house/#",), subscribe=("house/#",))


@pytest.mark.parametrize(
    ("rights", "allowed"),
    [(NOBODY, {606}), (READER, {605, 606, 615}), (PRODUCER, {603, 605, 606, 615})],
    ids=["nobody", "reader", "producer"],
)
def test_what_is_told_and_changed_needs_rights(
    desk: Desk, rights: Rights, allowed: set[int]
) -> None:
    """spec: tmq 4: as in HTTP's admin interface."""
    desk.node.queues.declare(QueueSettings("house/jobs"))
    desk.client("kobold-2").subscribe("house/door", "secret")
    desk.node.clients.rights_of_token = {"token": rights}.get
    client = desk.client("tmq-1.01", "c", token="token")
    codes = {
        number: ask(client, number, "house/new" if number == 603 else "house/jobs", b"\0\1")[0]
        for number in (603, 604, 605, 606, 607, 612, 615, 631)
    }
    assert {number for number, code in codes.items() if code == 200} == allowed
    assert set(codes.values()) <= {200, 401}
    assert "secret" not in json.dumps(ask(client, 606)[1])


def test_a_server_message_without_rs_that_tells_nothing_is_not_answered(desk: Desk) -> None:
    client = desk.client("tmq-1.01", "c")
    client.send(Message(op=Op.SERVER, address="a", content_type=603))  # spec: tmq 4
    assert client.take() == []
