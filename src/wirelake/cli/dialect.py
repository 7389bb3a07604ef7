"""`wirelake dialect list`, `check` and `new`: dialects of one's own, described in TOML."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from msgspec.structs import replace as changed
from rich.markup import escape

from wirelake.cli.options import AsJson
from wirelake.cli.parsing import Family
from wirelake.cli.show import (
    as_object,
    details,
    plain_table,
    preview,
    wide_console,
    write_file,
    write_object,
)
from wirelake.cli.work import fail
from wirelake.dialects import DIALECTS, Dialect
from wirelake.dialects.codec import Feed, clashes
from wirelake.dialects.framed.checksums import KINDS
from wirelake.dialects.framed.codec import FramedScanner
from wirelake.dialects.framed.description import (
    PRESETS,
    Counts,
    Description,
    Framing,
    Order,
    Type,
    parse_description,
    read_description,
)
from wirelake.dialects.framed.layout_codec import layout_of
from wirelake.errors import ConfigError, ProtocolError
from wirelake.message import Message, printable
from wirelake.wire import FrameTable

BAD_INPUT = 2
#: What a description may say.
COUNTS, FRAMES, ORDERS, TYPES = (get_args(one) for one in (Counts, Framing, Order, Type))
#: Bytes shown around a fault.
AROUND = 16

app = Family(help="Known dialects, and your own, described in a file.")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """Show every dialect that this installation speaks, and the presets to begin with.

    Examples:

        wirelake dialect list

        WIRELAKE_DIALECTS=meter.toml wirelake dialect list --json
    """
    rows: list[dict[str, object]] = [
        {
            "name": one.name,
            "family": one.family,
            "port": one.port,
            "kind": _kind(one),
            "auto": one.detect is not None,
            "about": one.description.about if one.description is not None else "",
        }
        for one in DIALECTS.values()
    ]
    for name, file in PRESETS.items():
        if name not in DIALECTS:
            found = read_description(file)
            about: dict[str, object] = {"name": name, "family": name, "port": None}
            about |= {"kind": "preset", "auto": bool(found.magics), "about": found.about}
            rows.append(about)
    if as_json:
        for row in rows:
            write_object(row)
        return
    table = plain_table()
    for heading in ("name", "family", "port", "kind", "on auto", "about"):
        table.add_column(heading)
    for row in rows:
        on_auto = "yes" if row["auto"] else "no"
        shown = (row["name"], row["family"], row["port"] or "", row["kind"], on_auto, row["about"])
        table.add_row(*(escape(str(one)) for one in shown))
    wide_console().print(table)


def _kind(dialect: Dialect) -> str:
    if dialect.description is not None:
        return "described"
    return "plug-in" if dialect.is_foreign else "built in"


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="The description, or the name of a preset.")],
    capture: Annotated[
        Path | None, typer.Argument(help="Bytes of one direction of a connection.")
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="Messages to show; 0: all.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Check a description, and show what it makes of a capture.

    Where the bytes break the description, what comes before is shown, then the first fault at its
    byte, and the exit code is 2. Where a checksum is wrong, all others are tried.

    Examples:

        wirelake dialect check meter.toml

        wirelake dialect check meter.toml capture.bin

        wirelake dialect check nmea-0183 gps.txt --json
    """
    try:
        description = read_description(file)
        dialect = DIALECTS.describe(file)
    except ConfigError as error:
        fail(str(error))
    if not as_json:
        for line in _summary(description, dialect):
            typer.echo(line)
    if capture is None:
        return
    try:
        data = capture.read_bytes()
    except OSError as error:
        fail(f"{capture}: {error.strerror}")
    _show(description, data, count, as_json=as_json)


