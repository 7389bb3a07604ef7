"""A room of the chat, without a socket or a screen: what is said in it, and who is here.

A room is a topic, and what people say is published there. All else (who comes, is here, goes, and
what has been shown) goes to `<room>/$chat`, so that a plain subscriber of the room hears only talk.
Not every dialect delivers an address or a sender, so every message says all of it, in one line:

    chat/1 say lobby alice 5f0c21aa.17 hello, everybody

that is: the form, the kind, the room, the name, the id, the text. An id is the member's own, made
anew whenever they start, then for talk a dot and a number. What is not in this form was sent by a
plain client, and is talk of an unknown sender. A body has at most 1000 bytes: mfp has no more.

A member is here as long as there are signs of life: each says when to expect the next, and whoever
misses three in a row has gone. Everything is bounded, as a peer may send anything.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum, StrEnum

from wirelake.address import check_topic
from wirelake.errors import ConfigError, RefusedError

FORM = "chat/1"
#: mfp's bodies and option values have no more bytes.
MAX_BODY, MAX_TOPIC = 1000, 128
#: A name is a connection-id of mfp, which counts UTF-16 code units.
MAX_NAME = 32
ASIDE = "/$chat"

HISTORY = 1000
MAX_MEMBERS = 500
REMEMBERED_IDS = 4 * HISTORY
MAX_PIECES = 5

#: Seconds between two signs of life; what others may claim; and how many may be missing.
HEARTBEAT = 10.0
HEARTBEATS = (0.1, 60.0)
MISSING = 3

_ID = re.compile(r"[0-9A-Za-z]{1,16}(\.[0-9]{1,9})?")
#: Invisible, but part of how words and emoji are written.
_JOINERS = "\u200c\u200d"


class Kind(StrEnum):
    """What a message of the chat is for."""

    SAY = "say"
    ME = "me"  # what somebody does: /me waves
    WHO = "who"  # whoever is here, say so
    JOIN = "join"  # the same, and: I am here now
    HERE = "here"  # a sign of life; the text is the seconds until the next
    LEAVE = "leave"
    SEEN = "seen"  # the text is ids of what somebody has been shown


TALK = frozenset({Kind.SAY, Kind.ME})


@dataclass(frozen=True, slots=True)
class Note:
    """One message of the chat."""

    kind: Kind
    room: str
    name: str
    id: str
    text: str = ""

    @property
    def member(self) -> str:
        """The id of the member who sent it."""
        return self.id.partition(".")[0]

    @property
    def address(self) -> str:
        """Where it is published."""
        return self.room if self.kind in TALK else self.room + ASIDE

    def body(self) -> bytes:
        """The payload that says it."""
        return f"{FORM} {self.kind} {self.room} {self.name} {self.id} {self.text}".encode()


def read(payload: bytes, address: str = "") -> Note | None:
    """The note in a payload; none if it is not in our form, or not from where it claims to be."""
    try:
        form, kind, room, name, id, text = payload.decode().split(" ", 5)
        note = Note(Kind(kind), room, name, id, clean(text))
    except ValueError:  # too few words, no such kind, not UTF-8
        return None
    if form != FORM or not _ID.fullmatch(id) or _fault_of_name(name) or _fault_of_room(room):
        return None
    return note if address in ("", note.address) else None


def clean(text: str) -> str:
    """Text that cannot move the cursor, ring the bell or turn the line around."""
    return "".join(c if c.isprintable() or c in _JOINERS else " " for c in text)


def pieces(note: Note) -> list[str]:
    """The text of a note, cut at spaces where it is too long for one body."""
    room = MAX_BODY - len(note.body()) + len(note.text.encode())
    text, found = note.text, []
    while len(data := text.encode()) > room:
        head = data[:room].decode(errors="ignore")
        space = head.rfind(" ")
        cut = space if space > len(head) // 2 else len(head)
        found.append(head[:cut])
        text = text[cut:].lstrip(" ")
    found.append(text)
    if len(found) > MAX_PIECES:
        raise RefusedError("too_large", f"a message has at most {MAX_PIECES * room} bytes here")
    return found


def check_name(name: str) -> str:
    """The name, if it is one; ConfigError says what is wrong with it."""
    if fault := _fault_of_name(name):
        raise ConfigError("name", fault)
    return name


def check_room(name: str) -> str:
    """The name of a room, without the `#` that people put in front of it."""
    name = name.removeprefix("#")
    if fault := _fault_of_room(name):
        raise ConfigError("room", fault)
    return name


def _fault_of_name(name: str) -> str:
    if not name.isprintable() or not name or any(c in name for c in " :,@"):
        return "has no spaces, and no : , or @"
    if len(name.encode("utf-16-be")) // 2 > MAX_NAME:
        return f"has at most {MAX_NAME} characters"
    return ""


def _fault_of_room(name: str) -> str:
    if not name.isprintable() or not name or any(c in name for c in " |"):
        return "has no spaces and no |"
    if len(name.encode()) > MAX_TOPIC - len(ASIDE):
        return f"has at most {MAX_TOPIC - len(ASIDE)} bytes"
    if name.endswith(ASIDE):
        return f"does not end with {ASIDE}"
    try:
        check_topic(name)
    except RefusedError as error:
        return error.text
    return ""


class Tick(IntEnum):
    """What is known of a message of our own; it only grows, unless the message failed."""

    FAILED = -1
    WAITING = 0  # for a connection
    HANDED = 1  # to the connection
    BACK = 2  # it came back to us, so the broker has passed it on
    TAKEN = 3  # the broker has acknowledged it
    SEEN = 4  # another member has been shown it


MARKS = {
    Tick.FAILED: "✗",
    Tick.WAITING: "…",
    Tick.HANDED: "✓",
    Tick.BACK: "✓↩",
    Tick.TAKEN: "✓✓",
    Tick.SEEN: "✓✓✓",
}


@dataclass(eq=False, slots=True)
class Entry:
    """A line of a room's history."""

    at: datetime
    kind: Kind | None  # SAY or ME; none is a notice of the chat itself
    text: str
    name: str = ""  # of whoever said it; empty where nobody knows
    id: str = ""
    tick: Tick | None = None  # for what we said ourselves
    why: str = ""  # it failed

    def reach(self, tick: Tick) -> bool:
        """Note what is now known of it; is that news?"""
        if self.tick is None or (tick <= self.tick and tick is not Tick.WAITING):
            return False
        if tick is Tick.WAITING and self.tick is not Tick.HANDED:
            return False
        self.tick, self.why = tick, ""
        return True

    def fail(self, why: str) -> bool:
        """It was refused, or could not be sent; unless we know better."""
        if self.tick not in (Tick.WAITING, Tick.HANDED):
            return False
        self.tick, self.why = Tick.FAILED, why
        return True


