"""The dialects that Wirelake speaks, by name.

Each built-in dialect has a folder here: its value in `__init__.py`, and beside it the code that
reads and writes its frames, the broker's session and the client's speech. Importing this package
imports none of that code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from wirelake.dialects import boson_binary, boson_text, kobold, mfp, tmq
from wirelake.dialects.dialect import Dialect

__all__ = [
    "AUTO",
    "AUTO_PORT",
    "DIALECTS",
    "HOPS",
    "MOST_HOPS",
    "Dialect",
    "default_ports",
    "families",
]

#: The listener that takes every dialect, and its port.
AUTO = "auto"
AUTO_PORT = 7700

#: The names of dialects whose ttl counts hops, and the most that a frame can say.
HOPS: set[str] = set()
MOST_HOPS = 63


class Registry(Mapping[str, Dialect]):
    """Dialects by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._dialects: dict[str, Dialect] = {}

    def __getitem__(self, name: str) -> Dialect:
        return self._dialects[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dialects)

    def __len__(self) -> int:
        return len(self._dialects)

    def add(self, dialect: Dialect) -> None:
        """Add a dialect; raises ValueError where its name is taken."""
        if dialect.name in (*self._dialects, *families(), AUTO):
            raise ValueError(f"there is a dialect {dialect.name} already")
        self._dialects[dialect.name] = dialect
        if dialect.ttl_in_hops:
            HOPS.add(dialect.name)

    def remove(self, name: str) -> None:
        """Remove a dialect, as tests do after they added one."""
        del self._dialects[name]
        HOPS.discard(name)

    def of_family(self, name: str) -> list[Dialect]:
        """Return the dialects of a family, or all of them for `auto`."""
        return [one for one in self.values() if name in (one.family, AUTO)]

    def named(self, name: str) -> Dialect | None:
        """Return a dialect by its name, or the newest of a family by the family's."""
        newest = {one.family: one for one in self.values() if one.is_newest}
        return self.get(name) or newest.get(name)


#: The dialects by name.
DIALECTS = Registry()


def families() -> list[str]:
    """Return the names of the families, in the order in which they were added."""
    return list(dict.fromkeys(one.family for one in DIALECTS.values()))


def default_ports() -> dict[str, int]:
    """Return the default port of `auto` and of each family that has one."""
    ports = {one.family: one.port for one in DIALECTS.values() if one.port}
    return {AUTO: AUTO_PORT, **ports}


for _dialect in (
    boson_text.DIALECT,
    boson_binary.DIALECT,
    mfp.DIALECT,
    *kobold.DIALECTS,
    *tmq.DIALECTS,
):
    DIALECTS.add(_dialect)
