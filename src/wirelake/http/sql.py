"""SQL over the latest rows of the log, by DuckDB in a process of its own, for operators.

The process is started for one statement and gets the rows through a pipe, so a statement that
takes too much memory or time takes nothing from the broker. One runs at a time.
"""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import msgspec

from wirelake import console
from wirelake.errors import EngineError, RefusedError
from wirelake.http.log import Selection, find_time, parts
from wirelake.journal.engine import Engine

PROGRAM = Path(console.__file__).parent / "sql_process.py"
#: Rows of each partition that a statement sees, the latest; rows that it answers with.
MOST_READ = 200_000
MOST_ROWS = 1_000
#: How long a statement may take, with the reading of the log (seconds), and its length in bytes.
TIMEOUT = 30.0
MAX_SQL = 16 << 10


def is_there() -> bool:
    """Is DuckDB installed?"""
    return importlib.util.find_spec("duckdb") is not None


class Sql:
    """Runs statements, one at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._turn = asyncio.Lock()

    async def run(self, engine: Engine, statement: str, since: int) -> dict[str, Any]:
        """Run a statement over the rows received at `since` (µs) or later; return its result."""
        if not is_there():
            raise RefusedError("not_found", "DuckDB is not installed: pip install 'wirelake[sql]'")
        if self._turn.locked():
            raise RefusedError("busy", "another statement is being run")
        async with self._turn:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                str(PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                async with asyncio.timeout(TIMEOUT):
                    return await self._talk(process, engine, statement, since)
            except TimeoutError:
                text = f"the statement took more than {TIMEOUT:g} s, and was ended"
                raise RefusedError("timeout", text) from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    async def _talk(
        self, process: asyncio.subprocess.Process, engine: Engine, statement: str, since: int
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        loop = asyncio.get_running_loop()
        wanted = {"sql": statement, "streams": engine.partitions, "rows": MOST_ROWS}
        answer = asyncio.ensure_future(process.stdout.read())
        try:
            process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            pieces = _streams(engine, since)
            while (
                piece := await loop.run_in_executor(self._executor, next, pieces, None)
            ) is not None:
                process.stdin.write(piece)
                await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended early, and its answer says why
        raw = await answer
        await process.wait()
        try:
            told: dict[str, Any] = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            text = "the statement took more memory or time than it may, and was ended"
            raise RefusedError("too_large", text) from None
        if "error" in told:
            raise RefusedError("bad_request", told["error"])
        return told


def _streams(engine: Engine, since: int) -> Iterator[bytes | memoryview]:
    """An Arrow stream for each partition, one after the other."""
    for position in engine.positions():
        start = max(find_time(engine, position, since), position.next - MOST_READ)
        start = max(start, position.first)
        try:
            for pieces in parts(engine, position.partition, start, position.next, Selection()):
                yield from pieces
        except EngineError as error:
            raise RefusedError("busy", error.reason) from None
