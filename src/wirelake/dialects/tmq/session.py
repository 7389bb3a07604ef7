"""Sessions of TMQ: greeting, Hello, then messages to the server, to channels and to clients."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.address import check_number, check_topic
from wirelake.broker.endpoint import Endpoint, Policy
from wirelake.broker.queue import Queue
from wirelake.broker.session import Session
from wirelake.config import QueueSettings
from wirelake.dialects.tmq import codes, server
from wirelake.dialects.tmq.codec import FIRST, TmqEncoder, TmqScanner
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable
from wirelake.wire.codec import stamp_bits

if TYPE_CHECKING:
    from array import array

    from wirelake.broker.endpoint import Link
    from wirelake.broker.node import Node

#: Idle time before a connection is pinged; closed after two unanswered pings (seconds).
PING_AFTER = 30.0
MAX_UNANSWERED = 2

#: What is answered when it is done, if RS asks for it (spec: tmq 4).
ANSWERED = (Op.SUBSCRIBE, Op.UNSUBSCRIBE, Op.DECLARE, Op.REMOVE)
#: The most messages that one pull may ask for.
MOST_PULLED = 10**9 - 1
#: When there are this many notes on pulled messages, stale ones are removed.
MANY_PULLED = 1000


class TmqSession(Session):
    """A client that speaks TMQ."""

    accepted_by = Op.ACK
    scanner: TmqScanner
    encoder: TmqEncoder

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        super().__init__(node, link, dialect, now)
        self._unanswered = 0
        self._pinged = now
        # A pulled message comes under the id of the request, and is acknowledged under that:
        # the queue, and the id that it has there, by the id of the request.
        self._pulled: dict[str, tuple[str, str]] = {}
        self._many_pulled = MANY_PULLED
        self._pulling: Message | None = None  # the request that a message is pulled for just now

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Never: the source, the hop count and the first-acquirer flag change (spec: tmq 5, 11)."""
        return False

    def own_frames(
        self, frames: bytes | memoryview, marks: bytes, *, first: bool, shared: bool
    ) -> bytes | memoryview:
        """Tell the first receiver that it is the first: FA (spec: tmq 5)."""
        return stamp_bits(frames, marks, FIRST, shared=shared) if first else frames

    def can_delegate(self) -> bool:
        """Once the client is known."""
        return bool(self.client_id)

    def accepts_publishes(self) -> bool:
        """Not before the client is known, by Hello or as a stranger (spec: tmq 1)."""
        return bool(self.client_id)

    def control(self, message: Message, now: float) -> None:
        """Do what one message asks for, and answer in the byte order that Hello told."""
        if message.op == Op.HELLO and self.scanner.variant() != self.encoder.variant:
            self.use_variant(self.scanner.variant() or "")
            if self.filters:  # a Hello that comes late: routes know the form of subscribers
                self.node.topics.forget_all()
        super().control(message, now)

    def perform(self, message: Message, now: float) -> None:
        """Do what a message asks for, or raise RefusedError."""
        self._unanswered = 0
        if not self.client_id and not self._greet(message, now):
            return
        match message.op:
            case Op.PUBLISH if message.address in self.node.services:
                self.node.services.request(self, message, now)
                return
            case Op.PUBLISH if self._asks_for_a_message(message):
                self._pull(message, now)
                return
            case Op.PUBLISH:
                if message.flags & Flag.RESPONSE and not self.node.topics.reaches(
                    self, message.address
                ):
                    self.node.topics.check_publish(self, message.address)
                    raise RefusedError("not_found", f"nobody is there at {message.address}")
                self.node.router.publish_message(self, message, now)
                return
            case Op.DIRECT:
                self.node.clients.send(self, replace(message, source=self.client_id), now)
            case Op.REPLY:
                self._respond(message, now)
            case Op.REDIRECT:
                self._redirect(message, now)
            case Op.SUBSCRIBE:
                self.node.topics.subscribe(self, message.address, now)
            case Op.UNSUBSCRIBE:
                self.node.topics.unsubscribe(self, message.address, now)
            case Op.DECLARE:
                self._declare(message)
            case Op.REMOVE:
                self.rights.check_removal(message.address)
                self.node.queues.remove(message.address)
            case Op.LIST:
                self.node.list_queues(
                    self,
                    now,
                    lambda states: self._answer(message, codes.DONE, json.dumps(states)),
                    partial(self.refuse, message),
                )
                return
            case Op.DEQUEUE:
                count = message.payload.decode(errors="replace").strip() or "1"
                number = check_number(count, "a pull's payload", most=MOST_PULLED)
                queue = self.node.queues.to_consume(self, message.address)
                queue.pull(self, message, max(1, number), 0.0, now)
                return
            case Op.ACK | Op.NACK:
                self._settle(message, now)
            case Op.SERVER:
                text = server.ask(self, message, now)
                kept = message.content_type in server.KEPT
                if text or message.flags & Flag.RESPONSE:
                    self.answer(lambda: self._answer(message, codes.DONE, text), kept=kept)
            case Op.TERMINATE:
                self.close("terminated by the client")
            case Op.PING:
                self.send(Message(op=Op.PONG))
            case Op.PONG:
                pass
            case _:
                raise RefusedError("bad_request", f"{message.op.label} is not for a broker")
        if message.flags & Flag.RESPONSE and message.op in ANSWERED:
            kept = message.op in (Op.DECLARE, Op.REMOVE)
            self.answer(lambda: self._answer(message, codes.DONE), kept=kept)

    def _declare(self, message: Message) -> None:
        """Create a queue (spec: tmq 4)."""
        wanted, is_queue = server.settings(
            message.payload, QueueSettings(message.address), little=self.encoder.variant == "little"
        )
        may_know = self.rights.allows("publish", message.address)
        if may_know and message.address in self.node.queues:
            raise RefusedError("exists", f"{message.address} is a queue already")
        self.node.queues.check_right(message.address, self.rights)
        if is_queue:
            self.node.queues.declare(wanted, self.rights)
        else:
            check_topic(message.address)

    def _settle(self, message: Message, now: float) -> None:
        """An acknowledgement or a refusal, of a queue's message or a direct one (spec: tmq 7)."""
        queues, name, identity = self.node.queues, message.address, message.id
        is_held = name in queues and queues.open(name).holds(self, identity)
        if not is_held and identity in self._pulled:
            name, identity = self._pulled.pop(identity)
        if name in queues:
            queue = self.node.queues.consumed(self, name)
            settle = queue.ack if message.op == Op.ACK else queue.nack
            settle(self, identity, now)
            return
        other = self.node.clients.receiver(self, name)
        if not isinstance(other, TmqSession):
            raise RefusedError("not_found", f"{name} has no acknowledgements of direct messages")
        other.send(replace(message, source=self.client_id))
        self.node.vitals.counters["delivered"] += 1

    def _asks_for_a_message(self, message: Message) -> bool:
        """Is this how published clients pull: RS, no payload, to a queue of mode pull?"""
        queues, name = self.node.queues, message.address
        asks = message.flags & Flag.RESPONSE and not message.payload
        return bool(asks) and name in queues and queues.open(name).settings.mode == "pull"

    def _pull(self, message: Message, now: float) -> None:
        """Take one message of a queue, which comes as a response (spec: tmq 6)."""
        self._pull_from(self.node.queues.to_consume(self, message.address), message, now)

    def _pull_from(self, queue: Queue, message: Message, now: float) -> None:
        later = lambda: self._pull_from(queue, message, self.node.vitals.now)  # noqa: E731
        if queue.holds_back(self, later):
            return
        self._pulling = message
        try:
            queue.pull(self, message, 1, 0.0, now)
        finally:
            self._pulling = None

    def _as_response(self, delivery: Message, request: Message) -> Message:
        """A queue's message as the response to the request that pulled it."""
        if len(self._pulled) >= self._many_pulled:
            self._forget_pulled()
        self._pulled[request.id] = (delivery.address, delivery.id)
        return replace(
            delivery,
            op=Op.REPLY,
            id=request.id,
            correlation_id=request.id,
            address="",
            target=self.client_id,
            flags=delivery.flags | Flag.ACK,
        )

    def _forget_pulled(self) -> None:
        """Drop the notes on messages that were not acknowledged in time."""
        queues = self.node.queues
        self._pulled = {
            request: (name, identity)
            for request, (name, identity) in self._pulled.items()
            if name in queues and queues.open(name).holds(self, identity)
        }
        self._many_pulled = max(MANY_PULLED, 2 * len(self._pulled))

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message; FA as the broker says."""
        if self._pulling is not None and message.op == Op.DELIVER:
            message = self._as_response(message, self._pulling)
        self.encoder.first = bool(message.flags & Flag.FIRST)
        return super().send(message, policy, sender)

    def send_rows(self, table: FrameTable) -> bool:
        """Send all rows of a table to a consumer, their first receiver; False while one pulls."""
        if self.closed or self._pulling is not None:
            return False
        self.encoder.first = True
        return self._send_rows(table)

    def end_of_pull(self, request: Message, taken: int) -> None:
        """A response, if one is wanted; to published clients one without payload, if none came."""
        if request.op == Op.DEQUEUE:
            if request.flags & Flag.RESPONSE:
                self._answer(request, codes.DONE, str(taken))
        elif not taken:
            self._answer(request, codes.refusal("not_found"))

    def _greet(self, message: Message, now: float) -> bool:
        """The greeting, then Hello; is there something else to be done? (spec: tmq 1)"""
        if message.op == Op.HANDSHAKE:
            self.send(Message(op=Op.HANDSHAKE))
            return False
        try:
            if not self.scanner.greeted:
                raise RefusedError("bad_request", "the greeting comes first")
            if message.op != Op.HELLO:
                if self.rights.is_empty:
                    raise RefusedError("unauthorized", "Hello comes first")
                self.node.clients.name(self)
                return True
            fields = server.header_lines(message.payload)
            if token := fields.get("client-token", ""):
                self.node.clients.authenticate(self, token)
            if client_id := fields.get("client-id", ""):
                self.node.clients.claim(self, client_id, now)
            else:
                self.node.clients.name(self)
        except RefusedError as error:
            self._reject(message, error)
            return False
        self.send(
            Message(
                op=Op.OK,
                target=self.client_id,
                content_type=codes.ACCEPTED,
                payload=b"Server: wirelake\r\n",
            )
        )
        return False

    def _reject(self, message: Message, error: RefusedError) -> None:
        self.node.vitals.count_refused(error.code)
        code = codes.refusal(error.code)
        self.send(Message(op=Op.ERROR, content_type=code, payload=error.text.encode()))
        self.close(str(error))

    def _respond(self, message: Message, now: float) -> None:
        """A reply to a request, or a response to the client that it names (spec: tmq 9)."""
        if self.node.services.is_open(message.correlation_id):
            self.node.services.reply(self, message, now)
        else:
            self.node.clients.send(self, replace(message, source=self.client_id), now)

    def _redirect(self, message: Message, now: float) -> None:
        """The message inside, one hop older, for another receiver (spec: tmq 10)."""
        table = FrameTable(1)
        inner_scanner = TmqScanner(self.dialect, self.node.limits)
        inner_scanner.set_variant(self.encoder.variant)
        try:
            used = inner_scanner.finish(message.payload, table)
        except ProtocolError as error:
            raise RefusedError("bad_request", f"the redirected message: {error.reason}") from None
        if used != len(message.payload) or table.count != 1:
            raise RefusedError("bad_request", "a redirect holds one whole message")
        inner = table.message(0)
        hops = (inner.ttl or 16) - 1
        if hops == 0:
            self.node.vitals.count_dropped("hops")
            return
        inner = replace(inner, op=Op.DIRECT, source=self.client_id, target=message.target, ttl=hops)
        self.node.clients.send(self, inner, now)

    def accept(self, message: Message) -> None:
        """A delivery message, for a producer that set DE (spec: tmq 7)."""
        self.send(
            Message(
                op=Op.ACK,
                id=message.id,
                address=message.address,
                content_type=message.content_type,
            )
        )

    def refuse(self, message: Message, error: RefusedError) -> None:
        """A response with the reason's content type, where one is wanted."""
        if message.flags & (Flag.RESPONSE | Flag.ACK):
            self._answer(message, codes.refusal(error.code), error.text)

    def _answer(self, message: Message, content_type: int, text: str = "") -> None:
        self.send(
            Message(
                op=Op.REPLY,
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
        self.send(Message(op=Op.PING))

    def say_goodbye(self) -> None:
        """Tell the client that the broker is going."""
        self.send(Message(op=Op.TERMINATE))
