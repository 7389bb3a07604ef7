"""The example package in Cython is built against the shipped .pxd files, conforms and is spoken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wirelake.wire import COMPILED

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "pulse"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILED, reason="a compiled plug-in needs compiled kernels"),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One with the package installed: built, and offered by its entry point."""
    folder = tmp_path_factory.mktemp("pulse")
    source, site = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


def run(environment: dict[str, str], program: str) -> str:
    """Run a program that has the package; return what it prints."""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_it_conforms(environment: dict[str, str]) -> None:
    program = """
from wirelake.plugin import Message
from wirelake.testing import check_dialect
print(check_dialect("pulse-1", [Message("pulse/7", b"1234"), Message("pulse/65535", b"0")]))
"""
    assert run(environment, program) == "[]"


def test_the_broker_and_the_client_speak_it(environment: dict[str, str]) -> None:
    program = """
import wirelake
from wirelake.testing import Broker
with (
    Broker(listen=("auto://127.0.0.1:1",)) as broker,
    wirelake.connect_sync(broker.url("kobold-3")) as reader,
    reader.subscribe("pulse/#") as inbox,
    wirelake.connect_sync(broker.url("pulse-1")) as counter,
):
    counter.publish("pulse/7", b"42")
    got = next(iter(inbox))
    print(got.address, got.payload.decode())
"""
    assert run(environment, program) == "pulse/7 42"
