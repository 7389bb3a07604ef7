"""The segment that is being written.

A write is a frame and records, made durable by one sync. It goes into space that was written before
with a filling, since to sync a file that grows takes far longer. What fails is cut off again. After
an error other than a full disk the system may take pages for clean that were never written, so that
a later sync tells nothing: the next write begins another segment.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from wirelake.journal.record import End, Piece
from wirelake.journal.segment import (
    FRAME,
    Disk,
    Draft,
    Identity,
    Name,
    Segment,
    filling,
    pack_frame,
    pack_head,
    write_all,
)

#: A segment that is larger, or has more records, is followed by a new one.
SEGMENT_BYTES = 256 << 20
SEGMENT_RECORDS = 1 << 16

#: A write of up to this many bytes that grows the file grows it by this much more.
SMALL_WRITE = 64 << 10
FILLING = 1 << 20

log = logging.getLogger("wirelake.journal")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM = (*_FULL, errno.EFBIG)


class Tail:
    """The last segment of a journal; one thread at a time may call it."""

    segment: Segment

    def __init__(
        self, disk: Disk, folder: Path, identity: Identity, number: int, segment_bytes: int
    ) -> None:
        """`number` is that of the next segment to be begun."""
        self._disk = disk
        self._folder = folder
        self._identity = identity
        self._number = number
        self.segment_bytes = segment_bytes
        self._file = -1
        self._filled = 0  # the size of the file, of which the last part is the filling
        self._suspect = False  # may the file hold what was not written whole?

    def resume(self, segments: Sequence[Segment], *, clean: bool) -> None:
        """Go on behind the last of these segments, or, if it is not clean, in a new one.

        Segments before it that have no index get one.
        """
        for segment in segments[:-1]:
            if not segment.complete:
                file = self._disk.open(segment.path, os.O_RDWR)
                self._complete(segment, file)
                os.close(file)
        self.segment = segments[-1]
        self._file = self._disk.open(self.segment.path, os.O_RDWR)
        self._filled = max(self.segment.size, os.fstat(self._file).st_size)
        self._suspect = not clean

    @property
    def is_full(self) -> bool:
        """Has another segment to be begun before anything is written?"""
        segment = self.segment
        large = segment.records and segment.size >= self.segment_bytes
        return bool(large) or segment.records >= SEGMENT_RECORDS or self._suspect

    def begin(self, ends: Sequence[End]) -> Segment:
        """Begin a segment at these ends, then complete the one before it.

        So a segment that is complete is always followed by another. Raises OSError where the new
        one cannot be made; everything is as before then.
        """
        name = Name(self._number, self._number)
        segment = Segment(self._folder, name, ends, rewritten=False)
        with Draft(self._disk, segment.path) as draft:
            draft.write([pack_head(self._identity, ends)])
            segment.size = draft.size
        file = self._disk.open(segment.path, os.O_RDWR)
        self._number += 1
        if self._file >= 0:
            self._complete(self.segment, self._file)
            os.close(self._file)
        self._file = file
        self._filled = segment.size
        self._suspect = False
        self.segment = segment
        return segment

    def write(self, records: Sequence[Piece], size: int, count: int) -> int:
        """Make so many records of so many bytes durable; return where the first one begins.

        Raises OSError where that is not possible; nothing of them counts then.
        """
        segment = self.segment
        if os.fstat(self._file).st_nlink == 0:
            raise OSError(errno.ENOENT, f"{segment.path} was deleted while it was used")
        at = segment.size + FRAME
        try:
            self._put([pack_frame(self._identity, size, count), *records], at + size)
            self._disk.sync(self._file)
        except OSError as error:
            self._undo(error)
            raise
        segment.size = at + size
        return at

    def _put(self, pieces: list[Piece], end: int) -> None:
        """Write pieces behind what is there, and something to be overwritten by the next ones."""
        begin = self.segment.size
        more = min(FILLING, self.segment_bytes - end)
        if end > self._filled and end - begin <= SMALL_WRITE and more > 0:
            ahead = filling(self._identity.mark, end, more)
            try:
                write_all(self._disk, self._file, [*pieces, ahead], begin)
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._disk.truncate(self._file, begin)
                self._filled = begin
            else:
                self._filled = end + more
                return
        write_all(self._disk, self._file, pieces, begin)
        self._filled = max(self._filled, end)

    def _undo(self, error: OSError) -> None:
        """Cut off a write that failed."""
        self._suspect = error.errno not in _FULL
        try:
            self._disk.truncate(self._file, self.segment.size)
            self._filled = self.segment.size
        except OSError:
            self._suspect = True

    def _complete(self, segment: Segment, file: int) -> None:
        """Write the index of a segment; without it, opening takes longer."""
        if segment.complete:
            return
        pieces = segment.index(self._identity)
        try:
            # The old end is cut off first: a filling behind the foot would hide it.
            self._disk.truncate(file, segment.size)
            write_all(self._disk, file, pieces, segment.size)
            self._disk.sync(file)
        except OSError as error:
            log.warning("%s has no index: %s", segment.path, error)
            with contextlib.suppress(OSError):
                self._disk.truncate(file, segment.size)
        segment.complete = True
        segment.headers = []

    def close(self) -> None:
        """Truncate the file behind its last record, and close it."""
        if self._file < 0:
            return
        if self._filled > self.segment.size and not self.segment.complete:
            with contextlib.suppress(OSError):  # it is found out when the journal is opened
                self._disk.truncate(self._file, self.segment.size)
        os.close(self._file)
        self._file = -1
