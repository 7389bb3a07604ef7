"""Opening a log: what its files say, and what is done about those that are damaged.

Nothing is dropped in silence. Bytes that are no record any more are copied to a file of their own,
`<segment>.damaged-<place>`, and reported; then the segment goes on without them: cut off where they
are at its end, written again where records follow.

No offset is given twice. Where a header cannot be read, nobody can say how many rows were there:
the partitions of which no later record tells it go on behind as many as there can have been. A
record that was torn is another matter: its rows were never durable, so nobody has seen their
offsets.
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from wirelake.engine.segment import (
    CHANGES,
    DRAFT,
    Damage,
    Draft,
    Header,
    Identity,
    Name,
    Reader,
    Segment,
    find_identity,
    head,
    read_head,
    scan,
    sync_folder,
)

log = logging.getLogger("wirelake.engine")


@dataclass(slots=True)
class Recovery:
    """What is found in a log's folder."""

    folder: Path
    identity: Identity | None = None
    segments: list[Segment] = field(default_factory=list)
    #: The next offset of each partition, behind all that was or may have been there.
    offsets: list[int] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    #: Where changes are that the database may not have, and their headers, in order.
    changes: list[tuple[Segment, int, Header]] = field(default_factory=list)
    _last_changes: int = 0

    def run(self, check_bytes: int) -> None:
        """Look at all files; the newest, up to so many bytes, are read whole."""
        names = self._names()
        self.identity = self._identity(names)
        if self.identity is None:
            for name in names:
                self._set_aside_whole(self.folder / name.file)
            return
        certain = [0] * self.identity.partitions
        self.offsets = [0] * self.identity.partitions
        for name, check in zip(names, self._to_check(names, check_bytes), strict=True):
            segment = self.load(name, certain, check=check)
            if segment.name != name:
                Segment(self.folder, name, []).delete()
            self.segments.append(segment)

    def load(self, name: Name, certain: list[int], *, check: bool) -> Segment:
        """Open a segment, and repair it if need be: that may be another file then.

        `certain` is where the records before it end, and is moved on.
        """
        assert self.identity is not None
        path = self.folder / name.file
        records: list[tuple[int, Header]] = []
        damages: list[Damage] = []
        with Reader(path) as reader:
            known = read_head(reader)
            if known is not None and known[0] == self.identity:
                starts = known[1]
                self.offsets = [max(*pair) for pair in zip(starts, certain, strict=True)]
            else:
                known, starts = None, list(certain)
            segment = Segment(self.folder, name, starts)
            if known is not None and not check and segment.read_index():
                self._move(segment, certain)
                return segment
            everything, segment.size = scan(reader, self.identity, bodies=check)
            for found in everything:
                if isinstance(found, Damage):
                    damages.append(found)
                    self._doubt(found)
                    continue
                at, header = found
                # A write that failed, and could not be undone, stands here twice.
                if header.partition == CHANGES:
                    if header.base > self._last_changes:
                        records.append((at, header))
                        self._last_changes = header.base
                elif header.base >= certain[header.partition]:
                    records.append((at, header))
                    certain[header.partition] = header.base + header.count
                    self.offsets[header.partition] = header.base + header.count
            for damage in damages:
                self._set_aside(reader, path, damage)
            tail = [damage.begin for damage in damages if damage.end == segment.size]
            if damages:
                segment.index_path.unlink(missing_ok=True)
            if known is None or len(damages) > len(tail):
                if damages:
                    segment, records = self._write_again(reader, segment, records)
            else:
                segment.size = min([segment.size, *tail])
                if segment.size < reader.size:
                    os.truncate(path, segment.size)
                    _sync(path)
        for at, header in records:
            segment.add(header, at)
            if header.partition == CHANGES:
                self.changes.append((segment, at, header))
        segment.checked = check
        return segment

    def _names(self) -> list[Name]:
        """The segments that count, in order; what was left over by a crash is removed."""
        for path in self.folder.glob("*" + DRAFT):
            path.unlink()
        names = [name for path in self.folder.iterdir() if (name := Name.parse(path.name))]
        counting = []
        for name in sorted(names):
            if any(other.replaces(name) for other in names):
                Segment(self.folder, name, []).delete()
            else:
                counting.append(name)
        return counting

    def _identity(self, names: list[Name]) -> Identity | None:
        """What the segments have in common, from the first one that tells it."""
        for name in reversed(names):
            with Reader(self.folder / name.file) as reader:
                if (known := read_head(reader)) is not None:
                    return known[0]
        for name in reversed(names):
            with Reader(self.folder / name.file) as reader:
                if (identity := find_identity(reader)) is not None:
                    return identity
        return None

    def _to_check(self, names: list[Name], check_bytes: int) -> list[bool]:
        """Which segments are read whole: the last one, and as many as there is time for."""
        check: list[bool] = []
        for name in reversed(names):
            check.append(not check or check_bytes > 0)
            check_bytes -= (self.folder / name.file).stat().st_size
        return check[::-1]

    def _move(self, segment: Segment, certain: list[int]) -> None:
        """Take the ends of a segment that is as it should be."""
        for partition, entries in enumerate(segment.entries):
            if entries.end:
                certain[partition] = self.offsets[partition] = entries.end[-1]

    def _doubt(self, damage: Damage) -> None:
        """Let the offsets go on behind what is lost."""
        if damage.torn:
            return
        lost = damage.lost
        if lost is None:
            self.offsets = [offset + damage.most_rows for offset in self.offsets]
        elif lost.partition != CHANGES:
            end = lost.base + lost.count
            self.offsets[lost.partition] = max(self.offsets[lost.partition], end)

    def _set_aside(self, reader: Reader, path: Path, damage: Damage) -> None:
        """Keep damaged bytes in a file of their own, and report them."""
        kept = _free_name(path, damage.begin)
        with Draft(kept) as draft:
            draft.copy(reader, damage.begin, damage.end)
        what = "are not complete" if damage.torn else "are damaged"
        rows = ""
        if (lost := damage.lost) is not None and lost.partition == CHANGES:
            rows = f": changes {lost.base} of queues and keys"
        elif lost is not None:
            rows = f": rows [{lost.base}, {lost.base + lost.count}) of partition {lost.partition}"
        self._report(
            f"{path.name}: bytes [{damage.begin}, {damage.end}) {what}{rows}; kept in {kept.name}"
        )

    def _set_aside_whole(self, path: Path) -> None:
        """Keep a file of which nothing can be read under another name, and report it."""
        kept = _free_name(path, 0)
        path.rename(kept)
        sync_folder(self.folder)
        self._report(f"{path.name}: nothing in it can be read; kept in {kept.name}")

    def _report(self, what: str) -> None:
        log.error("the log is damaged: %s", what)
        self.damage.append(what)

    def _write_again(
        self, reader: Reader, segment: Segment, records: list[tuple[int, Header]]
    ) -> tuple[Segment, list[tuple[int, Header]]]:
        """Write a segment anew with nothing but these records."""
        assert self.identity is not None
        name = segment.name._replace(rewrites=segment.name.rewrites + 1)
        again = Segment(self.folder, name, segment.starts)
        moved = []
        with Draft(again.path) as draft:
            draft.write([head(self.identity, segment.starts)])
            for at, header in records:
                moved.append((draft.size, header))
                draft.copy(reader, at, at + header.size)
            again.size = draft.size
        return again, moved


def _free_name(path: Path, place: int) -> Path:
    """A name for what is set aside of a file; what was before stays."""
    base = path.with_name(f"{path.name}.damaged-{place}")
    kept, number = base, 1
    while kept.exists():
        number += 1
        kept = base.with_name(f"{base.name}-{number}")
    return kept


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
