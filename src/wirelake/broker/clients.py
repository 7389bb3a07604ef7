"""Which connection has which client id, and which token an id belongs to (spec: identity).

A connection's *owner* is the name of its token entry, or of its certificate; it is empty for a
stranger. An id that was claimed with a token belongs to that token entry: whoever has the same
entry takes it over at once, and nobody else does, however silent its connection is. After a
disconnect the id stays reserved for its owner for a while. Where tokens are configured, a stranger
cannot claim an id. Only where no tokens are configured does silence free an id.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING

from wirelake.address import check_client_id, matches
from wirelake.errors import RefusedError

if TYPE_CHECKING:
    from wirelake.broker.node import Node
    from wirelake.broker.rights import Rights
    from wirelake.broker.session import Session

#: Where no tokens are configured, an id is free once its connection was silent this long (seconds).
SILENCE = 60.0
#: How long an id stays reserved for its token after a disconnect (seconds), and how many do.
RESERVE = 600.0
MAX_RESERVED = 10_000


class Clients:
    """The ids that connections have, and those that are reserved."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.reserve = RESERVE
        self.max_reserved = MAX_RESERVED  # for one token; the oldest are let go first
        self._sessions: dict[str, list[Session]] = {}
        self._reserved: dict[str, tuple[str, float]] = {}  # ids: for whom, until when
        self._reserved_for: dict[str, OrderedDict[str, None]] = {}  # by owner

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._sessions

    def sessions(self, client_id: str) -> list[Session]:
        """Return the connections that have this id: one, or mfp's pair of two."""
        return self._sessions.get(client_id, [])

    def claim(self, session: Session, client_id: str, now: float) -> None:
        """Give a session the id that it claims.

        Whoever has the id and must make way for it is disconnected, which is an event. Raises
        RefusedError: `unauthorized` where this session may not claim the id, `conflict` where it
        belongs to somebody else.
        """
        self.check(session.rights, client_id, now)
        in_the_way = []
        for other in self.sessions(client_id):
            if other is session or (other.owner == session.owner and other.pairs_with(session)):
                continue
            is_silent = self._is_open and now - other.last_heard >= SILENCE
            if not is_silent and not (session.owner and session.owner == other.owner):
                raise RefusedError("conflict", f"the client id {client_id} is in use")
            in_the_way.append(other)
        for other in in_the_way:
            text = f"took over the client id {client_id} from {other.link.peer}"
            self._node.event("takeover", repr(session), text)
            other.close("another connection took over its client id")
        self._assign(session, client_id)
        session.has_claimed = True
        self._let_go(client_id)

    def check(self, rights: Rights, client_id: str, now: float) -> None:
        """Raise RefusedError where an id is none, or rights do not let their holder use it.

        A live connection with that id is looked at by `claim` and `check_request`.
        """
        check_client_id(client_id)
        owner = self.owner_of(rights)
        if not self._is_open and not owner:
            raise RefusedError("unauthorized", "to claim a client id takes a token")
        if not any(matches(filter, client_id) for filter in rights.clients):
            text = f"this token may not claim the client id {client_id}: see its `clients`"
            raise RefusedError("unauthorized", text)
        holder, until = self._reserved.get(client_id, ("", 0.0))
        if holder != owner and now < until:
            raise RefusedError("conflict", f"the client id {client_id} is reserved")

    def check_request(self, rights: Rights, client_id: str, now: float) -> None:
        """Raise RefusedError where a request without a connection may not use an id."""
        self.check(rights, client_id, now)
        owner = self.owner_of(rights)
        if any(not owner or other.owner != owner for other in self.sessions(client_id)):
            raise RefusedError("conflict", f"the client id {client_id} is in use")

    def name(self, session: Session) -> None:
        """Give a session an id that the broker makes."""
        made = f"client-{session.number}"
        while made in self._sessions or made in self._reserved:
            made = f"client-{session.number}-{secrets.token_hex(4)}"
        self._assign(session, made)

    def leave(self, session: Session, now: float) -> None:
        """Take a session's id from it; one that it claimed with a token stays reserved."""
        client_id = session.client_id
        mine = self._sessions.get(client_id, [])
        if session not in mine:
            return
        mine.remove(session)
        if not mine:
            del self._sessions[client_id]
            if session.has_claimed and session.owner:
                self._keep(client_id, session.owner, now)
        session.has_claimed = False

    def owner_of(self, rights: Rights) -> str:
        """Return the token entry that rights are of, empty for strangers."""
        return "" if rights is self._node.rights_of_strangers else rights.name

    @property
    def _is_open(self) -> bool:
        return self._node.rights_of_strangers.is_open

    def _assign(self, session: Session, client_id: str) -> None:
        self.leave(session, self._node.now)
        session.client_id = client_id
        self._sessions.setdefault(client_id, []).append(session)

    def _keep(self, client_id: str, owner: str, now: float) -> None:
        if not self.reserve:
            return
        self._reserved[client_id] = (owner, now + self.reserve)
        theirs = self._reserved_for.setdefault(owner, OrderedDict())
        theirs[client_id] = None
        theirs.move_to_end(client_id)
        while len(theirs) > self.max_reserved or self._is_over(next(iter(theirs)), now):
            self._let_go(next(iter(theirs)))

    def _is_over(self, client_id: str, now: float) -> bool:
        return self._reserved[client_id][1] <= now

    def _let_go(self, client_id: str) -> None:
        owner, _ = self._reserved.pop(client_id, ("", 0.0))
        if owner:
            del self._reserved_for[owner][client_id]
            if not self._reserved_for[owner]:
                del self._reserved_for[owner]
