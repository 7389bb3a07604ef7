"""The log by HTTP: exactly the rows that were asked for, and stored batches as they are."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from array import array
from collections.abc import Iterator
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.http.house import House, arrow, rows
from wirelake import connect_sync
from wirelake.address import matches
from wirelake.config import CaptureSettings, Settings, WebSettings
from wirelake.errors import EngineError
from wirelake.http import log
from wirelake.http.log import find_time, pattern
from wirelake.journal.contract import PARTITIONS, Batch
from wirelake.journal.engine import Engine
from wirelake.journal.files import FilesJournal
from wirelake.journal.retention import Rule
from wirelake.message import Message
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA


def fill(house: House, batches: int = 5, size: int = 40) -> None:
    """Publish batches, each a commit of its own."""
    for batch in range(batches):
        some = [(f"house/{n % 10}", f"{batch}.{n}".encode()) for n in range(size)]
        assert house.post("/v1/publish", arrow(rows(*some))).status == 202


def ends(house: House) -> list[int]:
    """The next offset of every partition."""
    return [one["next"] for one in house.get("/v1/log").json["partitions"]]


def largest(house: House) -> tuple[int, int]:
    """The partition with the most rows, and how many."""
    found = ends(house)
    return found.index(max(found)), max(found)


def test_everything_that_was_published_is_there(house: House) -> None:
    fill(house)
    tables = [house.get(f"/v1/log/{partition}").table for partition in range(PARTITIONS)]
    payloads = [p for table in tables for p in table["payload"].to_pylist()]
    assert sorted(payloads) == sorted(f"{b}.{n}".encode() for b in range(5) for n in range(40))
    for partition, table in enumerate(tables):
        assert table["offset"].to_pylist() == list(range(table.num_rows))
        assert set(table["partition"].to_pylist()) <= {partition}
        assert set(table["dialect"].to_pylist()) <= {"http"}
        assert table.schema.names == SCHEMA.names


def test_any_range_gives_exactly_its_rows(house: House) -> None:
    fill(house, batches=3, size=20)
    partition, end = largest(house)
    whole = house.get(f"/v1/log/{partition}").table["payload"].to_pylist()
    for start in range(end + 1):
        for stop in range(start, end + 1):
            got = house.get(f"/v1/log/{partition}?from={start}&to={stop}")
            assert got.table["payload"].to_pylist() == whole[start:stop]
            assert got.headers["wirelake-from"] == str(start)
            assert got.headers["wirelake-next"] == str(stop)


def test_whole_batches_are_sent_as_they_are_stored(house: House) -> None:
    fill(house)
    partition, end = largest(house)
    stored = [bytes(one.ipc) for one in house.engine.read(partition, 0, end)]
    assert len(stored) >= 5
    sent = house.get(f"/v1/log/{partition}").body
    assert b"".join(stored) in sent
    second = len(stored[0])
    middle = house.get(f"/v1/log/{partition}?from=1").body
    assert b"".join(stored)[second:] in middle
    assert stored[0] not in middle


def test_a_filter_and_columns_select(house: House) -> None:
    fill(house)
    for partition in range(PARTITIONS):
        whole = house.get(f"/v1/log/{partition}").table
        path = f"/v1/log/{partition}?filter=house/3&filter=house/7&columns=payload,address"
        got = house.get(path).table
        wanted = [
            (row["payload"], row["address"])
            for row in whole.to_pylist()
            if row["address"] in ("house/3", "house/7")
        ]
        assert got.schema.names == ["payload", "address"]
        assert [tuple(row.values()) for row in got.to_pylist()] == wanted


@pytest.mark.parametrize(
    ("pattern", "wanted"),
    [
        ("house/[37]", {"house/3", "house/7"}),
        ("house/3|house/7", {"house/3", "house/7"}),
        ("house", set[str]()),  # not a part of an address
        ("(?i)HOUSE/3", {"house/3"}),
        ("ouse/3", set[str]()),
        ("nothing/.*", set[str]()),
    ],
)
def test_a_pattern_matches_whole_addresses(house: House, pattern: str, wanted: set[str]) -> None:
    fill(house)
    found: set[str] = set()
    for partition in range(PARTITIONS):
        got = house.get(f"/v1/log/{partition}?pattern={quote(pattern)}").table
        whole = house.get(f"/v1/log/{partition}").table["address"].to_pylist()
        assert got.num_rows == sum(address in wanted for address in whole)
        found |= set(got["address"].to_pylist())
    assert found == wanted


def test_a_pattern_and_a_filter_both_hold(house: House) -> None:
    fill(house)
    found: set[str] = set()
    for partition in range(PARTITIONS):
        path = f"/v1/log/{partition}?pattern=house/.&filter=house/3&filter=other"
        found |= set(house.get(path).table["address"].to_pylist())
    assert found == {"house/3"}


def test_a_pattern_that_takes_other_engines_ages_takes_no_time(house: House) -> None:
    address = "a" * 60 + "!"
    assert house.post("/v1/publish", arrow(rows((address, b"x")))).status == 202
    for partition in range(PARTITIONS):
        assert house.get(f"/v1/log/{partition}?pattern=(a%2B)%2B(a%2B)%2B").table.num_rows == 0


def test_a_pattern_shows_only_what_the_rights_do(guarded: House) -> None:
    # decision 71
    guarded.post("/v1/publish/house/a", b"1", token="sender")
    guarded.post("/v1/publish/other", b"2", token="boss")
    for token, wanted in (("reader", {"house/a"}), ("keeper", {"house/a", "other"})):
        found: set[str] = set()
        for partition in range(PARTITIONS):
            got = guarded.get(f"/v1/log/{partition}?pattern=.*", token)
            found |= set(got.table["address"].to_pylist())
        assert found == wanted
    assert guarded.get("/v1/log/0?pattern=.*", "sender").status == 403


def test_a_filter_finds_few_rows_in_many_batches_as_one_batch(house: House) -> None:
    fill(house, batches=20, size=10)
    found = []
    for partition in range(PARTITIONS):
        with pa.ipc.open_stream(house.get(f"/v1/log/{partition}?filter=house/3").body) as stream:
            found += [batch for batch in stream if batch.num_rows]
    assert [batch.num_rows for batch in found] == [20]
    assert found[0].column("address").dictionary.to_pylist() == ["house/3"]


def test_cut_and_whole_batches_mix_in_one_stream_with_the_right_names(house: House) -> None:
    for n in range(6):  # every batch has another dictionary
        some = [(f"house/{n}", b"a"), (f"house/{n + 1}", b"b"), (f"other/{n}", b"c")]
        house.post("/v1/publish", arrow(rows(*some)))
    for partition in range(PARTITIONS):
        whole = house.get(f"/v1/log/{partition}").table
        matched = [one for one in whole.to_pylist() if one["address"].startswith("house/")]
        assert house.get(f"/v1/log/{partition}?filter=house/%23").table.to_pylist() == matched
        if whole.num_rows > 2:
            part = house.get(f"/v1/log/{partition}?from=1&to={whole.num_rows - 1}").table
            assert part.to_pylist() == whole.to_pylist()[1:-1]


def test_a_limit_counts_the_rows_that_are_sent(house: House) -> None:
    fill(house)
    partition, end = largest(house)
    got = house.get(f"/v1/log/{partition}?limit=7")
    assert (got.table.num_rows, got.headers["wirelake-next"]) == (7, "7")
    address = quote(house.get(f"/v1/log/{partition}").table["address"][0].as_py())
    got = house.get(f"/v1/log/{partition}?limit=6&filter={address}")
    assert got.table.num_rows == 6
    assert "wirelake-next" not in got.headers
    assert house.get(f"/v1/log/{partition}?limit=0").table.num_rows == 0
    assert house.get(f"/v1/log/{partition}?limit={end + 5}").table.num_rows == end


@pytest.mark.parametrize("query", ["from=999", "to=999", "from=999&to=999"])
def test_a_range_outside_the_log_is_told_what_there_is(house: House, query: str) -> None:
    fill(house, batches=1)
    partition, end = largest(house)
    got = house.get(f"/v1/log/{partition}?{query}")
    assert got.status == 416
    assert (got.json["first"], got.json["next"]) == (0, end)
    assert got.json["log"] == house.get("/v1/log").json["log"]


def test_rows_of_one_log_are_not_taken_for_another_s(house: House) -> None:
    # decision 61
    fill(house, batches=1)
    partition, end = largest(house)
    log = house.get("/v1/log").json["log"]
    assert house.get(f"/v1/log/{partition}?log={log}").table.num_rows == end
    got = house.get(f"/v1/log/{partition}?log=0123456789abcdef")
    assert (got.status, got.json["log"]) == (416, log)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/log/4", 404),
        ("/v1/log/99999999999999999999", 400),
        ("/v1/log/-1", 400),
        ("/v1/log/x", 400),
        ("/v1/log/0?from=-1", 400),
        ("/v1/log/0?from=%C2%B2", 400),
        ("/v1/log/0?from=0&from=0", 400),
        ("/v1/log/0?columns=nothing", 400),
        ("/v1/log/0?columns=offset,offset", 400),
        ("/v1/log/0?columns=", 400),
        ("/v1/log/0?filter=a/%23/b", 400),
        ("/v1/log/0?filter=%FF", 400),
        ("/v1/log/0?time_from=yesterday", 400),
        ("/v1/log/0?time_from=1&from=0", 400),
        ("/v1/log/0?limit=x", 400),
        ("/v1/log/0?unknown=1", 400),
        ("/v1/log?time=x", 400),
        ("/v1/log/0?pattern=(", 400),
        ("/v1/log/0?pattern=a)|(b", 400),
        ("/v1/log/0?pattern=(?=a)", 400),  # not in RE2
        ("/v1/log?pattern=(", 400),
        ("/v1/log?filter=a/%23/b", 400),
        ("/v1/log/0?pattern=" + "a" * 5000, 413),
    ],
)
def test_a_question_that_makes_no_sense_is_a_clear_error(
    house: House, path: str, status: int
) -> None:
    got = house.get(path)
    assert got.status == status
    assert got.json["text"]


def test_a_range_that_ends_before_it_begins_is_refused(house: House) -> None:
    fill(house, batches=1)
    partition, end = largest(house)
    assert house.get(f"/v1/log/{partition}?from={end}&to=0").status == 400


def test_rows_are_found_by_their_time(house: House) -> None:
    fill(house)
    partition, end = largest(house)
    times = [int(one.timestamp() * 1e6) for one in _times(house, partition)]
    for moment in sorted({*times, times[0] - 1, times[-1] + 1}):
        first = next((n for n, one in enumerate(times) if one >= moment), end)
        got = house.get(f"/v1/log/{partition}?time_from={moment}")
        assert got.headers["wirelake-from"] == str(first)
        found = house.get(f"/v1/log?time={moment}").json["partitions"]
        assert found[partition]["at"] == first
    got = house.get(f"/v1/log/{partition}?time_from=1999-12-31T23:59:59Z")
    assert got.table.num_rows == end


def _times(house: House, partition: int) -> list[pa.Scalar]:
    return house.get(f"/v1/log/{partition}").table["timestamp"].to_pylist()  # type: ignore[no-any-return]  # pyarrow has no types


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.integers(-1, 51))
def test_a_search_by_time_finds_the_first_row_from_then_on(steps: list[int], moment: int) -> None:
    engine = Engine.in_memory(partitions=1)
    table = FrameTable(4)
    for at in sorted(steps):
        table.fill([Message(address="a"), Message(address="b")])
        engine.append(table, array("i", [0, 1]), at, b"")
    times = [at for at in sorted(steps) for _ in range(2)]
    wanted = next((n for n, at in enumerate(times) if at >= moment), len(times))
    assert find_time(engine, engine.positions()[0], moment) == wanted


LEVELS = st.text("a+#$é.*\\[(|^", min_size=0, max_size=3)
ADDRESSES = st.lists(LEVELS, min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(LEVELS | st.sampled_from(["+", "#", "a"]), min_size=1, max_size=4).map("/".join)


@given(FILTERS, st.lists(ADDRESSES, max_size=8))
def test_a_filter_on_the_log_matches_what_it_matches_on_the_wire(
    filter: str, addresses: list[str]
) -> None:
    levels = filter.split("/")
    if any(len(level) > 1 and set(level) & set("+#") for level in levels) or "#" in levels[:-1]:
        return  # not a filter
    found = pa.compute.match_substring_regex(pa.array(addresses, pa.string()), pattern([filter]))
    assert found.to_pylist() == [matches(filter, address) for address in addresses]


def test_a_long_search_for_nothing_is_not_silent(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "SILENCE", -1.0)
    for _ in range(5):  # of more addresses than are noted beside a batch: each is looked at
        some = [(f"house/{n}", b"x") for n in range(1000)]
        assert house.post("/v1/publish", arrow(rows(*some))).status == 202
    partition, end = largest(house)
    for query in ("filter=nothing", "filter=nothing&columns=payload"):
        with pa.ipc.open_stream(house.get(f"/v1/log/{partition}?{query}").body) as stream:
            assert [batch.num_rows for batch in stream] == [0] * 5
    assert house.get(f"/v1/log/{partition}").table.num_rows == end


def test_batches_without_the_address_are_not_even_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(house)
    partition, _ = largest(house)
    seen: list[Batch] = []
    read = house.engine.read

    def watched(*arguments: int, **options: Any) -> Iterator[Batch]:
        for batch in read(*arguments, **options):
            seen.append(batch)
            yield batch

    monkeypatch.setattr(house.engine, "read", watched)
    assert house.get(f"/v1/log/{partition}?filter=nothing").table.num_rows == 0
    assert house.get(f"/v1/log/{partition}?pattern=nothing").table.num_rows == 0
    assert not seen
    assert house.get(f"/v1/log/{partition}?filter=house/%2B").table.num_rows
    assert len(seen) == 5


def test_rows_can_be_read_while_others_are_written(house: House) -> None:
    stopped = threading.Event()

    def write() -> None:
        with connect_sync(house.wire("kobold-2")) as client:
            n = 0
            while not stopped.is_set():
                client.publish("house/busy", str(n).encode(), ack=n % 50 == 0)
                n += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen: list[bytes] = []
        at = 0
        partition = None
        while len(seen) < 2000:
            found = ends(house)
            if partition is None:
                partition = next((n for n, end in enumerate(found) if end), None)
                continue
            got = house.get(f"/v1/log/{partition}?from={at}")
            seen += got.table["payload"].to_pylist()
            at = int(got.headers["wirelake-next"])
    finally:
        stopped.set()
        writer.join()
    assert seen == [str(n).encode() for n in range(len(seen))]


def test_holes_that_retention_left_are_passed_over(tmp_path: Path) -> None:
    with House(tmp_path, capture=CaptureSettings(partitions=1)) as house:
        for n in range(10):
            some = [("house/kept", b"k%d" % n), ("house/gone", b"g%d" % n)] * 5
            house.post("/v1/publish", arrow(rows(*some)))
        files = house.engine.journal
        assert isinstance(files, FilesJournal)
        files._tail.segment_bytes = 1  # the next write begins a segment, and the old one is tidied
        house.post("/v1/publish/house/kept", b"last")
        house.post("/v1/publish/house/gone", b"last")
        house.engine.retain([Rule("house/gone", max_age=1.0)])
        files.tidy(time.time() + 1000)
        first, end = (
            house.get("/v1/log").json["partitions"][0][name] for name in ("first", "next")
        )
        whole = house.get("/v1/log/0").table
        offsets = whole["offset"].to_pylist()
        assert whole["payload"].to_pylist().count(b"k9") == 5
        assert b"g3" not in whole["payload"].to_pylist()
        assert len(offsets) < end - first
        for start in range(first, end):
            for stop in (start, start + 1, min(end, start + 7), end):
                got = house.get(f"/v1/log/0?from={start}&to={stop}").table["offset"].to_pylist()
                assert got == [n for n in offsets if start <= n < stop]


def test_who_stops_reading_ends_the_reading(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    big = rows(*[("house/big", b"x" * 10_000)] * 3000)
    for _ in range(3):
        assert house.post("/v1/publish", arrow(big)).status == 202
    partition, _ = largest(house)
    taken = threading.Event()
    closed = threading.Event()
    read = house.engine.read

    def watched(*arguments: int, **options: Any) -> Iterator[Batch]:
        try:
            for batch in read(*arguments, **options):
                taken.set()
                yield batch
        finally:
            closed.set()

    monkeypatch.setattr(house.engine, "read", watched)
    connection, response = house.open("GET", f"/v1/log/{partition}")
    response.read(1000)
    assert taken.wait(30)
    assert not closed.is_set()
    response.close()
    connection.close()
    assert closed.wait(30)


def test_a_log_that_breaks_while_it_is_sent_does_not_look_whole(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(house)
    partition, _ = largest(house)
    read = house.engine.read

    def broken(*arguments: int, **options: Any) -> Iterator[Batch]:
        yield from list(read(*arguments, **options))[:2]
        raise EngineError("the disk is gone")

    monkeypatch.setattr(house.engine, "read", broken)
    with pytest.raises((IncompleteRead, ConnectionError)):
        house.get(f"/v1/log/{partition}")


def test_rights_show_what_a_subscriber_could_have_seen(guarded: House) -> None:
    guarded.put("/v1/store/house/key", b"secret", token="boss")
    guarded.post("/v1/publish/house/a", b"1", token="sender")
    guarded.post("/v1/publish/other", b"2", token="boss")
    ops: dict[str, set[tuple[str, str]]] = {}
    for token, query in (
        ("boss", ""),
        ("reader", "?filter=house/%23"),
        ("keeper", "?filter=house/%23"),
        ("keeper", ""),
    ):
        seen = ops.setdefault(token + query, set())
        for partition in range(PARTITIONS):
            got = guarded.get(f"/v1/log/{partition}{query}", token)
            assert got.status == 200, (token, got.body)
            table = got.table
            seen |= set(zip(table["op"].to_pylist(), table["address"].to_pylist(), strict=True))
    assert ops == {
        "boss": {("publish", "house/a"), ("publish", "other"), ("set", "house/key")},
        "reader?filter=house/%23": {("publish", "house/a")},
        "keeper?filter=house/%23": {("publish", "house/a"), ("set", "house/key")},
        "keeper": {("publish", "house/a"), ("publish", "other")},
    }


@pytest.mark.parametrize(
    ("token", "path", "status"),
    [
        ("", "/v1/log/0", 401),
        ("nobody", "/v1/log/0", 401),
        ("reader", "/v1/log/0", 403),
        ("reader", "/v1/log/0?filter=other", 403),
        ("sender", "/v1/log/0?filter=house/a", 403),
        ("sender", "/v1/log", 403),
        ("reader", "/v1/log", 200),
        ("reader", "/v1/log?filter=house/%23", 200),
        ("reader", "/v1/log?filter=%23", 403),
        ("reader", "/v1/log?filter=house/a&filter=other", 403),
        ("reader", "/v1/log?pattern=.*", 200),
    ],
)
def test_the_log_is_for_those_who_may_read(
    guarded: House, token: str, path: str, status: int
) -> None:
    assert guarded.get(path, token).status == status


def test_a_broker_without_a_log_has_no_partitions() -> None:
    with House(None, engine=Engine.in_memory()) as house:
        assert house.get("/v1/log").json == {"partitions": [], "log": ""}
        assert house.get("/v1/log/0").status == 404


def test_a_query_tells_how_far_it_is_and_the_lag_is_shown(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        fill(house)
        partition, end = largest(house)
        total = sum(ends(house))
        progress = json.dumps({str(partition): end - 3}).encode()
        assert house.post("/v1/progress/landing", progress).json["lag"] == total - (end - 3)
        shown = house.get("/v1/progress").json["queries"][0]
        assert (shown["query"], shown["lags"][str(partition)]) == ("landing", 3)
        line = f'wirelake_query_lag{{partition="{partition}",query="landing"}} 3.0'
        assert line in house.get("/metrics").body.decode()
    with House(tmp_path) as house:
        assert house.get("/v1/progress").json["queries"][0]["query"] == "landing"
        assert house.delete("/v1/progress/landing").status == 204
        assert house.delete("/v1/progress/landing").status == 404
    with House(tmp_path) as house:
        assert house.get("/v1/progress").json["queries"] == []


def test_the_query_that_was_silent_the_longest_goes(house: House) -> None:
    house.http.configure(Settings(web=WebSettings(queries=2)))
    for name in ("first", "second", "first", "third"):
        assert house.post(f"/v1/progress/{name}", b"{}").status == 200
    known = house.get("/v1/progress").json["queries"]
    assert sorted(one["query"] for one in known) == ["first", "third"]


@pytest.mark.parametrize("body", [b"", b"[]", b'{"9": 1}', b'{"0": -1}', b'{"0": 1}', b'{"x": 0}'])
def test_progress_that_cannot_be_is_refused(house: House, body: bytes) -> None:
    assert house.post("/v1/progress/q", body).status == 400
    assert house.get("/v1/progress").json == {"queries": []}


def test_reading_the_log_does_not_stop_the_broker(house: House) -> None:
    big = rows(*[("house/big", b"x" * 10_000)] * 3000)
    house.post("/v1/publish", arrow(big))
    partition, _ = largest(house)
    connection, response = house.open("GET", f"/v1/log/{partition}")  # and nobody reads it
    with connect_sync(house.wire("kobold-3")) as client:
        for n in range(100):
            client.publish("house/small", str(n).encode(), ack=True)
    response.close()
    connection.close()
    assert house.run(asyncio.sleep(0, "still there")) == "still there"
