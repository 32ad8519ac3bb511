"""`binlog2s3 drill`: proves a recovery by doing it, and writes the result into the archive.

Law: nothing but the result is written to the bucket, and nothing but the scratch server is changed.
What a drill has made is removed at its end, or by the next drill.
"""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from binlog2s3 import __version__
from binlog2s3.archive.backups import Backup, new_id, registered, restorable
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import as_fields
from binlog2s3.archive.drills import ON_TRUST, DrillResult, DrillStep
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.config.bucket import MOST_THREADS, for_writing, url
from binlog2s3.config.drill import DrillConfig, IoClass
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.drill import identity
from binlog2s3.drill.checks import check_statements, check_tables, statements_in
from binlog2s3.drill.restore import (
    goes_into_server,
    refuse_links,
    refuse_values,
    restore,
    values_of,
)
from binlog2s3.drill.scratch import (
    ScratchServer,
    ScratchSettings,
    is_empty,
    refuse_other_flavour,
    socket_of,
    take_identity,
    user_of,
)
from binlog2s3.drill.watchdog import Watchdog
from binlog2s3.drill.workspace import LeftDrill, Workspace, clean_up, locked
from binlog2s3.errors import ArchiveError, Binlog2s3Error, PreconditionError, RecoveryError
from binlog2s3.formatting import (
    count_text,
    cut,
    duration_text,
    iso_text,
    moment_of,
    moment_text,
    one_line,
)
from binlog2s3.output import Field, page_on, say
from binlog2s3.progress import progress_of
from binlog2s3.recover import pitr
from binlog2s3.recover.backup import start_of_registered
from binlog2s3.recover.model import BucketHistory, Goal, Latest, Plan, Request, ToTime
from binlog2s3.recover.origin import lineages_at
from binlog2s3.recover.plan import make
from binlog2s3.recover.reach import best_for, history_flavour
from binlog2s3.recover.snapshot import Survey
from binlog2s3.recover.time_zones import tz_of
from binlog2s3.recover.view import Result
from binlog2s3.retain.backup import survey_of
from binlog2s3.server.version import ServerVersion
from binlog2s3.store.contract import Store
from binlog2s3.store.s3 import opened
from binlog2s3.stream.remote import where_absent
from binlog2s3.workers import Workers

_MOST_ERROR = 900
_ROOM = 14


def run(config: DrillConfig) -> int:
    """Run the command; the exit code.

    Raises RecoveryError if the drill failed, after its result was written, and StoreError if the
    result could not be written.
    """
    lower_priority(config.nice, config.ionice)
    with (
        opened(for_writing(config.s3), sigterm_interrupts=True, evidence=Evidence) as store,
        locked(config.work_dir),
    ):
        catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        left = partial(_report_left, config, catalog)
        for path in clean_up(config.work_dir, left, server_user=user_of(config.mysqld_option)):
            say(
                "warning",
                f"{path} has no readable drill.json, or belongs to another user, so it stays; "
                "remove it by hand",
            )
        drill = _Drill(config, store, catalog)
        result, error, kept = drill.run()
        logs = f"; its logs are in {kept}" if kept is not None else ""
        failure = f"the drill failed at the step {result.step!r}: {error}{logs}"
        try:
            _write(catalog, result)
        except Binlog2s3Error:
            what = "the recovery is proved" if error is None else failure
            say("warning", f"{what}; the result cannot be written")
            raise
    if error is not None:
        raise RecoveryError(failure, hint=error.hint) from error
    if config.as_json:
        print(json.dumps(as_fields(result), indent=1))  # noqa: T201
    else:
        _print(result)
    return 0


def lower_priority(nice: int, io_class: IoClass) -> None:
    """Lower the CPU and disk priority of this process, and so of all that it starts."""
    with suppress(OSError):
        os.nice(nice)
    if io_class == "none":
        return
    program = shutil.which("ionice")
    if program is None:
        say("warning", "there is no ionice: the drill has the usual disk priority")
        return
    chosen = ["-c", "3"] if io_class == "idle" else ["-c", "2", "-n", "7"]
    subprocess.run([program, *chosen, "-p", str(os.getpid())], check=False, timeout=30)


