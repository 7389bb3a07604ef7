"""How clients speak the dialects whose frames name their op: Kobold and boson-binary."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech, refusal
from wirelake.message import NO_PARAMETERS, Message, Op, Parameters


class OpSpeech(Speech):
    """Kobold and boson-binary: everything has an op, answers carry the transaction or the id."""

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """`AUTH` where there is something to say by it; else a ping, to be heard of."""
        if not client_id and not token:
            yield self.ping()
            return
        said = Parameters(client=client_id, token=token)
        yield self.control(Message(op=Op.AUTH, parameters=said))

    def put(self, message: Message, ack: bool) -> Ask:
        """ENQ, which makes the queue if need be."""
        return self.publish(replace(message, op=Op.ENQUEUE), ack)

    def subscribe(self, filter: str, prefetch: int = 0) -> Ask:
        """Subscribe to a filter, or consume a queue with a prefetch."""
        said = Parameters(count=prefetch) if prefetch else NO_PARAMETERS
        return self.control(Message(op=Op.SUBSCRIBE, address=filter, parameters=said))

    def control(self, message: Message) -> Ask:
        """With a transaction id, which asks for an answer as well."""
        number = self.new_id()
        return Ask(replace(message, correlation_id=number), f"tx:{number}")

    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""
        match message.op:
            case Op.PUBLISH:
                return Heard(Sort.DIRECT if message.target else Sort.DELIVERY)
            case Op.DELIVER:
                return Heard(Sort.QUEUED)
            case Op.REQUEST:
                return Heard(Sort.REQUEST)
            case Op.SET | Op.DEL:
                return Heard(Sort.CHANGE, self._key(message))
            case Op.OPEN | Op.DATA | Op.CLOSE:
                return Heard(Sort.STREAM)
            case Op.OK | Op.REPLY | Op.PONG:
                return Heard(Sort.ANSWER, self._key(message))
            case Op.ERROR:
                return Heard(Sort.ANSWER, self._key(message), refusal(message))
            case Op.PING:
                return Heard(Sort.PING)
        return Heard(Sort.OTHER)

    def _key(self, message: Message) -> str:
        by_transaction = f"tx:{message.correlation_id}"
        return by_transaction if message.correlation_id else f"id:{message.id}"
