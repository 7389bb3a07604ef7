"""`wirelake config`: a file to start from, and the page of the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from typer.testing import CliRunner

from wirelake.cli import app
from wirelake.cli.config import OPTIONAL, as_markdown, as_toml
from wirelake.config import Settings, read_settings
from wirelake.dialects import DIALECTS
from wirelake.dialects.framed.description import PRESETS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_printed_file_has_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "wirelake.toml"
    file.write_text(CliRunner().invoke(app, ["config"]).output, encoding="utf-8")
    assert read_settings(file) == Settings()


def test_every_line_of_it_says_what_is_so_anyway(tmp_path: Path) -> None:
    must, _, _ = as_toml().partition("# How long captured")
    file = tmp_path / "wirelake.toml"
    file.write_text(re.sub(r"(?m)^# (\w+ = )", r"\1", must), encoding="utf-8")
    assert read_settings(file) == Settings()


def test_every_optional_table_can_be_taken_as_it_stands(tmp_path: Path) -> None:
    _, _, optional = as_toml().partition("# How long captured")
    text = re.sub(r"(?m)^# (\w+ = |\[)", r"\1", "# " + optional)
    file = tmp_path / "wirelake.toml"
    file.write_text(text.replace("sha256:…", "sha256:" + 64 * "0"), encoding="utf-8")
    (tmp_path / "meter.toml").write_text(PRESETS["lines"].read_text(encoding="utf-8"))
    with DIALECTS.also():
        settings = read_settings(file)
    assert settings.tls is not None
    assert len(settings.tokens) == len(settings.queues) == len(settings.capture.retention) == 1


def test_no_setting_is_left_out() -> None:
    text = as_toml()
    tables = [type(value) for value in msgspec.structs.astuple(Settings())]
    for table in [*OPTIONAL.values(), *(t for t in tables if issubclass(t, msgspec.Struct))]:
        for field in table.__struct_fields__:
            assert re.search(rf"(?m)^# (\[\[[a-z]+\.)?{field}\b", text), (table, field)


def test_the_documentation_has_the_same_settings() -> None:
    assert (DOCS / "configuration.md").read_text(encoding="utf-8") == as_markdown()
