"""The example that people copy: what clients publish in windows of time comes back counted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

import wirelake
from examples.streaming_count import start
from tests.http.house import House


@contextmanager
def ticking(house: House) -> Iterator[None]:
    """Messages that let time pass: a window is over when something later has come."""
    stop = threading.Event()

    def tick() -> None:
        with wirelake.connect_sync(house.wire("kobold-2")) as client:
            while not stop.wait(0.2):
                client.publish("tick", b"")

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_counts_come_back_to_clients_of_other_dialects(spark: SparkSession, tmp_path: Path) -> None:
    with House(tmp_path / "data") as house:
        checkpoint = str(tmp_path / "checkpoint")
        query = start(spark, house.url, checkpoint, window="2 seconds", late="1 second")
        try:
            with (
                wirelake.connect_sync(house.wire("tmq")) as tmq,
                wirelake.connect_sync(house.wire("mfp")) as mfp,
                wirelake.connect_sync(house.wire("boson-text")) as boson,
                tmq.subscribe("counts/house/+") as by_tmq,
                mfp.subscribe("counts/house/door") as by_mfp,
            ):
                query.processAllAvailable()  # it has begun, and counts from here on
                for _ in range(5):
                    tmq.publish("house/door", b"open")
                for _ in range(3):
                    boson.publish("house/door", b"shut")
                with ticking(house):
                    told = {"tmq-1.01": 0, "boson-text": 0}
                    seen = dict(told)
                    while told != {"tmq-1.01": 5, "boson-text": 3} or seen != told:
                        for messages, counts in ((by_tmq, told), (by_mfp, seen)):
                            counted = json.loads(messages.receive(120).payload)
                            counts[counted["dialect"]] += counted["count"]
        finally:
            query.stop()
