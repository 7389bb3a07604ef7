"""The asynchronous client: one interface for all eight dialects.

    async with wirelake.connect("kobold-2://host") as c:
        await c.publish("a/b", b"hello", ack=True)
        async for message in c.subscribe("a/#"):
            ...

A client is one connection, except where the dialect wants more: an mfp client publishes on one and
subscribes on another, and a boson-text client has one for each address it serves, because only by
hanging up can it stop serving. All of them come back when they are lost. At most once: what was
published without `ack` on a connection that then broke may be lost; what was asked for has failed
with `closed`, but subscriptions and services are set up again.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from os import PathLike
from types import TracebackType
from typing import Any, TypedDict, Unpack

from wirelake.address import check_filter, check_topic, has_wildcard, matches
from wirelake.client.connection import Line, Settings
from wirelake.client.dialects import Sort, Speech, require
from wirelake.client.inbox import Inbox, Messages
from wirelake.client.outgoing import Batch, tables_of_batch, tables_of_messages
from wirelake.client.service import Handler, Service
from wirelake.client.url import Place, parse
from wirelake.errors import ConfigError, RefusedError, WirelakeError
from wirelake.message import Limits, Message
from wirelake.wire import Encoder

log = logging.getLogger("wirelake.client")

#: Addresses whose subscriptions are remembered.
MAX_ROUTES = 10_000


class Options(TypedDict, total=False):
    """What can be said beside the URL; times in seconds."""

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


def connect(url: str, **options: Unpack[Options]) -> Client:
    """A client of the broker at `url`: use it by `async with`, or `await` it and `close` it."""
    return Client(url, **options)


class Client:
    """A client; made by `connect`."""

    def __init__(self, url: str, **options: Unpack[Options]) -> None:
        given: dict[str, Any] = dict(options)
        names = {field.name for field in fields(Settings)}
        self._settings = Settings(**{name: given.pop(name) for name in names & given.keys()})
        _check(self._settings)
        self._place: Place = parse(url, **given)
        self._main: Line | None = None
        self._lines: dict[str, Line] = {}
        self._subscriptions: dict[str, list[Inbox]] = {}
        self._routes: dict[str, list[Inbox]] = {}
        self._services: dict[str, Service] = {}
        self._direct: list[Inbox] = []
        self._changing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<wirelake client of {self._place}>"

    @property
    def dialect(self) -> str:
        """The dialect it speaks."""
        return self._place.dialect

    @property
    def client_id(self) -> str:
        """The id that the broker knows it by; empty where it has none."""
        return self._main.client_id if self._main else self._place.client_id

    async def __aenter__(self) -> Client:
        await self._open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def __await__(self) -> Generator[Any, None, Client]:
        return self.__aenter__().__await__()

    async def _open(self) -> None:
        if self._main is not None:
            raise RefusedError("bad_request", "a client is opened once")
        self._main = Line(self._place, self._settings, self)
        await self._main.open()

    async def close(self) -> None:
        """Hang up; subscriptions end, and what was published goes out first."""
        for line in [*self._lines.values(), *([self._main] if self._main else [])]:
            await line.close()
        for service in list(self._services.values()):
            await service.stop()

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
        """Publish a message; with `ack`, return when the broker says that it is done.

        `ttl` is in milliseconds, in TMQ a number of hops (0 to 63).
        """
        message = self._message(check_topic(address), payload, id, headers, priority, ttl)
        if ack:
            require(self.dialect, "acknowledgement of a publish")
            await self._line().ask(lambda speech: speech.publish(message, ack=True), timeout)
        else:
            await self._line().send(
                lambda speech: [speech.publish(message, ack=False).message], timeout
            )

    async def publish_many(self, messages: Batch, *, timeout: float | None = None) -> None:
        """Publish (address, payload) pairs, messages or an Arrow record batch, as one buffer.

        What the dialect has no place for beside address and payload is left out. All or nothing
        is sent: if one of them cannot be said at all, RefusedError.
        """
        most = self._settings.limits.message
        if hasattr(messages, "num_rows"):
            tables = tables_of_batch(messages, most)
        else:
            tables = tables_of_messages(list(messages), self.dialect, most)

        def encode(encoder: Encoder) -> bytes:
            return b"".join([bytes(encoder.encode(table)) for table in tables])

        await self._line().send_batch(encode, timeout)

    def _message(
        self,
        address: str,
        payload: bytes,
        id: str = "",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        ttl: int = 0,
    ) -> Message:
        """A message that the dialect can say."""
        given = {"message id": id, "header": headers, "priority": priority, "ttl": ttl}
        for ability, value in given.items():
            if value:
                require(self.dialect, ability)
        if priority not in (0, 1):
            raise RefusedError("bad_request", f"a priority is 0 or 1, not {priority}")
        most = 63 if self.dialect.startswith("tmq") else 0x7FFFFFFF
        if not 0 <= ttl <= most:
            raise RefusedError("bad_request", f"a ttl is 0 to {most} in {self.dialect}")
        return Message(
            address,
            bytes(payload),
            id,
            priority=priority,
            ttl=ttl,
            headers={} if headers is None else dict(headers),
        )

    # Subscribing

    def _inbox(self) -> Inbox:
        return Inbox(self._settings.inbox, self._settings.inbox_bytes)

    def subscribe(self, filter: str) -> Messages:
        """The messages of a filter, by `async for`, or by `async with` and then `async for`.

        An mfp frame carries no address: with several filters every subscription gets the messages
        of all of them, and a message has an address only where the one filter has no wildcard.
        """
        check_filter(filter)
        inbox = self._inbox()
        return Messages(
            inbox, lambda: self._join(filter, inbox), lambda: self._leave(filter, inbox)
        )

    def direct(self) -> Messages:
        """The messages that other clients send to this one."""
        require(self.dialect, "direct message")
        if not self.client_id:
            raise RefusedError("bad_request", "only a client with a client_id can be sent to")
        inbox = self._inbox()

        async def listen() -> None:
            self._line()
            self._direct.append(inbox)

        async def stop() -> None:
            self._direct.remove(inbox)

        return Messages(inbox, listen, stop)

    async def _join(self, filter: str, inbox: Inbox) -> None:
        async with self._changing:
            line = await self._line_to("sub") if self.dialect == "mfp-1" else self._line()
            inboxes = self._subscriptions.setdefault(filter, [])
            inboxes.append(inbox)
            self._routes.clear()
            if len(inboxes) > 1:
                return
            try:
                await self._insist(line, lambda speech: speech.subscribe(filter))
            except BaseException:
                self._forget(filter, inbox)
                raise

    async def _leave(self, filter: str, inbox: Inbox) -> None:
        async with self._changing:
            line = self._lines["sub"] if self.dialect == "mfp-1" else self._line()
            if self._forget(filter, inbox) and line.is_up:
                with suppress(RefusedError):
                    await line.ask(lambda speech: speech.unsubscribe(filter), None)

    def _forget(self, filter: str, inbox: Inbox) -> bool:
        """Give an inbox nothing more; was it the last one of its filter?"""
        self._subscriptions[filter].remove(inbox)
        self._routes.clear()
        if self._subscriptions[filter]:
            return False
        del self._subscriptions[filter]
        return True

    # Requests

    async def request(
        self,
        address: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Message:
        """Send a request to a service; its reply, or RefusedError."""
        require(self.dialect, "request/reply")
        message = self._message(check_topic(address), payload, headers=headers)
        if not self.dialect.startswith("tmq"):  # there a ttl counts hops
            message = replace(message, ttl=max(1, int(timeout * 1000)))
        return await self._line().ask(lambda speech: speech.request(message), timeout)

    def serve(self, address: str, handler: Handler) -> Service:
        """Answer the requests to an address, while inside `async with`.

        The handler is given the request and returns the reply, as bytes or a message. What it
        raises is logged, and the request has no reply: no dialect lets a service refuse.
        """
        require(self.dialect, "service")
        return Service(self, check_topic(address), handler, self._inbox())

    async def start_service(self, service: Service) -> Line:
        """Used by `Service`."""
        async with self._changing:
            if service.address in self._services:
                raise RefusedError("exists", f"{service.address} is served by this client already")
            line = self._line()
            if not line.speech.has_unserve:
                line = await self._line_to(f"serve {service.address}")
            service.line = line
            self._services[service.address] = service
            try:
                await self._insist(line, lambda speech: speech.serve(service.address))
            except BaseException:
                del self._services[service.address]
                raise
            return line

    async def stop_service(self, service: Service) -> None:
        """Used by `Service`."""
        async with self._changing:
            line = service.line
            if self._services.pop(service.address, None) is None or line is None:
                return
            if not line.speech.has_unserve:
                del self._lines[f"serve {service.address}"]
                await line.close()
            elif line.is_up:
                with suppress(RefusedError):
                    await line.ask(lambda speech: speech.unserve(service.address), None)

    # Direct messages, and signs of life

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
        """Send a message to one client; with `ack`, RefusedError when there is none of that id."""
        require(self.dialect, "direct message")
        if not client_id:
            raise RefusedError("bad_request", "a direct message has a client id to go to")
        message = self._message("", payload, id, headers)
        message = replace(message, op="direct", target=client_id)
        if ack:
            require(self.dialect, "acknowledgement of a direct message")
            await self._line().ask(lambda speech: speech.publish(message, ack=True), timeout)
        else:
            await self._line().send(lambda speech: [message], timeout)

    async def ping(self, *, timeout: float | None = None) -> float:
        """Ask the broker for a sign of life; the seconds that it took."""
        require(self.dialect, "ping")
        began = asyncio.get_running_loop().time()
        await self._line().ask(lambda speech: speech.ping(), timeout)
        return asyncio.get_running_loop().time() - began

    # Lines, and what they tell their owner

    def _line(self) -> Line:
        if self._main is None:
            raise RefusedError("closed", "the client is not open: use `async with`")
        return self._main

    async def _line_to(self, name: str) -> Line:
        """A further connection, opened when it is needed."""
        self._line()
        if name not in self._lines or self._lines[name].is_over:
            line = Line(self._place, self._settings, self, "sub")
            await line.open()
            self._lines[name] = line
        return self._lines[name]

    async def _insist(self, line: Line, say: Callable[[Speech], Any]) -> None:
        """Ask for what may be asked twice, again if the connection breaks meanwhile."""
        try:
            async with asyncio.timeout(self._settings.timeout):
                while True:
                    try:
                        await line.ask(say, None)
                    except RefusedError as error:
                        if error.code != "closed" or line.is_over:
                            raise
                    else:
                        return
        except TimeoutError:
            raise RefusedError("timeout", "the connection kept breaking") from None

    def take_in(self, line: Line, message: Message, sort: Sort) -> Iterable[Inbox]:
        """Put a message where it belongs; return the inboxes that got it."""
        inboxes: Sequence[Inbox] = ()
        if sort is Sort.DELIVERY:
            if not line.speech.has_addresses:
                message = replace(message, address=self._only_address())
            inboxes = self._route(message.address)
        elif sort is Sort.DIRECT:
            inboxes = self._direct
        elif sort is Sort.REQUEST and (service := self._services.get(message.address)):
            inboxes = (service.inbox,)
        for inbox in inboxes:
            inbox.put(message)
        return inboxes

    def _only_address(self) -> str:
        """The one address that is subscribed to; empty where there may be others."""
        if len(self._subscriptions) > 1:
            return ""
        return next((one for one in self._subscriptions if not has_wildcard(one)), "")

    def _route(self, address: str) -> list[Inbox]:
        found = self._routes.get(address)
        if found is None:
            if len(self._routes) >= MAX_ROUTES:
                self._routes.clear()
            found = self._routes[address] = [
                inbox
                for filter, inboxes in self._subscriptions.items()
                if not address or self.dialect == "mfp-1" or matches(filter, address)
                for inbox in inboxes
            ]
        return found

    async def restore(self, line: Line) -> None:
        """Subscribe and serve again."""
        asked = []
        if self._carries_subscriptions(line):
            for filter, inboxes in self._subscriptions.items():
                asked.append((line.speech.subscribe(filter), list(inboxes)))
        for service in self._services.values():
            if service.line is line:
                asked.append((line.speech.serve(service.address), [service.inbox]))
        answers = await asyncio.gather(
            *(line.ask_now(ask) for ask, _ in asked), return_exceptions=True
        )
        for (ask, inboxes), answer in zip(asked, answers, strict=True):
            if isinstance(answer, RefusedError) and answer.code != "closed":
                log.error("%s: %s is not possible any more: %s", self, ask.message.op, answer)
                for inbox in inboxes:
                    inbox.end(answer)
            elif isinstance(answer, BaseException):
                raise answer

    def went_down(self, line: Line) -> None:
        """Requests that came by a lost connection need no reply any more."""
        for service in self._services.values():
            if service.line is line:
                service.inbox.clear()

    def ended(self, line: Line, error: WirelakeError | None) -> None:
        """A line will not come back: nothing more is to be had from it."""
        inboxes = [service.inbox for service in self._services.values() if service.line is line]
        if self._carries_subscriptions(line):
            inboxes += [one for some in self._subscriptions.values() for one in some]
        if line is self._main:
            inboxes += self._direct
        for inbox in inboxes:
            inbox.end(error)

    def _carries_subscriptions(self, line: Line) -> bool:
        return line is (self._lines.get("sub") if self.dialect == "mfp-1" else self._main)


def _check(settings: Settings) -> None:
    """Refuse settings that make no sense."""
    for name in ("timeout", "min_delay", "max_delay", "keepalive", "inbox", "inbox_bytes"):
        if not getattr(settings, name) > 0:
            raise ConfigError(name, "is more than 0")
