"""The one way from HTTP to the broker, which lives on another thread.

A question is called on the broker's thread and waited for, but not for ever: a broker that does not
answer is a clear refusal, and a question that was given up is not asked any more.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from wirelake.broker.node import Node
from wirelake.errors import RefusedError

T = TypeVar("T")

#: How long the broker may take to answer, and how long until what it did is durable (seconds).
ANSWER = 5.0
DURABLE = 30.0


class Gate:
    """Calls into a node, from the event loop of HTTP."""

    def __init__(
        self,
        node: Node,
        loop: asyncio.AbstractEventLoop,
        *,
        answer: float = ANSWER,
        durable: float = DURABLE,
    ) -> None:
        self.node = node
        self._loop = loop
        self._answer = answer
        self._durable = durable

    async def ask(self, question: Callable[[], T]) -> T:
        """What the broker says to this."""
        told: Future[T] = Future()

        def call() -> None:
            if told.set_running_or_notify_cancel():
                _settle(told, question)

        self._post(call)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(told), self._answer)
        except TimeoutError:
            raise RefusedError("busy", "the broker does not answer") from None

    async def change(self, change: Callable[[], T]) -> T:
        """The same, for what must be durable before it is told."""
        told: Future[T] = Future()

        def call() -> None:
            if not told.set_running_or_notify_cancel():
                return
            done: Future[T] = Future()
            _settle(done, change)
            if done.exception() is not None:
                told.set_exception(done.exception())
            else:
                self.node.engine.after(
                    lambda: told.set_result(done.result()),
                    failed=lambda: told.set_exception(_unknown()),
                )

        self._post(call)
        return await self._until_durable(asyncio.wrap_future(told))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the broker's event loop; it waits for what it wrote by itself."""
        try:
            told = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            raise RefusedError("closed", "the broker has stopped") from None
        return await self._until_durable(asyncio.wrap_future(told))

    def tell(self, action: Callable[[], object]) -> None:
        """Let the broker do this, if it is still there; nobody waits for it."""
        with contextlib.suppress(RefusedError):
            self._post(action)

    async def durable(self, failures: int) -> None:
        """On the broker's loop: wait until all that was written so far is durable.

        `failures`: the engine's, before the first of it was written. Raises RefusedError (`busy`)
        where some of it may not have been kept.
        """
        told: asyncio.Future[None] = self._loop.create_future()
        self.node.engine.after(
            lambda: None if told.done() else told.set_result(None),
            failed=lambda: None if told.done() else told.set_exception(_unknown()),
        )
        await told
        if self.node.engine.failures != failures:
            raise _unknown()

    async def _until_durable(self, told: asyncio.Future[T]) -> T:
        try:
            return await asyncio.wait_for(told, self._durable)
        except TimeoutError:
            raise RefusedError(
                "timeout", "this is not durable yet, and may become so later"
            ) from None

    def _post(self, call: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # its loop is closed
            raise RefusedError("closed", "the broker has stopped") from None


def _unknown() -> RefusedError:
    return RefusedError("busy", "this may have been kept or not: try again")


def _settle(told: Future[T], question: Callable[[], T]) -> None:
    """Let a future have what a call returns or raises."""
    try:
        told.set_result(question())
    except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
        told.set_exception(error)
