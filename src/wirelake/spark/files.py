"""Parquet files of a table, written by tasks: from Arrow to a file, without Spark in between.

Rows are gathered to large row groups, so that dictionaries and compression pay; a file that has
become large is followed by another one. What a task hands back for each file is what the commit
needs: its path, its rows, its size, and the smallest and largest values of the columns that queries
choose by, with which readers skip files.

A file has a name of its own and is complete when its writer is closed. As long as no commit names
it, nobody reads it: a task that dies, or that Spark runs twice, leaves a file that vacuum removes.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wirelake.spark.storage import Storage, draft_of

#: A row group has about this many bytes in memory, and at most this many rows.
GROUP_BYTES = 64 << 20
GROUP_ROWS = 1 << 20
#: What a task keeps in memory over all folders before it writes it (bytes).
MOST_BYTES = 256 << 20
#: A file is closed once it is this large (bytes).
FILE_BYTES = 256 << 20
#: The columns whose smallest and largest values stand in the commit.
WITH_STATISTICS = ("partition", "offset", "timestamp", "address", "date", "level")
#: Characters of a text in the statistics; what is longer is cut, so that it still is a bound.
LONGEST_BOUND = 64

_RISING = ("offset", "timestamp", "ttl", "content_type")
_LAST = "\U0010ffff"  # behind every character that a text may go on with


@dataclass(frozen=True)
class Target:
    """A table as a task sees it: where its files go, and what they look like."""

    storage: Storage
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    compression: str = "snappy"
    file_bytes: int = FILE_BYTES


@dataclass(frozen=True)
class Written:
    """A file that is ready to be committed; `path` is below the table."""

    path: str
    rows: int
    size: int
    values: Mapping[str, str] = field(default_factory=dict)  # of the columns that name folders
    statistics: str = "{}"


class TableWriter:
    """Writes the rows of one task to the files of one table."""

    def __init__(self, target: Target, name: str = "") -> None:
        """Files have random names, or names that begin with `name` and are the same each time."""
        self._target = target
        self._name = name
        self._folders: dict[tuple[str, ...], _Folder] = {}

    def write(self, rows: pa.Table) -> None:
        """Take rows that have the columns of the table."""
        if not rows.num_rows:
            return
        for values, part in _by_folder(rows, self._target.partition_by):
            if values not in self._folders:
                self._folders[values] = _Folder(self._target, values, self._name)
            self._folders[values].add(part)
        if sum(folder.waiting for folder in self._folders.values()) > MOST_BYTES:
            for folder in self._folders.values():
                folder.flush()

    def close(self) -> list[Written]:
        """Finish all files and say what they are."""
        return [file for folder in self._folders.values() for file in folder.close()]


class _Folder:
    """The files of one folder."""

    def __init__(self, target: Target, values: tuple[str, ...], name: str) -> None:
        self._target = target
        self._values = dict(zip(target.partition_by, values, strict=True))
        self._path = "/".join(f"{key}={value}" for key, value in self._values.items())
        self._name = name
        self._rows: list[pa.Table] = []
        self._count = 0
        self.waiting = 0  # bytes
        self._file: _File | None = None
        self._done: list[Written] = []

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self._count += rows.num_rows
        self.waiting += rows.nbytes
        if self.waiting >= GROUP_BYTES or self._count >= GROUP_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what was gathered as a row group."""
        if not self._count:
            return
        names = [one for one in self._target.schema.names if one not in self._values]
        tables = [rows.select(names) for rows in self._rows]
        group = _one_piece(pa.concat_tables([_as(rows, tables[0].schema) for rows in tables]))
        self._rows, self._count, self.waiting = [], 0, 0
        if self._file is None:
            self._file = _File(self._target, self._new_path(), group.schema)
        self._file.write(group)
        if self._file.size >= self._target.file_bytes:
            self._finish()

    def close(self) -> list[Written]:
        self.flush()
        self._finish()
        return self._done

    def _new_path(self) -> str:
        name = f"{self._name}-{len(self._done)}" if self._name else f"part-{uuid.uuid4().hex}"
        return f"{self._path}/{name}.parquet" if self._path else f"{name}.parquet"

    def _finish(self) -> None:
        if self._file is not None:
            self._done.append(self._file.close(self._values))
            self._file = None


