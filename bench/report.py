"""All that a run found: as one table for people, as JSON, and as the page docs/benchmarks.md.

The page can be made again from the JSON. Its prose is in `page.md`, beside this module; what stands
there behind a dollar sign is filled in.
"""

from __future__ import annotations

import datetime
import os
import platform
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

import wirelake
from bench import wire
from bench.durable import FSYNCS
from bench.goals import GOALS, goal
from bench.keepers import PAYLOAD
from bench.log import disk
from bench.peers import Mosquitto, Nats, Redis
from bench.rabbitmq import RabbitMq
from bench.results import OURS, PEERS, Outcome, Result, quantity
from bench.sections import SECTIONS
from wirelake.errors import ConfigError
from wirelake.measure.machine import describe

QUICK = "A quick run, for a first look: its figures say nothing about speed"
TEMPLATE = Path(__file__).parent / "page.md"


@dataclass
class Part:
    """What one section gave."""

    name: str
    seconds: float
    outcome: Outcome

    @property
    def title(self) -> str:
        """Its heading."""
        return SECTIONS[self.name].title


@dataclass
class Report:
    """A run, or as much of it as is done."""

    machine: dict[str, Any]
    versions: dict[str, str]
    quick: bool = False
    payload: int = len(PAYLOAD)
    date: str = ""
    parts: list[Part] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Has any section, or any part of one?"""
        return any(part.outcome.failures for part in self.parts)

    def write(self, path: Path) -> None:
        """Write it as JSON, with what follows from the figures."""
        written = msgspec.to_builtins(self)
        for part, shown in zip(self.parts, written["parts"], strict=True):
            for result, fields in zip(
                part.outcome.results, shown["outcome"]["results"], strict=True
            ):
                wanted = goal(part.name, result.name)
                fields["best"] = result.best
                fields["ratio"] = result.ratio(result.best)
                fields["wanted"] = str(wanted) if wanted else None
                fields["met"] = wanted.is_met(result) if wanted else None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1) + b"\n")


def read(path: Path) -> Report:
    """A report from its JSON."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=Report)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(str(path), str(error)) from None
    if unknown := {part.name for part in report.parts} - SECTIONS.keys():
        raise ConfigError(str(path), f"there is no section {unknown.pop()}")
    return report


