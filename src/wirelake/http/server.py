"""The HTTP listener: uvicorn on an event loop and a thread of its own, beside the broker's.

So nobody on the wire waits for a request, and what reads the log lets go of the interpreter while
it does.
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

import uvicorn

from wirelake.broker.node import Node
from wirelake.config import Listener, Settings
from wirelake.errors import ConfigError
from wirelake.http.app import Api, application
from wirelake.http.connections import Crowd, HttpConnection, WebSocketConnection
from wirelake.http.gate import Gate
from wirelake.http.ledger import Ledger
from wirelake.http.limits import HttpLimits
from wirelake.http.relay import Relay
from wirelake.http.wire import Adopt

#: How long requests may take to end when the server stops (seconds).
GRACE = 3
#: Connections at a time.
CONNECTIONS = 1024

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
        settings: Settings | None = None,
    ) -> None:
        """`adopt` takes up connections that come by WebSocket, from pages of `origins` too.

        Of the settings, the limits are used: `web`, `guesses`, `limits`, `handshake_timeout`.
        """
        self._node = node
        self._limits = HttpLimits(settings)
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

    def configure(self, settings: Settings) -> None:
        """Put the limits of these settings into force while HTTP runs."""
        self._limits.configure(settings)

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
        ledger = Ledger(self._node.engine, self._limits)
        gate = Gate(self._node, loop)
        api = self._api = Api(gate, ledger, self._listeners, self._adopt, self._limits)
        crowd = Crowd(self._connections, self._limits)
        vitals = self._node.vitals
        crowd.on_refused = lambda address, text: gate.tell(
            lambda: vitals.event("connections_refused", f"{address} (HTTP)", text)
        )
        limits = (self._limits, api.memory)
        tls = self._tls
        config = uvicorn.Config(
            application(api, local=is_local, origins=self._origins),
            loop="uvloop",
            http=partial(HttpConnection, crowd, self._limits),  # type: ignore[arg-type]  # it makes one
            ws=partial(WebSocketConnection, *limits),  # type: ignore[arg-type]  # likewise
            ws_max_size=self._limits.web.websocket_message,
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            h11_max_incomplete_event_size=self._limits.web.head,
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
