"""Open files: each connection is one, and the system limits how many a process may have.

A process that has none left can accept nobody, nor open a file of its log, nor answer `/healthz`.
So the limit of the system is shared out: some files are kept for the log and the database, some for
HTTP, and connections on the wire beyond the rest are refused, which is an event. Where none are
left all the same, that is an event, too.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable

#: Files kept for the log, the database and the broker itself; a quarter of a small limit.
KEPT = 128
#: The shortest time between two events of the same kind (seconds).
QUIET = 10.0


def limit() -> int:
    """How many files this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def for_http(wanted: int) -> int:
    """How many connections HTTP may have: as many as wanted, or a quarter of all files."""
    return max(8, min(wanted, limit() // 4))


class Descriptors:
    """Says whether there is room for one more connection; `tell` hears where there is not."""

    def __init__(self, tell: Callable[[str], object]) -> None:
        self._tell = tell
        self._told = -QUIET
        self.refused = 0
        self.most = 0
        self.share_out(0)

    def share_out(self, http: int) -> None:
        """Reserve files for HTTP, which needs this many connections, and for the broker itself."""
        files = limit()
        self.most = max(1, files - min(KEPT, files // 4) - for_http(http))

    def admit(self, count: int, now: float) -> bool:
        """May there be one more connection than these?"""
        if count < self.most:
            return True
        self.refused += 1
        self._say(
            f"{count} connections are open, and the limit of open files (ulimit -n) is {limit()}:"
            f" {self.refused} connections were refused since the start",
            now,
        )
        return False

    def check(self, now: float) -> None:
        """Find out whether there is a file left."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self._say(f"no file can be opened any more: {error.strerror}", now)

    def _say(self, text: str, now: float) -> None:
        if now - self._told >= QUIET:
            self._told = now
            self._tell(text)
