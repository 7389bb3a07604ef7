"""One socket: bytes to its session and back, with one read buffer for all connections.

A read is processed before the next one begins, so all connections of a process read into the same
buffer; what a session leaves over is copied out, usually a few bytes, and put in front of the next
read. Only a connection in the middle of a large frame has a buffer of its own, which grows with
what has come and not with what was announced. An idle connection has none. The event loop would
read up to 32 times from a client that floods us before it looks at another; after a few reads that
filled the buffer such a client gives way.

A connection ends in steps: what was written goes out, then the client is told that nothing follows,
and what it still sends is read and thrown away for a moment. Closed at once, with bytes unread, the
system would reset the connection, and the client might never see our last answer.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from wirelake.broker.budget import OVERHEAD
from wirelake.broker.peers import Peers
from wirelake.broker.session import begin_session
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import detect
from wirelake.errors import ProtocolError
from wirelake.net.descriptors import Descriptors

if TYPE_CHECKING:
    from collections.abc import Callable

    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights
    from wirelake.broker.session import Session

READ = 256 << 10
#: A client that fills the buffer so often in a row lets the others go first.
FULL_READS = 4

#: What the transport may hold of what is written, and the largest part that it gets at once. The
#: rest waits in the connection's own outbox, where every piece counts until all of it has gone.
TRANSPORT = 256 << 10
PART = 512 << 10

NOTHING = memoryview(b"")

#: Bytes of frames that are not complete, of all connections.
UNFINISHED = 256 << 20
#: The shortest time between two log lines about refused connections (seconds).
TELL_EVERY = 10.0

#: How long a client may go on sending, unread, after we have closed our side (seconds).
LINGER = 0.5
#: The timeout for flushing pending output before a connection is closed (seconds).
FLUSH = 10.0

log = logging.getLogger("wirelake.net")


class Hub:
    """What the connections of a server share: the node, the buffer they read into, each other."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.peers = Peers()
        self.unfinished = Unfinished(node)
        self.min_rate = 0
        self._refused = 0  # connections, since operators were last told
        self._told = 0.0
        self.buffer = memoryview(bytearray(READ))
        self.connections: set[Connection] = set()
        self.emptied = asyncio.Event()  # set when the last of them has gone
        self.descriptors = Descriptors(
            lambda text: node.vitals.event("descriptors", "the system", text)
        )
        self.rights_of_certificate: Callable[[str], Rights | None] = lambda name: None

    def refuse(self, peer: str, limit: str, now: float) -> None:
        """Count a connection that was refused, and tell operators now and then."""
        self.node.vitals.counters["refused_connections"] += 1
        self._refused += 1
        if now - self._told >= TELL_EVERY:
            text = f"{limit} allows no more; {self._refused} refused since the last time"
            self.node.vitals.event("connections_refused", peer, text)
            self._refused, self._told = 0, now


class Unfinished:
    """The bytes that connections hold of frames which are not complete, against a limit.

    Where they exceed it, those connections are closed that have held the most for the longest.
    """

    def __init__(self, node: Node) -> None:
        self.most = UNFINISHED
        self._node = node
        self._held = 0
        self._by: dict[Connection, int] = {}

    def hold(self, connection: Connection, size: int, now: float) -> None:
        """Note how many bytes of unfinished frames a connection holds now."""
        self._held += size - self._by.pop(connection, 0)
        if size:
            self._by[connection] = size
            while self._held > self.most:
                self._close_one(now)

    def _close_one(self, now: float) -> None:
        worst = max(self._by, key=lambda one: self._by[one] * (now - one.since + 0.001))
        size = self._by[worst]
        self._held -= self._by.pop(worst)
        self._node.vitals.counters["unfinished_closed"] += 1
        text = f"closed with {size} bytes of a frame, as limits.unfinished is {self.most} bytes"
        self._node.vitals.event("unfinished_frames", worst.peer, text)
        worst.end("too much is unfinished")


