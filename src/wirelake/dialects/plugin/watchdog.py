"""Reports a plug-in that does not return, since nothing else can run meanwhile.

A thread looks once a second at what the thread of the broker is doing. It cannot end a plug-in; it
writes a line to the log with the name of the dialect and the place in its code, so that operators
know whom to blame. It needs the interpreter's lock, so it cannot see compiled code that holds it.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger("wirelake.dialects")

#: How often to look, and how long a plug-in may take (seconds).
LOOK_EVERY = 1.0
PATIENCE = 5.0


class Watchdog:
    """One for a process; its thread starts with the first plug-in that is called."""

    def __init__(self, look_every: float = LOOK_EVERY, patience: float = PATIENCE) -> None:
        self._look_every = look_every
        self._patience = patience
        self._thread: threading.Thread | None = None
        # What is called now: the dialect, since when, and by which thread.
        self._called: tuple[str, float, int] | None = None
        self._told: tuple[str, float, int] | None = None

    @contextmanager
    def watching(self, dialect: str) -> Iterator[None]:
        """Watch the calls into a plug-in until the end of the block."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        before = self._called
        self._called = called = (dialect, time.monotonic(), threading.get_ident())
        try:
            yield
        finally:
            self._called = before
            if self._told is called:
                seconds = time.monotonic() - called[1]
                log.error("%s: the plug-in returned after %.0f s", dialect, seconds)

    def _watch(self) -> None:
        while True:
            time.sleep(self._look_every)
            called = self._called
            if called is None or called is self._told:
                continue
            dialect, since, thread = called
            seconds = time.monotonic() - since
            if seconds < self._patience:
                continue
            self._told = called
            frame = sys._current_frames().get(thread)
            where = "".join(traceback.format_stack(frame, limit=None)[-3:]) if frame else ""
            text = "%s: the plug-in has not returned for %.0f s, and the broker waits for it\n%s"
            log.error(text, dialect, seconds, where.rstrip())


WATCHDOG = Watchdog()
