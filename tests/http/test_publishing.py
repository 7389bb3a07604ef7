"""Publishing by HTTP, once and in batches, and hearing what is published."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.http.house import TOKENS, House, arrow, rows
from wirelake import connect_sync
from wirelake.config import FlowSettings
from wirelake.http.rows import Rows, read_rows
from wirelake.journal.contract import PARTITIONS
from wirelake.message import Limits


def logged(house: House, filter: str = "%23") -> list[dict[str, Any]]:
    """Every row of the log whose address matches."""
    return [
        row
        for partition in range(PARTITIONS)
        for row in house.get(f"/v1/log/{partition}?filter={filter}").table.to_pylist()
    ]


# One message


@pytest.mark.parametrize("dialect", ["kobold-2", "boson-text", "tmq-1.01"])
def test_a_subscriber_of_any_dialect_gets_what_is_published(house: House, dialect: str) -> None:
    with connect_sync(house.wire(dialect)) as client, client.subscribe("house/#") as messages:
        assert house.post("/v1/publish/house/kitchen", b"21.5").status == 202
        message = next(messages)
    assert (message.address, message.payload) == ("house/kitchen", b"21.5")


def test_fields_of_a_message_are_headers_of_the_request(house: House) -> None:
    with connect_sync(house.wire("kobold-2")) as client, client.subscribe("house/#") as messages:
        house.post(
            "/v1/publish/house/kitchen",
            b"21.5",
            Wirelake_Id="m1",
            Wirelake_Correlation_Id="c1",
            Wirelake_Priority="1",
            Wirelake_Ttl="5000",
            Wirelake_Client="thermometer",
            Wirelake_Header_Colour="rot",
        )
        message = next(messages)
    assert (message.id, message.correlation_id, message.source) == ("m1", "c1", "thermometer")
    assert (message.priority, message.ttl, dict(message.headers)) == (1, 5000, {"colour": "rot"})
    row = logged(house)[0]
    assert (row["id"], row["source"], row["dialect"]) == ("m1", "thermometer", "http")
    assert row["headers"] == [("colour", "rot")]


def test_what_was_accepted_is_there_after_a_restart(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        house.put("/v1/queues/jobs")
        assert house.post("/v1/publish/jobs", b"one").status == 202
        assert house.post("/v1/publish/topic", b"two").status == 202
    with House(tmp_path) as house:
        assert house.get("/v1/queues/jobs/messages").json["messages"][0]["payload"] == "one"
        assert [row["payload"] for row in logged(house, "topic")] == [b"two"]


def test_a_queue_takes_an_id_of_one_client_once(house: House) -> None:
    house.put("/v1/queues/jobs")
    for client, identity in [("a", "1"), ("a", "1"), ("b", "1"), ("a", "2")]:
        got = house.post("/v1/publish/jobs", b"x", Wirelake_Client=client, Wirelake_Id=identity)
        assert got.status == 202
    assert house.get("/v1/queues/jobs").json["messages"] == 3
    for _ in range(2):  # nobody knows whether these come from the same client
        house.post("/v1/publish/jobs", b"x", Wirelake_Id="1")
    assert house.get("/v1/queues/jobs").json["messages"] == 5


def test_a_full_queue_says_so(house: House) -> None:
    house.put("/v1/queues/jobs", b'{"max_messages": 1}')
    assert house.post("/v1/publish/jobs", b"x").status == 202
    got = house.post("/v1/publish/jobs", b"x")
    assert (got.status, got.json["error"]) == (503, "busy")
    assert house.post("/v1/publish/jobs", b"x", Wirelake_Header_Delay="soon").status in (400, 503)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("a/%23", {}),
        ("$events", {}),
        ("a/%2B/b", {}),
        ("%00", {}),
        ("%FF", {}),
        ("x" * 256, {}),
        ("a", {"Wirelake-Priority": "2"}),
        ("a", {"Wirelake-Ttl": "soon"}),
        ("a", {"Wirelake-Ttl": "-1"}),
        ("a", {"Wirelake-Id": "x" * 256}),
        ("a", {"Wirelake-Header-$token": "x"}),
        ("a", {"Wirelake-Header-x": "\xff"}),
        ("a?ttl=1", {}),
    ],
)
def test_what_cannot_be_published_is_refused(
    house: House, path: str, headers: dict[str, str]
) -> None:
    got = house.ask("POST", f"/v1/publish/{path}", b"x", headers)
    assert (got.status, got.json["error"]) == (400, "bad_request")
    assert logged(house) == []


def test_publishing_needs_the_right_to(guarded: House) -> None:
    assert guarded.post("/v1/publish/house/a", b"1", "sender").status == 202
    assert guarded.post("/v1/publish/other", b"1", "sender").status == 403
    assert guarded.post("/v1/publish/house/a", b"1", "reader").status == 403
    assert guarded.post("/v1/publish/house/a", b"1").status == 401
    assert guarded.post("/v1/publish", arrow(rows(("house/a", b"1"))), "sender").status == 202
    mixed = arrow(rows(("house/a", b"2"), ("other", b"2")))
    assert guarded.post("/v1/publish", mixed, "sender").status == 403
    assert guarded.post("/v1/publish", mixed, "reader").status == 403
    assert guarded.post("/v1/publish", mixed).status == 401
    seen = [
        row["payload"]
        for partition in range(PARTITIONS)
        for row in guarded.get(f"/v1/log/{partition}", "boss").table.to_pylist()
    ]
    assert seen == [b"1", b"1"]


# Rows


def test_rows_are_published_in_order_with_their_fields(house: House) -> None:
    batch = rows(
        *[("house/a", b"%d" % n) for n in range(5000)],
        id=[f"m{n}" for n in range(5000)],
        priority=pa.array([n % 2 for n in range(5000)], pa.int64()),
        headers=pa.array(
            [[("n", str(n)), ("$token", "hidden")] for n in range(5000)],
            pa.map_(pa.string(), pa.string()),
        ),
        op=["delete"] * 5000,
        source=["somebody else"] * 5000,
    )
    got = house.post("/v1/publish", arrow(batch))
    assert (got.status, got.json) == (202, {"published": 5000, "duplicate": False})
    found = logged(house, "house/a")
    assert [row["payload"] for row in found] == [b"%d" % n for n in range(5000)]
    row = found[4321]
    assert (row["id"], row["priority"], row["headers"]) == ("m4321", 1, [("n", "4321")])
    assert (row["op"], row["source"], row["dialect"]) == ("publish", "", "http")


def test_rows_come_in_any_type_that_fits(house: House) -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "payload": pa.array(["é", None], pa.large_string()),
            "address": pa.array(["house/a", "house/a"]).dictionary_encode(),
            "ttl": pa.array([None, 7], pa.uint8()),
            "id": pa.array([None, "x"]),
        }
    )
    assert house.post("/v1/publish", arrow(batch)).status == 202
    assert [(row["payload"], row["ttl"], row["id"]) for row in logged(house)] == [
        ("é".encode(), 0, ""),
        (b"", 7, "x"),
    ]


def test_rows_of_the_log_can_be_published_again(house: House) -> None:
    house.post("/v1/publish/house/a", b"1", Wirelake_Header_N="1")
    for partition in range(PARTITIONS):
        table = house.get(f"/v1/log/{partition}").table
        assert house.post("/v1/publish", arrow(table)).status == 202
    assert [row["payload"] for row in logged(house)] == [b"1", b"1"]


def test_rows_reach_subscribers_and_queues(house: House) -> None:
    house.put("/v1/queues/jobs")
    with connect_sync(house.wire("boson-binary")) as client, client.subscribe("house/#") as heard:
        mixed = [("house/a", b"1"), ("jobs", b"2"), ("house/b", b"3"), ("jobs", b"4")]
        assert house.post("/v1/publish", arrow(rows(*mixed))).json["published"] == 4
        assert [next(heard).payload, next(heard).payload] == [b"1", b"3"]
    shown = house.get("/v1/queues/jobs/messages").json["messages"]
    assert [one["payload"] for one in shown] == ["2", "4"]


def test_of_rows_that_do_not_fit_none_is_published(house: House) -> None:
    house.put("/v1/queues/jobs", b'{"max_messages": 2}')
    many = rows(("house/a", b"1"), ("jobs", b"2"), ("jobs", b"3"), ("jobs", b"4"))
    assert house.post("/v1/publish", arrow(many)).status == 503
    late = pa.array([[("delay", "soon")]], pa.map_(pa.string(), pa.string()))
    assert house.post("/v1/publish", arrow(rows(("jobs", b"1"), headers=late))).status == 400
    assert house.post("/v1/publish", arrow(rows(("a", b"1"), ("b/#", b"2")))).status == 400
    assert logged(house) == []
    assert house.get("/v1/queues/jobs").json["messages"] == 0


def test_no_rows_are_no_problem(house: House) -> None:
    assert house.post("/v1/publish", arrow(rows())).json["published"] == 0


# Producers


def test_a_batch_that_is_sent_again_is_not_published_again(tmp_path: Path) -> None:
    # decision 55
    body = arrow(rows(("house/a", b"1"), ("house/b", b"2")))
    with House(tmp_path) as house:
        house.put("/v1/queues/house/b")
        for expected in (False, True, True):
            got = house.post("/v1/publish?producer=query&sequence=7", body)
            assert (got.status, got.json["duplicate"]) == (202, expected)
    with House(tmp_path) as house:
        assert house.post("/v1/publish?producer=query&sequence=7", body).json["duplicate"]
        assert not house.post("/v1/publish?producer=query&sequence=8", body).json["duplicate"]
        assert not house.post("/v1/publish?producer=other&sequence=7", body).json["duplicate"]
        assert len(logged(house, "house/a")) == 3
        assert house.get("/v1/queues/house/b").json["messages"] == 3


def test_a_producer_of_one_token_is_not_that_of_another(guarded: House) -> None:
    path = "/v1/publish?producer=q&sequence=1"
    assert not guarded.post(path, arrow(rows()), "sender").json["duplicate"]
    body = arrow(rows(("house/a", b"1")))
    assert guarded.post(path, body, "boss").json == {"published": 1, "duplicate": False}
    assert guarded.post(path, body, "sender").json["duplicate"]


def test_two_who_send_the_same_batch_at_once_publish_it_once(house: House) -> None:
    body = arrow(rows(*[("house/a", b"%d" % n) for n in range(20_000)]))
    with ThreadPoolExecutor(4) as pool:
        path = "/v1/publish?producer=q&sequence=1"
        answers = [one.json for one in pool.map(lambda _: house.post(path, body), range(4))]
    assert Counter(one["duplicate"] for one in answers) == {False: 1, True: 3}
    assert len(logged(house, "house/a")) == 20_000


def test_a_batch_that_was_cut_off_by_a_crash_is_completed(tmp_path: Path) -> None:
    some = [(f"house/{n % 7}", b"%d" % n) for n in range(5000)]
    some += [("jobs", b"%d" % n) for n in range(100)]
    body = arrow(rows(*some))
    with House(tmp_path) as house:
        house.put("/v1/queues/jobs")
        house.post("/v1/publish?producer=q&sequence=1", arrow(rows(("house/1", b"before"))))
        publisher = house.http._api._publisher  # type: ignore[union-attr]  # to stop in the middle

        async def die_in_the_middle(whole: Rows) -> None:
            at = [one.next for one in house.engine.positions()]
            publisher._ledger.begin("everyone/q", "2", at)
            await publisher._gate.durable(house.node.engine.failures)
            part = Rows(whole.batches[-1:], {"jobs": 100}, {"jobs": 500})
            jobs = part.batches[0].slice(part.batches[0].num_rows - 40)
            first = Rows([*whole.batches[:2], jobs], whole.counts, whole.sizes)
            rights = house.node.clients.rights_of_strangers
            await publisher._publish(rights, first, "crash", "$producer/everyone/q", "2-")

        house.run(die_in_the_middle(read_rows(body, Limits())))
        kept = len(logged(house, "house/%23"))
        assert 4000 < kept < 5001
    with House(tmp_path) as house:
        assert not house.post("/v1/publish?producer=q&sequence=2", body).json["duplicate"]
        assert house.post("/v1/publish?producer=q&sequence=2", body).json["duplicate"]
        found = Counter(row["payload"] for row in logged(house, "house/%23"))
        assert found == {b"before": 1, **{b"%d" % n: 1 for n in range(5000)}}


def test_ids_of_a_batch_keep_queues_from_taking_it_twice(tmp_path: Path) -> None:
    body = arrow(rows(*[("jobs", b"%d" % n) for n in range(3000)]))
    with House(tmp_path) as house:
        house.put("/v1/queues/jobs")
        publisher = house.http._api._publisher  # type: ignore[union-attr]  # to stop in the middle
        whole = read_rows(body, Limits())

        async def die_in_the_middle() -> None:
            publisher._ledger.begin("everyone/q", "1", [0] * house.engine.partitions)
            first = Rows(whole.batches[:1], whole.counts, whole.sizes)
            rights = house.node.clients.rights_of_strangers
            await publisher._publish(rights, first, "crash", "$producer/everyone/q", "1-")

        house.run(die_in_the_middle())
    with House(tmp_path) as house:
        assert house.post("/v1/publish?producer=q&sequence=1", body).status == 202
        assert house.get("/v1/queues/jobs").json["messages"] == 3000


def test_a_batch_that_was_refused_can_be_sent_again(house: House) -> None:
    house.put("/v1/queues/jobs", b'{"max_messages": 1}')
    body = arrow(rows(("jobs", b"1"), ("jobs", b"2")))
    assert house.post("/v1/publish?producer=q&sequence=1", body).status == 503
    house.put("/v1/queues/jobs", b'{"max_messages": 2}')
    assert not house.post("/v1/publish?producer=q&sequence=1", body).json["duplicate"]
    assert house.get("/v1/queues/jobs").json["messages"] == 2


@pytest.mark.parametrize(
    "query",
    ["producer=q", "sequence=1", "producer=%23&sequence=1", f"producer=q&sequence={'x' * 240}",
     f"producer={'x' * 255}&sequence=1", "producer=%00&sequence=1"],
)  # fmt: skip
def test_a_producer_has_a_name_and_a_sequence(house: House, query: str) -> None:
    assert house.post(f"/v1/publish?{query}", arrow(rows(("a", b"1")))).status == 400
    assert logged(house) == []


# Events


def events_of(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    """The messages of an event stream."""
    name = ""
    while line := response.readline():
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            yield {"event": name, **json.loads(line[6:])}
            name = ""


def test_events_tell_what_is_published(house: House) -> None:
    connection, response = house.open("GET", "/v1/events?filter=house/%23&filter=garden")
    assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
    events = events_of(response)
    house.post("/v1/publish/house/a", "grün".encode(), Wirelake_Id="m1", Wirelake_Header_Code="7")
    house.post("/v1/publish/other", b"unheard")
    with connect_sync(house.wire("mfp"), client_id="gnome") as client:
        client.publish("garden", b"\xff\n\ndata: x", ack=True)
    first, second = next(events), next(events)
    assert (first["address"], first["payload"], first["id"]) == ("house/a", "grün", "m1")
    assert first["headers"] == {"code": "7"}
    assert (second["address"], second["base64"]) == ("garden", "/woKZGF0YTogeA==")
    response.close()
    connection.close()


def test_events_tell_the_place_in_the_log_whatever_came_between(house: House) -> None:
    house.put("/v1/queues/jobs")
    connection, response = house.open("GET", "/v1/events?filter=a/%23&filter=b/%2B")
    events = events_of(response)
    with (
        connect_sync(house.wire("kobold-3")) as client,
        connect_sync(house.wire("kobold-3")) as hearer,
        hearer.subscribe("a/1"),
    ):
        client.store.put("k", b"1")  # rows that nobody hears of
        client.queue("jobs").put(b"1")
        client.publish_many([(f"a/{n % 7}", b"%d" % n) for n in range(50)])
        client.publish_many([(f"{'abc'[n % 3]}/{n}", b"%d" % n) for n in range(60)], ack=True)
    told = [next(events) for _ in range(90)]
    connection.close()
    rows = house.get("/v1/rows?limit=1000").json["rows"]
    kept = {(row["partition"], row["offset"]): row for row in rows}
    assert len({one["partition"] for one in told}) > 1
    for one in told:
        row = kept[one["partition"], one["offset"]]
        seen = [one[name] for name in ("address", "payload", "time", "dialect")]
        assert seen == [row[name] for name in ("address", "payload", "time", "dialect")]


def test_events_that_are_not_captured_have_no_offset(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        house.call(lambda: setattr(house.node.capture, "exclude", ("private/#",)))
        connection, response = house.open("GET", "/v1/events?filter=%23")
        events = events_of(response)
        house.post("/v1/publish/private/a", b"1")
        house.post("/v1/publish/public/a", b"1")
        first, second = next(events), next(events)
        connection.close()
    assert "offset" not in first
    assert second["offset"] == 0


def test_events_end_with_the_broker_and_with_the_client(house: House) -> None:
    connection, response = house.open("GET", "/v1/events?filter=%23")
    assert house.call(lambda: len(house.node.sessions)) == 1
    response.close()
    connection.close()
    with connect_sync(house.wire("kobold-2")) as client:
        while house.call(lambda: len(house.node.sessions)) > 1:
            client.ping()
    connection, response = house.open("GET", "/v1/events?filter=%23")
    house.run(house.http.stop())
    assert [one["event"] for one in events_of(response)] == ["end"]
    connection.close()


@pytest.mark.parametrize("query", ["", "?filter=", "?filter=a/%23/b", "?filter=%FF"])
def test_events_of_nothing_are_refused(house: House, query: str) -> None:
    assert house.get(f"/v1/events{query}").status == 400
    assert house.call(lambda: len(house.node.sessions)) == 0


def test_a_queue_is_not_consumed_by_looking(house: House) -> None:
    # decision 56
    house.put("/v1/queues/jobs")
    house.post("/v1/publish/jobs", b"x")
    assert house.get("/v1/events?filter=jobs").status == 409
    assert house.get("/v1/queues/jobs").json["ready"] == 1


def test_events_need_the_right_to_subscribe(guarded: House) -> None:
    assert guarded.get("/v1/events?filter=house/a").status == 401
    assert guarded.get("/v1/events?filter=house/a", "sender").status == 403
    assert guarded.get("/v1/events?filter=%23", "reader").status == 403
    assert guarded.get("/v1/events?filter=$events", "keeper").status == 403
    connection, response = guarded.open("GET", "/v1/events?filter=house/a", token="reader")
    assert response.status == 200
    response.close()
    connection.close()


def test_who_does_not_read_events_is_cut_off_and_others_go_on(tmp_path: Path) -> None:
    flow = FlowSettings(outbox=64 << 10, patience=0.2)
    with House(tmp_path, flow=flow, tokens=TOKENS) as house:
        connection, response = house.open("GET", "/v1/events?filter=house/%23", token="boss")
        body = arrow(rows(*[("house/big", b"x" * 20_000)] * 1000))
        while not house.call(lambda: house.node.vitals.counters["slow_consumers"]):
            assert house.post("/v1/publish", body, "boss").status == 202
        assert house.call(lambda: len(house.node.sessions)) == 0
        waiting = house.get("/metrics", "boss").body.decode()
        assert "wirelake_outbox_bytes 0.0" in waiting
        response.close()
        connection.close()


def test_a_publisher_that_is_held_back_is_answered_later(tmp_path: Path) -> None:
    flow = FlowSettings(outbox=64 << 10, patience=1000, policies={"#": "pause"})
    with House(tmp_path, flow=flow) as house:
        connection, response = house.open("GET", "/v1/events?filter=house/%23")
        body = arrow(rows(*[("house/big", b"x" * 20_000)] * 1000))
        answers: list[int] = []

        def publish() -> None:
            answers.extend(house.post("/v1/publish", body).status for _ in range(3))

        writer = threading.Thread(target=publish)
        writer.start()
        while not any(one["waits"] for one in house.get("/v1/connections").json["connections"]):
            house.run(asyncio.sleep(0))
        events = events_of(response)
        got = [next(events)["address"] for _ in range(3000)]
        writer.join()
        assert answers == [202] * 3
        assert got == ["house/big"] * 3000
        response.close()
        connection.close()
