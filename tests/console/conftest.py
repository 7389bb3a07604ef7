"""A real Chromium, a real broker, and a page that reports whatever went wrong in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.console.visitor import Visitor
from tests.http.house import TOKENS, House
from wirelake.console import load

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


# Of a module, not of the whole run: while it is open an event loop is running in this thread, and
# no asynchronous test of another module could be run.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium without a window; CI must have it, elsewhere its tests may be skipped."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    missing = "no Chromium" if chromium is None else "" if load() else "no libraries"
    if missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing}: CI must test the console (make setup)")
        pytest.skip(f"{missing}: the console is not tested (make setup)")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page of a browser that nobody has used."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A broker where everybody may do everything."""
    with House(tmp_path) as opened:
        yield opened


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[House]:
    """A broker that asks for tokens."""
    with House(tmp_path, tokens=TOKENS) as opened:
        yield opened


@pytest.fixture
def visitor(house: House, page: Page) -> Iterator[Visitor]:
    """Somebody who looks at the console of a broker without tokens."""
    visitor = Visitor(page, house.url)
    yield visitor
    visitor.check()


@pytest.fixture
def guest(guarded: House, page: Page) -> Iterator[Visitor]:
    """Somebody who looks at the console of a broker that asks for tokens."""
    visitor = Visitor(page, guarded.url)
    yield visitor
    visitor.check()
