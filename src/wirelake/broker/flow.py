"""What happens when a subscriber reads more slowly than others publish.

A subscriber's outbox is bounded. While it is full, what becomes of messages for it is a policy, per
filter:

- `disconnect` (the default): whoever publishes to it waits, as TCP would make them, but for no more
  than `patience` seconds in any `window`; then the subscriber is disconnected as a slow consumer.
  Several slow ones must not cost a publisher that much each: once it has waited so long for all of
  them together, a quarter of it is enough to be one.
- `drop`: the newest messages are dropped, for this subscriber alone, and counted.
- `pause`: nothing is lost and nobody is disconnected; publishers wait as long as it takes.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from wirelake.address import matches

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.session import Session

Policy = Literal["disconnect", "drop", "pause"]

OUTBOX = 8 << 20
PATIENCE = 2.0
WINDOW = 30.0


@dataclass(eq=False, slots=True)
class _Backlog:
    """A subscriber whose outbox is full: who waits for it, and for how long others have."""

    since: float
    waiting: set[Session] = field(default_factory=set)
    patient: bool = False  # some filter's policy is `pause`


class Flow:
    """The outboxes that are full, and the publishers that wait for them."""

    def __init__(
        self,
        outbox: int = OUTBOX,
        patience: float = PATIENCE,
        window: float = WINDOW,
        policies: dict[str, Policy] | None = None,
    ) -> None:
        self.outbox = outbox
        self.patience = patience
        self.window = window
        self.policies = dict(policies or {})
        self.node: Node
        self._full: dict[Session, _Backlog] = {}
        self._waits: dict[Session, _Times] = {}  # for subscribers
        self._stops: dict[Session, _Times] = {}  # of publishers

    def policy_of(self, address: str) -> Policy:
        """The policy of the first filter that matches an address."""
        for filter, policy in self.policies.items():
            if matches(filter, address):
                return policy
        return "disconnect"

    def admits(self, member: Session, count: int, policy: Policy) -> bool:
        """May `count` more messages be written to a subscriber?"""
        if policy != "drop" or member.link.buffered <= self.outbox:
            return True
        self.node.count_dropped("slow_consumer", count)
        return False

    def wrote(self, member: Session, publisher: Session, policy: Policy, now: float) -> None:
        """Messages were written: let their publisher wait where that was one too many."""
        if policy == "drop" or member.link.buffered <= self.outbox:
            return
        backlog = self._full.get(member)
        if backlog is None:
            backlog = self._full[member] = _Backlog(now)
        backlog.patient = backlog.patient or policy == "pause"
        if publisher is not member and publisher not in backlog.waiting:
            backlog.waiting.add(publisher)
            publisher.waits_for.add(member)
            publisher.link.pause()
            self._stops.setdefault(publisher, _Times()).begin(now)

    def drained(self, member: Session, now: float) -> None:
        """A subscriber's outbox has room again."""
        if backlog := self._full.pop(member, None):
            if backlog.waiting:
                waits = self._waits.setdefault(member, _Times())
                waits.begin(backlog.since)
                waits.end(now)
            self._let_go(member, backlog, now)

    def _let_go(self, member: Session, backlog: _Backlog, now: float) -> None:
        for publisher in backlog.waiting:
            publisher.waits_for.discard(member)
            if not publisher.waits_for and not publisher.closed:
                self._stops[publisher].end(now)
                publisher.link.resume()

    def left(self, session: Session, now: float) -> None:
        """A session has ended, whether it was waited for or waiting."""
        self._waits.pop(session, None)
        self._stops.pop(session, None)
        if backlog := self._full.pop(session, None):
            self._let_go(session, backlog, now)
        for member in session.waits_for:
            if member in self._full:
                self._full[member].waiting.discard(session)
        session.waits_for.clear()

    def tick(self, now: float) -> None:
        """Disconnect the subscribers that others have waited for too long."""
        for member, backlog in list(self._full.items()):
            if member.link.buffered <= self.outbox // 2:
                self.drained(member, now)
            elif not backlog.patient and self._is_too_slow(member, backlog, now):
                self.node.slow_consumer(member, member.link.buffered)

    def _is_too_slow(self, member: Session, backlog: _Backlog, now: float) -> bool:
        """Have publishers waited for it, or for it among others, for too long?"""
        since = now - self.window
        waited = now - backlog.since if backlog.waiting else 0.0
        if member in self._waits:
            waited += self._waits[member].total(since, now)
        stopped = (self._stops[one].total(since, now) for one in backlog.waiting)
        most = self.patience
        return waited > most or (waited > most / 4 and max(stopped, default=0.0) > most)


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
        """How long they were in all from `since` to `now`."""
        while self._past and self._past[0][1] < since:
            self._past.popleft()
        past = sum(end - max(begin, since) for begin, end in self._past)
        return past + (now - max(self._since, since) if self._since is not None else 0.0)
