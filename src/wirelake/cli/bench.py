"""`wirelake bench`: messages a second and round trips of a broker, in each dialect.

`make bench` in the repository measures it beside other servers, with the same generator.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from wirelake.cli.options import Token
from wirelake.cli.show import wide_console, write_object
from wirelake.cli.work import FAILED, complain, errors_in_one_line
from wirelake.client.url import Place, dialect_urls, parse
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError
from wirelake.measure.broker import HOST, Wirelake, own_broker
from wirelake.measure.load import end_by_signals
from wirelake.measure.machine import describe
from wirelake.measure.rounds import ASKING, Key, Results, Task, measure, plan


def bench(
    dialect: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this dialect; may be repeated.", autocompletion=lambda: list(DIALECTS)
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.01, max=600, help="How long a measurement takes, about.")
    ] = 2.0,
    rounds: Annotated[
        int, typer.Option(min=1, max=100, help="Rounds; the result is their median.")
    ] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="One round of short measurements, for a first look.")
    ] = False,
    payload: Annotated[
        int, typer.Option(min=1, max=1 << 20, metavar="N", help="Bytes of a message.")
    ] = 128,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Measure the broker that runs there, instead of one of our own:"
            " a dialect, a family, or auto://host:7700.",
        ),
    ] = None,
    token: Token = "",
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder whose disk is tried, by fdatasync.")
    ] = Path(),
    as_json: Annotated[
        bool, typer.Option("--json", help="All figures, as one JSON object.")
    ] = False,
) -> None:
    """Measure a broker: messages a second and round trips, in each dialect.

    One publisher writes prepared frames in large blocks; subscribers, each a process, count bytes;
    requests go one at a time. Rates are of messages published. Without `--url` it starts a broker
    of its own, which keeps nothing on disk.

    Examples:

        wirelake bench --quick

        wirelake bench --dialect kobold-3 --payload 1000 --json > figures.json

        wirelake bench --url auto://broker.example:7700 --seconds 5
    """
    if unknown := set(dialect or []) - set(DIALECTS):
        known = ", ".join(DIALECTS)
        raise typer.BadParameter(f"{unknown.pop()} is none of {known}", param_hint="--dialect")
    if quick:
        seconds, rounds = min(seconds, 0.3), 1
    people = wide_console(stderr=as_json)
    end_by_signals()
    with errors_in_one_line(), ExitStack() as stack:
        machine = describe(data)
        if url is None:
            port, _ = stack.enter_context(own_broker())
            url = f"auto://{HOST}:{port}"
        places = _places(url, dialect, token)
        tasks = list(plan([Wirelake(place) for place in places], [], payload))
        results = _measure(tasks, rounds, seconds)
    _show(people, results, machine, payload)
    if as_json:
        write_object(_report(results, machine, payload, seconds))
    if results.failures:
        raise typer.Exit(FAILED)


def _places(url: str, dialects: list[str] | None, token: str) -> list[Place]:
    """The broker in each dialect to measure: those asked for, or all that the URL stands for."""
    urls = dialect_urls([url], token=token)
    parts = urlsplit(url)
    if parts.scheme in ("auto", "auto+tls") and parts.port is None:
        raise ConfigError("url", f"{url}: say the port, which is 7700 as a rule")
    wanted = [one for one in urls if not dialects or one in dialects]
    if not wanted:
        spoken = ", ".join(dialects or [])
        raise ConfigError("url", f"{url} does not speak {spoken}; auto:// can be all of them")
    return [parse(urls[one], token=token) for one in wanted]


def _measure(tasks: list[Task], rounds: int, seconds: float) -> Results:
    """Measure, with a progress bar on a terminal."""
    console = Console(stderr=True)
    # Processes are forked meanwhile, so no thread may draw the bar.
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task("", total=rounds * len(tasks))
        done = 0

        def begin(turn: int, key: Key) -> None:
            nonlocal done
            label = f"round {turn + 1}: {key.shape}, {key.name}"
            progress.update(bar, completed=done, description=label, refresh=True)
            done += 1

        return measure(tasks, rounds, seconds, begin)


def _show(console: Console, results: Results, machine: dict[str, Any], size: int) -> None:
    console.print(
        f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']},"
        f" {machine['kernels']} kernels; payloads of {size} bytes;"
        f" {machine['fsyncs_a_second']:.0f} fsyncs a second"
    )
    medians = results.medians()
    table = Table(header_style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", no_wrap=True)
    for title in ("msg/s", "MB/s", "p50 µs", "p99 µs"):
        table.add_column(title, justify="right")
    last = ""
    for (shape, name), figures in medians.items():
        if last not in ("", shape):
            table.add_section()
        if shape == ASKING:
            middle, tail = figures
            table.add_row(shape, name, "", "", f"{middle:.0f}", f"{tail:.0f}")
        else:
            (rate,) = figures
            table.add_row(shape, name, f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}", "", "")
        last = shape
    console.print(table)
    for (shape, name), reason in results.failures.items():
        complain(f"{shape}, {name}: {reason}", error="failed")


def _report(results: Results, machine: dict[str, Any], size: int, seconds: float) -> dict[str, Any]:
    medians = results.medians()
    measured = []
    for key, figures in medians.items():
        names = ["p50_us", "p99_us"] if key.shape == ASKING else ["messages_a_second"]
        shown = dict(zip(names, figures, strict=True))
        measured.append({**key._asdict(), **shown, "rounds": results.figures[key]})
    failed = [{**key._asdict(), "reason": reason} for key, reason in results.failures.items()]
    return {
        "machine": machine,
        "payload": size,
        "seconds": seconds,
        "measured": measured,
        "failed": failed,
    }
