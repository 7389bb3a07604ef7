"""The engine on SQLite: what it promises beyond the contract, and what it does in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from wirelake.engine import database, tables
from wirelake.engine.base import Entry, QueueSettings, Stored
from wirelake.engine.sqlite import SqliteEngine
from wirelake.errors import ConfigError, EngineError
from wirelake.message import Message
from wirelake.wire import FrameTable

MEBIBYTE = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@contextlib.contextmanager
def opened(folder: Path, *, capture: bool = False) -> Iterator[SqliteEngine]:
    """An engine that is closed at the end."""
    engine = SqliteEngine(folder, capture=capture)
    try:
        yield engine
    finally:
        engine.close()


async def durable(engine: SqliteEngine) -> None:
    done = asyncio.get_running_loop().create_future()
    engine.after(lambda: done.set_result(None))
    await done


def stored(sequence: int, payload: bytes = b"", queue: str = "jobs") -> Stored:
    return Stored(queue, sequence, Message(address=queue, payload=payload))


def log_row() -> FrameTable:
    table = FrameTable(1)
    table.fill([Message("a", b"x")], "kobold-3")
    return table


def payloads(engine: SqliteEngine) -> list[bytes]:
    return [one.message.payload for one in engine.stored("jobs")]


# Commits


async def test_what_is_written_in_one_turn_is_one_commit(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        before = engine.statistics.commits
        for sequence in range(1, 101):
            engine.put(stored(sequence))
        await durable(engine)
        assert engine.statistics.commits == before + 1
        assert sum(engine.statistics.classes) == engine.statistics.commits
        assert engine.statistics.rows >= 100
        assert engine.statistics.seconds > 0


async def test_a_turn_is_durable_all_or_not_at_all(folder: Path) -> None:
    # decision 49
    copy = folder.with_name("copy")
    with opened(folder) as engine:
        for queue in ("jobs", "dead"):
            engine.declare(QueueSettings(queue))
        engine.put(stored(1, b"moves"))
        await durable(engine)
        engine.write_entry(Entry("a", 1, b""))
        await asyncio.sleep(0)  # the writer has something to do now
        engine.drop("jobs", 1)
        time.sleep(0.2)  # and time to do it, in the middle of this turn
        shutil.copytree(folder, copy)
        engine.put(stored(1, b"moves", "dead"))
        await durable(engine)
        assert (payloads(engine), len(list(engine.stored("dead")))) == ([], 1)
    with opened(copy) as engine:
        assert payloads(engine) == [b"moves"]


async def test_what_comes_while_a_commit_is_under_way_shares_the_next(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        before = engine.statistics.commits
        waiting = []
        for sequence in range(1, 201):
            engine.put(stored(sequence))
            waiting.append(asyncio.ensure_future(durable(engine)))
            await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        assert engine.statistics.commits - before < 150
        assert len(payloads(engine)) == 200


async def test_a_message_that_comes_and_goes_in_one_turn_is_never_written(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        before = engine.statistics.commits
        for sequence in range(1, 100):
            engine.put(stored(sequence))
            engine.count_attempt(replace(stored(sequence), attempts=1))
            engine.drop("jobs", sequence)
        await durable(engine)
        assert engine.statistics.commits == before


async def test_where_nothing_was_written_an_action_needs_no_commit(folder: Path) -> None:
    with opened(folder) as engine:
        await durable(engine)
        await durable(engine)
        assert engine.statistics.commits == 0


async def test_rows_of_the_log_alone_leave_the_database_alone(folder: Path) -> None:
    with opened(folder, capture=True) as engine:
        engine.append(log_row(), None, 1, b"")
        await durable(engine)
        assert (engine.statistics.commits, engine.statistics.rows) == (1, 0)
        engine.write_entry(Entry("a", 1, b"x"))
        await durable(engine)
        assert (engine.statistics.commits, engine.statistics.rows) == (2, 1)
        engine.write_entry(Entry("a", 2, b"x"))
        engine.append(log_row(), None, 2, b"")
        await durable(engine)
        assert (engine.statistics.commits, engine.statistics.rows) == (3, 2)
        assert sum(one.next for one in engine.positions()) == 2


async def test_what_nobody_waits_for_is_written_all_the_same(folder: Path) -> None:
    # decision 50
    with opened(folder, capture=True) as engine:
        engine.append(log_row(), None, 1, b"")
        while engine.backlog:
            await asyncio.sleep(0.01)
        assert sum(one.next for one in engine.positions()) == 1


async def test_the_loop_goes_on_while_the_disk_is_busy(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = threading.Event()
    sync = os.fdatasync

    def slow(file: int) -> None:
        free.wait()
        sync(file)

    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        monkeypatch.setattr(os, "fdatasync", slow)
        engine.put(stored(1))
        waiting = asyncio.ensure_future(durable(engine))
        for _ in range(100):
            await asyncio.sleep(0)
            engine.next_sequence("jobs")
        assert not waiting.done()
        free.set()
        await waiting
        assert payloads(engine) == [b""]


async def test_an_answer_does_not_wait_for_the_database(folder: Path) -> None:
    # decision 58
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        assert payloads(engine) == []
        blocker = sqlite3.connect(folder / "broker.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")  # whoever writes to it has to wait
        engine.put(stored(1, b"kept"))
        await durable(engine)
        shutil.copytree(folder, folder.with_name("copy"))
        blocker.execute("ROLLBACK")
        assert blocker.execute("SELECT count(*) FROM messages").fetchone() == (0,)
        blocker.close()
        assert payloads(engine) == [b"kept"]
    with opened(folder.with_name("copy")) as engine:
        assert payloads(engine) == [b"kept"]
        assert engine.damage == []


async def test_what_comes_and_goes_never_reaches_the_database(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        assert payloads(engine) == []
        written = sqlite3.connect(folder / "broker.db")
        before = written.execute("PRAGMA data_version").fetchone()
        for sequence in range(1, 50):
            engine.put(stored(sequence))
            await durable(engine)
            engine.count_attempt(replace(stored(sequence), attempts=1))
            await durable(engine)
            engine.drop("jobs", sequence)
            engine.write_entry(Entry("a", sequence, b"%d" % sequence))
            await durable(engine)
        assert written.execute("PRAGMA data_version").fetchone() == before  # within the linger
        assert payloads(engine) == []
        assert written.execute("PRAGMA data_version").fetchone() != before
        assert list(engine.entries()) == [Entry("a", 49, b"49")]
        written.close()


async def test_writes_before_there_is_a_loop_are_kept(folder: Path) -> None:
    ran: list[str] = []

    def without_a_loop() -> None:
        engine = SqliteEngine(folder, capture=False)
        engine.declare(QueueSettings("jobs"))
        engine.put(stored(1, b"early"))
        engine.after(lambda: ran.append("after"))
        engine.close()

    thread = threading.Thread(target=without_a_loop)
    thread.start()
    thread.join()
    assert ran == ["after"]
    with opened(folder) as engine:
        assert payloads(engine) == [b"early"]


async def test_closing_writes_what_is_open_and_runs_what_waits_for_it(folder: Path) -> None:
    threads = set(threading.enumerate())
    engine = SqliteEngine(folder, capture=True)
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"x"))
    ran: list[int] = []
    engine.after(lambda: ran.append(1))
    assert set(threading.enumerate()) > threads
    engine.close()
    assert ran == [1]
    await asyncio.sleep(0)
    assert ran == [1]
    assert set(threading.enumerate()) <= threads
    assert not (folder / "broker.db-wal").exists()
    with pytest.raises(EngineError, match="closed"):
        engine.put(stored(2))
    with opened(folder) as engine:
        assert payloads(engine) == [b"x"]


async def test_an_action_that_fails_keeps_no_other_from_running(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(folder) as engine:
        ran: list[int] = []
        engine.write_entry(Entry("a", 1, b""))
        engine.after(lambda: ran.append(1))
        engine.after(lambda: [][0])
        engine.after(lambda: ran.append(2))
        await durable(engine)
        assert ran == [1, 2]
        assert "an action failed" in caplog.text


async def test_a_commit_may_be_larger_than_one_statement(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_LOAD", 1000)
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        for number in range(1, 30):
            engine.put(stored(number, b"%d" % number * 100))
            engine.write_entry(Entry(f"key/{number}", 1, b"v" * 300))
        await durable(engine)
        assert engine.statistics.commits == 1
        assert payloads(engine) == [b"%d" % number * 100 for number in range(1, 30)]
        assert len(list(engine.entries())) == 29


async def test_large_messages_survive(folder: Path) -> None:
    large = random.Random(1).randbytes(20 * MEBIBYTE)
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        for number in (1, 2):
            engine.put(stored(number, large))
        engine.write_entry(Entry("large", 1, large))
        await durable(engine)
    with opened(folder) as engine:
        assert payloads(engine) == [large, large]
        assert list(engine.entries()) == [Entry("large", 1, large)]
        assert engine.damage == []


async def test_half_a_surrogate_is_no_reason_to_lose_a_message(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        engine.put(Stored("jobs", 1, Message("jobs", b"x", headers={"a": "\ud800b"})))
        await durable(engine)
        (found,) = engine.stored("jobs")
        assert found.message.headers == {"a": "?b"}
        with pytest.raises(EngineError):
            engine.declare(QueueSettings("\ud800"))
        with pytest.raises(EngineError):
            engine.write_entry(Entry("a\0b", 1, b""))


async def test_what_is_dropped_is_found_by_its_key(folder: Path) -> None:
    """Without the primary key, every commit would walk through all messages of a queue."""
    with opened(folder):
        db = sqlite3.connect(folder / "broker.db")
        statements = database._TRIGGER.partition("BEGIN")[2].rpartition("END")[0].split(";")[:-1]
        for statement in statements:
            for name in ("removed", "queues", "drops", "puts", "attempts", "stale", "ids"):
                statement = statement.replace(f"new.{name}", "'[]'")
            statement = statement.replace("new.entries", "'[]'").replace("new.data", "x''")
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert not [step for step in plan if "SCAN messages" in step or "SCAN ids" in step]
            if "drops" in statement or "attempts" in statement:
                assert any("queue=? AND sequence=?" in step for step in plan), plan
        db.close()


async def test_a_sequence_is_not_given_out_again_after_a_crash(folder: Path) -> None:
    # decision 51
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        for sequence in range(1, 6000):
            engine.put(stored(sequence))
            engine.drop("jobs", sequence)
            if sequence % 100 == 0:
                await durable(engine)
        shutil.copytree(folder, folder.with_name("copy"))
    with opened(folder.with_name("copy")) as engine:
        following = engine.next_sequence("jobs")
        assert following >= 6000
        shutil.copytree(folder.with_name("copy"), folder.with_name("again"))
    with opened(folder.with_name("again")) as engine:
        assert engine.next_sequence("jobs") > following  # which may have been given out


# Trouble


@contextlib.contextmanager
def full_disk() -> Iterator[Callable[[], None]]:
    """No file can be written to, until the function is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("capture", [False, True])
