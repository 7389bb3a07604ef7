"""A broker on a desk: a node, and clients whose connections are lists. No sockets, no clock."""

from __future__ import annotations

from collections.abc import Sequence

from wirelake.broker.budget import Budget
from wirelake.broker.node import Node
from wirelake.broker.session import Session, begin_session
from wirelake.dialects.codec import Feed, encoder
from wirelake.journal.engine import Engine
from wirelake.message import NO_PARAMETERS, Flag, Message, Op, Parameters
from wirelake.wire import FrameTable

DIALECT_ROLES = {"mfp-1": "pub"}


class Desk:
    """A node whose time is a number."""

    def __init__(self, node: Node | None = None) -> None:
        self.node = node or Node(Engine.in_memory())
        self.now = 100.0
        self.later: list[Client] = []  # those that read again when the current read is done

    def client(self, dialect: str, name: str = "", role: str = "pub", token: str = "") -> Client:
        """A client that has gone through its dialect's opening."""
        client = Client(self, dialect)
        client.open(name, role, token)
        return client

    def pass_time(self, seconds: float, step: float = 0.25) -> None:
        """Let time pass, in small steps."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + step)
            self.node.tick(self.now)
            self.read_on()

    def read_on(self) -> None:
        """Let those read again that may."""
        later, self.later = self.later, []
        for client in later:
            if not client.paused:
                client.say(b"")


class Client:
    """The far end of a connection, and the link that the session has to it."""

    def __init__(self, desk: Desk, dialect: str) -> None:
        self.desk = desk
        self.dialect = dialect
        self.peer = f"desk/{dialect}"
        self.is_open = True
        self.paused = False
        self.reads = True  # takes what is written at once
        self.waiting = bytearray()
        self.received = bytearray()
        self.cut = 0  # where what is sent is cut into two reads, if not 0
        self._encoder = encoder(dialect)
        self._feed = Feed(dialect)
        self._rest = b""
        self._moved = 0
        self._is_receiving = self._again = False
        self.budget: Budget | None = None  # what waits counts there, if it is set
        self._held: list[bytes | memoryview] = []
        self.session: Session = begin_session(desk.node, self, dialect, desk.now)

    # The link

    def write(self, data: bytes | memoryview) -> None:
        """Send these bytes."""
        self.waiting += data
        if self.budget is not None and not self.reads:
            self.budget.holders[self] = None
            self.budget.hold(data)
            self._held.append(data)
        if self.reads:
            self.drain()

    def drain(self) -> None:
        """The client takes what was written."""
        self.received += self.waiting
        self._moved += len(self.waiting)
        self.waiting.clear()
        self._let_go()

    def _let_go(self) -> None:
        while self._held and self.budget is not None:
            self.budget.release(self._held.pop())

    def close(self) -> None:
        """Close when all has gone out."""
        self.is_open = False

    def abort(self) -> None:
        """Close now."""
        self.is_open = False
        self._let_go()

    def pause(self) -> None:
        """Read no more."""
        self.paused = True

    def resume(self) -> None:
        """Read again, what was left over first."""
        self.paused = False
        if self._is_receiving:
            self._again = True
        elif self.desk.node.flow.reading is None:
            self.say(b"")
        else:
            self.desk.later.append(self)

    def receive_again(self) -> None:
        """Give the session once more what it left over."""
        self.say(b"")

    def authenticated(self) -> None:
        """The client has shown who it is."""

    @property
    def buffered(self) -> int:
        """What has not gone out."""
        return len(self.waiting)

    @property
    def moved(self) -> int:
        """What has gone out."""
        return self._moved

    # The client

    def open(self, name: str, role: str, token: str) -> None:
        """The dialect's opening."""
        if self.dialect == "mfp-1":
            full = f"{name or 'some client'}:{token}" if token else name or "some client"
            self.send(Message(op=Op.HANDSHAKE, source=full, parameters=Parameters(connection=role)))
        elif self.dialect.startswith("tmq"):
            lines = [f"Client-Id: {name}"] * bool(name) + [f"Client-Token: {token}"] * bool(token)
            self.send(Message(op=Op.HANDSHAKE))
            self.send(Message(op=Op.HELLO, payload="\r\n".join([*lines, ""]).encode()))
        elif self.dialect.startswith("mqtt"):
            said = Parameters(token=token) if token else NO_PARAMETERS
            headers = {"mqtt.clean": "1", "mqtt.keepalive": "0"}
            self.send(Message(op=Op.HANDSHAKE, source=name, headers=headers, parameters=said))
        elif self.dialect == "boson-text":
            if token:
                self.send(Message(op=Op.AUTH, parameters=Parameters(token=token)))
        elif name or token:
            self.send(Message(op=Op.AUTH, parameters=Parameters(client=name, token=token)))
        self.opening = self.take()

    def say(self, data: bytes) -> None:
        """Send bytes, as they come."""
        self._rest += data
        self._again = True
        while self._again:
            self._again, self._is_receiving = False, True
            used = self.session.receive(memoryview(self._rest), self.desk.now)
            self._rest = self._rest[used:]
            self._is_receiving = False

    def send(self, *messages: Message) -> None:
        """Send messages of this dialect."""
        table = FrameTable(max(1, len(messages)))
        table.fill(messages, self.dialect)
        frames = bytes(self._encoder.encode(table))
        assert not self._encoder.skipped, (self._encoder.skipped, messages)
        self.say(frames[: self.cut])
        self.say(frames[self.cut :])

    def subscribe(self, *filters: str) -> None:
        """Subscribe, and read away the answers."""
        for filter in filters:
            self.send(Message(op=Op.SUBSCRIBE, address=filter))
        self.take()

    def publish(self, address: str, payload: bytes, *, ack: bool = False) -> None:
        """Publish one message."""
        flags = Flag.ACK if ack else Flag(0)
        identity = "m1" if ack and self.dialect != "mfp-1" else ""
        self.send(Message(address=address, payload=payload, flags=flags, id=identity))

    def take(self) -> list[Message]:
        """The messages that have come since the last time."""
        data = bytes(self.received)
        self.received.clear()
        return [m for table in self._feed.receive(data) for m in table.messages()]

    def payloads(self) -> list[bytes]:
        """The payloads of published messages that have come since the last time."""
        return [m.payload for m in self.take() if m.op == Op.PUBLISH]


def ops(messages: Sequence[Message]) -> list[str]:
    """Just the ops."""
    return [message.op.label for message in messages]
