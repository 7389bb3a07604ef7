"""Everything that is measured, in one table: `python -m bench [--quick] [--only SECTION]`.

Wirelake beside nats-server, Redis, Mosquitto and RabbitMQ, as far as they are installed: pub/sub,
round trips, durability, pressure, the log by HTTP, the wire library, Spark. A section that fails is
reported, and the others go on; then the exit code is 1. A goal that is not met is no failure.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.status import Status

from bench.report import Part, Report, begin, page, read, show
from bench.sections import SECTIONS, run
from wirelake.errors import WirelakeError
from wirelake.measure.load import end_by_signals

#: Seconds between two lines about how far it is, where there is no terminal.
SELDOM = 30.0
JSON = Path("build/bench/bench.json")
INTERRUPTED = 130


class Progress:
    """Says how far it is and what is left: in one line that changes, or in lines now and then."""

    def __init__(self, names: list[str], *, quick: bool) -> None:
        self._console = Console(stderr=True)
        self._left = {name: SECTIONS[name].expected(quick=quick) for name in names}
        self._count = len(names)
        self._section = self._step = ""
        self._begun = self._said = 0.0
        self._status: Status | None = None
        many = "1 section" if self._count == 1 else f"{self._count} sections"
        self._print(f"{many}, about {_minutes(sum(self._left.values()))}")
        if self._console.is_terminal:
            self._status = self._console.status("")
            self._status.start()

    def begin(self, section: str) -> None:
        """Another section begins."""
        self._section, self._step, self._begun, self._said = section, "", time.monotonic(), 0.0
        self.tell("")

    def tell(self, step: str) -> None:
        """A section says what it does now; nothing new, if it is empty."""
        self._step = step or self._step
        now = time.monotonic()
        expected = self._left[self._section]
        rest = sum(self._left.values()) - min(expected, now - self._begun)
        number = self._count - len(self._left) + 1
        line = f"[{number} of {self._count}] {self._section}{': ' if self._step else ''}"
        line += f"{self._step}; about {_minutes(rest)} left"
        if self._status is not None:
            self._status.update(line.replace("[", r"\["))
        elif now - self._said >= SELDOM:
            self._said = now
            self._print(line)

    def end(self, seconds: float, *, failed: bool) -> None:
        """The section is done."""
        del self._left[self._section]
        how = "failed" if failed else "done"
        self._print(f"{self._section}: {how} after {_minutes(seconds)}")

    def close(self) -> None:
        """No more lines."""
        if self._status is not None:
            self._status.stop()

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def measure(names: list[str], *, quick: bool, json: Path) -> Report:
    """Run the sections; the JSON is written after each, so that a long run is not lost."""
    progress = Progress(names, quick=quick)
    json.parent.mkdir(parents=True, exist_ok=True)
    try:
        report = begin(quick=quick)
        for name in names:
            progress.begin(name)
            log = json.parent / f"{name}.log"
            outcome, seconds = run(name, quick=quick, log=log, tell=progress.tell)
            progress.end(seconds, failed=bool(outcome.failures))
            report.parts.append(Part(name, seconds, outcome))
            report.write(json)
    finally:
        progress.close()
    return report


def main() -> None:
    """Parse the arguments, measure, show."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench", description=about)
    parser.add_argument("--quick", action="store_true", help="fractions of a second, for a look")
    parser.add_argument("--only", action="append", choices=SECTIONS, help="may be repeated")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (that of TMPDIR)")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=JSON, help="all figures (%(default)s)"
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="measure nothing: read this JSON"
    )
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page of all this")
    options = parser.parse_args()
    if options.folder:
        os.environ["TMPDIR"] = str(options.folder.resolve())
        tempfile.tempdir = None
    end_by_signals()
    try:
        if options.source:
            report = read(options.source)
        else:
            names = [name for name in SECTIONS if not options.only or name in options.only]
            report = measure(names, quick=options.quick, json=options.json)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except WirelakeError as error:
        raise SystemExit(f"bench: {error}") from None
    show(Console(width=None if sys.stdout.isatty() else 200), report)
    if options.docs:
        options.docs.write_text(page(report), encoding="utf-8")
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
