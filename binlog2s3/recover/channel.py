"""The replica channel at the target: how it is set up, what it reports. One class for each flavour.

Law: if the server can do without, it stores nothing that would let it connect again by itself. At
the position that a stopped channel has reached, everything before is applied, and nothing after.
"""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from binlog2s3.binlog.gtid import MariadbGtidList
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.applier_error import ApplierFailure, of_mariadb, of_mysql
from binlog2s3.recover.listen import Listen
from binlog2s3.recover.model import BinlogPosition, Plan
from binlog2s3.recover.target import CHANNEL, Target
from binlog2s3.replication.login import Account
from binlog2s3.server.connection import Server
from binlog2s3.server.replica import applies, channel_name, receives, replica_rows
from binlog2s3.server.sql import quoted, text_of
from binlog2s3.server.version import is_on

_STOP_SECONDS = 90.0
"""A server waits 60 s for the rest of a transaction that it has received in part."""
_POLL_SECONDS = 0.1
_HAS_READ_ALL = re.compile(r"has read all relay log")
_FILTERS = (
    "Replicate_Do_DB",
    "Replicate_Ignore_DB",
    "Replicate_Do_Table",
    "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table",
    "Replicate_Wild_Ignore_Table",
    "Replicate_Ignore_Server_Ids",
    "Replicate_Rewrite_DB",
    "Replicate_Ignore_Domain_Ids",
    "Replicate_Do_Domain_Ids",
)


DO_TABLE = "Replicate_Do_Table "
"""How a filter of tables begins in `State.filters`."""


def filter_name(database: str, table: str) -> str:
    """A table as filters have it, and as the server shows it."""
    return f"{database}.{table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What the server says of the channel.

    `receives`, `applies`: its threads run. `waits`: the applier has read all that was received.
    `log`, `offset`: the position that the server has recorded, which may lag what is applied.
    `receive_error`, `apply_error`: code and text of what stopped the thread; 0 and "" if nothing.
    """

    ours: bool
    receives: bool
    applies: bool
    waits: bool
    log: str
    offset: int
    receive_error: tuple[int, str]
    apply_error: tuple[int, str]
    filters: tuple[str, ...]

    @property
    def runs(self) -> bool:
        """Whether any of its threads runs."""
        return self.receives or self.applies

    def filters_besides(self, tables: Sequence[tuple[str, str]]) -> tuple[str, ...]:
        """Its filters, without one of exactly these tables."""
        ours = {filter_name(*table) for table in tables}
        return tuple(
            text
            for text in self.filters
            if not text.startswith(DO_TABLE) or set(text.removeprefix(DO_TABLE).split(",")) != ours
        )

    @property
    def position(self) -> BinlogPosition | None:
        """The recorded position, in the history."""
        return BinlogPosition.served(self.log, self.offset)


class Channel(ABC):
    """The channel at one target, whether it exists or not."""

    workers: str
    """The setting for the number of appliers."""
    one_by_one: int
    """Its value for one transaction at a time."""
    settings: tuple[str, ...]
    """The global settings that a run may change for a while."""

    def __init__(self, target: Target) -> None:
        self._server = target.server
        self._version = target.facts.release

    def state(self) -> State | None:
        """Its state; None if there is no channel of that name."""
        rows = replica_rows(self._server, self._version)
        row = next((row for row in rows if channel_name(row).lower() == CHANNEL), None)
        if row is None:
            return None
        return State(
            ours=self._is_ours(row),
            receives=receives(row),
            applies=applies(row),
            waits=bool(_HAS_READ_ALL.search(str(row["Replica_SQL_Running_State"] or ""))),
            log=str(row["Relay_Source_Log_File"] or ""),
            offset=int(row["Exec_Source_Log_Pos"] or 0),
            receive_error=_error(row, "IO"),
            apply_error=_error(row, "SQL"),
            filters=_filters(row),
        )

    @abstractmethod
    def _is_ours(self, row: Mapping[str, Any]) -> bool:
        """Whether this program made it, as far as its row tells."""

    @abstractmethod
    def create(
        self,
        address: tuple[str, int],
        account: Account,
        begin: BinlogPosition | None,
        listen: Listen,
    ) -> None:
        """Create it. `begin`: where it begins; None if GTIDs tell. `listen`: what it verifies."""

    @abstractmethod
    def filter(self, tables: Sequence[tuple[str, str]]) -> None:
        """Apply only these tables; after `create`. No restart of the server keeps it."""

    @abstractmethod
    def start(self, account: Account, *, receive_only: bool = False) -> None:
        """Start it, with its applier unless `receive_only`."""

    def stop(self) -> None:
        """Stop it, between two transactions. RecoveryError if a transaction takes too long."""
        with suppress(SourceError):  # it may take longer than the connection's timeout
            self._stop()
        deadline = time.monotonic() + _STOP_SECONDS
        while (state := self.state()) is not None and state.runs:
            if time.monotonic() > deadline:
                raise RecoveryError(
                    "the target's applier is in a long transaction and stops only after it",
                    hint="it then stops by itself; run the same command again later",
                    transient=True,
                )
            time.sleep(_POLL_SECONDS)

    @abstractmethod
    def _stop(self) -> None: ...

    @abstractmethod
    def remove(self) -> None:
        """Remove it, stopped, with its relay logs."""

    def remove_hidden(self) -> None:  # noqa: B027 - MySQL has none
        """Remove one that the server shows to nobody, if there is one."""

    def rehearse(self) -> None:
        """Try, while there is no channel, what will be asked and done with it.

        Raises SourceError if the account is missing a privilege.
        """
        self.is_busy()
        self.reached(())
        try:
            self.remove()
        except SourceError as error:
            if error.needs_privilege or not error.answered:
                raise

    def setting(self, name: str) -> object:
        """The present value of one of `settings`."""
        value: object = self._server.rows(f"SELECT @@global.{name} AS it")[0]["it"]
        return value

    def set_global(self, name: str, value: object) -> None:
        """Set one of `settings` globally."""
        self._server.rows(f"SET @@global.{name} = %s", (value,))

    def restore(self, before: Mapping[str, str]) -> None:
        """Restore the values of a note; only those of `settings`, and only if they have changed."""
        for name, value in before.items():
            if name in self.settings and str(self.setting(name)) != value:
                self.set_global(name, int(value) if value.isdecimal() else value)

    @abstractmethod
    def keeps_order(self, plan: Plan) -> bool:
        """Whether several workers commit in the source's order, so that one position is enough."""

    @abstractmethod
    def failure(self, state: State) -> ApplierFailure | None:
        """What stopped the applier; None if it did not fail."""

    @abstractmethod
    def reached(self, order: Sequence[str]) -> BinlogPosition | None:
        """The position up to which all is applied. The channel is stopped and kept the order.

        `order`: the ids of the lineages in the order of the history, of which ids say nothing.
        """

    @abstractmethod
    def is_busy(self) -> bool:
        """Whether it is in the middle of a transaction."""

    def shows_threads(self) -> bool:
        """Whether the account sees the channel's running threads, if `is_busy` needs them."""
        return True


