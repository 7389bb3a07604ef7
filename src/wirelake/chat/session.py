"""One person's chat: joining, talking in the current room, and the `/` commands.

A line that begins with `/` is a command; one that begins with `//` is talk that begins with `/`.
The output of a command is a notice in the current room.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from wirelake.chat.member import Member, Watcher, client_of
from wirelake.chat.past import FOUND, Past
from wirelake.chat.room import BREAK, MARKS, Kind, Room, Tick, check_name, check_room
from wirelake.client.diagnosis import diagnose, opened
from wirelake.errors import ProtocolError, RefusedError, WirelakeError

#: Said instead of a URL: the log is not read.
NO_PAST = "none"

COMMANDS = {
    "/join ROOM": "go into a room, or to one you are in",
    "/leave [ROOM]": "leave this room, or another",
    "/rooms": "the rooms you are in, and others with people in them",
    "/who": "who is here, and in which dialect",
    "/msg NAME TEXT": "say something to one member",
    "/topic [TEXT]": "what the room is about; - removes it",
    "/search WORDS": "find what was said in this room",
    "/nick NAME": "take another name",
    "/me DOES": "say what you do",
    "/help": "this",
    "/quit": "leave the chat",
}
NAMES = tuple(usage.split()[0] for usage in COMMANDS)
MEANINGS = {
    Tick.WAITING: "waits",
    Tick.HANDED: "sent",
    Tick.BACK: "passed on by the broker",
    Tick.TAKEN: "acknowledged by it",
    Tick.SEEN: "shown to somebody",
    Tick.FAILED: "failed",
}


class Session:
    """A member, its current room, and the commands."""

    def __init__(self, member: Member, room: Room) -> None:
        self.member = member
        self.turn_to(room)
        self.over = asyncio.Event()
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/join": self._join,
            "/leave": self._leave,
            "/rooms": self._rooms,
            "/who": self._who,
            "/msg": self._msg,
            "/topic": self._topic,
            "/search": self._search,
            "/nick": self._nick,
            "/me": self._me,
            "/help": self._help,
            "/quit": self._quit,
        }

    async def type(self, line: str) -> None:
        """Execute a typed line: a command, or talk. Several lines are always talk."""
        line = line.strip("\n").rstrip()
        if "\n" not in line:
            line = line.strip()
        try:
            if "\n" in line:
                await self.member.say(self.room, line)
            elif line.startswith("/") and not line.startswith("//"):
                word, _, rest = line.partition(" ")
                if word not in self._commands:
                    self.tell(f"there is no {word}: /help lists what there is")
                else:
                    await self._commands[word](rest.strip())
            elif line:
                await self.member.say(self.room, line.removeprefix("/"))
        except WirelakeError as error:
            self.tell(str(error))

    def tell(self, text: str) -> None:
        """Show a notice in the current room."""
        self.member.tell(self.room, text)

    def turn_to(self, room: Room) -> None:
        """Make a room the current one; the mark at what was new in the one before goes."""
        before: Room | None = getattr(self, "room", None)
        if before is not None and before is not room:
            before.new = None
        self.room = room
        self.member.look_at(room)

    def turn(self, step: int) -> None:
        """Make the next room (1) or the previous one (-1) the current one."""
        rooms = list(self.member.rooms.values())
        self.turn_to(rooms[(rooms.index(self.room) + step) % len(rooms)])

    async def _join(self, name: str) -> None:
        self.turn_to(await self.member.enter(check_room(name)))

    async def _leave(self, name: str) -> None:
        name = check_room(name) if name else self.room.name
        if name not in self.member.rooms:
            self.tell(f"you are not in #{name}")
        elif len(self.member.rooms) == 1:
            self.tell("this is your only room: /join another one first, or /quit")
        else:
            if name == self.room.name:
                self.turn(-1)
            await self.member.leave(name)

    async def _rooms(self, _: str) -> None:
        rooms = self.member.rooms
        mine = ", ".join(f"#{one.name} ({one.unread} unread)" for one in rooms.values())
        self.tell(f"rooms: {mine}")
        others = [one for one in await self.other_rooms() if one not in rooms]
        if others:
            self.tell(f"others: {', '.join(f'#{one}' for one in others)}")

    async def other_rooms(self) -> list[str]:
        """The rooms of the broker that somebody is in, as far as its HTTP tells."""
        past = self.member.past
        return [] if past is None else await asyncio.to_thread(past.rooms)

    async def _who(self, _: str) -> None:
        others = sorted(self.room.members.values(), key=lambda one: one.name.casefold())
        here = [f"{self.member.name} (you, {self.member.dialect})"]
        here += [f"{one.name} ({one.dialect or 'no dialect told'})" for one in others]
        self.tell(f"{len(here)} here: {', '.join(here)}")

    async def _msg(self, rest: str) -> None:
        name, _, text = rest.partition(" ")
        if not text.strip():
            self.tell("say to whom, and what: /msg NAME TEXT")
        else:
            await self.member.whisper(self.room, name, text.strip())

    async def _topic(self, text: str) -> None:
        room = self.room
        if text:
            await self.member.set_topic(room, "" if text == "-" else text)
        elif room.topic:
            self.tell(f"topic, set by {room.topic_by}: {room.topic}")
        else:
            self.tell("this room has no topic: /topic TEXT sets one")

    async def _search(self, words: str) -> None:
        if not words:
            self.tell("say what to look for: /search WORDS")
            return
        room, past, wanted = self.room, self.member.past, words.casefold()
        found = [
            one
            for one in room.entries
            if one.kind is not None
            and (wanted in one.text.casefold() or wanted == one.name.casefold())
        ]
        if past is not None:
            known = {one.id for one in found}
            older = await asyncio.to_thread(past.search, room.name, words)
            found += [one for one in older if not one.id or one.id not in known]
        found = sorted({(one.id or id(one)): one for one in found}.values(), key=lambda one: one.at)
        where = "the log" if past is not None else "what is on the screen"
        self.member.tell(room, f"{len(found)} found in {where}: {words}")
        for one in found[-FOUND:]:
            text = one.text.replace(BREAK, " ")
            self.member.tell(room, f"{one.at:%Y-%m-%d %H:%M}  {one.name or '?'}: {text}")

    async def _nick(self, name: str) -> None:
        await self.member.rename(check_name(name))
        for room in self.member.rooms.values():
            self.member.tell(room, f"you are now {name}")

    async def _me(self, text: str) -> None:
        if text:
            await self.member.say(self.room, text, Kind.ME)

    async def _help(self, _: str) -> None:
        for usage, meaning in COMMANDS.items():
            self.tell(f"{usage:14} {meaning}")
        marks = [f"{MARKS[tick]} {meaning}" for tick, meaning in MEANINGS.items()]
        self.tell("ticks: " + ", ".join(marks))

    async def _quit(self, _: str) -> None:
        self.over.set()


@asynccontextmanager
async def joined(
    url: str,
    name: str,
    token: str,
    rooms: list[str],
    heartbeat: float,
    watcher: Watcher,
    *,
    http: str = "",
) -> AsyncIterator[Session]:
    """Connect, join the rooms, and leave them at the end; the first room is the current one.

    `http` is where the log is read, if the broker cannot tell; with `NO_PAST` it is not read.
    Raises RefusedError: `exists` if the broker or a room has somebody of that name already.
    """
    client = client_of(url, name, token)
    try:
        await opened(client, url)
    except ProtocolError as error:
        raise await diagnose(url, error) from None
    except RefusedError as error:
        if error.code in ("closed", "timeout", "unauthorized"):
            raise await diagnose(url, error) from None
        text = f"the broker does not take the name {name}: somebody has it, or it is not allowed"
        raise RefusedError("exists", text) from None
    try:
        past = None
        if http != NO_PAST:
            past = await asyncio.to_thread(Past.find, http or url, token)
        async with Member(client, name, watcher, heartbeat, past) as member:
            with _losses_reported_to(member):
                entered = [await member.enter(one) for one in rooms]
                if client.client_id not in ("", name):
                    text = f"the broker knows you as {client.client_id}: {client.dialect} has"
                    member.tell(entered[0], f"{text} rules for names that {name} does not meet")
                yield Session(member, entered[0])
    finally:
        await client.close()


@contextmanager
def _losses_reported_to(member: Member) -> Iterator[None]:
    """Send the client's log to the member, instead of onto the screen."""
    log, handler = logging.getLogger("wirelake.client"), LossHandler(member)
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate


class LossHandler(logging.Handler):
    """Tells a member that its client logged a lost connection or a retry."""

    def __init__(self, member: Member) -> None:
        super().__init__(logging.INFO)
        self._member = member

    def emit(self, record: logging.LogRecord) -> None:
        """Pass a log line on; the client logs in the event loop, so this runs there too."""
        self._member.lose(record.getMessage())
