"""What the attackers tried and what held: rights in every dialect and op, and injection."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.attacks.broker import Broker, Client, secret_of, token
from wirelake.errors import CODES
from wirelake.message import Flag, Message, Op, Parameters

OPS = ["boson-binary", "kobold-1", "kobold-2", "kobold-3"]
TMQ = ["tmq-1.00", "tmq-1.01"]

#: Everything that Kobold and boson-binary let a client ask for, and that needs a right.
RIGHTS_OF_OPS = {
    "publish": Message(address="x", flags=Flag.ACK),
    "direct": Message(address="x", target="victim"),
    "subscribe": Message(op=Op.SUBSCRIBE, address="x"),
    "subscribe to all": Message(op=Op.SUBSCRIBE, address="#"),
    "events": Message(op=Op.SUBSCRIBE, address="$events"),
    "serve": Message(op=Op.SERVE, address="x"),
    "request": Message(op=Op.REQUEST, address="svc"),
    "enqueue": Message(op=Op.ENQUEUE, address="jobs", id="1"),
    "enqueue into a new queue": Message(op=Op.ENQUEUE, address="new", id="1"),
    "dequeue": Message(op=Op.DEQUEUE, address="jobs"),
    "dequeue from a new queue": Message(op=Op.DEQUEUE, address="new"),
    "create": Message(op=Op.CREATE, address="new"),
    "read": Message(op=Op.READ, address="key"),
    "list": Message(op=Op.READ, address="#"),
    "update": Message(op=Op.UPDATE, address="key"),
    "delete": Message(op=Op.DELETE, address="key"),
    "watch": Message(op=Op.WATCH, address="#"),
    "open": Message(op=Op.OPEN, address="victim"),
}
RIGHTS_OF_TMQ = {
    "subscribe": Message(op=Op.SUBSCRIBE, address="x"),
    "declare": Message(op=Op.DECLARE, address="new", payload=b"\0\0"),
    "remove": Message(op=Op.REMOVE, address="jobs"),
    "pull": Message(op=Op.DEQUEUE, address="jobs", payload=b"1"),
    "direct": Message(op=Op.DIRECT, target="victim"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with tokens, where somebody has a queue, a key, a service and an id."""
    everything = {one: ["#"] for one in ("publish", "subscribe", "serve", "store", "declare")}
    config = token("alice", **everything) + token("few", publish=["mine"], subscribe=["mine"])
    with (
        Broker(tmp_path_factory.mktemp("held"), config + token("root", admin=True)) as broker,
        Client(broker) as alice,
    ):
        assert alice.login("victim", secret_of("alice")).op == Op.OK
        for message in (
            Message(op=Op.ENQUEUE, address="jobs", id="1"),
            Message(op=Op.CREATE, address="key", payload=b"secret"),
            Message(op=Op.SERVE, address="svc"),
        ):
            assert alice.ask(message).op == Op.OK
        yield broker


@pytest.mark.parametrize("who", ["a stranger", "few"])
@pytest.mark.parametrize("action", RIGHTS_OF_OPS)
@pytest.mark.parametrize("dialect", OPS)
def test_an_op_without_the_right_to_it_is_refused(
    broker: Broker, dialect: str, action: str, who: str
) -> None:
    with Client(broker, dialect) as client:
        if who == "few":
            assert client.login("", secret_of("few")).op == Op.OK
        answer = client.ask(RIGHTS_OF_OPS[action])
        assert answer.op == Op.ERROR
        assert answer.parameters.code == "unauthorized"
        assert b"secret" not in answer.payload


@pytest.mark.parametrize("action", RIGHTS_OF_TMQ)
@pytest.mark.parametrize("dialect", TMQ)
def test_a_tmq_message_without_the_right_to_it_is_refused(
    broker: Broker, dialect: str, action: str
) -> None:
    with Client(broker, dialect) as client:
        client.send(Message(op=Op.HANDSHAKE))
        assert client.receive().op == Op.HANDSHAKE
        hello = f"Client-Token: {secret_of('few')}\r\n"
        client.send(Message(op=Op.HELLO, payload=hello.encode()))
        assert client.receive().op == Op.OK
        client.send(replace(RIGHTS_OF_TMQ[action], id="1", flags=Flag.RESPONSE))
        answer = client.receive()
        assert (answer.op, answer.content_type) == (Op.REPLY, 401), answer


