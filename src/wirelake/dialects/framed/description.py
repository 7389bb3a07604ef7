"""A dialect described in TOML: how its frames are cut, and what their fields mean.

    name = "meter-1"
    address = "meter/{unit}"
    [frame]
    by = "length"
    magic = "0xAA55"
    [frame.length]
    at = 2
    width = 2

`read_description` checks a file and returns it as a value; every fault is a ConfigError that names
the setting. `dialect_of` makes a `Dialect` of it. Nothing here reads frames: the kernel `codec.py`
does, and is imported on first use.

Byte strings are text, taken as UTF-8, or `0x` and hexadecimal digits: `"\\r\\n"`, `"0x0D 0A"`.
Places count from the first byte of a frame (behind the digits and their end where the length is
decimal text), or from behind the last byte where they are negative: the delimiter is not part of
what is counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from wirelake.dialects.dialect import NO, Dialect
from wirelake.dialects.framed.checksums import KINDS
from wirelake.errors import ConfigError

#: The version of this format that is read here.
INTERFACE = 1
MOST_FIELDS = 32
MOST_PARTS = 16  # of an address or an answer
#: A frame has at most this many bytes unless the description says otherwise.
MOST_BYTES = 1 << 20
#: On `auto`, dialects of others are asked behind the built-in ones.
RANK = 1000

#: Descriptions that come with Wirelake, by name.
PRESETS = {file.stem: file for file in sorted((Path(__file__).parent / "presets").glob("*.toml"))}

_NAME = r"^[a-z][a-z0-9]*([.-][a-z0-9]+)*$"
_FIELD = r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$"
_HERE = "wirelake.dialects.framed"

Order = Literal["big", "little"]
Counts = Literal["frame", "rest", "payload"]
Framing = Literal["length", "delimiter", "fixed"]
Octets = Annotated[str, Meta(max_length=128)]
Place = Annotated[int, Meta(ge=-(1 << 16), le=1 << 16)]


class _Table(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of a description, in which nothing unknown may stand."""


class LengthField(_Table, frozen=True, kw_only=True):
    """Where a frame says how long it is."""

    at: Annotated[int, Meta(ge=0, le=1 << 12)] = 0
    width: Annotated[int, Meta(ge=1, le=8)] = 2
    order: Order = "big"
    #: A number, or decimal digits that end with `ends`.
    form: Literal["binary", "decimal"] = "binary"
    ends: Octets = " "
    #: The whole frame, what follows the length, or the payload alone.
    counts: Counts = "rest"
    #: Added to the number.
    add: Annotated[int, Meta(ge=-(1 << 20), le=1 << 20)] = 0


class ChecksumField(_Table, frozen=True, kw_only=True):
    """A checksum in front of the trailer, over all bytes from `start` up to its mark."""

    kind: str
    order: Order = "big"
    #: A number, or upper-case hexadecimal digits.
    form: Literal["binary", "hex"] = "binary"
    #: Bytes right in front of it, such as NMEA's `*`.
    mark: Octets = ""
    start: Annotated[int, Meta(ge=0, le=1 << 12)] = 0
    #: Frames without mark and checksum are taken too.
    optional: bool = False


class FrameSettings(_Table, frozen=True, kw_only=True):
    """How a stream is cut into frames."""

    by: Framing
    #: What every frame begins with: one byte string, or several of the same length.
    magic: Octets | tuple[Octets, ...] = ""
    length: LengthField | None = None
    delimiter: Octets = ""
    #: Bytes left out in front of the delimiter, such as `\r`.
    strip: Octets = ""
    #: What is written at the end of a frame, where that is more than the delimiter: `\r\n`.
    ending: Octets = ""
    size: Annotated[int, Meta(ge=1, le=1 << 20)] | None = None
    most: Annotated[int, Meta(ge=1, le=1 << 30)] = MOST_BYTES
    checksum: ChecksumField | None = None
    trailer: Octets = ""


Type = Literal[
    "u8", "u16", "u24", "u32", "u48", "u64", "i8", "i16", "i24", "i32", "i48", "i64", "f32", "f64",
    "text", "hex",
]  # fmt: skip


