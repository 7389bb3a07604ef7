"""`wirelake kv get`, `put`, `del`, `ls` and `watch`: the data store."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from wirelake.cli.options import (
    AsJson,
    ClientId,
    Count,
    File,
    Patience,
    Payload,
    Timeout,
    Token,
    Url,
    payloads,
)
from wirelake.cli.parsing import Family
from wirelake.cli.show import (
    as_text,
    as_text_and_base64,
    plain_table,
    preview,
    wide_console,
    write_line,
    write_object,
    write_payload,
)
from wirelake.cli.work import connected
from wirelake.client import Change, Client, Entry
from wirelake.message import printable

Key = Annotated[str, typer.Argument(metavar="KEY")]
Filter = Annotated[str, typer.Argument(metavar="FILTER", help="`+` is a level, `#` the rest.")]
Revision = Annotated[
    int | None, typer.Option(min=1, help="Only if this is its revision now; 1 is the first.")
]

app = Family(help="The data store: values by keys, with revisions.")
#: What a dialect must be able to do, where the URL is that of HTTP and leaves the choice.
STORE = "data store"


@app.command()
def get(
    url: Url,
    key: Key,
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Show the value of a key; the exit code is 1 where there is none.

    Examples:

        wirelake kv get config/lamp

        wirelake kv get kobold-3://localhost config/lamp --json | jq .revision
    """

    async def read(client: Client) -> Entry:
        return await client.store.read(key)

    entry = connected(url, read, STORE, client_id=client_id, token=token, timeout=timeout)
    if as_json:
        write_object(_as_object(entry))
    else:
        write_payload(entry.value)


@app.command()
def put(
    url: Url,
    key: Key,
    value: Payload = None,
    file: File = None,
    create: Annotated[bool, typer.Option("--create", help="Only if there is none yet.")] = False,
    revision: Revision = None,
    ttl: Annotated[int, typer.Option(min=0, help="Time to live, in ms; 0: it never expires.")] = 0,
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Set the value of a key, and show its new revision.

    Examples:

        wirelake kv put kobold-3://localhost config/lamp on

        wirelake kv put kobold-3://localhost config/lamp off --revision 4

        wirelake kv put boson-binary://localhost config/logo --file logo.png --create
    """
    if create and revision is not None:
        raise typer.BadParameter("what is created has no --revision yet")
    (body,) = payloads(value, file, lines=False)

    async def write(client: Client) -> int:
        if create:
            return await client.store.create(key, body, ttl=ttl)
        if revision is not None:
            return await client.store.update(key, body, revision=revision, ttl=ttl)
        return await client.store.put(key, body, ttl=ttl)

    new = connected(url, write, STORE, client_id=client_id, token=token, timeout=timeout)
    _show_revision(key, new, as_json=as_json)


@app.command("del")
def delete(
    url: Url,
    key: Key,
    revision: Revision = None,
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Delete a key, and show the revision of its end.

    Examples:

        wirelake kv del kobold-3://localhost config/lamp

        wirelake kv del kobold-3://localhost config/lamp --revision 4
    """

    async def remove(client: Client) -> int:
        return await client.store.delete(key, revision=revision)

    end = connected(url, remove, STORE, client_id=client_id, token=token, timeout=timeout)
    _show_revision(key, end, as_json=as_json)


@app.command("ls")
def list_keys(
    url: Url,
    filter: Filter = "#",
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Show keys with their revisions and values.

    Examples:

        wirelake kv ls kobold-3://localhost 'config/#'

        wirelake kv ls boson-binary://localhost --json | jq -r .key
    """

    async def read(client: Client) -> list[Entry]:
        return await client.store.keys(filter)

    entries = connected(url, read, STORE, client_id=client_id, token=token, timeout=timeout)
    if as_json:
        for entry in entries:
            write_object(_as_object(entry))
        return
    table = plain_table()
    table.add_column("key", style="green", overflow="fold")
    table.add_column("revision", justify="right")
    table.add_column("size", justify="right")
    table.add_column("value", overflow="ellipsis", no_wrap=True)
    for entry in entries:
        shown = escape(preview(entry.value))
        size = str(len(entry.value))
        table.add_row(escape(printable(entry.key)), str(entry.revision), size, shown)
    wide_console().print(table)


@app.command()
def watch(
    url: Url,
    filter: Filter = "#",
    since: Annotated[
        int | None,
        typer.Option(
            "--from", min=1, metavar="REV", help="Begin with keys of at least this revision."
        ),
    ] = None,
    count: Count = 0,
    timeout: Timeout = 0,
    as_json: AsJson = False,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Show changes as they come: key, revision and the new value, or that it was deleted.

    With `--from 1` the values that are there come first. With `--count`, the exit code is 4 when
    `--timeout` comes first.

    Examples:

        wirelake kv watch kobold-3://localhost 'config/#'

        wirelake kv watch kobold-3://localhost config/lamp --from 1 --count 1 --json
    """

    async def show(client: Client) -> None:
        shown = 0
        async with client.store.watch(filter, revision=since) as changes:
            async for change in changes:
                if as_json:
                    write_object(_as_object(change))
                else:
                    value = "(deleted)" if change.value is None else as_text(change.value)
                    write_line(change.key, str(change.revision), value)
                shown += 1
                if shown == count:
                    return

    must_finish = bool(count)
    connected(
        url,
        show,
        STORE,
        seconds=timeout,
        must_finish=must_finish,
        client_id=client_id,
        token=token,
    )


def _as_object(entry: Entry | Change) -> dict[str, object]:
    """An entry or a change for `--json`; `value` and `base64` are null where it was deleted."""
    value = as_text_and_base64(entry.value, "value")
    return {"key": entry.key, "revision": entry.revision, **value}


def _show_revision(key: str, revision: int, *, as_json: bool) -> None:
    if as_json:
        write_object({"key": key, "revision": revision})
    else:
        write_line(f"revision {revision}")
