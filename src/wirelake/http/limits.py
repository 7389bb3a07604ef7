"""What HTTP may hold at a time: the settings in force, and the counts that they limit."""

from __future__ import annotations

import asyncio

from wirelake.config import GuessSettings, Settings, WebSettings
from wirelake.errors import RefusedError


class HttpLimits:
    """The limits in force. The broker's thread replaces whole values while HTTP's reads them."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.configure(settings or Settings())

    def configure(self, settings: Settings) -> None:
        """Put settings into force."""
        self.web: WebSettings = settings.web
        self.guesses: GuessSettings = settings.guesses
        #: Seconds without a byte of a request, and then the minimum average rate (bytes a second).
        self.patience: float = settings.handshake_timeout
        self.min_rate: int = settings.limits.min_rate

    def is_late(self, size: int, seconds: float) -> bool:
        """Have too few bytes come in this many seconds, for what has begun and is not complete?"""
        late = seconds - self.patience
        return late > 0 and size < self.min_rate * late

    def check(self, kind: str, count: int) -> None:
        """Refuse one more of a kind where there are `count`; the setting is named `web.<kind>`."""
        most: int = getattr(self.web, kind)
        if count >= most:
            text = f"HTTP has {count} {kind}, the most allowed (web.{kind})"
            raise RefusedError("busy", text)


class Memory:
    """The bytes of bodies and of unfinished WebSocket messages, of all connections together."""

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._held = 0

    def take(self, size: int) -> None:
        """Hold this many more, or raise RefusedError."""
        most = self._limits.web.bodies
        if self._held + size > most:
            text = f"bodies of all requests together have at most {most} bytes (web.bodies)"
            raise RefusedError("busy", text)
        self._held += size

    def give_back(self, size: int) -> None:
        """Hold this many less."""
        self._held -= size


class Delays:
    """Delayed answers to wrong tokens, limited in number: each holds a connection."""

    #: The longest that one of them is delayed (seconds): proxies and people wait for it.
    LONGEST = 5.0

    def __init__(self, limits: HttpLimits) -> None:
        self._limits = limits
        self._waiting = 0

    async def wait(self, seconds: float) -> None:
        """Wait this many seconds, or not at all if too many answers wait already."""
        if self._waiting >= self._limits.guesses.held_answers:
            return
        self._waiting += 1
        try:
            await asyncio.sleep(min(seconds, self.LONGEST))
        finally:
            self._waiting -= 1
