"""`binlog2s3 find`: lists matching transactions, and how to recover to just before each.

It only reads, and it reports everything that it could not search. Finding nothing is a normal
result. `binlog2s3 rows` is the same search for one transaction, which has to be found, with its
rows.
"""

import sys
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.find import FindConfig
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.points import flavour_of, parse_gtids
from binlog2s3.config.rows import RowsConfig
from binlog2s3.errors import ArchiveError
from binlog2s3.inspect.find.match import Criteria, SearchQuery, SearchStats, Tables
from binlog2s3.inspect.find.rows import RowPrinter
from binlog2s3.inspect.find.scan import TransactionSearch
from binlog2s3.inspect.find.view import (
    GtidOutput,
    JsonOutput,
    SearchContext,
    TextOutput,
    words_of,
)
from binlog2s3.output import page_on, say
from binlog2s3.progress import ProgressDisplay, progress_of
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.mysqlbinlog import Tool
from binlog2s3.server.mysqlbinlog import find as find_mysqlbinlog
from binlog2s3.status.writer_state import last_report, life_sign
from binlog2s3.store.s3 import opened
from binlog2s3.workers import Workers

_NAMES_MOST = 20
_ALL = "all"
"""The value of --lineage that means every lineage."""
_ROWS_MOST = 100
"""So many rows of each transaction are shown by `find`."""


