"""`wirelake up`, run as a user runs it: a group of real processes, with and without a terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import site
import socket
import subprocess
import sys
import venv
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

import wirelake
from tests.cli.terminal import CTRL_C, Terminal
from wirelake.cli.up import examples
from wirelake.config import Settings, hash_token
from wirelake.measure.broker import free_port

PLACES = ["--listen", "auto://127.0.0.1:0", "--http", "127.0.0.1:0"]
#: Seconds; only a broken program needs them.
PATIENCE = 60


class Group:
    """`wirelake up` without a terminal."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.seen: list[str] = []

    async def wait(self, pattern: str) -> re.Match[str]:
        """The next line in which this is found."""
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stdout.readline()).decode().rstrip("\n"):
                self.seen.append(line)
                if found := re.search(pattern, line):
                    return found
        raise AssertionError(f"{pattern!r} never came: {self.seen}")

    async def started(self, name: str = "broker") -> int:
        """The next start of a child: its process."""
        return int((await self.wait(rf"{name}: started, process (\d+)"))[1])

    async def listens(self) -> tuple[int, str]:
        """The port of its one listener, and where HTTP is."""
        port = int((await self.wait(r"^listening on auto://127\.0\.0\.1:(\d+)$"))[1])
        return port, (await self.wait(r"^listening on (http://.*)$"))[1]

    async def end(self) -> tuple[int, str]:
        """Wait for the end: the exit code, and what stands on standard error."""
        async with asyncio.timeout(PATIENCE):
            said, errors = await self.process.communicate()
        self.seen += said.decode().splitlines()
        assert self.process.returncode is not None
        return self.process.returncode, errors.decode()


