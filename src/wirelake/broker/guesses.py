"""Wrong tokens: answers to a peer that sends too many are delayed, and operators get an event.

The numbers are those of `config.GuessSettings`. A *connection* may give `free` wrong tokens. From
then on its tokens are not looked at for a while, which doubles with every further wrong one, and
after `most` attempts it is closed. A connection whose first token is right never notices any of
this, whoever else shares its address.

An *address* that sends more than `free_per_peer` wrong tokens within `forget` seconds is an event.
If it is another machine's, its tokens are not looked at for a while either, but for those that were
right there before. Addresses of this machine are never barred as a whole, since everybody behind a
proxy, a tunnel or a container has the same one.

Also used by HTTP, on another thread: so events wait here until the broker's clock ticks.
"""

from __future__ import annotations

import hashlib
import ipaddress
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from wirelake.broker.endpoint import Endpoint
from wirelake.config import GuessSettings
from wirelake.errors import RefusedError

#: The shortest time between an address's events (seconds).
QUIET = 60.0


@dataclass(slots=True)
class _Trial:
    """The wrong tokens of a connection, or of an address."""

    wrong: int = 0
    attempts: int = 0  # those that were not looked at included
    until: float = 0.0  # nothing is looked at before
    last: float = 0.0
    told: float = -QUIET


class Guesses:
    """Counts wrong tokens, of connections on the wire and of requests of HTTP."""

    def __init__(self, settings: GuessSettings | None = None) -> None:
        self.settings = settings or GuessSettings()
        self._lock = threading.Lock()
        self._connections: WeakKeyDictionary[Endpoint, _Trial] = WeakKeyDictionary()
        self._addresses: OrderedDict[str, _Trial] = OrderedDict()
        self._right: OrderedDict[tuple[str, bytes], None] = OrderedDict()
        #: What operators are to be told: an address, and a text.
        self.events: deque[tuple[str, str]] = deque(maxlen=100)

    def check(self, session: Endpoint, token: str, now: float) -> None:
        """Raise RefusedError where a connection's tokens are not looked at now."""
        trial = self._connections.get(session)
        wait = max(
            0.0 if trial is None else trial.until - now, self.wait(_host(session), token, now)
        )
        if wait <= 0:
            return
        if trial is None:
            trial = self._connections[session] = _Trial()
        trial.attempts += 1
        if trial.attempts > self.settings.most:
            session.close("too many wrong tokens (guesses.most)")
        raise RefusedError("unauthorized", refusal(wait))

    def failed(self, session: Endpoint, now: float) -> None:
        """A connection has given a wrong token."""
        trial = self._connections.setdefault(session, _Trial())
        trial.wrong += 1
        trial.attempts += 1
        trial.until = now + self._delay(trial.wrong - self.settings.free)
        self.failed_at(_host(session), now)

    def succeeded(self, session: Endpoint, token: str) -> None:
        """A connection has given a right token."""
        self._connections.pop(session, None)
        self.succeeded_at(_host(session), token)

    # By address alone, from any thread

    def wait(self, address: str, token: str, now: float) -> float:
        """For how many seconds this token of an address is not looked at; 0: it is."""
        with self._lock:
            trial = self._addresses.get(address)
            if trial is None or trial.until <= now or _is_local(address):
                return 0.0
            return 0.0 if _key(address, token) in self._right else trial.until - now

    def failed_at(self, address: str, now: float) -> float:
        """An address has given a wrong token; how many seconds the answer may well wait."""
        settings = self.settings
        with self._lock:
            trial = self._addresses.get(address)
            if trial is None or now - trial.last > settings.forget:
                trial = self._addresses[address] = _Trial()
            self._addresses.move_to_end(address)
            while len(self._addresses) > settings.remembered:
                self._addresses.popitem(last=False)
            trial.wrong += 1
            trial.last = now
            delay = self._delay(trial.wrong - settings.free_per_peer)
            trial.until = now + delay
            if trial.wrong > settings.free_per_peer and now - trial.told >= QUIET:
                trial.told = now
                text = f"{trial.wrong} wrong tokens within {settings.forget:g} s"
                self.events.append((address, text))
            return delay

    def succeeded_at(self, address: str, token: str) -> None:
        """An address has given a right token."""
        with self._lock:
            self._right[_key(address, token)] = None
            self._right.move_to_end(_key(address, token))
            while len(self._right) > self.settings.remembered:
                self._right.popitem(last=False)

    def _delay(self, beyond: int) -> float:
        """Return the delay after this many wrong tokens beyond the free ones (seconds)."""
        first, longest = self.settings.first_delay, self.settings.longest_delay
        return 0.0 if beyond <= 0 else min(longest, first * 2.0 ** min(beyond - 1, 30))


def refusal(wait: float) -> str:
    """Return the refusal of a token that is not checked for `wait` seconds."""
    return f"after wrong tokens, try again in {wait:.1f} s (guesses.longest_delay)"


def _key(address: str, token: str) -> tuple[str, bytes]:
    """A token of an address; the token itself is not kept."""
    return address, hashlib.sha256(token.encode(errors="surrogatepass")).digest()


def _host(session: Endpoint) -> str:
    """The address of a connection without its port; what is no address is this machine's."""
    host, colon, port = session.link.peer.rpartition(":")
    return host.strip("[]") if colon and port.isdecimal() else session.link.peer


def _is_local(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True  # a Unix socket
