"""A broker for commands to talk to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wirelake.testing import Broker


@pytest.fixture(scope="module")
def place() -> Iterator[str]:
    """Where a broker listens: host and port."""
    with Broker(listen=("auto://127.0.0.1:0",)) as broker:
        yield broker.url("auto").removeprefix("auto://")
