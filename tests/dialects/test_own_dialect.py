"""A dialect that is added in one file is there everywhere: nothing else names dialects."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.durability.served import HOST, Served

HERE = Path(__file__).parent
LINES = b"~house/temp 21\n~house/humidity 40\n"


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One with the dialect installed, as pip would: a file, and an entry point that names it."""
    site = tmp_path / "site"
    about = site / "ticker-1.0.dist-info"
    about.mkdir(parents=True)
    shutil.copy(HERE / "ticker.py", site)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: ticker\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[wirelake.dialects]\nticker = ticker:DIALECT\n")
    path = os.pathsep.join(filter(None, (str(site), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


def run(environment: dict[str, str], *arguments: str) -> list[str]:
    """Return what a command prints, in lines."""
    command = [sys.executable, "-m", "wirelake", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
async def test_the_broker_the_log_and_the_client_speak_it(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    async with Served(tmp_path / "data", environment=environment) as broker:
        await broker.start()
        with socket.create_connection((HOST, broker.port), timeout=60) as listener:
            listener.sendall(b"?house/#\n")  # a stranger's client, detected on `auto`
            assert listener.recv(100) == b"!ok\n"
            run(environment, "pub", broker.url("ticker-1"), "house/temp", "21")
            assert listener.recv(100) == b"~house/temp 21\n"
            run(environment, "pub", broker.url("kobold-3"), "house/temp", "22")
            assert listener.recv(100) == b"~house/temp 22\n"
        rows = [row for part in await broker.log() for row in part.to_pylist()]
        assert {row["dialect"]: row["payload"] for row in rows} == {
            "ticker-1": b"21",
            "kobold-3": b"22",
        }
        heard = subprocess.Popen(
            [sys.executable, "-m", "wirelake", "sub", broker.url("ticker"), "shop/#", "--count=1"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            while heard.poll() is None:
                run(environment, "pub", broker.url("mfp-1"), "shop/till", "open")
            assert "shop/till" in heard.communicate()[0]
        finally:
            heard.kill()
            heard.wait()
        await broker.stop()


def test_inspect_shows_a_capture_of_it(tmp_path: Path, environment: dict[str, str]) -> None:
    capture = tmp_path / "capture.bin"
    capture.write_bytes(LINES)
    shown: list[dict[str, Any]] = [
        json.loads(line) for line in run(environment, "inspect", str(capture), "--json")
    ]
    assert [one["dialect"] for one in shown] == ["ticker-1"] * 2
    assert [one["address"] for one in shown] == ["house/temp", "house/humidity"]
    assert [base64.b64decode(one["base64"]) for one in shown] == [b"21", b"40"]


@pytest.mark.slow
def test_spark_decodes_a_capture_of_it(tmp_path: Path, environment: dict[str, str]) -> None:
    capture, table = tmp_path / "capture.bin", tmp_path / "table"
    capture.write_bytes(LINES * 1000)
    run(environment, "lake", "decode", str(capture), "--table", str(table))
    rows = DeltaTable(str(table)).to_pyarrow_table(columns=["dialect", "address", "payload"])
    assert rows.num_rows == 2000
    assert set(rows["dialect"].to_pylist()) == {"ticker-1"}
    assert set(rows["address"].to_pylist()) == {"house/temp", "house/humidity"}


def test_a_dialect_that_cannot_be_imported_is_reported_and_left_out(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    (tmp_path / "site" / "ticker.py").write_text("raise RuntimeError('broken')\n")
    capture = tmp_path / "capture.bin"
    capture.write_bytes(b"4|0|a|21.5")
    command = [sys.executable, "-m", "wirelake", "inspect", str(capture)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "the dialect ticker of ticker:DIALECT cannot be used" in done.stderr
