"""Batches of files into a table, each of them once, whatever dies in between.

A table of files (Parquet, ORC, …) is folders, and nothing more: it has no commits of its own. So a
batch is first written to a place that readers do not see. Then a *manifest* names every file and
where it belongs; it appears whole or not at all, and with it the batch is committed. Then the files
are moved. A batch that is run again, after a crash, finds its manifest and only moves what is left;
without a manifest it is written anew. Readers see the files of a batch one after the other.

Compaction is the same: a folder's small files are written again as one, and a manifest says what
comes and what goes. Between the two a reader may see rows twice, for as long as it takes to delete
a few files, or after a crash until the next run; and one that has listed the files before would
miss those that went. So our own jobs say that they are `reading`, and no file goes meanwhile.

Files are reached as Spark reaches them, so a table can be wherever Spark can write and rename.
"""

from __future__ import annotations

import fcntl
import json
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from wirelake.errors import ConfigError, EngineError
from wirelake.spark.session import spark_errors

#: Formats that are files in folders.
FILE_FORMATS = ("parquet", "orc", "json", "avro")

#: Within a table, what readers do not see.
STAGING = "_landing"
#: A file below this size is small (bytes); so many of them in a folder are made one.
SMALL = 32 << 20
FEW = 16
#: Whoever reads for longer than this (seconds) has died in the middle of it.
LONGEST_READ = 3600.0


@dataclass(frozen=True, slots=True)
class File:
    """A file below a folder."""

    path: str
    folder: str  # below the folder it was looked for in
    name: str
    size: int


