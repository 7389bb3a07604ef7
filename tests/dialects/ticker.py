"""A dialect in one file, as somebody else would add it: lines of text.

~house/temp 21\n     publish, or a delivery
?house/#\n           subscribe; answered `!ok` or `!no reason`
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from wirelake.broker.session import Session
from wirelake.client.speech import Ask, Heard, Sort, Speech
from wirelake.dialects import Dialect
from wirelake.errors import RefusedError
from wirelake.message import Message, Op
from wirelake.wire import Encoder, FrameTable, Scanner

NAME = "ticker-1"


def detect(head: bytes) -> str | None:
    """Tell a ticker by its first byte."""
    return NAME if head[0] in b"~?" else ""


class TickerScanner(Scanner):
    """Lines to rows."""

    def scan(self, data: memoryview, table: FrameTable) -> int:
        """Fill the table with the lines that are whole."""
        lines = bytes(data).splitlines(keepends=True)[: table.capacity]
        if lines and not lines[-1].endswith(b"\n"):
            lines.pop()
        table.fill([self._message(line[:-1]) for line in lines], self.dialect)
        used = 0
        for row, line in enumerate(lines):
            table.frame_at[row], table.frame_len[row] = used, len(line)
            used += len(line)
        self.offset += used
        self.again = used < len(data) and len(lines) == table.capacity
        return used

    def _message(self, line: bytes) -> Message:
        address, _, payload = line[1:].partition(b" ")
        match line[:1]:
            case b"~":
                return Message(address.decode(), payload, dialect=self.dialect)
            case b"?":
                return Message(address.decode(), op=Op.SUBSCRIBE, dialect=self.dialect)
            case b"!" if address == b"ok":
                return Message(op=Op.OK, dialect=self.dialect)
            case b"!":
                return Message(op=Op.ERROR, payload=payload, dialect=self.dialect)
        raise self.error(0, "a line begins with ~, ? or !")


class TickerEncoder(Encoder):
    """Rows to lines."""

    def encode(self, table: FrameTable, rows: Sequence[int] | None = None) -> memoryview:
        """Return the rows as lines; what is no publish, subscription or answer is left out."""
        chosen = range(table.count) if rows is None else rows
        return memoryview(b"".join(self._line(table.message(row)) for row in chosen))

    def _line(self, message: Message) -> bytes:
        match message.op:
            case Op.PUBLISH | Op.DELIVER | Op.ENQUEUE:
                return b"~%b %b\n" % (message.address.encode(), message.payload)
            case Op.SUBSCRIBE:
                return b"?%b\n" % message.address.encode()
            case Op.OK:
                return b"!ok\n"
            case Op.ERROR:
                return b"!no %b\n" % message.payload
        self.skipped["op"] = self.skipped.get("op", 0) + 1
        return b""


class TickerSession(Session):
    """The broker's side."""

    takes_direct = False
    acknowledges = False

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """The scanner copies: there are no frames to forward."""
        return False

    def perform(self, message: Message, now: float) -> None:
        """Publish or subscribe."""
        if message.op is Op.SUBSCRIBE:
            self.node.topics.subscribe(self, message.address, now)
            self.accept(message)
        else:
            self.node.router.publish_message(self, message, now)

    def accept(self, message: Message) -> None:
        """Say that it is done."""
        self.send(Message(op=Op.OK))

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Say why it is not."""
        self.send(Message(op=Op.ERROR, payload=error.text.encode()))


class TickerSpeech(Speech):
    """The client's side."""

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """Nothing: a ticker is known by what it says."""
        yield from ()

    def control(self, message: Message) -> Ask:
        """Answers have no id: there is one at a time."""
        return Ask(message, "answer")

    def hear(self, message: Message) -> Heard:
        """Tell deliveries from answers."""
        if message.op is Op.PUBLISH:
            return Heard(Sort.DELIVERY)
        refusal = RefusedError("bad_request", message.payload.decode())
        return Heard(Sort.ANSWER, "answer", refusal if message.op is Op.ERROR else None)


DIALECT = Dialect(
    name=NAME,
    family="ticker",
    scanner=TickerScanner,
    encoder=TickerEncoder,
    detect=detect,
    detect_in_family=detect,
    session=TickerSession,
    speech=TickerSpeech,
)
