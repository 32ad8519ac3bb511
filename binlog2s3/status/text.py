"""A `Status` as text for people: a page for one source, a table for many, a line for each.

Pure, except for writing to the given page. What is not known is called `unknown`. A lag is rounded
up, and the time that the source still keeps binlogs is rounded down.
"""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime

from binlog2s3.archive.writers import Position
from binlog2s3.formatting import (
    UNKNOWN,
    count_text,
    duration_text,
    gtids_text,
    moment_text,
    short_text,
    size_text,
)
from binlog2s3.output import Column, Field, Plain, Table
from binlog2s3.status.model import (
    RISING,
    WELL,
    ChildStatus,
    Lag,
    Purge,
    Severity,
    SpoolStatus,
    Status,
    StoreStatus,
    UploadStatus,
    worst,
)

LABEL = 13
_GAPS = 3
_STALE_SECONDS = 5.0
_BAD, _WARN, _WELL = "bold red", "yellow", "green"
_STYLES: dict[Severity, str] = {"critical": _BAD, "unknown": _BAD, "warning": _WARN, "ok": _WELL}
_COLUMNS = (
    Column(name="source", least=12),
    Column(name="state", least=11),
    Column(name="covered until", least=len("2026-01-02")),
    Column(name="heartbeat", right=True),
    Column(name="lag", right=True),
    Column(name="gaps", right=True),
    Column(name="purge", right=True),
    Column(name="proved", right=True),
)


def age_text(moment: datetime | None, now: datetime) -> str:
    """The time since that moment; 0 s if it is in the future."""
    return UNKNOWN if moment is None else duration_text((now - moment).total_seconds())


def place_text(position: Position | None) -> str:
    """A position in a binlog."""
    return f"{position.binlog}:{position.offset}" if position else UNKNOWN


def but_for_gaps(status: Status) -> str:
    """The exception to what is in the bucket until a time: what is in a gap is nowhere."""
    count = len(status.history.gaps) if status.history is not None else 0
    return f", but for {count_text(count, 'gap')}" if count else ""


def window_end(status: Status) -> datetime | None:
    """The last moment that a recovery reaches now; None if it is unknown."""
    return status.covered_until or status.latest


def style_of(status: Status) -> str:
    """Red if critical or unknown, yellow for a warning, else green."""
    return _STYLES[status.severity]


# One


def head_of(status: Status) -> str:
    """The most important facts in one line."""
    if status.state == "standby" and status.writer is not None:
        return f"{status.source}  standby  the writer is on {status.writer.host}"
    covered = (
        f"everything committed until {moment_text(status.covered_until)} is in the bucket"
        f"{but_for_gaps(status)}"
        if status.covered_until
        else "how much is in the bucket is unknown"
    )
    return f"{status.source}  {status.state}{state_age(status)}  {covered}"


def state_age(status: Status) -> str:
    """How old the state is, if it is from the writer's last heartbeat."""
    beat = status.writer.heartbeat_at if status.writer else None
    if status.seen_from != "bucket" or beat is None or status.state not in WELL:
        return ""
    age = (status.at - beat).total_seconds()
    return f" ({duration_text(age)} ago)" if age >= _STALE_SECONDS else ""


def print_head(status: Status, page: Plain) -> None:
    """Print the head line and the troubles."""
    page.line(head_of(status), style_of(status))
    for trouble in status.all_troubles:
        style = _BAD if trouble.level == "critical" else _WARN
        page.field(f"  {trouble.level}", f"{trouble.text} [{trouble.code}]", LABEL, style)
        if trouble.hint:
            page.line(f"hint: {trouble.hint}", indent=LABEL)


def print_status(status: Status, page: Plain, *, now: datetime, why: str = "") -> None:
    """The page of one stream; `why` it was not the streamer that was asked."""
    print_head(status, page)
    page.line("")
    page.fields([*fields_of(status), *seen_of(status, now, why)], LABEL)


