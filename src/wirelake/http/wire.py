"""WebSocket as a transport: `/wire/<dialect or family>` carries the bytes of any dialect.

The payloads of binary messages are a stream, as over TCP; where messages begin and end says
nothing. A connection is handed to the broker as one end of a pair of sockets. So it is a connection
like any other there, with the same limits and the same flow control; this side only copies bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from starlette.websockets import WebSocket, WebSocketDisconnect

from wirelake.dialects import AUTO, DIALECTS, families
from wirelake.errors import RefusedError
from wirelake.http.gate import Gate

#: `adopt(sock, family, host, peer)`, on the broker's event loop, takes up a connection.
Adopt: TypeAlias = Callable[[socket.socket, str | None, str, str], Coroutine[Any, Any, None]]

#: Bytes that are read from the broker at once.
READ = 64 << 10
#: Codes of WebSocket: going away, unacceptable data, try again later.
GOING_AWAY, UNACCEPTABLE, TRY_LATER = 1001, 1003, 1013


class Wire:
    """The connections that came by WebSocket."""

    def __init__(self, gate: Gate, adopt: Adopt | None) -> None:
        self._gate = gate
        self._adopt = adopt
        self._open: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """End every connection."""
        for task in list(self._open):
            task.cancel()

    async def serve(self, websocket: WebSocket) -> None:
        """Connect a client to the broker, until either hangs up."""
        name = websocket.path_params["name"]
        found = DIALECTS.get(name)
        family = found.family if found is not None else name
        if self._adopt is None or family not in (AUTO, *families()):
            await websocket.close()  # before it was accepted: 403
            return
        ours, theirs = socket.socketpair()
        try:
            client = websocket.client
            host, port = (client.host, client.port) if client is not None else ("", 0)
            chosen = None if family == AUTO else family
            await self._gate.run(self._adopt(theirs, chosen, host, f"{host}:{port} (WebSocket)"))
        except RefusedError:
            ours.close()
            theirs.close()
            await websocket.close(TRY_LATER)
            return
        offered = websocket.scope.get("subprotocols", [])
        spoken = next((one for one in (name, family) if one in offered), None)
        await websocket.accept(subprotocol=spoken)
        reader, writer = await asyncio.open_connection(sock=ours, limit=READ)
        tasks = [
            asyncio.create_task(_up(websocket, writer)),
            asyncio.create_task(_down(reader, websocket)),
        ]
        self._open.update(tasks)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            self._open.difference_update(tasks)
            await asyncio.gather(*tasks, return_exceptions=True)
            writer.close()
            with contextlib.suppress(RuntimeError, WebSocketDisconnect, OSError):
                await websocket.close(GOING_AWAY)


async def _up(websocket: WebSocket, writer: asyncio.StreamWriter) -> None:
    """Copy what the client sends to the broker, as fast as the broker reads it."""
    with contextlib.suppress(OSError, WebSocketDisconnect):
        while True:
            message = await websocket.receive()
            if message["type"] != "websocket.receive":
                return
            data = message.get("bytes")
            if data is None:
                await websocket.close(UNACCEPTABLE, "binary messages only")
                return
            writer.write(data)
            await writer.drain()


async def _down(reader: asyncio.StreamReader, websocket: WebSocket) -> None:
    """Copy what the broker sends to the client, as fast as the client reads it."""
    with contextlib.suppress(OSError, WebSocketDisconnect, RuntimeError):
        while data := await reader.read(READ):
            await websocket.send_bytes(data)
