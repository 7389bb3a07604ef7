"""What the pages of the documentation are run with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def loopback(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that gives each page a loopback of its own."""
    built = tmp_path_factory.mktemp("loopback") / "loopback.so"
    source = Path(__file__).with_name("loopback.c")
    command = ["gcc", "-shared", "-fPIC", "-O2", "-o", str(built), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return str(built)
