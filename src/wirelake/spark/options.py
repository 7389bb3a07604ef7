"""The options of the source and the sink, as users write them. No Spark, no sockets, no clock.

Options are those of Spark's Kafka source where they mean the same. Where ours have another name,
Kafka's is an alias. A name that nobody knows is refused, as it is a slip.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from wirelake.address import check_filter
from wirelake.client.origins import origins
from wirelake.errors import ConfigError, EngineError, RefusedError
from wirelake.spark.offsets import (
    EARLIEST,
    LATEST,
    PATIENCE,
    Bound,
    Offsets,
    Place,
    is_number,
    micros,
)
from wirelake.wire.arrow import SCHEMA

#: How long a batch waits for `minOffsetsPerTrigger` rows at most (seconds), as Kafka's source does.
MAX_DELAY = 900.0

#: The options of the source.
OPTIONS = (
    "url", "token", "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets",
    "startingTimestamp", "endingTimestamp", "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "maxRowsPerTrigger",
    "maxBytesPerTrigger", "minRowsPerTrigger", "maxTriggerDelay", "minPartitions",
    "maxRecordsPerPartition", "failOnDataLoss", "includeHeaders", "columns", "query",
    "groupIdPrefix", "pushdown", "retrySeconds",
)  # fmt: skip

#: Kafka's names of options that have another name here.
ALIASES = {
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "minOffsetsPerTrigger": "minRowsPerTrigger",
    "kafka.group.id": "query",
    "topic": "address",
}

#: Kafka's options that cannot be taken over, and what to write instead.
_INSTEAD = {
    "kafka.bootstrap.servers": "say where the broker's HTTP is: url, such as http://127.0.0.1:7780",
}

#: What stands in front of an option among the properties of a table that Spark creates.
_OF_TABLE = "option."

#: OPTIONS that Spark adds by itself.
_SPARKS = ("option.serialization.format", "option.path")

_DURATION = re.compile(r"(\d+(?:\.\d+)?) ?(ms|s|m|min|h|d)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}

Strategy = Literal["latest", "error"]


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of a query."""

    url: str
    token: str = ""
    filters: tuple[str, ...] = ()  # none: everything
    pattern: str = ""  # a regular expression; empty: everything
    assigned: Mapping[int, tuple[str, ...]] | None = None  # partition to filters; None: all
    starting: Bound | None = None
    ending: Bound | None = None
    starting_time: int | Offsets | None = None  # µs since 1970, everywhere or by partition
    ending_time: int | Offsets | None = None
    strategy: Strategy = "latest"  # where no row is as late as the starting time
    max_rows: int = 0  # 0: no limit
    max_bytes: int = 0
    min_rows: int = 0
    max_delay: float = MAX_DELAY
    min_partitions: int = 0
    task_rows: int = 0  # rows of a task at most; 0: as we see fit
    fail_on_data_loss: bool = True
    columns: tuple[str, ...] = ()
    has_default_columns: bool = True
    query: str = ""  # empty: a name is made when a stream begins
    prefix: str = "spark"
    pushdown: bool = False
    patience: float = PATIENCE

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """The options of a source, whatever the case of their names; ConfigError where wrong."""
        options = named(given, OPTIONS)
        starts = ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp")
        ends = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
        for names in (starts, ends, ("query", "groupIdPrefix")):
            _exclude(options, names)
        filters, pattern, assigned = _subscription(options)
        return cls(
            url=address_of(options),
            token=options.get("token", ""),
            filters=filters,
            pattern=pattern,
            assigned=assigned,
            starting=_bound(options, "startingOffsets"),
            ending=_bound(options, "endingOffsets"),
            starting_time=_times(options, "startingTimestamp", "startingOffsetsByTimestamp"),
            ending_time=_times(options, "endingTimestamp", "endingOffsetsByTimestamp"),
            strategy=_strategy(options),
            max_rows=whole(options, "maxRowsPerTrigger"),
            max_bytes=whole(options, "maxBytesPerTrigger"),
            min_rows=whole(options, "minRowsPerTrigger"),
            max_delay=_duration(options, "maxTriggerDelay", MAX_DELAY),
            min_partitions=whole(options, "minPartitions"),
            task_rows=whole(options, "maxRecordsPerPartition"),
            fail_on_data_loss=truth(options, "failOnDataLoss", default=True),
            columns=_columns(options),
            has_default_columns="columns" not in options,
            query=options.get("query", ""),
            prefix=options.get("groupIdPrefix", "") or "spark",
            pushdown=truth(options, "pushdown", default=False),
            patience=seconds(options, "retrySeconds", PATIENCE),
        )

    @property
    def asked(self) -> tuple[str, ...]:
        """Every filter that is read with, for the check of rights; none: everything."""
        if self.assigned is None:
            return self.filters
        if not all(self.assigned.values()):
            return ()
        return tuple(dict.fromkeys(one for some in self.assigned.values() for one in some))

    def filters_of(self, partition: int) -> tuple[str, ...]:
        """The filters that hold in a partition; none: everything."""
        return self.filters if self.assigned is None else self.assigned[partition]

    def check_batch(self) -> None:
        """Refuse what a batch cannot do."""
        if _has(self.starting, "latest", LATEST):
            raise ConfigError("startingOffsets", "a batch that begins at the latest has no rows")
        if _has(self.ending, "earliest", EARLIEST):
            raise ConfigError("endingOffsets", "a batch that ends at the earliest has no rows")
        for name, value in (
            ("maxRowsPerTrigger", self.max_rows),
            ("maxBytesPerTrigger", self.max_bytes),
            ("minRowsPerTrigger", self.min_rows),
        ):
            if value:
                raise ConfigError(name, "this is for streams")

    def check_stream(self) -> None:
        """Refuse what a stream cannot do."""
        if self.ending is not None or self.ending_time is not None:
            raise ConfigError("endingOffsets", "a stream has no end")
        if self.max_rows and self.min_rows > self.max_rows:
            raise ConfigError("minRowsPerTrigger", "it is more than maxRowsPerTrigger")


