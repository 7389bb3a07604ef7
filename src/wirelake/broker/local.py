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

from wirelake.broker.budget import OVERHEAD, Budget
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.broker.session import Session
from wirelake.errors import RefusedError
from wirelake.message import Message
from wirelake.wire import FrameTable

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
        self.moved = 0
        self._budget: Budget | None = None
        self._changed = changed
        self._lock = threading.Lock()
        self._frames: deque[bytes | memoryview] = deque()
        self._taken: deque[bytes | memoryview] = deque()  # and not sent yet
        self._buffered = 0

    # From the session

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes after all that was written before."""
        if self.is_open:
            with self._lock:
                self._frames.append(data)
                self._buffered += len(data) + OVERHEAD
            if self._budget is not None:
                self._budget.hold(data)
                self._budget.holders[self] = None
            self._changed()

    def close(self) -> None:
        """Close when everything that was written has been taken."""
        self.is_open = False
        self._changed()

    def abort(self) -> None:
        """Close now; what has not been taken is lost."""
        with self._lock:
            left = [*self._frames, *self._taken]
            self._frames.clear()
            self._taken.clear()
            self._buffered = 0
        if self._budget is not None:
            for data in left:
                self._budget.release(data)
            self._budget.holders.pop(self, None)
        self.close()

    def pause(self) -> None:
        """Publish no more until `resume`."""
        self.is_paused = True

    def resume(self) -> None:
        """Publish again."""
        self.is_paused = False
        self._changed()

    def wake(self) -> None:
        """Let whoever waits for this link look again."""
        self._changed()

    def receive_again(self) -> None:
        """Nothing is ever left over."""

    def authenticated(self) -> None:
        """Nobody counts who comes by HTTP here."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""
        return self._buffered

    def count_in(self, budget: Budget) -> None:
        """Let what waits here count in the budget of all outboxes."""
        self._budget = budget

    # From the other thread

    def take(self) -> bytes | memoryview | None:
        """The next bytes, if there are any; they are `buffered` until they are `sent`."""
        with self._lock:
            if not self._frames:
                return None
            self._taken.append(self._frames.popleft())
            return self._taken[-1]

    def sent(self) -> None:
        """The bytes that were taken first have gone out."""
        with self._lock:
            if self._taken:  # else the link was aborted
                data = self._taken.popleft()
                self._buffered -= len(data) + OVERHEAD
                self.moved += len(data)
                if self._budget is not None:
                    self._budget.give_back(data)


class LocalSession(Session):
    """One request, or one subscriber, that came by HTTP."""

    takes_direct = False
    acknowledges = False
    waits_for_owners = True

    def __init__(
        self, node: Node, link: LocalLink, rights: Rights, now: float, client_id: str = ""
    ) -> None:
        current = node.clients.current_rights(
            rights
        )  # they may have changed since the request came
        if current is None:
            raise RefusedError("unauthorized", "the token is not known")
        super().__init__(node, link, FORM, now)
        link.count_in(node.flow.budget)
        self.dialect = DIALECT
        self.rights = current
        self.client_id = client_id  # the source of what it publishes
        self.refusal: RefusedError | None = None
        self.is_revoked = False

    def revoke(self) -> None:
        """End this session: whoever it belongs to has lost rights."""
        self.refusal = RefusedError("unauthorized", "the rights of this token have changed")
        self.is_revoked = True
        self.close("its rights have changed")

    def lost(self, reason: str) -> None:
        """The request has ended; what was not taken is lost."""
        super().lost(reason)
        self.link.abort()

    def answered(self) -> None:
        """Wake whoever waits for other nodes."""
        assert isinstance(self.link, LocalLink)
        self.link.wake()

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Remember why something was not done; the first reason counts."""
        self.refusal = self.refusal or error

    def refuse_unasked(self, error: RefusedError, count: int) -> None:
        """Remember why something was not done; the first reason counts."""
        self.refusal = self.refusal or error

    def accept(self, message: Message) -> None:
        """Whoever published waits for all of it, with `Engine.after`."""

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Whoever published waits for all of it, with `Engine.after`."""
