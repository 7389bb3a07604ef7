"""The tables of the engine: queues, messages, ids and the data store, in one SQLite file.

A set of `Changes` is written by one statement. CPython lets its global lock go around every step of
a statement and must win it back afterwards, which takes milliseconds next to a busy event loop; a
statement per row would make a commit of a hundred rows take half a second. So all rows of a commit
travel as JSON arrays of numbers and one blob, a *load*, and a trigger takes them apart inside
SQLite. The same loads stand in the log, with a number each, before they come here; the last number
that has come is kept beside the tables. To bring loads in again that are here already does no harm,
as long as all that followed them come again too.

Every row has a checksum of its contents, since SQLite itself does not notice a bit that flips in a
payload. Times are kept as whole microseconds since 1970.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
from zlib_ng.zlib_ng import crc32

from wirelake.engine.base import Entry, QueueSettings, Stored
from wirelake.errors import EngineError
from wirelake.message import NO_FLAGS, Flag, Message, Op

#: What the file says it is (`PRAGMA application_id`), and the version of its schema.
APPLICATION = int.from_bytes(b"wlke", "big")
VERSION = 2

SCHEMA = f"""
PRAGMA application_id = {APPLICATION};
CREATE TABLE queues (
    name TEXT NOT NULL PRIMARY KEY,
    next INTEGER NOT NULL,      -- no sequence from here on was ever given out
    settings TEXT NOT NULL,     -- JSON
    crc INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE messages (
    queue TEXT NOT NULL,
    sequence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    expires INTEGER NOT NULL,   -- µs since 1970; 0: never
    due INTEGER NOT NULL,       -- µs since 1970; not before
    fields TEXT NOT NULL,       -- JSON: all of the message that is not empty, but the payload
    payload BLOB NOT NULL,
    crc INTEGER NOT NULL,       -- of all but the attempts
    PRIMARY KEY (queue, sequence)
) WITHOUT ROWID;
CREATE TABLE ids (
    queue TEXT NOT NULL,
    until INTEGER NOT NULL,     -- µs since 1970
    id BLOB NOT NULL,           -- UTF-8
    PRIMARY KEY (queue, until, id)
) WITHOUT ROWID;
CREATE TABLE entries (
    key TEXT NOT NULL PRIMARY KEY,
    revision INTEGER NOT NULL,
    expires INTEGER NOT NULL,   -- µs since 1970; 0: never
    value BLOB,                 -- NULL: deleted
    crc INTEGER NOT NULL
) WITHOUT ROWID;
"""
#: Since version 2.
_APPLIED = f"""
CREATE TABLE applied (
    id INTEGER PRIMARY KEY,     -- 0: there is one row
    number INTEGER NOT NULL,    -- the last load that has come from the log
    crc INTEGER NOT NULL
);
PRAGMA user_version = {VERSION};
"""

# What is removed goes first, since a queue may be removed and declared again in one commit. A
# message that is dropped and put again in one commit is there. Without the casts, the primary key
# would not be used to find what is dropped.
_TRIGGER = """
CREATE TEMP VIEW changes (removed, queues, drops, puts, attempts, stale, ids, entries, data) AS
    SELECT 0, 0, 0, 0, 0, 0, 0, 0, 0 WHERE false;
CREATE TEMP TRIGGER take_changes INSTEAD OF INSERT ON changes BEGIN
    DELETE FROM messages WHERE queue IN (SELECT value FROM json_each(new.removed));
    DELETE FROM ids WHERE queue IN (SELECT value FROM json_each(new.removed));
    DELETE FROM queues WHERE name IN (SELECT value FROM json_each(new.removed));
    INSERT OR REPLACE INTO queues
        SELECT value->>0, value->>1, value->>2, value->>3 FROM json_each(new.queues);
    DELETE FROM messages WHERE (queue, sequence) IN (
        SELECT CAST(value->>0 AS TEXT), CAST(value->>1 AS INTEGER) FROM json_each(new.drops)
    );
    INSERT OR REPLACE INTO messages
        SELECT value->>0, value->>1, value->>2, value->>3, value->>4,
            CAST(substr(new.data, value->>5, value->>6) AS TEXT),
            substr(new.data, (value->>5) + (value->>6), value->>7), value->>8
        FROM json_each(new.puts);
    UPDATE messages SET attempts = counted.value->>2 FROM json_each(new.attempts) AS counted
        WHERE queue = counted.value->>0 AND sequence = counted.value->>1;
    DELETE FROM ids
        WHERE queue IN (SELECT value->>0 FROM json_each(new.stale))
            AND until < (SELECT value->>1 FROM json_each(new.stale) LIMIT 1);
    INSERT OR REPLACE INTO ids
        SELECT value->>0, value->>1, substr(new.data, value->>2, value->>3)
        FROM json_each(new.ids);
    DELETE FROM entries WHERE key IN (
        SELECT CAST(value->>0 AS TEXT) FROM json_each(new.entries) WHERE value->>1 = 0
    );
    INSERT OR REPLACE INTO entries
        SELECT value->>0, value->>1, value->>2,
            CASE WHEN value->>4 < 0 THEN NULL ELSE substr(new.data, value->>3, value->>4) END,
            value->>5
        FROM json_each(new.entries) WHERE value->>1 > 0;
END;
"""
_COLUMNS = ("removed", "queues", "drops", "puts", "attempts", "stale", "ids", "entries")
_SET_APPLIED = "INSERT OR REPLACE INTO applied VALUES (0, ?, ?)"
_INSERT = f"INSERT INTO changes VALUES ({', '.join('?' * (len(_COLUMNS) + 1))})"

#: SQLite's own limit is 10^9 bytes a row.
LARGEST = 900_000_000
#: One statement carries about so many bytes at most; a commit may need several.
_LOAD = 64 << 20
#: The bytes of a page; the WAL is carried over into the tables when it has so many pages.
PAGE = 4096
_CHECKPOINT = 2000

#: What one statement takes.
Load = list[str | bytes | None]

#: Keeps what cannot be decoded: what it is, its bytes, and what is wrong with it.
SetAside = Callable[[str, bytes, Exception], None]
#: What a value raises that cannot be decoded.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, OverflowError)
#: The revision that stands in a load for "this key is to be forgotten".
DROPPED = 0

#: Sequences above the last one that was found may have been used, so many at most.
LEAP = 1_000_000

_encode = msgspec.json.Encoder().encode
_encode_load = msgspec.msgpack.Encoder().encode
_decode_load = msgspec.msgpack.Decoder(list).decode


class _Fields(msgspec.Struct, omit_defaults=True):
    """A message without its payload."""

    address: str = ""
    id: str = ""
    correlation_id: str = ""
    source: str = ""
    target: str = ""
    content_type: int = 0
    priority: int = 0
    ttl: int = 0
    headers: dict[str, str] = {}
    flags: int = 0
    timestamp: int = 0
    dialect: str = ""
    op: str = "publish"


_decode_fields = msgspec.json.Decoder(_Fields).decode
_decode_settings = msgspec.json.Decoder(QueueSettings).decode


class Changes:
    """What one commit has to write. Of what is overtaken within it, nothing is written."""

    __slots__ = (
        "attempts", "drops", "entries", "ids", "new", "put_again", "queues", "removed"
    )  # fmt: skip

    def __init__(self) -> None:
        self.removed: dict[str, None] = {}
        self.queues: dict[str, tuple[QueueSettings, int]] = {}
        self.drops: dict[tuple[str, int], None] = {}
        self.new: dict[tuple[str, int], Stored] = {}  # whose sequence was never used before
        self.put_again: dict[tuple[str, int], Stored] = {}
        self.attempts: dict[tuple[str, int], int] = {}
        self.ids: list[tuple[str, float, str]] = []
        self.entries: dict[str, Entry] = {}

    def __len__(self) -> int:
        """The rows that are written or deleted."""
        return sum(len(getattr(self, name)) for name in self.__slots__)

    def put(self, stored: Stored, *, new: bool) -> None:
        """Write a message; `new`: no row can have its sequence yet."""
        key = (stored.queue, stored.sequence)
        if new:
            self.new[key] = stored
        else:
            self.put_again[key] = stored
            self.attempts.pop(key, None)

    def count_attempt(self, stored: Stored) -> None:
        """Write a message's count of attempts."""
        key = (stored.queue, stored.sequence)
        if key in self.new:
            self.new[key] = stored
        elif key in self.put_again:
            self.put_again[key] = stored
        else:
            self.attempts[key] = stored.attempts

    def drop(self, queue: str, sequence: int) -> None:
        """Delete a message; one that was never written needs no deleting."""
        key = (queue, sequence)
        if self.new.pop(key, None) is None:
            self.put_again.pop(key, None)
            self.attempts.pop(key, None)
            self.drops[key] = None

    def follow(self, later: Changes) -> None:
        """Take in the changes of a later commit."""
        for queue in later.removed:
            self.remove(queue)
        self.queues.update(later.queues)
        for queue, sequence in later.drops:
            self.drop(queue, sequence)
        for stored in later.new.values():
            self.put(stored, new=True)
        for stored in later.put_again.values():
            self.put(stored, new=False)
        for key, attempts in later.attempts.items():
            known = self.new.get(key) or self.put_again.get(key)
            if known is None:
                self.attempts[key] = attempts
            else:
                self.count_attempt(replace(known, attempts=attempts))
        self.ids += later.ids
        self.entries.update(later.entries)

    def remove(self, queue: str) -> None:
        """Delete a queue and all that is in it."""
        self.queues.pop(queue, None)
        for rows in (self.drops, self.new, self.put_again, self.attempts):
            for key in [key for key in rows if key[0] == queue]:
                del rows[key]
        self.ids = [row for row in self.ids if row[0] != queue]
        self.removed[queue] = None


class Database:
    """An open database, whole and of our version.

    `commit` belongs to one thread; what reads has a connection of its own.
    """

    def __init__(self, path: Path) -> None:
        with translated(path):
            self._writer = connect(path)
            self._reader = connect(path)
            self._writer.executescript(_TRIGGER)
        _fill_wal(path)
        self._path = path

    def commit(self, changes: Changes, number: int | None = None) -> None:
        """Make changes durable, all or none of them: those up to this number."""
        self._take(_loads(changes), number)

    def replay(self, loads: Iterable[bytes | memoryview], number: int, set_aside: SetAside) -> None:
        """Take in what is in the log and not here, up to this number.

        A load that cannot be decoded, or that SQLite refuses, is set aside.
        """
        with translated(self._path), transaction(self._writer):
            for load in loads:
                self._writer.execute("SAVEPOINT load")
                try:
                    self._writer.execute(_INSERT, _decode_load(load))
                except (*UNREADABLE, sqlite3.IntegrityError, sqlite3.ProgrammingError) as error:
                    self._writer.execute("ROLLBACK TO load")
                    set_aside("a change of queues and keys", bytes(load), error)
                self._writer.execute("RELEASE load")
            self._set_applied(number)

    def _take(self, loads: Iterable[Load], number: int | None) -> None:
        with translated(self._path), transaction(self._writer):
            for load in loads:
                self._writer.execute(_INSERT, load)
            if number is not None:
                self._set_applied(number)

    def _set_applied(self, number: int) -> None:
        self._writer.execute(_SET_APPLIED, (number, applied_crc(number)))

    def applied(self) -> int | None:
        """The number of the last load that has come from the log, if that is known."""
        with translated(self._path):
            found = self._reader.execute("SELECT number FROM applied").fetchone()
        return None if found is None else int(found[0])

    def declare_missing(self) -> None:
        """Let every queue that has messages be there."""
        with translated(self._path):
            missing = self._reader.execute(
                "SELECT queue, max(sequence) FROM messages"
                " WHERE queue NOT IN (SELECT name FROM queues) GROUP BY queue"
            ).fetchall()
        declared = Changes()
        for name, sequence in missing:
            declared.queues[name] = (QueueSettings(name), sequence + LEAP)
        if missing:
            self.commit(declared)

    def queues(self, set_aside: SetAside) -> Iterator[tuple[QueueSettings, int]]:
        """Every queue, and its next sequence.

        Settings that cannot be decoded are set aside, and that queue has the defaults.
        """
        with translated(self._path):
            for name, text, following in self._reader.execute(
                "SELECT name, settings, next FROM queues"
            ):
                try:
                    settings = _decode_settings(text)
                    if settings.name != name:
                        raise ValueError(f"they are those of {settings.name}")
                except UNREADABLE as error:
                    set_aside(f"the settings of the queue {name}", _raw(text), error)
                    settings = QueueSettings(name)
                yield settings, following

    def stored(
        self, queue: str, set_aside: Callable[[int, bytes, Exception], None]
    ) -> list[Stored]:
        """The messages of a queue, in the order of their sequences.

        `set_aside` gets the sequence and the bytes of each one that cannot be decoded.
        """
        found = []
        with translated(self._path):
            for sequence, attempts, expires, due, fields, payload in self._reader.execute(
                "SELECT sequence, attempts, expires, due, fields, payload FROM messages"
                " WHERE queue = ? ORDER BY sequence",
                (queue,),
            ):
                try:
                    message = _message(_decode_fields(fields), payload)
                    found.append(
                        Stored(queue, sequence, message, attempts, expires / 1e6, due / 1e6)
                    )
                except UNREADABLE as error:
                    set_aside(sequence, _raw(fields) + b"\n" + _raw(payload), error)
        return found

    def ids(self, queue: str, set_aside: SetAside) -> list[tuple[str, float]]:
        """The ids that are remembered for a queue, the oldest first."""
        found = []
        with translated(self._path):
            for identity, until in self._reader.execute(
                "SELECT id, until FROM ids WHERE queue = ? ORDER BY until", (queue,)
            ):
                try:
                    found.append((identity.decode(errors="surrogatepass"), until / 1e6))
                except UNREADABLE as error:
                    set_aside(f"a message id of the queue {queue}", _raw(identity), error)
        return found

    def entries(self, set_aside: SetAside) -> list[Entry]:
        """Every key's latest state."""
        found = []
        with translated(self._path):
            for key, revision, value, expires in self._reader.execute(
                "SELECT key, revision, value, expires FROM entries"
            ):
                try:
                    found.append(Entry(key, revision, value, expires / 1e6))
                except UNREADABLE as error:
                    set_aside(f"the key {key}", _raw(value), error)
        return found

    def close(self) -> None:
        """Carry the WAL over into the tables, and let go."""
        with translated(self._path):
            self._reader.close()
            self._writer.close()


def connect(path: Path) -> sqlite3.Connection:
    """Open a database for reading and writing; a new one gets its tables."""
    with contextlib.suppress(OSError):  # SQLite says it better
        path.touch(0o600)  # its other files get the same mode
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        db.execute(f"PRAGMA page_size = {PAGE}")
        db.execute("PRAGMA auto_vacuum = NONE")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA secure_delete = OFF")  # some builds overwrite what is deleted
        db.execute("PRAGMA trusted_schema = OFF")
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA cell_size_check = ON")
        db.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT}")
        db.execute(f"PRAGMA journal_size_limit = {2 * _CHECKPOINT * PAGE}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version < VERSION:
            tables = "" if version else SCHEMA
            db.executescript(f"BEGIN IMMEDIATE; {tables} {_APPLIED} COMMIT")
    except BaseException:
        db.close()
        raise
    return db


def _fill_wal(path: Path) -> None:
    """Let the WAL have its size from the start: a sync of a file that grows takes far longer.

    Zeros after the last frame mean nothing to SQLite, which overwrites them.
    """
    with contextlib.suppress(OSError), path.with_name(path.name + "-wal").open("ab") as wal:
        wal.write(bytes(max(0, _CHECKPOINT * (PAGE + 24) - wal.tell())))
        wal.flush()
        os.fsync(wal.fileno())


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All of it, or nothing."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """SQLite's errors as ours."""
    try:
        yield
    except sqlite3.OperationalError as error:  # full, unreadable, locked: may pass
        raise EngineError(f"{path}: {error}", retriable=True) from error
    except sqlite3.Error as error:
        raise EngineError(f"{path}: {error}") from error


# Checksums


def message_crc(
    queue: bytes, sequence: int, expires: int, due: int, fields: bytes, payload: bytes
) -> int:
    """The checksum of a row of `messages`."""
    start = (sequence ^ expires ^ due) & 0xFFFFFFFF
    return crc32(payload, crc32(fields, crc32(queue, start)))


def entry_crc(key: bytes, revision: int, expires: int, value: bytes | None) -> int:
    """The checksum of a row of `entries`."""
    start = crc32(key, (revision ^ expires) & 0xFFFFFFFF)
    return start ^ 1 if value is None else crc32(value, start)


def applied_crc(number: int) -> int:
    """The checksum of the row of `applied`."""
    return crc32(number.to_bytes(8, "little"))


def queue_crc(name: bytes, following: int, settings: bytes) -> int:
    """The checksum of a row of `queues`."""
    return crc32(settings, crc32(name, following & 0xFFFFFFFF))


# Rows


def loads(changes: Changes) -> list[bytes]:
    """Changes for the log."""
    return [_encode_load(load) for load in _loads(changes)]


def _loads(changes: Changes) -> Iterator[Load]:
    """The parameters of the statements that write the changes."""
    load = _Load()
    load.rows["removed"] = list(changes.removed)
    for name, (settings, following) in changes.queues.items():
        text = _encode(settings)
        crc = queue_crc(name.encode(), following, text)
        load.rows["queues"].append((name, following, text.decode(), crc))
    load.rows["drops"] = list(changes.drops)
    load.rows["attempts"] = [(*key, attempts) for key, attempts in changes.attempts.items()]
    if changes.ids:
        now = _microseconds(time.time())
        load.rows["stale"] = [(queue, now) for queue in {row[0] for row in changes.ids}]
        for queue, until, identity in changes.ids:
            text = identity.encode(errors="surrogatepass")
            if (micros := _microseconds(until)) >= now:
                load.rows["ids"].append((queue, micros, load.end, len(text)))
                load.add(text)
    for stored in (*changes.new.values(), *changes.put_again.values()):
        if load.end > _LOAD:
            yield load.parameters()
            load = _Load()
        load.put(stored)
    for entry in changes.entries.values():
        if load.end > _LOAD:
            yield load.parameters()
            load = _Load()
        load.write_entry(entry)
    yield load.parameters()


class _Load:
    """The rows of one statement, under construction."""

    def __init__(self) -> None:
        self.rows: dict[str, list[object]] = {name: [] for name in _COLUMNS}
        self.end = 2  # where the next piece of data begins, as SQLite counts
        self._data = [b"\0"]  # of no data at all, substr would make NULL

    def add(self, piece: bytes) -> None:
        """Take a piece of data along."""
        self._data.append(piece)
        self.end += len(piece)

    def put(self, stored: Stored) -> None:
        """A row of `messages`."""
        fields = _fields(stored.message)
        payload = bytes(stored.message.payload)
        expires, due = _microseconds(stored.expires), _microseconds(stored.due)
        crc = message_crc(stored.queue.encode(), stored.sequence, expires, due, fields, payload)
        self.rows["puts"].append(
            (
                stored.queue,
                stored.sequence,
                stored.attempts,
                expires,
                due,
                self.end,
                len(fields),
                len(payload),
                crc,
            )
        )
        self.add(fields)
        self.add(payload)

    def write_entry(self, entry: Entry) -> None:
        """A row of `entries`."""
        expires = _microseconds(entry.expires)
        crc = entry_crc(entry.key.encode(), entry.revision, expires, entry.value)
        size = -1 if entry.value is None else len(entry.value)
        self.rows["entries"].append((entry.key, entry.revision, expires, self.end, size, crc))
        self.add(entry.value or b"")

    def parameters(self) -> Load:
        """What the statement takes; what has no rows is NULL."""
        parts = [_encode(rows).decode() if rows else None for rows in self.rows.values()]
        return [*parts, b"".join(self._data)]


def _raw(value: object) -> bytes:
    """A value of a row as bytes, whatever it is."""
    return value if isinstance(value, bytes) else str(value).encode(errors="surrogatepass")


def _microseconds(seconds: float) -> int:
    return round(seconds * 1e6) if seconds else 0


def _fields(message: Message) -> bytes:
    """A message without its payload, as JSON."""
    fields = _Fields(
        message.address,
        message.id,
        message.correlation_id,
        message.source,
        message.target,
        message.content_type,
        message.priority,
        message.ttl,
        dict(message.headers),
        int(message.flags),
        message.timestamp,
        message.dialect,
        message.op.label,
    )
    try:
        return _encode(fields)
    except UnicodeEncodeError:  # half a surrogate: no reason to lose a message
        return _encode(_valid(msgspec.to_builtins(fields)))


def _valid(value: object) -> object:
    """The same with a question mark for every character that is none."""
    if isinstance(value, dict):
        return {_valid(name): _valid(one) for name, one in value.items()}
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _message(fields: _Fields, payload: bytes) -> Message:
    return Message(
        fields.address,
        payload,
        fields.id,
        fields.correlation_id,
        fields.source,
        fields.target,
        fields.content_type,
        fields.priority,
        fields.ttl,
        fields.headers,
        Flag(fields.flags) if fields.flags else NO_FLAGS,
        fields.timestamp,
        fields.dialect,
        Op.named(fields.op),
    )
