"""The log in SQL, by DuckDB, which reads Arrow where it lies.

pip install duckdb pyarrow
python examples/read_log_duckdb.py [URL] [FILTER]
"""

from __future__ import annotations

import json
import sys
from urllib.parse import quote
from urllib.request import urlopen

import duckdb
import pyarrow as pa

URL = "http://127.0.0.1:7780"

QUESTION = """
    SELECT address, count(*) AS messages, sum(octet_length(payload)) AS bytes
    FROM log GROUP BY address ORDER BY address
"""


def read_log(url: str, filter: str) -> pa.Table:
    """The rows of all partitions."""
    with urlopen(f"{url}/v1/log") as answer:
        partitions = [one["partition"] for one in json.load(answer)["partitions"]]
    tables = []
    for partition in partitions:
        query = f"filter={quote(filter)}&columns=timestamp,address,payload"
        with (
            urlopen(f"{url}/v1/log/{partition}?{query}") as answer,
            pa.ipc.open_stream(answer) as stream,
        ):
            tables.append(stream.read_all())
    return pa.concat_tables(tables)


def main() -> None:
    """Read, ask, print."""
    url, filter = [*sys.argv[1:], *[URL, "#"][len(sys.argv) - 1 :]]
    with duckdb.connect() as database:
        database.register("log", read_log(url, filter))
        for address, messages, size in database.execute(QUESTION).fetchall():
            print(f"{address}: {messages} messages, {size} bytes")


if __name__ == "__main__":
    main()