async def test_a_full_disk_delays_answers_and_loses_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture, capture: bool
) -> None:
    caplog.set_level(logging.WARNING, "wirelake.engine")
    with opened(folder, capture=capture) as engine:
        engine.declare(QueueSettings("jobs"))
        engine.put(stored(1, b"x"))
        await durable(engine)
        answered: list[int] = []
        with full_disk() as make_room:
            for sequence in range(2, 50):
                engine.put(stored(sequence, b"x" * 20_000))
                engine.after(lambda number=sequence: answered.append(number))  # type: ignore[misc]  # a default
                await asyncio.sleep(0.001)
            while not engine.trouble:
                await asyncio.sleep(0.001)
            with pytest.raises(EngineError) as refusal:
                list(engine.entries())
            assert refusal.value.retriable
            while engine.statistics.failures < 3:
                await asyncio.sleep(0.05)
            assert answered == []
            make_room()
            await durable(engine)
        assert answered == list(range(2, 50))
        while engine.trouble:
            await asyncio.sleep(0.01)
        assert len(payloads(engine)) == 49
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    with opened(folder, capture=capture) as engine:
        assert len(payloads(engine)) == 49
        assert engine.damage == []


async def test_a_database_without_room_is_trouble_and_loses_nothing(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        assert payloads(engine) == []
        blocker = sqlite3.connect(folder / "broker.db", isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        engine.put(stored(1, b"kept"))
        while not engine.trouble:
            await asyncio.sleep(0.05)
        assert "locked" in engine.trouble
        blocker.execute("ROLLBACK")
        blocker.close()
        while engine.trouble:
            await asyncio.sleep(0.05)
        assert payloads(engine) == [b"kept"]


async def test_an_engine_that_is_closed_in_trouble_says_so(folder: Path) -> None:
    engine = SqliteEngine(folder, capture=False)
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"kept"))
    await durable(engine)
    answered: list[int] = []
    with full_disk():
        engine.put(stored(2, b"x"))
        engine.after(lambda: answered.append(2))
        while not engine.trouble:
            await asyncio.sleep(0.001)
        with pytest.raises(EngineError):
            engine.close()
    assert answered == []
    with opened(folder) as engine:
        assert payloads(engine) == [b"kept"]


