"""NATS for the tests of the cluster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.cluster.servers import Servers, binary

_NUMBERS = count(1)


@pytest.fixture(scope="session")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    """One server for all tests of this run."""
    if binary() is None:
        pytest.skip("nats-server is not installed")
    with Servers(Path(tmp_path_factory.mktemp("nats"))) as servers:
        yield servers


@pytest.fixture
def prefix() -> str:
    """A prefix that no other test has."""
    return f"test{next(_NUMBERS)}"
