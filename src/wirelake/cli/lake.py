"""`wirelake lake`: captures and logs as tables, on Spark."""

from __future__ import annotations

import csv
import math
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from wirelake.address import check_filter
from wirelake.cli.options import STDIN, AsJson, Token, choose, dialect_name, open_input
from wirelake.cli.parsing import Family
from wirelake.cli.show import (
    STDOUT,
    as_text_and_base64,
    plain_table,
    wide_console,
    write_file,
    write_object,
)
from wirelake.cli.work import USAGE, asked, errors_in_one_line, fail
from wirelake.client.diagnosis import ANSWER
from wirelake.client.finding import HTTP
from wirelake.dialects import DIALECTS
from wirelake.errors import RefusedError
from wirelake.message import printable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wirelake.spark.storage import Storage as Place
    from wirelake.spark.typed import Typed


class OnConflict(StrEnum):
    """What landing does if another process lands the same query."""

    STOP = "stop"
    CONTINUE = "continue"


app = Family(help="Captures and logs as tables, on Spark.")

Table = Annotated[str, typer.Option("--table", metavar="DIR", help="Where the table is.")]
Format = Annotated[
    str,
    typer.Option("--format", help="delta; or parquet: files that are only ever added."),
]
Storage = Annotated[
    list[str] | None,
    typer.Option(
        "--storage",
        metavar="NAME=VALUE",
        help="How an object store is reached, as in AWS_REGION=eu-west-1; else by the environment.",
    ),
]
PartitionBy = Annotated[
    str,
    typer.Option(
        metavar="COLUMNS",
        help="Folders of a new table: `none`, `date`, `level` or `date,level`.",
    ),
]
Schemas = Annotated[
    list[str] | None,
    typer.Option(
        "--schema",
        metavar="FILTER=SCHEMA",
        help="Payloads of these addresses as typed columns: a DDL such as `temp double, unit "
        "string` (JSON), or a file; repeatable.",
    ),
]
Master = Annotated[
    str,
    typer.Option(
        "--master",
        help="Where Spark runs, as in spark://host:7077, or sc://host:15002 by Spark Connect; "
        "without it, on this machine.",
    ),
]