async def test_an_engine_whose_database_is_stuck_can_be_closed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "MOST_BYTES", 100)
    engine = SqliteEngine(folder, capture=False)
    engine.declare(QueueSettings("jobs"))
    assert payloads(engine) == []
    blocker = sqlite3.connect(folder / "broker.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    for sequence in (1, 2, 3):
        engine.put(stored(sequence, b"x" * 1000))
        await asyncio.sleep(0.1)  # the writer has to wait for the tables meanwhile
    await asyncio.to_thread(engine.close)
    blocker.execute("ROLLBACK")
    blocker.close()
    with opened(folder) as engine:
        assert len(payloads(engine)) == 3
        assert engine.damage == []


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError):
        SqliteEngine(tmp_path / "file" / "data")


async def test_a_log_of_another_shape_is_refused_and_the_database_let_go(folder: Path) -> None:
    with opened(folder, capture=True) as engine:
        engine.append(log_row(), None, 1, b"")
    with pytest.raises(ConfigError):
        SqliteEngine(folder, partitions=17)
    with opened(folder, capture=True):
        pass


def test_a_database_of_a_later_version_is_refused_and_left_alone(folder: Path) -> None:
    # decision 53
    with opened(folder):
        pass
    db = sqlite3.connect(folder / "broker.db")
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = (folder / "broker.db").read_bytes()
    with pytest.raises(EngineError, match="version 99"):
        SqliteEngine(folder, capture=False)
    assert (folder / "broker.db").read_bytes() == before


