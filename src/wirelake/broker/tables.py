"""The frame tables that the whole broker shares, since only one of them is in use at a time.

A table is cleared whole when it is filled with messages, or by another dialect than before. So each
dialect that is scanned has a table of its own, and there are small ones for few messages.
"""

from __future__ import annotations

from wirelake.wire import FrameTable

#: Messages that the small table takes.
FEW = 64


class Tables:
    """Frame tables by use."""

    def __init__(self) -> None:
        self._scanned: dict[str, FrameTable] = {}
        self._one = FrameTable(1)
        self._few = FrameTable(FEW)
        self._many = FrameTable()

    def scanned(self, dialect: str) -> FrameTable:
        """Return the table that the sessions of a dialect scan into, one read at a time."""
        if dialect not in self._scanned:
            self._scanned[dialect] = FrameTable()
        return self._scanned[dialect]

    def room(self, count: int) -> FrameTable:
        """Return a table for `count` messages; it is anybody's again after the next call."""
        if count == 1:
            return self._one
        return self._few if count <= self._few.capacity else self._many
