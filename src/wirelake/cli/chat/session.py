"""What a person at a keyboard does in the chat: talk in the room in front, and the commands.

A line that begins with `/` is a command, with `//` it is talk that begins with `/`. What a command
has to say is a notice in the room in front.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from wirelake.cli.chat.member import Member
from wirelake.cli.chat.room import MARKS, Kind, Room, Tick, check_name, check_room
from wirelake.errors import WirelakeError

COMMANDS = {
    "/join ROOM": "go into a room, or to one you are in",
    "/leave [ROOM]": "leave this room, or another",
    "/rooms": "the rooms you are in",
    "/who": "who is here",
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
    """One person's chat: the member, and the room in front."""

    def __init__(self, member: Member, room: Room) -> None:
        self.member = member
        self.turn_to(room)
        self.over = asyncio.Event()
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "/join": self._join,
            "/leave": self._leave,
            "/rooms": self._rooms,
            "/who": self._who,
            "/nick": self._nick,
            "/me": self._me,
            "/help": self._help,
            "/quit": self._quit,
        }

    async def type(self, line: str) -> None:
        """Do what a line says."""
        line = line.strip()
        try:
            if line.startswith("/") and not line.startswith("//"):
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
        """A notice in the room in front."""
        self.member.tell(self.room, text)

    def turn_to(self, room: Room) -> None:
        """Bring a room to the front."""
        self.room = room
        self.member.look_at(room)

    def turn(self, step: int) -> None:
        """Bring the next room to the front, or the one before."""
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
        rooms = self.member.rooms.values()
        self.tell("rooms: " + ", ".join(f"#{one.name} ({one.unread} unread)" for one in rooms))

    async def _who(self, _: str) -> None:
        others = self.room.names()
        here = ", ".join([f"{self.member.name} (you)", *others])
        self.tell(f"{len(others) + 1} here: {here}")

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
