"""What is an address, what is a filter, and which of them match."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelake.address import (
    check_address,
    check_client_id,
    check_filter,
    check_number,
    covers,
    matches,
)
from wirelake.broker.subscriptions import FilterIndex
from wirelake.errors import RefusedError

LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x", "ž"]), min_size=1, max_size=4)
ADDRESSES = LEVELS.map("/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(st.sampled_from(["a", "b", "", "$x", "+"]), max_size=3), st.booleans())
    .map(lambda parts: "/".join([*parts[0], *(["#"] if parts[1] else [])]))
    .filter(bool)
)


@pytest.mark.parametrize(
    ("filter", "address", "wanted"),
    [
        ("a/b", "a/b", True),
        ("a/b", "a/c", False),
        ("a/b", "/a/b", False),
        ("+/b", "a/b", True),
        ("+", "a/b", False),
        ("a/+", "a/", True),
        ("#", "a", True),
        ("#", "a/b/c", True),
        ("a/#", "a", True),
        ("a/#", "a/b/c", True),
        ("a/#", "ab", False),
        ("a/+/c", "a/b/c", True),
        ("a/+/#", "a", False),
        ("#", "$node", False),
        ("+/x", "$node/x", False),
        ("$node", "$node", True),
    ],
)
def test_a_filter_matches(filter: str, address: str, wanted: bool) -> None:
    assert matches(filter, address) is wanted


@given(st.lists(st.tuples(FILTERS, st.integers(0, 3)), max_size=12), ADDRESSES, st.data())
def test_the_index_finds_what_the_plain_rule_finds(
    entries: list[tuple[str, int]], address: str, data: st.DataObject
) -> None:
    index: FilterIndex[int] = FilterIndex()
    kept = dict.fromkeys(entries)
    for entry in kept:
        assert index.add(*entry)
        assert not index.add(*entry)
    for entry in data.draw(st.lists(st.sampled_from(entries or [("a", 0)]), max_size=5)):
        assert index.remove(*entry) == (entry in kept)
        kept.pop(entry, None)
    found = index.match(address)
    assert found == list(dict.fromkeys(item for f, item in kept if matches(f, address)))
    assert len(index) == len(kept)


@given(FILTERS, FILTERS, ADDRESSES)
def test_a_right_covers_only_filters_all_of_whose_addresses_it_matches(
    allowed: str, wanted: str, address: str
) -> None:
    if covers(allowed, wanted) and matches(wanted, address) and not wanted.startswith("$"):
        assert matches(allowed, address)


def test_a_right_to_clients_is_a_right_to_each_of_them() -> None:
    assert covers("$client/+", "$client/bob")
    assert not covers("+/+", "$client/bob")
    assert not covers("sub/+", "sub/#")


@pytest.mark.parametrize("address", ["", "a/+", "#", "a+b", "a\n", "a\x85", "x" * 256, "ž" * 128])
def test_these_are_not_addresses(address: str) -> None:
    with pytest.raises(RefusedError, match="bad_request"):
        check_address(address)


@pytest.mark.parametrize("filter", ["", "a/b+", "#/a", "a/#/b", "a#", "\x00"])
def test_these_are_not_filters(filter: str) -> None:
    with pytest.raises(RefusedError, match="bad_request"):
        check_filter(filter)


@pytest.mark.parametrize(
    "address", ["a", "/", "/a", "a//b", "x" * 255, "ž" * 127, "$node", "a b|c"]
)
def test_these_are_both(address: str) -> None:
    assert check_address(address) == check_filter(address) == address


@given(st.characters(exclude_categories=["Cs"]))
def test_only_control_characters_are_kept_out(character: str) -> None:
    address = f"a{character}b".replace("+", "").replace("#", "")
    if unicodedata.category(character) == "Cc":
        with pytest.raises(RefusedError, match="control"):
            check_address(address)
    else:
        assert check_address(address) == address


@pytest.mark.parametrize(
    "client_id",
    [
        "a",
        "client-17",
        "dev.1@host",
        "Jürgen K",
        "名前",
        "sensor/4",
        "/",
        "a:b;c=d|e",
        "x" * 64,
        "ž" * 32,
        "a$b",
    ],
)
def test_a_client_id_has_any_printed_characters(client_id: str) -> None:
    assert check_client_id(client_id) == client_id


@pytest.mark.parametrize(
    "client_id",
    [
        *("", "x" * 65, "ž" * 33, "Z" * 60_000),
        *("a\r\nInjected: yes", "a\x00", "a\x1b[2J", "a\x7f", "a\x85", "a\u2028b"),
        *("a\u202eb", "\u200b", "\ud800"),
        *("a+", "+", "#", "a/#", "$events", "$client"),
    ],
)
def test_what_is_no_client_id_is_refused(client_id: str) -> None:
    # decision 62
    with pytest.raises(RefusedError, match="bad_request") as caught:
        check_client_id(client_id)
    assert len(caught.value.text) < 100


@given(st.integers(0, 2**63 - 1))
def test_a_number_is_read_from_its_digits(number: int) -> None:
    assert check_number(str(number), "n") == number
    assert check_number("0" + str(number)[:18], "n") == int(str(number)[:18])


@pytest.mark.parametrize(
    "text",
    ["", "-1", "+1", " 1", "1 ", "1_0", "1.0", "1e3", "0x1", "many", "\u0665", "\uff15", "²", "1\n",
     "9" * 19, "9" * 20, "1" * 5000, "x" * 5000, "\u0665" * 5000],
)  # fmt: skip
def test_what_is_no_number_is_refused_with_a_short_text(text: str) -> None:
    with pytest.raises(RefusedError, match="bad_request: n is a number") as caught:
        check_number(text, "n")
    assert len(caught.value.text) < 100


def test_a_number_has_bounds() -> None:
    assert check_number("7", "n", least=7, most=7) == 7
    for text in ("6", "8"):
        with pytest.raises(RefusedError, match="n is a number from 7 to 7"):
            check_number(text, "n", least=7, most=7)
