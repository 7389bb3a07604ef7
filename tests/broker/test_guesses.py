"""Who guesses tokens has to wait, and is told to operators; nobody else notices."""

from __future__ import annotations

import itertools

import pytest

from tests.broker.desk import Client, Desk
from wirelake.broker.guesses import QUIET, Guesses
from wirelake.broker.rights import Rights, all_rights
from wirelake.config import GuessSettings
from wirelake.message import Message, Op, Parameters

SET = GuessSettings()
DIALECTS = ["kobold-1", "kobold-2", "kobold-3", "boson-binary", "boson-text"]


@pytest.fixture
def desk() -> Desk:
    """A broker with one right token."""
    desk = Desk()
    mine = all_rights("mine")
    desk.node.clients.rights_of_strangers = Rights("stranger")
    desk.checked = 0  # type: ignore[attr-defined]  # of tokens that were looked at

    def tokens(token: str) -> Rights | None:
        desk.checked += 1  # type: ignore[attr-defined]
        return mine if token == "right" else None

    desk.node.clients.rights_of_token = tokens
    return desk


def checked(desk: Desk) -> int:
    """How many tokens were looked at."""
    return int(desk.checked)  # type: ignore[attr-defined]


def guess(client: Client, token: str) -> None:
    """Show a token."""
    client.send(Message(op=Op.AUTH, correlation_id="1", parameters=Parameters(token=token)))


def visitor(desk: Desk, dialect: str, host: str) -> Client:
    """A client from another machine."""
    client = desk.client(dialect)
    client.peer = f"{host}:4711"
    return client


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_connection_that_guesses_has_to_wait_longer_and_longer(desk: Desk, dialect: str) -> None:
    # decision 63
    client = desk.client(dialect)
    for number in range(10):
        guess(client, f"wrong-{number}")
    assert checked(desk) == SET.free + 1
    waits = []
    for number in range(4):
        before, begun = checked(desk), desk.now
        while checked(desk) == before:
            desk.now += 0.05
            desk.node.clients.guesses._connections[
                client.session
            ].attempts = 0  # or it would be closed
            guess(client, f"more-{number}")
        waits.append(desk.now - begun)
    assert all(later > 1.5 * earlier for earlier, later in itertools.pairwise(waits))
    desk.now += SET.longest_delay
    guess(client, "right")
    assert client.session.rights.name == "mine"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_connection_that_does_not_stop_guessing_is_closed(desk: Desk, dialect: str) -> None:
    client = desk.client(dialect)
    for number in range(2000):
        if not client.is_open:
            break
        guess(client, f"wrong-{number}")
    assert not client.is_open
    assert number <= SET.most + 1
    assert checked(desk) == SET.free + 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_others_of_the_same_machine_get_in_at_once_with_a_right_token(
    desk: Desk, dialect: str
) -> None:
    for host in ("127.0.0.1", "[::1]"):
        for _ in range(10):
            attacker = visitor(desk, dialect, host)
            for number in range(SET.free_per_peer):
                guess(attacker, f"wrong-{number}")
        friend = visitor(desk, dialect, host)
        guess(friend, "right")
        assert friend.session.rights.name == "mine"


def test_another_machine_that_guesses_has_to_wait_however_often_it_connects(desk: Desk) -> None:
    friend = visitor(desk, "kobold-3", "192.0.2.1")
    guess(friend, "right")
    for number in range(1000):
        guess(visitor(desk, "kobold-3", "192.0.2.1"), f"wrong-{number}")
    assert checked(desk) == 1 + SET.free_per_peer + 1
    # Who was let in before gets in again, and other machines are none the wiser.
    for host in ("192.0.2.1", "192.0.2.2", "[2001:db8::1]"):
        friend = visitor(desk, "kobold-3", host)
        guess(friend, "right")
        assert friend.session.rights.name == "mine"


def test_guesses_are_told_to_operators_now_and_then(desk: Desk) -> None:
    def told() -> list[dict[str, object]]:
        desk.node.tick(desk.now)
        return [event for event in desk.node.vitals.events if event["event"] == "wrong_tokens"]

    for _ in range(SET.free_per_peer):
        guess(visitor(desk, "kobold-3", "127.0.0.1"), "wrong")
    assert told() == []
    for _ in range(100):
        guess(visitor(desk, "kobold-3", "127.0.0.1"), "wrong")
    (event,) = told()
    assert event["who"] == "127.0.0.1"
    assert str(SET.free_per_peer + 1) in str(event["text"])
    desk.now += QUIET
    guess(visitor(desk, "kobold-3", "127.0.0.1"), "wrong")
    assert len(told()) == 2
    assert "wrong" not in str(told()[1]["text"]).replace("wrong tokens", "")


def test_wrong_tokens_are_forgotten_after_a_while() -> None:
    guesses = Guesses()
    for _ in range(SET.free_per_peer + 5):
        guesses.failed_at("192.0.2.1", 0.0)
    assert guesses.wait("192.0.2.1", "t", 0.0) > 0
    assert guesses.failed_at("192.0.2.1", SET.forget + 1) == 0.0
    assert guesses.wait("192.0.2.1", "t", SET.forget + 1) == 0.0


def test_no_wait_is_longer_than_the_longest() -> None:
    guesses = Guesses()
    for _ in range(10_000):
        delay = guesses.failed_at("192.0.2.1", 0.0)
    assert delay == SET.longest_delay


def test_the_settings_say_how_much_is_free_and_how_long_a_wait_is(desk: Desk) -> None:
    desk.node.clients.guesses.settings = GuessSettings(free=1, most=3, first_delay=5.0)
    client = desk.client("kobold-3")
    for number in range(4):
        guess(client, f"wrong-{number}")
    assert checked(desk) == 2
    assert not client.is_open
    guesses = Guesses(GuessSettings(free_per_peer=0, first_delay=7.0, remembered=2))
    assert guesses.failed_at("192.0.2.1", 0.0) == 7.0
    for number in range(5):
        guesses.failed_at(f"192.0.2.{number + 2}", 0.0)
    assert len(guesses._addresses) == 2
