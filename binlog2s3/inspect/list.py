"""`binlog2s3 list`: prints what the bucket has of each source.

A terminal gets coloured columns, everything else plain aligned text. A gap has a line of its own,
never a row like the others. Texts from the bucket cannot break lines or control a terminal.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from binlog2s3.archive.codec import printed
from binlog2s3.archive.documents import Lineage
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.facts import Binlog, State
from binlog2s3.archive.history import MissingBinlogs
from binlog2s3.archive.listing import (
    LineageListing,
    Listing,
    PrintedListing,
    gather,
)
from binlog2s3.config.bucket import ListConfig, for_restoring
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.formatting import count_text, moment_text, size_text
from binlog2s3.output import Column, Field, Plain, Table, page_on, say
from binlog2s3.progress import progress_of
from binlog2s3.store.s3 import opened
from binlog2s3.workers import Workers

_ROOM = 8
_DATE = len("2026-01-02")
_COLUMNS = (
    Column(name="binlog"),
    Column(name="size", right=True),
    Column(name="state"),
    Column(name="first commit", least=_DATE),
    Column(name="last commit", least=_DATE),
    Column(name="archived", least=_DATE),
    Column(name="GTIDs added", least=len("3e11fa47-71ca-11e1-9e33-c80aa9429562:1-999"), below=True),
)
_STYLES: Mapping[State, str] = {
    "archived": "green",
    "open": "cyan",
    "unfinished": "yellow",
    "undescribed": "magenta",
}


def show(config: ListConfig, outside: Outside = OUTSIDE) -> None:
    """Run the command. Raises StoreError, and ArchiveError if there is nothing to show."""
    s3 = for_restoring(config.s3)
    with (
        opened(s3, evidence=Evidence, session=outside.session) as store,
        progress_of("entries") as advance,
    ):
        workers = Workers(config.s3.threads)
        listing = gather(store, config, workers, advance)
    for warning in listing.warnings:
        say("warning", warning)
    if config.as_json:
        print(printed(PrintedListing, listing))  # noqa: T201
    else:
        render(listing, sys.stdout)


@dataclass(frozen=True, slots=True)
class Notice:
    """A line that must be noticed; `alarm`: something is missing or damaged."""

    text: str
    alarm: bool = True


def notices_before(listed: LineageListing) -> Iterator[Notice]:
    """What is wrong between a lineage and its parent."""
    parent, id_ = listed.lineage.parent, listed.lineage.id
    if parent is None:
        return
    where = parent.point
    if parent.join == "gap":
        what = parent.missing or "not known"
        cause = f" ({parent.cause})" if parent.unlogged else ""
        yield Notice(f"GAP: missing between {where} and {id_}: {what}{cause}")
    elif parent.join == "unknown":
        yield Notice(
            f"GAP: nothing proves that {id_} continues from {where}; "
            f"missing: {parent.missing or 'not known'}"
        )
    if not listed.parent_there:
        yield Notice(f"GAP: {id_} continues from {where}, which is not in the bucket")


def lines_of(listed: LineageListing) -> Iterator[Binlog | Notice]:
    """A lineage's binlogs, with what is missing or damaged at its place between them."""
    missing = sorted(listed.missing, key=lambda gap: gap.last, reverse=True)
    for binlog in listed.binlogs:
        while missing and missing[-1].last < binlog.name:
            yield _missing_line(listed.lineage, missing.pop())
        yield binlog
        if binlog.hole is not None and not listed.current:
            yield Notice(f"GAP: missing in {binlog.name}: bytes {binlog.size} to {binlog.hole}")
        for damage in binlog.entry.damaged if binlog.entry else ():
            what = " ".join(f"{name}={value}" for name, value in damage.items())
            yield Notice(f"DAMAGED: {binlog.name}: {what}")


def _missing_line(lineage: Lineage, missing: MissingBinlogs) -> Notice:
    names = str(missing.first)
    if missing.count > 1:
        names += f" to {missing.last} ({missing.count} binlogs)"
    if missing.under_way:
        return Notice(f"not in the bucket yet: {names}; the writer has not reached it", alarm=False)
    return Notice(f"GAP: missing in {lineage.id}: {names}")


def head_of(listed: LineageListing) -> list[Field]:
    """The lines before a lineage's binlogs: names and values."""
    lineage, parent = listed.lineage, listed.lineage.parent
    begins = f"{lineage.first_binlog}, {moment_text(lineage.first_binlog_time)}"
    head = [
        ("server", f"{lineage.server_uuid}, {lineage.flavour} {lineage.server_version}", ""),
        ("begins", begins, ""),
        ("after", lineage.gtid_set or "no earlier GTIDs", ""),
    ]
    if parent is not None:
        head.append(("parent", f"{parent.point}, join {parent.join}", ""))
        head.append(("", f"after {parent.gtid_set or 'no earlier GTIDs'}", ""))
    if (floor := lineage.floor) is not None:
        head.append(("pruned", f"before {floor.binlog}, {moment_text(floor.raised_at)}", ""))
    return head


def cells_of(binlog: Binlog) -> tuple[str, ...]:
    """A binlog's row: one cell for each heading."""
    found = binlog.entry
    if found is None:
        return (str(binlog.name), str(binlog.size), binlog.state, "-", "-", "-", "-")
    return (
        str(binlog.name),
        str(binlog.size),
        binlog.state,
        moment_text(found.least_commit_us, "-"),
        moment_text(found.reached_us, "-"),
        moment_text(found.archived_at),
        found.gtid_set_added or "-",
    )


def summary_of(listed: LineageListing) -> str:
    """The last line of a lineage."""
    if not listed.binlogs:
        return "no binlogs yet" if listed.lineage.floor is None else "all binlogs were pruned"
    count, size = len(listed.binlogs), sum(binlog.size for binlog in listed.binlogs)
    return f"{count_text(count, 'binlog')}, {size_text(size)}"


def render(listing: Listing, out: TextIO) -> None:
    """Print the listing: in colours on a terminal, otherwise as plain aligned text."""
    print_page(listing, page_on(out))


def print_page(listing: Listing, page: Plain) -> None:
    """Print the listing, source by source."""
    for source in listing.sources:
        page.line(f"source {source.name}", "bold")
        for listed in source.lineages:
            page.line("")
            for notice in notices_before(listed):
                _print_notice(page, notice)
            current = " (current)" if listed.current else ""
            page.line(f"lineage {listed.lineage.id}{current}", "bold")
            page.fields(head_of(listed), _ROOM, indent=2)
            _print_binlogs(page, tuple(lines_of(listed)))
            page.line(f"  {summary_of(listed)}", "dim")
        page.line("")


def _print_notice(page: Plain, notice: Notice) -> None:
    """A line of its own: red, or yellow if it may still arrive."""
    page.line(notice.text, "bold red" if notice.alarm else "yellow")


def _print_binlogs(page: Plain, lines: Sequence[Binlog | Notice]) -> None:
    """The table of a lineage; GTIDs go below their binlog if there is no space beside it."""
    rows = [cells_of(line) for line in lines if isinstance(line, Binlog)]
    if not rows:
        return
    table = Table(page, _COLUMNS, rows, head=3)
    for line in lines:
        if isinstance(line, Notice):
            _print_notice(page, line)
        else:
            table.row(cells_of(line), ["", "", _STYLES[line.state]])
