"""Applies a plan to a target that replicates it from this process, up to the goal and no further.

Law: only bytes of the plan are ever sent, so a target that continues alone cannot pass the goal.
Nothing counts as applied before the target says that it has executed it. The channel is always
removed at the end, or by the next run; and before that it is known how far the target is.
"""

import secrets
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from binlog2s3.binlog.executed import domain_of, gtid_text
from binlog2s3.binlog.gtid import GtidSet, MariadbGtidList
from binlog2s3.errors import Binlog2s3Error, RecoveryError, SourceError
from binlog2s3.recover.applier_error import (
    ApplierFailure,
    Transactions,
    advised,
    failed_transaction,
)
from binlog2s3.recover.channel import Channel, State, channel_of
from binlog2s3.recover.extract import through
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.listen import Listen
from binlog2s3.recover.model import (
    BinlogPosition,
    Checked,
    OnProgress,
    OpenStream,
    Plan,
    PlanPiece,
    ProgressReport,
)
from binlog2s3.recover.plan_source import PlanSource, SentMark, Window
from binlog2s3.recover.seam import told_executed
from binlog2s3.recover.target import CHANNEL, Target, refuse_full_disk
from binlog2s3.replication.login import Account
from binlog2s3.replication.queries import Identity
from binlog2s3.server.version import ServerVersion

