"""How much is committed but not durable, and how long the source keeps it. Pure.

Law: `seconds` is an upper bound, or None. A position of the source counts as current for
`Timing.fresh_seconds`; after that a difference to it is a lower bound, and 0 proves nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from binlog2s3.binlog import gtid
from binlog2s3.binlog.gtid import Flavour, MariadbGtidList
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.config.outside import DEFAULT, Timing
from binlog2s3.status.model import Lag

_TICK = 1.0


def lag_seconds(
    *,
    answer_age: float | None,
    all_durable: bool,
    covered_age: float | None,
    oldest_commit_age: float | None,
    timing: Timing = DEFAULT,
) -> float | None:
    """The greatest age of a commit that is not durable; None if unknown.

    `answer_age`: the age of the source's last position; `all_durable`: that position and the whole
    spool are durable. `covered_age`: the age of the last moment up to which everything is durable.
    `oldest_commit_age`: the age of the oldest transaction in the spool that is not durable.
    """
    if answer_age is not None and answer_age <= timing.fresh_seconds and all_durable:
        return 0.0
    # a moment in the future is from a clock that was set back since
    known = [age for age in (covered_age, oldest_commit_age) if age is not None and age > -_TICK]
    return max(0.0, min(known)) if known else None


def lag_bytes(
    durable: FilePosition, server: FilePosition, sizes: Mapping[BinlogName, int]
) -> int | None:
    """Bytes from one place to the other, by the sizes that the source lists; None if unknown."""
    (name, offset), (last, end) = durable, server
    if (last, end) <= (name, offset):
        return 0
    if name == last:
        return end - offset
    between = [size for other, size in sizes.items() if name < other < last]
    if (
        name not in sizes
        or name.prefix != last.prefix
        or len(between) != last.number - name.number - 1
    ):
        return None
    return max(0, sizes[name] - offset) + sum(between) + end


def lag_transactions(durable: str, server: str, flavour: Flavour) -> int | None:
    """Transactions that the server has executed and that are not durable; None without GTIDs."""
    if not server:
        return None
    if durable == server:
        return 0
    try:
        ours, theirs = gtid.parse(durable, flavour), gtid.parse(server, flavour)
    except ValueError:
        return None
    if isinstance(ours, gtid.GtidSet) and isinstance(theirs, gtid.GtidSet):
        return (theirs - ours).count
    assert isinstance(ours, MariadbGtidList)  # noqa: S101 - both are of one flavour
    assert isinstance(theirs, MariadbGtidList)  # noqa: S101
    reached: dict[int, int] = {}
    for domain, _, number in ours.gtids():
        reached[domain] = max(number, reached.get(domain, 0))
    newest: dict[int, int] = {}
    for domain, _, number in theirs.gtids():
        newest[domain] = max(number, newest.get(domain, 0))
    return sum(max(0, number - reached.get(domain, 0)) for domain, number in newest.items())


def counted(behind_bytes: int | None, waiting_transactions: int | None) -> int | None:
    """The transactions to show beside these bytes; both are what is not durable yet.

    No bytes: no transactions, because what the server never wrote into a binlog (a restore executes
    such transactions) is no lag. Bytes, but 0 transactions: unknown, because the bytes were seen
    later than the GTIDs, and nobody has counted what they contain.
    """
    if behind_bytes == 0:
        return 0
    if behind_bytes and waiting_transactions == 0:
        return None
    return waiting_transactions


def purge_seconds(expire_seconds: float | None, lag: Lag) -> float | None:
    """How long the source still keeps what is not durable, at least.

    It deletes a binlog `expire_seconds` after the last write, and what is not durable was written
    at most `lag.seconds` ago (https://dev.mysql.com/doc/refman/9.7/en/
    replication-options-binary-log.html, binlog_expire_logs_seconds).
    """
    if expire_seconds is None or lag.seconds is None:
        return None
    return max(0.0, expire_seconds - lag.seconds)


def aged(lag: Lag, position_age: float | None) -> Lag:
    """A lag whose bytes and transactions count up to a position of the source of this age.

    The source may have written since an old position. Then the counts are lower bounds, and 0 means
    unknown. `seconds` is already an upper bound for now.
    """
    if position_age is not None and position_age <= DEFAULT.fresh_seconds:
        return lag
    least = replace(lag, bytes=lag.bytes or None, transactions=lag.transactions or None)
    return replace(least, at_least=(least.bytes, least.transactions) != (None, None))
