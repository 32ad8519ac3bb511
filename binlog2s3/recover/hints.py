"""What to do where a target refuses a transaction, by the server's error. Values only.

Place in the flow: `replicate` says it.
"""

from binlog2s3.recover.model import Place

_BEGIN_AGAIN = {
    1397: (
        "the base backup was taken while this XA transaction was prepared, and does not "
        "have it: to leave its COMMIT out would lose its rows. Restore a backup that was "
        "taken while XA RECOVER showed nothing, or an older one from before its PREPARE"
    ),
}
"""What no second run from here can mend."""
_THERE_ALREADY = (1007, 1050)
_PACKET = "raise max_allowed_packet at the target"
_MEND = {
    1153: _PACKET,
    1301: _PACKET,
    1666: "SET GLOBAL binlog_format = ROW at the target",
    1950: "the target's own binlog has a higher number in that domain: SET GLOBAL "
    "gtid_strict_mode = OFF there",
    2020: _PACKET,
}


def advised(code: int, *, reached: Place | None, gtid: str | None, again: str) -> str:
    """The hint for an error of this number.

    `reached`: all before it is applied. `gtid` is the transaction's own, where it has one; `again`
    how to go on when the cause is mended.
    """
    if code in _BEGIN_AGAIN:
        return _BEGIN_AGAIN[code]
    if code in _MEND:
        return f"{_MEND[code]}; {again}"
    look = (
        "does the base backup end later than where this began? Then restore it again; else "
        if code in _THERE_ALREADY
        else ""
    )
    if reached is not None:
        look += (
            f"look at it with mysqlbinlog -v --start-position={reached.offset} {reached.binlog} "
            "(binlog2s3 pitr --output-dir writes the binlogs); "
        )
    skip = f", or leave the transaction out (--skip-gtid {gtid})" if gtid else ""
    return f"{look}mend the target{skip}; {again}"
