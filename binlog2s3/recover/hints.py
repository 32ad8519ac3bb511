"""What to do where a target refuses a transaction, by the server's error. Values only.

Place in the flow: `pipe` and `relay` say it, each for what it applied.
"""

from binlog2s3.binlog.gtid import Flavour

PRIVILEGES = {
    "mysql": "GRANT SESSION_VARIABLES_ADMIN, REPLICATION_APPLIER, SYSTEM_VARIABLES_ADMIN, "
    "REPLICATION CLIENT (as relay logs also REPLICATION_SLAVE_ADMIN, RELOAD) ON *.* and what the "
    "applied statements need themselves (all privileges, WITH GRANT OPTION, where accounts or "
    "definers are among them)",
    "mariadb": "GRANT ALL PRIVILEGES ON *.* WITH GRANT OPTION, or at least BINLOG REPLAY, "
    "BINLOG ADMIN, SLAVE MONITOR (as relay logs also REPLICATION SLAVE ADMIN, RELOAD) ON *.*, ALL "
    "PRIVILEGES ON `binlog2s3_recovery`.*, and what the applied statements need themselves",
}
"""What the target's account needs, for hints."""

_DENIED = (1044, 1045, 1142, 1143, 1227, 1370, 1698)
_TOO_LARGE = (1153, 1301, 2020)
_SETTINGS = {
    **dict.fromkeys((1148, 3948, 4166), "local_infile = ON"),
    1666: "binlog_format = ROW",
}
_OUT_OF_ORDER = 1950  # MariaDB
_BEGIN_AGAIN = {
    1397: (
        "the base backup was taken while this XA transaction was prepared, and does not "
        "have it: to leave its COMMIT out would lose its rows. Restore a backup that was "
        "taken while XA RECOVER showed nothing, or an older one from before its PREPARE"
    ),
    1953: (  # MariaDB
        "a temporary table is open, and the one session of --apply pipe cannot change "
        "gtid_domain_id then: restore the base backup again and use --apply relay-log"
    ),
}
"""What no second run from here can mend."""


def advised(code: int, flavour: Flavour, *, look: str, gtid: str | None, again: str) -> str:
    """The hint for an error of this number.

    `look` says how to look at the transaction, `gtid` is its own, where it has one; `again` how to
    go on when the cause is mended.
    """
    if code in _TOO_LARGE:
        return f"raise max_allowed_packet at the target; {again}"
    if code in _DENIED:
        return f"{PRIVILEGES[flavour]}; {again}"
    if code in _SETTINGS:
        return f"SET GLOBAL {_SETTINGS[code]} at the target; {again}"
    if code in _BEGIN_AGAIN:
        return _BEGIN_AGAIN[code]
    if code == _OUT_OF_ORDER:
        return (
            "what stands before it (a CREATE TABLE ... SELECT, a value of a sequence) took two "
            "numbers here: SET GLOBAL gtid_strict_mode = OFF at the target, or --no-target-binlog; "
            f"{again}"
        )
    skip = f", or leave the transaction out (--skip-gtid {gtid})" if gtid else ""
    return f"{look}mend the target{skip}; {again}"


def look(binlog: str, begin: int, end: int | None) -> str:
    """How to see what a transaction does."""
    stop = f" --stop-position={end}" if end is not None else ""
    return (
        f"look at it with mysqlbinlog -v --start-position={begin}{stop} {binlog} "
        "(binlog2s3 pitr --output-dir writes the binlogs); "
    )


def clean(text: str) -> str:
    """Text of a server, on one line and without anything that could command a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))[:600]
