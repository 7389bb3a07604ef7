"""The log of a single broker, written into a new cluster: rows, queues and keys.

The cluster is a new log with an id of its own: rows get new offsets, since they are spread over
other partitions. The order of the rows of an address stays, as do their timestamps, the messages of
queues with their sequences, and the revisions of keys. Both sides are engines, so what is found and
what is written follows the rules of a broker.

What the broker keeps for itself is left out: the progress of queries and of producers over HTTP,
which name offsets of the old log, and sessions and retained messages of MQTT.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from wirelake.broker.store import FLOOR
from wirelake.cluster.node import PATIENCE, RETRY, access_of, connect, stream_settings
from wirelake.cluster.operator import LISTEN, Operator
from wirelake.config import Settings
from wirelake.errors import EngineError
from wirelake.journal.arrow_stream import decode
from wirelake.journal.contract import Position
from wirelake.journal.engine import UNDECODABLE, Engine, Entry, Reference
from wirelake.journal.files import FilesJournal
from wirelake.journal.jetstream import JetStreamJournal
from wirelake.wire import FrameTable
from wirelake.wire.arrow import from_arrow

#: Bytes that are on their way to the streams, at most.
BACKLOG = 16 << 20
#: Messages of queues, and keys, that are written in one turn.
SOME = 256
#: Names that begin with this are the broker's own.
OWN = "$"
#: The folder in the data directory that has the copies of the streams meanwhile.
COPIES = "import"

_UNFINISHED = (
    "the import did not finish, and the cluster has a part of the log: "
    "import it again under another prefix"
)


@dataclass(slots=True)
class Imported:
    """What was written so far, and what there is."""

    log: str = ""  # the id of the new log
    partitions: int = 0
    rows: int = 0
    of_rows: int = 0
    queues: int = 0
    messages: int = 0  # of queues
    keys: int = 0
    left_out: int = 0  # queues and keys of the broker's own
    damaged: int = 0  # batches and messages that could not be read

    def as_object(self) -> dict[str, int | str]:
        """Return the figures for programs."""
        return asdict(self)


async def import_directory(
    settings: Settings, folder: Path, show: Callable[[Imported], object]
) -> Imported:
    """Write what is in a data directory into the cluster that the settings name.

    `show` is called with what was written so far. Raises EngineError where the directory has no
    log or is in use, where nodes of the cluster run, where it is not empty, or where NATS does not
    answer; ConfigError where the streams do not fit the settings.
    """
    if not (folder / "journal").is_dir():
        raise EngineError(f"{folder}: there is no log of a single broker")
    files = FilesJournal(folder, tidy_every=0)
    try:
        await _check_alone(settings)
        copies = folder / COPIES
        shutil.rmtree(copies, ignore_errors=True)
        journal = await _open(settings, copies)
        try:
            source = Engine(files, aside=folder)
            target = Engine(
                journal,
                loop=asyncio.get_running_loop(),
                compression=settings.capture.compression,
                aside=copies,
                adopted=range(journal.partitions),
            )
            work = _Import(source, target, show)
            work.check_empty(settings.cluster.prefix)
            return await work.run()
        finally:
            await asyncio.to_thread(journal.close)
            shutil.rmtree(copies, ignore_errors=True)
    finally:
        files.close()


async def _check_alone(settings: Settings) -> None:
    """Raise EngineError where nodes of the cluster run: they would own what is to be written."""
    bus = await connect(settings, f"import-{secrets.token_hex(4)}")
    try:
        if heard := await Operator(bus).listen(2 * LISTEN):
            names = ", ".join(sorted(heard))
            text = f"nodes of the cluster {settings.cluster.prefix} run: {names}; stop them first"
            raise EngineError(text)
    finally:
        await bus.close()


async def _open(settings: Settings, copies: Path) -> JetStreamJournal:
    wanted = stream_settings(settings)
    compression = settings.capture.compression
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return await asyncio.to_thread(
                JetStreamJournal,
                copies,
                access_of(settings),
                wanted,
                node="import",
                compression=compression,
            )
        except EngineError as error:  # as while JetStream elects a leader
            if not error.retriable or time.monotonic() > ends:
                raise
            await asyncio.sleep(RETRY)


class _Import:
    def __init__(self, source: Engine, target: Engine, show: Callable[[Imported], object]) -> None:
        self._source = source
        self._target = target
        self._show = show
        self._done = Imported(log=target.log_id, partitions=target.partitions)
        self._failed = False

    def check_empty(self, prefix: str) -> None:
        """Raise EngineError where the cluster has rows, queues or keys."""
        target = self._target
        rows = sum(position.next for position in target.positions())
        queues = len(target.queues())
        keys = sum(not entry.key.startswith(OWN) for _, entry in target.entries())
        if rows or queues or keys:
            text = f"{rows} rows, {queues} queues and {keys} keys"
            raise EngineError(f"the cluster {prefix} is not empty: it has {text}")

    async def run(self) -> Imported:
        """Write all of it; raises EngineError where something did not become durable."""
        positions = self._source.positions()
        self._done.of_rows = sum(one.next - one.first for one in positions)
        wanted = self._declare()
        for position in positions:
            await self._log(position, wanted[position.partition])
        for partition in wanted:
            await self._others(partition.values())
        await self._keys()
        await self._settle()
        self._show(self._done)
        return self._done

    def _declare(self) -> list[dict[int, tuple[str, Reference]]]:
        """Make the queues; return their messages that are rows of the log, by partition and place.

        Messages that are elsewhere have negative places, which are theirs alone.
        """
        source, target = self._source, self._target
        wanted: list[dict[int, tuple[str, Reference]]] = [{} for _ in source.positions()]
        alone = 0
        for settings in source.queues():
            if settings.name.startswith(OWN):
                self._done.left_out += 1
                continue
            target.declare(settings)
            self._done.queues += 1
            places = wanted[source.home(settings.name)]
            for one in source.references(settings.name):
                alone -= one.private
                places[alone if one.private else one.place] = settings.name, one
            for identity, until in source.remembered_ids(settings.name):
                target.remember_id(settings.name, identity, until)
        return wanted

    async def _log(self, position: Position, wanted: dict[int, tuple[str, Reference]]) -> None:
        """Write the rows of a partition; takes what it finds out of `wanted`."""
        for stored in self._source.read(position.partition, position.first, position.next):
            try:
                batch = decode(stored.ipc)
                offsets = _cells(batch, "offset", "q")
            except UNDECODABLE as error:
                what = f"batch {stored.base} of partition {position.partition}"
                self._source.set_aside(what, bytes(stored.ipc), error)
                self._done.damaged += 1
                continue
            begin = bisect_left(offsets, position.first)
            end = bisect_left(offsets, position.next)
            for rows in _alike(batch.slice(begin, end - begin)):
                self._write(rows, wanted)
            self._target.end_turn()
            self._show(self._done)
            await self._relax()

    def _write(self, rows: pa.RecordBatch, wanted: dict[int, tuple[str, Reference]]) -> None:
        """Write rows of one dialect, and the messages of queues among them."""
        table = FrameTable(rows.num_rows)
        from_arrow(rows, table)
        table.dialect = rows.column("dialect")[0].as_py()
        for k, ttl in enumerate(_cells(rows, "ttl", "i")):
            table.ttl[k] = ttl  # the log has it as it came, a number of hops, too
        offsets = _cells(rows, "offset", "q")
        queued = [k for k, offset in enumerate(offsets) if offset in wanted] if wanted else []
        places = self._target.places(table, range(rows.num_rows) if queued else ())
        self._target.append(table, None, array("q", _cells(rows, "timestamp", "q")), b"")
        for k in queued:
            name, one = wanted.pop(offsets[k])
            self._target.put_place(name, one, places[k][1])
            self._done.messages += 1
        self._done.rows += rows.num_rows

    async def _others(self, messages: Iterable[tuple[str, Reference]]) -> None:
        """Write messages that are no rows of the log, or not any more."""
        left = iter(messages)
        while some := list(islice(left, SOME)):
            for name, group in groupby(some, key=lambda one: one[0]):
                references = [one for _, one in group]
                found = self._source.stored_of(name, references)
                self._done.damaged += len(references) - len(found)
                for stored in found:
                    self._target.put(stored, captured=False)
                    if stored.attempts:
                        self._target.count_attempt(stored)
                    self._done.messages += 1
            self._target.end_turn()
            self._show(self._done)
            await self._relax()

    async def _keys(self) -> None:
        floor = 0
        entries = 0
        for _, entry in self._source.entries():
            if entry.key == FLOOR:
                floor = max(floor, entry.revision)
            elif entry.key.startswith(OWN):
                self._done.left_out += 1
            else:
                self._target.write_entry(entry)
                self._done.keys += entry.value is not None
                entries += 1
                if entries % SOME == 0:
                    self._target.end_turn()
                    self._show(self._done)
                    await self._relax()
        if floor:  # revisions of keys that were deleted and forgotten are not given again
            for partition in range(self._target.partitions):
                self._target.write_entry(Entry(FLOOR, floor, None), partition=partition)

    async def _relax(self) -> None:
        """Let the streams catch up if much is under way; raises EngineError where they cannot."""
        if self._target.backlog > BACKLOG:
            await self._settle()
        else:
            await asyncio.sleep(0)
        self._check()

    async def _settle(self) -> None:
        """Wait until all that was written is durable; raises EngineError where it is not."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(*, well: bool) -> None:
            self._failed = self._failed or not well
            if not settled.done():
                settled.set_result(None)

        self._target.after(lambda: end(well=True), failed=lambda: end(well=False))
        await settled
        self._check()

    def _check(self) -> None:
        if self._failed or not all(map(self._target.is_here, range(self._target.partitions))):
            raise EngineError(_UNFINISHED)


def _cells(batch: pa.RecordBatch, name: str, code: Any) -> Any:
    """Return a column of integers without nulls as items of a C type."""
    column = batch.column(name)
    cells = memoryview(column.buffers()[1]).cast("B").cast(code)
    return cells[column.offset : column.offset + len(column)]


def _alike(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield runs of rows that have one dialect."""
    dialects = batch.column("dialect")
    if len(dialects.unique()) <= 1:
        if batch.num_rows:
            yield batch
        return
    names = dialects.to_pylist()
    begin = 0
    for k in range(1, len(names) + 1):
        if k == len(names) or names[k] != names[begin]:
            yield batch.slice(begin, k - begin)
            begin = k
