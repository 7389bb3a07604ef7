"""Google's store on this machine, for tests: `python google_store.py PORT`, with a bucket `lake`.

PyPI's `gcp-storage-emulator` speaks the JSON interface, which pyarrow uses. delta-rs uses the XML
one, of which the emulator has some requests, and it ignores their conditions. So what is missing is
added here, as https://cloud.google.com/storage/docs/xml-api describes it: list, head, delete, and a
put that is refused with 412 where `x-goog-if-generation-match` does not hold. Requests are handled
one after the other, so nothing comes between the look at a condition and the write.
"""

from __future__ import annotations

import sys
from datetime import datetime
from email.utils import format_datetime
from http import HTTPStatus
from typing import Any
from xml.sax.saxutils import escape

from gcp_storage_emulator import server
from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import objects


def found(request: Any, storage: Any) -> dict[str, str] | None:
    """What is known of the object that a request names; None where there is none."""
    try:
        known: dict[str, str] = storage.get_file_obj(
            request.params["bucket_name"], request.params["object_id"]
        )
    except NotFound:
        return None
    return known


def describe(response: Any, known: dict[str, str]) -> None:
    """Set the headers that every answer about an object has."""
    changed = datetime.fromisoformat(known["updated"].replace("Z", "+00:00"))
    response["ETag"] = f'"{known["generation"]}"'
    response["Last-Modified"] = format_datetime(changed, usegmt=True)
    response["x-goog-generation"] = known["generation"]


def put(request: Any, response: Any, storage: Any) -> None:
    """Store an object, if its condition holds."""
    condition = request.get_header("x-goog-if-generation-match")
    known = found(request, storage)
    if condition is not None and condition != (known["generation"] if known else "0"):
        assert request.data is not None  # read, so that the next request is not taken for it
        response.status = HTTPStatus.PRECONDITION_FAILED
        return
    objects.xml_upload(request, response, storage)
    made = found(request, storage)
    if made is not None:
        describe(response, made)


def get(request: Any, response: Any, storage: Any) -> None:
    """Send an object, or a part of it."""
    objects.download(request, response, storage)
    known = found(request, storage)
    if known is not None:
        describe(response, known)


def delete(request: Any, response: Any, storage: Any) -> None:
    """Delete an object."""
    is_there = found(request, storage) is not None
    if is_there:
        storage.delete_file(request.params["bucket_name"], request.params["object_id"])
    response.status = HTTPStatus.NO_CONTENT if is_there else HTTPStatus.NOT_FOUND


def list_objects(request: Any, response: Any, storage: Any) -> None:
    """List the objects of a bucket, all at once."""
    query = {name: values[0] for name, values in request.query.items()}
    prefix, after = query.get("prefix", ""), query.get("start-after", "")
    known, prefixes = storage.get_file_list(
        request.params["bucket_name"], prefix or None, query.get("delimiter") or None
    )
    contents = "".join(
        f"<Contents><Key>{escape(one['name'])}</Key><LastModified>{one['updated']}</LastModified>"
        f'<ETag>"{one["generation"]}"</ETag><Size>{one["size"]}</Size></Contents>'
        for one in known
        if one["name"] > after
    )
    common = "".join(
        f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in prefixes
    )
    text = (
        f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{common}</ListBucketResult>"
    )
    response.write_file(text, content_type="application/xml")


class Handler(server.RequestHandler):  # type: ignore[misc]  # it has no types
    """The emulator's, which knows HEAD as well."""

    def do_HEAD(self) -> None:  # noqa: N802 - as the library calls it
        """Answer like a GET, without the body."""
        body: Any = self.wfile
        self.wfile: Any = _HeadersOnly(body)
        try:
            server.Router(self).handle(server.GET)
        finally:
            self.wfile = body


class _HeadersOnly:
    """Passes on what is written up to the first empty line."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._is_over = False

    def write(self, data: bytes) -> int:
        if not self._is_over:
            headers, end, _ = data.partition(b"\r\n\r\n")
            self._is_over = bool(end)
            self._file.write(headers + end)
        return len(data)

    def flush(self) -> None:
        self._file.flush()


XML = (
    (r"^/(?!b$)(?P<bucket_name>[-.\w]+)/?$", {server.GET: list_objects}),
    (
        r"^/(?!storage/v1/|upload/|download/|batch|b/)(?P<bucket_name>[-.\w]+)/(?P<object_id>.+)$",
        {server.GET: get, server.PUT: put, server.DELETE: delete},
    ),
)


def main(port: int) -> None:
    """Serve until the process is ended."""
    server.HANDLERS = (*XML, *server.HANDLERS)
    server.RequestHandler = Handler
    server.create_server("127.0.0.1", port, in_memory=True, default_bucket="lake").run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
