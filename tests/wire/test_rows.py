"""Rows as nodes pass them on: nothing is lost, and bytes that are no rows are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import messages
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder, scanner
from wirelake.errors import ProtocolError
from wirelake.message import Message
from wirelake.wire import FrameTable
from wirelake.wire.rows import count_rows, pack, unpack

BUILT_IN = [
    *("boson-text", "boson-binary", "mfp-1", "kobold-1", "kobold-2", "kobold-3"),
    *("tmq-1.00", "tmq-1.01"),
]


@pytest.mark.parametrize("dialect", BUILT_IN)
@given(data=st.data())
def test_rows_come_out_as_they_went_in(dialect: str, data: st.DataObject) -> None:
    source, table = FrameTable(), FrameTable()
    source.fill(data.draw(st.lists(messages(dialect), min_size=1, max_size=6)), dialect)
    rows = data.draw(st.lists(st.integers(0, source.count - 1), unique=True))
    packed = bytes(pack(source, rows, b"somebody"))
    assert count_rows(packed) == len(rows)
    assert unpack(packed, table) == b"somebody"
    assert table.dialect == dialect
    assert list(table.messages()) == [source.message(row) for row in rows]
    assert bytes(pack(table, range(table.count), b"somebody")) == packed
    unpack(bytes(pack(source, rows, whole=False)), table)
    for row, message in zip(rows, table.messages(), strict=True):
        assert message.id == source.message(row).id
        assert (message.payload, message.headers) == (b"", {})


@pytest.mark.parametrize("dialect", BUILT_IN)
def test_rows_of_a_scanned_buffer_are_encoded_as_before(dialect: str) -> None:
    """Raw ids, headers that were not read and tickets survive."""
    made, scanned, table = FrameTable(), FrameTable(), FrameTable()
    made.fill([Message(address=f"a/{k}", payload=bytes([k])) for k in range(5)], dialect)
    write = encoder(dialect)
    write.prepare(b"12345678", split=False)
    frames = bytes(write.encode(made))
    read = scanner(dialect)
    read.resume()
    read.scan(frames, scanned)
    count = scanned.count
    assert count >= 5
    unpack(bytes(pack(scanned, range(count))), table)
    assert table.raw_ids == scanned.raw_ids
    assert list(table.ticket[:count]) == list(scanned.ticket[:count])
    for form in DIALECTS:
        encode = encoder(form, client=False)
        encode.prepare(b"12345678", split=False)
        again = encoder(form, client=False)
        again.prepare(b"12345678", split=False)
        assert bytes(encode.encode(table)) == bytes(again.encode(scanned))


@given(data=st.data())
def test_bytes_that_are_no_rows_are_refused_or_read_whole(data: st.DataObject) -> None:
    source, table = FrameTable(), FrameTable(8)
    source.fill(data.draw(st.lists(messages("kobold-3"), min_size=1, max_size=4)), "kobold-3")
    packed = bytearray(pack(source, range(source.count)))
    for _ in range(data.draw(st.integers(1, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.integers(0, len(packed)))]
    try:
        unpack(bytes(packed), table)
    except ProtocolError:
        return
    assert len(list(table.messages())) == table.count <= 8


def test_what_is_too_much_or_too_new_is_refused() -> None:
    source = FrameTable()
    source.fill([Message(address="a")] * 3, "mfp-1")
    packed = bytes(pack(source, range(3)))
    with pytest.raises(ProtocolError, match="3 rows, more than 2"):
        unpack(packed, FrameTable(2))
    with pytest.raises(ProtocolError, match="no rows of version 1"):
        unpack(b"\2" + packed[1:], FrameTable(4))
    with pytest.raises(ProtocolError, match="1 bytes behind the last row"):
        unpack(packed + b"x", FrameTable(4))
