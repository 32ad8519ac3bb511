"""What is known of the base backup that the target was restored from.

`pitr` asks before the first transaction is applied, and ends with what it says. The GTIDs of a
target prove what was applied to it; they say nothing of the rows before: a dump sets them at its
head, however much of it is loaded then.

Law: a backup counts as checked only if something was compared, and the words say what. Names of a
dump are only ever compared and quoted.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Literal

from binlog2s3.archive.drills import Drill, UnreadDrill
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.formatting import count_text, moment_text, some
from binlog2s3.recover.backup import examined, refuse_defects
from binlog2s3.recover.dump_content import DumpContent
from binlog2s3.server.connection import Server
from binlog2s3.server.sql import SYSTEM, quoted, text_of
from binlog2s3.server.version import ServerVersion
from binlog2s3.workers import Advance, unseen

ACCEPT = (
    "restore another base backup; --accept-backup goes on all the same: the data that it does not "
    "have will be missing"
)
"""The hint for a base backup that does not have the whole server."""
_MOST_NAMED = 5
_MOST_LACKS = 1000
_ABSENT = ("(1049)", "(1146)")  # no such schema, no such table


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCheck:
    """What was checked of the base backup, and how.

    `words` complete "the base backup ...". `tables` were looked for at the target, and rows in
    those that have some in the dump; `accounts` as well, None if they could not be compared.
    `drilled_at`: when a drill ended that restored this backup, and applied the binlogs to it.
    """

    checked: Literal["dump", "drill", "no"]
    words: str
    tables: int = 0
    accounts: int | None = None
    drilled_at: datetime | None = None


def unchecked(why: str = "") -> BaseCheck:
    """For a backup that nothing is known of."""
    return BaseCheck(checked="no", words=f"was not checked{f': {why}' if why else ''}")


def by_drill(name: str, drill: Drill | None) -> BaseCheck:
    """For a registered backup, by the newest drill that says something of it.

    A drill shows that the backup is good, not that this target has all of it.
    """
    if drill is None:
        return unchecked(f"no drill has proved {name}")
    if isinstance(drill, UnreadDrill):
        return unchecked(f"the last drill may have failed with {name}: {drill.key} cannot be read")
    if not drill.is_proved:
        when = moment_text(drill.finished_at)
        return unchecked(f"THE LAST DRILL OF {name}, of {when}, FAILED at the step {drill.step!r}")
    return BaseCheck(
        checked="drill",
        words=f"was checked by the drill of {moment_text(drill.finished_at)} ({name}); whether "
        "this target has all of it was not checked",
        drilled_at=drill.finished_at,
    )


def by_dump(
    server: Server,
    path: Path,
    only_tables: Collection[tuple[str, str]] = (),
    advance: Advance = unseen,
    *,
    accepts: bool = False,
) -> BaseCheck:
    """Compare a target that was just restored with the dump at `path`; all of the file is read.

    Each table of the dump must exist there, have a row if it has one in the dump, and no lower
    AUTO_INCREMENT, as after the load of an older dump; each account must exist. With `only_tables`,
    just these are compared. Raises RecoveryError that names what is missing; also, unless the
    operator `accepts` that, if it is no base backup of the whole server.
    """
    point, content = examined(path, advance)
    if not accepts:
        refuse_defects(path, point.defects, ACCEPT, only_tables=bool(only_tables))
    if content is None:
        return unchecked(f"{path} is not a dump in SQL")
    wanted = {
        table: has_rows
        for table, has_rows in content.tables.items()
        if table[0].lower() not in SYSTEM and (not only_tables or table in only_tables)
    }
    accounts = None if only_tables else content.accounts
    try:
        fleeting = _in_memory(server) & wanted.keys()
        looked = {table: it for table, it in wanted.items() if table not in fleeting}
        missing = list(islice(_lacks(server, looked), _MOST_LACKS))
        missing += _older(
            server, {table: n for table, n in content.numbers.items() if table in wanted}
        )
        has = _accounts(server) if accounts is not None else None
    except SourceError as error:
        if not error.needs_privilege:
            raise
        return unchecked(f"the account at the target may not look at its tables ({error})")
    if accounts is not None and has is not None:
        missing += [f"missing account {user}@{host}" for user, host in sorted(accounts - has)]
    if missing:
        raise RecoveryError(
            f"the target does not have all of the base backup {path}: {some(missing, _MOST_NAMED)}",
            hint="the load did not end, or it was of another dump: load the dump again, into an "
            "empty server, and see that the client ends with exit code 0. If this is meant to be "
            "missing, say where the backup ends with --from-gtid-set, or --from-binlog and "
            "--from-position, instead of --from-backup: then nothing of it is checked",
        )
    if point.defects:
        return unchecked(f"{path}: {'; '.join(point.defects)}")
    check = _checked(path, content, wanted.values(), accounts if has is not None else None)
    if not fleeting:
        return check
    more = f"; the rows of {count_text(len(fleeting), 'MEMORY table')} were not looked for"
    return replace(check, words=check.words + more)


def _checked(
    path: Path,
    content: DumpContent,
    has_rows: Collection[bool],
    accounts: Collection[tuple[str, str]] | None,
) -> BaseCheck:
    words = (
        f"{path} was checked: its {_exist(len(has_rows), 'table')}, and none that has rows in the "
        "dump is empty; "
    )
    words += (
        f"its {_exist(len(accounts), 'account')}"
        if accounts is not None
        else "accounts were not compared"
    )
    if content.ends is None:
        words += "; it has no comments that say whether it is complete"
    if not content.is_whole:
        words += "; some of its names could not be read"
    words = "; ".join((words, *content.doubts))
    return BaseCheck(
        checked="dump",
        words=words,
        tables=len(has_rows),
        accounts=None if accounts is None else len(accounts),
    )


def _exist(number: int, noun: str) -> str:
    return f"{count_text(number, noun)} {'exists' if number == 1 else 'exist'}"


def _lacks(server: Server, wanted: Mapping[tuple[str, str], bool]) -> Iterator[str]:
    """What is missing, in words. The server's own counts of rows are guesses: a row is read."""
    for table, has_rows in wanted.items():
        name = ".".join(map(quoted, table))
        try:
            rows = server.rows(
                f"SELECT 1 AS it FROM {name} LIMIT 1"  # noqa: S608 - a quoted name
                if has_rows
                else f"SHOW COLUMNS FROM {name}"
            )
        except SourceError as error:
            if not any(code in str(error) for code in _ABSENT):
                raise
            yield f"missing table {'.'.join(table)}"
            continue
        if not rows:
            yield f"no rows in {'.'.join(table)}"


