"""How fast Spark reads the log and lands it, beside a source in memory: `python -m bench.spark`.

Measured in one run on `local[2]`, in turns, with 128-byte payloads to a thousand addresses; of each
the best turn counts:

- count: a source that yields one ready-made Arrow batch again and again; our source on a broker of
  its own process, on the same machine, so it has a part of the two cores;
- land: such a source written to Parquet by Spark's own writer; `land` itself, with everything;
- both of ours for twice the rows;
- how large the files are, and how fast Spark reads all columns of both;
- landing and a scan of one level of addresses, in tables without folders and with them;
- how long a commit takes where the table has 10, 1 000 or 100 000 files;
- how long after it was published a row is seen in the table: `lake land` as a process of its own, a
  publisher of twenty messages a second, and somebody who looks for a new version all the time.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

import wirelake
from bench.goals import HALF, MEMORY, WRITER, goal
from bench.results import OURS, Outcome, Result, Tell, write_json
from bench.wire import machine
from wirelake.errors import EngineError
from wirelake.measure.broker import server
from wirelake.spark import land, register, session
from wirelake.spark import table as tables
from wirelake.spark.commits import Landed, exists
from wirelake.spark.commits import Table as DeltaTable
from wirelake.spark.files import Written
from wirelake.spark.log_client import LogClient
from wirelake.spark.options import Options
from wirelake.spark.rows import ROWS
from wirelake.spark.source import schema_of
from wirelake.spark.storage import Storage

PAYLOAD = 128
ADDRESSES = 1000
BATCH = 10_000
PARTITIONS = 4
QUICK_ROWS = 4 * BATCH * PARTITIONS
#: Files that a table has when commits to it are timed, and how many are.
FILES = (10, 1_000, 100_000)
QUICK_FILES = (10, 1_000)
COMMITS = 21
#: Folders of a table, beside none.
FOLDERS = (("date",), ("date", "level"))
#: The level that is asked for; there are seven.
LEVEL = "plant3"
#: Seconds for which messages are published, between two of them, and between two looks.
SECONDS, QUICK_SECONDS, PAUSE, LOOK = 60.0, 6.0, 0.05, 0.01
#: How landing is started, by what it is called in results.
TRIGGERS = {"default trigger": (), "--every 0": ("--every", "0")}
#: Seconds until a row that has not come is given up.
PATIENCE = 120.0


def messages() -> pa.RecordBatch:
    """Rows to publish."""
    chance = random.Random(1)
    return pa.RecordBatch.from_pydict(
        {
            "address": [f"plant{k % 7}/line/{k % ADDRESSES}" for k in range(BATCH)],
            "payload": pa.array([chance.randbytes(PAYLOAD) for _ in range(BATCH)], pa.binary()),
        }
    )


def ready(columns: tuple[str, ...]) -> pa.RecordBatch:
    """The same as the log has them, in Spark's types."""
    given = messages()
    empty: dict[str, Any] = {"headers": [], "op": "publish", "dialect": "kobold-3"}
    arrays = []
    for field in to_arrow_schema(schema_of(columns), timezone="UTC"):
        if field.name in given.schema.names:
            arrays.append(given.column(field.name).cast(field.type))
        elif field.name == "timestamp":
            arrays.append(pa.array([1_800_000_000_000_000] * BATCH).cast(field.type))
        else:
            text = "" if pa.types.is_string(field.type) else 0
            arrays.append(pa.array([empty.get(field.name, text)] * BATCH, field.type))
    return pa.RecordBatch.from_arrays(
        arrays, schema=to_arrow_schema(schema_of(columns), timezone="UTC")
    )


class Memory(DataSource):
    """A source that has its rows already: the option `rows` says how many."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "memory-bench"

    def schema(self) -> StructType:
        """That of the log."""
        return schema_of(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader."""
        return MemoryReader(int(self.options["rows"]), tuple(schema.names))


