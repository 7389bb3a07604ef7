"""Only wire/parameters.py knows parameters by their headers; all others read typed fields."""

import ast
from pathlib import Path

import pytest

from wirelake.wire.parameters import HEADERS

SOURCE = Path(__file__).parent.parent / "src" / "wirelake"
#: The table itself, and what reads rows of the log as data.
KNOWING = {"wire/parameters.py", "spark/report.py"}
NAMES = HEADERS | {header.encode() for header in HEADERS}


def written_out(code: str) -> list[str]:
    """The headers of parameters among the constants of a module, docstrings aside."""
    return [
        f"line {node.lineno}: {node.value!r}"
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Constant) and node.value in NAMES
    ]


def test_no_other_code_names_the_header_of_a_parameter() -> None:
    found = {
        name: written
        for path in sorted(SOURCE.rglob("*.py"))
        if (name := path.relative_to(SOURCE).as_posix()) not in KNOWING
        and (written := written_out(path.read_text(encoding="utf-8")))
    }
    assert found == {}


@pytest.mark.parametrize(
    "code",
    [
        'message.headers.get("$rev", "")',
        'message.headers["$token"]',
        'Message(headers={"$count": "1"})',
        'table.put_header(b"$connection", b"sub")',
        'if "$requeue" in headers: pass',
    ],
)
def test_the_header_of_a_parameter_is_found(code: str) -> None:
    assert written_out(code)


@pytest.mark.parametrize("code", ['"$client/" + name', '"$node"', '"rev"', 'f"$client/{name}"'])
def test_other_names_are_not(code: str) -> None:
    assert not written_out(code)
