"""`wirelake lake report`: what a table of messages says, as numbers; `page.py` draws them.

Spark works everything out; only aggregates leave it, and lists have at most `TOP` entries. Rows
without a time (raw dumps have none) count in all that needs no time.

How things are joined:
- A *request* is a row with the op `request` (in TMQ also a publish that wants a response) and a
  correlation id. What comes next under that id answers it if it is a `reply`, fails it if it is an
  `error`; otherwise it is unanswered.
- A *queue message* is an address and an id. It waits from its `enqueue` to its first `deliver`;
  every further one is a redelivery. An `ack` takes as long as the last `deliver` before it is ago.
- A *source* is quiet if it has been silent for ten times its usual (mean) interval, and a minute at
  least, when the table ends. It bursts if its busiest minute has five times the messages of its
  median minute (of those in which it sent anything), and ten at least.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from wirelake.dialects import DIALECTS
from wirelake.spark.session import spark_errors

#: Entries of a list at most, and steps of a timeline.
TOP = 20
STEPS = 120

Numbers = dict[str, Any]

#: In Spark's words; the year 10000 and later are nobody's time.
_HAS_TIME = "time > 0 AND time < 253402300800000000"
_STEP_SECONDS = (1, 5, 10, 30, 60, 300, 900, 3600, 10800, 21600, 86400, 604800, 2592000)
_PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_ACCURACY = 10000
_QUIET_FACTOR, _QUIET_SECONDS, _QUIET_MESSAGES = 10, 60, 3
_BURST_FACTOR, _BURST_MESSAGES, _BURST_MINUTES = 5, 10, 3


def report(rows: DataFrame) -> Numbers:
    """Everything that the report says of these rows of a table."""
    rows = rows.withColumns(
        {"time": F.unix_micros("timestamp"), "size": F.octet_length("payload").cast("long")}
    )
    with spark_errors():
        totals = _totals(rows)
        if totals["messages"] == 0:
            return totals
        timed = rows.where(_HAS_TIME)
        first, last = totals.pop("first_time"), totals.pop("last_time")
        return {
            **totals,
            **_timeline(timed, first, last),
            "dialects": _counts(rows, "dialect"),
            "ops": _counts(rows, "op"),
            "top_addresses": _counts(rows, "address"),
            "payload_bytes": _payloads(rows),
            "requests": _requests(timed),
            "queues": _queues(timed),
            "errors": _reasons(rows, "error", _error_code()),
            "dead_letters": _reasons(rows, "dead", F.col("headers").getItem("dead.reason")),
            "quiet_sources": _quiet(timed, last),
            "bursting_sources": _bursting(timed),
        }


def _totals(rows: DataFrame) -> Numbers:
    time = F.when(F.expr(_HAS_TIME), F.col("time"))
    row = _one(
        rows.agg(
            F.count("*").alias("messages"),
            F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
            F.count_if(time.isNull()).alias("without_time"),
            F.approx_count_distinct("address").alias("addresses"),
            F.min(time).alias("first"),
            F.max(time).alias("last"),
        )
    )
    totals = {name: row[name] for name in ("messages", "bytes", "without_time", "addresses")}
    totals |= {"first": _iso(row["first"]), "last": _iso(row["last"])}
    if row["messages"]:
        totals |= {"first_time": row["first"], "last_time": row["last"]}
    return totals


def _timeline(timed: DataFrame, first: int | None, last: int | None) -> Numbers:
    """Messages and bytes by dialect, in steps that suit the time that the table spans."""
    if first is None or last is None:
        return {"step_seconds": 0, "timeline": []}
    seconds = (last - first) / 1e6
    step = next((s for s in _STEP_SECONDS if seconds / s <= STEPS), _STEP_SECONDS[-1])
    begin = F.col("time") - F.pmod("time", F.lit(step * 1_000_000))
    steps = timed.groupBy(begin.alias("begin"), "dialect").agg(*_sums()).orderBy("begin", "dialect")
    return {
        "step_seconds": step,
        "timeline": [
            {
                "time": _iso(row["begin"]),
                "dialect": row["dialect"],
                "messages": row["messages"],
                "bytes": row["bytes"],
            }
            for row in steps.collect()
        ],
    }


def _counts(rows: DataFrame, column: str) -> list[Numbers]:
    counted = rows.groupBy(column).agg(*_sums()).orderBy(F.desc("messages"), column).limit(TOP)
    return [row.asDict() for row in counted.collect()]


def _sums() -> list[Column]:
    return [F.count("*").alias("messages"), F.sum("size").alias("bytes")]


def _payloads(rows: DataFrame) -> Numbers:
    """Percentiles of payload sizes, and how many there are between powers of two."""
    size = F.col("size")
    spread = _one(rows.agg(F.min(size), F.avg(size), F.max(size), _spread(size)))
    power = F.when(size == 0, F.lit(0)).otherwise(F.length(F.bin("size")))
    counted = rows.groupBy(power.alias("power")).count().orderBy("power").collect()
    return {
        "min": spread[0],
        "mean": spread[1],
        "max": spread[2],
        **_percentiles(spread[3]),
        "histogram": [
            {
                "from": 2 ** (row["power"] - 1) if row["power"] else 0,
                "below": 2 ** row["power"],
                "messages": row["count"],
            }
            for row in counted
        ],
    }


def _requests(timed: DataFrame) -> Numbers:
    """How long requests took, in all and by address."""
    asking = [name for name, one in DIALECTS.items() if one.requests_by_publish]
    wants_answer = F.col("dialect").isin(asking) & (F.col("op") == "publish")
    asks = (F.col("op") == "request") | wants_answer
    answers = F.col("op").isin("reply", "error")
    related = timed.where((F.col("correlation_id") != "") & (asks | answers))
    in_order = Window.partitionBy("correlation_id").orderBy(
        "time", F.when(asks, 0).otherwise(1), "partition", "offset"
    )
    asked = (
        related.select(
            "address",
            asks.alias("asks"),
            F.lead("op").over(in_order).alias("next"),
            ((F.lead("time").over(in_order) - F.col("time")) / 1000).alias("ms"),
        )
        .where("asks")
        .withColumn("ms", F.when(F.col("next").isin("reply", "error"), F.col("ms")))
    )
    measures = [
        F.count("*").alias("requests"),
        F.count_if(F.col("next") == "reply").alias("answered"),
        F.count_if(F.col("next") == "error").alias("failed"),
        F.max("ms").alias("max"),
        _spread(F.col("ms")).alias("spread"),
    ]
    by_address = asked.groupBy("address").agg(*measures)
    listed = by_address.orderBy(F.desc("requests"), "address").limit(TOP).collect()
    return {
        **_latency(_one(asked.agg(*measures))),
        "by_address": [{"address": row["address"], **_latency(row)} for row in listed],
    }


def _latency(row: Row) -> Numbers:
    counts = {name: row[name] for name in ("requests", "answered", "failed")}
    unanswered = row["requests"] - row["answered"] - row["failed"]
    latency = {**_percentiles(row["spread"]), "max": row["max"]}
    return {**counts, "unanswered": unanswered, "latency_ms": latency}


def _queues(timed: DataFrame) -> list[Numbers]:
    """What happened in each queue, and how long it took."""
    op = F.col("op")
    order = F.when(op == "enqueue", 0).when(op == "deliver", 1).otherwise(2)
    so_far = (
        Window.partitionBy("address", "id")
        .orderBy("time", order, "partition", "offset")
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    delivered = F.last(F.when(op == "deliver", F.col("time")), ignorenulls=True).over(so_far)
    events = timed.where(op.isin("enqueue", "deliver", "ack", "nack", "dead") & (F.col("id") != ""))
    of_message = (
        events.withColumn("ack_ms", F.when(op == "ack", (F.col("time") - delivered) / 1000))
        .groupBy("address", "id")
        .agg(
            F.min(F.when(op == "enqueue", F.col("time"))).alias("put"),
            F.min(F.when(op == "deliver", F.col("time"))).alias("got"),
            *(F.count_if(op == name).alias(name) for name in ("enqueue", "deliver", "nack")),
            F.max((op == "ack").cast("int")).alias("ack"),
            F.max((op == "dead").cast("int")).alias("dead"),
            F.max("ack_ms").alias("ack_ms"),
        )
        .withColumn("wait_ms", F.when(F.col("got") >= F.col("put"), F.col("got") - F.col("put")))
        .withColumn("wait_ms", F.col("wait_ms") / 1000)
    )
    queues = of_message.groupBy("address").agg(
        F.sum("enqueue").alias("enqueued"),
        F.sum("deliver").alias("delivered"),
        F.sum(F.greatest(F.col("deliver") - 1, F.lit(0))).alias("redelivered"),
        F.sum("ack").alias("acknowledged"),
        F.sum("nack").alias("refused"),
        F.sum("dead").alias("dead"),
        _spread(F.col("wait_ms")).alias("wait"),
        F.max("wait_ms").alias("wait_max"),
        _spread(F.col("ack_ms")).alias("acks"),
        F.max("ack_ms").alias("acks_max"),
    )
    counts = ("enqueued", "delivered", "redelivered", "acknowledged", "refused", "dead")
    return [
        {
            "address": row["address"],
            **{name: row[name] for name in counts},
            "waiting_ms": {**_percentiles(row["wait"]), "max": row["wait_max"]},
            "acknowledgement_ms": {**_percentiles(row["acks"]), "max": row["acks_max"]},
        }
        for row in queues.orderBy(F.desc("enqueued"), "address").limit(TOP).collect()
    ]


def _error_code() -> Column:
    """An error's code; TMQ has it as content type."""
    number = F.when(F.col("content_type") != 0, F.col("content_type").cast("string"))
    return F.coalesce(F.col("headers").getItem("$code"), number)


