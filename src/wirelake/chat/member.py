"""A member of the chat: a client of the broker, and the rooms it is in.

A member subscribes to the rooms that it talks in, so it receives its own messages. That is how it
knows, in any dialect, that the connection works. It learns of a loss from the client's log, or by
not receiving its own heartbeats any more.

Messages go out in order. If the connection breaks before the broker acknowledged one, it is sent
again with the same id, and members ignore an id that they have already. One read receipt is enough
for all members: each waits for a random time, and sends none if another member was faster.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from datetime import datetime
from hashlib import sha256
from typing import Any, Protocol

from wirelake.chat.past import Past
from wirelake.chat.room import (
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
    plain_text,
    read,
)
from wirelake.client import Client, Messages, connect
from wirelake.client.speech import can
from wirelake.client.url import parse
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, RefusedError, WirelakeError
from wirelake.message import Message

#: Seconds to wait for heartbeats of other members; timeout for our own message to come back.
ANSWERS = 0.5
ECHO = 5.0
#: Longest random wait, in seconds, before a heartbeat on request and before a read receipt.
SPREAD_HERE, SPREAD_SEEN = 0.25, 0.8
#: Seconds that members have to answer after a lost connection, before they are removed.
GRACE = 5.0
#: Seconds between retries of a message that could not be delivered, and until it fails.
AGAIN, PATIENCE = 0.5, 60.0
#: Seconds: timeout for an answer of the broker; longest pause before connecting again.
ANSWER_TIME, MAX_DELAY = 10.0, 5.0
FAREWELL = 1.0

MAX_WAITING = 100  # messages
MAX_CUT = 64  # characters of a name that is too long for a client id
MAX_SEEN = 30  # ids in one body


def client_of(url: str, name: str, token: str) -> Client:
    """A client whose id is the name, or is made from it where the dialect cannot say that.

    Raises ConfigError for a URL that is wrong, or where no name can be a client id.
    """
    client_id = client_id_for(url, name, token)
    return connect(url, client_id=client_id, token=token, timeout=ANSWER_TIME, max_delay=MAX_DELAY)


def client_id_for(url: str, name: str, token: str) -> str:
    """The client id of a member: its name, if the dialect can say it with this token.

    Else as much of the name as fits, and a few letters that follow from all of it: so the id of
    somebody is the same each time. Empty where the dialect has no client ids.
    """
    if not can(parse(url, token=token).dialect, "client id"):
        return ""
    mark = sha256(name.casefold().encode()).hexdigest()[:4]
    shorter = [f"{name[:size]}-{mark}" for size in range(min(len(name), MAX_CUT), -1, -1)]
    fault = ""
    for one in [name, *shorter]:
        try:
            parse(url, client_id=one, token=token)
        except ConfigError as error:
            if error.setting != "client_id":
                raise
            fault = fault or error.reason
        else:
            return one
    raise ConfigError("name", fault)


class Watcher(Protocol):
    """What a member reports events to."""

    def is_watching(self, room: Room) -> bool:
        """Whether the room is on the screen right now."""

    def added(self, room: Room, entry: Entry) -> None:
        """The room's history has a new entry."""

    def ticked(self, room: Room, entry: Entry) -> None:
        """The delivery state of a message of ours changed."""

    def stirred(self) -> None:
        """The members or the state of the connection changed."""

    def ended(self, error: WirelakeError) -> None:
        """The connection is lost for good."""


