"""Which of a query's filters the broker can apply, and what they leave of the log.

Filters are taken only where the option `pushdown` says so, and Spark pushes them down to a Python
source only where the session's configuration says so (`spark.sql.python.filterPushdown.enabled`).

Neither is the default, as Spark 4.3 keeps one plan for all that is made of one `load()`:
after `log.where("address = 'a'")`, a plain `log.count()` counts the rows of `a`, and of
`log.where("address = 'a'").union(log.where("address = 'b'"))` both halves are the rows of `b`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from wirelake.address import check_address, matches
from wirelake.errors import RefusedError
from wirelake.spark import offsets

#: Addresses that are asked for by name at most; a query has room for a hundred parameters.
MOST_ADDRESSES = 64
#: More than any offset, partition or time.
LARGEST = 2**63 - 1

#: What a comparison adds to its number to make it the first that is in, and the first that is not.
_STEPS: dict[type[Filter], tuple[int | None, int | None]] = {
    EqualTo: (0, 1),
    GreaterThan: (1, None),
    GreaterThanOrEqual: (0, None),
    LessThan: (None, 0),
    LessThanOrEqual: (None, 1),
}


@dataclass
class Wanted:
    """What pushed filters leave of the log."""

    addresses: frozenset[str] | None = None
    prefix: str = ""  # a filter that leaves more than is wanted
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)  # [least, most) of a column

    def take(self, given: Filter, subscribed: Sequence[str]) -> bool:
        """Whether a filter is fully taken care of from now on."""
        match given:
            case EqualTo(("address",), str(address)):
                return self._take_addresses({address})
            case In(("address",), values):
                return self._take_addresses({one for one in values if one is not None})
            case StringStartsWith(("address",), str(prefix)):
                levels = prefix.rpartition("/")[0]
                if _is_address(levels) and not subscribed and not levels.startswith("$"):
                    self.prefix = max(self.prefix, f"{levels}/#", key=len)
                return False  # a filter ends at a level
        return self._take_bound(given)

    def _take_addresses(self, addresses: set[str]) -> bool:
        # A name with a wildcard in it would be taken for a filter, and the broker would refuse what
        # is no address at all.
        if len(addresses) > MOST_ADDRESSES or not all(map(_is_address, addresses)):
            return False
        before = self.addresses
        self.addresses = frozenset(addresses if before is None else before & addresses)
        return True

    def _take_bound(self, given: Filter) -> bool:
        steps = _STEPS.get(type(given))
        if steps is None:
            return False
        path, value = given.attribute, given.value  # type: ignore[attr-defined]  # all of these have
        number = _number(path, value)
        if number is None:
            return False
        least, most = self.bounds.get(path[0], (-LARGEST, LARGEST))
        above, below = steps
        self.bounds[path[0]] = (
            least if above is None else max(least, number + above),
            most if below is None else min(most, number + below),
        )
        return True

    def filters(self, subscribed: tuple[str, ...]) -> tuple[str, ...] | None:
        """The filters to ask the broker for; None where nothing can match."""
        if self.addresses is not None:
            found = tuple(
                one
                for one in sorted(self.addresses)
                if not subscribed or any(matches(filter, one) for filter in subscribed)
            )
            return found or None
        return subscribed or ((self.prefix,) if self.prefix else ())


def _is_address(text: str) -> bool:
    try:
        check_address(text)
    except RefusedError:
        return False
    return True


def _number(path: tuple[str, ...], value: object) -> int | None:
    """What a column is compared with, where rows are in its order."""
    match path:
        case ("timestamp",) if isinstance(value, datetime):
            return offsets.micros(value)
        case ("partition" | "offset",) if type(value) is int:
            return value
    return None


class Pushdown:
    """What Spark calls as a reader's `pushFilters`.

    Where pushdown is switched off, Spark refuses a reader that has its own method `pushFilters`
    (DATA_SOURCE_PUSHDOWN_DISABLED), though the reader can do without. It looks at `__func__` to see
    whether the method is the base class's. So this says it is, and is called where pushdown is on.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, wanted: Wanted, subscribed: Sequence[str]) -> None:
        self._wanted = wanted
        self._subscribed = subscribed

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the broker can apply; the others are left to Spark."""
        return [one for one in filters if not self._wanted.take(one, self._subscribed)]
