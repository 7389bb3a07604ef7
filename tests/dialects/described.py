"""Described dialects for tests: a meter with everything binary, a desk with everything textual."""

from __future__ import annotations

from wirelake.dialects import DIALECTS, Dialect
from wirelake.dialects.framed.description import dialect_of, parse_description

#: Binary: a length, a magic, a checksum, numbers, ops that are asked for and answered.
METER = """
name = "meter-1"
family = "meter"
address = "{place}"
ticket = "seq"
id = "serial"
priority = "urgent"
ttl = "lifetime"

[frame]
by = "length"
magic = "0xAA55"
length = {at = 2, width = 4, counts = "frame"}
checksum = {kind = "crc-16/modbus", order = "little"}

[payload]
after = "place"

[ops]
field = "kind"
publish = 1
subscribe = 2
unsubscribe = 3
auth = 4
ping = 5
pong = 6
accepted = 7
refused = 8

[[fields]]
name = "kind"
type = "u8"
at = 6
[[fields]]
name = "seq"
type = "u16"
at = 7
[[fields]]
name = "urgent"
type = "u8"
at = 9
[[fields]]
name = "lifetime"
type = "u32"
at = 10
[[fields]]
name = "temperature"
type = "f32"
at = 14
[[fields]]
name = "offset"
type = "i16"
at = 18
[[fields]]
name = "serial"
at = 20
prefix = 1
[[fields]]
name = "place"
after = "serial"
prefix = 1
"""

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
