"""The command line: it parses arguments and prints.

A command's module is imported when the command is called, so no command waits for what others need.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.main import get_group

import wirelake
from wirelake.cli.options import CONTEXT
from wirelake.cli.parsing import Family, Group
from wirelake.wire import COMPILED

#: The commands in the order of the help, and the modules that have them.
COMMANDS = {
    "up": "up",
    "serve": "serve",
    "cluster": "cluster",
    "config": "config",
    "token": "token",
    "context": "context",
    "pub": "messages",
    "sub": "messages",
    "request": "messages",
    "reply": "messages",
    "inspect": "inspect",
    "dialect": "dialect",
    "bench": "bench",
    "chat": "chat",
    "demo": "demo",
    "top": "watching",
    "health": "watching",
    "connections": "connections",
    "events": "watching",
    "queue": "queue",
    "kv": "kv",
    "stream": "stream",
    "lake": "lake",
    "service": "service",
}
MARKUP: Final = "markdown"


class Commands(Mapping[str, Any]):
    """Commands by name, in the form of Typer."""

    def __getitem__(self, name: str) -> Any:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _load(name: str) -> Any:
    """Load a command: the function of that name in its module, or the module's app."""
    module = import_module(f"wirelake.cli.{COMMANDS[name]}")
    alone = Family(rich_markup_mode=MARKUP)
    if hasattr(module, "app"):
        alone.add_typer(module.app, name=name)
    else:
        alone.command(name)(getattr(module, name))
    return get_group(alone).commands[name]


class All(Group):
    """All commands, each loaded when it is needed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = Commands()  # type: ignore[assignment]  # nothing is added to it

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; none at all start a broker, so that `uvx wirelake` does."""
        if not args and not ctx.resilient_parsing:
            typer.echo("starting a broker (`wirelake serve`); all commands: wirelake -h", err=True)
            args = ["serve"]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=All,
    help="Wirelake: messages on the wire, tables in the lake.",
    pretty_exceptions_enable=False,
    rich_markup_mode=MARKUP,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        kernels = "compiled" if COMPILED else "plain"
        typer.echo(f"wirelake {wirelake.__version__} ({kernels} kernels)")
        raise typer.Exit


@app.callback()
def options(
    ctx: typer.Context,
    context: Annotated[
        str, typer.Option(metavar="NAME", help="The saved broker to use: see `wirelake context`.")
    ] = "",
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit."),
    ] = False,
) -> None:
    """Wirelake: messages on the wire, tables in the lake."""
    ctx.meta[CONTEXT] = context


def main() -> None:
    """The console script."""
    app()
