"""The chat without a screen, for pipes: each input line is sent, each message is an output line.

With `as_json` each output line is an object with an `event`: `said`, `notice`, `tick`, `lost` or
`connected`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

from wirelake.chat.member import Member
from wirelake.chat.room import BREAK, Entry, Kind, Room
from wirelake.chat.session import Session
from wirelake.errors import WirelakeError

MAX_LINE = 64 << 10  # bytes; longer lines are cut


class Printer:
    """A watcher that prints events to standard output."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.member: Member | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._trouble = ""

    def is_watching(self, room: Room) -> bool:
        """Always: each message is printed."""
        return True

    def added(self, room: Room, entry: Entry) -> None:
        """Print another member's message, or a notice."""
        if self.as_json:
            event: dict[str, object] = {
                "event": "said" if entry.kind else "notice",
                "room": room.name,
            }
            if entry.kind:
                own = entry.tick is not None
                event |= {"kind": entry.kind, "name": entry.name, "id": entry.id, "own": own}
            if entry.to:
                event["to"] = entry.to
            text = entry.text.replace(BREAK, "\n")
            self._write(event | {"text": text, "time": entry.at.isoformat()})
        elif entry.tick is None:
            several = self.member is not None and len(self.member.rooms) > 1
            place = f"#{room.name} " if several else ""
            self._print(place + as_text(entry))

    def ticked(self, room: Room, entry: Entry) -> None:
        """Print the delivery state of a message of ours; as text, only if it failed."""
        assert entry.tick is not None
        if self.as_json:
            tick = {"tick": entry.tick.name.lower(), "why": entry.why}
            self._write({"event": "tick", "room": room.name, "id": entry.id, **tick})
        elif entry.why:
            self._print(f"* not delivered: {entry.text} ({entry.why})")

    def stirred(self) -> None:
        """Print when the connection is lost, and when it is back."""
        trouble = self.member.trouble if self.member else ""
        if bool(trouble) != bool(self._trouble):
            if self.as_json:
                self._write({"event": "lost" if trouble else "connected", "text": trouble})
            else:
                self._print(f"* {trouble or 'connected again'}")
        self._trouble = trouble

    def ended(self, error: WirelakeError) -> None:
        """Make `talk` raise the error."""
        if not self.failure.done():
            self.failure.set_exception(error)

    def _write(self, event: dict[str, object]) -> None:
        self._print(json.dumps(event, ensure_ascii=False))

    def _print(self, line: str) -> None:
        try:
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        except BrokenPipeError as error:  # nobody reads any more
            if not self.failure.done():
                self.failure.set_exception(error)


def as_text(entry: Entry) -> str:
    """An entry as one line of text."""
    if entry.kind is None:
        return f"* {entry.text}"
    name, text = entry.name or "?", entry.text.replace(BREAK, " ⏎ ")
    if entry.to:
        return f"{name} → {entry.to}: {text}"
    return f"* {name} {text}" if entry.kind is Kind.ME else f"{name}: {text}"


async def talk(
    session: Session, printer: Printer, lines: AsyncIterator[bytes], duration: float
) -> None:
    """Send lines until there are no more, or for `duration` seconds if that is not 0."""

    async def read() -> None:
        async for line in lines:
            await session.type(line.decode(errors="replace"))
        if duration:
            await asyncio.sleep(duration)
        await session.member.finish()

    reading = asyncio.create_task(read())
    over = asyncio.create_task(session.over.wait())
    ends: list[asyncio.Future[Any]] = [reading, over, printer.failure]
    try:
        await asyncio.wait(ends, timeout=duration or None, return_when=asyncio.FIRST_COMPLETED)
        if printer.failure.done():
            await printer.failure
        if reading.done():
            await reading
        elif over.done():
            await session.member.finish()
    finally:
        for task in (reading, over):
            task.cancel()
        await asyncio.gather(reading, over, return_exceptions=True)


def read_lines(file: int) -> Iterator[bytes]:
    """The lines of an open file as they arrive, without their ends; the last may be unfinished."""
    rest = b""
    while data := os.read(file, MAX_LINE):
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > MAX_LINE:
            whole, rest = [*whole, rest], b""
        yield from whole
    if rest:
        yield rest
