"""`binlog2s3 pitr`: plans, shows the plan, asks the operator, applies, compares.

Law: nothing in the target is changed before the plan is made and the operator has said yes. It
exits with 0 only if the target has what the plan says.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from binlog2s3.archive.backups import Backup, look_up, one_of
from binlog2s3.archive.catalog import Catalog
from binlog2s3.archive.codec import printed
from binlog2s3.archive.drills import last_of, latest
from binlog2s3.archive.evidence import Evidence
from binlog2s3.archive.layout import Layout
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList
from binlog2s3.binlog.names import FilePosition
from binlog2s3.binlog.statements import Statement
from binlog2s3.config.bucket import for_restoring
from binlog2s3.config.goal import Latest, ToPosition
from binlog2s3.config.outside import OUTSIDE, Outside
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.errors import ArchiveError, NoBinlogError, RecoveryError
from binlog2s3.formatting import gtids_text, moment_text, size_text
from binlog2s3.output import NO_CHANGE, confirm, page_on, say
from binlog2s3.progress import progress_of
from binlog2s3.recover import base_check, preflight, target
from binlog2s3.recover.applier_error import next_transaction
from binlog2s3.recover.apply import Apply
from binlog2s3.recover.backup import (
    read_backup,
    refuse_defects,
    start_of_backup,
    start_of_gtids,
    start_of_registered,
)
from binlog2s3.recover.base_check import BaseCheck
from binlog2s3.recover.called import Called, definitions
from binlog2s3.recover.channel import left_over
from binlog2s3.recover.document import PrintedRecovery, whole
from binlog2s3.recover.export import prepare, to_directory
from binlog2s3.recover.extract import Watcher, stream_of, walked
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.model import (
    Base,
    BinlogPosition,
    OpenStream,
    Own,
    Plan,
    PlanPiece,
    Request,
    Shown,
    Start,
)
from binlog2s3.recover.one_table import OnlyTables, texts_of, watched
from binlog2s3.recover.origin import executed_with, innodb_lacks, refuse_other_position
from binlog2s3.recover.pending import LOOKED_BACK, PreparedBefore, pending_at, piece_before
from binlog2s3.recover.plan import make
from binlog2s3.recover.progress import showing
from binlog2s3.recover.reach import choose
from binlog2s3.recover.recoded import Recoded
from binlog2s3.recover.recomputed import Recomputed
from binlog2s3.recover.replaced import Replaced, referring
from binlog2s3.recover.replicate import Work
from binlog2s3.recover.route import gtids_at, history_flavour
from binlog2s3.recover.seam import Next
from binlog2s3.recover.snapshot import Snapshot, snapshot_of
from binlog2s3.recover.target import Target
from binlog2s3.recover.temporary import OlderTemporary
from binlog2s3.recover.time_zones import TimeZones, events_warning
from binlog2s3.recover.unrepeatable import Unrepeatable
from binlog2s3.recover.view import (
    About,
    Result,
    committed_empty,
    print_plan,
    print_result,
    question_text,
    warn_of,
)
from binlog2s3.server.applied import FOLDS, applied_settings, differing
from binlog2s3.server.connection import Server
from binlog2s3.server.foreign_keys import ForeignKey
from binlog2s3.server.login import resolve
from binlog2s3.status.writer_state import last_report, life_sign
from binlog2s3.store.s3 import S3Store, opened
from binlog2s3.workers import Advance, Workers


def run(config: PitrConfig, outside: Outside = OUTSIDE) -> int:
    """Run the command; the exit code. Raises errors, each with its own exit code."""
    with _recovery(config, outside, is_scratch=False) as recovery:
        recovery.say(*recovery.run())
    return 0


def recover(config: PitrConfig, outside: Outside) -> tuple[Plan, Result]:
    """Roll a scratch server forward: the plan that was carried out, and what was done.

    Only warnings are printed. Raises what `run` raises.
    """
    with _recovery(config, outside, is_scratch=True) as recovery:
        plan, _, result = recovery.run()
    assert result is not None  # noqa: S101 - there is a target, and this is no dry run
    return plan, result


@contextmanager
def _recovery(config: PitrConfig, outside: Outside, *, is_scratch: bool) -> Iterator["_Recovery"]:
    with ExitStack() as stack:
        # SIGTERM interrupts, so that the channel is removed
        s3 = for_restoring(config.s3)
        store = stack.enter_context(
            opened(s3, sigterm_interrupts=True, evidence=Evidence, session=outside.session)
        )
        server: Server | None = None
        if config.target is not None:
            server = stack.enter_context(Server(partial(resolve, config.target)))
        yield _Recovery(config, store, server, outside, is_scratch=is_scratch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A plan that nothing stands against, and what carrying it out needs.

    `zones` is None if no time zone can matter.
    """

    snapshot: Snapshot
    start: Start
    plan: Plan
    about: About
    open_stream: OpenStream
    zones: TimeZones | None


