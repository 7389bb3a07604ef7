"""One node's way to NATS: subjects under a prefix, and the table of owners in a KV bucket.

Heartbeats and the links between nodes are core NATS messages. Only the table of owners is kept by
JetStream, and only take-overs and moves need it. The errors of the NATS client end here.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import KeyValueConfig, StorageType
from nats.js.kv import KeyValue

from wirelake.errors import ConfigError, EngineError

#: Bytes that wait to be sent to the server, at most.
PENDING = 64 << 20
#: How long a request to the server may take (seconds).
TIMEOUT = 2
#: How long the client waits before it tries the next server (seconds).
RECONNECT = 1
#: The key of the table of owners.
KEY = "owners"

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

#: What NATS raises when it cannot be reached, or does not do what it was asked for.
_FAILURES = (nats.errors.Error, OSError, asyncio.TimeoutError)


def check_name(setting: str, name: str) -> str:
    """Return a name that can be part of a subject; raises ConfigError for any other."""
    if not _NAME.fullmatch(name):
        raise ConfigError(setting, f"{name!r} is no name: 1 to 64 letters, digits, - or _")
    return name


class Bus:
    """A connection to NATS, and what this cluster has there."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._client = client
        self.prefix = prefix
        self._bucket: KeyValue | None = None
        self._subscriptions: list[Subscription] = []

    @classmethod
    async def connect(cls, servers: Sequence[str], prefix: str, name: str, **options: Any) -> Bus:
        """Connect to one of these servers, and to another one whenever that is lost.

        `options` are those of `nats.connect`, as for TLS and credentials. Raises EngineError where
        no server can be reached.
        """
        check_name("cluster.prefix", prefix)
        check_name("cluster.node", name)
        client = Client()
        try:
            joining = client.connect(
                list(servers),
                name=name,
                pending_size=PENDING,
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT,
                connect_timeout=TIMEOUT,
                ping_interval=2,
                max_outstanding_pings=2,
                allow_reconnect=True,
                error_cb=_ignore,
                **options,
            )
            # With `max_reconnect_attempts=-1` the client itself would try for ever.
            await asyncio.wait_for(joining, TIMEOUT * (1 + len(servers)))
        except _FAILURES as error:
            await client.close()
            text = f"no NATS server at {', '.join(servers)}: {str(error) or 'no answer'}"
            raise EngineError(text, retriable=True) from None
        return cls(client, prefix)

    @property
    def is_connected(self) -> bool:
        """Whether there is a connection to some server now."""
        return bool(self._client.is_connected)

    @property
    def max_payload(self) -> int:
        """The bytes that a message has at most, as the server says."""
        return int(self._client.max_payload)

    async def publish(self, subject: str, data: bytes) -> None:
        """Send a message to a subject below the prefix; it is lost if there is no connection."""
        with contextlib.suppress(*_FAILURES):
            await self._client.publish(f"{self.prefix}.{subject}", data)

    async def subscribe(
        self,
        subject: str,
        take: Callable[[str, bytes], Awaitable[None] | None],
        room: int = PENDING,
    ) -> None:
        """Call `take` with what follows the first part of the subject, and data, of each message.

        `room` are the bytes that may wait to be taken; the rest is lost.
        """
        cut = len(self.prefix) + 1 + len(subject.split(".")[0]) + 1

        async def receive(message: Msg) -> None:
            done = take(message.subject[cut:], message.data)
            if done is not None:
                await done

        try:
            made = await self._client.subscribe(
                f"{self.prefix}.{subject}",
                cb=receive,
                pending_msgs_limit=1 << 20,
                pending_bytes_limit=room,
            )
            await self._client.flush(timeout=TIMEOUT)
        except _FAILURES as error:
            raise EngineError(f"cannot subscribe: {error}", retriable=True) from None
        self._subscriptions.append(made)

    async def answer(self, subject: str, take: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer requests to a subject."""

        async def receive(message: Msg) -> None:
            answer = await take(message.data)
            with contextlib.suppress(*_FAILURES):
                await message.respond(answer)

        try:
            made = await self._client.subscribe(f"{self.prefix}.{subject}", cb=receive)
            await self._client.flush(timeout=TIMEOUT)
        except _FAILURES as error:
            raise EngineError(f"cannot subscribe: {error}", retriable=True) from None
        self._subscriptions.append(made)

    async def request(self, subject: str, data: bytes, timeout: float = TIMEOUT) -> bytes:
        """Ask, and return the answer; raises EngineError where none comes."""
        try:
            answer = await self._client.request(f"{self.prefix}.{subject}", data, timeout=timeout)
        except _FAILURES as error:
            raise EngineError(f"no answer: {error}", retriable=True) from None
        return bytes(answer.data)

    async def hear(
        self, subject: str, take: Callable[[bytes, Callable[[bytes], Awaitable[None]]], None]
    ) -> None:
        """Call `take` with each request to a subject, and with what sends a part of its answer."""

        async def receive(message: Msg) -> None:
            async def reply(data: bytes) -> None:
                with contextlib.suppress(*_FAILURES):
                    await self._client.publish(message.reply, data)

            if message.reply:
                take(message.data, reply)

        try:
            made = await self._client.subscribe(f"{self.prefix}.{subject}", cb=receive)
            await self._client.flush(timeout=TIMEOUT)
        except _FAILURES as error:
            raise EngineError(f"cannot subscribe: {error}", retriable=True) from None
        self._subscriptions.append(made)

    @contextlib.asynccontextmanager
    async def asked(self, subject: str, data: bytes) -> AsyncIterator[AsyncIterator[bytes]]:
        """Ask, and yield the parts of the answer as they come; none where nobody listens.

        Raises EngineError where there is no connection.
        """
        inbox = self._client.new_inbox()
        try:
            made = await self._client.subscribe(inbox)
            await self._client.publish(f"{self.prefix}.{subject}", data, reply=inbox)
        except _FAILURES as error:
            raise EngineError(f"NATS cannot be asked: {error}", retriable=True) from None

        async def parts() -> AsyncIterator[bytes]:
            async for message in made.messages:
                if not message.data:  # the server says that nobody listens
                    return
                yield message.data

        try:
            yield parts()
        finally:
            with contextlib.suppress(*_FAILURES):
                await made.unsubscribe()

    # The table of owners

    async def open_bucket(self, replicas: int = 3) -> None:
        """Find the bucket of the table, or make it; raises EngineError."""
        streams = self._client.jetstream(timeout=TIMEOUT)
        name = f"{self.prefix}_cluster"
        config = KeyValueConfig(
            bucket=name,
            history=1,
            replicas=replicas,
            storage=StorageType.FILE,
            max_value_size=1 << 20,
        )
        try:
            try:
                self._bucket = await streams.key_value(name)
            except nats.js.errors.NotFoundError:
                self._bucket = await streams.create_key_value(config)
        except _FAILURES as error:
            raise EngineError(
                f"the bucket {name} cannot be made: {error}", retriable=True
            ) from None

    async def find_bucket(self) -> None:
        """Find the bucket of the table; raises EngineError where there is none."""
        name = f"{self.prefix}_cluster"
        try:
            self._bucket = await self._client.jetstream(timeout=TIMEOUT).key_value(name)
        except nats.js.errors.NotFoundError:
            raise EngineError(f"there is no cluster {self.prefix} at these servers") from None
        except _FAILURES as error:
            raise EngineError(f"the bucket {name}: {error}", retriable=True) from None

    async def read_table(self) -> tuple[bytes | None, int]:
        """Return the table and its revision, (None, 0) where there is none; raises EngineError."""
        assert self._bucket is not None
        try:
            entry = await self._bucket.get(KEY)
        except nats.js.errors.KeyNotFoundError:
            return None, 0
        except _FAILURES as error:
            raise EngineError(f"the table of owners: {error}", retriable=True) from None
        return entry.value or b"", entry.revision or 0

    async def write_table(self, data: bytes, revision: int) -> int:
        """Write the table if it has this revision; return the new one, 0 where it has another.

        Raises EngineError where nobody knows whether it was written.
        """
        assert self._bucket is not None
        try:
            return await self._bucket.update(KEY, data, last=revision)
        except nats.js.errors.KeyWrongLastSequenceError:
            return 0
        except _FAILURES as error:
            raise EngineError(f"the table of owners: {error}", retriable=True) from None

    async def flush(self) -> None:
        """Wait until the server has all that was published."""
        with contextlib.suppress(*_FAILURES):
            await self._client.flush(timeout=TIMEOUT)

    async def close(self) -> None:
        """Send what waits, and let go."""
        await self.flush()
        # The client writes what still waits, even to a transport that is closed: a RuntimeError.
        with contextlib.suppress(*_FAILURES, RuntimeError, asyncio.CancelledError):
            await asyncio.wait_for(self._client.close(), TIMEOUT)


async def _ignore(error: Exception) -> None:
    """What goes wrong is noticed where it matters: by silence, gaps and timeouts."""
