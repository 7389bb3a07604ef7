"""A real cluster on this machine, and what happens to landing when any part of it is killed.

A master and two workers come from the PySpark package. Drivers are processes, as users start them,
so that they can be killed. `WIRELAKE_KILLS` says how often (3).
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyspark
import pytest
from deltalake import DeltaTable

from tests.conftest import BRIEF_JAVA
from tests.http.house import arrow, rows
from wirelake.dialects.codec import encoder
from wirelake.message import Message
from wirelake.spark import session
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Range
from wirelake.wire import FrameTable
from wirelake.wire.arrow import SCHEMA

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KILLS = int(os.environ.get("WIRELAKE_KILLS", "3"))
#: Seconds until a process is given up: starting Spark takes long where the machine is busy.
PATIENCE = 600
HOME = Path(pyspark.__file__).parent
ORDER = [("partition", "ascending"), ("offset", "ascending")]


class Process:
    """A process with all that it starts; its output is read, so that it never waits for us."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,))
        self._reader.start()

    def _read(self, output: IO[str]) -> None:
        with output:
            for line in output:
                with self._changed:
                    self.lines.append(line.rstrip())
                    self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, pattern: str, count: int = 1) -> re.Match[str]:
        """The match of a line, the so-many-th one that has it."""
        found: list[re.Match[str]] = []

        def is_there() -> bool:
            found[:] = [match for line in self.lines if (match := re.search(pattern, line))]
            return len(found) >= count or not self._reader.is_alive()

        with self._changed:
            assert self._changed.wait_for(is_there, PATIENCE), self.text
        assert len(found) >= count, self.text
        return found[count - 1]

    @property
    def text(self) -> str:
        return "\n".join(self.lines[-60:])

    @property
    def children(self) -> list[int]:
        """The processes that it has started."""
        found = []
        for task in Path(f"/proc/{self._process.pid}/task").iterdir():
            found += (task / "children").read_text().split()
        return list(map(int, found))

    def wait(self) -> int:
        code = self._process.wait(PATIENCE)
        self._reader.join()
        return code

    def kill(self) -> None:
        """End it and all that it has started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        self._process.terminate()
        return self.wait()


class Broker:
    """A broker that can be killed and comes back with what it had."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._http = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self._process = Process(
            str(Path(sys.executable).with_name("wirelake")), "serve", "--data", str(self._folder),
            "--listen", "auto://127.0.0.1:0", "--http", self._http,
        )  # fmt: skip
        self.url = self._process.wait_for(r"(http://127\.0\.0\.1:\d+)")[1]
        self._http = self.url.removeprefix("http://")

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        self._process.stop()

    def publish(self, number: int, count: int) -> None:
        """A batch of messages, sent until the broker has it."""
        body = arrow(rows(*((f"level{k % 3}/{k}", b"%d-%d" % (number, k)) for k in range(count))))
        LogClient(self.url).publish(body, "test", str(number))

    def log(self) -> pa.Table:
        client = LogClient(self.url)
        tables = [
            table.cast(SCHEMA)
            for partition, extent in client.log().extents.items()
            for table in client.read(Range(partition, extent.first, extent.next))
        ]
        return pa.concat_tables([SCHEMA.empty_table(), *tables]).sort_by(ORDER)


