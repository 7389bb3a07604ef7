"""Who the clients are: the rights of a connection, and its client id (spec: identity).

A connection's *owner* is the name of its token entry, or of its certificate; it is empty for a
stranger. The rules for client ids:

1. An id that was claimed with a token belongs to its owner. Another connection of the same owner
   takes it over at once; nobody else can, even if the connection is silent.
2. After a disconnect, or a restart of the broker, the id stays reserved for its owner for `reserve`
   seconds, and for as long as something is kept under it (an MQTT session).
3. Where tokens are configured, a stranger cannot claim an id.
4. Where none are, an id is free once its connection has been silent for `SILENCE` seconds.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable

from wirelake.address import check_client_id, matches
from wirelake.broker.capture import Capture
from wirelake.broker.endpoint import Endpoint
from wirelake.broker.guesses import Guesses
from wirelake.broker.rights import Rights, all_rights
from wirelake.broker.vitals import Vitals
from wirelake.errors import RefusedError
from wirelake.journal.engine import Engine, Entry
from wirelake.message import Message

#: The entry `$reserved/<id>` of the journal has the owner of an id that was claimed with a token.
RESERVED = "$reserved/"
#: Where no tokens are configured, an id is free once its connection was silent this long (seconds).
SILENCE = 60.0
#: How long an id stays reserved for its token after a disconnect (seconds), and how many do.
RESERVE = 600.0
MAX_RESERVED = 10_000


class Clients:
    """The rights that tokens give, the ids that connections have, and the reserved ones."""

    def __init__(self, engine: Engine, vitals: Vitals, capture: Capture) -> None:
        self._engine = engine
        self._vitals = vitals
        self._capture = capture
        self.rights_of_strangers = all_rights()
        #: The rights of a token, None where it is not known.
        self.rights_of_token: Callable[[str], Rights | None] = lambda token: (
            self.rights_of_strangers
        )
        #: The rights in force for the holders of these, which may be older; None if there are none.
        self.all_rights: list[Rights] = [self.rights_of_strangers]  # that somebody may have
        self.current_rights: Callable[[Rights], Rights | None] = lambda rights: rights
        self.guesses = Guesses()
        self.reserve = RESERVE
        self.max_reserved = MAX_RESERVED  # for one token; the oldest are let go first
        #: Called with a session that was given an id, where this node is one of a cluster.
        self.on_named: Callable[[Endpoint], object] = lambda session: None
        #: Begins ids that the broker makes, so that no other node of a cluster makes the same.
        self.label = ""
        self._sessions: dict[str, list[Endpoint]] = {}
        #: Each returns the owner of what it keeps under an id, "" for nobody.
        self.keepers: list[Callable[[str], str]] = []
        self._reserved: dict[str, tuple[str, float]] = {}  # ids: for whom, since when
        self._reserved_for: dict[str, OrderedDict[str, None]] = {}  # by owner
        self._kept: dict[str, tuple[str, int]] = {}  # in the journal: the owner, the revision
        self._load()

    def __contains__(self, client_id: str) -> bool:
        return client_id in self._sessions

    def sessions(self, client_id: str) -> list[Endpoint]:
        """Return the connections that have this id: one, or mfp's pair of two."""
        return self._sessions.get(client_id, [])

    def authenticate(self, session: Endpoint, token: str) -> None:
        """Give a session the rights of a token; an id that it claimed with another one is free.

        Raises RefusedError (`unauthorized`) where the token is not known, or is not looked at since
        there were too many wrong ones.
        """
        self.guesses.check(session, token, self._vitals.now)
        rights = self.rights_of_token(token)
        if rights is None:
            self.guesses.failed(session, self._vitals.now)
            raise RefusedError("unauthorized", "the token is not known")
        if session.has_claimed and self.owner_of(rights) != session.owner:
            self.leave(session, self._vitals.now)
            session.client_id = ""
        self.guesses.succeeded(session, token)
        session.token = token
        session.rights = rights
        if rights is not self.rights_of_strangers:
            session.authenticated()

    def claim(self, session: Endpoint, client_id: str, now: float) -> None:
        """Give a session the id that it claims.

        A connection that it takes the id from is disconnected, which is an event. Raises
        RefusedError: `unauthorized` where this session may not claim the id, `conflict` where the
        id belongs to somebody else.
        """
        self.check(session.rights, client_id, now)
        for other in list(self.sessions(client_id)):
            if other is not session and other.yields_to(session):
                other.give_up_id()
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
            self._vitals.event("takeover", repr(session), text)
            other.close("another connection took over its client id")
        self._assign(session, client_id)
        session.has_claimed = True
        self._let_go(client_id)
        if session.owner:
            self._write(client_id, session.owner)
        self.on_named(session)

    def register(self, session: Endpoint, client_id: str, now: float, *, claimed: bool) -> None:
        """Give a delegate the id that its client has on another node; raises RefusedError."""
        if claimed:
            self.claim(session, client_id, now)
        else:
            self._assign(session, client_id)

    def check(self, rights: Rights, client_id: str, now: float) -> None:
        """Raise RefusedError where an id is not valid, or these rights do not allow it.

        Connections that have the id now are checked by `claim` and `check_request`.
        """
        check_client_id(client_id)
        owner = self.owner_of(rights)
        if not self._is_open and not owner:
            raise RefusedError("unauthorized", "to claim a client id takes a token")
        if not any(matches(filter, client_id) for filter in rights.clients):
            text = f"this token may not claim the client id {client_id}: see its `clients`"
            raise RefusedError("unauthorized", text)
        holder, since = self._reserved.get(client_id, (owner, 0.0))
        is_reserved = holder != owner and now < since + self.reserve
        if is_reserved or any(self._is_others(keeper(client_id), owner) for keeper in self.keepers):
            raise RefusedError("conflict", f"the client id {client_id} is reserved")

    def check_request(self, rights: Rights, client_id: str, now: float) -> None:
        """Raise RefusedError where a request without a connection may not use an id."""
        self.check(rights, client_id, now)
        owner = self.owner_of(rights)
        if any(not owner or other.owner != owner for other in self.sessions(client_id)):
            raise RefusedError("conflict", f"the client id {client_id} is in use")

    def name(self, session: Endpoint) -> None:
        """Give a session an id that the broker makes."""
        self._assign(session, self.make_id(session))
        self.on_named(session)

    def make_id(self, session: Endpoint) -> str:
        """Return an id for a session that nobody has."""
        made = f"client-{self.label}{session.number}"
        while made in self._sessions or made in self._reserved:
            made = f"client-{self.label}{session.number}-{secrets.token_hex(4)}"
        return made

    def leave(self, session: Endpoint, now: float) -> None:
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
        return "" if rights is self.rights_of_strangers else rights.name

    def send(self, session: Endpoint, message: Message, now: float) -> None:
        """Pass a direct message on to the client that it names; raises RefusedError."""
        if not self.receiver(session, message.target).send(message):
            raise RefusedError("not_found", f"{message.target} cannot be told this")
        self._capture.add(message, now)
        self._vitals.counters["delivered"] += 1

    def receiver(self, session: Endpoint, name: str) -> Endpoint:
        """Return the connection of a client that takes messages for itself.

        Raises RefusedError: `unauthorized` where the session may not send to it, `not_found` where
        there is none.
        """
        if not session.rights.allows("publish", f"$client/{name}"):
            raise RefusedError("unauthorized", f"no right to send to {name}")
        for other in self.sessions(name):
            if other.takes_direct:
                return other
        raise RefusedError("not_found", f"no client {name} that takes messages")

    def tick(self) -> None:
        """Tell operators of the addresses that have given too many wrong tokens."""
        while self.guesses.events:
            address, text = self.guesses.events.popleft()
            self._vitals.event("wrong_tokens", address, text)

    @property
    def _is_open(self) -> bool:
        return self.rights_of_strangers.is_open

    def _assign(self, session: Endpoint, client_id: str) -> None:
        self.leave(session, self._vitals.now)
        session.client_id = client_id
        self._sessions.setdefault(client_id, []).append(session)

    def _is_others(self, holder: str, owner: str) -> bool:
        """Is this another owner, and is there still a token of that name?"""
        return holder not in ("", owner) and any(one.name == holder for one in self.all_rights)

    def _load(self) -> None:
        """Reserve the ids that were claimed before the broker started."""
        for _, entry in self._engine.entries():
            if entry.key.startswith(RESERVED) and entry.value is not None:
                client_id = entry.key.removeprefix(RESERVED)
                owner = entry.value.decode(errors="replace")
                self._kept[client_id] = owner, entry.revision
                self._reserved[client_id] = owner, self._vitals.now
                self._reserved_for.setdefault(owner, OrderedDict())[client_id] = None

    def _write(self, client_id: str, owner: str) -> None:
        """Note in the journal whose an id is; an empty owner: nobody's."""
        known, revision = self._kept.get(client_id, ("", 0))
        if known == owner or self._engine.is_shared or self._engine.trouble:
            return
        if owner:
            self._kept[client_id] = owner, revision + 1
            entry = Entry(RESERVED + client_id, revision + 1, owner.encode())
            self._engine.write_entry(entry)
        else:
            del self._kept[client_id]
            self._engine.drop_entry(RESERVED + client_id)

    def _keep(self, client_id: str, owner: str, now: float) -> None:
        self._reserved[client_id] = (owner, now)
        theirs = self._reserved_for.setdefault(owner, OrderedDict())
        theirs[client_id] = None
        theirs.move_to_end(client_id)
        while theirs and (
            len(theirs) > self.max_reserved or self._is_over(next(iter(theirs)), now)
        ):
            oldest = next(iter(theirs))
            self._let_go(oldest)
            self._write(oldest, "")

    def _is_over(self, client_id: str, now: float) -> bool:
        return self._reserved[client_id][1] + self.reserve <= now

    def _let_go(self, client_id: str) -> None:
        owner, _ = self._reserved.pop(client_id, ("", 0.0))
        if owner:
            del self._reserved_for[owner][client_id]
            if not self._reserved_for[owner]:
                del self._reserved_for[owner]
