"""An index of filters: who asked for what, found by address.

The filters are a tree by their levels. Levels that do not branch share one node, so the tree has
at most two nodes for each filter, and an address visits no more nodes than twice the filters that
agree with its beginning, however many levels they have.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from operator import itemgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Node(Generic[T]):
    """A run of levels without branches: who subscribed at its end, and what follows."""

    __slots__ = ("below", "here", "run", "texts", "values_at")

    def __init__(self, run: tuple[str, ...]) -> None:
        self.here: dict[T, int] = {}  # by when they came
        self.below: dict[str, _Node[T]] = {}  # by the first level of their runs
        self.set_run(run)

    def set_run(self, run: tuple[str, ...]) -> None:
        """Let the node stand for these levels; the literal ones are compared in one step."""
        self.run = run
        literal = [place for place, level in enumerate(run) if level != "+"]
        self.values_at: Callable[[Any], Any] | None = itemgetter(*literal) if literal else None
        texts = tuple(run[place] for place in literal)
        self.texts: Any = texts if len(texts) > 1 else next(iter(texts), None)


class FilterIndex(Generic[T]):
    """Who asked for what: items by filter, found by address, in the order they came."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node(())
        self._size = 0
        self._count = 0
        self.visited = 0  # nodes that were looked at by `match`, ever

    def __len__(self) -> int:
        return self._size

    def add(self, filter: str, item: T) -> bool:
        """Add an item under a filter; false if it is there already."""
        names = tuple(filter.split("/"))
        node, at = self._root, 0
        while at < len(names):
            found = node.below.get(names[at])
            if found is None:
                # `#` ends every run: it matches no level as well, so it must be found from above.
                tail = -1 if names[-1] == "#" and at < len(names) - 1 else len(names)
                found = node.below[names[at]] = _Node(names[at:tail])
            else:
                same = _common(found.run, names[at:])
                if same < len(found.run):
                    self._split(found, same)
            node, at = found, at + len(found.run)
        if item in node.here:
            return False
        self._size += 1
        self._count += 1
        node.here[item] = self._count
        return True

    def remove(self, filter: str, item: T) -> bool:
        """Remove it again; false if it was not there."""
        names = tuple(filter.split("/"))
        path = [self._root]
        at = 0
        while at < len(names):
            node = path[-1].below.get(names[at])
            if node is None or node.run != names[at : at + len(node.run)]:
                return False
            path.append(node)
            at += len(node.run)
        if path[-1].here.pop(item, None) is None:
            return False
        self._size -= 1
        while len(path) > 1 and not path[-1].here and not path[-1].below:
            del path[-2].below[path.pop().run[0]]
        if len(path) > 1:
            self._join(path[-1])
        return True

    def _split(self, node: _Node[T], length: int) -> None:
        """Let a node stand for the first levels of its run only; the rest goes below it."""
        rest: _Node[T] = _Node(node.run[length:])
        rest.here, rest.below = node.here, node.below
        node.here, node.below = {}, {rest.run[0]: rest}
        node.set_run(node.run[:length])

    def _join(self, node: _Node[T]) -> None:
        """Take in what follows a node, if that does not branch."""
        if node.here or len(node.below) != 1:
            return
        (below,) = node.below.values()
        if below.run[0] != "#":
            node.set_run(node.run + below.run)
            node.here, node.below = below.here, below.below

    def match(self, address: str) -> list[T]:
        """The items whose filters match an address, each once, in the order they came."""
        names = address.split("/")
        count = len(names)
        wild = not address.startswith("$")
        found: dict[T, int] = {}
        visited = 0
        pending: list[tuple[_Node[T], int]] = [(self._root, 0)]
        while pending:
            visited += 1
            node, used = pending.pop()
            end = used + len(node.run)
            if end > count:
                continue
            if node.values_at is not None and node.values_at(names[used:end]) != node.texts:
                continue
            if not wild and "+" in node.run:
                continue
            if end == count and node.here:
                _collect(found, node.here)
            below = node.below
            if not below:
                continue
            if wild and (rest := below.get("#")) is not None:
                _collect(found, rest.here)
            if end < count:
                if (following := below.get(names[end])) is not None:
                    pending.append((following, end))
                if wild and (following := below.get("+")) is not None:
                    pending.append((following, end))
        self.visited += visited
        return sorted(found, key=found.__getitem__)


def _common(run: tuple[str, ...], names: tuple[str, ...]) -> int:
    """How many levels both begin with."""
    same = 0
    for one, other in zip(run, names, strict=False):
        if one != other:
            break
        same += 1
    return same


def _collect(found: dict[T, int], here: dict[T, int]) -> None:
    """Add items, each with the time of its first filter."""
    if not found:
        found.update(here)
        return
    for item, order in here.items():
        found[item] = min(order, found.get(item, order))
