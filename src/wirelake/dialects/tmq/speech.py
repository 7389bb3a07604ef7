"""How clients speak TMQ."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech, settlement
from wirelake.dialects.tmq import codes
from wirelake.errors import RefusedError
from wirelake.message import Flag, Message, Op


class TmqSpeech(Speech):
    """TMQ: a greeting and Hello, then answers by message id."""

    #: What the id of a request begins with: a refusal of one has 503 for "no service".
    REQUEST = "request-"

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """The greeting, then Hello (spec: tmq 1)."""
        yield Ask(Message(op=Op.HANDSHAKE), "handshake")
        fields = {"Client-Id": client_id, "Client-Token": token, "Client-Type": "wirelake"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value)
        yield Ask(Message(op=Op.HELLO, payload=lines.encode()), "hello")

    def control(self, message: Message) -> Ask:
        """With RS, which asks for an answer."""
        if message.op == Op.PING:
            return Ask(message, "pong")
        number = self.new_id()
        if message.op == Op.REQUEST:
            number = f"{self.REQUEST}{number}"
        asking = replace(message, id=number, flags=Flag.RESPONSE)
        return Ask(asking, f"id:{number}")

    def settle(self, delivered: Message, *, done: bool, requeue: bool = True) -> Ask:
        """A delivery message; it has no answer, but when a pong comes it has been read."""
        said = settlement(delivered, done=done, requeue=requeue)
        return Ask(said, "pong", (Message(op=Op.PING),))

    def make_queue(self, queue: str) -> Ask:
        """Make a queue as it is where nobody says how; refused where it is there."""
        return self.declare(queue, "round-robin", 30.0, 5)

    def dequeue(self, queue: str, number: int, wait: float) -> Ask:
        """Server message 620, with the number as its payload (spec: tmq 6)."""
        return self.control(Message(op=Op.DEQUEUE, address=queue, payload=b"%d" % number))

    def list_queues(self) -> Ask:
        """Server message 616."""
        return self.control(Message(op=Op.LIST))

    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""
        match message.op:
            case Op.PUBLISH:  # DE is the queue's wish for an acknowledgement (spec: tmq 5)
                return Heard(Sort.QUEUED if message.flags & Flag.ACK else Sort.DELIVERY)
            case Op.DIRECT:
                return Heard(Sort.DIRECT)
            case Op.HANDSHAKE:
                return Heard(Sort.ANSWER, "handshake")
            case Op.OK:
                return Heard(Sort.ANSWER, "hello")
            case Op.ERROR:
                return Heard(Sort.ANSWER, "hello", self._refused(message))
            case Op.ACK:
                return Heard(Sort.ANSWER, f"id:{message.id}")
            case Op.REPLY:
                refusal = self._refused(message) if _is_refusal(message) else None
                return Heard(Sort.ANSWER, f"id:{message.id}", refusal)
            case Op.PONG:
                return Heard(Sort.ANSWER, "pong")
            case Op.PING:
                return Heard(Sort.PING)
            case Op.TERMINATE:
                return Heard(Sort.END)
        return Heard(Sort.OTHER)

    def farewell(self) -> Message | None:
        """Terminate (spec: tmq 12)."""
        return Message(op=Op.TERMINATE)

    def _refused(self, message: Message) -> RefusedError:
        other = "no_service" if message.id.startswith(self.REQUEST) else "busy"
        code = codes.REASONS.get(message.content_type, other)
        return RefusedError(code, message.payload.decode(errors="replace"))


def _is_refusal(message: Message) -> bool:
    return codes.SERVER_OPS.get(message.content_type) is Op.ERROR
