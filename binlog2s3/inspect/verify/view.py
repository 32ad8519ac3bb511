"""The output of `verify`, for people and programs.

What can be recovered comes first, then the defects, each with what follows and what to do. Texts
from the bucket cannot break lines or control a terminal.
"""

from collections.abc import Sequence
from typing import Annotated

from binlog2s3.archive.codec import Printed, PrintedDocument, Seconds, TextOrNull, When, always, of
from binlog2s3.binlog.names import BinlogName
from binlog2s3.formatting import count_text, duration_text, gtids_text, iso_text, size_text
from binlog2s3.inspect.verify.report import (
    BackupAnswer,
    ComparedBinlogs,
    Defect,
    Interval,
    LineageReport,
    RecordedGap,
    Report,
    SourceReport,
)
from binlog2s3.output import Column, Plain, Table

_ROOM = 11
_COLUMNS = (
    Column(name="lineage", least=len("20260102T030405Z-3e11fa47-a1b2")),
    Column(name="binlogs", right=True),
    Column(name="open", right=True),
    Column(name="checked", right=True),
    Column(name="bytes", right=True),
    Column(name="transactions", right=True, least=len("transactions")),
    Column(name="intervals", right=True),
)
_MOST = 50
_RECOVERABLE = "recoverable with a base backup of that time"
"""How many defects of one kind are printed; --json has all."""


def print_report(report: Report, page: Plain) -> None:
    for at, source in enumerate(report.sources):
        if at:
            page.line("")
        _print_source(source, page, deep=report.deep)
    for defect in report.foreign:
        _print_defect(defect, page)
    page.line("")
    page.line(_looked_text(report), "dim")
    page.line(*_verdict(report))


def _verdict(report: Report) -> tuple[str, str]:
    """The result in one line, and its style."""
    defects, gaps = len(_left(report)), sum(len(source.gaps) for source in report.sources)
    words = [count_text(defects, "defect") if defects else "no defects"]
    if gaps:
        known = f"{count_text(gaps, 'known gap')}, which no recovery crosses"
        words.append(known if defects else f"but {known}")
    if any(source.answer is not None and not source.answer.possible for source in report.sources):
        words.append("and the base backup cannot be recovered to now")
    style = "bold red" if not report.sound else "bold yellow" if gaps else "bold green"
    return ", ".join(words), style


def _left(report: Report) -> list[Defect]:
    every = [*report.foreign, *(defect for source in report.sources for defect in source.defects)]
    return [defect for defect in every if not defect.repaired]


def _looked_text(report: Report) -> str:
    seconds = max(report.seconds, 0.001)
    looked = sum(lineage.looked_at for source in report.sources for lineage in source.lineages)
    count = sum(lineage.binlogs for source in report.sources for lineage in source.lineages)
    words = [f"checked {looked} of {count_text(count, 'binlog')} in {duration_text(seconds)}"]
    if report.since_us is not None:
        words.append(f"only those since {iso_text(report.since_us)}")
    if report.last is not None:
        words.append(f"only the last {report.last} of each lineage")
    if report.lineage is not None:
        words.append(f"only the history that ends in {report.lineage}")
    if report.deep:
        read = sum(source.read_bytes for source in report.sources)
        words.append(f"read {size_text(read)}, {size_text(read / seconds)}/s")
    else:
        words.append("by names, sizes, entries and the store's checksums; --deep reads every byte")
    return "; ".join(words)


def _print_source(source: SourceReport, page: Plain, *, deep: bool) -> None:
    page.line(f"source {source.name}", "bold")
    if source.writer:
        page.field("writer", source.writer, _ROOM)
    _print_lineages(source, page, deep=deep)
    _print_recoverable(source, page)
    for gap in source.gaps:
        _print_gap(gap, page)
    if source.compared is not None:
        _print_compared(source.compared, page)
    if source.answer is not None:
        _print_answer(source.answer, page)
    for note in source.notes:
        page.line(f"note: {note}", "dim")
    _print_defects(source.defects, page)
    for done in source.repaired:
        if done.why:
            page.line(f"not made again: {done.key}: {done.why}", "yellow")
        else:
            page.line(f"made again: {done.key}", "bold green")


