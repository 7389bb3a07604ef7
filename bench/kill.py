"""kill -9 of a broker under mixed load, again and again: `python -m bench.kill --kills 100`.

Clients of all dialects publish, queue, consume and change keys, and write down what they were told
(`tests/durability/load.py`). The broker is killed at moments of which nobody knows, now and then
also while it recovers, and started again on the same data. At the end everything is read back.
Lost, reordered, repeated, delivered after an ack, invented and holes must all be 0; else the exit
code is 1, and `--data` keeps the files to look at.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.results import write_json
from bench.wire import machine
from tests.durability.ledger import Ledger, Verdict
from tests.durability.load import besiege, check, served


async def run(data: Path, kills: int, seed: int, progress: Progress) -> dict[str, Any]:
    """Kill so many times, check, and tell what was found."""
    ledger = Ledger()
    task = progress.add_task("kills", total=kills, answered=0)

    def killed(count: int, ledger: Ledger) -> None:
        answered = sum(ledger.verdict.answered.values())
        progress.update(task, completed=count, answered=answered)

    began = time.monotonic()
    async with served(data) as broker:
        starts = await besiege(broker, ledger, kills, seed, killed)
        await check(broker, ledger)
        complaints = broker.all_complaints
        await broker.stop()
    return {
        "machine": machine(),
        "load_average": os.getloadavg(),
        "seed": seed,
        "kills": kills,
        "seconds": time.monotonic() - began,
        "restart_median": statistics.median(starts),
        "restart_longest": max(starts),
        "complaints": complaints,
        "bytes": sum(path.stat().st_size for path in data.rglob("*") if path.is_file()),
        "verdict": ledger.close(),
    }


def show(console: Console, results: dict[str, Any]) -> None:
    """One table of what was found, and what went wrong."""
    verdict: Verdict = results["verdict"]
    rows = {
        "kills": results["kills"],
        **{f"answered: {kind}": count for kind, count in sorted(verdict.answered.items())},
        "sent, not answered": verdict.unanswered,
        "recovered": verdict.recovered,
        "lost": len(verdict.lost),
        "reordered": len(verdict.reordered),
        "repeated by the broker": len(verdict.repeated),
        "repeated by producers without an answer": verdict.said_twice,
        "redelivered, not acknowledged": verdict.redelivered,
        "delivered after an answered ack": len(verdict.delivered_after_ack),
        "invented": len(verdict.invented),
        "holes in the offsets": len(verdict.holes),
        "heard by subscribers": verdict.heard,
    }
    table = Table("", "", title=f"{results['seconds']:.0f} s, seed {results['seed']}")
    table.columns[1].justify = "right"
    for name, figure in rows.items():
        table.add_row(name, f"{figure:,}")
    console.print(table)
    console.print(
        f"back after {results['restart_median']:.2f} s (median), "
        f"{results['restart_longest']:.2f} s (longest); {results['bytes'] / 1e6:.0f} MB of files; "
        f"load average {results['load_average'][0]:.1f}"
    )
    console.print(results["machine"])
    for what, found in verdict.faults.items():
        console.print(f"{what}:", *found, sep="\n  ")
    for complaint in results["complaints"]:
        console.print(complaint)


def main() -> None:
    """Parse the arguments, kill, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=100, help="(100)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of what is random")
    parser.add_argument("--data", type=Path, help="an empty folder that is kept (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 120)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[answered]} answers"),
        TimeElapsedColumn(),
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, console=Console(stderr=True)) as progress,
    ):
        data = options.data or Path(folder) / "data"
        data.parent.mkdir(parents=True, exist_ok=True)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results = runner.run(run(data, options.kills, options.seed, progress))
    show(console, results)
    verdict: Verdict = results["verdict"]
    found = {**asdict(verdict), "answered": dict(verdict.answered)}
    shown = {**results, "verdict": found}
    write_json(options.json, shown)
    if verdict.faults or results["complaints"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
