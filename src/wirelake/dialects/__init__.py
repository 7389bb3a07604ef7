"""The dialects that Wirelake speaks, by name.

Each built-in dialect has a folder here: its value in `__init__.py`, and beside it the code that
reads and writes its frames, the broker's session and the client's speech. Importing this package
imports none of that code. Others add dialects of their own: each entry point of the group
`wirelake.dialects` of an installed package names a `Dialect` or a `wirelake.plugin.Plugin`, and
each file that the variable `WIRELAKE_DIALECTS` names describes one (`framed`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from wirelake.dialects import boson_binary, boson_text, kobold, mfp, mqtt, tmq
from wirelake.dialects.dialect import Dialect
from wirelake.errors import WirelakeError

__all__ = [
    "AUTO",
    "AUTO_PORT",
    "DIALECTS",
    "FILES",
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


#: The variable that names files which describe dialects, separated as in PATH.
FILES = "WIRELAKE_DIALECTS"


def _value(offered: object) -> Dialect:
    """Return what an entry point names as a dialect; raises TypeError where it is none."""
    if isinstance(offered, Dialect):
        return replace(offered, is_foreign=True)
    made = getattr(offered, "as_dialect", None)
    value = made() if callable(made) else None
    if not isinstance(value, Dialect):
        raise TypeError(f"{offered!r} is neither a Dialect nor a Plugin")
    return replace(value, is_foreign=True)


class Registry(Mapping[str, Dialect]):
    """Dialects by name, in the order in which they were added.

    Those of installed packages are added when somebody first looks: their modules import ours.
    """

    def __init__(self) -> None:
        self._dialects: dict[str, Dialect] = {}
        self._is_complete = False
        #: Another number after every change.
        self.version = 0

    def __getitem__(self, name: str) -> Dialect:
        self._complete()
        return self._dialects[name]

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return iter(self._dialects)

    def __len__(self) -> int:
        self._complete()
        return len(self._dialects)

    def add(self, dialect: Dialect) -> None:
        """Add a dialect; raises ValueError where its name is taken."""
        names = {AUTO, *self._dialects, *(one.family for one in self._dialects.values())}
        if dialect.name in names or dialect.family in (AUTO, *self._dialects):
            raise ValueError(f"the name of the dialect {dialect.name} or its family is taken")
        self._dialects[dialect.name] = dialect
        self.version += 1
        if dialect.ttl_in_hops:
            HOPS.add(dialect.name)

    @contextmanager
    def also(self, *dialects: Dialect) -> Iterator[None]:
        """Have these dialects too for a while, as tests do."""
        self._complete()
        kept, hops = dict(self._dialects), set(HOPS)
        try:
            for dialect in dialects:
                self.add(dialect)
            yield
        finally:
            self._dialects = kept
            self.version += 1
            HOPS.intersection_update(hops)

    def describe(self, file: Path) -> Dialect:
        """Add the dialect that a file in TOML describes, unless it is there, and return it.

        Raises ConfigError where the description is wrong, has changed, or its name is taken.
        """
        self._complete()
        module = import_module("wirelake.dialects.framed.description")
        described: Dialect = module.described(self, file)
        return described

    def of_family(self, name: str) -> list[Dialect]:
        """Return the dialects of a family, or all of them for `auto`."""
        return [one for one in self.values() if name in (one.family, AUTO)]

    def named(self, name: str) -> Dialect | None:
        """Return a dialect by its name, or the newest of a family by the family's."""
        newest = {one.family: one for one in self.values() if one.is_newest}
        return self.get(name) or newest.get(name)

    def _complete(self) -> None:
        """Add what installed packages offer; one that cannot be added is reported and left out."""
        if self._is_complete:
            return
        self._is_complete = True
        for entry in entry_points(group="wirelake.dialects"):
            try:
                self.add(_value(entry.load()))
            except Exception:
                text = "the dialect %s of %s cannot be used"
                logging.getLogger("wirelake").warning(text, entry.name, entry.value, exc_info=True)
        for file in filter(None, os.environ.get(FILES, "").split(os.pathsep)):
            try:
                self.describe(Path(file))
            except WirelakeError as error:
                text = "the dialect that %s names cannot be used: %s"
                logging.getLogger("wirelake").warning(text, FILES, error)


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
    *mqtt.DIALECTS,
):
    DIALECTS.add(_dialect)
