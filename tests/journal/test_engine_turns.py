"""The engine on disk: turns, group commit, the order of answers, and what it does in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.journal.disks import FaultyDisk
from wirelake.errors import ConfigError, EngineError
from wirelake.journal.contract import Space
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.files import FilesJournal
from wirelake.message import Message
from wirelake.wire import FrameTable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture(params=[True, False], ids=["captured", "private"])
def captured(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@contextlib.contextmanager
def opened(folder: Path, *, disk: FaultyDisk | None = None) -> Iterator[Engine]:
    """An engine with the loop that runs; closed at the end."""
    journal = FilesJournal(folder, tidy_every=0, disk=disk)
    engine = Engine(journal, loop=asyncio.get_running_loop(), aside=folder)
    try:
        yield engine
    finally:
        engine.close()


async def durable(engine: Engine) -> None:
    done = asyncio.get_running_loop().create_future()
    engine.after(lambda: done.set_result(None))
    await done


def stored(sequence: int, payload: bytes = b"", queue: str = "jobs") -> Stored:
    return Stored(queue, sequence, Message(address=queue, payload=payload))


def payloads(engine: Engine, queue: str = "jobs") -> list[bytes]:
    return [one.message.payload for one in engine.stored(queue)]


def log_row() -> FrameTable:
    table = FrameTable(1)
    table.fill([Message("a", b"x")], "kobold-3")
    return table


async def test_what_is_written_in_one_turn_is_one_commit(folder: Path, captured: bool) -> None:
    # decision 58
    disk = FaultyDisk()
    with opened(folder, disk=disk) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        commits, syncs = engine.statistics.commits, disk.syncs
        for sequence in range(1, 601):
            engine.put(stored(sequence), captured=captured)
        engine.write_entry(Entry("a", 1, b"x"))
        engine.append(log_row(), None, 1, b"")
        await durable(engine)
        assert (engine.statistics.commits, disk.syncs) == (commits + 1, syncs + 1)
        assert sum(engine.statistics.classes) == engine.statistics.commits
        assert engine.statistics.seconds > 0


async def test_a_turn_is_whole_in_a_partition(folder: Path, captured: bool) -> None:
    # decision 49
    copy = folder.with_name("copy")
    with opened(folder) as engine:
        for queue in ("jobs", "jobs/$dead"):
            engine.declare(QueueSettings(queue))
        engine.put(stored(1, b"moves"), captured=captured)
        await durable(engine)
        engine.drop("jobs", 1)
        time.sleep(0.2)
        shutil.copytree(folder, copy)  # in the middle of this turn
        engine.put(stored(1, b"moves", "jobs/$dead"), captured=captured)
        await durable(engine)
        assert (payloads(engine), payloads(engine, "jobs/$dead")) == ([], [b"moves"])
    with opened(copy) as engine:
        found = payloads(engine), payloads(engine, "jobs/$dead")
        assert found == ([b"moves"], [])


async def test_what_comes_while_a_commit_is_under_way_shares_the_next(folder: Path) -> None:
    disk = FaultyDisk()
    free = threading.Event()
    with opened(folder, disk=disk) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        before = disk.syncs
        disk.before_sync = free.wait
        answered: list[int] = []
        for sequence in range(1, 201):
            engine.heard(1)
            engine.heard(2)  # who does not wait, so that nothing is written in place
            engine.put(stored(sequence), captured=False)
            engine.after(lambda number=sequence: answered.append(number), 1)  # type: ignore[misc]  # a default
            await asyncio.sleep(0)
            engine.next_sequence("jobs")  # the loop goes on while the disk is busy
        assert answered == []
        free.set()
        await durable(engine)
        assert answered == list(range(1, 201))
        assert disk.syncs - before <= 4
        assert len(payloads(engine)) == 200


async def test_what_nobody_waits_for_is_written_all_the_same(folder: Path) -> None:
    # decision 50
    with opened(folder) as engine:
        engine.append(log_row(), None, 1, b"")
        while engine.backlog:
            await asyncio.sleep(0.01)
        while not sum(one.next for one in engine.positions()):
            await asyncio.sleep(0.01)


async def test_where_nothing_was_written_an_action_needs_no_commit(folder: Path) -> None:
    with opened(folder) as engine:
        before = engine.statistics.commits
        await durable(engine)
        await durable(engine)
        assert engine.statistics.commits == before


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


async def test_closing_writes_what_is_open_and_runs_what_waits_for_it(
    folder: Path, captured: bool
) -> None:
    threads = set(threading.enumerate())
    engine = Engine.on_disk(folder, loop=asyncio.get_running_loop())
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"x"), captured=captured)
    ran: list[int] = []
    engine.after(lambda: ran.append(1))
    assert set(threading.enumerate()) > threads
    engine.close()
    assert ran == [1]
    await asyncio.sleep(0)
    assert ran == [1]
    assert set(threading.enumerate()) <= threads
    with pytest.raises(EngineError, match="closed"):
        engine.put(stored(2), captured=captured)
    with opened(folder) as engine:
        assert payloads(engine) == [b"x"]


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


async def test_a_full_disk_delays_answers_and_loses_nothing(
    folder: Path, caplog: pytest.LogCaptureFixture, captured: bool
) -> None:
    caplog.set_level(logging.WARNING, "wirelake.journal")
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        engine.put(stored(1, b"x"), captured=captured)
        await durable(engine)
        answered: list[int] = []
        with full_disk() as make_room:
            for sequence in range(2, 50):
                engine.put(stored(sequence, b"x" * 20_000), captured=captured)
                engine.after(lambda number=sequence: answered.append(number))  # type: ignore[misc]  # a default
                await asyncio.sleep(0.001)
            while engine.journal.failures < 3:
                await asyncio.sleep(0.01)
            assert engine.trouble
            assert answered == []
            make_room()
            await durable(engine)
        assert answered == list(range(2, 50))
        while engine.trouble:
            await asyncio.sleep(0.01)
        assert len(payloads(engine)) == 49
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    with opened(folder) as engine:
        assert len(payloads(engine)) == 49
        assert engine.damage == []


async def test_an_input_output_error_delays_answers_and_loses_nothing(
    folder: Path, captured: bool
) -> None:
    disk = FaultyDisk()
    with opened(folder, disk=disk) as engine:
        engine.declare(QueueSettings("jobs"))
        await durable(engine)
        disk.sync_errors = disk.write_errors = 2
        for sequence in range(1, 20):
            engine.put(stored(sequence, b"%d" % sequence), captured=captured)
            await durable(engine)
        assert engine.journal.failures >= 3
    with opened(folder) as engine:
        assert payloads(engine) == [b"%d" % k for k in range(1, 20)]


async def test_an_engine_that_is_closed_in_trouble_says_so(folder: Path, captured: bool) -> None:
    engine = Engine.on_disk(folder, loop=asyncio.get_running_loop())
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"kept"), captured=captured)
    await durable(engine)
    answered: list[int] = []
    with full_disk():
        engine.put(stored(2, b"x"), captured=captured)
        engine.after(lambda: answered.append(2))
        while not engine.trouble:
            await asyncio.sleep(0.001)
        with pytest.raises(EngineError):
            engine.close()
    assert answered == []
    with opened(folder) as engine:
        assert payloads(engine) == [b"kept"]


async def test_a_folder_that_cannot_be_used_is_refused_and_let_go(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(EngineError):
        Engine.on_disk(tmp_path / "file" / "data")
    Engine.on_disk(tmp_path / "data", partitions=3).close()
    with pytest.raises(ConfigError):
        Engine.on_disk(tmp_path / "data", partitions=17)
    engine = Engine.on_disk(tmp_path / "data", partitions=3)
    with pytest.raises(EngineError, match="another process"):
        Engine.on_disk(tmp_path / "data", partitions=3)
    engine.close()


async def test_rows_of_private_messages_are_not_in_the_log(folder: Path) -> None:
    with opened(folder) as engine:
        engine.declare(QueueSettings("jobs"))
        engine.put(stored(1, b"private"), captured=False)
        await durable(engine)
        partition = engine.home("jobs")
        assert sum(one.next for one in engine.positions()) == 0
        assert list(engine.journal.read(partition, 0, 9, space=Space.PRIVATE))
