"""Questions between nodes on a real NATS server: answers of any size, refusals, silence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.cluster.servers import Servers
from wirelake.cluster.bus import Bus
from wirelake.cluster.calls import PART, Calls
from wirelake.errors import EngineError, RefusedError


@pytest.fixture
async def pair(nats: Servers, prefix: str) -> AsyncIterator[tuple[Calls, Calls]]:
    """Two nodes: `one` asks, and `two` answers."""
    buses = [await Bus.connect(nats.urls, prefix, name) for name in ("one", "two")]
    made = [Calls(bus, name) for bus, name in zip(buses, ("one", "two"), strict=True)]
    for each in made:
        await each.start()
    one, two = made
    two.answer = lambda: _answer
    while True:  # until the server of the one knows that the other listens
        with contextlib.suppress(EngineError):
            await one.ask("two", b"hello", timeout=60)
            break
        await asyncio.sleep(0.01)
    yield one, two
    for each in made:
        await each.stop()
    for bus in buses:
        await bus.close()


async def _answer(question: bytes) -> bytes:
    word, _, more = question.partition(b" ")
    match word:
        case b"size":
            return b"x" * int(more)
        case b"refuse":
            raise RefusedError("conflict", more.decode())
        case b"fail":
            raise RuntimeError("a fault of ours")
        case b"sleep":
            await asyncio.sleep(float(more))
    return question


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART, 5_000_000])
async def test_an_answer_of_any_size_comes_whole(pair: tuple[Calls, Calls], size: int) -> None:
    got = await pair[0].ask("two", b"size %d" % size, timeout=60, most=6_000_000)
    assert got == b"x" * size


async def test_an_answer_that_is_larger_than_asked_for_is_refused(
    pair: tuple[Calls, Calls],
) -> None:
    with pytest.raises(RefusedError, match="has an answer of 2000 bytes, of which 1999 are taken"):
        await pair[0].ask("two", b"size 2000", timeout=60, most=1999)
    assert await pair[0].ask("two", b"size 2000", timeout=60, most=2000) == b"x" * 2000


async def test_refusals_and_faults_are_told(pair: tuple[Calls, Calls]) -> None:
    with pytest.raises(RefusedError, match="no: such: queue") as refused:
        await pair[0].ask("two", b"refuse no: such: queue", timeout=60)
    assert refused.value.code == "conflict"
    with pytest.raises(RefusedError, match="the node two failed to answer this"):
        await pair[0].ask("two", b"fail", timeout=60)
    with pytest.raises(RefusedError, match="the node one has no HTTP"):
        await pair[1].ask("one", b"size 1", timeout=60)
    with pytest.raises(RefusedError, match="a question has at most"):
        await pair[0].ask("two", b"x" * (1 << 20), timeout=60)


async def test_a_node_that_is_not_there_or_silent_is_told_apart(pair: tuple[Calls, Calls]) -> None:
    with pytest.raises(EngineError, match="the node three does not answer"):
        await pair[0].ask("three", b"size 1", timeout=60)
    with pytest.raises(RefusedError, match="the node two has not answered") as refused:
        await pair[0].ask("two", b"sleep 60", timeout=0.2)
    assert refused.value.code == "timeout"


async def test_a_slow_question_does_not_hold_others_up_but_too_many_are_refused(
    pair: tuple[Calls, Calls], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair[1], "_at_once", 3)
    slow = [asyncio.create_task(pair[0].ask("two", b"sleep 2", timeout=60)) for _ in range(3)]
    await asyncio.sleep(0.5)
    with pytest.raises(RefusedError, match=r"answers 3 questions \(cluster.questions\)"):
        await pair[0].ask("two", b"size 1", timeout=60)
    assert await asyncio.gather(*slow) == [b"sleep 2"] * 3
    assert await pair[0].ask("two", b"size 1", timeout=60) == b"x"
