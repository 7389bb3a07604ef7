"""How HTTP begins, ends, and behaves when the broker does not answer."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs

from tests.conftest import Certificates
from tests.http.house import TOKENS, House
from wirelake.broker.node import Node
from wirelake.errors import ConfigError, RefusedError
from wirelake.http.gate import Gate
from wirelake.http.server import HttpServer
from wirelake.journal.engine import Engine
from wirelake.net.access import tls_context


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match=r"http: .*address already in use"),
        House(None, engine=Engine.in_memory(), http=f"127.0.0.1:{taken.getsockname()[1]}"),
    ):
        pass


@pytest.mark.parametrize(
    "listen", ["", "7780", "localhost", "localhost:x", ":80", "h:99999", "ftp://h:1"]
)
def test_what_is_no_place_to_listen_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        HttpServer(Node(Engine.in_memory()), listen)


def test_tls_needs_a_certificate() -> None:
    with pytest.raises(ConfigError, match=r"needs tls\.cert"):
        HttpServer(Node(Engine.in_memory()), "https://localhost:0")


def test_others_can_reach_it_only_where_tokens_are() -> None:
    with (
        pytest.raises(ConfigError, match="no tokens are configured"),
        House(None, engine=Engine.in_memory(), http="0.0.0.0:0"),
    ):
        pass
    with House(None, engine=Engine.in_memory(), http="0.0.0.0:0", tokens=TOKENS) as house:
        assert house.get("/healthz", Host="broker.example").status == 200


def test_a_host_that_is_not_there_is_a_clear_error() -> None:
    with (
        pytest.raises(ConfigError, match="http: "),
        House(None, engine=Engine.in_memory(), http="no.such.host.invalid:0", tokens=TOKENS),
    ):
        pass


async def test_it_can_be_stopped_twice_and_leaves_no_threads() -> None:
    server = HttpServer(Node(Engine.in_memory()), "127.0.0.1:0")
    await server.stop()
    url = await server.start()
    answer = await asyncio.to_thread(lambda: urllib.request.urlopen(f"{url}/").read())
    assert b"Wirelake" in answer
    await server.stop()
    await server.stop()
    names = [one.name for one in threading.enumerate()]
    assert not [name for name in names if name.startswith(("wirelake http", "wirelake-http"))]


async def test_it_speaks_tls(certificates: Certificates) -> None:
    tls = tls_context(certificates.tls)
    server = HttpServer(Node(Engine.in_memory()), "https://localhost:0", tls=tls)
    url = (await server.start()).replace("127.0.0.1", "localhost").replace("[::1]", "localhost")
    context: ssl.SSLContext = certificates.client()

    def get() -> int:
        with urllib.request.urlopen(f"{url}/healthz", context=context) as answer:
            return int(answer.status)

    try:
        assert url.startswith("https://")
        assert await asyncio.to_thread(get) == 200
    finally:
        await server.stop()


def test_a_token_that_is_taken_away_is_of_no_use(tmp_path: Path) -> None:
    with House(tmp_path, tokens=TOKENS) as house:
        assert house.get("/v1/connections", "boss").status == 200
        fewer = [one for one in TOKENS if one.name != "boss"]
        settings = structs.replace(house._settings, tokens=tuple(fewer))
        house.call(lambda: house.server.configure(settings))
        assert house.get("/v1/connections", "boss").status == 401


# The gate


async def test_a_broker_that_does_not_answer_is_refused_in_time() -> None:
    loop = asyncio.new_event_loop()  # which nobody runs
    gate = Gate(Node(Engine.in_memory()), loop, answer=0.01, durable=0.01)
    asked = []
    with pytest.raises(RefusedError, match="busy: the broker does not answer"):
        await gate.ask(lambda: asked.append(1))
    with pytest.raises(RefusedError, match="timeout: "):
        await gate.change(lambda: asked.append(2))
    loop.call_soon(loop.stop)
    await asyncio.to_thread(loop.run_forever)
    assert asked == []  # what was given up is not done later
    loop.close()
    with pytest.raises(RefusedError, match="closed: "):
        await gate.ask(lambda: None)
    with pytest.raises(RefusedError, match="closed: "):
        await gate.run(asyncio.sleep(0))
    gate.tell(lambda: None)


def test_a_broker_that_hangs_is_not_healthy(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    api = house.http._api
    assert api is not None
    monkeypatch.setattr(api._gate, "_answer", 0.05)
    released = threading.Event()
    house.thread.loop.call_soon_threadsafe(released.wait)
    got = house.get("/healthz")
    assert (got.status, got.json["state"]) == (503, "silent")
    assert house.get("/v1/queues").status == 503
    assert house.get("/").status == 200
    released.set()
    assert house.get("/healthz").status == 200


async def test_what_a_question_raises_is_raised() -> None:
    gate = Gate(Node(Engine.in_memory()), asyncio.get_running_loop())

    def fail() -> None:
        raise RefusedError("conflict", "no")

    for call in (gate.ask, gate.change):
        with pytest.raises(RefusedError, match="conflict: no"):
            await call(fail)
    assert await gate.change(lambda: 7) == 7


def test_answers_wait_for_the_disk(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[Callable[[], object]] = []
    waiting = threading.Event()
    after = house.engine.after

    def hold(action: Callable[[], object], *_: object, **__: object) -> None:
        held.append(action)
        waiting.set()

    monkeypatch.setattr(house.engine, "after", hold)
    answers: list[int] = []
    asking = threading.Thread(target=lambda: answers.append(house.put("/v1/store/k", b"1").status))
    asking.start()
    assert waiting.wait(60)
    house.get("/v1/store")  # time enough for an answer that does not wait
    assert answers == []
    monkeypatch.setattr(house.engine, "after", after)
    house.call(lambda: [action() for action in held])
    asking.join()
    assert answers == [201]
