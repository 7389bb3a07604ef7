"""Every decision, of the specification and of our own, has a test that names it.

A test says what it shows in a comment or docstring: `spec: kobold 4, tmq 7` for the numbered
decisions of the specification, `spec: identity` for a paragraph of its overview, `decision 12` for
one of docs/decisions.md. What comes next is found by searching for that text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OURS = TESTS.parent / "docs" / "decisions.md"

#: How many decisions the specification has on each subject, and the paragraphs of its overview.
SPEC = {"boson-text": 6, "boson-binary": 5, "mfp": 8, "kobold": 10, "tmq": 12}
PARAGRAPHS = [
    "address", "topics and queues", "message", "identity", "order", "translation", "requests",
    "queues", "data store", "byte streams", "limits", "detection",
]  # fmt: skip

NAMES = "|".join([*(rf"{subject} \d+" for subject in SPEC), *PARAGRAPHS])
NAMED = re.compile(rf"spec: ((?:{NAMES})(?:, (?:{NAMES}))*)|(decision \d+)")


def decisions() -> list[str]:
    """The name of every decision there is."""
    own = re.findall(r"^(\d+)\. \*\*", OURS.read_text(encoding="utf-8"), re.MULTILINE)
    spec = [f"{subject} {n + 1}" for subject, count in SPEC.items() for n in range(count)]
    return [*spec, *PARAGRAPHS, *(f"decision {number}" for number in own)]


def named_in(source: str) -> Iterator[str]:
    """The decisions that the tests of a module say they show."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            text = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
            for spec, own in NAMED.findall(text):
                yield from spec.split(", ") if spec else [own]


NAMED_BY_TESTS = {
    name
    for path in TESTS.rglob("test_*.py")
    if path != Path(__file__)
    for name in named_in(path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("decision", decisions())
def test_a_test_names_it(decision: str) -> None:
    assert decision in NAMED_BY_TESTS


def test_no_test_names_what_is_not_decided() -> None:
    assert set(decisions()) >= NAMED_BY_TESTS


def test_our_decisions_are_numbered_without_a_gap() -> None:
    ours = [name for name in decisions() if name.startswith("decision")]
    assert ours == [f"decision {n + 1}" for n in range(len(ours))]
    assert len(ours) >= 38


@pytest.mark.parametrize(
    ("comment", "names"),
    [
        ("# spec: kobold 4", ["kobold 4"]),
        ("# spec: mfp 1, tmq 12, decision 7", ["mfp 1", "tmq 12", "decision 7"]),
        ("# decision 7, spec: byte streams", ["decision 7", "byte streams"]),
        ("# about kobold 4", []),
    ],
)
def test_names_are_found_in_tests_and_nowhere_else(comment: str, names: list[str]) -> None:
    assert list(named_in(f"def test_it() -> None:\n    pass  {comment}\n")) == names
    assert list(named_in(f"def helper() -> None:\n    pass  {comment}\n")) == []
