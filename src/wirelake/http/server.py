"""The HTTP listener: uvicorn on an event loop and a thread of its own, beside the broker's.

So nobody on the wire waits for a request, and what reads the log lets go of the interpreter while
it does. Clients that stop in the middle of a request, or do not read what they asked for, are cut
off.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import h11
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from wirelake.broker.node import Node
from wirelake.config import Listener
from wirelake.errors import ConfigError
from wirelake.http.app import Api, application
from wirelake.http.exchange import PROTECTION
from wirelake.http.gate import Gate
from wirelake.http.ledger import Ledger
from wirelake.http.relay import Relay
from wirelake.http.wire import Adopt

#: How long a client may take to send the head of a request, and to read anything (seconds).
REQUEST_TIMEOUT = 30.0
READ_TIMEOUT = 60.0
#: How long requests may take to end when the server stops (seconds).
GRACE = 3
MAX_HEAD = 128 << 10
#: A message of a WebSocket has at most this many bytes; a frame of a dialect may span several.
WEBSOCKET_MESSAGE = 1 << 20
#: Connections at a time, and which part of them is kept for `/healthz` while all others are busy.
CONNECTIONS = 1024
SPARE = 1 / 8

log = logging.getLogger("wirelake.http")


class HttpServer:
    """A node by HTTP; started and stopped on the node's event loop."""

    def __init__(
        self,
        node: Node,
        listen: str = "127.0.0.1:7780",
        *,
        tls: ssl.SSLContext | None = None,
        insecure: bool = False,
        connections: int = CONNECTIONS,
        listeners: Sequence[Listener] = (),
        adopt: Adopt | None = None,
        origins: Sequence[str] = (),
    ) -> None:
        """`adopt` takes up connections that come by WebSocket, from pages of `origins` too."""
        self._node = node
        self._adopt = adopt
        self._origins = origins
        self._connections = connections
        self._listeners = listeners  # of the wire, for the console to name
        scheme, _, place = listen.rpartition("://")
        if scheme not in ("", "http", "https"):
            raise ConfigError("http", f"{listen}: this is HOST:PORT, or https://HOST:PORT")
        if scheme == "https" and tls is None:
            raise ConfigError("http", f"{listen} needs tls.cert and tls.key")
        self._host, self._port = _parse(place)
        self._tls = tls if scheme == "https" else None
        self._insecure = insecure
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None
        self._api: Api | None = None
        self.url = ""

    async def start(self) -> str:
        """Listen; the URL where."""
        is_local = _is_local(self._host)
        if not is_local and not self._insecure and self._node.clients.rights_of_strangers.admin:
            raise ConfigError(
                "http",
                f"{self._host} can be reached from other machines and no tokens are configured;"
                " add some (wirelake token) or allow it (--insecure)",
            )
        bound = self._bind()
        loop = asyncio.get_running_loop()
        ledger = Ledger(self._node.engine)
        gate = Gate(self._node, loop)
        self._api = Api(gate, ledger, self._listeners, self._adopt)
        tls = self._tls
        config = uvicorn.Config(
            application(self._api, local=is_local, origins=self._origins),
            loop="uvloop",
            http=partial(_Protocol, _Crowd(self._connections)),  # type: ignore[arg-type]  # it makes one
            ws="websockets-sansio",
            ws_max_size=WEBSOCKET_MESSAGE,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=MAX_HEAD,
            timeout_graceful_shutdown=GRACE,
            ssl_context_factory=None if tls is None else lambda config, make: tls,
        )
        self._server = _Server(config, self._api.relay)
        self._thread = threading.Thread(
            target=self._server.run, args=([bound],), name="wirelake http", daemon=True
        )
        self._thread.start()
        await loop.run_in_executor(None, self._server.ready.wait)
        if not self._server.started:
            raise ConfigError("http", "it could not be started; the log says why")
        host, port = bound.getsockname()[:2]
        self.url = f"http{'s' if tls else ''}://{f'[{host}]' if ':' in host else host}:{port}"
        self._node.listeners = (*map(str, self._listeners), self.url)
        return self.url

    async def stop(self) -> None:
        """Take no more requests, let those that are under way end soon, and let go."""
        if self._server is None or self._thread is None or self._api is None:
            return
        self._server.should_exit = True
        self._server.on_exit = self._api.stop_events
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._thread.join)
        await loop.run_in_executor(None, self._api.close)
        self._server = self._thread = self._api = None

    def _bind(self) -> socket.socket:
        try:
            family = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)[0]
            bound = socket.socket(family[0], socket.SOCK_STREAM)
            try:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(family[4])
                bound.listen(2048)
                bound.setblocking(False)
            except BaseException:
                bound.close()
                raise
        except OSError as error:
            number = error.errno or 0  # a resolver's are negative, and not the system's
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            raise ConfigError("http", f"{self._host}:{self._port}: {reason.lower()}") from None
        return bound


