"""What the engine promises the broker, over every journal: the same tests over all of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from array import array
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace as with_fields

from wirelake.errors import EngineError
from wirelake.journal.arrow_stream import END, PREAMBLE
from wirelake.journal.batch import home
from wirelake.journal.contract import Space
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.files import FilesJournal
from wirelake.journal.retention import Rule
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable

#: In memory; on disk without a loop; with one; with checkpoints all the time.
KINDS = ("memory", "alone", "disk", "checkpoints")
PARTITIONS = 3
LONG = 4e9  # a time far away

#: A file system without a disk: the model does not care, and it is opened hundreds of times.
MEMORY = Path("/dev/shm")


class House:
    """An engine that can be closed, or killed, and opened again."""

    def __init__(self, kind: str, folder: Path, captured: bool) -> None:
        self._kind = kind
        self._folder = folder
        self._captured = captured
        self._copies = 0
        self.engine = self.open()

    def open(self) -> Engine:
        """Open what is in the folder."""
        if self._kind == "memory":
            return Engine.in_memory(partitions=PARTITIONS)
        data = self._folder / str(self._copies)
        if self._kind == "checkpoints":
            journal = FilesJournal(data, partitions=PARTITIONS, segment_bytes=1 << 16)
            running = asyncio.get_running_loop()
            return Engine(journal, loop=running, aside=data, checkpoint_bytes=0)
        loop = asyncio.get_running_loop() if self._kind == "disk" else None
        return Engine.on_disk(data, loop=loop, partitions=PARTITIONS)

    def reopen(self) -> Engine:
        """Close the engine and open it again."""
        if self._kind == "memory":
            self.engine.end_turn()
            self.engine = Engine(self.engine.journal)
        else:
            self.engine.close()
            self.engine = self.open()
        assert self.engine.damage == []
        return self.engine

    async def kill(self) -> Engine:
        """Open the files again as they are when all that was written is durable."""
        await durable(self.engine)
        if self._kind == "memory":
            self.reopen()
        else:
            old = self._folder / str(self._copies)
            self._copies += 1
            shutil.copytree(old, self._folder / str(self._copies))
            self.engine.close()
            self.engine = self.open()
            assert self.engine.damage == []
        return self.engine

    def put(self, *some: Stored) -> None:
        """Put messages into queues."""
        for one in some:
            self.engine.put(one, captured=self._captured)


@pytest.fixture(params=[True, False], ids=["captured", "private"])
def captured(request: pytest.FixtureRequest) -> bool:
    """Whether messages are rows of the log."""
    return bool(request.param)


@pytest.fixture(params=KINDS)
async def house(
    request: pytest.FixtureRequest, tmp_path: Path, captured: bool
) -> AsyncIterator[House]:
    """An engine of each kind, which is closed in the end."""
    made = House(request.param, tmp_path, captured)
    yield made
    made.engine.close()


@pytest.fixture(params=KINDS)
async def engine(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine of each kind, for what has nothing to do with messages in queues."""
    made = House(request.param, tmp_path, True)
    yield made.engine
    made.engine.close()


async def durable(engine: Engine) -> None:
    """Wait until all that was written is durable."""
    done = asyncio.get_running_loop().create_future()
    engine.after(lambda: done.set_result(None))
    await done


def stored(sequence: int, payload: bytes = b"", queue: str = "jobs") -> Stored:
    message = Message(address=queue, payload=payload, id=f"m{sequence}", op=Op.ENQUEUE)
    return Stored(queue, sequence, message)


def sequences(engine: Engine, queue: str = "jobs") -> list[int]:
    return [one.sequence for one in engine.stored(queue)]


def payloads(engine: Engine, queue: str = "jobs") -> list[bytes]:
    return [one.message.payload for one in engine.stored(queue)]


def entries(engine: Engine) -> list[Entry]:
    """All keys, in order; each is in its home."""
    for partition, entry in engine.entries():
        assert partition == engine.home(entry.key)
    return sorted((entry for _, entry in engine.entries()), key=lambda entry: entry.key)


def table_of(*messages: Message) -> FrameTable:
    table = FrameTable(max(1, len(messages)))
    table.fill(messages, "kobold-3")
    return table


def rows_of(engine: Engine, partition: int, start: int = 0, stop: int = 1 << 60) -> pa.Table:
    """What the log holds, put together as a reader would."""
    batches = b"".join(bytes(batch.ipc) for batch in engine.read(partition, start, stop))
    return pa.ipc.open_stream(PREAMBLE + batches + END).read_all()


# The data store


