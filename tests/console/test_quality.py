"""Whether everybody can use it: with a reader of screens, a small or large screen, in the dark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

import wirelake
from bench.console import memory_of_pages
from tests.console.visitor import Visitor
from tests.http.house import House

ROOT = Path(__file__).parents[2]
AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
PAGES = (
    "overview", "explore", "queues", "keys", "chat", "log", "sql", "message", "inspector", "spark",
    "connections", "flow", "trouble", "cluster", "access",
)  # fmt: skip
TITLES = {"sql": "SQL"}
PLACES = {
    "queues": {"name": "jobs"},
    "keys": {"key": "config/lamp"},
    "message": {"address": "house/hall/temp"},
    "explore": {"filter": "house/#"},
}

#: What pictures there are of the pages, by colour scheme.
PICTURES = {
    "light": ("overview", "explore", "log", "inspector"),
    "dark": ("overview", "flow"),
}


def fill(house: House) -> None:
    """Something of everything."""
    house.put("/v1/queues/jobs")
    for n in range(3):
        house.post("/v1/publish/jobs", b'{"job": %d}' % n)
    house.put("/v1/store/config/lamp", b'{"on": true}')
    house.post("/v1/progress/land", b'{"0": 0}')
    house.call(lambda: house.node.vitals.event("slow_consumer", "printer", "did not read"))
    with wirelake.connect_sync(house.wire("kobold-3"), client_id="gateway") as client:
        for room in ("hall", "attic"):
            client.publish(f"house/{room}/temp", b'{"value": 20.5}', ack=True)


def visit(visitor: Visitor, page: str) -> None:
    """Open a page with something on it, and let it settle."""
    visitor.open(page, TITLES.get(page, ""), **PLACES.get(page, {}))
    expect(visitor.page.get_by_text("Loading.")).to_have_count(0)
    visitor.page.wait_for_timeout(200)


def find_serious(visitor: Visitor, scheme: str) -> list[tuple[str, list[str]]]:
    """What axe-core finds on the page that is open: the rule, and the first elements."""
    visitor.page.add_script_tag(path=AXE)
    # In the dark only colours are others.
    only = {"runOnly": ["color-contrast"]} if scheme == "dark" else {}
    result = visitor.page.evaluate(
        "(only) => axe.run(document, {resultTypes: ['violations'], ...only})", only
    )
    return [
        (one["id"], [node["html"][:160] for node in one["nodes"]][:3])
        for one in result["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_any_page(house: House, browser: Browser, scheme: Any) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core: npm ci brings it")
    fill(house)
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    visitor = Visitor(context.new_page(), house.url)
    found = {}
    for page in PAGES:
        visit(visitor, page)
        if serious := find_serious(visitor, scheme):
            found[page] = serious
        visitor.page.reload()
    context.close()
    assert found == {}


@pytest.mark.parametrize("width", [400, 2560])
def test_no_page_is_wider_than_the_window(house: House, browser: Browser, width: int) -> None:
    fill(house)
    context = browser.new_context(viewport={"width": width, "height": 900})
    visitor = Visitor(context.new_page(), house.url)
    for page in PAGES:
        visit(visitor, page)
        wide = visitor.page.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, page
    if width == 400:
        visitor.press("Menu")
        visitor.page.get_by_role("navigation").get_by_role("link", name="Keys").click()
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Keys")
    visitor.check()
    context.close()


def test_the_keyboard_reaches_a_page_and_what_is_on_it(house: House, visitor: Visitor) -> None:
    visitor.open("overview")
    visitor.page.keyboard.press("Tab")
    expect(visitor.page.get_by_text("Skip to the page")).to_be_focused()
    visitor.page.keyboard.press("Enter")
    expect(visitor.page.locator("main")).to_be_focused()
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.closest('main') !== null")


def test_the_policy_forbids_what_is_written_into_a_page(visitor: Visitor) -> None:
    visitor.expect_faults("Content Security Policy")
    visitor.open("overview")
    visitor.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.broken = true";
            document.body.append(script);
        }"""
    )
    assert visitor.page.evaluate("window.broken") is None


