"""How all commands are parsed: the URL that may be left out, flags in the help, errors as JSON.

`URL` is the first argument of most commands. Where the first word has no `://`, it is no URL, and
the broker is the one that the environment or a saved context names (`client/contexts.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from wirelake.cli.work import USAGE, errors_as_json, fail
from wirelake.client.finding import is_url, without_scheme

F = TypeVar("F", bound=Callable[..., Any])

#: The name of the argument that may be left out.
URL = "url"


class Command(TyperCommand):
    """A command whose URL may be left out, and whose flags have no type in the help."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        params = _without_types(super().get_params(ctx))
        for one in params:
            if one.name == URL and one.param_type_name == "argument":
                one.required = False  # in the help; `parse_args` always has one
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; a URL that is not there is an empty one."""
        first = next((one for one in self.params if one.param_type_name == "argument"), None)
        if first is not None and first.name == URL and not ctx.resilient_parsing:
            given = self.make_parser(ctx).parse_args(args=list(args))[0].get(URL)
            given = given if isinstance(given, str) else None
            if not is_url(given):
                place = (given or "").rpartition("@")[2]  # what stands before it may be a token
                if meant := without_scheme(place):
                    fail(f"{place} has no scheme: say {meant}", USAGE, "config")
                args = ["", *args]
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters."""
        return _without_types(super().get_params(ctx))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; with `--json` its errors are JSON, those of its arguments too."""
        given = list(sys.argv[1:] if args is None else args)
        wants_json = "--json" in (given[: given.index("--")] if "--" in given else given)
        with errors_as_json(wants_json):
            run = partial(super().main, args, prog_name, complete_var, **extra)
            if not wants_json or not standalone_mode:
                return run(standalone_mode=standalone_mode)
            try:
                code = run(standalone_mode=False)
            except typer.TyperException as error:
                try:
                    fail(error.format_message(), error.exit_code, "usage")
                except typer.Exit as end:
                    code = end.exit_code
            sys.exit(code if isinstance(code, int) else 0)


class Listing(Group):
    """A group of commands in which `ls` is meant where none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments."""
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["ls", *args]
        return super().parse_args(ctx, args)


class Family(typer.Typer):
    """An app whose commands are `Command`s: `wirelake queue …`."""

    def __init__(self, help: str = "", cls: type[Group] = Group, **settings: Any) -> None:
        super().__init__(cls=cls, help=help, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """Register a command."""
        return super().command(name, cls=Command, **settings)


def _without_types(params: list[Any]) -> list[Any]:
    for one in params:
        if getattr(one, "is_bool_flag", False):
            one.metavar = ""
    return params
