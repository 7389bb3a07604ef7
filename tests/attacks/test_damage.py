"""Whatever is found on the disk and cannot be read is set aside and reported; the broker starts."""

from __future__ import annotations

import base64
import json
import logging
import random
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.attacks.broker import Broker, Client, eventually
from tests.journal.samples import commit
from wirelake.http.ledger import Ledger
from wirelake.journal import record
from wirelake.journal.arrow_stream import decode
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Change, QueueChanges, Record, Type, encode_entries
from wirelake.journal.retention import Rule
from wirelake.message import Message, Op

QUEUE = "q/1"
PARTITIONS = 2
MEMORY = Path("/dev/shm")


@dataclass
class Contents:
    """What an engine has, or should have."""

    messages: dict[int, bytes] = field(default_factory=dict)
    keys: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)
    rows: list[dict[int, bytes]] = field(default_factory=lambda: [{} for _ in range(PARTITIONS)])

    @classmethod
    def of(cls, engine: Engine) -> Contents:
        found = cls()
        if any(one.name == QUEUE for one in engine.queues()):
            found.messages = {one.sequence: one.message.payload for one in engine.stored(QUEUE)}
        found.keys = {one.key: (one.revision, one.value) for _, one in engine.entries()}
        for position in engine.positions():
            rows = found.rows[position.partition]
            for batch in engine.read(position.partition, 0, position.next):
                decoded = record_batch(batch.ipc)
                rows.update(zip(decoded["offset"], decoded["payload"], strict=True))
        return found

    def differs(self, other: Contents) -> list[str]:
        """What is not the same."""
        return [
            *(f"message {k}" for k in _differing(self.messages, other.messages)),
            *(f"key {k}" for k in _differing(self.keys, other.keys)),
            *(
                f"row {k} of partition {partition}"
                for partition in range(PARTITIONS)
                for k in _differing(self.rows[partition], other.rows[partition])
            ),
        ]


def _differing(one: Mapping[Any, object], other: Mapping[Any, object]) -> list[Any]:
    return [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]


def record_batch(ipc: bytes | memoryview) -> dict[str, list[Any]]:
    """Offsets and payloads of a batch."""
    rows = decode(ipc)
    return {name: rows.column(name).to_pylist() for name in ("offset", "payload")}


