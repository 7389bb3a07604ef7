"""Who may make an address a queue, and to whom its dead letters belong."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.broker.desk import Client, Desk
from wirelake.broker.local import LocalLink, LocalSession
from wirelake.broker.node import Node
from wirelake.broker.queues import MAX_NAME
from wirelake.broker.rights import Rights
from wirelake.journal.engine import Engine, QueueSettings
from wirelake.message import Flag, Message, Op, Parameters

OPS = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]
TMQ = ["tmq-1.00", "tmq-1.01"]
ALL = ("#",)


def with_tokens(**tokens: Rights) -> Desk:
    """A broker with these tokens, and no rights for strangers."""
    desk = Desk(Node(Engine.in_memory()))
    desk.node.clients.rights_of_strangers = Rights("stranger")
    desk.node.clients.rights_of_token = tokens.get
    return desk


def wish(dialect: str, name: str) -> list[Message]:
    """What makes an address a queue, in every way that a dialect has."""
    if dialect in TMQ:
        declare = Message(op=Op.DECLARE, address=name, payload=b"\0\0", flags=Flag.RESPONSE, id="1")
        pull = Message(op=Op.DEQUEUE, address=name, payload=b"1", flags=Flag.RESPONSE, id="2")
        return [declare, pull]
    asking = Message(address=name, correlation_id="1", id="1")
    return [replace(asking, op=op) for op in (Op.ENQUEUE, Op.DEQUEUE)]


def code(client: Client) -> str:
    """The code that a client was refused with, empty if it was not."""
    answer = client.take()[-1]
    if answer.op == Op.REPLY:
        return {200: "", 202: "", 401: "unauthorized"}.get(answer.content_type, "conflict")
    return answer.parameters.code


@pytest.mark.parametrize("dialect", [*OPS, *TMQ])
@pytest.mark.parametrize("way", [0, 1])
def test_to_make_a_queue_takes_the_right_to(dialect: str, way: int) -> None:
    reader = Rights("reader", publish=ALL, subscribe=ALL)
    worker = Rights("worker", publish=ALL, subscribe=ALL, declare=("jobs/#",))
    desk = with_tokens(r=reader, w=worker)
    client = desk.client(dialect, token="r")
    client.send(wish(dialect, "jobs/1")[way])
    answer = client.take()[-1]
    assert b"`declare`" in answer.payload
    assert not desk.node.queues.all()
    client = desk.client(dialect, token="w")
    client.send(wish(dialect, "other")[way])
    assert code(client) == "unauthorized"
    client.send(wish(dialect, "jobs/1")[way])
    assert code(client) == ""
    assert "jobs/1" in desk.node.queues
    # One that is there is used with the rights to publish and to subscribe.
    client = desk.client("kobold-3", token="r")
    client.send(Message(op=Op.ENQUEUE, address="jobs/1", correlation_id="1"))
    assert code(client) == ""


@pytest.mark.parametrize("dialect", OPS)
def test_a_subscriber_of_the_very_address_keeps_it_a_topic_for_everyone(dialect: str) -> None:
    worker = Rights("worker", publish=ALL, subscribe=ALL, declare=ALL)
    for desk in (Desk(), with_tokens(w=worker)):
        listener = desk.client("kobold-3", token="w")
        listener.subscribe("house/door")
        client = desk.client(dialect, token="w")
        for message in wish(dialect, "house/door"):
            client.send(message)
            assert code(client) == "conflict"
        client.publish("house/door", b"open")
        assert listener.payloads() == [b"open"]


@pytest.mark.parametrize("dialect", OPS)
def test_a_wildcard_keeps_it_a_topic_for_those_without_a_configured_right(dialect: str) -> None:
    desk = Desk()
    listener = desk.client("kobold-3")
    listener.subscribe("house/#")
    client = desk.client(dialect)
    for message in wish(dialect, "house/door"):
        client.send(message)
        assert code(client) == "conflict"
    client.publish("house/door", b"open")
    assert listener.payloads() == [b"open"]
    for rights in (
        Rights("worker", publish=ALL, subscribe=ALL, declare=ALL),
        Rights("root", publish=ALL, subscribe=ALL, admin=True),
    ):
        desk = with_tokens(t=rights)
        desk.client("kobold-3", token="t").subscribe("house/#")
        client = desk.client(dialect, token="t")
        client.send(wish(dialect, "house/door")[0])
        assert code(client) == ""


def test_observers_never_keep_an_address_a_topic() -> None:
    desk = Desk()
    observer = LocalSession(
        desk.node, LocalLink("page", bool), desk.node.clients.rights_of_strangers, desk.now
    )
    observer.observes = True
    desk.node.topics.subscribe(observer, "jobs", desk.now)
    desk.node.topics.subscribe(observer, "#", desk.now)
    client = desk.client("kobold-3")
    client.send(Message(op=Op.ENQUEUE, address="jobs", correlation_id="1"))
    assert code(client) == ""


def bury(desk: Desk, queue: str) -> None:
    """Put a message into a queue, take it and refuse it."""
    client = desk.client("kobold-3")
    client.send(Message(op=Op.ENQUEUE, address=queue, payload=b"j1", id="j1"))
    client.send(Message(op=Op.DEQUEUE, address=queue))
    client.take()
    client.send(
        Message(
            op=Op.NACK,
            address=queue,
            id="j1",
            correlation_id="1",
            parameters=Parameters(requeue=False),
        )
    )
    assert code(client) == ""


def test_who_subscribed_to_the_dead_letters_before_there_was_a_queue_gets_them() -> None:
    desk = Desk()
    waiting = desk.client("kobold-3")
    waiting.subscribe("jobs/$dead")
    bury(desk, "jobs")
    (letter,) = waiting.take()
    assert (letter.op, letter.payload) == (Op.DELIVER, b"j1")
    assert letter.headers["dead.reason"] == "rejected"
    assert len(desk.node.queues.get("jobs")) == 0
    waiting.send(Message(op=Op.ACK, address="jobs/$dead", id=letter.id))
    assert len(desk.node.queues.get("jobs/$dead")) == 0


def test_dead_letters_are_taken_with_the_right_to_subscribe_alone() -> None:
    worker = Rights("worker", publish=ALL, subscribe=ALL)
    desk = with_tokens(w=worker)
    desk.node.queues.declare(QueueSettings("jobs"))
    client = desk.client("kobold-3", token="w")
    client.send(Message(op=Op.DEQUEUE, address="jobs/$dead", correlation_id="1"))
    assert code(client) == ""


def test_messages_that_die_in_the_clock_reach_the_dead_letters() -> None:
    desk = Desk()
    desk.client("kobold-3").subscribe("e/$dead")
    desk.node.queues.declare(QueueSettings("e", max_deliveries=1, ack_timeout=0.2))
    client = desk.client("kobold-3")
    client.send(*[Message(op=Op.ENQUEUE, address="e", id=str(n)) for n in range(20)])
    client.subscribe("e")
    desk.pass_time(3)
    assert len(desk.node.queues.get("e")) == 0
    assert len(desk.node.queues.get("e/$dead")) == 20


def test_a_name_leaves_room_for_its_dead_letters() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    client.send(Message(op=Op.ENQUEUE, address="L" * (MAX_NAME + 1), correlation_id="1"))
    assert code(client) == "bad_request"
    bury(desk, "L" * MAX_NAME)
    assert len(desk.node.queues.get("L" * MAX_NAME + "/$dead")) == 1


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "0", "1e23", "9" * 5000, "", "soon"])
@pytest.mark.parametrize("setting", ["Ack-Timeout", "Max-Deliveries"])
@pytest.mark.parametrize("dialect", TMQ)
def test_a_setting_that_makes_no_sense_is_refused_by_name(
    dialect: str, setting: str, value: str
) -> None:
    desk = Desk()
    client = desk.client(dialect)
    payload = f"\0\0{setting}: {value}\r\n".encode()
    client.send(Message(op=Op.DECLARE, address="q", payload=payload, flags=Flag.RESPONSE, id="1"))
    (answer,) = client.take()
    assert (answer.op, answer.content_type) == (Op.REPLY, 400)
    assert setting.lower().replace("-", "_").encode() in answer.payload
    assert "q" not in desk.node.queues
