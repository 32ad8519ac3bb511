"""`binlog2s3 restore`: from the bucket to a server at a goal, in a data directory of its own.

Law: before anything is made, it says what it will do. What it claims at the end is pitr's proof.
The account that it worked with is not in the restored server, and nobody there has more rights than
on the source.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from binlog2s3.archive.backups import new_id
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import printed
from binlog2s3.archive.drills import latest, newest
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.restore import RestoreConfig
from binlog2s3.errors import ArchiveError, Binlog2s3Error, RecoveryError, StoreError
from binlog2s3.formatting import duration_text, moment_text, size_text
from binlog2s3.output import NO_CHANGE, Field, confirm, page_on, say
from binlog2s3.recover import target
from binlog2s3.recover.document import whole
from binlog2s3.recover.events import Event, events_of, give
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.model import Plan
from binlog2s3.recover.one_table import texts_of
from binlog2s3.recover.view import About, goal_text, print_disabled, print_plan, warn_of
from binlog2s3.restore.by_stream import is_built_in, is_dump
from binlog2s3.restore.children import end_all
from binlog2s3.restore.directory import DataDirectory, Marker, Stage, held
from binlog2s3.restore.document import PrintedChoice, PrintedRestore
from binlog2s3.restore.engine import Choice, Engine, Reached, choose, reached_fields, refuse_root
from binlog2s3.restore.scratch import ScratchServer, ScratchSettings, run_on, user_of
from binlog2s3.restore.settings import Settings, settings_of, settings_of_backup, unusual
from binlog2s3.restore.watchdog import Watchdog
from binlog2s3.server.applied import folding, server_options
from binlog2s3.server.connection import Server
from binlog2s3.server.version import ServerVersion
from binlog2s3.store.s3 import opened

_ROOM = 13
_EMPTY_SERVER = 256 << 20
"""What a server takes that has nothing: tables of its own, redo and undo logs."""
_WORDS: dict[Stage, str] = {
    "restore": "restoring the base backup",
    "start": "starting a private server on it",
    "apply": "applying the binlogs",
    "finish": "finishing: events, our account",
    "place": "moving the files to where they belong",
}
_LARGER = "free space on the disk of --data-dir, and run the same command again"


def run(config: RestoreConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; the exit code. Raises errors, each with its own exit code."""
    user = user_of(config.mysqld_option)
    with ExitStack() as stack:
        store = stack.enter_context(
            opened(
                for_restoring(config.s3),
                sigterm_interrupts=True,
                evidence=Evidence,
                session=outside.session,
            )
        )
        catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        directory = stack.enter_context(
            held(config.data_dir, server_user=user, dry_run=config.dry_run)
        )
        try:
            reached = _Restore(config, catalog, directory, outside).run()
        except KeyboardInterrupt:  # SIGTERM, too
            if directory.workspace.directory.is_dir():
                page_on(sys.stderr).line("interrupted; run the same command again: it continues")
            raise
        for text in store.version_notes():
            say("warning", text)
        if reached is not None:
            _finish(config, *reached)
    return 0


