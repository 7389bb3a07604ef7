"""A segment: one file of the log, what is in it, and what of it can still be read.

A segment begins with a head (the log's mark, how many partitions it has, the offset at which each
of them went on) and then holds records, one a batch: a header of fixed size with a checksum of its
own, the batch's addresses where they are few, and the batch as `wirelake.engine.batch` wrote it.
Other records hold *changes*, which are nobody's rows: what a commit does to queues and keys, until
the database has it. Nothing in a segment is ever changed. A segment that is rewritten, since its
batches were small or some of its rows had expired, is a new file that stands for the old ones.

The records of a commit are numbered. The segment that is being written ends with a *filling*, as a
sync of a file that grows takes far longer. What a power failure leaves of the last commit, sectors
of that filling among others that were written, is told from damage by them: it was never durable.

The name of a file, `000000003-000000005-1.log`, says which segments it stands for, and how many
times they were rewritten. Where a crash left both, the one rewritten more often counts.

The *mark* is eight random bytes, the same in every record of a log. Where bytes are damaged the
next record is found by it, and nobody who only sends messages can know it and forge a record.

Beside a segment that is complete lies its index, a copy of what the headers of its records say. It
is only there to start faster: one that is missing or wrong is made again.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from wirelake.engine.arrow_stream import BATCH_ROWS
from wirelake.engine.batch import MAX_PARTITIONS, Batch
from wirelake.errors import EngineError

Piece = bytes | memoryview

_NAME = re.compile(r"(\d{9,})-(\d{9,})-(\d+)\.log")

#: Magic, version, partitions, mark. The head stays as it is in later versions.
_HEAD = struct.Struct("<4sHH8s")
_HEAD_MAGIC = b"WLSG"
VERSION = 1
_SUM = struct.Struct("<I")

#: Magic, partitions, place in the commit, mark, partition, rows, base, first and last time, bytes
#: of addresses and of the batch, their checksum, and the checksum of all this.
_RECORD = struct.Struct("<4sHH8sIIqqqIIII")
#: The partition that changes stand in; their base is their number.
CHANGES = 0xFFFFFFFF
#: The bit of a place that says that another record of the same commit follows.
_MORE = 0x8000
_RECORD_MAGIC = b"WLR1"
RECORD_HEADER = _RECORD.size
_HEADER_SUM_AT = RECORD_HEADER - _SUM.size
#: The metadata of a batch alone is larger.
_LEAST_RECORD = 1024

_INDEX = struct.Struct("<4sIq")
_INDEX_MAGIC = b"WLI1"

#: What a disk writes whole or not at all; fewer bytes than that may look filled by chance.
_SECTOR = 512
_LEAST_SHARE = 16
#: Files are read in steps of this size, where records are small.
_STEP = 256 << 10
_COPY = 8 << 20
_IOV_MAX = 1000

#: How the names of files end that are not complete.
DRAFT = ".tmp"


class Name(NamedTuple):
    """What the name of a segment's file says."""

    first: int
    last: int
    rewrites: int = 0

    @property
    def file(self) -> str:
        """The name."""
        return f"{self.first:09}-{self.last:09}-{self.rewrites}.log"

    @classmethod
    def parse(cls, file: str) -> Name | None:
        """What a name says, if it is one."""
        match = _NAME.fullmatch(file)
        return cls(*map(int, match.groups())) if match else None

    def replaces(self, other: Name) -> bool:
        """Does this one stand for the other?"""
        inside = self.first <= other.first and other.last <= self.last
        return inside and self.rewrites > other.rewrites


class Identity(NamedTuple):
    """What all segments of a log have in common."""

    partitions: int
    mark: bytes


