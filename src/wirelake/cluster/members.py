"""Who is in the cluster: heartbeats, and which nodes are alive by this node's own clock.

Every member sends a heartbeat to all others every `Timing.beat` seconds over core NATS. Nothing
here needs JetStream, whose elections last for seconds. The rules:

1. A member is alive if a heartbeat of it came within the last `Timing.dead` seconds, measured by
   this node's monotonic clock. No clock is compared with another node's.
2. A heartbeat that is older than the latest one of the same process is ignored.
3. A process that starts again under its old name has a new `life`, so it is another member.
4. A member that says that it leaves is gone at once.
5. Where this node itself did not run for a while (SIGSTOP, a suspended machine), the silence of the
   others proves nothing: they get the time that was missed.
6. A node hears its own heartbeats, too. One that does not is *deaf*: it cannot tell who is alive.
7. Of two processes with one name the younger gives way, once it has heard two heartbeats of the
   other's in a row. Where both started within one beat, both may.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated

import msgspec
from msgspec import Meta, structs

from wirelake.errors import RefusedError

#: Members that a cluster has at most, unless told otherwise.
MAX_MEMBERS = 256
#: Bytes that a heartbeat has at most.
MAX_HEARTBEAT = 64 << 10
#: Events that wait to be taken; the oldest go first.
MAX_EVENTS = 1000


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of a cluster, in seconds. They must be the same on all nodes."""

    #: Between two heartbeats of a member.
    beat: float = 0.5
    #: A member that was silent for this long is dead.
    dead: float = 2.0
    #: An owner may answer reads this long after it sent an append that became durable.
    lease: float = 1.0
    #: What a new owner waits beyond the lease of the old one, as a part of it: no two clocks run
    #: equally fast.
    drift: float = 0.25

    @property
    def wait(self) -> float:
        """How long a new owner waits for the lease of the old one to run out."""
        return self.lease * (1 + self.drift)


