"""Every vector, whole, cut at every place, byte by byte, and back through the encoder."""

import pytest
from msgspec.structs import replace

from tests.wire.reading import chunks, cut, read, single_bytes
from tests.wire.vectors import Vector, load
from wirelake.dialects import DIALECTS
from wirelake.dialects.codec import encoder
from wirelake.message import Flag, Message, Op
from wirelake.wire import COMPILED

SPEC = load("spec")
OWN = load("own")
VECTORS = SPEC + OWN

#: A stream longer than this is cut at a sample of its places.
LONG = 2000

every_vector = pytest.mark.parametrize("vector", VECTORS, ids=str)
every_good_vector = pytest.mark.parametrize(
    "vector", [vector for vector in VECTORS if not vector.is_bad], ids=str
)


def places(size: int) -> list[int]:
    """Where to cut a stream: everywhere, or where it matters and here and there."""
    if size <= LONG:
        return list(range(1, size))
    between = range(300, size - 50, (size - 350) // 50)
    return sorted({*range(1, 300), *between, *range(size - 50, size)})


@every_vector
def test_a_vector_is_read_as_it_says(vector: Vector) -> None:
    reading = read(vector.dialect, [vector.data])
    assert (reading.fault is not None) == vector.is_bad, reading.fault
    vector.check(reading.messages)
    if "inclusive" in vector.frame:
        assert reading.scanner.inclusive == vector.frame["inclusive"]  # type: ignore[attr-defined]
    if "order" in vector.frame:
        is_little = reading.scanner.little  # type: ignore[attr-defined]
        assert is_little == (vector.frame["order"] == "little")


@every_vector
def test_a_vector_cut_in_two_is_read_as_the_whole(vector: Vector) -> None:
    whole = read(vector.dialect, [vector.data]).outcome
    for place in places(len(vector.data)):
        assert read(vector.dialect, cut(vector.data, [place])).outcome == whole, place


@every_vector
@pytest.mark.parametrize("patient", [False, True], ids=["eager", "patient"])
def test_a_vector_byte_by_byte_is_read_as_the_whole(vector: Vector, patient: bool) -> None:
    whole = read(vector.dialect, [vector.data]).outcome
    short = len(vector.data) <= LONG
    pieces = single_bytes(vector.data) if short or COMPILED else chunks(vector.data, 97)
    assert read(vector.dialect, pieces, patient=patient).outcome == whole


@every_vector
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_a_vector_read_into_a_small_table_is_read_as_the_whole(
    vector: Vector, capacity: int
) -> None:
    whole = read(vector.dialect, [vector.data]).outcome
    assert read(vector.dialect, [vector.data], capacity=capacity).outcome == whole
    middle = len(vector.data) // 2
    assert read(vector.dialect, cut(vector.data, [middle]), capacity=capacity).outcome == whole


@every_good_vector
def test_a_vector_comes_back_from_the_encoder(vector: Vector) -> None:
    back = encoder(vector.dialect)
    if vector.frame.get("inclusive"):
        back.set_variant("inclusive")
    if vector.frame.get("order") == "little":
        back.set_variant("little")
    reading = read(vector.dialect, [vector.data], encode=back)
    unknown = sum(message.op == Op.UNKNOWN for message in reading.messages)
    assert back.skipped == ({"op": unknown} if unknown else {})
    if vector.encoded is not None:
        assert reading.encoded == vector.encoded
    again = read(vector.dialect, [reading.encoded])
    assert again.fault is None
    known = [message for message in reading.messages if message.op != Op.UNKNOWN]
    assert [whole(message) for message in again.messages] == [whole(message) for message in known]


def whole(message: Message) -> Message:
    """The message out of its boson-text sequence: an encoder writes each one whole."""
    return replace(message, flags=message.flags & ~Flag.MORE)


def test_there_are_as_many_vectors_of_our_own_for_every_dialect() -> None:
    for dialect, value in DIALECTS.items():
        spec = [vector for vector in SPEC if vector.dialect == dialect]
        own = [vector for vector in OWN if vector.dialect == dialect]
        assert spec or value.family == "mqtt"  # whose standard has no vectors
        assert len(own) >= max(20, len(spec))


@pytest.mark.parametrize("vectors", [SPEC, OWN], ids=["spec", "own"])
def test_no_vector_has_the_name_of_another(vectors: list[Vector]) -> None:
    names = [str(vector) for vector in vectors]
    assert len(set(names)) == len(names)
