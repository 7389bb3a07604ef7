"""The engine: collects the broker's changes of a turn, and commits them to the journal.

**Turns.** All that is written in one turn of the event loop is packed at its end, on the loop, and
appended as one commit of each partition. So a turn is whole per partition. What crosses partitions,
as a message that is moved to another queue, is at least once: it is written there before it is
dropped here.

**Durable, then answered.** `after` runs an action when all that was written before it is durable;
that is where an answer to a client waits. Actions run on the loop's thread, in order. Where nobody
waits, a turn is left open for a moment, so that more comes into one commit.

**In place or beside.** Where every client that was read in this turn now waits for the commit, it
is written and synced on the loop's thread, since there is nobody else to serve. Else the journal's
thread does it.

**Trouble.** A disk that is full or broken is tried again until it works or the engine is closed.
Meanwhile `trouble` says what is wrong. Nothing that was written is forgotten, and no answer leaves,
before it has worked.

**Partitions come and go.** `adopt` takes a partition up, with its queues, keys and ids; `lose` lets
it go, with all that was written and is not durable. A partition whose commit was fenced, or has no
known outcome, or was refused, is lost, since its state in memory is ahead of the journal. The
others go on. Waiting answers of a failed commit run their `failed` callback: whether the commit is
stored is known only after the partition is adopted again.

**State.** Beside the journal is the state that its records make (`state.py`). Now and then it is
written again as a checkpoint, a part at a time, so that the next start need not read everything.

**Sequences** of queues are reserved in blocks ahead of their use, so that one is never given out
twice, even where its message was delivered and never became durable.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import secrets
import threading
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from wirelake.config import QueueSettings
from wirelake.errors import EngineError
from wirelake.journal import record
from wirelake.journal.arrow_stream import Compression, decode
from wirelake.journal.batch import Batch as RowBatch
from wirelake.journal.batch import Rows, home
from wirelake.journal.contract import (
    PARTITIONS,
    Batch,
    Journal,
    Outcome,
    Position,
    Recovered,
    Space,
    check_partition,
)
from wirelake.journal.files import FilesJournal
from wirelake.journal.memory import MemoryJournal
from wirelake.journal.record import Change, Note, Put, QueueChanges, Record, Type, checkpoint
from wirelake.journal.retention import Rule
from wirelake.journal.state import (
    PartitionState,
    QueueState,
    Reference,
    References,
    Value,
    alike,
)
from wirelake.journal.tail import SEGMENT_BYTES
from wirelake.message import NO_FLAGS, Flag, Message, Op
from wirelake.wire import FrameTable
from wirelake.wire.arrow import from_arrow

__all__ = ["BOUNDS", "Engine", "Entry", "QueueSettings", "Reference", "Statistics", "Stored"]

log = logging.getLogger("wirelake.journal")

#: How long a commit for which nobody waits is put off (seconds), unless so many bytes are waiting.
LINGER = 0.05
EAGER_BYTES = 4 << 20

#: A commit of more bytes is never made in place, nor one after commits that took so long (seconds).
IN_PLACE_BYTES = 256 << 10
IN_PLACE_SECONDS = 0.005

#: Clients that are remembered as read in one turn.
MOST_READERS = 10_000

#: Messages that are collected before they become rows.
COLLECTED = 256

#: Sequences are reserved in blocks of this many, the next one when half of it is used.
BLOCK = 1 << 16

#: No message or value has more bytes: a record must hold it.
LARGEST = record.MAX_BODY - (1 << 20)

#: A checkpoint is written when changes take more bytes than this, and than the state itself.
CHECKPOINT_BYTES = 16 << 20
CHECKPOINT_BYTES_IN_MEMORY = 64 << 10
#: Time between two parts of a checkpoint (seconds).
PART_EVERY = 0.02

#: A partition that was lost, and has no other owner, is taken up again after this long (seconds).
TAKE_BACK = 0.5

#: Places that are read together although some between them are not wanted.
GAP = 4096

#: The key that is written where a node has to prove that it still owns a partition.
PROOF = "$proof"

#: What a batch raises that is no batch of the log.
UNDECODABLE = (pa.ArrowException, OSError, RuntimeError, ValueError, LookupError, StopIteration)

#: Keys that are kept beside something else, in its partition: the beginning of their name, and what
#: stands for it in the other's name. So one commit, and one owner in a cluster, has both.
BESIDE = {"$mqtt/session/": "$mqtt/", "$mqtt/will/": "$mqtt/", "$mqtt/retained/": ""}

#: How long an engine without a loop waits for the journal at the end of a turn (seconds).
ALONE = 1.0
#: Upper bounds of the classes that commits are counted in (seconds); the last class has none.
BOUNDS = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's latest state in the data store; one that was deleted keeps its last revision."""

    key: str
    revision: int
    value: bytes | None
    expires: float = 0.0  # seconds since 1970; 0: never


@dataclass(frozen=True, slots=True)
class Stored:
    """A message in a queue; sequences count up within the queue."""

    queue: str
    sequence: int
    message: Message
    attempts: int = 0
    expires: float = 0.0  # seconds since 1970; 0: never
    due: float = 0.0  # not before, in seconds since 1970
    size: int = 0  # what it counts for in the queue's limits (bytes)


class Statistics:
    """Counters of commits; may be read from any thread."""

    def __init__(self) -> None:
        self.commits = 0
        self.in_place = 0
        self.records = 0
        self.bytes = 0
        self.seconds = 0.0
        self.classes = [0] * (len(BOUNDS) + 1)

    def count(self, seconds: float) -> None:
        """One more commit."""
        self.commits += 1
        self.seconds += seconds
        self.classes[bisect_left(BOUNDS, seconds)] += 1


class _Action(NamedTuple):
    """A callback for when everything written before it is durable, or for when that failed.

    With a partition, only that one has to be durable.
    """

    done: Callable[[], object]
    failed: Callable[[], object] | None = None
    partition: int | None = None


class _Commit:
    """The commit of one turn, and the callbacks that wait for it."""

    __slots__ = ("actions", "begun", "ends", "failed", "sent", "terms", "waiting")

    def __init__(
        self, actions: list[_Action], ends: dict[int, tuple[int, int]], terms: dict[int, int]
    ) -> None:
        self.actions = actions
        self.ends = ends  # the next offset and slot of each partition
        self.terms = terms  # how often each had been lost before
        self.waiting = set(ends)
        self.failed: set[int] = set()
        self.begun = time.perf_counter()
        self.sent = time.monotonic()


