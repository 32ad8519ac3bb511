"""`binlog2s3 undo`: takes back transactions on the living server, exactly or not at all.

Law: nothing is changed before the plan is made and the operator has said yes. The plan is made of
the archive, which has everything that the server has written up to when it was asked.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.archive.sources import nothing_of
from binlog2s3.binlog.events import MAGIC, EventType, decode_format
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.binlog.place import is_in
from binlog2s3.binlog.tables import RowsKind
from binlog2s3.binlog.undo import (
    STEP_BYTES,
    ChangedTable,
    Changes,
    EventMaker,
    TransactionReader,
    fingerprint,
    split_rows,
    steps,
    with_checksums,
)
from binlog2s3.config.bucket import MOST_THREADS, for_restoring, url
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.points import parse_gtids
from binlog2s3.config.undo import UndoConfig
from binlog2s3.errors import ArchiveError, RecoveryError
from binlog2s3.formatting import count_text, iso_text, size_text
from binlog2s3.inspect.find.match import Criteria, Hit, SearchQuery, Tables
from binlog2s3.inspect.find.scan import TransactionSearch
from binlog2s3.output import NO_CHANGE, Column, Table, clean, confirm, page_on, say
from binlog2s3.recover.snapshot import Survey
from binlog2s3.server.connection import Server, ServerFacts, ServerPosition
from binlog2s3.server.login import Login, resolve
from binlog2s3.server.version import is_on
from binlog2s3.store.s3 import S3Store, opened
from binlog2s3.undo.execute import (
    Conflict,
    ConflictError,
    Execution,
    Undone,
    prepare,
)
from binlog2s3.undo.tables import Definition, definition_of
from binlog2s3.workers import Workers

TRANSACTIONS_MOST = 10_000
ARCHIVE_WAIT = 60
"""Seconds that the archive may need until it has what the server has written."""
_ANSWER_WAIT = 3600.0
"""Seconds that a statement of an undo may take."""
_LATER_MOST = 500
"""So many later transactions are searched for the one that changed a row."""
_PACKET_RATIO = 1.4
"""A statement is so much larger than its rows: base64."""
_PACKET_MORE = 64 << 10
_VERBS: dict[RowsKind, str] = {
    "insert": "rows to delete again",
    "update": "rows to set back",
    "delete": "rows to insert again",
}


def run(config: UndoConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; the exit code. Raises errors, each with its own exit code."""
    with ExitStack() as stack:
        s3 = for_restoring(config.s3)
        store = stack.enter_context(
            opened(s3, sigterm_interrupts=True, evidence=Evidence, session=outside.session)
        )
        login = partial(resolve, config.target)
        server = stack.enter_context(Server(login))
        file = stack.enter_context(tempfile.TemporaryFile())
        return _Undo(config, store, server, cast("BinaryIO", file), outside).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What is to be undone: transactions, oldest first, and their changes."""

    hits: tuple[Hit, ...]
    changes: Changes
    definitions: dict[int, Definition]
    form: bytes
    facts: ServerFacts
    notes: tuple[str, ...] = field(default=())


@dataclass(slots=True)
class _Culprits:
    """Later transactions: which changed a row; which has undone all ("": none)."""

    by_row: dict[tuple[str, bytes], str] = field(default_factory=dict)
    undo: str = ""


class _Undo:
    def __init__(
        self,
        config: UndoConfig,
        store: S3Store,
        server: Server,
        file: BinaryIO,
        outside: Outside,
    ) -> None:
        self._config = config
        self._store = store
        self._server = server
        self._file = file
        self._outside = outside
        self._catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        self._workers = Workers(min(config.s3.concurrency, MOST_THREADS))
        self._warned: list[str] = []

    def run(self) -> int:
        config = self._config
        if config.output is not None and config.output.exists():
            raise RecoveryError(f"{config.output} exists already", hint="give another file")
        facts = self._server.facts()
        prepare(self._server, facts.flavour)
        notes = self._check_settings(self._server, facts)
        survey = self._survey(facts)
        hits = self._found(survey)
        self._check_executed(hits, survey, facts)
        changes, form = self._read(hits, survey)
        self._check_size(changes)
        definitions = self._definitions(changes, facts)
        survey = self._survey(facts)  # with all DDL up to these definitions
        self._check_ddl(hits, changes, survey)
        plan = _Plan(
            hits=tuple(hits),
            changes=changes,
            definitions=definitions,
            form=form,
            facts=facts,
            notes=tuple(notes),
        )
        if not config.as_json:
            self._show(plan)
        if config.dry_run:
            return self._end(plan, None)
        if config.output is not None:
            self._write(plan, config.output)
            return self._end(plan, None)
        if not config.yes:
            confirm(
                f"Undo {count_text(len(hits), 'transaction')} on {self._server.address}?",
                "undone",
                hint="--yes does not ask; --dry-run shows the plan",
                as_json=config.as_json,
            )
        return self._end(plan, self._execute(plan, survey))

    # The server

    def _check_settings(self, server: Server, facts: ServerFacts) -> list[str]:
        """Refuse a server on which an undo is not known to be exact. Returns notes."""
        found = _variables(server)

        def refuse(why: str, hint: str = "") -> RecoveryError:
            return RecoveryError(f"{server.address} cannot undo: {why}", hint=hint)

        if is_on(found.get("read_only")) or is_on(found.get("super_read_only")):
            raise refuse("it is read-only", "undo on the server that is written to")
        if _is_replica(server, facts):
            raise refuse(
                "it is a replica, and its source would not get the undo",
                "undo on the server that is written to",
            )
        if found.get("binlog_format", "ROW") not in ("ROW", "MIXED"):
            raise refuse(f"binlog_format is {found['binlog_format']}", "it must be ROW or MIXED")
        if is_on(found.get("wsrep_on")):
            raise refuse("it is in a Galera cluster: not supported")
        if found.get("rbr_exec_mode", "STRICT") != "STRICT":
            raise refuse("rbr_exec_mode is not STRICT: errors would be ignored")
        if facts.flavour == "mariadb":
            if found.get("slave_exec_mode", "STRICT") != "STRICT":
                raise refuse("slave_exec_mode is not STRICT: errors would be ignored")
            if found.get("slave_run_triggers_for_rbr", "NO") != "NO":
                raise refuse("slave_run_triggers_for_rbr is not NO: triggers would fire")
        elif _in_group(server):
            raise refuse("it is in a group (Group Replication): not supported")
        self._packet = int(found.get("max_allowed_packet", 0))
        notes = ["triggers do not fire: rows that they changed are in the transaction itself"]
        if found.get("binlog_row_image", "FULL") != "FULL":
            notes.append("binlog_row_image is not FULL: the undo cannot be undone")
        return notes

    def _survey(self, facts: ServerFacts) -> Survey:
        """The bucket, once it has all that the server had written when it was asked."""
        position = self._server.position()
        for _ in range(ARCHIVE_WAIT):
            survey = Survey(self._store, self._catalog, self._workers)
            self._check_lineage(survey, facts)
            if _has(survey, position):
                return survey
            self._outside.sleep(1.0)
        raise RecoveryError(
            f"the archive does not have what {self._server.address} has written up to "
            f"{position.place}, so it cannot tell what came after",
            hint="see `binlog2s3 status`: the streamer must be running and keep up",
        )

    def _check_lineage(self, survey: Survey, facts: ServerFacts) -> None:
        config = self._config
        if not survey.lineages:
            if survey.unreadable:
                raise survey.unreadable[0]
            raise nothing_of(self._store, config.s3.prefix, config.source, url(config.s3))
        current = next(one for one in survey.lineages if one.id == survey.current)
        if current.server_uuid != facts.uuid:
            raise RecoveryError(
                f"{self._server.address} is not the server that is streamed: its id is "
                f"{facts.uuid}, and that of the current lineage {current.server_uuid}",
                hint="undo on the streamed server; its replicas get the undo from it",
            )

    # The transactions

    def _search(self, survey: Survey, query: SearchQuery) -> Iterator[Hit]:
        """Search; what could not be searched is refused at the end."""
        warnings: list[str] = []
        search = TransactionSearch(
            survey,
            query,
            threads=self._config.s3.concurrency,
            warn=warnings.append,
            advance=lambda _: None,
        )
        with closing(search.hits()) as hits:
            yield from hits
        if warnings:
            raise ArchiveError(
                f"not everything could be searched: {warnings[0]}",
                hint="`binlog2s3 verify` checks the archive; what came after a transaction must be "
                "known before it is undone",
            )

    @property
    def _wanted(self) -> Tables | None:
        return Tables(self._config.tables) if self._config.tables else None

    def _found(self, survey: Survey) -> list[Hit]:
        """The transactions, oldest first. Raises ArchiveError if one is not there."""
        config = self._config
        query = SearchQuery(wanted=Criteria(), gtids=config.gtids, at=config.at, order="oldest")
        hits: list[Hit] = []
        try:
            for hit in self._search(survey, query):
                hits.append(hit)
                if len(hits) > TRANSACTIONS_MOST:
                    raise RecoveryError(
                        f"more than {TRANSACTIONS_MOST:,} transactions", hint="undo fewer at once"
                    )
        except ArchiveError:
            if not hits or _missing(config.gtids, hits):
                raise
        what = f"at {config.at[0]}:{config.at[1]}" if config.at else _missing(config.gtids, hits)
        if not hits or (what and config.at is None):
            raise ArchiveError(
                f"no transaction {what} was found in the bucket",
                hint="`binlog2s3 find` shows GTIDs and positions",
            )
        names = [hit.transaction.gtid for hit in hits if hit.transaction.gtid]
        if len(names) != len({*names}):
            raise RecoveryError(
                "a GTID of them was given twice, to different transactions",
                hint="--at names one of them; `binlog2s3 find` shows where they begin",
            )
        concerned = [hit for hit in hits if self._concerns(hit)]
        if not concerned:
            raise RecoveryError("none of these transactions changes rows of these tables")
        return concerned

    def _concerns(self, hit: Hit) -> bool:
        """Whether a transaction may have changed rows of the tables that are to be undone.

        Changes of rows say which table they are of, and so does DDL; another statement may change
        any table, by a trigger or a function.
        """
        wanted = self._wanted
        return (
            wanted is None
            or hit.content.lost
            or hit.content.two_phase is not None
            or any(
                not change.table
                or wanted.may_have(change.table)
                or (change.rows is None and change.kind != "ddl")
                for change in hit.content.changes
            )
        )

    def _check_executed(self, hits: Sequence[Hit], survey: Survey, facts: ServerFacts) -> None:
        executed = self._server.executed()
        for hit in hits:
            gtid = hit.transaction.gtid
            if gtid is None or executed is None:
                known = hit.lineage == survey.current
            elif isinstance(executed, MariadbGtidList):
                ((domain, server, number),) = parse_gtids(gtid).gtids()  # type: ignore[union-attr]
                known = any(
                    (d, s) == (domain, server) and n >= number for d, s, n in executed.gtids()
                )
            else:
                known = is_in(executed, gtid)
            if not known:
                raise RecoveryError(
                    f"{self._server.address} has not executed {_name(hit)}",
                    hint=f"it is {facts.uuid}; `binlog2s3 find` shows the lineage of a transaction",
                )

    def _read(self, hits: Sequence[Hit], survey: Survey) -> tuple[Changes, bytes]:
        """All changes, and the format event of their binlogs."""
        changes, form = Changes(self._file), b""
        versions = set[str]()
        for hit in hits:
            if hit.content.two_phase is not None:
                raise RecoveryError(
                    f"{_name(hit)} cannot be undone: it is one phase of an XA transaction, or of "
                    "an ALTER"
                )
            form = self._read_one(hit, survey, changes, self._wanted)
            versions.add(decode_format(form, offset=0).server_version)
        if len(versions) > 1:
            raise RecoveryError(
                f"the transactions are of different versions of the server: {sorted(versions)}",
                hint="undo those of each version by themselves, the newest first",
            )
        if not changes.size:
            raise RecoveryError("no row is to be undone", hint="`binlog2s3 rows` shows the rows")
        return changes, with_checksums(form, decode_format(form, offset=0))

    def _read_one(self, hit: Hit, survey: Survey, changes: Changes, tables: Tables | None) -> bytes:
        """Add the changes of one transaction; returns its binlog's format event."""
        found = survey.find(hit.lineage, hit.binlog)
        begin, end = hit.transaction.begin, hit.transaction.end
        if any(low < end and high > begin for low, high in found.known.damaged):
            raise RecoveryError(f"{_name(hit)} cannot be undone: it is damaged in the archive")
        head = survey.blocks.head(found, begin)
        reader = TransactionReader(
            changes,
            decode_format(head, offset=0),
            wants=lambda name: tables is None or tables.has(name),
            what=_name(hit),
        )
        try:
            with closing(survey.blocks.read(found, begin, end)) as views:
                for view in views:
                    reader.feed(view)
        except OSError as error:
            raise RecoveryError(
                f"cannot keep the changes of {_name(hit)} in {tempfile.gettempdir()}: "
                f"{error.strerror or error}",
                hint="set TMPDIR to a directory with more space",
            ) from error
        reader.end()
        return head

    def _check_size(self, changes: Changes) -> None:
        needed = int(changes.largest * _PACKET_RATIO) + _PACKET_MORE
        if needed > self._packet:
            raise RecoveryError(
                f"a row is too large for max_allowed_packet: {size_text(needed)} are needed, and "
                f"{size_text(self._packet)} allowed",
                hint=f"SET GLOBAL max_allowed_packet = {-(-needed // 1024) * 1024}",
            )

    def _check_ddl(self, hits: Sequence[Hit], changes: Changes, survey: Survey) -> None:
        """Refuse if a table was defined anew since, or perhaps."""
        names = {(one.body.database, one.body.table) for one in changes.tables}
        for hit in self._later(hits[0], Criteria(tables=Tables(tuple(names)),
                                                 kinds=frozenset({"ddl"})), survey):  # fmt: skip
            texts = "; ".join(hit.content.statements[:1]) or "; ".join(map(str, hit.match.matched))
            changes_it = "changes" if hit.match.certain else "may change"
            raise RecoveryError(
                f"{_name(hit)}, which came later, {changes_it} the definition of a table that is "
                f"to be undone: {clean(texts)[:200]}",
                hint="restore the table to another server (docs/guides/one-table.md); an undo "
                "could put values into other columns",
            )

    def _later(self, first: Hit, wanted: Criteria, survey: Survey) -> Iterator[Hit]:
        """What came after a transaction, in its order."""
        query = SearchQuery(wanted=wanted, since=(first.lineage, first.binlog), order="oldest")
        for hit in self._search(survey, query):
            is_same = (hit.lineage, hit.binlog) == (first.lineage, first.binlog)
            if not (is_same and hit.transaction.begin <= first.transaction.begin):
                yield hit

    def _definitions(self, changes: Changes, facts: ServerFacts) -> dict[int, Definition]:
        return {
            one.number: definition_of(self._server, facts.flavour, one, changes.kinds(one.name))
            for one in changes.tables
        }

    # Doing it

    def _execute(self, plan: _Plan, survey: Survey) -> Undone:
        try:
            return self._executed(plan)
        except ConflictError as error:  # its locks are gone: the archive is read for minutes, maybe
            raise self._explained(error, plan, survey) from error

    def _check_same(self, server: Server, facts: ServerFacts) -> None:
        """Refuse if, since it was planned, the address leads to another server, or it changed."""
        found = server.facts()
        if found.uuid != facts.uuid:
            raise RecoveryError(
                f"{server.address} is another server than when the undo was planned: {found.uuid}, "
                f"not {facts.uuid}",
                hint="give the address of the server itself, not of a proxy",
            )
        self._check_settings(server, found)

    def _executed(self, plan: _Plan) -> Undone:
        def patient() -> Login:
            return replace(resolve(self._config.target), connect_timeout=_ANSWER_WAIT)

        with ExitStack() as stack:
            scratch = stack.enter_context(Server(patient))
            work = stack.enter_context(Server(patient, tracks_gtids=True))
            for server in (scratch, work):
                prepare(server, plan.facts.flavour)
                self._check_same(server, plan.facts)

            def again(table: ChangedTable) -> Definition:
                found = definition_of(
                    scratch, plan.facts.flavour, table, plan.changes.kinds(table.name)
                )
                if found != plan.definitions[table.number]:
                    raise RecoveryError(
                        f"the definition of {table.name} was changed while the undo was planned",
                        hint="run it again",
                    )
                return found

            execution = stack.enter_context(
                Execution(
                    scratch,
                    work,
                    flavour=plan.facts.flavour,
                    form=plan.form,
                    definitions=again,
                    skip_conflicts=self._config.skip_conflicts,
                )
            )
            most = int((self._packet - _PACKET_MORE) / _PACKET_RATIO)
            for step in steps(plan.changes, most_bytes=min(most, STEP_BYTES)):
                execution.undo(step)
            if not execution.done.rows:
                raise RecoveryError(
                    "every row is in conflict: nothing was changed",
                    hint="see the transaction's rows with `binlog2s3 rows`",
                )
            return execution.commit()

    def _explained(self, error: ConflictError, plan: _Plan, survey: Survey) -> RecoveryError:
        """What is in conflict, and with which later transaction."""
        culprits = self._culprits(error.conflicts, plan, survey)
        if error.undone or culprits.undo:
            by = f" by {culprits.undo}" if culprits.undo else ""
            return RecoveryError(
                f"it was undone already{by}, or rows were set back since: nothing was changed",
                hint="`binlog2s3 rows` shows what a transaction changed",
            )
        by_row = {row: f", by {name}" for row, name in culprits.by_row.items()}
        shown = "; ".join(f"{one}{by_row.get(one.row, '')}" for one in error.conflicts)
        return RecoveryError(
            f"nothing was changed: {error}" + (f": {shown}" if shown else ""),
            hint="--skip-conflicts leaves rows out that were changed since, and undoes the others",
        )

    def _culprits(self, conflicts: Sequence[Conflict], plan: _Plan, survey: Survey) -> "_Culprits":
        """The last transactions that changed rows of a conflict; as far as they are found."""
        wanted = {one.row for one in conflicts if one.why != "there again"}
        found = _Culprits()
        undone = {(one.lineage, one.binlog, one.transaction.begin) for one in plan.hits}
        pairs = {(one.body.database, one.body.table) for one in plan.changes.tables}
        criteria = Criteria(tables=Tables(tuple(pairs)), kinds=frozenset(_VERBS))
        done, undo = fingerprint(plan.changes), fingerprint(plan.changes, turned=True)
        with tempfile.TemporaryFile() as file, suppress(ArchiveError):
            for number, hit in enumerate(self._later(plan.hits[0], criteria, survey)):
                if number >= _LATER_MOST:
                    break
                if (hit.lineage, hit.binlog, hit.transaction.begin) in undone:
                    continue
                changes = Changes(cast("BinaryIO", file))
                with suppress(RecoveryError):
                    self._read_one(hit, survey, changes, self._wanted)
                    found.by_row |= {row: _name(hit) for row in _befores(changes) if row in wanted}
                    now = fingerprint(changes)
                    if now in (done, undo):  # or it was done again
                        found.undo = _name(hit) if now == undo else ""
        return found

    def _write(self, plan: _Plan, path: Path) -> None:
        """Write the undo as a binlog file, private to this user."""
        now = int(self._outside.now().timestamp())
        maker = EventMaker(flavour=plan.facts.flavour, timestamp=now)
        try:
            self._write_to(plan, maker, path)
        except OSError as error:
            raise RecoveryError(
                f"cannot write {path}: {error.strerror or error}",
                hint="give another file; what is there of it is not whole",
            ) from error

    def _write_to(self, plan: _Plan, maker: EventMaker, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(MAGIC + plan.form)
            if plan.facts.flavour == "mysql":
                out.write(maker.event(EventType.QUERY, _query_body(_NEXT_GTID)))
            out.write(maker.event(EventType.QUERY, _query_body(b"BEGIN")))
            out.writelines(maker.undoing(step) for step in steps(plan.changes))
            out.write(maker.event(EventType.XID, bytes(8)))

    # Showing

    def _show(self, plan: _Plan) -> None:
        page = page_on(sys.stdout)
        count = count_text(len(plan.hits), "transaction")
        page.line(f"undo of {count} of {self._config.source} on {self._server.address}", "bold")
        for hit in plan.hits[:20]:
            page.line(f"{iso_text(hit.transaction.commit_us)}  {_name(hit)}", indent=2)
        if len(plan.hits) > 20:
            page.line(f"... and {len(plan.hits) - 20:,} more", indent=2)
        rows = [
            (name, _VERBS[kind], f"{n:,}") for (name, kind), n in sorted(plan.changes.rows.items())
        ]
        columns = (Column(name="table"), Column(name="what"), Column(name="rows", right=True))
        table = Table(page, columns, rows)
        for row in rows:
            table.row(row)
        page.line(f"{size_text(plan.changes.size)} of rows, in {tempfile.gettempdir()}")
        for note in plan.notes:
            page.line(f"note: {note}")
        gtid = plan.hits[0].transaction.gtid
        what = (
            f"--gtid {gtid}"
            if gtid
            else f"--at {plan.hits[0].binlog}:{plan.hits[0].transaction.begin}"
        )
        page.line(f"its rows: binlog2s3 rows {what}")

    def _end(self, plan: _Plan, done: Undone | None) -> int:
        config = self._config
        if config.as_json:
            print(json.dumps(_document(plan, done, config), indent=1))  # noqa: T201
        elif done is None and config.output is not None:
            say("hint", f"written: {config.output}; mysqlbinlog prints it; nothing was compared")
        elif done is None:
            say("hint", NO_CHANGE)
        else:
            page = page_on(sys.stdout)
            page.line(
                f"undone: {count_text(done.rows.total(), 'row')}"
                + (f"; the undo's GTID is {done.gtid}" if done.gtid else "")
            )
            for conflict in done.conflicts:
                page.line(f"left out: {conflict}", "yellow")
            if done.skipped:
                page.line(f"{count_text(done.skipped, 'row')} left out: in conflict", "yellow")
        sys.stdout.flush()
        return 0


def _query_body(text: bytes) -> bytes:
    return bytes(4 + 4 + 1 + 2) + bytes(2) + b"\0" + text


_NEXT_GTID = b"SET gtid_next = 'AUTOMATIC'"
"""The format event leaves it undetermined."""


def _in_group(server: Server) -> bool:
    rows = server.rows(
        "SELECT COUNT(*) AS it FROM information_schema.plugins WHERE plugin_name = "
        "'group_replication' AND plugin_status = 'ACTIVE'"
    )
    return bool(int(rows[0]["it"]))


def _is_replica(server: Server, facts: ServerFacts) -> bool:
    """Whether a thread of it replicates."""
    if facts.flavour == "mariadb":
        rows = server.rows("SHOW GLOBAL STATUS LIKE 'Slaves_running'")
        return any(int(row["Value"]) for row in rows)
    rows = server.rows(server.statements.replica_statement)
    words = ("_IO_Running", "_SQL_Running")
    return any(
        str(value) != "No" for row in rows for name, value in row.items() if name.endswith(words)
    )


def _variables(server: Server) -> dict[str, str]:
    """The settings of the session that matter; those that it does not have are missing."""
    names = (
        "read_only", "super_read_only", "binlog_format", "binlog_row_image", "rbr_exec_mode",
        "wsrep_on", "slave_exec_mode", "slave_run_triggers_for_rbr", "max_allowed_packet",
    )  # fmt: skip
    listed = ", ".join(f"'{name}'" for name in names)
    rows = server.rows(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")
    return {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}


def _has(survey: Survey, position: ServerPosition) -> bool:
    """Whether the archive has what the server has written up to a position."""
    names = survey.names(survey.current)
    binlog, offset = position.place
    if binlog in names:
        return survey.size(survey.current, binlog) >= offset
    return bool(names) and names[-1] > binlog


def _missing(gtids: Sequence[str], hits: Sequence[Hit]) -> str:
    """Those GTIDs that were not found; "" if none is missing."""
    found = [hit.transaction.gtid for hit in hits if hit.transaction.gtid]
    missing: list[str] = []
    for text in gtids:
        wanted = parse_gtids(text)
        if isinstance(wanted, GtidSet):
            for one in found:
                wanted -= GtidSet.parse(one)
            missing += [str(wanted)] if wanted else []
        else:
            missing += [one for one in text.split(",") if one.strip() not in found]
    return ", ".join(missing)


def _name(hit: Hit) -> str:
    """A transaction, for messages."""
    return hit.transaction.gtid or f"the transaction at {hit.binlog}:{hit.transaction.begin}"


def _befores(changes: Changes) -> Iterator[tuple[str, bytes]]:
    """The rows that a transaction changed or deleted: table, and how they were before it."""
    for table, kind, data in changes.backwards():
        if kind != "insert":
            for row in split_rows(table.image, data, 2 if kind == "update" else 1):
                yield table.name, row[0]


def _document(plan: _Plan, done: Undone | None, config: UndoConfig) -> dict[str, Any]:
    """The JSON document."""
    return {
        "source": config.source,
        "transactions": [
            {
                "gtid": hit.transaction.gtid,
                "binlog": str(hit.binlog),
                "position": hit.transaction.begin,
                "lineage": hit.lineage,
                "committed_at": iso_text(hit.transaction.commit_us),
            }
            for hit in plan.hits
        ],
        "tables": [
            {"table": name, "kind": kind, "rows": rows}
            for (name, kind), rows in sorted(plan.changes.rows.items())
        ],
        "notes": list(plan.notes),
        "done": done is not None,
        "output": str(config.output) if config.output is not None else None,
        "gtid": (done.gtid or None) if done is not None else None,
        "rows": done.rows.total() if done is not None else None,
        "left_out": done.skipped if done is not None else None,
        "conflicts": [
            {"table": one.table, "key": one.key, "why": one.why} for one in done.conflicts
        ]
        if done is not None
        else [],
    }
