"""What a dump of a server would not bring back as it was, asked before the dump is made.

The rules are pure, over rows of information_schema. What the account may not see, or this version
does not have, is not known, and no reason to make no backup. No row of a table is read.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from binlog2s3.binlog.gtid import Flavour
from binlog2s3.binlog.tables import table_name
from binlog2s3.errors import SourceError
from binlog2s3.formatting import cut, one_line, some
from binlog2s3.server.connection import Server
from binlog2s3.server.expressions import depends_on_zone, mentions, needs_zone_tables
from binlog2s3.server.sql import HAS_ROWS, SYSTEM, text_of

Rows = Sequence[Mapping[str, Any]]
_TableName = tuple[str, str]
_Columns = defaultdict[_TableName, set[str]]
"""Names of columns in lower case, by their table."""
_MOST, _NAME_MOST = 5, 200
_LEFT_OUT = frozenset(SYSTEM) - {"mysql"}
"""The databases that mysqldump and mariadb-dump leave out, in any case of their letters."""
_SYS_TABLES = frozenset({"sys_config"})
_PHYSICAL: Mapping[Flavour, str] = {
    "mysql": "a copy of the server's files has it: xtrabackup, or a snapshot of the volume",
    "mariadb": "a copy of the server's files has it: --tool mariabackup",
}

# Each with the names `db` and `tab`, and `name`: of a column, of an index, of a constraint.
DATABASES = "SELECT schema_name AS db FROM information_schema.schemata ORDER BY 1"
IN_SYS = (
    "SELECT table_schema AS db, table_name AS tab FROM information_schema.tables "  # noqa: S608
    f"WHERE table_schema = 'sys' AND {HAS_ROWS} ORDER BY 1, 2"
)
FLEETING = (
    "SELECT table_schema AS db, table_name AS tab FROM information_schema.tables "
    "WHERE engine = 'MEMORY' ORDER BY 1, 2"
)
COLUMNS = (
    "SELECT table_schema AS db, table_name AS tab, column_name AS name, data_type AS type, "  # noqa: S608
    "generation_expression AS expression, extra AS extra FROM information_schema.columns "
    "WHERE (data_type = 'float' OR generation_expression <> '') "
    "AND (table_schema, table_name) IN (SELECT table_schema, table_name "
    f"FROM information_schema.tables WHERE {HAS_ROWS}) "
    "ORDER BY 1, 2, ordinal_position"
)
KEYS = (
    "SELECT table_schema AS db, table_name AS tab, index_name AS name, non_unique AS non_unique, "
    "column_name AS part, nullable AS nullable FROM information_schema.statistics "
    "WHERE (table_schema, table_name) IN (SELECT table_schema, table_name "
    "FROM information_schema.columns WHERE data_type = 'float' OR generation_expression <> '')"
)
EXPRESSIONS = (
    "SELECT table_schema AS db, table_name AS tab, index_name AS name, expression AS expression "
    "FROM information_schema.statistics WHERE expression IS NOT NULL ORDER BY 1, 2, 3"
)
CHECKS: Mapping[Flavour, str] = {
    "mysql": "SELECT t.table_schema AS db, t.table_name AS tab, t.constraint_name AS name, "
    "c.check_clause AS expression FROM information_schema.check_constraints c "
    "JOIN information_schema.table_constraints t ON t.constraint_schema = c.constraint_schema "
    "AND t.constraint_name = c.constraint_name WHERE t.constraint_type = 'CHECK' "
    "ORDER BY 1, 2, 3",
    # of which the names are unique only in a table
    "mariadb": "SELECT constraint_schema AS db, table_name AS tab, constraint_name AS name, "
    "check_clause AS expression FROM information_schema.check_constraints "
    "ORDER BY 1, 2, 3",
}
TIMESTAMPS = (
    "SELECT table_schema AS db, table_name AS tab, column_name AS name "
    "FROM information_schema.columns WHERE data_type = 'timestamp'"
)
_MOMENTS = (1_000, 15_638_400, 946_684_800, 962_409_600, 1_767_225_600, 1_782_864_000)
"""In January and July of 1970, 2000 and 2026."""
ZONE = "SELECT " + ", ".join(
    f"TIMESTAMPDIFF(SECOND, '1970-01-01', FROM_UNIXTIME({at})) - {at} AS at{at}" for at in _MOMENTS
)
TABLESPACES = (
    "SELECT name AS name FROM information_schema.innodb_tablespaces "
    "WHERE space_type = 'General' AND name <> 'mysql' ORDER BY 1"
)
# https://dev.mysql.com/doc/refman/9.7/en/create-spatial-reference-system.html
SPATIAL = (
    "SELECT srs_id AS name FROM information_schema.st_spatial_reference_systems "
    "WHERE srs_id <> 0 AND (organization IS NULL OR organization <> 'EPSG') ORDER BY 1"
)
RESTRICTS = "SHOW GLOBAL VARIABLES LIKE 'restrict_fk_on_non_standard_key'"
# A referenced table that is not there is no obstacle: a dump is loaded without such checks.
FOREIGN_KEYS = (
    "SELECT r.constraint_schema AS db, r.table_name AS tab, r.constraint_name AS name "
    "FROM information_schema.referential_constraints r JOIN information_schema.tables p "
    "ON p.table_schema = r.unique_constraint_schema AND p.table_name = r.referenced_table_name "
    "WHERE r.unique_constraint_name IS NULL OR (SELECT COUNT(*) "
    "FROM information_schema.key_column_usage k WHERE k.constraint_schema = r.constraint_schema "
    "AND k.constraint_name = r.constraint_name AND k.table_name = r.table_name) < (SELECT COUNT(*) "
    "FROM information_schema.statistics s WHERE s.table_schema = r.unique_constraint_schema "
    "AND s.table_name = r.referenced_table_name AND s.index_name = r.unique_constraint_name) "
    "ORDER BY 1, 2, 3"
)
_CODECS = {
    "big5": "big5",
    "cp932": "cp932",
    "gb18030": "gb18030",
    "gbk": "gbk",
    "sjis": "cp932",
}
"""Charsets in which a byte of a character may be a backslash or a backtick, with Python's names."""
BODIES = (
    (
        "SELECT trigger_schema AS db, trigger_name AS tab, character_set_client AS charset, "
        "action_statement AS body FROM information_schema.triggers "
        "WHERE character_set_client IN ('big5', 'cp932', 'gb18030', 'gbk', 'sjis')"
    ),
    (
        "SELECT routine_schema AS db, routine_name AS tab, character_set_client AS charset, "
        "routine_definition AS body FROM information_schema.routines "
        "WHERE character_set_client IN ('big5', 'cp932', 'gb18030', 'gbk', 'sjis')"
    ),
    (
        "SELECT event_schema AS db, event_name AS tab, character_set_client AS charset, "
        "event_definition AS body FROM information_schema.events "
        "WHERE character_set_client IN ('big5', 'cp932', 'gb18030', 'gbk', 'sjis')"
    ),
)


