"""Only dialects/ asks which dialect it has; everything else asks a dialect's value for a field."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from wirelake.dialects import DIALECTS, families

SOURCE = Path(__file__).parent.parent / "src" / "wirelake"
NAMES = {*DIALECTS, *families()}
METHODS = ("startswith", "endswith", "removeprefix", "isin")


def names_in(node: ast.AST) -> Iterator[str]:
    """Every name of a dialect or family, or the beginning of one, among the constants of a node."""
    for one in ast.walk(node):
        value = one.value if isinstance(one, ast.Constant) else None
        if isinstance(value, str) and len(value) > 2 and any(n.startswith(value) for n in NAMES):
            yield value


def asked_names(code: str) -> list[str]:
    """Comparisons, matches and beginnings that look for a dialect by its name."""
    found = []
    for node in ast.walk(ast.parse(code)):
        asked: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            asked = [node.left, *node.comparators]
        elif isinstance(node, ast.MatchValue):
            asked = [node.value]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in METHODS:
            asked = list(node.args)
        found += [
            f"line {getattr(node, 'lineno', 0)}: {name}" for one in asked for name in names_in(one)
        ]
    return found


def test_no_code_outside_dialects_tests_a_dialect_by_its_name() -> None:
    found = {
        str(path.relative_to(SOURCE)): asked
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).parts[0] != "dialects"
        and (asked := asked_names(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        'dialect == "mfp-1"',
        'if dialect in ("kobold-1", "tmq-1.00"): pass',
        'dialect.startswith("tmq")',
        'dialect.startswith(("tmq", "x"))',
        'match dialect:\n    case "boson-text":\n        pass',
        'F.col("dialect").isin("kobold-2")',
    ],
)
def test_a_test_on_a_name_is_found(code: str) -> None:
    assert asked_names(code)


@pytest.mark.parametrize("code", ['connect("kobold-3://host")', 'make("mfp-1")', 'x == "kobolds"'])
def test_a_use_of_a_name_is_not(code: str) -> None:
    assert not asked_names(code)
