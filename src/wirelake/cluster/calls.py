"""Questions between nodes: what HTTP of one node asks the HTTP of another, over NATS.

A question is one message to `call.<node>`. Its answer comes in parts, as it may be larger than a
message of NATS. The first byte of a part says what it is: more follows, the last, or a refusal.

**Limits.** A node answers at most `cluster.questions` at a time, and refuses the others. Who asks
says how many bytes it takes; a longer answer, or one beyond `MOST_BYTES`, is refused. Only
`LARGE_AT_ONCE` questions that take more than one part are under way at a time: their answers must
fit into what the server buffers for a client, since it disconnects one that is behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from wirelake.cluster.bus import Bus
from wirelake.errors import EngineError, RefusedError

log = logging.getLogger("wirelake.cluster")

#: Bytes of a part of an answer.
PART = 256 << 10
#: Bytes of an answer, at most.
MOST_BYTES = 12 << 20
#: Questions that a node answers at a time, unless told otherwise.
MOST_CALLS = 256
#: Questions with large answers that a node asks at a time.
LARGE_AT_ONCE = 4
#: Bytes of a message of NATS that are reserved for the envelope of a question.
SPARE = 16 << 10

_MORE, _LAST, _REFUSED = b"\0", b"\1", b"\2"

#: Answers a question; it may raise RefusedError.
Answer = Callable[[bytes], Awaitable[bytes]]


class _Question(msgspec.Struct, array_like=True):
    """What is asked, and the bytes that an answer may have."""

    most: int
    data: bytes


class Calls:
    """Asks other nodes, and answers them."""

    def __init__(self, bus: Bus, node: str, *, at_once: int = MOST_CALLS) -> None:
        self._at_once = at_once
        self._bus = bus
        self._node = node
        self._tasks: set[asyncio.Task[None]] = set()
        self._large = asyncio.Semaphore(LARGE_AT_ONCE)
        #: Answers questions of other nodes; None: this node answers none.
        self.answer: Callable[[], Answer | None] = lambda: None

    @property
    def most(self) -> int:
        """Bytes that a question has at most."""
        return self._bus.max_payload - SPARE

    async def start(self) -> None:
        """Answer from now on; raises EngineError where NATS cannot be reached."""
        await self._bus.hear(f"call.{self._node}", self._take)

    async def stop(self) -> None:
        """Answer nothing more."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ask(self, node: str, data: bytes, *, timeout: float, most: int = PART) -> bytes:
        """Ask a node; `most` is how many bytes the answer may have.

        Raises RefusedError: what the node refuses, `timeout` where no answer comes in time. Raises
        EngineError where there is no such node.
        """
        if len(data) > self.most:
            raise RefusedError("too_large", f"a question has at most {self.most} bytes")
        packed = msgspec.msgpack.encode(_Question(most, data))
        try:
            async with asyncio.timeout(timeout):
                if most <= PART:
                    return await self._ask(node, packed, most)
                async with self._large:
                    return await self._ask(node, packed, most)
        except TimeoutError:
            raise RefusedError("timeout", f"the node {node} has not answered") from None

    async def _ask(self, node: str, packed: bytes, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        async with self._bus.asked(f"call.{node}", packed) as answers:
            async for part in answers:
                kind, content = part[:1], part[1:]
                if kind == _REFUSED:
                    code, _, text = content.decode(errors="replace").partition(": ")
                    raise RefusedError(code, text)
                size += len(content)
                if size > most:
                    raise RefusedError("too_large", f"the answer of {node} is too large")
                parts.append(content)
                if kind == _LAST:
                    return b"".join(parts)
        raise EngineError(f"the node {node} does not answer", retriable=True)

    def _take(self, data: bytes, reply: Callable[[bytes], Awaitable[None]]) -> None:
        if len(self._tasks) >= 2 * self._at_once:
            return  # even refusals wait: whoever asks hears nothing, and gives up
        if len(self._tasks) >= self._at_once:
            text = f"the node {self._node} answers {self._at_once} questions (cluster.questions)"
            work = self._refuse(reply, "busy", text)
        else:
            work = self._answer(data, reply)
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, data: bytes, reply: Callable[[bytes], Awaitable[None]]) -> None:
        answer = self.answer()
        if answer is None:
            await self._refuse(reply, "busy", f"the node {self._node} has no HTTP")
            return
        try:
            question = msgspec.msgpack.decode(data, type=_Question)
            told = await answer(question.data)
            if len(told) > (most := min(question.most, MOST_BYTES)):
                text = f"the node {self._node} has an answer of {len(told)} bytes"
                raise RefusedError("too_large", f"{text}, of which {most} are taken")
        except RefusedError as error:
            await self._refuse(reply, error.code, error.text)
            return
        except EngineError as error:
            await self._refuse(reply, "busy", error.reason)
            return
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            await self._refuse(reply, "bad_request", str(error))
            return
        except Exception:
            log.exception("a question of another node failed")
            await self._refuse(reply, "internal", f"the node {self._node} failed to answer this")
            return
        for at in range(0, max(1, len(told)), PART):
            kind = _LAST if at + PART >= len(told) else _MORE
            await reply(kind + told[at : at + PART])
            if kind == _MORE:
                await self._bus.flush()  # so that others get their turn on this connection

    @staticmethod
    async def _refuse(reply: Callable[[bytes], Awaitable[None]], code: str, text: str) -> None:
        await reply(_REFUSED + f"{code}: {text}".encode())
