"""`wirelake demo`: believable traffic for a broker, and then the report on what landed."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import webbrowser
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from wirelake.cli import lake
from wirelake.cli.options import AsJson, Token
from wirelake.cli.show import plain_table, wide_console, write_object
from wirelake.cli.work import USAGE, fail, run, until_told
from wirelake.client.http import HttpClient
from wirelake.client.url import dialect_urls
from wirelake.config import Settings
from wirelake.demo import traffic
from wirelake.demo.town import PATTERNS, Town
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, EngineError, WirelakeError
from wirelake.live.landing import landing_lock, log_ends, missing_for_spark, progress, rows_left
from wirelake.spark.offsets import query_name

#: Seconds between two lines if there is no terminal, and between two updates of the bar.
LINES, LOOK = 5.0, 0.25
#: Seconds that the broker's HTTP may take to answer.
ANSWER = 5.0


def demo(
    urls: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="URL",
            help="Listeners (auto://host:7700) or dialects (kobold-3://host). "
            "[default: all listeners of a broker on this machine]",
        ),
    ] = None,
    http: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The broker's HTTP.")
    ] = Settings().http,
    rate: Annotated[float, typer.Option(min=1, help="Messages a second, about.")] = 200,
    duration: Annotated[float, typer.Option(min=1, help="Seconds.")] = 60,
    table: Annotated[Path, typer.Option(metavar="DIR", help="Where the traffic lands.")] = Path(
        "data/lake"
    ),
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The report. [default: beside the table]")
    ] = None,
    no_report: Annotated[bool, typer.Option("--no-report", help="Only the traffic.")] = False,
    as_json: AsJson = False,
    token: Token = "",
) -> None:
    """Send a broker traffic of every dialect and pattern, then report on what landed.

    Sensors, a chat room, a shop with orders and workers, services, settings, cameras, drivers: some
    forty clients, which leave and come back. Where `wirelake up` runs, what they say lands by
    itself, and is waited for; elsewhere it is landed when they are done.

    Examples:

        wirelake demo

        wirelake demo --rate 5000 --duration 300

        wirelake demo auto://10.0.0.5:7700 --http 10.0.0.5:7780 --table /tmp/lake --no-report
    """
    began = time.time()
    try:
        town = Town(dialect_urls(urls or Settings().listen, token=token), token, rate)
    except ConfigError as error:
        fail(str(error), USAGE)
    logging.getLogger("wirelake.client").addHandler(_Listener(town))
    logging.getLogger("wirelake.client").propagate = False
    try:
        run(until_told(_shown(town, duration)))
    finally:
        if town.messages:
            tell_counts(town, as_json=as_json)
    if no_report:
        return
    try:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            client = HttpClient(http if "://" in http else f"http://{http}", token, timeout=ANSWER)
            _report(client, table, out or table.parent / "report.html", began)
    except (WirelakeError, TimeoutError) as error:
        fail(f"no report: {error}")


class _Listener(logging.Handler):
    """Counts what the client logs, instead of printing it."""

    def __init__(self, town: Town) -> None:
        super().__init__()
        self._town = town

    def emit(self, record: logging.LogRecord) -> None:
        """Count a log line."""
        self._town.happened["refused or lost, unasked"] += 1


async def _shown(town: Town, duration: float) -> None:
    """Run the traffic, with a progress bar on a terminal and lines elsewhere."""
    console = Console(stderr=True)
    if missing := [name for name in DIALECTS if name not in town.urls]:
        typer.echo(f"without {', '.join(missing)}: no listener for it was given", err=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        shown = bar.add_task("demo", total=duration)
        living = asyncio.create_task(traffic.live(town, duration))
        began = told = time.monotonic()
        try:
            while not living.done():
                await asyncio.wait([living], timeout=LOOK)
                spent = time.monotonic() - began
                text = f"{town.messages:,} messages"
                bar.update(shown, completed=min(spent, duration), description=text)
                if not console.is_terminal and time.monotonic() - told > LINES:
                    told = time.monotonic()
                    typer.echo(f"{text} in {spent:.0f} of {duration:g} s", err=True)
            await living
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)


def tell_counts(town: Town, *, as_json: bool) -> None:
    """Print counts of messages by dialect and pattern, and of errors."""
    if as_json:
        write_object(
            {
                name: [
                    {"dialect": dialect, "pattern": pattern, "messages": messages}
                    for (dialect, pattern), messages in sorted(counts.items())
                    if messages
                ]
                for name, counts in (("sent", town.sent), ("heard", town.heard))
            }
            | {"happened": dict(town.happened)}
        )
        return
    shown = plain_table()
    shown.add_column("sent/heard")
    for pattern in PATTERNS:
        shown.add_column(pattern, justify="right")
    for dialect in DIALECTS:
        cells = [(town.sent[dialect, one], town.heard[dialect, one]) for one in PATTERNS]
        if any(map(any, cells)):
            shown.add_row(dialect, *(f"{s:,}/{h:,}" if s or h else "" for s, h in cells))
    console = wide_console()
    console.print(shown)
    wrong = ", ".join(f"{name} {count:,}" for name, count in town.happened.most_common())
    console.print(
        f"{town.messages:,} messages sent; {wrong or 'nothing went wrong'}", soft_wrap=True
    )


def _report(http: HttpClient, table: Path, out: Path, began: float) -> None:
    """Wait until everything has landed, or land it; then write the report, and open it."""
    if why_not := missing_for_spark():
        raise EngineError(why_not)
    ends = log_ends(http)
    if not any(ends.values()):
        raise EngineError("the broker has no log")
    query = query_name(f"land-{table.name}")
    with landing_lock(table) as lock:
        is_landing = lock is None or progress(http, query)[1] > began
        if is_landing and not table.exists() and lock is not None:
            raise EngineError("a pipeline lands it elsewhere; say where: --table DIR")
        if is_landing:
            _wait_for(http, query, ends)
        else:
            typer.echo("landing what was said", err=True)
            lake.land(url=http.url, table=str(table), once=True, token=http.token)
    typer.echo("writing the report", err=True)
    lake.report(table=str(table), out=out)
    page = out.resolve().as_uri()
    typer.echo(f"see {page}")
    if sys.stdout.isatty() and ("DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ):
        webbrowser.open(page)


def _wait_for(http: HttpClient, query: str, ends: dict[str, int]) -> None:
    """Wait until a query has read up to these offsets, or makes no progress."""
    console = Console(stderr=True)
    typer.echo("waiting for the pipeline to land it", err=True)
    left = 0
    with console.status("") if console.is_terminal else nullcontext() as shown:
        for left in rows_left(http, query, ends):
            if shown is not None:
                shown.update(f"{left:,} rows to go")
    if left:
        typer.echo(f"{left} rows have not landed yet; the report is without them", err=True)
