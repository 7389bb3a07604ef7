"""Locks between processes on one machine; the system releases them when their holder dies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wirelake.errors import EngineError


@contextmanager
def locked(file: Path, *, mode: int = 0o777) -> Iterator[int | None]:
    """Hold an exclusive lock on a file; yields its descriptor, or None if another process has it.

    The file is made if need be, and its folder with this mode. EngineError if that is not possible.
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
            yield handle
    finally:
        os.close(handle)
