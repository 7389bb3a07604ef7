"""A trace: for a while, who really got the messages of a filter, in which dialect and bytes.

Only one is on at a time, and it ends by itself, see `TraceLimits`. While none is on it costs one
comparison a run of messages.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from wirelake.address import matches

if TYPE_CHECKING:
    from wirelake.broker.endpoint import Endpoint
    from wirelake.broker.queues import Queues
    from wirelake.broker.router import Router
    from wirelake.broker.topics import Topics
    from wirelake.broker.vitals import Vitals
    from wirelake.wire import FrameTable

#: The maximum number of a message's receivers that are listed.
MOST_RECEIVERS = 50
#: Rows of a run that are looked at.
MOST_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """How long a trace is on, and what it holds at most."""

    seconds: float = 60.0
    messages: int = 200
    #: Of payloads, headers and frames. A message beyond it is noted without its payload and frames.
    size: int = 4 << 20


class Trace:
    """What was delivered to whom, of one filter."""

    def __init__(
        self,
        vitals: Vitals,
        topics: Topics,
        queues: Queues,
        router: Router,
        filter: str,
        now: float,
        limits: TraceLimits = TraceLimits(),  # noqa: B008 - immutable
    ) -> None:
        """Begin to trace a filter; a trace that is on ends."""
        self._vitals = vitals
        self._topics = topics
        self._queues = queues
        self._router = router
        self.filter = filter
        self.limits = limits
        self.until = now + limits.seconds
        self.messages: list[dict[str, Any]] = []
        self._size = 0
        router.on_publish = self.published

    @property
    def is_on(self) -> bool:
        """Return whether messages are still noted."""
        return self._router.on_publish == self.published

    def end(self) -> None:
        """End the trace; what it has seen stays."""
        if self.is_on:
            self._router.on_publish = None

    def published(
        self, session: Endpoint, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Rows [start, end) are being published: note those of the filter."""
        for row in range(start, min(end, start + MOST_ROWS)):
            if now > self.until or self._is_full():
                self.end()
                return
            address = table.address(row).decode(errors="replace")
            if matches(self.filter, address):
                self._note(session, table, row, address, now)

    def _is_full(self) -> bool:
        return len(self.messages) >= self.limits.messages or self._size >= self.limits.size

    def _note(
        self, session: Endpoint, table: FrameTable, row: int, address: str, now: float
    ) -> None:
        message = table.message(row)
        size = len(message.payload)
        receivers = [] if address in self._queues else self._topics.subscribers(address)
        frames: dict[str, bytes] = {}
        deliveries: list[dict[str, Any]] = []
        for member in receivers[:MOST_RECEIVERS]:
            if member.form not in frames and self._size + 2 * size > self.limits.size:
                self._size = self.limits.size  # a frame has the payload: there is no room for it
                frames[member.form] = b""
            elif member.form not in frames:
                rows = array("i", [row])
                frames[member.form] = bytes(
                    self._router.frames(session, member.form, table, 0, 0, rows)
                )
                self._size += len(frames[member.form])
            deliveries.append(
                {
                    "id": member.client_id,
                    "peer": member.link.peer,
                    "dialect": member.dialect,
                    "frame": frames[member.form],
                }
            )
        self._size += sum(len(name) + len(value) for name, value in message.headers.items())
        if self._size + size > self.limits.size:
            self._size = self.limits.size
            message = msgspec.structs.replace(message, payload=b"")
        else:
            self._size += size
        self.messages.append(
            {
                "number": len(self.messages) + 1,
                "time": self._vitals.timestamp(now),
                "peer": session.link.peer,
                "dialect": session.dialect,
                "source": session.client_id,
                "message": message,
                "size": size,
                "receivers": len(receivers),
                "is_queue": address in self._queues,
                "deliveries": deliveries,
            }
        )
