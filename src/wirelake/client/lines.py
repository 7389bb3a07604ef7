"""The connections of one client, and who gets what comes in by them.

Most goes by the main connection. mfp subscribes on a second one; where a dialect cannot take back
that it serves an address, or that it watches keys, there is one for each of these, since hanging up
is the only way to stop. All of them come back when they are lost.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from wirelake.client.connection import Line, Owner, Settings
from wirelake.client.inbox import Inbox, Listeners
from wirelake.client.queue import Delivery
from wirelake.client.service import Service
from wirelake.client.speech import Ask, Sort, can
from wirelake.client.stream import Streams
from wirelake.client.subscriptions import Item, Subscriptions
from wirelake.client.url import Place
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError, WirelakeError
from wirelake.message import Message

log = logging.getLogger("wirelake.client")


class Lines:
    """What a client has open, and what is asked for again when a connection was lost."""

    def __init__(self, place: Place, settings: Settings) -> None:
        self.place = place
        self.settings = settings
        self.dialect = place.dialect
        self._has_roles = bool(DIALECTS[place.dialect].roles)
        self.main: Line | None = None
        self.subscriptions = Subscriptions(place.dialect)
        self.streams = Streams(self.inbox)
        self.direct: Listeners[Message] = Listeners(self.inbox(), lambda message: None, one=False)
        self.declared: dict[str, int] = {}  # queues that were made, and in which epoch
        self._further: dict[str, Line] = {}
        self._services: dict[str, Service] = {}
        self._changing = asyncio.Lock()

    async def open(self) -> None:
        """Connect."""
        if self.main is not None:
            raise RefusedError("bad_request", "a client is opened once")
        self.main = Line(self.place, self.settings, self)
        await self.main.open()

    async def close(self) -> None:
        """Hang up everywhere."""
        for line in [*self._further.values(), *([self.main] if self.main else [])]:
            await line.close()
        for service in list(self._services.values()):
            await service.stop()

    def inbox(self) -> Inbox[Any]:
        """An inbox of the size that was asked for."""
        return Inbox(self.settings.inbox, self.settings.inbox_bytes)

    def line(self) -> Line:
        """The connection that everything goes by which has none of its own."""
        if self.main is None:
            raise RefusedError("closed", "the client is not open: use `async with`")
        return self.main

    async def _line_to(self, name: str) -> Line:
        """A further connection, opened when it is needed."""
        self.line()
        if name not in self._further or self._further[name].is_over:
            line = Line(self.place, self.settings, self, "sub")
            await line.open()
            self._further[name] = line
        return self._further[name]

    async def open_line(self, name: str, owner: Owner) -> Line:
        """A connection for one purpose, which has no client id: that is the main one's."""
        self.line()
        line = Line(dataclasses.replace(self.place, client_id=""), self.settings, owner)
        await line.open()
        self._further[name] = line
        return line

    async def close_line(self, name: str) -> None:
        """Hang up one of the further connections."""
        await self._further.pop(name).close()

    async def join(self, filter: str, inbox: Inbox[Item], prefetch: int = 0) -> None:
        """Let an inbox have what comes to a filter, or from a queue."""
        async with self._changing:
            line = await self._line_to("sub") if self._has_roles else self.line()
            if self.subscriptions.add(filter, inbox, prefetch):
                try:
                    if prefetch and can(self.dialect, "pull"):
                        with suppress(RefusedError):  # it is there, or it is a topic
                            await line.insist(lambda speech: speech.make_queue(filter))
                    await line.insist(lambda speech: speech.subscribe(filter, prefetch))
                except BaseException:
                    self.subscriptions.remove(filter, inbox)
                    raise

    async def leave(self, filter: str, inbox: Inbox[Item]) -> None:
        """Let it have nothing more; what it has of a queue goes to others."""
        async with self._changing:
            line = self._further["sub"] if self._has_roles else self.line()
            try:
                if self.subscriptions.is_last(filter) and line.is_up:
                    with suppress(RefusedError):
                        await line.ask(lambda speech: speech.unsubscribe(filter))
            finally:
                self.subscriptions.remove(filter, inbox)

    async def start_service(self, service: Service) -> Line:
        """Serve an address; the connection that its requests come by."""
        async with self._changing:
            if service.address in self._services:
                raise RefusedError("exists", f"{service.address} is served by this client already")
            line = self.line()
            if not line.speech.has_unserve:
                line = await self._line_to(f"serve {service.address}")
            service.line = line
            self._services[service.address] = service
            try:
                await line.insist(lambda speech: speech.serve(service.address))
            except BaseException:
                del self._services[service.address]
                raise
            return line

    async def stop_service(self, service: Service) -> None:
        """Serve it no more."""
        async with self._changing:
            line = service.line
            if self._services.pop(service.address, None) is None or line is None:
                return
            if not line.speech.has_unserve:
                await self.close_line(f"serve {service.address}")
            elif line.is_up:
                with suppress(RefusedError):
                    await line.ask(lambda speech: speech.unserve(service.address), None)

    # What the connections tell

    def take_in(self, line: Line, message: Message, sort: Sort) -> Iterable[Inbox[Any]]:
        """Put a message where it belongs; return the inboxes that got it."""
        match sort:
            case Sort.DELIVERY if DIALECTS[self.dialect].has_addresses:
                return self.subscriptions.put(message)
            case Sort.DELIVERY:
                address = self.subscriptions.only_address()
                return self.subscriptions.put(replace(message, address=address))
            case Sort.QUEUED:
                return self.subscriptions.put_delivery(Delivery.heard(message, line))
            case Sort.STREAM:
                return self.streams.take_in(line, message)
            case Sort.DIRECT:
                return self.direct.put(message, len(message.payload))
            case Sort.REQUEST if service := self._services.get(message.address):
                service.inbox.put(message, len(message.payload))
                return (service.inbox,)
            case _:
                return ()

    def refused(self, line: Line, message: Message, refusal: RefusedError) -> None:
        """The broker refused something that nobody waits for."""
        if self.streams.refused(message.correlation_id, refusal):
            return
        if not message.correlation_id:  # else somebody asked, and is not interested any more
            log.warning("%s refused: %s", line.place, refusal)

    async def restore(self, line: Line) -> None:
        """Subscribe and serve again."""
        asked: list[tuple[Ask, list[Inbox[Any]]]] = []
        if self._carries_subscriptions(line):
            asked += self.subscriptions.asks(line.speech)
        for service in self._services.values():
            if service.line is line:
                asked.append((line.speech.serve(service.address), [service.inbox]))
        answers = await asyncio.gather(
            *(line.ask_now(ask) for ask, _ in asked), return_exceptions=True
        )
        for (ask, inboxes), answer in zip(asked, answers, strict=True):
            if isinstance(answer, RefusedError) and answer.code != "closed":
                if not inboxes:
                    continue
                log.error(
                    "%s: %s is not possible any more: %s", line.place, ask.message.op.label, answer
                )
                for inbox in inboxes:
                    inbox.end(answer)
            elif isinstance(answer, BaseException):
                raise answer

    def went_down(self, line: Line) -> None:
        """What came by a lost connection and belongs to it is void."""
        for service in self._services.values():
            if service.line is line:
                service.inbox.discard()
        if line is self.main:
            self.subscriptions.forget_deliveries()
            self.streams.went_down()

    def ended(self, line: Line, error: WirelakeError | None) -> None:
        """A line will not come back: nothing more is to be had from it."""
        inboxes: list[Inbox[Any]] = [
            service.inbox for service in self._services.values() if service.line is line
        ]
        if self._carries_subscriptions(line):
            inboxes += self.subscriptions.inboxes()
        if line is self.main:
            inboxes += [*self.direct.inboxes, *self.streams.listeners.inboxes]
        for inbox in inboxes:
            inbox.end(error)

    def _carries_subscriptions(self, line: Line) -> bool:
        return line is (self._further.get("sub") if self._has_roles else self.main)
