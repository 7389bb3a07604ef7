"""Records: their types, their bytes, and the chain that each partition's records make.

A record is a header of 96 bytes, a body, and zeros up to a multiple of 16 bytes. Its bytes say
nothing about where they are stored: in a segment file, in a message of a stream, in a copy. All
integers are little-endian. docs/format.md has the rules.

The *checksum of a record* is the one of its header, which holds the checksum of the body. Each
record holds the checksum of the record before it in its partition. So one that is missing, one that
is damaged and one that was written by somebody who did not know the latest can be told apart.

Changes of queues and entries are tables of columns. A run of messages is one row of such a table,
however many messages it has.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from zlib_ng.zlib_ng import crc32

from wirelake.errors import EngineError

VERSION = 1
MAGIC = b"WLJR"
#: Magic, version, type, place in the commit, mark, partition, bytes of the body, epoch, number,
#: base, first and last time, count, rows, zeros, chain, checksum of the body, and of all this.
_HEADER = struct.Struct("<4sBBH8sIIqqqqqII12xIII")
HEADER = _HEADER.size
_SUM = struct.Struct("<I")
#: Records begin and end at multiples of this.
ALIGN = 16
#: No body is larger.
MAX_BODY = 1 << 30
#: Bit of a place: another record of the same commit follows.
_MORE = 0x8000
#: The partition of records that belong to a file.
NOBODY = 0xFFFFFFFF

Piece = bytes | memoryview
_ZEROS = bytes(ALIGN)


class Type(IntEnum):
    """What a record holds. `base` and `count` of its header are in brackets."""

    ROWS = 1  # of the log, an Arrow batch (first offset, offsets)
    MESSAGES = 2  # of queues that are not captured, an Arrow batch (first slot, slots)
    QUEUES = 3  # `QueueChanges`
    KEYS = 4  # `EntryChanges` of the data store
    NOTES = 5  # `EntryChanges` of message ids that queues have seen
    CHECKPOINT = 6  # nothing (number of the first record that the state is made of, 0)
    EPOCH = 7  # the owner's name: somebody took the partition up
    KEPT = 8  # as ROWS: no longer in the log, but needed by a queue
    INDEX = 9  # of a segment that is complete


#: Types whose records are found by the place of a row, and are no part of what is recovered.
PLACED = (Type.ROWS, Type.KEPT, Type.MESSAGES)


class Record(NamedTuple):
    """A record as the owner of a partition knows it."""

    type: Type
    body: Sequence[Piece] = ()
    base: int = 0
    count: int = 0  # type: ignore[assignment]  # nobody misses tuple.count
    first_time: int = 0
    last_time: int = 0
    #: How many of the places have a row; retention leaves holes.
    rows: int = 0

    @property
    def data(self) -> bytes:
        """The body in one piece."""
        return b"".join(self.body)


class Header(NamedTuple):
    """The header of a record."""

    version: int
    type: int
    place: int
    mark: bytes
    partition: int
    body: int
    epoch: int
    number: int
    base: int
    first_time: int
    last_time: int
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    rows: int
    chain: int
    body_checksum: int
    checksum: int

    @property
    def is_first(self) -> bool:
        """Does a commit begin with it?"""
        return self.place & ~_MORE == 0

    @property
    def is_last(self) -> bool:
        """Does a commit end with it?"""
        return not self.place & _MORE

    @property
    def size(self) -> int:
        """The bytes of the whole record."""
        return HEADER + self.body + -self.body % ALIGN


class End(NamedTuple):
    """Where a partition's chain ends: the last record, and the next places to be given."""

    number: int = 0
    epoch: int = 0
    offset: int = 0
    slot: int = 0
    checksum: int = 0

    def behind(self, header: Header) -> End:
        """The end when this record follows."""
        offset, slot = self.offset, self.slot
        if header.type == Type.ROWS:
            offset = max(offset, header.base + header.count)
        elif header.type == Type.MESSAGES:
            slot = max(slot, header.base + header.count)
        return End(header.number, max(self.epoch, header.epoch), offset, slot, header.checksum)


def parse_header(data: bytes | memoryview, where: str = "a record") -> Header | None:
    """What a record's header says; None where there is none.

    Raises EngineError for a record of a newer format.
    """
    if (
        len(data) < HEADER
        or data[:4] != MAGIC
        or crc32(data[: HEADER - 4]) != _SUM.unpack_from(data, HEADER - 4)[0]
    ):
        return None
    header = Header(*_HEADER.unpack_from(data)[1:])
    if header.version > VERSION or not 1 <= header.type <= Type.INDEX:
        raise EngineError(
            f"{where} has format {header.version}, type {header.type}, of a newer version of"
            f" Wirelake; this one reads format {VERSION}, types 1 to {Type.INDEX.value}"
        )
    return header


