"""Nothing acknowledged is lost: the engine is killed while it writes, again and again."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.journal.engine_crash import Expectation

ROOT = Path(__file__).parent.parent.parent


def write_and_die(
    folder: Path,
    number: int,
    lines: int,
    environment: Mapping[str, str] | None = None,
    *options: str,
) -> list[str]:
    """Let a process write until it has said so many lines, kill it, and return all it said."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.journal.engine_crash", str(folder), str(number), *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    with process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
    assert process.returncode == -9
    if said[-1] and not said[-1].endswith("\n"):
        del said[-1]
    return said


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("retention",)])
def test_a_killed_engine_has_lost_nothing(tmp_path: Path, options: tuple[str, ...]) -> None:
    chance = random.Random(4)
    folder, copy = tmp_path / "data", tmp_path / "copy"
    expected = Expectation()
    for number in range(5):
        lines = chance.randrange(50, 4000)
        assert expected.hear(write_and_die(folder, number, lines, None, *options))
        shutil.copytree(folder, copy)  # the next one has to deal with the files as they are
        assert expected.check(copy, holes=bool(options)) == []
        shutil.rmtree(copy)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that keeps a copy of what was synced."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no gcc")
    built = tmp_path_factory.mktemp("shim") / "unsynced.so"
    source = Path(__file__).parent / "unsynced.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(source)], check=True)
    return built


@pytest.mark.slow
@pytest.mark.parametrize("reached", [0.0, 0.5, 0.95])
def test_a_power_failure_loses_only_what_nobody_was_told(
    tmp_path: Path, shim: Path, reached: float
) -> None:
    """Of what was written and not synced, a part has reached the disk."""
    chance = random.Random(f"power {reached}")
    for number in range(3):
        folder, shadow = tmp_path / f"data{number}", tmp_path / f"shadow{number}"
        environment = {"LD_PRELOAD": str(shim), "WATCHED": str(folder), "SHADOW": str(shadow)}
        expected = Expectation()
        said = write_and_die(folder, number, chance.randrange(50, 2500), environment)
        assert expected.hear(said)
        let_through(folder, shadow, reached, chance)
        assert expected.check(shadow) == []


def let_through(folder: Path, shadow: Path, part: float, chance: random.Random) -> None:
    """Let a part of the sectors that were not synced be on the disk all the same."""
    sector = 512
    for copy in [path for path in shadow.rglob("*") if path.is_file()]:
        if ".copy" in copy.name:
            copy.unlink()
            continue
        original = folder / copy.relative_to(shadow)
        if not original.exists():
            continue
        written, synced = original.read_bytes(), copy.read_bytes()
        mixed = bytearray(synced.ljust(len(written), b"\0"))
        for place in range(0, len(written), sector):
            if chance.random() < part:
                mixed[place : place + sector] = written[place : place + sector]
        if part:
            copy.write_bytes(mixed)
