"""Commits to a Delta table, each of them once, whatever dies in between.

A task has written files that nobody sees. A commit adds them to the table's log, all or none, by
delta-rs, with three things beside them:

- an application transaction `wirelake:<query>` whose version is the number of the batch: of two
  drivers with one query, delta-rs refuses the commit of the one that comes second;
- for every partition of the broker's log an application transaction
  `wirelake:<query>:<log>:<partition>`, whose version is the next offset to land. Delta keeps the
  newest version of each in its checkpoints for ever, so the table is its own checkpoint: where to
  go on does not depend on log files that are cleaned some day;
- the same in words, and a random id, as `wirelake` in the commit's metadata: `lake sql` users and
  people with a text editor read it there, and it tells a driver whose commit got no answer whether
  it is in.

What takes files out of a table (compaction, overwriting) must know that they are still in it when
it is committed: delta-rs 1.6 lets a second compaction of the same files pass, which doubles their
rows. So such a commit is allowed at one version only, the next one after the version it was planned
at; where another was faster it is planned again.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from wirelake.errors import ConfigError, EngineError
from wirelake.spark.files import Written
from wirelake.spark.offsets import Log, Offsets
from wirelake.spark.storage import Storage

#: What a new table is given. A commit every 2 s makes 43 200 files of the log a day.
PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 1 days",
    "delta.enableExpiredLogCleanup": "true",
    "delta.deletedFileRetentionDuration": "interval 7 days",
}
#: How often a commit that must be the next one is tried.
TRIES = 20
#: Commits among which one of ours is looked for.
_RECENT = 200

_MARKS = re.compile(r"\x1b\[[0-9;]*m|↳")


class TakenError(EngineError):
    """Another process has committed this batch, or has created this table."""


@dataclass(frozen=True)
class Landed:
    """The metadata of a batch in its commit."""

    query: str
    batch: int
    log: str
    offsets: Offsets  # the next one to land, of the partitions that have moved


def exists(storage: Storage) -> bool:
    """Is there a Delta table?"""
    with delta_errors(storage):
        return bool(DeltaTable.is_deltatable(storage.uri, storage.for_delta))


class Table:
    """A Delta table as it was at one version; `refresh` goes on to the newest."""

    def __init__(
        self, storage: Storage, *, version: int | None = None, as_of: datetime | None = None
    ) -> None:
        self.storage = storage
        with delta_errors(storage):
            try:
                self._table = DeltaTable(
                    storage.uri, version=version, storage_options=storage.for_delta
                )
                if as_of is not None:
                    self._table.load_as_version(as_of)
            except TableNotFoundError:
                raise EngineError(f"{storage.uri}: there is no table") from None
            except DeltaError as error:
                if version is None and as_of is None:
                    raise
                which = f"version {version}" if as_of is None else f"version of {as_of}"
                raise EngineError(f"{storage.uri} has no {which}: {_reason(error)}") from error

    @classmethod
    def ensure(
        cls,
        storage: Storage,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        *,
        among_files: bool = False,
    ) -> Table:
        """The table, made where there is none; columns that it has not are added to it.

        A folder with Parquet files is refused, unless they are our own and were never committed.
        """
        if not exists(storage):
            if not among_files and storage.files() and not exists(storage):
                raise ConfigError(
                    "--table", f"{storage.uri} has Parquet files and is no Delta table"
                )
            with delta_errors(storage):
                try:
                    DeltaTable.create(
                        storage.uri,
                        Schema.from_arrow(schema),
                        mode="error",
                        partition_by=list(partition_by),
                        configuration=dict(PROPERTIES),
                        storage_options=storage.for_delta,
                    )
                except DeltaError:
                    if not exists(storage):  # else another process was faster
                        raise
        made = cls(storage)
        made._evolve(schema)
        return made

    def _evolve(self, schema: pa.Schema) -> None:
        """Add columns; what is there stays as it is."""
        there = {field.name: field.type for field in self.schema}
        spelled = {name.lower(): name for name in there}
        for field in schema:
            if there.get(field.name, field.type) != field.type:
                text = (
                    f"{self.storage.uri} has {field.name} as {there[field.name]}, not "
                    f"{field.type}; columns can be added to a table, but not changed"
                )
                raise ConfigError("--table", text)
            if spelled.get(field.name.lower(), field.name) != field.name:
                text = f"{self.storage.uri} has {spelled[field.name.lower()]}, not {field.name}"
                raise ConfigError("--table", f"{text}; capitals make no difference in a table")
        missing = [field.with_nullable(True) for field in schema if field.name not in there]
        if missing:
            with delta_errors(self.storage):
                self._table.alter.add_columns(Schema.from_arrow(pa.schema(missing)).fields)
                self._table.update_incremental()

    # What it has

    @property
    def version(self) -> int:
        """The number of its last commit."""
        return int(self._table.version())

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return pa.schema(self._table.schema().to_arrow())

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The columns that name its folders."""
        return tuple(self._table.metadata().partition_columns)

    def files(self) -> list[Written]:
        """Its files, as commits know them, the oldest first."""
        names = self.partition_by
        with delta_errors(self.storage):
            found = pa.table(self._table.get_add_actions(flatten=True)).to_pylist()
        return [
            Written(
                unquote(one["path"]),
                one["num_records"] or 0,
                one["size_bytes"],
                {name: str(one[f"partition.{name}"]) for name in names},
            )
            for one in sorted(found, key=lambda one: (one["modification_time"], one["path"]))
        ]

    def refresh(self) -> None:
        """Go on to the newest version."""
        with delta_errors(self.storage):
            self._table.update_incremental()

    def history(self, limit: int = 20) -> list[dict[str, Any]]:
        """The last commits, the newest first."""
        with delta_errors(self.storage):
            return list(self._table.history(limit))

    # Where a query is

    def batch(self, query: str) -> int:
        """The number of a query's last batch; -1 before the first."""
        with delta_errors(self.storage):
            found = self._table.transaction_version(_app(query))
        return -1 if found is None else int(found)

    def offsets(self, query: str, log: Log) -> Offsets:
        """The next offset to land of each partition of a log that something was landed of."""
        with delta_errors(self.storage):
            known = {
                p: self._table.transaction_version(_app(query, log.id, p)) for p in log.extents
            }
        return {p: int(offset) for p, offset in known.items() if offset is not None}

    def last_log(self, query: str) -> str:
        """The log whose rows a query has landed last, as far as the newest commits tell."""
        for commit in self.history(_RECENT):
            noted = commit.get("wirelake")
            if isinstance(noted, dict) and noted.get("query") == query:
                return str(noted.get("log", ""))
        return ""

    # Commits

    def append(self, files: Iterable[Written], landed: Landed | None = None) -> None:
        """Add files to the table, with what they are a batch of.

        The table must not have been refreshed since the batch was planned. Raises TakenError where
        another process has committed a batch of the query since then.
        """
        adds = [_add(file) for file in files]
        mark = uuid.uuid4().hex
        noted: dict[str, Any] = {"id": mark}
        transactions = []
        if landed is not None:
            noted |= {
                "query": landed.query,
                "batch": landed.batch,
                "log": landed.log,
                "offsets": {str(p): at for p, at in sorted(landed.offsets.items())},
            }
            transactions = [Transaction(_app(landed.query), landed.batch)] + [
                Transaction(_app(landed.query, landed.log, p), at)
                for p, at in sorted(landed.offsets.items())
            ]
        before = self.version
        try:
            self._commit(
                adds,
                CommitProperties(
                    custom_metadata={"wirelake": noted}, app_transactions=transactions
                ),
            )
        except (DeltaError, OSError) as error:
            # An answer that was lost on the way is no failure.
            if self._is_in(mark, before):
                return
            if landed is not None and self.batch(landed.query) >= landed.batch:
                raise TakenError(
                    f"another process has landed batch {landed.batch} of {landed.query} "
                    f"in {self.storage.uri}"
                ) from error
            raise EngineError(f"{self.storage.uri}: {_reason(error)}") from error
        self.refresh()

    def replace(self, gone: Sequence[Written], come: Sequence[Written], *, change: bool) -> bool:
        """Take files out of the table and add others, in one commit.

        `change` says whether rows differ. False where one of the files is not in the table any
        more; then nothing was done. Raises EngineError where others commit all the time, or where
        the commit cannot be written.
        """
        now = round(time.time() * 1000)
        removes = [
            RemoveAction(file.path, change, now, size=file.size, partition_values=dict(file.values))
            for file in gone
        ]
        adds = [_add(file, change=change) for file in come]
        mark = uuid.uuid4().hex
        properties = CommitProperties(
            custom_metadata={"wirelake": {"id": mark, "replaced": len(gone)}}, max_commit_retries=0
        )
        wanted = {file.path for file in gone}
        for attempt in range(TRIES):
            if not wanted <= {file.path for file in self.files()}:
                return False
            before = self.version
            try:
                self._commit([*removes, *adds], properties)
                self.refresh()
                return True
            except (DeltaError, OSError) as error:
                # An answer that was lost on the way is no failure here either.
                if self._is_in(mark, before):
                    return True
                if not isinstance(error, CommitFailedError):
                    raise EngineError(f"{self.storage.uri}: {_reason(error)}") from error
                time.sleep(0.01 * attempt)
        raise EngineError(f"{self.storage.uri}: others have committed {TRIES} times meanwhile")

    def _commit(self, actions: list[Any], properties: CommitProperties) -> None:
        self._table.create_write_transaction(
            actions,
            "append",
            self._table.schema(),
            list(self.partition_by),
            commit_properties=properties,
            post_commithook_properties=PostCommitHookProperties(create_checkpoint=True),
        )

    def _is_in(self, mark: str, before: int) -> bool:
        """Is the commit with this id in the table? Looks at all behind a version."""
        self.refresh()
        count = self.version - before
        if not count:
            return False
        noted = (commit.get("wirelake") for commit in self.history(count + 1))
        return any(isinstance(one, dict) and one.get("id") == mark for one in noted)

    # Care

    def vacuum(self, hours: int, *, dry_run: bool = False) -> list[str]:
        """Delete the files that no version of the last hours needs; their paths."""
        with delta_errors(self.storage):
            gone = self._table.vacuum(
                hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )
            if not dry_run:
                self._table.update_incremental()
                self._table.create_checkpoint()
                self._table.cleanup_metadata()
        # delta-rs leaves hidden files at the top of a table alone.
        drafts = self.storage.drafts(hours * 3600)
        if not dry_run:
            for name in drafts:
                self.storage.delete(name)
        return list(dict.fromkeys([*gone, *drafts]))

    def clean(self) -> None:
        """Delete the files that compaction has replaced, once the table keeps them no longer."""
        with delta_errors(self.storage):
            self._table.update_incremental()
            self._table.vacuum(dry_run=False)


def _app(*parts: object) -> str:
    return ":".join(("wirelake", *map(str, parts)))


def _add(file: Written, *, change: bool = True) -> AddAction:
    values: Mapping[str, str | None] = dict(file.values)
    now = round(time.time() * 1000)
    return AddAction(file.path, file.size, values, now, change, file.statistics)


@contextmanager
def delta_errors(storage: Storage) -> Iterator[None]:
    """Turn errors of delta-rs into `EngineError`."""
    try:
        yield
    except (DeltaError, OSError, ValueError) as error:
        raise EngineError(f"{storage.uri}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What delta-rs says, in one line: its causes come on lines of their own, in colours."""
    lines = (_MARKS.sub("", line).strip() for line in str(error).splitlines())
    return ": ".join(line for line in lines if line)
