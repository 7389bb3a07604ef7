"""Full disks, failing syncs and power failures: nothing durable is lost, nothing half is found."""

from __future__ import annotations

import itertools
import random
import shutil
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.disks import FaultyDisk
from tests.journal.samples import Outcomes, State, commit, keys, payloads, some_rows
from wirelake.journal import files, tail
from wirelake.journal.contract import Harm, Outcome
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Record, checkpoint

PARTITIONS = 3


class History:
    """What was appended to each partition, and how much of it is known to be durable.

    Commit number n of a partition sets the keys `n/0` and `n/1`, in two records. If it has a size,
    it has a row between them.
    """

    def __init__(self) -> None:
        self.appended = [0] * PARTITIONS
        self.durable = [0] * PARTITIONS
        self.rows: list[set[int]] = [set() for _ in range(PARTITIONS)]

    def next(self, partition: int, size: int) -> list[Record]:
        """The records of a partition's next commit."""
        n = self.appended[partition]
        self.appended[partition] += 1
        half = b"x" * size
        records = [keys({f"{n}/0": half}), keys({f"{n}/1": half})]
        if size:
            self.rows[partition].add(n)
            records.insert(1, some_rows(n, [b"%d" % n + half]))
        return records

    def done(self, outcomes: object) -> None:
        """Take outcomes."""
        assert isinstance(outcomes, dict)
        for partition, outcome in outcomes.items():
            assert outcome is Outcome.DURABLE
            self.durable[partition] += 1

    def check(self, journal: FilesJournal, durable: list[int], appended: list[int]) -> list[int]:
        """Check that a journal holds a prefix, whole; its length for each partition."""
        found = []
        for partition in range(PARTITIONS):
            state = State.of(journal.recover(partition)).keys
            count = len(state) // 2
            assert state.keys() == {b"%d/%d" % (n, k) for n in range(count) for k in (0, 1)}
            assert durable[partition] <= count <= appended[partition]
            rows = payloads(journal, partition)
            assert rows.keys() == {n for n in self.rows[partition] if n < count}
            assert all(payload.rstrip(b"x") == b"%d" % n for n, payload in rows.items())
            found.append(count)
        return found


