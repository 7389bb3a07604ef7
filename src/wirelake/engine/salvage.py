"""A database that was damaged: how it is noticed, and how what can be read is kept.

At the start every page and every row's checksum is looked at, and the WAL's frames, which SQLite
would silently ignore from the first bad one on. A commit that a crash has torn looks alike, but
nobody was told that it was durable. A frame was committed for sure if another commit follows it, or
if the shared-memory file that the dead process left says so.

If something is wrong, a new database is made of all rows that can be read and whose checksums hold.
The damaged files are set aside under another name, untouched, and what happened is told. Should we
be killed meanwhile, either the old files are still there, or the new one is complete. If not even
that works, the new database is empty, and gets what the log has.

A row that is as it was written, but that this program cannot decode, is no damage of the file:
`Aside` keeps its bytes, and the rest is loaded.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import shutil
import sqlite3
import struct
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import byteorder

import msgspec

from wirelake.engine.base import QueueSettings
from wirelake.engine.database import (
    APPLICATION,
    LEAP,
    PAGE,
    VERSION,
    Database,
    applied_crc,
    connect,
    entry_crc,
    message_crc,
    queue_crc,
    transaction,
    translated,
)
from wirelake.errors import EngineError

log = logging.getLogger("wirelake.engine")

_WAL_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_FRAME = _FRAME_HEADER.size + PAGE
#: A WAL whose checksums are of little-endian words; the other kind differs in the last bit.
_MAGIC = 0x377F0682
#: The head of the shared memory: the number of frames, and the WAL's salts.
_SHARED = struct.Struct("=16xI12x2I8x48x")

_TABLES = {
    "queues": "name, next, settings, crc",
    "messages": "queue, sequence, attempts, expires, due, fields, payload, crc",
    "ids": "queue, until, id",
    "entries": "key, revision, expires, value, crc",
    "applied": "id, number, crc",
}
#: Those of version 1.
_FIRST_TABLES = set(_TABLES) - {"applied"}
_KEYS = {
    "queues": "name",
    "messages": "queue, sequence",
    "ids": "queue, until, id",
    "entries": "key",
    "applied": "id",
}

#: The type of each column; `_Text` and bytes tell text from blobs.
_TYPES: dict[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("queue", "name", "key", "settings", "fields"), bytes),
    **dict.fromkeys(("next", "sequence", "attempts", "expires", "due", "crc", "until"), int),
    **dict.fromkeys(("revision", "number"), int),
    "id": (bytes, int),
    "payload": bytes,
    "value": (bytes, type(None)),
}
_TEXTS = ("queue", "name", "key", "settings", "fields")

#: What a value of the wrong type or kind raises while a row is checked.
_WRONG = (TypeError, ValueError, OverflowError)

#: Rows that cannot be decoded get a line in the broker's log each, up to this many.
MOST_LINES = 100

Row = tuple[object, ...]


class _Text(bytes):
    """Text of a database, as bytes: damaged text is not always UTF-8."""


class Aside:
    """Keeps what cannot be decoded in a file of JSON lines, and reports it in `damage`."""

    def __init__(self, folder: Path, damage: list[str]) -> None:
        self._folder = folder
        self._damage = damage
        self._path: Path | None = None
        self._count = 0

    def __call__(self, what: str, raw: bytes, error: Exception) -> None:
        """Keep these bytes, of which `what` says what they are; the error says what is wrong."""
        if self._path is None:
            self._path = _free_name(self._folder / "broker.db", ".jsonl")
        line = {"what": what, "error": str(error), "base64": base64.b64encode(raw).decode()}
        self._path.touch(0o600)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._count += 1
        if self._count > MOST_LINES:
            return
        text = f"{what} cannot be read: {error}; kept in {self._path.name}"
        if self._count == MOST_LINES:
            text += ", as are those that follow"
        log.error("%s", text)
        self._damage.append(text)


def open_database(path: Path, damage: list[str], *, used: bool = False) -> Database:
    """Open a database, or what can be read of a damaged one; then `damage` says what was wrong.

    `used`: others have seen it before, so it cannot be new.
    """
    try:
        _finish(path)
        problem = _problem(path, used)
        if problem:
            text = f"{path.name} was damaged: {problem}; {_replace(path)}"
            log.error("%s", text)
            damage.append(text)
    except OSError as error:
        raise EngineError(f"{path}: {(error.strerror or str(error)).lower()}") from error
    return Database(path)


def open_empty_database(path: Path, damage: list[str], error: Exception) -> Database:
    """Set a database aside that cannot be used, which `error` says, and open an empty one."""
    text = f"{path.name} was damaged: {error}; {_replace(path, empty=True)}"
    log.error("%s", text)
    damage.append(text)
    return Database(path)


def is_damage(error: BaseException | None) -> bool:
    """Does an error mean that a file is not what it should be? A full disk, say, does not."""
    if isinstance(error, EngineError):
        return is_damage(error.__cause__)
    if isinstance(error, sqlite3.Error):
        return _is_damage(error)
    return isinstance(error, (*_WRONG, msgspec.MsgspecError))


# What is wrong


def _problem(path: Path, used: bool) -> str:
    """What is wrong with a database, or nothing."""
    wal = _read_wal(path)
    if not path.exists() or path.stat().st_size == 0:
        return "it is empty" if wal.frames or used else ""
    if wal.problem:
        return wal.problem
    with translated(path):
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            db.text_factory = _Text
            return _problem_of_pages(db, path) or _problem_of_rows(db)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return str(error)
        except _WRONG as error:
            return str(error)
        finally:
            db.close()


def _is_damage(error: sqlite3.Error) -> bool:
    """Does an error mean that the file is not what it should be?"""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code == sqlite3.SQLITE_IOERR_SHORT_READ or code & 0xFF in (
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,  # a table is not there
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
    )


def _problem_of_pages(db: sqlite3.Connection, path: Path) -> str:
    """What is wrong with the structure of the file; a file of another kind is refused."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    tables = {name.decode() for (name,) in db.execute("SELECT name FROM sqlite_schema")}
    if not tables and application == version == 0:
        return ""  # made, but killed before the tables were
    if application != APPLICATION and not tables >= _FIRST_TABLES:
        raise EngineError(f"{path}: a database, but not of a broker")
    if version > VERSION and application == APPLICATION:
        raise EngineError(f"{path}: has version {version}; this program knows up to {VERSION}")
    if application != APPLICATION or not 0 < version <= VERSION:
        return "its header is not what it should be"
    (result,) = db.execute("PRAGMA quick_check(1)").fetchone()
    return "" if result == b"ok" else result.decode(errors="replace").replace("\n", ", ")