class _Drill:
    """One drill, from the choice of the backup to the result."""

    def __init__(self, config: DrillConfig, store: Store, catalog: Catalog) -> None:
        self._config = config
        self._store = store
        self._catalog = catalog
        self._step: DrillStep = "choose"
        self._backup: Backup | None = None
        self._statements: list[str] = []
        self._source_version = ""
        self._tz: str | None = None
        self._is_place_sure = True
        self._is_dump = False
        now = datetime.now(UTC)
        goal = config.to_time.text if config.to_time is not None else "now"
        self._result = _failed(new_id(now), config.source, goal, now)
        id_ = self._result.id
        self._workspace = Workspace(
            config.work_dir.absolute(),
            id_,
            config.source,
            now,
            server_user=user_of(config.mysqld_option),
        )

    def run(self) -> tuple[DrillResult, Binlog2s3Error | None, Path | None]:
        """The result; why it failed; where its logs are kept. Everything else is removed."""
        error: Binlog2s3Error | None = None
        is_over = False
        try:
            self._workspace.make()
            with Watchdog(
                self._workspace.directory,
                timeout=self._config.timeout,
                max_disk=self._config.max_disk,
                logs=(self._workspace.restore_log, self._workspace.server_log),
            ):
                self._prove()
            is_over = True
        except Binlog2s3Error as raised:
            error, is_over = raised, True
        except OSError as raised:
            error = RecoveryError(str(raised), hint="check the disk of --work-dir")
            is_over = True
        finally:
            kept = None
            if self._workspace.directory.is_dir():
                kept = self._workspace.remove(failed=error is not None or not is_over)
        return self._outcome(error), error, kept

    def _outcome(self, error: Binlog2s3Error | None) -> DrillResult:
        backup = self._backup
        result = replace(
            self._result,
            backup=backup.id if backup is not None else None,
            label=backup.label if backup is not None else "",
            finished_at=datetime.now(UTC),
        )
        if error is None:
            return replace(result, outcome="proved", step=None)
        text = cut(one_line(str(error)), _MOST_ERROR)
        return replace(result, step=self._step, error=text, proven_until=None)

    def _at(self, step: DrillStep) -> None:
        self._step = step
        self._workspace.at(step, self._backup.id if self._backup is not None else None)
        if not self._config.as_json:
            page_on(sys.stderr).line(f"{_WORDS[step]} ...")

    # The steps

    def _prove(self) -> None:
        config, workspace = self._config, self._workspace
        program = config.mysqld
        if os.geteuid() == 0 and user_of(config.mysqld_option) is None:
            raise RecoveryError(
                f"{program} does not start as root",
                hint="run drill as another user, or give --mysqld-option=--user=NAME, of a user of "
                "this machine",
            )
        if config.check_sql is not None:  # now, and not after hours of restoring
            self._statements = statements_in(config.check_sql)
        backup, plan = self._choose()
        self._backup = backup
        refuse_other_flavour(program, plan.flavour)
        values = values_of(backup, workspace.data, socket_of(workspace))
        refuse_values(config.restore_command, backup, values)
        settings = ScratchSettings(
            flavour=plan.flavour,
            has_gtids=backup.gtid_set is not None or bool(plan.before) or bool(plan.adds),
            log_bin=plan.stop.binlog.prefix,
            server_id=2**31 + secrets.randbelow(2**31 - 1),
            more=config.mysqld_option,
            tz=self._tz,
        )
        server = ScratchServer(program, settings, workspace, self._result.id)
        self._is_dump, said = goes_into_server(config.restore_into, backup), ""
        self._at("restore")
        if self._is_dump:
            server.initialise()
            server.start()
            restore(config.restore_command, backup, workspace, self._result.id, into_server=True)
            server.stop()
        else:
            workspace.make_data()
            restore(config.restore_command, backup, workspace, self._result.id, into_server=False)
            if is_empty(workspace.data):
                raise RecoveryError(
                    "the restore command succeeded, but the data directory is empty",
                    hint="it must write to {datadir}; a dump needs --restore-into server",
                )
            refuse_links(workspace.data)
            said = identity.by_file(workspace.data, backup)
            said = said or identity.by_binlogs(workspace.data, backup)
            if not self._is_place_sure:  # a backup of the other history says the same
                said = ""
        take_identity(workspace.data)
        self._at("start")
        server.start()
        self._compare(server, backup, settings, said)
        self._at("apply")
        self._apply(server, backup)
        self._at("check")
        self._check(server)
        server.stop()

    def _choose(self) -> tuple[Backup, Plan]:
        """The newest registered backup that reaches the goal, and the plan from there."""
        workers = Workers(min(self._config.s3.concurrency, MOST_THREADS))
        with progress_of("entries") as advance:
            survey = survey_of(self._store, self._catalog, workers, advance, url(self._config.s3))
            unreadable: list[ArchiveError] = []
            backups = restorable(self._catalog, registered(self._catalog, unreadable))
            for error in unreadable:
                say("warning", f"{error}; it is not used")
            if not backups:
                raise RecoveryError(
                    "no base backup is registered",
                    hint="`binlog2s3 backup add` registers one after it was made",
                )
            found = best_for(backups, self._goal(), survey, None)
            if found is None:
                why = _refusal(backups[-1], self._goal(), survey)
                raise RecoveryError(
                    f"no registered base backup reaches the goal; the newest, "
                    f"{backups[-1].name}, does not: {why}",
                    hint="`binlog2s3 backup list` shows what each one reaches, `verify` what is "
                    "missing or damaged",
                )
            self._source_version = version_of_source(found[1], survey)
            self._tz = _tz(found[1], survey)
            self._is_place_sure = is_place_sure(found[0], survey)
        return found

    def _goal(self) -> Goal:
        time = self._config.to_time
        accepts = self._config.accept_times
        return ToTime(time.at_us, time.text, accepts) if time is not None else Latest()

    def _compare(
        self, server: ScratchServer, backup: Backup, settings: ScratchSettings, said: str
    ) -> None:
        """See that what was restored is the registered backup. `said`: what has shown it already.

        Raises RecoveryError if it is another one, or, without --trust-restore-command, if nothing
        says so.
        """
        data = self._workspace.data
        with server.connection() as connection:
            row = connection.rows("SELECT @@version AS version")[0]
            version = one_line(str(row["version"]))
            self._result = replace(self._result, server_version=version)
            if is_other_series(version, self._source_version):
                say(
                    "warning",
                    f"the scratch server is of version {version}, the source of "
                    f"{self._source_version}: the recovery is tried on another series than the "
                    "source's; name a server program of the source's series with --mysqld",
                )
            flavour = settings.flavour
            # MySQL's GTIDs always say it; MariaDB's may be those that the source had replicated
            if settings.has_gtids and (flavour == "mysql" or not said):
                said = identity.by_gtids(connection, data, backup, flavour) or said
        if not said and not self._config.trust_restore_command:
            raise identity.unknown(backup, flavour, is_dump=self._is_dump)
        self._result = replace(self._result, restored=said or ON_TRUST)

    def _apply(self, server: ScratchServer, backup: Backup) -> None:
        config = self._config
        pitr.run(
            PitrConfig(
                s3=config.s3,
                source=config.source,
                target=server.account,
                to_time=config.to_time,
                latest=config.to_time is None,
                accept_times=config.accept_times,
                accept_time_zone=config.accept_time_zone,
                from_backup_id=backup.id,
                yes=True,
            ),
            self._applied,
        )

    def _applied(self, plan: Plan, result: Result | None) -> None:
        until = plan.goal.at_us if isinstance(plan.goal, ToTime) else plan.reach.latest_us
        self._result = replace(
            self._result,
            lineage=plan.lineage,
            binlog=plan.stop.binlog,
            position=plan.stop.offset,
            proven_until=moment_of(until) if until is not None else None,
            transactions=result.transactions if result is not None else 0,
        )

    def _check(self, server: ScratchServer) -> None:
        with server.connection() as connection:
            if self._config.check_sql is None:
                self._result = replace(self._result, tables=check_tables(connection))
            else:
                count = check_statements(connection, self._statements)
                self._result = replace(self._result, statements=count)


