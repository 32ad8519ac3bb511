"""A base backup and the archive become a server at a goal: choose, restore, start, roll forward.

Law: what is restored is the registered backup, or nothing is: something in it says so, or it was
read from the bucket here. Nothing counts as reached that `pitr` has not proved, or said otherwise
of. The bucket is only read.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from binlog2s3.archive.backups import Backup, Registered, look_up, one_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.drills import ON_TRUST, DrillResult
from binlog2s3.archive.stored import read_stored
from binlog2s3.binlog.gtid import Flavour
from binlog2s3.config.goal import ToPosition
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.pitr import PITR
from binlog2s3.config.restore import RESTORE, Restoring
from binlog2s3.errors import Binlog2s3Error, GoalError, RecoveryError
from binlog2s3.formatting import count_text, one_line, some
from binlog2s3.output import Field, clean, say
from binlog2s3.progress import progress_of
from binlog2s3.recover import pitr, reach
from binlog2s3.recover.events import Event, Statuses
from binlog2s3.recover.extract import stream_of
from binlog2s3.recover.model import Plan, Request
from binlog2s3.recover.one_table import OnlyTables
from binlog2s3.recover.origin import lineages_at
from binlog2s3.recover.snapshot import Snapshot, snapshot_of
from binlog2s3.recover.time_zones import tz_of
from binlog2s3.recover.view import proof_lines
from binlog2s3.restore import by_stream, identity
from binlog2s3.restore.by_command import (
    goes_into_server,
    refuse_links,
    refuse_values,
    restore,
    values_of,
)
from binlog2s3.restore.scratch import (
    ScratchServer,
    ScratchSettings,
    is_empty,
    named_user,
    socket_of,
    take_identity,
    user_of,
    version_of,
)
from binlog2s3.restore.workspace import Workspace
from binlog2s3.server.applied import server_options
from binlog2s3.server.version import ServerVersion
from binlog2s3.server.versioned import versioned_tables
from binlog2s3.workers import Advance, Workers

_STREAM = "its stream in the bucket"
_OURS = {option.name for option in RESTORE.options}
_ONLY_OF_PITR = {f"--{option.name}" for option in PITR.options if option.name not in _OURS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A base backup, and how it is brought to the goal.

    `version`: of the server that wrote the last binlog. `tz`: the value of TZ with which the server
    has the source's system time zone. `is_position_sure`: the backup's position, if it has no
    GTIDs, is in one history only. `only`: if only some tables are applied, what that cannot do
    safely, as far as the binlogs show it.
    """

    backup: Backup
    plan: Plan
    version: str
    tz: str | None
    is_position_sure: bool
    only: OnlyTables | None = None

    @property
    def has_gtids(self) -> bool:
        """Whether the source had GTIDs: so does the private server."""
        plan = self.plan
        return self.backup.gtid_set is not None or bool(plan.before) or bool(plan.adds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What a restore has reached so far, as `restore` prints it: each step adds what it has shown.

    `restored`: what has shown that it is the registered backup, "" if nothing has yet.
    `server_version`: of the program that loaded it, then as the server on it says. The position,
    `is_proved`, `proof` and `doubts` are pitr's. `events`: those that are disabled because a
    replica disables them, and of which it is unknown whether the source had enabled them, with the
    statement that does. `without_history`: the system-versioned tables of which the dump had the
    current rows only; None if there may be some, and no server was asked which.
    """

    backup: str
    label: str
    restored: str = ""
    server_version: str
    flavour: Flavour
    lineage: str = ""
    binlog: str = ""
    position: int = 0
    transactions: int = 0
    is_proved: bool = False
    proof: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    events: tuple[str, ...] = ()
    prepared: tuple[str, ...] = ()
    without_history: tuple[str, ...] | None = ()


def reached_fields(reached: Reached | DrillResult) -> tuple[Field, ...]:
    """What people see of it: the base backup, what has shown that it is that, how far, how much."""
    return (
        ("base backup", f"{reached.backup} {reached.label}".rstrip(), ""),
        ("shown by", reached.restored, ""),
        ("reached", f"{reached.binlog}:{reached.position} of {reached.lineage}", ""),
        ("applied", count_text(reached.transactions, "transaction"), ""),
    )


def refuse_root(config: Restoring) -> None:
    """Raise RecoveryError if the server program would have to run as root."""
    if os.geteuid() == 0 and user_of(config.mysqld_option) is None:
        named = named_user(config.mysqld_option)
        raise RecoveryError(
            f"this machine has no user {clean(named)}"
            if named
            else f"{config.mysqld} does not start as root",
            hint="run this as another user, or give --mysqld-option=--user=NAME, of a user of "
            "this machine",
        )


def choose(config: Restoring, catalog: Catalog, named: str | None = None) -> Choice:
    """The newest registered backup that reaches the goal, or the one that is named.

    Raises RecoveryError if there is none, or if the binlogs show that these tables alone cannot
    be applied: `pitr` would refuse that only after the backup was restored.
    """
    with progress_of("entries") as advance:
        snapshot = _snapshot(config, catalog, advance)
        backup, plan = _chosen(config, look_up(catalog), snapshot, named)
        return Choice(
            backup=backup,
            plan=plan,
            version=version_of_source(plan, snapshot),
            tz=_tz(plan, snapshot),
            is_position_sure=is_position_sure(backup, snapshot),
            only=_only(config, plan, snapshot) if config.tables else None,
        )


def _snapshot(config: Restoring, catalog: Catalog, advance: Advance) -> Snapshot:
    workers = Workers(config.s3.threads)
    return snapshot_of(catalog, workers, config.s3.url, advance=advance)


def _only(config: Restoring, plan: Plan, snapshot: Snapshot) -> OnlyTables:
    open_stream = partial(stream_of, snapshot, concurrency=config.s3.concurrency)
    with pitr_named():
        only = OnlyTables(config.tables, plan, open_stream)
        for refusal in only.refusals:
            raise refusal
        return only


def _chosen(
    config: Restoring, registered: Registered, snapshot: Snapshot, named: str | None
) -> tuple[Backup, Plan]:
    for error in registered.unreadable:
        say("warning", f"{error}; it is not used")
    backups = registered.restorable
    if named is not None:
        backup = one_of(registered.backups, named)
        backups = [other for other in backups if other == backup]
        if not backups:
            raise RecoveryError(
                f"{backup.name} is no base backup that can be restored: "
                f"{'; '.join(backup.defects) or 'the bucket does not have all of it'}",
                hint="`binlog2s3 backup list` shows the others",
            )
    if not backups:
        raise RecoveryError(
            "no base backup is registered",
            hint="make one: `binlog2s3 backup run`, or register one that was made: `binlog2s3 "
            "backup add`",
        )
    usable = [
        backup
        for backup in backups
        if config.restore_command is not None or by_stream.is_built_in(backup)
    ]
    if not usable:
        raise RecoveryError(
            f"{backups[-1].name} was not stored by `backup run` with a tool that is built in",
            hint="say how it is restored: --restore-command",
        )
    request = Request(goal=config.goal, lineage=config.lineage)
    backup, plan = reach.choose(usable, request, snapshot)
    if isinstance(plan, Plan):
        return backup, plan
    if isinstance(plan, GoalError):
        raise plan
    which = "the newest, " if backup == usable[-1] else "the nearest, "
    more = f"{plan.hint}; " if plan.hint else ""
    with pitr_named():
        raise RecoveryError(
            f"no registered base backup reaches the goal; {'' if named is not None else which}"
            f"{backup.name}, does not: {plan}",
            hint=f"{more}`binlog2s3 backup list` shows what each one reaches, `verify` what is "
            "missing or damaged",
        ) from plan


class Engine:
    """One restore of a choice into one workspace, in steps.

    They are called in order, in one or several processes.

    `more`: options of the private server besides the operator's.
    """

    def __init__(
        self,
        config: Restoring,
        catalog: Catalog,
        workspace: Workspace,
        id_: str,
        choice: Choice,
        *,
        more: Sequence[str] = (),
        outside: Outside = OUTSIDE,
    ) -> None:
        self._config = config
        self._recovery = config.recovery
        self._catalog = catalog
        self._workspace = workspace
        self._id = id_
        self.choice = choice
        self._more = tuple(more)
        self._outside = outside
        self._running: ScratchServer | None = None

    def refuse_programs(self) -> ServerVersion:
        """See that the programs can restore it; the version of the server program.

        Raises RecoveryError, before anything is made.
        """
        backup = self.choice.backup
        version = version_of(self._config.mysqld, self.choice.plan.flavour)
        socket = socket_of(self._workspace)
        if self._config.restore_command is None:
            by_stream.programs_for(backup.tool, self._config.mysqld, self._config.program)
        else:
            values = values_of(backup, self._workspace.data, socket)
            refuse_values(self._config.restore_command, backup, values)
        return version

    # restore

    def load(self, version: ServerVersion) -> Reached:
        """Restore the backup by a server program of this version.

        Everything is on the disk then, and the private server is down. Perhaps only that can say
        whether it is this backup.
        """
        backup, workspace = self.choice.backup, self._workspace
        reached = Reached(
            backup=backup.id,
            label=backup.label,
            server_version=version.text,
            flavour=self.choice.plan.flavour,
        )
        server = self._server()
        if self._goes_into_server(backup):
            server.initialise()
            server.start()
            if self._config.restore_command is None:
                reached = self._load_stream(server, reached)
            else:
                self._run_command(backup, into_server=True)
            server.stop()
        else:
            workspace.make_data()
            if self._config.restore_command is None:
                reached = self._load_stream(server, reached)
            else:
                self._run_command(backup, into_server=False)
            if is_empty(workspace.data):
                raise RecoveryError(
                    "the restore command succeeded, but the data directory is empty",
                    hint="it must write to {datadir}; a dump needs --restore-into server",
                )
            refuse_links(workspace.data)
            if self._config.restore_command is None:
                self._give_data()
            shown_by = identity.by_file(workspace.data, backup)
            shown_by = shown_by or identity.by_binlogs(workspace.data, backup)
            if not self.choice.is_position_sure:  # a backup of the other history says the same
                shown_by = ""
            reached = replace(reached, restored=reached.restored or shown_by)
        take_identity(workspace.data)
        os.sync()  # what the next step begins with must be there after a power cut, too
        return reached

    def _goes_into_server(self, backup: Backup) -> bool:
        if self._config.restore_command is None:
            return by_stream.is_dump(backup)
        return goes_into_server(self._config.restore_into, backup)

    def _run_command(self, backup: Backup, *, into_server: bool) -> None:
        command = self._config.restore_command or ""
        restore(command, backup, self._workspace, self._id, into_server=into_server)

    def _load_stream(self, server: ScratchServer, reached: Reached) -> Reached:
        has_past = True
        backup, config = self.choice.backup, self._config
        assert backup.stored is not None  # noqa: S101 - only such ones are chosen
        programs = by_stream.programs_for(backup.tool, config.mysqld, config.program)
        layout = self._catalog.layout
        with progress_of("bytes of the base backup") as advance:
            stream = read_stored(self._catalog.store, layout, backup.id, backup.stored, advance)
            if by_stream.is_dump(backup):
                flavour, made_at = self.choice.plan.flavour, backup.stored.began_at
                has_past = by_stream.load(stream, programs[0], server, flavour, made_at)
            else:
                by_stream.unpack(stream, programs, self._workspace, self._id)
        asks = reached.flavour == "mariadb" and not has_past
        return replace(reached, restored=_STREAM, without_history=None if asks else ())

    def _give_data(self) -> None:
        """Give the files to the server's user, if this is root."""
        user = user_of(self._config.mysqld_option)
        if user is None:
            return
        for folder, folders, files in os.walk(self._workspace.data):
            for name in (*folders, *files):
                os.chown(Path(folder) / name, user, -1, follow_symlinks=False)

    # start, apply

    def start(self) -> ScratchServer:
        """Start the private server."""
        server = self._server()
        server.start()
        self._running = server
        return server

    def stop(self) -> None:
        """Shut it down, if it runs."""
        if self._running is not None:
            self._running.stop()
            self._running = None

    def compare(self, server: ScratchServer, reached: Reached) -> Reached:
        """See that what was restored is the registered backup.

        Raises RecoveryError if it is another one, or, without --trust-restore-command, if nothing
        says so.
        """
        choice, data = self.choice, self._workspace.data
        backup, flavour = choice.backup, choice.plan.flavour
        restored, without_history = reached.restored, reached.without_history
        with server.connection() as connection:
            row = connection.rows("SELECT @@version AS version")[0]
            version = one_line(str(row["version"]))
            if ServerVersion(version).is_other_series(ServerVersion(choice.version)):
                say(
                    "warning",
                    f"the scratch server is of version {version}, the source of {choice.version}: "
                    "the recovery is tried on another series than the source's; name a server "
                    "program of the source's series with --mysqld",
                )
            # MySQL's GTIDs always say it; MariaDB's may be those that the source had replicated
            if choice.has_gtids and (flavour == "mysql" or not restored):
                restored = identity.by_gtids(connection, data, backup, flavour) or restored
            if without_history is None:
                without_history = versioned_tables(connection).tables
        if not restored and not self._config.trust_restore_command:
            raise identity.unknown(backup, flavour, is_dump=self._goes_into_server(backup))
        if without_history:
            say(
                "warning",
                "the dump was made without the history of system-versioned tables; these have the "
                f"current rows only: {some(without_history)}",
            )
        return replace(
            reached,
            restored=restored or ON_TRUST,
            server_version=version,
            without_history=without_history,
        )

    def apply(self, server: ScratchServer, reached: Reached) -> tuple[Plan, Reached]:
        """Roll it forward to the goal by `pitr`: the plan that it carried out, what it proved."""
        with pitr_named():
            plan, result = pitr.recover(
                replace(
                    self._recovery, target=server.account, from_backup_id=self.choice.backup.id
                ),
                self._outside,
            )
        return plan, replace(
            reached,
            lineage=plan.stop.lineage,
            binlog=str(plan.stop.binlog),
            position=plan.stop.offset,
            transactions=result.transactions,
            is_proved=bool(result.proved),
            proof=tuple(text for text, _ in proof_lines(result)),
            doubts=result.doubts,
            prepared=result.prepared or (),
        )

    def statuses(self, before: Sequence[Event], applied: Plan) -> Statuses:
        """Which events the source had enabled at the goal, by all statements since the backup."""
        statuses, stop = Statuses(before), applied.stop
        with progress_of("entries") as advance:
            snapshot = _snapshot(self._config, self._catalog, advance)
            request = Request(goal=ToPosition(stop.file_position), lineage=applied.lineage)
            plan = reach.plan_for(self.choice.backup, request, snapshot)
            if plan.stop != stop:
                raise RecoveryError(f"the plan ends at {plan.stop}, not at {stop}")
            ids = {
                (piece.lineage, str(piece.binlog)): snapshot.known(
                    piece.lineage, piece.binlog
                ).server_id
                for piece in plan.pieces
            }
        concurrency = self._config.s3.concurrency
        with closing(stream_of(snapshot, plan.pieces, concurrency=concurrency)) as stream:
            statuses.look(stream, ids)
        return statuses

    def _server(self) -> ScratchServer:
        choice = self.choice
        settings = ScratchSettings(
            flavour=choice.plan.flavour,
            has_gtids=choice.has_gtids,
            log_bin=choice.plan.stop.binlog.prefix,
            more=(
                *server_options(choice.backup.settings),
                *self._more,
                *self._config.mysqld_option,
            ),
            tz=choice.tz,
        )
        return ScratchServer(self._config.mysqld, settings, self._workspace, self._id)


@contextmanager
def pitr_named() -> Iterator[None]:
    """Errors of pitr whose hints name its own options say whose they are, and how to use them."""
    try:
        yield
    except Binlog2s3Error as error:
        words = re.findall(r"--[a-z][a-z-]+", error.hint)
        if its := [word for word in dict.fromkeys(words) if word in _ONLY_OF_PITR]:
            error.hint += (
                f" ({some(its)}: of `binlog2s3 pitr`, which goes on with the server of a "
                "`restore --keep-running` to a goal before that: docs/guides/restore.md)"
            )
        raise


def version_of_source(plan: Plan, history: Snapshot) -> str:
    """The version of the server that wrote the last binlog of the plan.

    The lineage says the version with which it began: an upgrade continues it.
    """
    version = history.known(plan.stop.lineage, plan.stop.binlog).server_version
    return one_line(version or plan.server_version)


def is_position_sure(backup: Backup, history: Snapshot) -> bool:
    """Whether a backup's position, if it has no GTIDs, is in one history only.

    After a RESET, or on a server that was put back, the same name and position are used again.
    """
    if backup.gtid_set is not None or backup.ends_at is None:
        return True
    return len(lineages_at(*backup.ends_at, history)) <= 1


def _tz(plan: Plan, history: Snapshot) -> str | None:
    """The value of TZ for the private server, so that its system time zone is the source's."""
    binlogs = {piece.binlog_id for piece in plan.pieces}
    zones = {
        history.time_zone(*binlog_id)
        for binlog_id in {*binlogs, (plan.stop.lineage, plan.stop.binlog)}
    }
    known = [zone for zone in zones if zone is not None]
    tz = tz_of(known) if known else None
    if known and tz is None:
        say(
            "warning",
            "no time zone of this machine has the offsets of the source's system time zone "
            f"({'; '.join(sorted(map(str, known)))}): the scratch server has this machine's",
        )
    return tz
