"""The log on disk: what was written is read back, whatever happens to the files."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wirelake.engine.arrow_stream import END, PREAMBLE, STORED, Compression, decode
from wirelake.engine.base import LogBatch
from wirelake.engine.log import Log
from wirelake.engine.retention import Retention
from wirelake.engine.segment import filling
from wirelake.errors import ConfigError, EngineError
from wirelake.message import Message
from wirelake.wire import FrameTable

FOREVER = 2**60
SECOND = 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ADDRESSES = [f"a/{k}" for k in range(8)] + ["b", "b/c", "$client/x", "ž"]

Row = tuple[int, str, bytes, int]  # offset, address, payload, time


def filled(*some: Message) -> FrameTable:
    """A table with these messages."""
    table = FrameTable(max(1, len(some)))
    table.fill(some, "kobold-3")
    return table


def rows_in(batch: LogBatch) -> list[Row]:
    """The rows of a batch, which is as it should be."""
    arrow = decode(batch.ipc)
    arrow.validate(full=True)
    assert arrow.schema == STORED
    rows = [
        (row["offset"], row["address"], row["payload"], _micros(row["timestamp"]))
        for row in arrow.to_pylist()
    ]
    assert rows
    assert batch.base <= rows[0][0]
    assert rows[-1][0] < batch.base + batch.count
    assert batch.first_time <= min(row[3] for row in rows)
    assert max(row[3] for row in rows) <= batch.last_time
    return rows


def _micros(time: datetime) -> int:
    return (time - EPOCH) // timedelta(microseconds=1)


def read(log: Log, partition: int, start: int = 0, stop: int = FOREVER) -> list[Row]:
    """Rows [start, stop) of a partition."""
    rows = [row for batch in log.read(partition, start, stop) for row in rows_in(batch)]
    return [row for row in rows if start <= row[0] < stop]


def read_all(log: Log) -> list[list[Row]]:
    """All rows, by partition."""
    return [read(log, partition) for partition in range(log.partitions)]


class Diary:
    """A log, and what should be in it."""

    def __init__(self, folder: Path, partitions: int = 2, **settings: Any) -> None:
        self.folder = folder
        self.settings = {"partitions": partitions, **settings}
        self.log = Log(folder, **self.settings)
        self.rows: list[list[Row]] = [[] for _ in range(partitions)]
        self.time = 0

    def append(self, *addresses: str, payload: bytes = b"payload", time: int | None = None) -> None:
        """Send a message to each of these addresses."""
        self.time = self.time + 1 if time is None else time
        sent = [Message(address=address, payload=payload) for address in addresses]
        self.log.append(filled(*sent), None, self.time, b"")
        for message in sent:
            rows = self.rows[zlib.crc32(message.address.encode()) % len(self.rows)]
            rows.append((len(rows), message.address, message.payload, self.time))

    def write(self, *addresses: str, **what: Any) -> None:
        """Send, and make it durable."""
        self.append(*addresses, **what)
        self.log.write()

    def reopen(self) -> None:
        """Close the log and open it again."""
        self.log.close()
        self.log = Log(self.folder, **self.settings)

    def check(self) -> None:
        """All is there."""
        assert read_all(self.log) == self.rows


def segments(folder: Path) -> list[Path]:
    """The segments' files, in order."""
    return sorted(folder.glob("*.log"))


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one, for tests that open a log thousands of times."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(dir=shared if shared.is_dir() else None))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def diary(tmp_path: Path) -> Iterator[Diary]:
    """A log with two partitions."""
    made = Diary(tmp_path / "log")
    yield made
    made.log.close()


# What is written is read


