"""The blocking client: a thin layer over the asynchronous one, which runs in its own thread.

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
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeAlias, TypeVar, Unpack

from wirelake.client.client import Client, Options
from wirelake.client.inbox import Arrivals
from wirelake.client.loop import LoopThread
from wirelake.client.queue import Delivery, Queue
from wirelake.client.service import Service
from wirelake.client.store import Change, Store
from wirelake.client.stream import Stream
from wirelake.message import Message

A = TypeVar("A")  # the asynchronous object behind a face
P = ParamSpec("P")
T = TypeVar("T")
PlainHandler: TypeAlias = Callable[[Message], "bytes | Message"]


class _Shared(LoopThread):
    """The loop thread of a process, which ends with the process."""

    def __init__(self) -> None:
        super().__init__("wirelake")
        self.pid = os.getpid()
        atexit.register(self._end)

    def _end(self) -> None:
        if self.pid == os.getpid():  # else this is a fork, which has no such thread
            self.close(timeout=2)


_running: _Shared | None = None
_starting = threading.Lock()


def _loop_thread() -> LoopThread:
    """The loop thread of this process; a forked child starts its own."""
    global _running
    with _starting:
        if _running is None or _running.pid != os.getpid():
            _running = _Shared()
        return _running


def connect_sync(url: str, **options: Unpack[Options]) -> SyncClient:
    """Return a connected client of the broker at `url`; use `with`, or `close` it."""
    return SyncClient(Client(url, **options))


class _Face(Generic[A]):
    """The blocking face of an asynchronous object, whose methods are documented there."""

    def __init__(self, thread: LoopThread, inner: A) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


def _blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Face[A], P], T]:
    """A blocking method with the name and arguments of an asynchronous one."""

    @wraps(method)
    def wait(self: _Face[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return wait


class SyncClient(_Face[Client]):
    """A client; made by `connect_sync`."""

    def __init__(self, client: Client) -> None:
        super().__init__(_loop_thread(), client)
        self._thread.run(client.__aenter__())

    @property
    def dialect(self) -> str:
        """The name of the client's dialect."""
        return self._inner.dialect

    @property
    def client_id(self) -> str:
        """The client's id; empty if it has none."""
        return self._inner.client_id

    def __enter__(self) -> SyncClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    close = _blocking(Client.close)
    publish = _blocking(Client.publish)
    publish_many = _blocking(Client.publish_many)
    request = _blocking(Client.request)
    send_to = _blocking(Client.send_to)
    ping = _blocking(Client.ping)
    info = _blocking(Client.info)
    queues = _blocking(Client.queues)

    def subscribe(self, filter: str) -> SyncArrivals[Message]:
        """Subscribe to a filter; use `for`, or `with` and then `for`."""
        return SyncArrivals(self._thread, self._inner.subscribe(filter))

    def direct(self) -> SyncArrivals[Message]:
        """Receive the messages that other clients send to this one."""
        return SyncArrivals(self._thread, self._inner.direct())

    def serve(self, address: str, handler: PlainHandler) -> SyncService:
        """Answer the requests to an address while inside `with`; handlers run in threads."""

        async def answer(request: Message) -> bytes | Message:
            return await asyncio.to_thread(handler, request)

        return SyncService(self._thread, self._inner.serve(address, answer))

    def queue(self, name: str) -> SyncQueue:
        """A queue by its name."""
        return SyncQueue(self._thread, self._inner.queue(name))

    @property
    def store(self) -> SyncStore:
        """The broker's data store."""
        return SyncStore(self._thread, self._inner.store)

    def stream_to(
        self, client_id: str, *, info: bytes = b"", timeout: float | None = None
    ) -> SyncStream:
        """Open a byte stream to a client, which gets our id and `info`; use `with`."""
        opening = self._inner.stream_to(client_id, info=info, timeout=timeout)
        return SyncStream(self._thread, self._thread.run(opening))

    def streams(self) -> SyncArrivals[SyncStream]:
        """Accept the streams that other clients open to this one; otherwise they are refused.

        Streams that come within a second before the first call wait for it.
        """
        arrivals = self._inner.streams()
        return SyncArrivals(self._thread, arrivals, lambda one: SyncStream(self._thread, one))


