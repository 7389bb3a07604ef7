"""The one immutable value that crosses the layers, and the names in it.

Batches never hold messages: they are frame tables (`wirelake.wire`). A message is made where a
person's code asks for one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class Op(IntEnum):
    """What a frame asks for, one name across dialects; 1 to 28 are Kobold's own codes."""

    UNKNOWN = 0
    PUBLISH = 1
    SUBSCRIBE = 2
    UNSUBSCRIBE = 3
    REQUEST = 4
    REPLY = 5
    SERVE = 6
    UNSERVE = 7
    ENQUEUE = 8
    DEQUEUE = 9
    DELIVER = 10
    ACK = 11
    NACK = 12
    CREATE = 13
    READ = 14
    UPDATE = 15
    DELETE = 16
    WATCH = 17
    SET = 18
    DEL = 19
    OPEN = 20
    DATA = 21
    CLOSE = 22
    AUTH = 23
    PING = 24
    PONG = 25
    OK = 26
    ERROR = 27
    INFO = 28
    HANDSHAKE = 29
    HELLO = 30
    TOPIC = 31
    DIRECT = 32
    REDIRECT = 33
    TERMINATE = 34
    SERVER = 35
    OTHER = 36
    DECLARE = 37
    REMOVE = 38
    LIST = 39
    DEAD = 40

    @property
    def label(self) -> str:
        """The name that people, the log and programs see."""
        return self.name.lower()

    @classmethod
    def named(cls, label: str) -> Op:
        """Return the op that has a label, UNKNOWN where none has."""
        return cls.__members__.get(label.upper(), cls.UNKNOWN)


#: The label of every op, by its code.
OP_LABELS = tuple(op.label for op in Op)


class Flag(IntFlag):
    """The flags of a frame."""

    ACK = 1  # the sender wants to be told when it is done
    RESPONSE = 2  # tmq RS
    FIRST = 4  # tmq FA
    TEXT = 8  # the sender marked the payload as text
    IMPLIED = 16  # the address is not in the frame, it follows from the connection
    MORE = 32  # more messages of the same boson-text sequence follow
    OVERSIZE = 64  # an mfp body over 1000 bytes: readable, not publishable
    VERSION_2 = 128  # boson-binary version 2

    # A test of a flag gives a plain number. To make a Flag of it, as enum would, takes longer than
    # to read a message.
    __and__ = int.__and__  # type: ignore[assignment]  # IntFlag's returns a Flag
    __rand__ = int.__rand__  # type: ignore[assignment]


NO_FLAGS = Flag(0)


class Parameters(Struct, frozen=True):
    """What an op carries beside the fields of the message; None and empty stand for absent.

    On the wire and in the log a parameter is a header, `$` and the name of the field: `$rev`. Only
    `wirelake.wire.parameters` knows how its text is read and written.
    """

    client: str = ""
    token: str = ""
    rev: int | None = None
    count: int | None = None
    wait: float | None = None  # seconds
    code: str = ""
    attempt: int | None = None
    requeue: bool = True
    timestamp: int | None = None  # kobold-2's sender time
    connection: str = ""  # mfp: `pub` or `sub`
    #: The texts, by field, that would be written differently (`007`) or that are no value (`many`).
    verbatim: Mapping[str, str] = {}
    #: Why the op cannot be done: the first parameter of it that is no value; empty where all are.
    fault: str = ""

    def but(self, **changes: Any) -> Parameters:
        """These parameters with other values for some; their texts go with the old ones."""
        if self.verbatim:
            kept = {field: text for field, text in self.verbatim.items() if field not in changes}
            changes["verbatim"] = kept
        changed = replace(self, **changes)
        return changed if changed != NO_PARAMETERS else NO_PARAMETERS


NO_PARAMETERS = Parameters()

#: The largest value of each number that a sender may set; the smallest is 0.
LARGEST = {"content_type": 0xFFFF, "priority": 1, "ttl": 0x7FFFFFFF}
#: The most bytes of an id, a correlation id or a client id.
MAX_ID = 255


class Message(Struct, frozen=True):
    """A message or a control frame; absent is empty or zero, never a made-up value."""

    address: str = ""
    payload: bytes = b""
    id: str = ""
    correlation_id: str = ""
    source: str = ""
    target: str = ""
    content_type: int = 0
    priority: int = 0
    ttl: int = 0
    headers: Mapping[str, str] = {}  # the user's
    flags: Flag = NO_FLAGS
    timestamp: int = 0
    dialect: str = ""
    op: Op = Op.PUBLISH
    #: How the connection that sent it knows its answer, where that is not the id; never in the log.
    ticket: int = 0
    #: `NO_PARAMETERS`, the same object, where there are none.
    parameters: Parameters = NO_PARAMETERS


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may send, in bytes; enforced while reading (spec: limits and bad input)."""

    message: int = 64 << 20
    address: int = 255
    headers: int = 64 << 10
    sequence: int = 64 << 20


def printable(text: str) -> str:
    """Text with escapes for characters that could control a terminal."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
