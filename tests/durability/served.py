"""`wirelake serve` as a process that can be killed, stopped, starved and started again.

Its ports stay the same over all its lives, so that clients find it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

HOST = "127.0.0.1"
COMMAND = [sys.executable, "-m", "wirelake", "serve"]
#: What a broker may take to start, in seconds: only a broken one needs more.
PATIENCE = 60.0


class Served:
    """A broker on a data folder; `async with` leaves no process behind."""

    def __init__(
        self, data: Path, settings: str = "", environment: Mapping[str, str] | None = None
    ) -> None:
        self.data = data
        self.environment = dict(environment or {})
        self.said: list[str] = []  # on standard error, in the present life
        self._said_before: list[str] = []
        self._settings = data.with_name(data.name + ".toml")
        self._settings.write_text(settings, encoding="utf-8")
        # A bound socket that never listens keeps a port from others, and not from the broker.
        self._ports = [_bound(), _bound()]
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._heard = asyncio.Condition()

    @property
    def port(self) -> int:
        """Where it listens, for all dialects."""
        return int(self._ports[0].getsockname()[1])

    @property
    def http(self) -> str:
        """Where HTTP listens."""
        return f"http://{HOST}:{self._ports[1].getsockname()[1]}"

    @property
    def pid(self) -> int:
        """The process of the present life."""
        assert self._process is not None
        return self._process.pid

    def url(self, dialect: str, client_id: str = "") -> str:
        """Where a client of a dialect finds it."""
        name = f"{client_id}@" if client_id else ""
        return f"{dialect}://{name}{HOST}:{self.port}"

    async def __aenter__(self) -> Served:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()
        for port in self._ports:
            port.close()

    # Its lives

    async def start(self) -> None:
        """Begin a life, and wait until it can be reached."""
        await self.spawn()
        assert self._process is not None
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            for _ in self._ports:
                line = await self._process.stdout.readline()
                if not line:
                    code = await self._process.wait()
                    raise RuntimeError(f"the broker ended with {code}: {self.said}")

    async def spawn(self) -> None:
        """Begin a life, and wait for nothing."""
        self._said_before += self.said
        self.said = []
        self._process = await asyncio.create_subprocess_exec(
            *COMMAND,
            *("--data", str(self.data), "--config", str(self._settings)),
            *("--listen", f"auto://{HOST}:{self.port}"),
            *("--http", self.http.removeprefix("http://")),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **self.environment},
        )
        assert self._process.stderr is not None
        self._reading = asyncio.create_task(self._listen(self._process.stderr))

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while line := await stream.readline():
            self.said.append(line.decode(errors="replace").rstrip("\n"))
            async with self._heard:
                self._heard.notify_all()

    async def kill(self) -> None:
        """kill -9: nothing is written, nobody is told."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        await self.ended()

    async def stop(self) -> None:
        """Let it finish."""
        self.signal(signal.SIGTERM)
        assert await self.ended() == 0, self.said

    async def ended(self) -> int:
        """Wait for the end of this life; its exit code."""
        if self._process is None:
            return 0
        async with asyncio.timeout(PATIENCE):
            code = await self._process.wait()
            if self._reading is not None:
                await self._reading
        self._reading = None
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    # What it says

    async def says(self, pattern: str) -> str:
        """Wait for a line on standard error in which this is found."""
        async with asyncio.timeout(PATIENCE), self._heard:
            while True:
                for line in self.said:
                    if re.search(pattern, line):
                        return line
                await self._heard.wait()

    @property
    def complaints(self) -> list[str]:
        """The errors among what it said in the present life."""
        return [line for line in self.said if " ERROR " in line]

    @property
    def all_complaints(self) -> list[str]:
        """The errors among what it said in all its lives."""
        return [line for line in (*self._said_before, *self.said) if " ERROR " in line]

    async def ask(self, path: str) -> Any:
        """What HTTP answers, as JSON."""
        return json.loads(await asyncio.to_thread(_get, f"{self.http}{path}"))

    async def log(self) -> list[pa.Table]:
        """The whole log, a table for every partition."""
        partitions = (await self.ask("/v1/log"))["partitions"]
        return [
            await asyncio.to_thread(_read_partition, f"{self.http}/v1/log/{one['partition']}")
            for one in partitions
        ]


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return bytes(answer.read())


def _read_partition(url: str) -> pa.Table:
    with (
        urllib.request.urlopen(url, timeout=PATIENCE) as answer,
        pa.ipc.open_stream(answer) as stream,
    ):
        return stream.read_all()


def _bound() -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((HOST, 0))
    return sock
