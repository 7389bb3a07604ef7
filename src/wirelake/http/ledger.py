"""HTTP's own durable state: the batches that producers have sent, and the progress of queries.

Both are entries of the engine's data store under reserved keys, which no client can write:
`$producer/<name>` and `$progress/<query>`. Everything here is called on the broker's thread, and
durable when `Engine.after` says so.

**Producers.** A producer numbers its batches; one whose number is done is not published again. The
number of the batch that is being published is written first, with the ends of the log at that time:
so if the broker dies in the middle, the log itself tells what of it was kept.
"""

from __future__ import annotations

import time

import msgspec

from wirelake.address import check_address
from wirelake.errors import RefusedError
from wirelake.http.limits import HttpLimits
from wirelake.journal.engine import Engine, Entry

PRODUCER = "$producer/"
PROGRESS = "$progress/"

#: Batches that are remembered of a producer.
MAX_BATCHES = 256


class Producer(msgspec.Struct):
    """The progress of a producer."""

    done: list[str] = []
    begun: str = ""  # the batch that is being published, or was when the broker died
    ends: list[int] = []  # of the log's partitions, when it began
    time: float = 0.0


class Progress(msgspec.Struct):
    """How far a query has read, per partition, and the token that may say so; empty: any."""

    offsets: dict[int, int] = {}
    time: float = 0.0
    owner: str = ""


class Ledger:
    """The producers and the queries."""

    def __init__(self, engine: Engine, limits: HttpLimits | None = None) -> None:
        self._engine = engine
        self._limits = limits or HttpLimits()
        self._revisions: dict[str, int] = {}
        self.producers: dict[str, Producer] = {}
        self.queries: dict[str, Progress] = {}
        self._load(None)
        engine.listeners.append(self._partition_changed)

    def _partition_changed(self, partition: int, is_here: bool) -> None:
        """A partition was taken up, or lost: what it keeps of ours comes and goes with it."""
        if is_here:
            self._load(partition)
            return
        for key in [key for key in self._revisions if self._engine.home(key) == partition]:
            del self._revisions[key]
            self.producers.pop(key.removeprefix(PRODUCER), None)
            self.queries.pop(key.removeprefix(PROGRESS), None)

    def _load(self, partition: int | None) -> None:
        """Take up what was kept, in one partition or in all."""
        engine = self._engine
        for _, entry in engine.entries(partition):
            if not entry.key.startswith((PRODUCER, PROGRESS)):
                continue
            self._revisions[entry.key] = entry.revision
            if entry.value is None:
                continue
            try:
                if entry.key.startswith(PRODUCER):
                    name = entry.key.removeprefix(PRODUCER)
                    self.producers[name] = msgspec.json.decode(entry.value, type=Producer)
                else:
                    name = entry.key.removeprefix(PROGRESS)
                    self.queries[name] = msgspec.json.decode(entry.value, type=Progress)
            except (msgspec.MsgspecError, ValueError) as error:
                engine.set_aside(f"the entry {entry.key}", entry.value, error)
                self._write(entry.key, None)

    def producer(self, name: str) -> Producer:
        """Return the progress of a producer; empty for a new one."""
        check_address(PRODUCER + name)
        return self.producers.get(name) or Producer()

    def begin(self, name: str, batch: str, ends: list[int]) -> None:
        """A producer's batch is about to be published; `ends` are those of the log now.

        Raises RefusedError (`busy`) where no more producers are remembered, and all belong to other
        tokens: nobody makes the broker forget what others have sent.
        """
        if name not in self.producers:
            self._make_room_for(name)
        known = self.producers.setdefault(name, Producer())
        known.begun = batch
        known.ends = ends
        self._keep_producer(name, known)

    def _make_room_for(self, name: str) -> None:
        """Forget the idlest producer of the same token, where there are too many."""
        if len(self.producers) < self._limits.web.producers:
            return
        owner = name.partition("/")[0] + "/"
        mine = [one for one in self.producers if one.startswith(owner)]
        if not mine:
            self._limits.check("producers", len(self.producers))
        oldest = min(mine, key=lambda one: self.producers[one].time)
        del self.producers[oldest]
        self._write(PRODUCER + oldest, None)

    def end(self, name: str, batch: str) -> None:
        """A producer's batch is published, and durable."""
        known = self.producers.setdefault(name, Producer())
        known.done = [*known.done, batch][-MAX_BATCHES:]
        known.begun, known.ends = "", []
        self._keep_producer(name, known)

    def _keep_producer(self, name: str, known: Producer) -> None:
        known.time = time.time()
        self._write(PRODUCER + name, msgspec.json.encode(known))

    def advance(
        self, query: str, offsets: dict[int, int], owner: str = "", *, admin: bool = False
    ) -> None:
        """A query has read so far, says the token `owner`.

        A query belongs to the token that was the first to write its progress; operators may write
        it, too. Raises RefusedError (`unauthorized`) for anybody else.
        """
        check_address(PROGRESS + query)
        known = self.queries.get(query)
        if known is None:
            self._make_room(owner)
            known = Progress(owner=owner)
        elif known.owner and known.owner != owner and not admin:
            text = f"the progress of {query} is written by another token"
            raise RefusedError("unauthorized", text)
        progress = Progress({**known.offsets, **offsets}, time.time(), known.owner or owner)
        self.queries[query] = progress
        self._write(PROGRESS + query, msgspec.json.encode(progress))

    def _make_room(self, owner: str) -> None:
        """Forget the query that was silent the longest, where there are too many: one's own."""
        if len(self.queries) < self._limits.web.queries:
            return
        mine = [name for name, known in self.queries.items() if known.owner in ("", owner)]
        if not mine:
            self._limits.check("queries", len(self.queries))
        self.forget(min(mine, key=lambda one: self.queries[one].time))

    def forget(self, query: str) -> None:
        """A query reads no more."""
        if self.queries.pop(query, None) is None:
            raise RefusedError("not_found", f"no query {query}")
        self._write(PROGRESS + query, None)

    def lags(self) -> dict[str, dict[int, int]]:
        """Rows that each query has not read yet, per partition."""
        positions = self._engine.positions()
        return {
            query: {
                one.partition: max(0, one.next - progress.offsets.get(one.partition, one.first))
                for one in positions
            }
            for query, progress in self.queries.items()
        }

    def _write(self, key: str, value: bytes | None) -> None:
        if value is None:
            self._revisions.pop(key, None)
            self._engine.drop_entry(key)
            return
        revision = self._revisions.get(key, 0) + 1
        self._revisions[key] = revision
        self._engine.write_entry(Entry(key, revision, value))