@pytest.mark.parametrize("dialect", ["boson-text", "mfp-1"])
def test_dialects_with_few_ops_reach_nothing_without_the_right_to_it(
    broker: Broker, dialect: str
) -> None:
    # Here refusals are not told one by one: what counts is what nobody gets.
    with (
        Client(broker) as alice,
        Client(broker, dialect) as few,
        Client(broker, dialect) as listener,
    ):
        alice.login("", secret_of("alice"))
        assert alice.ask(Message(op=Op.SUBSCRIBE, address="#")).op == Op.OK
        refused = broker.counters(secret_of("root")).get("refused.unauthorized", 0)
        for client, role in ((few, "pub"), (listener, "sub")):
            if dialect == "mfp-1":
                name = f"few:{secret_of('few')}"
                said = Parameters(connection=role)
                client.send(Message(op=Op.HANDSHAKE, source=name, parameters=said))
            else:
                said = Parameters(token=secret_of("few"))
                client.send(Message(op=Op.AUTH, parameters=said, correlation_id="1"))
            assert client.receive().op != Op.ERROR
        for filter in ("x", "#", "$events", "jobs"):
            listener.send(Message(op=Op.SUBSCRIBE, address=filter))
        for address in ("x", "jobs", "svc", "house/door", "mine2"):
            few.send(Message(address=address, payload=b"forged"))
        few.send(Message(address="mine", payload=b"mine"))
        received = alice.receive()
        assert (received.address, received.payload) == ("mine", b"mine")
        alice.send(Message(address="x", payload=b"secret"), Message(address="jobs", payload=b"job"))
        assert alice.receive().payload == b"secret"
        now = broker.counters(secret_of("root"))["refused.unauthorized"]
        assert now >= refused + 5
        listener.socket.settimeout(1)
        seen = b""
        try:
            while part := listener.socket.recv(4096):
                seen += part
        except TimeoutError:
            pass
        assert b"secret" not in seen
        assert b"job" not in seen.replace(b"jobs", b"")


NASTY = "a\r\n\r\nb;to=evil;x=1|m|\x00\x1b[2J\u2028\u202e %"
FORGED = "v\r\n\r\nPUB t/2\r\n\r\n5|0|t/2|hello"
TRANSLATED = ["boson-text", *OPS]


@pytest.mark.parametrize("dialect", ["boson-binary", "kobold-2", "kobold-3"])
def test_no_field_of_a_message_becomes_a_message_of_another_dialect(
    tmp_path: Path, dialect: str
) -> None:
    message = Message(
        address="t/1",
        payload=b"hello",
        id=NASTY,
        correlation_id="c\r\n;d",
        headers={NASTY: NASTY, "k\r\nx": FORGED, "plain": FORGED},
    )
    with Broker(tmp_path) as broker, Client(broker, dialect) as sender:
        listeners = {other: Client(broker, other) for other in TRANSLATED}
        for listener in listeners.values():
            listener.send(Message(op=Op.SUBSCRIBE, address="t/#", correlation_id="1"))
            assert listener.receive().op == Op.OK
        sender.send(message, Message(address="t/end", payload=b"end"))
        for other, listener in listeners.items():
            received = [listener.receive()]
            while received[-1].address != "t/end":
                received.append(listener.receive())
            # What a dialect cannot say is left out; nothing is made up.
            assert [one.address for one in received[:-1]] in ([], ["t/1"]), (other, received)
            for one in received[:-1]:
                assert one.payload == b"hello", other
                assert one.headers.get("plain", FORGED) == FORGED, other
                assert one.target == "", other
                assert one.id in ("", NASTY), other
            listener.close()


@pytest.mark.parametrize("dialect", OPS)
def test_what_is_refused_is_told_by_one_of_the_known_codes(broker: Broker, dialect: str) -> None:
    with Client(broker, dialect) as client:
        for message in (
            Message(op=Op.SUBSCRIBE, address="a/#/b"),
            Message(op=Op.INFO, address="$nothing"),
            Message(op=Op.DELIVER, address="x"),
        ):
            answer = client.ask(message)
            assert (answer.op, answer.parameters.code in CODES) == (Op.ERROR, True), answer
