"""The examples that read the log do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.house import House, arrow, rows

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("library", ["pyarrow", "duckdb", "polars", "pandas"])
def test_an_example_reads_the_log(house: House, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    some = [(f"house/{n % 3}", b"x" * n) for n in range(30)]
    for _ in range(2):
        assert house.post("/v1/publish", arrow(rows(*some, ("other", b"1")))).status == 202
    script = EXAMPLES / f"read_log_{library}.py"
    told = subprocess.run(
        [sys.executable, script, house.url, "house/#"], check=True, capture_output=True, text=True
    )
    assert told.stdout.splitlines() == [
        "house/0: 20 messages, 270 bytes",
        "house/1: 20 messages, 290 bytes",
        "house/2: 20 messages, 310 bytes",
    ]
    told = subprocess.run(
        [sys.executable, script, house.url], check=True, capture_output=True, text=True
    )
    assert told.stdout.splitlines()[-1] == "other: 2 messages, 2 bytes"
