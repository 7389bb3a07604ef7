"""`wirelake up --nodes`: NATS servers and nodes as processes, with and without a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import wirelake
from tests.cli.terminal import CTRL_C, Terminal
from wirelake.cli.up import cluster_examples, shifted
from wirelake.config import Listener
from wirelake.errors import ConfigError
from wirelake.live.children import Child
from wirelake.live.figures import Figures
from wirelake.live.nats import find_program
from wirelake.live.nodes import NodesBoard

PLACES = ["--listen", "auto://127.0.0.1:0", "--http", "127.0.0.1:0"]
#: Seconds; only a broken program needs them.
PATIENCE = 300

Told = dict[str, Any]


class Lines:
    """`wirelake up` without a terminal, one JSON object a line."""

    def __init__(self, *arguments: str) -> None:
        self.seen: list[Told] = []
        command = [sys.executable, "-m", "wirelake", "up", *arguments, "--json"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def wait(self, is_it: Callable[[Told], object]) -> Told:
        """The next line of which this is true."""
        assert self.process.stdout is not None
        ends = time.monotonic() + PATIENCE
        for line in self.process.stdout:
            self.seen.append(json.loads(line))
            if is_it(self.seen[-1]):
                return self.seen[-1]
            assert time.monotonic() < ends, self.seen[-20:]
        raise AssertionError(f"it ended: {self.seen[-20:]}")

    def started(self, *names: str) -> dict[str, int]:
        """The processes of children that start from now on, in any order."""
        found: dict[str, int] = {}
        while set(found) != set(names):
            told = self.wait(lambda one: one.get("who") in names and "started" in one["text"])
            found[told["who"]] = int(told["text"].rpartition(" ")[2])
        return found

    def end(self) -> tuple[int, str]:
        """Wait for the end: the exit code, and what stands on standard error."""
        said, errors = self.process.communicate(timeout=PATIENCE)
        self.seen += [json.loads(line) for line in said.splitlines()]
        return self.process.returncode, errors


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Lines]]:
    """Starts groups, none of which is left after the test."""
    started: list[Lines] = []

    def up(*arguments: str) -> Lines:
        started.append(Lines("--nodes", "3", "--data", str(tmp_path), *arguments))
        return started[-1]

    yield up
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def is_gone(pid: int) -> bool:
    """Whether a process has ended; one that its parent has not waited for yet counts, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def is_whole(told: Told) -> bool:
    """Whether all partitions are served, and followed by other nodes."""
    if told.get("event") != "figures" or told.get("unserved") != 0:
        return False
    nodes = told["nodes"].values()
    served = sorted(k for one in nodes for k in one["owned"])
    return served == list(range(16)) and all(one["standby"] for one in nodes)


