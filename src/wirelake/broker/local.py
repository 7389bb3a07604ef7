"""A session without a socket: what comes by HTTP, as the broker sees it.

A request that publishes is a session for as long as it takes; a stream of events is one that
subscribes. So both are subject to the same rights, limits and flow rules as a client on the wire.
What a subscriber gets is frames of one dialect, the one that carries most; they are read again on
the other side, on another thread.
"""

from __future__ import annotations

import threading
from array import array
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from wirelake.broker.session import Session
from wirelake.errors import RefusedError
from wirelake.message import Message
from wirelake.wire import FrameTable

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights

#: The dialect of the frames that a local subscriber gets.
FORM = "boson-binary"
DIALECT = "http"


class LocalLink:
    """A connection inside the process: written to by the broker, taken from by another thread.

    `changed` is called, on the broker's thread, when there is something to take, when the link has
    closed, and when a pause ends.
    """

    def __init__(self, peer: str, changed: Callable[[], object]) -> None:
        self.peer = peer
        self.is_open = True
        self.is_paused = False
        self._changed = changed
        self._lock = threading.Lock()
        self._frames: deque[bytes] = deque()
        self._buffered = 0

    # From the session

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes after all that was written before."""
        if self.is_open:
            with self._lock:
                self._frames.append(bytes(data))
                self._buffered += len(data)
            self._changed()

    def close(self) -> None:
        """Close when everything that was written has been taken."""
        self.is_open = False
        self._changed()

    def abort(self) -> None:
        """Close now; what has not been taken is lost."""
        with self._lock:
            self._frames.clear()
            self._buffered = 0
        self.close()

    def pause(self) -> None:
        """Publish no more until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Publish again."""
        self.is_paused = False
        self._changed()

    def receive_again(self) -> None:
        """Nothing is ever left over."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""
        return self._buffered

    # From the other thread

    def take(self) -> bytes | None:
        """The next bytes, if there are any; they are `buffered` until they are `sent`."""
        with self._lock:
            return self._frames.popleft() if self._frames else None

    def sent(self, size: int) -> None:
        """So many bytes have gone out."""
        with self._lock:
            self._buffered = max(0, self._buffered - size)


class LocalSession(Session):
    """One request, or one subscriber, that came by HTTP."""

    takes_direct = False
    acknowledges = False

    def __init__(
        self, node: Node, link: LocalLink, rights: Rights, now: float, client_id: str = ""
    ) -> None:
        if rights not in node.all_rights:  # they changed since the request came
            current = node.succeeding_rights(rights)
            if current is None:
                raise RefusedError("unauthorized", "the token is not known")
            rights = current
        super().__init__(node, link, FORM, now)
        self.dialect = DIALECT
        self.rights = rights
        self.client_id = client_id  # the source of what it publishes
        self.refusal: RefusedError | None = None
        self.is_revoked = False

    def revoke(self) -> None:
        """End this session: whoever it belongs to has lost rights."""
        self.refusal = RefusedError("unauthorized", "the rights of this token have changed")
        self.is_revoked = True
        self.close("its rights have changed")

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Remember why something was not done; the first reason counts."""
        self.refusal = self.refusal or error

    def refuse_unasked(self, error: RefusedError, count: int) -> None:
        """Remember why something was not done; the first reason counts."""
        self.refusal = self.refusal or error

    def accept(self, message: Message) -> None:
        """Whoever published waits for all of it, with `Node.after`."""

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Whoever published waits for all of it, with `Node.after`."""
