"""`wirelake queue peek`, `purge`, `move`, `make` and `rm`: what operators do to queues, by HTTP."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.markup import escape

from wirelake.cli.options import AsJson, HttpUrl, Patience, Token
from wirelake.cli.show import (
    as_text,
    as_told,
    payload_of,
    plain_table,
    wide_console,
    write_object,
)
from wirelake.cli.work import asked

Queue = Annotated[str, typer.Argument(metavar="QUEUE")]


def peek(
    url: HttpUrl,
    queue: Queue,
    count: Annotated[int, typer.Option(min=1, max=10_000, help="Maximum number of messages.")] = 10,
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    token: Token = "",
) -> None:
    """Show what comes next in a queue, without taking it.

    Examples:

        wirelake queue peek jobs

        wirelake queue peek kobold-3://localhost jobs --count 100

        wirelake queue peek http://localhost:7780 'jobs/$dead' --json | jq '.headers."dead.reason"'
    """
    found = _ask(url, "GET", queue, "/messages", timeout, token, count=count)["messages"]
    if as_json:
        for message in found:
            write_object(as_told(message))
        return
    table = plain_table()
    for name in ("id", "attempts", "from", "headers", "payload"):
        table.add_column(name, overflow="fold")
    for message in found:
        headers = " ".join(f"{key}={value}" for key, value in message.get("headers", {}).items())
        cells = [message["id"], message["attempts"], message.get("source", ""), headers]
        table.add_row(
            *[escape(as_text(str(one).encode())) for one in cells], as_text(payload_of(message))
        )
    wide_console().print(table)


def purge(
    url: HttpUrl,
    queue: Queue,
    timeout: Patience = 30.0,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Throw away all messages of a queue that nobody holds.

    Examples:

        wirelake queue purge http://localhost:7780 jobs
    """
    done = _ask(url, "POST", queue, "/purge", timeout, token)
    _tell(done, f"{_messages(done['purged'])} thrown away", as_json=as_json)


def move(
    url: HttpUrl,
    queue: Queue,
    to: Annotated[
        str,
        typer.Option(
            metavar="QUEUE", help="The target; without it, dead letters go back to their own queue."
        ),
    ] = "",
    count: Annotated[int, typer.Option(min=1, help="Maximum number of messages.")] = 2**31,
    timeout: Patience = 300.0,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Give messages of a queue to another one: dead letters back to where they came from.

    Examples:

        wirelake queue move http://localhost:7780 'jobs/$dead'

        wirelake queue move http://localhost:7780 jobs --to jobs/later --count 100
    """
    where = {"to": to} if to else {}
    done = _ask(url, "POST", queue, "/move", timeout, token, count=count, **where)
    _tell(done, f"{_messages(done['moved'])} moved to {done['to']}", as_json=as_json)


def make(
    url: HttpUrl,
    queue: Queue,
    mode: Annotated[str | None, typer.Option(help="round-robin, push or pull.")] = None,
    ack_timeout: Annotated[
        float | None, typer.Option(min=0.001, help="Seconds until a message is delivered again.")
    ] = None,
    max_deliveries: Annotated[
        int | None, typer.Option(min=1, help="Deliveries until a message becomes a dead letter.")
    ] = None,
    max_messages: Annotated[
        int | None, typer.Option(min=0, help="Maximum number of messages; 0: no limit.")
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(min=0, help="Maximum bytes, with headers and overhead; 0: no limit."),
    ] = None,
    dedup_window: Annotated[
        float | None, typer.Option(min=0, help="Seconds in which a repeated id is a duplicate.")
    ] = None,
    keep_expired: Annotated[
        bool | None, typer.Option(help="Messages past their ttl become dead letters.")
    ] = None,
    timeout: Patience = 30.0,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Make a queue, or change those settings of one that are given.

    Examples:

        wirelake queue make http://localhost:7780 jobs --ack-timeout 300 --max-messages 10000
    """
    wanted = {
        "mode": mode,
        "ack_timeout": ack_timeout,
        "max_deliveries": max_deliveries,
        "max_messages": max_messages,
        "max_bytes": max_bytes,
        "dedup_window": dedup_window,
        "keep_expired": keep_expired,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    _tell(_ask(url, "PUT", queue, "", timeout, token, body=given), "", as_json=as_json)


def remove(
    url: HttpUrl,
    queue: Queue,
    timeout: Patience = 30.0,
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Remove a queue with all that is in it.

    Examples:

        wirelake queue rm http://localhost:7780 jobs
    """
    _ask(url, "DELETE", queue, "", timeout, token)
    _tell({"removed": queue}, "", as_json=as_json)


def _ask(
    url: str,
    method: str,
    queue: str,
    what: str,
    timeout: float,
    token: str,
    body: object = None,
    **query: object,
) -> Any:
    """Ask the broker about a queue; errors end the process."""
    path = f"/v1/queues/{quote(queue, safe='')}{what}"
    return asked(url, token, timeout, lambda http: http.ask(method, path, body, **query))


def _tell(done: dict[str, object], text: str, *, as_json: bool) -> None:
    """Print what was done: as JSON, or as text if there is any."""
    if as_json:
        write_object(done)
    elif text:
        typer.echo(text)


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"
