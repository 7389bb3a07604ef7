"""Processes that live and end together: each is started again when it dies, and all end with us.

- A child has a session of its own: Ctrl-C in the terminal is for us, and we tell the children.
- What ends us ends them: the system sends a child SIGTERM when its parent has died, however it did.
- A child that ends by itself is started again, after a pause that doubles with every failure and
  begins anew once it has been up for a while. One that `must_start` says itself when it has, and if
  it never does, that is an error.
- To end it is told by SIGTERM, then waited for, then killed with all that it has started.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Literal, Protocol

from wirelake.errors import EngineError

#: Seconds before a child is started again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
#: A child that was up for so many seconds has not failed at once.
SETTLED = 60.0
#: Seconds in which a child may end by itself, once it was told to.
GRACE = 12.0
#: Seconds in which those that a dead child has started may end, too; till then they have its pipes.
AFTERLIFE = 5.0
#: Bytes of a line, and at a time; what is longer is cut.
LONGEST_LINE = 4096
READ = 65536

_PR_SET_PDEATHSIG = 1
_CHILD = (
    "from wirelake.cli import main\n"
    "from wirelake.cli.group import end_with_parent\n"
    "end_with_parent()\n"
    "main()\n"
)

State = Literal["starting", "up", "pausing", "ended"]


class Witness(Protocol):
    """Who is told what happens to a child."""

    def said(self, child: Child, line: str) -> None:
        """It wrote a line to its standard output."""

    def complained(self, child: Child, line: str) -> None:
        """It wrote a line to its standard error."""

    def changed(self, child: Child, text: str) -> None:
        """Its state is another one."""


class Child:
    """A command of ours, run as a process again and again until it is told to end."""

    def __init__(
        self,
        name: str,
        arguments: Callable[[], list[str]],
        witness: Witness,
        *,
        must_start: bool = False,
        environment: Mapping[str, str] | None = None,
        keeps: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.state: State = "starting"
        self.restarts = 0
        self._arguments = arguments  # asked before every start
        self._witness = witness
        self._must_start = must_start
        self._environment = {**os.environ, **(environment or {})}
        self._keeps = keeps  # open files that it inherits
        self._process: asyncio.subprocess.Process | None = None
        self._was_up = False
        self._last_line = ""
        self._told = asyncio.Event()

    @property
    def pid(self) -> int:
        """Of its process; 0 while there is none."""
        return 0 if self._process is None else self._process.pid

    def is_up(self) -> None:
        """It has shown that it works."""
        self.state = "up"
        self._was_up = True

    async def live(self) -> None:
        """Run it until it is told to end; EngineError if it must start and cannot."""
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
        """One process, from its start to its end; how it ended."""
        self._last_line = ""
        command = [sys.executable, "-c", _CHILD, str(os.getpid()), *self._arguments()]
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
        except OSError as error:  # no more processes, no more memory
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
            if not self._must_start:
                self.is_up()  # as far as can be told
            self._witness.changed(self, f"started, process {process.pid}")
            code = await process.wait()
            await asyncio.wait(readers, timeout=AFTERLIFE)
        finally:
            self._kill_group(process.pid)  # else what is left would work beside the next one
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
            if line.startswith("wirelake: "):  # why it cannot go on
                self._last_line = line.removeprefix("wirelake: ")
            else:
                self._witness.complained(self, line)

    async def stop(self) -> None:
        """Tell it to end, wait for that, and then make it."""
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
        """End it now, with all that it has started."""
        self._told.set()
        if self._process is not None:
            self._kill_group(self._process.pid)

    def _kill_group(self, leader: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)

    def pass_on(self, number: signal.Signals) -> None:
        """Send it a signal, if it is there to hear it."""
        if self.state == "up":
            self._signal(number)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Lines as they come, however long; the last one may have no end."""
    rest = b""
    while data := await stream.read(READ):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[:LONGEST_LINE]
        for line in whole:
            yield line[:LONGEST_LINE].decode(errors="replace").rstrip()
    if rest:
        yield rest.decode(errors="replace").rstrip()


def end_with_parent() -> None:
    """In a child: let SIGTERM come when the parent dies, whose id is the first argument."""
    parent = int(sys.argv.pop(1))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit("wirelake: the system does not tell when a parent dies")
    if os.getppid() != parent:  # it died before it could be noticed
        sys.exit(1)
