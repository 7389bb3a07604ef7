"""An index of filters: who asked for what, found by address."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Level(Generic[T]):
    """A level of the index: what is subscribed here, and the levels below."""

    __slots__ = ("below", "here")

    def __init__(self) -> None:
        self.here: dict[T, None] = {}
        self.below: dict[str, _Level[T]] = {}


class FilterIndex(Generic[T]):
    """Who asked for what: items by filter, found by address, in the order they came."""

    def __init__(self) -> None:
        self._root: _Level[T] = _Level()
        self._order: dict[tuple[str, T], int] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, filter: str, item: T) -> bool:
        """Add an item under a filter; false if it is there already."""
        if (filter, item) in self._order:
            return False
        level = self._root
        for name in filter.split("/"):
            level = level.below.setdefault(name, _Level())
        level.here[item] = None
        self._count += 1
        self._order[filter, item] = self._count
        return True

    def remove(self, filter: str, item: T) -> bool:
        """Remove it again; false if it was not there."""
        if self._order.pop((filter, item), None) is None:
            return False
        path = [self._root]
        names = filter.split("/")
        for name in names:
            path.append(path[-1].below[name])
        del path[-1].here[item]
        for parent, name, level in zip(
            reversed(path[:-1]), reversed(names), reversed(path[1:]), strict=True
        ):
            if level.here or level.below:
                break
            del parent.below[name]
        return True

    def match(self, address: str) -> list[T]:
        """The items whose filters match an address, each once, in the order they came."""
        found: dict[T, int] = {}
        for filter, item in self._matching(address):
            order = self._order[filter, item]
            found[item] = min(order, found.get(item, order))
        return sorted(found, key=found.__getitem__)

    def _matching(self, address: str) -> Iterator[tuple[str, T]]:
        names = address.split("/")
        wild = not address.startswith("$")
        # (level, how many names it took, the filter that leads there)
        pending: list[tuple[_Level[T], int, tuple[str, ...]]] = [(self._root, 0, ())]
        while pending:
            level, used, path = pending.pop()
            if wild and (rest := level.below.get("#")):
                for item in rest.here:
                    yield "/".join((*path, "#")), item
            if used == len(names):
                for item in level.here:
                    yield "/".join(path), item
                continue
            for name in (names[used], "+") if wild else (names[used],):
                if next_level := level.below.get(name):
                    pending.append((next_level, used + 1, (*path, name)))
