"""Sessions of mfp: a handshake, then either a publisher or a subscriber (spec: mfp 2 to 8)."""

from __future__ import annotations

from array import array

from wirelake.broker.endpoint import Endpoint
from wirelake.broker.route import wants_ack
from wirelake.broker.session import Session
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable


class MfpSession(Session):
    """One connection of an mfp client: its PUB or its SUB."""

    takes_direct = False
    acknowledges = False
    connection = ""  # "pub" or "sub", once it has shaken hands
    carried = ("connection",)

    def pairs_with(self, other: Endpoint) -> bool:
        """A PUB and a SUB of the same id are one client (spec: identity)."""
        roles = {self.connection, other.connection} if isinstance(other, MfpSession) else {}
        return roles == set(DIALECTS[self.dialect].roles)

    def can_delegate(self) -> bool:
        """Once it has shaken hands."""
        return bool(self.connection)

    def accepts_publishes(self) -> bool:
        """Only a PUB publishes, and only once it has set a topic."""
        return self.connection == "pub"

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Those go out with acknowledge NO (spec: mfp 6), so only if they came in with it."""
        if rows is None:
            return not wants_ack(table, start, end)
        return not any(table.flags[row] & Flag.ACK for row in rows)

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        if not self.connection:
            if message.op != Op.HANDSHAKE:
                self.refuse(message, RefusedError("bad_request"))
                self.close("no handshake")
                return
            self._shake_hands(message, now)
        elif message.op == Op.PUBLISH and self.connection == "pub":
            self.node.topics.check_publish(self, message.address)
            raise RefusedError("too_large", "a body of more than 1000 bytes")
        elif message.op == Op.TOPIC and self.connection == "pub":
            self.node.topics.check_publish(self, message.address)
        elif message.op == Op.SUBSCRIBE and self.connection == "sub":
            self.node.topics.subscribe(self, message.address, now)
        elif message.op == Op.UNSUBSCRIBE and self.connection == "sub":
            self.node.topics.unsubscribe(self, message.address, now)
        else:
            raise RefusedError("bad_request", f"{message.op.label} is not for a {self.connection}")
        self.accept_subscribed(message)

    def _shake_hands(self, message: Message, now: float) -> None:
        name, _, token = message.source.partition(":")
        self.connection = message.parameters.connection
        try:
            if token:
                self.node.clients.authenticate(self, token)
            self.node.clients.claim(self, name, now)
        except RefusedError as error:
            self.connection = ""
            self.refuse(message, error)
            self.close(str(error))
            raise

    def accept(self, message: Message) -> None:
        """SUCCESS, with the uid of what it answers."""
        self.send(Message(op=Op.OK, id=message.id))

    def refuse(self, message: Message, error: RefusedError) -> None:
        """FAIL, unless it is a message that wants no answer."""
        if message.op == Op.TOPIC:
            self.scanner.set_context(b"")
        if not self.closed and (message.op != Op.PUBLISH or message.flags & Flag.ACK):
            self.send(Message(op=Op.ERROR, id=message.id))
