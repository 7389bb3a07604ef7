"""The command line: arguments in, text out. Nothing else happens here."""

from __future__ import annotations

from typing import Annotated

import typer

import wirelake
from wirelake.cli import (
    bench,
    chat,
    config,
    demo,
    inspect,
    kv,
    lake,
    messages,
    queue,
    serve,
    stream,
    token,
    up,
)
from wirelake.wire import COMPILED

app = typer.Typer(
    help="Wirelake: messages on the wire, tables in the lake.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("up")(up.up)
app.command("serve")(serve.serve)
app.command("config")(config.config)
app.command("token")(token.token)
app.command("pub")(messages.pub)
app.command("sub")(messages.sub)
app.command("request")(messages.request)
app.command("reply")(messages.reply)
app.command("inspect")(inspect.inspect)
app.command("bench")(bench.bench)
app.add_typer(queue.app, name="queue")
app.add_typer(kv.app, name="kv")
app.add_typer(stream.app, name="stream")
app.add_typer(lake.app, name="lake")
app.command("chat")(chat.chat)
app.command("demo")(demo.demo)


def _version(wanted: bool) -> None:
    if wanted:
        kernels = "compiled" if COMPILED else "plain"
        typer.echo(f"wirelake {wirelake.__version__} ({kernels} kernels)")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Wirelake: messages on the wire, tables in the lake."""


def main() -> None:
    """The console script."""
    app()
