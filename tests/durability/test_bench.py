"""The long kill run and the durable benchmark work; how fast is not for a test to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent


def run(module: str, file: Path, *arguments: str) -> Any:
    """The figures that a benchmark writes."""
    command = [sys.executable, "-m", module, *arguments, "--json", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_kill_run_tells_what_it_found(tmp_path: Path) -> None:
    figures = run("bench.kill", tmp_path / "kill.json", "--kills", "2", "--seed", "1")
    assert figures["kills"] == 2
    assert sum(figures["verdict"]["answered"].values()) > 200
    assert figures["verdict"]["lost"] == []


@pytest.mark.slow
def test_the_durable_benchmark_measures_everything(tmp_path: Path) -> None:
    arguments = ("--seconds", "0.05", "--rounds", "1")
    figures = run("bench.durable", tmp_path / "durable.json", *arguments)["figures"]
    assert len(figures) == 9
    assert all("Wirelake" in found for found in figures.values())
    assert figures["captured publishes"]["Wirelake"] > 0
