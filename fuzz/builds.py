"""The wire library twice in one process: plain kernels read from source, and compiled ones.

Only plain Python can tell the fuzzer which branches an input took, and only compiled kernels are
what runs in earnest. So both are loaded, from the same sources, and must agree on every input.

The plain kernels get bytes that refuse an index or a slice outside themselves: compiled, with
bounds checks off, each of those would be a stray memory access. A negative index counts as one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow  # noqa: F401  (loaded here, it is shared and not instrumented)

SOURCE = Path(__file__).parent.parent / "src"
#: Targets that are no dialects of the library, and the files that describe them.
DESCRIBED = {"meter-1": SOURCE.parent / "tests" / "dialects" / "meter.toml"}


@dataclass(frozen=True)
class Build:
    """One copy of the library; its classes are not those of the other copy."""

    compiled: bool
    codec: ModuleType  # of all dialects
    wire: ModuleType
    arrow: ModuleType
    mfp: ModuleType
    message: ModuleType
    parameters: ModuleType
    errors: ModuleType

    def encoders(self) -> dict[str, Any]:
        """Every kind there is, by name."""
        return {name: self.encoder(name) for name in self.encoder_names()}

    def encoder_names(self) -> list[str]:
        """A dialect, for a client; with `broker`, for a broker; mfp that splits; little TMQ."""
        dialects = self.codec.DIALECTS
        kinds = [*dialects, *(f"{name} broker" for name in dialects)]
        return [*kinds, "mfp-1 split", "tmq-1.01 little"]

    def encoder(self, name: str) -> Any:
        """A new encoder of this kind."""
        dialect, _, kind = name.partition(" ")
        if kind == "split":
            made = self.codec.encoder(dialect)
            made.prepare(bytes(8), split=True)
            return made
        made = self.codec.encoder(dialect, client=not kind)
        if kind == "little":
            made.set_variant("little")
        elif kind:
            made.origin = b"client-1"
        return made

    def scanner(self, encoder: str) -> Any:
        """A scanner for what one of these encoders writes, wherever in a stream it begins."""
        made = self.codec.scanner(encoder.partition(" ")[0])
        if encoder.startswith("tmq"):  # else a server message might tell the byte order by chance
            made.set_variant("little" if encoder.endswith(" little") else "")
        elif encoder.startswith("mqtt") and encoder.endswith(" broker"):
            made.allows_zero = True  # identifiers are given out for each receiver
        return made

    def strict(self, data: bytes) -> bytes:
        """The same bytes, guarded where this build can be watched."""
        return data if self.compiled else StrictBytes(data)


class StrictBytes(bytes):
    """Bytes that are read inside their bounds or not at all."""

    def __getitem__(self, key: Any) -> Any:
        _check(key, len(self))
        return bytes.__getitem__(self, key)


class StrictArray(bytearray):
    """A buffer that is used inside its bounds or not at all, and keeps its size."""

    def __getitem__(self, key: Any) -> Any:
        _check(key, len(self))
        return bytearray.__getitem__(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        _check(key, len(self))
        if type(key) is slice and key.stop - key.start != len(value):
            raise IndexError(f"{len(value)} bytes into {key}")
        bytearray.__setitem__(self, key, value)


def _check(key: Any, size: int) -> None:
    if type(key) is int:
        if not 0 <= key < size:
            raise IndexError(f"[{key}] of {size} bytes")
    else:
        start, stop = key.start or 0, size if key.stop is None else key.stop
        if start != stop and not 0 <= start < stop <= size:
            raise IndexError(f"[{start}:{stop}] of {size} bytes")


def load_plain(*described: Path) -> Build:
    """The kernels as plain Python, whatever was compiled beside them; with dialects of files."""
    with _source_only():
        build = _load(*described)
    importlib.import_module("wirelake.wire.octets").bytearray = StrictArray  # type: ignore[attr-defined]
    return build


def load_compiled(*described: Path) -> Build | None:
    """The compiled kernels, or None where there are none; with dialects of files."""
    build = _load(*described)
    files = [Path(module.__file__ or "") for name, module in sys.modules.items() if _ours(name)]
    for file in files:
        source = file.with_name(f"{file.name.partition('.')[0]}.py")
        if source.stat().st_mtime > file.stat().st_mtime:
            sys.exit(f"{source} was changed after it was compiled: make setup")
    return build if build.compiled else None


def _load(*described: Path) -> Build:
    for name in list(filter(_ours, sys.modules)):
        del sys.modules[name]
    names = (
        "dialects.codec", "wire", "wire.arrow", "dialects.mfp.codec", "message", "wire.parameters",
        "errors",
    )  # fmt: skip
    modules = [importlib.import_module(f"wirelake.{name}") for name in names]
    for file in described:
        modules[0].DIALECTS.describe(file)
    for dialect in modules[0].DIALECTS.values():  # now, while this copy is the one that is found
        for part in ("scanner", "encoder", "detect", "detect_in_family"):
            dialect.load(part)
    kernel = importlib.import_module("wirelake.wire.octets").__file__ or ""
    return Build(not kernel.endswith(".py"), *modules)


def _ours(name: str) -> bool:
    return name.partition(".")[0] == "wirelake"


@contextlib.contextmanager
def _source_only() -> Iterator[None]:
    """Inside, no extension module is found among our sources."""

    def finder(path: str) -> FileFinder:
        if not Path(path).is_relative_to(SOURCE):
            raise ImportError(path)
        return FileFinder(path, (SourceFileLoader, SOURCE_SUFFIXES))

    sys.path.insert(0, str(SOURCE))
    sys.path_hooks.insert(0, finder)
    _forget_finders()
    yield
    sys.path_hooks.remove(finder)
    _forget_finders()


def _forget_finders() -> None:
    for path in [path for path in sys.path_importer_cache if Path(path).is_relative_to(SOURCE)]:
        del sys.path_importer_cache[path]
