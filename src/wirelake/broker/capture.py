"""Capture: messages that pass through the broker are appended to the engine's log.

Runs of published rows are appended as they are. Everything else (requests and replies, direct
messages, changes of the store, what happens to queue messages, the beginning and the end of byte
streams) comes one message at a time. A message in a queue, and the value of a key, is a row of the
log, too, and is written once.

A publisher that asks for no acknowledgement does not wait for the disk until more than `backlog`
bytes are not written yet; then it waits, as for a slow subscriber. While writing fails, such
messages are delivered but not captured, and counted; those that ask for an acknowledgement are
refused.
"""

from __future__ import annotations

from array import array

from wirelake.address import matches
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.vitals import Vitals
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine, Entry, Stored
from wirelake.message import Message
from wirelake.wire import FrameTable

#: Bytes of the log that may wait for the disk before publishers wait for them.
BACKLOG = 64 << 20


class Capture:
    """The way into the log, and those who wait for the disk."""

    def __init__(self, engine: Engine, vitals: Vitals) -> None:
        self._engine = engine
        self._vitals = vitals
        self.exclude: tuple[str, ...] = ()  # filters of addresses that are not captured
        self.backlog = BACKLOG
        self._waiting: set[Endpoint] = set()
        for text in engine.damage:  # it was logged when it was found
            vitals.remember("damage", "the disk", text)
        self._damage_told = engine.damage_count
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
        """Append rows [start, end) of a table, or these, which a session published.

        While there is trouble, all of them can be kept or none (`end_of_able`).
        """
        if not self.keeps(table, start):
            self._vitals.count_dropped("uncaptured", end - start if rows is None else len(rows))
            return
        if rows is None and (start or end != table.count):
            rows = array("i", range(start, end))
        timestamp = self._vitals.timestamp(now)
        self._engine.append(table, rows, timestamp, session.client_id.encode())

    def add(self, message: Message, now: float) -> None:
        """Append one message, soon."""
        if not self.takes(message.address):
            return
        if self._engine.trouble_of(message.address):
            self._vitals.count_dropped("uncaptured")
            return
        self._engine.write(message, self._vitals.timestamp(now))

    def put(self, stored: Stored) -> None:
        """Keep a message of a queue, as a row of the log if its address is captured."""
        captured = self.takes(stored.queue) and not self._engine.trouble_of(stored.queue)
        self._engine.put(stored, captured=captured)

    def put_rows(
        self, queue: str, table: FrameTable, sequence: int, timestamp: int, sizes: array[int]
    ) -> None:
        """Keep rows as messages of a queue, as rows of the log if its address is captured."""
        captured = self.takes(queue) and not self._engine.trouble_of(queue)
        self._engine.put_rows(queue, table, sequence, timestamp, sizes, captured=captured)

    def table(self, table: FrameTable, now: float) -> None:
        """Append all rows of a table, which have one address, each with its own source."""
        if not self.keeps(table, 0):
            self._vitals.count_dropped("uncaptured", table.count)
        else:
            self._engine.append(table, None, self._vitals.timestamp(now), b"")

    def change(self, entry: Entry, told: Message, now: float) -> None:
        """Keep a key's latest state, which a message tells, in one row if the key is captured."""
        if self.takes(entry.key) and not self._engine.trouble_of(entry.key):
            self._engine.write_entry(entry, told=told, timestamp=self._vitals.timestamp(now))
        else:
            self._engine.write_entry(entry)

    def check_disk(self, name: str = "") -> None:
        """Raise RefusedError (`busy`) while what has this name, or anything, cannot be kept."""
        if trouble := self._engine.trouble_of(name) if name else self._engine.trouble:
            raise RefusedError("busy", f"nothing can be kept now: {trouble}")

    def check_here(self, name: str) -> None:
        """Raise RefusedError (`busy`) while the partition of an address or a key is not here."""
        if not self._engine.is_here(self._engine.home(name)):
            raise RefusedError("busy", self._engine.trouble_of(name))

    def refusal(self) -> RefusedError:
        """Return why nothing can be kept while the engine is in trouble."""
        return RefusedError("busy", f"nothing can be kept now: {self._engine.trouble}")

    def end_of_able(self, table: FrameTable, start: int, end: int) -> int:
        """Return where the rows from `start` on end that all can be kept, or all cannot."""
        able = not self._engine.trouble_of(table.address(start).decode(errors="replace"))
        for row in range(start + 1, end):
            if able == bool(self._engine.trouble_of(table.address(row).decode(errors="replace"))):
                return row
        return end

    def keeps(self, table: FrameTable, row: int) -> bool:
        """Return whether a row can be kept now."""
        if not self._engine.trouble:
            return True
        return not self._engine.trouble_of(table.address(row).decode(errors="replace"))

    def hold_back(self, session: Endpoint) -> None:
        """Read no more from a session while too much waits for the disk."""
        if self._engine.backlog <= self.backlog or session in self._waiting or session.closed:
            return
        if not self._waiting:
            self._vitals.counters["disk_waits"] += 1
            self._engine.after(self._let_go, failed=self._let_go)
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
        if self._damage_told < self._engine.damage_count:
            for text in self._engine.damage[self._damage_told :]:
                self._vitals.event("damage", "the disk", text)
            self._damage_told = self._engine.damage_count
        trouble = self._engine.trouble
        if bool(trouble) != bool(self._trouble_told):
            kind, text = ("trouble", trouble) if trouble else ("recovered", "writing works again")
            self._vitals.event(kind, "the disk", text)
            self._trouble_told = trouble
