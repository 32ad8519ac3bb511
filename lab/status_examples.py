"""What `status` prints for streams that were made up: the examples of docs/guides/look.md.

`lab.reference` writes them there, and a test compares.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO

from rich.console import Console

from binlog2s3.archive.writers import Position
from binlog2s3.binlog.names import BinlogName
from binlog2s3.cli.status_watch import Course, Observation, footer_of, print_screen
from binlog2s3.output import Coloured, Picture, Plain
from binlog2s3.status.model import (
    ChildStatus,
    DrillStatus,
    Gap,
    HistoryStatus,
    Lag,
    Purge,
    Rates,
    SourceStatus,
    SpoolStatus,
    Status,
    StoreStatus,
    Totals,
    Trouble,
    UploadStatus,
    WriterStatus,
)
from binlog2s3.status.text import line_of, print_status, print_table

NOW = datetime(2026, 1, 2, 12, 3, 30, tzinfo=UTC)
TARGET = "s3://acme-binlogs/prod"
_WIDTH = 92
_UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_BINLOG = BinlogName("mysql-bin", 42)
_MIB = 1 << 20


def _ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


IDLE = Status(
    source="orders-primary",
    target=TARGET,
    seen_from="daemon",
    at=_ago(0.4),
    state="idle",
    writer=WriterStatus(
        host="db1",
        pid=4711,
        version="0.3.0",
        since=_ago(2 * 86400),
        generation=3,
        heartbeat_at=_ago(12),
    ),
    server=SourceStatus(
        uuid=_UUID,
        flavour="mysql",
        position=Position(binlog=_BINLOG, offset=1_234_567, gtid_set=f"{_UUID}:1-48213"),
        asked_at=_ago(2),
        silent_seconds=1.6,
        read_only=False,
    ),
    lineage="20251230T093446Z-3e11fa47-3cb9",
    durable=Position(binlog=_BINLOG, offset=1_234_567, gtid_set=f"{_UUID}:1-48213"),
    covered_until=_ago(2.3),
    latest=_ago(2.3),
    lag=Lag(bytes=0, transactions=0, seconds=0.0),
    flush_interval=1.0,
    spool=SpoolStatus(
        directory="/var/lib/binlog2s3",
        bytes=1_234_567,
        free_bytes=93 << 30,
        max_bytes=10 << 30,
        min_free_bytes=5 << 30,
    ),
    uploads=UploadStatus(binlogs=1, chunks=17),
    child=ChildStatus(pid=4719, restarts=1, last_error="lost connection", last_error_at=_ago(9000)),
    store=StoreStatus(last_success_at=_ago(2.6), errors=0),
    totals=Totals(
        read_bytes=5_400 * _MIB,
        sent_bytes=5_900 * _MIB,
        durable_bytes=5_400 * _MIB,
        transactions=48_201,
        archived_binlogs=41,
    ),
    rates=Rates(window_seconds=15.0, read_bytes=0.0, durable_bytes=0.0, transactions=0.0),
    purge=Purge(
        expire_seconds=30 * 86400.0,
        seconds=30 * 86400.0,
        newest_safe="mysql-bin.000041",
        to="mysql-bin.000042",
    ),
    history=HistoryStatus(lineages=1, earliest=_ago(3 * 86400 + 9000), complete=False),
    drill=DrillStatus(
        proven_at=_ago(8 * 3600 + 600),
        proven_until=_ago(8 * 3600 + 3000),
        proven_seconds=2460.0,
        last_at=_ago(8 * 3600 + 600),
    ),
)

STREAMING = replace(
    IDLE,
    state="streaming",
    durable=replace(IDLE.durable, offset=88_123_456) if IDLE.durable else None,
    server=replace(
        IDLE.server,
        position=Position(binlog=_BINLOG, offset=93_201_771, gtid_set=""),
    ),
    covered_until=_ago(1.6),
    lag=Lag(bytes=5_078_315, transactions=1_093, seconds=1.2),
    uploads=UploadStatus(
        binlogs=1, chunks=31, parts_in_flight=1, requests_in_flight=3, open_uploads=0
    ),
    rates=Rates(
        window_seconds=15.0,
        read_bytes=5.1 * _MIB,
        durable_bytes=5.0 * _MIB,
        transactions=812.0,
    ),
)

CATCHING_UP = replace(
    STREAMING,
    source="stock",
    seen_from="bucket",
    state="catching up",
    covered_until=_ago(41 * 60),
    lag=Lag(bytes=9 << 30, seconds=41 * 60.0),
    history=HistoryStatus(
        lineages=2,
        gaps=(
            Gap(
                lineage="20251230T093446Z-3e11fa47-3cb9",
                join="gap",
                text="mysql-bin.000017 to mysql-bin.000019",
                at=_ago(3 * 86400),
            ),
        ),
    ),
)

DEAD = replace(
    STREAMING,
    source="billing-eu",
    seen_from="bucket",
    state="dead",
    covered_until=_ago(3 * 3600 + 240),
    lag=Lag(seconds=3 * 3600 + 240.0),
    writer=replace(IDLE.writer, heartbeat_at=_ago(3 * 3600 + 250)) if IDLE.writer else None,
    purge=Purge(expire_seconds=86400.0, seconds=86400 - 3 * 3600 - 240.0),
    drill=None,
    troubles=(
        Trouble(
            code="dead",
            level="critical",
            text="the streamer on db7 (process 812) has not renewed its heartbeat for 3 h 4 min",
            hint="does it run, and does it reach the bucket? its log says more",
        ),
    ),
)


def _on_terminal(show: Callable[[Coloured], None]) -> str:
    out = StringIO()
    show(Coloured(Console(file=out, width=_WIDTH, color_system=None, _environ={})))
    return _fenced(out.getvalue())


def _fenced(text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    return "\n".join(["```", *lines, "```"])


def one() -> str:
    return _on_terminal(lambda page: print_status(IDLE, page, now=NOW))


def table() -> str:
    statuses = [replace(status, seen_from="bucket") for status in (DEAD, CATCHING_UP, IDLE)]
    return _on_terminal(lambda page: print_table(statuses, page, target=TARGET, now=NOW))


def screen() -> str:
    """`status --watch` on a terminal, after a minute."""
    course = Course()
    assert STREAMING.rates is not None
    busy = replace(STREAMING, rates=replace(STREAMING.rates, read_bytes=8.2 * _MIB))
    for at, status in ((0.0, busy), (60.0, STREAMING)):
        course.take(Observation(statuses=(status,)), at=at)
    out = StringIO()
    console = Console(file=out, width=_WIDTH, height=30, color_system=None, _environ={})
    picture = Picture(console)
    print_screen(course, picture, now=NOW, at=60.5)
    console.print(picture.shown(footer_of(2.0)))
    return _fenced(out.getvalue())


def line() -> str:
    """`status --watch` into a pipe."""
    out = StringIO()
    page = Plain(out)
    for number in range(2):
        page.line(line_of(STREAMING, NOW + timedelta(seconds=2 * number)))
    return _fenced(out.getvalue())
