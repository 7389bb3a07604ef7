"""What clients can do in some dialects and not in others, by the names that errors use."""

from __future__ import annotations

#: What TMQ has as well as the dialects that name their ops.
SHARED = frozenset(
    {
        "acknowledgement of a publish",
        "client id",
        "direct message",
        "list of queues",
        "message id",
        "nack",
        "ping",
        "priority",
        "pull",
        "request/reply",
        "ttl",
    }
)
#: The dialects whose frames name their op: Kobold and boson-binary.
OPS = SHARED | {
    "acknowledgement of a direct message",
    "byte stream",
    "data store",
    "delay",
    "header",
    "nack without requeue",
    "prefetch",
    "pull that waits",
    "service",
    "state of the broker",
}