@app.command()
def decode(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…", help="Raw dumps of one direction, pcap or pcapng files; - is stdin."
        ),
    ],
    table: Table,
    dialect: Annotated[
        str | None,
        typer.Option(
            parser=dialect_name,
            metavar="|".join(DIALECTS),
            autocompletion=lambda: list(DIALECTS),
            help="What is spoken; without it, told from the first bytes.",
        ),
    ] = None,
    ports: Annotated[
        str,
        typer.Option(help="Servers' ports in packets: `known`, `all`, or a list: 7702,9000=kobold"),
    ] = "known",
    time: Annotated[
        str, typer.Option(help="When the messages of raw dumps were sent: they do not say so.")
    ] = "",
    split: Annotated[
        int, typer.Option(min=1, help="MiB that one task decodes, about.", metavar="MIB")
    ] = 64,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the table; without it, add to it.")
    ] = False,
    errors: Annotated[
        str, typer.Option(metavar="DIR", help="Where the side table is. [default: DIR_errors]")
    ] = "",
    format: Format = "delta",
    partition_by: PartitionBy = "none",
    schema: Schemas = None,
    storage: Storage = None,
    master: Master = "",
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Put the messages of captures into a table.

    What cannot be read goes to a side table with file, byte offset and reason, and stops nothing.
    Every task reads the files itself: on a cluster they are where all machines see them.

    Examples:

        wirelake lake decode device.bin --table lake/messages

        wirelake lake decode *.pcap --table lake/messages --ports all

        wirelake lake decode device.bin --table lake/messages --schema 'house/#=temp double'
    """
    for file in files:
        if not file.is_file() and file != Path(STDIN):
            fail(f"{file}: no such file", USAGE)
    schemas = _schemas(schema)
    with _kept(files) as paths, _spark("wirelake lake decode", master) as spark:
        from wirelake.spark import decode as job
        from wirelake.spark.flows import Ports

        options = job.Options(
            dialect=dialect or "",
            ports=Ports.parse(ports),
            time=_micros("--time", time),
            step=split << 20,
        )
        place = job.Place(table, format, errors, _columns(partition_by), _storage(storage), schemas)
        result = job.decode(spark, paths, place, options, overwrite=overwrite)
    if as_json:
        write_object({"messages": result.messages, "errors": result.errors, "table": table})
    else:
        typer.echo(f"{result.messages} messages in {table}")
        if result.errors:
            typer.echo(f"{result.errors} places could not be read; {place.side} says why", err=True)


@app.command()
def report(
    table: Table,
    out: Annotated[Path, typer.Option(help="The page; `-` is standard output.")] = Path(
        "report.html"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="The same numbers as JSON, to standard output.")
    ] = False,
    since: Annotated[str, typer.Option("--from", help="Only from this time on (UTC).")] = "",
    until: Annotated[str, typer.Option("--to", help="Only before this time (UTC).")] = "",
    filter: Annotated[str, typer.Option(help="Only addresses that match, as in `a/+/c`.")] = "",
    storage: Storage = None,
    master: Master = "",
) -> None:
    """Say what is in a table, as one HTML page with charts.

    Examples:

        wirelake lake report --table lake/messages

        wirelake lake report --table lake/messages --from 2026-01-01 --filter 'house/#' --json
    """
    times = _time("--from", since), _time("--to", until)
    _check_filter(filter)
    if as_json and out == STDOUT:
        fail("--json and --out - exclude each other", USAGE)
    with _spark("wirelake lake report", master) as spark:
        from wirelake.spark import report as job
        from wirelake.spark import table as tables
        from wirelake.spark.page import page
        from wirelake.spark.session import progress

        rows = tables.read(
            spark, _place(table, storage), since=times[0], until=times[1], filter=filter
        )
        with progress(spark, "report"):
            found = job.report(rows)
    about = {"table": table, "generated": datetime.now(UTC).isoformat(timespec="seconds")}
    chosen = {"from": since or None, "to": until or None, "filter": filter or None}
    numbers: dict[str, object] = {**about, **chosen, **found}
    write_file(out, page(numbers))
    if as_json:
        write_object(numbers)
    elif out != STDOUT:
        typer.echo(f"{found['messages']} messages; the report is in {out}")


@app.command()
def land(
    table: Table,
    url: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=lambda ctx, given: choose(ctx, given).http or choose(ctx, given).url,
            help="The broker: its HTTP, http://host:7780, or a listener. [default: the context's]",
        ),
    ] = "",
    subscribe: Annotated[
        str, typer.Option(metavar="FILTER", help="Only these addresses; several with commas.")
    ] = "",
    route: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILTER=NAME", help="A table for each filter, in the folder DIR; repeatable."
        ),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="All there is now, and then end.")] = False,
    every: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How often, as in 500ms or 5m; 0: at once. [default: 2s]"
        ),
    ] = "",
    format: Format = "delta",
    partition_by: PartitionBy = "none",
    schema: Schemas = None,
    query: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Under which the table knows what has landed. [default: land-TABLE]",
        ),
    ] = "",
    on_conflict: Annotated[
        OnConflict, typer.Option(help="Where another process lands the same query in the table.")
    ] = OnConflict.STOP,
    compact: Annotated[bool, typer.Option(help="Make few files of many small ones.")] = True,
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on where the log has deleted rows already.")
    ] = False,
    storage: Storage = None,
    master: Master = "",
    token: Token = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a batch.")] = False,
) -> None:
    """Put the log of a broker into a Delta table, every row exactly once.

    The table itself knows what has landed, so landing goes on where it ended, after any crash too.
    Rows that have no place in the table go to a side table (DIR_errors) with the reason. SIGTERM
    and Ctrl-C end it.

    Examples:

        wirelake lake land --url http://127.0.0.1:7780 --table lake/messages --once

        wirelake lake land --url http://127.0.0.1:7780 --table lake/messages --every 1m

        wirelake lake land --url http://127.0.0.1:7780 --table lake \\
            --route 'house/#=house' --route 'shop/+/orders=orders'

        wirelake lake land --url http://127.0.0.1:7780 --table lake/messages \\
            --schema 'house/+/temp=celsius double NOT NULL, unit string'
    """
    if once and every:
        fail("--once and --every exclude each other", USAGE)
    pause = 0.0 if every == "0" else _seconds("--every", every or "2s")
    schemas = _schemas(schema)
    url = _log_of(url, token)
    with _spark("wirelake lake land", master) as spark, _told_to_stop() as stop:
        from wirelake.spark import land as job

        options = job.Options(
            url=url,
            table=table,
            subscribe=subscribe,
            token=token,
            format=format,
            once=once,
            every=pause,
            partition_by=_columns(partition_by),
            compact=compact,
            skip_lost=skip_lost,
            go_on=on_conflict is OnConflict.CONTINUE,
            query=query,
            storage=_storage(storage),
            routes=tuple(_route(one) for one in route or ()),
            schemas=schemas,
        )
        landed = 0

        def told(step: job.Step) -> None:
            nonlocal landed
            landed += step.rows
            if as_json:
                write_object({"batch": step.batch, "rows": step.rows, "lag": step.lag})
            else:
                typer.echo(f"{landed} rows landed, {step.lag} to go")

        rows = job.land(spark, options, told, stop.is_set)
    if not as_json:
        typer.echo(f"{rows} rows in {table}")


@app.command()
def infer(
    filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="The addresses to look at, as in `a/+/c`.")
    ],
    url: Annotated[
        str, typer.Option(metavar="URL", help="The broker's HTTP; its log is looked at.")
    ] = "",
    table: Annotated[str, typer.Option("--table", metavar="DIR", help="A table instead.")] = "",
    most: Annotated[
        int, typer.Option(min=1, metavar="N", help="Messages to look at, the newest first.")
    ] = 10_000,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the schema to this file, too.")
    ] = None,
    storage: Storage = None,
    token: Token = "",
    as_json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False,
) -> None:
    """Say what payloads look like, and propose a schema for them.

    What is printed last is for `--schema` of `lake land` and `lake decode`. It needs no Spark.

    Examples:

        wirelake lake infer 'house/+/temp' --url http://127.0.0.1:7780

        wirelake lake infer 'house/+/temp' --table lake/messages --out temp.toml
    """
    if bool(url) == bool(table):
        fail("one of --url and --table says where to look", USAGE)
    _check_filter(filter, "FILTER")
    with errors_in_one_line():
        from wirelake.spark import infer as job
        from wirelake.spark.log_client import LogClient
        from wirelake.spark.options import address_of

        payloads = (
            job.from_table(_place(table, storage), filter)
            if table
            else job.from_log(
                LogClient(address_of({"url": _log_of(url, token)}), token, patience=0), filter
            )
        )
        found = job.infer(payloads, most)
    schema = found.schema
    if out is not None:
        if schema is None:
            fail("no file was written: there is neither JSON nor CBOR with fields")
        write_file(out, schema.as_toml())
    if as_json:
        write_object(found.as_json())
        return
    kinds = ", ".join(f"{found.kinds[kind]} {kind.label}" for kind in job.Kind)
    typer.echo(f"{found.messages} messages: {kinds}")
    if schema is None:
        return
    shown = plain_table()
    for name in ("field", "type", "present", "example"):
        shown.add_column(name)
    for path, one in job.walk(found.fields):
        cells = (path, job.describe(one), str(one.present), one.example)
        shown.add_row(*(escape(printable(cell)) for cell in cells))
    wide_console().print(shown)
    typer.echo(f"--schema {shlex.quote(f'{filter}={schema.as_ddl()}')}")


@app.command()
def replay(
    table: Table,
    to: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=lambda ctx, given: choose(ctx, given).url,
            help="The broker and the dialect: kobold-2://host:7702. [default: the context's]",
        ),
    ] = "",
    filter: Annotated[str, typer.Option(help="Only addresses that match, as in `a/+/c`.")] = "",
    since: Annotated[str, typer.Option("--from", help="Only from this time on (UTC).")] = "",
    until: Annotated[str, typer.Option("--until", help="Only before this time (UTC).")] = "",
    speed: Annotated[
        str, typer.Option(metavar="N", help="Times the original pace; `max` is flat out.")
    ] = "1",
    storage: Storage = None,
    master: Master = "",
    token: Token = "",
    as_json: AsJson = False,
) -> None:
    """Publish the messages of a table to a broker again, in their order.

    Examples:

        wirelake lake replay --table lake/messages --to kobold-2://localhost --speed 10

        wirelake lake replay --table lake/messages --to tmq://localhost --filter 'house/#' \\
            --from 2026-01-31 --speed max
    """
    times = _time("--from", since), _time("--until", until)
    _check_filter(filter)
    with (
        _spark("wirelake lake replay", master) as spark,
        Progress(
            *Progress.get_default_columns(), console=Console(stderr=True), transient=True
        ) as bar,
    ):
        from wirelake.client.url import parse
        from wirelake.spark import replay as job

        parse(to, token=token)  # what is wrong with it is told before Spark has worked for it
        options = job.Options(
            table=_place(table, storage),
            to=to,
            filter=filter,
            since=times[0],
            until=times[1],
            speed=0.0 if speed == "max" else _speed(speed),
            token=token,
        )
        shown = bar.add_task("replay", total=None)
        done = job.replay(
            spark, options, lambda step: bar.update(shown, completed=step.sent, total=step.total)
        )
    if as_json:
        write_object({"published": done.sent, "skipped": done.skipped})
        return
    typer.echo(f"{done.sent} messages published")
    if done.skipped:
        typer.echo(f"{done.skipped} messages cannot be said in this dialect", err=True)


@app.command()
def sql(
    statement: Annotated[
        str, typer.Argument(metavar="SQL", help="Over `lake`, `log` or both; - is stdin.")
    ],
    table: Annotated[
        str, typer.Option("--table", metavar="DIR", help="The table, as `lake`.")
    ] = "",
    url: Annotated[
        str, typer.Option(metavar="URL", help="The broker's HTTP; its log, as `log`.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a row.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="With a line of names.")] = False,
    version: Annotated[
        int | None, typer.Option(min=0, help="The table as it was at this version.")
    ] = None,
    as_of: Annotated[
        str, typer.Option(metavar="TIME", help="The table as it was at this time (UTC).")
    ] = "",
    storage: Storage = None,
    master: Master = "",
    token: Token = "",
) -> None:
    """Ask a question of a table, and of a broker's log as it is now.

    Examples:

        wirelake lake sql "SELECT address, count(*) FROM lake GROUP BY 1" --table lake/messages

        wirelake lake sql "SELECT * FROM log WHERE address = 'house/door'" --url http://127.0.0.1:7780

        wirelake lake sql "SELECT count(*) FROM lake" --table lake/messages --as-of 2026-01-31
    """
    if as_json and as_csv:
        fail("--json and --csv exclude each other", USAGE)
    if version is not None and as_of:
        fail("--version and --as-of exclude each other", USAGE)
    moment = _time("--as-of", as_of)
    if statement == STDIN:
        with open_input(None) as source:
            statement = source.read().decode(errors="replace")
    url = _log_of(url, token) if url else ""
    with _spark("wirelake lake sql", master) as spark:
        from wirelake.spark import sql as job
        from wirelake.spark.session import progress, spark_errors

        found = job.query(
            spark,
            statement,
            lake=_place(table, storage) if table else "",
            version=version,
            as_of=moment,
            url=url,
            token=token,
        )
        with spark_errors():
            if as_json:
                for row in found.toLocalIterator():
                    told: dict[str, object] = {}
                    for name, value in zip(found.columns, row, strict=True):
                        if isinstance(value, bytes | bytearray):
                            second = "base64" if name == "payload" else f"{name}_base64"
                            told |= as_text_and_base64(bytes(value), name, second)
                        else:
                            told[name] = job.for_programs(value)
                    write_object(told)
            elif as_csv:
                lines = csv.writer(sys.stdout)
                lines.writerow(found.columns)
                lines.writerows(map(job.for_people, row) for row in found.toLocalIterator())
            else:
                shown = plain_table()
                for name in found.columns:
                    shown.add_column(printable(name))
                with progress(spark, "sql"):
                    rows = found.collect()
                for row in rows:
                    shown.add_row(*(escape(printable(job.for_people(value))) for value in row))
                wide_console().print(shown)


@app.command()
def compact(
    table: Table,
    sort: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Sort the rows of each file, as in address.")
    ] = "",
    z_order: Annotated[
        bool, typer.Option("--z-order", help="Sort along a curve of address and time.")
    ] = False,
    size: Annotated[int, typer.Option(min=1, metavar="MIB", help="How large files become.")] = 256,
    storage: Storage = None,
    master: Master = "",
    as_json: AsJson = False,
) -> None:
    """Make few large files of the small ones of a table, in one commit.

    Readers and landing go on meanwhile. With --sort or --z-order all files are written anew.
    `lake land` compacts as it goes; this does the rest. Old files stay until `lake vacuum`.

    Examples:

        wirelake lake compact --table lake/messages

        wirelake lake compact --table lake/messages --z-order
    """
    if sort and z_order:
        fail("--sort and --z-order exclude each other", USAGE)
    with _spark("wirelake lake compact", master) as spark:
        from wirelake.spark import compaction as job
        from wirelake.spark.commits import Table as DeltaTable
        from wirelake.spark.session import progress

        order = job.Z_ORDER if z_order else job.Order(_columns(sort))
        opened = DeltaTable(_place(table, storage))
        groups = job.all_together(opened.files(), size << 20, whole=bool(order.columns))
        with progress(spark, "compact"):
            gone, come = job.compact(spark, opened, groups, order, size << 20)
    if as_json:
        write_object({"before": gone, "after": come})
    else:
        typer.echo(f"{gone} files became {come}")


@app.command()
def vacuum(
    table: Table,
    keep: Annotated[
        str,
        typer.Option(metavar="TIME", help="Keep what versions of this time need, as in 48h."),
    ] = "7d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be deleted, and delete nothing.")
    ] = False,
    storage: Storage = None,
    as_json: AsJson = False,
) -> None:
    """Delete files that no version of the table needs any more, and old files of its log.

    These are files that were compacted or overwritten, and those that a killed task has left. Who
    still reads an older version than is kept fails, so it is an hour at least.

    Examples:

        wirelake lake vacuum --table lake/messages

        wirelake lake vacuum --table lake/messages --keep 24h --dry-run
    """
    hours = _seconds("--keep", keep) / 3600
    if hours < 1:
        fail("--keep: an hour is the least, as somebody may be reading or landing", USAGE)
    with _with_spark():
        from wirelake.spark.commits import Table as DeltaTable

        place = _place(table, storage)
        gone = DeltaTable(place).vacuum(math.ceil(hours), dry_run=dry_run)
    if as_json:
        write_object({"files": list(gone), "deleted": 0 if dry_run else len(gone)})
        return
    if dry_run:
        for name in gone:
            typer.echo(name)
    typer.echo(f"{len(gone)} files {'would be' if dry_run else 'were'} deleted")


@contextmanager
def _spark(name: str, master: str) -> Iterator[SparkSession]:
    """A Spark session for one job; its errors end the process."""
    with _with_spark():
        from wirelake.spark import session

        spark = session.start(name, master)
        try:
            yield spark
        finally:
            spark.stop()


@contextmanager
def _with_spark() -> Iterator[None]:
    """Tell errors in one line; one of them is that Spark is not installed."""
    try:
        with errors_in_one_line():
            yield
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("pyspark", "py4j", "deltalake")):
            raise
        fail("this needs Spark: pip install 'wirelake[spark]'")


@contextmanager
def _kept(files: list[Path]) -> Iterator[list[str]]:
    """The files to read; standard input is one for as long, since every task reads it."""
    with ExitStack() as stack:
        paths = []
        for file in files:
            if file == Path(STDIN):
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="wirelake-"))
                file = Path(folder) / "stdin"
                with open_input(None) as source, file.open("wb") as kept:
                    shutil.copyfileobj(source, kept)
            paths.append(str(file))
        yield paths


def _log_of(url: str, token: str) -> str:
    """The URL of a broker's HTTP, whichever of its URLs is given; errors end the process."""
    if url.startswith(HTTP):
        return url
    return asked(url, token, ANSWER, lambda http: http.url)


