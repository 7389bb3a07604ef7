"""Pulse counters: frames of eight bytes, `P1`, the counter's number (2), its value (4)."""

from wirelake.plugin import Plugin
from wirelake_pulse.codec import PulseEncoder, PulseScanner


class Pulse(Plugin):
    """The dialect; its frames are read and written by `codec.pyx`."""

    interface = 1
    name = "pulse-1"
    family = "pulse"
    magic = (b"P1",)
    scanner = PulseScanner
    encoder = PulseEncoder

    def accepted(self, message):
        """Publishes are not answered: counters do not listen."""
        return b""

    def refused(self, message, error):
        """Neither are those that are refused."""
        return b""