@dataclass(slots=True)
class Presence:
    """Somebody who is here, as long as there are signs of life."""

    name: str
    until: float


class Room:
    """What was said since we came, and who is here; times are arguments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: deque[Entry] = deque(maxlen=HISTORY)
        self.unread = 0
        self.is_mentioned = False  # in what is unread
        self.members: dict[str, Presence] = {}
        self._silent: dict[str, str] = {}  # names of those who went without a word
        self._ids: dict[str, Entry] = {}

    def names(self) -> list[str]:
        """Who is here, in order."""
        return sorted((one.name for one in self.members.values()), key=str.casefold)

    def add(self, entry: Entry) -> bool:
        """Put an entry into the history; not twice, if it was sent twice."""
        if entry.id:
            if entry.id in self._ids:
                return False
            self._ids[entry.id] = entry
            while len(self._ids) > REMEMBERED_IDS:
                del self._ids[next(iter(self._ids))]
        self.entries.append(entry)
        return True

    def find(self, id: str) -> Entry | None:
        """The entry of an id, if it was not long ago."""
        return self._ids.get(id)

    def arrive(self, note: Note, now: float) -> str:
        """Somebody shows a sign of life; what there is to tell about it."""
        until = now + MISSING * _interval(note)
        known = self.members.get(note.member)
        if known is None:
            if len(self.members) >= MAX_MEMBERS:
                return ""
            self.members[note.member] = Presence(note.name, until)
            if self._silent.pop(note.member, None) is not None:
                return f"{note.name} is back"
            return f"{note.name} joined" if note.kind is Kind.JOIN else ""
        known.until = until
        old, known.name = known.name, note.name
        return f"{old} is now {note.name}" if old != note.name else ""

    def depart(self, note: Note) -> str:
        """Somebody leaves; what there is to tell about it."""
        self._silent.pop(note.member, None)
        known = self.members.pop(note.member, None)
        return f"{known.name} left" if known else ""

    def miss(self, now: float) -> list[str]:
        """Those who have been silent for too long are not here any more."""
        gone = [id for id, one in self.members.items() if one.until < now]
        notices = []
        for id in gone:
            name = self.members.pop(id).name
            self._silent[id] = name
            if len(self._silent) > MAX_MEMBERS:
                del self._silent[next(iter(self._silent))]
            notices.append(f"{name} has gone without a word")
        return notices


def _interval(note: Note) -> float:
    """When the next sign of life is due; nobody may be here for ever without one."""
    least, most = HEARTBEATS
    try:
        return min(max(least, float(note.text)), most)  # in this order, nan is the least
    except ValueError:
        return HEARTBEAT


def mentions(text: str, name: str) -> bool:
    """Is somebody called by name?"""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None