class Header(NamedTuple):
    """What a record's header says."""

    identity: Identity
    place: int  # among the records of its commit, see `place_in`
    partition: int
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    base: int
    first_time: int
    last_time: int
    names: int
    body: int
    checksum: int

    @property
    def is_first(self) -> bool:
        """Does its commit begin with it?"""
        return self.place & ~_MORE == 0

    @property
    def is_last(self) -> bool:
        """Does its commit end with it?"""
        return not self.place & _MORE

    @property
    def size(self) -> int:
        """The bytes of the whole record."""
        return RECORD_HEADER + self.names + self.body


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [begin, end) of a segment that are no record.

    `torn`: as when a write was interrupted. `lost`: the record that was there, if that is known.
    """

    begin: int
    end: int
    torn: bool
    lost: Header | None = None

    @property
    def most_rows(self) -> int:
        """No more rows than this can have been there."""
        return BATCH_ROWS * (1 + (self.end - self.begin) // _LEAST_RECORD)


class Entries:
    """The records of one partition in a segment, as columns that only grow."""

    def __init__(self) -> None:
        self.base = array("q")
        self.end = array("q")
        self.first_time = array("q")
        self.last_time = array("q")
        self.at = array("q")
        self.size = array("q")
        # Of all of them
        self.earliest = 0
        self.latest = 0
        self.bytes = 0

    def columns(self) -> tuple[array[int], ...]:
        """All columns; what is in `end`, the last one, is in the others too."""
        return self.base, self.first_time, self.last_time, self.at, self.size, self.end

    def add(self, header: Header, at: int) -> None:
        """Add a record."""
        size = header.size
        if not self.end or header.first_time < self.earliest:
            self.earliest = header.first_time
        if not self.end or header.last_time > self.latest:
            self.latest = header.last_time
        self.bytes += size
        self.base.append(header.base)
        self.first_time.append(header.first_time)
        self.last_time.append(header.last_time)
        self.at.append(at)
        self.size.append(size)
        self.end.append(header.base + header.count)

    def summarise(self) -> None:
        """Work out what is known of all records."""
        self.earliest = min(self.first_time, default=0)
        self.latest = max(self.last_time, default=0)
        self.bytes = sum(self.size)


class Segment:
    """What is known of one file of the log."""

    def __init__(self, folder: Path, name: Name, starts: Sequence[int]) -> None:
        self.name = name
        self.path = folder / name.file
        self.index_path = self.path.with_suffix(".idx")
        #: The offsets at which the partitions went on here.
        self.starts = list(starts)
        self.entries = [Entries() for _ in starts]
        self.size = 0
        self.records = 0
        #: The number of the last changes here; 0 where the database is known to have them.
        self.last_changes = 0
        #: Rules of retention, and how many bytes each of them has here.
        self.shares: tuple[object, list[int]] | None = None
        #: Have all bytes been looked at since the log was opened?
        self.checked = False
        #: Is its index on the disk?
        self.indexed = False

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return sum(len(entries.end) for entries in self.entries)

    @property
    def changes_bytes(self) -> int:
        """What of it is no batch."""
        return self.size - sum(entries.bytes for entries in self.entries)

    @property
    def earliest(self) -> int:
        """When the first row was received, in µs."""
        return min((entries.earliest for entries in self.entries if entries.end), default=0)

    @property
    def latest(self) -> int:
        """When the last row was received, in µs."""
        return max((entries.latest for entries in self.entries if entries.end), default=0)

    def reaches(self, partition: int, offset: int) -> bool:
        """Is this offset of a partition here, or before what is here?"""
        ends = self.entries[partition].end
        return len(ends) > 0 and ends[-1] > offset

    def add(self, header: Header, at: int) -> None:
        """Take a record, which is on the disk, into account."""
        self.records += 1
        if header.partition == CHANGES:
            self.last_changes = header.base
        else:
            self.entries[header.partition].add(header, at)

    def ends(self) -> list[int]:
        """The offsets at which the partitions go on behind it."""
        return [
            max(start, entries.end[-1]) if entries.end else start
            for start, entries in zip(self.starts, self.entries, strict=True)
        ]

    def spans(self) -> list[tuple[int, int]]:
        """Partition and position in it of all records, in the order of the file."""
        places = [
            (at, partition, k)
            for partition, entries in enumerate(self.entries)
            for k, at in enumerate(entries.at)
        ]
        return [(partition, k) for _, partition, k in sorted(places)]

    def write_index(self) -> None:
        """Write its index, unless that is known to be there."""
        if self.indexed:
            return
        parts = [
            _INDEX.pack(_INDEX_MAGIC, len(self.starts), self.size),
            array("q", self.starts).tobytes(),
        ]
        for entries in self.entries:
            parts.append(array("q", [len(entries.end)]).tobytes())
            parts += [column.tobytes() for column in entries.columns()]
        data = b"".join(parts)
        with Draft(self.index_path) as draft:
            draft.write([data, _SUM.pack(crc32(data))])
        self.indexed = True

    def read_index(self) -> bool:
        """Take everything from its index; False where that is missing, wrong or out of date."""
        try:
            data = self.index_path.read_bytes()
        except OSError:
            return False
        if len(data) < _INDEX.size + _SUM.size:
            return False
        body, (checksum,) = memoryview(data)[: -_SUM.size], _SUM.unpack(data[-_SUM.size :])
        magic, partitions, size = _INDEX.unpack_from(body)
        known = magic == _INDEX_MAGIC and partitions == len(self.starts)
        if not known or crc32(body) != checksum or size != self.path.stat().st_size:
            return False
        numbers = array("q", body[_INDEX.size :].tobytes())
        self.starts = list(numbers[:partitions])
        at = partitions
        for entries in self.entries:
            count = numbers[at]
            at += 1
            for column in entries.columns():
                column.extend(numbers[at : at + count])
                at += count
            entries.summarise()
            self.records += count
        self.size = size
        self.indexed = True
        return True

    def delete(self) -> None:
        """Remove its files; who has them open can go on reading."""
        self.index_path.unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


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
            while len(self._data) < size and (more := self._more(at)):
                self._data += more
        return memoryview(self._data)[begin : begin + size]

    def _more(self, at: int) -> bytes:
        """What comes behind that which one call of the system gave."""
        return os.pread(self._file, 1 << 30, at + len(self._data))


def head(identity: Identity, starts: Sequence[int]) -> bytes:
    """The bytes at the beginning of a segment."""
    data = _HEAD.pack(_HEAD_MAGIC, VERSION, identity.partitions, identity.mark)
    data += array("q", starts).tobytes()
    return data + bytes(4) + _SUM.pack(crc32(data))


def head_size(partitions: int) -> int:
    """How many bytes that are."""
    return _HEAD.size + 8 * partitions + 8


def read_head(reader: Reader) -> tuple[Identity, list[int]] | None:
    """What the head of a segment says, if it can be read."""
    start = reader.read(0, _HEAD.size)
    if len(start) < _HEAD.size:
        return None
    magic, version, partitions, mark = _HEAD.unpack(start)
    if magic != _HEAD_MAGIC or not 0 < partitions <= MAX_PARTITIONS:
        return None
    data = reader.read(0, head_size(partitions))
    size = _HEAD.size + 8 * partitions
    if len(data) < head_size(partitions) or any(data[size:-4]):
        return None
    if _SUM.unpack(data[-4:]) != (crc32(data[:size]),):
        return None
    if version > VERSION:
        raise EngineError(f"{reader.path} was written by a newer version of Wirelake")
    return Identity(partitions, mark), list(array("q", data[_HEAD.size : size].tobytes()))


def place_in(commit: int, number: int) -> int:
    """The place of a record in a commit of so many."""
    return min(number, _MORE - 1) | (_MORE if number < commit - 1 else 0)


def record(batch: Batch, identity: Identity, place: int = 0) -> tuple[Header, list[Piece]]:
    """A batch as it is written to a segment."""
    names = batch.names
    checksum = crc32(names)
    size = 0
    for piece in batch.pieces:
        checksum = crc32(piece, checksum)
        size += len(piece)
    header = Header(
        identity,
        place,
        batch.partition,
        batch.count,
        batch.base,
        batch.first_time,
        batch.last_time,
        len(names),
        size,
        checksum,
    )
    return header, [_packed(header) + names, *batch.pieces]


def changes_record(
    body: bytes, number: int, identity: Identity, place: int
) -> tuple[Header, list[Piece]]:
    """Changes as they are written to a segment."""
    header = Header(identity, place, CHANGES, 0, number, 0, 0, 0, len(body), crc32(body))
    return header, [_packed(header), body]


def _packed(header: Header) -> bytes:
    """The bytes of a header."""
    (partitions, mark), place, *fields = header
    data = _RECORD.pack(_RECORD_MAGIC, partitions, place, mark, *fields, 0)[:_HEADER_SUM_AT]
    return data + _SUM.pack(crc32(data))


def parse_header(data: memoryview) -> Header | None:
    """What a record's header says, if it is one."""
    if len(data) < RECORD_HEADER or data[:4] != _RECORD_MAGIC:
        return None
    _, partitions, place, mark, partition, *fields, checksum = _RECORD.unpack(data[:RECORD_HEADER])
    if crc32(data[:_HEADER_SUM_AT]) != checksum:
        return None
    if partition >= partitions and partition != CHANGES:
        return None
    return Header(Identity(partitions, mark), place, partition, *fields)