class Original:
    """A data directory as a broker leaves it that was killed, with files of every kind.

    Some segments are complete, some were written again by retention, and the last one is open.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents = Contents()
        live = folder.with_name("live")
        journal = FilesJournal(live, partitions=PARTITIONS, segment_bytes=30_000, tidy_every=0)
        engine = Engine(journal, aside=live)
        engine.declare(QueueSettings(QUEUE, max_deliveries=9))
        chance = random.Random(5)
        for number in range(1, 91):
            self._change(engine, number, chance)
            if number == 40:
                engine.checkpoint()
                journal.rules = [Rule("gone", max_age=1.0)]
                journal.tidy(10.0)
                journal.rules = ()
            if number == 65:
                engine.checkpoint()
        shutil.copytree(live, folder)
        self.contents = Contents.of(engine)
        engine.close()
        shutil.rmtree(live)

    def _change(self, engine: Engine, number: int, chance: random.Random) -> None:
        payload = b"m%d " % number + chance.randbytes(chance.choice([0, 20, 200]))
        message = Message(QUEUE, payload, id=f"i{number}", timestamp=number)
        engine.put(Stored(QUEUE, number, message), captured=number % 2 == 0)
        engine.write(Message("gone", b"x" * 50), 1)
        engine.write(Message(f"topic/{number % 5}", payload), number)
        key, value = f"k/{number % 30}", b"v%d" % number
        told = Message(key, value, op=Op.UPDATE) if number % 3 else None
        engine.write_entry(Entry(key, number, value), told=told, timestamp=number)
        if number % 4 == 0:
            engine.drop(QUEUE, number - 3)
        engine.after(lambda: None)

    def files(self) -> dict[str, list[Path]]:
        """The files by kind."""
        paths = sorted((self.folder / "journal").iterdir())
        again = [path for path in paths if not path.name.endswith("-0.wlj")]
        return {
            "written again": again,
            "complete": [path for path in paths[:-1] if path not in again],
            "open": paths[-1:],
        }


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("original") / "data")


def accidents(path: Path, chance: random.Random) -> Iterator[tuple[str, bytes]]:
    """What may become of a file, without end."""
    whole = path.read_bytes()
    used = len(whole.rstrip(b"\0"))
    marks = [at for at in range(0, used, 16) if whole[at : at + 3] == b"WLJ"]
    used = min(used, marks[-1] + 2000)
    while True:
        made = bytearray(whole)
        at = chance.randrange(used)
        if chance.random() < 0.5:  # in a head, a frame, a header, or just behind
            at = min(used - 1, chance.choice(marks) + chance.randrange(110))
        size = chance.choice([1, 4, 16, 100, 512, 4096])
        match chance.randrange(7):
            case 0 | 1 | 2:
                made[at] ^= 1 << chance.randrange(8)
                yield f"a bit of byte {at}", bytes(made)
            case 3:
                made[at : at + size] = chance.randbytes(len(made[at : at + size]))
                yield f"noise at {at}, {size} bytes", bytes(made)
            case 4:
                made[at : at + size] = bytes(len(made[at : at + size]))
                yield f"zeros at {at}, {size} bytes", bytes(made)
            case 5:
                del made[at : at + size]
                yield f"{size} bytes at {at} are gone", bytes(made)
            case _:
                yield f"cut off at {at}", bytes(made[:at])


@pytest.mark.parametrize("times", [100, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["written again", "complete", "open"])
def test_no_damage_loses_anything_in_silence(
    original: Original, kind: str, times: int, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.CRITICAL, "wirelake.journal")
    files = original.files()[kind]
    assert files
    chance = random.Random(kind)
    every = {path: accidents(path, chance) for path in files}
    folder = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else tmp_path)) / "data"
    told = 0
    for number in range(times):
        path = chance.choice(files)
        what, damaged = next(every[path])
        shutil.copytree(original.folder, folder)
        (folder / "journal" / path.name).write_bytes(damaged)
        try:
            told += check_damaged(original, folder, kind == "open", again=number % 4 == 0)
        except BaseException as error:
            error.add_note(f"{path.name}: {what}")
            raise
        finally:
            shutil.rmtree(folder)
    folder.parent.rmdir()
    assert told > times / 2


def check_damaged(original: Original, folder: Path, may_be_torn: bool, *, again: bool) -> bool:
    """Open a damaged directory, once or twice; return whether it told that something is wrong."""
    engine = Engine.on_disk(folder, partitions=PARTITIONS)
    found = Contents.of(engine)
    damage = engine.damage
    differing = original.contents.differs(found)
    if not may_be_torn:  # the end of the last segment may be cut off without a trace
        assert damage or not differing, f"lost in silence: {differing[:5]}"
    for partition, rows in enumerate(found.rows):
        for offset, payload in rows.items():
            assert original.contents.rows[partition].get(offset, payload) == payload
    for sequence, payload in found.messages.items():
        assert payload.startswith(b"m%d " % sequence)
    assert engine.next_sequence(QUEUE) > 90 or damage or may_be_torn
    # It works, and what was found is found again.
    engine.declare(QueueSettings(QUEUE))
    sequence = engine.next_sequence(QUEUE)
    engine.put(Stored(QUEUE, sequence, Message(QUEUE, b"m%d new" % sequence)), captured=True)
    engine.write_entry(Entry("new", 1, b"new"))
    engine.close()
    if again:
        engine = Engine.on_disk(folder, partitions=PARTITIONS)
        second = Contents.of(engine)
        engine.close()
        assert second.messages == {**found.messages, sequence: b"m%d new" % sequence}
        assert second.keys == {**found.keys, "new": (1, b"new")}
    return bool(damage)


# What has the right checksum, and cannot be decoded all the same


def add(folder: Path, partition: int, *records: Record) -> None:
    """Write records as another version or program could have."""
    journal = FilesJournal(folder, tidy_every=0)
    journal.recover(partition)
    commit(journal, partition, records)
    journal.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of an engine that was closed, with a queue, and the number that it has."""
    data = tmp_path / "data"
    engine = Engine.on_disk(data)
    engine.declare(QueueSettings(QUEUE, max_deliveries=9))
    for number in range(1, 11):
        message = Message(QUEUE, b"m%d" % number, id=f"q{number}")
        engine.put(Stored(QUEUE, number, message), captured=number % 2 == 0)
    engine.write_entry(Entry("k", 1, b"v"))
    engine.close()
    return data


def home(name: str) -> int:
    engine = Engine.in_memory(partitions=4)
    return engine.home(name)


def set_aside(folder: Path) -> list[tuple[str, bytes]]:
    """What was set aside, and its bytes."""
    return [
        (line["what"], base64.b64decode(line["base64"]))
        for file in sorted(folder.glob("undecodable-*.jsonl"))
        for line in map(json.loads, file.read_text().splitlines())
    ]


def opened(folder: Path) -> tuple[list[QueueSettings], list[bytes], list[str]]:
    """The queues, what is in the first, and what was damaged."""
    engine = Engine.on_disk(folder)
    found = [one.message.payload for one in engine.stored(QUEUE)]
    queues, damage = engine.queues(), engine.damage
    engine.close()
    return queues, found, damage


ALL = [b"m%d" % number for number in range(1, 11)]