_FOR = f"FOR CHANNEL '{CHANNEL}'"


class MysqlChannel(Channel):
    """The channel of MySQL, from 5.7 on."""

    one_by_one = 1

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        is_new = self._version.says_replica
        self._source, self._replica = ("SOURCE", "REPLICA") if is_new else ("MASTER", "SLAVE")
        self._change = "CHANGE REPLICATION SOURCE" if is_new else "CHANGE MASTER"
        self.workers = f"{self._replica.lower()}_parallel_workers"
        self.settings = (self.workers,)

    def _is_ours(self, row: Mapping[str, Any]) -> bool:
        """By what `create` says: it stores no user, and `start` shows ours while it runs."""
        once = (int(row["Connect_Retry"]), int(row["Source_Retry_Count"])) == (1, 1)
        return once and str(row["Source_User"] or CHANNEL) == CHANNEL

    def create(
        self,
        address: tuple[str, int],
        account: Account,
        begin: BinlogPosition | None,
        listen: Listen,
    ) -> None:
        """See `Channel`. MySQL stores neither user nor password."""
        del account
        settings: dict[str, object] = {
            "HOST": _named(address, listen)[0],
            "PORT": address[1],
            "SSL": int(listen.needs_tls),
            "CONNECT_RETRY": 1,
            "RETRY_COUNT": 1,
            "AUTO_POSITION": int(begin is None),
        }
        if listen.certificate is not None:
            settings |= {"SSL_CA": listen.certificate.ca, "SSL_VERIFY_SERVER_CERT": 1}
        if begin is not None:
            settings |= {"LOG_FILE": begin.served_name, "LOG_POS": begin.offset}
        named = ", ".join(f"{self._source}_{name} = %s" for name in settings)
        self._server.rows(f"{self._change} TO {named} {_FOR}", tuple(settings.values()))

    def filter(self, tables: Sequence[tuple[str, str]]) -> None:
        names = ", ".join(f"{quoted(database)}.{quoted(table)}" for database, table in tables)
        self._server.rows(f"CHANGE REPLICATION FILTER REPLICATE_DO_TABLE = ({names}) {_FOR}")

    def start(self, account: Account, *, receive_only: bool = False) -> None:
        thread = "IO_THREAD " if receive_only else ""
        self._server.rows(
            f"START {self._replica} {thread}USER = %s PASSWORD = %s {_FOR}",
            (account.user, account.password),
        )

    def _stop(self) -> None:
        self._server.rows(f"STOP {self._replica} {_FOR}")

    def remove(self) -> None:
        self._server.rows(f"RESET {self._replica} ALL {_FOR}")

    def reached(self, order: Sequence[str]) -> BinlogPosition | None:
        """See `Channel`. After an error or a crash, the positions of the workers count.

        The server's own record may lag them. If the server could not set up the channel when it
        started, its tables still have the positions.
        """
        state = self.state()
        named = [state.position] if state is not None and state.ours else []
        rows = self._server.rows(
            "SELECT Master_log_name AS name, Master_log_pos AS at FROM mysql.slave_worker_info "
            "WHERE Channel_name = %s UNION ALL "
            "SELECT Master_log_name, Master_log_pos FROM mysql.slave_relay_log_info "
            "WHERE Channel_name = %s",
            (CHANNEL, CHANNEL),
        )
        named += [BinlogPosition.served(text_of(row["name"]), int(row["at"])) for row in rows]
        positions = [position for position in named if position is not None]
        line_parts = {lineage: number for number, lineage in enumerate(order)}
        # a lineage that is not known comes last: no plan begins there
        return max(
            positions,
            key=lambda at: (line_parts.get(at.lineage, len(line_parts)), at.binlog, at.offset),
            default=None,
        )

    def is_busy(self) -> bool:
        if not self._version.shows_applied:
            return _has_thread(
                self._server, "state NOT LIKE 'Waiting%' AND state NOT LIKE 'Slave has read%'"
            )
        return bool(
            self._server.rows(
                "SELECT 1 FROM performance_schema.replication_applier_status_by_worker "
                "WHERE CHANNEL_NAME = %s AND APPLYING_TRANSACTION <> '' LIMIT 1",
                (CHANNEL,),
            )
        )

    def shows_threads(self) -> bool:
        return self._version.shows_applied or _has_thread(self._server, "TRUE")

    def keeps_order(self, plan: Plan) -> bool:
        del plan
        return is_on(self.setting(f"{self._replica.lower()}_preserve_commit_order"))

    def failure(self, state: State) -> ApplierFailure | None:
        """See `Channel`: the first worker's that failed, else the coordinator's."""
        rows: Sequence[Mapping[str, Any]] = ()
        with suppress(SourceError):
            rows = self._server.rows(
                "SELECT LAST_ERROR_NUMBER AS code, LAST_ERROR_MESSAGE AS text "
                "FROM performance_schema.replication_applier_status_by_worker "
                "WHERE CHANNEL_NAME = %s AND LAST_ERROR_NUMBER <> 0 ORDER BY LAST_ERROR_TIMESTAMP",
                (CHANNEL,),
            )
        if rows:
            return of_mysql(int(rows[0]["code"]), str(rows[0]["text"]))
        return of_mysql(*state.apply_error) if state.apply_error[0] else None