def _place(table: str, storage: list[str] | None) -> Place:
    """A table's location, with the options to reach it."""
    from wirelake.spark.storage import Storage as Place

    return Place.of(table, _storage(storage))


def _storage(given: list[str] | None) -> dict[str, str]:
    """The values of `--storage` as a mapping."""
    options = {}
    for one in given or ():
        name, equals, value = one.partition("=")
        if not (name and equals):
            fail(f"--storage: {one!r} is not of the form NAME=VALUE", USAGE)
        options[name] = value
    return options


def _route(text: str) -> tuple[str, str]:
    """Split FILTER=NAME."""
    filter, equals, name = text.rpartition("=")
    if not (filter and equals and name):
        fail(f"--route: {text!r} is not of the form FILTER=NAME", USAGE)
    return filter, name


def _schemas(given: list[str] | None) -> tuple[Typed, ...]:
    """Schemas of payloads, checked before Spark is started."""
    if not given:
        return ()
    with errors_in_one_line():
        from wirelake.spark.typed import Typed, table_schema

        found = tuple(Typed.parse(one) for one in given)
        table_schema(found)
    return found


def _columns(text: str) -> tuple[str, ...]:
    """Split column names at commas; `none` means no columns."""
    return () if text in ("", "none") else tuple(one.strip() for one in text.split(","))