def test_the_first_paint_is_quick(house: House, page: Page) -> None:
    """The aim is 300 ms on an idle machine; a busy one must not fail the tests."""
    page.goto(house.url)
    page.get_by_text("All is well").wait_for()
    paint = page.evaluate("performance.getEntriesByType('paint')[0].startTime")
    print(f"first paint after {paint:.0f} ms")
    assert paint < 5000


def test_ten_thousand_addresses_and_a_thousand_messages_a_second(
    house: House, browser: Browser, visitor: Visitor
) -> None:
    """A busy machine draws few frames, so the goal for them is in bench/goals.py."""
    with wirelake.connect_sync(house.wire("boson-binary"), client_id="flood") as client:
        client.publish_many([(f"big/{n // 100}/{n % 100}", b"x") for n in range(10_000)], ack=True)
        visitor.open("explore", filter="big/#")
        visitor.page.get_by_label("Messages a second at most").select_option("1000")
        visitor.page.evaluate(
            """() => {
                window.frames_drawn = 0;
                const draw = () => { window.frames_drawn += 1; requestAnimationFrame(draw); };
                requestAnimationFrame(draw);
            }"""
        )
        for _ in range(30):
            client.publish_many([(f"big/{n}/0", b"x" * 50) for n in range(100)], ack=True)
            visitor.page.wait_for_timeout(100)
    expect(visitor.page.locator("button.line").first).to_be_visible()
    frames = visitor.page.evaluate("window.frames_drawn")
    memory = memory_of_pages(browser)
    print(f"{frames} frames in about 3 s, {memory:.0f} MB")
    assert frames > 10
    assert memory < 200
    assert house.call(lambda: house.node.vitals.counters["slow_consumers"]) == 0


@pytest.mark.timeout(600)
@pytest.mark.skipif(not os.environ.get("WIRELAKE_PICTURES"), reason="WIRELAKE_PICTURES is not set")
def test_pictures_for_the_documentation_are_made(house: House, browser: Browser) -> None:
    """WIRELAKE_PICTURES=1 makes those in docs/img anew."""
    import threading
    import time

    target = ROOT / "docs" / "img"
    target.mkdir(exist_ok=True)
    fill(house)
    ended = threading.Event()

    def talk(dialect: str, name: str, addresses: list[str], pause: float) -> None:
        with wirelake.connect_sync(house.wire(dialect), client_id=name) as client:
            n = 0
            while not ended.is_set():
                value = 20 + (n * 7 % 50) / 10
                client.publish(addresses[n % len(addresses)], b'{"value": %.1f}' % value)
                n += 1
                time.sleep(pause)

    def hear(dialect: str, name: str, filter: str) -> None:
        with (
            wirelake.connect_sync(house.wire(dialect), client_id=name) as client,
            client.subscribe(filter),
        ):
            ended.wait()

    rooms = [f"house/{room}/{what}" for room in ("hall", "attic") for what in ("temp", "door")]
    threads = [
        threading.Thread(target=talk, args=("boson-binary", "gateway", rooms, 0.02)),
        threading.Thread(target=talk, args=("mfp-1", "doorbell", rooms[1::2], 0.11)),
        threading.Thread(target=talk, args=("kobold-2", "meter", ["plant/power"], 0.04)),
        threading.Thread(target=talk, args=("mqtt-5", "greenhouse", ["garden/soil"], 0.06)),
        threading.Thread(target=hear, args=("kobold-3", "dashboard", "house/#")),
        threading.Thread(target=hear, args=("tmq-1.01", "alarm", "house/+/door")),
    ]
    for thread in threads:
        thread.start()
    time.sleep(240)  # charts show five minutes
    try:
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme,
                viewport={"width": 1280, "height": 860},
            )
            visitor = Visitor(context.new_page(), house.url)
            for page in PICTURES[scheme]:
                if page == "inspector":
                    (row,) = house.get("/v1/rows?filter=garden/soil&limit=1").json["rows"]
                    place = f"{row['partition']}:{row['offset']}"
                    visitor.open(page, address=row["address"], offset=place)
                else:
                    visit(visitor, page)
                time.sleep(4)
                visitor.page.screenshot(path=target / f"console-{page}-{scheme}.png")
            context.close()
    finally:
        ended.set()
        for thread in threads:
            thread.join()
