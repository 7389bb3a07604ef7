"""What durability costs, beside JetStream and Redis: `python -m bench.durable [--json FILE]`.

All servers keep their files on the same disk and are driven by the same generator, in turns, with
payloads of 128 bytes; the medians of the rounds count. Whoever is answered waits for the answer
before it sends the next; 64 clients are 64 connections.

- acked: publishes that are answered, from 1 and from 64 clients;
- queue: put, get and ack, each answered, from 1 and from 64 clients, a queue each;
- store: updates of a key each, answered, from 1 and from 64 clients;
- captured: one publisher that waits for nothing, until all it sent is kept.

An answer of Wirelake, of Redis with `appendfsync always`, and of JetStream with `sync_interval:
always` comes after an fsync: these are of equal durability. JetStream as it is answers before.

Beside them: what capturing costs a publisher with one subscriber, against `--no-capture`; the disk
alone, as fsyncs a second and as bytes a second.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.keepers import (
    MANY,
    PAYLOAD,
    JetStream,
    JetStreamSynced,
    Keeper,
    RedisStreams,
    Uncaptured,
    Wirelake,
)
from bench.log import disk
from wirelake.cli.bench import describe, fsync_rate
from wirelake.cli.contenders import Nats, Redis
from wirelake.cli.load import Load, end_by_signals, publish_rate

CASES: dict[str, Callable[[Keeper, float], float]] = {
    "acked publishes, 1 client": lambda one, seconds: one.rate(one.publish, 1, seconds),
    f"acked publishes, {MANY} clients": lambda one, seconds: one.rate(one.publish, MANY, seconds),
    "queue put-get-ack, 1 client": lambda one, seconds: one.rate(one.queue, 1, seconds),
    f"queue put-get-ack, {MANY} clients": lambda one, seconds: one.rate(one.queue, MANY, seconds),
    "store updates, 1 client": lambda one, seconds: one.rate(one.update, 1, seconds),
    f"store updates, {MANY} clients": lambda one, seconds: one.rate(one.update, MANY, seconds),
    "captured publishes": lambda one, seconds: one.captured(seconds),
}
LOADS = {"one topic": Load(1, len(PAYLOAD)), "1000 topics": Load(1000, len(PAYLOAD))}


def measure(folder: Path, seconds: float, rounds: int, people: Console) -> dict[str, Any]:
    """Everything, in turns."""
    kinds: list[type[Keeper]] = [Wirelake]
    for kind, peer in ((JetStream, Nats), (JetStreamSynced, Nats), (RedisStreams, Redis)):
        if peer.binary():
            kinds.append(kind)
        else:
            people.print(f"{kind.name}: not here; {peer.hint}")
    figures: dict[str, dict[str, list[float]]] = {}
    sequential = 0.0
    with ExitStack() as stack:
        keepers = [kind(folder / kind.__name__) for kind in kinds]
        plain = Uncaptured(folder / "uncaptured")
        for keeper in (*keepers, plain):
            stack.enter_context(keeper.running())
        for number in range(rounds):
            people.print(f"round {number + 1} of {rounds}")
            sequential = max(sequential, disk(folder, min(seconds, 1.0)))
            for case, run in CASES.items():
                found = figures.setdefault(case, {})
                found.setdefault("fsyncs", []).append(fsync_rate(folder))
                for keeper in keepers[number % len(keepers) :] + keepers[: number % len(keepers)]:
                    found.setdefault(keeper.name, []).append(run(keeper, seconds))
            for shape, load in LOADS.items():
                for keeper in (keepers[0], plain):
                    assert isinstance(keeper, Wirelake)
                    rate = publish_rate(keeper.driver, keeper.driver, load, 1, seconds)
                    heard = figures.setdefault(f"published and heard, {shape}", {})
                    heard.setdefault(keeper.name, []).append(rate)
    return {
        "machine": describe(folder),
        "load_average": os.getloadavg(),
        "payload": len(PAYLOAD),
        "disk_bytes_a_second": sequential,
        "figures": {
            case: {name: statistics.median(each) for name, each in found.items()}
            for case, found in figures.items()
        },
        "rounds": figures,
    }


def show(people: Console, results: dict[str, Any]) -> None:
    """One table; a line about the machine."""
    names = list(dict.fromkeys(name for found in results["figures"].values() for name in found))
    table = Table("a second", *names)
    for column in table.columns[1:]:
        column.justify = "right"
    for case, found in results["figures"].items():
        table.add_row(case, *(f"{found[name]:,.0f}" if name in found else "" for name in names))
    people.print(table)
    machine = results["machine"]
    people.print(
        f"{machine['cpu']}, {machine['cores']} cores; {machine['fsyncs_a_second']:.0f} fsyncs and"
        f" {results['disk_bytes_a_second'] / 1e6:.0f} MB a second; payloads of"
        f" {results['payload']} bytes; load average {results['load_average'][0]:.1f}"
    )


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5, help="for each measurement (0.5)")
    parser.add_argument("--rounds", type=int, default=7, help="of which the medians count (7)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    end_by_signals()
    people = Console(width=None if sys.stdout.isatty() else 140)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options.seconds, options.rounds, people)
    show(people, results)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
