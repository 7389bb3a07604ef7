"""Nothing durable is lost: a process that writes to a journal is killed, again and again."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.journal import crash

ROOT = Path(__file__).parents[2]
KILLS = 6


def write_and_die(folder: Path, seed: int, lines: int) -> list[str]:
    """Let a process write until it has printed this many lines, kill it, and return all it said."""
    command = [sys.executable, "-m", "tests.journal.crash", str(folder), str(seed)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
    assert process.returncode == -9
    return [line for line in said if line.endswith("\n")]


@pytest.mark.slow
def test_a_killed_journal_has_lost_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    folder, copy = tmp_path / "data", tmp_path / "copy"
    for seed in range(KILLS):
        said = write_and_die(folder, seed, chance.randrange(20, 2500))
        shutil.copytree(folder, copy)  # the next one has to deal with the files as they are
        crash.check(copy, said)
        shutil.rmtree(copy)
    assert crash.tidied(folder) < 10
