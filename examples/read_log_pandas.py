"""The log as a pandas data frame.

pip install pandas pyarrow
python examples/read_log_pandas.py [URL] [FILTER]
"""

from __future__ import annotations

import json
import sys
from urllib.parse import quote
from urllib.request import urlopen

import pandas as pd
import pyarrow as pa

URL = "http://127.0.0.1:7780"


def read_log(url: str, filter: str) -> pd.DataFrame:
    """The rows of all partitions."""
    with urlopen(f"{url}/v1/log") as answer:
        partitions = [one["partition"] for one in json.load(answer)["partitions"]]
    frames = []
    for partition in partitions:
        query = f"filter={quote(filter)}&columns=timestamp,address,payload"
        with (
            urlopen(f"{url}/v1/log/{partition}?{query}") as answer,
            pa.ipc.open_stream(answer) as stream,
        ):
            frames.append(stream.read_all().to_pandas())
    return pd.concat(frames)


def main() -> None:
    """Read, ask, print."""
    url, filter = [*sys.argv[1:], *[URL, "#"][len(sys.argv) - 1 :]]
    log = read_log(url, filter)
    log["bytes"] = log["payload"].map(len)
    found = log.groupby(log["address"].astype(str))["bytes"].agg(["count", "sum"])
    for address, row in found.iterrows():
        print(f"{address}: {row['count']} messages, {row['sum']} bytes")


if __name__ == "__main__":
    main()
