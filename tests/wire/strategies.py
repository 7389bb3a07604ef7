"""Messages that a dialect can say, one strategy for each, and the pieces they are made of.

A message from `messages(dialect)` comes back equal when it is written in that dialect and read
again: all fields that the dialect has are there, and no others.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from wirelake.message import Flag, Message, Op
from wirelake.wire.parameters import split

#: For tests that run for every pair of dialects.
few_examples = settings(max_examples=max(10, settings().max_examples // 5))

_CHARACTERS = st.characters(exclude_categories=["Cs"])

#: Names that mean something in one dialect or another, and may not be a user's header in it.
KOBOLD_KEYS = (
    "id", "tx", "ack", "ttl", "prio", "to", "from",
    "token", "client", "rev", "wait", "count", "code", "attempt", "requeue",
)  # fmt: skip
PARAMETERS = KOBOLD_KEYS[7:]

KOBOLD_OPS = (
    "publish", "subscribe", "unsubscribe", "request", "reply", "serve", "unserve", "enqueue",
    "dequeue", "deliver", "ack", "nack", "create", "read", "update", "delete", "watch", "set",
    "del", "open", "data", "close", "auth", "ping", "pong", "ok", "error", "info",
)  # fmt: skip


def text(most: int, *, least: int = 0, without: str = "") -> st.SearchStrategy[str]:
    """Text of so many bytes as UTF-8, in all alphabets."""
    characters = st.characters(exclude_categories=["Cs"], exclude_characters=without)
    signs = "".join(c for c in "ab/$|;=%\r\n\0 ž" if c not in without)
    return st.one_of(
        st.text(signs, min_size=least, max_size=8),
        st.text(characters, min_size=least, max_size=8),
        # As long as may be, to the byte.
        st.text(characters, min_size=1, max_size=4).map(
            lambda some: some + "x" * (most - len(some.encode()))
        ),
    )


payloads = st.one_of(
    st.binary(max_size=40),
    st.text(_CHARACTERS, max_size=20).map(str.encode),
    st.sampled_from([b"", b"\r\n", b"|", b"\0", b"0|0", b"x" * 252, b"x" * 253, b"x" * 1000]),
)
uids = st.binary(min_size=16, max_size=16).map(bytes.hex)
boson_ids = st.from_regex(r"\A[A-Za-z0-9_.-]{1,64}\Z")
names = text(255)
times = st.one_of(st.just(0), st.integers(0, 2**31 - 1))


def flags(*some: Flag) -> st.SearchStrategy[Flag]:
    """Any of these flags together."""
    return st.lists(st.sampled_from(some), unique=True).map(lambda chosen: Flag(sum(chosen)))


def headers(
    forbidden: tuple[str, ...] = (), *, unnamed: bool = False, without: str = ""
) -> st.SearchStrategy[dict[str, str]]:
    """A user's headers."""
    key = st.one_of(
        text(40, least=0 if unnamed else 1, without=without),
        st.sampled_from(["trace", "ž", "hbf", "topics", "ID", "prio ", "idx"]),
    ).filter(lambda name: not name.startswith("$") and name not in forbidden)
    return st.dictionaries(key, text(60, without=without), max_size=4)


_numbers = st.one_of(st.integers(0, 2**64).map(str), st.sampled_from(["", "0", "1", "007", "-1"]))
parameters = st.dictionaries(
    st.sampled_from(PARAMETERS).map("${}".format), st.one_of(text(60), _numbers), max_size=3
)


