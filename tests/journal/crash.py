"""A process that writes to a journal until it is killed.

    python -m tests.journal.crash FOLDER SEED

Commit n of a partition puts message n into a queue, takes message n - LIVE out of it, and sets the
key `last`. It says on standard output what it appends (`?`) and what is durable (`!`), with the
partition and n.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from tests.journal.samples import State, keys, payloads, some_rows
from wirelake.journal.contract import Harm, Needed, Outcome, Space
from wirelake.journal.files import FilesJournal
from wirelake.journal.record import Put, QueueChanges, Record, Type, checkpoint

PARTITIONS = 2
LIVE = 40
QUEUE = 1


def opened(folder: Path, *, tidy_every: float = 0.0) -> FilesJournal:
    """The journal, with segments so small that they come and go."""
    return FilesJournal(folder, partitions=PARTITIONS, segment_bytes=60_000, tidy_every=tidy_every)


def found(journal: FilesJournal, partition: int) -> int:
    """Check what is there of a partition, and return its last n."""
    state = State.of(journal.recover(partition))
    last = int(state.keys.get(b"last", b"-1"))
    expected = {n: (True, n) for n in range(max(0, last - LIVE + 1), last + 1)}
    assert state.queues.get(QUEUE, {}) == expected, (partition, last)
    messages = payloads(journal, partition, space=Space.PRIVATE)
    for n in expected:
        assert messages[n] == payload(n)
    return last


def payload(n: int) -> bytes:
    """The payload of message n."""
    return random.Random(n).randbytes(n % 700)


def changes_of(n: int) -> list[Record]:
    """The records of commit n."""
    changes = QueueChanges()
    changes.put(Put(QUEUE, n, 1, n, True))
    if n >= LIVE:
        changes.drop(QUEUE, n - LIVE)
    message = some_rows(n, [payload(n)], type=Type.MESSAGES)
    return [message, changes.record(), keys({"last": b"%d" % n})]


def check(folder: Path, said: list[str]) -> None:
    """Compare what is found with what was said."""
    begun, durable = [-1] * PARTITIONS, [-1] * PARTITIONS
    for line in said:
        mark, of, n = line.split()
        (durable if mark == "!" else begun)[int(of)] = int(n)
    journal = opened(folder)
    assert all(loss.harm is Harm.TORN for loss in journal.losses), journal.losses
    for partition, at_least, at_most in zip(range(PARTITIONS), durable, begun, strict=True):
        last = found(journal, partition)
        assert at_least <= last
        assert last <= at_most or at_most < 0
    journal.close()


def write_checkpoint(journal: FilesJournal, partition: int, n: int) -> None:
    """Append the state after commit n, and let go of what it does not refer to."""
    state = QueueChanges()
    first = max(0, n - LIVE + 1)
    state.put(Put(QUEUE, first, n + 1 - first, first, True))
    records = [state.record(), keys({"last": b"%d" % n})]
    begin = journal.positions()[partition].number
    journal.append({partition: [*records, checkpoint(begin)]}, lambda _: None, in_place=True)
    journal.keep(partition, Needed((), [(first, n + 1)], 0, n + 1))


def tidied(folder: Path) -> int:
    """Let the journal be tidied once, however far it got before; return how many files are left."""
    journal = opened(folder)
    for partition in range(PARTITIONS):
        write_checkpoint(journal, partition, found(journal, partition))
    journal.tidy(time.time())
    journal.close()
    return len(list((folder / "journal").iterdir()))


def main(folder: Path, seed: int) -> None:
    """Write for ever."""
    chance = random.Random(seed)
    saying = threading.Lock()

    def say(mark: str, partition: int, n: int) -> None:
        with saying:
            sys.stdout.write(f"{mark} {partition} {n}\n")
            sys.stdout.flush()

    def done(n: int, outcomes: Mapping[int, Outcome]) -> None:
        for partition, outcome in outcomes.items():
            assert outcome is Outcome.DURABLE
            say("!", partition, n)

    journal = opened(folder, tidy_every=0.02)
    following = [found(journal, partition) + 1 for partition in range(PARTITIONS)]
    while True:
        partition = chance.randrange(PARTITIONS)
        n = following[partition]
        following[partition] += 1
        say("?", partition, n)
        in_place = chance.random() < 0.5
        journal.append({partition: changes_of(n)}, partial(done, n), in_place=in_place)
        if chance.random() < 0.02:
            write_checkpoint(journal, partition, n)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
