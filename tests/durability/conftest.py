"""Libraries for LD_PRELOAD, compiled once a run."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Preload = Callable[[str], str]


@pytest.fixture(scope="session")
def preload(tmp_path_factory: pytest.TempPathFactory) -> Preload:
    """Compiles a source below `tests`; the path of the library."""
    folder = tmp_path_factory.mktemp("preload")
    compiler = shutil.which("gcc")

    def compile(source: str) -> str:
        if compiler is None:
            pytest.skip("there is no gcc")
        built = folder / Path(source).with_suffix(".so").name
        if not built.exists():
            path = Path(__file__).parent.parent / source
            command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(built), str(path)]
            subprocess.run(command, check=True)
        return str(built)

    return compile
