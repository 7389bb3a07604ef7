"""The engine on the disk: queues and data store in SQLite, what passed by in the log's files.

**One write.** A commit is one write to the log and one fdatasync: the rows that passed by, and what
it does to queues and keys. The database has that a while later (`tables.py`); what it has not when
we are killed is brought in from the log at the next start.

**Turns.** What is written in one turn of the event loop is durable all or not at all: a message
that moves from one queue to another is never in neither of them. A turn holds the lock of the open
batch from its first write to its end, so only the writer ever waits for it.

**Group commit.** One thread writes. What comes while a commit is under way goes into the next one.
Where nobody waits for an answer, a commit waits a moment for more; where somebody does, it begins
at the end of the turn. The event loop never waits for the disk.

**Trouble.** A disk that is full or broken is tried again until it works or the engine is closed.
Nothing that was written is forgotten, and no answer leaves, before it has worked.

**Sequences** are reserved in blocks ahead of their use, so that one is never given out twice, even
where the message had come and gone without being written.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from queue import Empty, SimpleQueue

from wirelake.engine.arrow_stream import Compression
from wirelake.engine.base import (
    PARTITIONS,
    Engine,
    Entry,
    LogBatch,
    Position,
    QueueSettings,
    Stored,
)
from wirelake.engine.database import DROPPED, LARGEST, Changes, loads
from wirelake.engine.log import SEGMENT_BYTES, Log
from wirelake.engine.retention import Retention
from wirelake.engine.salvage import Aside, is_damage, open_database, open_empty_database
from wirelake.engine.tables import Tables, at_last
from wirelake.errors import EngineError
from wirelake.wire import FrameTable

log = logging.getLogger("wirelake.engine")

#: How long a commit for which nobody waits is put off (seconds), unless so many bytes are waiting.
LINGER = 0.05
EAGER_BYTES = 4 << 20

#: Sequences are reserved in blocks of this many, the next one when half of it is used.
BLOCK = 1 << 16

#: How often the log is tidied (seconds), and how much the thread that does it yields to others.
TIDY = 60.0
NICENESS = 10

#: How often the data directory is looked at (seconds): somebody may delete or replace it.
WATCH = 0.25

#: Upper bounds of the classes that commits are counted in (seconds); the last class has none.
BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Statistics:
    """What the writer has done so far; to be read by anybody."""

    def __init__(self) -> None:
        self.commits = 0
        self.rows = 0  # of SQLite
        self.bytes = 0  # of rows and of the log
        self.failures = 0
        self.seconds = 0.0
        self.classes = [0] * (len(BOUNDS) + 1)

    def count(self, seconds: float) -> None:
        """One more commit."""
        self.commits += 1
        self.seconds += seconds
        self.classes[bisect_left(BOUNDS, seconds)] += 1


class _Batch:
    """What the next commit has to write, and who waits for it."""

    __slots__ = ("actions", "changes", "loads", "number", "settled", "touched")

    def __init__(self, number: int) -> None:
        self.number = number
        self.touched = False
        self.changes = Changes()
        self.loads: list[bytes] | None = None  # the changes for the log
        self.actions: list[Callable[[], object]] = []
        self.settled: list[threading.Event] = []


class _Queue:
    """A queue's settings and sequences."""

    __slots__ = ("fresh", "next", "reserved", "settings")

    def __init__(self, settings: QueueSettings, following: int, *, fresh: bool) -> None:
        self.settings = settings
        self.next = following
        self.reserved = following
        self.fresh = fresh  # nothing was ever put


