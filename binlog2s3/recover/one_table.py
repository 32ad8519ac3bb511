"""Recovering only some tables: what that cannot do safely, and which targets are refused for it.

Law: where the filter would certainly lose or keep rows wrongly, the recovery is refused; where it
may, the plan says so. Names are compared without case, because a refusal too many is harmless.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from binlog2s3.binlog.content import LOOKED_MOST, ROW_KINDS, ContentReader
from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.binlog.statements import UPKEEP, Statement, statement_of
from binlog2s3.binlog.tables import table_name
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import count_text, cut, size_text, some
from binlog2s3.recover.extract import headed, through
from binlog2s3.recover.model import Checked, OpenStream, Plan
from binlog2s3.recover.target import Target, TargetFacts, other_channels, replicated
from binlog2s3.server.sql import quoted

LOOKED_AT_MOST = 1 << 30
"""So many bytes of binlogs are looked at before the operator is asked; more while they are sent."""
_SHOWN = 3
_MOST_OTHERS = 20
"""A command with more tables than that is not proposed."""
_MOST_TEXT = 160
_PASSES_ON = ("CASCADE", "SET NULL", "SET DEFAULT")
_WITHOUT = "without --table everything is applied"
_EXCHANGES = frozenset({"RENAME", "EXCHANGE", "CONVERT"})
_NOT_TABLES = frozenset({"COLUMN", "INDEX", "KEY", "CONSTRAINT"})
_MERGE = "MRG_MYISAM"
"""An engine whose tables have no rows: what is written to one is in a table of its UNION."""

Tables = Sequence[tuple[str, str]]
"""Pairs of database and table."""


def texts_of(tables: Tables) -> tuple[str, ...]:
    """The tables as text, in order and each once."""
    return tuple(sorted({table_name(*table) for table in tables}))


class StatementCheck:
    """Looks through binlogs for statements that cannot be filtered by these tables without error.

    `moved`: statements that exchange rows or definitions with other tables, or need them, `others`:
    those, the first few. `statements`: those that write to these tables in statement format.
    `elsewhere`: how many write to others. `touched`: which of these tables are changed. `unclear`:
    how many texts could not be read completely. `has_xa`: there are XA transactions of MySQL.
    """

    def __init__(self, tables: Tables) -> None:
        self._ours = {table.casefold(): table for table in texts_of(tables)}
        self._bare = {name.casefold() for _, name in tables}
        self._made: set[str] = set()  # left out, and not in the base backup
        self.moved = _Noted()
        self.others: dict[str, None] = {}
        self.statements = _Noted()
        self.has_xa = False
        self.elsewhere = 0
        self.unclear = 0
        self.touched: set[str] = set()

    def through(self, data: Iterator[Checked]) -> Iterator[Checked]:
        """The bytes of a piece, each part once it was looked at."""
        head, form = headed(data)
        reader = ContentReader(form, text_most=0, looked_most=LOOKED_MOST, on_statement=self._take)
        yield head
        for checked in data:
            reader.feed(checked.data)
            self.has_xa |= form.flavour == "mysql" and reader.two_phase is not None
            yield checked
        content = reader.content()
        self.unclear += content.lost
        for change in content.changes:
            if change.table.casefold() in self._ours:
                self.touched.add(change.table)

    def refusal(self) -> RecoveryError | None:
        """Why these tables alone cannot be recovered; None if nothing speaks against it."""
        if self.has_xa:
            return RecoveryError(
                "--table cannot be applied: there are XA transactions, which a MySQL replica with "
                "a filter of tables refuses, whatever tables they change (errors 3898, 13175)",
                hint=_WITHOUT,
            )
        if not self.moved.count:
            return None
        words = " ".join(f"--table '{name}'" for name in sorted(self.others))
        add = f"add {words}; or " if words and len(self.others) < _MOST_OTHERS else ""
        exchange, need = ("exchanges", "needs") if self.moved.count == 1 else ("exchange", "need")
        return RecoveryError(
            f"--table cannot be applied safely: {count_text(self.moved.count, 'statement')} "
            f"{exchange} rows or definitions with tables that are left out, or {need} them; "
            "the first: "
            f"{self.moved.shown[0]!r} "
            "(online schema changes, by gh-ost or pt-online-schema-change, end like this)",
            hint=f"{add}{_WITHOUT}",
        )

    def _take(self, statement: Statement) -> None:
        tables = {name.casefold(): name for name in statement.tables if name}
        if statement.word in ("RENAME", "ALTER", "CREATE"):
            self._take_definition(statement, tables)
        elif statement.word == "DROP":
            self._take_drop(statement, tables)
        is_write = statement.kind in ROW_KINDS or "insert" in statement.also
        if statement.kind == "other":  # it may call a function
            self.elsewhere += statement.word not in UPKEEP
        elif is_write and statement.word != "ALTER":
            is_unknown = not tables and self._may_name_ours(statement)
            if is_unknown or tables.keys() & self._ours.keys():
                self.statements.add(statement)
            else:
                self.elsewhere += 1

    def _move(self, statement: Statement, others: set[str]) -> None:
        self.moved.add(statement)
        for name in sorted(others):
            if len(self.others) < _MOST_OTHERS:
                self.others[name] = None

    def _take_definition(self, statement: Statement, tables: dict[str, str]) -> None:
        moved, read = _others(statement)
        is_subject = bool(tables.keys() & self._ours.keys())
        if statement.word == "RENAME":
            moved |= set(tables.values())
            if not statement.whole and "TABLE" in statement.clear.text.upper():
                if is_subject or self._may_name_ours(statement):
                    self._move(statement, set())
                return
        elif moved:
            moved |= set(tables.values())
        self._note_made(statement, tables, moved)
        may_exchange = moved | read or (
            statement.word == "ALTER"
            and statement.clear.cut
            and (not tables or _exchanges(statement))
        )
        if may_exchange and not is_subject and self._may_look_different(statement):
            self._move(statement, set())
            return
        beside = moved | (read if is_subject else set())
        if (is_subject or _folded(moved) & self._ours.keys()) and (
            more := {name for name in beside if name.casefold() not in self._ours}
        ):
            self._move(statement, more)
        self.unclear += is_subject and statement.clear.cut

    def _note_made(self, statement: Statement, tables: dict[str, str], moved: set[str]) -> None:
        if statement.word == "RENAME":
            names = [name.casefold() for name in statement.tables]
            self._made = (self._made - {*names[::2]}) | {*names[1::2]}
        else:
            self._made |= _folded(moved) if statement.word == "ALTER" else tables.keys()
        self._made -= self._ours.keys()

    def _take_drop(self, statement: Statement, tables: dict[str, str]) -> None:
        """A DROP of several tables fails if one is not there, as those made meanwhile are not."""
        lacking, is_subject = tables.keys() & self._made, bool(tables.keys() & self._ours.keys())
        self._made -= lacking
        if lacking and is_subject and "IF" not in statement.clear.keywords()[:4]:
            self._move(statement, {tables[name] for name in lacking})

    def _may_name_ours(self, statement: Statement) -> bool:
        names = {name.casefold() for name in statement.clear.names()}
        return (
            statement.clear.cut or bool(names & self._bare) or self._may_look_different(statement)
        )

    def _may_look_different(self, statement: Statement) -> bool:
        """Whether our names may look different in it: it is in another character set."""
        head = statement.clear
        is_ascii = head.text.isascii() and not head.cut
        return not (head.is_utf8 or is_ascii or all(map(str.isascii, self._ours)))


def _exchanges(statement: Statement) -> bool:
    """Whether a definition has a word with which tables exchange rows."""
    return not _EXCHANGES.isdisjoint(statement.clear.keywords())


def _folded(names: set[str]) -> set[str]:
    return {name.casefold() for name in names}


@dataclass(slots=True)
class _Noted:
    """Statements of one sort: how many, and the first few as text."""

    count: int = 0
    shown: list[str] = field(default_factory=list)

    def add(self, statement: Statement) -> None:
        self.count += 1
        if len(self.shown) < _SHOWN:
            self.shown.append(cut(" ".join(statement.clear.text.split()), _MOST_TEXT))


def _others(statement: Statement) -> tuple[set[str], set[str]]:
    """The tables that a definition exchanges rows with, and those that it only refers to."""
    words = list(statement.clear.names())
    upper = [word.upper() for word in words]
    moved, read = set[str](), set[str]()
    if statement.word == "RENAME" or "TABLE" not in upper:
        return moved, read
    for at, word in enumerate(upper):
        behind = at + 1
        if word == "RENAME" and statement.word == "ALTER":
            while upper[behind : behind + 1] in (["TO"], ["AS"], ["="]):
                behind += 1
            if upper[behind : behind + 1] and upper[behind] not in _NOT_TABLES:
                moved |= _name_at(words, behind, statement.db)
        elif word == "TABLE" and {"EXCHANGE", "CONVERT"} & set(upper[:at]):
            moved |= _name_at(words, behind, statement.db)
        elif word in ("LIKE", "REFERENCES"):
            read |= _name_at(words, behind, statement.db)
        elif word == "UNION":
            moved |= _merged(words, behind, statement.db)
    return moved, read


def _merged(words: Sequence[str], at: int, db: str) -> set[str]:
    """The tables that a MERGE table consists of, by the list after UNION; none in a SELECT."""
    tables = set[str]()
    at += words[at : at + 1] == ["="]
    mark = "("
    while words[at : at + 1] == [mark]:
        tables |= _name_at(words, at + 1, db)
        at += 4 if words[at + 2 : at + 3] == ["."] else 2
        mark = ","
    return tables if words[at : at + 1] == [")"] else set()


def _name_at(words: Sequence[str], at: int, db: str) -> set[str]:
    if words[at + 1 : at + 2] == ["."]:
        return {table_name(words[at], words[at + 2])} if len(words) > at + 2 else set()
    return {table_name(db, words[at])} if len(words) > at else set()


def watched(open_stream: OpenStream, check: StatementCheck) -> OpenStream:
    """The same stream, which ends with a RecoveryError before the bytes of such a statement."""
    return through(open_stream, lambda _, data: _refused(check, data))


def _refused(check: StatementCheck, data: Iterator[Checked]) -> Iterator[Checked]:
    for checked in check.through(data):
        if (refusal := check.refusal()) is not None:
            refusal.hint = (
                "what was left out cannot be applied any more: restore the base backup, and then "
                f"{refusal.hint}"
            )
            raise refusal
        yield checked


class OnlyTables:
    """That a plan is applied to only these tables: `refusals`, and what that cannot do safely.

    `tables`: their names as text. `looked`: all of the plan's binlogs were looked at. `check` is
    what was found in the binlogs; it learns more while those that were not looked at are applied.
    """

    def __init__(self, tables: Tables, plan: Plan, open_stream: OpenStream) -> None:
        self._pairs = tables
        self.tables = texts_of(tables)
        self._plan = plan
        self.check = StatementCheck(tables)
        self.looked = plan.size <= LOOKED_AT_MOST
        self.refusals: list[RecoveryError] = []
        self._unsafe: list[str] = []
        if self.looked:
            with closing(open_stream(plan.pieces)) as stream:
                for _, data in stream:
                    for _ in self.check.through(data):
                        pass
        self._tell()

    @property
    def unsafe(self) -> tuple[str, ...]:
        """What may make the tables differ from the source's, in words."""
        return tuple(dict.fromkeys(self._unsafe))

    @property
    def doubt(self) -> str:
        """Why the tables may differ from the source's after the apply; "" if nothing says so."""
        check = self.check
        if not (check.statements.count or check.elsewhere or check.unclear):
            return ""
        return (
            "statements in statement format were filtered: what they wrote to these tables through "
            "views, triggers and functions, or read from others, may be missing"
        )

    def _tell(self) -> None:
        check = self.check
        if not self.looked:
            self._unsafe.append(
                f"the {size_text(self._plan.size)} of binlogs were not looked at for statements "
                "and RENAMEs; a RENAME of these tables to or from another one stops the apply"
            )
        if (refusal := check.refusal()) is not None:
            self.refusals.append(refusal)
        if check.statements.count:
            self._unsafe.append(
                f"{count_text(check.statements.count, 'statement')} in statement format write to "
                "these tables; what they read from other tables is the base backup's: "
                + " | ".join(check.statements.shown)
            )
        if check.elsewhere:
            self._unsafe.append(
                f"{count_text(check.elsewhere, 'statement')} in statement format write to other "
                "tables or views, or call functions; what they write here through views, "
                "triggers and functions is left out"
            )
        if check.unclear:
            self._unsafe.append(f"{check.unclear} binlogs or statements could not be read fully")
        for text in self.tables if self.looked and self._plan.pieces else ():
            if text not in check.touched:
                changes = "names" if check.elsewhere or check.unclear else "changes"
                self._unsafe.append(f"nothing in these binlogs {changes} {text}")

    def ask(self, target: Target) -> None:
        """Ask the target as well."""
        facts = target.facts
        if not facts.release.filters_channels:
            self.refusals.append(
                facts.refusal(
                    f"is of version {facts.version}, which cannot filter one channel",
                    f"use MySQL 8.0 or later; {_WITHOUT}",
                )
            )
        self._ask_scratch(target)
        if facts.flavour == "mysql":
            self._ask_start(target)
        self._ask_tables(target)
        self._ask_merges(target)
        self._ask_keys(target)

    def _ask_scratch(self, target: Target) -> None:
        if others := other_channels(target):
            self._refuse_busy(target.facts, f"is set up as a replica (channel: {some(others)})")
        if target.facts.flavour != "mariadb" or not self._plan.pieces:
            return
        begins = self._plan.begins_behind or MariadbGtidList()
        for domain, wrote, number in replicated(target.server).gtids():
            if number > begins.greatest(domain):
                self._refuse_busy(
                    target.facts,
                    f"has replicated {domain}-{wrote}-{number} (gtid_slave_pos), which comes after "
                    "the place where this run begins",
                )

    def _ask_start(self, target: Target) -> None:
        """See that the target forgets no filter: one that starts does not have it any more.

        MariaDB drops what it has fetched when it starts a replica that uses GTIDs.
        """
        facts = target.facts
        rows = target.server.rows(
            "SHOW GLOBAL VARIABLES WHERE Variable_name IN "
            "('skip_replica_start', 'skip_slave_start')"
        )
        if not rows:
            self._unsafe.append(
                f"MySQL {facts.version} does not say whether it was started with "
                "--skip-slave-start; without it, after a crash it applies without the filter what "
                "it has fetched"
            )
        elif any(str(row["Value"]).upper() == "OFF" for row in rows):
            self.refusals.append(
                facts.refusal(
                    "has skip_replica_start = OFF: after a crash it would apply without the filter "
                    "what it has fetched",
                    "set skip_replica_start = ON in its configuration (skip_slave_start before "
                    " MySQL 8.0.26), restart it, and run the same command again",
                )
            )

    def _refuse_busy(self, facts: TargetFacts, why: str) -> None:
        self.refusals.append(
            facts.refusal(
                f"{why}: --table is for a scratch server that has the base backup and nothing else",
                "restore the base backup into an empty server (then RESET REPLICA ALL, if the "
                "backup brought a replica's settings along)",
            )
        )

    def _ask_tables(self, target: Target) -> None:
        server, facts = target.server, target.facts
        folds = str(server.rows("SELECT @@lower_case_table_names AS it")[0]["it"]) != "0"
        for database, name in self._pairs:
            rows = server.rows(
                "SELECT table_schema AS db, table_name AS name FROM information_schema.tables "
                "WHERE table_schema = %s AND table_name = %s",
                (database, name),
            )
            text = table_name(database, name)
            if folds and text != text.lower():
                self.refusals.append(
                    facts.refusal(
                        f"keeps names in lower case, not {text}", f"--table '{text.lower()}'"
                    )
                )
            shown = {table_name(str(row["db"]), str(row["name"])) for row in rows}
            if text in (_folded(shown) if folds else shown):
                continue
            if self.looked and text not in self.check.touched:
                self.refusals.append(
                    facts.refusal(
                        f"does not show a table {text}, and nothing in the plan's binlogs changes "
                        "it",
                        "is the name right, and its case? Was the base backup restored? The "
                        "account needs SELECT on the table to see it",
                    )
                )
            else:
                self._unsafe.append(
                    f"the target does not show a table {text}: it is not in the base backup, or "
                    "the account is missing SELECT on it; then its foreign keys are unknown"
                )

    def _ask_merges(self, target: Target) -> None:
        """Refuse MERGE tables over these: rows are logged under the name that a statement gave."""
        server, facts = target.server, target.facts
        ours, missing = _folded(set(self.tables)), dict[str, None]()
        for row in server.rows(
            "SELECT table_schema AS db, table_name AS name FROM information_schema.tables "
            "WHERE engine = %s ORDER BY 1, 2",
            (_MERGE,),
        ):
            database, name = str(row["db"]), str(row["name"])
            text = table_name(database, name)
            named = f"{quoted(database)}.{quoted(name)}"
            try:
                (shown,) = server.rows(f"SHOW CREATE TABLE {named}")
            except SourceError as error:
                if not error.answered:
                    raise
                self.refusals.append(
                    facts.refusal(
                        f"has a MERGE table, {text}, perhaps of these tables: {error}",
                        f"drop it in the scratch server; or {_WITHOUT}",
                    )
                )
                continue
            made = statement_of(str(shown["Create Table"]), database)
            together = {text, *(_others(made)[0] if made is not None else ())}
            if _folded(together) & ours:
                missing |= dict.fromkeys(
                    name for name in sorted(together) if name.casefold() not in ours
                )
        self._refuse_without(
            list(missing),
            f"at the target, {facts.address}, these tables and others are of one MERGE table, and "
            f"what was written through it is logged under its name: {some(list(missing))}",
        )

    def _refuse_without(self, missing: Sequence[str], why: str) -> None:
        """Refuse if these tables have to be applied, too."""
        if missing:
            words = " ".join(f"--table '{name}'" for name in missing)
            self.refusals.append(
                RecoveryError(
                    f"--table cannot be applied safely: {why}, which would be left out",
                    hint=f"add {words}; or {_WITHOUT}",
                )
            )

    def _ask_keys(self, target: Target) -> None:
        keys = [
            _Key(
                child=table_name(str(row["db"]), str(row["name"])),
                parent=table_name(str(row["parent_db"]), str(row["parent"])),
                passes_on=row["on_delete"] in _PASSES_ON or row["on_update"] in _PASSES_ON,
            )
            for row in target.server.rows(
                "SELECT constraint_schema AS db, table_name AS name, "
                "unique_constraint_schema AS parent_db, referenced_table_name AS parent, "
                "delete_rule AS on_delete, update_rule AS on_update "
                "FROM information_schema.referential_constraints"
            )
        ]
        ours = _folded(set(self.tables))
        missing: list[str] = []
        applied = set(ours)
        while more := {
            key.parent
            for key in keys
            if key.passes_on
            and key.child.casefold() in applied
            and key.parent.casefold() not in applied
        }:
            missing += sorted(more)
            applied |= _folded(more)
        self._refuse_without(
            missing,
            f"at the target, {target.facts.address}, foreign keys delete or change rows of these "
            f"tables when rows are deleted or changed in {some(missing)}",
        )
        for key in keys:
            is_child, is_parent = key.child.casefold() in ours, key.parent.casefold() in ours
            if is_child and not is_parent and not key.passes_on:
                self._unsafe.append(
                    f"{key.child} refers to {key.parent}, which is left out: a row that refers to "
                    "a newer row there stops the apply"
                )
            elif is_parent and not is_child:
                self._unsafe.append(
                    f"{key.child}, which is left out, refers to {key.parent}: its rows stay as in "
                    "the base backup, and may stop a DELETE or be deleted by it"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """A foreign key. `passes_on`: what happens to a row of the parent happens to the child's."""

    child: str
    parent: str
    passes_on: bool
