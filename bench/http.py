"""Rows a second of the log by HTTP, beside a plain read of the same bytes from the same disk.

A broker with a durable log of 128-byte payloads runs in a process of its own; the client is
pyarrow. Measured are whole partitions as they are stored, the same with a filter that matches one
address in ten, with three columns, and rows that a client publishes as Arrow.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from http.client import HTTPConnection
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import uvloop
from rich.console import Console
from rich.table import Table

from bench.goals import goal
from bench.results import OURS, Outcome, Result, Tell, write_json
from wirelake.broker.node import Node
from wirelake.http.server import HttpServer
from wirelake.journal.engine import Engine

PAYLOAD = b"x" * 128
ADDRESSES = 1000
ROWS_A_REQUEST = 100_000
PLAIN_FILE = "plain file"
CASES = {
    "stored batches": "",
    "one address in ten": "?filter=bench/%2B/0",
    "three columns": "?columns=offset,address,payload",
}


def serve(folder: str, pipe: Connection) -> None:
    """A broker with HTTP, until the pipe says otherwise."""

    async def run() -> None:
        engine = Engine.on_disk(Path(folder), loop=asyncio.get_running_loop())
        node = Node(engine, epoch=time.time() - time.monotonic())
        server = HttpServer(node, "127.0.0.1:0")
        pipe.send(await server.start())
        await asyncio.to_thread(pipe.recv)
        await server.stop()
        engine.close()

    uvloop.run(run())


class Client:
    """What a program that reads the log would do."""

    def __init__(self, url: str) -> None:
        self._port = urlsplit(url).port

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        """A request, and its answer as JSON."""
        connection = HTTPConnection("127.0.0.1", self._port)
        connection.request(method, path, body)
        response = connection.getresponse()
        data = response.read()
        if response.status >= 300:
            sys.exit(f"{method} {path}: {response.status} {data!r}")
        connection.close()
        return json.loads(data)

    def publish(self, rows: int) -> float:
        """Publish rows; the seconds that took."""
        addresses = [f"bench/{n // 10}/{n % 10}" for n in range(ADDRESSES)]
        count = min(rows, ROWS_A_REQUEST)
        batch = pa.RecordBatch.from_pydict(
            {
                "address": [addresses[n % ADDRESSES] for n in range(count)],
                "payload": [PAYLOAD] * count,
            }
        )
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        body = sink.getvalue().to_pybytes()
        begun = time.perf_counter()
        for _ in range(rows // count):
            self.ask("POST", "/v1/publish", body)
        return time.perf_counter() - begun

    def read(self, query: str) -> tuple[int, int]:
        """Read every partition; rows and bytes."""
        rows = size = 0
        for position in self.ask("GET", "/v1/log")["partitions"]:
            connection = HTTPConnection("127.0.0.1", self._port)
            connection.request("GET", f"/v1/log/{position['partition']}{query}")
            response = connection.getresponse()
            with pa.ipc.open_stream(response) as stream:
                for batch in stream:
                    rows += batch.num_rows
                    size += batch.nbytes
            connection.close()
        return rows, size


def read_files(folder: Path) -> int:
    """Read the log's files as they are; the bytes."""
    size = 0
    buffer = bytearray(1 << 20)
    for path in sorted((folder / "journal").iterdir()):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    size += count
    return size


def best(times: int, work: Callable[[], Any]) -> tuple[float, Any]:
    """The shortest of a few runs, and what it gave."""
    found: list[tuple[float, Any]] = []
    for _ in range(times):
        begun = time.perf_counter()
        result = work()
        found.append((time.perf_counter() - begun, result))
    return min(found, key=lambda one: one[0])


def measure(rows: int, times: int) -> list[dict[str, Any]]:
    """Every case: name, rows, bytes, seconds."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(folder, theirs))
        process.start()
        try:
            client = Client(ours.recv())
            seconds = client.publish(rows)
            results.append(
                {"name": "publish", "rows": rows, "bytes": rows * 128, "seconds": seconds}
            )
            seconds, size = best(times, lambda: read_files(Path(folder)))
            results.append({"name": PLAIN_FILE, "rows": rows, "bytes": size, "seconds": seconds})
            for name, query in CASES.items():
                seconds, (read, size) = best(times, lambda query=query: client.read(query))  # type: ignore[misc]  # the default is bound
                results.append(
                    {"name": name, "rows": rows, "sent": read, "bytes": size, "seconds": seconds}
                )
        finally:
            ours.send("stop")
            process.join()
    return results


def section(tell: Tell, *, quick: bool) -> Outcome:
    """For `python -m bench`."""
    tell("publishing, then reading")
    found = measure(100_000, 1) if quick else measure(2_000_000, 3)
    rates = {one["name"]: one["rows"] / one["seconds"] for one in found}
    plain = {"plain read": rates.pop(PLAIN_FILE)}
    return Outcome(
        [
            Result(name, "rows/s", {OURS: rate} | (plain if name in CASES else {}))
            for name, rate in rates.items()
        ],
        details=found,
    )


def show(console: Console, results: list[dict[str, Any]]) -> None:
    """The one table."""
    table = Table(title="the log by HTTP", caption=f"{os.cpu_count()} cores, 128-byte payloads")
    for heading in ("what", "million rows/s", "MB/s"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    for result in results:
        rate = result["rows"] / result["seconds"]
        mark = ""
        if wanted := goal("http", result["name"]):
            mark = " ✓" if rate >= wanted.value else f" ✗ {wanted.value / 1e6:.0f}"
        megabytes = result["bytes"] / result["seconds"] / 1e6
        table.add_row(result["name"], f"{rate / 1e6:.2f}{mark}", f"{megabytes:.0f}")
    console.print(table)


def main() -> None:
    """Parse the arguments, measure, show."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=2_000_000, help="in the log (2 000 000)")
    parser.add_argument("--times", type=int, default=3, help="that each is measured (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    options = parser.parse_args()
    results = measure(options.rows, options.times)
    show(Console(), results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
