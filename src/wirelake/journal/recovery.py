"""Opening a journal: what its files say, and what is done about those that are damaged.

Nothing is dropped in silence. Bytes that are no valid record are copied to a file of their own,
`<segment>.torn-<place>` or `<segment>.damaged-<place>`, and told in `losses`. The segment itself is
left as it is: the index that completes it leaves them out, and retention writes it again.

Every valid record counts, with one exception: where sectors of the filling show that the last write
did not end, its commits that are not whole, and what follows them in their partitions. Nobody was
told that they were durable.

No place is given twice. Where a header cannot be read and no later one tells, nobody can say how
many rows were there: the partition goes on behind as many as there can have been.

Opening writes nothing that it needs: a journal on a full disk can be opened and read.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from wirelake.errors import EngineError
from wirelake.journal.contract import Harm, Loss
from wirelake.journal.record import ALIGN, HEADER, NOBODY, End, Header, Type
from wirelake.journal.segment import (
    DRAFT,
    FRAME,
    Bad,
    Disk,
    Draft,
    Frame,
    Identity,
    Name,
    Reader,
    Segment,
    find_identity,
    head_size,
    read_head,
    scan,
)

log = logging.getLogger("wirelake.journal")

#: No batch has more rows, or takes fewer bytes.
_MOST_ROWS = 1 << 16
_LEAST_BATCH = 1024
#: Bytes that a segment may have had of which nothing is known.
_LOST_SEGMENT = 1 << 30


class Recovery:
    """The segments and damage found in a journal's folder."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self.identity: Identity | None = None
        self.segments: list[Segment] = []
        self.losses: list[Loss] = []
        #: Where each chain ends, behind all that was or may have been there.
        self.ends: list[End] = []
        #: Can records be added to the last segment? Else another one has to follow.
        self.clean = True
        self.next_segment = 0
        self._doubts: list[int] = []  # unreadable bytes behind each partition's last record
        self._end_is_known = True  # is it known where chains stand behind the last segment?

    def run(self) -> None:
        """Look at all files. Raises EngineError for files that this version does not read."""
        self._refuse_old()
        names = self._names()
        self.identity = self._identity(names)
        if self.identity is None:
            for name in names:
                self._set_aside_whole(self._folder / name.file)
            return
        self.ends = [End()] * self.identity.partitions
        self._doubts = [0] * self.identity.partitions
        expected = 0
        for name in names:
            if name.first > expected:
                self._missing(name, f"segments {expected} to {name.first - 1} are missing")
                self._end_is_known = False
            expected = name.last + 1
            self._load(name, self.identity)
        last = self.segments[-1]
        if last.complete or last.rewritten:  # another one was begun before it was completed
            self._missing(last.name, f"segment {expected}, which followed it, is missing")
            self._doubts = [doubt + _LOST_SEGMENT for doubt in self._doubts]
            self.clean = False
            expected += 1
        self.next_segment = expected
        self.ends = list(map(_behind, self.ends, self._doubts))
        last.ends = list(self.ends)

    def _refuse_old(self) -> None:
        """Refuse a data directory of 0.1."""
        data = self._folder.parent
        for path in (data / "broker.db", data / "log"):
            if path.exists():
                raise EngineError(
                    f"{path} was written by Wirelake 0.1, whose data this version does not read:"
                    " move it away, or use another data directory"
                )

    def _names(self) -> list[Name]:
        """The segments that count, in order; what was left over by a crash is removed."""
        for path in self._folder.glob("*" + DRAFT):
            self._disk.unlink(path)
        names = [name for path in self._folder.iterdir() if (name := Name.parse(path.name))]
        counting = []
        for name in sorted(names):
            if any(other.replaces(name) for other in names):
                self._disk.unlink(self._folder / name.file)
            else:
                counting.append(name)
        return counting

    def _identity(self, names: list[Name]) -> Identity | None:
        """What most segments have in common, and the newest of those that tell it in their heads.

        A file of another journal that somebody put here does not make all others foreign.
        """
        for in_head in (True, False):
            told: Counter[Identity] = Counter()
            for name in reversed(names):
                with Reader(self._folder / name.file) as reader:
                    head = read_head(reader)
                    identity = head.identity if head is not None else None
                    if not in_head:
                        identity = find_identity(reader)
                    if identity is not None:
                        told[identity] += 1
            if told:
                return told.most_common(1)[0][0]
        return None

    def _load(self, name: Name, identity: Identity) -> None:
        """Open a segment."""
        path = self._folder / name.file
        self.clean = True
        with Reader(path) as reader:
            head = read_head(reader)
            rewritten, at = name.rewrites > 0, 0
            if head is not None and head.identity == identity:
                self._begin(name, head.ends)
                rewritten, at = head.rewritten, head_size(identity.partitions)
            segment = Segment(self._folder, name, self.ends, rewritten=rewritten)
            self._end_is_known = True
            if segment.read_index(reader, identity):
                self.ends = list(segment.ends)
                if not at:
                    end = head_size(identity.partitions)
                    self._set_aside(reader, segment, 0, end, Harm.DAMAGED, "are damaged: the head")
            else:
                segment = Segment(self._folder, name, self.ends, rewritten=rewritten)
                self._scan(reader, segment, identity, at)
                if rewritten:
                    self._end_is_known = False
                    self._missing(name, "it has no index, so records at its end may be missing")
                # What was found is going to be answered for, so it has to be durable.
                sync_file(self._disk, path)
        self.segments.append(segment)

    def _begin(self, name: Name, begins: list[End]) -> None:
        """Compare where a segment says that chains stood with what was found before it."""
        for partition, (begin, end) in enumerate(zip(begins, self.ends, strict=True)):
            if begin.number > end.number and self._end_is_known:
                self._missing(name, _hole(partition, end.number + 1, begin.number))
            if begin.number >= end.number:
                self.ends[partition] = begin
        if self.segments:
            self.segments[-1].ends = list(self.ends)
        self._doubts = [0] * len(begins)

    def _scan(self, reader: Reader, segment: Segment, identity: Identity, at: int) -> None:
        """Find the records of a segment that has no index."""
        found, end = scan(reader, identity, at)
        segment.size = end + -end % ALIGN
        last_write = max((k for k, one in enumerate(found) if _is_frame(one)), default=0)
        torn = not segment.rewritten and any(
            isinstance(one, Bad) and one.unwritten for one in found[last_write:]
        )
        whole: set[int] = set()
        torn_bytes: list[tuple[int, int]] = []
        for k, one in enumerate(found):
            uncertain = torn and k >= last_write
            if torn and k == last_write:
                whole = _whole(found[k:], self.ends)
            if isinstance(one, Bad):
                if uncertain:
                    torn_bytes.append((one.begin, one.end))
                else:
                    self._bad(reader, segment, one)
                continue
            place, header = one
            if isinstance(header, Frame) or header.partition == NOBODY:
                continue
            if header.number <= self.ends[header.partition].number and not segment.rewritten:
                continue  # a write that failed and could not be undone stands here twice
            if uncertain and place not in whole:
                torn_bytes.append((place, place + header.size))
                continue
            self._follow(segment, header)
            segment.add(header, place)
        self._torn(reader, segment, torn_bytes)
        segment.ends = list(self.ends)

    def _follow(self, segment: Segment, header: Header) -> None:
        """A record was there, whatever has become of it."""
        if segment.rewritten:
            return
        partition, end = header.partition, self.ends[header.partition]
        unknown = not self.segments and segment.name.first > 0 and end.number == 0
        if header.number > end.number + 1 and not unknown:
            self._missing(segment.name, _hole(partition, end.number + 1, header.number - 1))
        elif header.number == end.number + 1 and header.chain != end.checksum and not unknown:
            text = f"record {header.number} of partition {partition} does not follow the one before"
            self._report(Loss(Harm.DAMAGED, segment.path.name, text))
        self.ends[partition] = end.behind(header)
        self._doubts[partition] = 0

    def _bad(self, reader: Reader, segment: Segment, bad: Bad) -> None:
        """Report bytes that are damaged."""
        lost = bad.lost
        what = "are damaged"
        if lost is None:
            self._doubts = [doubt + bad.end - bad.begin for doubt in self._doubts]
        elif lost.type == Type.INDEX:
            what += ": the index, which is worked out again"
        else:
            what += f": {describe(lost)}"
            if lost.number > self.ends[lost.partition].number:
                self._follow(segment, lost)
        self._set_aside(reader, segment, bad.begin, bad.end, Harm.DAMAGED, what)

    def _torn(self, reader: Reader, segment: Segment, spans: list[tuple[int, int]]) -> None:
        """Report what is left of a write that did not end; spans that touch are one."""
        merged: list[list[int]] = []
        for begin, end in spans:
            if merged and begin <= merged[-1][1] + FRAME:
                merged[-1][1] = end
            else:
                merged.append([begin, end])
        for begin, end in merged:
            self._set_aside(reader, segment, begin, end, Harm.TORN, "were not written whole")

    def _set_aside(
        self, reader: Reader, segment: Segment, begin: int, end: int, harm: Harm, what: str
    ) -> None:
        """Keep bad bytes in a file of their own, and report them."""
        self.clean = False
        segment.damaged = True
        kept = set_aside(self._disk, reader, begin, end, harm)
        self._report(Loss(harm, segment.path.name, f"bytes [{begin}, {end}) {what}", kept))

    def _missing(self, name: Name, text: str) -> None:
        self._report(Loss(Harm.MISSING, name.file, text))

    def _set_aside_whole(self, path: Path) -> None:
        """Keep a file of which nothing can be read under another name, and report it."""
        kept = path.with_name(f"{path.name}.{Harm.DAMAGED.value}-0")
        self._disk.rename(path, kept)
        self._disk.sync_folder(self._folder)
        self._report(Loss(Harm.DAMAGED, path.name, "nothing in it can be read", kept.name))

    def _report(self, loss: Loss) -> None:
        report(loss, self.losses)


