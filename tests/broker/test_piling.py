"""Nothing piles up: what is over takes no memory."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from tests.broker.desk import Client, Desk
from wirelake.broker import recent_ids
from wirelake.broker.deadlines import Deadlines
from wirelake.broker.node import Node
from wirelake.broker.queue import HEADER_OVERHEAD, MESSAGE_OVERHEAD
from wirelake.journal.engine import Engine, QueueSettings
from wirelake.message import Message, Op

MIB = 1 << 20


def revision(client: Client, op: Op, key: str) -> int:
    """Do something to a key; the revision that the answer tells."""
    client.send(Message(op=op, address=key, payload=b"v", correlation_id="t"))
    (answer,) = client.take()
    assert answer.op == Op.OK, answer
    return answer.parameters.rev or 0


# Deadlines


def test_deadlines_come_in_order_and_only_those_that_count() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for k in range(1000):
        deadlines.set("a", 1000.0 - k)
    deadlines.set("b", 2.0)
    deadlines.set("c", 3.0)
    deadlines.set("gone", 0.5)
    deadlines.discard("gone")
    assert (len(deadlines), deadlines.next()) == (3, 1.0)
    assert deadlines.entries <= 2 * 3 + 64
    assert list(deadlines.due(2.5)) == ["a", "b"]
    assert list(deadlines.due(2.5)) == []
    assert "c" in deadlines
    assert list(deadlines.due(9.0, 1)) == ["c"]
    assert deadlines.next() is None


# Keys


def test_updates_with_a_ttl_leave_no_deadlines_behind() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    client.send(Message(op=Op.CREATE, address="k"))
    for _ in range(20):
        client.send(*[Message(op=Op.UPDATE, address="k", ttl=10**9)] * 500)
    assert desk.node.store._deadlines.entries <= 2 + 64


def test_the_latest_ttl_of_a_key_counts() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    for op, ttl in ((Op.CREATE, 1000), (Op.UPDATE, 60_000)):
        client.send(Message(op=op, address="k", ttl=ttl))
    desk.pass_time(5)
    client.take()
    assert revision(client, Op.READ, "k") == 2
    desk.pass_time(60)
    client.send(Message(op=Op.READ, address="k", correlation_id="t"))
    assert client.take()[0].parameters.code == "not_found"


def test_many_keys_that_end_at_once_end_step_by_step_and_are_not_seen_meanwhile() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    client.send(*(Message(op=Op.CREATE, address=f"k/{k}", ttl=1000) for k in range(2000)))
    client.take()
    desk.now += 1.5
    desk.node.tick(desk.now)
    assert 0 < len(desk.node.store) < 2000
    desk.pass_time(2.0)
    assert len(desk.node.store) == 0


def test_a_revision_is_never_used_twice_though_deleted_keys_are_forgotten() -> None:
    # decision 70
    desk = Desk()
    desk.node.quotas.change(deleted_keys=10)
    client = desk.client("kobold-3")
    revision(client, Op.CREATE, "busy")
    for _ in range(50):
        revision(client, Op.UPDATE, "busy")
    assert revision(client, Op.DELETE, "busy") == 52
    for k in range(100):
        last = revision(client, Op.CREATE, f"k/{k}")
        assert revision(client, Op.DELETE, f"k/{k}") == last + 1
    assert len(desk.node.store._entries) <= 10
    assert revision(client, Op.CREATE, "busy") > 52


def test_revisions_go_on_above_the_floor_after_a_restart(tmp_path: Path) -> None:
    # decision 70
    engine = Engine.on_disk(tmp_path)
    node = Node(engine)
    node.quotas.change(deleted_keys=10)
    store, client = node.store, Desk(node).client("kobold-3")
    for _ in range(7):  # the last revision is 14
        for op in (store.create, store.delete):
            op(client.session, Message(address="busy"), 1.0)
    for k in range(50):
        store.create(client.session, Message(address=f"k/{k}", payload=b"v"), 1.0)
        store.delete(client.session, Message(address=f"k/{k}"), 1.0)
    store.create(client.session, Message(address="stays", payload=b"v"), 1.0)
    kept = set(store._entries)
    engine.close()

    engine = Engine.on_disk(tmp_path)
    assert {entry.key for _, entry in engine.entries()} - {"$floor"} == kept
    node = Node(engine)
    again = Desk(node).client("kobold-3")
    assert node.store.create(again.session, Message(address="busy"), 1.0).revision > 14
    assert node.store.read(again.session, Message(address="stays")).value == b"v"
    engine.close()


def test_keys_created_and_deleted_give_their_memory_back() -> None:
    desk = Desk()
    desk.node.quotas.change(deleted_keys=1000)
    client = desk.client("kobold-3")

    def churn(begin: int, count: int) -> None:
        for at in range(begin, begin + count, 500):
            names = [f"key/{k}" for k in range(at, at + 500)]
            client.send(
                *(Message(op=Op.CREATE, address=name, payload=b"v" * 100) for name in names)
            )
            client.send(*(Message(op=Op.DELETE, address=name) for name in names))
            client.received.clear()

    churn(0, 1500)  # so that as many deleted keys are known as ever will be
    gc.collect()
    tracemalloc.start()
    try:
        churn(1500, 10_000)
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # A thousand new ones are known instead of the old ones; the others have gone.
    assert left < MIB
    assert len(desk.node.store._entries) <= 1000


# Queues


def test_what_a_queue_may_hold_counts_headers_and_overhead() -> None:
    desk = Desk()
    desk.node.queues.declare(QueueSettings("q", max_bytes=10 * MESSAGE_OVERHEAD))
    producer = desk.client("kobold-3")
    producer.send(*[Message(op=Op.ENQUEUE, address="q", correlation_id="t")] * 20)
    answers = producer.take()
    assert [m.op for m in answers].count(Op.OK) == 9  # ids count, too

    desk.node.queues.declare(QueueSettings("h", max_bytes=100_000))
    headers = {"h": "x" * 30_000, "i": ""}
    producer.send(*[Message(op=Op.ENQUEUE, address="h", headers=headers, correlation_id="t")] * 20)
    answers = producer.take()
    assert [m.op for m in answers].count(Op.OK) == 3
    assert {m.parameters.code for m in answers if m.op == Op.ERROR} == {"busy"}
    queue = desk.node.queues.get("h")
    assert queue.bytes >= 3 * (30_000 + MESSAGE_OVERHEAD + 2 * HEADER_OVERHEAD)
    assert queue.purge() == 3
    assert queue.bytes == 0


def test_acknowledged_messages_leave_no_deadlines_behind() -> None:
    desk = Desk()
    desk.node.queues.declare(QueueSettings("q", ack_timeout=1e6))
    worker, producer = desk.client("kobold-3"), desk.client("kobold-3")
    worker.send(Message(op=Op.SUBSCRIBE, address="q"))
    for k in range(2000):
        producer.send(Message(op=Op.ENQUEUE, address="q", id=f"m{k}"))
        worker.send(Message(op=Op.ACK, address="q", id=f"m{k}"))
    queue = desk.node.queues.get("q")
    assert len(queue) == 0
    assert queue._leases.deadlines.entries <= 64
    assert desk.node.queues._shared.wake.entries <= 2 + 64


def test_ids_are_forgotten_when_their_time_is_up_though_nobody_puts_anything() -> None:
    desk = Desk()
    desk.node.queues.declare(QueueSettings("q", dedup_window=10.0))
    producer = desk.client("kobold-3", "producer")
    producer.send(*(Message(op=Op.ENQUEUE, address="q", id=f"m{k}") for k in range(1500)))
    queue = desk.node.queues.get("q")
    assert len(queue._recent) == 1500
    desk.pass_time(11.0)
    assert len(queue._recent) == 0


def test_a_queue_remembers_only_so_many_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_ids, "MOST_IDS", 100)
    desk = Desk()
    producer = desk.client("kobold-3", "producer")
    producer.send(*(Message(op=Op.ENQUEUE, address="q", id=f"m{k}") for k in range(150)))
    queue = desk.node.queues.get("q")
    assert (len(queue), len(queue._recent)) == (150, 100)
    assert desk.node.vitals.counters["ids_forgotten"] == 50
    producer.send(Message(op=Op.ENQUEUE, address="q", id="m149"))
    assert len(queue) == 150


def test_requests_that_were_answered_leave_nothing_behind() -> None:
    desk = Desk(Node(Engine.in_memory()))
    service, asker = desk.client("kobold-3", "service"), desk.client("kobold-3", "asker")
    service.send(Message(op=Op.SERVE, address="s"))
    for k in range(500):
        asker.send(Message(op=Op.REQUEST, address="s", correlation_id=f"{k}", ttl=10**9))
        (request,) = [m for m in service.take() if m.op == Op.REQUEST]
        service.send(Message(op=Op.REPLY, correlation_id=request.correlation_id))
    services = desk.node.services
    assert (len(services._open), services._deadlines.entries <= 64) == (0, True)
    share = services._shares[asker.session]
    assert not share.asked
    assert not services._shares[service.session].to_answer
