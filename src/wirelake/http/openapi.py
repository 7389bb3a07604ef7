"""The description of the HTTP interface, in OpenAPI 3.1: written by hand, one entry an operation.

A test compares it with the routes, and schemathesis tries to find an answer that is not in it.
"""

from __future__ import annotations

from typing import Any

from wirelake import __version__
from wirelake.broker.rights import KINDS

Json = dict[str, Any]

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_ADDRESS: Json = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "description": "An address; its slashes may stand as they are, or as %2F.",
}
_FILTER: Json = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "description": "An address, or `+` for one level and a last `#` for all below.",
    "examples": ["#", "house/+/temp"],
}
_ARROW = "application/vnd.apache.arrow.stream"
_BYTES = "application/octet-stream"

_SCHEMAS: Json = {
    "Error": {
        "type": "object",
        "required": ["error", "text"],
        "properties": {
            "error": {
                "enum": [
                    "bad_request", "unauthorized", "not_found", "exists", "conflict", "too_large",
                    "no_service", "timeout", "busy", "closed", "internal", "moved",
                ]
            },
            "text": _TEXT,
        },
    },
    "Message": {
        "type": "object",
        "description": "What is absent is left out; a payload that is not UTF-8 is in `base64`.",
        "required": ["address"],
        "properties": {
            "address": _TEXT,
            "payload": _TEXT,
            "base64": _TEXT,
            "id": _TEXT,
            "correlation_id": _TEXT,
            "source": _TEXT,
            "priority": _COUNT,
            "ttl": _COUNT,
            "timestamp": _COUNT,
            "time": _COUNT,
            "dialect": _TEXT,
            "partition": _COUNT,
            "offset": _COUNT,
            "headers": {"type": "object", "additionalProperties": _TEXT},
            "sequence": _COUNT,
            "attempts": _COUNT,
        },
    },
    "QueueSettings": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "mode": {"enum": ["round-robin", "push", "pull"]},
            "ack_timeout": {"type": "number", "exclusiveMinimum": 0},
            "max_deliveries": {"type": "integer", "minimum": 1},
            "dedup_window": {"type": "number", "minimum": 0},
            "max_messages": _COUNT,
            "max_bytes": _COUNT,
            "keep_expired": {"type": "boolean"},
        },
    },
    "Queue": {
        "type": "object",
        "description": "A queue's settings and its state.",
        "required": ["name", "mode", "messages", "ready", "held", "delayed", "consumers", "age"],
        "properties": {"name": _TEXT, "messages": _COUNT, "age": {"type": "number"}},
    },
    "Session": {
        "type": "object",
        "required": ["name", "admin", "open", "stranger", "rights", "csrf", "version"],
        "properties": {"name": _TEXT, "admin": {"type": "boolean"}, "csrf": _TEXT},
    },
    "Cluster": {
        "type": "object",
        "description": "As `wirelake cluster status --json` tells it; times of `changes` in µs.",
        "required": ["node", "cluster", "nodes", "partitions", "same_settings"],
        "properties": {
            "node": _TEXT,
            "cluster": _TEXT,
            "same_settings": {"type": "boolean"},
            "nodes": {"type": "array", "items": {"type": "object"}},
            "partitions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["partition", "owner", "served", "moved_to", "standbys", "epoch"],
                },
            },
        },
    },
    "Partition": {
        "type": "object",
        "description": "Offsets from `first` up to, without, `next`; times in µs since 1970.",
        "required": ["partition", "first", "next", "first_time", "last_time", "bytes"],
        "properties": {
            **dict.fromkeys(
                ("partition", "first", "next", "first_time", "last_time", "bytes", "at"), _COUNT
            ),
            "nodes": {
                "type": "array",
                "items": _TEXT,
                "description": "In a cluster: where HTTP has it, its owner first.",
            },
        },
    },
}  # fmt: skip


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(**properties: Json) -> Json:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(of: Json) -> Json:
    return {"type": "array", "items": of}


