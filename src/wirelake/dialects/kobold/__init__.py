"""Kobold: three protocols with the same ops, as lines (1), CBOR (2) and text (3)."""

from wirelake.dialects.abilities import OPS
from wirelake.dialects.dialect import Dialect

_HERE = "wirelake.dialects.kobold"
_COLOURS = {1: "#59a14f", 2: "#8cd17d", 3: "#b6992d"}

DIALECTS = tuple(
    Dialect(
        name=f"kobold-{version}",
        family="kobold",
        is_newest=version == 3,
        port=7702,
        scanner=f"{_HERE}.scanner:KoboldScanner",
        encoder=f"{_HERE}.encoder:KoboldEncoder",
        detect=f"{_HERE}.detection:detect",
        rank=3,
        detect_in_family=f"{_HERE}.detection:detect_in_family",
        session=f"{_HERE}.session:KoboldSession",
        speech="wirelake.dialects.op_speech:OpSpeech",
        abilities=OPS,
        tells_json=version == 1,
        colour=_COLOURS[version],
    )
    for version in (1, 2, 3)
)
