"""The processes of `wirelake up`: the broker, the pipeline that lands its log, and their events."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from types import MappingProxyType

from rich.console import Console
from rich.live import Live

from wirelake.errors import EngineError
from wirelake.live.board import Board, told_by
from wirelake.live.children import Child
from wirelake.live.figures import Figures, read_figures
from wirelake.live.landing import landed_by, landing_lock
from wirelake.spark.offsets import query_name

BROKER, PIPELINE = "broker", "pipeline"
#: Seconds between two readings of the broker's figures; redraws per second.
READING, REFRESH = 1.0, 2
#: How often the pipeline lands new rows.
LANDING = "2s"


class Group:
    """The broker, the pipeline and the view of both; the witness of its children.

    `arguments` are those of `wirelake serve`, except for `listen` and `http`. The pipeline lands in
    `table`; without `has_lake` there is no pipeline. `suggest` makes example commands from the URLs
    of the listeners and of HTTP. Without a screen, and with `is_plain` there is none, `show` gets
    each line to print, and the same as fields.
    """

    def __init__(
        self,
        arguments: list[str],
        listen: list[str],
        http: str,
        token: str,
        *,
        table: Path,
        has_lake: bool,
        suggest: Callable[[list[str], str], list[str]],
        show: Callable[[str, dict[str, object]], None],
        is_plain: bool = False,
    ) -> None:
        self.board = self._make_board()
        self._table = table
        self._has_lake = has_lake
        self._suggest = suggest
        self._show = show
        self._arguments = arguments
        self._listen = listen
        self._http = http
        self._token = token
        on_terminal = sys.stdout.isatty() and not Console().is_dumb_terminal
        self._is_screen = on_terminal and not is_plain
        self._pipeline: Child | None = None
        self._heard: list[str] = []  # listeners of the broker that is just starting
        self._lives: list[asyncio.Task[None]] = []  # of the children
        self._chores: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._told = asyncio.Event()

    def _make_board(self) -> Board:
        return Board()

    async def until_told(self, every: float) -> None:
        """Run until a signal ends it; prints a summary each `every` seconds if there is no screen.

        Raises EngineError if the broker cannot be started.
        """
        self._hear_signals()
        screen = Live(
            get_renderable=lambda: self.board,
            console=Console(),
            screen=True,
            refresh_per_second=REFRESH,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        told = asyncio.create_task(self._told.wait())
        ready = asyncio.create_task(self._start_brokers())
        try:
            await self._first(ready, told)
            if self._told.is_set():
                ready.cancel()  # or it would start more, while others are stopped
                await asyncio.gather(ready, return_exceptions=True)
            with (
                screen if self._is_screen else nullcontext(),
                landing_lock(self._table) if self._has_lake else nullcontext() as lock,
            ):
                try:
                    if not self._told.is_set():
                        self._start_others(lock, every)
                    await self._first(told)
                finally:
                    await self._end()  # the screen shows how
        finally:
            for task in (ready, told):
                task.cancel()
            await asyncio.gather(ready, told, return_exceptions=True)
            await self._end()

    async def _start_brokers(self) -> None:
        """Start what the pipeline needs, and wait until it can be used."""
        self._start(Child(BROKER, self._serve, self, must_start=True))
        await self._until_ready()

    def _start(self, child: Child) -> None:
        """Start a child, and show it on the board."""
        self.board.children.append(child)
        self._lives.append(asyncio.create_task(child.live()))

    async def _until_ready(self) -> None:
        """Wait until the brokers listen; raises the error of a child that could not start."""
        ready = asyncio.create_task(self._ready.wait())
        try:
            await self._first(ready)
        finally:
            ready.cancel()

    async def _first(self, *tasks: asyncio.Task[object]) -> None:
        """Wait until one of these tasks, or of ours, is done; raises its error."""
        waiting = [*tasks, *self._lives, *self._chores]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task

    def _start_others(self, lock: int | None, every: float) -> None:
        self._chores.append(asyncio.create_task(self._watch()))
        if not self._is_screen:
            self._chores.append(asyncio.create_task(self._sum_up(every)))
        if lock is not None:
            self._start_pipeline(lock)
        elif self._has_lake:
            who = landed_by(self._table)
            self.tell(PIPELINE, f"does not run: {who} lands in {self._table}", is_bad=True)

    def _start_pipeline(self, lock: int) -> None:
        environment = {"WIRELAKE_TOKEN": self._token} if self._token else {}
        self._pipeline = Child(
            PIPELINE,
            self._land,
            self,
            tells_when_up=True,
            environment=environment,
            keeps=(lock,),
        )
        self._start(self._pipeline)

    async def _end(self) -> None:
        """Stop the children, then our own tasks."""
        for some in self._in_order():
            await asyncio.gather(*(child.stop() for child in some))
        await asyncio.gather(*self._lives, return_exceptions=True)
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    def _in_order(self) -> list[list[Child]]:
        """The children in groups, each of which is stopped when those before it have ended."""
        return [self.board.children]

    def _brokers(self) -> list[Child]:
        """The children that serve clients."""
        return [child for child in self.board.children if child.name == BROKER]

    def _hear_signals(self) -> None:
        def stop() -> None:
            if self._told.is_set():
                for child in self.board.children:
                    child.kill()
                return
            self._told.set()
            self.tell("up", "ending; once more ends it at once")

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop)
        loop.add_signal_handler(signal.SIGINT, stop)
        # A closed terminal ends us; without a terminal SIGHUP is for the broker, as with `serve`.
        if self._is_screen:
            loop.add_signal_handler(signal.SIGHUP, stop)
        else:
            loop.add_signal_handler(signal.SIGHUP, self._pass_on_hup)

    def _pass_on_hup(self) -> None:
        for broker in self._brokers():
            broker.pass_on(signal.SIGHUP)

    # Commands of the children

    def _serve(self) -> list[str]:
        """The broker's arguments; a restarted one listens at the same ports."""
        self._heard = []
        places = self.board.places or self._listen
        http = self.board.http.removeprefix("http://") or self._http
        listeners = [part for place in places for part in ("--listen", place)]
        return ["serve", *self._arguments, *listeners, "--http", http]

    def _land(self) -> list[str]:
        """The pipeline's arguments."""
        source = ["--url", self.board.http, "--table", str(self._table), "--every", LANDING]
        return ["lake", "land", *source, "--json"]

    # Events

    def said(self, child: Child, line: str) -> None:
        """The broker prints its listeners, HTTP last; the pipeline prints batches that landed."""
        if child.name == BROKER:
            place = line.removeprefix("listening on ")
            self._heard.append(place)
            if place.startswith("http://"):
                self._is_listening(child)
        else:
            self._landed(child, line)

    def _landed(self, child: Child, line: str) -> None:
        """The pipeline has printed a batch."""
        with suppress(ValueError, KeyError, TypeError):  # else it is no batch
            landed = json.loads(line)
            self.tell(child.name, f"{landed['rows']} rows landed, {landed['lag']} to go")
            self._is_landing()

    def _is_landing(self) -> None:
        """The pipeline has landed something, or there is nothing to land: so it works."""
        if self._pipeline is not None and self._pipeline.state == "starting":
            self._pipeline.is_up()

    def _is_listening(self, broker: Child) -> None:
        *self.board.places, self.board.http = self._heard
        broker.is_up()
        self._all_listen(self._heard)

    def _all_listen(self, places: list[str]) -> None:
        """All brokers listen: tell where, once."""
        if not self._ready.is_set():
            self.board.examples = self._suggest(self.board.places, self.board.http)
            for place in places:
                self._print(f"listening on {place}", event="listening", url=place)
            for example in self.board.examples:
                self._print(f"try: {example}", event="try", command=example)
        self._ready.set()

    def complained(self, child: Child, line: str) -> None:
        """A line of a child's log."""
        text, is_bad = told_by(line)
        self.tell(child.name, text, is_bad=is_bad)

    def changed(self, child: Child, text: str) -> None:
        """A child started or exited."""
        self.tell(child.name, text, is_bad=not text.startswith("started"))

    def tell(
        self,
        who: str,
        text: str,
        *,
        is_bad: bool = False,
        fields: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Report an event: on the board, and as a line; to programs with further fields."""
        event = self.board.tell(who, text, is_bad=is_bad)
        told = {"event": "told", "who": event.who, "text": event.text, "bad": is_bad, **fields}
        self._print(f"{event.at} {event.who}: {event.text}", **told)

    def _print(self, line: str, **fields: object) -> None:
        """Print a line if there is no screen; if nobody reads the output any more, stop."""
        if self._is_screen:
            return
        try:
            self._show(line, fields)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._told.set()

    # The figures

    async def _watch(self) -> None:
        query = query_name(f"land-{self._table.name}")
        while True:
            try:
                figures = await asyncio.to_thread(self._read, query)
                self.board.add(figures)
                if figures.has_all_landed:
                    self._is_landing()
            except EngineError as error:
                if not self._told.is_set():
                    self.board.blindness = str(error)
            await asyncio.sleep(READING)

    def _read(self, query: str) -> Figures:
        """Read the figures; EngineError if that fails. Blocks."""
        return read_figures(self.board.http, query, self._token)

    async def _sum_up(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            self._sum()

    def _sum(self) -> None:
        """Print the figures."""
        figures = {"event": "figures", **self.board.as_object()}
        self.tell("up", self.board.summary(), fields=figures)