def begin(*, quick: bool) -> Report:
    """A report without sections, and what it is made on."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        machine = describe(folder)
        machine["disk_bytes_a_second"] = statistics.median(
            disk(folder, 0.1 if quick else 1.0) for _ in range(3)
        )
    machine["load_average"] = os.getloadavg()[0]
    machine["memory_bytes"] = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Report(machine, versions(), quick, date=today)


def versions() -> dict[str, str]:
    """What took part, and in which version."""
    python = platform.python_implementation()
    found = {OURS: wirelake.__version__, python: platform.python_version()}
    commands = {
        "nats-server": ([Nats.binary(), "--version"], r"v([\d.]+)"),
        "Redis": ([Redis.binary(), "--version"], r"v=([\d.]+)"),
        "Mosquitto": ([Mosquitto.binary(), "-h"], r"version ([\d.]+)"),
        "Java": ([_java(), "-version"], r'version "([^"]+)"'),
    }
    for name, (command, pattern) in commands.items():
        if command[0] is not None:
            said = subprocess.run([*map(str, command)], capture_output=True, text=True)
            match = re.search(pattern, said.stdout + said.stderr)
            found[name] = match[1] if match else "of unknown version"
    if RabbitMq.binary():
        found["RabbitMQ"] = RabbitMq.version()
    for name, package in (("PySpark", "pyspark"), ("pyarrow", "pyarrow"), ("Cython", "cython")):
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _java() -> str | None:
    try:
        from wirelake.spark.session import find_java
    except ImportError:  # then there is no Spark, and nobody needs Java
        return None
    home = find_java()
    return str(home / "bin" / "java") if home else None


# One table


def columns(results: list[Result]) -> list[str]:
    """The servers that have a column, in their order."""
    named = {PEERS[name] for result in results for name in result.peers}
    return [column for column in dict.fromkeys(PEERS.values()) if column in named]


def cells(section: str, result: Result, servers: list[str]) -> list[str]:
    """A row of the table: see `headings`."""
    shown = {PEERS[name]: quantity(figure) for name, figure in result.peers.items()}
    beside = (f"{quantity(figure)} {name}" for name, figure in result.references.items())
    ratio = result.ratio(result.best)
    told = "" if ratio is None else f"{ratio:.2f}"
    if told and len(result.peers) > 1 and result.best in PEERS:
        told += f" {PEERS[result.best]}"
    wanted = goal(section, result.name)
    met = wanted.is_met(result) if wanted else None
    return [
        result.name,
        result.unit,
        "" if result.ours is None else quantity(result.ours),
        *(shown.get(server, "") for server in servers),
        "; ".join(beside),
        told,
        str(wanted) if wanted else "",
        "" if met is None else "yes" if met else "**no**",
    ]


def headings(servers: list[str]) -> list[str]:
    """Those of the table."""
    return ["", "unit", OURS, *servers, "beside", "ratio", "wanted", "met"]


def show(console: Console, report: Report) -> None:
    """The one table, what was left out, what failed, and what it was measured on."""
    servers = columns([result for part in report.parts for result in part.outcome.results])
    names = headings(servers)
    table = Table(*names, header_style="bold", box=SIMPLE, pad_edge=False)
    for column in (table.columns[0], *table.columns[-3:]):
        column.no_wrap = True
    for column in table.columns[2 : 3 + len(servers)]:
        column.justify = "right"
    for part in report.parts:
        table.add_section()
        table.add_row(f"[bold]{part.title}")
        for result in part.outcome.results:
            *rest, met = cells(part.name, result, servers)
            table.add_row(*rest, "[bold red]no" if met == "**no**" else met)
        for failure in part.outcome.failures:
            table.add_row(Text(f"failed: {failure}", style="bold red"))
    console.print(table)
    for part in report.parts:
        for note in part.outcome.notes:
            console.print(f"{part.title}: {note}", markup=False, highlight=False)
    for line in (machine_line(report), versions_line(report), verdict_line(report)):
        console.print(line, markup=False, highlight=False)


def machine_line(report: Report) -> str:
    """What it was measured on."""
    machine = report.machine
    return (
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.0f} GiB;"
        f" {machine['system']}; a disk of {machine['fsyncs_a_second']:.0f} fsyncs and"
        f" {machine['disk_bytes_a_second'] / 1e6:.0f} MB a second; load average"
        f" {machine['load_average']:.1f} at the start; {machine['kernels']} kernels; payloads of"
        f" {report.payload} bytes; {report.date}{'; quick' if report.quick else ''}"
    )


def versions_line(report: Report) -> str:
    """What took part."""
    return ", ".join(f"{name} {version}" for name, version in report.versions.items())


def verdict_line(report: Report) -> str:
    """How many goals are met, and which are not."""
    if report.quick:
        return QUICK
    met, missed = 0, []
    for part in report.parts:
        for result in part.outcome.results:
            wanted = goal(part.name, result.name)
            if wanted is not None and (good := wanted.is_met(result)) is not None:
                met += good
                if not good:
                    missed.append(f"{part.name}: {result.name}")
    text = f"{met} of {met + len(missed)} goals are met"
    return f"{text}; not met: {'; '.join(missed)}" if missed else text


# The page


def page(report: Report) -> str:
    """docs/benchmarks.md."""
    parts = {part.name: part for part in report.parts}
    filled = {name: "\n".join(_section(name, parts.get(name))) for name in SECTIONS}
    filled |= {
        "machine": machine_line(report),
        "versions": versions_line(report),
        "verdict": verdict_line(report),
        "minutes": f"{sum(part.seconds for part in report.parts) / 60:.0f}",
        "spread": "\n".join(_spread(parts.get("durable"))),
        "dialects": "\n".join(_dialects(parts.get("wire"))),
        "goals": "\n".join(_goals()),
    }
    return Template(TEMPLATE.read_text(encoding="utf-8")).substitute(filled)


def _markdown(names: list[str], rows: list[list[str]], left: set[str]) -> Iterator[str]:
    """A table."""
    yield "| " + " | ".join(names) + " |"
    yield "|" + "|".join("---" if name in left else "---:" for name in names) + "|"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def _section(name: str, part: Part | None) -> Iterator[str]:
    if part is None:
        yield "Not measured in this run."
        return
    results = part.outcome.results
    if results:
        servers = columns(results)
        names = headings(servers)
        rows = [cells(name, result, servers) for result in results]
        # A column that is empty throughout says nothing.
        kept = [k for k in range(len(names)) if any(row[k] for row in rows)]
        yield from _markdown(
            [names[k] for k in kept],
            [[row[k] for k in kept] for row in rows],
            {"", "unit", "beside", "wanted", "met"},
        )
    for note in part.outcome.notes:
        yield f"\n{note[0].upper()}{note[1:]}."
    for failure in part.outcome.failures:
        yield f"\n**Failed:** {failure}."


def _spread(part: Part | None) -> Iterator[str]:
    """Least, median and most of the rounds: a busy disk hardly does the same twice."""
    if part is None or not part.outcome.results:
        yield "Not measured in this run."
        return
    results = part.outcome.results
    contenders = list(dict.fromkeys(name for result in results for name in result.rounds))
    rows = []
    for result in results:
        row = [result.name]
        for contender in contenders:
            each = result.rounds.get(contender)
            row.append(_range(each) if each else "")
        rows.append(row)
    syncs = [
        each for found in part.outcome.details["rounds"].values() for each in found.get(FSYNCS, [])
    ]
    yield from _markdown(["", *contenders], rows, {""})
    low, high = quantity(min(syncs)), quantity(max(syncs))
    yield f"\nThe disk did {low} to {high} fsyncs a second meanwhile."


def _range(figures: list[float]) -> str:
    middle = statistics.median(figures)
    if len(figures) == 1:
        return quantity(middle)
    return f"{quantity(min(figures))} … **{quantity(middle)}** … {quantity(max(figures))}"


def _dialects(part: Part | None) -> Iterator[str]:
    if part is None or not part.outcome.details:
        yield "Not measured in this run."
        return
    rows = list(wire.rows(part.outcome.details))
    yield f"{wire.LEGEND[0].upper()}{wire.LEGEND[1:]}.\n"
    yield from _markdown(wire.HEADINGS, rows, {"dialect"})


def _goals() -> Iterator[str]:
    rows = [[SECTIONS[one.section].title, one.text, str(one)] for one in GOALS]
    names = ["", "what is compared", "wanted"]
    yield from _markdown(names, rows, set(names))
