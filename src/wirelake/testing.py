"""For tests of programs that use Wirelake: a real broker, and a wire to it that fails on demand.

For tests of dialects there is `check_dialect`: see `wirelake.conformance`.

    with testing.Broker() as broker, testing.Proxy(broker.url("kobold-2")) as proxy:
        with wirelake.connect_sync(proxy.url) as client:
            proxy.to_broker.cut(after=7)
            ...

Both run in threads of their own, so they serve blocking and asynchronous tests alike; in the latter
`async with` keeps the test's event loop running while they start and stop. What is called here has
taken effect when the call returns. Nothing needs pytest.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from os import PathLike
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

import msgspec
import uvloop

from wirelake.client.loop import LoopThread
from wirelake.client.url import parse
from wirelake.config import Listener, Settings
from wirelake.conformance import check_dialect
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError
from wirelake.http.server import HttpServer
from wirelake.journal.engine import Engine
from wirelake.net.server import Server, open_engine

__all__ = ["Broker", "Proxy", "Way", "check_dialect"]

LOOPBACK = "127.0.0.1"

#: What a proxy reads at a time, and what the system holds for it: little, so that a stall is felt.
READ = 16 << 10
RECEIVE_BUFFER = 64 << 10

T = TypeVar("T")


class _Started(ABC):
    """What is started and closed by `with`, or by `async with`."""

    @abstractmethod
    def start(self) -> None:
        """Start; raises what goes wrong."""

    @abstractmethod
    def close(self) -> None:
        """Stop, and release everything."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.close)


class Broker(_Started):
    """A broker with the listeners of its settings, all of them on loopback and at free ports.

    So the configuration of a real one can be used as it is; only a `+unix` listener keeps its path.
    Settings are a `wirelake.config.Settings`, or go by their names: `Broker(request_timeout=1)`.
    It keeps everything in memory, unless it is given a folder; with `http` it has that too.
    """

    def __init__(
        self,
        config: Settings | None = None,
        *,
        data: str | PathLike[str] | None = None,
        http: bool = False,
        **settings: Any,
    ) -> None:
        if data is not None:
            settings["data"] = str(data)
        self.settings = _checked(config or Settings(), settings)
        self.http_url = ""  # where HTTP is, once it was started
        self._in_memory = data is None
        self._with_http = http
        self._http_port = 0
        self._http: HttpServer | None = None
        self.listeners: list[Listener] = []
        self._reserved: list[socket.socket] = []
        self._loop: LoopThread | None = None
        self._server: Server | None = None

    def start(self) -> None:
        """Listen; after `stop` at the same ports, with what is stored in its folder."""
        if self._loop is not None:
            return
        loop = LoopThread("wirelake broker", uvloop.new_event_loop())
        try:
            if not self.listeners:
                self.listeners = [self._place(Listener.parse(url)) for url in self.settings.listen]
            self._server = loop.run(self._open())
        except BaseException:
            loop.close()
            self.close()
            raise
        self._loop = loop

    def stop(self) -> None:
        """Close all connections and listeners; the ports stay reserved."""
        if self._loop is not None and self._server is not None:
            self._loop.run(self._stop(self._server))
            self._loop.close()
            self._loop = None

    def restart(self) -> None:
        """Stop, and start again at the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop for good."""
        self.stop()
        for sock in self._reserved:
            sock.close()
        self._reserved.clear()
        self.listeners = []

    def url(self, dialect: str, *, listener: str = "") -> str:
        """The URL for a dialect or family; `listener="auto"` uses that listener."""
        known = DIALECTS.named(dialect)
        family = known.family if known else dialect
        for wanted in [listener] if listener else [family, "auto"]:
            for found in self.listeners:
                if found.family == wanted:
                    return _url(dialect, found)
        raise ConfigError("listen", f"no listener of this broker takes {dialect}")

    def counters(self) -> Counter[str]:
        """The broker's counters since it was started; missing names are 0."""
        return Counter(self._ask(lambda server: server.node.vitals.counters))

    def state(self) -> dict[str, Any]:
        """The broker's state: `connections`, `subscriptions` and more."""
        return self._ask(lambda server: server.node.state())

    def _ask(self, question: Callable[[Server], dict[str, T]]) -> dict[str, T]:
        server = self._server
        if server is None:
            raise ConfigError("broker", "it was not started")
        if self._loop is None:
            return dict(question(server))
        return self._loop.call(lambda: dict(question(server)))

    async def _open(self) -> Server:
        urls = tuple(str(listener) for listener in self.listeners)
        settings = msgspec.structs.replace(self.settings, listen=urls)
        engine: Engine
        if self._in_memory:
            engine = Engine.in_memory(
                partitions=settings.capture.partitions if self._with_http else 0
            )
        else:
            engine = open_engine(settings, asyncio.get_running_loop())
        try:
            server = Server.configured(settings, engine)
            listeners = await server.start()
            if self._with_http:
                place = f"{LOOPBACK}:{self._http_port}"
                self._http = HttpServer(
                    server.node,
                    place,
                    listeners=listeners,
                    adopt=server.adopt,
                    origins=settings.http_origins,
                    settings=settings,
                )
                self.http_url = await self._http.start()
                self._http_port = urlsplit(self.http_url).port or 0
        except BaseException:
            engine.close()
            raise
        return server

    async def _stop(self, server: Server) -> None:
        if self._http is not None:
            await self._http.stop()
        await server.stop()
        await asyncio.to_thread(server.node.engine.close)

    def _place(self, listener: Listener) -> Listener:
        """The listener on loopback, at a port that is reserved for it."""
        if listener.path:
            return listener
        sock = _bound(0)
        self._reserved.append(sock)
        return replace(listener, host=LOOPBACK, port=sock.getsockname()[1])


