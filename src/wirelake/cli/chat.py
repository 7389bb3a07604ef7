"""`wirelake chat`: people, pipes and bots in rooms, in any dialect (docs/chat.md)."""

from __future__ import annotations

import asyncio
import getpass
import sys
from contextlib import suppress
from datetime import datetime
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from wirelake.chat import bots as crowds
from wirelake.chat import plain as pipe
from wirelake.chat.room import HEARTBEAT, HEARTBEATS, check_name, check_room
from wirelake.chat.session import joined
from wirelake.cli.options import AsJson, Token, Url, as_they_come, choose
from wirelake.cli.work import FAILED, errors_in_one_line, run, until_told
from wirelake.client.diagnosis import ANSWER, wire
from wirelake.client.url import parse
from wirelake.errors import ConfigError

DEFAULT_ROOM = "lobby"


def chat(
    ctx: typer.Context,
    url: Url,
    name: Annotated[str, typer.Option(help="Who you are; your login name if not given.")] = "",
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOM", help="Where to talk; may be repeated.  [default: lobby]"),
    ] = None,
    bots: Annotated[int, typer.Option(min=0, help="Number of bots that talk instead of you.")] = 0,
    rate: Annotated[float, typer.Option(min=0.01, help="Messages a minute, of each bot.")] = 3,
    duration: Annotated[
        float, typer.Option(min=0, help="Leave after this many seconds; not with a screen.")
    ] = 0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines in, lines out, as in a pipe.")
    ] = False,
    as_json: AsJson = False,
    heartbeat: Annotated[
        float,
        typer.Option(min=HEARTBEATS[0], max=HEARTBEATS[1], help="Seconds between heartbeats."),
    ] = HEARTBEAT,
    http: Annotated[
        str,
        typer.Option(
            metavar="URL", help="The broker's HTTP, for what was said before; `none`: without."
        ),
    ] = "",
    token: Token = "",
) -> None:
    """Talk to others, in rooms; a room is a topic.

    On a terminal it is a screen with rooms, history and members; `/help` in it lists the commands.
    In a pipe, each line of standard input is a message, and messages of others are printed; it
    ends when its input does and everything is delivered, or after `--duration` seconds.

    Examples:

        wirelake chat --name alice

        wirelake chat mfp://localhost --name alice --topic lobby

        echo "it is done" | wirelake chat kobold-3://localhost --name build --topic team/ops

        wirelake chat tmq://localhost --bots 20 --duration 600
    """
    with errors_in_one_line():
        http = http or choose(ctx, url).http or url  # where the log is
        url, token = wire(url, token, ANSWER)
        parse(url)  # what is wrong with it is said before anything else
        rooms = [check_room(one) for one in topic or [DEFAULT_ROOM]]
        if not bots:
            name = check_name(name or unquote(urlsplit(url).username or "") or getpass.getuser())
    if bots:
        _let_talk(crowds.Crowd(url, rooms, token, heartbeat, rate, _tell), bots, duration)
        return
    if sys.stdin.isatty() and sys.stdout.isatty() and not plain and not as_json:
        work = _on_screen(url, name, token, rooms, heartbeat, http)
    else:
        work = _in_pipe(url, name, token, rooms, heartbeat, http, duration, as_json=as_json)
    run(until_told(work), timed_out=FAILED)  # the usual reason is a missing right


def _let_talk(crowd: crowds.Crowd, count: int, duration: float) -> None:
    """Run bots until a signal, or for `duration` seconds; then print what they did."""
    try:
        with suppress(KeyboardInterrupt):  # the usual end
            asyncio.run(until_told(crowds.run(crowd, count, duration)))
    finally:
        typer.echo(crowd.summary())
    if not crowd.did["joined"]:
        raise typer.Exit(FAILED)


def _tell(text: str) -> None:
    typer.echo(f"{datetime.now().astimezone():%H:%M:%S} {text}")


async def _on_screen(
    url: str, name: str, token: str, rooms: list[str], heartbeat: float, http: str
) -> None:
    try:
        from wirelake.chat.screen import ChatApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        text = "the screen needs Textual: pip install 'wirelake[chat]', or use --plain"
        raise ConfigError("chat", text) from None
    app = ChatApp(str(parse(url)))
    async with joined(url, name, token, rooms, heartbeat, app, http=http) as session:
        await app.show(session)


async def _in_pipe(
    url: str,
    name: str,
    token: str,
    rooms: list[str],
    heartbeat: float,
    http: str,
    duration: float,
    *,
    as_json: bool,
) -> None:
    printer = pipe.Printer(as_json=as_json)
    async with joined(url, name, token, rooms, heartbeat, printer, http=http) as session:
        printer.member = session.member
        lines = as_they_come(pipe.read_lines(sys.stdin.fileno()))
        await pipe.talk(session, printer, lines, duration)
