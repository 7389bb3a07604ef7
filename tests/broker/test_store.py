"""The data store, in the dialects that have it."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.broker.desk import Client, Desk
from wirelake.broker.node import Node
from wirelake.journal.engine import Engine
from wirelake.message import Message, Op, Parameters

STORES = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]


def ask(client: Client, op: Op, key: str, value: bytes = b"", rev: int = 0, ttl: int = 0) -> str:
    """Do one thing; the answer as `ok REVISION VALUE` or the error's code."""
    said = Parameters(rev=rev or None)
    client.send(
        Message(op=op, address=key, payload=value, parameters=said, ttl=ttl, correlation_id="t")
    )
    (answer,) = [m for m in client.take() if m.correlation_id == "t"]
    if answer.op == Op.ERROR:
        return answer.parameters.code
    return " ".join([answer.op.label, str(answer.parameters.rev), answer.payload.decode()]).strip()


@pytest.mark.parametrize("dialect", STORES)
def test_values_are_created_read_updated_and_deleted(dialect: str) -> None:
    client = Desk().client(dialect)
    assert ask(client, Op.READ, "k") == "not_found"
    assert ask(client, Op.UPDATE, "k", b"x") == "not_found"
    assert ask(client, Op.DELETE, "k") == "not_found"
    assert ask(client, Op.CREATE, "k", b"one") == "ok 1"
    assert ask(client, Op.CREATE, "k", b"two") == "exists"
    assert ask(client, Op.READ, "k") == "ok 1 one"
    assert ask(client, Op.UPDATE, "k", b"two") == "ok 2"
    assert ask(client, Op.UPDATE, "k", b"three", rev=1) == "conflict"
    assert ask(client, Op.UPDATE, "k", b"three", rev=2) == "ok 3"
    assert ask(client, Op.DELETE, "k", rev=2) == "conflict"
    assert ask(client, Op.READ, "k") == "ok 3 three"
    assert ask(client, Op.DELETE, "k", rev=3) == "ok 4"
    assert ask(client, Op.READ, "k") == "not_found"
    assert ask(client, Op.CREATE, "k", b"again") == "ok 5"  # a revision is never used twice


@pytest.mark.parametrize("dialect", STORES)
def test_a_watcher_gets_every_change_in_order(dialect: str) -> None:
    desk = Desk()
    watcher, client = desk.client(dialect), desk.client("kobold-3")
    watcher.send(Message(op=Op.WATCH, address="house/#", correlation_id="w"))
    watcher.take()
    ask(client, Op.CREATE, "house/a", b"1")
    ask(client, Op.CREATE, "garden", b"1")
    ask(client, Op.UPDATE, "house/a", b"2")
    ask(client, Op.DELETE, "house/a")
    assert [(m.op, m.address, m.payload, m.parameters.rev) for m in watcher.take()] == [
        (Op.SET, "house/a", b"1", 1),
        (Op.SET, "house/a", b"2", 2),
        (Op.DEL, "house/a", b"", 3),
    ]
    watcher.session.lost("gone")
    assert ask(client, Op.CREATE, "house/a", b"3") == "ok 4"


def test_a_value_with_a_time_to_live_is_deleted_when_it_is_up() -> None:
    desk = Desk()
    client = desk.client("kobold-1")
    ask(client, Op.CREATE, "k", b"1", ttl=5000)
    desk.pass_time(4)
    assert ask(client, Op.READ, "k") == "ok 1 1"
    ask(client, Op.UPDATE, "k", b"2", ttl=5000)
    desk.pass_time(4)
    assert ask(client, Op.READ, "k") == "ok 2 2"
    desk.pass_time(2)
    assert ask(client, Op.READ, "k") == "not_found"
    assert ask(client, Op.CREATE, "k", b"3") == "ok 4"


def test_what_an_engine_kept_is_there_again() -> None:
    engine = Engine.in_memory()
    client = Desk(Node(engine)).client("kobold-1")
    ask(client, Op.CREATE, "a", b"1")
    ask(client, Op.CREATE, "b", b"1")
    ask(client, Op.DELETE, "b")
    client = Desk(Node(engine)).client("kobold-2")
    assert ask(client, Op.READ, "a") == "ok 1 1"
    assert ask(client, Op.CREATE, "b", b"2") == "ok 3"


@pytest.mark.parametrize("dialect", STORES)
def test_reading_a_filter_lists_the_keys_that_match(dialect: str) -> None:
    """decision 39"""
    client = Desk().client(dialect)
    for key in ("a/2", "a/1", "b", "a/3"):
        ask(client, Op.CREATE, key, key.encode())
    ask(client, Op.DELETE, "a/3", b"")
    client.send(Message(op=Op.READ, address="a/+", correlation_id="list"))
    answers = client.take()
    assert [(m.op, m.address, m.payload) for m in answers[:-1]] == [
        (Op.SET, "a/1", b"a/1"),
        (Op.SET, "a/2", b"a/2"),
    ]
    assert [m.parameters.rev for m in answers[:-1]] == [1, 1]
    assert answers[-1].op == Op.OK
    assert answers[-1].parameters.count == 2
    assert {m.correlation_id for m in answers} == {"list"}


def test_a_key_has_no_wildcards() -> None:
    assert ask(Desk().client("kobold-2"), Op.CREATE, "a/+", b"") == "bad_request"


def test_a_watch_from_a_revision_begins_with_what_has_come_to_it() -> None:
    """decision 40"""
    desk = Desk()
    client = desk.client("kobold-2")
    for key in ("a", "b", "c"):
        ask(client, Op.CREATE, key, b"1")
    ask(client, Op.UPDATE, "b", b"2")
    ask(client, Op.DELETE, "c", b"")
    watcher = desk.client("kobold-3")
    watcher.send(Message(op=Op.WATCH, address="#", parameters=Parameters(rev=2)))
    assert [(m.op, m.address, m.parameters.rev) for m in watcher.take()] == [
        (Op.SET, "b", 2),
        (Op.DEL, "c", 2),
    ]
    ask(client, Op.UPDATE, "a", b"2")
    assert [(m.op, m.address) for m in watcher.take()] == [(Op.SET, "a")]


class StoreAgainstADictionary(RuleBasedStateMachine):
    """Random changes by clients of random dialects, against a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.clients = [self.desk.client(dialect) for dialect in STORES]
        self.values: dict[str, bytes] = {}
        self.revisions: dict[str, int] = {}

    @rule(
        op=st.sampled_from([Op.CREATE, Op.READ, Op.UPDATE, Op.DELETE]),
        key=st.sampled_from(["a", "b/c", "ž"]),
        value=st.sampled_from([b"x", b"y"]),
        stale=st.booleans(),
        client=st.integers(0, 3),
    )
    def change(self, op: Op, key: str, value: bytes, stale: bool, client: int) -> None:
        revision = self.revisions.get(key, 0)
        expected = revision + 1 if stale and op in (Op.UPDATE, Op.DELETE) else 0
        got = ask(self.clients[client], op, key, value if op != Op.READ else b"", expected)
        if op == Op.CREATE and key in self.values:
            assert got == "exists"
        elif op != Op.CREATE and key not in self.values:
            assert got == "not_found"
        elif expected:
            assert got == "conflict"
        elif op == Op.READ:
            assert got == f"ok {revision} {self.values[key].decode()}"
        else:
            assert got == f"ok {revision + 1}"
            self.revisions[key] = revision + 1
            if op == Op.DELETE:
                del self.values[key]
            else:
                self.values[key] = value


TestStore = StoreAgainstADictionary.TestCase
TestStore.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
