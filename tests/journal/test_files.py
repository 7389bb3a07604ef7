"""The journal in files: whose directory it is, how it commits, what it keeps and lets go."""

from __future__ import annotations

import errno
import os
import random
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.journal.disks import FaultyDisk
from tests.journal.samples import Outcomes, State, commit, decoded, keys, payloads, some_rows
from wirelake.errors import ConfigError, EngineError
from wirelake.journal.contract import Needed, Outcome, Space
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Piece, Put, QueueChanges, Record, Type, checkpoint
from wirelake.journal.retention import Places, Rule


def opened(folder: Path, **more: object) -> FilesJournal:
    settings: dict[str, object] = {"partitions": 2, "tidy_every": 0, **more}
    journal = FilesJournal(folder, **settings)  # type: ignore[arg-type]  # as given by tests
    for partition in range(journal.partitions):
        journal.recover(partition)
    return journal


def disk_use(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "journal").glob("*.wlj"))


# Whose directory it is


def test_a_directory_belongs_to_one_process(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    with pytest.raises(EngineError, match="another process uses"):
        FilesJournal(tmp_path)
    journal.close()
    opened(tmp_path).close()


def test_only_the_owner_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        journal = opened(tmp_path / "data", segment_bytes=1)
        commit(journal, 0, [keys({"a": b"1"})])
        commit(journal, 0, [keys({"a": b"1"})])
    finally:
        os.umask(before)
    journal.close()
    for folder in (tmp_path / "data", journal.folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in journal.folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["broker.db", "log/000000000-000000000-0.log"])
def test_data_of_0_1_is_refused(tmp_path: Path, name: str) -> None:
    # decision 59
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    with pytest.raises(
        EngineError, match=r"written by Wirelake 0\.1, whose data this version does"
    ):
        FilesJournal(tmp_path)
    path.unlink()
    if path.parent != tmp_path:
        path.parent.rmdir()
    opened(tmp_path).close()


def test_the_number_of_partitions_is_fixed(tmp_path: Path) -> None:
    opened(tmp_path, partitions=3).close()
    with pytest.raises(ConfigError, match="the journal was made with 3 partitions"):
        FilesJournal(tmp_path, partitions=2)
    with pytest.raises(ConfigError, match="1 to 1024"):
        FilesJournal(tmp_path, partitions=1025)
    journal = FilesJournal(tmp_path)
    assert journal.partitions == 3
    journal.close()


def test_its_id_stays_and_is_no_other_journals(tmp_path: Path) -> None:
    first = opened(tmp_path / "one")
    other = opened(tmp_path / "two")
    assert first.id != other.id
    other.close()
    first.close()
    again = opened(tmp_path / "one")
    assert again.id == first.id
    again.close()


def test_a_file_that_is_deleted_while_it_is_used_is_trouble(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    shutil.rmtree(journal.folder)
    outcomes = Outcomes()
    journal.append({0: [keys({"a": b"1"})]}, outcomes, in_place=True)
    assert "was deleted while it was used" in journal.trouble
    journal.close()
    assert outcomes.told == [{0: Outcome.UNAVAILABLE}]


def until(what: Callable[[], bool]) -> None:
    """Wait until something is so."""
    while not what():
        time.sleep(0.01)


def move_away(journal: FilesJournal) -> Callable[[], object]:
    away = journal.folder.with_name("away")
    journal.folder.rename(away)
    return lambda: away.rename(journal.folder)


def put_another_there(journal: FilesJournal) -> Callable[[], object]:
    away = journal.folder.with_name("away")
    journal.folder.rename(away)
    shutil.copytree(away, journal.folder)

    def undo() -> None:
        shutil.rmtree(journal.folder)
        away.rename(journal.folder)

    return undo


def hide_a_segment(journal: FilesJournal) -> Callable[[], object]:
    path = min(journal.folder.iterdir())
    away = journal.folder.with_name(path.name)
    path.rename(away)
    return lambda: away.rename(path)


@pytest.mark.parametrize("harm", [move_away, put_another_there, hide_a_segment])
def test_files_that_are_gone_are_trouble_until_they_are_back(
    tmp_path: Path, harm: Callable[[FilesJournal], Callable[[], object]]
) -> None:
    journal = opened(tmp_path / "data", segment_bytes=1)
    for number in range(3):
        commit(journal, 0, [keys({"a": b"%d" % number})])
    undo = harm(journal)
    until(lambda: bool(journal.trouble))
    assert "while it was used" in journal.trouble
    outcomes = Outcomes()
    journal.append({0: [keys({"b": b"1"})]}, outcomes, in_place=True)
    journal.append({0: [keys({"c": b"1"})]}, outcomes)
    assert outcomes.told == []
    undo()
    until(lambda: len(outcomes.told) == 2)
    until(lambda: not journal.trouble)
    harm(journal)()
    until(lambda: not journal.trouble)
    journal.close()
    again = FilesJournal(tmp_path / "data", tidy_every=0)
    assert State.of(again.recover(0)).keys.keys() == {b"a", b"b", b"c"}
    assert again.losses == []
    again.close()


# How it commits


def test_a_commit_in_place_is_durable_before_append_returns(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = opened(tmp_path, disk=disk)
    before, outcomes = disk.syncs, Outcomes()
    journal.append({0: [keys({"a": b"1"})], 1: [keys({"b": b"1"})]}, outcomes, in_place=True)
    assert outcomes.told == [{0: Outcome.DURABLE, 1: Outcome.DURABLE}]
    assert outcomes.threads == [threading.get_ident()]
    assert disk.syncs == before + 1
    journal.close()


def test_commits_beside_share_a_sync(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = opened(tmp_path, disk=disk)
    entered, gate = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        gate.wait(10)

    disk.before_sync = wait
    before, outcomes = disk.syncs, Outcomes()
    journal.append({0: [keys({"a": b"1"})]}, outcomes)
    assert entered.wait(10)
    for k in range(50):
        journal.append({k % 2: [keys({"a": b"1"})]}, outcomes, in_place=True)
    assert outcomes.told == []
    assert journal.positions()[0].number == 2 + 26  # with the record of its epoch
    gate.set()
    outcomes.wait(51)
    assert disk.syncs == before + 2
    assert threading.get_ident() not in outcomes.threads
    journal.close()


def test_an_answer_that_fails_does_not_stop_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("no answer")

    journal = opened(tmp_path)
    journal.append({0: [keys({"a": b"1"})]}, fail)
    journal.append({0: [keys({"a": b"1"})]}, fail, in_place=True)
    assert commit(journal, 0, [keys({"b": b"2"})]) is Outcome.DURABLE
    assert "no answer" in caplog.text
    journal.close()


def test_a_file_does_not_grow_with_every_commit(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    commit(journal, 0, [keys({"a": b"1"})])
    (path,) = journal.folder.glob("*.wlj")
    size = path.stat().st_size
    for _ in range(100):
        commit(journal, 0, [keys({"a": b"1"})])
    assert path.stat().st_size == size
    journal.close()
    assert path.stat().st_size < size


def test_a_record_that_is_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirelake.journal.record.MAX_BODY", 1000)
    journal = opened(tmp_path)
    with pytest.raises(EngineError, match="a record has 1001 bytes; 1000 are possible"):
        journal.append({0: [Record(Type.NOTES, [bytes(1001)])]}, Outcomes())
    assert commit(journal, 0, [Record(Type.NOTES, [bytes(1000)])]) is Outcome.DURABLE
    journal.close()


def test_it_can_be_copied_while_it_is_written(tmp_path: Path) -> None:
    journal = opened(tmp_path / "data", segment_bytes=20_000)
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        while not stop.is_set():
            number = len(written)
            commit(journal, 0, [keys({str(number): b"x" * 300})])
            written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    for number in range(10):
        before = len(written)
        # In order: what a file holds was durable before the next one was begun.
        target = tmp_path / str(number) / "journal"
        target.mkdir(parents=True)
        for path in sorted(journal.folder.glob("*.wlj")):
            shutil.copy(path, target)
        copy = FilesJournal(tmp_path / str(number), tidy_every=0)
        found = State.of(copy.recover(0)).keys
        assert before <= len(found)
        assert found.keys() == {b"%d" % k for k in range(len(found))}
        copy.close()
    stop.set()
    thread.join()
    journal.close()


# What it keeps and what it lets go


def test_rows_go_by_age_and_needed_ones_are_kept(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=20_000, rules=[Rule("#", max_age=100.0)])
    for k in range(40):
        commit(
            journal,
            0,
            [some_rows(10 * k, [b"%d" % (10 * k + n) for n in range(10)], time=k * 10**7)],
        )
    journal.keep(0, Needed(log=[(5, 7), (33, 34)], offset=400))
    journal.tidy(now=300.0)
    position = journal.positions()[0]
    assert 150 <= position.first <= 200
    assert position.next == 400
    log = payloads(journal, 0)
    assert log == {k: b"%d" % k for k in range(position.first, 400)}
    assert payloads(journal, 0, space=Space.KEPT) == {5: b"5", 6: b"6", 33: b"33"}
    journal.close()
    again = opened(tmp_path, segment_bytes=20_000, rules=[Rule("#", max_age=100.0)])
    assert again.losses == []
    assert payloads(again, 0) == log
    assert payloads(again, 0, space=Space.KEPT) == {5: b"5", 6: b"6", 33: b"33"}
    again.keep(0, Needed(log=[(33, 34)], offset=400))
    again.tidy(now=300.0)
    assert payloads(again, 0, space=Space.KEPT).keys() >= {33}
    again.keep(0, Needed(offset=400))
    again.tidy(now=10_000.0)
    assert payloads(again, 0, space=Space.KEPT) == payloads(again, 0) == {}
    assert again.positions()[0].first == again.positions()[0].next == 400
    assert disk_use(tmp_path) < 5000
    again.close()
    last = opened(tmp_path)
    assert last.recover(0).offset == 400
    last.close()


class PickyDisk(FaultyDisk):
    """Has no room for one file."""

    full = -1

    def write(self, file: int, pieces: Sequence[Piece], at: int) -> int:
        """Write, unless to that file."""
        if file == self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(file, pieces, at)


def test_a_message_is_needed_until_its_acknowledgement_is_durable(tmp_path: Path) -> None:
    disk = PickyDisk()
    journal = opened(tmp_path, segment_bytes=1, disk=disk)
    for k in range(4):
        commit(journal, 0, [some_rows(k, [b"%d" % k], type=Type.MESSAGES)])
    journal.keep(0, Needed(private=[(1, 2)], slot=3))
    journal.tidy(now=1.0)
    assert payloads(journal, 0, space=Space.PRIVATE) == {1: b"1", 3: b"3"}
    journal._segment_bytes = journal._tail.segment_bytes = 1 << 20
    disk.full = journal._tail._file
    outcomes = Outcomes()
    journal.append({0: [keys({"acknowledged": b"1"})]}, outcomes, in_place=True)
    journal.keep(0, Needed(slot=3))
    journal.tidy(now=1.0)
    assert payloads(journal, 0, space=Space.PRIVATE) == {1: b"1", 3: b"3"}
    disk.full = -1
    outcomes.wait()
    journal.tidy(now=1.0)
    assert payloads(journal, 0, space=Space.PRIVATE) == {3: b"3"}
    journal.close()


def test_rules_are_for_addresses(tmp_path: Path) -> None:
    rules = [Rule("noise/#", max_age=10.0), Rule("#", max_bytes=1 << 30)]
    journal = opened(tmp_path, segment_bytes=10_000, rules=rules)
    for k in range(20):
        names = ["noise/1", "kept/1"]
        commit(journal, 0, [some_rows(2 * k, [b"n", b"k"], address=names, time=10**6)])
    journal.tidy(now=100.0)
    assert payloads(journal, 0) == {2 * k + 1: b"k" for k in range(20)}
    assert journal.positions()[0].first <= 1
    batches = list(journal.read(0, 0, 99, may_match=lambda name: name == "noise/1"))
    assert batches == []
    journal.close()


def test_rows_go_by_size(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=10_000, rules=[Rule("#", max_bytes=50_000)])
    for k in range(100):
        commit(journal, 0, [some_rows(k, [random.Random(k).randbytes(1000)])])
    journal.keep(0, Needed(offset=100))
    journal.tidy(now=1.0)
    assert 40_000 < disk_use(tmp_path) < 90_000
    first = journal.positions()[0].first
    assert payloads(journal, 0).keys() == set(range(first, 100))
    journal.close()


def test_small_batches_are_merged_and_read_once(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=200_000)
    for k in range(80):
        commit(journal, 0, [some_rows(k, [b"%d" % k])])
    journal.close()
    journal = opened(tmp_path, segment_bytes=1)
    commit(journal, 0, [some_rows(80, [b"80"])])
    journal._segment_bytes = journal._tail.segment_bytes = 200_000
    reading = journal.read(0, 0, 1000)
    found = [decoded(next(reading).ipc) for _ in range(10)]
    before = disk_use(tmp_path)
    journal.tidy(now=1.0)
    assert disk_use(tmp_path) < before // 4
    found += [decoded(batch.ipc) for batch in reading]
    assert [place for batch in found for place in batch] == list(range(81))
    assert len(list(journal.read(0, 0, 1000))) < 5
    assert payloads(journal, 0) == {k: b"%d" % k for k in range(81)}
    journal.close()


def test_what_the_disk_holds_is_bounded_by_what_is_live(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=100_000, rules=[Rule("#", max_age=1.0)])
    queue: list[int] = []
    sequence = 0
    chance = random.Random(1)
    for turn in range(30):
        for _ in range(20):
            payload = [chance.randbytes(1000) for _ in range(5)]
            changes = QueueChanges()
            changes.put(Put(1, sequence, 5, sequence, True))
            queue += range(sequence, sequence + 5)
            while len(queue) > 200:  # acknowledged in no order
                changes.drop(1, queue.pop(chance.randrange(len(queue))))
            commit(journal, 0, [some_rows(sequence, payload, type=Type.MESSAGES), changes.record()])
            sequence += 5
        position = journal.positions()[0]
        state = QueueChanges()
        for one in queue:
            state.put(Put(1, one, 1, one, True))
        commit(journal, 0, [state.record(), checkpoint(position.number)])
        journal.keep(0, Needed([], [(one, one + 1) for one in sorted(queue)], 0, sequence))
        journal.tidy(now=1e9)
        live = 200 * 1100
        assert disk_use(tmp_path) <= 2 * live + 2 * 100_000 + 3000, turn
    found = payloads(journal, 0, space=Space.PRIVATE)
    assert found.keys() >= set(queue)
    journal.close()
    again = opened(tmp_path)
    assert State.of(again.recover(0)).queues[1].keys() == set(queue)
    assert payloads(again, 0, space=Space.PRIVATE).keys() >= set(queue)
    assert again.losses == []
    again.close()


def test_tidying_by_itself_does_nothing_twice(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=5_000, rules=[Rule("#", max_age=100.0)])
    for k in range(50):
        commit(journal, 0, [some_rows(k, [b"x" * 500], time=k * 10**7), keys({f"{k}": b"y" * 300})])
    begin = journal.positions()[0].number
    commit(journal, 0, [keys({"all": b"1"}), checkpoint(begin)])
    journal.keep(0, Needed(log=[(3, 4), (9, 10)], offset=50))
    for _ in range(6):
        journal.tidy(now=300.0)
    names = sorted(path.name for path in journal.folder.iterdir())
    journal.tidy(now=300.0)
    assert sorted(path.name for path in journal.folder.iterdir()) == names
    journal.close()


def test_a_thread_keeps_house(tmp_path: Path) -> None:
    journal = opened(tmp_path, segment_bytes=5_000, rules=[Rule("#", max_age=1.0)], tidy_every=0.01)
    journal.keep(0, Needed(offset=1000))
    gone = threading.Event()
    for k in range(30):
        commit(journal, 0, [some_rows(k, [b"x" * 500])])
    for _ in range(500):
        if journal.positions()[0].first == 30:
            gone.set()
            break
        gone.wait(0.01)
    assert gone.is_set()
    journal.close()


@given(
    ranges=st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=8),
    since=st.integers(0, 80),
    start=st.integers(0, 90),
    length=st.integers(0, 40),
)
def test_needed_places_are_counted(
    ranges: list[tuple[int, int]], since: int, start: int, length: int
) -> None:
    wanted = {place for begin, size in ranges for place in range(begin, begin + size)}
    merged: list[tuple[int, int]] = [(place, place + 1) for place in sorted(wanted)]
    places = Places(merged, since)
    expected = [place in wanted or place >= since for place in range(start, start + length)]
    assert places.count(start, start + length) == sum(expected)
    assert places.among(pa.array(range(start, start + length))).to_pylist() == expected


# Random histories


class Model:
    """What a partition of the journal must hold."""

    def __init__(self) -> None:
        self.state = State()
        self.log: dict[int, bytes] = {}
        self.private: dict[int, bytes] = {}
        self.next = [1, 1]  # sequences of queues 0 and 1

    def needed(self) -> Needed:
        """What the queues refer to."""
        references = {one for queue in self.state.queues.values() for one in queue.values()}
        ranges = [
            [(place, place + 1) for one, place in sorted(references) if one is private]
            for private in (False, True)
        ]
        return Needed(ranges[0], ranges[1], len(self.log), len(self.private))


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "drop", "keys", "checkpoint", "tidy", "reopen"]),
        st.integers(0, 1),
        st.integers(0, 1 << 30),
    ),
    max_size=60,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=STEPS, segment_bytes=st.sampled_from([1, 3000, 30_000]), kill=st.booleans())
