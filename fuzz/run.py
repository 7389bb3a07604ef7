"""Runs the fuzz targets: `python fuzz/run.py [--seconds N] [--dialect D]... [--jobs N]`.

A target begins with its seeds in fuzz/corpus, keeps what it learns in build/fuzz, and goes on from
there the next time. The exit code is 1 where there was a finding. `--seed` writes the seeds anew,
from the vectors in tests/vectors; they are committed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "fuzz" / "corpus"
WORK = ROOT / "build" / "fuzz"
VECTORS = ROOT / "tests" / "vectors"
#: Dialects that a file describes; `builds` has the files.
DESCRIBED = ("meter-1",)
TARGETS = (
    "boson-text", "boson-binary", "mfp-1", "kobold-1", "kobold-2", "kobold-3", "tmq-1.00",
    "tmq-1.01", "mqtt-3.1.1", "mqtt-5", *DESCRIBED, "detect",
)  # fmt: skip

MAX_INPUT = 2048
MAX_SEED = 400
INTERRUPTED = 72  # libFuzzer's exit code after a signal

_PULSE = re.compile(r"^#(\d+)\s+.* corp: (\d+)/")


@dataclass
class Run:
    """One target, while it runs and after."""

    target: str
    work: Path
    inputs: int = 0
    corpus: int = 0
    started: float = 0.0
    ended: float = 0.0
    code: int | None = None
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=40))

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return (self.ended or time.monotonic()) - self.started if self.started else 0.0

    @property
    def artifact(self) -> str:
        """Where the input of a finding is; empty without one."""
        written = [line.partition("Test unit written to ")[2] for line in self.last_lines]
        return next(filter(None, written), "")

    @property
    def state(self) -> str:
        """In one word."""
        if self.code is None:
            return "running" if self.started else "waiting"
        return {0: "no finding", INTERRUPTED: "interrupted"}.get(self.code, "FINDING")

    def fuzz(self, limit: str) -> None:
        """Run the target to its limit, `-max_total_time=…` or `-runs=…`, or to a finding."""
        corpus = self.work / "corpus" / self.target
        findings = self.work / "findings"
        for folder in (corpus, findings):
            folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(ROOT / "fuzz" / "target.py"), self.target, limit]
        command += [f"-max_len={MAX_INPUT}", "-timeout=20", "-rss_limit_mb=1024", "-verbosity=1"]
        command += [f"-artifact_prefix={findings}/{self.target}-", str(corpus)]
        command += [str(SEEDS / self.target)]
        self.started = time.monotonic()
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        ) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if pulse := _PULSE.match(line):
                    self.inputs, self.corpus = int(pulse[1]), int(pulse[2])
                elif not line.startswith(("INFO:", "WARNING:")):
                    self.last_lines.append(line.rstrip()[:1000])
        self.code = process.returncode
        self.ended = time.monotonic()


def report(runs: list[Run]) -> Table:
    """All runs as a table."""
    table = Table("target", "state", caption="inputs went through plain and compiled kernels")
    for name in ("seconds", "inputs", "inputs/s", "corpus"):
        table.add_column(name, justify="right")
    for run in runs:
        rate = run.inputs / run.seconds if run.seconds else 0
        numbers = (f"{n:,.0f}" for n in (run.seconds, run.inputs, rate, run.corpus))
        table.add_row(run.target, run.state, *numbers)
    return table


def show(console: Console, runs: list[Run], done: threading.Event) -> None:
    """Follow the runs: a table that changes on a terminal, elsewhere a line a minute."""
    if console.is_terminal:
        with Live(report(runs), console=console, transient=True) as live:
            while not done.wait(1):
                live.update(report(runs))
        return
    while not done.wait(60):
        for run in runs:
            if run.state == "running":
                console.print(f"{run.target}: {run.seconds:.0f} s, {run.inputs:,} inputs")


def fuzz(targets: list[str], limit: str, jobs: int, work: Path) -> int:
    """Run the targets, so many at a time; return the exit code."""
    console = Console()
    runs = [Run(target, work) for target in targets]
    done = threading.Event()
    screen = threading.Thread(target=show, args=(console, runs, done), daemon=True)
    screen.start()
    with contextlib.ExitStack() as stack:
        stack.callback(screen.join)
        stack.callback(done.set)
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        list(pool.map(lambda run: run.fuzz(limit), runs))
    console.print(report(runs))
    found = [run for run in runs if run.code]
    for run in found:
        print(f"\n{run.target}:", *run.last_lines, sep="\n  ")
        print(f"\nthe input: {run.artifact or 'none was written'}")
        print(f"again with: {sys.executable} fuzz/target.py {run.target} {run.artifact}")
    return 1 if found else 0


def write_seeds() -> None:
    """The vectors as streams of a few frames each, and every bad one of the specification's."""
    for target in TARGETS:
        if target in DESCRIBED:
            continue  # there are no vectors of it
        folder = SEEDS / target
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
    for path in sorted(VECTORS.glob("*/*.jsonl")):
        streams = [b""]
        for line in path.read_text(encoding="utf-8").splitlines():
            vector = json.loads(line)
            data = bytes.fromhex(vector["hex"])
            if "error" in vector["frame"]:
                if path.parent.name == "spec":
                    streams.insert(0, data)
            elif len(data) <= MAX_SEED:
                # A handshake, or a first frame that decides about the rest, has to come first.
                if len(streams[-1]) + len(data) > MAX_SEED or _opens(vector):
                    streams.append(b"")
                streams[-1] += data
        for k, stream in enumerate(filter(None, streams)):
            (SEEDS / path.stem / f"{path.parent.name}-{k}").write_bytes(stream)
            if k < 2:
                (SEEDS / "detect" / f"{path.parent.name}-{path.stem}-{k}").write_bytes(stream[:32])


def _opens(vector: dict[str, Any]) -> bool:
    frame = vector["frame"]
    is_handshake = "handshake" in (frame.get("op"), frame.get("type"))
    return is_handshake or "inclusive" in frame or "order" in frame


def main() -> int:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--runs", type=int, help="so many inputs instead of seconds")
    parser.add_argument("--dialect", action="append", choices=TARGETS, help="only this target")
    parser.add_argument("--jobs", type=int, default=2, help="targets at a time")
    parser.add_argument("--work", type=Path, default=WORK, help="for what is learnt and found")
    parser.add_argument("--seed", action="store_true", help="write fuzz/corpus, and stop")
    options = parser.parse_args()
    if options.seed:
        write_seeds()
        return 0
    limit = f"-runs={options.runs}" if options.runs else f"-max_total_time={options.seconds}"
    return fuzz(options.dialect or list(TARGETS), limit, options.jobs, options.work)


if __name__ == "__main__":
    sys.exit(main())