class Cluster:
    """A master and two workers, with a core each."""

    def __init__(self, folder: Path) -> None:
        java = session.find_java()
        assert java is not None
        settings = folder / "conf"
        settings.mkdir(parents=True)
        (settings / "spark-defaults.conf").write_text(
            "spark.executor.memory 512m\nspark.executor.cores 1\nspark.driver.memory 512m\n"
            "spark.sql.shuffle.partitions 2\nspark.default.parallelism 2\n"
            f"spark.driver.extraJavaOptions {BRIEF_JAVA}\n"
            f"spark.executor.extraJavaOptions {BRIEF_JAVA}\n"
        )
        self.environment = {
            "JAVA_HOME": str(java),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(settings),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": BRIEF_JAVA,
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
        }
        self._folder = folder
        self._processes: list[Process] = []
        where = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        master = self._start("master.Master", *where)
        self.master = master.wait_for(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        self.workers = [
            self._start(
                "worker.Worker", *where, "--cores", "1", "--memory", "1g",
                "--work-dir", str(folder / f"work{k}"), self.master,
            )
            for k in range(2)
        ]  # fmt: skip
        for worker in self.workers:
            worker.wait_for("Successfully registered with master")

    def _start(self, kind: str, *arguments: str) -> Process:
        spark_class = str(HOME / "bin" / "spark-class")
        process = Process(
            spark_class, f"org.apache.spark.deploy.{kind}", *arguments, **self.environment
        )
        self._processes.append(process)
        return process

    def lake(self, *arguments: str) -> Process:
        """A command of `wirelake lake`, as a process."""
        command = str(Path(sys.executable).with_name("wirelake"))
        return Process(command, "lake", *arguments, "--master", self.master, **self.environment)

    def executors(self) -> list[int]:
        """The processes that do the work."""
        return [child for worker in self.workers for child in worker.children]

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.kill()


def landed(place: Path) -> pa.Table:
    """The table, read by somebody else than Spark."""
    found = DeltaTable(str(place)).to_pyarrow_dataset().to_table(columns=SCHEMA.names)
    return found.cast(SCHEMA).sort_by(ORDER)


def test_landing_on_a_cluster_is_done_by_all_its_machines(
    cluster: Cluster, broker: Broker, tmp_path: Path
) -> None:
    for number in range(4):
        broker.publish(number, 5000)
    place = tmp_path / "lake"
    job = cluster.lake("land", "--url", broker.url, "--table", str(place), "--once")
    assert job.wait() == 0, job.text
    assert landed(place).equals(broker.log())
    assert "20000 rows in" in job.lines[-1]
    works = [path for k in range(2) for path in (cluster._folder / f"work{k}").glob("app-*")]
    assert len(works) == 2


def test_a_large_dump_is_decoded_on_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    dump, place = tmp_path / "dump", tmp_path / "lake"
    table = FrameTable(1000)
    table.fill([Message(f"level{k % 3}/{k}", b"%4d" % k * 500, id=f"{k}") for k in range(1000)])
    dump.write_bytes(bytes(encoder("kobold-3").encode(table)) * 100)  # 200 MB: several tasks
    job = cluster.lake("decode", str(dump), "--table", str(place))
    assert job.wait() == 0, job.text
    found = landed(place)
    assert found["offset"].to_pylist() == list(range(100_000))
    assert found["id"].to_pylist() == [f"{k}" for k in range(1000)] * 100
    assert found["payload"][99_999].as_py() == b" 999" * 500


def test_a_task_that_is_run_again_publishes_nothing_twice(
    cluster: Cluster, broker: Broker, tmp_path: Path
) -> None:
    """Each task has more than one chunk, and fails the first time, after the first chunk."""
    script = tmp_path / "job.py"
    script.write_text(
        """
import sys
from pyspark import TaskContext
from pyspark.sql import functions as F
import wirelake.spark
from wirelake.spark import session

spark = session.start("test", sys.argv[1])
wirelake.spark.register(spark)

def fail_once(number):
    if number % 150_000 == 149_999 and TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("lost")
    return f"{number}".rjust(120)

rows = spark.range(0, 300_000, 1, 2)
text = F.udf(fail_once, "string", useArrow=False)("id")
rows.select(F.lit("a").alias("address"), text.alias("payload")).write.format("wirelake").mode(
    "append"
).option("url", sys.argv[2]).save()
spark.stop()
"""
    )
    job = Process(sys.executable, str(script), cluster.master, broker.url, **cluster.environment)
    assert job.wait() == 0, job.text
    found = broker.log()
    assert sorted(map(int, found["payload"].to_pylist())) == list(range(300_000))


class Publishing:
    """Messages that come all the time."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.batches = 0
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._broker.publish(self.batches, 200)
            self.batches += 1
            time.sleep(0.05)  # there are others who need the machine

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def test_the_table_is_the_log_whatever_is_killed(
    cluster: Cluster, broker: Broker, tmp_path: Path
) -> None:
    chance = random.Random(5)
    place = tmp_path / "lake"
    arguments = ["land", "--url", broker.url, "--table", str(place), "--json"]
    publishing = Publishing(broker)
    job = cluster.lake(*arguments, "--every", "100ms")
    try:
        for kill in range(KILLS):
            before = sum('"batch"' in line for line in job.lines)
            job.wait_for('"batch"', before + 1)
            time.sleep(chance.uniform(0, 0.5))  # somewhere in the next batches
            match ("driver", "executor", "broker")[kill % 3]:
                case "driver":
                    job.kill()
                    job = cluster.lake(*arguments, "--every", "100ms")
                case "executor":
                    os.kill(chance.choice(cluster.executors()), signal.SIGKILL)
                case "broker":
                    broker.kill()
                    broker.start()
    finally:
        publishing.stop()
        job.kill()
    assert publishing.batches > 10
    last = cluster.lake(*arguments, "--once")
    assert last.wait() == 0, last.text
    found, wanted = landed(place), broker.log()
    assert found.num_rows == wanted.num_rows == 200 * publishing.batches
    assert found.equals(wanted)
