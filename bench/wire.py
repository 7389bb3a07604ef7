"""Frames a second of the wire library, on one core: `python -m bench.wire`.

A block is 256 KiB of whole frames with 128-byte payloads and 10-byte addresses, of one dialect.
Measured for each: scan, scan to Arrow, encode (from a scanned table), and translation (scan and
encode, as a broker delivers) to the seven other dialects; and beside them one memcpy of the block.

The machine is never quiet. So all is measured in one run, in turns, and the best turn counts.
`--plain` runs the same on the uncompiled kernels in build/plain, `--all-pairs` shows every
translation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from bench import described
from bench.goals import goal
from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.message import Message
from wirelake.wire import COMPILED, FrameTable
from wirelake.wire.arrow import to_arrow

ROOT = Path(__file__).parent.parent
BLOCK = 256 << 10
PAYLOAD = (b'{"temperature": 21.5, "humidity": 40.25, "unit": "celsius"} ' * 3)[:128]
WITHOUT_IDS = ("boson-text",)
ALWAYS_IDS = ("mfp-1",)
WITH_CBOR = ("kobold-2", "kobold-3")
PLAIN = ROOT / "build" / "plain"

TURN = 0.004  # seconds that one turn of one measurement takes, at least


@dataclass
class Case:
    """One dialect, with or without message ids, and its block."""

    dialect: str
    ids: bool
    block: bytes = b""
    frames: int = 0
    rates: dict[str, float] = field(default_factory=dict)  # frames a second, by measurement

    @property
    def name(self) -> str:
        """As the table shows it."""
        return f"{self.dialect}, ids" if self.ids else self.dialect

    def build(self) -> None:
        """Fill the block with frames of our own encoder."""
        batch = [
            Message(
                address="sensors/12" if self.dialect == "mfp-1" else f"sensors/{k % 90 + 10}",
                payload=PAYLOAD,
                id=f"{k:032x}" if self.dialect == "mfp-1" else f"{k:08}" if self.ids else "",
            )
            for k in range(BLOCK // len(PAYLOAD))
        ]
        table = FrameTable(len(batch))
        table.fill(batch, self.dialect)
        encode = encoder(self.dialect).encode
        frames, size = [], 0
        for row in range(len(batch)):
            frame = bytes(encode(table, [row]))
            if size + len(frame) > BLOCK:
                break
            frames.append(frame)
            size += len(frame)
        self.block, self.frames = b"".join(frames), len(frames)

    def measurements(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """What to time, by name."""
        block, table, target = self.block, FrameTable(), bytearray(len(self.block))

        def scan() -> FrameTable:
            reader = scanner(self.dialect)
            if reader.scan(block, table) != len(block):
                raise RuntimeError(f"{self.name}: the block was not scanned whole")
            return table

        def memcpy() -> None:
            target[:] = block

        scanned = FrameTable()
        scanner(self.dialect).scan(block, scanned)
        own = encoder(self.dialect)
        yield "memcpy", memcpy
        yield "scan", scan
        yield "arrow", lambda: to_arrow(scan())
        yield "encode", lambda: own.encode(scanned)
        for name in DIALECTS:
            if name != self.dialect:
                other = encoder(name, client=False)
                yield f"to {name}", lambda other=other: other.encode(scan())  # type: ignore[misc]

    def summarise(self) -> None:
        """Add the slowest and the median translation."""
        pairs = self.translations()
        self.rates["slowest"] = min(pairs.values())
        self.rates["median"] = statistics.median(pairs.values())

    def translations(self) -> dict[str, float]:
        """The rate of each translation, by its target."""
        named = {name.removeprefix("to "): rate for name, rate in self.rates.items()}
        return {name: named[name] for name in DIALECTS if name in named}


def cases_of(dialects: list[str]) -> list[Case]:
    """Every dialect, with and without ids where it can do both."""
    return [
        Case(dialect, ids)
        for dialect in dialects
        for ids in (False, True)
        if not (ids and dialect in WITHOUT_IDS) and not (not ids and dialect in ALWAYS_IDS)
    ]


def measure(cases: list[Case], seconds: float, console: Console) -> None:
    """Time everything in turns, `seconds` for each measurement in all."""
    turns: list[tuple[Case, str, Callable[[], object], int]] = []
    for case in cases:
        case.build()
        for name, call in case.measurements():
            call()  # warm
            turns.append((case, name, call, math.ceil(TURN / _time(call, 1))))
    rounds = max(3, round(seconds / TURN))
    for _ in track(range(rounds), "measuring", console=console, transient=True):
        for case, name, call, repeats in turns:
            rate = case.frames * repeats / _time(call, repeats)
            case.rates[name] = max(rate, case.rates.get(name, 0.0))
    for case in cases:
        case.summarise()


def _time(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return time.perf_counter() - start


def measure_plain(dialects: list[str], seconds: float) -> dict[str, dict[str, float]]:
    """The same in a process that runs the uncompiled kernels; rates by case."""
    if not PLAIN.is_dir():
        sys.exit("there is no plain build: make build/plain/.done")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "bench.wire", "--json", file.name]
        command += ["--seconds", str(seconds)]
        for dialect in dialects:
            command += ["--dialect", dialect]
        environment = {**os.environ, "PYTHONPATH": str(PLAIN)}
        subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=True)
        results = json.loads(Path(file.name).read_bytes())
    if results["compiled"]:
        sys.exit("build/plain has compiled kernels")
    return {case["name"]: case["rates"] for case in results["cases"]}


def machine() -> str:
    """What this was measured on, in a line."""
    cpu = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            cpu = line.partition(": ")[2]
            break
    compiler = f"Cython {metadata.version('cython')}, {sysconfig.get_config_var('CC')} -O3"
    return (
        f"{cpu}, {os.cpu_count()} cores; {platform.python_implementation()} "
        f"{platform.python_version()}; {compiler if COMPILED else 'plain kernels'}"
    )


COLUMNS = {
    "scan": "scan",
    "arrow": "scan to Arrow",
    "encode": "encode",
    "slowest": "translation, slowest",
    "median": "translation, median",
    "memcpy": "memcpy",
}


HEADINGS = ["dialect", "bytes a frame", *COLUMNS.values(), "slowest target", "scan, in memcpys"]
LEGEND = "million frames a second, one core (plain kernels in brackets); ✓ as wanted, ✗ below"


def rows(found: dict[str, Any]) -> Iterator[list[str]]:
    """The table's cells, as text: million frames a second, and beside them the plain build's."""
    for case in found["cases"]:
        rates, plain = case["rates"], case["plain"]
        size = case["bytes"] / case["frames"]
        cells = [case["name"], f"{size:.0f}"]
        for name, column in COLUMNS.items():
            rate = rates[name]
            text = f"{rate / 1e6:.1f}"
            if found["compiled"] and (wanted := goal("wire", f"{column}, {case['name']}")):
                text += " ✓" if rate >= wanted.value else f" ✗ {wanted.value / 1e6:.0f}"
            if name == "memcpy":
                text += f" ({rate * size / 1e9:.1f} GB/s)"
            elif plain:
                text += f" ({plain[name] / 1e6:.3f})"
            cells.append(text)
        others = {name: rate for name, rate in rates.items() if name.startswith("to ")}
        cells.append(min(others, key=others.__getitem__).removeprefix("to "))
        cells.append(f"{rates['memcpy'] / rates['scan']:.1f}")
        yield cells


def show(console: Console, found: dict[str, Any]) -> None:
    """The one table."""
    table = Table(title=LEGEND, caption=machine(), title_justify="left", caption_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "dialect" else "right")
    for cells in rows(found):
        table.add_row(*cells)
    console.print(table)


def show_pairs(console: Console, cases: list[Case]) -> None:
    """Every translation: from the rows' dialect to the columns'."""
    table = Table("from \\ to", *DIALECTS, title="translation, million frames a second")
    for case in cases:
        pairs = case.translations()
        cells = (f"{pairs[name] / 1e6:.1f}" if name in pairs else "-" for name in DIALECTS)
        table.add_row(case.name, *cells)
    console.print(table)


def results(found: dict[str, Any]) -> Iterator[Result]:
    """For the one table: of all dialects the slowest, and of those with CBOR, too."""
    cbor: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for case in found["cases"]:
        (cbor if case["dialect"] in WITH_CBOR else others).append(case)
    for name in ("scan", "arrow", "encode", "slowest"):
        for among in (others, cbor):
            if among:
                case = min(among, key=lambda one: one["rates"][name])
                rates = {OURS: case["rates"][name], "memcpy": case["rates"]["memcpy"]}
                yield Result(f"{COLUMNS[name]}, {case['name']}", "frames/s", rates)


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    outcome = Outcome()
    dialects = ["boson-text", "kobold-3"] if quick else list(DIALECTS)
    seconds = 0.01 if quick else 0.3
    cases = cases_of(dialects)
    tell("compiled kernels")
    measure(cases, seconds, Console(stderr=True))
    plain: dict[str, dict[str, float]] = {}
    if PLAIN.is_dir():
        tell("plain kernels")
        plain = measure_plain(dialects, seconds / 10)
    else:
        outcome.notes.append("plain kernels are not built, and left out (make build/plain/.done)")
    outcome.details = as_json(cases, plain)
    tell("described dialects")
    outcome.results = [*results(outcome.details), *described.measure(seconds)]
    return outcome


def as_json(cases: list[Case], plain: dict[str, dict[str, float]]) -> dict[str, Any]:
    """All that was measured, rates in frames a second."""
    return {
        "machine": machine(),
        "compiled": COMPILED,
        "payload": len(PAYLOAD),
        "cases": [
            {
                "name": case.name,
                "dialect": case.dialect,
                "frames": case.frames,
                "bytes": len(case.block),
                "rates": case.rates,
                "plain": plain.get(case.name, {}),
            }
            for case in cases
        ],
    }


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3, help="for each measurement (0.3)")
    parser.add_argument("--dialect", action="append", choices=DIALECTS, help="only this one")
    parser.add_argument("--plain", action="store_true", help="beside the plain build")
    parser.add_argument("--all-pairs", action="store_true", help="show every translation")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all rates")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 200)
    dialects = options.dialect or list(DIALECTS)
    cases = cases_of(dialects)
    measure(cases, options.seconds, console)
    plain = measure_plain(dialects, options.seconds / 10) if options.plain else {}
    found = as_json(cases, plain)
    show(console, found)
    if options.all_pairs:
        show_pairs(console, cases)
    write_json(options.json, found)


if __name__ == "__main__":
    main()
