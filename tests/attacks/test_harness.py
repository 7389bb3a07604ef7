"""The broker under attack, unharmed: what every test here relies on."""

from pathlib import Path

from tests.attacks.broker import MIB, Broker, Client, eventually, secret_of, token
from wirelake.message import Message, Op


def test_a_broker_is_started_asked_and_watched(tmp_path: Path) -> None:
    config = token("alice", publish=["#"], subscribe=["#"]) + token("root", admin=True)
    with Broker(tmp_path, config) as broker, Client(broker) as alice:
        assert alice.login("alice", secret_of("alice")).op == Op.OK
        assert alice.ask(Message(op=Op.SUBSCRIBE, address="a")).op == Op.OK
        alice.send(Message(address="a", payload=b"x"))
        assert alice.receive().payload == b"x"
        root = secret_of("root")
        assert broker.counters(root)["received"] == 1
        assert broker.events(secret=root) == []
        assert broker.http("/v1/connections")[0] == 401
        assert len(broker.json("/v1/connections", secret=root)["connections"]) >= 1
        assert 10 * MIB < broker.forget_peak() <= broker.peak() + MIB
        assert broker.cpu() > 0
        broker.configure(token("root", admin=True))
        assert alice.is_closed()
        eventually(lambda: "its rights have changed" in broker.log())
        assert broker.is_alive
