"""The chat protocol and the state of one room. No sockets, no screen; times are arguments.

A room is a topic, and talk is published to it. Presence and read receipts go to `<room>/$chat`, so
that a plain subscriber of the room gets only talk. Some dialects deliver neither the address nor
the sender, so each message carries both, in one line:

    chat/1 say lobby alice 5f0c21aa.17 hello, everybody

The words are: format, kind, room, name, id, text. An id is the member's own, new at each start; for
talk it is followed by a dot and a sequence number. A payload in any other format is shown as talk
of an unknown sender. A body has at most 1,000 bytes, which is the limit of mfp; lines of a text are
separated by U+2028. A message to one member goes to `<room>/$chat/<member>`, and its text begins
with the member's id.

Members send heartbeats, and each heartbeat says when the next one is due, and the sender's dialect.
A member is removed after three missed heartbeats. All state is bounded, because a peer may send
anything.
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
#: Bytes; the limits of bodies and option values in mfp.
MAX_BODY, MAX_TOPIC = 1000, 128
#: Bytes of a name, which is a client id where the dialect can say it; of a member's id.
MAX_NAME, MAX_ID = 255, 16
ASIDE = "/$chat"
MAX_ROOM = MAX_TOPIC - len(ASIDE) - 1 - MAX_ID
#: What separates the lines of a text, and the most lines of one.
BREAK = "\u2028"
MAX_LINES = 50
#: Characters of a plain client's message, and of a member's dialect.
MAX_SHOWN, MAX_DIALECT = 2000, 32

HISTORY = 1000
MAX_MEMBERS = 500
REMEMBERED_IDS = 4 * HISTORY
MAX_PIECES = 5

#: Seconds between heartbeats; the range that a peer may announce; how many may be missed.
HEARTBEAT = 10.0
HEARTBEATS = (0.1, 60.0)
MISSING = 3

_ID = re.compile(r"[0-9A-Za-z]{1,16}(\.[0-9]{1,9})?")
#: Not printable, but needed to write some words and emoji.
_JOINERS = "\u200c\u200d"


class Kind(StrEnum):
    """What a message of the chat is for."""

    SAY = "say"
    ME = "me"  # what somebody does: /me waves
    WHO = "who"  # asks all members for a heartbeat
    JOIN = "join"  # announces a member, and asks as WHO does
    HERE = "here"  # a heartbeat; the text is the seconds until the next one
    LEAVE = "leave"
    SEEN = "seen"  # a read receipt; the text is message ids
    MSG = "msg"  # to one member; the text is its id, then what is said
    TOPIC = "topic"  # the text is when it was set (ms since 1970), by whom, and the topic


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
        """The sender's id."""
        return self.id.partition(".")[0]

    @property
    def address(self) -> str:
        """The topic to publish it to."""
        if self.kind is Kind.MSG:
            return f"{self.room}{ASIDE}/{self.text.partition(' ')[0]}"
        return self.room if self.kind in TALK else self.room + ASIDE

    def body(self) -> bytes:
        """The payload that carries it."""
        return f"{FORM} {self.kind} {self.room} {self.name} {self.id} {self.text}".encode()


def read(payload: bytes, address: str = "") -> Note | None:
    """Parse a payload; None if the format is another one, or it names another address."""
    try:
        form, kind, room, name, id, text = payload.decode().split(" ", 5)
        note = Note(Kind(kind), room, name, id, clean(text))
    except ValueError:  # too few words, no such kind, not UTF-8
        return None
    if form != FORM or not _ID.fullmatch(id) or _fault_of_name(name) or _fault_of_room(room):
        return None
    return note if address in ("", note.address) else None


def clean(text: str) -> str:
    """Text with spaces for characters that could control a terminal or turn the line around.

    Ends of lines become BREAK, up to MAX_LINES of them.
    """
    lines = text.replace("\r\n", "\n").replace(BREAK, "\n").split("\n")
    if len(lines) > MAX_LINES:
        lines[MAX_LINES - 1 :] = [" ".join(lines[MAX_LINES - 1 :])]
    return BREAK.join(
        "".join(c if c.isprintable() or c in _JOINERS else " " for c in line) for line in lines
    )


