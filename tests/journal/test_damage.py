"""Damaged files: a journal opens, says what it lost, and loses nothing in silence."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.journal.samples import commit, keys, payloads, some_rows
from wirelake.journal.contract import Harm, Loss, Needed, Outcome, Space
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Record, Type, decode_entries
from wirelake.journal.retention import Rule

PARTITIONS = 3


class Expected:
    """What was written: every commit sets a key of its own; a third of them have rows."""

    def __init__(self) -> None:
        self.keys: list[set[bytes]] = [set() for _ in range(PARTITIONS)]
        self.rows: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]
        self.private: list[dict[int, bytes]] = [{} for _ in range(PARTITIONS)]

    def commits(self, journal: FilesJournal, chance: random.Random, count: int) -> None:
        """Make commits, and wait for each."""
        for _ in range(count):
            partition = chance.randrange(PARTITIONS)
            name = b"key%d" % len(self.keys[partition])
            self.keys[partition].add(name)
            records: list[Record] = [keys({name.decode(): name * chance.choice([1, 1, 200])})]
            if chance.random() < 0.4:
                rows = self.rows[partition]
                new = {
                    len(rows) + k: chance.randbytes(chance.choice([0, 9, 900])) for k in range(3)
                }
                records.append(some_rows(len(rows), list(new.values())))
                rows |= new
            if chance.random() < 0.2:
                private = self.private[partition]
                new = {len(private): chance.randbytes(50)}
                records.append(some_rows(len(private), list(new.values()), type=Type.MESSAGES))
                private |= new
            assert commit(journal, partition, records, in_place=True) is Outcome.DURABLE

    def missing(self, journal: FilesJournal) -> int:
        """How much is not there; what is there is as it was written."""
        missing = 0
        for partition in range(PARTITIONS):
            found = set()
            recovered = journal.recover(partition)
            for record in recovered.records:
                for entry in decode_entries(record.data):
                    assert entry.value.replace(entry.name, b"") == b""
                    found.add(entry.name)
            assert found <= self.keys[partition]
            missing += len(self.keys[partition]) - len(found)
            for space, expected in (
                (Space.LOG, self.rows[partition]),
                (Space.PRIVATE, self.private[partition]),
            ):
                rows = payloads(journal, partition, space=space)
                assert rows.items() <= expected.items()
                missing += len(expected) - len(rows)
        return missing

    def given_again(self, journal: FilesJournal) -> bool:
        """Would places be given a second time?"""
        return any(
            journal.recover(partition).offset < len(self.rows[partition])
            or journal.recover(partition).slot < len(self.private[partition])
            for partition in range(PARTITIONS)
        )


def opened(folder: Path) -> FilesJournal:
    return FilesJournal(folder, segment_bytes=9000, tidy_every=0)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Expected]:
    """A journal that was killed: complete segments, one that was rewritten, and a filling."""
    folder = tmp_path_factory.mktemp("sound")
    chance = random.Random(8)
    expected = Expected()
    journal = FilesJournal(folder / "data", partitions=PARTITIONS, segment_bytes=9000, tidy_every=0)
    for partition in range(PARTITIONS):
        journal.recover(partition)
    expected.commits(journal, chance, 24)
    journal.rules = [Rule("nothing", 1.0)]
    for segment in journal._segments[:-1]:
        segment.damaged = True  # so that it is written again
    journal.tidy(2.0)
    expected.commits(journal, chance, 25)
    shutil.copytree(folder / "data", folder / "killed")
    names = sorted(path.name for path in (folder / "killed/journal").iterdir())
    assert len(names) >= 4
    assert names[0].endswith("-1.wlj")
    journal.close()
    return folder / "killed", expected


def spoiled(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """A file as some accident may leave it."""
    made = bytearray(content)
    at = chance.randrange(len(made))
    # Fillings are large, and nobody misses them: look for something that matters.
    if chance.random() < 0.7:
        at = min(at, chance.randrange(1, 12_000))
    at = min(at, len(made) - 1)
    size = chance.choice([1, 4, 16, 64, 512, 3000])
    match chance.randrange(8):
        case 0 | 1:
            made[at] ^= 1 << chance.randrange(8)
            return f"bit of byte {at}", bytes(made)
        case 2:
            made[at : at + size] = chance.randbytes(len(made[at : at + size]))
            return f"noise at {at}, {size} bytes", bytes(made)
        case 3:
            made[at : at + size] = bytes(len(made[at : at + size]))
            return f"zeros at {at}, {size} bytes", bytes(made)
        case 4:
            return f"cut off at {at}", bytes(made[:at])
        case 5:
            other = chance.randrange(len(made))
            some = bytes(made[other : other + size])[: len(made) - at]
            made[at : at + len(some)] = some
            return f"bytes of {other} at {at}, {size} bytes", bytes(made)
        case 6:
            del made[at : at + size]
            return f"{size} bytes at {at} gone", bytes(made)
        case _:
            made[at:at] = chance.randbytes(size)
            return f"{size} bytes more at {at}", bytes(made)


def check(
    folder: Path, expected: Expected, *, last: bool, file_is_gone: bool = False
) -> list[Loss]:
    """Open a damaged journal; it lost nothing in silence, and can be used."""
    journal = opened(folder)
    missing = expected.missing(journal)
    losses = list(journal.losses)
    assert losses or not missing, f"{missing} lost in silence"
    if not last or any(loss.harm is not Harm.TORN for loss in losses):
        assert not expected.given_again(journal)
    for loss in losses:
        if loss.kept:
            assert (journal.folder / loss.kept).stat().st_size > 0
    position = journal.positions()[0]
    new = [some_rows(position.next, [b"new"]), keys({"new": b"1"})]
    assert commit(journal, 0, new) is Outcome.DURABLE
    journal.close()
    # Nothing more is lost. A file that is missing stays so, and a head damaged until it is tidied.
    again = opened(folder)
    known = {Harm.MISSING} if file_is_gone else set()
    places = {one.where for one in losses}
    new_losses = [one for one in again.losses if one.where not in places]
    assert [one for one in new_losses if one.harm not in known] == []
    state = {
        entry.name for record in again.recover(0).records for entry in decode_entries(record.data)
    }
    assert b"new" in state
    assert payloads(again, 0)[position.next] == b"new"
    again.keep(0, Needed())
    again.tidy(2.0)
    again.close()
    quiet = opened(folder)
    assert [loss for loss in quiet.losses if loss.harm not in known] == []
    quiet.close()
    return losses


def segments(folder: Path) -> list[Path]:
    return sorted((folder / "journal").glob("*.wlj"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(3, 12))]
)
def test_no_damage_is_silent(tmp_path: Path, sound: tuple[Path, Expected], seed: int) -> None:
    original, expected = sound
    chance = random.Random(seed)
    for number in range(90):
        folder = tmp_path / str(number)
        shutil.copytree(original, folder)
        files = segments(folder)
        path = chance.choice([*files, files[-1]])
        content = path.read_bytes()
        how, damaged = spoiled(content, chance)
        path.write_bytes(damaged)
        # Nobody can tell a last segment that was cut off from one that was not written further.
        last = path == files[-1]
        cut = last and content.startswith(damaged)
        try:
            if cut:
                opened(folder).close()
            else:
                check(folder, expected, last=last)
        except BaseException as error:
            error.add_note(f"{path.name}: {how}")
            raise
        shutil.rmtree(folder)


def targets(folder: Path) -> Iterator[tuple[Path, int]]:
    """Every place at which something begins: heads, frames, headers, bodies, indexes and feet."""
    for path in segments(folder):
        content = path.read_bytes()
        for magic in (b"WLJS", b"WLJA", b"WLJR", b"WLJF"):
            at = content.find(magic)
            while at >= 0:
                yield path, at
                at = content.find(magic, at + 1)


@pytest.mark.slow
def test_no_damage_of_a_field_is_silent(tmp_path: Path, sound: tuple[Path, Expected]) -> None:
    original, expected = sound
    chance = random.Random(3)
    count = 0
    for path, at in targets(original):
        for field in chance.sample([0, 4, 5, 6, 9, 16, 20, 24, 28, 33, 41, 64, 84, 88, 93, 100], 2):
            content = bytearray(path.read_bytes())
            if at + field >= len(content):
                continue
            folder = tmp_path / str(count)
            shutil.copytree(original, folder)
            target = folder / "journal" / path.name
            content[at + field] ^= 1 << chance.randrange(8)
            target.write_bytes(content)
            try:
                check(folder, expected, last=path == segments(original)[-1])
            except BaseException as error:
                error.add_note(f"{path.name}, {content[at : at + 4]!r} at {at}, byte {field}")
                raise
            shutil.rmtree(folder)
            count += 1
    assert count > 150


@pytest.mark.parametrize("which", [0, 1, 2, -1])
def test_a_missing_file_is_told(tmp_path: Path, sound: tuple[Path, Expected], which: int) -> None:
    original, expected = sound
    shutil.copytree(original, tmp_path / "data")
    segments(tmp_path / "data")[which].unlink()
    losses = check(tmp_path / "data", expected, last=False, file_is_gone=True)
    assert Harm.MISSING in {loss.harm for loss in losses}


def test_a_damaged_head_leaves_the_records_behind_it(
    tmp_path: Path, sound: tuple[Path, Expected]
) -> None:
    original, expected = sound
    shutil.copytree(original, tmp_path / "data")
    for path in segments(tmp_path / "data"):
        content = bytearray(path.read_bytes())
        content[:30] = bytes(30)
        path.write_bytes(content)
    journal = opened(tmp_path / "data")
    assert expected.missing(journal) == 0
    assert len(journal.losses) >= len(segments(tmp_path / "data"))
    assert not expected.given_again(journal)
    journal.close()


def test_files_of_which_nothing_can_be_read_are_set_aside(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    name = segments(tmp_path)[0].name
    journal.close()
    (tmp_path / "journal" / name).write_bytes(b"something else" * 1000)
    again = opened(tmp_path)
    assert [str(loss) for loss in again.losses] == [
        f"{name}: nothing in it can be read; kept in {name}.damaged-0"
    ]
    assert (tmp_path / "journal" / f"{name}.damaged-0").read_bytes() == b"something else" * 1000
    again.close()


def test_a_file_of_another_journal_is_told(tmp_path: Path, sound: tuple[Path, Expected]) -> None:
    original, expected = sound
    shutil.copytree(original, tmp_path / "data")
    other = FilesJournal(tmp_path / "other", partitions=PARTITIONS, tidy_every=0)
    other.recover(0)
    commit(other, 0, [keys({"foreign": b"1"})])
    other.close()
    last = segments(tmp_path / "data")[-1]
    number = int(last.name[:9]) + 1
    shutil.copy(segments(tmp_path / "other")[0], last.with_name(f"{number:09}-{number:09}-0.wlj"))
    journal = opened(tmp_path / "data")
    assert expected.missing(journal) == 0
    assert [loss.where[:9] for loss in journal.losses] == [f"{number:09}"]
    assert not expected.given_again(journal)
    journal.close()


def test_a_scrub_finds_damage_and_tidying_removes_it(
    tmp_path: Path, sound: tuple[Path, Expected]
) -> None:
    original, expected = sound
    shutil.copytree(original, tmp_path / "data")
    target = segments(tmp_path / "data")[1]
    content = bytearray(target.read_bytes())
    at = content.find(b"WLJR", 400) + 97
    content[at] ^= 4
    target.write_bytes(content)
    journal = opened(tmp_path / "data")
    assert journal.losses == []
    progress = journal.scrub(1000)
    assert 0 < progress.checked < progress.total
    found = progress.damaged
    while progress.checked < progress.total:
        progress = journal.scrub(2000)
        found += progress.damaged
    assert found == len(journal.losses) == 1
    assert journal.losses[0].harm is Harm.DAMAGED
    assert expected.missing(journal) > 0
    journal.tidy(2.0)
    assert journal.scrub(1 << 30).damaged == 0
    journal.close()
    assert not target.exists()
    again = opened(tmp_path / "data")
    assert again.losses == []
    again.close()
