"""The eight dialects by name, and a scanner or an encoder for each."""

from __future__ import annotations

from typing import Literal, get_args

from wirelake.message import Limits
from wirelake.wire.boson_binary import BosonBinaryEncoder, BosonBinaryScanner
from wirelake.wire.boson_text import BosonTextEncoder, BosonTextScanner
from wirelake.wire.codec import Encoder, Scanner
from wirelake.wire.kobold import KoboldScanner
from wirelake.wire.kobold_encoder import KoboldEncoder
from wirelake.wire.mfp import MfpEncoder, MfpScanner
from wirelake.wire.tmq import TmqEncoder, TmqScanner

_CODECS: dict[str, tuple[type[Scanner], type[Encoder]]] = {
    "boson-text": (BosonTextScanner, BosonTextEncoder),
    "boson-binary": (BosonBinaryScanner, BosonBinaryEncoder),
    "mfp-1": (MfpScanner, MfpEncoder),
    "kobold-1": (KoboldScanner, KoboldEncoder),
    "kobold-2": (KoboldScanner, KoboldEncoder),
    "kobold-3": (KoboldScanner, KoboldEncoder),
    "tmq-1.00": (TmqScanner, TmqEncoder),
    "tmq-1.01": (TmqScanner, TmqEncoder),
}

#: The names of the dialects.
Dialect = Literal[
    "boson-text",
    "boson-binary",
    "mfp-1",
    "kobold-1",
    "kobold-2",
    "kobold-3",
    "tmq-1.00",
    "tmq-1.01",
]
DIALECTS: tuple[str, ...] = get_args(Dialect)


def scanner(dialect: str, limits: Limits = Limits()) -> Scanner:  # noqa: B008 - immutable
    """A scanner for one direction of one connection."""
    return _codec(dialect)[0](dialect, limits)


def encoder(dialect: str, *, client: bool = True) -> Encoder:
    """An encoder of what a client sends or, if not `client`, of what a broker delivers."""
    return _codec(dialect)[1](dialect, client)


def _codec(dialect: str) -> tuple[type[Scanner], type[Encoder]]:
    try:
        return _CODECS[dialect]
    except KeyError:
        raise ValueError(f"no dialect {dialect!r}; there are {', '.join(DIALECTS)}") from None
