"""Every command and program of the documentation does what its page says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.console import ROOT, blocks, read
from tests.docs.lake import Lake

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]

#: Pages that start Spark.
SLOW = {
    "docs/demo.md", "docs/howto/count.md", "docs/howto/replay.md",
    "docs/howto/write-back.md", "docs/own-tutorial.md", "docs/spark-decode.md", "docs/spark.md",
    "docs/ten-minutes.md", "docs/tutorial.md",
}  # fmt: skip

#: What blocks that are only read may tell a reader to do: what no test can do.
READ_ONLY = re.compile(
    r"(#|sudo |make |apt |pip |pipx |uvx |docker |kubectl |wirelake (up|chat)\b)"
)


def name(page: Path) -> str:
    """As it is called in the repository."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=name(page), marks=[pytest.mark.slow] * (name(page) in SLOW))
        for page in PAGES
    ],
)
def test_a_page_is_true(page: Path, tmp_path: Path, loopback: str, lake: Lake) -> None:
    # The Python and the settings of the guides to dialects belong to their exchanges:
    # tests/docs/test_dialects.py runs them.
    of_dialect = page.parent.name == "dialects"
    languages = {"console"} if of_dialect else {"console", "python", "toml"}
    read(
        page.read_text(encoding="utf-8"),
        tmp_path,
        loopback,
        languages=frozenset(languages),
        lake=None if page.name == "tutorial.md" else lake,
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_no_command_stands_where_it_is_not_run(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    outside = re.sub(r"^( *)(```+).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert not re.search(r"^    +(\$ |wirelake |curl |import )", outside, re.MULTILINE)
    for block in blocks(text):
        if block.language in ("bash", "sh", "shell") and "." not in block.title:
            assert [line for line in block.lines if line and not READ_ONLY.match(line)] == []


def test_slow_pages_are_there() -> None:
    assert {name(page) for page in PAGES} >= SLOW