def _print_recoverable(source: SourceReport, page: Plain) -> None:
    if source.history:
        page.line("")
        page.line(f"{_RECOVERABLE}, along the history that ends in {source.tip}", "bold")
        for interval in source.history:
            _print_interval(interval, page)
    for lineage in source.lineages:
        if lineage.lineage.id not in source.line and lineage.intervals:
            page.line("")
            page.line(f"{_RECOVERABLE}, in {lineage.lineage.id}, which is not part of it", "bold")
            for interval in lineage.intervals:
                _print_interval(interval, page)


def _print_lineages(source: SourceReport, page: Plain, *, deep: bool) -> None:
    if not source.lineages:
        page.line("no lineages")
        return
    rows = [_cells(lineage, deep=deep) for lineage in source.lineages]
    page.line("")
    table = Table(page, _COLUMNS, rows)
    for cells in rows:
        table.row(cells)


def _cells(lineage: LineageReport, *, deep: bool) -> tuple[str, ...]:
    return (
        f"{lineage.lineage.id}{' (current)' if lineage.current else ''}",
        str(lineage.binlogs),
        str(lineage.open),
        str(lineage.looked_at),
        str(lineage.size),
        f"{lineage.transactions}{' and those of the open' if lineage.open and not deep else ''}",
        str(len(lineage.intervals)),
    )


def _print_interval(interval: Interval, page: Plain) -> None:
    until = f"{interval.last}:{interval.last_offset}"
    begin = (
        f"the beginning of {interval.first}"
        if interval.from_us is None
        else iso_text(interval.from_us)
    )
    end = until if interval.to_us is None else iso_text(interval.to_us)
    page.line(f"{begin} to {end}", "green", indent=2)
    if interval.untimed:
        page.line(f"the end time is not known: {interval.untimed}", indent=6)
    places = (
        f"{interval.first} of {interval.lineage}"
        if interval.lineage != interval.last_lineage
        else str(interval.first)
    )
    amount = f"{count_text(interval.binlogs, 'binlog')}, {size_text(interval.size)}"
    page.line(f"{places} to {until}, {amount}", indent=6)
    if interval.gtids_before is not None or interval.gtids_after is not None:
        before, after = _set_text(interval.gtids_before), _set_text(interval.gtids_after)
        page.line(f"GTIDs before it: {before}; with it: {after}", indent=6)
    if interval.why:
        page.line(f"ends there: {interval.why}", "yellow", indent=6)


def _set_text(gtids: str | None) -> str:
    return "unknown" if gtids is None else gtids_text(gtids) or "none"


def _print_gap(gap: RecordedGap, page: Plain) -> None:
    page.line("")
    page.line(f"KNOWN GAP: {gap.text}", "yellow")
    if gap.missing:
        page.line(f"missing: {gap.missing}", indent=6)


def _print_compared(compared: ComparedBinlogs, page: Plain) -> None:
    page.line("")
    page.line(f"source {compared.address}, server {compared.server_uuid}", "bold")
    page.line(
        f"{compared.compared} of {count_text(compared.listed, 'listed binlog')}, "
        f"{compared.first} to {compared.last}, are in the bucket with the same size",
        indent=6,
    )
    if compared.lagging:
        names = _names(compared.lagging)
        page.line(f"lag: {size_text(compared.lag)} not in the bucket yet: {names}", indent=6)
    if compared.not_archived:
        page.line(f"older than the archive: {_names(compared.not_archived)}", indent=6)
    page.line("their bytes were not compared", "dim", indent=6)


def _names(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]} ({len(names)})"


def _print_answer(answer: BackupAnswer, page: Plain) -> None:
    page.line("")
    plan = answer.plan
    if plan is None or not answer.possible:
        page.line(f"NO: {answer.start} cannot be recovered to now: {answer.why}", "bold red")
        if answer.hint:
            page.line(answer.hint, indent=6)
        return
    latest = ""
    if plan.reach.latest_us is not None:
        latest = f", with everything committed until {iso_text(plan.reach.latest_us)}"
    page.line(f"YES: {answer.start} can be recovered to {plan.stop}{latest}", "bold green")
    page.line(f"{plan.amount}, from {plan.begin} on", indent=6)
    if plan.adds:
        page.line(f"adds {gtids_text(str(plan.adds))}", indent=6)
    for warning in answer.warnings:
        page.line(f"warning: {warning}", "yellow", indent=6)