def optional(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Absent as often as not."""
    return st.one_of(st.just(""), strategy)


def merged(*some: st.SearchStrategy[dict[str, str]]) -> st.SearchStrategy[dict[str, str]]:
    """Dictionaries in one."""
    return st.tuples(*some).map(lambda each: {k: v for one in each for k, v in one.items()})


def _message(dialect: str, op: Any, **fields: Any) -> st.SearchStrategy[Message]:
    """Messages with an op of this name, or of one of these, and these fields."""
    op = op.map(Op.named) if isinstance(op, st.SearchStrategy) else Op.named(op)
    strategies = {
        name: value if isinstance(value, st.SearchStrategy) else st.just(value)
        for name, value in {"op": op, **fields}.items()
    }
    return st.builds(_built, dialect=st.just(dialect), **strategies)


def _built(op: Op, headers: dict[str, str] | None = None, **fields: Any) -> Message:
    """A message whose headers are given in the wire's form, with the parameters."""
    own, said = split(headers or {}, op)
    return Message(op=op, headers=own, parameters=said, **fields)


# boson-text

_topics = text(255, least=1, without="|").filter(lambda topic: topic[0] != "$")
_options = (
    st.lists(
        st.from_regex(r"\A[A-Za-z0-9]{1,6}\Z").filter(
            lambda option: option not in ("0", "m", "mm")
        ),
        min_size=1,
        max_size=5,
    )
    .map(",".join)
    .map(lambda options: {"boson.options": options})
)
_codes = text(40, least=1, without=" ").map(lambda code: {"$code": code})


def _boson_text() -> st.SearchStrategy[Message]:
    d = "boson-text"
    return st.one_of(
        _message(
            d,
            "publish",
            address=_topics,
            payload=payloads,
            headers=st.one_of(st.just({}), _options),
        ),
        _message(d, st.sampled_from(["subscribe", "unsubscribe", "serve"]), address=text(255)),
        _message(d, st.sampled_from(["ping", "pong", "ok"]), payload=payloads),
        _message(d, "auth", headers=text(60, least=1).map(lambda token: {"$token": token})),
        _message(d, "error", correlation_id=optional(boson_ids), headers=_codes, payload=payloads),
        _message(d, "request", correlation_id=boson_ids, address=_topics, payload=payloads),
        _message(d, "reply", correlation_id=boson_ids, payload=payloads),
    )


# boson-binary

_BOSON_FLAGS = tuple(
    f"hbf.{flag}"
    for flag in (
        "op", "id", "correlation", "client", "token", "target", "source", "ack", "ttl", "priority",
        "revision", "code", "wait", "count", "attempt", "requeue",
    )
)  # fmt: skip
#: Names that are not a user's own in boson-binary.
BOSON_KEYS = ("topic", "content", *_BOSON_FLAGS)


def _boson_binary() -> st.SearchStrategy[Message]:
    fields = {
        "payload": payloads,
        "id": optional(names),
        "correlation_id": optional(names),
        "source": optional(names),
        "target": optional(names),
        "priority": st.integers(0, 1),
        "ttl": times,
        "headers": merged(
            st.one_of(
                headers(BOSON_KEYS),
                st.just({"hbf.unknown": "carried along", "hbf": "this too"}),
            ),
            st.one_of(st.just({}), parameters),
        ),
        "flags": flags(Flag.ACK, Flag.VERSION_2),
    }
    others = st.sampled_from(KOBOLD_OPS[1:])
    return st.one_of(
        _message("boson-binary", "publish", address=text(255, least=1), **fields),
        _message("boson-binary", others, address=text(255), **fields),
    )


# mfp; a `topic` is a matter of the connection, so there is none here


def mfp_publishes(address: st.SearchStrategy[str]) -> st.SearchStrategy[Message]:
    """mfp messages to these addresses."""
    return _message(
        "mfp-1",
        "publish",
        id=uids,
        address=address,
        payload=payloads,
        flags=flags(Flag.ACK, Flag.TEXT),
    )


def _mfp() -> st.SearchStrategy[Message]:
    connection = st.sampled_from(["pub", "sub"]).map(lambda kind: {"$connection": kind})
    identity = st.text(_CHARACTERS, min_size=4, max_size=16)
    oversize = st.binary(min_size=1001, max_size=1100)
    return st.one_of(
        mfp_publishes(st.one_of(st.sampled_from(["", "a", "b/c"]), text(128))),
        _message("mfp-1", "publish", id=uids, payload=oversize, flags=Flag.OVERSIZE),
        _message(
            "mfp-1", st.sampled_from(["subscribe", "unsubscribe"]), id=uids, address=text(128)
        ),
        _message("mfp-1", st.sampled_from(["ok", "error"]), id=uids),
        _message("mfp-1", "handshake", id=uids, source=identity, headers=connection),
    )


# Kobold


def _kobold(dialect: str) -> st.SearchStrategy[Message]:
    address = text(255).filter(lambda topic: "\r\n" not in topic or dialect == "kobold-2")
    fields = {
        "address": address,
        "id": optional(names),
        "correlation_id": optional(names),
        "source": optional(names),
        "target": optional(names),
        "priority": st.integers(0, 1),
        "ttl": times,
    }
    own_headers = merged(headers(KOBOLD_KEYS, unnamed=dialect != "kobold-1"), parameters)
    if dialect != "kobold-2":
        return _message(
            dialect,
            st.sampled_from(KOBOLD_OPS),
            payload=payloads,
            headers=own_headers,
            flags=flags(Flag.ACK),
            **fields,
        )
    sent = st.integers(-(2**63), 2**63 - 1).filter(bool)
    own_headers = st.one_of(
        st.just({}),
        own_headers,
        merged(own_headers, sent.map(lambda time: {"$timestamp": str(time)})),
    )
    ops = st.sampled_from(KOBOLD_OPS)
    bare = _message(dialect, ops)
    binary = _message(
        dialect, ops, payload=payloads, headers=own_headers, flags=flags(Flag.ACK), **fields
    )
    textual = _message(
        dialect,
        ops,
        payload=st.text(_CHARACTERS, max_size=30).map(str.encode),
        headers=own_headers,
        flags=flags(Flag.ACK).map(lambda some: some | Flag.TEXT),
        **fields,
    )
    return st.one_of(bare, binary, textual)


# TMQ

_TMQ_SERVER = {
    "subscribe": 601,
    "unsubscribe": 602,
    "declare": 610,
    "remove": 611,
    "list": 616,
    "dequeue": 620,
}
_TMQ_ERRORS = (400, 401, 404, 481, 482, 503)
#: Payloads of delivery messages that refuse (spec: tmq 7).
_TMQ_REFUSALS = ("FAILED", "TIMEOUT", "failed", "Timeout")
#: A server message of these would tell the byte order (spec: tmq 2, decision 65).
_TMQ_SWAPPED = (101 << 8, 202 << 8)
_TMQ_KNOWN = (101, 202, *_TMQ_ERRORS, *_TMQ_SERVER.values())


def _tmq(dialect: str) -> st.SearchStrategy[Message]:
    number = st.integers(0, 0xFFFF)
    free = number.filter(lambda number: number not in _TMQ_KNOWN and number not in _TMQ_SWAPPED)
    refusals = [word.encode() for word in _TMQ_REFUSALS]
    fields = {
        "id": optional(names),
        "source": optional(names),
        "priority": st.integers(0, 1),
        "ttl": st.integers(0, 63),
        "payload": payloads,
        "flags": flags(Flag.ACK, Flag.FIRST, Flag.RESPONSE),
    }

    def joined(message: Message) -> Message:
        """A response and a message with RS have their id as correlation id too (decision 6)."""
        if message.op == Op.REPLY or (message.op == Op.PUBLISH and Flag.RESPONSE in message.flags):
            return replace_correlation(message, message.id)
        return message

    def to_target(op: Any, content_type: Any) -> st.SearchStrategy[Message]:
        return _message(dialect, op, content_type=content_type, target=names, **fields)

    def to_address(
        op: Any, content_type: Any, payload: Any = payloads
    ) -> st.SearchStrategy[Message]:
        own = fields | {"payload": payload}
        return _message(dialect, op, content_type=content_type, address=names, **own)

    return st.one_of(
        to_address("publish", number).map(joined),
        to_address("ack", number).filter(lambda ack: ack.payload.upper() not in refusals),
        to_address("nack", number, st.sampled_from(_TMQ_REFUSALS).map(str.encode)),
        *(to_address(op, content_type) for op, content_type in _TMQ_SERVER.items()),
        to_address("server", free.filter(lambda number: 601 <= number <= 620)),
        to_target("server", free.filter(lambda number: not 601 <= number <= 620)),
        to_target("hello", 101),
        to_target("ok", 202),
        to_target("error", st.sampled_from(_TMQ_ERRORS)),
        to_target(st.sampled_from(["reply", "direct", "redirect"]), number).map(joined),
        to_target(st.sampled_from(["other", "terminate"]), number),
        _message(dialect, st.sampled_from(["ping", "pong"])),
    )


# MQTT


def _mqtt(dialect: str) -> st.SearchStrategy[Message]:
    is_five = dialect == "mqtt-5"
    ticket = st.integers(1, 0xFFFF)
    said = text(60, without="\0")

    def own(*some: str, values: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, str]]:
        """Some headers `mqtt.…` of this dialect, where it has any."""
        names = st.sampled_from(some).map("mqtt.{}".format)
        return st.dictionaries(names, values, max_size=2) if is_five else st.just({})

    def numbers(most: int) -> st.SearchStrategy[str]:
        return st.integers(1, most).map(str)

    users = headers(without="\0", unnamed=True) if is_five else st.just({})
    topic = text(255, least=1, without="\0")
    qos = st.sampled_from([{}, {"mqtt.qos": "1"}, {"mqtt.qos": "2"}])
    retain = st.sampled_from([{}, {"mqtt.retain": "1"}])
    binary = st.binary(max_size=9).map(lambda some: b"\xff" + some).map(bytes.hex)
    properties = merged(
        own("content_type", "response", values=said), own("correlation", values=binary)
    )

    def marked(message: Message) -> Message:
        """QoS asks for an acknowledgement under a ticket; correlation data is there once."""
        fields = {name: getattr(message, name) for name in Message.__struct_fields__}
        if "mqtt.qos" not in message.headers:
            fields["ticket"] = 0
        else:
            fields["flags"] = message.flags | Flag.ACK
        if "mqtt.correlation" in message.headers:
            fields["correlation_id"] = ""
        return Message(**fields)

    publish = _message(
        dialect,
        "publish",
        address=topic,
        payload=payloads,
        ticket=ticket,
        headers=merged(qos, retain, properties, users),
        correlation_id=optional(names) if is_five else "",
        ttl=st.one_of(st.just(0), st.integers(1, 2_147_483).map(lambda s: 1000 * s))
        if is_five
        else 0,
        flags=flags(Flag.TEXT) if is_five else Flag(0),
    ).map(marked)
    most = 0x2E if is_five else 2
    options = st.sampled_from([n for n in range(1, most + 1) if n & 3 != 3 and n & 48 != 48])
    chosen: st.SearchStrategy[dict[str, str]] = st.one_of(
        st.just({}), options.map(lambda number: {"mqtt.options": str(number)})
    )
    connect = merged(
        st.sampled_from([{}, {"mqtt.clean": "1"}]),
        st.integers(0, 0xFFFF).map(lambda seconds: {"mqtt.keepalive": str(seconds)}),
        own("session_expiry", "maximum_packet", values=numbers(2**32 - 1)),
        own("receive_maximum", "alias_maximum", values=numbers(2**16 - 1)),
        users,
        st.sampled_from([{}, {"mqtt.user": "u"}, {"mqtt.user": "ž", "$token": "secret"}]),
    )
    willing = merged(
        connect,
        st.sampled_from([{"mqtt.will": "0"}, {"mqtt.will": "2", "mqtt.will_retain": "1"}]),
        st.sampled_from([{}, {"mqtt.will_properties": "1800000005"}]) if is_five else st.just({}),
    )
    reasons = merged(own("reason", values=said), users)
    kinds = st.sampled_from([4, 5, 6, 7])
    codes = st.sampled_from([b"", b"\x10", b"\x87"]) if is_five else st.just(b"")
    return st.one_of(
        publish,
        _message(dialect, "subscribe", address=topic, ticket=ticket, headers=chosen),
        _message(dialect, "unsubscribe", address=topic, ticket=ticket),
        _message(dialect, "handshake", source=said, headers=connect),
        _message(
            dialect, "handshake", source=said, headers=willing, address=topic, payload=payloads
        ),
        _message(dialect, "ack", content_type=kinds, ticket=ticket, payload=codes, headers=reasons),
        _message(
            dialect, "ok", content_type=9, ticket=ticket, payload=st.binary(max_size=5),
            headers=reasons,
        ),
        _message(dialect, "ok", content_type=11, ticket=ticket, headers=reasons),
        _message(
            dialect, "hello", content_type=st.integers(0, 255), flags=flags(Flag.MORE),
            headers=merged(
                reasons, own("server_keepalive", "receive_maximum", values=numbers(2**16 - 1))
            ),
        ),
        _message(
            dialect, "terminate", content_type=st.integers(0, 255) if is_five else 0,
            headers=reasons,
        ),
        _message(dialect, st.sampled_from(["ping", "pong"])),
    )  # fmt: skip


