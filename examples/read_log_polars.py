"""The log as a Polars data frame.

pip install polars
python examples/read_log_polars.py [URL] [FILTER]
"""

from __future__ import annotations

import io
import json
import sys
from urllib.parse import quote
from urllib.request import urlopen

import polars as pl

URL = "http://127.0.0.1:7780"


def read_log(url: str, filter: str) -> pl.DataFrame:
    """The rows of all partitions."""
    with urlopen(f"{url}/v1/log") as answer:
        partitions = [one["partition"] for one in json.load(answer)["partitions"]]
    frames = []
    for partition in partitions:
        query = f"filter={quote(filter)}&columns=timestamp,address,payload"
        with urlopen(f"{url}/v1/log/{partition}?{query}") as answer:
            frames.append(pl.read_ipc_stream(io.BytesIO(answer.read())))
    return pl.concat([one.with_columns(pl.col("address").cast(pl.String)) for one in frames])


def main() -> None:
    """Read, ask, print."""
    url, filter = [*sys.argv[1:], *[URL, "#"][len(sys.argv) - 1 :]]
    found = (
        read_log(url, filter)
        .group_by("address")
        .agg(pl.len().alias("messages"), pl.col("payload").bin.size().sum().alias("bytes"))
        .sort("address")
    )
    for address, messages, size in found.iter_rows():
        print(f"{address}: {messages} messages, {size} bytes")


if __name__ == "__main__":
    main()
