"""One connection's side of the broker: bytes in, decisions, bytes out. No sockets.

A session scans what it receives into its dialect's frame table and walks the rows: runs of plain
publishes go to the router as they are, everything else row by row as messages. What an op means in
a dialect is in that dialect's own session, a subclass of `Session`. Other parts of the broker know
a dialect only by its name, to look up its encoder, or a field of its value in the registry.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from wirelake.broker.endpoint import Endpoint, Link, Policy
from wirelake.broker.flow import LARGE
from wirelake.broker.node import Node
from wirelake.broker.route import plain_run
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Message, Op
from wirelake.wire import FrameTable

if TYPE_CHECKING:
    from array import array

log = logging.getLogger("wirelake.broker")

#: Frames of fewer bytes are copied, so that they hold no buffer that is larger than they are.
SMALL = 4096
#: What answers one read goes out in one piece, of at most this many bytes.
PIECE = 256 << 10
#: What an answer that waits for the disk takes in memory beside its bytes, roughly.
ANSWER = 512
#: A session does this much work (see `Vitals.work`) before it gives way to others, about 3 ms.
WORK = 200
#: Rows that are no publishes and that are read at once.
STEPS = 32
#: Bytes that a new session scans at once; more where that is little work, less where it is much.
APPETITE = 16 << 10
LEAST_APPETITE = 512
MOST_APPETITE = 1 << 24


class Session(Endpoint):
    """What all dialects share. A subclass says what its ops mean and how they are answered."""

    #: The op of the answer to a publish that asked for an acknowledgement.
    accepted_by = Op.OK
    #: `control_rows` puts messages into queues, and acknowledges them, many at once.
    does_together = False
    #: State of the dialect that a session of the same client on another node needs, by attribute.
    carried: tuple[str, ...] = ()
    #: The owner (see there) of the client that a delegate stands for.
    represented = ""
    #: Set by a delegate that was asked to host a client, and leaves that to the client's own node.
    hands_back = False

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        table = node.tables.scanned(dialect)
        super().__init__(link, dialect, table, node.clients.rights_of_strangers, now)
        self.node = node
        self.scanner = scanner(dialect, node.limits_of_strangers)
        self.scanner.most_others = STEPS  # so that nothing is read behind what fills the outbox
        self.scanner.together = self.does_together
        self._appetite = APPETITE
        self._seen = 0  # bytes of an unfinished frame that the scanner has seen
        self.encoder = encoder(dialect, client=False)
        self.encoder.keep = SMALL  # as there are many sessions
        self._outbox = _Outbox(link)
        self._failures = 0  # of the engine, when this read began
        self._promised = 0  # bytes of answers that wait for the disk
        self._owed: deque[Iterator[Message | None]] = deque()  # long answers
        self._next: Message | None = None  # of the first of them
        self._work_before = 0  # what the broker had done when this session's turn began
        node.vitals.now = now
        self.number = node.joined(self)

    @property
    def owner(self) -> str:
        """The token entry whose rights this client has, empty for a stranger."""
        if self.is_delegate:
            return self.represented
        return self.node.clients.owner_of(self.rights)

    # In

    def receive(self, data: memoryview, now: float) -> int:
        """Process bytes from the client, and return how many were used.

        A session stops early while its client must wait, as for its own full outbox, and when it
        has done its share of work. The link keeps the rest, and gives it again when it resumes.
        """
        vitals, flow, table = self.node.vitals, self.node.flow, self.table
        self.last_heard = vitals.now = now
        if self.waits_for:
            return 0
        self.node.engine.heard(self.number)
        self._failures = self.node.engine.failures
        if len(data) > LARGE and flow.budget.is_exceeded:
            flow.starve(self, 0)
            return 0
        at = 0
        flow.reading = self
        self._work_before = vitals.work
        self._outbox.cork()
        try:
            if self._owed:
                self._go_on(now)
            while not self.closed and not self.waits_for and not self._owed and at < len(data):
                before = vitals.work
                # A frame that was not whole must be seen whole, or at least more of it.
                piece = data[at : at + max(self._appetite, 2 * self._seen)]
                used = self.scanner.scan(piece, table)
                if not 0 <= used <= len(piece):  # a scanner of somebody else's
                    raise ValueError(f"the scanner used {used} bytes of {len(piece)}")
                self._seen = 0 if used and self.scanner.again else len(piece) - used
                at += used
                self._walk(table, now)
                self._outbox.flush_large()
                if self.outgoing > flow.limit:
                    flow.hold_own(self, now)
                if at + self._seen == len(data):
                    break
                self._learn(len(piece), vitals.work - before)
                if self._is_tired() and not self._owed:  # else it has given way already
                    self._give_way()
                    break
        except ProtocolError as fault:
            error = self._explain(fault)
            vitals.counters["protocol_errors"] += 1
            log.warning("%s: %s", self.link.peer, error)
            is_secret = not self.owner and not self.node.clients.rights_of_strangers.is_open
            at_fault = error.offset - self.scanner.offset
            self.node.traffic.fault(self.link.peer, error, data[at:], at_fault, secret=is_secret)
            self.answer_fault(error)
            self.close("protocol error")
        except Exception as error:
            if not DIALECTS[self.dialect].is_foreign:
                raise
            self.failed(error)
        finally:
            table.release()
            self._outbox.uncork()
            flow.reading = None
        self.bytes_in += at
        self.node.capture.hold_back(self)
        return at

    # In a cluster

    def can_delegate(self) -> bool:
        """Return whether a session of the same dialect on another node can act for the client."""
        return False

    @property
    def registers_id(self) -> bool:
        """Whether the id of this client is registered with the owner of its partition."""
        return self.can_delegate()

    def identify(self, message: Message, now: float) -> Message:
        """Take who the client is from a message that says it; return the rest of the message.

        Raises RefusedError where the client may not be that.
        """
        return message

    def pass_on(self, frames: bytes | memoryview) -> None:
        """Send frames that a delegate on another node has made for this client."""
        if not self.closed:
            self._outbox.write(frames)

    @property
    def is_held(self) -> bool:
        """Whether nothing more may be read from the client now."""
        return bool(self.waits_for or self._owed)

    def receive_rows(self, table: FrameTable | None, now: float) -> None:
        """Do what rows ask for that another node has forwarded; None: go on with long answers."""
        vitals, flow = self.node.vitals, self.node.flow
        vitals.now = now
        self.node.engine.heard(self.number)
        self._failures = self.node.engine.failures
        before, flow.reading = flow.reading, self
        self._work_before = vitals.work
        self._outbox.cork()
        try:
            if self._owed:
                self._go_on(now)
            if table is not None:
                self._walk(table, now)
            if self.outgoing > flow.limit:
                flow.hold_own(self, now)
        except Exception as error:  # noqa: BLE001 - the other clients of that node go on
            self.failed(error)
        finally:
            if table is not None:
                table.release()
            self._outbox.uncork()
            flow.reading = before
        self.node.capture.hold_back(self)

    def failed(self, error: Exception) -> None:
        """The code of the dialect raised what it must not: an event, and the connection ends."""
        if not self.closed:
            self.report(error)
            self.close("its dialect failed")

    def report(self, error: Exception) -> None:
        """Tell operators that the code of the dialect failed."""
        text = f"{self.dialect}: {type(error).__name__}: {error}"
        self.node.vitals.counters["dialect_failures"] += 1
        self.node.vitals.event("dialect_failed", self.link.peer, text)
        log.error("%s: the dialect failed: %s", self.link.peer, text, exc_info=error)

    def _explain(self, error: ProtocolError) -> ProtocolError:
        """Return the error; where the limit for strangers caused it, the error names that limit."""
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
        """Choose how much to scan at once, by the work that `size` bytes took."""
        if work > WORK:
            self._appetite = max(LEAST_APPETITE, size * WORK // work)
        elif size >= self._appetite:
            self._appetite = min(2 * self._appetite, MOST_APPETITE)

    def _is_tired(self) -> bool:
        """Return whether this session has done its share of work for this turn."""
        return self.node.vitals.work - self._work_before >= WORK

    def _give_way(self) -> None:
        """Go on in the next turn of the event loop, or once the client need not wait any more."""
        self.node.vitals.counters["gave_way"] += 1
        if not self.closed and not self.waits_for:
            self.link.pause()
            self.link.resume()

    def use_variant(self, variant: str) -> None:
        """Write frames for this client in a variant of the dialect, as it does itself."""
        self.encoder.set_variant(variant)
        self.form = f"{self.dialect}+{variant}" if variant else self.dialect

    def answer_fault(self, error: ProtocolError) -> None:
        """Tell the client, where the dialect can, how it broke the grammar."""
        if error.answer:
            self.write(error.answer)

    def _walk(self, table: FrameTable, now: float) -> None:
        row = 0
        owners = None if self.is_delegate and not self.is_hosted else self.node.owners
        while row < table.count and not self.closed:
            end = plain_run(table, row, self.client_id.encode())
            if end > row and self.accepts_publishes():
                self.publish(table, row, end, now)
                row = end
            else:
                done = 0 if owners is None else owners.forward(self, table, row, now)
                done = done or self.control_rows(table, row, now)
                if not done:
                    self.control(table.message(row), now)
                row += done or 1

    def publish(self, table: FrameTable, start: int, end: int, now: float) -> None:
        """Hand a run of plain publishes to the router."""
        self.node.router.publish(self, table, start, end, now)

    def accepts_publishes(self) -> bool:
        """Return whether plain publishes may go straight to the router."""
        return True

    def control_rows(self, table: FrameTable, row: int, now: float) -> int:
        """Do what several rows from this one on ask for; return how many, 0 for one at a time."""
        return 0

    def control(self, message: Message, now: float) -> None:
        """Do what one message asks for, and answer it as the dialect does."""
        self.node.vitals.work += 2
        try:
            if message.parameters.fault:
                raise RefusedError("bad_request", message.parameters.fault)
            self.perform(message, now)
        except RefusedError as error:
            # In a method of its own: a variable for the error here would be a cycle with its
            # traceback, and keep the message until the garbage is collected.
            self._decline(message, error)

    def _decline(self, message: Message, error: RefusedError) -> None:
        """Count a refusal, and tell the client once what it says is certain."""
        self.node.vitals.count_refused(error.code)
        if error.waits:
            self.answer(lambda: self.refuse(message, error), kept=True)
        else:
            self.refuse(message, error)

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        raise RefusedError("bad_request", f"{self.dialect} has no {message.op.label}")

    @abstractmethod
    def accept(self, message: Message) -> None:
        """Tell the client that its message is done."""

    def accept_subscribed(self, message: Message) -> None:
        """Tell the client that its message is done, once other nodes know its last filter."""
        if self.registration:
            self.answer(lambda: self.accept(message), kept=False)
        else:
            self.accept(message)

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """Tell the client that these rows are done, once they are durable if they are kept."""
        if len(rows):
            answers = self.node.tables.room(len(rows))
            answers.answer(table, rows, self.accepted_by)
            frames = bytes(self.encoder.encode(answers))
            action = lambda: None if self.closed else self.write(frames)  # noqa: E731
            self.answer(action, kept=kept, size=len(frames))

    def answer(self, action: Callable[[], object], *, kept: bool, size: int = 0) -> None:
        """Run an action that answers the client once all that was written so far is durable.

        So answers keep the order of their questions. While the disk is in trouble, an answer that
        nothing had to be kept for (`kept`) is given at once. An answer that waits counts in the
        outbox with its `size` in bytes.
        """
        engine, budget = self.node.engine, self.node.flow.budget
        elsewhere = self.node.topics.elsewhere
        if self.registration and elsewhere is not None:
            again = lambda: self.answer(action, kept=kept, size=size)  # noqa: E731
            if elsewhere.after(self.registration, again):
                return
            self.registration = 0
        reads = self.node.flow.reading is self
        if reads and engine.failures != self._failures:  # what this answers may have been lost
            self._break_off()
        elif engine.trouble and not kept:
            action()
        elif not reads:
            engine.after(action, failed=self._break_off)
        else:
            size += ANSWER
            self._promised += size
            budget.add(size)

            def answer() -> None:
                self._promised -= size
                budget.add(-size)
                action()

            def unanswered() -> None:
                self._promised -= size
                budget.add(-size)
                self._break_off()

            engine.after(answer, self.number, failed=unanswered)

    def _break_off(self) -> None:
        """What the client sent may be kept or not: it finds out when it sends it again."""
        if not self.closed:
            self.close("what it sent may not have been kept")

    # Out

    @property
    def outgoing(self) -> int:
        """The bytes that wait for this client, or will when what they answer is durable."""
        return self.link.buffered + self._outbox.collected + self._promised

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message; return whether the client is there and its dialect can express it."""
        if self.closed:
            return False
        table = self.node.tables.room(1)
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
        sender: Endpoint | None = None,
    ) -> None:
        """Send bytes after all that was sent before.

        Where that fills the outbox, whoever sent them waits: `sender`, or else the session whose
        read is being done. During this client's own read `receive` looks after that.
        """
        outbox, flow = self._outbox, self.node.flow
        outbox.write(data)
        if not outbox.is_corked and self.link.buffered > flow.limit:
            flow.overflowed(self, sender or flow.reading, policy, self.node.vitals.now)

    def send_rows(self, table: FrameTable) -> bool:
        """Send all rows of a table to a consumer; return False where they must be sent one by one.

        So they must where the dialect has a way of its own to send a message, or has no form for
        one of them.
        """
        if self.closed or type(self).send is not Session.send:
            return False
        return self._send_rows(table)

    def _send_rows(self, table: FrameTable) -> bool:
        frames = self.encoder.encode(table)
        if self.encoder.skipped:
            self.encoder.skipped.clear()
            return False
        self.write(bytes(frames) if len(frames) < SMALL else frames)
        return True

    def send_all(self, messages: Iterable[Message | None]) -> None:
        """Send an answer that may be long, as fast as the client reads it.

        None among the messages is a good moment to give way to others. Nothing more is read from
        the client until all has been written.
        """
        self._owed.append(iter(messages))
        self._go_on(self.node.vitals.now)

    def _go_on(self, now: float) -> None:
        """Write long answers until the outbox is full or this session's turn is over."""
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
            self._outbox.flush_large()

    def close(self, reason: str) -> None:
        """End the connection, once what was written has gone out."""
        if not self.closed:
            self.closed = True
            self.node.left(self)
            self._outbox.uncork()
            self.link.close()

    def lost(self, reason: str) -> None:
        """The connection has ended."""
        if not self.closed:
            self.closed = True
            self.node.left(self)


