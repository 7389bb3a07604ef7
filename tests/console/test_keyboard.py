"""Everything can be done without a mouse: one broker for all of these tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import wirelake
from tests.console.visitor import Visitor
from tests.http.house import House

#: Elements of a page that somebody must be able to reach with Tab or, in lists, with arrows.
CONTROLS = """() => [...document.querySelectorAll(
    "main :is(a[href], button, input, select, textarea, summary):not([tabindex='-1'])"
)].filter((one) => !one.disabled && one.checkVisibility()).length"""

PAGES = {
    "explore": {}, "queues": {"name": "jobs"}, "keys": {"key": "config/lamp"}, "log": {},
    "message": {"address": "house/hall"}, "access": {}, "connections": {}, "chat": {},
}  # fmt: skip


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A broker with something of everything."""
    folder: Path = tmp_path_factory.mktemp("keyboard")
    with House(folder) as house:
        for name in ("jobs", "letters"):
            house.put(f"/v1/queues/{name}")
        house.post("/v1/publish/jobs", b"1")
        house.put("/v1/store/config/lamp", b"on")
        for room in ("hall", "attic"):
            house.post(f"/v1/publish/house/{room}", b"1")
        yield house


@pytest.fixture
def user(filled: House, page: Page) -> Iterator[Visitor]:
    """Somebody with a keyboard only."""
    visitor = Visitor(page, filled.url)
    yield visitor
    visitor.check()


def focused(page: Page) -> str:
    """The text or name of what has the focus."""
    return str(
        page.evaluate(
            "() => { const one = document.activeElement;"
            " return one.getAttribute('aria-label') || one.innerText || one.tagName; }"
        )
    )


def test_a_question_mark_shows_what_keys_do(user: Visitor) -> None:
    user.open("overview")
    keyboard = user.page.keyboard
    keyboard.press("?")
    help = user.page.get_by_role("dialog", name="Keys of the keyboard")
    expect(help).to_be_visible()
    expect(help.get_by_text("Connections")).to_be_visible()
    keyboard.press("Escape")
    expect(help).to_have_count(0)
    user.page.get_by_role("button", name="Keyboard").focus()
    keyboard.press("Enter")
    expect(help).to_be_visible()
    keyboard.press("Enter")
    expect(help).to_have_count(0)
    expect(user.page.get_by_role("button", name="Keyboard")).to_be_focused()


@pytest.mark.parametrize(
    ("key", "title"), [("q", "Queues"), ("l", "Log"), ("c", "Connections"), ("r", "Chat")]
)
def test_g_and_a_letter_go_to_a_page(user: Visitor, key: str, title: str) -> None:
    user.open("overview")
    user.page.keyboard.press("g")
    user.page.keyboard.press(key)
    expect(user.page.get_by_role("heading", level=1)).to_have_text(title)
    expect(user.page.locator("main")).to_be_focused()


def test_letters_that_are_typed_into_a_field_are_no_shortcuts(user: Visitor) -> None:
    user.open("explore")
    field = user.page.get_by_label("Search addresses")
    expect(field).to_be_visible()
    user.page.keyboard.press("/")
    expect(field).to_be_focused()
    user.page.keyboard.type("gq?p/")
    expect(field).to_have_value("gq?p/")
    expect(user.page.get_by_role("dialog")).to_have_count(0)
    expect(user.page.get_by_role("heading", level=1)).to_have_text("Explore")
    user.page.keyboard.press("Escape")
    expect(field).not_to_be_focused()


@pytest.mark.parametrize("name", PAGES)
def test_tab_reaches_every_control_and_one_sees_where_it_is(user: Visitor, name: str) -> None:
    user.open(name, **PAGES[name])
    page = user.page
    expect(page.get_by_text("Loading.")).to_have_count(0)
    page.locator("main").focus()
    seen = page.evaluate_handle("new Set()")
    unseen: list[str] = []
    for _ in range(120):
        page.keyboard.press("Tab")
        state = page.evaluate(
            """(seen) => {
                const one = document.activeElement;
                if (!one.closest("main")) return "left";
                seen.add(one);
                return getComputedStyle(one).outlineStyle === "none" ? "hidden" : "";
            }""",
            seen,
        )
        if state == "left":
            break
        if state == "hidden":
            unseen.append(focused(page))
    assert unseen == []
    missed = page.evaluate(
        CONTROLS.replace(".length", ".filter((one) => !seen.has(one))").replace("()", "(seen)", 1)
        + ".map((one) => one.outerHTML.slice(0, 120))",
        seen,
    )
    assert missed == []


