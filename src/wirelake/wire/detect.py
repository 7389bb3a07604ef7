"""Which dialect a stream is, told by its first bytes: on the `auto` port, and within a family.

On the `auto` port the rules of the specification are asked in their order. A rule answers with a
dialect, with NO, or with None: that depends on bytes which are not there yet. A rule that waits
holds up all that follow, so the answer never depends on how the bytes arrived. 23 bytes decide
every rule; a Kobold or Boson key that goes on beyond them is judged by what can be seen of it.
"""

from __future__ import annotations

from wirelake.errors import ProtocolError
from wirelake.message import Limits
from wirelake.wire.kobold import OPS
from wirelake.wire.tmq import GREETINGS, HIGHEST

#: So many bytes are looked at, at most; telling an mfp handshake takes them all.
MAX_BYTES = 23

NO = ""

_MAX_FIRST_BYTE = 0x04  # of a Kobold length
_MAX_MFP_LENGTH = 1002
_MAX_OP = 16  # letters of a Kobold op, known or not (decision 21)
_MAX_SIZE = Limits().message

_KOBOLD_1_OR_3 = {b"\r": "kobold-1", b" ": "kobold-3"}
_KOBOLD_OPENINGS = {
    op.encode() + after: dialect for op in OPS[1:] for after, dialect in _KOBOLD_1_OR_3.items()
}
_CBOR_MAP_HEADS = {*range(0xA0, 0xBC), 0xBF}
_CBOR_TEXT_HEADS = range(0x60, 0x7C)  # of definite length
_KOBOLD_2_KEYS = (
    b"id",
    b"message_type",
    b"topic",
    b"transaction_id",
    b"content",
    b"timestamp",
    b"metadata",
)


def detect(data: bytes | bytearray | memoryview, family: str | None = None) -> str | None:
    """The dialect of a stream that begins with `data`, or None where more bytes must tell."""
    rules = _AUTO if family is None else _FAMILIES.get(family)
    if rules is None:
        raise ValueError(f"no family {family!r}; there are {', '.join(_FAMILIES)}")
    head = bytes(data[:MAX_BYTES])
    if not head:
        return None
    for rule in rules:
        dialect = rule(head)
        if dialect != NO:
            return dialect
    name = family or "auto"
    raise ProtocolError(name, 0, f"no stream of {family or 'any dialect'} begins like this")


def _tmq(head: bytes) -> str | None:
    if not head.startswith(b"TMQ"[: len(head)]):
        return NO
    if len(head) < 8:
        return None
    for dialect, greeting in GREETINGS.items():
        if head.startswith(greeting):
            return dialect
    unknown = head[:8].decode("latin-1")
    raise ProtocolError("tmq", 0, f"the version of {unknown!a} is not known", HIGHEST)


def _boson_text(head: bytes) -> str | None:
    return "boson-text" if head[:1].isdigit() else NO


def _kobold(head: bytes) -> str | None:
    if head[0] > _MAX_FIRST_BYTE:
        return NO
    if len(head) < 5:
        return None
    if head[4] in _CBOR_MAP_HEADS:
        return _kobold_2(head)
    body = head[4:]
    for opening, dialect in _KOBOLD_OPENINGS.items():
        if body.startswith(opening):
            return dialect
    return None if any(opening.startswith(body) for opening in _KOBOLD_OPENINGS) else NO


def _kobold_2(head: bytes) -> str | None:
    entries, at = (1, 5) if head[4] == 0xBF else _argument(head, 4)
    if at >= len(head):
        return None
    if entries == 0 or head[at] not in _CBOR_TEXT_HEADS:
        return NO
    size, at = _argument(head, at)
    if at > len(head):
        return None
    seen = head[at : at + size]
    if not any(len(key) == size and key.startswith(seen) for key in _KOBOLD_2_KEYS):
        return NO
    return "kobold-2" if len(seen) == size or len(head) == MAX_BYTES else None


def _argument(head: bytes, at: int) -> tuple[int, int]:
    """The argument of the CBOR head at `at`, and where it ends: if that is in `head`, it holds."""
    low = head[at] & 31
    if low < 24:
        return low, at + 1
    end = at + 1 + (1 << (low - 24))
    return int.from_bytes(head[at + 1 : end], "big"), end


def _boson_binary(head: bytes) -> str | None:
    if head[0] != 0 or head[1:2] not in (b"", b"\x01", b"\x02"):
        return NO
    if len(head) < 6:
        return None
    if not 2 <= int.from_bytes(head[2:6], "big") <= _MAX_SIZE:
        return NO
    if len(head) < 8:
        return None
    size = int.from_bytes(head[6:8], "big")
    seen = head[8 : 8 + size]
    if not 1 <= size <= 255 or not all(0x20 <= octet < 0x7F for octet in seen):
        return NO
    return "boson-binary" if len(seen) == size or len(head) == MAX_BYTES else None


def _mfp(head: bytes) -> str | None:
    if head[0] != 0:
        return NO
    if len(head) >= 21 and int.from_bytes(head[17:21], "big") > _MAX_MFP_LENGTH:
        return NO
    if head[21:22] not in (b"", b"\x01") or head[22:] not in (b"", b"\x00", b"\x01"):
        return NO
    return "mfp-1" if len(head) == MAX_BYTES else None


# Within a family less has to be told apart, and the scanner finds the faults. An unknown Kobold op
# is answered, not refused.


def _boson_family(head: bytes) -> str | None:
    return "boson-binary" if head[0] == 0 else _boson_text(head)


def _kobold_family(head: bytes) -> str | None:
    if head[0] > _MAX_FIRST_BYTE:
        return NO
    if len(head) < 5:
        return None
    if head[4] in _CBOR_MAP_HEADS:
        return "kobold-2"
    op = head[4 : 4 + _MAX_OP + 1]
    letters = len(op) - len(op.lstrip(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    if letters == 0 or letters > _MAX_OP:
        return NO
    if letters == len(op):
        return None
    return _KOBOLD_1_OR_3.get(op[letters : letters + 1], NO)


def _mfp_family(head: bytes) -> str | None:
    return "mfp-1"


_AUTO = (_tmq, _boson_text, _kobold, _boson_binary, _mfp)
_FAMILIES = {
    "boson": (_boson_family,),
    "kobold": (_kobold_family,),
    "mfp": (_mfp_family,),
    "tmq": (_tmq,),
}
