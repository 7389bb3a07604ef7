"""Whoever reads bytes ends where nothing more can be read, also when a scanner is at fault.

A loop that does not end is told by the number of calls, never by the time it takes.
"""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fuzz.native.build import compile_kernel
from tests.broker.desk import Desk
from tests.wire import faulty as plain
from wirelake.dialects.codec import Feed
from wirelake.errors import ProtocolError
from wirelake.message import Message, Op
from wirelake.spark.spans import tables, whole
from wirelake.wire import COMPILED, FrameTable

MakeScanner = Callable[[], Any]


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> MakeScanner:
    """The class of a scanner that is at fault, compiled where the kernels are."""
    if not COMPILED:
        return plain.FaultyScanner
    library = compile_kernel(Path(plain.__file__), tmp_path_factory.mktemp("faulty"))
    spec = importlib.util.spec_from_file_location("faulty", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: MakeScanner = module.FaultyScanner
    return made


class StuckScanner:
    """Claims that there is more to be had, and consumes nothing."""

    offset = need = 0
    again = True

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.calls = 0

    def scan(self, data: memoryview, table: FrameTable) -> int:
        """Deliver rows that take no bytes."""
        self.calls += 1
        if self.calls > 100:
            raise RuntimeError("the caller goes on for ever")
        table.fill([Message(op=Op.PONG)] * self.rows)
        return 0

    finish = scan


def test_a_row_counted_before_the_fault_is_taken_back(faulty: MakeScanner) -> None:
    scanner, table = faulty(), FrameTable(8)
    assert scanner.scan(b"rr!r", table) == 2
    assert table.count == 2
    assert len(table.side) == 0
    assert scanner.again
    for _ in range(3):
        with pytest.raises(ProtocolError, match="a fault behind the row") as error:
            scanner.scan(b"!r", table)
        assert error.value.offset == 2
        assert table.count == 0
        assert len(table.side) == 0


def test_a_row_of_an_unfinished_frame_is_taken_back(faulty: MakeScanner) -> None:
    scanner, table = faulty(), FrameTable(8)
    assert scanner.scan(b"r?r", table) == 1
    assert table.count == 1
    assert not scanner.again
    assert scanner.scan(b"?r", table) == 0
    assert table.count == 0
    with pytest.raises(ProtocolError, match="ends inside a frame"):
        scanner.finish(b"?r", table)


def test_a_full_table_before_the_fault_is_delivered_first(faulty: MakeScanner) -> None:
    scanner, table = faulty(), FrameTable(2)
    assert scanner.scan(b"rr!", table) == 2
    assert table.count == 2
    with pytest.raises(ProtocolError):
        scanner.scan(b"!", table)


@pytest.mark.parametrize("data", [b"!", b"rrr!rr", b"?", b"rr?", b"rrrr"])
def test_a_feed_ends(faulty: MakeScanner, data: bytes) -> None:
    feed = Feed("mfp-1", capacity=2)
    feed._scanner = scanner = faulty()
    rows, faults = 0, 0
    steps: tuple[Callable[[], Iterator[FrameTable]], ...] = (
        lambda: feed.receive(data),
        feed.finish,
    )
    for take in steps:
        try:
            for table in take():
                rows += table.count
        except ProtocolError:
            faults += 1
    good = len(data) - len(data.lstrip(b"r"))
    assert rows == good
    assert bool(faults) == (good < len(data))
    assert scanner.calls < 20


def test_a_session_closes_behind_the_rows_before_the_fault(faulty: MakeScanner) -> None:
    client = Desk().client("mfp-1")
    client.session.scanner = scanner = faulty()
    client.say(b"rrr!")
    assert client.session.closed
    assert not client.is_open
    assert scanner.calls == 5  # three rows, the fault, and the fault once more


def test_a_stream_that_is_decoded_ends_at_the_fault(faulty: MakeScanner) -> None:
    scanner = faulty()
    data = memoryview(b"rr!r")
    found = []
    try:
        for at, table in tables(scanner, whole(data)):
            found.append((at, table.count))
    except ProtocolError as error:
        found.append((error.offset, 0))
    assert found == [(0, 2), (2, 0)]
    assert scanner.calls < 20


with_and_without_rows = pytest.mark.parametrize("rows", [0, 1])


@with_and_without_rows
def test_a_feed_does_not_go_on_that_consumes_nothing(rows: int) -> None:
    feed = Feed("mfp-1", capacity=2)
    feed._scanner = stuck = StuckScanner(rows)  # type: ignore[assignment]  # it only looks like one
    assert [table.count for table in feed.receive(b"abc")] == [1] * rows
    assert [table.count for table in feed.finish()] == [1] * rows
    assert stuck.calls == 2


@with_and_without_rows
def test_a_session_does_not_go_on_that_consumes_nothing(rows: int) -> None:
    session = Desk().client("boson-binary").session
    session.scanner = stuck = StuckScanner(rows)  # type: ignore[assignment]
    assert session.receive(memoryview(b"abc"), 101.0) == 0
    assert stuck.calls == 1


@with_and_without_rows
def test_decoding_does_not_go_on_that_consumes_nothing(rows: int) -> None:
    stuck = StuckScanner(rows)
    seen = tables(stuck, whole(memoryview(b"abc")))  # type: ignore[arg-type]
    assert [table.count for _, table in seen] == [1] * rows
    assert stuck.calls == 1
