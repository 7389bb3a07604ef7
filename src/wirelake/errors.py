"""The one error tree: every error that Wirelake raises on purpose is one of these.

Errors have fields; their text is made from them.
"""

#: The codes a broker refuses with, in every dialect that carries one (spec: kobold 8).
CODES = (
    "bad_request",
    "unauthorized",
    "not_found",
    "exists",
    "conflict",
    "too_large",
    "no_service",
    "timeout",
    "busy",
    "closed",
)


class WirelakeError(Exception):
    """Anything that goes wrong in Wirelake."""


class ProtocolError(WirelakeError):
    """The peer broke the grammar of its dialect: answer with `answer`, then close."""

    def __init__(self, dialect: str, offset: int, reason: str, answer: bytes = b"") -> None:
        super().__init__(dialect, offset, reason, answer)
        self.dialect = dialect
        self.offset = offset
        self.reason = reason
        self.answer = answer

    def __str__(self) -> str:
        return f"{self.dialect}: byte {self.offset}: {self.reason}"


class RefusedError(WirelakeError):
    """A well-formed request that was refused; the connection stays open.

    One that `waits` tells what a broker has: it holds, as the answer to a read does, once
    everything that was written is durable.
    """

    def __init__(self, code: str, text: str = "", *, waits: bool = False) -> None:
        super().__init__(code, text)
        self.code = code
        self.text = text
        self.waits = waits

    def __str__(self) -> str:
        return f"{self.code}: {self.text}" if self.text else self.code


class EngineError(WirelakeError):
    """Durable data could not be written or read."""

    def __init__(self, reason: str, *, retriable: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retriable = retriable


class ConfigError(WirelakeError):
    """A setting is missing, unknown or out of range."""

    def __init__(self, setting: str, reason: str) -> None:
        super().__init__(setting, reason)
        self.setting = setting
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.setting}: {self.reason}"
