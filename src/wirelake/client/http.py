"""A broker's HTTP interface, for callers that block: one request a call, no connection kept.

A broker is asked directly: the proxy settings of the environment are for other hosts.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode, urlsplit

from wirelake.errors import ConfigError, EngineError, RefusedError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpClient:
    """Asks the broker whose HTTP listens at `url`, for example http://localhost:7780.

    All methods raise RefusedError if the broker refuses, with its code and text; TimeoutError if it
    does not answer in `timeout` seconds; EngineError if there is no broker or no valid answer.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError("url", f"{url} is not where HTTP listens: say http://HOST:PORT")
        self.url = url.rstrip("/")
        self.token = token
        self._timeout = timeout

    def get(self, path: str) -> Any:
        """The JSON value at a path."""
        return self.ask("GET", path)

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Any:
        """Send a request, with a JSON body unless that is None; the JSON answer, None if empty."""
        text = self._send(method, f"{path}?{urlencode(query)}" if query else path, body)
        try:
            return json.loads(text or b"null")
        except ValueError:
            raise EngineError(f"{self.url}{path}: this is no broker of ours") from None

    def text(self, path: str) -> str:
        """The text at a path."""
        return self._send("GET", path, None).decode()

    def _send(self, method: str, path: str, body: object) -> bytes:
        request = urllib.request.Request(self.url + path, method=method)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with _OPENER.open(request, timeout=self._timeout) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            raise _refusal(error, self.url) from None
        except (OSError, HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, TimeoutError):
                text = f"{self.url} has not answered in {self._timeout:g} s"
                raise TimeoutError(text) from None
            named = isinstance(cause, OSError) and cause.strerror
            reason = named.lower() if named else cause
            raise EngineError(f"no answer at {urlsplit(self.url).netloc}: {reason}") from None


def _refusal(error: urllib.error.HTTPError, url: str) -> RefusedError | EngineError:
    """What an answer that is an error says: the broker's own words, if it has any."""
    with error:
        try:
            told = json.loads(error.read())
            return RefusedError(told["error"], told["text"])
        except (ValueError, KeyError, TypeError, OSError):
            return EngineError(f"{url}: HTTP {error.code} {error.reason}")
