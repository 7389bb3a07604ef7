"""The loop around a scanner: bytes come in as they were read, frame tables go out.

A feed keeps what is not consumed yet, and tells the dialect from the first bytes where it is not
given. A large frame is appended to until it is complete, and not looked at before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from wirelake.errors import ProtocolError
from wirelake.message import Limits
from wirelake.wire.codec import Scanner
from wirelake.wire.detect import detect
from wirelake.wire.dialects import scanner
from wirelake.wire.table import FrameTable


class Feed:
    """One direction of one connection: `receive` its bytes, then `finish`."""

    def __init__(
        self,
        dialect: str | None = None,
        *,
        family: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        capacity: int = 4096,
    ) -> None:
        self.dialect = dialect
        self.base = 0  # where in the stream the buffer of the current table begins
        self._family = family
        self._limits = limits
        self._scanner: Scanner | None = scanner(dialect, limits) if dialect else None
        self._table = FrameTable(capacity)
        self._rest = bytearray()

    def receive(self, data: bytes | bytearray | memoryview) -> Iterator[FrameTable]:
        """The messages that `data` completes; a table is good until the next one is asked for."""
        self._rest += data
        if self._scanner is None:
            self.dialect = detect(self._rest, self._family)
            if self.dialect is None:
                return
            self._scanner = scanner(self.dialect, self._limits)
        if len(self._rest) >= self._scanner.need:
            yield from self._scan(self._scanner, self._scanner.scan)

    def finish(self) -> Iterator[FrameTable]:
        """The messages that are complete now that nothing follows; a torn one is an error."""
        if self._scanner is not None:
            yield from self._scan(self._scanner, self._scanner.finish)
        elif self._rest:
            raise ProtocolError(self._family or "auto", 0, "too short to tell the dialect")

    def _scan(
        self, scanner: Scanner, scan: Callable[[memoryview, FrameTable], int]
    ) -> Iterator[FrameTable]:
        at = 0
        try:
            while True:
                self.base = scanner.offset
                used = scan(memoryview(self._rest)[at:], self._table)
                at += used
                if self._table.count:
                    yield self._table
                if not (used and scanner.again):
                    return
        finally:
            # Whoever kept a view of a frame keeps its bytes: what is left moves to a new buffer.
            self._table.release()
            if at:
                self._rest = self._rest[at:]
