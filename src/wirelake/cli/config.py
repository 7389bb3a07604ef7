"""`wirelake config`: every setting there is, with its default, as a file to start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
import typer
from msgspec import NODEFAULT, inspect

from wirelake.cli.show import write_object
from wirelake.config import (
    DialectSettings,
    QueueSettings,
    RetentionSettings,
    Settings,
    TlsSettings,
    TokenSettings,
)

#: Tables that exist only if they are written; EXAMPLES has values for settings without default.
OPTIONAL: dict[str, type[msgspec.Struct]] = {
    "[capture.retention]": RetentionSettings,
    "[queues]": QueueSettings,
    "[dialects]": DialectSettings,
    "tls": TlsSettings,
    "[tokens]": TokenSettings,
}
EXAMPLES = {
    "name": "orders",
    "file": "meter.toml",
    "cert": "server.pem",
    "key": "server.key",
    "hash": "sha256:…",
    "age": 604800.0,
    "bytes": 10 << 30,
}

HEADING = """\
# Configuration

Settings stand in a TOML file, given to `wirelake serve --config FILE`. Every one has a default; a
name that is not known is an error. SIGHUP makes a running broker read the file again: tokens,
limits, flow and certificates change at once, listeners and the data directory with a restart.

This page is written by `wirelake config --markdown`; `wirelake config` prints a file to start from.
"""


def config(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As the page of the documentation.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a setting: table, name, default.")
    ] = False,
) -> None:
    """Print every setting with its default and what it means.

    Examples:

        wirelake config > wirelake.toml

        wirelake serve --config wirelake.toml
    """
    if as_json:
        for table, kind in _tables():
            for name, meaning, value in _fields(kind, examples=False):
                told = {"table": table, "name": name, "default": value, "meaning": meaning}
                write_object(told)
        return
    typer.echo(as_markdown() if markdown else as_toml(), nl=False)


def as_toml() -> str:
    """A TOML file with all settings; values are comments, because they are the defaults."""
    lines = []
    for name, table in _tables():
        lines += ["", f"# {_sentence(table)}", f"# [{name}]" if name in OPTIONAL else f"[{name}]"]
        if not name:
            lines = ["# Every setting is optional. Values shown are the defaults."]
        for field, meaning, value in _fields(table):
            lines.append(f"# {field} = {_toml(value)}  # {meaning}")
    return "\n".join(lines) + "\n"


def as_markdown() -> str:
    """The page of the documentation."""
    lines = [HEADING]
    for name, table in _tables():
        lines.append(f"## `[{name}]`\n\n{_sentence(table)}\n" if name else "## At the top\n")
        lines += ["| setting | default | meaning |", "|---|---|---|"]
        for field, meaning, value in _fields(table, examples=False):
            default = "" if value is None else f"`{_toml(value)}`"
            lines.append(f"| `{field}` | {default} | {meaning} |")
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _tables() -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """The tables of the file by name, the top level first."""
    yield "", Settings
    for field in msgspec.structs.fields(Settings):
        if isinstance(field.default, msgspec.Struct):
            yield field.name, type(field.default)
    yield from OPTIONAL.items()


def _fields(
    table: type[msgspec.Struct], *, examples: bool = True
) -> Iterator[tuple[str, str, Any]]:
    """The plain settings of a table: name, meaning, and default or example."""
    described = inspect.type_info(table)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        meaning = _meaning(field.type)
        value = field.default
        if value is NODEFAULT:
            value = field.default_factory() if field.default_factory is not NODEFAULT else None
        if isinstance(value, msgspec.Struct) or not meaning:
            continue
        if value is None and examples:
            value = EXAMPLES[field.name]
        yield field.name, meaning, value


def _meaning(kind: inspect.Type) -> str:
    """The description of a setting, from its type."""
    for one in [kind, *(kind.types if isinstance(kind, inspect.UnionType) else [])]:
        extra = one.extra_json_schema if isinstance(one, inspect.Metadata) else None
        if extra and "description" in extra:
            return str(extra["description"])
    return ""


def _sentence(table: type[msgspec.Struct]) -> str:
    return (table.__doc__ or "").strip().split("\n\n")[0]


def _toml(value: Any) -> str:
    """A value in TOML; all but tables are the same as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)