_WORDS: dict[DrillStep, str] = {
    "choose": "choosing the base backup",
    "restore": "restoring the base backup",
    "start": "starting the scratch server",
    "apply": "applying the binlogs",
    "check": "checking",
}


def version_of_source(plan: Plan, history: BucketHistory) -> str:
    """The version of the server that wrote the last binlog of the plan.

    The lineage says the version with which it began: an upgrade continues it.
    """
    said = history.known(plan.stop.lineage, plan.stop.binlog).server_version
    return one_line(said or plan.server_version)


def is_place_sure(backup: Backup, history: BucketHistory) -> bool:
    """Whether a backup's place, if it has no GTIDs, is in one history only.

    After a RESET, or on a server that was put back, the same name and position are used again.
    """
    if backup.gtid_set is not None or backup.binlog is None or backup.position is None:
        return True
    return len(lineages_at(backup.binlog, backup.position, history)) <= 1


def _tz(plan: Plan, history: Survey) -> str | None:
    """The value of TZ for the scratch server, so that its system time zone is the source's."""
    binlogs = {(piece.lineage, piece.binlog) for piece in plan.pieces}
    found = {history.time_zone(*one) for one in {*binlogs, (plan.stop.lineage, plan.stop.binlog)}}
    known = [zone for zone in found if zone is not None]
    tz = tz_of(known) if known else None
    if known and tz is None:
        say(
            "warning",
            "no time zone of this machine has the offsets of the source's system time zone "
            f"({'; '.join(sorted(map(str, known)))}): the scratch server has this machine's",
        )
    return tz


