"""The console's own files: pages that a browser loads, served by the broker's HTTP.

Nothing here knows the broker: the pages use the HTTP interface like any other client. The libraries
in `static/vendor` are brought by `vendor.py` when the package is built, and may be missing.
"""

from __future__ import annotations

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

#: What `/` says where the libraries are missing.
MISSING = (
    "The console is not installed: run `make setup`, which needs npm or pip to reach packages."
)


@dataclass(frozen=True, slots=True)
class File:
    """A file as it is sent."""

    content: bytes
    media_type: str
    etag: str


def load(folder: Path = STATIC) -> dict[str, File]:
    """Every file of the console by its path; none at all where the libraries are missing."""
    if not (folder / "vendor" / "preact.js").exists():
        return {}
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix in _TYPES:
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
            name = path.relative_to(folder).as_posix()
            found[name] = File(content, _TYPES[path.suffix], etag)
    return found
