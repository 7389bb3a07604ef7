"""Somebody in the chat: a client of the broker, the rooms it is in, and what it knows of them.

A member hears its own words, too, as it subscribes to the rooms that it talks in. So it needs no
help of the dialect to know that a connection works: it does if what the member says comes back.
A loss shows in the client's log at once; else when signs of life stop coming back.

What is said goes out in order, and again, under its id, if the connection broke before the broker
acknowledged it: members do not show an id twice. That something has been shown is said by one
member for all: each waits for a moment of its own, and keeps quiet if another was faster.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol

import wirelake
from wirelake.cli.chat.room import (
    ASIDE,
    HEARTBEAT,
    MISSING,
    TALK,
    Entry,
    Kind,
    Note,
    Room,
    Tick,
    clean,
    mentions,
    pieces,
    read,
)
from wirelake.client import Client, Messages
from wirelake.client.url import parse
from wirelake.errors import ConfigError, RefusedError, WirelakeError
from wirelake.message import Message

#: Seconds: for those who are here to say so; at most, for one's own words to come back.
ANSWERS = 0.5
ECHO = 5.0
#: Members wait up to so long (seconds) before they say the same as others may.
SPREAD_HERE, SPREAD_SEEN = 0.25, 0.8
#: After a loss, those who do not answer within so many seconds are gone.
GRACE = 5.0
#: A message that cannot be delivered is tried again after so many seconds, and for so long.
AGAIN, PATIENCE = 0.5, 60.0
#: For an answer of the broker, and at most before the next try to reach it (seconds).
ANSWER_TIME, MAX_DELAY = 10.0, 5.0
FAREWELL = 1.0

MAX_WAITING = 100  # messages
MAX_SEEN = 30  # ids in one body
MAX_SHOWN = 2000  # characters of a plain client's message


def client_of(url: str, name: str, token: str) -> Client:
    """A client whose id is the name, where the dialect has ids; ConfigError if it cannot be."""
    client_id = "" if parse(url).dialect == "boson-text" else name
    try:
        return wirelake.connect(
            url, client_id=client_id, token=token, timeout=ANSWER_TIME, max_delay=MAX_DELAY
        )
    except ConfigError as error:
        if error.setting != "client_id":
            raise
        raise ConfigError("name", error.reason) from None


class Watcher(Protocol):
    """Who a member tells what happens."""

    def is_watching(self, room: Room) -> bool:
        """Is what is said in a room being shown right now?"""

    def added(self, room: Room, entry: Entry) -> None:
        """There is a new entry."""

    def ticked(self, room: Room, entry: Entry) -> None:
        """More is known of what we said."""

    def stirred(self) -> None:
        """Who is here, or how the connection is, has changed."""

    def ended(self, error: WirelakeError) -> None:
        """The connection will not come back."""


class Member:
    """Somebody in the chat, while inside `async with`."""

    def __init__(
        self, client: Client, name: str, watcher: Watcher, heartbeat: float = HEARTBEAT
    ) -> None:
        self.id = secrets.token_hex(4)
        self.name = name
        self.rooms: dict[str, Room] = {}
        self.trouble = ""  # why there is no connection, while there is none
        self._client = client
        self._watcher = watcher
        self._heartbeat = heartbeat
        self._has_acks = client.dialect != "boson-text"
        self._has_addresses = client.dialect != "mfp-1"
        self._has_ear = False
        self._entering: dict[str, Room] = {}
        self._subscriptions: dict[str, AsyncExitStack] = {}
        self._stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()  # a task that crashes is a bug: everything ends
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[tuple[Kind, str], asyncio.TimerHandle] = {}
        self._unseen: dict[str, list[str]] = {}  # by room: ids shown here, which nobody said yet
        self._outgoing: asyncio.Queue[tuple[Room, Entry, Note, float]] = asyncio.Queue(MAX_WAITING)
        self._said = 0
        self._echo = asyncio.Event()
        self._heard_self = 0.0
        self._recovery: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Member:
        self._heard_self = asyncio.get_running_loop().time()
        await self._group.__aenter__()
        self._start(self._send())
        self._start(self._beat())
        self._start(self._watch())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL):
                for name in list(self.rooms):
                    await self.leave(name)
        for timer in self._timers.values():
            timer.cancel()
        with suppress(WirelakeError, TimeoutError):
            async with asyncio.timeout(FAREWELL):
                await self._stack.aclose()
        for task in self._tasks:
            task.cancel()
        await self._group.__aexit__(None, None, None)  # it would wrap an error that is not its own

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Rooms

    async def enter(self, name: str) -> Room:
        """Join a room, unless somebody of our name is there."""
        if name in self.rooms:
            return self.rooms[name]
        if name in self._entering:
            raise RefusedError("busy", f"joining #{name} already")
        room = self._entering[name] = Room(name)
        stack = self._subscriptions[name] = AsyncExitStack()
        try:
            if not self._has_addresses and not self._has_ear:
                # Here every subscription gets everything: listen to one, and keep it.
                ear = self._client.subscribe(name + ASIDE)
                messages = await self._stack.enter_async_context(ear)
                self._start(self._listen(messages, self._hear))
                self._has_ear = True
            for address in (name + ASIDE, name):
                messages = await stack.enter_async_context(self._client.subscribe(address))
                hear = self._hear if self._has_addresses else _ignore
                self._start(self._listen(messages, hear))
            self._echo.clear()
            await self._publish(self._note(Kind.WHO, name), ack=self._has_acks)
            try:
                async with asyncio.timeout(ECHO):
                    await self._echo.wait()
            except TimeoutError:
                why = self.trouble or "may you talk there?"
                raise RefusedError("timeout", f"nothing comes back from #{name}: {why}") from None
            self.trouble = ""
            await asyncio.sleep(ANSWERS)
            if self._is_taken(room, self.name):
                raise RefusedError("exists", f"somebody called {self.name} is in #{name} already")
            await self._publish(self._note(Kind.JOIN, name))
        except BaseException:
            del self._entering[name]
            await self._unsubscribe(name)
            raise
        self.rooms[name] = self._entering.pop(name)
        others = len(room.members)
        self.tell(room, f"you are in #{name}, with {others} other{'' if others == 1 else 's'}")
        return room

    async def leave(self, name: str) -> None:
        """Leave a room."""
        del self.rooms[name]
        self._unseen.pop(name, None)
        if not self.trouble:
            with suppress(RefusedError):
                await self._publish(self._note(Kind.LEAVE, name), timeout=FAREWELL)
        await self._unsubscribe(name)

    async def _unsubscribe(self, name: str) -> None:
        with suppress(RefusedError):
            await self._subscriptions.pop(name).aclose()

    async def rename(self, name: str) -> None:
        """Take another name, and say so."""
        if any(self._is_taken(room, name) for room in self.rooms.values()):
            raise RefusedError("exists", f"somebody is called {name} already")
        self.name = name
        for room in self.rooms.values():
            await self._publish(self._note(Kind.HERE, room.name))

    def _is_taken(self, room: Room, name: str) -> bool:
        return name.casefold() in (one.casefold() for one in room.names())

    def tell(self, room: Room, text: str) -> None:
        """Put a notice into a room's history, for our own eyes."""
        entry = Entry(datetime.now().astimezone(), None, text)
        room.add(entry)
        self._watcher.added(room, entry)

    # Talking

    async def say(self, room: Room, text: str, kind: Kind = Kind.SAY) -> None:
        """Say something, in several messages where it is long; it goes out as soon as it can."""
        whole = Note(kind, room.name, self.name, f"{self.id}.{10**9 - 1}", clean(text))
        for piece in pieces(whole):
            self._said += 1
            note = Note(kind, room.name, self.name, f"{self.id}.{self._said}", piece)
            at = datetime.now().astimezone()
            entry = Entry(at, kind, piece, self.name, note.id, Tick.WAITING)
            room.add(entry)
            self._watcher.added(room, entry)
            give_up = asyncio.get_running_loop().time() + PATIENCE
            await self._outgoing.put((room, entry, note, give_up))

    async def finish(self) -> None:
        """Wait until everything that was said is delivered, or has failed."""
        await self._outgoing.join()

    async def _send(self) -> None:
        while True:
            await self._deliver(*await self._outgoing.get())
            self._outgoing.task_done()

    async def _deliver(self, room: Room, entry: Entry, note: Note, give_up: float) -> None:
        """Give a message to the broker, again until it has it or time is up."""
        loop = asyncio.get_running_loop()
        while True:
            if not self.trouble:
                self._tick(room, entry, Tick.HANDED)
            try:
                await self._publish(note, ack=self._has_acks)
            except RefusedError as error:
                if error.code not in ("closed", "timeout", "busy") or loop.time() > give_up:
                    if entry.fail(str(error)):
                        self._watcher.ticked(room, entry)
                    return
                self._tick(room, entry, Tick.WAITING)
                await asyncio.sleep(AGAIN)
            else:
                self._tick(room, entry, Tick.TAKEN if self._has_acks else Tick.HANDED)
                return

    def _tick(self, room: Room, entry: Entry, tick: Tick) -> None:
        if entry.reach(tick):
            self._watcher.ticked(room, entry)

    def _note(self, kind: Kind, room: str, text: str = "") -> Note:
        return Note(kind, room, self.name, self.id, text or f"{self._heartbeat:g}")

    async def _publish(
        self, note: Note, *, ack: bool = False, timeout: float = ANSWER_TIME
    ) -> None:
        await self._client.publish(note.address, note.body(), ack=ack, timeout=timeout)

    # Listening

    async def _listen(self, messages: Messages, hear: Callable[[Message], None]) -> None:
        try:
            while some := await messages.take():
                for message in some:
                    hear(message)
                await asyncio.sleep(0)  # there may be more at once, and others want their turn
        except WirelakeError as error:
            self._watcher.ended(error)

    def _hear(self, message: Message) -> None:
        note = read(message.payload, message.address)
        if note is None:
            self._hear_plain(message)
            return
        room = self.rooms.get(note.room) or self._entering.get(note.room)
        if room is None:
            return
        if note.member == self.id:
            self._heard_self = asyncio.get_running_loop().time()
            self._echo.set()
            if note.kind in TALK and (entry := room.find(note.id)):
                self._tick(room, entry, Tick.BACK)
        elif note.kind in TALK:
            at = datetime.now().astimezone()
            self._add(room, Entry(at, note.kind, note.text, note.name, note.id))
        elif note.kind is Kind.SEEN:
            self._hear_seen(room, note.text.split()[:MAX_SEEN])
        else:
            self._hear_presence(room, note)

    def _hear_plain(self, message: Message) -> None:
        """Somebody said something without our form; in mfp, perhaps in any of our rooms."""
        room = self.rooms.get(message.address)
        if room is None and not message.address:
            rooms = sorted(self.rooms.values(), key=self._watcher.is_watching)
            room = rooms[-1] if rooms else None
        text = clean(message.payload[: 4 * MAX_SHOWN].decode(errors="replace")).strip()
        if room is not None and text:
            if len(text) > MAX_SHOWN:
                text = text[:MAX_SHOWN] + "…"
            self._add(room, Entry(datetime.now().astimezone(), Kind.SAY, text))

    def _add(self, room: Room, entry: Entry) -> None:
        """Add what another one said."""
        if not room.add(entry):
            return
        if entry.id:
            unseen = self._unseen.setdefault(room.name, [])
            unseen.append(entry.id)
            del unseen[:-MAX_SEEN]
        if self._watcher.is_watching(room):
            self._soon(Kind.SEEN, room, SPREAD_SEEN)
        else:
            room.unread += 1
            room.is_mentioned |= mentions(entry.text, self.name)
        self._watcher.added(room, entry)

    def look_at(self, room: Room) -> None:
        """All of a room is being shown now."""
        room.unread, room.is_mentioned = 0, False
        if self._unseen.get(room.name):
            self._soon(Kind.SEEN, room, SPREAD_SEEN)

    def _hear_seen(self, room: Room, ids: list[str]) -> None:
        for id in ids:
            if entry := room.find(id):
                self._tick(room, entry, Tick.SEEN)
        if unseen := self._unseen.get(room.name):
            unseen[:] = [id for id in unseen if id not in ids]

    def _hear_presence(self, room: Room, note: Note) -> None:
        notice = ""
        if note.kind is Kind.LEAVE:
            notice = room.depart(note)
        elif note.kind is not Kind.WHO:
            notice = room.arrive(note, asyncio.get_running_loop().time())
        if note.kind in (Kind.WHO, Kind.JOIN) and room.name in self.rooms:
            self._soon(Kind.HERE, room, SPREAD_HERE)
        if notice:
            self.tell(room, notice)
            if note.kind is Kind.JOIN and note.name.casefold() == self.name.casefold():
                self.tell(room, f"there are two called {note.name} here now: /nick takes another")
        self._watcher.stirred()

    def _soon(self, kind: Kind, room: Room, spread: float) -> None:
        """Say what others may say at the same time, after a moment of our own."""
        key = (kind, room.name)
        if key not in self._timers:
            loop = asyncio.get_running_loop()
            delay = random.uniform(0, spread)
            self._timers[key] = loop.call_later(delay, lambda: self._now(kind, room))

    def _now(self, kind: Kind, room: Room) -> None:
        del self._timers[kind, room.name]
        text = ""
        if kind is Kind.SEEN:
            text = " ".join(self._unseen.pop(room.name, []))
            if not text:
                return  # somebody was faster
        if room.name in self.rooms:
            self._start(self._try_publish(self._note(kind, room.name, text)))

    async def _try_publish(self, note: Note) -> None:
        with suppress(RefusedError):
            await self._publish(note, timeout=self._heartbeat)

    # Signs of life, and losses

    async def _beat(self) -> None:
        """Say that we are here; and see whether it comes back."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._heartbeat * random.uniform(0.8, 1.0))
            for name in list(self.rooms):
                await self._try_publish(self._note(Kind.HERE, name))
            if loop.time() - self._heard_self > MISSING * self._heartbeat:
                self.lose("the broker is silent")

    async def _watch(self) -> None:
        """Miss those who show no sign of life, unless it is us who are cut off."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self._heartbeat))
            for room in list(self.rooms.values()) if not self.trouble else ():
                for notice in room.miss(loop.time()):
                    self.tell(room, notice)
                    self._watcher.stirred()

    def lose(self, trouble: str) -> None:
        """The connection seems to be lost: show it, until our words come back again."""
        self.trouble = trouble
        if self.rooms and (self._recovery is None or self._recovery.done()):
            self._recovery = self._start(self._recover())
        self._watcher.stirred()

    async def _recover(self) -> None:
        while True:
            self._echo.clear()
            try:
                for name in list(self.rooms):
                    await self._publish(self._note(Kind.JOIN, name))
                async with asyncio.timeout(ECHO):
                    await self._echo.wait()
                break
            except (RefusedError, TimeoutError):
                await asyncio.sleep(AGAIN)
        until = asyncio.get_running_loop().time() + GRACE
        for room in self.rooms.values():
            for one in room.members.values():
                one.until = until
        self.trouble = ""
        self._watcher.stirred()


def _ignore(message: Message) -> None:
    """It comes by another way, too."""


class LossHandler(logging.Handler):
    """Tells a member what its client logs: that a connection was lost, and is tried again."""

    def __init__(self, member: Member) -> None:
        super().__init__(logging.INFO)
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        """A line of the client's log; clients live in the loop, so this does too."""
        self._member.lose(record.getMessage())
