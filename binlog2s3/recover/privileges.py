"""The privileges that the account at a recovery's target is missing, according to SHOW GRANTS.

`pitr --dry-run` asks, because it may try nothing. With --yes, `replicate` tries what it needs
before anything is applied, and that decides. A grant that cannot be parsed counts as missing: a dry
run then warns too much.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.errors import RecoveryError, SourceError
from binlog2s3.recover.target import DATABASE, TargetFacts
from binlog2s3.server.connection import Server
from binlog2s3.server.version import ServerVersion

_EVERYWHERE = ("*", "*")
_ALL = "ALL PRIVILEGES"
_NOTES = (f"{DATABASE}%", "*")
"""Databases that begin like this."""
_NOTES_GRANTED = "`" + DATABASE.replace("_", "\\_") + "%`.*"
_SUPER_ENDS = (11,)
"""From this MariaDB on, SUPER no longer includes the privileges that were split off from it."""
_NEEDS: dict[Flavour, Sequence[tuple[str, tuple[str, str]]]] = {
    "mysql": (
        ("REPLICATION CLIENT", _EVERYWHERE),
        ("REPLICATION_SLAVE_ADMIN", _EVERYWHERE),
        ("RELOAD", _EVERYWHERE),
        ("SESSION_VARIABLES_ADMIN", _EVERYWHERE),
        *((name, _NOTES) for name in ("CREATE", "DROP", "INSERT", "SELECT", "UPDATE")),
        ("SELECT", ("performance_schema", "replication_applier_status_by_worker")),
        ("SELECT", ("mysql", "slave_worker_info")),
        ("SELECT", ("mysql", "slave_relay_log_info")),
    ),
    "mariadb": (
        ("REPLICATION SLAVE ADMIN", _EVERYWHERE),
        ("SLAVE MONITOR", _EVERYWHERE),
        ("RELOAD", _EVERYWHERE),
        ("BINLOG ADMIN", _EVERYWHERE),
        ("PROCESS", _EVERYWHERE),
        *((name, _NOTES) for name in ("CREATE", "DROP", "INSERT", "SELECT", "UPDATE")),
    ),
}
"""What docs/guides/permissions.md grants at the target: the privilege, and on which table."""
_INSTEAD = {"SESSION_VARIABLES_ADMIN": "SYSTEM_VARIABLES_ADMIN"}
_NOT_IN_SUPER = ("RELOAD", "PROCESS")
_QUOTED = r"(?:`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\")"
_GRANT = re.compile(
    rf"(GRANT|REVOKE) (.+?) ON (\*|{_QUOTED})\.(\*|{_QUOTED}) (?:TO|FROM) ", re.DOTALL
)
_OF_COLUMNS = re.compile(r"[A-Z ]+\([^)]*\)")


def missing_privileges(server: Server, facts: TargetFacts) -> Iterator[RecoveryError]:
    """What the account is missing, with the GRANT statements; nothing if it has everything.

    Asks with SELECT and SHOW only. Raises SourceError if the connection is lost.
    """
    account = str(server.rows("SELECT CURRENT_USER() AS it")[0]["it"])
    missing: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for privilege, where in _missing(server, facts):
        missing[where].append(privilege)
    if not missing:
        return
    user, _, host = account.rpartition("@")
    quoted = "@".join(f"'{part.replace(chr(39), chr(39) * 2)}'" for part in (user, host))
    named = [f"{', '.join(names)} on {'.'.join(where)}" for where, names in missing.items()]
    grants = [
        f"GRANT ALL ON {_NOTES_GRANTED} TO {quoted}"
        if where == _NOTES
        else f"GRANT {', '.join(names)} ON {'.'.join(where)} TO {quoted}"
        for where, names in missing.items()
    ]
    yield RecoveryError(
        f"the account {account!r} at the target, {facts.address}, is missing the privilege "
        f"{'; '.join(named)}",
        hint="; ".join(grants),
    )


def _missing(server: Server, facts: TargetFacts) -> Iterator[tuple[str, tuple[str, str]]]:
    try:
        lines = [str(next(iter(row.values()))) for row in server.rows("SHOW GRANTS")]
    except SourceError as error:
        if not error.answered:
            raise
        yield from ((one, _EVERYWHERE) for one in facts.missing_privileges)
        return
    for privilege, where in needed(facts):
        if not has(lines, facts, privilege, where):
            yield privilege, where


def needed(facts: TargetFacts) -> Sequence[tuple[str, tuple[str, str]]]:
    """The privileges that the apply needs at this target, and on which table."""
    if facts.flavour == "mysql" and ServerVersion(facts.version).numbers < (8,):
        old = {"REPLICATION_SLAVE_ADMIN": "SUPER", "SESSION_VARIABLES_ADMIN": "SUPER"}
        found = ((old.get(name, name), where) for name, where in _NEEDS["mysql"])
        return tuple(dict.fromkeys(found))
    return _NEEDS[facts.flavour]


def has(lines: Sequence[str], facts: TargetFacts, privilege: str, where: tuple[str, str]) -> bool:
    """Whether these lines of SHOW GRANTS give this privilege on this table, or on all of them."""
    enough = {_ALL, privilege, _INSTEAD.get(privilege, privilege)}
    knows_super = facts.flavour == "mysql" or ServerVersion(facts.version).numbers < _SUPER_ENDS
    if where == _EVERYWHERE and privilege not in _NOT_IN_SUPER and knows_super:
        enough.add("SUPER")
    given = False
    for line in lines:
        found = _GRANT.match(line)
        if found is None or not _covers(found[3], found[4], where):
            continue
        names = {one.strip() for one in _OF_COLUMNS.sub("", found[2]).split(",")}
        if names & enough:
            given = found[1] == "GRANT"  # MySQL's partial revokes come last
    return given


def _covers(database: str, table: str, where: tuple[str, str]) -> bool:
    """Whether a grant on this database (a pattern, unless it is on one table) is on that table."""
    if database == "*":
        return True
    if where == _EVERYWHERE:
        return False
    name = _unquoted(database)
    if table != "*":
        return (name, _unquoted(table)) == where
    pattern = "".join(
        {"%": ".*", "_": "."}.get(part, re.escape(part.removeprefix("\\")))
        for part in re.findall(r"\\?.", name, re.DOTALL)
    )
    return re.fullmatch(pattern, where[0], re.DOTALL) is not None


def _unquoted(name: str) -> str:
    return name[1:-1].replace(name[0] * 2, name[0])
