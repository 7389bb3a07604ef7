"""`wirelake cluster …`: the nodes of a cluster, and who owns which partition."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer

from wirelake.cli.options import AsJson, Patience
from wirelake.cli.parsing import Family
from wirelake.cli.show import plain_table, wide_console, write_object
from wirelake.cli.work import run
from wirelake.config import ClusterSettings, Settings, read_settings
from wirelake.errors import ConfigError

T = TypeVar("T")

#: Seconds between two lines of progress.
PROGRESS = 1.0

app = Family(help="The nodes of a cluster, and who owns which partition.")

Servers = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar="WIRELAKE_CLUSTER",
        metavar="NATS,…",
        help="The NATS servers of the cluster, nats://HOST:PORT each.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The settings of a node: servers, prefix, how to log in."),
]
Prefix = Annotated[str, typer.Option(help="The prefix of the cluster. [default: WL]")]


def _settings(servers: str, config: Path | None, prefix: str) -> Settings:
    settings = read_settings(config) if config is not None else Settings()
    given: ClusterSettings = settings.cluster
    if servers:
        given = msgspec.structs.replace(given, servers=tuple(servers.split(",")))
    if prefix:
        given = msgspec.structs.replace(given, prefix=prefix)
    if not given.servers:
        raise ConfigError("cluster.servers", "say where NATS is: --cluster or --config")
    return msgspec.structs.replace(settings, cluster=given)


async def _with_operator(
    servers: str, config: Path | None, prefix: str, work: Callable[[Any], Awaitable[T]]
) -> T:
    """Connect to the cluster, do something, and disconnect."""
    settings = _settings(servers, config, prefix)
    try:
        from wirelake.cluster.node import connect
        from wirelake.cluster.operator import Operator
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install 'wirelake[nats]'"
        raise ConfigError("cluster", text) from None
    bus = await connect(settings, f"operator-{secrets.token_hex(4)}")
    try:
        return await work(Operator(bus))
    finally:
        await bus.close()


@app.command()
def status(
    cluster: Servers = "",
    config: Config = None,
    prefix: Prefix = "",
    as_json: AsJson = False,
) -> None:
    """Show the nodes, the partitions that each serves and follows, and their links.

    It listens to heartbeats for 1.5 seconds.

    Examples:

        wirelake cluster status --cluster nats://a:4222,nats://b:4222

        wirelake cluster status --config wirelake.toml --json
    """
    found = run(_with_operator(cluster, config, prefix, lambda operator: operator.status()))
    if as_json:
        write_object(found)
        return
    table = plain_table()
    for name in ("node", "serves", "follows (lag)", "links", "version", "state"):
        table.add_column(name)
    for node in found["nodes"]:
        links = [one for one in node["links"] if one["role"] == "edge"]
        states = [word for word in ("draining", "deaf", "silent") if node.get(word)]
        table.add_row(
            node["node"],
            " ".join(map(str, node["owned"])) or "-",
            " ".join(f"{one} ({lag})" for one, lag in node["standby"].items()) or "-",
            f"{sum(one['open'] for one in links)} of {len(links)}",
            node["version"],
            ", ".join(states) or "ok",
        )
    console = wide_console()
    console.print(table)
    unserved = [str(one["partition"]) for one in found["partitions"] if not one["served"]]
    if unserved:
        console.print(f"partitions that nobody serves: {' '.join(unserved)}")
    if not found["same_settings"]:
        console.print("tokens or limits differ between nodes")
    for weak in sorted({str(node["weak"]) for node in found["nodes"] if node.get("weak")}):
        console.print(f"the streams are weak: {weak}")


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE")],
    off: Annotated[bool, typer.Option("--off", help="Let it take partitions again.")] = False,
    cluster: Servers = "",
    config: Config = None,
    prefix: Prefix = "",
    timeout: Patience = 30.0,
    as_json: AsJson = False,
) -> None:
    """Let a node hand all its partitions over to others, and take no new ones.

    Its clients stay connected. The command returns when the node serves no partition any more.

    Examples:

        wirelake cluster drain two --cluster nats://a:4222

        wirelake cluster drain two --off --config wirelake.toml
    """

    def work(operator: Any) -> Any:
        return operator.drain(node, on=not off, timeout=timeout)

    run(_with_operator(cluster, config, prefix, work))
    if as_json:
        write_object({"node": node, "draining": not off})
    else:
        typer.echo(f"{node} takes partitions again" if off else f"{node} serves no partition")


@app.command()
def move(
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    node: Annotated[str, typer.Argument(metavar="NODE")],
    cluster: Servers = "",
    config: Config = None,
    prefix: Prefix = "",
    timeout: Patience = 30.0,
    as_json: AsJson = False,
) -> None:
    """Give a partition to a node, which keeps it while it is alive.

    Examples:

        wirelake cluster move 3 two --cluster nats://a:4222
    """

    def work(operator: Any) -> Any:
        return operator.move(partition, node, timeout)

    run(_with_operator(cluster, config, prefix, work))
    if as_json:
        write_object({"partition": partition, "node": node})
    else:
        typer.echo(f"{node} serves partition {partition}")


@app.command("import")
def import_log(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of a broker that does not run.")],
    cluster: Servers = "",
    config: Config = None,
    prefix: Prefix = "",
    partitions: Annotated[
        int, typer.Option(min=0, max=1024, help="Of the new cluster. [default: 16]")
    ] = 0,
    replicas: Annotated[
        int, typer.Option(min=0, max=5, help="Servers that keep each stream. [default: 3]")
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Write the log of a single broker, its queues and its keys into a new cluster.

    The broker is stopped, and no node of the cluster runs yet. A cluster that has rows, queues or
    keys is refused. It is a new log: offsets are others, and queries start anew, by timestamp. What
    DIR holds stays there; it needs as much space again while the command runs.

    Examples:

        wirelake cluster import /var/lib/wirelake --cluster nats://a:4222,nats://b:4222

        wirelake cluster import data --config wirelake.toml --json
    """

    async def work() -> Any:
        settings = _settings(cluster, config, prefix)
        given = settings.cluster
        given = msgspec.structs.replace(
            given,
            partitions=partitions or given.partitions,
            replicas=replicas or given.replicas,
        )
        settings = msgspec.structs.replace(settings, cluster=given)
        try:
            from wirelake.cluster.importing import import_directory
        except ModuleNotFoundError as error:
            text = f"{error.name} is not installed: pip install 'wirelake[nats]'"
            raise ConfigError("cluster", text) from None
        return await import_directory(settings, folder, show)

    told = time.monotonic()

    def show(done: Any) -> None:
        nonlocal told
        if time.monotonic() - told < PROGRESS:
            return
        told = time.monotonic()
        if as_json:
            write_object({"event": "progress", **done.as_object()})
        else:
            text = f"{done.rows:,} of {done.of_rows:,} rows, {done.messages:,} messages of queues"
            print(f"wirelake: {text}, {done.keys:,} keys", file=sys.stderr)

    done = run(work())
    if as_json:
        write_object({"event": "done", **done.as_object()})
        return
    typer.echo(
        f"{done.rows:,} rows, {done.queues:,} queues with {done.messages:,} messages and"
        f" {done.keys:,} keys are in the cluster, in {done.partitions} partitions"
    )
    if done.left_out:
        typer.echo(f"{done.left_out:,} queues and keys of the broker's own were left out")
    if done.damaged:
        typer.echo(f"{done.damaged:,} batches or messages could not be read: see {folder}")
