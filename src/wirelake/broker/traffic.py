"""Figures of what passes: rates by dialect for an hour, depths of queues, latencies.

Sessions count what they receive and are given, once a read or a write. Once a second `tick` adds
these up by dialect and keeps the differences in rings of fixed size, so that a page can show the
last hour without anybody having asked for it then. Nothing here is done per message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wirelake.broker.endpoint import Endpoint
    from wirelake.broker.vitals import Vitals
    from wirelake.config import QueueSettings
    from wirelake.errors import ProtocolError

#: Seconds of rates that are kept, and how far apart the depths of queues are (seconds).
KEPT = 3600
DEPTH_EVERY = 10
#: Queues whose depths are kept: those that were the longest when there was room.
MAX_QUEUES = 200
#: Protocol errors that are kept, and bytes before and behind the fault of each.
FAULTS = 50
AROUND = 32
#: The figures of a dialect, in this order: messages in and out, bytes in and out.
FIGURES = ("received", "delivered", "bytes_in", "bytes_out")
#: The upper bounds of the classes of a latency (seconds); what is above the last has its own class.
BOUNDS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class Latency:
    """How often something took how long."""

    __slots__ = ("classes", "seconds")

    def __init__(self) -> None:
        self.classes = array("Q", bytes(8 * (len(BOUNDS) + 1)))
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        """Add one observation of this duration."""
        self.classes[bisect_left(BOUNDS, seconds)] += 1
        self.seconds += seconds

    def state(self) -> dict[str, Any]:
        """The bounds, how often each class was met, and the sum of all."""
        return {"bounds": BOUNDS, "classes": list(self.classes), "seconds": self.seconds}


class Ring:
    """The latest `size` figures of equal distance; those before the first are 0."""

    __slots__ = ("_at", "_values")

    def __init__(self, size: int) -> None:
        self._values = array("Q", bytes(8 * size))
        self._at = 0

    def add(self, value: int) -> None:
        """Replace the oldest figure."""
        self._values[self._at] = value
        self._at = (self._at + 1) % len(self._values)

    def latest(self, count: int) -> list[int]:
        """The latest figures, the oldest of them first."""
        whole = self._values[self._at :] + self._values[: self._at]
        return list(whole[len(whole) - min(count, len(whole)) :])


class Depth(Protocol):
    """A queue, as far as its depth is asked for."""

    @property
    def settings(self) -> QueueSettings:
        """Its name, among others."""

    def __len__(self) -> int: ...

    def state(self, now: float) -> dict[str, object]:
        """Return its state, with the `age` of its next message."""


class Traffic:
    """What a broker has passed on lately."""

    def __init__(self, vitals: Vitals) -> None:
        self._vitals = vitals
        #: From the read of a frame to the write of what came of it; from a request to its reply.
        self.deliveries = Latency()
        self.requests = Latency()
        #: The last whole second: figures by dialect, as in FIGURES.
        self.current: dict[str, tuple[int, ...]] = {}
        #: The latest peers that broke their grammar, with the bytes around the fault.
        self.faults: deque[dict[str, Any]] = deque(maxlen=FAULTS)
        self.second = 0  # the seconds since 1970 of `current`
        self._rates: dict[str, tuple[Ring, ...]] = {}
        self._depths: dict[str, tuple[Ring, Ring]] = {}  # messages, and the age in seconds
        self._ended: dict[str, list[int]] = {}  # of sessions that have ended, by dialect
        self._sums: dict[str, list[int]] = {}
        self._due = 0.0
        self._ticks = 0

    def fault(
        self,
        peer: str,
        error: ProtocolError,
        data: memoryview,
        at: int,
        *,
        secret: bool,
    ) -> None:
        """A peer broke its grammar at a place in `data`.

        Bytes that are `secret`, since they may be a token, are not kept.
        """
        shown = b""
        if not secret:
            shown = bytes(data[max(0, at - AROUND) : max(0, at) + AROUND])
        self.faults.append(
            {
                "time": self._vitals.timestamp(self._vitals.now),
                "peer": peer,
                "dialect": error.dialect,
                "offset": error.offset,
                "reason": error.reason,
                "hex": shown.hex(" "),
            }
        )

    def retire(self, session: Endpoint) -> None:
        """A session has ended: what it counted stays in the sums of its dialect."""
        sums = self._ended.setdefault(session.dialect, [0, 0, 0, 0])
        for at, value in enumerate(figures(session)):
            sums[at] += value

    def tick(self, sessions: Iterable[Endpoint], queues: Iterable[Depth], now: float) -> None:
        """Take the figures of a second, if one has passed."""
        if now < self._due:
            return
        # A second that was missed is not made up for: its traffic is in the next one.
        self._due = now + 1.0 if now - self._due > 2.0 else self._due + 1.0
        sums = {dialect: list(ended) for dialect, ended in self._ended.items()}
        for session in sessions:
            mine = sums.setdefault(session.dialect, [0, 0, 0, 0])
            for at, value in enumerate(figures(session)):
                mine[at] += value
        self.second = int(now + self._vitals.epoch)
        self.current = {}
        for dialect, mine in sums.items():
            before = self._sums.get(dialect, (0, 0, 0, 0))
            self.current[dialect] = tuple(
                max(0, new - old) for new, old in zip(mine, before, strict=True)
            )
            if dialect not in self._rates:
                self._rates[dialect] = tuple(Ring(KEPT) for _ in FIGURES)
        self._sums = sums
        for dialect, rings in self._rates.items():
            for ring, value in zip(rings, self.current.get(dialect, (0, 0, 0, 0)), strict=True):
                ring.add(value)
        self._ticks += 1
        if self._ticks % DEPTH_EVERY == 0:
            self._measure_queues(list(queues), now)

    def _measure_queues(self, queues: list[Depth], now: float) -> None:
        names = {queue.settings.name for queue in queues}
        for name in [name for name in self._depths if name not in names]:
            del self._depths[name]
        if len(queues) > MAX_QUEUES:
            queues.sort(key=len, reverse=True)
        for queue in queues:
            name = queue.settings.name
            if name not in self._depths:
                if len(self._depths) >= MAX_QUEUES:
                    continue
                self._depths[name] = (Ring(KEPT // DEPTH_EVERY), Ring(KEPT // DEPTH_EVERY))
            messages, age = self._depths[name]
            messages.add(len(queue))
            age.add(int(float(str(queue.state(now)["age"]))))

    def rates(self, seconds: int) -> dict[str, dict[str, list[int]]]:
        """The figures of the latest seconds by dialect, the oldest first."""
        return {
            dialect: {name: ring.latest(seconds) for name, ring in zip(FIGURES, rings, strict=True)}
            for dialect, rings in sorted(self._rates.items())
        }

    def depths(self, queue: str) -> dict[str, Any]:
        """How many messages a queue had and how old the next one was, every DEPTH_EVERY seconds."""
        if queue not in self._depths:
            return {"every": DEPTH_EVERY, "messages": [], "age": []}
        messages, age = self._depths[queue]
        count = KEPT // DEPTH_EVERY
        return {
            "every": DEPTH_EVERY,
            "messages": messages.latest(count),
            "age": age.latest(count),
        }


def figures(session: Endpoint) -> tuple[int, int, int, int]:
    """What a session has counted since it began, as in FIGURES."""
    return (session.received, session.delivered, session.bytes_in, session.link.moved)
