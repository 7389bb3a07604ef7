"""One connection's side of the broker: bytes in, decisions, bytes out. No sockets.

`Link` is what a session needs of its connection; `net` implements it on sockets, tests in memory.
A session scans what it receives into its dialect's frame table and walks its rows: runs of plain
publishes go to the node as they are, everything else row by row as messages. What a dialect does
with an op is in its own module; the node knows no dialects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

from wirelake.broker.route import plain_run
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Message, Op
from wirelake.wire import FrameTable, encoder, scanner

if TYPE_CHECKING:
    from array import array

    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights


class Link(Protocol):
    """A connection, as a session sees it."""

    peer: str

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes after all that was written before."""

    def close(self) -> None:
        """Close when everything that was written has gone out."""

    def abort(self) -> None:
        """Close now; what has not gone out is lost."""

    def pause(self) -> None:
        """Read no more until `resume`."""

    def resume(self) -> None:
        """Read again."""

    def receive_again(self) -> None:
        """Give the session once more what it left over."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""


class Session(ABC):
    """What all dialects share; a subclass says what its ops mean and how they are answered."""

    #: Can a message be sent to this client itself?
    takes_direct = True
    #: Can a byte stream be opened to this client?
    has_streams = False
    #: Does this client acknowledge what it gets from a queue?
    acknowledges = True
    #: Is a ttl of this dialect a hop count, and not a time?
    counts_hops = False
    #: What a client that asked is told when its publish is done.
    accepted_by = Op.OK

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        self.node = node
        self.link = link
        self.dialect = dialect
        self.table = node.table(dialect)
        self.scanner = scanner(dialect, node.limits)
        self.encoder = encoder(dialect, client=False)
        self.form = dialect  # how frames for this client are written; see Node.encoder
        self.client_id = ""
        self.token = ""
        self.rights: Rights = node.rights_of_strangers
        self.filters: dict[str, None] = {}
        self.consumes: dict[str, None] = {}
        self.closed = False
        self.last_heard = now
        self.waits_for: set[object] = set()  # subscribers, or the disk
        self._answers: list[bytes | memoryview] | None = None  # to what is being read
        node.now = now
        self.number = node.joined(self)

    def __repr__(self) -> str:
        return f"<{self.dialect} {self.client_id or '?'} at {self.link.peer}>"

    # In

    def receive(self, data: memoryview, now: float) -> int:
        """Take what can be taken of these bytes; return how many."""
        table = self.table
        at = 0
        self.last_heard = self.node.now = now
        self._answers = []
        try:
            while not self.closed:
                used = self.scanner.scan(data[at:], table)
                at += used
                self._walk(table, now)
                if not (used and self.scanner.again):
                    break
        except ProtocolError as error:
            self.node.protocol_error(self, error)
            self.answer_fault(error)
            self.close("protocol error")
        finally:
            table.release()
            self._flush()
        self.node.capture.hold_back(self)
        return at

    def answer_fault(self, error: ProtocolError) -> None:
        """Tell the client, where the dialect can, how it broke the grammar."""
        if error.answer:
            self.write(error.answer)

    def _walk(self, table: FrameTable, now: float) -> None:
        row = 0
        while row < table.count and not self.closed:
            end = plain_run(table, row)
            if end > row and self.accepts_publishes():
                self.publish(table, row, end, now)
                row = end
            else:
                self.control(table.message(row), now)
                row += 1

    def publish(self, table: FrameTable, start: int, end: int, now: float) -> None:
        """Hand a run of plain publishes to the node."""
        self.node.publish(self, table, start, end, now)

    def pairs_with(self, other: Session) -> bool:
        """May both have the same client id at the same time?"""
        return False

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """May the frames of these rows go to others of this form byte for byte?"""
        return True

    def accepts_publishes(self) -> bool:
        """May plain publishes go straight to the node?"""
        return True

    def control(self, message: Message, now: float) -> None:
        """Do what one message asks for, and answer it as the dialect does."""
        try:
            self.perform(message, now)
        except RefusedError as error:
            self.node.count_refused(error.code)
            self.refuse(message, error)

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        raise RefusedError("bad_request", f"{self.dialect} has no {message.op}")

    @abstractmethod
    def refuse(self, message: Message, error: RefusedError) -> None:
        """Tell the client why its message was not done."""

    @abstractmethod
    def accept(self, message: Message) -> None:
        """Tell the client that its message is done."""

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Tell the client that these rows are done, once they are durable if they are kept."""
        if len(rows):
            answers = self.node.room(len(rows))
            answers.answer(table, rows, self.accepted_by)
            frames = bytes(self.encoder.encode(answers))
            self.node.answer(lambda: None if self.closed else self.write(frames), kept=kept)

    def refuse_unasked(self, error: RefusedError, count: int) -> None:  # noqa: B027 - see accept
        """Tell the client, where the dialect can, that publishes were not done: no one asked."""

    def end_of_pull(self, request: Message, taken: int) -> None:  # noqa: B027 - most dialects have nothing to do
        """Tell the client that its request for messages of a queue has ended."""

    def tick(self, now: float) -> None:  # noqa: B027 - most dialects have nothing to do
        """Time has passed."""

    # Out

    def send(self, message: Message) -> bool:
        """Send one message, if the client is there and its dialect can say it."""
        if self.closed:
            return False
        table = self.node.room(1)
        table.fill([message], message.dialect)
        frames = self.encoder.encode(table)
        if not frames:
            return False
        self.write(frames)
        return True

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes: what answers one read goes out in one piece."""
        if self._answers is None:
            self.link.write(data)
        else:
            self._answers.append(data)

    def _flush(self) -> None:
        answers, self._answers = self._answers, None
        if answers:
            self.link.write(answers[0] if len(answers) == 1 else b"".join(answers))

    def say_goodbye(self) -> None:  # noqa: B027 - most dialects have nothing to do
        """Tell the client that the broker is going, where the dialect can."""

    def close(self, reason: str) -> None:
        """End the connection, once what was written has gone out."""
        if not self.closed:
            self.closed = True
            self.node.left(self, reason)
            self._flush()
            self.link.close()

    def lost(self, reason: str) -> None:
        """The connection has ended."""
        if not self.closed:
            self.closed = True
            self.node.left(self, reason)
