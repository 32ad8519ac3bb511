"""Applies a plan to a target, and compares the result with the plan.

Law: it succeeds only if the target has what the plan says. First the accounts that a loaded dump
brought are put in force: the history's statements are on those. Nothing else in the target is
changed before the target has connected to this process once.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from time import monotonic

from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList, beyond, either
from binlog2s3.config.pitr import PitrConfig
from binlog2s3.errors import ArchiveError, RecoveryError, SourceError, StoreError
from binlog2s3.formatting import count_text, gtids_text
from binlog2s3.recover import target
from binlog2s3.recover.channel import left_over
from binlog2s3.recover.events import disabled
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.listen import listen
from binlog2s3.recover.model import OnProgress, Plan, Start
from binlog2s3.recover.one_table import texts_of
from binlog2s3.recover.preflight import obstacles
from binlog2s3.recover.replicate import AGAIN, Replication, Work
from binlog2s3.recover.target import Target, TargetFacts
from binlog2s3.recover.view import Result


class Apply:
    """Applies plans to one target; nothing is changed until `run`.

    `standing`: where an interrupted run left it.
    """

    def __init__(self, config: PitrConfig, at: Target) -> None:
        self._config = config
        self._at = at
        self._server = at.server
        self._facts = at.facts
        self.standing = Standing(at)

    def check(self, plan: Plan, server_ids: Collection[int]) -> None:
        """See that the target can be a replica of this plan. Raises RecoveryError.

        `server_ids`: of the servers that wrote these binlogs, as far as they are known.
        """
        listen(self._server.login(), self._config).endpoint().bound().close()
        for obstacle in obstacles(self._at, plan, server_ids=server_ids):
            raise obstacle

    def is_past(self, start: Start) -> bool:
        """Whether the target is past its base backup: something of the history was applied.

        `start`: where this run begins.
        """
        facts, base = self._facts, start.base
        if facts.executed is None:
            return self.standing.was_interrupted()
        backed_up = base.gtids if base is not None else None
        return bool(facts.executed) and (
            backed_up is None or bool(beyond(facts.executed, backed_up))
        )

    def shows_backup(self, start: Start) -> bool:
        """Whether the target has GTIDs of the base backup that is named, if it keeps any.

        Without, it may have been restored from another one, and what came in between is missing:
        nothing else tells backups with the same tables apart.
        """
        have, backed_up = self._facts.executed, start.base.gtids if start.base is not None else None
        if have is None:  # a load that sets gtid_slave_pos leaves it there
            replicated = start.own.replicated if start.own is not None else None
            return bool(backed_up) and backed_up == replicated
        if not isinstance(have, GtidSet) or not isinstance(backed_up, GtidSet):
            return False
        return bool(have & backed_up) or not backed_up

    def run(self, work: Work, on_progress: OnProgress, *, asked: str) -> Result:
        """Apply all of it, and compare. Raises RecoveryError, and what reading the bucket raises.

        `asked`: what the operator said about the start.
        """
        began, plan = monotonic(), work.plan
        if plan.pieces:
            with _told(self._facts):
                self._replicate(work, on_progress, asked)
        else:
            self.standing.put_away()
        if work.commit_empty is not None:
            target.commit_empty(self._server, work.commit_empty)
        gtids, proved = self._prove(plan, work.commit_empty)
        return Result(
            how="replication" if plan.pieces else "nothing",
            where=self._facts.address,
            transactions=plan.transactions,
            size=plan.size,
            seconds=monotonic() - began,
            gtids=gtids,
            stands_at=None if self._facts.keeps_gtids else plan.stop,
            gtid_slave_pos=self._replicated(plan),
            committed_empty=str(work.commit_empty or ""),
            disabled_events=disabled(self._server),
            prepared=target.prepared(self._server, self._facts.flavour),
            proved=proved,
            untold=self._untold(plan),
            only_tables=texts_of(work.tables),
        )

    def _replicate(self, work: Work, on_progress: OnProgress, asked: str) -> None:
        replication = Replication(
            self._at,
            work,
            self.standing,
            listen=listen(self._server.login(), self._config),
            workers=self._config.workers,
        )
        target.put_accounts_in_force(self._at)
        if left_over(self._at) is None:
            replication.probe()
        target.refuse_lacking(self._at)
        if self._config.stop_target_threads:
            target.stop_threads(self._at)
        tables = texts_of(work.tables)
        with self.standing.noted(
            work.plan, asked, tables, is_untouched=lambda: not replication.touched
        ):
            replication.apply(on_progress)

    def _replicated(self, plan: Plan) -> MariadbGtidList | None:
        """What a MariaDB says that it has replicated, after a plan was applied; else None."""
        if self._facts.flavour != "mariadb" or not plan.pieces:
            return None
        return target.replicated(self._server)

    def _prove(self, plan: Plan, committed: GtidSet | None) -> tuple[Gtids | None, str]:
        if not self._facts.keeps_gtids or self._facts.executed is None:
            return None, ""
        expected = self._facts.executed
        for more in (plan.adds, committed):
            expected = either(expected, more) if more is not None else expected
        executed = target.executed(self._server)
        target.prove(executed, expected, own_uuid=self._facts.uuid)
        before, count = self._facts.executed, count_text(plan.transactions, "transaction")
        proved = (
            f"from {gtids_text(before) or 'no GTIDs'} to {gtids_text(executed) or 'no GTIDs'} "
            f"({count}), no more and no less"
        )
        return executed, "; ".join((proved, *self._besides(plan)))

    def _untold(self, plan: Plan) -> str:
        """Why the target itself does not tell all that was applied; "" if it does."""
        if self._facts.keeps_gtids:
            return ""
        if self._facts.flavour == "mariadb" and plan.pieces:
            return (
                "its gtid_slave_pos is that of the plan's end, but tells only the last transaction "
                "of each domain"
            )
        return "the target keeps no GTIDs that tell what was applied"

    def _besides(self, plan: Plan) -> Iterator[str]:
        """Where the target has other than the history, or in another order, as was asked for."""
        if plan.holes:
            yield f"{gtids_text(plan.holes)} came after later ones (--allow-holes)"
        if plan.skipped and self._config.skip_leaves_hole:
            yield f"without {gtids_text(plan.skipped_text)} (--skip-leaves-hole)"


@contextmanager
def _told(facts: TargetFacts) -> Iterator[None]:
    """Add to errors from elsewhere what happened to the target, and what to do next."""
    try:
        yield
    except ArchiveError as error:
        raise RecoveryError(
            f"{error}; what comes before it was applied",
            hint=f"{error.hint}; choose a goal before it, or fix it and {AGAIN}",
        ) from error
    except (StoreError, SourceError) as error:
        if isinstance(error, SourceError) and error.needs_privilege:
            error.hint = facts.grants
        error.hint = f"{error.hint}; {AGAIN}" if error.hint else AGAIN
        raise
    except RecoveryError as error:
        error.hint = error.hint or AGAIN
        raise
