"""What the packages export is what the docs say, and it is little."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "api.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"## `(.+?)`\n(.+?)(?=\n## |\Z)", PAGE, re.DOTALL))


@pytest.mark.parametrize("package", SECTIONS)
def test_the_docs_list_what_the_package_exports(package: str) -> None:
    documented = re.findall(r"^- `(\w+)`: ", SECTIONS[package], re.MULTILINE)
    module = importlib.import_module(package)
    assert sorted(documented) == sorted(module.__all__)
    assert len(documented) <= 15
    assert all(hasattr(module, name) for name in documented)
