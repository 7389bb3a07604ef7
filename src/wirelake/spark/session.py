"""A Spark session for our jobs: where Java is, what is set, how far a job is, how it failed.

Local mode is the default; `--master` or `spark-submit` name any other, and `sc://host:port` is a
server of Spark Connect. Times are UTC everywhere.
What Spark throws becomes an `EngineError` here, with the one line that says why.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from wirelake.errors import ConfigError, EngineError

#: What our jobs need, whoever has started Spark.
SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Rows go to several folders as they come: no sort, and their order is kept.
    "spark.sql.maxConcurrentOutputFileWriters": "16",
}

#: What is set where we start Spark ourselves.
LOCAL_SETTINGS = {
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "16",
    # Batches come from Python by the shortest way, and nobody else can connect.
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.faulthandler.enabled": "true",
}

#: What to say where there is no Java.
NO_JAVA = (
    "Spark needs Java 17 or newer, and there is none: install one (Debian: apt install"
    " openjdk-17-jre-headless), or set JAVA_HOME to where it is"
)

#: Local mode listens for nobody else.
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

#: A server of Spark Connect, its usual port, and how long it may take to answer (seconds).
CONNECT, CONNECT_PORT, CONNECT_SECONDS = "sc://", 15002, 10.0

_REFRESH = 0.25  # seconds between two looks at a job
_CAUSE = re.compile(r"(?:wirelake\.errors\.|\w+(?:\.\w+)*\.)?(\w*(?:Error|Exception)): (.+)")


def find_java() -> Path | None:
    """Java's home: JAVA_HOME, else `jvm` in this interpreter's environment, else the PATH's."""
    homes = [Path(sys.prefix) / "jvm"]
    if "JAVA_HOME" in os.environ:
        homes.insert(0, Path(os.environ["JAVA_HOME"]))
    if on_path := shutil.which("java"):
        homes.append(Path(on_path).resolve().parent.parent)
    return next((home for home in homes if os.access(home / "bin" / "java", os.X_OK)), None)


def start(name: str, master: str = "", **settings: str) -> SparkSession:
    """A session, the one of `spark-submit` where there is one; whoever starts it stops it."""
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    if master.startswith(CONNECT):
        if submitted:
            raise ConfigError("--master", f"spark-submit has a session already, not {master}")
        _check_server(master)
        builder = builder.remote(master)
    elif not submitted:
        home = find_java()
        if home is None:
            raise ConfigError("JAVA_HOME", NO_JAVA)
        os.environ["JAVA_HOME"] = str(home)
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.master(master or "local[*]")
        settings = LOCAL_SETTINGS | settings
        if (master or "local").startswith("local"):
            settings = LOOPBACK | settings
    elif master:
        builder = builder.master(master)
    for setting, value in (SETTINGS | settings).items():
        builder = builder.config(setting, value)
    is_ours = not submitted and not master.startswith(CONNECT)
    with spark_errors(), _quiet_start() if is_ours else nullcontext():
        spark = builder.getOrCreate()
    with spark_errors():
        for setting, value in SETTINGS.items():
            spark.conf.set(setting, value)
    return spark


def _check_server(master: str) -> None:
    """Raise EngineError where nobody listens: Spark's client would try again for minutes."""
    try:
        parts = urlsplit(master)
        host, port = parts.hostname, parts.port or CONNECT_PORT
    except ValueError:
        host, port = None, 0
    if not host:
        raise ConfigError("--master", f"{master} is not of the form sc://host:port")
    try:
        socket.create_connection((host, port), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise EngineError(f"Spark Connect: {master} cannot be reached: {error}") from error


@contextmanager
def _quiet_start() -> Iterator[None]:
    """Keep what Java has to say while it starts, and show it only where it does not.

    Java keeps the standard error that it was started with: what goes wrong later comes to us as an
    exception, so nothing is lost.
    """
    with tempfile.TemporaryFile() as kept:
        sys.stderr.flush()
        ours = os.dup(2)
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except Exception:
            kept.seek(0)
            os.write(ours, kept.read())
            raise
        finally:
            os.dup2(ours, 2)
            os.close(ours)


@cache
def spare_garbage_collector() -> None:
    """For tasks: let Python not go through all that is loaded when it looks for garbage.

    PySpark has it look after every task, which costs as much as tens of thousands of rows.
    """
    gc.freeze()


@contextmanager
def spark_errors() -> Iterator[None]:
    """Turn errors of Spark into `EngineError`."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError) as error:
        raise EngineError(f"Spark: {reason(error)}") from error


def reason(error: Exception) -> str:
    """One line of what Spark has to say: the innermost cause, as it is the one that tells."""
    text = str(error)
    causes = [match for match in _CAUSE.finditer(text) if not match[2].startswith("Job aborted")]
    ours = [match for match in causes if match[1] == "EngineError"]
    if ours or causes:
        return (ours or causes)[-1][2].strip()
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)


@contextmanager
def progress(spark: SparkSession, what: str) -> Iterator[None]:
    """Show how many tasks are done while Spark works, where somebody looks at it."""
    console = Console(stderr=True)
    if not console.is_terminal or getattr(spark, "_sc", None) is None:  # Connect tells nothing
        yield
        return
    done = threading.Event()
    columns = TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task(what, total=None)

        def watch() -> None:
            while not done.wait(_REFRESH):
                finished, total = _tasks(spark)
                bar.update(shown, completed=finished, total=total or None)

        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            done.set()
            watcher.join()


def _tasks(spark: SparkSession) -> tuple[int, int]:
    """How many tasks of the active stages are done, and how many there are."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(s.numCompletedTasks for s in known), sum(s.numTasks for s in known)
