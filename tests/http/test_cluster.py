"""The cluster over HTTP, on real nodes: its state, who may steer it, and what that does."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import wirelake
from tests.cluster.processes import NodeProcess, Nodes, until
from tests.cluster.servers import Servers, binary
from tests.http.house import Answer, House
from wirelake.config import hash_token

TOKENS = f"""
[[tokens]]
name = "boss"
hash = "{hash_token("boss")}"
subscribe = ["#"]
admin = true

[[tokens]]
name = "reader"
hash = "{hash_token("reader")}"
subscribe = ["house/#"]
"""


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    if binary() is None:
        pytest.skip("nats-server is not installed")
    with Servers(tmp_path_factory.mktemp("nats")) as servers:
        yield servers


@pytest.fixture(scope="module")
def pair(nats: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes that ask for tokens, `one` and `two`; all partitions are served."""
    folder = tmp_path_factory.mktemp("nodes")
    with Nodes(folder, nats.urls, "pair", TOKENS) as nodes:
        nodes.start("one", "two")
        until(lambda: settled(nodes), "not all partitions are served by both nodes")
        yield nodes


def ask(
    node: NodeProcess, method: str, path: str, token: str = "", body: str = "", **headers: str
) -> Answer:
    """Send a request to a node, and read the answer."""
    connection = HTTPConnection(urlsplit(node.http).netloc, timeout=60)
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if token:
        sent["Authorization"] = f"Bearer {token}"
    connection.request(method, path, body or None, sent)
    got = connection.getresponse()
    told = {name.lower(): value for name, value in got.getheaders()}
    try:
        return Answer(got.status, told, got.read())
    finally:
        connection.close()


def status(nodes: Nodes, node: str = "one") -> Any:
    """What a node tells of its cluster."""
    return ask(nodes.all[node], "GET", "/v1/cluster", "boss").json


def settled(nodes: Nodes) -> bool:
    """Is every partition served, and does each node serve and follow some?"""
    told = status(nodes)
    is_spread = all(one["owned"] and one["standby"] for one in told["nodes"])
    return len(told["nodes"]) == 2 and is_spread and all(p["served"] for p in told["partitions"])