def run(config: FindConfig | RowsConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; returns the exit code. Raises the error that stopped it.

    Of `rows`, also an ArchiveError at the end if the transaction was not found, or not all of its
    rows could be shown.
    """
    query = _query(config) if isinstance(config, FindConfig) else _query_of_rows(config)
    s3 = for_restoring(config.s3)
    with opened(s3, sigterm_interrupts=True, evidence=Evidence, session=outside.session) as store:
        catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        workers = Workers(config.s3.threads)
        with progress_of("entries") as advance:
            snapshot = Snapshot(catalog, workers, advance=advance)
            flavours = _check(config, query, snapshot)
        printer = _printer(config, snapshot, flavours)
        context = SearchContext(
            source=config.source,
            archive=config.s3.url,
            given=config.given,
            tip=snapshot.current,
            several=len(snapshot.lineages) > 1,
        )
        view: JsonOutput | TextOutput | GtidOutput
        if config.as_json:
            view = JsonOutput(sys.stdout, context, query, printer)
        elif isinstance(config, FindConfig) and config.print_only is not None:
            view = GtidOutput(sys.stdout, query)
        else:
            view = TextOutput(page_on(sys.stdout), context, query, printer)
        with ProgressDisplay(sys.stderr) as display:
            run = _FindRun(config, query, catalog, snapshot, view, display, outside)
            run.run()
        if isinstance(config, RowsConfig):
            _must_be_complete(run, len(snapshot.lineages) > 1)
    return 0


def _query(config: FindConfig) -> SearchQuery:
    since_us, until_us = config.between
    return SearchQuery(
        wanted=Criteria(
            tables=Tables(config.tables) if config.tables else None,
            kinds=frozenset(config.kinds),
            min_rows=config.min_rows,
        ),
        since_us=since_us,
        until_us=until_us,
        gtids=config.gtids,
        order=config.order,
        limit=config.limit,
        lineage=None if config.lineage == _ALL else config.lineage,
        everywhere=config.lineage == _ALL,
    )


def _query_of_rows(config: RowsConfig) -> SearchQuery:
    """Which transaction to show."""
    return SearchQuery(
        wanted=Criteria(),
        gtids=(config.gtid,) if config.gtid is not None else (),
        at=config.at,
        lineage=None if config.lineage == _ALL else config.lineage,
        everywhere=config.lineage == _ALL,
    )


def _printer(
    config: FindConfig | RowsConfig, snapshot: Snapshot, flavours: set[Flavour]
) -> RowPrinter | None:
    """What prints rows; None if nobody wants them. Raises SourceError if there is no program."""
    if isinstance(config, FindConfig) and not config.rows:
        return None

    @cache
    def tool(flavour: Flavour) -> Tool:
        return find_mysqlbinlog(flavour, config.mysqlbinlog)

    if len(flavours) == 1:
        tool(*flavours)
    return RowPrinter(
        snapshot=snapshot,
        wanted=Criteria(
            tables=Tables(config.tables) if config.tables else None,
            kinds=frozenset(config.kinds) if isinstance(config, FindConfig) else frozenset(),
        ),
        limit=_ROWS_MOST if isinstance(config, FindConfig) else config.limit,
        tool=tool,
    )


def _must_be_complete(run: "_FindRun", has_others: bool) -> None:
    """Raise ArchiveError if `rows` did not show what it was asked for."""
    view, query = run.view, run.query
    if not view.found:
        hint = "`binlog2s3 list` shows what is in the bucket"
        if run.warnings:
            hint = "not everything could be searched, see the warnings"
        elif has_others and not query.everywhere:
            hint += "; --lineage all searches every lineage"
        elif query.at is not None:
            hint += "; nothing else than a transaction may be there: `find` shows positions"
        what = query.gtids[0] if query.at is None else f"at {query.at}"
        raise ArchiveError(f"no transaction {what} was found in the bucket", hint=hint)
    if not isinstance(view, GtidOutput) and view.problems:
        raise ArchiveError(
            f"not all rows could be shown: {view.problems[0]}",
            hint="`binlog2s3 verify --deep` checks the archive",
        )


@dataclass(slots=True)
class _FindRun:
    """One search and its output."""

    config: FindConfig | RowsConfig
    query: SearchQuery
    catalog: Catalog
    snapshot: Snapshot
    view: JsonOutput | TextOutput | GtidOutput
    display: ProgressDisplay
    outside: Outside
    warnings: list[str] = field(default_factory=list)

    def run(self) -> None:
        for error in self.snapshot.unreadable:
            self._warn(f"{error}; its lineage is not searched")
        search = TransactionSearch(
            self.snapshot,
            self.query,
            threads=self.config.s3.concurrency,
            warn=self._warn,
            advance=self._advance,
        )
        self.view.begin()
        with closing(search.hits()) as hits:
            for hit in hits:
                self.display.aside()
                self.view.hit(hit)
        self.display.aside()
        self._tell_silence(search.stats)
        self.view.end(search.stats, self.warnings)
        sys.stdout.flush()

    def _advance(self, stats: SearchStats) -> None:
        self.display.show(
            lambda: words_of(stats, self.view.found, self.display.seconds),
            stats.size,
            stats.of_size,
        )

    def _tell_silence(self, stats: SearchStats) -> None:
        """Say when the streamer last reported, if later transactions could match."""
        covered_us, until_us = stats.covered_us, self.query.until_us
        is_covered = None not in (covered_us, until_us) and (until_us or 0) <= (covered_us or 0)
        grows = self.snapshot.current in stats.lineages and not self.catalog.has_retired
        if is_covered or not grows:
            return
        sign = life_sign(self.catalog, self.outside.now())
        stats.streamer, stats.is_silent = last_report(sign), not sign.alive

    def _warn(self, text: str) -> None:
        if text not in self.warnings:
            self.warnings.append(text)
            if not isinstance(self.view, TextOutput):
                say("warning", text)


def _check(config: FindConfig | RowsConfig, query: SearchQuery, snapshot: Snapshot) -> set[Flavour]:
    """The flavours of what is searched. Raises an error if there is nothing to search."""
    snapshot.refuse_nothing(config.s3.url)
    ids = [lineage.id for lineage in snapshot.lineages]
    wanted = query.lineage
    if wanted is not None and wanted not in ids:
        raise ArchiveError(
            f"there is no lineage {wanted} of source {config.source}",
            hint=f"there are: {', '.join(ids[-_NAMES_MOST:])}",
        )
    flavours: set[Flavour] = {
        lineage.flavour
        for lineage in snapshot.lineages
        if query.everywhere or lineage.id == (wanted or snapshot.current)
    }
    for text in query.gtids:
        if flavour_of(parse_gtids(text)) not in flavours:
            raise ArchiveError(
                f"{text} is not a GTID of {' or '.join(sorted(flavours))}, which this history has",
                hint="`binlog2s3 list` shows the GTIDs of each binlog",
            )
    return flavours
