"""What else is done on the pages of the console: one broker for all of these tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import wirelake
from tests.console.visitor import Visitor
from tests.http.house import House


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A broker that these tests share: each uses addresses of its own."""
    with House(tmp_path_factory.mktemp("actions")) as house:
        yield house


@pytest.fixture
def user(shared: House, page: Page) -> Iterator[Visitor]:
    """Somebody who looks at its console."""
    visitor = Visitor(page, shared.url)
    yield visitor
    visitor.check()


def publish(house: House, *messages: tuple[str, bytes], dialect: str = "kobold-3") -> None:
    """Publish on the wire; done when it is in the log."""
    name = "" if dialect == "boson-text" else "somebody"
    with wirelake.connect_sync(house.wire(dialect), client_id=name) as client:
        for address, payload in messages:
            client.publish(address, payload, ack=bool(name))
        client.ping()


# Overview


def test_the_overview_draws_both_ways_in_messages_and_bytes(shared: House, user: Visitor) -> None:
    publish(shared, *[("over/a", b"1")] * 50)
    user.open("overview")
    card = user.card("Rates by dialect")
    expect(card.get_by_role("img", name=re.compile("Rates in by dialect"))).to_be_visible()
    expect(card.get_by_role("img", name=re.compile("Rates out by dialect"))).to_be_visible()
    user.press("bytes", card)
    expect(card.get_by_role("heading", name=re.compile("In, .*B.s"))).to_be_visible()
    user.press("1 h", card)
    expect(card.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    expect(user.page.locator(".tile").filter(has_text="log on disk")).to_contain_text("free")


def test_what_is_wrong_leads_to_where_it_is_mended(shared: House, user: Visitor) -> None:
    shared.put("/v1/queues/full", b'{"max_messages": 2}')
    for _ in range(2):
        shared.post("/v1/publish/full", b"1")
    user.open("overview")
    user.card("What is wrong now").get_by_role("link", name="full is nearly full").click()
    expect(user.page.get_by_role("region", name="full", exact=True)).to_be_visible()
    shared.delete("/v1/queues/full")
    user.expect_faults("404")


# Explore


def test_a_message_of_the_tail_leads_to_its_very_row(shared: House, user: Visitor) -> None:
    user.open("explore", filter="same/#")
    user.see("Waiting for messages")
    publish(shared, *[("same/a", b"%d" % n) for n in range(3)])
    user.page.get_by_role("listbox", name="Messages").get_by_role("option").nth(1).click()
    card = user.card("Message")
    expect(card.get_by_text("offset", exact=True)).to_be_visible()
    card.get_by_role("link", name="its way").click()
    expect(user.card("The message").get_by_label("Payload", exact=True)).to_have_text("1")
    user.page.go_back()


def test_a_message_of_the_tail_is_inspected_as_bytes_and_fields(
    shared: House, user: Visitor
) -> None:
    user.open("explore", filter="look/#")
    user.see("Waiting for messages")
    publish(shared, ("look/a", b"hello"), dialect="boson-text")
    user.page.get_by_role("listbox", name="Messages").get_by_role("option").first.click()
    user.card("Message").get_by_role("link", name="inspect").click()
    fields = user.page.get_by_role("table", name="Fields")
    expect(fields.get_by_role("cell", name="hello")).to_be_visible()
    expect(user.card("Bytes").locator("strong")).to_have_text("boson-text")
    translations = user.page.get_by_role("table", name="Translations")
    translations.get_by_role("row").filter(has_text="kobold-3").click()
    expect(user.card("Bytes").locator("strong")).to_have_text("kobold-3")
    expect(fields.get_by_role("cell", name="look/a")).to_be_visible()


def test_what_a_dialect_cannot_say_is_told_before_it_is_published(user: Visitor) -> None:
    user.open("explore")
    card = user.card("Publish")
    card.get_by_label("Address").fill("house/a")
    card.get_by_label("Payload").fill("21.5")
    card.get_by_text("Id, priority").click()
    card.get_by_label("Headers, a line each").fill("colour: red")
    user.press("bytes", card)
    card.get_by_role("combobox", name="Dialect").select_option("boson-text")
    expect(card.get_by_label("The same as a command")).to_have_text("4|0|house/a|21.5")
    expect(card.get_by_role("note")).to_contain_text("cannot say headers")
    card.get_by_role("combobox", name="Dialect").select_option("kobold-3")
    expect(card.get_by_role("note")).to_contain_text("says all of it")
    card.get_by_role("link", name="Inspect the frame").click()
    fields = user.page.get_by_role("table", name="Fields")
    expect(fields.get_by_role("cell", name="house/a")).to_be_visible()


def test_a_message_is_used_for_publishing(shared: House, user: Visitor) -> None:
    user.open("explore", filter="use/#")
    user.see("Waiting for messages")
    publish(shared, ("use/a", b"again"))
    user.page.get_by_role("listbox", name="Messages").get_by_role("option").first.click()
    user.press("Use for publishing")
    card = user.card("Publish")
    expect(card.get_by_label("Address")).to_have_value("use/a")
    card.locator("form").get_by_role("button", name="Publish").click()
    lines = user.page.get_by_role("listbox", name="Messages").get_by_role("option")
    expect(lines.filter(has_text="again")).to_have_count(2)
    expect(lines.first).to_contain_text("http")


def test_the_tree_is_ordered_by_name_or_rate_and_searched(shared: House, user: Visitor) -> None:
    user.open("explore")
    tree = user.page.get_by_role("tree")
    publish(shared, ("order-a/x", b"1"), *[("order-b/x", b"1")] * 200)
    names = tree.locator("> li > .node > .name")
    user.page.get_by_label("Search addresses").fill("order-")
    expect(names).to_have_text(["order-a", "order-b"])
    user.press("rate", user.card("Addresses"))
    expect(names).to_have_text(["order-b", "order-a"])
    user.page.get_by_label("Search addresses").fill("order-a")
    expect(names).to_have_text(["order-a"])


# Queues


def test_messages_are_moved_to_another_queue_and_consumers_shown(
    shared: House, user: Visitor
) -> None:
    for name in ("from", "into"):
        shared.put(f"/v1/queues/{name}", b'{"mode": "pull"}')
    for n in range(30):
        shared.post("/v1/publish/from", b"%d" % n)
    with (
        wirelake.connect_sync(shared.wire("tmq-1.01"), client_id="eater") as client,
        client.subscribe("from"),
    ):
        user.open("queues", name="from")
        user.see("eater", user.card("Consumers"))
    card = user.card("What comes next")
    rows = card.locator("tbody tr")
    expect(rows).to_have_count(20)
    user.press("More", card)
    expect(rows).to_have_count(30)
    card.get_by_role("checkbox").first.check()
    user.page.get_by_label("Move to").fill("into")
    user.press("Move 1 chosen")
    expect(user.page.get_by_role("status")).to_contain_text("1 message was moved")
    user.press("Move all")
    expect(user.page.get_by_role("status")).to_contain_text("29 messages were moved")
    assert shared.get("/v1/queues/into").json["messages"] == 30
    user.open("queues", name="into")
    for name in ("Messages in the queue: now 30", "Age in seconds"):  # from ten seconds on
        expect(user.page.get_by_role("img", name=re.compile(name))).to_be_visible()


# Keys


def test_keys_are_a_tree_that_follows_what_others_write(shared: House, user: Visitor) -> None:
    shared.put("/v1/store/tree/a/one", b"1")
    user.open("keys")
    tree = user.card("All keys")
    expect(tree.get_by_role("link", name="one")).to_be_visible()
    shared.put("/v1/store/tree/b/two", b"2")
    tree.get_by_role("link", name="two").click()
    expect(user.page.get_by_label("Value")).to_have_value("2")
    shared.put("/v1/store/tree/b/two", b"3")
    user.see("Somebody has changed it")
    user.press("Show that")
    expect(user.page.get_by_label("Value")).to_have_value("3")
    user.card("History").get_by_role("button", name="Use").nth(1).click()
    expect(user.page.get_by_label("Value")).to_have_value("2")
    user.press("Take back")
    expect(user.page.get_by_label("Value")).to_have_value("3")
    user.page.get_by_label("Filter", exact=True).fill("tree/a/#")
    user.press("Show")
    expect(tree.get_by_role("link", name="two")).to_have_count(0)


def test_theirs_is_taken_in_a_conflict(shared: House, user: Visitor) -> None:
    user.expect_faults("412")
    shared.put("/v1/store/clash", b"one")
    user.open("keys", key="clash")
    user.page.get_by_label("Value").fill("mine")
    shared.put("/v1/store/clash", b"theirs")
    user.see("Somebody has changed it")
    user.press("Write")
    user.press("Take theirs")
    expect(user.page.get_by_label("Value")).to_have_value("theirs")
    assert shared.get("/v1/store/clash").body == b"theirs"


# Log


def test_the_histogram_follows_what_is_looked_for(shared: House, user: Visitor) -> None:
    publish(shared, *[("hist/a", b"%d" % n) for n in range(30)], *[("hist/b", b"x")] * 7)
    user.open("log", filter="hist/#")
    user.see("37 rows that match")
    user.page.get_by_label("Address or filter").fill("hist/b")
    user.press("Find")
    user.see("7 rows that match")
    user.page.get_by_role("textbox", name="Text").fill("nothing of it")
    user.press("Find")
    user.see("0 rows that match")
    user.press("All", user.card("What"))
    user.see("rows of all kinds")
    user.press("its later half")
    expect(user.card("When").get_by_text(re.compile("[0-9:.]+ to [0-9:.]+"))).to_be_visible()
    user.press("twice as much")
    user.press("1 h", user.card("When"))
    user.see("rows of all kinds")


def test_the_log_is_read_from_an_offset_back(shared: House, user: Visitor) -> None:
    publish(shared, *[("off/a", b"number %d" % n) for n in range(5)])
    rows = shared.get("/v1/rows?filter=off/a").json["rows"]
    place = f"{rows[2]['partition']}:{rows[2]['offset']}"
    user.open("log")
    table = user.page.get_by_role("table", name="Rows").locator("tbody tr")
    expect(table.first).to_contain_text("number 4")  # the page has started
    user.page.get_by_label("Offset").fill(place)
    user.press("Find")
    expect(table.first).to_contain_text("number 2")
    expect(table.first).to_contain_text(place)
    expect(table.filter(has_text="number 3")).to_have_count(0)


def test_older_rows_are_asked_for(shared: House, user: Visitor) -> None:
    publish(shared, *[("old/a", b"%d" % n) for n in range(120)])
    user.open("log", filter="old/a")
    rows = user.page.get_by_role("table", name="Rows").locator("tbody tr")
    expect(rows).to_have_count(100)
    user.press("Older")
    expect(rows).to_have_count(120)


def test_sql_has_examples_a_key_csv_and_the_statement_for_the_lake(
    shared: House, user: Visitor
) -> None:
    publish(shared, *[("sql/a", b"1")] * 3)
    user.open("sql", "SQL")
    user.press("Messages a minute by dialect")
    user.page.get_by_label("SQL").press("Control+Enter")
    result = user.page.get_by_role("table", name="Result")
    expect(result.get_by_text("kobold-3").first).to_be_visible()
    with user.page.expect_download() as download:
        user.press("CSV")
    assert Path(download.value.path()).read_text().startswith('"minute","dialect","messages"')
    user.page.get_by_text("The same on the lake").click()
    expect(user.page.get_by_text("wirelake lake sql")).to_contain_text("FROM messages")


# Operation


def test_connections_are_searched_and_sorted(shared: House, user: Visitor) -> None:
    with (
        wirelake.connect_sync(shared.wire("kobold-3"), client_id="anna"),
        wirelake.connect_sync(shared.wire("tmq-1.01"), client_id="zoe"),
    ):
        user.open("connections")
        names = user.page.get_by_role("table", name="Connections").locator("tbody tr button")
        expect(names.filter(has_text="anna")).to_have_count(1)
        user.page.get_by_role("button", name="client", exact=True).click()
        user.page.get_by_label("Search").fill("127.0.0.1")
        table = user.page.get_by_role("table", name="Connections")
        expect(table.get_by_role("columnheader").first).to_have_attribute("aria-sort", "ascending")
        expect(names.last).to_have_text("zoe")
        table.get_by_role("columnheader").first.get_by_role("button").click()
        expect(names.first).to_have_text("zoe")
        user.page.get_by_label("Search").fill("tmq")
        expect(names).to_have_text(["zoe"])


def test_flow_is_searched_and_put_together_by_level(shared: House, user: Visitor) -> None:
    user.open("flow")
    publish(shared, *[(f"level/{n}/x", b"1") for n in range(3) for _ in range(50)])
    user.page.get_by_label("Search").fill("level/")
    picture = user.page.get_by_role("img", name=re.compile("1 producers, 3 addresses"))
    expect(picture).to_be_visible()
    user.page.get_by_label("Levels of addresses").select_option("1")
    expect(
        user.page.get_by_role("img", name=re.compile("1 producers, 1 addresses"))
    ).to_be_visible()
    user.page.get_by_text("As a list").click()
    expect(user.page.get_by_role("listitem").filter(has_text="somebody → level/…")).to_be_visible()


def test_a_protocol_error_is_looked_at_in_the_inspector(shared: House, user: Visitor) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", shared.listener.port)) as connection:
        connection.sendall(b"5|0|greet|hello5|x!|")
        connection.recv(100)
    user.open("trouble")
    user.card("Protocol errors").get_by_role("link").first.click()
    expect(user.card("Bytes").get_by_role("alert")).to_contain_text("Byte")


def test_another_room_is_entered(shared: House, user: Visitor) -> None:
    user.open("chat")
    user.page.get_by_label("Another room").fill("kitchen")
    user.press("Go")
    user.see("# kitchen")
    user.page.get_by_label("Message", exact=True).fill("is anybody here?")
    user.press("Say")
    user.see("is anybody here?")
    (row,) = shared.get("/v1/rows?filter=kitchen").json["rows"]
    assert row["payload"].endswith("is anybody here?")