class _Recovery:
    def __init__(
        self,
        config: PitrConfig,
        store: S3Store,
        server: Server | None,
        outside: Outside,
        *,
        is_scratch: bool,
    ) -> None:
        self._config = config
        self._outside = outside
        self._is_scratch = is_scratch
        self._store = store
        self._server = server
        self._target: Target | None = None  # once it was asked
        self._apply: Apply | None = None
        self._replaced = Replaced()
        self._recoded = Recoded()
        self._unrepeatable = Unrepeatable()
        self._temporary = OlderTemporary()
        self._called = Called()
        self._recomputed = Recomputed()
        self._prepared_before = PreparedBefore()
        self._warnings: list[str] = []
        self._refusals: list[RecoveryError] = []  # what an apply would be refused with
        self._still_applies = False
        self._catalog = Catalog(store, Layout(config.s3.prefix, config.source))
        self._backup: Backup | None = None

    def run(self) -> tuple[Plan, About, Result | None]:
        """Plan, ask and carry it out; without a result if nothing was to be done."""
        config = self._config
        if config.output_dir is not None and not config.dry_run:
            prepare(config.output_dir)
        with ExitStack() as alone:
            if self._server is not None and config.applies:
                alone.enter_context(target.alone(self._server.login))
            return self._run()

    def _run(self) -> tuple[Plan, About, Result | None]:
        config, ready = self._config, self._ready()
        self._show(ready.plan, ready.about)
        if self._backup is not None and self._target is None and not config.as_json:
            self._advise(self._backup)
        result = None
        if not config.dry_run and not config.chooses_backup:
            if config.output_dir is not None:
                result = self._to_directory(ready, config.output_dir)
            else:
                result = self._to_target(ready)
        return ready.plan, ready.about, result

    def _ready(self) -> _Ready:
        """Plan, and see what stands against it. Only what an interrupted run left is stopped."""
        config = self._config
        with progress_of("entries") as advance:
            snapshot = self._snapshot(advance)
            self._ask()
            self._refuse_target(snapshot)
            plan = self._registered(snapshot)
            start, start_words = self._start(snapshot)
            if plan is None:
                start, plan = self._from_seam(start, self._plan(start, snapshot), snapshot)
            if self._apply is not None:
                plan = replace(plan, begins_behind=_begins_behind(plan, snapshot))
            self._check(plan, start, snapshot)
            self._settings(plan)
            open_stream = partial(stream_of, snapshot, concurrency=config.s3.concurrency)
            zones = self._time_zones(plan, open_stream, snapshot)
            only = self._only(plan, open_stream) if config.tables else None
        self._warnings += [str(error) for error in snapshot.problems]
        streamer = self._last_report(plan, snapshot)
        plan = self._with_warnings(plan, snapshot)
        once = self._apply is not None and not self._by_gtid
        about = About(
            source=config.source,
            archive=config.s3.url,
            target=self._target.facts.address if self._target is not None else "",
            start=start_words,
            streamer=streamer,
            leaves_hole=config.skip_leaves_hole or once,
            applies=self._apply is not None,
            once=once,
            only=only,
        )
        return _Ready(
            snapshot=snapshot,
            start=start,
            plan=plan,
            about=about,
            open_stream=open_stream,
            zones=zones,
        )

    def _with_warnings(self, plan: Plan, snapshot: Snapshot) -> Plan:
        """The plan with what its goal cuts in two, and with all warnings, the plan's own last."""
        self._warnings += self._store.version_notes()
        if self._target is not None and self._config.output_dir is None:
            self._warnings += preflight.warnings(
                self._target.facts,
                server_version=plan.server_version,
                is_scratch=self._is_scratch,
            )
        plan = replace(plan, pending=self._pending(plan, snapshot))
        return replace(plan, warnings=(*self._warnings, *plan.warnings))

    def _to_target(self, ready: _Ready) -> Result:
        assert self._apply is not None  # noqa: S101 - there is a target, or a directory
        base = self._base_check(self._apply, ready.start)
        referred_before = self._referring()
        if self._target is not None:
            self._called.know(definitions(self._target))
        self._confirm(ready.plan, ready.about)
        unseen = self._look_back(self._apply.standing, ready)
        result = self._applied(self._apply, ready)
        if ready.zones is not None and ready.zones.is_news:
            say("warning", ready.zones.unknown_text())
        reasons = (
            ready.about.only.doubt if ready.about.only is not None else "",
            *self._prepared_before.doubts(ready.plan.pending, result.prepared),
            self._replaced.doubt(referred_before, self._referring()),
            self._unrepeatable.doubt,
            self._temporary.doubt,
            self._called.doubt,
            self._recoded.doubt,
            self._recomputed_doubt(),
            _doubt_of_lacks(ready.plan),
            unseen,
        )
        doubts = tuple(dict.fromkeys(filter(None, reasons)))  # two may say the same
        proved = "" if doubts else result.proved
        return replace(result, proved=proved, doubts=doubts, base_backup=base)

    @staticmethod
    def _to_directory(ready: _Ready, directory: Path) -> Result:
        plan = ready.plan
        with closing(ready.open_stream(plan.pieces)) as pieces, showing(sys.stderr) as progress:
            before = _gtids_before(plan, ready.snapshot)
            return to_directory(
                plan, ready.about, pieces, directory, before=before, on_progress=progress
            )

    # What there is

    def _snapshot(self, advance: Advance) -> Snapshot:
        s3 = self._config.s3
        snapshot = snapshot_of(self._catalog, Workers(s3.threads), s3.url, advance=advance)
        self._warnings += [f"{error}; its lineage is left out" for error in snapshot.unreadable]
        return snapshot

    def _ask(self) -> None:
        """Ask what the target is, and stop what an interrupted run left running there."""
        if self._server is None:
            return
        self._target = target.ask(self._server)
        left = left_over(self._target)
        state = left.state() if left is not None else None
        if left is not None and state is not None and state.runs:
            if self._config.applies:
                self._server.close()
                left.stop()
                self._target = target.ask(self._server)
            elif state.applies:  # the channel of a probe only receives
                self._still_applies = True
                self._warnings.append(
                    "the target still applies what an interrupted run has sent to it; the plan is "
                    "made for what it has now"
                )
        if self._config.output_dir is None:
            self._apply = Apply(self._config, self._target)

    @property
    def _by_gtid(self) -> bool:
        """Whether the target keeps GTIDs that always tell what it has."""
        return self._target is not None and self._target.facts.keeps_gtids

    # Where it begins

    def _start(self, snapshot: Snapshot) -> tuple[Start, str]:
        """What the target has, and in words who says so."""
        config = self._config
        flavour = history_flavour(snapshot, config.lineage)
        have: Gtids | None = None
        words = []
        if self._target is not None and (have := self._target.facts.executed) is not None:
            words.append("what the target has executed")
        named = Start()
        if config.from_gtid_set is not None:
            named = start_of_gtids(config.from_gtid_set, flavour)
            words.append("--from-gtid-set")
        elif config.from_binlog is not None and config.from_position is not None:
            named = Start(position=FilePosition(config.from_binlog, config.from_position))
            words.append(f"{config.from_binlog}:{config.from_position}")
        elif config.from_backup is not None:
            point = read_backup(config.from_backup)
            named, backup, warnings = start_of_backup(config.from_backup, point, flavour)
            self._warnings += warnings
            lacks = innodb_lacks(named.base, snapshot) if named.base is not None else ""
            self._check_whole(config.from_backup, (*point.defects, *filter(None, [lacks])))
            words.append(backup)
        elif self._backup is not None:
            if self._backup.defects:
                self._warnings.append(
                    f"{self._backup.name} is no base backup of the whole server: "
                    f"{'; '.join(self._backup.defects)}. Accepted: {self._backup.accepted}"
                )
            named = start_of_registered(self._backup, flavour)
            words.append(_words(self._backup))
        elif self._target is not None and have is None:
            raise RecoveryError(
                "the target's GTIDs do not tell where its base backup ends"
                if flavour == "mariadb"
                else "the target keeps no GTIDs (gtid_mode is not ON) that tell where its base "
                "backup ends",
                hint="say where its base backup ends: --from-backup PATH, or --from-binlog NAME "
                "and --from-position N",
            )
        stands = None
        if self._apply is not None:
            stands = self._apply.standing.start(_asked(config), snapshot.lineages)
        if self._apply is not None and stands is not None:
            where = stands.gtids if stands.position is None else str(stands.position)
            self._warnings.append(
                f"an earlier run of this command was interrupted at {where}, and this run "
                "continues from there; if the base backup was restored again since, first DROP "
                f"DATABASE {self._apply.standing.database}"
            )
            if stands.lineage is None:
                stands = replace(stands, lineage=config.from_lineage, base=named.base)
            return stands, "where a run was interrupted"
        own = self._own()
        if named.base is not None:
            refuse_other_position(named.base, snapshot)
            has = have
            have = executed_with(has, named.base, own.reset if own is not None else "")
            self._warnings += _not_executed(has, named.base)
        lineage = config.from_lineage or named.lineage
        return replace(named, gtids=have, lineage=lineage, own=own), " and ".join(words)

    def _check_whole(self, path: Path, defects: Sequence[str]) -> None:
        """Refuse a base backup with defects, unless the operator accepts them."""
        try:
            only = bool(self._config.tables)
            refuse_defects(path, defects, base_check.ACCEPT, only_tables=only)
        except RecoveryError as error:
            if not self._config.accept_backup:
                self._refuse(error)
            else:
                self._warnings.append(str(error))

    def _own(self) -> Own | None:
        """The target, if there is one. An interrupted run's position is `Standing`'s to judge."""
        if (at := self._target) is None:
            return None
        facts = at.facts
        own = Own(facts.uuid, facts.release.reset_statement)
        if self._apply is None or facts.flavour != "mariadb":
            return own
        if self._apply.standing.was_interrupted():
            return own
        return replace(own, replicated=target.replicated(at.server))

    def _registered(self, snapshot: Snapshot) -> Plan | None:
        """Find the registered backup that is named, or the newest that reaches the goal: its plan.

        None if none was chosen.
        """
        if self._config.from_backup_id is None and not self._config.chooses_backup:
            return None
        registered = look_up(self._catalog)
        self._warnings += [f"{error}; it is not used" for error in registered.unreadable]
        if self._config.from_backup_id is not None:
            self._backup = one_of(registered.backups, self._config.from_backup_id)
            return None
        backups = registered.restorable
        if not backups:
            raise RecoveryError(
                "no target, and no base backup is registered that could be restored",
                hint="name the target that was restored: --target-host or --target-socket; or "
                "where the base backup ends: --dry-run with --from-backup, --from-gtid-set or "
                "--from-binlog; `binlog2s3 backup run` makes a base backup, `backup add` registers "
                "one",
            )
        request = self._request(Start(lineage=self._config.from_lineage))
        self._backup, plan = choose(backups, request, snapshot)
        with _reading():
            if not isinstance(plan, Plan):
                raise plan
        return plan

    def _from_seam(self, start: Start, plan: Plan, snapshot: Snapshot) -> tuple[Start, Plan]:
        """The plan without a first transaction that an interrupted run has executed already."""
        if self._apply is None or not plan.pieces or not self._apply.standing.was_interrupted():
            return start, plan
        first = next_transaction(plan.pieces, plan.begin, snapshot.transactions)
        if first is None:
            return start, plan
        piece, transaction = first
        statements: list[Statement] = []
        content = snapshot.content(piece.lineage, piece.binlog, transaction, statements.append)
        gtids = self._apply.standing.after(Next(transaction.gtid, content, tuple(statements)))
        if gtids is None:
            return start, plan
        start = replace(start, gtids=gtids)
        return start, self._plan(start, snapshot)

    def _plan(self, start: Start, snapshot: Snapshot) -> Plan:
        with _reading():
            return make(self._request(start), snapshot)

    def _request(self, start: Start) -> Request:
        config = self._config
        return Request(
            goal=config.goal,
            start=start,
            skip=config.skip_gtid,
            holes=config.allow_holes,
            lineage=config.lineage,
            allow_gap=config.allow_gap,
            allow_extra_gtids=config.allow_extra_gtids,
        )

    def _check(self, plan: Plan, start: Start, snapshot: Snapshot) -> None:
        """See whether the target can be a replica of it, and stands where the plan begins."""
        if self._apply is None:
            return
        binlogs = {piece.binlog_id for piece in plan.pieces}
        ids = {snapshot.known(lineage, name).server_id for lineage, name in binlogs}
        try:
            self._apply.check(plan, [server_id for server_id in ids if server_id is not None])
            if not self._still_applies:
                self._apply.standing.check(
                    plan, start, allow_non_transactional=self._config.allow_non_transactional
                )
        except RecoveryError as error:
            self._refuse(error)

    def _only(self, plan: Plan, open_stream: OpenStream) -> OnlyTables:
        """See whether only these tables can be applied, to this target."""
        only = OnlyTables(self._config.tables, plan, open_stream)
        if self._target is not None:
            only.ask(self._target)
        for refusal in only.refusals:
            self._refuse(refusal)
        return only

    def _time_zones(
        self, plan: Plan, open_stream: OpenStream, snapshot: Snapshot
    ) -> TimeZones | None:
        """See whether the target's system time zone makes other values of the plan's statements."""
        config, server = self._config, self._server
        writes = config.output_dir is not None and not config.dry_run
        if not plan.pieces or not (self._apply is not None or writes):
            return None
        zones = TimeZones(
            plan,
            snapshot.time_zone,
            server.time_zone if server is not None else lambda _year: None,
            accepted=config.accept_time_zone,
        )
        zones.look(open_stream, snapshot.transactions)
        if zones.refusal is not None:
            self._refuse(zones.refusal)
        self._warnings += zones.warnings()
        if zones.difference and server is not None:
            self._warnings += events_warning(server, zones.difference)
        return zones

    def _pending(self, plan: Plan, snapshot: Snapshot) -> tuple[Shown, ...]:
        """What the goal cuts in two. Bytes that cannot be read would end the apply, too."""
        unread = ""
        try:
            pending = pending_at(plan, snapshot, before=piece_before(plan))
        except ArchiveError as error:  # what the target has already may be damaged
            unread = str(error)
            with _reading():
                pending = pending_at(plan, snapshot)
        self._prepared_before = PreparedBefore(pending.before, unread=unread)
        if not pending.is_all:
            self._warnings.append(
                "XA transactions and ALTERs that the goal cuts in two are shown only if they began "
                f"in the last {size_text(LOOKED_BACK)} before it"
            )
        return pending.shown

    def _settings(self, plan: Plan) -> None:
        """See whether the target makes something else of the binlogs than the source did.

        The source's settings are those of the base backup, or of the newest one of the plan's
        lineages that has some.
        """
        if self._apply is None or self._target is None:
            return
        if self._backup is not None:
            backups = [self._backup]
        else:
            ours = {plan.lineage, *plan.lineages}
            backups = [
                backup for backup in look_up(self._catalog).backups if backup.lineage in ours
            ]
        of_source = next((backup.settings for backup in reversed(backups) if backup.settings), ())
        if not of_source:
            return
        differences = differing(of_source, applied_settings(self._target.server))
        if folds := differences.pop(FOLDS, None):
            self._refuse(
                self._target.facts.refusal(
                    f"has {FOLDS} = {folds[1]}, and the source had {folds[0]}: it would take names "
                    "in the binlogs for those of other tables",
                    f"make a new server with {FOLDS} = {folds[0]} in its option file, and "
                    "restore the base backup into that",
                )
            )
        for name, (source, at_target) in differences.items():
            self._warnings.append(
                f"{name} is {at_target} at the target, and was {source} at the source: what is "
                "made, or computed for stored generated columns, may differ; set it there first"
            )

    def _base_check(self, apply: Apply, start: Start) -> BaseCheck:
        """What is known of the base backup, before the first transaction is applied."""
        path, backup = self._config.from_backup, self._backup
        if backup is not None:
            return base_check.by_drill(backup.name, last_of(latest(self._catalog), backup))
        if path is None:
            return base_check.unchecked()
        if apply.is_past(start):
            return base_check.unchecked("the target has more than it")
        assert self._target is not None  # noqa: S101 - it applies
        with progress_of("bytes of the base backup") as advance:
            check = base_check.by_dump(
                self._target.server,
                path,
                self._config.tables,
                advance,
                accepts=self._config.accept_backup,
            )
        if apply.shows_backup(start):
            return check
        return replace(
            check,
            words=f"{check.words}; no GTIDs of the target show that this is the one that was "
            "restored: from an older one, WHAT LIES IN BETWEEN WOULD BE LEFT OUT",
        )

    def _last_report(self, plan: Plan, snapshot: Snapshot) -> str:
        """When the streamer last reported, if the plan has all of a history that may grow."""
        try:
            is_current = snapshot.current == plan.lineage
        except ArchiveError:  # another warning says that this is unknown
            is_current = False
        if not (isinstance(plan.goal, Latest) and is_current) or self._catalog.has_retired:
            return ""
        return last_report(life_sign(self._catalog, self._outside.now()))

    # Refusals

    def _refuse(self, error: RecoveryError) -> None:
        """Raise the error. A dry run warns, shows its plan, and ends as the apply would."""
        if self._config.applies:
            raise error
        self._warnings.append(f"{error}; {error.hint}")
        if self._config.output_dir is None:
            self._refusals.append(error)

    def _refuse_target(self, snapshot: Snapshot) -> None:
        if self._apply is None or self._target is None:
            return
        login, lineages, facts = self._target.server.login(), snapshot.lineages, self._target.facts
        if not self._config.applies:
            self._warnings.append(
                f"the privileges of {facts.account} at the target were not tried, because that "
                f"changes the target; an apply tries them before anything else: {facts.grants}"
            )
        marked = self._apply.standing.refusal(texts_of(self._config.tables))
        if marked is not None:
            self._refuse(marked)
        for refusal in preflight.problems(
            facts,
            login,
            self._config,
            flavour=history_flavour(snapshot, self._config.lineage),
            server_uuids=[lineage.server_uuid for lineage in lineages],
            is_scratch=self._is_scratch,
        ):
            self._refuse(refusal)

    def _confirm(self, plan: Plan, about: About) -> None:
        if self._config.yes or not (plan.pieces or committed_empty(plan, about)):
            return
        confirm(
            question_text(plan, about),
            "applied",
            hint="--yes applies without asking, --dry-run only shows the plan",
            as_json=self._config.as_json,
        )

    # Doing it

    def _applied(self, apply: Apply, ready: _Ready) -> Result:
        """Apply it to the target. Ctrl-C prints what the next run does."""
        tables, only = self._config.tables, ready.about.only
        opened: OpenStream = ready.open_stream
        if only is not None and not only.looked:
            opened = watched(opened, only.check)
        if ready.zones is not None:
            opened = ready.zones.watched(opened)
        opened = walked(opened, [self._prepared_before, *self._watchers])
        work = Work(
            plan=ready.plan,
            open_stream=opened,
            transactions=ready.snapshot.transactions,
            tables=tables,
            commit_empty=committed_empty(ready.plan, ready.about),
        )
        try:
            with showing(sys.stderr) as progress:
                return apply.run(work, progress, asked=_asked(self._config))
        except KeyboardInterrupt:
            if not self._is_scratch:
                page_on(sys.stderr).line(
                    "interrupted; run the same command again: it continues where the target is now"
                )
            raise

    @property
    def _watchers(self) -> list[Watcher]:
        """What notes of what the target may make other rows or names."""
        watchers: list[Watcher] = [
            self._recoded,
            self._unrepeatable,
            self._temporary,
            self._called,
        ]
        if self._target is not None and self._target.facts.release.cascades_itself:
            watchers.append(self._replaced)
        if self._target is not None and self._target.facts.flavour == "mariadb":
            watchers.append(self._recomputed)
        return watchers

    def _recomputed_doubt(self) -> str:
        if self._target is None or self._target.facts.flavour != "mariadb":
            return ""
        return self._recomputed.doubt(self._target.server)

    def _look_back(self, standing: Standing, ready: _Ready) -> str:
        """Read once more what an interrupted run has applied: what it noted died with it.

        Returns why that cannot be read, "" if it was, or there is none. Raises StoreError.
        """
        if not standing.was_interrupted():
            return ""
        plan, only = ready.plan, ready.about.only
        opened = walked(ready.open_stream, self._watchers)
        if only is not None:
            opened = watched(opened, only.check)
        try:
            pieces = _between(standing.since(), plan.begin, ready.snapshot)
            size = sum(piece.size for piece in pieces)
            with progress_of("bytes that were applied") as advance, closing(opened(pieces)) as all_:
                done = 0
                for _, data in all_:
                    for checked in data:
                        done += len(checked.data)
                        advance(done, size)
        except ArchiveError as error:
            return f"what an interrupted run has applied cannot be read once more: {error}"
        return ""

    def _referring(self) -> Sequence[ForeignKey] | None:
        """The foreign keys that may change other rows here than at the source, as of now."""
        if self._target is None or not self._target.facts.release.cascades_itself:
            return ()
        return referring(self._target.server)

    # What is said

    def _show(self, plan: Plan, about: About) -> None:
        if self._config.as_json or self._is_scratch:
            warn_of(plan, about)
            return
        print_plan(plan, about, page_on(sys.stdout))

    def _advise(self, backup: Backup) -> None:
        page = page_on(sys.stdout)
        where = f" from {backup.location}" if backup.location else ""
        page.line(f"restore {backup.name}{where}, of {moment_text(backup.taken_at)}", "bold")
        page.line("then run the same command with --target-host or --target-socket")
        if self._config.dry_run:
            page.line("")

    def say(self, plan: Plan, about: About, result: Result | None) -> None:
        """Print what was done. Raises what a dry run's apply would be refused with."""
        if self._config.as_json:
            print(printed(PrintedRecovery, whole(plan, about, result)))  # noqa: T201
        elif result is not None:
            print_result(result, page_on(sys.stdout))
        elif self._config.dry_run:
            page_on(sys.stdout).line(NO_CHANGE)
        if self._refusals and self._config.dry_run:
            sys.stdout.flush()
            first = self._refusals[0]
            raise RecoveryError(f"without --dry-run this is refused: {first}", hint=first.hint)