def replace_correlation(message: Message, correlation_id: str) -> Message:
    """The message with another correlation id."""
    fields = {name: getattr(message, name) for name in Message.__struct_fields__}
    return Message(**{**fields, "correlation_id": correlation_id})


_MESSAGES = {
    "boson-text": _boson_text(),
    "boson-binary": _boson_binary(),
    "mfp-1": _mfp(),
    "kobold-1": _kobold("kobold-1"),
    "kobold-2": _kobold("kobold-2"),
    "kobold-3": _kobold("kobold-3"),
    "tmq-1.00": _tmq("tmq-1.00"),
    "tmq-1.01": _tmq("tmq-1.01"),
    "mqtt-3.1.1": _mqtt("mqtt-3.1.1"),
    "mqtt-5": _mqtt("mqtt-5"),
}


def messages(dialect: str) -> st.SearchStrategy[Message]:
    """Whatever a dialect can say."""
    return _MESSAGES[dialect]


#: A publish with every field, of no dialect in particular, that each of them can say.
publishes = st.builds(
    Message,
    address=text(128, least=1, without="|$\r\n\0"),
    payload=payloads,
    id=optional(names),
    correlation_id=optional(names),
    source=optional(names),
    target=optional(names),
    content_type=st.integers(0, 0xFFFF),
    priority=st.integers(0, 1),
    ttl=times,
    headers=headers((*KOBOLD_KEYS, *BOSON_KEYS, "boson.options"), without="\0"),
    flags=flags(Flag.ACK),
)
cuts = st.lists(st.integers(0, 2000), max_size=4)
