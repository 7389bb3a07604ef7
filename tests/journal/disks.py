"""A disk with faults: no room, failing syncs, and power failures that undo unsynced writes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from wirelake.journal.record import Piece
from wirelake.journal.segment import Disk

SECTOR = 512

#: What was done to a file since its last sync: bytes at a place, or None and a size to cut it to.
_Step = tuple[int, bytes | None]


class FaultyDisk(Disk):
    """Does what is asked with real files, and remembers what of it a power failure could undo.

    `room`: so many bytes can be written, then the disk is full; None: no limit. `sync_errors`: so
    many syncs fail; what they were to make durable never is, whatever later ones say.
    """

    def __init__(self) -> None:
        self.room: int | None = None
        self.sync_errors = 0
        self.write_errors = 0
        #: Called before a sync.
        self.before_sync: Callable[[], object] = lambda: None
        self.syncs = 0
        self._durable: dict[int, bytes] = {}  # contents, by inode
        self._steps: dict[int, list[_Step]] = {}
        self._poisoned: set[int] = set()
        self._names: dict[Path, int] = {}  # as they are durable
        self._renames: list[tuple[Path | None, Path | None, int]] = []  # old, new, inode

    def open(self, path: Path, flags: int) -> int:
        """A file's descriptor."""
        new = not path.exists()
        file = super().open(path, flags)
        inode = os.fstat(file).st_ino
        if new:
            self._durable[inode], self._steps[inode] = b"", []
            self._poisoned.discard(inode)  # the number may have been another file's
            self._renames.append((None, path, inode))
        elif inode not in self._durable:
            self._durable[inode], self._steps[inode] = path.read_bytes(), []
            self._names[path] = inode
        elif flags & os.O_TRUNC:
            self._steps[inode].append((0, None))
        return file

    def write(self, file: int, pieces: Sequence[Piece], at: int) -> int:
        """Write as much as there is room for."""
        data = b"".join(pieces)
        if self.write_errors:
            self.write_errors -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self.room is not None:
            if self.room <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.room]
            self.room -= len(data)
        assert os.pwrite(file, data, at) == len(data)
        self._steps[os.fstat(file).st_ino].append((at, data))
        return len(data)

    def sync(self, file: int) -> None:
        """Make what was written to a file durable."""
        self.before_sync()
        self.syncs += 1
        inode = os.fstat(file).st_ino
        if self.sync_errors:
            self.sync_errors -= 1
            self._poisoned.add(inode)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(file)
        if inode not in self._poisoned:
            self._durable[inode] = _apply(self._durable[inode], self._steps[inode])
            self._steps[inode] = []

    def truncate(self, file: int, size: int) -> None:
        """Cut a file off."""
        super().truncate(file, size)
        self._steps[os.fstat(file).st_ino].append((size, None))

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name."""
        inode = old.stat().st_ino
        super().rename(old, new)
        self._renames.append((old, new, inode))

    def unlink(self, path: Path) -> None:
        """Remove a file, if it is there."""
        if path.exists():
            self._renames.append((path, None, path.stat().st_ino))
        super().unlink(path)

    def sync_folder(self, folder: Path) -> None:
        """Make the names of files durable."""
        super().sync_folder(folder)
        for step in self._renames:
            _rename(self._names, step)
        self._renames = []

    def power_failure(
        self, folder: Path, target: Path, chance: random.Random, keep: float | None = None
    ) -> None:
        """Write to `target` what the disk may hold of a folder if the power fails now.

        Of unsynced writes any subset of sectors, or this share of them; of names that were not
        synced, the first few.
        """
        target.mkdir(parents=True)
        names = dict(self._names)
        for step in self._renames[: chance.randint(0, len(self._renames))]:
            _rename(names, step)
        if keep is None:
            keep = chance.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        for path, inode in names.items():
            if path.parent != folder:
                continue
            survived: list[_Step] = []
            for at, data in self._steps[inode]:
                if data is None:
                    survived.append((at, None))
                    continue
                begin = at
                while begin < at + len(data):
                    end = min(at + len(data), (begin // SECTOR + 1) * SECTOR)
                    if chance.random() < keep:
                        survived.append((begin, data[begin - at : end - at]))
                    begin = end
            (target / path.name).write_bytes(_apply(self._durable[inode], survived))


def _apply(content: bytes, steps: list[_Step]) -> bytes:
    """A file after these steps."""
    made = bytearray(content)
    for at, data in steps:
        if data is None:
            del made[at:]
            made.extend(bytes(at - len(made)))
        else:
            made.extend(bytes(max(0, at - len(made))))
            made[at : at + len(data)] = data
    return bytes(made)


def _rename(names: dict[Path, int], step: tuple[Path | None, Path | None, int]) -> None:
    old, new, inode = step
    if old is not None:
        names.pop(old, None)
    if new is not None:
        names[new] = inode
