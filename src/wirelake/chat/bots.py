"""Bots for the chat: they join and leave, talk at a human pace, and answer when called by name.

They pick what to say from short conversations: an opening, and possible answers to it. A bot always
answers a person who calls it, but another bot only sometimes, so that no dialogue is endless.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from wirelake.chat.member import Member, client_of
from wirelake.chat.room import Entry, Room, mentions
from wirelake.errors import WirelakeError

NAMES = (
    "Agnes", "Boris", "Chiara", "Dimitri", "Elodie", "Fatima", "Gustav", "Hanna", "Ingrid", "Jorge",
    "Kenji", "Leila", "Marlow", "Nadia", "Oscar", "Priya", "Quentin", "Rosalind", "Stefan",
    "Tamsin", "Ulrich", "Vera", "Wendell", "Ximena", "Yusuf", "Zora",
)  # fmt: skip

#: Openings, and possible answers to each.
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

#: Probability of an answer to a bot that calls, and to an opening.
TO_BOTS, TO_OPENINGS = 0.5, 0.15
#: Seconds: to read a message (range), to type a character, to stay and to be away (means).
READING = (0.8, 3.0)
TYPING = 0.06
STAY, AWAY = 240.0, 20.0
#: Seconds between the arrivals of two bots.
ARRIVAL = 0.3


@dataclass
class Crowd:
    """How the bots behave, and counts of what they did."""

    url: str
    rooms: list[str]  # distributed among the bots
    token: str
    heartbeat: float
    rate: float  # messages a minute, of each bot
    tell: Callable[[str], None]  # called when a bot joins, leaves or fails
    stay: float = STAY
    away: float = AWAY
    names: list[str] = field(default_factory=list)
    did: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        """The counts, in one line."""
        did = self.did
        return (
            f"{len(self.names)} bots: {did['joined']} joins, {did['left']} leaves, "
            f"{did['said']} messages said ({did['answers']} of them answers), {did['heard']} heard"
        )


class Bot:
    """A bot; the watcher of its own member."""

    def __init__(self, name: str, crowd: Crowd) -> None:
        self._name = name
        self._crowd = crowd
        self._answers: asyncio.Queue[str] = asyncio.Queue(3)  # nobody answers a flood
        self._end: asyncio.Future[None] | None = None

    async def live(self) -> None:
        """Join, talk, leave and come back, until cancelled."""
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
                # Before the first await: all bots may be cancelled at this moment.
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
        """Always: a bot reads each message."""
        return True

    def added(self, room: Room, entry: Entry) -> None:
        """Queue an answer, if there is one."""
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
        """Count messages that failed."""
        if entry.why:
            self._crowd.did["failures"] += 1

    def stirred(self) -> None:
        """Nothing to do."""

    def ended(self, error: WirelakeError) -> None:
        """End this visit; the bot comes back later."""
        if self._end is not None and not self._end.done():
            self._end.set_exception(error)


def names(count: int) -> list[str]:
    """The first `count` names; they are numbered when they run out."""
    rounds = (f"{name}{number or ''}" for number in range(count) for name in NAMES)
    return [name for name, _ in zip(rounds, range(count), strict=False)]


async def run(crowd: Crowd, count: int, duration: float) -> None:
    """Run `count` bots for `duration` seconds, or until cancelled if that is 0."""
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
