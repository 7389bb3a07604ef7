"""A trace: for a while, who really got the messages of a filter, in which dialect and bytes.

Only one is on at a time, and it ends by itself: after `SECONDS`, `MOST_MESSAGES` or `MOST_BYTES`.
While none is on it costs one comparison a run of messages.
"""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

from wirelake.address import matches

if TYPE_CHECKING:
    from wirelake.broker.endpoint import Endpoint
    from wirelake.wire import FrameTable

#: How long a trace is on, and what it holds at most.
SECONDS = 60.0
MOST_MESSAGES = 200
MOST_BYTES = 4 << 20
#: Receivers of a message that are told one by one.
MOST_RECEIVERS = 50
#: Rows of a run that are looked at.
MOST_ROWS = 1_000


class Trace:
    """What was delivered to whom, of one filter."""

    def __init__(self, node: Any, filter: str, now: float) -> None:
        self._node = node
        self.filter = filter
        self.until = now + SECONDS
        self.messages: list[dict[str, Any]] = []
        self._size = 0

    def published(
        self, session: Endpoint, table: FrameTable, start: int, end: int, now: float
    ) -> None:
        """Rows [start, end) are being published: note those of the filter."""
        for row in range(start, min(end, start + MOST_ROWS)):
            if now > self.until or self._is_full():
                self._node.router.trace = None
                return
            address = table.address(row).decode(errors="replace")
            if matches(self.filter, address):
                self._note(session, table, row, address, now)

    def _is_full(self) -> bool:
        return len(self.messages) >= MOST_MESSAGES or self._size > MOST_BYTES

    def _note(
        self, session: Endpoint, table: FrameTable, row: int, address: str, now: float
    ) -> None:
        node = self._node
        message = table.message(row)
        receivers = [] if address in node.queues else node.topics.subscribers(address)
        frames: dict[str, bytes] = {}
        deliveries: list[dict[str, Any]] = []
        for member in receivers[:MOST_RECEIVERS]:
            if member.form not in frames:
                rows = array("i", [row])
                frames[member.form] = bytes(
                    node.router.frames(session, member.form, table, 0, 0, rows)
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
        self._size += len(message.payload)
        self.messages.append(
            {
                "number": len(self.messages) + 1,
                "time": node.vitals.timestamp(now),
                "peer": session.link.peer,
                "dialect": session.dialect,
                "source": session.client_id,
                "message": message,
                "receivers": len(receivers),
                "is_queue": address in node.queues,
                "deliveries": deliveries,
            }
        )
