"""The results of drills: their documents, and the newest of them.

A document is written once. One that breaks the format, or does not belong to its key, is ignored:
it proves nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any, ClassVar, Literal, Self

from binlog2s3.archive.backups import Backup
from binlog2s3.archive.catalog import Catalog, read
from binlog2s3.archive.fields import (
    FORMAT,
    backup_name,
    check_place,
    count,
    lineage_name,
    moment,
    or_none,
    parse,
    reading,
    render,
    source_name,
    text,
)
from binlog2s3.binlog.names import BinlogName
from binlog2s3.errors import ArchiveError, ObjectMissingError
from binlog2s3.formatting import iso_text

Outcome = Literal["proved", "failed"]
DrillStep = Literal["choose", "restore", "start", "apply", "check"]
ON_TRUST = "on trust"
"""Instead of what has shown it: the operator says that the registered backup was restored."""
_MOST_READ = 30
"""So many results are read, the newest first, to find the last one that proved something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    """What one drill has shown.

    `step` and `error` say where and why it failed. `backup` is the id of the registered base
    backup. `goal` is `now` or the time that was asked for. The recovery ended at `position` of
    `binlog`, and has everything that was committed until `proven_until`. `transactions` were
    applied, `tables` were checked by CHECK TABLE, `statements` of the operator were true.
    `restored`: what has shown that the registered backup was restored; "" if it failed before, or
    an older version did it; `ON_TRUST` if nothing has.
    """

    id: str
    source: str
    outcome: Outcome
    step: DrillStep | None = None
    error: str = ""
    backup: str | None = None
    label: str = ""
    goal: str
    lineage: str | None = None
    binlog: BinlogName | None = None
    position: int | None = None
    proven_until: datetime | None = None
    transactions: int = 0
    tables: int = 0
    statements: int = 0
    restored: str = ""
    server_version: str = ""
    host: str
    version: str
    started_at: datetime
    finished_at: datetime

    MOST: ClassVar[int] = 1 << 20

    @property
    def is_proved(self) -> bool:
        """Whether the recovery succeeded and was checked."""
        return self.outcome == "proved"

    @property
    def is_of_backup(self) -> bool:
        """Whether something has shown that the registered backup was restored, and no other one."""
        return self.restored not in ("", ON_TRUST)

    @property
    def says_something(self) -> bool:
        """Whether it says something of its backup.

        One that failed before it restored a backup does not, nor one that may have restored
        another.
        """
        return self.is_of_backup if self.is_proved else self.step != "choose"

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.finished_at - self.started_at).total_seconds()

    def to_json(self) -> bytes:
        """The document drills/<id>.json."""
        return render({"format": FORMAT, **self.row()})

    def row(self) -> dict[str, Any]:
        """The fields of the document without `format`, as JSON has them."""
        until = self.proven_until
        return {
            "id": self.id,
            "source": self.source,
            "outcome": self.outcome,
            "step": self.step,
            "error": self.error,
            "backup": self.backup,
            "label": self.label,
            "goal": self.goal,
            "lineage": self.lineage,
            "binlog": str(self.binlog) if self.binlog is not None else None,
            "position": self.position,
            "proven_until": iso_text(until) if until is not None else None,
            "transactions": self.transactions,
            "tables": self.tables,
            "statements": self.statements,
            "restored": self.restored,
            "server_version": self.server_version,
            "host": self.host,
            "version": self.version,
            "started_at": iso_text(self.started_at),
            "finished_at": iso_text(self.finished_at),
        }

    @classmethod
    def from_json(cls, data: bytes, key: str) -> Self:
        """Read a result; ArchiveError if it breaks the format, or has another key."""
        document = parse(data, key, cls.MOST)
        with reading(key):
            found = cls(
                id=backup_name(document["id"]),
                source=source_name(document["source"]),
                outcome=_outcome(document["outcome"]),
                step=or_none(_step, document["step"]),
                error=text(document["error"]),
                backup=or_none(backup_name, document["backup"]),
                label=text(document["label"]),
                goal=text(document["goal"]),
                lineage=or_none(lineage_name, document["lineage"]),
                binlog=or_none(BinlogName.parse, document["binlog"]),
                position=or_none(count, document["position"]),
                proven_until=or_none(moment, document["proven_until"]),
                transactions=count(document["transactions"]),
                tables=count(document["tables"]),
                statements=count(document["statements"]),
                restored=text(document.get("restored", "")),
                server_version=text(document["server_version"]),
                host=text(document["host"]),
                version=text(document["version"]),
                started_at=moment(document["started_at"]),
                finished_at=moment(document["finished_at"]),
            )
        check_place(key, "archive", found.source, "drills", f"{found.id}.json")
        return found


def _outcome(value: Any) -> Outcome:
    if value not in ("proved", "failed"):
        raise ValueError(f"{value!r:.40} is not the outcome of a drill")
    return "proved" if value == "proved" else "failed"


def _step(value: Any) -> DrillStep:
    for step in ("choose", "restore", "start", "apply", "check"):
        if value == step:
            return step
    raise ValueError(f"{value!r:.40} is not a step of a drill")


def newest(catalog: Catalog) -> tuple[DrillResult | None, DrillResult | None]:
    """The newest result, and the newest one that proved a recovery; None if there is none.

    One listing, and one small GET for each result down to the last proof; at most 30.
    """
    last: DrillResult | None = None
    for one in islice(_results(catalog), _MOST_READ):
        last = last or one
        if one.is_proved:
            return last, one
    return last, None


def last_of(catalog: Catalog, backup: str) -> DrillResult | None:
    """The newest result that says something of this base backup, among the last 30."""
    found = islice(_results(catalog), _MOST_READ)
    return next((one for one in found if one.backup == backup and one.says_something), None)


def verdicts_of(catalog: Catalog, backups: Sequence[Backup]) -> dict[str, bool]:
    """Of each of these base backups that a drill has tried: whether the last one proved it.

    One listing, and one small GET for each result since the oldest backup was registered, until
    there is one of each backup.
    """
    wanted, found = {one.id: one.registered_at for one in backups}, dict[str, bool]()
    since = min(wanted.values(), default=datetime.max.replace(tzinfo=UTC))
    for one in _results(catalog):
        if one.finished_at < since or not wanted:
            break
        if one.backup in wanted and one.says_something:
            found[one.backup] = one.is_proved
            del wanted[one.backup]
    return found


def _results(catalog: Catalog) -> Iterator[DrillResult]:
    """The readable results, the newest first."""
    layout = catalog.layout
    keys = [info.key for info in catalog.store.list(layout.drills) if layout.drill_id(info.key)]
    for key in reversed(keys):
        try:
            yield read(catalog.store, key, DrillResult)
        except (ObjectMissingError, ArchiveError):
            continue
