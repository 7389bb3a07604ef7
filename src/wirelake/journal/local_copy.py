"""A copy of one partition of another journal, in segment files of this node.

Owner and standby have one each. Rows are read from it at the speed of files, and a partition is
taken up from it, so that only what is not here yet has to come over the network. It is not synced:
what a power failure takes from it is fetched again. A copy that is damaged is begun anew, and the
damaged one is kept beside it under another name until the next such case.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from wirelake.journal.arrow_stream import Compression
from wirelake.journal.contract import Harm, Loss
from wirelake.journal.files import FilesJournal, Origin
from wirelake.journal.record import End
from wirelake.journal.recovery import report
from wirelake.journal.retention import Rule
from wirelake.journal.segment import Disk, Identity


class Unsynced(Disk):
    """A disk that nothing waits for."""

    def sync(self, file: int) -> None:
        """Nothing: the page cache survives all but a power failure."""

    def sync_folder(self, folder: Path) -> None:
        """Nothing, for the same reason."""


class LocalCopy:
    """The copy of one partition: none, or a journal in files that `extend` writes to."""

    def __init__(
        self,
        folder: Path,
        identity: Identity,
        partition: int,
        losses: list[Loss],
        *,
        rules: Sequence[Rule] = (),
        compression: Compression = "none",
    ) -> None:
        self._folder = folder
        self._identity = identity
        self._partition = partition
        self._losses = losses
        self._compression: Compression = compression
        self.rules = rules
        self.files: FilesJournal | None = None

    @property
    def end(self) -> End:
        """Where the chain ends here."""
        return self.files.end(self._partition) if self.files else End()

    def open(self) -> None:
        """Open what an earlier process left, if it is there and whole."""
        if self.files is None and (self._folder / "journal").exists():
            self._open(End())
        if self.files is not None and self.files.is_damaged:
            where = self.set_aside()
            text = "is damaged, and is fetched again from the stream"
            name = f"the copy of partition {self._partition}"
            report(Loss(Harm.DAMAGED, name, text, where), self._losses)

    def begin(self, end: End) -> None:
        """Begin an empty copy whose first record will follow this end; what was here goes."""
        self.remove()
        self._open(end)

    def _open(self, begin: End) -> None:
        self.files = FilesJournal(
            self._folder,
            tidy_every=0,
            rules=self.rules,
            compression=self._compression,
            disk=Unsynced(),
            origin=Origin(self._identity, self._partition, begin),
        )

    def set_aside(self) -> str:
        """Keep the copy under another name, instead of the one that was kept before it."""
        kept = self._folder.with_name(self._folder.name + ".aside")
        self.close()
        shutil.rmtree(kept, ignore_errors=True)
        self._folder.rename(kept)
        return kept.name

    def remove(self) -> None:
        """Remove the copy."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Let go of the files."""
        if self.files is not None:
            self.files.close()
            self.files = None