class _Restore:
    """One run of the command, from what an earlier one has left to what it has reached."""

    def __init__(
        self, config: RestoreConfig, catalog: Catalog, directory: DataDirectory, outside: Outside
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._directory = directory
        self._goal = goal_text(config.goal)
        self._tables = texts_of(config.tables)
        self._left = directory.left()
        now = datetime.now(UTC)
        self._marker = self._left or Marker(
            id=new_id(now), source=config.source, goal=self._goal, stage="restore", started_at=now
        )
        self._settings = Settings()
        if config.defaults_file is not None:
            self._settings = settings_of(config.defaults_file, config.data_dir)
        self._outside = outside
        self._engine: Engine  # once the base backup is chosen
        self._version = ServerVersion("")

    def run(self) -> tuple[Marker, Settings] | None:
        """What was restored; None after a dry run."""
        config, left = self._config, self._left
        self._refuse_another(left)
        if left is not None and left.stage == "place" and not config.dry_run:
            self._place()
            return self._marker, self._settings
        refuse_root(config)
        loaded: str | None = None
        if left is not None and left.reached is not None and left.stage not in ("restore", "place"):
            loaded = left.reached.backup
        choice = choose(config, self._catalog, config.from_backup_id or loaded)
        if loaded not in (None, choice.backup.id):
            raise self._unlike(f"of the base backup {loaded}")
        self._engine = Engine(
            config,
            self._catalog,
            self._directory.workspace,
            self._marker.id,
            choice,
            more=self._settings.options,
            outside=self._outside,
        )
        self._version = self._engine.refuse_programs()
        self._refuse_version(choice)
        self._show(choice)
        if config.dry_run:
            return None
        self._confirm()
        if left is not None and not end_all(left.id):
            raise RecoveryError(
                f"processes of the restore {left.id} do not end",
                hint="does the disk hang? see ps and dmesg",
            )
        try:
            self._do()
        except (Binlog2s3Error, OSError) as error:
            hint = getattr(error, "hint", "") or "check the disk of --data-dir"
            work = self._directory.workspace.directory
            if work.is_dir() and isinstance(error, Binlog2s3Error):
                error.hint = (
                    f"{hint}; {work} has the logs, and the same command goes on; to give it up, "
                    f"delete what is in {config.data_dir}"
                )
                raise
            raise RecoveryError(str(error), hint=hint) from error
        finally:
            end_all(self._marker.id)
        return self._marker, self._settings

    # Before it

    def _refuse_another(self, left: Marker | None) -> None:
        if left is None:
            return
        if left.source != self._config.source:
            raise self._unlike(f"of {left.source}")
        if left.stage in ("finish", "place") and left.goal != self._goal:
            raise self._unlike(left.goal)
        # what only some tables were applied to is marked: `pitr` refuses it others
        is_over = left.stage in ("finish", "place")
        if (is_over or (left.stage == "apply" and not left.tables)) and left.tables != self._tables:
            raise self._unlike(f"of {_tables_text(left.tables)}")

    def _unlike(self, what: str) -> RecoveryError:
        return RecoveryError(
            f"{self._config.data_dir} has an unfinished restore {what}",
            hint="run that command again; or, to give it up, delete what is in the directory",
        )

    def _refuse_version(self, choice: Choice) -> None:
        source = ServerVersion(choice.version)
        if not self._version.is_other_series(source):
            return
        text = (
            f"{self._config.mysqld} is of version {self._version.text}, the source of {source.text}"
        )
        if choice.plan.flavour == "mysql" and self._version.is_older(source):
            raise RecoveryError(
                f"{text}: MySQL does not support binlogs of a later series",
                hint="name a server program of the source's series, or a later one, with --mysqld",
            )
        if is_built_in(choice.backup) and not is_dump(choice.backup):
            raise RecoveryError(
                f"{text}: the files of a server need a server of its series",
                hint="name one with --mysqld, or restore a dump: --from-backup-id",
            )
        say("warning", f"{text}: statements of one series may fail, or mean another thing, there")

    def _confirm(self) -> None:
        if not self._config.yes:
            confirm(
                f"restore it into {self._config.data_dir}?",
                "restored",
                hint="--yes restores without asking, --dry-run only shows what would be done",
                as_json=self._config.as_json,
            )

    # What it will do

    def _show(self, choice: Choice) -> None:
        config, about = self._config, self._about(choice)
        for text in self._settings.unused:
            say("warning", f"{config.defaults_file} has {text}")
        need, free = self._space(choice)
        if need is not None and free is not None and need > free:
            say(
                "warning",
                f"the disk of {config.data_dir} has {size_text(free)} free, and about "
                f"{size_text(need)} are needed",
            )
        if config.as_json:
            warn_of(choice.plan, about)
            if config.dry_run:
                print(printed(PrintedChoice, self._document(choice, about)))  # noqa: T201
            return
        page = page_on(sys.stdout)
        page.fields(self._fields(choice, need, free), _ROOM)
        page.line("")
        print_plan(choice.plan, about, page)
        if config.dry_run:
            page.line(NO_CHANGE)

    def _about(self, choice: Choice) -> About:
        return About(
            source=self._config.source,
            archive=self._config.s3.url,
            start=f"the registered {choice.backup.tool} {choice.backup.name}",
            applies=True,
            only=choice.only,
        )

    def _document(self, choice: Choice, about: About) -> dict[str, Any]:
        """What `PrintedChoice` is printed of."""
        need, free = self._space(choice)
        return {
            "source": self._config.source,
            "data_dir": self._config.data_dir.absolute(),
            "backup": choice.backup,
            "needed_bytes": need,
            "free_bytes": free,
            "last_drill_seconds": self._drill_seconds(),
            "left": self._left,
            "plan": whole(choice.plan, about)["plan"],
        }

    def _fields(self, choice: Choice, need: int | None, free: int | None) -> list[Field]:
        backup = choice.backup
        size = size_text(backup.stored.size) if backup.stored is not None else "size unknown"
        how = "from the bucket" if self._config.restore_command is None else "by --restore-command"
        took = self._drill_seconds()
        time = (
            f"not known; the last proved drill took {duration_text(took)}"
            if took
            else ("not known: no drill of this source was proved yet")
        )
        fields: list[Field] = [
            ("restore", f"{backup.name}, {backup.tool}, {size}, {how}", "bold"),
            ("", f"of {moment_text(backup.taken_at)}", ""),
            ("into", str(self._config.data_dir.absolute()), ""),
            ("server", f"{self._config.mysqld} {self._version.text}", ""),
            ("disk", f"{_size(need, 'about ')} needed, {_size(free)} free", ""),
            ("time", time, ""),
        ]
        if self._left is not None:
            text = f"what was begun {moment_text(self._left.started_at)}: {self._left.stage}"
            fields.append(("continues", text, "yellow"))
        return fields

    def _space(self, choice: Choice) -> tuple[int | None, int | None]:
        """Bytes that are needed, roughly, and free; None if unknown.

        What is applied is on the disk twice: as the server receives it, and in its binlog.
        """
        stored, need = choice.backup.stored, None
        if stored is not None:
            need = stored.size + 2 * choice.plan.size
            need += _EMPTY_SERVER if is_dump(choice.backup) else 0
        where = self._config.data_dir.absolute()
        try:
            return need, shutil.disk_usage(where if where.exists() else where.parent).free
        except OSError:
            return need, None

    def _drill_seconds(self) -> float | None:
        try:
            _, proved, _ = newest(latest(self._catalog))
        except StoreError:  # its rights may not suffice
            return None
        return proved.seconds if proved is not None else None

    # Doing it

    def _do(self) -> None:
        work = self._directory.workspace
        work.set_logs_aside()
        with Watchdog(work.directory, logs=(work.restore_log, work.server_log), larger=_LARGER):
            reached = self._loaded()
            if self._marker.stage in ("start", "apply"):
                reached = self._forward(reached)
            self._tell("finish")
            server = self._engine.start()
            self._settle(server, reached)
            self._engine.stop()
            self._note("place")
        self._place()

    def _loaded(self) -> Reached:
        """What an earlier run has reached, or, from the beginning, the restored base backup."""
        reached, choice = self._marker.reached, self._engine.choice
        if self._marker.stage != "restore":
            why = self._why_again()
            if reached is not None and not why:
                return reached
            say("warning", f"{why}: it begins again")
        self._marker = replace(
            self._marker,
            stage="restore",
            goal=self._goal,
            tz=choice.tz,
            has_gtids=choice.has_gtids,
            settings=choice.backup.settings,
            tables=self._tables,
            reached=None,
        )
        self._directory.begin(self._marker)
        self._tell("restore")
        reached = self._engine.load(self._version)
        self._note("start", reached=reached)
        return reached

    def _forward(self, reached: Reached) -> Reached:
        """Start the server, see that it is the backup, and apply the binlogs."""
        self._tell("start")
        server = self._engine.start()
        if self._marker.stage == "start":
            reached = self._engine.compare(server, reached)
            with server.connection() as connection:
                events = events_of(connection)
            self._note("apply", reached=reached, events=events, tables=self._tables)
        elif self._marker.tables != self._tables:
            self._note("apply", tables=self._tables)
        self._tell("apply")
        plan, reached = self._engine.apply(server, reached)
        with server.connection() as connection:
            wanted = self._wanted(plan, events_of(connection))
        self._note("finish", goal=self._goal, reached=reached, wanted=wanted)
        self._engine.stop()
        return reached

    def _wanted(self, plan: Plan, now: Sequence[Event]) -> tuple[Event, ...]:
        """The events that the roll-forward has disabled, with their status on the source."""
        before = {event.key for event in self._marker.events if event.status == "replica"}
        if not any(event.status == "replica" and event.key not in before for event in now):
            return ()
        try:
            statuses = self._engine.statuses(self._marker.events, plan)
        except (ArchiveError, RecoveryError) as error:
            say("warning", f"whether the source had enabled its events is unknown: {error}")
            return ()
        wanted = (
            replace(event, status=statuses.of(event)) for event in now if event.status == "replica"
        )
        return tuple(event for event in wanted if event.status != "unknown")

    def _why_again(self) -> str:
        """Why what an earlier run has restored cannot be continued; "" if it can."""
        reached = self._marker.reached
        if reached is None:
            return "another version of binlog2s3 has begun it"
        if self._version.is_other_series(ServerVersion(reached.server_version)):
            return f"a server of version {reached.server_version} has made it"
        if self._marker.stage == "apply" and not self._can_continue():
            return "the server cannot say what was applied"
        return ""

    def _can_continue(self) -> bool:
        """Whether the server can say what of the binlogs was applied to it, if anything was.

        A MySQL with GTIDs always can. Others can by the note of an interrupted `pitr`: without it
        that was not begun, or has ended, and nothing tells which.
        """
        server = self._engine.start()
        try:
            with server.connection() as connection:
                asked = target.ask(connection)
                return asked.facts.keeps_gtids or Standing(asked).was_interrupted()
        finally:
            self._engine.stop()

    def _settle(self, server: ScratchServer, reached: Reached) -> None:
        """Give events their status, take our account away, note what is not as on the source."""
        with server.connection() as connection:
            connection.rows("SET SESSION sql_log_bin = 0")
            events = tuple(self._enable(connection))
            self._marker = replace(self._marker, reached=replace(reached, events=events))
            server.remove_account(connection)

    def _enable(self, connection: Server) -> Iterator[str]:
        """Give events their status on the source; the statements for those where it is unknown."""
        wanted = {event.key: event.status for event in self._marker.wanted}
        own = {event.key for event in self._marker.events if event.status == "replica"}
        for event in events_of(connection):
            status = wanted.get(event.key, "replica" if event.key in own else "unknown")
            if event.status != "replica" or status == "replica":
                continue
            if status == "unknown":
                yield f"{event.statement('enabled')};"
            else:
                give(connection, event, status)

    def _place(self) -> None:
        self._tell("place")
        self._directory.place()

    def _note(self, stage: Stage, **changes: Any) -> None:
        self._marker = replace(self._marker, stage=stage, **changes)
        self._directory.note(self._marker)

    def _tell(self, stage: Stage) -> None:
        if not self._config.as_json:
            page_on(sys.stderr).line(f"{_WORDS[stage]} ...")


def _tables_text(tables: Sequence[str]) -> str:
    return f"only {', '.join(tables)}" if tables else "all tables"


def _size(size: int | None, before: str = "") -> str:
    return f"{before}{size_text(size)}" if size is not None else "unknown"


# What was restored


def _finish(config: RestoreConfig, marker: Marker, settings: Settings) -> None:
    reached, where = marker.reached, config.data_dir.absolute()
    assert reached is not None  # noqa: S101 - it is noted before the stage that ends
    socket = None
    if config.keep_running:
        kept = ScratchSettings(
            flavour=reached.flavour,
            has_gtids=marker.has_gtids,
            log_bin=reached.binlog.rpartition(".")[0],
            more=(
                *server_options(marker.settings),
                *settings.options,
                *config.mysqld_option,
            ),
            tz=marker.tz,
        )
        try:
            socket = run_on(config.mysqld, where, kept)
        except KeyboardInterrupt:
            page_on(sys.stderr).line(
                f"interrupted; {where} is restored, {marker.goal}; its server was shut down again"
            )
            raise
    if config.as_json:
        document = {
            "source": config.source,
            "goal": marker.goal,
            "data_dir": where,
            "reached": reached,
            "only_tables": marker.tables or None,
            "started_at": marker.started_at,
            "finished_at": datetime.now(UTC),
            "socket": socket,
        }
        print(printed(PrintedRestore, document))  # noqa: T201
        return
    page = page_on(sys.stdout)
    took = duration_text((datetime.now(UTC) - marker.started_at).total_seconds())
    what = f", {_tables_text(marker.tables)}" if marker.tables else ""
    page.line(f"restored: {where}, {marker.goal}{what}, in {took}", "bold green")
    page.fields((*reached_fields(reached), ("server", reached.server_version, "")), _ROOM)
    for line in reached.proof:
        page.line(line)
    if reached.without_history:
        page.line(
            "the dump was made without history; these system-versioned tables have only what was "
            f"current then, and what came since: {', '.join(reached.without_history)}",
            "yellow",
        )
    for name in reached.prepared:
        page.line(f"prepared, neither committed nor rolled back: XA {name}", "yellow")
    print_disabled(reached.events, page)
    needed = (*unusual(settings_of_backup(where)), *folding(marker.settings))
    if needed:
        page.line(f"its files need in the server's option file: {'; '.join(needed)}", "yellow")
    _print_next(config, where, socket, page.line)


def _print_next(
    config: RestoreConfig, where: Path, socket: Path | None, line: Callable[[str], None]
) -> None:
    owner = where.stat().st_uid
    line("")
    if socket is None:
        file = config.defaults_file
        words = [str(config.mysqld), *([f"--defaults-file={file}"] if file is not None else [])]
        words.append(f"--datadir={where}")
        if os.geteuid() == 0:  # it does not start as root
            words += [option for option in config.mysqld_option if option.startswith("--user=")][:1]
        mine = " (the files belong to this user)" if owner == os.geteuid() else ""
        line(f"start it: {shlex.join(words)}{mine}")
    line("its accounts, and their passwords, are those of the source")
    if config.tables:
        line(
            "it is a scratch server: its other tables are as in the base backup, whatever its "
            "GTIDs say; copy the table, and delete it: docs/recovery/one-table.md"
        )
    else:
        line("let a replica follow it, or copy one table: docs/guides/restore.md")
    if socket is not None:
        line("it listens on its socket only, and its event scheduler is off, until it is restarted")
        line(f"socket: {socket}")
