"""`wirelake cluster import`: the log of a single broker in a new cluster, on a real nats-server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import wirelake
from tests.cluster.processes import Nodes
from tests.cluster.servers import Servers
from tests.cluster.test_processes import insist
from wirelake.config import CaptureSettings
from wirelake.journal.arrow_stream import decode
from wirelake.journal.engine import Engine
from wirelake.journal.files import FilesJournal
from wirelake.journal.jetstream import JetStreamJournal, StreamSettings
from wirelake.journal.streams import Access
from wirelake.testing import Broker

#: nats-py leaves a socket behind where a server was killed or stands still.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Row = dict[str, Any]


def import_log(folder: Path, nats: Servers, prefix: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    where = ("--cluster", nats.urls[0], "--prefix", prefix, "--partitions", "6", "--replicas", "1")
    command = [sys.executable, "-m", "wirelake", "cluster", "import", str(folder), *where]
    return subprocess.run(
        [*command, "--json"], capture_output=True, text=True, timeout=300, check=False
    )


def rows_of(engine: Engine) -> dict[str, list[Row]]:
    """The rows of the log by address, in order, without what an import changes."""
    found: dict[str, list[Row]] = defaultdict(list)
    for position in engine.positions():
        following = position.first
        for stored in engine.read(position.partition, position.first, position.next):
            for row in pa.Table.from_batches([decode(stored.ipc)]).to_pylist():
                assert (row.pop("partition"), row.pop("offset")) == (position.partition, following)
                following += 1
                found[row["address"]].append(row)
    return found


def state_of(engine: Engine) -> dict[str, Any]:
    """Queues with their messages and the ids they remember, however long, and keys."""
    queues = {}
    for settings in engine.queues():
        stored = engine.stored(settings.name)
        ids = sorted(name for name, _ in engine.remembered_ids(settings.name))
        queues[settings.name] = settings, ids, stored
    keys = {entry.key: entry for _, entry in engine.entries() if not entry.key.startswith("$")}
    return {"queues": queues, "keys": keys}


async def fill(broker: Broker) -> None:
    """Publish in several dialects, fill queues, change keys."""
    for dialect in ("kobold-3", "boson-text", "mfp-1", "tmq-1.01"):
        async with wirelake.connect(broker.url(dialect)) as client:
            for k in range(40):
                await client.publish(f"house/{dialect}/{k % 7}", b"%d" % k)
    async with wirelake.connect(broker.url("kobold-3"), client_id="me") as client:
        await client.publish("house/last", b"", headers={"Colour": "red"}, ack=True)
        for k in range(12):
            queue = client.queue(f"jobs/{k}")
            for n in range(10):
                await queue.put(b"%d" % n, id=f"{k} {n}", priority=n % 2)
            await queue.put(b"later", delay=3_600_000)
            done, again = await queue.get(2, wait=5)
            await done.ack()
            await again.nack()
        for k in range(8):
            await client.queue("private").put(b"%d" % k)
        for k in range(20):
            await client.store.create(f"settings/{k}", b"1")
            await client.store.update(f"settings/{k}", b"2", revision=1)
        await client.store.delete("settings/3")


async def test_rows_queues_and_keys_are_in_the_cluster_as_they_were(
    nats: Servers, prefix: str, tmp_path: Path
) -> None:
    # decision 98
    data = tmp_path / "data"
    with Broker(data=data, capture=CaptureSettings(exclude=("private",))) as broker:
        await fill(broker)
        in_use = import_log(data, nats, prefix)
        assert in_use.returncode != 0
        assert "another process uses" in in_use.stderr
    files = FilesJournal(data, tidy_every=0)
    before = Engine(files)
    rows, state = rows_of(before), state_of(before)
    old = before.log_id
    before.close()
    assert sum(map(len, rows.values())) > 300
    assert len(state["queues"]["private"][2]) == 8
    told = import_log(data, nats, prefix)
    assert told.returncode == 0
    (warning,) = told.stderr.splitlines()
    assert "are weak: 6 streams have R1" in warning
    done = json.loads(told.stdout.splitlines()[-1])
    assert done["rows"] == done["of_rows"] == sum(map(len, rows.values()))
    assert (done["queues"], done["messages"], done["damaged"]) == (13, 12 * 10 + 8, 0)
    assert done["keys"] == 19
    assert done["log"] != old
    assert not (data / "import").exists()
    # What the streams have is what the directory had.
    settings = StreamSettings(prefix=prefix, replicas=1)
    journal = JetStreamJournal(tmp_path / "copy", Access(servers=tuple(nats.urls)), settings)
    after = Engine(journal, adopted=range(journal.partitions))
    try:
        assert (after.log_id, after.partitions) == (done["log"], 6)
        assert rows_of(after) == rows
        assert state_of(after) == state
    finally:
        after.close()
    again = import_log(data, nats, prefix)
    assert again.returncode != 0
    assert f"the cluster {prefix} is not empty: it has {done['rows']} rows" in again.stderr
    # A node serves it.
    with Nodes(tmp_path, nats.urls, prefix) as nodes:
        (node,) = nodes.start("a")
        refused = import_log(data, nats, prefix)
        assert refused.returncode != 0
        assert f"nodes of the cluster {prefix} run: a; stop them first" in refused.stderr
        async with wirelake.connect(node.url("kobold-3"), client_id="me") as client:
            for k in range(12):
                queue = client.queue(f"jobs/{k}")
                found = await insist(partial(queue.get, 20))
                stored = state["queues"][f"jobs/{k}"][2]
                ready = sorted(one.message.payload for one in stored if not one.due)
                assert sorted(one.message.payload for one in found) == ready
            entry = await client.store.read("settings/5")
            assert (entry.value, entry.revision) == (b"2", 2)
            assert await client.store.create("settings/3", b"new") > 2  # it was deleted


def test_a_folder_without_a_log_is_refused(nats: Servers, prefix: str, tmp_path: Path) -> None:
    told = import_log(tmp_path, nats, prefix)
    assert told.returncode != 0
    assert f"{tmp_path}: there is no log of a single broker" in told.stderr
