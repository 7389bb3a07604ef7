"""The example for pandas reads the log; the others are run by the pages that show them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.house import House, arrow, rows

EXAMPLE = Path(__file__).parents[2] / "examples" / "read_log_pandas.py"


def test_the_example_for_pandas_reads_the_log(house: House) -> None:
    pytest.importorskip("pandas")  # not among our packages: PySpark warns of its newest version
    some = [(f"house/{n % 3}", b"x" * n) for n in range(30)]
    for _ in range(2):
        assert house.post("/v1/publish", arrow(rows(*some, ("other", b"1")))).status == 202
    told = subprocess.run(
        [sys.executable, EXAMPLE, house.url, "house/#"], check=True, capture_output=True, text=True
    )
    assert told.stdout.splitlines() == [
        "house/0: 20 messages, 270 bytes",
        "house/1: 20 messages, 290 bytes",
        "house/2: 20 messages, 310 bytes",
    ]
