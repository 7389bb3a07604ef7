"""A pseudo-terminal with a program on it, read by a terminal emulator."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import threading
from typing import Any

import pyte

PATIENCE = 60  # seconds; only a broken program needs them

ENTER, CTRL_N, CTRL_P, CTRL_C, TAB = "\r", "\x0e", "\x10", "\x03", "\t"
UP, PAGE_UP, PAGE_DOWN, F1 = "\x1b[A", "\x1b[5~", "\x1b[6~", "\x1bOP"


class Terminal:
    """A terminal with one program on it."""

    def __init__(
        self,
        *arguments: str,
        columns: int = 80,
        lines: int = 24,
        program: tuple[str, str] = ("-m", "wirelake"),
    ) -> None:
        self.screen = pyte.Screen(columns, lines)  # what the emulator has drawn
        self._stream = pyte.ByteStream(self.screen)
        self.seen = b""  # all that the program wrote
        self._master, slave = pty.openpty()
        self._slave = slave  # kept open, so that its state can be read at the end
        self.resize(columns, lines)
        self.modes = self._modes()
        # A shell that leads its session opens the terminal: that makes it the controlling one.
        shell = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(slave)]
        environment = {**os.environ, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        for name in ("COLORTERM", "COLUMNS", "LINES", "NO_COLOR", "TERM_PROGRAM"):
            environment.pop(name, None)
        self.process = subprocess.Popen(
            [*shell, sys.executable, *program, *arguments],
            start_new_session=True,
            env=environment,
        )
        self._news = threading.Condition()
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def resize(self, columns: int, lines: int) -> None:
        """Give the window another size."""
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        self.screen.resize(lines, columns)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def say(self, line: str) -> None:
        """Type a line, and see the end of it in the prompt before Enter is pressed."""
        self.type(line)
        self.wait(rf"^ .*{re.escape(line[-30:])}$")
        self.type(ENTER)

    @property
    def text(self) -> str:
        """What is on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait(self, pattern: str, *, gone: bool = False) -> None:
        """Wait until a pattern is on the screen, or is not any more."""

        def is_so() -> bool:
            return (re.search(pattern, self.text, re.MULTILINE) is None) is gone

        with self._news:
            came = self._news.wait_for(is_so, PATIENCE)
            assert came, f"{pattern!r} never came:\n{self.text}"

    def _read(self) -> None:
        """Keep reading: a program whose terminal is not read stands still."""
        while not self._closing.is_set():
            if select.select([self._master], [], [], 0.05)[0]:
                data = os.read(self._master, 1 << 16)
                with self._news:
                    self.seen += data
                    self._stream.feed(data)
                    self._news.notify_all()

    def end(self) -> int:
        """Wait until the program has ended; its exit code."""
        code = self.process.wait(PATIENCE)
        with self._news:
            self._news.wait_for(lambda: b"\x1b[?1049l" in self.seen, PATIENCE)
        return code

    def is_restored(self) -> bool:
        """Is the terminal as it was before the program?"""
        left = self.seen.rfind(b"\x1b[?1049l") > self.seen.rfind(b"\x1b[?1049h")
        shown = self.seen.rfind(b"\x1b[?25h") > self.seen.rfind(b"\x1b[?25l")
        return left and shown and self._modes() == self.modes

    def close(self) -> None:
        """Take the terminal away."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._closing.set()
        self._reader.join()
        os.close(self._master)
        os.close(self._slave)
