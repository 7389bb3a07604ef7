"""Logins of browsers: cookies, the word against forgery, and what ends them."""

from __future__ import annotations

import json

import pytest

from tests.http.house import TOKENS, Answer, House
from wirelake.config import Settings, WebSettings


def log_in(house: House, token: str) -> tuple[str, str]:
    """The cookie, and the word against forgery."""
    got = house.post("/v1/session", json.dumps({"token": token}).encode())
    assert got.status == 200
    return got.headers["set-cookie"].partition(";")[0], got.json["csrf"]


def purge(house: House, cookie: str, **headers: str) -> Answer:
    """Something that only operators may do."""
    return house.post("/v1/queues/jobs/purge", b"", "", Cookie=cookie, **headers)


def test_a_cookie_has_the_rights_of_its_token(guarded: House) -> None:
    cookie, _ = log_in(guarded, "boss")
    assert guarded.get("/v1/connections").status == 401
    assert guarded.get("/v1/connections", Cookie=cookie).status == 200
    who = guarded.get("/v1/session", Cookie=cookie).json
    assert (who["name"], who["admin"]) == ("boss", True)
    cookie, _ = log_in(guarded, "reader")
    assert guarded.get("/v1/connections", Cookie=cookie).status == 403


def test_no_script_reads_the_cookie_and_no_other_site_sends_it(guarded: House) -> None:
    got = guarded.post("/v1/session", b'{"token": "boss"}')
    attributes = got.headers["set-cookie"].split("; ")[1:]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)


def test_a_change_needs_the_word_of_its_own_login(guarded: House) -> None:
    guarded.put("/v1/queues/jobs", b"", "boss")
    cookie, word = log_in(guarded, "boss")
    _, other = log_in(guarded, "boss")
    assert purge(guarded, cookie).status == 403
    assert purge(guarded, cookie, Wirelake_Csrf=other).status == 403
    assert purge(guarded, cookie, Wirelake_Csrf="é").status in (400, 403)
    assert purge(guarded, cookie, Wirelake_Csrf=word).status == 200


def test_a_login_without_admin_only_looks(guarded: House) -> None:
    cookie, word = log_in(guarded, "sender")
    got = guarded.post("/v1/publish/house/a", b"1", "", Cookie=cookie, Wirelake_Csrf=word)
    assert got.status == 403
    assert "read-only" in got.json["text"]
    assert guarded.post("/v1/publish/house/a", b"1", "sender").status == 202


def test_a_wrong_token_gets_no_cookie(guarded: House) -> None:
    got = guarded.post("/v1/session", b'{"token": "nonsense"}')
    assert got.status == 401
    assert "set-cookie" not in got.headers


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"token": 7}', b"\xff", b'{"token": "boss"'])
def test_a_body_that_is_no_login_is_refused(guarded: House, body: bytes) -> None:
    assert guarded.post("/v1/session", body).status == 400


def test_log_out_ends_a_login(guarded: House) -> None:
    cookie, word = log_in(guarded, "boss")
    assert guarded.delete("/v1/session", Cookie=cookie).status == 403
    got = guarded.delete("/v1/session", Cookie=cookie, Wirelake_Csrf=word)
    assert got.status == 204
    assert "Max-Age=0" in got.headers["set-cookie"]
    assert guarded.get("/v1/connections", Cookie=cookie).status == 401


def test_a_login_ends_with_its_token_and_follows_its_rights(guarded: House) -> None:
    boss, _ = log_in(guarded, "boss")
    reader, _ = log_in(guarded, "reader")
    tokens = [one for one in TOKENS if one.name != "boss"]
    settings = Settings(listen=("auto://127.0.0.1:0",), tokens=tuple(tokens))
    guarded.call(lambda: guarded.server.configure(settings))
    assert guarded.get("/v1/session", Cookie=boss).status == 401
    assert guarded.get("/v1/session", Cookie=reader).json["name"] == "reader"


def test_a_login_that_nobody_uses_ends(guarded: House) -> None:
    cookie, _ = log_in(guarded, "boss")
    guarded.http.configure(Settings(web=WebSettings(login_idle=-1.0)))
    assert guarded.get("/v1/session", Cookie=cookie).status == 401


def test_there_are_never_more_logins_than_may_be(guarded: House) -> None:
    guarded.http.configure(Settings(web=WebSettings(logins=3)))
    first, _ = log_in(guarded, "boss")
    latest = [log_in(guarded, "boss")[0] for _ in range(3)]
    assert guarded.get("/v1/session", Cookie=first).status == 401
    assert all(guarded.get("/v1/session", Cookie=one).status == 200 for one in latest)


def test_one_token_cannot_log_the_others_out(guarded: House) -> None:
    guarded.http.configure(Settings(web=WebSettings(logins=3)))
    boss, _ = log_in(guarded, "boss")
    mine = [log_in(guarded, "reader")[0] for _ in range(10)]
    states = [guarded.get("/v1/session", Cookie=one).status for one in (boss, *mine[-3:])]
    assert states == [200, 401, 200, 200]


def test_without_tokens_nobody_needs_a_login(house: House) -> None:
    got = house.post("/v1/session", b'{"token": "anything"}')
    assert got.status == 200
    assert "set-cookie" not in got.headers
    assert house.get("/v1/session", Cookie="wirelake-1=old").json["open"]


def test_a_foreign_page_cannot_log_somebody_in(guarded: House) -> None:
    body = b'{"token": "boss"}'
    got = guarded.post("/v1/session", body, "", Origin="http://evil.example")
    assert got.status == 403
