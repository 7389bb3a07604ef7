"""Locks between processes, and the progress of the pipeline."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import wirelake
from wirelake.client.http import HttpClient
from wirelake.errors import EngineError
from wirelake.live.landing import landing_lock, log_ends, progress, rows_left
from wirelake.live.locks import locked
from wirelake.testing import Broker

HOLD = """\
import pathlib, sys, wirelake.live.locks
with wirelake.live.locks.locked(pathlib.Path(sys.argv[1])) as lock:
    print(lock is not None, flush=True)
    sys.stdin.read()
"""


def test_a_lock_is_held_by_one_process_and_free_when_it_has_died(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "lock"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, file], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"True\n"
        with locked(file) as lock:
            assert lock is None
        holder.kill()
        holder.wait()
        with locked(file) as lock:
            assert lock is not None


def test_a_lock_that_cannot_be_made_is_an_error_that_names_its_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(EngineError, match="file: "),
        landing_lock(tmp_path / "file" / "lake"),
    ):
        pass


def test_rows_left_are_counted_until_the_pipeline_has_read_them(tmp_path: Path) -> None:
    with Broker(data=tmp_path, http=True) as broker:
        with wirelake.connect_sync(broker.url("kobold-3")) as client:
            for number in range(5):
                client.publish(f"a/{number}", b"x", ack=True)
        http = HttpClient(broker.http_url)
        ends = log_ends(http)
        assert sum(ends.values()) == 5
        assert progress(http, "land-lake") == ({}, 0.0)
        left = rows_left(http, "land-lake", ends)
        assert next(left) == 5
        http.ask("POST", "/v1/progress/land-lake", ends)
        assert list(left) == [0]


def test_a_pipeline_that_stands_still_is_not_waited_for(tmp_path: Path) -> None:
    with Broker(data=tmp_path, http=True) as broker:
        left = list(rows_left(HttpClient(broker.http_url), "land-lake", {"0": 7}, patience=0.1))
    assert set(left) == {7}
