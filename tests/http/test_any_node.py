"""HTTP on any node answers for the whole cluster: three nodes on a real nats-server."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.cluster.processes import Nodes, until
from tests.cluster.servers import Servers, binary
from tests.http.house import Answer
from tests.http.test_cluster import ask
from wirelake.config import hash_token

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
    """What a node tells, once it is not busy."""
    ends = time.monotonic() + 30
    while (got := at(nodes, k, "GET", path, token)).status == 503 and time.monotonic() < ends:
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
    for k in range(3):
        assert at(nodes, k, "GET", "/v1/log", "").status == 401
        assert at(nodes, k, "GET", "/v1/log?filter=garden", "reader").status == 403
        assert len(told(nodes, k, "/v1/log?filter=house/%23", "reader")["partitions"]) == 6
