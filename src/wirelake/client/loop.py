"""An event loop in a thread of its own, for callers in other threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from wirelake.errors import RefusedError

T = TypeVar("T")


class LoopThread:
    """Runs an event loop, an asyncio one by default, in a daemon thread until `close`."""

    def __init__(self, name: str, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self.loop = loop or asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there, and return its result; an interrupted caller cancels it.

        Raises RefusedError in the loop's own thread, which would wait for itself.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise RefusedError("bad_request", "the synchronous client would wait for itself here")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function there, and return its result."""

        async def work() -> T:
            return function()

        return self.run(work())

    def close(self, timeout: float | None = None) -> None:
        """Cancel all tasks and end the thread; wait for that, but at most `timeout` seconds."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout)