class Field(_Table, frozen=True, kw_only=True):
    """A value in a frame, by its place; text may also end somewhere, or be found by a name."""

    name: Annotated[str, Meta(pattern=_FIELD)]
    type: Type = "text"
    at: Place = 0
    #: The field behind whose end `at` counts.
    after: str = ""
    order: Order | None = None
    #: Bytes of text or hex; numbers have their own.
    size: Annotated[int, Meta(ge=1, le=1 << 12)] | None = None
    pad: Octets = "0x00"
    #: Text ends in front of this byte.
    until: Octets = ""
    #: The width in bytes of the length that text begins with.
    prefix: Literal[1, 2, 4] | None = None
    #: Text is this column, from 0, of what `separator` separates.
    column: Annotated[int, Meta(ge=0, le=255)] | None = None
    separator: Octets = ","
    #: The value is this member of the JSON object that the frame is.
    json: Annotated[str, Meta(max_length=64)] = ""
    #: What is written where a message does not have it.
    default: str = ""
    #: Whether it is a header; without it, where nothing else uses it.
    header: bool | None = None


class PayloadSettings(_Table, frozen=True, kw_only=True):
    """What of a frame is the payload: from `at`, or behind a field, to `before_end` bytes off."""

    at: Annotated[int, Meta(ge=0, le=1 << 16)] | None = None
    after: str = ""
    before_end: Annotated[int, Meta(ge=0, le=1 << 16)] | None = None
    #: What fills a payload that is too short for a frame of a fixed size; empty: it is left out.
    pad: Octets = ""


Value = int | str
OpName = Literal[
    "publish", "subscribe", "unsubscribe", "auth", "ping", "pong", "accepted", "refused"
]


class OpSettings(_Table, frozen=True, kw_only=True):
    """Which value of a field asks for what; every other value is a publish.

    The payload of `subscribe` and `unsubscribe` is the filter, of `auth` the token, of `refused`
    the reason.
    """

    field: str
    publish: Value
    subscribe: Value | None = None
    unsubscribe: Value | None = None
    auth: Value | None = None
    ping: Value | None = None
    pong: Value | None = None
    accepted: Value | None = None
    refused: Value | None = None


class AnswerSettings(_Table, frozen=True, kw_only=True):
    """Bytes that answer a publish; `{id}` and `{ticket}` stand for the publish's own.

    `{code}` and `{text}` in `refused` say why. `{ticket:u16}` is a number in bytes, as of fields.
    """

    accepted: Octets = ""
    refused: Octets = ""


class Description(_Table, frozen=True, kw_only=True):
    """A whole description."""

    interface: int = INTERFACE
    name: Annotated[str, Meta(pattern=_NAME, max_length=64)]
    family: Annotated[str, Meta(pattern=r"^([a-z][a-z0-9]*([.-][a-z0-9]+)*)?$", max_length=64)] = ""
    about: str = ""
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None
    colour: Annotated[str, Meta(pattern="^#[0-9a-f]{6}$")] = "#888888"
    address: Annotated[str, Meta(min_length=1, max_length=255)]
    frame: FrameSettings
    payload: PayloadSettings = PayloadSettings()
    fields: tuple[Field, ...] = ()
    #: Fields that are the message's id, number on this connection, priority and ttl in ms.
    id: str = ""
    ticket: str = ""
    priority: str = ""
    ttl: str = ""
    ops: OpSettings | None = None
    answer: AnswerSettings = AnswerSettings()
    #: Filters that every connection is subscribed to.
    subscribe: Annotated[tuple[str, ...], Meta(max_length=64)] = ()

    @property
    def magics(self) -> tuple[bytes, ...]:
        """What frames begin with: none, one or several byte strings."""
        given = self.frame.magic
        texts = (given,) if isinstance(given, str) else given
        return tuple(octets(text, "frame.magic") for text in texts if text)

    @property
    def parts(self) -> list[tuple[str, str]]:
        """The address as pairs of a text and the field behind it, "" behind the last text."""
        return list(split_pattern(self.address))

    def number_of(self, name: str, setting: str) -> int:
        """Return which of the fields has this name; raises ConfigError where none has."""
        for k, field in enumerate(self.fields):
            if field.name == name:
                return k
        raise ConfigError(setting, f"there is no field {name!r}")

    @property
    def roles(self) -> dict[str, str]:
        """The settings that name a field, with the field."""
        named = {role: getattr(self, role) for role in ("id", "ticket", "priority", "ttl")}
        if self.ops is not None:
            named["ops.field"] = self.ops.field
        return {role: field for role, field in named.items() if field}


