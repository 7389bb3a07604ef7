"""Every page of the console, and every action on it, in a real browser."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import cbor2
import pytest
from playwright.sync_api import Page, expect

import wirelake
from tests.console.visitor import Visitor
from tests.http.house import House
from wirelake.chat.past import Past
from wirelake.chat.room import Kind, Note, clean
from wirelake.config import Settings, WebSettings
from wirelake.dialects import DIALECTS
from wirelake.http import search

HOSTILE = (
    "<script>document.title='broken'</script>",
    '<img src=x onerror="document.title=1">',
    "javascript:alert(1)",
    "\u202egnp.exe",
    "a\u0000b\u001b[31mc",
    "\u200b\ufeff",
)


def publish(house: House, *messages: tuple[str, bytes], dialect: str = "kobold-3") -> None:
    """Publish on the wire; done when it is in the log."""
    with wirelake.connect_sync(house.wire(dialect), client_id="somebody") as client:
        for address, payload in messages:
            client.publish(address, payload, ack=True)


# Overview


def test_the_overview_shows_rates_talkers_queues_and_what_is_wrong(
    house: House, visitor: Visitor
) -> None:
    house.put("/v1/queues/jobs%2F%24dead")
    house.post("/v1/publish/jobs%2F%24dead", b"1")
    with wirelake.connect_sync(house.wire("tmq-1.01"), client_id="talker") as client:
        for _ in range(20):
            client.publish("a", b"1")
        client.publish("a", b"1", ack=True)
        visitor.open("overview")
        visitor.see("talker", visitor.card("Top talkers"))
        visitor.see("jobs/$dead", visitor.card("Longest queues"))
        wrong = visitor.card("What is wrong now")
        wrong.get_by_role("link", name=re.compile("1 dead letter in jobs")).click()
        expect(visitor.page.get_by_role("heading", level=1)).to_have_text("Queues")


# Explore


def test_explore_shows_the_tree_a_tail_and_all_fields_of_a_message(
    house: House, visitor: Visitor
) -> None:
    visitor.open("explore")
    branch = visitor.page.get_by_role("tree").get_by_role("button", name="house", exact=True)
    while not branch.is_visible():  # the tree has the addresses of the last seconds
        publish(house, ("house/hall/temp", b"20"), ("plant/x", b"1"))
        visitor.page.wait_for_timeout(200)
    branch.click()
    expect(visitor.page.get_by_label("Filter", exact=True)).to_have_value("house/#")
    publish(house, ("plant/x", b"not shown"), ("house/hall/temp", b'{"value": 21.5}'))
    line = visitor.page.get_by_role("option").filter(has_text="house/hall/temp")
    line.first.click()
    shown = visitor.card("Message")
    visitor.see("kobold-3", shown)
    visitor.see("somebody", shown)
    visitor.see('"value": 21.5', shown)
    expect(visitor.page.get_by_text("not shown")).to_have_count(0)


def test_a_tail_is_paused_searched_and_cleared(house: House, visitor: Visitor) -> None:
    visitor.open("explore", filter="a/#")
    visitor.see("0/s shown")
    publish(house, ("a/1", b"apple"), ("a/2", b"pear"))
    lines = visitor.page.get_by_role("option")
    expect(lines.filter(has_text="a/")).to_have_count(2)
    visitor.page.get_by_label("Search in what is shown").fill("pear")
    expect(lines.filter(has_text="a/")).to_have_count(1)
    visitor.page.get_by_label("Search in what is shown").fill("")
    visitor.press("Pause")
    publish(house, ("a/3", b"plum"))
    visitor.page.wait_for_timeout(500)
    expect(lines.filter(has_text="a/3")).to_have_count(0)
    visitor.press("Go on")
    publish(house, ("a/4", b"fig"))
    expect(lines.filter(has_text="a/4")).to_have_count(1)
    visitor.press("Clear")
    expect(lines.filter(has_text="a/")).to_have_count(0)


def test_payloads_are_shown_as_what_they_are(house: House, visitor: Visitor) -> None:
    visitor.open("explore", filter="a/#")
    visitor.see("0/s shown")
    publish(
        house,
        ("a/json", b'{"n": [1]}'),
        ("a/cbor", cbor2.dumps({"n": 1e300, "b": b"\xff"})),
        ("a/text", "grüße".encode()),
        ("a/bytes", b"\xff\x00\x80"),
    )
    for name, form, text in (
        ("json", "JSON", '"n": ['),
        ("cbor", "CBOR", "h'ff'"),
        ("text", "text", "grüße"),
        ("bytes", "hex", "ff 00 80"),
    ):
        visitor.page.get_by_role("option").filter(has_text=f"a/{name}").click()
        card = visitor.card("Message")
        expect(card.get_by_role("button", name=form, exact=True)).to_have_attribute(
            "aria-pressed", "true"
        )
        expect(card.get_by_label("Payload", exact=True)).to_contain_text(text)


def test_a_message_is_published_with_all_its_fields(house: House, visitor: Visitor) -> None:
    visitor.open("explore")
    card = visitor.card("Publish")
    card.get_by_label("Address").fill("house/it's")
    card.get_by_label("Payload").fill("21.5")
    card.get_by_text("Id, priority").click()
    card.get_by_label("Id", exact=True).fill("m1")
    card.get_by_label("Headers, a line each").fill("colour: red")
    expect(card.get_by_label("The same as a command")).to_contain_text("curl -X POST")
    visitor.press("CLI", card)
    expect(card.get_by_label("The same as a command")).to_contain_text("--header 'colour=red'")
    visitor.press("Python", card)
    expect(card.get_by_label("The same as a command")).to_contain_text('"house/it\'s"')
    card.locator("form").get_by_role("button", name="Publish").click()
    expect(visitor.page.get_by_role("status")).to_contain_text("Published")
    (row,) = house.get("/v1/rows").json["rows"]
    assert (row["address"], row["payload"], row["id"]) == ("house/it's", "21.5", "m1")
    assert row["headers"]["colour"] == "red"


@pytest.mark.parametrize("form", ["curl", "CLI", "Python"])
def test_the_same_command_really_is_the_same(
    house: House, visitor: Visitor, tmp_path: Path, form: str
) -> None:
    """What the page tells is run as it stands."""
    import subprocess
    import sys

    visitor.open("explore")
    card = visitor.card("Publish")
    card.get_by_label("Address").fill("a b'c")
    card.get_by_label("Payload").fill('{"it\'s": "x"}')
    card.get_by_text("Id, priority").click()
    card.get_by_label("Id", exact=True).fill("m 1")
    card.get_by_label("Headers, a line each").fill("colour: red")
    visitor.press(form, card)
    told = card.get_by_label("The same as a command").inner_text()
    command = [sys.executable, "-c", told] if form == "Python" else ["bash", "-c", told]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "NO_PROXY": "*"}
    subprocess.run(command, check=True, cwd=tmp_path, timeout=60, env=environment)
    while not (rows := house.get("/v1/rows").json["rows"]):
        visitor.page.wait_for_timeout(50)
    assert (rows[0]["address"], rows[0]["payload"]) == ("a b'c", '{"it\'s": "x"}')
    assert (rows[0]["id"], rows[0]["headers"]["colour"]) == ("m 1", "red")


def test_hostile_names_and_payloads_are_text(house: House, visitor: Visitor) -> None:
    visitor.open("explore", filter="#")
    visitor.see("0/s shown")
    publish(house, *[(f"x/{text[:40].strip(chr(0))}", text.encode()) for text in HOSTILE[:4]])
    publish(house, *[("y", text.encode()) for text in HOSTILE[4:]])
    lines = visitor.page.get_by_role("listbox", name="Messages").get_by_role("option")
    expect(lines).to_have_count(6)
    assert visitor.page.title() == "Explore · Wirelake"
    shown = "\n".join(lines.all_inner_texts())
    assert "<script>document.title='broken'</script>" in shown
    assert "\\u202egnp.exe" in shown
    assert "a\\u0000b\\u001b[31mc" in shown
    assert "\u202e" not in shown
    for page in ("overview", "log", "flow", "connections"):
        visitor.open(page)
        visitor.page.wait_for_timeout(300)
        assert "Wirelake" in visitor.page.title()
        assert visitor.page.locator("main img, main script").count() == 0
        assert "\u202e" not in visitor.page.locator("main").inner_text()


# Queues


def test_a_queue_is_made_looked_into_changed_purged_and_removed(
    house: House, visitor: Visitor
) -> None:
    visitor.expect_faults("404")  # what is asked for while the queue is removed
    visitor.open("queues")
    visitor.press("New queue")
    card = visitor.card("New queue")
    card.get_by_label("Name").fill("jobs")
    card.get_by_label("Messages at most").fill("50")
    visitor.press("Make", card)
    visitor.see("jobs", visitor.card("All queues"))
    assert house.get("/v1/queues/jobs").json["max_messages"] == 50
    for n in range(3):
        house.post("/v1/publish/jobs", b'{"job": %d}' % n)
    visitor.see('{"job": 2}', visitor.card("What comes next"))
    visitor.card("What comes next").get_by_text('{"job": 1}').click()
    visitor.see('"job": 1', visitor.card("Message"))
    settings = visitor.card("Settings")
    settings.get_by_label("Deliveries at most").fill("9")
    visitor.press("Change", settings)
    expect(visitor.page.get_by_role("status")).to_contain_text("Changed")
    assert house.get("/v1/queues/jobs").json["max_deliveries"] == 9
    visitor.press("Purge")
    visitor.press("Purge", visitor.page.get_by_role("dialog"))
    expect(visitor.page.get_by_role("status")).to_contain_text("Purged")
    assert house.get("/v1/queues/jobs").json["messages"] == 0
    visitor.press("Remove")
    visitor.press("Remove", visitor.page.get_by_role("dialog"))
    visitor.see("There is no queue")
    assert house.get("/v1/queues/jobs").status == 404


def test_dead_letters_are_sent_back_all_or_chosen_with_their_reasons(
    house: House, visitor: Visitor
) -> None:
    house.put("/v1/queues/jobs")
    with wirelake.connect_sync(house.wire("kobold-3")) as client:
        queue = client.queue("jobs")
        for n in range(3):
            queue.put(b"%d" % n)
        for delivery in queue.get(3, wait=5):
            delivery.nack(requeue=False)
    visitor.open("queues", name="jobs/$dead")
    card = visitor.card("What comes next")
    visitor.see("rejected", card)
    card.get_by_role("checkbox").nth(1).check()
    visitor.press("Send 1 back")
    expect(visitor.page.get_by_role("status")).to_contain_text("1 message was moved")
    assert house.get("/v1/queues/jobs").json["messages"] == 1
    visitor.page.get_by_role("button", name=re.compile("Send all back")).click()
    expect(visitor.page.get_by_role("status")).to_contain_text("2 messages were moved")
    assert house.get("/v1/queues/jobs").json["messages"] == 3


# Keys


def test_a_key_is_made_written_and_removed_and_its_history_shown(
    house: House, visitor: Visitor
) -> None:
    visitor.open("keys")
    visitor.page.get_by_label("New key").fill("config/lamp")
    visitor.press("New")
    value = visitor.page.get_by_label("Value")
    value.fill("on")
    visitor.press("Write")
    visitor.see("revision 1")
    value.fill("off")
    visitor.press("Write")
    visitor.see("revision 2")
    history = visitor.card("History")
    visitor.see("on", history)
    visitor.see("off", history)
    assert house.get("/v1/store/config/lamp").body == b"off"
    visitor.press("Remove")
    visitor.press("Remove", visitor.page.get_by_role("dialog"))
    visitor.see("there is no such key yet")
    assert house.get("/v1/store/config/lamp").status == 404
    visitor.expect_faults("404")


def test_a_conflict_is_a_difference_and_nothing_is_overwritten_unseen(
    house: House, visitor: Visitor
) -> None:
    visitor.expect_faults("412")
    house.put("/v1/store/k", b"one\ntwo")
    visitor.open("keys", key="k")
    visitor.page.get_by_label("Value").fill("one\nmine")
    house.put("/v1/store/k", b"one\ntheirs")
    visitor.see("Somebody has changed it")
    visitor.press("Write")
    visitor.see("Conflict: it has revision 2")
    marked = visitor.page.locator("mark").all_inner_texts()
    assert marked == ["theirs", "mine"]
    assert house.get("/v1/store/k").body == b"one\ntheirs"
    visitor.press("Overwrite it with mine")
    visitor.see("revision 3")
    assert house.get("/v1/store/k").body == b"one\nmine"


# Log, message, inspector


def test_the_log_is_searched_looked_into_and_exported(house: House, visitor: Visitor) -> None:
    publish(house, *[(f"a/{n}", b'{"n": %d}' % n) for n in range(5)])
    publish(house, ("b", b"other"), dialect="mfp-1")
    visitor.open("log")
    rows = visitor.page.get_by_role("table", name="Rows").locator("tbody tr")
    expect(rows).to_have_count(6)
    visitor.page.get_by_label("Address or filter").fill("a/#")
    visitor.page.get_by_role("textbox", name="Text").fill('"n": 3')
    visitor.press("Find")
    expect(rows).to_have_count(1)
    rows.first.click()
    visitor.see("kobold-3", visitor.card("Row"))
    visitor.see('"n": 3', visitor.card("Row"))
    with visitor.page.expect_download() as download:
        visitor.press("JSON lines")
    lines = Path(download.value.path()).read_text().splitlines()
    assert [json.loads(line)["address"] for line in lines] == ["a/3"]
    with visitor.page.expect_download() as download:
        visitor.press("CSV")
    assert "a/3" in Path(download.value.path()).read_text()
    visitor.press("Arrow")
    with visitor.page.expect_download() as download:
        visitor.page.get_by_role("link", name="Arrow, partition 0").click()
    assert Path(download.value.path()).stat().st_size > 0


def test_the_histogram_narrows_the_time(house: House, visitor: Visitor) -> None:
    publish(house, *[("a", b"%d" % n) for n in range(50)])
    visitor.open("log")
    visitor.see("50 rows of all kinds")
    box = visitor.page.locator(".u-over").bounding_box()
    assert box is not None
    visitor.page.mouse.move(box["x"] + 20, box["y"] + 40)
    visitor.page.mouse.down()
    visitor.page.mouse.move(box["x"] + box["width"] / 3, box["y"] + 40, steps=5)
    visitor.page.mouse.up()
    visitor.see("0 rows of all kinds")
    visitor.see("Nothing was found")


def test_the_way_of_a_queue_message_is_told_from_the_log(house: House, visitor: Visitor) -> None:
    house.put("/v1/queues/jobs")
    with wirelake.connect_sync(house.wire("kobold-3"), client_id="worker") as client:
        queue = client.queue("jobs")
        queue.put(b"1", id="job-1")
        (delivery,) = queue.get(1, wait=60)
        delivery.nack()
        (delivery,) = queue.get(1, wait=60)
        delivery.ack()
    visitor.open("message", address="jobs", id="job-1")
    steps = visitor.page.get_by_role("table", name="Steps")
    for text in ("put into the queue", "delivered", "attempt 2", "acknowledged"):
        expect(steps.get_by_text(text).first).to_be_visible()


def test_a_trace_shows_deliveries_in_each_dialect(house: House, visitor: Visitor) -> None:
    with (
        wirelake.connect_sync(house.wire("tmq-1.01"), client_id="hearer") as client,
        client.subscribe("a/#"),
    ):
        visitor.open("message", address="a/b")
        visitor.see("hearer", visitor.card("Who would get it now"))
        visitor.page.get_by_label("Filter to trace").fill("a/#")
        visitor.press("Trace for a minute")
        visitor.see("ends in")
        publish(house, ("a/b", b"hello"))
        visitor.page.get_by_role("table", name="Traced messages").get_by_text("a/b").click()
        deliveries = visitor.page.get_by_role("table", name="Deliveries")
        expect(deliveries.get_by_text("hearer")).to_be_visible()
        expect(deliveries.get_by_text("tmq-1.01")).to_be_visible()
        visitor.press("End")
        visitor.see("has ended")


def test_the_inspector_lights_fields_and_bytes_up_and_shows_the_fault(visitor: Visitor) -> None:
    visitor.open("inspector")
    visitor.page.get_by_label("Paste bytes").fill("5|0|greet|hello5|x!|")
    visitor.press("Inspect")
    visitor.see("1 message in 20 B")
    expect(visitor.card("Bytes").get_by_role("alert")).to_contain_text("Byte 1")
    fields = visitor.page.get_by_role("table", name="Fields")
    fields.get_by_role("cell", name="payload", exact=True).hover()
    assert "".join(visitor.page.locator(".hex i.lit").all_inner_texts()) == "68656c6c6fhello"
    assert visitor.page.locator(".hex i.err").count() == 2
    visitor.page.locator(".hex i").nth(4).hover()
    expect(fields.locator("tr.lit")).to_contain_text("address")
    translations = visitor.page.get_by_role("table", name="Translations")
    expect(translations.locator("tbody tr")).to_have_count(len(DIALECTS))


def test_the_inspector_takes_hex_and_files(visitor: Visitor, tmp_path: Path) -> None:
    visitor.open("inspector")
    visitor.page.get_by_role("combobox", name="Form", exact=True).select_option("hex")
    visitor.page.get_by_label("Paste bytes").fill("35 7c 30 7c xx")
    visitor.press("Inspect")
    visitor.see("that is not hex")
    file = tmp_path / "capture.bin"
    file.write_bytes(b"4|0|t|abcd")
    visitor.page.get_by_label("A file", exact=True).set_input_files(file)
    visitor.see("1 message in 10 B")


def test_a_message_of_the_log_is_inspected_in_all_dialects(house: House, visitor: Visitor) -> None:
    publish(house, ("a/b", b"hello"))
    visitor.open("log")
    visitor.page.get_by_role("table", name="Rows").locator("tbody tr").first.click()
    visitor.card("Row").get_by_role("link", name="inspect").click()
    translations = visitor.page.get_by_role("table", name="Translations")
    expect(translations.locator("tbody tr")).to_have_count(len(DIALECTS))


# Operation


def test_a_connection_is_shown_with_its_filters_and_closed(house: House, visitor: Visitor) -> None:
    with (
        wirelake.connect_sync(
            house.wire("kobold-3"), client_id="victim", reconnect=False
        ) as client,
        client.subscribe("a/#"),
    ):
        visitor.open("connections")
        visitor.page.get_by_role("button", name="victim").click()
        visitor.see("a/#", visitor.card("Connection"))
        visitor.press("Close it")
        visitor.press("Close", visitor.page.get_by_role("dialog"))
        expect(visitor.page.get_by_role("button", name="victim")).to_have_count(0)
        assert house.call(lambda: [s for s in house.node.sessions if s.client_id]) == []


def test_trouble_tells_faults_refusals_and_latencies(house: House, visitor: Visitor) -> None:
    import socket

    with socket.create_connection(("127.0.0.1", house.listener.port)) as connection:
        connection.sendall(b"5|0|greet|hello5|x!|")
        connection.recv(100)
    house.call(lambda: house.node.vitals.event("slow_consumer", "somebody", "was <b>slow</b>"))
    house.call(lambda: house.node.vitals.count_refused("too_large", 3))
    visitor.open("trouble")
    visitor.see("was <b>slow</b>", visitor.card("Events"))
    visitor.see("78 21", visitor.card("Protocol errors"))
    visitor.see("too large", visitor.card("Refused, by reason"))
    with wirelake.connect_sync(house.wire("kobold-3"), client_id="asker") as client:
        with client.serve("upper", lambda message: message.payload.upper()):
            assert client.request("upper", b"a").payload == b"A"
        client.publish("a", b"1", ack=True)
    for title in ("Publish to delivery", "Commit to the disk", "Request to reply"):
        visitor.see("Half take", visitor.card(title))


def test_flow_draws_who_talks_to_whom(house: House, visitor: Visitor) -> None:
    with (
        wirelake.connect_sync(house.wire("tmq-1.01"), client_id="hearer") as client,
        client.subscribe("a/#"),
    ):
        visitor.open("flow")
        visitor.see("Nothing was sent")
        publish(house, *[("a/b", b"1")] * 100)
        picture = visitor.page.get_by_role("img", name=re.compile("1 producers, 1 addresses"))
        for text in ("somebody", "a/b", "hearer"):
            expect(picture.locator("text", has_text=text).first).to_be_visible()


def test_access_says_whether_and_why(guest: Visitor) -> None:
    guest.expect_faults("401")
    guest.log_in("boss")
    guest.see("All is well")
    guest.open("access")
    choose = guest.card("May this token do that?")
    choose.get_by_role("combobox", name="Token").select_option("reader")
    choose.get_by_role("combobox", name="What").select_option("publish")
    choose.get_by_role("textbox", name="Address or filter").fill("house/a")
    guest.press("Check")
    expect(guest.page.get_by_role("status")).to_contain_text("No: reader has no right to publish")
    choose.get_by_role("combobox", name="What").select_option("subscribe")
    guest.press("Check")
    expect(guest.page.get_by_role("status")).to_contain_text("Yes: reader may subscribe house/#")


def test_spark_shows_queries_and_their_lag(house: House, visitor: Visitor) -> None:
    publish(house, *[("a", b"1")] * 5)
    assert house.post("/v1/progress/land", b'{"0": 0}').status == 200
    visitor.open("spark")
    table = visitor.page.get_by_role("table", name="Queries")
    expect(table.get_by_text("land")).to_be_visible()
    expect(table.locator("tbody td").nth(1)).to_have_text("5")
    visitor.press("Forget")
    visitor.press("Forget", visitor.page.get_by_role("dialog"))
    visitor.see("No query has reported")


def test_chat_shows_history_members_and_takes_part(house: House, visitor: Visitor) -> None:
    before = Note(Kind.SAY, "lobby", "anna", "abc.1", "hello <b>all</b>")
    lines = Note(Kind.SAY, "lobby", "anna", "abc.2", clean("line one\nline two"))
    publish(house, ("lobby", before.body()), ("lobby", lines.body()))
    visitor.open("chat")
    visitor.see("hello <b>all</b>")
    visitor.see("line one")
    visitor.see("line two")
    publish(house, ("lobby/$chat", Note(Kind.HERE, "lobby", "anna", "abc", "10").body()))
    visitor.see("anna", visitor.card("Members"))
    visitor.see("kobold-3", visitor.card("Members"))
    with (
        wirelake.connect_sync(house.wire("boson-binary")) as client,
        client.subscribe("lobby") as messages,
    ):
        visitor.page.get_by_label("Your name").fill("bob")
        visitor.page.get_by_label("Message", exact=True).fill("hi there")
        visitor.press("Say")
        said = next(iter(messages)).payload.decode()
    assert said.startswith("chat/1 say lobby bob ")
    assert said.endswith(" hi there")
    visitor.see("hi there")


def test_history_goes_on_where_a_search_took_too_long(
    house: House, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = [Note(Kind.SAY, "lobby", "anna", f"abc.{n}", f"number {n}.").body() for n in range(5)]
    for body in said:
        publish(house, ("lobby", body), ("other", b"x"))
    monkeypatch.setattr(search, "WINDOW", 4)
    house.http.configure(Settings(web=WebSettings(search_time=1e-9)))
    assert len(house.get("/v1/rows?filter=lobby").json["rows"]) < 5
    visitor.open("chat")
    for n in range(5):
        visitor.see(f"number {n}.")
    past = Past.find(house.url)
    assert past is not None
    assert [entry.text for entry in past.recent("lobby")] == [f"number {n}." for n in range(5)]


def test_sql_is_run_in_the_page(house: House, visitor: Visitor) -> None:
    publish(house, *[("a/b", b"12345")] * 7)
    visitor.expect_faults("400")
    visitor.open("sql", "SQL")
    visitor.press("Run")
    result = visitor.page.get_by_role("table", name="Result")
    expect(result.locator("tbody tr")).to_have_text(re.compile(r"a/b\s*7\s*35"))
    visitor.page.get_by_label("SQL").fill("SELEC")
    visitor.press("Run")
    expect(visitor.page.get_by_role("alert")).to_contain_text("syntax error")


# Rights


def test_without_admin_pages_show_what_rights_allow_and_offer_no_change(
    guarded: House, guest: Visitor
) -> None:
    guest.expect_faults("401", "403")
    for address in ("house/a", "garden/b"):
        guarded.post(f"/v1/publish/{address}", b"seen", "boss")
    guarded.put("/v1/queues/house/jobs", b"", "boss")
    guest.log_in("reader")
    guest.see("What this token sees")
    guest.open("queues", name="house/jobs")
    guest.see("What comes next")
    expect(guest.page.get_by_role("button", name="Purge")).to_have_count(0)
    expect(guest.page.get_by_role("button", name="New queue")).to_have_count(0)
    guest.open("explore", filter="garden/#")
    guest.see("no right to subscribe")
    expect(
        guest.card("Publish").locator("form").get_by_role("button", name="Publish")
    ).to_be_disabled()
    guest.open("log", filter="house/#")
    guest.see("house/a")
    guest.open("connections", "Overview")  # the page is not there, so the first one is shown


def test_the_docs_are_interactive(house: House, page: Page) -> None:
    page.goto(f"{house.url}/docs")
    place = page.locator('dt[data-path="/v1/store/{key}"][data-method="put"] + dd')
    place.get_by_text("Try it").click()
    place.get_by_label("key (path)").fill("a/b")
    place.get_by_label("Body").fill("hello")
    place.get_by_role("button", name="PUT").click()
    expect(place.get_by_role("status")).to_contain_text("201")
    assert house.get("/v1/store/a/b").body == b"hello"