_EVERY_SECONDS = 0.2
_SOON_SECONDS = 0.02
_CONNECT_SECONDS = 30.0
_STILL_SECONDS = 15.0
"""After so long without progress, look whether the target's disk is full."""
_PASSED_SECONDS = 60.0
_APPLIED_SECONDS = 2.0
AGAIN = "run the same command again: it continues from there"
"""The hint of an error after which nothing is lost."""
_SERVER_IDS = (4294967201, 4294967202)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What is applied: a plan, and how its bytes are had.

    `transactions` of the history, to find the one that a MariaDB refused. `tables`: apply only
    these; none means all. `commit_empty`: skipped GTIDs that are committed empty at the end.
    """

    plan: Plan
    open_stream: OpenStream
    transactions: Transactions = lambda *_: iter(())
    tables: Sequence[tuple[str, str]] = ()
    commit_empty: GtidSet | None = None


class Replication:
    """One apply to one target. Nothing was applied as long as it has not `touched` the target.

    `standing` gets what the next run has to know if this one does not come to its end.
    """

    def __init__(
        self,
        target: Target,
        work: Work,
        standing: Standing,
        *,
        listen: Listen,
        workers: int | None = None,
        window: Window | None = None,
    ) -> None:
        self._target = target
        self._server = target.server
        self._facts = target.facts
        self._work = work
        self._plan = work.plan
        self._standing = standing
        self._listen = listen
        self._workers = workers
        self._window = window or Window()
        self._channel: Channel = channel_of(target)
        self._account = Account(CHANNEL, secrets.token_urlsafe(24))
        self._before: dict[str, object] = {}
        self._mark: SentMark | None = None
        self._seen: tuple[str, int] = ("", 0)
        self._moved = 0.0
        self._report: OnProgress = lambda _progress: None
        self.touched = False

    def probe(self) -> None:
        """See that the target reaches this process; nothing is sent. Raises RecoveryError.

        Also see, by trying, that the account has the privileges that the apply needs.
        """
        with self._alone(), self._source(()) as source:
            self._channel.rehearse()
            self._connect(source, receive_only=True)
            if not self._channel.shows_threads():
                raise RecoveryError(
                    f"the account at the target, {self._facts.address}, is missing the privilege "
                    "PROCESS",
                    hint=self._facts.grants,
                )

    def apply(self, on_progress: OnProgress) -> None:
        """Apply all of the plan, then remove the channel.

        Raises RecoveryError that says where it stopped and what to do, and what reading raised.
        """
        self._report = on_progress
        last: dict[int, str] = {}
        with self._alone(), self._source(self._plan.pieces, last) as source:
            self._connect(source)
            self._moved = time.monotonic()
            pause = _SOON_SECONDS
            while not self._look(source):
                time.sleep(pause)
                pause = min(2 * pause, _EVERY_SECONDS)
        self._prove(last)
        self._tell(self._plan.size, self._plan.transactions)

    # the two ends

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No channel before, none afterwards, or the error says that it stays."""
        if self._channel.state() is not None:
            raise self._facts.refusal(
                f"has a channel {CHANNEL!r} already",
                "is another recovery running there? If not, run the same command again: it "
                "removes the channel",
            )
        try:
            yield
            self._put_away(None)
        except SourceError as error:
            refusal = RecoveryError(
                f"lost the target, {self._facts.address}, during the apply: {error}"
                if error.transient
                else f"the target, {self._facts.address}, does not replicate from here: {error}",
                hint=self._hint(error),
                transient=error.transient,
            )
            self._put_away(refusal)
            raise refusal from error
        except BaseException as error:
            self._put_away(error)
            raise

    def _hint(self, error: SourceError) -> str:
        if error.needs_privilege:
            return self._facts.grants
        return f"is the server up? {AGAIN}" if error.transient else error.hint

    def _put_away(self, error: BaseException | None) -> None:
        try:
            self._server.close()  # an answer may be half read
            state = self._channel.state()
            if state is not None and state.ours:
                self._channel.stop()
                position = self._channel.reached(self._plan.lineages)
                if self.touched and not self._facts.keeps_gtids and position is not None:
                    self._standing.reach(position)
                self._channel.remove()
            self._give_back()
        except Binlog2s3Error as other:
            if error is None:
                raise
            if isinstance(error, Binlog2s3Error):
                stays = f"the channel {CHANNEL!r} stays until the next run ({other})"
                error.hint = f"{error.hint}; {stays}" if error.hint else stays

    def _source(
        self, pieces: Sequence[PlanPiece], last: dict[int, str] | None = None
    ) -> PlanSource:
        opened = self._work.open_stream
        if last is not None and self._facts.flavour == "mariadb":
            opened = through(opened, lambda _, data: _noting(data, last))
        return PlanSource(
            self._identity(),
            self._account,
            pieces,
            opened,
            not_of=self._facts.server_id,
            at=self._listen.endpoint(),
            window=self._window,
        )

    def _identity(self) -> Identity:
        facts, mode = self._facts, ""
        if facts.flavour == "mysql":
            mode = str(self._server.rows("SELECT @@global.gtid_mode AS it")[0]["it"]).upper()
        return Identity(
            version=ServerVersion(self._plan.server_version).for_replicas,
            flavour=facts.flavour,
            server_id=next(number for number in _SERVER_IDS if number != facts.server_id),
            server_uuid=str(uuid.uuid4()),
            gtid_mode=mode,
            plugin=facts.release.plugin,
        )

    def _connect(self, source: PlanSource, *, receive_only: bool = False) -> None:
        """Wait until the target has connected and asked for events, or raise RecoveryError."""
        if self._facts.flavour == "mariadb" and not receive_only:
            at = ",".join(_position(self._plan.begins_behind))
            self._server.rows("SET GLOBAL gtid_slave_pos = %s", (at,))
            self._standing.follow_gtids()
        begin = None if self._facts.keeps_gtids else self._plan.begin
        self._channel.create(source.address, self._account, begin, self._listen)
        if self._work.tables and not receive_only:
            self._channel.filter(self._work.tables)
        self._see_filters(self._state(), self._work.tables if not receive_only else ())
        self.touched = not receive_only
        self._set(receive_only=receive_only)
        self._channel.start(self._account, receive_only=receive_only)
        if self._facts.flavour == "mysql":  # running threads keep what they were started with
            self._give_back()
        deadline = time.monotonic() + _CONNECT_SECONDS
        while not source.has_client.wait(0.1):
            code, text = self._state().receive_error
            if code or time.monotonic() > deadline:
                raise self._unreached(source.address, text or "it reports no error")

    def _see_filters(self, state: State, tables: Sequence[tuple[str, str]]) -> None:
        """See that the channel leaves out what this run wants, and nothing else."""
        if filters := state.filters_besides(tables):
            raise self._facts.refusal(
                f"would leave something out: {'; '.join(filters)}",
                "remove that filter for the time of the recovery",
            )
        if tables and not state.filters:
            raise self._facts.refusal(
                "does not filter by table (any more)",
                f"was it restarted meanwhile? {AGAIN}",
            )

    def _unreached(self, address: tuple[str, int], text: str) -> RecoveryError:
        hint = (
            "pass an address of this machine that the target reaches: --serve-address "
            "HOST[:PORT]; is there a firewall in between?"
        )
        if self._listen.certificate is not None:
            hint += (
                " Or does the target refuse the certificate? --serve-tls-ca must be a file on its "
                "machine that its server can read, with the authority of --serve-tls-cert or that "
                "certificate itself, which must have the host of --serve-address among its names"
            )
        host, port = address
        return self._facts.refusal(f"does not reach this process at {host}:{port}: {text}", hint)

    def _set(self, *, receive_only: bool) -> None:
        """Change the server's settings that the channel needs; each is restored later.

        One worker, if several would not keep the order in which the source committed. A MariaDB has
        to refuse to create what exists and to drop what does not, also when it continues an
        interrupted run: a statement that it executes twice has to be an error. A probe sets each
        setting to its present value, which shows that the account may. A MariaDB allows that only
        while nothing replicates.
        """
        wanted: dict[str, object] = {}
        keeps_order = self._channel.keeps_order(self._plan)
        workers = self._workers if keeps_order else self._channel.one_by_one
        if workers is not None:
            wanted[self._channel.workers] = workers
        if self._facts.flavour == "mariadb":
            wanted["slave_ddl_exec_mode"] = "STRICT"
        before = {name: self._channel.setting(name) for name in wanted}
        if receive_only:
            if not self._facts.channels:
                for name, value in before.items():
                    self._channel.set_global(name, value)
            return
        if before:
            self._standing.keep(before)
        for name, value in wanted.items():
            self._before[name] = before[name]
            self._channel.set_global(name, value)

    def _give_back(self) -> None:
        if not self._before:
            return
        while self._before:
            name, value = self._before.popitem()
            try:
                self._channel.set_global(name, value)
            except SourceError:
                self._before[name] = value
                raise
        self._standing.keep({})

    # how far it is

    def _state(self) -> State:
        state = self._channel.state()
        if state is None or not state.ours:
            raise RecoveryError(
                f"somebody removed the channel {CHANNEL!r} of the target, {self._facts.address}",
                hint=AGAIN,
            )
        return state

    def _look(self, source: PlanSource) -> bool:
        """Whether everything is applied. Raises what stopped it."""
        state, now = self._state(), time.monotonic()
        self._see_filters(state, self._work.tables)
        self._mark = self._window.reached(state.log, state.offset)
        if self._mark is not None:
            self._tell(self._mark.size, self._mark.transactions)
        else:
            self._tell(0, 0)
        last = self._plan.pieces[-1]
        if state.log == last.served_name and state.offset >= last.end:
            return True
        if not state.applies:
            raise self._explained(self._channel.failure(state), state)
        if (state.log, state.offset) != self._seen:
            self._seen, self._moved = (state.log, state.offset), now
        self._check_progress(source, state, still=now - self._moved)
        return False

    def _check_progress(self, source: PlanSource, state: State, *, still: float) -> None:
        """Raise what prevents progress. `still`: seconds since its position last changed."""
        if source.failure is not None:
            if state.waits and still > _APPLIED_SECONDS:  # what came before it is applied
                raise source.failure
        elif not state.receives and not source.has_sent_all.is_set():
            raise self._facts.refusal(
                f"has stopped receiving: {state.receive_error[1] or 'somebody stopped it'}",
                AGAIN,
                transient=True,
            )
        if still > _STILL_SECONDS:
            refuse_full_disk(self._target)
        has_all = source.has_sent_all.is_set() and state.waits
        if still > _PASSED_SECONDS and has_all and not self._channel.is_busy():
            raise self._facts.refusal(
                f"has read everything but is still at {state.position}: it has skipped what comes "
                "after",
                "was its server_id or a filter changed meanwhile? Restore the base backup",
            )

    def _tell(self, size: int, transactions: int) -> None:
        self._report(
            ProgressReport(
                size=size,
                of_size=self._plan.size,
                transactions=transactions,
                of_transactions=self._plan.transactions,
                commit_us=self._mark.commit_us if self._mark is not None else None,
            )
        )

    def _prove(self, last: dict[int, str]) -> None:
        """See that MariaDB is exactly where the plan ends; `apply` compares MySQL's GTIDs.

        Of each domain that is the last GTID that was sent, or the one before the plan.
        """
        if self._facts.flavour != "mariadb":
            return
        row = self._server.rows("SELECT @@global.gtid_slave_pos AS it")[0]
        has = {gtid for gtid in str(row["it"]).split(",") if gtid}
        before = {domain_of(gtid): gtid for gtid in _position(self._plan.begins_behind)}
        expected = set((before | last).values())
        if has != expected:
            raise self._facts.refusal(
                "has skipped transactions: its gtid_slave_pos is "
                f"{','.join(sorted(has)) or 'empty'}, and not {','.join(sorted(expected))}",
                "does a setting there leave out events, or does something else replicate into it? "
                "Restore the base backup",
            )

    # what stopped it

    def _explained(self, failure: ApplierFailure | None, state: State) -> RecoveryError:
        if failure is None:
            return RecoveryError(
                f"somebody stopped the applier of the target, {self._facts.address}",
                hint=f"nothing was lost; {AGAIN}",
                transient=True,
            )
        self._server.close()
        self._channel.stop()
        stopped = self._channel.state()  # other workers may have applied more meanwhile
        stands = stopped.position if stopped is not None else state.position
        reached = self._channel.reached(self._plan.lineages) or stands
        gtid = failure.gtid or self._gtid_of(failure, reached)
        named = f"transaction {gtid}" if gtid else "a transaction"
        if (at := failure.position) is not None:
            named += f", in the event that ends at {at} (lineage {at.lineage})"
        code = "" if f"code: {failure.code}" in failure.text else f" ({failure.code})"
        hint = advised(failure.code, reached=reached, gtid=gtid, again=AGAIN)
        if gtid is not None and gtid == self._standing.half_way:
            then = told_executed(self._plan.begins_behind, gtid)
            hint = (
                "the target crashed earlier where this transaction was next, and may have carried "
                f"it out: look at it; if it did, {then} there; {AGAIN}; if it did in part, "
                "restore the base backup again"
            )
        if "max_allowed_packet" in failure.text:
            name = "replica" if self._facts.flavour == "mysql" else "slave"
            hint = f"SET GLOBAL {name}_max_allowed_packet = 1073741824 there; {AGAIN}"
        message = f"{failure.text[:600]}{code}; everything before {reached or 'it'} was applied"
        return self._facts.refusal(f"refused {named}: {message}", hint)

    def _gtid_of(self, failure: ApplierFailure, reached: BinlogPosition | None) -> str | None:
        """The GTID of the transaction that failed, which MariaDB does not report."""
        if self._facts.flavour != "mariadb" or reached is None:
            return None
        with suppress(Binlog2s3Error):
            one = failed_transaction(
                failure,
                self._plan.pieces,
                reached,
                self._work.transactions,
                one_by_one=int(str(self._channel.setting(self._channel.workers))) == 0,
            )
            return one.gtid if one is not None else None
        return None


# GTIDs of MariaDB


def _position(state: MariadbGtidList | None) -> list[str]:
    """For gtid_slave_pos: the GTID of each domain that was executed last.

    Where that is not known, the greatest number.
    """
    if state is None:
        return []
    gtids = []
    for domain in sorted(state.domains()):
        of_domain = [gtid for gtid in state.gtids() if gtid[0] == domain]
        newest = state.newest(domain) or max(of_domain, key=lambda gtid: gtid[2])
        gtids.append(gtid_text(newest))
    return gtids


def _noting(data: Iterator[Checked], last: dict[int, str]) -> Iterator[Checked]:
    """The same data of a MariaDB; `last` gets the last GTID of each domain."""
    for checked in data:
        for transaction in checked.done:
            if transaction.gtid is not None:
                last[domain_of(transaction.gtid)] = transaction.gtid
        yield checked
