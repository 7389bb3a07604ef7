"""`wirelake kv get`, `put`, `del`, `ls` and `watch`, run as a user runs them."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.command import COMMAND, Group

STORING = ["kobold-1", "kobold-2", "kobold-3", "boson-binary"]


KV = Group("kv")
shown, objects = KV.shown, KV.objects


def fails(*arguments: str) -> tuple[int, str]:
    """The exit code and the one line of a command that does not."""
    result = KV.run(*arguments)
    (line,) = result.stderr.decode().splitlines()
    assert result.stdout == b""
    return result.returncode, line


@pytest.mark.parametrize("dialect", STORING)
def test_a_key_is_put_read_changed_and_deleted(place: str, dialect: str) -> None:
    url, key = f"{dialect}://{place}", f"life/{dialect}"
    assert shown("put", url, key, "one") == ["revision 1"]
    assert shown("put", url, key, data=b"from stdin") == ["revision 2"]
    assert shown("get", url, key) == ["from stdin"]
    value = base64.b64encode(b"from stdin").decode()
    assert objects("get", url, key) == [
        {"key": key, "revision": 2, "value": "from stdin", "base64": value}
    ]
    assert objects("del", url, key) == [{"key": key, "revision": 3}]
    code, line = fails("get", url, key)
    assert (code, line.split(":")[1].strip()) == (1, "not_found")


def test_a_put_can_be_for_a_new_key_or_for_one_revision_only(place: str) -> None:
    url = f"kobold-3://{place}"
    assert shown("put", url, "guarded", "a", "--create") == ["revision 1"]
    assert "exists" in fails("put", url, "guarded", "b", "--create")[1]
    assert "conflict" in fails("put", url, "guarded", "b", "--revision", "7")[1]
    assert "conflict" in fails("del", url, "guarded", "--revision", "7")[1]
    assert shown("put", url, "guarded", "b", "--revision", "1") == ["revision 2"]
    assert shown("del", url, "guarded", "--revision", "2") == ["revision 3"]
    assert "not_found" in fails("put", url, "guarded", "c", "--revision", "3")[1]


def test_bytes_survive_from_a_file_to_standard_output(place: str, tmp_path: Path) -> None:
    file = tmp_path / "value"
    file.write_bytes(bytes(range(256)))
    shown("put", f"kobold-2://{place}", "bytes", "--file", file)
    assert KV.run("get", f"boson-binary://{place}", "bytes").stdout == bytes(range(256)) + b"\n"


@pytest.mark.parametrize("dialect", STORING)
def test_keys_are_listed_by_a_filter(place: str, dialect: str) -> None:
    url, top = f"{dialect}://{place}", f"listed-{dialect}"
    for name in ("b", "a", "c/d"):
        shown("put", url, f"{top}/{name}", name.upper())
    found = objects("ls", url, f"{top}/+")
    assert [(each["key"], each["revision"]) for each in found] == [(f"{top}/a", 1), (f"{top}/b", 1)]
    header, *lines = shown("ls", url, f"{top}/#")
    assert header.split() == ["key", "revision", "size", "value"]
    assert [line.split() for line in lines] == [
        [f"{top}/a", "1", "1", "A"],
        [f"{top}/b", "1", "1", "B"],
        [f"{top}/c/d", "1", "3", "C/D"],
    ]
    assert shown("ls", url, f"{top}/none", "--json") == []


@pytest.mark.parametrize("dialect", STORING)
def test_a_watch_shows_what_is_there_and_then_every_change(place: str, dialect: str) -> None:
    url, key = f"{dialect}://{place}", f"watched-{dialect}/lamp"
    shown("put", url, key, "off")
    arguments = ["watch", url, f"watched-{dialect}/#", "--from", "1", "--count", "3"]
    command = [*COMMAND, "kv", *arguments, "--timeout", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        first = watching.stdout.readline()  # it watches now
        shown("put", url, key, "on\n")
        shown("del", url, key)
        rest, _ = watching.communicate(timeout=60)
    assert watching.returncode == 0
    assert [first, *rest.splitlines(keepends=True)] == [
        f"{key}  1  off\n",
        f"{key}  2  on\\x0a\n",
        f"{key}  3  (deleted)\n",
    ]
    (end,) = objects("watch", url, key, "--from", "1", "--count", "1")
    assert end == {"key": key, "revision": 3, "value": None, "base64": None}


def test_a_watch_may_run_out_of_time(place: str) -> None:
    assert shown("watch", f"kobold-3://{place}", "quiet", "--timeout", "0.5") == []
    late = fails("watch", f"kobold-3://{place}", "quiet", "--timeout", "0.5", "--count", "1")
    assert late == (4, "wirelake: time is up")


def test_a_value_may_have_a_time_to_live(place: str) -> None:
    url = f"kobold-3://{place}"
    arguments = ["watch", url, "brief", "--from", "1", "--count", "2", "--timeout", "60", "--json"]
    shown("put", url, "brief", "x", "--ttl", "3000")
    _, gone = [json.loads(line) for line in shown(*arguments)]
    assert (gone["key"], gone["value"]) == ("brief", None)


@pytest.mark.parametrize("dialect", ["boson-text", "mfp-1", "tmq-1.00", "tmq-1.01"])
def test_a_dialect_without_a_store_says_which_have_one(place: str, dialect: str) -> None:
    code, line = fails("get", f"{dialect}://{place}", "key")
    assert code == 1
    assert line.endswith(f"{dialect} has no data store; {', '.join(sorted(STORING))} have")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["put", "kobold-3://{}", "a/+", "x"], 1, "bad_request"),
        (["ls", "kobold-3://{}", "a/#/b"], 1, "bad_request"),
        (["get", "nonsense://{}", "key"], 2, "nonsense"),
        (["put", "kobold-3://{}", "a", "--file", "no/such/file"], 1, "No such file"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    place: str, arguments: list[str], code: int, said: str
) -> None:
    found, line = fails(*[argument.format(place) for argument in arguments])
    assert found == code
    assert said in line


def test_what_is_created_has_no_revision(place: str) -> None:
    result = KV.run("put", f"kobold-3://{place}", "a", "x", "--create", "--revision", "1")
    assert result.returncode == 2


@pytest.mark.parametrize("command", ["get", "put", "del", "ls", "watch"])
def test_every_command_has_examples(command: str) -> None:
    assert f"wirelake kv {command} " in "\n".join(shown(command, "--help"))