def octets(text: str, setting: str) -> bytes:
    """Return a byte string of a description; raises ConfigError where its digits are none."""
    if not text.startswith("0x"):
        return text.encode()
    try:
        return bytes.fromhex(text[2:])
    except ValueError:
        raise ConfigError(
            setting, f"{text!r}: behind 0x come pairs of hexadecimal digits"
        ) from None


def split_pattern(pattern: str) -> Iterator[tuple[str, str]]:
    """Cut `a/{b}/c` into ("a/", "b") and ("/c", "")."""
    at = 0
    for found in re.finditer(r"\{([^{}]*)\}", pattern):
        yield pattern[at : found.start()], found[1]
        at = found.end()
    yield pattern[at:], ""


def parse_description(text: str, where: str = "description") -> Description:
    """Check a description; raises ConfigError that names the setting and `where` it stands."""
    try:
        found = msgspec.toml.decode(text, type=Description)
    except msgspec.ValidationError as error:
        setting, reason = _explain(str(error))
        raise ConfigError(setting, f"{reason} ({where})") from None
    except msgspec.DecodeError as error:
        raise ConfigError(where, str(error)) from None
    try:
        _check(found)
    except ConfigError as error:
        raise ConfigError(error.setting, f"{error.reason} ({where})") from None
    return found


def read_description(file: Path) -> Description:
    """Read the description in a file, or the preset of this name where there is no such file."""
    if not file.suffix and not file.exists():
        file = PRESETS.get(file.name, file)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(str(file), reason or str(error)) from None
    return parse_description(text, str(file))


def _explain(text: str) -> tuple[str, str]:
    """What msgspec says of a value, as the setting's name and the reason."""
    reason, _, path = text.partition(" - at `$")
    setting = path.rstrip("`").lstrip(".")
    for pattern, said in (
        (r"Object contains unknown field `(.*)`", "there is no such setting"),
        (r"Object missing required field `(.*)`", "this setting is missing"),
    ):
        if found := re.fullmatch(pattern, reason):
            return ".".join(filter(None, (setting, found[1]))), said
    return setting or "description", reason[:1].lower() + reason[1:]


# What the types cannot say


def _check(one: Description) -> None:
    if one.interface != INTERFACE:
        known = f"this version of Wirelake reads interface {INTERFACE}"
        raise ConfigError("interface", f"{one.interface} is not known; {known}")
    _check_frame(one)
    _check_fields(one)
    _check_address(one)
    _check_payload(one)
    _check_ops(one)
    _check_answers(one)


def _check_frame(one: Description) -> None:
    frame = one.frame
    for by, setting, given in (
        ("length", "length", frame.length is not None),
        ("delimiter", "delimiter", bool(frame.delimiter)),
        ("fixed", "size", frame.size is not None),
    ):
        if (frame.by == by) != given:
            said = "is missing" if frame.by == by else f"is not for frames by {frame.by}"
            raise ConfigError(f"frame.{setting}", f"this setting {said}")
    magics = one.magics
    if any(not 0 < len(magic) <= 16 for magic in magics):
        raise ConfigError("frame.magic", "a magic has 1 to 16 bytes")
    if len({len(magic) for magic in magics}) > 1 or len(magics) > 4:
        raise ConfigError("frame.magic", "at most 4, all of the same length")
    _sized("frame.delimiter", frame.delimiter, 0, 8)
    _sized("frame.strip", frame.strip, 0, 1)
    _sized("frame.trailer", frame.trailer, 0, 16)
    if frame.strip and frame.by != "delimiter":
        raise ConfigError("frame.strip", "only delimited frames have it")
    if frame.ending and octets(frame.ending, "frame.ending") != octets(
        frame.strip, "frame.strip"
    ) + octets(frame.delimiter, "frame.delimiter"):
        raise ConfigError("frame.ending", "it is frame.strip, then frame.delimiter")
    if frame.size is not None and frame.size > frame.most:
        raise ConfigError("frame.size", f"it is more than frame.most, {frame.most}")
    if (length := frame.length) is not None:
        if length.form == "decimal":
            _sized("frame.length.ends", length.ends, 1, 1)
            if octets(length.ends, "frame.length.ends").isdigit():
                raise ConfigError("frame.length.ends", "a digit cannot end digits")
            if length.counts != "rest" or length.at:
                reason = "a decimal length stands first and counts what follows its end"
                raise ConfigError("frame.length", reason)
            if magics:
                raise ConfigError("frame.magic", "frames begin with the digits of their length")
        elif length.at < (len(magics[0]) if magics else 0):
            raise ConfigError("frame.length.at", "the magic is there")
    if (check := frame.checksum) is not None:
        if check.kind not in KINDS:
            raise ConfigError(
                "frame.checksum.kind", f"{check.kind!r} is none of {', '.join(KINDS)}"
            )
        _sized("frame.checksum.mark", check.mark, 0, 4)
        if check.optional and not check.mark:
            raise ConfigError("frame.checksum.optional", "it is told by its mark: give one")


