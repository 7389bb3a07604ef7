"""Subscribers that do not read: who waits, who is disconnected, what is dropped."""

from collections.abc import Callable

import pytest

from tests.broker.desk import Client, Desk
from wirelake.broker.budget import Budget
from wirelake.broker.endpoint import Policy
from wirelake.message import Message, Op, Parameters

OUTBOX = 10_000
BLOCK = b"x" * 900


def desk_of(outbox: int) -> Desk:
    """A broker whose outboxes are full at this many bytes."""
    desk = Desk()
    desk.node.flow.outbox = outbox
    return desk


def desk_with(policies: dict[str, Policy] | None = None) -> tuple[Desk, Client, Client, Client]:
    """A broker, a publisher, a subscriber that stopped reading and one that reads."""
    desk = desk_of(OUTBOX)
    desk.node.flow.policies = dict(policies or {})
    publisher = desk.client("kobold-3", "publisher")
    stopped, reading = desk.client("kobold-3", "stopped"), desk.client("kobold-1", "reading")
    for subscriber in (stopped, reading):
        subscriber.subscribe("a")
    stopped.reads = False
    return desk, publisher, stopped, reading


def fill(publisher: Client) -> int:
    """Publish until the broker lets the publisher wait."""
    for count in range(1, 100):
        publisher.publish("a", BLOCK)
        if publisher.paused:
            return count
    return 0


def test_a_publisher_waits_while_an_outbox_is_full_and_goes_on_when_it_is_not() -> None:
    desk, publisher, stopped, reading = desk_with()
    count = fill(publisher)
    assert OUTBOX < stopped.buffered < OUTBOX + 2000
    desk.pass_time(1)
    stopped.drain()
    desk.node.flow.drained(stopped.session, desk.now)
    assert not publisher.paused
    assert len(stopped.payloads()) == len(reading.payloads()) == count


def test_a_slow_consumer_is_disconnected_after_two_seconds_and_the_event_is_counted() -> None:
    desk, publisher, stopped, reading = desk_with()
    fill(publisher)
    desk.pass_time(1.75)
    assert (stopped.is_open, publisher.paused) == (True, True)
    desk.pass_time(0.75)
    assert (stopped.is_open, publisher.paused) == (False, False)
    assert desk.node.vitals.counters["slow_consumers"] == 1
    publisher.publish("a", b"after")
    assert reading.payloads()[-1] == b"after"


def test_the_patience_is_for_all_waits_of_the_last_thirty_seconds() -> None:
    desk, publisher, stopped, _ = desk_with()
    for _ in range(3):
        fill(publisher)
        desk.pass_time(0.5)
        stopped.drain()
        desk.node.flow.drained(stopped.session, desk.now)
        desk.pass_time(1)
    assert stopped.is_open
    fill(publisher)
    desk.pass_time(1)
    assert not stopped.is_open


def test_waits_are_forgotten_after_thirty_seconds() -> None:
    desk, publisher, stopped, _ = desk_with()
    for _ in range(6):
        fill(publisher)
        desk.pass_time(1.5)
        stopped.drain()
        desk.node.flow.drained(stopped.session, desk.now)
        desk.pass_time(31, step=1)
    assert stopped.is_open


def test_the_policy_drop_drops_the_newest_for_that_subscriber_alone() -> None:
    desk, publisher, stopped, reading = desk_with({"a": "drop"})
    assert fill(publisher) == 0
    desk.pass_time(10)
    assert stopped.is_open
    assert len(reading.payloads()) == 99
    stopped.drain()
    kept = len(stopped.payloads())
    assert kept + desk.node.vitals.counters["dropped.slow_consumer"] == 99
    assert kept < 20


def test_the_policy_pause_loses_nothing_and_disconnects_nobody() -> None:
    desk, publisher, stopped, _ = desk_with({"a": "pause"})
    count = fill(publisher)
    desk.pass_time(60, step=1)
    assert (stopped.is_open, publisher.paused) == (True, True)
    stopped.drain()
    desk.node.flow.drained(stopped.session, desk.now)
    assert (stopped.is_open, publisher.paused) == (True, False)
    assert len(stopped.payloads()) == count


def test_a_publisher_that_leaves_is_waited_for_no_more() -> None:
    desk, publisher, stopped, _ = desk_with()
    fill(publisher)
    publisher.session.lost("gone")
    desk.pass_time(10)
    assert stopped.is_open  # nobody has waited for it
    stopped.session.lost("gone")
    assert not desk.node.sessions.keys() & {publisher.session, stopped.session}


def test_two_slow_consumers_together_cost_a_publisher_little_more_than_one() -> None:
    desk, publisher, stopped, _ = desk_with()
    slow = desk.client("kobold-3", "slow")
    slow.subscribe("a")
    slow.reads = False
    fill(publisher)
    desk.pass_time(1)
    slow.drain()  # it reads, now and then
    desk.node.flow.drained(slow.session, desk.now)
    desk.pass_time(1.5)
    assert (stopped.is_open, slow.is_open, publisher.paused) == (False, True, False)
    fill(publisher)
    desk.pass_time(0.25)
    assert not slow.is_open
    assert not publisher.paused


def test_one_that_is_full_for_a_moment_does_not_suffer_for_a_slow_one() -> None:
    desk, publisher, stopped, reading = desk_with()
    fill(publisher)
    desk.pass_time(2.5)
    assert not stopped.is_open
    reading.reads = False
    fill(publisher)
    desk.pass_time(0.25)
    reading.drain()
    desk.node.flow.drained(reading.session, desk.now)
    assert reading.is_open


