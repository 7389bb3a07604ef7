"""The site can be built, has every page, finds it, and needs nothing from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.console import ROOT

PAGES = sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: a link or an anchor that leads nowhere is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_there_and_found_by_a_search(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    found = {entry["location"].partition("#")[0]: entry["text"] for entry in entries[::-1]}
    for page in PAGES:
        place = page.removesuffix(".md") + ".html"
        assert (site / place).is_file()
        assert place in found
    words = " ".join(entry["title"] + " " + entry["text"] for entry in entries)
    for word in ("$dead", "startingOffsets", "wirelake_queue_ready", "prefetch", "server-sent"):
        assert word in words


def test_every_page_is_in_the_navigation(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for page in PAGES:
        assert f'href="{page.removesuffix(".md")}.html"' in home or page == "index.md"


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", text):
            assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", tag), (page, tag)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A\n\n[b](index.md#no-such-place)\n")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    settings = settings.partition("\nnav:")[0].replace("scripts/", f"{ROOT}/scripts/")
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(tmp_path / "site")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "no-such-place" in done.stderr
