"""boson-text: `size|options|topic|content`, as digits and text."""

from wirelake.dialects.dialect import Dialect

_HERE = "wirelake.dialects.boson_text"

DIALECT = Dialect(
    name="boson-text",
    family="boson",
    is_newest=False,
    port=7701,
    scanner=f"{_HERE}.codec:BosonTextScanner",
    encoder=f"{_HERE}.codec:BosonTextEncoder",
    detect=f"{_HERE}.codec:detect",
    rank=2,
    detect_in_family="wirelake.dialects.boson_binary.codec:detect_in_family",
    session=f"{_HERE}.session:BosonTextSession",
    speech=f"{_HERE}.speech:BosonTextSpeech",
    abilities=frozenset({"ping", "request/reply", "service"}),
    identity=f"{_HERE}.speech:identity",
    has_topic_frames=True,
    colour="#4e79a7",
)
