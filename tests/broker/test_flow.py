"""Subscribers that do not read: who waits, who is disconnected, what is dropped."""

from tests.broker.desk import Client, Desk
from wirelake.broker.flow import Flow, Policy
from wirelake.broker.node import Node
from wirelake.engine.memory import MemoryEngine

OUTBOX = 10_000
BLOCK = b"x" * 900


def desk_with(policies: dict[str, Policy] | None = None) -> tuple[Desk, Client, Client, Client]:
    """A broker, a publisher, a subscriber that stopped reading and one that reads."""
    desk = Desk(Node(MemoryEngine(), flow=Flow(outbox=OUTBOX, policies=policies)))
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
    assert desk.node.counters["slow_consumers"] == 1
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
    assert kept + desk.node.counters["dropped.slow_consumer"] == 99
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
