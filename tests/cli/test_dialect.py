"""`wirelake dialect`: descriptions are checked, written and listed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.cli.command import Group
from tests.dialects.described import METER, SENSOR
from tests.dialects.test_described import GGA, written
from wirelake.cli import app
from wirelake.dialects import DIALECTS, FILES
from wirelake.dialects.framed.description import read_description
from wirelake.message import Message

dialect = Group("dialect")


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a command adds is gone afterwards."""
    monkeypatch.setenv(FILES, "")
    with DIALECTS.also():
        yield


@pytest.fixture
def sensor(tmp_path: Path) -> Path:
    """A description in a file."""
    file = tmp_path / "sensor.toml"
    file.write_text(SENSOR)
    return file


def frames() -> bytes:
    """Three frames of the sensor."""
    return written("sensor-2", *(Message(f"plant/1/{k}", b"21.5", ticket=k) for k in range(3)))


def test_check_shows_messages_as_text_and_as_json(tmp_path: Path, sensor: Path) -> None:
    DIALECTS.describe(sensor)
    capture = tmp_path / "capture.bin"
    capture.write_bytes(frames())
    lines = dialect.shown("check", sensor, capture)
    assert lines[0] == "sensor-2: frames by a length, address plant/{line}/{unit}"
    assert lines[-1] == "3 messages"
    objects = [json.loads(one) for one in dialect.shown("check", sensor, capture, "--json")]
    assert [one["address"] for one in objects] == ["plant/1/0", "plant/1/1", "plant/1/2"]
    assert [one["offset"] for one in objects] == [0, 17, 34]


def test_check_shows_the_first_fault_at_its_byte(tmp_path: Path, sensor: Path) -> None:
    DIALECTS.describe(sensor)
    capture = tmp_path / "capture.bin"
    capture.write_bytes(frames()[:-5] + b"\0" + frames()[-4:])
    result = dialect.run("check", sensor, capture)
    assert result.returncode == 2
    assert b"2 messages" in result.stdout
    assert b"sensor-2: byte 47: the checksum is" in result.stderr
    assert b"checksums that fit this frame: none of those that are known" in result.stderr


def test_check_tries_all_checksums(tmp_path: Path, sensor: Path) -> None:
    DIALECTS.describe(sensor)
    capture = tmp_path / "capture.bin"
    capture.write_bytes(frames())
    other = tmp_path / "other.toml"
    other.write_text(SENSOR.replace("sensor-2", "other-2").replace("ccitt-false", "kermit"))
    result = dialect.run("check", other, capture)
    assert b"crc-16/ccitt-false (big)" in result.stderr


def test_check_of_a_preset_by_its_name(tmp_path: Path) -> None:
    capture = tmp_path / "gps.txt"
    capture.write_bytes(GGA)
    assert dialect.shown("check", "nmea-0183", capture)[-1] == "1 messages"


def test_a_wrong_description_is_one_line(tmp_path: Path, sensor: Path) -> None:
    sensor.write_text(METER.replace("width = 4", "width = 40"))
    result = dialect.run("check", sensor)
    assert result.returncode == 1
    assert result.stderr.startswith(b"wirelake: frame.length.width: expected `int` <= 8")
    assert b"No such file" in dialect.run("check", tmp_path / "none.toml").stderr


def test_a_clash_is_told(tmp_path: Path, sensor: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text(SENSOR.replace("sensor-2", "other-2"))
    DIALECTS.describe(sensor)
    assert "not on auto: sensor-2 begins alike" in dialect.shown("check", other)


def test_new_asks_and_writes_a_description_that_is_right(tmp_path: Path) -> None:
    file = tmp_path / "pump.toml"
    answers = ["pump-1", "length", "0xAA55", "crc-16/modbus", "2", "2", "big", "frame", "little"]
    answers += ["unit", "u16", "4", "label", "text", "6", "8", "", "", "pump/{unit}", "0x06"]
    result = CliRunner().invoke(app, ["dialect", "new", str(file)], input="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.stderr
    found = read_description(file)
    assert (found.name, found.address, found.answer.accepted) == ("pump-1", "pump/{unit}", "0x06")
    assert [field.name for field in found.fields] == ["unit", "label"]
    assert found.frame.checksum is not None
    assert found.frame.checksum.order == "little"
    again = dialect.run("new", file)
    assert again.returncode == 1
    assert b"it is there already" in again.stderr


def test_new_asks_again_for_what_no_description_can_say(tmp_path: Path) -> None:
    file = tmp_path / "pump.toml"
    answers = [
        "pump-1",
        "size",
        "fixed",
        "",
        "8",
        "crc",
        "sum-8",
        "middle",
        "big",
        "",
        "",
        "pump",
        "",
    ]
    result = CliRunner().invoke(app, ["dialect", "new", str(file)], input="\n".join(answers) + "\n")
    assert result.exit_code == 0, result.stderr
    assert "it is one of: length, delimiter, fixed" in result.stderr
    assert "it is one of: crc-8, " in result.stderr
    assert "it is one of: big, little" in result.stderr
    found = read_description(file)
    assert found.frame.by == "fixed"
    assert found.frame.checksum is not None
    assert found.frame.checksum.kind == "sum-8"


def test_new_writes_nothing_that_is_no_description(tmp_path: Path) -> None:
    file = tmp_path / "pump.toml"
    answers = ["Pump", "fixed", "", "8", "", "", "", "pump", ""]
    result = CliRunner().invoke(app, ["dialect", "new", str(file)], input="\n".join(answers) + "\n")
    assert result.exit_code == 1
    assert "this would not be a description: name" in result.stderr
    assert not file.exists()


def test_new_writes_a_preset(tmp_path: Path) -> None:
    dialect.shown("new", tmp_path / "a.toml", "--preset", "nmea-0183")
    assert read_description(tmp_path / "a.toml").name == "nmea-0183"


def test_list_has_all_dialects_and_the_presets(sensor: Path) -> None:
    DIALECTS.describe(sensor)
    rows = {one["name"]: one for one in map(json.loads, dialect.shown("list", "--json"))}
    assert rows["kobold-3"]["kind"] == "built in"
    assert rows["sensor-2"]["kind"] == "described"
    assert rows["lines"] | {"about": ""} == {
        "name": "lines", "family": "lines", "port": None, "kind": "preset", "auto": False,
        "about": "",
    }  # fmt: skip


def test_inspect_takes_a_preset_by_its_name(tmp_path: Path) -> None:
    capture = tmp_path / "gps.txt"
    capture.write_bytes(GGA)
    (shown,) = Group("inspect").shown(capture, "--dialect", "nmea-0183", "--json")
    assert json.loads(shown)["address"] == "nmea/GPGGA"


def test_inspect_reads_captures_of_a_description(tmp_path: Path, sensor: Path) -> None:
    DIALECTS.describe(sensor)
    capture = tmp_path / "capture.bin"
    capture.write_bytes(frames())
    shown = Group("inspect").shown(capture, "--dialect", sensor, "--json")
    assert [json.loads(one)["dialect"] for one in shown] == ["sensor-2"] * 3
