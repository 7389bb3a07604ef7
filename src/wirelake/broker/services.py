"""Requests and replies: a request goes to one of those that serve its address, in turn.

The broker passes a request on under a correlation id of its own, so that two requesters may use the
same one; the reply goes back under the requester's. A requester always gets a reply or an error
(spec: requests).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count

from msgspec.structs import replace

from wirelake.address import check_address
from wirelake.broker.capture import Capture
from wirelake.broker.deadlines import Deadlines
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.quotas import Quotas
from wirelake.broker.traffic import Traffic
from wirelake.broker.vitals import Vitals
from wirelake.dialects import HOPS
from wirelake.errors import RefusedError
from wirelake.message import NO_PARAMETERS, Message, Op, Parameters

#: How long a request without a ttl may take, in seconds.
TIMEOUT = 30.0


@dataclass(eq=False, slots=True)
class _Open:
    """A request that has no reply yet."""

    request: Message
    requester: Endpoint
    service: Endpoint
    since: float


@dataclass(eq=False, slots=True)
class _Share:
    """The addresses that a session serves, and the numbers of its open requests."""

    serves: dict[str, None] = field(default_factory=dict)
    asked: dict[str, None] = field(default_factory=dict)
    to_answer: dict[str, None] = field(default_factory=dict)


class Services:
    """Who serves what, and the requests that have no reply yet."""

    def __init__(self, vitals: Vitals, quotas: Quotas, capture: Capture, traffic: Traffic) -> None:
        self._vitals = vitals
        self._quotas = quotas
        self._capture = capture
        self._traffic = traffic
        self.timeout = TIMEOUT
        self._servers: dict[str, OrderedDict[Endpoint, None]] = {}  # the next one first
        self._shares: dict[Endpoint, _Share] = {}
        self._served = 0  # sum of the addresses that each session serves
        self._open: dict[str, _Open] = {}
        self._deadlines: Deadlines[str] = Deadlines()
        self._number = count(1)
        #: Ends the numbers of requests: tells which node of a cluster gave them.
        self.mark = ""

    def __contains__(self, address: str) -> bool:
        return address in self._servers

    def addresses(self) -> dict[str, int]:
        """Return every address that is served, and the number of its services."""
        return {address: len(servers) for address, servers in self._servers.items()}

    def is_open(self, number: str) -> bool:
        """Return whether the request of this number, one of ours, waits for its reply."""
        return number in self._open

    def serve(self, session: Endpoint, address: str) -> None:
        """Register a session as a service of an address; raises RefusedError."""
        self.check(session, address)
        mine = self._share(session).serves
        if address not in mine:
            self._quotas.check("services", len(mine), self._served)
            self._servers.setdefault(address, OrderedDict())[session] = None
            mine[address] = None
            self._served += 1

    def check(self, session: Endpoint, address: str) -> None:
        """Raise RefusedError where a session may not serve an address."""
        check_address(address)
        if not session.rights.allows("serve", address):
            raise RefusedError("unauthorized", f"no right to serve {address}")
        self._quotas.check_levels(address)

    def unserve(self, session: Endpoint, address: str) -> None:
        """Unregister a session from an address, or from all where the address is empty."""
        mine = self._share(session).serves
        if address and address not in mine:
            raise RefusedError("not_found", f"{address} is not served by this connection")
        for name in [address] if address else list(mine):
            del mine[name]
            self._served -= 1
            del self._servers[name][session]
            if not self._servers[name]:
                del self._servers[name]

    def _share(self, session: Endpoint) -> _Share:
        share = self._shares.get(session)
        if share is None:
            share = self._shares[session] = _Share()
        return share

    def request(self, session: Endpoint, request: Message, now: float) -> None:
        """Pass a request on to the next service of its address; raises RefusedError."""
        if not session.rights.allows("publish", check_address(request.address)):
            # The same text as for a topic: nobody learns whether this is served.
            raise RefusedError("unauthorized", "no right to publish to this address")
        asked = self._share(session).asked
        self._quotas.check("requests", len(asked), len(self._open))
        servers = self._servers.get(request.address, OrderedDict())
        for _ in range(len(servers)):
            service = next(iter(servers))
            servers.move_to_end(service)
            number = f"r{next(self._number)}{self.mark}"
            passed = replace(
                request, op=Op.REQUEST, correlation_id=number, source=session.client_id, target=""
            )
            # Of a request that waits for its reply nothing large is kept.
            kept = replace(request, payload=b"", headers={}, parameters=NO_PARAMETERS)
            self._open[number] = _Open(kept, session, service, now)
            asked[number] = self._share(service).to_answer[number] = None
            if service.send(passed):
                self._capture.add(passed, now)
                wait = request.ttl / 1000 if request.ttl and session.dialect not in HOPS else None
                deadline = now + (self.timeout if wait is None else wait)
                self._deadlines.set(number, deadline)
                return
            self._close(number)
        raise RefusedError("no_service", f"nobody serves {request.address}")

    def _close(self, number: str) -> _Open:
        """Remove a request from the open ones, and return it."""
        found = self._open.pop(number)
        self._deadlines.discard(number)
        for session, kind in ((found.requester, "asked"), (found.service, "to_answer")):
            if session in self._shares:
                getattr(self._shares[session], kind).pop(number, None)
        return found

    def reply(self, session: Endpoint, reply: Message, now: float) -> None:
        """Pass a reply back to the requester; a reply without an open request is dropped."""
        found = self._open.get(reply.correlation_id)
        if found is None or found.service is not session:
            self._vitals.count_dropped("late_reply")
            return
        self._close(reply.correlation_id)
        self._traffic.requests.add(now - found.since)
        passed = replace(
            reply,
            op=Op.REPLY,
            address=found.request.address,
            id=found.request.id,
            source=session.client_id,
            target=found.requester.client_id,
            parameters=NO_PARAMETERS,
        )
        # In the log both have the broker's own number, which nobody else uses.
        self._capture.add(passed, now)
        found.requester.send(replace(passed, correlation_id=found.request.correlation_id))

    def left(self, session: Endpoint, now: float) -> None:
        """Unregister a session that has ended, and fail the requests that it should answer."""
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
        """Fail the requests that have timed out."""
        for number in self._deadlines.due(now):
            self._fail(number, RefusedError("timeout", "no reply in time"), now)

    def _fail(self, number: str, error: RefusedError, now: float) -> None:
        found = self._close(number)
        self._capture.add(
            Message(
                op=Op.ERROR,
                address=found.request.address,
                correlation_id=number,
                target=found.requester.client_id,
                payload=error.text.encode(),
                parameters=Parameters(code=error.code),
            ),
            now,
        )
        self._vitals.count_refused(error.code)
        if not found.requester.closed:
            found.requester.refuse(found.request, error)
