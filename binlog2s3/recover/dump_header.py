"""What a dump by mysqldump or mariadb-dump says about where it ends. No I/O.

Law: only what comes before the first database or table counts, and what comes after the last one:
everything between is the dump's data, and data can look like anything. Several dumps in one file
have one point only if all of them say the same.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.recover.backup_format import (
    BackupPoint,
    Coordinates,
    Tool,
    of_the_source,
    only,
    point,
    refusal,
    set_aside,
    shown,
)
from binlog2s3.recover.dump_content import CUT_OFF
from binlog2s3.server.version import ServerVersion

MOST_STATEMENTS = 100
"""The most statements of one kind in a header; no replica has more channels."""

# What begins the first database or table. The position comes before it, or, in some versions,
# after the last one.
_DATA = re.compile(
    r"^(?:/\*M?![0-9]+ )?"
    r"(?:CREATE|INSERT|REPLACE|DROP|ALTER|LOCK|UNLOCK|USE|DELIMITER|END|COMMIT)\b",
    re.MULTILINE,
)
_TITLE = re.compile(r"^-- (?P<dump>MySQL|MariaDB) dump (?P<rest>.*)$", re.MULTILINE)
# How a dump begins; a compact one has neither, and begins with its coordinates.
_BEGIN = re.compile(
    r"^(?:-- (?:MySQL|MariaDB) dump \d|/\*!40101 SET @OLD_CHARACTER_SET_CLIENT=)", re.MULTILINE
)
_PUMP = re.compile(r"^-- Dump created by MySQL pump", re.MULTILINE)
_PREAMBLE = re.compile(
    r"^(?:/\*!40101 SET (?:NAMES |@OLD_|@saved_cs)|SET @MYSQLDUMP_TEMP_LOG_BIN|/\*M!999999\\-)",
    re.MULTILINE,
)
_MADE_BY = re.compile(r"^-- MySQL dump .*\bDistrib ([0-9]{1,3}(?:\.[0-9]{1,3}){2})", re.MULTILINE)
_VERSION = re.compile(r"^-- Server version\s+(\S+)", re.MULTILINE)
_DATABASE = re.compile(r"^-- Host: .*    Database: (\S.*)$", re.MULTILINE)
_TIME_ZONE = re.compile(r"^/\*!40103 SET TIME_ZONE='\+00:00' \*/;", re.MULTILINE)
_COMPLETED = re.compile(r"^-- Dump completed(?: on (.*)|[ \t]*)$", re.MULTILINE)
_HEADING = re.compile(
    r"^-- .*(?:(?P<own>recovery from\s*$|SHOW MASTER STATUS|SHOW BINARY LOG STATUS"
    r"|GTID to start replication from|to the master-data CHANGE-MASTER follows)"
    r"|(?P<source>\(the (?:master|source) (?:of|for) this|SHOW SLAVE STATUS|SHOW REPLICA STATUS"
    r"|Gtid position to start replication|to the dump-slave CHANGE-MASTER follows))",
    re.MULTILINE,
)
_CHANGE = re.compile(
    r"^(?:--[ \t]*)?CHANGE (?:MASTER|SOURCE|REPLICATION SOURCE)(?P<channel> '[^'\n]*')? TO\b",
    re.MULTILINE,
)
_CHANGE_BODY = re.compile(r"((?:'[^'\n]*+'|[^;']++)*+);")
_LOG_FILE = re.compile(r"\b(?:MASTER|SOURCE)_LOG_FILE\s*=\s*'([^'\n]*)'")
_LOG_POS = re.compile(r"\b(?:MASTER|SOURCE)_LOG_POS\s*=\s*([0-9]+)")
_FROM_ELSEWHERE = re.compile(r"\bFOR CHANNEL\b|\b(?:MASTER|SOURCE)_HOST\s*=")
_PURGED = re.compile(
    r"^(?P<comment>(?:/\*|--)[ \t]*)?SET @@GLOBAL\.GTID_PURGED\s*=", re.MULTILINE | re.IGNORECASE
)
_PURGED_BODY = re.compile(r"\s*(?:/\*![0-9]+\s*'\+'\s*\*/)?\s*'(\+?[^']*)'\s*;")
_SLAVE_POS = re.compile(r"^(?P<comment>--[ \t]*)?SET GLOBAL gtid_slave_pos\s*=", re.MULTILINE)
_SLAVE_POS_BODY = re.compile(r"\s*'([^']*)'\s*;")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Statement:
    """A statement of a dump: how it begins, its body, and whose state it says."""

    begin: "re.Match[str]"
    body: str
    of_source: bool


def _statements(
    where: str, text: str, begin: "re.Pattern[str]", body: "re.Pattern[str]"
) -> Iterator[_Statement]:
    """The whole statements that begin like this; raises if one is cut off."""
    if begin.search(text) is None:
        return
    headings = [
        (match.start(), match["source"] is not None)
        for _, match in zip(range(MOST_STATEMENTS), _HEADING.finditer(text), strict=False)
    ]
    for count, start in enumerate(begin.finditer(text)):
        rest = body.match(text, start.end())
        if rest is None or count == MOST_STATEMENTS:
            line = text[start.start() :].partition("\n")[0]
            raise refusal(where, f"it is cut off in {shown(line)}")
        above = [of_source for at, of_source in headings if at < start.start()]
        yield _Statement(begin=start, body=rest[1], of_source=bool(above) and above[-1])


def _coordinates_of_dump(
    where: str, header: str, warnings: list[str], *, gtids: bool
) -> Coordinates | None:
    """What the CHANGE statements say: the dumped server's own position, else its source's."""
    own: list[Coordinates] = []
    source: list[Coordinates] = []
    for statement in _statements(where, header, _CHANGE, _CHANGE_BODY):
        name = _LOG_FILE.search(statement.body)
        position = _LOG_POS.search(statement.body)
        if name is None and position is None:
            continue  # by GTID
        if name is None or position is None:
            raise refusal(where, f"half a position in {shown(statement.body.strip())}")
        elsewhere = statement.begin["channel"] or _FROM_ELSEWHERE.search(statement.body)
        (source if elsewhere or statement.of_source else own).append((name[1], position[1]))
    if own:
        if source:
            warnings.append(set_aside("further coordinates in the header"))
        coordinates: Coordinates | None = only(where, "positions", own)
        return coordinates
    if len(set(source)) > 1 and gtids:
        warnings.append("the positions are those of several sources and are not used")
        return None
    coordinates = only(where, "positions (of several sources)", source)
    if coordinates is not None:
        warnings.append(of_the_source("the coordinates (--dump-replica, --dump-slave)"))
    return coordinates


def _gtids_of_dump(
    where: str, header: str, behind: str, warnings: list[str]
) -> tuple[str, Flavour | None, bool]:
    """The GTIDs, their flavour by the statement that sets them, and whether loading sets them."""
    purged = list(_statements(where, header, _PURGED, _PURGED_BODY))
    late = list(_statements(where, behind, _PURGED, _PURGED_BODY))
    slave_pos = [
        statement
        for text in (header, behind)
        for statement in _statements(where, text, _SLAVE_POS, _SLAVE_POS_BODY)
    ]
    if purged and slave_pos:
        raise refusal(where, "it contradicts itself: GTIDs of MySQL and of MariaDB")
    if slave_pos:
        own = [assignment for assignment in slave_pos if not assignment.of_source]
        if not own:
            warnings.append(of_the_source("the GTIDs (--dump-slave)"))
        body = only(where, "GTID positions", (s.body for s in own or slave_pos))
        return body, "mariadb", all(not s.begin["comment"] for s in own or slave_pos)
    if purged:
        if any(assignment.begin["comment"] for assignment in purged):
            warnings.append(
                "its GTIDs are in a comment (--set-gtid-purged=COMMENTED): unless gtid_purged was "
                "set by hand, they are missing from the restored server's @@gtid_executed"
            )
        body = only(
            where, "GTID sets", (assignment.body.removeprefix("+") for assignment in purged)
        )
        return body, "mysql", all(not assignment.begin["comment"] for assignment in purged)
    if any(assignment.body.strip("+ \n") for assignment in late):
        warnings.append(
            "the GTID set after the last table is not used: mysqldump may have read it after the "
            "dump, with transactions that are not in the dump"
        )
    return "", "mysql" if late else None, False


def parse_dump(where: str, text: str, tail: str | None, *, whole: bool) -> BackupPoint:
    """What a dump by mysqldump or mariadb-dump says, or several in one file that agree.

    `text` is how it begins, or all of it if it is `whole`. `tail` is how it ends, None if that
    cannot be read without reading everything. (Source: `client/mysqldump.cc`; MariaDB's
    `client/mysqldump.c`.)
    """
    parts = _dumps(text)
    if whole:
        return _one_point(where, [_parse_one(where, part, None, whole=True) for part in parts])
    # of a larger file: the dump that ends in `tail`, and those that begin there
    last, *more = _dumps(tail.partition("\n")[2], begun=True) if tail is not None else [None]
    points = [_parse_one(where, part, None, whole=True) for part in parts[:-1]]
    points.append(_parse_one(where, parts[-1], last, whole=False))
    points += [_parse_one(where, part, None, whole=True) for part in more if part is not None]
    return _one_point(where, points)


def _dumps(text: str, *, begun: bool = False) -> list[str]:
    """The dumps in a text; `begun`: it begins in the middle of the first one."""
    headings = _BEGIN if begun or _BEGIN.search(_header(text)) else _CHANGE
    begins: list[int] = []
    data_at = -1  # where the previous dump's data begins; its header is no other dump
    if not begun:
        first = _DATA.search(text)
        data_at = first.start() if first else len(text)
    for match in headings.finditer(text):
        if match.start() > data_at:
            begins.append(match.start())
            first = _DATA.search(text, match.end())
            data_at = first.start() if first else len(text)
    return [text[a:b] for a, b in pairwise([0, *begins, len(text)])]


def _header(text: str) -> str:
    """What comes before a dump's first database or table."""
    first = _DATA.search(text)
    return text[: first.start()] if first else text