def _summary(description: Description, dialect: Dialect) -> list[str]:
    """What a description means, in a few lines."""
    layout = layout_of(description)
    ways = {"length": "by a length", "delimiter": "by a delimiter", "fixed": "of a fixed size"}
    lines = [
        f"{description.name}: frames {ways[description.frame.by]}, address {description.address}"
    ]
    if layout.obstacle:
        lines.append(f"frames are read and not written: {layout.obstacle}")
    if dialect.detect is None:
        lines.append("not on auto: it needs a listener of its own, as it has no magic")
    lines += [f"not on auto: {other} begins alike" for other in clashes(dialect.name)]
    if not layout.asks:
        lines.append("publishes are not answered")
    return lines


def _show(description: Description, data: bytes, count: int, *, as_json: bool) -> None:
    """Print the messages of a capture and its first fault."""
    feed = Feed(description.name)
    found: list[tuple[int, Message]] = []
    fault: ProtocolError | None = None
    try:
        for tables in (feed.receive(data), feed.finish()):
            for table in tables:
                at = feed.base
                found += [
                    (at + table.frame_at[row], message)
                    for row, message in enumerate(table.messages())
                ]
    except ProtocolError as error:
        fault = error
    shown = found[: count or None]
    if as_json:
        for offset, message in shown:
            write_object({"offset": offset, **as_object(message)})
    else:
        _print(shown)
        more = f", {len(shown)} shown" if len(shown) < len(found) else ""
        typer.echo(f"{len(found)} messages{more}")
    if fault is None:
        return
    typer.echo(f"wirelake: {fault}", err=True)
    typer.echo(_around(data, fault.offset), err=True)
    if "checksum" in fault.reason and description.frame.checksum is not None:
        fits = fitting_checksums(description, data)
        said = ", ".join(fits) if fits else "none of those that are known"
        typer.echo(f"wirelake: checksums that fit this frame: {said}", err=True)
    raise typer.Exit(BAD_INPUT)


def _print(shown: list[tuple[int, Message]]) -> None:
    table = plain_table()
    table.add_column("offset", justify="right")
    for heading in ("op", "address", "details"):
        table.add_column(heading, overflow="fold")
    table.add_column("size", justify="right")
    table.add_column("payload", overflow="ellipsis", no_wrap=True)
    for offset, message in shown:
        table.add_row(
            str(offset),
            message.op.label,
            escape(printable(message.address)),
            escape(printable(details(message))),
            str(len(message.payload)),
            escape(preview(message.payload)),
        )
    wide_console().print(table)


def _around(data: bytes, at: int) -> str:
    """The bytes around a fault, with a mark below the first that is wrong."""
    start = max(0, at - AROUND)
    lead = f"{start:08x}  "
    return (
        lead
        + data[start : at + AROUND].hex(" ")
        + "\n"
        + " " * (len(lead) + 3 * (at - start))
        + "^^"
    )


def fitting_checksums(description: Description, data: bytes) -> list[str]:
    """Return the checksums, by name and byte order, with which the first faulty frame is right."""
    check = description.frame.checksum
    assert check is not None
    table = FrameTable(1)
    at = 0
    reader = FramedScanner(description.name)
    try:
        while used := reader.scan(memoryview(data)[at:], table):
            at += used
    except ProtocolError:
        pass
    fits = []
    for kind in KINDS:
        for order in ("big", "little"):
            if order == "little" and (KINDS[kind].bits == 8 or check.form == "hex"):
                continue
            other = changed(check, kind=kind, order=order, optional=False)
            trial = changed(description, frame=changed(description.frame, checksum=other))
            scanner = FramedScanner(description.name, description=trial)
            try:
                if scanner.scan(memoryview(data)[at:], table):
                    fits.append(kind if KINDS[kind].bits == 8 else f"{kind} ({order})")
            except ProtocolError:
                continue
    return fits


