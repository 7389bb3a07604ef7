"""Sessions of MQTT, one for each connection; what outlives a connection is in `memory`.

In a cluster, a client with a session that lasts, or with a will, is hosted by the owner of the
partition of its queue, `$mqtt/<id>`:

1. The client's own node finds its rights, and forwards CONNECT without its secrets.
2. The owner ends or takes up what there is of this client id. Then it hosts the client: all that
   the client sends goes there, and the session there answers. Or the session ends with its
   connection and has no will: then the owner hands CONNECT back, and the client's node does the
   rest.
3. If the owner is lost the client is disconnected, and finds its session with the next owner.

Only the owner of an address knows whether it is a queue or a service. It is asked before a client
subscribes to an address, or publishes with a response topic; meanwhile what the client sent waits
(`_hold`). Queues and services of other nodes are used through an `Agent`.
"""

from __future__ import annotations

from array import array
from collections import deque
from functools import partial

from msgspec.structs import replace

from wirelake.address import has_wildcard
from wirelake.broker.endpoint import Endpoint, Link, Policy
from wirelake.broker.node import Node
from wirelake.broker.session import Session
from wirelake.dialects.mqtt.agent_session import Agent
from wirelake.dialects.mqtt.codes import (
    OLD_NOT_AUTHORIZED,
    OLD_REFUSED,
    OLD_RETURNS,
    Packet,
    Reason,
    reason_of,
)
from wirelake.dialects.mqtt.encoder import (
    ack_run,
    acknowledgements,
    all_flags,
    answers,
    chosen_flags,
    tickets,
)
from wirelake.dialects.mqtt.memory import (
    IDENTIFIERS,
    OVERHEAD,
    QUEUE,
    SHARE,
    UNDER_WAY,
    Conversation,
    Conversations,
    Kind,
    Options,
    delay_of,
)
from wirelake.dialects.mqtt.scanner import ALIASED, ASKS, ONCE, RETAIN, MqttScanner
from wirelake.errors import ProtocolError, RefusedError
from wirelake.message import NO_PARAMETERS, Flag, Message, Op
from wirelake.wire import FrameTable
from wirelake.wire.rows import count_rows, pack, unpack

#: A session that lasts for ever.
FOR_EVER = 0xFFFFFFFF
#: A filter with this in front serves requests, and a reply is published to its number with this.
SERVE = "$serve/"
REPLY = "$reply/"
#: Headers of a CONNECT between nodes: that it is one, and that the broker has made the client id.
FORWARDED = "mqtt.forwarded"
ASSIGNED = "mqtt.assigned"
#: The response topic of clients that ask services, and nobody else.
REPLIES = "$answers"
#: What a session waits for while another node is asked what an address is.
_ASKED = "the owner of an address"
#: What cannot be passed on to other clients byte for byte.
_OWN = int(Flag.ACK) | RETAIN | ALIASED
_BEYOND_PLAIN = ONCE | RETAIN


