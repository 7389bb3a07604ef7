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
from typing import TYPE_CHECKING

import uvloop

from wirelake import __version__
from wirelake.config import Settings
from wirelake.errors import ConfigError, EngineError, WirelakeError
from wirelake.http.server import HttpServer
from wirelake.journal.engine import Engine
from wirelake.live.locks import holder, locked
from wirelake.net.descriptors import for_http
from wirelake.net.server import Server, open_engine

if TYPE_CHECKING:
    from wirelake.cluster.node import Joined

log = logging.getLogger("wirelake")

#: New objects after which the garbage collector runs; after five runs it looks at older ones, too.
#: A look at 50,000 objects takes some milliseconds, for which nobody else is served.
YOUNG = 10_000


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
    if settings.cluster.servers:
        joined = await _open_node(settings, memory=memory)
        try:
            await _serve(Server.configured(settings, joined.engine), settings, read, show, joined)
        finally:
            await joined.close()
        return
    engine = Engine.in_memory(loop=loop) if memory else open_engine(settings, loop)
    try:
        await _serve(Server.configured(settings, engine), settings, read, show)
    finally:
        await asyncio.to_thread(engine.close)


async def _open_node(settings: Settings, *, memory: bool) -> Joined:
    """Open this node of a cluster; raises ConfigError where it cannot be one."""
    if memory:
        raise ConfigError("cluster", "a node keeps copies on a disk: leave --memory out")
    try:
        from wirelake.cluster.node import Joined
    except ModuleNotFoundError as error:
        text = f"{error.name} is not installed: pip install 'wirelake[nats]'"
        raise ConfigError("cluster", text) from None
    return await Joined.open(settings)


async def _serve(
    server: Server,
    settings: Settings,
    read: Callable[[], Settings] | None,
    show: Callable[[str], None],
    joined: Joined | None = None,
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
    http, http_url = None, ""
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
                settings=settings,
            )
            loop.add_signal_handler(signal.SIGHUP, _read_again, server, read, http)
            http_url = await http.start()
            show(f"listening on {http_url}")
        if joined is not None:
            urls = [str(listener) for listener in listeners]
            await joined.join(server.node, __version__, http_url, urls)
            show(f"node {joined.name} of the cluster {settings.cluster.prefix}")
        _collect_seldom()
        await _until(stopped, joined)
        log.info("stopping")
    finally:
        if joined is not None:
            await joined.leave()
        await asyncio.gather(server.stop(), *([http.stop()] if http is not None else []))


async def _until(stopped: asyncio.Event, joined: Joined | None) -> None:
    """Wait for a signal; raises ConfigError where this node may not go on."""
    if joined is None:
        await stopped.wait()
        return
    waits = [asyncio.create_task(stopped.wait()), asyncio.create_task(joined.ended())]
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def _collect_seldom() -> None:
    """Let the garbage collector run seldom: messages have no cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, 5, 1000)


def _read_again(
    server: Server, read: Callable[[], Settings] | None, http: HttpServer | None = None
) -> None:
    if read is None:
        log.warning("there is no configuration file to read again")
        return
    try:
        settings = read()
        server.configure(settings)
        if http is not None:
            http.configure(settings)
    except WirelakeError as error:
        log.error("the old settings stay: %s", error)
    else:
        log.info("the settings were read again; listeners stay as they are until a restart")


def _allow_many_files() -> None:
    """Raise the limit of open files to the most that the system allows: a connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
