"""`binlog2s3 verify`: checks the archive against itself, its source, and a base backup.

Whether a base backup can be recovered to now is answered last, when all defects are known:
`recover.plan` plans as it does for `pitr`, without running it.

Law: it only reads, except that --repair writes missing entries. What the streamer does meanwhile is
not a defect. Everything is checked before anything is printed; an error of the store ends it. A
backup's answer is yes only if `pitr --latest` would start, and no defect lies on its way.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from binlog2s3.archive.codec import printed
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.sources import all_sources, nothing_of
from binlog2s3.binlog.names import BinlogName
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.goal import Latest
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.verify import VerifyConfig
from binlog2s3.errors import ArchiveError, ConfigError, RecoveryError, StoreError
from binlog2s3.formatting import gtids_text
from binlog2s3.inspect.verify.against_source import SourceComparison
from binlog2s3.inspect.verify.report import WORDS, BackupAnswer, Defect, Report
from binlog2s3.inspect.verify.source import SourceVerifier
from binlog2s3.inspect.verify.view import PrintedReport, print_report
from binlog2s3.output import page_on
from binlog2s3.progress import progress_of
from binlog2s3.recover.backup import (
    examined,
    refuse_defects,
    start_of_backup,
    start_of_gtids,
)
from binlog2s3.recover.model import Plan, Request, Start
from binlog2s3.recover.origin import innodb_lacks, refuse_other_position
from binlog2s3.recover.plan import make
from binlog2s3.recover.route import history_flavour
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.connection import Server
from binlog2s3.server.login import resolve
from binlog2s3.store.contract import Store
from binlog2s3.store.s3 import opened
from binlog2s3.workers import Workers

_MOST_NAMES = 20
_DEFECTS = 7


def run(config: VerifyConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; returns the exit code. Raises the error that stopped it."""
    s3 = for_restoring(config.s3)
    with opened(s3, sigterm_interrupts=True, evidence=Evidence, session=outside.session) as store:
        verify = Verifier(config, store, outside)
        report = verify.run()
        for text in store.version_notes():
            report.sources[0].notes.append(text)
    if config.as_json:
        print(printed(PrintedReport, report))  # noqa: T201 - the program's output
    else:
        print_report(report, page_on(sys.stdout))
    if verify.refused is not None:
        raise verify.refused
    return 0 if report.sound else _DEFECTS


class Verifier:
    """Checks all sources that are asked for. `refused`: why --repair could not write, if so."""

    def __init__(self, config: VerifyConfig, store: Store, outside: Outside) -> None:
        self._config = config
        self._store = store
        self._outside = outside
        self._workers = Workers(config.s3.threads)
        self.refused: StoreError | None = None

    def run(self) -> Report:
        """Check all of them."""
        config, began = self._config, self._outside.monotonic()
        report = Report(
            target=config.s3.url,
            deep=config.deep,
            since_us=config.since.at_us if config.since else None,
            last=config.last,
            lineage=config.lineage,
        )
        names = [config.source] if config.source else self._sources(report)
        if len(names) > 1 and (config.asks or config.server is not None):
            raise ConfigError(
                [f"--source is missing: there are {', '.join(names[:_MOST_NAMES])}"],
                hint="a base backup and a server belong to one source",
            )
        for name in names:
            source = SourceVerifier(config, self._store, self._workers, name, self._outside)
            if source.is_empty:
                continue
            report.sources.append(source.run())
            if config.asks:
                source.report.answer = self._answer(source)
            if config.server is not None:
                self._against_source(source)
            self.refused = self.refused or source.refused
        if config.lineage is not None and report.sources:
            self._check_lineage(report)
        if not report.sources:
            raise self._nothing()
        report.seconds = self._outside.monotonic() - began
        return report

    def _sources(self, report: Report) -> list[str]:
        """All sources below the prefix; other objects are reported as foreign."""
        names, foreign = all_sources(self._store, self._config.s3.prefix)
        report.foreign += [
            Defect(kind="foreign", key=key, text="it is below the prefix, but belongs to no source")
            for key in foreign
        ]
        return names

    def _answer(self, source: SourceVerifier) -> BackupAnswer:
        config = self._config
        return answer(
            source.context.snapshot,
            backup=config.from_backup,
            gtid_set=config.from_gtid_set,
            from_lineage=config.from_lineage,
            lineage=config.lineage,
            defects=source.report.defects,
        )

    def _against_source(self, source: SourceVerifier) -> None:
        assert self._config.server is not None  # noqa: S101 - the caller has asked
        login = partial(resolve, self._config.server)
        with Server(login) as server:
            against = SourceComparison(
                source.context, source.known_lineages, server, login().address
            )
            source.report.compared = against.compare()

    def _check_lineage(self, report: Report) -> None:
        wanted = self._config.lineage
        report.sources = [
            source
            for source in report.sources
            if any(lineage.lineage.id == wanted for lineage in source.lineages)
        ]
        if not report.sources:
            raise ArchiveError(
                f"there is no lineage {wanted} below {report.target}",
                hint="`binlog2s3 list` shows the lineages",
            )

    def _nothing(self) -> ArchiveError:
        s3 = self._config.s3
        return nothing_of(self._store, s3.prefix, self._config.source, s3.url)


