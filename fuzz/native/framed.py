"""Described dialects for the native fuzzer: every way to cut frames and to find a field, twice.

An input is a byte that chooses a description, and a stream of it.
"""

from __future__ import annotations

import importlib
import random
import zlib
from typing import Any

#: What presets do not have: columns, text behind text, every type of number, fields at the end.
MIXED = """
name = "mixed-1"
address = "{host}/{n}/{code}"
id = "key"
ticket = "seq"
[frame]
by = "length"
most = 4000
length = {at = 0, width = 3, order = "little", counts = "rest", add = -1}
trailer = "0xFF"
[[fields]]
name = "n"
type = "i24"
at = 3
[[fields]]
name = "seq"
type = "u16"
at = 6
[[fields]]
name = "single"
type = "f32"
at = 8
[[fields]]
name = "double"
type = "f64"
at = 12
[[fields]]
name = "wide"
type = "u64"
at = 20
[[fields]]
name = "code"
type = "hex"
size = 3
at = 28
[[fields]]
name = "host"
at = 31
prefix = 2
[[fields]]
name = "key"
after = "host"
until = ";"
[[fields]]
name = "label"
size = 5
at = -9
pad = " "
[payload]
after = "key"
before_end = 9
"""
COLUMNS = """
name = "columns-1"
address = "csv/{place}"
[frame]
by = "delimiter"
delimiter = "\\r\\n"
most = 500
[payload]
at = 0
[[fields]]
name = "place"
column = 1
separator = ";"
[[fields]]
name = "value"
column = 3
separator = ";"
"""
FIXED = """
name = "fixed-1"
address = "{unit}"
[frame]
by = "fixed"
size = 24
magic = ["0x0102", "0x0103"]
checksum = {kind = "crc-32c", order = "little", start = 1}
[payload]
pad = "0x20"
[[fields]]
name = "unit"
size = 6
at = 2
"""
#: What presets can say, and raw streams of them.
SEEDS = {
    "lines": b"one\ntwo\r\n\n",
    "json-lines": b'{"topic":"a/\\u017e","v":[1,{"x":"}"}]}\n{"v":1,"topic":"b"}\n',
    "syslog-octets": b"11 <34>1 hello5 <1>xy",
    "syslog-lines": b"<34>1 hello\n<165>x\n",
    "nmea-0183": b"$GPGGA,1*4B\r\n!AIVDM,1\r\n$GPX,1*52\r\n",
}


class Framed:
    """The described dialects of one build."""

    def __init__(self, kernels: Any, stream: Any) -> None:
        description = importlib.import_module("wirelake.dialects.framed.description")
        message = kernels.build.message.Message
        texts = [MIXED, COLUMNS, FIXED]
        texts += [file.read_text(encoding="utf-8") for file in description.PRESETS.values()]
        parsed = [description.parse_description(text) for text in texts]
        self.dialects = [description.dialect_of(one) for one in parsed]
        self.kernels = kernels
        self.streams = [stream(kernels, one.name, whole=False) for one in self.dialects]
        said = {
            "mixed-1": message(
                "host/-5/0a0b0c", b"payload", id="key",
                headers={"single": "1.5", "double": "-2.25", "wide": str(2**64 - 1), "label": "x"},
            ),
            "columns-1": message("csv/here", b"1;here;2;3"),
            "fixed-1": message("pump", b"1234567890"),
            "length-prefixed": message("a/b", b"payload"),
        }  # fmt: skip
        with self._spoken():
            self.seeds = [
                SEEDS.get(one.name) or self._written(one.name, said[one.name])
                for one in self.dialects
            ]

    def _spoken(self) -> Any:
        return self.kernels.codec.DIALECTS.also(*self.dialects)

    def _written(self, name: str, message: Any) -> bytes:
        table = self.kernels.wire.FrameTable(4)
        table.fill([message, message], "")
        return bytes(self.kernels.codec.encoder(name).encode(table))

    def __call__(self, data: memoryview) -> int:
        """Read a stream, write it with its own description again, and read that."""
        if not data:
            return 0
        chance = random.Random(zlib.crc32(data))
        stream = self.streams[data[0] % len(self.streams)]
        with self._spoken():
            read: int = stream(data[1:])
            stream.write_again(data[1:], chance)
        return 1 + read