@dataclass(frozen=True, slots=True)
class Loss:
    """What a dump would lose or change, as text, and what to do; `refused`: then none is made."""

    text: str
    hint: str
    refused: bool = False


def losses_of(server: Server, flavour: Flavour) -> tuple[Loss, ...]:
    """Ask the server. Raises SourceError only if it does not answer."""

    def ask(statement: str) -> Rows:
        try:
            return _rows(server, statement)
        except SourceError as error:
            if error.transient:
                raise
            return ()

    def ask_of_users(statement: str) -> Rows:
        return [row for row in ask(statement) if text_of(row["db"]) not in SYSTEM]

    bodies = [row for statement in BODIES for row in ask_of_users(statement)]
    columns = ask_of_users(COLUMNS)
    keys = ask(KEYS) if columns else ()
    losses = [*left_out(ask(DATABASES), ask(IN_SYS), flavour), *rounded(columns, keys, flavour)]
    losses += [*hard_to_load(bodies), *emptied(ask_of_users(FLEETING), flavour)]
    if flavour == "mysql":
        losses += lacking(ask(TABLESPACES), ask(SPATIAL))
        if ask(RESTRICTS):
            losses += unusual_keys(ask(FOREIGN_KEYS))
    else:
        losses += of_zone_tables(columns, keys)
    indexes = ask_of_users(EXPRESSIONS) if flavour == "mysql" else ()
    checks = ask_of_users(CHECKS[flavour])
    if indexes or checks or any(_is_generated(row) for row in columns):
        timestamps = ask(TIMESTAMPS)
        kept = [*map(_object, zone_dependent(columns, indexes, timestamps, keys))]
        either = map(_object, zone_dependent(columns, checks, timestamps, keys))
        checked = [name for name in either if name not in kept]
        losses += computed_anew(kept, checked, ask(ZONE), flavour) if kept or checked else ()
    return tuple(losses)


