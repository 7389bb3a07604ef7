"""`wirelake up`: the broker and the pipeline into the lake, as one, with a view of both."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from wirelake.cli.board import Board, read_figures, told_by
from wirelake.cli.group import Child
from wirelake.cli.messages import Token, fail
from wirelake.cli.serve import Insecure, Listen
from wirelake.config import DEFAULT_HOST, Listener, Settings, read_settings
from wirelake.dialects import default_ports
from wirelake.errors import EngineError, WirelakeError

BROKER, PIPELINE = "broker", "pipeline"
#: Seconds between two readings of the broker's figures, and times a second that they are drawn.
READING, REFRESH = 1.0, 2
#: How often the pipeline lands what is new.
LANDING = "2s"
TABLE = "lake"


def up(
    listen: Listen = None,
    data: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where everything is kept. Without it, `data`."),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Where HTTP listens; port 0 is any free one."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The broker's settings, in TOML.")
    ] = None,
    no_lake: Annotated[bool, typer.Option("--no-lake", help="The broker alone.")] = False,
    insecure: Insecure = False,
    every: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="Without a terminal: between two lines of figures."
        ),
    ] = 10.0,
    token: Token = "",
) -> None:
    """Run everything: the broker, HTTP, and the pipeline that lands what passes in DIR/lake.

    On a terminal it shows what is going on; elsewhere it prints lines. What dies is started again.
    Ctrl-C and SIGTERM end all of it; a second one does so at once. Where tokens are configured, the
    figures and the pipeline need an admin's.

    Examples:

        wirelake up

        wirelake up --data /var/lib/wirelake --listen auto://127.0.0.1:7700

        wirelake up --no-lake | tee up.log
    """
    try:
        settings = read_settings(config) if config else Settings()
    except WirelakeError as error:
        fail(str(error))
    if (http or settings.http).startswith("https://"):
        fail("--http: up asks its own broker without TLS; take serve and lake land for this")
    folder = data or Path(settings.data)
    arguments = ["--data", str(folder)]
    if config is not None:
        arguments += ["--config", str(config)]
    if insecure:
        arguments.append("--insecure")
    why_not = "" if no_lake else missing_for_spark()
    run = _Run(
        folder,
        arguments,
        listen or list(settings.listen),
        http or settings.http or Settings().http,
        token,
        has_lake=not no_lake and not why_not,
    )
    run.board.lake = why_not or ("off" if no_lake else str(folder / TABLE))
    if why_not:
        run.tell(PIPELINE, f"does not run: {why_not}", is_bad=True)
    try:
        asyncio.run(run.until_told(every))
    except WirelakeError as error:
        fail(str(error))


def missing_for_spark() -> str:
    """Why there can be no pipeline; empty where there can."""
    try:
        from wirelake.spark.session import find_java
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("pyspark", "py4j")):
            raise
        return "Spark is not installed: pip install 'wirelake[spark]'"
    if find_java() is None:
        return "Java 17 or newer is missing (Debian: apt install openjdk-17-jre-headless)"
    return ""


@contextmanager
def landing_lock(table: Path) -> Iterator[int | None]:
    """Be the one who lands in this table here; None where somebody else is. The open file else."""
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(f"{table}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EngineError(f"{table}: {(error.strerror or str(error)).lower()}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield handle
    finally:
        os.close(handle)


class _Run:
    """One run of the group; the witness of its children."""

    def __init__(
        self,
        folder: Path,
        arguments: list[str],
        listen: list[str],
        http: str,
        token: str,
        *,
        has_lake: bool,
    ) -> None:
        self.board = Board()
        self._table = folder / TABLE
        self._arguments = arguments
        self._listen = listen
        self._http = http
        self._token = token
        self._has_lake = has_lake
        self._is_screen = sys.stdout.isatty() and not Console().is_dumb_terminal
        self._heard: list[str] = []  # listeners of the broker that is just starting
        self._lives: list[asyncio.Task[None]] = []  # of the children
        self._chores: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._told = asyncio.Event()

    async def until_told(self, every: float) -> None:
        """Run until a signal says otherwise, or the broker cannot be started."""
        broker = Child(BROKER, self._serve, self, must_start=True)
        self.board.children = [broker]
        self._hear_signals(broker)
        screen = Live(
            get_renderable=lambda: self.board,
            console=Console(),
            screen=True,
            refresh_per_second=REFRESH,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._lives.append(asyncio.create_task(broker.live()))
        told = asyncio.create_task(self._told.wait())
        try:
            await self._first(asyncio.create_task(self._ready.wait()), told)
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
            await self._end()
            told.cancel()
        with suppress(BrokenPipeError):
            typer.echo(f"wirelake: everything has ended; what was kept is in {self._table.parent}")

    async def _first(self, *tasks: asyncio.Task[object]) -> None:
        """Wait for one of these, or of ours; what went wrong in it is raised."""
        waiting = [*tasks, *self._lives, *self._chores]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            await task

    def _start_others(self, lock: int | None, every: float) -> None:
        self._chores.append(asyncio.create_task(self._watch()))
        if not self._is_screen:
            self._chores.append(asyncio.create_task(self._sum_up(every)))
        if lock is not None:
            environment = {"WIRELAKE_TOKEN": self._token} if self._token else {}
            pipeline = Child(PIPELINE, self._land, self, environment=environment, keeps=(lock,))
            self.board.children.append(pipeline)
            self._lives.append(asyncio.create_task(pipeline.live()))
        elif self._has_lake:
            self.tell(PIPELINE, f"does not run: somebody else lands in {self._table}", is_bad=True)

    async def _end(self) -> None:
        """Let the children end with all that they have started; then what is ours."""
        await asyncio.gather(*(child.stop() for child in self.board.children))
        await asyncio.gather(*self._lives, return_exceptions=True)
        for task in self._chores:
            task.cancel()
        await asyncio.gather(*self._chores, return_exceptions=True)

    def _hear_signals(self, broker: Child) -> None:
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
        # A terminal that is closed ends us; without one it is for the broker, as with `serve`.
        if self._is_screen:
            loop.add_signal_handler(signal.SIGHUP, stop)
        else:
            loop.add_signal_handler(signal.SIGHUP, broker.pass_on, signal.SIGHUP)

    # What the children are

    def _serve(self) -> list[str]:
        """The broker; started again it listens where it did, even where any port would do."""
        self._heard = []
        places = self.board.places or self._listen
        http = self.board.http.removeprefix("http://") or self._http
        listeners = [part for place in places for part in ("--listen", place)]
        return ["serve", *self._arguments, *listeners, "--http", http]

    def _land(self) -> list[str]:
        table = str(self._table)
        source = ["--url", self.board.http, "--table", table, "--every", LANDING]
        return ["lake", "land", *source, "--json"]

    # What they tell

    def said(self, child: Child, line: str) -> None:
        """The broker says where it listens, HTTP last; the pipeline, what has landed."""
        if child.name == BROKER:
            place = line.removeprefix("listening on ")
            self._heard.append(place)
            if place.startswith("http://"):
                self._is_listening(child)
        else:
            with suppress(ValueError, KeyError, TypeError):  # else it is no batch
                landed = json.loads(line)
                self.tell(child.name, f"{landed['rows']} rows landed, {landed['lag']} to go")

    def _is_listening(self, broker: Child) -> None:
        *self.board.places, self.board.http = self._heard
        broker.is_up()
        if not self._ready.is_set():
            self.board.examples = examples(self.board.places, self.board.http, self._table)
            for place in self._heard:
                self._print(f"listening on {place}")
            for example in self.board.examples:
                self._print(f"try: {example}")
        self._ready.set()

    def complained(self, child: Child, line: str) -> None:
        """What stands in a child's log."""
        text, is_bad = told_by(line)
        self.tell(child.name, text, is_bad=is_bad)

    def changed(self, child: Child, text: str) -> None:
        """A child was started, or has ended."""
        self.tell(child.name, text, is_bad=not text.startswith("started"))

    def tell(self, who: str, text: str, *, is_bad: bool = False) -> None:
        """Something happened."""
        event = self.board.tell(who, text, is_bad=is_bad)
        self._print(f"{event.at} {event.who}: {event.text}")

    def _print(self, line: str) -> None:
        """A line where there is no screen; when nobody reads them any more, everything ends."""
        if self._is_screen:
            return
        try:
            typer.echo(line)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._told.set()

    # The figures

    async def _watch(self) -> None:
        query = f"land-{TABLE}"
        while True:
            try:
                http = self.board.http
                self.board.add(await asyncio.to_thread(read_figures, http, query, self._token))
            except EngineError as error:
                if not self._told.is_set():
                    self.board.blindness = str(error)
            await asyncio.sleep(READING)

    async def _sum_up(self, every: float) -> None:
        while True:
            await asyncio.sleep(every)
            self.tell("up", self.board.summary())


