"""What was asked on a connection and not answered yet; an answer is told by its key.

One question has one future; the questions of one key are answered in the order they were asked. A
batch has one future for all of its messages, and counts their answers down. An answer that comes in
several messages has *parts* before its end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from wirelake.client.speech import Heard
from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import Message


class _Tally:
    """The answers to a batch: how many are to come, and what was refused."""

    def __init__(self, total: int) -> None:
        self.total = self.left = total
        self.refused = 0
        self.first: RefusedError | None = None
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def count(self, refusal: RefusedError | None) -> None:
        """One answer has come."""
        self.left -= 1
        self.refused += refusal is not None
        self.first = self.first or refusal
        if self.left == 0 and not self.done.done():
            self.done.set_result(None)


class Answers:
    """The questions of one connection after the other."""

    def __init__(self) -> None:
        self._pending: dict[str, deque[asyncio.Future[Message]]] = {}
        self._parts: dict[str, list[Message]] = {}
        self._tallies: dict[str, _Tally] = {}  # of batches, by the key of each message

    def __len__(self) -> int:
        return len(self._pending) + len(self._tallies)

    async def wait(
        self, key: str, send: Callable[[], None], parts: list[Message] | None = None
    ) -> Message:
        """Ask, and wait for the answer or RefusedError; what comes before it goes to `parts`."""
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        waiting = self._pending.setdefault(key, deque())
        waiting.append(answer)
        if parts is not None:
            self._parts[key] = parts
        try:
            send()
            return await answer
        finally:
            self._parts.pop(key, None)
            if answer in waiting:
                waiting.remove(answer)
            if not waiting and self._pending.get(key) is waiting:
                del self._pending[key]

    async def wait_for_all(self, keys: Sequence[str], send: Callable[[], None]) -> None:
        """Send a batch, and wait until each of its messages is acknowledged."""
        if any(key in self._tallies for key in keys):
            raise RefusedError("conflict", "a message of the same id is on its way")
        tally = _Tally(len(keys))
        self._tallies.update(dict.fromkeys(keys, tally))
        try:
            send()
            if keys:
                await tally.done
        finally:
            for key in keys:
                self._tallies.pop(key, None)
        if tally.first is not None:
            text = f"{tally.refused} of {tally.total} messages were refused; the first: "
            raise RefusedError(tally.first.code, text + (tally.first.text or tally.first.code))

    def take(self, message: Message, heard: Heard) -> bool:
        """An answer; was it waited for?"""
        for answer in self._pending.get(heard.key, ()):
            if not answer.done():
                if heard.refusal is None:
                    answer.set_result(message)
                else:
                    answer.set_exception(heard.refusal)
                return True
        if tally := self._tallies.get(heard.key):
            tally.count(heard.refusal)
        return tally is not None

    def take_part(self, message: Message, heard: Heard) -> bool:
        """Is this a part of an answer that is waited for?"""
        parts = self._parts.get(heard.key)
        if parts is not None:
            parts.append(message)
        return parts is not None

    def fail(self, error: WirelakeError) -> None:
        """No answer will come any more."""
        for waiting in self._pending.values():
            for answer in waiting:
                if not answer.done():
                    answer.set_exception(error)
        for tally in self._tallies.values():
            if not tally.done.done():
                tally.done.set_exception(error)
