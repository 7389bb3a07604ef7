"""What happens in a broker, for operators: over HTTP, for as long as somebody listens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, Queue
from typing import Any, TypeVar

from wirelake.client.http import HttpClient
from wirelake.errors import EngineError, RefusedError

T = TypeVar("T")

#: What is read before it is needed.
READ_AHEAD = 1000
#: The address at which a broker tells operators of events.
OWN = "$events"
#: Seconds between two tries to connect again, at first and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


def remembered(http: HttpClient) -> list[dict[str, Any]]:
    """Return the latest events that the broker remembers; needs the right `admin`."""
    with http.events("/v1/live", part="trouble") as stream:
        for name, told in stream:
            if name == "figures" and isinstance(told, dict):
                found = told.get("trouble", {}).get("events", [])
                return [one for one in found if isinstance(one, dict)]
    return []


def follow(
    http: HttpClient, filters: Sequence[str], on_connection: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """Yield messages of these filters as `/v1/events` tells them, for ever.

    When the connection is lost it is tried again; `on_connection` is called with the reason, and
    with an empty text when it is back. What the broker refuses, and a first connection that fails,
    is raised.
    """
    is_lost, was_there = False, False
    pause = FIRST_PAUSE
    while True:
        try:
            with http.events("/v1/events", filter=list(filters)) as stream:
                for name, told in stream:
                    was_there, pause = True, FIRST_PAUSE
                    if is_lost:
                        is_lost = False
                        on_connection("")
                    if name == "message" and isinstance(told, dict):
                        yield told
            trouble = "the broker has ended the stream"
        except RefusedError as error:
            if not was_there or error.code not in ("busy", "closed", "timeout"):
                raise
            trouble = str(error)
        except (EngineError, TimeoutError) as error:
            if not was_there:
                raise
            trouble = str(error)
        if not is_lost:
            is_lost = True
            on_connection(trouble)
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def within(stream: Iterator[T], seconds: float) -> Iterator[T]:
    """Yield what a blocking iterator does, but end after this many seconds; 0 is never.

    It is read in a thread, which stays behind, waiting, until the process ends.
    """
    if not seconds:
        yield from stream
        return
    arrived: Queue[T | BaseException | None] = Queue(READ_AHEAD)

    def read() -> None:
        try:
            for one in stream:
                arrived.put(one)
            arrived.put(None)
        except BaseException as error:  # noqa: BLE001 - raised again where it is awaited
            arrived.put(error)

    threading.Thread(target=read, daemon=True).start()
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        try:
            one = arrived.get(timeout=left)
        except Empty:
            return
        if one is None:
            return
        if isinstance(one, BaseException):
            raise one
        yield one


def event_of(message: dict[str, Any]) -> dict[str, Any]:
    """Return the event that a message to `$events` is; raises ValueError if it is none."""
    event = json.loads(str(message.get("payload", "")))
    if not isinstance(event, dict):
        raise ValueError("an event is an object")
    return event