def examples(places: list[str], http: str, table: Path) -> list[str]:
    """Commands to go on with, as they can be pasted."""
    listeners = [Listener.parse(place) for place in places]

    def at(dialect: str) -> str | None:
        family = dialect.partition("-")[0]
        fitting = [one for one in listeners if one.family in (family, "auto") and not one.tls]
        for one in sorted(fitting, key=lambda one: one.family == "auto"):
            if one.path:
                return f"{dialect}+unix://{one.path}"
            if (one.host, one.port) == (DEFAULT_HOST, default_ports()[family]):
                return f"{dialect}://localhost"
            return str(one).replace(one.family, dialect, 1)
        return None

    wirelake = shlex.quote(program())
    wanted = [
        ("kobold-3", "sub {} 'house/#'"),
        ("boson-text", "pub {} house/kitchen/temp 21.5"),
        ("mfp", "chat {}"),
    ]
    lines = [
        f"{wirelake} {command.format(shlex.quote(url))}"
        for dialect, command in wanted
        if (url := at(dialect)) is not None
    ]
    usual = Settings()
    if (places, http, str(table)) == ([*usual.listen], f"http://{usual.http}", f"data/{TABLE}"):
        return [*lines, f"{wirelake} demo"]
    auto = [place for place in places if place.startswith("auto://")]
    where = shlex.join([*(auto[:1] or places), "--http", http.removeprefix("http://")])
    return [*lines, f"{wirelake} demo {where} --table {shlex.quote(str(table))}"]


def program() -> str:
    """What a user types to run us."""
    given = sys.argv[0]
    found = shutil.which("wirelake")
    if Path(given).name != "wirelake" or (found and Path(found).samefile(given)):
        return "wirelake"
    near = os.path.relpath(given)
    return given if near.startswith("..") else near
