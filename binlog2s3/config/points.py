"""How people write times, intervals, GTIDs, positions and tables. Pure.

Nothing is guessed. A time needs its time zone, and the form of a GTID decides its flavour.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from binlog2s3.binlog import gtid
from binlog2s3.binlog.gtid import Flavour, Gtids, GtidSet
from binlog2s3.binlog.names import BinlogName, FilePosition
from binlog2s3.formatting import quoted, us_of

_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?"
    r" ?(?:([Zz])|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?",
    re.ASCII,
)
_POSITION = re.compile(r"(.+):([0-9]{1,18})", re.DOTALL)
_MARIADB = re.compile(r"[\s,]*[0-9]+-[0-9]+-[0-9]+\s*(?:,|\Z)")
_FORM = "2026-01-02T03:04:05.123456Z"


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in microseconds since the epoch, UTC, and the text that the operator wrote for it."""

    at_us: int
    text: str


def parse_moment(text: str) -> Moment:
    """The time that a text names. Raises ValueError as `parse_time` does."""
    return Moment(parse_time(text), text)


def parse_time(text: str) -> int:
    """Microseconds since the epoch of an ISO 8601 time with its time zone.

    Raises ValueError that says what is missing or impossible.

    >>> parse_time("1970-01-01T01:00:00.5+01:00"), parse_time("1970-01-01 00:00:01Z")
    (500000, 1000000)
    """
    shown = quoted(text)
    match = _TIME.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{shown} is not of the form {_FORM}")
    *date, fraction, utc, sign, hours, minutes = match.groups()
    if len(fraction or "") > 6:
        raise ValueError(f"{shown}: a second has at most 6 decimal places (microseconds)")
    if not utc and not sign:
        raise ValueError(
            f"{shown} has no time zone: add Z for UTC, or an offset such as +02:00 or -05:30"
        )
    year, month, day, hour, minute, second = (int(part or 0) for part in date)
    us = int((fraction or "").ljust(6, "0"))
    try:
        local = datetime(year, month, day, hour, minute, second, us, tzinfo=UTC)
    except ValueError as error:
        raise ValueError(f"{shown} is not a possible time: {error}") from error
    offset = timedelta(hours=int(hours or 0), minutes=int(minutes or 0))
    return us_of(local) + (offset if sign == "-" else -offset) // timedelta(microseconds=1)


def parse_gtids(text: str) -> Gtids:
    r"""The GTIDs in a text, of either flavour; there must be at least one. Raises ValueError.

    The output of `mysql --batch`, with `\n` between the pieces, is accepted, too.
    """
    text = text.replace("\\n", "\n")
    if _MARIADB.match(text):
        return gtid.parse(text, "mariadb")
    if ":" not in text:
        raise ValueError(f"{quoted(text)} is no GTID: MySQL's are UUID:5, MariaDB's 0-1-5")
    return gtid.parse(text, "mysql")


def gtids_text(text: str) -> str:
    r"""The GTIDs of a text on one line; every GTID of MariaDB is kept, because each may be meant.

    >>> gtids_text(" 0-1-5,\n0-1-7")
    '0-1-5,0-1-7'
    """
    gtids = parse_gtids(text)
    if isinstance(gtids, GtidSet):
        return str(gtids)
    pieces = (piece.strip() for piece in text.replace("\\n", "\n").split(","))
    return ",".join(filter(None, pieces))


def parse_gtid(text: str) -> str:
    """The one GTID in a text: "uuid:5", "uuid:tag:5", MariaDB's "0-1-5". Raises ValueError.

    >>> parse_gtid("3E11FA47-71CA-11E1-9E33-C80AA9429562:Blue:7")
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:blue:7'
    """
    gtids = parse_gtids(text)
    count = gtids.count if isinstance(gtids, GtidSet) else len(gtids_text(text).split(","))
    if count != 1:
        raise ValueError(f"{quoted(text)} has {count} GTIDs; give one")
    return str(gtids)


def flavour_of(gtids: Gtids) -> Flavour:
    return "mysql" if isinstance(gtids, GtidSet) else "mariadb"


def parse_position(text: str) -> FilePosition:
    """The binlog and the offset of NAME:N. Raises ValueError."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text)} is not of the form NAME:N, e.g. mysql-bin.000042:1234")
    return FilePosition(BinlogName.parse(match[1]), int(match[2]))


def parse_between(text: str) -> tuple[int | None, int | None]:
    """Both ends of an ISO 8601 interval in microseconds; None if one is omitted. ValueError.

    >>> parse_between("1970-01-01T00:00Z/1970-01-01T01:00:01+01:00")
    (0, 1000000)
    >>> parse_between("/1970-01-01T00:00Z")
    (None, 0)
    """
    since, slash, until = (part.strip() for part in text.partition("/"))
    if not slash or "/" in until:
        raise ValueError(
            f"{quoted(text)} is not of the form FROM/TO, e.g. 2026-01-02T15:00Z/2026-01-02T16:00Z"
        )
    ends = [None if end in ("", "..") else parse_time(end) for end in (since, until)]
    if ends == [None, None]:
        raise ValueError(f"{quoted(text)} has no beginning and no end")
    if ends[0] is not None and ends[1] is not None and ends[0] > ends[1]:
        raise ValueError(f"{quoted(text)} ends before it begins")
    return ends[0], ends[1]


def parse_table(text: str) -> tuple[str, str]:
    """Database and table of `DB.TABLE`, `DB.*`, or with backquotes; ValueError.

    >>> parse_table("shop.orders"), parse_table("`a.b`.`c``d`"), parse_table("shop.*")
    (('shop', 'orders'), ('a.b', 'c`d'), ('shop', '*'))
    """
    parts: list[str] = []
    rest = text.strip()
    while rest:
        part, rest = _name_of(rest, text)
        parts.append(part)
        if rest and (rest[0] != "." or len(rest) == 1):
            raise _no_table(text)
        rest = rest[1:]
    if len(parts) != 2 or not all(parts) or parts[0] == "*":
        raise _no_table(text)
    return parts[0], parts[1]


def _name_of(rest: str, text: str) -> tuple[str, str]:
    """The first name, and the rest after it."""
    if rest[0] != "`":
        name, dot, behind = rest.partition(".")
        return name.strip(), dot + behind
    at = 1
    while True:
        end = rest.find("`", at)
        if end < 0:
            raise _no_table(text)
        if rest[end + 1 : end + 2] != "`":
            return rest[1:end].replace("``", "`"), rest[end + 1 :].lstrip()
        at = end + 2


def _no_table(text: str) -> ValueError:
    return ValueError(
        f"{quoted(text)} is not of the form DB.TABLE, e.g. shop.orders, or DB.*; put a "
        "name with a dot in backquotes"
    )