class Files:
    """The file system of a path, as Spark sees it."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._jvm: Any = spark.sparkContext._jvm
        context: Any = spark.sparkContext._jsc
        with spark_errors():
            self._system = self._path(path).getFileSystem(context.hadoopConfiguration())

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    def whole(self, path: str) -> str:
        """A path that means the same from everywhere."""
        with spark_errors():
            return str(self._system.makeQualified(self._path(path)).toString()).rstrip("/")

    def exists(self, path: str) -> bool:
        """Is there such a file or folder?"""
        with spark_errors():
            return bool(self._system.exists(self._path(path)))

    def below(self, folder: str) -> list[File]:
        """The files in a folder and in those in it that readers see."""
        found: list[File] = []
        if not self.exists(folder):
            return found
        with spark_errors():
            waiting = [("", self._path(folder))]
            while waiting:
                place, path = waiting.pop()
                for status in self._system.listStatus(path):
                    name = str(status.getPath().getName())
                    if name.startswith(("_", ".")):
                        continue
                    if status.isDirectory():
                        waiting.append((f"{place}/{name}" if place else name, status.getPath()))
                    else:
                        full = str(status.getPath().toString())
                        found.append(File(full, place, name, int(status.getLen())))
        return sorted(found, key=lambda file: (file.folder, file.name))

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder."""
        if not self.exists(folder):
            return []
        with spark_errors():
            return [
                str(one.getPath().getName()) for one in self._system.listStatus(self._path(folder))
            ]

    def move(self, path: str, target: str) -> None:
        """Give a file another name; one that is not there was moved before."""
        if not self.exists(path):
            return
        with spark_errors():
            place = self._path(target)
            self._system.mkdirs(place.getParent())
            if not self._system.rename(self._path(path), place):
                raise EngineError(f"{path} cannot be moved to {target}")

    def delete(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it; if it is there."""
        with spark_errors():
            self._system.delete(self._path(path), True)

    def write(self, path: str, data: bytes) -> None:
        """Write a file that is there as a whole, or not."""
        draft = f"{path}.{uuid.uuid4().hex}.draft"
        with spark_errors():
            stream = self._system.create(self._path(draft), True)
            try:
                stream.write(data)
            finally:
                stream.close()
        self.move(draft, path)

    def read(self, path: str) -> bytes:
        """What is in a file."""
        with spark_errors():
            stream = self._system.open(self._path(path))
            try:
                return bytes(stream.readAllBytes())
            finally:
                stream.close()


@contextmanager
def reading(spark: SparkSession, table: str) -> Iterator[None]:
    """Let the files of a table stay until this is over; where it can only be read, they may go."""
    files = Files(spark, table)
    note = ""
    if files.exists(_staging_of(table)):  # else nobody has ever landed there
        note = f"{_readers(table)}/{time.time():.0f}-{uuid.uuid4().hex}"
        try:
            files.write(note, b"")
        except EngineError:
            note = ""
    try:
        yield
    finally:
        if note:
            files.delete(note)


def _staging_of(table: str) -> str:
    return f"{table.rstrip('/')}/{STAGING}"


def _readers(table: str) -> str:
    return f"{_staging_of(table)}/readers"


@dataclass
class Manifest:
    """What a commit does: files to move, files that go, the staging place that is then empty."""

    staging: str
    moves: list[tuple[str, str]] = field(default_factory=list)
    removes: list[str] = field(default_factory=list)


#: Writes something to an empty place.
Write = Callable[[str], None]
#: The folder that a file which was written belongs to.
Place = Callable[[File], str]


class Commits:
    """The commits of one query to one table; `home` is where it remembers them."""

    def __init__(self, spark: SparkSession, table: str, home: str) -> None:
        self._tables = Files(spark, table)
        self._notes = Files(spark, home)
        # Manifests outlive the folder that somebody has called this from.
        self._table = self._tables.whole(table)
        self._home = self._notes.whole(home)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Let no other process use this `home` meanwhile; on disks of this machine only."""
        scheme, _, path = self._home.partition(":")
        if scheme != "file":
            yield
            return
        home = Path(path)
        home.mkdir(parents=True, exist_ok=True)
        with (home / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EngineError(f"another process lands with this checkpoint: {path}") from None
            yield

    def recover(self) -> None:
        """Finish a compaction that was committed; forget what was written and never committed.

        The last batch is finished by Spark, which runs it again. One query at a time has a `home`.
        """
        in_use = set()
        for name in self._notes.names(self._home):
            manifest = self._read(name.removesuffix(".json")) if name.endswith(".json") else None
            if manifest is not None:
                in_use.add(manifest.staging)
                # Elsewhere its files would be looked for in vain, and taken for moved.
                if not manifest.staging.startswith(self._staging("") + "/"):
                    other = manifest.staging.partition(f"/{STAGING}/")[0]
                    raise ConfigError("--checkpoint", f"it belongs to the table {other}")
        pending = self._read("compaction")
        if pending is not None:
            self._apply(pending)
            self._notes.delete(self._note("compaction"))
        for name in self._tables.names(self._staging("")):
            if name.startswith(self._mark) and self._staging(name) not in in_use:
                self._tables.delete(self._staging(name))

    def commit(self, batch: int, write: Write, place: Place) -> set[str]:
        """Write a batch and let it be part of the table, once; the folders that have got files."""
        manifest = self._read(f"batch-{batch}")
        if manifest is None:
            staging = self._staging(f"{self._mark}{batch}-{uuid.uuid4().hex}")
            write(staging)
            moves = [
                (file.path, f"{place(file)}/{self._mark}{batch}-{file.name}")
                for file in self._tables.below(staging)
            ]
            manifest = Manifest(staging, moves)
            self._write(f"batch-{batch}", manifest)
        self._apply(manifest)
        # Spark never goes back behind the last batch.
        self._notes.delete(self._note(f"batch-{batch - 1}"))
        return {target.rpartition("/")[0] for _, target in manifest.moves}

    def compact(
        self,
        folder: str,
        read: Callable[[list[str]], DataFrame],
        format: str,
        few: int = FEW,
    ) -> int:
        """Make one file of our small ones in a folder, if they are too many; how many went."""
        # Those of other queries are for them to compact: two at the same files would be one too
        # many.
        small = [
            file.path
            for file in self._tables.below(folder)
            if not file.folder and file.size < SMALL and file.name.startswith(self._mark)
        ]
        if len(small) < few or self._is_read():
            return 0
        staging = self._staging(f"{self._mark}compaction-{uuid.uuid4().hex}")
        with spark_errors():
            rows = read(small).coalesce(1).sortWithinPartitions("partition", "offset")
            rows.write.format(format).save(staging)
        moves = [
            (new.path, f"{folder}/{self._mark}compacted-{new.name}")
            for new in self._tables.below(staging)
        ]
        if self._is_read():  # since a moment ago; there will be another time
            self._tables.delete(staging)
            return 0
        manifest = Manifest(staging, moves, small)
        self._write("compaction", manifest)
        self._apply(manifest)
        self._notes.delete(self._note("compaction"))
        return len(small)

    def _is_read(self) -> bool:
        """Does one of our jobs read the table?"""
        since = time.time() - LONGEST_READ
        begun = (name.partition("-")[0] for name in self._tables.names(_readers(self._table)))
        return any(one.isdecimal() and int(one) > since for one in begun)

    def _apply(self, manifest: Manifest) -> None:
        # The place goes last: without it everything was moved before.
        if self._tables.exists(manifest.staging):
            for path, target in manifest.moves:
                self._tables.move(path, target)
        for path in manifest.removes:
            self._tables.delete(path)
        self._tables.delete(manifest.staging)

    @property
    def _mark(self) -> str:
        """What tells our places from those of other queries that land in the same table."""
        return f"{uuid.uuid5(uuid.NAMESPACE_URL, self._home).hex[:12]}-"

    def _staging(self, name: str) -> str:
        return f"{_staging_of(self._table)}/{name}".rstrip("/")

    def _note(self, name: str) -> str:
        return f"{self._home}/{name}.json"

    def _read(self, name: str) -> Manifest | None:
        if not self._notes.exists(self._note(name)):
            return None
        return Manifest(**json.loads(self._notes.read(self._note(name))))

    def _write(self, name: str, manifest: Manifest) -> None:
        self._notes.write(self._note(name), json.dumps(asdict(manifest)).encode())
