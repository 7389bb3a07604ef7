"""Messages per address and dialect in windows of time, counted by Spark, back on the wire.

    wirelake serve
    python examples/streaming_count.py --url http://127.0.0.1:7780
    wirelake sub tmq://localhost 'counts/#'
    wirelake sub mfp://localhost counts/house/door

What is published to `house/door` is counted by dialect; when a window is over, and nothing late can
come any more, each count is published once to `counts/house/door`, as JSON, for clients of every
dialect. The checkpoint remembers what was counted: stopped and started again, it goes on.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.query import StreamingQuery

import wirelake.spark
from wirelake.spark import session

PREFIX = "counts/"


def counts(messages: DataFrame, window: str, late: str) -> DataFrame:
    """What to publish: an address and a payload for every window, address and dialect."""
    counted = (
        messages.where("op = 'publish'")
        .where(~F.col("address").startswith(PREFIX))  # or the counts would be counted
        .withWatermark("timestamp", late)
        .groupBy(F.window("timestamp", window), "address", "dialect")
        .count()
    )
    told = F.struct(
        F.col("window.start").alias("from"), F.col("window.end").alias("to"), "dialect", "count"
    )
    return counted.select(
        F.concat(F.lit(PREFIX), "address").alias("address"), F.to_json(told).alias("payload")
    )


def start(
    spark: SparkSession,
    url: str,
    checkpoint: str,
    *,
    subscribe: str = "#",
    window: str = "10 seconds",
    late: str = "5 seconds",
) -> StreamingQuery:
    """Start counting; from now on, or from where it ended."""
    wirelake.spark.register(spark)
    source = spark.readStream.format("wirelake").options(
        url=url,
        subscribe=subscribe,
        columns="timestamp,address,op,dialect",
        query="streaming-count",
    )
    writer = counts(source.load(), window, late).writeStream.format("wirelake").option("url", url)
    writer = writer.outputMode("append").option("checkpointLocation", checkpoint)
    return writer.trigger(processingTime="1 second").start()


def main() -> None:
    """Count until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:7780", help="the broker's HTTP")
    parser.add_argument("--checkpoint", default="streaming_count_checkpoint")
    parser.add_argument("--subscribe", default="#", help="what to count")
    parser.add_argument("--window", default="10 seconds")
    parser.add_argument("--late", default="5 seconds", help="how long to wait for late messages")
    parser.add_argument("--master", default="", help="where Spark runs")
    options = parser.parse_args()
    spark = session.start("streaming count", options.master)
    try:
        query = start(
            spark,
            options.url,
            options.checkpoint,
            subscribe=options.subscribe,
            window=options.window,
            late=options.late,
        )
        query.awaitTermination()
    except KeyboardInterrupt:
        pass
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
