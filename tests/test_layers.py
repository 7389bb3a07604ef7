"""Imports go down only, and the wire library knows no sockets, files, clocks or chance."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

# What each module or folder of wirelake may import from the others; "" is wirelake/__init__.py.
# The folder dialects/ has six layers, see `layer_of`: the lowest is the registry, which names the
# parts of dialects and imports none of them.
BASE = {"errors", "message", "registry"}
ALLOWED = {
    "message": set[str](),
    "errors": set[str](),
    "address": {"errors"},
    "registry": {"errors"},
    "config": {"errors", "registry"},
    "wire": BASE | {"address"},
    "codec": BASE | {"wire"},
    "description": {"errors", "registry"},
    "plugin": BASE,
    "grammar": BASE | {"description", "plugin", "wire"},
    "journal": {"address", "config", "errors", "message", "wire"},
    "broker": BASE | {"address", "codec", "config", "journal.engine", "wire"},
    "session": BASE | {"address", "broker", "config", "journal.engine", "grammar", "wire"},
    "net": BASE | {"address", "broker", "codec", "config", "journal", "wire"},
    "cluster": BASE | {"address", "broker", "config", "journal", "wire"},
    "console": set[str](),
    "http": BASE
    | {"address", "__version__", "broker", "codec", "config", "console", "journal", "wire"},
    "client": BASE | {"address", "codec", "config", "wire"},
    "speech": BASE | {"client.speech", "grammar", "wire"},
    "spark": BASE | {"address", "client", "codec", "wire"},
    "chat": BASE | {"address", "client"},
    "demo": BASE | {"chat", "client"},
    "measure": BASE | {"__version__", "client", "codec", "wire"},
    "live": BASE
    | {"__version__", "client", "cluster", "config", "journal", "http", "net", "spark"},
    "conformance": BASE | {"codec", "wire"},
    "testing": BASE
    | {
        "address",
        "conformance",
        "broker",
        "client",
        "codec",
        "config",
        "journal",
        "http",
        "net",
        "wire",
    },
    "": {"client", "errors", "message"},
}
ABOVE_ALL = {"cli", "__main__"}

# The modules of broker/ from the bottom to the top: each may import those before it alone.
BROKER = [
    # values and indexes that know no client
    "names", "deadlines", "budget", "peers", "quotas", "ready", "recent_ids", "rights", "route",
    "subscriptions",
    # what all parts share
    "vitals", "tables", "endpoint", "traffic",
    # clients: how fast they read, who they are
    "guesses", "flow", "capture", "clients",
    # what they do
    "topics", "router", "services", "consumers", "bodies", "proof", "queue",
    "queues", "store", "streams", "trace",
    # the whole
    "node", "inventory",
    # how they speak
    "session", "local",
]  # fmt: skip

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


def layer_of(path: str) -> str:
    """Return the layer that a module belongs to, by its dotted path inside wirelake.

    In dialects/ the files of each dialect say by their names what they are: what speaks for the
    broker, for the client, or reads and writes frames. What is imported from a package is taken to
    be one of its names, so `dialects.DIALECTS` is the registry's.
    """
    parts = path.split(".")
    if parts[0] != "dialects":
        return parts[0]
    inner = {part.split("_")[-1] for part in parts[1:]}
    if inner & {"session", "server", "memory"}:
        return "session"
    if "speech" in inner:
        return "speech"
    if parts[1:2] == ["codec"]:
        return "codec"
    if "description" in inner:
        return "description"
    return (
        "grammar" if inner & {"codec", "codes", "detection", "encoder", "scanner"} else "registry"
    )


def is_above(name: str, module: str) -> bool:
    """Whether a dotted name is in a module of broker/ that is not below this one."""
    other = name.removeprefix("wirelake.broker.").split(".")[0]
    return not (module in BROKER and other in BROKER[: BROKER.index(module)])


def violations(source: Path) -> list[str]:
    """Every breach of the rules below a source folder, as `file:line: what`."""
    found = []
    for path in sorted(source.glob("wirelake/**/*.py")):
        file = path.relative_to(source)
        package = ".".join(file.parent.parts)
        layer = layer_of(
            ".".join(file.with_suffix("").parts[1:]).removesuffix("__init__").strip(".")
        )
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for line, name in imports(tree, package):
            name = name.removeprefix("cython.cimports.")
            ours = is_within(name, {"wirelake"})
            if ours and layer not in ABOVE_ALL:
                inner = name.removeprefix("wirelake").removeprefix(".")
                if inner.startswith("dialects"):
                    inner = layer_of(inner)
                if not is_within(inner, {layer, *ALLOWED[layer]}):
                    found.append(f"{file}:{line}: imports {name}")
            inside = layer == "broker" and is_within(name, {"wirelake.broker"})
            if inside and is_above(name, file.stem):
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


def test_every_module_of_the_broker_has_its_place() -> None:
    modules = {path.stem for path in SOURCE.glob("wirelake/broker/*.py")}
    assert modules - {"__init__"} == set(BROKER)
    assert len(BROKER) == len(set(BROKER))


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("message.py", "import wirelake.errors"),
        ("errors.py", "from wirelake import message"),
        ("config.py", "from . import wire"),
        ("wire/table.py", "from wirelake.broker import topics"),
        ("wire/table.py", "from .. import broker"),
        ("wire/table.py", "from ..broker.topics import Topic"),
        ("wire/table.py", "import wirelake"),
        ("wire/__init__.py", "from ..config import Settings"),
        ("wire/table.py", "def scan():\n    import wirelake.net"),
        ("wire/table.py", "if TYPE_CHECKING:\n    from wirelake.client import Client"),
        ("wire/table.py", "from cython.cimports.wirelake.broker.topics import match"),
        ("wire/table.py", "from os import read"),
        ("wire/table.py", "import os.path"),
        ("wire/table.py", "import socket as harmless"),
        ("wire/table.py", "from datetime import datetime\ndatetime.now()"),
        ("wire/table.py", "open('capture')"),
        ("broker/topics.py", "from wirelake.broker.node import Node"),
        ("broker/topics.py", "from wirelake.broker import router"),
        ("broker/topics.py", "from .queues import Queue"),
        ("broker/topics.py", "import wirelake.broker.topics"),
        ("broker/topics.py", "if TYPE_CHECKING:\n    from wirelake.broker.session import Session"),
        ("broker/topics.py", "def late():\n    from . import node"),
        ("broker/route.py", "from cython.cimports.wirelake.broker.subscriptions import match"),
        ("broker/node.py", "from wirelake.dialects.tmq.session import TmqSession"),
        ("broker/router.py", "from wirelake.dialects.mfp.codec import MfpEncoder"),
        ("wire/table.py", "from wirelake.dialects.codec import scanner"),
        ("config.py", "from wirelake.dialects.codec import detect"),
        ("dialects/__init__.py", "from wirelake.dialects import codec"),
        ("dialects/__init__.py", "from wirelake.wire import Scanner"),
        ("dialects/mfp/__init__.py", "from wirelake.dialects.mfp.codec import MfpScanner"),
        ("dialects/mfp/codec.py", "from wirelake.broker.session import Session"),
        ("dialects/mfp/session.py", "from wirelake.client.speech import Speech"),
        ("dialects/mfp/session.py", "from wirelake.net import server"),
        ("dialects/mfp/speech.py", "from wirelake.broker.session import Session"),
        ("dialects/mfp/speech.py", "from wirelake.client.client import Client"),
        ("dialects/op_speech.py", "from wirelake.dialects.op_session import OpSession"),
        ("client/speech.py", "from wirelake.dialects.tmq.speech import TmqSpeech"),
        ("spark/spans.py", "from wirelake.dialects.tmq.codec import TmqScanner"),
        ("broker/node.py", "from wirelake.broker import nowhere"),
        ("broker/nowhere.py", "from wirelake.broker import rights"),
        ("broker/topics.py", "from wirelake.journal import files"),
        ("broker/topics.py", "from wirelake.journal.files import FilesJournal"),
        ("spark/source.py", "from wirelake.broker import topics"),
        ("client/__init__.py", "from wirelake.net import listener"),
        ("chat/room.py", "from wirelake.cli import show"),
        ("demo/town.py", "from wirelake.live.landing import landing_lock"),
        ("measure/broker.py", "from wirelake.broker.node import Node"),
        ("live/group.py", "from wirelake.cli.up import examples"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, code: str) -> None:
    assert len(violations(tree_with(tmp_path, file, code))) == 1


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("wire/table.py", "from wirelake.errors import ProtocolError"),
        (
            "wire/table.py",
            "from ..message import Message\nfrom .table import Table\nfrom . import x",
        ),
        ("wire/table.py", "from datetime import UTC, datetime\nimport osmium, pyarrow"),
        ("wire/__init__.py", "from .table import scan"),
        ("broker/topics.py", "from wirelake.journal.engine import Engine\nimport time, socket"),
        ("broker/topics.py", "from wirelake.journal import engine"),
        ("broker/topics.py", "from wirelake.broker.flow import Flow\nfrom . import capture"),
        ("broker/router.py", "from .topics import Audience, Topics"),
        ("broker/node.py", "if TYPE_CHECKING:\n    from wirelake.broker.queues import Queue"),
        ("broker/session.py", "from wirelake.broker.node import Node"),
        ("broker/session.py", "from wirelake.dialects.codec import encoder, scanner"),
        ("wire/codec.py", "from wirelake.dialects import HOPS"),
        ("dialects/__init__.py", "from wirelake.dialects import mfp\nfrom . import dialect"),
        ("dialects/mfp/session.py", "from wirelake.dialects.mfp.codec import MfpScanner"),
        ("dialects/tmq/session.py", "from wirelake.dialects.tmq import codes, server"),
        ("dialects/mfp/speech.py", "from wirelake.client.speech import Speech"),
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
