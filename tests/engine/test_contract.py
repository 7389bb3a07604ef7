"""What every engine does: the same tests over all of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import zlib
from array import array
from collections.abc import Callable, Iterator
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

from wirelake.engine.arrow_stream import END, PREAMBLE
from wirelake.engine.base import Engine, Entry, QueueSettings, Stored
from wirelake.engine.memory import MemoryEngine
from wirelake.engine.sqlite import SqliteEngine
from wirelake.errors import EngineError
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable

KINDS = ("memory", "sqlite")
PARTITIONS = 3
LONG = 4e9  # a time far away

#: A file system without a disk: the model does not care, and it is opened hundreds of times.
MEMORY = Path("/dev/shm")

Open = Callable[[], Engine]


@pytest.fixture(params=KINDS)
def open_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens an engine, always the same; what is left open is closed."""
    opened: list[Engine] = []

    def opening() -> Engine:
        if request.param == "memory":
            engine: Engine = opened[0] if opened else MemoryEngine(partitions=PARTITIONS)
        else:
            engine = SqliteEngine(tmp_path / "data", partitions=PARTITIONS)
        opened.append(engine)
        return engine

    yield opening
    for engine in opened:
        engine.close()


@pytest.fixture
async def engine(open_engine: Open) -> Engine:
    return open_engine()


async def durable(engine: Engine) -> None:
    """Wait until all that was written is durable."""
    done = asyncio.get_running_loop().create_future()
    engine.after(lambda: done.set_result(None))
    await done


def stored(sequence: int, payload: bytes = b"", queue: str = "jobs") -> Stored:
    return Stored(queue, sequence, Message(address=queue, payload=payload, id=f"m{sequence}"))


def sequences(engine: Engine, queue: str = "jobs") -> list[int]:
    return [one.sequence for one in engine.stored(queue)]


def table_of(*messages: Message) -> FrameTable:
    table = FrameTable(max(1, len(messages)))
    table.fill(messages, "kobold-3")
    return table


def rows_of(engine: Engine, partition: int, start: int = 0, stop: int = 1 << 60) -> pa.Table:
    """What the log holds, put together as a reader would."""
    batches = b"".join(bytes(batch.ipc) for batch in engine.read(partition, start, stop))
    return pa.ipc.open_stream(PREAMBLE + batches + END).read_all()


# The data store


async def test_a_key_is_there_as_it_was_written_last(engine: Engine) -> None:
    engine.write_entry(Entry("house/door", 1, b"open"))
    await durable(engine)
    engine.write_entry(Entry("house/door", 2, b"shut"))
    engine.write_entry(Entry("house/door", 3, b"ajar", 1234.5))
    engine.write_entry(Entry("house/läuft", 1, b""))
    assert sorted(engine.entries(), key=lambda entry: entry.key) == [
        Entry("house/door", 3, b"ajar", 1234.5),
        Entry("house/läuft", 1, b""),
    ]


async def test_a_deleted_key_keeps_its_revision(open_engine: Open) -> None:
    engine = open_engine()
    engine.write_entry(Entry("a", 7, b"x"))
    await durable(engine)
    engine.write_entry(Entry("a", 8, None))
    await durable(engine)
    engine.close()
    assert list(open_engine().entries()) == [Entry("a", 8, None)]


# Queues


async def test_a_queue_keeps_its_settings(open_engine: Open) -> None:
    engine = open_engine()
    wanted = QueueSettings("jobs", mode="pull", ack_timeout=1.5, max_deliveries=9, max_bytes=77)
    engine.declare(QueueSettings("jobs"))
    await durable(engine)
    engine.declare(wanted)
    engine.close()
    assert list(open_engine().queues()) == [wanted]


async def test_every_field_of_a_message_survives(open_engine: Open) -> None:
    engine = open_engine()
    engine.declare(QueueSettings("jobs"))
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
        flags=Flag.ACK | Flag.MORE,
        timestamp=1_700_000_000_123_456,
        dialect="tmq-1.01",
        op=Op.ENQUEUE,
    )
    put = [
        Stored("jobs", 1, full, 3, 1_700_000_000.123456, 1_700_000_001.5),
        Stored("jobs", 2, Message()),
    ]
    for one in put:
        engine.put(one)
    await durable(engine)
    engine.close()
    assert list(open_engine().stored("jobs")) == put


