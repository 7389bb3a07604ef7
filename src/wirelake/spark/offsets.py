"""Which rows of the log to read: offsets and tasks. No Spark, no sockets, no clock.

Offsets are `{partition: next offset}`, per partition of the log, so that a hundred thousand
addresses cost a checkpoint nothing. A range of offsets is immutable: reading it again gives the
same rows. So whatever is planned here follows from options and offsets alone, and a batch that
Spark runs again is cut into the same tasks. With them stands which log they are of: a broker that
was given new data must not be taken for one that has gone on. A stream's offsets also carry the
name under which the broker shows its progress, so that it keeps that name when it is restarted.

-2 is the first offset that the log has, -1 the next one to come.
"""

from __future__ import annotations

import heapq
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Literal

from wirelake.errors import ConfigError, EngineError

Offsets = dict[int, int]

EARLIEST, LATEST = -2, -1

#: Rows that one task reads, about: a longer range is cut.
TASK_ROWS = 1_000_000
#: Small ranges share a task up to this many rows, since every task has a cost of its own.
SHARED_ROWS = 100_000
#: How long a broker that is away is waited for (seconds).
PATIENCE = 60.0

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def query_name(name: str) -> str:
    """A query's name as broker and tables store it; that of landing a table is `land-TABLE`."""
    return re.sub("[^A-Za-z0-9._-]", "_", name)[:80]


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets [first, next) of a partition of the log."""

    first: int
    next: int
    bytes: int = 0  # what is stored; 0: not known


@dataclass(frozen=True, slots=True)
class Log:
    """What a log has, and what tells it from any other; nothing, where a broker is too old."""

    id: str
    extents: Mapping[int, Extent]
    #: Where HTTP has each partition, in a cluster: its owner first, then its standbys.
    places: Mapping[int, tuple[str, ...]] = field(default_factory=dict)

    def is_before(self, place: Place) -> bool:
        """Whether a place in this log is behind the end of a partition."""
        known = self.extents
        return place.is_in(self.id) and any(
            p in known and offset > known[p].next for p, offset in place.offsets.items()
        )

    def only(self, partitions: Iterable[int] | None) -> Log:
        """The log as if it had only these partitions; ConfigError where it lacks one."""
        if partitions is None:
            return self
        wanted = sorted(partitions)
        if lacking := [p for p in wanted if p not in self.extents]:
            has = ", ".join(map(str, sorted(self.extents)))
            raise ConfigError("assign", f"the log has the partitions {has}, and no {lacking[0]}")
        return Log(self.id, {p: self.extents[p] for p in wanted}, self.places)


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets [start, stop) of a partition."""

    partition: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Place:
    """Where somebody is in a log: the next offset of each partition; empty `log`: of any log.

    `query` is the name of the stream that is there; empty: it has none of its own.
    """

    offsets: Offsets
    log: str = ""
    query: str = ""

    @classmethod
    def parse(cls, value: object, *, least: int = 0) -> Place:
        """A place from JSON, where the keys are text."""
        if not isinstance(value, dict):
            raise EngineError(f"{value!r} are no offsets")
        offsets: Offsets = {}
        log, query = value.get("log", ""), value.get("query", "")
        if not isinstance(log, str) or not isinstance(query, str):
            raise EngineError(f"{value!r} names no log or query")
        for key, offset in value.items():
            if key in ("log", "query"):
                continue
            number = str(key)
            if not is_number(number) or type(offset) is not int:
                raise EngineError(f"{key!r}: {offset!r} is no offset of a partition")
            if offset < least:
                raise EngineError(f"{offset} is no offset")
            offsets[int(number)] = offset
        return cls(offsets, log, query)

    def as_json(self) -> dict[str, int | str]:
        """Return the offsets for JSON, in a fixed order, since Spark compares the text."""
        numbers = {str(partition): self.offsets[partition] for partition in sorted(self.offsets)}
        names = {"log": self.log, "query": self.query}
        return numbers | {name: text for name, text in names.items() if text}

    def is_in(self, log: str) -> bool:
        """Whether it can be a place in this log."""
        return not self.log or not log or self.log == log


#: Where to begin or end: everywhere the same, or partition by partition.
Bound = Literal["earliest", "latest"] | Place


def is_number(text: str) -> bool:
    """Whether a text is a number without a sign, of 19 digits at most."""
    return text.isascii() and text.isdecimal() and len(text) <= 19


