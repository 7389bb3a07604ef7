"""TMQ's numbers: message types, content types of server messages, and refusals (spec: tmq 3, 4)."""

from __future__ import annotations

from wirelake.message import Op

HELLO = 101
#: Answers: Hello alone is accepted, everything else is done.
DONE = 200
ACCEPTED = 202
SUBSCRIBE = 601
UNSUBSCRIBE = 602
CREATE_CHANNEL = 603
REMOVE_CHANNEL = 604
CHANNEL = 605
CHANNELS = 606
CONSUMERS = 607
CREATE_QUEUE = 610
REMOVE_QUEUE = 611
UPDATE_QUEUE = 612
QUEUE = 615
QUEUES = 616
PULL = 620
CLIENTS = 631
#: The server messages whose target is an address.
WITH_ADDRESS = range(SUBSCRIBE, PULL + 1)

#: The content type of each reason to refuse.
REFUSALS = {
    "bad_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "exists": 481,
    "too_large": 482,
}
#: The content type of a refusal that has none of its own.
OTHER_REFUSAL = 503
#: The reason that a refusal's content type stands for.
REASONS = {number: code for code, number in REFUSALS.items()}

#: The op of each message type.
OPS = {
    0x00: Op.OTHER,
    0x08: Op.TERMINATE,
    0x09: Op.PING,
    0x0A: Op.PONG,
    0x10: Op.SERVER,
    0x11: Op.PUBLISH,
    0x12: Op.DIRECT,
    0x13: Op.ACK,
    0x14: Op.REPLY,
    0x15: Op.REDIRECT,
}
#: The op of a server message by its content type, SERVER for all others.
SERVER_OPS = {
    HELLO: Op.HELLO,
    ACCEPTED: Op.OK,
    **dict.fromkeys((*REASONS, OTHER_REFUSAL), Op.ERROR),
    SUBSCRIBE: Op.SUBSCRIBE,
    UNSUBSCRIBE: Op.UNSUBSCRIBE,
    CREATE_QUEUE: Op.DECLARE,
    REMOVE_QUEUE: Op.REMOVE,
    QUEUES: Op.LIST,
    PULL: Op.DEQUEUE,
}
#: The message type of each op, and the content type of each that is a server message. An error has
#: many content types: its reason tells which.
TYPES = {
    **{op: kind for kind, op in OPS.items()},
    **dict.fromkeys(SERVER_OPS.values(), 0x10),
    Op.NACK: 0x13,
}
CONTENT_TYPES = {op: number for number, op in SERVER_OPS.items() if op is not Op.ERROR}


def refusal(code: str) -> int:
    """Return the content type of a refusal."""
    return REFUSALS.get(code, OTHER_REFUSAL)
