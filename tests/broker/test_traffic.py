"""What sessions count, and what is made of it once a second."""

from __future__ import annotations

from tests.broker.desk import Desk
from wirelake.broker.traffic import BOUNDS, KEPT, Latency, Ring
from wirelake.message import Message, Op


def test_rates_are_the_messages_and_bytes_of_each_second_by_dialect() -> None:
    desk = Desk()
    sender, hearer = desk.client("kobold-1"), desk.client("boson-text")
    hearer.send(Message(op=Op.SUBSCRIBE, address="a"))
    desk.pass_time(2)
    for _ in range(3):
        sender.send(Message(address="a", payload=b"x"))
    desk.pass_time(1)
    traffic = desk.node.vitals.traffic
    assert traffic.current["kobold-1"][:2] == (3, 0)
    assert traffic.current["boson-text"][:2] == (0, 3)
    assert traffic.current["kobold-1"][2] > 0
    assert traffic.current["boson-text"][3] > 0
    desk.pass_time(2)
    assert traffic.rates(4)["kobold-1"]["received"] == [0, 3, 0, 0]


def test_a_session_that_ended_within_a_second_is_counted() -> None:
    desk = Desk()
    desk.pass_time(1)
    sender = desk.client("kobold-1")
    sender.send(Message(address="a", payload=b"x"))
    sender.session.lost("gone")
    desk.pass_time(1)
    assert desk.node.vitals.traffic.current["kobold-1"][0] == 1
    desk.pass_time(1)
    assert desk.node.vitals.traffic.current["kobold-1"][0] == 0


def test_a_ring_keeps_the_latest_figures_only() -> None:
    ring = Ring(4)
    for value in range(6):
        ring.add(value)
    assert ring.latest(10) == [2, 3, 4, 5]
    assert ring.latest(2) == [4, 5]


def test_latencies_are_counted_in_classes() -> None:
    latency = Latency()
    for seconds in (0.00005, 0.002, 99.0):
        latency.add(seconds)
    state = latency.state()
    assert sum(state["classes"]) == 3
    assert state["classes"][0] == state["classes"][-1] == 1
    assert len(state["classes"]) == len(BOUNDS) + 1


def test_depths_of_a_queue_are_kept_and_forgotten_with_it() -> None:
    desk = Desk()
    sender = desk.client("kobold-2")
    sender.send(Message(op=Op.ENQUEUE, address="jobs", payload=b"x"))
    desk.pass_time(25)
    depths = desk.node.vitals.traffic.depths("jobs")
    assert depths["messages"][-1] == 1
    assert len(depths["messages"]) == KEPT // depths["every"]
    desk.node.queues.remove("jobs")
    desk.pass_time(12)
    assert desk.node.vitals.traffic.depths("jobs")["messages"] == []


def test_a_request_is_timed_until_its_reply() -> None:
    desk = Desk()
    service, asker = desk.client("kobold-3"), desk.client("boson-binary")
    service.send(Message(op=Op.SERVE, address="s"))
    asker.send(Message(op=Op.REQUEST, address="s", payload=b"?", correlation_id="1"))
    (asked,) = [message for message in service.take() if message.op == Op.REQUEST]
    desk.now += 0.5
    service.send(Message(op=Op.REPLY, correlation_id=asked.correlation_id, payload=b"!"))
    state = desk.node.vitals.traffic.requests.state()
    assert sum(state["classes"]) == 1
    assert state["seconds"] == 0.5
