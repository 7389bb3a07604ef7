"""`wirelake serve` and `wirelake token`, run as a user runs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pyarrow as pa
import pytest

import wirelake
from tests.cli.command import COMMAND
from tests.conftest import Certificates
from tests.net.peer import Peer, close_all
from wirelake.config import Listener, hash_token, read_settings
from wirelake.errors import RefusedError
from wirelake.message import Message, Op


class Broker:
    """A broker in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def listener(self) -> Listener:
        """The next listener that it prints."""
        line = await self._line(self._process.stdout)
        assert line.startswith("listening on "), line
        return Listener.parse(line.removeprefix("listening on "))

    async def http(self) -> str:
        """The URL where HTTP listens, which it prints last."""
        line = await self._line(self._process.stdout)
        assert line.startswith("listening on http"), line
        return line.removeprefix("listening on ")

    async def logged(self, pattern: str) -> str:
        """Wait for a line on standard error in which this is found."""
        while True:
            line = await self._line(self._process.stderr)
            if re.search(pattern, line):
                return line

    async def _line(self, stream: asyncio.StreamReader | None) -> str:
        assert stream is not None
        async with asyncio.timeout(20):
            line = await stream.readline()
        assert line, "it has ended"
        return line.decode().rstrip("\n")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    async def end(self) -> tuple[int, str]:
        """Wait for the end: the exit code, and what is left on standard error."""
        async with asyncio.timeout(20):
            _, errors = await self._process.communicate()
        assert self._process.returncode is not None
        return self._process.returncode, errors.decode()

    async def kill(self) -> None:
        """End it, whatever it does."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.communicate()


Start = Callable[..., Awaitable[Broker]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Starts brokers with these arguments; none is left after the test."""
    brokers = []

    async def start(*arguments: str | Path) -> Broker:
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            "serve",
            *modest(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        brokers.append(Broker(process))
        return brokers[-1]

    yield start
    for broker in brokers:
        await broker.kill()


def modest(*arguments: str | Path) -> list[str]:
    """The same arguments, with no data in this folder and no HTTP unless they ask for it."""
    extra = [] if "--data" in arguments else ["--memory"]
    return [*map(str, arguments), *extra, *([] if "--http" in arguments else ["--no-http"])]


def run(command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    said = modest(*arguments) if command == "serve" else map(str, arguments)
    return subprocess.run([*COMMAND, command, *said], capture_output=True, text=True, timeout=60)


def fails(command: str, *arguments: str | Path) -> str:
    """The one line that a command says when it fails with exit code 1."""
    result = run(command, *arguments)
    assert (result.returncode, result.stdout) == (1, ""), result
    (line,) = result.stderr.splitlines()
    assert line.startswith("wirelake: ")
    return line


ANY_PORT = ("--listen", "auto://127.0.0.1:0")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_where_it_listens_serves_and_stops_at_a_signal(
    start: Start, number: signal.Signals
) -> None:
    broker = await start(*ANY_PORT, "--listen", "tmq://127.0.0.1:0")
    auto, tmq = await broker.listener(), await broker.listener()
    assert (auto.family, tmq.family) == ("auto", "tmq")
    subscriber = await Peer("tmq-1.01", "receiver").open(tmq.port)
    publisher = await Peer("boson-text", "sender").open(auto.port)
    await subscriber.subscribe("greet")
    await publisher.send(Message(address="greet", payload=b"hello"))
    assert (await subscriber.receive()).payload == b"hello"
    broker.signal(number)
    assert (await subscriber.receive()).op == Op.TERMINATE
    assert await subscriber.is_closed()
    await close_all([subscriber, publisher])
    code, errors = await broker.end()
    assert code == 0
    assert "cut off" not in errors
    assert "Traceback" not in errors


async def test_a_client_that_reads_nothing_does_not_keep_it_from_stopping(start: Start) -> None:
    broker = await start(*ANY_PORT)
    port = (await broker.listener()).port
    subscriber = await Peer("kobold-2", "receiver").open(port)
    await subscriber.subscribe("a")
    publisher = await Peer("kobold-2", "sender").open(port)
    await publisher.send(
        Message(address="a", payload=bytes(7 << 20)), Message(op=Op.PING, correlation_id="p")
    )
    assert (await publisher.receive()).op == Op.PONG
    broker.signal(signal.SIGTERM)
    await broker.logged("stopping")
    broker.signal(signal.SIGTERM)  # the second says: now
    code, errors = await broker.end()
    assert code == 0
    assert "connections were cut off" in errors
    await close_all([subscriber, publisher])


async def test_large_frames_and_bad_input_under_uvloop(start: Start) -> None:
    broker = await start(*ANY_PORT)
    port = (await broker.listener()).port
    subscriber = await Peer("kobold-3", "receiver").open(port)
    publisher = await Peer("boson-text", "sender").open(port)
    await subscriber.subscribe("a")
    payloads = [b"x" * size for size in (10, 5 << 20, 300_000, 0)]
    await publisher.send(*(Message(address="a", payload=payload) for payload in payloads))
    assert [(await subscriber.receive()).payload for _ in payloads] == payloads
    await publisher.send_bytes(b"5|!|" + bytes(1 << 20))
    assert (await publisher.receive()).op == Op.ERROR
    assert await publisher.is_closed()
    assert "boson-text: byte" in await broker.logged("127.0.0.1:")
    half_closed = await Peer("kobold-3", "hasty").open(port)
    await half_closed.send(Message(op=Op.PING, correlation_id="p"))
    half_closed.send_eof()
    assert (await half_closed.receive()).op == Op.PONG
    assert await half_closed.is_closed()
    await close_all([subscriber, publisher, half_closed])
    broker.signal(signal.SIGTERM)
    code, errors = await broker.end()
    assert (code, "Traceback" in errors) == (0, False)


async def test_a_unix_socket_is_printed_used_and_removed(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "broker.sock"
    broker = await start("--listen", f"kobold+unix://{path}")
    assert (await broker.listener()).path == str(path)
    await (await Peer("kobold-1", "somebody").open(path=str(path))).close()
    broker.signal(signal.SIGTERM)
    assert (await broker.end())[0] == 0
    assert not path.exists()


async def test_tls_and_client_certificates_come_from_the_configuration(
    start: Start, certificates: Certificates
) -> None:
    folder = certificates.folder
    config = folder / "wirelake.toml"  # the paths in it begin here
    config.write_text(
        "listen = ['auto+tls://127.0.0.1:0']\n"
        "[tls]\ncert = 'server.pem'\nkey = 'server.key'\nclient_ca = 'ca.pem'\n"
        f"[[tokens]]\nname = 'alice'\nhash = '{hash_token('x')}'\n"
        "publish = ['#']\nsubscribe = ['#']\n"
    )
    broker = await start("--config", config, "--http", "https://127.0.0.1:0")
    listener = await broker.listener()
    assert listener.tls
    tls = certificates.client("alice")
    http = (await broker.http()).replace("127.0.0.1", "localhost")
    assert http.startswith("https://")

    def health() -> int:
        with urllib.request.urlopen(f"{http}/healthz", context=tls) as answer:
            return int(answer.status)

    assert await asyncio.to_thread(health) == 200
    subscriber = await Peer("kobold-3", "receiver").open(listener.port, tls=tls)
    publisher = await Peer("mfp-1", "sender").open(listener.port, tls=tls)
    await subscriber.subscribe("a")
    payloads = [bytes([k]) * 1000 for k in range(256)]
    await publisher.send(*(Message(address="a", payload=payload) for payload in payloads))
    assert [(await subscriber.receive()).payload for _ in payloads] == payloads
    await close_all([subscriber, publisher])
    broker.signal(signal.SIGTERM)
    code, errors = await broker.end()
    assert (code, "Traceback" in errors) == (0, False)


async def test_one_data_directory_has_one_broker(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    broker = await start(*ANY_PORT, "--data", folder)
    await broker.listener()
    line = await asyncio.to_thread(fails, "serve", *ANY_PORT, "--data", folder)
    assert line.startswith(f"wirelake: {folder}: in use by process ")
    await broker.kill()
    again = await start(*ANY_PORT, "--data", folder)  # the lock died with it
    await again.listener()


async def test_what_was_acknowledged_survives_the_end_of_the_process(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    broker = await start(*ANY_PORT, "--data", folder, "--http", "127.0.0.1:0")
    port = (await broker.listener()).port
    await broker.http()
    client = await wirelake.connect(f"kobold-2://127.0.0.1:{port}")
    await client.publish("house/door", b"open", ack=True)
    await client.queue("jobs").put(b"one")
    await client.store.create("key", b"value")
    await broker.kill()
    await client.close()

    again = await start(*ANY_PORT, "--data", folder, "--http", "127.0.0.1:0")
    port = (await again.listener()).port
    url = await again.http()
    async with wirelake.connect(f"kobold-3://127.0.0.1:{port}") as client:
        (delivery,) = await client.queue("jobs").get()
        assert delivery.message.payload == b"one"
        assert (await client.store.read("key")).value == b"value"

    def logged() -> list[tuple[str, str]]:
        found = []
        for partition in range(4):
            with urllib.request.urlopen(f"{url}/v1/log/{partition}") as answer:
                table = pa.ipc.open_stream(answer).read_all()
            found += [(row["op"], row["address"]) for row in table.to_pylist()]
        return sorted(found)

    assert set(await asyncio.to_thread(logged)) >= {
        ("publish", "house/door"),
        ("enqueue", "jobs"),
        ("set", "key"),
    }
    again.signal(signal.SIGTERM)
    code, errors = await again.end()
    assert (code, "Traceback" in errors) == (0, False)


async def test_nothing_is_captured_when_nothing_should_be(start: Start, tmp_path: Path) -> None:
    broker = await start(*ANY_PORT, "--data", tmp_path, "--no-capture", "--http", "127.0.0.1:0")
    port = (await broker.listener()).port
    url = await broker.http()
    async with wirelake.connect(f"kobold-3://127.0.0.1:{port}") as client:
        await client.publish("a", b"it passes by", ack=True)
        await client.queue("jobs").put(b"it is kept")

    def state() -> object:
        with urllib.request.urlopen(f"{url}/v1/log") as answer:
            return json.load(answer)

    assert await asyncio.to_thread(state) == {"partitions": [], "log": ""}
    (segment,) = (tmp_path / "journal").glob("*.wlj")
    assert b"it is kept" in segment.read_bytes()
    assert b"it passes by" not in segment.read_bytes()


def test_http_where_it_cannot_be_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = failing_http(f"127.0.0.1:{port}")
    assert line == f"wirelake: http: 127.0.0.1:{port}: address already in use"
    assert "no tokens are configured" in failing_http("0.0.0.0:0")


def failing_http(where: str) -> str:
    """What a broker says that cannot have HTTP there."""
    result = run("serve", *ANY_PORT, "--http", where)
    assert result.returncode == 1
    return result.stderr.splitlines()[-1]


async def test_a_port_in_use_is_one_line(start: Start) -> None:
    broker = await start(*ANY_PORT)
    listener = await broker.listener()
    line = await asyncio.to_thread(fails, "serve", "--listen", str(listener))
    assert line == f"wirelake: listen: {listener}: address already in use"


async def test_sighup_reads_tokens_again_and_keeps_the_old_ones_if_they_are_wrong(
    start: Start, tmp_path: Path
) -> None:
    config = tmp_path / "wirelake.toml"
    tokens = {name: name.upper() * 5 for name in ("anne", "bert")}

    def entry(name: str) -> str:
        return f"[[tokens]]\nname='{name}'\nhash='{hash_token(tokens[name])}'\nsubscribe=['#']\n"

    config.write_text(entry("anne"))
    broker = await start(*ANY_PORT, "--config", config)
    port = (await broker.listener()).port
    anne = await Peer("kobold-1", "anne", token=tokens["anne"]).open(port)
    with pytest.raises(RefusedError, match="unauthorized"):
        await Peer("kobold-1", "bert", token=tokens["bert"]).open(port)

    config.write_text(entry("bert") + "colour = 'red'\n")
    broker.signal(signal.SIGHUP)
    line = await broker.logged("the old settings stay")
    assert "tokens[0].colour: there is no such setting" in line
    await anne.subscribe("a")

    config.write_text(entry("bert"))
    broker.signal(signal.SIGHUP)
    assert "listeners stay as they are" in await broker.logged("read again")
    await (await Peer("kobold-1", "bert", token=tokens["bert"]).open(port)).close()
    assert await anne.is_closed()
    await anne.close()
    broker.signal(signal.SIGTERM)
    code, errors = await broker.end()
    assert code == 0
    assert not any(token in errors for token in tokens.values())


async def test_sighup_without_a_file_says_so(start: Start) -> None:
    broker = await start(*ANY_PORT)
    await broker.listener()
    broker.signal(signal.SIGHUP)
    await broker.logged("no configuration file")
    broker.signal(signal.SIGTERM)
    assert (await broker.end())[0] == 0


def test_a_bad_file_is_one_line_that_names_the_setting(tmp_path: Path) -> None:
    config = tmp_path / "wirelake.toml"
    config.write_text("[flow]\noutbox = 'big'\n")
    line = fails("serve", "--config", config)
    assert line == f"wirelake: flow.outbox: expected `int`, got `str` ({config})"
    config.write_text("[flow")
    assert fails("serve", "--config", config).startswith(f"wirelake: {config}: ")
    absent = tmp_path / "absent"
    assert fails("serve", "--config", absent) == f"wirelake: {absent}: No such file or directory"


def test_a_data_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    line = fails("serve", *ANY_PORT, "--data", tmp_path / "file" / "data")
    assert line == f"wirelake: {tmp_path}/file/data: not a directory"


def test_listeners_that_cannot_be_are_one_line(tmp_path: Path) -> None:
    assert "no tokens are configured" in fails("serve", "--listen", "auto://0.0.0.0:0")
    assert "a listener is one of" in fails("serve", "--listen", "http://127.0.0.1:80")
    assert "needs tls.cert" in fails("serve", "--listen", "auto+tls://127.0.0.1:0")
    assert "no such file" in fails("serve", "--listen", f"auto+unix://{tmp_path}/no/x.sock")


async def test_insecure_lets_other_machines_in(start: Start) -> None:
    broker = await start("--listen", "auto://0.0.0.0:0", "--insecure", "--log-level", "error")
    listener = await broker.listener()
    assert listener.host == "0.0.0.0"
    await (await Peer("mfp-1", "somebody").open(listener.port)).close()
    broker.signal(signal.SIGTERM)
    assert await broker.end() == (0, "")


@pytest.mark.parametrize("command", ["serve", "token"])
def test_help_has_examples(command: str) -> None:
    result = run(command, "--help")
    assert result.returncode == 0
    assert "Examples:" in result.stdout
    assert f"wirelake {command}" in result.stdout


# wirelake token


def test_a_token_is_shown_once_and_its_hash_can_be_pasted(tmp_path: Path) -> None:
    rights = ["--publish", "a/#", "--publish", 'say "hi"', "--subscribe", "b/+", "--serve", "c"]
    result = run("token", "the \N{SNOWMAN} man", *rights, "--store", "d", "--admin")
    assert result.returncode == 0
    token = result.stderr.strip().removeprefix("token: ")
    assert re.fullmatch("[A-Za-z0-9]{20}", token)
    assert token not in result.stdout
    config = tmp_path / "wirelake.toml"
    config.write_text(result.stdout, encoding="utf-8")
    (entry,) = read_settings(config).tokens
    assert entry.name == "the \N{SNOWMAN} man"
    assert entry.hash == hash_token(token)
    assert entry.publish == ("a/#", 'say "hi"')
    assert (entry.subscribe, entry.serve, entry.store) == (("b/+",), ("c",), ("d",))
    assert entry.admin


@pytest.mark.parametrize(
    "arguments", [["eve", "--publish", "a/#/b"], ["a\nb"], [""], ["x" * 65], []]
)
def test_what_cannot_be_a_token_is_refused(arguments: list[str]) -> None:
    result = run("token", *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr
