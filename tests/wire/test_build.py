"""The kernels that are tested are the ones that were asked for."""

import ast
import importlib
import os
from pathlib import Path

from wirelake.wire import COMPILED

SETUP = Path(__file__).parent.parent.parent / "setup.py"


def kernels() -> list[str]:
    """The list in setup.py of what is compiled, as far as it is of the wire library."""
    tree = ast.parse(SETUP.read_text(encoding="utf-8"))
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "KERNELS"
    )
    return [name for name in listed if name.startswith(("wirelake.wire.", "wirelake.dialects."))]


def test_the_kernels_are_compiled_unless_plain_ones_are_expected() -> None:
    assert ("compiled" if COMPILED else "plain") == os.environ.get("WIRELAKE_EXPECT", "compiled")


def test_all_kernels_are_compiled_or_none() -> None:
    files = {name: str(importlib.import_module(name).__file__) for name in kernels()}
    assert files
    assert {name for name, file in files.items() if file.endswith(".py") is COMPILED} == set()
