"""The broker's log over HTTP, for drivers and executors: blocking, and patient.

A broker that is away, busy or breaks off is asked again, with growing pauses, until nothing at all
has come for `patience` seconds; so one that restarts only delays a query. What is read goes on
behind the last row that came: a range is read once, whatever happens on the way. What the broker
refuses is raised at once, in its own words.

Of a cluster, any node is asked, and another one where that is away. Rows are read from the owner of
their partition or from its standby, which the log names; a node that has not got them redirects.
"""

from __future__ import annotations

import json
import random
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from http import HTTPStatus
from http.client import (
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    IncompleteRead,
)
from io import BufferedReader
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import pyarrow as pa

from wirelake.client.origins import MOST_REDIRECTS, check_node, origins, redirected
from wirelake.errors import EngineError, RefusedError
from wirelake.spark.offsets import PATIENCE, Extent, Log, Offsets, Place, Range, data_loss, replaced

#: How long a broker may be silent within an answer (seconds); it waits 30 s for its disk itself.
SILENCE = 40.0
#: The first pause before a broker is asked again, and the longest (seconds).
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0
#: How long a connection may take where there are other nodes to be asked (seconds).
CONNECT = 5.0
#: How long a cluster is asked again that tells an older end of its log than before (seconds): a
#: node that was stopped for a while does not know at once that it was replaced.
STALE = 15.0
#: Bytes of the log that are read before anything is done to them, and for how long at most.
BLOCK = 4 << 20
LONGEST_WAIT = 1.0

