"""Parameters: headers on the wire and in the log, typed values in memory, one way between them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wire.strategies import headers, text
from wirelake.message import NO_PARAMETERS, Message, Op, Parameters
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA, from_arrow, to_arrow
from wirelake.wire.parameters import HEADERS, headers_of, split

NAMES = sorted(HEADERS)


def through(message: Message) -> Message:
    """A message that was a row of a table."""
    table = FrameTable(1)
    table.fill([message])
    return table.message(0)


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("client", "dev-1", "dev-1"),
        ("token", "s3cret", "s3cret"),
        ("rev", "0", 0),
        ("rev", "9223372036854775807", 2**63 - 1),
        ("count", "999999999", 999_999_999),
        ("wait", "1", 0.001),
        ("wait", "999999999", 999_999.999),
        ("code", "busy", "busy"),
        ("attempt", "12", 12),
        ("requeue", "0", False),
        ("timestamp", "9", 9),
        ("timestamp", "-9223372036854775808", -(2**63)),
        ("timestamp", "9223372036854775807", 2**63 - 1),
        ("connection", "sub", "sub"),
    ],
)
def test_a_parameter_has_its_type(name: str, said: str, value: Any) -> None:
    own, parameters = split({"k": "v", f"${name}": said}, Op.OK)
    assert (own, parameters) == ({"k": "v"}, Parameters(**{name: value}))
    assert type(getattr(parameters, name)) is type(value)
    assert headers_of(Message(headers=own, parameters=parameters)) == {"k": "v", f"${name}": said}


@pytest.mark.parametrize(
    ("name", "said", "value"),
    [
        ("rev", "007", 7),
        ("count", "00", 0),
        ("wait", "0010", 0.01),
        ("requeue", "1", True),
        ("requeue", "yes", True),
        ("code", "", ""),
        ("timestamp", "-0", 0),
        ("rev", "1.2", None),
        ("rev", "", None),
        ("rev", "9223372036854775808", None),
        ("count", "many", None),
        ("count", "1000000000", None),
        ("wait", "\u0665", None),
        ("attempt", "-1", None),
        ("timestamp", "9223372036854775808", None),
        ("timestamp", "1_0", None),
    ],
)
def test_a_text_that_would_be_written_differently_is_kept(
    name: str, said: str, value: object
) -> None:
    own, parameters = split({f"${name}": said}, Op.ENQUEUE)
    assert (own, getattr(parameters, name)) == ({}, value)
    assert parameters.verbatim == {name: said}
    assert parameters.fault == ""  # ENQ takes none of them
    assert headers_of(Message(parameters=parameters)) == {f"${name}": said}


@pytest.mark.parametrize(
    ("op", "name", "fault"),
    [
        (Op.SUBSCRIBE, "count", "count is a number, not many"),
        (Op.DEQUEUE, "count", "count is a number, not many"),
        (Op.DEQUEUE, "wait", "wait is a number, not many"),
        (Op.UPDATE, "rev", "rev is a number, not many"),
        (Op.DELETE, "rev", "rev is a number, not many"),
        (Op.WATCH, "rev", "rev is a number, not many"),
        (Op.CREATE, "rev", ""),
        (Op.PUBLISH, "count", ""),
        (Op.OK, "attempt", ""),
    ],
)
def test_a_message_is_faulty_where_its_op_takes_the_parameter(
    op: Op, name: str, fault: str
) -> None:
    message = through(Message(op=op, parameters=Parameters(verbatim={name: "many"})))
    assert message.parameters.fault == fault


def test_the_first_of_several_faults_is_told() -> None:
    for texts in ({"wait": "x", "count": "y"}, {"count": "y", "wait": "x"}):
        message = through(Message(op=Op.DEQUEUE, parameters=Parameters(verbatim=texts)))
        assert message.parameters.fault == "count is a number, not y"


@given(
    st.sampled_from(Op),
    headers(),
    st.dictionaries(
        st.sampled_from(NAMES),
        st.one_of(text(20), st.integers(-(2**70), 2**70).map(str), st.just("00")),
    ),
)
def test_a_row_is_written_as_it_was_read(op: Op, own: dict[str, str], said: dict[str, str]) -> None:
    message = Message(op=op, headers=own, parameters=split(said, op)[1])
    again = through(message)
    assert again == message
    assert headers_of(again) == own | said
    table = FrameTable(1)
    table.fill([again])
    assert table.headers(0) == own | said
    assert table.parameters(0) == again.parameters
    logged = {name: value for name, value in (own | said).items() if name != "$token"}
    assert dict(to_arrow(table).column("headers").to_pylist()[0]) == logged


def test_no_parameters_are_one_object() -> None:
    assert through(Message(headers={"k": "v"})).parameters is NO_PARAMETERS
    assert split({"k": "v"}, Op.PUBLISH) == ({"k": "v"}, NO_PARAMETERS)
    assert Parameters(token="t").but(token="") is NO_PARAMETERS
    assert NO_PARAMETERS.but() is NO_PARAMETERS


def test_another_value_takes_the_text_of_the_old_one_away() -> None:
    said = split({"$attempt": "none", "$rev": "1.2"}, Op.ENQUEUE)[1].but(attempt=1)
    assert headers_of(Message(parameters=said)) == {"$rev": "1.2", "$attempt": "1"}


def test_a_header_of_a_user_cannot_be_a_parameter() -> None:  # decision 20
    message = Message(headers={"$token": "stolen", "$rev": "1", "$new": "n", "k": "v"})
    assert through(message) == Message(headers={"$new": "n", "k": "v"})
    message = Message(headers={"$rev": "1"}, parameters=Parameters(rev=2))
    assert through(message) == Message(parameters=Parameters(rev=2))


def test_a_row_of_the_log_has_its_parameters_again() -> None:
    column: Any = pa.array(
        [[("k", "v"), ("$rev", "3"), ("$new", "n")]], SCHEMA.field("headers").type
    )
    table = FrameTable(1)
    from_arrow(pa.record_batch({"headers": column}), table)
    message = table.message(0)
    assert (message.headers, message.parameters) == ({"k": "v", "$new": "n"}, Parameters(rev=3))
