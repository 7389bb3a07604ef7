"""`wirelake queue peek`, `purge`, `move`, `make` and `rm`, against a real broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner, Result

import wirelake
from wirelake.cli import app
from wirelake.config import TokenSettings, hash_token
from wirelake.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with HTTP."""
    with Broker(http=True) as broker:
        yield broker


def queue(*arguments: str) -> Result:
    """A command, to its end."""
    return CliRunner().invoke(app, ["queue", *arguments], catch_exceptions=False)


def fill(broker: Broker, name: str, *payloads: bytes) -> None:
    """Put messages into a queue."""
    with wirelake.connect_sync(broker.url("kobold-2")) as client:
        for payload in payloads:
            client.queue(name).put(payload, headers={"unit": "C"})


def test_peek_shows_what_comes_next_and_takes_nothing(broker: Broker) -> None:
    fill(broker, "a/peek", b"one", b"\xff\xfe")
    for _ in range(2):
        shown = queue("peek", broker.http_url, "a/peek").stdout
        assert "one" in shown
        assert "unit=C" in shown
    (first,) = map(
        json.loads,
        queue("peek", broker.http_url, "a/peek", "--count", "1", "--json").stdout.splitlines(),
    )
    assert (first["payload"], first["attempts"]) == ("one", 0)


def test_purge_throws_everything_away(broker: Broker) -> None:
    fill(broker, "a/purge", b"1", b"2")
    assert queue("purge", broker.http_url, "a/purge").stdout == "2 messages thrown away\n"
    assert queue("peek", broker.http_url, "a/purge", "--json").stdout == ""


def test_dead_letters_go_back_to_where_they_came_from(broker: Broker) -> None:
    fill(broker, "a/jobs", b"bad")
    with wirelake.connect_sync(broker.url("kobold-3")) as client:
        (delivery,) = client.queue("a/jobs").get()
        delivery.nack(requeue=False)
    peeked = queue("peek", broker.http_url, "a/jobs/$dead").stdout
    assert "dead.reason=rejected" in peeked
    moved = queue("move", broker.http_url, "a/jobs/$dead").stdout
    assert moved == "1 message moved to a/jobs\n"
    assert "bad" in queue("peek", broker.http_url, "a/jobs").stdout


def test_a_queue_is_made_with_its_settings_and_removed(broker: Broker) -> None:
    assert queue("make", broker.http_url, "a/made", "--mode", "pull").exit_code == 0
    listed = queue("ls", broker.url("kobold-2"), "--json").stdout.splitlines()
    made = [one for one in map(json.loads, listed) if one["name"] == "a/made"]
    assert [one["mode"] for one in made] == ["pull"]
    assert queue("rm", broker.http_url, "a/made").exit_code == 0
    gone = queue("rm", broker.http_url, "a/made")
    assert (gone.exit_code, gone.stderr) == (1, "wirelake: not_found: no queue a/made\n")


def test_only_the_settings_that_are_given_are_changed(broker: Broker) -> None:
    limits = ("--max-messages", "7", "--max-bytes", "99", "--dedup-window", "5", "--keep-expired")
    assert queue("make", broker.http_url, "a/kept", "--mode", "pull", *limits).exit_code == 0
    assert queue("make", broker.http_url, "a/kept", "--ack-timeout", "9").exit_code == 0
    with urlopen(f"{broker.http_url}/v1/queues/a/kept") as answer:
        kept = json.load(answer)
    wanted = {"mode": "pull", "ack_timeout": 9.0, "max_deliveries": 5, "max_messages": 7}
    wanted |= {"max_bytes": 99, "dedup_window": 5.0, "keep_expired": True}
    assert {name: kept[name] for name in wanted} == wanted


def test_a_token_without_the_right_is_refused_in_one_line() -> None:
    reader = TokenSettings(name="reader", hash=hash_token("secret"), subscribe=("#",))
    with Broker(http=True, tokens=(reader,)) as broker:
        result = queue("purge", broker.http_url, "jobs", "--token", "secret")
    assert result.exit_code == 1
    assert result.stderr.startswith("wirelake: unauthorized: ")


def test_a_wrong_place_is_one_line() -> None:
    assert queue("peek", "telnet://localhost", "jobs").exit_code == 2
    result = queue("peek", "http://127.0.0.1:1", "jobs")
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1
