"""The replica channel at the target that relay logs are applied through: told and asked.

Place in the flow: `relay` drives it. Its receiver is never started: the host that it names does not
exist, which also tells it from a channel of somebody else's.

Law: the place that it says to have reached is one up to which all is applied and behind which
nothing is; the server keeps it with each transaction, through a crash.
"""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.model import Place
from binlog2s3.recover.relay_log import Ident
from binlog2s3.server.connection import Server

NAME = "pitr"
HOST = "binlog2s3.invalid"
_CHANNEL = f"FOR CHANNEL '{NAME}'"
_FILTERS = (
    "Replicate_Do_DB",
    "Replicate_Ignore_DB",
    "Replicate_Do_Table",
    "Replicate_Ignore_Table",
    "Replicate_Wild_Do_Table",
    "Replicate_Wild_Ignore_Table",
    "Replicate_Ignore_Server_Ids",
    "Replicate_Rewrite_DB",
)
_WORKERS = "workers="
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.1
_HAS_READ_ALL = re.compile(r"has read all relay log")
_SOURCE_LOG = re.compile(r"(?:source|master) log (\S+), end_log_pos (\d+)")
_TRANSACTION = re.compile(r"transaction '([^']+)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What SHOW REPLICA STATUS says of the channel.

    `has_read_all`: the applier waits for more. `place` is where the server's own bookkeeping
    stands, which may lag behind what is applied; None where it names none of ours. `filters`: what
    it leaves out. `workers`: what replica_parallel_workers is to be set to again.
    """

    ours: bool
    running: bool
    has_read_all: bool
    place: Place | None
    number: int
    relay_log: str
    error: int
    filters: tuple[str, ...]
    workers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What stopped the applier: the server's words, what they say of the transaction."""

    code: int
    text: str
    gtid: str | None
    place: Place | None
    number: int


class Channel:
    """The channel of ours at one target."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def state(self) -> State | None:
        """What it is; None where there is no channel of that name."""
        row = self._row()
        return None if row is None else _state(row)

    def create(self, binlog: str, position: int, *, workers: int | None) -> None:
        """Make it, standing at this place. `workers`: to be kept for later, see `State`."""
        self._server.rows(
            f"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '{HOST}', SOURCE_USER = %s, "
            f"SOURCE_LOG_FILE = %s, SOURCE_LOG_POS = %s, SOURCE_AUTO_POSITION = 0 {_CHANNEL}",
            (f"{_WORKERS}{workers}" if workers is not None else "", binlog, position),
        )

    def rotate(self) -> None:
        """Have the server read the index again: it begins a file of its own behind ours."""
        self._server.rows(f"FLUSH LOCAL RELAY LOGS {_CHANNEL}")

    def start(self, *, one_worker: int | None) -> None:
        """Start the applier. `one_worker`: for so many workers, which are one for this moment."""
        if one_worker is None:
            self._server.rows(f"START REPLICA SQL_THREAD {_CHANNEL}")
            return
        self._server.rows("SET GLOBAL replica_parallel_workers = 1")
        try:
            self._server.rows(f"START REPLICA SQL_THREAD {_CHANNEL}")
        finally:
            self._server.rows("SET GLOBAL replica_parallel_workers = %s", (one_worker,))

    def stop(self) -> None:
        """Stop it, between two transactions. RecoveryError where one of them takes too long."""
        with suppress(SourceError):  # it may wait for longer than we do
            self._server.rows(f"STOP REPLICA {_CHANNEL}")
        deadline = time.monotonic() + _STOP_SECONDS
        while (state := self.state()) is not None and state.running:
            if time.monotonic() > deadline:
                raise RecoveryError(
                    "the target's applier is within a long transaction, and stops only behind it",
                    hint=f"it stops by itself then; the next run removes the channel {NAME!r}",
                    transient=True,
                )
            time.sleep(_POLL_SECONDS)

    def remove(self) -> None:
        """Remove it, stopped, with its files that the server knows of."""
        state = self.state()
        if state is None or not state.ours:
            return
        if state.workers is not None:
            self._server.rows("SET GLOBAL replica_parallel_workers = %s", (state.workers,))
        self._server.rows(f"RESET REPLICA ALL {_CHANNEL}")

    def reached(self) -> Place | None:
        """The place up to which all is applied. The applier is stopped, and has one commit order.

        Its workers' places count where the server's bookkeeping lags: behind an error, a crash. Of
        a channel that the server could not set up when it started, its tables still tell.
        """
        state = self.state()
        if state is None or not state.ours:
            return None
        found = [] if state.place is None else [(state.number, state.place)]
        rows = self._server.rows(
            "SELECT Master_log_name AS name, Master_log_pos AS at FROM mysql.slave_worker_info "
            "WHERE Channel_name = %s UNION ALL "
            "SELECT Master_log_name, Master_log_pos FROM mysql.slave_relay_log_info "
            "WHERE Channel_name = %s",
            (NAME, NAME),
        )
        for ident, at in ((Ident.parse(_text(row["name"])), int(row["at"])) for row in rows):
            found += [] if ident is None else [(ident.number, ident.place(at))]
        return max(found, key=lambda one: (one[0], one[1].offset))[1] if found else None

    def is_busy(self) -> bool:
        """Whether one of its workers is within a transaction."""
        return bool(
            self._server.rows(
                "SELECT 1 FROM performance_schema.replication_applier_status_by_worker "
                "WHERE CHANNEL_NAME = %s AND APPLYING_TRANSACTION <> '' LIMIT 1",
                (NAME,),
            )
        )

    def failure(self) -> Failure | None:
        """What stopped the applier; None where it did not fail."""
        found: list[tuple[int, str]] = []
        with suppress(SourceError):
            found = [
                (int(row["code"]), str(row["text"]))
                for row in self._server.rows(
                    "SELECT LAST_ERROR_NUMBER AS code, LAST_ERROR_MESSAGE AS text "
                    "FROM performance_schema.replication_applier_status_by_worker "
                    "WHERE CHANNEL_NAME = %s AND LAST_ERROR_NUMBER <> 0 "
                    "ORDER BY LAST_ERROR_TIMESTAMP",
                    (NAME,),
                )
            ]
        row = None if found else self._row()
        if row is not None and int(row["Last_SQL_Errno"]):
            found = [(int(row["Last_SQL_Errno"]), str(row["Last_SQL_Error"]))]
        return _failure(*found[0]) if found else None

    def _row(self) -> Mapping[str, Any] | None:
        rows = self._server.rows("SHOW REPLICA STATUS")
        return next((row for row in rows if str(row["Channel_Name"]).lower() == NAME), None)


def _state(row: Mapping[str, Any]) -> State:
    ident = Ident.parse(str(row["Relay_Source_Log_File"] or ""))
    user = str(row["Source_User"] or "")
    workers = user.removeprefix(_WORKERS) if user.startswith(_WORKERS) else ""
    return State(
        ours=str(row["Source_Host"]) == HOST,
        running="Yes" in (row["Replica_SQL_Running"], row["Replica_IO_Running"]),
        has_read_all=bool(_HAS_READ_ALL.search(str(row["Replica_SQL_Running_State"] or ""))),
        place=ident.place(int(row["Exec_Source_Log_Pos"] or 0)) if ident else None,
        number=ident.number if ident else -1,
        relay_log=str(row["Relay_Log_File"] or ""),
        error=int(row["Last_SQL_Errno"] or 0),
        filters=tuple(f"{name} {row[name]}" for name in _FILTERS if row.get(name)),
        workers=int(workers) if workers.isdecimal() else None,
    )


def _failure(code: int, text: str) -> Failure:
    where = _SOURCE_LOG.search(text)
    ident = Ident.parse(where[1]) if where else None
    named = _TRANSACTION.search(text)
    gtid = named[1] if named and named[1] not in ("ANONYMOUS", "NOT_YET_DETERMINED") else None
    return Failure(
        code=code,
        text=_SOURCE_LOG.sub(_readable, text),
        gtid=gtid,
        place=ident.place(int(where[2])) if ident and where else None,
        number=ident.number if ident else -1,
    )


def _readable(match: re.Match[str]) -> str:
    ident = Ident.parse(match[1])
    return match[0] if ident is None else f"{ident.place(int(match[2]))}"


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
