"""Members without a person: they come and go, talk at a human pace, and answer who calls them.

What they say is picked from short conversations: an opening, and what others may answer to it. A
bot answers when it is called by name; a person always, another bot not every time, so that no two
of them go on for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

import typer

from wirelake.cli.chat.member import Member, client_of
from wirelake.cli.chat.room import Entry, Room, mentions
from wirelake.errors import WirelakeError

NAMES = (
    "Agnes", "Boris", "Chiara", "Dimitri", "Elodie", "Fatima", "Gustav", "Hanna", "Ingrid", "Jorge",
    "Kenji", "Leila", "Marlow", "Nadia", "Oscar", "Priya", "Quentin", "Rosalind", "Stefan",
    "Tamsin", "Ulrich", "Vera", "Wendell", "Ximena", "Yusuf", "Zora",
)  # fmt: skip

#: Openings, and what may be answered to each.
TALKS = (
    ("morning everybody", ("morning!", "hello {}", "morning {}, slept well?", "hi there")),
    (
        "has anyone looked at the sensor in hall 3?",
        ("not yet {}, after lunch", "it was fine an hour ago", "I can go, {}", "what is it doing?"),
    ),
    (
        "the coffee machine is out again",
        ("again?!", "tea it is, then", "{} you drank the last one", "I called them"),
    ),
    (
        "numbers for last night look good",
        ("nice", "thanks for checking, {}", "even hall 3?", "good to hear"),
    ),
    (
        "who is coming along for lunch?",
        ("me", "in ten minutes, {}?", "have to finish this first", "where to?"),
    ),
    (
        "deploying the new gateway now",
        ("good luck {}", "fingers crossed", "on a Friday, {}?", "watching the queue"),
    ),
    (
        "does somebody still use the old mfp box?",
        ("I do, {}", "it just works", "let it live", "the chat runs on it, no?"),
    ),
    (
        "train is late, back in a bit",
        ("no hurry {}", "same here", "which line?", "safe travels"),
    ),
)
REPLIES = (
    "yes {}?", "good question, {}", "I think so", "let me have a look, {}", "not sure, {}", "maybe",
    "ha, {}", "right", "one moment, {}", "I was about to say the same, {}", "ok {}, will do",
)  # fmt: skip

#: Answers: to a bot that calls, and to an opening, this often.
TO_BOTS, TO_OPENINGS = 0.5, 0.15
#: Seconds: to read what was said, to type a character, to be here, to be away (the last two on
#: the average).
READING = (0.8, 3.0)
TYPING = 0.06
STAY, AWAY = 240.0, 20.0
#: They do not all come at once: one every so many seconds.
ARRIVAL = 0.3


@dataclass
class Crowd:
    """How the bots are to behave, and what they did."""

    url: str
    rooms: list[str]  # shared out among them
    token: str
    heartbeat: float
    rate: float  # messages a minute, of each
    stay: float = STAY
    away: float = AWAY
    names: list[str] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)

    def tell(self, text: str) -> None:
        """One line on standard output."""
        typer.echo(f"{datetime.now().astimezone():%H:%M:%S} {text}")

    def summary(self) -> str:
        """What they did, in one line."""
        did = self.did
        return (
            f"{len(self.names)} bots: {did['joined']} joins, {did['left']} leaves, "
            f"{did['said']} messages said ({did['answers']} of them answers), {did['heard']} heard"
        )


class Bot:
    """One of them; the watcher of its own member."""

    def __init__(self, name: str, crowd: Crowd) -> None:
        self._name = name
        self._crowd = crowd
        self._answers: asyncio.Queue[str] = asyncio.Queue(3)  # nobody answers a flood
        self._end: asyncio.Future[None] | None = None

    async def live(self) -> None:
        """Come, talk, leave, come back, until cancelled."""
        while True:
            try:
                await self._visit()
            except WirelakeError as error:
                self._crowd.tell(f"{self._name} cannot be here: {error}")
                self._crowd.did["failures"] += 1
            await asyncio.sleep(random.expovariate(1 / self._crowd.away))

    async def _visit(self) -> None:
        crowd = self._crowd
        async with (
            client_of(crowd.url, self._name, crowd.token) as client,
            Member(client, self._name, self, crowd.heartbeat) as member,
        ):
            self._end = asyncio.get_running_loop().create_future()
            place = crowd.names.index(self._name) % len(crowd.rooms)
            room = await member.enter(crowd.rooms[place])
            crowd.tell(f"{self._name} joined #{room.name}")
            crowd.did["joined"] += 1
            tasks = [
                asyncio.create_task(self._talk(member, room)),
                asyncio.create_task(self._answer(member, room)),
            ]
            try:
                stay = random.expovariate(1 / crowd.stay)
                await asyncio.wait([self._end, *tasks], timeout=stay, return_when="FIRST_COMPLETED")
                for one in (self._end, *tasks):
                    if one.done():
                        await one
            finally:
                # Before anything is awaited: all of them may be told to go at this very moment.
                crowd.tell(f"{self._name} left")
                crowd.did["left"] += 1
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _talk(self, member: Member, room: Room) -> None:
        while True:
            await asyncio.sleep(random.expovariate(self._crowd.rate / 60))
            text = random.choice(TALKS)[0]
            if (others := room.names()) and random.random() < 0.3:
                text = f"{random.choice(others)}: {text}"
            await self._say(member, room, text)

    async def _answer(self, member: Member, room: Room) -> None:
        while True:
            text = await self._answers.get()
            await asyncio.sleep(random.uniform(*READING))
            await self._say(member, room, text)
            self._crowd.did["answers"] += 1

    async def _say(self, member: Member, room: Room, text: str) -> None:
        await asyncio.sleep(TYPING * len(text))
        await member.say(room, text)
        self._crowd.did["said"] += 1

    # The watcher

    def is_watching(self, room: Room) -> bool:
        """A bot reads everything."""
        return True

    def added(self, room: Room, entry: Entry) -> None:
        """Somebody said something: is there an answer to it?"""
        if entry.kind is None or entry.tick is not None:
            return
        self._crowd.did["heard"] += 1
        answer = self._answer_to(entry.text, entry.name or "you")
        if answer:
            with suppress(asyncio.QueueFull):
                self._answers.put_nowait(answer)

    def _answer_to(self, text: str, name: str) -> str:
        possible = next((answers for opening, answers in TALKS if opening in text), ())
        if mentions(text, self._name):
            if name in self._crowd.names and random.random() > TO_BOTS:
                return ""
            return random.choice(possible or REPLIES).format(name)
        if possible and random.random() < TO_OPENINGS:
            return random.choice(possible).format(name)
        return ""

    def ticked(self, room: Room, entry: Entry) -> None:
        """A bot does not look at its ticks, except that it counts what failed."""
        if entry.why:
            self._crowd.did["failures"] += 1

    def stirred(self) -> None:
        """A bot does not mind who comes and goes."""

    def ended(self, error: WirelakeError) -> None:
        """The connection will not come back, until the bot does."""
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)


def names(count: int) -> list[str]:
    """So many names; when they run out, they are numbered."""
    rounds = (f"{name}{number or ''}" for number in range(count) for name in NAMES)
    return [name for name, _ in zip(rounds, range(count), strict=False)]


async def run(crowd: Crowd, count: int, duration: float) -> None:
    """Let them live, for so many seconds or until cancelled."""
    crowd.names = names(count)
    tasks = []

    async def arrive() -> None:
        for name in crowd.names:
            tasks.append(asyncio.create_task(Bot(name, crowd).live()))
            await asyncio.sleep(ARRIVAL)
        await asyncio.gather(*tasks)

    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(duration or None):
                await arrive()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        typer.echo(crowd.summary())
