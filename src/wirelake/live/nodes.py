"""`wirelake up --nodes`: NATS servers and nodes of a cluster on this machine, and their view."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.text import Text

from wirelake.client.http import HttpClient
from wirelake.errors import EngineError, RefusedError, WirelakeError
from wirelake.live.board import LIGHTS, Board
from wirelake.live.children import Child
from wirelake.live.figures import TIMEOUT, Figures, read_all_figures
from wirelake.live.group import PIPELINE, Group
from wirelake.live.nats import BAD, LAST_WORDS, SERVERS, NatsServers, name_of
from wirelake.message import printable

#: Seconds that the nodes have until HTTP shows the log of the whole cluster, and between two looks.
PATIENCE, LOOK = 30.0, 1.0


@dataclass(frozen=True)
class Place:
    """A node to be started: its name, and the arguments of `wirelake serve` for it."""

    name: str
    arguments: list[str]  # without listeners and HTTP
    listen: list[str]
    http: str


@dataclass
class NodesBoard(Board):
    """A board with one line a node: what it serves and follows, and its links."""

    nats: str = ""
    nodes: list[Child] = field(default_factory=list)
    told: dict[str, dict[str, Any]] = field(default_factory=dict)  # by node, of `/v1/cluster`
    unserved: int = 0  # partitions

    def add_cluster(self, found: Mapping[str, Any]) -> None:
        """Add what a node says of the cluster."""
        self.told = {str(one["node"]): one for one in found["nodes"]}
        self.unserved = sum(not one["served"] for one in found["partitions"])

    def summary(self) -> str:
        """The figures of all nodes in one line."""
        said = super().summary()
        return f"{said}, {self.unserved} partitions without an owner" if self.unserved else said

    def as_object(self) -> dict[str, object]:
        """The figures of all nodes for programs, and each node's partitions."""
        told = super().as_object()
        if not told:
            return {}
        names = ("owned", "standby", "links")
        nodes = {name: {key: one.get(key) for key in names} for name, one in self.told.items()}
        return {**told, "nodes": nodes, "unserved": self.unserved}

    def lines(self) -> Iterator[tuple[str, str]]:
        """Each node, and what it does, in words."""
        for child in self.nodes:
            said = self.told.get(child.name)
            if child.state != "up" or said is None:
                yield child.name, f"is {child.state if child.state != 'up' else 'not seen'}"
                continue
            links = [one for one in said["links"] if one["role"] == "edge"]
            up = sum(bool(one["open"]) for one in links)
            follows = [f"{k} ({lag})" for k, lag in said["standby"].items()]
            serves = f"serves {' '.join(map(str, said['owned'])) or '-'}"
            text = f"{serves}; follows (lag) {' '.join(follows) or '-'}"
            yield child.name, f"{text}; links {up} of {len(links)}"

    def _lit(self) -> list[Child]:
        return [child for child in self.children if child not in self.nodes]

    def _addresses(self) -> Iterator[Text]:
        yield Text.assemble((f" {'nats':<9}", "dim"), self.nats)
        yield from super()._addresses()

    def _needed(self) -> int:
        return len(self.nodes)

    def _more(self, room: int) -> list[Text]:
        lines = []
        for child, (name, text) in zip(self.nodes, self.lines(), strict=True):
            times = "1 restart" if child.restarts == 1 else f"{child.restarts} restarts"
            again = f" ({times})" if child.restarts else ""
            light = (" ● ", LIGHTS[child.state])
            lines.append(Text.assemble(light, f"{name:<6} {printable(text)}", (again, "yellow")))
        return lines[:room]


