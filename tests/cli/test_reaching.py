"""Any URL of a broker will do, and where none does the error says what to do."""

from __future__ import annotations

import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import wirelake
from tests.cli.command import COMMAND
from wirelake.cli import app
from wirelake.client.finding import http_client, wire_url
from wirelake.dialects import DIALECTS
from wirelake.errors import EngineError
from wirelake.testing import Broker, Proxy

OPS = [name for name, one in DIALECTS.items() if "state of the broker" in one.abilities]
OTHERS = [name for name in DIALECTS if name not in OPS]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """A broker with HTTP."""
    with Broker(http=True) as broker:
        yield broker


def run(*arguments: str) -> Result:
    """A command, to its end."""
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


def port_of(url: str) -> int:
    """The port in a URL."""
    return int(url.rpartition(":")[2])


@pytest.mark.parametrize("dialect", OPS)
def test_queue_get_and_queue_peek_take_either_url(broker: Broker, dialect: str) -> None:
    # decision 73
    for url in (broker.url(dialect), broker.http_url, broker.url(dialect, listener="auto")):
        assert run("queue", "put", url, "reach/jobs", "one").exit_code == 0
        assert "one" in run("queue", "peek", url, "reach/jobs").stdout
        assert "one" in run("queue", "get", url, "reach/jobs").stdout
        assert "reach/jobs" in run("queue", "ls", url).stdout
        assert run("queue", "purge", url, "reach/jobs").exit_code == 0


@pytest.mark.parametrize("dialect", OTHERS)
def test_a_dialect_that_cannot_ask_finds_http_at_its_usual_port(
    broker: Broker, dialect: str
) -> None:
    url = broker.url(dialect)
    found = http_client(url, port=port_of(broker.http_url))
    assert found.url == broker.http_url
    with Broker(http=True) as other, pytest.raises(EngineError, match="is of another broker"):
        http_client(url, port=port_of(other.http_url))
    with pytest.raises(EngineError, match=r"give its URL, as in http://127\.0\.0\.1:1"):
        http_client(url, port=1)


def test_a_broker_without_http_says_so() -> None:
    with Broker() as broker:
        result = run("queue", "peek", broker.url("kobold-3"), "jobs")
    assert result.exit_code == 1
    assert "has no HTTP, which this needs" in result.stderr


def test_a_listener_is_found_by_what_the_command_needs() -> None:
    with Broker(http=True, listen=("mfp://127.0.0.1:0", "tmq://127.0.0.1:0")) as broker:
        assert run("queue", "ls", broker.http_url).exit_code == 0  # tmq can list them
        refused = run("kv", "get", broker.http_url, "lamp")
    assert refused.exit_code == 1
    assert "tells of no listener for data store" in refused.stderr


def test_a_listener_at_all_addresses_is_at_the_host_that_is_known() -> None:
    from wirelake.client.http import HttpClient

    class Told(HttpClient):
        def get(self, path: str) -> object:
            return {"listeners": ["kobold+tls://0.0.0.0:7702", "http://0.0.0.0:7780"]}

    assert wire_url(Told("http://broker.example:7780")) == "kobold-3+tls://broker.example:7702"


def test_a_port_of_http_is_named(broker: Broker) -> None:
    port = port_of(broker.http_url)
    for dialect in DIALECTS:
        result = run("pub", f"{dialect}://127.0.0.1:{port}", "a", "b")
        assert result.exit_code == 1
        line = result.stderr.splitlines()[-1]
        assert line == f"wirelake: this is HTTP, not {dialect}: use http://127.0.0.1:{port}"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_port_of_another_family_is_named(broker: Broker, dialect: str) -> None:
    for listener in broker.listeners:
        if listener.family in ("auto", DIALECTS[dialect].family):
            continue
        place = f"127.0.0.1:{listener.port}"
        result = run("pub", f"{dialect}://{place}", "a", "b")
        assert result.exit_code == 1
        expected = f"wirelake: {place} does not speak {dialect} but {listener.family}: use "
        line = result.stderr.splitlines()[-1]
        assert line.startswith(expected)
        named = line.rpartition(" ")[2]
        assert run("pub", named, "a", "b").exit_code == 0  # what it proposes works


