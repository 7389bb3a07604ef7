"""`wirelake top`, `health`, `connections` and `events`, against any broker."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import wirelake
from tests.cli.command import COMMAND
from tests.cli.terminal import CTRL_C, Terminal
from wirelake.cli import app
from wirelake.client import SyncClient
from wirelake.config import TokenSettings, hash_token
from wirelake.live.children import Child
from wirelake.live.group import Group
from wirelake.net.server import Server
from wirelake.testing import Broker

READER = TokenSettings(name="reader", hash=hash_token("reader-secret"), subscribe=("#",))
ADMIN = TokenSettings(name="op", hash=hash_token("admin-secret"), subscribe=("#",), admin=True)


@pytest.fixture
def broker() -> Iterator[Broker]:
    """A broker with HTTP."""
    with Broker(http=True) as broker:
        yield broker


def run(*arguments: str) -> Result:
    """A command, to its end."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize("key", ["q", CTRL_C])
def test_top_shows_rates_queues_connections_and_events_on_a_terminal(
    broker: Broker, key: str
) -> None:
    done = threading.Event()

    def publish() -> None:
        with wirelake.connect_sync(broker.url("kobold-3"), client_id="sensor-7") as client:
            client.queue("jobs/resize").put(b"x")
            while not done.wait(0.01):
                client.publish("house/temp", b"21.5")

    publishing = threading.Thread(target=publish)
    publishing.start()
    top = Terminal("top", broker.url("boson-binary"), columns=120, lines=40)
    try:
        top.wait(rf"^ wirelake top  {broker.http_url} +● ok")
        top.wait(r"listens +auto://127.0.0.1:\d+")
        top.wait(r"in +[1-9][0-9,]* msg/s")
        top.wait(r"jobs/resize +1 +0")
        top.wait(r"sensor-7 +kobold-3 +127\.0\.0\.1:\d+ +[1-9][0-9,]*")
        make_event(broker, "sensor-7", "happened")
        top.wait(r"^ \d\d:\d\d:\d\d test: sensor-7: happened")
        done.set()
        broker.stop()
        top.wait("nothing listens at")
        broker.restart()
        top.wait("nothing listens at", gone=True)
        top.type(key)
        assert top.end() in (0, 130)
        assert top.is_restored()
    finally:
        done.set()
        publishing.join()
        top.close()


def make_event(broker: Broker, who: str, text: str) -> None:
    """Let the broker tell operators of something."""

    def tell(server: Server) -> dict[str, None]:
        server.node.vitals.event("test", who, text)
        return {}

    broker._ask(tell)


def test_top_without_a_terminal_is_lines(broker: Broker) -> None:
    lines = run("top", broker.http_url, "--count", "2", "--every", "0.1").stdout.splitlines()
    assert len(lines) == 2
    assert "0 clients, 0 messages/s in" in lines[1]
    (told,) = map(
        json.loads, run("top", broker.http_url, "--count", "1", "--json").stdout.splitlines()
    )
    assert (told["url"], told["state"], told["clients"]) == (broker.http_url, "ok", {})


def test_top_and_connections_need_an_operators_token() -> None:
    with Broker(http=True, tokens=(READER, ADMIN)) as broker:
        for command in ("top", "connections"):
            refused = run(command, broker.http_url, "--token", "reader-secret")
            assert refused.exit_code == 1
            assert len(refused.stderr.splitlines()) == 1
        assert run("connections", broker.http_url, "--token", "admin-secret").exit_code == 0
        assert run("top", broker.http_url, "--token", "admin-secret", "--count", "1").exit_code == 0
        assert run("health", broker.http_url).stdout == "ok\n"  # anybody may know


def test_health_is_an_exit_code_and_can_be_waited_for(broker: Broker) -> None:
    assert run("health", broker.url("kobold-3")).stdout == "ok\n"
    url = broker.http_url
    broker.stop()
    assert run("health", url).exit_code == 1
    late = run("health", url, "--wait", "0.5", "--json")
    assert (late.exit_code, json.loads(late.stdout)["state"]) == (1, "unreachable")
    starting = threading.Timer(0.5, broker.restart)
    starting.start()
    assert run("health", url, "--wait", "60").stdout == "ok\n"
    starting.join()


def test_connections_are_listed_and_closed(broker: Broker) -> None:
    with wirelake.connect_sync(
        broker.url("kobold-3"), client_id="sensor-7", reconnect=False
    ) as client:
        client.ping()
        shown = run("connections", broker.http_url).stdout
        assert "sensor-7" in shown
        listed = run("connections", "ls", broker.url("kobold-2"), "--json").stdout.splitlines()
        (one,) = [told for told in map(json.loads, listed) if told["id"] == "sensor-7"]
        number = str(one["number"])
        closed = run("connections", "close", broker.http_url, number)
        assert closed.stdout == f"connection {number} is closed\n"
        with pytest.raises(wirelake.RefusedError, match="closed"):
            _ping_until_it_fails(client)
    again = run("connections", "close", broker.http_url, number)
    assert (again.exit_code, again.stderr) == (
        1,
        f"wirelake: not_found: no connection {number}\n",
    )


def _ping_until_it_fails(client: SyncClient) -> None:
    for _ in range(6000):
        client.ping()
        time.sleep(0.01)


def test_events_begin_with_those_of_the_past_and_go_on(broker: Broker) -> None:
    for text in ("one", "two"):
        make_event(broker, "a", text)
    past = run("events", broker.http_url, "--last", "1", "--count", "1", "--json")
    (told,) = map(json.loads, past.stdout.splitlines())
    assert (told["event"], told["who"], told["text"]) == ("test", "a", "two")
    timed_out = run("events", broker.http_url, "--last", "0", "--count", "1", "--timeout", "0.3")
    assert timed_out.exit_code == 4
    command = [*COMMAND, "events", broker.http_url, "--last", "1"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as shown:  # type: ignore[call-overload]  # pipes
        assert shown.stdout.readline().rstrip().endswith("test  a  two")
        broker.restart()
        lines = [shown.stderr.readline(), shown.stderr.readline()]
        make_event(broker, "b", "three")
        assert shown.stdout.readline().rstrip().endswith("test  b  three")
        shown.terminate()
        shown.communicate()
    assert "the connection is lost, trying again" in lines[0]
    assert lines[1] == "wirelake: connected again\n"


def test_the_pipeline_is_green_when_it_landed_something(tmp_path: Path) -> None:
    group = Group(
        [], [], "", "", table=tmp_path, has_lake=True,
        suggest=lambda places, http: [], show=lambda line, fields: None, is_plain=True,
    )  # fmt: skip
    pipeline = Child("pipeline", list, group, tells_when_up=True)
    group._pipeline = pipeline
    states = [pipeline.state]
    for line in ("Spark says something", '{"batch": 0, "rows": 5, "lag": 7}'):
        group.said(pipeline, line)
        states.append(pipeline.state)
    pipeline.state = "pausing"  # it has ended, and waits to be started again
    group._is_landing()
    assert [*states, pipeline.state] == ["starting", "starting", "up", "pausing"]
