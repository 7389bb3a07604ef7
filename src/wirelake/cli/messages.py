"""`wirelake pub`, `sub`, `request` and `reply`: a client on the command line."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NoReturn

import typer
from rich.progress import track

import wirelake
from wirelake.cli.show import write_message
from wirelake.errors import ConfigError, RefusedError, WirelakeError
from wirelake.message import Message

#: Exit codes: it was refused or did not work; the arguments are wrong; time ran out.
FAILED, USAGE, TIMED_OUT, INTERRUPTED = 1, 2, 4, 130

BATCH = 1000
READ_AHEAD = 16
PROGRESS_FROM = 20_000

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="Where the broker is, and in which dialect: kobold-3://host:7702"
    ),
]
Address = Annotated[str, typer.Argument(metavar="ADDRESS")]
Payload = Annotated[str | None, typer.Argument(metavar="PAYLOAD")]
File = Annotated[Path | None, typer.Option(help="Take the payload from a file; - is stdin.")]
ClientId = Annotated[str, typer.Option(help="The id of this client.")]
Token = Annotated[str, typer.Option(envvar="WIRELAKE_TOKEN", help="The token to show.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Count = Annotated[int, typer.Option(min=0, help="Stop after so many messages; 0 never does.")]
Timeout = Annotated[float, typer.Option(min=0, help="Stop after so many seconds; 0 never does.")]
Patience = Annotated[float, typer.Option(min=0.001, help="Seconds to wait for an answer.")]
Headers = Annotated[list[str] | None, typer.Option("--header", help="KEY=VALUE; may be repeated.")]


def pub(
    url: Url,
    address: Address,
    payload: Payload = None,
    file: File = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line of the input is a message.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="Publish it so many times.")] = 1,
    ack: Annotated[bool, typer.Option("--ack", help="Wait until the broker has it.")] = False,
    header: Headers = None,
    priority: Annotated[int, typer.Option(min=0, max=1)] = 0,
    ttl: Annotated[int, typer.Option(min=0, help="In ms; hops in TMQ.")] = 0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Publish messages.

    Examples:

        wirelake pub kobold-3://localhost house/temp 21.5

        wirelake pub mfp://localhost chat "hello, everybody" --ack

        tail -f app.log | wirelake pub boson-text://localhost logs/app --lines
    """
    headers = header_pairs(header)
    source = payloads(payload, file, lines=lines)

    async def work() -> None:
        async with wirelake.connect(url, client_id=client_id, token=token) as client:
            if ack or headers or priority or ttl:
                async for body in as_they_come(source):
                    for _ in range(count):
                        await client.publish(
                            address, body, ack=ack, headers=headers, priority=priority, ttl=ttl
                        )
                return
            async for body in as_they_come(source):
                left = range(0, count, BATCH)
                shown = track(left, "publishing") if count >= PROGRESS_FROM else left
                for done in shown:
                    await client.publish_many([(address, body)] * min(BATCH, count - done))

    run(work())


