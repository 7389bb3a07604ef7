"""The same client without `await`: a thin face over an event loop in a thread of its own.

    with wirelake.connect_sync("mfp://host") as c:
        c.publish("a/b", b"hello")
        for message in c.subscribe("a/#"):
            ...

All clients of a process share one thread; every method may be called from any other.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeAlias, TypeVar, Unpack

from wirelake.client.client import Client, Options
from wirelake.client.inbox import Messages
from wirelake.client.outgoing import Batch
from wirelake.client.service import Service
from wirelake.errors import RefusedError
from wirelake.message import Message

T = TypeVar("T")
PlainHandler: TypeAlias = Callable[[Message], "bytes | Message"]


class _LoopThread:
    """An event loop that runs in the background for as long as the process does."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="wirelake", daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        # The process ends, perhaps with clients that nobody closed.
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()

    def _stop(self) -> None:
        if self.pid == os.getpid():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=2)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine; whoever is interrupted meanwhile interrupts it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RefusedError("bad_request", "the synchronous client would wait for itself here")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


_running: _LoopThread | None = None
_starting = threading.Lock()


def _loop_thread() -> _LoopThread:
    """The one of this process; a child that was forked has to have its own."""
    global _running
    with _starting:
        if _running is None or _running.pid != os.getpid():
            _running = _LoopThread()
        return _running


def connect_sync(url: str, **options: Unpack[Options]) -> SyncClient:
    """A connected client of the broker at `url`: use it by `with`, or `close` it."""
    return SyncClient(Client(url, **options))


class SyncClient:
    """A client; made by `connect_sync`. What its methods do is said in `Client`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._thread = _loop_thread()
        self._thread.run(client.__aenter__())

    def __repr__(self) -> str:
        return repr(self._client)

    @property
    def dialect(self) -> str:
        """The dialect it speaks."""
        return self._client.dialect

    @property
    def client_id(self) -> str:
        """The id that the broker knows it by; empty where it has none."""
        return self._client.client_id

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Hang up; subscriptions end, and what was published goes out first."""
        self._thread.run(self._client.close())

    def publish(
        self,
        address: str,
        payload: bytes,
        *,
        id: str = "",
        headers: Mapping[str, str] | None = None,
        priority: int = 0,
        ttl: int = 0,
        ack: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Publish a message; with `ack`, return when the broker says that it is done."""
        self._thread.run(
            self._client.publish(
                address,
                payload,
                id=id,
                headers=headers,
                priority=priority,
                ttl=ttl,
                ack=ack,
                timeout=timeout,
            )
        )

    def publish_many(self, messages: Batch, *, timeout: float | None = None) -> None:
        """Publish (address, payload) pairs, messages or an Arrow record batch, as one buffer."""
        self._thread.run(self._client.publish_many(messages, timeout=timeout))

    def subscribe(self, filter: str) -> SyncMessages:
        """The messages of a filter, by `for`, or by `with` and then `for`."""
        return SyncMessages(self._thread, self._client.subscribe(filter))

    def direct(self) -> SyncMessages:
        """The messages that other clients send to this one."""
        return SyncMessages(self._thread, self._client.direct())

    def request(
        self,
        address: str,
        payload: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Message:
        """Send a request to a service; its reply, or RefusedError."""
        return self._thread.run(
            self._client.request(address, payload, headers=headers, timeout=timeout)
        )

    def serve(self, address: str, handler: PlainHandler) -> SyncService:
        """Answer the requests to an address while inside `with`; handlers run in threads."""

        async def answer(request: Message) -> bytes | Message:
            return await asyncio.to_thread(handler, request)

        return SyncService(self._thread, self._client.serve(address, answer))

    def send_to(
        self,
        client_id: str,
        payload: bytes,
        *,
        id: str = "",
        headers: Mapping[str, str] | None = None,
        ack: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Send a message to one client; with `ack`, RefusedError when there is none of that id."""
        self._thread.run(
            self._client.send_to(
                client_id, payload, id=id, headers=headers, ack=ack, timeout=timeout
            )
        )

    def ping(self, *, timeout: float | None = None) -> float:
        """Ask the broker for a sign of life; the seconds that it took."""
        return self._thread.run(self._client.ping(timeout=timeout))


class SyncMessages:
    """Messages as they come in: an iterator; with `with`, it says when."""

    def __init__(self, thread: _LoopThread, messages: Messages) -> None:
        self._thread = thread
        self._messages = messages
        self._taken: deque[Message] = deque()  # all that there were; a loop crossing is slow
        self._open = False

    def __enter__(self) -> SyncMessages:
        self._thread.run(self._messages.__aenter__())
        self._open = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        self._thread.run(self._messages.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Message]:
        return self if self._open else self._all()

    def __next__(self) -> Message:
        while True:
            with suppress(IndexError):
                return self._taken.popleft()
            messages = self._thread.run(self._messages.take())
            if not messages:
                raise StopIteration
            self._taken.extend(messages)

    def _all(self) -> Iterator[Message]:
        """Subscribe, and unsubscribe when the loop is left."""
        with self:
            yield from self

    def receive(self, timeout: float | None = None) -> Message:
        """The next message; RefusedError when none comes in time, or none ever will."""
        with suppress(IndexError):
            return self._taken.popleft()
        return self._thread.run(self._messages.receive(timeout))


class SyncService:
    """An address that is served while inside `with`."""

    def __init__(self, thread: _LoopThread, service: Service) -> None:
        self._thread = thread
        self._service = service

    def __enter__(self) -> SyncService:
        self._thread.run(self._service.__aenter__())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.run(self._service.__aexit__(kind, error, trace))

    def finished(self) -> None:
        """Wait until the client is closed; an error when its connection is lost for good."""
        self._thread.run(self._service.finished())
