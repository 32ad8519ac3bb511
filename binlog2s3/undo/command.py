"""`binlog2s3 undo`: takes back transactions on the live server, exactly or not at all.

Law: nothing is changed before the plan is made and the operator has said yes. The plan is made of
the archive, which has everything that the server has written up to when it was asked.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO, cast

from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.events import MAGIC, EventType
from binlog2s3.binlog.gtid import parse
from binlog2s3.binlog.undo import STEP_BYTES, ChangedTable, Changes, EventMaker, steps
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.undo import UndoConfig
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import count_text, size_text
from binlog2s3.inspect.find.match import Criteria, Hit
from binlog2s3.inspect.find.rows import RowPrinter
from binlog2s3.output import NO_CHANGE, confirm, page_on, say
from binlog2s3.progress import ProgressDisplay
from binlog2s3.recover.snapshot import Snapshot
from binlog2s3.server.connection import Server, ServerFacts, ServerPosition
from binlog2s3.server.login import Login, resolve
from binlog2s3.server.mysqlbinlog import find as find_mysqlbinlog
from binlog2s3.server.omissions import binlog_filters, in_galera
from binlog2s3.server.replica import is_running_replica
from binlog2s3.server.version import is_on
from binlog2s3.store.s3 import S3Store, opened
from binlog2s3.undo.execute import ConflictError, Execution, Undone, prepare
from binlog2s3.undo.tables import Definition, definition_of
from binlog2s3.undo.transactions import Culprits, Later, TransactionSource, name_of
from binlog2s3.undo.view import SHOWN_ROWS, Plan, document, show
from binlog2s3.workers import Workers

ARCHIVE_WAIT = 60
"""Seconds that the archive may need until it has what the server has written."""
_ANSWER_WAIT = 3600.0
"""Seconds that a statement of an undo may take."""
_PACKET_RATIO = 1.4
"""A statement is so much larger than its rows: base64."""
_PACKET_MORE = 64 << 10
_IN_CLUSTER = (
    "set the rows right by hand (`binlog2s3 rows` shows them), or restore the table to another "
    "server (docs/recovery/one-table.md)"
)


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
        display = stack.enter_context(ProgressDisplay(sys.stderr))
        return _Undo(config, store, server, cast("BinaryIO", file), outside, display).run()


class _Undo:
    def __init__(
        self,
        config: UndoConfig,
        store: S3Store,
        server: Server,
        file: BinaryIO,
        outside: Outside,
        display: ProgressDisplay,
    ) -> None:
        self._config = config
        self._display = display
        self._server = server
        self._file = file
        self._outside = outside
        self._execution: Execution | None = None
        self._catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        self._source = TransactionSource(config, advance=self._advance)
        self._workers = Workers(config.s3.threads)

    def run(self) -> int:
        config = self._config
        if config.output is not None and config.output.exists():
            raise RecoveryError(f"{config.output} exists already", hint="give another file")
        facts = self._server.facts()
        prepare(self._server, facts.flavour)
        notes = self._check_settings(self._server, facts)
        snapshot = self._snapshot(facts)
        hits = self._source.found(snapshot)
        self._check_executed(hits, snapshot, facts)
        changes, form = self._source.read(hits, snapshot, self._file)
        self._check_size(changes)
        definitions = self._definitions(changes, facts)
        snapshot = self._snapshot(facts)  # with all DDL up to these definitions
        later = Later(self._source, hits, changes, snapshot)
        later.check_ddl()
        undone_by, is_known = later.undone_by()
        if not (undone_by or is_known):
            notes.append("too much came after to look at: it may have been undone already")
        plan = Plan(
            hits=tuple(hits),
            changes=changes,
            definitions=definitions,
            form=form,
            facts=facts,
            undone_by=undone_by,
            notes=tuple(notes),
        )
        self._display.aside()
        if not config.as_json:
            self._show(plan, snapshot)
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
        return self._end(plan, self._execute(plan))

    def _advance(self, what: str, done: int, total: int) -> None:
        """Show how many bytes of the archive are done."""
        self._display.show(lambda: f"{size_text(done)} of {size_text(total)} {what}", done, total)

    # The server

    def _check_settings(self, server: Server, facts: ServerFacts) -> list[str]:
        """Refuse a server on which an undo is not known to be exact. Returns notes."""
        variables = _variables(server)

        def refuse(why: str, hint: str = "") -> RecoveryError:
            return RecoveryError(f"{server.address} cannot undo: {why}", hint=hint)

        if is_on(variables.get("read_only")) or is_on(variables.get("super_read_only")):
            raise refuse("it is read-only", "undo on the server that is written to")
        if is_running_replica(server):
            raise refuse(
                "it is a replica, and its source would not get the undo",
                "undo on the server that is written to",
            )
        if variables.get("binlog_format", "ROW") not in ("ROW", "MIXED"):
            raise refuse(
                f"binlog_format is {variables['binlog_format']}", "it must be ROW or MIXED"
            )
        if in_galera(server):
            raise refuse(
                "it is in a Galera cluster, whose other nodes would get the scratch tables, too, "
                "and write them to their binlogs"
                if is_on(variables.get("wsrep_on"))
                else "it is in a Galera cluster, and wsrep_on is OFF: the other nodes would not "
                "get the undo",
                _IN_CLUSTER,
            )
        if variables.get("rbr_exec_mode", "STRICT") != "STRICT":
            raise refuse("rbr_exec_mode is not STRICT: errors would be ignored")
        if facts.flavour == "mariadb":
            if variables.get("slave_exec_mode", "STRICT") != "STRICT":
                raise refuse("slave_exec_mode is not STRICT: errors would be ignored")
            if variables.get("slave_run_triggers_for_rbr", "NO") != "NO":
                raise refuse("slave_run_triggers_for_rbr is not NO: triggers would fire")
        elif _in_group(server):
            raise refuse(
                "it is in a group (Group Replication): not tried, so not supported", _IN_CLUSTER
            )
        self._packet = int(variables.get("max_allowed_packet", 0))
        notes = ["triggers do not fire: rows that they changed are in the transaction itself"]
        if variables.get("binlog_row_image", "FULL") != "FULL":
            notes.append("binlog_row_image is not FULL: the undo cannot be undone")
        filters = binlog_filters(server.rows(server.version.status_statement))
        notes += [
            f"{text}: DDL run in a database that it leaves out is unknown" for text in filters
        ]
        return notes

    def _snapshot(self, facts: ServerFacts) -> Snapshot:
        """The bucket, once it has all that the server had written when it was asked."""
        position = self._server.position()
        for _ in range(ARCHIVE_WAIT):
            snapshot = Snapshot(self._catalog, self._workers)
            self._check_lineage(snapshot, facts)
            if _has(snapshot, position):
                return snapshot
            self._outside.sleep(1.0)
        raise RecoveryError(
            f"the archive does not have what {self._server.address} has written up to "
            f"{position.place}, so it cannot tell what came after",
            hint="see `binlog2s3 status`: the streamer must be running and keep up",
        )

    def _check_lineage(self, snapshot: Snapshot, facts: ServerFacts) -> None:
        snapshot.refuse_nothing(self._config.s3.url)
        current = next(lineage for lineage in snapshot.lineages if lineage.id == snapshot.current)
        if current.server_uuid != facts.uuid:
            raise RecoveryError(
                f"{self._server.address} is not the server that is streamed: its id is "
                f"{facts.uuid}, and that of the current lineage {current.server_uuid}",
                hint="undo on the streamed server; its replicas get the undo from it",
            )

    def _check_executed(self, hits: Sequence[Hit], snapshot: Snapshot, facts: ServerFacts) -> None:
        executed = self._server.executed()
        for hit in hits:
            gtid = hit.transaction.gtid
            if gtid is None or executed is None:
                known = hit.lineage == snapshot.current
            else:
                known = parse(gtid, facts.flavour) <= executed
            if not known:
                raise RecoveryError(
                    f"{self._server.address} has not executed {name_of(hit)}",
                    hint=f"it is {facts.uuid}; `binlog2s3 find` shows the lineage of a transaction",
                )

    def _check_size(self, changes: Changes) -> None:
        needed = int(changes.largest * _PACKET_RATIO) + _PACKET_MORE
        if needed > self._packet:
            raise RecoveryError(
                f"a row is too large for max_allowed_packet: {size_text(needed)} are needed, and "
                f"{size_text(self._packet)} allowed",
                hint=f"SET GLOBAL max_allowed_packet = {-(-needed // 1024) * 1024}",
            )

    def _definitions(self, changes: Changes, facts: ServerFacts) -> dict[int, Definition]:
        return {
            table.number: definition_of(
                self._server, facts.flavour, table, changes.kinds(table.name)
            )
            for table in changes.tables
        }

    # Doing it

    def _execute(self, plan: Plan) -> Undone:
        try:
            return self._executed(plan)
        except ConflictError as error:  # its locks are gone: the archive is read for minutes, maybe
            now = Snapshot(self._catalog, self._workers)  # with what came since the plan was made
            later = Later(self._source, plan.hits, plan.changes, now)
            raise _explained(error, later.culprits(error.conflicts)) from error
        except KeyboardInterrupt:  # not during COMMIT: that is a LostCommitError
            if self._execution is not None and self._execution.committed:
                return self._execution.done  # it has to be told
            self._display.aside()
            page_on(sys.stderr).line("interrupted: nothing was changed, it is rolled back")
            raise
        except SourceError:  # not of the COMMIT either
            self._display.aside()
            page_on(sys.stderr).line("nothing was changed: what was not committed is rolled back")
            raise

    def _check_same(self, server: Server, facts: ServerFacts) -> None:
        """Refuse if, since it was planned, the address leads to another server, or it changed."""
        now = server.facts()
        if now.uuid != facts.uuid:
            raise RecoveryError(
                f"{server.address} is another server than when the undo was planned: {now.uuid}, "
                f"not {facts.uuid}",
                hint="give the address of the server itself, not of a proxy",
            )
        self._check_settings(server, now)

    def _executed(self, plan: Plan) -> Undone:
        def patient() -> Login:
            return replace(resolve(self._config.target), connect_timeout=_ANSWER_WAIT)

        with ExitStack() as stack:
            scratch = stack.enter_context(Server(patient))
            work = stack.enter_context(Server(patient, tracks_gtids=True))
            for server in (scratch, work):
                prepare(server, plan.facts.flavour)
                self._check_same(server, plan.facts)

            def again(table: ChangedTable) -> Definition:
                definition = definition_of(
                    scratch, plan.facts.flavour, table, plan.changes.kinds(table.name)
                )
                if definition != plan.definitions[table.number]:
                    raise RecoveryError(
                        f"the definition of {table.name} was changed while the undo was planned",
                        hint="run it again",
                    )
                return definition

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
            self._execution = execution
            most = int((self._packet - _PACKET_MORE) / _PACKET_RATIO)
            total = plan.changes.rows.total()
            all_steps = partial(steps, plan.changes, most_bytes=min(most, STEP_BYTES))
            if (
                self._config.skip_conflicts
                and plan.undone_by
                and not any(map(execution.rows_as_left, all_steps()))
            ):
                raise _undone_already(plan.undone_by)
            for step in all_steps():
                execution.undo(step)
                done = execution.done.rows.total() + execution.done.skipped
                self._display.show(partial(_rows_text, done, total), done, total)
            if not execution.done.rows:
                raise RecoveryError(
                    "every row is in conflict: nothing was changed",
                    hint="see the transaction's rows with `binlog2s3 rows`",
                )
            return execution.commit()

    def _write(self, plan: Plan, path: Path) -> None:
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

    def _write_to(self, plan: Plan, maker: EventMaker, path: Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            out.write(MAGIC + plan.form)
            if plan.facts.flavour == "mysql":
                out.write(maker.event(EventType.QUERY, _query_body(_NEXT_GTID)))
            out.write(maker.event(EventType.QUERY, _query_body(b"BEGIN")))
            out.writelines(maker.undoing(step) for step in steps(plan.changes))
            out.write(maker.event(EventType.XID, bytes(8)))

    # Showing

    def _show(self, plan: Plan, snapshot: Snapshot) -> None:
        printer = RowPrinter(
            snapshot=snapshot,
            wanted=Criteria(tables=self._source.wanted),
            limit=SHOWN_ROWS,
            tool=cache(partial(find_mysqlbinlog, given=self._config.mysqlbinlog)),
        )
        show(plan, self._config, self._server.address, page_on(sys.stdout), printer)

    def _end(self, plan: Plan, done: Undone | None) -> int:
        config = self._config
        self._display.aside()
        if config.as_json:
            print(document(plan, done, config))  # noqa: T201
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


def _explained(error: ConflictError, culprits: Culprits) -> RecoveryError:
    """What is in conflict, and with which later transaction."""
    if error.undone or culprits.undo:
        return _undone_already(culprits.undo)
    by_row = {row: f", by {name}" for row, name in culprits.by_row.items()}
    shown = "; ".join(f"{conflict}{by_row.get(conflict.row, '')}" for conflict in error.conflicts)
    hint = "--skip-conflicts leaves rows out that were changed since, and undoes the others"
    if not shown:  # the server refuses the change: without some of the rows it would, too
        hint = (
            "undo first what came since and is in the way (`binlog2s3 find` shows it), or restore "
            "the table to another server (docs/guides/one-table.md)"
        )
    return RecoveryError(
        f"nothing was changed: {error}" + (f": {shown}" if shown else ""), hint=hint
    )


def _undone_already(undo: str) -> RecoveryError:
    by = f" by {undo}" if undo else ""
    return RecoveryError(
        f"it was undone already{by}, or rows were set back since: nothing was changed",
        hint="`binlog2s3 rows` shows what a transaction changed",
    )


def _rows_text(done: int, total: int) -> str:
    return f"{done:,} of {count_text(total, 'row')} compared"


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


def _variables(server: Server) -> dict[str, str]:
    """The settings of the session that matter; those that it does not have are missing."""
    names = (
        "read_only", "super_read_only", "binlog_format", "binlog_row_image", "rbr_exec_mode",
        "wsrep_on", "slave_exec_mode", "slave_run_triggers_for_rbr", "max_allowed_packet",
    )  # fmt: skip
    listed = ", ".join(f"'{name}'" for name in names)
    rows = server.rows(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({listed})")
    return {str(row["Variable_name"]).lower(): str(row["Value"]) for row in rows}


def _has(snapshot: Snapshot, position: ServerPosition) -> bool:
    """Whether the archive has what the server has written up to a position."""
    names = snapshot.names(snapshot.current)
    binlog, offset = position.place
    if binlog in names:
        return snapshot.size(snapshot.current, binlog) >= offset
    return bool(names) and names[-1] > binlog
