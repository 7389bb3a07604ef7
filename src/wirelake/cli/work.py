"""What commands do around their work: connect to a broker, and tell errors in one line.

Exit codes: 1 if something was refused or failed, 2 for wrong arguments, 4 for a timeout, 130 after
Ctrl-C.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, Unpack

import typer

from wirelake.client import Client, connect
from wirelake.client.client import Options
from wirelake.errors import ConfigError, RefusedError, WirelakeError

FAILED, USAGE, TIMED_OUT, INTERRUPTED = 1, 2, 4, 130

T = TypeVar("T")


def fail(reason: str, code: int = FAILED) -> NoReturn:
    """Print the reason in one line, and end the process with an exit code."""
    typer.echo(f"wirelake: {reason}", err=True)
    raise typer.Exit(code)


@contextmanager
def errors_in_one_line(timed_out: int = TIMED_OUT) -> Iterator[None]:
    """Turn the errors of a command into one line and an exit code; a timeout has its own."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except TimeoutError as error:
        fail(str(error) or "time is up", timed_out)
    except WirelakeError as error:
        if isinstance(error, RefusedError) and error.code == "timeout":
            fail(str(error), timed_out)
        fail(str(error), USAGE if isinstance(error, ConfigError) else FAILED)


def run(work: Coroutine[Any, Any, T], timed_out: int = TIMED_OUT) -> T:
    """Run a coroutine; its errors end the process. So does a reader that closed our output."""
    with errors_in_one_line(timed_out):
        try:
            return asyncio.run(work)
        except BrokenPipeError:
            raise typer.Exit from None


async def until_told(work: Coroutine[Any, Any, T]) -> T:
    """Await it; SIGTERM and SIGHUP end it as Ctrl-C does, after it has cleaned up."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup makes it
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def connected(
    url: str,
    work: Callable[[Client], Coroutine[Any, Any, T]],
    *,
    seconds: float = 0.0,
    must_finish: bool = True,
    **options: Unpack[Options],
) -> T:
    """Connect to a broker, run `work` with the client, disconnect; returns what `work` returns.

    Errors end the process. So does the end of `seconds`, which include connecting, unless they are
    0: if the work `must_finish`, as a timeout, else with exit code 0.
    """

    async def whole() -> T:
        try:
            async with asyncio.timeout(seconds or None), connect(url, **options) as client:
                return await work(client)
        except TimeoutError:
            if must_finish:
                raise
            raise typer.Exit from None

    return run(whole())
