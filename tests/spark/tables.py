"""Tables for tests, made of rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from wirelake.spark.commits import Table
from wirelake.spark.files import TableWriter, Target
from wirelake.spark.rows import ROWS, with_folders
from wirelake.spark.storage import Storage
from wirelake.wire.arrow import SCHEMA


def make(place: Path | str, rows: list[dict[str, Any]], files: int = 1) -> None:
    """Add rows of the log to a Delta table, in so many files."""
    storage = Storage.of(str(place))
    table = Table.ensure(storage, ROWS)
    written = []
    for number in range(files):
        writer = TableWriter(Target(storage, ROWS))
        writer.write(with_folders(pa.Table.from_pylist(rows[number::files], SCHEMA)))
        written += writer.close()
    table.append(written)
