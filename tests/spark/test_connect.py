"""The source, the sink and tables over Spark Connect, with a server of its own on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.house import House, arrow, rows
from tests.spark.test_cluster import HOME, Process
from wirelake.dialects.codec import encoder
from wirelake.errors import WirelakeError
from wirelake.measure.broker import free_port
from wirelake.message import Message
from wirelake.spark import session
from wirelake.wire import FrameTable

PROGRAM = """
import json, sys
from pyspark.pipelines.block_session_mutations import block_session_mutations
from pyspark.pipelines.graph_element_registry import graph_element_registration_context
from pyspark.sql import SparkSession
import wirelake.spark

url, folder = sys.argv[1:]
builder = SparkSession.builder.remote("local[2]").config("spark.ui.enabled", "false")
spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
found = {"kind": type(spark).__module__}

sessions = []
register, spark.dataSource.__class__.register = spark.dataSource.__class__.register, sessions.append
with block_session_mutations(), graph_element_registration_context(object()):
    wirelake.spark.register(spark)  # as in the definitions of a pipeline
found["registered"] = len(sessions)
spark.dataSource.__class__.register = register


def log():  # anew each time: a frame stays as it was when it was first used
    return spark.read.format("wirelake").option("url", url).load()


found["discovered"] = log().count()

wirelake.spark.register(spark)
found["filtered"] = log().where("address = 'house/door' and offset >= 0").count()
rows = spark.sql("SELECT 'house/new' AS address, X'31' AS payload")
rows.write.format("wirelake").mode("append").option("url", url).save()
found["written"] = log().count()

source = spark.readStream.format("wirelake")
source = source.options(url=url, subscribe="house/#", startingOffsets="earliest").load()
copies = source.selectExpr("concat('copy/', address) AS address", "payload").writeStream
copies = copies.format("wirelake").option("url", url)
copies = copies.option("checkpointLocation", f"{folder}/checkpoint")
query = copies.trigger(availableNow=True).start()
query.awaitTermination()
found["streamed"] = log().where("address like 'copy/%'").count()
found["behind"] = wirelake.spark.behind_latest(query.lastProgress)

from concurrent.futures import ThreadPoolExecutor
from wirelake.spark import decode, direct, land, table
from wirelake.spark.typed import Typed


def is_ours(number):
    path = f"/nowhere/{number}"
    look = decode.LookAt([(decode.Capture(path, 0), 0, 1)], decode.Options())
    ((plan,),) = direct.run(spark, [look])
    return plan.faults[0][0] == path


with ThreadPoolExecutor(4) as pool:  # as landing and compaction run beside each other
    found["apart"] = all(pool.map(is_ours, range(20)))

typed = (Typed.parse("house/door=cbor: open boolean"), Typed.parse("house/temp=celsius double"))
options = land.Options(url, f"{folder}/lake", schemas=typed, few_files=2, batch_rows=2)
found["landed"] = land.land(spark, options)
found["again"] = land.land(spark, options)
found["in the table"] = table.read(spark, f"{folder}/lake").count()
typed_rows = table.read(spark, f"{folder}/lake").where("celsius IS NOT NULL")
found["typed"] = [row.celsius for row in typed_rows.collect()]
found["bad"] = table.read_errors(spark, f"{folder}/lake_errors").count()

spark.sql(f"CREATE TABLE alerts USING wirelake OPTIONS (url '{url}', columns 'address,payload')")
spark.sql("INSERT INTO alerts VALUES ('alerts/door', X'31')")
found["inserted"] = spark.table("alerts").where("address = 'alerts/door'").count()
print("FOUND", json.dumps(found))
spark.stop()
"""


@pytest.mark.slow
def test_everything_works_over_spark_connect(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    java = session.find_java()
    assert java is not None
    environment = os.environ | {"JAVA_HOME": str(java), "PYSPARK_PYTHON": sys.executable}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1"}
    with House(tmp_path / "data") as house:
        temp = b'{"celsius": 21.5}'
        house.post("/v1/publish", arrow(rows(("house/door", b"open"), ("house/temp", temp))))
        done = subprocess.run(
            [sys.executable, str(program), house.url, str(tmp_path)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-5000:]
    line = next(one for one in done.stdout.splitlines() if "FOUND" in one)
    found = json.loads(line.partition("FOUND ")[2])
    behind = found.pop("behind")
    assert found == {
        "kind": "pyspark.sql.connect.session",
        "registered": 0,
        "discovered": 2,
        "filtered": 1,
        "written": 3,
        "streamed": 3,
        "apart": True,
        "landed": 6,
        "again": 0,
        "in the table": 5,
        "typed": [21.5],
        "bad": 1,
        "inserted": 1,
    }
    assert [one.keys() for one in behind] == [
        {"minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest"}
    ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """A server of Spark Connect in a process of its own; its address."""
    port = free_port()
    java = session.find_java()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.ui.enabled": "false",
    }
    process = Process(
        str(HOME / "bin" / "spark-submit"),
        *("--master", "local[2]"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        "spark-internal",
        JAVA_HOME=str(java),
        PYSPARK_PYTHON=sys.executable,
        SPARK_LOCAL_IP="127.0.0.1",
    )
    try:
        process.wait_for("Spark Connect server started")
        yield f"sc://127.0.0.1:{port}"
    finally:
        process.kill()


@pytest.mark.slow
def test_the_commands_work_over_spark_connect(server: str, tmp_path: Path) -> None:
    command = str(Path(sys.executable).with_name("wirelake"))
    table = str(tmp_path / "lake")

    def run(*arguments: str, master: str = server) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, "lake", *arguments, "--master", master],
            env=os.environ | {"JAVA_HOME": "/nowhere"},  # Java is the server's business
            capture_output=True,
            text=True,
        )

    def count() -> str:
        asked = ("sql", "SELECT count(*) AS n, count(celsius) AS c FROM lake", "--csv")
        done = run(*asked, "--table", table)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    schema = ("--schema", "house/temp=celsius double")
    with House(tmp_path / "data") as house:
        land = ("land", "--url", house.url, "--table", table, "--once", "--json", *schema)
        for number in range(3):
            temp = b'{"celsius": %d.5}' % number
            house.post("/v1/publish", arrow(rows(("house/door", b"open"), ("house/temp", temp))))
            done = run(*land)
            assert done.returncode == 0, done.stderr
            assert [json.loads(line)["rows"] for line in done.stdout.splitlines()] == [2]
        assert run(*land).stdout == ""
    assert count() == "6,3"
    dump = tmp_path / "dump"
    frames = FrameTable()
    frames.fill([Message("house/temp", b'{"celsius": 9.5}', id="1")] * 4, "tmq-1.01")
    dump.write_bytes(encoder("tmq-1.01").encode(frames))
    done = run("decode", str(dump), "--table", table, "--dialect", "tmq-1.01", "--json", *schema)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["messages"] == 4
    done = run("compact", "--table", table)
    assert done.stdout.strip() == "4 files became 1", done.stderr
    assert count() == "10,7"
    done = run("report", "--table", table, "--out", str(tmp_path / "page.html"))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("master", "reason"),
    [("sc://", "is not of the form sc://host:port"), ("sc://127.0.0.1:1", "cannot be reached")],
)
def test_a_server_that_is_not_there_is_told_at_once(master: str, reason: str) -> None:
    with pytest.raises(WirelakeError, match=reason):
        session.start("test", master)
