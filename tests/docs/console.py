"""Runs a page of the documentation as a reader does: top to bottom, in a folder of its own.

What stands in a page, and what is done with it:

- ` ```console`: a line that begins with `$ ` is a command, and goes on in the next line where it
  ends with a backslash; the lines below it are what it prints. `…` stands for anything within a
  line, a line of only `…` for any lines. A command must end with 0, unless the next one is
  `echo $?`.
- A command that ends with ` &` runs on until the page ends. Its lines are awaited; what it prints
  beside them, or later, is not looked at.
- ` ```console title="second terminal"`: the terminal of this name. The last command of such a
  block is not waited for, only its lines are; a block that begins with lines goes on with what the
  command before it prints. `^C` interrupts it.
- ` ```python`: is run, all blocks of a page in one namespace; `await` may stand outside of
  functions. A block ` ```text` right below is what it prints.
- ` ```toml`: is read as a broker's settings.
- A title with a dot in it is a file's name: the block is saved under it, and a Python program is
  not run by itself.
- Other languages are for reading only.

`wirelake lake` may run in a process that keeps its Spark for all pages: see lake.py.

Commands run in bash, with the environment's programs in the PATH, in an empty folder that has
`.venv` and `examples` as the repository does. Ports are those that the page names: see loopback.c.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.lake import Lake
from wirelake.config import read_settings
from wirelake.dialects import DIALECTS
from wirelake.dialects.framed.description import read_description

ROOT = Path(__file__).parents[2]

#: How long a command may take, and what it prints may take to come (seconds); the slowest is Spark.
PATIENCE = 150.0

#: What runs on at the end of a page may take so long to end, before it is killed (seconds).
GRACE = 12.0

#: A reader takes a while before typing on: as long as it takes until nothing happens for so long.
PAUSE = 0.12
LONGEST_PAUSE = 15.0

#: What runs in the process of lake.py. Tasks read captures, and have its folder, not the page's.
_LAKE = re.compile(r"wirelake (?=lake (?!decode))")
_FENCE = re.compile(r"^( *)(```+)(\w*)(.*)$")
_TITLE = re.compile(r'title="([^"]*)"')


class PageError(AssertionError):
    """What a page says is not so."""


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    title: str
    lines: list[str]
    line: int
    follows: bool  # directly below another block

    @property
    def text(self) -> str:
        """What stands in it."""
        return "".join(line + "\n" for line in self.lines)


@dataclass(frozen=True)
class Step:
    """A command and what is shown below it; without a command, more of what the last one shows."""

    command: str
    shown: list[str]
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page."""
    lines = text.splitlines()
    at = 0
    below = False
    while at < len(lines):
        opened = _FENCE.match(lines[at])
        if opened is None:
            below = below and not lines[at].strip()
            at += 1
            continue
        indent, fence, language, rest = opened.groups()
        begin = at + 1
        at = begin
        while at < len(lines) and lines[at].strip() != fence:
            at += 1
        if at == len(lines):
            raise PageError(f"line {begin}: a block that does not end")
        title = _TITLE.search(rest)
        inside = [line.removeprefix(indent) for line in lines[begin:at]]
        yield Block(language, title[1] if title else "", inside, begin, below)
        below = True
        at += 1


def steps(block: Block) -> Iterator[Step]:
    """The commands of a console block."""
    command, shown, begin = "", list[str](), block.line + 1
    going_on = False
    for number, line in enumerate(block.lines, block.line + 1):
        if going_on:
            command += "\n" + line
        elif line.startswith("$ ") or line == "^C":
            if command or shown:
                yield Step(command, shown, begin)
            command, shown, begin = line.removeprefix("$ "), [], number
        else:
            shown.append(line.rstrip())
            continue
        going_on = line.endswith("\\")
    if command or shown:
        yield Step(command, shown, begin)


def pattern(shown: list[str]) -> str:
    """What is shown, as an expression."""
    wholes = []
    for line in shown:
        if line == "…":
            wholes.append(r"(?:[^\n]*\n)*?")
        else:
            wholes.append(r"[^\n]*?".join(map(re.escape, line.split("…"))) + r"\n")
    return "".join(wholes)


@dataclass
class Run:
    """Something that was started, and what it has printed."""

    printed_file: Path
    code_file: Path
    background: bool = False
    seen: int = 0  # how much of what it printed has been looked at

    def printed(self) -> str:
        """All of it, without spaces at the ends of lines."""
        text = self.printed_file.read_text("utf-8", "replace") if self.printed_file.exists() else ""
        text = re.sub(r"[ \t\r]+$", "", text, flags=re.MULTILINE)
        return text if text.endswith("\n") or not text else text + "\n"

    def code(self) -> int | None:
        """How it ended, or what is in the background was started; None before that."""
        text = self.code_file.read_text() if self.code_file.exists() else ""
        return int(text) if text.endswith("\n") else None