class Nodes(Group):
    """NATS servers, nodes, and the pipeline; the witness of all of them.

    `suggest` gets the listeners of all nodes, one node after the other.
    """

    board: NodesBoard

    def __init__(
        self,
        places: list[Place],
        servers: NatsServers,
        token: str,
        *,
        table: Path,
        has_lake: bool,
        suggest: Callable[[list[str], str], list[str]],
        show: Callable[[str, dict[str, object]], None],
        is_plain: bool = False,
    ) -> None:
        super().__init__(
            [], [], "", token,
            table=table, has_lake=has_lake, suggest=suggest, show=show, is_plain=is_plain,
        )  # fmt: skip
        self._places = {place.name: place for place in places}
        self._servers = servers
        self._listening: dict[str, list[str]] = {}  # what nodes said when they last started
        self._found: dict[str, list[str]] = {}  # where they listened first
        self.board.nats = ",".join(servers.urls)

    def _make_board(self) -> Board:
        return NodesBoard()

    def _brokers(self) -> list[Child]:
        return self.board.nodes

    def _in_order(self) -> list[list[Child]]:
        """The pipeline, then the nodes, which hand over and need NATS for that, then NATS."""
        pipeline = [child for child in self.board.children if child.name == PIPELINE]
        first = [*pipeline, *self.board.nodes]
        rest = [child for child in self.board.children if child not in first]
        return [pipeline, self.board.nodes, rest]

    async def _start_brokers(self) -> None:
        servers = self._servers
        if self._is_screen:
            self._show(f"starting {SERVERS} NATS servers and {len(self._places)} nodes …", {})
        for k in range(SERVERS):
            self._start(
                Child(
                    name_of(k),
                    partial(servers.arguments, k),
                    self,
                    must_start=True,
                    program=servers.program,
                    last_words=LAST_WORDS,
                )
            )
        healthy = asyncio.create_task(servers.until_healthy())
        try:
            await self._first(healthy)
        finally:
            healthy.cancel()
        for child in self.board.children:
            child.is_up()
        self.board.nodes = [
            Child(name, partial(self._serve_node, name), self, must_start=True)
            for name in self._places
        ]
        for child in self.board.nodes:
            self._start(child)
        await self._until_ready()

    def _serve_node(self, name: str) -> list[str]:
        """The arguments of a node; a restarted one listens at the same ports."""
        place = self._places[name]
        self._listening[name] = []
        *listen, http = self._found.get(name) or [*place.listen, place.http]
        listeners = [part for one in listen for part in ("--listen", one)]
        http = http.removeprefix("http://")
        return ["serve", *place.arguments, *listeners, "--http", http]

    def _start_pipeline(self, lock: int) -> None:
        self._chores.append(asyncio.create_task(self._land_when_readable(lock)))

    async def _land_when_readable(self, lock: int) -> None:
        """Start the pipeline once a node shows the whole log; say so if none ever does."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + PATIENCE
        why = ""
        while loop.time() < ends:
            try:
                client = HttpClient(self.board.http, self._token, timeout=TIMEOUT)
                await asyncio.to_thread(client.get, "/v1/log")
            except (WirelakeError, TimeoutError) as error:
                why = str(error)
                await asyncio.sleep(LOOK)
            else:
                super()._start_pipeline(lock)
                break
        else:
            self.tell(PIPELINE, f"does not run: no node shows the whole log: {why}", is_bad=True)
        await self._told.wait()

    # Events

    def said(self, child: Child, line: str) -> None:
        """A node prints its listeners, HTTP last, then that it has joined."""
        if child not in self.board.nodes:
            if child.name == PIPELINE:
                self._landed(child, line)
            return
        if line.startswith("listening on "):
            self._listening[child.name].append(line.removeprefix("listening on "))
        elif line.startswith("node "):
            child.is_up()
            self._found[child.name] = self._listening[child.name]
            if len(self._found) == len(self._places):
                self._have_joined()

    def _have_joined(self) -> None:
        found = [self._found[name] for name in self._places]
        self.board.places = [place for one in found for place in one[:-1]]
        https = [one[-1].removeprefix("http://") for one in found]
        self.board.http = f"http://{','.join(https)}"
        self._all_listen([place for one in found for place in one])

    def complained(self, child: Child, line: str) -> None:
        """A line of a child's log; of NATS servers, only what is bad."""
        if child in self.board.nodes or child.name == PIPELINE:
            super().complained(child, line)
        elif found := BAD.fullmatch(line):
            self.tell(child.name, found[1], is_bad=True)

    def changed(self, child: Child, text: str) -> None:
        """A child started or exited. A server that was started again needs no other sign."""
        super().changed(child, text)
        if text.startswith("started") and child.restarts and child.name.startswith("nats-"):
            child.is_up()

    # The figures

    def _read(self, query: str) -> Figures:
        urls = [one[-1] for one in self._found.values()]
        figures = read_all_figures(urls, query, self._token)
        failure: Exception = EngineError("no node tells of the cluster")
        for url in urls:
            try:
                client = HttpClient(url, self._token, timeout=TIMEOUT)
                self.board.add_cluster(client.get("/v1/cluster"))
                return figures
            except (RefusedError, EngineError, TimeoutError) as error:
                failure = error
        raise EngineError(str(failure))

    def _sum(self) -> None:
        super()._sum()
        for name, text in self.board.lines():
            self.tell(name, text)
