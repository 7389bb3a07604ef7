"""The endpoints of the cluster: its state, a node to be drained, a partition to be moved."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from wirelake.broker.node import Cluster, Node
from wirelake.errors import RefusedError
from wirelake.http.exchange import (
    answer,
    number,
    one,
    path_part,
    query,
    require_admin,
    rights_of,
)
from wirelake.http.gate import Gate

#: How long a request waits until a node has handed its partitions over, or has one (seconds).
PATIENCE = 20.0


def cluster_of(node: Node) -> Cluster:
    """Return the cluster that a broker is part of; raises RefusedError where there is none."""
    if node.cluster is None:
        raise RefusedError("not_found", "this broker runs without a cluster")
    return node.cluster


class ClusterEndpoints:
    """What the cluster of this broker tells and does; `not_found` where there is none."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._node: Node = gate.node

    async def status(self, request: Request) -> Response:
        """The nodes, the partitions and the links, for everybody who has any right."""
        query(request)
        rights = rights_of(request, self._node)
        if rights.is_empty:
            raise RefusedError("unauthorized", "no rights at all")
        return answer(await self._gate.run(cluster_of(self._node).status()))

    async def drain(self, request: Request) -> Response:
        """Let a node hand its partitions over; answered when it serves none."""
        return await self._drain(request, on=True)

    async def end_drain(self, request: Request) -> Response:
        """Let a node take partitions again."""
        return await self._drain(request, on=False)

    async def _drain(self, request: Request, *, on: bool) -> Response:
        query(request)
        cluster = self._steered(request)
        node = path_part(request, "node")
        await self._gate.run(cluster.drain(node, on=on, timeout=PATIENCE))
        return answer({"node": node, "draining": on})

    async def move(self, request: Request) -> Response:
        """Give a partition to a node; answered when that serves it."""
        found = query(request, "to")
        cluster = self._steered(request)
        partition = number(path_part(request, "partition"), "the partition")
        if not (node := one(found, "to")):
            raise RefusedError("bad_request", "say which node: to=…")
        await self._gate.run(cluster.move(partition, node, PATIENCE))
        return answer({"partition": partition, "node": node})

    def _steered(self, request: Request) -> Cluster:
        """The cluster, for an operator who changes something."""
        require_admin(rights_of(request, self._node))
        return cluster_of(self._node)
