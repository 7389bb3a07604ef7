"""One connection's side of the broker: bytes in, decisions, bytes out. No sockets.

`Link` is what a session needs of its connection; `net` implements it on sockets, tests in memory.
A session scans what it receives into its dialect's frame table and walks its rows: runs of plain
publishes go to the node as they are, everything else row by row as messages. What a dialect does
with an op is in its own module; the node knows no dialects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Protocol

from wirelake.broker.flow import LARGE, Policy
from wirelake.broker.route import plain_run
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Message, Op
from wirelake.wire import FrameTable, encoder, scanner

if TYPE_CHECKING:
    from array import array

    from wirelake.broker.node import Audience, Node
    from wirelake.broker.rights import Rights

#: Frames of fewer bytes are copied, so that they hold no buffer that is larger than they are.
SMALL = 4096
#: What answers one read goes out in one piece, of at most this many bytes.
PIECE = 256 << 10


#: A session does this much work (see `Node.work`) before it gives way to others, about 3 ms.
WORK = 200
#: Rows that are no publishes and that are read at once.
STEPS = 64
#: Bytes that a new session scans at once; more where that is little work, less where it is much.
APPETITE = 16 << 10
LEAST_APPETITE = 512
MOST_APPETITE = 1 << 24


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
        """Soon give the session what it left over, then read again."""

    def receive_again(self) -> None:
        """Give the session once more what it left over."""

    def authenticated(self) -> None:
        """Count the client no more among the strangers of its address."""

    @property
    def buffered(self) -> int:
        """The bytes written that have not gone out yet."""

    @property
    def moved(self) -> int:
        """The bytes that have gone out since the beginning."""


class Session(ABC):
    """What all dialects share; a subclass says what its ops mean and how they are answered."""

    #: Can a message be sent to this client itself?
    takes_direct = True
    #: Can a byte stream be opened to this client?
    has_streams = False
    #: Does this client acknowledge what it gets from a queue?
    acknowledges = True
    #: Does this client only look on, so that nobody takes care of it?
    observes = False
    #: Is a ttl of this dialect a hop count, and not a time?
    counts_hops = False
    #: What a client that asked is told when its publish is done.
    accepted_by = Op.OK

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        self.node = node
        self.link = link
        self.dialect = dialect
        self.table = node.table(dialect)
        self.scanner = scanner(dialect, node.limits_of_strangers)
        self.scanner.most_others = STEPS  # so that nothing is read behind what fills the outbox
        self._appetite = APPETITE
        self._seen = 0  # bytes of an unfinished frame that the scanner has seen
        self.encoder = encoder(dialect, client=False)
        self.encoder.keep = SMALL  # as there are many sessions
        self.form = dialect  # how frames for this client are written; see Node.encoder
        self.client_id = ""
        self.has_claimed = False  # the client id, rather than been given one
        self.token = ""
        self.rights: Rights = node.rights_of_strangers
        self.filters: dict[str, None] = {}
        self.wildcards = 0  # of these filters
        self.consumes: dict[str, None] = {}
        self.audiences: set[Audience] = set()  # kept by the node
        self.closed = False
        self.last_heard = self.since = now
        self.received = self.delivered = self.bytes_in = 0  # messages and bytes, see `traffic`
        self.waits_for: set[object] = set()  # full outboxes, its own too, the budget or the disk
        self.promised = 0  # bytes of answers that wait for the disk
        self._answers: list[bytes | memoryview] | None = None  # to what is being read
        self._answered = 0  # bytes of them
        self._owed: deque[Iterator[Message | None]] = deque()  # long answers
        self._work_done = 0  # by the node, when this session's turn began
        self._next: Message | None = None  # of them
        node.now = now
        self.number = node.joined(self)

    def __repr__(self) -> str:
        return f"<{self.dialect} {self.client_id or '?'} at {self.link.peer}>"

    @property
    def owner(self) -> str:
        """The token entry whose rights this client has, empty for a stranger."""
        return self.node.clients.owner_of(self.rights)

    # In

    def receive(self, data: memoryview, now: float) -> int:
        """Take what can be taken of these bytes; return how many.

        Nothing more is taken while the client must wait, as for its own outbox, which is full. A
        session that has done its share of work gives way to others. The rest is given to it again
        when the link resumes.
        """
        node, flow, table = self.node, self.node.flow, self.table
        self.last_heard = node.now = now
        if self.waits_for:
            return 0
        if len(data) > LARGE and flow.budget.is_exceeded:
            flow.starve(self, 0)
            return 0
        at = 0
        node.reading = self
        self._work_done = node.work
        self._answers = []
        try:
            self._go_on(now)
            while not self.closed and not self.waits_for and not self._owed and at < len(data):
                before = node.work
                # A frame that was not whole must be seen whole, or at least more of it.
                piece = data[at : at + max(self._appetite, 2 * self._seen)]
                used = self.scanner.scan(piece, table)
                self._seen = 0 if used and self.scanner.again else len(piece) - used
                at += used
                self._walk(table, now)
                if self._answered > PIECE:
                    self._flush()
                    self._answers = []
                if self.outgoing > flow.limit:
                    flow.hold_own(self, now)
                if at + self._seen == len(data):
                    break
                self._learn(len(piece), node.work - before)
                if self._is_tired() and not self._owed:  # else it has given way already
                    self._give_way()
                    break
        except ProtocolError as fault:
            error = self._explain(fault)
            node.protocol_error(self, error, data[at:])
            self.answer_fault(error)
            self.close("protocol error")
        finally:
            table.release()
            self._flush()
            node.reading = None
        self.bytes_in += at
        node.capture.hold_back(self)
        return at

    def _explain(self, error: ProtocolError) -> ProtocolError:
        """The error, with the limit that it is about where that is the one for strangers."""
        limits = self.scanner.limits
        if limits is self.node.limits or str(limits.message) not in error.reason:
            return error
        reason = f"{error.reason} before authentication (limits.stranger_frame)"
        return ProtocolError(error.dialect, error.offset, reason, error.answer)

    def authenticated(self) -> None:
        """The client has shown who it is: the limits for strangers end."""
        self.scanner.set_limits(self.node.limits)
        self.link.authenticated()

    def _learn(self, size: int, work: int) -> None:
        """Choose how much to scan at once, after what these bytes cost."""
        if work > WORK:
            self._appetite = max(LEAST_APPETITE, size * WORK // work)
        elif size >= self._appetite:
            self._appetite = min(2 * self._appetite, MOST_APPETITE)

    def _is_tired(self) -> bool:
        """Has this session done its share of work for this turn?"""
        return self.node.work - self._work_done >= WORK

    def _give_way(self) -> None:
        """Go on in the next turn of the event loop, unless somebody is waited for anyway."""
        self.node.counters["gave_way"] += 1
        if not self.closed and not self.waits_for:
            self.link.pause()
            self.link.resume()

    def answer_fault(self, error: ProtocolError) -> None:
        """Tell the client, where the dialect can, how it broke the grammar."""
        if error.answer:
            self.write(error.answer)

    def _walk(self, table: FrameTable, now: float) -> None:
        row = 0
        while row < table.count and not self.closed:
            end = plain_run(table, row, self.client_id.encode())
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
        self.node.work += 2
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
            action = lambda: None if self.closed else self.write(frames)  # noqa: E731
            self.node.answer(action, kept=kept, size=len(frames))

    def refuse_unasked(self, error: RefusedError, count: int) -> None:  # noqa: B027 - see accept
        """Tell the client, where the dialect can, that publishes were not done: no one asked."""

    def end_of_pull(self, request: Message, taken: int) -> None:  # noqa: B027 - most dialects have nothing to do
        """Tell the client that its request for messages of a queue has ended."""

    def tick(self, now: float) -> None:  # noqa: B027 - most dialects have nothing to do
        """Time has passed."""

    # Out

    @property
    def outgoing(self) -> int:
        """The bytes that wait for this client, or will when what they answer is durable."""
        return self.link.buffered + self._answered + self.promised

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Session | None = None
    ) -> bool:
        """Send one message, if the client is there and its dialect can say it."""
        if self.closed:
            return False
        table = self.node.room(1)
        table.fill([message], message.dialect)
        frames = self.encoder.encode(table)
        if not frames:
            return False
        self.write(bytes(frames) if len(frames) < SMALL else frames, policy, sender)
        return True

    def write(
        self,
        data: bytes | memoryview,
        policy: Policy = "disconnect",
        sender: Session | None = None,
    ) -> None:
        """Send bytes: what answers one read goes out in one piece.

        Where that fills the outbox, whoever sent them waits: `sender`, or else the session whose
        read is being done.
        """
        if self._answers is not None:
            self._answers.append(data)
            self._answered += len(data)
            return
        self.link.write(data)
        node = self.node
        if self.link.buffered > node.flow.limit:
            node.flow.overflowed(self, sender or node.reading, policy, node.now)

    def send_all(self, messages: Iterable[Message | None]) -> None:
        """Send an answer that may be long, as fast as the client reads it.

        None among the messages is a good moment to give way to others. Nothing more is read from
        the client until all has been written.
        """
        self._owed.append(iter(messages))
        self._go_on(self.node.now)

    def _go_on(self, now: float) -> None:
        """Write what is owed, as far as there is room, until it is somebody else's turn."""
        flow = self.node.flow
        while self._owed and not self.closed:
            if self._next is None:
                try:
                    self._next = next(self._owed[0])
                except StopIteration:
                    self._owed.popleft()
                    continue
            if self._next is None:
                if self._is_tired():
                    self._give_way()
                    return
                continue
            size = len(self._next.payload)
            if self.outgoing > flow.limit:
                flow.hold_own(self, now)
                return
            if size > LARGE and not flow.budget.has_room(size):
                flow.starve(self, size)
                return
            message, self._next = self._next, None
            self.send(message)
            if self._answered > PIECE:
                self._flush()
                self._answers = []

    def _flush(self) -> None:
        answers, self._answers = self._answers, None
        self._answered = 0
        if not answers:
            return
        if len(answers) == 1:
            self.link.write(answers[0])
            return
        few: list[bytes | memoryview] = []  # small ones, that go out together
        for answer in answers:
            if len(answer) > LARGE:
                if few:
                    self.link.write(b"".join(few))
                    few = []
                self.link.write(answer)
            else:
                few.append(answer)
        if few:
            self.link.write(b"".join(few))

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
