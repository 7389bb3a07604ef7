"""The Python blocks of a page, run one after the other in one namespace: the reader's Python.

Each line of standard input names three files: the block, where what it prints goes, and where its
exit code does.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import sys
import traceback
import types
from pathlib import Path


def run(source: Path, names: dict[str, object], loop: asyncio.AbstractEventLoop) -> int:
    """Run a block; 0 if it does what it should."""
    try:
        text = source.read_text(encoding="utf-8")
        code = compile(text, str(source), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if inspect.iscoroutine(result):
            loop.run_until_complete(result)
    except BaseException:  # noqa: BLE001 - whatever it is, the page must hear of it
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def main() -> None:
    """Until there is no more to run."""
    page = types.ModuleType("__main__")
    sys.modules["__main__"] = page
    loop = asyncio.new_event_loop()
    for line in iter(sys.stdin.readline, ""):
        source, printed, code = (Path(name) for name in line.rstrip("\n").split("\t"))
        handle = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        os.close(handle)
        ended = run(source, page.__dict__, loop)
        code.write_text(f"{ended}\n")


if __name__ == "__main__":
    main()
