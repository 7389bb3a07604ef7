"""Logins of browsers: a token once, then a cookie that no script can read.

The rules, all of them enforced here:

1. A login has the rights of its token as they are now, and ends when the token is revoked.
2. The cookie is HttpOnly and SameSite=Strict. It is random, and means nothing to another broker.
3. A request that changes something must repeat, in the header `Wirelake-Csrf`, the word that the
   login was given: a page of somebody else can send a cookie, but cannot read that word.
4. A login of a token without `admin` only looks: whatever changes something is refused. (The token
   itself, in an Authorization header, may still do all that its rights allow.)
5. A login ends after `web.login_idle` seconds without a request. At most `web.logins` exist: the
   idlest one of the token that has the most of them goes first, so nobody logs others out.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wirelake.errors import RefusedError

if TYPE_CHECKING:
    from starlette.requests import Request

    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights
    from wirelake.http.limits import HttpLimits

CSRF = "wirelake-csrf"
_SAFE = ("GET", "HEAD")


class LoginError(RefusedError):
    """The cookie of a login that has ended, or that never was."""


@dataclass(eq=False, slots=True)
class Login:
    """One browser that has shown a token."""

    rights: Rights
    csrf: str
    used: float


class Logins:
    """Everybody who is logged in."""

    def __init__(self, node: Node, limits: HttpLimits) -> None:
        self._node = node
        self._limits = limits
        self._logins: dict[str, Login] = {}

    def open(self, rights: Rights, now: float) -> tuple[str, Login]:
        """A new login, and the value of its cookie."""
        while len(self._logins) >= self._limits.web.logins:
            del self._logins[self._superfluous()]
        cookie = secrets.token_urlsafe(32)
        self._logins[cookie] = login = Login(rights, secrets.token_urlsafe(16), now)
        return cookie, login

    def _superfluous(self) -> str:
        """The cookie of the login that goes first."""
        counts = Counter(login.rights.name for login in self._logins.values())
        (name, _), *_ = counts.most_common(1)
        theirs = [one for one, login in self._logins.items() if login.rights.name == name]
        return min(theirs, key=lambda one: self._logins[one].used)

    def of(self, request: Request) -> Login | None:
        """The login that a request belongs to, None without one; LoginError where it has ended.

        Where no tokens are configured nobody needs a login, so a cookie of former days is ignored.
        """
        cookie = _cookie(request)
        if not cookie or self._node.clients.rights_of_strangers.is_open:
            return None
        login, now = self._logins.get(cookie), time.monotonic()
        if login is not None and now - login.used <= self._limits.web.login_idle:
            current = self._node.clients.current_rights(login.rights)
            if current is not None and (current.key or current is login.rights):
                login.rights = current  # another one where the tokens were configured anew
                login.used = now
                return login
        self._logins.pop(cookie, None)
        raise LoginError("unauthorized", "the login has ended")

    def rights(self, request: Request, *, reads: bool = False) -> Rights | None:
        """The rights of a request's login, None without one; `reads`: it changes nothing."""
        login = self.of(request)
        if login is None:
            return None
        if request.method not in _SAFE:
            given = request.headers.get(CSRF, "")
            if not hmac.compare_digest(given.encode(), login.csrf.encode()):
                raise RefusedError("unauthorized", "the header Wirelake-Csrf is not this login's")
            if not reads and not login.rights.admin:
                text = "the console is read-only for tokens without admin"
                raise RefusedError("unauthorized", text)
        return login.rights

    def close(self, request: Request) -> None:
        """Log out."""
        self._logins.pop(_cookie(request), None)


def cookie_header(request: Request, value: str) -> str:
    """The header that sets the cookie, or removes it where the value is empty."""
    secure = "; Secure" if request.url.scheme == "https" else ""
    age = "" if value else "; Max-Age=0"
    return f"{_name(request)}={value}; Path=/; HttpOnly; SameSite=Strict{secure}{age}"


def has_cookie(request: Request) -> bool:
    """Does a request come with the cookie of a login, whatever became of that?"""
    return bool(_cookie(request))


def _name(request: Request) -> str:
    """The cookie's name: browsers keep those of all ports of a host together."""
    return f"wirelake-{request.scope['server'][1]}"


def _cookie(request: Request) -> str:
    """The value of our cookie. It is never quoted, so quotes and escapes of others mean nothing.

    (`http.cookies` of some versions of Python takes minutes for a value with many escapes.)
    """
    wanted = _name(request)
    for pair in request.headers.get("cookie", "").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == wanted:
            return value
    return ""