def sub(
    url: Url,
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...")],
    count: Count = 0,
    timeout: Timeout = 0,
    as_json: AsJson = False,
    raw: Annotated[bool, typer.Option("--raw", help="Just the payloads, each on a line.")] = False,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Show messages as they come; `+` is one level, a last `#` all that follow.

    With `--count`, the exit code is 4 when `--timeout` comes first.

    Examples:

        wirelake sub kobold-3://localhost 'house/#'

        wirelake sub tmq://localhost jobs --count 1 --timeout 10 --raw
    """

    async def work() -> None:
        async with wirelake.connect(url, client_id=client_id, token=token) as client:
            inbox: asyncio.Queue[Message] = asyncio.Queue(maxsize=BATCH)
            tasks = [asyncio.create_task(_collect(client, one, inbox)) for one in filters]
            stop = asyncio.create_task(_show_some(inbox, count, as_json=as_json, raw=raw))
            try:
                await asyncio.wait(
                    [*tasks, stop], timeout=timeout or None, return_when="FIRST_COMPLETED"
                )
                for task in [*tasks, stop]:
                    if task.done():
                        await task  # a refusal is raised here
                if not stop.done() and count:
                    raise TimeoutError
            finally:
                for task in [*tasks, stop]:
                    task.cancel()
                await asyncio.gather(*tasks, stop, return_exceptions=True)

    run(work())


def request(
    url: Url,
    address: Address,
    payload: Payload = None,
    file: File = None,
    timeout: Patience = 30.0,
    as_json: AsJson = False,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Ask a service, and show its reply.

    Examples:

        wirelake request kobold-3://localhost time "what time is it?" --timeout 5

        wirelake request tmq://localhost stock/count --file query.json --json
    """
    (body,) = payloads(payload, file, lines=False)

    async def work() -> None:
        async with wirelake.connect(url, client_id=client_id, token=token) as client:
            reply = await client.request(address, body, timeout=timeout)
            write_message(reply, as_json=as_json, raw=True)

    run(work())


def reply(
    url: Url,
    address: Address,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[COMMAND]...", help="Gets a request on stdin; its output is sent."),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Answer every request with this.")] = None,
    count: Count = 0,
    timeout: Timeout = 0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Serve an address: answer each request with a text, a command's output, or itself.

    Examples:

        wirelake reply kobold-3://localhost time -- date

        wirelake reply boson-text://localhost echo
    """
    left = count

    async def work() -> None:
        done = asyncio.Event()

        async def answer(message: Message) -> bytes:
            nonlocal left
            left -= 1
            if left == 0:
                # The reply goes out before the service ends.
                asyncio.get_running_loop().call_later(0.1, done.set)
            if text is not None:
                return text.encode()
            if not command:
                return message.payload
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            output, _ = await process.communicate(message.payload)
            return output

        async with (
            wirelake.connect(url, client_id=client_id, token=token) as client,
            client.serve(address, answer),
        ):
            try:
                async with asyncio.timeout(timeout or None):
                    await done.wait()
            except TimeoutError:
                if count:
                    raise

    run(work())


async def _collect(client: Any, one: str, inbox: asyncio.Queue[Message]) -> None:
    async with client.subscribe(one) as messages:
        async for message in messages:
            await inbox.put(message)


async def _show_some(
    inbox: asyncio.Queue[Message], count: int, *, as_json: bool, raw: bool
) -> None:
    shown = 0
    while not count or shown < count:
        write_message(await inbox.get(), as_json=as_json, raw=raw)
        shown += 1


def header_pairs(pairs: list[str] | None) -> dict[str, str] | None:
    """The headers that `--header` gives."""
    headers = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--header")
        headers[name] = value
    return headers or None


def payloads(payload: str | None, file: Path | None, *, lines: bool) -> Iterator[bytes]:
    """What to send: the argument, a file, or standard input; whole, or line by line."""
    if payload is not None and file is not None:
        raise typer.BadParameter("a payload comes from the argument or from --file, not from both")
    if payload is not None:
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
    """A file to read, or standard input."""
    if file in (None, Path("-")):
        # Not sys.stdin: a thread that waits for it would be waited for at the end.
        return open(0, "rb", closefd=False)
    assert file is not None
    try:
        return file.open("rb")
    except OSError as error:
        fail(f"{file}: {error.strerror}")


async def as_they_come(source: Iterator[bytes]) -> AsyncIterator[bytes]:
    """What an input gives, read by a thread, so that the connection lives on while it waits."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)

    def read() -> None:
        with suppress(RuntimeError):  # nobody waits for it any more
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


def fail(reason: str, code: int = FAILED) -> NoReturn:
    """Say why in one line, and end with an exit code."""
    typer.echo(f"wirelake: {reason}", err=True)
    raise typer.Exit(code)


def run(work: Coroutine[Any, Any, None]) -> None:
    """Do it; an error is one line and an exit code."""
    try:
        with suppress(BrokenPipeError):
            asyncio.run(work)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except TimeoutError:
        fail("time is up", TIMED_OUT)
    except WirelakeError as error:
        if isinstance(error, RefusedError) and error.code == "timeout":
            fail(str(error), TIMED_OUT)
        fail(str(error), USAGE if isinstance(error, ConfigError) else FAILED)
