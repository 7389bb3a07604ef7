"""A client made of nothing but the wire library: what a device of a dialect would send."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable

from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed, encoder
from wirelake.errors import RefusedError
from wirelake.message import NO_PARAMETERS, Flag, Message, Op, Parameters
from wirelake.wire import FrameTable

#: What MQTT says to a client without rights: return codes of 3.1.1, reason codes of 5.
NOT_AUTHORIZED = (4, 5, 0x86, 0x87)


class Peer:
    """One connection that speaks a dialect."""

    def __init__(self, dialect: str, name: str, role: str = "pub", token: str = "") -> None:
        self.dialect = dialect
        self.name = name
        self.role = role
        self.token = token
        self._encoder = encoder(dialect)
        self._feed = Feed(dialect)
        self._inbox: list[Message] = []

    async def open(
        self, port: int = 0, *, tls: ssl.SSLContext | None = None, path: str = ""
    ) -> Peer:
        """Connect to a port, or a socket's path, and go through the dialect's opening."""
        await self.connect(port, tls=tls, path=path)
        if self.dialect == "mfp-1":
            source = f"{self.name}:{self.token}" if self.token else self.name
            said = Parameters(connection=self.role)
            await self.send(Message(op=Op.HANDSHAKE, source=source, parameters=said))
            await self._accepted()
        elif self.dialect.startswith("tmq"):
            await self.send(Message(op=Op.HANDSHAKE))
            assert (await self.receive()).op == Op.HANDSHAKE
            hello = f"Client-Id: {self.name}\r\n" if self.name else ""
            if self.token:
                hello += f"Client-Token: {self.token}\r\n"
            await self.send(Message(op=Op.HELLO, payload=hello.encode()))
            await self._accepted()
        elif self.dialect.startswith("mqtt"):
            said = Parameters(token=self.token) if self.token else NO_PARAMETERS
            headers = {"mqtt.clean": "1", "mqtt.keepalive": "0"}
            await self.send(
                Message(op=Op.HANDSHAKE, source=self.name, headers=headers, parameters=said)
            )
            await self._accepted()
        elif self.dialect != "boson-text" and DIALECTS[self.dialect].description is None:
            said = Parameters(client=self.name, token=self.token)
            await self.send(Message(op=Op.AUTH, correlation_id="hi", parameters=said))
            await self._accepted()
        elif self.token:
            await self.send(Message(op=Op.AUTH, parameters=Parameters(token=self.token)))
            await self._accepted()
        return self

    async def connect(
        self, port: int = 0, *, tls: ssl.SSLContext | None = None, path: str = ""
    ) -> None:
        """Connect, and say nothing."""
        if path:
            self._reader, self._writer = await asyncio.open_unix_connection(path)
        else:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=tls, server_hostname="localhost" if tls else None
            )

    async def _accepted(self) -> None:
        answer = await self.receive()
        if answer.op != Op.OK and (answer.op, answer.content_type) != (Op.HELLO, 0):
            await self.close()
            if answer.op == Op.HELLO:
                raise RefusedError(
                    "unauthorized" if answer.content_type in NOT_AUTHORIZED else "no"
                )
            raise RefusedError(answer.parameters.code or str(answer.content_type))

    async def subscribe(self, filter: str) -> None:
        """Subscribe, and wait until that is done."""
        flags = Flag.RESPONSE if self.dialect.startswith("tmq") else Flag.ACK
        await self.send(
            Message(op=Op.SUBSCRIBE, address=filter, id="s", correlation_id="s", flags=flags),
            read_from=self.dialect,
        )
        answer = await self.receive()
        assert succeeded(answer), answer

    async def send(self, *messages: Message, read_from: str = "") -> None:
        """Send messages in the peer's dialect."""
        table = FrameTable(max(1, len(messages)))
        table.fill(messages, read_from)
        self._writer.write(self._encoder.encode(table))
        assert not self._encoder.skipped, self._encoder.skipped
        await self._writer.drain()

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def receive(self, timeout: float = 60.0) -> Message:
        """The next message."""
        async with asyncio.timeout(timeout):
            while not self._inbox:
                data = await self._reader.read(1 << 16)
                if not data:
                    raise ConnectionError("closed by the broker")
                for table in self._feed.receive(data):
                    self._inbox.extend(table.messages())
        return self._inbox.pop(0)

    async def is_closed(self, timeout: float = 60.0) -> bool:
        """Wait until the broker hangs up, without another word."""
        async with asyncio.timeout(timeout):
            try:
                return not await self._reader.read(1)
            except ConnectionError:
                return True

    def send_eof(self) -> None:
        """Send no more, and go on listening."""
        self._writer.write_eof()

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()


def succeeded(answer: Message) -> bool:
    """Does an answer, in whatever dialect, say that it was done?"""
    if answer.op == Op.REPLY:
        return answer.content_type == 200
    if answer.dialect.startswith("mqtt"):
        return max(answer.payload, default=0) < 0x80
    return answer.op in (Op.OK, Op.ACK)


async def close_all(peers: Iterable[Peer]) -> None:
    """Hang up all of them."""
    for peer in peers:
        await peer.close()
