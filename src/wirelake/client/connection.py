"""One connection that reconnects: it sends requests, matches answers, and fills inboxes.

A `Line` connects, sends the handshake, lets its owner restore subscriptions and services, and then
reads until the connection ends; then it reconnects, with exponential backoff. Requests without an
answer when a connection ends fail with `closed`. What belongs to one connection (a reply, an
acknowledgement, a byte stream) names its `epoch`, and is sent on no other.

Inboxes are bounded. While one is full the line stops reading, so that the broker sees a slow
consumer. But answers arrive behind unread messages: so while a call waits for an answer, inboxes
may grow to `STRETCH` times their size.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from wirelake.client.answers import Answers
from wirelake.client.inbox import Inbox
from wirelake.client.speech import Ask, Sort, Speech, can, speech
from wirelake.client.url import Place
from wirelake.client.websocket import open_websocket
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed
from wirelake.errors import ProtocolError, RefusedError, WirelakeError
from wirelake.message import Limits, Message
from wirelake.wire import Encoder, FrameTable

READ = 256 << 10
STRETCH = 8
#: A connection that lasted this long (seconds) was a good one: the next wait is short again.
LASTED = 1.0
#: How long hanging up may take (seconds), and how many pings in a row may be unanswered.
GOODBYE = 1.0
MAX_UNANSWERED = 2
#: Bytes written and not gone out that a writer has to wait for.
OUTBOX = 256 << 10
#: A loop of writes yields to the event loop after this many.
TURNS = 64

log = logging.getLogger("wirelake.client")


@dataclass(frozen=True, slots=True)
class Settings:
    """Timeouts and backoff of a client; times in seconds."""

    timeout: float = 30.0
    reconnect: bool = True
    min_delay: float = 0.1
    max_delay: float = 30.0
    max_attempts: int | None = None
    keepalive: float = 30.0
    inbox: int = 1000
    inbox_bytes: int = 8 << 20
    limits: Limits = field(default_factory=Limits)
    on_connection: Callable[[str], None] | None = None


class Owner(Protocol):
    """Who a line works for."""

    def take_in(self, line: Line, message: Message, sort: Sort) -> Iterable[Inbox[Any]]:
        """Put a message where it belongs; return the inboxes that got it."""

    def refused(self, line: Line, message: Message, refusal: RefusedError) -> None:
        """The broker refused something that nobody waits for."""

    async def restore(self, line: Line) -> None:
        """Ask again, by `ask_now`, for what was standing before the connection was lost."""

    def went_down(self, line: Line) -> None:
        """The connection is lost; it may come back."""

    def ended(self, line: Line, error: WirelakeError | None) -> None:
        """It does not come back: because of an error, or because it was closed."""


class Line:
    """One connection to a broker; `role` is what mfp tells PUB from SUB by."""

    def __init__(self, place: Place, settings: Settings, owner: Owner, role: str = "pub") -> None:
        self.place = place
        self.settings = settings
        self.role = role
        self.epoch = 0  # which connection this is; a reply must go back on the one that asked
        self.client_id = place.client_id
        self.speech: Speech = speech(place.dialect)
        self._owner = owner
        self._encoder: Encoder = self.speech.encoder()
        self._table = FrameTable(1)
        self._writer: asyncio.StreamWriter | None = None
        self._answers = Answers()
        self._up = asyncio.Event()  # there is a connection, or there never will be again
        self._stir = asyncio.Event()  # something changed for a reader that waits for room
        self._trouble: WirelakeError = RefusedError("closed", f"{place}: not connected")
        self._spoke = 0.0  # when something was written last
        self._turns = 0
        self._host = 0  # which of the place's hosts it is connected to, or tries next
        self._over = False
        self._is_lost = False  # it was there, and is being tried again
        self._closing = False
        self._hung_up = False  # nothing can be written behind our farewell
        self._task: asyncio.Task[None] | None = None

    # For the owner

    async def open(self) -> None:
        """Connect for the first time; raises on failure, without a retry."""
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._keep_up(opened))
        try:
            await opened
        except asyncio.CancelledError:
            await self.close()
            raise

    async def close(self) -> None:
        """Flush pending output, if the broker reads it, and disconnect."""
        self._closing = True
        task = self._task
        if task is None:
            return
        if self._writer is not None and self._up.is_set():
            unsent = self._writer.transport.get_write_buffer_size() > 0
            with suppress(OSError, RuntimeError, RefusedError):
                if farewell := self.speech.farewell():
                    self._write([farewell])
                self._hung_up = True
                self._writer.write_eof() if self._writer.can_write_eof() else self._writer.close()
            self._stir.set()
            await asyncio.wait([task], timeout=self.settings.timeout if unsent else GOODBYE)
        task.cancel()
        await asyncio.wait([task])

    async def send(self, say: Callable[[Speech], list[Message]], timeout: float | None) -> None:
        """Send messages, once there is a connection and room in its outbox."""
        async with self._within(timeout, "sending"):
            await self._wait_to_write()
            self._write(say(self.speech))

    async def send_batch(self, encode: Callable[[Encoder], bytes], timeout: float | None) -> None:
        """Send what is encoded for this connection, as one buffer."""
        async with self._within(timeout, "sending"):
            await self._wait_to_write()
            self._write_bytes(self._encoded(encode))

    async def ask_batch(
        self, encode: Callable[[Encoder], bytes], keys: Sequence[str], timeout: float | None
    ) -> None:
        """Send a batch as one buffer, and wait until each of its messages is acknowledged."""
        async with self._within(timeout, "the acknowledgements"):
            await self._wait_to_write()
            data = self._encoded(encode)
            self._stir.set()
            await self._answers.wait_for_all(keys, lambda: self._write_bytes(data))

    async def ask(
        self,
        say: Callable[[Speech], Ask],
        timeout: float | None = None,
        *,
        epoch: int | None = None,
        parts: list[Message] | None = None,
    ) -> Message:
        """Send what wants an answer, and wait for it; what comes before its end goes to `parts`.

        Once there is a connection, or on the one of an epoch and no other.
        """
        async with self._within(timeout, "an answer"):
            if epoch is None:
                await self._wait_to_write()
            elif not await self._has_room(epoch):
                raise RefusedError("closed", f"{self.place}: that connection is gone")
            return await self.ask_now(say(self.speech), parts)

    async def ask_now(self, asked: Ask, parts: list[Message] | None = None) -> Message:
        """Ask on the connection that there is; the answer, or RefusedError."""
        self._stir.set()
        return await self._answers.wait(
            asked.key, lambda: self._write([asked.message, *asked.then]), parts
        )

    async def insist(self, say: Callable[[Speech], Ask]) -> None:
        """Send an idempotent request, and retry it if the connection breaks meanwhile."""
        try:
            async with asyncio.timeout(self.settings.timeout):
                while True:
                    try:
                        await self.ask(say)
                    except RefusedError as error:
                        if error.code != "closed" or self.is_over:
                            raise
                    else:
                        return
        except TimeoutError:
            raise RefusedError("timeout", "the connection kept breaking") from None

    async def say(self, message: Message, epoch: int) -> bool:
        """Send on one connection, once its outbox has room; false where it is gone."""
        if not await self._has_room(epoch):
            return False
        self._write([message])
        return True

    def mention(self, message: Message, epoch: int) -> None:
        """Send something small on one connection, if it is still there, without waiting."""
        if epoch == self.epoch and self._can_write:
            self._write([message])

    @property
    def is_up(self) -> bool:
        """Is there a connection?"""
        return self._up.is_set() and not self._over

    @property
    def is_over(self) -> bool:
        """Will there never be one again?"""
        return self._over

    def stir(self) -> None:
        """Some inbox has room again."""
        self._stir.set()

    # Out

    @asynccontextmanager
    async def _within(self, timeout: float | None, what: str) -> AsyncIterator[None]:
        """Foreign errors and time-outs become ours."""
        limit = self.settings.timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                yield
        except TimeoutError:
            why = "" if self._up.is_set() else f"; {self._trouble}"
            raise RefusedError("timeout", f"{what} took over {limit:g} s{why}") from None
        except OSError as error:
            raise RefusedError("closed", f"{self.place}: {error}") from None

    async def _take_turns(self) -> None:
        self._turns += 1
        if self._turns % TURNS == 0:
            await asyncio.sleep(0)

    async def _has_room(self, epoch: int) -> bool:
        """Wait until the connection of an epoch has room in its outbox; false where it is gone."""
        await self._take_turns()
        with suppress(OSError):
            if epoch == self.epoch and self._writer is not None:
                await self._writer.drain()
        return epoch == self.epoch and self._can_write

    @property
    def _can_write(self) -> bool:
        return not (self._hung_up or self._writer is None or self._writer.is_closing())

    async def _wait_to_write(self) -> None:
        """Wait for a connection with room in its outbox: what fails here has not been sent."""
        await self._take_turns()
        while True:
            await self._up.wait()
            if self._over or self._hung_up or self._writer is None:
                raise RefusedError("closed", str(self._trouble))
            writer = self._writer
            with suppress(OSError):
                await writer.drain()
                if not writer.is_closing():
                    return
            if writer is self._writer:
                self._up.clear()  # it is gone, and the reader has not come to see it yet

    def _write(self, messages: list[Message]) -> None:
        most = self.settings.limits.message
        if any(len(message.payload) > most for message in messages):
            raise RefusedError("too_large", f"a message has at most {most} bytes")
        if len(messages) > self._table.capacity:
            self._table = FrameTable(len(messages))
        self._table.fill(messages, self.place.dialect)
        self._write_bytes(self._encoded(lambda encoder: encoder.encode(self._table)))

    def _encoded(self, encode: Callable[[Encoder], bytes | memoryview]) -> bytes | memoryview:
        """The frames, or RefusedError where the dialect cannot say them; all or nothing."""
        try:
            data = encode(self._encoder)
            if skipped := self._encoder.skipped:
                reason, count = next(iter(skipped.items()))
                text = f"{self.place.dialect} cannot say the {reason} of {count} of the messages"
                raise RefusedError("too_large" if reason == "payload" else "bad_request", text)
        except BaseException:
            self._encoder.skipped.clear()
            if not DIALECTS[self.place.dialect].has_addresses:
                # An mfp encoder may take a topic for set that now will not be sent.
                self._encoder = self.speech.encoder()
            raise
        return data

    def _write_bytes(self, data: bytes | memoryview) -> None:
        if self._writer is None or not self._can_write:
            raise RefusedError("closed", str(self._trouble))
        self._writer.write(data)
        self._spoke = asyncio.get_running_loop().time()

    # The life of a line

    async def _keep_up(self, opened: asyncio.Future[None]) -> None:
        """Connect, and again whenever the connection is lost."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            while True:
                began = loop.time()
                try:
                    await self._live(opened)
                except OSError as error:
                    reason = error.strerror or str(error) or "no answer in time"
                    self._trouble = RefusedError("closed", f"{self.place}: {reason}")
                except WirelakeError as error:
                    self._trouble = error
                except UnicodeError as error:  # a host name that cannot be one
                    self._trouble = RefusedError("closed", f"{self.place}: {error}")
                if self._closing or not opened.done() or not self._may_return(failures):
                    break
                failures = 0 if loop.time() - began >= LASTED else failures + 1
                delay = min(self.settings.max_delay, self.settings.min_delay * 2**failures)
                delay *= random.uniform(0.5, 1.0)
                log.info("%s; trying again in %.1f s", self._trouble, delay)
                if not self._is_lost:
                    self._tell(str(self._trouble))
                await asyncio.sleep(delay)
        finally:
            self._over = True
            self._up.set()
            self._owner.ended(self, None if self._closing else self._trouble)
            if not opened.done():
                opened.set_exception(self._trouble)
                opened.exception()  # whoever opens may have gone away

    def _tell(self, trouble: str) -> None:
        """Tell the program that the connection is lost, or that it is back: then it is empty."""
        self._is_lost = bool(trouble)
        if self.settings.on_connection is not None:
            self.settings.on_connection(trouble)

    def _may_return(self, failures: int) -> bool:
        """Return whether to reconnect after this error."""
        if isinstance(self._trouble, RefusedError) and self._trouble.code == "unauthorized":
            return False
        most = self.settings.max_attempts
        return self.settings.reconnect and (most is None or failures < most)

    async def _live(self, opened: asyncio.Future[None]) -> None:
        """One connection from beginning to end; always ends by an error that says why."""
        async with asyncio.timeout(self.settings.timeout):
            reader, self._writer = await self._dial()
        self._writer.transport.set_write_buffer_limits(high=OUTBOX)
        reading: asyncio.Task[None] | None = None
        try:
            self.epoch += 1
            self.speech = speech(self.place.dialect)
            self._encoder = self.speech.encoder()
            reading = asyncio.create_task(self._read(reader))
            async with asyncio.timeout(self.settings.timeout):
                greeting = self.speech.greet(self.place.client_id, self.place.token, self.role)
                for asked in greeting:
                    answer = await self.ask_now(asked)
                    self.client_id = self.place.client_id or self.speech.name(answer)
                if opened.done():
                    await self._owner.restore(self)
            self._up.set()
            if self._is_lost:
                self._tell("")
            if not opened.done():
                opened.set_result(None)
            await reading
        finally:
            self._up.clear()
            self.epoch += 1
            self._owner.went_down(self)
            if reading is not None:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
            await self._hang_up()

    async def _dial(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        place = self.place
        if place.is_websocket:
            return await open_websocket(place.websocket_url, place.family, place.tls, READ)
        if place.path:
            name = "localhost" if place.tls else None
            return await asyncio.open_unix_connection(
                place.path, ssl=place.tls, server_hostname=name, limit=READ
            )
        return await self._dial_any()

    async def _dial_any(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the host of the last connection, or else to the next one that answers."""
        hosts = self.place.hosts
        patience = self.settings.timeout / len(hosts)
        for left in reversed(range(len(hosts))):
            host, port = hosts[self._host % len(hosts)]
            try:
                async with asyncio.timeout(patience):
                    return await asyncio.open_connection(host, port, ssl=self.place.tls, limit=READ)
            except OSError:  # TimeoutError is one
                if not left:
                    raise
                self._host += 1
        raise AssertionError("a place has a host")

    async def _hang_up(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            try:
                async with asyncio.timeout(GOODBYE):
                    await writer.wait_closed()
            except OSError:  # a time-out is one too
                writer.transport.abort()

    # In

    async def _read(self, reader: asyncio.StreamReader) -> None:
        """Read to the end; then nobody is left waiting for an answer."""
        trouble: WirelakeError = RefusedError("closed", f"{self.place}: the broker hung up")
        try:
            await self._read_on(reader)
        except OSError as error:
            trouble = RefusedError("closed", f"{self.place}: {error}")
        except ProtocolError as error:
            trouble = error
        finally:
            # At once: what is asked from here on would wait for an answer that cannot come.
            self._up.clear()
            if self._writer is not None:
                self._writer.close()
            self._answers.fail(trouble)
        raise trouble

    async def _read_on(self, reader: asyncio.StreamReader) -> None:
        feed = Feed(self.place.dialect, limits=self.settings.limits, capacity=1024)
        while data := await self._next(reader):
            for table in feed.receive(data):
                for message in table.messages():
                    heard = self.speech.hear(message)
                    if heard.sort is Sort.ANSWER:
                        if not self._answers.take(message, heard) and heard.refusal is not None:
                            self._owner.refused(self, message, heard.refusal)
                    elif self._answers.take_part(message, heard):
                        pass
                    elif heard.sort is Sort.PING:
                        self._write([self.speech.pong(message)])
                    elif heard.sort is not Sort.END and not self._closing:
                        got = self._owner.take_in(self, message, heard.sort)
                        await self._wait_for_room(got)

    async def _next(self, reader: asyncio.StreamReader) -> bytes:
        """What is read next; pings the broker when either side has been silent for long."""
        self._keep_alive()
        for _ in range(1 + MAX_UNANSWERED):
            try:
                async with asyncio.timeout(self.settings.keepalive):
                    return await reader.read(READ)
            except TimeoutError:
                if not self._can_ping:
                    return await reader.read(READ)
                self._write([self.speech.ping().message])
        raise TimeoutError(f"{MAX_UNANSWERED} pings had no answer")

    def _keep_alive(self) -> None:
        """Send heartbeats: a silent client is taken for gone (spec: identity, tmq 3)."""
        silent = asyncio.get_running_loop().time() - self._spoke
        if self._can_ping and self._up.is_set() and silent > self.settings.keepalive / 2:
            self._write([self.speech.sign_of_life()])

    @property
    def _can_ping(self) -> bool:
        return can(self.place.dialect, "ping")

    async def _wait_for_room(self, inboxes: Iterable[Inbox[Any]]) -> None:
        """Read no more while an inbox is full."""
        for inbox in inboxes:
            while inbox.is_full(STRETCH if self._answers else 1) and not self._closing:
                inbox.on_room = self.stir
                self._stir.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self.settings.keepalive / 2):
                        await self._stir.wait()
                self._keep_alive()
