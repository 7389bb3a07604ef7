"""A broker one of whose partitions is lost and comes back, with its queues, keys and topics."""

from __future__ import annotations

from itertools import count

import pytest

from tests.broker.desk import Client, Desk, ops
from tests.journal.faulty import FaultyJournal
from wirelake.broker.node import Node
from wirelake.journal.engine import Engine
from wirelake.message import Message, Op

LOST, OTHER = 1, 2


class Case:
    """A broker on a desk whose journal can be made to fail."""

    def __init__(self) -> None:
        self.journal = FaultyJournal()
        self.engine = Engine(self.journal, adopted=range(4))
        self.desk = Desk(Node(self.engine))
        self.client = self.desk.client("kobold-3", "me")

    def name(self, partition: int, prefix: str) -> str:
        """A name that belongs to a partition."""
        names = (f"{prefix}/{k}" for k in count())
        return next(name for name in names if self.engine.home(name) == partition)

    def ask(self, op: Op, partition: int, prefix: str, payload: bytes = b"") -> str:
        """Do one thing with a name of a partition; the answer's code, or op and payload."""
        client = self.client
        if not client.is_open:
            client = self.client = self.desk.client("kobold-3")
        address = self.name(partition, prefix)
        client.send(Message(op=op, address=address, payload=payload, id="x", correlation_id="x"))
        answers = client.take()
        if not client.is_open:
            return "closed"
        answer = answers[-1]
        if answer.op == Op.ERROR:
            return answer.parameters.code
        return " ".join([answer.op.label, answer.payload.decode()]).strip()

    def lose(self) -> None:
        """Somebody else takes the partition up, which its owner learns by its next commit."""
        self.journal.fence(LOST)
        assert self.ask(Op.CREATE, LOST, "noticed", b"x") == "closed"
        assert not self.engine.is_here(LOST)


@pytest.fixture
def case() -> Case:
    return Case()


def consumer(case: Case, partition: int) -> Client:
    """A client that consumes a partition's queue."""
    made = case.desk.client("kobold-3")
    made.send(Message(op=Op.SUBSCRIBE, address=case.name(partition, "queue")))
    made.take()
    return made


def test_keys_of_a_lost_partition_are_busy_and_not_absent(case: Case) -> None:
    """Decision: see decision 72."""
    for partition in (LOST, OTHER):
        assert case.ask(Op.CREATE, partition, "key", b"one") == "ok"
    case.lose()
    assert case.ask(Op.READ, LOST, "key") == "busy"
    assert case.ask(Op.UPDATE, LOST, "key", b"two") == "busy"
    assert case.ask(Op.UPDATE, OTHER, "key", b"two") == "ok"
    assert len(case.desk.node.store) == 1
    case.engine.adopt(LOST)
    assert case.ask(Op.READ, LOST, "key") == "ok one"
    assert case.ask(Op.READ, LOST, "noticed") == "not_found"
    assert case.ask(Op.UPDATE, LOST, "key", b"three") == "ok"
    assert len(case.desk.node.store) == 2


def test_keys_elsewhere_expire_while_a_partition_is_lost(case: Case) -> None:
    key = case.name(OTHER, "key")
    case.client.send(Message(op=Op.CREATE, address=key, payload=b"x", ttl=1000))
    case.lose()
    assert case.ask(Op.READ, OTHER, "key") == "ok x"
    case.desk.pass_time(2)
    assert case.ask(Op.READ, OTHER, "key") == "not_found"


def test_queues_of_a_lost_partition_come_back_with_their_messages(case: Case) -> None:
    for partition in (LOST, OTHER):
        assert case.ask(Op.ENQUEUE, partition, "queue", b"job") == "ok"
    case.lose()
    assert case.ask(Op.ENQUEUE, LOST, "queue", b"more") == "busy"
    assert case.ask(Op.DEQUEUE, LOST, "queue") == "busy"
    assert case.ask(Op.ENQUEUE, OTHER, "queue", b"more") == "ok"
    assert [len(queue) for queue in case.desk.node.queues.all()] == [2]
    case.engine.adopt(LOST)
    assert case.ask(Op.ENQUEUE, LOST, "queue", b"later") == "ok"
    taker = consumer(case, LOST)
    case.desk.pass_time(1)
    assert len(case.desk.node.queues.get(case.name(LOST, "queue"))) == 2
    assert taker.is_open


def test_consumers_of_a_lost_queue_are_disconnected_and_others_are_not(case: Case) -> None:
    for partition in (LOST, OTHER):
        case.ask(Op.ENQUEUE, partition, "queue", b"job")
    mine, others = consumer(case, LOST), consumer(case, OTHER)
    case.lose()
    assert (mine.is_open, others.is_open) == (False, True)
    case.desk.pass_time(120)  # deadlines of what it held mean nothing any more
    case.engine.adopt(LOST)
    case.desk.pass_time(1)
    assert len(case.desk.node.queues.get(case.name(LOST, "queue"))) == 1


def test_publishes_to_a_lost_partition_are_refused_and_others_are_not(case: Case) -> None:
    listener = case.desk.client("kobold-3")
    listener.subscribe("topic/#")
    here, gone = case.name(OTHER, "topic"), case.name(LOST, "topic")

    def publish(address: str) -> str:
        client = case.desk.client("kobold-3")
        client.publish(address, b"x", ack=True)
        return ops(client.take())[-1]

    assert (publish(gone), publish(here)) == ("ok", "ok")
    case.lose()
    assert (publish(gone), publish(here)) == ("error", "ok")
    case.engine.adopt(LOST)
    assert (publish(gone), publish(here)) == ("ok", "ok")
    assert listener.payloads() == [b"x"] * 5


def test_an_operator_hears_of_it(case: Case) -> None:
    case.lose()
    case.engine.adopt(LOST)
    told = [(event["event"], event["text"]) for event in case.desk.node.vitals.events]
    assert ("lost", "partition 1 has another owner") in told
    assert ("adopted", "partition 1 is here") in told
