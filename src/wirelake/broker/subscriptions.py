"""An index of filters: who asked for what, found by address.

The filters are a tree by their levels. Levels that do not branch share one node, so the tree has
at most two nodes for each filter, and an address visits no more nodes than twice the filters that
agree with its beginning, however many levels they have.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Generic, TypeVar

import cython

T = TypeVar("T", bound=Hashable)


@cython.final
@cython.cclass
class _Node:
    """A run of levels without branches: who subscribed at its end, and what follows."""

    here: dict[Any, int]  # by when they came
    below: dict[str, _Node]  # by the first level of their runs
    run: tuple[str, ...]
    length: cython.Py_ssize_t
    is_wild: cython.bint
    levels: tuple[str | None, ...]  # the run, None for `+`

    def __init__(self, run: tuple[str, ...]) -> None:
        self.here = {}
        self.below = {}
        self.set_run(run)

    def set_run(self, run: tuple[str, ...]) -> None:
        """Let the node stand for these levels."""
        self.run = run
        self.length = len(run)
        self.levels = tuple([None if level == "+" else level for level in run])
        self.is_wild = None in self.levels

    @cython.cfunc
    @cython.exceptval(check=False)
    def fits(self, names: list[str], begin: cython.Py_ssize_t) -> cython.bint:
        """Do the levels of an address from `begin` on match the run? The first one does."""
        k: cython.Py_ssize_t
        levels: tuple[str | None, ...] = self.levels
        for k in range(1, self.length):
            if levels[k] is not None and levels[k] != names[begin + k]:
                return False
        return True


class FilterIndex(Generic[T]):
    """Who asked for what: items by filter, found by address, in the order they came."""

    def __init__(self) -> None:
        self._root: _Node = _Node(())
        self._size = 0
        self._count = 0
        self.visited = 0  # nodes that were looked at by `match`, ever

    def __len__(self) -> int:
        return self._size

    @cython.wraparound(True)
    @cython.boundscheck(True)
    def add(self, filter: str, item: T) -> bool:
        """Add an item under a filter; false if it is there already."""
        names = tuple(filter.split("/"))
        at: cython.Py_ssize_t = 0
        node: _Node = self._root
        found: _Node | None
        while at < len(names):
            found = node.below.get(names[at])
            if found is None:
                # `#` ends every run: it matches no level as well, so it must be found from above.
                tail = -1 if names[-1] == "#" and at < len(names) - 1 else len(names)
                found = node.below[names[at]] = _Node(names[at:tail])
            else:
                same = _common(found.run, names[at:])
                if same < found.length:
                    _split(found, same)
            node = found
            at += found.length
        if item in node.here:
            return False
        self._size += 1
        self._count += 1
        node.here[item] = self._count
        return True

    @cython.wraparound(True)
    @cython.boundscheck(True)
    def remove(self, filter: str, item: T) -> bool:
        """Remove it again; false if it was not there."""
        names = tuple(filter.split("/"))
        at: cython.Py_ssize_t = 0
        node: _Node = self._root
        found: _Node | None
        above: list[_Node] = []
        while at < len(names):
            found = node.below.get(names[at])
            if found is None or found.run != names[at : at + found.length]:
                return False
            above.append(node)
            node = found
            at += found.length
        if node.here.pop(item, None) is None:
            return False
        self._size -= 1
        while above and not node.here and not node.below:
            first = node.run[0]
            node = above.pop()
            del node.below[first]
        if above:
            _join(node)
        return True

    def match(self, address: str) -> list[T]:
        """The items whose filters match an address, each once, in the order they came."""
        names: list[str] = address.split("/")
        count: cython.Py_ssize_t = len(names)
        wild: cython.bint = not address.startswith("$")
        found: dict[T, int] = {}
        nodes: list[_Node] = [self._root]  # those to be looked at, and the level each begins at
        begins: list[int] = [0]
        visited: cython.Py_ssize_t = 0
        begin: cython.Py_ssize_t
        end: cython.Py_ssize_t
        node: _Node
        following: _Node | None
        while nodes:
            visited += 1
            node = nodes.pop()
            begin = begins.pop()
            end = begin + node.length
            if end > count or (node.is_wild and not wild):
                continue
            if not node.fits(names, begin):
                continue
            if end == count and node.here:
                _collect(found, node.here)
            if not node.below:
                continue
            if wild:
                following = node.below.get("#")
                if following is not None:
                    _collect(found, following.here)
            if end < count:
                following = node.below.get(names[end])
                if following is not None:
                    nodes.append(following)
                    begins.append(end)
                if wild:
                    following = node.below.get("+")
                    if following is not None:
                        nodes.append(following)
                        begins.append(end)
        self.visited += visited
        return sorted(found, key=found.__getitem__)


def _split(node: _Node, length: cython.Py_ssize_t) -> None:
    """Let a node stand for the first levels of its run only; the rest goes below it."""
    rest: _Node = _Node(node.run[length:])
    rest.here, rest.below = node.here, node.below
    node.here, node.below = {}, {node.run[length]: rest}
    node.set_run(node.run[:length])


def _join(node: _Node) -> None:
    """Take in what follows a node, if that does not branch."""
    below: _Node
    if node.here or len(node.below) != 1:
        return
    below = next(iter(node.below.values()))
    if below.run[0] != "#":
        node.set_run(node.run + below.run)
        node.here, node.below = below.here, below.below


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
