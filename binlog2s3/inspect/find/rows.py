"""The rows of a transaction that was found, before and after, as mysqlbinlog prints them.

Law: memory is a few blocks and one row, whatever the size of the transaction: its bytes go from the
bucket through a pipe, and no more are fetched once enough rows were printed.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field

from binlog2s3.binlog.content import ROW_KINDS
from binlog2s3.binlog.events import decode_format
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.rows import PrintedEvent, Row, RowsBinlog, rows_of
from binlog2s3.errors import ArchiveError, SourceError
from binlog2s3.formatting import count_text
from binlog2s3.inspect.find.match import Criteria, Hit
from binlog2s3.inspect.find.one_binlog import Span
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.mysqlbinlog import Tool, printed


@dataclass(slots=True)
class ShownRows:
    """What was shown of a transaction's rows. `total`: how many it has, None: not known.

    `more`: the limit was reached. `notes` say what rows do not show, and `problems` which rows
    could not be shown.
    """

    total: int | None
    count: int = 0
    more: bool = False
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPrinter:
    """Prints rows of transactions of one snapshot: up to `limit` of each that match; 0: all.

    `tool` finds the mysqlbinlog for a flavour; its SourceError is raised unchanged.
    """

    snapshot: Snapshot
    wanted: Criteria
    limit: int
    tool: Callable[[Flavour], Tool]

    def begin(self, hit: Hit) -> ShownRows:
        """What is known of a transaction's rows before they are read."""
        changes = [
            change
            for change in hit.content.changes
            if change.kind in ROW_KINDS and self.wanted.has_rows_of(change.kind, change.table)
        ]
        counts = [change.rows for change in changes if change.rows is not None]
        is_counted = len(counts) == len(changes)
        return ShownRows(
            total=sum(counts) if is_counted and not hit.content.lost else None,
            notes=[] if is_counted else ["not all can be counted: statements have no rows"],
        )

    def rows(self, hit: Hit, shown: ShownRows) -> Generator[Row, None, None]:
        """The rows. What could not be read of them is in `shown` at the end, and raises nothing."""
        if shown.total == 0:
            return
        try:
            span = self._span(hit)
            if span is None:
                return
            yield from self._rows(span, shown)
        except ArchiveError as error:
            shown.problems.append(str(error))
            return
        if not shown.more and not shown.problems and shown.total not in (None, shown.count):
            shown.problems.append(
                f"mysqlbinlog printed {count_text(shown.count, 'row')} of {shown.total:,}"
            )

    def _span(self, hit: Hit) -> Span | None:
        """Where the rows are: of an XA COMMIT, in the XA PREPARE; None if that was not found."""
        transaction, link = hit.transaction, hit.link
        if link is not None and link.two_phase.phase == "commit" and not link.two_phase.is_alter:
            other = link.other
            return (
                Span(other.known, other.transaction.begin, other.transaction.end) if other else None
            )
        return Span(
            self.snapshot.known(hit.lineage, hit.binlog), transaction.begin, transaction.end
        )

    def _rows(self, span: Span, shown: ShownRows) -> Iterator[Row]:
        known = span.known
        tool = self.tool(known.lineage.flavour)
        head = self.snapshot.blocks.head(known, span.begin)
        events: deque[PrintedEvent] = deque()

        def feed(write: Callable[[bytes], object]) -> None:
            binlog = RowsBinlog(
                decode_format(head, offset=0),
                head,
                wants=self.wanted.has_rows_of,
                on_event=events.append,
                write=write,
            )
            for begin, end in _undamaged(span, shown.problems):
                with closing(self.snapshot.blocks.read(known, begin, end)) as views:
                    for view in views:
                        binlog.feed(view)
            for why, number in binlog.left_out.items():
                shown.problems.append(f"{count_text(number, 'rows event')} not shown: {why}")
            if not binlog.is_whole:
                shown.problems.append("something in it cannot be decoded: rows may be missing")

        has_names, is_full, is_whole = True, True, True
        with closing(printed(tool, feed)) as lines:
            try:
                for row in rows_of(lines, events):
                    if self.limit and shown.count == self.limit:
                        shown.more = True
                        break
                    shown.count += 1
                    has_names &= bool(row.event.columns)
                    is_full &= row.event.is_full
                    is_whole &= row.is_whole
                    yield row
            except ValueError as error:
                raise SourceError(f"{tool.path} printed what cannot be read: {error}") from error
        if not is_whole:
            shown.problems.append("mysqlbinlog did not print every column of a row")
        if not has_names:
            shown.notes.append("@1 is the first column: names are in binlogs with "
                               "binlog_row_metadata = FULL")  # fmt: skip
        if not is_full:
            shown.notes.append("columns that are not shown are not in the binlog "
                               "(binlog_row_image, generated columns, JSON)")  # fmt: skip


def _undamaged(span: Span, problems: list[str]) -> Iterator[tuple[int, int]]:
    """The ranges of a transaction between damaged events, which are a problem each."""
    at = span.begin
    for begin, end in span.known.damaged:
        if end <= at or begin >= span.end:
            continue
        problems.append(f"bytes {begin} to {end} are damaged: rows in them are not shown")
        if begin > at:
            yield at, begin
        at = end
    if at < span.end:
        yield at, span.end
