"""Child processes, our own commands mostly: restarted when they exit, ended with their parent.

- Each child has its own session, so Ctrl-C in the terminal reaches only the parent.
- The system sends SIGTERM to a child when its parent dies, for whatever reason.
- A child that exits is restarted with exponential backoff; the backoff is reset once the child has
  run for SETTLED seconds. If a child with `must_start` exits before it is up, that is an error.
- To stop, a child gets SIGTERM, then GRACE seconds, then SIGKILL for its whole process group.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Literal, Protocol

from wirelake.errors import EngineError

#: Shortest and longest backoff, in seconds.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: Seconds of running after which the backoff is reset.
SETTLED = 60.0
#: Seconds between SIGTERM and SIGKILL.
GRACE = 12.0
#: Seconds that processes of an exited child may keep its pipes open.
AFTERLIFE = 5.0
#: Bytes: the longest line, the rest of which is cut off; the size of a read.
LONGEST_LINE = 4096
READ = 65536

_PR_SET_PDEATHSIG = 1
_CHILD = (
    "from wirelake.cli import main\n"
    "from wirelake.live.children import end_with_parent\n"
    "end_with_parent()\n"
    "main()\n"
)
#: Another program takes the place of the interpreter; what the system was asked for stays.
_FOREIGN = (
    "import os, sys\n"
    "from wirelake.live.children import end_with_parent\n"
    "end_with_parent()\n"
    "os.execv(sys.argv[1], sys.argv[1:])\n"
)
#: How a child of ours says why it exits.
_LAST_WORDS = re.compile("wirelake: (.*)")

State = Literal["starting", "up", "pausing", "ended"]


class Witness(Protocol):
    """What a child reports events to."""

    def said(self, child: Child, line: str) -> None:
        """It wrote a line to its standard output."""

    def complained(self, child: Child, line: str) -> None:
        """It wrote a line to its standard error."""

    def changed(self, child: Child, text: str) -> None:
        """Its state changed."""


class Child:
    """A process that runs a command, and is restarted until it is told to stop.

    The command is one of ours; with `program`, the path of another one. `last_words` finds the
    reason of an exit in a line of standard error.
    """

    def __init__(
        self,
        name: str,
        arguments: Callable[[], list[str]],
        witness: Witness,
        *,
        must_start: bool = False,
        tells_when_up: bool = False,
        environment: Mapping[str, str] | None = None,
        keeps: tuple[int, ...] = (),
        program: str = "",
        last_words: re.Pattern[str] = _LAST_WORDS,
    ) -> None:
        self.name = name
        self.state: State = "starting"
        self.restarts = 0
        self._arguments = arguments  # called before each start
        self._witness = witness
        self._must_start = must_start
        self._tells_when_up = must_start or tells_when_up  # somebody calls `is_up`
        self._environment = {**os.environ, **(environment or {})}
        self._keeps = keeps  # file descriptors that it inherits
        self._head = ["-c", _FOREIGN if program else _CHILD, str(os.getpid())]
        self._head += [program] if program else []
        self._last_words = last_words
        self._process: asyncio.subprocess.Process | None = None
        self._was_up = False
        self._last_line = ""
        self._told = asyncio.Event()

    @property
    def pid(self) -> int:
        """The process id; 0 while there is no process."""
        return 0 if self._process is None else self._process.pid

    def is_up(self) -> None:
        """Mark it as up."""
        self.state = "up"
        self._was_up = True

    async def live(self) -> None:
        """Run it until `stop`; EngineError if it must start and does not."""
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while not self._told.is_set():
            began = loop.time()
            self.state = "starting"
            how = await self._run()
            if self._told.is_set():
                break
            if self._must_start and not self._was_up:
                self.state = "ended"
                raise EngineError(self._last_line or f"{self.name} {how} before it was ready")
            if loop.time() - began > SETTLED:
                pause = FIRST_PAUSE
            self.state = "pausing"
            reason = f" ({self._last_line})" if self._last_line else ""
            self._witness.changed(self, f"{how}{reason}; starting it again in {pause:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._told.wait()
            pause = min(2 * pause, LONGEST_PAUSE)
            self.restarts += 1
        self.state = "ended"

    async def _run(self) -> str:
        """Run one process to its end; returns how it ended."""
        self._last_line = ""
        command = [sys.executable, *self._head, *self._arguments()]
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env=self._environment,
                pass_fds=self._keeps,
            )
        except OSError as error:  # out of processes or memory
            return f"could not be started: {error.strerror}"
        self._process = process
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [
            asyncio.create_task(self._hear(process.stdout)),
            asyncio.create_task(self._hear_complaints(process.stderr)),
        ]
        try:
            if self._told.is_set():
                self._signal(signal.SIGTERM)
            if not self._tells_when_up:
                self.is_up()  # there is no better sign
            self._witness.changed(self, f"started, process {process.pid}")
            code = await process.wait()
            await asyncio.wait(readers, timeout=AFTERLIFE)
        finally:
            self._kill_group(process.pid)  # else leftovers would run beside the next process
            self._process = None
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    async def _hear(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            self._witness.said(self, line)

    async def _hear_complaints(self, stream: asyncio.StreamReader) -> None:
        async for line in _lines(stream):
            if found := self._last_words.fullmatch(line):
                self._last_line = found[1]
            else:
                self._witness.complained(self, line)

    async def stop(self) -> None:
        """Send SIGTERM and wait; after GRACE seconds, kill it."""
        self._told.set()
        process = self._process
        if process is None:
            return
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(GRACE):
                await process.wait()
        except TimeoutError:
            self._witness.changed(self, f"did not end in {GRACE:g} s, and is killed")
            self.kill()
            await process.wait()

    def kill(self) -> None:
        """Kill it and its process group now."""
        self._told.set()
        if self._process is not None:
            self._kill_group(self._process.pid)

    def _kill_group(self, leader: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)

    def pass_on(self, number: signal.Signals) -> None:
        """Forward a signal, if it is up."""
        if self.state == "up":
            self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines as they arrive, cut to LONGEST_LINE; the last may be unfinished."""
    rest = b""
    while data := await stream.read(READ):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[:LONGEST_LINE]
        for line in whole:
            yield line[:LONGEST_LINE].decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


def end_with_parent() -> None:
    """In a child: ask for SIGTERM when the parent dies; the first argument is the parent's id."""
    parent = int(sys.argv.pop(1))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit("wirelake: the system does not tell when a parent dies")
    if os.getppid() != parent:  # the parent died before prctl
        sys.exit(1)
