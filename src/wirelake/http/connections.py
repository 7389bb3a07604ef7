"""The connections of HTTP: how many there are, and clients that keep us waiting.

Clients that stop in the middle of a request, or do not read what they asked for, are cut off. Where
there are too many connections, idle ones give way to new ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import h11
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CloseCode, Frame

from wirelake.broker.peers import Peers
from wirelake.errors import RefusedError
from wirelake.http.exchange import PROTECTION
from wirelake.http.limits import HttpLimits, Memory

#: Which part of the connections is kept for `/healthz` while all others are busy.
SPARE = 1 / 8
#: Frames of an unfinished WebSocket message, and bytes of pongs that wait for a client to read.
MAX_FRAMES = 1024
MAX_PONGS = 1 << 20
#: The shortest time between two events about refused connections (seconds).
TELL_EVERY = 10.0


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


class Crowd:
    """All connections: where there are too many, the one that was idle the longest goes.

    A connection is busy from the head of a request to the end of its answer, and idle otherwise.
    While nearly all are busy, every request but that for the health is refused. Connections from
    one address have a limit of their own; those from loopback have none.
    """

    def __init__(self, most: int, limits: HttpLimits) -> None:
        self._most = most
        self._limits = limits
        self._peers = Peers()
        # In each of these the one that was idle the longest is first.
        self._idle: dict[HttpConnection, None] = {}
        self._of: dict[str, dict[HttpConnection, None]] = {}  # by address
        self._busy: set[HttpConnection] = set()
        self._refused = 0  # since operators were last told
        self._told = -TELL_EVERY
        #: Told now and then that connections were refused: an address, and why.
        self.on_refused: Callable[[str, str], object] = lambda address, text: None

    @property
    def is_full(self) -> bool:
        """Is there no room for one more request?"""
        return len(self._busy) > self._most * (1 - SPARE)

    def joined(self, connection: HttpConnection, host: str, now: float) -> str:
        """A client has connected; return why it is refused, or an empty text."""
        connection.address = address = self._peers.name(host)
        theirs = self._of.setdefault(address, {}) if address else {}
        most = self._limits.web.connections_per_peer
        if len(theirs) >= most:
            idle = next((one for one in theirs if one in self._idle), None)
            if idle is None:
                return self._refuse(address, most, now)
            self._close(idle)
        theirs[connection] = None
        self._idle[connection] = None
        if len(self._idle) + len(self._busy) > self._most:
            self._close(next(iter(self._idle)))
        return ""

    def _close(self, idle: HttpConnection) -> None:
        self.left(idle)
        idle.transport.abort()

    def _refuse(self, address: str, most: int, now: float) -> str:
        text = f"{most} requests from {address} are under way (web.connections_per_peer)"
        self._refused += 1
        if now - self._told >= TELL_EVERY:
            self.on_refused(address, f"{text}; {self._refused} refused since the last time")
            self._refused, self._told = 0, now
        return text

    def changed(self, connection: HttpConnection, *, busy: bool) -> None:
        """A connection has become busy, or idle."""
        if busy and connection in self._idle:
            del self._idle[connection]
            self._busy.add(connection)
        elif not busy and connection in self._busy:
            self._busy.discard(connection)
            self._idle[connection] = None
            if theirs := self._of.get(connection.address):
                del theirs[connection]
                theirs[connection] = None

    def left(self, connection: HttpConnection) -> None:
        """A connection has ended."""
        self._idle.pop(connection, None)
        self._busy.discard(connection)
        if (theirs := self._of.get(connection.address)) is not None:
            theirs.pop(connection, None)
            if not theirs:
                del self._of[connection.address]


class _Reader(asyncio.Protocol):
    """A client that reads nothing of what is written to it for too long is cut off."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _limits: HttpLimits
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The client does not read as fast as we write."""
        super().pause_writing()
        if self._stalled is None:
            timeout = self._limits.web.read_timeout
            self._stalled = self.loop.call_later(timeout, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None
        super().resume_writing()


class HttpConnection(_Reader, H11Protocol):
    """A connection whose client may not keep us waiting for ever."""

    _head: asyncio.TimerHandle | None = None
    _is_websocket = False
    address = ""  # that it counts for
    _most = 0  # bytes of the head of a request

    def __init__(self, crowd: Crowd, limits: HttpLimits, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._crowd = crowd
        self._limits = limits

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A client is there: the head of a request must follow."""
        super().connection_made(transport)
        self._most = self._limits.web.head
        self.conn = _Connection(h11.SERVER, self._most)
        self.conn.transport = transport
        self._app, self.app = self.app, self._serve
        self._head = self.loop.call_later(self._limits.patience, self._give_up)
        host = self.client[0] if self.client else ""
        if refusal := self._crowd.joined(self, host, self.loop.time()):
            self._refuse(503, b"Service Unavailable", refusal)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or has a head that is too long."""
        if len(self.conn.trailing_data[0]) > self._most:
            text = f"the head of a request has at most {self._most} bytes (web.head)"
            self._refuse(431, b"Request Header Fields Too Large", text)
        else:
            self._refuse(400, b"Bad Request", msg)

    def _refuse(self, status: int, reason: bytes, msg: str) -> None:
        """Answer and hang up; the application has no part in it, so its headers come here."""
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"connection", b"close"),
            *PROTECTION,
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason),
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
            text = "too many requests are under way (http_connections)"
            self._refuse(503, b"Service Unavailable", text)
            return
        self._forget_head()
        self._is_websocket = True
        self._crowd.changed(self, busy=True)
        super().handle_websocket_upgrade(event)
        protocol = self.transport.get_protocol()
        assert isinstance(protocol, WebSocketConnection)
        protocol.on_lost = lambda: self._crowd.left(self)

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
            self._head = self.loop.call_later(self._limits.patience, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._crowd.left(self)
        self._forget_head()
        self.resume_writing()
        super().connection_lost(exc)

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


class WebSocketConnection(_Reader, WebSocketsSansIOProtocol):
    """A WebSocket whose client may neither keep us waiting for ever nor make us hold much.

    Messages that come in one read are handed on as one, as they are parts of a stream of bytes.
    What is not complete counts for `web.bodies`, and must make progress as a frame of any dialect
    must (`limits.min_rate`).
    """

    def __init__(self, limits: HttpLimits, memory: Memory, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._limits = limits
        self._memory = memory
        self._complete = bytearray()  # of messages of this read
        self._held = 0  # bytes that are counted in `memory`
        self._since = self._heard = 0.0  # when what is not complete began, and went on
        self._watch: asyncio.TimerHandle | None = None
        #: Called when the connection has ended.
        self.on_lost: Callable[[], object] = bool

    def data_received(self, data: bytes) -> None:
        """Bytes have come: any number of messages, and a part of one."""
        self._heard = self.loop.time()
        super().data_received(data)
        self._hand_on()
        if not self.transport.is_closing():
            self._hold(len(self.conn.reader.buffer) + sum(map(len, self.frames)))

    def send_receive_event_to_app(self) -> None:
        """A message is complete."""
        self._since = self._heard
        if self.curr_msg_data_type == "text":
            self._hand_on()
            super().send_receive_event_to_app()
            return
        for frame in self.frames:
            self._complete += frame
        self.frames = []

    def _hand_on(self) -> None:
        """Hand the messages of this read on as one."""
        if self._complete:
            kind, frames = self.curr_msg_data_type, self.frames  # of one that is not complete
            self.curr_msg_data_type, self.frames = "bytes", [bytes(self._complete)]
            self._complete.clear()
            super().send_receive_event_to_app()
            self.curr_msg_data_type, self.frames = kind, frames

    def _hold(self, size: int) -> None:
        """Count the bytes of what is not complete."""
        if len(self.frames) > MAX_FRAMES:
            self._fail(CloseCode.MESSAGE_TOO_BIG, f"a message has at most {MAX_FRAMES} frames")
            return
        if not self._held:
            self._since = self._heard
        try:
            self._memory.take(size - self._held)
        except RefusedError as error:
            self._fail(CloseCode.TRY_AGAIN_LATER, error.text)
            return
        self._held = size
        if size and self._watch is None:
            self._watch = self.loop.call_later(self._limits.patience, self._look)

    def _look(self) -> None:
        """Close a connection whose unfinished message comes too slowly."""
        self._watch = None
        if not self._held or self.transport.is_closing():
            return
        limits, now = self._limits, self.loop.time()
        if now - self._heard >= limits.patience:
            text = f"nothing of a message came for {limits.patience:g} s (handshake_timeout)"
            self._fail(CloseCode.POLICY_VIOLATION, text)
        elif limits.is_late(self._held, now - self._since):
            text = f"a message has at least {limits.min_rate} bytes a second (limits.min_rate)"
            self._fail(CloseCode.POLICY_VIOLATION, text)
        else:
            self._watch = self.loop.call_later(limits.patience / 4, self._look)

    def _fail(self, code: CloseCode, text: str) -> None:
        self.conn.fail(code, text)
        self.handle_parser_exception()

    def handle_ping(self) -> None:
        """Answer a ping; a client that reads none of the answers is cut off."""
        super().handle_ping()
        if self.transport.get_write_buffer_size() > MAX_PONGS:
            self.transport.abort()

    def handle_close(self, event: Frame) -> None:
        """Hang up, after what came before."""
        self._hand_on()
        super().handle_close(event)

    def handle_parser_exception(self) -> None:
        """Hang up for what is no WebSocket, after what came before."""
        self._hand_on()
        super().handle_parser_exception()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        for timer in (self._watch, self._stalled):
            if timer is not None:
                timer.cancel()
        self._memory.give_back(self._held)
        self._held = 0
        self.on_lost()
        super().connection_lost(exc)
