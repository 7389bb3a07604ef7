"""Requests and replies: a request goes to one of those that serve its address, in turn.

The broker passes a request on under a correlation id of its own, so that two requesters may use the
same one; the reply goes back under the requester's. A requester always learns what became of its
request: a reply, or an error (spec: requests).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from msgspec.structs import replace

from wirelake.address import check_address
from wirelake.broker.deadlines import Deadlines
from wirelake.errors import RefusedError
from wirelake.message import Message

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.session import Session

#: How long a request without a ttl may take, in seconds.
TIMEOUT = 30.0


@dataclass(eq=False, slots=True)
class _Open:
    """A request on its way."""

    request: Message
    requester: Session
    service: Session
    since: float


@dataclass(eq=False, slots=True)
class _Share:
    """What one session has to do with: addresses that it serves, and numbers of open requests."""

    serves: dict[str, None] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)
    to_answer: dict[str, None] = field(default_factory=dict)


class Services:
    """Who serves what, and the requests that have no reply yet."""

    def __init__(self, node: Node, timeout: float = TIMEOUT) -> None:
        self._node = node
        self.timeout = timeout
        self._servers: dict[str, OrderedDict[Session, None]] = {}  # the next one first
        self._shares: dict[Session, _Share] = {}
        self._served = 0  # sum of the addresses that each session serves
        self._open: dict[str, _Open] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._number = count(1)

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    def addresses(self) -> dict[str, int]:
        """Every address that is served, and by how many."""
        return {address: len(servers) for address, servers in self._servers.items()}

    def is_open(self, number: str) -> bool:
        """Is a request with this number of ours waiting for its reply?"""
        return number in self._open

    def serve(self, session: Session, address: str) -> None:
        """Let a session answer the requests to an address."""
        check_address(address)
        if not session.rights.allows("serve", address):
            raise RefusedError("unauthorized", f"no right to serve {address}")
        self._node.quotas.check_levels(address)
        mine = self._share(session).serves
        if address not in mine:
            self._node.quotas.check("services", len(mine), self._served)
            self._servers.setdefault(address, OrderedDict())[session] = None
            mine[address] = None
            self._served += 1

    def unserve(self, session: Session, address: str) -> None:
        """Take that back; an empty address takes all of them."""
        mine = self._share(session).serves
        if address and address not in mine:
            raise RefusedError("not_found", f"{address} is not served by this connection")
        for name in [address] if address else list(mine):
            del mine[name]
            self._served -= 1
            del self._servers[name][session]
            if not self._servers[name]:
                del self._servers[name]

    def _share(self, session: Session) -> _Share:
        share = self._shares.get(session)
        if share is None:
            share = self._shares[session] = _Share()
        return share

    def request(self, session: Session, request: Message, now: float) -> None:
        """Pass a request on to the next of those that serve its address."""
        if not session.rights.allows("publish", check_address(request.address)):
            # The same text as for a topic: nobody learns whether this is served.
            raise RefusedError("unauthorized", "no right to publish to this address")
        asked = self._share(session).asked
        self._node.quotas.check("requests", len(asked), len(self._open))
        servers = self._servers.get(request.address, OrderedDict())
        for _ in range(len(servers)):
            service = next(iter(servers))
            servers.move_to_end(service)
            number = f"r{next(self._number)}"
            passed = replace(
                request, op="request", correlation_id=number, source=session.client_id, target=""
            )
            # Of a request that waits for its reply nothing large is kept.
            kept = replace(request, payload=b"", headers={})
            self._open[number] = _Open(kept, session, service, now)
            asked[number] = self._share(service).to_answer[number] = None
            if service.send(passed):
                self._node.capture.add(passed, now)
                wait = request.ttl / 1000 if request.ttl and not session.counts_hops else None
                deadline = now + (self.timeout if wait is None else wait)
                self._deadlines.set(number, deadline)
                return
            self._close(number)
        raise RefusedError("no_service", f"nobody serves {request.address}")

    def _close(self, number: str) -> _Open:
        """Take a request out of those that are open."""
        found = self._open.pop(number)
        self._deadlines.discard(number)
        for session, kind in ((found.requester, "asked"), (found.service, "to_answer")):
            if session in self._shares:
                getattr(self._shares[session], kind).pop(number, None)
        return found

    def reply(self, session: Session, reply: Message, now: float) -> None:
        """Pass a reply back to whoever asked; one that is late or made up is dropped."""
        found = self._open.get(reply.correlation_id)
        if found is None or found.service is not session:
            self._node.count_dropped("late_reply")
            return
        self._close(reply.correlation_id)
        self._node.traffic.requests.add(now - found.since)
        passed = replace(
            reply,
            op="reply",
            address=found.request.address,
            id=found.request.id,
            source=session.client_id,
            target=found.requester.client_id,
            headers={k: v for k, v in reply.headers.items() if not k.startswith("$")},
        )
        # In the log both have the broker's own number, which nobody else uses.
        self._node.capture.add(passed, now)
        found.requester.send(replace(passed, correlation_id=found.request.correlation_id))

    def left(self, session: Session, now: float) -> None:
        """A session has ended: what it serves is free, and its open requests have failed."""
        if session not in self._shares:
            return
        self.unserve(session, "")
        share = self._shares.pop(session)
        for number in share.asked:
            self._close(number)
        for number in share.to_answer:
            if number in self._open:  # it may have asked itself
                self._fail(number, RefusedError("closed", "the service has disconnected"), now)

    def tick(self, now: float) -> None:
        """Fail the requests whose time is up."""
        for number in self._deadlines.due(now):
            self._fail(number, RefusedError("timeout", "no reply in time"), now)

    def _fail(self, number: str, error: RefusedError, now: float) -> None:
        found = self._close(number)
        self._node.capture.add(
            Message(
                op="error",
                address=found.request.address,
                correlation_id=number,
                target=found.requester.client_id,
                payload=error.text.encode(),
                headers={"$code": error.code},
            ),
            now,
        )
        self._node.count_refused(error.code)
        if not found.requester.closed:
            found.requester.refuse(found.request, error)
