"""A connection over a WebSocket, as a stream like any other.

Messages of the library are copied to and from one end of a pair of sockets, of which the client has
the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Any

from wirelake.errors import ConfigError

#: Tasks that copy, so that nobody forgets them while they run.
_COPYING: set[asyncio.Task[None]] = set()


async def open_websocket(
    url: str, protocol: str, tls: ssl.SSLContext | None, limit: int
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a WebSocket; return the two ends of its stream. Raises OSError where that fails."""
    try:
        from websockets.asyncio.client import connect
        from websockets.exceptions import WebSocketException
        from websockets.typing import Subprotocol
    except ImportError:
        raise ConfigError("url", "ws:// needs the package `websockets`") from None
    try:
        connection = await connect(
            url, subprotocols=[Subprotocol(protocol)], ssl=tls, compression=None, max_size=None
        )
    except WebSocketException as error:
        raise OSError(f"no WebSocket: {error}") from None
    ours, theirs = socket.socketpair()
    inner_reader, inner_writer = await asyncio.open_connection(sock=theirs, limit=limit)
    task = asyncio.create_task(_copy(connection, inner_reader, inner_writer, limit))
    _COPYING.add(task)
    task.add_done_callback(_COPYING.discard)
    return await asyncio.open_connection(sock=ours, limit=limit)


async def _copy(
    connection: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int
) -> None:
    """Copy in both directions until one of them ends."""
    ways = [
        asyncio.create_task(_out(connection, reader, limit)),
        asyncio.create_task(_in(connection, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        with contextlib.suppress(Exception):
            await connection.close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        writer.close()


async def _out(connection: Any, reader: asyncio.StreamReader, limit: int) -> None:
    while data := await reader.read(limit):
        await connection.send(data)


async def _in(connection: Any, writer: asyncio.StreamWriter) -> None:
    async for data in connection:
        writer.write(data)
        await writer.drain()