def _reasons(rows: DataFrame, op: str, reason: Column) -> list[Numbers]:
    counted = (
        rows.where(F.col("op") == op)
        .groupBy(F.coalesce(reason, F.lit("")).alias("reason"), "address")
        .agg(F.count("*").alias("messages"))
        .orderBy(F.desc("messages"), "reason", "address")
    )
    return [row.asDict() for row in counted.limit(TOP).collect()]


def _quiet(timed: DataFrame, last: int | None) -> list[Numbers]:
    if last is None:
        return []
    usual = (F.max("time") - F.min("time")) / F.greatest(F.count("*") - 1, F.lit(1)) / 1e6
    quiet = (
        timed.where(F.col("source") != "")
        .groupBy("source")
        .agg(
            F.count("*").alias("messages"),
            F.max("time").alias("last"),
            usual.alias("usual_seconds"),
            ((F.lit(last) - F.max("time")) / 1e6).alias("silent_seconds"),
        )
        .where(
            (F.col("messages") >= _QUIET_MESSAGES)
            & (F.col("silent_seconds") >= _QUIET_SECONDS)
            & (F.col("silent_seconds") > _QUIET_FACTOR * F.col("usual_seconds"))
        )
        .orderBy(F.desc("silent_seconds"), "source")
        .limit(TOP)
    )
    return [row.asDict() | {"last": _iso(row["last"])} for row in quiet.collect()]


