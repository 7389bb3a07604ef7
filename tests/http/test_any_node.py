"""HTTP on any node answers for the whole cluster: three nodes on a real nats-server."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

import wirelake
from tests.cluster.processes import Nodes, until
from tests.cluster.servers import Servers, binary
from tests.http.house import Answer, arrow, rows
from tests.http.test_cluster import ask
from wirelake.config import hash_token
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Range

TOKENS = f"""
[[tokens]]
name = "boss"
hash = "{hash_token("boss")}"
publish = ["#"]
subscribe = ["#"]
store = ["#"]
admin = true

[[tokens]]
name = "reader"
hash = "{hash_token("reader")}"
subscribe = ["house/#"]
store = ["house/#"]
"""
NAMES = ("one", "two", "three")
#: Addresses, queues and keys of which every partition has some.
MANY = 24


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes that ask for tokens, and a row for each of many addresses."""
    if binary() is None:
        pytest.skip("nats-server is not installed")
    folder = tmp_path_factory.mktemp("any")
    (folder / "nats").mkdir()
    with Servers(folder / "nats") as servers, Nodes(folder, servers.urls, "any", TOKENS) as made:
        made.start(*NAMES)
        until(lambda: is_settled(made), "not all partitions are served")
        for k in range(MANY):
            publish(made, k, f"house/{k}")
        yield made


def at(nodes: Nodes, k: int, method: str, path: str, token: str = "boss", **more: str) -> Answer:
    """Ask the k-th node."""
    return ask(nodes.all[NAMES[k % 3]], method, path, token, **more)


def publish(nodes: Nodes, k: int, address: str) -> None:
    """Publish a row through the k-th node, once owners are settled."""
    path = f"/v1/publish/{address}"
    until(lambda: at(nodes, k, "POST", path, body="x").status == 202, f"{path} is refused")


def is_settled(nodes: Nodes) -> bool:
    """Does each node know of all, and own some partitions?"""
    told = [at(nodes, k, "GET", "/v1/cluster").json for k in range(3)]
    return all(
        len(one["nodes"]) == 3
        and all(node["owned"] for node in one["nodes"])
        and all(partition["served"] for partition in one["partitions"])
        for one in told
    )


def told(nodes: Nodes, k: int, path: str, token: str = "boss") -> Any:
    """What a node tells, once no node is busy or slow."""
    ends = time.monotonic() + 120
    while True:
        got = at(nodes, k, "GET", path, token)
        if got.status not in (503, 504) or time.monotonic() > ends:
            break
        time.sleep(0.05)
    assert got.status == 200, got.body
    return got.json


def read(nodes: Nodes, k: int, partition: int, query: str = "") -> tuple[pa.Table, int]:
    """Rows of a partition by asking the k-th node, and by how many redirects."""
    for hops in range(3):
        got = at(nodes, k, "GET", f"/v1/log/{partition}{query}")
        if got.status != 307:
            assert got.status == 200, got.body
            return got.table, hops
        urls = [node.http for node in nodes.all.values()]
        (k,) = (n for n, url in enumerate(urls) if got.headers["location"].startswith(url + "/"))
    raise AssertionError("it is redirected for ever")


# The log


def test_every_node_tells_where_all_partitions_begin_and_end(nodes: Nodes) -> None:
    urls = {node.http for node in nodes.all.values()}
    answers = [told(nodes, k, "/v1/log") for k in range(3)]
    for one in answers:
        assert [part["partition"] for part in one["partitions"]] == list(range(6))
        assert sum(part["next"] for part in one["partitions"]) >= MANY
        assert all(urls.issuperset(part["nodes"]) for part in one["partitions"])
        assert all(len(part["nodes"]) >= 1 for part in one["partitions"])
    assert len({one["log"] for one in answers}) == 1
    ends = [[part["next"] for part in one["partitions"]] for one in answers]
    assert ends[0] == ends[1] == ends[2]
    owners = {part["nodes"][0] for part in answers[0]["partitions"]}
    assert owners == urls


def test_times_are_found_in_partitions_of_other_nodes(nodes: Nodes) -> None:
    for k in range(3):
        parts = told(nodes, k, "/v1/log?time=0")["partitions"]
        assert [part["at"] for part in parts] == [part["first"] for part in parts]
        late = told(nodes, k, f"/v1/log?time={10**17}")["partitions"]
        assert [part["at"] for part in late] == [part["next"] for part in late]


def test_all_rows_are_read_through_any_node_once_and_without_holes(nodes: Nodes) -> None:
    """decision 96"""
    everything = []
    for k in range(3):
        found: Counter[str] = Counter()
        for part in told(nodes, k, "/v1/log")["partitions"]:
            table, _ = read(nodes, k, part["partition"])
            assert table["offset"].to_pylist() == list(range(part["first"], part["next"]))
            found.update(table["address"].to_pylist())
        everything.append({name: n for name, n in found.items() if name.startswith("house/")})
    assert everything[0] == everything[1] == everything[2]
    assert set(everything[0]) == {f"house/{k}" for k in range(MANY)}


