"""TMQ's server messages about channels, queues and clients (spec: tmq 4).

What TMQ calls a channel is an address here: a topic, which needs no creation, or a queue. Who may
ask what is as in HTTP's admin interface: a queue or a channel is told to those who may subscribe to
it; who consumes what, who is connected, and changes of what others use are for the right `admin`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from wirelake.address import check_number
from wirelake.broker import inventory
from wirelake.config import Mode, QueueSettings
from wirelake.dialects.tmq import codes
from wirelake.errors import RefusedError
from wirelake.message import Message

if TYPE_CHECKING:
    from wirelake.broker.session import Session

#: The content types of those that change what must survive.
KEPT = (codes.REMOVE_CHANNEL, codes.UPDATE_QUEUE)

MODES: dict[str, Mode] = {
    "round-robin": "round-robin",
    "roundrobin": "round-robin",
    "push": "push",
    "pull": "pull",
}
#: Modes in which nothing is kept: the address stays a topic (spec: tmq 6, decision 66).
UNKEPT = ("broadcast", "route")


def ask(session: Session, message: Message, now: float) -> str:
    """Do what a server message asks for; return the text of the answer, or raise RefusedError."""
    node, name = session.node, message.address
    match message.content_type:
        case codes.CREATE_CHANNEL:
            node.topics.check_publish(session, name)
            if name in node.queues:
                raise RefusedError("exists", f"{name} is a queue already")
            return ""
        case codes.REMOVE_CHANNEL:
            _require_admin(session)
            if name in node.queues:
                node.queues.remove(name)
            elif node.topics.subscribers(name):
                raise RefusedError("conflict", f"{name} is a topic that has subscribers")
            return ""
        case codes.CHANNEL:
            return json.dumps(_channel(session, name, now))
        case codes.CHANNELS:
            return json.dumps(_channels(session))
        case codes.CONSUMERS:
            _require_admin(session)
            found = node.topics.subscribers(name)
            found += [one for one in node.sessions if name in one.consumes]
            return json.dumps([inventory.connection(one, now) for one in found])
        case codes.UPDATE_QUEUE:
            _update(session, message)
            return ""
        case codes.QUEUE:
            _require(session, "subscribe", name)
            return json.dumps(inventory.queue(node.queues.get(name), now))
        case codes.CLIENTS:
            _require_admin(session)
            return json.dumps([one for one in inventory.connections(node, now) if one["id"]])
    raise RefusedError("bad_request", f"there is no server message {message.content_type}")


def settings(
    payload: bytes, before: QueueSettings, *, little: bool = False
) -> tuple[QueueSettings, bool]:
    """The settings that the payload of 610 or 612 gives a queue, and whether it is one at all.

    The payload is a content type of two bytes, then `Key: value` lines; or lines alone, of which
    the first is `Content-Type`, as published clients write them (decision 66). What is not given
    is as before. Raises RefusedError where it cannot be read.
    """
    changes: dict[str, object] = {}
    content_type = before.content_type
    if payload[:13].lower() == b"content-type:":
        fields = header_lines(payload)
    else:
        fields = header_lines(payload[2:])
        if len(payload) > 1:
            content_type = int.from_bytes(payload[:2], "little" if little else "big")
    mode = fields.get("mode", fields.get("queue-status", before.mode)).lower()
    if mode not in UNKEPT:
        changes["mode"] = MODES.get(mode, mode)
    if "ack-timeout" in fields:
        changes["ack_timeout"] = fields["ack-timeout"]
    elif "acknowledge-timeout" in fields:
        milliseconds = check_number(fields["acknowledge-timeout"], "Acknowledge-Timeout")
        changes["ack_timeout"] = milliseconds / 1000
    if "max-deliveries" in fields:
        changes["max_deliveries"] = fields["max-deliveries"]
    if "content-type" in fields:
        content_type = check_number(fields["content-type"], "Content-Type", most=0xFFFF)
    changed = before.changed(changes, from_text=True)
    return replace(changed, content_type=content_type), mode not in UNKEPT


def header_lines(payload: bytes) -> dict[str, str]:
    """`Key: value` lines, keys in lower case."""
    fields = {}
    for line in payload.decode(errors="replace").split("\r\n"):
        key, colon, value = line.partition(":")
        if colon:
            fields[key.strip().lower()] = value.strip()
    return fields


def _update(session: Session, message: Message) -> None:
    """612: change the settings of a queue."""
    name = message.address
    _require(session, "publish", name)
    _require(session, "subscribe", name)
    queue = session.node.queues.get(name)
    wanted, is_queue = settings(
        message.payload, queue.settings, little=session.encoder.variant == "little"
    )
    if not is_queue:
        raise RefusedError("bad_request", "a queue cannot become a topic")
    if wanted != queue.settings:
        _require_admin(session)
        queue.change(wanted)


def _channel(session: Session, name: str, now: float) -> dict[str, Any]:
    """605: what is known of one channel."""
    _require(session, "subscribe", name)
    node = session.node
    if name in node.queues:
        return {"name": name, "kind": "queue", "queue": inventory.queue(node.queues.get(name), now)}
    subscribers = len(node.topics.subscribers(name))
    if not subscribers:
        raise RefusedError("not_found", f"no queue or subscriber at {name}")
    return {"name": name, "kind": "topic", "subscribers": subscribers}


def _channels(session: Session) -> list[dict[str, Any]]:
    """606: every channel, as far as the session's rights go."""
    told = inventory.addresses(session.node, session.rights)
    topics = [
        {"name": one["filter"], "kind": "topic", "subscribers": one["subscribers"]}
        for one in told["topics"]
    ]
    return topics + [{"name": name, "kind": "queue"} for name in told["queues"]]


def _require(session: Session, kind: str, name: str) -> None:
    if not session.rights.allows(kind, name):
        raise RefusedError("unauthorized", f"no right to {kind} {name}")


def _require_admin(session: Session) -> None:
    if not session.rights.admin:
        raise RefusedError("unauthorized", "this is for operators")