def parse_names(names: memoryview) -> list[str]:
    """The addresses that a record names."""
    found = []
    at = 0
    while at < len(names):
        end = at + 1 + names[at]
        found.append(str(names[at + 1 : end], "utf-8"))
        at = end
    return found


def scan(
    reader: Reader, identity: Identity, *, bodies: bool
) -> tuple[list[tuple[int, Header] | Damage], int]:
    """All that is in a segment, in order: records and where they are, and what is damaged.

    And where it ends: nothing but its filling follows, if anything. The batches themselves are
    looked at only if `bodies` says so.
    """
    found: list[tuple[int, Header] | Damage] = []
    size = _filled_from(reader, identity)
    at = head_size(identity.partitions)
    if read_head(reader) is None:
        at = 0
    while at < size:
        header = parse_header(reader.read(at, RECORD_HEADER))
        if header is None or header.identity != identity:
            end = _find(reader, at + 1, size, identity)
            torn = size - at < RECORD_HEADER or _is_unwritten(reader, at, end, identity)
            found.append(Damage(at, end, torn))
        elif (end := at + header.size) > reader.size:
            end = size
            found.append(Damage(at, end, True, header))
        elif bodies and not is_whole(reader.read(at, header.size), header):
            found.append(Damage(at, end, _is_unwritten(reader, at, end, identity), header))
        else:
            found.append((at, header))
        at = end  # behind `size` where a record ends with what the filling has there
    return _without_torn(found, at), at


