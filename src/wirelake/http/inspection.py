"""Bytes looked at by the kernels: the messages in them, where each field lies, other dialects."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import chain
from typing import Any

import msgspec

from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import Feed, encoder
from wirelake.errors import ProtocolError
from wirelake.http.payloads import shown
from wirelake.message import LARGEST, Flag, Limits, Message, Op
from wirelake.wire import FrameTable
from wirelake.wire.parameters import headers_of

#: The maximum number of bytes inspected, and of messages shown.
MOST_BYTES = 1 << 20
MOST_MESSAGES = 500
#: A longer value of a field is cut.
LONGEST = 4096

#: The columns of a frame table that say where a field lies, and what the field is called.
_PLACES = {
    "address": "address",
    "id": "id",
    "correlation": "correlation_id",
    "source": "source",
    "target": "target",
    "headers": "headers",
    "payload": "payload",
}
#: What is compared to tell what a translation loses.
_COMPARED = ("address", "payload", "id", "correlation_id", "source", "priority", "ttl", "headers")


def inspect(data: bytes, dialect: str = "") -> dict[str, Any]:
    """The messages in these bytes with the places of their fields, and the error that ends them."""
    feed = Feed(dialect or None, limits=Limits(message=MOST_BYTES, sequence=MOST_BYTES))
    found: list[dict[str, Any]] = []
    error: dict[str, Any] | None = None
    count = 0
    try:
        for table in chain(feed.receive(data), feed.finish()):
            count += table.count
            for row in range(min(table.count, MOST_MESSAGES - len(found))):
                found.append(_described(table, row, feed.base))
    except ProtocolError as fault:
        error = {"offset": fault.offset, "reason": fault.reason, "dialect": fault.dialect}
    except Exception as fault:
        if not feed.dialect or not DIALECTS[feed.dialect].is_foreign:
            raise
        reason = f"the dialect's own code failed: {type(fault).__name__}: {fault}"
        error = {"offset": feed.base, "reason": reason, "dialect": feed.dialect}
    return {
        "dialect": feed.dialect or "",
        "messages": found,
        "count": count,
        "error": error,
        "size": len(data),
    }


def _described(table: FrameTable, row: int, base: int) -> dict[str, Any]:
    # Places first: reading headers moves them to where they are decoded.
    places = {
        name: (getattr(table, f"{column}_at")[row], getattr(table, f"{column}_len")[row])
        for column, name in _PLACES.items()
    }
    frame = {"at": base + table.frame_at[row], "length": table.frame_len[row]}
    message = table.message(row)
    fields: list[dict[str, Any]] = []
    for name, (at, length) in places.items():
        if not length and not (name == "headers" and message.headers):
            continue
        value: Any = getattr(message, name)
        if name == "payload":
            value = shown(value[:LONGEST])
        elif name == "headers":
            value = dict(headers_of(message))
        # Headers that were read just now have no place of their own.
        place = {"at": base + at, "length": length} if length and at >= 0 else {}
        fields.append({"name": name, "value": value, **place})
    fields += [
        {"name": name, "value": getattr(message, name)}
        for name in LARGEST
        if getattr(message, name)
    ]
    if message.flags:
        flags = " ".join(flag.name or "" for flag in Flag if flag & message.flags).lower()
        fields.append({"name": "flags", "value": flags})
    return {**frame, "op": message.op.label, "fields": fields, "dialect": message.dialect}


def translations(message: Message, *, client: bool = False) -> list[dict[str, Any]]:
    """A message in every dialect, and what each of them loses.

    It is written as a broker delivers it, or as a `client` publishes it.
    """
    return [_tried(message, dialect, client=client) for dialect in DIALECTS]


def traced(noted: dict[str, Any]) -> dict[str, Any]:
    """A message of a trace, with what each receiver's dialect has lost."""
    message: Message = noted["message"]
    told = {name: value for name, value in noted.items() if name not in ("message", "deliveries")}
    told |= {"address": message.address, "id": message.id}
    told["deliveries"] = []
    for one in noted["deliveries"]:
        frame: bytes = one["frame"]
        delivery = {name: one[name] for name in ("id", "peer", "dialect")}
        delivery |= {"size": len(frame), "base64": base64.b64encode(frame[:LONGEST]).decode()}
        read = next(_read(frame, one["dialect"]), None) if frame else None
        if read is not None:
            delivery["lost"] = _lost(message, read)
        told["deliveries"].append(delivery)
    return told


def _lost(message: Message, read: Message) -> list[str]:
    """The fields of a message that are not what was read of it."""
    return [
        name
        for name in _COMPARED
        if getattr(message, name) and getattr(message, name) != getattr(read, name)
    ]


def _tried(message: Message, dialect: str, *, client: bool) -> dict[str, Any]:
    """A message in a dialect, whose code may be somebody else's and fail."""
    try:
        return _translated(message, dialect, client=client)
    except Exception as error:
        if not DIALECTS[dialect].is_foreign:
            raise
        return {"dialect": dialect, "refused": f"{type(error).__name__}: {error}"}


def _translated(message: Message, dialect: str, *, client: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"dialect": dialect}
    table = FrameTable(1)
    table.fill([msgspec.structs.replace(message, op=Op.PUBLISH)], message.dialect)
    writer = encoder(dialect, client=client)
    writer.origin = message.source.encode()
    frames = bytes(writer.encode(table))
    if not frames:
        told["refused"] = next(iter(writer.skipped), "nothing of it can be said")
        return told
    told["base64"] = base64.b64encode(frames[:LONGEST]).decode()
    told["size"] = len(frames)
    read = next(_read(frames, dialect), None)
    if read is not None:
        told["lost"] = _lost(message, read)
    return told


def _read(frames: bytes, dialect: str) -> Iterator[Message]:
    feed = Feed(dialect)
    try:
        for table in chain(feed.receive(frames), feed.finish()):
            yield from table.messages()
    except ProtocolError:
        return