class _Outbox:
    """The way to the link. While it is corked it collects what is written, to send it together.

    It is corked while the client's own read is done, so that the answers to one read go out in one
    piece.
    """

    __slots__ = ("_link", "_pieces", "collected", "is_corked")

    def __init__(self, link: Link) -> None:
        self.is_corked = False
        self.collected = 0  # bytes
        self._pieces: list[bytes | memoryview] = []
        self._link = link

    def write(self, data: bytes | memoryview) -> None:
        """Send bytes after all that was written before."""
        if self.is_corked:
            self._pieces.append(data)
            self.collected += len(data)
        else:
            self._link.write(data)

    def cork(self) -> None:
        """Collect what is written from now on."""
        self.is_corked = True

    def uncork(self) -> None:
        """Send what was collected, and collect no more."""
        self.is_corked = False
        if self._pieces:
            self._flush()

    def flush_large(self) -> None:
        """Send what was collected if it is too much for one piece."""
        if self.collected > PIECE:
            self._flush()

    def _flush(self) -> None:
        pieces, self._pieces = self._pieces, []
        self.collected = 0
        if len(pieces) == 1:
            self._link.write(pieces[0])
            return
        few: list[bytes | memoryview] = []  # small ones, that go out together
        for piece in pieces:
            if len(piece) > LARGE:
                if few:
                    self._link.write(b"".join(few))
                    few = []
                self._link.write(piece)
            else:
                few.append(piece)
        if few:
            self._link.write(b"".join(few))


def begin_session(node: Node, link: Link, dialect: str, now: float) -> Session:
    """Begin the session of a connection that turned out to speak a dialect."""
    made: Session = DIALECTS[dialect].load("session")(node, link, dialect, now)
    return made
