"""What a queue could deliver now or later: sequences in the order in which they are due.

Plain messages, which are nearly all, are *runs* of adjacent sequences, first come, first served. A
message with a priority, a delay or an earlier delivery stands alone, in a heap. Nothing here knows
what a message is, who gets it or where it is kept.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence


class Ready:
    """The messages of a queue that nobody holds: ready ones, and delayed ones with their times."""

    def __init__(self) -> None:
        self._runs: deque[list[int]] = deque()  # begin and end of each
        self._in_runs = 0
        self._alone: list[tuple[int, int]] = []  # minus the priority, and the sequence
        self._later: list[tuple[float, int]] = []  # when it is due, and the sequence

    def __len__(self) -> int:
        return self._in_runs + len(self._alone)

    @property
    def delayed(self) -> int:
        """How many messages wait for their time."""
        return len(self._later)

    @property
    def next_due(self) -> float:
        """When the first delayed message is due, infinity where there is none."""
        return self._later[0][0] if self._later else float("inf")

    @property
    def has_single(self) -> bool:
        """Whether a message is ready that is in no run; only such were delivered before."""
        return bool(self._alone)

    @property
    def first(self) -> int | None:
        """The sequence of the message that comes next, None where nothing is ready."""
        if self._alone and (not self._runs or self._alone[0] < (0, self._runs[0][0])):
            return self._alone[0][1]
        return self._runs[0][0] if self._runs else None

    def add_run(self, begin: int, end: int) -> None:
        """Add plain messages [begin, end), behind all others of their kind."""
        if self._runs and self._runs[-1][1] == begin:
            self._runs[-1][1] = end
        else:
            self._runs.append([begin, end])
        self._in_runs += end - begin

    def add(self, sequence: int, priority: int) -> None:
        """Add a message that has a priority, had a delay or was delivered before."""
        heapq.heappush(self._alone, (-priority, sequence))

    def add_later(self, due: float, sequence: int) -> None:
        """Add a message that must not be delivered before its time."""
        heapq.heappush(self._later, (due, sequence))

    def pop_due(self, now: float) -> int | None:
        """Take a delayed message whose time has come, None where there is none."""
        if self._later and self._later[0][0] <= now:
            return heapq.heappop(self._later)[1]
        return None

    def pop(self) -> int:
        """Take the message that comes next."""
        if self._alone and (not self._runs or self._alone[0] < (0, self._runs[0][0])):
            return heapq.heappop(self._alone)[1]
        run = self._runs[0]
        self._shorten(run, run[0] + 1)
        return run[0] - 1

    def pop_run(
        self, most: int, room: int, sizes: Callable[[int, int], Iterable[int]]
    ) -> tuple[range, int]:
        """Take up to `most` messages of the first run, at least one, until `room` bytes are full.

        Return their sequences, and the room that is left. `sizes` gives the bytes of messages
        [begin, end). Only where no message stands alone: one could come before the end of the run.
        """
        run = self._runs[0]
        begin = end = run[0]
        for size in sizes(begin, min(run[1], begin + most)):
            if room <= 0 and end > begin:
                break
            room -= size
            end += 1
        self._shorten(run, end)
        return range(begin, end), room

    def _shorten(self, run: list[int], begin: int) -> None:
        """Let the first run begin later; remove it where nothing is left."""
        self._in_runs -= begin - run[0]
        run[0] = begin
        if begin == run[1]:
            self._runs.popleft()

    def __iter__(self) -> Iterator[int]:
        """Yield the sequences of all that is ready, in the order in which they come."""
        alone = iter(sorted(self._alone))
        waiting = next(alone, None)
        for begin, end in self._runs:
            at = begin
            while at < end:
                if waiting is not None and waiting < (0, at):
                    yield waiting[1]
                    waiting = next(alone, None)
                else:
                    yield at
                    at += 1
        if waiting is not None:
            yield waiting[1]
            yield from (sequence for _, sequence in alone)

    def remove(self, only: frozenset[int]) -> list[int]:
        """Take those of these messages that are ready, in the order in which they come."""
        taken = [sequence for sequence in self if sequence in only]
        self._alone = [one for one in self._alone if one[1] not in only]
        heapq.heapify(self._alone)
        left = [sequence for begin, end in self._runs for sequence in range(begin, end)]
        self._runs.clear()
        self._in_runs = 0
        for begin, end in runs([sequence for sequence in left if sequence not in only]):
            self.add_run(begin, end)
        return taken

    def clear(self) -> list[int]:
        """Take everything, delayed messages too; return the sequences."""
        taken = [*self, *(sequence for _, sequence in self._later)]
        self._runs.clear()
        self._in_runs = 0
        self._alone.clear()
        self._later.clear()
        return taken


def runs(sequences: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of adjacent sequences."""
    begin = 0
    for k in range(1, len(sequences) + 1):
        if k == len(sequences) or sequences[k] != sequences[k - 1] + 1:
            yield sequences[begin], sequences[k - 1] + 1
            begin = k
