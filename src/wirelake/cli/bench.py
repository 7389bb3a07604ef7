"""`wirelake bench`: messages a second and round trips, side by side with other servers.

All are driven by the same generator (`load.py`), in one run. The machine is never quiet, so rounds
alternate between the servers, and the medians count. Ratios are what to look at: they say more
about another machine than rates do.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import wirelake
from wirelake.cli.contenders import HOST, PEERS, Nats, Wirelake, free_port, own_broker
from wirelake.cli.load import Asker, Driver, Load, end_by_signals, publish_rate, round_trips
from wirelake.cli.messages import FAILED, INTERRUPTED, USAGE, Token
from wirelake.cli.show import wide_console
from wirelake.client.url import Place, parse
from wirelake.dialects import DIALECTS, default_ports
from wirelake.errors import ConfigError, EngineError, WirelakeError
from wirelake.wire import COMPILED

#: Pairs of dialects that are measured beside each one alone.
PAIRS = (("boson-text", "kobold-3"), ("kobold-3", "boson-text"), ("mfp-1", "tmq-1.01"))
TOPICS = 1000
FSYNC_SECONDS = 0.5
ASKING = "request/reply"


class Key(NamedTuple):
    """What is measured, and of whom."""

    shape: str
    name: str


@dataclass(frozen=True)
class Task:
    """One measurement of one server, which every round repeats."""

    key: Key
    run: Callable[[float], list[float]]


@dataclass
class Results:
    """The figures of every round: rates, or for requests their median and 99th percentile."""

    figures: dict[Key, list[list[float]]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)

    def medians(self) -> dict[Key, list[float]]:
        """The figures that count."""
        return {
            key: [statistics.median(each) for each in zip(*rounds, strict=True)]
            for key, rounds in self.figures.items()
        }


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
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Of which the medians count.")] = 3,
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
    alone: Annotated[
        bool, typer.Option("--alone", help="Measure no other servers beside it.")
    ] = False,
    data: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder whose disk is tried, by fdatasync.")
    ] = Path(),
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all figures; - is stdout.")
    ] = None,
) -> None:
    """Measure the broker beside nats-server and, where installed, Redis and Mosquitto.

    One publisher writes prepared frames in large blocks; subscribers, each a process, count bytes;
    requests go one at a time. Rates are of messages published. Nothing is kept on disk.

    Examples:

        wirelake bench --quick

        wirelake bench --dialect kobold-3 --payload 1000 --json figures.json

        wirelake bench --url auto://broker.example:7700 --seconds 5
    """
    if unknown := set(dialect or []) - set(DIALECTS):
        known = ", ".join(DIALECTS)
        raise typer.BadParameter(f"{unknown.pop()} is none of {known}", param_hint="--dialect")
    if quick:
        seconds, rounds = min(seconds, 0.3), 1
    people = wide_console(stderr=as_json == Path("-"))
    end_by_signals()
    try:
        with ExitStack() as stack:
            machine = describe(data)
            if url is None:
                port, _ = stack.enter_context(own_broker())
                places = _places(f"auto://{HOST}:{port}", dialect, token)
            else:
                places = _places(url, dialect, token)
            peers: list[Driver] = []
            for note in start_peers(stack, peers, places[0], alone=alone):
                people.print(note)
            tasks = list(plan([Wirelake(place) for place in places], peers, payload))
            results = measure(tasks, rounds, seconds)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except WirelakeError as error:
        typer.echo(f"wirelake: {error}", err=True)
        raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILED) from None
    _show(people, results, machine, payload)
    if as_json:
        report = _report(results, machine, payload, seconds)
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        _write(as_json, text)
    if results.failures:
        raise typer.Exit(FAILED)


def _places(url: str, dialects: list[str] | None, token: str) -> list[Place]:
    """The dialects that are to be measured there: those asked for, or all that the URL stands for.

    The scheme of a listener, `auto` or a family, stands for all dialects that it understands.
    """
    scheme, slashes, rest = url.partition("://")
    name, plus, over = scheme.partition("+")
    if name not in default_ports():
        place = parse(url, token=token)
        if dialects and dialects != [place.dialect]:
            raise ConfigError("url", f"{place} is {place.dialect}; auto:// can be all of them")
        return [place]
    known = [one for one in DIALECTS if name in ("auto", one.partition("-")[0])]
    wanted = [one for one in known if not dialects or one in dialects]
    if not wanted:
        raise ConfigError("url", f"{url} does not speak {', '.join(dialects or [])}")
    places = [parse(f"{one}{plus}{over}{slashes}{rest}", token=token) for one in wanted]
    if name == "auto" and not places[0].path and not rest.rstrip("/").rpartition(":")[2].isdigit():
        raise ConfigError("url", f"{url}: say the port, which is 7700 as a rule")
    return places


def start_peers(
    stack: ExitStack, peers: list[Driver], place: Place, *, alone: bool
) -> Iterator[str]:
    """Start the other servers that are here, and say which are not."""
    if alone:
        return
    if not place.path and place.host not in (HOST, "localhost", "::1"):
        yield f"{place.host} is another machine: no servers are measured beside it"
        return
    for kind in PEERS:
        if kind.binary() is None:
            yield f"{kind.program} is not installed, and left out ({kind.hint})"
            continue
        peer = kind(free_port())
        stack.enter_context(peer.running())
        peers.append(peer)


def plan(ours: list[Wirelake], peers: list[Driver], size: int) -> Iterator[Task]:
    """What a round measures, in its order."""
    for shape, subscribers, topics in (("1 → 1", 1, 1), ("1 → 4", 4, 1), ("topics", 1, TOPICS)):
        label = f"{topics} topics" if topics > 1 else shape
        pairs: list[tuple[Driver, Driver]] = [(one, one) for one in (*peers, *ours)]
        if shape == "1 → 1":
            by_name = {one.name: one for one in ours}
            pairs += [(by_name[a], by_name[b]) for a, b in PAIRS if {a, b} <= by_name.keys()]
        for source, target in pairs:
            if size > min(source.most, target.most) or (topics > 1 and not source.has_topics):
                continue
            name = source.name if source is target else f"{source.name} → {target.name}"
            yield Task(
                Key(label, name), _publishing(source, target, Load(topics, size), subscribers)
            )
    serving = [one for one in ours if one.has_services]
    askers: list[tuple[Asker, Asker]] = [(one, one) for one in peers if isinstance(one, Asker)]
    for one in ours:
        if one.has_services:
            askers.append((one, one))
        elif one.has_requests and serving:
            askers.append((one, serving[-1]))
    for asker, service in askers:
        name = asker.name if asker is service else f"{asker.name} → {service.name}"
        yield Task(Key(ASKING, name), _asking(asker, service, Load(1, size)))


def _publishing(
    source: Driver, target: Driver, load: Load, subscribers: int
) -> Callable[[float], list[float]]:
    return lambda seconds: [publish_rate(source, target, load, subscribers, seconds)]


def _asking(asker: Asker, service: Asker, load: Load) -> Callable[[float], list[float]]:
    def run(seconds: float) -> list[float]:
        taken = round_trips(asker, service, load, seconds)
        return [statistics.median(taken), statistics.quantiles(taken, n=100)[98]]

    return run


def measure(tasks: list[Task], rounds: int, seconds: float) -> Results:
    """Go round; who fails once is left out from then on."""
    results = Results()
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
        for turn in range(rounds):
            for task in tasks:
                label = f"round {turn + 1}: {task.key.shape}, {task.key.name}"
                progress.update(bar, description=label, refresh=True)
                if task.key not in results.failures:
                    try:
                        results.figures.setdefault(task.key, []).append(task.run(seconds))
                    except (WirelakeError, OSError) as error:
                        results.failures[task.key] = str(error)
                        del results.figures[task.key]
                progress.update(bar, advance=1, refresh=True)
    return results


def describe(folder: Path) -> dict[str, Any]:
    """The machine, and what its disk can do."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - no file of ours
        for line in lines:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "wirelake": wirelake.__version__,
        "kernels": "compiled" if COMPILED else "plain",
        "fsyncs_a_second": fsync_rate(folder),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def fsync_rate(folder: Path) -> float:
    """How often a second 4 KiB can be appended to a file there, and be safe."""
    block = bytes(4096)
    count = 0
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            start = time.monotonic()
            while (took := time.monotonic() - start) < FSYNC_SECONDS:
                os.write(file.fileno(), block)
                os.fdatasync(file.fileno())
                count += 1
    except OSError as error:
        raise EngineError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
    return count / took


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
    for title in ("msg/s", "MB/s", "p50 µs", "p99 µs", "of NATS"):
        table.add_column(title, justify="right")
    last = ""
    for (shape, name), figures in medians.items():
        if last not in ("", shape):
            table.add_section()
        ratios = _ratios(medians, Key(shape, name))
        shown = " ".join(f"{ratio:.2f}" for ratio in ratios)
        if shape == ASKING:
            middle, tail = figures
            table.add_row(shape, name, "", "", f"{middle:.0f}", f"{tail:.0f}", shown)
        else:
            (rate,) = figures
            table.add_row(shape, name, f"{rate:,.0f}", f"{rate * size / 1e6:,.0f}", "", "", shown)
        last = shape
    console.print(table)
    for (shape, name), reason in results.failures.items():
        typer.echo(f"wirelake: {shape}, {name}: {reason}", err=True)


def _ratios(medians: dict[Key, list[float]], key: Key) -> list[float]:
    """The figures in those of nats-server, where it took part."""
    base = medians.get(Key(key.shape, Nats.program), [])
    return [ours / theirs for ours, theirs in zip(medians[key], base, strict=False)]


def _report(results: Results, machine: dict[str, Any], size: int, seconds: float) -> dict[str, Any]:
    medians = results.medians()
    measured = []
    for key, figures in medians.items():
        names = ["p50_us", "p99_us"] if key.shape == ASKING else ["messages_a_second"]
        ratios = _ratios(medians, key)
        measured.append(
            {
                **key._asdict(),
                **dict(zip(names, figures, strict=True)),
                "of_nats_server": dict(zip(names, ratios, strict=False)),
                "rounds": results.figures[key],
            }
        )
    failed = [{**key._asdict(), "reason": reason} for key, reason in results.failures.items()]
    return {
        "machine": machine,
        "payload": size,
        "seconds": seconds,
        "measured": measured,
        "failed": failed,
    }


def _write(file: Path, text: str) -> None:
    if file == Path("-"):
        sys.stdout.write(text)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        typer.echo(f"wirelake: {file}: {error.strerror}", err=True)
        raise typer.Exit(FAILED) from None
