"""Reads files by docs/format.md alone: nothing of the journal's own reader is used here."""

from __future__ import annotations

import hashlib
import random
import re
import struct
import zlib
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.journal.samples import commit, keys, some_rows
from wirelake.errors import EngineError
from wirelake.journal.contract import Needed
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import (
    Change,
    Entry,
    Note,
    Put,
    QueueChanges,
    Type,
    checkpoint,
    encode_entries,
)
from wirelake.wire.arrow import SCHEMA


@dataclass
class Rec:
    """A record, by rule 12."""

    at: int
    type: int
    place: int
    partition: int
    epoch: int
    number: int
    base: int
    first_time: int
    last_time: int
    count: int
    rows: int
    chain: int
    checksum: int
    body: bytes
    size: int


def u(data: bytes, at: int, size: int) -> int:
    """An unsigned integer."""
    return int.from_bytes(data[at : at + size], "little")


def i64(data: bytes, at: int) -> int:
    """A signed integer."""
    return int.from_bytes(data[at : at + 8], "little", signed=True)


def ends(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Rule 7."""
    return [
        (i64(data, k), i64(data, k + 8), i64(data, k + 16), i64(data, k + 24), u(data, k + 32, 4))
        for k in range(0, len(data), 48)
    ]


def record_at(data: bytes, at: int, mark: bytes, partitions: int) -> Rec:
    """Rules 12 to 14, all but 13.5."""
    head = data[at : at + 96]
    assert at % 16 == 0
    assert head[:4] == b"WLJR"
    assert zlib.crc32(head[:92]) == u(head, 92, 4)
    assert head[4] == 1
    assert head[8:16] == mark
    assert u(head, 16, 4) < partitions or u(head, 16, 4) == 0xFFFFFFFF
    assert head[72:84] == bytes(12)
    length = u(head, 20, 4)
    padded = length + -length % 16
    body = data[at + 96 : at + 96 + padded]
    assert len(body) == padded
    assert not any(body[length:])
    assert zlib.crc32(body) == u(head, 88, 4)
    return Rec(
        at,
        head[5],
        u(head, 6, 2),
        u(head, 16, 4),
        i64(head, 24),
        i64(head, 32),
        i64(head, 40),
        i64(head, 48),
        i64(head, 56),
        u(head, 64, 4),
        u(head, 68, 4),
        u(head, 84, 4),
        u(head, 92, 4),
        body[:length],
        96 + padded,
    )


def table(body: bytes, at: int, codes: str) -> tuple[list[tuple[int, ...]], int]:
    """Rule 19: the rows of a table, and where it ends."""
    count = u(body, at, 8)
    at += 8
    columns = []
    for code in codes:
        columns.append(struct.unpack_from(f"<{count}{code}", body, at))
        at += struct.calcsize(f"<{count}{code}")
    return list(zip(*columns, strict=True)), at + -at % 8


@dataclass
class File:
    """A segment, by rules 6 to 11."""

    name: tuple[int, int, int]
    rewritten: bool
    partitions: int
    begins: list[tuple[int, int, int, int, int]]
    finish: list[tuple[int, int, int, int, int]] | None
    records: list[Rec]


def read_file(path: Path) -> File:
    """Read a segment that is neither torn nor damaged."""
    match = re.fullmatch(r"(\d{9,})-(\d{9,})-(\d+)\.wlj", path.name)
    assert match
    data = path.read_bytes()
    assert data[:4] == b"WLJS"
    assert u(data, 4, 2) == 1
    mark, partitions = data[8:16], u(data, 16, 4)
    at = 32 + 48 * partitions
    assert zlib.crc32(data[:28] + data[32:at]) == u(data, 28, 4)
    begins = ends(data[32:at])
    rewritten = u(data, 6, 2) == 1
    stop, finish = len(data), None
    if data[-32:-28] == b"WLJF":
        assert zlib.crc32(data[-32:-4]) == u(data[-32:], 28, 4)
        stop = u(data[-32:], 16, 8)
        index = record_at(data, stop, mark, partitions)
        assert (index.type, index.at + index.size) == (9, len(data) - 32)
        finish = ends(index.body[: 48 * partitions])
    records: list[Rec] = []
    sector = hashlib.shake_128(mark).digest(512)
    while at < stop:
        if rewritten:
            records.append(record_at(data, at, mark, partitions))
            at += records[-1].size
        elif data[at : at + 4] == b"WLJA":
            frame = data[at : at + 32]
            assert zlib.crc32(frame[:28]) == u(frame, 28, 4)
            assert (u(frame, 4, 2), u(frame, 6, 2), frame[8:16]) == (1, partitions, mark)
            at += 32
            until = at + u(frame, 16, 8)
            for _ in range(u(frame, 24, 4)):
                records.append(record_at(data, at, mark, partitions))
                at += records[-1].size
            assert at == until
        else:
            assert finish is None
            assert all(data[k] == sector[k % 512] for k in range(at, stop))
            break
    if finish is not None:
        rows, _ = table(index.body, 48 * partitions, "qqqqqqIIIIB")
        assert rows == [
            (
                *(one.number, one.base, one.count, one.first_time, one.last_time, one.at),
                *(one.rows, one.partition, one.size, one.checksum, one.type),
            )
            for one in records
        ]
    first, last, rewrites = map(int, match.groups())
    return File((first, last, rewrites), rewritten, partitions, begins, finish, records)


def read_journal(folder: Path) -> list[File]:
    """Rules 1 to 4, and 13.5 for every record."""
    files = [read_file(path) for path in sorted(folder.glob("*.wlj"))]
    assert files[-1].finish is None
    expected = 0
    chains = dict.fromkeys(range(files[0].partitions), (0, 0))
    for file in files:
        assert file.name[0] == expected
        expected = file.name[1] + 1
        own = dict.fromkeys(chains, 0)
        if not file.rewritten:
            assert [(one[0], one[4]) for one in file.begins] == list(chains.values())
        for record in file.records:
            if file.rewritten:
                assert record.chain == own[record.partition]
                own[record.partition] = record.checksum
            else:
                number, checksum = chains[record.partition]
                assert (record.number, record.chain) == (number + 1, checksum)
                chains[record.partition] = (record.number, record.checksum)
        if file.finish is not None:
            chains = {k: (one[0], one[4]) for k, one in enumerate(file.finish)}
    return files


def rows_of(record: Rec) -> tuple[list[str], dict[int, bytes]]:
    """Rule 18."""
    end = 4 + u(record.body, 0, 4)
    names, at = [], 4
    while at < end:
        names.append(record.body[at + 1 : at + 1 + record.body[at]].decode())
        at += 1 + record.body[at]
    dictionaries = ("address", "op", "dialect", "source")
    schema = pa.schema(
        [
            one.with_type(pa.dictionary(pa.int32(), pa.string()))
            if one.name in dictionaries
            else one
            for one in SCHEMA
        ]
    )
    start = schema.serialize().to_pybytes()
    stream = start + record.body[end + -end % 8 :] + b"\xff\xff\xff\xff\0\0\0\0"
    rows: Any = pa.ipc.open_stream(stream).read_all()
    offsets, payloads = rows.column("offset").to_pylist(), rows.column("payload").to_pylist()
    assert len(offsets) == record.rows
    assert set(rows.column("address").to_pylist()) <= set(names)
    return names, dict(zip(offsets, payloads, strict=True))


def entries_of(record: Rec) -> Iterator[tuple[bytes, bytes, tuple[int, ...]]]:
    """Rule 21: name, value, and number, until, place, change, note."""
    rows, at = table(record.body, 0, "qqqIIBB")
    for number, until, place, name, value, change, note in rows:
        middle = at + name
        yield (
            record.body[at:middle],
            record.body[middle : middle + value],
            (number, until, place, change, note),
        )
        at = middle + value


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A journal with everything that the page describes."""
    journal = FilesJournal(
        tmp_path / "data", partitions=3, segment_bytes=6000, tidy_every=0, owner="me"
    )
    for partition in range(3):
        journal.recover(partition)
    chance = random.Random(2)
    for k in range(20):
        commit(journal, 0, [some_rows(2 * k, [b"row%d" % k, chance.randbytes(200)])])
        commit(journal, 1, [keys({f"k{k}": b"v" * 300 * k}), keys({"same": b"%d" % k}, k)])
    begin = journal.positions()[1].number
    state = {f"k{k}": b"v" * 300 * k for k in range(20)} | {"same": b"19"}
    commit(journal, 1, [keys(state), checkpoint(begin)])
    journal.keep(0, Needed())
    journal.tidy(1.0)  # what is before the checkpoint goes
    for k in range(20):
        commit(journal, 1, [keys({"same": b"%d" % k}, k), keys({"k19": b"v" * 300 * 19})])
    changes = QueueChanges()
    changes.declare(4, 1, b"settings")
    changes.declare(5, 1, b"more")
    changes.put(Put(4, 1, 40, 0, False, 128, 0, 0, 0))
    changes.put(Put(5, 7, 2, 0, True, array("q", [50, 60]), 3, 0, array("q", [1, 2])))
    changes.attempt(4, 3, 4, 1)
    changes.drop(4, 1, 2)
    changes.remove(3)
    notes = [Entry(Change.SET, b"id", b"", 4, 99, note=Note.SEEN)]
    begin = journal.positions()[2].number
    commit(
        journal,
        2,
        [
            some_rows(0, [b"p0", b"p1"], type=Type.MESSAGES),
            changes.record(),
            encode_entries(Type.NOTES, notes),
            encode_entries(Type.KEYS, [Entry(Change.SET_ROW, b"by row", b"", 3, 0, 17)]),
            checkpoint(begin),
        ],
    )
    (tmp_path / "copy").mkdir()
    for path in journal.folder.glob("*.wlj"):
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    journal.close()
    return tmp_path / "copy"


def test_files_are_as_the_page_says(written: Path) -> None:
    files = read_journal(written)
    assert any(file.rewritten for file in files)
    assert any(file.finish and not file.rewritten for file in files)
    records = [record for file in files for record in file.records]
    found: dict[int, bytes] = {}
    for record in records:
        if record.type == 1:
            assert record.partition == 0
            names, rows = rows_of(record)
            assert names == ["plant/1"]
            assert rows.keys() <= set(range(record.base, record.base + record.count))
            assert (record.first_time, record.last_time) == (1_000_000, 1_000_000)
            found |= rows
    assert sorted(found) == list(range(40))
    assert [found[2 * k] for k in range(20)] == [b"row%d" % k for k in range(20)]
    values = {}
    for record in records:
        if record.type == 4 and record.partition == 1:
            values.update({name: value for name, value, _ in entries_of(record)})
    assert values == {b"k%d" % k: b"v" * 300 * k for k in range(20)} | {b"same": b"19"}
    owners = [record.body for record in records if record.type == 7]
    assert owners == [b"me"] * 3


def test_queues_and_notes_are_as_the_page_says(written: Path) -> None:
    everything = [record for file in read_journal(written) for record in file.records]
    records = [record for record in everything if record.partition == 2]
    assert [record.type for record in records] == [7, 2, 3, 5, 4, 6]
    assert [record.place for record in records] == [0x8000, 0x8001, 0x8002, 0x8003, 0x8004, 5]
    epoch, messages, queues, notes, rows, last = records
    assert last.base == messages.number == epoch.number + 1
    assert rows_of(messages)[1] == {0: b"p0", 1: b"p1"}
    assert list(entries_of(notes)) == [(b"id", b"", (4, 99, 0, 1, 2))]
    assert list(entries_of(rows)) == [(b"by row", b"", (3, 0, 17, 2, 0))]
    at = 0
    tables = []
    for codes in ("qII", "I", "qqqqqqIIBB", "qIII", "qII", "q"):
        found, at = table(queues.body, at, codes)
        tables.append(found)
    assert tables[0] == [(1, 4, 8), (1, 5, 4)]
    assert queues.body[at:] == b"settingsmore"
    assert tables[1] == [(3,)]
    assert tables[2] == [
        (1, 0, 128, 0, 0, 0, 4, 40, 0, 0),
        (7, 0, 0, 3, 0, 2, 5, 2, 1, 0b1001),
    ]
    assert tables[3] == [(3, 1, 4, 4)]
    assert tables[4] == [(1, 4, 2)]
    assert tables[5] == [(50,), (60,), (1,), (2,)]


def newer(data: bytearray, at: int, version_at: int, size: int, crc_at: int) -> None:
    """Give something at a place another version, and a checksum that fits."""
    data[at + version_at] = 2
    checksum = zlib.crc32(data[at : at + crc_at])
    if size:
        checksum = zlib.crc32(data[at + 32 : at + size], checksum)
    data[at + crc_at : at + crc_at + 4] = checksum.to_bytes(4, "little")


@pytest.mark.parametrize("what", ["head", "record"])
def test_a_newer_format_is_refused_by_name(written: Path, tmp_path: Path, what: str) -> None:
    # decision 53
    path = max(written.glob("*.wlj"))
    data = bytearray(path.read_bytes())
    if what == "head":
        newer(data, 0, 4, 32 + 48 * 3, 28)
    else:
        newer(data, data.find(b"WLJR"), 4, 0, 92)
    (tmp_path / "new" / "journal").mkdir(parents=True)
    (tmp_path / "new" / "journal" / "000000000-000000000-0.wlj").write_bytes(data)
    with pytest.raises(EngineError, match=r"format 2, .*newer version of Wirelake; .*format 1"):
        FilesJournal(tmp_path / "new")