def zone_columns(server: Server) -> list[tuple[str, str, str]]:
    """The generated columns that are stored or indexed as the session's time zone has them.

    Each with database and table, as far as the account may see them. Raises SourceError.
    """
    columns = [row for row in _rows(server, COLUMNS) if text_of(row["db"]) not in SYSTEM]
    if not any(_is_generated(row) for row in columns):
        return []
    dependent = zone_dependent(columns, (), _rows(server, TIMESTAMPS), _rows(server, KEYS))
    return [(*_table(row), text_of(row["name"])) for row in dependent]


def _rows(server: Server, statement: str) -> Rows:
    rows = server.rows(statement)
    return [{name.lower(): value for name, value in row.items()} for row in rows]


# The rules


def left_out(databases: Rows, in_sys: Rows, flavour: Flavour) -> Iterator[Loss]:
    """Databases, and tables in `sys`, that no dump has."""
    names = [text_of(row["db"]) for row in databases]
    lost = [name for name in names if name.lower() in _LEFT_OUT and name not in _LEFT_OUT]
    if lost:
        yield Loss(
            f"the dump program leaves out the database {_some(lost)}: it takes that for the "
            "server's own, whatever the case of its letters",
            f"give the database another name; {_PHYSICAL[flavour]}",
            refused=True,
        )
    tables = [(text_of(row["db"]), text_of(row["tab"])) for row in in_sys]
    mine = [
        table_name(*table) for table in tables if table[0] == "sys" and table[1] not in _SYS_TABLES
    ]
    if mine:
        yield Loss(
            f"the dump program leaves out the database sys, and in it your table {_some(mine)}",
            f"move it to a database of your own; {_PHYSICAL[flavour]}",
            refused=True,
        )


def rounded(columns: Rows, keys: Rows, flavour: Flavour) -> Iterator[Loss]:
    """FLOAT columns, and those whose rows later binlogs would not find."""
    floats: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in columns:
        if text_of(row["type"]).lower() == "float" and not _is_generated(row):
            floats[_table(row)].add(text_of(row["name"]))
    parts: dict[tuple[tuple[str, str], str], list[bool]] = defaultdict(list)
    for row in keys:
        if _table(row) in floats and not int(row["non_unique"]):
            is_exact = (
                row["part"] is not None
                and text_of(row["part"]) not in floats[_table(row)]
                and text_of(row["nullable"] or "").upper() != "YES"
            )
            parts[_table(row), text_of(row["name"])].append(is_exact)
    exact = {table for (table, _), good in parts.items() if all(good)}
    lost = [table_name(*table) for table in floats if table not in exact]
    if lost:
        yield Loss(
            f"FLOAT in a table without a primary key: {_some(lost)}. A dump rounds FLOAT to six "
            "digits, and an UPDATE or DELETE of such a row in later binlogs does not find it then "
            "(error 1032): no recovery from this backup gets past that",
            f"give the table a primary key; {_PHYSICAL[flavour]}",
        )
    other = [table_name(*table) for table in floats if table in exact]
    if other:
        yield Loss(
            f"a dump rounds FLOAT to six digits: {_some(other)}",
            "DOUBLE or DECIMAL is exact in a dump, and FLOAT in a copy of the server's files",
        )


