"""`wirelake up`: the broker and the pipeline into the lake, as one, with a view of both."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from wirelake.cli.options import STDIN, AsJson, Insecure, Listen, Token
from wirelake.cli.show import write_object
from wirelake.cli.work import USAGE, fail
from wirelake.config import DEFAULT_HOST, Listener, Settings, read_settings
from wirelake.dialects import AUTO, DIALECTS, default_ports
from wirelake.errors import ConfigError, WirelakeError
from wirelake.live.group import PIPELINE, Group
from wirelake.live.landing import missing_for_spark
from wirelake.live.nats import SERVERS, NatsServers
from wirelake.live.nodes import Nodes, Place
from wirelake.measure.broker import free_port

TABLE = "lake"
#: Nodes that are started on one machine, at most; what the ports of each are higher by.
MOST_NODES, NODE_PORTS, MAX_PORT = 9, 100, 65_535


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
    nodes: Annotated[
        int,
        typer.Option(
            min=1,
            max=MOST_NODES,
            metavar="COUNT",
            help="More than 1: a cluster of nodes and three NATS servers, all on this machine.",
        ),
    ] = 1,
    no_lake: Annotated[bool, typer.Option("--no-lake", help="The broker alone.")] = False,
    insecure: Insecure = False,
    every: Annotated[
        float,
        typer.Option(
            min=0.1, metavar="SECONDS", help="Without a terminal: between two lines of figures."
        ),
    ] = 10.0,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Run everything: the broker, HTTP, and the pipeline that lands what passes in DIR/lake.

    On a terminal it shows what is going on; elsewhere it prints lines. What dies is started again.
    Ctrl-C and SIGTERM end all of it; a second one does so at once. Where tokens are configured, the
    figures and the pipeline need an admin's.

    With `--nodes 3` there are three nodes, n1 to n3, for trying a cluster out: one view, one line a
    node. The ports of the second are those of the first plus 100, and so on. All of it is kept in
    DIR/cluster.

    Examples:

        wirelake up

        wirelake up --data /var/lib/wirelake --listen auto://127.0.0.1:7700

        wirelake up --nodes 3

        wirelake up --no-lake | tee up.log
    """
    if config == Path(STDIN):
        fail("--config: up starts its broker again where need be: give a file, not -", USAGE)
    try:
        settings = read_settings(config) if config else Settings()
    except WirelakeError as error:
        fail(str(error))
    if (http or settings.http).startswith("https://"):
        fail("--http: up asks its own broker without TLS; take serve and lake land for this")
    folder = data or Path(settings.data)
    arguments = ["--config", str(config)] if config is not None else []
    arguments += ["--insecure"] if insecure else []
    if nodes > 1:
        folder /= "cluster"
    why_not = "" if no_lake else missing_for_spark()
    table = folder / TABLE
    listeners, http = listen or list(settings.listen), http or settings.http or Settings().http

    def show(line: str, fields: dict[str, object]) -> None:
        if as_json:
            write_object(fields)
        else:
            typer.echo(line)

    group: Group
    if nodes > 1:
        try:
            group = a_cluster(nodes, settings, folder, arguments, listeners, http, token)(
                table=table,
                has_lake=not no_lake and not why_not,
                suggest=lambda places, _: cluster_examples(places),
                show=show,
                is_plain=as_json,
            )
        except WirelakeError as error:
            fail(str(error))
    else:
        group = Group(
            ["--data", str(folder), *arguments],
            listeners,
            http,
            token,
            table=table,
            has_lake=not no_lake and not why_not,
            suggest=lambda places, http: examples(places, http, table),
            show=show,
            is_plain=as_json,
        )
    group.board.lake = why_not or ("off" if no_lake else str(table))
    if why_not:
        group.tell(PIPELINE, f"does not run: {why_not}", is_bad=True)
    try:
        asyncio.run(group.until_told(every))
    except WirelakeError as error:
        fail(str(error))
    text = f"everything has ended; what was kept is in {folder}"
    with suppress(BrokenPipeError):
        if as_json:
            write_object({"event": "ended", "text": text})
        else:
            typer.echo(f"wirelake: {text}")


def a_cluster(
    count: int,
    settings: Settings,
    folder: Path,
    arguments: list[str],
    listen: list[str],
    http: str,
    token: str,
) -> Callable[..., Nodes]:
    """Return a factory of a group of `count` nodes; raises ConfigError or EngineError."""
    if settings.cluster.servers:
        raise ConfigError("cluster.servers", "up --nodes starts NATS servers of its own")
    ports: set[int] = set()
    while len(ports) < 3 * SERVERS:
        ports.add(free_port())
    servers = NatsServers(folder / "nats", sorted(ports))
    nats = ["--cluster", ",".join(servers.urls), "--monitors", ",".join(servers.monitors)]
    places = []
    for k in range(count):
        name = f"n{k + 1}"
        own = ["--data", str(folder / name), *arguments, *nats, "--node", name]
        # As a listener of some family, so that hosts are read as everywhere.
        web = str(shifted(Listener.parse(f"{AUTO}://{http}"), k)).removeprefix(f"{AUTO}://")
        places.append(
            Place(name, own, [str(shifted(Listener.parse(one), k)) for one in listen], web)
        )
    return partial(Nodes, places, servers, token)


def shifted(listener: Listener, node: int) -> Listener:
    """Return where a node listens if the first one listens here; raises ConfigError."""
    if listener.path:
        return replace(listener, path=f"{listener.path}.{node + 1}") if node else listener
    port = listener.port + NODE_PORTS * node if listener.port else 0
    if port > MAX_PORT:
        raise ConfigError("listen", f"{listener}: node n{node + 1} would listen at port {port}")
    return replace(listener, port=port)


def cluster_examples(places: list[str]) -> list[str]:
    """Commands to try next with a cluster: its clients know all nodes."""
    wirelake = shlex.quote(program())
    listeners = [Listener.parse(place) for place in places]

    def at(dialect: str) -> str | None:
        known = DIALECTS.named(dialect)
        family = known.family if known else dialect
        for wanted in (family, AUTO):
            hosts = [
                str(one).partition("://")[2]
                for one in listeners
                if one.family == wanted and not one.tls and not one.path
            ]
            if hosts:
                return f"{dialect}://{','.join(hosts)}"
        return None

    wanted = [("kobold-3", "sub {} 'house/#'"), ("boson-text", "pub {} house/kitchen/temp 21.5")]
    return [
        f"{wirelake} {command.format(shlex.quote(url))}"
        for dialect, command in wanted
        if (url := at(dialect)) is not None
    ]


def examples(places: list[str], http: str, table: Path) -> list[str]:
    """Commands to try next, ready to be pasted."""
    listeners = [Listener.parse(place) for place in places]

    def at(dialect: str) -> str | None:
        known = DIALECTS.named(dialect)
        family = known.family if known else dialect
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
    """The command that runs this program."""
    given = sys.argv[0]
    found = shutil.which("wirelake")
    if Path(given).name != "wirelake" or (found and Path(found).samefile(given)):
        return "wirelake"
    near = os.path.relpath(given)
    return given if near.startswith("..") else near
