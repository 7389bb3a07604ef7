"""A plug-in as somebody else would write it: lines of text, with wills, retained messages, numbers.

PUB house/temp 21      publish; answered `OK n` once it is durable
KEEP house/temp 21     publish, and keep for those who subscribe later
SUB house/#            subscribe; answered `OK 0`
WILL house/gone bye    published when the connection ends
GET house/temp 21      a delivery, with this receiver's own number in front: `3 GET …`
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from wirelake.plugin import Flag, Message, Op, Plugin, RefusedError

WORDS = {b"PUB": Op.PUBLISH, b"SUB": Op.SUBSCRIBE, b"KEEP": Op.SET, b"WILL": Op.OTHER}
MOST = 4096


class Rooms(Plugin):
    """Lines, and everything that a plug-in can do."""

    interface = 1
    name = "rooms-1"
    magic: ClassVar[tuple[bytes, ...]] = (b"PUB ", b"SUB ", b"KEEP ", b"WILL ")
    abilities = frozenset({"acknowledgement of a publish"})
    per_receiver = True

    def __init__(self) -> None:
        self.will: Message | None = None
        self.delivered = 0
        self.published = 0
        self.ticks = 0

    def parse(self, data: bytes) -> Iterator[tuple[Message | None, int]]:
        """Cut lines."""
        at = 0
        while (end := data.find(b"\n", at)) >= 0:
            yield self._message(data[at:end]), end + 1 - at
            at = end + 1
        if len(data) - at > MOST:
            raise self.fault(f"a line of over {MOST} bytes")

    def _message(self, line: bytes) -> Message | None:
        word, _, rest = line.partition(b" ")
        if word.isdigit():  # a delivery, as a client gets it
            word, _, rest = rest.partition(b" ")
        if word == b"":
            return None
        topic, _, payload = rest.partition(b" ")
        try:
            address = topic.decode()
        except UnicodeDecodeError:
            raise self.fault("an address that is not UTF-8") from None
        if word == b"OK":
            return Message(op=Op.OK)
        if word == b"NO":
            return Message(op=Op.ERROR, payload=rest)
        if word == b"GET":
            return Message(address, payload)
        if word not in WORDS:
            raise self.fault("a line begins with PUB, SUB, KEEP or WILL", answer=b"NO what?\n")
        flags = Flag.ACK if word == b"PUB" else Flag(0)
        return Message(address, payload, op=WORDS[word], flags=flags)

    @classmethod
    def encode(cls, message: Message, client: bool) -> bytes:
        """Write a line; a client writes requests, a broker deliveries."""
        match message.op:
            case Op.PUBLISH if client:
                return b"PUB %b %b\n" % (message.address.encode(), message.payload)
            case Op.PUBLISH | Op.DELIVER:
                return b"GET %b %b\n" % (message.address.encode(), message.payload)
            case Op.SUBSCRIBE:
                return b"SUB %b\n" % message.address.encode()
            case Op.ERROR:
                return b"NO %b\n" % message.payload
        return b""

    def own(self, frame: bytes) -> bytes:
        """Number the deliveries of this connection."""
        if not frame.startswith(b"GET"):
            return frame
        self.delivered += 1
        return b"%d %b" % (self.delivered, frame)

    def on_message(self, message: Message) -> None:
        """Keep values and wills; all else as usual."""
        assert self.connection is not None
        if message.op is Op.SET:
            self.connection.keep(message.address, message.payload)
            self.connection.publish(Message(message.address, message.payload))
        elif message.op is Op.OTHER:
            if message.address.startswith("$"):
                raise RefusedError("bad_request", "no will goes there")
            self.will = message
        else:
            super().on_message(message)
            for key, value in self.connection.kept(message.address):
                self.connection.send(Message(key, value))

    def accepted(self, message: Message) -> bytes:
        """Count what was published."""
        if message.op is Op.PUBLISH:
            self.published += 1
        return b"OK %d\n" % self.published

    def tick(self, now: float) -> None:
        """Count."""
        self.ticks += 1

    def closed(self, reason: str) -> None:
        """Publish the will."""
        if self.will is not None and self.connection is not None:
            self.connection.publish(Message(self.will.address, self.will.payload))
