"""The page Cluster, on real nodes: what it shows, and what can be done there."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import nats as nats_client
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import wirelake
from tests.cluster.processes import NodeProcess, Nodes
from tests.cluster.servers import Servers, binary
from tests.console.test_quality import AXE, ROOT, find_serious
from tests.console.visitor import Visitor
from tests.http.test_cluster import TOKENS
from wirelake.cluster.members import Heartbeat

#: Names and texts as somebody could send them in a heartbeat.
NAME = "<img/src=x/onerror=broken=1>\u202e"
VERSION = "<script>window.broken=1</script>"
LINK = "javascript:window.broken=1"


class Many(Nodes):
    """Nodes that share more partitions, for a picture."""

    def _make(self, name: str) -> NodeProcess:
        made = super()._make(name)
        config = made.folder / "wirelake.toml"
        config.write_text(config.read_text().replace("partitions = 6", "partitions = 48"))
        return made


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if binary() is None:
        pytest.skip("nats-server is not installed")
    with Servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture(scope="module")
def nodes(nats: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes that ask for tokens."""
    with Nodes(tmp_path_factory.mktemp("nodes"), nats.urls, "page", TOKENS) as made:
        made.start("one", "two", "three")
        yield made


@pytest.fixture
def boss(nodes: Nodes, page: Page) -> Iterator[Visitor]:
    """An operator, who looks at the page Cluster of the node `one`."""
    visitor = Visitor(page, nodes.all["one"].http)
    enter(visitor, "boss")
    yield visitor
    visitor.check()


def enter(visitor: Visitor, token: str) -> None:
    """Log in, and open the page when all partitions are served."""
    visitor.expect_faults("401")  # before the login
    visitor.log_in(token)
    expect(visitor.page.get_by_role("navigation", name="Pages")).to_be_visible()
    visitor.open("cluster")
    visitor.see("6 of 6 partitions are served")


def node_row(visitor: Visitor, name: str) -> Locator:
    """The row of a node."""
    rows = visitor.page.get_by_role("table", name="Nodes").get_by_role("row")
    return rows.filter(has_text=re.compile(rf"^{re.escape(name)}\b"))


def square(visitor: Visitor, partition: int) -> Locator:
    """The square of a partition on the map."""
    return visitor.page.get_by_role("button", name=f"Partition {partition}:")


@contextmanager
def heartbeats(url: str, prefix: str, heartbeat: Heartbeat) -> Iterator[None]:
    """Send the heartbeats of a node that is none of ours."""
    ended = threading.Event()

    async def send() -> None:
        client = await nats_client.connect(url)
        number = 0
        while not ended.is_set():
            number += 1
            said = msgspec.structs.replace(heartbeat, number=number)
            await client.publish(f"{prefix}.beat", msgspec.json.encode(said))
            await asyncio.sleep(0.2)
        await client.close()

    # A browser has a loop in this thread already.
    thread = threading.Thread(target=lambda: asyncio.run(send()))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_a_broker_without_a_cluster_says_so_and_how_to_start_one(visitor: Visitor) -> None:
    visitor.open("overview")
    visitor.page.get_by_role("navigation").get_by_role("link", name="Cluster").click()
    visitor.see("This broker runs alone, without a cluster.")
    visitor.see("wirelake serve --cluster", visitor.card("Start a cluster"))
    expect(visitor.page.get_by_role("table")).to_have_count(0)


def test_it_shows_nodes_partitions_links_and_changes(boss: Visitor) -> None:
    boss.see("nodes alive: 3.")
    for name in ("one", "two", "three"):
        expect(node_row(boss, name)).to_contain_text("alive")
        expect(node_row(boss, name)).to_contain_text(wirelake.__version__)
    expect(node_row(boss, "one")).to_contain_text("(this one)")
    link = node_row(boss, "two").get_by_role("link", name="console")
    expect(link).to_have_attribute("href", re.compile(r"^http://127\.0\.0\.1:\d+/#/cluster$"))
    for partition in range(6):
        label = re.compile(
            rf"Partition {partition}: served by (one|two|three), epoch [1-9]\d*\. "
            r"Standby: (one|two|three), \d+ messages behind\."
        )
        expect(square(boss, partition)).to_have_attribute("aria-label", label)
    links = boss.page.get_by_role("table", name="Links")
    expect(links.get_by_role("row").filter(has_text="open")).to_have_count(12)
    expect(links).to_contain_text("8 MiB")
    boss.see("is served here after", boss.card("Changes"))
    # The servers of this test keep one copy of a stream.
    boss.see("The streams are weak", boss.card("What is wrong now"))