def fields_of(status: Status) -> Iterator[Field]:
    """Everything that is known, the most important first."""
    if status.state == "standby" and status.seen_from == "daemon":
        yield from _source_of(status)
        yield _writer_of(status)
        yield from _standbys_of(status)
        return
    yield lag_of(status.lag)
    if status.flush_interval == 0:
        yield "", "a binlog is durable only when it is closed (--flush-interval 0)", _WARN
    elif status.uploads and status.uploads.stretched:
        seconds = status.flush_interval or 0
        yield "", f"flushes every {seconds:g} s only: the link to the store is slow", _WARN
    yield "durable", place_text(status.durable), ""
    if status.durable and status.durable.gtid_set:
        yield "", f"GTIDs {gtids_text(status.durable.gtid_set)}", ""
    yield from _source_of(status)
    yield spool_of(status.spool)
    yield uploads_of(status.uploads)
    yield from _child_of(status.child, status.at)
    yield from _store_of(status.store, status.at)
    yield rates_of(status)
    yield _totals_of(status)
    yield from _purge_of(status.purge)
    yield from _history_of(status)
    yield from _backups_of(status)
    yield from _drill_of(status)
    yield _writer_of(status)
    yield from _standbys_of(status)


def lag_of(lag: Lag) -> Field:
    """What is committed but not durable."""
    known = (lag.seconds, lag.bytes, lag.transactions)
    if known == (None, None, None):
        return "lag", UNKNOWN, ""
    if not any(known) and None not in known:
        return "lag", "none: 0 s, 0 B, 0 transactions", ""
    seconds = "seconds unknown"
    if lag.seconds is not None:
        seconds = f"at most {duration_text(lag.seconds, up=True)}"
    least = "at least " if lag.at_least else ""
    size = "bytes unknown" if lag.bytes is None else f"{least}{size_text(lag.bytes)}"
    count = "transactions unknown"
    if lag.transactions is not None:
        count = f"{least}{count_text(lag.transactions, 'transaction')}"
    return "lag", f"{seconds}, {size}, {count}", ""


def _source_of(status: Status) -> Iterator[Field]:
    server = status.server
    asked = f", asked {age_text(server.asked_at, status.at)} ago" if server.asked_at else ""
    durable, position = status.durable, server.position
    is_passed = (
        durable is not None
        and position is not None
        and durable.binlog == position.binlog
        and (durable.offset, status.lag.bytes or 0) > (position.offset, 0)
    )
    later = "; what was read since then counts, too" if asked and is_passed else ""
    yield "source", place_text(position) + asked + later, ""
    facts = [server.flavour or "", server.uuid]
    if server.read_only:
        facts.append("read_only")
    if server.silent_seconds is not None and server.silent_seconds >= _STALE_SECONDS:
        facts.append(f"silent for {duration_text(server.silent_seconds)}")
    if any(facts):
        yield "", ", ".join(filter(None, facts)), ""
    if server.error:
        yield "", server.error, _BAD


def spool_of(spool: SpoolStatus | None) -> Field:
    """The size of the spool, and its limits."""
    if spool is None:
        return "spool", UNKNOWN, ""
    most = ", no limit" if spool.max_bytes is None else f" of {size_text(spool.max_bytes)}"
    text = (
        f"{size_text(spool.bytes)}{most}; {size_text(spool.free_bytes)} free on its disk, of which "
        f"{size_text(spool.min_free_bytes)} are not used"
    )
    if spool.paused:
        return "spool", f"NO ROOM, nothing is read: {text}", _BAD
    return "spool", text, ""


def uploads_of(uploads: UploadStatus | None) -> Field:
    """What is being uploaded."""
    if uploads is None:
        return "uploads", UNKNOWN, ""
    parts = [f"{count_text(uploads.binlogs, 'binlog')} in the spool"]
    if uploads.closed_binlogs:
        parts[0] += f", {uploads.closed_binlogs} of them closed"
    flying = count_text(uploads.requests_in_flight, "request")
    parts.append(f"{flying} in flight, {count_text(uploads.parts_in_flight, 'part')} among them")
    if uploads.open_uploads:
        parts.append(count_text(uploads.open_uploads, "open upload"))
    parts.append(count_text(uploads.chunks, "chunk"))
    if uploads.unsaved_bytes:
        parts.append(f"{size_text(uploads.unsaved_bytes)} not durable yet")
    return "uploads", "; ".join(parts), ""


