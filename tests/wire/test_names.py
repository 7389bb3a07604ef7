"""The set of byte strings that numbers them, against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from wirelake.wire.names import Names

texts = st.lists(st.binary(max_size=12), max_size=200)


@given(texts, texts, st.integers(0, 2**32 - 1))
def test_strings_are_numbered_in_the_order_in_which_they_came(
    known: list[bytes], others: list[bytes], seed: int
) -> None:
    names = Names(seed)
    model: dict[bytes, int] = {}
    for one in known:
        assert names.add_bytes(one) == model.setdefault(one, len(model))
    assert len(names) == len(model)
    for one in [*known, *others]:
        assert names.find_bytes(one) == model.get(one, -1)


def test_a_set_grows_and_begins_again_when_it_is_cleared() -> None:
    names = Names(7)
    for _ in range(2):
        numbers = [names.add_bytes(b"address/%d" % k) for k in range(10_000)]
        assert numbers == list(range(10_000))
        assert [names.find_bytes(b"address/%d" % k) for k in range(10_000)] == numbers
        names.clear()
        assert (len(names), names.find_bytes(b"address/1")) == (0, -1)


def test_strings_of_one_slot_are_told_apart() -> None:
    names = Names(0, room=1 << 12)
    some = [k.to_bytes(2, "big") for k in range(1 << 12)]  # more than half of the slots are taken
    assert [names.add_bytes(one) for one in some] == list(range(1 << 12))
    assert [names.find_bytes(one) for one in some] == list(range(1 << 12))
    assert names.find_bytes(b"") == -1