def micros(time: datetime) -> int:
    """µs since 1970; a time without a zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)


# Offsets


def resolve(
    bound: Bound, log: Log, option: str, default: Literal["earliest", "latest"] = "earliest"
) -> Offsets:
    """The offsets that a bound stands for now; partitions that it does not name have the default.

    ConfigError where it names offsets of another log, a partition that is not there, or an offset
    behind the end.
    """
    words = {EARLIEST: first_of(log), LATEST: latest_of(log)}
    if not isinstance(bound, Place):
        return words[EARLIEST if bound == "earliest" else LATEST]
    if not bound.is_in(log.id):
        raise ConfigError(option, f"these are offsets of the log {bound.log}; this is {log.id}")
    check_partitions(bound.offsets, log, option)
    offsets = words[EARLIEST if default == "earliest" else LATEST]
    for partition, given in bound.offsets.items():
        offset = words[given][partition] if given in words else given
        if offset > log.extents[partition].next:
            text = f"partition {partition} ends at {log.extents[partition].next}, before {offset}"
            raise ConfigError(option, text)
        offsets[partition] = offset
    return offsets


def first_of(log: Log) -> Offsets:
    """The first offset of each partition."""
    return {p: extent.first for p, extent in log.extents.items()}


def latest_of(log: Log) -> Offsets:
    """The next offset of each partition."""
    return {p: extent.next for p, extent in log.extents.items()}


def check_partitions(given: Iterable[int], log: Log, option: str) -> None:
    """Refuse partitions that are not read."""
    if unknown := sorted(set(given) - log.extents.keys()):
        has = ", ".join(map(str, sorted(log.extents)))
        raise ConfigError(option, f"partition {unknown[0]} is not read; there are {has}")


def check_kept(start: Place, log: Log, *, fail: bool) -> Offsets:
    """Where to go on from `start`: rows that the log has no more are an error, or are passed over.

    Another log than the one that was read before is read from its beginning. One that was restored
    from a back-up has the same id: it is told only where it ends before `start`.
    """
    if not start.is_in(log.id):
        if fail:
            raise replaced(start.log, log.id)
        return {partition: extent.first for partition, extent in log.extents.items()}
    kept: Offsets = {}
    for partition, extent in log.extents.items():
        begin = start.offsets.get(partition, extent.first)
        if extent.first <= begin <= extent.next:
            kept[partition] = begin
            continue
        if fail:
            raise data_loss(partition, begin, extent)
        kept[partition] = extent.first
    if fail and (gone := start.offsets.keys() - log.extents.keys()):
        raise EngineError(
            f"partition {min(gone)} was read so far, and is not any more: was the broker's data "
            "replaced, or assign changed? With failOnDataLoss=false it is left out"
        )
    return kept


def replaced(known: str, found: str) -> EngineError:
    """The error for a log that is another than before."""
    return EngineError(
        f"the log {known} was read so far, but the broker has the log {found}: was its data "
        "replaced? With failOnDataLoss=false that one is read from its beginning"
    )


def data_loss(partition: int, wanted: int, extent: Extent) -> EngineError:
    """The error for rows that are gone."""
    hint = "with failOnDataLoss=false such rows are passed over"
    if wanted > extent.next:
        return EngineError(
            f"partition {partition} of the log ends at {extent.next}, but was read up to {wanted}: "
            f"was the broker's data replaced? {hint}"
        )
    return EngineError(
        f"the rows {wanted} to {extent.first - 1} of partition {partition} of the log were deleted "
        f"before they were read; {hint}"
    )


def behind_latest(progress: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """How far each source of a query is behind the end of its log, by Kafka's names.

    `progress` is a query's `lastProgress`, None before its first batch. The answer has a dict for
    each of its sources, in their order, which is empty where the source is not ours. Spark lets no
    Python source put these numbers into the progress's `metrics` itself.
    """
    found: list[dict[str, str]] = []
    for source in progress["sources"] if progress is not None else ():
        try:
            done, there = (
                Place.parse(json.loads(one) if isinstance(one, str) else one)
                for one in (source["endOffset"], source["latestOffset"])
            )
            read = done.offsets if done.is_in(there.log) else dict.fromkeys(there.offsets, 0)
            lags = [next - read[partition] for partition, next in there.offsets.items()]
        except (ValueError, EngineError, KeyError):
            lags = []
        names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
        numbers = (min(lags), max(lags), sum(lags) / len(lags)) if lags else ()
        found.append({name: str(number) for name, number in zip(names, numbers, strict=False)})
    return found


def rows_within(size: int, log: Log) -> int:
    """How many rows of a log have this many bytes, about; by the average of what it has."""
    stored = sum(extent.bytes for extent in log.extents.values())
    count = sum(extent.next - extent.first for extent in log.extents.values())
    return max(1, size * count // stored) if stored and count else max(1, size)


def share(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Return where a batch of at most this many rows ends, shared by each partition's backlog."""
    waiting = {p: end[p] - start.get(p, 0) for p in sorted(end) if end[p] > start.get(p, 0)}
    total = sum(waiting.values())
    if total <= most:
        return dict(end)
    taken = {p: count * most // total for p, count in waiting.items()}
    # What rounding left over goes to those who lost most by it, and so do the first rows.
    left = most - sum(taken.values())
    by_loss = sorted(waiting, key=lambda p: (waiting[p] * most % total, -taken[p]), reverse=True)
    for partition in by_loss[:left]:
        taken[partition] += 1
    return {p: start.get(p, 0) + taken[p] if p in waiting else end[p] for p in end}


def between(start: Place, end: Place) -> list[Range]:
    """Return the ranges between two places; up to the end if that is in another log."""
    return ranges(start.offsets if start.is_in(end.log) else {}, end.offsets)


def ranges(start: Offsets, end: Offsets) -> list[Range]:
    """What lies between two offsets.

    An end before its start means that the log began anew, which `check_kept` has let pass: then all
    up to the end is new.
    """
    found = []
    for partition in sorted(end):
        begin, stop = start.get(partition, 0), end[partition]
        if begin > stop:
            begin = 0
        if begin < stop:
            found.append(Range(partition, begin, stop))
    return found


def tasks(wanted: list[Range], at_least: int = 0, most: int = 0) -> list[tuple[Range, ...]]:
    """What each task reads: long ranges are cut, small ones share a task.

    There are at least so many tasks, where there are rows enough, and none has more than `most`
    rows. Nothing else counts, least of all how many cores there are: a batch that is run again on
    another cluster must be cut into the same tasks.
    """
    pieces = split(wanted, at_least, most or TASK_ROWS, is_strict=bool(most))
    room = min(SHARED_ROWS, most) if most else SHARED_ROWS
    if at_least:
        room = min(room, sum(map(len, wanted)) // at_least)
    found: list[list[Range]] = []
    shared: list[list[Range]] = []
    taken: list[tuple[int, int]] = []  # a heap: the rows of each shared task, and its number
    for piece in sorted(pieces, key=len, reverse=True):
        size = len(piece)
        if 2 * size > room:  # nothing of its size fits beside it
            found.append([piece])
        elif taken and taken[0][0] + size <= room:  # the emptiest has room
            rows, number = taken[0]
            shared[number].append(piece)
            heapq.heapreplace(taken, (rows + size, number))
        else:
            heapq.heappush(taken, (size, len(shared)))
            shared.append([piece])
    return [
        tuple(sorted(some, key=lambda one: (one.partition, one.start))) for some in found + shared
    ]


def split(
    wanted: list[Range], at_least: int = 0, most: int = TASK_ROWS, *, is_strict: bool = False
) -> list[Range]:
    """Ranges cut into tasks of about one size, at least so many where there are rows enough.

    A range that is hardly longer than a task is one: halves of it beside whole ones would leave
    cores idle at the end. For the same reason the largest tasks come first. A strict limit is never
    passed.
    """
    total = sum(map(len, wanted))
    if not total:
        return []
    size = min(most, max(1, total // at_least)) if at_least else most
    cut = []
    for one in wanted:
        is_cut_short = at_least or is_strict
        count = (
            -(-len(one) // size) if is_cut_short else max(1, (2 * len(one) + size) // (2 * size))
        )
        cuts = [one.start + len(one) * k // count for k in range(count + 1)]
        cut.append(
            [Range(one.partition, begin, stop) for begin, stop in pairwise(cuts) if begin < stop]
        )
    cut.sort(key=lambda pieces: -max(map(len, pieces)))
    return [piece for pieces in cut for piece in pieces]
