"""A journal for tests and for brokers that need not remember: durable as long as it lives."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from wirelake.errors import EngineError
from wirelake.journal.contract import (
    PARTITIONS,
    Batch,
    Done,
    Journal,
    Needed,
    Outcome,
    Position,
    Recovered,
    Space,
    check_partition,
)
from wirelake.journal.record import (
    PLACED,
    End,
    Header,
    Record,
    Type,
    encode_commit,
    split_rows,
)

_SPACES = {Type.ROWS: Space.LOG, Type.KEPT: Space.KEPT, Type.MESSAGES: Space.PRIVATE}


class _Partition:
    """The state of one partition."""

    def __init__(self) -> None:
        self.end = End()
        self.needed = Needed()
        self.taken_up = False
        self.records: list[tuple[Header, bytes]] = []  # from the checkpoint on, without rows
        self.batches: dict[Space, list[tuple[Header, bytes]]] = {space: [] for space in Space}


class MemoryJournal(Journal):
    """Keeps everything in memory: of the log at most `log_bytes`, if given, the latest."""

    def __init__(self, *, partitions: int = PARTITIONS, log_bytes: int = 0) -> None:
        self.partitions = partitions
        self.id = secrets.token_hex(8)
        self.losses = []
        self._mark = secrets.token_bytes(8)
        self._log_bytes = log_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._all = [_Partition() for _ in range(partitions)]

    def recover(self, partition: int) -> Recovered:
        """Take a partition up, and return what its state is made of."""
        check_partition(partition, self.partitions)
        self._check_open()
        one = self._all[partition]
        with self._lock:
            end = one.end = one.end._replace(epoch=one.end.epoch + 1)
            one.taken_up = True
            found = list(one.records)
        records = (
            Record(Type(header.type), [body])
            for header, body in found
            if header.type != Type.CHECKPOINT
        )
        return Recovered(partition, end.epoch, end.offset, end.slot, records)

    def append(
        self, commits: Mapping[int, Sequence[Record]], done: Done, *, in_place: bool = False
    ) -> None:
        """Add a commit to each of these partitions: durable at once."""
        with self._lock:
            for partition, (end, headers) in self._numbered(commits).items():
                one = self._all[partition]
                one.end = end
                for header, record in zip(headers, commits[partition], strict=True):
                    self._take(one, header, record)
        done(dict.fromkeys(commits, Outcome.DURABLE))

    def check(self, commits: Mapping[int, Sequence[Record]]) -> None:
        """Raise EngineError where these could not be appended now."""
        with self._lock:
            self._numbered(commits)

    def _numbered(
        self, commits: Mapping[int, Sequence[Record]]
    ) -> dict[int, tuple[End, list[Header]]]:
        """Where the partitions will end, and the headers of the new records."""
        self._check_open()
        numbered = {}
        for partition, records in commits.items():
            check_partition(partition, self.partitions)
            one = self._all[partition]
            if not one.taken_up:
                raise EngineError(f"partition {partition} was not taken up")
            if not records:
                raise EngineError(f"the commit of partition {partition} is empty")
            end, headers, _ = encode_commit(records, self._mark, partition, one.end)
            numbered[partition] = (end, headers)
        return numbered

    def _take(self, one: _Partition, header: Header, record: Record) -> None:
        if record.type in PLACED:
            one.batches[_SPACES[record.type]].append((header, record.data))
            self._forget(one)
            return
        one.records.append((header, record.data))
        if record.type is Type.CHECKPOINT:
            one.records = [kept for kept in one.records if kept[0].number >= record.base]

    def _forget(self, one: _Partition) -> None:
        """Drop rows beyond the limit, and messages that no queue needs."""
        log, kept = one.batches[Space.LOG], one.batches[Space.KEPT]
        size = sum(len(body) for _, body in log) if self._log_bytes else 0
        while len(log) > 1 and size > self._log_bytes:
            first = log.pop(0)
            size -= len(first[1])
            kept.append(first)
        needed = one.needed
        kept[:] = [batch for batch in kept if _is_needed(batch[0], needed.log, needed.offset)]
        private = one.batches[Space.PRIVATE]
        private[:] = [b for b in private if _is_needed(b[0], needed.private, needed.slot)]

    def read(
        self,
        partition: int,
        start: int,
        stop: int,
        *,
        space: Space = Space.LOG,
        may_match: Callable[[str], bool] | None = None,
    ) -> Iterator[Batch]:
        """The batches that hold places [start, stop) of a space, in order."""
        check_partition(partition, self.partitions)
        with self._lock:
            found = list(self._all[partition].batches[space])
        for header, body in found:
            if header.base < stop and header.base + header.count > start:
                names, ipc = split_rows(memoryview(body))
                if may_match is None or not names or any(map(may_match, names)):
                    times = (header.first_time, header.last_time)
                    yield Batch(partition, header.base, header.count, *times, ipc)

    def keep(self, partition: int, needed: Needed) -> None:
        """Say what the partition's state refers to; it holds until the next call."""
        check_partition(partition, self.partitions)
        with self._lock:
            self._all[partition].needed = needed
            self._forget(self._all[partition])

    def positions(self) -> list[Position]:
        """Where each partition begins and ends."""
        with self._lock:
            return [_position(partition, one) for partition, one in enumerate(self._all)]

    @property
    def backlog(self) -> int:
        """Always 0: nothing waits for a disk."""
        return 0

    def close(self) -> None:
        """Forget everything."""
        self._closed = True
        self._all = [_Partition() for _ in self._all]

    def _check_open(self) -> None:
        if self._closed:
            raise EngineError("the journal is closed")


def _is_needed(header: Header, ranges: Sequence[tuple[int, int]], since: int) -> bool:
    end = header.base + header.count
    return end > since or any(start < end and header.base < stop for start, stop in ranges)


def _position(partition: int, one: _Partition) -> Position:
    log = [header for header, _ in one.batches[Space.LOG]]
    return Position(
        partition,
        log[0].base if log else one.end.offset,
        one.end.offset,
        min((header.first_time for header in log), default=0),
        max((header.last_time for header in log), default=0),
        sum(header.size for header in log),
        one.end.number + 1,
        one.end.slot,
        sum(header.size for header, _ in one.records),
    )
