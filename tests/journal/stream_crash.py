"""A process that owns a partition in JetStream until it is killed.

    python -m tests.journal.stream_crash FOLDER PREFIX URL…

It says on standard output which numbers are durable.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.journal.samples import keys, some_rows
from wirelake.journal.contract import Outcome
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.streams import Access


def main(folder: str, prefix: str, *urls: str) -> None:
    """Append numbers, several at once, from the next offset on."""
    settings = StreamSettings(prefix=prefix)
    journal = JetStreamJournal(Path(folder), Access(servers=urls), settings, node=folder)
    n = journal.recover(0).offset

    def told(number: int, outcomes: Mapping[int, Outcome]) -> None:
        if outcomes[0] is Outcome.DURABLE:
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()

    while True:
        if journal.backlog < 20_000:
            some = [some_rows(n, [b"%d" % n]), keys({"last": b"%d" % n})]
            journal.append({0: some}, partial(told, n))
            n += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
