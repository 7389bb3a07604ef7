"""`wirelake serve --cluster`: nodes as processes on real NATS servers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.processes import Nodes, until
from tests.cluster.servers import Servers, free_ports
from wirelake.cluster.bus import Bus
from wirelake.cluster.operator import Operator
from wirelake.errors import RefusedError


@pytest.fixture
def nodes(nats: Servers, prefix: str, tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path, nats.urls, prefix) as made:
        yield made


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "wirelake", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_nodes_find_each_other_and_share_the_partitions(nodes: Nodes) -> None:
    started = nodes.start("a", "b")
    until(lambda: all("member joined" in one.log() for one in started), "they do not meet")

    def served() -> int:
        return sum(one.log().count("is served here") for one in started)

    until(lambda: served() == 6, "not all partitions are served")
    leaving, staying = started
    mine = leaving.log().count("is served here")
    assert leaving.stop() == 0
    until(lambda: staying.log().count("is served here") == 6, "they are not handed over")
    assert 0 < mine < 6
    assert "left as planned" in staying.log()


def test_a_second_node_of_the_same_name_ends_with_a_sentence(nodes: Nodes) -> None:
    (first,) = nodes.start("a")
    config = first.folder / "wirelake.toml"
    second = run(
        "serve",
        "--config",
        str(config),
        "--listen",
        "auto://127.0.0.1:0",
        "--data",
        str(first.folder / "other"),
        "--no-http",
    )
    assert second.returncode != 0
    assert "another node of the cluster is called a" in second.stderr
    assert first.process.poll() is None


def test_without_nats_a_node_says_where_it_looked(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    url = f"nats://127.0.0.1:{port}"
    ended = run("serve", "--cluster", url, "--node", "a", "--data", str(tmp_path), "--no-http")
    assert ended.returncode != 0
    assert f"no NATS server at {url}" in ended.stderr


def test_a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    ended = run("serve", "--cluster", "nats://x", "--node", "a b", "--data", str(tmp_path))
    assert ended.returncode != 0
    assert "cluster.node: 'a b' is no name" in ended.stderr


def test_streams_that_could_lose_data_are_told_in_one_line(nodes: Nodes) -> None:
    (node,) = nodes.start("a")
    (line,) = [line for line in node.log().splitlines() if " are weak: " in line]
    assert "6 streams have R1" in line


def status(nats: Servers, prefix: str) -> dict[str, Any]:
    """What operators see."""

    async def ask() -> dict[str, Any]:
        bus = await Bus.connect(nats.urls, prefix, "operator")
        try:
            return await Operator(bus).status(0.5)
        finally:
            await bus.close()

    return asyncio.run(ask())


def test_operators_see_drain_and_move(nodes: Nodes, nats: Servers, prefix: str) -> None:
    started = nodes.start("a", "b")

    def is_whole() -> bool:
        found = status(nats, prefix)
        return len(found["partitions"]) == 6 and all(one["served"] for one in found["partitions"])

    until(is_whole, "not all partitions are served")
    found = status(nats, prefix)
    assert [one["node"] for one in found["nodes"]] == ["a", "b"]
    assert sorted(k for one in found["nodes"] for k in one["owned"]) == list(range(6))
    assert all(link["open"] for one in found["nodes"] for link in one["links"])
    assert found["nodes"][0]["http"] == started[0].http
    assert found["same_settings"]
    at = ("--cluster", nats.urls[0], "--prefix", prefix)
    assert run("cluster", "drain", "a", *at).stdout == "a serves no partition\n"
    found = status(nats, prefix)
    assert {one["owner"] for one in found["partitions"]} == {"b"}
    assert found["nodes"][0]["draining"]
    assert run("cluster", "drain", "a", "--off", *at).returncode == 0
    moved = run("cluster", "move", "2", "a", *at, "--json")
    assert json.loads(moved.stdout) == {"partition": 2, "node": "a"}
    assert status(nats, prefix)["partitions"][2]["owner"] == "a"
    wrong = run("cluster", "move", "6", "a", *at)
    assert wrong.returncode != 0
    assert "the cluster has 6" in wrong.stderr
    told = json.loads(run("cluster", "status", *at, "--json").stdout)
    assert told["nodes"][0]["weak"].startswith("6 streams have R1")
    with urllib.request.urlopen(f"{started[1].http}/metrics") as answer:
        figures = answer.read().decode()
    for name in ("members 2.0", "owned ", "owner_changes_total ", "appends_fenced_total 0.0"):
        assert f"wirelake_cluster_{name}" in figures
    assert 'wirelake_cluster_link_open{node="a",role="edge"} 1.0' in figures
    assert "wirelake_cluster_standby_lag" in figures


def test_a_cluster_that_is_not_there_is_named(nats: Servers) -> None:
    told = run("cluster", "status", "--cluster", nats.urls[0], "--prefix", "nowhere")
    assert told.returncode != 0
    assert "there is no cluster nowhere at these servers" in told.stderr


async def test_a_node_that_is_not_there_is_not_found(nats: Servers, prefix: str) -> None:
    bus = await Bus.connect(nats.urls, prefix, "operator")
    with pytest.raises(RefusedError, match="no node z answers"):
        await Operator(bus).drain("z", on=True, timeout=1.0)
    await bus.close()