@contextmanager
def _reading() -> Iterator[None]:
    """A plan whose bytes cannot be read is refused, before anything is changed."""
    try:
        yield
    except ArchiveError as error:
        then = (
            "goals before it can still be reached: --to-position or --to-gtid in an earlier binlog "
            "(`binlog2s3 list` shows them)"
        )
        if isinstance(error, NoBinlogError):  # and those before it, perhaps
            then = "`binlog2s3 backup list` shows what can be recovered now"
        hint = f"{error.hint}; {then}" if error.hint else then
        raise RecoveryError(str(error), hint=hint) from error


def _between(
    since: BinlogPosition | None, upto: BinlogPosition, snapshot: Snapshot
) -> Sequence[PlanPiece]:
    """The pieces between two positions of the history that ends at the second one.

    Raises ArchiveError if the first is not known, or they are not there any more.
    """
    if since is None:
        raise ArchiveError("where the interrupted run began is not known")
    if since.lineage == upto.lineage and since.file_position >= upto.file_position:
        return ()
    request = Request(
        goal=ToPosition(upto.file_position, upto.lineage),
        start=Start(position=since.file_position, lineage=since.lineage),
        lineage=upto.lineage,
        allow_gap=True,
    )
    try:
        return make(request, snapshot).pieces
    except RecoveryError as error:
        raise ArchiveError(str(error)) from error