def _child_of(child: ChildStatus | None, at: datetime) -> Iterator[Field]:
    if child is None:
        yield "mysqlbinlog", UNKNOWN, ""
        return
    running = f"pid {child.pid}" if child.pid is not None else "does not run"
    yield "mysqlbinlog", f"{running}, restarted {count_text(child.restarts, 'time')}", ""
    if child.last_error:
        yield "", f"{age_text(child.last_error_at, at)} ago: {child.last_error}", ""


def _store_of(store: StoreStatus | None, at: datetime) -> Iterator[Field]:
    if store is None:
        yield "store", UNKNOWN, ""
        return
    last = f"{age_text(store.last_success_at, at)} ago" if store.last_success_at else UNKNOWN
    yield "store", f"last success {last}; {count_text(store.errors, 'error')}", ""
    if store.last_error:
        yield "", f"{age_text(store.last_error_at, at)} ago: {store.last_error}", ""


def rates_of(status: Status) -> Field:
    """The throughput per second."""
    rates = status.rates
    if rates is None:
        return "rates", UNKNOWN, ""
    text = (
        f"read {size_text(rates.read_bytes)}/s, durable {size_text(rates.durable_bytes)}/s, "
        f"{rates.transactions:,.0f} transactions/s "
        f"(last {duration_text(rates.window_seconds)})"
    )
    return "rates", text, ""


def _totals_of(status: Status) -> Field:
    totals = status.totals
    if totals is None:
        return "since start", UNKNOWN, ""
    text = (
        f"read {size_text(totals.read_bytes)}, sent {size_text(totals.sent_bytes)}, "
        f"durable {size_text(totals.durable_bytes)}, "
        f"{count_text(totals.transactions, 'transaction')}, "
        f"{count_text(totals.archived_binlogs, 'binlog')} archived"
    )
    return "since start", text, ""


def _purge_of(purge: Purge) -> Iterator[Field]:
    if purge.expires is False:
        yield "purge", "the source deletes no binlogs by itself", ""
    elif purge.seconds is None:
        yield "purge", "how long the source keeps what is not durable is unknown", ""
    elif purge.seconds > 0:
        keeps = duration_text(purge.seconds)
        yield "purge", f"the source keeps what is not durable for at least {keeps}", ""
    else:
        yield "purge", "the source may delete what is not durable at any time", _BAD
    if purge.statement:
        yield "", f"safe: {purge.statement}", ""
        yield "", "(replicas and backups may still need what that deletes)", ""


def _backups_of(status: Status) -> Iterator[Field]:
    backups = status.backups
    if backups is None:
        return
    why = backups.window_why or "the bucket was not looked at"
    style = _WARN if backups.window_why else ""
    if not backups.count and not backups.window_known:
        yield "backups", f"none known: {why}", style
        return
    if not backups.count:
        yield "backups", "none: `binlog2s3 backup run` makes one, `backup add` registers one", ""
        return
    newest = f"newest {age_text(backups.newest_at, status.at)} ago" if backups.newest_at else ""
    yield "backups", f"{count_text(backups.count, 'base backup')}, {newest}", ""
    if not backups.window_known:
        yield "", f"recovery window unknown: {why}", style
    elif backups.window_from is None:
        why = f": {backups.window_why}" if backups.window_why else ""
        yield "", f"no base backup reaches now without a gap{why}", _WARN
        yield "", "`binlog2s3 backup list` shows what each of them reaches", ""
    else:
        until = moment_text(window_end(status))
        yield "", f"recovery window from {moment_text(backups.window_from)} to {until}", ""


