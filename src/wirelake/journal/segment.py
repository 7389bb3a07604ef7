"""A segment: one file of a journal, what is in it, and what of it is valid.

    head ─ frame ─ records ─ frame ─ records ─ … ─ filling          while it is written
    head ─ frame ─ records ─ frame ─ records ─ … ─ index ─ foot     when it is complete

The *head* says where the chain of each partition stood when the segment began. A *frame* precedes
the records of one write, which one sync makes durable. The next write begins only after that sync,
so a frame that is there proves that everything before it was durable. Behind the last write stands
a *filling*, bytes that nobody else can know: to sync a file that grows takes 170 µs, to overwrite
what is there 100. Sectors of it among those of the last write show that the write did not end.

A segment that is complete ends with an *index*, a copy of what its headers say, and where the
chains end. It is only there to open faster: one that cannot be read is worked out again.

Retention writes segments again as new files, whose chains begin with them. The name of a file,
`000000003-000000005-1.wlj`, says which segments it stands for, and how often they were rewritten.
Together the names cover every number from 0 on: where one is left out, a file is missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from wirelake.errors import EngineError
from wirelake.journal.contract import MAX_PARTITIONS, Space
from wirelake.journal.record import (
    ALIGN,
    HEADER,
    NOBODY,
    VERSION,
    Columns,
    End,
    Header,
    Piece,
    Record,
    Type,
    encode,
    is_whole,
    parse_header,
)

_NAME = re.compile(r"(\d{9,})-(\d{9,})-(\d+)\.wlj")
#: How the names of files end that are not complete.
DRAFT = ".tmp"

#: Magic, version, flags, mark, partitions, zeros, checksum of this and of the ends.
_HEAD = struct.Struct("<4sHH8sI8sI")
_HEAD_MAGIC = b"WLJS"
_REWRITTEN = 1
#: Number, epoch, offset, slot, checksum, zeros: where a chain ends.
_END = struct.Struct("<qqqqI12x")

#: Magic, version, partitions, mark, bytes and number of the records, checksum of this.
_FRAME = struct.Struct("<4sHH8sQII")
_FRAME_MAGIC = b"WLJA"
FRAME = _FRAME.size
#: The same with the place of the index instead.
_FOOT_MAGIC = b"WLJF"
_SUM = struct.Struct("<I")

#: What a disk writes whole or not at all.
_SECTOR = 512
#: Files are read in steps of this size, where records are small.
_STEP = 256 << 10
_IOV_MAX = 1000


class Disk:
    """The calls of the system that a journal makes; tests put faults in here."""

    def open(self, path: Path, flags: int) -> int:
        """A file's descriptor."""
        return os.open(path, flags | os.O_CLOEXEC, 0o600)

    def write(self, file: int, pieces: Sequence[Piece], at: int) -> int:
        """Write pieces at a place; return how many bytes were written."""
        return os.pwritev(file, pieces, at)

    def sync(self, file: int) -> None:
        """Make what was written to a file durable, and its size."""
        os.fdatasync(file)

    def truncate(self, file: int, size: int) -> None:
        """Cut a file off."""
        os.ftruncate(file, size)

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name."""
        old.rename(new)

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        path.unlink(missing_ok=True)

    def sync_folder(self, folder: Path) -> None:
        """Make the names of files durable."""
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def write_all(disk: Disk, file: int, pieces: Sequence[Piece], at: int) -> None:
    """Write pieces one after the other, beginning at a place in the file."""
    left = list(pieces)
    while left:
        written = disk.write(file, left[:_IOV_MAX] if len(left) > _IOV_MAX else left, at)
        at += written
        k = 0
        while k < len(left) and written >= len(left[k]):
            written -= len(left[k])
            k += 1
        left = left[k:]
        if written:
            left[0] = memoryview(left[0])[written:]


class Draft:
    """A new file, which has its name only when it is complete and durable."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._draft = path.with_name(path.name + DRAFT)
        self._file = disk.open(self._draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self.size = 0

    def __enter__(self) -> Draft:
        return self

    def write(self, pieces: Sequence[Piece]) -> int:
        """Write pieces behind what is there; return where they begin."""
        at = self.size
        write_all(self._disk, self._file, pieces, at)
        self.size += sum(map(len, pieces))
        return at

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            try:
                if kind is None:
                    self._disk.sync(self._file)
            finally:
                os.close(self._file)
            if kind is None:
                self._disk.rename(self._draft, self._path)
                self._disk.sync_folder(self._path.parent)
        except BaseException:
            self._disk.unlink(self._draft)
            raise
        if kind is not None:
            self._disk.unlink(self._draft)


class Name(NamedTuple):
    """The name of a segment's file, parsed."""

    first: int
    last: int
    rewrites: int = 0

    @property
    def file(self) -> str:
        """The name."""
        return f"{self.first:09}-{self.last:09}-{self.rewrites}.wlj"

    @classmethod
    def parse(cls, file: str) -> Name | None:
        """Parse a file name; None if it is not that of a segment."""
        match = _NAME.fullmatch(file)
        return cls(*map(int, match.groups())) if match else None

    def replaces(self, other: Name) -> bool:
        """Does this one stand for the other?"""
        inside = self.first <= other.first and other.last <= self.last
        return inside and self.rewrites > other.rewrites


class Identity(NamedTuple):
    """What all segments of a journal have in common; the mark is eight random bytes."""

    partitions: int
    mark: bytes

    @property
    def public(self) -> str:
        """Tells a journal from others, and does not give the mark away."""
        return hashlib.blake2b(self.mark, digest_size=8).hexdigest()


class Head(NamedTuple):
    """The head of a segment."""

    identity: Identity
    ends: list[End]
    rewritten: bool


def pack_ends(ends: Sequence[End]) -> bytes:
    """The ends of all chains as bytes."""
    return b"".join(_END.pack(*end) for end in ends)


def parse_ends(data: memoryview) -> list[End]:
    """The ends that bytes tell."""
    return [End(*fields) for fields in _END.iter_unpack(data)]


def head_size(partitions: int) -> int:
    """The bytes of a head."""
    return _HEAD.size + _END.size * partitions


def pack_head(identity: Identity, ends: Sequence[End], *, rewritten: bool = False) -> bytes:
    """The bytes at the beginning of a segment."""
    fields = (_HEAD_MAGIC, VERSION, _REWRITTEN if rewritten else 0, identity.mark)
    data = _HEAD.pack(*fields, identity.partitions, bytes(8), 0)[:-4]
    packed = pack_ends(ends)
    return data + _SUM.pack(crc32(packed, crc32(data))) + packed


def read_head(reader: Reader) -> Head | None:
    """Read the head of a segment; None if it cannot be read.

    Raises EngineError for a segment of a newer format.
    """
    start = reader.read(0, _HEAD.size)
    if len(start) < _HEAD.size:
        return None
    magic, version, flags, mark, partitions, _, checksum = _HEAD.unpack(start)
    if magic != _HEAD_MAGIC or not 0 < partitions <= MAX_PARTITIONS:
        return None
    data = reader.read(0, head_size(partitions))
    if crc32(data[_HEAD.size :], crc32(data[: _HEAD.size - 4])) != checksum:
        return None
    if version > VERSION:
        raise EngineError(
            f"{reader.path} has format {version}, of a newer version of Wirelake;"
            f" this one reads format {VERSION}"
        )
    ends = parse_ends(data[_HEAD.size :])
    return Head(Identity(partitions, mark), ends, bool(flags & _REWRITTEN))


class Frame(NamedTuple):
    """A frame: the size in bytes and the number of the records behind it."""

    size: int
    records: int


def pack_frame(identity: Identity, size: int, records: int, magic: bytes = _FRAME_MAGIC) -> bytes:
    """The bytes of a frame."""
    fields = (magic, VERSION, identity.partitions, identity.mark)
    data = _FRAME.pack(*fields, size, records, 0)[:-4]
    return data + _SUM.pack(crc32(data))


def parse_frame(data: memoryview, mark: bytes, magic: bytes = _FRAME_MAGIC) -> Frame | None:
    """Parse a frame; None if it is not one of this journal."""
    if len(data) < FRAME or data[:4] != magic or data[8:16] != mark:
        return None
    if crc32(data[: FRAME - 4]) != _SUM.unpack_from(data, FRAME - 4)[0]:
        return None
    return Frame(*_FRAME.unpack_from(data)[4:6])


class Reader:
    """A segment's file, open for reading; small records are read many at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._begin = 0
        self._data = b""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    @property
    def size(self) -> int:
        """The bytes of the file."""
        return os.fstat(self._file).st_size

    def read(self, at: int, size: int) -> memoryview:
        """Bytes of the file, fewer where it ends."""
        begin = at - self._begin
        if begin < 0 or begin + size > len(self._data):
            self._begin, begin = at, 0
            self._data = os.pread(self._file, max(size, _STEP), at)
            while len(self._data) < size and (
                more := os.pread(self._file, size - len(self._data), at + len(self._data))
            ):
                self._data += more
        return memoryview(self._data)[begin : begin + size]

    def record(self, at: int, size: int, checksum: int) -> tuple[Header, memoryview] | None:
        """The record at a place and its body; None where it is not as it was written."""
        data = self.read(at, size)
        header = parse_header(data[:HEADER], f"{self.path.name}, byte {at}")
        if header is None or header.checksum != checksum or not is_whole(data, header):
            return None
        return header, data[HEADER : HEADER + header.body]


class Entries:
    """Records of one partition and kind in a segment, as columns that only grow.

    They have places [base, end); for records that have no rows, that is their number.
    """

    def __init__(self) -> None:
        self.base = array("q")
        self.first_time = array("q")
        self.last_time = array("q")
        self.at = array("q")
        self.size = array("q")
        self.number = array("q")
        self.rows = array("I")
        self.checksum = array("I")
        self.type = array("B")
        self.before = array("q")  # the bytes of those before it
        self.end = array("q")
        # Of all of them
        self.earliest = self.latest = self.bytes = 0

    def add(self, header: Header, at: int, base: int, end: int) -> None:
        """Add a record; `end` is last, since readers go by it."""
        self.earliest = min(self.earliest, header.first_time) if self.end else header.first_time
        self.latest = max(self.latest, header.last_time)
        self.before.append(self.bytes)
        self.bytes += header.size
        self.base.append(base)
        self.first_time.append(header.first_time)
        self.last_time.append(header.last_time)
        self.at.append(at)
        self.size.append(header.size)
        self.number.append(header.number)
        self.rows.append(header.rows)
        self.checksum.append(header.checksum)
        self.type.append(header.type)
        self.end.append(end)

    def __len__(self) -> int:
        return len(self.end)

    def bytes_since(self, place: int) -> int:
        """The bytes of the records that begin at a place or behind it."""
        k = bisect_left(self.base, place)
        return self.bytes - self.before[k] if k < len(self.base) else 0


#: Stands for the entries of all partitions that have none: a journal may have a thousand.
_NOTHING = Entries()

_SPACES: dict[int, Space] = {
    Type.ROWS: Space.LOG,
    Type.KEPT: Space.KEPT,
    Type.MESSAGES: Space.PRIVATE,
}
#: Where entries of records without rows stand.
STATE = len(Space)
#: Of an index: number, base, count, times, place, rows, partition, size, checksum, type.
_INDEX = Columns("qqqqqqIIIIB")


class Segment:
    """One segment file of a journal."""

    def __init__(self, folder: Path, name: Name, ends: Sequence[End], *, rewritten: bool) -> None:
        self.name = name
        self.path = folder / name.file
        self.rewritten = rewritten
        #: Where the chains stood when it began, and where they stand behind it.
        self.begins = list(ends)
        self.ends = list(ends)
        #: By space (and `STATE`), then by partition.
        self.entries = [[_NOTHING] * len(ends) for _ in (*Space, STATE)]
        #: The number of the last checkpoint of a partition, and the first record that it needs.
        self.checkpoints: dict[int, tuple[int, int]] = {}
        self.headers: list[tuple[int, Header]] = []  # until it is complete
        self.records = 0
        self.size = 0
        self.complete = False
        #: Places of records that are known to be damaged, and whether anything in it is.
        self.reported: set[int] = set()
        self.damaged = False
        #: Rules of retention, and how many bytes of the log each of them has here.
        self.shares: tuple[list[object], list[int]] | None = None

    def add(self, header: Header, at: int) -> None:
        """Take a record, which is on the disk, into account."""
        self.records += 1
        partition, number = header.partition, header.number
        space = _SPACES.get(header.type)
        of_partitions = self.entries[STATE if space is None else space]
        if of_partitions[partition] is _NOTHING:
            of_partitions[partition] = Entries()
        if space is not None:
            of_partitions[partition].add(header, at, header.base, header.base + header.count)
        else:
            of_partitions[partition].add(header, at, number, number + 1)
            if header.type == Type.CHECKPOINT:
                self.checkpoints[partition] = (number, header.base)
        if not self.rewritten:
            self.ends[partition] = self.ends[partition].behind(header)
        if not self.complete:
            self.headers.append((at, header))

    def index(self, identity: Identity) -> list[Piece]:
        """The index and the foot, which stand behind its records."""
        table = [
            (
                *(one.number, one.base, one.count, one.first_time, one.last_time, at),
                *(one.rows, one.partition, one.size, one.checksum, one.type),
            )
            for at, one in self.headers
        ]
        record = Record(Type.INDEX, [pack_ends(self.ends), _INDEX.pack(table)])
        _, pieces = encode(record, identity.mark, NOBODY, End(), 0)
        return [*pieces, pack_frame(identity, self.size, 0, _FOOT_MAGIC)]

    def reaches(self, space: int, partition: int, place: int) -> bool:
        """Is this place of a partition here, or before what is here?"""
        ends = self.entries[space][partition].end
        return len(ends) > 0 and ends[-1] > place

    @property
    def live(self) -> int:
        """The bytes of its records."""
        return sum(entries.bytes for spaces in self.entries for entries in spaces)

    @property
    def batches(self) -> int:
        """The number of its records that have rows."""
        return sum(len(entries) for spaces in self.entries[:STATE] for entries in spaces)

    def read_index(self, reader: Reader, identity: Identity) -> bool:
        """Take everything from the index; False where there is none that can be read."""
        size = reader.size
        foot = parse_frame(reader.read(max(0, size - FRAME), FRAME), identity.mark, _FOOT_MAGIC)
        if foot is None or foot.size >= size:
            return False
        data = reader.read(foot.size, size - FRAME - foot.size)
        header = parse_header(data, self.path.name)
        if header is None or header.type != Type.INDEX or not is_whole(data, header):
            return False
        body = data[HEADER : HEADER + header.body]
        split = _END.size * identity.partitions
        table, _ = _INDEX.unpack(body, split)
        self.complete = True
        for row in table:
            number, base, count, *times, at, rows, partition, size, checksum, kind = row
            fields = (VERSION, kind, 0, identity.mark, partition, size - HEADER, 0, number, base)
            self.add(Header(*fields, times[0], times[1], count, rows, 0, 0, checksum), at)
        self.ends = parse_ends(body[:split])
        self.size = foot.size
        return True


def filling(mark: bytes, at: int, size: int) -> memoryview:
    """Return the filling in [at, at + size) of a file, where nothing was written yet."""
    sector = hashlib.shake_128(mark).digest(_SECTOR)
    begin = at % _SECTOR
    return memoryview(sector * (size // _SECTOR + 2))[begin : begin + size]


class Bad(NamedTuple):
    """Bytes [begin, end) that are no valid record; `lost` is the header of the one that was there.

    `unwritten`: a sector's share of them was never written.
    """

    begin: int
    end: int
    unwritten: bool
    lost: Header | None = None


def scan(
    reader: Reader, identity: Identity, at: int
) -> tuple[list[tuple[int, Header | Frame] | Bad], int]:
    """All frames, records and bad bytes from a place on, in order, and where they end.

    Behind that is nothing but the filling.
    """
    found: list[tuple[int, Header | Frame] | Bad] = []
    size = reader.size
    end = _filled_from(reader, identity.mark)
    until = at  # where the last frame's records end
    while at < end:
        data = reader.read(at, HEADER)
        frame = parse_frame(data, identity.mark)
        if frame is not None:
            found.append((at, frame))
            at += FRAME
            until = at + frame.size
            continue
        if parse_frame(data, identity.mark, _FOOT_MAGIC) is not None:
            at += FRAME
            continue
        header = _record_header(data, identity, reader, at)
        if header is None:
            stop = _find(reader, at + ALIGN, end, identity)
            short = stop == size and stop - at < FRAME + HEADER  # no write is so small
            found.append(Bad(at, stop, short or _is_unwritten(reader, at, stop, identity.mark)))
        elif (stop := at + header.size) > size:
            stop = size
            found.append(Bad(at, stop, True, header))
        elif not is_whole(reader.read(at, header.size), header):
            found.append(Bad(at, stop, _is_unwritten(reader, at, stop, identity.mark), header))
        else:
            found.append((at, header))
        at = stop
    if at < until:
        found.append(Bad(at, min(until, size), True))
        at = max(at, min(until, size))
    return found, at


def find_identity(reader: Reader) -> Identity | None:
    """The identity that a frame or the foot of a segment tells, where its head cannot be read."""
    for magic in (_FRAME_MAGIC, _FOOT_MAGIC):
        for at in _occurrences(reader, 0, reader.size, magic):
            data = reader.read(at, FRAME)
            if parse_frame(data, bytes(data[8:16]), magic) is not None:
                return Identity(_FRAME.unpack(data)[2], bytes(data[8:16]))
    return None


def _record_header(data: memoryview, identity: Identity, reader: Reader, at: int) -> Header | None:
    """The header of a record of this journal, if it is one."""
    header = parse_header(data, f"{reader.path.name}, byte {at}")
    if header is None or header.mark != identity.mark:
        return None
    if header.partition >= identity.partitions and header.partition != NOBODY:
        return None
    return header


def _find(reader: Reader, at: int, end: int, identity: Identity) -> int:
    """Where the next frame or header begins, or the end."""
    for found in _occurrences(reader, at + 8, end, identity.mark):
        found -= 8
        data = reader.read(found, HEADER)
        if found % ALIGN == 0 and (
            parse_frame(data, identity.mark) or _record_header(data, identity, reader, found)
        ):
            return found
    return max(at, end + -end % ALIGN) if end < reader.size else reader.size


def _occurrences(reader: Reader, at: int, end: int, sought: bytes) -> Iterator[int]:
    """Where these bytes are in [at, end) of a file."""
    while at < end:
        data = bytes(reader.read(at, min(_STEP, end - at)))
        place = data.find(sought)
        while place >= 0:
            yield at + place
            place = data.find(sought, place + 1)
        if len(data) < _STEP:
            return
        at += len(data) - len(sought) + 1


def _filled_from(reader: Reader, mark: bytes) -> int:
    """From where on there is nothing but the filling, or the size of the file."""
    end = size = reader.size
    while end > 0:
        at = max(0, end - _STEP)
        data = bytes(reader.read(at, end - at))
        expected = bytes(filling(mark, at, end - at))
        if data != expected:
            low, high = 0, len(data)  # data[high:] is filling, data[low:] is not
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if data[middle:] == expected[middle:] else (middle, high)
            end = at + (low if data[low:] == expected[low:] else high)
            break
        end = at
    return end if size - end >= ALIGN else size


def _is_unwritten(reader: Reader, begin: int, end: int, mark: bytes) -> bool:
    """Was a sector's share of these bytes never written?

    Then it is filling, or zeros: a whole sector of them, or where a frame or header has to begin.
    """
    at = begin
    while at < end:
        stop = min(end, (at // _SECTOR + 1) * _SECTOR)
        data = reader.read(at, stop - at)
        zeros = not any(data) and (at == begin or stop - at == _SECTOR)
        if zeros or data == filling(mark, at, stop - at):
            return True
        at = stop
    return False
