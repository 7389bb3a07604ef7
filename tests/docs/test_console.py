"""The runner of pages finds out what is not so."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.docs.console import PageError, blocks, pattern, read, session_of, steps
from tests.docs.lake import Lake
from wirelake.errors import ConfigError


def page(*parts: str) -> str:
    """A page: blocks, each given as its fence and its lines."""
    return "".join(f"Some text.\n\n```{part}\n```\n\n" for part in parts)


@pytest.mark.parametrize(
    "text",
    [
        page("console\n$ echo one\none\n$ echo two \\\n    three\ntwo three"),
        page("console\n$ seq 9\n1\n…\n9"),
        page("console\n$ echo it is 12:45 o\\'clock\nit is … o'clock"),
        page(
            "console\n$ true", "console\n$ cd /tmp; export A=b", "console\n$ echo $A $PWD\nb /tmp"
        ),
        page("console\n$ false\n$ echo $?\n1"),
        page("console\n$ cat"),
        page("sh\n$ false"),
        page('python title="a.py"\nprint(1 / 0)', "console\n$ python a.py 2>&1 | tail -1\nZero…"),
        page("python\na = 1", "python\nimport asyncio\nawait asyncio.sleep(0)\nprint(a)"),
        page("python\nimport asyncio\nasyncio.run(asyncio.sleep(0))"),
        page("python\nprint(2)") + "```text\n2\n```\n",
        page('toml title="a.toml"\ndata = "x"', "console\n$ cat a.toml\ndata = …"),
        page("console\n$ (echo ready; sleep 60) &\nready\n$ kill %1; wait %1\n…\n$ echo $?\n143"),
        page('console title="other"\n$ echo one; sleep 0.3; echo two; sleep 60\none')
        + page('console title="other"\ntwo\n^C'),
        page('console title="other"\n$ echo $$ > id', "console\n$ test $$ != $(cat id)"),
        "1. A list\n\n   ```console\n   $ echo 1\n   1\n   ```\n",
    ],
)
def test_a_page_that_is_true(text: str, tmp_path: Path, loopback: str) -> None:
    read(text, tmp_path, loopback)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (page("console\n$ echo one\ntwo"), "is said to print\ntwo\n--- printed\none"),
        (page("console\n$ echo one"), "is said to print"),
        (page("console\n$ seq 3\n1\n2"), "is said to print"),
        (page("console\n$ true\nsomething"), "is said to print"),
        (page("console\n$ false"), "line 4: false: ended with 1"),
        (page("console\n$ no-such-command"), "ended with 127"),
        (page("console\n$ exit 3"), "ended the shell"),
        (page("console\nlines\n$ true"), "nothing was started here"),
        (page("console\n$ echo one &\ntwo\n$ kill %1"), "is said to print"),
        (page('console title="other"\n$ echo one\ntwo'), "is said to print"),
        (page("python\nraise ValueError(3)"), "ValueError: 3"),
        (page("python\nprint(2)") + "```text\n3\n```\n", "is said to print"),
        ("```console\n$ true\n", "does not end"),
    ],
)
def test_a_page_that_is_not(
    text: str, why: str, tmp_path: Path, loopback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.console.PATIENCE", 3.0)
    with pytest.raises(PageError) as caught:
        read(text, tmp_path, loopback)
    assert why in str(caught.value)


def test_settings_that_are_not_there_are_found_out(tmp_path: Path, loopback: str) -> None:
    with pytest.raises(ConfigError, match="no such setting"):
        read(page("toml\ncolour = 1"), tmp_path, loopback)


def test_two_pages_may_use_one_port_at_a_time(tmp_path: Path, loopback: str) -> None:
    listen = "import socket; s = socket.create_server(('127.0.0.1', 7700)); print(s.getsockname())"
    begun = tmp_path / "begun"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = page(
        f"console\n$ python -uc \"{listen}; import time; time.sleep(60)\" &\n('127.0.0.1', 7700)"
        f"\n$ touch {begun}\n$ while [ -e {begun} ]; do sleep 0.05; done"
    )
    with ThreadPoolExecutor() as pool:
        reading = pool.submit(read, first, tmp_path / "one", loopback, address="127.77.0.1")
        while not begun.exists():
            time.sleep(0.01)
        second = page(f"console\n$ python -c \"{listen}\"\n('127.0.0.1', 7700)")
        read(second, tmp_path / "two", loopback, address="127.77.0.2")
        assert not reading.done()
        begun.unlink()
        reading.result()


def test_nothing_runs_on_when_a_page_has_ended(
    tmp_path: Path, loopback: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.console.GRACE", 0.5)
    text = page("console\n$ sleep 1000 &\n$ echo $$ > shell\n$ (trap '' TERM; sleep 999) &")
    read(text, tmp_path, loopback)
    assert session_of(int((tmp_path / "page" / "shell").read_text())) == []


def test_blocks_have_language_title_and_place() -> None:
    found = list(blocks('a\n```toml title="x.toml"\na = 1\n```\n\n```text\nb\n```\n'))
    assert [(one.language, one.title, one.line, one.follows) for one in found] == [
        ("toml", "x.toml", 2, False),
        ("text", "", 6, True),
    ]


def test_steps_have_commands_and_lines() -> None:
    (block,) = blocks("```console\nmore\n$ a \\\n  b\nc  \n\n$ d\n```\n")
    assert [(one.command, one.shown, one.line) for one in steps(block)] == [
        ("", ["more"], 2),
        ("a \\\n  b", ["c", ""], 3),
        ("d", [], 7),
    ]


def test_dots_stand_for_what_is_not_said() -> None:
    assert pattern(["a … b", "…"]) == r"a\ [^\n]*?\ b\n(?:[^\n]*\n)*?"


def test_commands_of_the_lake_run_in_one_process_and_seem_to_run_in_the_shell(
    tmp_path: Path, loopback: str, lake: Lake
) -> None:
    text = page(
        "console\n$ wirelake lake infer a\nwirelake: one of --url and --table says where to look"
        "\n$ echo $?\n2"
        "\n$ mkdir there; cd there"
        "\n$ wirelake lake infer a --table none 2>&1 | cat\nwirelake: …/page/there/none…"
        "\n$ wirelake lake --help | grep Usage\n…Usage: wirelake lake…"
    )
    for name in ("first", "second", "third"):
        (tmp_path / name).mkdir()
    for name in ("first", "second"):
        read(text, tmp_path / name, loopback, lake=lake)
    with pytest.raises(PageError, match="ended with 2"):
        read(page("console\n$ wirelake lake infer a\n…"), tmp_path / "third", loopback, lake=lake)
