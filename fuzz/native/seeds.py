"""What each native target begins with: fuzz/corpus and all vectors, in the target's own form."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow as pa

from fuzz.builds import Build
from fuzz.native.exercise import OF_TABLES, Kernels, Stream
from fuzz.native.framed import Framed
from fuzz.run import SEEDS, VECTORS

_DOCUMENTS = (
    b'{"whole": -12, "float": 2.5e3, "yes": true, "text": "a", "other": [1, {"b": null}]}',
    b"\xa5\x65whole\x0b\x65float\xfb\x40\x59\0\0\0\0\0\0\x63yes\xf5\x64text\x61a\x65bytes\x41\xff",
)


def seeds_of(build: Build, target: str) -> Iterator[bytes]:
    """The inputs that a target begins with."""
    dialects = list(build.codec.DIALECTS)
    if target in OF_TABLES:
        for number, dialect in enumerate(dialects):
            for stream in _streams(dialect):
                yield bytes([number]) + stream
    elif target == "arrow":
        for dialect in dialects:
            for stream in _streams(dialect):
                yield _as_arrow(build, dialect, stream)
    elif target == "names":
        for dialect in dialects:
            yield from _streams(dialect)
    elif target == "framed":
        for number, stream in enumerate(Framed(Kernels(build), Stream).seeds):
            yield bytes([number]) + stream
    elif target == "documents":
        yield from _DOCUMENTS
    elif target == "cbor":
        for stream in _streams("kobold-2"):
            yield stream[4 : 4 + int.from_bytes(stream[:4], "big")]
    else:
        yield from _streams(target)
        for path in sorted(VECTORS.glob(f"*/{target}.jsonl")):
            for line in path.read_text(encoding="utf-8").splitlines():
                yield bytes.fromhex(json.loads(line)["hex"])


def _streams(target: str) -> Iterator[bytes]:
    for seed in sorted((SEEDS / target).glob("*")):
        yield seed.read_bytes()


def _as_arrow(build: Build, dialect: str, stream: bytes) -> bytes:
    """The messages of a stream as somebody would post them."""
    table = build.wire.FrameTable(64)
    try:
        build.codec.scanner(dialect).scan(stream, table)
    except build.errors.ProtocolError:
        table.release()
    sink = pa.BufferOutputStream()
    batch = build.arrow.to_arrow(table)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]  # pyarrow has no types
