"""The contents of a broker for those who ask: addresses, connections, queues.

HTTP's admin interface and TMQ's server messages give the same answers, so they are made here. The
values are plain and can be written as JSON.
"""

from __future__ import annotations

from typing import Any

import msgspec

from wirelake.broker.endpoint import Endpoint
from wirelake.broker.node import Node
from wirelake.broker.queue import Queue
from wirelake.broker.rights import Rights


def addresses(node: Node, rights: Rights) -> dict[str, Any]:
    """What is subscribed to, queued and served, as far as these rights go."""
    topics: dict[str, int] = {}
    for session in node.sessions:
        for filter in session.filters:
            topics[filter] = topics.get(filter, 0) + 1
    services = node.services.addresses()
    return {
        "topics": [
            {"filter": filter, "subscribers": count}
            for filter, count in sorted(topics.items())
            if rights.allows("subscribe", filter)
        ],
        "queues": sorted(
            queue.settings.name
            for queue in node.queues.all()
            if rights.allows("subscribe", queue.settings.name)
        ),
        "services": [
            {"address": address, "servers": servers}
            for address, servers in sorted(services.items())
            if rights.allows("publish", address)
        ],
    }


def connections(node: Node, now: float) -> list[dict[str, Any]]:
    """Every connection, for those with the right `admin`."""
    return [connection(session, now) for session in node.sessions]


def connection(session: Endpoint, now: float) -> dict[str, Any]:
    """One connection, for those with the right `admin`."""
    return {
        "number": session.number,
        "id": session.client_id,
        "dialect": session.dialect,
        "peer": session.link.peer,
        "rights": session.rights.name,
        "subscriptions": [*session.filters, *session.consumes],
        "bytes_waiting": session.link.buffered,
        "received": session.received,
        "delivered": session.delivered,
        "bytes_in": session.bytes_in,
        "bytes_out": session.link.moved,
        "age": round(max(0.0, now - session.since), 3),
        "silent": round(max(0.0, now - session.last_heard), 3),
        "waits": bool(session.waits_for),
    }


def queue(queue: Queue, now: float) -> dict[str, Any]:
    """A queue's settings and state."""
    return {**msgspec.structs.asdict(queue.settings), **queue.state(now)}