def _without_torn(
    found: list[tuple[int, Header] | Damage], end: int
) -> list[tuple[int, Header] | Damage]:
    """The same with the last commit, if a record of it is torn, as one that is.

    Anywhere else, what looks torn is damaged: what follows a commit was written after its sync.
    """
    first = None
    for k in range(len(found) - 1, -1, -1):
        one = found[k]
        header = one.lost if isinstance(one, Damage) else one[1]
        if isinstance(one, Damage) and one.torn:
            first = k
        if header is not None and header.is_first:
            break
    kept = [replace(one, torn=False) if isinstance(one, Damage) else one for one in found[:first]]
    if first is None:
        return kept
    torn = found[first]
    assert isinstance(torn, Damage)
    begin = torn.begin
    while kept and not isinstance(before := kept[-1], Damage) and not before[1].is_last:
        begin = before[0]
        kept.pop()
    return [*kept, replace(torn, begin=begin, end=end)]


def is_whole(data: memoryview, header: Header) -> bool:
    """Is a record as it was written?"""
    return len(data) == header.size and crc32(data[RECORD_HEADER:]) == header.checksum


def find_identity(reader: Reader) -> Identity | None:
    """The identity that the first record of a segment tells, where its head cannot be read."""
    size = reader.size
    for at in _occurrences(reader, 0, size, _RECORD_MAGIC):
        header = parse_header(reader.read(at, RECORD_HEADER))
        if header is not None:
            return header.identity
    return None


