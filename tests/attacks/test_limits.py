"""One client that asks for far too much: it is refused, and others do not notice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.attacks.broker import MIB, Broker, Client, eventually
from wirelake.message import Message, Op, Parameters

QUOTAS = """
[quotas]
subscriptions = 50
services = 50
pulls = 50
watches = 50
queues = 50
keys = 50
levels = 8
"""

ATTACKS = {
    "subscriptions": lambda k: Message(op=Op.SUBSCRIBE, address=f"s/{k}/+"),
    "services": lambda k: Message(op=Op.SERVE, address=f"s/{k}"),
    "pulls": lambda k: Message(op=Op.DEQUEUE, address="q", parameters=Parameters(wait=999999.999)),
    "watches": lambda k: Message(op=Op.WATCH, address=f"s/{k}"),
    "queues": lambda k: Message(op=Op.ENQUEUE, address=f"q/{k}"),
    "keys": lambda k: Message(op=Op.CREATE, address=f"k/{k}"),
}


def answers(client: Client, messages: list[Message], *, wait_for: int = 0) -> Counter[str]:
    """What the broker says to these: ops, and the texts of errors.

    Answers that wait for the disk come later than the last one; `wait_for` is how many must come.
    """
    numbered = [replace(one, correlation_id=f"n{k}") for k, one in enumerate(messages)]
    client.send(*numbered, Message(op=Op.PING, correlation_id="end"))
    found: Counter[str] = Counter()
    done = False
    for answer in client.messages():
        if answer.correlation_id == "end":
            done = True
        else:
            found[answer.payload.decode() if answer.op == Op.ERROR else answer.op.label] += 1
        if done and found.total() >= wait_for:
            break
    return found


@pytest.mark.parametrize("kind", ATTACKS)
def test_more_than_the_quota_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    # decision 69
    with Broker(tmp_path, QUOTAS) as broker, Client(broker) as greedy, Client(broker) as other:
        found = answers(greedy, [ATTACKS[kind](k) for k in range(300)])
        refused = {text: count for text, count in found.items() if "quotas." in text}
        assert list(refused.values()) == [250]
        assert all(f"(quotas.{kind})" in text for text in refused)
        assert other.ask(Message(op=Op.PING)).op == Op.PONG
        assert broker.counters()["refused.busy"] == 250


def test_quotas_hold_for_http_and_change_while_the_broker_runs(tmp_path: Path) -> None:
    with Broker(tmp_path, QUOTAS) as broker:

        def put(kind: str, name: str) -> tuple[int, bytes]:
            return broker.http(f"/v1/{kind}/{name}", method="PUT", body=b"{}")

        for kind, quota in (("store", b"quotas.keys"), ("queues", b"quotas.queues")):
            said = [put(kind, f"k{k}") for k in range(51)]
            assert [status for status, _ in said] == [201] * 50 + [503]
            assert quota in said[-1][1]
        deep = "%2F".join("a" * 9)
        status, body = put("store", deep)
        assert (status, b"quotas.levels" in body) == (400, True)
        broker.configure(QUOTAS.replace("keys = 50", "keys = 60"))
        eventually(lambda: put("store", "another")[0] == 201)


def test_deep_filters_and_a_wildcard_that_comes_and_goes_work_out_little(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker) as attacker, Client(broker) as other:
        refused = answers(
            attacker, [Message(op=Op.SUBSCRIBE, address="/".join("+" * 100)) for _ in range(100)]
        )
        assert sum(n for text, n in refused.items() if "at most 32 levels" in text) == 100
        deep = ["/".join("+" if k >> bit & 1 else "a" for bit in range(32)) for k in range(900)]
        answers(attacker, [Message(op=Op.SUBSCRIBE, address=each) for each in deep])
        other.send(*(Message(address=f"other/{k}", payload=b"x") for k in range(200)))
        assert other.ask(Message(op=Op.PING)).op == Op.PONG
        before = broker.counters()["routes_worked_out"]
        for _ in range(20):
            toggle = [Message(op=op, address="zz/+") for op in (Op.SUBSCRIBE, Op.UNSUBSCRIBE)]
            answers(attacker, toggle)
            other.send(*(Message(address=f"other/{k}", payload=b"x") for k in range(200)))
            assert other.ask(Message(op=Op.PING)).op == Op.PONG
        assert broker.counters()["routes_worked_out"] == before


@pytest.mark.slow
def test_keys_made_and_deleted_give_their_memory_back(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker) as client:

        def churn(begin: int, count: int) -> None:
            for at in range(begin, begin + count, 500):
                names = [f"key/{k}" for k in range(at, at + 500)]
                made = [Message(op=Op.CREATE, address=name, payload=b"v" * 100) for name in names]
                gone = [Message(op=Op.DELETE, address=name) for name in names]
                assert answers(client, [*made, *gone], wait_for=1000) == {"ok": 1000}

        churn(0, 12_000)
        before = broker.rss()
        churn(12_000, 50_000)
        # Each would leave half a kilobyte behind; buffers of the disk come and go.
        assert broker.rss() < before + 16 * MIB


def test_one_key_updated_again_and_again_with_a_ttl_holds_no_memory(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Client(broker) as client:
        update = Message(op=Op.UPDATE, address="k", payload=b"v", ttl=2_000_000_000)
        answers(client, [Message(op=Op.CREATE, address="k")] + [update] * 2000, wait_for=2001)
        before = broker.rss()
        for _ in range(10):
            assert answers(client, [update] * 2000, wait_for=2000) == {"ok": 2000}
        assert broker.rss() < before + 16 * MIB
