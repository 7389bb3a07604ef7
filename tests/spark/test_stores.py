"""Tables in object stores: the same code, with stores on this machine."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from tests.http.house import House
from tests.spark.test_land import logged, publish, same
from tests.spark.test_tables import landed, log_rows, write
from wirelake.errors import ConfigError, EngineError
from wirelake.measure.broker import free_port
from wirelake.message import Message
from wirelake.spark import table
from wirelake.spark.commits import Table, TakenError
from wirelake.spark.compaction import all_together, compact
from wirelake.spark.land import Options, land
from wirelake.spark.rows import FOLDERS, ROWS
from wirelake.spark.storage import Storage
from wirelake.wire import FrameTable

PATIENCE = 120.0


AZURITE = Path(__file__).parent / "azurite" / "node_modules" / "azurite" / "dist" / "src" / "blob"
#: The account that every Azurite has.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Store:
    """An object store with an empty bucket, and how it is reached."""

    root: str
    options: dict[str, str]

    def place(self, name: str) -> Storage:
        """A place in the bucket."""
        return Storage.of(f"{self.root}/{name}", self.options)


@contextmanager
def serving(*command: str | Path) -> Iterator[None]:
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
        assert server.poll() is None
    finally:
        server.kill()
        server.wait()


def wait_for(work: Callable[[], object]) -> None:
    """Try until a server that has just been started does it."""
    until = time.monotonic() + PATIENCE
    while True:
        try:
            work()
            return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.2)


@contextmanager
def amazon(folder: Path) -> Iterator[Store]:
    """S3, by moto."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)):
        request = urllib.request.Request(f"{url}/lake", method="PUT")
        wait_for(lambda: urllib.request.urlopen(request, timeout=10).close())
        yield Store(
            "s3://lake",
            {
                "AWS_ACCESS_KEY_ID": "someone",
                "AWS_SECRET_ACCESS_KEY": "secret",
                "AWS_REGION": "us-east-1",
                "AWS_ENDPOINT_URL": url,
            },
        )


@contextmanager
def google(folder: Path) -> Iterator[Store]:
    """Google's, by gcp-storage-emulator and what `google_store.py` adds to it."""
    pytest.importorskip("gcp_storage_emulator", reason="no gcp-storage-emulator: make setup")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    account = folder / "account.json"  # one that needs no token
    nobody = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    account.write_text(json.dumps({"gcs_base_url": url, "disable_oauth": True} | nobody))
    with serving(sys.executable, Path(__file__).with_name("google_store.py"), str(port)):
        wait_for(lambda: urllib.request.urlopen(f"{url}/lake", timeout=10).close())
        yield Store(
            "gs://lake",
            {
                "GOOGLE_BASE_URL": url,
                "GOOGLE_SERVICE_ACCOUNT": str(account),
                "GOOGLE_SKIP_SIGNATURE": "true",
            },
        )


@contextmanager
def azure(folder: Path) -> Iterator[Store]:
    """Azure's, by Azurite."""
    node = shutil.which("node")
    if node is None or not AZURITE.is_dir():
        pytest.skip("no Azurite: npm ci --prefix tests/spark/azurite")
    port = free_port()
    where = ("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence")
    options = ("--silent", "--disableTelemetry", "--skipApiVersionCheck")
    storage = Storage.of(
        f"abfss://lake@{ACCOUNT}.dfs.core.windows.net",
        {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}",
        },
    )

    def is_up() -> None:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()

    with serving(node, AZURITE / "main.js", *where, *options):
        wait_for(is_up)
        system, path = storage.open()
        system.create_dir(path)
        yield Store(storage.uri, dict(storage.options))


@pytest.fixture(scope="module", params=[amazon, google, azure], ids=["s3", "gs", "abfss"])
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    with request.param(tmp_path_factory.mktemp("store")) as made:
        yield made


