"""The guide to Spark has the options that there are, and no others."""

from __future__ import annotations

import re

from tests.docs.console import ROOT
from wirelake.spark import options as source_options
from wirelake.spark import sink
from wirelake.wire.arrow import SCHEMA

PAGE = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")


def options(section: str) -> list[str]:
    """The options in the table of a section."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    return re.findall(r"`(\w+)`", " ".join(rows))


def test_the_options_of_the_source_are_those_of_the_code() -> None:
    assert sorted(options("Reading")) == sorted(source_options.OPTIONS)


def test_the_options_of_the_sink_are_those_of_the_code() -> None:
    assert sorted(options("Writing")) == sorted(sink.OPTIONS)


def test_every_column_is_named() -> None:
    text = PAGE.partition("\n## Reading\n")[2].partition("\n## ")[0]
    assert [name for name in SCHEMA.names if f"`{name}`" not in text] == []
