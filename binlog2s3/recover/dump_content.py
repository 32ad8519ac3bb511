"""What a dump by mysqldump or mariadb-dump puts into a server: tables, rows, accounts. No I/O.

Law: a dump is read in blocks of any size and never held: only names stay, and their number has a
limit. What is not understood is left out: it is not checked, and it is never guessed. Nothing of a
dump is executed.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from binlog2s3.recover.backup_format import SINGLE_DATABASE, shown
from binlog2s3.server.sql import SYSTEM

MOST_NAMES = 1 << 20
"""So many tables and accounts are remembered; the rest is not checked."""
MOST_STATEMENT = 8 << 20
"""The most bytes of the statement with the accounts."""
_LOOK_AHEAD = 4096
"""What is looked for in a line ends before: two names of 64 characters are shorter."""

_NAME = rb"(?:`(?:[^`\n]|``)+`|\"(?:[^\"\n]|\"\")+\"|[\w$\x80-\xff]+)"
_LINE = re.compile(
    rb"\n(?:"
    rb"DELIMITER (?P<with>\S+)"
    rb"|USE (?P<use>" + _NAME + rb");"
    rb"|CREATE TABLE (?:IF NOT EXISTS )?(?P<table>" + _NAME + rb") ?\("
    rb"|(?:INSERT|REPLACE) +(?:(?:IGNORE|DELAYED) +)?INTO (?P<into>" + _NAME + rb") "
    rb"|CREATE USER (?:IF NOT EXISTS )?"
    rb"(?P<user>[`'\"][^\n@]*[`'\"])@(?P<host>[`'\"][^\n`'\"]*[`'\"])"
    rb"|-- Host: .*    Database: (?P<database>\S[^\n]*)"
    rb"|-- WHERE:  (?P<where>[^\n]*)"
    rb"|\) ENGINE=(?P<engine>\w+)(?: AUTO_INCREMENT=(?P<number>\d{1,20}))?"
    rb"|(?P<title>-- (?:MySQL|MariaDB) dump \d)"
    rb"|(?P<completed>-- Dump completed)"
    rb"|/\*M?!\d+ SET (?P<opened>@OLD_(?:SQL_NOTES|NOTE_VERBOSITY)=@@)"
    rb"|/\*M?!\d+ SET (?P<closed>(?:SQL_NOTES|NOTE_VERBOSITY)=@OLD_)"
    rb")"
)
CUT_OFF = "it is cut off: its last line is not that of a complete dump"
_WITHOUT_TRANSACTIONS = {b"myisam", b"aria", b"csv", b"archive"}
_ACCOUNTS = {("mysql", "user"), ("mysql", "global_priv")}
_TOKEN = re.compile(rb"'(?:[^'\\]|\\.|'')*'|[(),]|[^'(),]+", re.DOTALL)
_COLUMNS = re.compile(rb"\s*\((?P<names>[^()]*)\)\s*VALUES")
_ESCAPED = re.compile(rb"\\(.)|''", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpContent:
    """What a dump has: of each table (schema, name) whether it has rows; the accounts.

    `accounts` (user, host) is None if the dump has none that could be read. `ends`: whether its
    last line says that it is complete; None if it has none that could say so (--compact).
    `is_whole`: whether all names could be read, and were not too many. `defects`: why a server that
    it is loaded into does not have all data of the dumped one. `doubts`: what may be wrong with it.
    `numbers`: the AUTO_INCREMENT of each InnoDB table that has one.
    """

    tables: Mapping[tuple[str, str], bool]
    accounts: frozenset[tuple[str, str]] | None
    ends: bool | None
    is_whole: bool
    defects: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    numbers: Mapping[tuple[str, str], int] = field(default_factory=dict)


class DumpReader:
    """Reads a dump block by block: `feed` each, then `end`."""

    def __init__(self) -> None:
        self._buffer = b"\n"
        self._database: str | None = None
        self._in_body = False
        self._tables: dict[tuple[str, str], bool] = {}
        self._accounts: set[tuple[str, str]] = set()
        self._statement: bytearray | None = None
        self._titles = self._completed = self._opened = self._closed = 0
        self._created: set[tuple[str, str]] = set()
        self._begun: tuple[str, str] | None = None
        self._loose: set[tuple[str, str]] = set()
        self._numbers: dict[tuple[str, str], int] = {}
        self._is_of_database = self._has_where = False
        self._is_whole = True
        self._knows_accounts = True

    def feed(self, block: bytes) -> None:
        """Read on."""
        self._buffer += block
        self._read(len(self._buffer) - _LOOK_AHEAD)

    def end(self) -> DumpContent:
        """What it had."""
        self._buffer += b"\n"
        self._read(len(self._buffer))
        self._knows_accounts &= self._statement is None
        ends = None
        if self._titles or self._completed:
            ends = self._completed >= max(self._titles, 1)
        elif self._opened or self._closed:  # without comments; --compact has not even this
            ends = self._closed >= max(self._opened, 1)
        return DumpContent(
            tables=self._tables,
            accounts=frozenset(self._accounts) if self._accounts and self._knows_accounts else None,
            ends=ends,
            is_whole=self._is_whole,
            defects=tuple(self._defects(ends)),
            doubts=tuple(self._doubts()),
            numbers=self._numbers,
        )

    def _doubts(self) -> Iterator[str]:
        """No dump says whether it was made with --single-transaction, which locks no table."""
        tables = sorted(table for table in self._loose if self._tables[table])
        if tables:
            first = shown(".".join(tables[0]))
            yield (
                f"it has rows of {len(tables)} tables without transactions, such as {first}: if it "
                "was made with --single-transaction, these are later than its place, and what was "
                "written to them meanwhile is applied A SECOND TIME; --lock-all-tables instead "
                "makes it right"
            )

    def _defects(self, ends: bool | None) -> Iterator[str]:
        if ends is False:
            yield CUT_OFF
        if not self._tables:
            yield "it has no tables"
            return
        with_rows = {table for table, has_rows in self._tables.items() if has_rows}
        if not with_rows:
            yield "it has tables, but no rows (--no-data)"
        own = {table for table in with_rows if table[0].lower() not in SYSTEM}
        if missing := len(own - self._created):
            yield f"it has rows, but not the definitions, of {missing} tables (--no-create-info)"
        if self._has_where:
            yield "it has only the rows of a condition (--where)"
        names = {database for database, _ in self._tables if database.lower() not in SYSTEM}
        has_system = any(database.lower() == "mysql" for database, _ in self._tables)
        says_all = self._titles > 0 and not self._is_of_database
        if len(names) <= 1 and not has_system and not says_all:
            name = "".join(names)
            yield f"{SINGLE_DATABASE}, {shown(name)}"

    def _read(self, until: int) -> None:
        """Handle the lines that begin before this; keep the rest."""
        at = 0
        while at < until:
            if self._statement is not None:
                at = self._collect(at, until)
                continue
            match = _LINE.search(self._buffer, at)
            if match is None or match.start() >= until:
                break
            # the accounts' statement begins in its own line; a line feed belongs to the next one
            at = match.end()
            self._line(match)
        self._buffer = self._buffer[max(at, until, 0) :]

    def _line(self, match: "re.Match[bytes]") -> None:
        kind = match.lastgroup
        if match["with"]:
            self._in_body = match["with"] != b";"
        elif self._in_body:
            return
        elif kind == "use":
            self._database = self._named(match["use"])
        elif kind == "database":
            self._is_of_database = True
            if self._database is None:
                self._database = _text(match["database"].strip())
        elif kind in ("table", "into"):
            self._table(match[kind], has_rows=kind == "into")
        elif kind in ("engine", "number"):
            self._options(match)
        elif kind == "host":
            self._account(self._named(match["user"]), self._named(match["host"]))
        elif kind == "title":
            self._titles += 1
            self._database = None
        elif kind == "completed":
            self._completed += 1
        elif kind == "where":
            self._has_where = True
        elif kind == "opened":
            self._opened += 1
        elif kind == "closed":
            self._closed += 1

    def _options(self, match: "re.Match[bytes]") -> None:
        """Take what follows the columns of the table that has begun."""
        engine = match["engine"].lower()
        if self._begun is None:
            return
        if engine in _WITHOUT_TRANSACTIONS:
            self._loose.add(self._begun)
        elif engine == b"innodb" and match["number"]:
            self._numbers[self._begun] = int(match["number"])

    def _named(self, quoted: bytes) -> str | None:
        """A name without its quotes; None if it is not UTF-8."""
        quote = quoted[:1]
        if quote in (b"`", b'"', b"'"):
            quoted = quoted[1:-1].replace(quote * 2, quote)
        name = _text(quoted)
        self._is_whole &= name is not None
        return name

    def _table(self, quoted: bytes, *, has_rows: bool) -> None:
        name = self._named(quoted)
        self._begun = self._begun if has_rows else None
        if name is None or self._database is None:
            self._is_whole = False
            return
        key = (self._database, name)
        if key in self._tables or len(self._tables) < MOST_NAMES:
            self._tables[key] = has_rows or self._tables.get(key, False)
            if not has_rows:
                self._created.add(key)
                self._begun = None if key[0].lower() in SYSTEM else key
        else:
            self._is_whole = False
        if has_rows and (self._database.lower(), name) in _ACCOUNTS:
            self._statement = bytearray()

    def _account(self, user: str | None, host: str | None) -> None:
        if user is None or host is None or len(self._accounts) >= MOST_NAMES:
            self._knows_accounts = False
        else:
            self._accounts.add((user, host))

    def _collect(self, at: int, until: int) -> int:
        """Gather the accounts' statement, which ends with the first ; at a line's end."""
        assert self._statement is not None  # noqa: S101 - the caller looks
        end = self._buffer.find(b";\n", at)
        upto = end if end >= 0 else until
        self._statement += self._buffer[at:upto]
        if len(self._statement) > MOST_STATEMENT:
            self._knows_accounts = False
            self._statement.clear()
        if end >= 0:
            for user, host in _rows_of(bytes(self._statement)):
                self._account(user, host)
            self._statement = None
            return end + 1  # the line feed begins the next line
        return upto


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _rows_of(statement: bytes) -> Sequence[tuple[str | None, str | None]]:
    """User and host of each row of mysql.user or mysql.global_priv; None where it is no text."""
    column_of = {"host": 0, "user": 1}
    columns = _COLUMNS.match(statement)
    if columns is not None:
        names = [
            column.strip(b' `"').decode(errors="replace").lower()
            for column in columns["names"].split(b",")
        ]
        if not {"host", "user"} <= set(names):
            return [(None, None)]
        column_of = {name: names.index(name) for name in column_of}
        statement = statement[columns.end() :]
    accounts, depth, row, value = [], 0, list[bytes](), b""
    for match in _TOKEN.finditer(statement):
        token = match[0]
        if token == b"(":
            depth += 1
            if depth == 1:
                row, value = [], b""
                continue
        elif token == b")":
            depth -= 1
            if depth == 0:
                row.append(value)
                accounts.append((_value(row, column_of["user"]), _value(row, column_of["host"])))
                continue
        elif token == b"," and depth == 1:
            row.append(value)
            value = b""
            continue
        if depth and len(row) <= max(column_of.values()):
            value += token
    return accounts


def _value(row: "list[bytes]", at: int) -> str | None:
    """A string of a row, without its quotes; None if it is none."""
    value = row[at].strip().removeprefix(b"_binary ") if at < len(row) else b""
    if len(value) < 2 or value[:1] != b"'" or value[-1:] != b"'":
        return None
    plain = _ESCAPED.sub(lambda match: match[1] or b"'", value[1:-1])
    return _text(plain)
