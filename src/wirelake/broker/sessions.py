"""The session class of each dialect."""

from __future__ import annotations

from wirelake.broker.boson_text import BosonTextSession
from wirelake.broker.endpoint import Link
from wirelake.broker.mfp import MfpSession
from wirelake.broker.node import Node
from wirelake.broker.ops import KoboldSession, OpSession
from wirelake.broker.session import Session
from wirelake.broker.tmq import TmqSession

SESSIONS: dict[str, type[Session]] = {
    "boson-text": BosonTextSession,
    "boson-binary": OpSession,
    "mfp-1": MfpSession,
    "kobold-1": KoboldSession,
    "kobold-2": KoboldSession,
    "kobold-3": KoboldSession,
    "tmq-1.00": TmqSession,
    "tmq-1.01": TmqSession,
}


def begin_session(node: Node, link: Link, dialect: str, now: float) -> Session:
    """Begin the session of a connection that turned out to speak a dialect."""
    return SESSIONS[dialect](node, link, dialect, now)
