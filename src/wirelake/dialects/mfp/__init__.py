"""mfp: small binary frames, and a connection each for publishing and for subscribing."""

from wirelake.dialects.dialect import Dialect

_HERE = "wirelake.dialects.mfp"

DIALECT = Dialect(
    name="mfp-1",
    family="mfp",
    port=7777,
    scanner=f"{_HERE}.codec:MfpScanner",
    encoder=f"{_HERE}.codec:MfpEncoder",
    detect=f"{_HERE}.codec:detect",
    rank=5,
    detect_in_family=f"{_HERE}.codec:detect_in_family",
    session=f"{_HERE}.session:MfpSession",
    speech=f"{_HERE}.speech:MfpSpeech",
    abilities=frozenset({"acknowledgement of a publish", "client id"}),
    introduces_itself=True,
    roles=("pub", "sub"),
    identity=f"{_HERE}.speech:identity",
    has_addresses=False,
    has_topic_frames=True,
    max_payload=1000,
    colour="#f28e2b",
)
