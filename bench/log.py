"""How fast the log is, beside the disk that it is on: `python -m bench.log`.

Measured in one run, in turns, with 128-byte payloads; of each the best turn counts:

- the disk alone: blocks of 8 MiB, written one after the other with an fdatasync each;
- capture: frame tables in, as sockets give them, until they are durable; the journal's thread
  writes. Messages to one address, to a thousand in random order, and compressed;
- the same batches as rows of SQLite (WAL, synchronous=FULL), as they might have been stored;
- reading it all back;
- one message at a time: append, commit in place; beside it an fdatasync of as many bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.results import write_json
from bench.wire import machine
from wirelake.dialects.codec import encoder, scanner
from wirelake.journal.arrow_stream import Compression
from wirelake.journal.batch import Rows
from wirelake.journal.engine import Engine
from wirelake.message import Message
from wirelake.wire import FrameTable

PAYLOAD = 128
ROWS = 1600  # what one read of a socket holds
#: The broker stops reading from publishers when so much waits for the disk.
BACKLOG = 64 << 20
MANY = 1000
BLOCK = 8 << 20


TEXT = b'{"temperature": 21.53, "humidity": 40.25, "unit": "celsius", "device": "%06d"} '


def table(addresses: int) -> FrameTable:
    """Messages to so many addresses, in random order, as they are read from a socket."""
    chance = random.Random(1)
    names = [f"plant/{k % 7}/line/{k}/temperature" for k in range(addresses)]
    made = FrameTable(ROWS)
    made.fill(
        Message(
            address=chance.choice(names),
            payload=(TEXT % chance.randrange(10**6) * 2)[:PAYLOAD],
        )
        for _ in range(ROWS)
    )
    scanned = FrameTable(ROWS)
    scanner("kobold-3").scan(bytes(encoder("kobold-3").encode(made)), scanned)
    return scanned


def disk(folder: Path, seconds: float, block: int = BLOCK) -> float:
    """Bytes a second of plain writes."""
    path = folder / "plain"
    data = random.Random(2).randbytes(block)
    written = 0
    file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        os.write(file, data)
        os.fdatasync(file)
        written += block
    rate = written / (time.perf_counter() - start)
    os.close(file)
    path.unlink()
    return rate


@dataclass
class Capture:
    """What a turn of capturing gave, a second."""

    rows: float
    bytes: float  # on the disk
    read_rows: float = 0.0


async def captured(
    folder: Path, rows: FrameTable, seconds: float, compression: Compression
) -> tuple[int, float, Engine]:
    """Append as fast as the journal takes it; how many rows, how long, and the engine."""
    loop = asyncio.get_running_loop()
    engine = Engine.on_disk(folder, loop=loop, compression=compression)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if engine.backlog > BACKLOG:
            await asyncio.sleep(0.0005)
            continue
        engine.append(rows, None, 1, b"bench")
        count += rows.count
        await asyncio.sleep(0)
    done = loop.create_future()
    engine.after(lambda: done.set_result(None))
    await done
    return count, time.perf_counter() - start, engine


def capture(
    folder: Path, rows: FrameTable, seconds: float, compression: Compression = "none"
) -> Capture:
    """Capture for so long, then read it back."""
    count, taken, log = asyncio.run(captured(folder / "log", rows, seconds, compression))
    size = sum(position.bytes for position in log.positions())
    start = time.perf_counter()
    read = sum(
        batch.count
        for position in log.positions()
        for batch in log.read(position.partition, 0, position.next)
    )
    read_rows = read / (time.perf_counter() - start)
    if read != count:
        raise RuntimeError(f"{count} rows were appended, {read} are there")
    log.close()
    shutil.rmtree(folder / "log")
    return Capture(count / taken, size / taken, read_rows)


def in_sqlite(folder: Path, rows: FrameTable, seconds: float) -> Capture:
    """The same batches as rows of a database, one commit for all that waits."""
    path = folder / "log.db"
    base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE batch (partition INT, base INT, count INT, ipc BLOB)")
    memory = Rows(4)
    done = threading.Event()

    def write() -> None:
        while not done.is_set() or memory.size:
            batches = memory.take().batches()
            base.execute("BEGIN")
            base.executemany(
                "INSERT INTO batch VALUES (?, ?, ?, ?)",
                [(batch.partition, batch.base, batch.count, batch.ipc) for batch in batches],
            )
            base.execute("COMMIT")

    count, taken = append_until(memory, rows, seconds, write, done)
    [(size,)] = base.execute("SELECT sum(length(ipc)) FROM batch")
    base.close()
    path.unlink()
    return Capture(count / taken, size / taken)


def append_until(
    log: Rows,
    rows: FrameTable,
    seconds: float,
    write: Callable[[], None],
    done: threading.Event,
) -> tuple[int, float]:
    """Append as fast as the writer takes it; how many rows, and until they were durable."""
    writer = threading.Thread(target=write)
    writer.start()
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        if log.size > BACKLOG:
            time.sleep(0.0005)
            continue
        log.append(rows, None, 1, b"bench")
        count += rows.count
    done.set()
    writer.join()
    return count, time.perf_counter() - start


def alone(folder: Path, seconds: float) -> tuple[float, float]:
    """Seconds that one message takes until it is durable, and an fdatasync of its size."""
    rows = FrameTable(1)
    rows.fill([Message(address="plant/1/line/1/temperature", payload=bytes(PAYLOAD))])
    log = Engine.on_disk(folder / "log")

    def message() -> None:
        log.append(rows, None, 1, b"bench")
        log.end_turn()

    message()
    data = bytes(log.positions()[0].bytes or 2048)
    file = os.open(folder / "plain", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)

    def sync() -> None:
        os.write(file, data)
        os.fdatasync(file)

    times: dict[Callable[[], None], list[float]] = {message: [], sync: []}
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for call, taken in times.items():
            before = time.perf_counter()
            call()
            taken.append(time.perf_counter() - before)
    os.close(file)
    log.close()
    shutil.rmtree(folder / "log")
    return statistics.median(times[message]), statistics.median(times[sync])


def measure(folder: Path, seconds: float, turns: int) -> dict[str, Any]:
    """Everything, in turns."""
    one, many = table(1), table(MANY)
    cases: dict[str, Callable[[], Capture]] = {
        "one address": lambda: capture(folder, one, seconds),
        f"{MANY} addresses": lambda: capture(folder, many, seconds),
        f"{MANY} addresses, lz4": lambda: capture(folder, many, seconds, "lz4"),
        f"{MANY} addresses, zstd": lambda: capture(folder, many, seconds, "zstd"),
        "one address, in SQLite": lambda: in_sqlite(folder, one, seconds),
    }
    best: dict[str, Capture] = {}
    sequential = 0.0
    for _ in range(turns):
        sequential = max(sequential, disk(folder, seconds))
        for name, call in cases.items():
            result = call()
            if name not in best or result.rows > best[name].rows:
                best[name] = result
    message, sync = alone(folder, seconds)
    return {
        "machine": machine(),
        "payload": PAYLOAD,
        "disk": sequential,
        "captures": {name: asdict(result) for name, result in best.items()},
        "alone": message,
        "sync": sync,
    }


def show(console: Console, results: dict[str, Any]) -> None:
    """One table, and two lines."""
    shown = Table("", "M rows/s", "MB/s on disk", "of the disk", "read, M rows/s")
    for name, result in results["captures"].items():
        read = f"{result['read_rows'] / 1e6:.1f}" if result["read_rows"] else ""
        shown.add_row(
            name,
            f"{result['rows'] / 1e6:.2f}",
            f"{result['bytes'] / 1e6:.0f}",
            f"{result['bytes'] / results['disk']:.0%}",
            read,
        )
    console.print(shown)
    console.print(
        f"the disk alone, {BLOCK >> 20} MiB an fdatasync: {results['disk'] / 1e6:.0f} MB/s"
    )
    console.print(
        f"one message at a time: {results['alone'] * 1e6:.0f} µs; "
        f"an fdatasync alone: {results['sync'] * 1e6:.0f} µs (medians)"
    )
    console.print(results["machine"])


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="for each measurement (2)")
    parser.add_argument("--turns", type=int, default=3, help="of each (3)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        results = measure(Path(folder), options.seconds, options.turns)
    show(Console(width=None if sys.stdout.isatty() else 120), results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
