"""`wirelake connections`: who is connected to a broker, and closing a connection, over HTTP."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.filesize import decimal
from rich.markup import escape

from wirelake.cli.options import AsJson, HttpUrl, Patience, Token
from wirelake.cli.parsing import Family, Listing
from wirelake.cli.show import plain_table, wide_console, write_line, write_object
from wirelake.cli.work import asked
from wirelake.client.http import HttpClient
from wirelake.message import printable

app = Family(help="The connections of a broker; without a command, a list.", cls=Listing)


@app.command("ls")
def list_connections(
    url: HttpUrl,
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    token: Token = "",
) -> None:
    """Show who is connected: number, client id, dialect, where from, what was received and sent.

    Where tokens are configured, it needs one with `admin`.

    Examples:

        wirelake connections

        wirelake connections ls http://localhost:7780 --json | jq 'select(.bytes_waiting > 0)'
    """
    found = asked(url, token, timeout, lambda http: http.get("/v1/connections"))["connections"]
    if as_json:
        for one in found:
            write_object(one)
        return
    table = plain_table()
    for name in ("number", "client", "dialect", "from", "token", "subscriptions"):
        table.add_column(name, overflow="fold")
    for name in ("received", "delivered", "waiting", "age"):
        table.add_column(name, justify="right")
    for one in found:
        names = (one["id"], one["dialect"], one["peer"], one["rights"])
        filters = " ".join(one["subscriptions"])
        table.add_row(
            str(one["number"]),
            *(escape(printable(str(text))) for text in (*names, filters)),
            f"{one['received']:,}",
            f"{one['delivered']:,}",
            decimal(int(one["bytes_waiting"])),
            _age(one["age"]),
        )
    wide_console().print(table)


@app.command()
def close(
    url: HttpUrl,
    numbers: Annotated[
        list[int],
        typer.Argument(
            metavar="NUMBER...", min=0, help="Numbers of connections, as `ls` shows them."
        ),
    ],
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    token: Token = "",
) -> None:
    """Close connections; what was written to them goes out first.

    A client that reconnects by itself comes back: take its token away to keep it out.

    Examples:

        wirelake connections close 17

        wirelake connections close http://localhost:7780 17 18
    """

    def end(http: HttpClient) -> None:
        for number in numbers:
            http.ask("DELETE", f"/v1/connections/{number}")
            if as_json:
                write_object({"closed": number})
            else:
                write_line(f"connection {number} is closed")

    asked(url, token, timeout, end)


def _age(seconds: float) -> str:
    """A time as people say it: 42s, 12m, 3h, 5d."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
