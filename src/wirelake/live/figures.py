"""What `wirelake up` and `wirelake top` measure: the figures of `/metrics`, read once a second.

Rows landed are the rows of the log less the pipeline's lag, because offsets count from 0 without
gaps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from wirelake.client.http import HttpClient
from wirelake.errors import EngineError, RefusedError

#: Seconds that the broker may take to answer.
TIMEOUT = 5.0

#: Stands for all queries: then the lag is that of all of them together.
EVERY_QUERY = ""

_FAULTS = {
    "protocol_errors": "protocol errors",
    "torn_frames": "torn frames",
    "slow_consumers": "slow consumers",
    "disk_waits": "waits for the disk",
    "commit_failures": "failed commits",
}
_FAULTS_BY_REASON = ("refused", "dropped", "timeouts")


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a broker, or of all nodes of a cluster together, at one moment."""

    at: float  # of the monotonic clock
    clients: dict[str, int]
    received: int
    delivered: int
    carried: int  # bytes, in and out
    committed: int  # bytes
    queues: dict[str, tuple[int, int]]  # messages ready, and messages held by consumers
    log_bytes: int
    log_rows: int  # written since the log began
    lag: int | None  # rows not landed yet; None until the pipeline reports
    faults: dict[str, int]
    trouble: bool

    @classmethod
    def parse(cls, texts: Sequence[str], query: str, at: float) -> Figures:
        """Parse the Prometheus texts of `/metrics` of all nodes; `query` is the pipeline's."""
        samples = [
            one
            for text in texts
            for family in text_string_to_metric_families(text)
            for one in family.samples
        ]

        def total(name: str) -> int:
            return int(sum(one.value for one in samples if one.name == f"wirelake_{name}"))

        def by(name: str, label: str) -> dict[str, int]:
            found: Counter[str] = Counter()
            for one in samples:
                if one.name == f"wirelake_{name}":
                    found[one.labels[label]] += int(one.value)
            return found

        # Several nodes know of a partition; the one that knows the most is right.
        rows: Counter[str] = Counter()
        lags: Counter[tuple[str, str]] = Counter()
        for one in samples:
            if one.name == "wirelake_log_next":
                partition = one.labels["partition"]
                rows[partition] = max(rows[partition], int(one.value))
            elif one.name == "wirelake_query_lag" and query in (one.labels["query"], EVERY_QUERY):
                key = one.labels["query"], one.labels["partition"]
                lags[key] = max(lags[key], int(one.value))
        held = by("queue_held", "queue")
        faults = {text: total(f"{name}_total") for name, text in _FAULTS.items()}
        for kind in _FAULTS_BY_REASON:
            for reason, count in by(f"{kind}_total", "reason").items():
                faults[f"{kind}: {reason.replace('_', ' ')}"] = count
        return cls(
            at=at,
            clients=by("clients", "dialect"),
            received=total("received_total"),
            delivered=total("delivered_total"),
            carried=total("bytes_in_total") + total("bytes_out_total"),
            committed=total("commit_bytes_total"),
            queues={name: (n, held[name]) for name, n in by("queue_ready", "queue").items()},
            log_bytes=total("log_bytes"),
            log_rows=rows.total(),
            lag=lags.total() if lags else None,
            faults={text: count for text, count in faults.items() if count},
            trouble=bool(total("trouble")),
        )

    @property
    def has_all_landed(self) -> bool:
        """Whether there is nothing to land: it has landed, or nothing was said yet."""
        return self.lag == 0 or self.log_rows == 0

    @property
    def landed(self) -> int:
        """Rows landed since the log began."""
        return 0 if self.lag is None else self.log_rows - self.lag


def read_figures(url: str, query: str, token: str) -> Figures:
    """Read the broker's figures; EngineError if that fails. Blocks."""
    return read_all_figures([url], query, token)


def read_all_figures(urls: Sequence[str], query: str, token: str) -> Figures:
    """Read the figures of all nodes that answer; EngineError if none does. Blocks."""
    texts: list[str] = []
    failure = EngineError("there is no node yet")
    for url in urls:
        try:
            texts.append(HttpClient(url, token, timeout=TIMEOUT).text("/metrics"))
        except RefusedError as error:
            if error.code == "unauthorized":
                text = "HTTP needs a token with more rights: WIRELAKE_TOKEN"
                raise EngineError(text) from None
            failure = EngineError(str(error))
        except TimeoutError as error:
            failure = EngineError(str(error))
        except EngineError as error:
            failure = error
    if not texts:
        raise failure
    try:
        return Figures.parse(texts, query, time.monotonic())
    except (ValueError, KeyError):
        raise EngineError(f"the figures at {', '.join(urls)} cannot be read") from None