class Member:
    """A member, from the beginning to the end of `async with`."""

    def __init__(
        self,
        client: Client,
        name: str,
        watcher: Watcher,
        heartbeat: float = HEARTBEAT,
        past: Past | None = None,
    ) -> None:
        self.id = secrets.token_hex(4)
        self.name = name
        self.rooms: dict[str, Room] = {}
        self.past = past
        self.dialect = client.dialect
        self.trouble = ""  # why there is no connection; empty while there is one
        self._client = client
        self._watcher = watcher
        self._heartbeat = heartbeat
        self._has_acks = can(client.dialect, "acknowledgement of a publish")
        self._has_addresses = DIALECTS[client.dialect].has_addresses
        self._has_ear = False
        self._entering: dict[str, Room] = {}
        self._subscriptions: dict[str, AsyncExitStack] = {}
        self._stack = AsyncExitStack()
        self._group = asyncio.TaskGroup()  # a task that crashes is a bug: everything ends
        self._tasks: set[asyncio.Task[None]] = set()
        self._timers: dict[tuple[Kind, str], asyncio.TimerHandle] = {}
        self._unseen: dict[str, list[str]] = {}  # by room: ids without a read receipt yet
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

    async def __aexit__(self, *_: object) -> None:
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
        """Join a room, unless somebody of our name is there: then RefusedError `exists`."""
        if name in self.rooms:
            return self.rooms[name]
        if name in self._entering:
            raise RefusedError("busy", f"joining #{name} already")
        room = self._entering[name] = Room(name)
        stack = self._subscriptions[name] = AsyncExitStack()
        try:
            if not self._has_addresses and not self._has_ear:
                # In mfp each subscription delivers the messages of all rooms: read one of them.
                ear = self._client.subscribe(name + ASIDE)
                messages = await self._stack.enter_async_context(ear)
                self._start(self._listen(messages, self._hear))
                self._has_ear = True
            own = f"{name}{ASIDE}/{self.id}"  # for messages to us alone
            for address in (name + ASIDE, own, name):
                try:
                    messages = await stack.enter_async_context(self._client.subscribe(address))
                except RefusedError as error:
                    if address == own and error.code not in ("closed", "timeout"):
                        continue  # a token may have the right to the room alone
                    raise
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
            await self._recall(room)
            await self._publish(self._note(Kind.JOIN, name))
        except BaseException:
            del self._entering[name]
            await self._unsubscribe(name)
            raise
        self.rooms[name] = self._entering.pop(name)
        others = len(room.members)
        self.tell(room, f"you are in #{name}, with {others} other{'' if others == 1 else 's'}")
        return room

    async def _recall(self, room: Room) -> None:
        """Bring what was said before we came, and the topic, from the log."""
        if self.past is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_TIME):
                room.recall(await asyncio.to_thread(self.past.recent, room.name))
                if (note := await asyncio.to_thread(self.past.topic, room.name)) is not None:
                    room.set_topic(note, _milliseconds())

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
        """Change the name and announce it; RefusedError `exists` if a member has it."""
        if any(self._is_taken(room, name) for room in self.rooms.values()):
            raise RefusedError("exists", f"somebody is called {name} already")
        self.name = name
        for room in self.rooms.values():
            await self._publish(self._note(Kind.HERE, room.name))

    def _is_taken(self, room: Room, name: str) -> bool:
        return name.casefold() in (one.casefold() for one in room.names())

    def tell(self, room: Room, text: str) -> None:
        """Add a notice to a room's history; it is not sent."""
        entry = Entry(datetime.now().astimezone(), None, text)
        room.add(entry)
        self._watcher.added(room, entry)

    # Talking

    async def say(self, room: Room, text: str, kind: Kind = Kind.SAY) -> None:
        """Queue a text to be sent, as several messages if it is long."""
        room.new = None
        whole = Note(kind, room.name, self.name, f"{self.id}.{10**9 - 1}", clean(text))
        for piece in pieces(whole):
            entry = self._entry(room, kind, piece)
            await self._queue(room, entry, Note(kind, room.name, self.name, entry.id, piece))

    def _entry(self, room: Room, kind: Kind, text: str, to: str = "") -> Entry:
        """Add what we say to a room's history."""
        self._said += 1
        at = datetime.now().astimezone()
        id = f"{self.id}.{self._said}"
        entry = Entry(at, kind, text, self.name, id, Tick.WAITING, to=to)
        room.add(entry)
        self._watcher.added(room, entry)
        return entry

    async def _queue(self, room: Room, entry: Entry, note: Note) -> None:
        give_up = asyncio.get_running_loop().time() + PATIENCE
        await self._outgoing.put((room, entry, note, give_up))

    async def whisper(self, room: Room, name: str, text: str) -> None:
        """Queue a text for one member of this room, or of another that we are in.

        Raises RefusedError if nobody there has this name.
        """
        for place in [room, *(one for one in self.rooms.values() if one is not room)]:
            if (target := place.member_called(name)) is not None:
                break
        else:
            raise RefusedError("not_found", f"nobody here is called {name}: /who tells who is")
        to = place.members[target].name
        whole = Note(Kind.MSG, place.name, self.name, f"{self.id}.{10**9 - 1}", clean(text))
        for piece in pieces(whole, spare=len(target) + 1):
            entry = self._entry(room, Kind.MSG, piece, to)
            note = Note(Kind.MSG, place.name, self.name, entry.id, f"{target} {piece}")
            await self._queue(room, entry, note)

    async def set_topic(self, room: Room, text: str) -> None:
        """Give the room a topic, which is empty to remove it; RefusedError if it is too long."""
        now = max(_milliseconds(), room.topic_at + 1)
        note = self._note(Kind.TOPIC, room.name, f"{now} {self.name} {clean(text)}")
        if len(pieces(note)) > 1:
            raise RefusedError("too_large", "a topic has one line of a few hundred letters")
        await self._publish(note, ack=self._has_acks)
        self.tell(room, room.set_topic(note, now))
        self._watcher.stirred()

    async def finish(self) -> None:
        """Wait until each queued message was delivered or has failed."""
        await self._outgoing.join()

    async def _send(self) -> None:
        while True:
            await self._deliver(*await self._outgoing.get())
            self._outgoing.task_done()

    async def _deliver(self, room: Room, entry: Entry, note: Note, give_up: float) -> None:
        """Publish a message, with retries until it is accepted, refused or too old."""
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
        return Note(kind, room, self.name, self.id, text or f"{self._heartbeat:g} {self.dialect}")

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
        elif note.kind is Kind.MSG:
            self._hear_whisper(room, note)
        elif note.kind is Kind.TOPIC:
            if notice := room.set_topic(note, _milliseconds()):
                self.tell(room, notice)
                self._watcher.stirred()
            if timer := self._timers.pop((Kind.TOPIC, room.name), None):
                timer.cancel()  # somebody was faster
        elif note.kind is Kind.SEEN:
            self._hear_seen(room, note.text.split()[:MAX_SEEN])
        else:
            self._hear_presence(room, note)

    def _hear_plain(self, message: Message) -> None:
        """Show a plain client's message; mfp does not say in which of our rooms it was."""
        room = self.rooms.get(message.address)
        if room is None and not message.address:
            rooms = sorted(self.rooms.values(), key=self._watcher.is_watching)
            room = rooms[-1] if rooms else None
        text = plain_text(message.payload)
        if room is not None and text:
            self._add(room, Entry(datetime.now().astimezone(), Kind.SAY, text))

    def _hear_whisper(self, room: Room, note: Note) -> None:
        """Show a message to us alone; mfp also delivers those to other members."""
        target, _, text = note.text.partition(" ")
        if target == self.id:
            at = datetime.now().astimezone()
            self._add(room, Entry(at, Kind.MSG, text, note.name, note.id, to=self.name))

    def _add(self, room: Room, entry: Entry) -> None:
        """Add another member's talk."""
        if not room.add(entry):
            return
        if entry.id:
            unseen = self._unseen.setdefault(room.name, [])
            unseen.append(entry.id)
            del unseen[:-MAX_SEEN]
        if self._watcher.is_watching(room):
            self._soon(Kind.SEEN, room, SPREAD_SEEN)
        else:
            if not room.unread:
                room.new = entry
            room.unread += 1
            room.is_mentioned |= mentions(entry.text, self.name) or bool(entry.to)
        self._watcher.added(room, entry)

    def look_at(self, room: Room) -> None:
        """The room is on the screen now: nothing in it is unread."""
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
            if room.topic_at:
                self._soon(Kind.TOPIC, room, SPREAD_SEEN)
        if notice:
            self.tell(room, notice)
            if note.kind is Kind.JOIN and note.name.casefold() == self.name.casefold():
                self.tell(room, f"there are two called {note.name} here now: /nick takes another")
        self._watcher.stirred()

    def _soon(self, kind: Kind, room: Room, spread: float) -> None:
        """Send a note after a random wait, which other members may make needless."""
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
        if kind is Kind.TOPIC:
            text = f"{room.topic_at} {room.topic_by} {room.topic}"
        if room.name in self.rooms:
            self._start(self._try_publish(self._note(kind, room.name, text)))

    async def _try_publish(self, note: Note) -> None:
        with suppress(RefusedError):
            await self._publish(note, timeout=self._heartbeat)

    # Heartbeats and lost connections

    async def _beat(self) -> None:
        """Send heartbeats, and check that they come back."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._heartbeat * random.uniform(0.8, 1.0))
            for name in list(self.rooms):
                await self._try_publish(self._note(Kind.HERE, name))
            if loop.time() - self._heard_self > MISSING * self._heartbeat:
                self.lose("the broker is silent")

    async def _watch(self) -> None:
        """Remove members whose heartbeats stopped, unless our own connection is lost."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(1.0, self._heartbeat))
            for room in list(self.rooms.values()) if not self.trouble else ():
                for notice in room.miss(loop.time()):
                    self.tell(room, notice)
                    self._watcher.stirred()

    def lose(self, trouble: str) -> None:
        """Report a lost connection until our own messages come back."""
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


def _milliseconds() -> int:
    """The time, in ms since 1970."""
    return round(time.time() * 1000)


def _ignore(message: Message) -> None:
    """Another subscription delivers the message, too."""
