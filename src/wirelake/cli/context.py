"""`wirelake context`: brokers saved under names, so that commands need no URL and no token."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.markup import escape

from wirelake.cli.options import STDIN, AsJson
from wirelake.cli.parsing import Family
from wirelake.cli.show import plain_table, wide_console, write_line, write_object
from wirelake.cli.work import USAGE, errors_in_one_line, fail
from wirelake.client.contexts import Context, changing, file_path, load
from wirelake.client.finding import HTTP, is_url, without_scheme
from wirelake.client.http import HttpClient
from wirelake.client.url import parse

Name = Annotated[str, typer.Argument(metavar="NAME")]

app = Family(help="Brokers saved under names: URL and token.")


@app.command()
def add(
    name: Name,
    broker: Annotated[str, typer.Argument(metavar="URL", help="Of a listener, or of HTTP.")],
    http: Annotated[
        str, typer.Option(metavar="URL", help="Its HTTP, if the listener cannot report it.")
    ] = "",
    token: Annotated[
        str, typer.Option(help="The token to show there; - reads it from stdin.")
    ] = "",
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
    as_json: AsJson = False,
) -> None:
    """Save a broker under a name; the first one is used from now on.

    It is written to a file that only you may read, token included.

    Examples:

        wirelake context add home kobold-3://localhost

        wirelake context add prod kobold-3+tls://broker.example --token - --use < token.txt
    """
    if token == STDIN:
        token = sys.stdin.readline().strip()
    with errors_in_one_line():
        for option, given in (("URL", broker), ("--http", http)):
            if given and not is_url(given):
                place = given.rpartition("@")[2]  # what stands before it may be a token
                meant = without_scheme(place) or f"kobold-3://{place}"
                fail(f"{option}: {place} has no scheme: say {meant}", USAGE, "config")
        if http:
            HttpClient(http)
        if not broker.startswith(HTTP):
            parse(broker, token=token)
        with changing() as saved:
            saved.add(name, Context(broker, http, token))
            if use:
                saved.current = name
    _tell(name, saved.current == name, as_json=as_json)


@app.command("ls")
def list_contexts(as_json: AsJson = False) -> None:
    """Show the saved brokers; a star marks the one in use. Tokens are not shown.

    Examples:

        wirelake context ls

        wirelake context ls --json | jq -r .url
    """
    with errors_in_one_line():
        saved = load()
    table = plain_table()
    for title in ("", "name", "url", "http", "token"):
        table.add_column(title, overflow="fold")
    for name, one in sorted(saved.contexts.items()):
        is_used, url = name == saved.current, _without_secret(one.url)
        if as_json:
            told = {"name": name, "url": url, "http": one.http}
            write_object({**told, "token": bool(one.token), "used": is_used})
        has_token = "yes" if one.token else ""
        table.add_row("*" if is_used else "", name, escape(url), escape(one.http), has_token)
    if not as_json:
        wide_console().print(table)


@app.command()
def use(name: Name, as_json: AsJson = False) -> None:
    """Use a saved broker from now on, where a command has no URL.

    `WIRELAKE_URL`, `WIRELAKE_CONTEXT` and `wirelake --context NAME` go before it.

    Examples:

        wirelake context use prod
    """
    with errors_in_one_line(), changing() as saved:
        saved.named(name)
        saved.current = name
    _tell(name, True, as_json=as_json)


@app.command("rm")
def remove(name: Name, as_json: AsJson = False) -> None:
    """Forget a saved broker, and its token.

    Examples:

        wirelake context rm prod
    """
    with errors_in_one_line(), changing() as saved:
        saved.remove(name)
    if as_json:
        write_object({"removed": name})


def _tell(name: str, is_used: bool, *, as_json: bool) -> None:
    if as_json:
        write_object({"name": name, "used": is_used, "file": str(file_path())})
    else:
        write_line(f"{name} is {'in use' if is_used else 'saved'}")


def _without_secret(url: str) -> str:
    """A URL without the token that may be in it."""
    scheme, colon, rest = url.partition("://")
    who, at, place = rest.rpartition("@")
    return f"{scheme}{colon}{who.partition(':')[0]}{at}{place}"