Start = Callable[..., Awaitable[Group]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Starts groups with these arguments, on free ports; none is left after the test."""
    groups: list[Group] = []

    async def start(
        *arguments: str | Path, python: str = sys.executable, **environment: str
    ) -> Group:
        where = () if "--listen" in arguments else PLACES
        process = await asyncio.create_subprocess_exec(
            python,
            *("-m", "wirelake", "up", "--data", str(tmp_path / "data")),
            *(*where, *map(str, arguments)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        )
        groups.append(Group(process))
        return groups[-1]

    yield start
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            group.process.kill()
        await group.process.communicate()


@contextlib.contextmanager
def watched(pid: int) -> Iterator[asyncio.Event]:
    """An event that is set when a process has ended, whoever its parent is."""
    ended = asyncio.Event()
    handle = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    loop.add_reader(handle, ended.set)
    try:
        yield ended
    finally:
        loop.remove_reader(handle)
        os.close(handle)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_prints_where_it_listens_and_a_signal_ends_all_of_it(
    start: Start, number: signal.Signals
) -> None:
    group = await start("--no-lake", "--every", "0.2")
    pid = await group.started()
    port, http = await group.listens()
    await group.wait(rf"^try: wirelake sub kobold-3://127\.0\.0\.1:{port} 'house/#'$")
    await group.wait(rf"^try: wirelake demo auto://127\.0\.0\.1:{port} --http {http[7:]} --table ")
    async with wirelake.connect(f"kobold-3://127.0.0.1:{port}") as client:
        await client.queue("jobs").put(b"one")
        await group.wait("up: 1 client, .* 1 message in queues, log .*B$")
    with watched(pid) as ended:
        group.process.send_signal(number)
        code, errors = await group.end()
        assert (code, errors) == (0, "")
        assert ended.is_set() or await ended.wait()
    assert group.seen[-1].startswith("wirelake: everything has ended")
    assert not any("pipeline" in line for line in group.seen)


async def test_a_broker_that_dies_is_started_again_where_it_was(start: Start) -> None:
    group = await start("--no-lake")
    pid = await group.started()
    port, _ = await group.listens()
    async with wirelake.connect(f"kobold-3://127.0.0.1:{port}") as client:
        await client.queue("jobs").put(b"one")
        os.kill(pid, signal.SIGKILL)
        await group.wait(r"broker: was killed by SIGKILL; starting it again in 0\.5 s")
        assert await group.started() != pid
        (delivery,) = await client.queue("jobs").get(wait=PATIENCE)
        assert delivery.message.payload == b"one"
    group.process.send_signal(signal.SIGTERM)
    assert await group.end() == (0, "")


async def test_the_children_end_when_the_parent_is_killed(start: Start) -> None:
    group = await start("--no-lake")
    pid = await group.started()
    await group.listens()
    with watched(pid) as ended:
        group.process.kill()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()


async def test_a_second_signal_does_not_wait_for_a_broker_that_is_stuck(start: Start) -> None:
    group = await start("--no-lake")
    pid = await group.started()
    await group.listens()
    os.kill(pid, signal.SIGSTOP)
    with watched(pid) as ended:
        group.process.send_signal(signal.SIGTERM)
        await group.wait("up: ending")
        group.process.send_signal(signal.SIGTERM)
        assert await group.end() == (0, "")
        await ended.wait()
    assert not any("did not end in" in line for line in group.seen)


async def test_it_ends_when_nobody_reads_its_lines_any_more(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    arguments = ["up", "--no-lake", "--every", "0.2", "--data", str(tmp_path), *PLACES]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wirelake", *arguments, stdout=writing, stderr=subprocess.PIPE
    )
    try:
        os.close(writing)
        pid = int(re.search(rb"process (\d+)", os.read(reading, 100))[1])  # type: ignore[index]  # it is there
        with watched(pid) as ended:
            os.close(reading)
            async with asyncio.timeout(PATIENCE):
                _, errors = await process.communicate()
                await ended.wait()
        assert (process.returncode, errors) == (0, b"")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_port_in_use_ends_it_with_one_line(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = f"auto://127.0.0.1:{taken.getsockname()[1]}"
        group = await start("--listen", place, "--http", "127.0.0.1:0")
        code, errors = await group.end()
    assert code == 1
    assert errors == f"wirelake: listen: {place}: address already in use\n"


async def test_a_data_directory_in_use_ends_it_with_one_line(start: Start, tmp_path: Path) -> None:
    first = await start("--no-lake")
    await first.listens()
    second = await start("--no-lake")
    code, errors = await second.end()
    assert code == 1
    assert errors.startswith(f"wirelake: {tmp_path}/data: in use by process ")
    assert errors.count("\n") == 1


async def test_without_java_it_says_so_and_runs_the_broker(start: Start, tmp_path: Path) -> None:
    # An interpreter of its own: beside ours there may be a Java.
    venv.create(tmp_path / "venv", symlinks=True)
    path = os.pathsep.join([str(Path(wirelake.__file__).parents[1]), *site.getsitepackages()])
    python = str(tmp_path / "venv" / "bin" / "python")
    group = await start(python=python, PYTHONPATH=path, JAVA_HOME="", PATH=str(tmp_path))
    await group.wait("pipeline: does not run: Spark needs Java 17 or newer, and there is none")
    port, _ = await group.listens()
    async with wirelake.connect(f"mfp://127.0.0.1:{port}") as client:
        await client.publish("a", b"b", ack=True)
    group.process.send_signal(signal.SIGTERM)
    assert await group.end() == (0, "")
    assert not any("pipeline: started" in line for line in group.seen)


async def test_settings_are_read_from_a_file_and_again_at_sighup(
    start: Start, tmp_path: Path
) -> None:
    config = tmp_path / "wirelake.toml"
    config.write_text("http = ''\nlisten = ['tmq://127.0.0.1:0']\n")
    group = await start(
        "--no-lake", "--config", config, "--http", "127.0.0.1:0", "--listen", PLACES[1]
    )
    await group.listens()
    group.process.send_signal(signal.SIGHUP)
    await group.wait("broker: the settings were read again")
    config.write_text("colour = 'red'\n")
    group.process.send_signal(signal.SIGHUP)
    await group.wait("broker: the old settings stay: colour: there is no such setting")
    group.process.send_signal(signal.SIGTERM)
    assert await group.end() == (0, "")
    again = await start("--config", config)
    assert await again.end() == (1, f"wirelake: colour: there is no such setting ({config})\n")


async def test_where_there_are_tokens_the_figures_need_one(start: Start, tmp_path: Path) -> None:
    config = tmp_path / "wirelake.toml"
    config.write_text(f"[[tokens]]\nname = 'me'\nadmin = true\nhash = '{hash_token('secret')}'\n")
    arguments = ["--no-lake", "--config", config, "--every", "0.2", *PLACES]
    group = await start(*arguments)
    await group.wait("up: HTTP needs a token with more rights: WIRELAKE_TOKEN")
    group.process.send_signal(signal.SIGTERM)
    assert (await group.end())[0] == 0
    group = await start(*arguments, WIRELAKE_TOKEN="secret")
    await group.wait("up: 0 clients, 0 messages/s in")
    group.process.send_signal(signal.SIGTERM)
    assert (await group.end())[0] == 0
    assert not any("secret" in line for line in group.seen)


@pytest.mark.slow
async def test_a_pipeline_that_dies_lands_on_and_all_end_with_the_parent(
    start: Start, tmp_path: Path
) -> None:
    group = await start("--every", "1")
    port, _ = await group.listens()
    first = await group.started("pipeline")
    async with wirelake.connect(f"kobold-3://127.0.0.1:{port}") as client:
        await client.publish_many([("house/door", b"open")] * 1000, ack=True)
        await group.wait("pipeline: 1000 rows landed, 0 to go")
        os.kill(first, signal.SIGKILL)
        await group.wait("pipeline: was killed by SIGKILL; starting it again")
        second = await group.started("pipeline")
        await client.publish_many([("house/door", b"shut")] * 10, ack=True)
        await group.wait("up: .* 1010 rows landed, 0 to go")
    assert DeltaTable(str(tmp_path / "data" / "lake")).count() == 1010
    (java,) = children(second)
    with watched(second) as ended, watched(java) as java_ended:
        group.process.kill()
        async with asyncio.timeout(PATIENCE):
            await ended.wait()
            await java_ended.wait()


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# With a terminal


@pytest.fixture
def open_terminal(tmp_path: Path) -> Iterator[Callable[..., Terminal]]:
    """Terminals with `wirelake up` on them, until the test is over."""
    terminals: list[Terminal] = []

    def open_terminal(*arguments: str, columns: int = 80, lines: int = 24) -> Terminal:
        arguments = ("up", "--data", str(tmp_path), "--no-lake", *arguments)
        terminals.append(Terminal(*arguments, columns=columns, lines=lines))
        return terminals[-1]

    yield open_terminal
    for terminal in terminals:
        terminal.close()


def test_the_view_shows_connections_rates_and_queues(
    open_terminal: Callable[..., Terminal],
) -> None:
    port = free_port()
    terminal = open_terminal("--listen", f"auto://127.0.0.1:{port}", "--http", "127.0.0.1:0")
    terminal.wait(r"^ wirelake  up 0:00:\d\d +● broker$")
    terminal.wait(rf"^ listens  auto://127\.0\.0\.1:{port}$")
    terminal.wait(r"^ http     http://127\.0\.0\.1:\d+    lake  off$")
    terminal.wait(rf"^ wirelake chat mfp://127\.0\.0\.1:{port}$")
    with (
        wirelake.connect_sync(f"kobold-3://127.0.0.1:{port}") as kobold,
        wirelake.connect_sync(f"tmq://127.0.0.1:{port}"),
    ):
        terminal.wait(r"^ clients +2 ")
        terminal.wait(r"^ kobold-3 +1 ")
        terminal.wait(r"^ tmq-1\.01 +1 ")
        kobold.queue("jobs").put(b"one")
        terminal.wait(r" jobs +1 +0$")
        kobold.publish_many([("a", b"b")] * 5000)
        terminal.wait(r" in +[1-9][0-9,]* msg/s  [▁▂▃▄▅▆▇█]+")
        terminal.wait(r" wire +[1-9][0-9.]* \w+/s  [▁▂▃▄▅▆▇█]+")
        terminal.wait(r" log +5,001 rows ")
    with socket.create_connection(("127.0.0.1", port)) as hostile:
        hostile.sendall(b"\x1b[2J!")
        terminal.wait("^ errors   protocol errors 1$")
        terminal.wait(r"^ \d\d:\d\d:\d\d broker   127\.0\.0\.1:\d+: ")
    terminal.wait("^ clients +0 ")
    assert terminal.text.count("\n") == 23
    terminal.type(CTRL_C)
    assert terminal.end() == 0
    assert terminal.is_restored()


def test_the_view_follows_the_size_of_the_window(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal(*PLACES)
    terminal.wait("^ clients +0 ")
    terminal.resize(40, 10)
    terminal.wait("Ctrl-C ends", gone=True)
    terminal.wait(r"^ wirelake  up 0:00:\d\d +● broker$")
    terminal.resize(160, 45)
    terminal.wait("Ctrl-C ends")
    terminal.wait(r"^ clients +0 .{110,} ready +held$")
    terminal.process.send_signal(signal.SIGTERM)
    assert terminal.end() == 0
    assert terminal.is_restored()


def test_the_view_shows_a_broker_that_has_died(open_terminal: Callable[..., Terminal]) -> None:
    terminal = open_terminal(*PLACES)
    terminal.wait("^ clients +0 ")
    terminal.wait(r"started, process \d+")
    found = re.search(r"started, process (\d+)", terminal.text)
    assert found is not None
    os.kill(int(found[1]), signal.SIGKILL)
    terminal.wait("broker   was killed by SIGKILL; starting it again")
    terminal.wait(r"● broker \(1 restart\)$")
    terminal.process.send_signal(signal.SIGHUP)  # the window is closed
    assert terminal.end() == 0


def test_what_is_wrong_is_one_line_on_a_terminal_too(
    open_terminal: Callable[..., Terminal],
) -> None:
    terminal = open_terminal("--listen", "auto://0.0.0.0:0", columns=200)
    terminal.wait("^wirelake: listen: auto://0.0.0.0:0 can be reached from other machines")
    assert terminal.process.wait(PATIENCE) == 1
    assert b"\x1b[" not in terminal.seen
    assert terminal.seen.count(b"\n") == 1


def test_examples_are_for_the_listeners_that_there_are() -> None:
    usual = Settings()
    lines = examples(list(usual.listen), f"http://{usual.http}", Path("data/lake"))
    assert lines == [
        "wirelake sub kobold-3://localhost 'house/#'",
        "wirelake pub boson-text://localhost house/kitchen/temp 21.5",
        "wirelake chat mfp://localhost",
        "wirelake demo",
    ]
    lines = examples(["mfp+unix:///run/a b"], "http://127.0.0.1:1", Path("/my data/lake"))
    assert lines == [
        "wirelake chat 'mfp+unix:///run/a b'",
        "wirelake demo 'mfp+unix:///run/a b' --http 127.0.0.1:1 --table '/my data/lake'",
    ]
