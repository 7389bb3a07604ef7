"""What clients of a cluster did and were told, what was found afterwards, and whether it fits.

`check` returns every way in which a history is wrong:

1. What was acknowledged is found, and nothing is found twice.
2. The log's offsets have no holes.
3. What one producer published to one address is in order.
4. An epoch has one owner, and epochs count up.
5. Each key of the store is linearizable.
6. A message of a queue is delivered until it is acknowledged, and not after.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Told(Enum):
    """What a client learned of its operation."""

    DONE = "done"
    #: It was not done and never will be.
    REFUSED = "refused"
    #: No answer came: it may be done, now or later, or never.
    NOTHING = "nothing"


@dataclass
class Operation:
    """One request of a client. `value` is unique among the operations that change something."""

    kind: str  # publish, write, read, put, take, ack
    client: str
    name: str  # the address, key or queue
    value: Any = None  # what was published, written or put; what a read or a take returned
    begun: float = 0.0
    ended: float = 0.0
    told: Told = Told.NOTHING


@dataclass(frozen=True)
class Row:
    """A row of the log."""

    offset: int
    address: str
    producer: str
    number: int


@dataclass
class Found:
    """What the cluster holds at the end."""

    log: dict[int, list[Row]] = field(default_factory=dict)
    epochs: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    queues: dict[str, list[Any]] = field(default_factory=dict)
    #: The nodes that said they served a partition in an epoch.
    served: set[tuple[int, int, str]] = field(default_factory=set)


def check(history: Iterable[Operation], found: Found) -> list[str]:
    """Return what is wrong, nothing where all is well."""
    history = list(history)
    return [
        *_log(history, found),
        *_epochs(found),
        *_store(history),
        *_queues(history, found),
    ]


def _log(history: list[Operation], found: Found) -> Iterator[str]:
    rows = Counter((row.producer, row.number) for some in found.log.values() for row in some)
    for one in history:
        if one.kind == "publish":
            times = rows[one.client, one.value]
            if one.told is Told.DONE and not times:
                yield f"lost: {one.client} published {one.value}, which was acknowledged"
            if one.told is Told.REFUSED and times:
                yield f"refused and found: {one.client} published {one.value}"
    for (producer, number), times in rows.items():
        if times > 1:
            yield f"twice: {producer} published {number} once, found {times} times"
    for partition, some in found.log.items():
        for expected, row in enumerate(some):
            if row.offset != expected:
                yield f"hole: partition {partition} has offset {row.offset} in place {expected}"
                break
        latest: dict[tuple[str, str], int] = {}
        for row in some:
            if row.number < latest.get((row.producer, row.address), -1):
                yield f"order: {row.producer} at {row.address}: {row.number} is late"
            latest[row.producer, row.address] = row.number


def _epochs(found: Found) -> Iterator[str]:
    for partition, epochs in found.epochs.items():
        numbers = [epoch for epoch, _ in epochs]
        if numbers != sorted(set(numbers)):
            yield f"epochs: partition {partition} has {numbers}"
        owners = dict(epochs)
        for number, epoch, node in found.served:
            if number == partition and owners.get(epoch) != node:
                said = f"epoch {epoch} of partition {partition}"
                yield f"owners: {node} served {said}, which is {owners.get(epoch)}'s"


def _store(history: list[Operation]) -> Iterator[str]:
    keys: defaultdict[str, list[Operation]] = defaultdict(list)
    for one in history:
        is_change = one.kind == "write" and one.told is not Told.REFUSED
        if is_change or (one.kind == "read" and one.told is Told.DONE):
            keys[one.name].append(one)
    for key, some in keys.items():
        if not is_linearizable(some):
            yield f"store: the reads and writes of {key} have no order"


def is_linearizable(operations: list[Operation]) -> bool:
    """Whether reads and writes of one key could have happened one after the other.

    Each takes effect at some moment between its beginning and its end; a write without an answer at
    any moment after its beginning, or never. Searches all orders that the times allow (Wing and
    Gong), and no state twice (Lowe).
    """
    some = sorted(operations, key=lambda one: one.begun)
    ends = [one.ended if one.told is Told.DONE else float("inf") for one in some]
    needed = sum(1 << k for k, one in enumerate(some) if one.told is Told.DONE)
    seen: set[tuple[int, Any]] = set()
    todo: list[tuple[int, Any]] = [(0, None)]
    while todo:
        done, value = todo.pop()
        if done & needed == needed:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        first_end = min(end for k, end in enumerate(ends) if not done >> k & 1)
        for k, one in enumerate(some):
            if one.begun > first_end:
                break
            if done >> k & 1:
                continue
            if one.kind == "write":
                todo.append((done | 1 << k, one.value))
            elif one.value == value:
                todo.append((done | 1 << k, value))
    return False


def _queues(history: list[Operation], found: Found) -> Iterator[str]:
    put = {(one.name, one.value): one for one in history if one.kind == "put"}
    acks: dict[tuple[str, Any], Operation] = {}
    for one in history:
        if one.kind == "ack":
            acks.setdefault((one.name, one.value), one)
    left = {(name, value) for name, values in found.queues.items() for value in values}
    for one in history:
        if one.kind != "take" or one.told is not Told.DONE or one.value is None:
            continue
        item = one.name, one.value
        if item not in put:
            yield f"queue: {one.value} of {one.name} was delivered and never put"
        elif put[item].told is Told.REFUSED:
            yield f"queue: {one.value} of {one.name} was refused and delivered"
        ack = acks.get(item)
        if ack is not None and ack.told is Told.DONE and ack.ended < one.begun:
            yield f"queue: {one.value} of {one.name} was acknowledged and delivered again"
    for item, one in put.items():
        if one.told is Told.DONE and item not in left and item not in acks:
            yield f"queue: {one.value} of {one.name} is lost"
    for item, ack in acks.items():
        if ack.told is Told.DONE and item in left:
            yield f"queue: {item[1]} of {item[0]} was acknowledged and is still there"
    for item in left:
        if item not in put:
            yield f"queue: {item[1]} of {item[0]} was never put"