def test_arrows_move_between_rows_and_enter_shows_one(user: Visitor) -> None:
    user.open("queues")
    user.see("letters")
    user.page.get_by_role("row").filter(has_text="jobs").focus()
    user.page.keyboard.press("ArrowDown")
    expect(user.page.get_by_role("row").filter(has_text="letters")).to_be_focused()
    user.page.keyboard.press("Enter")
    expect(user.page.get_by_role("region", name="letters", exact=True)).to_be_visible()
    user.page.keyboard.press("Home")
    user.page.keyboard.press("Enter")
    expect(user.page.get_by_role("region", name="jobs", exact=True)).to_be_visible()


def test_the_tree_of_addresses_is_walked_with_arrows(filled: House, user: Visitor) -> None:
    user.open("explore")
    for room in ("hall", "attic"):
        filled.post(f"/v1/publish/house/{room}", b"1")
    tree = user.page.get_by_role("tree")
    tree.get_by_role("button", name="house", exact=True).focus()
    keyboard = user.page.keyboard
    keyboard.press("ArrowLeft")  # it may be open: there are few addresses
    expect(tree.get_by_role("button", name="attic", exact=True)).to_have_count(0)
    keyboard.press("ArrowRight")
    expect(tree.get_by_role("button", name="attic", exact=True)).to_be_visible()
    keyboard.press("ArrowDown")
    expect(tree.get_by_role("button", name="attic", exact=True)).to_be_focused()
    keyboard.press("ArrowLeft")
    expect(tree.get_by_role("button", name="house", exact=True)).to_be_focused()
    keyboard.press("Enter")
    expect(user.page.get_by_label("Filter", exact=True)).to_have_value("house/#")


def test_a_tail_is_paused_and_walked_through(filled: House, user: Visitor) -> None:
    user.open("explore", filter="house/#")
    user.see("Waiting for messages")
    for n in range(3):
        filled.post("/v1/publish/house/hall", b"number %d" % n)
    lines = user.page.get_by_role("listbox", name="Messages").get_by_role("option")
    expect(lines).to_have_count(3)
    user.page.get_by_role("listbox", name="Messages").focus()
    user.page.keyboard.press("p")
    expect(user.page.get_by_role("button", name="Go on")).to_be_visible()
    user.page.keyboard.press("ArrowDown")
    user.see("number 2", user.card("Message"))
    user.page.keyboard.press("ArrowDown")
    user.see("number 1", user.card("Message"))


def test_the_focus_stays_where_it_is_while_rows_change_their_order(
    filled: House, user: Visitor
) -> None:
    """Two clients take turns at being the busiest, so their rows change places every second."""
    ended = threading.Event()

    def talk() -> None:
        with (
            wirelake.connect_sync(filled.wire("kobold-3"), client_id="one") as one,
            wirelake.connect_sync(filled.wire("kobold-3"), client_id="two") as two,
        ):
            n = 0
            while not ended.wait(0.05):
                (one, two)[n // 30 % 2].publish("house/hall", b"1")
                n += 1

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        user.open("connections")
        row = user.page.get_by_role("row").filter(has_text="two")
        row.focus()
        order = "() => [...document.querySelectorAll('tbody tr')].map((one) => one.innerText)"
        first = "(order) => ({ one: order.findIndex((t) => t.startsWith('one')), "
        first += "two: order.findIndex((t) => t.startsWith('two')) })"
        seen = set()
        for _ in range(100):
            places = user.page.evaluate(f"({first})(({order})())")
            seen.add(places["one"] < places["two"])
            if len(seen) == 2:
                break
            user.page.wait_for_timeout(100)
        assert len(seen) == 2
        expect(row).to_be_focused()
    finally:
        ended.set()
        thread.join()


def test_a_dialog_gives_the_focus_back(user: Visitor) -> None:
    user.open("queues", name="jobs")
    user.page.get_by_role("button", name="Purge").focus()
    user.page.keyboard.press("Enter")
    dialog = user.page.get_by_role("dialog")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    user.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(user.page.get_by_role("button", name="Purge")).to_be_focused()


def test_a_theme_is_chosen_and_kept(user: Visitor) -> None:
    user.open("overview")
    back = "getComputedStyle(document.body).backgroundColor"
    light = user.page.evaluate(back)
    user.page.get_by_label("Theme").select_option("dark")
    assert user.page.evaluate(back) != light
    user.page.reload()
    expect(user.page.get_by_label("Theme")).to_have_value("dark")
    assert user.page.evaluate(back) != light
    user.page.get_by_label("Theme").select_option("light")
    assert user.page.evaluate(back) == light
