"""The console's own files: pages that a browser loads, served by the broker's HTTP.

Nothing here knows the broker: the pages use the HTTP interface like any other client. The libraries
in `static/vendor` are brought by `vendor.py` when the package is built, and may be missing.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

STATIC = Path(__file__).parent / "static"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}

#: Characters of the version of all files together.
VERSION = 16

#: What `/` says where the libraries are missing.
MISSING = (
    "The console is not installed: run `make setup`, which needs npm or pip to reach packages."
)


@dataclass(frozen=True, slots=True)
class File:
    """A file, plain and compressed by gzip."""

    content: bytes
    small: bytes
    media_type: str
    etag: str


def load(folder: Path = STATIC) -> dict[str, File]:
    """Every file of the console by its path; none at all where the libraries are missing.

    All but `index.html` are also there under `VERSION/`, where the version is a hash of all files:
    what is there never changes, so a browser need not ask for it again. `index.html` names them so.
    """
    if not (folder / "vendor" / "preact.js").exists():
        return {}
    contents = {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in _TYPES
    }
    every = hashlib.sha256()
    for name, content in contents.items():
        every.update(f"{name} {len(content)} ".encode() + content)
    version = every.hexdigest()[:VERSION]
    found = {}
    for name, content in contents.items():
        if name == "index.html":
            content = content.replace(b"/console/", f"/console/{version}/".encode())
            found[name] = _file(name, content)
        else:
            found[name] = found[f"{version}/{name}"] = _file(name, content)
    return found


def is_fixed(name: str) -> bool:
    """Is this a name with a version, under which a file never changes?"""
    return len(name.partition("/")[0]) == VERSION


def _file(name: str, content: bytes) -> File:
    etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
    return File(content, gzip.compress(content, mtime=0), _TYPES[Path(name).suffix], etag)
