"""A broker in this process, with HTTP, until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import uvloop

from wirelake.config import Settings
from wirelake.errors import EngineError, WirelakeError
from wirelake.http.server import HttpServer
from wirelake.journal.engine import Engine
from wirelake.live.locks import holder, locked
from wirelake.net.descriptors import for_http
from wirelake.net.server import Server, open_engine

log = logging.getLogger("wirelake")

#: New objects after which the garbage collector runs.
YOUNG = 20_000


def serve(
    settings: Settings,
    *,
    memory: bool,
    read: Callable[[], Settings] | None,
    show: Callable[[str], None],
) -> None:
    """Run a broker until SIGTERM or SIGINT; a second one does not wait for pending output.

    SIGHUP takes the settings that `read` returns. `show` is called for each listener. Raises
    EngineError if another process uses the data folder.
    """
    _allow_many_files()
    with ExitStack() as stack:
        if not memory:
            folder = Path(settings.data)
            lock = folder / "lock"
            if stack.enter_context(locked(lock, mode=0o700)) is None:
                raise EngineError(f"{folder}: in use by {holder(lock)}")
        uvloop.run(_run(settings, memory, read, show))


async def _run(
    settings: Settings,
    memory: bool,
    read: Callable[[], Settings] | None,
    show: Callable[[str], None],
) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine.in_memory() if memory else open_engine(settings, loop)
    try:
        await _serve(Server.configured(settings, engine), settings, read, show)
    finally:
        await asyncio.to_thread(engine.close)


async def _serve(
    server: Server,
    settings: Settings,
    read: Callable[[], Settings] | None,
    show: Callable[[str], None],
) -> None:
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
        listeners = await server.start()
        for listener in listeners:
            show(f"listening on {listener}")
        if settings.http:
            http = HttpServer(
                server.node,
                settings.http,
                tls=server.tls,
                insecure=settings.insecure,
                connections=for_http(settings.http_connections),
                listeners=listeners,
                adopt=server.adopt,
                origins=settings.http_origins,
            )
            show(f"listening on {await http.start()}")
        _collect_seldom()
        await stopped.wait()
        log.info("stopping")
    finally:
        await asyncio.gather(server.stop(), *([http.stop()] if http is not None else []))


def _collect_seldom() -> None:
    """Let the garbage collector run seldom: messages have no cycles."""
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


def _allow_many_files() -> None:
    """Raise the limit of open files to the most that the system allows: a connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
