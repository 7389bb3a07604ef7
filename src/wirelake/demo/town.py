"""The town of the demo: where its clients connect, how they take turns, and what they counted."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from wirelake.client import Client, connect
from wirelake.errors import RefusedError, WirelakeError

PATTERNS = ("publish", "chat", "request", "queue", "store", "stream", "direct")

#: The share of messages that are not measurements, and the most of each kind a second.
SHARE, MOST = 0.04, 40.0
#: How often a second sensors send what they have measured.
BEAT = 10.0
#: Longest mean wait, in seconds, before a client's first turn.
SOON = 0.5


@dataclass
class Town:
    """The state that all clients of a demo share."""

    urls: dict[str, str]  # by dialect: those that can be reached
    token: str
    rate: float  # messages a second, about
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)  # by dialect and pattern
    heard: Counter[tuple[str, str]] = field(default_factory=Counter)
    happened: Counter[str] = field(default_factory=Counter)  # what went wrong, by kind
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _numbers: Iterator[int] = field(default_factory=lambda: count(int(time.time() * 1000)))

    @property
    def messages(self) -> int:
        """The number of messages sent."""
        return self.sent.total()

    @property
    def pace(self) -> float:
        """How often a second each kind of event happens that is not a measurement."""
        return min(MOST, max(0.5, self.rate * SHARE))

    def number(self) -> int:
        """A number that is given out once."""
        return next(self._numbers)

    @asynccontextmanager
    async def connected(self, dialect: str, name: str) -> AsyncIterator[Client]:
        """A client of a dialect, under this client id unless that is empty."""
        url = self.urls[dialect]
        async with connect(url, client_id=name, token=self.token, max_delay=2.0) as client:
            yield client

    def count_sent(self, client: Client, pattern: str, number: int = 1) -> None:
        """Count messages that a client sent."""
        self.sent[client.dialect, pattern] += number

    def count_heard(self, client: Client, pattern: str, number: int = 1) -> None:
        """Count messages that a client received."""
        self.heard[client.dialect, pattern] += number

    def went_wrong(self, error: WirelakeError) -> None:
        """Count an error by its code."""
        code = error.code if isinstance(error, RefusedError) else "other errors"
        self.happened[code.replace("_", " ")] += 1

    async def pause(self, mean: float) -> bool:
        """Wait for a random time with this mean; False if the demo is over."""
        try:
            async with asyncio.timeout(random.expovariate(1 / mean)):
                await self.over.wait()
        except TimeoutError:
            return True
        return False

    async def turns(self, mean: float) -> AsyncIterator[None]:
        """Yield at random times with this mean interval, the first soon, until the demo is over."""
        wait = min(mean, SOON)
        while await self.pause(wait):
            yield
            wait = mean

    async def due(self, rate: float) -> AsyncIterator[int]:
        """Yield the number of messages that are due at this rate, until the demo is over."""
        loop = asyncio.get_running_loop()
        last, owed = loop.time(), random.random()
        while not self.over.is_set():
            await asyncio.sleep(1 / BEAT)
            now = loop.time()
            owed += rate * min(now - last, 1.0)
            last = now
            if owed >= 1:
                yield int(owed)
                owed %= 1
