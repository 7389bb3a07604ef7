"""What an action costs grows with what it changes, and not with what there is."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.desk import Client, Desk
from tests.broker.work import steps
from wirelake.address import matches
from wirelake.broker.subscriptions import FilterIndex
from wirelake.broker.topics import MANY_MEMBERS, REMOVED_AT_ONCE
from wirelake.message import Message, Op, Parameters

LONG = Parameters(wait=999_999.999)


def worked_out(desk: Desk) -> int:
    """How many routes have been worked out so far."""
    return desk.node.vitals.counters["routes_worked_out"]


def publish_to(client: Client, addresses: list[str]) -> None:
    """One message to each address."""
    client.send(*(Message(address=address, payload=b"x") for address in addresses))


# Routes


def test_a_wildcard_works_out_only_the_routes_that_it_matches() -> None:
    desk = Desk()
    publisher, subscriber = desk.client("boson-binary"), desk.client("kobold-3")
    addresses = [f"{room}/{k}" for room in ("hall", "cellar") for k in range(500)]
    publish_to(publisher, addresses)
    assert worked_out(desk) == 1000
    for _ in range(50):
        subscriber.subscribe("attic/+", "attic/#", "+/+/+")
        subscriber.send(Message(op=Op.UNSUBSCRIBE, address="attic/+"))
    publish_to(publisher, addresses)
    assert worked_out(desk) == 1000
    subscriber.subscribe("cellar/+")
    publish_to(publisher, addresses)
    assert worked_out(desk) == 1500
    assert len(subscriber.payloads()) == 500
    subscriber.send(Message(op=Op.UNSUBSCRIBE, address="cellar/+"))
    publish_to(publisher, addresses)
    assert worked_out(desk) == 2000
    assert subscriber.payloads() == []


def test_more_changes_than_are_remembered_lose_no_subscription() -> None:
    desk = Desk()
    desk.node.quotas.change(wildcards=10_000)
    publisher, subscriber = desk.client("boson-binary"), desk.client("kobold-3")
    publish_to(publisher, ["a/b"])
    subscriber.subscribe("a/+", *(f"other/{k}/+" for k in range(600)))
    publish_to(publisher, ["a/b"])
    assert len(subscriber.payloads()) == 1
    subscriber.send(Message(op=Op.UNSUBSCRIBE, address="a/+"))
    subscriber.subscribe(*(f"another/{k}/+" for k in range(600)))
    publish_to(publisher, ["a/b"])
    assert subscriber.payloads() == []


def test_a_client_that_leaves_with_many_filters_works_out_nothing() -> None:
    desk = Desk()
    publisher, other = desk.client("boson-binary"), desk.client("kobold-3")
    other.subscribe("hall/#")
    leaver = desk.client("kobold-3")
    leaver.subscribe(*(f"{k}/+/x" for k in range(200)))
    addresses = [f"hall/{k}" for k in range(500)]
    publish_to(publisher, addresses)
    before = worked_out(desk)
    leaver.session.lost("gone")
    publish_to(publisher, addresses)
    assert worked_out(desk) == before
    assert len(other.payloads()) == 1000


def test_thousands_of_filters_of_one_who_leaves_go_step_by_step() -> None:
    desk = Desk()
    desk.node.quotas.change(wildcards=10_000)
    publisher, leaver = desk.client("boson-binary"), desk.client("kobold-3")
    count = 4 * REMOVED_AT_ONCE
    leaver.subscribe(*(f"{k}/+" for k in range(count)))
    session = weakref.ref(leaver.session)
    publish_to(publisher, ["0/x", "1999/x"])
    assert len(leaver.payloads()) == 2
    leaver.session.lost("gone")
    assert desk.node.state()["subscriptions"] == count - REMOVED_AT_ONCE
    publish_to(publisher, ["0/x", "1999/x", "0/y", "1999/y"])
    desk.pass_time(1.0)
    assert desk.node.state()["subscriptions"] == 0
    del leaver
    gc.collect()
    assert session() is None  # nothing holds on to it


def test_audiences_that_nobody_uses_any_more_go() -> None:
    desk = Desk()
    publisher = desk.client("boson-binary")
    members = [desk.client("boson-binary") for _ in range(450)]
    for member in members:
        member.subscribe("a/#")
        publish_to(publisher, ["a/b"])
    # Without forgetting, there would be 1 + 2 + … + 450 members of audiences.
    assert desk.node.topics._members <= MANY_MEMBERS + 2 * len(members)
    for _ in range(2):
        publish_to(publisher, ["a/b", "a/c"])
    assert all(len(member.payloads()) >= 4 for member in members)


def test_deep_filters_cost_no_more_than_there_are_of_them() -> None:
    index: FilterIndex[int] = FilterIndex()
    for k in range(1 << 10):
        levels = ["+" if k >> bit & 1 else "a" for bit in range(10)]
        index.add("/".join([*levels, *["+", "a"] * 45]), k)
    assert len(index.match("/".join("a" * 100))) == 1 << 10
    assert index.visited <= 2 * (1 << 10)


LEVELS = st.lists(st.sampled_from(["a", "b", "+", "", "$x"]), min_size=1, max_size=6)
FILTERS = st.tuples(LEVELS, st.booleans()).map(
    lambda parts: "/".join([*parts[0], "#"] if parts[1] else parts[0])
)
ADDRESSES = st.lists(st.sampled_from(["a", "b", "", "$x"]), min_size=1, max_size=7).map("/".join)


@given(
    st.lists(st.tuples(st.booleans(), FILTERS | st.just("#"), st.integers(0, 2)), max_size=40),
    st.lists(ADDRESSES, min_size=1, max_size=5),
)
def test_an_index_finds_what_the_rule_says(
    changes: list[tuple[bool, str, int]], addresses: list[str]
) -> None:
    index: FilterIndex[int] = FilterIndex()
    kept: dict[tuple[str, int], None] = {}
    for adds, filter, item in changes:
        if adds:
            assert index.add(filter, item) == ((filter, item) not in kept)
            kept.setdefault((filter, item))
        else:
            assert index.remove(filter, item) == ((filter, item) in kept)
            kept.pop((filter, item), None)
    assert len(index) == len(kept)
    for address in addresses:
        if address.startswith("$"):
            continue  # reserved: what is subscribed there is subscribed exactly
        found = dict.fromkeys(item for filter, item in kept if matches(filter, address))
        assert index.match(address) == list(found)


# Queues and services


def waiting_pulls(count: int) -> tuple[Desk, Client]:
    """A desk with a client that waits for messages of one queue, so many times."""
    desk = Desk()
    worker = desk.client("kobold-3", "worker")
    pull = Message(op=Op.DEQUEUE, address="q", correlation_id="t", parameters=LONG)
    worker.send(*[pull] * count)
    return desk, worker


@pytest.mark.parametrize("action", ["put", "tick", "pull"])
def test_a_pull_costs_the_same_however_many_wait(action: str) -> None:
    def cost(count: int) -> int:
        desk, worker = waiting_pulls(count)
        queue = desk.node.queues.get("q")
        request = Message(op=Op.DEQUEUE, correlation_id="u")
        actions: dict[str, Callable[[], object]] = {
            "put": lambda: queue.put(Message(payload=b"x"), desk.now),
            "tick": lambda: desk.node.tick(101.0),
            "pull": lambda: queue.pull(worker.session, request, 1, 0.0, 100.0),
        }
        return steps(actions[action])

    assert cost(900) <= cost(10) + 10


def test_an_acknowledgement_costs_the_same_however_many_consumers_there_are() -> None:
    def cost(count: int) -> int:
        desk = Desk()
        workers = [desk.client("kobold-3") for _ in range(count)]
        workers[0].send(Message(op=Op.ENQUEUE, address="q", payload=b"x", id="m"))
        for worker in reversed(workers):
            worker.send(Message(op=Op.SUBSCRIBE, address="q"))
        holder = next(one for one in workers if one.take())
        return steps(lambda: desk.node.queues.get("q").ack(holder.session, "m", 100.0))

    assert cost(300) <= cost(3) + 10


def test_the_clock_passes_by_queues_that_have_nothing_to_do() -> None:
    def cost(count: int) -> int:
        desk = Desk()
        client = desk.client("kobold-3")
        client.send(*(Message(op=Op.ENQUEUE, address=f"q/{k}", payload=b"x") for k in range(count)))
        desk.pass_time(1.0)
        return steps(lambda: desk.node.tick(101.5))

    assert cost(500) <= cost(2) + 10


def test_somebody_who_leaves_costs_the_same_however_many_services_there_are() -> None:
    def cost(count: int) -> int:
        desk = Desk()
        desk.client("kobold-3").send(
            *(Message(op=Op.SERVE, address=f"s/{k}") for k in range(count))
        )
        asker = desk.client("kobold-3", "asker")
        asker.send(
            *(Message(op=Op.REQUEST, address="s/1", correlation_id=f"{k}") for k in range(count))
        )
        other = desk.client("kobold-3")
        return steps(lambda: other.session.lost("gone"))

    assert cost(500) <= cost(2) + 10


# Turns


def test_a_client_that_asks_for_much_gives_way_to_others() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    client.send(*(Message(op=Op.PING, correlation_id=f"{k}") for k in range(1000)))
    assert [m.correlation_id for m in client.take()] == [f"{k}" for k in range(1000)]
    assert desk.node.vitals.counters["gave_way"] >= 7


def test_a_client_that_makes_queues_gives_way_more_often_than_one_that_uses_them() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    asked = [Message(op=Op.DEQUEUE, address=f"q/{k}", correlation_id=f"{k}") for k in range(1000)]
    client.send(*asked)
    made = desk.node.vitals.counters["gave_way"]
    assert made >= 80
    client.send(*asked)
    assert desk.node.vitals.counters["gave_way"] - made < made / 5
    assert len(client.take()) == 2000


def test_a_client_that_leaves_thousands_of_queues_costs_a_look_at_each() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    client.send(
        *(Message(op=Op.DEQUEUE, address=f"q/{k}", correlation_id=f"{k}") for k in range(1000))
    )
    assert steps(lambda: client.session.lost("gone")) < 20 * 1000


def test_a_publisher_to_ever_new_addresses_gives_way_to_others() -> None:
    desk = Desk()
    client = desk.client("boson-text")
    subscriber = desk.client("boson-text")
    subscriber.subscribe("#")
    publish_to(client, [f"new/{k}" for k in range(5000)])
    assert len(subscriber.payloads()) == 5000
    assert desk.node.vitals.counters["gave_way"] >= 10
    before = desk.node.vitals.counters["gave_way"]
    for _ in range(20):  # a steady stream does not
        publish_to(client, [f"new/{k}" for k in range(5000)])
    assert desk.node.vitals.counters["gave_way"] <= before + 1


def test_frames_of_any_size_pass_through_small_turns() -> None:
    desk = Desk()
    client, subscriber = desk.client("boson-binary"), desk.client("boson-binary")
    subscriber.subscribe("a/#")
    payloads = [bytes([k % 251]) * size for k, size in enumerate([1, 70_000, 3, 300_000, 40_000])]
    for k in range(300):  # so that only little is scanned at once
        publish_to(client, [f"b/{k}/{j}" for j in range(20)])
    client.send(*(Message(address=f"a/{k}", payload=one) for k, one in enumerate(payloads)))
    assert subscriber.payloads() == payloads


def test_a_long_list_of_keys_comes_in_parts() -> None:
    desk = Desk()
    client = desk.client("kobold-3")
    count = 5000
    client.send(
        *(Message(op=Op.CREATE, address=f"k/{k:04}", payload=b"v") for k in range(count)),
    )
    client.take()
    before = desk.node.vitals.counters["gave_way"]
    client.send(
        Message(op=Op.READ, address="k/#", correlation_id="list"),
        Message(op=Op.READ, address="+/nothing/here", correlation_id="none"),
        Message(op=Op.PING, correlation_id="after"),
    )
    listed = client.take()
    assert [m.address for m in listed[:count]] == [f"k/{k:04}" for k in range(count)]
    assert [m.correlation_id for m in listed[count:]] == ["list", "none", "after"]
    assert listed[count].parameters.count == count
    assert desk.node.vitals.counters["gave_way"] >= before + 10
