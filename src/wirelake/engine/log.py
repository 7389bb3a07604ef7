"""The log on disk: everything that passed, in files that are only ever added to.

All partitions share one row of segments (`segment.py`), so that a commit is one write and one
fdatasync. Rows come in on the broker's thread and are columns in memory (`batch.py`) until the
writer's thread calls `write`, which makes all of them durable; then they can be read, by any
thread, while the writing goes on. What cannot be written is kept, and written by a later call.

A segment that is large enough, or holds very many records, is followed by a new one. Only then it
is tidied (`retention.py`), by a third thread. The files say everything there is to know: what they
hold is found again by `recovery.py` when the log is opened.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import secrets
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.engine.arrow_stream import Compression, decode, ipc
from wirelake.engine.base import PARTITIONS, LogBatch, Position
from wirelake.engine.batch import MAX_NAMES_BYTES, Batch, Rows
from wirelake.engine.recovery import Recovery
from wirelake.engine.retention import Going, Retention, expired, groups, rewrite
from wirelake.engine.segment import (
    RECORD_HEADER,
    Draft,
    Header,
    Identity,
    Name,
    Piece,
    Reader,
    Segment,
    changes_record,
    filling,
    head,
    is_whole,
    parse_header,
    parse_names,
    place_in,
    record,
    sync_folder,
    write_all,
)
from wirelake.errors import ConfigError, EngineError
from wirelake.wire import FrameTable

SEGMENT_BYTES = 256 << 20
#: A segment ends with so many records, too: single messages are merged only behind its end.
SEGMENT_RECORDS = 1 << 14
#: So much is read to see that it is whole when a log is opened; the rest is checked by `tidy`.
CHECK_BYTES = 1 << 30

#: A commit of up to so many bytes, where it lets the file grow, lets it grow by so many more.
SMALL_COMMIT = 64 << 10
FILLING = 1 << 20

log = logging.getLogger("wirelake.engine")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM = (*_FULL, errno.EFBIG)


class Log:
    """A log in a folder of its own; the number of partitions is fixed when it is made."""

    def __init__(
        self,
        folder: Path,
        *,
        partitions: int | None = PARTITIONS,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = "none",
        check_bytes: int = CHECK_BYTES,
    ) -> None:
        """`partitions`: None for as many as it has, or the usual number of them."""
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._compression = compression
        self._writing = threading.Lock()  # held by who writes, and by who begins a segment
        self._changing = threading.Lock()  # held for moments, by who changes what readers see
        self._tidying = threading.Lock()
        self._batches: list[Batch] = []  # taken, and not durable
        self._taken = 0
        self._durable = 0
        self._applied = 0  # the last changes that the database has
        self._file = -1
        self._filled = 0  # the size of the file, of which the last part is the filling
        self._suspect = False  # may the end of the last segment hold what was not written whole?
        with _mapped("the log cannot be opened"):
            if not folder.exists():
                folder.mkdir(0o700, parents=True)
                sync_folder(folder.parent)
            self._folder_lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                self._open(partitions, check_bytes)
            except BaseException:
                self._let_go()
                raise

    def _open(self, partitions: int | None, check_bytes: int) -> None:
        try:
            fcntl.flock(self._folder_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise EngineError(f"another process uses {self.folder}") from None
        found = Recovery(self.folder)
        found.run(check_bytes)
        self.damage = found.damage
        if found.identity is None:
            found.identity = Identity(partitions or PARTITIONS, secrets.token_bytes(8))
            found.offsets = [0] * found.identity.partitions
        elif partitions not in (None, found.identity.partitions):
            raise ConfigError(
                "partitions", f"the log was made with {found.identity.partitions} partitions"
            )
        self.partitions = found.identity.partitions
        self._identity = found.identity
        # Not the mark itself: who knows it can write what looks like a record.
        self.id = hashlib.blake2b(found.identity.mark, digest_size=8).hexdigest()
        self._segments = found.segments
        self._changes = {
            header.base: (segment, at, header) for segment, at, header in found.changes
        }
        self._rows = Rows(self.partitions, found.offsets, seed=secrets.randbits(32))
        # Offsets that no record tells are in the head of a segment.
        if not self._segments or self._segments[-1].ends() != found.offsets:
            self._begin_segment(found.offsets)
        else:
            self._file = _open_for_writing(self._segments[-1].path)
            self._filled = self._segments[-1].size

    # Writing

    def append(
        self,
        table: FrameTable,
        rows: array[int] | Sequence[int] | None,
        timestamp: int | array[int],
        source: bytes,
    ) -> None:
        """Add rows of a table (all, or these), received at `timestamp` (µs) from `source`."""
        self._rows.append(table, rows, timestamp, source)

    @property
    def pending(self) -> int:
        """The bytes that are not durable yet."""
        return int(self._rows.appended - self._durable)

    def write(self, changes: Sequence[bytes] = (), number: int = 0) -> None:
        """Make all that was appended durable, and changes with the numbers from this one on.

        What cannot be written now is kept, but for the changes: they are to come again.
        """
        with self._writing:
            taken = self._rows.take()
            self._batches += taken.batches(self._compression)
            self._taken += taken.size
            if not self._batches and not changes:
                return
            with _mapped("the log cannot be written", retriable=True):
                self._write(changes, number)
            self._batches = []
            self._durable += self._taken
            self._taken = 0

    def _write(self, changes: Sequence[bytes], number: int) -> None:
        """Write changes and the batches that were taken, all of them or none."""
        segment = self._segments[-1]
        large = segment.records and segment.size >= self._segment_bytes
        if large or segment.records >= SEGMENT_RECORDS or self._suspect:
            segment = self._begin_segment(segment.ends())
        first, total = len(changes), len(changes) + len(self._batches)
        headers: list[tuple[int, Header]] = []
        pieces: list[Piece] = []
        end = segment.size
        for header, parts in [
            *(
                changes_record(body, number + k, self._identity, place_in(total, k))
                for k, body in enumerate(changes)
            ),
            *(
                record(batch, self._identity, place_in(total, k))
                for k, batch in enumerate(self._batches, first)
            ),
        ]:
            headers.append((end, header))
            pieces += parts
            end += header.size
        try:
            self._put(segment, pieces, end)
            os.fdatasync(self._file)
        except OSError as error:
            self._cut_back(segment, error)
            raise
        with self._changing:
            for at, header in headers:
                segment.add(header, at)
            segment.size = end

    def _put(self, segment: Segment, pieces: list[Piece], end: int) -> None:
        """Write pieces behind what is there, and something to be overwritten by the next ones."""
        more = min(FILLING, self._segment_bytes - end)
        if end > self._filled and end - segment.size <= SMALL_COMMIT and more > 0:
            try:
                write_all(self._file, [*pieces, filling(self._identity, end, more)], segment.size)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                os.ftruncate(self._file, segment.size)
            else:
                self._filled = end + more
                return
        write_all(self._file, pieces, segment.size)
        self._filled = max(self._filled, end)

    def _cut_back(self, segment: Segment, error: OSError) -> None:
        """Undo a write that failed."""
        # After a failed sync the system may take pages for clean that were never written, so
        # that a later one tells nothing: only where there was no room the file is used again.
        self._suspect = error.errno not in _FULL
        try:
            os.ftruncate(self._file, segment.size)
            self._filled = segment.size
        except OSError:
            self._suspect = True

    def _cut_filling(self) -> None:
        """Let the file end where its records do."""
        if self._file >= 0 and self._filled > self._segments[-1].size:
            with suppress(OSError):  # it will be found out when the log is opened
                os.ftruncate(self._file, self._segments[-1].size)
                self._filled = self._segments[-1].size

    def found_changes(self) -> list[int]:
        """The numbers of all changes that were found when the log was opened, in order."""
        return sorted(self._changes)

    def changes(self, numbers: Sequence[int]) -> Iterator[memoryview]:
        """The changes of numbers that were found, but for those that are damaged: that is told."""
        found = [self._changes[number] for number in numbers]
        for segment, some in groupby(found, lambda one: one[0]):
            with _mapped("the log cannot be read"), Reader(segment.path) as reader:
                for _, at, header in some:
                    data = reader.read(at, header.size)
                    if is_whole(data, header):
                        yield data[RECORD_HEADER:]
                    else:
                        segment.checked = False  # so that it is set aside
                        self._report(
                            f"{segment.path.name}: changes {header.base} of queues and keys are"
                            f" damaged, byte {at}"
                        )

    def _report(self, damage: str) -> None:
        log.error("the log is damaged: %s", damage)
        self.damage.append(damage)

    def applied(self, number: int) -> None:
        """The database has all changes up to this number: they need not be kept here."""
        self._applied = number
        self._changes = {}

    def _begin_segment(self, offsets: Sequence[int]) -> Segment:
        number = self._segments[-1].name.last + 1 if self._segments else 0
        segment = Segment(self.folder, Name(number, number), offsets)
        with Draft(segment.path) as draft:
            draft.write([head(self._identity, offsets)])
            segment.size = draft.size
        segment.checked = True
        file = _open_for_writing(segment.path)
        if self._file >= 0:
            self._cut_filling()
            os.close(self._file)
        self._file = file
        self._filled = segment.size
        self._suspect = False
        empty = [last for last in self._segments[-1:] if not last.records]
        with self._changing:
            self._segments = [*(one for one in self._segments if one not in empty), segment]
        for last in empty:
            last.delete()
        return segment

    # Reading

    def positions(self) -> list[Position]:
        """Where each partition begins and ends, as far as it is durable."""
        with self._changing:
            segments = self._segments
            ends = segments[-1].ends()
            return [_position(partition, segments, ends) for partition in range(self.partitions)]

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[LogBatch]:
        """The batches that hold rows [start, stop), in order, as they are stored.

        Those that are known to have no row whose address `may_match` are left out.
        """
        at = start
        while at < stop:
            segment = next((s for s in self._segments if s.reaches(partition, at)), None)
            if segment is None:
                return
            entries = segment.entries[partition]
            count = len(entries.end)
            k, end = (
                bisect_right(entries.end, at, 0, count),
                bisect_left(entries.base, stop, 0, count),
            )
            if k >= end:
                return
            with _mapped("the log cannot be read"):
                try:
                    reader = Reader(segment.path)
                except FileNotFoundError:
                    if segment in self._segments:
                        raise
                    continue  # it was merged or deleted meanwhile
            with reader:
                for n in range(k, end):
                    batch = self._read(reader, segment, partition, n, may_match)
                    if batch is not None:
                        # What was read before may be here again, merged with what follows.
                        yield batch if at == start else _behind(batch, at)
                    at = entries.end[n]

    def _read(
        self,
        reader: Reader,
        segment: Segment,
        partition: int,
        number: int,
        may_match: Callable[[str], bool] | None,
    ) -> LogBatch | None:
        """A record of a segment, if it is wanted."""
        entries = segment.entries[partition]
        at, size = entries.at[number], entries.size[number]
        with _mapped("the log cannot be read"):
            if may_match is not None:
                data = reader.read(at, min(size, RECORD_HEADER + MAX_NAMES_BYTES))
                header = parse_header(data)
                if header is not None and header.names:
                    names = parse_names(data[RECORD_HEADER : RECORD_HEADER + header.names])
                    if not any(map(may_match, names)):
                        return None
            data = reader.read(at, size)
        header = parse_header(data)
        if header is None or header.base != entries.base[number] or not is_whole(data, header):
            segment.checked = False
            raise EngineError(
                f"rows [{entries.base[number]}, {entries.end[number]}) of partition {partition} "
                f"are damaged: {segment.path.name}, byte {at}"
            )
        return LogBatch(
            partition,
            header.base,
            header.count,
            header.first_time,
            header.last_time,
            data[RECORD_HEADER + header.names :],
        )

    def find(self, partition: int, time: int) -> int:
        """The first offset that was received at `time` (µs) or later; the next one if none was."""
        for segment in self._segments:
            entries = segment.entries[partition]
            if entries.latest < time:
                continue
            for last_time, base, end in zip(
                entries.last_time, entries.base, entries.end, strict=False
            ):
                if last_time < time:
                    continue
                for stored in self.read(partition, base, end):
                    batch = decode(stored.ipc)
                    received = batch.column("timestamp").cast(pa.int64())
                    row = pc.index(pc.greater_equal(received, time), value=True).as_py()
                    if row >= 0:
                        return int(batch.column("offset")[row].as_py())
        return self.positions()[partition].next

    # Tidying, and the end

    def tidy(self, now: float, retention: Sequence[Retention] = ()) -> None:
        """Check, delete and merge what is complete, by these rules; `now` in seconds since 1970.

        For a thread of its own, which may take its time.
        """
        with self._tidying, _mapped("the log cannot be tidied", retriable=True):
            # What goes first makes room for the rest.
            going = self._delete_expired(now, retention)
            if self._end_old_segment(now, retention):
                going = self._delete_expired(now, retention)
            for segment in self._complete():
                if not segment.checked:
                    segment = self._check(segment)
                segment.write_index()
            for group in groups(self._complete(), going, self._segment_bytes):
                merged = rewrite(group, going, retention, self._identity, self._compression)
                merged.write_index()
                self._replace(group, [merged])

    def _delete_expired(self, now: float, retention: Sequence[Retention]) -> Going:
        """Delete the segments of which nothing stays; what else goes is returned."""
        complete = self._complete()
        for segment in complete:
            if not segment.batches:
                self._replace([segment], [])
        going = expired([one for one in complete if one.batches], retention, now)
        for segment, rules in going.items():
            if rules is None:
                self._replace([segment], [])
        return going

    def _complete(self) -> list[Segment]:
        """The segments that nobody writes to, and whose changes nobody needs."""
        return [one for one in self._segments[:-1] if one.last_changes <= self._applied]

    def _end_old_segment(self, now: float, retention: Sequence[Retention]) -> bool:
        """Let rows go in time even where so few come in that the last segment never fills."""
        ages = [rule.max_age for rule in retention if rule.max_age is not None]
        if not ages:
            return False
        with self._writing:
            last = self._segments[-1]
            if not last.batches or last.earliest >= (now - min(ages)) * 1e6:
                return False
            self._begin_segment(last.ends())
            return True

    def _check(self, segment: Segment) -> Segment:
        """Read a segment whole; what is damaged is set aside."""
        position = self._segments.index(segment)
        before = self._segments[position - 1].ends() if position else [0] * self.partitions
        check = Recovery(self.folder, self._identity, offsets=list(before))
        checked = check.load(segment.name, before, check=True)
        if not check.damage:
            segment.checked = True
            return segment
        self.damage += check.damage
        with self._changing:
            self._segments = [checked if one is segment else one for one in self._segments]
        if checked.path != segment.path:
            segment.delete()
        return checked

    def _replace(self, old: list[Segment], new: list[Segment]) -> None:
        """Let readers find these instead of those."""
        with self._changing:
            position = self._segments.index(old[0])
            behind = self._segments[position + len(old) :]
            self._segments = [*self._segments[:position], *new, *behind]
        for segment in old:
            segment.delete()

    def is_deleted(self) -> bool:
        """Has somebody deleted the file that is written to? For any thread."""
        try:
            return os.fstat(self._file).st_nlink == 0
        except OSError:  # another one is begun just now
            return False

    def close(self) -> None:
        """Make everything durable, and let go."""
        try:
            self.write()
        finally:
            self._cut_filling()
            self._let_go()

    def _let_go(self) -> None:
        for file in (self._file, self._folder_lock):
            if file >= 0:
                os.close(file)
        self._file = self._folder_lock = -1


def _open_for_writing(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CLOEXEC)


def _behind(batch: LogBatch, offset: int) -> LogBatch:
    """A batch without the rows before an offset."""
    if batch.base >= offset:
        return batch
    rows = decode(batch.ipc)
    rows = rows.filter(pc.greater_equal(rows.column("offset"), offset))
    count = batch.base + batch.count - offset
    return replace(batch, base=offset, count=count, ipc=ipc(rows))


def _position(partition: int, segments: list[Segment], ends: list[int]) -> Position:
    """Where a partition begins and ends."""
    filled = [segment.entries[partition] for segment in segments if segment.entries[partition].end]
    if not filled:
        return Position(partition, ends[partition], ends[partition])
    return Position(
        partition,
        filled[0].base[0],
        ends[partition],
        min(entries.earliest for entries in filled),
        max(entries.latest for entries in filled),
        sum(entries.bytes for entries in filled),
    )


@contextmanager
def _mapped(what: str, *, retriable: bool = False) -> Iterator[None]:
    """Errors of the system as our own."""
    try:
        yield
    except OSError as error:
        raise EngineError(f"{what}: {error}", retriable=retriable) from error