def _one_point(where: str, points: Sequence[BackupPoint]) -> BackupPoint:
    """The point of all dumps of one file; raises if they differ."""
    first, *more = points
    for other in more:
        if (other.ends_at, other.gtid_set) != (first.ends_at, first.gtid_set):
            raise refusal(
                where,
                f"it has {len(points)} dumps that end at different places, {_stands(first)} and "
                f"{_stands(other)}: no place is right for both",
            )
    return replace(
        first,
        warnings=tuple(dict.fromkeys(text for point in points for text in point.warnings)),
        defects=tuple(dict.fromkeys(text for point in points for text in point.defects)),
        is_doubtful=any(point.is_doubtful for point in points),
    )


def _stands(point: BackupPoint) -> str:
    position = str(point.ends_at) if point.ends_at is not None else ""
    return " ".join(filter(None, (position, shown(point.gtid_set) if point.gtid_set else "")))


def _parse_one(where: str, text: str, tail: str | None, *, whole: bool) -> BackupPoint:
    """What one dump says; the arguments are those of `parse_dump`."""
    if _PUMP.search(text):
        raise refusal(where, "a dump by mysqlpump, which cannot be read")
    first, header = _DATA.search(text), _header(text)
    if whole and first:
        tail = text[first.start() :]
    behind, tail_known = "", tail is not None or whole
    if first and tail:
        behind = tail.partition("\n")[2]  # of a line of data that is longer than the tail
        for last in _DATA.finditer(tail):
            behind = tail[last.end() :]
    title = _TITLE.search(header)
    warnings: list[str] = []
    gtids, by_statement, sets_gtids = _gtids_of_dump(where, header, behind, warnings)
    coordinates = _coordinates_of_dump(where, header, warnings, gtids=bool(gtids))
    if not (title or gtids or coordinates or _PREAMBLE.search(header)):
        raise refusal(where, "not a known kind of base backup")
    of_mariadb = "mariadb" in title[0].lower() if title else "/*M!" in header
    tool: Tool = "mariadb-dump" if of_mariadb else "mysqldump"
    version = _VERSION.search(header)
    flavour = ServerVersion(version[1]).flavour if version else by_statement
    if flavour and by_statement and flavour != by_statement:
        raise refusal(where, f"it contradicts itself: a server of {flavour}, {by_statement} GTIDs")
    if not gtids and not coordinates:
        raise refusal(where, _why_nothing(tool, warnings, header_ends=bool(first) or whole))
    completed = _COMPLETED.search(behind or ("" if first else header))
    defects = [CUT_OFF] if title and tail_known and not completed else []
    doubts = [*_doubts_of_dump(header, tool, coordinates, whole=whole)]
    warnings += doubts
    if tool == "mariadb-dump" and not gtids and not tail_known:
        warnings.append(
            "MariaDB's GTIDs are at the end of a dump, which is not read if it is compressed: "
            "binlog and position are used"
        )
    ends = point(
        where,
        tool,
        flavour,
        coordinates=coordinates,
        gtids=gtids,
        warnings=warnings,
        defects=defects,
    )
    return replace(ends, sets_gtids=sets_gtids, is_doubtful=bool(doubts))