def _problem_of_rows(db: sqlite3.Connection) -> str:
    """The first row whose checksum is wrong."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    for table in _TABLES if version == VERSION else _FIRST_TABLES:
        for row in db.execute(f"SELECT {_TABLES[table]} FROM {table}"):
            if not _is_whole(table, row):
                return f"a checksum is wrong in {table}, {_KEYS[table]} = {row[:2]!r}"
    return ""


def _is_whole(table: str, row: Row) -> bool:
    """Is a row what was written? Text has to be given as `_Text`."""
    for name, value in zip(_TABLES[table].split(", "), row, strict=True):
        if not isinstance(value, _TYPES[name]) or isinstance(value, _Text) != (name in _TEXTS):
            return False
    checks: dict[str, Callable[..., bool]] = {
        "queues": lambda name, following, settings, crc: (
            crc == queue_crc(name, following, settings)
        ),
        "messages": lambda queue, sequence, _, expires, due, fields, payload, crc: (
            crc == message_crc(queue, sequence, expires, due, fields, payload)
        ),
        "ids": lambda *_: None not in row,
        "entries": lambda key, revision, expires, value, crc: (
            crc == entry_crc(key, revision, expires, value)
        ),
        "applied": lambda id, number, crc: crc == applied_crc(number),
    }
    try:
        return checks[table](*row)
    except _WRONG:
        return False


# The WAL


@dataclass
class _Wal:
    """The frames of a WAL that were committed: page, place of its data, and is it whole?"""

    frames: list[tuple[int, int, bool]]
    pages: int = 0  # of the database, after the last commit
    problem: str = ""


def _read_wal(path: Path) -> _Wal:
    """What the WAL of a database holds; a `problem` if SQLite would leave out some of it."""
    try:
        data = path.with_name(path.name + "-wal").read_bytes()
    except FileNotFoundError:
        data = b""
    if len(data) < _WAL_HEADER.size + _FRAME or not any(data[: _WAL_HEADER.size]):
        return _Wal([], problem="its WAL is missing" if _committed_frames(path, None) else "")
    magic, *_, salt, salt2, sum1, sum2 = _WAL_HEADER.unpack_from(data)
    little = magic != _MAGIC | 1
    header_is_whole = magic & ~1 == _MAGIC and (
        _checksum(data[:24], 0, 0, little=little) == (sum1, sum2)
    )
    salts = (salt, salt2)
    if not header_is_whole:
        salts = _FRAME_HEADER.unpack_from(data, _WAL_HEADER.size)[2:4]
    frames: list[tuple[int, int, bool]] = []
    commits: list[tuple[int, int]] = []  # frames up to there, pages of the database
    chain = 0  # frames before the first that is not whole
    last = (sum1, sum2)
    for place in range(_WAL_HEADER.size, len(data) - _FRAME + 1, _FRAME):
        page, pages, one, two, *sums = _FRAME_HEADER.unpack_from(data, place)
        start = place + _FRAME_HEADER.size
        if (one, two) == salts:
            body = data[place : place + 8] + data[start : start + PAGE]
            whole = _checksum(body, *last, little=little) == tuple(sums)
        else:
            whole = False
        last = (sums[0], sums[1])
        if whole and chain == len(frames):
            chain += 1
        frames.append((page, start, whole))
        if whole and pages:
            commits.append((len(frames), pages))
    seen = max((end for end, _ in commits if end <= chain), default=0)
    later = [end for end, _ in commits if end > chain]
    # The last commit may be one that a crash has torn; those before it were durable.
    sure = max(later[-2] if len(later) > 1 else 0, _committed_frames(path, salts), seen)
    problem = ""
    if not header_is_whole:
        problem, sure = "the header of its WAL", max([sure, *later])
    elif sure > seen:
        problem = f"its WAL has {sure} frames, but only {seen} can be read in order"
    pages = max((pages for end, pages in commits if end <= sure), default=0)
    return _Wal(frames[:sure], pages, problem)


def _checksum(data: bytes, one: int, two: int, *, little: bool) -> tuple[int, int]:
    """SQLite's checksum of a WAL frame, continued from the one before."""
    words = array("I", data)
    if little != (byteorder == "little"):
        words.byteswap()
    for even, odd in zip(words[::2], words[1::2], strict=True):
        one = (one + even + two) & 0xFFFFFFFF
        two = (two + odd + one) & 0xFFFFFFFF
    return one, two