class _File:
    """One file while it is written."""

    def __init__(self, target: Target, path: str, schema: pa.Schema) -> None:
        self._path = path
        self._local: Path | None = None
        system, root = target.storage.open()
        if target.storage.is_local:
            # It appears whole: readers of plain Parquet list the folder.
            self._local = Path(root, path)
            self._local.parent.mkdir(parents=True, exist_ok=True)
            self._draft = draft_of(self._local)
            self._stream: Any = pa.OSFile(str(self._draft), "wb")
        else:
            self._stream = system.open_output_stream(f"{root}/{path}")
        rising = [name for name in _RISING if name in schema.names]
        others = [leaf for one in schema if one.name not in rising for leaf in _leaves(one)]
        self._schema = schema
        self._writer = pq.ParquetWriter(
            self._stream,
            schema,
            compression=target.compression,
            compression_level=1 if target.compression == "zstd" else None,
            use_dictionary=others,
            column_encoding=dict.fromkeys(rising, "DELTA_BINARY_PACKED"),
            store_schema=False,  # other readers would ask what our dictionaries mean
        )
        self._rows = 0
        self._bounds = _Bounds()
        self.size = 0

    def write(self, group: pa.Table) -> None:
        self._bounds.add(group)
        self._rows += group.num_rows
        self._writer.write_table(_as(group, self._schema), row_group_size=GROUP_ROWS)
        self.size = self._stream.tell()

    def close(self, values: Mapping[str, str]) -> Written:
        self._writer.close()
        self.size = self._stream.tell()
        self._stream.close()
        if self._local is not None:
            _sync(self._draft)
            self._draft.replace(self._local)
        return Written(self._path, self._rows, self.size, values, self._bounds.text(self._rows))


def _leaves(field: pa.Field, above: str = "") -> Iterator[str]:
    """The columns that Parquet has for a field, by their paths."""
    path = f"{above}{field.name}"
    kind = field.type
    if pa.types.is_struct(kind):
        for one in kind:
            yield from _leaves(one, f"{path}.")
    elif pa.types.is_list(kind):
        yield from _leaves(pa.field("element", kind.value_type), f"{path}.list.")
    elif pa.types.is_map(kind):
        yield from _leaves(pa.field("key", kind.key_type), f"{path}.key_value.")
        yield from _leaves(pa.field("value", kind.item_type), f"{path}.key_value.")
    else:
        yield path


def _sync(path: Path) -> None:
    """Have a file on disk before anything refers to it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _one_piece(rows: pa.Table) -> pa.Table:
    """Rows with one chunk a column, so that a row group has one dictionary."""
    return rows.unify_dictionaries().combine_chunks()


def _as(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Rows in the types of others before them: a column is a dictionary there or not."""
    if rows.schema.equals(schema):
        return rows
    columns = []
    for column, wanted in zip(rows.columns, schema, strict=True):
        if pa.types.is_dictionary(wanted.type) and not pa.types.is_dictionary(column.type):
            column = column.dictionary_encode()
        elif column.type != wanted.type:
            column = column.cast(wanted.type)
        columns.append(column)
    return pa.Table.from_arrays(columns, schema=schema)


def folders(path: str) -> dict[str, str]:
    """Return the values in the folders of a path: `date=2026-01-31/level=house/…`."""
    named = (part.partition("=") for part in path.split("/")[:-1])
    return {name: value for name, equals, value in named if equals}


def complete(rows: pa.Table, schema: pa.Schema, file: Written) -> pa.Table:
    """Rows of a file with all columns of its table: those of its folder, null for later ones."""
    columns = []
    for wanted in schema:
        if wanted.name in file.values:
            value = file.values[wanted.name]
            typed = date.fromisoformat(value) if pa.types.is_date(wanted.type) else value
            columns.append(pa.repeat(pa.scalar(typed, wanted.type), rows.num_rows))
        elif wanted.name in rows.column_names:
            columns.append(rows.column(wanted.name))
        else:
            columns.append(pa.nulls(rows.num_rows, wanted.type))
    return pa.table(columns, names=schema.names)


def _by_folder(
    rows: pa.Table, partition_by: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], pa.Table]]:
    """Rows by the values of the columns that name folders, in their order within each."""
    if not partition_by:
        yield (), rows
        return
    columns = [rows.column(name).cast(pa.string()) for name in partition_by]
    keys = pc.binary_join_element_wise(*columns, "/").combine_chunks().dictionary_encode()
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.unify_dictionaries().combine_chunks()
    names = [tuple(key.split("/")) for key in keys.dictionary.to_pylist()]
    if len(names) == 1:
        yield names[0], rows
        return
    order = pc.sort_indices(keys.indices)
    ordered = rows.take(order)
    runs = pc.run_end_encode(keys.indices.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield names[code], ordered.slice(start, end - start)
        start = end


class _Bounds:
    """The smallest and largest values of a file's columns."""

    def __init__(self) -> None:
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def add(self, rows: pa.Table) -> None:
        for name in WITH_STATISTICS:
            if name not in rows.schema.names:
                continue
            column = rows.column(name)
            if pa.types.is_dictionary(column.type):
                # Chunks have one dictionary; values that no row has do no harm to a bound.
                column = column.chunk(0).dictionary
            least, most = pc.min_max(column).as_py().values()
            if least is None:
                continue
            self._least[name] = min(self._least.get(name, least), least)
            self._most[name] = max(self._most.get(name, most), most)

    def text(self, rows: int) -> str:
        """As Delta has it in its log."""
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {name: _bound(value) for name, value in self._least.items()},
                "maxValues": {name: _bound(value, up=True) for name, value in self._most.items()},
                "nullCount": dict.fromkeys(self._least, 0),
            }
        )


def _bound(value: Any, *, up: bool = False) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        case date():
            return value.isoformat()
        case str() if len(value) > LONGEST_BOUND:
            return value[:LONGEST_BOUND] + (_LAST if up else "")
    return value