def _doubt_of_gtids(header: str) -> str:
    """What is wrong with the GTIDs of a mysqldump that was not made with --source-data."""
    made = _MADE_BY.search(header)
    later = "without --single-transaction, its rows are later than its GTIDs"
    if made and ServerVersion(made[1]).dumps_under_lock:
        return (
            "it has no binlog coordinates, so it does not say whether it was made with "
            f"--single-transaction or --source-data; {later}"
        )
    who = f"mysqldump {made[1]}" if made else "a mysqldump that does not say its version"
    return (
        f"it has no binlog coordinates and was made by {who}; up to 8.0.31, with "
        "--single-transaction and without --source-data, its GTIDs may be later than its rows: "
        "what was committed in between IS MISSING after a recovery, and nothing shows it; "
        f"{later}. Make dumps with --source-data=2 --single-transaction"
    )


def _why_nothing(tool: Tool, warnings: Sequence[str], *, header_ends: bool) -> str:
    if not header_ends:
        return "the part that was read has neither a table nor a position"
    option = "--master-data" if tool == "mariadb-dump" else "--source-data"
    more = "".join(f"; {warning}" for warning in warnings)
    return (
        f"its header has neither binlog nor GTIDs: make dumps for recoveries with {option}=2 "
        f"--single-transaction{more}"
    )


def _doubts_of_dump(
    header: str, tool: Tool, coordinates: Coordinates | None, *, whole: bool
) -> Iterator[str]:
    """Doubts about its rows that follow from what the header says and does not say."""
    if not coordinates and tool == "mysqldump":
        yield _doubt_of_gtids(header)
    if not _TIME_ZONE.search(header):
        yield (
            "it does not set a time zone (--skip-tz-utc, --compact): loaded in a session with "
            "another one than the dump's, its TIMESTAMPs are other moments, and nothing shows it"
        )
    database = _DATABASE.search(header)
    if database:
        yield (
            f"it was made of database {shown(database[1].rstrip())}: transactions on others cannot "
            "be applied to what it restores"
            + ("" if whole else "; it is unknown whether dumps of others follow in the file")
        )
