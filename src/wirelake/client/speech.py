"""What a client says in each dialect, and what it takes the broker's answers for.

A *speech* is one connection's side of a conversation, without its socket: the verbs of a client
become messages for the wire, and a message that came in is `hear`d as what it is. An answer is
told from the others by a key, which was settled when the question was asked. What a dialect has no
words for is refused before anything is sent.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterator
from enum import Enum, auto
from itertools import count
from typing import NamedTuple

from msgspec.structs import replace

from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.errors import RefusedError
from wirelake.message import NO_PARAMETERS, Flag, Message, Op, Parameters
from wirelake.wire import Encoder


def can(dialect: str, ability: str) -> bool:
    """Does a dialect have a word for this?"""
    return ability in DIALECTS[dialect].abilities


def require(dialect: str, ability: str) -> None:
    """Refuse what a dialect cannot do, and say which can."""
    if not can(dialect, ability):
        others = [name for name, one in DIALECTS.items() if ability in one.abilities]
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

    def name(self, answer: Message) -> str:
        """Return the client id that the answer to a greeting gives, if it does."""
        return answer.target

    def reply(self, reply: Message) -> Message:
        """Return a reply to a request as it is sent."""
        return reply

    def sign_of_life(self) -> Message:
        """Return what a client says only to be heard of."""
        return Message(op=Op.PONG)

    def ping(self) -> Ask:
        """Return a ping."""
        return self.control(Message(op=Op.PING))

    def settle(self, delivered: Message, *, done: bool, requeue: bool = True) -> Ask:
        """Acknowledge a queue message, or refuse it."""
        return self.control(settlement(delivered, done=done, requeue=requeue))

    def make_queue(self, queue: str) -> Ask:
        """Make a queue that is to be consumed, if need be: taking from it does (spec: kobold)."""
        return self.dequeue(queue, 1, 0.0)

    def dequeue(self, queue: str, number: int, wait: float) -> Ask:
        """Ask for up to `number` messages of a queue, and wait `wait` seconds for them."""
        said = Parameters(count=number, wait=wait)
        return self.control(Message(op=Op.DEQUEUE, address=queue, parameters=said))

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


def settlement(delivered: Message, *, done: bool, requeue: bool = True) -> Message:
    """The message that acknowledges a queue message, or refuses it.

    It repeats the content type, where the dialect has one (spec: tmq 7).
    """
    return Message(
        op=Op.ACK if done else Op.NACK,
        address=delivered.address,
        id=delivered.id,
        content_type=delivered.content_type,
        parameters=NO_PARAMETERS if done or requeue else Parameters(requeue=False),
    )


def refusal(message: Message) -> RefusedError:
    code = message.parameters.code or "bad_request"
    return RefusedError(code, message.payload.decode(errors="replace"))


def speech(dialect: str) -> Speech:
    """Return the speech of a new connection."""
    made: Speech = DIALECTS[dialect].load("speech")(dialect)
    return made
