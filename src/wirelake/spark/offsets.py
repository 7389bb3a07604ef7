"""Which rows of the log to read: options and offsets. No Spark, no sockets, no clock.

Offsets are `{partition: next offset}`, per partition of the log, so that a hundred thousand
addresses cost a checkpoint nothing. A range of offsets is immutable: reading it again gives the
same rows. So whatever is planned here follows from options and offsets alone, and a batch that
Spark runs again is cut into the same tasks. With them stands which log they are of: a broker that
was given new data must not be taken for one that has gone on.

Options are those of Spark's Kafka source where they mean the same; -2 is the first offset that the
log has, -1 the next one to come.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Literal
from urllib.parse import urlsplit
from zlib import crc32

from wirelake.address import check_filter
from wirelake.errors import ConfigError, EngineError, RefusedError
from wirelake.wire.arrow import SCHEMA

Offsets = dict[int, int]

EARLIEST, LATEST = -2, -1

#: Rows that one task reads, about: a longer range is cut.
TASK_ROWS = 1_000_000
#: How long a broker that is away is waited for (seconds).
PATIENCE = 60.0

#: The options of the source, as users write them.
OPTIONS = (
    "url", "token", "subscribe", "subscribePattern", "startingOffsets", "endingOffsets",
    "startingTimestamp", "maxRowsPerTrigger", "minPartitions", "failOnDataLoss", "includeHeaders",
    "columns", "query", "retrySeconds",
)  # fmt: skip

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition of the log has: the offsets [first, next)."""

    first: int
    next: int


@dataclass(frozen=True, slots=True)
class Log:
    """What a log has, and what tells it from any other; nothing, where a broker is too old."""

    id: str
    extents: Mapping[int, Extent]


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
    """Where somebody is in a log: the next offset of each partition; empty `log`: of any log."""

    offsets: Offsets
    log: str = ""

    @classmethod
    def parse(cls, value: object, *, least: int = 0) -> Place:
        """A place from JSON, where the keys are text."""
        if not isinstance(value, dict):
            raise EngineError(f"{value!r} are no offsets")
        offsets: Offsets = {}
        log = value.get("log", "")
        if not isinstance(log, str):
            raise EngineError(f"{log!r} is no log")
        for key, offset in value.items():
            if key == "log":
                continue
            number = str(key)
            if not (number.isascii() and number.isdecimal()) or type(offset) is not int:
                raise EngineError(f"{key!r}: {offset!r} is no offset of a partition")
            if offset < least:
                raise EngineError(f"{offset} is no offset")
            offsets[int(number)] = offset
        return cls(offsets, log)

    def as_json(self) -> dict[str, int | str]:
        """The same for JSON, always in one order: Spark compares the text."""
        numbers = {str(partition): self.offsets[partition] for partition in sorted(self.offsets)}
        return numbers | ({"log": self.log} if self.log else {})

    def is_in(self, log: str) -> bool:
        """Whether it can be a place in this log."""
        return not self.log or not log or self.log == log


#: Where to begin or end: everywhere the same, or partition by partition.
Bound = Literal["earliest", "latest"] | Place


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for, checked."""

    url: str
    token: str = ""
    filters: tuple[str, ...] = ()
    starting: Bound | None = None
    ending: Bound | None = None
    starting_time: int | None = None  # µs since 1970
    max_rows: int = 0  # 0: no limit
    min_partitions: int = 0
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    query: str = ""
    patience: float = PATIENCE

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """The options of a source, whatever the case of their names; ConfigError where wrong."""
        options = named(given, OPTIONS)
        if "startingOffsets" in options and "startingTimestamp" in options:
            raise ConfigError("startingTimestamp", "give this or startingOffsets, not both")
        filters = _filters(options)
        return cls(
            url=address_of(options),
            token=options.get("token", ""),
            filters=filters,
            starting=_bound(options, "startingOffsets"),
            ending=_bound(options, "endingOffsets"),
            starting_time=_time(options, "startingTimestamp"),
            max_rows=whole(options, "maxRowsPerTrigger"),
            min_partitions=whole(options, "minPartitions"),
            fail_on_data_loss=truth(options, "failOnDataLoss", default=True),
            columns=_columns(options),
            query=options.get("query") or f"spark-{crc32(repr(filters).encode()):08x}",
            patience=seconds(options, "retrySeconds", PATIENCE),
        )

    def check_batch(self) -> None:
        """Refuse what a batch cannot do."""
        if _has(self.starting, "latest", LATEST):
            raise ConfigError("startingOffsets", "a batch that begins at the latest has no rows")
        if _has(self.ending, "earliest", EARLIEST):
            raise ConfigError("endingOffsets", "a batch that ends at the earliest has no rows")
        if self.max_rows:
            raise ConfigError("maxRowsPerTrigger", "this is for streams")

    def check_stream(self) -> None:
        """Refuse what a stream cannot do."""
        if self.ending is not None:
            raise ConfigError("endingOffsets", "a stream has no end")


# Options


def named(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Options by their proper names; one that nobody knows is refused, as it is a slip."""
    proper = {name.lower(): name for name in known}
    for name in given:
        if name.lower() not in proper:
            raise ConfigError(name, f"there is no such option; there are {', '.join(known)}")
    return {proper[name.lower()]: value.strip() for name, value in given.items()}


def address_of(options: Mapping[str, str]) -> str:
    """Where the broker's HTTP is."""
    url = options.get("url", "").rstrip("/")
    if not url:
        raise ConfigError("url", "say where the broker's HTTP is, such as http://127.0.0.1:7780")
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable or parts.path or parts.query or parts.username:
        raise ConfigError("url", f"{url} is not of the form http://host:port")
    return url