def _print_defects(defects: Sequence[Defect], page: Plain) -> None:
    shown: dict[str, int] = {}
    for defect in defects:
        shown[defect.kind] = shown.get(defect.kind, 0) + 1
        if shown[defect.kind] <= _MOST:
            _print_defect(defect, page)
    for kind, count in shown.items():
        if count > _MOST:
            page.line(f"and {count - _MOST} more of {kind}: --json has all", "bold red")


def _print_defect(defect: Defect, page: Plain) -> None:
    page.line("")
    repaired = " (repaired)" if defect.repaired else ""
    page.line(f"DEFECT {defect.kind}{repaired}: {defect.key}", "bold red")
    page.line(defect.text, indent=6)
    page.line(f"for a recovery: {defect.follows}", indent=6)
    page.line(f"to do: {defect.todo}", indent=6)


# For programs


class PrintedDefect(Printed):
    kind: str
    object: str = of("key")
    lineage: TextOrNull
    binlog: BinlogName | None
    text: str
    follows: str
    todo: str
    mended: bool = of("repaired")


class PrintedBegin(Printed):
    lineage: str
    binlog: BinlogName = of("first")


class PrintedEnd(Printed):
    lineage: str = of("last_lineage")
    binlog: BinlogName = of("last")
    offset: int = of("last_offset")


class PrintedInterval(Printed):
    from_: When | None = of("from_us")
    to: When | None = of("to_us")
    gtids_before: str | None
    gtids_after: str | None
    first: PrintedBegin = of("")
    last: PrintedEnd = of("")
    binlogs: int
    bytes: int = of("size")
    transactions: int
    ends: TextOrNull = of("why")


class PrintedLineage(Printed):
    lineage: str = of("lineage.id")
    current: bool
    binlogs: int
    open: int
    looked_at: int
    bytes: int = of("size")
    transactions: int
    recoverable: tuple[PrintedInterval, ...] = of("intervals")


class PrintedGap(Printed):
    kind: str
    lineage: str
    text: str
    missing: TextOrNull


class PrintedComparison(Printed):
    address: str
    server_uuid: str
    listed: int
    compared: int
    first: TextOrNull
    last: TextOrNull
    lag_bytes: int = of("lag")
    lagging: tuple[str, ...]
    not_archived: tuple[str, ...]
    bytes_compared: bool = always(False)


def _or_zero(number: int | None) -> int:
    return number or 0


def _many(pieces: Sequence[object] | None) -> int:
    return len(pieces or ())


class PrintedAnswer(Printed):
    start: str
    possible: bool
    why: TextOrNull
    hint: TextOrNull
    from_: TextOrNull = of("plan.begin")
    to: TextOrNull = of("plan.stop")
    latest: When | None = of("plan.reach.latest_us")
    gtids_added: TextOrNull = of("plan.adds")
    binlogs: Annotated[int, _many] = of("plan.pieces")
    bytes: Annotated[int, _or_zero] = of("plan.size")
    transactions: Annotated[int, _or_zero] = of("plan.transactions")
    warnings: tuple[str, ...]


class PrintedRepair(Printed):
    lineage: str
    binlog: BinlogName
    object: str = of("key")
    refused: TextOrNull = of("why")


class PrintedSource(Printed):
    source: str = of("name")
    sound: bool
    history: TextOrNull = of("tip")
    recoverable: tuple[PrintedInterval, ...] = of("history")
    lineages: tuple[PrintedLineage, ...]
    gaps: tuple[PrintedGap, ...]
    defects: tuple[PrintedDefect, ...]
    notes: tuple[str, ...]
    read_bytes: int
    against_source: PrintedComparison | None = of("compared")
    answer: PrintedAnswer | None
    repaired: tuple[PrintedRepair, ...]


class PrintedReport(PrintedDocument):
    target: str
    sound: bool
    deep: bool
    since: When | None = of("since_us")
    last: int | None
    lineage: str | None
    seconds: Seconds
    foreign: tuple[PrintedDefect, ...]
    sources: tuple[PrintedSource, ...]