def answer(
    snapshot: Snapshot,
    *,
    backup: Path | None,
    gtid_set: str | None,
    lineage: str | None,
    from_lineage: str | None = None,
    defects: Sequence[Defect],
) -> BackupAnswer:
    """Whether a backup can be recovered to the newest transaction in the bucket.

    `from_lineage`: the lineage of the backup; `lineage`: the history to follow.
    """
    name = f"the backup {backup}" if backup is not None else ""
    name = name or f"a backup that has {gtids_text(gtid_set)}"
    warnings: tuple[str, ...] = ()
    try:
        start, name, warnings = _start(snapshot, backup, gtid_set, lineage)
        start = replace(start, lineage=from_lineage)
        if start.base is not None:
            refuse_other_position(start.base, snapshot)
        plan = make(Request(goal=Latest(), start=start, lineage=lineage), snapshot)
    except (ArchiveError, RecoveryError) as error:
        return BackupAnswer(start=name, why=str(error), hint=error.hint, warnings=warnings)
    why = _met(plan, defects)
    return BackupAnswer(
        start=name,
        plan=plan,
        why=why,
        hint="fix the defect, or restore a later base backup" if why else "",
        warnings=(*warnings, *plan.warnings, *(str(problem) for problem in snapshot.problems)),
    )


def _met(plan: Plan, defects: Iterable[Defect]) -> str:
    """A defect on the way of a plan; "" if there is none."""
    way: set[tuple[str, BinlogName | None]] = {(p.lineage, p.binlog) for p in plan.pieces}
    met = [
        defect
        for defect in defects
        if WORDS[defect.kind].is_on_the_way
        and not defect.repaired
        and (defect.lineage, defect.binlog) in way
    ]
    if not met:
        return ""
    more = f" (and {len(met) - 1} more)" if len(met) > 1 else ""
    return f"the recovery would hit a defect: {met[0].key}: {met[0].text}{more}"


def _start(
    snapshot: Snapshot, backup: Path | None, gtid_set: str | None, lineage: str | None
) -> tuple[Start, str, tuple[str, ...]]:
    """Where the backup begins, in words too, and its warnings. All of a dump is read.

    Raises RecoveryError, also if it is no base backup of the whole server.
    """
    flavour = history_flavour(snapshot, lineage)
    if backup is None:
        return start_of_gtids(gtid_set or "", flavour), "--from-gtid-set", ()
    with progress_of("bytes of the base backup") as advance:
        point, _ = examined(backup, advance)
    found = start_of_backup(backup, point, flavour)
    base = found[0].base
    lacks = innodb_lacks(base, snapshot) if base is not None else ""
    refuse_defects(backup, (*point.defects, *filter(None, [lacks])), "make another base backup")
    return found
