"""Brings a plan into a target that replicates it from here, up to the goal and no further.

Place in the flow: `apply` starts it. `serve` is the source, `channel` the target's end of it.

Law: only bytes of the plan are ever sent, so that a target which runs on alone can never pass the
goal. Nothing counts as applied before the target says that it has executed it. Whatever happens,
the channel is gone in the end, or the next run removes it; and before that it is known where the
target stands.
"""

import secrets
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager

from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.errors import Binlog2s3Error, RecoveryError, SourceError
from binlog2s3.output import clean
from binlog2s3.recover.channel import Channel, Failure, State, channel_of, name_of
from binlog2s3.recover.hints import advised
from binlog2s3.recover.listen import Listen, tls_for
from binlog2s3.recover.model import Checked, OnProgress, Piece, Place, Plan, Progress
from binlog2s3.recover.protocol import Account, Identity
from binlog2s3.recover.serve import Mark, OpenStream, Served, Source, Window
from binlog2s3.recover.target import CHANNEL, PRIVILEGES, TargetFacts, refuse_full_disk
from binlog2s3.server.connection import Server

_EVERY_SECONDS = 0.2
_SOON_SECONDS = 0.02
_CONNECT_SECONDS = 30.0
_STILL_SECONDS = 15.0
"""It has stood still for so long that its disk is looked at."""
_PASSED_SECONDS = 60.0
_APPLIED_SECONDS = 2.0
_AGAIN = "run the same command again: it goes on from there"
_SERVER_IDS = (4294967201, 4294967202)


def left_over(server: Server, facts: TargetFacts) -> Channel | None:
    """The channel that a run which was cut off has left, None where there is none. Changes nothing.

    One of that name that is not ours is none: `obstacle` speaks of it. Raises SourceError.
    """
    if facts.lacks:
        return None
    channel = channel_of(server, facts)
    state = channel.state()
    return channel if state is not None and state.ours else None


def settle(server: Server, facts: TargetFacts) -> None:
    """Remove it, with its relay logs, where there is one.

    Where no GTIDs tell, what it `reached` when it was stopped must have been noted before.
    """
    server.close()
    channel = left_over(server, facts)
    if channel is not None:
        channel.stop()
        channel.remove()


