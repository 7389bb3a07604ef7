"""Whatever is found on the disk and cannot be read is set aside and reported; the broker starts."""

from __future__ import annotations

import base64
import json
import logging
import re
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.broker import Broker, Client, eventually
from wirelake.engine.base import Entry, QueueSettings, Stored
from wirelake.engine.database import entry_crc, message_crc, queue_crc
from wirelake.engine.memory import MemoryEngine
from wirelake.engine.sqlite import SqliteEngine
from wirelake.http.ledger import Ledger
from wirelake.message import Message, Op

QUEUE = "q/1"
MESSAGES = 300
#: The type bytes of a message's row: queue (text of 3 bytes), a sequence of 1 byte or 2.
CELL = re.compile(b"[\x08-\x0c]\x13[\x01\x02]")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an engine that was closed, with a queue and some keys."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    engine = SqliteEngine(folder)
    engine.declare(QueueSettings(QUEUE, max_deliveries=9))
    for number in range(1, MESSAGES + 1):
        message = Message(address=QUEUE, payload=b"m%d" % number, id=f"q{number}", op=Op.ENQUEUE)
        engine.put(Stored(QUEUE, number, message))
    for number in range(50):
        engine.write_entry(Entry(f"k/{number}", 1, b"v%d" % number))
    engine.close()
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    """A copy of it, to damage."""
    return Path(shutil.copytree(filled, tmp_path / "data"))


def contents(folder: Path) -> tuple[set[bytes], int, list[str]]:
    """The payloads in the queue, how many keys there are, and what was damaged."""
    engine = SqliteEngine(folder)
    try:
        payloads = {stored.message.payload for stored in engine.stored(QUEUE)}
        return payloads, len(list(engine.entries())), list(engine.damage)
    finally:
        engine.close()


ALL = ({b"m%d" % number for number in range(1, MESSAGES + 1)}, 50)


def flips(data: bytes) -> Iterator[tuple[int, int]]:
    """Places of type bytes, and a bit to flip in each."""
    for number, found in enumerate(CELL.finditer(data)):
        if number % 4 == 0:
            yield found.start() + number // 4 % 3, 0x10


@pytest.mark.slow
def test_a_flipped_type_byte_in_the_database_never_prevents_a_start(
    filled: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "wirelake.engine")
    whole = (filled / "broker.db").read_bytes()
    places = list(flips(whole))
    assert len(places) > 31
    told = 0
    for number, (place, bit) in enumerate(places):
        folder = tmp_path / str(number)
        shutil.copytree(filled, folder)
        data = bytearray(whole)
        data[place] ^= bit
        (folder / "broker.db").write_bytes(data)
        payloads, keys, damage = contents(folder)
        # The log still has all changes, so nothing is lost.
        assert (payloads, keys) == ALL, f"byte {place}: {damage}"
        told += bool(damage)
        assert bool(damage) == bool(list(folder.glob("broker.db.damaged-*"))), damage
        assert contents(folder) == (*ALL, []), f"byte {place}: it was not repaired for good"
        shutil.rmtree(folder)
    assert told > len(places) // 2


@pytest.mark.parametrize("size", [0, 1, 100, 4096, 5000])
def test_a_database_of_which_nothing_can_be_read_is_rebuilt_from_the_log(
    folder: Path, size: int
) -> None:
    file = folder / "broker.db"
    file.write_bytes(b"\xa5" * size + file.read_bytes()[2 * size :])
    payloads, keys, _ = contents(folder)
    assert (payloads, keys) == ALL


def rewrite(folder: Path, table: str, where: str, *values: object) -> None:
    """Write a row over another one, as an earlier version or another program could have."""
    with sqlite3.connect(folder / "broker.db") as db:
        db.execute(f"DELETE FROM {table} WHERE {where}")
        db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(values))})", values)
    db.close()


def set_aside(folder: Path) -> list[tuple[str, bytes]]:
    """What was set aside, and its bytes."""
    return [
        (line["what"], base64.b64decode(line["base64"]))
        for file in folder.glob("broker.db.damaged-*.jsonl")
        for line in map(json.loads, file.read_text().splitlines())
    ]


@pytest.mark.parametrize(
    "text",
    [
        b'{"ack_timeout": null}',
        b'{"name": "q/1", "ack_timeout": null}',
        b'{"name": "q/1", "ack_timeout": 1e400}',
        b'{"name": "q/1", "max_deliveries": -3}',
        b'{"name": "another"}',
        b'{"name": "q/1", "colour": "red"}',
        b"null",
        b"[" * 5000,
        b"",
    ],
)
def test_settings_of_a_queue_that_cannot_be_read_are_set_aside_and_it_has_the_defaults(
    folder: Path, text: bytes
) -> None:
    crc = queue_crc(QUEUE.encode(), 400, text)
    rewrite(folder, "queues", "true", QUEUE, 400, text.decode(), crc)
    payloads, keys, damage = contents(folder)
    assert (payloads, keys) == ALL
    assert len(damage) == 1
    assert "the settings of the queue q/1 cannot be read" in damage[0]
    assert set_aside(folder) == [("the settings of the queue q/1", text)]
    engine = SqliteEngine(folder)
    assert list(engine.queues()) == [QueueSettings(QUEUE)]
    assert engine.damage == []
    engine.close()


def test_a_message_that_cannot_be_decoded_is_set_aside_and_the_rest_is_loaded(
    folder: Path,
) -> None:
    fields = b'{"headers": 7}'
    crc = message_crc(QUEUE.encode(), 7, 0, 0, fields, b"m7")
    values = (QUEUE, 7, 0, 0, 0, fields.decode(), b"m7", crc)
    rewrite(folder, "messages", "sequence = 7", *values)
    payloads, keys, damage = contents(folder)
    assert (payloads, keys) == (ALL[0] - {b"m7"}, 50)
    assert len(damage) == 1
    assert set_aside(folder) == [("message 7 of the queue q/1", fields + b"\nm7")]
    assert contents(folder) == (ALL[0] - {b"m7"}, 50, [])


def test_an_entry_of_the_ledger_that_cannot_be_decoded_is_set_aside(folder: Path) -> None:
    for key in ("$progress/q", "$producer/p"):
        value = b'{"offsets": {"x": null}, "done": 1}'
        crc = entry_crc(key.encode(), 1, 0, value)
        rewrite(folder, "entries", "false", key, 1, 0, value, crc)
    engine = SqliteEngine(folder)
    ledger = Ledger(engine)
    assert (ledger.queries, ledger.producers) == ({}, {})
    assert len(engine.damage) == 2
    assert {what for what, _ in set_aside(folder)} == {
        "the entry $progress/q",
        "the entry $producer/p",
    }
    engine.close()
    again = SqliteEngine(folder)
    Ledger(again)
    assert again.damage == []
    again.close()


def test_an_engine_without_files_reports_what_cannot_be_decoded() -> None:
    engine = MemoryEngine()
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
        text = b'{"ack_timeout": null}'
        rewrite(
            broker.data, "queues", "true", "jobs", 9, text.decode(), queue_crc(b"jobs", 9, text)
        )
        broker.start()
        found = eventually(lambda: broker.events("damage"))
        assert "the settings of the queue jobs" in found[0]["text"]
        assert broker.json("/v1/queues/jobs")["messages"] == 1
        with Client(broker) as client:
            client.send(Message(op=Op.DEQUEUE, address="jobs", correlation_id="1"))
            assert client.receive().payload == b"job"
