"""Messages that came in, until somebody takes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any

from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import Message


class Inbox:
    """Messages that came in and were not taken yet: at most so many, of so many bytes."""

    def __init__(self, limit: int, byte_limit: int) -> None:
        self._limit = limit
        self._byte_limit = byte_limit
        self._bytes = 0
        self._messages: asyncio.Queue[Message | None] = asyncio.Queue()
        self._ended = False
        self._error: WirelakeError | None = None
        self.on_room: Callable[[], None] | None = None

    def __len__(self) -> int:
        return self._messages.qsize() - self._ended

    def put(self, message: Message) -> None:
        """Add a message; whoever does so looks at `is_full` before the next one."""
        if not self._ended:
            self._bytes += len(message.payload)
            self._messages.put_nowait(message)

    def is_full(self, stretch: int = 1) -> bool:
        """Is there no room for another message?"""
        return not self._ended and (
            self._messages.qsize() >= stretch * self._limit
            or self._bytes >= stretch * self._byte_limit
        )

    async def get(self) -> Message:
        """The next message, once there is one; StopAsyncIteration or an error at the end."""
        message = await self._messages.get()
        if message is None:
            self._messages.put_nowait(None)  # for the next one who asks
            raise self._error or StopAsyncIteration
        self._took(message)
        return message

    async def take(self) -> list[Message]:
        """All messages there are, once there is one."""
        messages = [await self.get()]
        while len(self):
            messages.append(await self.get())
        return messages

    def clear(self) -> None:
        """Forget what was not taken."""
        while len(self) and (message := self._messages.get_nowait()):
            self._took(message)

    def end(self, error: WirelakeError | None = None) -> None:
        """Nothing will follow; what is there can still be taken."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._messages.put_nowait(None)
            self._tell_room()

    def _took(self, message: Message) -> None:
        self._bytes -= len(message.payload)
        if not self.is_full():
            self._tell_room()

    def _tell_room(self) -> None:
        if self.on_room is not None:
            self.on_room()


class Messages:
    """Messages as they come in: an asynchronous iterator; with `async with`, it says when."""

    def __init__(
        self,
        inbox: Inbox,
        begin: Callable[[], Coroutine[Any, Any, None]],
        end: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._inbox = inbox
        self._begin = begin
        self._end = end
        self._open = False
        self._used = False

    async def __aenter__(self) -> Messages:
        if self._used:
            raise RefusedError("bad_request", "a subscription is used once: subscribe again")
        self._used = True
        await self._begin()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        self._inbox.end()
        await self._end()

    def __aiter__(self) -> AsyncIterator[Message]:
        return self if self._open else self._all()

    async def __anext__(self) -> Message:
        return await self._inbox.get()

    async def _all(self) -> AsyncIterator[Message]:
        """Subscribe, and unsubscribe when the loop is left."""
        async with self:
            while messages := await self.take():
                for message in messages:
                    yield message

    async def receive(self, timeout: float | None = None) -> Message:
        """The next message; RefusedError when none comes in time, or none ever will."""
        try:
            async with asyncio.timeout(timeout):
                return await self._inbox.get()
        except TimeoutError:
            raise RefusedError("timeout", f"no message in {timeout:g} s") from None
        except StopAsyncIteration:
            raise RefusedError("closed", "the client was closed") from None

    async def take(self) -> list[Message]:
        """All messages there are, once there is one; none when the client was closed."""
        try:
            return await self._inbox.take()
        except StopAsyncIteration:
            return []
