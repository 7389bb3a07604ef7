"""A broker's HTTP interface, for callers that block: one request a call, no connection kept.

A broker is asked directly: the proxy settings of the environment are for other hosts.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from wirelake.errors import ConfigError, EngineError, RefusedError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HttpClient:
    """Asks the broker whose HTTP listens at `url`, for example http://localhost:7780.

    A token may be in the URL, as a password; one that is given beside it goes before.

    All methods raise RefusedError if the broker refuses, with its code and text; TimeoutError if it
    does not answer in `timeout` seconds; EngineError if there is no broker or no valid answer.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            place = url.rpartition("@")[2].rpartition("://")[2]  # without what may be a token
            raise ConfigError("url", f"{place} is not where HTTP listens: say http://HOST:PORT")
        scheme, _, place = url.rstrip("/").partition("://")
        who, _, place = place.rpartition("@")
        self.url = f"{scheme}://{place}"
        self.token = token or unquote(who.partition(":")[2])
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

    @contextmanager
    def events(self, path: str, **query: object) -> Iterator[Iterator[tuple[str, Any]]]:
        """Open a stream of server-sent events: their names and JSON values, until `with` ends.

        A comment is an event without a name and a value. `timeout` is for the time between two.
        """
        with self._answer("GET", f"{path}?{urlencode(query, doseq=True)}", None) as answer:
            yield self._parsed(answer)

    def _parsed(self, answer: Iterable[bytes]) -> Iterator[tuple[str, Any]]:
        name = "message"
        with self._foreign_errors():
            for line in answer:
                key, _, value = line.decode(errors="replace").rstrip("\r\n").partition(":")
                if key == "event":
                    name = value.strip()
                elif key == "data":
                    yield name, json.loads(value)
                    name = "message"
                elif value and not key:
                    yield "", None

    def _send(self, method: str, path: str, body: object) -> bytes:
        with self._foreign_errors(), self._answer(method, path, body) as answer:
            content: bytes = answer.read()
            return content

    def _answer(self, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(self.url + path, method=method)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        with self._foreign_errors():
            return _OPENER.open(request, timeout=self._timeout)

    @contextmanager
    def _foreign_errors(self) -> Iterator[None]:
        """Turn the errors of the library into ours."""
        try:
            yield
        except urllib.error.HTTPError as error:
            raise _refusal(error, self.url) from None
        except (OSError, HTTPException, ValueError) as error:
            cause = error.reason if isinstance(error, urllib.error.URLError) else error
            if isinstance(cause, TimeoutError):
                text = f"{self.url} has not answered in {self._timeout:g} s"
                raise TimeoutError(text) from None
            named = isinstance(cause, OSError) and cause.strerror
            if isinstance(cause, ConnectionRefusedError):
                text = f"nothing listens at {urlsplit(self.url).netloc}"
                raise EngineError(f"{text}: start a broker with `wirelake serve`") from None
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
