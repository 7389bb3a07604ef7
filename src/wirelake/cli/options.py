"""Options that several commands have, and the input that messages are made of."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from wirelake.cli.work import errors_in_one_line, fail
from wirelake.client.contexts import Context, chosen
from wirelake.dialects import DIALECTS, FILES
from wirelake.dialects.framed.description import PRESETS
from wirelake.errors import ConfigError

#: Blocks or lines that are read before they are needed.
READ_AHEAD = 16
#: What stands for standard input, everywhere.
STDIN = "-"

#: Where a parsed command keeps the broker that was chosen for it.
_CHOSEN = "wirelake.chosen"
#: Where the options before a command's name keep the context that they name.
CONTEXT = "wirelake.context"


def choose(ctx: typer.Context, given: str) -> Context:
    """The broker that a command is for: its URL, or what the environment or a context says."""
    if _CHOSEN not in ctx.meta:
        with errors_in_one_line():
            ctx.meta[_CHOSEN] = chosen(given, ctx.meta.get(CONTEXT, ""))
    found: Context = ctx.meta[_CHOSEN]
    return found


def _wire(ctx: typer.Context, given: str) -> str:
    return choose(ctx, given).url


def _http(ctx: typer.Context, given: str) -> str:
    found = choose(ctx, given)
    return found.http or found.url


def _token(ctx: typer.Context, given: str) -> str:
    """The token given; else the one of a context, if the broker is from there."""
    found: Context | None = ctx.meta.get(_CHOSEN)
    return given or (found.token if found else "")


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        callback=_wire,
        help="Where the broker is, and in which dialect: kobold-3://host:7702. Its HTTP's URL will"
        " do. Without it: WIRELAKE_URL, or the context in use, or a broker on this machine.",
    ),
]
HttpUrl = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        callback=_http,
        help="The broker's HTTP, http://host:7780; any of its listeners will do. Without it:"
        " WIRELAKE_URL, or the context in use, or a broker on this machine.",
    ),
]
Address = Annotated[str, typer.Argument(metavar="ADDRESS")]
Payload = Annotated[
    str | None, typer.Argument(metavar="PAYLOAD", help="Read from stdin if it is `-` or left out.")
]
File = Annotated[Path | None, typer.Option(help="Take the payload from a file; - is stdin.")]
ClientId = Annotated[str, typer.Option(help="The id of this client.")]
Token = Annotated[
    str,
    typer.Option(
        envvar="WIRELAKE_TOKEN", callback=_token, help="The token to show. [default: the context's]"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line; errors, too.")]


def dialect_name(text: str) -> str:
    """Return the name of a dialect, or of the one that a `.toml` file or a preset describes.

    Raises BadParameter where there is none.
    """
    if text.endswith(".toml") or (text not in DIALECTS and text in PRESETS):
        try:
            name = DIALECTS.describe(Path(text)).name
            # Processes that this one starts, such as Spark's, find it by the same name.
            files = os.environ.get(FILES, "").split(os.pathsep)
            os.environ[FILES] = os.pathsep.join(filter(None, [*files, str(Path(text).absolute())]))
            return name
        except ConfigError as error:
            raise typer.BadParameter(str(error)) from None
    if text not in DIALECTS:
        known = ", ".join(map(repr, DIALECTS))
        raise typer.BadParameter(f"{text!r} is not one of {known}.")
    return text


Count = Annotated[int, typer.Option(min=0, help="Stop after this many messages; 0: never.")]
Timeout = Annotated[float, typer.Option(min=0, help="Stop after this many seconds; 0: never.")]
Patience = Annotated[float, typer.Option(min=0.001, help="Seconds to wait for an answer.")]
Headers = Annotated[list[str] | None, typer.Option("--header", help="KEY=VALUE; may be repeated.")]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        metavar="URL",
        help="Where to listen, instead of the defaults; port 0 is any free one. Repeatable.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Let other machines connect although there are no tokens."),
]


def header_pairs(pairs: list[str] | None) -> dict[str, str] | None:
    """The values of `--header` as a mapping; None if there are none."""
    headers = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--header")
        headers[name] = value
    return headers or None


def payloads(payload: str | None, file: Path | None, *, lines: bool) -> Iterator[bytes]:
    """What to send: the argument, the file, or standard input (`-`); whole, or line by line."""
    if payload is not None and file is not None:
        raise typer.BadParameter("a payload comes from the argument or from --file, not from both")
    if payload is not None and payload != STDIN:
        return iter(payload.encode().split(b"\n") if lines else [payload.encode()])
    source = open_input(file)
    if lines:
        return _lines(source)
    with source:
        return iter([source.read()])


def _lines(source: BinaryIO) -> Iterator[bytes]:
    with source:
        for line in source:
            yield line.rstrip(b"\r\n")


def open_input(file: Path | None) -> BinaryIO:
    """Open a file, or standard input if it is None or `-`."""
    if file in (None, Path(STDIN)):
        # Not sys.stdin: a thread that waits for it would be waited for at the end.
        return open(0, "rb", closefd=False)
    assert file is not None
    try:
        return file.open("rb")
    except OSError as error:
        fail(f"{file}: {error.strerror}")


async def as_they_come(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Read an input in a thread, so that the connection is served while the input blocks."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)

    def read() -> None:
        with suppress(RuntimeError):  # the event loop has ended
            try:
                for item in source:
                    room.acquire()
                    loop.call_soon_threadsafe(arrived.put_nowait, item)
                loop.call_soon_threadsafe(arrived.put_nowait, None)
            except OSError as error:
                loop.call_soon_threadsafe(arrived.put_nowait, error)

    threading.Thread(target=read, daemon=True).start()
    while (item := await arrived.get()) is not None:
        if isinstance(item, OSError):
            fail(item.strerror or str(item))
        room.release()
        yield item