async def test_messages_come_in_the_order_of_their_sequences(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.declare(QueueSettings("other"))
    for sequence in (1, 3, 2, 300, 20):
        engine.put(stored(sequence))
    engine.put(stored(5, queue="other"))
    await durable(engine)
    assert sequences(engine) == [1, 2, 3, 20, 300]


@pytest.mark.parametrize("wait", [False, True])
async def test_a_dropped_message_is_gone(engine: Engine, wait: bool) -> None:
    engine.declare(QueueSettings("jobs"))
    for sequence in (1, 2, 3):
        engine.put(stored(sequence))
    if wait:
        await durable(engine)
    engine.drop("jobs", 2)
    await durable(engine)
    assert sequences(engine) == [1, 3]


async def test_a_message_put_again_is_there_once_and_as_it_was_put_last(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"first"))
    await durable(engine)
    engine.put(stored(1, b"second"))
    assert [one.message.payload for one in engine.stored("jobs")] == [b"second"]
    engine.put(stored(1, b"third"))
    engine.drop("jobs", 1)
    await durable(engine)
    assert sequences(engine) == []


@pytest.mark.parametrize("wait", [False, True])
async def test_attempts_are_kept(open_engine: Open, wait: bool) -> None:
    engine = open_engine()
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"x"))
    if wait:
        await durable(engine)
    engine.count_attempt(replace(stored(1, b"x"), attempts=1))
    engine.count_attempt(replace(stored(1, b"x"), attempts=2))
    engine.close()
    assert list(open_engine().stored("jobs")) == [replace(stored(1, b"x"), attempts=2)]


async def test_counting_an_attempt_brings_nothing_back(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1))
    await durable(engine)
    engine.drop("jobs", 1)
    engine.count_attempt(replace(stored(1), attempts=1))
    engine.count_attempt(replace(stored(2), attempts=1))
    await durable(engine)
    assert sequences(engine) == []


