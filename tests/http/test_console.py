"""What the console asks for: files, figures, rows of the log, bytes looked at, traces, access."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import re
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import cbor2
import pytest

import wirelake
from tests.http.house import House
from wirelake.config import Settings, WebSettings
from wirelake.console import MISSING, is_fixed, load
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.http import console as endpoints
from wirelake.http import search
from wirelake.http.log import Selection
from wirelake.http.payloads import read_cbor
from wirelake.message import Message
from wirelake.wire import FrameTable


def publish(house: House, *messages: tuple[str, bytes], dialect: str = "kobold-3") -> None:
    """Publish on the wire, and wait until it is in the log."""
    with wirelake.connect_sync(house.wire(dialect), client_id="somebody") as client:
        for address, payload in messages:
            client.publish(address, payload, ack=True)


def events(house: House, path: str, count: int, token: str = "") -> list[tuple[str, Any]]:
    """So many events of a stream, as (kind, data)."""
    connection, response = house.open("GET", path, token=token)
    found: list[tuple[str, Any]] = []
    kind = ""
    try:
        assert response.status == 200
        while len(found) < count:
            line = response.readline().decode().rstrip("\n")
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                found.append((kind, json.loads(line.removeprefix("data: "))))
    finally:
        connection.close()
    return found


# Files


def test_where_the_libraries_are_missing_the_broker_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "load", lambda: load(tmp_path / "nothing"))
    with House(tmp_path) as house:
        page = house.get("/")
        assert page.status == 200
        assert MISSING in page.body.decode()
        assert house.get("/console/main.js").status == 404
        assert house.get("/v1/queues").status == 200


def test_a_file_is_sent_once_and_then_known(house: House) -> None:
    if not load():
        pytest.skip("no libraries: the console is not tested (make setup)")
    got = house.get("/console/main.js")
    assert got.headers["content-type"].startswith("text/javascript")
    again = house.get("/console/main.js", If_None_Match=got.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    small = house.get("/console/main.js", Accept_Encoding="br, gzip;q=0.8")
    assert small.headers["content-encoding"] == "gzip"
    assert gzip.decompress(small.body) == got.body
    plain = house.get("/console/main.js", Accept_Encoding="gzip;q=0")
    assert plain.body == got.body
    for path in ("/console/../http/app.py", "/console/%2e%2e/x", "/console/", "/console/nothing"):
        assert house.get(path).status == 404


def test_files_with_a_version_are_kept_for_ever_and_the_page_names_them(house: House) -> None:
    if not load():
        pytest.skip("no libraries: the console is not tested (make setup)")
    page = house.get("/")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="(/console/[^"]+)"', page.body.decode())
    assert len(named) > 5
    for path in named:
        got = house.get(path)
        assert (got.status, "immutable" in got.headers["cache-control"]) == (200, True)
    assert "immutable" not in house.get("/console/main.js").headers["cache-control"]
    assert house.get(named[0].replace(named[0].split("/")[2], "0" * 16)).status == 404


def test_all_of_it_together_is_small() -> None:
    files = load()
    if not files:
        pytest.skip("no libraries: the console is not tested (make setup)")
    shown = [name for name in files if not is_fixed(name) and name != "docs.js"]  # of /docs
    sizes = [len(files[name].content) for name in shown]
    assert 100_000 < sum(sizes) < 250_000


def test_no_two_dialects_have_the_same_colour(house: House) -> None:
    colours = [one["colour"] for one in house.get("/v1/session").json["about"].values()]
    assert len(set(colours)) == len(colours)


# The log


def test_rows_come_the_newest_first_and_in_pages_over_all_partitions(house: House) -> None:
    publish(house, *[(f"a/{n}", b"%d" % n) for n in range(25)])
    seen: list[str] = []
    before = ""
    while True:
        got = house.get(f"/v1/rows?limit=10{before}").json
        seen += [row["payload"] for row in got["rows"]]
        if not got["more"]:
            break
        before = "&before=" + ",".join(f"{key}:{value}" for key, value in got["before"].items())
    assert seen == [str(n) for n in reversed(range(25))]


def test_rows_are_found_by_what_they_have(house: House) -> None:
    with wirelake.connect_sync(house.wire("kobold-3")) as client:
        client.publish("a/one", b"red apples", id="m1", headers={"colour": "red"}, ack=True)
    publish(house, ("b", b"\xff\xfe"), ("a/two", b"green"), dialect="boson-binary")

    def found(query: str) -> list[str]:
        return [row["address"] for row in house.get(f"/v1/rows?{query}").json["rows"]]

    assert found("filter=a/%23") == ["a/two", "a/one"]
    assert found("dialect=kobold-3") == ["a/one"]
    assert found("text=apples") == found("text=a/one") == found("id=m1") == ["a/one"]
    assert found("header=colour=red") == found("header=colour") == ["a/one"]
    assert found("header=colour=blue") == found("op=request") == []
    assert found("time_to=1000") == []
    assert found("time_from=1000&op=publish") == ["a/two", "b", "a/one"]
    assert house.get("/v1/rows?filter=b").json["rows"][0]["base64"] == "//4="


def test_rows_are_exported_the_oldest_first_and_no_cell_is_a_formula(house: House) -> None:
    publish(house, ("a", b"1"), ("a", b'=cmd("x")'), ("a", b"3,\n4"))
    lines = house.get("/v1/rows?format=jsonl&limit=100000").body.decode().splitlines()
    assert [json.loads(line)["payload"] for line in lines] == ["1", '=cmd("x")', "3,\n4"]
    got = house.get("/v1/rows?format=csv")
    assert "attachment" in got.headers["content-disposition"]
    table = list(csv.DictReader(io.StringIO(got.body.decode())))
    assert [row["payload"] for row in table] == ["1", '\'=cmd("x")', "3,\n4"]


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "format=xml", "before=x", "time_from=noon", "filter=a%23b"]
)
def test_a_wrong_search_is_refused(house: House, query: str) -> None:
    assert house.get(f"/v1/rows?{query}").status == 400


def test_rows_are_those_that_rights_show(guarded: House) -> None:
    for address in ("house/a", "garden/b"):
        guarded.post(f"/v1/publish/{address}", b"1", "boss")
    mine = guarded.get("/v1/rows?filter=house/%23", "reader").json["rows"]
    assert [row["address"] for row in mine] == ["house/a"]
    assert guarded.get("/v1/rows", "reader").status == 403
    assert guarded.get("/v1/rows", "sender").status == 403
    assert guarded.get("/v1/rows").status == 401


def test_a_search_that_takes_too_long_says_where_to_go_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(house, *[("a", b"%d" % n) for n in range(30)])
    monkeypatch.setattr(search, "WINDOW", 4)
    house.http.configure(Settings(web=WebSettings(search_time=1e-9)))
    got = house.get("/v1/rows?text=none").json
    assert got["more"]
    assert got["rows"] == []
    house.http.configure(Settings(web=WebSettings(search_time=10.0)))
    assert house.get("/v1/rows?text=29").json["rows"][0]["payload"] == "29"


def test_a_histogram_counts_every_row_once(house: House) -> None:
    publish(house, *[(f"a/{n}", b"") for n in range(40)])
    got = house.get("/v1/histogram?buckets=7").json
    assert sum(got["counts"]) == 40
    middle = got["start"] + 3 * got["width"]
    first = house.get(f"/v1/histogram?buckets=3&time_to={middle}").json
    second = house.get(f"/v1/histogram?buckets=3&time_from={middle}").json
    assert sum(first["counts"]) + sum(second["counts"]) == 40
    assert house.get("/v1/histogram?time_from=9&time_to=3").status == 400


def test_a_histogram_counts_what_is_looked_for(house: House) -> None:
    publish(house, *[(f"a/{n % 5}", b"<%d>" % n) for n in range(40)])
    publish(house, *[("b", b"x")] * 9, dialect="tmq-1.01")
    for query, count in (
        ("filter=a/%23", 40),
        ("filter=a/1", 8),
        ("dialect=tmq-1.01", 9),
        ("op=publish", 49),
        ("op=ack", 0),
        ("text=<39>", 1),  # an id that the broker makes may have 39 in it
        ("filter=a/%23&filter=b", 49),
    ):
        got = house.get(f"/v1/histogram?buckets=7&{query}").json
        assert (sum(got["counts"]), got["since"]) == (count, got["start"])
        rows = house.get(f"/v1/rows?limit=1000&{query}").json["rows"]
        assert len(rows) == count


def test_a_histogram_that_takes_too_long_says_how_far_it_is(house: House) -> None:
    publish(house, *[("a", b"nr. %d" % n) for n in range(30)])
    wanted = search.Wanted(text="nr. 1")
    for budget, is_whole in ((60.0, True), (-1.0, False)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search, "WINDOW", 5)
            got = search.histogram(house.engine, Selection(), wanted, 0, 0, 10, budget)
        assert (got["since"] == got["start"]) is is_whole
        assert (sum(got["counts"]) == 11) is is_whole


def test_a_histogram_shows_no_more_than_rights_do(guarded: House) -> None:
    for address in ("house/a", "garden/b"):
        guarded.post(f"/v1/publish/{address}", b"1", "boss")
    assert guarded.get("/v1/histogram", "reader").status == 403
    assert guarded.get("/v1/histogram?filter=garden/%23", "reader").status == 403
    got = guarded.get("/v1/histogram?filter=house/%23", "reader").json
    assert sum(got["counts"]) == 1


def test_rows_are_read_from_an_offset_back(house: House) -> None:
    publish(house, *[(f"a/{n}", b"%d" % n) for n in range(20)])
    rows = house.get("/v1/rows?limit=1000").json["rows"]
    chosen = rows[5]
    place = f"{chosen['partition']}:{chosen['offset']}"
    got = house.get(f"/v1/rows?offset={place}").json["rows"]
    assert got[0] == chosen
    assert [one["offset"] for one in got] == list(range(chosen["offset"], -1, -1))
    assert {one["partition"] for one in got} == {chosen["partition"]}
    for wrong in ("3", "a:b", "1:2,2:3", "1:2:3"):
        assert house.get(f"/v1/rows?offset={wrong}").status == 400


def test_a_watch_tells_changes_of_keys(house: House) -> None:
    connection, response = house.open("GET", "/v1/live?watch=config/%23")
    response.readline()
    house.put("/v1/store/other", b"1")
    house.put("/v1/store/config/lamp", b"on")
    house.delete("/v1/store/config/lamp")
    told: list[tuple[str, str]] = []
    while len(told) < 2:
        line = response.readline()
        if line.startswith(b"data: ") and b"messages" in line:
            told += [(one["op"], one["address"]) for one in json.loads(line[6:])["messages"]]
    connection.close()
    assert told == [("set", "config/lamp"), ("del", "config/lamp")]


def test_keys_are_watched_within_rights(guarded: House) -> None:
    assert guarded.get("/v1/live?watch=%23", "reader").status == 403


# Bytes


def test_fields_are_told_with_the_bytes_where_they_lie(house: House) -> None:
    data = b"5|0|greet|hello4|0|t|abcd"
    got = house.post("/v1/inspect", data).json
    assert (got["dialect"], got["count"], got["error"]) == ("boson-text", 2, None)
    for frame, address, payload in zip(
        got["messages"], (b"greet", b"t"), (b"hello", b"abcd"), strict=True
    ):
        places = {one["name"]: one for one in frame["fields"]}
        for name, value in (("address", address), ("payload", payload)):
            at, length = places[name]["at"], places[name]["length"]
            assert data[at : at + length] == value


def test_an_error_is_told_at_its_byte_after_what_came_before(house: House) -> None:
    got = house.post("/v1/inspect", b"5|0|greet|hello5|x!|").json
    assert got["count"] == 1
    assert got["error"]["offset"] >= 15
    assert house.post("/v1/inspect?dialect=nonsense", b"x").status == 400
    assert house.post("/v1/inspect", bytes((1 << 20) + 1)).status == 413


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_any_dialect_writes_can_be_inspected(house: House, dialect: str) -> None:
    table = FrameTable(1)
    table.fill([Message(address="a/b", payload=b"hello")])
    frames = bytes(encoder(dialect, client=False).encode(table))
    got = house.post(f"/v1/inspect?dialect={dialect}", frames).json
    fields = {one["name"]: one for frame in got["messages"] for one in frame["fields"]}
    assert fields["payload"]["value"] == {"payload": "hello"}
    at = fields["payload"].get("at")
    assert at is None or frames[at : at + 5] == b"hello"


def test_a_message_is_told_in_every_dialect_with_what_is_lost(house: House) -> None:
    message = {"address": "a", "payload": "x", "headers": {"colour": "red"}, "source": "me"}
    got = house.post("/v1/translate", json.dumps(message).encode()).json["translations"]
    by_name = {one["dialect"]: one for one in got}
    assert set(by_name) == set(DIALECTS)
    assert "headers" in by_name["boson-text"]["lost"]
    assert "headers" not in by_name["kobold-3"]["lost"]
    assert b"x" in base64.b64decode(by_name["boson-text"]["base64"])
    assert house.post("/v1/translate", b'{"address": ""}').status == 400
    assert house.post("/v1/translate", b'{"payload": ""}').status == 400


@pytest.mark.parametrize(
    "value", [{"a": [1, -2, 2.5, None, True]}, ["x", {"b": "y"}], "text", {"1": {"2": {}}}]
)
def test_cbor_is_read_as_json_has_it(value: Any) -> None:
    assert read_cbor(cbor2.dumps(value)) == value


@pytest.mark.parametrize(
    "data",
    [b"", b"\x01", b"\xff", b"\x9f", b"\x5b" + b"\xff" * 8, b"\x81" * 40, b"\x61", b"\x83\x01"],
)
def test_what_is_no_cbor_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        read_cbor(data)


# Live


def test_a_tail_tells_dialect_sender_and_time_of_each_message(house: House) -> None:
    connection, response = house.open("GET", "/v1/live?filter=a/%23")
    response.readline()
    publish(house, ("a/b", b"1"), ("a/c", cbor2.dumps({"n": [1, 255, 1e300]})))
    found: list[dict[str, Any]] = []
    while len(found) < 2:
        line = response.readline().decode()
        if line.startswith("data: "):
            found += json.loads(line.removeprefix("data: ")).get("messages", [])
    connection.close()
    assert [(one["address"], one["dialect"], one["source"]) for one in found] == [
        ("a/b", "kobold-3", "somebody"),
        ("a/c", "kobold-3", "somebody"),
    ]
    assert found[1]["cbor"] == {"n": [1, 255, 1e300]}
    rows = house.get("/v1/rows?filter=a/b").json["rows"]
    assert found[0]["time"] == rows[0]["time"]


def test_a_tail_shows_no_more_than_its_rate_and_says_how_many_it_left_out(house: House) -> None:
    connection, response = house.open("GET", "/v1/live?filter=a&rate=10")
    response.readline()
    publish(house, *[("a", b"%d" % n) for n in range(200)])
    shown = skipped = 0
    while shown + skipped < 200:
        line = response.readline().decode()
        if line.startswith("data: "):
            told = json.loads(line.removeprefix("data: "))
            shown += len(told.get("messages", []))
            skipped += told.get("skipped", 0)
    connection.close()
    assert shown < 60
    assert house.call(lambda: house.node.vitals.counters["slow_consumers"]) == 0


def test_a_tail_that_nobody_reads_makes_nobody_wait(house: House) -> None:
    connection, response = house.open("GET", "/v1/live?filter=a")
    response.readline()
    with wirelake.connect_sync(house.wire("boson-binary")) as client:
        for _ in range(64):
            client.publish("a", bytes(1 << 20), ack=True, timeout=10)
    assert house.call(lambda: house.node.vitals.counters["slow_consumers"]) == 0
    assert house.call(lambda: [s.link.buffered for s in house.node.sessions]) == [0]
    connection.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("part=nonsense", 400),
        ("filter=a%23", 400),
        ("rate=0", 400),
        ("&".join(f"filter=a{n}" for n in range(17)), 413),
    ],
)
def test_a_wrong_stream_is_refused(house: House, path: str, status: int) -> None:
    assert house.get(f"/v1/live?{path}").status == status


def test_a_stream_keeps_to_the_rights_of_its_token(guarded: House) -> None:
    assert guarded.get("/v1/live?filter=garden", "reader").status == 403
    assert guarded.get("/v1/live?part=overview").status == 401
    ((_, told),) = events(guarded, "/v1/live?part=overview&part=connections", 1, "reader")
    assert told["overview"]["state"] == "ok"
    assert "talkers" not in told["overview"]
    assert told["connections"]["error"] == "unauthorized"


def test_figures_count_messages_by_dialect_connection_and_address(house: House) -> None:
    parts = "&".join(f"part={name}" for name in ("overview", "connections", "addresses", "flow"))
    with (
        wirelake.connect_sync(house.wire("tmq-1.01"), client_id="hearer") as hearer,
        hearer.subscribe("a/#"),
    ):
        publish(house, *[("a/b", b"1")] * 30)
        ((_, told),) = events(house, f"/v1/live?{parts}", 1)
        counted = 0
        while counted < 30:  # until the second is over
            rates = house.get("/v1/rates?seconds=60").json["dialects"]
            counted = sum(rates.get("kobold-3", {}).get("received", ()))
    assert counted == 30
    (one,) = [one for one in told["connections"]["connections"] if one["id"] == "hearer"]
    assert one["delivered"] == 30
    assert told["addresses"]["rates"]["a/b"] > 0
    assert told["flow"]["producers"][0]["source"] == "somebody"
    assert told["flow"]["consumers"][0]["id"] == "hearer"


# Operators


def test_an_operator_closes_a_connection(guarded: House) -> None:
    with wirelake.connect_sync(
        guarded.wire("kobold-3"), client_id="me", token="boss", reconnect=False
    ) as client:
        client.publish("house/a", b"1", ack=True)
        (mine,) = [
            one
            for one in guarded.get("/v1/connections", "boss").json["connections"]
            if one["id"] == "me"
        ]
        assert mine["received"] == 1
        path = f"/v1/connections/{mine['number']}"
        assert guarded.delete(path, "reader").status == 403
        assert guarded.delete(path, "boss").status == 204
        assert guarded.delete(path, "boss").status == 404


def test_a_trace_tells_real_deliveries_and_ends_by_itself(house: House) -> None:
    assert house.get("/v1/trace").json["messages"] == []
    with (
        wirelake.connect_sync(house.wire("boson-text")) as old,
        old.subscribe("a/#"),
        wirelake.connect_sync(house.wire("kobold-3"), client_id="new") as new,
        new.subscribe("a/b"),
    ):
        assert house.put("/v1/trace", b'{"filter": "a/#"}').status == 200
        with wirelake.connect_sync(house.wire("kobold-2"), client_id="sender") as client:
            client.publish("a/b", b"hello", headers={"colour": "red"}, ack=True)
            client.publish("b", b"other", ack=True)
        (message,) = house.get("/v1/trace").json["messages"]
        assert (message["address"], message["source"]) == ("a/b", "sender")
        lost = {one["dialect"]: one["lost"] for one in message["deliveries"]}
        assert "headers" in lost["boson-text"]
        assert lost["kobold-3"] == []
        assert all(b"hello" in base64.b64decode(one["base64"]) for one in message["deliveries"])
        trace = getattr(house.node.router.on_publish, "__self__")  # noqa: B009 - of a callable
        house.call(lambda: setattr(trace, "until", 0.0))
        publish(house, ("a/b", b"later"))
        assert house.call(lambda: house.node.router.on_publish) is None
        assert len(house.get("/v1/trace").json["messages"]) == 1
    assert house.put("/v1/trace", b"{}").status == 400
    assert house.delete("/v1/trace").status == 204


def test_a_trace_is_for_operators(guarded: House) -> None:
    assert guarded.put("/v1/trace", b'{"filter": "house/#"}', "reader").status == 403
    assert guarded.get("/v1/trace", "reader").status == 403


def test_who_would_get_a_message_is_told(house: House) -> None:
    with (
        wirelake.connect_sync(house.wire("kobold-3"), client_id="me") as client,
        client.subscribe("a/+"),
    ):
        got = house.get("/v1/audience?address=a/b").json
    assert (got["kind"], got["count"], got["captured"]) == ("topic", 1, True)
    assert got["who"][0]["id"] == "me"


@pytest.mark.parametrize(
    ("token", "kind", "address", "allowed", "why"),
    [
        ("reader", "subscribe", "house/a", True, "house/#, which covers house/a"),
        ("reader", "subscribe", "garden", False, "none of these covers garden"),
        ("reader", "publish", "house/a", False, "no right to publish anything"),
        ("boss", "admin", "", True, "has admin"),
        ("reader", "admin", "", False, "has no admin"),
        ("boss", "declare", "q", True, "has admin"),
    ],
)
def test_access_says_why(
    guarded: House, token: str, kind: str, address: str, allowed: bool, why: str
) -> None:
    path = f"/v1/access/may?token={token}&kind={kind}&address={quote(address)}"
    for asker in {"boss", token}:
        got = guarded.get(path, asker).json
        assert got["allowed"] is allowed
        assert why in got["why"]


def test_only_operators_see_the_rights_of_others(guarded: House) -> None:
    assert {one["name"] for one in guarded.get("/v1/access", "boss").json["tokens"]} >= {
        "boss",
        "reader",
        "stranger",
    }
    (mine,) = guarded.get("/v1/access", "reader").json["tokens"]
    assert (mine["name"], mine["subscribe"]) == ("reader", ["house/#"])
    assert guarded.get("/v1/access/may?token=boss&kind=admin", "reader").status == 403
    assert guarded.get("/v1/access/may?token=none&kind=admin", "boss").status == 404
    assert guarded.get("/v1/access").status == 401


def test_no_answer_holds_a_token_or_its_hash(guarded: House) -> None:
    text = guarded.get("/v1/access", "boss").body.decode()
    assert "hash" not in text
    assert "sha256" not in text


@pytest.mark.parametrize("is_guarded", [False, True])
def test_bytes_of_a_fault_are_told_unless_they_may_be_a_token(
    request: pytest.FixtureRequest, is_guarded: bool
) -> None:
    house: House = request.getfixturevalue("guarded" if is_guarded else "house")
    with socket.create_connection(("127.0.0.1", house.listener.port)) as connection:
        connection.sendall(b"5|0|greet|hello5|x!|")
        connection.recv(100)
    ((_, told),) = events(house, "/v1/live?part=trouble", 1, "boss" if is_guarded else "")
    (error,) = told["trouble"]["errors"]
    assert ("78 21" in error["hex"]) is not is_guarded


# SQL


def sql(house: House, statement: str, token: str = "") -> Any:
    """What a statement says."""
    return house.post("/v1/sql", json.dumps({"sql": statement}).encode(), token)


def test_sql_sees_the_rows_of_all_partitions(house: House) -> None:
    publish(house, *[(f"a/{n % 5}", b"%d" % n) for n in range(20)])
    got = sql(house, "SELECT address, count(*) FROM log GROUP BY 1 ORDER BY 1").json
    assert got["rows"] == [[f"a/{n}", 4] for n in range(5)]
    assert got["of"] == 20


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("SELEC", "syntax"),
        ("SELECT * FROM read_text('/etc/passwd')", "disabled"),
        ("COPY log TO '/tmp/stolen.csv'", "disabled"),
        ("INSTALL httpfs", "disabled"),
        ("SET enable_external_access = true", "locked"),
        ("SELECT * FROM other", "does not exist"),
    ],
)
def test_sql_reaches_nothing_but_the_rows(house: House, statement: str, reason: str) -> None:
    got = sql(house, statement)
    assert got.status == 400
    assert reason in got.json["text"]


def test_sql_that_takes_too_much_is_ended_and_the_broker_goes_on(house: House) -> None:
    house.http.configure(Settings(web=WebSettings(sql_time=2.0)))
    got = sql(house, "SELECT count(*) FROM range(1000000000000) a, range(1000000) b")
    assert got.status == 504
    assert house.get("/healthz").status == 200


def test_sql_is_for_operators(guarded: House) -> None:
    assert sql(guarded, "SELECT 1", "keeper").status == 403
    assert sql(guarded, "SELECT 1", "boss").json["rows"] == [[1]]
