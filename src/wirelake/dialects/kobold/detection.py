"""Which Kobold protocol a stream is, told by its first bytes."""

from __future__ import annotations

from wirelake.dialects.dialect import HEAD, NO
from wirelake.dialects.kobold.scanner import OPS

_MAX_FIRST_BYTE = 0x04  # of a length
_MAX_OP = 16  # letters of an op, known or not (decision 21)

_KOBOLD_1_OR_3 = {b"\r": "kobold-1", b" ": "kobold-3"}
_OPENINGS = {
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


def detect(head: bytes) -> str | None:
    """Tell Kobold from all other dialects: an op that is known, or a key of the CBOR map."""
    if head[0] > _MAX_FIRST_BYTE:
        return NO
    if len(head) < 5:
        return None
    if head[4] in _CBOR_MAP_HEADS:
        return _kobold_2(head)
    body = head[4:]
    for opening, dialect in _OPENINGS.items():
        if body.startswith(opening):
            return dialect
    return None if any(opening.startswith(body) for opening in _OPENINGS) else NO


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
    return "kobold-2" if len(seen) == size or len(head) == HEAD else None


def _argument(head: bytes, at: int) -> tuple[int, int]:
    """The argument of the CBOR head at `at`, and where it ends: if that is in `head`, it holds."""
    low = head[at] & 31
    if low < 24:
        return low, at + 1
    end = at + 1 + (1 << (low - 24))
    return int.from_bytes(head[at + 1 : end], "big"), end


def detect_in_family(head: bytes) -> str | None:
    """Tell the Kobold protocols apart; an unknown op is answered by the session, not refused."""
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