def report(loss: Loss, losses: list[Loss]) -> None:
    """Tell a loss to whoever reads the log, and add it to a list."""
    (log.warning if loss.harm is Harm.TORN else log.error)("the journal has a loss: %s", loss)
    losses.append(loss)


def describe(header: Header) -> str:
    """Describe a record's content, for people."""
    what = f"record {header.number} of partition {header.partition}"
    places = f"[{header.base}, {header.base + header.count})"
    match header.type:
        case Type.ROWS | Type.KEPT:
            return f"{what}, rows {places}"
        case Type.MESSAGES:
            return f"{what}, messages {places}"
        case _:
            return f"{what}, {Type(header.type).name.lower()}"


def set_aside(disk: Disk, reader: Reader, begin: int, end: int, harm: Harm) -> str:
    """Copy bytes of a segment to a file of their own; its name, or nothing if there is no room."""
    if begin >= end:
        return ""
    base = reader.path.with_name(f"{reader.path.name}.{harm.value}-{begin}")
    data = bytes(reader.read(begin, end - begin))
    path, number = base, 1
    while path.exists():
        if path.read_bytes() == data:
            return path.name
        number += 1
        path = base.with_name(f"{base.name}-{number}")
    try:
        with Draft(disk, path) as draft:
            draft.write([data])
    except OSError as error:
        log.warning("damaged bytes could not be copied to %s: %s", path, error)
        return ""
    return path.name


