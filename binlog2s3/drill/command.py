"""`binlog2s3 drill`: proves a recovery by doing it, and writes the result into the archive.

Law: nothing but the result is written to the bucket, and nothing but the scratch server is changed.
What a drill has made is removed at its end, or by the next drill.
"""

import json
import os
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
from binlog2s3.archive.backups import Backup, new_id
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import as_fields
from binlog2s3.archive.drills import DrillResult, DrillStep
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.config.bucket import for_writing
from binlog2s3.config.drill import DrillConfig, IoClass
from binlog2s3.config.goal import ToTime
from binlog2s3.drill.checks import check_statements, check_tables, statements_in
from binlog2s3.drill.workspace import DrillMarker, DrillWorkspace, clean_up, locked
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
from binlog2s3.output import page_on, say
from binlog2s3.restore.engine import Engine, choose, reached_fields, refuse_root
from binlog2s3.restore.scratch import ScratchServer, user_of
from binlog2s3.restore.watchdog import Watchdog
from binlog2s3.store.s3 import opened
from binlog2s3.stream.remote import put_once

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
        drill = _Drill(config, catalog)
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

    def __init__(self, config: DrillConfig, catalog: Catalog) -> None:
        self._config = config
        self._step: DrillStep = "choose"
        self._backup: Backup | None = None
        self._statements: list[str] = []
        now = datetime.now(UTC)
        goal = config.goal.text if isinstance(config.goal, ToTime) else "now"
        self._result = _failed(new_id(now), config.source, goal, now)
        begun = DrillMarker(id=self._result.id, source=config.source, started_at=now)
        self._workspace = DrillWorkspace(
            config.work_dir.absolute(), begun, server_user=user_of(config.mysqld_option)
        )
        self._catalog = catalog

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
                larger="use a --work-dir on a larger disk",
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
        config = self._config
        refuse_root(config)
        if config.check_sql is not None:  # now, and not after hours of restoring
            self._statements = statements_in(config.check_sql)
        choice = choose(config, self._catalog)
        self._backup = choice.backup
        engine = Engine(config, self._catalog, self._workspace, self._result.id, choice)
        version = engine.refuse_programs()
        self._at("restore")
        reached = engine.load(version)
        self._at("start")
        server = engine.start()
        reached = engine.compare(server, reached)
        self._result = replace(
            self._result, restored=reached.restored, server_version=reached.server_version
        )
        self._at("apply")
        plan, reached = engine.apply(server, reached)
        until = plan.goal.at_us if isinstance(plan.goal, ToTime) else plan.reach.latest_us
        self._result = replace(
            self._result,
            lineage=plan.stop.lineage,
            binlog=plan.stop.binlog,
            position=plan.stop.offset,
            proven_until=moment_of(until) if until is not None else None,
            transactions=reached.transactions,
            doubts=tuple(cut(one_line(doubt), _MOST_ERROR) for doubt in reached.doubts),
        )
        self._at("check")
        self._check(server)
        engine.stop()

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
    with suppress(PreconditionError):
        put_once(catalog.store, catalog.layout.drill(result.id), result)


def _report_left(config: DrillConfig, catalog: Catalog, left: DrillMarker) -> None:
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
    proved, style = ("proved, but for a doubt", "yellow") if result.doubts else ("proved", "green")
    page.line(f"{proved}: {moment_text(result.finished_at)}{until}, took {took}", f"bold {style}")
    checked = (result.statements, "statement") if result.statements else (result.tables, "table")
    backup, shown, *reached = reached_fields(result)
    if not result.is_of_backup:
        shown = "", "restored by the command, as its operator says; nothing has shown it", ""
    fields = (
        backup,
        shown,
        *reached,
        ("checked", count_text(*checked), ""),
        *(("doubt", doubt, "yellow") for doubt in result.doubts),
        ("started", iso_text(result.started_at), ""),
    )
    page.fields(fields, _ROOM)
