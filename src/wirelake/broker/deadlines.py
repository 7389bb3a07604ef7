"""Deadlines by key: the next one is found at once, and what was given up takes no memory."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

#: A heap with this many entries is never too large.
_SMALL = 64


class Deadlines(Generic[K]):
    """When the time of each key is up.

    A heap orders the deadlines, a dictionary has the one that counts for each key. Entries of the
    heap that do not count any more are skipped; when they are more than half of it, they go.
    """

    __slots__ = ("_count", "_heap", "_when")

    def __init__(self) -> None:
        self._when: dict[K, tuple[float, int]] = {}
        self._heap: list[tuple[float, int, K]] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, key: K) -> bool:
        return key in self._when

    @property
    def entries(self) -> int:
        """The entries that the heap has, those that do not count any more included."""
        return len(self._heap)

    def set(self, key: K, when: float) -> None:
        """Let a key have this deadline, and no other."""
        self._count += 1  # keys need not be comparable
        self._when[key] = when, self._count
        heapq.heappush(self._heap, (when, self._count, key))
        self._tidy()

    def discard(self, key: K) -> None:
        """Let a key have no deadline."""
        if self._when.pop(key, None) is not None:
            self._tidy()

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap and self._when.get(self._heap[0][2]) != self._heap[0][:2]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float, most: int | None = None) -> Iterator[K]:
        """Remove and return keys whose deadline has passed, earliest first, up to a maximum."""
        while most is None or most > 0:
            earliest = self.next()
            if earliest is None or earliest > now:
                return
            key = heapq.heappop(self._heap)[2]
            del self._when[key]
            most = None if most is None else most - 1
            yield key

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._when) + _SMALL:
            self._heap = [(when, count, key) for key, (when, count) in self._when.items()]
            heapq.heapify(self._heap)