def _in_path(name: str, schema: Json) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _in_query(name: str, schema: Json, text: str, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "schema": schema, "description": text} | (
        {"required": True} if required else {}
    )


def _in_header(name: str, schema: Json, text: str) -> Json:
    return {"name": name, "in": "header", "schema": schema, "description": text}


def _operation(
    tag: str,
    summary: str,
    answers: dict[int, Json | str | None],
    *parameters: Json,
    errors: tuple[int, ...] = (),
    body: Json | None = None,
    needs_body: bool = True,
    content: str = "application/json",
    text: str = "",
) -> Json:
    """An operation; an answer is a schema, a media type of bytes, or nothing."""
    responses: Json = {}
    for status, what in answers.items():
        responses[str(status)] = {"description": summary}
        if isinstance(what, str):
            responses[str(status)]["content"] = {what: {}}
        elif what is not None:
            responses[str(status)]["content"] = {"application/json": {"schema": what}}
    for status in sorted({400, 401, 403, 503, *errors}):
        responses.setdefault(
            str(status),
            {
                "description": "Refused.",
                "content": {"application/json": {"schema": _ref("Error")}},
            },
        )
    described: Json = {"tags": [tag], "summary": summary, "responses": responses}
    if text:
        described["description"] = text
    if parameters:
        described["parameters"] = list(parameters)
    if body is not None:
        described["requestBody"] = {
            "required": needs_body,
            "content": {content: {"schema": body}},
        }
    return described


_NAME = _in_path("name", _ADDRESS)
_KEY = _in_path("key", _ADDRESS)
_QUERY_NAME = _in_path("query", {"type": "string", "minLength": 1, "maxLength": 245})
_NODE = _in_path("node", {"type": "string", "minLength": 1, "maxLength": 64})
_IF_MATCH = _in_header("If-Match", _TEXT, 'Only if the key has this revision: `"7"`; `*` is any.')
_FILTERS = _list(_FILTER)
_RAW: Json = {"type": "string", "format": "binary"}

_SEARCH = (
    _in_query("filter", _FILTERS, "Only these addresses; several may be given."),
    _in_query("op", _list(_TEXT), "Only these ops."),
    _in_query("dialect", _list(_TEXT), "Only what came in these dialects."),
    _in_query("text", _TEXT, "Only rows that have this in an address, id or payload."),
    _in_query("id", _TEXT, "Only rows with this id or correlation id."),
    _in_query("header", _TEXT, "Only rows with this header: `NAME` or `NAME=VALUE`."),
)

