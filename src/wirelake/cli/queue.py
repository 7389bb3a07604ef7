"""`wirelake queue …`: messages that are kept until somebody has them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape

from wirelake.cli import queue_care
from wirelake.cli.options import (
    AsJson,
    ClientId,
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
from wirelake.cli.parsing import Family
from wirelake.cli.show import plain_table, wide_console, write_message, write_object
from wirelake.cli.work import TIMED_OUT, connected, fail
from wirelake.client import Client, Delivery
from wirelake.client.speech import can, require
from wirelake.message import printable

#: The end of the address of a queue's dead letters.
DEAD = "/$dead"
#: Most queues that a broker lists on the wire.
MOST_LISTED = 1000
#: What a dialect must be able to do, where the URL is that of HTTP and leaves the choice.
LIST = "list of queues"
PUTS = ("message id", "header", "delay")
TAKES = (LIST, "nack", "nack without requeue", "pull that waits")

Queue = Annotated[str, typer.Argument(metavar="QUEUE")]

app = Family(help="Queues: messages stay until they are acknowledged.")
app.command()(queue_care.peek)
app.command()(queue_care.purge)
app.command()(queue_care.move)
app.command()(queue_care.make)
app.command("rm")(queue_care.remove)


@app.command()
def put(
    url: Url,
    queue: Queue,
    payload: Payload = None,
    file: File = None,
    lines: Annotated[
        bool, typer.Option("--lines", help="Every line of the input is a message.")
    ] = False,
    delay: Annotated[int, typer.Option(min=0, help="Delay before delivery, in ms.")] = 0,
    priority: Annotated[int, typer.Option(min=0, max=1, help="1 is delivered before 0.")] = 0,
    ttl: Annotated[int, typer.Option(min=0, help="Time to live, in ms; in TMQ, hops.")] = 0,
    id: Annotated[str, typer.Option(help="The id of the message.")] = "",
    header: Headers = None,
    timeout: Patience = 30.0,
    client_id: ClientId = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Put messages into a queue, which is made if need be, and wait until they are kept.

    mfp and boson-text put into queues that are there; boson-text is not told that it is done.

    Examples:

        wirelake queue put jobs "resize 17"

        wirelake queue put tmq://localhost jobs --lines < jobs.txt

        wirelake queue put kobold-3://localhost jobs "try again" --delay 60000 --header try=2
    """
    headers = header_pairs(header)
    source = payloads(payload, file, lines=lines)

    async def work(client: Client) -> int:
        target = client.queue(queue)
        count = 0
        async for body in as_they_come(source):
            await target.put(body, id=id, headers=headers, priority=priority, ttl=ttl, delay=delay)
            count += 1
        return count

    count = connected(url, work, *PUTS, client_id=client_id, token=token, timeout=timeout)
    if as_json:
        write_object({"queue": queue, "put": count})


@app.command()
def get(
    url: Url,
    queue: Queue,
    count: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of messages: 1, with --follow any number."),
    ] = None,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait if there are none.")] = 0.0,
    follow: Annotated[
        bool, typer.Option("--follow", help="Keep waiting for more messages.")
    ] = False,
    no_ack: Annotated[
        bool,
        typer.Option("--no-ack", help="Do not acknowledge: they return to the queue at the end."),
    ] = False,
    nack: Annotated[
        bool, typer.Option("--nack", help="Reject them: they become dead letters.")
    ] = False,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Return them at once as failed attempts.")
    ] = False,
    as_json: AsJson = False,
    raw: Annotated[bool, typer.Option("--raw", help="Just the payloads, each on a line.")] = False,
    timeout: Timeout = 0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Take messages out of a queue, and show them.

    A message is acknowledged when it has been shown. A queue that does not exist is an error and is
    not made (boson-text and mfp cannot tell). When there was no message, the exit code is 4; so it
    is when `--timeout` comes before `--count` messages have, with `--follow`.

    Examples:

        wirelake queue get jobs --wait 10

        wirelake queue get http://localhost:7780 jobs

        wirelake queue get kobold-3://localhost jobs --count 100 --json --no-ack

        wirelake queue get mfp://localhost jobs --follow --raw
    """
    if no_ack + nack + requeue > 1:
        raise typer.BadParameter("only one of --no-ack, --nack and --requeue can be done")
    if follow and wait:
        raise typer.BadParameter("--follow waits until it is stopped: use --timeout")

    async def show(delivery: Delivery) -> None:
        write_message(delivery.message, as_json=as_json, raw=raw, attempt=delivery.attempt)
        if nack or requeue:
            await delivery.nack(requeue=requeue)
        elif not no_ack:
            await delivery.ack()

    async def work(client: Client) -> None:
        # Before anything is taken: where handing over acknowledges, it would be lost.
        if no_ack or nack or requeue:
            require(client.dialect, "nack")
        if nack:
            require(client.dialect, "nack without requeue")
        await _must_exist(client, queue)
        source = client.queue(queue)
        if not follow:
            deliveries = await source.get(count or 1, wait=wait)
            for delivery in deliveries:
                await show(delivery)
            if not deliveries:
                fail(f"{queue} has no message to give", TIMED_OUT)
            return
        shown = 0
        async with source.consume() as arrivals:
            async for delivery in arrivals:
                await show(delivery)
                shown += 1
                if shown == count:
                    return

    must_finish = bool(count) or not follow
    connected(
        url,
        work,
        *TAKES,
        seconds=timeout,
        must_finish=must_finish,
        client_id=client_id,
        token=token,
    )


async def _must_exist(client: Client, queue: str) -> None:
    """End the process if there is no such queue: taking from it would make it."""
    if can(client.dialect, LIST):
        names = {str(one["name"]) for one in await client.queues()}
        is_whole = len(names) < MOST_LISTED  # else it may be one of those that are not listed
        if is_whole and queue not in names and queue.removesuffix(DEAD) not in names:
            fail(f"there is no queue {queue} that you may take from")


@app.command("ls")
def list_queues(
    url: Url,
    as_json: AsJson = False,
    timeout: Patience = 30.0,
    client_id: ClientId = "",
    token: Token = "",
) -> None:
    """Show the queues, and how many messages are in each: ready to be taken, or held by somebody.

    Examples:

        wirelake queue ls kobold-3://localhost

        wirelake queue ls tmq://localhost --json | jq .messages
    """

    queues = connected(url, Client.queues, LIST, client_id=client_id, token=token, timeout=timeout)
    if as_json:
        for queue in queues:
            write_object(queue)
        return
    table = plain_table()
    table.add_column("queue", style="green", overflow="fold")
    table.add_column("mode")
    columns = ("messages", "ready", "held", "consumers")
    for name in columns:
        table.add_column(name, justify="right")
    for queue in queues:
        figures = [str(queue.get(name, "")) for name in columns]
        mode = printable(str(queue.get("mode", "")))
        table.add_row(escape(printable(str(queue["name"]))), escape(mode), *figures)
    wide_console().print(table)
