"""Addresses and filters: what is valid, and what matches.

An address is 1 to 255 bytes of UTF-8 without control characters, in levels separated by `/`. In a
filter `+` stands for one level and a last `#` for any number of levels, none included. Addresses
that begin with `$` are reserved and never match a wildcard (spec: one model under every dialect).
"""

from __future__ import annotations

import re

from wirelake.errors import RefusedError

MAX_ADDRESS = 255

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


def _check_text(text: str) -> None:
    size = len(text.encode())
    if not 1 <= size <= MAX_ADDRESS:
        raise RefusedError("bad_request", f"an address has 1 to {MAX_ADDRESS} bytes, not {size}")
    if _CONTROL.search(text):
        raise RefusedError("bad_request", "an address has no control characters")
