"""What commands do around their work: connect to a broker, and tell errors in one line.

Exit codes: 1 if something was refused or failed, 2 for wrong arguments, 4 for a timeout, 130 after
Ctrl-C. With `--json` the line is an object: `error` (a code of the broker's, or `usage`, `config`,
`unreachable`, `protocol`, `failed`), `text` and `exit`.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar, Unpack

import typer

from wirelake.client import Client
from wirelake.client.client import Options
from wirelake.client.diagnosis import UnreachableError, diagnose, reach
from wirelake.client.finding import http_client
from wirelake.client.http import HttpClient
from wirelake.errors import ConfigError, ProtocolError, RefusedError, WirelakeError

FAILED, USAGE, TIMED_OUT, INTERRUPTED = 1, 2, 4, 130

T = TypeVar("T")


_as_json = False


@contextmanager
def errors_as_json(wanted: bool) -> Iterator[None]:
    """Print errors as JSON objects, or as text, until the end of `with`."""
    global _as_json
    before, _as_json = _as_json, wanted
    try:
        yield
    finally:
        _as_json = before


def fail(reason: str, code: int = FAILED, error: str = "failed") -> NoReturn:
    """Print the reason in one line, and end the process with an exit code."""
    complain(reason, error=error, exit=code)
    raise typer.Exit(code)


def complain(text: str, **fields: object) -> None:
    """Print a line to standard error; with `--json`, an object with the text and these fields."""
    if _as_json:
        typer.echo(json.dumps({**fields, "text": text}, ensure_ascii=False), err=True)
    else:
        typer.echo(f"wirelake: {text}", err=True)


@contextmanager
def errors_in_one_line(timed_out: int = TIMED_OUT) -> Iterator[None]:
    """Turn the errors of a command into one line and an exit code; a timeout has its own."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except TimeoutError as error:
        fail(str(error) or "time is up", timed_out, "timeout")
    except RefusedError as error:
        fail(str(error), timed_out if error.code == "timeout" else FAILED, error.code)
    except ConfigError as error:
        fail(str(error), USAGE, "config")
    except UnreachableError as error:
        fail(str(error), FAILED, "unreachable")
    except ProtocolError as error:
        fail(str(error), FAILED, "protocol")
    except WirelakeError as error:
        fail(str(error))


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
    *abilities: str,
    seconds: float = 0.0,
    must_finish: bool = True,
    **options: Unpack[Options],
) -> T:
    """Connect to a broker, run `work` with the client, disconnect; returns what `work` returns.

    The URL may be that of the broker's HTTP: then a listener is found there, of a dialect with the
    abilities that the work needs. Errors end the process. So does the end of `seconds`, which
    include connecting, unless they are 0: if the work `must_finish`, as a timeout, else with exit
    code 0. A connection that is lost later is told, and so is its return.
    """

    async def whole() -> T:
        try:
            async with asyncio.timeout(seconds or None):
                options["on_connection"] = Losses()
                client = await reach(url, *abilities, **options)
                try:
                    return await work(client)
                finally:
                    await client.close()
        except TimeoutError:
            if must_finish:
                raise
            raise typer.Exit from None

    return run(whole())


class Losses:
    """Tells on standard error when the connections of a client are lost, and when they are back."""

    def __init__(self) -> None:
        self._lost = 0

    def __call__(self, trouble: str) -> None:
        """Count connections: some dialects have two."""
        before, self._lost = self._lost, self._lost + (1 if trouble else -1)
        if trouble and before == 0:
            complain(f"the connection is lost, trying again ({trouble})", event="lost")
        elif self._lost == 0:
            complain("connected again", event="connected")


def asked(url: str, token: str, timeout: float, ask: Callable[[HttpClient], T]) -> T:
    """Ask a broker over HTTP, given any of its URLs; errors end the process."""
    with errors_in_one_line():
        try:
            return ask(http_client(url, token, timeout=timeout))
        except WirelakeError as error:
            raise asyncio.run(diagnose(url, error)) from None
