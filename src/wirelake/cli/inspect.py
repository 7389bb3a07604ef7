"""`wirelake inspect`: what is in a capture of one direction of a connection."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from io import BufferedReader
from typing import Annotated

import typer
from rich.markup import escape

from wirelake.cli.options import dialect_name
from wirelake.cli.show import as_object, details, plain_table, preview, wide_console
from wirelake.cli.work import fail
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed
from wirelake.errors import ProtocolError
from wirelake.message import Message, printable
from wirelake.wire import FrameTable

BLOCK = 256 << 10
BAD_INPUT = 2


def inspect(
    file: Annotated[str, typer.Argument(help="The capture; `-` reads standard input.")],
    dialect: Annotated[
        str | None,
        typer.Option(
            parser=dialect_name,
            metavar="|".join(DIALECTS),
            autocompletion=lambda: list(DIALECTS),
            help="The dialect; without it, detected from the first bytes.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a message; errors, too.")
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
        fail(f"{file}: {error.strerror}")
    except ProtocolError as error:
        hint = f"; --dialect names it: {', '.join(DIALECTS)}" if error.dialect == "auto" else ""
        fail(f"{file}: {error}{hint}", BAD_INPUT, "protocol")


def _batches(source: BufferedReader, dialect: str | None) -> Iterator[list[tuple[int, Message]]]:
    """The messages in batches, each with the file offset of its first frame."""
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


def _lines(source: BufferedReader, dialect: str | None) -> None:
    for batch in _batches(source, dialect):
        for offset, message in batch:
            shown = {"offset": offset, **as_object(message)}
            sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
        sys.stdout.flush()


def _tables(source: BufferedReader, dialect: str | None) -> None:
    console = wide_console()
    for batch in _batches(source, dialect):
        table = plain_table()
        table.add_column("offset", justify="right")
        table.add_column("op", style="cyan")
        table.add_column("address", style="green", overflow="fold")
        table.add_column("details", overflow="fold")
        table.add_column("size", justify="right")
        table.add_column("payload", overflow="ellipsis", no_wrap=True)
        for offset, message in batch:
            table.add_row(
                str(offset),
                message.op.label,
                escape(printable(message.address)),
                escape(printable(details(message))),
                str(len(message.payload)),
                escape(preview(message.payload)),
            )
        console.print(table)
