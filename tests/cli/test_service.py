"""`wirelake service install`: a unit that systemd accepts and whose command starts a broker."""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Group
from wirelake.errors import ConfigError
from wirelake.live.service import STATE, Service, quoted

SERVICE = Group("service")
ACCOUNT = pwd.getpwuid(os.getuid()).pw_name


def settings(unit: str) -> dict[str, str]:
    """The settings of a unit by name."""
    return dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)


def accepts(unit: Path) -> str:
    """What systemd finds wrong with a unit."""
    verify = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit)]
    done = subprocess.run(verify, capture_output=True, text=True)
    return "\n".join(line for line in done.stderr.splitlines() if unit.name in line)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--data", "/srv/mess ages/50%"),
        ("--user",),
    ],
)
def test_systemd_accepts_the_unit(arguments: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze (Debian: apt install systemd)")
    unit = tmp_path / "wirelake.service"
    command = ["install", "--show", "--account", ACCOUNT, *arguments]
    unit.write_text("\n".join(SERVICE.shown(*command)) + "\n")
    assert accepts(unit) == ""
    unit.write_text(unit.read_text().replace("Type=exec", "Type=exact"))
    assert "exact" in accepts(unit)


def test_a_system_unit_keeps_the_broker_from_all_but_its_data() -> None:
    unit = settings("\n".join(SERVICE.shown("install", "--show", "--account", "broker")))
    assert unit["User"] == "broker"
    assert unit["StateDirectory"] == STATE.name
    assert (unit["ProtectSystem"], unit["NoNewPrivileges"]) == ("strict", "true")
    assert unit["ExecStart"] == f"{sys.executable} -m wirelake serve --data {STATE}"
    other = settings("\n".join(SERVICE.shown("install", "--show", "--data", "/home/a b")))
    assert other["ReadWritePaths"] == '"/home/a b"'
    assert other["ProtectHome"] == "read-only"
    assert "StateDirectory" not in other


def test_a_unit_of_a_user_is_written_and_its_command_starts_a_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    config = tmp_path / "my $ettings 100%.toml"
    config.write_text("listen = ['auto://127.0.0.1:0']\nhttp = ''\n")
    data = tmp_path / "data"
    shown = SERVICE.shown("install", "--user", "--config", config, "--data", data)
    place = tmp_path / "settings" / "systemd" / "user" / "wirelake.service"
    assert shown == [
        f"wrote {place}",
        "start it: systemctl --user daemon-reload && systemctl --user enable --now wirelake",
    ]
    command = settings(place.read_text())["ExecStart"].replace("%%", "%").replace("$$", "$")
    with subprocess.Popen(
        shlex.split(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as broker:
        try:
            assert broker.stdout is not None
            assert re.fullmatch(r"listening on auto://127\.0\.0\.1:\d+\n", broker.stdout.readline())
        finally:
            broker.terminate()
    assert broker.returncode == 0
    assert (data / "journal").is_dir()


def test_a_unit_that_is_there_and_differs_is_kept_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    place = tmp_path / "systemd" / "user" / "wirelake.service"
    SERVICE.shown("install", "--user")
    SERVICE.shown("install", "--user")  # the same again is no conflict
    place.write_text("mine\n")
    refused = SERVICE.run("install", "--user")
    assert refused.returncode == 1
    assert refused.stderr.decode() == (
        f"wirelake: {place} is there and differs; --force replaces it\n"
    )
    assert place.read_text() == "mine\n"
    SERVICE.shown("install", "--user", "--force")
    assert "ExecStart" in place.read_text()


def test_what_systemd_could_not_start_is_refused(tmp_path: Path) -> None:
    nobody = SERVICE.run("install", "--account", "no-such-account")
    assert nobody.returncode == 2
    assert b"there is no account no-such-account; make it with useradd" in nobody.stderr
    missing = SERVICE.run("install", "--account", ACCOUNT, "--data", tmp_path / "none")
    assert missing.returncode == 2
    assert b"there is no folder" in missing.stderr
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("colour = 'red'\n")
    refused = SERVICE.run("install", "--user", "--config", wrong)
    assert refused.returncode == 2
    assert b"colour: there is no such setting" in refused.stderr


def test_a_place_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    refused = SERVICE.run("install", "--user")
    assert refused.returncode == 1
    assert refused.stderr.decode().endswith("wirelake.service: Not a directory\n")


def test_paths_are_written_as_systemd_reads_them() -> None:
    assert quoted("/plain/path") == "/plain/path"
    assert quoted('/a "b" \\c') == '"/a \\"b\\" \\\\c"'
    assert quoted("/50%") == "/50%%"
    with pytest.raises(ConfigError, match="control characters"):
        quoted("/new\nExecStart=/bin/sh")
    unit = Service(("/usr/bin/wirelake",), Path("/srv/$HOME"), None, "broker").unit()
    assert "--data /srv/$$HOME\n" in unit
    assert "ReadWritePaths=/srv/$HOME\n" in unit


def test_the_command_alone_shows_its_help() -> None:
    done = subprocess.run([*COMMAND, "service"], capture_output=True, text=True)
    assert "install" in done.stdout
