"""`wirelake top`, `health` and `events`: any broker, watched over HTTP."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer
from rich.console import Console

from wirelake.cli.options import AsJson, Count, HttpUrl, Patience, Timeout, Token
from wirelake.cli.show import as_text, as_told, payload_of, write_line, write_object
from wirelake.cli.work import (
    FAILED,
    TIMED_OUT,
    Losses,
    asked,
    errors_in_one_line,
    fail,
    run,
    until_told,
)
from wirelake.client.events import OWN, event_of, follow, remembered, within
from wirelake.client.finding import http_client
from wirelake.client.http import HttpClient
from wirelake.errors import EngineError, RefusedError
from wirelake.live import top as watch

#: Seconds: between two tries to see a broker that is not there yet; for an answer; without a sign
#: of life from a stream of events, which has one every 15.
AGAIN, ANSWER, SILENCE = 0.25, 5.0, 60.0


def top(
    url: HttpUrl,
    every: Annotated[
        float, typer.Option(min=0.1, help="Without a terminal: seconds between two lines.")
    ] = 2.0,
    count: Annotated[
        int, typer.Option(min=0, help="Without a terminal: end after this many; 0 never does.")
    ] = 0,
    as_json: AsJson = False,
    token: Token = "",
) -> None:
    """Show what a broker does: rates, queues, the busiest connections, errors and events.

    On a terminal it is a screen, which `q` ends; elsewhere, and with `--json`, it is lines. Where
    tokens are configured, it needs one with `admin`.

    Examples:

        wirelake top

        wirelake --context prod top

        wirelake top http://localhost:7780 --json --count 1 | jq .clients
    """

    def show(board: watch.TopBoard) -> None:
        nonlocal count
        told = board.as_object()
        if as_json:
            write_object(told or {"url": board.url, "state": "unknown", "text": board.blindness})
        else:
            write_line(f"{time.strftime('%H:%M:%S')} {board.summary()}")
        count -= 1
        if count == 0:
            raise typer.Exit

    def work(http: HttpClient) -> watch.Top:
        found = watch.Top(http)
        found.read()  # what is wrong is said before there is a screen
        return found

    shown = asked(url, token, ANSWER, work)
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and not Console().is_dumb_terminal
    if is_terminal and not as_json:
        run(until_told(shown.on_screen()))
        return
    with errors_in_one_line():
        shown.lines(every, show)


def health(
    url: HttpUrl,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for a healthy broker.")] = 0.0,
    timeout: Patience = ANSWER,
    as_json: AsJson = False,
    token: Token = "",
) -> None:
    """Say whether a broker can persist what it accepts: exit code 0 if so, else 1.

    Examples:

        wirelake health

        wirelake health http://localhost:7780 --wait 30 && echo ready
    """
    until = time.monotonic() + wait
    while True:
        try:
            told = asked(url, token, timeout, watch.health) if not wait else _tried(url, token)
        except (EngineError, RefusedError, TimeoutError) as error:
            told = {"state": "unreachable", "text": str(error)}
        if told["state"] == "ok" or time.monotonic() >= until:
            break
        time.sleep(AGAIN)
    if as_json:
        write_object(told)
    elif told["state"] == "ok":
        write_line("ok")
    else:
        write_line(str(told["state"]), str(told.get("text", "")))
    if told["state"] != "ok":
        raise typer.Exit(FAILED)


def _tried(url: str, token: str) -> dict[str, Any]:
    """One look at a broker that may not be there yet."""
    return watch.health(http_client(url, token, timeout=ANSWER))


def events(
    url: HttpUrl,
    filters: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILTER", help="Messages of these addresses instead."),
    ] = None,
    last: Annotated[
        int, typer.Option(min=0, max=100, help="Begin with this many events of the past.")
    ] = 10,
    count: Count = 0,
    timeout: Timeout = 0,
    as_json: AsJson = False,
    token: Token = "",
) -> None:
    """Show what a broker tells operators as it happens: slow consumers, take-overs, trouble.

    With filters it shows the messages that are published there, as `wirelake sub` does, but over
    HTTP. With `--count`, the exit code is 4 when `--timeout` comes first.

    Examples:

        wirelake events

        wirelake events http://localhost:7780 --json | jq -r .text

        wirelake events 'house/#'
    """
    shown = 0

    def show(told: dict[str, Any]) -> None:
        nonlocal shown
        _write(told, is_event=not filters, as_json=as_json)
        shown += 1
        if shown == count:
            raise typer.Exit

    def work(http: HttpClient) -> None:
        if not filters and last:
            for event in remembered(http)[-last:]:
                show(event)
        for message in within(follow(http, filters or [OWN], Losses()), timeout):
            show(message if filters else event_of(message))
        if count:
            fail("time is up", TIMED_OUT, "timeout")

    asked(url, token, SILENCE, work)


def _write(told: dict[str, Any], *, is_event: bool, as_json: bool) -> None:
    if as_json:
        write_object(told if is_event else as_told(told))
    elif is_event:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(int(told.get("time", 0)) / 1e6))
        kind = str(told.get("event", "")).replace("_", " ")
        write_line(at, kind, str(told.get("who", "")), str(told.get("text", "")))
    else:
        write_line(str(told.get("address", "")), as_text(payload_of(told)))