async def test_a_queue_that_is_declared_again_is_empty(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.put(stored(1, b"old"))
    engine.remember_id("jobs", "m1", LONG)
    await durable(engine)
    engine.remove("jobs")
    engine.declare(QueueSettings("jobs"))
    assert sequences(engine) == []
    assert list(engine.remembered_ids("jobs")) == []
    engine.put(stored(1, b"new"))
    await durable(engine)
    assert [one.message.payload for one in engine.stored("jobs")] == [b"new"]


async def test_what_is_done_to_a_queue_that_is_not_there(engine: Engine) -> None:
    with pytest.raises(EngineError, match="no queue jobs"):
        engine.put(stored(1))
    engine.drop("jobs", 1)
    engine.count_attempt(stored(1))
    engine.remove("jobs")
    assert sequences(engine) == []
    assert engine.next_sequence("jobs") == 1


async def test_a_sequence_is_never_given_out_twice(open_engine: Open) -> None:
    engine = open_engine()
    engine.declare(QueueSettings("jobs"))
    assert engine.next_sequence("jobs") == 1
    for sequence in range(1, 3001):
        engine.put(stored(sequence))
        engine.drop("jobs", sequence)
    engine.close()
    assert open_engine().next_sequence("jobs") == 3001


async def test_ids_are_remembered_the_oldest_first(open_engine: Open) -> None:
    engine = open_engine()
    engine.declare(QueueSettings("jobs"))
    for number, identity in enumerate(["b", "a", "ü\0", "b"]):
        engine.remember_id("jobs", identity, LONG + number)
    engine.close()
    assert list(open_engine().remembered_ids("jobs")) == [
        ("b", LONG),
        ("a", LONG + 1),
        ("ü\0", LONG + 2),
        ("b", LONG + 3),
    ]


async def test_ids_whose_time_is_up_are_forgotten(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.remember_id("jobs", "old", 1000.0)
    await durable(engine)
    engine.remember_id("jobs", "new", LONG)
    await durable(engine)
    assert list(engine.remembered_ids("jobs")) == [("new", LONG)]


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
            assert zlib.crc32(address.encode()) % PARTITIONS == position.partition
            found.setdefault(address, []).append(payload)
    expected: dict[str, list[bytes]] = {}
    for message in [*messages, messages[3], messages[5]]:
        expected.setdefault(message.address, []).append(message.payload)
    assert found == expected


async def test_a_partition_knows_its_times(engine: Engine) -> None:
    address = next(f"a{k}" for k in range(99) if zlib.crc32(b"a%d" % k) % PARTITIONS == 1)
    for time in (5_000_000, 6_000_000):
        engine.append(table_of(Message(address, b"x")), None, time, b"")
        await durable(engine)
    empty, one, _ = engine.positions()
    assert (one.first, one.next) == (0, 2)
    assert (one.first_time, one.last_time) == (5_000_000, 6_000_000)
    assert one.bytes > 0
    assert (empty.first, empty.next) == (0, 0)


async def test_offsets_go_on_where_they_were(open_engine: Open) -> None:
    engine = open_engine()
    engine.append(table_of(Message("a", b"1")), None, 1, b"")
    engine.close()
    engine = open_engine()
    engine.append(table_of(Message("a", b"2")), None, 2, b"")
    await durable(engine)
    rows = rows_of(engine, zlib.crc32(b"a") % PARTITIONS)
    assert rows["offset"].to_pylist() == [0, 1]
    assert rows["payload"].to_pylist() == [b"1", b"2"]


async def test_the_log_is_read_by_other_threads_while_it_grows(engine: Engine) -> None:
    partition = zlib.crc32(b"a") % PARTITIONS
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


# Durability


async def test_actions_run_in_the_order_they_were_given(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    ran: list[int] = []
    for number in range(300):
        if number % 3:
            engine.put(stored(number))
        engine.after(lambda number=number: ran.append(number))  # type: ignore[misc]  # a default
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


async def test_an_action_may_write_and_wait_again(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    done = asyncio.get_running_loop().create_future()

    def drop() -> None:
        engine.drop("jobs", 1)
        engine.after(lambda: done.set_result(None))

    engine.put(stored(1))
    engine.after(drop)
    await done
    assert sequences(engine) == []


async def test_an_engine_can_be_closed_twice(engine: Engine) -> None:
    engine.declare(QueueSettings("jobs"))
    engine.close()
    engine.close()


# Against a naive model

NAMES = st.sampled_from(["jobs", "jobs/$dead", "ö"])
KEYS = st.sampled_from(["a", "a/b", "☃"])
TIMES = st.integers(0, 10**15).map(lambda microseconds: microseconds / 1e6)


class EngineMachine(RuleBasedStateMachine):
    """An engine does what a few dictionaries do, closed and opened again at any time."""

    kind = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
        self.engine: Engine = MemoryEngine()
        self.queues: dict[str, QueueSettings] = {}
        self.messages: dict[str, dict[int, Stored]] = {}
        self.next: dict[str, int] = {}
        self.entries: dict[str, Entry] = {}

    @initialize()
    def begin(self) -> None:
        self.open()

    def open(self) -> None:
        if self.kind == "sqlite":
            self.engine = SqliteEngine(self.folder / "data", loop=self.loop, capture=False)

    def turn(self) -> None:
        """Let one turn of the loop pass."""
        self.loop.run_until_complete(asyncio.sleep(0))

    @rule(name=NAMES, timeout=st.sampled_from([1.0, 2.5]))
    def declare(self, name: str, timeout: float) -> None:
        wanted = QueueSettings(name, ack_timeout=timeout)
        self.engine.declare(wanted)
        self.queues[name] = wanted
        self.messages.setdefault(name, {})
        self.next.setdefault(name, 1)

    @precondition(lambda self: self.queues)
    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.engine.remove(name)
        for kept in (self.queues, self.messages, self.next):
            kept.pop(name, None)

    @precondition(lambda self: self.queues)
    @rule(data=st.data(), payload=st.binary(max_size=20), expires=TIMES, due=TIMES)
    def put(self, data: st.DataObject, payload: bytes, expires: float, due: float) -> None:
        name = data.draw(st.sampled_from(sorted(self.queues)))
        assert self.engine.next_sequence(name) >= self.next[name]
        sequence = self.engine.next_sequence(name)
        message = Message(name, payload, headers={"n": str(sequence)})
        one = Stored(name, sequence, message, 0, expires, due)
        self.engine.put(one)
        self.messages[name][sequence] = one
        self.next[name] = sequence + 1

    @precondition(lambda self: any(self.messages.values()))
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        one = self.draw_message(data)
        self.engine.drop(one.queue, one.sequence)
        del self.messages[one.queue][one.sequence]

    @precondition(lambda self: any(self.messages.values()))
    @rule(data=st.data())
    def count_attempt(self, data: st.DataObject) -> None:
        one = self.draw_message(data)
        counted = replace(one, attempts=one.attempts + 1)
        self.engine.count_attempt(counted)
        self.messages[one.queue][one.sequence] = counted

    @precondition(lambda self: any(self.messages.values()))
    @rule(data=st.data(), name=NAMES)
    def move(self, data: st.DataObject, name: str) -> None:
        self.declare(name, 1.0)
        one = self.draw_message(data)
        self.engine.drop(one.queue, one.sequence)
        del self.messages[one.queue][one.sequence]
        moved = replace(one, queue=name, sequence=self.engine.next_sequence(name))
        self.engine.put(moved)
        self.messages[name][moved.sequence] = moved
        self.next[name] = moved.sequence + 1

    @rule(key=KEYS, value=st.none() | st.binary(max_size=10), expires=TIMES)
    def write_entry(self, key: str, value: bytes | None, expires: float) -> None:
        old = self.entries.get(key)
        entry = Entry(key, old.revision + 1 if old else 1, value, expires)
        self.engine.write_entry(entry)
        self.entries[key] = entry

    @rule()
    def let_a_turn_pass(self) -> None:
        self.turn()

    @rule()
    def wait_until_durable(self) -> None:
        self.loop.run_until_complete(durable(self.engine))

    @rule()
    def close_and_open(self) -> None:
        if self.kind == "sqlite":
            self.engine.close()
            self.open()

    @rule()
    def crash_when_durable(self) -> None:
        """Go on with the files as they are, without closing."""
        if self.kind == "sqlite":
            self.wait_until_durable()
            old, copy = self.folder / "data", self.folder / "copy"
            shutil.copytree(old, copy)
            self.engine.close()
            shutil.rmtree(old)
            copy.rename(old)
            self.open()
            assert isinstance(self.engine, SqliteEngine)
            assert self.engine.damage == []

    @rule()
    def compare(self) -> None:
        assert sorted(self.engine.queues(), key=lambda one: one.name) == sorted(
            self.queues.values(), key=lambda one: one.name
        )
        for name in self.queues:
            assert list(self.engine.stored(name)) == sorted(
                self.messages[name].values(), key=lambda one: one.sequence
            )
        assert {entry.key: entry for entry in self.engine.entries()} == self.entries

    @invariant()
    def sequences_never_go_back(self) -> None:
        for name, following in self.next.items():
            assert self.engine.next_sequence(name) >= following

    def draw_message(self, data: st.DataObject) -> Stored:
        everything = [one for queue in self.messages.values() for one in queue.values()]
        return data.draw(st.sampled_from(everything))

    def teardown(self) -> None:
        self.compare()
        self.engine.close()
        self.loop.close()
        shutil.rmtree(self.folder)


@pytest.mark.parametrize("kind", KINDS)
def test_an_engine_does_what_the_model_does(kind: str) -> None:
    machine = type("Machine", (EngineMachine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=15,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
