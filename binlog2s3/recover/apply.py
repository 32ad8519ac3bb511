"""A plan, brought into a target: which way it goes, and the proof that all of it arrived.

Place in the flow: under `pitr`, which planned and asked; `relay` and `pipe` are the two ways.
`interrupted` knows what a run that was cut off has left, and that nothing is done twice.

Law: it ends well only if the target was seen to have what the plan says.
"""

import socket
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic

from binlog2s3.binlog.executed import executed
from binlog2s3.binlog.gtid import Gtids, GtidSet, MariadbGtidList, parse
from binlog2s3.errors import (
    ArchiveError,
    RecoveryError,
    SourceError,
    StoreError,
)
from binlog2s3.recover import relay, target
from binlog2s3.recover.client import find_client
from binlog2s3.recover.config import PitrConfig
from binlog2s3.recover.interrupted import Standing
from binlog2s3.recover.model import OnProgress, Place, Plan, Stream
from binlog2s3.recover.obstacle import obstacles
from binlog2s3.recover.pipe import Pipe
from binlog2s3.recover.replicate import Replication
from binlog2s3.recover.serve import OpenStream
from binlog2s3.recover.target import TargetFacts
from binlog2s3.recover.view import Result, Way
from binlog2s3.server import mysqlbinlog
from binlog2s3.server.connection import Server
from binlog2s3.server.login import Login


@dataclass(frozen=True, slots=True)
class At:
    """A target: a way to ask it, and how to log in."""

    server: Server
    login: Callable[[], Login]

    @property
    def address(self) -> str:
        """As messages name it."""
        return self.login().address


