"""Byte streams to and from other clients.

A stream is two-way, and either side closes it for both: one direction cannot be closed alone. The
broker stores nothing of it. Unread bytes are bounded like an inbox: while they fill it, the client
reads no more from its socket, then the broker reads no more from the writer, and the writer waits
in `write`. So a stream that a program does not read holds up everything else that the client
receives (spec: byte streams; decision 34).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from types import TracebackType
from typing import Any

from wirelake.client.connection import Line
from wirelake.client.inbox import Inbox, Listeners
from wirelake.client.speech import Ask, Speech
from wirelake.errors import RefusedError
from wirelake.message import Message, Op, Parameters

#: The most bytes that one DATA frame carries.
PIECE = 64 << 10


class Stream:
    """A byte stream to another client; made by `Client.stream_to`, or come by `Client.streams`."""

    def __init__(
        self,
        line: Line,
        number: str,
        inbox: Inbox[bytes],
        forget: Callable[[str], object],
        source: str = "",
        info: bytes = b"",
    ) -> None:
        self.source = source  # the client that opened it; empty where that is this one
        self.info = info  # what the opener said about it
        self.sent = 0  # bytes
        self.received = 0
        self.count: int | None = None  # bytes that the other side sent, once it has closed
        self.inbox = inbox
        self._line = line
        self._epoch = line.epoch
        self._number = number
        self._forget = forget
        self._end: RefusedError | None = None  # why nothing can be written any more

    def __repr__(self) -> str:
        return f"<stream {self._number}: {self.sent} bytes out, {self.received} in>"

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close("closed" if error else "")

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes; waits while the other side does not read. RefusedError after the end."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), PIECE):
            piece = bytes(view[start : start + PIECE])
            message = Message(op=Op.DATA, correlation_id=self._number, payload=piece)
            if self._end is None and not await self._line.say(message, self._epoch):
                self.fail(_lost())
            if self._end is not None:
                raise self._end
            self.sent += len(piece)

    async def read(self) -> bytes:
        """Return the next bytes; empty at a clean end, RefusedError at any other."""
        try:
            return await self.inbox.get()
        except StopAsyncIteration:
            return b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while chunk := await self.read():
            yield chunk

    async def close(self, code: str = "") -> None:
        """Close it and drop unread bytes; a code tells the other side it is incomplete."""
        self.drop(code)

    def drop(self, code: str) -> None:
        """End it, without waiting for anything."""
        if self._end is not None:
            self.inbox.discard()
            return
        self.fail(RefusedError("closed", "this side closed the stream"), clean=True)
        self.inbox.discard()
        said = Parameters(count=self.sent, code=code)
        farewell = Message(op=Op.CLOSE, correlation_id=self._number, parameters=said)
        # Without waiting for room: whoever leaves because the other side is stuck must get away.
        self._line.mention(farewell, self._epoch)

    # What the connection tells it

    def heard(self, message: Message) -> None:
        """Bytes have come, or the end."""
        if message.op == Op.DATA:
            if message.payload:  # an empty one would look like the end
                self.received += len(message.payload)
                self.inbox.put(message.payload, len(message.payload))
            return
        said = message.parameters
        self.count = self.received if said.count is None else said.count
        code = said.code
        if not code and self.count == self.received:
            self.fail(RefusedError("closed", "the other side closed the stream"), clean=True)
            return
        text = f"the stream ended after {self.received} of {self.count} bytes"
        self.fail(RefusedError(code or "closed", text))

    def fail(self, error: RefusedError, *, clean: bool = False) -> None:
        """Nothing more can be written; what came can be read, then a clean end or the error."""
        if self._end is None:
            self._end = error
            self.inbox.end(None if clean else error)
            self._forget(self._number)


class Streams:
    """The streams of a client's connection, by the number that this side knows them under."""

    def __init__(self, new_inbox: Callable[[], Inbox[Any]]) -> None:
        self.listeners: Listeners[Stream] = Listeners(
            new_inbox(), lambda stream: stream.drop("not_found"), one=True
        )
        self._new_inbox = new_inbox
        self._open: dict[str, Stream] = {}

    async def open(self, line: Line, target: str, info: bytes, timeout: float | None) -> Stream:
        """A stream to a client, once the broker has asked for it."""
        made: list[Stream] = []

        def say(speech: Speech) -> Ask:
            # Known before it is answered: what the other side sends may come right behind.
            asked = speech.control(Message(op=Op.OPEN, address=target, payload=info))
            made.append(self._add(line, asked.message.correlation_id))
            return asked

        try:
            await line.ask(say, timeout)
        except BaseException:
            for stream in made:
                stream.drop("closed")
            raise
        return made[-1]

    def _add(self, line: Line, number: str, source: str = "", info: bytes = b"") -> Stream:
        stream = Stream(line, number, self._new_inbox(), self._forget, source, info)
        self._open[number] = stream
        return stream

    def _forget(self, number: str) -> None:
        self._open.pop(number, None)

    def take_in(self, line: Line, message: Message) -> Sequence[Inbox[Any]]:
        """A message of a stream, or a new one; the inboxes that got something."""
        number = message.correlation_id
        if message.op == Op.OPEN:
            return self._opened(line, message)
        stream = self._open.get(number)
        if stream is None:  # closed here, and the other side does not know yet
            return ()
        stream.heard(message)
        return (stream.inbox,)

    def _opened(self, line: Line, message: Message) -> Sequence[Inbox[Any]]:
        number = message.correlation_id
        if number in self._open:
            said = Parameters(count=0, code="not_found")
            line.mention(Message(op=Op.CLOSE, correlation_id=number, parameters=said), line.epoch)
            return ()
        stream = self._add(line, number, message.source, message.payload)
        return self.listeners.put(stream, len(message.payload))

    def refused(self, number: str, refusal: RefusedError) -> bool:
        """The broker refused what was said on a stream; is it one of these?"""
        if stream := self._open.get(number):
            stream.fail(refusal)
        return stream is not None

    def went_down(self) -> None:
        """The connection is lost, and with it its streams."""
        for stream in list(self._open.values()):
            stream.fail(_lost())


def _lost() -> RefusedError:
    return RefusedError("closed", "the connection was lost, and the stream with it")
