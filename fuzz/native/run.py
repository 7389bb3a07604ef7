"""Fuzzes the compiled kernels: `python fuzz/native/run.py [--bytes N] [--seconds N] [--target T]`.

The kernels are built by clang with AddressSanitizer and UndefinedBehaviorSanitizer in build/native,
and run by libFuzzer, one target after the other, each in one process. A target begins with the
seeds in fuzz/corpus, keeps what it learns in build/native/corpus, and goes on from there the next
time. The exit code is 1 where there was a finding, 2 where nothing could be built.
build/native/results.jsonl has a line for every run.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from fuzz import builds
from fuzz.native import build
from fuzz.native.exercise import OTHERS, targets
from fuzz.native.seeds import seeds_of

MAX_INPUT = 64 << 10
#: The targets that are no dialect read so much less: they run the same kernels once more.
SHARE_OF_OTHERS = 20

_TOLD = re.compile(r"^native: inputs (\d+) given (\d+) read (\d+) seconds ([\d.]+) cpu ([\d.]+)")
_COVERED = re.compile(r"^#\d+\s.* cov: (\d+) ft: (\d+) corp: (\d+)/")


@dataclass
class Run:
    """One target, while it runs and after."""

    target: str
    state: str = "no finding"
    inputs: int = 0
    given: int = 0
    read: int = 0
    seconds: float = 0.0
    cpu: float = 0.0
    branches: int = 0
    corpus: int = 0
    artifact: str = ""
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=60))

    def hear(self, line: str) -> None:
        """Take a line that the process wrote."""
        if told := _TOLD.match(line):
            self.inputs, self.given, self.read = (int(told[k]) for k in (1, 2, 3))
            self.seconds, self.cpu = float(told[4]), float(told[5])
        elif covered := _COVERED.match(line):
            self.branches, self.corpus = int(covered[1]), int(covered[3])
        else:
            self.last_lines.append(line.rstrip()[:1000])
            if "Test unit written to " in line:
                self.artifact = line.partition("Test unit written to ")[2].strip()


class Runner:
    """Builds what is needed, and runs targets."""

    def __init__(self, console: Console, work: Path, usual: builds.Build) -> None:
        self.console = console
        self.usual = usual  # the library as it is installed
        self.work = work
        self.tools = build.clang()
        console.print(
            f"building the kernels with {self.tools.compiler}, for minutes if all are new"
        )
        library = build.build_kernels(self.tools)
        driver = build.build_driver(self.tools, self.tools.folder)
        self.environment = build.environment(self.tools, library, self.tools.folder, driver=driver)

    def run(self, target: str, limit: int, seconds: int) -> Run:
        """Run one target until it has read so many bytes or to a finding; 0 seconds: no limit."""
        run = Run(target)
        corpus, findings = self.work / "corpus" / target, self.work / "findings"
        seeds = self.work / "seeds" / target
        for folder in (corpus, findings, seeds):
            folder.mkdir(parents=True, exist_ok=True)
        for number, seed in enumerate(seeds_of(self.usual, target)):
            (seeds / str(number)).write_bytes(seed)
        command = [
            *(
                sys.executable,
                str(build.ROOT / "fuzz" / "native" / "target.py"),
                target,
                str(limit),
            ),
            *(f"-max_len={MAX_INPUT}", "-timeout=60", "-rss_limit_mb=2048", "-verbosity=1"),
            *(f"-artifact_prefix={findings}/{target}-", f"-max_total_time={seconds}"),
            *("-mutate_depth=2", "-reload=0", str(corpus), str(seeds)),
        ]
        with subprocess.Popen(
            command,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            assert process.stderr is not None
            said = time.monotonic()
            for line in process.stderr:
                run.hear(line)
                if time.monotonic() - said > 60:
                    said = time.monotonic()
                    self.console.print(f"{target}: {run.inputs:,} inputs, {run.read:,} bytes read")
        if process.returncode:
            run.state = "FINDING" if run.artifact or run.inputs else "FAILED"
        self._note(run)
        return run

    def again(self, target: str, file: Path) -> int:
        """Run one input of a target, with all that it reports; return the exit code."""
        program = str(build.ROOT / "fuzz" / "native" / "target.py")
        command = [sys.executable, program, target, "0", str(file)]
        return subprocess.run(command, env=self.environment).returncode

    def _note(self, run: Run) -> None:
        noted = {name: value for name, value in asdict(run).items() if name != "last_lines"}
        with (self.work / "results.jsonl").open("a") as results:
            results.write(json.dumps(noted) + "\n")


def report(runs: list[Run]) -> Table:
    """All runs as a table."""
    table = Table("target", "state", caption="bytes read: consumed by scanners, without a fault")
    names = ("inputs", "bytes given", "bytes read", "CPU seconds", "branches", "corpus")
    for name in names:
        table.add_column(name, justify="right")
    for run in runs:
        numbers = (run.inputs, run.given, run.read, run.cpu, run.branches, run.corpus)
        table.add_row(run.target, run.state, *(f"{number:,.0f}" for number in numbers))
    return table


def main() -> int:
    """Parse the arguments and run."""
    usual = builds.load_compiled() or builds.load_plain()
    names = targets(usual.codec)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--bytes",
        type=float,
        default=1e9,
        help=f"a dialect's target ends when it has read so many; others, at 1/{SHARE_OF_OTHERS}",
    )
    parser.add_argument("--seconds", type=int, default=0, help="for each target; 0: no limit")
    parser.add_argument("--target", action="append", choices=names, help="only this one")
    parser.add_argument("--input", type=Path, help="run this input of the one target, and stop")
    parser.add_argument("--work", type=Path, default=build.FOLDER, help="for what is learnt")
    options = parser.parse_args()
    console = Console(width=120)
    try:
        runner = Runner(console, options.work, usual)
    except build.BuildError as error:
        print(f"fuzz-native: {error}", file=sys.stderr)
        return 2
    if options.input:
        if len(options.target or ()) != 1:
            parser.error("--input needs one --target")
        return runner.again(options.target[0], options.input)
    runs = []
    for target in options.target or names:
        limit = options.bytes / SHARE_OF_OTHERS if target in OTHERS else options.bytes
        runs.append(runner.run(target, int(limit), options.seconds))
        console.print(f"{target}: {runs[-1].state}")
    console.print(report(runs))
    found = [run for run in runs if run.state != "no finding"]
    for run in found:
        print(f"\n{run.target}:", *run.last_lines, sep="\n  ")
        print(f"\nthe input: {run.artifact or 'none was written'}")
        print(f"again with: fuzz/native/run.py --target {run.target} --input {run.artifact}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