class _Server(uvicorn.Server):
    """Uvicorn that says when it is there, and ends streams that would never end."""

    def __init__(self, config: uvicorn.Config, relay: Relay) -> None:
        super().__init__(config)
        self._relay = relay
        self.ready = threading.Event()
        self.on_exit: Callable[[], object] = bool

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self._relay.loop = asyncio.get_running_loop()
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and let requests end."""
        self.on_exit()
        await super().shutdown(sockets)


class _Connection(h11.Connection):
    """HTTP that hands bodies to the transport as they are: a copy of each would cost as much as all
    else that is done to it."""

    transport: asyncio.Transport

    def send(self, event: Any) -> Any:
        """The bytes of an event that are still to be written."""
        pieces = self.send_with_data_passthrough(event)
        if pieces is None:
            return None
        if type(event) is h11.Data:
            self.transport.writelines(pieces)
            return b""
        return b"".join(pieces)


class _Crowd:
    """All connections: where there are too many, the one that was idle the longest goes.

    A connection is busy from the head of a request to the end of its answer, and idle otherwise.
    While nearly all are busy, every request but that for the health is refused.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: dict[_Protocol, None] = {}  # the one that was idle the longest is first
        self._busy: set[_Protocol] = set()

    @property
    def is_full(self) -> bool:
        """Is there no room for one more request?"""
        return len(self._busy) > self._most * (1 - SPARE)

    def joined(self, connection: _Protocol) -> None:
        """A client has connected."""
        self._idle[connection] = None
        if len(self._idle) + len(self._busy) > self._most:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.transport.abort()

    def changed(self, connection: _Protocol, *, busy: bool) -> None:
        """A connection has become busy, or idle."""
        if busy and connection in self._idle:
            del self._idle[connection]
            self._busy.add(connection)
        elif not busy and connection in self._busy:
            self._busy.discard(connection)
            self._idle[connection] = None

    def left(self, connection: _Protocol) -> None:
        """A connection has ended."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)


class _Protocol(H11Protocol):
    """A connection whose client may not keep us waiting for ever."""

    _head: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _is_websocket = False

    def __init__(self, crowd: _Crowd, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._crowd = crowd

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client is there: the head of a request must follow."""
        super().connection_made(transport)
        self.conn = _Connection(h11.SERVER, MAX_HEAD)
        self.conn.transport = transport
        self._app, self.app = self.app, self._serve
        self._head = self.loop.call_later(REQUEST_TIMEOUT, self._give_up)
        self._crowd.joined(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; the application has no part in it, so its headers come here."""
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"connection", b"close"),
            *PROTECTION,
        ]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=msg.encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event))
        self.transport.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, with a way to cut its answer off."""
        self._crowd.changed(self, busy=True)
        if self._crowd.is_full and scope["raw_path"] != b"/healthz":
            await self._app({**scope, "is_full": True}, receive, send)
            self.transport.close()
            return
        await self._app({**scope, "cut_off": self.transport.abort}, receive, send)

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Let a connection be a WebSocket from now on; it counts until it ends."""
        if self._crowd.is_full:
            self.send_400_response("too many requests are under way (http_connections)")
            return
        self._forget_head()
        self._is_websocket = True
        self._crowd.changed(self, busy=True)
        super().handle_websocket_upgrade(event)
        protocol: Any = self.transport.get_protocol()
        lost = protocol.connection_lost

        def left(exc: Exception | None) -> None:
            self._crowd.left(self)
            lost(exc)

        protocol.connection_lost = left

    def on_response_complete(self) -> None:
        """An answer has been written; another request may follow."""
        self._crowd.changed(self, busy=False)
        super().on_response_complete()

    def data_received(self, data: bytes) -> None:
        """Bytes have come: a whole head, or a part of one."""
        super().data_received(data)
        if self._is_websocket:
            return
        if self._is_busy():
            self._forget_head()
        elif self._head is None:
            self._head = self.loop.call_later(REQUEST_TIMEOUT, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._crowd.left(self)
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(READ_TIMEOUT, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()

    def _is_busy(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request
        return cycle is not None and not cycle.response_complete

    def _give_up(self) -> None:
        self._head = None
        if not self._is_busy():
            self.transport.close()

    def _forget_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


def _parse(listen: str) -> tuple[str, int]:
    """A host and a port, from `127.0.0.1:7780` or `[::1]:7780`."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError("http", f"{listen}: this is HOST:PORT")
    return host, int(port)


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
