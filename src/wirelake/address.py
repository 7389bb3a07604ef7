"""What peers write as text: addresses, filters, client ids and numbers; what is valid of it.

An address is 1 to 255 bytes of UTF-8 without control characters, in levels separated by `/`. In a
filter `+` stands for one level and a last `#` for any number of levels, none included. Addresses
that begin with `$` are reserved and never match a wildcard (spec: one model under every dialect).

A client id is 1 to 64 bytes of UTF-8 that can be printed. As filters say which ids a token may
claim (`clients`) and which it may send to (`$client/<id>`), it has no wildcards. A number is
written in ASCII digits, without a sign.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from unicodedata import category

from wirelake.errors import RefusedError

MAX_ADDRESS = 255
MAX_CLIENT_ID = 64
#: The largest number that a peer can give, and how many digits it may have.
MAX_NUMBER = 2**63 - 1
MAX_DIGITS = 19

#: Categories of Unicode: control and formatting characters, halves of pairs, ends of lines.
_NOT_PRINTED = ("Cc", "Cf", "Cs", "Zl", "Zp")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_address(address: str) -> str:
    """The address, if it is one: the address of a service or a key, say."""
    _check_text(address)
    if "+" in address or "#" in address:
        raise RefusedError("bad_request", "an address has no wildcards")
    return address


def check_topic(address: str) -> str:
    """The address, if it is one, and not reserved for control."""
    if address.startswith("$"):
        raise RefusedError("bad_request", "addresses that begin with `$` are reserved")
    return check_address(address)


def check_filter(filter: str) -> str:
    """The filter, if it is one."""
    _check_text(filter)
    levels = filter.split("/")
    for position, level in enumerate(levels):
        if ("+" in level or "#" in level) and len(level) > 1:
            raise RefusedError("bad_request", f"`+` and `#` stand alone in a level: {filter}")
        if level == "#" and position < len(levels) - 1:
            raise RefusedError("bad_request", f"`#` is the last level of a filter: {filter}")
    return filter


def check_client_id(client_id: str) -> str:
    """The client id, if it is one; raises RefusedError (`bad_request`) that says what is wrong."""
    size = len(client_id.encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_CLIENT_ID:
        text = f"a client id has 1 to {MAX_CLIENT_ID} bytes, not {size}"
        raise RefusedError("bad_request", text)
    if any(category(character) in _NOT_PRINTED for character in client_id):
        raise RefusedError("bad_request", "a client id has no control characters")
    if client_id.startswith("$") or "+" in client_id or "#" in client_id:
        raise RefusedError("bad_request", "a client id has no `+` or `#`, nor `$` at its start")
    return client_id


def check_number(text: str, name: str, *, least: int = 0, most: int = MAX_NUMBER) -> int:
    """The number that a peer has given as text under this name.

    Raises RefusedError (`bad_request`) for anything but ASCII digits, and for what is out of range.
    """
    if not (text.isascii() and text.isdecimal()):
        shown = text if len(text) <= 30 else text[:30] + "…"
        raise RefusedError("bad_request", f"{name} is a number, not {shown}")
    if len(text) > MAX_DIGITS or not least <= int(text) <= most:
        raise RefusedError("bad_request", f"{name} is a number from {least} to {most}")
    return int(text)


def has_wildcard(filter: str) -> bool:
    """Does a (valid) filter stand for more than one address?"""
    return "+" in filter or filter.endswith("#")


def matches(filter: str, address: str) -> bool:
    """Does an address match a filter? The plain reading of the rule, for one of each."""
    if filter == address:
        return True
    if address.startswith("$"):
        return False
    wanted, given = filter.split("/"), address.split("/")
    for position, level in enumerate(wanted):
        if level == "#":
            return True
        if position == len(given) or level not in ("+", given[position]):
            return False
    return len(wanted) == len(given)


def covers(allowed: str, wanted: str) -> bool:
    """Return whether a filter matches everything that another one does."""
    if allowed == wanted:
        return True
    mine, theirs = allowed.split("/"), wanted.split("/")
    if wanted.startswith("$") and mine[0] != theirs[0]:
        return False  # `$client/+` covers every client, `+/+` none
    for position, level in enumerate(mine):
        if level == "#":
            return True
        if position == len(theirs) or theirs[position] == "#":
            return False
        if level not in ("+", theirs[position]):
            return False
    return len(mine) == len(theirs)


def overlap(one: str, other: str) -> bool:
    """Can an address match both filters?"""
    for a, b in zip_longest(one.split("/"), other.split("/")):
        if "#" in (a, b):
            return True
        if a is None or b is None or ("+" not in (a, b) and a != b):
            return False
    return True


def filter_expression(filter: str) -> str:
    """Return a regular expression, for RE2 as for Java, of the addresses that a filter matches.

    It has to match the whole address, and its `.` every character.
    """
    if not has_wildcard(filter):
        return re.escape(filter)
    first, *rest = filter.split("/")
    # What begins with `$` matches no wildcard, so a first level that is one must not.
    match first:
        case "#":
            return "(?:[^$].*)?"
        case "+":
            text = "(?:[^$/][^/]*)?"
        case _ if first.startswith("$"):
            return r"[^\s\S]"  # nothing at all
        case _:
            text = re.escape(first)
    for level in rest:
        text += "(?:/.*)?" if level == "#" else "/[^/]*" if level == "+" else "/" + re.escape(level)
    return text


def _check_text(text: str) -> None:
    if text and len(text) <= MAX_ADDRESS and text.isascii() and text.isprintable():
        return  # as nearly all are
    size = len(text.encode())
    if not 1 <= size <= MAX_ADDRESS:
        raise RefusedError("bad_request", f"an address has 1 to {MAX_ADDRESS} bytes, not {size}")
    if _CONTROL.search(text):
        raise RefusedError("bad_request", "an address has no control characters")
