"""What the pages of the documentation are run with."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.lake import Lake


@pytest.fixture(scope="session")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that gives each page a loopback of its own."""
    built = tmp_path_factory.mktemp("loopback") / "loopback.so"
    source = Path(__file__).with_name("loopback.c")
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return str(built)


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """The process in which pages run `wirelake lake`."""
    made = Lake(tmp_path_factory.mktemp("lake"))
    yield made
    made.end()
