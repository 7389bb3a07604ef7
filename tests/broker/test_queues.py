"""Queues: kept until acknowledged, in every dialect that takes part."""

from __future__ import annotations

from array import array

import pytest
from msgspec.structs import replace

from tests.broker.desk import Client, Desk
from wirelake.broker.node import Node
from wirelake.broker.queue import size_of
from wirelake.broker.route import message_sizes, plain_messages
from wirelake.dialects import DIALECTS
from wirelake.journal.engine import Engine, QueueSettings
from wirelake.message import Flag, Message, Op, Parameters
from wirelake.wire import FrameTable
from wirelake.wire.parameters import headers_of

OPS = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]
TMQ = ["tmq-1.00", "tmq-1.01"]
ACKING = [*OPS, *TMQ]


@pytest.fixture
def desk() -> Desk:
    desk = Desk()
    desk.node.queues.declare(QueueSettings("jobs"))
    return desk


def deliveries(client: Client) -> list[Message]:
    """The queue messages that have come, whatever the dialect calls them."""
    return [m for m in client.take() if m.op in (Op.DELIVER, Op.PUBLISH)]


def put(client: Client, *payloads: bytes, **fields: object) -> None:
    """Put messages into `jobs`, by the dialect's own publish."""
    message = replace(Message(address="jobs"), **fields)
    client.send(*[replace(message, payload=payload) for payload in payloads])


def answer(client: Client, op: Op, message: Message, *, requeue: bool = True) -> None:
    """Ack or nack a delivery."""
    said = Parameters(requeue=requeue)
    client.send(Message(op=op, address=message.address, id=message.id, parameters=said))


@pytest.mark.parametrize("consumer", DIALECTS)
@pytest.mark.parametrize("producer", DIALECTS)
def test_a_client_of_any_dialect_takes_part_with_its_own_publish_and_subscribe(
    desk: Desk, producer: str, consumer: str
) -> None:
    producing = desk.client(producer, "producer")
    put(producing, b"1", b"2", b"3")
    consuming = desk.client(consumer, "consumer", "sub")
    consuming.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    assert [m.payload for m in deliveries(consuming)] == [b"1", b"2", b"3"]
    assert len(desk.node.queues.get("jobs")) == (3 if consumer in ACKING else 0)


@pytest.mark.parametrize("kind", [0, 1], ids=["text", "raw data"])
def test_a_queue_keeps_the_type_and_the_uid_of_an_mfp_message(desk: Desk, kind: int) -> None:
    # spec: mfp 6
    producer = desk.client("mfp-1", "producer")
    producer.send(Message(op=Op.TOPIC, address="jobs"))
    frame = b"\x02" + bytes(range(16)) + b"\0\0\0\x04" + bytes([kind, 1]) + b"hi"
    producer.say(frame)
    consumer = desk.client("mfp-1", "consumer", "sub")
    consumer.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    assert frame in bytes(consumer.received)


@pytest.mark.parametrize("dialect", ACKING)
def test_a_message_is_gone_when_it_is_acked_and_comes_again_when_it_is_nacked(
    desk: Desk, dialect: str
) -> None:
    put(desk.client("kobold-3"), b"1", b"2")
    worker = desk.client(dialect, "worker")
    worker.subscribe()
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    one, two = deliveries(worker)
    answer(worker, Op.ACK, one)
    answer(worker, Op.NACK, two)
    (again,) = deliveries(worker)
    assert (again.payload, again.id) == (b"2", two.id)
    if dialect in OPS:
        assert (two.parameters.attempt, again.parameters.attempt) == (1, 2)
    else:
        assert [bool(m.flags & Flag.FIRST) for m in (two, again)] == [True, False]
        assert two.flags & Flag.ACK  # DE: the queue wants an acknowledgement
    answer(worker, Op.ACK, again)
    assert len(desk.node.queues.get("jobs")) == 0


