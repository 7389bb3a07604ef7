"""Capture: messages that pass through the broker are appended to the engine's log, in batches.

Runs of published rows are appended as they are. Everything else (requests and replies, direct
messages, changes of the store, what happens to queue messages, the beginning and the end of byte
streams) comes one message at a time. These are collected, and appended together at the end of the
event loop's turn or before the next run of rows, so the order per address holds.

A publisher that asks for no acknowledgement does not wait for the disk until more than `backlog`
bytes are not written yet; then it waits, as for a slow subscriber. While writing fails, such
messages are delivered but not captured, and counted; those that ask for an acknowledgement are
refused.
"""

from __future__ import annotations

from array import array

from wirelake.address import matches
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.route import span
from wirelake.broker.tables import Tables
from wirelake.broker.vitals import Vitals
from wirelake.engine.base import Engine
from wirelake.errors import RefusedError
from wirelake.message import Message
from wirelake.wire import FrameTable

#: Bytes of the log that may wait for the disk before publishers wait for them.
BACKLOG = 64 << 20
#: Messages that are collected before they are appended.
COLLECTED = 256


class Capture:
    """The way into the log, and those who wait for the disk."""

    def __init__(self, engine: Engine, vitals: Vitals, tables: Tables) -> None:
        self._engine = engine
        self._vitals = vitals
        self._tables = tables
        self.exclude: tuple[str, ...] = ()  # filters of addresses that are not captured
        self.backlog = BACKLOG
        self._collected: list[Message] = []
        self._times = array("q")  # of what is collected
        self._waiting: set[Endpoint] = set()
        engine.gather = self.flush
        for text in engine.damage:  # it was logged when it was found
            vitals.remember("damage", "the disk", text)
        self._damage_told = len(engine.damage)
        self._trouble_told = ""

    @property
    def active(self) -> bool:
        """Whether there is a log."""
        return self._engine.partitions > 0

    def takes(self, address: str) -> bool:
        """Return whether messages to this address are captured."""
        if not self.active or address.startswith("$"):
            return False
        return not self.exclude or not any(matches(filter, address) for filter in self.exclude)

    def rows(
        self,
        session: Endpoint,
        table: FrameTable,
        start: int,
        end: int,
        rows: array[int] | None,
        now: float,
    ) -> None:
        """Append rows [start, end) of a table, or these, which a session published."""
        if self._engine.trouble:
            self._vitals.count_dropped("uncaptured", end - start if rows is None else len(rows))
            return
        self.flush()
        if rows is None and (start or end != table.count):
            rows = span(start, end)
        timestamp = self._vitals.timestamp(now)
        self._engine.append(table, rows, timestamp, session.client_id.encode())

    def add(self, message: Message, now: float) -> None:
        """Append one message, soon."""
        if not self.takes(message.address):
            return
        if self._engine.trouble:
            self._vitals.count_dropped("uncaptured")
            return
        if len(self._collected) == COLLECTED:
            self.flush()
        self._times.append(self._vitals.timestamp(now))
        self._collected.append(message)
        self._engine.touch()

    def flush(self) -> None:
        """Append what was collected; messages of one dialect at a time, as a table has one."""
        if not self._collected:
            return
        collected, times = self._collected, self._times
        self._collected, self._times = [], array("q")
        for dialect in dict.fromkeys(one.dialect for one in collected):
            same, at = collected, times
            if any(one.dialect != dialect for one in collected):
                chosen = [k for k, one in enumerate(collected) if one.dialect == dialect]
                same, at = [collected[k] for k in chosen], array("q", [times[k] for k in chosen])
            table = self._tables.room(len(same))
            table.fill(same, dialect)
            self._engine.append(table, None, at, b"")

    def check_disk(self) -> None:
        """Raise RefusedError (`busy`) while writing to the disk fails."""
        if self._engine.trouble:
            raise self.refusal()

    def refusal(self) -> RefusedError:
        """Return why nothing can be kept while the engine is in trouble."""
        return RefusedError("busy", f"nothing can be kept now: {self._engine.trouble}")

    def hold_back(self, session: Endpoint) -> None:
        """Read no more from a session while too much waits for the disk."""
        if self._engine.backlog <= self.backlog or session in self._waiting or session.closed:
            return
        if not self._waiting:
            self._vitals.counters["disk_waits"] += 1
            self._engine.after(self._let_go)
        self._waiting.add(session)
        session.waits_for.add(self)
        session.link.pause()

    def _let_go(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for session in waiting:
            session.waits_for.discard(self)
            if not session.waits_for and not session.closed:
                session.link.resume()

    def left(self, session: Endpoint) -> None:
        """A session has ended."""
        self._waiting.discard(session)

    def tick(self) -> None:
        """Tell operators of damage that was found, and of trouble that begins or ends."""
        damage = self._engine.damage
        while self._damage_told < len(damage):
            self._damage_told += 1
            self._vitals.event("damage", "the disk", damage[self._damage_told - 1])
        trouble = self._engine.trouble
        if bool(trouble) != bool(self._trouble_told):
            kind, text = ("trouble", trouble) if trouble else ("recovered", "writing works again")
            self._vitals.event(kind, "the disk", text)
            self._trouble_told = trouble
