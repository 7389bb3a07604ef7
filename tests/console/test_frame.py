"""The frame of the console: who may see it, log in and out, a broker that goes and comes back."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page, expect

from tests.console.visitor import Visitor
from tests.http.house import TOKENS, House
from wirelake.config import Settings
from wirelake.testing import Broker


def test_the_overview_says_in_a_sentence_that_all_is_well(visitor: Visitor) -> None:
    visitor.open("overview")
    visitor.see("All is well")


def test_a_wrong_token_is_refused_and_a_right_one_logs_in_and_out(guest: Visitor) -> None:
    guest.expect_faults("401")
    guest.log_in("nonsense")
    expect(guest.page.get_by_role("alert")).to_contain_text("the token is not known")
    guest.log_in("boss")
    guest.see("All is well")
    cookies = guest.page.context.cookies()
    assert [(one["httpOnly"], one["sameSite"]) for one in cookies] == [(True, "Strict")]
    assert guest.page.evaluate("document.cookie") == ""
    guest.press("Log out")
    expect(guest.page.get_by_label("Token")).to_be_visible()
    assert guest.page.context.cookies() == []


def test_a_login_outlives_a_reload_of_the_page(guest: Visitor) -> None:
    guest.expect_faults("401")
    guest.log_in("boss")
    guest.see("All is well")
    guest.page.reload()
    guest.see("All is well")


def test_a_token_without_admin_sees_fewer_pages_and_changes_nothing(guest: Visitor) -> None:
    guest.expect_faults("401", "403")
    guest.log_in("reader")
    guest.see("What this token sees")
    pages = guest.page.get_by_role("navigation").get_by_role("link").all_inner_texts()
    assert "Explore" in pages
    assert "Connections" not in pages
    status = guest.page.evaluate(
        """async () => {
            const csrf = (await (await fetch("/v1/session")).json()).csrf;
            const headers = {"Wirelake-Csrf": csrf};
            return (await fetch("/v1/publish/house/a", {method: "POST", headers})).status;
        }"""
    )
    assert status == 403


def test_revoking_a_token_ends_its_login(guarded: House, guest: Visitor) -> None:
    guest.expect_faults("401", "ERR_", "403")
    guest.log_in("boss")
    guest.see("All is well")
    left = Settings(listen=("auto://127.0.0.1:0",), tokens=TOKENS[1:])
    guarded.call(lambda: guarded.server.configure(left))
    expect(guest.page.get_by_label("Token")).to_be_visible()


def test_a_page_comes_back_by_itself_after_a_restart(tmp_path: Path, page: Page) -> None:
    with Broker(data=tmp_path, http=True) as broker:
        visitor = Visitor(page, broker.http_url)
        visitor.expect_faults("ERR_", "Failed to load")
        visitor.open("overview")
        visitor.see("All is well")
        broker.stop()
        expect(page.get_by_role("status")).to_contain_text("The broker is away")
        broker.start()
        expect(page.get_by_text("The broker is away")).to_have_count(0)
        visitor.see("All is well")
        visitor.check()
