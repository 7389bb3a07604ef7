"""The broker's log over HTTP, for drivers and executors: blocking, and patient.

A broker that is away, busy or breaks off is asked again, with growing pauses, until nothing at all
has come for `patience` seconds; so one that restarts only delays a query. What is read goes on
behind the last row that came: a range is read once, whatever happens on the way. What the broker
refuses is raised at once, in its own words.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from wirelake.errors import EngineError, RefusedError
from wirelake.spark.offsets import PATIENCE, Extent, Offsets, Range, data_loss, offsets_as_json

#: How long a broker may be silent within an answer (seconds); it waits 30 s for its disk itself.
SILENCE = 40.0
#: The first pause before a broker is asked again, and the longest (seconds).
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

_AWAY = (OSError, HTTPException, ssl.SSLError)
_GONE = 416


class _Refusal(Exception):  # noqa: N818 - it never leaves this module
    """An answer that is an error."""

    def __init__(self, status: int, told: dict[str, Any]) -> None:
        super().__init__(status, told)
        self.status = status
        self.told = told

    def error(self) -> RefusedError:
        """What users see of it."""
        code = str(self.told.get("error") or "bad_request")
        return RefusedError(code, str(self.told.get("text") or f"HTTP status {self.status}"))


class LogClient:
    """A broker's log; holds no connection between two calls, so it can be sent to executors."""

    def __init__(self, url: str, token: str = "", patience: float = PATIENCE) -> None:
        self._url = url
        self._token = token
        self._patience = patience

    def extents(self) -> dict[int, Extent]:
        """What each partition of the log has now."""
        return {
            one["partition"]: Extent(one["first"], one["next"])
            for one in self._ask("GET", "/v1/log")["partitions"]
        }

    def offsets_at(self, moment: int) -> Offsets:
        """The first offset of each partition that was received then (µs) or later."""
        found = self._ask("GET", "/v1/log", {"time": moment})
        return {one["partition"]: one["at"] for one in found["partitions"]}

    def publish(self, body: bytes | memoryview, producer: str, sequence: str) -> bool:
        """Publish the rows of an Arrow stream; False where this batch was published before."""
        told = self._ask("POST", "/v1/publish", {"producer": producer, "sequence": sequence}, body)
        return not told["duplicate"]

    def advance(self, query: str, offsets: Offsets) -> int:
        """Tell how far a query has read; how many rows it has not."""
        body = json.dumps(offsets_as_json(offsets)).encode()
        return int(self._ask("POST", f"/v1/progress/{quote(query, safe='')}", {}, body)["lag"])

    def read(
        self,
        wanted: Range,
        filters: Sequence[str] = (),
        columns: Iterable[str] = (),
        *,
        fail_on_data_loss: bool = True,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range whose addresses match, in order; some columns, or all of them.

        The column `offset` is always there: it says where to go on.
        """
        at = wanted.start
        names = [*dict.fromkeys([*columns, "offset"])] if columns else []
        waiting = _Waiting(self._patience)
        while at < wanted.stop:
            asked: dict[str, Any] = {"from": at, "to": wanted.stop, "filter": list(filters)}
            if names:
                asked["columns"] = ",".join(names)
            try:
                for batch in self._stream(wanted.partition, asked):
                    if batch.num_rows:
                        at = batch.column("offset")[-1].as_py() + 1
                        waiting.restart()
                        yield batch
                return
            except _Refusal as refusal:
                if refusal.status == _GONE:
                    at = self._pass_over(refusal, wanted, at, fail=fail_on_data_loss)
                elif refusal.status < 500:
                    raise refusal.error() from None
                else:
                    waiting.pause(self._url, refusal.error())
            except (*_AWAY, pa.ArrowException) as error:
                waiting.pause(self._url, error)

    @staticmethod
    def _pass_over(refusal: _Refusal, wanted: Range, at: int, *, fail: bool) -> int:
        """Where to go on when rows are gone; they may have gone while they were read."""
        extent = Extent(refusal.told["first"], refusal.told["next"])
        is_shorter = extent.next < wanted.stop  # another log than the one this was planned for
        if fail:
            raise data_loss(wanted.partition, wanted.stop if is_shorter else at, extent)
        return wanted.stop if is_shorter else max(at, extent.first)

    def _stream(self, partition: int, asked: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
        connection, response = self._open("GET", f"/v1/log/{partition}", asked)
        try:
            with pa.ipc.open_stream(_Body(response)) as stream:
                yield from stream
            # Arrow takes an end between two batches for the end; a body that broke off has none.
            response.read()
        finally:
            connection.close()

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any] | None = None,
        body: bytes | memoryview | None = None,
    ) -> dict[str, Any]:
        """A JSON answer, once there is one."""
        waiting = _Waiting(self._patience)
        while True:
            try:
                connection, response = self._open(method, path, query or {}, body)
                try:
                    answer: dict[str, Any] = json.loads(response.read())
                finally:
                    connection.close()
                return answer
            except _Refusal as refusal:
                if refusal.status < 500:
                    raise refusal.error() from None
                waiting.pause(self._url, refusal.error())
            except _AWAY as error:
                waiting.pause(self._url, error)
            except ValueError:
                raise EngineError(f"what answers at {self._url} is no Wirelake") from None

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: bytes | memoryview | None = None,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request and read the head of its answer, which is not an error."""
        parts = urlsplit(self._url)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=SILENCE)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        target = f"{path}?{urlencode(query, doseq=True)}" if query else path
        try:
            connection.request(method, target, body, headers)
            response = connection.getresponse()
            if response.status >= 300:
                raise _Refusal(response.status, _told(response))
        except BaseException:
            connection.close()
            raise
        return connection, response


class _Body:
    """A body for Arrow to read: what is large goes from the socket to where it stays."""

    closed = False

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response

    def read(self, size: int) -> bytes:
        """So many bytes, fewer at the end."""
        return self._response.read(size)

    def read_buffer(self, size: int) -> pa.Buffer:
        """The same, as a buffer of Arrow's."""
        buffer = pa.allocate_buffer(size)
        view = memoryview(buffer)
        done = 0
        while done < size and (count := self._response.readinto(view[done:])):
            done += count
        return buffer if done == size else buffer.slice(0, done)


def _told(response: HTTPResponse) -> dict[str, Any]:
    """What an error says; nothing, if it is not one of ours."""
    try:
        told = json.loads(response.read(1 << 16))
    except ValueError:
        told = None
    if isinstance(told, dict):
        return told
    return {"text": f"what answers there is no Wirelake (HTTP status {response.status})"}


class _Waiting:
    """Pauses that grow, until patience ends."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self.restart()

    def restart(self) -> None:
        """Something has come: the patience is new."""
        self._pause = FIRST_PAUSE
        self._until = time.monotonic() + self._patience

    def pause(self, url: str, error: Exception) -> None:
        """Wait a moment, or raise what is wrong."""
        left = self._until - time.monotonic()
        if left <= 0:
            reason = str(error) or type(error).__name__
            text = f"the broker at {url} cannot be reached: {reason}"
            raise EngineError(text, retriable=True) from error
        # Many tasks wait for one broker: not all at the same moment.
        time.sleep(min(left, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