def test_nothing_can_be_read_before_it_is_durable(diary: Diary) -> None:
    diary.append("a", "b")
    assert read_all(diary.log) == [[], []]
    assert diary.log.pending > 0
    diary.log.write()
    assert diary.log.pending == 0
    diary.check()


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_any_appends_in_any_commits_are_read_in_any_ranges(data: st.DataObject) -> None:
    compression = data.draw(st.sampled_from(["none", "lz4", "zstd"]))
    size = data.draw(st.sampled_from([1, 5000, 1 << 20]))
    partitions = data.draw(st.integers(1, 3))
    with tempfile.TemporaryDirectory() as folder:
        diary = Diary(Path(folder), partitions, segment_bytes=size, compression=compression)
        for step in data.draw(st.lists(st.sampled_from("aaaawwrt"), max_size=12)):
            if step == "a":
                addresses = st.lists(st.sampled_from(ADDRESSES), max_size=10)
                payload = data.draw(st.sampled_from([b"", b"x", b"long" * 500]))
                diary.append(*data.draw(addresses), payload=payload)
            elif step == "w":
                diary.log.write()
            elif step == "r":
                diary.reopen()
            else:
                diary.log.tidy(0.0)
        diary.log.write()
        assert diary.log.damage == []
        diary.check()
        for position, rows in zip(diary.log.positions(), diary.rows, strict=True):
            assert (position.first, position.next) == (0, len(rows))
            if rows:
                assert position.first_time == rows[0][3]
                assert position.last_time == rows[-1][3]
                assert position.bytes > 0
            start = data.draw(st.integers(0, len(rows) + 1))
            stop = data.draw(st.integers(0, len(rows) + 1))
            assert read(diary.log, position.partition, start, stop) == rows[start:stop]
        diary.reopen()
        diary.check()
        diary.log.close()


def test_stored_batches_are_sent_as_one_arrow_stream(diary: Diary) -> None:
    for k in range(5):
        diary.write(*ADDRESSES[: k + 1])
    parts = [bytes(batch.ipc) for batch in diary.log.read(1, 0, FOREVER)]
    with pa.ipc.open_stream(PREAMBLE + b"".join(parts) + END) as stream:
        assert sum(batch.num_rows for batch in stream) == len(diary.rows[1])


def test_batches_without_a_wanted_address_are_skipped(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=1)
    diary.write("a", "b")
    diary.write("c")
    diary.write(*(f"many/{k}" for k in range(100)))
    asked: list[str] = []

    def is_a(address: str) -> bool:
        asked.append(address)
        return address == "a"

    found = [(batch.base, batch.count) for batch in diary.log.read(0, 0, FOREVER, may_match=is_a)]
    # So many addresses are not listed: they may match.
    assert found == [(0, 2), (3, 100)]
    assert set(asked) <= {"a", "b", "c"}
    diary.log.close()


def test_the_first_offset_at_or_after_a_time_is_found(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=1, segment_bytes=4000)
    for k in range(20):
        diary.append("a", "b", time=100 + 10 * k)
        if k % 3 == 0:
            diary.log.write()
    diary.log.write()
    for time in (0, 100, 101, 205, 210, 290):
        expected = next(row[0] for row in diary.rows[0] if row[3] >= time)
        assert diary.log.find(0, time) == expected
    assert diary.log.find(0, 291) == 40
    diary.log.close()


def test_times_that_go_back_are_found_all_the_same(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=1)
    for time in (500, 100, 700):
        diary.write("a", time=time)
    assert [diary.log.find(0, time) for time in (50, 400, 501, 701)] == [0, 0, 2, 3]
    diary.log.close()


def test_a_large_message_is_stored_whole(diary: Diary) -> None:
    diary.write("a", payload=os.urandom(20 << 20))
    diary.write("a", "b")
    diary.check()
    diary.reopen()
    diary.check()


# The folder


def test_the_number_of_partitions_is_fixed(tmp_path: Path) -> None:
    Log(tmp_path, partitions=3).close()
    with pytest.raises(ConfigError, match="3 partitions"):
        Log(tmp_path, partitions=4)
    Log(tmp_path, partitions=3).close()


def test_a_log_is_told_from_others_by_its_id(tmp_path: Path) -> None:
    ids = []
    for name in ("one", "one", "two"):
        log = Log(tmp_path / name, partitions=3)
        ids.append(log.id)
        log.close()
    assert ids[0] == ids[1] != ids[2]
    assert len(ids[0]) == 16


def test_a_log_is_used_by_one_at_a_time(diary: Diary) -> None:
    with pytest.raises(EngineError, match="another process"):
        Log(diary.folder, partitions=2)
    diary.write("a")
    diary.check()


def test_what_a_crash_left_over_is_removed(diary: Diary) -> None:
    diary.write("a")
    diary.log.close()
    (diary.folder / "000000000-000000004-1.log.tmp").write_bytes(b"half")
    diary.log = Log(diary.folder, partitions=2)
    assert not list(diary.folder.glob("*.tmp"))
    diary.check()


