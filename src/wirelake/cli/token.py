"""`wirelake token`: a new token, and what to write into the configuration for it."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from wirelake.address import check_filter
from wirelake.cli.show import write_object
from wirelake.config import hash_token, new_token
from wirelake.errors import RefusedError

MAX_NAME = 64

Filters = list[str] | None


def _filters(help: str) -> Any:
    """The option of a right: filters, one for each time it is given."""
    return typer.Option(metavar="FILTER", help=help)


def token(
    name: Annotated[str, typer.Argument(help="Whose it is; also the name in a certificate.")],
    publish: Annotated[Filters, _filters("May publish and send requests to these.")] = None,
    subscribe: Annotated[Filters, _filters("May subscribe to these.")] = None,
    serve: Annotated[Filters, _filters("May answer requests to these.")] = None,
    store: Annotated[Filters, _filters("May read and write these keys.")] = None,
    declare: Annotated[Filters, _filters("May make queues of these addresses.")] = None,
    clients: Annotated[Filters, _filters("May claim these client ids only.")] = None,
    admin: Annotated[bool, typer.Option("--admin", help="May administer the broker.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One object with the token, its hash and its rights.")
    ] = False,
) -> None:
    """Make a token, and print it with the lines for the configuration file.

    The token is shown this once; the file holds only its hash. It is 20 letters and digits, short
    enough for mfp, whose clients say `name:token` within 32 characters (a name of 4 to 11).

    Examples:

        wirelake token sensors --publish 'house/+/temp'

        wirelake token dashboard --subscribe '#' >> wirelake.toml

        wirelake token workers --publish 'jobs/#' --subscribe 'jobs/#' --declare 'jobs/#'

        wirelake token operator --publish '#' --subscribe '#' --admin
    """
    if not name.isprintable() or not 1 <= len(name) <= MAX_NAME:
        raise typer.BadParameter(
            f"a name has 1 to {MAX_NAME} printable characters", param_hint="NAME"
        )
    kinds = {
        "publish": publish,
        "subscribe": subscribe,
        "serve": serve,
        "store": store,
        "declare": declare,
        "clients": clients,
    }
    rights = {kind: filters for kind, filters in kinds.items() if filters}
    for kind, filters in rights.items():
        _check(kind, filters)
    secret = new_token()
    described: dict[str, object] = {"name": name, "hash": hash_token(secret), **rights}
    if admin:
        described["admin"] = True
    if as_json:
        write_object({"token": secret, **described})
        return
    # Strings, lists of strings and booleans are in TOML as in JSON.
    lines = ["[[tokens]]", *(f"{key} = {_quoted(value)}" for key, value in described.items())]
    # The token to the terminal, the lines to wherever standard output goes.
    typer.echo(f"token: {secret}", err=True)
    typer.echo("\n".join(lines))


def _check(kind: str, filters: list[str]) -> None:
    for one in filters:
        try:
            check_filter(one)
        except RefusedError as error:
            raise typer.BadParameter(error.text, param_hint=f"--{kind}") from None


def _quoted(value: object) -> str:
    """A value in TOML, which for printable text is as JSON has it."""
    return json.dumps(value, ensure_ascii=False)
