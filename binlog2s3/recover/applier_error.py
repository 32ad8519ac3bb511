"""What stopped a target's applier: its error, the transaction that it is in, and what to do. Pure.

Law: a server's message contains names and values of users. A transaction is named only if the
message identifies it in a part that no user can write, or if it can only be that one.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from binlog2s3.binlog.names import BinlogName
from binlog2s3.binlog.scanner import Transaction
from binlog2s3.recover.model import BinlogPosition, PlanPiece

Transactions = Callable[[str, BinlogName, int, int | None], Iterator[Transaction]]
"""The whole transactions of a binlog that begin in a range, in order: see `Snapshot`."""

_SOURCE_LOG = re.compile(r"(?:source|master) log (\S+), end_log_pos (\d+)")
_WORKER = re.compile(
    r"(?s)(?:Coordinator stopped because there were error\(s\) in the worker\(s\)\. "
    r"The most recent failure being: )?Worker \d+ failed executing transaction '([^']*)' at "
    r"(?:source|master) log (\S+), end_log_pos (\d+)(?:; |\. )?(.*)"
)
_EVENT = re.compile(r"; the event's (?:source|master) log (\S+), end_log_pos (\d+)\Z")
_SECRET = re.compile(r"(?is)(Query: '.*?\b(?:IDENTIFIED|PASSWORD)\b).*")
"""A statement that is repeated, up to where a password or its hash may follow."""
_GTID = re.compile(r"(?i)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?::[a-z_][a-z0-9_]*)?:\d+")
_IN_A_TRANSACTION = ("Error '", "Could not execute ", "Error executing row event")
"""How MariaDB's messages begin if executing an event failed, and not something around it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplierFailure:
    """What stopped the applier: the server's message, and what it says of the transaction.

    `position` is the end of the event that failed. `text` repeats neither it nor the GTID, nor what
    follows IDENTIFIED or PASSWORD in a statement.
    """

    code: int
    text: str
    gtid: str | None
    position: BinlogPosition | None


def of_mysql(code: int, text: str) -> ApplierFailure:
    """The failure in a message of MySQL, which names the transaction first."""
    match = _WORKER.match(text)
    if match is None:
        return of_mariadb(code, text)
    rest = of_mariadb(code, match[4] or text)
    return ApplierFailure(
        code=code,
        text=rest.text,
        gtid=match[1] if _GTID.fullmatch(match[1]) else None,
        position=BinlogPosition.served(match[2], int(match[3])) or rest.position,
    )


def of_mariadb(code: int, text: str) -> ApplierFailure:
    """The failure in a message of MariaDB, or of an event, which names no transaction."""
    match = _EVENT.search(text)
    message = _SECRET.sub(r"\1 ...", text[: match.start()] if match else text)
    return ApplierFailure(
        code=code,
        text=_SOURCE_LOG.sub(_readable, message),
        gtid=None,
        position=BinlogPosition.served(match[1], int(match[2])) if match else None,
    )


def _readable(match: re.Match[str]) -> str:
    position = BinlogPosition.served(match[1], int(match[2]))
    return match[0] if position is None else str(position)


def failed_transaction(
    failure: ApplierFailure,
    pieces: Sequence[PlanPiece],
    reached: BinlogPosition,
    transactions: Transactions,
    *,
    one_by_one: bool,
) -> Transaction | None:
    """The first transaction of the pieces after `reached`, if that is the one that failed.

    Everything before `reached` was applied. If several workers apply, another one may have failed,
    so the message has to name an event of this one. None if it is not certain.
    """
    first = next_transaction(pieces, reached, transactions)
    if first is None:
        return None
    piece, transaction = first
    at = failure.position
    if at is not None:
        where = at.binlog_id == piece.binlog_id
        return transaction if where and transaction.begin < at.offset <= transaction.end else None
    return transaction if one_by_one and failure.text.startswith(_IN_A_TRANSACTION) else None


def next_transaction(
    pieces: Sequence[PlanPiece], position: BinlogPosition, transactions: Transactions
) -> tuple[PlanPiece, Transaction] | None:
    """The first transaction of the pieces that begins at this position or after it."""
    numbers = (
        number for number, piece in enumerate(pieces) if piece.binlog_id == position.binlog_id
    )
    first = next(numbers, None)
    for piece in pieces[first:] if first is not None else ():
        begin = max(piece.begin, position.offset) if piece is pieces[first or 0] else piece.begin
        if begin >= piece.end:
            continue
        for transaction in transactions(piece.lineage, piece.binlog, begin, piece.end):
            if piece.applies(transaction):
                return piece, transaction
    return None


# What to do, by the server's number of the error

_PACKET = "raise max_allowed_packet at the target"
_RESTORE = {
    1397: (
        "the base backup was made while this XA transaction was prepared, and does not contain it; "
        "leaving out its COMMIT would lose its rows. Restore a backup that was made while XA "
        "RECOVER showed nothing, or an older one from before its PREPARE"
    ),
    1590: (
        "the source noted in its binlog that it lost what it had committed (an INCIDENT event): "
        "no binlog has that, and leaving the event out does not bring it back. Restore a base "
        "backup that was made after it"
    ),
}
"""Errors that another run cannot fix."""
_FIX = {
    1153: _PACKET,
    1298: "load the time zone tables into the target, without a trace in its binlog: "
    "(echo 'SET sql_log_bin = 0;'; mysql_tzinfo_to_sql /usr/share/zoneinfo) | mysql mysql "
    "(MariaDB: mariadb-tzinfo-to-sql)",
    1301: _PACKET,
    1666: "SET GLOBAL binlog_format = ROW at the target",
    1950: "if the target's own binlog has this very GTID, it was applied already, and must not be "
    "again: restore the base backup into a server with an empty binlog; if it has only a higher "
    "number in that domain: SET GLOBAL gtid_strict_mode = OFF there",
    2020: _PACKET,
}
_EXISTS_ALREADY = (1007, 1050)


def advised(code: int, *, reached: BinlogPosition | None, gtid: str | None, again: str) -> str:
    """The hint for an applier's error of this number.

    `reached`: everything before it is applied. `gtid` is that of the transaction, if it has one;
    `again` how to continue once the cause is fixed.
    """
    if code in _RESTORE:
        return _RESTORE[code]
    if code in _FIX:
        return f"{_FIX[code]}; {again}"
    look = ""
    if code in _EXISTS_ALREADY:
        look = "does the base backup end later than where this run began? Then restore it again; "
    if reached is not None:
        look += (
            f"look at it with mysqlbinlog -v --start-position={reached.offset} {reached.binlog} "
            "(binlog2s3 pitr --output-dir writes the binlogs); "
        )
    skip = f", or leave the transaction out (--skip-gtid {gtid})" if gtid else ""
    return f"{look}fix the target{skip}; {again}"
