"""The chat without a screen, for pipes: lines in are said, what is heard is a line out.

With `--json` each line out is an object with an `event`: `said`, `notice`, `tick`, `lost` or
`connected`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

from wirelake.cli.chat.member import Member
from wirelake.cli.chat.room import Entry, Kind, Room
from wirelake.cli.chat.session import Session
from wirelake.errors import WirelakeError

MAX_LINE = 64 << 10
MAX_AHEAD = 100  # lines read and not said yet


class Printer:
    """Shows on standard output what happens."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json
        self.member: Member | None = None
        self.failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._trouble = ""

    def is_watching(self, room: Room) -> bool:
        """Everything is shown."""
        return True

    def added(self, room: Room, entry: Entry) -> None:
        """What another one said, or a notice."""
        if self.as_json:
            event: dict[str, object] = {
                "event": "said" if entry.kind else "notice",
                "room": room.name,
            }
            if entry.kind:
                own = entry.tick is not None
                event |= {"kind": entry.kind, "name": entry.name, "id": entry.id, "own": own}
            self._write(event | {"text": entry.text, "time": entry.at.isoformat()})
        elif entry.tick is None:
            several = self.member is not None and len(self.member.rooms) > 1
            place = f"#{room.name} " if several else ""
            self._print(place + as_text(entry))

    def ticked(self, room: Room, entry: Entry) -> None:
        """More is known of what we said."""
        assert entry.tick is not None
        if self.as_json:
            tick = {"tick": entry.tick.name.lower(), "why": entry.why}
            self._write({"event": "tick", "room": room.name, "id": entry.id, **tick})
        elif entry.why:
            self._print(f"* not delivered: {entry.text} ({entry.why})")

    def stirred(self) -> None:
        """Tell when the connection is lost, and when it is there again."""
        trouble = self.member.trouble if self.member else ""
        if bool(trouble) != bool(self._trouble):
            if self.as_json:
                self._write({"event": "lost" if trouble else "connected", "text": trouble})
            else:
                self._print(f"* {trouble or 'connected again'}")
        self._trouble = trouble

    def ended(self, error: WirelakeError) -> None:
        """The connection will not come back."""
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
    """An entry as a line."""
    if entry.kind is None:
        return f"* {entry.text}"
    name = entry.name or "?"
    return f"* {name} {entry.text}" if entry.kind is Kind.ME else f"{name}: {entry.text}"


async def talk(session: Session, printer: Printer, duration: float) -> None:
    """Say the lines of standard input; to their end, or for so many seconds."""

    async def read() -> None:
        async for line in _lines():
            await session.type(line)
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


async def _lines() -> AsyncIterator[str]:
    """The lines of standard input; by a thread, since a file can be waited for in no other way."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes | None] = asyncio.Queue()
    room = threading.Semaphore(MAX_AHEAD)

    def put(line: bytes | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(lines.put_nowait, line)

    def read() -> None:
        rest = b""
        with suppress(RuntimeError):  # the loop may be gone before the input ends
            while data := os.read(sys.stdin.fileno(), MAX_LINE):
                *whole, rest = (rest + data).split(b"\n")
                if len(rest) > MAX_LINE:
                    whole, rest = [*whole, rest], b""
                for line in whole:
                    put(line)
            if rest:
                put(rest)
            put(None)

    threading.Thread(target=read, daemon=True).start()
    while (line := await lines.get()) is not None:
        room.release()
        yield line.decode(errors="replace")
