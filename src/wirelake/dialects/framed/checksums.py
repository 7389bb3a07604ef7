"""The checksums that a described dialect may have, by name.

A CRC is its width, its polynomial, what it begins with, whether its bits are reflected, and what
its result is combined with, as in Ross Williams' model; the names are those of the usual catalogue
of CRCs. `sum` and `xor` are over bytes, `lrc` is the negative of `sum-8`.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple


class Kind(NamedTuple):
    """One checksum."""

    bits: int
    polynomial: int = 0  # 0: no CRC
    begin: int = 0
    reflected: bool = False
    end: int = 0
    way: int = 0  # of those that are no CRC: 1 sum, 2 xor, 3 negative sum


SUM, XOR, NEGATIVE = 1, 2, 3

KINDS = {
    "crc-8": Kind(8, 0x07),
    "crc-8/maxim": Kind(8, 0x31, 0, True),
    "crc-8/sae-j1850": Kind(8, 0x1D, 0xFF, False, 0xFF),
    "crc-16/arc": Kind(16, 0x8005, 0, True),
    "crc-16/modbus": Kind(16, 0x8005, 0xFFFF, True),
    "crc-16/usb": Kind(16, 0x8005, 0xFFFF, True, 0xFFFF),
    "crc-16/ccitt-false": Kind(16, 0x1021, 0xFFFF),
    "crc-16/xmodem": Kind(16, 0x1021),
    "crc-16/genibus": Kind(16, 0x1021, 0xFFFF, False, 0xFFFF),
    "crc-16/kermit": Kind(16, 0x1021, 0, True),
    "crc-16/x-25": Kind(16, 0x1021, 0xFFFF, True, 0xFFFF),
    "crc-16/dnp": Kind(16, 0x3D65, 0, True, 0xFFFF),
    "crc-32": Kind(32, 0x04C11DB7, 0xFFFFFFFF, True, 0xFFFFFFFF),
    "crc-32/bzip2": Kind(32, 0x04C11DB7, 0xFFFFFFFF, False, 0xFFFFFFFF),
    "crc-32/mpeg-2": Kind(32, 0x04C11DB7, 0xFFFFFFFF),
    "crc-32/jamcrc": Kind(32, 0x04C11DB7, 0xFFFFFFFF, True),
    "crc-32c": Kind(32, 0x1EDC6F41, 0xFFFFFFFF, True, 0xFFFFFFFF),
    "sum-8": Kind(8, way=SUM),
    "sum-16": Kind(16, way=SUM),
    "sum-32": Kind(32, way=SUM),
    "xor-8": Kind(8, way=XOR),
    "lrc": Kind(8, way=NEGATIVE),
}

_WHOLE = 0xFFFFFFFF


def crc_tables(kind: Kind) -> array[int]:
    """Return eight tables of 256 for a CRC: what a byte does that has 0 to 7 bytes behind it.

    A register that is not reflected stands in the upper bits of 32, so that one loop does for all
    widths.
    """
    first = [_step(kind, byte) for byte in range(256)]
    tables = array("I", first)
    last = first
    for _ in range(7):
        if kind.reflected:
            last = [(one >> 8) ^ first[one & 255] for one in last]
        else:
            last = [((one << 8) & _WHOLE) ^ first[one >> 24] for one in last]
        tables.extend(last)
    return tables


def _step(kind: Kind, byte: int) -> int:
    if kind.reflected:
        polynomial = int(f"{kind.polynomial:0{kind.bits}b}"[::-1], 2)
        for _ in range(8):
            byte = (byte >> 1) ^ (polynomial if byte & 1 else 0)
        return byte
    register = byte << 24
    polynomial = kind.polynomial << (32 - kind.bits)
    for _ in range(8):
        register = ((register << 1) ^ (polynomial if register >> 31 else 0)) & _WHOLE
    return register
