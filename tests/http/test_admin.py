"""What operators see and do by HTTP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http.house import House, arrow, rows
from wirelake import connect_sync
from wirelake.broker.queue import MESSAGE_OVERHEAD
from wirelake.journal.engine import Engine


def test_a_broker_that_is_well_says_so(house: House) -> None:
    got = house.get("/healthz")
    assert (got.status, got.json) == (200, {"state": "ok", "backlog": 0})


def test_a_broker_that_cannot_write_says_why(house: House) -> None:
    house.engine.journal.troubles = dict.fromkeys(range(4), "no space left on device")
    got = house.get("/healthz")
    assert got.status == 503
    assert (got.json["state"], got.json["text"]) == ("trouble", "no space left on device")
    refused = house.put("/v1/store/a", b"1")
    assert (refused.status, refused.json["error"]) == (503, "busy")
    assert refused.headers["retry-after"] == "1"
    assert house.post("/v1/publish/a", b"1").status == 503
    house.engine.journal.troubles = {}
    assert house.put("/v1/store/a", b"1").status == 201


def test_metrics_count_what_happens(house: House) -> None:
    house.put("/v1/queues/jobs")
    house.post("/v1/publish/jobs", b"12345")
    with connect_sync(house.wire("kobold-2")) as client:
        client.publish("house/a", b"1", ack=True)
        with (
            connect_sync(house.wire("boson-binary")) as server,
            server.serve("time", lambda message: b"now"),
        ):
            assert client.request("time", b"").payload == b"now"
        text = house.get("/metrics").body.decode()
    lines = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#")
    )
    assert lines["wirelake_received_total"] == "2.0"
    assert lines['wirelake_clients{dialect="kobold-2"}'] == "1.0"
    assert lines['wirelake_queue_ready{queue="jobs"}'] == "1.0"
    assert lines['wirelake_queue_bytes{queue="jobs"}'] == f"{MESSAGE_OVERHEAD + 7}.0"  # with its id
    assert float(lines["wirelake_commit_seconds_count"]) >= 2
    assert (
        lines['wirelake_commit_seconds_bucket{le="+Inf"}']
        == (lines["wirelake_commit_seconds_count"])
    )
    for name, least in (("delivery", 2), ("request", 1)):
        buckets = [
            float(value)
            for key, value in lines.items()
            if key.startswith(f"wirelake_{name}_seconds_bucket")
        ]
        assert buckets == sorted(buckets)
        assert buckets[-1] == float(lines[f"wirelake_{name}_seconds_count"]) >= least
        assert float(lines[f"wirelake_{name}_seconds_sum"]) > 0
    ends = [float(lines[f'wirelake_log_next{{partition="{n}"}}']) for n in range(4)]
    assert sum(ends) == 4  # the request and its reply, too


def test_metrics_count_refusals_by_reason(guarded: House) -> None:
    with connect_sync(guarded.wire("kobold-2"), token="sender") as client:
        client.publish("other", b"1")
        client.ping()
    text = guarded.get("/metrics", "boss").body.decode()
    assert 'wirelake_refused_total{reason="unauthorized"} 1.0' in text
    assert guarded.get("/metrics", "sender").status == 403


def test_addresses_show_who_listens_serves_and_queues(guarded: House) -> None:
    guarded.put("/v1/queues/house/jobs", token="boss")
    guarded.put("/v1/queues/other", token="boss")
    with (
        connect_sync(guarded.wire("kobold-2"), token="boss") as client,
        client.subscribe("house/+/temp"),
    ):
        shown = guarded.get("/v1/addresses", "boss").json
        assert shown["topics"] == [{"filter": "house/+/temp", "subscribers": 1}]
        assert shown["queues"] == ["house/jobs", "other"]
        assert guarded.get("/v1/addresses", "reader").json["queues"] == ["house/jobs"]
    assert guarded.get("/v1/addresses").json == {"topics": [], "queues": [], "services": []}


def test_connections_are_for_operators(guarded: House) -> None:
    with (
        connect_sync(guarded.wire("kobold-3"), token="reader", client_id="cat") as client,
        client.subscribe("house/#"),
    ):
        shown = guarded.get("/v1/connections", "boss").json["connections"]
    assert len(shown) == 1
    assert (shown[0]["id"], shown[0]["dialect"], shown[0]["rights"]) == (
        "cat",
        "kobold-3",
        "reader",
    )
    assert shown[0]["subscriptions"] == ["house/#"]
    assert guarded.get("/v1/connections", "reader").status == 403
    assert guarded.get("/v1/connections").status == 401


# Queues


def test_a_queue_is_made_looked_at_changed_and_removed(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        made = house.put("/v1/queues/jobs", b'{"mode": "pull", "max_messages": 7}')
        assert (made.status, made.json["mode"], made.json["max_messages"]) == (201, "pull", 7)
        changed = house.put("/v1/queues/jobs", b'{"max_messages": 8}')
        assert (changed.status, changed.json["mode"], changed.json["max_messages"]) == (
            200,
            "pull",
            8,
        )
    with House(tmp_path) as house:
        kept = house.get("/v1/queues/jobs").json
        assert (kept["mode"], kept["max_messages"]) == ("pull", 8)
        assert [one["name"] for one in house.get("/v1/queues").json["queues"]] == ["jobs"]
        assert house.delete("/v1/queues/jobs").status == 204
        assert house.get("/v1/queues/jobs").status == 404
        assert house.delete("/v1/queues/jobs").status == 404


@pytest.mark.parametrize(
    "body",
    [
        b"[]", b"{", b'{"mode": "broadcast"}', b'{"max_messages": -1}', b'{"name": "x"}',
        b'{"ack_timeout": 0}', b'{"colour": 1}', b'{"max_deliveries": "3"}', b"\xff",
        b"[" * 10_000, b'{"content_type": 1}',
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_make_no_queue(house: House, body: bytes) -> None:
    assert house.put("/v1/queues/jobs", body).status == 400
    assert house.get("/v1/queues/jobs").status == 404


def test_a_topic_with_subscribers_becomes_no_queue(house: House) -> None:
    with connect_sync(house.wire("kobold-2")) as client, client.subscribe("jobs"):
        got = house.put("/v1/queues/jobs")
    assert (got.status, got.json["error"]) == (409, "conflict")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a/b", "a/b"),
        ("a%2Fb", "a/b"),
        ("/a", "/a"),
        ("%2Fa", "/a"),
        ("a/", "a/"),
        ("a/../b", "a/../b"),
        ("a//b", "a//b"),
        ("a%20b", "a b"),
        ("caf%C3%A9", "café"),
        ("a%2Fmessages", "a/messages"),
        ("a%2Fpurge", "a/purge"),
        ("messages", "messages"),
        ("a%252Fb", "a%2Fb"),
        ("a%3Fb", "a?b"),
        ("a/messages/b", "a/messages/b"),
    ],
)
def test_every_name_can_be_written_in_a_path(house: House, path: str, name: str) -> None:
    assert house.put(f"/v1/queues/{path}").json["name"] == name
    assert house.get(f"/v1/queues/{path}").json["name"] == name
    assert house.get(f"/v1/queues/{path}/messages").json == {"messages": []}
    assert house.put(f"/v1/store/{path}", b"v").json["key"] == name
    assert house.post(f"/v1/publish/{path}", b"v").json["address"] == name
    assert len(house.get(f"/v1/queues/{path}/messages").json["messages"]) == 1


def test_messages_are_peeked_at_and_stay(house: House) -> None:
    house.put("/v1/queues/jobs")
    for n in range(3):
        house.post("/v1/publish/jobs", bytes([0xFF, n]), Wirelake_Id=f"m{n}")
    for _ in range(2):
        shown = house.get("/v1/queues/jobs/messages?count=2").json["messages"]
        assert [one["id"] for one in shown] == ["m0", "m1"]
        assert shown[0]["base64"] == "/wA="
    assert house.get("/v1/queues/jobs/messages?count=0").status == 400
    assert house.get("/v1/queues/none/messages").status == 404


def test_a_queue_is_purged(house: House) -> None:
    house.put("/v1/queues/jobs")
    house.post("/v1/publish", arrow(rows(*[("jobs", b"x")] * 10)))
    assert house.post("/v1/queues/jobs/purge").json == {"purged": 10}
    assert house.get("/v1/queues/jobs").json["messages"] == 0


def test_dead_letters_go_back_where_they_came_from(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        house.put("/v1/queues/jobs%2F%24dead")
        some = [("jobs/$dead", b"%d" % n) for n in range(1200)]
        assert house.post("/v1/publish", arrow(rows(*some))).status == 202
        assert house.post("/v1/queues/jobs%2F%24dead/move?count=2").json == {
            "moved": 2,
            "to": "jobs",
        }
        assert house.post("/v1/queues/jobs/$dead/move").json["moved"] == 1198
        assert house.post("/v1/queues/jobs/move").status == 400
        assert house.post("/v1/queues/jobs/move?to=jobs").status == 400
        assert house.post("/v1/queues/jobs/move?to=a/%23").status == 400
        assert house.post("/v1/queues/none/move?to=x").status == 404
    with House(tmp_path) as house:
        assert house.get("/v1/queues/jobs").json["messages"] == 1200
        first = house.get("/v1/queues/jobs/messages?count=3").json["messages"]
        assert [one["payload"] for one in first] == ["0", "1", "2"]


def test_chosen_messages_alone_are_moved(house: House) -> None:
    house.put("/v1/queues/jobs")
    for n in range(5):
        house.post("/v1/publish/jobs", b"%d" % n)
    there = house.get("/v1/queues/jobs/messages").json["messages"]
    second, fourth = there[1]["sequence"], there[3]["sequence"]
    path = f"/v1/queues/jobs/move?to=other&sequence={fourth}&sequence={second}&sequence=99"
    assert house.post(path).json == {"moved": 2, "to": "other"}
    for name, left in (("jobs", ["0", "2", "4"]), ("other", ["1", "3"])):
        found = house.get(f"/v1/queues/{name}/messages").json["messages"]
        assert [one["payload"] for one in found] == left


def test_only_operators_remove_purge_and_move(guarded: House) -> None:
    guarded.put("/v1/queues/house/jobs", token="boss")
    for token in ("sender", "reader", "keeper"):
        assert guarded.delete("/v1/queues/house/jobs", token).status == 403
        assert guarded.post("/v1/queues/house/jobs/purge", token=token).status == 403
        assert guarded.post("/v1/queues/house/jobs/move?to=x", token=token).status == 403
        assert guarded.put("/v1/queues/house/new", token=token).status == 403
    assert guarded.get("/v1/queues/house/jobs", "sender").status == 403
    assert guarded.get("/v1/queues/house/jobs", "reader").status == 200
    assert guarded.get("/v1/queues", "sender").json == {"queues": []}


# The data store


def test_a_key_is_written_read_and_removed(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        made = house.put("/v1/store/house/name", b"Villa \xff")
        assert (made.status, made.headers["etag"]) == (201, '"1"')
        got = house.get("/v1/store/house/name")
        assert (got.body, got.headers["etag"]) == (b"Villa \xff", '"1"')
        assert house.put("/v1/store/house/name", b"2").headers["etag"] == '"2"'
    with House(tmp_path) as house:
        assert house.get("/v1/store/house/name").body == b"2"
        gone = house.delete("/v1/store/house/name")
        assert (gone.status, gone.headers["etag"]) == (204, '"3"')
        assert house.get("/v1/store/house/name").status == 404
        assert house.delete("/v1/store/house/name").status == 404
        assert house.put("/v1/store/house/name", b"3").headers["etag"] == '"4"'


def test_a_key_changes_only_if_it_is_as_expected(house: House) -> None:
    assert house.put("/v1/store/k", b"0", If_Match="*").status == 412
    assert house.put("/v1/store/k", b"0", If_Match='"1"').status == 412
    assert house.put("/v1/store/k", b"1", If_None_Match="*").status == 201
    again = house.put("/v1/store/k", b"2", If_None_Match="*")
    assert (again.status, again.json["error"]) == (412, "exists")
    assert house.put("/v1/store/k", b"2", If_Match='"7"').status == 412
    assert house.put("/v1/store/k", b"2", If_Match='"1"').status == 200
    assert house.delete("/v1/store/k", If_Match='"1"').status == 412
    assert house.put("/v1/store/k", b"3", If_Match="2").status == 400
    assert house.put("/v1/store/k", b"3", If_None_Match='"2"').status == 400
    assert house.get("/v1/store/k", If_None_Match='"2"').status == 304
    assert house.get("/v1/store/k", If_None_Match='"1"').body == b"2"
    assert house.delete("/v1/store/k", If_Match='"2"').status == 204


def test_a_key_lives_as_long_as_it_says(house: House) -> None:
    assert house.put("/v1/store/short?ttl=1", b"1").status == 201
    with connect_sync(house.wire("kobold-2")) as client:
        while house.get("/v1/store/short").status == 200:
            client.ping()  # the clock ticks while somebody asks
    assert house.put("/v1/store/short?ttl=-1", b"1").status == 400
    assert house.put("/v1/store/short?ttl=99999999999", b"1").status == 400


def test_keys_are_listed_page_by_page(house: House) -> None:
    for n in range(5):
        house.put(f"/v1/store/house/{n}", b"%d" % n)
    house.put("/v1/store/other", b"\xff")
    house.delete("/v1/store/house/3")
    first = house.get("/v1/store?filter=house/%23&limit=3").json
    assert [one["key"] for one in first["keys"]] == ["house/0", "house/1", "house/2"]
    assert first["more"]
    rest = house.get("/v1/store?filter=house/%23&after=house/2").json
    assert ([one["value"] for one in rest["keys"]], rest["more"]) == (["4"], False)
    assert house.get("/v1/store?filter=other").json["keys"][0]["base64"] == "/w=="


@pytest.mark.parametrize("key", ["$producer/x", "a/%23", "+", "%00", "x" * 256, ""])
def test_what_is_no_key_is_refused(house: House, key: str) -> None:
    assert house.put(f"/v1/store/{key}", b"1").status == 400
    assert house.delete(f"/v1/store/{key}").status == 400


def test_keys_are_for_those_with_a_right_to_them(guarded: House) -> None:
    assert guarded.put("/v1/store/house/k", b"1", "keeper").status == 201
    assert guarded.put("/v1/store/other", b"1", "keeper").status == 403
    assert guarded.get("/v1/store/house/k", "reader").status == 403
    assert guarded.get("/v1/store/house/k").status == 401
    assert guarded.get("/v1/store", "keeper").status == 403
    assert len(guarded.get("/v1/store?filter=house/%23", "keeper").json["keys"]) == 1


def test_a_watcher_on_the_wire_hears_of_a_change_by_http(house: House) -> None:
    with connect_sync(house.wire("kobold-2")) as client, client.store.watch("house/#") as changes:
        house.put("/v1/store/house/k", b"1")
        change = next(iter(changes))
    assert (change.key, change.value) == ("house/k", b"1")


def test_a_broker_in_memory_has_http_too() -> None:
    with House(None, engine=Engine.in_memory()) as house:
        assert house.put("/v1/store/k", b"1").status == 201
        assert house.get("/v1/store/k").body == b"1"
        assert "wirelake_commit_in_place_total" in house.get("/metrics").body.decode()
