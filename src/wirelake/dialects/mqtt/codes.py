"""The numbers of MQTT: packet types, properties and reason codes (OASIS, 3.1.1 of 2014, 5 of 2019).

A property is a header in memory and in the log: `mqtt.` and the name that this table gives it.
"""

from __future__ import annotations

from enum import IntEnum


class Packet(IntEnum):
    """The types of packets."""

    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


#: Stands for the will, which has properties of its own inside a CONNECT.
WILL = 0

#: The forms that a property's value has.
OCTET, UINT16, UINT32, VARINT, BINARY, TEXT, PAIR = range(1, 8)

_P = Packet
_ANSWERS = (_P.PUBACK, _P.PUBREC, _P.PUBREL, _P.PUBCOMP, _P.SUBACK, _P.UNSUBACK)
_TOLD = (_P.CONNACK, *_ANSWERS, _P.DISCONNECT, _P.AUTH)
_MESSAGE = (_P.PUBLISH, WILL)
_OPENING = (_P.CONNECT, _P.CONNACK)

#: Each property by its number: the name of its header, its form, and the packets that may have it.
PROPERTIES: dict[int, tuple[str, int, tuple[int, ...]]] = {
    0x01: ("format", OCTET, _MESSAGE),
    0x02: ("expiry", UINT32, _MESSAGE),
    0x03: ("content_type", TEXT, _MESSAGE),
    0x08: ("response", TEXT, _MESSAGE),
    0x09: ("correlation", BINARY, _MESSAGE),
    0x0B: ("subscription", VARINT, (_P.PUBLISH, _P.SUBSCRIBE)),
    0x11: ("session_expiry", UINT32, (*_OPENING, _P.DISCONNECT)),
    0x12: ("assigned_id", TEXT, (_P.CONNACK,)),
    0x13: ("server_keepalive", UINT16, (_P.CONNACK,)),
    0x15: ("auth_method", TEXT, (*_OPENING, _P.AUTH)),
    0x16: ("auth_data", BINARY, (*_OPENING, _P.AUTH)),
    0x17: ("problem_info", OCTET, (_P.CONNECT,)),
    0x18: ("will_delay", UINT32, (WILL,)),
    0x19: ("wants_response_info", OCTET, (_P.CONNECT,)),
    0x1A: ("response_info", TEXT, (_P.CONNACK,)),
    0x1C: ("server_reference", TEXT, (_P.CONNACK, _P.DISCONNECT)),
    0x1F: ("reason", TEXT, _TOLD),
    0x21: ("receive_maximum", UINT16, _OPENING),
    0x22: ("alias_maximum", UINT16, _OPENING),
    0x23: ("alias", UINT16, (_P.PUBLISH,)),
    0x24: ("maximum_qos", OCTET, (_P.CONNACK,)),
    0x25: ("retain_available", OCTET, (_P.CONNACK,)),
    0x26: ("user", PAIR, (WILL, *_OPENING, _P.PUBLISH, _P.SUBSCRIBE, _P.UNSUBSCRIBE, *_TOLD)),
    0x27: ("maximum_packet", UINT32, _OPENING),
    0x28: ("wildcards_available", OCTET, (_P.CONNACK,)),
    0x29: ("subscriptions_available", OCTET, (_P.CONNACK,)),
    0x2A: ("shares_available", OCTET, (_P.CONNACK,)),
}


class Reason(IntEnum):
    """The reason codes of version 5 that a broker gives or understands."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION = 0x11
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    REFUSED = 0x83
    UNSUPPORTED_VERSION = 0x84
    BAD_CLIENT_ID = 0x85
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    BUSY = 0x89
    STOPPING = 0x8B
    BAD_AUTH_METHOD = 0x8C
    SILENT = 0x8D
    TAKEN_OVER = 0x8E
    BAD_FILTER = 0x8F
    BAD_TOPIC = 0x90
    NO_SUCH_PACKET = 0x92
    TOO_MANY = 0x93
    BAD_ALIAS = 0x94
    TOO_LARGE = 0x95
    QUOTA = 0x97
    NO_SHARED_SUBSCRIPTIONS = 0x9E


#: What a CONNACK of 3.1.1 says instead; everything else is `not authorized` there.
OLD_RETURNS = {
    Reason.SUCCESS: 0,
    Reason.UNSUPPORTED_VERSION: 1,
    Reason.BAD_CLIENT_ID: 2,
    Reason.BUSY: 3,
    Reason.QUOTA: 3,
    Reason.BAD_CREDENTIALS: 4,
}
OLD_NOT_AUTHORIZED = 5
#: What a SUBACK of 3.1.1 says of a filter that was refused.
OLD_REFUSED = 0x80

#: The reason that stands for each code of ours.
REASONS = {
    "bad_request": Reason.REFUSED,
    "unauthorized": Reason.NOT_AUTHORIZED,
    "busy": Reason.QUOTA,
    "conflict": Reason.REFUSED,
}


def reason_of(code: str) -> Reason:
    """Return the reason that stands for a code of ours."""
    return REASONS.get(code, Reason.REFUSED)
