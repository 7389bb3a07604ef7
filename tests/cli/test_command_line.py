"""What all commands have in common: help with examples, a place in the README, completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command, get_group

from wirelake.cli import app

README = Path(__file__).parents[2] / "README.md"
WIRELAKE = Path(sys.executable).parent / "wirelake"


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below this one, and the words that call it."""
    if not hasattr(command, "commands"):
        yield names, command
        return
    for name, below in command.commands.items():
        yield from commands(below, *names, name)


COMMANDS = dict(commands(get_command(app)))


def test_all_commands_are_found() -> None:
    assert {("serve",), ("queue", "put"), ("lake", "sql")} <= COMMANDS.keys()


def test_no_command_at_all_starts_a_broker(capsys: pytest.CaptureFixture[str]) -> None:
    """As `uvx wirelake` does; not run here, since its ports may be somebody's."""
    group = get_group(app)
    context = group.make_context("wirelake", [])
    assert group.resolve_command(context, [*context._protected_args, *context.args])[0] == "serve"
    assert capsys.readouterr().err.startswith("starting a broker (`wirelake serve`)")


def test_help_says_which_arguments_may_be_left_out() -> None:
    done = subprocess.run([WIRELAKE, "pub", "--help"], capture_output=True, text=True, check=True)
    assert "wirelake pub [OPTIONS] [URL] {ADDRESS} [PAYLOAD]" in done.stdout
    assert done.stdout.count("[required]") == 1


CLIENTS = ["pub", "sub", "request", "queue", "kv", "stream", "token", "chat", "demo", "bench", "up"]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_does_not_wait_for_what_a_broker_needs(name: str) -> None:
    code = f"import sys, wirelake.cli as cli; cli.Commands()[{name!r}]; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "wirelake.cli" in modules
    servers = {"uvicorn", "starlette", "uvloop", "wirelake.broker"}
    assert not modules & servers
    assert not modules & {"pyarrow", "pyspark", "textual"}


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_help_has_examples_of_the_command_itself(names: tuple[str, ...]) -> None:
    _, found, examples = COMMANDS[names].help.partition("Examples:")
    assert found
    # The first line of each; options of a command may stand before what it is given.
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    assert lines
    assert any(re.search(rf"\bwirelake {' '.join(names)}\b", line) for line in lines)


@pytest.mark.parametrize("names", COMMANDS, ids=" ".join)
def test_the_readme_names_it(names: tuple[str, ...]) -> None:
    rows = [row for row in README.read_text().splitlines() if row.startswith("| `")]
    named = [set(re.findall(r"[a-z]+", row.split("|")[1])) for row in rows]
    assert any(set(names) <= words for words in named)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("wirelake que", {"queue"}),
        ("wirelake queue p", {"peek", "purge", "put"}),
        ("wirelake serve --mem", {"--memory"}),
    ],
)
def test_a_shell_completes_commands_and_options(words: str, found: set[str]) -> None:
    asked = {
        "_WIRELAKE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run([WIRELAKE], env=os.environ | asked, capture_output=True, text=True)
    assert set(done.stdout.split()) == found


def test_what_a_shell_needs_for_it_is_printed() -> None:
    done = subprocess.run(
        [WIRELAKE, "--show-completion", "bash"], capture_output=True, text=True, check=True
    )
    assert "_WIRELAKE_COMPLETE=complete_bash" in done.stdout