def opened(folder: Path, disk: FaultyDisk | None = None, segment_bytes: int = 8192) -> FilesJournal:
    return FilesJournal(
        folder, partitions=PARTITIONS, segment_bytes=segment_bytes, tidy_every=0, disk=disk
    )


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is tried again at once."""
    monkeypatch.setattr(files, "FIRST_RETRY", 0.0005)
    monkeypatch.setattr(files, "LAST_RETRY", 0.001)


NUMBERS = itertools.count()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(
            st.sets(st.integers(0, PARTITIONS - 1), min_size=1),
            st.sampled_from([0, 10, 700, 3000, 70_000]),
            st.integers(1, 4),
        ),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 1 << 32),
    segment_bytes=st.sampled_from([1, 4000, 20_000, 1 << 20]),
)
def test_a_power_failure_leaves_a_prefix_of_whole_commits(
    tmp_path: Path,
    steps: list[tuple[set[int], int, int]],
    seed: int,
    segment_bytes: int,
) -> None:
    # decision 60
    folder = tmp_path / str(next(NUMBERS))
    chance = random.Random(seed)
    disk = FaultyDisk()
    history = History()
    gate = threading.Event()
    snapshots: list[tuple[Path, list[int], list[int]]] = []

    def fail() -> None:
        if chance.random() < 0.4 and len(snapshots) < 8:
            target = folder / f"failed{len(snapshots)}"
            disk.power_failure(folder / "data" / "journal", target / "journal", chance)
            snapshots.append((target, list(history.durable), list(history.appended)))
        gate.wait(0.001)

    journal = opened(folder / "data", disk, segment_bytes)
    for partition in range(PARTITIONS):
        journal.recover(partition)
    disk.before_sync = fail
    for partitions, size, times in steps:
        for _ in range(times):  # several, so that they share a write
            commits = {partition: history.next(partition, size) for partition in sorted(partitions)}
            journal.append(commits, history.done, in_place=chance.random() < 0.3)
    journal.close()
    assert history.durable == history.appended
    for target, durable, appended in snapshots:
        reopened = opened(target, segment_bytes=segment_bytes)
        assert all(loss.harm is Harm.TORN for loss in reopened.losses)
        found = history.check(reopened, durable, appended)
        after = History()
        after.appended = list(found)
        after.rows = [{n for n in rows if n < found[p]} for p, rows in enumerate(history.rows)]
        for partition in range(PARTITIONS):
            commit(reopened, partition, after.next(partition, 5))
        reopened.close()
        again = opened(target, segment_bytes=segment_bytes)
        assert again.losses == []
        assert after.check(again, after.appended, after.appended) == after.appended
        again.close()
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("in_place", "size", "step"), [(True, 0, 1), (True, 400, 31), (False, 0, 7)]
)
def test_a_disk_may_be_full_at_every_byte_of_a_commit(
    tmp_path: Path,
    impatient: None,
    monkeypatch: pytest.MonkeyPatch,
    in_place: bool,
    size: int,
    step: int,
) -> None:
    monkeypatch.setattr(tail, "FILLING", 1000)
    disk = FaultyDisk()
    history = History()
    journal = opened(tmp_path / "data", disk, segment_bytes=1 << 30)
    for partition in range(PARTITIONS):
        journal.recover(partition)
        assert commit(journal, partition, history.next(partition, 1)) is Outcome.DURABLE
    history.durable = list(history.appended)
    chance = random.Random(1)
    room, needs = 0, 1
    while room < needs:
        disk.room = room
        outcomes = Outcomes()
        journal.append({0: history.next(0, size)}, outcomes, in_place=in_place)
        if in_place:
            assert outcomes.told == []
            assert "No space left" in journal.trouble
        needs = max(needs, 32 + journal.backlog)
        if room % (8 * step) == 0:  # it may also be killed, or lose its power, in that state
            copy = tmp_path / "copy"
            disk.power_failure(journal.folder, copy / "journal", chance)
            reopened = opened(copy)
            assert all(loss.harm is Harm.TORN for loss in reopened.losses)
            history.check(reopened, history.durable, history.appended)
            reopened.close()
            shutil.rmtree(copy)
        disk.room = None
        assert outcomes.wait() == {0: Outcome.DURABLE}
        history.durable[0] += 1
        room += step
    assert needs > 300
    assert journal.trouble == ""
    journal.close()
    reopened = opened(tmp_path / "data", segment_bytes=1 << 30)
    assert reopened.losses == []
    assert history.check(reopened, history.durable, history.durable) == history.durable
    reopened.close()


def test_a_full_disk_can_be_opened_and_read(tmp_path: Path, impatient: None) -> None:
    history = History()
    journal = opened(tmp_path)
    journal.recover(0)
    for _ in range(10):
        commit(journal, 0, history.next(0, 2000))
    journal.close()
    last = sorted((tmp_path / "journal").glob("*.wlj"))[-1]
    with last.open("ab") as file:
        file.write(b"a write that did not end")
    disk = FaultyDisk()
    disk.room = 0
    full = opened(tmp_path, disk)
    assert len(full.losses) == 1
    assert history.check(full, history.appended, history.appended) == history.appended
    outcomes = Outcomes()
    full.append({0: history.next(0, 1)}, outcomes, in_place=True)
    assert "No space left" in full.trouble
    disk.room = None
    assert outcomes.wait() == {0: Outcome.DURABLE}
    full.close()


@pytest.mark.parametrize("fault", ["sync_errors", "write_errors"])
def test_after_an_input_output_error_the_journal_goes_on_elsewhere(
    tmp_path: Path, impatient: None, fault: str
) -> None:
    disk = FaultyDisk()
    history = History()
    journal = opened(tmp_path / "data", disk, segment_bytes=1 << 20)
    journal.recover(0)
    assert commit(journal, 0, history.next(0, 100)) is Outcome.DURABLE
    setattr(disk, fault, 3)
    outcomes = Outcomes()
    journal.append({0: history.next(0, 100)}, outcomes, in_place=True)
    assert outcomes.told == []
    assert "Input/output error" in journal.trouble
    assert outcomes.wait() == {0: Outcome.DURABLE}
    assert commit(journal, 0, history.next(0, 100)) is Outcome.DURABLE
    assert len(list(journal.folder.glob("*.wlj"))) > 1
    for number in range(20):
        disk.power_failure(journal.folder, tmp_path / f"{number}/journal", random.Random(number))
        reopened = opened(tmp_path / str(number))
        assert all(loss.harm is Harm.TORN for loss in reopened.losses)
        assert history.check(reopened, [3, 0, 0], [3, 0, 0]) == [3, 0, 0]
        reopened.close()
    journal.close()


def test_what_could_not_be_written_is_unavailable_when_the_journal_is_closed(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    journal = opened(tmp_path, disk)
    journal.recover(0)
    assert commit(journal, 0, [keys({"a": b"1"})]) is Outcome.DURABLE
    disk.room = 0
    outcomes = Outcomes()
    journal.append({0: [keys({"a": b"2"})]}, outcomes)
    journal.append({0: [keys({"a": b"3"})]}, outcomes, in_place=True)
    journal.close()
    assert outcomes.told == [{0: Outcome.UNAVAILABLE}] * 2
    reopened = opened(tmp_path)
    assert State.of(reopened.recover(0)).keys == {b"a": b"1"}
    reopened.close()


def test_a_power_failure_while_segments_are_written_again_loses_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    for number in range(15):
        folder = tmp_path / str(number)
        disk = FaultyDisk()
        history = History()
        journal = opened(folder / "data", disk, segment_bytes=6000)
        journal.recover(0)
        for _ in range(30):
            commit(journal, 0, history.next(0, 200))
        snapshots: list[Path] = []

        def fail(
            disk: FaultyDisk = disk, folder: Path = folder, taken: list[Path] = snapshots
        ) -> None:
            if chance.random() < 0.6:
                taken.append(folder / f"failed{len(taken)}")
                disk.power_failure(folder / "data" / "journal", taken[-1] / "journal", chance)

        disk.before_sync = fail
        journal.tidy(1e9)
        fail()
        journal.close()
        for target in snapshots:
            reopened = opened(target)
            assert reopened.losses == []
            assert history.check(reopened, history.appended, history.appended)[0] == 30
            reopened.close()


def test_a_checkpoint_that_was_not_durable_does_not_count(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = opened(tmp_path / "data", disk, segment_bytes=1 << 20)
    journal.recover(0)
    commit(journal, 0, [keys({"a": b"1"})])
    begin = journal.positions()[0].number
    disk.before_sync = lambda: disk.power_failure(
        journal.folder, tmp_path / "failed" / "journal", random.Random(0), keep=0.0
    )
    commit(journal, 0, [keys({"a": b"state"}), checkpoint(begin)], in_place=True)
    disk.before_sync = lambda: None
    journal.close()
    reopened = opened(tmp_path / "failed")
    assert State.of(reopened.recover(0)).keys == {b"a": b"1"}
    reopened.close()
