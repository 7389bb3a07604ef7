"""Rows as a table has them, in Arrow: its columns, its folders, and rows that have no place in it.

Rows are those of the log (`wirelake.wire.arrow.SCHEMA`) with two more columns: `date`, the day of
the timestamp (UTC), and `level`, the first level of the address, by which a table may be laid out
in folders. Levels are safe names of folders: an empty one is `_empty`; one that is long or has odd
characters keeps its safe characters and gets a checksum. `address` has it unchanged.

A row has no place in the table if its time is not in the calendar or one of its texts is not UTF-8,
since readers would refuse the file. Such rows go to a side table, `<table>_errors`, with the
reason; so does what could not be read of a capture, and rows whose payload does not fit its schema.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from wirelake.address import matches
from wirelake.wire.arrow import SCHEMA

#: The columns that may name folders.
FOLDERS = ("date", "level")

#: The table's schema.
ROWS = pa.schema(
    [
        *SCHEMA,
        pa.field("date", pa.date32(), nullable=False),
        pa.field("level", pa.string(), nullable=False),
    ]
)

#: The side table: where something could not be read, and why.
ERRORS = pa.schema(
    [
        pa.field("file", pa.string(), nullable=False),  # of a capture; or log/<partition>
        pa.field("offset", pa.int64(), nullable=False),  # in the file, in bytes; or in the log
        pa.field("reason", pa.string(), nullable=False),
        pa.field("dialect", pa.string(), nullable=False),
        pa.field("excerpt", pa.binary(), nullable=False),  # the bytes there
        pa.field("time", pa.timestamp("us", tz="UTC"), nullable=False),  # when it was found
        # Of a row whose payload does not fit: all that is needed to send it again.
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("address", pa.string()),
        pa.field("payload", pa.binary()),
    ]
)

#: Bytes of a bad row's payload that the side table has.
EXCERPT = 64

_SAFE_LEVEL = re.compile(r"[A-Za-z0-9.-][A-Za-z0-9._-]{0,63}")
_ODD = re.compile("[^A-Za-z0-9._-]")
_KEPT = ("timestamp", "address", "payload")
_TEXTS = tuple(field.name for field in SCHEMA if pa.types.is_string(field.type))
_END = round(datetime(9999, 12, 31, tzinfo=UTC).timestamp()) * 1_000_000

NO_TIME = "a time that no calendar has"


def level_of(first: str) -> str:
    """The first level of an address, as the name of a folder."""
    if not first:
        return "_empty"
    if _SAFE_LEVEL.fullmatch(first):
        return first
    return f"_{_ODD.sub('_', first)[:48]}-{crc32(first.encode()):x}"


def matching(rows: pa.Table, filters: tuple[str, ...]) -> pa.Table:
    """The rows whose address matches one of the filters; all of them where there is none."""
    if not filters:
        return rows
    addresses = rows.column("address")
    if not pa.types.is_dictionary(addresses.type):
        addresses = addresses.dictionary_encode()
    masks = []
    for chunk in addresses.chunks:
        known = [
            any(matches(one, name) for one in filters) for name in chunk.dictionary.to_pylist()
        ]
        masks.append(pa.array(known, pa.bool_()).take(chunk.indices))
    mask = pa.chunked_array(masks, pa.bool_())
    if pc.all(mask).as_py():
        return rows
    kept = rows.filter(mask)
    # A dictionary still has what was left out, which would widen a file's bounds.
    plain = kept.column("address").cast(pa.string()).dictionary_encode()
    at = kept.schema.get_field_index("address")
    return kept.set_column(at, kept.schema.field(at).with_type(plain.type), plain)


def with_folders(rows: pa.Table) -> pa.Table:
    """Rows of the log with the columns `date` and `level`."""
    levels = pa.chunked_array(
        [_levels(chunk) for chunk in rows.column("address").chunks],
        pa.dictionary(pa.int32(), pa.string()),
    )
    days = rows.column("timestamp").cast(pa.date32())
    added = rows.append_column(ROWS.field("date"), days)
    return added.append_column(pa.field("level", levels.type, nullable=False), levels)


def _levels(addresses: pa.Array) -> pa.DictionaryArray:
    if not pa.types.is_dictionary(addresses.type):
        addresses = addresses.dictionary_encode()
    firsts = pc.replace_substring_regex(addresses.dictionary, "(?s)/.*", "").dictionary_encode()
    names = pa.array([level_of(first) for first in firsts.dictionary.to_pylist()], pa.string())
    return pa.DictionaryArray.from_arrays(firsts.indices.take(addresses.indices), names)


def sift(rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
    """The rows that have a place in the table; the others as the side table has them, if any."""
    reasons: dict[int, str] = {}
    times = rows.column("timestamp").cast(pa.int64())
    bounds = pc.min_max(times).as_py()
    if rows.num_rows and not 0 <= bounds["min"] <= bounds["max"] < _END:
        for row, time in enumerate(times.to_pylist()):
            if not 0 <= time < _END:
                reasons[row] = NO_TIME
    for name in (*_TEXTS, "headers"):
        if not _is_text(rows.column(name)):
            for row in _no_text(rows.column(name)):
                reasons.setdefault(row, f"{_a(name)} that is not UTF-8")
    if not reasons:
        return rows, None
    good, side = set_aside(rows, reasons)
    # Dictionaries may still have what was bad.
    columns = [
        column.cast(column.type.value_type).dictionary_encode()
        if pa.types.is_dictionary(column.type)
        else column
        for column in good.columns
    ]
    return pa.table(columns, names=good.column_names), side


def set_aside(
    rows: pa.Table, reasons: Mapping[int, str], *, whole: bool = False
) -> tuple[pa.Table, pa.Table]:
    """The rows that there is no reason against, and the others as the side table has them.

    `whole` says that the others are fine but for their payload, and are kept with it.
    """
    bad = sorted(reasons)
    found = rows.take(pa.array(bad, pa.int64()))
    kept = (
        [found.column(name).cast(ERRORS.field(name).type) for name in _KEPT]
        if whole
        else [pa.nulls(len(bad), ERRORS.field(name).type) for name in _KEPT]
    )
    side = pa.Table.from_arrays(
        [
            pc.binary_join_element_wise("log", found.column("partition").cast(pa.string()), "/"),
            found.column("offset"),
            pa.array([reasons[row] for row in bad], pa.string()),
            found.column("dialect").cast(pa.string()),
            pc.binary_slice(found.column("payload"), 0, EXCERPT),
            pa.array([datetime.now(UTC)] * len(bad), ERRORS.field("time").type),
            *kept,
        ],
        schema=ERRORS,
    )
    mask = pa.array([row not in reasons for row in range(rows.num_rows)], pa.bool_())
    return rows.filter(mask), side


def errors(found: Iterable[tuple[str, int, str, str, bytes]]) -> pa.Table:
    """Rows of the side table: file, offset, reason, dialect and excerpt of each."""
    now = datetime.now(UTC)
    values = [dict(zip(ERRORS.names, (*one, now), strict=False)) for one in found]
    return pa.Table.from_pylist(values, ERRORS)


def _is_text(column: pa.ChunkedArray) -> bool:
    try:
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                chunk.dictionary.validate(full=True)
            elif pa.types.is_map(chunk.type):
                chunk.keys.validate(full=True)
                chunk.items.validate(full=True)
            else:
                chunk.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _no_text(column: pa.ChunkedArray) -> list[int]:
    """The rows of a column that have bytes which are not UTF-8."""
    found = []
    row = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            known = [_is_utf8(one) for one in chunk.dictionary.view(pa.binary()).to_pylist()]
            whole = [known[index] for index in chunk.indices.to_pylist()]
        elif pa.types.is_map(chunk.type):
            starts = chunk.offsets.to_pylist()  # into all keys, also those before a slice
            parts = [
                [_is_utf8(one) for one in values.view(pa.binary()).to_pylist()]
                for values in (chunk.keys, chunk.items)
            ]
            whole = [all(all(part[a:b]) for part in parts) for a, b in pairwise(starts)]
        else:
            whole = [_is_utf8(one) for one in chunk.view(pa.binary()).to_pylist()]
        found += [row + k for k, is_whole in enumerate(whole) if not is_whole]
        row += len(chunk)
    return found


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def _a(column: str) -> str:
    name = "header" if column == "headers" else column
    return f"{'an' if name[0] in 'aeio' else 'a'} {name}"
