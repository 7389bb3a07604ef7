"""Somebody who uses the console, and sees to it that nothing in it goes wrong unseen."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

from playwright.sync_api import Locator, Page, Request, expect

expect.set_options(timeout=60_000)


class Visitor:
    """A page of the console: `open` it, find things in it, `check` it in the end."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.elsewhere: list[str] = []
        self.expected: tuple[str, ...] = ()
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda told: self._told(told.type, told.text))
        page.on("request", self._requested)

    def _told(self, kind: str, text: str) -> None:
        if kind == "error":
            self.faults.append(text)

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).netloc not in ("", urlsplit(self.url).netloc):
            self.elsewhere.append(request.url)

    def expect_faults(self, *texts: str) -> None:
        """Let faults that contain one of these texts pass: a browser tells of every refusal."""
        self.expected += texts

    def check(self) -> None:
        """Nothing went wrong in the page, and it asked nobody but the broker."""
        faults = [one for one in self.faults if not any(text in one for text in self.expected)]
        assert faults == []
        assert self.elsewhere == []

    def open(self, page: str, title: str = "", **parameters: str) -> None:
        """Go to a page, and wait until it is there."""
        found = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
        self.page.goto(f"{self.url}/#/{page}{f'?{found}' if found else ''}")
        expect(self.page.get_by_role("heading", level=1)).to_have_text(title or page.capitalize())

    def log_in(self, token: str) -> None:
        """Show a token."""
        self.page.goto(self.url)
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Log in").click()

    def see(self, text: str, where: Locator | None = None) -> Locator:
        """Wait until a text is shown; the first place of it."""
        found = (where or self.page.locator("main")).get_by_text(text).first
        expect(found).to_be_visible()
        return found

    def press(self, name: str, where: Locator | None = None) -> None:
        """Press a button."""
        (where or self.page).get_by_role("button", name=name, exact=True).first.click()

    def card(self, title: str) -> Locator:
        """A part of the page by its heading."""
        return self.page.get_by_role("region", name=title, exact=True).first