def is_other_series(version: str, source: str) -> bool:
    """Whether two server versions are of different release series, like 10.11 and 11.8."""
    return ServerVersion(version).series != ServerVersion(source).series


def _refusal(backup: Backup, goal: Goal, history: BucketHistory) -> str:
    """Why a backup cannot be brought to the goal."""
    try:
        flavour = history_flavour(history, None)
        make(Request(goal=goal, start=start_of_registered(backup, flavour)), history)
    except (RecoveryError, ArchiveError) as error:
        return str(error)
    return "it was registered meanwhile"


# The result


def _host() -> str:
    return one_line(socket.gethostname())


def _failed(id_: str, source: str, goal: str, started_at: datetime) -> DrillResult:
    """The result of a drill that has shown nothing so far."""
    return DrillResult(
        id=id_,
        source=source,
        outcome="failed",
        step=None,
        error="",
        backup=None,
        label="",
        goal=goal,
        lineage=None,
        binlog=None,
        position=None,
        proven_until=None,
        transactions=0,
        tables=0,
        statements=0,
        server_version="",
        host=_host(),
        version=__version__,
        started_at=started_at,
        finished_at=started_at,
    )


def _write(catalog: Catalog, result: DrillResult) -> None:
    """Write the result once. One that is there is this one: the answer was lost."""
    key, data = catalog.layout.drill(result.id), result.to_json()
    DrillResult.from_json(data, key)  # never write what could not be read again
    with suppress(PreconditionError):
        where_absent(lambda absent: catalog.store.put(key, data, if_absent=absent, kept=True))


def _report_left(config: DrillConfig, catalog: Catalog, left: LeftDrill) -> None:
    """Tell of a drill that was killed, and write its result for it."""
    text = f"it was killed during the step {left.step!r}"
    logs = config.work_dir / f"failed-{left.id}"
    where = f"; its logs are in {logs}" if logs.is_dir() else ""
    say("warning", f"drill {left.id} of {left.source}: {text}; its data were removed{where}")
    if left.source != config.source:
        return
    result = replace(
        _failed(left.id, left.source, "unknown", left.started_at),
        step=left.step,
        error=text,
        backup=left.backup,
        finished_at=datetime.now(UTC),
    )
    try:
        _write(catalog, result)
    except ArchiveError as error:  # its drill.json was changed
        say("warning", f"the result of drill {left.id} is not written: {error}")


def _print(result: DrillResult) -> None:
    page = page_on(sys.stdout)
    until = f", to {moment_text(result.proven_until)}" if result.proven_until is not None else ""
    took = duration_text(result.seconds)
    page.line(f"proved: {moment_text(result.finished_at)}{until}, took {took}", "bold green")
    checked = (result.statements, "statement") if result.statements else (result.tables, "table")
    shown: tuple[Field, ...] = (("shown by", result.restored, ""),)
    if not result.is_of_backup:
        shown = (("", "restored by the command, as its operator says; nothing has shown it", ""),)
    fields = (
        ("base backup", f"{result.backup} {result.label}".rstrip(), ""),
        *shown,
        ("reached", f"{result.binlog}:{result.position} of {result.lineage}", ""),
        ("applied", count_text(result.transactions, "transaction"), ""),
        ("checked", count_text(*checked), ""),
        ("started", iso_text(result.started_at), ""),
    )
    page.fields(fields, _ROOM)
