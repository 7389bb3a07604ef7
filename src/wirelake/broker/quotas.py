"""How much one connection, and all of them together, may have.

Every check of a quota is here, below all dialects and HTTP. A refusal names the setting that was
reached. Its code is `busy`, since the same request succeeds once something was given back; a name
with too many levels never does, and is a `bad_request`.
"""

from __future__ import annotations

from dataclasses import dataclass

from wirelake.errors import RefusedError


@dataclass(slots=True)
class Quotas:
    """The quotas in force; the settings of the same names are in `config.QuotaSettings`."""

    levels: int = 32
    subscriptions: int = 10_000
    all_subscriptions: int = 1_000_000
    wildcards: int = 1_000
    services: int = 1_000
    all_services: int = 100_000
    requests: int = 10_000
    all_requests: int = 1_000_000
    pulls: int = 1_000
    all_pulls: int = 100_000
    watches: int = 1_000
    all_watches: int = 100_000
    streams: int = 1_000
    all_streams: int = 100_000
    queues: int = 100_000
    keys: int = 1_000_000
    key_bytes: int = 1 << 30
    deleted_keys: int = 10_000
    sessions: int = 100_000
    session_messages: int = 100_000
    session_bytes: int = 1 << 30
    will_bytes: int = 256 << 20
    unreleased: int = 1_000
    aliases: int = 64
    retained: int = 1_000_000
    retained_bytes: int = 1 << 30

    def change(self, **quotas: int) -> None:
        """Put these quotas into force; the others stay."""
        for name, value in quotas.items():
            setattr(self, name, value)

    def check(self, kind: str, mine: int, in_all: int) -> None:
        """Refuse one more of a kind where a connection has `mine`, and all have `in_all`."""
        self.check_one(kind, mine)
        self.check_all(f"all_{kind}", in_all)

    def check_one(self, kind: str, mine: int) -> None:
        """Refuse one more of a kind where a connection has `mine`."""
        most: int = getattr(self, kind)
        if mine >= most:
            raise RefusedError(
                "busy", f"this connection has {mine} {kind}, the most allowed (quotas.{kind})"
            )

    def check_all(self, kind: str, in_all: int) -> None:
        """Refuse one more of a kind where all connections together have `in_all`."""
        most: int = getattr(self, kind)
        if in_all >= most:
            name = kind.removeprefix("all_")
            raise RefusedError(
                "busy", f"the broker has {in_all} {name}, the most allowed (quotas.{kind})"
            )

    def check_room(self, kind: str, used: int, more: int, what: str = "the data store has") -> None:
        """Refuse what takes more bytes than are left."""
        most: int = getattr(self, kind)
        if used + more > most:
            raise RefusedError(
                "busy",
                f"{what} {used} bytes of the {most} allowed (quotas.{kind}),"
                f" and {more} more do not fit",
            )

    def check_levels(self, name: str) -> None:
        """Refuse an address or a filter of too many levels."""
        if name.count("/") >= self.levels:
            raise RefusedError(
                "bad_request",
                f"an address has at most {self.levels} levels (quotas.levels),"
                f" not {name.count('/') + 1}",
            )
