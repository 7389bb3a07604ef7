"""Reading and writing any dialect: scanners and encoders by name, detection, and the feed.

    used = scanner("kobold-3").scan(data, table)   # a row for every complete message in data
    frames = encoder("tmq-1.01").encode(table)     # the same messages in another dialect

*Detection.* On `auto` every dialect's rule is asked, in the order of their ranks. A rule answers
with a dialect, with NO, or with None: that depends on bytes which are not there yet. A rule that
waits holds up all that follow, so the answer never depends on how the bytes arrived. 23 bytes
decide every rule; a Kobold or Boson key that goes on beyond them is judged by what can be seen.

*Feed.* The loop around a scanner: bytes come in as they were read, frame tables go out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from wirelake.dialects import AUTO, DIALECTS, families
from wirelake.dialects.dialect import HEAD, NO, Dialect
from wirelake.errors import ProtocolError
from wirelake.message import Limits
from wirelake.wire import Encoder, FrameTable, Scanner

__all__ = ["Feed", "clashes", "detect", "encoder", "scanner"]


def scanner(dialect: str, limits: Limits = Limits()) -> Scanner:  # noqa: B008 - immutable
    """Return a scanner for one direction of one connection."""
    made: Scanner = _find(dialect).load("scanner")(dialect, limits)
    return made


def encoder(dialect: str, *, client: bool = True) -> Encoder:
    """Return an encoder of what a client sends or, if not `client`, of what a broker delivers."""
    made: Encoder = _find(dialect).load("encoder")(dialect, client)
    return made


def _find(name: str) -> Dialect:
    try:
        return DIALECTS[name]
    except KeyError:
        raise ValueError(f"no dialect {name!r}; there are {', '.join(DIALECTS)}") from None


def detect(data: bytes | bytearray | memoryview, family: str | None = None) -> str | None:
    """Return the dialect of a stream that begins with `data`, None where more bytes must tell.

    Raises ProtocolError where no stream of the family, or of any, begins like this.
    """
    if family is not None and family not in families():
        raise ValueError(f"no family {family!r}; there are {', '.join(families())}")
    head = bytes(data[:HEAD])
    if not head:
        return None
    for rule in _rules(family or AUTO, DIALECTS.version):
        dialect = rule(head)
        if dialect != NO:
            return dialect
    reason = f"no stream of {family or 'any dialect'} begins like this"
    raise ProtocolError(family or AUTO, 0, reason)


@lru_cache(maxsize=64)
def _rules(family: str, version: int) -> list[Callable[[bytes], str | None]]:
    """Return the rules of a family, or of all dialects, each once, in the order of their ranks.

    `version` is the registry's: after a change the rules are others.
    """
    part = "detect" if family == AUTO else "detect_in_family"
    ranked = sorted(DIALECTS.of_family(family), key=lambda one: one.rank)
    if family == AUTO:
        # One that clashes with another that is asked before it needs a listener of its own.
        ranked = [one for one in ranked if not (magics_of(one) and clashes(one.name))]
    return list(dict.fromkeys(one.load(part) for one in ranked if getattr(one, part)))


def clashes(name: str) -> list[str]:
    """Return the dialects that, on `auto`, would take a stream of this one for their own.

    A described dialect is known by its magic: the rules of those that are asked before it see the
    magic, and a magic that begins as another does is a clash too.
    """
    dialect = DIALECTS[name]
    magics = magics_of(dialect)
    found: dict[str, None] = {}
    ranked = sorted(DIALECTS.of_family(AUTO), key=lambda one: one.rank)
    for other in ranked[: ranked.index(dialect)]:
        if other.detect is None or other.family == dialect.family:
            continue
        rule = other.load("detect")
        for magic in magics:
            if rule(magic.ljust(HEAD, b"\0")) not in (NO, None) or rule(magic) not in (NO, None):
                found[other.name] = None
        if any(
            one.startswith(magic) or magic.startswith(one)
            for one in magics_of(other)
            for magic in magics
        ):
            found[other.name] = None
    return list(found)


def magics_of(dialect: Dialect) -> tuple[bytes, ...]:
    """Return what streams of a described dialect or a plug-in begin with, where it says so."""
    if dialect.description is not None:
        magics: tuple[bytes, ...] = dialect.description.magics
        return magics
    return tuple(dialect.plugin.magic) if dialect.plugin is not None else ()


class Feed:
    """One direction of one connection: `receive` its bytes, then `finish`."""

    def __init__(
        self,
        dialect: str | None = None,
        *,
        family: str | None = None,
        limits: Limits = Limits(),  # noqa: B008 - immutable
        capacity: int = 4096,
    ) -> None:
        self.dialect = dialect
        self.base = 0  # where in the stream the buffer of the current table begins
        self._family = family
        self._limits = limits
        self._scanner: Scanner | None = scanner(dialect, limits) if dialect else None
        self._table = FrameTable(capacity)
        self._rest = bytearray()

    def receive(self, data: bytes | bytearray | memoryview) -> Iterator[FrameTable]:
        """The messages that `data` completes; a table is good until the next one is asked for."""
        self._rest += data
        if self._scanner is None:
            self.dialect = detect(self._rest, self._family)
            if self.dialect is None:
                return
            self._scanner = scanner(self.dialect, self._limits)
        if len(self._rest) >= self._scanner.need:
            yield from self._scan(self._scanner, self._scanner.scan)

    def finish(self) -> Iterator[FrameTable]:
        """The messages that are complete now that nothing follows; a torn one is an error."""
        if self._scanner is not None:
            yield from self._scan(self._scanner, self._scanner.finish)
        elif self._rest:
            raise ProtocolError(self._family or "auto", 0, "too short to tell the dialect")

    def _scan(
        self, scanner: Scanner, scan: Callable[[memoryview, FrameTable], int]
    ) -> Iterator[FrameTable]:
        at = 0
        try:
            while True:
                self.base = scanner.offset
                used = scan(memoryview(self._rest)[at:], self._table)
                at += used
                if self._table.count:
                    yield self._table
                if not (used and scanner.again):
                    return
        finally:
            # Whoever kept a view of a frame keeps its bytes: what is left moves to a new buffer.
            self._table.release()
            if at:
                self._rest = self._rest[at:]
