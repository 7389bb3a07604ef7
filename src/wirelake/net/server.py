"""Listeners: where the broker can be reached, the clock that drives it, and how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
import stat
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from wirelake.broker.local import LocalSession
from wirelake.broker.node import Node
from wirelake.config import Listener, QueueSettings, Settings
from wirelake.dialects import AUTO, DIALECTS
from wirelake.dialects.codec import clashes
from wirelake.errors import ConfigError, RefusedError
from wirelake.journal.engine import Engine
from wirelake.journal.retention import Rule
from wirelake.message import Limits
from wirelake.net.access import Access, check_filters, load_certificate, loses, tls_context
from wirelake.net.connection import Connection, Hub

__all__ = ["Listener", "Server"]

#: How often the node's clock ticks, and silent connections are looked for (seconds).
TICK = 0.05
SWEEP = 1.0

#: What was written last may take so long to go out when the broker stops (seconds).
GRACE = 9.0

BACKLOG = 4096

log = logging.getLogger("wirelake.net")


def open_engine(settings: Settings, loop: asyncio.AbstractEventLoop) -> Engine:
    """The engine on the disk, as the settings want it."""
    capture = settings.capture
    return Engine.on_disk(
        Path(settings.data),
        loop=loop,
        capture=capture.enabled,
        partitions=capture.partitions,
        compression=capture.compression,
        segment_bytes=capture.segment,
        retention=_retention(settings),
    )


def _retention(settings: Settings) -> list[Rule]:
    return [Rule(rule.filter, rule.age, rule.bytes) for rule in settings.capture.retention]


class PortTakenError(ConfigError):
    """Somebody else listens at a port."""


class Server:
    """A node on its listeners."""

    def __init__(self, node: Node, listeners: list[Listener], *, patience: float = 30.0) -> None:
        self.node = node
        self.listeners = listeners
        self._hub = Hub(node)
        self._patience = patience
        #: A listener whose port is taken is left out with a warning, unless that leaves none.
        self.may_lack_ports = False
        self.tls: ssl.SSLContext | None = None  # of the settings, kept up to date
        self._servers: list[asyncio.Server] = []
        self._socket_files: list[tuple[Path, int]] = []
        self._clock: asyncio.Task[None] | None = None
        self._swept = 0.0
        self._queues: tuple[QueueSettings, ...] = ()  # of the settings
        node.engine.listeners.append(self._partition_changed)

    @classmethod
    def configured(cls, settings: Settings, engine: Engine | None = None) -> Server:
        """A new node, as the settings want it; without an engine nothing survives it."""
        now = time.monotonic()
        node = Node(engine or Engine.in_memory(), epoch=time.time() - now, now=now)
        server = cls(node, settings.listeners)
        server.may_lack_ports = settings.has_default_listeners
        server.configure(settings)
        return server

    def configure(self, settings: Settings) -> None:
        """Put settings into force, at the start or while running; a wrong one changes nothing.

        Listeners stay as they are. A client whose rights have become less is disconnected.
        """
        settings.check_exposure(self.listeners)
        check_filters("flow.policies", list(settings.flow.policies))
        check_filters("capture.exclude", settings.capture.exclude)
        check_filters("capture.retention", [rule.filter for rule in settings.capture.retention])
        access = Access(settings.tokens)
        if settings.tls is not None:
            context = tls_context(settings.tls)
            if self.tls is None:
                self.tls = context
            else:  # the listeners have this one; new connections see the new certificate
                load_certificate(self.tls, settings.tls)
                if (context.verify_mode, context.get_ca_certs()) != (
                    self.tls.verify_mode,
                    self.tls.get_ca_certs(),
                ):
                    log.warning("tls: who signs client certificates changes with a restart only")
        elif any(listener.tls for listener in self.listeners):
            raise ConfigError("tls", "a +tls listener needs tls.cert and tls.key")
        self._patience = settings.handshake_timeout
        self._hub.descriptors.share_out(settings.http_connections if settings.http else 0)
        node, limits, flow = self.node, settings.limits, settings.flow
        node.limits = Limits(
            message=limits.message, headers=limits.headers, sequence=limits.sequence
        )
        node.quotas.change(**msgspec.structs.asdict(settings.quotas))
        node.limits_of_strangers = node.limits
        if settings.tokens:
            node.limits_of_strangers = replace(
                node.limits,
                message=min(limits.message, limits.stranger_frame),
                sequence=min(limits.sequence, limits.stranger_frame),
            )
        hub = self._hub
        hub.unfinished.most = limits.unfinished
        hub.min_rate = limits.min_rate
        hub.peers.most, hub.peers.per_peer = limits.connections, limits.connections_per_peer
        node.flow.outbox = flow.outbox
        node.flow.patience = flow.patience
        node.flow.window = flow.window
        node.flow.policies = dict(flow.policies)
        node.clients.reserve = settings.identity.reserve
        node.clients.max_reserved = settings.identity.max_reserved
        node.clients.guesses.settings = settings.guesses
        # Two of the largest messages must fit, or nobody could ever be sent one.
        node.flow.budget.most = max(flow.total, 2 * limits.message)
        node.capture.exclude = settings.capture.exclude
        node.capture.backlog = settings.capture.backlog
        node.engine.retain(_retention(settings))
        self._queues = settings.queues
        for queue in settings.queues:
            self._declare(queue)
        node.services.timeout = settings.request_timeout
        node.router.prepare_encoders(os.urandom(8), split=settings.mfp.oversize == "split")
        self._admit(access)

    def _partition_changed(self, partition: int, is_here: bool) -> None:
        """A partition was taken up: the queues of the settings that belong to it are made."""
        for queue in self._queues if is_here else ():
            if self.node.engine.home(queue.name) == partition:
                self._declare(queue)

    def _declare(self, queue: QueueSettings) -> None:
        engine = self.node.engine
        if engine.is_shared and not engine.is_here(engine.home(queue.name)):
            return  # its owner makes it
        try:
            self.node.queues.declare(queue)
        except RefusedError as error:
            raise ConfigError(f"queues.{queue.name}", error.text) from None

    def _admit(self, access: Access) -> None:
        """Let these rights be in force, for the clients that are here too."""
        node = self.node
        node.clients.rights_of_token = access.of_token
        node.clients.rights_of_strangers = access.strangers
        node.clients.current_rights = access.succeeding
        node.clients.all_rights = access.all
        self._hub.rights_of_certificate = access.of_certificate
        for connection in list(self._hub.connections):
            session = connection.session
            if session is None or session.closed:
                continue
            rights = access.of_session(session, connection.certificate)
            if rights is None or loses(session.rights, rights):
                log.info("%s: disconnected: its rights have changed", connection.peer)
                connection.end("its rights have changed")
            else:
                session.rights = rights
        for local in list(node.sessions):
            if isinstance(local, LocalSession):
                rights = access.succeeding(local.rights)
                if rights is None or loses(local.rights, rights):
                    log.info("%s: ended: its rights have changed", local.link.peer)
                    local.revoke()
                else:
                    local.rights = rights
        for memory in node.memories.values():
            memory.rights_changed(node.vitals.now)
        node.topics.forget_all()

    async def start(self) -> list[Listener]:
        """Listen; the listeners as they are, with the ports that were given out."""
        opened: list[Listener] = []
        taken: list[ConfigError] = []
        try:
            for listener in self.listeners:
                try:
                    opened += await self._open(listener)
                except PortTakenError as error:
                    if not self.may_lack_ports:
                        raise
                    taken.append(error)
                    continue
                if listener.family == AUTO:
                    _tell_clashes(listener)
            if taken and not opened:
                raise taken[0]
            for each in taken:
                self.node.vitals.event("port_taken", "the broker", str(each))
        except BaseException:
            self._stop_listening()
            raise
        self._clock = asyncio.create_task(self._tick())
        return opened

    async def adopt(self, sock: socket.socket, family: str | None, host: str, peer: str) -> None:
        """Take up a connection that came another way: a client at `host`, shown as `peer`."""
        connection = partial(Connection, self._hub, family, (host, peer))
        sock.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(connection, sock)

    async def _open(self, listener: Listener) -> list[Listener]:
        loop = asyncio.get_running_loop()
        connection = partial(
            Connection, self._hub, None if listener.family == "auto" else listener.family
        )
        try:
            if listener.path:
                sock = self._bind(Path(listener.path))
                self._servers.append(
                    await loop.create_unix_server(connection, sock=sock, backlog=BACKLOG)
                )
                return [listener]
            server = await loop.create_server(
                connection,
                listener.host,
                listener.port,
                backlog=BACKLOG,
                ssl=self._context_for(listener),
                ssl_handshake_timeout=self._patience if listener.tls else None,
                ssl_shutdown_timeout=5.0 if listener.tls else None,
            )
        except OSError as error:
            number = error.errno or 0  # a resolver's are negative, and not the system's
            reason = os.strerror(number) if number > 0 else error.strerror or str(error)
            kind = PortTakenError if number == errno.EADDRINUSE else ConfigError
            raise kind("listen", f"{listener}: {reason.lower()}") from None
        self._servers.append(server)
        names = [bound.getsockname() for bound in server.sockets]
        return [replace(listener, host=name[0], port=name[1]) for name in names]

    def _context_for(self, listener: Listener) -> ssl.SSLContext | None:
        if listener.tls and self.tls is None:
            raise ConfigError("tls", f"{listener} needs tls.cert and tls.key")
        return self.tls if listener.tls else None

    def _bind(self, path: Path) -> socket.socket:
        """A socket at this path; a file that a dead process left there is replaced."""
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISSOCK(path.stat().st_mode):
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                    probe.setblocking(False)
                    with contextlib.suppress(ConnectionRefusedError):
                        probe.connect(str(path))
                        raise ConfigError("listen", f"{path}: somebody listens there already")
                path.unlink()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.bind(str(path))
        except BaseException:
            sock.close()
            raise
        self._socket_files.append((path, path.stat().st_ino))
        return sock

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            now = time.monotonic()
            try:
                self.node.tick(now, time.time() - now)
                self._sweep(now)
            except Exception:
                log.exception("the clock missed a tick")  # and must not stop for that

    def _sweep(self, now: float) -> None:
        """Look, now and then, for connections that keep us waiting."""
        if now - self._swept >= min(SWEEP, self._patience / 4):
            self._swept = now
            self._hub.descriptors.check(now)
            in_transit = 0
            for connection in list(self._hub.connections):
                connection.check(now, self._patience)
                in_transit += connection.in_transit
            self.node.flow.budget.look(in_transit)

    def _stop_listening(self) -> None:
        for server in self._servers:
            server.close()
        for path, inode in self._socket_files:
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_ino == inode:  # else it is somebody else's by now
                    path.unlink()
        self._servers.clear()
        self._socket_files.clear()

    async def stop(self, grace: float = GRACE) -> None:
        """Accept nobody any more, say goodbye, let what was written go out, then hang up."""
        self._stop_listening()
        self.node.close()
        for connection in list(self._hub.connections):
            connection.close()
        deadline = time.monotonic() + grace
        while self._hub.connections and time.monotonic() < deadline:
            self._hub.emptied.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hub.emptied.wait(), TICK)
            for connection in list(self._hub.connections):
                connection.check(time.monotonic(), self._patience)
        if self._clock is not None:
            self._clock.cancel()
        self.abort()
        await asyncio.sleep(0)  # connection_lost is called from the loop

    def abort(self) -> None:
        """Hang up on everybody now."""
        if self._hub.connections:
            log.warning("%d connections were cut off", len(self._hub.connections))
        for connection in list(self._hub.connections):
            connection.abort()


def _tell_clashes(listener: Listener) -> None:
    """Warn of dialects that a listener cannot tell from others."""
    for name in DIALECTS:
        if others := clashes(name):
            text = "%s does not take %s: %s begins alike; it needs a listener of its own"
            log.warning(text, listener, name, others[0])
