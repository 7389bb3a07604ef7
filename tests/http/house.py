"""A broker with HTTP, on loopback and in a thread of its own, and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import uvloop

from wirelake.broker.node import Node
from wirelake.client.loop import LoopThread
from wirelake.config import Settings, TokenSettings, hash_token
from wirelake.http.server import HttpServer
from wirelake.journal.engine import Engine
from wirelake.net.server import Server

T = TypeVar("T")

#: What each of these tokens may do; a token is its own name.
TOKENS = (
    TokenSettings(name="boss", hash=hash_token("boss"), publish=("#",), subscribe=("#",),
                  serve=("#",), store=("#",), admin=True),
    TokenSettings(name="sender", hash=hash_token("sender"), publish=("house/#",)),
    TokenSettings(name="reader", hash=hash_token("reader"), subscribe=("house/#",)),
    TokenSettings(name="keeper", hash=hash_token("keeper"), subscribe=("#",), store=("house/#",)),
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, as JSON."""
        return json.loads(self.body)

    @property
    def table(self) -> pa.Table:
        """The body, as an Arrow stream."""
        with pa.ipc.open_stream(self.body) as stream:
            return stream.read_all()


class House:
    """A broker with HTTP: `with House(folder) as house: house.get("/healthz")`."""

    def __init__(
        self, folder: Path | None, *, engine: Engine | None = None, http: str = "127.0.0.1:0",
        **settings: Any,
    ) -> None:  # fmt: skip
        self._folder = folder
        self._engine = engine
        self._http = http
        self._settings = Settings(listen=("auto://127.0.0.1:0",), **settings)
        self.url = ""

    def __enter__(self) -> Self:
        self.thread = LoopThread("house", uvloop.new_event_loop())
        try:
            self.run(self._start())
        except BaseException:
            self.thread.close()
            raise
        return self

    async def _start(self) -> None:
        capture = self._settings.capture
        self.engine = self._engine or Engine.on_disk(
            self._folder or Path(), loop=asyncio.get_running_loop(), partitions=capture.partitions
        )
        self.server = Server.configured(self._settings, self.engine)
        self.listener = (await self.server.start())[0]
        self.http = HttpServer(
            self.node, self._http, listeners=[self.listener], settings=self._settings
        )
        try:
            self.url = await self.http.start()
        except BaseException:
            await self._stop_server()
            raise

    async def _stop_server(self) -> None:
        await self.server.stop(0.5)
        self.engine.close()

    def __exit__(self, *_: object) -> None:
        self.run(self.http.stop())
        self.run(self._stop_server())
        self.thread.close()

    @property
    def node(self) -> Node:
        """The broker; it lives on the loop's thread."""
        return self.server.node

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the broker's loop."""
        return self.thread.run(asyncio.wait_for(work, 60))

    def call(self, function: Callable[[], T]) -> T:
        """Call this on the broker's thread."""
        return self.thread.call(function)

    def wire(self, dialect: str) -> str:
        """Where a client of a dialect finds the broker."""
        return f"{dialect}://127.0.0.1:{self.listener.port}"

    @property
    def port(self) -> int:
        """Where HTTP is."""
        return urlsplit(self.url).port or 0

    # The client

    def open(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        token: str = "",
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request, and read the head of the answer."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = dict(headers or {})
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, headers)
        return connection, connection.getresponse()

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        token: str = "",
    ) -> Answer:
        """Send a request, and read the whole answer."""
        connection, response = self.open(method, path, body, headers, token)
        try:
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, token: str = "", **headers: str) -> Answer:
        """GET, with headers whose names have underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("GET", path, None, named, token)

    def put(self, path: str, body: bytes = b"", token: str = "", **headers: str) -> Answer:
        """PUT."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("PUT", path, body, named, token)

    def post(self, path: str, body: bytes = b"", token: str = "", **headers: str) -> Answer:
        """POST."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("POST", path, body, named, token)

    def delete(self, path: str, token: str = "", **headers: str) -> Answer:
        """DELETE."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.ask("DELETE", path, None, named, token)


def arrow(batch: pa.RecordBatch | pa.Table, **options: Any) -> bytes:
    """A batch as the body of a publish."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as stream:
        stream.write(batch)
    written: bytes = sink.getvalue().to_pybytes()
    return written


def rows(*messages: tuple[str, bytes], **columns: list[Any]) -> pa.RecordBatch:
    """Rows to publish."""
    return pa.RecordBatch.from_pydict(
        {
            "address": pa.array([address for address, _ in messages], pa.string()),
            "payload": pa.array([payload for _, payload in messages], pa.binary()),
            **columns,
        }
    )
