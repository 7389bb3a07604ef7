"""How many connections there are, and from where: both are limited.

A connection counts for its peer's address until it has authenticated. Loopback and sockets of this
machine are exempt from the limit per address; of IPv6, where everybody has addresses in plenty, the
first 64 bits count.
"""

from __future__ import annotations

import ipaddress
from collections import Counter

CONNECTIONS = 100_000
PER_PEER = 1000


class Peers:
    """Counts connections, in all and by address."""

    def __init__(self, most: int = CONNECTIONS, per_peer: int = PER_PEER) -> None:
        self.most = most
        self.per_peer = per_peer
        self.exempts_loopback = True
        self.count = 0
        self._strangers: Counter[str] = Counter()

    def admit(self, host: str) -> tuple[str, str]:
        """Count a connection from a host, or refuse it.

        Returns the limit that refuses it, or "", and the name that it counts under, "" if it counts
        for no address.
        """
        if self.count >= self.most:
            return f"limits.connections ({self.most})", ""
        name = self.name(host)
        if name and self._strangers[name] >= self.per_peer:
            return f"limits.connections_per_peer ({self.per_peer} without a token from {name})", ""
        self.count += 1
        if name:
            self._strangers[name] += 1
        return "", name

    def forget(self, name: str) -> None:
        """A connection counts for its address no more: it has authenticated, or ended."""
        if name:
            self._strangers[name] -= 1
            if not self._strangers[name]:
                del self._strangers[name]

    def name(self, host: str) -> str:
        """Return the name that connections from a host count under, "" if they do not."""
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return ""  # a socket of this machine
        if isinstance(address, ipaddress.IPv6Address):
            if address.ipv4_mapped is not None:
                return self.name(str(address.ipv4_mapped))
            if address.is_loopback:
                return "" if self.exempts_loopback else host
            return str(ipaddress.ip_network((address, 64), strict=False))
        return "" if address.is_loopback and self.exempts_loopback else host
