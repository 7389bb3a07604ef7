"""Retention: what is deleted from complete segments, and what is rewritten.

*Retention.* A row of the log belongs to the first rule whose filter its address matches; one
without a rule stays. The rows of a rule go segment by segment: where all of them are older than the
rule allows, or where newer segments alone hold as many bytes of the rule as it allows. A row that
goes and that a queue still needs is *kept*: it leaves the log, and can be read until no queue needs
it.

*What is live.* Rows of the log that stay, kept rows and private messages that a queue needs, and
records from the partition's checkpoint on. A segment of which less than half is live is written
again without the rest. So the files hold at most twice what is live, and one segment more.

*Merging.* Commits of a few messages make small batches. They are put together, in as many segments
as fit into one, when that makes eight times fewer of them. Small segments are not merged with one
that is much larger, so that a row is written again only a few times in its life.

A segment that is written again is a new file, whose chains begin with it. Nothing is deleted before
that file is durable; one that stands for segments of which nothing is left is a head and an index.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.address import matches
from wirelake.journal.arrow_stream import BATCH_ROWS, PREAMBLE, STORED, Compression, ipc
from wirelake.journal.batch import BATCH_BYTES, pack_names
from wirelake.journal.contract import Needed, Space
from wirelake.journal.record import (
    PLACED,
    End,
    Header,
    Piece,
    Record,
    Type,
    encode,
    rows,
    split_rows,
)
from wirelake.journal.segment import STATE, Disk, Draft, Identity, Name, Reader, Segment, pack_head
from wirelake.wire.arrow import SCHEMA

#: Merge only if it reduces the number of batches, or of segments, by this factor.
_GAIN = 8
#: Do not merge a segment that is larger than the next one by this factor.
_MUCH_LARGER = 4
#: What a batch takes beside its rows, in bytes.
_OVERHEAD = 2048
#: So much is read before it is merged.
_MOST_BYTES = 32 << 20


class Rule(NamedTuple):
    """How long rows are kept whose address matches a filter; `#` stands for all of them.

    `max_age` is in seconds, `max_bytes` is for all rows of the rule together.
    """

    filter: str = "#"
    max_age: float | None = None
    max_bytes: int | None = None


class Places:
    """Sorted ranges of places, and all from one on."""

    def __init__(self, ranges: Sequence[tuple[int, int]], since: int) -> None:
        self._starts = [start for start, _ in ranges]
        self._stops = [stop for _, stop in ranges]
        self._before = [0, *accumulate(stop - start for start, stop in ranges)]
        self._since = since

    def count(self, start: int, stop: int) -> int:
        """How many places of [start, stop) are needed."""
        behind = max(0, stop - max(start, self._since))
        return behind + self._up_to(min(stop, self._since)) - self._up_to(min(start, self._since))

    def _up_to(self, place: int) -> int:
        k = bisect_right(self._starts, place)
        inside = max(0, self._stops[k - 1] - place) if k else 0
        return self._before[k] - inside

    def among(self, places: pa.Array) -> pa.Array:
        """Which of these are needed?"""
        found = []
        for place in places.to_pylist():
            k = bisect_right(self._starts, place)
            found.append(place >= self._since or (k > 0 and place < self._stops[k - 1]))
        return pa.array(found, pa.bool_())


class Kept(NamedTuple):
    """What is kept of a partition: places of the log and of private messages, records."""

    log: Places
    private: Places
    number: int

    @classmethod
    def of(cls, needed: Needed, checkpoint: int) -> Kept:
        """What a partition's state refers to, and the first record that it is made of."""
        log = Places(needed.log, needed.offset)
        return cls(log, Places(needed.private, needed.slot), checkpoint)


class Plan(NamedTuple):
    """Segments to be written again as one, and which rules' rows go from each."""

    segments: list[Segment]
    gone: dict[Segment, frozenset[int]]