def test_of_a_segment_and_what_replaces_it_one_counts(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "log", segment_bytes=1)
    for _ in range(40):
        diary.write(*ADDRESSES)
    before = tmp_path / "before"
    shutil.copytree(tmp_path / "log", before)
    diary.log.close()
    diary.settings["segment_bytes"] = 1 << 20
    diary.log = Log(diary.folder, **diary.settings)
    diary.log.tidy(0.0)
    assert len(segments(diary.folder)) < 5
    diary.log.close()
    for old in segments(before):  # as if the crash had come before they were deleted
        if not (diary.folder / old.name).exists():
            shutil.copy(old, diary.folder)
    diary.log = Log(diary.folder, **diary.settings)
    assert diary.log.damage == []
    assert len(segments(diary.folder)) < 5
    diary.check()
    diary.log.close()


# Damage


def written(diary: Diary) -> int:
    """The bytes of the last segment, without its filling."""
    return diary.log._segments[-1].size


def three_commits(folder: Path) -> tuple[Diary, list[int]]:
    """A closed log of three commits to one partition, and where they begin and end."""
    diary = Diary(folder, partitions=1)
    ends = [written(diary)]
    for k in range(3):
        diary.write("a", "b", payload=bytes([k]) * 10)
        ends.append(written(diary))
    diary.log.close()
    return diary, ends


def damaged_files(folder: Path) -> list[Path]:
    """What was set aside."""
    return sorted(folder.glob("*.damaged-*"))


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 37])
def test_a_record_that_was_not_written_whole_is_cut_off(memory: Path, step: int) -> None:
    original, ends = three_commits(memory / "original")
    [segment] = segments(original.folder)
    whole = segment.read_bytes()
    for cut in [*range(ends[1], ends[3], step), *ends[1:3], ends[3] - 1]:
        folder = memory / "torn"
        folder.mkdir()
        (folder / segment.name).write_bytes(whole[:cut])
        log = Log(folder, partitions=1)
        kept = sum(end <= cut for end in ends[1:])
        assert read(log, 0) == original.rows[0][: 2 * kept]
        torn = whole[ends[kept] : cut]
        assert len(log.damage) == bool(torn)
        assert b"".join(path.read_bytes() for path in damaged_files(folder)) == torn
        # What was torn was never durable: its offsets are free, and the log goes on.
        log.append(filled(Message(address="new")), None, 9, b"")
        log.write()
        log.close()
        log = Log(folder, partitions=1)
        assert log.damage == []
        assert read(log, 0)[2 * kept :] == [(2 * kept, "new", b"", 9)]
        log.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("step", [pytest.param(5, marks=pytest.mark.slow), 41])
def test_a_bit_that_flips_costs_one_record_at_most(memory: Path, step: int) -> None:
    original, ends = three_commits(memory / "original")
    [segment] = segments(original.folder)
    whole = segment.read_bytes()
    for place in [*range(0, ends[3], step), *range(ends[1], ends[1] + 64)]:
        folder = memory / "flipped"
        folder.mkdir()
        data = bytearray(whole)
        data[place] ^= 1 << place % 8
        (folder / segment.name).write_bytes(data)
        log = Log(folder, partitions=1)
        number = sum(end <= place for end in ends)  # 0: the head of the segment
        rows = original.rows[0]
        expected = rows if number == 0 else rows[: 2 * number - 2] + rows[2 * number :]
        assert read(log, 0) == expected
        [report] = log.damage
        assert segment.name in report
        begin, end = ([0, *ends])[number : number + 2]
        [kept] = damaged_files(folder)
        assert kept.name in report
        assert kept.read_bytes() == data[begin:end]
        # No offset is given twice, also where nobody can say which ones there were.
        log.append(filled(Message(address="new")), None, 9, b"")
        log.write()
        log.close()
        log = Log(folder, partitions=1)
        assert log.damage == []
        assert read(log, 0)[:-1] == expected
        assert read(log, 0)[-1][0] >= len(rows)
        log.close()
        shutil.rmtree(folder)


def killed(diary: Diary, folder: Path) -> Path:
    """The only segment of a log, as a process that is killed leaves it."""
    shutil.copytree(diary.folder, folder)
    [segment] = segments(folder)
    assert segment.stat().st_size > written(diary)  # the rest is its filling
    return segment


def three_open_commits(folder: Path) -> tuple[Diary, list[int]]:
    """A log that is open, of three commits to two partitions, and where they begin and end."""
    diary = Diary(folder)
    ends = [written(diary)]
    for k in range(3):
        diary.write(*ADDRESSES[:6], payload=bytes([k]) * 600)
        ends.append(written(diary))
    return diary, ends


