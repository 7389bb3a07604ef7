"""A broker's HTTP interface, for callers that block: one request a call, no connection kept.

A broker is asked directly: the proxy settings of the environment are for other hosts. Of a cluster
several nodes can be named, `http://one:7780,two:7780`: the next one is asked where one cannot be
reached. What another node has is asked there, if it is a node of the same cluster.
"""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from wirelake.client.origins import MOST_REDIRECTS, check_node, origins, redirected
from wirelake.errors import ConfigError, EngineError, RefusedError

#: Methods that may be sent again, to another node, if nobody knows whether they were done.
_REPEATABLE = ("GET", "HEAD", "PUT", "DELETE")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leaves redirects to us: the library would send the token wherever they lead to."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)


class HttpClient:
    """Asks the broker whose HTTP listens at `url`, for example http://localhost:7780.

    Of several hosts, `url` is the one that is asked next. A token may be in the URL, as a password;
    one that is given beside it goes before.

    All methods raise RefusedError if the broker refuses, with its code and text; TimeoutError if it
    does not answer in `timeout` seconds; EngineError if there is no broker or no valid answer.
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 30.0) -> None:
        if not url.startswith(("http://", "https://")):
            place = url.rpartition("@")[2].rpartition("://")[2]  # without what may be a token
            raise ConfigError("url", f"{place} is not where HTTP listens: say http://HOST:PORT")
        scheme, _, place = url.rstrip("/").partition("://")
        who, _, place = place.rpartition("@")
        self._origins = origins(f"{scheme}://{place}") if "," in place else (f"{scheme}://{place}",)
        self.url = self._origins[0]
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
        """Send a request to the nodes in turn, until one can be reached."""
        left = len(self._origins)
        with self._foreign_errors():
            while True:
                left -= 1
                try:
                    return self._followed(method, path, body)
                except urllib.error.HTTPError:
                    raise
                except OSError as error:
                    cause = error.reason if isinstance(error, urllib.error.URLError) else error
                    is_unsent = isinstance(cause, ConnectionRefusedError | socket.gaierror)
                    if not left or not (is_unsent or method in _REPEATABLE):
                        raise
                at = self._origins.index(self.url)
                self.url = self._origins[(at + 1) % len(self._origins)]

    def _followed(self, method: str, path: str, body: object) -> Any:
        """Send a request, to where a node of the same cluster redirects to if it does."""
        origin = self.url
        for _ in range(MOST_REDIRECTS):
            try:
                return self._opened(origin, method, path, body)
            except urllib.error.HTTPError as error:
                if error.code != HTTPStatus.TEMPORARY_REDIRECT:
                    raise
                location = error.headers.get("Location", "")
                error.close()
            sent_to, (origin, path) = origin, redirected(location, origin)
            if origin not in self._origins:
                with self._opened(sent_to, "GET", "/v1/cluster", None) as told:
                    nodes = [str(one["http"]) for one in json.load(told)["nodes"]]
                check_node(origin, nodes, sent_to)
        raise EngineError(f"{origin} redirects for ever")

    def _opened(self, origin: str, method: str, path: str, body: object) -> Any:
        request = urllib.request.Request(origin + path, method=method)
        if self.token:
            request.add_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
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