def is_whole(data: memoryview, header: Header) -> bool:
    """Is the body behind a header, with its padding, as it was written?"""
    return len(data) == header.size and crc32(data[HEADER:]) == header.body_checksum


def encode(
    record: Record, mark: bytes, partition: int, end: End, place: int
) -> tuple[Header, list[Piece]]:
    """A record that follows `end`: its header, and its bytes in pieces."""
    size = checksum = 0
    for piece in record.body:
        size += len(piece)
        checksum = crc32(piece, checksum)
    if size > MAX_BODY:
        raise EngineError(f"a record has {size} bytes; {MAX_BODY} are possible")
    padding = _ZEROS[: -size % ALIGN]
    fields = (
        VERSION,
        record.type,
        place,
        mark,
        partition,
        size,
        end.epoch,
        end.number + 1,
        record.base,
        record.first_time,
        record.last_time,
        record.count,
        record.rows,
        end.checksum,
        crc32(padding, checksum),
    )
    data = _HEADER.pack(MAGIC, *fields, 0)[:-4]
    checksum = crc32(data)
    header = Header(*fields, checksum)
    packed = data + _SUM.pack(checksum)
    return header, [packed, *record.body, padding] if padding else [packed, *record.body]


def encode_commit(
    records: Sequence[Record], mark: bytes, partition: int, end: End
) -> tuple[End, list[Header], list[Piece]]:
    """The records of a commit that follows `end`: the new end, their headers and their bytes.

    Raises EngineError for rows whose places were given before.
    """
    headers: list[Header] = []
    pieces: list[Piece] = []
    for k, record in enumerate(records):
        if record.type == Type.ROWS and record.base < end.offset:
            raise EngineError(f"offset {record.base} of partition {partition} was given before")
        if record.type == Type.MESSAGES and record.base < end.slot:
            raise EngineError(f"slot {record.base} of partition {partition} was given before")
        place = min(k, _MORE - 1) | (_MORE if k < len(records) - 1 else 0)
        header, parts = encode(record, mark, partition, end, place)
        end = end.behind(header)
        headers.append(header)
        pieces += parts
    return end, headers, pieces


def rows(
    base: int,
    count: int,
    first_time: int,
    last_time: int,
    ipc: Sequence[Piece],
    *,
    names: bytes = b"",
    type: Type = Type.ROWS,
    there: int | None = None,
) -> Record:
    """Rows or messages at places [base, base + count), all of them or as many as are `there`.

    `names` are their addresses, each behind a byte with its length.

    Where there are too many addresses to name, `names` is empty.
    """
    before = _SUM.pack(len(names)) + names
    body = [before + _ZEROS[: -len(before) % 8], *ipc]
    return Record(type, body, base, count, first_time, last_time, count if there is None else there)


def split_rows(body: memoryview) -> tuple[list[str], memoryview]:
    """The addresses that a record of rows names, and its Arrow batch."""
    if len(body) < _SUM.size:
        return [], body
    end = 4 + _SUM.unpack_from(body)[0]
    names = []
    at = 4
    while at < end:
        stop = at + 1 + body[at]
        names.append(str(body[at + 1 : stop], "utf-8"))
        at = stop
    return names, body[end + -end % 8 :]


def checkpoint(begin: int) -> Record:
    """The state is made of the records from number `begin` on; those before are not needed."""
    return Record(Type.CHECKPOINT, (), begin)


# Tables of columns: the number of rows (8 bytes), then column by column, then zeros up to a
# multiple of 8. A table of one row, as a waiting client's commit has, is packed as it is.

_EMPTY = bytes(8)