class SyncArrivals(_Face[Arrivals[Any]], Generic[T]):
    """An iterator over things as they arrive; with `with`, it subscribes at that point."""

    def __init__(
        self,
        thread: LoopThread,
        arrivals: Arrivals[Any],
        face: Callable[[Any], T] = lambda one: one,
    ) -> None:
        super().__init__(thread, arrivals)
        self._face = face
        self._taken: deque[Any] = deque()  # all that there were; a loop crossing is slow
        self._open = False

    def __enter__(self) -> SyncArrivals[T]:
        self._thread.run(self._inner.__aenter__())
        self._open = True
        return self

    def __exit__(self, *error: Any) -> None:
        self._open = False
        self._thread.run(self._inner.__aexit__(*error))

    def __iter__(self) -> Iterator[T]:
        return self if self._open else self._all()

    def __next__(self) -> T:
        while True:
            with suppress(IndexError):
                return self._face(self._taken.popleft())
            taken = self._thread.run(self._inner.take())
            if not taken:
                raise StopIteration
            self._taken.extend(taken)

    def _all(self) -> Iterator[T]:
        """Iterate, and unsubscribe when the `for` loop is left."""
        with self:
            yield from self

    def receive(self, timeout: float | None = None) -> T:
        """Return the next item; RefusedError after the timeout, or if no more will come."""
        with suppress(IndexError):
            return self._face(self._taken.popleft())
        return self._face(self._thread.run(self._inner.receive(timeout)))


class SyncService(_Face[Service]):
    """An address that is served while inside `with`."""

    def __enter__(self) -> SyncService:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.run(self._inner.__aexit__(*error))

    finished = _blocking(Service.finished)


class SyncQueue(_Face[Queue]):
    """A queue by its name."""

    put = _blocking(Queue.put)
    declare = _blocking(Queue.declare)
    remove = _blocking(Queue.remove)

    @property
    def name(self) -> str:
        """Its address."""
        return self._inner.name

    def get(self, count: int = 1, *, wait: float = 0.0) -> list[SyncDelivery]:
        """Take up to `count` messages, waiting up to `wait` seconds for that many."""
        taken = self._thread.run(self._inner.get(count, wait=wait))
        return [SyncDelivery(self._thread, one) for one in taken]

    def consume(self, *, prefetch: int = 100) -> SyncArrivals[SyncDelivery]:
        """Consume the queue; use `for`, or `with` and then `for`."""
        arrivals = self._inner.consume(prefetch=prefetch)
        return SyncArrivals(self._thread, arrivals, lambda one: SyncDelivery(self._thread, one))


class SyncDelivery(_Face[Delivery]):
    """A message of a queue, to be settled by `ack` or `nack`."""

    ack = _blocking(Delivery.ack)
    nack = _blocking(Delivery.nack)

    @property
    def message(self) -> Message:
        """The message that was put into the queue."""
        return self._inner.message

    @property
    def attempt(self) -> int:
        """The number of this delivery, from 1; 0 if the dialect does not say."""
        return self._inner.attempt


class SyncStore(_Face[Store]):
    """The broker's data store."""

    create = _blocking(Store.create)
    read = _blocking(Store.read)
    update = _blocking(Store.update)
    put = _blocking(Store.put)
    delete = _blocking(Store.delete)
    keys = _blocking(Store.keys)

    def watch(self, filter: str, *, revision: int | None = None) -> SyncArrivals[Change]:
        """Watch the changes of all keys that match a filter."""
        return SyncArrivals(self._thread, self._inner.watch(filter, revision=revision))


class SyncStream(_Face[Stream]):
    """A byte stream to another client."""

    write = _blocking(Stream.write)
    read = _blocking(Stream.read)
    close = _blocking(Stream.close)

    def __enter__(self) -> SyncStream:
        return self

    def __exit__(self, *error: Any) -> None:
        self._thread.run(self._inner.__aexit__(*error))

    def __iter__(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    @property
    def source(self) -> str:
        """The client that opened it; empty if it is this one."""
        return self._inner.source

    @property
    def info(self) -> bytes:
        """The `info` that its opener gave."""
        return self._inner.info

    @property
    def sent(self) -> int:
        """Bytes written."""
        return self._inner.sent

    @property
    def received(self) -> int:
        """Bytes received."""
        return self._inner.received

    @property
    def count(self) -> int | None:
        """Bytes that the other side sent, once it has closed."""
        return self._inner.count
