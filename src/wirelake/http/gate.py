"""Calls from HTTP to the broker, which runs on another thread.

A question runs on the broker's thread, with a timeout: if the broker does not answer, the request
is refused, and a question that timed out is not run later. Everything that changes the broker's
state goes through here. HTTP's threads read the log directly (`Engine.read` is for any thread), and
a few values that the broker only replaces as a whole, such as limits.
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
        """Run a question on the broker's thread; return its result.

        Raises RefusedError: what the question raises, or `busy` if the broker does not answer.
        """
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
        """Run a change on the broker's thread; return its result once it is durable.

        Raises RefusedError: what the change raises, `timeout` if it is not durable in time, `busy`
        if its commit failed.
        """
        told: Future[T] = Future()

        def call() -> None:
            if not told.set_running_or_notify_cancel():
                return
            done: Future[T] = Future()
            _settle(done, change)
            error = done.exception()

            def tell() -> None:
                if error is None:
                    told.set_result(done.result())
                else:
                    told.set_exception(error)

            if error is None or (isinstance(error, RefusedError) and error.waits):
                self.node.engine.after(tell, failed=lambda: told.set_exception(_unknown()))
            else:
                tell()

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
        """Run an action on the broker's thread, if it still runs; do not wait for it."""
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
    """Set a future to what a call returns or raises."""
    try:
        told.set_result(question())
    except Exception as error:  # noqa: BLE001 - it is raised where the question was asked
        told.set_exception(error)