class Columns:
    """A table's columns: their types, as `array` and `struct` name them."""

    def __init__(self, codes: str) -> None:
        self._codes = codes
        self._row = struct.Struct("<Q" + codes)
        self._padding = bytes(-self._row.size % 8)

    def pack(self, table: Sequence[tuple[int, ...]]) -> bytes:
        """Rows as bytes."""
        if not table:
            return _EMPTY
        if len(table) == 1:
            return self._row.pack(1, *table[0]) + self._padding
        parts = [struct.pack("<Q", len(table))]
        for code, values in zip(self._codes, zip(*table, strict=True), strict=True):
            column = array(code, values)
            if sys.byteorder == "big":
                column.byteswap()
            parts.append(column.tobytes())
        data = b"".join(parts)
        return data + bytes(-len(data) % 8)

    def unpack(self, data: memoryview, at: int) -> tuple[list[tuple[int, ...]], int]:
        """The rows at a place, and where the table ends."""
        columns, at = self.unpack_columns(data, at)
        return list(zip(*columns, strict=True)), at

    def unpack_columns(self, data: memoryview, at: int) -> tuple[list[array[int]], int]:
        """The columns at a place, and where the table ends."""
        (count,) = struct.unpack_from("<Q", data, at)
        at += 8
        columns = []
        for code in self._codes:
            column = array(code)
            size = count * column.itemsize
            if at + size > len(data):
                raise EngineError("a table of changes is longer than its record")
            column.frombytes(data[at : at + size])
            if sys.byteorder == "big":
                column.byteswap()
            columns.append(column)
            at += size
        return columns, at + -at % 8


#: What a message in a queue has beside its place: µs for times, 0 for none.
ATTRIBUTES = ("size", "priority", "due", "expires")


class Put(NamedTuple):
    """Messages [sequence, sequence + count) of a queue are rows [place, place + count).

    `private`: of the slots, else of the log. `text`: their senders marked the payloads as text. An
    attribute is one number for all, or one each.
    """

    queue: int
    sequence: int
    count: int  # type: ignore[assignment]  # nobody misses tuple.count
    place: int
    private: bool = False
    size: int | array[int] = 0
    priority: int | array[int] = 0
    due: int | array[int] = 0
    expires: int | array[int] = 0
    text: bool = False


_DECLARED = Columns("qII")  # next sequence, queue, bytes of its settings
_REMOVED = Columns("I")  # queue
_PUTS = Columns("qqqqqqIIBB")  # sequence, place, four attributes, queue, count, marks, varying
_ATTEMPTS = Columns("qIII")  # sequence, attempts, queue, count
_DROPS = Columns("qII")  # sequence, queue, count
_VALUES = Columns("q")  # attributes that differ within a run
_PRIVATE, _TEXT = 1, 2  # marks of a run


class QueueChanges:
    """The changes of a commit to the queues of a partition, in runs of sequences.

    A queue has a number that is never given again in its partition. Sequences are never given again
    in their queue. So the order within a commit does not matter: `declared`, then `puts`,
    `attempts`, `drops`, `removed`.
    """

    __slots__ = ("_attempts", "_drops", "_puts", "_values", "declared", "removed")

    def __init__(self) -> None:
        #: Queues, the next sequence of each, and settings as text.
        self.declared: list[tuple[int, int, bytes]] = []
        self.removed: list[int] = []
        self._puts: list[tuple[int, ...]] = []
        self._attempts: list[tuple[int, ...]] = []
        self._drops: list[tuple[int, ...]] = []
        self._values: array[int] = array("q")

    def __bool__(self) -> bool:
        return bool(self._puts or self._drops or self._attempts or self.declared or self.removed)

    def declare(self, queue: int, next_sequence: int, settings: bytes) -> None:
        """A queue is there, with these settings, or has new ones."""
        self.declared.append((queue, next_sequence, settings))

    def remove(self, queue: int) -> None:
        """A queue is gone with all that was in it."""
        self.removed.append(queue)

    def put(self, put: Put) -> None:
        """Messages came in; a run that goes on where the last one ended is one with it."""
        varying = 0
        values: list[int] = []
        for bit, value in enumerate(put[5:9]):
            if isinstance(value, int):
                values.append(value)
            else:
                if len(value) != put.count:
                    raise ValueError("an attribute needs one value for each message")
                varying |= 1 << bit
                values.append(len(self._values))
                self._values.extend(value)
        fixed = (*values, put.queue)
        marks = _PRIVATE * put.private | _TEXT * put.text
        if self._puts:
            sequence, place, *before, count, marked, differs = self._puts[-1]
            if (
                sequence + count == put.sequence
                and place + count == put.place
                and tuple(before) == fixed
                and (marked, differs, varying) == (marks, 0, 0)
            ):
                self._puts[-1] = (sequence, place, *fixed, count + put.count, marks, 0)
                return
        self._puts.append((put.sequence, put.place, *fixed, put.count, marks, varying))

    def puts(self) -> Iterator[Put]:
        """The runs of messages that came in."""
        for sequence, place, *values, queue, count, marks, varying in self._puts:
            attributes: list[int | array[int]] = [
                self._values[value : value + count] if varying >> bit & 1 else value
                for bit, value in enumerate(values)
            ]
            private, text = bool(marks & _PRIVATE), bool(marks & _TEXT)
            size, priority, due, expires = attributes
            yield Put(
                queue, sequence, count, place, private, size, priority, due, expires, text=text
            )

    def attempt(self, queue: int, sequence: int, count: int, attempts: int) -> None:
        """Messages were delivered, now this many times in all."""
        _extend(self._attempts, sequence, (attempts, queue), count)

    def attempts(self) -> Iterator[tuple[int, int, int, int]]:
        """Queue, sequence, count and attempts of runs that were delivered."""
        for sequence, attempts, queue, count in self._attempts:
            yield queue, sequence, count, attempts

    def drop(self, queue: int, sequence: int, count: int = 1) -> None:
        """Messages are done."""
        _extend(self._drops, sequence, (queue,), count)

    def drops(self) -> Iterator[tuple[int, int, int]]:
        """Queue, sequence and count of runs that are done."""
        for sequence, queue, count in self._drops:
            yield queue, sequence, count

    def record(self) -> Record:
        """The changes as a record."""
        declared = [(following, queue, len(text)) for queue, following, text in self.declared]
        body = (
            _DECLARED.pack(declared),
            _REMOVED.pack([(queue,) for queue in self.removed]),
            _PUTS.pack(self._puts),
            _ATTEMPTS.pack(self._attempts),
            _DROPS.pack(self._drops),
            struct.pack("<Q", len(self._values)),
            _little_endian(self._values),
            *(text for _, _, text in self.declared),
        )
        return Record(Type.QUEUES, [b"".join(body)])

    @classmethod
    def parse(cls, body: bytes) -> QueueChanges:
        """The changes that a record holds."""
        changes = cls()
        data = memoryview(body)
        declared, at = _DECLARED.unpack(data, 0)
        removed, at = _REMOVED.unpack(data, at)
        changes._puts, at = _PUTS.unpack(data, at)
        changes._attempts, at = _ATTEMPTS.unpack(data, at)
        changes._drops, at = _DROPS.unpack(data, at)
        (changes._values,), at = _VALUES.unpack_columns(data, at)
        changes.removed = [queue for (queue,) in removed]
        for following, queue, length in declared:
            changes.declared.append((queue, following, bytes(data[at : at + length])))
            at += length
        return changes


