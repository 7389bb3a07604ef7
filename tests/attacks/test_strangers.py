"""A stranger learns nothing: not what is there, and not by how it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks.broker import Broker, Client, eventually, secret_of, token
from wirelake.message import Flag, Message, Op, Parameters

ROOT = token(
    "root", publish=["#"], subscribe=["#"], serve=["#"], store=["#"], declare=["#"], admin=True
)
READER = token("reader", subscribe=["other/#"], publish=["other/#"], store=["other/#"])
DIALECTS = ["kobold-1", "kobold-2", "kobold-3", "boson-binary"]
THERE, NOT_THERE = "there", "other"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a queue, a key, a service, a topic and a client of the same name."""
    folder = tmp_path_factory.mktemp("strangers")
    with Broker(folder, ROOT + READER) as started, Client(started) as root:
        assert root.login(THERE, secret_of("root")).op == Op.OK
        for message in (
            Message(op=Op.ENQUEUE, address=f"q/{THERE}"),
            Message(op=Op.CREATE, address=f"k/{THERE}"),
            Message(op=Op.SERVE, address=f"s/{THERE}"),
            Message(op=Op.SUBSCRIBE, address=f"t/{THERE}"),
        ):
            assert root.ask(message).op == Op.OK
        yield started


def refusals(broker: Broker, dialect: str, name: str, secret: str) -> list[str]:
    """How everything that concerns a name is refused."""
    q, k, s, t = (f"{kind}/{name}" for kind in "qkst")
    told = []
    with Client(broker, dialect) as client:
        if secret:
            assert client.login("", secret).op == Op.OK
        for message in (
            Message(address=t, flags=Flag.ACK),
            Message(address=q, flags=Flag.ACK),
            Message(op=Op.PUBLISH, address="direct", target=name),
            Message(op=Op.OPEN, address=name),
            *(Message(op=Op.SUBSCRIBE, address=address) for address in (q, k, s, t)),
            Message(op=Op.SERVE, address=s),
            Message(op=Op.REQUEST, address=s),
            Message(op=Op.ENQUEUE, address=q),
            Message(op=Op.ENQUEUE, address=t),
            Message(op=Op.DEQUEUE, address=q),
            Message(op=Op.ACK, address=q, id="1"),
            Message(op=Op.NACK, address=q, id="1"),
            Message(op=Op.CREATE, address=k),
            Message(op=Op.READ, address=k),
            Message(op=Op.UPDATE, address=k),
            Message(op=Op.DELETE, address=k),
            Message(op=Op.WATCH, address=k),
        ):
            answer = client.ask(message)
            assert answer.parameters.code == "unauthorized", (message, answer)
            told.append(f"{message.op} {answer.payload.decode()}".replace(name, "NAME"))
    return told


@pytest.mark.parametrize("secret", ["", secret_of("reader")])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_refusals_are_the_same_whether_something_is_there_or_not(
    broker: Broker, dialect: str, secret: str
) -> None:
    # decision 64
    there = refusals(broker, dialect, THERE, secret)
    assert there == refusals(broker, dialect, NOT_THERE, secret)


def test_refusals_of_tmq_are_the_same_whether_something_is_there_or_not(broker: Broker) -> None:
    told = []
    for name in (THERE, NOT_THERE):
        q, s, t = (f"{kind}/{name}" for kind in "qst")
        with Client(broker, "tmq-1.01") as client:
            client.send(Message(op=Op.HANDSHAKE))
            client.receive()
            client.send(
                Message(op=Op.HELLO, payload=f"Client-Token: {secret_of('reader')}\r\n".encode())
            )
            client.receive()
            answers = []
            for number, (op, address) in enumerate(
                (
                    *((Op.PUBLISH, address) for address in (q, s, t)),
                    *((Op.SUBSCRIBE, address) for address in (q, s, t)),
                    *((Op.DECLARE, address) for address in (q, s, t)),
                    *((Op.REMOVE, address) for address in (q, t)),
                    (Op.DEQUEUE, q),
                )
            ):
                payload = b"\0\0" if op == Op.DECLARE else b"1"
                flags = Flag.RESPONSE | (Flag.ACK if op == Op.PUBLISH else Flag(0))
                client.send(
                    Message(
                        op=op, address=address, payload=payload, flags=flags, id=f"{number + 1}"
                    )
                )
                answer = client.receive()
                text = answer.payload.decode().replace(name, "NAME")
                answers.append((op, answer.content_type, text))
                assert answer.content_type == 401, (op, answer)
            told.append(answers)
    assert told[0] == told[1]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_info_tells_a_stranger_nothing(broker: Broker, dialect: str) -> None:
    with Client(broker, dialect) as client:
        for address in ("$node", "$queues", "$nothing"):
            answer = client.ask(Message(op=Op.INFO, address=address))
            assert answer.parameters.code == "unauthorized"
            assert answer.payload == b"no right to know this"
        assert client.login("", secret_of("reader")).op == Op.OK
        assert client.ask(Message(op=Op.INFO, address="$node")).op == Op.OK
        assert client.ask(Message(op=Op.INFO, address="$nothing")).parameters.code == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/queues/q/{}"),
        ("PUT", "/v1/queues/q/{}"),
        ("DELETE", "/v1/queues/q/{}"),
        ("GET", "/v1/queues/q/{}/messages"),
        ("POST", "/v1/queues/q/{}/purge"),
        ("POST", "/v1/queues/q/{}/move"),
        ("GET", "/v1/events?filter=q/{}"),
        ("GET", "/v1/events?filter=t/{}"),
        ("GET", "/v1/store/k/{}"),
        ("PUT", "/v1/store/k/{}"),
        ("DELETE", "/v1/store/k/{}"),
        ("GET", "/v1/store?filter=k/{}"),
        ("POST", "/v1/publish/q/{}"),
        ("POST", "/v1/publish/s/{}"),
        ("GET", "/v1/log/0?filter=t/{}"),
        ("GET", "/v1/log/77?filter=t/{}"),
        ("DELETE", "/v1/progress/{}"),
    ],
)
def test_http_refuses_in_the_same_way(broker: Broker, method: str, path: str) -> None:
    for secret, status in (("", 401), (secret_of("reader"), 403)):
        answers = [
            broker.http(path.format(name), method=method, secret=secret, body=None)
            for name in (THERE, NOT_THERE)
        ]
        assert answers[0][0] == answers[1][0] == status
        assert answers[0][1] == answers[1][1].replace(NOT_THERE.encode(), THERE.encode())