def test_squares_have_the_colours_of_their_owners(boss: Visitor) -> None:
    colours: dict[str, set[str]] = {}
    for partition in range(6):
        one = square(boss, partition)
        owner = (one.get_attribute("aria-label") or "").split("served by ")[1].split(",")[0]
        colour = one.evaluate("(one) => getComputedStyle(one).backgroundColor")
        colours.setdefault(owner, set()).add(colour)
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == len(colours) > 1


def test_the_map_is_one_stop_of_tab_and_arrows_move_in_it(boss: Visitor) -> None:
    card = boss.card("Partitions")
    assert card.locator(".map button[tabindex='0']").count() == 1
    square(boss, 0).focus()
    for key, partition in (("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("End", 5)):
        boss.page.keyboard.press(key)
        expect(square(boss, partition)).to_be_focused()
        boss.see(f"Partition {partition}: served by", card.locator("p"))
    boss.page.keyboard.press("Tab")
    expect(card.get_by_role("combobox")).to_be_focused()
    boss.page.keyboard.press("Escape")
    boss.page.keyboard.press("g")
    boss.page.keyboard.press("o")
    expect(boss.page.get_by_role("heading", level=1)).to_have_text("Overview")
    boss.page.keyboard.press("g")
    boss.page.keyboard.press("n")
    expect(boss.page.get_by_role("heading", level=1)).to_have_text("Cluster")


def test_a_node_is_drained_after_a_question_and_that_is_undone(boss: Visitor) -> None:
    boss.press("Drain", node_row(boss, "two"))
    question = boss.page.get_by_role("dialog", name="Drain the node?")
    expect(question).to_contain_text("two hands its partitions to other nodes")
    boss.press("Cancel", question)
    expect(question).to_have_count(0)
    expect(node_row(boss, "two")).to_contain_text("alive")
    boss.press("Drain", node_row(boss, "two"))
    boss.press("Drain", question)
    boss.see("two serves no partition.", boss.page.locator("body"))
    expect(node_row(boss, "two")).to_contain_text("draining")
    boss.see("6 of 6 partitions are served")
    expect(boss.page.get_by_role("button", name="served by two")).to_have_count(0)
    boss.press("Undo drain", node_row(boss, "two"))
    boss.see("two takes partitions again.", boss.page.locator("body"))
    expect(node_row(boss, "two")).to_contain_text("alive")
    expect(boss.page.get_by_role("button", name="served by two").first).to_be_visible()
    boss.see("6 of 6 partitions are served")


def test_a_partition_is_moved_after_a_question(boss: Visitor) -> None:
    square(boss, 4).click()
    card = boss.card("Partitions")
    target = card.get_by_role("combobox").locator("option").last.get_attribute("value") or ""
    before = square(boss, 4).get_attribute("aria-label") or ""
    assert f"served by {target}," not in before
    card.get_by_role("combobox").select_option(target)
    boss.press("Move", card)
    question = boss.page.get_by_role("dialog", name="Move partition 4?")
    expect(question).to_contain_text(f"{target} serves it from then on")
    boss.press("Move", question)
    boss.see(f"{target} serves partition 4.", boss.page.locator("body"))
    moved = re.compile(rf"served by {target}, .*An operator moved it to {target}\.")
    expect(square(boss, 4)).to_have_attribute("aria-label", moved)
    boss.see(f"An operator moved it to {target}.", card)
    boss.see("6 of 6 partitions are served")


def test_a_token_without_admin_sees_the_page_and_changes_nothing(nodes: Nodes, page: Page) -> None:
    reader = Visitor(page, nodes.all["two"].http)
    enter(reader, "reader")
    expect(node_row(reader, "one")).to_contain_text("alive")
    expect(square(reader, 5)).to_be_visible()
    for name in ("Drain", "Undo drain", "Move"):
        expect(page.get_by_role("button", name=name, exact=True)).to_have_count(0)
    reader.check()


def test_what_a_hostile_node_says_is_shown_as_text(nats: Servers, boss: Visitor) -> None:
    hostile = Heartbeat(
        "guest", "a life", version=VERSION, settings="<b>", http=LINK, draining=True, lag={0: 7}
    )
    nameless = Heartbeat(NAME, "another life")  # which is no name, so nobody hears it
    url = nats.urls[0]
    with heartbeats(url, "page", nameless), heartbeats(url, "page", hostile):
        shown = "guest"
        row = boss.page.get_by_role("table", name="Nodes").get_by_role("row").filter(has_text=shown)
        expect(row).to_contain_text(VERSION)
        expect(row).to_contain_text("draining, silent")
        expect(row.get_by_role("link")).to_have_count(0)
        wrong = boss.card("What is wrong now")
        boss.see("Tokens, limits or queues differ between nodes", wrong)
        boss.see("Nodes run different versions.", wrong)
        boss.see(f"{shown} does not tell its state.", wrong)
        expect(square(boss, 0)).to_have_attribute(
            "aria-label", re.compile(re.escape(f"{shown}, 7 messages behind"))
        )
        options = boss.card("Partitions").get_by_role("combobox").locator("option")
        expect(options.filter(has_text=shown)).to_have_count(1)
        expect(boss.page.get_by_text("onerror")).to_have_count(0)
        assert boss.page.evaluate("window.broken") is None
        assert boss.page.locator("main img, main script, main b").count() == 0
    expect(row).to_have_count(0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(nodes: Nodes, browser: Browser, scheme: Any) -> None:
    if not AXE.exists():
        pytest.skip("no axe-core: npm ci brings it")
    context = browser.new_context(color_scheme=scheme, bypass_csp=True)
    visitor = Visitor(context.new_page(), nodes.all["one"].http)
    enter(visitor, "boss")
    assert find_serious(visitor, scheme) == []
    context.close()


@pytest.mark.parametrize("width", [400, 2560])
def test_it_is_not_wider_than_the_window(nodes: Nodes, browser: Browser, width: int) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900})
    visitor = Visitor(context.new_page(), nodes.all["one"].http)
    visitor.expect_faults("401")
    visitor.log_in("boss")
    visitor.see("All is well")
    visitor.open("cluster")
    visitor.see("6 of 6 partitions are served")
    assert visitor.page.evaluate("document.documentElement.scrollWidth") <= width
    visitor.check()
    context.close()


def test_where_nats_is_away_the_page_goes_on_and_tells_it(nats: Servers, boss: Visitor) -> None:
    (server,) = nats.processes
    server.send_signal(signal.SIGSTOP)
    try:
        boss.see("nodes alive: 1.")
        wrong = boss.card("What is wrong now")
        boss.see("one does not hear its own heartbeats: can it reach NATS?", wrong)
        boss.see("clients are refused with busy until a node takes over", wrong)
        expect(boss.page.get_by_role("button", name="nobody serves it").first).to_be_visible()
    finally:
        server.send_signal(signal.SIGCONT)
    boss.see("nodes alive: 3.")
    boss.see("6 of 6 partitions are served")
    expect(boss.page.get_by_role("button", name="nobody serves it")).to_have_count(0)


def test_a_node_that_is_killed_goes_and_others_take_over(nodes: Nodes, boss: Visitor) -> None:
    expect(node_row(boss, "three")).to_contain_text("alive")
    nodes.all["three"].kill()
    boss.see("nodes alive: 2.")
    expect(node_row(boss, "three")).to_have_count(0)
    boss.see("6 of 6 partitions are served")
    expect(boss.page.get_by_role("button", name="served by three")).to_have_count(0)
    changes = boss.card("Changes")
    boss.see("silent for", changes)


@pytest.mark.timeout(300)
@pytest.mark.skipif(not os.environ.get("WIRELAKE_PICTURES"), reason="WIRELAKE_PICTURES is not set")
def test_pictures_for_the_documentation_are_made(
    nats: Servers, browser: Browser, tmp_path: Path
) -> None:
    """WIRELAKE_PICTURES=1 makes those in docs/img anew."""
    ended = threading.Event()

    def talk(node: NodeProcess, name: str, address: str, pause: float) -> None:
        with (
            wirelake.connect_sync(node.url("kobold-3"), client_id=name) as client,
            client.subscribe(f"{address}/#"),
        ):
            n = 0
            while not ended.is_set():
                client.publish(f"{address}/{n % 50}", b"%d" % n)
                n += 1
                time.sleep(pause)

    with Many(tmp_path, nats.urls, "picture") as many:
        started = many.start("north", "south", "west")
        threads = [
            threading.Thread(target=talk, args=(node, f"gauge-{k}", f"plant/{k}", 0.01 * (k + 1)))
            for k, node in enumerate(started)
        ]
        for thread in threads:
            thread.start()
        try:
            for scheme in ("light", "dark"):
                size: Any = {"width": 1200, "height": 720}
                context = browser.new_context(color_scheme=scheme, viewport=size)
                visitor = Visitor(context.new_page(), started[0].http)
                visitor.open("cluster")
                visitor.see("48 of 48 partitions are served")
                square(visitor, 9).click()
                time.sleep(4)
                visitor.page.screenshot(
                    path=ROOT / "docs" / "img" / f"console-cluster-{scheme}.png"
                )
                context.close()
        finally:
            ended.set()
            for thread in threads:
                thread.join()
