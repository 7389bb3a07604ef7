"""Imports go down only, and the wire library knows no sockets, files, clocks or chance."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

# What each module or folder of wirelake may import from the others; "" is wirelake/__init__.py.
ALLOWED = {
    "message": set[str](),
    "errors": set[str](),
    "address": {"errors"},
    "config": {"errors"},
    "wire": {"errors", "message"},
    "engine": {"address", "config", "errors", "message", "wire"},
    "broker": {"address", "config", "engine.base", "errors", "message", "wire"},
    "net": {"address", "broker", "config", "engine", "errors", "message", "wire"},
    "console": set[str](),
    "http": {
        "address",
        "__version__",
        "broker",
        "config",
        "console",
        "engine",
        "errors",
        "message",
        "wire",
    },
    "client": {"address", "config", "errors", "message", "wire"},
    "spark": {"address", "client", "errors", "message", "wire"},
    "testing": {
        "address",
        "broker",
        "client",
        "config",
        "engine",
        "errors",
        "http",
        "message",
        "net",
        "wire",
    },
    "": {"client", "errors", "message"},
}
ABOVE_ALL = {"cli", "__main__"}

IMPURE_MODULES = {
    "asyncio", "concurrent", "ctypes", "fcntl", "glob", "importlib", "io", "libc.stdio",
    "libc.time", "mmap", "multiprocessing", "os", "pathlib", "posix", "pyarrow.fs", "random",
    "sched", "secrets", "select", "selectors", "shutil", "signal", "socket", "socketserver",
    "sqlite3", "ssl", "subprocess", "tempfile", "threading", "time", "uuid",
}  # fmt: skip
IMPURE_CALLS = {"__import__", "input", "now", "open", "print", "today", "utcnow"}


def is_within(name: str, prefixes: set[str]) -> bool:
    """Whether a dotted name is one of these or inside one."""
    return any(name == prefix or name.startswith(prefix + ".") for prefix in prefixes)


def imports(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of all that a module imports, wherever it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            base += [node.module] if node.module else []
            yield from ((node.lineno, ".".join([*base, alias.name])) for alias in node.names)


def calls(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and last name of every call."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.lineno, node.func.id
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, node.func.attr


def violations(source: Path) -> list[str]:
    """Every breach of the rules below a source folder, as `file:line: what`."""
    found = []
    for path in sorted(source.glob("wirelake/**/*.py")):
        file = path.relative_to(source)
        package = ".".join(file.parent.parts)
        layer = [*file.with_suffix("").parts, ""][1].removeprefix("__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in imports(tree, package):
            name = name.removeprefix("cython.cimports.")
            ours = is_within(name, {"wirelake"})
            if ours and layer not in ABOVE_ALL:
                inner = name.removeprefix("wirelake").removeprefix(".")
                if not is_within(inner, {layer, *ALLOWED[layer]}):
                    found.append(f"{file}:{line}: imports {name}")
            if layer == "wire" and is_within(name, IMPURE_MODULES):
                found.append(f"{file}:{line}: imports {name}")
        if layer == "wire":
            found += [
                f"{file}:{line}: calls {name}" for line, name in calls(tree) if name in IMPURE_CALLS
            ]
    return found


def test_imports_go_down_only() -> None:
    assert violations(SOURCE) == []


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("message.py", "import wirelake.errors"),
        ("errors.py", "from wirelake import message"),
        ("config.py", "from . import wire"),
        ("wire/mfp.py", "from wirelake.broker import topics"),
        ("wire/mfp.py", "from .. import broker"),
        ("wire/mfp.py", "from ..broker.topics import Topic"),
        ("wire/mfp.py", "import wirelake"),
        ("wire/__init__.py", "from ..config import Settings"),
        ("wire/mfp.py", "def scan():\n    import wirelake.net"),
        ("wire/mfp.py", "if TYPE_CHECKING:\n    from wirelake.client import Client"),
        ("wire/mfp.py", "from cython.cimports.wirelake.broker.topics import match"),
        ("wire/mfp.py", "from os import read"),
        ("wire/mfp.py", "import os.path"),
        ("wire/mfp.py", "import socket as harmless"),
        ("wire/mfp.py", "from datetime import datetime\ndatetime.now()"),
        ("wire/mfp.py", "open('capture')"),
        ("broker/topics.py", "from wirelake.engine import sqlite"),
        ("broker/topics.py", "from wirelake.engine.sqlite import Sqlite"),
        ("spark/source.py", "from wirelake.broker import topics"),
        ("client/__init__.py", "from wirelake.net import listener"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, code: str) -> None:
    assert len(violations(tree_with(tmp_path, file, code))) == 1


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("wire/mfp.py", "from wirelake.errors import ProtocolError"),
        ("wire/mfp.py", "from ..message import Message\nfrom .table import Table\nfrom . import x"),
        ("wire/mfp.py", "from datetime import UTC, datetime\nimport osmium, pyarrow"),
        ("wire/__init__.py", "from .mfp import scan"),
        ("broker/topics.py", "from wirelake.engine.base import Engine\nimport time, socket"),
        ("broker/topics.py", "from wirelake.engine import base"),
        ("spark/source.py", "from wirelake.wire.arrow import SCHEMA"),
        ("cli/serve.py", "from wirelake import __version__, broker, http, net"),
        ("__init__.py", "from .client import connect"),
    ],
)
def test_an_allowed_import_is_not(tmp_path: Path, file: str, code: str) -> None:
    assert violations(tree_with(tmp_path, file, code)) == []


def tree_with(folder: Path, file: str, code: str) -> Path:
    """A source folder with this one file in it."""
    path = folder / "wirelake" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(code, encoding="utf-8")
    return folder
