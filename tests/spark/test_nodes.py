"""Spark reads the log of a cluster: three nodes as processes, of which one is killed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.cluster.processes import Nodes
from tests.cluster.servers import Servers, binary
from tests.http.house import arrow, rows
from wirelake.spark import register
from wirelake.spark.log_client import LogClient
from wirelake.spark.offsets import Range

pytestmark = pytest.mark.slow

#: Rows of a batch that is published, and addresses, so that every partition has some.
ROWS = 600
ADDRESSES = 24


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    if binary() is None:
        pytest.skip("nats-server is not installed")
    (tmp_path / "nats").mkdir()
    with Servers(tmp_path / "nats") as servers, Nodes(tmp_path, servers.urls, "spark") as made:
        made.start("a", "b", "c")
        yield made


def url_of(nodes: Nodes) -> str:
    """Where all nodes are, the first that was started first."""
    return "http://" + ",".join(one.http.removeprefix("http://") for one in nodes.all.values())


def publish(url: str, batch: int) -> set[bytes]:
    """Publish rows once, through whichever node; return their payloads."""
    made = [(f"level/{k % ADDRESSES}", b"%d-%d" % (batch, k)) for k in range(ROWS)]
    LogClient(url, patience=120).publish(arrow(rows(*made)), "test", str(batch))
    return {payload for _, payload in made}


def land(spark: SparkSession, url: str, folder: Path) -> None:
    """Let a stream go on to the end of the log, and stop."""
    log = spark.readStream.format("wirelake").options(
        url=url, subscribe="level/#", startingOffsets="earliest", maxRowsPerTrigger="250"
    )
    writer = log.load().writeStream.format("parquet").option("path", str(folder / "table"))
    query = writer.option("checkpointLocation", str(folder / "at")).trigger(availableNow=True)
    query.start().awaitTermination()


def test_a_stream_has_every_row_once_also_where_a_node_is_killed_between_batches(
    spark: SparkSession, nodes: Nodes, tmp_path: Path
) -> None:
    register(spark)
    url = url_of(nodes)
    wanted = publish(url, 0)
    land(spark, url, tmp_path)
    nodes.all["a"].kill()  # the first that the URL names
    wanted |= publish(url, 1)
    land(spark, url, tmp_path)
    wanted |= publish(url, 2)
    land(spark, url, tmp_path)
    found = spark.read.parquet(str(tmp_path / "table")).collect()
    assert len(found) == len(wanted) == 3 * ROWS
    assert {bytes(row.payload) for row in found} == wanted
    batch = spark.read.format("wirelake").option("url", url).option("subscribe", "level/#").load()
    assert batch.count() == 3 * ROWS


def test_executors_read_from_standbys_and_go_on_where_a_node_is_killed(nodes: Nodes) -> None:
    url = url_of(nodes)
    wanted = publish(url, 0)
    client = LogClient(url, patience=120)
    log = client.log()
    assert all(1 <= len(places) <= 3 for places in log.places.values())
    killed = nodes.all["b"]
    read: dict[int, list[int]] = defaultdict(list)
    payloads: set[bytes] = set()
    for partition, extent in log.extents.items():
        if partition == 3:
            killed.kill()
        for table in client.read(Range(partition, extent.first, extent.next), log=log.id):
            read[partition] += table["offset"].to_pylist()
            payloads.update(table["payload"].to_pylist())
    assert wanted <= payloads
    for partition, extent in log.extents.items():
        assert read[partition] == list(range(extent.first, extent.next))
