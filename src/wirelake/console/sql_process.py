"""One statement of SQL over rows of the log, in a process of its own: `python sql_process.py`.

Standard input has a line of JSON, `{"sql": …, "streams": …, "rows": …, "seconds": …, "memory": …}`,
then so many Arrow streams with the rows of the table `log`. Standard output gets one JSON object:
columns and rows, or an error.

The process holds itself to its limits: memory and seconds of processor by the system, memory and
threads of DuckDB by DuckDB, which may neither open files nor load extensions nor change that.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    import pyarrow as pa

#: The part of the memory that DuckDB may use: the rest is for the rows, and for what is loaded.
DUCKDB_PART = 4
#: The longest text of a cell, and all of an answer, in bytes.
LONGEST = 2_000
MOST_BYTES = 4 << 20


def main(source: BinaryIO, target: BinaryIO) -> None:
    """Read a statement and rows, run the one over the other, write what comes of it."""
    wanted = json.loads(source.readline())
    memory, seconds = wanted["memory"], wanted["seconds"]
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    try:
        told = run(wanted, source)
    except Exception as error:  # noqa: BLE001 - whatever it is, the page is told
        text = str(error).partition("\n\n")[0][:LONGEST]
        told = {"error": text or type(error).__name__}
    target.write(json.dumps(told).encode())


def run(wanted: dict[str, Any], source: BinaryIO) -> dict[str, Any]:
    """Columns, rows, and whether there are more rows."""
    import duckdb
    import pyarrow as pa

    tables = []
    for _ in range(wanted["streams"]):
        with pa.ipc.open_stream(source) as stream:
            tables.append(stream.read_all())
    log = pa.concat_tables([table.unify_dictionaries() for table in tables])
    connection = duckdb.connect(
        config={
            "threads": "1",
            "memory_limit": f"{wanted['memory'] // DUCKDB_PART}B",
            "temp_directory": "",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",
        }
    )
    connection.register("log", log)
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    result = connection.execute(wanted["sql"])
    names = [one[0] for one in result.description or ()]
    most = wanted["rows"]
    # By Arrow: as Python's own values times with a zone would need a package more. Versions of
    # DuckDB differ in the name of that.
    read = getattr(result, "fetch_record_batch", None) or result.to_arrow_reader
    found = _fetch(read(most + 1), most + 1) if names else []
    rows: list[list[Any]] = []
    size = 0
    for row in found[:most]:
        cells = [_cell(value) for value in row]
        size += sum(len(str(cell)) + 1 for cell in cells)
        if size > MOST_BYTES:
            break
        rows.append(cells)
    return {"columns": names, "rows": rows, "more": len(found) > len(rows), "of": log.num_rows}


def _fetch(reader: pa.RecordBatchReader, most: int) -> list[tuple[Any, ...]]:
    """The first rows; times with a zone in UTC, without it."""
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = []
    for batch in reader:
        columns = []
        for column in batch.columns:
            kind = column.type
            if pa.types.is_timestamp(kind) and kind.tz:
                column = column.cast(pa.timestamp(kind.unit))
            values = column.to_pylist()
            if pa.types.is_map(kind):
                values = [None if value is None else dict(value) for value in values]
            columns.append(values)
        rows += zip(*columns, strict=True)
        if len(rows) >= most:
            break
    return rows[:most]


def _cell(value: Any) -> Any:
    """A value as JSON has it, as far as it does."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            value = value.hex(" ")
    if isinstance(value, bool | int | float) or value is None:
        return value if value is None or abs(value) < 1 << 53 else str(value)
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