#: A name that can be part of a subject of NATS, see `bus.check_name`.
_Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,64}\Z")]
_Word = Annotated[str, Meta(max_length=64)]
_Url = Annotated[str, Meta(max_length=1024)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


class Heartbeat(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What a member tells the others of itself. A field that a reader does not know is ignored.

    Whoever may publish in NATS can send one, so what is read has limits.
    """

    node: _Name
    #: Tells this process from others of the same name.
    life: _Word
    #: Counts the heartbeats of a life, from 1.
    number: _Count = 0
    #: How long this process has run, in seconds.
    age: Annotated[float, Meta(ge=0, le=1e12)] = 0.0
    version: _Word = ""
    #: The newest format of the journal's records that it reads, see `journal.record`.
    format: _Count = 0
    #: A hash of tokens and limits, see `hash_settings`.
    settings: _Word = ""
    #: Where clients reach it.
    http: _Url = ""
    listeners: tuple[_Url, ...] = ()
    #: The partitions that it serves.
    owned: tuple[_Count, ...] = ()
    #: Bytes by which its copies of others' partitions are behind.
    lag: dict[int, int] = {}
    #: The revision of the table of owners that it has read.
    revision: _Count = 0
    #: It gives its partitions away and takes no new ones.
    draining: bool = False
    #: It does not hear itself.
    deaf: bool = False
    #: It stops: this is its last heartbeat.
    leaving: bool = False


@dataclass(slots=True)
class Member:
    """Another node, or this one."""

    heartbeat: Heartbeat
    #: When it was first and last heard in this life, by the clock of this node.
    since: float
    heard: float

    @property
    def is_willing(self) -> bool:
        """Whether it takes partitions."""
        said = self.heartbeat
        return not (said.draining or said.deaf or said.leaving)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that operators are told."""

    kind: str
    node: str
    text: str


_decoder = msgspec.json.Decoder(Heartbeat)


class Members:
    """The members as one node sees them. Time is told to it, on a clock that only goes forward."""

    def __init__(
        self,
        me: Heartbeat,
        now: float,
        timing: Timing = Timing(),  # noqa: B008 - immutable
        *,
        most: int = MAX_MEMBERS,
    ) -> None:
        self.me = me
        self.timing = timing
        self.most = most
        self.started = now
        #: True once an older process with the same name was heard: this one must stop.
        self.is_second = False
        self.refused = 0  # heartbeats that could not be read, or came from too many members
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self._members: dict[str, Member] = {me.node: Member(me, now, now)}
        self._gone: dict[str, str] = {}  # the lives that left, by name
        self._other: Heartbeat | None = None  # an older process with this node's name
        self._differing: dict[str, tuple[str, str, int]] = {}
        self._stepped = now

    def beat(self, **changes: object) -> bytes:
        """Return the next heartbeat of this node; `changes` are fields that have new values."""
        self.me = structs.replace(self.me, number=self.me.number + 1, **changes)
        self._members[self.me.node].heartbeat = self.me
        return msgspec.json.encode(self.me)

    def hear(self, data: bytes | memoryview, now: float) -> None:
        """Take a heartbeat in. One that cannot be read is counted, and changes nothing."""
        try:
            if len(data) > MAX_HEARTBEAT:
                raise RefusedError("too_large", f"a heartbeat has at most {MAX_HEARTBEAT} bytes")
            heartbeat = _decoder.decode(data)
            self._take(heartbeat, now)
        except (msgspec.MsgspecError, UnicodeDecodeError, RefusedError) as error:
            self.refused += 1
            if self.refused == 1:  # else whoever sends them would fill the list of events
                self._tell("bad_heartbeat", "?", f"a heartbeat was not taken: {error}")

    def _take(self, heartbeat: Heartbeat, now: float) -> None:
        name = heartbeat.node
        if name == self.me.node:
            self._take_own(heartbeat, now)
            return
        known = self._members.get(name)
        if self._gone.get(name) == heartbeat.life:
            return
        if known is not None and known.heartbeat.life == heartbeat.life:
            if heartbeat.number <= known.heartbeat.number:
                return
            known.heartbeat, known.heard = heartbeat, now
        elif heartbeat.leaving:
            self._remember_gone(heartbeat)
            return
        else:
            if known is None and len(self._members) >= self.most:
                raise RefusedError("busy", f"there are {self.most} members (cluster.members)")
            self._members[name] = Member(heartbeat, now, now)
            self._gone.pop(name, None)
            what = "joined" if known is None else "started again"
            self._tell("member_joined", name, f"{what}, version {heartbeat.version}")
        if heartbeat.leaving:
            del self._members[name]
            self._remember_gone(heartbeat)
            self._tell("member_left", name, "left as planned")
        else:
            self._compare(heartbeat)

    def _take_own(self, heartbeat: Heartbeat, now: float) -> None:
        if heartbeat.life == self.me.life:
            self._members[self.me.node].heard = now
        elif (heartbeat.age, heartbeat.life) > (self.me.age, self.me.life):
            # One may have been under way when this node's predecessor ended; two were not.
            other, self._other = self._other, heartbeat
            if other is not None and (other.life, other.number + 1) == (
                heartbeat.life,
                heartbeat.number,
            ):
                if not self.is_second:
                    self._tell("name_in_use", self.me.node, "another node has this name")
                self.is_second = True

    def _remember_gone(self, heartbeat: Heartbeat) -> None:
        """Remember a member that left, so that a late heartbeat does not bring it back."""
        self._gone.pop(heartbeat.node, None)
        self._gone[heartbeat.node] = heartbeat.life
        while len(self._gone) > self.most:
            del self._gone[next(iter(self._gone))]

    def _compare(self, heartbeat: Heartbeat) -> None:
        """Tell operators of a member whose settings or version differ from this node's, once."""
        theirs = heartbeat.settings, heartbeat.version, heartbeat.format
        if self._differing.get(heartbeat.node) == theirs:
            return
        self._differing[heartbeat.node] = theirs
        if heartbeat.settings != self.me.settings:
            text = "its tokens or limits differ from those of this node"
            self._tell("settings_differ", heartbeat.node, text)
        if (heartbeat.version, heartbeat.format) != (self.me.version, self.me.format):
            text = f"runs {heartbeat.version} with record format {heartbeat.format}"
            text += f", this node {self.me.version} with {self.me.format}"
            self._tell("versions_differ", heartbeat.node, text)

    def step(self, now: float) -> None:
        """Let time pass: forget the dead. Call it at least once every `Timing.beat` seconds."""
        slept = now - self._stepped - self.timing.beat
        if slept > self.timing.beat:
            for member in self._members.values():
                member.heard = min(now, member.heard + slept)
                member.since = min(now, member.since + slept)
            self.started += slept
        self._stepped = now
        for name, member in list(self._members.items()):
            silent = now - member.heard
            if silent > self.timing.dead and name != self.me.node:
                del self._members[name]
                self._differing.pop(name, None)
                self._tell("member_lost", name, f"silent for {silent:.1f} s")

    def alive(self) -> dict[str, Member]:
        """Return the members that are alive, this node among them, by name."""
        return self._members

    def is_deaf(self, now: float) -> bool:
        """Whether this node does not even hear itself, so that it cannot know who is alive."""
        return now - self._members[self.me.node].heard > self.timing.dead

    def is_settled(self, now: float) -> bool:
        """Whether this node has listened long enough to know who is alive."""
        return now - self.started > self.timing.dead and not self.is_deaf(now)

    def newest_revision(self) -> int:
        """Return the highest revision of the table of owners that any member has read."""
        return max(member.heartbeat.revision for member in self._members.values())

    def leave(self) -> bytes:
        """Return the last heartbeat of this node."""
        return self.beat(leaving=True, owned=())

    def _tell(self, kind: str, node: str, text: str) -> None:
        self.events.append(Event(kind, node, text))


def hash_settings(parts: Iterable[bytes]) -> str:
    """Return a short hash of tokens and limits, by which nodes notice that theirs differ.

    It is keyed by nothing and is cut to 64 bits: parts that are secret must be hashes themselves.
    """
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()