def test_random_histories_are_found_again(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[str, int, int]],
    segment_bytes: int,
    kill: bool,
) -> None:
    folder = tmp_path_factory.mktemp("history")
    rules = [Rule("#", max_age=1e-6)]  # the log forgets rows as soon as it can
    journal = opened(folder / "0", segment_bytes=segment_bytes, rules=rules)
    models = [Model(), Model()]
    number = 0
    for step, partition, seed in steps:
        chance = random.Random(seed)
        model = models[partition]
        records: list[Record] = []
        changes = QueueChanges()
        queue = chance.randrange(2)
        if step == "put":
            private = chance.random() < 0.5
            rows = model.private if private else model.log
            new = [
                chance.randbytes(chance.choice([0, 5, 500])) for _ in range(chance.randint(1, 5))
            ]
            base = len(rows)
            kind = Type.MESSAGES if private else Type.ROWS
            records.append(some_rows(base, new, type=kind))
            rows |= dict(enumerate(new, base))
            changes.put(Put(queue, model.next[queue], len(new), base, private))
            model.next[queue] += len(new)
        elif step == "drop":
            there = list(model.state.queues.get(queue, {}))
            for sequence in chance.sample(there, min(len(there), chance.randint(1, 6))):
                changes.drop(queue, sequence)
        elif step == "keys":
            records.append(keys({f"{chance.randrange(5)}": chance.randbytes(20)}))
        elif step == "checkpoint":
            begin = journal.positions()[partition].number
            for one, messages in model.state.queues.items():
                for sequence, (private, place) in messages.items():
                    changes.put(Put(one, sequence, 1, place, private))
            values = {name.decode(): value for name, value in model.state.keys.items()}
            records += [keys(values), checkpoint(begin)]
        elif step == "tidy":
            for k, each in enumerate(models):
                journal.keep(k, each.needed())
            journal.tidy(now=1e9)
        elif kill:
            number += 1
            shutil.copytree(folder / str(number - 1), folder / str(number))
            old, journal = journal, opened(folder / str(number), segment_bytes=segment_bytes)
            journal.rules = rules
            old.close()
        else:
            journal.close()
            journal = opened(folder / str(number), segment_bytes=segment_bytes, rules=rules)
        if changes:
            records.insert(0, changes.record())
        if records:
            for record in records:
                model.state.apply(record)
            assert commit(journal, partition, records) is Outcome.DURABLE
        assert journal.losses == []
    for partition, model in enumerate(models):
        state = State.of(journal.recover(partition))
        assert state.keys == model.state.keys
        assert {k: v for k, v in state.queues.items() if v} == {
            k: v for k, v in model.state.queues.items() if v
        }
        log = payloads(journal, partition)
        kept = payloads(journal, partition, space=Space.KEPT)
        private_rows = payloads(journal, partition, space=Space.PRIVATE)
        assert not log.keys() & kept.keys()
        assert (log | kept).items() <= model.log.items()
        assert private_rows.items() <= model.private.items()
        for messages in state.queues.values():
            for private, place in messages.values():
                assert place in (private_rows if private else log | kept)
    journal.close()
    shutil.rmtree(folder)