def _older(server: Server, numbers: Mapping[tuple[str, str], int]) -> Iterator[str]:
    """The tables that would give a lower number next than in the dump, in words.

    Whoever creates a table with a number never has a lower one. Before MariaDB 10.2 and MySQL 8.0 a
    restart forgot it.
    """
    if not numbers or _forgets_numbers(server):
        return
    # MySQL 8.0 remembers what it was asked for a day
    server.rows("SET @binlog2s3 = 1 /*!80003 , SESSION information_schema_stats_expiry = 0 */")
    next_numbers = {
        (text_of(row["db"]), text_of(row["name"])): row["it"]
        for row in server.rows(
            "SELECT table_schema AS db, table_name AS name, auto_increment AS it "
            "FROM information_schema.tables WHERE engine = 'InnoDB' AND auto_increment IS NOT NULL"
        )
    }
    for table, number in numbers.items():
        next_number = next_numbers.get(table)
        if next_number is not None and int(next_number) < number:
            name = ".".join(table)
            yield f"{name} goes on with number {next_number}, and in the dump with {number}"


def _forgets_numbers(server: Server) -> bool:
    (row,) = server.rows("SELECT @@version AS version")
    return not ServerVersion(str(row["version"])).keeps_counters


def _in_memory(server: Server) -> frozenset[tuple[str, str]]:
    """Tables that a restart empties. Who opens one then has the server log its TRUNCATE."""
    rows = server.rows(
        "SELECT table_schema AS db, table_name AS name FROM information_schema.tables "
        "WHERE engine = 'MEMORY' AND table_schema NOT IN (%s, %s, %s, %s)",
        SYSTEM,
    )
    return frozenset((text_of(row["db"]), text_of(row["name"])) for row in rows)


def _accounts(server: Server) -> frozenset[tuple[str, str]] | None:
    """All accounts and roles; None if the account may not read them."""
    try:
        rows = server.rows("SELECT user AS u, host AS h FROM mysql.user")
    except SourceError as error:
        if not error.needs_privilege:
            raise
        return None
    return frozenset((text_of(row["u"]), text_of(row["h"])) for row in rows)
