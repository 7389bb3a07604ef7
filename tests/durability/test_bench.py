"""The long kill run and the durable benchmark work; how fast is not for a test to say."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from bench.peers import connected
from bench.rabbitmq import RabbitMq, declare

ROOT = Path(__file__).parent.parent.parent


def run(module: str, file: Path, *arguments: str) -> Any:
    """The figures that a benchmark writes."""
    command = [sys.executable, "-m", module, *arguments, "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.soak
def test_the_kill_run_tells_what_it_found(tmp_path: Path) -> None:
    figures = run("bench.kill", tmp_path / "kill.json", "--kills", "2", "--seed", "1")
    assert figures["kills"] == 2
    assert sum(figures["verdict"]["answered"].values()) > 200
    assert figures["verdict"]["lost"] == []


@pytest.mark.soak
def test_the_durable_benchmark_measures_everything(tmp_path: Path) -> None:
    arguments = ("--seconds", "0.05", "--rounds", "1")
    figures = run("bench.durable", tmp_path / "durable.json", *arguments)["figures"]
    assert len(figures) == 13
    assert all("Wirelake" in found for found in figures.values())
    assert figures["captured publishes"]["Wirelake"] > 0
    # A row of the log has its payload, and more.
    row = figures["captured bytes"]["Wirelake"] / figures["captured publishes"]["Wirelake"]
    assert 128 < row < 1000
    paced = figures["paced publisher, share of its pace"]
    assert paced.keys() == {"Wirelake", "no capture"}
    assert all(0 < share <= 1 for share in paced.values())
    assert all(used > 0 for used in figures["paced publisher, the broker's CPU"].values())


@pytest.mark.soak
@pytest.mark.skipif(RabbitMq.binary() is None, reason="RabbitMQ is not installed")
def test_rabbitmq_runs_as_a_node_of_its_own_and_keeps_what_it_confirms(tmp_path: Path) -> None:
    keeper = RabbitMq(tmp_path / "node")
    with keeper.running():
        assert keeper.rate(keeper.publish, 2, 0.1) > 0
        assert keeper.rate(keeper.queue, 2, 0.1) > 0
        sent, taken = keeper.captured(0.1)
        assert sent > 0 < taken
        assert keeper.update(0) == []
        with closing(keeper.connect(0)) as connection:
            # Queues declared again answer with how many messages are ready in them.
            for queue, wanted in (("block", sent + 1), ("jobs.0", 1)):
                answer = keeper.ask(connection, declare(queue))
                ready = int.from_bytes(answer[-9:-5])
                assert ready == wanted, queue
    with pytest.raises(ConnectionRefusedError):
        connected(keeper.port)
