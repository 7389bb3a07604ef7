"""Requests that came in, and the handler that answers them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from wirelake.client.connection import Line
from wirelake.client.inbox import Inbox
from wirelake.message import Message, Op

if TYPE_CHECKING:
    from wirelake.client.lines import Lines

Handler: TypeAlias = Callable[[Message], "bytes | Message | Awaitable[bytes | Message]"]

#: Requests that one service works on at a time.
CONCURRENCY = 100

log = logging.getLogger("wirelake.client")


class Service:
    """An address that is served while inside `async with`."""

    def __init__(self, lines: Lines, address: str, handler: Handler, inbox: Inbox[Message]) -> None:
        self.address = address
        self.inbox = inbox
        self.line: Line | None = None
        self._lines = lines
        self._handler = handler
        self._room = asyncio.Semaphore(CONCURRENCY)
        self._work: set[asyncio.Task[None]] = set()
        self._pump: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Service:
        line = await self._lines.start_service(self)
        self._pump = asyncio.create_task(self._answer_all(line))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._lines.stop_service(self)
        await self.stop()

    async def finished(self) -> None:
        """Wait until the client is closed; an error when its connection is lost for good."""
        if self._pump is not None:
            await asyncio.shield(self._pump)

    async def stop(self) -> None:
        """Take no more requests, and abandon those in work."""
        self.inbox.discard()
        self.inbox.end()
        while self._work or (self._pump and not self._pump.done()):
            for task in self._work:
                task.cancel()
            tasks = [*self._work, *([self._pump] if self._pump else [])]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)

    async def _answer_all(self, line: Line) -> None:
        while True:
            await self._room.acquire()
            try:
                request = await self.inbox.get()
            except StopAsyncIteration:
                return
            task = asyncio.create_task(self._answer(line, line.epoch, request))
            self._work.add(task)
            task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        self._room.release()

    async def _answer(self, line: Line, epoch: int, request: Message) -> None:
        try:
            reply = self._handler(request)
            if inspect.isawaitable(reply):
                reply = await reply
            if not isinstance(reply, Message):
                reply = Message(payload=bytes(reply))
            said = Message(
                op=Op.REPLY,
                payload=reply.payload,
                headers=reply.headers,
                content_type=reply.content_type,
                correlation_id=request.correlation_id,
            )
            await line.say(line.speech.reply(said), epoch)
        except Exception:
            log.exception("no reply to a request to %s", self.address)
