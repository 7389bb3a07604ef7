"""What goes and what is brought together, in segments that are complete.

*Retention.* A row belongs to the first rule whose filter its address matches; a row without a rule
stays. The rows of a rule go segment by segment: where all of them are older than the rule allows,
or where newer segments alone hold as many bytes of the rule as it allows. A segment with nothing
left in it is deleted; otherwise it is written again without the rows that go. The rows that stay
keep their offsets, so a batch may have holes.

*Merging.* Commits of a few messages make small batches. They are put together, in as many segments
as fit into one, when that makes eight times fewer of them. Small segments are not merged with one
that is much larger, so that a row is rewritten only a few times in its life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.address import matches
from wirelake.engine.arrow_stream import BATCH_ROWS, PREAMBLE, STORED, Compression, decode, ipc
from wirelake.engine.batch import BATCH_BYTES, Batch, pack_names
from wirelake.engine.segment import (
    RECORD_HEADER,
    Draft,
    Header,
    Identity,
    Name,
    Reader,
    Segment,
    head,
    is_whole,
    parse_header,
    parse_names,
    record,
)
from wirelake.errors import EngineError
from wirelake.wire.arrow import SCHEMA

#: Merging is worth it when there are so many times fewer batches, or segments, afterwards.
_GAIN = 8
#: A segment so many times larger than the next one is left alone.
_MUCH_LARGER = 4
#: What a batch takes beside its rows, in bytes.
_OVERHEAD = 2048
#: So much is read before it is merged.
_MOST_BYTES = 32 << 20


class Retention(NamedTuple):
    """How long rows are kept whose address matches a filter; `#` stands for all of them.

    `max_age` is in seconds, `max_bytes` is for all rows of the rule together.
    """

    filter: str = "#"
    max_age: float | None = None
    max_bytes: int | None = None


#: The rules whose rows go, for each segment that has such; None where that is all of it.
Going = dict[Segment, frozenset[int] | None]


def expired(segments: Sequence[Segment], rules: Sequence[Retention], now: float) -> Going:
    """What has expired."""
    going: Going = {}
    newer = [0] * len(rules)
    for segment in reversed(segments):
        shares = _shares(segment, rules)
        gone = set()
        for k, rule in enumerate(rules):
            old = rule.max_age is not None and segment.latest < (now - rule.max_age) * 1e6
            many = rule.max_bytes is not None and newer[k] >= rule.max_bytes
            newer[k] += shares[k]
            if (old or many) and shares[k]:
                gone.add(k)
        if gone:
            left = sum(share for k, share in enumerate(shares) if k not in gone)
            going[segment] = frozenset(gone) if left else None
    return going


def groups(segments: Sequence[Segment], going: Going, limit: int) -> list[list[Segment]]:
    """Which segments are to be written again, those in a group as one."""
    found: list[list[Segment]] = []
    total = largest = 0
    for segment in segments:
        size = _merged_size(segment)
        if not found or total + size > limit or largest > _MUCH_LARGER * size:
            found.append([])
            total = largest = 0
        found[-1].append(segment)
        total += size
        largest = max(largest, size)
    return [group for group in found if _is_worth_it(group, going)]


def _merged_size(segment: Segment) -> int:
    """About the size that a segment will have when its batches are large."""
    size = segment.size - segment.changes_bytes
    return max(size - _OVERHEAD * segment.batches, size // 16)


def _is_worth_it(group: list[Segment], going: Going) -> bool:
    if any(segment in going for segment in group) or len(group) >= _GAIN:
        return True
    if any(segment.changes_bytes > segment.size // _GAIN for segment in group):
        return True
    fewest = len(group[0].starts) + sum(map(_merged_size, group)) // BATCH_BYTES
    return sum(segment.batches for segment in group) >= _GAIN * fewest


def rewrite(
    group: list[Segment],
    going: Mapping[Segment, frozenset[int] | None],
    rules: Sequence[Retention],
    identity: Identity,
    compression: Compression,
) -> Segment:
    """Write segments as one, with larger batches and without what goes."""
    rewrites = 1 + max(segment.name.rewrites for segment in group)
    name = Name(group[0].name.first, group[-1].name.last, rewrites)
    merged = Segment(group[0].path.parent, name, group[0].starts)
    merged.checked = True
    with Draft(merged.path) as draft:
        draft.write([head(identity, merged.starts)])
        merges = [_Merge(draft, merged, identity, compression) for _ in merged.starts]
        for segment in group:
            gone = going.get(segment) or frozenset()
            with Reader(segment.path) as reader:
                for partition, k in segment.spans():
                    header, data = _read(reader, segment, partition, k)
                    if not gone and header.body >= BATCH_BYTES // 2:
                        merges[partition].flush(rules)
                        merged.add(header, draft.write([data]))
                    else:
                        merges[partition].add(header, data, gone, rules)
        for merge in merges:
            merge.flush(rules)
        merged.size = draft.size
    return merged


def _read(reader: Reader, segment: Segment, partition: int, k: int) -> tuple[Header, memoryview]:
    """A record, which is as it was written."""
    entries = segment.entries[partition]
    data = reader.read(entries.at[k], entries.size[k])
    header = parse_header(data)
    if header is None or not is_whole(data, header):
        segment.checked = False  # the next round sets it aside
        raise EngineError(f"{segment.path.name} is damaged at byte {entries.at[k]}", retriable=True)
    return header, data


class _Merge:
    """Small batches of one partition, which are going to be one."""

    def __init__(
        self, draft: Draft, merged: Segment, identity: Identity, compression: Compression
    ) -> None:
        self._draft = draft
        self._merged = merged
        self._identity = identity
        self._compression = compression
        self._headers: list[Header] = []
        self._stored: list[memoryview] = []
        self._size = 0  # of the rows
        self._bytes = 0  # of the batches that they are in
        self._gone: frozenset[int] = frozenset()

    def add(
        self, header: Header, data: memoryview, gone: frozenset[int], rules: Sequence[Retention]
    ) -> None:
        """Add a record, of which the rows of some rules go."""
        if self._headers:
            first, last = self._headers[0], self._headers[-1]
            rows = header.base + header.count - first.base
            alike = last.base + last.count == header.base and gone == self._gone
            small = rows <= BATCH_ROWS and self._size + _rows_size(header) <= BATCH_BYTES
            if not alike or not small or self._bytes > _MOST_BYTES:
                self.flush(rules)
        self._headers.append(header)
        self._stored.append(data[RECORD_HEADER + header.names :])
        self._size += _rows_size(header)
        self._bytes += header.body
        self._gone = gone

    def flush(self, rules: Sequence[Retention]) -> None:
        """Write what was added as one batch, if any row is left of it."""
        headers, stored = self._headers, self._stored
        self._headers, self._stored = [], []
        self._size = self._bytes = 0
        if not headers:
            return
        batch = _as_one(stored, self._gone, rules)
        if not batch.num_rows:
            return
        merged = Batch(
            headers[0].partition,
            headers[0].base,
            headers[-1].base + headers[-1].count - headers[0].base,
            min(header.first_time for header in headers),
            max(header.last_time for header in headers),
            [ipc(batch, self._compression)],
            pack_names(batch.column("address").dictionary.cast(pa.binary()).to_pylist()),
        )
        header, pieces = record(merged, self._identity)
        self._merged.add(header, self._draft.write(pieces))


def _rows_size(header: Header) -> int:
    """About the size of the rows in a batch."""
    return max(header.body - _OVERHEAD, header.body // 16)


def _as_one(
    stored: list[memoryview], gone: frozenset[int], rules: Sequence[Retention]
) -> pa.RecordBatch:
    """Batches as one, without the rows of some rules, and no address that has none left."""
    with pa.ipc.open_stream(b"".join((PREAMBLE, *stored))) as stream:
        table = stream.read_all().cast(SCHEMA)
    if gone:
        addresses = table.column("address").combine_chunks().dictionary_encode()
        names = addresses.dictionary.to_pylist()
        stays = pa.array([_rule(name, rules) not in gone for name in names], pa.bool_())
        table = table.filter(stays.take(addresses.indices))
    columns = []
    for field, column in zip(STORED, table.columns, strict=True):
        whole = column.combine_chunks()
        columns.append(whole.dictionary_encode() if pa.types.is_dictionary(field.type) else whole)
    return pa.RecordBatch.from_arrays(columns, schema=STORED)


def _rule(address: str, rules: Sequence[Retention]) -> int:
    """The number of the rule that an address belongs to, or of none."""
    for k, rule in enumerate(rules):
        if rule.filter == "#" or matches(rule.filter, address):
            return k
    return len(rules)


def _shares(segment: Segment, rules: Sequence[Retention]) -> list[int]:
    """How many bytes of a segment belong to each rule, and to none."""
    shares = [0] * (len(rules) + 1)
    if not rules or rules[0].filter == "#":
        shares[0] = segment.size
        return shares
    if segment.shares is None or segment.shares[0] != list(rules):
        with Reader(segment.path) as reader:
            for partition, k in segment.spans():
                _share(*_read(reader, segment, partition, k), rules, shares)
        segment.shares = (list(rules), shares)
    return segment.shares[1]


def _share(header: Header, data: memoryview, rules: Sequence[Retention], shares: list[int]) -> None:
    """Count the bytes of a record."""
    body = RECORD_HEADER + header.names
    of_names = {_rule(name, rules) for name in parse_names(data[RECORD_HEADER:body])}
    if len(of_names) == 1:
        shares[of_names.pop()] += header.size
        return
    batch = decode(data[body:])
    addresses = batch.column("address")
    rule_of = [_rule(address, rules) for address in addresses.dictionary.to_pylist()]
    sizes = pa.table(
        {"address": addresses.indices, "size": pc.binary_length(batch.column("payload"))}
    )
    summed = sizes.group_by("address").aggregate([("size", "sum"), ("size", "count")])
    share = header.size // batch.num_rows if batch.num_rows else 0
    for row in summed.to_pylist():
        shares[rule_of[row["address"]]] += max(share, row["size_sum"])