class SqliteEngine(Engine):
    """Keeps everything in a folder, which no other process may use meanwhile."""

    def __init__(
        self,
        folder: Path,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        partitions: int = PARTITIONS,
        capture: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = "none",
        retention: Sequence[Retention] = (),
    ) -> None:
        super().__init__()
        try:
            folder.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
        self.statistics = Statistics()
        self.retention = retention  # of the log; may be set anew
        self._aside = Aside(folder, self.damage)
        # The log is made after the database: where it is, the other has been, too.
        self._database = open_database(
            folder / "broker.db", self.damage, used=(folder / "log").exists()
        )
        is_repaired = bool(self.damage)
        try:
            self._log = Log(
                folder / "log",
                partitions=partitions if capture else None,
                segment_bytes=segment_bytes,
                compression=compression,
            )
        except BaseException:
            self._database.close()
            raise
        try:
            try:
                self._load(repair=is_repaired)
            except EngineError as error:
                if not is_damage(error):
                    raise
                self._database.close()
                self._database = open_empty_database(folder / "broker.db", self.damage, error)
                self._load(repair=True)
            self.damage += self._log.damage
            self._log.damage = self.damage  # what is found later is told, too
        except BaseException:
            self._log.close()
            self._database.close()
            raise
        if capture:
            self.partitions = self._log.partitions
            self.log_id = self._log.id
        self._troubles = {"folder": "", "log": "", "tables": ""}
        self._places = {path: _identity(path) for path in (folder, folder / "log")}
        self._places[folder / "broker.db"] = _identity(folder / "broker.db")
        self._loop = loop
        self._lock = threading.Lock()
        self._open = _Batch(1)
        self._committed = 0
        self._in_turn = False
        self._end_is_scheduled = False
        self._bell: SimpleQueue[bool] = SimpleQueue()  # True: somebody waits
        self._rung: bool | None = None
        self._finished: deque[list[Callable[[], object]]] = deque()
        self._closing = threading.Event()
        self._given_up: EngineError | None = None
        self._tables = Tables(self._database, partial(self._tell, "tables"), self._log.applied)
        self._threads = [
            threading.Thread(target=self._write, name="wirelake-writer", daemon=True),
            threading.Thread(target=self._tidy, name="wirelake-tidy", daemon=True),
            threading.Thread(target=self._watch, name="wirelake-watch", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _load(self, *, repair: bool) -> None:
        """Let database and log agree, and learn which queues there are."""
        self._number = self._replay(repair=repair)  # of the last changes
        self._queues = self._reserve_sequences()

    def set_aside(self, what: str, raw: bytes, error: Exception) -> None:
        """Keep bytes that were stored and cannot be decoded in a file, and report them."""
        self._aside(what, raw, error)

    def _replay(self, *, repair: bool) -> int:
        """Bring into the database what only the log has; the number of the last changes.

        `repair`: something else may be missing, too.
        """
        applied = self._database.applied()
        repair = repair or applied is None
        found = self._log.found_changes()
        numbers = [number for number in found if number > (applied or 0)]
        for before, number in pairwise([applied or 0, *numbers]):
            if applied is not None and before + 1 < number:
                text = f"changes {before + 1} to {number - 1} of queues and keys are missing"
                log.error("the log is damaged: %s", text)
                self.damage.append(text)
        if repair:
            # What was lost may be found again: all that is complete up to the end comes anew.
            begin = max(0, len(found) - 1)
            while begin and found[begin - 1] + 1 == found[begin]:
                begin -= 1
            numbers = found[begin:]
        last = max([applied or 0, *numbers])
        self._database.replay(self._log.changes(numbers), last, self.set_aside)
        if repair:
            self._database.declare_missing()
        return last

    def _reserve_sequences(self) -> dict[str, _Queue]:
        """The queues that are there, with sequences that nobody has used before or will again."""
        queues = {
            settings.name: _Queue(settings, following, fresh=False)
            for settings, following in self._database.queues(self.set_aside)
        }
        reserved = Changes()
        for queue in queues.values():
            queue.reserved = queue.next + BLOCK
            reserved.queues[queue.settings.name] = (queue.settings, queue.reserved)
        if queues:
            made = loads(reserved)
            self._log.write(made, self._number + 1)
            self._number += len(made)
        self._database.commit(reserved, self._number)
        self._log.applied(self._number)
        return queues

    # The data store

    def entries(self) -> Iterable[Entry]:
        """Every key's latest state; waits for what is being written."""
        self._settle()
        return self._database.entries(self.set_aside)

    def write_entry(self, entry: Entry) -> None:
        """Keep a key's latest state."""
        _check_name(entry.key)
        _check_size(entry.value or b"")
        self.touch()
        self._open.changes.entries[entry.key] = entry

    def drop_entry(self, key: str) -> None:
        """Forget a key; does nothing where there is none."""
        self.touch()
        self._open.changes.entries[key] = Entry(key, DROPPED, None)

    # Queues

    def queues(self) -> Iterable[QueueSettings]:
        """The queues that were declared."""
        return [queue.settings for queue in self._queues.values()]

    def declare(self, settings: QueueSettings) -> None:
        """Keep a queue, or its new settings."""
        _check_name(settings.name)
        self.touch()
        queue = self._queues.get(settings.name)
        if queue is None:
            queue = self._queues[settings.name] = _Queue(settings, 1, fresh=True)
        queue.settings = settings
        self._reserve(queue)

    def remove(self, queue: str) -> None:
        """Forget a queue and all that is in it."""
        if self._queues.pop(queue, None) is not None:
            self.touch()
            self._open.changes.remove(queue)

    def stored(self, queue: str) -> Iterable[Stored]:
        """The messages in a queue; waits for what is being written, unless the queue is new."""
        if queue not in self._queues or self._queues[queue].fresh:
            return []
        self._settle()
        unreadable: list[int] = []

        def set_aside(sequence: int, raw: bytes, error: Exception) -> None:
            self.set_aside(f"message {sequence} of the queue {queue}", raw, error)
            unreadable.append(sequence)

        found = self._database.stored(queue, set_aside)
        for sequence in unreadable:
            self.drop(queue, sequence)
        return found

    def put(self, stored: Stored) -> None:
        """Keep a message."""
        queue = self._known(stored.queue)
        _check_size(stored.message.payload)
        self.touch()
        queue.fresh = False
        new = stored.sequence >= queue.next
        if new:
            queue.next = stored.sequence + 1
            if queue.reserved - queue.next < BLOCK // 2:
                self._reserve(queue)
        self._open.changes.put(stored, new=new)

    def count_attempt(self, stored: Stored) -> None:
        """Keep a message's new count of attempts."""
        if stored.queue in self._queues:
            self.touch()
            self._open.changes.count_attempt(stored)

    def drop(self, queue: str, sequence: int) -> None:
        """Forget a message that is done."""
        if queue in self._queues:
            self.touch()
            self._open.changes.drop(queue, sequence)

    def next_sequence(self, queue: str) -> int:
        """A sequence that, like all above it, was never given out in a queue."""
        return self._queues[queue].next if queue in self._queues else 1

    def remember_id(self, queue: str, identity: str, until: float) -> None:
        """Keep the id of a message that was put, until a time in seconds since 1970."""
        self._known(queue).fresh = False
        self.touch()
        self._open.changes.ids.append((queue, until, identity))

    def remembered_ids(self, queue: str) -> Iterable[tuple[str, float]]:
        """The ids that were put, and until when to know them, the oldest first."""
        if queue not in self._queues or self._queues[queue].fresh:
            return []
        self._settle()
        return self._database.ids(queue, self.set_aside)

    def _known(self, name: str) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            raise EngineError(f"no queue {name}")
        return queue

    def _reserve(self, queue: _Queue) -> None:
        queue.reserved = queue.next + BLOCK
        self._open.changes.queues[queue.settings.name] = (queue.settings, queue.reserved)

    # The log

    def append(
        self, table: FrameTable, rows: array[int] | None, timestamp: int | array[int], source: bytes
    ) -> None:
        """Add rows of a table (all, or these), received at `timestamp` (µs) from `source`."""
        if self.partitions:
            self.touch()
            self._log.append(table, rows, timestamp, source)

    @property
    def backlog(self) -> int:
        """The bytes of the log that are not durable yet."""
        return self._log.pending

    def positions(self) -> list[Position]:
        """Where each partition of the log begins and ends."""
        return self._log.positions() if self.partitions else []

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[LogBatch]:
        """The batches that hold rows [start, stop), in order; for any thread."""
        if not self.partitions:
            return iter(())
        return self._log.read(partition, start, stop, may_match=may_match)

    # Durability

    def after(self, action: Callable[[], object]) -> None:
        """Run an action once all that was written so far is durable."""
        if self._is_settled() and self._running_loop() is not None:
            assert self._loop is not None
            self._loop.call_soon(action)
        else:
            self.touch()
            self._open.actions.append(action)

    def close(self) -> None:
        """Make everything durable, run what waited for it, and let go."""
        if self._closing.is_set():
            return
        for queue in self._queues.values():
            if queue.reserved != queue.next:  # nobody will use the rest of the block
                self.touch()
                self._open.changes.queues[queue.settings.name] = (queue.settings, queue.next)
        self._closing.set()
        self._end_turn()
        self._bell.put(True)
        self._tables.let_pass()
        for thread in self._threads:
            thread.join()
        self._tables.close()
        self._run_finished()
        try:
            self._log.close()
        finally:
            self._database.close()
        if self._given_up is not None:
            raise self._given_up

    # The turn of the event loop

    def touch(self) -> None:
        """Something is written in this turn, now or by `gather`."""
        if self._end_is_scheduled:
            return
        if self._closing.is_set():
            raise EngineError("the engine is closed")
        if not self._in_turn:
            self._lock.acquire()
            self._in_turn = True
            self._open.touched = True
        loop = self._running_loop()
        if loop is not None and not loop.is_closed():  # else the turn lasts until a loop runs
            self._end_is_scheduled = True
            loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """The writer may take what was written."""
        if not self._in_turn:
            self._end_is_scheduled = False
            return
        self._end_is_scheduled = True  # what is gathered belongs to this turn
        try:
            self.gather()
        except Exception:  # the turn must end
            log.exception("what was collected cannot be written")
        self._end_is_scheduled = False
        waited_for = bool(self._open.actions or self._open.settled or self.backlog > EAGER_BYTES)
        rings = self._rung is None or (waited_for and not self._rung)
        if rings:
            self._rung = waited_for
        self._in_turn = False
        self._lock.release()
        if rings:
            self._bell.put(waited_for)

    def _running_loop(self) -> asyncio.AbstractEventLoop | None:
        if self._loop is None:
            with contextlib.suppress(RuntimeError):
                self._loop = asyncio.get_running_loop()
        return self._loop

    def _is_settled(self) -> bool:
        """Is all that was written durable?"""
        batch = self._open
        return not batch.touched and self._committed == batch.number - 1

    def _settle(self) -> None:
        """Wait until all that was written is in the database."""
        if self._closing.is_set():
            raise EngineError("the engine is closed")
        if not self._is_settled():
            done = threading.Event()
            self.touch()
            self._open.settled.append(done)
            self._end_turn()
            while not done.wait(0.05):
                self._check()
        while not self._tables.settle(0.05):
            self._check()

    def _check(self) -> None:
        if self.trouble:
            raise EngineError(self.trouble, retriable=True)

    def _run_finished(self) -> None:
        """Run the actions whose writes are durable, in order."""
        while self._finished:
            for action in self._finished.popleft():
                try:
                    action()
                except Exception:  # the others must not suffer
                    log.exception("an action failed after its commit")

    # The writer

    def _write(self) -> None:
        """Commit batch after batch, until the engine is closed."""
        while not self._closing.is_set() or self._open.touched:
            self._wait()
            with self._lock:
                self._rung = None
                batch = self._open
                if not batch.touched:
                    continue
                self._open = _Batch(batch.number + 1)
            commit, tell = partial(self._commit, batch), partial(self._tell, "log")
            given_up = at_last(commit, tell, self._closing.is_set, self._closing.wait)
            if given_up is not None:
                self._given_up = given_up
                return
            if batch.actions:  # first, since they are waited for
                self._finished.append(batch.actions)
                with contextlib.suppress(RuntimeError):  # a loop that is closed runs nothing
                    if self._loop is not None:
                        self._loop.call_soon_threadsafe(self._run_finished)
            if batch.loads:
                size = sum(map(len, batch.loads))
                self.statistics.bytes += size
                self._tables.add(batch.changes, self._number, size)
            self._committed = batch.number
            for done in batch.settled:
                done.set()

    def _wait(self) -> None:
        """Wait for something to write, and where nobody is in a hurry, for more of it."""
        waited_for = self._bell.get()
        deadline = time.monotonic() + LINGER
        while not waited_for and (left := deadline - time.monotonic()) > 0:
            try:
                waited_for = self._bell.get(timeout=left)
            except Empty:
                return

    def _tell(self, where: str, trouble: str) -> None:
        """Say that something cannot be written there, or that it can be again."""
        self.statistics.failures += bool(trouble)
        before = self.trouble
        self._troubles[where] = trouble
        # What is new is refused from here on, and only then told.
        self.trouble = next(filter(None, self._troubles.values()), "")
        if self.trouble and not before:
            log.error("nothing can be written: %s", self.trouble)
        elif before and not self.trouble:
            log.warning("what had to wait has been written")

    def _commit(self, batch: _Batch) -> None:
        """Make a batch durable."""
        if text := self._troubles["folder"]:
            raise EngineError(text, retriable=True)  # what is written there now is lost
        begun = time.perf_counter()
        statistics, rows, logged = self.statistics, len(batch.changes), self.backlog
        if not rows:
            self._log.write()
        else:
            if batch.loads is None:
                batch.loads = loads(batch.changes)
            self._log.write(batch.loads, self._number + 1)
            self._number += len(batch.loads)
            statistics.rows += rows
        if rows or logged:
            statistics.bytes += logged
            statistics.count(time.perf_counter() - begun)

    # Housekeeping

    def _tidy(self) -> None:
        """Tidy the log now and then, when nobody needs the processor."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._closing.wait(TIDY):
            try:
                self._log.tidy(time.time(), self.retention)
            except EngineError as error:
                log.warning("the log could not be tidied: %s", error)

    def _watch(self) -> None:
        """Notice that the data directory, or a file in use, was deleted or replaced."""
        while not self._closing.wait(WATCH):
            text = self._missing()
            if text != self._troubles["folder"]:
                self._tell("folder", text)

    def _missing(self) -> str:
        """What was deleted or replaced, or nothing."""
        for path, known in self._places.items():
            if (found := _identity(path)) != known:
                return f"{path} was {'deleted' if found is None else 'replaced'} while it was used"
        if self._log.is_deleted():
            return "a file of the log was deleted while it was used"
        return ""


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file or folder from any other of the same name; None where it is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_name(name: str) -> None:
    """Refuse what SQLite would not give back as it is."""
    if "\0" in name or not name.isascii():
        try:
            name.encode()
        except UnicodeEncodeError:
            raise EngineError(f"not a name: {name!a}") from None
        if "\0" in name:
            raise EngineError(f"not a name: {name!a}")


def _check_size(payload: bytes) -> None:
    if len(payload) > LARGEST:
        raise EngineError(f"{len(payload)} bytes are more than the {LARGEST} that can be kept")