def _sized(setting: str, text: str, least: int, most: int) -> bytes:
    found = octets(text, setting)
    if not least <= len(found) <= most:
        raise ConfigError(setting, f"it has {least} to {most} bytes, not {len(found)}")
    return found


def _check_fields(one: Description) -> None:
    if len(one.fields) > MOST_FIELDS:
        raise ConfigError("fields", f"a dialect has at most {MOST_FIELDS}, not {len(one.fields)}")
    seen: list[str] = []
    for k, field in enumerate(one.fields):
        here = f"fields[{k}]"
        if field.name in seen:
            raise ConfigError(f"{here}.name", f"{field.name!r} is there twice")
        ways = [
            setting
            for setting in ("size", "until", "prefix", "column", "json")
            if getattr(field, setting) not in (None, "")
        ]
        is_number = field.type not in ("text", "hex")
        if is_number and [way for way in ways if way != "json"]:
            raise ConfigError(f"{here}.{ways[0]}", f"a number of type {field.type} has its own")
        if is_number and field.json:
            raise ConfigError(f"{here}.type", "a member of JSON is text: its type is its own")
        if not is_number and len(ways) != 1:
            reason = "text needs one of size, until, prefix, column and json"
            raise ConfigError(here, reason + (f", not {' and '.join(ways)}" if ways else ""))
        if field.type == "hex" and ways != ["size"] and ways != ["prefix"]:
            raise ConfigError(f"{here}.{ways[0]}", "hexadecimal text has a size or a prefix")
        if field.until:
            _sized(f"{here}.until", field.until, 1, 1)
        if field.column is not None:
            _sized(f"{here}.separator", field.separator, 1, 1)
        _sized(f"{here}.pad", field.pad, 1, 1)
        if field.after:
            if field.after not in seen:
                raise ConfigError(f"{here}.after", f"no field {field.after!r} stands before it")
            if field.at < 0:
                raise ConfigError(f"{here}.at", "behind a field it is not negative")
        elif field.at < 0:
            size = size_of(field)
            if not size or -field.at < size:
                reason = "from the end, a field has a size and fits in front of it"
                raise ConfigError(f"{here}.at", reason)
        if (field.json or field.column is not None) and (field.at or field.after):
            raise ConfigError(f"{here}.at", "columns and members are found in the whole frame")
        if field.json and one.frame.by != "delimiter":
            raise ConfigError(f"{here}.json", "members are found in lines: frames by delimiter")
        seen.append(field.name)
    for role, name in one.roles.items():
        field = one.fields[one.number_of(name, role)]
        if role in ("ticket", "priority", "ttl") and field.type[0] not in "ui":
            raise ConfigError(role, f"{name} is {field.type}, and this is a number")
        if role in ("ticket", "priority", "ttl") and size_of(field) > 4:
            raise ConfigError(role, f"{name} has more than 4 bytes")


def size_of(field: Field) -> int:
    """Return the bytes of a field that always has as many, else 0."""
    if field.type not in ("text", "hex"):
        return int(field.type[1:]) // 8
    return field.size or 0