class Replication:
    """One apply to one target.

    `state`: MariaDB's GTIDs before the plan, which the target is told to begin behind. `on_place`
    is called, without GTIDs, with the place that was reached before the channel goes; `on_state`
    when `gtid_slave_pos` of a MariaDB is where the plan begins: from then on it tells. `goes_on`:
    where that told where a run was cut off. `on_settings` is called with the settings of the server
    that are about to change, as they are, and with none once they are restored. As long as it has
    not `touched` the target, nothing was applied there.
    """

    def __init__(
        self,
        server: Server,
        facts: TargetFacts,
        plan: Plan,
        open_stream: OpenStream,
        *,
        listen: Listen | None = None,
        state: MariadbGtidList | None = None,
        workers: int | None = None,
        goes_on: bool = False,
        ahead_most: int | None = None,
        on_place: Callable[[Place], None] = lambda _place: None,
        on_state: Callable[[], None] = lambda: None,
        on_settings: Callable[[Mapping[str, object]], None] = lambda _before: None,
    ) -> None:
        self._server = server
        self._facts = facts
        self._where = facts.address
        self._plan = plan
        self._open = open_stream
        self._listen = listen or Listen()
        self._begins_behind = state
        self._workers = workers
        self._goes_on = goes_on
        self._window = Window() if ahead_most is None else Window(ahead_most)
        self._on_place = on_place
        self._on_state = on_state
        self._on_settings = on_settings
        self._channel: Channel = channel_of(server, facts)
        self._account = Account(CHANNEL, secrets.token_urlsafe(24))
        self._before: dict[str, object] = {}
        self._mark: Mark | None = None
        self._seen: tuple[str, int] = ("", 0)
        self._moved = 0.0
        self._report: OnProgress = lambda _progress: None
        self.touched = False

    def probe(self) -> None:
        """See that the target reaches this process; nothing is sent. Raises RecoveryError.

        Also that the account may do what there will be to do: by doing it.
        """
        with self._alone(), self._source(()) as source:
            self._channel.rehearse()
            self._connect(source, receive_only=True)
            if not self._channel.shows_threads():
                raise RecoveryError(
                    f"the account at the target, {self._where}, lacks the privilege PROCESS",
                    hint=PRIVILEGES[self._facts.flavour],
                )

    def apply(self, on_progress: OnProgress) -> None:
        """Have all of the plan applied; the channel is gone afterwards.

        Raises RecoveryError that says where it stopped and what to do, and what reading raised.
        """
        self._report = on_progress
        last: dict[str, str] = {}
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
        """No channel before, none afterwards; or the error says that it stays."""
        if self._channel.state() is not None:
            raise RecoveryError(
                f"the target, {self._where}, has a channel {CHANNEL!r} already",
                hint="does another recovery run there? Else the same command again removes it",
            )
        try:
            yield
            self._put_away(None)
        except SourceError as error:
            told = RecoveryError(
                f"the target, {self._where}, went away while it applied: {error}"
                if error.transient
                else f"the target, {self._where}, does not replicate from here: {error}",
                hint=self._hint(error),
                transient=error.transient,
            )
            self._put_away(told)
            raise told from error
        except BaseException as error:
            self._put_away(error)
            raise

    def _hint(self, error: SourceError) -> str:
        if "lacks the privilege" in str(error):
            return PRIVILEGES[self._facts.flavour]
        return f"is the server up? {_AGAIN}" if error.transient else error.hint

    def _put_away(self, error: BaseException | None) -> None:
        try:
            self._server.close()  # it may be in the middle of an answer
            state = self._channel.state()
            if state is not None and state.ours:
                self._channel.stop()
                place = self._channel.reached()
                if self.touched and not self._facts.keeps_gtids and place is not None:
                    self._on_place(place)
                self._channel.remove()
            self._give_back()
        except Binlog2s3Error as other:
            if error is None:
                raise
            if isinstance(error, Binlog2s3Error):
                stays = f"the channel {CHANNEL!r} stays until the next run ({other})"
                error.hint = f"{error.hint}; {stays}" if error.hint else stays

    def _source(self, pieces: Sequence[Piece], last: dict[str, str] | None = None) -> Source:
        def opened(
            wanted: Sequence[Piece],
        ) -> Generator[tuple[Piece, Iterator[Checked]], None, None]:
            for piece, data in self._open(wanted):
                yield piece, data if last is None else _noting(data, last)

        served = Served(
            pieces=pieces, name_of=name_of, open=opened, once=True, not_of=self._facts.server_id
        )
        return Source(
            self._identity(),
            self._account,
            served,
            host=self._listen.host,
            port=self._listen.port,
            window=self._window,
            tls=tls_for(self._listen.host) if self._listen.needs_tls else None,
            needs_tls=self._listen.needs_tls,
        )

    def _identity(self) -> Identity:
        version = self._plan.server_version
        server_id = next(one for one in _SERVER_IDS if one != self._facts.server_id)
        if self._facts.flavour == "mariadb":
            return Identity(
                version=f"5.5.5-{version}",
                flavour="mariadb",
                server_id=server_id,
                server_uuid=str(uuid.uuid4()),
                plugin=self._channel.plugin,
            )
        mode = str(self._server.rows("SELECT @@global.gtid_mode AS it")[0]["it"]).upper()
        return Identity(
            version=version,
            flavour="mysql",
            server_id=server_id,
            server_uuid=str(uuid.uuid4()),
            gtid_mode=mode,
            plugin=self._channel.plugin,
        )

    def _connect(self, source: Source, *, receive_only: bool = False) -> None:
        """The target asks for what there is, or it is said why it does not."""
        if self._facts.flavour == "mariadb" and not receive_only:
            self._server.rows("SET GLOBAL gtid_slave_pos = %s", (_position(self._begins_behind),))
            self._on_state()
        begin = None if self._facts.keeps_gtids else self._plan.begin
        self._channel.create(source.address, self._account, begin, tls=self._listen.needs_tls)
        state = self._state()
        if state.filters:
            raise RecoveryError(
                f"the target, {self._where}, would leave something out: {'; '.join(state.filters)}",
                hint="take that filter away for the time of the recovery",
            )
        self.touched = not receive_only
        self._set(receive_only=receive_only)
        self._channel.start(self._account, receive_only=receive_only)
        if self._facts.flavour == "mysql":  # it holds for the threads that were started with it
            self._give_back()
        deadline = time.monotonic() + _CONNECT_SECONDS
        while not source.has_client.wait(0.1):
            code, text = self._state().receive_error
            if code or time.monotonic() > deadline:
                raise self._unreached(source.address, clean(text) or "it says nothing")

    def _unreached(self, address: tuple[str, int], text: str) -> RecoveryError:
        hint = (
            "--serve-address HOST[:PORT] is an address of this machine that the target reaches; a "
            "firewall may be between"
        )
        if "certificate" in text.lower():
            hint = (
                "this process signs its certificate itself, and the target is set to verify such: "
                "take that setting away there for the time of the recovery"
            )
        host, port = address
        return RecoveryError(
            f"the target, {self._where}, does not reach this process at {host}:{port}: {text}",
            hint=hint,
        )

    def _set(self, *, receive_only: bool) -> None:
        """What the channel needs of the server's settings; each is restored.

        One at a time where several would not keep the order in which the source committed. A
        MariaDB is to refuse to create what is there already; but not where a run was cut off, maybe
        between such a statement and its GTID. A probe sets them to what they are: it shows that the
        account may. A MariaDB allows that only while nothing replicates.
        """
        wanted: dict[str, object] = {}
        keeps_order = self._channel.keeps_order(self._plan)
        workers = self._workers if keeps_order else self._channel.one_by_one
        if workers is not None:
            wanted[self._channel.workers] = workers
        if self._facts.flavour == "mariadb":
            wanted["slave_ddl_exec_mode"] = "IDEMPOTENT" if self._goes_on else "STRICT"
        before = {name: self._channel.setting(name) for name in wanted}
        if receive_only:
            if not self._facts.channels:
                for name, value in before.items():
                    self._channel.set_global(name, value)
            return
        if before:
            self._on_settings(before)
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
        self._on_settings({})

    # how far it is

    def _state(self) -> State:
        state = self._channel.state()
        if state is None or not state.ours:
            raise RecoveryError(
                f"the channel {CHANNEL!r} of the target, {self._where}, was removed by somebody",
                hint=_AGAIN,
            )
        return state

    def _look(self, source: Source) -> bool:
        """Whether all is applied. Raises what stopped it."""
        state, now = self._state(), time.monotonic()
        self._mark = self._window.reached(state.log, state.offset)
        if self._mark is not None:
            self._tell(self._mark.size, self._mark.transactions)
        else:
            self._tell(0, 0)
        last = self._plan.pieces[-1]
        if state.log == name_of(last) and state.offset >= last.end:
            return True
        if not state.applies:
            raise self._explained(self._channel.failure(state), state)
        if (state.log, state.offset) != self._seen:
            self._seen, self._moved = (state.log, state.offset), now
        self._see_it_go_on(source, state, still=now - self._moved)
        return False

    def _see_it_go_on(self, source: Source, state: State, *, still: float) -> None:
        """`still`: for so many seconds its place has been the same."""
        if source.failure is not None:
            if state.waits and still > _APPLIED_SECONDS:  # what came before it is applied
                raise source.failure
        elif not state.receives and not source.has_sent_all.is_set():
            raise RecoveryError(
                f"the target, {self._where}, receives no more: "
                f"{clean(state.receive_error[1]) or 'somebody stopped it'}",
                hint=_AGAIN,
                transient=True,
            )
        if still > _STILL_SECONDS:
            refuse_full_disk(self._server, self._where)
        has_all = source.has_sent_all.is_set() and state.waits
        if still > _PASSED_SECONDS and has_all and not self._channel.is_busy():
            raise RecoveryError(
                f"the target, {self._where}, has read all, and says that it stands at "
                f"{state.place}: it has passed over what lies behind",
                hint="was its server_id or a filter changed meanwhile? Restore the base backup",
            )

    def _tell(self, size: int, transactions: int) -> None:
        self._report(
            Progress(
                size=size,
                of_size=self._plan.size,
                transactions=transactions,
                of_transactions=self._plan.transactions,
                commit_us=self._mark.commit_us if self._mark is not None else None,
            )
        )

    def _prove(self, last: dict[str, str]) -> None:
        """MariaDB has the last GTID of each domain; MySQL's are compared by `apply`."""
        if self._facts.flavour != "mariadb":
            return
        has = str(self._server.rows("SELECT @@global.gtid_slave_pos AS it")[0]["it"]).split(",")
        if missing := sorted(set(last.values()) - set(has)):
            raise RecoveryError(
                f"the target, {self._where}, has passed over transactions: {', '.join(missing)} "
                "are not in its gtid_slave_pos",
                hint="does something there leave out events? Restore the base backup",
            )

    # what stopped it

    def _explained(self, failure: Failure | None, state: State) -> RecoveryError:
        if failure is None:
            return RecoveryError(
                f"the applier of the target, {self._where}, was stopped by somebody else",
                hint=f"nothing was lost; {_AGAIN}",
                transient=True,
            )
        self._server.close()
        self._channel.stop()
        reached = self._channel.reached() or state.place
        named = f"transaction {failure.gtid}" if failure.gtid else "a transaction"
        if failure.place is not None:
            named += f", event before {failure.place} (lineage {failure.place.lineage})"
        code = "" if f"code: {failure.code}" in failure.text else f" ({failure.code})"
        hint = advised(failure.code, reached=reached, gtid=failure.gtid, again=_AGAIN)
        if "max_allowed_packet" in failure.text:
            name = "replica" if self._facts.flavour == "mysql" else "slave"
            hint = f"SET GLOBAL {name}_max_allowed_packet = 1073741824 there; {_AGAIN}"
        said = f"{clean(failure.text)[:600]}{code}; all before {reached or 'it'} was applied"
        return RecoveryError(
            f"the target, {self._where}, refused {named}: {said}",
            hint=hint,
        )


def _position(state: MariadbGtidList | None) -> str:
    """For gtid_slave_pos: of each domain one."""
    greatest: dict[int, tuple[int, int]] = {}
    for domain, server, number in state.gtids() if state is not None else ():
        if number >= greatest.get(domain, (0, 0))[0]:
            greatest[domain] = (number, server)
    return ",".join(f"{domain}-{server}-{n}" for domain, (n, server) in greatest.items())


def _noting(data: Iterator[Checked], last: dict[str, str]) -> Iterator[Checked]:
    """The same; `last`: the last GTID of each domain."""
    for checked in data:
        for one in checked.done:
            if one.gtid is not None:
                last[one.gtid.partition("-")[0]] = one.gtid
        yield checked
