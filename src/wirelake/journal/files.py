"""The journal as files of one machine.

All partitions share one row of segments (`segment.py`), so an append is one write and one sync,
whatever number of partitions it is for.

**In place or beside.** `append` numbers and packs the records on the caller's thread. With
`in_place`, and if nothing else waits, it writes and syncs there too; the interpreter's lock is free
meanwhile. Else the writer's thread does it, for all appends that came since its last write.

**Trouble is a state.** What cannot be written waits and is tried again, until it works or the
journal is closed. After a failed sync the system may take pages for clean that were never written,
so that a later sync tells nothing: the journal goes on in a new segment. A folder or a file that is
deleted or replaced while it is used is trouble too: what was written there would not be found.

**Housekeeping.** A thread applies retention, writes segments again of which little is needed, and
reads old records to see that they are as they were written.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from wirelake.errors import ConfigError, EngineError
from wirelake.journal.arrow_stream import Compression
from wirelake.journal.contract import (
    MAX_PARTITIONS,
    PARTITIONS,
    Batch,
    Done,
    Harm,
    Journal,
    Loss,
    Needed,
    Outcome,
    Position,
    Recovered,
    Space,
    check_partition,
)
from wirelake.journal.record import (
    End,
    Header,
    Piece,
    Record,
    Type,
    encode_commit,
    split_rows,
)
from wirelake.journal.recovery import Recovery, describe, report, set_aside
from wirelake.journal.retention import Kept, Rule, from_place, in_order, plan, rewrite
from wirelake.journal.segment import STATE, Disk, Identity, Reader, Segment
from wirelake.journal.tail import SEGMENT_BYTES, Tail

#: What failed is tried again after this many seconds, then twice as many, up to a limit.
FIRST_RETRY = 0.05
LAST_RETRY = 2.0

#: How often to see whether the files are still there (seconds).
WATCH = 0.25

#: How often the journal is tidied (seconds), and how much of it is checked each time (bytes).
TIDY = 60.0
SCRUB = 256 << 20
#: How much the thread that does it yields to others.
NICENESS = 10

log = logging.getLogger("wirelake.journal")


class _Append(NamedTuple):
    """Commits that wait to be written."""

    headers: list[Header]
    pieces: list[Piece]
    size: int
    outcomes: dict[int, Outcome]  # if it works
    done: Done


class Origin(NamedTuple):
    """The journal that a copy of one partition is made of, and where its chain begins there."""

    identity: Identity
    partition: int
    begin: End = End()


class Scrub(NamedTuple):
    """How far the check of old records is: bytes of this round, and what it found."""

    checked: int
    total: int
    damaged: int


class FilesJournal(Journal):
    """A journal in the folder `journal` of a data directory, which nobody else can use meanwhile.

    Raises EngineError where the directory is used by another process, cannot be read or written, or
    was written by 0.1 or by a newer version; ConfigError where it has another number of partitions.
    """

    def __init__(
        self,
        data: Path,
        *,
        partitions: int | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        rules: Sequence[Rule] = (),
        compression: Compression = "none",
        tidy_every: float = TIDY,
        owner: str = "",
        disk: Disk | None = None,
        origin: Origin | None = None,
    ) -> None:
        """`partitions`: None for as many as it has, or the default.

        `tidy_every`: 0 for no housekeeping of its own; the caller calls `tidy` and `scrub` then.
        `origin`: of a copy of another journal, which only `extend` writes to, without a thread.
        """
        if partitions is not None and not 0 < partitions <= MAX_PARTITIONS:
            raise ConfigError("partitions", f"a journal has 1 to {MAX_PARTITIONS}")
        self.folder = data / "journal"
        self.losses: list[Loss] = []
        #: How long rows of the log are kept; may be replaced.
        self.rules = rules
        self._compression = compression
        self._owner = owner
        self._disk = disk or Disk()
        self._segment_bytes = segment_bytes
        self._origin = origin
        self._closed = False
        with _mapped("the journal cannot be opened", retriable=True):
            self._take_folder(data)
            try:
                self._open(partitions)
            except BaseException:
                os.close(self._lock_file)
                raise
        self._queue: deque[_Append] = deque()
        self._backlog = 0
        self._ordering = threading.Lock()  # held for moments, by who numbers records
        self._writing = threading.Lock()  # held by who writes to the last segment
        self._changing = threading.Lock()  # held for moments, by who changes what readers see
        self._tidying = threading.Lock()
        self._closing = threading.Event()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._places = {path: _inode(path) for path in (data, self.folder)}
        self._listed = 0  # when the folder had changed, as it was last looked at
        self._missing = ""  # what was deleted or replaced
        self._scrubbed: dict[Segment, int] = {}  # how far segments have been checked
        self._threads = []
        if origin is None:
            self._threads.append(
                threading.Thread(target=self._write_beside, name="wirelake-journal")
            )
        if tidy_every:
            keeper = threading.Thread(target=self._keep_house, args=(tidy_every,))
            keeper.name = "wirelake-tidy"
            self._threads.append(keeper)
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _take_folder(self, data: Path) -> None:
        """Make the folder if it is not there, and lock it."""
        if not self.folder.exists():
            data.mkdir(0o700, parents=True, exist_ok=True)
            self.folder.mkdir(0o700)
            self._disk.sync_folder(data)
            self._disk.sync_folder(data.parent)
        self._lock_file = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock_file)
            raise EngineError(f"another process uses {self.folder}") from None

    def _open(self, partitions: int | None) -> None:
        found = Recovery(self._disk, self.folder)
        found.run()
        self.losses = found.losses
        origin = self._origin
        if found.identity is None:
            made = Identity(partitions or PARTITIONS, secrets.token_bytes(8))
            found.identity = origin.identity if origin else made
            found.ends = [End()] * found.identity.partitions
            if origin:
                found.ends[origin.partition] = origin.begin
        elif origin and found.identity != origin.identity:
            raise EngineError(f"{self.folder} is a copy of another journal")
        elif partitions not in (None, found.identity.partitions):
            raise ConfigError(
                "partitions", f"the journal was made with {found.identity.partitions} partitions"
            )
        self._identity = found.identity
        self.partitions = found.identity.partitions
        self.id = found.identity.public
        self._segments = found.segments
        #: Where chains stand with all that was appended, and with what is durable.
        self._ends = list(found.ends)
        self._durable = list(found.ends)
        self._taken_up: dict[int, bool] = {}  # partitions; is the epoch's record still to come?
        self._waiting = [0] * self.partitions  # appends of each partition that have no outcome
        #: What partitions need, each from when its record of this number is durable.
        self._needed: dict[int, list[tuple[int, Needed]]] = {}
        number = found.next_segment
        self._tail = Tail(self._disk, self.folder, self._identity, number, self._segment_bytes)
        if self._segments:
            self._tail.resume(self._segments, clean=found.clean)
        else:
            self._segments = [self._tail.begin(self._durable)]

    # Taking up and appending

    def recover(self, partition: int) -> Recovered:
        """Take a partition up, and return what its state is made of."""
        check_partition(partition, self.partitions)
        with self._ordering:
            self._check_open()
            if self._waiting[partition]:
                raise EngineError(f"partition {partition} has appends under way", retriable=True)
            end = self._durable[partition]
            end = self._ends[partition] = end._replace(epoch=end.epoch + 1)
            self._taken_up[partition] = True
        losses: list[Loss] = []
        records = self._records(partition, self._checkpoint(partition), end.number + 1, losses)
        return Recovered(partition, end.epoch, end.offset, end.slot, records, losses)

    def _records(
        self, partition: int, begin: int, end: int, losses: list[Loss]
    ) -> Iterator[Record]:
        """The records [begin, end) of a partition that its state is made of."""
        for segment, reader, k in self._walk(partition, STATE, begin, end):
            entries = segment.entries[STATE][partition]
            if entries.type[k] in (Type.CHECKPOINT, Type.EPOCH):
                continue
            found = reader.record(entries.at[k], entries.size[k], entries.checksum[k])
            if found is None:
                losses.append(self._damaged(segment, partition, STATE, k))
            else:
                yield Record(Type(found[0].type), [found[1]])

    def _checkpoint(self, partition: int) -> int:
        """The number of the first record that a partition's state is made of."""
        found = [one.checkpoints.get(partition, (0, 0)) for one in self._segments]
        return max(found)[1]

    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        """Add a commit to each of these partitions; `done` gets every partition's outcome once."""
        headers: list[Header] = []
        pieces: list[Piece] = []
        outcomes: dict[int, Outcome] = {}
        ends: dict[int, End] = {}
        with self._ordering:
            self._check_open()
            for partition, records in commits.items():
                if partition not in self._taken_up:
                    check_partition(partition, self.partitions)
                    raise EngineError(f"partition {partition} was not taken up")
                if not records:
                    raise EngineError(f"the commit of partition {partition} is empty")
                if self._taken_up[partition]:
                    records = [Record(Type.EPOCH, [self._owner.encode()]), *records]
                end, some, parts = encode_commit(
                    records, self._identity.mark, partition, self._ends[partition]
                )
                ends[partition] = end
                headers += some
                pieces += parts
                outcomes[partition] = Outcome.DURABLE
            for partition, end in ends.items():
                self._ends[partition] = end
                self._taken_up[partition] = False
                self._waiting[partition] += 1
            one = _Append(headers, pieces, sum(map(len, pieces)), outcomes, done)
            self._backlog += one.size
            mine = in_place and not self._queue and self._writing.acquire(blocking=False)
            self._queue.append(one)
        if not mine:
            self._bell.put(None)
            return
        try:
            self._write_queue(1)
        finally:
            self._writing.release()
        if self._queue:  # it did not work, or more came meanwhile
            self._bell.put(None)

    # Copies of other journals

    @property
    def is_damaged(self) -> bool:
        """Was anything found that is not as it was written, other than a write that did not end?"""
        return any(loss.harm is not Harm.TORN for loss in self.losses)

    def end(self, partition: int) -> End:
        """Where the chain of a partition ends, as far as it is durable."""
        return self._durable[partition]

    def extend(self, headers: list[Header], pieces: list[Piece]) -> None:
        """Add records as another journal made them, behind those that are here.

        On error: raises EngineError (retriable where the disk is to blame), and adds nothing.
        """
        with self._writing, _mapped("the copy cannot be written", retriable=True):
            self._check_open()
            ends: dict[int, End] = {}
            for header in headers:
                end = ends.get(header.partition, self._durable[header.partition])
                if (header.number, header.chain) != (end.number + 1, end.checksum):
                    raise EngineError(f"{describe(header)} does not follow record {end.number}")
                ends[header.partition] = end.behind(header)
            size = sum(map(len, pieces))
            self._write([_Append(headers, pieces, size, {}, _ignore)])
            for partition, end in ends.items():
                self._ends[partition] = end

    def replay(self, partition: int) -> tuple[Iterator[Record], list[Loss]]:
        """The records that the state of a partition is made of, and losses as they are found."""
        losses: list[Loss] = []
        end = self._durable[partition].number + 1
        return self._records(partition, self._checkpoint(partition), end, losses), losses

    def raw(self, partition: int, number: int) -> Iterator[tuple[Header, bytes]]:
        """Records of a partition from a number on, byte for byte as they were written.

        Ends before what was written again by retention, and yields nothing where that holds for
        the first.
        """
        for segment in self._segments:
            if segment.rewritten or segment.ends[partition].number < number:
                continue
            if segment.begins[partition].number >= number:
                return
            with Reader(segment.path) as reader:
                for space, whose, k in in_order(segment):
                    entries = segment.entries[space][partition]
                    if whose != partition or entries.number[k] < number:
                        continue
                    found = reader.record(entries.at[k], entries.size[k], entries.checksum[k])
                    if found is None or entries.number[k] != number:
                        return
                    number += 1
                    yield found[0], bytes(reader.read(entries.at[k], entries.size[k]))

    def oldest(self, partition: int) -> End:
        """The first record, offset and slot that are needed; what is before them may go."""
        with self._ordering:
            needed = self._forget_needed(partition)
        durable = self._durable[partition]
        logs = [one.entries[Space.LOG][partition] for one in self._segments]
        offset = next((log.base[0] for log in logs if len(log)), durable.offset)
        slot = needed.slot
        return End(
            number=self._checkpoint(partition),
            offset=min([offset, needed.offset, *(start for start, _ in needed.log[:1])]),
            slot=min([slot, *(start for start, _ in needed.private[:1])]),
        )

    def keep(self, partition: int, needed: Needed, *, number: int | None = None) -> None:
        """Say what the partition's state refers to, with all that was appended before this call.

        `number`: of the last record that counts, where that is not here yet.
        """
        check_partition(partition, self.partitions)
        with self._ordering:
            told = self._needed.setdefault(partition, [])
            told.append((self._ends[partition].number if number is None else number, needed))
            self._forget_needed(partition)

    def _forget_needed(self, partition: int) -> Needed:
        """The needs that hold, which are the oldest that are not forgotten; needs `_ordering`."""
        told = self._needed.get(partition, [])
        while len(told) > 1 and told[1][0] <= self._durable[partition].number:
            del told[0]
        holds = told and told[0][0] <= self._durable[partition].number
        return told[0][1] if holds else Needed()

    @property
    def backlog(self) -> int:
        """The bytes that were appended and have no outcome."""
        return self._backlog

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the journal is closed")

    # Writing

    def _write_beside(self) -> None:
        """Write what waits, again and again, until the journal is closed."""
        delay = FIRST_RETRY
        looked = 0.0
        while True:
            with contextlib.suppress(Empty):
                self._bell.get(timeout=WATCH)
            if self._closed:
                return
            if time.monotonic() >= looked + WATCH:
                self._look()
                looked = time.monotonic()
            with self._writing:
                self._write_queue(len(self._queue))
            if not self._queue or not self.trouble:
                delay = FIRST_RETRY
                continue
            self._closing.wait(delay)
            delay = min(2 * delay, LAST_RETRY)
            self._bell.put(None)

    def _look(self) -> None:
        """Notice that a folder or a file was deleted or replaced while it was used."""
        before = self._missing
        self._missing = self._find_missing()
        if self._missing and not before:
            self._tell(f"the journal cannot be written: {self._missing}")
        elif before and not self._missing and not self._queue:
            self._tell("")

    def _find_missing(self) -> str:
        for path, known in self._places.items():
            if (found := _inode(path)) != known:
                return f"{path} was {'replaced' if found else 'deleted'} while it was used"
        before = set(self._segments)
        try:
            changed = self.folder.stat().st_mtime_ns
            if changed == self._listed and not self._missing:
                return ""
            there = set(self.folder.iterdir())
        except OSError:  # too many open files, perhaps
            return self._missing
        for segment in self._segments:  # one that was begun meanwhile was not there before
            if segment in before and segment.path not in there:
                return f"{segment.path} was deleted while it was used"
        self._listed = changed
        return ""

    def _write_queue(self, most: int) -> None:
        """Write the first appends that wait, and tell their outcomes. Needs `_writing`."""
        with self._ordering:
            some = [self._queue[k] for k in range(min(most, len(self._queue)))]
        if not some:
            return
        try:
            self._write(some)
        except OSError as error:
            self._tell(f"the journal cannot be written: {error.strerror or error}")
            return
        except Exception as error:  # a thread that dies would take all that follows with it
            log.exception("the journal cannot be written")
            self._tell(f"the journal cannot be written: {error!r}")
            return
        if self.trouble:
            self._tell("")
        self._settle(some)

    def _settle(self, some: list[_Append], outcome: Outcome | None = None) -> None:
        """Take appends off the queue, and tell what became of them."""
        with self._ordering:
            for one in some:
                self._queue.popleft()
                self._backlog -= one.size
                for partition in one.outcomes:
                    self._waiting[partition] -= 1
        for one in some:
            told = one.outcomes
            if outcome is not None:
                told = dict.fromkeys(told, outcome)
            try:
                one.done(told)
            except Exception:  # the others must not suffer
                log.exception("an answer to a commit failed")

    def _tell(self, trouble: str) -> None:
        """Say that nothing can be written, or that it can be again."""
        before = self.trouble
        self.failures += bool(trouble)
        self.troubles = dict.fromkeys(range(self.partitions), trouble) if trouble else {}
        if trouble and not before:
            log.error("nothing can be written: %s", trouble)
        elif before and not trouble:
            log.warning("what had to wait has been written")

    def _write(self, some: list[_Append]) -> None:
        """Make appends durable, all of them or none."""
        if self._missing:
            raise OSError(errno.ENOENT, self._missing)
        if self._tail.is_full:
            self._begin_segment()
        pieces: list[Piece] = []
        for one in some:
            pieces += one.pieces
        size, records = sum(one.size for one in some), sum(len(one.headers) for one in some)
        at = self._tail.write(pieces, size, records)
        segment = self._tail.segment
        with self._changing:
            for one in some:
                for header in one.headers:
                    segment.add(header, at)
                    at += header.size
                    self._durable[header.partition] = segment.ends[header.partition]

    def _begin_segment(self) -> None:
        """Begin another segment; needs `_writing`."""
        segment = self._tail.begin(self._durable)
        with self._changing:
            self._segments = [*self._segments, segment]

    # Reading

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        space: Space = Space.LOG,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """The durable batches that hold places [start, stop) of a space, in order."""
        check_partition(partition, self.partitions)
        read_until = start
        with _mapped("the journal cannot be read", retriable=True):
            for segment, reader, k in self._walk(partition, space, start, stop):
                entries = segment.entries[space][partition]
                base, end = entries.base[k], entries.end[k]
                found = reader.record(entries.at[k], entries.size[k], entries.checksum[k])
                if found is None:
                    self._damaged(segment, partition, space, k)
                    continue
                names, ipc = split_rows(found[1])
                if may_match is not None and names and not any(map(may_match, names)):
                    continue
                if start < read_until > base:
                    # What was read before is here again, merged with what follows.
                    base, ipc = read_until, from_place(ipc, read_until)
                read_until = end
                times = (entries.first_time[k], entries.last_time[k])
                yield Batch(partition, base, end - base, *times, ipc)

    def _walk(
        self, partition: int, space: int, start: int, stop: int
    ) -> Iterator[tuple[Segment, Reader, int]]:
        """The records that hold places [start, stop), and the files that they are in, in order."""
        at = start
        while at < stop:
            segment = next(
                (one for one in self._segments if one.reaches(space, partition, at)), None
            )
            if segment is None:
                return
            entries = segment.entries[space][partition]
            count = len(entries)
            first = bisect_right(entries.end, at, 0, count)
            last = bisect_left(entries.base, stop, 0, count)
            if first >= last:
                return
            try:
                reader = Reader(segment.path)
            except FileNotFoundError:
                if segment in self._segments:
                    raise
                continue  # it was written again meanwhile
            with reader:
                for k in range(first, last):
                    yield segment, reader, k
                    at = entries.end[k]

    def _damaged(self, segment: Segment, partition: int, space: int, k: int) -> Loss:
        """Report a record that is not as it was written, and set it aside; once."""
        entries = segment.entries[space][partition]
        at, end = entries.at[k], entries.at[k] + entries.size[k]
        what = f"record {entries.number[k]} of partition {partition}"
        if space != STATE:
            what += f", {Space(space).name.lower()} [{entries.base[k]}, {entries.end[k]})"
        text = f"bytes [{at}, {end}) are damaged: {what}"
        if at in segment.reported:
            return Loss(Harm.DAMAGED, segment.path.name, text)
        segment.reported.add(at)
        segment.damaged = True
        with Reader(segment.path) as reader:
            kept = set_aside(self._disk, reader, at, end, Harm.DAMAGED)
        loss = Loss(Harm.DAMAGED, segment.path.name, text, kept)
        report(loss, self.losses)
        return loss

    def positions(self) -> list[Position]:
        """Where each partition begins and ends."""
        with self._changing:
            return [self._position(partition) for partition in range(self.partitions)]

    def position(self, partition: int) -> Position:
        """Where one partition begins and ends."""
        with self._changing:
            return self._position(partition)

    def _position(self, partition: int) -> Position:
        logs = [one.entries[Space.LOG][partition] for one in self._segments]
        logs = [one for one in logs if len(one)]
        begin = self._checkpoint(partition)
        states = [one.entries[STATE][partition] for one in self._segments]
        since = sum(state.bytes_since(begin) for state in states)
        following = self._durable[partition].offset
        end = self._ends[partition]
        return Position(
            partition,
            logs[0].base[0] if logs else following,
            following,
            min((one.earliest for one in logs), default=0),
            max((one.latest for one in logs), default=0),
            sum(one.bytes for one in logs),
            end.number + 1 + self._taken_up.get(partition, False),
            end.slot,
            since,
        )

    # Housekeeping

    def retain(self, rules: Sequence[Rule]) -> None:
        """Keep rows of the log as long as these rules say, from now on."""
        self.rules = rules

    def tidy(self, now: float) -> None:
        """Apply retention, and write segments again of which little is needed.

        For a thread of its own, which may take its time. Raises EngineError (retriable).
        """
        with self._tidying, _mapped("the journal cannot be tidied", retriable=True):
            self._end_old_segment(now)
            kept = []
            for partition in range(self.partitions):
                with self._ordering:
                    needed = self._forget_needed(partition)
                kept.append(Kept.of(needed, self._checkpoint(partition)))
            rules = list(self.rules)
            for todo in plan(self._segments[:-1], kept, rules, now, self._segment_bytes):
                if self._closing.is_set():
                    return
                made = rewrite(
                    self._disk, todo, kept, rules, self._identity, self._damaged, self._compression
                )
                self._replace(todo.segments, made)

    def _end_old_segment(self, now: float) -> None:
        """End the last segment after a while, so that retention also works with few rows."""
        ages = [rule.max_age for rule in self.rules if rule.max_age is not None]
        with self._writing:
            logs = [log for log in self._segments[-1].entries[Space.LOG] if len(log)]
            earliest = min((log.earliest for log in logs), default=None)
            if ages and earliest is not None and earliest < (now - min(ages)) * 1e6:
                self._begin_segment()

    def _replace(self, old: list[Segment], made: Segment) -> None:
        """Replace segments by the one that stands for them, for all readers."""
        with self._changing:
            position = self._segments.index(old[0])
            behind = self._segments[position + len(old) :]
            self._segments = [*self._segments[:position], made, *behind]
        for segment in old:
            self._disk.unlink(segment.path)
            self._scrubbed.pop(segment, None)

    def scrub(self, most: int) -> Scrub:
        """Check up to so many bytes of records in complete segments; begin again when all are.

        Damage is told in `losses`, and the next `tidy` writes the segment again without it.
        """
        damaged = 0
        complete = self._segments[:-1]
        if all(one in self._scrubbed and self._scrubbed[one] >= one.size for one in complete):
            self._scrubbed = {}
        for segment in complete:
            at = self._scrubbed.get(segment, 0)
            if at >= segment.size or most <= 0:
                continue
            with contextlib.suppress(FileNotFoundError), Reader(segment.path) as reader:
                for space, partition, k in in_order(segment):
                    entries = segment.entries[space][partition]
                    if entries.at[k] < at:
                        continue
                    if most <= 0:
                        break
                    if reader.record(entries.at[k], entries.size[k], entries.checksum[k]) is None:
                        self._damaged(segment, partition, space, k)
                        damaged += 1
                    most -= entries.size[k]
                    self._scrubbed[segment] = entries.at[k] + entries.size[k]
                else:
                    self._scrubbed[segment] = segment.size
        checked = sum(min(self._scrubbed.get(one, 0), one.size) for one in complete)
        return Scrub(checked, sum(one.size for one in complete), damaged)

    def _keep_house(self, every: float) -> None:
        """Tidy and check now and then, when nobody needs the processor."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while not self._closing.wait(every):
            try:
                self.tidy(time.time())
                self.scrub(SCRUB)
            except (EngineError, OSError) as error:
                log.warning("housekeeping failed: %s", error)
            except Exception:  # what is kept matters more than what is tidy
                log.exception("housekeeping failed")

    def close(self) -> None:
        """Try once more to make everything durable, and let go."""
        with self._writing:
            if self._closed:
                return
            self._closing.set()
            while self._queue:  # answers may have appended more
                self._write_queue(len(self._queue))
                if self.trouble:
                    break
            with self._ordering:
                self._closed = True
                left = list(self._queue)
            self._settle(left, Outcome.UNAVAILABLE)
        self._bell.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._tail.close()
        os.close(self._lock_file)


def _ignore(_: Mapping[int, Outcome]) -> None:
    """Nobody waits for the outcome."""


def _inode(path: Path) -> tuple[int, int] | None:
    """Return what identifies a file or folder on its disk; None if it does not exist."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


@contextmanager
def _mapped(what: str, *, retriable: bool = False) -> Iterator[None]:
    """Errors of the system as our own."""
    try:
        yield
    except OSError as error:
        raise EngineError(f"{what}: {error}", retriable=retriable) from error
