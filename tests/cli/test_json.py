"""`--json` is the same in every command: results, payloads and errors."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import wirelake
from tests.cli.command import COMMAND, Group, stdin
from tests.cli.test_command_line import COMMANDS
from wirelake.cli import app
from wirelake.client import SyncClient
from wirelake.testing import Broker

#: Text, and bytes that are none.
PAYLOADS = {"text": ("grün", "Z3LDvG4="), "bytes": (None, "/wA=")}
RAW = {"text": "grün".encode(), "bytes": b"\xff\x00"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with HTTP."""
    with Broker(http=True) as broker:
        yield broker


def run(*arguments: str, data: bytes | None = None) -> Result:
    """A command, to its end."""
    return CliRunner().invoke(app, arguments, input=data, catch_exceptions=False)


def objects(*arguments: str) -> list[dict[str, Any]]:
    """What a command that works prints with `--json`."""
    result = run(*arguments, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    return [json.loads(line) for line in result.stdout.splitlines()]


def error(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the one line of a command that fails."""
    result = run(*arguments, "--json")
    (line,) = result.stderr.splitlines()
    return result.exit_code, json.loads(line)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_every_command_has_it_as_a_flag(names: tuple[str, ...]) -> None:
    (option,) = [one for one in COMMANDS[names].params if "--json" in one.opts]
    assert option.is_flag
    assert option.help


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_a_wrong_argument_of_every_command_is_an_object(names: tuple[str, ...]) -> None:
    code, told = error(*names, "--no-such-option")
    assert (code, told["error"], told["exit"]) == (2, "usage", 2)
    assert "--no-such-option" in told["text"]


#: What commands that talk to a broker are given behind the URL.
ASKING = {
    ("pub",): ["a", "b"], ("sub",): ["a"], ("request",): ["a", "b"], ("reply",): ["a"],
    ("queue", "put"): ["a", "b"], ("queue", "get"): ["a"], ("queue", "ls"): [],
    ("queue", "peek"): ["a"], ("queue", "purge"): ["a"], ("queue", "move"): ["a"],
    ("queue", "make"): ["a"], ("queue", "rm"): ["a"],
    ("kv", "get"): ["a"], ("kv", "put"): ["a", "b"], ("kv", "del"): ["a"], ("kv", "ls"): [],
    ("kv", "watch"): [], ("stream", "send"): ["a", "/dev/null"],
    ("stream", "recv"): ["--id", "abc", "--output", "/dev/null"],
    ("top",): [], ("health",): [], ("connections", "ls"): [], ("connections", "close"): ["1"],
    ("events",): [],
}  # fmt: skip


@pytest.mark.parametrize("url", ["kobold-3://127.0.0.1:1", "http://127.0.0.1:1"])
@pytest.mark.parametrize("names", ASKING, ids=" ".join)
def test_a_broker_that_is_not_there_is_an_object(names: tuple[str, ...], url: str) -> None:
    code, told = error(*names, url, *ASKING[names])
    assert (code, told["error"]) == (1, "unreachable")
    assert told["text"].startswith(
        "nothing listens at 127.0.0.1:1: start one with `wirelake serve`"
    )


def test_every_command_with_a_url_is_among_those() -> None:
    with_url = {
        names
        for names, command in COMMANDS.items()
        if any(one.name == "url" and one.param_type_name == "argument" for one in command.params)
    }
    assert with_url - {("chat",)} == ASKING.keys()


@pytest.mark.parametrize("kind", PAYLOADS)
def test_a_payload_is_text_where_it_is_text_and_base64_beside_it(
    broker: Broker, tmp_path: Path, kind: str
) -> None:
    # decision 75
    wire, http = broker.url("kobold-3"), broker.http_url
    file = tmp_path / "payload"
    file.write_bytes(RAW[kind])
    text, base64 = PAYLOADS[kind]

    def payload(found: list[dict[str, Any]], name: str = "payload") -> tuple[str | None, str]:
        (told,) = found
        return told[name], told["base64"]

    run("queue", "put", wire, f"json/{kind}", "--file", str(file))
    assert payload(objects("queue", "peek", http, f"json/{kind}")) == (text, base64)
    assert payload(objects("queue", "get", wire, f"json/{kind}")) == (text, base64)
    run("kv", "put", wire, f"json/{kind}", "--file", str(file))
    assert payload(objects("kv", "get", wire, f"json/{kind}"), "value") == (text, base64)
    assert payload(objects("kv", "ls", wire, f"json/{kind}"), "value") == (text, base64)
    begin = ("--from", "1", "--count", "1")
    assert payload(objects("kv", "watch", wire, f"json/{kind}", *begin), "value") == (text, base64)
    with wirelake.connect_sync(wire) as client, client.serve("json/echo", lambda m: m.payload):
        reply = objects("request", wire, "json/echo", "--file", str(file))
    assert payload(reply) == (text, base64)
    assert payload(heard(broker, "sub", wire, kind)) == (text, base64)
    assert payload(heard(broker, "events", http, kind)) == (text, base64)


def heard(broker: Broker, command: str, url: str, kind: str) -> list[dict[str, Any]]:
    """What a subscriber prints that is published to until it has heard it."""
    done = threading.Event()

    def publish() -> None:
        with wirelake.connect_sync(broker.url("kobold-3")) as client:
            while not done.wait(0.05):
                client.publish("json/live", RAW[kind])

    publishing = threading.Thread(target=publish)
    publishing.start()
    try:
        return objects(command, url, "json/live", "--count", "1", "--timeout", "60")
    finally:
        done.set()
        publishing.join()


def test_a_deleted_value_is_null(broker: Broker) -> None:
    wire = broker.url("kobold-3")
    run("kv", "put", wire, "json/gone", "x")
    run("kv", "del", wire, "json/gone")
    with wirelake.connect_sync(wire) as client, client.store.watch("json/gone") as changes:
        run("kv", "put", wire, "json/gone", "y")
        assert changes.receive(60).value == b"y"
        assert objects("kv", "del", wire, "json/gone")[0]["revision"] == 4


def test_what_was_done_is_an_object(broker: Broker) -> None:
    wire, http = broker.url("kobold-3"), broker.http_url
    (published,) = objects("pub", wire, "json/x", "1", "--ack", "--count", "3")
    assert published == {"address": "json/x", "published": 3, "acknowledged": True}
    assert objects("queue", "put", wire, "json/q", "1") == [{"queue": "json/q", "put": 1}]
    assert objects("queue", "make", http, "json/q", "--max-messages", "9")[0]["max_messages"] == 9
    moved = objects("queue", "move", http, "json/q", "--to", "json/r")
    assert moved == [{"moved": 1, "to": "json/r"}]
    assert objects("queue", "purge", http, "json/r") == [{"purged": 1}]
    assert objects("queue", "rm", http, "json/r") == [{"removed": "json/r"}]
    (token,) = objects("token", "sensors", "--publish", "house/#")
    assert (token["name"], token["publish"]) == ("sensors", ["house/#"])
    assert token["hash"].startswith("sha256:")
    settings = objects("config")
    assert {"table": "", "name": "data", "default": "data"}.items() <= settings[
        [one["name"] for one in settings].index("data")
    ].items()


def test_a_refusal_has_the_brokers_code(broker: Broker) -> None:
    code, told = error("kv", "get", broker.url("kobold-3"), "json/never")
    assert (code, told["error"], told["exit"]) == (1, "not_found", 1)
    code, told = error("queue", "rm", broker.http_url, "json/never")
    assert (code, told["error"]) == (1, "not_found")
    code, told = error("request", broker.url("kobold-3"), "json/never", "x", "--timeout", "5")
    assert (code, told["error"]) == (1, "no_service")


def test_a_payload_that_looks_like_the_option_is_none(broker: Broker) -> None:
    result = run("kv", "get", broker.url("kobold-3"), "json/never", "--", "--json")
    assert result.exit_code == 2
    assert "Error" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("pub", "json/-"),
        ("queue", "put", "json/-q"),
        ("kv", "put", "json/-"),
        ("pub", "json/-", "--lines"),
    ],
    ids=" ".join,
)
def test_a_dash_is_standard_input(broker: Broker, arguments: tuple[str, ...]) -> None:
    command, *rest = arguments
    names = [command, rest.pop(0)] if command in ("queue", "kv") else [command]
    address, *options = rest
    wire = broker.url("kobold-3")
    with wirelake.connect_sync(wire) as client, client.subscribe("json/-") as messages:
        result = Group(names[0]).run(*names[1:], wire, address, "-", *options, data=b"one\n")
        assert (result.returncode, result.stderr) == (0, b"")
        expected = b"one" if "--lines" in options else b"one\n"
        if names == ["pub"]:
            assert messages.receive(60).payload == expected
        elif names == ["kv", "put"]:
            assert client.store.read("json/-").value == expected
        else:
            assert client.queue("json/-q").get()[0].message.payload == expected


def test_a_dash_is_standard_input_for_a_reply_and_standard_output_for_a_stream(
    broker: Broker, tmp_path: Path
) -> None:
    wire = broker.url("kobold-3")
    command = [*COMMAND, "reply", wire, "json/reply", "--text", "-", "--count", "1", "--json"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as service:  # type: ignore[call-overload]  # pipes
        service.stdin.write(b"from stdin")
        service.stdin.close()
        with wirelake.connect_sync(wire) as client:
            reply = _asked(client, "json/reply")
        (line,) = service.stdout.read().splitlines()
    assert (service.returncode, reply) == (0, b"from stdin")
    assert json.loads(line)["payload"] == "?"
    receiver = [*COMMAND, "stream", "recv", wire, "--id", "json-inbox", "--output", "-"]
    with subprocess.Popen(receiver, stdout=subprocess.PIPE, cwd=tmp_path) as receiving:
        assert receiving.stdout is not None
        sent = None
        while sent is None or sent.exit_code:
            assert receiving.poll() is None
            with stdin(b"streamed"):
                sent = run("stream", "send", wire, "json-inbox", "-")
        assert receiving.stdout.read() == b"streamed"
    assert list(tmp_path.iterdir()) == []


def _asked(client: SyncClient, address: str) -> bytes:
    """The reply of a service, once it is there."""
    while True:
        try:
            return client.request(address, b"?", timeout=60).payload
        except wirelake.RefusedError as error:
            if error.code != "no_service":
                raise


@pytest.mark.parametrize("command", [["serve", "--memory"], ["up", "--no-lake"]], ids=" ".join)
def test_listeners_are_objects_and_settings_may_come_from_standard_input(
    command: list[str], tmp_path: Path
) -> None:
    options = ["--listen", "auto://127.0.0.1:0", "--http", "127.0.0.1:0", "--json"]
    if command[0] == "serve":
        options += ["--config", "-"]
    else:
        options += ["--data", str(tmp_path)]
        refused = run(*command, "--config", "-", "--json")
        assert (refused.exit_code, json.loads(refused.stderr)["exit"]) == (2, 2)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*COMMAND, *command, *options], **pipes) as broker:  # type: ignore[call-overload]  # pipes
        broker.stdin.write(b"request_timeout = 7.0\n")
        broker.stdin.close()
        urls: list[str] = []
        while len(urls) < 2:
            told = json.loads(broker.stdout.readline())
            urls += [one for one in (told.get("listening"), told.get("url")) if one]
        assert run("health", urls[1]).stdout == "ok\n"
        broker.terminate()
        rest = [json.loads(line) for line in broker.stdout]
    assert broker.returncode == 0
    assert urls[0].startswith("auto://127.0.0.1:")
    assert all(isinstance(one, dict) for one in rest)


def test_help_shows_flags_without_a_type() -> None:
    shown = run("--help").stdout
    (line,) = [one for one in shown.splitlines() if "--version" in one]
    assert "bool" not in shown.lower()
    assert "Show it and exit." in line
    assert "bool" not in run("queue", "get", "--help").stdout.lower()