def _committed_frames(path: Path, salts: tuple[int, int] | None) -> int:
    """How many frames of the WAL were committed, if who wrote them last has left a word of it."""
    try:
        with path.with_name(path.name + "-shm").open("rb") as file:
            head = file.read(_SHARED.size)
    except FileNotFoundError:
        return 0
    half = len(head) // 2
    if len(head) < _SHARED.size or head[:half] != head[half:]:  # it is kept twice
        return 0
    frames, *words = _SHARED.unpack(head)
    # They are kept as they stand in the WAL.
    found = struct.unpack(">2I", struct.pack("=2I", *words))
    return frames if salts is None or found == salts else 0


# What can be read


def _replace(path: Path, *, empty: bool = False) -> str:
    """Make a new database of what can be read of a damaged one; how that went.

    `empty`: of nothing.
    """
    image, partial = path.with_name(path.name + ".image"), path.with_name(path.name + ".partial")
    for leftover in (image, partial, *(path.with_name(partial.name + e) for e in ("-wal", "-shm"))):
        leftover.unlink(missing_ok=True)
    with translated(path):
        new = connect(partial)
        try:
            first_page = _first_page(new, partial)
            if empty:
                found = "nothing of it was read"
            else:
                _make_image(path, image, first_page)
                found = _copy(image, new)
        except (sqlite3.Error, *_WRONG) as error:
            if not is_damage(error):
                raise
            found = f"nothing of it can be read ({error})"  # the transaction was rolled back
        finally:
            new.close()
    image.unlink(missing_ok=True)
    _sync(partial)
    partial.rename(path.with_name(path.name + ".new"))
    _sync(path.parent)
    return f"{found}; the damaged file is now {_finish(path)}"


def _finish(path: Path) -> str:
    """If there is a new database, set the old one aside; its name."""
    new = path.with_name(path.name + ".new")
    if not new.exists():
        return ""
    aside = _free_name(path)
    for ending in ("", "-wal"):
        old = path.with_name(path.name + ending)
        if old.exists():
            old.rename(aside.with_name(aside.name + ending))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    new.rename(path)
    _sync(path.parent)
    return aside.name


def _free_name(path: Path, ending: str = "") -> Path:
    """A name, with the time in it, for what is set aside of a file; what was before stays."""
    name = f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}"
    aside, number = path.with_name(name + ending), 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{name}-{number}{ending}")
    return aside


def _first_page(new: sqlite3.Connection, path: Path) -> bytes:
    """The first page of a new database: where its tables begin is the same in all of them."""
    new.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("rb") as file:
        return file.read(PAGE)


