"""`wirelake pub`, `sub`, `request` and `reply`: a client on the command line."""

from __future__ import annotations

import asyncio
import subprocess
from typing import Annotated

import typer
from rich.progress import track

from wirelake.cli.options import (
    Address,
    AsJson,
    ClientId,
    Count,
    File,
    Headers,
    Patience,
    Payload,
    Timeout,
    Token,
    Url,
    as_they_come,
    header_pairs,
    payloads,
)
from wirelake.cli.show import as_object, write_message, write_object
from wirelake.cli.work import connected
from wirelake.client import Client
from wirelake.message import Message

BATCH = 1000
PROGRESS_FROM = 20_000


def pub(
    url: Url,
    address: Address,
    payload: Payload = None,
    file: File = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line of the input is a message.")
    ] = False,
    count: Annotated[int, typer.Option(min=1, help="How many times to publish it.")] = 1,
    ack: Annotated[bool, typer.Option("--ack", help="Wait until the broker has it.")] = False,
    header: Headers = None,
    priority: Annotated[int, typer.Option(min=0, max=1)] = 0,
    ttl: Annotated[int, typer.Option(min=0, help="Time to live, in ms; in TMQ, hops.")] = 0,
    id: Annotated[str, typer.Option(help="The id of the message.")] = "",
    client_id: ClientId = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Publish messages.

    Examples:

        wirelake pub house/temp 21.5

        wirelake pub kobold-3://localhost house/temp - < reading.json

        wirelake pub mfp://localhost chat "hello, everybody" --ack

        tail -f app.log | wirelake pub boson-text://localhost logs/app --lines
    """
    headers = header_pairs(header)
    source = payloads(payload, file, lines=lines)

    async def work(client: Client) -> int:
        bodies = 0
        if ack or headers or priority or ttl or id:
            async for body in as_they_come(source):
                bodies += 1
                for _ in range(count):
                    await client.publish(
                        address, body, ack=ack, headers=headers, priority=priority, ttl=ttl, id=id
                    )
            return bodies * count
        async for body in as_they_come(source):
            bodies += 1
            left = range(0, count, BATCH)
            shown = track(left, "publishing") if count >= PROGRESS_FROM else left
            for done in shown:
                await client.publish_many([(address, body)] * min(BATCH, count - done))
        return bodies * count

    needs = ["acknowledgement of a publish"] * ack + ["header"] * bool(headers)
    published = connected(url, work, *needs, client_id=client_id, token=token)
    if as_json:
        write_object({"address": address, "published": published, "acknowledged": ack})


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

    When the connection is lost, and when it is back, a line on standard error says so. With
    `--count`, the exit code is 4 when `--timeout` comes first.

    Examples:

        wirelake sub 'house/#' --json | jq -r .payload

        wirelake sub kobold-3://localhost 'house/#'

        wirelake sub tmq://localhost jobs --count 1 --timeout 10 --raw
    """

    async def work(client: Client) -> None:
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

    connected(url, work, client_id=client_id, token=token)


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

    async def work(client: Client) -> None:
        reply = await client.request(address, body, timeout=timeout)
        write_message(reply, as_json=as_json, raw=True)

    connected(url, work, "request/reply", client_id=client_id, token=token)


def reply(
    url: Url,
    address: Address,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="Gets a request on stdin; its output is sent."),
    ] = None,
    text: Annotated[
        str | None, typer.Option(help="Answer every request with this; - is stdin.")
    ] = None,
    count: Count = 0,
    timeout: Timeout = 0,
    client_id: ClientId = "",
    token: Token = "",
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a request; errors, too.")
    ] = False,
) -> None:
    """Serve an address: answer each request with a text, a command's output, or itself.

    Examples:

        wirelake reply kobold-3://localhost time -- date

        wirelake reply boson-text://localhost echo
    """
    left = count
    fixed = None if text is None else next(payloads(text, None, lines=False))

    async def work(client: Client) -> None:
        done = asyncio.Event()

        async def answer(message: Message) -> bytes:
            nonlocal left
            left -= 1
            if left == 0:
                # The reply goes out before the service ends.
                asyncio.get_running_loop().call_later(0.1, done.set)
            if as_json:
                write_object(as_object(message))
            if fixed is not None:
                return fixed
            if not command:
                return message.payload
            process = await asyncio.create_subprocess_exec(
                *command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            output, _ = await process.communicate(message.payload)
            return output

        async with client.serve(address, answer):
            try:
                async with asyncio.timeout(timeout or None):
                    await done.wait()
            except TimeoutError:
                if count:
                    raise

    connected(url, work, "service", client_id=client_id, token=token)


async def _collect(client: Client, one: str, inbox: asyncio.Queue[Message]) -> None:
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
