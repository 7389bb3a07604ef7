"""A segment: one file of the log, what is in it, and what of it can still be read.

A segment begins with a head (the log's mark, how many partitions it has, the offset at which each
of them went on) and then holds records, one a batch: a header of fixed size with a checksum of its
own, the batch's addresses where they are few, and the batch as `wirelake.engine.batch` wrote it.
Nothing in it is ever changed. A segment that is rewritten, since its batches were small or some of
its rows had expired, is a new file that stands for the old ones.

The name of a file, `000000003-000000005-1.log`, says which segments it stands for, and how many
times they were rewritten. Where a crash left both, the one rewritten more often counts.

The *mark* is eight random bytes, the same in every record of a log. Where bytes are damaged the
next record is found by it, and nobody who only sends messages can know it and forge a record.

Beside a segment that is complete lies its index, a copy of what the headers of its records say. It
is only there to start faster: one that is missing or wrong is made again.
"""

from __future__ import annotations

import os
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from wirelake.engine.batch import BATCH_ROWS, MAX_PARTITIONS, Batch
from wirelake.errors import EngineError

Piece = bytes | memoryview

_NAME = re.compile(r"(\d{9,})-(\d{9,})-(\d+)\.log")

#: Magic, version, partitions, mark. The head stays as it is in later versions.
_HEAD = struct.Struct("<4sHH8s")
_HEAD_MAGIC = b"WLSG"
VERSION = 1
_SUM = struct.Struct("<I")

#: Magic, partitions, mark, partition, rows, base, first and last time, bytes of addresses and of
#: the batch, their checksum, and the checksum of all this.
_RECORD = struct.Struct("<4sI8sIIqqqIIII")
_RECORD_MAGIC = b"WLR1"
RECORD_HEADER = _RECORD.size
_HEADER_SUM_AT = RECORD_HEADER - _SUM.size
#: The metadata of a batch alone is larger.
_LEAST_RECORD = 1024

_INDEX = struct.Struct("<4sIq")
_INDEX_MAGIC = b"WLI1"

#: A record names its addresses if they are so few, so that readers can skip it.
MAX_NAMES = 64
MAX_NAMES_BYTES = 4096

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


@dataclass(frozen=True, slots=True)
class Header:
    """What a record's header says."""

    identity: Identity
    partition: int
    count: int
    base: int
    first_time: int
    last_time: int
    names: int
    body: int
    checksum: int

    @property
    def size(self) -> int:
        """The bytes of the whole record."""
        return RECORD_HEADER + self.names + self.body


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes [begin, end) of a segment that are no record.

    `torn`: the file ends inside a record, as when a write was interrupted. `lost`: the record that
    was there, if that is known.
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
        end = header.base + header.count
        values = header.base, header.first_time, header.last_time, at, header.size, end
        if not self.end or header.first_time < self.earliest:
            self.earliest = header.first_time
        if not self.end or header.last_time > self.latest:
            self.latest = header.last_time
        self.bytes += header.size
        for column, value in zip(self.columns(), values, strict=True):
            column.append(value)

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
        #: Rules of retention, and how many bytes each of them has here.
        self.shares: tuple[object, list[int]] | None = None
        #: Have all bytes been looked at since the log was opened?
        self.checked = False
        #: Is its index on the disk?
        self.indexed = False

    @property
    def records(self) -> int:
        """How many batches there are."""
        return sum(len(entries.end) for entries in self.entries)

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


def record(batch: Batch, identity: Identity) -> tuple[Header, list[Piece]]:
    """A batch as it is written to a segment."""
    names = _names(batch.addresses)
    checksum = crc32(names)
    for piece in batch.pieces:
        checksum = crc32(piece, checksum)
    fields = (
        batch.partition,
        batch.count,
        batch.base,
        batch.first_time,
        batch.last_time,
        len(names),
        sum(map(len, batch.pieces)),
        checksum,
    )
    data = _RECORD.pack(_RECORD_MAGIC, *identity, *fields, 0)[:_HEADER_SUM_AT]
    data += _SUM.pack(crc32(data))
    return Header(identity, *fields), [data + names, *batch.pieces]


def parse_header(data: memoryview) -> Header | None:
    """What a record's header says, if it is one."""
    if len(data) < RECORD_HEADER or data[:4] != _RECORD_MAGIC:
        return None
    _, partitions, mark, partition, *fields, checksum = _RECORD.unpack(data[:RECORD_HEADER])
    if crc32(data[:_HEADER_SUM_AT]) != checksum or partition >= partitions:
        return None
    return Header(Identity(partitions, mark), partition, *fields)


def parse_names(names: memoryview) -> list[str]:
    """The addresses that a record names."""
    found = []
    at = 0
    while at < len(names):
        end = at + 1 + names[at]
        found.append(str(names[at + 1 : end], "utf-8"))
        at = end
    return found


def _names(addresses: list[bytes]) -> bytes:
    """Addresses for a record, none where there are many."""
    if len(addresses) > MAX_NAMES or any(len(address) > 255 for address in addresses):
        return b""
    names = b"".join(bytes([len(address)]) + address for address in addresses)
    return names if len(names) <= MAX_NAMES_BYTES else b""


def scan(
    reader: Reader, identity: Identity, *, bodies: bool
) -> Iterator[tuple[int, Header] | Damage]:
    """All that is in a segment, in order: records and where they are, and what is damaged.

    The batches themselves are looked at only if `bodies` says so.
    """
    size = reader.size
    at = head_size(identity.partitions)
    if read_head(reader) is None:
        at = 0
    while at < size:
        header = parse_header(reader.read(at, RECORD_HEADER))
        if header is None or header.identity != identity:
            end = _find(reader, at + 1, size, identity)
            torn = end == size and (size - at < RECORD_HEADER or _is_empty(reader, at, size))
            yield Damage(at, end, torn)
            at = end
            continue
        end = at + header.size
        if end > size:
            yield Damage(at, size, True, header)
            return
        if bodies and not is_whole(reader.read(at, header.size), header):
            yield Damage(at, end, False, header)
        else:
            yield at, header
        at = end


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
    sought = _RECORD.pack(_RECORD_MAGIC, *identity, *[0] * 9)[:16]
    for found in _occurrences(reader, at, size, sought):
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


def _is_empty(reader: Reader, at: int, size: int) -> bool:
    """Is there nothing but zeros, as where a file was made longer and never written?"""
    while at < size:
        data = reader.read(at, min(_STEP, size - at))
        if bytes(data).strip(b"\0"):
            return False
        at += len(data)
    return True


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
        self._file = os.open(self._draft, flags, 0o644)
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