class Shell:
    """A program that runs what it is given, one after the other: bash, or Python."""

    def __init__(self, command: list[str], page: Page) -> None:
        self.last: Run | None = None
        self._page = page
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=page.folder,
            env=page.environment,
            start_new_session=True,
            text=True,
        )

    @property
    def pid(self) -> int:
        """Of the program, and of its session."""
        return self._process.pid

    def tell(self, line: str) -> None:
        """Give it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def alive(self) -> bool:
        """Is it still there?"""
        return self._process.poll() is None

    def end(self) -> None:
        """End it, with all that it has started: first as asked to, then as told to."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            deadline = time.monotonic() + GRACE
            for process in session_of(self.pid):
                kill(process, number)
            while session_of(self.pid) and time.monotonic() < deadline:
                self._process.poll()
                time.sleep(0.02)
        self._process.wait(10)
        assert self._process.stdin is not None
        self._process.stdin.close()


@dataclass
class Page:
    """One reading of a page."""

    folder: Path
    kept: Path  # what commands print; beside the reader's folder, not in it
    environment: dict[str, str]
    lake: Lake | None = None
    shells: dict[str, Shell] = field(default_factory=dict)
    count: int = 0

    def run(self, text: str, *, languages: frozenset[str]) -> None:
        """All that stands in it."""
        try:
            found = list(blocks(text))
            for number, block in enumerate(found):
                if "." in block.title:
                    (self.folder / block.title).write_text(block.text, encoding="utf-8")
                if block.language not in languages:
                    continue
                if block.language == "console":
                    self._console(block)
                elif block.language == "toml":
                    self._settings(block)
                elif block.language == "python" and "." not in block.title:
                    below = found[number + 1] if number + 1 < len(found) else None
                    self._python(block, below)
        finally:
            for shell in self.shells.values():
                shell.end()

    def _settings(self, block: Block) -> None:
        file = self.folder / block.title if block.title else self.kept / "settings.toml"
        file.write_text(block.text, encoding="utf-8")
        if block.text.startswith("interface = "):  # a dialect that is described
            read_description(file)
        else:
            with DIALECTS.also():
                read_settings(file)

    def _python(self, block: Block, below: Block | None) -> None:
        driver = [sys.executable, str(Path(__file__).with_name("blocks.py"))]
        shell = self._shell("python", driver)
        run = self._next()
        source = self.kept / f"{self.count}.py"
        source.write_text(block.text, encoding="utf-8")
        shell.tell(f"{source}\t{run.printed_file}\t{run.code_file}")
        shown = below.lines if below and below.follows and below.language == "text" else ["…"]
        step = Step(f"the Python of line {block.line}", shown, block.line)
        self._finish(shell, run, step)
        self._whole(run, step, must_be=0)

    def _console(self, block: Block) -> None:
        name = block.title or "bash"
        new = name not in self.shells
        shell = self._shell(name, ["bash", "--noprofile", "--norc"])
        if new:
            # As on a terminal, every command is a group of its own, and ^C is for it alone.
            shell.tell("set -m; trap : INT")
        found = list(steps(block))
        for number, step in enumerate(found):
            after = found[number + 1].command if number + 1 < len(found) else ""
            if not step.command or step.command == "^C":
                self._go_on(shell, step)
                continue
            if shell.last is not None:
                self._finish(shell, shell.last, step)
            stays = bool(block.title) and number + 1 == len(found)
            run = self._start(shell, step)
            if run.background or stays:
                self._await(shell, run, step)
                self._pause()
                continue
            self._finish(shell, run, step)
            self._whole(run, step, must_be=None if after == "echo $?" else 0)
            if len(self._processes()) > len(self.shells):
                self._pause()

    def _start(self, shell: Shell, step: Step) -> Run:
        run = self._next()
        run.background = step.command.endswith(" &")
        source = self.kept / f"{self.count}.sh"
        source.write_text(self._shared(step.command) + "\n", encoding="utf-8")
        before = shell.last.code() if shell.last else 0
        shell.tell(f"(exit {before}); . {source} < /dev/null > {run.printed_file} 2>&1")
        shell.tell(f"echo $? > {run.code_file}")  # a line of its own: ^C ends the one above
        shell.last = run
        return run

    def _shared(self, command: str) -> str:
        """A command of the lake, as a call of the process that has a Spark; others as they are."""
        if self.lake is None or command.endswith(" &") or not (found := _LAKE.match(command)):
            return command
        return f"{self.lake.command(self.environment)} {command[found.end() :]}"

    def _go_on(self, shell: Shell, step: Step) -> None:
        if shell.last is None:
            raise PageError(f"line {step.line}: nothing was started here that could print this")
        if step.command == "^C":
            for process in session_of(shell.pid):
                if process != shell.pid:
                    kill(process, signal.SIGINT)
            self._finish(shell, shell.last, step)
        self._await(shell, shell.last, step)

    def _finish(self, shell: Shell, run: Run, step: Step) -> None:
        """Wait until it is done."""
        deadline = time.monotonic() + PATIENCE
        while run.code() is None:
            if time.monotonic() > deadline or not shell.alive():
                why = "is not done" if shell.alive() else "ended the shell"
                raise PageError(f"line {step.line}: {step.command}: {why}\n{run.printed()}")
            time.sleep(0.01)

    def _await(self, shell: Shell, run: Run, step: Step) -> None:
        """Wait until it has printed what is shown."""
        wanted = re.compile(pattern(step.shown))
        deadline = time.monotonic() + PATIENCE
        while True:
            ended = run.code() is not None and not run.background
            text = run.printed()
            if found := wanted.match(text, run.seen):
                run.seen = found.end()
                return
            if ended or time.monotonic() > deadline or not shell.alive():
                raise PageError(self._other(step, text[run.seen :]))
            time.sleep(0.02)

    def _whole(self, run: Run, step: Step, must_be: int | None) -> None:
        """What it printed is what is shown, no more and no less."""
        text = run.printed()
        run.seen = len(text)
        code = run.code()
        if must_be is not None and code != must_be:
            raise PageError(f"line {step.line}: {step.command}: ended with {code}\n{text}")
        if not re.fullmatch(pattern(step.shown) + r"\n*", text):
            raise PageError(self._other(step, text))

    @staticmethod
    def _other(step: Step, printed: str) -> str:
        shown = "\n".join(step.shown)
        return (
            f"line {step.line}: {step.command}\n--- is said to print\n{shown}"
            f"\n--- printed\n{printed}---"
        )

    def _next(self) -> Run:
        self.count += 1
        return Run(self.kept / f"{self.count}.printed", self.kept / f"{self.count}.code")

    def _shell(self, name: str, command: list[str]) -> Shell:
        if name not in self.shells:
            self.shells[name] = Shell(command, self)
        return self.shells[name]

    def _processes(self) -> list[int]:
        return [process for shell in self.shells.values() for process in session_of(shell.pid)]

    def _pause(self) -> None:
        """Until all processes of the page are asleep, and stay so."""
        deadline = time.monotonic() + LONGEST_PAUSE
        before = -1
        while time.monotonic() < deadline:
            states = [stat for process in self._processes() if (stat := status(process))]
            used = sum(int(stat[11]) + int(stat[12]) for stat in states)
            if used - before <= 1 and all(stat[0] in "SZ" for stat in states):
                return
            before = used
            time.sleep(PAUSE)


