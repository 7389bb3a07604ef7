"""The blocking HTTP client, on a real broker and on servers that are none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from wirelake.client.http import HttpClient
from wirelake.client.origins import origins, redirected
from wirelake.config import TokenSettings, hash_token
from wirelake.errors import ConfigError, EngineError, RefusedError
from wirelake.spark.log_client import LogClient
from wirelake.testing import Broker


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """A server with one answer for one request; without one it only listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        if answer:
            thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        if answer:
            thread.join()


def test_a_broker_answers_with_json_and_text() -> None:
    with Broker(http=True) as broker:
        client = HttpClient(f"{broker.http_url}/")
        assert client.ask("PUT", "/v1/queues/jobs", {"mode": "pull"}) is not None
        assert client.get("/v1/queues/jobs")["mode"] == "pull"
        assert client.ask("GET", "/v1/queues/jobs/messages", count=1)["messages"] == []
        assert "wirelake_clients" in client.text("/metrics")


def test_a_refusal_has_the_code_and_the_text_of_the_broker() -> None:
    admin = TokenSettings(name="admin", hash=hash_token("secret"), admin=True)
    with Broker(http=True, tokens=(admin,)) as broker:
        with pytest.raises(RefusedError) as caught:
            HttpClient(broker.http_url).ask("DELETE", "/v1/queues/none")
        assert caught.value.code == "unauthorized"
        with pytest.raises(RefusedError) as caught:
            HttpClient(broker.http_url, "secret").ask("DELETE", "/v1/queues/none")
        assert (caught.value.code, caught.value.text) == ("not_found", "no queue none")


def test_who_does_not_answer_in_time_is_named() -> None:
    with server(b"") as url, pytest.raises(TimeoutError, match=f"{url} has not answered in 0.1 s"):
        HttpClient(url, timeout=0.1).get("/")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nhey", "no broker of ours"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nhey", "HTTP 502 Bad Gateway"),
        (b"220 mail.example ESMTP\r\n", "no answer at 127.0.0.1"),
    ],
)
def test_a_server_that_is_no_broker_is_an_error(answer: bytes, said: str) -> None:
    with server(answer) as url, pytest.raises(EngineError, match=said):
        HttpClient(url, timeout=10).get("/")


def test_nobody_there_is_an_error_that_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with pytest.raises(EngineError, match=f"nothing listens at 127.0.0.1:{port}: start"):
        HttpClient(f"http://127.0.0.1:{port}").get("/")


def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with Broker(http=True) as broker:
        assert HttpClient(broker.http_url).get("/v1/queues") is not None


def test_what_is_no_url_of_http_is_told_at_once() -> None:
    with pytest.raises(ConfigError, match="not where HTTP listens"):
        HttpClient("kobold-3://localhost")


class Redirecting(BaseHTTPRequestHandler):
    """Redirects everything but `/v1/cluster`, where it tells the nodes of its cluster."""

    to = ""
    nodes: tuple[str, ...] = ()
    seen: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization", "")))
        body = json.dumps({"nodes": [{"http": one} for one in self.nodes]}).encode()
        self.send_response(307 if self.to and self.path != "/v1/cluster" else 200)
        self.send_header("Content-Length", str(len(body)))
        if self.to:
            self.send_header("Location", f"{self.to}{self.path}")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@contextmanager
def redirecting(to: str = "", nodes: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    kind = type("Handler", (Redirecting,), {"to": to, "nodes": nodes, "seen": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{made.server_port}", kind
        finally:
            made.shutdown()
            thread.join()


def logs(url: str) -> list[Callable[[], object]]:
    """Both clients of HTTP, with a token."""
    return [
        lambda: HttpClient(url, "secret", timeout=10).get("/v1/log"),
        lambda: LogClient(url, "secret", patience=0)._open(url, "GET", "/v1/log", {})[0].close(),
    ]


def test_a_token_is_not_sent_to_what_is_no_node_of_the_cluster() -> None:
    """decision 96"""
    with redirecting() as (stranger, seen), redirecting(to=stranger) as (url, _):
        for get in logs(url):
            with pytest.raises(EngineError, match="which is no node of its cluster"):
                get()
        assert seen.seen == []


def test_a_redirect_to_a_node_that_is_told_of_is_followed_with_the_token() -> None:
    with redirecting() as (node, there), redirecting(node, (node,)) as (url, _):
        for get in logs(url):
            get()
        assert there.seen == [("/v1/log", "Bearer secret")] * 2


def test_a_redirect_from_tls_to_none_is_not_followed() -> None:
    with pytest.raises(EngineError, match="which has no TLS"):
        redirected("http://one:7780/v1/log", "https://two:7780")


def test_the_next_host_is_asked_where_one_cannot_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    with redirecting() as (url, there):
        several = f"http://me:secret@127.0.0.1:{port},{url.removeprefix('http://')}"
        client = HttpClient(several)
        assert client.get("/v1/queues") == {"nodes": []}
        assert client.url == url
        assert there.seen == [("/v1/queues", "Bearer secret")]


@pytest.mark.parametrize("url", ["http://", "http://a:0", "http://a,b/x", "http://a,", "ftp://a"])
def test_hosts_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        origins(url)


def test_several_hosts_are_several_origins_once_each() -> None:
    assert origins("https://a:1,b,https://c:2,a:1/") == ("https://a:1", "https://b", "https://c:2")