class MariadbChannel(Channel):
    """Of MariaDB: a named connection. It follows by GTID; `gtid_slave_pos` is its position."""

    workers = "slave_parallel_threads"
    one_by_one = 0
    settings = (workers, "slave_ddl_exec_mode")

    def _is_ours(self, row: Mapping[str, Any]) -> bool:
        return str(row["Source_User"]) == CHANNEL

    def create(
        self,
        address: tuple[str, int],
        account: Account,
        begin: BinlogPosition | None,
        listen: Listen,
    ) -> None:
        """See `Channel`. MariaDB stores the password, which is valid for this run only."""
        del begin
        shown = listen.certificate
        self._server.rows(
            f"CHANGE MASTER '{CHANNEL}' TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = %s, "
            "MASTER_PASSWORD = %s, MASTER_USE_GTID = slave_pos, MASTER_CONNECT_RETRY = 1, "
            f"MASTER_SSL = {int(listen.needs_tls)}, MASTER_SSL_CA = %s, "
            f"MASTER_SSL_VERIFY_SERVER_CERT = {int(shown is not None)}",
            (
                *_named(address, listen),
                account.user,
                account.password,
                shown.ca if shown is not None else "",
            ),
        )

    def filter(self, tables: Sequence[tuple[str, str]]) -> None:
        self._filter(",".join(filter_name(*table) for table in tables))

    def _filter(self, names: str) -> None:
        self._server.rows(f"SET GLOBAL {CHANNEL}.replicate_do_table = %s", (names,))

    def start(self, account: Account, *, receive_only: bool = False) -> None:
        del account
        self._server.rows(f"START SLAVE '{CHANNEL}'{' IO_THREAD' if receive_only else ''}")

    def _stop(self) -> None:
        self._server.rows(f"STOP SLAVE '{CHANNEL}'")

    def remove(self) -> None:
        """See `Channel`. Its filter would stay in the server, for the next one of this name."""
        state = self.state()
        if state is not None and any(text.startswith(DO_TABLE) for text in state.filters):
            self._filter("")
        self._server.rows(f"RESET SLAVE '{CHANNEL}' ALL")

    def reached(self, order: Sequence[str]) -> BinlogPosition | None:
        """See `Channel`: its GTIDs tell, so no position does."""
        del order
        return None

    def remove_hidden(self) -> None:
        """See `Channel`. One that has no host: the server was killed while it made the channel.

        Its applier runs after the restart, and keeps the server from other settings (error 1198).
        """
        for step in (self._stop, self.remove):
            try:
                step()
            except SourceError as error:
                if not error.answered:  # it says that there is none
                    raise

    def keeps_order(self, plan: Plan) -> bool:
        """See `Channel`: only within a domain; transactions of two may depend on each other."""
        lists = [piece.gtids for piece in plan.pieces if isinstance(piece.gtids, MariadbGtidList)]
        return len({domain for gtids in lists for domain, _, _ in gtids.gtids()}) <= 1

    def is_busy(self) -> bool:
        return _has_thread(
            self._server, "command = 'Slave_worker' AND state NOT LIKE 'Waiting for work%'"
        )

    def shows_threads(self) -> bool:
        return _has_thread(self._server, "TRUE")

    def failure(self, state: State) -> ApplierFailure | None:
        return of_mariadb(*state.apply_error) if state.apply_error[0] else None


