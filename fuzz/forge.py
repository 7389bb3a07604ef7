"""Mutations that know the dialects, for inputs that random bytes would never reach.

Most random changes break a length and the scanner looks no further. So half of the mutations
here leave frames whole: a message is made up or altered and encoded anew, a frame is changed inside
and its length mended, a word of the dialect is put in. The other half is libFuzzer's own.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from fuzz.builds import Build

Frames = list[bytes]

#: Words that a dialect's reader looks for, and lengths at which something changes.
WORDS = {
    "boson-text": (
        b"0|0", b"|0|", b"|m|", b"|mm|", b"||", b"|0,a|", b"|m,a|", b"|a,b|", b"0|0||", b"1|m||x",
        b"$subscribe", b"$unsubscribe", b"$topic", b"$auth", b"$ping", b"$pong", b"$serve", b"$ok",
        b"$request/1/s", b"$reply/1", b"$fail/1", b"$error", b"not_found no", b"4096", b"4097",
    ),
    "boson-binary": (
        b"topic", b"content", b"\0\1\0\0\0\2", b"\0\2\0\0\0\2", b"\0\1k\0\0\0\1v", b"\0\0\0\0",
        b"\0\6hbf.op\0\0\0\4", b"hbf.id", b"hbf.correlation", b"hbf.client", b"hbf.token",
        b"hbf.target", b"hbf.source", b"hbf.ack", b"hbf.ttl", b"hbf.priority", b"hbf.revision",
        b"hbf.code", b"hbf.wait", b"hbf.count", b"hbf.attempt", b"hbf.requeue", b"hbf.x",
        b"subscribe", b"dequeue", b"deliver", b"error", b"\x7f\xff\xff\xff", b"\xff\xff",
    ),
    "mfp-1": (
        bytes(17), b"\2" + bytes(20), b"\0\0\0\1\0", b"\0\0\0\1\1", b"\0\0\0\4\1\1\0a",
        b"\1\0\0a\0b\0c\0d", b"\xd8\0\xdc\0", b"\0\0\3\xea", b"\0\0\3\xeb", b"\0\1\0\0",
    ),
    "kobold-1": (
        b"\r\n", b"\r\n\r\n", b"PUB\r\n", b"SUB\r\n", b"MSG\r\n", b"ERR\r\n", b"FOO\r\n", b"%3D",
        b"id=1;", b"tx=a;", b"ack=1;", b"ttl=9;", b"prio=1;", b"to=c;", b"from=d;", b"token=t;",
        b"client=c;", b"rev=1;", b"wait=1;", b"count=2;", b"code=busy;", b"a%3Bb=%0D%0A;", b"k=",
    ),
    "kobold-2": (
        b"\x62id", b"\x6cmessage_type", b"\x65topic", b"\x6etransaction_id", b"\x67content",
        b"\x69timestamp", b"\x68metadata", b"\xa0", b"\xa1", b"\xbf", b"\xff", b"\x9f", b"\x7f",
        b"\x5f\x41a\xff", b"\x7f\x61a\xff", b"\xf5", b"\x20", b"\x1b\x80" + bytes(7), b"\xc1\0",
        b"\xf6", b"\x18\x18", b"\x3b\x7f" + b"\xff" * 7, b"\x81\x81\x81\x81\x81\x81\x81\x81\x00",
        b"\x63ttl", b"\x64prio\x01", b"\x63ack\x61\x31", b"\x62to", b"\x64from", b"\x62tx",
    ),
    "kobold-3": (
        b"PUB ", b"SUB ", b"MSG ", b"ERR ", b"FOO ", b"\r\n", b"\r\n\xa0\r\n", b"\r\n\xa1\x61k",
        b"\xbf", b"\xff", b"\x62id\x61\x31", b"\x62tx\x01", b"\x63ack\xf5", b"\x63ttl\x19\x01\0",
        b"\x64prio\x01", b"\x62to\x61c", b"\x64from\x61d", b"\x65token\x41t", b"\x42\xff\xfe",
        b"\x5f\x41a\xff", b"\x7f\x61a\xff", b"\x1b\x80" + bytes(7), b"\x3b\x7f" + b"\xff" * 7,
    ),
    "tmq-1.00": (
        b"TMQ/1.00", b"TMQ/", b"\x11\x10\0\0\1\0\7\1q", b"\x89\xff" + bytes(6), b"\x80\1",
        b"\x8a\xff" + bytes(6), b"\x10\x10\0\0\0\0\x65", b"\2\x59", b"\x13\x10", b"\x14\x90",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\xff\x7f", b"Client-Id: c\r\n", b"FAILED",
    ),
    "tmq-1.01": (
        b"TMQ/1.01", b"TMQ/", b"\x11\x10\0\0\1\0\7\1q", b"\x89\xff" + bytes(6), b"\xfc",
        b"\x8a\xff" + bytes(6), b"\x10\x10\0\0\0\0\x65", b"\2\x59", b"\x13\x10", b"\x14\x90",
        b"\xfd\0\xfd", b"\xfe\0\1\0\0", b"\xff" + bytes(7) + b"\1", b"Client-Id: c\r\n",
        b"\x10\x10\0\0\0\x65\0\0", b"\xca\0", b"\xfd\xfd\0", b"\xfe\0\0\1\0", b"\xff\1" + bytes(7),
        b"FAILED", b"timeout",
    ),
    "mqtt-3.1.1": (
        b"\x10\x0e\0\4MQTT\4\2\0\0\0\2c1", b"\x20\2\0\0", b"\x30\4\0\1ax", b"\x32\6\0\1a\0\1x",
        b"\x34\6\0\1a\0\1x", b"\x40\2\0\1", b"\x50\2\0\1", b"\x62\2\0\1", b"\x70\2\0\1",
        b"\x82\6\0\1\0\1a\1", b"\xa2\5\0\1\0\1a", b"\x90\3\0\1\0", b"\xb0\2\0\1", b"\xc0\0",
        b"\xd0\0", b"\xe0\0", b"\xff\xff\xff\x7f", b"\x80\1",
    ),
    "mqtt-5": (
        b"\x10\x0f\0\4MQTT\5\2\0\0\0\0\2c1", b"\x20\3\0\0\0", b"\x30\5\0\1a\0x",
        b"\x32\7\0\1a\0\1\0x", b"\1\1", b"\2\0\0\0\1", b"\3\0\1t", b"\x08\0\1r", b"\x09\0\1c",
        b"\x0b\1", b"\x11\0\0\0\1", b"\x21\0\1", b"\x22\0\1", b"\x23\0\1", b"\x26\0\1k\0\1v",
        b"\x27\0\0\1\0", b"\x1f\0\2no", b"\x18\0\0\0\1", b"\x40\3\0\1\x87", b"\xe0\1\4",
        b"\x82\7\0\1\0\0\1a\x2e", b"\xf0\1\x18", b"\x30\7\0\1a\3\x23\0\1", b"\x30\6\0\0\3\x23\0\1",
    ),
    "meter-1": (
        b"\xaa\x55", b"\xaa\x55\0\0\0\x19", b"\1\0\1", b"\2\0\1", b"\7\0\1", b"\x08\0\1", b"\1a",
        b"\x7f\xc0\0\0", b"\x7f\x80\0\0", b"\x80\0", b"\xff\xff\xff\xff",
    ),
}  # fmt: skip

_FIELDS = (
    "address", "payload", "id", "correlation_id", "source", "target", "op", "headers",
    "content_type", "priority", "ttl", "flags",
)  # fmt: skip
_TEXTS = (
    "", "a", "sensors/12", "/a/b", "a/+/#", "$node", "$subscribe", "$reply/1", "boson", "a|b",
    "ž", "𝄞", "1", "true", "-1", "0" * 32, "ab" * 16, "x" * 64, "y" * 129, "z" * 255, "w" * 256,
    "xž" + "ž" * 70, "𝄞" * 40,
    "a\r\nb", "a=b;c%", "busy", "topic", "id", "not found",
)  # fmt: skip
_NAMES = (
    "k", "trace", "ž", "id", "ttl", "topic", "content", "hbf.op", "hbf.x", "boson.options",
    "$token", "$client", "$rev", "$wait", "$count", "$code", "$attempt", "$requeue",
    "$timestamp", "$connection", "$new", "mqtt.qos", "mqtt.retain", "mqtt.response",
    "mqtt.will", "mqtt.options", "mqtt.x",
)  # fmt: skip


class Forge:
    """A custom mutator of libFuzzer; `flip` is its own one."""

    def __init__(
        self, build: Build, dialects: Sequence[str], flip: Callable[[bytes, int], bytes]
    ) -> None:
        self._build = build
        self._dialects = list(dialects)
        self._flip = flip
        self._tables = {dialect: build.wire.FrameTable(1024) for dialect in dialects}
        self._ops = list(build.message.Op)
        self._flags = [build.message.Flag(0), *build.message.Flag]

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        """Another input, made of this one."""
        chance = Random(seed)
        dialect = chance.choice(self._dialects)
        way = chance.choice((self._flipped, self._word, self._mended, self._altered, self._new))
        if chance.random() < 0.3:
            way = self._flipped
        return bytes(way(chance, dialect, bytes(data), most)[:most])

    def _flipped(self, _chance: Random, _dialect: str, data: bytes, most: int) -> bytes:
        return self._flip(data, most)

    def _word(self, chance: Random, dialect: str, data: bytes, _most: int) -> bytes:
        """Put a word in, or over what is there."""
        word = chance.choice(WORDS.get(dialect, (b"\0",)))  # a new dialect has none yet
        at = chance.randint(0, len(data))
        return data[:at] + word + data[at + chance.choice((0, len(word))) :]

    def _mended(self, chance: Random, dialect: str, data: bytes, most: int) -> bytes:
        """Change a frame inside, and make its length true again."""
        frames, rest = self._frames(dialect, data)
        if not frames:
            return self._flip(data, most)
        k = chance.randrange(len(frames))
        frame = frames[k]
        room = max(1, most - len(data) + len(frame))
        if dialect.startswith("kobold"):
            body = self._inside(chance, dialect, frame[4:], room)
            frames[k] = len(body).to_bytes(4, "big") + body
        elif dialect == "boson-binary":
            body = self._inside(chance, dialect, frame[6:], room)
            frames[k] = frame[:2] + (2 + len(body)).to_bytes(4, "big") + body
        elif dialect == "mfp-1":
            body = self._inside(chance, dialect, frame[21:], room)
            frames[k] = frame[:17] + len(body).to_bytes(4, "big") + body
        else:  # short lengths, which chance finds
            frames[k] = self._inside(chance, dialect, frame, room)
        return b"".join(frames) + rest

    def _inside(self, chance: Random, dialect: str, body: bytes, room: int) -> bytes:
        if chance.random() < 0.3:
            return self._word(chance, dialect, body, room)
        return bytes(self._flip(body, room))

    def _altered(self, chance: Random, dialect: str, data: bytes, most: int) -> bytes:
        """Read the messages, change some of them or their order, and write them anew."""
        table = self._scan(dialect, data)
        if not table:
            return self._new(chance, dialect, data, most)
        rest = self._frames(dialect, data)[1]
        messages = [self._fields(message) for message in table.messages()]
        for _ in range(chance.choice((1, 1, 2))):
            k = chance.randrange(len(messages))
            turn = chance.random()
            if turn < 0.7:
                name, value = self._field(chance)
                messages[k] = messages[k] | {name: value}
            elif turn < 0.85:
                messages.insert(chance.randint(0, len(messages)), messages[k])
            else:
                messages.append(messages.pop(k))
        return self._written(dialect, messages) + rest

    def _new(self, chance: Random, dialect: str, data: bytes, _most: int) -> bytes:
        """Put a message that was made up before, behind or between the frames."""
        made = dict(self._field(chance) for _ in range(chance.randint(1, 6)))
        frame = self._written(dialect, [{"op": chance.choice(self._ops[:13])} | made])
        frames, rest = self._frames(dialect, data)
        frames.insert(chance.randint(0, len(frames)), frame)
        return b"".join(frames) + rest

    def _field(self, chance: Random) -> tuple[str, Any]:
        """A field of a message, and a value for it."""
        name = chance.choice(_FIELDS)
        value: Any = chance.choice(_TEXTS)
        if name == "payload":
            value = chance.choice((value.encode(), chance.randbytes(chance.choice((3, 252, 1001)))))
        elif name == "op":
            value = chance.choice(self._ops)
        elif name == "headers":
            names = chance.sample(_NAMES, chance.randint(0, 4))
            value = {name: chance.choice(_TEXTS) for name in names}
        elif name == "content_type":
            value = chance.choice((0, 1, 101, 202, 404, 601, 610, 620, 65535))
        elif name == "priority":
            value = chance.randint(0, 1)
        elif name == "ttl":
            value = chance.choice((0, 1, 63, 1000, 0x7FFFFFFF))
        elif name == "flags":
            value = chance.choice(self._flags) | chance.choice(self._flags)
        return name, value

    def _fields(self, message: Any) -> dict[str, Any]:
        """The fields of a message, with the parameters among the headers."""
        fields = {name: getattr(message, name) for name in message.__slots__}
        del fields["parameters"]
        return fields | {"headers": self._build.parameters.headers_of(message)}

    def _written(self, dialect: str, messages: list[dict[str, Any]]) -> bytes:
        table = self._tables[dialect]
        table.fill((self._made(**fields) for fields in messages), dialect)
        return bytes(self._build.codec.encoder(dialect).encode(table))

    def _made(self, **fields: Any) -> Any:
        op = fields.get("op", self._build.message.Op.PUBLISH)
        own, said = self._build.parameters.split(fields.pop("headers", {}), op)
        return self._build.message.Message(headers=own, parameters=said, **fields)

    def _frames(self, dialect: str, data: bytes) -> tuple[Frames, bytes]:
        """The complete frames at the start, and the bytes behind them."""
        table = self._scan(dialect, data)
        if not table:
            return [], data
        starts = [*table.frame_at[: len(table)], table.frame_at[len(table) - 1]]
        starts[-1] += table.frame_len[len(table) - 1]
        return [data[a:b] for a, b in itertools.pairwise(starts)], data[starts[-1] :]

    def _scan(self, dialect: str, data: bytes) -> Any:
        """A table of the messages at the start of data, empty where it begins with a fault."""
        table = self._tables[dialect]
        try:
            self._build.codec.scanner(dialect).scan(data, table)
        except self._build.errors.ProtocolError:
            table.count = 0
        return table
