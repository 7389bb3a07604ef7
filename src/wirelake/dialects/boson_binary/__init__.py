"""boson-binary: a version, a size, then properties with names and values."""

from wirelake.dialects.abilities import OPS
from wirelake.dialects.dialect import Dialect

_HERE = "wirelake.dialects.boson_binary"

DIALECT = Dialect(
    name="boson-binary",
    family="boson",
    port=7701,
    scanner=f"{_HERE}.codec:BosonBinaryScanner",
    encoder=f"{_HERE}.codec:BosonBinaryEncoder",
    detect=f"{_HERE}.codec:detect",
    rank=4,
    detect_in_family=f"{_HERE}.codec:detect_in_family",
    session="wirelake.dialects.op_session:OpSession",
    speech="wirelake.dialects.op_speech:OpSpeech",
    abilities=OPS,
    colour="#76b7b2",
)