def _check_address(one: Description) -> None:
    parts = one.parts
    fields = [name for _, name in parts if name]
    if len(parts) > MOST_PARTS:
        raise ConfigError("address", f"it has at most {MOST_PARTS - 1} fields")
    for name in fields:
        one.number_of(name, "address")
        if fields.count(name) > 1:
            raise ConfigError("address", f"{name!r} is there twice")
        if one.fields[one.number_of(name, "address")].type[0] == "f":
            raise ConfigError("address", f"{name!r} is a float, which has no one spelling")
    for text, _ in parts:
        if bad := next((sign for sign in "{}+#" if sign in text), ""):
            raise ConfigError("address", f"it cannot have {bad!r}")
    for (_, name), (text, _) in pairwise(parts):
        if name and not text and (text, _) != parts[-1]:
            raise ConfigError("address", "between two fields stands a text that tells them apart")
    if not fields and one.address.startswith("/"):
        raise ConfigError("address", "an address does not begin with /")


def _check_payload(one: Description) -> None:
    payload = one.payload
    if payload.after:
        one.number_of(payload.after, "payload.after")
        if one.frame.length is not None and one.frame.length.counts == "payload":
            raise ConfigError("payload.after", "a length of the payload needs a fixed place")
    needed = _end_of(one)
    if payload.before_end is not None and payload.before_end < needed:
        reason = f"trailer, checksum and fields behind the payload have {needed} bytes"
        raise ConfigError("payload.before_end", reason)
    _sized("payload.pad", payload.pad, 0, 1)
    if payload.pad and one.frame.by != "fixed":
        raise ConfigError("payload.pad", "only frames of a fixed size are filled up")


def _end_of(one: Description) -> int:
    """Return the bytes behind a payload."""
    size = len(octets(one.frame.trailer, "frame.trailer"))
    if (check := one.frame.checksum) is not None:
        size += KINDS[check.kind].bits // (4 if check.form == "hex" else 8)
        size += len(octets(check.mark, "frame.checksum.mark"))
    return max([size, *(-field.at for field in one.fields if field.at < 0)])


def _check_ops(one: Description) -> None:
    if one.ops is None:
        return
    field = one.fields[one.number_of(one.ops.field, "ops.field")]
    if field.type[0] == "f" or field.type == "hex":
        raise ConfigError("ops.field", f"{field.name} is {field.type}; it is an integer or text")
    taken: dict[Value, str] = {}
    for name, value in op_values(one.ops).items():
        here = f"ops.{name}"
        if field.type == "text":
            if not isinstance(value, str) or not 0 < len(value.encode()) <= 7:
                raise ConfigError(here, f"{field.name} is text: 1 to 7 bytes of it")
        elif not isinstance(value, int):
            raise ConfigError(here, f"{field.name} is a number")
        else:
            bits = 8 * size_of(field)
            low, high = (0, 1 << bits) if field.type[0] == "u" else (-1 << bits - 1, 1 << bits - 1)
            if not low <= value < high:
                raise ConfigError(here, f"{value} is no {field.type}")
        if value in taken:
            raise ConfigError(here, f"it is {value!r}, as ops.{taken[value]} is")
        taken[value] = name


def op_values(ops: OpSettings) -> dict[str, Value]:
    """Return the values that have a meaning, by its name."""
    given = msgspec.structs.asdict(ops)
    del given["field"]
    return {name: value for name, value in given.items() if value is not None}


#: What may stand in an answer, and in which form.
ANSWER_FORMS = ("", "u8", "u16", "u32", "u16le", "u32le")


def _check_answers(one: Description) -> None:
    for which in ("accepted", "refused"):
        text = getattr(one.answer, which)
        if not text:
            continue
        here = f"answer.{which}"
        if one.ops is not None and getattr(one.ops, which) is not None:
            raise ConfigError(here, f"ops.{which} says it already")
        known = ("id", "ticket") if which == "accepted" else ("id", "ticket", "code", "text")
        parts = list(answer_parts(text, here))
        if len(parts) > MOST_PARTS:
            raise ConfigError(here, f"it has at most {MOST_PARTS - 1} fields")
        for _, name in parts:
            what, _, form = name.partition(":")
            if name and (what not in known or form not in ANSWER_FORMS):
                raise ConfigError(here, f"{{{name}}} is none of {', '.join(known)}")
            if form and what != "ticket":
                raise ConfigError(here, f"{{{name}}}: only a ticket is a number")
            if what == "ticket" and not one.ticket:
                raise ConfigError(here, "no field is the ticket")
            if what == "id" and not one.id:
                raise ConfigError(here, "no field is the id")


