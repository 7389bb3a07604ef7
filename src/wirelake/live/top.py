"""The screen of `wirelake top`: figures, connections and events of any broker, over HTTP."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.live import Live
from rich.table import Table
from rich.text import Text

from wirelake.client.events import OWN, event_of, follow, remembered
from wirelake.client.http import HttpClient
from wirelake.errors import EngineError, RefusedError, WirelakeError
from wirelake.live.board import Board
from wirelake.live.figures import EVERY_QUERY, read_figures
from wirelake.message import printable

#: Seconds between two readings; redraws per second.
READING, REFRESH = 1.0, 2
#: Keys that end it.
QUIT = b"qQ\x03\x1b"
#: Events that are there at the start.
EVENTS = 20


@dataclass
class TopBoard(Board):
    """A board with the busiest connections of a broker, and its health."""

    url: str = ""
    health: str = "…"
    connections: list[dict[str, Any]] = field(default_factory=list)
    _moved: dict[int, tuple[float, int, int]] = field(default_factory=dict)

    def add_connections(self, found: list[dict[str, Any]], at: float) -> None:
        """Add a reading of the connections; the busiest since the last one come first."""
        moved = {}
        for one in found:
            number, taken, given = one["number"], one["received"], one["delivered"]
            then, before_in, before_out = self._moved.get(number, (0.0, taken, given))
            seconds = max(at - then, 0.001)
            one["in"], one["out"] = (taken - before_in) / seconds, (given - before_out) / seconds
            moved[number] = (at, taken, given)
        self._moved = moved
        self.connections = sorted(found, key=lambda one: (-(one["in"] + one["out"]), one["number"]))

    def _heading(self) -> Table:
        line = Table.grid(expand=True)
        line.add_column(ratio=1)
        line.add_column(justify="right")
        is_well = self.health == "ok" and not self.blindness
        state = Text.assemble((" ● ", "green" if is_well else "red"), f"{self.health}  ")
        line.add_row(Text.assemble((" wirelake top", "bold cyan"), f"  {self.url}"), state)
        return line

    def _addresses(self) -> Iterator[Text]:
        for line in super()._addresses():
            if not line.plain.startswith(" http"):
                yield line

    def _more(self, room: int) -> list[Text]:
        """The busiest connections, as many as there is room for."""
        if room < 2:
            return []
        head = f" {'connection':<12} {'client':<20} {'dialect':<13} {'from':<22}"
        lines = [Text(f"{head} {'in/s':>8} {'out/s':>8} {'waiting':>9}", "bold")]
        for one in self.connections[: room - 1]:
            client, peer = (_cut(str(one[key]), size) for key, size in (("id", 20), ("peer", 22)))
            lines.append(
                Text(
                    f" {one['number']:<12} {client:<20} {printable(str(one['dialect'])):<13} "
                    f"{peer:<22} {one['in']:>8,.0f} {one['out']:>8,.0f}"
                    f" {decimal(int(one['bytes_waiting'])):>9}"
                )
            )
        return lines

    def _examples(self) -> list[Text]:
        return [Text(" q ends it", "dim")]

    def as_object(self) -> dict[str, object]:
        """The figures for programs, and the health."""
        told = super().as_object()
        return {"url": self.url, "state": self.health, **told} if told else {}


def _cut(text: str, size: int) -> str:
    text = printable(text)
    return text if len(text) <= size else text[: size - 1] + "…"


class Top:
    """Watches a broker; shows it on a screen, or as a line now and then."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self.board = TopBoard(url=http.url)

    def read(self) -> None:
        """Read everything once; EngineError if that is not possible."""
        board = self.board
        with suppress(RefusedError, TimeoutError):  # they are told by the figures
            board.health = health(self._http)["state"]
        figures = read_figures(self._http.url, EVERY_QUERY, self._http.token)
        try:
            told = self._http.get("/v1/session")
            board.places = [one for one in told.get("listeners", []) if "http" not in one[:4]]
            board.add_connections(self._http.get("/v1/connections")["connections"], figures.at)
        except (RefusedError, TimeoutError) as error:
            raise EngineError(str(error)) from None
        board.add(figures)

    async def on_screen(self) -> None:
        """Show a screen until a key, a signal or the end of the terminal ends it."""
        over = asyncio.Event()
        threading.Thread(target=self._listen, daemon=True).start()
        screen = Live(
            get_renderable=lambda: self.board,
            console=Console(),
            screen=True,
            refresh_per_second=REFRESH,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        with _keys(over.set), screen:
            reading = asyncio.create_task(self._read_on())
            try:
                await over.wait()
            finally:
                reading.cancel()

    async def _read_on(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.read)
            except EngineError as error:
                self.board.blindness = str(error)
            await asyncio.sleep(READING)

    def _listen(self) -> None:
        """In a thread: bring the broker's events onto the board; who may not have them has none."""
        with suppress(WirelakeError, TimeoutError):
            for event in remembered(self._http)[-EVENTS:]:
                self._tell(event)
            for message in follow(self._http, [OWN], lambda _: None):
                with suppress(ValueError):
                    self._tell(event_of(message))

    def _tell(self, event: dict[str, Any]) -> None:
        at = time.strftime("%H:%M:%S", time.localtime(int(event.get("time", 0)) / 1e6))
        text = f"{event.get('who', '')}: {event.get('text', '')}"
        kind = str(event.get("event", "")).replace("_", " ")
        self.board.tell("", f"{kind}: {text}", is_bad=True, at=at)

    def lines(self, every: float, show: Callable[[TopBoard], None]) -> None:
        """Read and show, every `every` seconds; raises EngineError if the first reading fails."""
        self.read()
        while True:
            show(self.board)
            time.sleep(every)
            try:
                self.read()
            except EngineError as error:
                self.board.blindness = str(error)


def health(http: HttpClient) -> dict[str, Any]:
    """Return what `/healthz` tells: `state` is `ok`, or else `text` says what is wrong."""
    try:
        told = http.get("/healthz")
    except RefusedError as error:
        if error.code not in ("busy", "closed", "timeout"):
            raise
        return {"state": "trouble", "error": error.code, "text": error.text}
    if not isinstance(told, dict) or "state" not in told:
        raise EngineError(f"{http.url}: this is no broker of ours")
    return told


@contextmanager
def _keys(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` when a key asks for it, until the end of `with`."""
    loop = asyncio.get_running_loop()
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        data = os.read(terminal, 64)
        if not data or (len(data) == 1 and data in QUIT):
            end()

    tty.setcbreak(terminal)
    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