_PATHS: dict[str, Json] = {
    "/": {"get": _operation("about", "The console.", {200: "text/html", 304: None})},
    "/console/{file}": {
        "get": _operation(
            "about",
            "A file of the console.",
            {200: _BYTES, 304: None},
            _in_path("file", _TEXT),
            errors=(404,),
        )
    },
    "/docs": {"get": _operation("about", "This interface, for people.", {200: "text/html"})},
    "/docs.css": {"get": _operation("about", "How these pages look.", {200: "text/css"})},
    "/openapi.json": {
        "get": _operation("about", "This interface, for programs.", {200: {"type": "object"}})
    },
    "/healthz": {
        "get": _operation(
            "operation",
            "Is everything that is accepted kept?",
            {200: _object(state={"const": "ok"}, backlog=_COUNT)},
        )
    },
    "/metrics": {
        "get": _operation(
            "operation",
            "Figures for Prometheus.",
            {200: "text/plain"},
            text="For operators, where tokens are configured.",
        )
    },
    "/v1/addresses": {
        "get": _operation(
            "operation",
            "What is subscribed to, queued and served.",
            {
                200: _object(
                    topics=_list(_object(filter=_TEXT, subscribers=_COUNT)),
                    queues=_list(_TEXT),
                    services=_list(_object(address=_TEXT, servers=_COUNT)),
                )
            },
        )
    },
    "/v1/session": {
        "get": _operation("console", "Who this is, and what they may do.", {200: _ref("Session")}),
        "post": _operation(
            "console",
            "Exchange a token for a cookie.",
            {200: _ref("Session")},
            errors=(413, 504),
            body=_object(token=_TEXT),
            text="The cookie stands for the token; with it, a request that changes something needs "
            "the header `Wirelake-Csrf` with the word `csrf`, and a right `admin`.",
        ),
        "delete": _operation("console", "Log out.", {204: None}),
    },
    "/v1/live": {
        "get": _operation(
            "console",
            "Figures once a second, and a tail, as server-sent events.",
            {200: "text/event-stream"},
            _in_query("part", _list(_TEXT), "Which figures: `overview`, `queues` and others."),
            _in_query("filter", _FILTERS, "What is published there is shown, too."),
            _in_query("watch", _FILTERS, "Changes of these keys are shown, too."),
            _in_query("rate", _COUNT, "Messages of the tail a second at most: 200."),
            errors=(409, 413),
        )
    },
    "/v1/rates": {
        "get": _operation(
            "operation",
            "Messages and bytes of each of the last seconds, by dialect.",
            {200: _object(second=_COUNT, dialects={"type": "object"})},
            _in_query("seconds", {"type": "integer", "minimum": 1, "maximum": 3600}, "600."),
        )
    },
    "/v1/access": {
        "get": _operation(
            "operation",
            "The tokens by name and what they may do; without admin, one's own.",
            {200: _object(tokens=_list({"type": "object"}))},
        )
    },
    "/v1/access/may": {
        "get": _operation(
            "operation",
            "May a token do something, and why not?",
            {200: _object(allowed={"type": "boolean"}, why=_TEXT)},
            _in_query("token", _TEXT, "Its name: one's own."),
            _in_query(
                "kind",
                {"enum": [*KINDS, "admin"]},
                "What it wants to do.",
                required=True,
            ),
            _in_query("address", _TEXT, "An address, or a filter."),
            errors=(404, 413),
        )
    },
    "/v1/connections/{number}": {
        "delete": _operation(
            "operation",
            "Close a connection.",
            {204: None},
            _in_path("number", _COUNT),
            errors=(404,),
        )
    },
    "/v1/connections": {
        "get": _operation(
            "operation",
            "Who is connected.",
            {200: _object(connections=_list({"type": "object"}))},
        )
    },
    "/v1/cluster": {
        "get": _operation(
            "cluster",
            "The nodes, who owns which partition, and the links, as this node sees them.",
            {200: _ref("Cluster")},
            errors=(404, 504),
            text="404 where this broker runs without a cluster. For every token.",
        )
    },
    "/v1/cluster/nodes/{node}/drain": {
        "put": _operation(
            "cluster",
            "Let a node hand its partitions over, and take no new ones.",
            {200: _object(node=_TEXT, draining={"type": "boolean"})},
            _NODE,
            errors=(404, 504),
            text="For operators. Answered when the node serves no partition; its clients stay "
            "connected. After 504 it still drains.",
        ),
        "delete": _operation(
            "cluster",
            "Let a node take partitions again.",
            {200: _object(node=_TEXT, draining={"type": "boolean"})},
            _NODE,
            errors=(404, 504),
        ),
    },
    "/v1/cluster/partitions/{partition}/move": {
        "post": _operation(
            "cluster",
            "Give a partition to a node, which keeps it while it is alive.",
            {200: _object(partition=_COUNT, node=_TEXT)},
            _in_path("partition", _COUNT),
            _in_query("to", _TEXT, "The node.", required=True),
            errors=(404, 504),
            text="For operators. Answered when the node serves the partition.",
        )
    },
    "/v1/queues": {
        "get": _operation("queues", "All queues.", {200: _object(queues=_list(_ref("Queue")))})
    },
    "/v1/queues/{name}": {
        "get": _operation(
            "queues", "A queue's settings and state.", {200: _ref("Queue")}, _NAME, errors=(404,)
        ),
        "put": _operation(
            "queues",
            "Make a queue, or change the settings of one.",
            {200: _ref("Queue"), 201: _ref("Queue")},
            _NAME,
            errors=(409, 413, 504),
            body=_ref("QueueSettings"),
            needs_body=False,
            text="Settings that are left out stay, or are the default. Changing is for operators.",
        ),
        "delete": _operation(
            "queues", "Remove a queue with all in it.", {204: None}, _NAME, errors=(404, 504)
        ),
    },
    "/v1/queues/{name}/messages": {
        "get": _operation(
            "queues",
            "The messages that come next, without taking them.",
            {200: _object(messages=_list(_ref("Message")))},
            _NAME,
            _in_query("count", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many: 10."),
            errors=(404,),
        )
    },
    "/v1/queues/{name}/depths": {
        "get": _operation(
            "queues",
            "How many messages there were in the last hour, and how old the next one was.",
            {200: _object(every=_COUNT, messages=_list(_COUNT), age=_list(_COUNT))},
            _NAME,
            errors=(404,),
        )
    },
    "/v1/queues/{name}/purge": {
        "post": _operation(
            "queues",
            "Throw away all that nobody holds.",
            {200: _object(purged=_COUNT)},
            _NAME,
            errors=(404, 504),
        )
    },
    "/v1/queues/{name}/move": {
        "post": _operation(
            "queues",
            "Give messages to another queue.",
            {200: _object(moved=_COUNT, to=_TEXT)},
            _NAME,
            _in_query("to", _ADDRESS, "Where to; from `…/$dead`, where they came from."),
            _in_query("count", {"type": "integer", "minimum": 1}, "How many: all."),
            _in_query("sequence", _list(_COUNT), "Just these, as `messages` has them; up to 90."),
            errors=(404, 409, 504),
        )
    },
    "/v1/store": {
        "get": _operation(
            "store",
            "The keys that a filter matches, in order.",
            {
                200: _object(
                    keys=_list(_object(key=_TEXT, revision=_COUNT)), more={"type": "boolean"}
                )
            },
            _in_query("filter", _FILTER, "Which keys: all."),
            _in_query("after", _TEXT, "Only keys behind this one: the last of the page before."),
            _in_query("limit", {"type": "integer", "minimum": 1, "maximum": 1000}, "How many."),
        )
    },
    "/v1/store/{key}": {
        "get": _operation(
            "store",
            "A key's value; its revision is the ETag.",
            {200: _BYTES, 304: None},
            _KEY,
            _in_header("If-None-Match", _TEXT, "304 if the key has this revision."),
            errors=(404,),
        ),
        "put": _operation(
            "store",
            "Create a key, or give it a new value.",
            {
                200: _object(key=_TEXT, revision=_COUNT),
                201: _object(key=_TEXT, revision=_COUNT),
            },
            _KEY,
            _in_query("ttl", {"type": "integer", "minimum": 0, "maximum": 2147483647}, "In ms."),
            _IF_MATCH,
            _in_header("If-None-Match", _TEXT, "`*`: only if there is no such key."),
            errors=(307, 409, 412, 413, 504),
            body=_RAW,
            needs_body=False,
            content=_BYTES,
        ),
        "delete": _operation(
            "store", "Remove a key.", {204: None}, _KEY, _IF_MATCH, errors=(404, 412, 504)
        ),
    },
    "/v1/publish": {
        "post": _operation(
            "messages",
            "Publish rows of an Arrow stream.",
            {202: _object(published=_COUNT, duplicate={"type": "boolean"})},
            _in_query("producer", {"type": "string"}, "Who numbers batches."),
            _in_query("sequence", {"type": "string"}, "The batch; published once."),
            errors=(307, 409, 413, 504),
            body=_RAW,
            content=_ARROW,
            text="Columns `address` and `payload`; `id`, `correlation_id`, `content_type`, "
            "`priority`, `ttl` and `headers` where they are there. Uncompressed.",
        )
    },
    "/v1/publish/{address}": {
        "post": _operation(
            "messages",
            "Publish one message; the body is its payload.",
            {202: _object(address=_TEXT)},
            _in_path("address", _ADDRESS),
            _in_header("Wirelake-Id", _TEXT, "The message's id."),
            _in_header("Wirelake-Correlation-Id", _TEXT, "Its correlation id."),
            _in_header("Wirelake-Client", _TEXT, "Who sends it; queues take an id of one once."),
            _in_header("Wirelake-Priority", {"enum": ["0", "1"]}, "1 goes first in a queue."),
            _in_header("Wirelake-Ttl", {"type": "integer", "minimum": 0}, "In ms."),
            errors=(409, 413, 504),
            body=_RAW,
            needs_body=False,
            content=_BYTES,
            text="`Wirelake-Header-Colour: red` is the header `colour` of the message.",
        )
    },
    "/v1/events": {
        "get": _operation(
            "messages",
            "What is published from now on, as server-sent events.",
            {200: "text/event-stream"},
            _in_query("filter", _FILTERS, "Which addresses; several may be given.", required=True),
            errors=(409,),
            text="Each event is a Message with the `dialect` and the client id (`source`) of its "
            "sender, the `time` in µs, and its `partition` and `offset` where it is captured.",
        )
    },
    "/v1/log": {
        "get": _operation(
            "log",
            "The partitions of the log.",
            {200: _object(partitions=_list(_ref("Partition")), log=_TEXT)},
            _in_query("time", _TEXT, "`at`: the first offset from then on; µs or ISO 8601."),
            _in_query("filter", _FILTERS, "Addresses to be read; refused without the right to."),
            _in_query("pattern", _TEXT, "The same, as a regular expression (RE2)."),
            errors=(413,),
        )
    },
    "/v1/log/{partition}": {
        "get": _operation(
            "log",
            "Rows of a partition, as an Arrow stream.",
            {200: _ARROW},
            _in_path("partition", _COUNT),
            _in_query("log", _TEXT, "The log that is meant; 416 where this is another."),
            _in_query("from", _COUNT, "The first offset; the first that is kept."),
            _in_query("to", _COUNT, "The offset behind the last; up to what is durable."),
            _in_query("time_from", _TEXT, "Instead of `from`: µs since 1970 or ISO 8601."),
            _in_query("filter", _FILTERS, "Only these addresses; several may be given."),
            _in_query(
                "pattern",
                _TEXT,
                "Only addresses that match this regular expression (RE2) as a whole.",
            ),
            _in_query("columns", _TEXT, "Names of columns, with commas."),
            _in_query("limit", _COUNT, "So many rows at most."),
            errors=(307, 404, 413, 416),
        )
    },
    "/v1/rows": {
        "get": _operation(
            "log",
            "Rows of the log as JSON, the newest first.",
            {200: _object(rows=_list(_ref("Message")), more={"type": "boolean"})},
            *_SEARCH,
            _in_query("time_from", _TEXT, "µs since 1970 or ISO 8601."),
            _in_query("time_to", _TEXT, "Without what was received then or later."),
            _in_query("before", _TEXT, "To go on: the answer's `before`, as `0:17,1:4`."),
            _in_query("offset", _TEXT, "From this row of one partition back: `3:4711`."),
            _in_query("limit", {"type": "integer", "minimum": 1, "maximum": 100000}, "100."),
            _in_query("format", {"enum": ["json", "jsonl", "csv"]}, "A file, oldest row first."),
            errors=(413,),
            text="After a few seconds without enough rows the answer says where to go on. JSON has "
            "at most 1000 rows.",
        )
    },
    "/v1/histogram": {
        "get": _operation(
            "log",
            "How many rows were received when.",
            {
                200: _object(
                    start=_COUNT, stop=_COUNT, width=_COUNT, counts=_list(_COUNT), since=_COUNT
                )
            },
            *_SEARCH,
            _in_query("time_from", _TEXT, "µs since 1970 or ISO 8601: the first row."),
            _in_query("time_to", _TEXT, "The end: the last row."),
            _in_query("buckets", {"type": "integer", "minimum": 1, "maximum": 240}, "60."),
            errors=(413,),
            text="Where not all rows are counted, they are read from the newest on for some "
            "seconds; `since` is the time from which on all were.",
        )
    },
    "/v1/sql": {
        "post": _operation(
            "log",
            "Run a statement of DuckDB over the latest rows, as the table `log`.",
            {200: _object(columns=_list(_TEXT), rows=_list({"type": "array"}), of=_COUNT)},
            errors=(404, 413, 504),
            body=_object(sql=_TEXT) | {"examples": [{"sql": "SELECT count(*) FROM log"}]},
            text="For operators, where DuckDB is installed; in a process of its own, with limits.",
        )
    },
    "/v1/inspect": {
        "post": _operation(
            "console",
            "What is in these bytes, and where.",
            {200: _object(dialect=_TEXT, messages=_list({"type": "object"}), count=_COUNT)},
            _in_query("dialect", _TEXT, "What they are written in; else told from the bytes."),
            errors=(413, 504),
            body=_RAW,
            needs_body=False,
            content=_BYTES,
        )
    },
    "/v1/translate": {
        "post": _operation(
            "console",
            "A message in every dialect, and what each of them loses.",
            {200: _object(translations=_list({"type": "object"}))},
            errors=(413, 504),
            body=_ref("Message"),
            text='As the broker delivers it; with `"client": true`, as a client publishes it.',
        )
    },
    "/v1/audience": {
        "get": _operation(
            "operation",
            "Who would get what is published to an address now.",
            {200: _object(kind=_TEXT, count=_COUNT, who=_list({"type": "object"}))},
            _in_query("address", _ADDRESS, "The address.", required=True),
            errors=(413,),
        )
    },
    "/v1/trace": {
        "get": _operation(
            "operation",
            "What the latest trace has seen.",
            {
                200: _object(
                    filter=_TEXT, left={"type": "number"}, messages=_list({"type": "object"})
                )
            },
        ),
        "put": _operation(
            "operation",
            "Trace the deliveries of a filter for a minute.",
            {200: _object(filter=_TEXT, left={"type": "number"})},
            errors=(413, 504),
            body=_object(filter=_FILTER),
        ),
        "delete": _operation("operation", "End the trace.", {204: None}),
    },
    "/v1/progress": {
        "get": _operation(
            "log",
            "How far every query has read.",
            {200: _object(queries=_list(_object(query=_TEXT, lag=_COUNT)))},
        )
    },
    "/v1/progress/{query}": {
        "post": _operation(
            "log",
            "A query says how far it has read.",
            {200: _object(query=_TEXT, lag=_COUNT)},
            _QUERY_NAME,
            errors=(413, 504),
            body={"type": "object", "additionalProperties": _COUNT, "examples": [{"0": 0}]},
            text="The offset that it reads next, by partition.",
        ),
        "delete": _operation(
            "log", "A query reads no more.", {204: None}, _QUERY_NAME, errors=(404, 504)
        ),
    },
}


_ROWS = _PATHS["/v1/rows"]["get"]["responses"]["200"]["content"]
_ROWS.update({"application/jsonl": {}, "text/csv": {}})


def description() -> Json:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Wirelake",
            "version": __version__,
            "summary": "A message broker for many wire protocols, and its log.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": _PATHS,
        "security": [{}, {"token": []}],
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