def insist(work: Callable[[], Any]) -> Any:
    """Do something until it works and returns something: a busy machine may lose an owner."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            found = work()
            if found is None or found:
                return found
        except wirelake.RefusedError as error:
            if error.code not in ("busy", "closed", "timeout") or time.monotonic() > ends:
                raise
            time.sleep(0.1)


@pytest.mark.slow
def test_three_nodes_are_one_broker_and_all_end_in_order(up: Callable[..., Lines]) -> None:
    group = up("--no-lake", "--every", "1", *PLACES)
    pids = group.started("nats-1", "nats-2", "nats-3")
    pids |= group.started("n1", "n2", "n3")
    last = group.wait(lambda one: one["event"] == "try" and "pub" in one["command"])
    assert last["command"].count("127.0.0.1:") == 3
    urls = [one["url"] for one in group.seen if one["event"] == "listening"]
    assert len(urls) == 6
    # No line that the streams are weak: the servers sync every write, and are asked whether.
    assert not any("are weak" in told.get("text", "") for told in group.seen)
    group.wait(is_whole)
    with (
        wirelake.connect_sync(urls[0].replace("auto", "kobold-3")) as a,
        wirelake.connect_sync(urls[2].replace("auto", "kobold-3")) as b,
    ):
        for k in range(16):
            put, get = a.queue(f"jobs/{k}").put, b.queue(f"jobs/{k}").get
            insist(partial(put, b"%d" % k, id=f"job {k}"))
            (delivery,) = insist(partial(get, wait=5.0))
            assert delivery.message.payload == b"%d" % k
    line = re.compile(r"serves [0-9 ]+; follows \(lag\) [0-9 ()]+; links 2 of 2")
    group.wait(lambda one: one.get("who") == "n2" and bool(line.fullmatch(one["text"])))
    # A node that dies is started again where it was, and joins again.
    os.kill(pids["n3"], signal.SIGKILL)
    group.wait(lambda one: "killed by SIGKILL; starting it again" in one.get("text", ""))
    pids["n3"] = group.started("n3")["n3"]
    group.wait(is_whole)
    group.process.send_signal(signal.SIGTERM)
    assert group.end() == (0, "")
    told = [(one.get("who", ""), one.get("text", "")) for one in group.seen]
    assert ("n1", "stopping") in told
    # NATS was there until the nodes had ended.
    assert not any("did not end" in text for _, text in told)
    assert not any(who.startswith("nats") and "again" in text for who, text in told)
    assert all(is_gone(pid) for pid in pids.values())


@pytest.mark.slow
def test_the_view_has_one_line_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.terminal.PATIENCE", PATIENCE)  # six processes have to start
    terminal = Terminal(
        *("up", "--nodes", "3", "--data", str(tmp_path), "--no-lake", *PLACES),
        columns=120,
        lines=40,
    )
    try:
        terminal.wait(r"^ wirelake  up 0:\d\d:\d\d +● nats-1  ● nats-2  ● nats-3$")
        assert b"starting 3 NATS servers and 3 nodes" in terminal.seen
        terminal.wait(r"^ nats     nats://127\.0\.0\.1:\d+,nats://")
        for name in ("n1", "n2", "n3"):
            terminal.wait(rf"^ ● {name} +serves \d[0-9 ]*; follows \(lag\) \d.*; links 2 of 2$")
        terminal.type(CTRL_C)
        assert terminal.end() == 0
        assert terminal.is_restored()
    finally:
        terminal.close()


def test_what_cannot_be_ends_it_with_one_line(up: Callable[..., Lines], tmp_path: Path) -> None:
    first = up("--no-lake", "--listen", "auto://127.0.0.1:65500", "--http", "127.0.0.1:0")
    code, errors = first.end()
    assert code == 1
    assert "node n2 would listen at port 65600" in json.loads(errors)["text"]
    config = tmp_path / "wirelake.toml"
    config.write_text("[cluster]\nservers = ['nats://127.0.0.1:4222']\n")
    second = up("--no-lake", "--config", str(config))
    code, errors = second.end()
    assert code == 1
    assert "up --nodes starts NATS servers of its own" in json.loads(errors)["text"]


def test_ports_are_apart_and_clients_know_all_nodes() -> None:
    places = [Listener.parse(url) for url in ("kobold://127.0.0.1:7702", "auto+unix:///run/a")]
    assert [str(shifted(place, 1)) for place in places] == [
        "kobold://127.0.0.1:7802",
        "auto+unix:///run/a.2",
    ]
    assert shifted(Listener.parse("mfp://127.0.0.1:0"), 2).port == 0
    with pytest.raises(ConfigError, match="port 65700"):
        shifted(Listener.parse("mfp://127.0.0.1:65500"), 2)
    lines = cluster_examples(["auto://127.0.0.1:7700", "auto://127.0.0.1:7800"])
    assert lines == [
        "wirelake sub kobold-3://127.0.0.1:7700,127.0.0.1:7800 'house/#'",
        "wirelake pub boson-text://127.0.0.1:7700,127.0.0.1:7800 house/kitchen/temp 21.5",
    ]


def test_the_figures_of_nodes_add_up_and_a_partition_counts_once() -> None:
    one = 'wirelake_received_total 3\nwirelake_clients{dialect="mfp-1"} 1\n'
    one += 'wirelake_log_next{partition="0"} 60\nwirelake_log_next{partition="1"} 40\n'
    two = 'wirelake_received_total 4\nwirelake_clients{dialect="mfp-1"} 2\n'
    two += 'wirelake_log_next{partition="0"} 59\nwirelake_log_next{partition="1"} 41\n'
    two += 'wirelake_query_lag{partition="0",query="land-lake"} 5\n'
    found = Figures.parse([one, two], "land-lake", 0.0)
    assert (found.received, found.clients, found.log_rows) == (7, {"mfp-1": 3}, 101)
    assert found.lag == 5


class Witness:
    """Hears nothing."""

    def said(self, child: Child, line: str) -> None:
        """A line."""

    def complained(self, child: Child, line: str) -> None:
        """A line of standard error."""

    def changed(self, child: Child, text: str) -> None:
        """A state."""


async def test_a_node_that_is_not_up_is_told_as_such() -> None:
    nodes = [Child(name, list, Witness()) for name in ("n1", "n2")]
    nodes[0].is_up()
    board = NodesBoard(nodes=nodes)
    links = [{"role": "edge", "open": True}, {"role": "owner", "open": True}]
    said = {"node": "n1", "owned": [0, 1], "standby": {"2": 7}, "links": links}
    board.add_cluster({"nodes": [said], "partitions": [{"served": True}, {"served": False}]})
    assert list(board.lines()) == [
        ("n1", "serves 0 1; follows (lag) 2 (7); links 1 of 1"),
        ("n2", "is starting"),
    ]
    assert board.unserved == 1


def test_the_program_is_that_of_the_package() -> None:
    assert Path(find_program()).name == "nats-server"
