"""Sessions of boson-text: control is by reserved topics (spec: boson-text 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wirelake.broker.route import clear_flag
from wirelake.broker.session import Session
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message, Op, Parameters

if TYPE_CHECKING:
    from array import array

    from wirelake.wire import FrameTable


class BosonTextSession(Session):
    """A client that speaks boson-text."""

    takes_direct = False
    acknowledges = False
    default = ""  # the address that `$topic` has set

    def can_delegate(self) -> bool:
        """Always: `$topic` is for publishes alone."""
        return True

    def publish(self, table: FrameTable, start: int, end: int, now: float) -> None:
        """Hand a run of publishes on, all with their address: subscribers know no `$topic`."""
        if self.default:
            clear_flag(table, start, end, Flag.IMPLIED)
        super().publish(table, start, end, now)

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Not if frames may lack the address that they go to."""
        return not self.default

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        match message.op:
            case Op.PUBLISH:
                self.node.router.publish_message(self, message, now)
                return
            case Op.SUBSCRIBE:
                self.node.topics.subscribe(self, message.address, now)
            case Op.UNSUBSCRIBE:
                self.node.topics.unsubscribe(self, message.address, now)
            case Op.TOPIC:
                if message.address:  # an empty one sets it back (decision 13)
                    self.node.topics.check_publish(self, message.address)
                self.default = message.address
            case Op.AUTH:
                self.node.clients.authenticate(self, message.parameters.token)
            case Op.PING:
                self.send(Message(op=Op.PONG, payload=message.payload))
                return
            case Op.PONG:
                return
            case Op.SERVE:
                self.node.services.serve(self, message.address)
            case Op.REQUEST:
                self.node.services.request(self, message, now)
                return
            case Op.REPLY:
                self.node.services.reply(self, message, now)
                return
            case _:
                raise RefusedError(
                    "bad_request", f"{message.address or message.op.label} is no request"
                )
        self.accept_subscribed(message)

    def accept(self, message: Message) -> None:
        """`$ok`: the name of the control topic, a space, its content."""
        content = message.address if message.op != Op.AUTH else ""
        self.send(Message(op=Op.OK, payload=f"${message.op.label} {content}".encode()))

    def refuse_unasked(self, error: RefusedError, count: int) -> None:
        """One `$error` for all of them (decision 42)."""
        self.refuse(Message(), RefusedError(error.code, f"{error.text} ({count} published)"))

    def refuse(self, message: Message, error: RefusedError) -> None:
        """`$fail/<id>` for a request, `$error` for everything else."""
        if message.op == Op.TOPIC:
            self.default = ""
            self.scanner.set_context(b"")
        correlation = message.correlation_id if message.op == Op.REQUEST else ""
        self.send(
            Message(
                op=Op.ERROR,
                correlation_id=correlation,
                payload=error.text.encode(),
                parameters=Parameters(code=error.code),
            )
        )
