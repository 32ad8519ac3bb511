"""What the page shows, as texts and as places on a timeline, made from what was read. Pure.

Judgements, reaches and gaps are in the words of the commands that print them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal

from binlog2s3 import __version__
from binlog2s3.archive.documents import EntryRow
from binlog2s3.archive.drills import Drill, DrillResult, UnreadDrill, last_of
from binlog2s3.archive.history import LinePart, line_of
from binlog2s3.archive.listing import LineageListing
from binlog2s3.formatting import (
    count_text,
    duration_text,
    moment_of,
    moment_text,
    size_text,
)
from binlog2s3.inspect.list import Notice, head_of, lines_of, notices_before, summary_of
from binlog2s3.output import Field
from binlog2s3.report.look import Looked
from binlog2s3.retain.backup import Row, reach_text
from binlog2s3.status.model import HistoryStatus, Severity, Status, Trouble, worst
from binlog2s3.status.text import (
    age_text,
    fields_of,
    lag_of,
    seen_of,
    window_end,
)
from binlog2s3.status.text import (
    head_of as status_head,
)

Kind = Literal[
    "window", "part", "archive", "kept", "left", "gap", "pruned",
    "join", "unknown", "floor", "damage", "backup", "unusable", "proved", "failed",
]  # fmt: skip
"""What a bar or a mark of a timeline stands for: its class in the page's styles."""
DAYS = 14
MOST_TRACKS = 12
MOST_ROWS = 60
MOST_NOTICES = 40
_LEAST_WIDTH = 0.4
_TICKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A stretch of time: where it begins, and how wide it is, in percent of the timeline."""

    begin: float
    width: float
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A moment: where it is, in percent of the timeline."""

    at: float
    kind: Kind
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A line of a timeline, below its name; `note`: what is to be said of it."""

    name: str
    note: str = ""
    bars: tuple[Bar, ...] = ()
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A time from left to right; `ticks` are texts at equal distances, the ends included."""

    title: str
    ticks: tuple[str, ...]
    tracks: tuple[Track, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What was archived on one day (UTC); `share` of the largest day, in percent.

    `waited`: the longest time from a binlog's end to its place in the archive, "" if unknown.
    """

    day: str
    share: float
    size: str
    binlogs: str
    transactions: str
    waited: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageRow:
    """One lineage, as `list` shows it. `notices`: what is missing or damaged."""

    name: str
    fields: tuple[Field, ...]
    summary: str
    notices: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupRow:
    """One registered base backup; `good`: it counts, and reaches now without a gap."""

    id: str
    label: str
    taken: str
    tool: str
    location: str
    since: str
    reaches: str
    drill: str
    good: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRow:
    """One drill, and what it has shown."""

    at: str
    proved: bool
    backup: str
    until: str
    took: str
    shown: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What can be recovered now: the first and the last moment, "" and `why` if nothing can."""

    first: str
    last: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One source."""

    source: str
    severity: Severity
    state: str
    head: str
    ignored: bool
    troubles: tuple[Trouble, ...]
    window: Window
    proved: str
    lag: str
    content: str
    backups_text: str
    timelines: tuple[Timeline, ...]
    gaps: tuple[str, ...]
    alarms: tuple[str, ...]
    days: tuple[Day, ...]
    backups: tuple[BackupRow, ...]
    drills: tuple[DrillRow, ...]
    lineages: tuple[LineageRow, ...]
    fields: tuple[Field, ...]
    notes: tuple[str, ...]
    older_gaps: str
    older_alarms: str
    older_backups: str
    older_lineages: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page: one source, or all below a target."""

    target: str
    at: str
    version: str
    severity: Severity
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def page_of(
    found: Sequence[Looked], target: str, *, now: datetime, notes: Sequence[str] = ()
) -> Page:
    """The page of these sources, in their order."""
    sections = tuple(_section(source, now) for source in found)
    return Page(
        target=target,
        at=moment_text(now),
        version=__version__,
        severity=worst([section.severity for section in sections]),
        sections=sections,
        notes=tuple(notes),
    )


def _section(found: Looked, now: datetime) -> Section:
    status = found.status
    gaps = status.history.gaps if status.history is not None else ()
    alarms = [
        notice.text for listed in found.lineages for notice in _notices(listed) if notice.alarm
    ]
    backups = found.backups[-MOST_ROWS:]
    return Section(
        source=status.source,
        severity=status.severity,
        state=status.state,
        head=status_head(status),
        ignored=status.ignored,
        troubles=status.all_troubles,
        window=_window(status),
        proved=_proved(status),
        lag=lag_of(status.lag)[1],
        content=_content(found),
        backups_text=_backups_text(status),
        timelines=tuple(_timelines(found, now)),
        gaps=tuple(gap.words for gap in gaps[-MOST_NOTICES:]),
        alarms=tuple(alarms[-MOST_NOTICES:]),
        older_gaps=_older(len(gaps) - MOST_NOTICES, "status --json"),
        older_alarms=_older(len(alarms) - MOST_NOTICES, "list"),
        days=_days(found.lineages, now),
        backups=tuple(_backup_row(row, found.drills) for row in reversed(backups)),
        drills=tuple(_drill_row(drill) for drill in found.drills),
        lineages=tuple(_lineage_row(lineage) for lineage in reversed(found.lineages[-MOST_ROWS:])),
        fields=() if status.ignored else (*fields_of(status), *seen_of(status, now)),
        notes=tuple(found.notes),
        older_backups=_older(len(found.backups) - MOST_ROWS, "backup list"),
        older_lineages=_older(len(found.lineages) - MOST_ROWS, "list"),
    )


# In words


def _older(count: int, command: str) -> str:
    """What is said of those that are not shown; "" if all are."""
    return f"{count:,} older ones: `binlog2s3 {command}`" if count > 0 else ""


def _window(status: Status) -> Window:
    backups = status.backups
    if backups is None or not backups.count:
        return Window(first="", last="", why="no base backup of the whole server is registered")
    if not backups.window_known:
        return Window(
            first="", last="", why=f"unknown: {backups.window_why or 'nobody has looked'}"
        )
    if backups.window_from is None:
        why = f": {backups.window_why}" if backups.window_why else ""
        return Window(first="", last="", why=f"no base backup reaches now without a gap{why}")
    until = moment_text(window_end(status))
    return Window(first=moment_text(backups.window_from), last=until, why="")


def _proved(status: Status) -> str:
    drill = status.drill
    if drill is None or drill.proven_at is None:
        return "never: no drill has succeeded"
    until = f", up to {moment_text(drill.proven_until)}" if drill.proven_until else ""
    trust = "; nothing shows that it restored the registered backup" if drill.on_trust else ""
    doubt = "".join(f"; but for a doubt: {doubt}" for doubt in drill.doubts)
    age = age_text(drill.proven_at, status.at)
    return f"{age} ago, {moment_text(drill.proven_at)}{until}{trust}{doubt}"


def _content(found: Looked) -> str:
    binlogs = [binlog for lineage in found.lineages for binlog in lineage.binlogs]
    size = size_text(sum(binlog.size for binlog in binlogs))
    lineages = count_text(len(found.lineages), "lineage")
    return f"{count_text(len(binlogs), 'binlog')}, {size}, {lineages}"


def _backups_text(status: Status) -> str:
    backups = status.backups
    if backups is None or not backups.count:
        return "none is registered"
    newest = f", the newest {age_text(backups.newest_at, status.at)} old"
    return f"{count_text(backups.count, 'base backup')}{newest if backups.newest_at else ''}"


def _backup_row(row: Row, drills: Sequence[Drill]) -> BackupRow:
    backup, (reach, *others) = row
    text = reach_text(reach)
    if not backup.counts:
        text = f"counts nowhere: {'; '.join(backup.defects)}"
    elif others:
        text += "".join(f"; or, along {other.lineage}, {reach_text(other)}" for other in others)
    tried = last_of(drills, backup)
    drill = ""
    if isinstance(tried, UnreadDrill):
        drill = f"cannot be read: that of {moment_text(tried.written_at)}"
    elif tried is not None:
        drill = f"{'proved' if tried.is_proved else 'failed'} {moment_text(tried.finished_at)}"
    return BackupRow(
        id=backup.id,
        label=backup.label,
        taken=moment_text(backup.taken_at),
        tool=backup.tool,
        location=backup.location or ("in the bucket" if backup.stored is not None else ""),
        since=moment_text(reach.from_us, ""),
        reaches=text,
        drill=drill,
        good=reach.is_complete and backup.counts,
    )


def _drill_row(drill: Drill) -> DrillRow:
    if isinstance(drill, UnreadDrill):
        return DrillRow(
            at=moment_text(drill.written_at),
            proved=False,
            backup="",
            until="",
            took="",
            shown=f"may have failed: {drill.key} cannot be read",
        )
    if drill.is_proved:
        shown = (
            f"{count_text(drill.transactions, 'transaction')} applied, "
            f"{count_text(drill.tables, 'table')} and "
            f"{count_text(drill.statements, 'statement')} checked"
        )
        shown += "".join(f"; but for a doubt: {doubt}" for doubt in drill.doubts)
    else:
        shown = f"failed at the step {drill.step}: {drill.error}"
    return DrillRow(
        at=moment_text(drill.finished_at),
        proved=drill.is_proved,
        backup=f"{drill.backup or ''} {drill.label}".strip(),
        until=moment_text(drill.proven_until, ""),
        took=duration_text(drill.seconds),
        shown=shown,
    )


def _notices(listed: LineageListing) -> Iterator[Notice]:
    """What `list` says between binlogs: what is missing, damaged or not there yet."""
    yield from notices_before(listed)
    yield from (line for line in lines_of(listed) if isinstance(line, Notice))


def _lineage_row(listed: LineageListing) -> LineageRow:
    notices = [notice.text for notice in _notices(listed)]
    more = len(notices) - MOST_NOTICES
    if more > 0:
        notices = [*notices[:MOST_NOTICES], f"and {more:,} more: `binlog2s3 list`"]
    current = " (current)" if listed.current else ""
    return LineageRow(
        name=f"{listed.lineage.id}{current}",
        fields=tuple(head_of(listed)),
        summary=summary_of(listed),
        notices=tuple(notices),
    )


# By day


def _days(lineages: Sequence[LineageListing], now: datetime) -> tuple[Day, ...]:
    """The last days since the first lineage began, the newest first; none if they had nothing."""
    by_day: dict[date, list[tuple[EntryRow, float | None]]] = {}
    for listed in lineages:
        for entry, waited in _archived(listed):
            by_day.setdefault(entry.archived_at.date(), []).append((entry, waited))
    first = min(
        (lineage.lineage.first_binlog_time.date() for lineage in lineages), default=now.date()
    )
    days = [now.date() - timedelta(days=number) for number in range(DAYS)]
    days = [day for day in days if day >= first]
    sizes = {day: sum(entry.size for entry, _ in by_day.get(day, ())) for day in days}
    most = max(sizes.values(), default=0)
    if not most:
        return ()
    return tuple(_day(day, by_day.get(day, []), 100 * sizes[day] / most) for day in days)


def _archived(listed: LineageListing) -> Iterator[tuple[EntryRow, float | None]]:
    """The entries of a lineage, and how long each waited: since the server began the next one."""
    entries = {binlog.name: binlog.entry for binlog in listed.binlogs if binlog.entry is not None}
    for name, entry in entries.items():
        after = entries.get(name.next())
        ended = after.first_time if after is not None else None
        yield entry, (entry.archived_at - ended).total_seconds() if ended is not None else None


def _day(day: date, found: Sequence[tuple[EntryRow, float | None]], share: float) -> Day:
    waits = [waited for _, waited in found if waited is not None]
    return Day(
        day=day.isoformat(),
        share=share,
        size=size_text(sum(entry.size for entry, _ in found)),
        binlogs=f"{len(found):,}",
        transactions=f"{sum(entry.transactions for entry, _ in found):,}",
        waited=duration_text(max(waits), up=True) if waits else "",
    )


# On the timeline


@dataclass(frozen=True, slots=True)
class _Scale:
    """Where moments are between two moments."""

    begin: datetime
    end: datetime

    def at(self, moment: datetime) -> float:
        """In percent; what is outside is at the end that is nearer."""
        share = (moment - self.begin) / (self.end - self.begin)
        return 100 * min(1.0, max(0.0, share))

    def bar(self, begin: datetime, end: datetime, kind: Kind, text: str) -> Iterator[Bar]:
        """A bar; none if all of it is outside."""
        if end < self.begin or begin > self.end:
            return
        left = min(self.at(begin), 100 - _LEAST_WIDTH)
        width = max(_LEAST_WIDTH, self.at(end) - left)
        yield Bar(begin=left, width=width, kind=kind, text=text)

    def mark(self, moment: datetime, kind: Kind, text: str) -> Iterator[Mark]:
        """A mark; none if it is outside, but at the end if it is later than that."""
        if moment >= self.begin:
            yield Mark(at=self.at(moment), kind=kind, text=text)

    def ticks(self) -> tuple[str, ...]:
        """The day, or the minute if there are few days."""
        length = self.end - self.begin
        moments = [self.begin + length * number / (_TICKS - 1) for number in range(_TICKS)]
        texts = [moment_text(moment) for moment in moments]
        if length > timedelta(days=8):
            return tuple(text[:10] for text in texts)
        return tuple(f"{text[5:10]} {text[11:16]}" for text in texts)


def _timelines(found: Looked, now: datetime) -> Iterator[Timeline]:
    """All of the history; and its last days, if they would be too narrow there."""
    if not found.lineages:
        return
    begin = min(_moments(found), default=now)
    whole = _Scale(min(begin, now - timedelta(minutes=1)), now)
    yield Timeline(title="All of it", ticks=whole.ticks(), tracks=tuple(_tracks(found, whole)))
    if now - begin > timedelta(days=3 * DAYS / 2):
        last = _Scale(now - timedelta(days=7), now)
        tracks = (track for track in _tracks(found, last) if track.bars or track.marks)
        yield Timeline(title="The last 7 days", ticks=last.ticks(), tracks=tuple(tracks))


def _moments(found: Looked) -> Iterator[datetime]:
    yield from (lineage.lineage.first_binlog_time for lineage in found.lineages)
    for backup, reaches in found.backups:
        if reaches[0].from_us is not None:
            yield moment_of(reaches[0].from_us)
        yield backup.taken_at


def _tracks(found: Looked, scale: _Scale) -> Iterator[Track]:
    status = found.status
    yield _recoverable(found, scale)
    history = status.history
    if history is not None:
        yield _reachable(history, status.latest, scale)
    line_parts = _line_parts(found)
    if older := _older(len(found.lineages) - MOST_TRACKS, "list"):
        yield Track(name="Older lineages", note=older)
    for listed in found.lineages[-MOST_TRACKS:]:
        yield _lineage_track(listed, found, line_parts, scale)
    yield Track(
        name="Base backups",
        note="" if found.backups else "none is registered",
        marks=tuple(mark for row in found.backups for mark in _backup_mark(row, scale)),
    )
    yield Track(
        name="Drills",
        note="" if found.drills else "none was made",
        marks=tuple(
            mark
            for drill in found.drills
            if isinstance(drill, DrillResult)
            for mark in _drill_mark(drill, scale)
        ),
    )


def _recoverable(found: Looked, scale: _Scale) -> Track:
    """What base backups can be brought to: what does not reach now, below what does."""
    bars: list[Bar] = []
    for backup, reaches in found.backups:
        for reach in reaches:
            if reach.is_complete or reach.from_us is None or reach.to_us is None:
                continue
            begin, end = moment_of(reach.from_us), moment_of(reach.to_us)
            bars += scale.bar(begin, end, "part", f"{backup.name}: {reach_text(reach)}")
    window = _window(found.status)
    note = f"from {window.first} to {window.last}" if window.first else window.why
    first = found.status.backups.window_from if found.status.backups is not None else None
    last = window_end(found.status)
    if first is not None and last is not None:
        bars += scale.bar(first, last, "window", f"recovery window {note}")
    return Track(name="Recovery window", note=note, bars=tuple(bars))


def _reachable(history: HistoryStatus, latest: datetime | None, scale: _Scale) -> Track:
    """What the binlogs are there for, as `status` says it; a base backup is needed besides."""
    name, earliest = "Binlogs that lead up to now", history.earliest
    if earliest is None or latest is None:
        return Track(name=name, note="unknown")
    if latest < earliest:
        return Track(name=name, note=f"none yet after the gap, {moment_text(earliest)}")
    text = f"from {moment_text(earliest)} to {moment_text(latest)}"
    if not history.complete:
        text += " (only the newest binlogs were looked for)"
    return Track(name=name, note=text, bars=tuple(scale.bar(earliest, latest, "archive", text)))


def _line_parts(found: Looked) -> Sequence[LinePart]:
    """The parts of the current history; none if the current lineage cannot be read."""
    lineages = [lineage.lineage for lineage in found.lineages]
    current = found.status.lineage
    if current not in {lineage.id for lineage in lineages}:
        return ()
    return line_of(lineages, current or "").parts


def _lineage_track(
    listed: LineageListing, found: Looked, line_parts: Sequence[LinePart], scale: _Scale
) -> Track:
    lineage, id_ = listed.lineage, listed.lineage.id
    at = next(
        (number for number, line_part in enumerate(line_parts) if line_part.lineage.id == id_), None
    )
    kind: Kind = "left" if at is None else "kept"
    runs = _runs(listed, _end_of(listed, found.status, line_parts, at))
    bars: list[Bar] = []
    marks: list[Mark] = []
    if lineage.floor is not None:
        floor = lineage.floor
        text = f"pruned before {floor.binlog}, {moment_text(floor.raised_at)}"
        first = runs[0][0] if runs else floor.raised_at
        bars += scale.bar(lineage.first_binlog_time, first, "pruned", text)
        marks += scale.mark(first, "floor", text)
    for number, (begin, end) in enumerate(runs):
        if number:
            text = f"missing before {moment_text(begin)}"
            bars += scale.bar(runs[number - 1][1], begin, "gap", text)
        text = f"{moment_text(begin)} to {moment_text(end)}"
        bars += scale.bar(begin, end, kind, text)
    marks += _damage_marks(listed, scale)
    if lineage.parent is not None:
        marks += _join_mark(listed, scale)
        if at and line_parts[at].missing:
            bars += _gap_bar(listed, found, scale)
    role = "in the current history" if at is not None else "not in the current history"
    role = "current" if listed.current else role
    return Track(
        name=f"Lineage {id_}",
        note=f"{role}; {summary_of(listed)}",
        bars=tuple(bars),
        marks=tuple(marks),
    )


def _join_mark(listed: LineageListing, scale: _Scale) -> Iterator[Mark]:
    parent, begin = listed.lineage.parent, listed.lineage.first_binlog_time
    if parent is None:
        return
    text = f"continues from {parent.point}, join {parent.join}"
    yield from scale.mark(begin, "join" if parent.join == "exact" else "unknown", text)


def _gap_bar(listed: LineageListing, found: Looked, scale: _Scale) -> Iterator[Bar]:
    """From what is known of the parent to the lineage's begin."""
    parent, begin = listed.lineage.parent, listed.lineage.first_binlog_time
    before = next(
        (lineage for lineage in found.lineages if parent and lineage.lineage.id == parent.lineage),
        None,
    )
    if before is None:
        return
    runs = _runs(before, None)
    end = min(runs[-1][1] if runs else before.lineage.first_binlog_time, begin)
    yield from scale.bar(
        end, begin, "gap", "; ".join(notice.text for notice in notices_before(listed))
    )


def _end_of(
    listed: LineageListing, status: Status, line_parts: Sequence[LinePart], at: int | None
) -> datetime | None:
    """Until when the end of a lineage, which no entry describes, is known to go."""
    if listed.current:
        return window_end(status)
    if at is not None and at + 1 < len(line_parts) and not line_parts[at + 1].missing:
        return line_parts[at + 1].lineage.first_binlog_time
    return None


def _runs(listed: LineageListing, end: datetime | None) -> list[tuple[datetime, datetime]]:
    """The times of binlogs between which none is missing; the last run goes on to `end`.

    A binlog that no entry describes adds nothing: when it was written is not known.
    """
    missing = sorted(gap.last for gap in listed.missing if not gap.under_way)
    runs: list[tuple[datetime, datetime]] = []
    is_new = True
    for binlog in listed.binlogs:
        while missing and missing[0] < binlog.name:
            missing.pop(0)
            is_new = True
        if (entry := binlog.entry) is not None:
            reached = moment_of(entry.reached_us or 0)
            begin, reached = entry.first_time, max(reached, entry.first_time)
            runs.append((begin, reached)) if is_new else _prolong(runs, reached)
            is_new = False
        is_new = is_new or binlog.hole is not None
    if end is not None and listed.binlogs:
        if not runs:
            runs.append((listed.lineage.first_binlog_time, end))
        elif is_new:  # what is behind that has no time but this one
            runs.append((max(end, runs[-1][1]), max(end, runs[-1][1])))
        _prolong(runs, end)
    return runs


def _prolong(runs: list[tuple[datetime, datetime]], end: datetime) -> None:
    runs[-1] = (runs[-1][0], max(end, runs[-1][1]))


def _damage_marks(listed: LineageListing, scale: _Scale) -> Iterator[Mark]:
    for binlog in listed.binlogs:
        if binlog.entry is not None and binlog.entry.damaged:
            text = f"the source had damaged {binlog.name}"
            yield from scale.mark(binlog.entry.first_time, "damage", text)


def _backup_mark(row: Row, scale: _Scale) -> Iterator[Mark]:
    backup, (reach, *_) = row
    kind: Kind = "backup" if reach.is_complete and backup.counts else "unusable"
    text = f"{backup.name}, taken {moment_text(backup.taken_at)}: {reach_text(reach)}"
    yield from scale.mark(backup.taken_at, kind, text)


def _drill_mark(drill: DrillResult, scale: _Scale) -> Iterator[Mark]:
    kind: Kind = "proved" if drill.is_proved else "failed"
    until = f", up to {moment_text(drill.proven_until)}" if drill.proven_until else ""
    text = f"drill {kind} {moment_text(drill.finished_at)}{until}"
    yield from scale.mark(drill.finished_at, kind, text)
