"""`wirelake serve`: the broker, until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gc
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
from wirelake.engine.memory import MemoryEngine
from wirelake.errors import EngineError, WirelakeError
from wirelake.http.server import HttpServer
from wirelake.net.descriptors import for_http
from wirelake.net.server import Server, open_engine

log = logging.getLogger("wirelake")

#: Objects that come before the garbage collector looks at them.
YOUNG = 20_000

Level = Literal["debug", "info", "warning", "error"]

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


def serve(
    listen: Listen = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The settings, in TOML.")
    ] = None,
    insecure: Insecure = False,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where to keep what must survive; one broker at a time. Without it, `data`.",
        ),
    ] = None,
    memory: Annotated[
        bool, typer.Option("--memory", help="Keep everything in memory: nothing survives.")
    ] = False,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where HTTP listens; port 0 is any free one. https://HOST:PORT for TLS.",
        ),
    ] = None,
    no_http: Annotated[bool, typer.Option("--no-http", help="No HTTP at all.")] = False,
    no_capture: Annotated[
        bool, typer.Option("--no-capture", help="Keep no log of what passes through.")
    ] = False,
    log_level: Annotated[Level, typer.Option(help="What to log on standard error.")] = "info",
) -> None:
    """Run the broker.

    A URL is a family (`boson`, `kobold`, `tmq`, `mfp`, or `auto` for any of them), then a host and
    a port, or with `+unix` a path. `+tls` takes certificate and key from the settings.

    SIGTERM and SIGINT let it finish what it has to say; a second one does not. SIGHUP makes it read
    the settings again: tokens, limits, flow, certificates; it goes on listening where it does.

    Examples:

        wirelake serve

        wirelake serve --listen auto://127.0.0.1:0 --memory --no-http

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
        if insecure:
            settings = msgspec.structs.replace(settings, insecure=True)
        if data is not None:
            settings = msgspec.structs.replace(settings, data=str(data))
        if http is not None or no_http:
            settings = msgspec.structs.replace(settings, http="" if no_http else http)
        if no_capture:
            capture = msgspec.structs.replace(settings.capture, enabled=False)
            settings = msgspec.structs.replace(settings, capture=capture)
        return settings

    _allow_many_files()
    try:
        settings = read()
        with contextlib.nullcontext() if memory else _locked(Path(settings.data)):
            uvloop.run(_run(settings, memory, read if config else None))
    except WirelakeError as error:
        typer.echo(f"wirelake: {error}", err=True)
        raise typer.Exit(1) from None


async def _run(settings: Settings, memory: bool, read: Callable[[], Settings] | None) -> None:
    """Serve until a signal says otherwise."""
    loop = asyncio.get_running_loop()
    engine = MemoryEngine() if memory else open_engine(settings, loop)
    try:
        await _serve(Server.configured(settings, engine), settings, read)
    finally:
        await asyncio.to_thread(engine.close)


async def _serve(server: Server, settings: Settings, read: Callable[[], Settings] | None) -> None:
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()

    def stop() -> None:
        if stopped.is_set():
            server.abort()
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, _read_again, server, read)
    http = None
    try:
        for listener in await server.start():
            typer.echo(f"listening on {listener}")
        if settings.http:
            http = HttpServer(
                server.node,
                settings.http,
                tls=server.tls,
                insecure=settings.insecure,
                connections=for_http(settings.http_connections),
            )
            typer.echo(f"listening on {await http.start()}")
        _collect_seldom()
        await stopped.wait()
        log.info("stopping")
    finally:
        await asyncio.gather(server.stop(), *([http.stop()] if http is not None else []))


def _collect_seldom() -> None:
    """Messages have no cycles: what is here now is not looked at again, the rest not so often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 20, 100)


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
        folder.mkdir(0o700, parents=True, exist_ok=True)
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