_AWAY = (OSError, HTTPException, ssl.SSLError)
_GONE = 416
#: The end of an Arrow stream.
_END = b"\xff\xff\xff\xff\0\0\0\0"
#: No batch is larger (bytes).
_LARGEST = 1 << 30
_LONGEST_LINE = 1 << 16


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
        self._hosts = origins(url)
        self._token = token
        self._patience = patience
        self._nodes: frozenset[str] = frozenset(self._hosts)  # may be told the token
        self._places: Mapping[int, tuple[str, ...]] = {}  # where the log said partitions are

    def log(
        self, filters: Sequence[str] = (), pattern: str = "", *, least: Place | None = None
    ) -> Log:
        """What the log has now; RefusedError where these addresses may not be read.

        A cluster whose log ends before `least` is asked again for a while: it was read up to there,
        so a node answers that does not know yet that it was replaced.
        """
        until = time.monotonic() + STALE
        while True:
            found = self._log(filters, pattern)
            if least is None or not found.places or not found.is_before(least):
                return found
            if time.monotonic() > until:
                return found
            time.sleep(LONGEST_PAUSE / 4)

    def _log(self, filters: Sequence[str], pattern: str) -> Log:
        told = self._ask("GET", "/v1/log", _selected(filters, pattern))
        extents = {
            one["partition"]: Extent(one["first"], one["next"], one.get("bytes", 0))
            for one in told["partitions"]
        }
        places = {one["partition"]: tuple(one.get("nodes", ())) for one in told["partitions"]}
        self.learn({partition: some for partition, some in places.items() if some})
        return Log(told.get("log", ""), extents, self._places)

    def learn(self, places: Mapping[int, tuple[str, ...]]) -> None:
        """Read partitions from these nodes from now on, as a node of the cluster said.

        Those without TLS do not count where the URL asks for TLS.
        """
        if self._url.startswith("https:"):
            places = {
                partition: tuple(one for one in some if one.startswith("https:"))
                for partition, some in places.items()
            }
        self._places = places
        self._nodes = self._nodes.union(*places.values())

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
        body = json.dumps(Place(offsets).as_json()).encode()
        return int(self._ask("POST", f"/v1/progress/{quote(query, safe='')}", {}, body)["lag"])

    def read(
        self,
        wanted: Range,
        filters: Sequence[str] = (),
        columns: Iterable[str] = (),
        *,
        pattern: str = "",
        log: str = "",
        fail_on_data_loss: bool = True,
    ) -> Iterator[pa.Table]:
        """The rows of a range whose addresses match, in order; some columns, or all of them.

        Addresses match one of the filters, and the pattern, a regular expression of RE2.
        Where it is said of which log, none of another are taken for them.
        The column `offset` is always there: it says where to go on.
        """
        at = wanted.start
        hosts = self._hosts_for(wanted)
        names = [*dict.fromkeys([*columns, "offset"])] if columns else []
        waiting = _Waiting(self._patience, len(hosts))
        while at < wanted.stop:
            asked = {"from": at, "to": wanted.stop} | _selected(filters, pattern)
            if log:
                asked["log"] = log
            if names:
                asked["columns"] = ",".join(names)
            try:
                host = hosts[waiting.tries % len(hosts)]
                for table in self._stream(host, wanted.partition, asked):
                    if table.num_rows:
                        at = table.column("offset")[-1].as_py() + 1
                        waiting.restart()
                        yield table
                return
            except _Refusal as refusal:
                if refusal.status == _GONE:
                    at = self._pass_over(refusal, wanted, log, at, fail=fail_on_data_loss)
                elif refusal.status < 500:
                    raise refusal.error() from None
                else:
                    waiting.pause(self._url, refusal.error())
            except (*_AWAY, pa.ArrowException) as error:
                waiting.pause(self._url, error)

    @staticmethod
    def _pass_over(refusal: _Refusal, wanted: Range, log: str, at: int, *, fail: bool) -> int:
        """Where to go on when rows are gone; they may have gone while they were read."""
        found = refusal.told.get("log", log)
        if log not in ("", found):
            if fail:
                raise replaced(log, found)
            return wanted.stop
        extent = Extent(refusal.told["first"], refusal.told["next"])
        is_shorter = extent.next < wanted.stop  # another log than the one this was planned for
        if fail:
            raise data_loss(wanted.partition, wanted.stop if is_shorter else at, extent)
        return wanted.stop if is_shorter else max(at, extent.first)

    def _hosts_for(self, wanted: Range) -> tuple[str, ...]:
        """The nodes to ask for a range, in order: those that have it, then those of the URL.

        Ranges begin with the owner or with a standby by turns, so that both have their part.
        """
        there = self._places.get(wanted.partition, ())
        turn = (wanted.partition + wanted.start) % len(there) if there else 0
        return tuple(dict.fromkeys((*there[turn:], *there[:turn], *self._hosts)))

    def _stream(self, host: str, partition: int, asked: Mapping[str, Any]) -> Iterator[pa.Table]:
        connection, response = self._open(host, "GET", f"/v1/log/{partition}", asked)
        try:
            yield from _tables(_Body(response))
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
        waiting = _Waiting(self._patience, len(self._hosts))
        while True:
            host = self._hosts[waiting.tries % len(self._hosts)]
            try:
                connection, response = self._open(host, method, path, query or {}, body)
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
        host: str,
        method: str,
        path: str,
        query: Mapping[str, Any],
        body: bytes | memoryview | None = None,
    ) -> tuple[HTTPConnection, HTTPResponse]:
        """Send a request and read the head of its answer, which is not an error.

        Redirects to nodes of the same cluster are followed, and no others.
        """
        target = f"{path}?{urlencode(query, doseq=True)}" if query else path
        for _ in range(MOST_REDIRECTS):
            connection = self._connection(host)
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            try:
                connection.request(method, target, body, headers)
                response = connection.getresponse()
                if response.status != HTTPStatus.TEMPORARY_REDIRECT:
                    if response.status >= 300:
                        raise _Refusal(response.status, _told(response))
                    return connection, response
                location = response.getheader("Location") or ""
            except BaseException:
                connection.close()
                raise
            connection.close()
            origin, target = redirected(location, host)
            if origin not in self._nodes:
                self._nodes |= self._nodes_of_cluster(host)
            check_node(origin, self._nodes, host)
            host = origin
        raise HTTPException(f"{host} redirects for ever")

    def _connection(self, host: str) -> HTTPConnection:
        parts = urlsplit(host)
        kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        if len(self._nodes) == 1:
            return kind(parts.hostname or "", parts.port, timeout=SILENCE)
        connection = kind(parts.hostname or "", parts.port, timeout=CONNECT)
        connection.connect()
        connection.timeout = SILENCE
        connection.sock.settimeout(SILENCE)
        return connection

    def _nodes_of_cluster(self, host: str) -> frozenset[str]:
        """Where HTTP of the nodes is, as one of them tells."""
        connection = self._connection(host)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request("GET", "/v1/cluster", None, headers)
            response = connection.getresponse()
            if response.status != HTTPStatus.OK:
                raise _Refusal(response.status, _told(response))
            return frozenset(one["http"] for one in json.loads(response.read())["nodes"])
        finally:
            connection.close()


def _selected(filters: Sequence[str], pattern: str) -> dict[str, Any]:
    """The parameters of a request for some addresses."""
    return {"filter": list(filters)} | ({"pattern": pattern} if pattern else {})