def sync_file(disk: Disk, path: Path) -> None:
    """Make a file durable as it is."""
    file = disk.open(path, os.O_WRONLY)
    try:
        disk.sync(file)
    finally:
        os.close(file)


def _is_frame(one: tuple[int, Header | Frame] | Bad) -> bool:
    return not isinstance(one, Bad) and isinstance(one[1], Frame)


def _whole(found: Iterable[tuple[int, Header | Frame] | Bad], ends: Sequence[End]) -> set[int]:
    """Where the records of whole commits are, each of which follows the one before it."""
    ends = list(ends)
    whole: set[int] = set()
    waiting: dict[int, list[tuple[int, End]]] = {}
    broken: set[int] = set()
    for one in found:
        if isinstance(one, Bad) or isinstance(one[1], Frame) or one[1].partition == NOBODY:
            continue
        at, header = one
        assert isinstance(header, Header)
        partition = header.partition
        if partition in broken or header.number <= ends[partition].number:
            continue
        open_commit = waiting.setdefault(partition, [])
        end = open_commit[-1][1] if open_commit else ends[partition]
        follows = header.number == end.number + 1 and header.chain == end.checksum
        if not follows or header.is_first == bool(open_commit):
            broken.add(partition)
            continue
        open_commit.append((at, end.behind(header)))
        if header.is_last:
            whole.update(place for place, _ in open_commit)
            ends[partition] = open_commit[-1][1]
            open_commit.clear()
    return whole


def _hole(partition: int, first: int, last: int) -> str:
    return f"records {first} to {last} of partition {partition} are missing"


def _behind(end: End, doubt: int) -> End:
    """The end behind all that can have been in so many bytes."""
    if not doubt:
        return end
    most = _MOST_ROWS * (1 + doubt // _LEAST_BATCH)
    number = end.number + 1 + doubt // HEADER
    return End(number, end.epoch, end.offset + most, end.slot + most, 0)
