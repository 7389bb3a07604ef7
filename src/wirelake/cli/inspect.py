"""`wirelake inspect`: what is in a capture of one direction of a connection."""

from __future__ import annotations

import base64
import json
import sys
from codecs import getincrementaldecoder
from collections.abc import Iterator
from io import BufferedReader
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wirelake.errors import ProtocolError
from wirelake.message import Flag, Message
from wirelake.wire import DIALECTS, Dialect, Feed, FrameTable

BLOCK = 256 << 10
PREVIEW = 64
BAD_INPUT = 2


def inspect(
    file: Annotated[str, typer.Argument(help="The capture; `-` reads standard input.")],
    dialect: Annotated[
        Dialect | None,
        typer.Option(help="What it is written in; without it, told from the first bytes."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a line for each message.")
    ] = False,
) -> None:
    """Show the messages in a capture of one direction of a connection.

    The messages are shown as they are after reassembly: a multi-part boson-text sequence is one
    message, or several, at its end. Where the capture breaks the grammar of its dialect, what
    comes before is shown, then the error with its byte offset, and the exit code is 2.

    Examples:

        wirelake inspect device.bin

        wirelake inspect device.bin --dialect tmq-1.00

        nc -l 7702 | wirelake inspect - --json | jq .address
    """
    show = _lines if as_json else _tables
    try:
        with open(0 if file == "-" else file, "rb") as source:  # noqa: PTH123 - 0 is no path
            show(source, dialect)
    except BrokenPipeError:
        raise
    except OSError as error:
        typer.echo(f"wirelake: {file}: {error.strerror}", err=True)
        raise typer.Exit(1) from None
    except ProtocolError as error:
        typer.echo(f"wirelake: {file}: {error}", err=True)
        if error.dialect == "auto":
            typer.echo(f"wirelake: --dialect names it: {', '.join(DIALECTS)}", err=True)
        raise typer.Exit(BAD_INPUT) from None


def _batches(source: BufferedReader, dialect: str | None) -> Iterator[list[tuple[int, Message]]]:
    """The messages, with the offset in the file of the frame that each begins with."""
    feed = Feed(dialect)

    def tables() -> Iterator[FrameTable]:
        while block := source.read1(BLOCK):
            yield from feed.receive(block)
        yield from feed.finish()

    for table in tables():
        yield [
            (feed.base + table.frame_at[row], message)
            for row, message in enumerate(table.messages())
        ]


def _visible_headers(message: Message) -> dict[str, str]:
    """All but the token, which is nobody's to see (decision 4)."""
    return {name: value for name, value in message.headers.items() if name != "$token"}


def _lines(source: BufferedReader, dialect: str | None) -> None:
    for batch in _batches(source, dialect):
        for offset, message in batch:
            shown = {
                "offset": offset,
                "dialect": message.dialect,
                "op": message.op,
                "address": message.address,
                "id": message.id,
                "correlation_id": message.correlation_id,
                "source": message.source,
                "target": message.target,
                "content_type": message.content_type,
                "priority": message.priority,
                "ttl": message.ttl,
                "headers": _visible_headers(message),
                "payload": base64.b64encode(message.payload).decode(),
            }
            sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _tables(source: BufferedReader, dialect: str | None) -> None:
    # A file or a pipe has no width of its own: wide enough that lines stay whole.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    for batch in _batches(source, dialect):
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("offset", justify="right")
        table.add_column("op", style="cyan")
        table.add_column("address", style="green", overflow="fold")
        table.add_column("details", overflow="fold")
        table.add_column("size", justify="right")
        table.add_column("payload", overflow="ellipsis", no_wrap=True)
        for offset, message in batch:
            table.add_row(
                str(offset),
                message.op,
                escape(_printable(message.address)),
                escape(_printable(_details(message))),
                str(len(message.payload)),
                escape(_preview(message.payload)),
            )
        console.print(table)


def _details(message: Message) -> str:
    """What a message has beside address and payload, in few words."""
    fields = {
        "id": message.id,
        "correlation": message.correlation_id,
        "from": message.source,
        "to": message.target,
        "type": message.content_type,
        "priority": message.priority,
        "ttl": message.ttl,
        **_visible_headers(message),
    }
    flags = [flag.name.lower() for flag in Flag if flag in message.flags and flag.name]
    return " ".join([*(f"{name}={value}" for name, value in fields.items() if value), *flags])


def _preview(payload: bytes) -> str:
    """The beginning of a payload: as text where it is text, else in hexadecimal."""
    head = payload[:PREVIEW]
    decode = getincrementaldecoder("utf-8")().decode  # a character may be cut by the preview
    try:
        return _printable(decode(head, final=len(payload) <= PREVIEW))
    except UnicodeDecodeError:
        return head.hex(" ")


def _printable(text: str) -> str:
    """Text that cannot move the cursor or ring the bell."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
