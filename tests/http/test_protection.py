"""What a browser may do with an answer: every one says so."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from html.parser import HTMLParser

import pytest

from tests.http.house import House
from wirelake.broker import inventory

EXPECTED = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


def check(headers: dict[str, str]) -> None:
    """Every header is there, and the policy is strict."""
    assert {name: headers.get(name) for name in EXPECTED} == EXPECTED
    rules = dict(
        rule.strip().split(" ", 1) for rule in headers["content-security-policy"].split(";")
    )
    assert rules["default-src"] == "'none'"
    assert rules["frame-ancestors"] == "'none'"
    assert rules["base-uri"] == "'none'"
    assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 200),
        ("GET", "/docs", 200),
        ("GET", "/docs.css", 200),
        ("HEAD", "/docs", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/healthz", 200),
        ("GET", "/metrics", 200),
        ("GET", "/v1/store/k", 200),
        ("GET", "/v1/log/0", 200),
        ("HEAD", "/v1/events?filter=a", 200),
        ("PUT", "/v1/store/new", 201),
        ("DELETE", "/v1/store/k", 204),
        ("GET", "/v1/log/99", 404),
        ("GET", "/nowhere", 404),
        ("PATCH", "/docs", 405),
        ("GET", "/v1/log/0?from=77", 416),
        ("GET", "/v1/store?limit=x", 400),
    ],
)
def test_every_answer_says_what_a_browser_may_do_with_it(
    house: House, method: str, path: str, status: int
) -> None:
    house.put("/v1/store/k", b"<script>alert(1)</script>")
    got = house.ask(method, path)
    assert got.status == status
    check(got.headers)


def test_refusals_at_the_door_and_for_want_of_a_token_say_so_too(guarded: House) -> None:
    got = guarded.get("/metrics")
    assert got.status == 401
    check(got.headers)
    got = guarded.get("/docs", Origin="http://evil.example")
    assert got.status == 403
    check(got.headers)


def test_an_answer_to_what_is_no_http_says_so_too(house: House) -> None:
    with socket.create_connection(("127.0.0.1", house.port), timeout=60) as sock:
        sock.sendall(b"nonsense\r\n\r\n")
        answer = b""
        while part := sock.recv(4096):
            answer += part
    head, _, text = answer.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 400 ")
    assert "Invalid HTTP" in text
    lines = (line.split(": ", 1) for line in head.split("\r\n")[1:])
    check({name.lower(): value for name, value in lines})


def test_a_fault_of_ours_says_so_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "addresses", _raising(ZeroDivisionError))
    got = house.get("/v1/addresses")
    assert got.status == 500
    check(got.headers)


def _raising(error: type[Exception]) -> Callable[..., object]:
    def fail(*_: object) -> object:
        raise error

    return fail


class _Page(HTMLParser):
    """Whatever a policy without inline content would block."""

    def __init__(self) -> None:
        super().__init__()
        self.blocked: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "style" or (tag == "script" and "src" not in given) or "style" in given:
            self.blocked.append(tag)
        self.blocked += [name for name in given if name.startswith("on")]
        if tag in ("link", "script", "img"):
            self.links.append(given.get("href") or given.get("src") or "")


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_have_nothing_inline_and_what_they_load_is_here(house: House, path: str) -> None:
    page = _Page()
    page.feed(house.get(path).body.decode())
    assert page.blocked == []
    assert page.links
    for link in page.links:
        assert re.match(r"/[^/]", link), link
        assert house.get(link).status == 200