def test_a_standby_gives_rows_that_it_has_and_sends_away_for_others(nodes: Nodes) -> None:
    parts = told(nodes, 0, "/v1/log")["partitions"]
    urls = [node.http for node in nodes.all.values()]
    (part,) = [part for part in parts if len(part["nodes"]) > 1 and part["next"] > 0][:1]
    k = urls.index(part["nodes"][1])
    query = f"?from={part['first']}&to={part['next']}"
    until(lambda: read(nodes, k, part["partition"], query)[1] == 0, "the copy is not used")
    table, _ = read(nodes, k, part["partition"], query)
    assert table["offset"].to_pylist() == list(range(part["first"], part["next"]))
    # Where it ends the owner alone knows.
    path = f"/v1/log/{part['partition']}"
    got = at(nodes, k, "GET", path)
    assert (got.status, got.headers["location"]) == (307, part["nodes"][0] + path)
    assert got.json["error"] == "moved"


def test_rows_that_are_not_there_are_refused_by_every_node(nodes: Nodes) -> None:
    for k in range(3):
        for path, status in ((f"/v1/log/0?from={10**9}&to={10**9 + 1}", 416), ("/v1/log/6", 404)):
            got = at(nodes, k, "GET", path)
            if got.status == 307:
                owner = [node.http for node in nodes.all.values()].index(
                    got.headers["location"].partition("/v1/")[0]
                )
                got = at(nodes, owner, "GET", path)
            assert got.status == status, got.body


def test_rights_are_those_that_the_node_found_that_was_asked(nodes: Nodes) -> None:
    """decision 95"""
    for k in range(3):
        assert at(nodes, k, "GET", "/v1/log", "").status == 401
        assert at(nodes, k, "GET", "/v1/log?filter=garden", "reader").status == 403
        assert len(told(nodes, k, "/v1/log?filter=house/%23", "reader")["partitions"]) == 6


def test_searches_go_through_the_rows_of_all_nodes(nodes: Nodes) -> None:
    wanted = {f"house/{k}" for k in range(MANY)}
    pages = []
    for k in range(3):
        found: list[tuple[int, int]] = []
        addresses: set[str] = set()
        path = more = "/v1/rows?limit=7&filter=house/%23"
        while more:
            page = told(nodes, k, more, "reader")
            found += [(row["partition"], row["offset"]) for row in page["rows"]]
            addresses |= {row["address"] for row in page["rows"]}
            cursor = ",".join(f"{p}:{offset}" for p, offset in page["before"].items())
            more = f"{path}&before={cursor}" if page["more"] else ""
        assert len(found) == len(set(found))
        assert addresses == wanted
        pages.append(found)
    assert pages[0] == pages[1] == pages[2]
    lines = at(nodes, 0, "GET", "/v1/rows?format=jsonl&limit=1000&filter=house/%23").body
    assert len(lines.splitlines()) == len(pages[0])


def test_histograms_count_the_rows_of_all_nodes(nodes: Nodes) -> None:
    count = sum(one["next"] - one["first"] for one in told(nodes, 0, "/v1/log")["partitions"])
    for k in range(3):
        assert sum(told(nodes, k, "/v1/histogram?buckets=7")["counts"]) == count
        found = told(nodes, k, "/v1/histogram?buckets=7&filter=house/%23")
        assert MANY <= sum(found["counts"]) <= count


# What one node owns


def changed(nodes: Nodes, k: int, method: str, path: str, **more: str) -> Answer:
    """What a node answers once it is not busy."""
    ends = time.monotonic() + 30
    while (got := at(nodes, k, method, path, **more)).status == 503 and time.monotonic() < ends:
        time.sleep(0.05)
    return got


def test_queues_are_made_seen_and_emptied_through_any_node(nodes: Nodes) -> None:
    for k in range(6):
        path = f"/v1/queues/jobs/{k}"
        assert changed(nodes, k, "PUT", path, body='{"max_messages": 9}').status == 201
        assert changed(nodes, k + 1, "PUT", path, body="{}").status == 200
        for n in range(3):
            assert changed(nodes, n, "POST", f"/v1/publish/jobs/{k}", body=f"{n}").status == 202
        for n in range(3):
            found = told(nodes, n, path)
            assert (found["name"], found["max_messages"], found["ready"]) == (f"jobs/{k}", 9, 3)
            messages = told(nodes, n, f"{path}/messages")["messages"]
            assert [one["payload"] for one in messages] == ["0", "1", "2"]
        assert at(nodes, k, "POST", f"{path}/purge", "reader").status == 403
    names = [[one["name"] for one in told(nodes, k, "/v1/queues")["queues"]] for k in range(3)]
    assert names[0] == names[1] == names[2]
    assert names[0] == sorted(f"jobs/{k}" for k in range(6))
    assert told(nodes, 0, "/v1/queues", "reader")["queues"] == []
    for k in range(6):
        path = f"/v1/queues/jobs/{k}"
        assert changed(nodes, k + 2, "POST", f"{path}/purge").json == {"purged": 3}
        assert changed(nodes, k + 1, "DELETE", path).status == 204
        assert changed(nodes, k, "GET", path).status == 404


