"""`wirelake serve --cluster`: nodes as processes on real NATS servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.processes import Nodes, until
from tests.cluster.servers import Servers, free_ports


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
