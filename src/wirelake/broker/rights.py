"""Who may do what: the rights a token gives, as filters per kind of action."""

from __future__ import annotations

from dataclasses import dataclass

from wirelake.address import covers
from wirelake.errors import RefusedError

#: The kinds of rights that are filters; `config.TokenSettings` and `Rights` have a field for each.
KINDS = ("publish", "subscribe", "serve", "store", "declare", "clients")


@dataclass(eq=False, slots=True)
class Rights:
    """What the holders of one token may do."""

    name: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    store: tuple[str, ...] = ()
    declare: tuple[str, ...] = ()
    clients: tuple[str, ...] = ("#",)  # the client ids that they may claim
    admin: bool = False
    key: str = ""  # the hash of the token; empty for those without one
    is_open: bool = False  # everybody's, where no tokens are configured
    is_forwarded: bool = False  # found by another node of the cluster, for one request

    @property
    def may_declare(self) -> bool:
        """Whether a right to declare queues was configured for them."""
        return not self.is_open and (self.admin or bool(self.declare))

    @property
    def is_empty(self) -> bool:
        """Whether they allow nothing, as those of strangers where tokens are configured."""
        filters = (self.publish, self.subscribe, self.serve, self.store, self.declare)
        return not self.admin and not any(filters)

    def allows(self, kind: str, filter: str) -> bool:
        """Return whether they allow a kind of action on all that an address or filter matches."""
        allowed: tuple[str, ...] = getattr(self, kind)
        return "#" in allowed or any(covers(one, filter) for one in allowed)

    def check_not_empty(self) -> None:
        """Raise RefusedError where they allow nothing, so that strangers learn nothing."""
        if self.is_empty:
            raise RefusedError("unauthorized", "no right to know this")

    def check_removal(self, name: str) -> None:
        """Raise RefusedError where they do not allow removing what others use."""
        if not self.admin:
            raise RefusedError("unauthorized", f"no right to remove {name}")


def all_rights(name: str = "everyone") -> Rights:
    """Return the rights of everybody where no tokens are configured."""
    everything = ("#",)
    return Rights(
        name, everything, everything, everything, everything, everything, admin=True, is_open=True
    )