def test_a_listener_that_is_asked_by_http_is_named(broker: Broker) -> None:
    for listener in broker.listeners:
        result = run("health", f"http://127.0.0.1:{listener.port}")
        assert result.exit_code == 1
        assert f"127.0.0.1:{listener.port} does not speak HTTP but " in result.stderr


def test_a_host_that_is_none_is_named() -> None:
    result = run("pub", "kobold-3://no-such-host.invalid", "a", "b")
    assert result.exit_code == 1
    assert result.stderr == "wirelake: there is no host no-such-host.invalid\n"


def test_a_path_without_a_socket_is_named(tmp_path: Path) -> None:
    result = run("pub", f"kobold-3+unix://{tmp_path}/x.sock", "a", "b")
    assert result.exit_code == 1
    assert f"nothing listens at {tmp_path}/x.sock" in result.stderr


def test_something_else_that_listens_is_not_made_up() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        ending = threading.Event()

        def hang_up() -> None:
            server.settimeout(0.2)
            while not ending.is_set():
                try:
                    server.accept()[0].close()
                except TimeoutError:
                    continue

        hanging = threading.Thread(target=hang_up)
        hanging.start()
        result = run("pub", f"kobold-3://127.0.0.1:{server.getsockname()[1]}", "a", "b")
        ending.set()
        hanging.join()
    assert result.exit_code == 1
    assert "closed: kobold-3://" in result.stderr


def test_sub_says_when_the_connection_is_lost_and_back(broker: Broker) -> None:
    for dialect, options in (("kobold-3", []), ("mfp-1", ["--json"])):
        with Proxy(broker.url(dialect)) as proxy:
            command = [*COMMAND, "sub", proxy.url, "reach/lost", *options]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            with subprocess.Popen(command, text=True, **pipes) as shown:  # type: ignore[call-overload]  # pipes
                _publish_until(broker, shown)
                proxy.to_client.reset(after=1)
                lines: list[str] = []
                while len(lines) < 2:
                    _publish(broker)
                    lines.append(shown.stderr.readline())
                _publish_until(broker, shown)
                shown.terminate()
                shown.communicate()
        if options:
            assert ['"event": "lost"' in lines[0], '"event": "connected"' in lines[1]] == [True] * 2
        else:
            assert lines[0].startswith("wirelake: the connection is lost, trying again (closed: ")
            assert lines[1] == "wirelake: connected again\n"


def _publish(broker: Broker) -> None:
    with wirelake.connect_sync(broker.url("kobold-2")) as client:
        for _ in range(10):
            client.publish("reach/lost", b"x", ack=True)


def _publish_until(broker: Broker, shown: subprocess.Popen[str]) -> None:
    """Publish until a subscriber has printed a line."""
    assert shown.stdout is not None
    deadline = time.monotonic() + 60
    while not select.select([shown.stdout], [], [], 0.2)[0]:
        assert time.monotonic() < deadline
        assert shown.poll() is None
        _publish(broker)
    shown.stdout.readline()


def test_a_data_directory_in_use_names_the_process(tmp_path: Path) -> None:
    arguments = ["serve", "--listen", "auto://127.0.0.1:0", "--no-http", "--data", str(tmp_path)]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("listening on ")
        second = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)
        first.terminate()
        first.communicate()
    assert second.returncode == 1
    line = second.stderr.splitlines()[-1]
    assert line.startswith(f"wirelake: {tmp_path}: in use by process {first.pid} (")
    assert "wirelake serve" in line


def test_missing_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    result = run("lake", "sql", "SELECT 1", "--table", "nowhere")
    assert result.exit_code == 2
    assert "Spark needs Java 17 or newer, and there is none: install one (Debian: apt install" in (
        result.stderr
    )
