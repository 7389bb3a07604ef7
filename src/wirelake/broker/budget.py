"""The bytes that wait in all outboxes together.

The same published bytes usually wait in many outboxes: they are held once, and count once. So
outboxes hand in the very objects that they hold, and the budget counts how many hold each.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

#: What a piece in an outbox takes beside its bytes, roughly.
OVERHEAD = 128


class Holder(Protocol):
    """An outbox, or the connection that has it."""

    def abort(self) -> None:
        """Let go of everything, now."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""

    @property
    def moved(self) -> int:
        """The bytes that have gone out since the beginning."""


class Budget:
    """Counts the bytes that outboxes hold, against the most they may hold together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.is_exceeded = False  # do they hold more than they may?
        self._in_transit = 0  # bytes inside the event loop's transports, when last looked at
        self.holders: dict[Holder, None] = {}  # the outboxes that are not empty
        self._held = 0
        self._shares: dict[int, int] = {}  # how many outboxes hold an object, by its id
        self._returned: deque[bytes | memoryview] = deque()

    @property
    def used(self) -> int:
        """The bytes that are held now."""
        while self._returned:
            self.release(self._returned.popleft())
        return self._held + self._in_transit

    def look(self, in_transit: int | None = None) -> None:
        """Count again, as things may have changed: the limit, or what transports hold."""
        if in_transit is not None:
            self._in_transit = in_transit
        self.is_exceeded = self.used > self.most

    def has_room(self, size: int) -> bool:
        """May outboxes hold `size` more bytes?"""
        return self.used + size <= self.most

    def hold(self, data: bytes | memoryview) -> None:
        """An outbox begins to hold this object."""
        shares = self._shares.get(id(data), 0)
        if not shares:
            self.add(len(data) + OVERHEAD)
        self._shares[id(data)] = shares + 1

    def release(self, data: bytes | memoryview) -> None:
        """An outbox holds this object no more."""
        shares = self._shares.pop(id(data)) - 1
        if shares:
            self._shares[id(data)] = shares
        else:
            self.add(-len(data) - OVERHEAD)

    def give_back(self, data: bytes | memoryview) -> None:
        """Release bytes from any thread; they count when the broker looks next."""
        self._returned.append(data)

    def add(self, size: int) -> None:
        """Add or subtract bytes, also of answers that wait for the disk."""
        self._held += size
        self.is_exceeded = self._held + self._in_transit > self.most