def plain_text(payload: bytes) -> str:
    """What a plain client says, cut where it is very long; empty if it is nothing."""
    text = clean(payload[: 4 * MAX_SHOWN].decode(errors="replace")).strip(f" {BREAK}")
    return text[:MAX_SHOWN] + "…" if len(text) > MAX_SHOWN else text


def pieces(note: Note, spare: int = 0) -> list[str]:
    """Split a note's text at spaces into parts that fit into a body each, with `spare` bytes left.

    Raises RefusedError if that makes more than MAX_PIECES.
    """
    room = MAX_BODY - spare - len(note.body()) + len(note.text.encode())
    text, found = note.text, []
    while len(data := text.encode()) > room:
        head = data[:room].decode(errors="ignore")
        space = max(head.rfind(" "), head.rfind(BREAK))
        cut = space if space > len(head) // 2 else len(head)
        found.append(head[:cut])
        text = text[cut:].removeprefix(BREAK).lstrip(" ")
    found.append(text)
    if len(found) > MAX_PIECES:
        raise RefusedError("too_large", f"a message has at most {MAX_PIECES * room} bytes here")
    return found


def check_name(name: str) -> str:
    """Return the name if it is valid, else raise ConfigError."""
    if fault := _fault_of_name(name):
        raise ConfigError("name", fault)
    return name


def check_room(name: str) -> str:
    """Return the room's name without a leading `#` if it is valid, else raise ConfigError."""
    name = name.removeprefix("#")
    if fault := _fault_of_room(name):
        raise ConfigError("room", fault)
    return name


def _fault_of_name(name: str) -> str:
    if not name.isprintable() or not name or any(c in name for c in " :,@"):
        return "has no spaces, and no : , or @"
    if len(name.encode()) > MAX_NAME:
        return f"has at most {MAX_NAME} bytes"
    return ""


def _fault_of_room(name: str) -> str:
    if not name.isprintable() or not name or any(c in name for c in " |"):
        return "has no spaces and no |"
    if len(name.encode()) > MAX_ROOM:
        return f"has at most {MAX_ROOM} bytes"
    if ASIDE in name:
        return f"has no {ASIDE} in it"
    try:
        check_topic(name)
    except RefusedError as error:
        return error.text
    return ""


class Tick(IntEnum):
    """Delivery state of a message of our own; it only advances, unless delivery failed."""

    FAILED = -1
    WAITING = 0  # for a connection
    HANDED = 1  # to the connection
    BACK = 2  # received by ourselves, so the broker has delivered it
    TAKEN = 3  # the broker has acknowledged it
    SEEN = 4  # acknowledged by another member's read receipt


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
    kind: Kind | None  # SAY, ME or MSG; none is a notice of the chat itself
    text: str
    name: str = ""  # of whoever said it; empty where nobody knows
    id: str = ""
    tick: Tick | None = None  # for what we said ourselves
    why: str = ""  # it failed
    to: str = ""  # the name of the one member it is for
    is_old: bool = False  # from the log, from before we joined

    def reach(self, tick: Tick) -> bool:
        """Advance to a state; True if it changed."""
        if self.tick is None or (tick <= self.tick and tick is not Tick.WAITING):
            return False
        if tick is Tick.WAITING and self.tick is not Tick.HANDED:
            return False
        self.tick, self.why = tick, ""
        return True

    def fail(self, why: str) -> bool:
        """Mark it as failed, unless it is known to be delivered; True if it changed."""
        if self.tick not in (Tick.WAITING, Tick.HANDED):
            return False
        self.tick, self.why = Tick.FAILED, why
        return True


@dataclass(slots=True)
class Presence:
    """Another member in the room, until its heartbeats stop."""

    name: str
    until: float
    dialect: str = ""