def status(process: int) -> list[str] | None:
    """The fields of /proc/…/stat behind the name; None where it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return text.rpartition(") ")[2].split()


def session_of(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    numbers = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [
        number
        for number in numbers
        if (stat := status(number)) and stat[3] == str(leader) and stat[0] != "Z"
    ]


def kill(process: int, number: signal.Signals) -> None:
    """Send a signal to what may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, number)


def read(
    text: str,
    folder: Path,
    library: str,
    *,
    languages: frozenset[str] = frozenset({"console", "python", "toml"}),
    address: str = "",
    lake: Lake | None = None,
) -> None:
    """Do what a page says, in a new folder; `library` is loopback.c, compiled.

    `address` is what the page has for 127.0.0.1; without it, one that no other process gives.
    With a `lake`, commands of the lake share its Spark.
    """
    place, kept = folder / "page", folder / "kept"
    place.mkdir()
    kept.mkdir()
    (place / ".venv").symlink_to(sys.prefix)
    (place / "examples").symlink_to(ROOT / "examples")
    number = os.getpid()
    environment = os.environ | {
        "HOME": str(place),
        "PATH": f"{Path(sys.prefix) / 'bin'}:{os.environ['PATH']}",
        "LD_PRELOAD": library,
        "LOOPBACK": address
        or f"127.{1 + (number >> 16) % 254}.{(number >> 8) % 256}.{number % 256}",
        "LC_ALL": "C.UTF-8",
        "NO_COLOR": "1",
        "TERM": "dumb",
    }
    for name in ("COLUMNS", "WIRELAKE_TOKEN", "PYTHONPATH", "PYTEST_ADDOPTS"):
        environment.pop(name, None)
    Page(place, kept, environment, lake).run(text, languages=languages)
