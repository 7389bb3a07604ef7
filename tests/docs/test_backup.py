"""The program of the guide to back-ups copies a broker that is at work, and the copy is whole."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest

import wirelake
from tests.docs.console import ROOT, blocks
from wirelake.journal.contract import Harm
from wirelake.journal.engine import Engine, Entry, QueueSettings, Stored
from wirelake.journal.files import FilesJournal
from wirelake.journal.retention import Rule
from wirelake.message import Message
from wirelake.testing import Broker

SMALL_SEGMENTS = {"segment": 1 << 20}
FILLING = b" " * 20_000


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The program, as it stands in the guide."""
    page = (ROOT / "docs" / "howto" / "backup.md").read_text(encoding="utf-8")
    (text,) = [block.text for block in blocks(page) if block.title == "backup.py"]
    path = tmp_path / "backup.py"
    path.write_text(text, encoding="utf-8")
    return path


class Work:
    """A client that publishes and puts numbers, and knows which were acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged = 0
        self._url = url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Work:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def until(self, number: int) -> None:
        """Wait until so many were acknowledged."""
        while self.acknowledged < number:
            assert self._thread.is_alive()
            self._ended.wait(0.01)

    def _run(self) -> None:
        with wirelake.connect_sync(self._url) as client:
            while not self._ended.is_set():
                body = b"%d" % self.acknowledged + FILLING
                client.publish("work/topic", body, ack=True)
                client.queue("work/queue").put(body)
                self.acknowledged += 1


def logged(url: str) -> Iterator[int]:
    """The numbers in the log, in their order."""
    for partition in range(4):
        with urlopen(f"{url}/v1/log/{partition}?filter=work/topic") as answer:
            for payload in pa.ipc.open_stream(answer).read_all()["payload"].to_pylist():
                yield int(payload)


def test_a_copy_of_a_working_broker_has_all_that_was_acknowledged_before(
    program: Path, tmp_path: Path
) -> None:
    data, copy = tmp_path / "data", tmp_path / "copy"
    with (
        Broker(data=data, capture=SMALL_SEGMENTS) as broker,
        Work(broker.url("kobold-2")) as work,
    ):
        work.until(150)
        before = work.acknowledged
        subprocess.run([sys.executable, program, data, copy], check=True)
        work.until(work.acknowledged + 20)  # it was at work all the time
    assert len(list((copy / "journal").glob("*.wlj"))) > 3
    with (
        Broker(data=copy, capture=SMALL_SEGMENTS, http=True) as restored,
        wirelake.connect_sync(restored.url("kobold-2")) as client,
    ):
        numbers = list(logged(restored.http_url))
        queued = [int(one.message.payload) for one in client.queue("work/queue").get(100_000)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= before
    assert queued == list(range(len(queued)))
    assert before <= len(queued) <= len(numbers)
    assert list(copy.glob("journal/*.damaged-*")) == []


class Changes(threading.Thread):
    """Changes an engine that tidies up, writes checkpoints and begins segments all the time."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.ended = threading.Event()
        self.durable = 0

    def run(self) -> None:
        journal = FilesJournal(
            self._folder,
            partitions=2,
            segment_bytes=20_000,
            tidy_every=0.01,
            rules=[Rule("#", max_age=0.0)],
        )
        engine = Engine(journal, checkpoint_bytes=5000)
        engine.declare(QueueSettings("jobs"))
        number = 0
        while not self.ended.is_set():
            number += 1
            message = Message("jobs", b"%d" % number + FILLING[:300], timestamp=1)
            engine.put(Stored("jobs", number, message), captured=bool(number % 2))
            engine.write_entry(Entry(f"k/{number % 10}", number, b"%d" % number))
            if number > 50:
                engine.drop("jobs", number - 50)
            engine.after(partial(setattr, self, "durable", number))
        engine.close()


def test_a_copy_is_whole_while_segments_are_begun_replaced_and_tidied(
    program: Path, tmp_path: Path
) -> None:
    changes = Changes(tmp_path / "data")
    changes.start()
    try:
        while changes.durable < 300:
            changes.join(0.01)
        for number in range(8):
            before, copy = changes.durable, tmp_path / str(number)
            subprocess.run([sys.executable, program, tmp_path / "data", copy], check=True)
            engine = Engine.on_disk(copy, partitions=2)
            assert isinstance(engine.journal, FilesJournal)
            assert {loss.harm for loss in engine.journal.losses} <= {Harm.TORN}
            revisions = sorted(entry.revision for _, entry in engine.entries())
            last = revisions[-1]
            assert last >= before
            assert revisions[-2] >= last - 5  # the other partition may be a little behind
            found = [one.sequence for one in engine.stored("jobs")]
            assert found == list(range(found[0], found[-1] + 1))
            assert found[-1] >= before
            assert len(found) in (50, 51)
            assert not [text for text in engine.damage if "torn" not in text]
            engine.close()
    finally:
        changes.ended.set()
        changes.join()
