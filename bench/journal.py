"""How fast the journal is, beside the disk that it is on: `python -m bench.journal`.

Measured in one run, in turns; of latencies the median of all turns counts, of rates the best turn:

- one client that waits for every commit, of one row and a queue's change: in place, and beside, on
  the writer's thread. In turns with them a bare loop of write and fdatasync of as many bytes, into
  a file that does not grow;
- batches of 4,096 rows of 128 bytes, appended beside with at most 64 MiB under way. Beside them a
  bare loop of write and fdatasync of as many bytes a time as the journal wrote on average;
- opening a journal and recovering a queue of 10 M messages, in runs of 4,096 that have a size each.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from array import array
from collections import defaultdict
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.results import write_json
from bench.wire import machine
from wirelake.journal.batch import Rows
from wirelake.journal.contract import Outcome
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Put, QueueChanges, Record, rows
from wirelake.message import Message
from wirelake.wire import FrameTable

PAYLOAD = 128
BATCH = 4096
BACKLOG = 64 << 20
REFERENCES = 10_000_000
#: Commits of one way, before another way has its turn; bytes of the file of the bare loop.
SLICE = 20
PLAIN = 8 << 20


def batch(count: int) -> tuple[list[bytes | memoryview], bytes]:
    """Rows as the log stores them, and their addresses; only their offsets are not right."""
    chance = random.Random(1)
    table = FrameTable(count)
    table.fill(
        Message(address="plant/1/line/2", payload=chance.randbytes(PAYLOAD)) for _ in range(count)
    )
    made = Rows(1)
    made.append(table, None, 1, b"")
    (one,) = made.take().batches()
    return [one.ipc], one.names


def waits(folder: Path, seconds: float) -> tuple[dict[str, list[float]], int]:
    """How long one client waits for commits (seconds), and the bytes of a commit.

    The ways take turns of a few commits, since a disk that others use changes from one second to
    the next.
    """
    journal = FilesJournal(folder, partitions=4, tidy_every=0)
    journal.recover(0)
    ipc, names = batch(1)
    answers: SimpleQueue[Any] = SimpleQueue()
    plain = os.open(folder / "plain", os.O_CREAT | os.O_RDWR)
    os.pwrite(plain, bytes(PLAIN), 0)
    os.fsync(plain)
    taken: dict[str, list[float]] = {"in place": [], "beside": [], "write and fdatasync": []}
    n = at = size = 0
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for way in taken:
            for _ in range(SLICE):
                begun = time.perf_counter()
                if way == "write and fdatasync":
                    os.pwrite(plain, bytes(size), at)
                    os.fdatasync(plain)
                    at = (at + size) % (PLAIN - size)
                else:
                    changes = QueueChanges()
                    changes.put(Put(1, n, 1, n, size=PAYLOAD))
                    records = [rows(n, 1, 1, 1, ipc, names=names), changes.record()]
                    journal.append({0: records}, answers.put, in_place=way == "in place")
                    assert answers.get() == {0: Outcome.DURABLE}
                    n += 1
                taken[way].append(time.perf_counter() - begun)
            size = sum(len(record.data) + 100 for record in records) + 32
    journal.close()
    os.close(plain)
    return taken, size


def stream(folder: Path, seconds: float) -> tuple[float, float]:
    """Rows and bytes a second, until they are durable."""
    journal = FilesJournal(folder, partitions=4, tidy_every=0)
    journal.recover(0)
    ipc, names = batch(BATCH)
    freed = threading.Semaphore(BACKLOG // sum(map(len, ipc)))
    n, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        freed.acquire()
        record = rows(n, BATCH, 1, 1, ipc, names=names)
        journal.append({0: [record]}, lambda _: freed.release())
        n += BATCH
    journal.close()
    taken = time.perf_counter() - begun
    return n / taken, journal.positions()[0].bytes / taken


def blocks(folder: Path, seconds: float, size: int) -> float:
    """Bytes a second of a bare loop of write and fdatasync."""
    data = random.Random(2).randbytes(size)
    file = os.open(folder / "blocks", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    written, begun = 0, time.perf_counter()
    while time.perf_counter() < begun + seconds:
        os.write(file, data)
        os.fdatasync(file)
        written += size
    taken = time.perf_counter() - begun
    os.close(file)
    (folder / "blocks").unlink()
    return written / taken


def recovery(folder: Path, references: int) -> tuple[float, int]:
    """How long it takes to open a journal and read a queue of so many messages, and its bytes."""
    journal = FilesJournal(folder, partitions=4, tidy_every=0)
    journal.recover(0)
    chance = random.Random(3)
    sizes = array("q", [chance.randrange(1000) for _ in range(BATCH)])
    pending: list[Record] = []
    done: SimpleQueue[Any] = SimpleQueue()
    for n in range(0, references, BATCH):
        changes = QueueChanges()
        changes.put(Put(1, n, BATCH, n, size=sizes))
        pending.append(changes.record())
        if len(pending) == 64 or n + BATCH >= references:
            journal.append({0: pending}, done.put)
            done.get()
            pending = []
    size = journal.positions()[0].since_checkpoint
    journal.close()
    begun = time.perf_counter()
    journal = FilesJournal(folder, tidy_every=0)
    found = total = 0
    for record in journal.recover(0).records:
        for put in QueueChanges.parse(record.data).puts():
            assert isinstance(put.size, array)
            found += put.count
            total += sum(put.size)
    taken = time.perf_counter() - begun
    journal.close()
    assert found >= references
    assert total > 0
    return taken, size


def measure(folder: Path, seconds: float, turns: int, references: int) -> dict[str, Any]:
    """All figures."""
    found: dict[str, list[float]] = defaultdict(list)
    rates: list[tuple[float, float]] = []
    bare: list[float] = []
    for turn in range(turns):
        taken, size = waits(folder / f"waits{turn}", 3 * seconds)
        for way, some in taken.items():
            found[way] += some
        rates.append(stream(folder / f"stream{turn}", seconds))
        bare.append(blocks(folder, seconds, 4 << 20))
    opening, state = recovery(folder / "recovery", references)
    return {
        "machine": machine(),
        "latency": {name: statistics.median(taken) for name, taken in found.items()},
        "commit": size,
        "rows": max(rate for rate, _ in rates),
        "bytes": max(rate for _, rate in rates),
        "disk": max(bare),
        "references": references,
        "opening": opening,
        "state": state,
    }


def show(console: Console, results: dict[str, Any]) -> None:
    """One table, and two lines."""
    shown = Table("one client waits", "median, µs", "of write and fdatasync")
    floor_time = results["latency"]["write and fdatasync"]
    for name, taken in results["latency"].items():
        shown.add_row(name, f"{taken * 1e6:.0f}", f"{taken / floor_time:.2f}")
    console.print(shown)
    console.print(
        f"batches of {BATCH} rows: {results['rows'] / 1e6:.2f} M rows/s, "
        f"{results['bytes'] / 1e6:.0f} MB/s, {results['bytes'] / results['disk']:.0%} of the disk"
    )
    console.print(
        f"{results['references'] / 1e6:g} M messages of a queue recovered in "
        f"{results['opening']:.2f} s from {results['state'] / 1e6:.0f} MB"
    )
    console.print(results["machine"])


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement (2)")
    parser.add_argument("--turns", type=int, default=3, help="of each (3)")
    parser.add_argument("--references", type=int, default=REFERENCES, help="to recover (10 M)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options.seconds, options.turns, options.references)
    show(Console(width=None if sys.stdout.isatty() else 120), results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
