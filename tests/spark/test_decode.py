"""Captures into the table, on a real Spark; against what `wirelake inspect` shows of them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.spark.packets import START, Wire, pcap
from tests.wire.reading import write
from wirelake.errors import ConfigError, EngineError
from wirelake.message import Message, Op
from wirelake.spark import table
from wirelake.spark.decode import (
    Capture,
    Options,
    Part,
    Place,
    Result,
    decode,
    decoded,
    even_step,
    find,
    plan,
)
from wirelake.spark.rows import with_folders
from wirelake.wire.arrow import SCHEMA

CAPTURES = sorted((Path(__file__).parents[2] / "examples" / "captures").iterdir())


def run(*arguments: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """The command line, in a process of its own."""
    command = [sys.executable, "-m", "wirelake", *arguments]
    return subprocess.run(command, capture_output=True, input=data)


def inspected(path: Path, *arguments: str) -> tuple[list[dict[str, Any]], bytes]:
    """What `inspect` shows, and what it says where the capture breaks."""
    result = run("inspect", str(path), "--json", *arguments)
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    for message in shown:
        del message["offset"]
        message["payload"] = base64.b64decode(message.pop("base64"))
    return shown, result.stderr


def read(spark: SparkSession, target: Path) -> list[dict[str, Any]]:
    """The rows of a table, in order."""
    rows = table.read(spark, str(target)).orderBy("partition", "offset").collect()
    return [{**row.asDict(), "payload": bytes(row["payload"])} for row in rows]


def errors(spark: SparkSession, target: Path) -> list[Any]:
    """The rows of the side table, in order."""
    return table.read_errors(spark, f"{target}_errors").orderBy("file", "offset").collect()


def messages(parts: list[Part]) -> pa.Table:
    """The messages of parts, in order."""
    found = [batch for part in parts for _, batch in decoded(part)]
    return pa.Table.from_batches(found).sort_by("offset").combine_chunks()


@pytest.mark.slow
def test_every_example_is_in_the_table_as_inspect_shows_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = tmp_path / "table"
    result = decode(spark, [str(path) for path in CAPTURES], Place(str(target)), Options(step=150))
    rows = read(spark, target)
    for number, path in enumerate(CAPTURES):
        shown, _ = inspected(path)
        mine = [row for row in rows if row["partition"] == number]
        assert [row["offset"] for row in mine] == list(range(len(shown)))
        assert [{name: row[name] for name in shown[0]} for row in mine] == shown
    assert result == Result(len(rows), 0)
    assert not (tmp_path / "table_errors").exists()


def test_what_cannot_be_read_stops_nothing_and_is_in_the_side_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    broken, unknown, short, empty, good = files = [
        tmp_path / name for name in ("a-broken", "b-unknown", "c-short", "d-empty", "e-good")
    ]
    broken.write_bytes(b"5|0|greet|hello5|x!|and more")
    unknown.write_bytes(b"\xff\xffwhat is this?")
    short.write_bytes(b"\x00")
    empty.write_bytes(b"")
    good.write_bytes(b"2|0|a|ok")
    paths = [str(file) for file in files]
    target = tmp_path / "table"
    assert decode(spark, paths, Place(str(target))) == Result(2, 3)
    assert [(row["partition"], row["payload"]) for row in read(spark, target)] == [
        (0, b"hello"),
        (4, b"ok"),
    ]
    first, second, third = errors(spark, target)
    assert (first["file"], first["offset"], first["dialect"]) == (str(broken), 18, "boson-text")
    assert first["reason"] == (
        "an option is letters and digits; nothing is read of the last 13 bytes"
    )
    assert bytes(first["excerpt"]) == b"!|and more"
    assert (second["offset"], second["reason"]) == (
        0,
        "no stream of any dialect begins like this",
    )
    assert third["reason"] == "too short to tell the dialect"
    _, said = inspected(broken)
    assert f"byte {first['offset']}: an option is letters and digits" in said.decode()


def test_a_dump_is_the_same_whether_one_task_indexes_it_or_several(
    spark: SparkSession, tmp_path: Path
) -> None:
    inner = write([Message("inner", b"y")] * 400, "kobold-3")
    dumps = {
        "plain": ("kobold-3", [Message(f"plant/{k}", b"%d" % k) for k in range(2000)]),
        "frames in payloads": ("kobold-3", [Message("outer", inner)] * 5),
        "topics set before": ("mfp-1", [Message(f"plant/{k // 99}", b"x") for k in range(500)]),
    }
    for name, (dialect, given) in dumps.items():
        data = write(given, dialect)
        dump = tmp_path / name
        dump.write_bytes(data)
        options = Options(dialect, step=len(data) // 4)
        (found,) = find(spark, [str(dump)], options)
        alone = plan(Capture(str(dump), 0), options)
        assert (found.messages, found.faults) == (alone.messages, [])
        assert found.messages >= len(given)
        assert messages(found.parts) == messages(alone.parts)
        assert len(found.parts) > 1


@pytest.mark.parametrize(
    ("size", "cores", "count"), [(9, 2, 1), (20, 2, 2), (85, 2, 10), (90, 4, 12), (30, 200, 3)]
)
def test_no_core_is_idle_while_others_decode_what_is_left_over(
    size: int, cores: int, count: int
) -> None:
    step = even_step(size, 10, cores)
    assert step <= 10
    assert -(-size // step) == count


def test_packets_and_dumps_go_to_one_table_with_their_times_and_folders(
    spark: SparkSession, tmp_path: Path
) -> None:
    wire = Wire(7702)
    asked = write([Message("house/door", b"open?", op=Op.REQUEST, correlation_id="1")], "kobold-1")
    answered = write([Message("", b"yes", op=Op.REPLY, correlation_id="1")], "kobold-1")
    packets, dump = tmp_path / "some.pcap", tmp_path / "dump"
    packets.write_bytes(pcap([*wire.open(), wire.send(0, asked), wire.send(1, answered)]))
    dump.write_bytes(write([Message("/odd name/x", b"1"), Message("a" * 200, b"2")], "tmq-1.00"))
    target = tmp_path / "table"
    decode(spark, [str(packets)], Place(str(target)), Options(time=1_000_000))
    decode(spark, [str(dump)], Place(str(target)), Options(dialect="tmq-1.00", time=1_000_000))
    rows = table.read(spark, str(target)).selectExpr(
        "unix_micros(timestamp) as time", "op", "cast(date as string) as date", "level"
    )
    assert sorted(map(tuple, rows.collect())) == [
        (1_000_000, "publish", "1970-01-01", f"_{'a' * 48}-{zlib.crc32(b'a' * 200):x}"),
        (1_000_000, "publish", "1970-01-01", "_empty"),
        (START + 3000, "request", "2023-11-14", "house"),
        (START + 4000, "reply", "2023-11-14", "_empty"),
    ]


@pytest.mark.parametrize(
    ("address", "level"),
    [
        ("house/kitchen", "house"),
        ("house", "house"),
        ("", "_empty"),
        ("/house", "_empty"),
        ("a b/c", "_a_b-806c5cd3"),
        ("$events", "__events-44db3418"),
        ("__HIVE_DEFAULT_PARTITION__", "___HIVE_DEFAULT_PARTITION__-df0d920d"),
    ],
)
def test_a_folder_has_a_safe_name(address: str, level: str) -> None:
    names = [*SCHEMA.names]
    row = {name: [None] for name in names} | {"address": [address], "timestamp": [0]}
    rows = pa.table({name: pa.array(row[name], SCHEMA.field(name).type) for name in names})
    assert with_folders(rows)["level"].to_pylist() == [level]


def test_a_table_keeps_the_schema_of_the_log(spark: SparkSession, tmp_path: Path) -> None:
    target = tmp_path / "table"
    decode(spark, [str(CAPTURES[0])], Place(str(target)))
    written = table.read(spark, str(target))
    assert written.schema.names == [*SCHEMA.names, "date", "level"]
    kinds = {field.name: field.dataType for field in written.schema.fields}
    assert {name: kinds[name] for name in SCHEMA.names} == {
        field.name: field.dataType for field in table.LOG_SCHEMA.fields
    }


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_overwriting_replaces_the_table_and_adding_does_not(
    spark: SparkSession, tmp_path: Path, format: str
) -> None:
    dump, target = tmp_path / "dump", str(tmp_path / "table")
    place = Place(target, format)
    dump.write_bytes(b"2|0|a|ok!")
    for _ in range(2):
        decode(spark, [str(dump)], place)
    assert (table.read(spark, target).count(), len(errors(spark, Path(target)))) == (2, 2)
    dump.write_bytes(b"2|0|a|ok")
    decode(spark, [str(dump)], place, overwrite=True)
    assert (table.read(spark, target).count(), len(errors(spark, Path(target)))) == (1, 0)


def test_other_formats_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'orc' is neither delta nor parquet"):
        Place(str(tmp_path), "orc")
    with pytest.raises(ConfigError, match="payload is neither of date, level"):
        Place(str(tmp_path), partition_by=("payload",))


@pytest.mark.parametrize("format", ["delta", "parquet"])
def test_a_file_that_changes_after_the_index_fails_the_job_and_adds_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    dump, other, target = tmp_path / "dump", tmp_path / "other", tmp_path / "table"
    other.write_bytes(b"2|0|a|ok")
    decode(spark, [str(other)], Place(str(target), format))
    dump.write_bytes(b"2|0|a|ok" * 10)
    plans = [plan(Capture(str(path), k)) for k, path in enumerate((other, dump))]
    dump.write_bytes(b"2|0|a|ok" * 4 + b"x|0|a|ok" * 6)
    monkeypatch.setattr("wirelake.spark.decode.find", lambda *_: plans)
    with pytest.raises(EngineError, match="capture 1 has changed while it was read"):
        decode(spark, [str(other), str(dump)], Place(str(target), format))
    assert table.read(spark, str(target)).count() == 1


def test_a_message_that_no_reader_would_take_is_in_the_side_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    dump, target = tmp_path / "dump", tmp_path / "table"
    dump.write_bytes(write([Message("house/door", b"open")], "tmq-1.00"))
    result = decode(spark, [str(dump)], Place(str(target)), Options("tmq-1.00", time=2**60))
    assert result == Result(1, 1)
    assert read(spark, target) == []
    (error,) = errors(spark, target)
    assert error["reason"] == "message 0: a time that no calendar has"
    assert (error["file"], error["offset"], bytes(error["excerpt"])) == (str(dump), 0, b"open")


@pytest.mark.slow
def test_the_command_line_decodes_standard_input_and_says_what_it_could_not(
    tmp_path: Path,
) -> None:
    target, data = tmp_path / "table", b"5|0|greet|hello5|x!|"
    options = ["--table", str(target), "--master", "local[1]"]
    result = run("lake", "decode", "-", *options, data=data)
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode() == f"1 messages in {target}\n"
    assert result.stderr.decode() == f"1 places could not be read; {target}_errors says why\n"
    missing = run("lake", "decode", "no-such-file", "--table", str(target))
    assert (missing.returncode, missing.stderr) == (2, b"wirelake: no-such-file: no such file\n")
