"""The command line as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from wirelake.cli import app

COMMAND = [sys.executable, "-m", "wirelake"]


class Group:
    """A group of commands, as `wirelake queue`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def run(self, *arguments: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """A command, to its end: in a process of its own where it reads standard input."""
        words = [self._name, *map(str, arguments)]
        if data:
            command = [*COMMAND, *words]
            return subprocess.run(command, input=data, capture_output=True, timeout=60)
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        return subprocess.CompletedProcess(
            words, result.exit_code, result.stdout_bytes, result.stderr_bytes
        )

    def shown(self, *arguments: str | Path, data: bytes = b"") -> list[str]:
        """The lines of a command that works."""
        result = self.run(*arguments, data=data)
        assert (result.returncode, result.stderr) == (0, b"")
        return result.stdout.decode().splitlines()

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """What `--json` shows."""
        return [json.loads(line) for line in self.shown(*arguments, "--json")]


@contextmanager
def stdin(data: bytes) -> Iterator[None]:
    """Standard input with this in it, for commands that run in this process."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.seek(0)
        ours = os.dup(0)
        os.dup2(file.fileno(), 0)
        try:
            yield
        finally:
            os.dup2(ours, 0)
            os.close(ours)
