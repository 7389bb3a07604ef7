"""Houses to test in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.house import TOKENS, House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """A broker where everybody may do everything."""
    with House(tmp_path) as opened:
        yield opened


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[House]:
    """A broker that asks for tokens."""
    with House(tmp_path, tokens=TOKENS) as opened:
        yield opened