class Room:
    """The history, the topic, and the members."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.entries: deque[Entry] = deque(maxlen=HISTORY)
        self.unread = 0
        self.is_mentioned = False  # in what is unread
        self.new: Entry | None = None  # the first that was not read when it came
        self.topic = ""
        self.topic_at = 0  # ms since 1970
        self.topic_by = ""
        self.members: dict[str, Presence] = {}
        self._silent: dict[str, str] = {}  # names of members whose heartbeats stopped, by id
        self._ids: dict[str, Entry] = {}

    def names(self) -> list[str]:
        """Names of the other members, sorted."""
        return sorted((one.name for one in self.members.values()), key=str.casefold)

    def add(self, entry: Entry) -> bool:
        """Append an entry to the history; False if its id is there already."""
        if entry.id:
            if entry.id in self._ids:
                return False
            self._ids[entry.id] = entry
            while len(self._ids) > REMEMBERED_IDS:
                del self._ids[next(iter(self._ids))]
        self.entries.append(entry)
        return True

    def recall(self, entries: list[Entry]) -> None:
        """Put what was said before we joined in front of the history; what is there stays once."""
        known = [one for one in self.entries if one.id]
        wanted = [one for one in entries if not one.id or one.id not in self._ids]
        room = max(0, HISTORY - len(self.entries))
        wanted = wanted[len(wanted) - room :] if room < len(wanted) else wanted
        self.entries = deque([*wanted, *self.entries], maxlen=HISTORY)
        self._ids = {one.id: one for one in [*wanted, *known] if one.id}

    def set_topic(self, note: Note, now: int) -> str:
        """Take the topic that a note tells, if it is newer; returns a notice, or an empty string.

        A time in the future counts as now, else one such note would stay for ever.
        """
        at, _, rest = note.text.partition(" ")
        by, _, text = rest.partition(" ")
        if not at.isascii() or not at.isdigit() or len(at) > 16 or _fault_of_name(by):
            return ""
        moment = min(int(at), now)
        if moment <= self.topic_at:
            return ""
        self.topic, self.topic_at, self.topic_by = text.strip(f" {BREAK}"), moment, by
        return f"{by} set the topic: {self.topic}" if self.topic else f"{by} removed the topic"

    def member_called(self, name: str) -> str | None:
        """The id of the member with this name, None if there is none."""
        wanted = name.casefold()
        return next((id for id, one in self.members.items() if one.name.casefold() == wanted), None)

    def find(self, id: str) -> Entry | None:
        """The entry with an id, or None if there is none or it is too old."""
        return self._ids.get(id)

    def arrive(self, note: Note, now: float) -> str:
        """Record a heartbeat; returns a notice, or an empty string."""
        until = now + MISSING * _interval(note)
        known = self.members.get(note.member)
        if known is None:
            if len(self.members) >= MAX_MEMBERS:
                return ""
            self.members[note.member] = Presence(note.name, until, _dialect(note))
            if self._silent.pop(note.member, None) is not None:
                return f"{note.name} is back"
            return f"{note.name} joined" if note.kind is Kind.JOIN else ""
        known.until = until
        old, known.name = known.name, note.name
        return f"{old} is now {note.name}" if old != note.name else ""

    def depart(self, note: Note) -> str:
        """Remove a member; returns a notice, or an empty string."""
        self._silent.pop(note.member, None)
        known = self.members.pop(note.member, None)
        return f"{known.name} left" if known else ""

    def miss(self, now: float) -> list[str]:
        """Remove members whose heartbeats stopped; returns a notice for each."""
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
    """Seconds until the next heartbeat is due, within the limits."""
    least, most = HEARTBEATS
    try:
        return min(max(least, float(note.text.partition(" ")[0])), most)  # nan is the least
    except ValueError:
        return HEARTBEAT


def _dialect(note: Note) -> str:
    """The dialect that a member says it speaks; empty if it says none."""
    return note.text.partition(" ")[2].strip()[:MAX_DIALECT]


def mentions(text: str, name: str) -> bool:
    """Whether a text has a name in it, as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text, re.IGNORECASE) is not None
