"""Messages and tables as people and programs see them on the command line."""

from __future__ import annotations

import base64
import json
import sys
from codecs import getincrementaldecoder

from rich.console import Console
from rich.table import Table

from wirelake.message import Flag, Message

PREVIEW = 64


def as_object(message: Message) -> dict[str, object]:
    """A message for `--json`; its payload in base64."""
    return {
        "dialect": message.dialect,
        "op": message.op.label,
        "address": message.address,
        "id": message.id,
        "correlation_id": message.correlation_id,
        "source": message.source,
        "target": message.target,
        "content_type": message.content_type,
        "priority": message.priority,
        "ttl": message.ttl,
        "headers": _visible_headers(message),
        "payload": base64.b64encode(message.payload).decode(),
    }


def write_object(shown: dict[str, object]) -> None:
    """A line for programs, on standard output."""
    sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def write_payload(payload: bytes) -> None:
    """A payload as it is and the end of a line, on standard output."""
    sys.stdout.flush()
    sys.stdout.buffer.write(payload + b"\n")
    sys.stdout.flush()


def write_message(message: Message, *, as_json: bool, raw: bool, **more: object) -> None:
    """One message, on standard output; for programs with what else there is to say."""
    if as_json:
        write_object(as_object(message) | more)
    elif raw:
        write_payload(message.payload)
    else:
        write_line(message.address, as_text(message.payload))


def write_line(*words: str) -> None:
    """A line for people, on standard output."""
    sys.stdout.write("  ".join(map(printable, words)) + "\n")
    sys.stdout.flush()


def wide_console(*, stderr: bool = False) -> Console:
    """Where tables go; a file or a pipe has no width of its own: lines stay whole there."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=200)


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, header_style="bold")


def _visible_headers(message: Message) -> dict[str, str]:
    """All but the token, which is nobody's to see (decision 4)."""
    return {name: value for name, value in message.headers.items() if name != "$token"}


def details(message: Message) -> str:
    """What a message has beside address and payload, in few words."""
    fields = {
        "id": message.id,
        "correlation": message.correlation_id,
        "from": message.source,
        "to": message.target,
        "type": message.content_type,
        "priority": message.priority,
        "ttl": message.ttl,
        **_visible_headers(message),
    }
    flags = [flag.name.lower() for flag in Flag if flag in message.flags and flag.name]
    return " ".join([*(f"{name}={value}" for name, value in fields.items() if value), *flags])


def preview(payload: bytes) -> str:
    """The beginning of a payload: as text where it is text, else in hexadecimal."""
    head = payload[:PREVIEW]
    decode = getincrementaldecoder("utf-8")().decode  # a character may be cut by the preview
    try:
        return printable(decode(head, final=len(payload) <= PREVIEW))
    except UnicodeDecodeError:
        return head.hex(" ")


def as_text(payload: bytes) -> str:
    """A payload as text, whatever it is."""
    return payload.decode(errors="backslashreplace")


def printable(text: str) -> str:
    """Text that cannot move the cursor or ring the bell."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
