"""`wirelake serve`: the broker, until it is told to stop."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer

from wirelake.cli.options import STDIN, Insecure, Listen
from wirelake.cli.show import write_object
from wirelake.cli.work import fail
from wirelake.config import Settings, read_settings
from wirelake.dialects import DIALECTS
from wirelake.errors import ConfigError, WirelakeError
from wirelake.live import serving

Level = Literal["debug", "info", "warning", "error"]


def serve(
    listen: Listen = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The settings, in TOML; - is stdin.")
    ] = None,
    dialect: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Speak the dialect that this file describes, too. Repeatable."
        ),
    ] = None,
    insecure: Insecure = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to keep what must survive; one broker at a time. Without it, `data`.",
        ),
    ] = None,
    memory: Annotated[
        bool,
        typer.Option("--memory", help="Keep everything in memory; nothing survives a restart."),
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where HTTP listens; port 0 is any free one. https://HOST:PORT for TLS.",
        ),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="No HTTP at all.")] = False,
    no_capture: Annotated[
        bool, typer.Option("--no-capture", help="Keep no log of what passes through.")
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            metavar="NATS,…",
            help="Be a node of the cluster on these NATS servers, nats://HOST:PORT each.",
        ),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="This node's name. Without it, the host's."),
    ] = None,
    monitors: Annotated[
        str | None,
        typer.Option(
            metavar="URL,…",
            help="Their monitoring pages, http://HOST:PORT each, to check that they sync writes.",
        ),
    ] = None,
    log_level: Annotated[Level, typer.Option(help="What to log on standard error.")] = "info",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a listener; errors, too.")
    ] = False,
) -> None:
    """Run the broker.

    A URL is a family (`boson`, `kobold`, `tmq`, `mfp`, or `auto` for any of them), then a host and
    a port, or with `+unix` a path. `+tls` takes certificate and key from the settings.

    SIGTERM and SIGINT stop it after flushing pending output; a second one stops it at once. SIGHUP
    reloads tokens, limits, flow and certificates; listeners stay as they are.

    Examples:

        wirelake serve

        wirelake serve --listen auto://127.0.0.1:0 --memory --no-http

        wirelake serve --config wirelake.toml --data /var/lib/wirelake

        wirelake serve --dialect meter.toml --listen meter://127.0.0.1:7790

        wirelake serve --cluster nats://a:4222,nats://b:4222,nats://c:4222 --node one

        wirelake serve --listen kobold+tls://0.0.0.0:7702 --listen kobold+unix:///run/kobold.sock
    """
    logging.basicConfig(
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )

    from_stdin = config == Path(STDIN)

    def read() -> Settings:
        for file in dialect or []:
            DIALECTS.describe(file)
        settings = (
            read_settings(Path("/dev/stdin") if from_stdin else config) if config else Settings()
        )
        if listen:
            settings = msgspec.structs.replace(settings, listen=tuple(listen))
        if insecure:
            settings = msgspec.structs.replace(settings, insecure=True)
        if data is not None:
            settings = msgspec.structs.replace(settings, data=str(data))
        if http is not None or no_http:
            settings = msgspec.structs.replace(settings, http="" if no_http else http)
        if no_capture:
            capture = msgspec.structs.replace(settings.capture, enabled=False)
            settings = msgspec.structs.replace(settings, capture=capture)
        if not (cluster is None and node is None and monitors is None):
            given = settings.cluster
            if cluster is not None:
                given = msgspec.structs.replace(given, servers=tuple(cluster.split(",")))
            if node is not None:
                given = msgspec.structs.replace(given, node=node)
            if monitors is not None:
                given = msgspec.structs.replace(given, monitors=tuple(monitors.split(",")))
            settings = msgspec.structs.replace(settings, cluster=given)
        return settings

    def show(line: str) -> None:
        if as_json:
            first, _, rest = line.removeprefix("listening on ").partition(" of the cluster ")
            node_line: dict[str, object] = {"node": first.removeprefix("node "), "cluster": rest}
            write_object(node_line if rest else {"listening": first})
        else:
            typer.echo(line)

    again = read if config and not from_stdin else None
    try:
        serving.serve(read(), memory=memory, read=again, show=show)
    except WirelakeError as error:
        fail(str(error), error="config" if isinstance(error, ConfigError) else "failed")
