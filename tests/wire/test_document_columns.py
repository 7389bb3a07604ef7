"""Documents into columns: what is plain is read, all else is marked as odd."""

from __future__ import annotations

import json
import struct
from array import array
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wirelake.wire.document_columns import (
    BOOLEAN,
    BYTES,
    FLOAT,
    INTEGER,
    TEXT,
    THERE,
    CborColumns,
    Columns,
    Field,
    JsonColumns,
)

FIELDS = [
    (b"whole", INTEGER, -(2**31), 2**31 - 1, False),
    (b"float", FLOAT, 0, 0, False),
    (b"yes", BOOLEAN, 0, 0, False),
    (b"text", TEXT, 0, 0, False),
    (b"bytes", BYTES, 0, 0, False),
]
NAMES = [name.decode() for name, *_ in FIELDS]
ODD = "odd"
FINITE = st.floats(allow_nan=False, allow_infinity=False)


def read(
    payloads: list[bytes], fields: list[Field] = FIELDS, kernel: type[Columns] = CborColumns
) -> Any:
    """The rows of some payloads: the values that are there, or ODD."""
    columns = kernel(fields)
    offsets = array("i", [3])  # as the offsets of a slice begin
    for payload in payloads:
        offsets.append(offsets[-1] + len(payload))
    rows = len(payloads)
    count = columns.read(memoryview(b"..." + b"".join(payloads)), memoryview(offsets), 0, rows)
    assert count == sum(columns.odd)
    octets = [bytes(one.take()) for one in columns.octets]
    found: list[Any] = []
    for row in range(rows):
        values = {}
        for number, (name, kind, *_) in enumerate(fields):
            if columns.marks[number * rows + row] != THERE:
                continue
            at = number * (rows + 1) + row
            code = "<d" if kind == FLOAT else "<q"
            (value,) = struct.unpack_from(code, columns.cells, 8 * at)
            if kind >= TEXT:
                (end,) = struct.unpack_from("<q", columns.cells, 8 * (at + 1))
                value = octets[number][value:end]
                value = value.decode() if kind == TEXT else value
            values[name.decode()] = bool(value) if kind == BOOLEAN else value
        found.append(ODD if columns.odd[row] else values)
        assert not (columns.odd[row] and values)
    return found


def test_plain_maps_are_read_whatever_else_they_have() -> None:
    # decision 80
    values: list[dict[str, Any]] = [
        {"whole": -5, "float": 21.5, "yes": True, "text": "hé", "bytes": b"\xff"},
        {},
        {"text": "", "other": {"deep": [1, -2, None, {"er": b"x"}], "half": 1.5}, "float": 7},
        {"yes": False, "whole": 2**31 - 1, "bytes": b""},
    ]
    seen = [{name: one[name] for name in NAMES if name in one} for one in values]
    assert read([cbor2.dumps(one) for one in values]) == seen


def test_null_is_no_value() -> None:
    assert read([cbor2.dumps({"whole": None, "text": None})]) == [{}]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xa1",
        b"\xa1\x65whole",
        b"\xa1\x65whole\x18",
        b"\xa1\x64text\x61",
        b"\xa1\x61\xff\x01",
        b"\xa1\x64text\x61\xff",
        b"\xa1\x61x\xc1\x01",
        b"\xa2\x65whole\x01\x65whole\x02",
        b"\xbf\xff",
        b"\xbb" + b"\x7f" * 8,
        b"\xa1\x64text\x7b" + b"\x7f" * 8,
        cbor2.dumps({"whole": 1}) + b"\x00",
        *map(
            cbor2.dumps,
            [5, [1], {1: 2}, {"whole": 2**31}, {"whole": 1.0}, {"whole": "1"}, {"yes": 1},
             {"text": b"x"}, {"bytes": "x"}, {"float": "1"}, {"float": 2**60}, {"whole": 2**64}],
        ),
    ],
)  # fmt: skip
def test_what_is_not_plain_is_odd_and_touches_no_other(payload: bytes) -> None:
    good = cbor2.dumps({"whole": 1, "text": "a"})
    assert read([good, payload, good]) == [
        {"whole": 1, "text": "a"},
        ODD,
        {"whole": 1, "text": "a"},
    ]


def test_a_value_that_must_be_there_is_missed() -> None:
    fields = [(b"whole", INTEGER, 0, 9, True)]
    payloads = [cbor2.dumps(one) for one in ({"whole": 1}, {}, {"whole": None})]
    assert read(payloads, fields) == [{"whole": 1}, ODD, ODD]


@given(st.lists(FINITE, min_size=1))
def test_numbers_of_every_width_stay_what_they_are(numbers: list[float]) -> None:
    payloads = [cbor2.dumps({"float": one}) for one in numbers]
    payloads += [b"\xa1\x65float\xfa" + struct.pack(">f", one) for one in (0.1, -1.5e-30, 3e38)]
    wanted = [
        *numbers,
        *(struct.unpack("f", struct.pack("f", one))[0] for one in (0.1, -1.5e-30, 3e38)),
    ]
    assert read(payloads) == [{"float": one} for one in wanted]


def test_plain_objects_are_read_whatever_else_they_have() -> None:
    values: list[dict[str, Any]] = [
        {"whole": -5, "float": 21.5, "yes": True, "text": "hé"},
        {},
        {"text": "", "other": {"deep": [1, -2, None, {"er": "x"}], "half": 1.5}, "float": 7},
        {"yes": False, "whole": 2**31 - 1, "float": 1.0000000000000002e-300, "text": None},
    ]
    seen = [{name: one[name] for name in NAMES if one.get(name) is not None} for one in values]
    for indent in (None, 2):
        texts = [json.dumps(one, ensure_ascii=False, indent=indent).encode() for one in values]
        assert read(texts, FIELDS[:4], JsonColumns) == seen


@pytest.mark.parametrize(
    "payload",
    [b"", b" ", b"{", b"{}{}", b"[]", b"1", b'{"whole": 1', b'{"whole": 1.0}', b'{"whole": 1,}',
     b'{"whole": 01}', b'{"whole": 1, "whole": 1}', b'{"text": "\\n"}', b'{"text": "\n"}',
     b'{"text": "\xff"}', b'{"\xff": 1}', b'{"yes": tru', b'{"yes": 1}', b'{"float": 1e400}',
     b'{"float": "1"}', b'{"other": [}', b'{"other": [[[[[[[[[[1]]]]]]]]]]}', b"{'a': 1}",
     b'{"float": 1', b'{"text": "a', b'{"other": {"a" 1}}', b'{"whole": 99999999999999999999}'],
)  # fmt: skip
def test_what_is_not_a_plain_object_is_odd(payload: bytes) -> None:
    good = b'{"whole": 1, "text": "a"}'
    row = {"whole": 1, "text": "a"}
    assert read([good, payload, good], FIELDS[:4], JsonColumns) == [row, ODD, row]


@pytest.mark.parametrize("kernel", [CborColumns, JsonColumns])
@given(payloads=st.lists(st.binary(max_size=20) | st.text('{}[]":,0e.-tn ').map(str.encode)))
def test_any_bytes_can_be_read(kernel: type[Columns], payloads: list[bytes]) -> None:
    assert len(read(payloads, FIELDS, kernel)) == len(payloads)