def test_a_database_of_somebody_else_is_refused_and_left_alone(folder: Path) -> None:
    folder.mkdir()
    db = sqlite3.connect(folder / "broker.db")
    db.execute("CREATE TABLE photographs (name TEXT)")
    db.close()
    before = (folder / "broker.db").read_bytes()
    with pytest.raises(EngineError, match="not of a broker"):
        SqliteEngine(folder, capture=False)
    assert (folder / "broker.db").read_bytes() == before


# Damage


class Crashed:
    """The files of an engine that was killed: some of it in the database, some in the WAL.

    In `folder` there is no log, from which what is damaged could be found again; in `with_log`
    there is one, and the last changes are nowhere else.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.with_log = folder.with_name("with_log")
        self.messages: dict[tuple[str, int], Stored] = {}
        self.entries: dict[str, Entry] = {}

    async def make(self) -> None:
        """Write in many commits, with a clean start in between."""
        chance = random.Random(7)
        source = self.folder.with_name("source")
        with opened(source) as engine:
            for queue in ("jobs", "more"):
                engine.declare(QueueSettings(queue))
            for sequence in range(1, 400):
                self.put(engine, Stored("jobs", sequence, Message("jobs", chance.randbytes(150))))
                self.put(engine, Stored("more", sequence, Message("more", chance.randbytes(50))))
        with opened(source) as engine:
            for sequence in range(400, 600):
                self.put(engine, Stored("jobs", sequence, Message("jobs", chance.randbytes(150))))
                entry = Entry(f"key/{sequence % 50}", sequence, chance.randbytes(40))
                engine.write_entry(entry)
                self.entries[entry.key] = entry
                if sequence % 10 == 0:
                    engine.drop("more", sequence - 300)
                    del self.messages["more", sequence - 300]
                    await durable(engine)
            await durable(engine)
            shutil.copytree(source, self.with_log)
            assert len(list(engine.entries())) == len(self.entries)  # they are in the database now
            shutil.copytree(source, self.folder)
            shutil.rmtree(self.folder / "log")

    def put(self, engine: SqliteEngine, one: Stored) -> None:
        engine.put(one)
        self.messages[one.queue, one.sequence] = one

    def missing(self, engine: SqliteEngine) -> int:
        """How much is not there; what is there must be as it was."""
        found = {
            (queue.name, one.sequence): one
            for queue in engine.queues()
            for one in engine.stored(queue.name)
        }
        for key, one in found.items():
            expected = self.messages.get(key)
            # A message that was dropped may come back with a page of the past.
            assert expected is None or replace(one, attempts=0) == expected
        entries = {entry.key: entry for entry in engine.entries()}
        for name, entry in entries.items():
            assert entry.revision <= self.entries[name].revision
        lost_entries = [k for k, entry in self.entries.items() if entries.get(k) != entry]
        return len(self.messages.keys() - found.keys()) + len(lost_entries)


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> Crashed:
    made = Crashed(tmp_path_factory.mktemp("crashed") / "data")
    asyncio.run(made.make())
    return made


@pytest.fixture
def copy(crashed: Crashed, tmp_path: Path) -> Path:
    """Files to be damaged."""
    return Path(shutil.copytree(crashed.folder, tmp_path / "copy"))


def open_damaged(crashed: Crashed, folder: Path) -> tuple[int, list[str]]:
    """How much is missing, and what was reported; a second start finds nothing to report."""
    with opened(folder) as engine:
        missing, damage = crashed.missing(engine), list(engine.damage)
    with opened(folder) as engine:
        assert engine.damage == []
        assert crashed.missing(engine) == missing
    return missing, damage


def test_a_crash_is_no_damage(crashed: Crashed, copy: Path) -> None:
    assert open_damaged(crashed, copy) == (0, [])


@pytest.fixture
def copy_with_log(crashed: Crashed, tmp_path: Path) -> Path:
    """Files to be damaged, with a log."""
    return Path(shutil.copytree(crashed.with_log, tmp_path / "with_log"))


def test_what_only_the_log_has_is_found_after_a_crash(
    crashed: Crashed, copy_with_log: Path
) -> None:
    db = sqlite3.connect(f"file:{copy_with_log / 'broker.db'}?mode=ro", uri=True)
    (kept,) = db.execute("SELECT count(*) FROM messages").fetchone()
    db.close()
    assert kept < len(crashed.messages)
    assert open_damaged(crashed, copy_with_log) == (0, [])


@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_damaged_database_gets_back_what_the_log_has(
    crashed: Crashed, copy_with_log: Path, ending: str
) -> None:
    # decision 59
    (copy_with_log / f"broker.db{ending}").write_bytes(random.Random(3).randbytes(100_000))
    missing, [report] = open_damaged(crashed, copy_with_log)
    assert missing == 0
    assert "broker.db was damaged" in report


def test_changes_that_are_damaged_cost_no_others(crashed: Crashed, copy_with_log: Path) -> None:
    [segment] = (copy_with_log / "log").glob("*.log")
    data = bytearray(segment.read_bytes())
    at = len(data) - 1
    for _ in range(5):  # the fifth record from the end
        at = data.rindex(b"WLR1", 0, at)
    data[at + 100] ^= 1
    segment.write_bytes(data)
    missing, damage = open_damaged(crashed, copy_with_log)
    assert 0 < missing <= 21  # what was written in one turn
    assert any("changes" in one and "are damaged" in one for one in damage)
    assert any("are missing" in one for one in damage)
    assert list((copy_with_log / "log").glob("*.damaged-*"))


def test_a_database_of_the_first_version_is_taken_over(crashed: Crashed, copy: Path) -> None:
    with opened(copy):
        pass
    db = sqlite3.connect(copy / "broker.db")
    db.executescript("DROP TABLE applied; PRAGMA user_version = 1")
    db.close()
    shutil.rmtree(copy / "log")
    assert open_damaged(crashed, copy) == (0, [])


def used(path: Path) -> int:
    """The size of a file without the zeros at its end."""
    return len(path.read_bytes().rstrip(b"\0"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["broker.db", "broker.db-wal"])
def test_a_flipped_bit_is_harmless_or_reported(crashed: Crashed, tmp_path: Path, name: str) -> None:
    chance = random.Random(name)
    size = used(crashed.folder / name)
    reports = 0
    for number in range(24):
        folder = Path(shutil.copytree(crashed.folder, tmp_path / f"{number}"))
        data = bytearray((folder / name).read_bytes())
        place = chance.randrange(size) if number > 4 else chance.randrange(100)
        data[place] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(data)
        if name == "broker.db" and 60 <= place < 72:  # the numbers that say what the file is
            with contextlib.suppress(EngineError):
                open_damaged(crashed, folder)
            continue
        missing, damage = open_damaged(crashed, folder)
        assert damage or missing == 0, place
        # A bit is in one page; what others have is not lost, but for those below it in the tree.
        assert missing <= 300, (place, missing, damage)
        reports += bool(damage)
        if damage:
            assert any(path.name.startswith("broker.db.damaged-") for path in folder.iterdir())
            assert "broker.db.damaged-" in damage[0]
        shutil.rmtree(folder)
    assert reports > 4


@pytest.mark.parametrize("name", ["broker.db", "broker.db-wal"])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_a_truncated_file_is_reported(crashed: Crashed, copy: Path, name: str, part: float) -> None:
    size = int(used(copy / name) * part)
    with (copy / name).open("r+b") as file:
        file.truncate(size)
    missing, damage = open_damaged(crashed, copy)
    if name == "broker.db" and part > 0.99:
        # Only the last page is cut. It may be whole in the write-ahead log: then nothing is lost.
        assert damage or not missing
    else:
        assert damage
    assert missing < len(crashed.messages) + len(crashed.entries)


def test_a_page_of_zeros_costs_only_its_own_rows(crashed: Crashed, copy: Path) -> None:
    with opened(copy):
        pass  # all is in the database now
    shutil.rmtree(copy / "log")
    data = bytearray((copy / "broker.db").read_bytes())
    leaves = [place for place in range(4096, len(data), 4096) if data[place] == 0x0A]
    for place in leaves[5:20:5]:
        data[place : place + 4096] = bytes(4096)
    (copy / "broker.db").write_bytes(data)
    missing, damage = open_damaged(crashed, copy)
    assert len(damage) == 1
    assert 0 < missing < 150


def test_without_its_wal_a_database_is_damaged(crashed: Crashed, copy: Path) -> None:
    (copy / "broker.db-wal").unlink()
    missing, damage = open_damaged(crashed, copy)
    assert missing > 0
    assert "WAL is missing" in damage[0]


def test_a_file_of_noise_is_set_aside(crashed: Crashed, copy: Path) -> None:
    noise = random.Random(3).randbytes(100_000)
    (copy / "broker.db").write_bytes(noise)
    for name in ("broker.db-wal", "broker.db-shm"):
        (copy / name).unlink()
    missing, damage = open_damaged(crashed, copy)
    assert missing == len(crashed.messages) + len(crashed.entries)
    (aside,) = copy.glob("broker.db.damaged-*")
    assert aside.read_bytes() == noise
    assert aside.name in damage[0]


def test_a_salvage_that_was_cut_short_is_finished(crashed: Crashed, copy: Path) -> None:
    """Killed between the moment when the new file is complete and the end."""
    shutil.copytree(copy, copy.with_name("whole"))
    with opened(copy.with_name("whole")):
        pass
    shutil.copyfile(copy.with_name("whole") / "broker.db", copy / "broker.db.new")
    (copy / "broker.db").write_bytes(b"damaged")
    assert open_damaged(crashed, copy)[0] == 0
    assert len(list(copy.glob("broker.db.damaged-*"))) == 2  # the WAL, too
    assert not (copy / "broker.db.new").exists()