def _check_filter(filter: str, option: str = "--filter") -> None:
    try:
        if filter:
            check_filter(filter)
    except RefusedError as error:
        fail(f"{option}: {error.text}", USAGE)


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM and Ctrl-C set."""
    stop = threading.Event()
    signals = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(one, lambda *_: stop.set()) for one in signals]
    try:
        yield stop
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


def _seconds(option: str, text: str) -> float:
    """Parse a duration such as 500ms, 10s, 5m, 1h or 7d."""
    units = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    found = re.fullmatch(r"([0-9]{1,9})(ms|s|m|h|d)", text)
    if found is None or not int(found[1]):
        fail(f"{option}: {text!r} is no time, such as 500ms, 10s, 5m, 1h or 7d", USAGE)
    return int(found[1]) * units[found[2]]


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        fail(f"--speed: {text!r} is neither a number above 0 nor max", USAGE)
    return speed


def _time(option: str, text: str) -> datetime | None:
    """Parse an ISO 8601 time, in UTC unless it has a zone; None if it is empty."""
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option}: {text!r} is no time, such as 2026-01-31 or 2026-01-31T12:00", USAGE)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _micros(option: str, text: str) -> int:
    time = _time(option, text)
    return 0 if time is None else round(time.timestamp() * 1_000_000)