def _make_image(path: Path, image: Path, first_page: bytes) -> None:
    """The damaged database with the frames of its WAL, and a first page that can be read."""
    image.touch(0o600)
    if path.exists():
        shutil.copyfile(path, image)
    wal = _read_wal(path)
    with image.open("r+b") as file:
        if wal.frames:
            data = path.with_name(path.name + "-wal").read_bytes()
            for page, start, whole in wal.frames:
                if whole:
                    file.seek((page - 1) * PAGE)
                    file.write(data[start : start + PAGE])
        size = max(wal.pages * PAGE, file.seek(0, os.SEEK_END), PAGE)
        file.truncate(-(-size // PAGE) * PAGE)  # whole pages, with zeros where there was nothing
        file.seek(0)
        # No rollback journal or WAL, no free pages, and the size is what the file has.
        file.write(first_page[:18] + b"\1\1" + first_page[20:28])
        file.write(struct.pack(">3I", size // PAGE, 0, 0) + first_page[40:])


def _copy(image: Path, new: sqlite3.Connection) -> str:
    """Copy the rows that can be read; how many."""
    old = sqlite3.connect(f"{image.absolute().as_uri()}?immutable=1", uri=True)
    old.text_factory = _Text
    kept = dict.fromkeys(_TABLES, 0)
    broken = 0
    last: dict[object, int] = {}
    try:
        with transaction(new):
            for table, columns in _TABLES.items():
                marks = ", ".join("?" * (columns.count(",") + 1))
                for row in _readable(old, table, list(last)):
                    if not _is_whole(table, row):
                        broken += 1
                        continue
                    try:
                        values = [_text(columns, k, value) for k, value in enumerate(row)]
                    except UnicodeDecodeError:
                        broken += 1
                        continue
                    kept[table] += new.execute(
                        f"INSERT OR IGNORE INTO {table} ({columns}) VALUES ({marks})", values
                    ).rowcount
                    if table in ("queues", "messages"):
                        assert isinstance(row[1], int)  # since the row is whole
                        last[values[0]] = max(last.get(values[0], 0), row[1])
            _declare(new, last)
    finally:
        old.close()
    return (
        f"{kept['messages']} messages in {len(last)} queues and {kept['entries']} keys were read"
        + (f", {broken} rows were broken" if broken else "")
    )


def _text(columns: str, position: int, value: object) -> object:
    """A value as its column has it: text, or what it is."""
    is_text = columns.split(", ")[position] in _TEXTS
    return value.decode() if is_text and isinstance(value, bytes) else value


def _declare(new: sqlite3.Connection, last: dict[object, int]) -> None:
    """Let every queue that has messages be there, and start well after the last sequence found."""
    for name, sequence in last.items():
        assert isinstance(name, str)
        found = new.execute("SELECT settings FROM queues WHERE name = ?", (name,)).fetchone()
        settings = found[0].encode() if found else msgspec.json.encode(QueueSettings(name))
        following = sequence + LEAP
        crc = queue_crc(name.encode(), following, settings)
        new.execute(
            "INSERT OR REPLACE INTO queues (name, next, settings, crc) VALUES (?, ?, ?, ?)",
            (name, following, settings.decode(), crc),
        )


def _readable(db: sqlite3.Connection, table: str, queues: Iterable[object]) -> Iterator[Row]:
    """The rows that can be read: from both ends, and for messages, around what cannot be."""
    for direction in ("ASC", "DESC"):
        order = ", ".join(f"{key} {direction}" for key in _KEYS[table].split(", "))
        try:
            yield from db.execute(f"SELECT {_TABLES[table]} FROM {table} ORDER BY {order}")
        except sqlite3.DatabaseError:
            continue
        return
    if table == "messages":
        for queue in queues:
            yield from _around(db, queue)


def _around(db: sqlite3.Connection, queue: object) -> Iterator[Row]:
    """The messages of a queue, with leaps over those that cannot be read."""
    select = f"SELECT {_TABLES['messages']} FROM messages WHERE queue = ? AND sequence > ?"
    sequence = -1
    while True:
        try:
            for row in db.execute(f"{select} ORDER BY sequence", (queue, sequence)):
                if isinstance(row[1], int):
                    sequence = row[1]
                yield row
            return
        except sqlite3.DatabaseError:
            beyond = _beyond(db, queue, sequence)
        if beyond is None:
            return
        with contextlib.suppress(sqlite3.DatabaseError):
            yield from db.execute(
                f"{select} AND sequence < ? ORDER BY sequence DESC", (queue, sequence, beyond)
            )
        sequence = beyond - 1


def _beyond(db: sqlite3.Connection, queue: object, sequence: int) -> int | None:
    """A readable sequence after one that is not, if there is one."""
    leap = 1
    while leap < 1 << 48:
        try:
            found = db.execute(
                "SELECT sequence FROM messages WHERE queue = ? AND sequence > ?"
                " ORDER BY sequence LIMIT 1",
                (queue, sequence + leap),
            ).fetchone()
        except sqlite3.DatabaseError:
            leap *= 2
        else:
            if found is None:
                return None
            if isinstance(found[0], int) and found[0] > sequence:
                return found[0]
            leap *= 2  # a number whose type is damaged comes after all others
    return None


def _sync(path: Path) -> None:
    """Let a file, or what a folder says about its files, be on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
