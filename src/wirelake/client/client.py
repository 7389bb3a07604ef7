"""The asynchronous client: one interface for all dialects.

    async with wirelake.connect("kobold-2://host") as c:
        await c.publish("a/b", b"hello", ack=True)
        async for message in c.subscribe("a/#"):
            ...

A method that the dialect does not support raises RefusedError at once. The client reconnects when
a connection is lost (`lines.py`): publishes without `ack` may be lost, pending requests fail with
`closed`, and subscriptions, consumers and services are set up again.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Generator, Mapping
from dataclasses import fields
from os import PathLike
from typing import Any, TypedDict, TypeVar, Unpack

import cbor2
from msgspec.structs import replace

from wirelake.address import check_filter, check_topic
from wirelake.client.connection import Settings
from wirelake.client.inbox import Arrivals, Inbox, Messages
from wirelake.client.lines import Lines
from wirelake.client.outgoing import (
    Batch,
    as_messages,
    message_for,
    tables_of_batch,
    tables_of_messages,
)
from wirelake.client.queue import Delivery, Queue
from wirelake.client.service import Handler, Service
from wirelake.client.speech import require
from wirelake.client.store import Store
from wirelake.client.stream import Stream
from wirelake.client.subscriptions import Item
from wirelake.client.url import parse
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, RefusedError
from wirelake.message import Limits, Message, Op
from wirelake.wire import Encoder

S = TypeVar("S", dict[str, Any], list[dict[str, Any]])


class Options(TypedDict, total=False):
    """Options beside the URL; times in seconds."""

    client_id: str
    token: str
    tls: ssl.SSLContext
    ca: str | PathLike[str]  # of the authority that signed the broker's certificate
    cert: str | PathLike[str]  # our own, for brokers that want one
    key: str | PathLike[str]
    timeout: float  # for an answer, or for a connection to be there (30)
    reconnect: bool  # when a connection is lost (True)
    min_delay: float  # before the first try to reconnect; doubles (0.1)
    max_delay: float  # at most (30)
    max_attempts: int | None  # in a row, before giving up (None: never)
    keepalive: float  # of silence, before the broker is pinged (30)
    inbox: int  # messages not taken yet, per subscription, before reading stops (1000)
    inbox_bytes: int  # the same, in bytes of payload (8 MiB)
    limits: Limits  # of what the broker may send
    on_connection: Callable[[str], None]  # called with why one is lost, and with "" when it is back


def connect(url: str, **options: Unpack[Options]) -> Client:
    """Return a client of the broker at `url`; use `async with`, or `await` and `close` it."""
    return Client(url, **options)


class Client:
    """A client; made by `connect`."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        given: dict[str, Any] = dict(options)
        names = {field.name for field in fields(Settings)}
        settings = Settings(**{name: given.pop(name) for name in names & given.keys()})
        for name in ("timeout", "min_delay", "max_delay", "keepalive", "inbox", "inbox_bytes"):
            if not getattr(settings, name) > 0:
                raise ConfigError(name, "is more than 0")
        self._lines = Lines(parse(url, **given), settings)

    def __repr__(self) -> str:
        return f"<wirelake client of {self._lines.place}>"

    @property
    def dialect(self) -> str:
        """The name of the client's dialect."""
        return self._lines.dialect

    @property
    def client_id(self) -> str:
        """The client's id; empty if it has none."""
        main = self._lines.main
        return main.client_id if main else self._lines.place.client_id

    async def __aenter__(self) -> Client:
        await self._lines.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()

    async def close(self) -> None:
        """Flush pending publishes, disconnect, and end all subscriptions."""
        await self._lines.close()

    # Publishing

    async def publish(
        self,
        address: str,
        payload: bytes,
        *,
        id: str = "",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        ttl: int = 0,
        ack: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Publish a message; with `ack`, return when the broker has acknowledged it.

        `ttl` is in milliseconds, in TMQ a number of hops (0 to 63).
        """
        message = message_for(
            self.dialect, check_topic(address), payload, id, headers, priority, ttl
        )
        if ack:
            require(self.dialect, "acknowledgement of a publish")
            await self._lines.line().ask(lambda speech: speech.publish(message, ack=True), timeout)
        else:
            await self._lines.line().send(
                lambda speech: [speech.publish(message, ack=False).message], timeout
            )

    async def publish_many(
        self, messages: Batch, *, ack: bool = False, timeout: float | None = None
    ) -> None:
        """Publish (address, payload) pairs, messages or an Arrow record batch, as one buffer.

        Fields that the dialect has no place for are left out. Raises RefusedError, and sends
        nothing, if the dialect cannot express one of the messages. With `ack`, returns when the
        broker has acknowledged all of them; RefusedError says how many it refused, and why it
        refused the first.
        """
        most = self._lines.settings.limits.message
        keys: list[str] = []
        if ack:
            require(self.dialect, "acknowledgement of a publish")
            named = [
                self._lines.line().speech.publish(message, ack=True)
                for message in as_messages(messages, self.dialect, most)
            ]
            keys = [asked.key for asked in named]
            tables = tables_of_messages([asked.message for asked in named], self.dialect)
        elif hasattr(messages, "num_rows"):
            tables = tables_of_batch(messages, most)
        else:
            tables = tables_of_messages(as_messages(messages, self.dialect, most))

        def encode(encoder: Encoder) -> bytes:
            return b"".join([bytes(encoder.encode(table)) for table in tables])

        if ack:
            await self._lines.line().ask_batch(encode, keys, timeout)
        else:
            await self._lines.line().send_batch(encode, timeout)

    # Subscribing

    def subscribe(self, filter: str) -> Messages:
        """Subscribe to a filter; use `async for`, or `async with` and then `async for`.

        Taking a message of a queue acknowledges it. An mfp frame carries no address:
        with several filters every subscription gets the messages of all of them, and a message
        has an address only where the one filter has no wildcard.
        """
        check_filter(filter)
        inbox: Inbox[Item] = self._lines.inbox()
        return Arrivals(
            inbox,
            lambda: self._lines.join(filter, inbox),
            lambda: self._lines.leave(filter, inbox),
            lambda item: item.taken() if isinstance(item, Delivery) else item,
            (Message,),
        )

    def direct(self) -> Messages:
        """Receive the messages that other clients send to this one."""
        require(self.dialect, "direct message")
        inbox: Inbox[Message] = self._lines.inbox()

        async def listen() -> None:
            self._check_reachable()
            self._lines.direct.add(inbox)

        async def stop() -> None:
            self._lines.direct.remove(inbox)

        return Arrivals(inbox, listen, stop, lambda message: message, (Message,))

    def _check_reachable(self) -> None:
        self._lines.line()
        if not self.client_id:
            raise RefusedError("bad_request", "only a client with a client_id can be sent to")

    # Queues, the data store and what the broker tells of itself

    def queue(self, name: str) -> Queue:
        """Return the queue of this name."""
        return Queue(self._lines, name)

    async def queues(self) -> list[dict[str, Any]]:
        """Return the state of every queue: its name, mode, messages, consumers and so on."""
        require(self.dialect, "list of queues")
        answer = await self._lines.line().ask(lambda speech: speech.list_queues())
        return _state(answer, list)

    @property
    def store(self) -> Store:
        """The broker's data store."""
        require(self.dialect, "data store")
        return Store(self._lines)

    async def info(self) -> dict[str, Any]:
        """Return the broker's state: connections, subscriptions, counters and so on."""
        require(self.dialect, "state of the broker")
        asked = Message(op=Op.INFO, address="$node")
        return _state(await self._lines.line().ask(lambda speech: speech.control(asked)), dict)

    # Byte streams

    async def stream_to(
        self, client_id: str, *, info: bytes = b"", timeout: float | None = None
    ) -> Stream:
        """Open a byte stream to a client, which gets our id and `info`; use `async with`."""
        require(self.dialect, "byte stream")
        if not client_id:
            raise RefusedError("bad_request", "a stream has a client id to go to")
        return await self._lines.streams.open(self._lines.line(), client_id, bytes(info), timeout)

    def streams(self) -> Arrivals[Stream]:
        """Accept the streams that other clients open to this one; otherwise they are refused.

        Streams that come within a second before the first call wait for it.
        """
        require(self.dialect, "byte stream")
        inbox: Inbox[Stream] = self._lines.inbox()

        async def listen() -> None:
            self._check_reachable()
            self._lines.streams.listeners.add(inbox)

        async def stop() -> None:
            self._lines.streams.listeners.remove(inbox)

        return Arrivals(inbox, listen, stop, lambda stream: stream, ())

    # Requests

    async def request(
        self,
        address: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Message:
        """Send a request to a service and return its reply; RefusedError if there is none."""
        require(self.dialect, "request/reply")
        message = message_for(self.dialect, check_topic(address), payload, headers=headers)
        if not DIALECTS[self.dialect].ttl_in_hops:
            message = replace(message, ttl=max(1, int(timeout * 1000)))
        return await self._lines.line().ask(lambda speech: speech.request(message), timeout)

    def serve(self, address: str, handler: Handler) -> Service:
        """Answer the requests to an address, while inside `async with`.

        The handler gets the request and returns the reply, as bytes or a message. An exception
        in it is logged, and the request gets no reply: no dialect lets a service refuse.
        """
        require(self.dialect, "service")
        return Service(self._lines, check_topic(address), handler, self._lines.inbox())

    # Direct messages, and pings

    async def send_to(
        self,
        client_id: str,
        payload: bytes,
        *,
        id: str = "",
        headers: Mapping[str, str] | None = None,
        ack: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Send a message to one client; with `ack`, RefusedError if no client has that id."""
        require(self.dialect, "direct message")
        if not client_id:
            raise RefusedError("bad_request", "a direct message has a client id to go to")
        message = message_for(self.dialect, "", payload, id, headers)
        message = replace(message, op=Op.DIRECT, target=client_id)
        if ack:
            require(self.dialect, "acknowledgement of a direct message")
            await self._lines.line().ask(lambda speech: speech.publish(message, ack=True), timeout)
        else:
            await self._lines.line().send(lambda speech: [message], timeout)

    async def ping(self, *, timeout: float | None = None) -> float:
        """Ping the broker; return the round-trip time in seconds."""
        require(self.dialect, "ping")
        began = asyncio.get_running_loop().time()
        await self._lines.line().ask(lambda speech: speech.ping(), timeout)
        return asyncio.get_running_loop().time() - began


def _state(answer: Message, kind: type[S]) -> S:
    """Ask for a part of the broker's state, and decode it: JSON or CBOR, by dialect."""
    try:
        if DIALECTS[answer.dialect].tells_json:
            state = json.loads(answer.payload)
        else:
            state = cbor2.loads(answer.payload)
    except (ValueError, cbor2.CBORError):
        state = None
    if not isinstance(state, kind):
        raise RefusedError("bad_request", "the broker's state cannot be read")
    return state