async def test_a_key_is_there_as_it_was_written_last(house: House) -> None:
    engine = house.engine
    engine.write_entry(Entry("house/door", 1, b"open"))
    await durable(engine)
    engine.write_entry(Entry("house/door", 2, b"shut"))
    engine.write_entry(Entry("house/door", 3, b"ajar", 1234.5))
    engine.write_entry(Entry("house/läuft", 1, b""))
    wanted = [Entry("house/door", 3, b"ajar", 1234.5), Entry("house/läuft", 1, b"")]
    assert entries(engine) == wanted
    assert entries(house.reopen()) == wanted
    assert entries(await house.kill()) == wanted


async def test_a_deleted_key_keeps_its_revision(house: House) -> None:
    house.engine.write_entry(Entry("a", 7, b"x"))
    await durable(house.engine)
    house.engine.write_entry(Entry("a", 8, None))
    await durable(house.engine)
    assert entries(house.reopen()) == [Entry("a", 8, None)]


async def test_a_forgotten_key_is_gone(house: House) -> None:
    for key in ("a", "b"):
        house.engine.write_entry(Entry(key, 1, b"x"))
    await durable(house.engine)
    house.engine.drop_entry("a")
    house.engine.drop_entry("none")
    assert entries(await house.kill()) == [Entry("b", 1, b"x")]


async def test_a_value_that_the_log_tells_is_written_once(house: House) -> None:
    engine = house.engine
    for revision in range(1, 4):
        told = Message("house/door", b"%d" % revision * 5000, op=Op.UPDATE)
        entry = Entry("house/door", revision, told.payload, 99.5)
        engine.write_entry(entry, told=told, timestamp=revision)
    gone = Message("house/gone", b"", op=Op.DELETE)
    engine.write_entry(Entry("house/gone", 4, None), told=gone, timestamp=9)
    wanted = [Entry("house/door", 3, b"3" * 5000, 99.5), Entry("house/gone", 4, None)]
    assert entries(engine) == wanted
    await durable(engine)
    assert engine.statistics.bytes < 40_000
    assert entries(house.reopen()) == wanted
    assert entries(await house.kill()) == wanted
    rows = rows_of(house.engine, house.engine.home("house/door"))
    assert rows["payload"].to_pylist()[:3] == [b"%d" % k * 5000 for k in (1, 2, 3)]


# Queues


async def test_a_queue_keeps_its_settings(house: House) -> None:
    wanted = QueueSettings("jobs", mode="pull", ack_timeout=1.5, max_deliveries=9, max_bytes=77)
    house.engine.declare(QueueSettings("jobs"))
    await durable(house.engine)
    house.engine.declare(wanted)
    assert house.reopen().queues() == [wanted]
    assert (await house.kill()).queues() == [wanted]


async def test_what_belongs_to_a_message_survives(house: House) -> None:
    house.engine.declare(QueueSettings("jöbs"))
    full = Message(
        address="jöbs",
        payload=bytes(range(256)) * 20,
        id="i\0d",
        correlation_id="c",
        source="s",
        target="t",
        content_type=7,
        priority=1,
        ttl=2_147_483_647,
        headers={"ünder": "☃", 'quote"': "\\", "empty": ""},
        flags=Flag.TEXT,
        timestamp=1_700_000_000_123_456,
        dialect="tmq-1.01",
        op=Op.ENQUEUE,
    )
    bare = Message("jöbs", timestamp=1, op=Op.ENQUEUE)
    put = [
        Stored("jöbs", 1, full, 0, 1_700_000_000.123456, 1_700_000_001.5, 4711),
        Stored("jöbs", 2, bare),
        Stored("jöbs", 3, with_fields(full, priority=-1, flags=bare.flags), 0, 0.0, 7.25, 2**40),
    ]
    house.put(*put)
    house.engine.count_attempt(replace(put[0], attempts=3))
    put[0] = replace(put[0], attempts=3)
    await durable(house.engine)
    assert house.engine.stored("jöbs") == put
    assert house.reopen().stored("jöbs") == put
    assert (await house.kill()).stored("jöbs") == put