def emptied(fleeting: Rows, flavour: Flavour) -> Iterator[Loss]:
    """MEMORY tables, which lose their rows when the server that is restored starts again."""
    if fleeting:
        ends = {
            "mysql": "; a change of those in later binlogs ends the restore (error 1032)",
            "mariadb": "",
        }
        yield Loss(
            f"the rows of MEMORY tables are not restored: "
            f"{_some(table_name(*_table(row)) for row in fleeting)}. `restore` and `drill` start "
            f"their server again after the load, which empties them{ends[flavour]}",
            "give them another engine; or load the dump and apply with `pitr`: "
            "docs/guides/restore.md",
        )


def hard_to_load(bodies: Rows) -> Iterator[Loss]:
    """Triggers, routines and events of which a client takes bytes of letters for marks of SQL."""

    def misleads(row: Mapping[str, Any]) -> bool:
        codec = _CODECS[text_of(row["charset"]).lower()]
        letters = (char for char in text_of(row["body"] or "") if not char.isascii())
        return any(char.encode(codec, "replace")[-1:] in (b"\\", b"`") for char in letters)

    named = [table_name(*_table(row)) for row in bodies if misleads(row)]
    if named:
        yield Loss(
            "triggers, routines or events were made in a session in gbk, big5 or sjis, and have "
            f"letters with a byte that is a backslash or a backtick: {_some(named)}. The client "
            "that loads a dump takes it for one, and may end at it (Unknown command)",
            "a drill shows whether this backup can be loaded; made anew in a session with "
            "utf8mb4, they can be",
        )


def lacking(tablespaces: Rows, spatial: Rows) -> Iterator[Loss]:
    """What mysqldump does not write although tables may need it."""
    for rows, what in (
        (tablespaces, "tablespace"),
        (spatial, "spatial reference system of your own"),
    ):
        if rows:
            yield Loss(
                f"a dump does not have the {what}: {_some(text_of(row['name']) for row in rows)}; "
                "no empty server would load the tables that use it",
                f"{_PHYSICAL['mysql']}; or drop it, and what uses it",
                refused=True,
            )


def unusual_keys(foreign_keys: Rows) -> Iterator[Loss]:
    """Foreign keys that MySQL 8.4 and later make only if they are told to."""
    if foreign_keys:
        yield Loss(
            f"a foreign key that refers to no unique key: {_some(map(_object, foreign_keys))}. "
            "The dump can be loaded only by a server with restrict_fk_on_non_standard_key = OFF",
            "give `restore` and `drill` --mysqld-option=--restrict-fk-on-non-standard-key=OFF",
        )


def zone_dependent(
    columns: Rows, expressions: Rows, timestamps: Rows, keys: Rows
) -> tuple[Mapping[str, Any], ...]:
    """What is stored, indexed or checked of a TIMESTAMP as the session's time zone shows it.

    `expressions`: of indexes and of CHECKs. Partitions have no other way to depend on it.
    """
    computed = {_column(row) for row in columns if _is_generated(row)}
    shown: _Columns = defaultdict(set)
    stored: _Columns = defaultdict(set)
    for row in timestamps:
        table, name = _column(row)
        shown[table].add(name)
        if (table, name) not in computed:
            stored[table].add(name)

    def depends(table: _TableName, expression: str) -> bool:
        return depends_on_zone(expression, shown[table], stored[table])

    kept = [*_kept(columns, keys, shown, depends)]
    kept += [row for row in expressions if depends(_table(row), text_of(row["expression"]))]
    return tuple(kept)