class Apply:
    """Brings plans into one target. `facts` were asked before; nothing is changed until `run`.

    `standing`: where it stands.
    """

    def __init__(self, config: PitrConfig, at: At, facts: TargetFacts) -> None:
        self._config = config
        self._at = at
        self._facts = facts
        self.standing = Standing(config, at.server, facts)

    def choose(self, server_ids: Collection[int], *, with_gtids: bool) -> Way:
        """By relay log, or, where it was asked for, through the pipe.

        `server_ids`: of the servers that wrote these binlogs, as far as they are known;
        `with_gtids`: their transactions have such. Raises RecoveryError where it cannot be by relay
        log.
        """
        if self._config.apply == "pipe":
            return "pipe"
        if self._config.apply == "replication":
            self._refuse_replication(server_ids, with_gtids=with_gtids)
            return "replication"
        why = relay.obstacle(
            self._at.server,
            self._facts,
            directory=self._config.target_relay_log_dir,
            binlog_off=self._config.no_target_binlog,
            server_ids=server_ids,
            with_gtids=with_gtids,
        )
        if why is None:
            return "relay-log"
        raise RecoveryError(
            f"the target cannot take the binlogs as relay logs: {why}",
            hint="--apply pipe goes through mysqlbinlog and mysql, several times slower; it "
            "refuses statements that the client may take otherwise than the server",
        )

    def _refuse_replication(self, server_ids: Collection[int], *, with_gtids: bool) -> None:
        login = self._at.login()
        if not login.socket and not _is_here(login.host):
            raise RecoveryError(
                f"the target, {login.address}, is not on this machine: it would not reach this "
                "process",
                hint="run it on the target's own machine",
            )
        for why in obstacles(
            self._at.server, self._facts, server_ids=server_ids, with_gtids=with_gtids
        ):
            raise RecoveryError(f"the target cannot be a replica: {why}")

    def run(
        self,
        plan: Plan,
        chosen: Way,
        open_stream: OpenStream,
        on_progress: OnProgress,
        *,
        asked: str,
        state: MariadbGtidList | None = None,
    ) -> Result:
        """Apply it all, and prove it. Raises RecoveryError, and what reading the bucket raises.

        `state`: what a MariaDB has before the plan.
        """
        began = monotonic()
        if not plan.pieces:
            self.standing.put_away()
        else:
            if self._config.stop_target_threads:
                target.stop_threads(self._at.server, self._facts)
            with self._told(chosen):
                if chosen == "replication":
                    self._replicate(plan, open_stream, on_progress, asked, state)
                else:
                    with closing(open_stream(plan.pieces)) as stream:
                        self._bring(plan, chosen, stream, on_progress, asked)
        committed = self._commit_empty(plan)
        gtids, proved = self._prove(plan, committed)
        return Result(
            how=chosen if plan.pieces else "nothing",
            where=self._at.address,
            transactions=plan.transactions,
            size=plan.size,
            seconds=monotonic() - began,
            gtids=gtids,
            stands_at=None if self._facts.keeps_gtids else plan.stop,
            committed_empty=committed,
            proved=proved,
        )

    def _bring(
        self, plan: Plan, chosen: Way, stream: Stream, on_progress: OnProgress, asked: str
    ) -> None:
        if chosen == "relay-log":
            way: relay.Way | Pipe = self._relay(plan)
            reached: Place | None = plan.begin
        else:
            way, reached = self._pipe(plan), None
        with self.standing.noted(
            plan, asked, reached=reached, is_untouched=lambda: not way.touched
        ):
            way.apply(stream, on_progress)

    def _replicate(
        self,
        plan: Plan,
        open_stream: OpenStream,
        on_progress: OnProgress,
        asked: str,
        state: MariadbGtidList | None,
    ) -> None:
        way = Replication(
            self._at.server,
            self._facts,
            plan,
            open_stream,
            state=state,
            on_place=self.standing.reach,
            on_state=self.standing.follow_gtids,
        )
        with self.standing.noted(
            plan, asked, reached=plan.begin, is_untouched=lambda: not way.touched
        ):
            way.apply(on_progress)

    def _pipe(self, plan: Plan) -> Pipe:
        return Pipe(
            self._at.server,
            self._at.login(),
            find_client(plan.flavour, self._config.mysql_client),
            mysqlbinlog.find(plan.flavour, self._config.mysqlbinlog),
            size=plan.size,
            transactions=plan.transactions,
            skip_gtids=plan.flavour == "mysql" and not self._facts.gtid_mode,
            binlog_off=self._config.no_target_binlog,
        )

    def _relay(self, plan: Plan) -> relay.Way:
        return relay.way(
            self._at.server,
            self._at.login(),
            self._facts,
            directory=self._config.target_relay_log_dir,
            size=plan.size,
            transactions=plan.transactions,
            on_place=self.standing.reach,
        )

    def again(self, chosen: Way) -> str:
        """What the next run does where this one did not come to its end, for people."""
        if self._facts.keeps_gtids or chosen != "pipe":
            return "the same command again goes on from there"
        return "what was applied stays, and without GTIDs nobody knows how far that is"

    @contextmanager
    def _told(self, chosen: Way) -> Iterator[None]:
        """Errors from elsewhere say what has become of the target, and what to do next."""
        again = self.again(chosen)
        try:
            yield
        except ArchiveError as error:
            raise RecoveryError(
                f"{error}; what comes before it was applied",
                hint=f"{error.hint}; a goal before it, or once it is mended {again}",
            ) from error
        except (StoreError, SourceError) as error:
            error.hint = f"{error.hint}; {again}" if error.hint else again
            raise
        except RecoveryError as error:
            error.hint = error.hint or again
            raise

    def _commit_empty(self, plan: Plan) -> str:
        if (
            not isinstance(plan.skipped, GtidSet)
            or not self._facts.keeps_gtids
            or self._config.skip_leaves_hole
        ):
            return ""
        target.commit_empty(self._at.server, plan.skipped, binlog_off=self._config.no_target_binlog)
        return str(plan.skipped)

    def _prove(self, plan: Plan, committed: str) -> tuple[Gtids | None, str]:
        if not self._facts.keeps_gtids or self._facts.executed is None:
            return None, ""
        expected = executed(self._facts.executed)
        for more in (plan.adds, parse(committed, "mysql") if committed else None):
            expected = expected.plus(more) if more is not None else expected
        found = target.executed(self._at.server)
        target.prove(found, expected.gtids, own_uuid=self._facts.uuid)
        return found, "its GTIDs are those of the plan, no more and no less"


def _is_here(host: str) -> bool:
    """Whether a name is this machine's own loopback."""
    with suppress(OSError, ValueError):
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return all(ip_address(str(entry[4][0])).is_loopback for entry in found)
    return False
