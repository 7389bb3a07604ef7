"""How clients speak MQTT.

Acknowledged publishes have QoS 1, subscriptions QoS 0. In MQTT 5 a service subscribes to
`$serve/<address>`: a request comes with a response topic of the broker, where the reply goes. A
client that asks gives a response topic of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from wirelake.client.speech import Ask, Heard, Sort, Speech
from wirelake.dialects.mqtt.codes import Packet, Reason
from wirelake.errors import RefusedError
from wirelake.message import NO_PARAMETERS, Flag, Message, Op, Parameters

#: The response topic of requests: replies to it come to the client that asked, and to nobody else.
REPLIES = "$answers"
SERVE = "$serve/"
REPLY = "$reply/"
#: A broker closes the connection of a client that was silent for 1.5 times this long (seconds).
KEEPALIVE = 90
#: What a reason code that refuses means in our words.
CODES: dict[int, str] = {
    Reason.NOT_AUTHORIZED: "unauthorized",
    Reason.BAD_CREDENTIALS: "unauthorized",
    Reason.QUOTA: "busy",
    Reason.BUSY: "busy",
    Reason.BAD_CLIENT_ID: "conflict",
}
#: The same for the return codes of 3.1.1.
OLD_CODES = {2: "conflict", 3: "busy", 4: "unauthorized", 5: "unauthorized"}


class MqttSpeech(Speech):
    """MQTT: CONNECT, then answers by packet identifier."""

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)
        self._ticket = 0

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """CONNECT, for a session that ends with the connection."""
        headers = {"mqtt.clean": "1", "mqtt.keepalive": str(KEEPALIVE)}
        said = Parameters(token=token) if token else NO_PARAMETERS
        connect = Message(op=Op.HANDSHAKE, source=client_id, headers=headers, parameters=said)
        yield Ask(connect, "connect")

    def name(self, answer: Message) -> str:
        """Return the client id that the broker has given to a client without one."""
        return answer.headers.get("mqtt.assigned_id", "")

    def publish(self, message: Message, ack: bool) -> Ask:
        """Publish with QoS 1 where an acknowledgement is wanted, else with QoS 0."""
        headers = {name: text for name, text in message.headers.items() if name != "mqtt.qos"}
        ticket = self._next() if ack else 0
        flags = Flag.ACK if ack else Flag(0)
        made = replace(message, headers=headers, flags=flags, ticket=ticket)
        return Ask(made, f"ack:{ticket}")

    def serve(self, address: str) -> Ask:
        """Subscribe to requests."""
        return self.control(Message(op=Op.SUBSCRIBE, address=SERVE + address))

    def unserve(self, address: str) -> Ask:
        """Take that back."""
        return self.control(Message(op=Op.UNSUBSCRIBE, address=SERVE + address))

    def request(self, request: Message) -> Ask:
        """A publish with a response topic."""
        number = self.new_id()
        headers = {**request.headers, "mqtt.response": REPLIES}
        asking = replace(
            request, op=Op.PUBLISH, correlation_id=number, headers=headers, flags=Flag(0)
        )
        return Ask(asking, f"tx:{number}")

    def reply(self, reply: Message) -> Message:
        """A publish to the response topic of the request."""
        return replace(reply, op=Op.PUBLISH, address=REPLY + reply.correlation_id)

    def sign_of_life(self) -> Message:
        """PINGREQ; nobody waits for its answer."""
        return Message(op=Op.PING)

    def control(self, message: Message) -> Ask:
        """With a packet identifier, which its answer repeats."""
        if message.op == Op.PING:
            return Ask(message, "pong")
        ticket = self._next()
        return Ask(replace(message, ticket=ticket), f"filter:{ticket}")

    def hear(self, message: Message) -> Heard:
        """What a packet from the broker is."""
        match message.op:
            case Op.PUBLISH if message.address == REPLIES:
                code = message.headers.get("code", "")
                text = message.payload.decode(errors="replace")
                refusal = RefusedError(code, text) if code else None
                return Heard(Sort.ANSWER, f"tx:{message.correlation_id}", refusal)
            case Op.PUBLISH if message.headers.get("mqtt.response", "").startswith(REPLY):
                return Heard(Sort.REQUEST)
            case Op.PUBLISH:
                return Heard(Sort.DELIVERY)
            case Op.ACK:
                return Heard(Sort.ANSWER, f"ack:{message.ticket}", _refusal(message))
            case Op.OK:
                return Heard(Sort.ANSWER, f"filter:{message.ticket}", _refusal(message))
            case Op.HELLO:
                return Heard(Sort.ANSWER, "connect", self._rejection(message))
            case Op.PONG:
                return Heard(Sort.ANSWER, "pong")
            case Op.TERMINATE:
                return Heard(Sort.END)
        return Heard(Sort.OTHER)

    def farewell(self) -> Message | None:
        """DISCONNECT."""
        return Message(op=Op.TERMINATE)

    def _next(self) -> int:
        self._ticket = self._ticket % 0xFFFF + 1
        return self._ticket

    def _rejection(self, message: Message) -> RefusedError | None:
        if not message.content_type:
            return None
        known = CODES.get(message.content_type) if self.dialect == "mqtt-5" else None
        code = known or OLD_CODES.get(message.content_type, "bad_request")
        text = message.headers.get("mqtt.reason", f"the broker refuses: {message.content_type}")
        return RefusedError(code, text)


def _refusal(message: Message) -> RefusedError | None:
    """Return why something was refused, if it was."""
    reason = max(message.payload, default=0)
    if reason < Reason.UNSPECIFIED:
        return None
    text = message.headers.get("mqtt.reason", f"reason code {reason:#x}")
    if message.op == Op.OK and message.content_type == Packet.SUBACK and reason == 0x80:
        return RefusedError("unauthorized", "the broker refuses the subscription")
    return RefusedError(CODES.get(reason, "bad_request"), text)
