"""A folder of Parquet files that grows, for readers that know nothing of Delta.

Files are complete when they appear, and never change or go: that is all a reader has to know, and
why there is no compaction. There is no commit either, so the files of a batch appear one after the
other.

Every row is in it once nevertheless. Before a batch is run, what it is to do is noted in
`_wirelake/<query>.json` (hidden from readers): the ranges of the log that each task writes, and the
number of the batch, from which the names of its files follow. A driver that finds a noted batch
runs it again, so the same rows go to the same files.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wirelake.errors import ConfigError, EngineError
from wirelake.spark.offsets import Offsets, Range
from wirelake.spark.storage import Storage

NOTES = "_wirelake"
#: Files that nobody has gone on writing for this long are of a task that died (seconds).
ABANDONED = 3600.0


@dataclass(frozen=True)
class Noted:
    """What a folder knows of a query."""

    batch: int = -1
    log: str = ""
    offsets: Offsets | None = None  # where the batch ends
    ranges: tuple[tuple[Range, ...], ...] = ()  # of its tasks; none once they are done

    def as_json(self) -> bytes:
        """For the file."""
        return json.dumps(
            {
                "batch": self.batch,
                "log": self.log,
                "offsets": self.offsets or {},
                "ranges": [[[r.partition, r.start, r.stop] for r in task] for task in self.ranges],
            }
        ).encode()

    @classmethod
    def parse(cls, data: bytes) -> Noted:
        """From the file."""
        found: dict[str, Any] = json.loads(data)
        return cls(
            found["batch"],
            found["log"],
            {int(p): at for p, at in found["offsets"].items()},
            tuple(tuple(Range(*one) for one in task) for task in found["ranges"]),
        )


class AppendOnly:
    """What one query notes in a folder of Parquet files."""

    def __init__(self, storage: Storage, query: str) -> None:
        self.storage = storage
        self._name = f"{NOTES}/{query}.json"
        if storage.read("_delta_log/_last_checkpoint") or storage.read(f"_delta_log/{0:020}.json"):
            raise ConfigError("--format", f"{storage.uri} is a Delta table")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other processes; only for folders of this machine."""
        if not self.storage.is_local:
            yield
            return
        folder = Path(self.storage.uri, NOTES)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EngineError(f"another process lands in {self.storage.uri}") from None
            for name in self.storage.drafts(ABANDONED):
                self.storage.delete(name)
            yield

    def read(self) -> Noted:
        """The batch that was noted last."""
        data = self.storage.read(self._name)
        return Noted() if data is None else Noted.parse(data)

    def note(self, batch: Noted) -> None:
        """Note a batch."""
        self.storage.write(self._name, batch.as_json())
