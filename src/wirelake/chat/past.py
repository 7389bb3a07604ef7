"""A room's past, from the broker's log over HTTP: history, topic, search, rooms.

Everything here blocks, so members call it in threads. Where a broker has no log or no HTTP, or the
token may not read it, there is no past: a chat works without.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from wirelake.chat.room import ASIDE, TALK, Entry, Kind, Note, plain_text, read
from wirelake.client.finding import http_client
from wirelake.client.http import HttpClient
from wirelake.errors import WirelakeError

#: Seconds that the broker's HTTP may take to answer.
TIMEOUT = 5.0
#: A search of the log ends after two seconds; it is continued until it was asked this many times.
TURNS = 4
#: Messages of a room that are there on joining; those that a search looks at; those it shows.
RECENT, LOOKED_AT, FOUND = 200, 1000, 20


class Past:
    """The past of the rooms of one broker; methods raise nothing but return what there is."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    @classmethod
    def find(cls, url: str, token: str = "") -> Past | None:
        """Return the past that the broker at any of its URLs has, None if it has none."""
        try:
            http = http_client(url, token, timeout=TIMEOUT)
            told = http.get("/v1/session")
        except (WirelakeError, TimeoutError):
            return None
        return cls(http) if isinstance(told, dict) and told.get("log") else None

    def recent(self, room: str, most: int = RECENT) -> list[Entry]:
        """Return the latest talk of a room, the oldest first."""
        return [entry for entry, _ in self._talk(room, most)][::-1]

    def topic(self, room: str) -> Note | None:
        """Return the latest note that set the topic of a room."""
        for _, note in self._notes(room + ASIDE, FOUND, text=f" {Kind.TOPIC} "):
            if note is not None and note.kind is Kind.TOPIC and note.room == room:
                return note
        return None

    def search(self, room: str, words: str) -> list[Entry]:
        """Return talk of a room with these words in it, the oldest first.

        Upper and lower case are the same in the latest messages, and differ in older ones.
        """
        wanted = words.casefold()
        found: dict[str, Entry] = {}
        for query in ({}, {"text": words}):
            for entry, _ in self._talk(room, LOOKED_AT, **query):
                if wanted in entry.text.casefold() or wanted == entry.name.casefold():
                    found.setdefault(entry.id or f"{entry.at} {entry.text}", entry)
        return sorted(found.values(), key=lambda one: one.at)[-FOUND:]

    def rooms(self) -> list[str]:
        """Return the rooms that somebody is in, as the console lists them."""
        topics = self._ask("/v1/addresses").get("topics", [])
        filters = [str(one.get("filter", "")) for one in topics]
        return sorted({one.removesuffix(ASIDE) for one in filters if one.endswith(ASIDE)})

    def _talk(self, room: str, limit: int, **query: object) -> Iterator[tuple[Entry, Note | None]]:
        """Talk of a room, the newest first."""
        for row, note in self._notes(room, limit, **query):
            at = datetime.fromtimestamp(int(row.get("time", 0)) / 1e6).astimezone()
            if note is None:
                text = plain_text(_payload(row))
                if text:
                    yield Entry(at, Kind.SAY, text, is_old=True), None
            elif note.kind in TALK:
                yield Entry(at, note.kind, note.text, note.name, note.id, is_old=True), note

    def _notes(
        self, address: str, limit: int, **query: object
    ) -> Iterator[tuple[dict[str, Any], Note | None]]:
        """Rows of an address, the newest first, with what they say in the chat's format."""
        for _ in range(TURNS):
            told = self._ask("/v1/rows", filter=address, op="publish", limit=limit, **query)
            rows = told.get("rows", [])
            for row in rows:
                yield row, read(_payload(row), address)
            limit -= len(rows)
            if limit <= 0 or not told.get("more"):
                return
            query["before"] = ",".join(f"{one}:{offset}" for one, offset in told["before"].items())

    def _ask(self, path: str, **query: object) -> dict[str, Any]:
        try:
            told = self._http.ask("GET", path, **query)
        except (WirelakeError, TimeoutError):
            return {}
        return told if isinstance(told, dict) else {}


def _payload(row: dict[str, Any]) -> bytes:
    if "payload" in row:
        return str(row["payload"]).encode()
    try:
        return base64.b64decode(str(row.get("base64", "")))
    except ValueError:
        return b""