def test_nothing_more_is_read_from_a_client_whose_own_outbox_is_full() -> None:
    desk = desk_of(OUTBOX)
    client = desk.client("kobold-3", "echo")
    client.subscribe("a")
    client.reads = False
    assert 10 < fill(client) < 15
    assert client.buffered < OUTBOX + 2000
    desk.pass_time(60, step=1)
    assert client.is_open  # nobody else waits for it
    client.drain()
    desk.pass_time(0.25)
    assert not client.paused


def test_a_read_of_many_questions_stops_where_the_outbox_is_full_and_goes_on_there() -> None:
    desk = desk_of(OUTBOX)
    client = desk.client("kobold-3", "asker")
    client.reads = False
    asked = [Message(op=Op.INFO, address="$node", correlation_id=str(n)) for n in range(200)]
    client.send(*asked)
    assert client.paused
    assert client.buffered < OUTBOX + 2000
    answers = []
    for _ in range(200):
        client.drain()
        answers += client.take()
        desk.pass_time(0.25)
    assert [one.correlation_id for one in answers] == [str(n) for n in range(200)]


def test_a_long_list_is_written_as_it_is_read_and_in_order() -> None:
    desk = desk_of(OUTBOX)
    client = desk.client("kobold-3", "reader")
    for n in range(50):
        client.send(Message(op=Op.CREATE, address=f"k/{n:02}", payload=BLOCK))
    client.take()
    client.reads = False
    client.send(Message(op=Op.READ, address="k/#", correlation_id="l"), Message(op=Op.PING, id="p"))
    client.send(Message(op=Op.WATCH, address="k/#", parameters=Parameters(rev=0)))
    assert client.buffered < OUTBOX + 2000
    other = desk.client("kobold-3", "writer")
    told: list[Message] = []
    for turn in range(60):
        client.drain()
        told += client.take()
        desk.pass_time(0.25)
        if turn == 6:  # the watch has told some keys, and not this one
            other.send(Message(op=Op.UPDATE, address="k/49", payload=b"new"))
    assert [one.address for one in told[:50]] == [f"k/{n:02}" for n in range(50)]
    assert [one.op for one in told[50:52]] == [Op.OK, Op.PONG]
    assert sorted(one.address for one in told[52:]) == [f"k/{n:02}" for n in range(50)]


def test_whoever_sends_direct_messages_or_requests_waits_too() -> None:
    for message in (Message(target="stopped"), Message(op=Op.REQUEST, address="s")):
        desk, publisher, stopped, _ = desk_with()
        stopped.send(Message(op=Op.SERVE, address="s"))
        for number in range(100):
            publisher.send(
                Message(
                    op=message.op,
                    address=message.address,
                    target=message.target,
                    payload=BLOCK,
                    correlation_id=str(number),
                )
            )
            if publisher.paused:
                break
        assert 8 < number < 15
        assert stopped.buffered < OUTBOX + 2000
        desk.pass_time(3)
        assert (stopped.is_open, publisher.paused) == (False, False)


def test_a_watcher_of_somebody_who_has_gone_is_disconnected_when_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk, _, stopped, _ = desk_with()
    stopped.send(Message(op=Op.WATCH, address="w"))
    late: list[Callable[[], object]] = []
    # A disk that takes a while:
    monkeypatch.setattr(desk.node.engine, "after", lambda action, *_, **__: late.append(action))
    stopped_at = 0
    for number in range(40):
        writer = desk.client("kobold-3")
        op = Op.UPDATE if number else Op.CREATE
        writer.send(Message(op=op, address="w", payload=BLOCK))
        writer.session.lost("gone")
        while late:
            late.pop(0)()
        if not stopped.is_open:
            break
        stopped_at = stopped.buffered
    assert stopped_at < 2 * OUTBOX + 2000
    assert not stopped.is_open


def desk_with_budget(total: int) -> tuple[Desk, list[Client]]:
    """A broker with a large key, and clients that stopped reading."""
    desk = desk_of(total // 2)
    desk.node.flow.budget.most = total
    clients = [desk.client("kobold-3", f"reader-{n}") for n in range(8)]
    clients[0].send(Message(op=Op.CREATE, address="k", payload=b"x" * 200_000))
    clients[0].take()
    for client in clients:
        client.budget = desk.node.flow.budget
        client.reads = False
    return desk, clients


def test_large_answers_wait_for_the_budget_and_the_largest_outboxes_make_room() -> None:
    desk, clients = desk_with_budget(1_000_000)
    for client in clients:
        client.send(Message(op=Op.READ, address="k", correlation_id="r"))
    waiting = [client for client in clients if client.paused]
    assert len(waiting) == 4  # four of 200 000 bytes, and more than that, fit
    assert desk.node.flow.budget.used < 1_000_000
    clients[0].reads = True
    clients[0].drain()
    desk.pass_time(0.25)
    assert sum(client.paused for client in clients) == 3
    desk.pass_time(0.75)
    assert clients[0].is_open
    assert desk.node.vitals.counters["slow_consumers"] > 0
    assert "flow.total" in str(desk.node.vitals.events[-1]["text"])
    desk.pass_time(5)
    assert not any(client.paused for client in clients if client.is_open)
    assert desk.node.flow.budget.used < 1_000_000


def test_bytes_that_many_outboxes_share_count_once() -> None:
    budget = Budget(1000)
    data = b"x" * 600
    budget.hold(data)
    budget.hold(data)
    assert 600 <= budget.used < 800
    assert not is_exceeded(budget)
    budget.hold(b"y" * 600)
    assert is_exceeded(budget)
    budget.release(data)
    assert is_exceeded(budget)
    budget.give_back(data)
    budget.look()
    assert not is_exceeded(budget)


def is_exceeded(budget: Budget) -> bool:
    """Whether it is, as it changes without mypy's knowledge."""
    return budget.is_exceeded