class _Body:
    """A body as it comes in.

    `HTTPResponse.readinto` would wait until all that it is given is filled, and would not tell how
    much came before a connection broke. So chunks are read here.
    """

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._file: BufferedReader = response.fp
        self._left = 0  # of the chunk that is being read
        self.is_over = False
        self.broken: Exception | None = None  # what it ended with before its end

    def fill(self, view: memoryview) -> int:
        """Fill this with what comes, but not wait for what comes late; how much has come."""
        done = 0
        until = time.monotonic() + LONGEST_WAIT
        try:
            while done < len(view) and time.monotonic() < until:
                count = self._some(view[done:])
                if not count:
                    self.is_over = True
                    break
                done += count
        except _AWAY as error:
            self.is_over, self.broken = True, error
        return done

    def _some(self, view: memoryview) -> int:
        """Some bytes; none where the body ends."""
        if not self._response.chunked:  # whoever stands in between may have made one piece of it
            return self._response.readinto(view)
        if not self._left and not self._next_chunk():
            return 0
        count = self._file.readinto1(view[: self._left])
        if not count:
            raise IncompleteRead(b"", self._left)
        self._left -= count
        if not self._left:
            self._line()
        return count

    def _next_chunk(self) -> int:
        line = self._line()
        try:
            self._left = int(line.partition(b";")[0], 16)
        except ValueError:
            raise HTTPException(f"{line!r} begins no chunk") from None
        while not self._left and self._line().strip():  # trailers
            pass
        return self._left

    def _line(self) -> bytes:
        line = self._file.readline(_LONGEST_LINE)
        if not line.endswith(b"\n"):
            raise IncompleteRead(line)
        return line


def _tables(body: _Body) -> Iterator[pa.Table]:
    """The batches of an Arrow stream, a block of them at a time.

    A batch has dozens of small parts, and Arrow would ask Python for each of them. So whole batches
    are looked for in what has come, and left where they are; what is behind the last of them goes
    to the next block, behind the schema with which every stream begins.
    """
    schema = rest = memoryview(b"")
    while True:
        start = len(schema) + len(rest)
        block = pa.allocate_buffer(start + max(BLOCK, len(rest)))
        view = memoryview(block).cast("B")
        view[: len(schema)], view[len(schema) : start] = schema, rest
        size = start + body.fill(view[start:])
        source = pa.BufferReader(block.slice(0, size))
        done = 0
        found = []
        broken = body.broken
        try:
            stream = pa.ipc.open_stream(source)
            done = source.tell()
            schema = schema or view[:done]
            while True:
                found.append(stream.read_next_batch())
                done = source.tell()
        except StopIteration:
            # Arrow takes an end between two batches for the end; a body that broke off has none.
            if body.is_over and view[done:size] != _END:
                broken = broken or IncompleteRead(b"")
        except (pa.ArrowInvalid, OSError) as error:  # what has come ends in the middle of something
            if body.is_over or size > _LARGEST:
                broken = broken or error
        if found:
            yield pa.Table.from_batches(found)
        if broken is not None:
            raise broken
        if body.is_over:
            return
        rest = view[done:size]


def _told(response: HTTPResponse) -> dict[str, Any]:
    """Return the text of a broker's error; empty if the answer is not one of ours."""
    try:
        told = json.loads(response.read(1 << 16))
    except ValueError:
        told = None
    if isinstance(told, dict):
        return told
    return {"text": f"what answers there is no Wirelake (HTTP status {response.status})"}


class _Waiting:
    """Pauses that grow, until patience ends; none while there is another host to be asked."""

    def __init__(self, patience: float, hosts: int) -> None:
        self._patience = patience
        self._hosts = hosts
        self.tries = 0
        self.restart()

    def restart(self) -> None:
        """Something has come: the patience is new."""
        self._pause = FIRST_PAUSE
        self._until = time.monotonic() + self._patience

    def pause(self, url: str, error: Exception) -> None:
        """Wait a moment, or raise what is wrong."""
        self.tries += 1
        if self.tries % self._hosts:
            return
        left = self._until - time.monotonic()
        if left <= 0:
            reason = str(error) or type(error).__name__
            text = f"the broker at {url} cannot be reached: {reason}"
            raise EngineError(text, retriable=True) from error
        # Many tasks wait for one broker: not all at the same moment.
        time.sleep(min(left, self._pause * random.uniform(0.5, 1.0)))
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
