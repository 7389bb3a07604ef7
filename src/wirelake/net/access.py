"""Who may come in, and what they may do: tokens, client certificates, and the TLS of listeners."""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING

from wirelake.address import check_filter
from wirelake.broker.rights import KINDS, Rights, all_rights
from wirelake.config import TlsSettings, TokenSettings, hash_token
from wirelake.errors import ConfigError, RefusedError

if TYPE_CHECKING:
    from wirelake.broker.session import Session


class Access:
    """The rights of every token; where there are none, everybody may do everything."""

    def __init__(self, tokens: Sequence[TokenSettings] = ()) -> None:
        self.strangers = Rights("stranger") if tokens else all_rights()
        self._by_hash = [(token.hash, _rights(token)) for token in tokens]
        self._by_name = {rights.name: rights for _, rights in self._by_hash}

    @property
    def all(self) -> list[Rights]:
        """All rights that somebody may have."""
        return [self.strangers, *(rights for _, rights in self._by_hash)]

    def of_token(self, token: str) -> Rights | None:
        """The rights of whoever has this token, None where it is not known."""
        if not self._by_hash:
            return self.strangers
        found = None
        given = hash_token(token)
        for known, rights in self._by_hash:  # to the end: the time tells nothing
            if hmac.compare_digest(known, given):
                found = rights
        return found

    def of_certificate(self, name: str) -> Rights | None:
        """The rights of the token of this name, for whoever has a certificate with it."""
        return self._by_name.get(name)

    def succeeding(self, rights: Rights) -> Rights | None:
        """The rights that the holders of older rights have here, None if their token has none."""
        if rights.is_forwarded:
            return rights
        if not rights.key:
            return self.strangers
        return next((new for hash, new in self._by_hash if hash == rights.key), None)

    def of_session(self, session: Session, certificate: str) -> Rights | None:
        """The rights that a session that exists already has here, None if its token has none."""
        if certificate and session.token == f"certificate:{certificate}":
            return self.of_certificate(certificate) or self.strangers
        return self.of_token(session.token) if session.token else self.strangers


def _rights(token: TokenSettings) -> Rights:
    for kind in KINDS:
        check_filters(f"tokens.{token.name}.{kind}", getattr(token, kind))
    filters = {kind: getattr(token, kind) for kind in KINDS}
    return Rights(token.name, **filters, admin=token.admin, key=token.hash)


def check_filters(setting: str, filters: Sequence[str]) -> None:
    """Refuse a setting whose filters are none."""
    for one in filters:
        try:
            check_filter(one)
        except RefusedError as error:
            raise ConfigError(setting, f"{one!r}: {error.text}") from None


def loses(old: Rights, new: Rights) -> bool:
    """Is there something that the old rights allow and the new ones may not?"""
    return (old.admin and not new.admin) or any(
        not set(getattr(old, kind)) <= set(getattr(new, kind)) for kind in KINDS
    )


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    load_certificate(context, settings)
    if settings.client_ca:
        try:
            context.load_verify_locations(settings.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("tls.client_ca", f"{settings.client_ca}: {_why(error)}") from None
        context.verify_mode = (
            ssl.CERT_REQUIRED if settings.require_client_cert else ssl.CERT_OPTIONAL
        )
    return context


def load_certificate(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Use this certificate for new connections."""
    try:
        context.load_cert_chain(settings.cert, settings.key, password=_no_password)
    except (OSError, ValueError) as error:
        files = f"{settings.cert}, {settings.key}"
        raise ConfigError("tls.cert", f"{files}: {_why(error)}") from None


def _no_password() -> str:
    # Without this OpenSSL would ask for one at the terminal.
    raise ValueError("a key with a password cannot be used")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not in PEM format").replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
