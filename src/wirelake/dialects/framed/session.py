"""Sessions of described dialects: publishes are answered as the description says, if it does."""

from __future__ import annotations

from wirelake.broker.endpoint import Link
from wirelake.broker.node import Node
from wirelake.broker.session import Session
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.message import Message, Op, Parameters


class FramedSession(Session):
    """A connection that speaks a described dialect."""

    takes_direct = False
    acknowledges = False

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        super().__init__(node, link, dialect, now)
        self._standing: tuple[str, ...] = DIALECTS[dialect].description.subscribe
        self._subscribe_standing(now)

    def authenticated(self) -> None:
        """Subscribe to what its rights did not allow before."""
        super().authenticated()
        self._subscribe_standing(self.node.vitals.now)

    def _subscribe_standing(self, now: float) -> None:
        """Subscribe to the filters of the description, as far as this connection may."""
        for filter in self._standing:
            if filter in self.filters or filter in self.consumes:
                continue
            try:
                self.node.topics.subscribe(self, filter, now)
            except RefusedError as error:
                self.node.vitals.count_refused(error.code)

    def perform(self, message: Message, now: float) -> None:
        """Do what a frame asks for, or raise RefusedError."""
        match message.op:
            case Op.PUBLISH:
                self.node.router.publish_message(self, message, now)
            case Op.SUBSCRIBE:
                self.node.topics.subscribe(self, message.address, now)
                self.answer(lambda: self.accept(message), kept=False)
            case Op.UNSUBSCRIBE:
                self.node.topics.unsubscribe(self, message.address, now)
                self.answer(lambda: self.accept(message), kept=False)
            case Op.AUTH:
                self.node.clients.authenticate(self, message.parameters.token)
                self.answer(lambda: self.accept(message), kept=False)
            case Op.PING:
                answer = Message(op=Op.PONG, id=message.id, payload=message.payload)
                self.send(_with_ticket(answer, message))
            case Op.PONG | Op.OK | Op.ERROR:
                return  # what the client says of our frames changes nothing
            case _:
                super().perform(message, now)

    def accept(self, message: Message) -> None:
        """Answer as the description says that accepted frames are answered."""
        self.send(_with_ticket(Message(op=Op.OK, id=message.id), message))

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Answer as the description says that refused frames are answered."""
        said = Parameters(code=error.code)
        answer = Message(op=Op.ERROR, id=message.id, payload=error.text.encode(), parameters=said)
        self.send(_with_ticket(answer, message))


def _with_ticket(answer: Message, asked: Message) -> Message:
    return Message(
        op=answer.op,
        id=answer.id,
        payload=answer.payload,
        parameters=answer.parameters,
        ticket=asked.ticket,
    )
