"""`wirelake serve`: the broker, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
import uvloop

from wirelake.config import Settings, read_settings
from wirelake.errors import EngineError, WirelakeError
from wirelake.net.server import Server

log = logging.getLogger("wirelake")


Level = Literal["debug", "info", "warning", "error"]


def serve(
    listen: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Where to listen, instead of the defaults; port 0 is any free one. Repeatable.",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The settings, in TOML.")
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other machines connect although there are no tokens."),
    ] = False,
    data: Annotated[
        Path | None, typer.Option(metavar="DIR", help="What must survive; one broker at a time.")
    ] = None,
    log_level: Annotated[Level, typer.Option(help="What to log on standard error.")] = "info",
) -> None:
    """Run the broker.

    A URL is a family (`boson`, `kobold`, `tmq`, `mfp`, or `auto` for any of them), then a host and
    a port, or with `+unix` a path. `+tls` takes certificate and key from the settings.

    SIGTERM and SIGINT let it finish what it has to say; a second one does not. SIGHUP makes it read
    the settings again: tokens, limits, flow, certificates; it goes on listening where it does.

    Examples:

        wirelake serve

        wirelake serve --listen auto://127.0.0.1:0

        wirelake serve --config wirelake.toml --data /var/lib/wirelake

        wirelake serve --listen kobold+tls://0.0.0.0:7702 --listen kobold+unix:///run/kobold.sock
    """
    logging.basicConfig(
        level=log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )

    def read() -> Settings:
        settings = read_settings(config) if config else Settings()
        if listen:
            settings = msgspec.structs.replace(settings, listen=tuple(listen))
        return msgspec.structs.replace(settings, insecure=True) if insecure else settings

    _allow_many_files()
    try:
        with _locked(data) if data else contextlib.nullcontext():
            uvloop.run(_run(Server.configured(read()), read if config else None))
    except WirelakeError as error:
        typer.echo(f"wirelake: {error}", err=True)
        raise typer.Exit(1) from None


async def _run(server: Server, read: Callable[[], Settings] | None) -> None:
    """Serve until a signal says otherwise."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            server.abort()
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, _read_again, server, read)
    for listener in await server.start():
        typer.echo(f"listening on {listener}")
    await stopped.wait()
    log.info("stopping")
    await server.stop()


def _read_again(server: Server, read: Callable[[], Settings] | None) -> None:
    if read is None:
        log.warning("there is no configuration file to read again")
        return
    try:
        server.configure(read())
    except WirelakeError as error:
        log.error("the old settings stay: %s", error)
    else:
        log.info("the settings were read again; listeners stay as they are until a restart")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let no other process use this folder; the system takes the lock back whatever happens."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EngineError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise EngineError(f"{folder}: in use by another process") from None
        yield
    finally:
        os.close(handle)


def _allow_many_files() -> None:
    """A connection is an open file: take as many as the system lets this user have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
