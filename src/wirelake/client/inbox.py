"""Incoming items, until the program takes them.

An inbox is bounded: the reader of the socket checks `is_full` before it reads on. `Arrivals` is how
a program sees an inbox: a loop over incoming items, which subscribes when the loop begins and
unsubscribes when it is left.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import Message

T = TypeVar("T")

#: How long (seconds) what comes by a client's name waits for somebody to listen.
PATIENCE = 1.0


class Inbox(Generic[T]):
    """Items that came in and were not taken yet, limited in number and in bytes."""

    def __init__(self, limit: int, byte_limit: int) -> None:
        self._limit = limit
        self._byte_limit = byte_limit
        self._bytes = 0
        self._items: deque[tuple[T, int]] = deque()
        self._arrived = asyncio.Event()
        self._ended = False
        self._error: WirelakeError | None = None
        self.on_room: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: T, size: int) -> None:
        """Add an item of this size in bytes; the caller checks `is_full` before the next one."""
        if not self._ended:
            self._bytes += size
            self._items.append((item, size))
            self._arrived.set()

    def is_full(self, stretch: int = 1) -> bool:
        """Is there no room for another one?"""
        return not self._ended and (
            len(self._items) >= stretch * self._limit or self._bytes >= stretch * self._byte_limit
        )

    async def get(self) -> T:
        """The next one, once there is one; StopAsyncIteration or an error at the end."""
        while not self._items:
            if self._ended:
                raise self._error or StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._pop()

    def pop_if(self, kinds: tuple[type, ...]) -> T | None:
        """The next one, if it is there and of one of these kinds."""
        return self._pop() if self._items and isinstance(self._items[0][0], kinds) else None

    def discard(self, kind: type[object] = object) -> list[T]:
        """Take out all that are of a kind."""
        gone = [item for item, _ in self._items if isinstance(item, kind)]
        self._items = deque(one for one in self._items if not isinstance(one[0], kind))
        self._bytes = sum(size for _, size in self._items)
        self._tell_room()
        return gone

    def pour_into(self, other: Inbox[T]) -> None:
        """Let another inbox have all that is in this one."""
        for item, size in self._items:
            other.put(item, size)
        self.discard()

    def end(self, error: WirelakeError | None = None) -> None:
        """Nothing will follow; what is there can still be taken."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._arrived.set()
            self._tell_room()

    def _pop(self) -> T:
        item, size = self._items.popleft()
        self._bytes -= size
        if not self.is_full():
            self._tell_room()
        return item

    def _tell_room(self) -> None:
        if self.on_room is not None:
            self.on_room()


class Listeners(Generic[T]):
    """The inboxes for what others send to a client by its name: all of them get it, or one.

    Others can know the name before the program has come to say that it listens. So the first that
    comes while nobody does, and what follows it within a moment, waits for the first listener.
    Whatever else nobody takes is `unwanted`.
    """

    def __init__(self, early: Inbox[T], unwanted: Callable[[T], None], *, one: bool) -> None:
        self.inboxes: list[Inbox[T]] = []
        self._early: Inbox[T] | None = early
        self._unwanted = unwanted
        self._one = one

    def add(self, inbox: Inbox[T]) -> None:
        """Listen."""
        self.inboxes.append(inbox)
        if self._early is not None:
            self._early.pour_into(inbox)
            self._early = None

    def remove(self, inbox: Inbox[T]) -> None:
        """Listen no more; what was not taken is unwanted."""
        self.inboxes.remove(inbox)
        for item in inbox.discard():
            self._unwanted(item)

    def put(self, item: T, size: int) -> Sequence[Inbox[T]]:
        """Put an item, of this size in bytes, into inboxes; return those that got it."""
        if not self.inboxes:
            return self._put_early(item, size)
        inboxes = [min(self.inboxes, key=len)] if self._one else self.inboxes
        for inbox in inboxes:
            inbox.put(item, size)
        return inboxes

    def _put_early(self, item: T, size: int) -> Sequence[Inbox[T]]:
        if self._early is None or self._early.is_full():
            self._unwanted(item)
            return ()
        if not self._early:
            asyncio.get_running_loop().call_later(PATIENCE, self._give_up)
        self._early.put(item, size)
        return ()

    def _give_up(self) -> None:
        early, self._early = self._early, None
        for item in early.discard() if early is not None else ():
            self._unwanted(item)


class Arrivals(Generic[T]):
    """Things as they come in: an asynchronous iterator; with `async with`, it says when.

    `hand_over` makes of an item in the inbox what the program gets. Items of the kinds `together`
    may be taken ahead; of all others it matters whether the program got them.
    """

    def __init__(
        self,
        inbox: Inbox[Any],
        begin: Callable[[], Coroutine[Any, Any, None]],
        end: Callable[[], Coroutine[Any, Any, None]],
        hand_over: Callable[[Any], T],
        together: tuple[type, ...],
    ) -> None:
        self._inbox = inbox
        self._begin = begin
        self._end = end
        self._hand_over = hand_over
        self._together = together
        self._open = False
        self._used = False

    async def __aenter__(self) -> Arrivals[T]:
        if self._used:
            raise RefusedError("bad_request", "a subscription is used once: subscribe again")
        self._used = True
        await self._begin()
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        self._inbox.end()
        await self._end()

    def __aiter__(self) -> AsyncIterator[T]:
        return self if self._open else self._all()

    async def __anext__(self) -> T:
        return self._hand_over(await self._inbox.get())

    async def _all(self) -> AsyncIterator[T]:
        """Begin, and end when the loop is left."""
        async with self:
            while taken := await self.take():
                for one in taken:
                    yield one

    async def receive(self, timeout: float | None = None) -> T:
        """Return the next item; RefusedError after the timeout, or if no more will come."""
        try:
            async with asyncio.timeout(timeout):
                return await self.__anext__()
        except TimeoutError:
            raise RefusedError("timeout", f"nothing came in {timeout:g} s") from None
        except StopAsyncIteration:
            raise RefusedError("closed", "the client was closed") from None

    async def take(self) -> list[T]:
        """What there is and can be taken at once, once there is something; nothing at the end."""
        try:
            item = await self._inbox.get()
        except StopAsyncIteration:
            return []
        taken = [self._hand_over(item)]
        if isinstance(item, self._together):
            while (item := self._inbox.pop_if(self._together)) is not None:
                taken.append(self._hand_over(item))
        return taken


#: What `subscribe` and `direct` return.
Messages: TypeAlias = Arrivals[Message]
