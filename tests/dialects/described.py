"""Described dialects for tests: a meter with everything binary, a desk with everything textual."""

from __future__ import annotations

from pathlib import Path

from wirelake.dialects import DIALECTS, Dialect
from wirelake.dialects.framed.description import dialect_of, parse_description

#: Binary: a length, a magic, a checksum, numbers, ops that are asked for and answered.
METER = Path(__file__).with_name("meter.toml").read_text(encoding="utf-8")

#: A sensor's frame of a fixed head: an address of numbers, and answers that are no frames.
SENSOR = """
name = "sensor-2"
address = "plant/{line}/{unit}"
ticket = "seq"

[frame]
by = "length"
magic = "0xA5 5A"
length = {at = 2, width = 2, counts = "rest"}
checksum = {kind = "crc-16/ccitt-false"}
trailer = "0x0D0A"

[[fields]]
name = "line"
type = "u8"
at = 4
[[fields]]
name = "unit"
type = "u16"
at = 5
order = "little"
[[fields]]
name = "seq"
type = "u16"
at = 7

[answer]
accepted = "0x06 {ticket:u16}"
refused = "0x15 {ticket:u16}"
"""


def dialect(text: str) -> Dialect:
    """A described dialect."""
    return dialect_of(parse_description(text))


def add(text: str) -> str:
    """Add a described dialect, once, and return its name."""
    description = parse_description(text)
    if description.name not in DIALECTS:
        DIALECTS.add(dialect_of(description))
    return description.name