def _checked(config: Settings, changes: dict[str, Any]) -> Settings:
    """Change settings, and check them as those of a file are."""
    for name in changes:
        if name not in Settings.__struct_fields__:
            raise ConfigError(name, "there is no such setting")
    try:
        return msgspec.convert(
            msgspec.to_builtins(msgspec.structs.replace(config, **changes)), Settings
        )
    except msgspec.ValidationError as error:
        raise ConfigError("settings", str(error)) from None


def _url(dialect: str, listener: Listener) -> str:
    if listener.path:
        return f"{dialect}+unix://{listener.path}"
    # Certificates for tests are made for this name.
    place = f"localhost:{listener.port}" if listener.tls else f"{listener.host}:{listener.port}"
    return f"{dialect}{'+tls' if listener.tls else ''}://{place}"


def _bound(port: int) -> socket.socket:
    """A socket at a port of loopback, 0 for any; until it listens, others may be bound there too.

    One that is kept bound and never listens holds the port: whoever connects is refused, and the
    system gives the port to nobody who asks for any.
    """
    sock = socket.socket()
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((LOOPBACK, port))
    except BaseException:
        sock.close()
        raise
    return sock


class Way:
    """One direction through a proxy, for all its connections, and the faults to inject."""

    def __init__(self, loop: Callable[[], LoopThread]) -> None:
        self._loop = loop
        self._carried = 0
        self._flowing = asyncio.Event()
        self._make_well()

    def _make_well(self) -> None:
        self._seconds = self._jitter = 0.0
        self._chance = random.Random(0)
        self._size = READ
        self._end: tuple[int, Literal["cut", "reset"]] | None = None
        self._silent = False
        self._flowing.set()

    @property
    def carried(self) -> int:
        """Bytes forwarded so far."""
        return self._carried

    def delay(self, seconds: float, *, jitter: float = 0.0, seed: int = 0) -> None:
        """Wait `seconds` before each write, plus up to `jitter`, which `seed` determines."""

        def change() -> None:
            self._seconds, self._jitter, self._chance = seconds, jitter, random.Random(seed)

        self._loop().call(change)

    def split(self, size: int) -> None:
        """Write at most `size` bytes at a time."""
        if size < 1:
            raise ConfigError("split", "a write has 1 byte or more")
        self._change("_size", size)

    def cut(self, after: int) -> None:
        """Close one connection cleanly, both ways, after `after` more bytes."""
        self._loop().call(lambda: self._end_after(after, "cut"))

    def reset(self, after: int) -> None:
        """Reset one connection after `after` more bytes: both sides get an error."""
        self._loop().call(lambda: self._end_after(after, "reset"))

    def _end_after(self, after: int, how: Literal["cut", "reset"]) -> None:
        self._end = (self._carried + after, how)

    def half_open(self) -> None:
        """Drop all bytes, and the end of connections: the far side receives nothing."""
        self._change("_silent", True)

    def stall(self) -> None:
        """Stop reading, so that TCP makes the sender wait."""
        self._loop().call(self._flowing.clear)

    def resume(self) -> None:
        """Read again."""
        self._loop().call(self._flowing.set)

    def heal(self) -> None:
        """Remove all faults; dropped bytes stay lost."""
        self._loop().call(self._make_well)

    def _change(self, name: str, value: object) -> None:
        self._loop().call(lambda: setattr(self, name, value))

    # For the connections, on the proxy's thread

    async def _wait(self) -> None:
        """Wait for the current delay."""
        await self._flowing.wait()
        if self._seconds or self._jitter:
            await asyncio.sleep(self._seconds + self._chance.uniform(0, self._jitter))
            await self._flowing.wait()

    def _room(self) -> int:
        """Bytes to write at once."""
        return self._size if self._end is None else min(self._size, self._end[0] - self._carried)

    def _fate(self, carried: int) -> Literal["cut", "reset"] | None:
        """Count forwarded bytes; True if the connection ends now."""
        self._carried += carried
        if self._end is None or self._carried < self._end[0]:
            return None
        fate = self._end[1]
        self._end = None
        return fate