def _bursting(timed: DataFrame) -> list[Numbers]:
    minute = (F.col("time") - F.pmod("time", F.lit(60_000_000))).alias("minute")
    bursting = (
        timed.where(F.col("source") != "")
        .groupBy("source", minute)
        .agg(F.count("*").alias("messages"))
        .groupBy("source")
        .agg(
            F.max("messages").alias("peak"),
            F.max_by("minute", "messages").alias("peak_at"),
            F.percentile_approx("messages", 0.5, _ACCURACY).alias("median"),
            F.count("*").alias("minutes"),
        )
        .where(
            (F.col("minutes") >= _BURST_MINUTES)
            & (F.col("peak") >= _BURST_MESSAGES)
            & (F.col("peak") >= _BURST_FACTOR * F.col("median"))
        )
        .orderBy(F.desc(F.col("peak") / F.col("median")), "source")
        .limit(TOP)
    )
    return [row.asDict() | {"peak_at": _iso(row["peak_at"])} for row in bursting.collect()]


def _spread(column: Column) -> Column:
    return F.percentile_approx(column, list(_PERCENTILES.values()), _ACCURACY)


def _percentiles(spread: list[float] | None) -> Numbers:
    if spread is None:
        return dict.fromkeys(_PERCENTILES)
    return dict(zip(_PERCENTILES, spread, strict=True))


def _one(rows: DataFrame) -> Row:
    return rows.collect()[0]


def _iso(micros: int | None) -> str | None:
    """A time, as programs read it."""
    if micros is None:
        return None
    time = datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)
    return time.isoformat().replace("+00:00", "Z")
