"""The pipeline as seen from outside: whether it can run, who runs it, and how far it is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from wirelake.client.http import HttpClient
from wirelake.live.locks import holder, locked

#: Seconds between two readings of the pipeline's progress.
LOOK = 0.25
#: Seconds without a landed row after which nobody waits for the pipeline any longer.
PATIENCE = 120.0


def missing_for_spark() -> str:
    """Return what the pipeline lacks on this machine; empty if it can run."""
    try:
        from wirelake.spark.session import NO_JAVA, find_java
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("pyspark", "py4j")):
            raise
        return "Spark is not installed: pip install 'wirelake[spark]'"
    return "" if find_java() is not None else NO_JAVA


def landing_lock(table: Path) -> AbstractContextManager[int | None]:
    """The lock of whoever lands in a table on this machine, as `locked` describes it."""
    return locked(_lock_file(table))


def landed_by(table: Path) -> str:
    """The process that lands in a table on this machine, for people."""
    return holder(_lock_file(table))


def _lock_file(table: Path) -> Path:
    return Path(f"{table}.lock")


def log_ends(http: HttpClient) -> dict[str, int]:
    """The next offset of each partition of the log."""
    return {str(one["partition"]): one["next"] for one in http.get("/v1/log")["partitions"]}


def progress(http: HttpClient, query: str) -> tuple[dict[str, int], float]:
    """The offsets up to which a query has read, and the time of its last report in seconds."""
    for one in http.get("/v1/progress")["queries"]:
        if one["query"] == query:
            return one["offsets"], one["time"] / 1e6
    return {}, 0.0


def rows_left(
    http: HttpClient, query: str, ends: dict[str, int], patience: float = PATIENCE
) -> Iterator[int]:
    """Rows that a query has not read up to `ends`, again and again.

    Ends with 0, or earlier if no row was read for `patience` seconds.
    """
    seen: dict[str, int] = {}
    since = time.monotonic()
    while True:
        offsets, _ = progress(http, query)
        left = sum(max(0, end - offsets.get(name, 0)) for name, end in ends.items())
        yield left
        if offsets != seen:
            seen, since = offsets, time.monotonic()
        if not left or time.monotonic() - since > patience:
            return
        time.sleep(LOOK)
