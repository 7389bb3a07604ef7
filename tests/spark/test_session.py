"""How Spark is started, watched, and what becomes of its errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkValueError
from pyspark.sql import SparkSession

from wirelake.errors import ConfigError, EngineError
from wirelake.spark import session
from wirelake.spark.session import find_java, progress, spark_errors, start


def java(home: Path) -> Path:
    """A Java that is just there."""
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\n")
    (home / "bin" / "java").chmod(0o755)
    return home


def test_java_is_found_by_its_home_then_the_environment_then_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, ours, on_path = (java(tmp_path / name) for name in ("said", "venv/jvm", "usr"))
    monkeypatch.setenv("JAVA_HOME", str(said))
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setenv("PATH", str(on_path / "bin"))
    assert find_java() == said
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    assert find_java() == ours
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert find_java() == on_path
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() is None
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    with pytest.raises(ConfigError, match="Spark needs Java 17 or newer"):
        start("none")


def test_times_are_utc_whatever_the_machine_has(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_somebody_who_looks_sees_how_far_a_job_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with progress(spark, "counting"):
        spark.range(10).count()
    assert "counting" in capsys.readouterr().err


def test_nobody_who_does_not_look_is_told(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    with progress(spark, "counting"):
        spark.range(10).count()
    assert capsys.readouterr().err == ""


def test_what_spark_throws_is_an_error_of_ours_in_one_line(spark: SparkSession) -> None:
    with pytest.raises(EngineError, match="no_such_column") as caught, spark_errors():
        spark.range(1).select("no_such_column").collect()
    assert "\n" not in str(caught.value)
    with pytest.raises(EngineError), spark_errors():
        raise PySparkValueError("of Spark's Python")


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    assert "PYSPARK_GATEWAY_PORT" not in os.environ
    assert session.start("again").sparkContext is spark.sparkContext
