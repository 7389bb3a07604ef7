"""Client ids: whose they are, who may take one over, and for how long one stays reserved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.desk import Client, Desk, ops
from wirelake.broker.clients import Clients
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.journal.engine import Engine
from wirelake.message import Message, Op, Parameters

#: The dialects in which a client names itself and can have a token.
NAMING = [
    "mfp-1", "boson-binary", "kobold-1", "kobold-2", "kobold-3", "tmq-1.00", "tmq-1.01",
]  # fmt: skip
EVERYTHING = ("#",)


@pytest.fixture
def desk() -> Desk:
    """A broker with tokens: `alice`, whose secret was rotated, `bob`, and `few`."""
    desk = Desk()
    alice = Rights("alice", EVERYTHING, EVERYTHING)
    bob = Rights("bob", EVERYTHING, EVERYTHING)
    few = Rights("few", EVERYTHING, EVERYTHING, clients=("dev-7", "sensor/+"))
    desk.node.clients.rights_of_strangers = Rights("stranger")
    desk.node.clients.rights_of_token = {"old": alice, "new": alice, "b": bob, "f": few}.get
    return desk


def was_let_in(client: Client) -> bool:
    return client.is_open and "error" not in ops(client.opening)


def takeovers(desk: Desk) -> list[object]:
    return [event["text"] for event in desk.node.vitals.events if event["event"] == "takeover"]


@pytest.mark.parametrize("dialect", NAMING)
@pytest.mark.parametrize("token", ["", "b"], ids=["a stranger", "another token"])
def test_however_silent_a_client_is_nobody_else_takes_its_id(
    desk: Desk, dialect: str, token: str
) -> None:
    owner = desk.client(dialect, "dev-1", token="old")
    desk.now += 3600
    thief = desk.client(dialect, "dev-1", token=token)
    assert not was_let_in(thief)
    assert owner.is_open
    assert desk.node.clients.sessions("dev-1") == [owner.session]
    assert takeovers(desk) == []


@pytest.mark.parametrize("dialect", NAMING)
def test_the_same_token_entry_takes_an_id_over_at_once_and_that_is_an_event(
    desk: Desk, dialect: str
) -> None:
    first = desk.client(dialect, "dev-1", token="old")
    second = desk.client(dialect, "dev-1", token="new")
    assert was_let_in(second)
    assert not first.is_open
    assert takeovers(desk) == [f"took over the client id dev-1 from desk/{dialect}"]


@pytest.mark.parametrize("dialect", NAMING)
def test_an_id_stays_its_tokens_after_a_disconnect_and_is_free_later(
    desk: Desk, dialect: str
) -> None:
    desk.client(dialect, "dev-1", token="old").session.lost("gone")
    desk.now += desk.node.clients.reserve - 1
    assert not was_let_in(desk.client(dialect, "dev-1", token="b"))
    back = desk.client(dialect, "dev-1", token="new")
    assert was_let_in(back)
    back.session.lost("gone")
    desk.now += desk.node.clients.reserve
    assert was_let_in(desk.client(dialect, "dev-1", token="b"))


@pytest.mark.parametrize("dialect", NAMING)
def test_a_token_claims_only_the_ids_that_its_filters_match(desk: Desk, dialect: str) -> None:
    assert was_let_in(desk.client(dialect, "dev-7", token="f"))
    assert was_let_in(desk.client(dialect, "sensor/4", token="f"))
    assert not was_let_in(desk.client(dialect, "dev-8", token="f"))


@pytest.mark.parametrize("dialect", ["tmq-1.00", "tmq-1.01"])
def test_a_stranger_who_claims_no_id_is_given_one(desk: Desk, dialect: str) -> None:
    stranger = desk.client(dialect)
    assert was_let_in(stranger)
    assert stranger.session.client_id.startswith("client-")
    assert not stranger.session.has_claimed


def test_both_connections_of_an_mfp_client_have_the_same_token(desk: Desk) -> None:
    publisher = desk.client("mfp-1", "dev-1", "pub", token="old")
    assert was_let_in(desk.client("mfp-1", "dev-1", "sub", token="old"))
    assert publisher.is_open
    assert not was_let_in(desk.client("mfp-1", "dev-1", "sub", token="b"))


@pytest.mark.parametrize("dialect", ["boson-binary", "kobold-1", "kobold-2", "kobold-3"])
def test_a_client_that_changes_its_token_loses_its_id(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect, "dev-1", token="old")
    client.send(Message(op=Op.AUTH, parameters=Parameters(token="b")))
    assert client.session.client_id == ""
    client.send(Message(op=Op.AUTH, correlation_id="1", parameters=Parameters(client="dev-1")))
    assert ops(client.take()) == ["error"], "it is reserved for the first token"


def test_only_so_many_ids_stay_reserved_for_one_token(desk: Desk) -> None:
    clients: Clients = desk.node.clients
    clients.max_reserved = 3
    for number in range(5):
        desk.client("kobold-3", f"dev-{number}", token="old").session.lost("gone")
    taken = [was_let_in(desk.client("kobold-3", f"dev-{n}", token="b")) for n in range(5)]
    assert taken == [True, True, False, False, False]


def test_an_id_stays_its_tokens_when_the_broker_starts_again(tmp_path: Path) -> None:
    # decision 99
    bob, alice = Rights("bob"), Rights("alice")

    def opened() -> Desk:
        desk = Desk(Node(Engine.on_disk(tmp_path)))
        desk.node.clients.rights_of_strangers = Rights("stranger")
        desk.node.clients.rights_of_token = {"a": alice, "b": bob}.get
        return desk

    desk = opened()
    desk.client("kobold-3", "dev-1", token="a")
    left = desk.client("kobold-3", "dev-2", token="a")
    left.session.lost("reset")
    desk.node.engine.close()  # as after a kill: nobody said goodbye
    desk = opened()
    for name in ("dev-1", "dev-2"):
        assert not was_let_in(desk.client("kobold-3", name, token="b"))
        assert was_let_in(desk.client("kobold-3", name, token="a"))
    desk.node.engine.close()
    desk = opened()
    desk.pass_time(desk.node.clients.reserve, step=60.0)
    assert was_let_in(desk.client("kobold-3", "dev-1", token="b"))
    desk.node.engine.close()
    desk = opened()
    assert not was_let_in(desk.client("kobold-3", "dev-1", token="a"))
    desk.node.engine.close()


def test_ids_that_nobody_comes_back_for_leave_the_journal() -> None:
    desk = Desk()
    alice = Rights("alice")
    desk.node.clients.rights_of_strangers = Rights("stranger")
    desk.node.clients.rights_of_token = {"a": alice}.get
    desk.node.clients.max_reserved = 3
    for k in range(20):
        desk.client("kobold-3", f"dev-{k}", token="a").session.lost("reset")
    kept = [entry.key for _, entry in desk.node.engine.entries()]
    assert sorted(kept) == ["$reserved/dev-17", "$reserved/dev-18", "$reserved/dev-19"]
    desk.pass_time(desk.node.clients.reserve, step=60.0)
    desk.client("kobold-3", "last", token="a").session.lost("reset")
    kept = [entry.key for _, entry in desk.node.engine.entries()]
    assert kept == ["$reserved/last"]
