"""Live updates for pages of the console: one stream of server-sent events per page.

A stream has figures, once a second, of the parts that its page asks for, and perhaps a tail: the
messages that are published to some filters, and the changes of keys that are watched. The broker
sees one session; it ends with its rights.

A tail never makes anybody wait. The broker writes to it like to any subscriber, but what is written
while `ROOM` bytes wait is thrown away and counted, and of what is taken only so many messages a
second are decoded. The page is told how many it did not get.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from wirelake.broker.local import FORM, LocalLink
from wirelake.dialects.codec import scanner
from wirelake.errors import ProtocolError, RefusedError
from wirelake.http.exchange import as_json
from wirelake.http.gate import Gate
from wirelake.http.payloads import shown as as_payload
from wirelake.http.publishing import Note, Observation, Onlooker
from wirelake.message import Op
from wirelake.wire import FrameTable

if TYPE_CHECKING:
    from wirelake.broker.endpoint import Endpoint, Policy
    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights

#: Bytes of a tail that may wait; what comes beyond them is not shown.
ROOM = 1 << 20
#: Messages a second that a tail shows at most, and filters that it has.
MOST_RATE = 2_000
MOST_FILTERS = 16
#: How often a page hears of new messages, and of figures (seconds).
TURN = 0.1
FIGURES = 1.0
#: A longer payload is cut in a tail; the log has it whole.
LONGEST = 4096

_encode = msgspec.json.Encoder().encode

#: Makes one part of the figures.
Part = Callable[["Rights"], Awaitable[Any]]


#: Frames that were written at once, and what is known of them.
_Chunk = tuple[bytes, Note]


class _Tail(Onlooker):
    """A subscriber that never fills: what there is no room for is skipped, and counted in bytes."""

    def __init__(self, node: Node, link: LocalLink, rights: Rights, now: float) -> None:
        super().__init__(node, link, rights, now)
        self._lock = threading.Lock()
        self._chunks: deque[_Chunk] = deque()
        self._waiting = 0
        self._skipped = 0

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Endpoint | None = None,
    ) -> None:
        """Keep frames for the page, if there is room."""
        with self._lock:
            if self._waiting + len(data) > ROOM:
                self._skipped += len(data)
                self.observe([])
                return
            self._chunks.append((bytes(data), self.note(sender)))
            self._waiting += len(data)

    def take(self) -> tuple[list[_Chunk], int]:
        """From another thread: what has come, and the bytes that were thrown away."""
        with self._lock:
            chunks, skipped = list(self._chunks), self._skipped
            self._chunks.clear()
            self._waiting = self._skipped = 0
        return chunks, skipped


class Live(Observation[_Tail]):
    """One stream to one page."""

    def __init__(
        self,
        gate: Gate,
        rights: Rights,
        peer: str,
        parts: dict[str, Part],
        filters: list[str],
        watched: list[str],
        rate: int,
    ) -> None:
        instead = "the page Queues shows what is in it"
        super().__init__(gate, rights, filters, peer, _Tail, instead)
        self._parts = parts
        self._watched = watched
        self._rate = rate
        self._table = FrameTable(1024)
        # Messages that may be shown now: a second's worth at most, so that bursts are shown whole.
        self._tokens = float(rate)
        self._taken = self._loop.time()

    def _subscribe(self, session: _Tail, now: float) -> None:
        super()._subscribe(session, now)
        for filter in self._watched:
            self._node.store.watch(session, filter, None)

    async def stream(self) -> AsyncGenerator[bytes]:
        """The events, until either side ends it."""
        assert self._session is not None
        next_figures = self._loop.time()
        is_tail = bool(self._filters or self._watched)
        while self._link.is_open:
            now = self._loop.time()
            if now >= next_figures:
                next_figures = max(next_figures + FIGURES, now)
                yield await self._figures()
            if is_tail and (shown := self._messages(self._session)):
                yield shown
            wait = TURN if is_tail else next_figures - self._loop.time()
            try:
                await asyncio.wait_for(self._changed.wait(), max(0.01, wait))
            except TimeoutError:
                continue
            self._changed.clear()
        yield b"event: end\ndata: {}\n\n"

    async def _figures(self) -> bytes:
        assert self._session is not None
        told: dict[str, Any] = {}
        for name, make in self._parts.items():
            try:
                told[name] = await make(self._session.rights)
            except RefusedError as error:
                told[name] = {"error": error.code, "text": error.text}
        return b"event: figures\ndata: " + _encode(told) + b"\n\n"

    def _messages(self, session: _Tail) -> bytes:
        """Return the messages since the last turn, limited by the rate."""
        chunks, skipped_bytes = session.take()
        if not chunks and not skipped_bytes:
            return b""
        now = self._loop.time()
        self._tokens = min(float(self._rate), self._tokens + self._rate * (now - self._taken))
        self._taken = now
        room = int(self._tokens)
        shown: list[dict[str, Any]] = []
        skipped = 0
        for chunk in reversed(chunks):  # the newest are shown
            rows, count = self._rows(chunk, room - len(shown))
            skipped += count - len(rows)
            shown += reversed(rows)
        shown.reverse()
        self._tokens -= len(shown)
        told = {"messages": shown, "skipped": skipped, "skipped_bytes": skipped_bytes}
        return b"event: messages\ndata: " + _encode(told) + b"\n\n"

    def _rows(self, chunk: _Chunk, most: int) -> tuple[list[dict[str, Any]], int]:
        """Return the last messages of a chunk, at most `most`, and the number of all of them."""
        reader = scanner(FORM, self._node.limits)
        data, note = chunk
        table, frames = self._table, memoryview(data)
        rows: list[dict[str, Any]] = []
        at = count = 0
        try:
            while at < len(frames):
                used = reader.scan(frames[at:], table)
                at += used
                first = max(0, table.count - most)
                rows += [
                    self._shown(table, row, note, count + row) for row in range(first, table.count)
                ]
                count += table.count
                rows = rows[len(rows) - min(most, len(rows)) :]
                if not used:
                    break
        except ProtocolError:  # a fault of ours, and no reason to end the page
            return rows, count
        finally:
            table.release()
        return rows, count

    def _shown(self, table: FrameTable, row: int, note: Note, number: int) -> dict[str, Any]:
        message = table.message(row)
        size = len(message.payload)
        if size > LONGEST:
            message = msgspec.structs.replace(message, payload=message.payload[:LONGEST])
        shown = as_json(message, dialect=note.dialect, peer=note.peer, size=size)
        shown |= note.of(number)
        if message.op in (Op.SET, Op.DEL):
            shown["op"] = message.op.label  # a key that is watched
        if "base64" in shown:
            shown |= as_payload(message.payload)
        if size > LONGEST:
            shown["cut"] = True
        return shown
