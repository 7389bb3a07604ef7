"""Each fuzz target runs for a moment without a finding, and would have one where a fault is."""

import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.run import ROOT, SEEDS, TARGETS

SECONDS = 4


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the repository."""
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


@pytest.mark.soak
@pytest.mark.parametrize("target", TARGETS)
def test_a_short_run_finds_nothing(target: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not there for this platform")
    arguments = ["--seconds", str(SECONDS), "--dialect", target, "--work", str(tmp_path)]
    result = run("fuzz/run.py", *arguments)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "no finding" in result.stdout
    assert len(list(tmp_path.glob(f"corpus/{target}/*"))) > 1


def test_every_target_has_seeds() -> None:
    assert {folder.name for folder in SEEDS.iterdir()} == set(TARGETS)
    assert all(any(folder.iterdir()) for folder in SEEDS.iterdir())


UID = bytes(range(16))
STREAM = b"\1" + UID + b"\0\0\0\2\0a" + b"\2" + UID + b"\0\0\0\3\0\0x" + b"\2"


@pytest.mark.parametrize(
    ("fault", "finding"),
    [
        ("", "none"),
        ("build.mfp.uint32 = lambda p, at: p[-1]", "IndexError: [-1] of"),
        ("build.codec.Feed.finish = lambda self: ()", "Broken: the error, in pieces"),
        ("build.arrow.LABELS = b'x' + build.arrow.LABELS", "Broken: the Arrow row"),
    ],
)
def test_a_planted_fault_is_found(fault: str, finding: str) -> None:
    result = run(
        "-c",
        f"""
from fuzz import builds, invariant
build = builds.load_plain()
{fault}
assert len(invariant.check(build, "mfp-1", {STREAM!r}).rows) == 2
raise SystemExit("none")
""",
    )
    assert finding in result.stderr
