"""The systemd unit of a broker: its text, and where systemd looks for it."""

from __future__ import annotations

import os
import pwd
import re
from dataclasses import dataclass
from pathlib import Path

from wirelake.errors import ConfigError

UNIT = "wirelake.service"
#: The data directory of a system service: systemd makes it and gives it to the account.
STATE = Path("/var/lib/wirelake")
#: Folders that `ProtectHome` hides from a service.
_HOMES = (Path("/home"), Path("/root"), Path("/run/user"))

_HARDENING = """\
NoNewPrivileges=true
PrivateDevices=true
PrivateTmp=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
"""


@dataclass(frozen=True)
class Service:
    """A broker that systemd starts: which program, with which settings, where, as whom.

    All paths are absolute. Without an `account` it is a service of the user who installs it, which
    systemd runs while that user is logged in, or always after `loginctl enable-linger`.
    """

    program: tuple[str, ...]
    data: Path
    config: Path | None = None
    account: str = ""

    def check(self) -> None:
        """Raise ConfigError where systemd could not start this service."""
        if not self.account:
            return
        try:
            pwd.getpwnam(self.account)
        except KeyError:
            raise ConfigError(
                "--account",
                f"there is no account {self.account}; make it with"
                f" useradd --system --home-dir {STATE} {self.account}",
            ) from None
        if self.data != STATE and not self.data.is_dir():
            text = f"there is no folder {self.data}; make it, and give it to {self.account}"
            raise ConfigError("--data", text)

    def place(self) -> Path:
        """Return the file that systemd reads the unit from."""
        if self.account:
            return Path("/etc/systemd/system") / UNIT
        base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
        return Path(base) / "systemd" / "user" / UNIT

    def unit(self) -> str:
        """Return the text of the unit."""
        command = [*self.program, "serve"]
        if self.config is not None:
            command += ["--config", str(self.config)]
        command += ["--data", str(self.data)]
        lines = [
            "[Unit]",
            "Description=Wirelake, a message broker",
            "Wants=network-online.target" if self.account else "",
            "After=network-online.target" if self.account else "",
            "",
            "[Service]",
            "Type=exec",
            f"User={self.account}" if self.account else "",
            f"ExecStart={' '.join(quoted(word).replace('$', '$$') for word in command)}",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "Restart=on-failure",
            "RestartSec=1",
            "TimeoutStopSec=30",
            # Every connection is an open file.
            "LimitNOFILE=1048576" if self.account else "",
            "UMask=0077",
        ]
        if self.account:
            lines += [*_HARDENING.splitlines(), *self._folders()]
        target = "multi-user.target" if self.account else "default.target"
        lines += ["", "[Install]", f"WantedBy={target}"]
        return "\n".join(_without_gaps(lines)) + "\n"

    def _folders(self) -> list[str]:
        """Return what the service may write; to it, the rest of the file system is read-only."""
        used = [Path(self.program[0]), self.data, *([self.config] if self.config else [])]
        in_home = any(path.is_relative_to(home) for path in used for home in _HOMES)
        home = f"ProtectHome={'read-only' if in_home else 'true'}"
        if self.data == STATE:
            return [home, f"StateDirectory={STATE.name}", "StateDirectoryMode=0700"]
        return [home, f"ReadWritePaths={quoted(str(self.data))}"]


def quoted(word: str) -> str:
    """Write a word as systemd reads it: specifiers and quotes stand for themselves.

    Raises ConfigError for control characters, which no unit can have.
    """
    if not word.isprintable():
        raise ConfigError("service", f"a path with control characters: {word!r}")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if re.search(r"""[\s"'\\;]""", word) else escaped


def _without_gaps(lines: list[str]) -> list[str]:
    """Leave out empty lines that do not separate sections."""
    return [
        line
        for line, following in zip(lines, [*lines[1:], ""], strict=True)
        if line or following.startswith("[")
    ]