class _Queue:
    """Where a queue is kept, and which sequences are reserved for it."""

    __slots__ = ("next", "number", "partition", "reserved", "settings", "state")

    def __init__(self, settings: QueueSettings, partition: int, state: QueueState) -> None:
        self.settings = settings
        self.partition = partition
        self.number = state.number
        self.state = state
        self.next = self.reserved = state.following


class _Checkpoint:
    """A checkpoint of one partition that is being written."""

    __slots__ = ("begin", "offset", "parts", "size", "slot")

    def __init__(self, begin: int, offset: int, slot: int, parts: Iterator[Record]) -> None:
        self.begin = begin  # the number of its first record
        self.offset = offset
        self.slot = slot
        self.parts = parts
        self.size = 0


class Engine:
    """Keeps the broker's durable state."""

    def __init__(
        self,
        journal: Journal,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        capture: bool = True,
        compression: Compression = "none",
        aside: Path | None = None,
        checkpoint_bytes: int = CHECKPOINT_BYTES,
        adopted: Iterable[int] | None = None,
    ) -> None:
        """Take up all partitions of a journal, and again where one is lost without another owner.

        Without a loop, a turn ends with `after`. Without `capture` there is no log. What cannot be
        decoded is kept in the folder `aside`, if given. `adopted`: the partitions to begin with, of
        a journal that has other owners, too; who calls `adopt` and `lose` decides on all others.
        """
        self._checkpoint_bytes = checkpoint_bytes
        self.journal = journal
        self.statistics = Statistics()
        #: Partitions of the log; 0 where there is none.
        self.partitions = journal.partitions if capture else 0
        #: Tells this log from any other, so that nobody takes its offsets for another's.
        self.log_id = journal.id if capture else ""
        self._loop = loop
        self._thread = threading.get_ident()
        self._compression: Compression = compression
        #: Where everything is, where that is a disk.
        self.folder = aside
        self._aside_file: Path | None = None
        self._damage: list[str] = []
        self._all = journal.partitions
        self._states = [PartitionState() for _ in range(self._all)]
        self._keys: dict[int, list[record.Entry]] = {}
        self._queues: dict[str, _Queue] = {}
        #: The partitions that are here; why others were lost; those to be taken up again.
        self._here: set[int] = set()
        self._lost: dict[int, str] = {}
        self._missed: set[int] = set()
        self._terms = [0] * self._all  # how often each was lost
        self._is_sole_owner = adopted is None
        #: Told which partitions have a commit that became durable, and when it was sent
        #: (`time.monotonic`); and whether reads of a partition may be answered from memory.
        self.on_durable: Callable[[Iterable[int], float], object] | None = None
        self.may_read: Callable[[int], bool] = lambda partition: True
        #: Told of each partition that was taken up (True) or lost (False).
        self.listeners: list[Callable[[int, bool], object]] = []
        seed = secrets.randbits(32)
        self._durable_ends: dict[int, tuple[int, int]] = {}
        self._rows = Rows(self._all, seed=seed)
        self._private = Rows(self._all, seed=seed)
        self._table = FrameTable(COLLECTED)
        # Of the open turn:
        self._collected: list[tuple[Message, int, bool]] = []
        self._upcoming: dict[tuple[int, bool], int] = {}  # rows of these, by partition
        self._changes: dict[int, QueueChanges] = {}
        self._seen: dict[int, list[record.Entry]] = {}
        self._parts: dict[int, list[Record]] = {}
        self._actions: list[_Action] = []
        self._is_spoiled = False  # was something of it thrown away?
        self._readers: set[int] = set()  # clients that were read
        self._waiting: set[int] = set()  # clients that wait for the commit
        # Of turns:
        self._timer: asyncio.TimerHandle | None = None
        self._ends_soon = False
        self._pending: deque[_Commit] = deque()
        self._told: deque[tuple[_Commit, Mapping[int, Outcome]]] = deque()
        self._slow = 0.0  # how long commits in place take, on average (seconds)
        self._closed = self._is_incomplete = False
        #: How many commits did not become durable, and turns of which something was thrown away.
        self.failures = 0
        # Of checkpoints: the bytes of changes since the last one, and its own.
        self._changed = [0] * self._all
        self._state_size = [0] * self._all
        self._checkpoints: dict[int, _Checkpoint] = {}
        self._checkpoint_timer: asyncio.TimerHandle | None = None
        self._take_back_timer: asyncio.TimerHandle | None = None
        for partition in range(self._all) if adopted is None else adopted:
            self._adopt(partition, journal.recover(partition))
        for position in journal.positions():
            self._changed[position.partition] = position.since_checkpoint
        self.end_turn()

    @classmethod
    def on_disk(
        cls,
        folder: Path,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        partitions: int | None = PARTITIONS,
        capture: bool = True,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = "none",
        retention: Sequence[Rule] = (),
    ) -> Engine:
        """Open the journal of a data directory, which no other process may use meanwhile."""
        journal = FilesJournal(
            folder,
            partitions=partitions if capture else None,
            segment_bytes=segment_bytes,
            rules=retention,
            compression=compression,
        )
        try:
            return cls(journal, loop=loop, capture=capture, compression=compression, aside=folder)
        except BaseException:
            journal.close()
            raise

    @classmethod
    def in_memory(
        cls,
        *,
        loop: asyncio.AbstractEventLoop | None = None,
        partitions: int = 0,
        log_bytes: int = 0,
    ) -> Engine:
        """Keep everything in memory; of the log at most `log_bytes`, if given, the latest."""
        journal = MemoryJournal(partitions=partitions or 1, log_bytes=log_bytes)
        checkpoint_bytes = CHECKPOINT_BYTES_IN_MEMORY
        return cls(journal, loop=loop, capture=partitions > 0, checkpoint_bytes=checkpoint_bytes)

    # Partitions

    def is_here(self, partition: int) -> bool:
        """Is a partition taken up?"""
        return partition in self._here

    def answers_for(self, partition: int) -> bool:
        """Whether this node tells of a partition's rows: it is taken up, or nobody else can."""
        return self._is_sole_owner or partition in self._here

    def prove(self, partition: int) -> None:
        """Write a record, unless this node certainly owns a partition now.

        It owned the partition if everything that was written becomes durable.
        """
        if not self.may_read(partition):
            self.write_entry(Entry(PROOF, 1, None), partition=partition)

    @property
    def is_shared(self) -> bool:
        """Whether other nodes own partitions of the same journal."""
        return not self._is_sole_owner

    @property
    def all_partitions(self) -> int:
        """The number of partitions, whoever owns them; 1 at least."""
        return self._all

    def adopt(self, partition: int, found: Recovered | None = None) -> None:
        """Take a partition up with its queues and keys; does nothing where it is here.

        `found`: what `journal.recover` gave on another thread, since that may wait for a network.
        Raises EngineError where the journal does not give it; the partition is not here then.
        """
        check_partition(partition, self._all)
        self._run_told()
        if partition in self._here:
            return
        self._adopt(partition, found or self.journal.recover(partition))
        self._changed[partition] = self.journal.positions()[partition].since_checkpoint
        self.touch()
        for listener in self.listeners:
            listener(partition, True)

    def _adopt(self, partition: int, found: Recovered) -> None:
        self._states[partition] = PartitionState()
        self._rows.restart(partition, found.offset)
        self._private.restart(partition, found.slot)
        self._durable_ends[partition] = found.offset, found.slot
        self._apply(partition, found)
        self._here.add(partition)
        self._lost.pop(partition, None)
        self._missed.discard(partition)
        self._find_queues(partition)

    def lose(self, partition: int, why: str = "") -> None:
        """Drop a partition, with its changes that are not durable; does nothing if it is not here.

        What is on its way to the journal may become durable. With `why`, it is trouble.
        """
        check_partition(partition, self._all)
        if partition not in self._here:
            if partition in self._lost and not why:
                self._lost[partition] = ""  # another node has it: that is no trouble of this one
            return
        self._flush()
        self._here.discard(partition)
        self._lost[partition] = why
        self._terms[partition] += 1
        thrown = self._rows.restart(partition, 0) + self._private.restart(partition, 0)
        for written in (self._changes, self._keys, self._seen):
            thrown += written.pop(partition, None) is not None
        self._is_spoiled |= thrown > 0
        self._parts.pop(partition, None)
        self._checkpoints.pop(partition, None)
        self._changed[partition] = self._state_size[partition] = 0
        self._states[partition] = PartitionState()
        for name in [name for name, one in self._queues.items() if one.partition == partition]:
            del self._queues[name]
        if why:
            log.error("partition %d is lost: %s", partition, why)
        for listener in self.listeners:
            listener(partition, False)

    def fetch_again(self, partition: int) -> bool:
        """Lose a partition whose copy here is damaged, once this turn is over.

        Returns False where nobody else has what cannot be read here.
        """
        if not self.journal.can_fetch_again(partition):
            return False
        why = f"the copy of partition {partition} is damaged, and is fetched again"
        lose = lambda: self.lose(partition, why)  # noqa: E731
        self.after(lose, failed=lose)
        return True

    def _take_back(self) -> None:
        """Take up again what was lost although nobody else owns it."""
        self._take_back_timer = None
        missed, self._missed = self._missed, set()
        for partition in [] if self._closed else sorted(missed):
            if any(partition in commit.waiting for commit in self._pending):
                self._missed.add(partition)
                continue
            try:
                self.adopt(partition)
            except EngineError as error:
                self._missed.add(partition)
                log.warning("partition %d is not taken up again yet: %s", partition, error)
        if self._missed and self._loop is not None and not self._closed:
            self._take_back_timer = self._loop.call_later(TAKE_BACK, self._take_back)

    def _check_here(self, partition: int) -> None:
        if partition not in self._here:
            raise EngineError(self.lost_because(partition), retriable=True)

    def lost_because(self, partition: int) -> str:
        """Why a partition is not here."""
        return self._lost.get(partition) or f"partition {partition} is not here"

    # What was found

    def _apply(self, partition: int, found: Recovered) -> None:
        """Work the state of a partition out."""
        state = self._states[partition]
        for one in found.records:
            try:
                state.apply(one)
            except EngineError as error:
                self.set_aside(f"a record of partition {partition}", one.data, error)
        for name in [name for name in state.keys if not _is_text(name)]:
            value = state.keys.pop(name).value
            self.set_aside(f"a key of partition {partition}", value or b"", ValueError(f"{name!r}"))
        wanted = {value.place: name for name, value in state.keys.items() if value.place >= 0}
        for place, message in self._messages(partition, wanted, private=False):
            name = wanted.pop(place)
            known = state.keys[name]
            state.keys[name] = Value(known.revision, bytes(message.payload), known.until)
        if wanted and self.journal.can_fetch_again(partition):
            self._states[partition] = PartitionState()
            text = f"the copy of partition {partition} is damaged, and is fetched again"
            raise EngineError(text, retriable=True)
        for place, name in wanted.items():
            known = state.keys[name]  # deleted, so that its revision is not given out again
            state.keys[name] = Value(known.revision, None, known.until)
            self._keys.setdefault(partition, []).append(
                record.Entry(Change.DELETE, name, number=known.revision, until=known.until)
            )
            self._tell_damage(f"the key {name.decode()} is lost: row {place} is not there")

    def _find_queues(self, partition: int) -> None:
        """The queues of a partition, with sequences that nobody has used before or will again."""
        state = self._states[partition]
        for one in list(state.queues.values()):
            settings = self._settings(partition, one)
            if settings is None or settings.name in self._queues:
                self._change(partition).remove(one.number)
                del state.queues[one.number]
            else:
                queue = self._queues[settings.name] = _Queue(settings, partition, one)
                self._reserve(queue)
                if self.is_shared:  # another node's clock may be wrong: their time begins again
                    ends = _microseconds(time.time() + settings.dedup_window)
                    one.ids = OrderedDict.fromkeys(one.ids, ends)

    def _settings(self, partition: int, queue: QueueState) -> QueueSettings | None:
        """A queue's settings, the defaults where they cannot be read; None where it has no name."""
        name = ""
        try:
            name = msgspec.json.decode(queue.settings, type=_Named).name
            return msgspec.json.decode(queue.settings, type=QueueSettings)
        except (msgspec.MsgspecError, ValueError) as error:
            if queue.settings:
                what = f"the settings of the queue {name or queue.number}"
                self.set_aside(what, queue.settings, error)
        if not name:
            first = next(iter(queue.messages), None)
            if first is not None:
                found = self._messages(partition, [first.place], private=first.private)
                name = next((message.address for _, message in found), "")
        if name:
            self._tell_damage(f"the settings of the queue {name} are lost; it has the defaults now")
            return QueueSettings(name)
        if len(queue.messages):
            self._tell_damage(f"a queue with {len(queue.messages)} messages is lost with its name")
        return None

    def _messages(
        self, partition: int, places: Iterable[int], *, private: bool
    ) -> Iterator[tuple[int, Message]]:
        """Yield the messages at these places that can be read, with their places."""
        for batch, rows in self._batches(partition, places, private=private):
            table = FrameTable(batch.num_rows)
            from_arrow(batch, table)
            times = pc.cast(batch.column("timestamp"), "int64")
            dialects, ttls = batch.column("dialect"), batch.column("ttl")
            for place, k in rows.items():
                message = table.message(k, times[k].as_py())
                yield place, replace(message, dialect=dialects[k].as_py(), ttl=ttls[k].as_py())

    def _batches(
        self, partition: int, places: Iterable[int], *, private: bool
    ) -> Iterator[tuple[pa.RecordBatch, dict[int, int]]]:
        """Yield batches that have these places, and which of their rows have which place."""
        left = set(places)
        for space in _spaces(private):
            for start, stop in _spans(left):
                for batch in self._decoded(partition, start, stop, space):
                    offsets = batch.column("offset").to_pylist()
                    rows = {place: k for k, place in enumerate(offsets) if place in left}
                    if rows:
                        left -= rows.keys()
                        yield batch, rows

    def _decoded(
        self, partition: int, start: int, stop: int, space: Space
    ) -> Iterator[pa.RecordBatch]:
        """Yield the batches with rows in places [start, stop); what makes no sense is set aside."""
        for stored in self.journal.read(partition, start, stop, space=space):
            try:
                batch = decode(stored.ipc)
                batch.column("offset")
            except UNDECODABLE as error:
                what = f"batch {stored.base} of partition {partition}"
                self.set_aside(what, bytes(stored.ipc), error)
            else:
                yield batch

    @property
    def damage(self) -> list[str]:
        """Reports of damage found at the start or while reading."""
        return [*map(str, self.journal.losses), *self._damage]

    @property
    def damage_count(self) -> int:
        """How much was found damaged so far."""
        return len(self.journal.losses) + len(self._damage)

    def _tell_damage(self, text: str) -> None:
        log.error("%s", text)
        self._damage.append(text)

    def report_lost(self, what: str) -> None:
        """Report that something cannot be read any more."""
        self._tell_damage(f"{what} cannot be read, and is lost")

    def set_aside(self, what: str, raw: bytes, error: Exception) -> None:
        """Keep bytes that were stored and cannot be decoded in a file, and report them."""
        text = f"{what} cannot be read: {error}"
        if self.folder is not None:
            if self._aside_file is None:
                self._aside_file = self.folder / f"undecodable-{time.time_ns()}.jsonl"
            line = {"what": what, "error": str(error), "base64": base64.b64encode(raw).decode()}
            with contextlib.suppress(OSError):
                self._aside_file.touch(0o600)
                with self._aside_file.open("ab") as file:
                    file.write(msgspec.json.encode(line) + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                text += f"; kept in {self._aside_file.name}"
        self._tell_damage(text)

    @property
    def trouble(self) -> str:
        """Why something cannot be written now; empty while all is well."""
        if not self.journal.troubles and not self._lost:
            return ""
        return self.stalled or next(filter(None, self._lost.values()), "")

    @property
    def stalled(self) -> str:
        """Why a partition that is here cannot be written now; empty while all of them can be."""
        troubles = self.journal.troubles
        return next((why for one, why in troubles.items() if one in self._here), "")

    def trouble_of(self, name: str) -> str:
        """Why nothing can be written now of an address, a queue or a key; empty if it can be."""
        if not self.journal.troubles and len(self._here) == self._all:
            return ""
        partition = self.home(name)
        if partition not in self._here:
            return self.lost_because(partition)
        return self.journal.troubles.get(partition, "")

    def home(self, name: str) -> int:
        """Return the partition that an address, a queue or a key belongs to."""
        if name.startswith("$"):
            for prefix, with_what in BESIDE.items():
                if name.startswith(prefix):
                    name = with_what + name.removeprefix(prefix)
                    break
        return home(name.encode(), self._all)

    # The data store

    def entries(self, partition: int | None = None) -> Iterator[tuple[int, Entry]]:
        """Every key's latest state, and the partition that it is in; of one, or of all."""
        self._flush()
        for where in range(self._all) if partition is None else (partition,):
            state = self._states[where]
            for name, one in list(state.keys.items()):  # who reads them may drop some
                yield where, Entry(name.decode(), one.revision, one.value, one.until / 1e6)

    def write_entry(
        self,
        entry: Entry,
        *,
        told: Message | None = None,
        timestamp: int = 0,
        partition: int | None = None,
    ) -> None:
        """Keep a key's latest state, in its home or in this partition. Revisions count from 1.

        `told`: the message of the log whose payload is the value, which is written once then.
        """
        _check_name(entry.key)
        _check_size(entry.value or b"")
        self.touch()
        where = self.home(entry.key) if partition is None else partition
        self._check_here(where)
        place = -1
        if told is not None:
            place = self._collect(told, timestamp, where, logged=True)
        self._set_key(where, entry, place if self.partitions else -1)

    def _set_key(self, partition: int, entry: Entry, place: int) -> None:
        """`place` is that of the row with the value, or -1."""
        name, until = entry.key.encode(), _microseconds(entry.expires)
        if entry.value is None:
            change = record.Entry(Change.DELETE, name, b"", entry.revision, until)
        elif place < 0:
            change = record.Entry(Change.SET, name, entry.value, entry.revision, until)
        else:
            change = record.Entry(Change.SET_ROW, name, b"", entry.revision, until, place)
        self._keys.setdefault(partition, []).append(change)
        self._states[partition].keys[name] = Value(entry.revision, entry.value, until)

    def drop_entry(self, key: str, partition: int | None = None) -> None:
        """Forget a key, in its home or in this partition; does nothing where there is none."""
        where, name = self.home(key) if partition is None else partition, key.encode()
        if self._states[where].keys.pop(name, None) is not None:
            self.touch()
            self._keys.setdefault(where, []).append(record.Entry(Change.FORGET, name))

    # Queues

    def queues(self, partition: int | None = None) -> list[QueueSettings]:
        """The queues that were declared, in one partition or in all."""
        return [
            queue.settings
            for queue in self._queues.values()
            if partition is None or queue.partition == partition
        ]

    def declare(self, settings: QueueSettings) -> None:
        """Store a new queue, or new settings of one."""
        _check_name(settings.name)
        self.touch()
        queue = self._queues.get(settings.name)
        if queue is None:
            partition = self.home(settings.name)
            self._check_here(partition)
            state = self._states[partition]
            made = state.queues[state.next_queue] = QueueState(state.next_queue)
            state.next_queue += 1
            queue = self._queues[settings.name] = _Queue(settings, partition, made)
        queue.settings = settings
        self._reserve(queue)

    def remove(self, queue: str) -> None:
        """Delete a queue with its messages."""
        known = self._queues.pop(queue, None)
        if known is not None:
            self.touch()
            self._change(known.partition).remove(known.number)
            self._states[known.partition].queues.pop(known.number, None)

    def stored(self, queue: str) -> list[Stored]:
        """The messages in a queue, in the order of their sequences.

        Those that cannot be read are reported, and forgotten.
        """
        return self.stored_of(queue, list(self._known(queue).state.messages))

    def stored_of(self, queue: str, references: Sequence[Reference]) -> list[Stored]:
        """Some of the messages in a queue, as `stored` has them."""
        known = self._known(queue)
        found: dict[tuple[bool, int], Message] = {}
        for private in (False, True):
            places = [one.place for one in references if one.private is private]
            for place, message in self._messages(known.partition, places, private=private):
                found[private, place] = message
        stored = []
        for one in references:
            if (one.private, one.place) in found:
                stored.append(_stored(queue, one, found.pop((one.private, one.place))))
            elif self.is_durable(queue, one.sequence, 1) and not self.fetch_again(known.partition):
                self._tell_damage(f"message {one.sequence} of the queue {queue} is lost")
                self.drop(queue, one.sequence)
        return stored

    def put(self, stored: Stored, *, captured: bool) -> None:
        """Store a message of a queue; if it is `captured`, as a row of the log.

        Its address is the queue's name from then on, and its op ENQUEUE.
        """
        queue = self._known(stored.queue)
        _check_size(stored.message.payload)
        self.touch()
        captured = captured and self.partitions > 0
        message = stored.message
        if message.op is not Op.ENQUEUE or message.address != stored.queue:
            message = replace(message, op=Op.ENQUEUE, address=stored.queue)
        place = self._collect(message, message.timestamp, queue.partition, logged=captured)
        put = Put(
            queue.number,
            stored.sequence,
            1,
            place,
            not captured,
            stored.size,
            message.priority,
            _microseconds(stored.due),
            _microseconds(stored.expires),
            bool(message.flags & Flag.TEXT),
        )
        self._put(queue, put)

    def put_rows(
        self,
        name: str,
        table: FrameTable,
        sequence: int,
        timestamp: int,
        sizes: array[int],
        *,
        captured: bool,
    ) -> None:
        """Keep the rows of a table as messages of a queue, with the sequences from this one on.

        They have the queue's address, and priority, delay and ttl of none of them count.
        """
        queue = self._known(name)
        self._flush()
        self.touch()
        captured = captured and self.partitions > 0
        rows = self._rows if captured else self._private
        place = rows.following(queue.partition)
        rows.append(table, None, timestamp, b"")
        for begin, end in _alike(table.flags, table.count, Flag.TEXT):
            put = Put(
                queue.number,
                sequence + begin,
                end - begin,
                place + begin,
                not captured,
                alike(sizes[begin:end]),
                text=bool(table.flags[begin] & Flag.TEXT),
            )
            self._put(queue, put)
        if rows.size > EAGER_BYTES:
            self._end_soon()

    def put_place(self, name: str, message: Reference, place: int) -> None:
        """Keep a row of the log, appended in this turn at `place`, as a message of a queue.

        `message` says what the queue knows of it: sequence, attempts, size, priority and times.
        """
        queue = self._known(name)
        self.touch()
        put = Put(
            queue.number,
            message.sequence,
            1,
            place,
            False,
            message.size,
            message.priority,
            message.due,
            message.expires,
            message.text,
        )
        self._put(queue, put)
        if message.attempts:
            self.count_attempts(name, message.sequence, 1, message.attempts)

    def _put(self, queue: _Queue, put: Put) -> None:
        queue.next = max(queue.next, put.sequence + put.count)
        if queue.reserved - queue.next < BLOCK // 2:
            self._reserve(queue)
        queue.state.messages.put(put)
        self._change(queue.partition).put(put)

    def count_attempts(self, name: str, sequence: int, count: int, attempts: int) -> None:
        """Store the number of deliveries of a run of messages."""
        queue = self._queues.get(name)
        if queue is not None:
            self.touch()
            queue.state.messages.attempt(sequence, count, attempts)
            self._change(queue.partition).attempt(queue.number, sequence, count, attempts)

    def count_attempt(self, stored: Stored) -> None:
        """Keep a message's new count of attempts."""
        self.count_attempts(stored.queue, stored.sequence, 1, stored.attempts)

    def drop(self, queue: str, sequence: int, count: int = 1) -> None:
        """Delete a run of acknowledged messages from a queue."""
        known = self._queues.get(queue)
        if known is not None:
            self.touch()
            known.state.messages.drop(sequence, count)
            self._change(known.partition).drop(known.number, sequence, count)

    def references(self, queue: str) -> References:
        """The messages in a queue; they change as messages are put and dropped."""
        return self._known(queue).state.messages

    def is_durable(self, queue: str, sequence: int, count: int) -> bool:
        """Can the contents of a run of messages be read again? Also where they are done."""
        known = self._queues.get(queue)
        if known is None or (not self._pending and not self._rows.size and not self._private.size):
            return True
        last = known.state.messages.get(sequence + count - 1)
        if last is None:
            return True
        offset, slot = self._durable_ends[known.partition]
        return last.place < (slot if last.private else offset)

    def contents(
        self, queue: str, sequence: int, most: int, most_bytes: int
    ) -> Iterator[tuple[int, FrameTable, array[int]]]:
        """Read messages of a queue from a sequence on: up to `most`, about `most_bytes`.

        Yields runs: the first sequence, a table with a row for each, and when they came. Those that
        cannot be read are left out.
        """
        known = self._known(queue)
        name = queue.encode()
        for run in known.state.messages.runs_after(sequence, most, most_bytes):
            stop = run.place + run.count
            flags = Flag.TEXT if run.text else NO_FLAGS
            for space in _spaces(run.private):
                for batch in self._decoded(known.partition, run.place, stop, space):
                    for rows, place in _rows_between(batch, run.place, stop):
                        first = run.sequence + place - run.place
                        yield from _tables(rows, first, name, flags)

    def next_sequence(self, queue: str) -> int:
        """A sequence that, like all above it, was never given out in a queue."""
        known = self._queues.get(queue)
        return known.next if known is not None else 1

    def remember_id(self, queue: str, identity: str, until: float) -> None:
        """Keep the id of a message that was put, until a time in seconds since 1970."""
        known = self._known(queue)
        self.touch()
        name, ends = identity.encode(errors="surrogatepass"), _microseconds(until)
        seen = record.Entry(Change.SET, name, number=known.number, until=ends, note=Note.SEEN)
        self._seen.setdefault(known.partition, []).append(seen)
        ids = known.state.ids
        ids.pop(name, None)
        ids[name] = ends
        now = time.time() * 1e6
        while ids and next(iter(ids.values())) < now:
            ids.popitem(last=False)

    def remembered_ids(self, queue: str) -> Iterator[tuple[str, float]]:
        """The ids that were put, and until when to know them, the oldest first."""
        known = self._known(queue)
        for name, until in known.state.ids.items():
            yield name.decode(errors="surrogatepass"), until / 1e6

    def _known(self, name: str) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            raise EngineError(f"no queue {name}")
        return queue

    def _change(self, partition: int) -> QueueChanges:
        changes = self._changes.get(partition)
        if changes is None:
            changes = self._changes[partition] = QueueChanges()
        return changes

    def _reserve(self, queue: _Queue, block: int = BLOCK) -> None:
        queue.reserved = queue.state.following = queue.next + block
        text = queue.state.settings = msgspec.json.encode(queue.settings)
        self._change(queue.partition).declare(queue.number, queue.reserved, text)

    # The log

    def append(
        self, table: FrameTable, rows: array[int] | None, timestamp: int | array[int], source: bytes
    ) -> None:
        """Add rows of a table (all, or these), received at `timestamp` (µs) from `source`.

        They are copied. A row's own source counts where `source` is empty. Rows that came at
        different times have one each.
        """
        if self.partitions:
            self._flush()
            self.touch()
            self._rows.append(table, rows, timestamp, source)
            if self._rows.size > EAGER_BYTES:
                self._end_soon()

    def places(self, table: FrameTable, rows: Sequence[int]) -> list[tuple[int, int]]:
        """The partition and offset that each of these rows gets if they are appended next.

        Empty where there is no log.
        """
        self._flush()  # what was collected comes before them
        return self._rows.places(table, rows) if self.partitions else []

    def write(self, message: Message, timestamp: int) -> None:
        """Add one message to the log, received at `timestamp` (µs)."""
        if self.partitions:
            self.touch()
            self._collect(message, timestamp, self.home(message.address), logged=True)

    def _collect(self, message: Message, timestamp: int, partition: int, *, logged: bool) -> int:
        """Make a row of a message soon, of the log or of the slots; return its place."""
        logged = logged and self.partitions > 0
        if len(self._collected) == COLLECTED:
            self._flush()
        self._collected.append((message, timestamp, logged))
        upcoming = self._upcoming.get((partition, logged), 0)
        self._upcoming[partition, logged] = upcoming + 1
        rows = self._rows if logged else self._private
        return rows.following(partition) + upcoming

    def _flush(self) -> None:
        """Make rows of what was collected; a table has messages of one dialect."""
        if not self._collected:
            return
        collected, self._collected = self._collected, []
        self._upcoming = {}
        for (dialect, logged), group in groupby(collected, lambda one: (one[0].dialect, one[2])):
            some = list(group)
            messages = [one[0] for one in some]
            try:
                self._table.fill(messages, dialect)
            except UnicodeEncodeError:
                self._table.fill(map(_encodable, messages), dialect)
            rows = self._rows if logged else self._private
            rows.append(self._table, None, array("q", [one[1] for one in some]), b"")

    @property
    def backlog(self) -> int:
        """The bytes that are not durable yet."""
        return self.journal.backlog + self._rows.size + self._private.size

    def positions(self) -> list[Position]:
        """Where each partition of the log begins and ends."""
        self._end_if_alone()
        return self.journal.positions() if self.partitions else []

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """The batches that hold rows [start, stop), in order; for any thread.

        The first and the last may hold more rows than that. Batches that are known to have no row
        whose address `may_match` may be left out.
        """
        if not self.partitions:
            return iter(())
        self._end_if_alone()
        return self.journal.read(partition, start, stop, may_match=may_match)

    def retain(self, rules: Sequence[Rule]) -> None:
        """Keep rows of the log as long as these rules say, from now on."""
        self.journal.retain(rules)

    # Turns

    def heard(self, client: int) -> None:
        """A client, known by its number, is read in this turn."""
        self._readers.add(client)
        if len(self._readers) > MOST_READERS:  # nothing was committed for long
            self._readers = {-1}

    def touch(self) -> None:
        """Something is written in this turn: it will be committed, soon if somebody waits."""
        if self._closed:
            raise EngineError("the engine is closed")
        if self._timer is not None or self._ends_soon:
            return
        if self._loop is None:
            with contextlib.suppress(RuntimeError):  # no loop runs: the turn ends with `after`
                asyncio.get_running_loop().call_soon(self.end_turn)
                self._ends_soon = True
        elif not self._loop.is_closed():
            self._timer = self._loop.call_later(LINGER, self.end_turn)

    def _end_soon(self) -> None:
        if self._loop is None:
            self.end_turn()
            return
        if self._ends_soon or self._loop.is_closed():
            return
        self._ends_soon = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._loop.call_soon(self.end_turn)

    def after(
        self,
        action: Callable[[], object],
        client: int = 0,
        *,
        failed: Callable[[], object] | None = None,
        partition: int | None = None,
    ) -> None:
        """Run an action once all that was written so far is durable; a client waits for it.

        Where something of this turn does not become durable, or of this `partition` if one is
        given, `failed` is run instead.
        """
        if self._closed:
            raise EngineError("the engine is closed")
        if client:
            self._waiting.add(client)
        self._actions.append(_Action(action, failed, partition))
        self._end_soon()

    def _end_if_alone(self) -> None:
        """Without a loop nobody else ends the turn; readers on other threads do not."""
        if self._loop is None and threading.get_ident() == self._thread and not self._closed:
            self.end_turn()

    def end_turn(self) -> None:
        """Commit the changes of this turn."""
        self._ends_soon = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        actions, self._actions = self._actions, []
        commits = self._pack()
        for partition in [one for one in commits if one not in self._here]:
            log.error("rows are thrown away: %s", self.lost_because(partition))
            del commits[partition]
            self._is_spoiled = True
        if self._is_spoiled:
            self._is_spoiled = False
            self.failures += 1
            actions = [self._spoiled(one) for one in actions]
        everybody_waits = self._readers <= self._waiting
        self._readers.clear()
        self._waiting.clear()
        if not commits:
            if self._pending:
                self._pending[-1].actions += actions
                self._wait_alone()
            else:
                _run(actions, set())
            return
        following = self._rows.following, self._private.following
        ends = {one: (following[0](one), following[1](one)) for one in commits}
        commit = _Commit(actions, ends, {one: self._terms[one] for one in commits})
        self._pending.append(commit)
        size = self._count(commits)
        in_place = self._loop is None or (
            bool(actions)
            and everybody_waits
            and size <= IN_PLACE_BYTES
            and self._slow < IN_PLACE_SECONDS
        )
        try:
            self.journal.append(commits, partial(self._settled, commit), in_place=in_place)
        except EngineError as error:
            self._tell_damage(f"a commit was refused by the journal: {error}")
            self._told.append((commit, dict.fromkeys(commits, Outcome.UNAVAILABLE)))
            self._run_told()
            return
        if in_place:
            took = time.perf_counter() - commit.begun
            self._slow += (took - self._slow) / 8
            self.statistics.in_place += 1
        else:
            self._slow *= 0.99  # a disk that was slow for a while is tried again
        for partition in commits:
            if self._changed[partition] > max(self._checkpoint_bytes, self._state_size[partition]):
                self._begin_checkpoint(partition)
        self._run_told()
        self._wait_alone()

    def _wait_alone(self) -> None:
        """Without a loop, wait here for what the journal's thread writes: nobody else would.

        Not while there is trouble, and not for long: what has no outcome yet runs in a later turn.
        """
        end = time.monotonic() + ALONE
        while self._loop is None and self._pending and not self.journal.trouble:
            if self._told:
                self._run_told()
            elif time.monotonic() > end:
                return
            else:
                time.sleep(0.0002)

    def _spoiled(self, action: _Action) -> _Action:
        """Return what to do with a callback when changes before it are dropped."""
        if action.partition in self._here:
            return action
        return _Action(action.failed or _nothing, action.failed)

    def _pack(self) -> dict[int, list[Record]]:
        """All that was written since the last turn, as records of each partition."""
        self._flush()
        # Parts of a checkpoint come first: they tell the state before the changes of this turn.
        commits, self._parts = self._parts, {}
        for rows, type in ((self._rows, Type.ROWS), (self._private, Type.MESSAGES)):
            if rows.size:
                for batch in rows.take().batches(self._compression):
                    commits.setdefault(batch.partition, []).append(_rows_record(batch, type))
        if self._changes:
            for partition, changes in self._changes.items():
                if changes:
                    commits.setdefault(partition, []).append(changes.record())
            self._changes = {}
        for type, entries in ((Type.KEYS, self._keys), (Type.NOTES, self._seen)):
            for partition, some in entries.items():
                made = record.encode_entries(type, some)
                commits.setdefault(partition, []).append(made)
            entries.clear()
        return commits

    def _count(self, commits: dict[int, list[Record]]) -> int:
        """Count a commit; return its bytes."""
        total = 0
        for partition, records in commits.items():
            for one in records:
                size = record.HEADER + sum(map(len, one.body))
                total += size
                if one.type is not Type.ROWS:
                    self._changed[partition] += size
            self.statistics.records += len(records)
        self.statistics.bytes += total
        return total

    def _settled(self, commit: _Commit, outcomes: Mapping[int, Outcome]) -> None:
        """The journal tells what became of a commit; on any thread."""
        self._told.append((commit, outcomes))
        if self._loop is not None and _other_thread(self._loop):
            with contextlib.suppress(RuntimeError):  # a loop that is closed runs nothing
                self._loop.call_soon_threadsafe(self._run_told)

    def _run_told(self) -> None:
        """Run the actions whose commits have their outcomes, in order."""
        while self._told:
            commit, outcomes = self._told.popleft()
            commit.waiting -= outcomes.keys()
            for partition, outcome in outcomes.items():
                if outcome is not Outcome.DURABLE:
                    self._failed(commit, partition, outcome)
            if self.on_durable is not None:
                kept = [one for one, how in outcomes.items() if how is Outcome.DURABLE]
                self.on_durable(kept, commit.sent)
            if not commit.waiting and not commit.failed:
                self.statistics.count(time.perf_counter() - commit.begun)
        while self._pending and not self._pending[0].waiting:
            commit = self._pending.popleft()
            for partition, ends in commit.ends.items():
                if (
                    partition not in commit.failed
                    and commit.terms[partition] == self._terms[partition]
                ):
                    self._durable_ends[partition] = ends
            _run(commit.actions, commit.failed)
        if self._missed and self._take_back_timer is None:
            self._take_back()

    def _failed(self, commit: _Commit, partition: int, outcome: Outcome) -> None:
        """A commit of a partition did not become durable: its state is ahead of the journal."""
        self.failures += not commit.failed
        commit.failed.add(partition)
        if self._closed:
            self._is_incomplete = True
        if commit.terms[partition] != self._terms[partition]:
            return  # it was lost already
        if outcome is Outcome.LOST:
            self.lose(partition, f"partition {partition} has another owner")
        else:
            why = self.journal.troubles.get(partition) or "a commit did not become durable"
            self.lose(partition, f"partition {partition} is taken up again: {why}")
            if self._is_sole_owner and not self._closed:
                self._missed.add(partition)

    # Checkpoints

    def _begin_checkpoint(self, partition: int) -> None:
        """Write the state of a partition again, a part at a time."""
        if partition in self._checkpoints or self._closed:
            return
        position = self.journal.positions()[partition]
        now = int(time.time() * 1e6)
        self._checkpoints[partition] = _Checkpoint(
            position.number,
            self._rows.following(partition),
            self._private.following(partition),
            self._states[partition].parts(now),
        )
        if self._checkpoint_timer is None and not self._write_parts_later():
            while self._checkpoints:
                self._write_parts()

    def _write_parts_later(self) -> bool:
        """Write more of the checkpoints soon; False where no loop runs that could do it."""
        loop = self._loop or _running_loop()
        if loop is not None and not loop.is_closed():
            self._checkpoint_timer = loop.call_later(PART_EVERY, self._write_parts)
        return self._checkpoint_timer is not None

    def _write_parts(self) -> None:
        """Write the next part of each checkpoint, and finish those that have no more."""
        if self._checkpoint_timer is not None:
            self._checkpoint_timer.cancel()
            self._checkpoint_timer = None
        if self._closed:
            return
        for partition, one in list(self._checkpoints.items()):
            part = next(one.parts, None)
            parts = self._parts.setdefault(partition, [])
            if part is not None:
                one.size += record.HEADER + sum(map(len, part.body))
                parts.append(part)
                continue
            parts.append(checkpoint(one.begin))
            self._state_size[partition] = one.size
            self.touch()
            self.end_turn()
            if self._checkpoints.pop(partition, None) is one:  # it may be lost meanwhile
                needed = self._states[partition].needed(one.offset, one.slot)
                self.journal.keep(partition, needed)
                self._changed[partition] = 0
        self.touch()
        if self._checkpoints:
            self._write_parts_later()

    def checkpoint(self) -> None:
        """Write the state of all partitions now, and let the journal forget what is not needed."""
        self.end_turn()
        for partition in sorted(self._here):
            self._begin_checkpoint(partition)
        while self._checkpoints:
            self._write_parts()

    def close(self) -> None:
        """Flush everything, run the waiting callbacks, and release the journal."""
        if self._closed:
            return
        for queue in self._queues.values():  # nobody will use the rest of its block
            self._reserve(queue, 0)
        self._flush()
        self.end_turn()
        self._closed = True
        self.journal.close()
        self._run_told()
        if self._is_incomplete:
            raise EngineError(self.journal.trouble or "not everything could be written")


class _Named(msgspec.Struct):
    name: str


def _running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that runs on this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _other_thread(loop: asyncio.AbstractEventLoop) -> bool:
    """Is this not the thread of a loop?"""
    return _running_loop() is not loop


def _run(actions: list[_Action], failed: set[int]) -> None:
    """Run actions after their commit, which failed in these partitions."""
    for action in actions:
        partition = action.partition
        bad = partition in failed if partition is not None else bool(failed)
        run = action.failed if bad else action.done
        try:
            if run is not None:
                run()
        except Exception:  # the others must not suffer
            log.exception("an action failed after its commit")


def _nothing() -> None:
    """Nobody waits."""


def _rows_record(batch: RowBatch, type: Type) -> Record:
    times = (batch.first_time, batch.last_time)
    return record.rows(batch.base, batch.count, *times, batch.pieces, names=batch.names, type=type)


def _spans(places: Iterable[int]) -> list[tuple[int, int]]:
    """Ranges that hold these places; those that are near each other are one."""
    spans: list[list[int]] = []
    for place in sorted(places):
        if spans and place - spans[-1][1] < GAP:
            spans[-1][1] = place + 1
        else:
            spans.append([place, place + 1])
    return [(start, stop) for start, stop in spans]


def _spaces(private: bool) -> tuple[Space, ...]:
    """Where the rows of messages can be."""
    return (Space.PRIVATE,) if private else (Space.LOG, Space.KEPT)


def _cells(column: pa.Array, code: Any) -> Any:
    """Return a column of integers without nulls as items of a C type, not copied."""
    cells = memoryview(column.buffers()[1]).cast("B").cast(code)
    return cells[column.offset : column.offset + len(column)]


def _rows_between(
    batch: pa.RecordBatch, start: int, stop: int
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of a batch in places [start, stop), those in adjacent places together.

    Each comes with its first place.
    """
    places = _cells(batch.column("offset"), "q")
    begin, end = bisect_left(places, start), bisect_left(places, stop)
    while begin < end:
        last = end - 1
        while places[last] - places[begin] != last - begin:
            last = begin if places[begin + 1] - places[begin] != 1 else (begin + last) // 2
        yield batch.slice(begin, last + 1 - begin), places[begin]
        begin = last + 1


def _tables(
    rows: pa.RecordBatch, sequence: int, address: bytes, flags: int
) -> Iterator[tuple[int, FrameTable, array[int]]]:
    """Yield messages with adjacent sequences, from this one on, as tables of one dialect each."""
    source = FrameTable(rows.num_rows)
    from_arrow(rows, source)
    times, ttls = _cells(rows.column("timestamp"), "q"), _cells(rows.column("ttl"), "i")
    dialects = rows.column("dialect")
    ends = [rows.num_rows]
    if len(dialects.unique()) > 1:
        names = dialects.to_pylist()
        ends = [k for k in range(1, len(names)) if names[k] != names[k - 1]] + ends
    begin = 0
    for end in ends:
        table = FrameTable(end - begin)
        chosen = array("i", range(begin, end))
        dialect = dialects[begin].as_py()
        table.derive(source, chosen, Op.ENQUEUE, address=address, dialect=dialect, flags=flags)
        if any(ttls[begin:end]):
            for k in range(begin, end):
                table.ttl[k - begin] = ttls[k]
        yield sequence + begin, table, array("q", times[begin:end])
        begin = end


def _alike(flags: Any, count: int, flag: int) -> Iterator[tuple[int, int]]:
    """Yield runs of rows that all have a flag, or have it not."""
    cells = memoryview(flags)[:count].tobytes()
    if cells == cells[:4] * count:
        yield 0, count
        return
    begin = 0
    for k in range(1, count + 1):
        if k == count or (flags[k] ^ flags[begin]) & flag:
            yield begin, k
            begin = k


def _stored(queue: str, one: Reference, message: Message) -> Stored:
    message = replace(message, flags=Flag.TEXT if one.text else NO_FLAGS)
    expires, due = one.expires / 1e6, one.due / 1e6
    return Stored(queue, one.sequence, message, one.attempts, expires, due, one.size)


def _encodable(message: Message) -> Message:
    """Return a message without halves of characters, which no text can have."""

    def text(value: str) -> str:
        return value.encode(errors="replace").decode()

    return replace(
        message,
        address=text(message.address),
        id=text(message.id),
        correlation_id=text(message.correlation_id),
        source=text(message.source),
        target=text(message.target),
        headers={text(name): text(value) for name, value in message.headers.items()},
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6) if seconds else 0


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_name(name: str) -> None:
    """Raise EngineError for what is no text."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise EngineError(f"not a name: {name!a}") from None


def _check_size(payload: bytes) -> None:
    if len(payload) > LARGEST:
        raise EngineError(f"{len(payload)} bytes are more than the {LARGEST} that can be kept")
