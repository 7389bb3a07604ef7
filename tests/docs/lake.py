"""`wirelake lake` for pages of the documentation, in one process with one Spark.

Starting Java and Spark takes most of the time of such a command, and pages have a dozen of them.
So a page's `wirelake lake …` runs in a process that stays: the same command line, with the
arguments, the folder, the variables and the standard streams of the shell that called it, on a
Spark that is not stopped afterwards. The tutorial, captures, and whatever runs in the background
start Spark by themselves.

As a program it is either end: `lake.py serve SOCKET`, and `lake.py call SOCKET lake …` for shells.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

#: Seconds until the process listens; Spark starts with the first command.
PATIENCE = 60.0


class Lake:
    """The process, started when it is first needed."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "lake"
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def command(self, environment: dict[str, str]) -> str:
        """Return what a shell calls in place of `wirelake`."""
        if self._process is None:
            serve = [sys.executable, __file__, "serve", str(self._socket)]
            self._process = subprocess.Popen(
                serve, cwd=self._folder, env=environment, start_new_session=True
            )
            deadline = time.monotonic() + PATIENCE
            while not self._socket.exists():
                assert self._process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
        return f"{sys.executable} -I -S {__file__} call {self._socket}"

    def end(self) -> None:
        """End the process and its Java."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def call(place: str, arguments: list[str]) -> int:
    """Have the process run a command; returns its exit code."""
    settings = {name: value for name, value in os.environ.items() if name.startswith("WIRELAKE_")}
    asked = json.dumps([arguments, str(Path.cwd()), settings]).encode()
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(place)
        socket.send_fds(ours, [len(asked).to_bytes(4) + asked], [0, 1, 2])
        return int(ours.recv(16) or b"70")


def serve(place: str) -> None:
    """Run commands, one after the other, until killed."""
    from pyspark.sql import SparkSession

    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    SparkSession.stop = lambda self: None  # type: ignore[method-assign]  # the next one uses it
    own = [os.dup(number) for number in range(3)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}.new")
        listener.listen()
        Path(f"{place}.new").rename(place)
        while True:
            theirs, _ = listener.accept()
            with theirs:
                size, streams, _, _ = socket.recv_fds(theirs, 4, 3)
                with theirs.makefile("rb") as rest:
                    arguments, folder, settings = json.loads(rest.read(int.from_bytes(size)))
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                    os.close(stream)
                code = run(arguments, folder, settings)
                for number, stream in enumerate(own):
                    os.dup2(stream, number)
                theirs.sendall(b"%d" % code)


def end_with(parent: int) -> None:
    """End this process and its Java when the tests that started it are gone, however they ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os.killpg(0, signal.SIGKILL)


def run(arguments: list[str], folder: str, settings: dict[str, str]) -> int:
    """Run one command line here; returns its exit code."""
    from wirelake.cli import app

    os.chdir(folder)
    for name in [name for name in os.environ if name.startswith("WIRELAKE_")]:
        del os.environ[name]
    os.environ.update(settings)
    try:
        app(arguments, prog_name="wirelake")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - the caller must hear of it
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2])
    sys.exit(call(sys.argv[2], sys.argv[3:]))