@app.command()
def new(
    file: Annotated[Path, typer.Argument(help="The file to write; `-` is standard output.")],
    preset: Annotated[
        str,
        typer.Option(metavar="|".join(PRESETS), help="Start from this preset, without questions."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Ask how frames look, and write a description.

    Places count from 0. Byte strings are text, or 0x and hexadecimal digits.

    Examples:

        wirelake dialect new meter.toml

        wirelake dialect new lines.toml --preset lines
    """
    if str(file) != "-" and file.exists():
        fail(f"{file}: it is there already")
    if preset:
        if preset not in PRESETS:
            raise typer.BadParameter(
                f"{preset!r} is none of {', '.join(PRESETS)}", param_hint="--preset"
            )
        write_file(file, PRESETS[preset].read_text(encoding="utf-8"))
        if as_json and str(file) != "-":
            write_object({"file": str(file)})
        return
    text = _asked()
    try:
        parse_description(text, str(file))
    except ConfigError as error:
        typer.echo(text, err=True)
        fail(f"this would not be a description: {error}")
    write_file(file, text)
    if as_json and str(file) != "-":
        write_object({"file": str(file)})
    elif str(file) != "-":
        typer.echo(f"wrote {file}; try it: wirelake dialect check {file} CAPTURE")


def _asked() -> str:
    """Ask for all that a simple description needs."""
    name = _ask("name of the dialect", "meter-1")
    by = _choice("frames by their length, a delimiter, or fixed in size", "length", FRAMES)
    lines = [
        "interface = 1",
        f"name = {_quoted(name)}",
        "",
        "[frame]",
        f"by = {_quoted(by)}",
    ]
    if magic := _ask("every frame begins with (empty: nothing)", ""):
        lines.append(f"magic = {_quoted(magic)}")
    if by == "delimiter":
        lines.append(f"delimiter = {_quoted(_ask('delimiter', '0x0A'))}")
    elif by == "fixed":
        lines.append(f"size = {_number('bytes of a frame', 16)}")
    question = "checksum at the end (empty: none; or a name such as crc-16/modbus)"
    checksum = _choice(question, "", ("", *KINDS))
    if by == "length":
        lines += ["", "[frame.length]", f"at = {_number('the length is at', 2)}"]
        lines.append(f"width = {_number('bytes of the length', 2)}")
        lines.append(f"order = {_quoted(_choice('byte order', 'big', ORDERS))}")
        counts = _choice("it counts the frame, the rest or the payload", "rest", COUNTS)
        lines.append(f"counts = {_quoted(counts)}")
    if checksum:
        lines += ["", "[frame.checksum]", f"kind = {_quoted(checksum)}"]
        order = _choice("byte order of the checksum", "big", ORDERS)
        lines.append(f"order = {_quoted(order)}")
    fields: list[str] = []
    while field := _ask("name of a field (empty: no more)", ""):
        kind = _choice(f"its type: {' '.join(TYPES)}", "u16", TYPES)
        fields += ["", "[[fields]]", f"name = {_quoted(field)}", f"type = {_quoted(kind)}"]
        fields.append(f"at = {_number('it is at', 0)}")
        if kind in ("text", "hex"):
            fields.append(f"size = {_number('its bytes', 8)}")
    at = _ask("the payload is at (empty: behind all of these)", "")
    if at:
        lines += ["", "[payload]", f"at = {at}"]
    address = _ask("address of messages, with fields in braces", name)
    lines.insert(2, f"address = {_quoted(address)}")
    lines += fields
    if accepted := _ask("answer to an accepted frame (empty: none)", ""):
        lines += ["", "[answer]", f"accepted = {_quoted(accepted)}"]
    return "\n".join(lines) + "\n"


def _ask(question: str, default: str) -> str:
    answer: Any = typer.prompt(question, default=default, show_default=bool(default), err=True)
    return str(answer)


def _choice(question: str, default: str, known: Sequence[str]) -> str:
    """Ask until the answer is one that descriptions know."""
    while (answer := _ask(question, default)) not in known:
        typer.echo(f"it is one of: {', '.join(one for one in known if one)}", err=True)
    return answer


def _number(question: str, default: int) -> int:
    answer: int = typer.prompt(question, default=default, type=int, err=True)
    return answer


def _quoted(text: str) -> str:
    """A string of TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