@pytest.mark.parametrize("folders", [(), ("date", "level")])
def test_a_table_in_a_store_is_landed_compacted_and_read_by_the_same_code(
    spark: SparkSession, store: Store, tmp_path: Path, folders: tuple[str, ...]
) -> None:
    storage = store.place(f"messages-{len(folders)}")
    place = storage.uri
    with House(tmp_path / "data") as house:
        options = Options(
            house.url, place, storage=store.options, partition_by=folders, batch_rows=100
        )
        publish(house, 250)
        assert land(spark, options) == 250
        assert land(spark, options) == 0
        bad = FrameTable()
        bad.fill([Message(address="level0/b", payload=b"bad")], "http")
        house.call(lambda: house.engine.append(bad, None, 2**60, b""))
        assert land(spark, options) == 1
        wanted = logged(house)
        wanted = wanted.filter(pc.not_equal(wanted["payload"], b"bad"))
    found = table.read(spark, storage).drop(*FOLDERS).toArrow()
    order = [("partition", "ascending"), ("offset", "ascending")]
    assert same(found.sort_by(order), wanted)
    (side,) = table.read_errors(spark, storage.beside("_errors")).collect()
    assert side.reason == "a time that no calendar has"
    made = Table(storage)
    compact(spark, made, all_together(made.files()))
    in_polars = pl.scan_delta(place, storage_options=storage.for_delta)
    assert in_polars.select(pl.len()).collect().item() == 250
    assert len(made.vacuum(0)) >= 3
    assert table.read(spark, storage).where("level = 'level1'").count() == len(
        [one for one in wanted["address"].to_pylist() if one.startswith("level1/")]
    )


def test_of_two_drivers_at_a_table_in_a_store_one_wins(store: Store) -> None:
    storage = store.place("race")
    first = Table.ensure(storage, ROWS)
    second = Table(storage)
    first.append(write(storage, log_rows(10)), landed(0, p0=10))
    with pytest.raises(TakenError, match="batch 0 of q"):
        second.append(write(storage, log_rows(10)), landed(0, p0=10))
    assert sum(file.rows for file in Table(storage).files()) == 10


def test_plain_parquet_is_landed_in_a_store_as_well(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    storage = store.place("plain")
    with House(tmp_path / "data") as house:
        options = Options(house.url, storage.uri, storage=store.options, format="parquet")
        for _ in range(2):
            publish(house, 20)
            assert land(spark, options) == 20
    assert table.read(spark, storage).count() == 40
    assert len(storage.files()) == 2
    with pytest.raises(ConfigError, match="is no Delta table"):
        Table.ensure(storage, ROWS)


def test_a_store_that_refuses_is_told_in_one_line(store: Store) -> None:
    nowhere = Storage.of(f"{store.root.replace('lake', 'no-such-bucket')}/t", store.options)
    with pytest.raises(EngineError, match=f"^{re.escape(nowhere.uri)}: ") as caught:
        Table.ensure(nowhere, ROWS)
    assert "\n" not in caught.value.reason


def test_a_commit_that_is_there_is_not_overwritten(store: Store) -> None:
    """What all of it stands on: the store refuses to create an object that exists."""
    storage = store.place("twice")
    Table.ensure(storage, ROWS)
    taken = f"_delta_log/{1:020}.json"
    storage.write(taken, b'{"commitInfo": {"by": "another"}}')
    before = storage.read(taken)
    late = Table(storage, version=0)
    late.append(write(storage, log_rows(10)), landed(0, p0=10))
    assert storage.read(taken) == before
    assert Table(storage).version == 2


@pytest.mark.parametrize(
    ("place", "options", "reason"),
    [
        ("abfss://lake/t", {}, "AZURE_STORAGE_ACCOUNT_NAME"),
        ("abfss://lake@a.dfs.core.windows.net/t", {"AZURE_USE_AZURE_CLI": "true"}, "AZURE_USE"),
        ("gs://lake/t", {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"}, "GOOGLE_SERVICE_ACCOUNT_KEY"),
    ],
)
def test_options_that_only_one_of_two_libraries_would_take_are_refused(
    place: str, options: dict[str, str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=reason):
        Storage.of(place, options).open()


def test_a_second_file_of_google_credentials_in_one_process_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/a.json")
    with pytest.raises(ConfigError, match=r"another file, /a\.json"):
        Storage.of("gs://lake/t", {"GOOGLE_SERVICE_ACCOUNT": "/b.json"}).open()
