"""TMQ 1.00 and 1.01: channels, queues and clients behind numbered message types."""

from wirelake.dialects.abilities import SHARED
from wirelake.dialects.dialect import Dialect

_HERE = "wirelake.dialects.tmq"
_COLOURS = {"1.00": "#b07aa1", "1.01": "#e15759"}

DIALECTS = tuple(
    Dialect(
        name=f"tmq-{version}",
        family="tmq",
        is_newest=version == "1.01",
        port=22200,
        scanner=f"{_HERE}.codec:TmqScanner",
        encoder=f"{_HERE}.codec:TmqEncoder",
        detect=f"{_HERE}.codec:detect",
        rank=1,
        detect_in_family=f"{_HERE}.codec:detect",
        session=f"{_HERE}.session:TmqSession",
        speech=f"{_HERE}.speech:TmqSpeech",
        abilities=SHARED | {"declaration of queues"},
        introduces_itself=True,
        ttl_in_hops=True,
        tells_json=True,
        requests_by_publish=True,
        shares_variant=True,
        per_receiver=True,
        colour=_COLOURS[version],
    )
    for version in ("1.00", "1.01")
)
