"""Brokers saved under names, and the environment: commands without a URL."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import wirelake
from wirelake.cli import app
from wirelake.client.contexts import Context, changing, chosen, load
from wirelake.config import TokenSettings, hash_token
from wirelake.errors import ConfigError
from wirelake.testing import Broker

SECRET = "s3cr3t-t0k3n"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of contexts of this test alone."""
    for name in ("WIRELAKE_URL", "WIRELAKE_HTTP", "WIRELAKE_TOKEN", "WIRELAKE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "config" / "contexts.json"
    monkeypatch.setenv("WIRELAKE_CONTEXTS", str(path))
    return path


@pytest.fixture(scope="module")
def guarded() -> Iterator[Broker]:
    """A broker that wants a token."""
    admin = TokenSettings(
        name="op",
        hash=hash_token(SECRET),
        publish=("#",),
        subscribe=("#",),
        store=("#",),
        admin=True,
    )
    with Broker(http=True, tokens=(admin,)) as broker:
        yield broker


@pytest.fixture(scope="module")
def opened() -> Iterator[Broker]:
    """A broker that wants none."""
    with Broker(http=True) as broker:
        yield broker


def run(*arguments: str, data: str | None = None) -> Result:
    """A command, to its end."""
    return CliRunner().invoke(app, arguments, input=data, catch_exceptions=False)


def test_a_saved_broker_is_used_with_its_token_where_no_url_is_given(guarded: Broker) -> None:
    added = run("context", "add", "prod", guarded.url("kobold-3"), "--token", "-", data=SECRET)
    assert (added.exit_code, added.stdout) == (0, "prod is in use\n")
    assert run("kv", "put", "lamp", "on").stdout == "revision 1\n"
    assert run("kv", "get", "lamp").stdout == "on\n"
    assert run("queue", "put", "jobs", "resize 17").exit_code == 0
    assert "resize 17" in run("queue", "peek", "jobs").stdout
    assert "resize 17" in run("queue", "get", "jobs").stdout
    assert run("health").stdout == "ok\n"


def test_the_file_is_for_its_owner_alone_and_shows_no_token(guarded: Broker, file: Path) -> None:
    run("context", "add", "prod", guarded.url("kobold-3"), "--token", SECRET)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    run("context", "add", "inside", "mfp://name:hidden-token@host")
    listed = run("context", "ls").stdout + run("context", "ls", "--json").stdout
    assert "prod" in listed
    assert "mfp://name@host" in listed
    assert SECRET not in listed
    assert "hidden-token" not in listed
    file.chmod(0o644)
    refused = run("kv", "get", "lamp")
    assert refused.exit_code == 2
    assert f"others may read it: chmod 600 {file}" in refused.stderr


def test_a_token_is_shown_to_the_broker_of_its_context_alone(
    guarded: Broker, opened: Broker
) -> None:
    run("context", "add", "prod", opened.url("kobold-3"), "--token", SECRET)
    refused = run("kv", "get", guarded.url("kobold-3"), "lamp")
    assert refused.exit_code == 1
    assert "unauthorized" in refused.stderr


def test_contexts_are_changed_used_and_removed(guarded: Broker, opened: Broker) -> None:
    run("context", "add", "prod", guarded.url("kobold-3"), "--token", SECRET)
    assert run("context", "add", "home", opened.http_url).stdout == "home is saved\n"
    run("kv", "put", "who", "prod")
    assert run("context", "use", "home").stdout == "home is in use\n"
    run("kv", "put", "who", "home")
    assert run("--context", "prod", "kv", "get", "who").stdout == "prod\n"
    assert run("kv", "get", "who").stdout == "home\n"
    shown = [json.loads(line) for line in run("context", "ls", "--json").stdout.splitlines()]
    assert [(one["name"], one["used"], one["token"]) for one in shown] == [
        ("home", True, False),
        ("prod", False, True),
    ]
    assert run("context", "rm", "home").exit_code == 0
    gone = run("context", "use", "home")
    assert gone.exit_code == 2
    assert gone.stderr == "wirelake: context: there is no context home: prod\n"


def test_the_environment_goes_before_the_context_and_a_url_before_both(
    guarded: Broker, opened: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("context", "add", "prod", guarded.url("kobold-3"), "--token", SECRET)
    run("kv", "put", "order", "context")
    monkeypatch.setenv("WIRELAKE_URL", opened.url("boson-binary"))
    assert run("kv", "put", "order", "environment").exit_code == 0
    assert run("kv", "get", "order").stdout == "environment\n"
    monkeypatch.setenv("WIRELAKE_TOKEN", SECRET)
    assert run("kv", "get", guarded.url("kobold-2"), "order").stdout == "context\n"
    assert run("--context", "prod", "kv", "get", "order").stdout == "context\n"
    monkeypatch.setenv("WIRELAKE_CONTEXT", "prod")
    assert run("kv", "get", "order").stdout == "environment\n"
    monkeypatch.delenv("WIRELAKE_URL")
    assert run("kv", "get", "order").stdout == "context\n"


def test_without_anything_a_broker_on_this_machine_is_meant() -> None:
    assert chosen() == Context("kobold://127.0.0.1")


def test_an_address_is_no_url_and_a_host_is_no_address(opened: Broker) -> None:
    # decision 74
    run("context", "add", "home", opened.url("kobold-3"))
    url = opened.url("kobold-3")
    with wirelake.connect_sync(url) as client, client.subscribe("house/temp") as messages:
        assert run("pub", "house/temp", "21.5").exit_code == 0
        assert messages.receive(60).payload == b"21.5"
    for host, meant in {
        "localhost": "kobold-3://localhost",
        "localhost:7777": "mfp-1://localhost:7777",
        "10.1.2.3:7780": "http://10.1.2.3:7780",
        "broker.example:9999": "kobold-3://broker.example:9999",
    }.items():
        refused = run("pub", host, "house/temp", "21.5")
        assert refused.exit_code == 2
        assert refused.stderr in (
            f"wirelake: {host} has no scheme: say {meant}\n",
            f"wirelake: {host} has no scheme: say boson-binary://{host}\n",
        )


def test_a_token_is_not_shown_in_an_error() -> None:
    for arguments in (
        ("pub", f"name:{SECRET}@host:7702", "a", "b"),
        ("context", "add", "x", f"name:{SECRET}@host:7702"),
        ("pub", f"telnet://name:{SECRET}@host:7702", "a", "b"),
        ("health", f"http://name:{SECRET}@127.0.0.1:1"),
        ("pub", f"kobold-3://name:{SECRET}@127.0.0.1:1", "a", "b"),
    ):
        refused = run(*arguments)
        assert refused.exit_code in (1, 2)
        assert SECRET not in refused.stderr
        assert SECRET not in run(*arguments, "--json").stderr


def test_a_token_may_be_in_the_url_of_http(guarded: Broker) -> None:
    place = guarded.http_url.removeprefix("http://")
    assert run("connections", f"http://:{SECRET}@{place}").exit_code == 0
    assert run("connections", guarded.http_url).exit_code == 1
    assert run("kv", "put", f"http://:{SECRET}@{place}", "by/url", "x").exit_code == 0


@pytest.mark.parametrize("text", ["{", "[]", '{"contexts": {"a": 1}}', "\xff"])
def test_a_file_that_is_not_ours_is_an_error_and_stays_as_it_is(file: Path, text: str) -> None:
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(text, encoding="latin-1")
    added = run("context", "add", "prod", "kobold-3://host")
    assert added.exit_code == 2
    assert "is not a file of contexts" in added.stderr
    assert file.read_text(encoding="latin-1") == text


@pytest.mark.parametrize("name", ["", "a b", "-x", "a" * 65, "a/b"])
def test_a_name_is_a_word(name: str) -> None:
    with pytest.raises(ConfigError, match="a name has"), changing() as saved:
        saved.add(name, Context("mfp://host"))
    assert load().contexts == {}


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("host:7702", "host:7702 has no scheme: say kobold-3://host:7702"),
        ("telnet://host", "'telnet' is no dialect"),
        ("kobold-3://host:99999", "a port from 1 to 65535"),
    ],
)
def test_a_wrong_url_is_not_saved(url: str, reason: str) -> None:
    refused = run("context", "add", "prod", url)
    assert refused.exit_code == 2
    assert reason in refused.stderr
    assert load().contexts == {}


def test_two_at_a_time_lose_nothing() -> None:
    def add(name: str) -> None:
        with changing() as saved:
            saved.add(name, Context(f"mfp://{name}"))

    adding = [threading.Thread(target=add, args=(f"n{number}",)) for number in range(20)]
    for one in adding:
        one.start()
    for one in adding:
        one.join()
    assert len(load().contexts) == 20
