"""Whether a base backup can be recovered to now: plans the recovery without running it.

Place in the flow: `source` asks when all defects are known; `recover.plan` plans as it does for
`pitr`.

Law: the answer is yes only if `pitr --latest` would start, and no defect lies on its way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError
from binlog2s3.inspect.verify.report import BackupAnswer, Defect
from binlog2s3.recover.backup import read_backup
from binlog2s3.recover.begin import gtids_of, start_of, words_of
from binlog2s3.recover.model import Base, Latest, Plan, Request, Start
from binlog2s3.recover.plan import make
from binlog2s3.recover.snapshot import Survey

_ON_THE_WAY = frozenset(
    {
        "binlog-missing",
        "object-missing",
        "entry-unreadable",
        "entry-lies",
        "size",
        "checksum",
        "bytes",
        "gtids",
        "chunk-hole",
        "chunk-disagrees",
        "chunk-bytes",
        "durable-missing",
    }
)
"""Kinds of defects that a recovery hits, or must not trust."""
_DOCUMENTS = frozenset({"entry-lies", "entry-unreadable", "lineage-lies", "parent-lies"})


def answer(
    survey: Survey,
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
    said = f"the backup {backup}" if backup is not None else f"a backup that has {gtid_set}"
    warnings: tuple[str, ...] = ()
    try:
        start, said, warnings = _start(survey, backup, gtid_set, lineage)
        start = replace(start, lineage=from_lineage)
        plan = make(Request(goal=Latest(), start=start, lineage=lineage), survey)
    except (ArchiveError, RecoveryError) as error:
        return BackupAnswer(
            start=said, possible=False, why=str(error), hint=error.hint, warnings=warnings
        )
    except (LookupError, TypeError, ValueError):
        lies = [one for one in defects if one.kind in _DOCUMENTS]
        if not lies:
            raise
        why = f"a defect prevents a plan: {lies[0].key}: {lies[0].text}"
        return BackupAnswer(
            start=said, possible=False, why=why, hint=lies[0].todo, warnings=warnings
        )
    why = _met(plan, defects)
    return BackupAnswer(
        start=said,
        possible=not why,
        why=why,
        hint="fix the defect, or restore a later base backup" if why else "",
        begin=f"{plan.pieces[0].binlog}:{plan.pieces[0].begin}" if plan.pieces else str(plan.stop),
        end=str(plan.stop),
        latest_us=plan.reach.latest_us,
        gtids_added=str(plan.adds) if plan.adds is not None else "",
        binlogs=len(plan.pieces),
        size=plan.size,
        transactions=plan.transactions,
        warnings=(*warnings, *plan.warnings, *(str(problem) for problem in survey.problems)),
    )


def _met(plan: Plan, defects: Iterable[Defect]) -> str:
    """A defect on the way of a plan; "" if there is none."""
    way: set[tuple[str, BinlogName | None]] = {(p.lineage, p.binlog) for p in plan.pieces}
    met = [
        defect
        for defect in defects
        if defect.kind in _ON_THE_WAY
        and not defect.repaired
        and (defect.lineage, defect.binlog) in way
    ]
    if not met:
        return ""
    more = f" (and {len(met) - 1} more)" if len(met) > 1 else ""
    return f"the recovery would hit a defect: {met[0].key}: {met[0].text}{more}"


def _start(
    survey: Survey, backup: Path | None, gtid_set: str | None, lineage: str | None
) -> tuple[Start, str, tuple[str, ...]]:
    """Where the backup begins, in words too, and its warnings."""
    flavour = _flavour(survey, lineage)
    if backup is None:
        gtids = gtids_of(gtid_set or "", flavour)
        return Start(gtids=gtids, base=Base(gtids=gtids)), "--from-gtid-set", ()
    try:
        point = read_backup(backup)
    except Binlog2s3Error as error:
        raise RecoveryError(str(error), hint=error.hint) from error
    warnings = tuple(f"{backup}: {one}" for one in point.warnings)
    return start_of(point, flavour, backup), words_of(point, backup), warnings


def _flavour(survey: Survey, lineage: str | None) -> Flavour:
    wanted = lineage or survey.current
    for one in survey.lineages:
        if one.id == wanted:
            return one.flavour
    if not survey.lineages:
        raise RecoveryError("there is no history in the bucket", hint="see `binlog2s3 list`")
    return survey.lineages[-1].flavour