def test_every_node_tells_the_same_as_the_command(nats: Servers, pair: Nodes) -> None:
    command = [sys.executable, "-m", "wirelake", "cluster", "status", "--json"]
    command += ["--cluster", nats.urls[0], "--prefix", "pair"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    by_command = json.loads(done.stdout)
    for name in ("one", "two"):
        told = status(pair, name)
        assert told["node"] == name
        for part in ("cluster", "partitions", "same_settings"):
            assert told[part] == by_command[part]
        assert [one["node"] for one in told["nodes"]] == ["one", "two"]
    assert len(by_command["partitions"]) == 6
    for partition in told["partitions"]:
        assert partition["epoch"] > 0
        assert partition["owner"] not in partition["standbys"]
    for node in told["nodes"]:
        assert node["owner_changes"] >= len(node["owned"]) == len(node["epochs"])
        assert all(0 <= took < 60 for took in node["takeovers"])
        assert {(one["role"], one["open"]) for one in node["links"]} == {
            ("edge", True),
            ("owner", True),
        }
        assert any(one["event"] == "owner_changed" for one in node["changes"])


def test_a_node_counts_its_clients_and_not_those_of_others(pair: Nodes) -> None:
    def counted(what: str) -> list[int]:
        return [one[what] for one in status(pair)["nodes"]]

    assert counted("clients") == [0, 0]
    where = pair.all["two"].url("kobold-3")
    with ExitStack() as opened:
        for n in range(8):
            opened.enter_context(wirelake.connect_sync(where, client_id=f"c{n}", token="boss"))
        until(lambda: counted("delegates")[0] > 0, "no client is known to the other node")
        assert counted("clients") == [0, 8]


def test_strangers_see_nothing_and_tokens_without_admin_only_look(pair: Nodes) -> None:
    node = pair.all["one"]
    assert ask(node, "GET", "/v1/cluster").status == 401
    assert ask(node, "GET", "/v1/live?part=cluster").status == 401
    assert ask(node, "GET", "/v1/cluster", "reader").json["node"] == "one"
    for method, path in (
        ("PUT", "/v1/cluster/nodes/two/drain"),
        ("DELETE", "/v1/cluster/nodes/two/drain"),
        ("POST", "/v1/cluster/partitions/0/move?to=two"),
    ):
        assert ask(node, method, path).status == 401
        assert ask(node, method, path, "reader").status == 403
    told = status(pair)
    assert not any(one["draining"] for one in told["nodes"])
    assert not any(one["moved_to"] for one in told["partitions"])


def test_a_login_needs_the_word_against_forgery(pair: Nodes) -> None:
    node = pair.all["one"]
    got = ask(node, "POST", "/v1/session", body='{"token": "boss"}')
    cookie = got.headers["set-cookie"].partition(";")[0]
    path = "/v1/cluster/nodes/two/drain"
    assert ask(node, "DELETE", path, Cookie=cookie).status == 403
    assert ask(node, "DELETE", path, Cookie=cookie, Wirelake_Csrf="wrong").status == 403
    word = got.json["csrf"]
    assert ask(node, "DELETE", path, Cookie=cookie, Wirelake_Csrf=word).status == 200


def test_a_node_is_drained_and_takes_partitions_again(pair: Nodes) -> None:
    path = "/v1/cluster/nodes/two/drain"
    got = ask(pair.all["one"], "PUT", path, "boss")
    assert (got.status, got.json) == (200, {"node": "two", "draining": True})
    one, two = status(pair)["nodes"]
    assert (two["draining"], two["owned"], len(one["owned"])) == (True, [], 6)
    got = ask(pair.all["two"], "DELETE", path, "boss")
    assert (got.status, got.json) == (200, {"node": "two", "draining": False})
    until(lambda: settled(pair), "the node takes no partitions again")


def test_a_partition_is_moved_in_a_new_epoch(pair: Nodes) -> None:
    before = status(pair)["partitions"][0]
    (target,) = {"one", "two"} - {before["owner"]}
    path = f"/v1/cluster/partitions/0/move?to={target}"
    got = ask(pair.all["one"], "POST", path, "boss")
    assert (got.status, got.json) == (200, {"partition": 0, "node": target})
    until(lambda: status(pair)["partitions"][0]["owner"] == target, "it is not moved")
    after = status(pair)["partitions"][0]
    assert (after["moved_to"], after["served"]) == (target, True)
    assert after["epoch"] > before["epoch"]


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/v1/cluster/partitions/6/move?to=one", 404),
        ("POST", "/v1/cluster/partitions/0/move?to=nobody", 404),
        ("POST", "/v1/cluster/partitions/0/move?to=%3E", 404),
        ("POST", "/v1/cluster/partitions/0/move", 400),
        ("POST", "/v1/cluster/partitions/x/move?to=one", 400),
        ("PUT", "/v1/cluster/nodes/nobody/drain", 404),
        ("PUT", "/v1/cluster/nodes/*/drain", 404),
        ("PUT", "/v1/cluster/nodes/one%20two%0d%0aPING/drain", 404),
        ("PUT", "/v1/cluster/nodes/one/drain?now=1", 400),
        ("GET", "/v1/cluster?node=one", 400),
    ],
)
def test_what_is_not_there_is_refused(pair: Nodes, method: str, path: str, expected: int) -> None:
    assert ask(pair.all["one"], method, path, "boss").status == expected
    told = status(pair)
    assert not any(one["draining"] for one in told["nodes"])


def test_a_broker_without_a_cluster_says_so(tmp_path: Path) -> None:
    with House(tmp_path) as house:
        for got in (
            house.get("/v1/cluster"),
            house.put("/v1/cluster/nodes/one/drain"),
            house.post("/v1/cluster/partitions/0/move?to=one"),
        ):
            text = "this broker runs without a cluster"
            assert (got.status, got.json) == (404, {"error": "not_found", "text": text})
