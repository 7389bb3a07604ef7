"""What one connection may have, and all together: refusals name the setting (decision 69)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import msgspec
import pytest

from tests.broker.desk import Client, Desk
from wirelake.broker.quotas import Quotas
from wirelake.config import QuotaSettings
from wirelake.journal.engine import QueueSettings
from wirelake.message import Message, Op, Parameters

WAIT = Parameters(wait=60.0)

#: What asks for one more of each kind; `k` tells them apart.
ONE_MORE: dict[str, Callable[[int], Message]] = {
    "subscriptions": lambda k: Message(op=Op.SUBSCRIBE, address=f"s/{k}"),
    "services": lambda k: Message(op=Op.SERVE, address=f"s/{k}"),
    "requests": lambda k: Message(op=Op.REQUEST, address="service"),
    "pulls": lambda k: Message(op=Op.DEQUEUE, address="q", parameters=WAIT),
    "watches": lambda k: Message(op=Op.WATCH, address=f"s/{k}"),
    "streams": lambda k: Message(op=Op.OPEN, address="target"),
    "queues": lambda k: Message(op=Op.ENQUEUE, address=f"q/{k}"),
    "keys": lambda k: Message(op=Op.CREATE, address=f"k/{k}"),
}
OF_ONE_CONNECTION = ["subscriptions", "services", "requests", "pulls", "watches", "streams"]


@pytest.fixture
def desk() -> Desk:
    """A broker where some service is, and some client that takes streams."""
    desk = Desk()
    desk.client("kobold-3", "service").send(Message(op=Op.SERVE, address="service"))
    desk.client("kobold-3", "target")
    return desk


def ask(client: Client, kind: str, k: int) -> str:
    """Ask for one more of a kind; empty if that was done, or is still being done, or the error."""
    client.send(msgspec.structs.replace(ONE_MORE[kind](k), correlation_id=f"t{k}"))
    errors = [m for m in client.take() if m.op == Op.ERROR]
    return f"{errors[0].parameters.code}: {errors[0].payload.decode()}" if errors else ""


def test_the_defaults_are_those_of_the_settings() -> None:
    assert Quotas(**msgspec.structs.asdict(QuotaSettings())) == Quotas()
    assert {one.name for one in fields(Quotas)} == {*QuotaSettings.__struct_fields__}


@pytest.mark.parametrize("kind", OF_ONE_CONNECTION)
def test_a_connection_is_refused_more_than_its_share(desk: Desk, kind: str) -> None:
    # decision 69
    desk.node.quotas.change(**{kind: 3})
    client = desk.client("kobold-3", "greedy")
    assert [ask(client, kind, k) for k in range(3)] == ["", "", ""]
    refused = ask(client, kind, 3)
    assert refused == f"busy: this connection has 3 {kind}, the most allowed (quotas.{kind})"
    assert ask(desk.client("kobold-3", "modest"), kind, 4) == ""


@pytest.mark.parametrize("kind", [f"all_{one}" for one in OF_ONE_CONNECTION] + ["queues", "keys"])
def test_all_together_are_refused_more_than_there_may_be(desk: Desk, kind: str) -> None:
    # decision 69
    desk.node.quotas.change(**{kind: 4})
    name = kind.removeprefix("all_")
    refused = ""
    for k in range(6):  # each by another client
        refused = refused or ask(desk.client("kobold-2"), name, k)
    assert refused == f"busy: the broker has 4 {name}, the most allowed (quotas.{kind})"


@pytest.mark.parametrize("kind", OF_ONE_CONNECTION)
def test_what_was_given_back_can_be_had_again(desk: Desk, kind: str) -> None:
    desk.node.quotas.change(**{kind: 2, f"all_{kind}": 4})
    for _ in range(5):
        client = desk.client("kobold-1", "greedy")
        assert [ask(client, kind, k)[:5] for k in range(3)] == ["", "", "busy:"]
        client.session.lost("gone")


def test_the_same_subscription_counts_once(desk: Desk) -> None:
    desk.node.quotas.change(subscriptions=1, services=1, watches=1)
    client = desk.client("kobold-3")
    for kind in ("subscriptions", "services", "watches"):
        assert [ask(client, kind, 7) for _ in range(3)] == ["", "", ""]


def test_subscriptions_with_wildcards_have_a_quota_of_their_own(desk: Desk) -> None:
    # decision 62
    desk.node.quotas.change(wildcards=2)
    client = desk.client("kobold-3")

    def do(op: Op, filter: str) -> bytes:
        client.send(Message(op=op, address=filter, correlation_id="t"))
        (answer,) = client.take()
        return answer.payload

    filters = ["a/+", "#", "#", "b", "c", "c/#"]
    assert [do(Op.SUBSCRIBE, one) for one in filters[:-1]] == [b""] * 5
    assert b"2 wildcards, the most allowed (quotas.wildcards)" in do(Op.SUBSCRIBE, filters[-1])
    assert do(Op.UNSUBSCRIBE, "a/+") == do(Op.SUBSCRIBE, filters[-1]) == b""


def test_queues_that_are_consumed_count_as_subscriptions(desk: Desk) -> None:
    desk.node.quotas.change(subscriptions=2)
    client = desk.client("kobold-3")
    for k in range(3):
        client.send(Message(op=Op.DEQUEUE, address=f"q/{k}", correlation_id="t"))
    assert [m.op for m in client.take()] == [Op.OK, Op.OK, Op.ERROR]
    assert "q/2" not in desk.node.queues  # a refusal leaves nothing behind


@pytest.mark.parametrize(
    ("op", "text"),
    [(Op.PUBLISH, "+"), (Op.SUBSCRIBE, "+"), (Op.WATCH, "+"), (Op.SERVE, "a"), (Op.CREATE, "a")],
)
def test_addresses_and_filters_have_so_many_levels_at_most(desk: Desk, op: Op, text: str) -> None:
    # decision 69
    desk.node.quotas.change(levels=4)
    client = desk.client("kobold-3")
    level = "a" if op == Op.PUBLISH else text
    for levels, done in ((4, True), (5, False)):
        address = "/".join([level] * levels)
        client.send(Message(op=op, address=address, correlation_id="t", id="m"))
        client.publish("after", b"", ack=True)  # so that there is an answer
        errors = [m for m in client.take() if m.op == Op.ERROR]
        assert [m.parameters.code for m in errors] == ([] if done else ["bad_request"])
        assert done or b"at most 4 levels (quotas.levels), not 5" in errors[0].payload


def test_dead_letters_have_a_queue_whatever_the_quotas(desk: Desk) -> None:
    desk.node.quotas.change(queues=1, levels=2)
    client = desk.client("kobold-3", "worker")
    desk.node.queues.declare(QueueSettings("a/b", max_deliveries=1))
    client.send(Message(op=Op.ENQUEUE, address="a/b", payload=b"x", id="m"))
    client.send(Message(op=Op.DEQUEUE, address="a/b"))
    client.send(Message(op=Op.NACK, address="a/b", id="m", parameters=Parameters(requeue=False)))
    assert len(desk.node.queues.get("a/b/$dead")) == 1


def test_all_keys_together_have_so_many_bytes_at_most() -> None:
    desk = Desk()
    desk.node.quotas.change(key_bytes=100)
    client = desk.client("kobold-3")

    def do(op: Op, key: str, size: int = 0) -> str:
        client.send(Message(op=op, address=key, payload=b"x" * size, correlation_id="t"))
        (answer,) = client.take()
        return answer.op.label if answer.op == Op.OK else answer.payload.decode()

    assert do(Op.CREATE, "a", 59) == "ok"
    assert "60 bytes of the 100 allowed (quotas.key_bytes)" in do(Op.CREATE, "b", 40)
    assert do(Op.CREATE, "b", 39) == "ok"
    assert "quotas.key_bytes" in do(Op.UPDATE, "a", 60)
    assert do(Op.UPDATE, "a", 9) == "ok"
    assert do(Op.UPDATE, "b", 89) == "ok"
    assert do(Op.DELETE, "b") == "ok"
    assert do(Op.UPDATE, "a", 99) == "ok"
