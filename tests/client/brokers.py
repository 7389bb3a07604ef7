"""What a test of clients talks to: a broker in its own process, through a wire that can be cut."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

from wirelake.broker.node import Node


class Broker:
    """A node and the port it listens at."""

    def __init__(self, node: Node, port: int) -> None:
        self.node = node
        self.port = port

    def url(self, dialect: str) -> str:
        """Where a client of a dialect finds it."""
        return f"{dialect}://127.0.0.1:{self.port}"


class Proxy:
    """A TCP proxy: passes bytes on, until it is cut; refuses callers while it is down."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._down = False
        self._flowing = asyncio.Event()
        self._flowing.set()
        self.calls = 0
        self.port = 0

    async def start(self, tls: ssl.SSLContext | None = None, path: Path | None = None) -> None:
        """Listen at a free port, perhaps by TLS, or at a Unix socket."""
        if path is not None:
            self._server = await asyncio.start_unix_server(self._accept, path)
            return
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.calls += 1
        if self._down:
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, far_writer}
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._pass_on(source, sink, far_reader))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, far: asyncio.StreamReader
    ) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if source is far:
                    await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    def hold(self) -> None:
        """Let nothing of the broker through, until `let_go`, or until all connections are cut."""
        self._flowing.clear()

    def let_go(self) -> None:
        """Let through at once what was held."""
        self._flowing.set()

    def cut(self, *, down: bool = False) -> None:
        """Break all connections; with `down`, refuse new ones until `mend`."""
        self._down = down
        self._flowing.set()
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    def mend(self) -> None:
        """Take callers again."""
        self._down = False

    async def stop(self) -> None:
        """Hang up everywhere."""
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)
