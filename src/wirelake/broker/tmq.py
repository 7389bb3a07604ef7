"""Sessions of TMQ: greeting, Hello, then messages to the server, to channels and to clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.broker.flow import Policy
from wirelake.broker.session import Session
from wirelake.engine.base import Mode, QueueSettings
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable, scanner

if TYPE_CHECKING:
    from array import array

    from wirelake.broker.node import Node
    from wirelake.broker.session import Link

#: A connection idle for so long is pinged, and closed when two pings have had no answer (seconds).
PING_AFTER = 30.0
MAX_UNANSWERED = 2

#: What is answered when it is done, if RS asks for it (spec: tmq 4).
ANSWERED = ("subscribe", "unsubscribe", "declare", "remove")
#: Content types of answers (spec: tmq 4).
DONE = 202
MODES: dict[str, Mode] = {"round-robin": "round-robin", "push": "push", "pull": "pull"}
REFUSALS = {"bad_request": 400, "unauthorized": 401, "not_found": 404, "exists": 481}
OTHER_REFUSAL = 503


class TmqSession(Session):
    """A client that speaks TMQ."""

    counts_hops = True
    accepted_by = Op.ACK

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        super().__init__(node, link, dialect, now)
        self._greeted = False
        self._unanswered = 0
        self._pinged = now

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Never: the source, the hop count and the first-acquirer flag change (spec: tmq 5, 11)."""
        return False

    def accepts_publishes(self) -> bool:
        """Nothing but Hello is accepted before Hello (spec: tmq 1)."""
        return bool(self.client_id)

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        self._unanswered = 0
        if not self.client_id:
            self._greet(message, now)
            return
        match message.op:
            case "publish" if message.address in self.node.services:
                self.node.services.request(self, message, now)
                return
            case "publish":
                if message.flags & Flag.RESPONSE and not self.node.reaches(self, message.address):
                    self.node.check_publish(self, message.address)
                    raise RefusedError("not_found", f"nobody is there at {message.address}")
                self.node.publish_message(self, message, now)
                return
            case "direct":
                self.node.send_to_client(self, replace(message, source=self.client_id), now)
            case "reply":
                self._respond(message, now)
            case "redirect":
                self._redirect(message, now)
            case "subscribe":
                self.node.subscribe(self, message.address, now)
            case "unsubscribe":
                self.node.unsubscribe(self, message.address, now)
            case "declare":
                self._declare(message)
            case "remove":
                self.node.check_admin(self, message.address)
                self.node.queues.remove(message.address)
            case "list":
                self._answer(message, DONE, json.dumps(self.node.queue_states(self, now)))
                return
            case "dequeue":
                count = message.payload.decode(errors="replace").strip() or "1"
                if not count.isdecimal() or len(count) > 9:
                    raise RefusedError("bad_request", "a pull's payload is a number")
                queue = self.node.queue_to_consume(self, message.address)
                queue.pull(self, message, max(1, int(count)), 0.0, now)
                return
            case "ack":
                self.node.queues.get(message.address).ack(self, message.id, now)
            case "nack":
                self.node.queues.get(message.address).nack(self, message.id, now)
            case "terminate":
                self.close("terminated by the client")
            case "ping":
                self.send(Message(op="pong"))
            case "pong":
                pass
            case _:
                raise RefusedError("bad_request", f"{message.op} is not for a broker")
        if message.flags & Flag.RESPONSE and message.op in ANSWERED:
            kept = message.op in ("declare", "remove")
            self.node.answer(lambda: self._answer(message, DONE), kept=kept)

    def _declare(self, message: Message) -> None:
        """Create a queue (spec: tmq 4): a content type, then `Key: value` lines."""
        fields = _header_lines(message.payload[2:])
        mode = fields.get("mode", "round-robin").lower()
        try:
            settings = QueueSettings(
                message.address,
                mode="round-robin" if mode == "broadcast" else MODES[mode],
                ack_timeout=float(fields.get("ack-timeout", 30)),
                max_deliveries=int(fields.get("max-deliveries", 5)),
                content_type=int.from_bytes(message.payload[:2], "big"),
            )
        except (KeyError, ValueError):
            raise RefusedError("bad_request", "a queue's settings cannot be read") from None
        self.node.check_publish(self, message.address)
        if message.address in self.node.queues:
            raise RefusedError("exists", f"{message.address} is a queue already")
        if mode != "broadcast":  # which is a topic (spec: tmq 6)
            self.node.queues.declare(settings)

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Session | None = None
    ) -> bool:
        """Send one message; FA as the broker says."""
        self.encoder.first = bool(message.flags & Flag.FIRST)
        return super().send(message, policy, sender)

    def end_of_pull(self, request: Message, taken: int) -> None:
        """A response, if one is wanted."""
        if request.flags & Flag.RESPONSE:
            self._answer(request, DONE, str(taken))

    def _greet(self, message: Message, now: float) -> None:
        """The greeting, then Hello (spec: tmq 1)."""
        if message.op == "handshake" and not self._greeted:
            self._greeted = True
            self.send(Message(op="handshake"))
            return
        if message.op != "hello" or not self._greeted:
            self._reject(message, RefusedError("bad_request", "Hello comes first"))
            return
        fields = _header_lines(message.payload)
        try:
            if token := fields.get("client-token", ""):
                self.node.authenticate(self, token)
            self.node.identify(self, fields.get("client-id") or self.node.new_id(), now)
        except RefusedError as error:
            self._reject(message, error)
            return
        self.send(
            Message(
                op="ok", target=self.client_id, content_type=DONE, payload=b"Server: wirelake\r\n"
            )
        )

    def _reject(self, message: Message, error: RefusedError) -> None:
        self.node.count_refused(error.code)
        code = REFUSALS.get(error.code, OTHER_REFUSAL)
        self.send(Message(op="error", content_type=code, payload=error.text.encode()))
        self.close(str(error))

    def _respond(self, message: Message, now: float) -> None:
        """A reply to a request, or a response to the client that it names (spec: tmq 9)."""
        if self.node.services.is_open(message.correlation_id):
            self.node.services.reply(self, message, now)
        else:
            self.node.send_to_client(self, replace(message, source=self.client_id), now)

    def _redirect(self, message: Message, now: float) -> None:
        """The message inside, one hop older, for another receiver (spec: tmq 10)."""
        table = FrameTable(1)
        inner_scanner = scanner(self.dialect, self.node.limits)
        try:
            used = inner_scanner.finish(message.payload, table)
        except ProtocolError as error:
            raise RefusedError("bad_request", f"the redirected message: {error.reason}") from None
        if used != len(message.payload) or table.count != 1:
            raise RefusedError("bad_request", "a redirect holds one whole message")
        inner = table.message(0)
        hops = (inner.ttl or 16) - 1
        if hops == 0:
            self.node.count_dropped("hops")
            return
        inner = replace(inner, op="direct", target=message.target, ttl=hops)
        self.node.send_to_client(self, inner, now)

    def accept(self, message: Message) -> None:
        """A delivery message, for a producer that set DE (spec: tmq 7)."""
        self.send(Message(op="ack", id=message.id, address=message.address))

    def refuse(self, message: Message, error: RefusedError) -> None:
        """A response with the reason's content type, where one is wanted."""
        if message.flags & (Flag.RESPONSE | Flag.ACK):
            self._answer(message, REFUSALS.get(error.code, OTHER_REFUSAL), error.text)

    def _answer(self, message: Message, content_type: int, text: str = "") -> None:
        self.send(
            Message(
                op="reply",
                id=message.id,
                correlation_id=message.id,
                target=self.client_id,
                content_type=content_type,
                payload=text.encode(),
            )
        )

    def tick(self, now: float) -> None:
        """Ping a connection that is idle, and close one that does not answer (spec: tmq 3)."""
        if now - self.last_heard < PING_AFTER or now - self._pinged < PING_AFTER:
            return
        if self._unanswered == MAX_UNANSWERED:
            self.close("two pings had no answer")
            return
        self._pinged = now
        self._unanswered += 1
        self.send(Message(op="ping"))

    def say_goodbye(self) -> None:
        """Tell the client that the broker is going."""
        self.send(Message(op="terminate"))


def _header_lines(payload: bytes) -> dict[str, str]:
    """`Key: value` lines, keys in lower case."""
    fields = {}
    for line in payload.decode(errors="replace").split("\r\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields[key.strip().lower()] = value.strip()
    return fields
