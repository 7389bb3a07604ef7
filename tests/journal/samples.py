"""Rows, outcomes and states for the tests of journals."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from wirelake.journal.arrow_stream import END, PREAMBLE, STORED
from wirelake.journal.arrow_stream import ipc as ipc_of
from wirelake.journal.contract import Batch, Journal, Outcome, Recovered, Space
from wirelake.journal.record import (
    Change,
    Entry,
    QueueChanges,
    Record,
    Type,
    decode_entries,
    encode_entries,
    rows,
)
from wirelake.wire.arrow import SCHEMA


def batch_of(
    base: int, payloads: Sequence[bytes], addresses: Sequence[str], time: int
) -> pa.RecordBatch:
    """Rows with offsets from `base` on, all received at a time in µs."""
    count = len(payloads)
    columns: dict[str, object] = {
        "partition": [0] * count,
        "offset": range(base, base + count),
        "timestamp": [time] * count,
        "address": addresses,
        "op": ["publish"] * count,
        "dialect": ["kobold-3"] * count,
        "id": [""] * count,
        "correlation_id": [""] * count,
        "source": [""] * count,
        "target": [""] * count,
        "content_type": [0] * count,
        "priority": [0] * count,
        "ttl": [0] * count,
        "headers": [[]] * count,
        "payload": payloads,
    }
    plain = [pa.array(columns[one.name], one.type) for one in SCHEMA]
    stored = [
        column.dictionary_encode() if pa.types.is_dictionary(one.type) else column
        for one, column in zip(STORED, plain, strict=True)
    ]
    return pa.RecordBatch.from_arrays(stored, schema=STORED)


def some_rows(
    base: int,
    payloads: Sequence[bytes],
    *,
    address: str | Sequence[str] = "plant/1",
    time: int = 1_000_000,
    type: Type = Type.ROWS,
) -> Record:
    """A record of rows or messages."""
    addresses = [address] * len(payloads) if isinstance(address, str) else address
    names = b"".join(bytes([len(one)]) + one.encode() for one in dict.fromkeys(addresses))
    ipc = ipc_of(batch_of(base, payloads, addresses, time))
    return rows(base, len(payloads), time, time, [ipc], names=names, type=type)


def decoded(ipc: bytes | memoryview) -> dict[int, bytes]:
    """Payloads by offset."""
    with pa.ipc.open_stream(b"".join((PREAMBLE, ipc, END))) as stream:
        table = stream.read_all()
    return dict(
        zip(table.column("offset").to_pylist(), table.column("payload").to_pylist(), strict=True)
    )


def payloads(
    journal: Journal, partition: int, *, space: Space = Space.LOG, stop: int = 1 << 60
) -> dict[int, bytes]:
    """All payloads of a space, by place."""
    found: dict[int, bytes] = {}
    for batch in journal.read(partition, 0, stop, space=space):
        new = decoded(batch.ipc)
        assert not new.keys() & found.keys(), "a row was read twice"
        assert all(batch.base <= place < batch.base + batch.count for place in new)
        found |= new
    assert list(found) == sorted(found)
    return found


def keys(values: Mapping[str, bytes], revision: int = 1) -> Record:
    """A record that sets keys."""
    entries = [Entry(Change.SET, name.encode(), value, revision) for name, value in values.items()]
    return encode_entries(Type.KEYS, entries)


class Outcomes:
    """Takes outcomes as they come, and waits for them."""

    def __init__(self) -> None:
        self.told: list[dict[int, Outcome]] = []
        self.threads: list[int] = []
        self._changed = threading.Condition()

    def __call__(self, outcomes: Mapping[int, Outcome]) -> None:
        with self._changed:
            self.told.append(dict(outcomes))
            self.threads.append(threading.get_ident())
            self._changed.notify_all()

    def wait(self, count: int = 1, timeout: float = 10.0) -> dict[int, Outcome]:
        """Wait for so many partitions' outcomes; the latest of each partition."""
        with self._changed:
            assert self._changed.wait_for(lambda: sum(map(len, self.told)) >= count, timeout)
            return {partition: one for told in self.told for partition, one in told.items()}


def commit(
    journal: Journal, partition: int, records: Sequence[Record], *, in_place: bool = False
) -> Outcome:
    """Append a commit and wait for its outcome."""
    outcomes = Outcomes()
    journal.append({partition: records}, outcomes, in_place=in_place)
    return outcomes.wait()[partition]


@dataclass
class State:
    """The naive model of what an owner keeps of a partition: keys, and queues of places."""

    keys: dict[bytes, bytes] = field(default_factory=dict)
    #: Queue → sequence → (private, place).
    queues: dict[int, dict[int, tuple[bool, int]]] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """Apply a record, as an owner would."""
        if record.type is Type.KEYS:
            for entry in decode_entries(record.data):
                if entry.change is Change.SET:
                    self.keys[entry.name] = entry.value
                else:
                    self.keys.pop(entry.name, None)
        elif record.type is Type.QUEUES:
            changes = QueueChanges.parse(record.data)
            for queue, _, _ in changes.declared:
                self.queues.setdefault(queue, {})
            for put in changes.puts():
                into = self.queues.setdefault(put.queue, {})
                for k in range(put.count):
                    into[put.sequence + k] = (put.private, put.place + k)
            for queue, sequence, count in changes.drops():
                for k in range(count):
                    self.queues.get(queue, {}).pop(sequence + k, None)
            for queue in changes.removed:
                self.queues.pop(queue, None)

    @classmethod
    def of(cls, recovered: Recovered | Iterable[Record]) -> State:
        """The state that records make."""
        state = cls()
        for record in recovered.records if isinstance(recovered, Recovered) else recovered:
            state.apply(record)
        return state


def read_batches(batches: Iterable[Batch]) -> list[tuple[int, int]]:
    """Where batches begin and how many places they have."""
    return [(batch.base, batch.count) for batch in batches]