def _little_endian(values: array[int]) -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return values.tobytes()


def _extend(
    table: list[tuple[int, ...]], sequence: int, fixed: tuple[int, ...], count: int
) -> None:
    """Add a run of sequence, fixed values and count, or make the last one longer."""
    if table:
        first, *before, length = table[-1]
        if first + length == sequence and tuple(before) == fixed:
            table[-1] = (first, *fixed, length + count)
            return
    table.append((sequence, *fixed, count))


class Change(IntEnum):
    """The kind of change to an entry."""

    SET = 1  # the value stands beside it
    SET_ROW = 2  # the value is the payload of a row of the log
    DELETE = 3  # the revision stays known
    FORGET = 4  # nothing stays


class Note(IntEnum):
    """What an entry is about; entries of different kinds may have the same name."""

    KEY = 0  # a key of the data store; those that begin with `$` are the broker's own
    SEEN = 2  # an id that a queue (`number`) took, until a time


class Entry(NamedTuple):
    """A key of the data store, or a note."""

    change: Change
    name: bytes
    value: bytes = b""
    number: int = 0  # revision of a key
    until: int = 0  # µs since 1970; 0: for ever
    place: int = 0  # offset of the row with its value
    note: Note = Note.KEY


_ENTRIES = Columns("qqqIIBB")  # number, until, place, bytes of name and value, change, note


def encode_entries(type: Type, entries: Iterable[Entry]) -> Record:
    """Changes of keys (`Type.KEYS`) or notes (`Type.NOTES`) as a record."""
    table = []
    text: list[bytes] = [b""]
    for one in entries:
        row = (one.number, one.until, one.place, len(one.name), len(one.value))
        table.append((*row, one.change, one.note))
        text += (one.name, one.value)
    text[0] = _ENTRIES.pack(table)
    return Record(type, [b"".join(text)])


def decode_entries(body: bytes) -> Iterator[Entry]:
    """The entries that a record holds."""
    table, at = _ENTRIES.unpack(memoryview(body), 0)
    for number, until, place, name, value, change, note in table:
        middle, end = at + name, at + name + value
        found = (body[at:middle], body[middle:end])
        yield Entry(Change(change), *found, number, until, place, Note(note))
        at = end