# Names


def named(given: Mapping[str, str], known: Iterable[str]) -> dict[str, str]:
    """Options by their proper names; one that nobody knows, or that comes twice, is refused."""
    known = tuple(known)
    proper = {name.lower(): name for name in known}
    proper |= {alias.lower(): name for alias, name in ALIASES.items() if name in known}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() in _INSTEAD:
            raise ConfigError(name, _INSTEAD[name.lower()])
        if name.lower() not in proper:
            raise ConfigError(name, f"there is no such option; there are {', '.join(known)}")
        ours = proper[name.lower()]
        if ours in found:
            raise ConfigError(ours, f"it is given twice, once as {name}")
        found[ours] = value.strip()
    return found


def is_of_table(given: Mapping[str, str]) -> bool:
    """Whether these are the properties of a table that is being created."""
    return "provider" in given or any(name.startswith(_OF_TABLE) for name in given)


def of_table(given: Mapping[str, str]) -> dict[str, str]:
    """The OPTIONS among the properties of a table.

    Spark gives us all of a table's properties when it is created (`provider`, `owner`, `location`,
    `comment`, TBLPROPERTIES), and each of its OPTIONS twice, once with a prefix.
    """
    return {
        name[len(_OF_TABLE) :]: value
        for name, value in given.items()
        if name.startswith(_OF_TABLE) and name not in _SPARKS
    }


def _exclude(options: Mapping[str, str], names: tuple[str, ...]) -> None:
    """Refuse more than one of these."""
    there = [name for name in names if name in options]
    if len(there) > 1:
        raise ConfigError(there[1], f"give this or {there[0]}, not both")


# Values


def address_of(options: Mapping[str, str]) -> str:
    """Where the broker's HTTP is; of a cluster, where that of some of its nodes is."""
    url = options.get("url", "").rstrip("/")
    if not url:
        text = "say where the broker's HTTP is, such as http://127.0.0.1:7780"
        hint = "where a table does not know, as part of the query: WITH (url = '…')"
        raise ConfigError("url", f"{text}; {hint}")
    origins(url)
    return url


def whole(options: Mapping[str, str], name: str) -> int:
    """A number of at least 1, or 0 where there is none."""
    if name not in options:
        return 0
    text = options[name]
    if not (is_number(text) and 0 < int(text) < 2**63):
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


