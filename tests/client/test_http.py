"""The blocking HTTP client, on a real broker and on servers that are none."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from wirelake.client.http import HttpClient
from wirelake.config import TokenSettings, hash_token
from wirelake.errors import ConfigError, EngineError, RefusedError
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
