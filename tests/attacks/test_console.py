"""Peers that attack the console's own requests: searches, SQL, traces, logins, figures."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.attacks.broker import MIB, Broker, Client, eventually, secret_of, token
from tests.attacks.test_web import rest
from wirelake.message import Flag, Message, Op


def fill(broker: Broker, count: int, size: int, address: str = "a") -> None:
    """Publish large messages, and wait until they are in the log."""
    with Client(broker, "kobold-3") as client:
        for k in range(count):
            payload = b"%07d" % k + b"x" * (size - 7)
            said = Message(address, payload, op=Op.PUBLISH, flags=Flag.ACK)
            assert client.ask(said).op == Op.OK


def log_in(broker: Broker, name: str) -> tuple[str, str]:
    """The cookie of a new login, and its word against forgery."""
    body = json.dumps({"token": secret_of(name)}).encode()
    with broker.http_socket() as sock:
        head = "POST /v1/session HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        sock.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = rest(sock).decode()
    headers, _, content = answer.partition("\r\n\r\n")
    (cookie,) = [line for line in headers.split("\r\n") if line.lower().startswith("set-cookie")]
    return cookie.partition(": ")[2].partition(";")[0], json.loads(content)["csrf"]


# Searches


def test_a_search_holds_no_more_than_its_bytes_however_large_the_rows_are(tmp_path: Path) -> None:
    with Broker(tmp_path, "[web]\nsearch_bytes = 4_194_304\n") as broker:
        fill(broker, 300, MIB)
        broker.json("/v1/rows?limit=1")  # what is loaded once
        before = broker.forget_peak()
        with ThreadPoolExecutor(8) as threads:  # of 300 MiB each, if they were held
            paths = ["/v1/rows?limit=1000", "/v1/rows?limit=10", "/v1/histogram?text=none"]
            told = list(threads.map(broker.json, paths * 8))
        assert broker.peak() - before < 200 * MIB
        assert len(told[0]["rows"]) == 300  # payloads are cut, so all of them have room
        # Of the ten newest the payloads are told, as far as they have room; then one goes on.
        assert [row["payload"][:7] for row in told[1]["rows"]] == ["0000299", "0000298", "0000297"]
        found: list[str] = []
        more = told[1]
        while more["more"] and len(found) < 20:
            found += [row["payload"][:7] for row in more["rows"]]
            cursor = ",".join(f"{part}:{offset}" for part, offset in more["before"].items())
            more = broker.json(f"/v1/rows?limit=10&before={cursor}")
        assert found == [f"{299 - k:07}" for k in range(len(found))]


def test_an_export_without_room_is_refused_and_not_cut(tmp_path: Path) -> None:
    with Broker(tmp_path, "[web]\nsearch_bytes = 4_194_304\nexport_rows = 1000\n") as broker:
        fill(broker, 100, MIB)
        broker.json("/v1/rows?limit=1")
        before = broker.forget_peak()
        for form in ("jsonl", "csv"):
            status, text = broker.http(f"/v1/rows?format={form}&limit=1000")
            assert (status, b"(web.search_bytes)" in text) == (413, True)
            status, text = broker.http(f"/v1/rows?format={form}&limit=3")
            assert (status, text.count(b"00000")) == (200, 3)
        assert broker.http("/v1/rows?format=csv&limit=1001")[0] == 400
        assert broker.peak() - before < 100 * MIB


def test_exports_that_nobody_reads_are_not_held_and_then_refused(tmp_path: Path) -> None:
    config = "[web]\nsearches = 5\nread_timeout = 600\n"
    with Broker(tmp_path, config) as broker, ExitStack() as stack:
        fill(broker, 12, MIB)
        broker.json("/v1/rows?limit=1")
        before = broker.forget_peak()
        for _ in range(5):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            host, port = broker.http_url.removeprefix("http://").rsplit(":", 1)
            sock.connect((host, int(port)))
            sock.sendall(b"GET /v1/rows?format=jsonl&limit=100 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert sock.recv(12) == b"HTTP/1.1 200"
        for path in ("/v1/rows", "/v1/histogram", "/v1/rows?format=csv"):
            status, text = broker.http(path)
            assert (status, b"(web.searches)" in text) == (503, True)
        assert broker.peak() - before < 160 * MIB
        stack.close()
        eventually(lambda: broker.http("/v1/rows")[0] == 200)
        for _ in range(20):  # nor is one counted that was refused, or had its answer
            assert broker.http("/v1/rows?limit=0")[0] == 400
            assert broker.http("/v1/rows")[0] == 200


@pytest.mark.parametrize(
    "pattern", ["(a*)*b", "(a|aa)+$", "(.*){1000}", "a{1000}{1000}", "(" * 2000, ".*" * 2000]
)
def test_a_pattern_of_addresses_takes_no_more_than_others(tmp_path: Path, pattern: str) -> None:
    with Broker(tmp_path) as broker:
        fill(broker, 10, 100, "a" * 60)
        broker.json("/v1/rows?limit=1")
        before, cpu = broker.forget_peak(), broker.cpu()
        path = f"/v1/log/0?pattern={quote(pattern)}"
        with ThreadPoolExecutor(4) as threads:
            answers = {status for status, _ in threads.map(broker.http, [path] * 12)}
        assert answers <= {200, 400, 413}
        assert broker.peak() - before < 64 * MIB
        assert broker.cpu() - cpu < 20
        assert broker.http("/healthz")[0] == 200


def test_many_filters_and_absurd_cursors_are_answered_or_refused(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        fill(broker, 3, 100)
        many = "&".join(f"filter=a/{k}/%2B/%23" for k in range(99))
        assert broker.json(f"/v1/rows?{many}")["rows"] == []
        assert broker.http(f"/v1/rows?{many}&{many}")[0] == 400
        digits = "9" * 4000
        for query in (
            f"before=0:{digits}", f"before={digits}:1", f"offset=0:{digits}", "before=0:-5",
            f"offset=-1:-{digits}", f"time_from={digits}", f"limit={digits}", "header==&text=%00",
            f"before={','.join(f'{k}:{k}' for k in range(9000))}",
        ):  # fmt: skip
            assert broker.http(f"/v1/rows?{query}")[0] in (200, 400), query
        assert broker.json("/v1/rows")["rows"]


# SQL


def sql(broker: Broker, statement: str, name: str = "") -> tuple[int, Any]:
    """Status and answer of a statement."""
    secret = secret_of(name) if name else ""
    body = json.dumps({"sql": statement}).encode()
    status, text = broker.http("/v1/sql", method="POST", body=body, secret=secret)
    return status, json.loads(text)


def test_sql_takes_nothing_from_the_broker(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    stolen = tmp_path / "stolen"
    config = "[web]\nsql_answer = 1_048_576\n" + token("root", admin=True, publish=["#"])
    config += token("reader", subscribe=["#"])
    with Broker(tmp_path, config) as broker:
        assert sql(broker, "SELECT 1", "root")[1]["rows"] == [[1]]
        before = broker.forget_peak()
        for statement in (
            "SELECT error(repeat('x', 200000000))",
            "SELECT repeat('x', 500000000) FROM range(1000)",
            f"SELECT {', '.join(['repeat(chr(1), 2000)'] * 400)} FROM range(1000)",
            f"SELECT {', '.join(['l.*'] * 3000)} FROM log l, range(1000)",
            "SELECT list(range) FROM range(500000000)",
            f"COPY (SELECT 1) TO '{stolen}'",
            f"ATTACH '{stolen}'",
            f"SELECT * FROM read_csv('{tmp_path / 'wirelake.toml'}')",
            f"SELECT * FROM '{tmp_path / 'wirelake.toml'}'",
            f"SELECT * FROM glob('{tmp_path}/*')",
            f"EXPORT DATABASE '{stolen}'",
            "SET memory_limit = '100GB'",
            "LOAD httpfs",
            "SELECT getenv('PATH')",
        ):
            status, answer = sql(broker, statement, "root")
            assert status in (200, 400, 413, 504), (statement, answer)
            assert len(json.dumps(answer)) < 2 * MIB, statement
            if "wirelake.toml" in statement or str(stolen) in statement:
                assert status == 400, (statement, answer)
        assert not stolen.exists()
        assert broker.peak() - before < 32 * MIB
        assert sql(broker, "SELECT 1", "reader")[0] == 403
        assert sql(broker, "SELECT 1", "")[0] == 401


def test_of_many_statements_one_runs_and_none_outlives_its_time(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    endless = "SELECT count(*) FROM range(1000000000000) a, range(1000000) b"
    with Broker(tmp_path, "[web]\nsql_time = 3\n") as broker:
        with ThreadPoolExecutor(10) as threads:
            told = list(threads.map(lambda _: sql(broker, endless), range(10)))
        statuses = sorted(status for status, _ in told)
        assert statuses == [503] * 9 + [504]
        assert any("(web.sql_time)" in answer["text"] for _, answer in told)
        children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children")
        eventually(lambda: not children.read_text().split())
        assert sql(broker, "SELECT 1")[1]["rows"] == [[1]]


# Traces


def test_a_trace_holds_no_more_than_its_bytes_whatever_is_delivered(tmp_path: Path) -> None:
    config = "[web]\ntrace_messages = 5\n"
    with Broker(tmp_path, config) as broker, ExitStack() as stack:
        for dialect in ("kobold-1", "kobold-2", "kobold-3", "boson-binary"):
            listener = stack.enter_context(Client(broker, dialect))
            listener.ask(Message(op=Op.SUBSCRIBE, address="a"))
            stack.callback(listener.close)
        trace = broker.http("/v1/trace", method="PUT", body=b'{"filter": "#"}')
        assert trace[0] == 200
        fill(broker, 1, 20 * MIB, "elsewhere")
        assert broker.http("/v1/trace", method="PUT", body=b'{"filter": "#"}')[0] == 200
        fill(broker, 1, 100)
        seen = broker.json("/v1/trace")["messages"]
        assert [(one["size"], one["receivers"]) for one in seen] == [(100, 4)]
        # One that is too large is noted, but not held; and it is the last one.
        before = broker.rss()
        fill(broker, 3, 20 * MIB, "large")
        assert broker.rss() - before < 160 * MIB
        seen = broker.json("/v1/trace")["messages"]
        assert [(one["address"], one["size"]) for one in seen] == [
            ("a", 100),
            ("large", 20 * MIB),
        ]
        assert broker.http("/v1/trace", method="PUT", body=b'{"filter": "#"}')[0] == 200
        fill(broker, 20, 10, "b")
        told = broker.json("/v1/trace")
        assert (len(told["messages"]), told["left"]) == (5, 0)  # web.trace_messages


# Heads, cookies and logins


def test_a_cookie_of_escapes_costs_nothing(tmp_path: Path) -> None:
    with Broker(tmp_path, token("root", admin=True)) as broker:
        port = broker.http_url.rsplit(":", 1)[1]
        cookies = [
            f'wirelake-{port}="' + "\\a" * 30_000 + '"',
            "; ".join(f"{chr(97 + k % 26)}{k}=x" for k in range(8_000)),
            ";" * 60_000,
            f"wirelake-{port}=" + "\\" * 60_000,
            "=" * 60_000,
        ]
        cpu = broker.cpu()
        for cookie in cookies:
            for path in ("/v1/session", "/v1/rows", "/healthz"):
                status, _ = broker.http(path, headers={"Cookie": cookie})
                assert status in (200, 401)
        assert broker.cpu() - cpu < 20  # minutes, where quotes and escapes are read


def test_a_head_that_is_too_long_is_refused_by_name(tmp_path: Path) -> None:
    with Broker(tmp_path, "[web]\nhead = 16_384\n") as broker, ExitStack() as stack:
        before = broker.forget_peak()
        for _ in range(50):
            sock = stack.enter_context(broker.http_socket())
            try:
                for k in range(1000):
                    line = f"X-{k}: {'x' * 1000}\r\n" if k else "GET / HTTP/1.1\r\n"
                    sock.sendall(line.encode())
            except OSError:
                pass
        assert broker.peak() - before < 32 * MIB
        with broker.http_socket() as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 16_384)
            answer = rest(sock)
        assert answer.startswith(b"HTTP/1.1 431 ")
        assert b"(web.head)" in answer


def test_a_flood_of_logins_logs_nobody_else_out_and_holds_little(tmp_path: Path) -> None:
    config = "[web]\nlogins = 50\n" + token("root", admin=True) + token("mallory", publish=["x"])
    with Broker(tmp_path, config) as broker:
        cookie, _ = log_in(broker, "root")
        theirs = [log_in(broker, "mallory") for _ in range(200)]
        mine = broker.http("/v1/connections", headers={"Cookie": cookie})
        assert mine[0] == 200
        valid = [
            one
            for one, _ in theirs
            if broker.http("/v1/session", headers={"Cookie": one})[0] == 200
        ]
        assert len(valid) == 49
        # The cookie of one, with the word of another, changes nothing.
        headers = {"Cookie": cookie, "Wirelake-Csrf": theirs[-1][1]}
        assert broker.http("/v1/trace", method="DELETE", headers=headers)[0] == 403


def test_figures_stay_small_whatever_addresses_and_names_there_are(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        broker.http("/metrics")
        with Client(broker, "kobold-3") as client:
            for part in range(20):  # addresses are counted, but not one by one for ever
                said = [Message(f"house/{part}/{k}", b"x") for k in range(5_000)]
                client.send(*said)
                client.ask(Message(op=Op.PING))
                if part == 3:
                    before = broker.rss()
            assert broker.rss() - before < 64 * MIB
            for k in range(200):
                client.ask(Message(op=Op.ENQUEUE, address=f"q/{k}", payload=b"x"))
        status, text = broker.http("/metrics")
        assert (status, len(text) < MIB) == (200, True)
        assert b"house/1/" not in text
        for path in ("/v1/rates?seconds=3601", "/v1/rates?seconds=0", "/v1/live?part=none"):
            assert broker.http(path)[0] == 400
        assert len(broker.http("/v1/rates?seconds=3600")[1]) < MIB
