"""The data store by HTTP: a key is a resource, and its revision the ETag."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from wirelake.address import check_filter, check_topic
from wirelake.broker.local import LocalLink, LocalSession
from wirelake.broker.node import Node
from wirelake.broker.rights import Rights
from wirelake.errors import RefusedError
from wirelake.http.exchange import (
    MOST,
    MOST_BYTES,
    PreconditionError,
    answer,
    body,
    header,
    is_forwarded,
    number,
    one,
    path_part,
    peer,
    query,
    require,
    rights_of,
    value_as_json,
)
from wirelake.http.gate import Gate
from wirelake.http.relay import Relay
from wirelake.journal.engine import Entry
from wirelake.message import LARGEST, Message

_ETAG = re.compile(r'"([0-9]{1,18})"')


class Keys:
    """The endpoints of the data store."""

    def __init__(self, gate: Gate, relay: Relay) -> None:
        self._relay = relay
        self._gate = gate
        self._node: Node = gate.node

    async def list(self, request: Request) -> Response:
        """The keys that a filter matches, with their values, in order; `after` asks for more."""
        found = query(request, "filter", "after", "limit")
        filter = check_filter(one(found, "filter", "#"))
        after = one(found, "after")
        limit = number(one(found, "limit", str(MOST)), "limit", least=1, most=MOST)
        rights = rights_of(request, self._node)

        def page(after: str) -> tuple[list[Entry], str]:
            with self._session(request, rights) as session:
                return self._node.store.page(session, filter, after)

        entries: list[Entry] = []
        while True:  # page by page, so that the broker is not kept from everything else
            looked_up, after = await self._gate.ask(partial(page, after))
            entries += [entry for entry in looked_up if entry.value is not None]
            size = sum(len(entry.value or b"") for entry in entries)
            if not after or len(entries) > limit or size > MOST_BYTES:
                break
        shown: list[dict[str, Any]] = []
        size = 0
        for entry in entries[:limit]:
            value = entry.value or b""
            size += len(value)
            if shown and size > MOST_BYTES:
                break
            expires = {"expires": entry.expires} if entry.expires else {}
            described = {"key": entry.key, "revision": entry.revision, **expires}
            shown.append({**described, **value_as_json(value, "value")})
        more = bool(after) or len(shown) < len(entries)
        if self._relay.is_shared and not is_forwarded(request):
            parts = [{"keys": shown, "more": more}, *await self._relay.ask_owners(request)]
            shown, more = _merged(parts, limit)
        return answer({"keys": shown, "more": more})

    async def read(self, request: Request) -> Response:
        """A key's value."""
        query(request)
        message = Message(address=path_part(request, "key"))
        rights = rights_of(request, self._node)

        def read() -> Entry:
            with self._session(request, rights) as session:
                return self._node.store.read(session, message)

        # In a cluster a read may have to prove first that this node still owns the key.
        is_shared = self._node.engine.is_shared
        entry = await (self._gate.change(read) if is_shared else self._gate.ask(read))
        headers = {"ETag": f'"{entry.revision}"'}
        known = header(request, "if-none-match")
        if known == "*" or headers["ETag"] in known.replace("W/", "").split(", "):
            return Response(status_code=304, headers=headers)
        return Response(entry.value, 200, headers, "application/octet-stream")

    async def write(self, request: Request) -> Response:
        """Create a key or give it a new value."""
        ttl = number(one(query(request, "ttl"), "ttl", "0"), "ttl", most=LARGEST["ttl"])
        rights = rights_of(request, self._node)
        key = check_topic(path_part(request, "key"))
        expected, only_new = _revision(request), header(request, "if-none-match")
        if only_new not in ("", "*"):
            raise RefusedError("bad_request", "If-None-Match is * here")
        require(rights, "store", key)
        value = await body(request, self._node.limits.message)

        def write() -> tuple[Entry, bool]:
            with self._session(request, rights) as session:
                store, now = self._node.store, time.monotonic()
                message = Message(address=key, payload=value, ttl=ttl)
                try:
                    is_there = store.read(session, message).value is not None
                except RefusedError as error:
                    if error.code != "not_found":
                        raise
                    is_there = False
                if is_there and only_new:
                    waits = self._node.engine.is_shared
                    raise PreconditionError("exists", f"{key} is there", waits=waits)
                _expect(self._node, session, key, expected, is_there)
                if is_there:
                    return store.update(session, message, now), False
                return store.create(session, message, now), True

        entry, is_new = await self._gate.change(write)
        etag = {"ETag": f'"{entry.revision}"'}
        return answer({"key": key, "revision": entry.revision}, 201 if is_new else 200, etag)

    async def delete(self, request: Request) -> Response:
        """Remove a key."""
        query(request)
        rights = rights_of(request, self._node)
        message = Message(address=path_part(request, "key"))
        expected = _revision(request)

        def delete() -> Entry:
            with self._session(request, rights) as session:
                self._node.store.read(session, message)
                _expect(self._node, session, message.address, expected, True)
                return self._node.store.delete(session, message, time.monotonic())

        entry = await self._gate.change(delete)
        return Response(status_code=204, headers={"ETag": f'"{entry.revision}"'})

    def _session(self, request: Request, rights: Rights) -> _Visit:
        return _Visit(self._node, rights, peer(request))


def _merged(parts: list[dict[str, Any]], limit: int) -> tuple[list[dict[str, Any]], bool]:
    """Pages of several nodes as one, and whether there are more keys.

    Behind the last key of a page that has more, only that node knows what comes next.
    """
    known = [part["keys"][-1]["key"] for part in parts if part["more"] and part["keys"]]
    found = sorted((one for part in parts for one in part["keys"]), key=lambda one: one["key"])
    shown: list[dict[str, Any]] = []
    size = 0
    for entry in found:
        size += len(entry.get("value", entry.get("base64", "")))
        is_certain = not known or entry["key"] <= min(known)
        if not is_certain or len(shown) >= limit or (shown and size > MOST_BYTES):
            return shown, True
        shown.append(entry)
    return shown, any(part["more"] for part in parts)


class _Visit:
    """A session for one call, on the broker's thread."""

    def __init__(self, node: Node, rights: Rights, name: str) -> None:
        self._session = LocalSession(node, LocalLink(name, bool), rights, time.monotonic())

    def __enter__(self) -> LocalSession:
        return self._session

    def __exit__(self, *error: object) -> None:
        self._session.lost("done")


def _revision(request: Request) -> str:
    """The revision that If-Match expects, `*` for any, empty where nothing is expected."""
    given = header(request, "if-match")
    if given in ("", "*"):
        return given
    found = _ETAG.fullmatch(given)
    if found is None:
        raise RefusedError("bad_request", 'If-Match is a revision, as "7", or *')
    return found[1]


def _expect(node: Node, session: LocalSession, key: str, expected: str, is_there: bool) -> None:
    """Refuse a change of a key that is not as expected."""
    if not expected:
        return
    if not is_there:
        raise PreconditionError("conflict", f"there is no key {key}", waits=node.engine.is_shared)
    revision = node.store.read(session, Message(address=key)).revision
    if expected not in ("*", str(revision)):
        text = f"{key} has revision {revision}, not {expected}"
        raise PreconditionError("conflict", text, waits=node.engine.is_shared)
