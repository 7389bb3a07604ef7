"""The broker's clock, counters and events: what every part of it reads and reports to.

Time is told to the broker: `now` is the latest time that anybody told, on a clock that only goes
forward. The broker has no clock of its own.
"""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable

from wirelake.message import Message

log = logging.getLogger("wirelake.broker")

#: The address where operators receive events (decision 43).
EVENTS = "$events"
#: How many events are remembered; the oldest go first.
MAX_EVENTS = 100


class Vitals:
    """The time, the work done, the counters and the latest events of one broker."""

    def __init__(self, epoch: float = 0.0, latest: int = 0, now: float = 0.0) -> None:
        self.now = now
        #: Added to the broker's time it gives seconds since 1970.
        self.epoch = epoch
        #: The work done so far, in units of about 10 µs: sessions give way by it.
        self.work = 0
        self.counters: Counter[str] = Counter()
        self.events: deque[dict[str, object]] = deque(maxlen=MAX_EVENTS)
        #: Called with each event as a message to `$events`.
        self.publish_event: Callable[[Message], object] = lambda message: None
        self._latest = latest

    def timestamp(self, now: float) -> int:
        """Return a time in µs since 1970; it never goes back, even where the clock does."""
        self._latest = max(self._latest, int((now + self.epoch) * 1_000_000))
        return self._latest

    def count_refused(self, code: str, count: int = 1) -> None:
        """Count messages that were refused, by the code of the refusal."""
        self.counters[f"refused.{code}"] += count

    def count_dropped(self, reason: str, count: int = 1) -> None:
        """Count messages that a receiver did not get, by the reason."""
        self.counters[f"dropped.{reason}"] += count

    def event(self, kind: str, who: str, text: str) -> None:
        """Tell operators of something: in the log, in the broker's state, and at `$events`."""
        log.warning("%s: %s: %s", kind.replace("_", " "), who, text)
        event = self.remember(kind, who, text)
        self.publish_event(Message(address=EVENTS, payload=json.dumps(event).encode()))

    def remember(self, kind: str, who: str, text: str) -> dict[str, object]:
        """Add an event to the broker's state without telling anybody, and return it."""
        self.counters[f"events.{kind}"] += 1
        event: dict[str, object] = {"time": self._latest, "event": kind, "who": who, "text": text}
        self.events.append(event)
        return event