class MqttSession(Session):
    """A client that speaks MQTT 3.1.1 or 5."""

    takes_direct = False
    scanner: MqttScanner

    def __init__(self, node: Node, link: Link, dialect: str, now: float) -> None:
        super().__init__(node, link, dialect, now)
        memory = node.memories["mqtt"]
        assert isinstance(memory, Conversations)
        self._home: Conversations = memory
        self._is_five = dialect == "mqtt-5"
        self.form = f"{dialect}+0"  # of QoS 0 packets that may be passed on as they are
        self.scanner.most_aliases = node.quotas.aliases
        self.scanner.hears_clients = True
        self._unreleased = node.quotas.unreleased  # messages of QoS 2; announced in CONNACK
        self._talk: Conversation | None = None
        self._before: Conversation | None = None  # the one that a connection that ended had
        self._is_elsewhere = False  # another node hosts this client
        self._agent: Agent | None = None
        self._asking = ""  # the address whose owner is asked what it is
        self._held: list[bytes | memoryview] = []  # rows that wait for that
        self._kinds: dict[str, Kind | None] = {}  # of the addresses in these rows
        self._keepalive = 0
        self._most_packet = 0  # bytes that the client takes in one packet; 0: any
        self._tells_reasons = self._is_five  # as text, beside the code
        self._results = bytearray()  # of the filters of a packet
        self._later: list[tuple[str, Options]] = []  # whose retained messages follow the answer
        self._serves = False
        #: Messages of queues that are not acknowledged: the queue and the id, by identifier.
        self.handed_out: dict[int, tuple[str, str]] = {}
        self._handed = IDENTIFIERS
        #: Messages of queues that wait for room in the client's receive maximum, and their bytes.
        self._held_back: deque[tuple[Message, Options]] = deque()
        self._held_bytes = 0

    @property
    def outgoing(self) -> int:
        """The bytes that wait for this client, also for room in its receive maximum."""
        return super().outgoing + self._unsent

    @property
    def _unsent(self) -> int:
        """The bytes that wait until the client acknowledges others."""
        waiting = self._talk.waiting_bytes if self._talk is not None else 0
        return waiting + self._held_bytes

    @property
    def waits_for_itself(self) -> bool:  # type: ignore[override]  # of others it is a constant
        """Not where what waits for acknowledgements fills the outbox: they have to be read."""
        return not self._unsent or self.outgoing - self._unsent > self.node.flow.limit

    def receive(self, data: memoryview, now: float) -> int:
        """Process bytes; a client that lets too much wait for its acknowledgements is ended."""
        used = super().receive(data, now)
        limit = self.node.flow.limit
        if self._unsent > 2 * limit and not self.closed:
            text = f"{self._unsent} bytes wait for acknowledgements of this client"
            self.node.vitals.counters["slow_consumers"] += 1
            self.node.vitals.event("slow_consumer", repr(self), text)
            self._end(Reason.QUOTA, text)
        return used

    def use_variant(self, variant: str) -> None:
        """Change nothing: the variant is that of publishes that are passed on as they came."""

    # Publishing

    def accepts_publishes(self) -> bool:
        """Not before CONNECT, and not while another node is asked."""
        return self._talk is not None and not self._asking

    def forwards_as_is(
        self, table: FrameTable, start: int, end: int, rows: array[int] | None
    ) -> bool:
        """Only packets of QoS 0 that are not retained and have no alias."""
        flags = all_flags(table, start, end) if rows is None else chosen_flags(table, rows)
        return not flags & _OWN

    def publish(self, table: FrameTable, start: int, end: int, now: float) -> None:
        """Hand a run of publishes on; those that are more than that one by one."""
        flags = all_flags(table, start, end)
        if self._serves or flags & ASKS:
            self._publish_each(table, start, end, now)
            return
        if not flags & _BEYOND_PLAIN:
            super().publish(table, start, end, now)
            return
        talk = self._talk
        assert talk is not None
        if flags & ONCE and not flags & RETAIN:
            known = talk.received.keys()
            rows = [row for row in range(start, end) if table.flags[row] & ONCE]
            numbers = [table.ticket[row] for row in rows]
            fresh = set(numbers)
            is_new = known.isdisjoint(fresh)
            count = len(known) + len(fresh) if is_new else len(known | fresh)
            if not self._may_have(count):
                return
            if is_new and len(fresh) == len(numbers):
                talk.receive(numbers, [table.address(row) for row in rows] if talk.is_kept else ())
                super().publish(table, start, end, now)
                return
        for row in range(start, end):
            if self._is_first(table, row):
                self._publish_one(table, row, now)

    def _may_have(self, count: int) -> bool:
        """Return whether a client may have `count` QoS 2 messages under way; else disconnect it."""
        if self._is_five and count > self._unreleased:
            text = f"more than {self._unreleased} messages of QoS 2 at once (quotas.unreleased)"
            self._end(Reason.TOO_MANY, text)
        return not self.closed

    def _is_first(self, table: FrameTable, row: int) -> bool:
        """Note the identifier of a row of QoS 2; return False where the row is one sent again."""
        talk = self._talk
        if talk is None:  # a row before this one ended the connection
            return False
        if table.flags[row] & ONCE:
            if talk.received.get(table.ticket[row]) == UNDER_WAY:
                return False  # it is answered when it is done
            if table.ticket[row] in talk.received:
                self.accept_rows(table, array("i", [row]), kept=True)
                return False
            if not self._may_have(len(talk.received) + 1):
                return False
            talk.receive([table.ticket[row]], [table.address(row)])
        return True

    def _publish_one(self, table: FrameTable, row: int, now: float) -> None:
        if table.flags[row] & RETAIN:
            self.node.vitals.work += 2
            self._home.publish(self, table, row, now)
        else:
            super().publish(table, row, row + 1, now)

    def _publish_each(self, table: FrameTable, start: int, end: int, now: float) -> None:
        """Publish rows among which requests and replies may be."""
        for row in range(start, end):
            address = table.address(row).decode()
            if table.flags[row] & ASKS and self._must_ask(address):
                self._hold(address, table, row, end)
                return
            if not self._is_first(table, row):
                continue
            response = table.headers(row)["mqtt.response"] if table.flags[row] & ASKS else ""
            if "+" in response or "#" in response:
                self._end(Reason.PROTOCOL_ERROR, "a response topic has no wildcards")
                return
            if self._serves and address.startswith(REPLY):
                message = table.message(row)
                number = address.removeprefix(REPLY)
                headers = _users(message)
                reply = replace(message, op=Op.REPLY, correlation_id=number, headers=headers)
                if self._agent is not None and number in self._agent.asked:
                    self._agent.reply(number, reply)
                else:
                    self.node.services.reply(self, reply, now)
                self.accept_rows(table, _asking(table, row), kept=False)
            elif response and (response == REPLIES or self._is_served(address)):
                self._request(table.message(row), now)
                self.accept_rows(table, _asking(table, row), kept=False)
            else:
                self._publish_one(table, row, now)

    def _is_served(self, address: str) -> bool:
        """Return whether an address is a service, of this node or of another."""
        kind = self._kinds.get(address)
        return kind.is_service if kind is not None else address in self.node.services

    def _request(self, message: Message, now: float) -> None:
        """Ask a service; the reply is published to the response topic, for this client alone."""
        correlation = message.correlation_id
        if "mqtt.correlation" in message.headers:
            correlation = "hex:" + message.headers["mqtt.correlation"]
        request = replace(
            message,
            op=Op.REQUEST,
            id=message.headers["mqtt.response"],
            correlation_id=correlation,
            headers=_users(message),
        )
        if self._home.is_foreign(request.address):
            self.agent.request(request)
            return
        try:
            self.node.services.request(self, request, now)
        except RefusedError as error:
            self.node.vitals.count_refused(error.code)
            self._respond(request, error.text.encode(), {"code": error.code})

    def respond(self, request: Message, reply: Message) -> None:
        """Send the reply to a request that an agent has made, or why there is none."""
        headers = _users(reply)
        if reply.op == Op.ERROR:
            headers["code"] = reply.parameters.code
        self._respond(request, reply.payload, headers)

    def _respond(self, request: Message, payload: bytes, headers: dict[str, str]) -> bool:
        correlation = request.correlation_id
        if correlation.startswith("hex:"):
            headers = {**headers, "mqtt.correlation": correlation.removeprefix("hex:")}
            correlation = ""
        told = Message(
            address=request.id, payload=payload, correlation_id=correlation, headers=headers
        )
        return self._put(told)

    def accept_rows(self, table: FrameTable, rows: array[int], *, kept: bool) -> None:
        """PUBACK or PUBREC, once the rows are durable if they are kept."""
        if len(rows):
            frames = acknowledgements(table, rows)
            action = lambda: None if self.closed else self.write(frames)  # noqa: E731
            talk = self._talk
            if talk is not None and talk.is_kept and self.node.owners is not None:
                once = [table.ticket[row] for row in rows if table.flags[row] & ONCE]
                once = [one for one in once if talk.received.get(one) == UNDER_WAY]
                if once:
                    action = lambda: self._accept_once(talk, once, frames)  # noqa: E731
            self.answer(action, kept=kept, size=len(frames))

    def _accept_once(self, talk: Conversation, identifiers: list[int], frames: bytes) -> None:
        """Messages are durable: answer when their identifiers are, too, which are kept apart."""
        if self.closed:
            talk.settle(identifiers, [])
        else:
            talk.accept(identifiers)
            self.answer(lambda: None if self.closed else self.write(frames), kept=True)

    def answered_late(self, table: FrameTable, done: array[int]) -> None:
        """Messages of QoS 2 are done although their connection has ended."""
        if self._before is not None:
            rows = [row for row in range(table.count) if table.flags[row] & ONCE]
            failed = [table.ticket[row] for row in rows if row not in done]
            self._before.settle([table.ticket[row] for row in rows if row in done], failed)

    def accept(self, message: Message) -> None:
        """PUBACK or PUBREC of one publish."""
        if message.flags & Flag.ACK:
            is_once = message.headers.get("mqtt.qos") == "2"
            self._tell(Packet.PUBREC if is_once else Packet.PUBACK, message.ticket)

    def refuse(self, message: Message, error: RefusedError) -> None:
        """Say why a publish or a request was refused.

        3.1.1 has no word for it: what will never be accepted is acknowledged and dropped, and what
        may be accepted later ends the connection, so that the client sends it again.
        """
        if message.op == Op.REQUEST:
            self._respond(message, error.text.encode(), {"code": error.code})
            return
        if message.op != Op.PUBLISH or not message.flags & Flag.ACK:
            return
        talk = self._talk  # another node does not send headers back
        is_known = talk is not None and message.ticket in talk.received
        is_once = is_known or message.headers.get("mqtt.qos") == "2"
        kind = Packet.PUBREC if is_once else Packet.PUBACK
        if talk is not None and is_known:
            talk.forget_received([message.ticket])
        if not self._is_five:
            if error.code == "busy":
                self.close(str(error))
            else:
                self._tell(kind, message.ticket)
            return
        reason = Reason.BAD_TOPIC if _is_bad_topic(message.address) else reason_of(error.code)
        self._tell(kind, message.ticket, reason, error.text)

    def _tell(self, kind: Packet, ticket: int, reason: int = 0, text: str = "") -> None:
        headers = {"mqtt.reason": text} if text and self._tells_reasons else {}
        payload = bytes([reason]) if reason else b""
        self._put(
            Message(op=Op.ACK, content_type=kind, ticket=ticket, payload=payload, headers=headers)
        )

    # Everything else

    def control_rows(self, table: FrameTable, row: int, now: float) -> int:
        """Take acknowledgements that come together, or all that another node is to do."""
        owners = self.node.owners
        if self._is_elsewhere and owners is not None and table.op[row] != Op.HANDSHAKE:
            return owners.pass_rows(self, table, row)
        talk = self._talk
        if self._asking:
            self._held.append(pack(table, range(row, table.count)))
            return table.count - row
        if table.op[row] == Op.SUBSCRIBE and talk is not None and owners is not None:
            wanted = _wanted(table.address(row).decode())
            if self._must_ask(wanted):
                self._hold(wanted, table, row, table.count)
                return table.count - row
        if table.op[row] != Op.ACK or talk is None:
            return 0
        end = ack_run(table, row)
        if end == row:
            return 0
        numbers = tickets(table, row, end)
        self.node.vitals.work += 1 + len(numbers) // 16
        match table.content_type[row]:
            case Packet.PUBACK:
                if self.handed_out:
                    numbers = [n for n in numbers if not self._settle(n, now, done=True)]
                talk.acknowledged(numbers)
                self._hand_on()
            case Packet.PUBREC:
                if not talk.has_sent(numbers):
                    for number in numbers:
                        self._release(number)
                    return end - row
                talk.release(numbers)
                frames = answers(table, row, end, Packet.PUBREL)
                if talk.is_kept:
                    self.answer(lambda: None if self.closed else self.write(frames), kept=True)
                else:
                    self.write(frames)
            case Packet.PUBREL:
                talk.forget_received(numbers)
                frames = answers(table, row, end, Packet.PUBCOMP)
                if talk.is_kept:
                    self.answer(lambda: None if self.closed else self.write(frames), kept=True)
                else:  # nothing has to become durable
                    self.write(frames)
            case _:
                talk.completed(numbers)
                self._hand_on()
        return end - row

    def _release(self, identifier: int) -> None:
        """Answer the PUBREC of one message; what was not sent leaves no trace."""
        talk = self._talk
        assert talk is not None
        if talk.has_sent([identifier]):
            talk.release([identifier])
            self.answer(lambda: self._tell(Packet.PUBREL, identifier), kept=talk.is_kept)
        else:
            self._tell(Packet.PUBREL, identifier, Reason.NO_SUCH_PACKET if self._is_five else 0)

    # Other nodes

    @property
    def agent(self) -> Agent:
        """What acts for this client on other nodes."""
        if self._agent is None:
            self._agent = Agent(self)
        return self._agent

    def _must_ask(self, address: str) -> bool:
        """Return whether another node is to be asked what an address is."""
        return address not in self._kinds and self._home.is_foreign(address)

    def _hold(self, address: str, table: FrameTable, row: int, end: int) -> None:
        """Let rows wait until the owner of an address has said what it is."""
        self._held.append(pack(table, range(row, end)))
        self._asking = address
        self.waits_for.add(_ASKED)
        self.link.pause()
        self._home.ask_kind(address, self._told)

    def _told(self, kind: Kind | None) -> None:
        """Another node has said what an address is, or does not answer: go on with the rows."""
        self._kinds[self._asking] = kind
        held, self._held, self._asking = self._held, [], ""
        self.waits_for.discard(_ASKED)
        for rows in held:
            if self.closed:
                return
            if self._asking:  # about another address
                self._held.append(rows)
            else:
                table = FrameTable(max(1, count_rows(rows)))
                unpack(rows, table)
                self.receive_rows(table, self.node.vitals.now)
        if not self._asking:
            self._kinds.clear()
        if not self.waits_for and not self.closed:
            self.link.resume()

    def _consume_again(self) -> None:
        """Consume the queues of other nodes that a session subscribed to before."""
        talk = self._talk
        assert talk is not None
        for filter, (options, _) in list(talk.filters.items()):
            if self._home.is_foreign(_wanted(filter)):
                told = partial(self._found_again, _wanted(filter), options)
                self._home.ask_kind(_wanted(filter), told)

    def _found_again(self, address: str, options: Options, kind: Kind | None) -> None:
        if self._talk is None:
            return
        if kind is None:
            self.close(f"the owner of {address} does not answer")
        elif kind.is_queue:
            self.agent.consume(address, options, min(100, self._talk.most_in_flight))

    def perform(self, message: Message, now: float) -> None:
        """Do what a packet asks for, or raise RefusedError."""
        if self._talk is None or message.op == Op.HANDSHAKE:
            is_second = self._is_elsewhere and FORWARDED not in message.headers
            if message.op != Op.HANDSHAKE or self._talk is not None or is_second:
                self._end(Reason.PROTOCOL_ERROR, "CONNECT comes first, and once")
            else:
                self._connect(message, now)
            return
        match message.op:
            case Op.PUBLISH:
                self.node.router.publish_message(self, message, now)
            case Op.SUBSCRIBE:
                self._subscribe(message, now)
            case Op.UNSUBSCRIBE:
                self._unsubscribe(message, now)
            case Op.ACK:
                self._refused(message, now)
            case Op.PING:
                self.send(Message(op=Op.PONG))
            case Op.TERMINATE:
                self._leave(message, now)
            case Op.AUTH:
                text = "enhanced authentication is not offered: use a user name and a password"
                self._end(Reason.BAD_AUTH_METHOD, text)
            case _:
                self._end(Reason.PROTOCOL_ERROR, f"{message.op.label} is not for a broker")

    def _connect(self, message: Message, now: float) -> None:
        self._most_packet = int(message.headers.get("mqtt.maximum_packet", "0"))
        try:
            if FORWARDED not in message.headers:
                self._identify(message)
                if self.node.owners is not None and self._go_elsewhere(message):
                    return
            elif self.is_delegate and self._is_passing(message, now):
                return
            is_there = self._introduce(message, now)
        except RefusedError as error:
            self.node.vitals.count_refused(error.code)
            self._reject(error)
            return
        talk = self._talk
        assert talk is not None
        headers: dict[str, str] = {}
        if self._is_five:
            headers["mqtt.receive_maximum"] = str(self._unreleased)
            headers["mqtt.alias_maximum"] = str(self.scanner.most_aliases)
            headers["mqtt.maximum_packet"] = str(min(self.node.limits.message, 0xFFFFFFF))
            if not message.source or ASSIGNED in message.headers:
                headers["mqtt.assigned_id"] = self.client_id
        flags = Flag.MORE if is_there else Flag(0)
        answer = Message(op=Op.HELLO, headers=headers, flags=flags)

        def welcome() -> None:
            if not self.closed:
                self.send(answer)
                talk.resume()
                if is_there and self.node.owners is not None:
                    self._consume_again()

        if talk.is_kept or talk.will is not None:
            self.answer(welcome, kept=talk.is_kept)
        else:
            welcome()

    def _identify(self, message: Message) -> None:
        """Find the rights of the client; raises RefusedError."""
        said = message.headers
        if "mqtt.auth_method" in said:
            raise RefusedError("auth_method", "enhanced authentication is not offered")
        if "mqtt.password" in said:
            raise _UnwelcomeError("unauthorized", "the token is not known", Reason.BAD_CREDENTIALS)
        if token := message.parameters.token or said.get("mqtt.user", ""):
            try:
                self.node.clients.authenticate(self, token)
            except RefusedError as error:
                raise _UnwelcomeError(error.code, error.text, Reason.BAD_CREDENTIALS) from None
        if self.rights.is_empty:
            raise RefusedError("unauthorized", "this broker asks for a token, as the password")

    def _lifetime(self, message: Message) -> tuple[bool, float]:
        """Return whether the conversation begins anew, and how long it lasts (seconds)."""
        is_clean = message.headers.get("mqtt.clean") == "1"
        if not self._is_five:
            return is_clean, 0.0 if is_clean else float("inf")
        lasts = float(message.headers.get("mqtt.session_expiry", "0"))
        return is_clean, float("inf") if lasts == FOR_EVER else lasts

    def _go_elsewhere(self, message: Message) -> bool:
        """Let the owner of the client's session have it; return False where that is this node.

        Raises RefusedError where there is no owner now.
        """
        is_clean, lasts = self._lifetime(message)
        client_id, said = message.source, dict(message.headers)
        if not client_id:
            if not (lasts or message.address) or not (is_clean or self._is_five):
                return False
            client_id, said[ASSIGNED] = self.node.clients.make_id(self), "1"
        said.pop("mqtt.user", None)
        said[FORWARDED] = "1"
        partition = self.node.engine.home(QUEUE + client_id)
        told = replace(message, source=client_id, headers=said, parameters=NO_PARAMETERS)
        owners = self.node.owners
        assert owners is not None
        if not owners.host(self, partition, told):
            return False
        self.client_id = client_id
        self._keepalive = int(said["mqtt.keepalive"])
        self._is_elsewhere = True
        return True

    def _is_passing(self, message: Message, now: float) -> bool:
        """End what there is of a client that needs no host; return False where it needs one."""
        clients, home = self.node.clients, self._home
        is_clean, lasts = self._lifetime(message)
        talk = home.find(message.source)
        has_old = talk is not None and not is_clean and talk.owner == self.owner
        if lasts or message.address or has_old:
            return False
        clients.claim(self, message.source, now)
        talk = home.find(message.source)
        if talk is not None:
            home.publish_will(talk, now)
            talk.end(now)
        clients.leave(self, now)
        self.hands_back = True
        return True

    def _introduce(self, message: Message, now: float) -> bool:
        """Take up a conversation; return whether there was one. Raises RefusedError."""
        said, clients, home = message.headers, self.node.clients, self._home
        is_clean, lasts = self._lifetime(message)
        self._is_elsewhere, self.is_hosted = False, self.is_delegate
        if not message.source and not self._is_five and not is_clean:
            raise RefusedError("bad_client_id", "a session that lasts has a client id")
        will = b""
        if message.address:
            try:
                self.node.topics.check_publish(self, message.address)
            except RefusedError as error:
                is_bad = error.code == "bad_request" or _is_bad_topic(message.address)
                reason = Reason.BAD_TOPIC if is_bad else Reason.NOT_AUTHORIZED
                raise _UnwelcomeError(error.code, f"the will: {error.text}", reason) from None
            will = _will_of(message)
            home.check_will(will)
        if ASSIGNED in said:
            clients.register(self, message.source, now, claimed=False)
        elif message.source:
            clients.claim(self, message.source, now)
        else:
            clients.name(self)
        talk = home.find(self.client_id)
        if talk is not None and (is_clean or talk.owner != self.owner):
            home.publish_will(talk, now)
            talk.end(now)
            talk = None
        is_there = talk is not None
        if talk is None:
            if lasts:
                home.check_kept()
            talk = home.begin(self.client_id, self.owner)
        engine = self.node.engine
        if (lasts or message.address) and not engine.is_here(partition := engine.home(talk.queue)):
            home.forget(talk)
            raise RefusedError("busy", engine.lost_because(partition))
        self._talk = talk
        talk.lasts = lasts
        talk.most_in_flight = int(said.get("mqtt.receive_maximum", "65535"))
        talk.most_packet = self._most_packet
        talk.attach(self, now)
        if lasts:
            talk.keep()
        self._keepalive = int(said["mqtt.keepalive"])
        self._tells_reasons = self._is_five and said.get("mqtt.problem_info") != "0"
        if will:
            talk.leave_will(will, self.rights)
        return is_there

    def _reject(self, error: RefusedError) -> None:
        reason = {
            "unauthorized": Reason.NOT_AUTHORIZED,
            "auth_method": Reason.BAD_AUTH_METHOD,
            "bad_client_id": Reason.BAD_CLIENT_ID,
            "bad_request": Reason.BAD_CLIENT_ID,
            "conflict": Reason.BAD_CLIENT_ID,
            "busy": Reason.BUSY,
        }.get(error.code, Reason.UNSPECIFIED)
        if isinstance(error, _UnwelcomeError):
            reason = error.reason
        code = reason if self._is_five else OLD_RETURNS.get(reason, OLD_NOT_AUTHORIZED)
        headers = {"mqtt.reason": error.text} if self._is_five else {}
        self.send(Message(op=Op.HELLO, content_type=code, headers=headers))
        self.close(str(error))

    @property
    def registers_id(self) -> bool:
        """A client id is one client in the whole cluster."""
        return True

    def yields_to(self, other: Endpoint) -> bool:
        """Another connection of the same client takes over, as the standard says."""
        return isinstance(other, MqttSession) and other.owner == self.owner

    def give_up_id(self) -> None:
        """Another connection of the same client takes over."""
        text = f"another connection took over the client id {self.client_id}"
        self._end(Reason.TAKEN_OVER, text)

    def _subscribe(self, message: Message, now: float) -> None:
        """Subscribe to one filter of a packet; the last one answers for all."""
        bits = int(message.headers.get("mqtt.options", "0"))
        number = int(message.headers.get("mqtt.subscription", "0"))
        options = Options(bits & 3, bool(bits & 4), bool(bits & 8), number)
        talk = self._talk
        assert talk is not None
        if options.no_local and message.address.startswith(SHARE):
            self._end(Reason.PROTOCOL_ERROR, "a shared subscription cannot leave out its own")
            return
        handling = (bits >> 4) & 3
        try:
            self._results.append(self._join(message.address, options, handling, now))
        except RefusedError as error:
            self.node.vitals.count_refused(error.code)
            reason: int = reason_of(error.code)
            if error.code == "bad_request":
                reason = Reason.BAD_FILTER
            self._results.append(reason if self._is_five else OLD_REFUSED)
        if not message.flags & Flag.MORE:
            results, self._results = bytes(self._results), bytearray()
            later, self._later = self._later, []
            answer = Message(
                op=Op.OK, content_type=Packet.SUBACK, ticket=message.ticket, payload=results
            )

            def confirm() -> None:
                if not self.closed:
                    self.send(answer)
                    for filter, chosen in later:
                        talk.send_retained(filter, chosen)

            if talk.is_kept:
                self.answer(confirm, kept=True)
            else:
                confirm()

    def _join(self, filter: str, options: Options, handling: int, now: float) -> int:
        talk = self._talk
        assert talk is not None
        if filter.startswith(SERVE):
            if not self._is_five:
                raise RefusedError("bad_request", "to serve requests takes MQTT 5")
            address = filter.removeprefix(SERVE)
            if self.node.owners is None:
                self.node.services.serve(self, address)
            else:  # whoever owns the address, now and later
                self.node.services.check(self, address)
                self.agent.serve(address)
            self._serves = True
            return options.qos
        if filter not in talk.filters and has_wildcard(filter):
            self.node.quotas.check_one("wildcards", self.wildcards)
        wanted = _wanted(filter)
        kind = self._kinds.get(wanted)
        if kind is None and wanted in self._kinds:
            raise RefusedError("busy", f"the owner of {wanted} does not answer")
        is_new = talk.subscribe(filter, options, now)
        if kind is not None and kind.is_queue:
            self.agent.consume(wanted, options, min(100, talk.most_in_flight))
        if is_new:
            self.wildcards += has_wildcard(filter)
        if handling == 0 or (handling == 1 and is_new):
            self._later.append((filter, options))
        return options.qos

    def _unsubscribe(self, message: Message, now: float) -> None:
        assert self._talk is not None
        reason = Reason.SUCCESS
        try:
            if message.address.startswith(SERVE) and self.node.owners is not None:
                self.agent.unserve(message.address.removeprefix(SERVE))
            elif message.address.startswith(SERVE):
                self.node.services.unserve(self, message.address.removeprefix(SERVE))
            else:
                self._talk.unsubscribe(message.address, now)
                if self._agent is not None:
                    self._agent.cancel(_wanted(message.address))
                self.wildcards -= has_wildcard(message.address)
        except RefusedError as error:
            reason = Reason.NO_SUBSCRIPTION if error.code == "not_found" else reason_of(error.code)
        self._results.append(reason)
        if not message.flags & Flag.MORE:
            results, self._results = bytes(self._results), bytearray()
            answer = Message(
                op=Op.OK,
                content_type=Packet.UNSUBACK,
                ticket=message.ticket,
                payload=results if self._is_five else b"",
            )
            self.answer(lambda: self.send(answer), kept=self._talk.is_kept)

    def _refused(self, message: Message, now: float) -> None:
        """The client refused a message, or does not know an identifier."""
        talk = self._talk
        assert talk is not None
        if message.content_type == Packet.PUBACK and self._settle(message.ticket, now, done=False):
            self._hand_on()
            return
        if message.content_type in (Packet.PUBACK, Packet.PUBREC):
            if message.payload and message.payload[0] >= Reason.UNSPECIFIED:
                talk.acknowledged([message.ticket])
            elif message.content_type == Packet.PUBREC:
                self._release(message.ticket)
            else:
                talk.acknowledged([message.ticket])
        elif message.content_type == Packet.PUBREL:
            talk.forget_received([message.ticket])
            self._tell(Packet.PUBCOMP, message.ticket)
        else:
            talk.completed([message.ticket])
        self._hand_on()

    def _settle(self, identifier: int, now: float, *, done: bool) -> bool:
        """Acknowledge a message of a queue, or give it back; return whether it was one."""
        held = self.handed_out.pop(identifier, None)
        if held is None:
            return False
        queue, identity = held
        assert self._talk is not None
        if self._agent is not None and queue in self._agent.queues:
            self._agent.settle(queue, identity, done=done)
            return True
        for receiver in self._talk.receivers.values():
            if queue in receiver.consumes:
                try:
                    if done:
                        self.node.queues.get(queue).ack(receiver, identity, now)
                    else:
                        self.node.queues.get(queue).nack(receiver, identity, now, requeue=True)
                except RefusedError as error:  # it came too late
                    self.node.vitals.count_refused(error.code)
                break
        return True

    def hand_out(self, message: Message, options: Options) -> bool:
        """Send a message of a queue to this client, now or when there is room for it."""
        if not options.qos:
            return self._hand(message, 0)
        if not self._fits(self._handed_over(message, 1)):
            self.node.vitals.count_dropped("too_large")
            return False
        if self._held_back or not self._has_room():
            self._held_back.append((message, options))
            self._held_bytes += len(message.payload) + OVERHEAD
            return True
        return self._hand(message, self._next_handed())

    def _has_room(self) -> bool:
        """Return whether one more message of a queue may be sent before one is acknowledged."""
        is_free = len(self.handed_out) < 0xFFFF - IDENTIFIERS
        return is_free and self._talk is not None and self._talk.room > 0

    def _hand_on(self) -> None:
        """Send messages of queues that waited for room, unless their queue is consumed no more."""
        talk = self._talk
        while self._held_back and talk is not None and self._has_room():
            message, options = self._held_back.popleft()
            self._held_bytes -= len(message.payload) + OVERHEAD
            receiver = talk.receivers.get(options)
            if receiver is not None and message.address in receiver.consumes:
                self._hand(message, self._next_handed())

    def _hand(self, message: Message, ticket: int) -> bool:
        if ticket:
            self.handed_out[ticket] = (message.address, message.id)
        return self._put(self._handed_over(message, ticket))

    def _handed_over(self, message: Message, ticket: int) -> Message:
        headers = {**message.headers, "mqtt.qos": "1" if ticket else "0"}
        return replace(message, op=Op.PUBLISH, ticket=ticket, headers=headers)

    def _next_handed(self) -> int:
        """Return an identifier for a message of a queue that no other one has now."""
        while True:
            self._handed = self._handed + 1 if self._handed < 0xFFFF else IDENTIFIERS + 1
            if self._handed not in self.handed_out:
                return self._handed

    def send(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message; requests and replies as publishes."""
        if message.op == Op.REQUEST:
            asked = {"mqtt.response": REPLY + message.correlation_id, **_users(message)}
            message = replace(message, op=Op.PUBLISH, headers=asked, flags=Flag(0))
        elif message.op == Op.REPLY:
            return self._respond(message, message.payload, dict(message.headers))
        return self._put(message, policy, sender)

    def _put(
        self, message: Message, policy: Policy = "disconnect", sender: Endpoint | None = None
    ) -> bool:
        """Send one message as a packet, unless it is larger than the client can take.

        A reason in words is left out where only that makes the packet too large.
        """
        if not self._fits(message):
            headers = {k: v for k, v in message.headers.items() if k != "mqtt.reason"}
            is_shorter = len(headers) < len(message.headers)
            message = replace(message, headers=headers)
            if not is_shorter or not self._fits(message):
                self.node.vitals.count_dropped("too_large")
                return False
        return super().send(message, policy, sender)

    def _fits(self, message: Message) -> bool:
        """Return whether the client can take a packet that is as large as this one."""
        if not self._most_packet:
            return True
        table = self.node.tables.room(1)
        table.fill([message], message.dialect)
        return len(self.encoder.encode(table)) <= self._most_packet

    # The end

    def _leave(self, message: Message, now: float) -> None:
        talk = self._talk
        assert talk is not None
        if (expiry := message.headers.get("mqtt.session_expiry")) is not None:
            lasts = float("inf") if int(expiry) == FOR_EVER else float(expiry)
            if lasts and not talk.lasts:
                self._end(Reason.PROTOCOL_ERROR, "a session that ends cannot be made to last")
                return
            talk.lasts = lasts
        if message.content_type == Reason.SUCCESS:  # else it left for a reason
            talk.drop_will()
        self.close("disconnected by the client")

    def _end(self, reason: Reason, text: str) -> None:
        """Tell the client why, where its version can, and close."""
        if self._is_five and self._is_connected:
            headers = {"mqtt.reason": text}
            self.send(Message(op=Op.TERMINATE, content_type=reason, headers=headers))
        self.close(text)

    @property
    def _is_connected(self) -> bool:
        """Whether the client has been told, on whatever node, that it is connected."""
        return self._talk is not None or self._is_elsewhere or self.is_delegate

    def answer_fault(self, error: ProtocolError) -> None:
        """Say how the client broke the grammar."""
        kind = error.answer[0] >> 4 if error.answer else 0
        if self._talk is None and kind == Packet.CONNACK:
            self.write(error.answer)
        elif self._is_connected:
            is_said = len(error.answer) == 3 and kind == Packet.DISCONNECT
            reason = error.answer[2] if is_said else Reason.MALFORMED
            self._end(Reason(reason), error.reason)

    def tick(self, now: float) -> None:
        """Close the connection of a client that was silent for 1.5 times its keep alive."""
        if self._keepalive and now - self.last_heard > 1.5 * self._keepalive:
            self._end(Reason.SILENT, f"nothing was heard for 1.5 times {self._keepalive} seconds")

    def say_goodbye(self) -> None:
        """Tell the client that the broker stops."""
        if self._is_five and self._is_connected:
            self.send(Message(op=Op.TERMINATE, content_type=Reason.STOPPING))

    def close(self, reason: str) -> None:
        """End the connection, once what was written has gone out."""
        if not self.closed:
            self.filters.clear()  # which are its receivers', see `_detach`
            super().close(reason)
            self._detach()

    def lost(self, reason: str) -> None:
        """The connection has ended."""
        if not self.closed:
            self.filters.clear()
            super().lost(reason)
            self._detach()

    def _detach(self) -> None:
        talk, self._talk = self._talk, None
        if self._agent is not None:
            self._agent.end()
        if talk is None or talk.connection is not self:
            return
        self._before = talk if talk.is_kept else None
        now = self.node.vitals.now
        delay = delay_of(talk.will) if talk.will else 0
        is_due = talk.will is not None and (not delay or not talk.lasts)
        if talk.will is not None and not is_due:
            talk.will_at = now + delay
        talk.detach(now)
        if is_due:
            self._home.publish_will(talk, now, self)


class _UnwelcomeError(RefusedError):
    """A CONNECT that is refused for a reason that its code alone does not tell."""

    def __init__(self, code: str, text: str, reason: Reason) -> None:
        super().__init__(code, text)
        self.reason = reason


def _wanted(filter: str) -> str:
    """Return the filter itself of a shared subscription, or of another."""
    return filter.removeprefix(SHARE).partition("/")[2] if filter.startswith(SHARE) else filter


def _asking(table: FrameTable, row: int) -> array[int]:
    return array("i", [row] if table.flags[row] & Flag.ACK else [])


def _users(message: Message) -> dict[str, str]:
    """Return the headers of a message that are the user's own."""
    return {k: v for k, v in message.headers.items() if not k.startswith("mqtt.")}


def _is_bad_topic(address: str) -> bool:
    return address.startswith("$") or "+" in address or "#" in address


def _text(value: bytes) -> bytes:
    return len(value).to_bytes(2, "big") + value


def _will_of(message: Message) -> bytes:
    """Return the will of a CONNECT as a packet; its delay stands before it, in four bytes."""
    said = message.headers
    qos = int(said["mqtt.will"])
    first = 0x30 | (qos << 1) | (1 if said.get("mqtt.will_retain") == "1" else 0)
    properties, delay = _without_delay(bytes.fromhex(said.get("mqtt.will_properties", "")))
    body = _text(message.address.encode()) + (b"\0\1" if qos else b"")
    body += _varint(len(properties)) + properties + message.payload
    return delay + bytes([first]) + _varint(len(body)) + body


def _without_delay(properties: bytes) -> tuple[bytes, bytes]:
    """Return properties without the will's delay, and the delay."""
    at = 0
    while at < len(properties):
        end = at + _size(properties, at)
        if properties[at] == 0x18:
            return properties[:at] + properties[end:], properties[at + 1 : end]
        at = end
    return properties, bytes(4)


def _size(properties: bytes, at: int) -> int:
    """Return the size of a property of a will, which was checked."""
    number = properties[at]
    if number in (0x01,):
        return 2
    if number in (0x02, 0x18):
        return 5
    size = 3 + int.from_bytes(properties[at + 1 : at + 3], "big")
    if number == 0x26:
        size += 2 + int.from_bytes(properties[at + size : at + size + 2], "big")
    return size


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