def goes_on(folder: Path, before: list[list[Row]], holes: bool) -> None:
    """What is written behind has the next offsets, or later ones where something was lost."""
    log = Log(folder, partitions=2)
    assert log.damage == []
    assert read_all(log) == before
    log.append(filled(*(Message(address=one) for one in ADDRESSES[:6])), None, 9, b"")
    log.write()
    for rows, earlier in zip(read_all(log), before, strict=True):
        following = rows[len(earlier)][0]
        assert following > len(earlier) if holes else following == len(earlier)
    log.close()


def test_the_filling_of_a_segment_is_no_damage(memory: Path) -> None:
    diary, _ = three_open_commits(memory / "log")
    segment = killed(diary, memory / "copy")
    log = Log(memory / "copy", partitions=2)
    assert log.damage == []
    assert read_all(log) == diary.rows
    assert segment.stat().st_size == written(diary)
    log.close()
    diary.log.close()
    assert segments(diary.folder)[0].stat().st_size == written(diary)


def test_what_a_power_failure_leaves_of_a_commit_never_was(memory: Path) -> None:
    """Any of its sectors may have been written, and others not."""
    # decision 60
    diary, ends = three_open_commits(memory / "log")
    chance = random.Random(5)
    sectors = range(ends[2] // 512, (ends[3] - 1) // 512 + 1)
    lost: list[list[int]] = [[one] for one in sectors]
    lost += [[one for one in sectors if chance.random() < 0.5] for _ in range(20)]
    for number, missing in enumerate(lost):
        segment = killed(diary, memory / str(number))
        data = bytearray(segment.read_bytes())
        for sector in missing:
            begin, end = max(ends[2], 512 * sector), min(ends[3], 512 * sector + 512)
            if end - begin < 16:  # so few bytes may be there by chance: this is taken for damage
                continue
            data[begin:end] = filling(diary.log._identity, begin, end - begin)
        segment.write_bytes(data)
        log = Log(segment.parent, partitions=2)
        rows = read_all(log)
        torn = segment.stat().st_size < ends[3]
        assert len(log.damage) == torn
        assert all("not complete" in one for one in log.damage)
        log.close()
        # All of it or nothing, in both partitions.
        commits = 2 if torn else 3
        assert rows == [original[: len(original) // 3 * commits] for original in diary.rows]
        goes_on(segment.parent, rows, holes=False)


def test_a_bit_that_flips_in_the_last_commit_is_damage(memory: Path) -> None:
    diary, ends = three_open_commits(memory / "log")
    for number, place in enumerate(range(ends[2], ends[3], 97)):
        segment = killed(diary, memory / str(number))
        data = bytearray(segment.read_bytes())
        data[place] ^= 4
        segment.write_bytes(data)
        log = Log(segment.parent, partitions=2)
        assert len(log.damage) == 1
        assert "are damaged" in log.damage[0]
        rows = read_all(log)
        assert sum(map(len, rows)) >= 12
        log.append(filled(*(Message(address=one) for one in ADDRESSES[:6])), None, 9, b"")
        log.write()
        for found, original in zip(read_all(log), diary.rows, strict=True):
            assert found[-1][0] >= len(original)
            offsets = [row[0] for row in found]
            assert offsets == sorted(set(offsets))
        log.close()
    diary.log.close()


# Changes of queues and keys


def test_changes_stay_until_somebody_has_them(memory: Path) -> None:
    diary = Diary(memory / "log", segment_bytes=2000)
    number = 0
    for k in range(40):
        diary.append(*ADDRESSES[: k % 3])
        diary.log.write([b"%d" % k * 200, b"more"], number + 1)
        number += 2
    diary.log.tidy(0.0)
    diary.reopen()
    diary.check()
    assert diary.log.found_changes() == list(range(1, number + 1))
    assert [bytes(one) for one in diary.log.changes([79, 80])] == [b"39" * 200, b"more"]
    diary.log.applied(50)
    diary.log.tidy(0.0)
    diary.check()
    diary.reopen()
    found = diary.log.found_changes()
    assert found == list(range(found[0], number + 1))
    assert 1 < found[0] <= 51
    diary.log.applied(number)
    diary.write("a")  # begins another segment
    diary.log.tidy(0.0)
    diary.check()
    size = sum(path.stat().st_size for path in segments(diary.folder)[:-1])
    assert size < 40 * 200  # nothing of them is left
    diary.reopen()
    diary.check()
    assert diary.log.damage == []
    diary.log.close()


def test_changes_that_are_damaged_are_told_and_left_out(memory: Path) -> None:
    diary = Diary(memory / "log", segment_bytes=1)
    for number in range(1, 6):
        diary.log.write([b"%d" % number * 100], number)
    diary.log.close()
    segment = segments(diary.folder)[1]
    data = bytearray(segment.read_bytes())
    data[-10] ^= 1
    segment.write_bytes(data)
    log = Log(diary.folder, **diary.settings, check_bytes=0)  # too old to be looked at
    assert log.damage == []
    found = [bytes(one) for one in log.changes(log.found_changes())]
    assert found == [b"%d" % number * 100 for number in (1, 3, 4, 5)]
    assert len(log.damage) == 1
    assert "changes 2" in log.damage[0]
    log.close()


def test_a_log_of_changes_alone_does_not_grow(memory: Path) -> None:
    log = Log(memory / "log", partitions=None, segment_bytes=2000)
    for number in range(1, 50):
        log.write([bytes(500)], number)
        log.applied(number)
        log.tidy(0.0)
    assert len(segments(memory / "log")) <= 2
    assert read_all(log) == [[], [], [], []]
    log.close()


def test_zeros_at_the_end_are_no_reason_to_skip_offsets(memory: Path) -> None:
    diary, _ = three_commits(memory / "log")
    with segments(diary.folder)[0].open("ab") as file:
        file.write(bytes(10_000))
    diary.log = Log(diary.folder, partitions=1)
    assert len(diary.log.damage) == 1
    diary.write("a")
    diary.check()
    diary.log.close()


def test_a_segment_of_which_nothing_can_be_read_is_set_aside(memory: Path) -> None:
    diary, _ = three_commits(memory / "log")
    [segment] = segments(diary.folder)
    noise = os.urandom(5000)
    segment.write_bytes(noise)
    log = Log(diary.folder, partitions=1)
    assert read_all(log) == [[]]
    assert len(log.damage) == 1
    [kept] = damaged_files(diary.folder)
    assert kept.read_bytes() == noise
    log.close()


def test_a_message_cannot_pass_for_a_record(memory: Path) -> None:
    forger, ends = three_commits(memory / "forger")
    record = segments(forger.folder)[0].read_bytes()[ends[0] : ends[1]]
    diary = Diary(memory / "log", partitions=1)
    diary.write("a")
    [segment] = segments(diary.folder)
    place = written(diary)
    diary.write("evil", payload=record * 3)
    diary.write("b")
    diary.log.close()
    data = bytearray(segment.read_bytes())
    data[place] ^= 1  # the record that holds the forged ones cannot be read
    segment.write_bytes(data)
    log = Log(diary.folder, partitions=1)
    assert [row[1] for row in read(log, 0)] == ["a", "b"]
    log.close()


def many_segments(folder: Path) -> Diary:
    """A closed log of ten segments, of which all but the last have an index."""
    diary = Diary(folder, segment_bytes=1)
    for _ in range(10):
        diary.write(*ADDRESSES[:6])
    diary.log.tidy(0.0)
    diary.log.close()
    assert len(list(folder.glob("*.idx"))) == 9
    return diary


def without_index(path: Path) -> None:
    """It is gone."""
    path.unlink()


def wrong_index(path: Path) -> None:
    """One bit of it is wrong."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


def short_index(path: Path) -> None:
    """Its end is missing."""
    os.truncate(path, path.stat().st_size // 2)


def empty_index(path: Path) -> None:
    """Nothing is in it."""
    os.truncate(path, 0)


@pytest.mark.parametrize("harm", [without_index, wrong_index, short_index, empty_index])
@pytest.mark.parametrize("check_bytes", [0, 1 << 30])
def test_an_index_that_is_wrong_is_made_again(
    memory: Path, harm: Callable[[Path], None], check_bytes: int
) -> None:
    diary = many_segments(memory / "log")
    right = {path.name: path.read_bytes() for path in diary.folder.glob("*.idx")}
    for path in diary.folder.glob("*.idx"):
        harm(path)
    diary.log = Log(diary.folder, **diary.settings, check_bytes=check_bytes)
    assert diary.log.damage == []
    diary.check()
    diary.write("a")
    diary.log.tidy(0.0)
    diary.check()
    made = {path.name: path.read_bytes() for path in diary.folder.glob("*.idx")}
    assert right.items() <= made.items()
    diary.log.close()


def test_damage_that_is_found_late_is_told_and_then_set_aside(memory: Path) -> None:
    diary = many_segments(memory / "log")
    segment = segments(diary.folder)[4]
    data = bytearray(segment.read_bytes())
    data[-10] ^= 1
    segment.write_bytes(data)
    diary.log = Log(diary.folder, **diary.settings, check_bytes=0)
    assert diary.log.damage == []
    with pytest.raises(EngineError, match="are damaged") as raised:
        read_all(diary.log)
    partition = int("partition 1" in raised.value.reason)
    assert read(diary.log, 1 - partition) == diary.rows[1 - partition]
    diary.log.tidy(0.0)
    assert len(diary.log.damage) == 1
    assert damaged_files(diary.folder)
    lost = set(diary.rows[partition]) - set(read(diary.log, partition))
    assert 0 < len(lost) <= 6
    diary.write("a", "b")
    assert {row[0] for row in lost}.isdisjoint({row[0] for row in read(diary.log, partition)[-3:]})
    diary.log.close()
    log = Log(diary.folder, **diary.settings)
    assert log.damage == []
    assert set(diary.rows[partition]) - set(read(log, partition)) == lost
    log.close()


def test_a_segment_without_its_head_is_found_late_and_loses_no_row(memory: Path) -> None:
    diary = many_segments(memory / "log")
    segment = segments(diary.folder)[4]
    data = bytearray(segment.read_bytes())
    data[10] ^= 1
    diary.log = Log(diary.folder, **diary.settings, check_bytes=0)
    segment.write_bytes(data)
    diary.log.tidy(0.0)
    assert len(diary.log.damage) == 1
    diary.check()
    diary.reopen()
    assert diary.log.damage == []
    diary.check()
    diary.log.close()


def test_a_log_of_a_later_version_is_not_touched(memory: Path) -> None:
    diary, ends = three_commits(memory / "log")
    [segment] = segments(diary.folder)
    data = bytearray(segment.read_bytes())
    data[4] += 1
    data[ends[0] - 4 : ends[0]] = zlib.crc32(data[: ends[0] - 8]).to_bytes(4, "little")
    segment.write_bytes(data)
    with pytest.raises(EngineError, match="newer version"):
        Log(diary.folder, partitions=1)
    assert segments(diary.folder) == [segment]
    assert segment.read_bytes() == data


def test_a_segment_that_is_missing_does_not_turn_offsets_back(memory: Path) -> None:
    diary = many_segments(memory / "log")
    for path in segments(diary.folder)[1:-1]:
        path.unlink()
    diary.log = Log(diary.folder, **diary.settings)
    diary.write(*ADDRESSES[:6])
    for partition, rows in enumerate(read_all(diary.log)):
        first, last = diary.rows[partition][0], diary.rows[partition][-1]
        assert (rows[0], rows[-1]) == (first, last)
    diary.log.close()


# A disk that does not take it


def fill_up(diary: Diary) -> str:
    """Write until it fails; nothing is lost then, and what was there can be read."""
    written: list[list[Row]] = []
    with pytest.raises(EngineError) as raised:  # noqa: PT012  (any of the writes)
        while True:
            written = [list(rows) for rows in diary.rows]
            diary.write(*ADDRESSES, payload=os.urandom(5000))
    assert raised.value.retriable
    assert diary.log.pending > 0
    assert read_all(diary.log) == written
    diary.append("a", payload=b"waits too")
    with pytest.raises(EngineError):
        diary.log.write()
    assert read_all(diary.log) == written
    return raised.value.reason


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        diary = Diary(small / "log")
        (small / "ballast").write_bytes(bytes(400 << 10))
        reason = fill_up(diary)
        assert os.strerror(errno.ENOSPC) in reason
        assert len(segments(diary.folder)) == 1
        (small / "ballast").unlink()
        diary.log.write()
        assert diary.log.pending == 0
        diary.check()
        diary.reopen()
        assert diary.log.damage == []
        diary.check()
        diary.log.close()
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_file_that_may_not_grow_loses_nothing(diary: Diary) -> None:
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(EngineError):
            diary.write("a", payload=os.urandom(200_000))
        with pytest.raises(EngineError):
            diary.log.write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    diary.log.write()
    diary.check()
    diary.reopen()
    assert diary.log.damage == []
    diary.check()


def test_what_a_failed_sync_left_in_doubt_is_written_again(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary.write("a")

    def fail(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        for _ in range(3):
            with pytest.raises(EngineError, match="Input/output error"):
                diary.write("b", "a")
    assert sum(map(len, read_all(diary.log))) == 1
    diary.log.write()
    assert len(segments(diary.folder)) == 2  # a try that failed leaves no file behind
    diary.check()
    diary.reopen()
    assert diary.log.damage == []
    diary.check()


def test_what_could_not_be_undone_does_not_count_twice(
    diary: Diary, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary.write("a")

    def fail(file: int, size: int = 0) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fail)
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(EngineError):
            diary.write("b", "a")
    diary.write("a", "c")
    diary.check()
    diary.reopen()
    diary.check()


WRITER = """
import sys
from pathlib import Path
from wirelake.engine.log import Log
from wirelake.message import Message
from wirelake.wire import FrameTable

log = Log(Path(sys.argv[1]), partitions=2, segment_bytes=300_000)
table = FrameTable(8)
number = int(sys.argv[2])
while True:
    numbers = range(number, number + 7)
    table.fill([Message(address=f"a/{k % 5}", payload=b"%d" % k) for k in numbers])
    log.append(table, None, number, b"")
    log.write()
    number += 7
    print(number, flush=True)
"""


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    acknowledged = 0
    for commits in (1, 40, 7, 90, 23):
        command = [sys.executable, "-c", WRITER, str(tmp_path), str(acknowledged)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(commits):
                acknowledged = int(writer.stdout.readline())
            writer.kill()
            for line in writer.stdout:  # what it said before it died
                acknowledged = int(line)
        log = Log(tmp_path, partitions=2, segment_bytes=300_000)
        rows = read_all(log)
        log.close()
        for partition in rows:
            assert [row[0] for row in partition] == [*range(len(partition))]
        for address in range(5):
            wanted = [k for k in range(acknowledged) if k % 5 == address]
            numbers = [int(row[2]) for part in rows for row in part if row[1] == f"a/{address}"]
            assert numbers[: len(wanted)] == wanted
        acknowledged = sum(map(len, rows))  # a commit that was not told is there, or is not


# Threads


def test_rows_are_read_while_others_are_written_and_tidied(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=2, segment_bytes=30_000)
    stop = threading.Event()
    troubles: list[BaseException] = []

    def reading() -> None:
        while not stop.is_set():
            for position in diary.log.positions():
                rows = read(diary.log, position.partition, 0, position.next)
                assert [row[0] for row in rows] == [*range(position.next)]

    def tidying() -> None:
        while not stop.is_set():
            diary.log.tidy(0.0)

    def guarded(work: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (the test raises it)
                troubles.append(error)
                stop.set()

        return run

    threads = [threading.Thread(target=guarded(work)) for work in (reading, reading, tidying)]
    for thread in threads:
        thread.start()
    for k in range(300):
        diary.write(ADDRESSES[k % 8], payload=b"x" * k)
        if stop.is_set():
            break
    stop.set()
    for thread in threads:
        thread.join()
    assert troubles == []
    diary.log.tidy(0.0)
    diary.check()
    diary.reopen()
    diary.check()
    diary.log.close()


def test_a_segment_that_goes_is_read_to_its_end(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=1, segment_bytes=5000)
    for _ in range(20):
        diary.write("a", time=SECOND)
    reading = diary.log.read(0, 0, FOREVER)
    batches = [next(reading)]
    diary.log.tidy(100.0, [Retention("#", max_age=10)])
    batches += list(reading)
    bases = [batch.base for batch in batches]
    assert bases[:2] == [0, 1]
    assert diary.log.positions()[0].first == 20
    assert read(diary.log, 0) == []
    diary.log.close()


# Tidying


def test_small_batches_become_large_ones(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    for k in range(300):
        diary.write(ADDRESSES[k % 5], payload=os.urandom(50))
    size = segments(tmp_path)[0].stat().st_size
    diary.settings["segment_bytes"] = 1
    diary.reopen()
    diary.write("a")  # in a segment of its own
    diary.settings["segment_bytes"] = 64 << 20
    diary.reopen()
    diary.log.tidy(0.0)
    diary.check()
    assert len(list(diary.log.read(0, 0, FOREVER))) <= 3
    assert segments(tmp_path)[0].stat().st_size < size / 5
    names = segments(tmp_path)
    diary.log.tidy(0.0)
    assert segments(tmp_path) == names  # there is nothing more to do
    diary.reopen()
    diary.check()
    diary.log.close()


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_large_batches_stay_as_they_are(tmp_path: Path, compression: Compression) -> None:
    diary = Diary(tmp_path, partitions=1, segment_bytes=20 << 20, compression=compression)
    for _ in range(2):
        for _ in range(40):
            diary.write("a", "b")
        for _ in range(3):
            diary.write("a", payload=os.urandom(3 << 20))
    diary.append(*["a"] * 10, payload=os.urandom(2 << 20))
    diary.log.write()
    diary.write("b")
    diary.log.tidy(0.0)
    assert len(list(diary.log.read(0, 0, FOREVER))) < 30
    diary.check()
    diary.log.close()


def test_old_rows_go_and_offsets_go_on(tmp_path: Path) -> None:
    diary = Diary(tmp_path, segment_bytes=1)
    for k in range(20):
        diary.write(*ADDRESSES, time=k * SECOND)
    diary.log.tidy(20.5, [Retention("#", max_age=10.0)])
    for position, rows in zip(diary.log.positions(), read_all(diary.log), strict=True):
        assert rows == [row for row in diary.rows[position.partition] if row[3] > 10 * SECOND]
        assert position.first == rows[0][0]
        assert position.first_time == 11 * SECOND
    before = [position.next for position in diary.log.positions()]
    diary.log.tidy(1000.0, [Retention("#", max_age=10.0)])
    assert read_all(diary.log) == [[], []]
    assert [(p.first, p.next) for p in diary.log.positions()] == [(n, n) for n in before]
    diary.reopen()
    assert [position.next for position in diary.log.positions()] == before
    diary.write(*ADDRESSES)
    assert [rows[0][0] for rows in read_all(diary.log)] == before
    diary.log.close()


def test_the_oldest_go_where_there_is_too_much(tmp_path: Path) -> None:
    diary = Diary(tmp_path, segment_bytes=100_000)
    for _ in range(60):
        diary.write("a", "b", payload=os.urandom(10_000))
    total = sum(path.stat().st_size for path in segments(tmp_path))
    diary.log.tidy(0.0, [Retention("#", max_bytes=400_000)])
    size = sum(path.stat().st_size for path in segments(tmp_path))
    assert 400_000 <= size < 700_000 < total
    for rows, written in zip(read_all(diary.log), diary.rows, strict=True):
        assert rows == written[-len(rows) :]
    diary.log.close()


def test_a_rule_is_for_the_addresses_that_match_first(tmp_path: Path) -> None:
    diary = Diary(tmp_path, segment_bytes=1)
    for k in range(10):
        diary.write("keep/1", "short/1", "short/2", "b", "$client/x", time=k * SECOND)
    rules = [Retention("keep/#"), Retention("short/+", max_age=2.0), Retention("#", max_age=6.0)]
    for _ in range(2):
        diary.log.tidy(10.0, rules)
        kept = {"keep/1": -1, "short/1": 8, "short/2": 8, "b": 4, "$client/x": 4}
        for partition, rows in enumerate(read_all(diary.log)):
            assert rows == [row for row in diary.rows[partition] if row[3] >= kept[row[1]] * SECOND]
        diary.settings["segment_bytes"] = 1 << 20
        diary.reopen()
    diary.log.close()


def test_nothing_is_left_of_rows_that_went(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=1, segment_bytes=1)
    for _ in range(3):
        diary.append("keep", time=SECOND)
        diary.write("secret/address", payload=b"secret", time=SECOND)
    diary.write("keep", time=SECOND)
    diary.log.tidy(10.0, [Retention("secret/#", max_age=5.0)])
    assert [row[0] for row in read(diary.log, 0)] == [0, 2, 4, 6]
    diary.log.close()
    for path in tmp_path.iterdir():
        assert b"secret" not in path.read_bytes()


def test_a_rule_for_some_addresses_counts_only_their_bytes(tmp_path: Path) -> None:
    diary = Diary(tmp_path, partitions=1, segment_bytes=1)
    for _ in range(30):
        diary.write("big", "small", payload=os.urandom(10_000))
    diary.log.tidy(0.0, [Retention("big", max_bytes=100_000)])
    rows = read(diary.log, 0)
    assert [row for row in rows if row[1] == "small"] == diary.rows[0][1::2]
    big = [row for row in rows if row[1] == "big"]
    assert 9 <= len(big) <= 13
    assert big == diary.rows[0][0::2][-len(big) :]
    diary.log.close()
