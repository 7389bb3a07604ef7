"""From the log to the tables: changes that are durable are brought into the database a while later.

What came and went meanwhile is never written there, and of a key only the latest state: the busier
a queue is, the less of it the database sees. One thread does it. What a crash leaves in the log is
brought in when the engine is opened again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from wirelake.engine.database import Changes, Database
from wirelake.errors import EngineError

log = logging.getLogger("wirelake.engine")

#: Changes wait for more of them for so long (seconds), unless they have so many bytes in the log.
LINGER = 0.5
EAGER_BYTES = 4 << 20
#: Where more bytes are waiting, commits have to wait too.
MOST_BYTES = 64 << 20

#: What failed is tried again after this many seconds, then twice as many, up to a limit.
FIRST_RETRY = 0.1
LAST_RETRY = 2.0


def at_last(
    attempt: Callable[[], object],
    tell: Callable[[str], None],
    is_over: Callable[[], bool],
    pause: Callable[[float], object],
) -> EngineError | None:
    """Do something, however often it must be tried; why it was given up, once all `is_over`.

    `tell` hears of trouble, and of its end.
    """
    delay = FIRST_RETRY
    trouble = False
    while True:
        try:
            attempt()
        except EngineError as caught:
            error = caught
        except Exception as caught:  # a thread that dies would take all that follows with it
            if not trouble:
                log.exception("at a loss")
            error = EngineError(f"at a loss: {caught!r}")
        else:
            if trouble:
                tell("")
            return None
        trouble = True
        tell(str(error))
        if is_over():
            return error
        pause(delay)
        delay = min(2 * delay, LAST_RETRY)


class Tables:
    """Brings changes into a database, in order; `tell` hears of trouble, and of its end.

    `done` is called with the number of the last changes that are there.
    """

    def __init__(
        self, database: Database, tell: Callable[[str], None], done: Callable[[int], None]
    ) -> None:
        self._database = database
        self._tell = tell
        self._done = done
        self._waiting: list[Changes] = []
        self._bytes = 0
        self._number = 0
        self._applied = 0
        self._since = 0.0  # when the first that wait have come
        self._wanted = 0  # somebody waits for this number
        self._lets_pass = False
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="wirelake-tables", daemon=True)
        self._thread.start()

    def add(self, changes: Changes, number: int, size: int) -> None:
        """Bring these in, which have so many bytes in the log, up to this number."""
        with self._changed:
            self._changed.wait_for(lambda: self._bytes <= MOST_BYTES or self._lets_pass)
            if self._number == self._applied:
                self._since = time.monotonic()
                self._changed.notify_all()
            self._waiting.append(changes)
            self._number = number
            self._bytes += size
            if self._bytes > EAGER_BYTES:
                self._changed.notify_all()

    @property
    def is_settled(self) -> bool:
        """Is everything in the database?"""
        return self._number == self._applied

    def settle(self, timeout: float) -> bool:
        """Bring everything in now, and wait for so long at most (seconds); is it there?"""
        with self._changed:
            self._wanted = self._number
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self.is_settled, timeout)

    def let_pass(self) -> None:
        """Let nobody wait in `add` any more: the end is near."""
        with self._changed:
            self._lets_pass = True
            self._changed.notify_all()

    def close(self) -> None:
        """Bring everything in, or try to: the log has it."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or not self.is_settled)
                if self.is_settled:
                    return
                self._changed.wait_for(self._is_due, self._since + LINGER - time.monotonic())
                waiting, number, size = self._waiting, self._number, self._bytes
                self._waiting = []
            changes = Changes()
            for one in waiting:
                changes.follow(one)
            commit = partial(self._database.commit, changes, number)
            if at_last(commit, self._tell, lambda: self._closing, self._pause) is not None:
                return  # the log has it
            with self._changed:
                self._applied = number
                self._bytes -= size
                self._since = time.monotonic()
                self._changed.notify_all()
            self._done(number)

    def _is_due(self) -> bool:
        hurries = self._closing or self._wanted > self._applied
        return hurries or self._bytes > EAGER_BYTES

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing, seconds)
