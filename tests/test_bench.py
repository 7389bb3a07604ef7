"""The benchmark runs; how fast is not for a test to say."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wire_benchmark_measures_everything(tmp_path: Path) -> None:
    file = tmp_path / "wire.json"
    arguments = ["--seconds", "0.01", "--dialect", "tmq-1.01", "--all-pairs", "--json", str(file)]
    result = subprocess.run(
        [sys.executable, "-m", "bench.wire", *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "tmq-1.01, ids" in result.stdout
    cases = json.loads(file.read_text(encoding="utf-8"))["cases"]
    assert [case["name"] for case in cases] == ["tmq-1.01", "tmq-1.01, ids"]
    for case in cases:
        assert case["bytes"] <= 256 << 10
        measured = {"memcpy", "scan", "arrow", "encode", "slowest", "median", "to mfp-1"}
        assert case["rates"].keys() >= measured