def of_zone_tables(columns: Rows, keys: Rows) -> Iterator[Loss]:
    """What mariadb-dump has before the `mysql` database, and so before the time zones of that."""
    before = [row for row in columns if text_of(row["db"]) < "mysql"]
    shown: _Columns = defaultdict(set)

    def depends(table: _TableName, expression: str) -> bool:
        return needs_zone_tables(expression) or mentions(expression, shown[table])

    kept = tuple(map(_object, _kept(before, keys, shown, depends)))
    if kept:
        yield Loss(
            f"generated columns use CONVERT_TZ: {_some(kept)}. They are loaded before the time "
            "zones, which are in the database mysql, and would be NULL",
            f"{_PHYSICAL['mariadb']}; or give the database a name that comes after mysql",
            refused=True,
        )


def _kept(
    columns: Rows, keys: Rows, shown: _Columns, depends: Callable[[_TableName, str], bool]
) -> Iterator[Mapping[str, Any]]:
    """The generated columns that depend on it, also through others, and are stored or indexed.

    All that depend are added to `shown`.
    """
    generated = [row for row in columns if _is_generated(row)]
    before = -1
    while before != (before := sum(map(len, shown.values()))):  # one may use another
        for row in generated:
            if depends(_table(row), text_of(row["expression"])):
                table, name = _column(row)
                shown[table].add(name)
    indexed = {
        (_table(row), text_of(row["part"]).lower()) for row in keys if row["part"] is not None
    }
    for row in generated:
        table, name = _column(row)
        is_stored = "STORED" in text_of(row["extra"]).upper()
        if name in shown[table] and (is_stored or (table, name) in indexed):
            yield row


def computed_anew(
    kept: Sequence[str], checked: Sequence[str], zone: Rows, flavour: Flavour
) -> Iterator[Loss]:
    """What a load computes in UTC; in `zone` are the offsets of the server's own time zone.

    A server in UTC, as far as is known, is dumped: its sessions may have set another zone. For the
    CHECKs `checked` a load fails, or it does not, and nothing becomes other than it was.
    """
    is_utc = bool(zone) and all(str(value) == "0" for value in zone[0].values())
    if checked and not is_utc:
        yield Loss(
            f"CHECKs depend on a TIMESTAMP in the session's time zone: {_some(checked)}. A dump is "
            "loaded in UTC, and a row that does not satisfy them there ends the load",
            "a drill shows whether this backup can be loaded",
        )
    if not kept:
        return
    of = f"depend on a TIMESTAMP in the session's time zone: {_some(kept)}"
    if is_utc:
        yield Loss(
            f"generated columns or indexes {of}. A dump is loaded in UTC, and they are "
            "computed anew: they are right if every session that wrote had the server's time zone",
            f"if one had another (SET time_zone, connectionTimeZone): {_PHYSICAL[flavour]}",
        )
        return
    yield Loss(
        f"generated columns or indexes {of}. A dump is loaded in UTC, and they would be "
        "computed anew: with other values than here, at which later binlogs fail",
        f"{_PHYSICAL[flavour]}; or compute them of a DATETIME",
        refused=True,
    )


_OF_VERSIONS = ("ROW START", "ROW END")


def _is_generated(row: Mapping[str, Any]) -> bool:
    expression = text_of(row["expression"] or "")
    return bool(expression) and expression not in _OF_VERSIONS


def _table(row: Mapping[str, Any]) -> _TableName:
    return text_of(row["db"]), text_of(row["tab"])


def _column(row: Mapping[str, Any]) -> tuple[_TableName, str]:
    return _table(row), text_of(row["name"]).lower()


def _object(row: Mapping[str, Any]) -> str:
    return f"{table_name(*_table(row))}: {text_of(row['name'])}"


def _some(names: Iterable[str]) -> str:
    """The first names, each as one short line: a name may have any character."""
    return some([cut(one_line(name), _NAME_MOST) for name in names], _MOST)