@pytest.mark.parametrize(
    "text",
    [
        b'{"ack_timeout": null}',
        b'{"name": "q/1", "ack_timeout": null}',
        b'{"name": "q/1", "ack_timeout": 1e400}',
        b'{"name": "q/1", "max_deliveries": -3}',
        b'{"name": "q/1", "colour": "red"}',
        b"null",
        b"\xff\xfe",
        b"[" * 5000,
    ],
)
def test_settings_of_a_queue_that_cannot_be_read_are_set_aside_and_it_has_the_defaults(
    folder: Path, text: bytes
) -> None:
    changes = QueueChanges()
    changes.declare(1, 400, text)
    add(folder, home(QUEUE), changes.record())
    queues, found, damage = opened(folder)
    assert (queues, found) == ([QueueSettings(QUEUE)], ALL)
    assert "cannot be read" in damage[0]
    assert "the settings of the queue q/1 are lost; it has the defaults now" in damage[1]
    ((what, kept),) = set_aside(folder)
    assert what.startswith("the settings of the queue")
    assert kept == text
    (path,) = folder.glob("undecodable-*")
    assert path.stat().st_mode & 0o777 == 0o600
    assert opened(folder) == ([QueueSettings(QUEUE)], ALL, [])


@pytest.mark.parametrize("type", [Type.QUEUES, Type.KEYS, Type.NOTES])
@pytest.mark.parametrize("body", [b"", b"x", b"\0" * 7, b"\xff" * 100, b"\x01" + b"\0" * 60])
def test_a_record_that_cannot_be_decoded_is_set_aside_and_the_rest_is_loaded(
    folder: Path, type: Type, body: bytes
) -> None:
    add(folder, home(QUEUE), Record(type, [body]))
    queues, found, damage = opened(folder)
    assert (queues, found) == ([QueueSettings(QUEUE, max_deliveries=9)], ALL)
    if damage:
        assert "cannot be read" in damage[0]
        assert [kept for _, kept in set_aside(folder)] == [body]


def test_a_key_whose_name_is_no_text_is_set_aside(folder: Path) -> None:
    entry = record.Entry(Change.SET, b"\xff\xfe", b"v", 1)
    add(folder, home(QUEUE), encode_entries(Type.KEYS, [entry]))
    engine = Engine.on_disk(folder)
    assert [entry.key for _, entry in engine.entries()] == ["k"]
    assert len(engine.damage) == 1
    engine.close()


@pytest.mark.parametrize("body", [b"", b"\0\0\0\0", b"\0" * 8 + b"\xff" * 200])
def test_a_batch_that_cannot_be_decoded_costs_only_its_own_messages(
    folder: Path, body: bytes
) -> None:
    partition = home(QUEUE)
    journal = FilesJournal(folder, tidy_every=0)
    slot = journal.recover(partition).slot
    changes = QueueChanges()
    changes.put(record.Put(1, 5000, 1, slot, True))
    batch = Record(Type.MESSAGES, [body], slot, 1, 1, 1, 1)
    commit(journal, partition, [batch, changes.record()])
    journal.close()
    queues, found, damage = opened(folder)
    assert (queues, found) == ([QueueSettings(QUEUE, max_deliveries=9)], ALL)
    assert any("message 5000 of the queue q/1 is lost" in text for text in damage)
    assert opened(folder)[1:] == (ALL, [])


def test_an_entry_of_the_ledger_that_cannot_be_decoded_is_set_aside(folder: Path) -> None:
    engine = Engine.on_disk(folder)
    for key in ("$progress/q", "$producer/p"):
        engine.write_entry(Entry(key, 1, b'{"offsets": {"x": null}, "done": 1}'))
    engine.close()
    engine = Engine.on_disk(folder)
    ledger = Ledger(engine)
    assert (ledger.queries, ledger.producers) == ({}, {})
    assert len(engine.damage) == 2
    assert {what for what, _ in set_aside(folder)} == {
        "the entry $progress/q",
        "the entry $producer/p",
    }
    engine.close()
    again = Engine.on_disk(folder)
    Ledger(again)
    assert again.damage == []
    again.close()


def test_an_engine_without_files_reports_what_cannot_be_decoded() -> None:
    engine = Engine.in_memory()
    engine.write_entry(Entry("$progress/q", 1, b"nonsense"))
    assert Ledger(engine).queries == {}
    assert "the entry $progress/q cannot be read" in engine.damage[0]


def test_a_broker_starts_with_settings_of_a_queue_that_are_null_and_tells_operators(
    tmp_path: Path,
) -> None:
    with Broker(tmp_path) as broker:
        with Client(broker) as client:
            job = Message(op=Op.ENQUEUE, address="jobs", payload=b"job", id="1")
            assert client.ask(job).op == Op.OK
        broker.stop(signal.SIGTERM)
        changes = QueueChanges()
        changes.declare(1, 9, b'{"ack_timeout": null}')
        add(broker.data, home("jobs"), changes.record())
        broker.start()
        found = eventually(lambda: broker.events("damage"))
        assert "cannot be read" in found[0]["text"]
        assert broker.json("/v1/queues/jobs")["messages"] == 1
        with Client(broker) as client:
            client.send(Message(op=Op.DEQUEUE, address="jobs", correlation_id="1"))
            assert client.receive().payload == b"job"