def _doubt_of_lacks(plan: Plan) -> str:
    """Why the GTIDs of the plan do not make the target's rows those of the source; "" if not."""
    if not plan.lacks:
        return ""
    return (
        f"the source had executed {gtids_text(plan.lacks)}, which none of its binlogs has, and the "
        "target has not: what that changed is missing; a base backup made after it has it"
    )


def _begins_behind(plan: Plan, snapshot: Snapshot) -> MariadbGtidList | None:
    if plan.flavour != "mariadb" or not plan.pieces:
        return None
    before = _gtids_before(plan, snapshot)
    return before if isinstance(before, MariadbGtidList) else MariadbGtidList()


def _gtids_before(plan: Plan, snapshot: Snapshot) -> Gtids | None:
    """What was executed before the plan's first transaction; None if the history does not tell.

    If the plan does not say it, the binlog in which it begins does.
    """
    if plan.before is not None or not plan.pieces:
        return plan.before
    begin = plan.begin
    return gtids_at(snapshot, begin.lineage, begin.binlog, begin.offset)


def _not_executed(have: Gtids | None, base: Base) -> Iterator[str]:
    """A warning if the base backup is said to have what the target has not executed."""
    if isinstance(have, GtidSet) and isinstance(base.gtids, GtidSet) and base.gtids - have:
        yield (
            f"{base.said_by} has GTIDs that the target has not executed: "
            f"{gtids_text(base.gtids - have)}; they are not applied: data are MISSING unless that "
            "backup was restored"
        )


def _words(backup: Backup) -> str:
    where = f" at {backup.location}" if backup.location else ""
    return f"the registered {backup.tool} {backup.name}{where}"


def _asked(config: PitrConfig) -> str:
    """What the operator says about the start, to be compared with an earlier run's."""
    position = f"{config.from_binlog}:{config.from_position}" if config.from_binlog else ""
    backup = str(config.from_backup.absolute()) if config.from_backup is not None else ""
    gtids = config.from_gtid_set or config.from_backup_id or ""
    return f"{config.source} {config.from_lineage or ''} {position} {backup} {gtids}"