def plan(
    segments: Sequence[Segment],
    kept: Sequence[Kept],
    rules: Sequence[Rule],
    now: float,
    limit: int,
) -> list[Plan]:
    """What is to be written again of these segments, which are complete; `now` in seconds."""
    gone = _expired(segments, rules, now)
    lives = {segment: _live(segment, kept, gone.get(segment), rules) for segment in segments}
    groups: list[list[Segment]] = []
    total = largest = 0
    for segment in segments:
        size = lives[segment]
        if not groups or total + size > limit or largest > _MUCH_LARGER * max(size, 1 << 16):
            groups.append([])
            total = largest = 0
        groups[-1].append(segment)
        total += size
        largest = max(largest, size)
    return [
        Plan(group, {one: gone[one] for one in group if one in gone})
        for group in groups
        if _is_worth_it(group, gone, lives)
    ]


def _is_worth_it(
    group: list[Segment], gone: Mapping[Segment, frozenset[int]], lives: Mapping[Segment, int]
) -> bool:
    if len(group) >= _GAIN:
        return True
    for one in group:
        garbage = one.live - lives[one]
        if one in gone or one.damaged or not one.complete or 2 * garbage > one.live:
            return True
    batches = sum(one.batches for one in group)
    size = sum(max(0, one.live - _OVERHEAD * one.batches) for one in group)
    return batches >= _GAIN * (len(group[0].ends) + size // BATCH_BYTES)


def _live(
    segment: Segment, kept: Sequence[Kept], gone: frozenset[int] | None, rules: Sequence[Rule]
) -> int:
    """About how many bytes of a segment stay."""
    if gone is None:
        total = sum(log.bytes for log in segment.entries[Space.LOG])
    else:
        total = sum(size for k, size in enumerate(_shares(segment, rules)) if k not in gone)
    for partition, what in enumerate(kept):
        if gone is not None:
            total += _needed_bytes(segment, Space.LOG, partition, what.log)
        total += _needed_bytes(segment, Space.KEPT, partition, what.log)
        total += _needed_bytes(segment, Space.PRIVATE, partition, what.private)
        state = segment.entries[STATE][partition]
        total += state.bytes_since(what.number)
    return total


def _needed_bytes(segment: Segment, space: int, partition: int, needed: Places) -> int:
    entries = segment.entries[space][partition]
    total = 0
    for base, end, there, size in zip(
        entries.base, entries.end, entries.rows, entries.size, strict=True
    ):
        total += size * min(there, needed.count(base, end)) // max(1, there)
    return total


def _expired(
    segments: Sequence[Segment], rules: Sequence[Rule], now: float
) -> dict[Segment, frozenset[int]]:
    """The rules whose rows go, for each segment that has such."""
    going = {}
    newer = [0] * len(rules)
    for segment in reversed(segments):
        shares = _shares(segment, rules)
        latest = max((log.latest for log in segment.entries[Space.LOG]), default=0)
        gone = set()
        for k, rule in enumerate(rules):
            old = rule.max_age is not None and latest < (now - rule.max_age) * 1e6
            many = rule.max_bytes is not None and newer[k] >= rule.max_bytes
            newer[k] += shares[k]
            if (old or many) and shares[k]:
                gone.add(k)
        if gone:
            going[segment] = frozenset(gone)
    return going


def _shares(segment: Segment, rules: Sequence[Rule]) -> list[int]:
    """How many bytes of the log in a segment belong to each rule, and to none."""
    if segment.shares is None or segment.shares[0] != list(rules):
        shares = [0] * (len(rules) + 1)
        if not rules or rules[0].filter == "#":
            shares[0] = sum(log.bytes for log in segment.entries[Space.LOG])
        else:
            with Reader(segment.path) as reader:
                for partition, log in enumerate(segment.entries[Space.LOG]):
                    for at, size, checksum in zip(log.at, log.size, log.checksum, strict=True):
                        found = reader.record(at, size, checksum)
                        if found is not None and found[0].partition == partition:
                            _share(found[1], size, rules, shares)
        segment.shares = (list(rules), shares)
    return segment.shares[1]


def _share(body: memoryview, size: int, rules: Sequence[Rule], shares: list[int]) -> None:
    """Count the bytes of a record."""
    names, stored = split_rows(body)
    of_names = {_rule(name, rules) for name in names}
    if len(of_names) == 1:
        shares[of_names.pop()] += size
        return
    batch = as_one([stored])
    addresses = batch.column("address")
    rule_of = [_rule(address, rules) for address in addresses.dictionary.to_pylist()]
    sizes = pa.table(
        {"address": addresses.indices, "size": pc.binary_length(batch.column("payload"))}
    )
    summed = sizes.group_by("address").aggregate([("size", "sum")])
    share = size // batch.num_rows if batch.num_rows else 0
    for row in summed.to_pylist():
        shares[rule_of[row["address"]]] += max(share, row["size_sum"])


def _rule(address: str, rules: Sequence[Rule]) -> int:
    """The number of the rule that an address belongs to, or of none."""
    for k, rule in enumerate(rules):
        if rule.filter == "#" or matches(rule.filter, address):
            return k
    return len(rules)


#: Tells that a record cannot be read: segment, partition, space, position.
Damaged = Callable[[Segment, int, int, int], object]


def rewrite(
    disk: Disk,
    todo: Plan,
    kept: Sequence[Kept],
    rules: Sequence[Rule],
    identity: Identity,
    damaged: Damaged,
    compression: Compression = "none",
) -> Segment:
    """Write segments as one, with larger batches and without what goes."""
    group = todo.segments
    rewrites = 1 + max(segment.name.rewrites for segment in group)
    name = Name(group[0].name.first, group[-1].name.last, rewrites)
    folder = group[0].path.parent
    made = Segment(folder, name, group[0].begins, rewritten=True)
    with Draft(disk, made.path) as draft:
        draft.write([pack_head(identity, made.begins, rewritten=True)])
        again = _Rewrite(draft, made, identity, kept, rules, compression)
        for segment in group:
            gone = todo.gone.get(segment, frozenset())
            with Reader(segment.path) as reader:
                for space, partition, k in in_order(segment):
                    entries = segment.entries[space][partition]
                    found = reader.record(entries.at[k], entries.size[k], entries.checksum[k])
                    if found is None:
                        damaged(segment, partition, space, k)
                    else:
                        again.add(*found, gone)
        again.flush()
        made.size = draft.size
        made.ends = list(group[-1].ends)
        draft.write(made.index(identity))
    made.complete = True
    made.headers = []
    return made


def in_order(segment: Segment) -> Iterator[tuple[int, int, int]]:
    """Space, partition and position of all records, in the order of the file."""
    places = [
        (at, space, partition, k)
        for space, partitions in enumerate(segment.entries)
        for partition, entries in enumerate(partitions)
        for k, at in enumerate(entries.at)
    ]
    for _, space, partition, k in sorted(places):
        yield space, partition, k


class _Rewrite:
    """A segment that is being written again; records are added in order."""

    def __init__(
        self,
        draft: Draft,
        made: Segment,
        identity: Identity,
        kept: Sequence[Kept],
        rules: Sequence[Rule],
        compression: Compression,
    ) -> None:
        self._compression: Compression = compression
        self._draft = draft
        self._made = made
        self._identity = identity
        self._kept = kept
        self._rules = rules
        self._chains = [0] * identity.partitions
        self._merges: dict[tuple[int, Type], _Merge] = {}

    def add(self, header: Header, body: memoryview, gone: frozenset[int]) -> None:
        """Add what stays of a record."""
        partition, kind = header.partition, Type(header.type)
        kept = self._kept[partition]
        if kind not in PLACED:
            if header.number >= kept.number:
                self._write(header, Record(kind, [body], header.base, header.count))
            return
        end = header.base + header.count
        needed = kept.private if kind is Type.MESSAGES else kept.log
        if kind is Type.ROWS and not gone:
            self._place(header, body, None)
        elif kind is Type.ROWS:
            batch = as_one([split_rows(body)[1]])
            names = batch.column("address").dictionary.to_pylist()
            stays = pa.array([_rule(name, self._rules) not in gone for name in names], pa.bool_())
            staying = stays.take(batch.column("address").indices)
            self._place(header, body, batch.filter(staying))
            if needed.count(header.base, end):
                left = batch.filter(pc.invert(staying))
                left = left.filter(needed.among(left.column("offset")))
                self._place(header._replace(type=Type.KEPT), body, left)
        elif needed.count(header.base, end) >= header.count:
            self._place(header, body, None)
        elif needed.count(header.base, end):
            batch = as_one([split_rows(body)[1]])
            self._place(header, body, batch.filter(needed.among(batch.column("offset"))))

    def _place(self, header: Header, body: memoryview, staying: pa.RecordBatch | None) -> None:
        """Add rows that stay; None for all of them, as they are."""
        if staying is not None and not staying.num_rows:
            return
        merge = self._merges.setdefault(
            (header.partition, Type(header.type)), _Merge(self._compression)
        )
        large = staying is None and len(body) >= BATCH_BYTES // 2
        if large or not merge.takes(header):
            self._flush(merge)
        if large:
            fields = (header.base, header.count, header.first_time, header.last_time, header.rows)
            self._write(header, Record(Type(header.type), [body], *fields))
        else:
            merge.add(header, split_rows(body)[1] if staying is None else ipc(staying))

    def flush(self) -> None:
        """Write all rows that were added."""
        for merge in self._merges.values():
            self._flush(merge)

    def _flush(self, merge: _Merge) -> None:
        if merge.headers:
            last = merge.headers[-1]
            self._write(last, merge.take())

    def _write(self, header: Header, record: Record) -> None:
        """Write a record under the number and epoch of this header."""
        partition = header.partition
        end = End(header.number - 1, header.epoch, checksum=self._chains[partition])
        made, pieces = encode(record, self._identity.mark, partition, end, 0)
        self._chains[partition] = made.checksum
        self._made.add(made, self._draft.write(pieces))


class _Merge:
    """Small batches of one partition and type, which are going to be one."""

    def __init__(self, compression: Compression) -> None:
        self._compression: Compression = compression
        self.headers: list[Header] = []
        self._stored: list[Piece] = []
        self._size = 0  # of the rows
        self._bytes = 0  # of the batches that they are in

    def takes(self, header: Header) -> bool:
        """Does this one fit in?"""
        if not self.headers:
            return True
        places = header.base + header.count - self.headers[0].base
        small = self._size + _rows_size(header.body) <= BATCH_BYTES
        return places <= BATCH_ROWS and small and self._bytes <= _MOST_BYTES

    def add(self, header: Header, ipc: Piece) -> None:
        """Add a batch."""
        self.headers.append(header)
        self._stored.append(ipc)
        self._size += _rows_size(len(ipc))
        self._bytes += len(ipc)

    def take(self) -> Record:
        """All of them as one record."""
        first, last = self.headers[0], self.headers[-1]
        batch = as_one(self._stored)  # rows that were filtered out leave their addresses behind
        record = rows(
            first.base,
            last.base + last.count - first.base,
            min(one.first_time for one in self.headers),
            max(one.last_time for one in self.headers),
            [ipc(batch, self._compression)],
            names=pack_names(
                [one.encode() for one in batch.column("address").dictionary.to_pylist()]
            ),
            type=Type(first.type),
            there=batch.num_rows,
        )
        self.headers, self._stored = [], []
        self._size = self._bytes = 0
        return record


def _rows_size(size: int) -> int:
    """Return the approximate size of the rows in a batch of this many bytes."""
    return max(size - _OVERHEAD, size // 16)


def as_one(stored: Sequence[Piece]) -> pa.RecordBatch:
    """Stored batches as one."""
    with pa.ipc.open_stream(b"".join((PREAMBLE, *stored))) as stream:
        return _compact(stream.read_all())


def _compact(table: pa.Table) -> pa.RecordBatch:
    """The rows of a table as one batch, without addresses that no row has."""
    table = table.cast(SCHEMA)
    columns = []
    for field, column in zip(STORED, table.columns, strict=True):
        whole = column.combine_chunks()
        columns.append(whole.dictionary_encode() if pa.types.is_dictionary(field.type) else whole)
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def from_place(stored: bytes | memoryview, place: int) -> memoryview:
    """A stored batch without the rows before a place."""
    batch = as_one([stored])
    staying = batch.filter(pc.greater_equal(batch.column("offset"), place))
    return ipc(_compact(pa.Table.from_batches([staying])))