class Proxy(_Started):
    """A TCP proxy in front of a broker, whose two ways can be made faulty while it runs.

    Without a fault it passes on bytes, ends and resets as they come. Faults are for connections
    that are there and those to come, and stay until `heal`; only an end by `cut` or `reset` happens
    once.
    """

    def __init__(self, url: str) -> None:
        self._place = parse(url)
        if self._place.path:
            raise ConfigError("url", "a proxy is for TCP, not for a Unix socket")
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        # TLS goes through untouched: the name in the broker's certificate must stay.
        host = "localhost" if self._place.host == "localhost" else LOOPBACK
        self._prefix = f"{parts.scheme}://{user}{at}{host}"
        self.to_broker = Way(self._running)
        self.to_client = Way(self._running)
        self._thread: LoopThread | None = None
        self._reserved: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Task[None], _Connection] = {}
        self._accepted = 0

    @property
    def url(self) -> str:
        """The URL for clients: the broker's, with the proxy's port."""
        return f"{self._prefix}:{self.port}"

    @property
    def port(self) -> int:
        """The port on loopback."""
        if self._reserved is None:
            raise ConfigError("proxy", "it was not started")
        return int(self._reserved.getsockname()[1])

    @property
    def accepted(self) -> int:
        """Connections accepted so far."""
        return self._accepted

    def start(self) -> None:
        """Listen at a free port."""
        if self._thread is None:
            self._reserved = _bound(0)
            self._thread = LoopThread("wirelake proxy", asyncio.new_event_loop())
            self.accept()

    def close(self) -> None:
        """Close all connections, and the listener."""
        if self._thread is not None and self._reserved is not None:
            self.refuse()
            self._thread.close()
            self._thread = None
            self._reserved.close()

    def _running(self) -> LoopThread:
        if self._thread is None:
            raise ConfigError("proxy", "it is not running")
        return self._thread

    # Both ways

    def delay(self, seconds: float, *, jitter: float = 0.0, seed: int = 0) -> None:
        """As `Way.delay`, both ways."""
        self.to_broker.delay(seconds, jitter=jitter, seed=seed)
        self.to_client.delay(seconds, jitter=jitter, seed=seed)

    def split(self, size: int) -> None:
        """As `Way.split`, both ways."""
        self.to_broker.split(size)
        self.to_client.split(size)

    def half_open(self) -> None:
        """As `Way.half_open`, both ways."""
        self.to_broker.half_open()
        self.to_client.half_open()

    def stall(self) -> None:
        """As `Way.stall`, both ways."""
        self.to_broker.stall()
        self.to_client.stall()

    def resume(self) -> None:
        """Read again, both ways."""
        self.to_broker.resume()
        self.to_client.resume()

    def heal(self) -> None:
        """Remove all faults, both ways, and accept new connections."""
        self.to_broker.heal()
        self.to_client.heal()
        self.accept()

    def cut(self) -> None:
        """End every connection now, cleanly both ways."""
        self._running().call(self._cut)

    def _cut(self) -> None:
        for connection in self._connections.values():
            connection.cut()

    def reset(self) -> None:
        """Reset every connection now."""
        self._running().run(self._reset())

    async def _reset(self) -> None:
        for task, connection in self._connections.items():
            connection.harsh = True
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # New connections

    def refuse(self) -> None:
        """Refuse new connections until `accept`; existing ones stay."""
        self._running().run(self._refuse())

    async def _refuse(self) -> None:
        if self._listening is not None and self._listener is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
            self._listener.close()
            self._listening = self._listener = None

    def accept(self) -> None:
        """Accept new connections again."""
        self._running().call(self._accept)

    def _accept(self) -> None:
        if self._listener is None:
            self._listener = _bound(self.port)
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            self._listener.setblocking(False)
            self._listener.listen(1024)
            self._listening = asyncio.create_task(self._listen(self._listener))

    async def _listen(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            client, _ = await loop.sock_accept(listener)
            self._accepted += 1
            connection = _Connection(self.to_broker, self.to_client, client)
            task = asyncio.create_task(connection.run(self._place.host, self._place.port))
            self._connections[task] = connection
            task.add_done_callback(self._connections.pop)


class _Connection:
    """A client's socket, one to the broker, and what is carried between them."""

    def __init__(self, to_broker: Way, to_client: Way, client: socket.socket) -> None:
        self.harsh = False  # ends by a reset
        self._over = False  # was cut: what still comes is read and thrown away
        self._ways = to_broker, to_client
        self._client = client
        self._broker: socket.socket | None = None

    async def run(self, host: str, port: int) -> None:
        """Carry bytes until both sides have hung up."""
        try:
            self._broker = broker = await _dial(host, port)
            for sock in (self._client, broker):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(self._ways[0], self._client, broker))
                both.create_task(self._carry(self._ways[1], broker, self._client))
        except* OSError:
            self.harsh = True  # so both sides learn of it as the proxy did
        finally:
            for end in (self._client, self._broker):
                if end is not None:
                    _hang_up(end, harsh=self.harsh)

    def cut(self) -> None:
        """Tell both sides that nothing follows."""
        self._over = True
        for sock in (self._client, self._broker):
            if sock is not None:
                _say_end(sock)

    async def _carry(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := await self._read(way, source):
                await self._pass_on(way, memoryview(data), sink)
        except OSError:
            if not way._silent:
                raise
        if not way._silent and not self._over:
            _say_end(sink)

    async def _read(self, way: Way, source: socket.socket) -> bytes:
        if not self._over:
            await way._flowing.wait()
        return await asyncio.get_running_loop().sock_recv(source, READ)

    async def _pass_on(self, way: Way, data: memoryview, sink: socket.socket) -> None:
        while data and not self._over:
            await way._wait()
            if way._silent or self._over:
                return
            piece = data[: way._room()]
            fate = way._fate(len(piece))  # before anybody can have seen the piece
            # A sink that is gone is seen, as a reset, by whoever reads from it.
            with contextlib.suppress(OSError):
                await asyncio.get_running_loop().sock_sendall(sink, piece)
            data = data[len(piece) :]
            if fate == "cut":
                self.cut()
            elif fate == "reset":
                raise ConnectionResetError
            if way._size < READ:
                await asyncio.sleep(0)  # let the other side have a chance to read just this


async def _dial(host: str, port: int) -> socket.socket:
    """A connection to the broker, by whichever address of its host takes one."""
    error: OSError = ConnectionRefusedError()
    for family, kind, protocol, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
            await asyncio.get_running_loop().sock_connect(sock, address)
        except OSError as why:
            sock.close()
            error = why
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise error


def _say_end(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it may be gone
        sock.shutdown(socket.SHUT_WR)


def _hang_up(sock: socket.socket, *, harsh: bool) -> None:
    if harsh:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