def answer_parts(text: str, setting: str) -> Iterator[tuple[bytes, str]]:
    """Cut an answer into byte strings, each with what follows it; `0x` is for all of them."""
    is_hex = text.startswith("0x")
    for literal, name in split_pattern(text.removeprefix("0x")):
        yield octets(f"0x{literal}" if is_hex else literal, setting), name


# A description as a dialect


@dataclass(frozen=True)
class Beginning:
    """The rule of detection of a described dialect: its magic, or nothing where it has none."""

    name: str
    magics: tuple[bytes, ...]

    def __call__(self, head: bytes) -> str | None:
        """Return the dialect, "" for another one, None where more bytes must tell."""
        for magic in self.magics:
            if head[: len(magic)] == magic:
                return self.name
        if any(magic.startswith(head) for magic in self.magics):
            return None
        return NO if self.magics else self.name


def dialect_of(description: Description) -> Dialect:
    """Return a described dialect as the value that the registry holds."""
    ops, answer = description.ops, description.answer
    abilities = set()
    if description.priority:
        abilities.add("priority")
    if description.ttl:
        abilities.add("ttl")
    if description.id:
        abilities.add("message id")
    if any(is_header(description, field) for field in description.fields):
        abilities.add("header")
    by_frame = ops is not None and ops.accepted is not None
    if by_frame or (answer.accepted and answers_are_told(description)):
        abilities.add("acknowledgement of a publish")
    if ops is not None and ops.ping is not None and ops.pong is not None:
        abilities.add("ping")
    magics = description.magics
    family = description.family or description.name
    return Dialect(
        name=description.name,
        family=family,
        port=description.port,
        scanner=f"{_HERE}.codec:FramedScanner",
        encoder=f"{_HERE}.codec:FramedEncoder",
        detect=Beginning(description.name, magics) if magics else None,
        rank=RANK,
        # Alone in its family there is nothing to tell apart; the scanner finds the faults.
        detect_in_family=Beginning(description.name, magics if family != description.name else ()),
        session=f"{_HERE}.session:FramedSession",
        speech=f"{_HERE}.speech:FramedSpeech",
        abilities=frozenset(abilities),
        begins_at_once=family == description.name,
        has_addresses=any(name for _, name in description.parts),
        colour=description.colour,
        description=description,
    )


def is_header(description: Description, field: Field) -> bool:
    """Return whether a field is a header: as it says, or where nothing else uses it."""
    if field.header is not None:
        return field.header
    used = {*description.roles.values(), *(name for _, name in description.parts)}
    return field.name not in used


def answers_are_told(description: Description) -> bool:
    """Return whether an answer's first bytes cannot be a frame's."""
    magics = description.magics
    begin = [
        next(answer_parts(text, ""))[0]
        for text in (description.answer.accepted, description.answer.refused)
        if text
    ]
    if not magics or not begin:
        return False
    size = len(magics[0])
    return all(one and not _alike(one[:size], magic) for one in begin for magic in magics)


def _alike(one: bytes, other: bytes) -> bool:
    return one.startswith(other) or other.startswith(one)


def described(registry: Any, file: Path) -> Dialect:
    """Add the dialect that a file describes; one that is there already, unchanged, is returned.

    Raises ConfigError where the description is wrong or its name is taken.
    """
    description = read_description(file)
    dialect = dialect_of(description)
    known = registry.get(dialect.name)
    if known is not None and known.description == description:
        found: Dialect = known
        return found
    if known is not None and known.description is not None:
        raise ConfigError("name", f"{dialect.name} has changed: that needs a restart ({file})")
    try:
        registry.add(dialect)
    except ValueError as error:
        raise ConfigError("name", f"{error} ({file})") from None
    return dialect
