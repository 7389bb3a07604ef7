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
from wirelake.http.limits import HttpLimits
from wirelake.http.log import Selection, find_time, parts
from wirelake.journal.engine import Engine

PROGRAM = Path(console.__file__).parent / "sql_process.py"
#: Rows that a statement answers with.
MOST_ROWS = 1_000
#: The length of a statement in bytes.
MAX_SQL = 16 << 10
#: Bytes of the answer that are read at once.
PIECE = 64 << 10


def is_there() -> bool:
    """Is DuckDB installed?"""
    return importlib.util.find_spec("duckdb") is not None


class Sql:
    """Runs statements, one at a time, within `web.sql_time`, `web.sql_memory` and others."""

    def __init__(self, executor: Executor, limits: HttpLimits) -> None:
        self._executor = executor
        self._limits = limits
        self._turn = asyncio.Lock()

    async def run(self, engine: Engine, statement: str, since: int) -> dict[str, Any]:
        """Run a statement over the rows received at `since` (µs) or later; return its result."""
        if not is_there():
            raise RefusedError("not_found", "DuckDB is not installed: pip install 'wirelake[sql]'")
        if self._turn.locked():
            raise RefusedError("busy", "another statement is being run")
        timeout = self._limits.web.sql_time
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
                async with asyncio.timeout(timeout):
                    return await self._talk(process, engine, statement, since)
            except TimeoutError:
                text = f"the statement took more than {timeout:g} s (web.sql_time), and was ended"
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
        web = self._limits.web
        wanted = {
            "sql": statement,
            "streams": engine.partitions,
            "rows": MOST_ROWS,
            "seconds": int(web.sql_time) + 1,
            "memory": web.sql_memory,
        }
        answer = asyncio.ensure_future(_read(process.stdout, web.sql_answer))
        try:
            process.stdin.write(msgspec.json.encode(wanted) + b"\n")
            pieces = _streams(engine, since, web.sql_rows)
            while (
                not answer.done()
                and (piece := await loop.run_in_executor(self._executor, next, pieces, None))
                is not None
            ):
                process.stdin.write(piece)
                await process.stdin.drain()
            process.stdin.close()
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has ended early, and its answer says why
        except BaseException:
            answer.cancel()
            raise
        raw = await answer
        if len(raw) > web.sql_answer:
            text = f"the answer has more than {web.sql_answer} bytes (web.sql_answer)"
            raise RefusedError("too_large", text)
        await process.wait()
        try:
            told: dict[str, Any] = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            text = "the statement took more memory (web.sql_memory) or time than it may"
            raise RefusedError("too_large", text) from None
        if "error" in told:
            raise RefusedError("bad_request", told["error"])
        return told


async def _read(pipe: asyncio.StreamReader, most: int) -> bytes:
    """Read to the end, or to some bytes beyond the maximum."""
    parts: list[bytes] = []
    size = 0
    while size <= most and (part := await pipe.read(PIECE)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _streams(engine: Engine, since: int, most: int) -> Iterator[bytes | memoryview]:
    """An Arrow stream for each partition, one after the other."""
    for position in engine.positions():
        start = max(find_time(engine, position, since), position.next - most)
        start = max(start, position.first)
        try:
            for pieces in parts(engine, position.partition, start, position.next, Selection()):
                yield from pieces
        except EngineError as error:
            raise RefusedError("busy", error.reason) from None
