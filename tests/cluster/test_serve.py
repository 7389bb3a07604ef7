"""`wirelake serve --cluster`: nodes as processes on real NATS servers."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nats as nats_client
import pytest

import wirelake
from tests.cluster.processes import NodeProcess, Nodes, until
from tests.cluster.servers import Servers, free_ports
from tests.cluster.test_processes import insist
from wirelake.cluster.bus import Bus
from wirelake.cluster.operator import Operator
from wirelake.errors import RefusedError
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.streams import Access

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


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


def test_a_node_stops_though_nats_is_gone(prefix: str, tmp_path: Path) -> None:
    folder = tmp_path / "nats"
    folder.mkdir()
    with Servers(folder) as servers, Nodes(tmp_path, servers.urls, prefix) as nodes:
        servers.wait(0)
        (node,) = nodes.start("a")
        until(lambda: node.log().count("is served here") == 6, "not all partitions are served")
        servers.processes[0].kill()
        servers.processes[0].wait()
        assert node.stop() == 0
        assert "Traceback" not in node.log()


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
    for name in ("standby_lag{", "standby_lag_seconds{", "link_credit{", "link_buffered{"):
        assert f"wirelake_cluster_{name}" in figures
    # Each of the partitions has at least an epoch record.
    found_times = re.search(r"wirelake_cluster_append_seconds_count (\d+)", figures)
    assert found_times is not None
    assert int(found_times[1]) > 0


def events_of(node: NodeProcess) -> dict[str, str]:
    """The latest event of each kind that a node tells operators."""
    found = node.get("/v1/cluster")["nodes"]
    changes = next(one["changes"] for one in found if one["node"] == node.name)
    return {one["event"]: one["text"] for one in changes}


async def put(node: NodeProcess, name: str) -> None:
    """Put a message into a queue, until that is answered."""
    async with wirelake.connect(node.url("kobold-3")) as client:
        await insist(lambda: client.queue(name).put(b"x"))


def test_an_append_that_is_fenced_is_an_event(
    nodes: Nodes, nats: Servers, prefix: str, tmp_path: Path
) -> None:
    (node,) = nodes.start("a")
    for k in range(12):
        asyncio.run(put(node, f"jobs/{k}"))
    assert "owner_changed" in events_of(node)
    settings = StreamSettings(prefix=prefix, replicas=1)
    access = Access(servers=tuple(nats.urls))
    thief = JetStreamJournal(tmp_path / "thief", access, settings, node="thief")
    try:
        for partition in range(6):
            thief.recover(partition)
    finally:
        thief.close()
    for k in range(12):
        asyncio.run(put(node, f"jobs/{k}"))  # the first is fenced, and the partition taken back
    until(lambda: "fenced" in events_of(node), "it does not say that it was fenced")
    assert events_of(node)["fenced"].endswith(": another node owns it")
    with urllib.request.urlopen(f"{node.http}/metrics") as answer:
        figures = answer.read().decode()
    assert 'wirelake_events_total{reason="fenced"}' in figures
    assert "wirelake_cluster_appends_fenced_total 0.0" not in figures


def test_a_hole_in_a_stream_is_an_event_and_the_partition_is_refused(
    nodes: Nodes, nats: Servers, prefix: str
) -> None:
    (node,) = nodes.start("a")
    for k in range(12):
        asyncio.run(put(node, f"jobs/{k}"))
    assert node.stop() == 0

    async def purge() -> None:
        client = await nats_client.connect(nats.urls[0])
        await client.jetstream().purge_stream(f"{prefix}_3")
        await client.close()

    asyncio.run(purge())
    nodes.restart("a")
    until(lambda: "chain_break" in events_of(node), "it does not tell of the hole")
    assert f"{prefix}_3" in events_of(node)["chain_break"]
    with urllib.request.urlopen(f"{node.http}/metrics") as answer:
        figures = answer.read().decode()
    assert "wirelake_cluster_appends_chain_breaks_total 1.0" in figures
    served = node.get("/v1/cluster")["nodes"][0]["owned"]
    assert 3 not in served


def test_a_cluster_that_is_not_there_is_named(nats: Servers) -> None:
    told = run("cluster", "status", "--cluster", nats.urls[0], "--prefix", "nowhere")
    assert told.returncode != 0
    assert "there is no cluster nowhere at these servers" in told.stderr


async def test_a_node_that_is_not_there_is_not_found(nats: Servers, prefix: str) -> None:
    bus = await Bus.connect(nats.urls, prefix, "operator")
    with pytest.raises(RefusedError, match="no node z answers"):
        await Operator(bus).drain("z", on=True, timeout=1.0)
    await bus.close()