def _drill_of(status: Status) -> Iterator[Field]:
    drill = status.drill
    if drill is None:
        return
    if drill.proven_at is None:
        yield "last proved", "never: no drill has succeeded", _WARN
        return
    until = f", up to {moment_text(drill.proven_until)}" if drill.proven_until else ""
    took = f", in {duration_text(drill.proven_seconds)}" if drill.proven_seconds else ""
    yield "last proved", f"{moment_text(drill.proven_at)}{until}{took}", ""
    if drill.on_trust:
        yield "", "nothing shows that the registered base backup was restored there", _WARN
    for doubt in drill.doubts:
        yield "", f"but for a doubt: {doubt}", _WARN


def _history_of(status: Status) -> Iterator[Field]:
    history = status.history
    if history is None:
        yield "history", UNKNOWN, ""
        return
    counts = f"{count_text(history.lineages, 'lineage')}, {count_text(len(history.gaps), 'gap')}"
    if not history.complete:
        counts += " (only the newest binlogs were looked for: `binlog2s3 verify` looks for all)"
    yield "history", counts, _WARN if history.gaps else ""
    if history.earliest and status.latest and status.latest < history.earliest:
        yield "", f"nothing is reachable yet after the gap, {moment_text(history.earliest)}", _WARN
    else:
        reach = f"from {moment_text(history.earliest)} to {moment_text(status.latest)}"
        yield "", f"reachable without a gap {reach}", ""
    texts = [trouble.text for trouble in status.all_troubles if trouble.code == "gap"]
    for gap in history.gaps[-_GAPS:]:
        if any(text.startswith(gap.words) for text in texts):
            continue
        yield "", f"GAP ({gap.join}) at {gap.lineage}: {gap.text}", _WARN
    if len(history.gaps) > _GAPS:
        yield "", f"and {len(history.gaps) - _GAPS} more before: `binlog2s3 list`", _WARN
    if status.lineage:
        yield "", f"lineage {status.lineage}", ""


def _writer_of(status: Status) -> Field:
    writer = status.writer
    if writer is None:
        return "writer", UNKNOWN, ""
    text = f"{writer.host}, pid {writer.pid}, version {writer.version}"
    return "writer", f"{text}, since {moment_text(writer.since)}", ""


def _standbys_of(status: Status) -> Iterator[Field]:
    name = "standby"
    for standby in status.standbys or ():
        text = f"{standby.host}, pid {standby.pid}, version {standby.version}"
        beat = age_text(standby.heartbeat_at, status.at)
        yield name, f"{text}, since {moment_text(standby.since)}, heartbeat {beat} ago", ""
        if standby.unsaved_bytes:
            size = size_text(standby.unsaved_bytes)
            yield "", f"its spool has {size} that the bucket may not have", _WARN
        name = ""


def seen_of(status: Status, now: datetime, why: str = "") -> Iterator[Field]:
    """Where this status comes from, and how old it is."""
    beat = status.writer.heartbeat_at if status.writer else None
    heartbeat = f"heartbeat {age_text(beat, status.at)} ago"
    old = (now - status.at).total_seconds() >= _STALE_SECONDS
    ago = f", {age_text(status.at, now)} ago" if old else ""
    style = _WARN if old else ""
    if status.seen_from == "daemon":
        in_bucket = heartbeat if beat else "no heartbeat in the bucket known"
        yield "seen from", f"the streamer itself{ago}; {in_bucket}", style
        return
    yield "seen from", f"{status.target}{ago}; {heartbeat}", style
    if status.spool is not None and beat is not None:
        yield "", "the source, spool, uploads, mysqlbinlog, store and rates are as of that", ""
        yield "", "heartbeat; the seconds of the lag count on from it", ""
    if why:
        yield "", f"not from the streamer itself: {why}", ""


# Many


