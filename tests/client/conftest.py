"""A broker in this process, and a wire to it that can be cut."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.client.brokers import Broker, Proxy
from wirelake.broker.node import Node
from wirelake.journal.engine import Engine
from wirelake.net.server import Listener, Server


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A broker on a free port."""
    node = Node(Engine.in_memory())
    server = Server(node, [Listener("auto", "127.0.0.1", 0)])
    (listener,) = await server.start()
    yield Broker(node, listener.port)
    await server.stop()


@pytest.fixture
async def proxy(broker: Broker) -> AsyncIterator[Proxy]:
    """A way to the broker that can be cut."""
    proxy = Proxy(broker.port)
    await proxy.start()
    yield proxy
    await proxy.stop()