class MemoryReader(DataSourceReader):
    """Yields one batch again and again."""

    def __init__(self, rows: int, columns: tuple[str, ...]) -> None:
        self._rows = rows
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        """As many as the log has."""
        return [InputPartition(k) for k in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The batches."""
        batch = ready(self._columns)
        for _ in range(self._rows // PARTITIONS // BATCH):
            yield batch


@contextmanager
def broker(folder: Path) -> Iterator[tuple[str, str]]:
    """A broker in a process of its own: where HTTP is, and where Kobold is."""
    command = [sys.executable, "-m", "wirelake", "serve"]
    where = ["--data", str(folder), "--listen", "kobold://127.0.0.1:0", "--http", "127.0.0.1:0"]
    with server([*command, *where], subprocess.PIPE) as process:
        assert process.stdout is not None
        found: dict[str, str] = {}
        while len(found) < 2:
            line = process.stdout.readline().decode()
            if not line:
                raise EngineError("the broker does not start")
            if match := re.search(r"(http|kobold)://127\.0\.0\.1:\d+", line):
                found[match[1]] = match[0]
        yield found["http"], found["kobold"]


async def fill(url: str, http: str, rows: int) -> None:
    """Publish until the log has so many rows."""
    batch = messages()
    client = LogClient(http)

    def there() -> int:
        return sum(extent.next for extent in client.log().extents.values())

    async with wirelake.connect(url) as publisher:
        for _ in range((rows - there()) // BATCH):
            await publisher.publish_many(batch)
        await publisher.ping()
    while there() < rows:
        await asyncio.sleep(0.05)


def timed(work: Callable[[], object]) -> float:
    """Seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(spark: SparkSession, folder: Path, rows: int, turns: int, tell: Tell) -> dict[str, Any]:
    """All cases, as seconds."""
    register(spark)
    spark.dataSource.register(Memory)
    plain, whole = (
        ",".join(Options.parse({"url": "http://h:1", "includeHeaders": headers}).columns)
        for headers in ("false", "true")
    )
    target, theirs = folder / "table", folder / "spark"

    def memory(columns: str) -> Any:
        return spark.read.format("memory-bench").options(rows=rows, columns=columns).load()

    def land_memory() -> None:
        memory(whole).write.mode("overwrite").parquet(str(theirs))

    def by_folders(folders: tuple[str, ...]) -> Path:
        return folder / "-".join(("by", *folders))

    with broker(folder / "data") as (http, kobold):

        def land_into(folders: tuple[str, ...]) -> None:
            place = by_folders(folders)
            shutil.rmtree(place, ignore_errors=True)
            options = land.Options(http, str(place), partition_by=folders)
            assert land.land(spark, options) == counted

        def scan_level(folders: tuple[str, ...]) -> None:
            found = tables.read(spark, str(by_folders(folders))).where(f"level = '{LEVEL}'")
            found.write.format("noop").mode("overwrite").save()

        def count() -> None:
            found = spark.read.format("wirelake").option("url", http).load().count()
            assert found == counted, found

        def land_log() -> None:
            shutil.rmtree(target, ignore_errors=True)
            assert land.land(spark, land.Options(http, str(target))) == counted

        def scan(rows: DataFrame) -> None:
            rows.select(*whole.split(",")).write.format("noop").mode("overwrite").save()

        cases: dict[str, Callable[[], object]] = {
            "count, memory": lambda: memory(plain).count(),
            "count, log": count,
            "land, Spark's writer": land_memory,
            "land, log": land_log,
            "scan, Spark's files": lambda: scan(spark.read.parquet(str(theirs))),
            "scan, table": lambda: scan(tables.read(spark, str(target))),
        }
        for folders in ((), *FOLDERS):
            cases[f"land, {named(folders)}"] = partial(land_into, folders)
            cases[f"scan of a level, {named(folders)}"] = partial(scan_level, folders)
        best: dict[str, float] = {}
        counted = rows
        tell(f"publishing {rows:,} rows")
        asyncio.run(fill(kobold, http, rows))
        count()  # what is started once is started
        for _ in range(turns):
            for name, case in cases.items():
                tell(name)
                best[name] = min(best.get(name, 1e9), timed(case))
        sizes = {
            OURS: sum(file.size for file in DeltaTable(Storage.of(str(target))).files()),
            WRITER: sum(path.stat().st_size for path in theirs.glob("*.parquet")),
        }
        counted = 2 * rows
        tell("publishing as many again")
        asyncio.run(fill(kobold, http, counted))
        for _ in range(turns):
            for name in ("count, log", "land, log"):
                twice = f"{name}, twice the rows"
                tell(twice)
                best[twice] = min(best.get(twice, 1e9), timed(cases[name]))
    return {
        "machine": machine(),
        "payload": PAYLOAD,
        "rows": rows,
        "seconds": best,
        "bytes": sizes,
    }


def named(folders: tuple[str, ...]) -> str:
    """What folders are called in results."""
    return f"folders {','.join(folders)}" if folders else "no folders"


class Watch(threading.Thread):
    """Looks at a table all the time, and notes when each row is seen first."""

    def __init__(self, place: Path) -> None:
        super().__init__(name="watch", daemon=True)
        self._place = place
        self._over = threading.Event()
        self.seen: dict[int, float] = {}  # the number in a row's payload: when

    def run(self) -> None:
        """Read the files that a new version has; those of a compaction show nothing new."""
        storage = Storage.of(str(self._place))
        while not exists(storage) and not self._over.wait(LOOK):
            pass
        table, version, known = DeltaTable(storage), -1, set[str]()
        while not self._over.wait(LOOK):
            table.refresh()
            if table.version == version:
                continue
            version, new = table.version, {file.path for file in table.files()} - known
            known |= new
            for name in new:
                payloads = pq.read_table(self._place / name, columns=["payload"]).column(0)
                now = time.monotonic()
                for payload in payloads.to_pylist():
                    self.seen.setdefault(int(payload), now)

    def wait_for(self, rows: int) -> None:
        """Wait until so many rows were seen."""
        until = time.monotonic() + PATIENCE
        while len(self.seen) < rows:
            if time.monotonic() > until or not self.is_alive():
                raise EngineError(f"{len(self.seen)} of {rows} rows have come")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()
        self.join()


def latencies(folder: Path, seconds: float, tell: Tell) -> dict[str, float]:
    """Seconds from the start to the first row, and from a publish until its row is seen."""
    found: dict[str, float] = {}
    first_rows = []
    for number, (trigger, arguments) in enumerate(TRIGGERS.items()):
        tell(f"rows that are published while they are landed, {trigger}")
        place = folder / f"watched-{number}"
        command = [sys.executable, "-m", "wirelake", "lake", "land", "--master", "local[2]"]
        watch = Watch(place)
        with (
            broker(folder / f"log-{number}") as (http, kobold),
            wirelake.connect_sync(kobold) as publisher,
        ):
            published = [time.monotonic()]
            publisher.publish("watched", b"0")
            publisher.ping()
            began = time.monotonic()
            watch.start()
            where = ["--url", http, "--table", str(place)]
            try:
                with server([*command, *where, *arguments]):
                    watch.wait_for(1)
                    first_rows.append(watch.seen[0] - began)
                    end = time.monotonic() + seconds
                    while time.monotonic() < end:
                        publisher.publish("watched", b"%d" % len(published))
                        published.append(time.monotonic())
                        time.sleep(PAUSE)
                    watch.wait_for(len(published))
            finally:
                watch.stop()
        taken = sorted(watch.seen[k] - published[k] for k in range(1, len(published)))
        for share in (50, 95):
            name = f"publish to visible row, {trigger}, p{share}"
            found[name] = taken[len(taken) * share // 100]
    return found | {"first row after the start": max(first_rows)}


def commit_costs(folder: Path, counts: tuple[int, ...], tell: Tell) -> dict[str, float]:
    """How long a commit takes (ms, the median) where the table has so many files."""
    costs = {}
    for count in counts:
        tell(f"commits to a table of {count:,} files")
        table = DeltaTable.ensure(Storage.of(str(folder / f"commits-{count}")), ROWS)
        bounds = '"numRecords": 1, "minValues": {"offset": 1}, "maxValues": {"offset": 2}'
        for start in range(0, count, 10_000):
            some = range(start, min(count, start + 10_000))
            table.append([Written(f"{k:032}.parquet", 1, 1000, {}, f"{{{bounds}}}") for k in some])
        taken = []
        for batch in range(COMMITS):
            file = Written(f"new-{batch}.parquet", 1, 1000, {}, f"{{{bounds}}}")
            landed = Landed("bench", batch, "log", {0: batch, 1: batch})
            start_time = time.perf_counter()
            table.append([file], landed)
            taken.append((time.perf_counter() - start_time) * 1000)
        costs[f"commit, {count} files"] = sorted(taken)[COMMITS // 2]
    return costs


def show(console: Console, results: dict[str, Any]) -> None:
    """One table, and what of it is wanted."""
    seconds, rows = results["seconds"], results["rows"]
    shown = Table("", "s", "M rows/s")
    for name, taken in seconds.items():
        count = 2 * rows if name.endswith("twice the rows") else rows
        shown.add_row(name, f"{taken:.1f}", f"{count / taken / 1e6:.2f}")
    console.print(shown)
    for row in rows_of(results):
        wanted = goal("spark", row.name)
        against = wanted.against if wanted else ""
        figure = (
            f"{row.ratio(against):.2f} of {against}" if against else f"{row.ours:.1f} {row.unit}"
        )
        console.print(f"{row.name}: {figure}; wanted {wanted or 'nothing in particular'}")
    console.print(results["machine"])


def rows_of(results: dict[str, Any]) -> list[Result]:
    """The figures for the one table."""
    seconds, rows = results["seconds"], results["rows"]
    made = []
    for what, other in (("count", MEMORY), ("land", WRITER)):
        ours, theirs = seconds[f"{what}, log"], seconds[f"{what}, {other}"]
        made.append(Result(what, "rows/s", {OURS: rows / ours, other: rows / theirs}))
        taken = {OURS: seconds[f"{what}, log, twice the rows"], HALF: ours}
        made.append(Result(f"{what}, twice the rows", "s", taken, less_is_better=True))
    scans = {OURS: rows / seconds["scan, table"], WRITER: rows / seconds["scan, Spark's files"]}
    made.append(Result("scan of the table", "rows/s", scans))
    sizes = {name: size / 2**20 for name, size in results["bytes"].items()}
    made.append(Result("size of the files", "MiB", sizes, less_is_better=True))
    for what in ("land", "scan of a level"):
        taken = {named(folders): seconds[f"{what}, {named(folders)}"] for folders in FOLDERS}
        taken[OURS] = seconds[f"{what}, {named(())}"]
        made.append(Result(f"{what}, beside folders", "s", taken, less_is_better=True))
    for name, cost in results["commits"].items():
        made.append(Result(name, "ms", {OURS: cost}, less_is_better=True))
    for name, cost in results["latencies"].items():
        made.append(Result(name, "s", {OURS: cost}, less_is_better=True))
    return made


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    tell("starting Spark")
    spark = session.start("bench", "local[2]", **{"spark.driver.memory": "2g"})
    try:
        with tempfile.TemporaryDirectory() as folder:
            rows, turns = (QUICK_ROWS, 1) if quick else (4_000_000, 3)
            found = measure(spark, Path(folder), rows, turns, tell)
            files = QUICK_FILES if quick else FILES
            found["commits"] = commit_costs(Path(folder), files, tell)
            spark.stop()  # landing has a Spark of its own
            found["latencies"] = latencies(Path(folder), QUICK_SECONDS if quick else SECONDS, tell)
    finally:
        spark.stop()
    return Outcome(rows_of(found), details=found)


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000, help="of the log (4 million)")
    parser.add_argument("--turns", type=int, default=3, help="of each (3)")
    parser.add_argument("--folder", type=Path, help="where to land (a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    spark = session.start("bench", "local[2]", **{"spark.driver.memory": "2g"})
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            results = measure(spark, Path(folder), options.rows, options.turns, print)
            results["commits"] = commit_costs(Path(folder), FILES, print)
            spark.stop()  # landing has a Spark of its own
            results["latencies"] = latencies(Path(folder), SECONDS, print)
    finally:
        spark.stop()
    show(Console(width=None if sys.stdout.isatty() else 120), results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