def _duration(options: Mapping[str, str], name: str, default: float) -> float:
    """A time as Kafka's source has it, `15m`; in seconds."""
    text = options.get(name)
    if text is None:
        return default
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ConfigError(name, f"{text!r} is no time such as 500ms, 30s, 15m or 1h")
    return float(found[1]) * _SECONDS[found[2]]


def _subscription(
    options: Mapping[str, str],
) -> tuple[tuple[str, ...], str, dict[int, tuple[str, ...]] | None]:
    """Filters, a pattern, and which partitions with which filters."""
    _exclude(options, ("subscribe", "subscribePattern"))
    pattern = options.get("subscribePattern", "")
    if "subscribePattern" in options:
        if not pattern:
            raise ConfigError("subscribePattern", "it is empty")
        if "#" in pattern or "/+" in pattern or pattern.startswith("+"):
            text = f"{pattern!r} looks like a filter, which is for subscribe; this is for a regular"
            raise ConfigError("subscribePattern", f"{text} expression such as house/.*/temp")
    filters = _checked("subscribe", options.get("subscribe", "#").split(","))
    if "assign" not in options:
        return filters, pattern, None
    try:
        given = json.loads(options["assign"])
    except ValueError:
        given = None
    if isinstance(given, list):
        return filters, pattern, dict.fromkeys(_partitions(given), filters)
    if not isinstance(given, dict) or not given:
        raise _not_assigned()
    _exclude(options, ("subscribe", "assign"))
    assigned: dict[int, tuple[str, ...]] = {}
    for filter, numbers in given.items():
        (one,) = _checked("assign", [filter]) or ("#",)
        for partition in _partitions(numbers):
            assigned[partition] = (*assigned.get(partition, ()), one)
    return (), pattern, {p: () if "#" in some else some for p, some in assigned.items()}


def _checked(option: str, wanted: Iterable[str]) -> tuple[str, ...]:
    """Filters that are some; none where one of them is for everything."""
    try:
        filters = tuple(check_filter(one.strip()) for one in wanted)
    except RefusedError as error:
        raise ConfigError(option, error.text) from None
    # Everything, the addresses that begin with `$` too: no filter at all, which costs nothing.
    return () if "#" in filters else filters


def _partitions(given: object) -> list[int]:
    if not isinstance(given, list) or not given:
        raise _not_assigned()
    if any(type(one) is not int or one < 0 for one in given):
        raise _not_assigned()
    return given


def _not_assigned() -> ConfigError:
    form = 'JSON such as [0, 2] (partitions) or {"house/#": [0, 2]} (those of a filter)'
    return ConfigError("assign", f"it is {form}")


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
        form = 'earliest, latest, or JSON such as {"0": 23, "1": -2}, by partition of the log'
        raise ConfigError(name, f"{text!r} is not {form}") from None


def _times(options: Mapping[str, str], everywhere: str, by_partition: str) -> int | Offsets | None:
    """µs since 1970, from the milliseconds that Kafka's options have, or from ISO 8601."""
    if everywhere in options:
        return _time(everywhere, options[everywhere])
    if by_partition not in options:
        return None
    text = options[by_partition]
    form = 'JSON such as {"0": 1769860800000, "1": "2026-01-31T12:00"}, by partition of the log'
    try:
        given = json.loads(text)
    except ValueError:
        given = None
    if not isinstance(given, dict) or not given:
        raise ConfigError(by_partition, f"{text!r} is not {form}")
    times: Offsets = {}
    for partition, moment in given.items():
        if not is_number(partition) or type(moment) not in (int, str):
            raise ConfigError(by_partition, f"{text!r} is not {form}")
        times[int(partition)] = _time(by_partition, str(moment))
    return times


def _time(name: str, text: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) <= 15:
        return int(text) * 1000
    try:
        return micros(datetime.fromisoformat(text))
    except ValueError:
        form = "milliseconds since 1970, or a time such as 2026-01-31T12:00"
        raise ConfigError(name, f"{text!r} is not {form}") from None


def _strategy(options: Mapping[str, str]) -> Strategy:
    name = "startingOffsetsByTimestampStrategy"
    match options.get(name, "latest").lower():
        case "latest":
            return "latest"
        case "error":
            return "error"
    raise ConfigError(name, f"{options[name]!r} is neither latest nor error")


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