@pytest.mark.parametrize("dialect", ["kobold-1", "kobold-3", "boson-binary", "tmq-1.01"])
def test_lists_of_queues_on_the_wire_are_of_all_nodes(nodes: Nodes, dialect: str) -> None:
    wanted = {f"listed/{dialect}/{k}" for k in range(6)}
    for k, name in enumerate(sorted(wanted)):
        assert changed(nodes, k, "PUT", f"/v1/queues/{name}", body="{}").status == 201
    for node in nodes.all.values():
        with wirelake.connect_sync(node.url(dialect), client_id="me", token="boss") as client:
            assert {str(one["name"]) for one in client.queues()} == wanted
    for k, name in enumerate(wanted):
        assert changed(nodes, k, "DELETE", f"/v1/queues/{name}").status == 204


def test_keys_are_written_read_and_listed_through_any_node(nodes: Nodes) -> None:
    for k in range(MANY):
        path = f"/v1/store/house/k{k:02}"
        assert changed(nodes, k, "PUT", path, body=f"v{k}", If_None_Match="*").status == 201
        assert changed(nodes, k + 1, "PUT", path, body="x", If_None_Match="*").status == 412
        assert changed(nodes, k + 1, "PUT", path, body=f"w{k}", If_Match='"1"').status == 200
        got = changed(nodes, k + 2, "GET", path)
        assert (got.body, got.headers["etag"]) == (f"w{k}".encode(), '"2"')
    assert at(nodes, 0, "GET", "/v1/store/house/k00", "").status == 401
    for k in range(3):
        found: list[str] = []
        more = True
        while more:
            after = found[-1] if found else ""
            page = told(nodes, k, f"/v1/store?filter=house/%23&limit=7&after={after}", "reader")
            found += [one["key"] for one in page["keys"]]
            more = page["more"]
        assert found == [f"house/k{n:02}" for n in range(MANY)]
    for k in range(MANY):
        assert changed(nodes, k, "DELETE", f"/v1/store/house/k{k:02}").status == 204
    assert told(nodes, 1, "/v1/store?filter=house/%23")["keys"] == []


def test_the_progress_of_queries_is_told_and_shown_by_any_node(nodes: Nodes) -> None:
    ends = {str(one["partition"]): one["next"] for one in told(nodes, 0, "/v1/log")["partitions"]}
    for k in range(6):
        behind = {**ends, "0": 0}
        got = changed(nodes, k, "POST", f"/v1/progress/query{k}", body=json.dumps(behind))
        assert got.status == 200, got.body
        assert got.json["lag"] >= ends["0"]
        wrong = json.dumps({"5": ends["5"] + 1000})
        assert changed(nodes, k, "POST", f"/v1/progress/query{k}", body=wrong).status == 400
    for k in range(3):
        queries = told(nodes, k, "/v1/progress")["queries"]
        assert [one["query"] for one in queries] == [f"query{n}" for n in range(6)]
        assert all(set(one["lags"]) == set(ends) for one in queries)
    for k in range(6):
        assert changed(nodes, k + 1, "DELETE", f"/v1/progress/query{k}").status == 204


def test_a_producers_batch_is_published_once_through_whichever_node(nodes: Nodes) -> None:
    """decision 97"""
    everybody = ",".join(node.http for node in nodes.all.values())
    client = LogClient(everybody, "boss")
    small = arrow(rows(*((f"made/{k % 9}", b"%d" % k) for k in range(100))))
    large = arrow(rows(*((f"made/{k % 9}", b"x" * 1000) for k in range(3000))))  # is redirected
    for name in ("a", "b", "c"):
        for sequence, body in (("1", small), ("2", large), ("1", small)):
            is_new = [LogClient(node.http, "boss").publish(body, name, sequence)
                      for node in nodes.all.values()]  # fmt: skip
            assert is_new in ([True, False, False], [False, False, False])
    found: Counter[str] = Counter()
    for partition, extent in client.log().extents.items():
        for table in client.read(Range(partition, extent.first, extent.next), ["made/#"]):
            found.update(table["source"].to_pylist())
    assert found == {f"$producer/boss/{name}": 3100 for name in ("a", "b", "c")}
