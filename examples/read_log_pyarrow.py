"""The log as Arrow: count messages and bytes by address.

python examples/read_log_pyarrow.py [URL] [FILTER]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from urllib.parse import quote
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.compute as pc

URL = "http://127.0.0.1:7780"


def read_log(url: str, filter: str, columns: str) -> Iterator[pa.RecordBatch]:
    """The rows of all partitions, batch by batch, as they come."""
    with urlopen(f"{url}/v1/log") as answer:
        partitions = [one["partition"] for one in json.load(answer)["partitions"]]
    for partition in partitions:
        query = f"filter={quote(filter)}&columns={columns}"
        with (
            urlopen(f"{url}/v1/log/{partition}?{query}") as answer,
            pa.ipc.open_stream(answer) as stream,
        ):
            yield from stream


def main() -> None:
    """Read, add up, print."""
    url, filter = [*sys.argv[1:], *[URL, "#"][len(sys.argv) - 1 :]]
    counts: dict[str, list[int]] = {}
    for batch in read_log(url, filter, "address,payload"):
        table = pa.table(
            {
                "address": batch.column("address").cast(pa.string()),
                "bytes": pc.binary_length(batch.column("payload")),
            }
        )
        sums = table.group_by("address").aggregate([("bytes", "count"), ("bytes", "sum")])
        for row in sums.to_pylist():
            found = counts.setdefault(row["address"], [0, 0])
            found[0] += row["bytes_count"]
            found[1] += row["bytes_sum"]
    for address, (messages, size) in sorted(counts.items()):
        print(f"{address}: {messages} messages, {size} bytes")


if __name__ == "__main__":
    main()
