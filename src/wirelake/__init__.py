"""Wirelake: messages on the wire, tables in the lake."""

from wirelake.client import connect, connect_sync
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
    "connect",
    "connect_sync",
]

__version__ = "0.1.0"
