"""One small Spark for all tests of a run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from wirelake.spark import land, session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session of two cores."""
    spark = session.start(
        "tests",
        "local[2]",
        **{
            "spark.driver.memory": "512m",
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(autouse=True)
def in_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Land in tasks of Spark, though the batches of tests are small."""
    monkeypatch.setattr(land, "SMALL_ROWS", 0)