def whole(options: Mapping[str, str], name: str) -> int:
    """A number of at least 1, or 0 where there is none."""
    if name not in options:
        return 0
    text = options[name]
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 2**63):
        raise ConfigError(name, f"{text!r} is no number from 1 on")
    return int(text)


def truth(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """True or false."""
    text = options.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(name, f"{text!r} is neither true nor false")
    return text == "true"


def seconds(options: Mapping[str, str], name: str, default: float) -> float:
    """A time in seconds."""
    try:
        value = float(options.get(name, default))
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ConfigError(name, f"{options[name]!r} is no time in seconds")
    return value


def _filters(options: Mapping[str, str]) -> tuple[str, ...]:
    if "subscribe" in options and "subscribePattern" in options:
        raise ConfigError("subscribePattern", "give this or subscribe, not both")
    if "subscribePattern" in options:
        name, wanted = "subscribePattern", [options["subscribePattern"]]
    else:
        name = "subscribe"
        wanted = [one.strip() for one in options.get(name, "#").split(",")]
    try:
        filters = tuple(check_filter(one) for one in wanted)
    except RefusedError as error:
        raise ConfigError(name, error.text) from None
    # Everything, the addresses that begin with `$` too: no filter at all, which costs nothing.
    return () if "#" in filters else filters


def _bound(options: Mapping[str, str], name: str) -> Bound | None:
    text = options.get(name)
    if text is None:
        return None
    match text.lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    try:
        return Place.parse(json.loads(text), least=EARLIEST)
    except (ValueError, EngineError):
        form = 'earliest, latest, or JSON such as {"0": 23, "1": -2}'
        raise ConfigError(name, f"{text!r} is not {form}") from None


def _time(options: Mapping[str, str], name: str) -> int | None:
    """µs since 1970, from the milliseconds that Kafka's option has, or from ISO 8601."""
    text = options.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text) * 1000
    try:
        return micros(datetime.fromisoformat(text))
    except ValueError:
        form = "milliseconds since 1970, or a time such as 2026-01-31T12:00"
        raise ConfigError(name, f"{text!r} is not {form}") from None


def micros(time: datetime) -> int:
    """µs since 1970; a time without a zone is UTC."""
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return (time - _EPOCH) // timedelta(microseconds=1)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns to read, in the log's order unless they are named."""
    headers = truth(options, "includeHeaders", default=False)
    if "columns" in options:
        columns = [name.strip() for name in options["columns"].split(",")]
        if headers and "headers" not in columns:
            columns.append("headers")
    else:
        columns = [name for name in SCHEMA.names if headers or name != "headers"]
    for name in columns:
        if name not in SCHEMA.names:
            raise ConfigError("columns", f"the log has no column {name!r}")
        if columns.count(name) > 1:
            raise ConfigError("columns", f"{name} is named twice")
    return tuple(columns)


def _has(bound: Bound | None, word: str, number: int) -> bool:
    return bound == word or (isinstance(bound, Place) and number in bound.offsets.values())


# Offsets


def resolve(bound: Bound, log: Log, option: str) -> Offsets:
    """The offsets that a bound stands for now; each partition of the log must have one."""
    first = {p: extent.first for p, extent in log.extents.items()}
    latest = {p: extent.next for p, extent in log.extents.items()}
    if bound == "earliest":
        return first
    if bound == "latest":
        return latest
    assert isinstance(bound, Place)
    if not bound.is_in(log.id):
        raise ConfigError(option, f"these are offsets of the log {bound.log}; this is {log.id}")
    if bound.offsets.keys() != latest.keys():
        has = ", ".join(map(str, sorted(latest)))
        raise ConfigError(option, f"the log has the partitions {has}; give an offset for each")
    words = {EARLIEST: first, LATEST: latest}
    offsets = {p: words.get(given, bound.offsets)[p] for p, given in bound.offsets.items()}
    for partition, offset in offsets.items():
        if offset > latest[partition]:
            text = f"partition {partition} ends at {latest[partition]}, before {offset}"
            raise ConfigError(option, text)
    return offsets


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
            f"the log has no partition {min(gone)} any more: was the broker's data replaced? "
            "With failOnDataLoss=false it is read from its beginning"
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


def share(start: Offsets, end: Offsets, most: int) -> Offsets:
    """Where a batch of at most so many rows ends: each partition gets its part of the backlog."""
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
    """What lies between two places; all up to the end where it is in another log."""
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


def split(wanted: list[Range], at_least: int = 0, most: int = TASK_ROWS) -> list[Range]:
    """Ranges cut into tasks of about one size, at least so many where there are rows enough.

    A range that is hardly longer than a task is one: halves of it beside whole ones would leave
    cores idle at the end. For the same reason the largest tasks come first.
    """
    total = sum(map(len, wanted))
    if not total:
        return []
    size = min(most, max(1, total // at_least)) if at_least else most
    cut = []
    for one in wanted:
        count = -(-len(one) // size) if at_least else max(1, (2 * len(one) + size) // (2 * size))
        cuts = [one.start + len(one) * k // count for k in range(count + 1)]
        cut.append(
            [Range(one.partition, begin, stop) for begin, stop in pairwise(cuts) if begin < stop]
        )
    cut.sort(key=lambda pieces: -max(map(len, pieces)))
    return [piece for pieces in cut for piece in pieces]