async def test_a_message_is_kept_under_the_name_of_its_queue(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.put(Stored("jobs", 1, Message("elsewhere/altogether", b"x", op=Op.PUBLISH)))
    await durable(house.engine)
    for engine in (house.engine, house.reopen()):
        (found,) = engine.stored("jobs")
        assert (found.message.address, found.message.op) == ("jobs", Op.ENQUEUE)


async def test_messages_come_in_the_order_of_their_sequences(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.engine.declare(QueueSettings("other"))
    house.put(*map(stored, (1, 3, 2, 300, 20, 5000)))
    house.put(stored(5, queue="other"))
    await durable(house.engine)
    assert sequences(house.engine) == [1, 2, 3, 20, 300, 5000]
    assert sequences(house.reopen()) == [1, 2, 3, 20, 300, 5000]


async def test_a_long_queue_is_found_again(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    for sequence in range(1, 5001):
        house.put(stored(sequence, b"%d" % sequence))
        if sequence % 777 == 0:
            await durable(house.engine)
    for sequence in (1, 1023, 1024, 1025, 2500, 5000):
        house.engine.drop("jobs", sequence)
    house.engine.checkpoint()
    wanted = [b"%d" % k for k in range(1, 5001) if k not in (1, 1023, 1024, 1025, 2500, 5000)]
    assert payloads(await house.kill()) == wanted
    assert payloads(house.reopen()) == wanted


@pytest.mark.parametrize("wait", [False, True])
async def test_a_dropped_message_is_gone(house: House, wait: bool) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.put(*map(stored, (1, 2, 3)))
    if wait:
        await durable(house.engine)
    house.engine.drop("jobs", 2)
    await durable(house.engine)
    assert sequences(house.engine) == [1, 3]
    assert sequences(house.reopen()) == [1, 3]


@pytest.mark.parametrize("wait", [False, True])
async def test_attempts_are_kept(house: House, wait: bool) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.put(stored(1, b"x"))
    if wait:
        await durable(house.engine)
    house.engine.count_attempt(replace(stored(1, b"x"), attempts=1))
    house.engine.count_attempt(replace(stored(1, b"x"), attempts=2))
    assert house.reopen().stored("jobs")[0].attempts == 2
    house.engine.checkpoint()
    assert (await house.kill()).stored("jobs")[0].attempts == 2


async def test_counting_an_attempt_brings_nothing_back(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.put(stored(1))
    await durable(house.engine)
    house.engine.drop("jobs", 1)
    house.engine.count_attempt(replace(stored(1), attempts=1))
    house.engine.count_attempt(replace(stored(2), attempts=1))
    await durable(house.engine)
    assert sequences(house.engine) == []
    house.put(stored(3))
    assert [(one.sequence, one.attempts) for one in house.reopen().stored("jobs")] == [(3, 0)]


async def test_a_queue_that_is_declared_again_is_empty(house: House) -> None:
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    house.put(stored(1, b"old"))
    engine.remember_id("jobs", "m1", LONG)
    await durable(engine)
    house.put(stored(2, b"old"))
    engine.remember_id("jobs", "m2", LONG)
    engine.remove("jobs")
    engine.declare(QueueSettings("jobs"))
    assert sequences(engine) == []
    assert list(engine.remembered_ids("jobs")) == []
    house.put(stored(1, b"new"))
    await durable(engine)
    assert payloads(engine) == [b"new"]
    assert payloads(house.reopen()) == [b"new"]
    assert list(house.engine.remembered_ids("jobs")) == []


async def test_what_is_done_to_a_queue_that_is_not_there(house: House) -> None:
    with pytest.raises(EngineError, match="no queue jobs"):
        house.put(stored(1))
    with pytest.raises(EngineError, match="no queue jobs"):
        house.engine.stored("jobs")
    house.engine.drop("jobs", 1)
    house.engine.count_attempt(stored(1))
    house.engine.remove("jobs")
    assert house.engine.next_sequence("jobs") == 1


async def test_a_sequence_is_never_given_out_twice(house: House) -> None:
    # decision 51
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    assert engine.next_sequence("jobs") == 1
    for sequence in range(1, 3001):
        house.put(stored(sequence))
        engine.drop("jobs", sequence)
    following = house.reopen().next_sequence("jobs")
    assert following >= 3001
    assert (await house.kill()).next_sequence("jobs") > following  # it may have been given out
    house.engine.checkpoint()
    following = house.engine.next_sequence("jobs")
    assert (await house.kill()).next_sequence("jobs") > following


async def test_ids_are_remembered_the_oldest_first(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    for number, identity in enumerate(["b", "a", "ü\0\ud800", "b"]):
        house.engine.remember_id("jobs", identity, LONG + number)
    wanted = [("a", LONG + 1), ("ü\0\ud800", LONG + 2), ("b", LONG + 3)]
    assert list(house.reopen().remembered_ids("jobs")) == wanted
    house.engine.checkpoint()
    assert list((await house.kill()).remembered_ids("jobs")) == wanted


async def test_ids_whose_time_is_up_are_forgotten(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.engine.remember_id("jobs", "old", 1000.0)
    await durable(house.engine)
    house.engine.remember_id("jobs", "new", LONG)
    await durable(house.engine)
    assert list(house.engine.remembered_ids("jobs")) == [("new", LONG)]


async def test_a_message_may_move_to_another_queue(house: House) -> None:
    engine = house.engine
    for queue in ("jobs", "jobs/$dead", "far"):
        engine.declare(QueueSettings(queue))
    house.put(stored(1, b"one"), stored(2, b"two"))
    await durable(engine)
    for sequence, target in ((1, "jobs/$dead"), (2, "far")):
        house.put(stored(1, b"moved", target))
        engine.drop("jobs", sequence)
    await durable(engine)
    for found in (engine, house.reopen(), await house.kill()):
        assert payloads(found) == []
        assert payloads(found, "jobs/$dead") == payloads(found, "far") == [b"moved"]


async def test_half_a_surrogate_is_no_reason_to_lose_a_message(house: House) -> None:
    house.engine.declare(QueueSettings("jobs"))
    house.put(Stored("jobs", 1, Message("jobs", b"x", headers={"a": "\ud800b"})))
    await durable(house.engine)
    (found,) = house.engine.stored("jobs")
    assert found.message.headers == {"a": "?b"}
    with pytest.raises(EngineError):
        house.engine.declare(QueueSettings("\ud800"))
    with pytest.raises(EngineError):
        house.engine.write_entry(Entry("a\ud800", 1, b""))


async def test_large_messages_survive(house: House) -> None:
    large = bytes(range(256)) * (5 << 12)  # 5 MiB
    house.engine.declare(QueueSettings("jobs"))
    for number in (1, 2, 3):
        house.put(stored(number, large))
    house.engine.write_entry(Entry("large", 1, large))
    await durable(house.engine)
    assert payloads(house.reopen()) == [large] * 3
    assert entries(house.engine) == [Entry("large", 1, large)]


# Checkpoints


async def test_a_checkpoint_has_everything(house: House) -> None:
    engine = house.engine
    for queue in ("jobs", "jobs/$dead", "other"):
        engine.declare(QueueSettings(queue, max_deliveries=4))
        house.put(*(stored(k, b"%d" % k, queue) for k in range(1, 100)))
        engine.remember_id(queue, "seen", LONG)
    for k in range(300):
        engine.write_entry(Entry(f"k/{k}", k + 1, b"v" * k if k % 3 else None, LONG))
    await durable(engine)
    wanted = (
        entries(engine),
        {one.name: engine.stored(one.name) for one in engine.queues()},
        engine.queues(),
    )
    for _ in range(3):
        engine.checkpoint()
        assert sum(one.since_checkpoint for one in engine.journal.positions()) < 300_000
        engine = await house.kill()
        found = {one.name: engine.stored(one.name) for one in engine.queues()}
        assert (entries(engine), found) == wanted[:2]
        assert sorted(engine.queues(), key=str) == sorted(wanted[2], key=str)
        assert [list(engine.remembered_ids(one)) for one in found] == [[("seen", LONG)]] * 3


async def test_what_changes_while_a_checkpoint_is_written_counts(house: House) -> None:
    """A change comes behind the parts of the state that were collected before it."""
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    house.put(*map(stored, range(1, 5)))
    engine.write_entry(Entry("k", 1, b"old"))
    await durable(engine)
    for partition in range(PARTITIONS):
        engine._begin_checkpoint(partition)
    for _ in range(10):
        engine._write_parts()  # as the timer does it
        first = sequences(engine)[0]
        engine.drop("jobs", first)
        house.put(stored(engine.next_sequence("jobs")))
        revision = entries(engine)[0].revision + 1
        engine.write_entry(Entry("k", revision, b"%d" % revision))
        await durable(engine)
    left = sequences(engine)
    for found in (engine, await house.kill(), house.reopen()):
        assert sequences(found) == left
        assert entries(found) == [Entry("k", 11, b"11")]


async def test_a_removed_queue_does_not_come_back_with_a_checkpoint(house: House) -> None:
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    house.put(*map(stored, range(1, 5)))
    await durable(engine)
    for partition in range(PARTITIONS):
        engine._begin_checkpoint(partition)
    engine._write_parts()
    engine.remove("jobs")
    await durable(engine)
    engine.checkpoint()
    assert (await house.kill()).queues() == []
    house.engine.declare(QueueSettings("jobs"))
    assert sequences(house.engine) == []


async def test_checkpoints_are_written_by_themselves(
    tmp_path: Path, captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirelake.journal.engine.PART_EVERY", 0.001)
    journal = FilesJournal(tmp_path / "data", partitions=1, segment_bytes=100_000)
    loop = asyncio.get_running_loop()
    engine = Engine(journal, loop=loop, checkpoint_bytes=20_000)
    engine.declare(QueueSettings("jobs"))
    for sequence in range(1, 3000):
        engine.put(stored(sequence, b"x" * 10), captured=captured)
        if sequence > 20:
            engine.drop("jobs", sequence - 20)
        if sequence % 5 == 0:
            await durable(engine)
            await asyncio.sleep(0)
    (position,) = journal.positions()
    assert position.since_checkpoint < 120_000
    assert journal._checkpoint(0) > 1000
    await durable(engine)
    assert len(sequences(engine)) == 20
    engine.close()


# The log


async def test_what_was_appended_can_be_read_when_it_is_durable(engine: Engine) -> None:
    messages = [Message(f"house/{k % 7}", b"%d" % k) for k in range(100)]
    engine.append(table_of(*messages), None, 1_000_000, b"me")
    engine.append(table_of(*messages), array("i", [3, 5]), 2_000_000, b"")
    await durable(engine)
    assert engine.backlog == 0
    found: dict[str, list[bytes]] = {}
    for position in engine.positions():
        rows = rows_of(engine, position.partition)
        assert rows["offset"].to_pylist() == list(range(position.first, position.next))
        for address, payload in zip(
            rows["address"].to_pylist(), rows["payload"].to_pylist(), strict=True
        ):
            assert engine.home(address) == position.partition
            found.setdefault(address, []).append(payload)
    expected: dict[str, list[bytes]] = {}
    for message in [*messages, messages[3], messages[5]]:
        expected.setdefault(message.address, []).append(message.payload)
    assert found == expected


async def test_a_partition_knows_its_times(engine: Engine) -> None:
    address = next(f"a{k}" for k in range(99) if engine.home(f"a{k}") == 1)
    for moment in (5_000_000, 6_000_000):
        engine.append(table_of(Message(address, b"x")), None, moment, b"")
        await durable(engine)
    empty, one, _ = engine.positions()
    assert (one.first, one.next) == (0, 2)
    assert (one.first_time, one.last_time) == (5_000_000, 6_000_000)
    assert one.bytes > 0
    assert (empty.first, empty.next) == (0, 0)


async def test_offsets_go_on_where_they_were(house: House) -> None:
    partition = house.engine.home("a")
    for turn in range(3):
        house.engine.append(table_of(Message("a", b"%d" % turn)), None, turn, b"")
        rows = rows_of(house.reopen() if turn % 2 else await house.kill(), partition)
        assert rows["offset"].to_pylist() == list(range(turn + 1))
        assert rows["payload"].to_pylist() == [b"%d" % k for k in range(turn + 1)]


async def test_only_what_is_captured_is_in_the_log(house: House, captured: bool) -> None:
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    engine.write(Message("jobs", b"before", op=Op.PUBLISH, dialect="mfp"), 5)
    house.put(stored(1, b"queued"))
    engine.append(table_of(Message("jobs", b"after")), None, 6, b"")
    await durable(engine)
    wanted = [b"before", b"queued", b"after"] if captured else [b"before", b"after"]
    for found in (engine, house.reopen()):
        assert rows_of(found, engine.home("jobs"))["payload"].to_pylist() == wanted
        assert payloads(found) == [b"queued"]


async def test_places_are_those_that_rows_get_when_they_are_appended_next(engine: Engine) -> None:
    messages = [Message(op=Op.PUBLISH, address=f"a/{n % 7}", payload=b"%d" % n) for n in range(40)]
    table = table_of(*messages)
    told: dict[bytes, tuple[int, int]] = {}
    for rows in (range(10), range(10, 40, 3), range(11, 40, 3)):
        places = engine.places(table, rows)
        told |= {messages[row].payload: place for row, place in zip(rows, places, strict=True)}
        engine.append(table, array("i", rows), 1, b"")
    await durable(engine)
    kept = {
        payload: (position.partition, offset)
        for position in engine.positions()
        for payload, offset in zip(
            *(
                rows_of(engine, position.partition)[name].to_pylist()
                for name in ("payload", "offset")
            ),
            strict=True,
        )
    }
    assert kept == told
    with pytest.raises(IndexError):
        engine.places(table, [40])


async def test_the_log_is_read_by_other_threads_while_it_grows(engine: Engine) -> None:
    partition = engine.home("a")
    done = threading.Event()
    seen: list[int] = []
    wrong: list[object] = []

    def reading() -> None:
        while True:
            last = done.is_set()
            rows = rows_of(engine, partition)
            seen.append(rows.num_rows)
            if rows["offset"].to_pylist() != list(range(rows.num_rows)):
                wrong.append(rows)
            if last:
                return

    reader = threading.Thread(target=reading)
    reader.start()
    try:
        for turn in range(50):
            engine.append(table_of(*[Message("a", b"x")] * 20), None, turn, b"")
            await durable(engine)
    finally:
        done.set()
        reader.join()
    assert not wrong
    assert seen == sorted(seen)
    assert seen[-1] == 1000


async def test_without_capture_there_is_no_log(tmp_path: Path) -> None:
    engine = Engine.on_disk(tmp_path / "data", capture=False)
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"x"), captured=True)
    engine.write(Message("a", b"x"), 1)
    engine.append(table_of(Message("a", b"x")), None, 1, b"")
    await durable(engine)
    assert (engine.partitions, engine.log_id, engine.positions()) == (0, "", [])
    assert list(engine.read(0, 0, 10)) == []
    assert payloads(engine) == [b"x"]
    engine.close()
    engine = Engine.on_disk(tmp_path / "data")  # and from now on there is one
    assert sum(one.next for one in engine.positions()) == 0
    assert payloads(engine) == [b"x"]
    engine.close()


# Retention


async def test_rows_that_a_queue_needs_outlive_the_log(tmp_path: Path) -> None:
    journal = FilesJournal(tmp_path / "data", partitions=1, segment_bytes=2000, tidy_every=0)
    engine = Engine(journal, loop=asyncio.get_running_loop())
    engine.retain([Rule("#", max_age=10.0)])
    engine.declare(QueueSettings("jobs"))
    for sequence in range(1, 101):
        one = stored(sequence, b"%d" % sequence)
        message = with_fields(one.message, timestamp=1_000_000)
        engine.put(replace(one, message=message), captured=True)
        told = Message("k", b"told %d" % sequence, op=Op.UPDATE)
        engine.write_entry(Entry("k", sequence, told.payload), told=told, timestamp=1_000_000)
        await durable(engine)
    for sequence in range(1, 101):
        if sequence % 10:
            engine.drop("jobs", sequence)
    await durable(engine)
    for _ in range(2):
        journal.tidy(time.time())
        engine.checkpoint()
    assert [(one.first, one.next) for one in engine.positions()] == [(200, 200)]
    wanted = [b"%d" % k for k in range(10, 101, 10)]
    assert payloads(engine) == wanted
    engine.close()
    engine = Engine.on_disk(tmp_path / "data", partitions=1, segment_bytes=2000)
    assert engine.damage == []
    assert payloads(engine) == wanted
    assert entries(engine) == [Entry("k", 100, b"told 100")]
    for sequence in range(10, 101, 10):
        engine.drop("jobs", sequence)
    engine.checkpoint()
    assert isinstance(engine.journal, FilesJournal)
    journal = engine.journal
    assert sum(len(one.entries[Space.KEPT][0]) for one in journal._segments) > 0
    engine.write_entry(Entry("l", 1, b"x" * 2000))  # another segment follows
    engine.write_entry(Entry("l", 2, b"x" * 2000))
    await durable(engine)
    engine.checkpoint()
    journal.tidy(time.time())
    assert sum(len(one.entries[Space.KEPT][0]) for one in journal._segments) == 0
    engine.close()


# Durability


async def test_actions_run_in_the_order_they_were_given(house: House) -> None:
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    ran: list[int] = []
    for number in range(300):
        if number % 3:
            house.put(stored(number))
        engine.after(lambda number=number: ran.append(number), number % 5)  # type: ignore[misc]  # a default
        if number % 7 == 0:
            await asyncio.sleep(0)
    await durable(engine)
    assert ran == list(range(300))


async def test_actions_run_on_the_thread_of_the_loop(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    threads: list[int] = []
    engine.after(lambda: threads.append(threading.get_ident()))
    await durable(engine)
    assert threads == [threading.get_ident()]


async def test_an_action_may_write_and_wait_again(house: House) -> None:
    engine = house.engine
    engine.declare(QueueSettings("jobs"))
    done = asyncio.get_running_loop().create_future()

    def drop() -> None:
        engine.drop("jobs", 1)
        engine.after(lambda: done.set_result(None))

    house.put(stored(1))
    engine.after(drop)
    await done
    assert sequences(engine) == []


async def test_an_engine_can_be_closed_twice(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.close()
    engine.close()


# Against a naive model

NAMES = st.sampled_from(["jobs", "jobs/$dead", "ö", "b"])
KEYS = st.sampled_from(["a", "a/b", "☃"])
TIMES = st.integers(0, 10**15).map(lambda microseconds: microseconds / 1e6)
MACHINES = ("memory", "alone", "disk", "checkpoints", "retention")


class EngineMachine(RuleBasedStateMachine):
    """An engine does what a few dictionaries do, closed, killed and opened again at any time."""

    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.engine: Engine = Engine.in_memory()
        self.queues: dict[str, QueueSettings] = {}
        self.messages: dict[str, dict[int, Stored]] = {}
        self.ids: dict[str, dict[str, float]] = {}
        self.next: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}
        self.log: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
        self.count = 0

    @initialize()
    def begin(self) -> None:
        self.open()

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def open(self) -> None:
        if self.kind == "memory":
            self.engine = Engine.in_memory(partitions=PARTITIONS)
            return
        journal = FilesJournal(
            self.data,
            partitions=PARTITIONS,
            segment_bytes=2000,
            tidy_every=0,
            rules=[Rule("#", max_age=0.0)] if self.kind == "retention" else [],
        )
        self.engine = Engine(
            journal,
            loop=None if self.kind == "alone" else self.loop,
            aside=self.data,
            checkpoint_bytes=0 if self.kind == "checkpoints" else 1 << 20,
        )

    @rule(name=NAMES, timeout=st.sampled_from([1.0, 2.5]))
    def declare(self, name: str, timeout: float) -> None:
        wanted = QueueSettings(name, ack_timeout=timeout)
        self.engine.declare(wanted)
        self.queues[name] = wanted
        self.messages.setdefault(name, {})
        self.ids.setdefault(name, {})
        self.next.setdefault(name, 1)

    @precondition(lambda self: self.queues)
    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.engine.remove(name)
        for kept in (self.queues, self.messages, self.ids, self.next):
            kept.pop(name, None)

    @precondition(lambda self: self.queues)
    @rule(
        data=st.data(),
        payload=st.binary(max_size=20),
        expires=TIMES | st.just(0.0),
        due=TIMES | st.just(0.0),
        priority=st.integers(-1, 1),
        text=st.booleans(),
        captured=st.booleans(),
        count=st.integers(1, 40),
    )
    def put(
        self,
        data: st.DataObject,
        payload: bytes,
        expires: float,
        due: float,
        priority: int,
        text: bool,
        captured: bool,
        count: int,
    ) -> None:
        name = data.draw(st.sampled_from(sorted(self.queues)))
        assert self.engine.next_sequence(name) >= self.next[name]
        for _ in range(count):
            sequence = self.engine.next_sequence(name)
            message = Message(
                name,
                payload,
                priority=priority,
                headers={"n": str(sequence)},
                timestamp=1 + self.count,
                flags=Flag.TEXT if text else Flag(0),
                op=Op.ENQUEUE,
            )
            self.keep(Stored(name, sequence, message, 0, expires, due, sequence % 3), captured)

    def keep(self, one: Stored, captured: bool) -> None:
        self.count += 1
        self.engine.put(one, captured=captured)
        self.messages[one.queue][one.sequence] = one
        self.next[one.queue] = one.sequence + 1
        if captured:
            self.logged(one.queue, one.message.payload)

    def logged(self, address: str, payload: bytes) -> None:
        self.log[home(address.encode(), PARTITIONS)].append((address, payload))

    @precondition(lambda self: any(self.messages.values()))
    @rule(data=st.data(), count=st.integers(1, 30))
    def drop(self, data: st.DataObject, count: int) -> None:
        one = self.draw_message(data)
        for sequence in sorted(self.messages[one.queue]):
            if one.sequence <= sequence < one.sequence + count:
                self.engine.drop(one.queue, sequence)
                del self.messages[one.queue][sequence]

    @precondition(lambda self: any(self.messages.values()))
    @rule(data=st.data())
    def count_attempt(self, data: st.DataObject) -> None:
        one = self.draw_message(data)
        counted = replace(one, attempts=one.attempts + 1)
        self.engine.count_attempt(counted)
        self.messages[one.queue][one.sequence] = counted

    @precondition(lambda self: any(self.messages.values()))
    @rule(data=st.data(), name=NAMES, captured=st.booleans())
    def move(self, data: st.DataObject, name: str, captured: bool) -> None:
        self.declare(name, 1.0)
        one = self.draw_message(data)
        message = with_fields(one.message, address=name)
        sequence = self.engine.next_sequence(name)
        moved = replace(one, queue=name, sequence=sequence, message=message, attempts=0)
        self.keep(moved, captured)
        self.engine.drop(one.queue, one.sequence)
        del self.messages[one.queue][one.sequence]

    @precondition(lambda self: self.queues)
    @rule(data=st.data(), identity=st.sampled_from(["x", "y", "\ud800"]))
    def remember_id(self, data: st.DataObject, identity: str) -> None:
        name = data.draw(st.sampled_from(sorted(self.queues)))
        self.count += 1
        self.engine.remember_id(name, identity, LONG + self.count)
        self.ids[name].pop(identity, None)
        self.ids[name][identity] = LONG + self.count

    @rule(
        key=KEYS,
        value=st.none() | st.binary(max_size=10),
        expires=TIMES | st.just(0.0),
        told=st.booleans(),
    )
    def write_entry(self, key: str, value: bytes | None, expires: float, told: bool) -> None:
        old = self.entries.get(key)
        entry = Entry(key, old.revision + 1 if old else 1, value, expires)
        if told:
            message = Message(key, value or b"", op=Op.UPDATE)
            self.engine.write_entry(entry, told=message, timestamp=1)
            self.logged(key, value or b"")
        else:
            self.engine.write_entry(entry)
        self.entries[key] = entry

    @rule(key=KEYS)
    def drop_entry(self, key: str) -> None:
        self.engine.drop_entry(key)
        self.entries.pop(key, None)

    @rule(address=NAMES, payload=st.binary(max_size=20), count=st.integers(1, 300))
    def append(self, address: str, payload: bytes, count: int) -> None:
        self.engine.append(table_of(*[Message(address, payload)] * count), None, 1, b"")
        for _ in range(count):
            self.logged(address, payload)

    @rule()
    def let_a_turn_pass(self) -> None:
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule()
    def wait_until_durable(self) -> None:
        self.loop.run_until_complete(durable(self.engine))

    @rule()
    def checkpoint(self) -> None:
        self.engine.checkpoint()

    @rule(partition=st.integers(0, PARTITIONS - 1))
    def begin_checkpoint(self, partition: int) -> None:
        """Others change what it says while it is written."""
        self.engine._begin_checkpoint(partition)

    @rule()
    def write_a_part_of_checkpoints(self) -> None:
        self.engine._write_parts()

    @rule()
    def tidy(self) -> None:
        if isinstance(self.engine.journal, FilesJournal):
            self.engine.journal.tidy(time.time())

    @rule()
    def close_and_open(self) -> None:
        if self.kind == "memory":
            self.engine.end_turn()
            self.engine = Engine(self.engine.journal)
        else:
            self.engine.close()
            self.open()
        assert self.engine.damage == []

    @rule()
    def die_when_durable(self) -> None:
        """Go on with the files as they are, without closing."""
        if self.kind != "memory":
            self.wait_until_durable()
            copy = self.folder / "copy"
            shutil.copytree(self.data, copy)
            self.engine.close()
            shutil.rmtree(self.data)
            copy.rename(self.data)
            self.open()
            assert self.engine.damage == []

    @rule()
    def compare(self) -> None:
        self.wait_until_durable()
        assert sorted(self.engine.queues(), key=lambda one: one.name) == sorted(
            self.queues.values(), key=lambda one: one.name
        )
        for name in self.queues:
            wanted = sorted(self.messages[name].values(), key=lambda one: one.sequence)
            assert self.engine.stored(name) == wanted
            assert list(self.engine.remembered_ids(name)) == list(self.ids[name].items())
        assert {entry.key: entry for _, entry in self.engine.entries()} == self.entries
        for position in self.engine.positions():
            wanted_rows = self.log[position.partition]
            assert position.next == len(wanted_rows)
            if self.kind != "retention":
                assert position.first == 0
            rows = rows_of(self.engine, position.partition)
            offsets = rows["offset"].to_pylist()
            assert offsets == list(range(position.first, position.next))
            found = zip(rows["address"].to_pylist(), rows["payload"].to_pylist(), strict=True)
            assert list(found) == wanted_rows[position.first :]
        assert self.engine.damage == []

    @invariant()
    def sequences_never_go_back(self) -> None:
        for name, following in self.next.items():
            assert self.engine.next_sequence(name) >= following

    def draw_message(self, data: st.DataObject) -> Stored:
        everything = [one for queue in self.messages.values() for one in queue.values()]
        return data.draw(st.sampled_from(everything))

    def teardown(self) -> None:
        self.compare()
        self.close_and_open()
        self.compare()
        self.engine.close()
        self.loop.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.soak)])
def test_an_engine_does_what_the_model_does(kind: str, examples: int) -> None:
    machine = type("Machine", (EngineMachine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
