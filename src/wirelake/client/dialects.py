"""What a client says in each dialect, and what it takes the broker's answers for.

A *speech* is one connection's side of a conversation, without its socket: the verbs of a client
become messages for the wire, and a message that came in is `hear`d as what it is. An answer is
told from the others by a key, which was settled when the question was asked. What a dialect has no
words for is refused before anything is sent.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from wirelake.errors import RefusedError
from wirelake.message import Flag, Message, Op
from wirelake.wire import DIALECTS, Encoder, encoder
from wirelake.wire.mfp import MfpEncoder
from wirelake.wire.tmq import OTHER_REFUSAL
from wirelake.wire.tmq import REFUSALS as TMQ_REFUSALS

#: What only some dialects have, by the name that an error calls it.
_SHARED = {
    "acknowledgement of a publish",
    "client id",
    "direct message",
    "list of queues",
    "message id",
    "nack",
    "ping",
    "priority",
    "pull",
    "request/reply",
    "ttl",
}
_OPS = _SHARED | {
    "acknowledgement of a direct message",
    "byte stream",
    "data store",
    "delay",
    "header",
    "nack without requeue",
    "prefetch",
    "pull that waits",
    "service",
    "state of the broker",
}
ABILITIES: Mapping[str, frozenset[str]] = {
    "boson-text": frozenset({"ping", "request/reply", "service"}),
    "boson-binary": frozenset(_OPS),
    "mfp-1": frozenset({"acknowledgement of a publish", "client id"}),
    **dict.fromkeys(("kobold-1", "kobold-2", "kobold-3"), frozenset(_OPS)),
    **dict.fromkeys(("tmq-1.00", "tmq-1.01"), frozenset(_SHARED | {"declaration of queues"})),
}


def can(dialect: str, ability: str) -> bool:
    """Does a dialect have a word for this?"""
    return ability in ABILITIES[dialect]


def require(dialect: str, ability: str) -> None:
    """Refuse what a dialect cannot do, and say which can."""
    if not can(dialect, ability):
        others = [name for name in DIALECTS if ability in ABILITIES[name]]
        have = "has" if len(others) == 1 else "have"
        raise RefusedError("bad_request", f"{dialect} has no {ability}; {', '.join(others)} {have}")


class Ask(NamedTuple):
    """A message that will be answered, and the key that its answer is known by."""

    message: Message
    key: str
    then: tuple[Message, ...] = ()  # sent right behind it


class Sort(Enum):
    """What a message from the broker can be."""

    DELIVERY = auto()
    QUEUED = auto()
    DIRECT = auto()
    REQUEST = auto()
    ANSWER = auto()
    CHANGE = auto()
    STREAM = auto()
    PING = auto()
    END = auto()
    OTHER = auto()


class Heard(NamedTuple):
    """What a message is and, if it is (part of) an answer, to what and how."""

    sort: Sort
    key: str = ""
    refusal: RefusedError | None = None


class Speech(ABC):
    """What dialects share; a subclass is a family, an object one connection."""

    #: Do frames that are delivered say their address?
    has_addresses = True
    #: Can a client take back that it serves an address?
    has_unserve = True

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self._seed = secrets.token_bytes(8)
        self._made = count(1)

    def encoder(self) -> Encoder:
        """A new encoder for this connection."""
        return encoder(self.dialect)

    def new_id(self) -> str:
        """An id that nobody else has."""
        return f"{self._seed.hex()}{next(self._made):x}"

    @abstractmethod
    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """What is asked when a connection begins, one after the other."""

    def publish(self, message: Message, ack: bool) -> Ask:
        """Publish; the key is for the acknowledgement, if one is wanted."""
        identity = message.id or (self.new_id() if ack else "")
        flags = Flag.ACK if ack else Flag(0)
        return Ask(replace(message, id=identity, flags=flags), f"id:{identity}")

    def put(self, message: Message, ack: bool) -> Ask:
        """Put a message into a queue: where there is no word for it, publishing to it."""
        return self.publish(message, ack)

    def subscribe(self, filter: str, prefetch: int = 0) -> Ask:
        """Subscribe to a filter, or consume a queue with a prefetch, where it can be said."""
        return self.control(Message(op=Op.SUBSCRIBE, address=filter))

    def unsubscribe(self, filter: str) -> Ask:
        """Take that back."""
        return self.control(Message(op=Op.UNSUBSCRIBE, address=filter))

    def serve(self, address: str) -> Ask:
        """Serve an address."""
        return self.control(Message(op=Op.SERVE, address=address))

    def unserve(self, address: str) -> Ask:
        """Take that back, where the dialect can."""
        return self.control(Message(op=Op.UNSERVE, address=address))

    def request(self, request: Message) -> Ask:
        """Send a request."""
        return self.control(replace(request, op=Op.REQUEST))

    def ping(self) -> Ask:
        """Ask for a sign of life."""
        return self.control(Message(op=Op.PING))

    def settle(self, delivered: Message, *, done: bool, requeue: bool = True) -> Ask:
        """Acknowledge a queue message, or refuse it."""
        return self.control(settlement(delivered, done=done, requeue=requeue))

    def make_queue(self, queue: str) -> Ask:
        """Make a queue that is to be consumed, if need be: taking from it does (spec: kobold)."""
        return self.dequeue(queue, 1, 0.0)

    def dequeue(self, queue: str, number: int, wait: float) -> Ask:
        """Ask for so many messages of a queue, and wait so many seconds for them."""
        headers = {"$count": str(number), "$wait": str(int(wait * 1000))}
        return self.control(Message(op=Op.DEQUEUE, address=queue, headers=headers))

    def declare(self, queue: str, mode: str, ack_timeout: float, max_deliveries: int) -> Ask:
        """Make a queue; only TMQ can, so in its form: a content type, then lines (spec: tmq 4)."""
        fields = {"Mode": mode, "Ack-Timeout": ack_timeout, "Max-Deliveries": max_deliveries}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        return self.control(Message(op=Op.DECLARE, address=queue, payload=b"\0\0" + lines.encode()))

    def remove(self, queue: str) -> Ask:
        """Remove a queue; only TMQ can."""
        return self.control(Message(op=Op.REMOVE, address=queue))

    def list_queues(self) -> Ask:
        """Ask for the state of all queues."""
        return self.control(Message(op=Op.INFO, address="$queues"))

    @abstractmethod
    def control(self, message: Message) -> Ask:
        """Anything else that is answered."""

    @abstractmethod
    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""

    def pong(self, ping: Message) -> Message:
        """The answer to a ping of the broker."""
        return Message(op=Op.PONG, id=ping.id, correlation_id=ping.correlation_id)

    def farewell(self) -> Message | None:
        """What is said before hanging up."""
        return None


class OpSpeech(Speech):
    """Kobold and boson-binary: everything has an op, answers carry the transaction or the id."""

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """`AUTH` where there is something to say by it; else a ping, to be heard of."""
        identity = {"$client": client_id, "$token": token}
        headers = {name: value for name, value in identity.items() if value}
        yield self.control(Message(op=Op.AUTH, headers=headers)) if headers else self.ping()

    def put(self, message: Message, ack: bool) -> Ask:
        """ENQ, which makes the queue if need be."""
        return self.publish(replace(message, op=Op.ENQUEUE), ack)

    def subscribe(self, filter: str, prefetch: int = 0) -> Ask:
        """Subscribe to a filter, or consume a queue with a prefetch."""
        headers = {"$count": str(prefetch)} if prefetch else {}
        return self.control(Message(op=Op.SUBSCRIBE, address=filter, headers=headers))

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
                return Heard(Sort.ANSWER, self._key(message), _refusal(message))
            case Op.PING:
                return Heard(Sort.PING)
        return Heard(Sort.OTHER)

    def _key(self, message: Message) -> str:
        by_transaction = f"tx:{message.correlation_id}"
        return by_transaction if message.correlation_id else f"id:{message.id}"


class BosonTextSpeech(Speech):
    """boson-text: `$ok` repeats what it answers, `$error` does not."""

    has_unserve = False

    def __init__(self, dialect: str) -> None:
        super().__init__(dialect)
        self._asked: deque[str] = deque()  # controls without an answer, which come in order

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """`$auth` with a token; without one a ping, to be heard of."""
        if token:
            yield self.control(Message(op=Op.AUTH, headers={"$token": token}))
        else:
            yield self.ping()

    def control(self, message: Message) -> Ask:
        """By a reserved topic."""
        if message.op == Op.REQUEST:
            number = self.new_id()
            return Ask(replace(message, correlation_id=number), f"tx:{number}")
        if message.op == Op.PING:
            return Ask(message, "pong")
        # A token may or may not be repeated, so an `$auth` is known by its name alone.
        key = "$auth" if message.op == Op.AUTH else f"${message.op.label} {message.address}"
        self._asked.append(key)
        return Ask(message, key)

    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""
        match message.op:
            case Op.PUBLISH:
                return Heard(Sort.DELIVERY)
            case Op.REQUEST:
                return Heard(Sort.REQUEST)
            case Op.REPLY:
                return Heard(Sort.ANSWER, f"tx:{message.correlation_id}")
            case Op.ERROR if message.correlation_id:
                return Heard(Sort.ANSWER, f"tx:{message.correlation_id}", _refusal(message))
            case Op.PONG:
                return Heard(Sort.ANSWER, "pong")
            case Op.OK:
                content = message.payload.decode(errors="replace")
                key = "$auth" if content.startswith("$auth ") else content
                if key in self._asked:
                    self._asked.remove(key)
                return Heard(Sort.ANSWER, key)
            case Op.ERROR:
                key = self._asked.popleft() if self._asked else ""
                return Heard(Sort.ANSWER, key, _refusal(message))
            case Op.PING:
                return Heard(Sort.PING)
        return Heard(Sort.OTHER)


class TmqSpeech(Speech):
    """TMQ: a greeting and Hello, then answers by message id."""

    #: What the content type of a refusal stands for (spec: tmq 4).
    CODES: Mapping[int, str] = {number: code for code, number in TMQ_REFUSALS.items()}
    REFUSALS = frozenset({*CODES, OTHER_REFUSAL})
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
                refusal = self._refused(message) if message.content_type in self.REFUSALS else None
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
        code = self.CODES.get(message.content_type, other)
        return RefusedError(code, message.payload.decode(errors="replace"))


class MfpSpeech(Speech):
    """mfp: frames have a uid, and an acknowledgement is SUCCESS or FAIL for one."""

    has_addresses = False

    def encoder(self) -> Encoder:
        """A new encoder, whose own uids are not those made here."""
        return MfpEncoder(self.dialect, uid_seed=secrets.token_bytes(8))

    def new_id(self) -> str:
        """A uid."""
        return f"{self._seed.hex()}{next(self._made):016x}"

    def greet(self, client_id: str, token: str, role: str) -> Iterator[Ask]:
        """A handshake as PUB or SUB; the connection-id has the token in it (spec: mfp 8)."""
        name = f"{client_id}:{token}" if token else client_id
        yield self.control(Message(op=Op.HANDSHAKE, source=name, headers={"$connection": role}))

    def publish(self, message: Message, ack: bool) -> Ask:
        """Publish, under a uid of our own; the encoder sets the topic first, where it changes."""
        asking = super().publish(replace(message, id=""), ack)
        try:
            message.payload.decode()
        except UnicodeDecodeError:
            return asking
        return Ask(replace(asking.message, flags=asking.message.flags | Flag.TEXT), asking.key)

    def control(self, message: Message) -> Ask:
        """All options and handshakes are acknowledged."""
        number = self.new_id()
        return Ask(replace(message, id=number), f"id:{number}")

    def hear(self, message: Message) -> Heard:
        """What a message from the broker is."""
        match message.op:
            case Op.PUBLISH:
                return Heard(Sort.DELIVERY)
            case Op.OK:
                return Heard(Sort.ANSWER, f"id:{message.id}")
            case Op.ERROR:
                refusal = RefusedError("bad_request", "the broker said FAIL; mfp has no reasons")
                return Heard(Sort.ANSWER, f"id:{message.id}", refusal)
        return Heard(Sort.OTHER)


def settlement(delivered: Message, *, done: bool, requeue: bool = True) -> Message:
    """The message that acknowledges a queue message, or refuses it.

    It repeats the content type, where the dialect has one (spec: tmq 7).
    """
    return Message(
        op=Op.ACK if done else Op.NACK,
        address=delivered.address,
        id=delivered.id,
        content_type=delivered.content_type,
        headers={} if done or requeue else {"$requeue": "0"},
    )


def _refusal(message: Message) -> RefusedError:
    code = message.headers.get("$code", "") or "bad_request"
    return RefusedError(code, message.payload.decode(errors="replace"))


_SPEECHES: dict[str, type[Speech]] = {
    "boson-text": BosonTextSpeech,
    "boson-binary": OpSpeech,
    "kobold": OpSpeech,
    "tmq": TmqSpeech,
    "mfp": MfpSpeech,
}


def speech(dialect: str) -> Speech:
    """The speech of a new connection."""
    return (_SPEECHES.get(dialect) or _SPEECHES[dialect.partition("-")[0]])(dialect)
