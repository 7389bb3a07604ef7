"""Brokers that a person has saved under names, and which of them commands use.

They are in one file that only its owner may read, since it has tokens:
`$XDG_CONFIG_HOME/wirelake/contexts.json`, or the file that `WIRELAKE_CONTEXTS` names. It is
replaced as a whole, under a lock: two commands at a time lose nothing, and a crash leaves the old
file.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from wirelake.errors import ConfigError

#: The broker that commands use where nobody says which: one on this machine.
LOCAL_URL = "kobold://127.0.0.1"
#: A name is also a word on the command line.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a broker is, and the token to show there."""

    url: str = LOCAL_URL
    http: str = ""  # the URL of its HTTP, where the broker cannot say it
    token: str = ""

    def __repr__(self) -> str:
        return f"Context({self.url!r})"  # without the token


class Contexts(msgspec.Struct):
    """What the file has: contexts by name, and the name of the one in use."""

    current: str = ""
    contexts: dict[str, Context] = {}

    def named(self, name: str) -> Context:
        """Return a context; raises ConfigError where there is none of this name."""
        if name not in self.contexts:
            known = ", ".join(sorted(self.contexts)) or "none is saved yet"
            raise ConfigError("context", f"there is no context {name}: {known}")
        return self.contexts[name]

    def add(self, name: str, context: Context) -> None:
        """Save a context under a name, in place of what had it; the first one is in use."""
        if not _NAME.fullmatch(name):
            raise ConfigError("context", "a name has up to 64 letters, digits, dots, - and _")
        self.contexts[name] = context
        self.current = self.current or name

    def remove(self, name: str) -> None:
        """Forget a context; if it was in use, none is."""
        self.named(name)
        del self.contexts[name]
        if self.current == name:
            self.current = ""


def file_path() -> Path:
    """Return where the contexts are saved."""
    if given := os.environ.get("WIRELAKE_CONTEXTS"):
        return Path(given)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(base) / "wirelake" / "contexts.json"


def load() -> Contexts:
    """Read the file; empty where there is none.

    Raises ConfigError where others may read it, or it is not one of ours.
    """
    path = file_path()
    try:
        with path.open("rb") as file:
            if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                raise ConfigError(
                    "context", f"{path} has tokens and others may read it: chmod 600 {path}"
                )
            return msgspec.json.decode(file.read(), type=Contexts)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError("context", f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError("context", f"{path} is not a file of contexts: {error}") from None


@contextmanager
def changing() -> Iterator[Contexts]:
    """Read the contexts, and write them at the end of `with`; one process at a time."""
    path = file_path()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError("context", f"{path}: {error.strerror}") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = load()
        yield found
        _write(path, msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    finally:
        os.close(lock)


def _write(path: Path, data: bytes) -> None:
    """Replace a file by one that only its owner may read."""
    new = Path(f"{path}.new")
    try:
        new.unlink(missing_ok=True)  # what a crash has left may have other rights
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise ConfigError("context", f"{path}: {error.strerror}") from None


def chosen(url: str = "", name: str = "") -> Context:
    """Return the broker that a command is for.

    That is the URL it was given, else the context of this name, else `WIRELAKE_URL`, else the one
    of `WIRELAKE_CONTEXT`, else the one in use, else a broker on this machine. The token of a
    context belongs to its URL, so with another URL it is not returned.
    """
    if url:
        return Context(url)
    if not name and (given := os.environ.get("WIRELAKE_URL")):
        return Context(given, os.environ.get("WIRELAKE_HTTP", ""))
    saved = load()
    name = name or os.environ.get("WIRELAKE_CONTEXT") or saved.current
    return saved.named(name) if name else Context()