def counts_of(statuses: Sequence[Status]) -> str:
    """How many sources have which severity."""
    severities = [status.severity for status in statuses if not status.ignored]
    counts = [
        f"{severities.count(severity)} {'well' if severity == 'ok' else severity}"
        for severity in reversed(RISING)
        if severity in severities
    ]
    ignored = len(statuses) - len(severities)
    counts += [f"{ignored} ignored"] if ignored else []
    return f"{count_text(len(statuses), 'source')}: {', '.join(counts)}" if counts else "no sources"


def cells_of(status: Status) -> tuple[str, ...]:
    """The cells of a source's row."""
    beat = status.writer.heartbeat_at if status.writer else None
    lag, purge, history = status.lag.seconds, status.purge.seconds, status.history
    return (
        status.source,
        "ignored" if status.ignored else status.state,
        moment_text(status.covered_until),
        UNKNOWN if beat is None else short_text((status.at - beat).total_seconds()),
        UNKNOWN if lag is None else short_text(lag, up=True),
        UNKNOWN if history is None else str(len(history.gaps)),
        UNKNOWN if purge is None else short_text(purge),
        _proven_text(status),
    )


def _proven_text(status: Status) -> str:
    """How long ago a drill last proved a recovery; `-` if there was no drill."""
    if status.drill is None:
        return UNKNOWN if status.history is None else "-"
    proven_at = status.drill.proven_at
    return "never" if proven_at is None else short_text((status.at - proven_at).total_seconds())


def print_table(statuses: Sequence[Status], page: Plain, *, target: str, now: datetime) -> None:
    """Print a row for each, with its troubles below, in the given order."""
    style = _STYLES[worst([status.severity for status in statuses])]
    page.line(f"{target}  {moment_text(now)}  {counts_of(statuses)}", style)
    page.line("")
    rows = [cells_of(status) for status in statuses]
    table = Table(page, _COLUMNS, rows, head=2)
    for status, cells in zip(statuses, rows, strict=True):
        table.row(cells, [style_of(status)] * 2)
        for trouble in status.all_troubles:
            style = _BAD if trouble.level == "critical" else _WARN
            page.line(f"{trouble.level}: {trouble.text} [{trouble.code}]", style, indent=4)


# A line each


def line_of(status: Status, now: datetime) -> str:
    """One stream at one moment, as one line of words without spaces in them."""
    spool, uploads, rates = status.spool, status.uploads, status.rates
    lag = status.lag.seconds
    words = {
        "lag": _seconds_word(lag),
        "read": UNKNOWN if rates is None else f"{size_text(rates.read_bytes, '')}/s",
        "durable": place_text(status.durable),
        "parts": UNKNOWN if uploads is None else str(uploads.parts_in_flight),
        "spool": UNKNOWN if spool is None else size_text(spool.bytes, ""),
    }
    if troubles := status.all_troubles:
        words["troubles"] = ",".join(f"{trouble.level}:{trouble.code}" for trouble in troubles)
    if status.seen_from == "bucket":
        words["from"] = "bucket"
    parts = [moment_text(now), status.source, status.state]
    parts += [f"{name}={value}" for name, value in words.items()]
    return " ".join("-".join(word.split()) for word in parts)


def _seconds_word(seconds: float | None) -> str:
    """Seconds, rounded up to tenths."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    return f"{math.ceil(round(seconds * 10, 6)) / 10:.10g}s"


def line_of_all(statuses: Sequence[Status], now: datetime) -> str:
    """All sources in one line: counts by severity, the greatest lag, the worst sources."""
    severities = [status.severity for status in statuses]
    lags = [status.lag.seconds for status in statuses if status.lag.seconds is not None]
    bad = [stream.source for stream, its in zip(statuses, severities, strict=True) if its != "ok"]
    words = [
        moment_text(now),
        f"sources={len(statuses)}",
        f"critical={severities.count('critical')}",
        f"unknown={severities.count('unknown')}",
        f"warning={severities.count('warning')}",
        f"lag={_seconds_word(max(lags, default=None))}",
    ]
    words += [f"worst={','.join(bad[:5])}"] if bad else []
    return " ".join(words)
