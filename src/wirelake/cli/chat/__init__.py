"""`wirelake chat`: people, pipes and bots in rooms, in any dialect (docs/chat.md)."""

from __future__ import annotations

import asyncio
import getpass
import logging
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any
from urllib.parse import unquote, urlsplit

import typer

from wirelake.cli.chat import bots as crowds
from wirelake.cli.chat import plain as pipe
from wirelake.cli.chat.member import LossHandler, Member, Watcher, client_of
from wirelake.cli.chat.room import HEARTBEAT, HEARTBEATS, check_name, check_room
from wirelake.cli.chat.session import Session
from wirelake.cli.messages import FAILED, INTERRUPTED, USAGE, AsJson, Token, Url
from wirelake.client.url import parse
from wirelake.errors import ConfigError, RefusedError, WirelakeError

DEFAULT_URL = "mfp://127.0.0.1"
DEFAULT_ROOM = "lobby"


def chat(
    url: Url = DEFAULT_URL,
    name: Annotated[str, typer.Option(help="Who you are; your login name if not given.")] = "",
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOM", help="Where to talk; may be repeated.  [default: lobby]"),
    ] = None,
    bots: Annotated[int, typer.Option(min=0, help="Let so many bots talk, instead of you.")] = 0,
    rate: Annotated[float, typer.Option(min=0.01, help="Messages a minute, of each bot.")] = 3,
    duration: Annotated[
        float, typer.Option(min=0, help="Leave after so many seconds; not with a screen.")
    ] = 0,
    plain: Annotated[
        bool, typer.Option("--plain", help="Lines in, lines out, as with a pipe.")
    ] = False,
    as_json: AsJson = False,
    heartbeat: Annotated[
        float,
        typer.Option(
            min=HEARTBEATS[0], max=HEARTBEATS[1], help="Seconds between two signs of life."
        ),
    ] = HEARTBEAT,
    token: Token = "",
) -> None:
    """Talk to others, in rooms; a room is a topic.

    On a terminal there is a screen with rooms, history and who is here; `/help` in it lists what
    can be done. In a pipe, lines in are said, and what is heard is printed; it ends when its input
    does and everything is delivered, or with `--duration` after so many seconds.

    Examples:

        wirelake chat mfp://localhost --name alice --topic lobby

        echo "it is done" | wirelake chat kobold-3://localhost --name build --topic team/ops

        wirelake chat tmq://localhost --bots 20 --duration 600
    """
    try:
        parse(url)  # what is wrong with it is said before anything else
        rooms = [check_room(one) for one in topic or [DEFAULT_ROOM]]
        if bots:
            crowd = crowds.Crowd(url, rooms, token, heartbeat, rate)
            with suppress(KeyboardInterrupt, asyncio.CancelledError):  # that is how they end
                asyncio.run(_until_told(crowds.run(crowd, bots, duration)))
            if not crowd.did["joined"]:
                raise typer.Exit(FAILED)
            return
        name = check_name(name or unquote(urlsplit(url).username or "") or getpass.getuser())
        is_screen = sys.stdin.isatty() and sys.stdout.isatty() and not plain and not as_json
        if is_screen:
            work = _on_screen(url, name, token, rooms, heartbeat)
        else:
            work = _in_pipe(url, name, token, rooms, heartbeat, duration, as_json=as_json)
        with suppress(BrokenPipeError):
            asyncio.run(_until_told(work))
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(INTERRUPTED) from None
    except WirelakeError as error:
        typer.echo(f"wirelake: {error}", err=True)
        raise typer.Exit(USAGE if isinstance(error, ConfigError) else FAILED) from None


async def _until_told(work: Coroutine[Any, Any, None]) -> None:
    """Do it; SIGTERM and a closed terminal end it as Ctrl-C does, so that others see us leave."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await work


async def _on_screen(url: str, name: str, token: str, rooms: list[str], heartbeat: float) -> None:
    try:
        from wirelake.cli.chat.screen import ChatApp
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "textual":
            raise
        text = "the screen needs Textual: pip install 'wirelake[chat]', or use --plain"
        raise ConfigError("chat", text) from None
    app = ChatApp(str(parse(url)))
    async with _seated(url, name, token, rooms, heartbeat, app) as session:
        await app.show(session)


async def _in_pipe(
    url: str,
    name: str,
    token: str,
    rooms: list[str],
    heartbeat: float,
    duration: float,
    *,
    as_json: bool,
) -> None:
    printer = pipe.Printer(as_json=as_json)
    async with _seated(url, name, token, rooms, heartbeat, printer) as session:
        printer.member = session.member
        await pipe.talk(session, printer, duration)


@asynccontextmanager
async def _seated(
    url: str, name: str, token: str, rooms: list[str], heartbeat: float, watcher: Watcher
) -> AsyncIterator[Session]:
    """A session of somebody who is in these rooms, the first of them in front."""
    client = client_of(url, name, token)
    try:
        await client
    except RefusedError as error:
        if error.code in ("closed", "timeout", "unauthorized"):
            raise
        text = f"the broker does not take the name {name}: somebody has it, or it is not allowed"
        raise RefusedError("exists", text) from None
    try:
        async with Member(client, name, watcher, heartbeat) as member:
            with _told_of_losses(member):
                entered = [await member.enter(one) for one in rooms]
                yield Session(member, entered[0])
    finally:
        await client.close()


@contextmanager
def _told_of_losses(member: Member) -> Iterator[None]:
    """What the client logs goes to the member, and not onto the screen."""
    log, handler = logging.getLogger("wirelake.client"), LossHandler(member)
    level, propagate = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagate
