"""What differs from receiver to receiver, and how a connection knows its answers."""

from array import array

import pytest

from wirelake.dialects.codec import encoder, scanner
from wirelake.message import Flag, Message, Op
from wirelake.wire import FrameTable
from wirelake.wire.codec import stamp_bits, stamp_numbers

FIRST = 0x80


def table_of(*messages: Message) -> FrameTable:
    """A table with these messages, as if they were read from kobold-3."""
    table = FrameTable(8)
    table.fill(messages, "kobold-3")
    return table


def flags_of(dialect: str, frames: bytes | memoryview) -> list[bool]:
    """Which of the frames tell their receiver that it is the first."""
    table = FrameTable(8)
    scanner(dialect).scan(bytes(frames), table)
    return [Flag.FIRST in message.flags for message in table.messages()]


@pytest.mark.parametrize("dialect", ["tmq-1.00", "tmq-1.01"])
def test_a_batch_is_encoded_once_and_stamped_for_the_first_receiver(dialect: str) -> None:
    encode = encoder(dialect, client=False)
    frames = bytes(encode.encode(table_of(Message("a", b"1"), Message("b/c", b"22"))))
    stamped = stamp_bits(frames, encode.marks(), FIRST)
    assert flags_of(dialect, frames) == [False, False]
    assert flags_of(dialect, stamped) == [True, True]
    assert len(stamped) == len(frames)


def test_frames_that_nobody_shares_are_stamped_in_place() -> None:
    encode = encoder("tmq-1.01", client=False)
    frames = encode.encode(table_of(Message("a", b"1"), Message("b/c", b"22")), range(2))
    stamped = stamp_bits(frames, encode.marks(), FIRST, shared=False)
    assert flags_of("tmq-1.01", frames) == [True, True]
    assert stamped.obj is frames.obj
    numbers = memoryview(bytearray(4))
    assert stamp_numbers(numbers, bytes([0, 0, 0, 1]), [0x1234], shared=False) == numbers
    assert bytes(numbers) == bytes([0, 0x12, 0x34, 0])


def test_bytes_of_others_are_never_stamped_in_place() -> None:
    with pytest.raises((BufferError, TypeError)):
        stamp_bits(bytes(4), bytes(4), 1, shared=False)


def test_rows_are_encoded_by_range_as_one_by_one() -> None:
    table = table_of(*(Message("a", b"%d" % k) for k in range(5)))
    by_range = bytes(encoder("kobold-3").encode(table, range(1, 4)))
    assert by_range == bytes(encoder("kobold-3").encode(table, [1, 2, 3]))
    for wrong in (range(-1, 2), range(4, 6)):
        with pytest.raises(IndexError):
            encoder("kobold-3").encode(table, wrong)


def test_marks_are_those_of_the_last_batch_and_of_rows_that_were_written() -> None:
    encode = encoder("tmq-1.01", client=False)
    unsayable = Message("a", b"x", id="i" * 300)
    for _ in range(2):
        encode.encode(table_of(Message("a", b"1"), unsayable, Message("b", b"2")))
    assert len(encode.marks()) == 2 * 4
    encode.encode(table_of(Message(op=Op.PING)))
    assert encode.marks() == b""


def test_other_dialects_have_no_marks() -> None:
    encode = encoder("boson-binary", client=False)
    encode.encode(table_of(Message("a", b"1")))
    assert encode.marks() == b""


def test_numbers_are_stamped_big_endian_at_the_marks() -> None:
    marks = bytes([0, 0, 0, 1, 0, 0, 0, 4])
    frames = bytes(6)
    assert bytes(stamp_numbers(frames, marks, [1, 0x1234])) == bytes([0, 0, 1, 0, 0x12, 0x34])
    assert frames == bytes(6)


@pytest.mark.parametrize(
    ("marks", "numbers"),
    [(bytes([0, 0, 0, 5]), [1]), (bytes([0xFF] * 4), [1]), (bytes(4), []), (b"", [1])],
)
def test_a_mark_outside_of_the_frames_is_refused(marks: bytes, numbers: list[int]) -> None:
    with pytest.raises((IndexError, ValueError)):
        stamp_numbers(bytes(6), marks, numbers)


def test_bits_outside_of_the_frames_are_refused() -> None:
    with pytest.raises(IndexError):
        stamp_bits(bytes(4), bytes([0, 0, 0, 4]), 1)


def test_an_answer_has_the_ticket_of_what_it_answers_and_not_only_its_id() -> None:
    asked = table_of(Message("a", id="m1", ticket=7), Message("b", ticket=65535))
    answers = FrameTable(8)
    answers.answer(asked, array("i", [1, 0]), Op.OK)
    assert [(one.id, one.ticket) for one in answers.messages()] == [("", 65535), ("m1", 7)]


def test_a_row_that_is_scanned_has_no_ticket_of_the_row_before() -> None:
    table = table_of(Message("a", ticket=7))
    frames = bytes(encoder("kobold-3").encode(table))
    scanner("kobold-3").scan(frames, table)
    assert [message.ticket for message in table.messages()] == [0]
