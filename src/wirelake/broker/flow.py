"""Flow control: what happens when a client reads more slowly than the broker writes to it.

Bytes for a client wait in its outbox, which has a limit. While the outbox is full:

- Nothing more is read from the client itself. This bounds the answers to its own requests.
- For messages that others send to it, there is a policy per filter:

  - `disconnect` (the default): whoever sends to it waits, as TCP would make them, but for no more
    than `patience` seconds in any `window`; then the client is disconnected as a slow consumer.
    Several slow clients must not each cost a sender that much: once it has waited `patience` for
    all of them together, a quarter of it is enough to disconnect one.
  - `drop`: the newest messages are dropped, for this subscriber alone, and counted.
  - `pause`: nothing is lost and nobody is disconnected; publishers wait as long as it takes.

All outboxes share a budget. While they exceed it, an outbox is full at its fair share, and large
messages and large answers wait. If that lasts for a quarter of `patience`, the clients with the
largest outboxes are disconnected, first those that have read nothing since.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from wirelake.address import matches
from wirelake.broker.budget import Budget, Holder
from wirelake.broker.endpoint import Endpoint, Policy
from wirelake.broker.vitals import Vitals
from wirelake.message import Message

OUTBOX = 8 << 20
TOTAL = 256 << 20
PATIENCE = 2.0
WINDOW = 30.0

#: A message of more bytes is large: it needs room in the budget.
LARGE = 64 << 10
#: The least that is a fair share, and the fewest connections that share the budget.
LEAST_SHARE = 16 << 10
FEWEST = 16


@dataclass(eq=False, slots=True)
class _Backlog:
    """A full outbox: which senders wait for it, and since when."""

    since: float | None = None
    waiting: set[Endpoint] = field(default_factory=set)
    patient: bool = False  # some filter's policy is `pause`
    unwaited: bool = False  # something was sent by nobody who could wait


class Flow:
    """The outboxes that are full, and those who wait for them or for the budget."""

    def __init__(self, vitals: Vitals, sessions: Collection[Endpoint]) -> None:
        """`sessions` are all that there are, now and later."""
        self.outbox = OUTBOX
        self.patience = PATIENCE
        self.window = WINDOW
        self.policies: dict[str, Policy] = {}
        self.budget = Budget(TOTAL)
        #: The session whose read is being done: it waits for the outboxes that it fills.
        self.reading: Endpoint | None = None
        self._vitals = vitals
        self._sessions = sessions
        self._full: dict[Endpoint, _Backlog] = {}
        self._waits: dict[Endpoint, _Times] = {}  # for subscribers
        self._stops: dict[Endpoint, _Times] = {}  # of publishers
        self._starved: dict[Endpoint, int] = {}  # who waits for how much room in the budget
        self._pressed: float | None = None  # since when somebody has waited for the budget
        self._moved: dict[int, int] = {}  # how much each outbox had sent by then, by its id

    @property
    def limit(self) -> int:
        """The size in bytes beyond which an outbox is full."""
        return min(self.outbox, self._share()) if self.budget.is_exceeded else self.outbox

    def _share(self) -> int:
        return max(LEAST_SHARE, self.budget.most // max(FEWEST, len(self._sessions)))

    def policy_of(self, address: str) -> Policy:
        """Return the policy of the first filter that matches an address."""
        for filter, policy in self.policies.items():
            if matches(filter, address):
                return policy
        return "disconnect"

    def admits(self, member: Endpoint, count: int, policy: Policy) -> bool:
        """Return whether `count` messages may be written to a subscriber; count them if not."""
        if policy != "drop" or member.outgoing <= self.limit:
            return True
        self._vitals.count_dropped("slow_consumer", count)
        return False

    def overflowed(
        self, member: Endpoint, sender: Endpoint | None, policy: Policy, now: float
    ) -> None:
        """An outbox is full: read no more from the sender, nor from the client itself."""
        if policy == "drop":
            return
        backlog = self.hold_own(member, now)
        backlog.patient = backlog.patient or policy == "pause"
        if sender is not None and sender is not member and sender not in backlog.waiting:
            if backlog.since is None:
                backlog.since = now
            backlog.waiting.add(sender)
            sender.waits_for.add(member)
            sender.link.pause()
            self._stops.setdefault(sender, _Times()).begin(now)

    def hold_own(self, member: Endpoint, now: float) -> _Backlog:
        """Read no more from a client while its outbox is full."""
        backlog = self._full.get(member)
        if backlog is None:
            backlog = self._full[member] = _Backlog()
        if member not in member.waits_for and member.waits_for_itself:
            member.waits_for.add(member)
            member.link.pause()
        return backlog

    def push(self, member: Endpoint, message: Message, cause: Endpoint | None, now: float) -> None:
        """Send a notification that another client caused, who waits if the outbox is full.

        Where there is no such client, the receiver is disconnected once its outbox has been full
        for `patience`, and at once when the outbox has twice its limit.
        """
        if cause is not None and cause.closed:
            cause = None
        if cause is None and member.outgoing > self.limit:
            if member.outgoing > 2 * self.limit:
                self.disconnect(member, member.outgoing)
                return
            backlog = self.hold_own(member, now)
            backlog.unwaited = True
            if backlog.since is None:
                backlog.since = now
        member.send(message, "disconnect", cause)

    def drained(self, member: Endpoint, now: float) -> None:
        """A client's outbox has room again."""
        if backlog := self._full.pop(member, None):
            if backlog.since is not None:
                waits = self._waits.setdefault(member, _Times())
                waits.begin(backlog.since)
                waits.end(now)
            self._let_go(member, backlog, now)

    def _let_go(self, member: Endpoint, backlog: _Backlog, now: float) -> None:
        for sender in [member, *backlog.waiting]:
            sender.waits_for.discard(member)
            if not sender.waits_for and not sender.closed:
                if sender in self._stops:
                    self._stops[sender].end(now)
                sender.link.resume()

    def left(self, session: Endpoint, now: float) -> None:
        """A session has ended, whether it was waited for or waiting."""
        self._waits.pop(session, None)
        self._stops.pop(session, None)
        self._starved.pop(session, None)
        if backlog := self._full.pop(session, None):
            self._let_go(session, backlog, now)
        for member in session.waits_for:
            if member in self._full:
                self._full[member].waiting.discard(session)
        session.waits_for.clear()

    def tick(self, now: float) -> None:
        """Disconnect those that others have waited for too long, and relieve the budget."""
        self.budget.look()
        for member, backlog in list(self._full.items()):
            if member.outgoing <= self.limit // 2:
                self.drained(member, now)
            elif not backlog.patient and self._is_too_slow(member, backlog, now):
                self.disconnect(member, member.outgoing)
        if not self._starved and not self.budget.is_exceeded:
            self._pressed = None
        elif self._pressed is None:
            self._pressed = now
            self._moved = {id(holder): holder.moved for holder in self.budget.holders}
        elif now - self._pressed > self.patience / 4:
            self._pressed = None
            self._evict()
        self.relieve()

    def _is_too_slow(self, member: Endpoint, backlog: _Backlog, now: float) -> bool:
        """Return whether senders have waited too long for this client, or for it among others."""
        since = now - self.window
        is_awaited = backlog.since is not None and (backlog.waiting or backlog.unwaited)
        waited = now - backlog.since if is_awaited and backlog.since is not None else 0.0
        if member in self._waits:
            waited += self._waits[member].total(since, now)
        stopped = (self._stops[one].total(since, now) for one in backlog.waiting)
        most = self.patience
        return waited > most or (waited > most / 4 and max(stopped, default=0.0) > most)

    def disconnect(self, session: Endpoint, buffered: int, reason: str = "") -> None:
        """Disconnect a client that others have waited for too long."""
        session.lost("slow consumer")
        session.link.abort()
        self._vitals.counters["slow_consumers"] += 1
        text = f"disconnected with {buffered} bytes unread"
        text = f"{text}: {reason}" if reason else text
        self._vitals.event("slow_consumer", repr(session), text)

    # The budget

    def starve(self, session: Endpoint, size: int) -> None:
        """Read no more from a client until the budget has room for `size` bytes."""
        self._starved[session] = size
        session.waits_for.add(self.budget)
        session.link.pause()

    def relieve(self) -> None:
        """Resume those who wait for room in the budget, in order, as far as there is room."""
        wanted = 0
        for session, size in list(self._starved.items()):
            wanted += size
            if not self.budget.has_room(wanted):
                return
            del self._starved[session]
            session.waits_for.discard(self.budget)
            if not session.waits_for and not session.closed:
                session.link.resume()

    def _evict(self) -> None:
        """Disconnect clients with large outboxes until there is room for the first who waits."""
        wanted = next(iter(self._starved.values()), 0)
        sessions = {id(session.link): session for session in self._sessions}
        share = self._share()

        def order(holder: Holder) -> tuple[bool, bool, int]:
            session = sessions.get(id(holder))
            backlog = self._full.get(session) if session is not None else None
            has_moved = self._moved.get(id(holder), -1) != holder.moved
            return (backlog is not None and backlog.patient, has_moved, -holder.buffered)

        for holder in sorted(self.budget.holders, key=order):
            if self.budget.has_room(wanted):
                return
            if holder.buffered <= share:
                continue
            if (session := sessions.get(id(holder))) is not None:
                reason = f"all outboxes may hold {self.budget.most} bytes together (flow.total)"
                self.disconnect(session, holder.buffered, reason)
            else:
                holder.abort()


class _Times:
    """Stretches of time, the last of which may not have ended."""

    __slots__ = ("_past", "_since")

    def __init__(self) -> None:
        self._past: deque[tuple[float, float]] = deque()
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """A stretch begins, unless one has."""
        if self._since is None:
            self._since = now

    def end(self, now: float) -> None:
        """The stretch ends, if there is one."""
        if self._since is not None:
            self._past.append((self._since, now))
            self._since = None

    def total(self, since: float, now: float) -> float:
        """Return the length of all stretches between `since` and `now`."""
        while self._past and self._past[0][1] < since:
            self._past.popleft()
        past = sum(end - max(begin, since) for begin, end in self._past)
        return past + (now - max(self._since, since) if self._since is not None else 0.0)
