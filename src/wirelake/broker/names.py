"""Names in order: a sorted set of strings that stays fast however many there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator

#: A block that has grown to this many names becomes two.
_BLOCK = 1024


class SortedNames:
    """Strings in order. Adding and removing one moves a block of them, not all."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        ordered = sorted(set(names))
        half = _BLOCK // 2
        self._blocks = [ordered[at : at + half] for at in range(0, len(ordered), half)]
        self._firsts = [block[0] for block in self._blocks]

    def add(self, name: str) -> None:
        """Add a name that is not there."""
        if not self._blocks:
            self._blocks.append([name])
            self._firsts.append(name)
            return
        place = self._block_of(name)
        block = self._blocks[place]
        insort(block, name)
        self._firsts[place] = block[0]
        if len(block) > _BLOCK:
            half = len(block) // 2
            self._blocks.insert(place + 1, block[half:])
            self._firsts.insert(place + 1, block[half])
            del block[half:]

    def remove(self, name: str) -> None:
        """Remove a name that is there."""
        place = self._block_of(name)
        block = self._blocks[place]
        block.remove(name)
        if block:
            self._firsts[place] = block[0]
        else:
            del self._blocks[place], self._firsts[place]

    def since(self, name: str, *, but_for: bool = False) -> Iterator[str]:
        """This name and those that follow it, in order, or only those that follow it.

        Nothing may be added or removed meanwhile.
        """
        if not self._blocks:
            return
        first = self._block_of(name)
        block = self._blocks[first]
        place = bisect_right(block, name) if but_for else bisect_left(block, name)
        yield from block[place:]
        for place in range(first + 1, len(self._blocks)):
            yield from self._blocks[place]

    def _block_of(self, name: str) -> int:
        """The place of the block that a name belongs to."""
        return max(0, bisect_right(self._firsts, name) - 1)