def test_a_stranger_sees_nothing_in_lists(broker: Broker) -> None:
    assert broker.json("/v1/queues") == {"queues": []}
    assert broker.json("/v1/addresses") == {"topics": [], "queues": [], "services": []}
    for path in ("/v1/store", "/v1/log", "/v1/connections", "/metrics", "/v1/progress"):
        assert broker.http(path)[0] == 401


def test_health_tells_a_stranger_no_paths(tmp_path: Path) -> None:
    with Broker(tmp_path, ROOT) as broker:
        broker.data.rename(tmp_path / "away")
        eventually(lambda: broker.http("/healthz")[0] == 503)
        assert str(tmp_path) not in json.loads(broker.http("/healthz")[1])["text"]
        detail = json.loads(broker.http("/healthz", secret=secret_of("root"))[1])["text"]
        assert str(tmp_path) in detail


def test_guessing_tokens_by_http_is_slowed_down_and_told(tmp_path: Path) -> None:
    with Broker(tmp_path, ROOT) as broker:
        for number in range(25):
            assert broker.http("/v1/queues", secret=f"guess-{number}")[0] == 401
            assert broker.http("/v1/queues", secret=secret_of("root"))[0] == 200
        events = eventually(lambda: broker.events("wrong_tokens", secret_of("root")))
        assert events[0]["who"] == "127.0.0.1"
        assert "guess" not in broker.log()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_two_thousand_guesses_on_one_connection_end_it(tmp_path: Path, dialect: str) -> None:
    with Broker(tmp_path, ROOT) as broker, Client(broker, dialect) as client:
        guesses = [
            Message(op=Op.AUTH, correlation_id="1", parameters=Parameters(token=f"guess-{number}"))
            for number in range(2000)
        ]
        client.send(*guesses)
        assert client.is_closed()
        assert broker.counters(secret_of("root"))["refused.unauthorized"] < 30


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_client_id_has_a_length_and_an_alphabet(tmp_path: Path, dialect: str) -> None:
    with Broker(tmp_path) as broker:
        for name in ("Z" * 65, "a+b", "#", "$events"):
            with Client(broker, dialect) as client:
                answer = client.login(name)
                assert (answer.op, answer.parameters.code) == (Op.ERROR, "bad_request"), name
        with Client(broker, dialect) as client:
            assert client.login("Z" * 64).op == Op.OK


def test_progress_is_written_by_its_own_token_or_an_operator(tmp_path: Path) -> None:
    other = token("other", subscribe=["#"])
    with Broker(tmp_path, ROOT + READER + other) as broker:

        def advance(name: str, secret: str) -> int:
            path = f"/v1/progress/{name}"
            return broker.http(path, method="POST", body=b'{"0": 0}', secret=secret)[0]

        reader, others, root = map(secret_of, ("reader", "other", "root"))
        assert advance("mine", reader) == 200
        assert advance("mine", others) == 403
        assert advance("mine", reader) == 200
        assert advance("mine", root) == 200
        assert advance("mine", reader) == 200  # it still belongs to the first
        assert advance("mine", "") == 401
        broker.stop(15)
        broker.start()
        assert advance("mine", others) == 403
        assert advance("mine", reader) == 200