def test_messages_go_to_one_consumer_at_a_time_in_turn(desk: Desk) -> None:
    workers = [desk.client(dialect, f"w-{dialect}") for dialect in ("kobold-1", "tmq-1.01")]
    for worker in workers:
        worker.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    put(desk.client("boson-text"), *[b"%d" % k for k in range(6)])
    assert [[m.payload for m in deliveries(worker)] for worker in workers] == [
        [b"0", b"2", b"4"], [b"1", b"3", b"5"],
    ]  # fmt: skip


def test_what_is_not_acked_in_time_or_held_by_a_lost_consumer_goes_to_another(desk: Desk) -> None:
    first, second = desk.client("kobold-1", "one"), desk.client("kobold-2", "two")
    first.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    put(desk.client("kobold-3"), b"a", b"b")
    assert len(deliveries(first)) == 2
    desk.pass_time(31)
    assert [m.parameters.attempt for m in deliveries(first)] == [2, 2]
    second.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    first.session.lost("gone")
    assert [m.parameters.attempt for m in deliveries(second)] == [3, 3]


def test_after_too_many_deliveries_a_message_is_dead_and_says_why(desk: Desk) -> None:
    worker = desk.client("kobold-3", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    put(desk.client("kobold-3"), b"poison", headers={"k": "v"})
    for _ in range(5):
        (message,) = deliveries(worker)
        answer(worker, Op.NACK, message)
    assert deliveries(worker) == []
    worker.send(Message(op=Op.DEQUEUE, address="jobs/$dead", correlation_id="d"))
    dead, end = worker.take()
    assert (dead.payload, dead.headers["dead.reason"]) == (b"poison", "too many deliveries")
    assert dead.headers["k"] == "v"
    assert (end.op, end.parameters.count) == (Op.OK, 1)


def test_a_nack_without_requeue_is_dead_at_once(desk: Desk) -> None:
    worker = desk.client("kobold-1", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    put(desk.client("kobold-3"), b"x")
    answer(worker, Op.NACK, deliveries(worker)[0], requeue=False)
    assert len(desk.node.queues.get("jobs")) == 0
    assert len(desk.node.queues.get("jobs/$dead")) == 1


def test_urgent_messages_go_before_the_others(desk: Desk) -> None:
    producer = desk.client("tmq-1.01", "producer")
    put(producer, b"1", b"2")
    put(producer, b"urgent", priority=1)
    worker = desk.client("kobold-1")
    worker.send(Message(op=Op.DEQUEUE, address="jobs", parameters=Parameters(count=9)))
    assert [m.payload for m in deliveries(worker)] == [b"urgent", b"1", b"2"]


def test_a_message_past_its_ttl_is_dropped_and_counted(desk: Desk) -> None:
    put(desk.client("kobold-3"), b"old", ttl=500)
    desk.pass_time(1)
    assert len(desk.node.queues.get("jobs")) == 0
    assert desk.node.vitals.counters["dropped.expired"] == 1


def test_a_consumer_holds_at_most_its_prefetch(desk: Desk) -> None:
    worker = desk.client("kobold-2", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs", parameters=Parameters(count=2)))
    put(desk.client("kobold-3"), *[b"%d" % k for k in range(5)])
    held = deliveries(worker)
    assert len(held) == 2
    answer(worker, Op.ACK, held[0])
    assert [m.payload for m in deliveries(worker)] == [b"2"]


@pytest.mark.parametrize("dialect", OPS)
def test_a_dequeue_waits_for_messages_and_tells_its_end(desk: Desk, dialect: str) -> None:
    worker = desk.client(dialect, "worker")
    said = Parameters(count=2, wait=1.0)
    worker.send(Message(op=Op.DEQUEUE, address="jobs", correlation_id="d", parameters=said))
    put(desk.client("kobold-3"), b"1")
    assert [m.payload for m in deliveries(worker)] == [b"1"]
    desk.pass_time(2)
    (end,) = worker.take()
    assert (end.op, end.correlation_id, end.parameters.count) == (Op.OK, "d", 1)


def test_an_enqueue_declares_its_queue_unless_it_is_a_topic_in_use(desk: Desk) -> None:
    client = desk.client("kobold-1")
    client.send(Message(op=Op.ENQUEUE, address="new", payload=b"x", correlation_id="e"))
    assert [m.op for m in client.take()] == [Op.OK]
    assert len(desk.node.queues.get("new")) == 1
    client.send(Message(op=Op.SUBSCRIBE, address="used"))
    client.send(Message(op=Op.ENQUEUE, address="used", payload=b"x", correlation_id="e"))
    assert [m.parameters.code for m in client.take()] == ["conflict"]


def test_a_wildcard_matches_no_queue(desk: Desk) -> None:
    listener = desk.client("kobold-1")
    listener.subscribe("#")
    put(desk.client("kobold-3"), b"x")
    assert deliveries(listener) == []


@pytest.mark.parametrize("dialect", TMQ)
def test_tmq_creates_lists_pulls_and_removes_queues(desk: Desk, dialect: str) -> None:  # tmq 4, 6
    client = desk.client(dialect, "admin")

    def ask(op: Op, address: str = "", payload: bytes = b"") -> tuple[int, bytes]:
        client.send(Message(op=op, address=address, payload=payload, id="r", flags=Flag.RESPONSE))
        (reply,) = [m for m in client.take() if m.op == Op.REPLY]
        return reply.content_type, reply.payload

    settings = b"\x00\x07Mode: pull\r\nMax-Deliveries: 2\r\n"
    assert ask(Op.DECLARE, "q", settings) == (200, b"")
    assert ask(Op.DECLARE, "q", settings)[0] == 481
    assert ask(Op.DECLARE, "r", b"\x00\x00Mode: nonsense\r\n")[0] == 400
    client.send(Message(address="q", payload=b"x"), Message(address="q", payload=b"y"))
    client.send(Message(op=Op.SUBSCRIBE, address="q"))
    assert deliveries(client) == []
    client.send(Message(op=Op.DEQUEUE, address="q", payload=b"1"))
    assert [m.payload for m in deliveries(client)] == [b"x"]
    assert b'"messages": 2' in ask(Op.LIST)[1]
    assert ask(Op.REMOVE, "q")[0] == 200
    assert ask(Op.REMOVE, "q")[0] == 404


def test_in_mode_push_every_consumer_gets_it_and_one_ack_is_enough(desk: Desk) -> None:
    desk.node.queues.declare(QueueSettings("all", mode="push"))
    workers = [desk.client("kobold-1", f"w{k}") for k in range(3)]
    for worker in workers:
        worker.send(Message(op=Op.SUBSCRIBE, address="all"))
    desk.client("kobold-3").publish("all", b"x")
    got = [deliveries(worker) for worker in workers]
    assert [len(each) for each in got] == [1, 1, 1]
    workers[1].send(Message(op=Op.ACK, address="all", id=got[1][0].id))
    desk.pass_time(40)
    assert len(desk.node.queues.get("all")) == 0
    assert [deliveries(worker) for worker in workers] == [[], [], []]


def test_two_messages_of_one_id_can_be_told_apart(desk: Desk) -> None:
    worker = desk.client("kobold-1", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs"))
    put(desk.client("kobold-3", "one"), b"1", id="same")
    put(desk.client("kobold-3", "two"), b"2", id="same")
    one, two = deliveries(worker)
    assert one.id != two.id
    for message in (one, two):
        answer(worker, Op.ACK, message)
    assert len(desk.node.queues.get("jobs")) == 0


def test_open_queues_and_unacked_messages_are_there_again() -> None:
    engine = Engine.in_memory()
    desk = Desk(Node(engine))
    client = desk.client("kobold-3")
    for k in range(3):
        client.send(Message(op=Op.ENQUEUE, address="jobs", payload=b"%d" % k))
    client.send(Message(op=Op.DEQUEUE, address="jobs", parameters=Parameters(count=2)))
    one, _ = deliveries(client)
    answer(client, Op.ACK, one)
    again = Desk(Node(engine)).client("kobold-1")
    again.send(Message(op=Op.DEQUEUE, address="jobs", parameters=Parameters(count=9)))
    assert [(m.payload, m.parameters.attempt) for m in deliveries(again)] == [
        (b"1", 2), (b"2", 1),
    ]  # fmt: skip


def test_a_producer_that_asks_is_told_when_its_message_is_kept(desk: Desk) -> None:
    for dialect in ["mfp-1", *ACKING]:
        client = desk.client(dialect, f"p-{dialect}")
        client.publish("jobs", b"x", ack=True)
        assert [m.op for m in client.take()][-1:] == [Op.ACK if dialect in TMQ else Op.OK]
    assert len(desk.node.queues.get("jobs")) == 7


def test_a_queue_takes_an_id_of_one_producer_once_within_the_window(desk: Desk) -> None:
    """decision 41"""
    producer = desk.client("kobold-2", "maker")
    put(producer, b"1", id="a")
    put(producer, b"again", id="a")
    put(desk.client("boson-binary", "other"), b"2", id="a")
    queue = desk.node.queues.get("jobs")
    assert [one.message.payload for one in queue.peek(9)] == [b"1", b"2"]
    assert desk.node.vitals.counters["dropped.duplicate"] == 1
    desk.pass_time(121, step=10)
    put(producer, b"3", id="a")
    assert len(queue) == 3


def test_a_repeated_message_is_acknowledged_like_the_first_one(desk: Desk) -> None:
    producer = desk.client("tmq-1.00", "maker")
    for _ in range(2):
        producer.publish("jobs", b"x", ack=True)
        assert [m.op for m in producer.take()] == [Op.ACK]
    assert len(desk.node.queues.get("jobs")) == 1


def test_a_delayed_message_comes_when_it_is_due(desk: Desk) -> None:
    worker = desk.client("kobold-2", "worker")
    producer = desk.client("kobold-3")
    producer.send(
        Message(op=Op.ENQUEUE, address="jobs", payload=b"later", headers={"delay": "5000"}),
        Message(op=Op.ENQUEUE, address="jobs", payload=b"now"),
    )
    worker.subscribe("jobs")
    state = desk.node.queues.get("jobs").state(desk.now)
    assert (state["delayed"], state["messages"]) == (1, 2)
    desk.pass_time(4.5)
    assert deliveries(worker) == []
    desk.pass_time(1)
    assert [m.payload for m in deliveries(worker)] == [b"later"]


def test_a_delay_that_is_no_number_is_refused(desk: Desk) -> None:
    producer = desk.client("kobold-1")
    producer.send(
        Message(op=Op.ENQUEUE, address="jobs", correlation_id="t", headers={"delay": "soon"})
    )
    assert producer.take()[0].parameters.code == "bad_request"


def test_a_full_queue_refuses_and_says_why(desk: Desk) -> None:
    room = 2 * size_of(Message(id="q1", correlation_id="t")) + 8
    desk.node.queues.declare(QueueSettings("small", max_messages=2, max_bytes=room))
    producer = desk.client("kobold-2")
    for payload in (b"12345", b"123456", b"12345", b""):
        producer.send(Message(op=Op.ENQUEUE, address="small", payload=payload, correlation_id="t"))
    answers = producer.take()
    assert [m.op for m in answers] == [Op.OK, Op.ERROR, Op.OK, Op.ERROR]
    assert {m.parameters.code for m in answers if m.op == Op.ERROR} == {"busy"}
    assert f"{room} bytes".encode() in answers[1].payload
    assert b"2 messages" in answers[3].payload


def test_peek_takes_nothing_and_purge_takes_what_nobody_holds(desk: Desk) -> None:
    worker = desk.client("kobold-2", "worker")
    worker.send(Message(op=Op.SUBSCRIBE, address="jobs", parameters=Parameters(count=1)))
    put(desk.client("kobold-3"), b"1", b"2", b"3")
    queue = desk.node.queues.get("jobs")
    assert [one.message.payload for one in queue.peek(1)] == [b"2"]
    assert queue.purge() == 2
    assert (len(queue), queue.bytes) == (1, queue._messages.size(1))
    assert desk.node.vitals.counters["dropped.purged"] == 2


def test_dead_letters_can_be_moved_back(desk: Desk) -> None:
    worker = desk.client("kobold-2", "worker")
    worker.subscribe("jobs")
    put(desk.client("kobold-3"), b"bad")
    (one,) = deliveries(worker)
    worker.send(
        Message(op=Op.NACK, address="jobs", id=one.id, parameters=Parameters(requeue=False))
    )
    dead = desk.node.queues.get("jobs/$dead")
    assert [m.message.headers["dead.reason"] for m in dead.peek(1)] == ["rejected"]
    assert dead.move_to(desk.node.queues.get("jobs"), 10, desk.now) == 1
    (again,) = deliveries(worker)
    assert (again.payload, again.parameters.attempt) == (b"bad", 1)
    assert "dead.reason" not in again.headers
    assert len(dead) == 0


@pytest.mark.parametrize("dialect", ACKING)
def test_dead_letters_are_consumed_and_acknowledged_like_any_message(
    desk: Desk, dialect: str
) -> None:
    worker = desk.client("kobold-2", "worker")
    worker.subscribe("jobs")
    put(desk.client("kobold-3"), b"bad")
    (one,) = deliveries(worker)
    answer(worker, Op.NACK, one, requeue=False)
    reader = desk.client(dialect, "reader")
    reader.send(Message(op=Op.SUBSCRIBE, address="jobs/$dead"))
    found = deliveries(reader)
    assert [m.address for m in found] == ["jobs/$dead"]
    answer(reader, Op.ACK, found[0])
    assert len(desk.node.queues.get("jobs/$dead")) == 0


@pytest.mark.parametrize("dialect", OPS)
def test_a_parameter_that_the_op_does_not_take_is_carried_along(desk: Desk, dialect: str) -> None:
    """A `rev` of `1.2` is no revision, but then a queue message has none."""
    said = Parameters(verbatim={"rev": "1.2", "count": "007", "attempt": "none"})
    client = desk.client(dialect)
    client.send(Message(op=Op.ENQUEUE, address="jobs", id="1", parameters=said))
    client.send(Message(op=Op.DEQUEUE, address="jobs"))
    (delivery,) = deliveries(client)
    assert headers_of(delivery) == {"$rev": "1.2", "$count": "007", "$attempt": "1"}


def test_a_message_whose_parameter_is_no_value_is_refused_whole(desk: Desk) -> None:
    client = desk.client("kobold-1")
    said = Parameters(client="dev-1", verbatim={"count": "many"})
    client.send(Message(op=Op.SUBSCRIBE, address="jobs", correlation_id="1", parameters=said))
    (answer,) = client.take()
    assert (answer.op, answer.parameters.code) == (Op.ERROR, "bad_request")
    assert answer.payload == b"count is a number, not many"
    assert client.session.client_id == ""
    assert not client.session.filters


def test_rows_take_what_their_fields_and_headers_take() -> None:
    messages = [
        Message("q", b"x" * 10),
        Message("q", b"", id="17", correlation_id="abc"),
        Message("q", b"payload", headers={"a": "1", "long name": "value"}),
    ]
    table = FrameTable()
    table.fill(messages)
    table.read_headers()
    rows = array("i", [2, 0, 1])
    sizes = message_sizes(table, rows, 100, 50, 99)
    assert list(sizes) == [
        100 + 7 + len("q99") + 2 * (50 + 8) + len("a1long namevalue"),
        100 + 10 + len("q100"),
        100 + 2 + 3,
    ]
    with pytest.raises(IndexError):
        message_sizes(table, array("i", [3]), 0, 0, 0)
    assert plain_messages(table, rows, False)
    table.fill([*messages, Message("q", ttl=5), Message("q", headers={"delay": "9"})])
    table.read_headers()
    assert not plain_messages(table, array("i", [0, 3]), False)
    assert plain_messages(table, array("i", [0, 3]), True)
    assert not plain_messages(table, array("i", [4]), True)
    with pytest.raises(IndexError):
        plain_messages(table, array("i", [5]), False)
