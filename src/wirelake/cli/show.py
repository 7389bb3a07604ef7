"""Messages and tables as people and programs see them on the command line."""

from __future__ import annotations

import base64
import json
import sys
from codecs import getincrementaldecoder
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from wirelake.cli.work import fail
from wirelake.message import Flag, Message, printable
from wirelake.wire.parameters import headers_of

PREVIEW = 64
STDOUT = Path("-")


def as_object(message: Message) -> dict[str, object]:
    """A message for `--json`."""
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
        **as_text_and_base64(message.payload),
    }


def as_text_and_base64(
    payload: bytes | None, name: str = "payload", second: str = "base64"
) -> dict[str, object]:
    """A payload in JSON, in every command: as text, null if it is none, and as base64 beside it."""
    if payload is None:
        return {name: None, second: None}
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = None
    return {name: text, second: base64.b64encode(payload).decode()}


def payload_of(told: dict[str, Any], name: str = "payload") -> bytes:
    """The payload of a message that the broker's HTTP tells: as text, or else as base64."""
    if name in told:
        return str(told[name]).encode()
    return base64.b64decode(told.get("base64", ""))


def as_told(told: dict[str, Any]) -> dict[str, object]:
    """A message that the broker's HTTP tells, with its payload as all commands show it."""
    rest = {key: told[key] for key in told if key not in ("payload", "base64", "cbor")}
    return {**rest, **as_text_and_base64(payload_of(told))}


def write_object(shown: dict[str, object]) -> None:
    """Print a JSON object as one line."""
    sys.stdout.write(json.dumps(shown, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def write_payload(payload: bytes) -> None:
    """Print a payload unchanged, and a newline."""
    sys.stdout.flush()
    sys.stdout.buffer.write(payload + b"\n")
    sys.stdout.flush()


def write_message(message: Message, *, as_json: bool, raw: bool, **more: object) -> None:
    """Print a message: as JSON with the fields of `more`, as its payload, or as text."""
    if as_json:
        write_object(as_object(message) | more)
    elif raw:
        write_payload(message.payload)
    else:
        write_line(message.address, as_text(message.payload))


def write_line(*words: str) -> None:
    """Print words on one line."""
    sys.stdout.write("  ".join(map(printable, words)) + "\n")
    sys.stdout.flush()


def write_file(file: Path, text: str) -> None:
    """Write a file and make its folder if need be; `-` is standard output."""
    if file == STDOUT:
        sys.stdout.write(text)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{file}: {error.strerror}")


def wide_console(*, stderr: bool = False) -> Console:
    """A console for tables; files and pipes have no width, so there it is wide."""
    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(stderr=stderr, width=200)


def plain_table() -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, header_style="bold")


def _visible_headers(message: Message) -> dict[str, str]:
    """All headers, the parameters among them, but the token (decision 4)."""
    shown = replace(message, parameters=message.parameters.but(token=""))
    return dict(headers_of(shown))


def details(message: Message) -> str:
    """The fields of a message other than address and payload, as one line."""
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
