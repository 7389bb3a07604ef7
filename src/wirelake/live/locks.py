"""Locks between processes on one machine; the system releases them when their holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wirelake.errors import EngineError
from wirelake.message import printable

#: Characters of a command that are shown.
MOST_SHOWN = 120


@contextmanager
def locked(file: Path, *, mode: int = 0o777) -> Iterator[int | None]:
    """Hold an exclusive lock on a file; yields its descriptor, or None if another process has it.

    The file has the id of the process. It is made if need be, and its folder with this mode.
    EngineError if that is not possible.
    """
    try:
        file.parent.mkdir(mode, parents=True, exist_ok=True)
        handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EngineError(f"{file.parent}: {(error.strerror or str(error)).lower()}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
            yield handle
    finally:
        os.close(handle)


def holder(file: Path) -> str:
    """The process that has locked a file, for people: its id and command, as far as is known."""
    try:
        number = int(file.read_text())
    except (OSError, ValueError):
        return "another process"
    try:
        words = Path(f"/proc/{number}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:  # another user's, or another machine's
        return f"process {number}"
    command = printable(" ".join(one for one in words if one and "\n" not in one))
    return f"process {number} ({command[:MOST_SHOWN]})" if command else f"process {number}"
