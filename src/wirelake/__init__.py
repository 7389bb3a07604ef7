"""Wirelake: messages on the wire, tables in the lake."""

from wirelake.errors import (
    ConfigError,
    EngineError,
    ProtocolError,
    RefusedError,
    WirelakeError,
)
from wirelake.message import Flag, Limits, Message, Op

__all__ = [
    "ConfigError",
    "EngineError",
    "Flag",
    "Limits",
    "Message",
    "Op",
    "ProtocolError",
    "RefusedError",
    "WirelakeError",
]

__version__ = "0.1.0"
