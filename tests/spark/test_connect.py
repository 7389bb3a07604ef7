"""The source, the sink and tables over Spark Connect, with a server of its own on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.house import House, arrow, rows
from wirelake.spark import session

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