def _find(reader: Reader, at: int, size: int, identity: Identity) -> int:
    """Where the next record begins, or the size of the file."""
    for found in _occurrences(reader, at + 8, size, identity.mark):
        found -= 8
        if parse_header(reader.read(found, RECORD_HEADER)) is not None:
            return found
    return size


def _occurrences(reader: Reader, at: int, size: int, sought: bytes) -> Iterator[int]:
    """Where these bytes are in [at, size) of a file."""
    while at < size:
        data = bytes(reader.read(at, min(_STEP, size - at)))
        if not data:
            return
        place = data.find(sought)
        while place >= 0:
            yield at + place
            place = data.find(sought, place + 1)
        if len(data) < _STEP:
            return
        at += len(data) - len(sought) + 1


def filling(identity: Identity, at: int, size: int) -> memoryview:
    """What stands in [at, at + size) of a file where nothing was written yet.

    Nobody knows it who does not know the mark.
    """
    sector = hashlib.shake_128(identity.mark).digest(_SECTOR)
    begin = at % _SECTOR
    return memoryview(sector * (size // _SECTOR + 2))[begin : begin + size]


def _filled_from(reader: Reader, identity: Identity) -> int:
    """From where on there is nothing but the filling, or the size of the file."""
    end = reader.size
    while end > 0:
        at = max(0, end - _STEP)
        data = reader.read(at, end - at)
        expected = filling(identity, at, end - at)
        if data != expected:
            k = len(data)
            while k > 0 and data[k - 1] == expected[k - 1]:
                k -= 1
            end = at + k
            break
        end = at
    return end if reader.size - end >= _LEAST_SHARE else reader.size


def _is_unwritten(reader: Reader, at: int, end: int, identity: Identity) -> bool:
    """Was a sector's share of these bytes never written, or are they all zeros?"""
    zeros = True
    while at < end:
        stop = min(end, (at // _SECTOR + 1) * _SECTOR)
        data = reader.read(at, stop - at)
        if stop - at >= _LEAST_SHARE and data == filling(identity, at, stop - at):
            return True
        zeros = zeros and not any(data)
        at = stop
    return zeros


def write_all(file: int, pieces: list[Piece], at: int) -> None:
    """Write pieces one after the other, beginning at a place in the file."""
    k = 0
    while k < len(pieces):
        some = pieces[k : k + _IOV_MAX]
        written = os.pwritev(file, some, at)
        at += written
        for piece in some:
            if written < len(piece):
                break
            written -= len(piece)
            k += 1
        if written:
            pieces = [memoryview(pieces[k])[written:], *pieces[k + 1 :]]
            k = 0


class Draft:
    """A new file, which has its name only when it is complete and durable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(path.name + DRAFT)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(self._draft, flags, 0o600)
        self.size = 0

    def __enter__(self) -> Draft:
        return self

    def write(self, pieces: list[Piece]) -> int:
        """Write pieces behind what is there; return where they begin."""
        at = self.size
        write_all(self._file, pieces, at)
        self.size += sum(map(len, pieces))
        return at

    def copy(self, reader: Reader, begin: int, end: int) -> None:
        """Write bytes [begin, end) of another file behind what is there."""
        while begin < end and (data := reader.read(begin, min(_COPY, end - begin))):
            self.write([data])
            begin += len(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            try:
                if kind is None:
                    os.fsync(self._file)
            finally:
                os.close(self._file)
            if kind is None:
                self._draft.rename(self._path)
        finally:
            self._draft.unlink(missing_ok=True)
        if kind is None:
            sync_folder(self._path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of files durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
