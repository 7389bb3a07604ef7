"""The test vectors: frames, and what a message read from them must show.

`tests/vectors/spec` is the specification's own set, unchanged, in the words of each dialect.
`tests/vectors/own` is ours, in the words of `Message`: there a field that is not named is absent.
A line may say what the encoder makes of the messages: the same bytes unless it has `encoded` (other
bytes) or `"canonical": false` (any bytes that mean the same).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from wirelake.message import Flag, Message, Op
from wirelake.wire.parameters import headers_of

FOLDER = Path(__file__).parent.parent / "vectors"

# What our encoder makes of those of the specification's vectors that are not in its own form.
SPEC_ENCODED = {
    "boson-text: multi-part joined": b"9|0|t|abcdefghi",
    "boson-text: multi-part bare terminator": b"4|0|t|abcd",
    "boson-text: multi-part long terminator": b"4|0|t|abcd",
    "boson-text: split": b"4|0|t|abcd3|0|t|efg2|0|t|hi",
    "boson-text: split, bare terminator": b"4|0|t|abcd3|0|t|efg",
    "kobold-3: bytes 0d0a inside the metadata": (
        b"\0\0\0\x12PUB t\r\n\xa1\x61k\x62\r\n\r\nx\r\n"  # bytes that are text become text
    ),
    "kobold-2: null is absent": (  # an empty content is written as no bytes
        b"\0\0\0C\xa6bidbs1lmessage_type\x02etopicca/bntransaction_id`gcontent@itimestamp\0"
    ),
}


@dataclass(frozen=True)
class Vector:
    """One line of a file of vectors."""

    dialect: str
    name: str
    data: bytes
    frame: dict[str, Any]
    encoded: bytes | None  # None: not known, but it means the same

    def __str__(self) -> str:
        return f"{self.dialect}: {self.name}"

    @property
    def is_bad(self) -> bool:
        """Must the stream be refused, after the messages that are listed?"""
        return "error" in self.frame

    def check(self, messages: list[Message]) -> None:
        """Assert that these messages show all that the vector says, and no others are there."""
        frame = {k: v for k, v in self.frame.items() if k not in ("error", "inclusive", "order")}
        if not frame:
            return  # of a bad stream; what comes before the fault is not said
        several = frame.pop("messages", None) or frame.pop("frames", None)
        if several is None:
            expected = [frame]
        else:
            expected = [
                {**frame, **(each if isinstance(each, dict) else {"content": each})}
                for each in several
            ]
        assert len(messages) == len(expected)
        for message, frame in zip(messages, expected, strict=True):
            assert message.dialect == self.dialect
            if frame.get("op", "").islower():
                check_all(message, frame)
            else:
                words = WORDS[self.dialect.partition("-")[0]]
                for key, value in frame.items():
                    shown, wanted = words[key](message, value)
                    assert shown == wanted, key


def load(which: str) -> list[Vector]:
    """The vectors of one folder."""
    return [
        vector(json.loads(line))
        for path in sorted((FOLDER / which).glob("*.jsonl"))
        for line in path.read_text(encoding="utf-8").splitlines()
    ]


def vector(line: dict[str, Any]) -> Vector:
    """A line as a vector; a key that means nothing is an error."""
    line = dict(line)
    dialect, name = line.pop("dialect"), line.pop("name")
    data = bytes.fromhex(line.pop("hex"))
    encoded: bytes | None = SPEC_ENCODED.get(f"{dialect}: {name}", data)
    if "encoded" in line:
        encoded = bytes.fromhex(line.pop("encoded"))
    if not line.pop("canonical", True):
        encoded = None
    frame = line.pop("frame")
    assert not line, f"unknown keys: {line}"
    return Vector(dialect, name, data, frame, encoded)


# Our own words: those of Message.

_ABSENT = msgspec.structs.asdict(Message())
del _ABSENT["parameters"]  # vectors have them among the headers


def check_all(message: Message, frame: dict[str, Any]) -> None:
    """Assert that a message has these fields and no others; flags only where they are given."""
    frame = dict(frame)
    if "payload_hex" in frame:
        frame["payload"] = bytes.fromhex(frame.pop("payload_hex"))
    elif "payload" in frame:
        frame["payload"] = frame["payload"].encode()
    if "flags" in frame:
        frame["flags"] = flags(*frame["flags"])
    wanted = {**_ABSENT, "dialect": message.dialect, "flags": message.flags, **frame}
    shown = {name: getattr(message, name, None) for name in wanted}
    shown["headers"] = headers_of(message)
    assert shown | ({"op": message.op.label} if "op" in wanted else {}) == wanted


def flags(*names: str) -> Flag:
    """Flags by their names, in lower case."""
    total = Flag(0)
    for name in names:
        total |= Flag[name.upper()]
    return total


# The specification's words: for each key, what the message shows and what it should.

Word = Callable[[Message, Any], tuple[object, object]]

_COMMON: dict[str, Word] = {
    "id": lambda m, v: (m.id, v),
    "content": lambda m, v: (m.payload, v.encode()),
    "content_hex": lambda m, v: (m.payload.hex(), v),
}


def _boson_topic(m: Message, v: str) -> tuple[object, object]:
    """Without a topic a message goes to `boson` (spec: boson-text 4)."""
    return (m.address, Flag.IMPLIED in m.flags), (v or "boson", not v)


_BOSON_FLAGS: dict[str, Callable[[Message], str]] = {
    "hbf.op": lambda m: m.op.label,
    "hbf.ack": lambda m: "1" if Flag.ACK in m.flags else "",
    "topic": lambda m: m.address,
    "content": lambda m: m.payload.decode(),
}


def _boson_properties(m: Message, v: dict[str, str]) -> tuple[object, object]:
    shown = {key: _BOSON_FLAGS[key](m) if key in _BOSON_FLAGS else m.headers[key] for key in v}
    headers = {key for key in v if key not in _BOSON_FLAGS}
    return (shown, set(m.headers)), (v, headers)


# Kobold's table, written here a second time; the index is the code.
_KOBOLD_OPS = [
    "", "PUB", "SUB", "UNSUB", "REQ", "REP", "ADV", "UNADV", "ENQ", "DEQ", "MSG", "ACK", "NACK",
    "CREATE", "READ", "UPDATE", "DELETE", "WATCH", "SET", "DEL", "OPEN", "DATA", "CLOSE", "AUTH",
    "PING", "PONG", "OK", "ERR", "INFO",
]  # fmt: skip
_OPS = [
    "unknown", "publish", "subscribe", "unsubscribe", "request", "reply", "serve", "unserve",
    "enqueue", "dequeue", "deliver", "ack", "nack", "create", "read", "update", "delete", "watch",
    "set", "del", "open", "data", "close", "auth", "ping", "pong", "ok", "error", "info",
]  # fmt: skip


def _kobold_metadata(m: Message, v: dict[str, object]) -> tuple[object, object]:
    shown = {key.removeprefix("$"): value for key, value in headers_of(m).items()}
    if Flag.ACK in m.flags:
        shown["ack"] = "1"
    if m.priority:
        shown["prio"] = str(m.priority)
    assert (m.ttl, m.source, m.target) == (0, "", "")
    return shown, {key: str(value) for key, value in v.items()}


_MFP_OPS = {
    "handshake": {"handshake"},
    "option": {"topic", "subscribe", "unsubscribe"},
    "message": {"publish"},
    "acknowledgement": {"ok", "error"},
}
_MFP_OPTIONS = {"set": "topic", "unsubscribe_all": "unsubscribe"}
_TMQ_OPS = {0x10: "hello", 0x11: "publish", 0x12: "direct"}

WORDS: dict[str, dict[str, Word]] = {
    "boson": {
        **_COMMON,
        "options": lambda m, v: (m.headers, {} if v == "0" else {"boson.options": v}),
        "topic": _boson_topic,
        "version": lambda m, v: (2 if Flag.VERSION_2 in m.flags else 1, v),
        "properties": _boson_properties,
    },
    "kobold": {
        **_COMMON,
        "op": lambda m, v: (m.op.label, _OPS[_KOBOLD_OPS.index(v)]),
        "message_type": lambda m, v: (m.op.label, _OPS[v]),
        "topic": lambda m, v: (m.address, v),
        "transaction_id": lambda m, v: (m.correlation_id, v),
        "timestamp": lambda m, v: (m.parameters.timestamp, v),
        "metadata": _kobold_metadata,
        "metadata_hex": lambda m, v: (
            {key: value.encode().hex() for key, value in m.headers.items()},
            v,
        ),
    },
    "mfp": {
        "type": lambda m, v: (m.op.label in _MFP_OPS[v], True),
        "version": lambda m, v: (v, 1),  # another would have been refused
        "connection": lambda m, v: (headers_of(m), {"$connection": v}),
        "id": lambda m, v: (m.source, v),
        "option": lambda m, v: (m.op.label, _MFP_OPTIONS[v]),
        "value": lambda m, v: (m.address, v),
        "text": lambda m, v: (Flag.TEXT in m.flags, v),
        "acknowledge": lambda m, v: (Flag.ACK in m.flags, v),
        "body": lambda m, v: (m.payload, v.encode()),
        "body_hex": lambda m, v: (m.payload.hex(), v),
        "success": lambda m, v: (m.op, Op.OK if v else Op.ERROR),
    },
    "tmq": {
        "type": lambda m, v: (m.op.label, _TMQ_OPS[v]),
        "id": lambda m, v: (m.id, v),
        "source": lambda m, v: (m.source, v),
        "target": lambda m, v: (m.address if m.op == Op.PUBLISH else m.target, v),
        "content_type": lambda m, v: (m.content_type, v),
        "payload": lambda m, v: (m.payload, v.encode()),
        "payload_length": lambda m, v: (m.payload, b"x" * v),
        "ttl": lambda m, v: (m.ttl, v),
        "first": lambda m, v: (Flag.FIRST in m.flags, v),
        "priority": lambda m, v: (m.priority, int(v)),
        "response": lambda m, v: (Flag.RESPONSE in m.flags, v),
        "delivery": lambda m, v: (Flag.ACK in m.flags, v),
        "ping": lambda m, v: (m.op, Op.PING),
        "pong": lambda m, v: (m.op, Op.PONG),
    },
}
