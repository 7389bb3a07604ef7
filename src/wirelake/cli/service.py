"""`wirelake service`: the broker as a service of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from wirelake.cli.options import AsJson
from wirelake.cli.parsing import Family
from wirelake.cli.show import write_object
from wirelake.cli.work import errors_in_one_line, fail
from wirelake.config import read_settings
from wirelake.live.service import STATE, Service

app = Family(help="The broker as a service of systemd.")


@app.command()
def install(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The broker's settings, in TOML.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help=f"Where data is kept. Without it, {STATE}; with --user, ~/.local/share/wirelake.",
        ),
    ] = None,
    account: Annotated[str, typer.Option(help="The account that the broker runs as.")] = "wirelake",
    user: Annotated[
        bool, typer.Option("--user", help="A service of your own account, without root.")
    ] = False,
    show: Annotated[
        bool, typer.Option("--show", help="Print the unit; write and check nothing.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a unit that differs.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a systemd unit for this broker, and say how to start it.

    The unit runs the `wirelake serve` of this installation. It does not start by itself: systemd is
    not asked to do anything. A unit that is there and differs is kept, unless --force is given.

    Examples:

        sudo wirelake service install --config /etc/wirelake.toml

        wirelake service install --user

        wirelake service install --show --data /srv/wirelake
    """
    with errors_in_one_line():
        if config is not None:
            read_settings(config)
        own = Path.home() / ".local" / "share" / "wirelake"
        wanted = Service(
            (sys.executable, "-m", "wirelake"),
            (data or (own if user else STATE)).absolute(),
            config.absolute() if config else None,
            "" if user else account,
        )
        text = wanted.unit()
        if show:
            if as_json:
                write_object({"unit": text})
            else:
                typer.echo(text, nl=False)
            return
        wanted.check()
        place = wanted.place()
        _write(place, text, force=force)
    systemctl = "systemctl --user" if user else "systemctl"
    start = f"{systemctl} daemon-reload && {systemctl} enable --now {place.stem}"
    if as_json:
        write_object({"file": str(place), "start": start})
        return
    typer.echo(f"wrote {place}")
    typer.echo(f"start it: {start}")


def _write(place: Path, text: str, *, force: bool) -> None:
    """Write the unit; the command fails where another one is there, or it cannot be written."""
    try:
        if place.exists() and place.read_text(encoding="utf-8") != text and not force:
            fail(f"{place} is there and differs; --force replaces it")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{place}: {error.strerror}")
