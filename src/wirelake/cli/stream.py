"""`wirelake stream send` and `recv`: bytes from one client to another, as fast as it reads them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from wirelake.cli.options import (
    AsJson,
    ClientId,
    Timeout,
    Token,
    Url,
    as_they_come,
    open_input,
)
from wirelake.cli.parsing import Family
from wirelake.cli.show import STDOUT, as_text, write_object
from wirelake.cli.work import FAILED, complain, connected, fail
from wirelake.client import Client, Stream
from wirelake.errors import RefusedError
from wirelake.message import printable

BLOCK = 256 << 10
#: No timeout: while the reader pauses, the broker does not answer the writer.
ANY_TIME = 1e9

app = Family(help="Bytes from one client to another.")
#: What a dialect must be able to do, where the URL is that of HTTP and leaves the choice.
STREAM = "byte stream"


@app.command()
def send(
    url: Url,
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="The client id of the receiver.")],
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="What to send; - is stdin.")
    ] = None,
    info: Annotated[str, typer.Option(help="A text for the other side, about the stream.")] = "",
    as_json: AsJson = False,
    timeout: Timeout = 0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Send a file, or standard input, to a client that waits for it.

    The exit code is 0 when the broker has passed on everything. It goes as fast as the other side
    reads; nothing is kept in between.

    Examples:

        wirelake stream send kobold-2://localhost backup disk.img

        tar c photos | wirelake stream send kobold-3://localhost backup --info photos.tar
    """
    source = open_input(file)

    async def work(sender: Client) -> None:
        with _progress(f"to {client}", _size(source)) as progress:
            async with await sender.stream_to(client, info=info.encode()) as stream:
                async for block in as_they_come(_blocks(source)):
                    await stream.write(block)
                    progress(stream.sent)
            # It answers when it has read all that came before.
            await sender.ping(timeout=ANY_TIME)
        if as_json:
            write_object({"client": client, "bytes": stream.sent})

    with source:
        connected(
            url,
            work,
            STREAM,
            seconds=timeout,
            client_id=client_id,
            token=token,
            keepalive=ANY_TIME,
            reconnect=False,
        )


@app.command()
def recv(
    url: Url,
    id: Annotated[str, typer.Option(help="The client id that others send to.")],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Where to put it; a folder, if there is --count. Without it, or -: stdout."
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(min=0, help="Number of streams, one after the other; 0: no limit."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a stream; needs --output.")
    ] = False,
    timeout: Timeout = 0,
    token: Token = "",
) -> None:
    """Wait for a stream from another client, and write it to a file or standard output.

    With `--count` every stream becomes a file in the folder `--output`, with a number and the id of
    its sender as its name. The exit code is 1 when a stream ended before its sender was done; what
    came of it is kept. It is 4 when `--timeout` comes first.

    Examples:

        wirelake stream recv kobold-2://localhost --id backup --output disk.img

        wirelake stream recv kobold-3://localhost --id backup | tar x

        wirelake stream recv boson-binary://localhost --id inbox --count 0 --output received
    """
    output = None if output == STDOUT else output
    if as_json and output is None:
        raise typer.BadParameter("standard output is for the stream, unless there is --output")

    async def work(receiver: Client) -> None:
        done = torn = 0
        async with receiver.streams() as incoming:
            async for stream in incoming:
                done += 1
                place = output
                if output is not None and count is not None:
                    place = output / f"{done:04}-{_file_name(stream.source)}"
                reason = await _receive(stream, place)
                torn += reason is not None
                if as_json:
                    shown = {"source": stream.source, "info": as_text(stream.info)}
                    result = {"bytes": stream.received, "file": str(place), "error": reason}
                    write_object(shown | result)
                if reason is not None:
                    sender = printable(stream.source) or "a client without a name"
                    complain(f"from {sender}: {reason}", error="closed")
                if done == (1 if count is None else count):
                    break
        if torn:
            raise typer.Exit(FAILED)

    connected(url, work, STREAM, seconds=timeout, client_id=id, token=token, reconnect=False)


async def _receive(stream: Stream, place: Path | None) -> str | None:
    """Write a stream to a file or standard output; returns why it is incomplete, or None."""
    received = 0
    async with stream:
        with (
            _open_output(place) as target,
            _progress(f"from {printable(stream.source)}", None) as progress,
        ):
            try:
                async for block in stream:
                    target.write(block)
                    target.flush()  # a reader of the pipe may be waiting
                    received += len(block)
                    progress(received)
            except RefusedError as error:
                return str(error)
            except BrokenPipeError:
                raise
            except OSError as error:
                fail(f"{place or 'standard output'}: {error.strerror}")
    return None


@contextmanager
def _open_output(place: Path | None) -> Iterator[BinaryIO]:
    if place is None:
        yield sys.stdout.buffer
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = place.open("wb")
    except OSError as error:
        fail(f"{place}: {error.strerror}")
    with file:
        yield file


def _file_name(client: str) -> str:
    """The id of a client as a file name without separators."""
    name = "".join(c if c.isalnum() or c in "-_." else "_" for c in client)
    return name[:100] or "unnamed"


def _blocks(source: BinaryIO) -> Iterator[bytes]:
    """Blocks of an input as they arrive."""
    read = getattr(source, "read1", source.read)
    with source:
        while block := read(BLOCK):
            yield block


def _size(source: BinaryIO) -> int | None:
    """The bytes to send; None if that is not known."""
    if not source.seekable():
        return None
    here = source.tell()
    size = source.seek(0, 2) - here
    source.seek(here)
    return size or None  # a device has none


@contextmanager
def _progress(label: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if that is a terminal; call it with the bytes so far."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bar = progress.add_task(label, total=total)
        yield lambda done: progress.update(bar, completed=done)