def _named(address: tuple[str, int], listen: Listen) -> tuple[str, int]:
    """The address with the name that the certificate has, if one is verified."""
    return (listen.certificate.name, address[1]) if listen.certificate is not None else address


def channel_of(target: Target) -> Channel:
    kind = MysqlChannel if target.facts.flavour == "mysql" else MariadbChannel
    return kind(target)


def left_over(target: Target) -> Channel | None:
    """The channel that an interrupted run has left; None if there is none. Changes nothing.

    A channel of that name that is not ours does not count: `preflight` refuses it. Raises
    SourceError.
    """
    if target.facts.missing_privileges:
        return None
    channel = channel_of(target)
    state = channel.state()
    return channel if state is not None and state.ours else None


def settle(target: Target) -> None:
    """Remove it, with its relay logs, if there is one.

    If the target keeps no GTIDs, the position that it `reached` must have been noted before.
    """
    target.server.close()
    if target.facts.missing_privileges:
        return
    channel = channel_of(target)
    state = channel.state()
    if state is None:
        channel.remove_hidden()
    elif state.ours:
        channel.stop()
        channel.remove()


def _has_thread(server: Server, which: str) -> bool:
    """Whether the account sees a replication thread for which this condition is true."""
    return bool(
        server.rows(
            "SELECT 1 FROM information_schema.processlist "  # noqa: S608 - constants
            f"WHERE user = 'system user' AND {which} LIMIT 1"
        )
    )


def _error(row: Mapping[str, Any], thread: str) -> tuple[int, str]:
    return int(row[f"Last_{thread}_Errno"] or 0), str(row[f"Last_{thread}_Error"] or "")


def _filters(row: Mapping[str, Any]) -> tuple[str, ...]:
    filters = [f"{name} {row[name]}" for name in _FILTERS if row.get(name)]
    if int(row["Skip_Counter"] or 0):
        filters.append(f"a skip counter of {row['Skip_Counter']}")
    return tuple(filters)