class Connection(asyncio.BufferedProtocol):
    """A link between a socket and a session; the session exists once the dialect is known."""

    __slots__ = (
        "_counts_for",
        "_ended",
        "_family",
        "_filled",
        "_full_reads",
        "_heard",
        "_hub",
        "_large",
        "_need",
        "_opened",
        "_origin",
        "_outbox",
        "_paused",
        "_queued",
        "_rest",
        "_sent",
        "_soon",
        "_stalled",
        "_transport",
        "_written",
        "certificate",
        "peer",
        "session",
        "since",
    )

    def __init__(self, hub: Hub, family: str | None, origin: tuple[str, str] | None = None) -> None:
        """`origin` is the host and the name of a client that came another way than by a socket."""
        self._hub = hub
        self._origin = origin
        self._family = family
        self._transport: asyncio.Transport
        self._rest: bytearray | None = None  # what is left over of earlier reads
        self._filled = 0  # bytes of it that are there
        self._need = 0  # bytes that must be there before the session can do more
        self._large = False  # the next bytes are read into `_rest` itself
        self._full_reads = 0
        self._heard = 0.0
        self._opened = 0.0
        self.since = 0.0  # when the frame began that is not complete
        self._counts_for = ""  # the address among whose strangers this one counts
        self._paused = False
        self._outbox: deque[bytes | memoryview] | None = None  # what the transport has no room for
        self._queued = 0  # bytes of it
        self._sent = 0  # bytes of the first piece that the transport has
        self._stalled = False  # the transport takes no more
        self._written = 0  # bytes in all
        self._soon = False  # `_read_on` will be called
        self._ended: float | None = None  # since when nothing more is said or listened to
        self.session: Session | None = None
        self.certificate = ""  # the name in it, if the client has shown one
        self.peer = ""

    # From the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client is there."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        host, self.peer = self._origin or (_host(self._transport), _name(self._transport))
        self.certificate = _common_name(self._transport)
        self._transport.set_write_buffer_limits(high=TRANSPORT)
        self._heard = self._opened = self.since = time.monotonic()
        peers = self._hub.peers
        if self._hub.descriptors.admit(len(self._hub.connections), self._heard):
            limit, self._counts_for = peers.admit(host)
        else:
            limit = "the system's limit of open files"
        if limit:
            self._ended = self._heard
            self._hub.refuse(self.peer, limit, self._heard)
            self._transport.abort()
            return
        self._hub.connections.add(self)
        log.debug("%s: connected", self.peer)
        spoken = DIALECTS.of_family(self._family) if self._family is not None else []
        if len(spoken) == 1 and spoken[0].begins_at_once:
            self._begin(spoken[0].name, self._heard)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go: behind what is left over."""
        rest, filled = self._rest, self._filled
        if rest is None:
            return self._hub.buffer
        if not self._large:
            self._hub.buffer[:filled] = rest
            return self._hub.buffer[filled:]
        if len(rest) == filled:
            size = max(READ, 2 * filled)
            size = min(size, self._need) if self._need > filled else size
            self._hub.unfinished.hold(self, size, time.monotonic())
            if self._ended is not None:  # there is no room for it
                return self._hub.buffer
            self._rest = bytearray(size)
            self._rest[:filled] = rest
            rest = self._rest
        return memoryview(rest)[filled:]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        if self._ended is not None:
            return
        self._heard = now = time.monotonic()
        self._hub.node.vitals.counters["bytes_in"] += nbytes
        total = self._filled + nbytes
        if self._rest is None or not self._large:
            self._take(self._hub.buffer[:total], now)
            self._full_reads = self._full_reads + 1 if total == READ else 0
            if self._full_reads == FULL_READS:
                self._give_way()
            return
        self._filled = total
        if total >= self._need:
            self._take(memoryview(self._rest)[:total], now)
        elif self.session is not None:
            self.session.last_heard = now

    def _give_way(self) -> None:
        """Read on in the next turn of the event loop."""
        self._full_reads = 0
        if self._ended is None and not self._paused:
            self._transport.pause_reading()
            self._read_on_soon()

    def _read_on_soon(self) -> None:
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        """Give the session what it left over, then read again, unless it must wait."""
        self._soon = False
        if self._is_held():
            return
        if self.session is not None and (self._rest is None or self._filled >= self._need):
            rest = memoryview(self._rest)[: self._filled] if self._rest is not None else NOTHING
            self._heard = now = time.monotonic()
            self._take(rest, now)
        if not self._is_held():
            self._transport.resume_reading()

    def _is_held(self) -> bool:
        """Is nothing to be read now?"""
        return self._ended is not None or self._paused or self._soon

    def _take(self, data: memoryview, now: float) -> None:
        session = self.session or self._greet(data, now)
        if session is None:
            self._keep(data, 0, 0, now)
        else:
            used = session.receive(data, now)
            self._hub.node.traffic.deliveries.add(time.monotonic() - now)
            self._keep(data, used, 0 if self._is_held() else session.scanner.need, now)

    def _keep(self, data: memoryview, used: int, need: int, now: float) -> None:
        """Hold on to what was not used of these bytes."""
        filled = len(data) - used
        if not filled or self._ended is not None:
            if self._rest is not None:
                self._forget_rest()
            return
        if used or self._rest is None:
            self.since = now
        large = need > READ or filled > READ // 2
        if used or not (large and self._large):  # else it lies where it should
            self._rest = bytearray(data[used:])
        self._filled, self._need, self._large = filled, need, large
        assert self._rest is not None
        self._hub.unfinished.hold(self, len(self._rest), now)

    def _forget_rest(self) -> None:
        """Drop the bytes that were left over."""
        self._rest, self._filled, self._need, self._large = None, 0, 0, False
        self._hub.unfinished.hold(self, 0, 0.0)

    def _greet(self, data: memoryview, now: float) -> Session | None:
        """Find out which dialect this is."""
        node = self._hub.node
        try:
            dialect = detect(data, self._family)
        except ProtocolError as error:
            node.vitals.counters["protocol_errors"] += 1
            node.traffic.fault(self.peer, error, data, error.offset, secret=True)
            log.warning("%s: %s", self.peer, error)
            self.write(error.answer)
            self.close()
            return None
        if dialect is not None:
            self._begin(dialect, now)
        return self.session

    def _begin(self, dialect: str, now: float) -> None:
        """Begin the session, with the rights of the client's certificate if it has shown one."""
        node = self._hub.node
        try:
            self.session = begin_session(node, self, dialect, now)
        except Exception as error:
            if not DIALECTS[dialect].is_foreign:
                raise
            text = f"{dialect}: {type(error).__name__}: {error}"
            node.vitals.counters["dialect_failures"] += 1
            node.vitals.event("dialect_failed", self.peer, text)
            log.error("%s: the dialect cannot begin: %s", self.peer, text, exc_info=error)
            self.close()
            return
        if self.certificate:
            self.session.token = f"certificate:{self.certificate}"
            rights = self._hub.rights_of_certificate(self.certificate)
            self.session.rights = rights or node.clients.rights_of_strangers
            if rights is not None:
                self.session.authenticated()

    def receive_again(self) -> None:
        """Give the session the bytes that it left over once more."""
        if self._rest is not None:
            self._take(memoryview(self._rest)[: self._filled], time.monotonic())

    def eof_received(self) -> bool:
        """The client sends no more: what it sent is done and answered, then we close.

        It may have closed altogether, which looks the same from here, so it is sent nothing new.
        """
        if self._rest is not None:
            self._hub.node.vitals.counters["torn_frames"] += 1
            log.info("%s: hung up inside a frame, after %d bytes of it", self.peer, self._filled)
        self._leave("closed by the client")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._leave(str(exc) if exc else "closed by the client")
        self._empty()
        if self in self._hub.connections:
            self._hub.peers.count -= 1
            self.authenticated()
        self._hub.connections.discard(self)
        if not self._hub.connections:
            self._hub.emptied.set()

    def _leave(self, reason: str) -> None:
        if self._ended is None:
            self._ended = time.monotonic()
            log.debug("%s: %s", self.peer, reason)
        self._forget_rest()
        if self.session is not None:
            self.session.lost(reason)

    def pause_writing(self) -> None:
        """The transport takes no more."""
        self._stalled = True

    def resume_writing(self) -> None:
        """The transport takes more."""
        self._stalled = False
        self._pump()
        flow = self._hub.node.flow
        if self.session is not None and self.session.outgoing <= flow.limit // 2:
            flow.drained(self.session, time.monotonic())
        flow.relieve()

    def _pump(self) -> None:
        """Hand to the transport what it has room for.

        A large piece goes in parts. The last ones are copies, so that the piece is let go when the
        transport has them, and not only when the client has read them.
        """
        while self._outbox and not self._stalled:
            piece = self._outbox[0]
            left = len(piece) - self._sent
            if left > PART:
                part = memoryview(piece)[self._sent : self._sent + PART]
                self._sent += PART
                self._transport.write(part if left > 3 * PART else bytes(part))
                continue
            self._outbox.popleft()
            self._queued -= len(piece) + OVERHEAD
            self._hub.node.flow.budget.release(piece)
            if self._sent:
                piece = bytes(memoryview(piece)[self._sent :])
                self._sent = 0
            self._transport.write(piece)
        if self._outbox is not None and not self._outbox:
            self._empty()
            if self._ended is not None:
                self._finish()

    def _empty(self) -> None:
        """Drop the pending output."""
        budget = self._hub.node.flow.budget
        for piece in self._outbox or ():
            budget.release(piece)
        self._outbox, self._queued, self._sent = None, 0, 0
        budget.holders.pop(self, None)

    # From the session

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes after all that was written before."""
        if self._ended is None and data:
            self._hub.node.vitals.counters["bytes_out"] += len(data)
            self._written += len(data)
            if self._outbox is None:
                if len(data) <= PART and not self._stalled:
                    self._transport.write(data)
                    return
                self._outbox = deque()
                self._hub.node.flow.budget.holders[self] = None
            self._outbox.append(data)
            self._queued += len(data) + OVERHEAD
            self._hub.node.flow.budget.hold(data)
            self._pump()

    def close(self) -> None:
        """Close when everything that was written has gone out."""
        if self._ended is None:
            self._ended = time.monotonic()
            self._forget_rest()
            if self._outbox is None:
                self._finish()

    def _finish(self) -> None:
        """Tell the client that nothing follows."""
        if not self._transport.can_write_eof():  # as TLS
            self._transport.close()
            return
        try:
            self._transport.resume_reading()
            self._transport.write_eof()
        except OSError:  # the client is gone; the event loop will hear of it too
            self._transport.abort()

    def abort(self) -> None:
        """Close now; what has not gone out is lost."""
        if self._ended is None:
            self._ended = time.monotonic()
        self._forget_rest()
        self._empty()
        self._transport.abort()

    def pause(self) -> None:
        """Read no more until `resume`."""
        if self._ended is None:
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Soon give the session what it left over, then read again."""
        if self._ended is None:
            self._paused = False
            self._heard = self.since = time.monotonic()
            self._read_on_soon()

    def authenticated(self) -> None:
        """Count the client no more among the strangers of its address."""
        self._hub.peers.forget(self._counts_for)
        self._counts_for = ""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""
        return self._queued + self._transport.get_write_buffer_size()

    @property
    def in_transit(self) -> int:
        """The bytes that the transport holds."""
        return self._transport.get_write_buffer_size()

    @property
    def moved(self) -> int:
        """The bytes that have gone out since the beginning."""
        return self._written - self.buffered

    # From the server

    def check(self, now: float, patience: float) -> None:
        """End the connection if its client has kept us waiting for too long."""
        if self._ended is not None:
            if now - self._ended > (FLUSH if self.buffered else LINGER):
                self.abort()
            return
        awaited = self._awaited()
        if not awaited or self._paused:
            return
        rate = self._hub.min_rate
        late = now - (self._opened if awaited == "handshake" else self.since) - patience
        if now - self._heard > patience:
            reason = f"nothing of a {awaited} for {patience:g} s"
        elif late > 0 and self._filled < rate * late:
            reason = f"{self._filled} bytes of a {awaited} in {late + patience:.0f} s, and after"
            reason += f" {patience:g} s it must have {rate} bytes a second (limits.min_rate)"
        else:
            return
        self._hub.node.vitals.counters[f"timeouts.{awaited}"] += 1
        log.warning("%s: closed: %s", self.peer, reason)
        self.end("it sent nothing for too long")

    def _awaited(self) -> str:
        """Return what the client has begun and not finished; empty if nothing."""
        if self.session is None:
            return "handshake"
        introduces = DIALECTS[self.session.dialect].introduces_itself
        if introduces and not self.session.client_id:
            return "handshake"
        return "frame" if self._rest is not None else ""

    def end(self, reason: str) -> None:
        """Close, and the session with it."""
        if self.session is not None:
            self.session.close(reason)
        self.close()


def _host(transport: asyncio.Transport) -> str:
    """The peer's address, "" for a process of this machine."""
    match transport.get_extra_info("peername"):
        case (str(host), int(), *_):
            return host
        case _:
            return ""


def _name(transport: asyncio.Transport) -> str:
    """Describe the peer, for people: an address, or a process of this machine."""
    match transport.get_extra_info("peername"):
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            sock = transport.get_extra_info("socket")
            size = struct.calcsize("3i")
            pid, uid, _ = struct.unpack(
                "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
            )
            return f"process {pid} of user {uid}"


def _common_name(transport: asyncio.Transport) -> str:
    """The name in the client's certificate, empty where there is none that was checked."""
    certificate = transport.get_extra_info("peercert") or {}
    for part in certificate.get("subject", ()):
        for field, value in part:
            if field == "commonName":
                return str(value)
    return ""
